//! Signals.
//!
//! ```no_run
//! use ringloop::signal::{SignalKind, signal};
//! use ringloop::{Runtime, RuntimeConfig};
//!
//! # fn main() -> std::io::Result<()> {
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     let mut reload = signal(SignalKind::hangup())?;
//!     loop {
//!         reload.recv().await?;
//!         println!("reading the configuration again");
//!     }
//! })
//! # }
//! ```
//!
//! Any number of listeners, in any number of runtimes and threads, can listen to a signal. A listener is notified of
//! all signals from the call of [`signal`] on, even while it does not wait. Several signals that arrive before it looks
//! count as one, as they do in the kernel.
//!
//! The first listener for a signal replaces the signal's default action: SIGTERM no longer ends the process. A handler
//! that was installed before is still called, before the listeners are told. When the last listener is dropped, the
//! default action is *not* restored: the signal is ignored, or goes to the former handler, until somebody listens
//! again. To end the process by the signal after all, call [`restore_default`] and raise the signal again. Whoever listens
//! after that call undoes it.
//!
//! After fork(2), signals of the child do not reach the parent's listeners.

#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use ringloop_driver::Interest;
use signal_hook::SigId;

use crate::source::{Seat, Source, reclaiming};
use crate::sys;

/// The kind of a signal.
///
/// ```
/// use ringloop::signal::SignalKind;
///
/// assert_eq!(SignalKind::interrupt(), SignalKind::from_raw(2));
/// assert_eq!(SignalKind::terminate().as_raw(), 15);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignalKind(i32);

impl SignalKind {
    /// Creates a kind from a signal's number, see signal(7).
    pub const fn from_raw(number: i32) -> Self {
        Self(number)
    }

    /// The signal's number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// SIGALRM: a timer of alarm(2) has expired.
    pub const fn alarm() -> Self {
        Self(libc::SIGALRM)
    }

    /// SIGCHLD: a child process has ended or was stopped.
    pub const fn child() -> Self {
        Self(libc::SIGCHLD)
    }

    /// SIGHUP: the terminal was closed; for servers, "reload the configuration".
    pub const fn hangup() -> Self {
        Self(libc::SIGHUP)
    }

    /// SIGINT: Ctrl-C.
    pub const fn interrupt() -> Self {
        Self(libc::SIGINT)
    }

    /// SIGPIPE: a write found no reader. Sockets of this crate never cause it.
    pub const fn pipe() -> Self {
        Self(libc::SIGPIPE)
    }

    /// SIGQUIT: Ctrl-\.
    pub const fn quit() -> Self {
        Self(libc::SIGQUIT)
    }

    /// SIGTERM: a request to terminate.
    pub const fn terminate() -> Self {
        Self(libc::SIGTERM)
    }

    /// SIGUSR1.
    pub const fn user_defined1() -> Self {
        Self(libc::SIGUSR1)
    }

    /// SIGUSR2.
    pub const fn user_defined2() -> Self {
        Self(libc::SIGUSR2)
    }

    /// SIGWINCH: the terminal was resized.
    pub const fn window_change() -> Self {
        Self(libc::SIGWINCH)
    }
}

/// A listener for a signal; created by [`signal`]. Dropping it stops listening.
///
/// ```
/// use ringloop::signal::{SignalKind, signal};
/// use ringloop::{Runtime, RuntimeConfig};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let mut ended = signal(SignalKind::child())?;
///     let mut child = std::process::Command::new("true").spawn()?;
///     while child.try_wait()?.is_none() {
///         ended.recv().await?;
///     }
///     assert!(child.wait()?.success());
///     Ok(())
/// })
/// # }
/// ```
pub struct Signal {
    kind: SignalKind,
    /// An eventfd that the handler writes to.
    source: Source<Arrivals>,
    registration: SigId,
}

/// The reading side of the eventfd.
#[derive(Debug)]
struct Arrivals(File);

