//! The methods of asyncio's pipe transports that run per read and per write.
//!
//! `ringloop._pipes` derives its transports from asyncio's. All state stays in asyncio's attributes, except for what
//! waits to be written: that is a [`WriteBuffer`]. Everything that is rare is left to asyncio's methods and to those of
//! the derived classes, which are called by name.
//!
//! Another process may have made the file blocking, because both share it. So the system calls release the GIL, as
//! `os.read` and `os.write` do.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PyAssertionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyType};

use crate::buffers::{self, Chunk, View};
use crate::cell::GilCell;
use crate::event_loop::Loop;
use crate::fields::{Attribute, Fields, attribute};
use crate::names::intern;
use crate::native_type::{add_method, call_replaced, method, method_with_arguments, only_argument};
use crate::objects::{self, New};
use crate::scheduling;
use crate::socket_object;
use crate::stream_reader;
use crate::support::{self, call_method1, guard};

// asyncio's attributes of a pipe transport.
static BUFFER: Attribute = attribute!("_buffer");
static CLOSING: Attribute = attribute!("_closing");
static CONN_LOST: Attribute = attribute!("_conn_lost");
static FILENO: Attribute = attribute!("_fileno");
static LOOP: Attribute = attribute!("_loop");
static PIPE: Attribute = attribute!("_pipe");
static PROTOCOL: Attribute = attribute!("_protocol");

/// The bytes that wait to be written to a pipe. The object has what asyncio's methods ask of their `bytearray`.
#[pyclass(module = "ringloop._core", frozen)]
#[derive(Default)]
pub(crate) struct WriteBuffer {
    pieces: GilCell<Pieces>,
}

#[derive(Default)]
struct Pieces {
    /// Empty while some of it is being written.
    waiting: VecDeque<Chunk>,
    len: usize,
    /// How often it was cleared.
    clears: u64,
}

impl Pieces {
    fn push(&mut self, chunk: Chunk) {
        if chunk.len() > 0 {
            self.len += chunk.len();
            self.waiting.push_back(chunk);
        }
    }
}

#[pymethods]
impl WriteBuffer {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.pieces.get(py).len
    }

    /// Appends a bytes-like object. `bytes` are referred to; anything else may change, and is copied.
    fn __iadd__(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let chunk = match data.cast_exact::<PyBytes>() {
            Ok(bytes) => Chunk::rest_of(bytes, 0),
            Err(_) => match View::new(data, ffi::PyBUF_SIMPLE) {
                Ok(view) => Chunk::copy_of_data(data.py(), view.bytes())?,
                Err(error) => return Err(refused_by_a_bytearray(data).unwrap_or(error)),
            },
        };
        self.pieces.get_mut(data.py()).push(chunk);
        Ok(())
    }

    fn clear(&self, py: Python<'_>) {
        let dropped = {
            let mut pieces = self.pieces.get_mut(py);
            pieces.len = 0;
            pieces.clears += 1;
            std::mem::take(&mut pieces.waiting)
        };
        drop(dropped);
    }
}

impl WriteBuffer {
    fn is_empty(&self, py: Python<'_>) -> bool {
        self.pieces.get(py).len == 0
    }

    /// Writes once what waits. Whether that has left nothing.
    fn write_to(&self, py: Python<'_>, fd: RawFd) -> io::Result<bool> {
        // Taken out, so that nothing is borrowed while other threads may run.
        let (mut taken, clears) = {
            let mut pieces = self.pieces.get_mut(py);
            (std::mem::take(&mut pieces.waiting), pieces.clears)
        };
        let result = buffers::write_pieces(py, fd, &mut taken);
        let mut pieces = self.pieces.get_mut(py);
        if pieces.clears != clears {
            // Another thread has ended the transport meanwhile, and nothing is left to be done here.
            drop(pieces);
            return Ok(false);
        }
        let done = match &result {
            Ok((written, done)) => {
                pieces.len = pieces.len.saturating_sub(*written);
                taken.drain(..*done).collect()
            }
            Err(_) => Vec::new(),
        };
        taken.append(&mut pieces.waiting);
        pieces.waiting = taken;
        support::give_back_if_empty(&mut pieces.waiting);
        let is_empty = pieces.waiting.is_empty();
        drop(pieces);
        drop(done);
        result.map(|_| is_empty)
    }
}

