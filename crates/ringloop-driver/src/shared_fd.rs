//! What operations work on: descriptors that stay open meanwhile.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use crate::sys::{self, FileKind};

/// A descriptor that is open as long as this or a clone of it lives.
///
/// Operations hold one, so that whoever submits them may let go at any time: the number is not given to another file while
/// the kernel may still look it up.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use ringloop_driver::SharedFd;
///
/// let (near, far) = UnixStream::pair()?;
/// let near = SharedFd::new(near);
/// let clone = near.clone();
/// let near = near.try_unwrap().unwrap_err();
/// drop(clone);
/// let near = UnixStream::from(near.try_unwrap().unwrap());
/// # drop((near, far));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedFd(Repr);

#[derive(Clone)]
enum Repr {
    Owned(Arc<Owned>),
    Borrowed(RawFd),
}

struct Owned {
    descriptor: OwnedFd,
    nature: OnceLock<Nature>,
}

/// What is to be known of a file before it is read or written. It does not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nature {
    /// It is never waited for: a regular file, a directory, a block device.
    pub(crate) is_storage: bool,
    /// It can be read or written at an offset.
    pub(crate) takes_offsets: bool,
}

impl Nature {
    fn of(fd: RawFd) -> Nature {
        let kind = sys::file_kind(fd);
        Nature {
            is_storage: matches!(kind, Ok(FileKind::Storage)),
            // What is wrong with a bad descriptor is for the operation to find out.
            takes_offsets: !matches!(kind, Ok(FileKind::Stream)) && sys::is_seekable(fd),
        }
    }
}

impl SharedFd {
    /// Takes over a descriptor.
    pub fn new(descriptor: impl Into<OwnedFd>) -> SharedFd {
        SharedFd(Repr::Owned(Arc::new(Owned {
            descriptor: descriptor.into(),
            nature: OnceLock::new(),
        })))
    }

    /// A descriptor that is somebody else's, who must keep it open.
    ///
    /// # Safety
    /// Nobody may close it before each operation that is submitted with this or a clone of it has had its last event, or was
    /// [discarded](crate::Driver::discard) and a [`flush`](crate::Driver::flush) after that has succeeded: the kernel would
    /// read, write or accept from another file that has got the same number.
    pub unsafe fn borrow_raw(descriptor: RawFd) -> SharedFd {
        SharedFd(Repr::Borrowed(descriptor))
    }

    /// The descriptor, if this is the last that has it; otherwise this again.
    pub fn try_unwrap(self) -> Result<OwnedFd, SharedFd> {
        match self.0 {
            Repr::Owned(owned) => Arc::try_unwrap(owned)
                .map(|owned| owned.descriptor)
                .map_err(|owned| SharedFd(Repr::Owned(owned))),
            Repr::Borrowed(_) => Err(self),
        }
    }

    /// Whether it has places to read and to write, and a position among them: a regular file or a block device. Pipes, sockets
    /// and terminals have none, and an operation with an offset fails with `ESPIPE` there. Asks the kernel the first time.
    pub fn has_position(&self) -> bool {
        let nature = self.nature();
        nature.is_storage && nature.takes_offsets
    }

    pub(crate) fn nature(&self) -> Nature {
        match &self.0 {
            Repr::Owned(owned) => *owned
                .nature
                .get_or_init(|| Nature::of(owned.descriptor.as_raw_fd())),
            Repr::Borrowed(descriptor) => Nature::of(*descriptor),
        }
    }

    /// Lets go of the descriptor. From now on this is none.
    pub(crate) fn release(&mut self) {
        self.0 = Repr::Borrowed(-1);
    }
}

impl AsRawFd for SharedFd {
    fn as_raw_fd(&self) -> RawFd {
        match &self.0 {
            Repr::Owned(owned) => owned.descriptor.as_raw_fd(),
            Repr::Borrowed(descriptor) => *descriptor,
        }
    }
}

impl AsFd for SharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Repr::Owned(owned) => owned.descriptor.as_fd(),
            // SAFETY: it is open: whoever called `borrow_raw` keeps it so. Those that were released stay in the driver.
            Repr::Borrowed(descriptor) => unsafe { BorrowedFd::borrow_raw(*descriptor) },
        }
    }
}

impl fmt::Debug for SharedFd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedFd({})", self.as_raw_fd())
    }
}
