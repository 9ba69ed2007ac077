//! System calls that move bytes from one descriptor to another in the kernel.
//!
//! The kernel sends SIGPIPE when the other end of a socket or a pipe is gone, and these calls have no flag against that.
//! Unless the process ignores it, as programs in Rust do by default, the signal is blocked for the call and then taken.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::is_ready_now;

/// Where a byte of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It is in memory, or lies beyond the end.
    Present,
    /// It has to be read from storage.
    Absent,
    /// The file system cannot say.
    Unknown,
}

/// Whether reading the byte at an offset would not wait for storage, see `RWF_NOWAIT` in `preadv2(2)`.
pub(crate) fn presence(file: BorrowedFd<'_>, offset: u64) -> Presence {
    let mut byte = 0_u8;
    let piece = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let offset = offset.cast_signed();
    // SAFETY: `piece` is one iovec, which describes the byte; both outlive the call.
    let count = unsafe {
        libc::preadv2(
            file.as_raw_fd(),
            &raw const piece,
            1,
            offset,
            libc::RWF_NOWAIT,
        )
    };
    if count >= 0 {
        return Presence::Present;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Presence::Absent,
        _ if is_in_memory(file) => Presence::Present,
        _ => Presence::Unknown,
    }
}

/// Whether a file's file system has no storage (tmpfs).
fn is_in_memory(file: BorrowedFd<'_>) -> bool {
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `system` is valid for writes of a statfs.
    if unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) } < 0 {
        return false;
    }
    // SAFETY: fstatfs returned 0: it has filled in the structure.
    let kind = unsafe { system.assume_init() }.f_type;
    kind == libc::TMPFS_MAGIC
}

/// Sends part of a file on a non-blocking socket, see `sendfile(2)`. The file's position stays where it is.
pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    count: usize,
) -> io::Result<usize> {
    let mut offset = offset.cast_signed();
    without_sigpipe(count, || {
        // SAFETY: `offset` is valid for reads and writes, and outlives the call.
        let sent =
            unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, count) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    })
}

/// Moves bytes from a pipe or to a pipe, see `splice(2)`. Does not wait for the pipe, nor for a socket that is
/// non-blocking.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
    without_sigpipe(count, || {
        // SAFETY: no offsets are given, so that no memory is accessed.
        let moved = unsafe {
            libc::splice(
                from.as_raw_fd(),
                ptr::null_mut(),
                to.as_raw_fd(),
                ptr::null_mut(),
                count,
                libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK,
            )
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    })
}

/// Makes room in a pipe, as far as the user may have it, see `F_SETPIPE_SZ` in `fcntl(2)`.
pub(crate) fn enlarge_pipe(pipe: BorrowedFd<'_>, bytes: i32) {
    // SAFETY: F_SETPIPE_SZ takes a number and accesses no memory. If it fails, the size stays as it is.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
}

/// Whether a descriptor is an end of a pipe, see `inode(7)`.
pub(crate) fn is_pipe(descriptor: BorrowedFd<'_>) -> bool {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` is valid for writes of a stat.
    if unsafe { libc::fstat(descriptor.as_raw_fd(), status.as_mut_ptr()) } < 0 {
        return false;
    }
    // SAFETY: fstat returned 0: it has filled in the structure.
    let mode = unsafe { status.assume_init() }.st_mode;
    mode & libc::S_IFMT == libc::S_IFIFO
}

/// Whether a descriptor is readable at this moment, or at its end, see `poll(2)`.
pub(crate) fn is_readable_now(descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    is_ready_now(descriptor, libc::POLLIN)
}

/// Makes a call that moves up to `count` bytes, without SIGPIPE for the process.
pub(super) fn without_sigpipe(
    count: usize,
    call: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    // SAFETY: a sigaction and a sigset_t consist of numbers and an optional function, for which all zeroes are valid.
    let (mut action, mut only, mut before, mut pending): (
        libc::sigaction,
        libc::sigset_t,
        libc::sigset_t,
        libc::sigset_t,
    ) = unsafe { mem::zeroed() };
    // SAFETY: changes nothing, and `action` is valid for writes.
    unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action) };
    if action.sa_sigaction == libc::SIG_IGN {
        return call();
    }
    // SAFETY: the sets are valid for reads and writes. Only the mask of this thread changes, and below it is restored.
    let was_pending = unsafe {
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, &raw mut before);
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
    };
    let result = call();
    // A call that has moved some of the bytes succeeds, although the signal was sent for the others.
    let is_whole = result.as_ref().is_ok_and(|moved| *moved >= count);
    if !was_pending && !is_whole {
        // SAFETY: all zeroes are a valid timespec: no time.
        let at_once: libc::timespec = unsafe { mem::zeroed() };
        // SAFETY: takes the signal if the call has sent it to this thread; no information about it is asked for.
        while unsafe { libc::sigtimedwait(&raw const only, ptr::null_mut(), &raw const at_once) }
            < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}
