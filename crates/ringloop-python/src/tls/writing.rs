//! How TLS writes: the user's data is encrypted into records, and these go to the transport below.

#![allow(unsafe_code)]

use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PySlice, PyString, PyTuple, PyType};

use super::{
    Engine, Phase, SSLProtocol, Window, call_asyncio as call_asyncio_protocol, fatal_error,
    is_again, pending,
};
use crate::buffers::{self, View};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::scheduling;
use crate::support::{self, CloneRefOption, call_method1};

/// The most that one record holds: less is written together.
const RECORD_LEN_MAX: usize = 16 * 1024;

/// Sends the records that OpenSSL has made, then looks at the marks of flow control.
pub(super) fn process_outgoing(protocol: &Bound<'_, SSLProtocol>) -> PyResult<()> {
    let py = protocol.py();
    let this = protocol.get();
    let Some(engine) = this.engine(py) else {
        return call_asyncio_protocol(protocol, "_process_outgoing", ()).map(drop);
    };
    if !this.state.get(py).ssl_writing_paused && pending(engine.outgoing.bind(py))? > 0 {
        return send_all(protocol, &engine);
    }
    control_app_writing(protocol)
}

/// `process_outgoing`, where OpenSSL is known to have made something.
fn send_all(protocol: &Bound<'_, SSLProtocol>, engine: &Engine) -> PyResult<()> {
    let py = protocol.py();
    if !protocol.get().state.get(py).ssl_writing_paused {
        let records = engine.drain.bind(py).call0()?;
        if records.len()? > 0 {
            send(protocol, &records)?;
        }
    }
    control_app_writing(protocol)
}

/// Tells the protocol to pause or to go on, by asyncio's code: only where an empty buffer doesn't say that all is well.
fn control_app_writing(protocol: &Bound<'_, SSLProtocol>) -> PyResult<()> {
    let py = protocol.py();
    let this = protocol.get();
    let idle = {
        let state = this.state.get(py);
        !state.ssl_writing_paused && !state.app_writing_paused && !state.zero_marks
    };
    if idle && !this.has_backlog(py)? {
        return Ok(());
    }
    protocol
        .call_method0(intern!(py, "_control_app_writing"))
        .map(drop)
}

/// Hands records to the transport below.
fn send(protocol: &Bound<'_, SSLProtocol>, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = protocol.py();
    let transport = protocol.get().state.get(py).transport.clone_ref_opt(py);
    let transport = transport.unwrap_or_else(|| py.None());
    call_method1(transport.bind(py), intern!(py, "write"), data.as_ptr())
}

/// How far encrypting came: all of it, or as many bytes as before OpenSSL asked for more or failed.
struct Stopped {
    written: usize,
    error: Option<PyErr>,
}

impl Engine {
    /// Encrypts `bytes`. OpenSSL takes one record at a time.
    fn encrypt(&self, py: Python<'_>, bytes: &[u8]) -> Result<(), Stopped> {
        let mut written = 0;
        while written < bytes.len() {
            // SAFETY: `_SSLSocket.write` reads its buffer, and is done with it when it returns.
            let result = unsafe {
                Window::on_bytes(py, &bytes[written..], |window| {
                    self.write.bind(py).call1((window,))?.extract::<usize>()
                })
            };
            match result {
                Ok(count) => written += count,
                Err(error) => {
                    let again = is_again(py, &error);
                    let error = match again {
                        Ok(true) => None,
                        Ok(false) => Some(error),
                        Err(error) => Some(error),
                    };
                    return Err(Stopped { written, error });
                }
            }
        }
        Ok(())
    }
}

/// Keeps what could not be encrypted.
#[cold]
fn keep(protocol: &Bound<'_, SSLProtocol>, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = protocol.py();
    let size = intern!(py, "_write_buffer_size");
    protocol
        .getattr(intern!(py, "_write_backlog"))?
        .call_method1(intern!(py, "append"), (data,))?;
    let len = protocol.getattr(size)?.add(New(data.len()?))?;
    protocol.setattr(size, len)
}

/// Sends what was encrypted, as far as it came.
fn finish(
    protocol: &Bound<'_, SSLProtocol>,
    engine: &Engine,
    stopped: Option<PyErr>,
) -> PyResult<()> {
    let result = match stopped {
        Some(error) => Err(error),
        None => send_all(protocol, engine),
    };
    result.or_else(|error| fatal_error(protocol, error))
}

