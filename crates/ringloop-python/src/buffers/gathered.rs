//! A `bytes` object that is received in several steps.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{receive, resize_bytes};

/// A `bytes` object with a part of its content. Until it is finished nobody else refers to it.
pub(crate) struct Gathered {
    /// Owned, and the only reference.
    object: NonNull<ffi::PyObject>,
    len: usize,
    capacity: usize,
    /// Bytes that somebody waits for.
    wanted: usize,
}

// SAFETY: only touched by attached threads, and by one at a time: it is within a cell, or a thread's own.
unsafe impl Send for Gathered {}

impl Gathered {
    /// Room for `capacity` bytes, at least two. `MemoryError` if there is no memory for it.
    pub(crate) fn new(py: Python<'_>, capacity: usize) -> PyResult<Self> {
        // The interpreter may share objects that are shorter.
        debug_assert!(capacity > 1);
        // SAFETY: the GIL is held; the result is a new object or null with an exception set.
        let object = unsafe {
            ffi::PyBytes_FromStringAndSize(std::ptr::null(), capacity as ffi::Py_ssize_t)
        };
        let object = NonNull::new(object).ok_or_else(|| PyErr::fetch(py))?;
        Ok(Self {
            object,
            len: 0,
            capacity,
            wanted: capacity,
        })
    }

    /// The bytes that are there.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the object is alive, nobody else refers to it, and its first `len` bytes were written.
        unsafe {
            let start = ffi::PyBytes_AS_STRING(self.object.as_ptr()).cast::<u8>();
            std::slice::from_raw_parts(start, self.len)
        }
    }

    pub(crate) fn room(&self) -> usize {
        self.capacity - self.len
    }

    /// From now on, `count` bytes are enough.
    pub(crate) fn want(&mut self, count: usize) {
        self.wanted = count;
    }

    /// Whether there is something, and no reason to wait for more of it.
    pub(crate) fn is_enough(&self) -> bool {
        // There may be less room than what another thread of the application wants.
        self.len > 0 && (self.len >= self.wanted || self.room() == 0)
    }

    /// Where the next byte goes: there is memory for `room` bytes.
    fn end(&mut self) -> *mut u8 {
        // SAFETY: the object is alive and has `capacity` bytes, which are at least `len`.
        unsafe {
            ffi::PyBytes_AS_STRING(self.object.as_ptr())
                .cast::<u8>()
                .cast_mut()
                .add(self.len)
        }
    }

    /// Receives what the socket has, as far as there is room.
    pub(crate) fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        let (end, room) = (self.end(), self.room());
        // SAFETY: there is memory for `room` bytes, and nobody else refers to the object.
        let count = unsafe { receive(fd, end, room, None) }?;
        self.len += count;
        Ok(count)
    }

    /// Adds bytes, as far as there is room. Returns the rest.
    pub(crate) fn push<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(self.room()));
        let end = self.end();
        // SAFETY: there is memory for `room` bytes, and `taken` is no longer. It is not in this object, to which nobody
        // else refers.
        unsafe { std::ptr::copy_nonoverlapping(taken.as_ptr(), end, taken.len()) };
        self.len += taken.len();
        rest
    }

    /// The object, with as many bytes as are there. `MemoryError` if it can't be shortened.
    pub(crate) fn finish(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let mut object = self.object.as_ptr();
        let (len, capacity) = (self.len, self.capacity);
        std::mem::forget(self);
        // SAFETY: the GIL is held. The reference was that of `self`, which is forgotten, and nobody else has one.
        // Shortening leaves null (with an exception set) or an object of the new length.
        unsafe {
            if len < capacity {
                resize_bytes(&raw mut object, len);
            }
            Bound::from_owned_ptr_or_err(py, object).map(|object| object.cast_into_unchecked())
        }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        // SAFETY: every user of this module holds the GIL, and this reference is ours.
        unsafe { ffi::Py_DECREF(self.object.as_ptr()) };
    }
}
