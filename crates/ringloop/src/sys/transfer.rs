//! Reading from and writing to descriptors that need not be sockets.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::copying::without_sigpipe;
use super::is_ready_now;

/// The number of bytes that fit into a blocking pipe that is ready (pipe(7), `PIPE_BUF`).
const PIPE_ROOM: usize = 4096;

/// Reads into memory that may be uninitialised, see `read(2)`.
pub(crate) fn read(from: BorrowedFd<'_>, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    // SAFETY: `room` is valid for writes of its length, and outlives the call.
    let count = unsafe {
        libc::syscall(
            libc::SYS_read,
            from.as_raw_fd(),
            room.as_mut_ptr(),
            room.len(),
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes, see `write(2)`.
pub(crate) fn write(to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is valid for reads of its length, and outlives the call.
    let count =
        unsafe { libc::syscall(libc::SYS_write, to.as_raw_fd(), bytes.as_ptr(), bytes.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes to a pipe as [`write`] does, without SIGPIPE for the process if nobody reads it.
pub(crate) fn write_to_pipe(to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    without_sigpipe(bytes.len(), || write(to, bytes))
}

/// Reads what is there, without waiting and without `O_NONBLOCK`, which belongs to the open file and so to everybody who
/// shares it. Fails with `WouldBlock` if nothing is there.
///
/// Where the kernel does not know `RWF_NOWAIT` for the file (terminals; pipes before Linux 6.4), this asks whether there
/// is something first. It waits if another process reads that in between.
pub(crate) fn read_now(from: BorrowedFd<'_>, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    let piece = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    // SAFETY: `piece` is valid for reads, and what it describes for writes; both outlive the call.
    let count = unsafe { at_once(libc::SYS_preadv2, from, &piece) };
    match usize::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if is_unsupported(&error) => {
                if !is_nonblocking(from) && !is_ready_now(from, libc::POLLIN)? {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                read(from, room)
            }
            error => Err(error),
        },
    }
}

/// Writes as much as there is room for, as [`read_now`] reads.
pub(crate) fn write_now(to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: `piece` and what it describes are valid for reads, and outlive the call, which writes to neither.
    let count = unsafe { at_once(libc::SYS_pwritev2, to, &piece) };
    match usize::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if is_unsupported(&error) => {
                if is_nonblocking(to) {
                    return write(to, bytes);
                }
                if !is_ready_now(to, libc::POLLOUT)? {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                write(to, &bytes[..bytes.len().min(PIPE_ROOM)])
            }
            error => Err(error),
        },
    }
}

/// Calls preadv2(2) or pwritev2(2) by its number, because not every C library has them, at the current position.
///
/// # Safety
/// The piece is valid for writes with `SYS_preadv2`, and for reads with `SYS_pwritev2`.
unsafe fn at_once(call: libc::c_long, descriptor: BorrowedFd<'_>, piece: &libc::iovec) -> i64 {
    // SAFETY: the caller vouches for the piece. The offset comes in two halves, of which 64-bit kernels use only the first.
    unsafe {
        libc::syscall(
            call,
            descriptor.as_raw_fd(),
            std::ptr::from_ref(piece),
            1_usize,
            -1_i64,
            0_usize,
            libc::RWF_NOWAIT,
        )
    }
}

/// Whether the kernel cannot do without waiting what it was asked to do.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
    )
}

fn is_nonblocking(descriptor: BorrowedFd<'_>) -> bool {
    // SAFETY: F_GETFL accesses no memory and changes nothing.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Opens a terminal again, in non-blocking mode, so that the open file that others share stays as it is. `None` if the
/// descriptor is no terminal, is the controlling side of a pseudoterminal, or cannot be opened by this process.
pub(crate) fn open_terminal_again(descriptor: BorrowedFd<'_>, access: i32) -> Option<OwnedFd> {
    let number = descriptor.as_raw_fd();
    // SAFETY: accesses no memory.
    if unsafe { libc::isatty(number) } == 0 {
        return None;
    }
    let mut unused: libc::c_uint = 0;
    // To open the controlling side is to create another pseudoterminal. Only that side knows this request.
    // SAFETY: `unused` is valid for writes, and outlives the call.
    if unsafe { libc::ioctl(number, libc::TIOCGPTN, &raw mut unused) } == 0 {
        return None;
    }
    let path = std::ffi::CString::new(format!("/proc/self/fd/{number}")).ok()?;
    let flags = access | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: `path` is valid for reads up to its zero byte, and outlives the call.
    let opened = unsafe { libc::open(path.as_ptr(), flags) };
    if opened < 0 {
        return None;
    }
    // SAFETY: a new descriptor that nobody else owns.
    Some(unsafe { OwnedFd::from_raw_fd(opened) })
}
