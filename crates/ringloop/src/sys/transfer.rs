//! Reading from and writing to descriptors that need not be sockets.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

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
