//! System calls, as safe functions where possible.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Converts the result of a system call.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The same for calls that return a size.
fn check_size(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

// ---- descriptors

/// The kind of a file, as far as readiness is concerned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FileKind {
    /// A socket, a pipe, or an anonymous file such as an eventfd or a timerfd. It has readiness.
    Stream,
    /// A character device. Some have readiness.
    Character,
    /// A regular file, a directory or a block device. It has no readiness.
    Storage,
}

/// The kind of an open descriptor's file. Fails with `EBADF` if it is not open.
pub(crate) fn file_kind(fd: RawFd) -> io::Result<FileKind> {
    Ok(match file_mode(fd)? & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK | libc::S_IFLNK => FileKind::Storage,
        libc::S_IFCHR => FileKind::Character,
        _ => FileKind::Stream,
    })
}

/// The mode of an open file. On some network file systems fstat(2) would ask the server for it.
fn file_mode(fd: RawFd) -> io::Result<libc::mode_t> {
    let mut status = empty_statx();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    match statx(fd, c"", flags, libc::STATX_TYPE, &mut status) {
        Ok(()) => return Ok(libc::mode_t::from(status.stx_mode)),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Err(error),
        // Linux before 4.11, or a filter that does not know the call.
        Err(_) => {}
    }
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is to memory of a stat's size and alignment.
    check(unsafe { libc::fstat(fd, status.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded, so it has filled the structure.
    Ok(unsafe { status.assume_init() }.st_mode)
}

/// Whether a file can be read and written at an offset. True for a descriptor that is not open.
pub(crate) fn is_seekable(fd: RawFd) -> bool {
    // SAFETY: no pointers are involved, and the position does not change.
    let position = check_size(unsafe { libc::lseek64(fd, 0, libc::SEEK_CUR) as libc::ssize_t });
    !matches!(position, Err(error) if error.raw_os_error() == Some(libc::ESPIPE))
}

/// Fails with `EBADF` if the number is not an open descriptor.
pub(crate) fn check_open(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_GETFD takes no argument and changes nothing.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) }).map(drop)
}

/// Whether `O_NONBLOCK` is set on the open file.
pub(crate) fn is_nonblocking(fd: RawFd) -> io::Result<bool> {
    // SAFETY: F_GETFL takes no argument and changes nothing.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    Ok(flags & libc::O_NONBLOCK != 0)
}

/// Sets the flags of an open file that can be changed, such as `O_NONBLOCK`, to their values in `flags`.
pub(crate) fn set_status_flags(fd: RawFd, flags: libc::c_int) {
    // SAFETY: F_SETFL takes an int. It cannot fail, because the file was opened with these flags.
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags) };
}

/// The owner of a descriptor that is the result of an operation.
pub(crate) fn own_result(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it, and the caller has its only copy.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// close(2), with its error.
pub(crate) fn close(descriptor: OwnedFd) -> io::Result<()> {
    // SAFETY: the caller has given up the only owner.
    check(unsafe { libc::close(descriptor.into_raw_fd()) }).map(drop)
}

/// Which of `events` a descriptor is ready for. Calls poll(2) without waiting.
pub(crate) fn poll_now(fd: RawFd, events: libc::c_short) -> io::Result<libc::c_short> {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: the pointer is to one pollfd of ours, and the count is one.
    check(unsafe { libc::poll(&raw mut entry, 1, 0) })?;
    Ok(entry.revents)
}

// ---- eventfd and epoll

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are involved.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to an eventfd. A full counter is emptied first, so that waiters see a change.
pub(crate) fn eventfd_signal(fd: &OwnedFd) {
    let one = 1_u64;
    loop {
        // SAFETY: the pointer is to eight bytes of ours.
        let written = unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
        if written == 8 {
            return;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => {
                let mut count = 0_u64;
                // SAFETY: the pointer is to eight bytes of ours.
                unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
            }
            // An open eventfd has no other errors (eventfd(2)).
            _ => return,
        }
    }
}

pub(crate) fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are involved.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn epoll_control(
    epoll: &OwnedFd,
    operation: libc::c_int,
    fd: RawFd,
    events: u32,
    data: u64,
) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the pointer is to an epoll_event of ours, which the kernel only reads.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) }).map(drop)
}

