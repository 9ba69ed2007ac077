//! Child processes that were started.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::process::{ExitStatus, Output};
use std::task::Poll;

use ringloop_driver::Interest;

use super::orphans;
use super::pipes::{ChildStderr, ChildStdin, ChildStdout};
use crate::signal::SignalKind;
use crate::source::{Seat, Source, reclaiming};
use crate::sys::children::{check_child, pidfd_open, pidfd_send_signal, reap};

/// A child process; from [`Command::spawn`](super::Command::spawn).
///
/// Dropping it does not end the process, unless [`kill_on_drop`](super::Command::kill_on_drop) is set. In both cases
/// somebody takes its status when it ends, so that no zombie is left: at once if it has ended, otherwise a thread that
/// waits for all such children, and ends with the last of them.
///
/// ```
/// use ringloop::process::Command;
/// use ringloop::time::timeout;
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut child = Command::new("sleep").arg("60").spawn()?;
/// // Dropping a wait changes nothing: wait again, or not.
/// assert!(timeout(Duration::from_millis(10), child.wait()).await.is_err());
/// child.kill().await?;
/// assert!(!child.wait().await?.success());
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Child {
    /// The writing end of its standard input, if that was [piped](super::Stdio::piped). Take it, to close it.
    pub stdin: Option<ChildStdin>,
    /// The reading end of its standard output, if that was piped.
    pub stdout: Option<ChildStdout>,
    /// The reading end of its standard error, if that was piped.
    pub stderr: Option<ChildStderr>,
    id: u32,
    /// Its pidfd. `None` only during drop.
    pidfd: Option<Source<OwnedFd>>,
    status: Option<ExitStatus>,
    /// Whether somebody else has taken the status, so that the number may be another process's.
    is_taken: bool,
    kill_on_drop: bool,
    /// The process that has started it. After fork(2), a copy of this is not to end it.
    parent: u32,
}

