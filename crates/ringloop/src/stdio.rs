//! Standard input, output and error.
//!
//! ```no_run
//! use ringloop::{Runtime, RuntimeConfig, stdio};
//!
//! # fn main() -> std::io::Result<()> {
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     let (mut input, mut output) = (stdio::stdin()?, stdio::stdout()?);
//!     while let Some(line) = input.next_line().await? {
//!         output.write_all(format!("you wrote {line}\n").as_bytes()).await.0?;
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! They may be terminals, pipes, sockets, files or devices. The open file behind them is shared with other processes, such
//! as the shell, and these are disturbed if it is put into non-blocking mode (`O_NONBLOCK`). This module never does that:
//!
//! - A terminal is opened a second time, and only that open file is non-blocking.
//! - Pipes and sockets are read and written by calls that do not wait (`RWF_NOWAIT`). Before Linux 6.4, and for a terminal
//!   that cannot be opened again (such as after su(1)), the kernel has no such calls. There, what is ready by poll(2) is
//!   read, or written in pieces of at most 4096 bytes. If another process takes that data or room in between, the call
//!   waits, and the runtime with it.
//! - Files and devices without readiness, such as `/dev/null`, are read and written as [`fs::File`](crate::fs::File) is,
//!   or in a thread.
//!
//! A program that has restored SIGPIPE's default action ends when it writes to a pipe that nobody reads, as it does with
//! the standard library.
//!
//! Nothing is buffered on the way out. Do not mix this with [`std::io::stdin`], which reads ahead.

mod input;
mod output;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

pub use input::Stdin;
pub use output::{Stderr, Stdout};

use crate::source::reclaiming;
use crate::sys::transfer::open_terminal_again;

/// The standard input of this process.
///
/// # Errors
/// Returns `EBADF` if it is closed, and the errors of dup(2), such as `EMFILE`.
///
/// # Panics
/// Panics outside of a runtime.
pub fn stdin() -> io::Result<Stdin> {
    Stdin::new(own(&io::stdin(), libc::O_RDONLY)?)
}

/// The standard output of this process.
///
/// # Errors
/// Returns `EBADF` if it is closed, and the errors of dup(2), such as `EMFILE`.
///
/// # Panics
/// Panics outside of a runtime.
///
/// ```
/// use ringloop::stdio;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// stdio::stdout()?.write_all(&b"hello\n"[..]).await.0?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stdout() -> io::Result<Stdout> {
    Stdout::new(own(&io::stdout(), libc::O_WRONLY)?)
}

/// The standard error of this process.
///
/// # Errors
/// Returns `EBADF` if it is closed, and the errors of dup(2), such as `EMFILE`.
///
/// # Panics
/// Panics outside of a runtime.
pub fn stderr() -> io::Result<Stderr> {
    Stderr::new(own(&io::stderr(), libc::O_WRONLY)?)
}

/// A descriptor of our own for a standard stream.
fn own(stream: &impl AsFd, access: i32) -> io::Result<OwnedFd> {
    let stream = stream.as_fd();
    match open_terminal_again(stream, access) {
        Some(terminal) => Ok(terminal),
        None => reclaiming(|| stream.try_clone_to_owned()),
    }
}
