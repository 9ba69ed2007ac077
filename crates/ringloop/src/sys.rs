//! System calls that the standard library does not offer in the form that is needed here.

#![allow(unsafe_code)]

pub(crate) mod children;
mod copying;
mod descriptors;
#[cfg(feature = "tls")]
pub(crate) mod kernel_tls;
pub(crate) mod messages;
pub(crate) mod transfer;

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use socket2::{SockAddr, Socket};

pub(crate) use copying::{
    Presence, enlarge_pipe, is_pipe, is_readable_now, presence, send_file, splice,
};
pub(crate) use descriptors::{inherited_descriptors, receive_descriptors, send_descriptors, user};

/// The process, user and group at the other end of a Unix socket, see `SO_PEERCRED` in `unix(7)`.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(i32, u32, u32)> {
    let mut credentials = MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` is valid for writes of `length` bytes, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: getsockopt returned 0: for SO_PEERCRED it has filled in the whole structure.
    let credentials = unsafe { credentials.assume_init() };
    Ok((credentials.pid, credentials.uid, credentials.gid))
}

/// Whether a descriptor is writable at this moment, see `poll(2)`.
pub(crate) fn is_writable_now(descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    is_ready_now(descriptor, libc::POLLOUT)
}

/// Whether a descriptor is ready for an event at this moment, or has failed, see `poll(2)`.
fn is_ready_now(descriptor: BorrowedFd<'_>, events: libc::c_short) -> io::Result<bool> {
    let mut polled = libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: `polled` is one pollfd, valid for reads and writes for the length of the call.
    match unsafe { libc::poll(&raw mut polled, 1, 0) } {
        0 => Ok(false),
        1.. => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives into memory that may be uninitialised, see `recv(2)`.
///
/// Calls the kernel directly, as [`send`] does. The C library's wrappers are cancellation points, which cost two atomic
/// exchanges each in a process with several threads.
pub(crate) fn receive(socket: BorrowedFd<'_>, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    receive_with(socket, room, 0)
}

/// Receives as [`receive`] does, and leaves the bytes there to be received again (`MSG_PEEK`).
pub(crate) fn peek(socket: BorrowedFd<'_>, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    receive_with(socket, room, libc::MSG_PEEK)
}

fn receive_with(
    socket: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    flags: i32,
) -> io::Result<usize> {
    // SAFETY: `room` is valid for writes of its length, and outlives the call. No address is asked for.
    let count = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            socket.as_raw_fd(),
            room.as_mut_ptr(),
            room.len(),
            flags,
            ptr::null_mut::<libc::sockaddr>(),
            ptr::null_mut::<libc::socklen_t>(),
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Sends on a connection, without SIGPIPE if it is closed, see `send(2)`.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is valid for reads of its length, and outlives the call. No address is given.
    let count = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
            ptr::null::<libc::sockaddr>(),
            0,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Lets the kernel choose the port of a socket that is bound to port 0 only when it connects: for each destination from
/// the whole range (`IP_BIND_ADDRESS_NO_PORT`, ip(7)).
pub(crate) fn choose_port_late(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `on` is valid for reads of its size, and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Accepts a connection from a non-blocking listener, see `accept4(2)`. The connection is non-blocking, too, and closed
/// on exec. The peer's address is returned even if the peer is already gone.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(Socket, SockAddr)> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the storage is valid for writes of the length that is passed with it, and the kernel sets the length to
    // the address's.
    unsafe {
        SockAddr::try_init(|storage, length| {
            let descriptor = libc::accept4(listener.as_raw_fd(), storage.cast(), length, flags);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            // A new descriptor that nobody else owns.
            Ok(Socket::from_raw_fd(descriptor))
        })
    }
}

/// Creates a non-blocking counter, see `eventfd(2)`.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: accesses no memory.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The flags of an open file, see `fcntl(2)`; 0 if they are not known.
pub(crate) fn status_flags(descriptor: BorrowedFd<'_>) -> i32 {
    // SAFETY: F_GETFL accesses no memory and changes nothing.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    flags.max(0)
}

/// Reserves storage for part of a file, see `fallocate(2)`. May block.
pub(crate) fn allocate(
    file: BorrowedFd<'_>,
    flags: i32,
    offset: i64,
    length: i64,
) -> io::Result<()> {
    // SAFETY: accesses no memory.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), flags, offset, length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether there are too many open descriptors, here or in the system.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The actions that [`restore_default`] has taken the place of, by signal. There is no lock, because a child after
/// fork(2) might wait for it forever.
static REPLACED: [AtomicPtr<libc::sigaction>; SIGNALS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS];

/// One more than the greatest number of a signal (signal(7)).
const SIGNALS: usize = 65;

/// Exchanges what was replaced for a signal.
fn exchange_replaced(signal: i32, new: Option<libc::sigaction>) -> Option<Box<libc::sigaction>> {
    let place = usize::try_from(signal)
        .ok()
        .and_then(|signal| REPLACED.get(signal))?;
    let new = new.map_or(ptr::null_mut(), |new| Box::into_raw(Box::new(new)));
    let former = place.swap(new, Ordering::AcqRel);
    // SAFETY: if it is not null, it came from a box, and nobody else can get it any more.
    (!former.is_null()).then(|| unsafe { Box::from_raw(former) })
}

/// Restores a signal's default action, see `sigaction(2)`.
pub(crate) fn restore_default(signal: i32) -> io::Result<()> {
    // SAFETY: a sigaction consists of numbers and an optional function, for which all zeroes are valid: the default
    // action, no flags, and an empty mask.
    let default: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the default action is no function of this program.
    let former = unsafe { exchange_action(signal, Some(&default)) }?;
    if former.sa_sigaction != libc::SIG_DFL {
        exchange_replaced(signal, Some(former));
    }
    Ok(())
}

/// Undoes [`restore_default`], unless another action was installed since.
pub(crate) fn undo_restore_default(signal: i32) -> io::Result<()> {
    let Some(former) = exchange_replaced(signal, None) else {
        return Ok(());
    };
    // SAFETY: changes nothing.
    let now = unsafe { exchange_action(signal, None) }?;
    if now.sa_sigaction == libc::SIG_DFL {
        // SAFETY: it was the signal's action before, so its handler may be called.
        unsafe { exchange_action(signal, Some(&former)) }?;
    }
    Ok(())
}

/// Sets a signal's action, if one is given, and returns the former one.
///
/// # Safety
/// The action's handler must be one that may be called for the signal at any time, in any thread.
unsafe fn exchange_action(
    signal: i32,
    action: Option<&libc::sigaction>,
) -> io::Result<libc::sigaction> {
    // SAFETY: a sigaction consists of numbers and an optional function, for which all zeroes are valid. Not every C
    // library writes the whole structure.
    let mut former: libc::sigaction = unsafe { mem::zeroed() };
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `action` is null or valid for reads, and `former` is valid for writes; both outlive the call. What the
    // handler does is up to the caller.
    if unsafe { libc::sigaction(signal, action, &raw mut former) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(former)
}

/// A value that each process creates for itself. After fork(2), a child has none of its parent's threads, and a lock of
/// the parent's may be held forever.
pub(crate) struct PerProcess<T: 'static> {
    latest: AtomicPtr<OfProcess<T>>,
}

struct OfProcess<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            latest: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the value of this process, which is created with `make` if there is none. It is never dropped.
    pub(crate) fn get(&self, make: impl Fn() -> T) -> &'static T {
        let process = std::process::id();
        loop {
            let latest = self.latest.load(Ordering::Acquire);
            // SAFETY: null, or published below; what is published is never freed or changed.
            if let Some(latest) = unsafe { latest.as_ref() }
                && latest.process == process
            {
                return &latest.value;
            }
            let value = make();
            let new = Box::into_raw(Box::new(OfProcess { process, value }));
            let published =
                self.latest
                    .compare_exchange(latest, new, Ordering::AcqRel, Ordering::Acquire);
            if published.is_err() {
                // SAFETY: created above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}
