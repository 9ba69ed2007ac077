//! Buffered reading, by lines or up to a delimiter.

use std::fmt;
use std::future::Future;
use std::io;

use super::halves::OwnedReadHalf;
use super::stream::{HasCore, Stream};
use crate::budget;
use crate::buffer::{ReadBuffer, spare};
use crate::sealed::{INTERNAL, Internal};

/// The room for one read, by default.
const CAPACITY_BYTES: usize = 8 * 1024;

/// A connection, its reading half, or a [`FileStream`](crate::fs::FileStream): what a [`BufReader`] reads from. The trait is
/// sealed: no other type can implement it.
pub trait ReadStream {
    /// Reads what has arrived, once, and appends it to the buffer.
    #[doc(hidden)]
    fn read_into(
        &mut self,
        buffer: &mut impl ReadBuffer,
        _: Internal,
    ) -> impl Future<Output = io::Result<usize>>;
}

impl<S: Stream> ReadStream for S {
    async fn read_into(&mut self, buffer: &mut impl ReadBuffer, _: Internal) -> io::Result<usize> {
        self.core().read(buffer).await.0
    }
}

impl<S: Stream> ReadStream for OwnedReadHalf<S> {
    async fn read_into(&mut self, buffer: &mut impl ReadBuffer, _: Internal) -> io::Result<usize> {
        self.read(buffer).await.0
    }
}

/// Reads from a connection through a buffer, by lines or up to a delimiter.
///
/// It works on [`TcpStream`](super::TcpStream), [`UnixStream`](super::UnixStream), `TlsStream` and their reading halves, and
/// on a [`FileStream`](crate::fs::FileStream).
/// Write to the connection with [`get_mut`](Self::get_mut), or split it before.
///
/// **A future of this type that is dropped takes nothing out of the buffer.** So lines may be read in one branch of a
/// `select`. The buffer grows while it contains no end of the line, up to a limit that
/// [`line_limit`](Self::line_limit) sets.
///
/// ```
/// use ringloop::net::{BufReader, UnixStream};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let (mut near, far) = UnixStream::pair()?;
/// near.write_all(&b"GET key\nrest"[..]).await.0?;
/// drop(near);
/// let mut reader = BufReader::new(far).line_limit(1000);
/// let mut line = String::new();
/// assert_eq!(reader.read_line(&mut line).await?, 8);
/// assert_eq!(line, "GET key\n");
/// assert_eq!(reader.buffer(), b"rest");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct BufReader<R> {
    stream: R,
    /// The bytes that were read. It is allocated by the first read.
    buffer: Vec<u8>,
    /// How much of it was consumed.
    consumed: usize,
    capacity: usize,
    line_limit: usize,
}

impl<R> BufReader<R> {
    /// Creates a reader with a buffer of 8 KB, which is allocated by the first read.
    pub fn new(stream: R) -> Self {
        Self::with_capacity(CAPACITY_BYTES, stream)
    }

    /// Creates a reader with a buffer of at least one byte, which is allocated by the first read.
    pub fn with_capacity(bytes: usize, stream: R) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            consumed: 0,
            capacity: bytes.max(1),
            line_limit: usize::MAX,
        }
    }

    /// Sets how many bytes a line may have, including its end. A longer one is an `InvalidData` error. Without this, a
    /// peer can make the buffer grow until the memory is used up.
    #[must_use]
    pub fn line_limit(mut self, bytes: usize) -> Self {
        self.line_limit = bytes;
        self
    }

    /// The bytes that were read and not consumed.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// The connection. What is read from it directly comes after the bytes in the buffer.
    pub fn get_ref(&self) -> &R {
        &self.stream
    }

    /// The connection. What is read from it directly comes after the bytes in the buffer.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.stream
    }

    /// Returns the connection, and the bytes that were read and not consumed.
    pub fn into_parts(mut self) -> (R, Vec<u8>) {
        self.buffer.drain(..self.consumed);
        (self.stream, self.buffer)
    }

    /// Takes bytes out of the buffer.
    ///
    /// # Panics
    /// Panics if the buffer has fewer bytes.
    pub fn consume(&mut self, bytes: usize) {
        let left = self.buffer().len();
        assert!(bytes <= left, "{bytes} bytes consumed of {left}");
        self.consumed += bytes;
        if self.consumed == self.buffer.len() {
            self.consumed = 0;
            self.buffer.clear();
            if self.buffer.capacity() > self.capacity {
                // It has grown for a long line.
                self.buffer = Vec::new();
            }
        }
    }
}

