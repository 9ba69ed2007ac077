//! Operations: what a user submits.
//!
//! An operation's buffers and addresses belong to the driver from [`submit`](crate::Driver::submit) to its last
//! completion, and then go back through [`take`](crate::Driver::take). In between they are in `parked.rs`.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::buffer::Buffer;
use crate::bytes::Bytes;
use crate::file_status::FileStatus;
use crate::shared_fd::SharedFd;

/// An operation. Its [`Event`](crate::Event) carries the result.
///
/// What sockets need beyond this is system calls that do not wait, made when a watch reports.
///
/// `Debug` shows how long buffers are, and not what is in them.
#[non_exhaustive]
pub enum Op {
    /// Sends on a socket directly from the user's memory, without a copy in the kernel, where the kernel supports that.
    ///
    /// There are two events. The first, which is [not the last](crate::Event::is_more), has the number of bytes that are
    /// sent, which may be fewer than there are. The last comes when the kernel has released the bytes, for TCP when the peer has
    /// acknowledged them. Its result is [`SENT_WITHOUT_COPY`] or [`SENT_BY_COPY`]. An error is the only event. If
    /// the peer is gone, it is `EPIPE`, without a signal.
    ///
    /// The data is copied on epoll, by kernels before Linux 6.2, for sockets that do not support it (Unix sockets),
    /// when `RLIMIT_MEMLOCK` is exhausted, and when it is delivered on the same machine.
    SendZeroCopy {
        /// The socket.
        fd: SharedFd,
        /// The bytes to send. They must not change, because the kernel may read them again to retransmit them.
        bytes: Bytes,
        /// `MSG_*` as for send(2), except for `MSG_ZEROCOPY`, which is refused. With `MSG_DONTWAIT` an operation that
        /// would wait fails with `EAGAIN`.
        flags: i32,
    },
    /// Reads from a file, a pipe or a device. The result is the number of bytes, 0 at the end.
    Read {
        /// The file.
        fd: SharedFd,
        /// Where the bytes go. Must have room.
        buffer: Buffer,
        /// The offset in the file, in bytes, up to `i64::MAX`. Fails with `ESPIPE` if the file has no offsets (pipes,
        /// sockets, terminals).
        ///
        /// `None` is for those files, and for the position that the kernel keeps. Do not rely on the latter for a [file
        /// with a position](SharedFd::has_position): `io_uring` does not update it if a transfer is cut short.
        offset: Option<u64>,
    },
    /// Writes `bytes[start..]` to a file, a pipe or a device. The result is the number of bytes, which may be fewer.
    Write {
        /// The file.
        fd: SharedFd,
        /// The bytes to write. They must not change until the end of the operation.
        bytes: Bytes,
        /// Where in them to begin.
        start: usize,
        /// The offset in the file, as for [`Read`](Op::Read).
        offset: Option<u64>,
    },
    /// Flushes a file to storage. The result is 0.
    Fsync {
        /// The file.
        fd: SharedFd,
        /// Whether to skip metadata that is not needed for reading (fdatasync(2)).
        data_only: bool,
    },
    /// Opens a file. The result is the number of its descriptor, which [`take_fd`](crate::Driver::take_fd) returns.
    ///
    /// Does not wait for the other end of a FIFO. As with `O_NONBLOCK`, opening for reading succeeds at once, and
    /// opening for writing fails with `ENXIO` if there is no reader (fifo(7)).
    OpenAt {
        /// Where relative paths begin: a directory; `None` is the working directory.
        directory: Option<SharedFd>,
        /// The path.
        path: CString,
        /// `O_*` as for openat(2). `O_CLOEXEC` is added.
        flags: i32,
        /// Permissions of a file that is created.
        mode: u32,
    },
    /// Gets a file's metadata. The result is 0.
    Statx {
        /// Where relative paths begin: a directory; `None` is the working directory.
        directory: Option<SharedFd>,
        /// The path. If it is empty, and with `AT_EMPTY_PATH`, it is `directory` itself, which may then be any file.
        path: CString,
        /// `AT_*` as for statx(2).
        flags: i32,
        /// `STATX_*`: which fields are wanted.
        mask: u32,
        /// Where the answer goes; see [`FileStatus::default`].
        status: Box<FileStatus>,
    },
    /// Renames a file or a directory. The result is 0.
    RenameAt {
        /// Where a relative path begins: a directory; `None` is the working directory.
        from_directory: Option<SharedFd>,
        /// The path.
        from: CString,
        /// The same for the new path.
        to_directory: Option<SharedFd>,
        /// The new path.
        to: CString,
        /// `RENAME_*` as for renameat2(2).
        flags: u32,
    },
    /// Removes a name of a file, or an empty directory. The result is 0.
    UnlinkAt {
        /// Where relative paths begin: a directory; `None` is the working directory.
        directory: Option<SharedFd>,
        /// The path.
        path: CString,
        /// `AT_REMOVEDIR` for a directory, or 0.
        flags: i32,
    },
    /// Makes a directory. The result is 0.
    MkDirAt {
        /// Where relative paths begin: a directory; `None` is the working directory.
        directory: Option<SharedFd>,
        /// The path.
        path: CString,
        /// Its permissions, less those in the process's umask.
        mode: u32,
    },
    /// Closes a descriptor, and waits as long as that takes. The result is 0. The descriptor is closed even if the
    /// operation fails, is cancelled or discarded, or if the driver is dropped.
    Close {
        /// The descriptor. `None` in a finished operation.
        fd: Option<OwnedFd>,
    },
}

