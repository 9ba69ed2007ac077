//! Feeding `asyncio.StreamReader` without a Python frame per packet.
//!
//! When a connection's protocol is exactly asyncio's `StreamReaderProtocol` and its reader exactly asyncio's
//! `StreamReader`, the bytes go from the receive buffer straight into the reader's `bytearray`. What `data_received`
//! and `feed_data` do is done here in the same order; a subclass, or a method replaced on the instance, gets the
//! ordinary call.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::PyAssertionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyDict, PyType};

use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{self, Fields};

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

/// The class that `streams` gives to readers, derived from asyncio's.
pub(crate) static NATIVE_READER: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Whether readers of this class are fed directly.
fn is_plain(py: Python<'_>, class: &Bound<'_, PyType>, asyncios: &Bound<'_, PyType>) -> bool {
    class.is(asyncios) || NATIVE_READER.get(py).is_some_and(|native| class.is(native))
}

/// Delivers `bytes` (not empty) as `protocol.data_received` would.
pub(crate) fn feed(protocol: &Bound<'_, PyAny>, bytes: &[u8]) -> PyResult<()> {
    static READER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = protocol.py();
    let class = support::class(py, &READER, "asyncio.streams", "StreamReader")?;
    let protocol_fields = Fields::of(protocol)?;
    let reference = protocol_fields.get(intern!(py, "_stream_reader_wr"))?;
    if reference.is_none() {
        return Ok(());
    }
    let reader = reference.call0()?;
    if reader.is_none() {
        return Ok(());
    }
    let receive = || {
        protocol
            .call_method1(intern!(py, "data_received"), (New(bytes),))
            .map(drop)
    };
    // Another reader may have no dictionary, or other attributes.
    if !is_plain(py, &reader.get_type(), class) {
        return receive();
    }
    let fields = Fields::of(&reader)?;
    let buffer = fields.get(intern!(py, "_buffer"))?;
    // asyncio takes any number for a limit, for example infinity.
    let limit = fields.get(intern!(py, "_limit"))?.extract::<usize>();
    let plain = READER_METHODS.are_in_place(class)?
        && PROTOCOL_METHODS.are_in_place(&protocol.get_type())?
        && fields.find(intern!(py, "feed_data"))?.is_none()
        && protocol_fields
            .find(intern!(py, "data_received"))?
            .is_none();
    let (true, Ok(buffer), Ok(limit)) = (plain, buffer.cast_exact::<PyByteArray>(), limit) else {
        return receive();
    };
    if fields.is(intern!(py, "_eof"))? {
        return Err(objects::error::<PyAssertionError>(
            py,
            "feed_data after feed_eof",
        ));
    }
    append(buffer, bytes)?;
    let waiter = fields.get(intern!(py, "_waiter"))?;
    if !waiter.is_none() {
        fields.set(intern!(py, "_waiter"), py.None().bind(py))?;
        if !support::ask(&waiter, intern!(py, "cancelled"))? {
            support::call_method1(&waiter, intern!(py, "set_result"), py.None().as_ptr())?;
        }
    }
    if buffer.len() <= limit.saturating_mul(2) {
        return Ok(());
    }
    let transport = fields.get(intern!(py, "_transport"))?;
    if !transport.is_none() && !fields.is(intern!(py, "_paused"))? {
        transport.call_method0(intern!(py, "pause_reading"))?;
        fields.set(intern!(py, "_paused"), PyBool::new(py, true).as_any())?;
    }
    Ok(())
}

/// Methods of a class of asyncio's that native code stands for.
pub(crate) struct Originals<const N: usize> {
    names: [&'static str; N],
    /// asyncio's own, from the first time that all of them were in place.
    functions: PyOnceLock<[Py<PyAny>; N]>,
    /// The version of the class (`tp_version_tag`) that was looked at last, and in the lowest bit whether all were in
    /// place; 0 for none. Whoever changes a class, or one of its bases, gives it another version.
    checked: AtomicU64,
}

impl<const N: usize> Originals<N> {
    pub(crate) const fn new(names: [&'static str; N]) -> Self {
        Self {
            names,
            functions: PyOnceLock::new(),
            checked: AtomicU64::new(0),
        }
    }

    /// Whether the class still has all of them. The same `class` is to be given each time.
    #[inline]
    pub(crate) fn are_in_place(&self, class: &Bound<'_, PyType>) -> PyResult<bool> {
        let version = u64::from(version_of(class));
        let checked = self.checked.load(Relaxed);
        if version != 0 && version == checked >> 1 {
            return Ok(checked & 1 == 1);
        }
        self.compare(class)
    }

    #[cold]
    fn compare(&self, class: &Bound<'_, PyType>) -> PyResult<bool> {
        let py = class.py();
        let mut found = Vec::with_capacity(N);
        for name in self.names {
            found.push(class.getattr(New(name).into_pyobject(py)?)?.unbind());
        }
        let found: [Py<PyAny>; N] = found.try_into().map_err(|_| {
            objects::error::<PyAssertionError>(py, "as many methods as there are names")
        })?;
        let same = if let Some(originals) = self.functions.get(py) {
            originals.iter().zip(&found).all(|(it, now)| it.is(now))
        } else {
            let streams = py.import(New("asyncio.streams"))?.dict();
            let are_own = found.iter().all(|it| is_defined_in(it.bind(py), &streams));
            are_own && self.functions.set(py, found).is_ok()
        };
        let version = u64::from(version_of(class));
        self.checked.store(version << 1 | u64::from(same), Relaxed);
        Ok(same)
    }
}

/// Whether this is a function of a module. One that the user has put in the place of asyncio's is not, even if it was
/// there before we were imported.
fn is_defined_in(method: &Bound<'_, PyAny>, module: &Bound<'_, PyDict>) -> bool {
    // SAFETY: the GIL is held, and the globals are asked for after the check of the type.
    unsafe {
        ffi::PyFunction_Check(method.as_ptr()) != 0
            && ffi::PyFunction_GetGlobals(method.as_ptr()) == module.as_ptr()
    }
}

/// The version of a class, which changes with it; 0 while it has none.
#[inline]
fn version_of(class: &Bound<'_, PyType>) -> u32 {
    // SAFETY: the GIL is held and the class is alive.
    unsafe { (*class.as_type_ptr()).tp_version_tag }
}

static READER_METHODS: Originals<1> = Originals::new(["feed_data"]);
static PROTOCOL_METHODS: Originals<1> = Originals::new(["data_received"]);

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