/// Fails if epoll cannot wait for this descriptor. Tries it with a temporary epoll instance.
pub(crate) fn can_be_polled(fd: RawFd) -> io::Result<()> {
    epoll_control(&epoll_create()?, libc::EPOLL_CTL_ADD, fd, 0, 0)
}

/// A timeout in the kernel's format. One that is too long becomes the longest possible.
pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// `epoll_pwait2(2)`, since Linux 5.11, with a precision of nanoseconds. `None` waits without a limit. Returns how many
/// entries of `events` are filled.
pub(crate) fn epoll_wait_precise(
    epoll: &OwnedFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let timeout = timeout.map(timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `events` is a valid buffer of that length. The timeout is null or lives until the call returns. A null
    // signal mask leaves the mask unchanged, and its size is ignored.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as libc::c_int,
            timeout,
            ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    check(count as libc::c_int).map(|count| count as usize)
}

/// `epoll_wait(2)`, for kernels without `epoll_pwait2(2)`. The timeout is rounded up to whole milliseconds.
pub(crate) fn epoll_wait(
    epoll: &OwnedFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let timeout_ms = timeout.map_or(-1, |timeout| {
        libc::c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
    });
    // SAFETY: the events are ours and as many as we say.
    let count = unsafe {
        libc::epoll_wait(
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as libc::c_int,
            timeout_ms,
        )
    };
    check(count).map(|count| count as usize)
}

/// Finds out whether `epoll_wait(2)` is allowed, without an epoll set.
pub(crate) fn probe_epoll_wait() -> io::Result<()> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the event is ours. Without a set, nothing is written to it.
    match check(unsafe { libc::epoll_wait(-1, &raw mut event, 1, 0) }) {
        Err(error) if error.raw_os_error() != Some(libc::EBADF) => Err(error),
        _ => Ok(()),
    }
}

// ---- io_uring

/// Enters a ring without submitting or waiting for anything, to find out whether `io_uring_enter(2)` is allowed.
pub(crate) fn probe_enter(fd: RawFd) -> io::Result<()> {
    const NOTHING: libc::c_long = 0;
    // SAFETY: no memory is passed, and nothing is submitted.
    let result = unsafe {
        libc::syscall(
            libc::SYS_io_uring_enter,
            libc::c_long::from(fd),
            NOTHING,
            NOTHING,
            NOTHING,
            ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    check(result as libc::c_int).map(drop)
}

/// Probes none of a ring's operations, to find out whether `io_uring_register(2)` is allowed.
pub(crate) fn probe_register(fd: RawFd) -> io::Result<()> {
    const REGISTER_PROBE: libc::c_long = 8;
    // A `struct io_uring_probe` with an empty list. It must be zero.
    let mut probe = [0_u64; 2];
    // SAFETY: with a list of length zero the kernel accesses no more than `probe`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            libc::c_long::from(fd),
            REGISTER_PROBE,
            probe.as_mut_ptr(),
            0 as libc::c_long,
        )
    };
    check(result as libc::c_int).map(drop)
}

// ---- sockets

pub(crate) fn send(fd: RawFd, buffer: &[u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the buffer is readable, and as long as we say.
    check_size(unsafe { libc::send(fd, buffer.as_ptr().cast(), buffer.len(), flags) })
}

// ---- files and pipes

/// Whether a read or a write may wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Waiting {
    Allowed,
    /// `EAGAIN` instead of waiting, `EOPNOTSUPP` if the file does not support that (`RWF_NOWAIT`).
    Forbidden,
}

