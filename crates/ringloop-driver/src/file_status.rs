//! The metadata of files.

use std::fmt;

use crate::sys;

/// A file's metadata, as [`Op::Statx`](crate::Op::Statx) returns it (statx(2)). A field that was not asked for, or that the
/// file system does not have, may be zero.
#[derive(Clone, Copy)]
pub struct FileStatus(pub(crate) libc::statx);

/// A time in a file's metadata, counted from the beginning of 1970.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[non_exhaustive]
pub struct FileTime {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// The nanoseconds of the second that has begun, below a billion.
    pub nanoseconds: u32,
}

impl FileTime {
    fn of(time: libc::statx_timestamp) -> FileTime {
        FileTime {
            seconds: time.tv_sec,
            nanoseconds: time.tv_nsec,
        }
    }
}

impl FileStatus {
    /// Which fields the kernel has filled, as `STATX_*`.
    pub fn mask(&self) -> u32 {
        self.0.stx_mask
    }

    /// The type and the permissions, as in inode(7).
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode)
    }

    /// The length in bytes.
    pub fn size(&self) -> u64 {
        self.0.stx_size
    }

    /// How many blocks of 512 bytes the file occupies.
    pub fn blocks(&self) -> u64 {
        self.0.stx_blocks
    }

    /// The size of a block for efficient reading and writing, in bytes.
    pub fn block_size(&self) -> u32 {
        self.0.stx_blksize
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// The number of the inode.
    pub fn inode(&self) -> u64 {
        self.0.stx_ino
    }

    /// How many hard links there are.
    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// The device that contains the file: its major and its minor number, see makedev(3).
    pub fn device(&self) -> (u32, u32) {
        (self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    /// The device that a special file stands for.
    pub fn special_device(&self) -> (u32, u32) {
        (self.0.stx_rdev_major, self.0.stx_rdev_minor)
    }

    /// When the contents were last read.
    pub fn accessed(&self) -> FileTime {
        FileTime::of(self.0.stx_atime)
    }

    /// When the contents were last changed.
    pub fn modified(&self) -> FileTime {
        FileTime::of(self.0.stx_mtime)
    }

    /// When the metadata were last changed.
    pub fn changed(&self) -> FileTime {
        FileTime::of(self.0.stx_ctime)
    }

    /// When the file was created. `None` if the file system does not record it.
    pub fn created(&self) -> Option<FileTime> {
        let is_there = self.0.stx_mask & libc::STATX_BTIME != 0;
        is_there.then(|| FileTime::of(self.0.stx_btime))
    }
}

impl Default for FileStatus {
    /// All zeroes, for the kernel to fill.
    fn default() -> FileStatus {
        FileStatus(sys::empty_statx())
    }
}

impl fmt::Debug for FileStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileStatus")
            .field("mode", &format_args!("{:o}", self.mode()))
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
