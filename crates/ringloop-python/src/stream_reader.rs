//! Feeding `asyncio.StreamReader` without a Python frame per packet.
//!
//! When a connection's protocol is exactly asyncio's `StreamReaderProtocol` and its reader exactly asyncio's
//! `StreamReader`, the bytes go from the receive buffer straight into the reader's `bytearray`. What `data_received`
//! and `feed_data` do is done here in the same order; a subclass, or a method replaced on the instance, gets the
//! ordinary call.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::exceptions::{PyAssertionError, PyAttributeError, PyNotImplementedError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyInt, PyString, PyType, PyWeakrefMethods, PyWeakrefReference,
};

use crate::fields::{Attribute, Fields, attribute};
use crate::names::intern;
use crate::native_type;
use crate::objects::{self, New};
use crate::originals::Originals;
use crate::support::{self, guard};
use crate::waiter;

/// Whether this is a protocol whose reader can be fed.
pub(crate) fn is_fed(protocol: &Bound<'_, PyAny>) -> PyResult<bool> {
    static PROTOCOL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = protocol.py();
    let fed = PROTOCOL.get_or_try_init(py, || {
        support::python(py)?
            .getattr(intern!(py, "FED_PROTOCOL"))
            .map(Bound::unbind)
    })?;
    Ok(protocol.get_type().is(fed) || is_server_protocol(protocol))
}

/// The classes that ringloop gives to readers, derived from asyncio's.
pub(crate) struct Readers {
    /// Takes the place of asyncio's in a reader that exists.
    adopted: Py<PyType>,
    /// Of a server's connections, with slots.
    server: Py<PyType>,
}

static READERS: PyOnceLock<Readers> = PyOnceLock::new();

/// The class of the protocols of a server's connections, derived from asyncio's, with slots.
static SERVER_PROTOCOL: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Makes these classes known.
pub(crate) fn set_classes(
    reader: &Bound<'_, PyType>,
    server_reader: &Bound<'_, PyType>,
    server_protocol: &Bound<'_, PyType>,
) -> PyResult<()> {
    let py = reader.py();
    for class in [reader, server_reader] {
        add_attributes(class)?;
    }
    READERS.get_or_init(py, || Readers {
        adopted: reader.clone().unbind(),
        server: server_reader.clone().unbind(),
    });
    SERVER_PROTOCOL.get_or_init(py, || server_protocol.clone().unbind());
    Ok(())
}

/// Whether a reader has one of our classes.
pub(crate) fn is_native(reader: &Bound<'_, PyAny>) -> bool {
    let class = reader.get_type();
    let readers = READERS.get(reader.py());
    readers.is_some_and(|it| class.is(&it.server) || class.is(&it.adopted))
}

/// Whether a protocol has our class.
pub(crate) fn is_server_protocol(protocol: &Bound<'_, PyAny>) -> bool {
    let class = SERVER_PROTOCOL.get(protocol.py());
    class.is_some_and(|class| protocol.get_type().is(class))
}

/// asyncio's class of protocols.
pub(crate) fn protocol_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    support::class(py, &CLASS, "asyncio.streams", "StreamReaderProtocol")
}

/// asyncio's attributes of a reader.
pub(crate) static LIMIT: Attribute = attribute!("_limit");
pub(crate) static LOOP: Attribute = attribute!("_loop");
pub(crate) static BUFFER: Attribute = attribute!("_buffer");
pub(crate) static EOF: Attribute = attribute!("_eof");
pub(crate) static WAITER: Attribute = attribute!("_waiter");
pub(crate) static EXCEPTION: Attribute = attribute!("_exception");
pub(crate) static PAUSED: Attribute = attribute!("_paused");
pub(crate) static TRANSPORT: Attribute = attribute!("_transport");
/// asyncio's attribute of a protocol: a weak reference to its reader.
pub(crate) static REFERENCE: Attribute = attribute!("_stream_reader_wr");

/// How many attributes `StreamReader.__init__` gives to a reader; 0 while that is not known.
pub(crate) static OWN_ATTRIBUTES: AtomicUsize = AtomicUsize::new(0);

/// Whether the user has put something in the place of a method of this reader. asyncio's methods need each of its own
/// attributes, so a reader that has as many has no others.
#[inline]
pub(crate) fn is_replaced<'py>(
    fields: &Fields<'_, 'py>,
    name: &Bound<'py, PyString>,
) -> PyResult<bool> {
    Ok(fields.has_others(OWN_ATTRIBUTES.load(Relaxed))? && fields.find(name)?.is_some())
}

/// A reader's limit; one that is beyond any length is the greatest number. None for what asyncio takes besides integers,
/// for example infinity.
#[inline]
pub(crate) fn limit_of(fields: &Fields<'_, '_>) -> PyResult<Option<usize>> {
    let limit = fields.get(&LIMIT)?;
    match limit.extract() {
        Ok(limit) => Ok(Some(limit)),
        Err(_) if limit.is_instance_of::<PyInt>() && limit.gt(0)? => Ok(Some(usize::MAX)),
        Err(_) => Ok(None),
    }
}