/// Reads at `offset`, or at the current position.
pub(crate) fn read(
    fd: RawFd,
    buffer: &mut [MaybeUninit<u8>],
    offset: Option<u64>,
    waiting: Waiting,
) -> io::Result<usize> {
    let (data, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: the buffer is valid for writes of that length.
    check_size(unsafe {
        match (waiting, offset) {
            (Waiting::Allowed, None) => libc::read(fd, data, length),
            (Waiting::Allowed, Some(offset)) => {
                libc::pread64(fd, data, length, offset as libc::off64_t)
            }
            (Waiting::Forbidden, offset) => {
                transfer_at_once(libc::SYS_preadv2, fd, data, length, offset)
            }
        }
    })
}

/// Writes at `offset`, or at the current position.
pub(crate) fn write(
    fd: RawFd,
    buffer: &[u8],
    offset: Option<u64>,
    waiting: Waiting,
) -> io::Result<usize> {
    let (data, length) = (buffer.as_ptr().cast::<libc::c_void>(), buffer.len());
    // SAFETY: the buffer is valid for reads of that length; pwritev2 only reads it.
    check_size(unsafe {
        match (waiting, offset) {
            (Waiting::Allowed, None) => libc::write(fd, data, length),
            (Waiting::Allowed, Some(offset)) => {
                libc::pwrite64(fd, data, length, offset as libc::off64_t)
            }
            (Waiting::Forbidden, offset) => {
                transfer_at_once(libc::SYS_pwritev2, fd, data.cast_mut(), length, offset)
            }
        }
    })
}

/// `preadv2(2)` or `pwritev2(2)` of one buffer, which fails with `EAGAIN` where it would wait. Called by its number,
/// because musl has these functions only since 1.2.5.
///
/// # Safety
/// The buffer is valid for `length` bytes: for writes with `SYS_preadv2`, and for reads with `SYS_pwritev2`.
unsafe fn transfer_at_once(
    call: libc::c_long,
    fd: RawFd,
    data: *mut libc::c_void,
    length: usize,
    offset: Option<u64>,
) -> libc::ssize_t {
    let vector = libc::iovec {
        iov_base: data,
        iov_len: length,
    };
    let offset = offset.map_or(-1, |offset| offset as libc::off64_t);
    // SAFETY: the vector lives until the call returns. The buffer is valid for `length` bytes, which is the function's
    // contract. The offset comes in two halves, of which 64-bit kernels use only the first.
    let transferred = unsafe {
        libc::syscall(
            call,
            fd,
            &raw const vector,
            1_usize,
            offset as libc::c_long,
            (offset >> 32) as libc::c_long,
            libc::RWF_NOWAIT,
        )
    };
    transferred as libc::ssize_t
}

pub(crate) fn fsync(fd: RawFd, data_only: bool) -> io::Result<()> {
    // SAFETY: no pointers are involved.
    check(unsafe {
        if data_only {
            libc::fdatasync(fd)
        } else {
            libc::fsync(fd)
        }
    })
    .map(drop)
}

pub(crate) fn open_at(
    directory: RawFd,
    path: &CStr,
    flags: libc::c_int,
    mode: libc::mode_t,
) -> io::Result<RawFd> {
    // SAFETY: the path is a terminated string.
    check(unsafe { libc::openat(directory, path.as_ptr(), flags, libc::c_uint::from(mode)) })
}

/// An empty statx.
pub(crate) fn empty_statx() -> libc::statx {
    // SAFETY: a statx consists of integers, for which all zeroes are valid.
    unsafe { mem::zeroed() }
}

pub(crate) fn statx(
    directory: RawFd,
    path: &CStr,
    flags: libc::c_int,
    mask: libc::c_uint,
    status: &mut libc::statx,
) -> io::Result<()> {
    // SAFETY: the path is a terminated string, and the result is a statx of the caller's.
    let result = unsafe {
        // musl has the function only since 1.2.5.
        libc::syscall(
            libc::SYS_statx,
            directory,
            path.as_ptr(),
            flags,
            mask,
            &raw mut *status,
        )
    };
    check(result as libc::c_int).map(drop)
}

pub(crate) fn rename_at(
    from: (RawFd, &CStr),
    to: (RawFd, &CStr),
    flags: libc::c_uint,
) -> io::Result<()> {
    // SAFETY: the paths are terminated strings.
    let result = unsafe {
        // musl does not have the function.
        libc::syscall(
            libc::SYS_renameat2,
            from.0,
            from.1.as_ptr(),
            to.0,
            to.1.as_ptr(),
            flags,
        )
    };
    check(result as libc::c_int).map(drop)
}

pub(crate) fn unlink_at(directory: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the path is a terminated string.
    check(unsafe { libc::unlinkat(directory, path.as_ptr(), flags) }).map(drop)
}

pub(crate) fn make_directory_at(
    directory: RawFd,
    path: &CStr,
    mode: libc::mode_t,
) -> io::Result<()> {
    // SAFETY: the path is a terminated string.
    check(unsafe { libc::mkdirat(directory, path.as_ptr(), mode) }).map(drop)
}
