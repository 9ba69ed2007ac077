//! The reports of the driver: events and readiness.

use std::fmt;
use std::io;
use std::ops::{BitOr, BitOrAssign};

use crate::token::Token;

/// The readiness that a watch waits for. Combine with `|`.
#[derive(Clone, Copy, Eq, PartialEq, Hash)]
pub struct Interest(u8);

impl Interest {
    /// Data to read, a connection to accept, or the end of what the peer sends (`EPOLLIN | EPOLLRDHUP`).
    pub const READ: Interest = Interest(1);
    /// Room to write, or a connection that is established or has failed (`EPOLLOUT`).
    pub const WRITE: Interest = Interest(2);
    /// Urgent data on a TCP socket (`EPOLLPRI`). A read stops there, even if there is more data behind it. Do not use
    /// it with [`Mode::Level`], which would report it until it is read past. `io_uring` cannot tell it from other data
    /// and never reports it.
    pub const PRIORITY: Interest = Interest(4);

    /// Both interests. The same as `|`, but usable in constants.
    #[must_use]
    pub const fn and(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }

    /// Whether all of `other` is in `self`.
    pub const fn contains(self, other: Interest) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits that epoll and `IORING_OP_POLL_ADD` understand. Both report errors and hang-ups without being asked.
    pub(crate) fn poll_bits(self) -> u32 {
        let mut bits = 0;
        if self.contains(Interest::READ) {
            bits |= (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        }
        if self.contains(Interest::WRITE) {
            bits |= libc::EPOLLOUT as u32;
        }
        if self.contains(Interest::PRIORITY) {
            bits |= libc::EPOLLPRI as u32;
        }
        bits
    }
}

impl BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        self.and(other)
    }
}

impl BitOrAssign for Interest {
    fn bitor_assign(&mut self, other: Interest) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The names of the constants, joined by `|`.
impl fmt::Display for Interest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self.0 {
            1 => "READ",
            2 => "WRITE",
            3 => "READ | WRITE",
            4 => "PRIORITY",
            5 => "READ | PRIORITY",
            6 => "WRITE | PRIORITY",
            _ => "READ | WRITE | PRIORITY",
        })
    }
}

/// When a watch reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// When it is armed, if the descriptor is ready, and at each new arrival. There may be spurious events. Data that
    /// is left behind causes no further event.
    Edge,
    /// At each poll while the descriptor is ready.
    Level,
    /// Once. Then it holds nothing in the kernel until [`rewatch`](crate::Driver::rewatch).
    OneShot,
}

/// The readiness of a descriptor: the bits of `poll(2)`. An [edge](Mode::Edge) event has at least what is new. What
/// was reported before and still holds may be missing.
#[derive(Clone, Copy, Eq, PartialEq, Hash)]
pub struct Readiness(u32);

impl Readiness {
    /// Data to read (`EPOLLIN`).
    pub const READABLE: Readiness = Readiness(libc::EPOLLIN as u32);
    /// Room to write (`EPOLLOUT`).
    pub const WRITABLE: Readiness = Readiness(libc::EPOLLOUT as u32);
    /// The peer has finished sending (`EPOLLRDHUP`).
    pub const READ_CLOSED: Readiness = Readiness(libc::EPOLLRDHUP as u32);
    /// An error is pending (`EPOLLERR`). A read or a write returns it.
    pub const ERROR: Readiness = Readiness(libc::EPOLLERR as u32);
    /// Both directions are closed (`EPOLLHUP`).
    pub const HANG_UP: Readiness = Readiness(libc::EPOLLHUP as u32);

    /// Urgent data (`EPOLLPRI`).
    pub const PRIORITY: Readiness = Readiness(libc::EPOLLPRI as u32);

    /// Whether all of `other` is in `self`. To ask what can be done now, use the methods: an error, for instance, makes a
    /// read possible, too.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Readiness from the bits of `poll(2)`.
    pub const fn from_bits(bits: u32) -> Readiness {
        Readiness(bits)
    }

