//! Standard output and standard error.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Buf;
use ringloop_driver::Interest;

use crate::blocking;
use crate::source::{Seat, Source, reclaiming};
use crate::sys::transfer::{write, write_now};

/// The number of bytes that are given to a thread at a time.
const PIECE: usize = 256 * 1024;

enum Output {
    /// With readiness.
    Watched(Source<OwnedFd>),
    /// A file, or a device such as `/dev/null`. It is written by write(2), at the position that all share who have inherited
    /// it, so that nobody writes over what others have written.
    File(Arc<OwnedFd>),
}

impl Output {
    fn new(descriptor: OwnedFd) -> io::Result<Self> {
        match Source::new(reclaiming(|| descriptor.try_clone())?, Interest::WRITE) {
            Ok(source) => {
                source.assume_writable();
                Ok(Output::Watched(source))
            }
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                Ok(Output::File(Arc::new(descriptor)))
            }
            Err(error) => Err(error),
        }
    }

    async fn write(&self, buffer: &mut impl Buf) -> io::Result<usize> {
        if !buffer.has_remaining() {
            return Ok(0);
        }
        let count = match self {
            Output::Watched(source) => {
                let waiting = source.writing(Seat::alone());
                poll_fn(|context| {
                    source.poll_write(context, waiting.seat(), |descriptor| {
                        // Whether there is more room, the next write tells.
                        Ok((write_now(descriptor.as_fd(), buffer.chunk())?, true))
                    })
                })
                .await?
            }
            Output::File(file) => {
                let file = Arc::clone(file);
                let chunk = buffer.chunk();
                let piece = chunk[..chunk.len().min(PIECE)].to_vec();
                blocking::run(move || {
                    loop {
                        match write(file.as_fd(), &piece) {
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                            result => return result,
                        }
                    }
                })
                .await??
            }
        };
        buffer.advance(count);
        Ok(count)
    }

    async fn write_all(&self, buffer: &mut impl Buf) -> io::Result<()> {
        while buffer.has_remaining() {
            if self.write(buffer).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Output::Watched(source) => source.get().as_fd(),
            Output::File(file) => file.as_fd(),
        }
    }
}

macro_rules! stream {
    ($(#[$doc:meta])* $stream:ident) => {
        $(#[$doc])*
        ///
        /// Nothing is buffered: what was written is with the kernel. If a future is dropped, part of its buffer may have been
        /// written. If the stream is a file, that may even happen a moment later.
        pub struct $stream {
            output: Output,
        }

        impl $stream {
            pub(super) fn new(descriptor: OwnedFd) -> io::Result<Self> {
                let output = Output::new(descriptor)?;
                Ok(Self { output })
            }

            /// Writes as much of a buffer as there is room for, and advances the buffer by that.
            ///
            /// # Errors
            /// Returns the errors of write(2), such as `BrokenPipe`.
            pub async fn write<B: Buf>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
                let result = self.output.write(&mut buffer).await;
                (result, buffer)
            }

            /// Writes all of a buffer. After an error, the buffer that comes back holds what was not written.
            ///
            /// # Errors
            /// Returns the errors of write(2), such as `BrokenPipe`.
            pub async fn write_all<B: Buf>(&mut self, mut buffer: B) -> (io::Result<()>, B) {
                let result = self.output.write_all(&mut buffer).await;
                (result, buffer)
            }
        }

        /// A duplicate of the stream's descriptor, or for a terminal one of its own.
        impl AsFd for $stream {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.output.as_fd()
            }
        }

        impl fmt::Debug for $stream {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .debug_struct(stringify!($stream))
                    .finish_non_exhaustive()
            }
        }
    };
}

stream! {
    /// The standard output of this process; created by [`stdout`](super::stdout).
    Stdout
}

stream! {
    /// The standard error of this process; created by [`stderr`](super::stderr).
    Stderr
}