/// A child that is ended if it cannot be watched.
struct Started(Option<std::process::Child>);

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // An error means that it has ended.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Child {
    /// `reserved` is closed before a descriptor is needed.
    pub(super) fn watch(
        child: std::process::Child,
        reserved: OwnedFd,
        kill_on_drop: bool,
    ) -> io::Result<Self> {
        let mut started = Started(Some(child));
        let child = started.0.as_mut().expect("it was just put there");
        let id = child.id();
        drop(reserved);
        let opened = reclaiming(|| pidfd_open(id)).and_then(|pidfd| {
            // Where somebody else waits for all children, the number may be another process's by now.
            check_child(pidfd.as_fd())?;
            Ok(pidfd)
        });
        if let Err(error) = &opened
            && matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ECHILD))
        {
            // There is nobody to be ended.
            started.0 = None;
        }
        let pidfd = Source::new(opened?, Interest::READ)?;
        let child = started
            .0
            .as_mut()
            .expect("it is there unless that has failed");
        let (stdin, stdout, stderr) = (
            child.stdin.take().map(ChildStdin::from_std).transpose()?,
            child.stdout.take().map(ChildStdout::from_std).transpose()?,
            child.stderr.take().map(ChildStderr::from_std).transpose()?,
        );
        started.0 = None;
        Ok(Self {
            stdin,
            stdout,
            stderr,
            id,
            pidfd: Some(pidfd),
            status: None,
            is_taken: false,
            kill_on_drop,
            parent: std::process::id(),
        })
    }

    /// Passes a result on, and notes if the child is none any more.
    fn noting_loss<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let is_no_child = |error: &io::Error| error.raw_os_error() == Some(libc::ECHILD);
        self.is_taken |= result.as_ref().is_err_and(is_no_child);
        result
    }

    fn pidfd(&self) -> &Source<OwnedFd> {
        self.pidfd.as_ref().expect("it is there until the drop")
    }

    /// The process ID. `None` when its status was taken, because the number may then be another process's.
    pub fn id(&self) -> Option<u32> {
        (self.status.is_none() && !self.is_taken).then_some(self.id)
    }

    /// Waits until the process has ended, and returns its status; the same one each time. First closes `stdin`, if it is
    /// still there, so that a child that reads to the end does not wait forever.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// Returns `ECHILD` if somebody else has taken the status: by waiting for any child (`waitpid(-1)`), or by ignoring
    /// SIGCHLD.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        if let Some(status) = self.status {
            return Ok(status);
        }
        let pidfd = self.pidfd();
        // The report may have come long ago.
        pidfd.assume_readable();
        let waiting = pidfd.reading(Seat::alone());
        let status = poll_fn(|context| {
            pidfd.poll_read(context, waiting.seat(), |pidfd| {
                let status = reap(pidfd.as_fd())?;
                let status = status.ok_or(io::ErrorKind::WouldBlock)?;
                Ok((status, false))
            })
        })
        .await;
        drop(waiting);
        let status = self.noting_loss(status)?;
        self.status = Some(status);
        Ok(status)
    }

    /// Returns the status if the process has ended. Does not close `stdin`.
    ///
    /// # Errors
    /// See [`wait`](Self::wait).
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let result = reap(self.pidfd().get().as_fd());
            self.status = self.noting_loss(result)?;
        }
        Ok(self.status)
    }

    /// Closes `stdin`, reads what the process writes to its piped output and error until their ends, and waits until it has
    /// ended. What was not piped, or was taken, is empty.
    ///
    /// Dropping the future drops the child.
    ///
    /// # Errors
    /// Returns the errors of reading and of [`wait`](Self::wait).
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (mut stdout, mut stderr) = (self.stdout.take(), self.stderr.take());
        let output = async {
            match &mut stdout {
                Some(pipe) => pipe.read_to_end(Vec::new()).await,
                None => (Ok(0), Vec::new()),
            }
        };
        let error = async {
            match &mut stderr {
                Some(pipe) => pipe.read_to_end(Vec::new()).await,
                None => (Ok(0), Vec::new()),
            }
        };
        // Both at once, because the child may fill either.
        let ((count, output), (error_count, error)) = both(output, error).await;
        count.and(error_count)?;
        Ok(Output {
            status: self.wait().await?,
            stdout: output,
            stderr: error,
        })
    }

    /// Sends a signal. It is not an error if the process has ended.
    ///
    /// # Errors
    /// Returns the errors of pidfd_send_signal(2): `PermissionDenied` if the process runs as another user now.
    ///
    /// ```
    /// use ringloop::process::Command;
    /// use ringloop::signal::SignalKind;
    /// use std::os::unix::process::ExitStatusExt;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let mut child = Command::new("sleep").arg("60").spawn()?;
    /// child.signal(SignalKind::terminate())?;
    /// assert_eq!(child.wait().await?.signal(), Some(15));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn signal(&self, signal: SignalKind) -> io::Result<()> {
        match self.status {
            Some(_) => Ok(()),
            None => pidfd_send_signal(self.pidfd().get().as_fd(), signal.as_raw()),
        }
    }

    /// Ends the process (SIGKILL), without waiting for its end.
    ///
    /// # Errors
    /// See [`signal`](Self::signal).
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.signal(SignalKind::from_raw(libc::SIGKILL))
    }

    /// Ends the process (SIGKILL), and waits until it has ended.
    ///
    /// # Errors
    /// See [`signal`](Self::signal) and [`wait`](Self::wait).
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await.map(drop)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else {
            return;
        };
        if self.status.is_some() || self.parent != std::process::id() {
            return;
        }
        // First, because the descriptor may be of another process if somebody else has taken the child's status.
        if !matches!(reap(pidfd.get().as_fd()), Ok(None)) {
            return;
        }
        if self.kill_on_drop {
            let kill = libc::SIGKILL;
            drop(pidfd_send_signal(pidfd.get().as_fd(), kill));
            if !matches!(reap(pidfd.get().as_fd()), Ok(None)) {
                return;
            }
        }
        // If the kernel cannot be told now, the pidfd is gone. The number is still the child's: nobody has waited for it.
        let pidfd = pidfd.into_inner().or_else(|_| pidfd_open(self.id));
        if let Ok(pidfd) = pidfd {
            orphans::adopt(pidfd);
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Child")
            .field("id", &self.id())
            .field("status", &self.status)
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .finish_non_exhaustive()
    }
}

/// Waits for two futures at once.
async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(context)
        {
            second = Some(output);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}