/// The file that an operation works on: a reference, mutable if the one to the operation is.
macro_rules! file_of {
    ($op:expr) => {
        match $op {
            Op::SendZeroCopy { fd, .. }
            | Op::Read { fd, .. }
            | Op::Write { fd, .. }
            | Op::Fsync { fd, .. } => Some(fd),
            Op::OpenAt { .. }
            | Op::Statx { .. }
            | Op::RenameAt { .. }
            | Op::UnlinkAt { .. }
            | Op::MkDirAt { .. }
            | Op::Close { .. } => None,
        }
    };
}

impl Op {
    /// The descriptor that the operation works on, by which [`cancel_fd`](crate::Driver::cancel_fd) finds it. `None` if
    /// it works on a path.
    pub fn fd(&self) -> Option<RawFd> {
        match self {
            Op::Close { fd } => fd.as_ref().map(AsRawFd::as_raw_fd),
            _ => file_of!(self).map(AsRawFd::as_raw_fd),
        }
    }

    /// Refuses mistakes. With an empty buffer, for instance, a result of 0 would look like the end of a stream.
    pub(crate) fn check(&self) -> io::Result<()> {
        let mistake = match self {
            Op::Read { buffer, .. } if buffer.room() == 0 => {
                "the buffer to read into has no room: reserve some"
            }
            Op::Write { bytes, start, .. } if *start > bytes.as_slice().len() => {
                "the start is beyond the end of the bytes"
            }
            Op::Read { offset, .. } | Op::Write { offset, .. }
                if offset.is_some_and(|offset| i64::try_from(offset).is_err()) =>
            {
                "the offset lies beyond the largest that a file can have, 2^63 - 1"
            }
            Op::SendZeroCopy { flags, .. } if flags & FLAGS_REFUSED != 0 => {
                "MSG_ZEROCOPY and MSG_CMSG_COMPAT cannot be used here"
            }
            Op::Close { fd: None } => "there is no descriptor to close",
            _ => return Ok(()),
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, mistake))
    }

    /// The file that the operation works on. The kernel looks it up when it takes the request. It looks up directories
    /// later, with their paths.
    pub(crate) fn file_mut(&mut self) -> Option<&mut SharedFd> {
        file_of!(self)
    }

    /// Whether its result is a descriptor.
    pub(crate) fn brings_descriptor(&self) -> bool {
        matches!(self, Op::OpenAt { .. })
    }

    /// Whether it works on a socket. The peer of a socket has to hear of a close soon.
    pub(crate) fn is_on_socket(&self) -> bool {
        matches!(self, Op::SendZeroCopy { .. })
    }

    /// Whether it changes a file or a directory, if it is on one: cancelling it could lose data.
    pub(crate) fn changes_storage(&self) -> bool {
        matches!(
            self,
            Op::Write { .. }
                | Op::Fsync { .. }
                | Op::RenameAt { .. }
                | Op::UnlinkAt { .. }
                | Op::MkDirAt { .. }
        )
    }

    /// Whether it fails with `EAGAIN` instead of waiting.
    pub(crate) fn never_waits(&self) -> bool {
        match self {
            Op::SendZeroCopy { flags, .. } => flags & libc::MSG_DONTWAIT != 0,
            _ => false,
        }
    }

    /// Whether it has an offset although its file has none.
    pub(crate) fn is_misplaced(&self) -> bool {
        match self {
            Op::Read { fd, offset, .. } | Op::Write { fd, offset, .. } => {
                offset.is_some() && !fd.nature().takes_offsets
            }
            _ => false,
        }
    }
}

/// Shows the fields of an operation.
macro_rules! show {
    ($formatter:expr, $name:literal, $($field:ident),*) => {
        $formatter.debug_struct($name)$(.field(stringify!($field), &$field))*.finish()
    };
}

