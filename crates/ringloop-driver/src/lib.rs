//! The kernel through one interface: watches, operations and events, on `io_uring` or on epoll.
//!
//! # The contract
//!
//! A [`Driver`] takes two kinds of request and gives one kind of [`Event`]:
//!
//! - A **watch** says when a descriptor is ready ([`Driver::watch`]), [at each arrival](Mode::Edge),
//!   [as long as it is](Mode::Level) or [once](Mode::OneShot). A descriptor has one watch at a time.
//! - An **operation** ([`Op`]) does something and reports its result. Its buffers, addresses and its hold on the file
//!   belong to the driver until its last event, and go back through [`Driver::take`].
//!
//! Each request gets a [`Token`]; tokens of what is gone are harmless. [`Driver::poll`] is the only call that blocks.
//!
//! What holds on every backend:
//!
//! - `unwatch`, `cancel` and their like take effect at once as far as events go: a watch that was dropped never
//!   reports again. An operation that was cancelled still ends with one last event, either `ECANCELED` or what it
//!   came to before; [`Driver::discard`] is for those who do not want to hear of it. What was neither flushed nor polled
//!   before its cancel never begins.
//! - An operation holds its file open ([`SharedFd`]): none ever meets another file that has got the same number.
//! - Before a descriptor that is watched is closed: [`Driver::unwatch`], then [`Driver::flush`], then close(2). An operation
//!   that was [discarded](Driver::discard) holds its file until it is over; a socket no longer than until the next flush or
//!   poll. After that nobody holds it, and a peer sees the end at once.
//! - Where others may close a descriptor without telling the driver, a [`Registry`] watches it.
//! - A bad descriptor is refused by `watch` with `EBADF`, a file that cannot be waited for with `EPERM`, a second
//!   watch with `EEXIST`. An operation's errors are its result.
//! - `EAGAIN`, `EBUSY` and `ETIME` are the driver's business and never the user's, but for `EAGAIN` if `MSG_DONTWAIT` asks for
//!   it; `EINTR` is the user's.
//! - A driver may move between threads; it works in the thread that polls it. With operations in flight on `io_uring`
//!   it cannot, and says so; there the files of its watches are held a moment longer, by the ring that stays behind.
//! - In a child after fork(2) the driver does nothing and says so: the kernel objects are the parent's.
//!
//! ```
//! use std::io::Write;
//! use std::os::fd::AsRawFd;
//! use std::os::unix::net::UnixStream;
//! use ringloop_driver::{Config, Driver, Interest, Mode};
//!
//! let mut driver = Driver::new(&Config::from_env()?)?;
//! let (here, mut there) = UnixStream::pair()?;
//! let watch = driver.watch(here.as_raw_fd(), Interest::READ, Mode::Edge)?;
//! there.write_all(b"hello")?;
//! let mut events = Vec::new();
//! while events.is_empty() {
//!     driver.poll(None, &mut events)?;
//! }
//! assert!(events[0].token == watch && events[0].readiness().is_readable());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # The backends
//!
//! [`Driver::new`] tries `io_uring` and falls back to epoll; [`Driver::backend_reason`] says why. `io_uring` queues
//! entries and hands them over at the next poll, so that watching costs no system call of its own. epoll is told at
//! once about watches; operations are emulated there.

#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

mod address;
pub mod affinity;
mod backend;
mod config;
mod contract;
mod emulation;
mod epoll;
mod event;
mod op;
mod parked;
mod plan;
mod process;
mod registry;
mod script;
mod scripted;
mod shared_fd;
mod sys;
mod table;
mod token;
mod uring;
mod waker;
mod workers;

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

pub use address::SocketAddress;
pub use config::{
    BACKEND_VARIABLE, BackendChoice, BackendKind, Config, ForcedBy, Refused, SLOTS_MAX,
    UnknownBackend,
};
pub use contract::{Counters, Peek};
pub use event::{Event, EventFlags, Interest, Mode, Readiness};
pub use op::{Bytes, FileStatus, Message, Op, SENT_BY_COPY, SENT_WITHOUT_COPY};
pub use plan::Fault;
pub use registry::{Registration, Registry};
pub use script::{Script, Step};
pub use shared_fd::SharedFd;
pub use token::Token;
pub use waker::Waker;

use backend::Backend;
use contract::inherited;
use scripted::Scripted;

/// The longest that one poll waits: some thirty years, which every kernel can count.
const TIMEOUT_MAX: Duration = Duration::from_secs(1_000_000_000);

/// The kernel's I/O for one thread at a time. See the [crate's documentation](crate) for the contract.
pub struct Driver {
    backend: Backend,
    reason: String,
    waker: Waker,
    /// [`process::fork_generation`] of the process that made the driver.
    forks: u64,
}

impl Driver {
    /// Makes a driver.
    ///
    /// [`BackendChoice::Auto`] fails only where epoll does: for want of descriptors or memory.
    /// [`BackendChoice::IoUring`] fails where `io_uring` is refused, with the reason and what to do. Sizes that no backend
    /// can have are [`io::ErrorKind::InvalidInput`].
    pub fn new(config: &Config) -> io::Result<Driver> {
        config.check()?;
        let forks = process::fork_generation();
        let waker = Waker::new()?;
        let (backend, reason) = backend::choose(config, &waker)?;
        Ok(Driver {
            backend,
            reason,
            waker,
            forks,
        })
    }

