//! Asynchronous files.
//!
//! Opening, reading, writing, metadata, renaming, removing and creating directories are operations of the driver: `io_uring`
//! performs them, or, with epoll, a few threads of the driver, after an attempt that does not wait for the disk. Buffers are
//! passed by value and come back with the result, see [`File`]. Functions that say so use the [pool of threads](crate::blocking).
//!
//! Dropping a future asks its operation to stop; it may still happen. The kernel keeps the buffer and the file until
//! the operation is over, so that neither is reused before.
//!
//! A future is polled in the runtime in which it began. In another one, or when its runtime has ended, it fails, and its
//! buffer comes back with the error. If the kernel still uses it after a second, the future panics.
//!
//! # Panics
//!
//! The functions of this module, and the methods of files that wait, panic if they are polled outside of a runtime.
//!
//! For everything else, such as locks, use [`std::fs`] with [`blocking::run`](crate::blocking::run).
//!
//! ```
//! use ringloop::{Runtime, RuntimeConfig, fs};
//!
//! # fn main() -> std::io::Result<()> {
//! # let path = std::env::temp_dir().join(format!("ringloop-fs-{}", std::process::id()));
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     fs::write(&path, "one two three").await?;
//!     let file = fs::File::open(&path).await?;
//!     let (count, bytes) = file.read_at(Vec::with_capacity(3), 4).await;
//!     assert_eq!((count?, &bytes[..]), (3, &b"two"[..]));
//!     assert_eq!(fs::read(&path).await?, b"one two three");
//! #   std::fs::remove_file(&path)?;
//!     Ok(())
//! })
//! # }
//! ```

mod aligned;
mod directory;
mod file;
mod metadata;
mod open_options;
mod paths;
mod storage;
mod stream;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ringloop_driver::Op;

use crate::source::Operation;
pub use aligned::AlignedBuf;
pub use directory::{DirEntry, ReadDir, read_dir};
pub use file::File;
pub use metadata::Metadata;
pub use open_options::OpenOptions;
pub use paths::{
    canonicalize, copy, create_dir, create_dir_all, hard_link, read_link, remove_dir,
    remove_dir_all, remove_file, rename, set_permissions, symlink, try_exists,
};
pub use stream::FileStream;

/// Reads a whole file.
///
/// # Errors
/// Returns the errors of open(2) and read(2), and `OutOfMemory` for a file that does not fit into memory.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-1-{}", std::process::id()));
/// fs::write(&path, "all of it").await?;
/// assert_eq!(fs::read(&path).await?, b"all of it");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = File::open(path).await?;
    let start = file.fd.has_position().then_some(0);
    let (result, bytes) = file.read_all(Vec::new(), start).await;
    result.map(|_| bytes)
}

/// Reads a whole file as a string.
///
/// # Errors
/// Returns the errors of [`read`], and `InvalidData` if the file is not UTF-8.
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-2-{}", std::process::id()));
/// fs::write(&path, "name = ringloop").await?;
/// assert_eq!(fs::read_to_string(&path).await?, "name = ringloop");
/// fs::write(&path, b"\xff").await?;
/// assert_eq!(fs::read_to_string(&path).await.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path).await?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes a file: creates it, or replaces all of its contents.
///
/// # Errors
/// Returns the errors of open(2) and write(2).
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-3-{}", std::process::id()));
/// fs::write(&path, "before").await?;
/// fs::write(&path, vec![1, 2, 3]).await?;
/// assert_eq!(fs::read(&path).await?, [1, 2, 3]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn write(path: impl AsRef<Path>, contents: impl Into<Vec<u8>>) -> io::Result<()> {
    let mut file = File::create(path).await?;
    if file.fd.has_position() {
        file.write_all_at(contents.into(), 0).await.0
    } else {
        file.write_all(contents.into()).await.0
    }
}

/// Returns the metadata of a file. Follows symbolic links.
///
/// # Errors
/// Returns the errors of stat(2).
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-4-{}", std::process::id()));
/// fs::write(&path, "12345").await?;
/// let metadata = fs::metadata(&path).await?;
/// assert!(metadata.is_file());
/// assert_eq!(metadata.len(), 5);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    metadata::status(None, to_c(path.as_ref())?, 0).await
}

/// Returns the metadata of a file. Does not follow a symbolic link.
///
/// # Errors
/// Returns the errors of lstat(2).
///
/// ```
/// use ringloop::fs;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let path = std::env::temp_dir().join(format!("ringloop-doc-5-{}", std::process::id()));
/// std::os::unix::fs::symlink("/", &path)?;
/// assert!(fs::symlink_metadata(&path).await?.is_symlink());
/// assert!(fs::metadata(&path).await?.is_dir());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    metadata::status(None, to_c(path.as_ref())?, flags).await
}

fn to_c(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path contains a zero byte"))
}

/// Performs an operation, and returns it with the result.
async fn perform(op: Op) -> (io::Result<u32>, Option<Op>) {
    match Operation::submit(op) {
        Ok(operation) => operation.await,
        Err(refused) => (Err(refused.error), Some(*refused.op)),
    }
}

/// The error if an operation does not come back: the driver returns each that is over.
fn lost() -> io::Error {
    io::Error::other("the driver did not return the operation")
}

fn is_interrupted<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::Interrupted)
}
