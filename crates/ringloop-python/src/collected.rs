//! All that a stream has until its end, collected piece by piece.
//!
//! Most of what collecting much data costs is memory that is touched for the first time: a page fault for every 4 KB.
//! So the pieces are copied, while the cache still has them, to where they stay: a `bytes` object with room for more,
//! which asks for huge pages, as NumPy's arrays do. Memory that nobody has touched is only addresses, and growing moves
//! nothing but these (mremap(2), by which the C library grows large blocks). In the end the rest is given back.

#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ptr::NonNull;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cell::GilCell;
use crate::objects;

/// The size of a huge page on x86-64, and on AArch64 with pages of 4 KB. Elsewhere the kernel ignores the advice.
const HUGE_PAGE: usize = 2 << 20;
/// The size of a page, or a part of it where pages are larger: the kernel then refuses the advice.
const PAGE: usize = 4096;
/// The C library maps each block of this size by itself, so that growing it moves no content (`DEFAULT_MMAP_THRESHOLD_MAX`
/// of glibc).
const MAPPED: usize = 32 << 20;
/// From this size on, there is room for `MAPPED` bytes more, unless addresses are scarce.
const MAPPED_FROM: usize = 1 << 20;
/// The size of a `bytes` object besides its content: its header, and the final NUL.
const OVERHEAD: usize = offset_of!(ffi::PyBytesObject, ob_sval) + 1;

/// Collects `bytes`.
#[pyclass(module = "ringloop._core", frozen)]
#[derive(Default)]
pub(crate) struct Collected {
    pieces: GilCell<Pieces>,
}

#[derive(Default)]
struct Pieces {
    /// The only piece so far: if it remains that, it is the result.
    first: Option<Py<PyBytes>>,
    room: Option<Room>,
}

/// A `bytes` object that nobody else has, filled from the beginning.
struct Room {
    object: NonNull<ffi::PyBytesObject>,
    capacity: usize,
    len: usize,
}

// SAFETY: only touched under the GIL.
unsafe impl Send for Room {}

impl Room {
    fn new(py: Python<'_>, capacity: usize) -> PyResult<Self> {
        let size = ffi::Py_ssize_t::try_from(capacity).unwrap_or(ffi::Py_ssize_t::MAX);
        // SAFETY: the GIL is held; the result is a new object or null with an exception set.
        let object = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), size) };
        let object = NonNull::new(object.cast()).ok_or_else(|| PyErr::fetch(py))?;
        Ok(Self {
            object,
            capacity,
            len: 0,
        })
    }

    fn memory(&self) -> *mut u8 {
        // SAFETY: the object is alive; its content begins at `ob_sval`.
        unsafe { (&raw mut (*self.object.as_ptr()).ob_sval).cast() }
    }

    /// Gives the object another capacity, at least its length. False if there is no memory.
    fn resize(&mut self, capacity: usize) -> bool {
        let Some(size) = capacity.checked_add(OVERHEAD) else {
            return false;
        };
        // SAFETY: the GIL is held. Only we refer to the object, which no collector tracks; a block that can't be resized
        // stays as it is.
        let object = unsafe { ffi::PyObject_Realloc(self.object.as_ptr().cast(), size) };
        let Some(object) = NonNull::new(object.cast()) else {
            return false;
        };
        self.object = object;
        self.capacity = capacity;
        true
    }

    /// Makes room for `count` more bytes. False if there is no memory.
    fn reserve(&mut self, count: usize) -> bool {
        let Some(needed) = self.len.checked_add(count) else {
            return false;
        };
        if needed <= self.capacity {
            return true;
        }
        // Where memory is limited, a little more has to do.
        let ample = if needed < MAPPED_FROM {
            4 * needed
        } else if are_addresses_limited() {
            needed.saturating_mul(2)
        } else {
            MAPPED.max(needed.saturating_mul(2))
        };
        let grown = [ample, needed.saturating_add(needed / 8), needed]
            .into_iter()
            .any(|capacity| self.resize(capacity));
        if grown && self.capacity >= 2 * HUGE_PAGE {
            advise(self.memory(), self.capacity);
        }
        grown
    }

    /// Appends to the content. False if there is no memory.
    fn append(&mut self, bytes: &[u8]) -> bool {
        if !self.reserve(bytes.len()) {
            return false;
        }
        // SAFETY: there is room for these behind the first `len` bytes, and nobody else has this memory.
        unsafe {
            let end = self.memory().add(self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
        }
        self.len += bytes.len();
        true
    }

    /// The object, with its content for good.
    fn finish(mut self, py: Python<'_>) -> Bound<'_, PyBytes> {
        // If that fails, the object merely takes more memory than it needs.
        let len = self.len;
        self.resize(len);
        let object = self.object.as_ptr();
        std::mem::forget(self);
        // SAFETY: the GIL is held and the object is ours alone, so it may still change. It gets its length and the final
        // NUL that every `bytes` object has; its hash was never asked for.
        unsafe {
            (*object).ob_base.ob_size = len as ffi::Py_ssize_t;
            *(&raw mut (*object).ob_sval).cast::<u8>().add(len) = 0;
            Bound::from_owned_ptr(py, object.cast()).cast_into_unchecked()
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: every user of this module holds the GIL, and this reference is ours.
        unsafe { ffi::Py_DECREF(self.object.as_ptr().cast()) };
    }
}

/// Whether the address space is limited (`RLIMIT_AS`). Memory that is reserved, and not used, counts against that limit.
fn are_addresses_limited() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the result is written to a variable of the right type.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

/// Asks for huge pages. For all of the block, as far as pages go: one that is mapped by itself then remains one mapping,
/// and the kernel grows no others.
fn advise(memory: *mut u8, len: usize) {
    let start = memory as usize & !(PAGE - 1);
    let end = (memory as usize + len).next_multiple_of(PAGE);
    // SAFETY: the pages are those of the caller's memory. What else is in the first and the last one stays what it is, too:
    // this changes no content. Failure costs only time.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
}

impl Collected {
    /// Adds a piece. What was collected is incomplete if there is no memory for it.
    pub(crate) fn add(&self, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        let py = data.py();
        // All empty `bytes` are one object, which must not be filled.
        if data.as_bytes().is_empty() {
            return Ok(());
        }
        let (first, mut room) = {
            let mut pieces = self.pieces.get_mut(py);
            if pieces.room.is_none() && pieces.first.is_none() {
                pieces.first = Some(data.clone().unbind());
                return Ok(());
            }
            (pieces.first.take(), pieces.room.take())
        };
        let bytes = data.as_bytes();
        let mut has_memory = true;
        if let Some(first) = first {
            let first = first.bind(py).as_bytes();
            let mut new = Room::new(py, 4 * (first.len() + bytes.len()))?;
            has_memory = new.append(first);
            room = Some(new);
        }
        has_memory = has_memory && room.as_mut().is_some_and(|room| room.append(bytes));
        self.pieces.get_mut(py).room = room;
        if has_memory {
            return Ok(());
        }
        Err(objects::error::<PyMemoryError>(py, ""))
    }

    /// Everything that was added; afterwards nothing is left.
    pub(crate) fn join<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let Pieces { first, room } = self.pieces.replace(py, Pieces::default());
        match (first, room) {
            (Some(first), _) => Ok(first.into_bound(py)),
            (None, Some(room)) => Ok(room.finish(py)),
            (None, None) => objects::bytes(py, b""),
        }
    }
}
