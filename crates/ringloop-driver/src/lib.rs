//! The kernel through one interface: watches, operations and events, on `io_uring` or on epoll.
//!
//! This is the layer below an event loop. It is close to the kernel, and grows with it: until 1.0, a minor version may
//! change it, such as by a new field of an [`Op`]. Programs use [ringloop](https://docs.rs/ringloop), which offers it as
//! `ringloop::driver`.
//!
//! # The contract
//!
//! A [`Driver`] takes two kinds of request and gives one kind of [`Event`]:
//!
//! - A **watch** reports when a descriptor is ready ([`Driver::watch`]): [at each arrival](Mode::Edge), [as long as it
//!   is ready](Mode::Level) or [once](Mode::OneShot). A descriptor has one watch at a time.
//! - An **operation** ([`Op`]) does something and reports its result. The driver owns its buffers and its reference
//!   to the file until its last event. [`Driver::take`] returns them, and [`Driver::take_fd`] a descriptor that it has
//!   opened.
//!
//! Each request gets a [`Token`]. A token that outlives its request is harmless. [`Driver::poll`] is the only call that
//! blocks.
//!
//! On every backend:
//!
//! - After `unwatch` a watch reports nothing more. A cancelled operation still has one last event: `ECANCELED`, or its
//!   result if it was over before. [`Driver::discard`] suppresses that event. An operation that is cancelled before the
//!   next flush or poll never starts.
//! - An operation holds its file open ([`SharedFd`]), so it never works on another file that has got the same number.
//! - To close a watched descriptor, call [`Driver::unwatch`], then [`Driver::flush`], then close(2). A
//!   [discarded](Driver::discard) operation holds its file until it is over, but [a zero-copy send](Op::SendZeroCopy)
//!   its socket only until the next flush or poll. After that a close reaches the peer at once.
//! - A descriptor that others may close without telling the driver is watched by a [`Registry`].
//! - `watch` fails with `EBADF` for a bad descriptor, with `EPERM` for a file that has no readiness, and with `EEXIST`
//!   for a second watch. The error of an operation is its result.
//! - The driver handles `EAGAIN`, `EBUSY` and `ETIME`. Users see only `EINTR`, and `EAGAIN` if they ask for it with
//!   `MSG_DONTWAIT`.
//! - A driver may move between threads and works in the thread that polls it. On `io_uring` this is an error while
//!   operations are in flight, and the old ring holds the watched files for a moment longer.
//! - In a child process after fork(2) the driver does nothing, because its kernel objects are the parent's. What
//!   returns a result fails, and [`Driver::is_inherited`] says why. This needs the C library's fork: a child that was
//!   made by a bare system call does not know that it is one, and must not use the driver.
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
//! assert!(events[0].token() == watch && events[0].readiness().is_readable());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # The backends
//!
//! [`Driver::new`] tries `io_uring` and falls back to epoll; [`Driver::backend_reason`] says why. `io_uring` queues
//! entries and submits them at the next poll, so a watch costs no system call of its own. With epoll each watch is
//! registered at once, and operations are emulated.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `test-util` | `Driver::scripted`, a driver on a kernel that plays a script, for tests of programs that use a driver. It is off by default |

#![deny(unsafe_code)]
// docs.rs shows which feature each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("ringloop-driver needs Linux: it drives io_uring and epoll");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("ringloop-driver needs a 64-bit machine: it is tested on x86-64 and aarch64");

/// Compiles the program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod affinity;
mod backend;
mod buffer;
mod bytes;
mod config;
mod contract;
mod emulation;
mod epoll;
mod event;
mod file_status;
mod op;
mod owner;
mod parked;
#[cfg(feature = "test-util")]
mod plan;
mod process;
mod registry;
#[cfg(feature = "test-util")]
mod script;
#[cfg(feature = "test-util")]
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
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

pub use buffer::{Buffer, Room};
pub use bytes::Bytes;
pub use config::{
    BACKEND_VARIABLE, BackendChoice, BackendKind, Config, Refused, SLOTS_MAX, UnknownBackend,
};
pub use contract::{Counters, Peek};
pub use event::{Event, Interest, Mode, Readiness};
pub use file_status::{FileStatus, FileTime};
pub use op::{Op, SENT_BY_COPY, SENT_WITHOUT_COPY, SubmitError};
#[cfg(feature = "test-util")]
pub use plan::Fault;
pub use registry::{Registration, Registry};
#[cfg(feature = "test-util")]
pub use script::{Script, Step};
pub use shared_fd::SharedFd;
pub use token::Token;
pub use waker::Waker;

