//! Child processes.
//!
//! ```
//! use ringloop::process::Command;
//! use ringloop::{Runtime, RuntimeConfig};
//!
//! # fn main() -> std::io::Result<()> {
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     let output = Command::new("echo").arg("hello").output().await?;
//!     assert!(output.status.success());
//!     assert_eq!(output.stdout, b"hello\n");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! A child is watched by a descriptor (pidfd_open(2), Linux 5.4 or later). No signal handler is installed, and only the
//! program's own children are waited for, one by one, so this works beside anything else that has children: other
//! libraries, and a Python interpreter in the same process. Whoever waits for *any* child (`waitpid(-1)`), or ignores
//! SIGCHLD, takes the status of these children, too; waiting then fails with `ECHILD`.

mod child;
mod orphans;
mod pipes;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
pub use std::process::{ExitStatus, Output, Stdio};

use ringloop_driver::affinity;

pub use child::Child;
pub use pipes::{ChildStderr, ChildStdin, ChildStdout};

use crate::source::{check_runtime, reclaiming};
use crate::sys::children::pidfd_open;

/// A command to run, like [`std::process::Command`], which does the work.
///
/// Starting a process blocks the thread until the program is executed, which takes long if its file is on a slow disk.
///
/// A child of a worker that is bound to one CPU is not: it may run where the process's first thread may.
///
/// ```
/// use ringloop::process::{Command, Stdio};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut command = Command::new("sh");
/// command.args(["-c", "echo $NAME"]).env("NAME", "ringloop").stdout(Stdio::piped());
/// let child = command.kill_on_drop(true).spawn()?;
/// assert_eq!(child.wait_with_output().await?.stdout, b"ringloop\n");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Command {
    std: std::process::Command,
    kill_on_drop: bool,
    /// Which of stdin, stdout and stderr were set.
    is_set: [bool; 3],
}

impl Command {
    /// A command that runs a program without arguments, in the environment and the working directory of this process. A
    /// name without a slash is looked up in `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::from(std::process::Command::new(program))
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.std.arg(argument);
        self
    }

    /// Adds several arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = A>) -> &mut Self {
        self.std.args(arguments);
        self
    }

    /// Sets a variable of the child's environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.std.env(name, value);
        self
    }

    /// Sets several variables of the child's environment.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> &mut Self {
        self.std.envs(variables);
        self
    }

    /// Removes a variable from the child's environment.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.std.env_remove(name);
        self
    }

    /// Removes all variables from the child's environment.
    pub fn env_clear(&mut self) -> &mut Self {
        self.std.env_clear();
        self
    }

    /// Sets the child's working directory.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.std.current_dir(directory);
        self
    }

    /// Sets the child's standard input. The default is that of this process, for [`output`](Self::output) `/dev/null`.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.is_set[0] = true;
        self.std.stdin(stdin);
        self
    }

    /// Sets the child's standard output. The default is that of this process, for [`output`](Self::output) a pipe.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.is_set[1] = true;
        self.std.stdout(stdout);
        self
    }

    /// Sets the child's standard error. The default is that of this process, for [`output`](Self::output) a pipe.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.is_set[2] = true;
        self.std.stderr(stderr);
        self
    }

    /// Sets whether the process is ended (SIGKILL) when its [`Child`] is dropped, or the future of
    /// [`status`](Self::status) or [`output`](Self::output). The default is no.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// The command of the standard library.
    pub fn as_std(&self) -> &std::process::Command {
        &self.std
    }

    /// The command of the standard library, for what this type has no method for: users, groups, process groups, `arg0`,
    /// `pre_exec` ([`CommandExt`](std::os::unix::process::CommandExt)). Set the standard streams with the methods of this
    /// type.
    ///
    /// ```
    /// use ringloop::process::Command;
    /// use std::os::unix::process::CommandExt;
    ///
    /// let mut command = Command::new("sh");
    /// command.as_std_mut().process_group(0);
    /// ```
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.std
    }

    /// Starts the process.
    ///
    /// # Errors
    /// Returns the errors of fork(2) and execve(2), such as `NotFound`, and `EMFILE`. Also fails where pidfd_open(2) is
    /// refused, as in some containers; and with `ECHILD` if somebody else in this process has waited for the child before it
    /// could be watched. If another error occurs after the process was started, the process is killed.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn spawn(&mut self) -> io::Result<Child> {
        check_runtime()?;
        orphans::look_after();
        // Whether there are pidfds is known before anything is started, and one descriptor is left to watch the child with.
        let reserved = reclaiming(|| pidfd_open(std::process::id())).map_err(explained)?;
        let child = unpinned(|| reclaiming(|| self.std.spawn()))?;
        Child::watch(child, reserved, self.kill_on_drop)
    }

    /// Starts the process, and waits until it has ended. Pipes are closed at once.
    ///
    /// Dropping the future does not end the process, unless [`kill_on_drop`](Self::kill_on_drop) is set.
    ///
    /// # Errors
    /// See [`spawn`](Self::spawn) and [`Child::wait`].
    ///
    /// ```
    /// use ringloop::process::Command;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// assert_eq!(Command::new("false").status().await?.code(), Some(1));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn status(&mut self) -> io::Result<ExitStatus> {
        let mut child = self.spawn()?;
        drop((child.stdout.take(), child.stderr.take()));
        child.wait().await
    }

    /// Starts the process, and waits until it has ended and its output and error are read, as far as they are pipes, which
    /// is their default here. The standard input is `/dev/null` unless it was set.
    ///
    /// Dropping the future does not end the process, unless [`kill_on_drop`](Self::kill_on_drop) is set.
    ///
    /// # Errors
    /// See [`spawn`](Self::spawn) and [`Child::wait_with_output`].
    pub async fn output(&mut self) -> io::Result<Output> {
        let [has_stdin, has_stdout, has_stderr] = self.is_set;
        if !has_stdin {
            self.std.stdin(Stdio::null());
        }
        if !has_stdout {
            self.std.stdout(Stdio::piped());
        }
        if !has_stderr {
            self.std.stderr(Stdio::piped());
        }
        let child = self.spawn();
        // The command may be used again.
        if !has_stdin {
            self.std.stdin(Stdio::inherit());
        }
        if !has_stdout {
            self.std.stdout(Stdio::inherit());
        }
        if !has_stderr {
            self.std.stderr(Stdio::inherit());
        }
        child?.wait_with_output().await
    }
}

/// The standard streams that it has count as not set.
impl From<std::process::Command> for Command {
    fn from(std: std::process::Command) -> Self {
        Self {
            std,
            kill_on_drop: false,
            is_set: [false; 3],
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std.fmt(formatter)
    }
}

/// Says what to do where the kernel or a container refuses pidfds.
fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => io::Error::new(
            error.kind(),
            format!(
                "pidfd_open(2), by which children are watched, is refused ({error}): it needs Linux 5.3, and a container \
                 that allows it; otherwise use std::process in blocking::run"
            ),
        ),
        _ => error,
    }
}

/// Starts a process, which inherits the CPUs of its parent's thread, from a thread that is not bound to one CPU.
fn unpinned<T>(start: impl FnOnce() -> T) -> T {
    let cpus = affinity::usable_cpus().unwrap_or_default();
    let &[cpu] = &cpus[..] else {
        return start();
    };
    affinity::unpin_thread();
    let started = start();
    // It was bound to it before.
    drop(affinity::pin_thread(cpu));
    started
}
