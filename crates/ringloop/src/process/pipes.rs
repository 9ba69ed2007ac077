//! The pipes to and from a child.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Stdio;
#[cfg(any(feature = "futures-io", feature = "tokio"))]
use std::task::{Context, Poll};

use bytes::Buf;
use socket2::SockRef;

use crate::net::ReadBuffer;
use crate::pipe::{Reader, Writer};

/// Makes the parent's end of a pipe non-blocking. The child's end is another open file, and stays as it is.
fn non_blocking(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    SockRef::from(&descriptor).set_nonblocking(true)?;
    Ok(descriptor)
}

/// The conversions that all pipes of children have.
macro_rules! pipe {
    ($pipe:ident, $end:ty, $std:ty) => {
        impl $pipe {
            pub(super) fn from_std(pipe: $std) -> io::Result<Self> {
                let end = <$end>::new(non_blocking(pipe.into())?)?;
                Ok(Self { end })
            }

            /// Converts to a descriptor in blocking mode, such as for another child.
            ///
            /// # Errors
            /// Returns `ResourceBusy` if the kernel cannot be told at the moment, for lack of memory. The pipe is then closed.
            pub fn into_owned_fd(self) -> io::Result<OwnedFd> {
                let descriptor = self.end.into_inner()?;
                SockRef::from(&descriptor).set_nonblocking(false)?;
                Ok(descriptor)
            }
        }

        /// For the standard streams of another child, so that the two are joined without this process.
        impl TryFrom<$pipe> for Stdio {
            type Error = io::Error;

            fn try_from(pipe: $pipe) -> io::Result<Self> {
                pipe.into_owned_fd().map(Self::from)
            }
        }

        impl AsFd for $pipe {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.end.as_fd()
            }
        }

        impl AsRawFd for $pipe {
            fn as_raw_fd(&self) -> RawFd {
                self.as_fd().as_raw_fd()
            }
        }
    };
}

/// The writing end of a child's standard input; from [`Child::stdin`](super::Child::stdin). Dropping it lets the child read
/// the end.
///
/// Writing fails with `BrokenPipe` if the child has closed its end, whatever action the program has set for SIGPIPE.
///
/// ```
/// use ringloop::process::{Command, Stdio};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
/// let mut input = child.stdin.take().unwrap();
/// input.write_all(&b"hello"[..]).await.0?;
/// drop(input);
/// assert_eq!(child.wait_with_output().await?.stdout, b"hello");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ChildStdin {
    end: Writer,
}

pipe!(ChildStdin, Writer, std::process::ChildStdin);

impl ChildStdin {
    /// Writes as much of a buffer as there is room for, and advances the buffer by that.
    ///
    /// # Errors
    /// Returns the errors of write(2), such as `BrokenPipe`.
    pub async fn write<B: Buf>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.end.write(buffer).await
    }

    /// Writes all of a buffer. After an error, the buffer that comes back holds what was not written.
    ///
    /// # Errors
    /// Returns the errors of write(2), such as `BrokenPipe`.
    pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        self.end.write_all(buffer).await
    }

    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn poll_write(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.end.poll_write(context, bytes)
    }
}

macro_rules! output {
    ($(#[$doc:meta])* $pipe:ident, $std:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $pipe {
            end: Reader,
        }

        pipe!($pipe, Reader, $std);

        impl $pipe {
            /// Reads what has arrived, once, and appends it to the buffer, as far as that has room; the buffer never grows.
            /// A count of 0 means that all writing ends are closed, or that the buffer had no room.
            ///
            /// # Errors
            /// Returns the errors of read(2).
            pub async fn read<B: ReadBuffer>(&mut self, buffer: B) -> (io::Result<usize>, B) {
                self.end.read(buffer).await
            }

            /// Reads until all writing ends are closed, and appends to the buffer, which grows as needed. Returns how much
            /// was read. Children of the child may hold the pipe open.
            ///
            /// # Errors
            /// Returns the errors of read(2). The buffer contains what was read before.
            pub async fn read_to_end(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
                self.end.read_to_end(buffer).await
            }

            #[cfg(any(feature = "futures-io", feature = "tokio"))]
            pub(crate) fn poll_read_into(
                &self,
                context: &mut Context<'_>,
                buffer: &mut impl ReadBuffer,
            ) -> Poll<io::Result<usize>> {
                self.end.poll_read_into(context, buffer)
            }
        }
    };
}

output! {
    /// The reading end of a child's standard output; from [`Child::stdout`](super::Child::stdout).
    ///
    /// ```
    /// use ringloop::process::{Command, Stdio};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let mut child = Command::new("echo").arg("hello").stdout(Stdio::piped()).spawn()?;
    /// let mut output = child.stdout.take().unwrap();
    /// let (count, bytes) = output.read_to_end(Vec::new()).await;
    /// assert_eq!((count?, &bytes[..]), (6, &b"hello\n"[..]));
    /// assert!(child.wait().await?.success());
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ChildStdout, std::process::ChildStdout
}

output! {
    /// The reading end of a child's standard error; from [`Child::stderr`](super::Child::stderr). Use it like
    /// [`ChildStdout`].
    ChildStderr, std::process::ChildStderr
}
