//! Child processes by descriptors: pidfd_open(2).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A descriptor of a process. It must be a child that nobody has waited for, or the number may be another process's.
pub(crate) fn pidfd_open(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: accesses no memory.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0_u32) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Sends a signal, see pidfd_send_signal(2). It is not an error if the process has ended.
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: accesses no memory: without information, the kernel fills it in as kill(2) does.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0_u32,
        )
    };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// Takes the status of a child that has ended, without waiting. `None` if it still runs.
///
/// Fails with `ECHILD` if somebody else has taken it, and for a process that is not a child of this one.
pub(crate) fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<ExitStatus>> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `information` is valid for writes, and outlives the call.
    let result = unsafe {
        libc::waitid(
            libc::P_PIDFD,
            pidfd.as_raw_fd() as libc::id_t,
            information.as_mut_ptr(),
            libc::WEXITED | libc::WNOHANG,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it consists of numbers and pointers, for which all zeroes are valid, and the kernel has filled it in.
    let information = unsafe { information.assume_init() };
    // SAFETY: waitid(2) sets both, or leaves zeroes if the child still runs.
    let (process, status) = unsafe { (information.si_pid(), information.si_status()) };
    if process == 0 {
        return Ok(None);
    }
    // The form of wait(2), which the standard library has.
    let status = match information.si_code {
        libc::CLD_EXITED => (status & 0xff) << 8,
        libc::CLD_DUMPED => status | 0x80,
        _ => status,
    };
    Ok(Some(ExitStatus::from_raw(status)))
}

/// Waits until one of several descriptors is readable.
pub(crate) fn poll_readable<'d>(
    descriptors: impl Iterator<Item = BorrowedFd<'d>>,
) -> io::Result<()> {
    let mut polled: Vec<_> = descriptors
        .map(|descriptor| libc::pollfd {
            fd: descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    loop {
        // SAFETY: `polled` is valid for reads and writes of its length, and outlives the call.
        if unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Fails if a pidfd is not of a child that can be waited for, see `waitid(2)`: with `ECHILD` if somebody else has waited.
pub(crate) fn check_child(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `information` is valid for writes, and outlives the call.
    let result = unsafe {
        libc::waitid(
            libc::P_PIDFD,
            pidfd.as_raw_fd() as libc::id_t,
            information.as_mut_ptr(),
            libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
