//! The metadata of files.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringloop_driver::{FileStatus, FileTime, Op, SharedFd};

use super::{lost, perform};

pub(super) async fn status(
    directory: Option<SharedFd>,
    path: CString,
    flags: i32,
) -> io::Result<Metadata> {
    let op = Op::Statx {
        directory,
        path,
        flags,
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        status: Box::default(),
    };
    match perform(op).await {
        (result, Some(Op::Statx { status, .. })) => result.map(|_| Metadata { status }),
        (result, _) => Err(result.err().unwrap_or_else(lost)),
    }
}

/// Metadata of a file, from statx(2).
///
/// ```
/// use ringloop::{Runtime, RuntimeConfig, fs};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let folder = fs::metadata("/").await?;
///     assert!(folder.is_dir() && !folder.is_file());
///     assert!(folder.modified() <= std::time::SystemTime::now());
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone)]
pub struct Metadata {
    status: Box<FileStatus>,
}

impl Metadata {
    fn is(&self, kind: libc::mode_t) -> bool {
        self.mode() & libc::S_IFMT == kind
    }

    /// The file's length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as in the standard library")]
    pub fn len(&self) -> u64 {
        self.status.size()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.is(libc::S_IFREG)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.is(libc::S_IFDIR)
    }

    /// Whether it is a symbolic link; see [`symlink_metadata`](super::symlink_metadata).
    pub fn is_symlink(&self) -> bool {
        self.is(libc::S_IFLNK)
    }

    /// The file's type and permissions, as in inode(7).
    pub fn mode(&self) -> u32 {
        self.status.mode()
    }

    /// The file's permissions, for functions of [`std::fs`].
    pub fn permissions(&self) -> std::fs::Permissions {
        std::fs::Permissions::from_mode(self.mode())
    }

    /// The ID of the file's owner.
    pub fn uid(&self) -> u32 {
        self.status.uid()
    }

    /// The ID of the file's group.
    pub fn gid(&self) -> u32 {
        self.status.gid()
    }

    /// The ID of the device that contains the file.
    pub fn dev(&self) -> u64 {
        let (major, minor) = self.status.device();
        libc::makedev(major, minor)
    }

    /// The inode number.
    pub fn ino(&self) -> u64 {
        self.status.inode()
    }

    /// The number of hard links.
    pub fn nlink(&self) -> u64 {
        u64::from(self.status.links())
    }

    /// The time of the last modification.
    pub fn modified(&self) -> SystemTime {
        time(self.status.modified())
    }

    /// The time of the last access, if the file system records it.
    pub fn accessed(&self) -> SystemTime {
        time(self.status.accessed())
    }

    /// The time of creation.
    ///
    /// # Errors
    /// Returns `Unsupported` if the file system does not record it.
    pub fn created(&self) -> io::Result<SystemTime> {
        self.status.created().map(time).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the file system does not record creation times",
            )
        })
    }
}

fn time(stamp: FileTime) -> SystemTime {
    let whole = Duration::from_secs(stamp.seconds.unsigned_abs());
    let seconds = if stamp.seconds < 0 {
        UNIX_EPOCH - whole
    } else {
        UNIX_EPOCH + whole
    };
    seconds + Duration::from_nanos(u64::from(stamp.nanoseconds))
}

impl fmt::Debug for Metadata {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Metadata")
            .field("mode", &format_args!("{:o}", self.mode()))
            .field("len", &self.len())
            .field("modified", &self.modified())
            .finish_non_exhaustive()
    }
}
