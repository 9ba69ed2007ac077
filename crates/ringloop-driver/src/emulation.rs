//! Operations performed with ordinary system calls, in the polling thread or by a worker.
//!
//! [`try_now`] never blocks. The result is that the operation is done, has to wait for its descriptor, or needs a
//! worker. A worker calls [`perform`], which may block.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};

use crate::op::{Op, SENT_BY_COPY};
use crate::parked::{Operation, Parked};
use crate::shared_fd::SharedFd;
use crate::sys::{self, Waiting};

/// The outcome of trying an operation.
pub(crate) enum Attempt {
    /// The last result, or `-errno`.
    Done(i32),
    /// It has to wait until its descriptor is ready.
    Blocked,
    /// It may block the thread, so a worker has to do it.
    Offload,
}

/// Tries an operation without blocking the thread. Results that come before the last one go to `earlier`.
pub(crate) fn try_now(operation: &mut Operation, earlier: &mut Vec<i32>) -> Attempt {
    if operation.op.is_misplaced() {
        return Attempt::Done(-libc::ESPIPE);
    }
    let result = match &mut operation.op {
        Op::SendZeroCopy { fd, bytes, flags } => sys::send(
            fd.as_raw_fd(),
            bytes.as_slice(),
            *flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
        .map(|count| {
            earlier.push(count as i32);
            SENT_BY_COPY as usize
        }),
        Op::Read { fd, .. } | Op::Write { fd, .. } if fd.nature().is_storage => {
            return Attempt::Offload;
        }
        Op::Read { fd, buffer, offset } => read(fd.as_raw_fd(), buffer.room_mut(), *offset),
        Op::Write {
            fd,
            bytes,
            start,
            offset,
        } => write(fd.as_raw_fd(), &bytes.as_slice()[*start..], *offset),
        Op::Fsync { .. }
        | Op::OpenAt { .. }
        | Op::Statx { .. }
        | Op::RenameAt { .. }
        | Op::UnlinkAt { .. }
        | Op::MkDirAt { .. }
        | Op::Close { .. } => return Attempt::Offload,
    };
    match result {
        Ok(count) => Attempt::Done(count as i32),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && !operation.op.never_waits() => {
            Attempt::Blocked
        }
        Err(error) => Attempt::Done(failure(&error)),
    }
}

/// An error as a result: `-errno`.
pub(crate) fn failure(error: &io::Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// The number of bytes that can be written to a blocking pipe that is ready, without blocking (pipe(7)).
const PIPE_ROOM: usize = 4096;

pub(crate) fn read(
    fd: RawFd,
    room: &mut [MaybeUninit<u8>],
    offset: Option<u64>,
) -> io::Result<usize> {
    match sys::read(fd, room, offset, Waiting::Forbidden) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            // A read that does not wait knows more than a poll: a FIFO that never had a writer is at its end.
            if !sys::is_nonblocking(fd)? && sys::poll_now(fd, libc::POLLIN)? == 0 {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            sys::read(fd, room, offset, Waiting::Allowed)
        }
        result => result,
    }
}

pub(crate) fn write(fd: RawFd, buffer: &[u8], offset: Option<u64>) -> io::Result<usize> {
    match sys::write(fd, buffer, offset, Waiting::Forbidden) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let mut buffer = buffer;
            // A write that does not wait knows more than a poll: a Unix socket counts as full from a quarter of its room on.
            if !sys::is_nonblocking(fd)? {
                if sys::poll_now(fd, libc::POLLOUT)? == 0 {
                    return Err(io::Error::from_raw_os_error(libc::EAGAIN));
                }
                buffer = &buffer[..buffer.len().min(PIPE_ROOM)];
            }
            sys::write(fd, buffer, offset, Waiting::Allowed)
        }
        result => result,
    }
}

/// Performs an operation, and blocks as long as it takes. Called by workers.
pub(crate) fn perform(parked: &mut Parked) -> i32 {
    let operation = parked.get_mut();
    loop {
        let result = attempt(operation);
        if !operation.opens_again(result) {
            return result;
        }
    }
}

fn attempt(operation: &mut Operation) -> i32 {
    let open_flags = operation.open_flags();
    let result = match &mut operation.op {
        Op::Read { fd, buffer, offset } => {
            sys::read(fd.as_raw_fd(), buffer.room_mut(), *offset, Waiting::Allowed)
        }
        Op::Write {
            fd,
            bytes,
            start,
            offset,
        } => sys::write(
            fd.as_raw_fd(),
            &bytes.as_slice()[*start..],
            *offset,
            Waiting::Allowed,
        ),
        Op::Fsync { fd, data_only } => sys::fsync(fd.as_raw_fd(), *data_only).map(|()| 0),
        Op::OpenAt {
            directory,
            path,
            mode,
            ..
        } => sys::open_at(place(directory.as_ref()), path, open_flags, *mode).map(|fd| fd as usize),
        Op::Statx {
            directory,
            path,
            flags,
            mask,
            status,
        } => sys::statx(
            place(directory.as_ref()),
            path,
            *flags,
            *mask,
            &mut status.0,
        )
        .map(|()| 0),
        Op::RenameAt {
            from_directory,
            from,
            to_directory,
            to,
            flags,
        } => sys::rename_at(
            (place(from_directory.as_ref()), from),
            (place(to_directory.as_ref()), to),
            *flags,
        )
        .map(|()| 0),
        Op::UnlinkAt {
            directory,
            path,
            flags,
        } => sys::unlink_at(place(directory.as_ref()), path, *flags).map(|()| 0),
        Op::MkDirAt {
            directory,
            path,
            mode,
        } => sys::make_directory_at(place(directory.as_ref()), path, *mode).map(|()| 0),
        Op::Close { fd } => fd.take().map_or(Ok(()), sys::close).map(|()| 0),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    match result {
        Ok(count) => i32::try_from(count).unwrap_or(i32::MAX),
        Err(error) => failure(&error),
    }
}

/// The directory that a relative path is resolved against.
fn place(directory: Option<&SharedFd>) -> RawFd {
    directory.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd)
}
