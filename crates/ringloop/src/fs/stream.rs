//! Files as streams of bytes.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, SeekFrom};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ringloop_driver::{Buffer, Bytes, Op};

use super::{File, is_interrupted, lost};
use crate::budget;
use crate::buffer::{ReadBuffer, spare};
use crate::shared::Shared;
use crate::source::Operation;
use crate::task::Role;

/// How many bytes are read or written at a time, at most.
const PIECE_BYTES: usize = 64 * 1024;

/// A file as a stream of bytes: for lines ([`BufReader`](crate::net::BufReader)), and for code that needs `AsyncRead`,
/// `AsyncWrite` and `AsyncSeek` of tokio or of `futures-io` (features `tokio` and `futures-io`). Created by
/// [`File::into_stream`].
///
/// It reads ahead, and writes behind: what is written is accepted at once and goes to the kernel while the program goes on.
/// An error comes with the next call. So [`flush`](Self::flush) before you drop it: otherwise errors are lost, and so is what
/// is still being written when the runtime ends. The stream has a position of its own, from that of the file on.
///
/// To copy a file, use [`io::copy`](crate::io::copy) with the [`File`] itself, which can do it in the kernel.
///
/// ```
/// use ringloop::fs::{self, File};
/// use ringloop::net::BufReader;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-stream-{}", std::process::id()));
/// fs::write(&path, "one\ntwo\nthree").await?;
/// let mut lines = BufReader::new(File::open(&path).await?.into_stream()?).lines();
/// let mut seen = Vec::new();
/// while let Some(line) = lines.next_line().await? {
///     seen.push(line);
/// }
/// assert_eq!(seen, ["one", "two", "three"]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FileStream {
    file: File,
    /// Where the next byte is read or written; `None` for what has no positions, such as pipes.
    position: Option<u64>,
    /// The bytes from there on that were read, and are not taken yet.
    ahead: Ahead,
    reading: Option<Operation>,
    writing: Option<Writing>,
    #[cfg(feature = "tokio")]
    seeking: Option<SeekFrom>,
}

/// Bytes that were read ahead.
#[derive(Default)]
struct Ahead {
    bytes: Vec<u8>,
    taken: usize,
}

impl Ahead {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Takes out as many bytes as the buffer has room for.
    fn take(&mut self, buffer: &mut impl ReadBuffer) -> usize {
        let count = self.rest().len().min(spare(buffer).len());
        buffer.put_slice(&self.rest()[..count]);
        self.taken += count;
        count
    }

    /// The memory, for another read.
    fn into_room(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.clear();
        bytes.reserve_exact(PIECE_BYTES);
        bytes
    }
}

/// Bytes that were accepted, and are being written.
struct Writing {
    /// `None` when it is over.
    operation: Option<Operation>,
    offset: Option<u64>,
    length: usize,
    written: usize,
    /// Whether the stream is gone.
    is_left: bool,
}

impl Writing {
    fn begin(file: &File, bytes: Vec<u8>, offset: Option<u64>) -> io::Result<Self> {
        let length = bytes.len();
        let operation = Operation::submit(Op::Write {
            fd: file.fd.clone(),
            bytes: Bytes::new(bytes),
            start: 0,
            offset,
        })?;
        Ok(Self {
            operation: Some(operation),
            offset,
            length,
            written: 0,
            is_left: false,
        })
    }

    /// Ready when all of it is written.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(operation) = &mut self.operation {
            let (result, op) = ready!(Pin::new(operation).poll(context));
            self.operation = None;
            if !is_interrupted(&result) {
                self.written += match result? as usize {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => count,
                };
            }
            if self.written < self.length {
                let Some(Op::Write { fd, bytes, .. }) = op else {
                    return Poll::Ready(Err(lost()));
                };
                self.operation = Some(Operation::submit(Op::Write {
                    fd,
                    bytes,
                    start: self.written,
                    offset: self.offset.map(|offset| offset + self.written as u64),
                })?);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Writing {
    /// Writes what was accepted, if the runtime goes on.
    fn drop(&mut self) {
        if self.operation.is_none() || self.is_left {
            return;
        }
        let Some(shared) = Shared::try_current() else {
            return;
        };
        let mut rest = Self {
            operation: self.operation.take(),
            is_left: true,
            ..*self
        };
        let writing = async move { drop(poll_fn(|context| rest.poll(context)).await) };
        drop(shared.spawn_in(Role::Background, writing));
    }
}

impl File {
    /// Converts to a stream of bytes, from the file's position on.
    ///
    /// # Errors
    /// Returns the errors of lseek(2), and `InvalidInput` for a file that is opened for
    /// [direct I/O](super::OpenOptions::direct): a stream has pieces of any size, which the kernel would refuse.
    pub fn into_stream(self) -> io::Result<FileStream> {
        if self.is_direct {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a file that is opened for direct I/O cannot be a stream: open it without `direct`, or use read_at and \
                 write_at with an AlignedBuf",
            ));
        }
        Ok(FileStream {
            position: self.position()?,
            file: self,
            ahead: Ahead::default(),
            reading: None,
            writing: None,
            #[cfg(feature = "tokio")]
            seeking: None,
        })
    }
}

impl FileStream {
    /// The file. Its own position is not the stream's.
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// Waits until everything is written, and returns the file, whose position is now that of the stream. What a pipe or a
    /// device has sent, and was read ahead, is lost.
    pub async fn into_inner(mut self) -> (io::Result<()>, File) {
        let mut result = self.flush().await;
        if let Some(position) = self.position {
            result = result.and(self.file.set_position(position));
        }
        (result, self.file)
    }

