//! Copies bytes between files, pipes and connections, in the kernel where that is possible.
//!
//! | from | to a plain connection, or over kernel TLS | to a pipe | to a file, or over rustls' TLS |
//! | --- | --- | --- | --- |
//! | a file | sendfile(2) | read and write | read and write |
//! | a plain connection | splice(2) through a pipe, for bulk data | splice(2) | read and write |
//! | a pipe | splice(2) | read and write | read and write |
//! | a TLS connection | read and write | read and write | read and write |
//!
//! Pipes are [`File`]s, made from a descriptor. Plain connections are [`TcpStream`](crate::net::TcpStream) and
//! [`UnixStream`](crate::net::UnixStream), and their halves. If the kernel refuses the fast way, for instance for files of
//! /proc, bytes are read and written.
//!
//! Over kernel TLS (feature `tls`, `TlsAcceptor::kernel`), the kernel encrypts what it sends. As with other writes to such a
//! connection, end with `shutdown` or `flush`, so that nothing is lost.
//!
//! No thread is blocked: neither by a peer that reads slowly, nor by a disk, because what is not in memory is read by the
//! driver. (To find out, the first and the last byte of each 128 KB are checked.) File systems that do not say what is in
//! memory, such as overlayfs, are read and written, except for tmpfs.
//!
//! sendfile(2) does not make a copy of the file. If the file changes while the peer has not received all of it, the peer
//! gets some of the new bytes.
//!
//! ```
//! use ringloop::net::UnixStream;
//! use ringloop::{Runtime, RuntimeConfig, fs, io};
//!
//! # fn main() -> std::io::Result<()> {
//! # let path = std::env::temp_dir().join(format!("ringloop-io-{}", std::process::id()));
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     fs::write(&path, "a file").await?;
//!     let (mut near, mut far) = UnixStream::pair()?;
//!     let mut file = fs::File::open(&path).await?;
//!     assert_eq!(io::copy(&mut file, &mut near).await?, 6);
//!     // A part of it, wherever the file's position is.
//!     assert_eq!(io::send_file(&file, 2, 100, &mut near).await?, 4);
//!     let (_, bytes) = far.read(Vec::with_capacity(64)).await;
//!     assert_eq!(bytes, b"a filefile");
//! #   std::fs::remove_file(&path)?;
//!     Ok(())
//! })
//! # }
//! ```

mod bidirectional;
mod copying;
mod ends;
mod sendfile;
mod splice;

use std::io;

pub use bidirectional::copy_bidirectional;
use copying::{ALL, Copying};
pub use ends::{CopyFrom, CopyTo, Duplex};
use ends::{FileSource, Source};

use crate::fs::File;
use crate::sealed::INTERNAL;

/// Copies everything up to the end of `from`, and returns how many bytes that were. Neither side is closed, and the end is
/// not passed on.
///
/// A file is read from its position on, and the position is afterwards just past what was copied, even if copying fails or
/// the future is dropped. A file that grows meanwhile is copied to its new end; if it shrinks, less is copied.
///
/// Bytes that were read from a connection or a pipe, and not written, are lost if copying fails or the future is dropped.
/// That is up to 256 KB.
///
/// # Errors
/// Returns the errors of read(2), write(2), sendfile(2) and splice(2). If the peer is gone, that is `BrokenPipe` or
/// `ConnectionReset`, without a signal.
///
/// # Panics
/// Panics outside of a runtime.
///
/// ```
/// use ringloop::net::UnixStream;
/// use ringloop::{fs, io};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-copy-{}", std::process::id()));
/// let (mut near, mut far) = UnixStream::pair()?;
/// near.write_all(&b"an upload"[..]).await.0?;
/// drop(near);
/// let mut file = fs::File::create(&path).await?;
/// assert_eq!(io::copy(&mut far, &mut file).await?, 9);
/// assert_eq!(fs::read(&path).await?, b"an upload");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn copy<R: CopyFrom + ?Sized, W: CopyTo + ?Sized>(
    from: &mut R,
    to: &mut W,
) -> io::Result<u64> {
    copy_up_to(from, to, ALL).await
}

/// Copies like [`copy`], but at most `limit` bytes. What comes after them is not read. Returns fewer if `from` ends before.
///
/// # Errors
/// See [`copy`].
///
/// ```
/// use ringloop::io;
/// use ringloop::net::UnixStream;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let (mut client, mut near) = UnixStream::pair()?;
/// let (mut far, mut server) = UnixStream::pair()?;
/// client.write_all(&b"one message, another one"[..]).await.0?;
/// assert_eq!(io::copy_up_to(&mut near, &mut far, 11).await?, 11);
/// assert_eq!(server.read(Vec::with_capacity(64)).await.1, b"one message");
/// assert_eq!(near.read(Vec::with_capacity(64)).await.1, b", another one");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn copy_up_to<R: CopyFrom + ?Sized, W: CopyTo + ?Sized>(
    from: &mut R,
    to: &mut W,
    limit: u64,
) -> io::Result<u64> {
    let source = from.source(INTERNAL)?;
    Copying::new(source, to.sink(INTERNAL), limit).run().await
}

/// Copies up to `count` bytes of a file from `offset` on, and returns how many that were: fewer if the file ends before.
/// The file's position is neither used nor changed, so that one file may be sent to many at the same time.
///
/// # Errors
/// Returns the errors of [`copy`], `InvalidInput` for an offset beyond `i64::MAX`, and `ESPIPE` for files without
/// positions, such as pipes.
///
/// ```
/// use ringloop::net::UnixStream;
/// use ringloop::{fs, io};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-send-{}", std::process::id()));
/// fs::write(&path, "0123456789").await?;
/// let file = fs::File::open(&path).await?;
/// let (mut near, mut far) = UnixStream::pair()?;
/// near.write_all(&b"head "[..]).await.0?;
/// assert_eq!(io::send_file(&file, 3, 4, &mut near).await?, 4);
/// assert_eq!(far.read(Vec::with_capacity(64)).await.1, b"head 3456");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn send_file<W: CopyTo + ?Sized>(
    file: &File,
    offset: u64,
    count: u64,
    to: &mut W,
) -> io::Result<u64> {
    file.check_offset(offset)?;
    let source = Source::File(FileSource::at(file, offset));
    Copying::new(source, to.sink(INTERNAL), count).run().await
}
