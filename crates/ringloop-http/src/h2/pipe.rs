//! The socket of the `h2` crate's connection: two buffers in memory.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The buffers. Both owners are used by one thread at a time, so the lock is never contended.
#[derive(Debug, Default)]
struct Buffers {
    input: Vec<u8>,
    /// The number of input bytes that were read.
    taken: usize,
    has_ended: bool,
    output: Vec<u8>,
    output_limit: usize,
    /// Whether a write was refused for lack of room.
    is_full: bool,
}

/// One end of the pipe. The other end is a clone.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    buffers: Arc<Mutex<Buffers>>,
}

/// Larger buffers shrink to this size when they are empty, in bytes.
const KEPT: usize = 4 << 10;

impl Pipe {
    /// A pipe that accepts output while it holds less than `output_limit` bytes.
    pub(super) fn new(output_limit: usize) -> Self {
        Pipe {
            buffers: Arc::new(Mutex::new(Buffers {
                output_limit,
                ..Buffers::default()
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buffers> {
        // Nothing panics while it is locked.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends bytes to the input.
    pub(super) fn feed(&self, bytes: &[u8]) {
        let mut buffers = self.lock();
        if buffers.taken == buffers.input.len() {
            buffers.input.clear();
            buffers.taken = 0;
        }
        buffers.input.extend_from_slice(bytes);
    }

    /// Ends the input.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
    }

    /// The number of input bytes that were not read.
    pub(super) fn unread(&self) -> usize {
        let buffers = self.lock();
        buffers.input.len() - buffers.taken
    }

    /// Appends all output to `out`. Returns whether a write was refused before.
    pub(super) fn take_output(&self, out: &mut Vec<u8>) -> bool {
        let mut buffers = self.lock();
        if out.is_empty() {
            std::mem::swap(out, &mut buffers.output);
        } else {
            out.append(&mut buffers.output);
        }
        buffers.output.shrink_to(KEPT);
        std::mem::take(&mut buffers.is_full)
    }

    fn write(&self, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut buffers = self.lock();
        if buffers.output.len() >= buffers.output_limit {
            // The connection is polled again when the output was taken.
            buffers.is_full = true;
            return Poll::Pending;
        }
        let mut length = 0;
        for part in parts {
            buffers.output.extend_from_slice(part);
            length += part.len();
        }
        Poll::Ready(Ok(length))
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.lock();
        let unread = &buffers.input[buffers.taken..];
        if unread.is_empty() && !buffers.has_ended {
            // The connection is polled again when there is more input.
            return Poll::Pending;
        }
        let length = unread.len().min(buffer.remaining());
        buffer.put_slice(&unread[..length]);
        buffers.taken += length;
        if buffers.taken == buffers.input.len() {
            buffers.input.clear();
            buffers.input.shrink_to(KEPT);
            buffers.taken = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(&[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