use backend::Backend;
use contract::inherited;
#[cfg(feature = "test-util")]
use scripted::Scripted;

/// The longest timeout of a poll, about thirty years. Every kernel can represent it.
const TIMEOUT_MAX: Duration = Duration::from_secs(1_000_000_000);

/// The kernel's I/O for one thread at a time. See the [crate's documentation](crate) for the contract.
///
/// Dropping it lets writes to files, and [`Fsync`](Op::Fsync), [`RenameAt`](Op::RenameAt), [`UnlinkAt`](Op::UnlinkAt) and
/// [`MkDirAt`](Op::MkDirAt), finish, for up to a second, and cancels everything else. On `io_uring` it then waits for up to
/// another second until the kernel has released the memory of operations: some cannot be cancelled, such as a zero-copy
/// send that the peer has not acknowledged. Memory that the kernel still uses then is leaked, and so are the owners of
/// such bytes.
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
    /// [`BackendChoice::Auto`] fails only if epoll fails, for lack of descriptors or memory. [`BackendChoice::IoUring`]
    /// fails if `io_uring` is refused; the error gives the reason and a remedy. Sizes out of range are
    /// [`io::ErrorKind::InvalidInput`].
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

    /// Makes a driver that plays a script, for tests of code that uses a driver. Its descriptors are just numbers.
    /// Fails only if there is no descriptor left for the [`Waker`].
    #[cfg(feature = "test-util")]
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

    /// Why it runs on that backend, as one line of text: what the kernel grants, or why `io_uring` is not available.
    pub fn backend_reason(&self) -> &str {
        &self.reason
    }

    /// A handle that ends [`poll`](Driver::poll) from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Whether this process inherited the driver over fork(2), so that it does nothing here. The descriptors of its
    /// watches and operations are the parent's as well as this process's, which may close its own at once.
    #[inline]
    pub fn is_inherited(&self) -> bool {
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
    /// It takes a number, because its caller may have nothing else, and because it neither borrows nor owns the descriptor:
    /// when that is closed is the caller's business. This is sound for any number: a watch reads, writes, changes and
    /// closes nothing, and only says whether reading or writing would block. If the number is closed and reused before the
    /// kernel has the request, the watch reports the readiness of another file, and whoever then reads from its own
    /// descriptor may find nothing there. To avoid that, drop watches before you close their descriptors. Operations, which
    /// do access a file, hold it ([`SharedFd`]).
    ///
    /// Fails with `EBADF` if `fd` is not open, `EPERM` if it has no readiness (a regular file, a directory), `EEXIST`
    /// if it has a watch already, unless that is a [`Mode::OneShot`] watch that has fired, and `EBUSY` if the driver
    /// moved to this thread with operations in flight.
    pub fn watch(&mut self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Token> {
        self.check_process()?;
        self.backend.watch(fd, interest, mode)
    }

    /// Changes a watch. Arms it again if it is a [`Mode::OneShot`] watch that has fired. A descriptor that is ready
    /// already is reported. The token stays the same.
    ///
    /// Fails with `ENOENT` if the token is stale, and as [`watch`](Driver::watch) does.
    pub fn rewatch(&mut self, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        self.check_process()?;
        self.backend.rewatch(token, interest, mode)
    }

    /// Drops a watch. Its token is never reported again. A stale token is not an error.
    ///
    /// `io_uring` holds the file until the next [`flush`](Driver::flush) or [`poll`](Driver::poll).
    pub fn unwatch(&mut self, token: Token) {
        if !self.is_inherited() {
            self.backend.unwatch(token);
        }
    }

    /// The registry of this driver, for watches that any thread may make and that keep no file open.
    ///
    /// Fails for lack of descriptors or memory, and with [`io::ErrorKind::Unsupported`] on a scripted driver (`test-util`).
    pub fn registry(&mut self) -> io::Result<Registry> {
        self.check_process()?;
        self.backend.registry()
    }

    /// Starts an operation at the next [`poll`](Driver::poll) or [`flush`](Driver::flush).
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] for a mistake in `op`, such as a buffer without room, and as
    /// [`watch`](Driver::watch) does if the driver moved. The error returns the operation. Errors of the kernel arrive as
    /// the operation's event.
    pub fn submit(&mut self, op: Op) -> Result<Token, SubmitError> {
        if let Err(error) = self.check_process() {
            return Err(SubmitError::new(error, op));
        }
        self.backend.submit(op)
    }

    /// Returns the resources of a finished operation, with its buffers filled. `None` before its last event, and after
    /// the next poll, which frees what was not taken.
    #[must_use = "what was taken is freed when this is dropped"]
    pub fn take(&mut self, token: Token) -> Option<Op> {
        if self.is_inherited() {
            None
        } else {
            self.backend.take(token)
        }
    }

    /// Returns the descriptor that an event carries: the file of an [`OpenAt`](Op::OpenAt). `None` for other events, if it was taken already, and after the next poll, which closes what
    /// was not taken.
    #[must_use = "the descriptor is closed when this is dropped"]
    pub fn take_fd(&mut self, event: &Event) -> Option<OwnedFd> {
        if self.is_inherited() {
            None
        } else {
            self.backend.take_fd(event)
        }
    }

    /// Cancels an operation. Its last event comes in any case, with `ECANCELED` or with its result if it was over
    /// before. A cancelled [`Close`](Op::Close) closes its descriptor all the same, at the latest when the operation is
    /// dropped. A stale token is not an error.
    pub fn cancel(&mut self, token: Token) {
        if !self.is_inherited() {
            self.backend.cancel(token);
        }
    }

    /// Cancels all operations on a descriptor. Its watch stays. The number is only compared with those of the operations.
    pub fn cancel_fd(&mut self, fd: RawFd) {
        if !self.is_inherited() {
            self.backend.cancel_fd(fd);
        }
    }

    /// Cancels an operation and suppresses its events. Its memory and its file are kept until the kernel has released
    /// them, the socket of [`SendZeroCopy`](Op::SendZeroCopy) only until the next [`flush`](Driver::flush) or
    /// [`poll`](Driver::poll). A descriptor that it still returns is closed.
    pub fn discard(&mut self, token: Token) {
        if !self.is_inherited() {
            self.backend.discard(token);
        }
    }

    /// Submits all queued requests and lets the kernel process them, but collects no events. Call it after dropping a
    /// watch or cancelling an operation, before closing its descriptor.
    ///
    /// Fails with [`io::ErrorKind::ResourceBusy`] if the kernel accepts no more requests for lack of memory or room.
    /// The rest stays queued for the next flush or poll, and descriptors that were lent to operations must stay open
    /// until then.
    pub fn flush(&mut self) -> io::Result<()> {
        self.check_process()?;
        self.backend.flush()
    }

    /// Like [`flush`](Self::flush), if this thread was the last to submit something; otherwise it does nothing, and the
    /// next flush or poll submits what is queued. So it never takes an io_uring ring away from the thread that polls:
    /// this is for finalizers, which run in any thread.
    pub fn flush_if_own(&mut self) -> io::Result<()> {
        self.check_process()?;
        self.backend.flush_if_own()
    }

    /// Waits for events and appends them to `events`. Waits for at most `timeout`: not at all if it is zero, without a
    /// limit if it is `None`. Returns without events at the timeout, and when a [`Waker`] was used.
    ///
    /// Reports everything that is ready, but may stop after 512 events. The next poll then reports the rest first, so
    /// that every watch gets its turn.
    ///
    /// Fails with [`io::ErrorKind::Interrupted`] if a signal handler ran; `events` may still have grown. A poll that
    /// fails does not consume wakes: they end the next one.
    pub fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        self.check_process()?;
        self.backend
            .poll(timeout.map(|timeout| timeout.min(TIMEOUT_MAX)), events)
    }

    /// Returns what is known about the next poll, without a system call.
    #[inline]
    pub fn peek(&self) -> Peek {
        if self.is_inherited() {
            // Even a look would write to the parent's ring: its views store the ring's heads and tails when they are
            // dropped. A poll reports the error.
            return Peek::Ready;
        }
        self.backend.peek()
    }

    /// Returns the counts of what the driver has done so far.
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
