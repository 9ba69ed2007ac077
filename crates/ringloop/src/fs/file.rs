//! Open files.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::io::{self, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use ringloop_driver::{Buffer, Bytes, Op, SharedFd};

use super::metadata::{Metadata, status};
use super::{OpenOptions, is_interrupted, perform};
use crate::buffer::ReadBuffer;
use crate::source::Lent;
use crate::sys;

/// The minimum by which a buffer grows, if the size of the file is unknown.
const GROWTH_MIN: usize = 8 * 1024;

/// Refuses an offset beyond the maximum, also where there is nothing to read or to write.
fn check(offset: u64) -> io::Result<()> {
    match i64::try_from(offset) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the offset is larger than the maximum, 2^63 - 1",
        )),
    }
}

/// An open file. The descriptor is closed when the file and all operations on it are gone, by a close(2) that blocks the
/// thread of whoever was last. That may take long on some file systems, and when the last name of a large file is gone.
/// [`close`](Self::close) does not block.
///
/// A file may be sent to other threads, and used in any runtime.
///
/// Buffers are owned. Every [`ReadBuffer`] can be read into that is `Send` (`Vec<u8>`, `BytesMut`, an
/// [`AlignedBuf`](super::AlignedBuf), a [`limit`](bytes::BufMut::limit) of one), and what is read is appended, as far as
/// there is room. Everything that is `AsRef<[u8]>` and `Send` can be written (`Vec<u8>`, `Bytes`, `&'static [u8]`, `Box<[u8]>`,
/// `String`). The methods return the buffer with the result. A buffer of a type of the program's is asked for its memory
/// once, and is not moved or dropped before the kernel is done with it.
///
/// # Panics
/// Futures of a file panic if they are polled outside of a runtime. See the [module](super) for those that are polled in
/// another runtime than their own.
///
/// ```
/// use ringloop::{Runtime, RuntimeConfig, fs};
/// use std::io::SeekFrom;
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringloop-file-{}", std::process::id()));
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let options = fs::OpenOptions::new().read(true).write(true).create(true);
///     let mut file = options.open(&path).await?;
///     file.write_all(b"hello world".to_vec()).await.0?;
///     file.write_all_at(b"W".to_vec(), 6).await.0?;
///     file.sync_all().await?;
///     file.seek(SeekFrom::Start(6))?;
///     let (count, bytes) = file.read_to_end(Vec::new()).await;
///     assert_eq!((count?, &bytes[..]), (5, &b"World"[..]));
/// #   std::fs::remove_file(&path)?;
///     Ok(())
/// })
/// # }
/// ```
pub struct File {
    pub(super) fd: SharedFd,
    /// Whether all writes go to the end of the file.
    pub(super) appends: bool,
    /// Whether the kernel transfers to and from the buffers themselves.
    pub(super) is_direct: bool,
}

/// Takes a buffer back that was lent.
fn back<B: 'static>(lent: Option<Lent<B>>) -> B {
    lent.and_then(Lent::back).expect(
        "the kernel has not released the buffer of this future, which was polled in another runtime than its own",
    )
}

fn read_back<B: 'static>(buffer: Option<Buffer>) -> B {
    back(buffer.and_then(|buffer| buffer.into_owner().ok()))
}

fn lend<B: AsRef<[u8]> + Send + 'static>(buffer: B) -> Bytes {
    Bytes::new(Lent::new(buffer))
}

