//! Watches that any thread may make, and that keep no file open.
//!
//! A poll request of `io_uring` holds its file: a socket that is closed while a ring watches it stays connected, and its
//! peer hears nothing, until the request is cancelled. An epoll set forgets a file when its last descriptor is closed.
//! So whatever may be closed without the driver's knowledge is watched here: by the set of the epoll backend, or by a set
//! that the ring watches in its turn. Besides, `epoll_ctl(2)` takes effect at once, in any thread, also while another
//! one waits.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::contract::inherited;
use crate::event::{Event, Interest, Mode, Readiness};
use crate::process;
use crate::sys;
use crate::token::Token;

/// In the lower half of what the kernel gives back: this is a registration. Descriptors have no such bit.
const MARK: u32 = 1 << 31;
/// In the upper half: the registration reports at each poll while ready.
const LEVEL: u32 = 1 << 31;

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// Names a watch of a [`Registry`]: a descriptor, and which of the registrations of that number it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub struct Registration {
    fd: RawFd,
    number: u32,
}

impl Registration {
    /// The descriptor that was registered.
    pub const fn fd(self) -> RawFd {
        self.fd
    }

    /// What the kernel is told, and gives back with each event.
    fn data(self, mode: Mode) -> u64 {
        let level = if mode == Mode::Level { LEVEL } else { 0 };
        u64::from(self.number | level) << 32 | u64::from(self.fd as u32 | MARK)
    }
}

impl Event {
    /// Whose event it is, if it is that of a [`Registry`]'s watch; its [`token`](Event::token) names nothing then.
    pub const fn registration(&self) -> Option<Registration> {
        if !self.is_registered() {
            return None;
        }
        Some(Registration {
            fd: (self.token.index() & !MARK) as RawFd,
            number: self.token.generation(),
        })
    }
}

/// The event of what an epoll set has reported, and whether that will be reported again at the next look if nothing is
/// done about it. `None` for what is no registration.
pub(crate) fn event_of(reported: libc::epoll_event) -> Option<(Event, bool)> {
    let libc::epoll_event { events, u64: data } = reported;
    let (upper, lower) = ((data >> 32) as u32, data as u32);
    // The epoll backend's waker has all bits set.
    if lower & MARK == 0 || data == u64::MAX {
        return None;
    }
    let token = Token::new(lower, upper & !LEVEL);
    let event = Event::registered(token, Readiness::from_bits(events));
    Some((event, upper & LEVEL != 0))
}

/// Watches that any thread may make, change and drop, also while the driver waits in another; from
/// [`Driver::registry`](crate::Driver::registry).
///
/// Unlike [`Driver::watch`](crate::Driver::watch), a registration doesn't keep its file open. When the file's last
/// descriptor is closed, the registration is gone, and nothing more is heard of it. When it is not the last one, because
/// the file was duplicated or a child has it, the registration stays, and may still report: so an event may be that of a
/// descriptor whose number means another file by now. Whoever gets it compares the [`Registration`].
///
/// The registry keeps no table: a descriptor has one registration at a time, the one that was made last, and only that
/// may be changed or dropped. Clones refer to the same set.
#[derive(Clone, Debug)]
pub struct Registry {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    set: OwnedFd,
    next_number: AtomicU32,
    system_calls: AtomicU64,
    /// [`process::fork_generation`] of the process that made the set.
    forks: u64,
}

impl Registry {
    pub(crate) fn new() -> io::Result<Registry> {
        Ok(Registry {
            shared: Arc::new(Shared {
                set: sys::epoll_create()?,
                next_number: AtomicU32::new(0),
                system_calls: AtomicU64::new(0),
                forks: process::fork_generation(),
            }),
        })
    }

    /// The epoll set.
    pub(crate) fn set(&self) -> &OwnedFd {
        &self.shared.set
    }

    /// How many system calls the registry has made.
    pub(crate) fn system_calls(&self) -> u64 {
        self.shared.system_calls.load(Relaxed)
    }

    /// Reports when `fd` is ready. A registration that its file has already under this number is replaced: it reports
    /// nothing more.
    ///
    /// Fails with `EBADF` if `fd` is not open, and with `EPERM` if it can't be waited for (a regular file, a directory).
    pub fn add(&self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Registration> {
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let registration = Registration {
            fd,
            number: self.shared.next_number.fetch_add(1, Relaxed) & !LEVEL,
        };
        match self.control(libc::EPOLL_CTL_ADD, registration, interest, mode) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.control(libc::EPOLL_CTL_MOD, registration, interest, mode)?;
            }
            result => result?,
        }
        Ok(registration)
    }

    /// Changes what a registration waits for, and arms it again if it has fired as a [`Mode::OneShot`]. What is ready
    /// already is reported.
    ///
    /// Fails with `ENOENT` or `EBADF` if the file was closed, so that the registration is gone: `ENOENT` where the number
    /// means another file by now.
    pub fn change(
        &self,
        registration: Registration,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, registration, interest, mode)
    }

    /// Drops a registration. One that is gone with its file is no error. An event that was on its way may still come.
    pub fn remove(&self, registration: Registration) {
        // Neither a file that was closed nor a process that inherited the set leaves anything to be done.
        let _ = self.control(
            libc::EPOLL_CTL_DEL,
            registration,
            Interest::READ,
            Mode::Level,
        );
    }

    fn control(
        &self,
        operation: libc::c_int,
        registration: Registration,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        if self.shared.forks != process::forks() {
            return Err(inherited());
        }
        self.shared.system_calls.fetch_add(1, Relaxed);
        let how = match mode {
            Mode::Edge => EDGE,
            Mode::Level => 0,
            Mode::OneShot => ONE_SHOT,
        };
        sys::epoll_control(
            self.set(),
            operation,
            registration.fd,
            interest.poll_bits() | how,
            registration.data(mode),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_gives_back_names_the_registration() {
        for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
            for (fd, number) in [(0, 0), (7, 1), (i32::MAX - 1, LEVEL - 1)] {
                let registration = Registration { fd, number };
                let reported = libc::epoll_event {
                    events: libc::EPOLLIN as u32,
                    u64: registration.data(mode),
                };
                let (event, level) = event_of(reported).unwrap();
                assert_eq!(event.registration(), Some(registration));
                assert!(event.is_watch() && event.readiness().is_readable());
                assert_eq!(level, mode == Mode::Level);
            }
        }
    }

    #[test]
    fn other_data_is_no_registration() {
        for data in [0, 7, u64::MAX, 5 << 32 | 7] {
            let reported = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: data,
            };
            assert!(event_of(reported).is_none(), "{data:x}");
        }
        let event = Event::readiness_of(Token::new(7, 1), Readiness::READABLE);
        assert_eq!(event.registration(), None);
    }
}
