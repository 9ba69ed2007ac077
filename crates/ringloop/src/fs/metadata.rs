//! What statx(2) says about a file.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringloop_driver::{FileStatus, Op, SharedFd};

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

/// What is known of a file, as statx(2) says it.
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

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as in the standard library")]
    pub fn len(&self) -> u64 {
        self.status.0.stx_size
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.is(libc::S_IFREG)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.is(libc::S_IFDIR)
    }

    /// Whether it is a symbolic link; see [`symlink_metadata`].
    pub fn is_symlink(&self) -> bool {
        self.is(libc::S_IFLNK)
    }

    /// Its type and permissions, as in inode(7).
    pub fn mode(&self) -> u32 {
        u32::from(self.status.0.stx_mode)
    }

    /// Its permissions, for the functions of [`std::fs`].
    pub fn permissions(&self) -> std::fs::Permissions {
        std::fs::Permissions::from_mode(self.mode())
    }

    /// The user that it belongs to.
    pub fn uid(&self) -> u32 {
        self.status.0.stx_uid
    }

    /// The group that it belongs to.
    pub fn gid(&self) -> u32 {
        self.status.0.stx_gid
    }

    /// The device that it is on.
    pub fn dev(&self) -> u64 {
        libc::makedev(self.status.0.stx_dev_major, self.status.0.stx_dev_minor)
    }

    /// Its number on that device.
    pub fn ino(&self) -> u64 {
        self.status.0.stx_ino
    }

    /// How many names it has.
    pub fn nlink(&self) -> u64 {
        u64::from(self.status.0.stx_nlink)
    }

    /// When its contents were changed last.
    pub fn modified(&self) -> SystemTime {
        time(&self.status.0.stx_mtime)
    }

    /// When it was read last, if the file system keeps that.
    pub fn accessed(&self) -> SystemTime {
        time(&self.status.0.stx_atime)
    }

    /// When it was made.
    ///
    /// # Errors
    /// `Unsupported` if the file system does not keep that.
    pub fn created(&self) -> io::Result<SystemTime> {
        if self.status.0.stx_mask & libc::STATX_BTIME == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the file system does not keep when a file was made",
            ));
        }
        Ok(time(&self.status.0.stx_btime))
    }
}

fn time(stamp: &libc::statx_timestamp) -> SystemTime {
    let whole = Duration::from_secs(stamp.tv_sec.unsigned_abs());
    let seconds = if stamp.tv_sec < 0 {
        UNIX_EPOCH - whole
    } else {
        UNIX_EPOCH + whole
    };
    seconds + Duration::from_nanos(u64::from(stamp.tv_nsec))
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