/// `write` of one bytes-like object, not empty.
fn write_one(
    protocol: &Bound<'_, SSLProtocol>,
    engine: &Engine,
    data: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = protocol.py();
    let outcome = if let Ok(bytes) = data.cast_exact::<PyBytes>() {
        engine.encrypt(py, bytes.as_bytes())
    } else {
        match View::new(data, ffi::PyBUF_SIMPLE) {
            Ok(view) => engine.encrypt(py, view.bytes()),
            Err(error) => {
                keep(protocol, data)?;
                return fatal_error(protocol, error);
            }
        }
    };
    let stopped = match outcome {
        Ok(()) => None,
        Err(stopped) => {
            let rest = PySlice::new(py, stopped.written as isize, isize::MAX, 1);
            keep(protocol, &data.get_item(rest)?)?;
            stopped.error
        }
    };
    finish(protocol, engine, stopped)
}

/// `writelines` of several `bytes`: small ones share a record.
fn write_several(
    protocol: &Bound<'_, SSLProtocol>,
    engine: &Engine,
    pieces: &[Bound<'_, PyBytes>],
) -> PyResult<()> {
    let py = protocol.py();
    let mut together = Vec::new();
    let mut next = 0;
    while next < pieces.len() {
        together.clear();
        let first = next;
        while let Some(piece) = pieces.get(next) {
            if !together.is_empty() && together.len() + piece.as_bytes().len() > RECORD_LEN_MAX {
                break;
            }
            if next == first && piece.as_bytes().len() >= RECORD_LEN_MAX {
                next += 1;
                break;
            }
            together.extend_from_slice(piece.as_bytes());
            next += 1;
        }
        let bytes = if together.is_empty() {
            pieces[first].as_bytes()
        } else {
            &together
        };
        if let Err(stopped) = engine.encrypt(py, bytes) {
            keep(
                protocol,
                objects::bytes(py, &bytes[stopped.written..])?.as_any(),
            )?;
            for piece in &pieces[next..] {
                keep(protocol, piece)?;
            }
            return finish(protocol, engine, stopped.error);
        }
    }
    finish(protocol, engine, None)
}

/// Protocol and engine of an app transport, if what is written now goes straight to them: asyncio's code handles every
/// other state.
fn ready<'py>(
    transport: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, SSLProtocol>, Arc<Engine>)>> {
    let py = transport.py();
    let protocol = transport.getattr(intern!(py, "_ssl_protocol"))?;
    let Ok(protocol) = protocol.cast_into::<SSLProtocol>() else {
        return Ok(None);
    };
    let this = protocol.get();
    if this.state.get(py).phase != Phase::Wrapped || this.has_backlog(py)? {
        return Ok(None);
    }
    Ok(this.engine(py).map(|engine| (protocol, engine)))
}

/// The loop, if another thread runs it. What is encrypted in two threads could be sent in another order, and be refused.
fn elsewhere<'py>(transport: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Loop>>> {
    if cfg!(not(Py_GIL_DISABLED)) {
        return Ok(None);
    }
    let event_loop = transport.getattr(intern!(transport.py(), "_loop"))?;
    let event_loop = event_loop.cast_into::<Loop>().ok();
    Ok(event_loop.filter(|it| it.get().runs_elsewhere()))
}

/// Has the loop's thread call a method of the app transport's class.
#[cold]
fn leave_to_loop<'py>(
    event_loop: &Bound<'py, Loop>,
    transport: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = transport.py();
    let class = support::class(py, &CLASS, "ringloop._tls", "SSLProtocolTransport")?;
    scheduling::post(event_loop, class, name, transport, [argument])?;
    Ok(py.None().into_bound(py))
}

/// Calls the method of asyncio's own transport.
#[cold]
fn call_asyncio<'py>(
    transport: &Bound<'py, PyAny>,
    method: &str,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = transport.py();
    let class = support::class(py, &CLASS, "asyncio.sslproto", "_SSLProtocolTransport")?;
    class.getattr(New(method))?.call1((transport, argument))
}

