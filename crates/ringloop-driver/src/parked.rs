//! Operations in flight: the user's part, and what the backends note.
//!
//! All of it stays at the same address from [`submit`](crate::Driver::submit) to the operation's last completion.

#![allow(unsafe_code)]

use std::mem;
use std::os::fd::{IntoRawFd, RawFd};
use std::ptr;

use crate::op::Op;
use crate::sys;

/// An operation in flight: the user's part, and what the backends note.
///
/// Once the operation is prepared, it is accessed only through the raw pointer in its [`Parked`], because the kernel
/// writes to what it points to.
pub(crate) struct Operation {
    pub(crate) op: Op,
    /// For the `io_uring` backend: whether to use an ordinary send in place of a zero-copy one.
    pub(crate) copies: bool,
    /// Whether opening may wait after all, for another process to release a lease.
    pub(crate) waits_to_open: bool,
}

/// An operation on the heap. It does not move, and no Rust reference to it exists while the kernel may write to it.
pub(crate) struct Parked(ptr::NonNull<Operation>);

// SAFETY: a Parked owns its Operation, which is Send.
unsafe impl Send for Parked {}

impl Parked {
    pub(crate) fn new(op: Op) -> Parked {
        let operation = Operation {
            op,
            copies: false,
            waits_to_open: false,
        };
        // SAFETY: a Box's pointer is never null.
        Parked(unsafe { ptr::NonNull::new_unchecked(Box::into_raw(Box::new(operation))) })
    }

    /// The operation. Must not be called while the kernel may write to it.
    pub(crate) fn get_mut(&mut self) -> &mut Operation {
        // SAFETY: the pointer came from a Box that this Parked owns. The backends call this only before the operation
        // is submitted and after its last completion (or in between for a zero-copy send, whose bytes the kernel only
        // reads).
        unsafe { self.0.as_mut() }
    }

    /// The user's part, to release its file.
    fn op_in_flight(&mut self) -> &mut Op {
        // SAFETY: the pointer came from a Box that this Parked owns. The kernel may write meanwhile to what `op` points
        // to, but not to `op` itself.
        unsafe { &mut (*self.0.as_ptr()).op }
    }

    /// Releases the socket that the operation works on. Call it only after the kernel has looked the socket up, and
    /// only if nobody will take the operation.
    pub(crate) fn release_socket(&mut self) {
        let op = self.op_in_flight();
        if op.is_on_socket()
            && let Some(fd) = op.file_mut()
        {
            fd.release();
        }
    }

    pub(crate) fn into_op(self) -> Op {
        // SAFETY: the pointer came from Box::into_raw, and `self` is forgotten, so that it is freed once.
        let operation = unsafe { Box::from_raw(self.0.as_ptr()) };
        mem::forget(self);
        operation.op
    }

    /// Leaks the memory, because the kernel may still write to it. The file is released: the kernel has a reference to
    /// it, or will never look it up.
    pub(crate) fn leak(mut self) {
        if let Some(fd) = self.op_in_flight().file_mut() {
            fd.release();
        }
        mem::forget(self);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw and nobody else frees it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Operation {
    /// The flags to open with. Only for `OpenAt`.
    pub(crate) fn open_flags(&self) -> i32 {
        let Op::OpenAt { flags, .. } = self.op else {
            return 0;
        };
        let patience = if self.waits_to_open {
            0
        } else {
            libc::O_NONBLOCK
        };
        flags | libc::O_CLOEXEC | patience
    }

    /// Whether opening failed because it would have to wait for another process to release a lease (fcntl(2)). The next
    /// try then waits.
    pub(crate) fn opens_again(&mut self, result: i32) -> bool {
        let again = matches!(self.op, Op::OpenAt { flags, .. } if flags & libc::O_NONBLOCK == 0)
            && result == -libc::EAGAIN
            && !self.waits_to_open;
        self.waits_to_open |= again;
        again
    }

    /// Sets the flags of an opened file to those that the user asked for.
    pub(crate) fn finish_opening(&self, result: i32) {
        if let Op::OpenAt { flags, .. } = self.op
            && result >= 0
            && flags & (libc::O_NONBLOCK | libc::O_PATH) == 0
        {
            sys::set_status_flags(result, flags);
        }
    }

    /// Gives up the descriptor to close, which the kernel closes by its number. Only for `Close`, once.
    pub(crate) fn hand_over(&mut self) -> Option<RawFd> {
        match &mut self.op {
            Op::Close { fd } => fd.take().map(IntoRawFd::into_raw_fd),
            _ => None,
        }
    }

    /// Does the kernel's part for a script: bytes that are read are zeroes, and a descriptor to close is closed.
    #[cfg(feature = "test-util")]
    pub(crate) fn play(&mut self) {
        let buffer = match &mut self.op {
            Op::Read { buffer, .. } => buffer,
            Op::Close { fd } => return drop(fd.take()),
            _ => return,
        };
        buffer.room_mut().fill(mem::MaybeUninit::new(0));
    }

    /// Updates the user's part with what the kernel has written, after the last completion.
    pub(crate) fn settle(&mut self, result: i32) {
        if let Op::Close { fd } = &mut self.op {
            // It is still open if the operation was cancelled early.
            drop(fd.take());
        }
        let Ok(count) = usize::try_from(result) else {
            return;
        };
        if let Op::Read { buffer, .. } = &mut self.op {
            buffer.fill(count);
        }
    }
}