/// The error of `bytearray() += data`.
#[cold]
fn refused_by_a_bytearray(data: &Bound<'_, PyAny>) -> Option<PyErr> {
    let py = data.py();
    let buffer = objects::bytearray(py, b"").ok()?;
    // SAFETY: the GIL is held and both objects are alive; the result is a new reference, or null with an exception set.
    let result = unsafe {
        let result = ffi::PySequence_InPlaceConcat(buffer.as_ptr(), data.as_ptr());
        Bound::from_owned_ptr_or_err(py, result)
    };
    result.err()
}

/// A class of the standard library's that nobody replaces.
fn is_exactly(
    object: &Bound<'_, PyAny>,
    cell: &'static PyOnceLock<Py<PyType>>,
    name: &str,
) -> PyResult<bool> {
    let class = support::class(object.py(), cell, "io", name)?;
    Ok(object.get_type().is(class))
}

/// The descriptor of a transport's file: -1 if the file was closed, because another one may have the number by now. For
/// files that can't be asked without running the user's code it is the number that the transport began with.
fn descriptor(fields: &Fields<'_, '_>, py: Python<'_>) -> PyResult<RawFd> {
    static FILE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static READER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static WRITER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let known = fields.get(&FILENO)?.extract::<RawFd>()?;
    let mut file = fields.get(&PIPE)?;
    if let Some(number) = socket_object::descriptor(&file) {
        return Ok(if number == known { known } else { -1 });
    }
    if is_exactly(&file, &READER, "BufferedReader")?
        || is_exactly(&file, &WRITER, "BufferedWriter")?
    {
        match file.getattr(intern!(py, "raw")) {
            Ok(raw) => file = raw,
            // Detached: the descriptor lives on without it.
            Err(_) => return Ok(known),
        }
    }
    if !is_exactly(&file, &FILE, "FileIO")? {
        return Ok(known);
    }
    let number = file.call_method0(intern!(py, "fileno"));
    let is_current =
        number.is_ok_and(|number| number.extract::<RawFd>().is_ok_and(|it| it == known));
    Ok(if is_current { known } else { -1 })
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Ends the transport by an error, as asyncio reports it.
#[cold]
fn fatal_error(transport: &Bound<'_, PyAny>, error: PyErr, message: &str) -> PyResult<()> {
    let method = transport.getattr(intern!(transport.py(), "_fatal_error"))?;
    support::call_handling(error, &method, |error| New((error, New(message))))
}

/// The file is ready: reads once, and delivers.
fn read_once(transport: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = transport.py();
    let fields = Fields::of(transport);
    let event_loop = fields.get(&LOOP)?;
    let event_loop = event_loop.cast::<Loop>()?.get();
    let protocol = fields.get(&PROTOCOL)?;
    let fd = descriptor(&fields, py)?;
    let result = if stream_reader::is_fed(&protocol)? {
        let mut received = event_loop.receive_buffer(py)?;
        let result = received.read(py, fd);
        let fed = match &result {
            Ok(count) if *count > 0 => stream_reader::feed(&protocol, received.bytes(*count), None),
            _ => Ok(()),
        };
        event_loop.return_receive_buffer(py, received);
        fed?;
        result
    } else {
        let result = read_object(py, event_loop, fd)?;
        if let Ok((data, count)) = &result
            && *count > 0
        {
            call_method1(&protocol, intern!(py, "data_received"), data.as_ptr())?;
        }
        result.map(|(_, count)| count)
    };
    match result {
        Ok(0) => transport.call_method0(intern!(py, "_end")).map(drop),
        Ok(_) => Ok(()),
        Err(error) if would_block(&error) => Ok(()),
        Err(error) => {
            let error = support::os_error(py, &error);
            fatal_error(transport, error, "Fatal read error on pipe transport")
        }
    }
}

/// Reads once: a `bytes` object, and its length. Through the loop's buffer, or directly where much is expected: the
/// size is guessed from the last read.
fn read_object(
    py: Python<'_>,
    event_loop: &Loop,
    fd: RawFd,
) -> PyResult<io::Result<(Py<PyAny>, usize)>> {
    let habit = event_loop.pipe_habit.load(Relaxed);
    let capacity = buffers::with_slack(habit);
    let result = if habit >= buffers::DIRECT_MIN {
        buffers::read_bytes(py, fd, capacity)?
    } else {
        let mut received = event_loop.receive_buffer(py)?;
        match received.read(py, fd) {
            Ok(count) => Ok((event_loop.settle_receive_buffer(py, received, count), count)),
            Err(error) => {
                event_loop.return_receive_buffer(py, received);
                Err(error)
            }
        }
    };
    if let Ok((_, count)) = &result {
        let is_full = *count == capacity;
        event_loop
            .pipe_habit
            .store(if is_full { 2 * count } else { *count }, Relaxed);
    }
    Ok(result)
}

const WRITE_ERROR: &str = "Fatal write error on pipe transport";

/// Counts a write that failed, and ends the transport. What ends the loop is raised.
#[cold]
fn fail(transport: &Bound<'_, PyAny>, fields: &Fields<'_, '_>, error: &io::Error) -> PyResult<()> {
    let py = transport.py();
    let lost = fields.get(&CONN_LOST)?.extract::<u64>()?;
    fields.set(&CONN_LOST, New(lost + 1).into_pyobject(py)?.as_any())?;
    fatal_error(transport, support::os_error(py, error), WRITE_ERROR)
}

/// Writes now what the file takes, and buffers the rest. False for what is left to asyncio: data that is no data, and
/// writing to a transport that is closing.
fn write(transport: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = transport.py();
    let fields = Fields::of(transport);
    let buffer = fields.get(&BUFFER)?;
    let Ok(buffer) = buffer.cast_exact::<WriteBuffer>() else {
        return Ok(false);
    };
    let view = match data.cast_exact::<PyBytes>() {
        Ok(_) => None,
        Err(_) if !buffers::is_bytes_like(data) => return Ok(false),
        Err(_) => match View::new(data, ffi::PyBUF_SIMPLE) {
            Ok(view) => Some(view),
            Err(_) => return Ok(false),
        },
    };
    let bytes = match (&view, data.cast_exact::<PyBytes>()) {
        (Some(view), _) => view.bytes(),
        (None, Ok(bytes)) => bytes.as_bytes(),
        (None, Err(_)) => return Ok(false),
    };
    if bytes.is_empty() || fields.is(&CLOSING)? || fields.is(&CONN_LOST)? {
        return Ok(false);
    }
    if cfg!(Py_GIL_DISABLED) && leave_to_loop(transport, &fields, data)? {
        return Ok(true);
    }
    let is_first = buffer.get().is_empty(py);
    let mut written = 0;
    if is_first {
        let fd = descriptor(&fields, py)?;
        match buffers::write(py, fd, bytes) {
            Ok(count) if count == bytes.len() => return Ok(true),
            Ok(count) => written = count,
            Err(error) if would_block(&error) => {}
            Err(error) => return fail(transport, &fields, &error).map(|()| true),
        }
    }
    let chunk = match data.cast_exact::<PyBytes>() {
        Ok(bytes) => Chunk::rest_of(bytes, written),
        Err(_) => Chunk::copy_of_data(py, &bytes[written..])?,
    };
    if fields.is(&CLOSING)? || fields.is(&CONN_LOST)? {
        // Another thread has ended the transport during the system call.
        return Ok(true);
    }
    // Before the watch, because what has nothing to write ends its watch.
    buffer.get().pieces.get_mut(py).push(chunk);
    drop(view);
    if is_first {
        watch(transport, &fields).inspect_err(|_| buffer.get().clear(py))?;
    }
    transport
        .call_method0(intern!(py, "_maybe_pause_protocol"))
        .map(|_| true)
}

/// Has the file's room reported, to write what waits.
fn watch(transport: &Bound<'_, PyAny>, fields: &Fields<'_, '_>) -> PyResult<()> {
    let py = transport.py();
    let number = fields.get(&FILENO)?;
    let write_ready = transport.getattr(intern!(py, "_write_ready"))?;
    fields
        .get(&LOOP)?
        .call_method1(intern!(py, "_add_writer"), (number, write_ready))
        .map(drop)
}

/// Has the loop's thread write, if another thread runs the loop.
fn leave_to_loop(
    transport: &Bound<'_, PyAny>,
    fields: &Fields<'_, '_>,
    data: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = transport.py();
    let event_loop = fields.get(&LOOP)?;
    let Ok(event_loop) = event_loop.cast::<Loop>() else {
        return Ok(false);
    };
    if !event_loop.get().runs_elsewhere() {
        return Ok(false);
    }
    let class = support::class(py, &CLASS, "ringloop._pipes", "WritePipeTransport")?;
    let name = intern!(py, "write");
    let data = buffers::unchanging(data)?;
    scheduling::post(event_loop, class, name, transport, [&data]).map(|()| true)
}

/// The file has room: writes once what waits.
fn write_waiting(transport: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = transport.py();
    let fields = Fields::of(transport);
    let buffer = fields.get(&BUFFER)?;
    let buffer = buffer.cast_exact::<WriteBuffer>()?.get();
    if buffer.is_empty(py) && support::has_assertions(py)? {
        return Err(objects::error::<PyAssertionError>(
            py,
            "Data should not be empty",
        ));
    }
    let remove = |name| {
        let number = fields.get(&FILENO)?;
        let event_loop = fields.get(&LOOP)?;
        event_loop.call_method1(name, (number,)).map(drop)
    };
    let fd = descriptor(&fields, py)?;
    match buffer.write_to(py, fd) {
        Ok(false) => Ok(()),
        Ok(true) => {
            remove(intern!(py, "_remove_writer"))?;
            if !buffer.is_empty(py) {
                // Another thread has written meanwhile.
                watch(transport, &fields)?;
            }
            transport.call_method0(intern!(py, "_maybe_resume_protocol"))?;
            if !fields.is(&CLOSING)? {
                return Ok(());
            }
            remove(intern!(py, "_remove_reader"))?;
            transport
                .call_method1(intern!(py, "_call_connection_lost"), (py.None(),))
                .map(drop)
        }
        Err(error) if would_block(&error) => Ok(()),
        Err(error) => {
            buffer.clear(py);
            remove(intern!(py, "_remove_writer"))?;
            fail(transport, &fields, &error)
        }
    }
}

unsafe extern "C" fn method_read_ready(
    transport: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with the GIL and a live object.
        let transport = unsafe { Bound::from_borrowed_ptr(py, transport) };
        read_once(&transport)?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn method_write_ready(
    transport: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with the GIL and a live object.
        let transport = unsafe { Bound::from_borrowed_ptr(py, transport) };
        write_waiting(&transport)?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn method_write(
    transport: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    static TRANSPORT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    // SAFETY: called by the interpreter with the GIL, and with the arguments of a call.
    guard(|py| unsafe {
        if let Some(data) = only_argument(py, arguments, positional, names)
            && write(&Bound::from_borrowed_ptr(py, transport), &data)?
        {
            return Ok(py.None().into_bound(py));
        }
        let class = support::class(
            py,
            &TRANSPORT,
            "asyncio.unix_events",
            "_UnixWritePipeTransport",
        )?;
        let method = class.getattr(intern!(py, "write"))?;
        call_replaced(&method, transport, arguments, positional, names)
    })
}

/// Gives these classes, which derive from asyncio's transports, their methods. To be called once.
#[pyfunction]
fn _add_pipe_methods(reader: &Bound<'_, PyType>, writer: &Bound<'_, PyType>) -> PyResult<()> {
    // SAFETY: each function takes the objects of its class, as its flags say.
    unsafe {
        add_method(
            reader,
            method(
                c"_read_ready",
                method_read_ready,
                c"_read_ready($self)\n--\n\nRead once, because the file is ready.",
            ),
        )?;
        add_method(
            writer,
            method(
                c"_write_ready",
                method_write_ready,
                c"_write_ready($self)\n--\n\nWrite what waits, because the file has room.",
            ),
        )?;
        add_method(
            writer,
            method_with_arguments(
                c"write",
                method_write,
                c"write($self, data)\n--\n\nSee asyncio.WriteTransport.write.",
            ),
        )
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WriteBuffer>()?;
    module.add_function(wrap_pyfunction!(_add_pipe_methods, module)?)
}