    /// The bits of `poll(2)`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether a read would not block: data, the end of data, or an error.
    pub const fn is_readable(self) -> bool {
        self.0 & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    /// Whether a write would not block: room, a peer that is gone, or an error.
    pub const fn is_writable(self) -> bool {
        self.0 & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    /// Whether the peer has finished sending (`EPOLLRDHUP` or `EPOLLHUP`); data may still be there to read.
    pub const fn is_read_closed(self) -> bool {
        self.0 & (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32 != 0
    }

    /// Whether there is urgent data (`EPOLLPRI`).
    pub const fn is_priority(self) -> bool {
        self.0 & libc::EPOLLPRI as u32 != 0
    }

    /// Whether both directions are closed (`EPOLLHUP`).
    pub const fn is_hang_up(self) -> bool {
        self.0 & libc::EPOLLHUP as u32 != 0
    }

    /// Whether an error is pending (`EPOLLERR`).
    pub const fn is_error(self) -> bool {
        self.0 & libc::EPOLLERR as u32 != 0
    }
}

impl BitOr for Readiness {
    type Output = Readiness;

    fn bitor(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

impl BitOrAssign for Readiness {
    fn bitor_assign(&mut self, other: Readiness) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The names of the constants, joined by `|`, or `none`.
impl fmt::Display for Readiness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Readiness::READABLE, "READABLE"),
            (Readiness::WRITABLE, "WRITABLE"),
            (Readiness::READ_CLOSED, "READ_CLOSED"),
            (Readiness::ERROR, "ERROR"),
            (Readiness::HANG_UP, "HANG_UP"),
            (Readiness::PRIORITY, "PRIORITY"),
        ];
        let mut separator = "";
        for (_, name) in names.iter().filter(|(bit, _)| self.0 & bit.0 != 0) {
            write!(formatter, "{separator}{name}")?;
            separator = " | ";
        }
        if separator.is_empty() {
            formatter.write_str("none")?;
        }
        Ok(())
    }
}

/// Flags of an [`Event`]. Without [`WATCH`] it is an operation's, and without [`MORE`] the last of that.
const WATCH: u32 = 1;
const MORE: u32 = 2;
const REGISTERED: u32 = 4;

/// An event of a watch or of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Event {
    pub(crate) token: Token,
    pub(crate) result: i32,
    flags: u32,
}

impl Event {
    pub(crate) fn readiness_of(token: Token, readiness: Readiness) -> Event {
        Event {
            token,
            result: readiness.bits() as i32,
            flags: WATCH,
        }
    }

    pub(crate) fn registered(token: Token, readiness: Readiness) -> Event {
        Event {
            token,
            result: readiness.bits() as i32,
            flags: WATCH | REGISTERED,
        }
    }

    pub(crate) fn completion_of(token: Token, result: i32, more: bool) -> Event {
        Event {
            token,
            result,
            flags: if more { MORE } else { 0 },
        }
    }

    /// Whether the event belongs to a watch of a [`Registry`](crate::Registry).
    pub(crate) const fn is_registered(&self) -> bool {
        self.flags & REGISTERED != 0
    }

    /// The watch or the operation. For a watch of a [`Registry`](crate::Registry) it has no meaning.
    #[inline]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// The result of an operation, or `-errno`; see [`io_result`](Event::io_result). For a watch, the bits of its
    /// [readiness](Event::readiness).
    #[inline]
    pub const fn result(&self) -> i32 {
        self.result
    }

    /// Whether the event belongs to a watch rather than to an operation.
    #[inline]
    pub const fn is_watch(&self) -> bool {
        self.flags & WATCH != 0
    }

    /// Whether the operation goes on and will report again under the same token.
    #[inline]
    pub const fn is_more(&self) -> bool {
        self.flags & MORE != 0
    }

    /// The readiness of the watched descriptor. Empty for an operation.
    #[inline]
    pub const fn readiness(&self) -> Readiness {
        if self.is_watch() {
            Readiness(self.result as u32)
        } else {
            Readiness(0)
        }
    }

    /// The operation's result: a number of bytes, of a new descriptor, or 0. Otherwise the error of the system call.
    #[inline]
    pub fn io_result(&self) -> io::Result<u32> {
        u32::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_two_words() {
        assert_eq!(size_of::<Event>(), 16);
    }

    #[test]
    fn a_hang_up_is_readable_and_writable() {
        let readiness = Readiness::HANG_UP;
        assert!(readiness.is_readable() && readiness.is_writable() && readiness.is_read_closed());
        assert!(!readiness.is_error());
        assert_eq!(
            format!("{:?}", Readiness::READABLE | Readiness::READ_CLOSED),
            "READABLE | READ_CLOSED"
        );
        assert!(!readiness.contains(Readiness::READABLE));
        assert!(readiness.contains(Readiness::from_bits(0)));
    }

    #[test]
    fn interests_and_readiness_are_written_with_the_names_of_their_constants() {
        let mut interest = Interest::READ;
        assert_eq!(interest.to_string(), "READ");
        interest |= Interest::WRITE;
        assert_eq!(
            format!("{interest} and {interest:?}"),
            "READ | WRITE and READ | WRITE"
        );
        let mut readiness = Readiness::from_bits(0);
        assert_eq!(readiness.to_string(), "none");
        readiness |= Readiness::ERROR;
        readiness |= Readiness::HANG_UP;
        assert_eq!(readiness.to_string(), "ERROR | HANG_UP");
    }
}