/// The bytes that a reader has received, all of them in its bytearray; None if the user has put something else there.
#[inline]
pub(crate) fn buffer_of<'py>(
    fields: &Fields<'_, 'py>,
    waiter: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    settle(fields, waiter)?;
    Ok(fields.get(&BUFFER)?.cast_into_exact().ok())
}

/// Puts the bytes that a waiter carries into the buffer. It was empty when they came.
#[inline]
pub(crate) fn settle<'py>(fields: &Fields<'_, 'py>, waiter: &Bound<'py, PyAny>) -> PyResult<()> {
    if waiter::has_bytes(waiter) {
        put_back(fields, waiter)
    } else {
        Ok(())
    }
}

#[cold]
fn put_back<'py>(fields: &Fields<'_, 'py>, waiter: &Bound<'py, PyAny>) -> PyResult<()> {
    let buffer = fields.get(&BUFFER)?;
    if let Ok(buffer) = buffer.cast_exact::<PyByteArray>() {
        // In one section of both, so that the read that waits finds the bytes in one of the two places at any time.
        return waiter::in_section_with(waiter, buffer, || {
            let Some(bytes) = waiter::take_bytes(waiter) else {
                return Ok(());
            };
            let appended = append(buffer, bytes.cast::<PyBytes>()?.as_bytes());
            if appended.is_err() {
                waiter::give_back(waiter, bytes);
            }
            appended.map(drop)
        });
    }
    match waiter::take_bytes(waiter) {
        Some(bytes) => buffer
            .call_method1(intern!(bytes.py(), "extend"), (bytes,))
            .map(drop),
        None => Ok(()),
    }
}

/// Runs `body`, which runs no Python code, with what is in a bytearray, which doesn't change meanwhile.
#[inline]
pub(crate) fn with_bytes<R>(buffer: &Bound<'_, PyByteArray>, body: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: the GIL is held, and no Python code runs while the slice is used. Without the GIL, whoever changes a
    // bytearray is in a critical section of it.
    with_critical_section(buffer, || body(unsafe { buffer.as_bytes() }))
}

/// The object in whose critical section a reader, its waiter and the calls that read are used: the loop of the reader. It
/// is the reader itself where the user has given it none.
pub(crate) fn section<'py>(
    fields: &Fields<'_, 'py>,
    reader: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(fields.own(&LOOP)?.unwrap_or_else(|| reader.clone()))
}

/// Runs `body` in this critical section.
#[inline]
pub(crate) fn in_section<'py, R>(
    fields: &Fields<'_, 'py>,
    reader: &Bound<'py, PyAny>,
    body: impl FnOnce() -> PyResult<R>,
) -> PyResult<R> {
    if cfg!(not(Py_GIL_DISABLED)) {
        return body();
    }
    with_critical_section(&section(fields, reader)?, body)
}

/// Takes the first bytes out of a buffer.
pub(crate) fn take<'py>(
    buffer: &Bound<'py, PyByteArray>,
    count: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = buffer.py();
    // SAFETY: the GIL is held, the array is at least this long, and no Python code runs while its bytes are copied. Without
    // the GIL, whoever changes a bytearray is in a critical section of it; one that has become shorter is a panic.
    with_critical_section(buffer, || unsafe {
        let first = objects::bytes(py, &buffer.as_bytes()[..count])?;
        let status = if count == buffer.len() {
            ffi::PyByteArray_Resize(buffer.as_ptr(), 0)
        } else {
            ffi::PySequence_DelSlice(buffer.as_ptr(), 0, count as ffi::Py_ssize_t)
        };
        match status {
            0 => Ok(first),
            _ => Err(PyErr::fetch(py)),
        }
    })
}

/// Sets the waiter of a reader to None, as far as everybody else sees.
#[inline]
pub(crate) fn unlist_waiter<'py>(
    fields: &Fields<'_, 'py>,
    waiter: &Bound<'py, PyAny>,
) -> PyResult<()> {
    if waiter::unlist(waiter) {
        return Ok(());
    }
    fields.set(&WAITER, waiter.py().None().bind(waiter.py()))
}

/// An attribute of a native reader, as asyncio's own methods and the user see it.
#[derive(Clone, Copy)]
enum Shown {
    /// All that was received is in it.
    Buffer,
    /// None while nothing waits.
    Waiter,
}

/// The error for an attribute of a reader that isn't there.
#[cold]
fn missing(py: Python<'_>, name: &str) -> PyErr {
    let text = format!("'StreamReader' object has no attribute '{name}'");
    objects::error::<PyAttributeError>(py, &text)
}