fn write<'py>(
    transport: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = transport.py();
    if buffers::is_bytes_like(data) && data.is_truthy()? {
        if let Some(event_loop) = elsewhere(transport)? {
            let data = buffers::unchanging(data)?;
            return leave_to_loop(&event_loop, transport, intern!(py, "write"), &data);
        }
        let Some((protocol, engine)) = ready(transport)? else {
            return call_asyncio(transport, "write", data);
        };
        write_one(&protocol, &engine, data)?;
        return Ok(py.None().into_bound(py));
    }
    call_asyncio(transport, "write", data)
}

fn writelines<'py>(
    transport: &Bound<'py, PyAny>,
    list_of_data: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = transport.py();
    if let Some(event_loop) = elsewhere(transport)? {
        let lines = buffers::all_unchanging(list_of_data)?;
        let name = intern!(py, "writelines");
        return leave_to_loop(&event_loop, transport, name, lines.as_any());
    }
    let list = if list_of_data.is_exact_instance_of::<PyTuple>()
        || list_of_data.is_exact_instance_of::<PyList>()
    {
        list_of_data
            .try_iter()?
            .map(|item| item.and_then(|item| Ok(item.cast_into_exact::<PyBytes>()?)))
            .collect::<PyResult<Vec<_>>>()
            .ok()
    } else {
        None
    };
    if let Some(pieces) = list
        && let Some((protocol, engine)) = ready(transport)?
    {
        write_several(&protocol, &engine, &pieces)?;
        return Ok(py.None().into_bound(py));
    }
    call_asyncio(transport, "writelines", list_of_data)
}

type Method = for<'py> fn(&Bound<'py, PyAny>, &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;

/// # Safety
/// As a method of Python's with one argument is called: with two live objects, and the GIL held.
unsafe fn call(
    transport: *mut ffi::PyObject,
    argument: *mut ffi::PyObject,
    method: Method,
) -> *mut ffi::PyObject {
    support::guard(|py| {
        // SAFETY: both are live while the caller's call lasts.
        let (transport, argument) = unsafe {
            (
                Bound::from_borrowed_ptr(py, transport),
                Bound::from_borrowed_ptr(py, argument),
            )
        };
        method(&transport, &argument)
    })
}

unsafe extern "C" fn write_slot(
    transport: *mut ffi::PyObject,
    data: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls it as a method with one argument: with two live objects, and the GIL held.
    unsafe { call(transport, data, write) }
}

unsafe extern "C" fn writelines_slot(
    transport: *mut ffi::PyObject,
    list_of_data: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls it as a method with one argument: with two live objects, and the GIL held.
    unsafe { call(transport, list_of_data, writelines) }
}

// Of CPython's C API (Include/descrobject.h), in every version; PyO3 doesn't declare it for all of them.
unsafe extern "C" {
    fn PyDescr_NewMethod(
        class: *mut ffi::PyTypeObject,
        method: *mut ffi::PyMethodDef,
    ) -> *mut ffi::PyObject;
}

/// Puts the native `write` and `writelines` into the app transport's class, a subclass of asyncio's: a native base
/// class is out of the question, because asyncio's has a layout of its own.
#[pyfunction]
#[pyo3(name = "_add_transport_methods")]
pub(super) fn add_transport_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    let methods = [
        ffi::PyMethodDef {
            ml_name: c"write".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer {
                PyCFunction: write_slot,
            },
            ml_flags: ffi::METH_O,
            ml_doc: c"write($self, data, /)\n--\n\nEncrypts and sends data, as far as the socket takes it; the rest is buffered."
                .as_ptr(),
        },
        ffi::PyMethodDef {
            ml_name: c"writelines".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer {
                PyCFunction: writelines_slot,
            },
            ml_flags: ffi::METH_O,
            ml_doc: c"writelines($self, list_of_data, /)\n--\n\nLike write for each of several buffers; small ones share a TLS record."
                .as_ptr(),
        },
    ];
    for (name, method) in ["write", "writelines"].into_iter().zip(methods) {
        // The descriptor refers to it for ever.
        let method = Box::leak(Box::new(method));
        // SAFETY: the GIL is held, the class is a type object, and the definition is complete and never freed.
        let descriptor = unsafe {
            Bound::from_owned_ptr_or_err(
                py,
                PyDescr_NewMethod(class.as_ptr().cast(), std::ptr::from_mut(method)),
            )
        }?;
        class.setattr(New(name), descriptor)?;
    }
    Ok(())
}
