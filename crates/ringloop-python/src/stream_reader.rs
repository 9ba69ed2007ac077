//! Feeding `asyncio.StreamReader` without a Python frame per packet.
//!
//! When a connection's protocol is exactly asyncio's `StreamReaderProtocol` and its reader exactly asyncio's
//! `StreamReader`, the bytes go from the receive buffer straight into the reader's `bytearray`. What `data_received`
//! and `feed_data` do is done here in the same order; a subclass, or a method replaced on the instance, gets the
//! ordinary call.

#![allow(unsafe_code)]

use pyo3::exceptions::PyAssertionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyString, PyType};

use crate::names::intern;
use crate::objects::{self, New};
use crate::support;

/// Whether this is a protocol whose reader can be fed.
pub(crate) fn is_fed(protocol: &Bound<'_, PyAny>) -> PyResult<bool> {
    static PROTOCOL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = protocol.py();
    let fed = PROTOCOL.get_or_try_init(py, || {
        support::python(py)?
            .getattr(intern!(py, "FED_PROTOCOL"))
            .map(Bound::unbind)
    })?;
    Ok(protocol.get_type().is(fed))
}

/// Delivers `bytes` (not empty) as `protocol.data_received` would.
pub(crate) fn feed(protocol: &Bound<'_, PyAny>, bytes: &[u8]) -> PyResult<()> {
    static READER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = protocol.py();
    let class = support::class(py, &READER, "asyncio.streams", "StreamReader")?;
    let reference = protocol.getattr(intern!(py, "_stream_reader_wr"))?;
    if reference.is_none() {
        return Ok(());
    }
    let reader = reference.call0()?;
    if reader.is_none() {
        return Ok(());
    }
    let buffer = reader.getattr(intern!(py, "_buffer"))?;
    let plain = reader.get_type().is(class)
        && is_method(&reader, intern!(py, "feed_data"), &FEED_DATA, class)?
        && is_method(
            protocol,
            intern!(py, "data_received"),
            &DATA_RECEIVED,
            &protocol.get_type(),
        )?;
    let (true, Ok(buffer)) = (plain, buffer.cast_exact::<PyByteArray>()) else {
        return protocol
            .call_method1(intern!(py, "data_received"), (New(bytes),))
            .map(drop);
    };
    if reader.getattr(intern!(py, "_eof"))?.is_truthy()? {
        return Err(objects::error::<PyAssertionError>(
            py,
            "feed_data after feed_eof",
        ));
    }
    append(buffer, bytes)?;
    let waiter = reader.getattr(intern!(py, "_waiter"))?;
    if !waiter.is_none() {
        reader.setattr(intern!(py, "_waiter"), py.None())?;
        if !waiter.call_method0(intern!(py, "cancelled"))?.is_truthy()? {
            waiter.call_method1(intern!(py, "set_result"), (py.None(),))?;
        }
    }
    let transport = reader.getattr(intern!(py, "_transport"))?;
    if transport.is_none() || reader.getattr(intern!(py, "_paused"))?.is_truthy()? {
        return Ok(());
    }
    let limit: usize = reader.getattr(intern!(py, "_limit"))?.extract()?;
    if buffer.len() > limit.saturating_mul(2) {
        transport.call_method0(intern!(py, "pause_reading"))?;
        reader.setattr(intern!(py, "_paused"), true)?;
    }
    Ok(())
}

// Of CPython's C API (Include/cpython/classobject.h), in every version; PyO3 doesn't declare them.
unsafe extern "C" {
    static mut PyMethod_Type: ffi::PyTypeObject;
    fn PyMethod_Function(method: *mut ffi::PyObject) -> *mut ffi::PyObject;
}

static FEED_DATA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static DATA_RECEIVED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Whether `object.name` is what the class had when it was first looked at, and not something put in its place.
fn is_method(
    object: &Bound<'_, PyAny>,
    name: &Bound<'_, PyString>,
    original: &PyOnceLock<Py<PyAny>>,
    class: &Bound<'_, PyType>,
) -> PyResult<bool> {
    let py = object.py();
    let original = original.get_or_try_init(py, || class.getattr(name).map(Bound::unbind))?;
    let method = object.getattr(name)?;
    // SAFETY: the type check comes first, and the function is borrowed from the method.
    unsafe {
        Ok(ffi::Py_TYPE(method.as_ptr()) == &raw mut PyMethod_Type
            && PyMethod_Function(method.as_ptr()) == original.as_ptr())
    }
}

/// `buffer.extend(bytes)`.
fn append(buffer: &Bound<'_, PyByteArray>, bytes: &[u8]) -> PyResult<()> {
    let len = buffer.len();
    buffer.resize(len + bytes.len())?;
    // SAFETY: the GIL is held, the array was just made this long, and no Python code runs while the slice is used.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            ffi::PyByteArray_AS_STRING(buffer.as_ptr())
                .cast::<u8>()
                .add(len),
            bytes.len(),
        );
    }
    Ok(())
}
