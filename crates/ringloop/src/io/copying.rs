//! One copy, and the choice of how it is done.

use std::io;
use std::os::fd::AsFd;

use super::ends::{Sink, Source};
use super::{sendfile, splice};
use crate::sys;

/// The maximum number of bytes that are copied at a time.
pub(super) const PIECE_BYTES: usize = 128 * 1024;

/// A copy in progress.
pub(super) struct Copying<'a> {
    pub(super) source: Source<'a>,
    pub(super) sink: Sink<'a>,
    /// How many bytes may still be copied.
    left: u64,
    moved: u64,
    buffer: Vec<u8>,
}

/// How many bytes are copied if that is not limited.
pub(super) const ALL: u64 = u64::MAX;

impl<'a> Copying<'a> {
    pub(super) fn new(source: Source<'a>, sink: Sink<'a>, limit: u64) -> Self {
        Self {
            source,
            sink,
            left: limit,
            moved: 0,
            buffer: Vec::new(),
        }
    }

    /// Copies until the source ends, or the limit is reached. Returns how many bytes that were.
    pub(super) async fn run(&mut self) -> io::Result<u64> {
        match (&self.source, &self.sink, self.sink.outlet()) {
            (Source::Socket(from), _, Some(to)) => {
                let from = *from;
                splice::between_sockets(self, from, to).await?;
            }
            (Source::File(source), _, Some(to)) if source.offset.is_some() => {
                let file = source.file;
                sendfile::send(self, file, to).await?;
            }
            (Source::File(source), _, Some(to)) if sys::is_pipe(source.file.as_fd()) => {
                let pipe = source.file;
                splice::from_pipe(self, pipe, to).await?;
            }
            (Source::Socket(from), Sink::File(pipe), None) if sys::is_pipe(pipe.as_fd()) => {
                let from = *from;
                let pipe = pipe.as_fd().try_clone_to_owned();
                splice::to_pipe(self, from, pipe).await?;
            }
            _ => self.by_pieces().await?,
        }
        // Kernel TLS may hold the last bytes back.
        self.sink.flush().await?;
        Ok(self.moved)
    }

    /// How many bytes to move next; 0 at the limit.
    pub(super) fn wanted(&self, at_most: usize) -> usize {
        usize::try_from(self.left).map_or(at_most, |left| left.min(at_most))
    }

    /// Counts bytes that have reached the sink.
    pub(super) fn count(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.moved += bytes;
        if self.left != ALL {
            self.left -= bytes;
        }
        if let Source::File(source) = &mut self.source
            && let Some(offset) = &mut source.offset
        {
            *offset += bytes;
        }
    }

    /// Copies by reading and writing.
    pub(super) async fn by_pieces(&mut self) -> io::Result<()> {
        while self.piece().await? > 0 {}
        Ok(())
    }

    /// Copies one piece by reading and writing. Returns its size, which is 0 at the end or the limit.
    pub(super) async fn piece(&mut self) -> io::Result<usize> {
        let wanted = self.wanted(PIECE_BYTES);
        if wanted == 0 {
            return Ok(0);
        }
        self.buffer.clear();
        let is_file = matches!(self.source, Source::File(_));
        if is_file || self.left != ALL {
            // Reading in place could read beyond the limit.
            let size = self.source.read(&mut self.buffer, wanted).await?;
            self.write_buffer().await?;
            return Ok(size);
        }
        let (mut size, mut sent) = (0, Ok(0));
        let (sink, buffer) = (&self.sink, &mut self.buffer);
        let reading = self.source.read_with(|bytes| {
            size = bytes.len();
            sent = sink.try_write(bytes);
            buffer.extend_from_slice(&bytes[*sent.as_ref().unwrap_or(&0)..]);
        });
        reading.await?;
        self.count(sent?);
        self.write_buffer().await?;
        // A connection that is idle holds no memory.
        self.buffer = Vec::new();
        Ok(size)
    }

    /// Writes all that is in the buffer.
    pub(super) async fn write_buffer(&mut self) -> io::Result<()> {
        let mut start = 0;
        while start < self.buffer.len() {
            let written = self.sink.write(&mut self.buffer, start).await?;
            start += written;
            self.count(written);
        }
        self.sink.flush().await
    }

    /// Where bytes wait to be [written](Self::write_buffer).
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}

/// Whether the kernel does not do this for these files: what was asked for then has to be done by reading and writing.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::EPERM)
    )
}

/// A result with a refusal as what it means for the copy, wherever it was found: within the call, or around it.
pub(super) fn refused_or<T, R>(
    result: io::Result<Result<T, R>>,
    refusal: R,
) -> io::Result<Result<T, R>> {
    match result {
        Err(error) if is_refusal(&error) => Ok(Err(refusal)),
        result => result,
    }
}
