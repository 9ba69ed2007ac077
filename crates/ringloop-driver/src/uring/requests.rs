//! Requests to the kernel: the entries of the submission queue, and their user data.

use std::os::fd::{AsRawFd, RawFd};

use io_uring::types::{CancelBuilder, Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use crate::bytes::Bytes;
use crate::op::Op;
use crate::parked::Operation;
use crate::shared_fd::SharedFd;

/// The slot index in the user data of the driver's own requests. No watch or operation has it.
pub(super) const INTERNAL: u64 = u32::MAX as u64;
/// Requests whose completions are ignored: cancels that found nothing.
pub(super) const IGNORED: u64 = 1 << 32 | INTERNAL;
/// The watch on the waker's eventfd.
pub(super) const WAKER: u64 = 2 << 32 | INTERNAL;
/// The watch on the registry's epoll set.
pub(super) const REGISTRY: u64 = 3 << 32 | INTERNAL;
/// Cancels of operations: this, plus the operation's slot index in the upper half.
const CANCEL: u64 = 4 << 32 | INTERNAL;

/// Polls a descriptor for any of `bits`: once, or at each arrival if `multishot`.
///
/// Without `IORING_POLL_ADD_LEVEL` a multishot poll is edge-triggered (io_uring_enter(2)).
pub(super) fn poll(fd: RawFd, bits: u32, multishot: bool, user_data: u64) -> squeue::Entry {
    opcode::PollAdd::new(Fd(fd), bits)
        .multi(multishot)
        .build()
        .user_data(user_data)
}

/// Cancels a request. One that has just completed is not found, which is fine.
pub(super) fn cancel(user_data: u64) -> squeue::Entry {
    opcode::AsyncCancel::new(user_data)
        .build()
        .flags(squeue::Flags::SKIP_SUCCESS)
        .user_data(IGNORED)
}

/// Cancels the request of an operation, whose slot is told if it is not found.
pub(super) fn cancel_operation(user_data: u64) -> squeue::Entry {
    let index = user_data & INTERNAL;
    cancel(user_data).user_data(CANCEL + (index << 32))
}

/// The slot index of the operation that this request is to cancel.
pub(super) fn cancelled_slot(user_data: u64) -> Option<u32> {
    let index = user_data.checked_sub(CANCEL)? >> 32;
    u32::try_from(index).ok()
}

/// Cancels every request.
pub(super) fn cancel_all() -> squeue::Entry {
    opcode::AsyncCancel2::new(CancelBuilder::any().all())
        .build()
        .user_data(IGNORED)
}

/// Whether an entry is not the arming of a watch.
pub(super) fn is_operation_or_cancel(entry: &squeue::Entry) -> bool {
    entry.get_opcode() != u32::from(opcode::PollAdd::CODE)
}

/// Makes the notification report whether the kernel has copied the data (`IORING_SEND_ZC_REPORT_USAGE`).
const REPORT_USAGE: u16 = 1 << 3;

/// The entry of an operation. Its pointers point into the operation, which the table does not move.
pub(super) fn operation(operation: &mut Operation) -> squeue::Entry {
    let open_flags = operation.open_flags();
    match &mut operation.op {
        Op::SendZeroCopy { fd, bytes, flags } => {
            send_zero_copy(number(fd), bytes, *flags, operation.copies)
        }
        Op::Read { fd, buffer, offset } => {
            let room = buffer.room_mut();
            opcode::Read::new(number(fd), room.as_mut_ptr().cast(), length(room.len()))
                .offset(offset.unwrap_or(u64::MAX))
                .build()
        }
        Op::Write {
            fd,
            bytes,
            start,
            offset,
        } => {
            let rest = &bytes.as_slice()[*start..];
            opcode::Write::new(number(fd), rest.as_ptr(), length(rest.len()))
                .offset(offset.unwrap_or(u64::MAX))
                .build()
        }
        Op::Fsync { fd, data_only } => {
            let flags = data_only.then_some(FsyncFlags::DATASYNC);
            let flags = flags.unwrap_or(FsyncFlags::empty());
            opcode::Fsync::new(number(fd)).flags(flags).build()
        }
        Op::OpenAt {
            directory,
            path,
            mode,
            ..
        } => opcode::OpenAt::new(place(directory.as_ref()), path.as_ptr())
            .flags(open_flags)
            .mode(*mode)
            .build(),
        Op::Statx {
            directory,
            path,
            flags,
            mask,
            status,
        } => opcode::Statx::new(
            place(directory.as_ref()),
            path.as_ptr(),
            (&raw mut status.0).cast(),
        )
        .flags(*flags)
        .mask(*mask)
        .build(),
        Op::RenameAt {
            from_directory,
            from,
            to_directory,
            to,
            flags,
        } => opcode::RenameAt::new(
            place(from_directory.as_ref()),
            from.as_ptr(),
            place(to_directory.as_ref()),
            to.as_ptr(),
        )
        .flags(*flags)
        .build(),
        Op::UnlinkAt {
            directory,
            path,
            flags,
        } => opcode::UnlinkAt::new(place(directory.as_ref()), path.as_ptr())
            .flags(*flags)
            .build(),
        Op::MkDirAt {
            directory,
            path,
            mode,
        } => opcode::MkDirAt::new(place(directory.as_ref()), path.as_ptr())
            .mode(*mode)
            .build(),
        Op::Close { fd } => {
            opcode::Close::new(Fd(fd.as_ref().map_or(-1, AsRawFd::as_raw_fd))).build()
        }
    }
}

fn number(fd: &SharedFd) -> Fd {
    Fd(fd.as_raw_fd())
}

/// The directory that a relative path is resolved against.
fn place(directory: Option<&SharedFd>) -> Fd {
    directory.map_or(Fd(libc::AT_FDCWD), number)
}

/// The entry of a zero-copy send, or of an ordinary send in its place if it `copies`.
fn send_zero_copy(fd: Fd, bytes: &Bytes, flags: i32, copies: bool) -> squeue::Entry {
    let (bytes, flags) = (bytes.as_slice(), flags | libc::MSG_NOSIGNAL);
    if copies {
        opcode::Send::new(fd, bytes.as_ptr(), length(bytes.len()))
            .flags(flags)
            .build()
    } else {
        opcode::SendZc::new(fd, bytes.as_ptr(), length(bytes.len()))
            .flags(flags)
            .zc_flags(REPORT_USAGE)
            .build()
    }
}

/// A length as the kernel takes it. One transfer moves less than two gigabytes anyway (read(2)).
fn length(length: usize) -> u32 {
    length.min(0x7fff_f000) as u32
}