impl fmt::Debug for Op {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::SendZeroCopy { fd, bytes, flags } => {
                show!(formatter, "SendZeroCopy", fd, bytes, flags)
            }
            Op::Read { fd, buffer, offset } => show!(formatter, "Read", fd, buffer, offset),
            Op::Write {
                fd,
                bytes,
                start,
                offset,
            } => show!(formatter, "Write", fd, bytes, start, offset),
            Op::Fsync { fd, data_only } => show!(formatter, "Fsync", fd, data_only),
            Op::OpenAt {
                directory,
                path,
                flags,
                mode,
            } => show!(formatter, "OpenAt", directory, path, flags, mode),
            Op::Statx {
                directory,
                path,
                flags,
                mask,
                status,
            } => show!(formatter, "Statx", directory, path, flags, mask, status),
            Op::RenameAt {
                from_directory,
                from,
                to_directory,
                to,
                flags,
            } => show!(
                formatter,
                "RenameAt",
                from_directory,
                from,
                to_directory,
                to,
                flags
            ),
            Op::UnlinkAt {
                directory,
                path,
                flags,
            } => show!(formatter, "UnlinkAt", directory, path, flags),
            Op::MkDirAt {
                directory,
                path,
                mode,
            } => show!(formatter, "MkDirAt", directory, path, mode),
            Op::Close { fd } => show!(formatter, "Close", fd),
        }
    }
}

/// Why an operation was not submitted, together with the operation, whose buffers and descriptors are the submitter's
/// again.
pub struct SubmitError(Box<(io::Error, Op)>);

impl SubmitError {
    pub(crate) fn new(error: io::Error, op: Op) -> SubmitError {
        SubmitError(Box::new((error, op)))
    }

    /// Why it was not submitted.
    pub fn error(&self) -> &io::Error {
        &self.0.0
    }

    /// Returns the operation.
    pub fn into_op(self) -> Op {
        self.0.1
    }

    /// Returns both.
    pub fn into_parts(self) -> (io::Error, Op) {
        *self.0
    }
}

impl fmt::Debug for SubmitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SubmitError")
            .field("error", self.error())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(formatter)
    }
}

impl std::error::Error for SubmitError {}

impl From<SubmitError> for io::Error {
    /// Drops the operation.
    fn from(error: SubmitError) -> io::Error {
        error.into_parts().0
    }
}

/// With the first, the kernel would read the bytes after the end of the operation, when the user has them back. The
/// second is the kernel's own, which `io_uring` accepts from any program.
const FLAGS_REFUSED: i32 = libc::MSG_ZEROCOPY | 0x8000_0000_u32 as i32;

/// The last result of an [`Op::SendZeroCopy`] whose bytes were sent from the user's memory.
pub const SENT_WITHOUT_COPY: i32 = 0;

/// The last result of an [`Op::SendZeroCopy`] of which the kernel has copied at least a part.
pub const SENT_BY_COPY: i32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_and_received_is_not_written_to_logs() {
        let (fd, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = SharedFd::new(fd);
        let mut buffer = Buffer::new(Vec::with_capacity(6));
        for (room, byte) in buffer.room_mut().iter_mut().zip(b"secret") {
            room.write(*byte);
        }
        buffer.fill(6);
        let read = Op::Read {
            fd: fd.clone(),
            buffer,
            offset: None,
        };
        let write = Op::Write {
            fd: fd.clone(),
            bytes: Bytes::new("secret"),
            start: 0,
            offset: None,
        };
        for (op, expected) in [(read, "buffer: Buffer(6 of 6)"), (write, "bytes: Bytes(6)")] {
            let text = format!("{op:?}");
            assert!(text.contains(expected), "{text}");
        }
        let number = fd.as_raw_fd();
        let bytes = Op::SendZeroCopy {
            fd,
            bytes: Bytes::new("secret"),
            flags: 0,
        };
        let expected =
            format!("SendZeroCopy {{ fd: SharedFd({number}), bytes: Bytes(6), flags: 0 }}");
        assert_eq!(format!("{bytes:?}"), expected);
    }

    #[test]
    fn an_empty_buffer_is_a_mistake() {
        let (fd, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = SharedFd::new(fd);
        let read = |room| Op::Read {
            fd: fd.clone(),
            buffer: Buffer::new(Vec::with_capacity(room)),
            offset: None,
        };
        let error = read(0).check().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(read(1).check().is_ok());
        let write = Op::Write {
            fd: fd.clone(),
            bytes: Bytes::new([0]),
            start: 2,
            offset: None,
        };
        assert!(write.check().is_err());
    }
}