fn written_back<B: 'static>(bytes: Option<Bytes>) -> B {
    back(bytes.and_then(|bytes| bytes.into_owner().ok()))
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// Returns the errors of open(2).
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-8-{}", std::process::id()));
    /// fs::write(&path, "there").await?;
    /// let (result, bytes) = File::open(&path).await?.read_to_end(Vec::new()).await;
    /// assert_eq!((result?, &bytes[..]), (5, &b"there"[..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file for writing. Creates it if it does not exist, and truncates it otherwise.
    ///
    /// # Errors
    /// Returns the errors of open(2).
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-9-{}", std::process::id()));
    /// let mut file = File::create(&path).await?;
    /// for line in ["one\n", "two\n"] {
    ///     file.write_all(line).await.0?;
    /// }
    /// assert_eq!(fs::read(&path).await?, b"one\ntwo\n");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let options = OpenOptions::new().write(true).create(true).truncate(true);
        options.open(path).await
    }

    pub(super) fn opened(descriptor: OwnedFd, flags: i32) -> Self {
        Self {
            fd: SharedFd::new(descriptor),
            appends: flags & libc::O_APPEND != 0,
            is_direct: flags & libc::O_DIRECT != 0,
        }
    }

    /// Explains what the kernel does not like about direct I/O.
    fn explain(&self, error: io::Error) -> io::Error {
        if self.is_direct && error.raw_os_error() == Some(libc::EINVAL) {
            return io::Error::new(
                io::ErrorKind::InvalidInput,
                "the address and the size of the buffer and the offset in the file must be multiples of the device's block \
                 size, because the file was opened for direct I/O: use an AlignedBuf",
            );
        }
        error
    }

    /// Calls a function with the standard library's view of the file.
    fn with_std<T>(&self, call: impl FnOnce(&std::fs::File) -> T) -> T {
        // SAFETY: it is open for the length of the call, and is not closed here.
        let file = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(self.as_raw_fd()) });
        call(&file)
    }

    /// The current position; `None` for files without positions, such as pipes.
    ///
    /// The kernel stores the position, so that it is shared with other descriptors of the same open file. But the
    /// kernel does not update it reliably: `io_uring` leaves it unchanged if a transfer is cut short by an error. So
    /// every transfer has an explicit offset, and sets the position afterwards.
    pub(crate) fn position(&self) -> io::Result<Option<u64>> {
        if !self.fd.has_position() {
            return Ok(None);
        }
        self.with_std(|mut file| file.stream_position()).map(Some)
    }

    /// Refuses an offset beyond the maximum, and files that have no offsets.
    pub(crate) fn check_offset(&self, offset: u64) -> io::Result<()> {
        check(offset)?;
        if self.fd.has_position() {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ESPIPE))
        }
    }

    pub(crate) fn set_position(&self, position: u64) -> io::Result<()> {
        self.with_std(|mut file| file.seek(SeekFrom::Start(position)))
            .map(drop)
    }

    /// Reads once, at the given offset, and appends to the buffer, as far as that has room. A count of 0 means the end
    /// of the file, or a buffer without room.
    ///
    /// # Errors
    /// Returns the errors of pread(2): `InvalidInput` for an offset beyond `i64::MAX`, `ESPIPE` for files without
    /// positions, such as pipes.
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-10-{}", std::process::id()));
    /// fs::write(&path, "0123456789").await?;
    /// let file = File::open(&path).await?;
    /// // The same buffer again and again: what it has stays, unless it is cleared.
    /// let (count, mut buffer) = file.read_at(Vec::with_capacity(4), 6).await;
    /// assert_eq!((count?, &buffer[..]), (4, &b"6789"[..]));
    /// buffer.clear();
    /// let (count, buffer) = file.read_at(buffer, 0).await;
    /// assert_eq!((count?, &buffer[..]), (4, &b"0123"[..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn read_at<B>(&self, buffer: B, offset: u64) -> (io::Result<usize>, B)
    where
        B: ReadBuffer + Send + 'static,
    {
        if let Err(error) = check(offset) {
            return (Err(error), buffer);
        }
        self.read_once(buffer, Some(offset)).await
    }

    /// Reads once, at the current position, like [`read_at`](Self::read_at). Use it for pipes and devices.
    ///
    /// If the future is dropped, the position does not change. Data from a pipe or a device may be lost.
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-11-{}", std::process::id()));
    /// fs::write(&path, "abcdef").await?;
    /// let mut file = File::open(&path).await?;
    /// let mut pieces = Vec::new();
    /// let mut buffer = Vec::with_capacity(4);
    /// loop {
    ///     let count;
    ///     (count, buffer) = file.read(buffer).await;
    ///     if count? == 0 {
    ///         break;
    ///     }
    ///     pieces.push(String::from_utf8_lossy(&buffer).into_owned());
    ///     buffer.clear();
    /// }
    /// assert_eq!(pieces.concat(), "abcdef");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn read<B>(&mut self, buffer: B) -> (io::Result<usize>, B)
    where
        B: ReadBuffer + Send + 'static,
    {
        let start = match self.position() {
            Ok(start) => start,
            Err(error) => return (Err(error), buffer),
        };
        let (result, buffer) = self.read_once(buffer, start).await;
        let result = result.and_then(|count| {
            start.map_or(Ok(()), |start| self.set_position(start + count as u64))?;
            Ok(count)
        });
        (result, buffer)
    }

    /// Reads everything from the given offset to the end.
    ///
    /// # Errors
    /// Returns the errors of pread(2). The buffer contains what was read before the error.
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-12-{}", std::process::id()));
    /// fs::write(&path, "head and rest").await?;
    /// let (count, rest) = File::open(&path).await?.read_to_end_at(Vec::new(), 9).await;
    /// assert_eq!((count?, &rest[..]), (4, &b"rest"[..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn read_to_end_at(
        &self,
        buffer: Vec<u8>,
        offset: u64,
    ) -> (io::Result<usize>, Vec<u8>) {
        if let Err(error) = check(offset) {
            return (Err(error), buffer);
        }
        self.read_all(buffer, Some(offset)).await
    }

    /// Reads everything from the current position to the end. After an error, the position is after what was read.
    pub async fn read_to_end(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        let start = match self.position() {
            Ok(start) => start,
            Err(error) => return (Err(error), buffer),
        };
        let before = buffer.len();
        let (mut result, buffer) = self.read_all(buffer, start).await;
        if let Some(start) = start
            && let Err(error) = self.set_position(start + (buffer.len() - before) as u64)
        {
            result = result.and(Err(error));
        }
        (result, buffer)
    }

    /// Writes once, at the given offset: as much of the buffer as the kernel accepts.
    ///
    /// # Errors
    /// Returns the errors of pwrite(2).
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-13-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// let (count, _buffer) = file.write_at(b"end".to_vec(), 2).await;
    /// assert_eq!(count?, 3);
    /// // What was skipped is zeroes.
    /// assert_eq!(fs::read(&path).await?, b"\0\0end");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn write_at<B>(&self, buffer: B, offset: u64) -> (io::Result<usize>, B)
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        if let Err(error) = check(offset) {
            return (Err(error), buffer);
        }
        let (result, bytes) = self.write_once(lend(buffer), 0, Some(offset)).await;
        (result, written_back(bytes))
    }

    /// Writes once, at the current position: as much of the buffer as the kernel accepts.
    ///
    /// If the future is dropped, the position does not change. The write may or may not happen, even a moment later,
    /// over data that was written there meanwhile.
    pub async fn write<B>(&mut self, buffer: B) -> (io::Result<usize>, B)
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let (result, bytes) = self.write_onwards(lend(buffer), 0).await;
        (result, written_back(bytes))
    }

    /// Writes all of a buffer, at the given offset.
    ///
    /// # Errors
    /// Returns the errors of pwrite(2). Part of the buffer may have been written.
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-14-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// // The parts of a file may be written at the same time.
    /// let (one, two) = futures_util::future::join(
    ///     file.write_all_at(vec![b'a'; 4], 0),
    ///     file.write_all_at(vec![b'b'; 4], 4),
    /// )
    /// .await;
    /// (one.0?, two.0?);
    /// assert_eq!(fs::read(&path).await?, b"aaaabbbb");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn write_all_at<B>(&self, buffer: B, offset: u64) -> (io::Result<()>, B)
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        if let Err(error) = check(offset) {
            return (Err(error), buffer);
        }
        let write = async |bytes, written: usize| {
            let offset = offset.saturating_add(written as u64);
            self.write_once(bytes, written, Some(offset)).await
        };
        let (result, bytes) = write_whole(lend(buffer), write).await;
        (result, written_back(bytes))
    }

    /// Writes all of a buffer, at the current position. The position advances with each part that is written. So after
    /// an error, or if the future is dropped, it is after what is known to be written.
    pub async fn write_all<B>(&mut self, buffer: B) -> (io::Result<()>, B)
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let write = async |bytes, written| self.write_onwards(bytes, written).await;
        let (result, bytes) = write_whole(lend(buffer), write).await;
        (result, written_back(bytes))
    }

    /// Writes the rest of a buffer once, from this byte on, at the current position, and advances that.
    pub(crate) async fn write_rest(
        &mut self,
        buffer: Vec<u8>,
        from: usize,
    ) -> (io::Result<usize>, Vec<u8>) {
        let (result, bytes) = self.write_onwards(lend(buffer), from).await;
        (result, written_back(bytes))
    }

    /// Writes `bytes[from..]` once, at the current position, and advances that. See [`write_once`](Self::write_once).
    async fn write_onwards(
        &mut self,
        bytes: Bytes,
        from: usize,
    ) -> (io::Result<usize>, Option<Bytes>) {
        // Appending moves the kernel's position to the end, and only the kernel knows where that is.
        let start = if self.appends {
            None
        } else {
            match self.position() {
                Ok(start) => start,
                Err(error) => return (Err(error), Some(bytes)),
            }
        };
        let wanted = bytes.as_slice().len() - from;
        let (result, bytes) = self.write_once(bytes, from, start).await;
        let result = result.and_then(|count| {
            match start {
                Some(start) => self.set_position(start + count as u64)?,
                None if self.appends && count < wanted && self.fd.has_position() => {
                    self.with_std(|mut file| file.seek(SeekFrom::End(0)))?;
                }
                None => {}
            }
            Ok(count)
        });
        (result, bytes)
    }

    pub(crate) async fn read_once<B>(
        &self,
        buffer: B,
        offset: Option<u64>,
    ) -> (io::Result<usize>, B)
    where
        B: ReadBuffer + Send + 'static,
    {
        if buffer.room() == 0 {
            return (Ok(0), buffer);
        }
        let (result, buffer) = self.read_lent(Buffer::new(Lent::new(buffer)), offset).await;
        (result, read_back(buffer))
    }

    /// Reads once into a buffer. It is `None` if the kernel still has it.
    async fn read_lent(
        &self,
        mut buffer: Buffer,
        offset: Option<u64>,
    ) -> (io::Result<usize>, Option<Buffer>) {
        loop {
            let op = Op::Read {
                fd: self.fd.clone(),
                buffer,
                offset,
            };
            let (result, op) = perform(op).await;
            let back = match op {
                Some(Op::Read { buffer, .. }) => Some(buffer),
                _ => None,
            };
            match back {
                Some(back) if is_interrupted(&result) => buffer = back,
                back => {
                    let result = result.map(|count| count as usize);
                    return (result.map_err(|error| self.explain(error)), back);
                }
            }
        }
    }

    pub(super) async fn read_all(
        &self,
        mut buffer: Vec<u8>,
        offset: Option<u64>,
    ) -> (io::Result<usize>, Vec<u8>) {
        let before = buffer.len();
        let size = self.metadata().await.map_or(0, |metadata| metadata.len());
        // One byte more than expected, so that the read that finds the end needs no further room.
        let mut wanted = match size.saturating_sub(offset.unwrap_or(0)) {
            0 => GROWTH_MIN,
            left => usize::try_from(left).map_or(usize::MAX, |left| left.saturating_add(1)),
        };
        loop {
            if buffer.capacity() - buffer.len() < wanted
                && let Err(error) = buffer.try_reserve(wanted)
            {
                return (
                    Err(io::Error::new(io::ErrorKind::OutOfMemory, error)),
                    buffer,
                );
            }
            let done = (buffer.len() - before) as u64;
            let offset = offset.map(|offset| offset.saturating_add(done));
            let result;
            (result, buffer) = self.read_once(buffer, offset).await;
            match result {
                Ok(0) => return (Ok(buffer.len() - before), buffer),
                Ok(_) if buffer.capacity() > buffer.len() => wanted = 1,
                // The file is longer than its metadata said, or its length is unknown.
                Ok(_) => wanted = buffer.len().max(GROWTH_MIN),
                Err(error) => return (Err(error), buffer),
            }
        }
    }

    /// Writes `bytes[start..]` once. They are `None` if the kernel still has them.
    async fn write_once(
        &self,
        mut bytes: Bytes,
        start: usize,
        offset: Option<u64>,
    ) -> (io::Result<usize>, Option<Bytes>) {
        loop {
            let op = Op::Write {
                fd: self.fd.clone(),
                bytes,
                start,
                offset,
            };
            let (result, op) = perform(op).await;
            let back = match op {
                Some(Op::Write { bytes, .. }) => Some(bytes),
                _ => None,
            };
            match back {
                Some(back) if is_interrupted(&result) => bytes = back,
                back => {
                    let result = result.map(|count| count as usize);
                    return (result.map_err(|error| self.explain(error)), back);
                }
            }
        }
    }

    /// Waits until all data and metadata are on the storage device (fsync(2)).
    ///
    /// ```
    /// use ringloop::fs::File;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-15-{}", std::process::id()));
    /// let mut file = File::create(&path).await?;
    /// file.write_all(b"must survive a loss of power".to_vec()).await.0?;
    /// file.sync_all().await?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn sync_all(&self) -> io::Result<()> {
        self.sync(false).await
    }

    /// Waits until all data is on the storage device, with the metadata that is needed to read it (fdatasync(2)).
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync(true).await
    }

    async fn sync(&self, data_only: bool) -> io::Result<()> {
        loop {
            let fd = self.fd.clone();
            let (result, _) = perform(Op::Fsync { fd, data_only }).await;
            if !is_interrupted(&result) {
                return result.map(drop);
            }
        }
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// Returns the errors of fstat(2).
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let flags = libc::AT_EMPTY_PATH;
        status(Some(self.fd.clone()), CString::default(), flags).await
    }

    /// Changes the current position, and returns it. Does not block.
    ///
    /// ```
    /// use ringloop::fs::{self, File};
    /// use std::io::SeekFrom;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-16-{}", std::process::id()));
    /// fs::write(&path, "0123456789").await?;
    /// let mut file = File::open(&path).await?;
    /// assert_eq!(file.seek(SeekFrom::End(-3))?, 7);
    /// let (count, bytes) = file.read_to_end(Vec::new()).await;
    /// assert_eq!((count?, &bytes[..]), (3, &b"789"[..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.with_std(|mut file| file.seek(to))
    }

    /// Truncates the file, or extends it with zeroes. May block for the disk.
    pub fn set_len(&self, length: u64) -> io::Result<()> {
        self.with_std(|file| file.set_len(length))
    }

    /// Closes the file, and returns errors: some file systems, such as NFS, report only here that data could not be
    /// written. Dropping a file closes it, too, but ignores errors. If this future is dropped, the file is closed
    /// nevertheless.
    ///
    /// ```
    /// use ringloop::{Runtime, RuntimeConfig, fs};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("ringloop-close-{}", std::process::id()));
    /// Runtime::new(&RuntimeConfig::default())?.block_on(async {
    ///     let mut file = fs::File::create(&path).await?;
    ///     file.write_all(b"important".to_vec()).await.0?;
    ///     file.close().await?;
    /// #   std::fs::remove_file(&path)?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of close(2); the file is closed even so. Returns `ResourceBusy` if operations that were
    /// dropped are not over yet; the file is closed when they are.
    pub async fn close(self) -> io::Result<()> {
        let fd = self.fd.try_unwrap().map_err(|_| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                "dropped operations on the file are still in progress; it is closed when they end",
            )
        })?;
        perform(Op::Close { fd: Some(fd) }).await.0.map(drop)
    }

    /// Converts to a file of the standard library. Returns this file if operations that were dropped are not over yet.
    ///
    /// ```
    /// use ringloop::fs::File;
    /// use std::io::Write;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-17-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// let mut file = file.try_into_std().unwrap();
    /// writeln!(file, "with the standard library")?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_into_std(self) -> Result<std::fs::File, Self> {
        let Self {
            fd,
            appends,
            is_direct,
        } = self;
        fd.try_unwrap().map(std::fs::File::from).map_err(|fd| Self {
            fd,
            appends,
            is_direct,
        })
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self::from(OwnedFd::from(file))
    }
}

impl From<OwnedFd> for File {
    /// Converts a descriptor of any kind that can be read or written.
    fn from(descriptor: OwnedFd) -> Self {
        let flags = sys::status_flags(descriptor.as_fd());
        Self::opened(descriptor, flags)
    }
}

/// Calls `write` for what is left until everything is written. It returns how much it has written, and the bytes, which are
/// `None` if the kernel still has them.
async fn write_whole(
    mut bytes: Bytes,
    mut write: impl AsyncFnMut(Bytes, usize) -> (io::Result<usize>, Option<Bytes>),
) -> (io::Result<()>, Option<Bytes>) {
    let length = bytes.as_slice().len();
    let mut written = 0;
    while written < length {
        match write(bytes, written).await {
            (Ok(0), back) => return (Err(io::ErrorKind::WriteZero.into()), back),
            (Ok(count), Some(back)) => {
                written += count;
                bytes = back;
            }
            (result, back) => return (result.map(drop), back),
        }
    }
    (Ok(()), Some(bytes))
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_std(|file| file.fmt(formatter))
    }
}
