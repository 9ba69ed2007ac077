//! Watches that any thread may make, and that keep no file open.
//!
//! A poll request of `io_uring` holds its file. A socket that is closed while a ring watches it stays connected until
//! the request is cancelled. An epoll set, however, drops a file when its last descriptor is closed. So a descriptor
//! that may be closed without the driver's knowledge is watched here: by the epoll backend's own set, or by an epoll
//! set that the ring watches. Also, `epoll_ctl(2)` takes effect at once, in any thread, even while another thread
//! waits.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::contract::inherited;
use crate::event::{Event, Interest, Mode, Readiness};
use crate::process;
use crate::sys;
use crate::token::Token;

/// In the lower half of the event data: marks a registration. Descriptors never have this bit.
const MARK: u32 = 1 << 31;
/// In the upper half of the event data: the registration is level-triggered.
const LEVEL: u32 = 1 << 31;

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// Names a watch of a [`Registry`]: its descriptor, and a number that tells it from other registrations of that
/// descriptor.
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

    /// The event data.
    fn data(self, mode: Mode) -> u64 {
        let level = if mode == Mode::Level { LEVEL } else { 0 };
        u64::from(self.number | level) << 32 | u64::from(self.fd as u32 | MARK)
    }
}

impl Event {
    /// The registration, if this is the event of a [`Registry`]'s watch. Its [`token`](Event::token) then has no
    /// meaning.
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

/// The event for what an epoll set has reported, and whether it is level-triggered. `None` if it is not a registration.
pub(crate) fn event_of(reported: libc::epoll_event) -> Option<(Event, bool)> {
    let libc::epoll_event { events, u64: data } = reported;
    let (upper, lower) = ((data >> 32) as u32, data as u32);
    // The event data of the epoll backend's waker has all bits set.
    if lower & MARK == 0 || data == u64::MAX {
        return None;
    }
    let token = Token::new(lower, upper & !LEVEL);
    let event = Event::registered(token, Readiness::from_bits(events));
    Some((event, upper & LEVEL != 0))
}

/// Watches that any thread may make, change and drop, even while the driver waits in another thread. See
/// [`Driver::registry`](crate::Driver::registry).
///
/// Unlike [`Driver::watch`](crate::Driver::watch), a registration doesn't keep its file open. When the file's last
/// descriptor is closed, the registration is gone and reports nothing more. If the file has other descriptors, because
/// it was duplicated or inherited, the registration stays and may still report. So an event may belong to a descriptor
/// whose number now means another file. Compare the [`Registration`] to detect this.
///
/// The registry keeps no table. A descriptor has one registration at a time, the latest one, and only that may be
/// changed or dropped. Clones share one epoll set.
///
/// Do not register a descriptor that the driver uses, for a [`watch`](crate::Driver::watch) or an
/// [operation](crate::Driver::submit), and do not give a registered one to the driver. The epoll backend has one epoll
/// set for all of them, so whichever comes later takes the other's place: a watch then reports nothing more, and an
/// operation may never end, unless it is cancelled. If a watch or a registration that has lost its place is ended, the one
/// that took it ends, too. This is not detected. On `io_uring`, both report. To have both on each backend, duplicate the
/// descriptor (dup(2)).
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

    /// A registry with a file that is no epoll set, so that each call fails.
    #[cfg(test)]
    pub(crate) fn without_set() -> Registry {
        Registry {
            shared: Arc::new(Shared {
                set: std::fs::File::open("/dev/null").unwrap().into(),
                next_number: AtomicU32::new(0),
                system_calls: AtomicU64::new(0),
                forks: process::fork_generation(),
            }),
        }
    }

    /// The epoll set.
    pub(crate) fn set(&self) -> &OwnedFd {
        &self.shared.set
    }

    /// How many system calls the registry has made.
    pub(crate) fn system_calls(&self) -> u64 {
        self.shared.system_calls.load(Relaxed)
    }

    /// Reports when `fd` is ready. An earlier registration of the same descriptor is replaced and reports nothing more.
    /// The driver must not use the descriptor for anything else, see [`Registry`].
    ///
    /// It takes a number, for the reasons that [`Driver::watch`](crate::Driver::watch) gives.
    ///
    /// Fails with `EBADF` if `fd` is not open, and with `EPERM` if it has no readiness (a regular file, a directory).
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

    /// Changes what a registration waits for. Arms it again if it is a [`Mode::OneShot`] that has fired. A descriptor
    /// that is ready already is reported.
    ///
    /// Fails if the file was closed and the registration is gone: with `ENOENT` if the number means another file now,
    /// otherwise with `EBADF`.
    pub fn change(
        &self,
        registration: Registration,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, registration, interest, mode)
    }

    /// Drops a registration. It is not an error if it is gone already. An event that is under way may still come.
    pub fn remove(&self, registration: Registration) {
        // It fails if the file was closed, or in a child process. In both cases there is nothing to do.
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
