//! Planned faults: requests to the scripted kernel are really performed, but late, in part, or not at all.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;

use crate::emulation::{self, Attempt, failure};
use crate::op::{Op, SENT_BY_COPY};
use crate::parked::{Operation, Parked};
use crate::sys::{self, Waiting};

/// The fate of a request under a [plan](crate::Script::plan). By default it is performed at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Fault {
    /// The number of polls by which it is delayed, and each of its further events, including a cancel.
    pub polls: u32,
    /// The errno that it fails with instead of being performed, up to 4095, or 0.
    pub errno: i32,
    /// The maximum number of bytes that it reads or writes.
    pub bytes_max: usize,
    /// Whether a cancel comes too late, so that the operation is performed if possible.
    pub outruns_cancel: bool,
}

impl Default for Fault {
    fn default() -> Fault {
        Fault {
            polls: 0,
            errno: 0,
            bytes_max: usize::MAX,
            outruns_cancel: false,
        }
    }
}

/// The largest errno that a system call returns (the kernel's `MAX_ERRNO`).
pub(crate) const ERRNO_MAX: i32 = 4095;

/// Decides what happens to requests: to an operation, or to the readiness of a watch.
pub(crate) struct Plan(Box<Decide>);

type Decide = dyn FnMut(Option<&Op>) -> Fault + Send;

impl Plan {
    pub(crate) fn new(decide: impl FnMut(Option<&Op>) -> Fault + Send + 'static) -> Plan {
        Plan(Box::new(decide))
    }

    pub(crate) fn decide(&mut self, op: Option<&Op>) -> Fault {
        let fault = (self.0)(op);
        // The result of a negative one would count bytes, or be a descriptor.
        let errno = fault.errno;
        assert!(
            (0..=ERRNO_MAX).contains(&errno),
            "a fault's errno is {errno}: use 1 to {ERRNO_MAX}, or 0 for none"
        );
        fault
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Plan")
    }
}

/// A request that the kernel has, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) user_data: u64,
    pub(crate) fault: Fault,
    /// The number of polls by which its next event is delayed.
    pub(crate) left: u32,
    pub(crate) is_cancelled: bool,
    /// For a watch: whether it was found ready, and the event is delayed.
    pub(crate) is_ready: bool,
}

impl Planned {
    /// Performs an operation as far as the plan allows. Results before the last one go to `earlier`. `None` if it
    /// waits.
    pub(crate) fn perform(&self, parked: &mut Parked, earlier: &mut Vec<i32>) -> Option<i32> {
        let done = if self.is_cancelled && !self.fault.outruns_cancel {
            Some(-libc::ECANCELED)
        } else if self.fault.errno != 0 {
            Some(-self.fault.errno)
        } else {
            match in_part(parked.get_mut(), self.fault.bytes_max, earlier) {
                Some(Ok(count)) => Some(count as i32),
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => None,
                Some(Err(error)) => Some(failure(&error)),
                None => whole(parked, earlier),
            }
        };
        done.or(self.is_cancelled.then_some(-libc::ECANCELED))
    }
}

fn whole(parked: &mut Parked, earlier: &mut Vec<i32>) -> Option<i32> {
    match emulation::try_now(parked.get_mut(), earlier) {
        Attempt::Done(result) => Some(result),
        Attempt::Blocked => None,
        Attempt::Offload => Some(emulation::perform(parked)),
    }
}

/// Transfers at most this many bytes. `None` if the operation transfers none, or any number.
fn in_part(
    operation: &mut Operation,
    bytes_max: usize,
    earlier: &mut Vec<i32>,
) -> Option<io::Result<usize>> {
    if bytes_max == usize::MAX {
        return None;
    }
    Some(match &mut operation.op {
        Op::Read { fd, buffer, offset } => {
            let room = buffer.room_mut();
            let part = room.len().min(bytes_max);
            let (number, room) = (fd.as_raw_fd(), &mut room[..part]);
            if fd.nature().is_storage {
                sys::read(number, room, *offset, Waiting::Allowed)
            } else {
                emulation::read(number, room, *offset)
            }
        }
        Op::Write {
            fd,
            bytes,
            start,
            offset,
        } => {
            let rest = &bytes.as_slice()[*start..];
            let part = &rest[..rest.len().min(bytes_max)];
            if fd.nature().is_storage {
                sys::write(fd.as_raw_fd(), part, *offset, Waiting::Allowed)
            } else {
                emulation::write(fd.as_raw_fd(), part, *offset)
            }
        }
        Op::SendZeroCopy { fd, bytes, flags } => {
            let bytes = bytes.as_slice();
            let part = &bytes[..bytes.len().min(bytes_max)];
            let flags = *flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            sys::send(fd.as_raw_fd(), part, flags).map(|count| {
                earlier.push(count as i32);
                SENT_BY_COPY as usize
            })
        }
        _ => return None,
    })
}
