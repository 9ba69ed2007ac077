//! How files are opened.

use std::io;
use std::path::Path;

use ringloop_driver::Op;

use super::{File, is_interrupted, to_c};
use crate::source::{Operation, are_any_retired};
use crate::sys;

/// Options for opening a [`File`], like [`std::fs::OpenOptions`].
///
/// ```
/// use ringloop::{Runtime, RuntimeConfig, fs};
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringloop-open-{}", std::process::id()));
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let mut log = fs::OpenOptions::new().append(true).create(true).open(&path).await?;
///     log.write_all(b"a line\n".to_vec()).await.0?;
///     log.sync_data().await?;
/// #   std::fs::remove_file(&path)?;
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent, as open(2) has them"
)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    direct: bool,
    mode: u32,
    flags: i32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! setters {
    ($($(#[$attribute:meta])* $name:ident: $kind:ty,)*) => {$(
        $(#[$attribute])*
        #[must_use]
        pub fn $name(mut self, $name: $kind) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

impl OpenOptions {
    /// Creates options with nothing set. Set at least one of `read`, `write` and `append`.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            direct: false,
            mode: 0o666,
            flags: 0,
        }
    }

    setters! {
        /// Whether to open the file for reading.
        read: bool,
        /// Whether to open the file for writing.
        write: bool,
        /// Whether all writes go to the end of the file, whatever their offset.
        append: bool,
        /// Whether to truncate the file.
        truncate: bool,
        /// Whether to create the file if it does not exist.
        create: bool,
        /// Whether to create the file, and fail if it exists.
        create_new: bool,
        /// Whether the device transfers to and from the buffers themselves, past the kernel's cache (`O_DIRECT`). Offsets,
        /// and the addresses and sizes of buffers, must then be multiples of the device's block size: use an
        /// [`AlignedBuf`](super::AlignedBuf). Not all file systems do this. It pays for data that is read or written once,
        /// and for programs with caches of their own, such as databases.
        ///
        /// ```
        /// use bytes::BufMut;
        /// use ringloop::fs::{AlignedBuf, OpenOptions};
        /// use std::io::ErrorKind;
        ///
        /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
        /// # let path = std::env::temp_dir().join(format!("ringloop-doc-direct-{}", std::process::id()));
        /// let options = OpenOptions::new().read(true).write(true).create(true).direct(true);
        /// let file = match options.open(&path).await {
        ///     Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()), // not on this file system
        ///     file => file?,
        /// };
        /// let mut block = AlignedBuf::new(4096);
        /// block.put_slice(b"a record");
        /// block.put_bytes(0, block.remaining_mut());
        /// let (result, mut block) = file.write_all_at(block, 0).await;
        /// result?;
        /// block.clear();
        /// let (count, block) = file.read_at(block, 0).await;
        /// assert_eq!((count?, &block[..8]), (4096, &b"a record"[..]));
        /// # std::fs::remove_file(&path)?;
        /// # Ok::<(), std::io::Error>(())
        /// # })?;
        /// # Ok::<(), std::io::Error>(())
        /// ```
        direct: bool,
        /// The permissions of a new file, before the umask is applied. The default is 0o666.
        mode: u32,
    }

    /// Further flags for open(2), such as `O_NOATIME`. Access modes are ignored.
    ///
    /// ```
    /// use ringloop::fs::OpenOptions;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-6-{}", std::process::id()));
    /// std::os::unix::fs::symlink("/etc/passwd", &path)?;
    /// // Refuses to follow a link.
    /// let options = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW);
    /// let error = options.open(&path).await.unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn custom_flags(mut self, flags: i32) -> Self {
        self.flags = flags;
        self
    }

    /// Opens a file.
    ///
    /// Opening a FIFO does not wait for the other end. If nobody has opened it for writing yet, reading waits for that;
    /// with `O_NONBLOCK` among the [flags](Self::custom_flags), a reader is at the end at once. If nobody reads, opening
    /// it for writing fails with `ENXIO` (fifo(7)). Open it for both to avoid that.
    ///
    /// # Errors
    /// Returns the errors of open(2), `InvalidInput` for options that contradict one another, and `Unsupported` if the file
    /// system refuses [direct](Self::direct) I/O. A file that was to be created may exist then.
    ///
    /// ```
    /// use ringloop::fs::OpenOptions;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-doc-7-{}", std::process::id()));
    /// let options = OpenOptions::new().write(true).create_new(true).mode(0o600);
    /// let file = options.open(&path).await?;
    /// assert_eq!(file.metadata().await?.mode() & 0o077, 0);
    /// let again = options.open(&path).await.unwrap_err();
    /// assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let (path, flags) = (to_c(path.as_ref())?, self.to_flags()?);
        let mut are_retired = are_any_retired();
        loop {
            let op = Op::OpenAt {
                directory: None,
                path: path.clone(),
                flags,
                mode: self.mode,
            };
            let result = Operation::submit(op)?.opened().await;
            if are_retired && result.as_ref().is_err_and(sys::is_out_of_descriptors) {
                // Sockets that were dropped in this turn are closed by now.
                are_retired = false;
            } else if !is_interrupted(&result) {
                return match result {
                    Ok(descriptor) => Ok(File::opened(descriptor, flags)),
                    Err(error) if self.direct && error.raw_os_error() == Some(libc::EINVAL) => {
                        Err(no_direct_io())
                    }
                    Err(error) => Err(error),
                };
            }
        }
    }

    fn to_flags(&self) -> io::Result<i32> {
        let contradiction = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "these options contradict one another, or select neither reading nor writing",
            )
        };
        let access = match (self.read, self.write, self.append) {
            (true, false, false) => libc::O_RDONLY,
            (false, true, false) => libc::O_WRONLY,
            (true, true, false) => libc::O_RDWR,
            (false, _, true) => libc::O_WRONLY | libc::O_APPEND,
            (true, _, true) => libc::O_RDWR | libc::O_APPEND,
            (false, false, false) => return Err(contradiction()),
        };
        let makes = self.create || self.create_new || self.truncate;
        if (makes && !self.write && !self.append)
            || (self.append && self.truncate && !self.create_new)
        {
            return Err(contradiction());
        }
        let creation = match (self.create, self.truncate, self.create_new) {
            (_, _, true) => libc::O_CREAT | libc::O_EXCL,
            (create, truncate, false) => {
                (if create { libc::O_CREAT } else { 0 })
                    | (if truncate { libc::O_TRUNC } else { 0 })
            }
        };
        let direct = if self.direct { libc::O_DIRECT } else { 0 };
        Ok(access | creation | direct | (self.flags & !libc::O_ACCMODE))
    }
}

/// For EINVAL, which tells nobody what is wrong (open(2)).
fn no_direct_io() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the file system refuses direct I/O (O_DIRECT); open the file without it",
    )
}