/// Gets an attribute of a reader.
fn shown(reader: *mut ffi::PyObject, which: Shown) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter, with the GIL, for a live reader of our class.
        let reader = unsafe { Bound::from_borrowed_ptr(py, reader) };
        let fields = Fields::of(&reader);
        in_section(&fields, &reader, || {
            let waiter = fields.own(&WAITER)?;
            let (name, found) = match which {
                Shown::Buffer => {
                    if let Some(waiter) = &waiter {
                        settle(&fields, waiter)?;
                        waiter::want_other(waiter);
                    }
                    ("_buffer", fields.own(&BUFFER)?)
                }
                Shown::Waiter => {
                    let shown = waiter.map(|waiter| {
                        if waiter::is_listed(&waiter) {
                            waiter
                        } else {
                            py.None().into_bound(py)
                        }
                    });
                    ("_waiter", shown)
                }
            };
            found.ok_or_else(|| missing(py, name))
        })
    })
}

/// Sets an attribute of a reader; null deletes it.
fn set_shown(reader: *mut ffi::PyObject, value: *mut ffi::PyObject, which: Shown) -> c_int {
    let done = guard(|py| {
        // SAFETY: called by the interpreter, with the GIL, for a live reader of our class.
        let (reader, value) = unsafe {
            (
                Bound::from_borrowed_ptr(py, reader),
                Bound::from_borrowed_ptr_or_opt(py, value),
            )
        };
        let fields = Fields::of(&reader);
        in_section(&fields, &reader, || {
            let (attribute, name) = match which {
                Shown::Buffer => (&BUFFER, "_buffer"),
                Shown::Waiter => (&WAITER, "_waiter"),
            };
            let waiter = fields.own(&WAITER)?;
            if let Some(waiter) = waiter {
                if matches!(which, Shown::Buffer) {
                    drop(waiter::take_bytes(&waiter));
                    waiter::want_other(&waiter);
                } else if value.as_ref().is_some_and(Bound::is_none) {
                    unlist_waiter(&fields, &waiter)?;
                    return Ok(waiter);
                } else {
                    settle(&fields, &waiter)?;
                }
            }
            match value {
                Some(value) => fields.set(attribute, &value)?,
                None if fields.delete(attribute)? => {}
                None => return Err(missing(py, name)),
            }
            Ok(reader.clone())
        })
    });
    if done.is_null() {
        return -1;
    }
    // SAFETY: the reference is ours, and the GIL is held.
    unsafe { ffi::Py_DECREF(done) };
    0
}

macro_rules! shown {
    ($($which:ident $get:ident $set:ident)*) => { $(
        unsafe extern "C" fn $get(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
            shown(object, Shown::$which)
        }
        unsafe extern "C" fn $set(
            object: *mut ffi::PyObject,
            value: *mut ffi::PyObject,
            _: *mut c_void,
        ) -> c_int {
            set_shown(object, value, Shown::$which)
        }
    )* };
}

shown! {
    Buffer get_buffer set_buffer
    Waiter get_waiter set_waiter
}

/// Gives the native class of readers what it shows for the attributes that native code uses in a way of its own.
fn add_attributes(class: &Bound<'_, PyType>) -> PyResult<()> {
    let all = [
        ffi::PyGetSetDef {
            set: Some(set_buffer),
            ..native_type::attribute(c"_buffer", get_buffer)
        },
        ffi::PyGetSetDef {
            set: Some(set_waiter),
            ..native_type::attribute(c"_waiter", get_waiter)
        },
    ];
    for definition in Box::leak(Box::new(all)) {
        // SAFETY: the GIL is held; the definitions live for ever, and their names are C strings.
        unsafe {
            let descriptor = ffi::PyDescr_NewGetSet(class.as_type_ptr(), definition);
            let descriptor = Bound::from_owned_ptr_or_err(class.py(), descriptor)?;
            let name = CStr::from_ptr(definition.name).to_string_lossy();
            class.setattr(New(&*name), descriptor)?;
        }
    }
    Ok(())
}

/// The reader that a protocol feeds, if it still has one.
fn reader_of<'py>(fields: &Fields<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let reference = fields.get(&REFERENCE)?;
    if let Ok(reference) = reference.cast::<PyWeakrefReference>() {
        return Ok(reference.upgrade());
    }
    if reference.is_none() {
        return Ok(None);
    }
    let reader = reference.call0()?;
    Ok((!reader.is_none()).then_some(reader))
}

/// Up to how many bytes a read waits for, if the `bytes` object that has them is what it returns; 0 if not.
pub(crate) fn room(protocol: &Bound<'_, PyAny>) -> PyResult<usize> {
    let Some(reader) = reader_of(&Fields::of(protocol))? else {
        return Ok(0);
    };
    if !is_native(&reader) {
        return Ok(0);
    }
    let waiter = Fields::of(&reader).get(&WAITER)?;
    Ok(if waiter::is_one(&waiter) {
        waiter::room(&waiter)
    } else {
        0
    })
}