    /// Waits until the kernel has everything that was written. To have it on the storage device, follow it by
    /// [`File::sync_all`].
    ///
    /// # Errors
    /// Returns the errors of write(2), for whatever was written since the last error.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_flush(context)).await
    }

    /// Changes the position, and returns it, after everything is written.
    ///
    /// # Errors
    /// Returns the errors of write(2) and lseek(2).
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    /// use ringloop::net::BufReader;
    /// use std::io::SeekFrom;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-seek-{}", std::process::id()));
    /// fs::write(&path, "a long history\nthe end").await?;
    /// let mut stream = File::open(&path).await?.into_stream()?;
    /// stream.seek(SeekFrom::End(-7)).await?;
    /// let mut line = String::new();
    /// BufReader::new(stream).read_line(&mut line).await?;
    /// assert_eq!(line, "the end");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        poll_fn(|context| self.poll_seek_to(context, to)).await
    }

    /// See [`seek`](Self::seek).
    pub(crate) fn poll_seek_to(
        &mut self,
        context: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        ready!(self.poll_flush(context))?;
        let Some(position) = self.position else {
            return Poll::Ready(Err(io::Error::from_raw_os_error(libc::ESPIPE)));
        };
        // The kernel knows the end, and what is no position.
        let to = match to {
            SeekFrom::Current(0) => return Poll::Ready(Ok(position)),
            SeekFrom::Current(distance) => match position.checked_add_signed(distance) {
                Some(position) => SeekFrom::Start(position),
                None => return Poll::Ready(Err(io::Error::from_raw_os_error(libc::EINVAL))),
            },
            to => to,
        };
        let position = self.file.seek(to)?;
        self.forget_ahead();
        self.position = Some(position);
        Poll::Ready(Ok(position))
    }

    /// Remembers where to go, for [`poll_sought`](Self::poll_sought).
    #[cfg(feature = "tokio")]
    pub(crate) fn start_seek(&mut self, to: SeekFrom) {
        self.seeking = Some(to);
    }

    /// Goes there, and returns the position.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_sought(&mut self, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let Some(to) = self.seeking else {
            return Poll::Ready(Ok(self.position.unwrap_or(0)));
        };
        let result = ready!(self.poll_seek_to(context, to));
        self.seeking = None;
        Poll::Ready(result)
    }

    /// Drops what was read ahead. From a pipe it would be lost.
    fn forget_ahead(&mut self) {
        if self.position.is_some() {
            self.reading = None;
            self.ahead.taken = self.ahead.bytes.len();
        }
    }

    /// Reads, and appends to the buffer, as far as it has room. 0 is the end.
    pub(crate) fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>> {
        if self.position.is_some() {
            // So that it reads what was written.
            ready!(self.poll_flush(context))?;
        }
        ready!(budget::poll(context));
        if buffer.room() == 0 {
            return Poll::Ready(Ok(0));
        }
        while self.ahead.rest().is_empty() {
            let operation = match &mut self.reading {
                Some(operation) => operation,
                none => none.insert(Operation::submit(Op::Read {
                    fd: self.file.fd.clone(),
                    buffer: Buffer::new(mem::take(&mut self.ahead).into_room()),
                    offset: self.position,
                })?),
            };
            let (result, op) = ready!(Pin::new(operation).poll(context));
            self.reading = None;
            if let Some(Op::Read { buffer, .. }) = op {
                let bytes = buffer.into_owner().unwrap_or_default();
                self.ahead = Ahead { bytes, taken: 0 };
            }
            if !is_interrupted(&result) && result? == 0 {
                return Poll::Ready(Ok(0));
            }
        }
        let count = self.ahead.take(buffer);
        if let Some(position) = &mut self.position {
            *position += count as u64;
        }
        Poll::Ready(Ok(count))
    }

    /// Accepts bytes to be written, once those before them are. Returns how many.
    #[cfg_attr(
        not(any(feature = "futures-io", feature = "tokio")),
        expect(dead_code, reason = "for the traits of other libraries")
    )]
    pub(crate) fn poll_write_pieces(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        ready!(budget::poll(context));
        let wanted = pieces.iter().map(|piece| piece.len()).sum();
        let mut bytes = Vec::with_capacity(PIECE_BYTES.min(wanted));
        for piece in pieces {
            let count = piece.len().min(PIECE_BYTES - bytes.len());
            bytes.extend_from_slice(&piece[..count]);
        }
        let count = bytes.len();
        if count > 0 {
            self.forget_ahead();
            // Appending is where only the kernel knows.
            let offset = self.position.filter(|_| !self.file.appends);
            self.writing = Some(Writing::begin(&self.file, bytes, offset)?);
        }
        Poll::Ready(Ok(count))
    }

    /// Ready when everything is written that was accepted.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(writing) = &mut self.writing else {
            return Poll::Ready(Ok(()));
        };
        let result = ready!(writing.poll(context));
        let written = writing.written as u64;
        self.writing = None;
        if self.position.is_some() && self.file.appends {
            self.position = Some(self.file.seek(SeekFrom::End(0))?);
        } else if let Some(position) = &mut self.position {
            *position += written;
        }
        Poll::Ready(result)
    }
}

impl fmt::Debug for FileStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileStream")
            .field("file", &self.file)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