    /// Makes a driver that does what a script says, for tests of what is built on the driver. Descriptors are only
    /// numbers to it. Fails only for want of a descriptor for the [`Waker`].
    pub fn scripted(script: Script) -> io::Result<Driver> {
        let forks = process::fork_generation();
        let waker = Waker::new()?;
        let backend = Backend::Scripted(Box::new(Scripted::new(script, waker.clone())));
        Ok(Driver {
            backend,
            reason: "scripted: asked for by a test".to_owned(),
            waker,
            forks,
        })
    }

    /// Which backend the driver runs on.
    pub fn backend(&self) -> BackendKind {
        self.backend.kind()
    }

    /// Why it runs on that one, in a line for people: what the kernel grants, or why `io_uring` was not to be had.
    pub fn backend_reason(&self) -> &str {
        &self.reason
    }

    /// A handle that ends [`poll`](Driver::poll) from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Whether the driver came into this process by fork(2).
    fn is_inherited(&self) -> bool {
        self.forks != process::forks()
    }

    fn check_process(&self) -> io::Result<()> {
        if self.is_inherited() {
            Err(inherited())
        } else {
            Ok(())
        }
    }

    /// Reports when `fd` is ready, until [`unwatch`](Driver::unwatch).
    ///
    /// Fails with `EBADF` if `fd` is not open, `EPERM` if it can't be waited for (a regular file, a directory), and
    /// `EEXIST` if it is watched already; a [`Mode::OneShot`] watch that has fired does not count. `EBUSY` if
    /// the driver moved to this thread with operations in flight.
    pub fn watch(&mut self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Token> {
        self.check_process()?;
        self.backend.watch(fd, interest, mode)
    }

    /// Changes a watch, and arms it again if it had fired as a [`Mode::OneShot`]. Arming reports what is ready
    /// already. The token stays.
    ///
    /// Fails with `ENOENT` if the token is stale, and as [`watch`](Driver::watch) does.
    pub fn rewatch(&mut self, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        self.check_process()?;
        self.backend.rewatch(token, interest, mode)
    }

    /// Drops a watch: its token is never reported again. A stale token is no error.
    ///
    /// `io_uring` holds on to the file until the next [`flush`](Driver::flush) or [`poll`](Driver::poll).
    pub fn unwatch(&mut self, token: Token) -> io::Result<()> {
        if !self.is_inherited() {
            self.backend.unwatch(token);
        }
        Ok(())
    }

    /// The watches that any thread may make, and that keep no file open. The same registry each time.
    ///
    /// Fails for want of descriptors or memory, and with [`io::ErrorKind::Unsupported`] on a scripted driver.
    pub fn registry(&mut self) -> io::Result<Registry> {
        self.check_process()?;
        self.backend.registry()
    }

    /// Begins an operation, at the next [`poll`](Driver::poll) or [`flush`](Driver::flush).
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] for a mistake in `op`, such as a buffer without room. Whatever the
    /// kernel says comes as the operation's event.
    pub fn submit(&mut self, op: Op) -> io::Result<Token> {
        self.check_process()?;
        self.backend.submit(op)
    }

    /// Gives back what a finished operation was made of, its buffers filled. `None` before its last event, and after
    /// the poll that follows, which frees what nobody took.
    pub fn take(&mut self, token: Token) -> Option<Op> {
        if self.is_inherited() {
            None
        } else {
            self.backend.take(token)
        }
    }

    /// Asks an operation to end. Its last event comes in any case: with `ECANCELED`, or with what it came to before.
    /// A close goes on. A stale token is no error.
    pub fn cancel(&mut self, token: Token) {
        if !self.is_inherited() {
            self.backend.cancel(token);
        }
    }

    /// Asks all operations on a descriptor to end. Its watch stays.
    pub fn cancel_fd(&mut self, fd: RawFd) {
        if !self.is_inherited() {
            self.backend.cancel_fd(fd);
        }
    }

    /// Cancels an operation and reports nothing more of it. Its memory and its file live until the kernel lets go, its socket
    /// until the next [`flush`](Driver::flush) or [`poll`](Driver::poll), and a descriptor that it may still bring is closed.
    pub fn discard(&mut self, token: Token) {
        if !self.is_inherited() {
            self.backend.discard(token);
        }
    }

    /// Hands all that is queued to the kernel and lets it act, but collects no events. To be called between dropping
    /// a watch or cancelling an operation and closing its descriptor.
    ///
    /// Fails with [`io::ErrorKind::ResourceBusy`] if the kernel takes no more for want of memory or room: the rest stays queued
    /// for the next flush or poll, and descriptors that were lent to operations must stay open until then.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.is_inherited() {
            Ok(())
        } else {
            self.backend.flush()
        }
    }

    /// Waits for events and appends them; for at most `timeout`, for ever if `None`, not at all if zero. Returns with
    /// none when the time is over or a [`Waker`] was used.
    ///
    /// Reports everything that is ready, or where that is much, at least 512 events. The next poll reports what this one has
    /// left, whatever else has become ready since, so that every watch gets its turn.
    ///
    /// Fails with [`io::ErrorKind::Interrupted`] if a signal handler ran; `events` may have grown all the same. A poll
    /// that fails takes no notice of wakes: they end the next one.
    pub fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        self.check_process()?;
        self.backend
            .poll(timeout.map(|timeout| timeout.min(TIMEOUT_MAX)), events)
    }

    /// What is known about the next poll, without a system call.
    #[inline]
    pub fn peek(&self) -> Peek {
        self.backend.peek()
    }

    /// What the driver has done so far.
    pub fn counters(&self) -> Counters {
        self.backend.counters()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Driver")
            .field("backend", &self.backend())
            .finish_non_exhaustive()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_inherited() {
            self.backend.abandon();
        }
    }
}
