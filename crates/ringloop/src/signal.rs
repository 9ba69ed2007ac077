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
//! Any number of listeners, in any number of runtimes and threads, hear of each signal. A listener hears from the call of
//! [`signal`] on, whether it waits at the moment or not; signals that come before it looks count as one, as they do in the
//! kernel.
//!
//! The first listener to a signal replaces what the signal did before: SIGTERM does not end the process any more. A handler
//! that was there before is still called, and then the listeners are told. When the last listener is gone the signal does
//! *not* get its former effect back: it is ignored, or goes to the former handler, until somebody listens again. A process
//! that is to end by the signal after all calls [`restore_default`] and raises it again.
//!
//! A child after fork(2) does not tell its parent's listeners of its own signals.

#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use ringloop_driver::Interest;
use signal_hook::SigId;

use crate::source::{Seat, Source};
use crate::sys;

/// Which signal.
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
    /// The signal with a number, as in signal(7).
    pub const fn from_raw(number: i32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// SIGALRM: the time of an alarm(2) is over.
    pub const fn alarm() -> Self {
        Self(libc::SIGALRM)
    }

    /// SIGCHLD: a child process has ended, or was stopped.
    pub const fn child() -> Self {
        Self(libc::SIGCHLD)
    }

    /// SIGHUP: the terminal is gone; for servers, "read your configuration again".
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

    /// SIGTERM: please end.
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

    /// SIGWINCH: the terminal has another size.
    pub const fn window_change() -> Self {
        Self(libc::SIGWINCH)
    }
}

/// Listens to a signal; made by [`signal`]. Dropping it ends that.
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

/// The end of the eventfd that is read.
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

/// Listens to a signal from now on.
///
/// # Errors
/// `InvalidInput` for a number that is no signal, and for those that cannot or must not be caught: SIGKILL, SIGSTOP,
/// SIGSEGV, SIGILL, SIGFPE; those of eventfd(2), for want of descriptors.
///
/// # Panics
/// Outside of a runtime.
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
            format!("signal {} cannot be listened to", kind.as_raw()),
        ));
    }
    let event = File::from(sys::eventfd()?);
    let writer = event.try_clone()?;
    let source = Source::new(Arrivals(event), Interest::READ)?;
    let process = std::process::id();
    let told = move || {
        if std::process::id() == process {
            // The only error is that the counter is full: then the listener has been told often enough.
            drop((&writer).write(&1_u64.to_ne_bytes()));
        }
    };
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
    /// Waits for the signal. It may have come before: since this was made, or since this was last asked.
    ///
    /// Dropping the future loses no signal.
    ///
    /// # Errors
    /// None that are known; those of read(2) from an eventfd.
    pub async fn recv(&mut self) -> io::Result<()> {
        let waiting = self.source.reading(Seat::alone());
        poll_fn(|context| self.poll_arrivals(context, waiting.seat())).await
    }

    /// Whether the signal has come since this was last asked; wakes the task when it does.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_arrivals(context, &Seat::alone())
    }

    fn poll_arrivals(&self, context: &mut Context<'_>, seat: &Seat) -> Poll<io::Result<()>> {
        self.source.poll_read(context, seat, |arrivals| {
            // Reading gives how many there were and begins anew.
            let count = (&arrivals.0).read(&mut [0; 8])?;
            debug_assert_eq!(count, 8);
            Ok(((), true))
        })
    }

    /// The signal.
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

/// Waits for Ctrl-C (SIGINT), which ends the process no more. It listens from the call on, not only when it is awaited.
///
/// A program that awaits it repeatedly makes one [`Signal`] instead, to hear of those in between as well.
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
/// Those of [`signal`].
///
/// # Panics
/// Outside of a runtime.
pub fn ctrl_c() -> impl Future<Output = io::Result<()>> {
    let listening = signal(SignalKind::interrupt());
    async move { listening?.recv().await }
}

/// Gives a signal the effect that it has by default, whoever listens: nobody hears of it from now on, until the process
/// ends.
///
/// For a program that has tidied up and wants to end by the signal, so that its parent sees that.
///
/// # Errors
/// `InvalidInput` for a number that is no signal.
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
