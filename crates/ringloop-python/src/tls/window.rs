//! Memory of ours, passed to a single call of one of Python's C functions as a bytes-like object.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::cell::{self, GilCell};
use crate::objects;

/// A bytes-like object over memory that somebody else owns.
///
/// Only the methods of `_ssl`'s own types get to see one. They export its buffer when they begin and release it when
/// they return, and no Python code can find it: it isn't tracked by the collector. Outside of such a call it is empty.
#[pyclass(module = "ringloop._core", frozen)]
pub(crate) struct Window {
    memory: AtomicPtr<u8>,
    len: AtomicUsize,
    read_only: AtomicBool,
}

/// The window that is used again and again. Absent while it is in use: `_ssl` may call back, to code that comes here.
///
/// Each has a cache line of its own: without the GIL, threads are spread over several.
#[repr(align(128))]
struct Spare(GilCell<Option<Py<Window>>>);

const SPARES_MAX: usize = if cfg!(Py_GIL_DISABLED) { 16 } else { 1 };

static SPARES: [Spare; SPARES_MAX] = [const { Spare(GilCell::new(None)) }; SPARES_MAX];

#[pymethods]
impl Window {
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let memory = this.memory.load(Ordering::Relaxed);
        if memory.is_null() {
            return Err(objects::error::<PyBufferError>(
                slf.py(),
                "the window is shut",
            ));
        }
        // SAFETY: the interpreter passes a valid view; memory and length belong together, as `show` has set them.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                memory.cast(),
                this.len.load(Ordering::Relaxed) as ffi::Py_ssize_t,
                c_int::from(this.read_only.load(Ordering::Relaxed)),
                flags,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

impl Window {
    /// Shows `memory` to `body`.
    ///
    /// # Safety
    /// The memory is valid for reading, and unless `read_only` for writing, until `body` returns, also while the GIL is
    /// released; and `body` shows the window only to C functions that are done with it when they return.
    unsafe fn show<'py, R>(
        py: Python<'py>,
        memory: *mut u8,
        len: usize,
        read_only: bool,
        body: impl FnOnce(&Bound<'py, Self>) -> PyResult<R>,
    ) -> PyResult<R> {
        let spare = &cell::of_this_thread(&SPARES).0;
        let window = match spare.replace(py, None) {
            Some(window) => window.into_bound(py),
            None => Bound::new(
                py,
                Self {
                    memory: AtomicPtr::new(ptr::null_mut()),
                    len: AtomicUsize::new(0),
                    read_only: true.into(),
                },
            )?,
        };
        let this = window.get();
        this.memory.store(memory, Ordering::Relaxed);
        this.len.store(len, Ordering::Relaxed);
        this.read_only.store(read_only, Ordering::Relaxed);
        let result = body(&window);
        this.memory.store(ptr::null_mut(), Ordering::Relaxed);
        this.len.store(0, Ordering::Relaxed);
        drop(spare.replace(py, Some(window.unbind())));
        result
    }

    /// Shows bytes to a C function that reads them.
    ///
    /// # Safety
    /// `body` shows the window only to C functions that are done with it when they return.
    pub(super) unsafe fn on_bytes<'py, R>(
        py: Python<'py>,
        bytes: &[u8],
        body: impl FnOnce(&Bound<'py, Self>) -> PyResult<R>,
    ) -> PyResult<R> {
        // SAFETY: the slice can be read until the call is over, and the window is read-only. `body` shows it only to C
        // functions that are done with it when they return, which is the function's contract.
        unsafe { Self::show(py, bytes.as_ptr().cast_mut(), bytes.len(), true, body) }
    }

    /// Shows memory to a C function that writes to it.
    ///
    /// # Safety
    /// As for `show`, with `len` bytes for writing.
    pub(super) unsafe fn on_memory<'py, R>(
        py: Python<'py>,
        memory: *mut u8,
        len: usize,
        body: impl FnOnce(&Bound<'py, Self>) -> PyResult<R>,
    ) -> PyResult<R> {
        // SAFETY: `memory` is valid for `len` bytes until `body` returns, and `body` shows the window only to C
        // functions that are done with it when they return, which is the function's contract.
        unsafe { Self::show(py, memory, len, false, body) }
    }
}
