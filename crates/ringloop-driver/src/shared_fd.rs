//! Descriptors that stay open while operations work on them.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use crate::sys::{self, FileKind};

/// A descriptor that is open as long as this value or a clone of it lives.
///
/// Operations hold a clone, so the submitter may drop its own at any time. The number is not reused for another file
/// while the kernel may still look it up.
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

/// The properties of a file that matter for reading and writing. They do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nature {
    /// It has no readiness: a regular file, a directory, a block device.
    pub(crate) is_storage: bool,
    /// It can be read or written at an offset.
    pub(crate) takes_offsets: bool,
}

impl Nature {
    fn of(fd: RawFd) -> Nature {
        let kind = sys::file_kind(fd);
        Nature {
            is_storage: matches!(kind, Ok(FileKind::Storage)),
            // An operation on a bad descriptor will report the error itself.
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

    /// A borrowed descriptor. Its owner must keep it open.
    ///
    /// # Safety
    /// The descriptor must stay open
    /// - as long as anybody but the driver has this value or a clone of it, because safe code can borrow the descriptor
    ///   from it ([`AsFd`]). That includes operations that [`take`](crate::Driver::take) has returned.
    /// - until each operation with this value or a clone has had its last event, or was
    ///   [discarded](crate::Driver::discard) and a later [`flush`](crate::Driver::flush) has succeeded. Otherwise the
    ///   kernel could read from or write to another file with the same number.
    pub unsafe fn borrow_raw(descriptor: RawFd) -> SharedFd {
        SharedFd(Repr::Borrowed(descriptor))
    }

    /// The descriptor, if this is its last reference. Otherwise returns this value again.
    pub fn try_unwrap(self) -> Result<OwnedFd, SharedFd> {
        match self.0 {
            Repr::Owned(owned) => Arc::try_unwrap(owned)
                .map(|owned| owned.descriptor)
                .map_err(|owned| SharedFd(Repr::Owned(owned))),
            Repr::Borrowed(_) => Err(self),
        }
    }

    /// Whether it can be read and written at an offset and has a position: a regular file or a block device. Pipes,
    /// sockets and terminals have no offsets: an operation with one fails with `ESPIPE`. The first call asks the
    /// kernel.
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

    /// Releases the descriptor. This value then has none.
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
            // SAFETY: it is open as long as anybody but the driver has this value, as the caller of `borrow_raw` promised.
            // The driver only uses the number, and values that it has released never leave it.
            Repr::Borrowed(descriptor) => unsafe { BorrowedFd::borrow_raw(*descriptor) },
        }
    }
}

impl fmt::Debug for SharedFd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedFd({})", self.as_raw_fd())
    }
}