impl<R: ReadStream> BufReader<R> {
    /// Reads once, behind the bytes in the buffer. Returns 0 at the end of the stream.
    async fn read_more(&mut self) -> io::Result<usize> {
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(self.capacity);
        } else if self.buffer.room() == 0 {
            self.buffer.reserve(self.capacity);
        }
        self.stream.read_into(&mut self.buffer, INTERNAL).await
    }

    /// Returns the bytes in the buffer. If there are none, it reads once; an empty slice is the end of the stream. Follow
    /// it by [`consume`](Self::consume).
    ///
    /// # Errors
    /// Returns the errors of the connection's `read`.
    ///
    /// ```
    /// use ringloop::net::{BufReader, UnixStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (mut near, far) = UnixStream::pair()?;
    /// near.write_all(&b"3 bytes"[..]).await.0?;
    /// let mut reader = BufReader::new(far);
    /// assert_eq!(reader.fill_buf().await?, b"3 bytes");
    /// reader.consume(2);
    /// assert_eq!(reader.fill_buf().await?, b"bytes");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.buffer().is_empty() {
            self.read_more().await?;
        } else {
            budget::consume().await;
        }
        Ok(self.buffer())
    }

    /// Reads bytes from the buffer, or if that is empty, from the connection, and appends them to `buffer`, as far as it
    /// has room. A count of 0 means that the stream has ended, or that there was no room.
    ///
    /// # Errors
    /// Returns the errors of the connection's `read`.
    pub async fn read<B: ReadBuffer>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        if buffer.room() == 0 {
            return (Ok(0), buffer);
        }
        if self.buffer().is_empty() {
            if buffer.room() >= self.capacity {
                let result = self.stream.read_into(&mut buffer, INTERNAL).await;
                return (result, buffer);
            }
            if let Err(error) = self.read_more().await {
                return (Err(error), buffer);
            }
        } else {
            budget::consume().await;
        }
        let count = spare(&mut buffer).len().min(self.buffer().len());
        buffer.put_slice(&self.buffer()[..count]);
        self.consume(count);
        (Ok(count), buffer)
    }

    /// Reads up to a delimiter, and appends all of it, with the delimiter, to `bytes`. At the end of the stream, what is
    /// left is the last piece, without a delimiter. Returns how many bytes were appended; 0 is the end of the stream.
    ///
    /// # Errors
    /// Returns the errors of the connection's `read`, and `InvalidData` for more bytes than
    /// [`line_limit`](Self::line_limit) allows. What was read then stays in the buffer.
    ///
    /// ```
    /// use ringloop::net::{BufReader, UnixStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (mut near, far) = UnixStream::pair()?;
    /// near.write_all(&b"one\0two"[..]).await.0?;
    /// drop(near);
    /// let (mut reader, mut bytes) = (BufReader::new(far), Vec::new());
    /// assert_eq!(reader.read_until(0, &mut bytes).await?, 4);
    /// assert_eq!(reader.read_until(0, &mut bytes).await?, 3);
    /// assert_eq!(reader.read_until(0, &mut bytes).await?, 0);
    /// assert_eq!(bytes, b"one\0two");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn read_until(&mut self, delimiter: u8, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let length = self.find(delimiter).await?;
        bytes.extend_from_slice(&self.buffer()[..length]);
        self.consume(length);
        Ok(length)
    }

    /// Reads a line, and appends it, with its `\n`, to `line`. Returns how many bytes were appended; 0 is the end of the
    /// stream. The last line may have no `\n`.
    ///
    /// # Errors
    /// Returns the errors of [`read_until`](Self::read_until), and `InvalidData` for a line that is not UTF-8. That line
    /// is left out.
    pub async fn read_line(&mut self, line: &mut String) -> io::Result<usize> {
        let length = self.find(b'\n').await?;
        let text = str::from_utf8(&self.buffer()[..length]).map(|text| line.push_str(text));
        self.consume(length);
        match text {
            Ok(()) => Ok(length),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Returns the lines one by one, without their ends.
    ///
    /// ```
    /// use ringloop::net::{BufReader, UnixStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (mut near, far) = UnixStream::pair()?;
    /// near.write_all(&b"one\r\ntwo\nthree"[..]).await.0?;
    /// drop(near);
    /// let mut lines = BufReader::new(far).lines();
    /// let mut seen = Vec::new();
    /// while let Some(line) = lines.next_line().await? {
    ///     seen.push(line);
    /// }
    /// assert_eq!(seen, ["one", "two", "three"]);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn lines(self) -> Lines<R> {
        Lines { reader: self }
    }

    /// Reads until the buffer has a delimiter. Returns the length up to it and with it; at the end of the stream, that of
    /// all that is left.
    async fn find(&mut self, delimiter: u8) -> io::Result<usize> {
        budget::consume().await;
        let mut searched = 0;
        loop {
            let found = memchr::memchr(delimiter, &self.buffer()[searched..]);
            let length = found.map(|index| searched + index + 1);
            searched = self.buffer().len();
            if length.unwrap_or(searched) > self.line_limit {
                return Err(too_long(self.line_limit));
            }
            if let Some(length) = length {
                return Ok(length);
            }
            if self.read_more().await? == 0 {
                return Ok(searched);
            }
        }
    }
}

fn too_long(limit: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a line has more than {limit} bytes"),
    )
}

impl<R: fmt::Debug> fmt::Debug for BufReader<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BufReader")
            .field("stream", &self.stream)
            .field("buffered", &self.buffer().len())
            .finish_non_exhaustive()
    }
}

/// The lines of a connection; created by [`BufReader::lines`].
#[derive(Debug)]
pub struct Lines<R> {
    reader: BufReader<R>,
}

impl<R: ReadStream> Lines<R> {
    /// Returns the next line, without `\n` or `\r\n`; `None` at the end of the stream. If the future is dropped, no part
    /// of the line is lost.
    ///
    /// # Errors
    /// See [`BufReader::read_line`].
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if line.ends_with('\n') {
            line.pop();
            if line.ends_with('\r') {
                line.pop();
            }
        }
        Ok(Some(line))
    }

    /// The reader, for other ways of reading between two lines.
    pub fn get_mut(&mut self) -> &mut BufReader<R> {
        &mut self.reader
    }

    /// Returns the reader.
    pub fn into_inner(self) -> BufReader<R> {
        self.reader
    }
}