/// Delivers `bytes` (not empty) as `protocol.data_received` would. `object` is what they are in, if they need not be
/// copied.
pub(crate) fn feed<'py>(
    protocol: &Bound<'py, PyAny>,
    bytes: &[u8],
    object: Option<&Bound<'py, PyBytes>>,
) -> PyResult<()> {
    static READER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = protocol.py();
    let protocol_fields = Fields::of(protocol);
    let Some(reader) = reader_of(&protocol_fields)? else {
        return Ok(());
    };
    let receive = || {
        protocol
            .call_method1(intern!(py, "data_received"), (New(bytes),))
            .map(drop)
    };
    let class = support::class(py, &READER, "asyncio.streams", "StreamReader")?;
    // Another reader may have no dictionary, or other attributes.
    if !is_native(&reader) && !reader.get_type().is(class) {
        return receive();
    }
    let fields = Fields::of(&reader);
    in_section(&fields, &reader, || {
        feed_reader(
            protocol,
            &protocol_fields,
            class,
            &fields,
            bytes,
            object,
            receive,
        )
    })
}

/// The same to a reader whose class is known, in its critical section.
#[inline]
fn feed_reader<'py>(
    protocol: &Bound<'py, PyAny>,
    protocol_fields: &Fields<'_, 'py>,
    class: &Bound<'py, PyType>,
    fields: &Fields<'_, 'py>,
    bytes: &[u8],
    object: Option<&Bound<'py, PyBytes>>,
    receive: impl FnOnce() -> PyResult<()>,
) -> PyResult<()> {
    let py = protocol.py();
    let plain = has_own_feed_data(class)?
        && PROTOCOL_METHODS.are_in_place(protocol_class(py)?)?
        && !is_replaced(fields, intern!(py, "feed_data"))?
        && protocol_fields
            .find(intern!(py, "data_received"))?
            .is_none();
    if !plain {
        return receive();
    }
    let waiter = fields.get(&WAITER)?;
    if waiter::is_one(&waiter) && waiter::wake_with(&waiter, bytes, object)? {
        return Ok(());
    }
    let (Some(buffer), Some(limit)) = (buffer_of(fields, &waiter)?, limit_of(fields)?) else {
        return receive();
    };
    // Without the GIL, another wait may have begun while the bytes were put into the buffer.
    let waiter = fields.get(&WAITER)?;
    if fields.is(&EOF)? && support::has_assertions(py)? {
        return Err(objects::error::<PyAssertionError>(
            py,
            "feed_data after feed_eof",
        ));
    }
    let len = append(&buffer, bytes)?;
    if waiter::is_listed(&waiter) {
        unlist_waiter(fields, &waiter)?;
        if waiter::is_one(&waiter) {
            waiter::wake(&waiter)?;
        } else if !support::ask(&waiter, intern!(py, "cancelled"))? {
            support::call_method1(&waiter, intern!(py, "set_result"), py.None().as_ptr())?;
        }
    }
    if len <= limit.saturating_mul(2) {
        return Ok(());
    }
    let transport = fields.get(&TRANSPORT)?;
    if !transport.is_none() && !fields.is(&PAUSED)? {
        match transport.call_method0(intern!(py, "pause_reading")) {
            Ok(_) => fields.set(&PAUSED, PyBool::new(py, true).as_any())?,
            // As asyncio: it can't be paused, and nobody tries again.
            Err(error) if error.is_instance_of::<PyNotImplementedError>(py) => {
                fields.set(&TRANSPORT, py.None().bind(py))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

static READER_METHODS: Originals<1> = Originals::new("asyncio.streams", ["feed_data"]);
/// Whether asyncio's class of readers has its own `feed_data`.
pub(crate) fn has_own_feed_data(class: &Bound<'_, PyType>) -> PyResult<bool> {
    READER_METHODS.are_in_place(class)
}

static PROTOCOL_METHODS: Originals<1> = Originals::new("asyncio.streams", ["data_received"]);

/// `buffer.extend(bytes)`; returns the length.
fn append(buffer: &Bound<'_, PyByteArray>, bytes: &[u8]) -> PyResult<usize> {
    with_critical_section(buffer, || {
        let len = buffer.len();
        buffer.resize(len + bytes.len())?;
        // SAFETY: the GIL is held, the array was just made this long, and no Python code runs while the slice is used.
        // Without the GIL, whoever changes a bytearray is in a critical section of it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                ffi::PyByteArray_AS_STRING(buffer.as_ptr())
                    .cast::<u8>()
                    .add(len),
                bytes.len(),
            );
        }
        Ok(len + bytes.len())
    })
}