impl std::os::fd::AsFd for Arrivals {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Arrivals> for OwnedFd {
    fn from(arrivals: Arrivals) -> Self {
        arrivals.0.into()
    }
}

/// Listens to a signal, from this call on.
///
/// # Errors
/// Returns `InvalidInput` for a number that is not a signal, and for signals that cannot or must not be caught:
/// SIGKILL, SIGSTOP, SIGSEGV, SIGILL, SIGFPE. Returns the errors of eventfd(2), such as having too many open
/// descriptors.
///
/// # Panics
/// Panics if it is called outside of a runtime.
///
/// ```
/// use ringloop::signal::{SignalKind, signal};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut changes = signal(SignalKind::user_defined1())?;
/// // As another process would by `kill -USR1`.
/// signal_hook::low_level::raise(libc::SIGUSR1)?;
/// changes.recv().await?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn signal(kind: SignalKind) -> io::Result<Signal> {
    if signal_hook::consts::FORBIDDEN.contains(&kind.as_raw()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cannot listen to signal {}", kind.as_raw()),
        ));
    }
    let event = File::from(reclaiming(sys::eventfd)?);
    let writer = reclaiming(|| event.try_clone())?;
    let source = Source::new(Arrivals(event), Interest::READ)?;
    let process = std::process::id();
    let told = move || {
        if std::process::id() == process {
            // The only error is that the counter is full, and then the listener has been told often enough.
            drop((&writer).write(&1_u64.to_ne_bytes()));
        }
    };
    sys::undo_restore_default(kind.as_raw())?;
    // SAFETY: the action is called in a signal handler, and makes two system calls that may be made there: getpid(2) and
    // write(2), the latter to a descriptor that it owns. It neither allocates nor locks nor panics. The registry keeps
    // errno, and frees the action only when no handler runs it.
    let registration = unsafe { signal_hook::low_level::register(kind.as_raw(), told)? };
    Ok(Signal {
        kind,
        source,
        registration,
    })
}

impl Signal {
    /// Waits for the signal. Returns at once if it has arrived since the listener was created, or since the last call.
    ///
    /// Dropping the future does not lose a signal.
    ///
    /// # Errors
    /// Returns the errors of read(2) for an eventfd. None are known.
    pub async fn recv(&mut self) -> io::Result<()> {
        let waiting = self.source.reading(Seat::alone());
        poll_fn(|context| self.poll_arrivals(context, waiting.seat())).await
    }

    /// Polls for the signal, and registers the task to be woken when it arrives.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_arrivals(context, &Seat::alone())
    }

    fn poll_arrivals(&self, context: &mut Context<'_>, seat: &Seat) -> Poll<io::Result<()>> {
        self.source.poll_read(context, seat, |arrivals| {
            // Reading returns how many signals there were, and resets the count.
            let count = (&arrivals.0).read(&mut [0; 8])?;
            debug_assert_eq!(count, 8);
            Ok(((), true))
        })
    }

    /// The kind of signal that is listened to.
    pub fn kind(&self) -> SignalKind {
        self.kind
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        signal_hook::low_level::unregister(self.registration);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Signal")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Waits for Ctrl-C (SIGINT), which no longer ends the process. It listens from the call on, not only once it is
/// awaited.
///
/// To wait for it repeatedly, create one [`Signal`] instead, which also notices signals between two waits.
///
/// ```no_run
/// use ringloop::{Runtime, RuntimeConfig, signal, spawn};
///
/// # async fn serve() {}
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     drop(spawn(serve()));
///     signal::ctrl_c().await?;
///     println!("ending");
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// Returns the errors of [`signal`].
///
/// # Panics
/// Panics if it is called outside of a runtime.
pub fn ctrl_c() -> impl Future<Output = io::Result<()>> {
    let listening = signal(SignalKind::interrupt());
    async move { listening?.recv().await }
}

/// Restores a signal's default action, whoever listens: no listener is notified of it any more. Listening to the signal
/// again undoes this, also for the listeners from before.
///
/// For a program that has cleaned up and wants to be ended by the signal, so that its parent sees that.
///
/// # Errors
/// Returns `InvalidInput` for a number that is not a signal.
///
/// ```no_run
/// use ringloop::signal::{SignalKind, ctrl_c, restore_default};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// ctrl_c().await?;
/// // Everything is tidied up; the shell shall see that it was Ctrl-C.
/// restore_default(SignalKind::interrupt())?;
/// signal_hook::low_level::raise(libc::SIGINT)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn restore_default(kind: SignalKind) -> io::Result<()> {
    sys::restore_default(kind.as_raw())
}
