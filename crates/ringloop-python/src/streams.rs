//! `read`, `readexactly`, `readuntil`, `readline`, `drain` and `write` of asyncio's streams, without a Python frame.
//!
//! `python/ringloop/_streams.py` derives classes from asyncio's `StreamReader` and `StreamWriter` and gives them these
//! methods. Everything else is asyncio's, and so is the state: the attributes of asyncio's own objects. What these
//! methods return is an awaitable that acts like a coroutine and takes asyncio's steps in asyncio's order. If what it
//! asks for is there, it returns without a suspension; otherwise it yields the future that asyncio would wait for.
//!
//! asyncio's own coroutine takes over wherever something is not as usual: arguments of other types, an exception that was
//! set, lines beyond the limit, a connection that is closing or paused. So the rare cases need no second version here. A
//! method that the user has put in the place of asyncio's, in the class or in the instance, is called as always.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::Borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyByteArray, PyBytes, PyString, PyTuple, PyType};

use crate::buffers;
use crate::collected::Collected;
use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::event_loop::Loop;
use crate::fields::{Attribute, Fields, attribute};
use crate::names::intern;
use crate::native_type::{
    self, Class, Function, Native, Optional, Owned, PendingException, References, Table,
    add_method, call_replaced, content, method_with_arguments, only_argument, references, slot,
};
use crate::objects::{self, New};
use crate::originals::Originals;
use crate::scheduling;
use crate::slotted;
use crate::stream_reader::{
    self, BUFFER, EOF, EXCEPTION, LIMIT, LOOP, PAUSED, REFERENCE, TRANSPORT, WAITER, take,
};
use crate::support::{self, guard, guard_in};
use crate::waiter::{self, Wanted};

/// The method that was called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    /// `read` without a count.
    ReadAll,
    ReadExactly,
    ReadUntil,
    ReadLine,
    Drain,
}

impl Kind {
    fn qualified_name(self) -> &'static str {
        match self {
            Self::Read | Self::ReadAll => "StreamReader.read",
            Self::ReadExactly => "StreamReader.readexactly",
            Self::ReadUntil => "StreamReader.readuntil",
            Self::ReadLine => "StreamReader.readline",
            Self::Drain => "StreamWriter.drain",
        }
    }
}

/// The purpose of a coroutine of asyncio's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inner {
    /// All that is left: its result is ours.
    TakesOver,
    /// `_wait_for_data`, or the `sleep(0)` of `drain`; we go on after it.
    Waits,
}

/// One call of a method.
struct StreamCall {
    /// A coroutine of asyncio's.
    inner: Option<Owned>,
    /// The waiter or the future that was yielded, if it is ours.
    future: Option<Owned>,
    /// The method's argument, if there is one. If all is to be read, the bytes that were collected so far.
    argument: Option<Owned>,
    /// The reader, or the writer; until the call is over.
    stream: Option<Owned>,
    /// How many bytes are asked for.
    count: usize,
    /// Where the search for the separator goes on.
    offset: usize,
    kind: Kind,
    phase: Phase,
    inner_role: Inner,
    has_waited: bool,
    /// The loop, or for lack of one the stream: the object in whose critical section the call is used. It never changes.
    #[cfg(Py_GIL_DISABLED)]
    section: Owned,
}

#[cfg(Py_GIL_DISABLED)]
references! {
    StreamCall {
        keeps { section }
        takes { inner, future, argument, stream }
    }
}

#[cfg(not(Py_GIL_DISABLED))]
references! {
    StreamCall {
        keeps {}
        takes { inner, future, argument, stream }
    }
}

static READER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static WRITER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static READER_METHODS: Originals<6> = Originals::new(
    "asyncio.streams",
    [
        "read",
        "readexactly",
        "readuntil",
        "readline",
        "_wait_for_data",
        "_maybe_resume_transport",
    ],
);
static WRITER_METHODS: Originals<2> = Originals::new("asyncio.streams", ["drain", "write"]);

// asyncio's attributes of a writer, and of its protocol.
static WRITER_TRANSPORT: Attribute = attribute!("_transport");
static WRITER_READER: Attribute = attribute!("_reader");
static WRITER_PROTOCOL: Attribute = attribute!("_protocol");
static WRITING_PAUSED: Attribute = attribute!("_paused");
static CONNECTION_LOST: Attribute = attribute!("_connection_lost");

/// asyncio's class for readers, or for writers.
fn asyncios(py: Python<'_>, is_reader: bool) -> PyResult<&Bound<'_, PyType>> {
    let (cell, name) = if is_reader {
        (&READER, "StreamReader")
    } else {
        (&WRITER, "StreamWriter")
    };
    support::class(py, cell, "asyncio.streams", name)
}

/// Whether asyncio's class has the methods that ours stand for.
#[inline]
fn is_unpatched(class: &Bound<'_, PyType>, is_reader: bool) -> PyResult<bool> {
    if is_reader {
        READER_METHODS.are_in_place(class)
    } else {
        WRITER_METHODS.are_in_place(class)
    }
}

/// An awaitable for a call.
///
/// # Safety
/// The GIL is held; `stream` and `argument`, unless null, are alive.
unsafe fn new_call(
    py: Python<'_>,
    kind: Kind,
    stream: *mut ffi::PyObject,
    argument: *mut ffi::PyObject,
    count: usize,
) -> PyResult<Bound<'_, PyAny>> {
    #[cfg(Py_GIL_DISABLED)]
    let section = {
        // SAFETY: the GIL is held, and `stream` is alive, which is the function's contract.
        let stream = unsafe { Bound::from_borrowed_ptr(py, stream) };
        match kind {
            Kind::Drain => stream,
            _ => stream_reader::section(&Fields::of(&stream), &stream)?,
        }
    };
    native_type::new(py, || {
        // SAFETY: the GIL is held, `stream` is alive, and `argument` is null or alive, which is the function's contract.
        let (stream, argument) = unsafe {
            let argument = Owned::from_owned(ffi::Py_XNewRef(argument));
            (Owned::new(stream), argument)
        };
        StreamCall {
            inner: None,
            future: None,
            argument,
            stream: Some(stream),
            count,
            offset: 0,
            kind,
            phase: Phase::Created,
            inner_role: Inner::TakesOver,
            has_waited: false,
            #[cfg(Py_GIL_DISABLED)]
            section: section.into(),
        }
    })
}

/// The reader or writer of a call.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn stream_of(py: Python<'_>, this: *mut StreamCall) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
    unsafe { (*this).stream.bound(py) }.ok_or_else(|| coroutine::over(py))
}

/// The object that collects the blocks of a call that reads all.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn collected_of(py: Python<'_>, this: *mut StreamCall) -> PyResult<Bound<'_, Collected>> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
    let collected = unsafe { (*this).argument.bound(py) }.ok_or_else(|| coroutine::over(py))?;
    Ok(collected.cast_into_exact::<Collected>()?)
}

/// The number of bytes that `read` or `readexactly` is asked for, if it is an ordinary one.
fn count_of(argument: &Bound<'_, PyAny>) -> Option<usize> {
    // SAFETY: the GIL is held and the object is alive; an overflow leaves no exception here.
    unsafe {
        if ffi::PyLong_CheckExact(argument.as_ptr()) == 0 {
            return None;
        }
        let mut overflow = 0;
        let count = ffi::PyLong_AsLongLongAndOverflow(argument.as_ptr(), &raw mut overflow);
        (overflow == 0 && count > 0).then_some(count as usize)
    }
}

/// Whether this is the number that asks for everything.
fn is_minus_one(argument: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the GIL is held and the object is alive; an overflow leaves no exception here.
    unsafe {
        let mut overflow = 0;
        ffi::PyLong_CheckExact(argument.as_ptr()) != 0
            && ffi::PyLong_AsLongLongAndOverflow(argument.as_ptr(), &raw mut overflow) == -1
            && overflow == 0
    }
}

/// Whether a call has no arguments.
///
/// # Safety
/// The GIL is held; `names` is a tuple or null.
unsafe fn has_none(positional: ffi::Py_ssize_t, names: *mut ffi::PyObject) -> bool {
    // SAFETY: the GIL is held, and `names`, which is not null here, is a tuple: that is the function's contract.
    positional == 0 && (names.is_null() || unsafe { ffi::PyTuple_GET_SIZE(names) } == 0)
}

macro_rules! methods {
    ($($function:ident $is_reader:literal $name:literal
        |$py:ident, $stream:ident, $arguments:ident, $positional:ident, $names:ident| $made:block)*) => { $(
        unsafe extern "C" fn $function(
            $stream: *mut ffi::PyObject,
            $arguments: *const *mut ffi::PyObject,
            $positional: ffi::Py_ssize_t,
            $names: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            guard(|$py| {
                let class = asyncios($py, $is_reader)?;
                if is_unpatched(class, $is_reader)? {
                    // SAFETY: called by the interpreter, with the GIL, by METH_FASTCALL | METH_KEYWORDS.
                    let made: Option<Bound<'_, PyAny>> = unsafe { $made };
                    if let Some(made) = made {
                        return Ok(made);
                    }
                }
                let method = class.getattr(intern!($py, $name))?;
                // SAFETY: called by the interpreter, with the GIL, by METH_FASTCALL | METH_KEYWORDS: there are
                // `positional` arguments and one for each of the names, all alive.
                unsafe { call_replaced(&method, $stream, $arguments, $positional, $names) }
            })
        }
    )* };
}

methods! {
    read true "read" |py, stream, arguments, positional, names| {
        let argument = only_argument(py, arguments, positional, names);
        let count = argument.as_ref().and_then(count_of);
        match (&argument, count) {
            (Some(argument), Some(count)) => {
                Some(new_call(py, Kind::Read, stream, argument.as_ptr(), count)?)
            }
            (Some(argument), None) if !is_minus_one(argument) => None,
            (None, _) if !has_none(positional, names) => None,
            _ => {
                let collected = Bound::new(py, Collected::default())?;
                Some(new_call(py, Kind::ReadAll, stream, collected.as_ptr(), 0)?)
            }
        }
    }
    read_exactly true "readexactly" |py, stream, arguments, positional, names| {
        match only_argument(py, arguments, positional, names) {
            Some(argument) => match count_of(&argument) {
                Some(count) => {
                    Some(new_call(py, Kind::ReadExactly, stream, argument.as_ptr(), count)?)
                }
                None => None,
            },
            None => None,
        }
    }
    read_until true "readuntil" |py, stream, arguments, positional, names| {
        if has_none(positional, names) {
            let separator = New(&b"\n"[..]).into_pyobject(py)?;
            Some(new_call(py, Kind::ReadUntil, stream, separator.as_ptr(), 0)?)
        } else {
            match only_argument(py, arguments, positional, names) {
                Some(argument) => match argument.cast_exact::<PyBytes>() {
                    Ok(separator) if !separator.as_bytes().is_empty() => {
                        Some(new_call(py, Kind::ReadUntil, stream, argument.as_ptr(), 0)?)
                    }
                    _ => None,
                },
                None => None,
            }
        }
    }
    read_line true "readline" |py, stream, _arguments, positional, names| {
        if has_none(positional, names) {
            Some(new_call(py, Kind::ReadLine, stream, ptr::null_mut(), 0)?)
        } else {
            None
        }
    }
    drain false "drain" |py, stream, _arguments, positional, names| {
        if has_none(positional, names) {
            Some(new_call(py, Kind::Drain, stream, ptr::null_mut(), 0)?)
        } else {
            None
        }
    }
    write false "write" |py, stream, arguments, positional, names| {
        match only_argument(py, arguments, positional, names) {
            Some(data) => {
                let stream = Bound::from_borrowed_ptr(py, stream);
                let transport = Fields::of(&stream).get(&WRITER_TRANSPORT)?;
                support::call_method1(&transport, intern!(py, "write"), data.as_ptr())?;
                Some(py.None().into_bound(py))
            }
            None => None,
        }
    }
}

unsafe extern "C" fn feed_data(
    reader: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, with the GIL, by METH_FASTCALL | METH_KEYWORDS.
    guard(|py| unsafe {
        let class = asyncios(py, true)?;
        let data = only_argument(py, arguments, positional, names);
        if let Some(data) = argument_named(py, c"data", arguments, positional, names)
            && buffers::is_bytes_like(&data)
            && let Some(event_loop) = elsewhere(py, reader)?
        {
            let data = buffers::unchanging(&data)?;
            return post(&event_loop, reader, intern!(py, "feed_data"), [&data]);
        }
        if let Some(data) = data
            && let Ok(bytes) = data.cast_exact::<PyBytes>()
            && !bytes.as_bytes().is_empty()
            && stream_reader::has_own_feed_data(class)?
        {
            let reader = Bound::from_borrowed_ptr(py, reader);
            let fields = Fields::of(&reader);
            let is_woken = stream_reader::in_section(&fields, &reader, || {
                let waiter = fields.get(&WAITER)?;
                Ok(waiter::is_one(&waiter)
                    && waiter::wake_with(&waiter, bytes.as_bytes(), Some(bytes))?)
            })?;
            if is_woken {
                return Ok(py.None().into_bound(py));
            }
        }
        let method = class.getattr(intern!(py, "feed_data"))?;
        call_replaced(&method, reader, arguments, positional, names)
    })
}

/// The loop of a reader, if another thread runs it. What feeds or ends the reader is left to that thread: it alone knows
/// whether the transport is to be paused, and whom to wake.
///
/// # Safety
/// The GIL is held, and the reader is alive.
unsafe fn elsewhere(
    py: Python<'_>,
    reader: *mut ffi::PyObject,
) -> PyResult<Option<Bound<'_, Loop>>> {
    if cfg!(not(Py_GIL_DISABLED)) {
        return Ok(None);
    }
    // SAFETY: the GIL is held, and the reader is alive, which is the function's contract.
    let reader = unsafe { Bound::from_borrowed_ptr(py, reader) };
    let event_loop = Fields::of(&reader).own(&LOOP)?;
    let event_loop = event_loop.and_then(|it| it.cast_into::<Loop>().ok());
    Ok(event_loop.filter(|it| it.get().runs_elsewhere()))
}

/// The only argument of a call, if there is just one: by position, or by this name.
///
/// # Safety
/// As `only_argument`.
unsafe fn argument_named<'py>(
    py: Python<'py>,
    name: &CStr,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> Option<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held, `names` is a tuple of strings or null, and `arguments` has `positional` live objects and one
    // for each of `names`, which is the function's contract.
    unsafe {
        if names.is_null() || positional != 0 || ffi::PyTuple_GET_SIZE(names) != 1 {
            return only_argument(py, arguments, positional, names);
        }
        let is_it =
            ffi::PyUnicode_CompareWithASCIIString(ffi::PyTuple_GET_ITEM(names, 0), name.as_ptr())
                == 0;
        is_it.then(|| Bound::from_borrowed_ptr(py, *arguments))
    }
}

/// Has the loop's thread call a method of the native readers.
///
/// # Safety
/// The reader is alive.
#[cold]
unsafe fn post<'py, const N: usize>(
    event_loop: &Bound<'py, Loop>,
    reader: *mut ffi::PyObject,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = event_loop.py();
    // SAFETY: the GIL is held (`py`), and the reader is alive, which is the function's contract.
    let reader = unsafe { Bound::from_borrowed_ptr(py, reader) };
    let class = support::class(py, &CLASS, "ringloop._streams", "StreamReader")?;
    scheduling::post(event_loop, class, name, &reader, arguments)?;
    Ok(py.None().into_bound(py))
}

/// Without the GIL only; with it, asyncio's own method is called.
unsafe extern "C" fn feed_eof(
    reader: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, by METH_FASTCALL | METH_KEYWORDS.
    guard(|py| unsafe {
        let posted = (positional == 0 && names.is_null()).then_some([]);
        end_reader(
            intern!(py, "feed_eof"),
            posted,
            reader,
            arguments,
            positional,
            names,
        )
    })
}

/// Without the GIL only; with it, asyncio's own method is called.
unsafe extern "C" fn set_exception(
    reader: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, by METH_FASTCALL | METH_KEYWORDS.
    guard(|py| unsafe {
        let error = argument_named(py, c"exc", arguments, positional, names);
        let posted = error.as_ref().map(|error| [error]);
        end_reader(
            intern!(py, "set_exception"),
            posted,
            reader,
            arguments,
            positional,
            names,
        )
    })
}

/// Calls asyncio's own method, or has the loop's thread do that if this is another one. `posted` are the arguments for it;
/// `None` if the call is wrong, and the method will say so.
///
/// # Safety
/// Called with the GIL and the arguments of a vectorcall for a reader of ours.
unsafe fn end_reader<'py, const N: usize>(
    name: &Bound<'py, PyString>,
    posted: Option<[&Bound<'py, PyAny>; N]>,
    reader: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>> {
    let py = name.py();
    // SAFETY: the GIL is held (`py`), and the caller passes on what the interpreter has passed to it.
    unsafe {
        if let Some(posted) = posted
            && let Some(event_loop) = elsewhere(py, reader)?
        {
            return post(&event_loop, reader, name, posted);
        }
        let method = asyncios(py, true)?.getattr(name)?;
        call_replaced(&method, reader, arguments, positional, names)
    }
}

/// The outcome of a step that could not wait for a future of ours.
enum Progress<'py> {
    Return(Bound<'py, PyAny>),
    /// This future has to be done first.
    Wait(Bound<'py, PyAny>),
    /// This coroutine of asyncio's has to go on, in this role.
    Hand(Bound<'py, PyAny>, Inner),
}

/// asyncio's own coroutine for a call.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn take_over(py: Python<'_>, this: *mut StreamCall) -> PyResult<Progress<'_>> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract. The
    // fields are not replaced while a step runs, so that stream and argument stay alive.
    unsafe {
        let kind = (*this).kind;
        let class = asyncios(py, kind != Kind::Drain)?;
        let method =
            class.getattr(New(coroutine::unqualified(kind.qualified_name())).into_pyobject(py)?)?;
        let arguments = [(*this).argument.as_ptr_or_null()];
        let count = (kind != Kind::ReadAll && (*this).argument.is_some()).into();
        let coroutine = call_replaced(
            &method,
            stream_of(py, this)?.as_ptr(),
            arguments.as_ptr(),
            count,
            ptr::null_mut(),
        )?;
        Ok(Progress::Hand(coroutine, Inner::TakesOver))
    }
}

/// asyncio's `IncompleteReadError`, for all that there was; it is taken out of the buffer.
fn incomplete<'py>(
    buffer: &Bound<'py, PyByteArray>,
    expected: Option<Bound<'py, PyAny>>,
) -> PyResult<PyErr> {
    static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = support::class(
        buffer.py(),
        &ERROR,
        "asyncio.exceptions",
        "IncompleteReadError",
    )?;
    let partial = take(buffer, buffer.len())?;
    Ok(support::raised(&class.call1((partial, expected))?))
}

/// The error that `readuntil` and `readline` raise for a line beyond the limit. `readuntil` leaves it in the buffer;
/// `readline` takes out all that is known to belong to it.
#[cold]
fn too_long<'py>(
    reader: &Bound<'py, PyAny>,
    buffer: &Bound<'py, PyByteArray>,
    kind: Kind,
    text: &str,
    consumed: usize,
) -> PyResult<PyErr> {
    static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = reader.py();
    let class = support::class(py, &ERROR, "asyncio.exceptions", "LimitOverrunError")?;
    let overrun = support::raised(&class.call1((New(text), New(consumed)))?);
    if kind != Kind::ReadLine {
        return Ok(overrun);
    }
    let ends_there = stream_reader::with_bytes(buffer, |bytes| bytes.get(consumed) == Some(&b'\n'));
    let line = if ends_there {
        consumed + 1
    } else {
        buffer.len()
    };
    take(buffer, line)?;
    reader.call_method0(intern!(py, "_maybe_resume_transport"))?;
    let error = objects::error::<PyValueError>(py, text);
    // As where asyncio's `except` block raises it.
    // SAFETY: the GIL is held; the error takes the reference.
    unsafe {
        let context = overrun.into_value(py).into_ptr();
        ffi::PyException_SetContext(error.value(py).as_ptr(), context);
    }
    Ok(error)
}

/// `_maybe_resume_transport`, after bytes were taken.
#[inline]
fn resume_transport<'py>(reader: &Bound<'py, PyAny>, fields: &Fields<'_, 'py>) -> PyResult<()> {
    let name = intern!(reader.py(), "_maybe_resume_transport");
    if fields.is(&PAUSED)? || stream_reader::is_replaced(fields, name)? {
        reader.call_method0(name)?;
    }
    Ok(())
}

/// The same, and returns these.
fn taken<'py>(
    reader: &Bound<'py, PyAny>,
    fields: &Fields<'_, 'py>,
    bytes: Bound<'py, PyBytes>,
) -> PyResult<Progress<'py>> {
    resume_transport(reader, fields)?;
    Ok(Progress::Return(bytes.into_any()))
}

/// `_wait_for_data`.
fn wait_for_data<'py>(
    reader: &Bound<'py, PyAny>,
    fields: &Fields<'_, 'py>,
    waiter: Bound<'py, PyAny>,
    name: &str,
    wanted: Wanted,
) -> PyResult<Progress<'py>> {
    let py = reader.py();
    if waiter::is_listed(&waiter)
        || fields.is(&PAUSED)?
        || stream_reader::is_replaced(fields, intern!(py, "_wait_for_data"))?
    {
        let wait = reader.call_method1(intern!(py, "_wait_for_data"), (New(name),))?;
        return Ok(Progress::Hand(wait, Inner::Waits));
    }
    let (wanted, limit) = match stream_reader::limit_of(fields)? {
        Some(limit) => (wanted, limit),
        None => (Wanted::Other, 0),
    };
    let waiter = match waiter::reuse(waiter, wanted, limit) {
        Ok(waiter) => return Ok(Progress::Wait(waiter)),
        Err(waiter) => waiter,
    };
    drop(waiter);
    let event_loop = fields.get(&LOOP)?;
    let future = if let Some(waiter) = waiter::new(&event_loop, wanted, limit)? {
        waiter
    } else {
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        future
    };
    fields.set(&WAITER, &future)?;
    Ok(Progress::Wait(future))
}

/// Whoever keeps the buffer may put bytes into it while the read waits: they come first.
fn unless_kept(buffer: &Bound<'_, PyByteArray>, wanted: Wanted) -> Wanted {
    // SAFETY: the GIL is held, and the object is alive. The reader refers to it, and we do.
    let is_kept = unsafe { ffi::Py_REFCNT(buffer.as_ptr()) } > 2;
    if is_kept { Wanted::Other } else { wanted }
}

/// Goes on with a method, from its beginning or after a wait.
///
/// # Safety
/// Called with the GIL for a live object of our type, whose fields are not replaced while a step runs.
unsafe fn go_on(py: Python<'_>, this: *mut StreamCall) -> PyResult<Progress<'_>> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract. Its
    // fields are not replaced while a step runs, so that it has its stream.
    let (stream, kind, has_waited, count) = unsafe {
        let stream = stream_of(py, this)?;
        (stream, (*this).kind, (*this).has_waited, (*this).count)
    };
    if kind == Kind::Drain {
        return drain_now(&stream, has_waited);
    }
    let fields = Fields::of(&stream);
    if !has_waited
        && (!fields.get(&EXCEPTION)?.is_none()
            || (kind == Kind::ReadLine
                && stream_reader::is_replaced(&fields, intern!(py, "readuntil"))?)
            || (kind == Kind::ReadAll && stream_reader::is_replaced(&fields, intern!(py, "read"))?))
    {
        // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
        return unsafe { take_over(py, this) };
    }
    let waiter = fields.get(&WAITER)?;
    let Some(buffer) = stream_reader::buffer_of(&fields, &waiter)? else {
        // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
        return unsafe { take_over(py, this) };
    };
    let buffer = &buffer;
    let is_at_end = || fields.is(&EOF);
    match kind {
        Kind::Read => {
            let len = buffer.len();
            if len == 0 && !has_waited && !is_at_end()? {
                let wanted = unless_kept(buffer, Wanted::up_to(count));
                return wait_for_data(&stream, &fields, waiter, "read", wanted);
            }
            taken(&stream, &fields, take(buffer, count.min(len))?)
        }
        Kind::ReadAll => {
            // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's
            // contract. Its fields are not replaced while this step runs.
            unsafe { go_on_reading_all(py, this, &stream, &fields, buffer, waiter) }
        }
        Kind::ReadExactly => {
            let len = buffer.len();
            if len >= count {
                return taken(&stream, &fields, take(buffer, count)?);
            }
            if is_at_end()? {
                // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's
                // contract. Its argument is not replaced while a step runs.
                let expected = unsafe { (*this).argument.bound(py) };
                return Err(incomplete(buffer, expected)?);
            }
            let wanted = if len == 0 {
                unless_kept(buffer, Wanted::exactly(count))
            } else {
                Wanted::Other
            };
            wait_for_data(&stream, &fields, waiter, "readexactly", wanted)
        }
        Kind::ReadUntil | Kind::ReadLine => {
            // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's
            // contract. Its argument, or null, is not replaced while a step runs.
            let argument = unsafe { (*this).argument.bound(py) };
            let separator = match &argument {
                Some(separator) => separator.cast::<PyBytes>()?.as_bytes(),
                None => b"\n",
            };
            // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's
            // contract.
            let offset = unsafe { (*this).offset };
            let Some(limit) = stream_reader::limit_of(&fields)? else {
                // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's
                // contract.
                return unsafe { take_over(py, this) };
            };
            let len = buffer.len();
            if len >= offset + separator.len() {
                let search = |bytes: &[u8]| find(bytes, separator, offset);
                match stream_reader::with_bytes(buffer, search) {
                    Some(start) if start <= limit => {
                        let line = take(buffer, start + separator.len())?;
                        return taken(&stream, &fields, line);
                    }
                    Some(start) => {
                        let text = "Separator is found, but chunk is longer than limit";
                        return Err(too_long(&stream, buffer, kind, text, start)?);
                    }
                    None => {}
                }
                let offset = len + 1 - separator.len();
                if offset > limit {
                    let text = "Separator is not found, and chunk exceed the limit";
                    return Err(too_long(&stream, buffer, kind, text, offset)?);
                }
                // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's
                // contract.
                unsafe { (*this).offset = offset };
            }
            if is_at_end()? {
                if kind == Kind::ReadLine {
                    let partial = take(buffer, len)?;
                    return Ok(Progress::Return(partial.into_any()));
                }
                return Err(incomplete(buffer, None)?);
            }
            let wanted = if separator == b"\n" && len == 0 {
                unless_kept(buffer, Wanted::Line)
            } else {
                Wanted::Other
            };
            wait_for_data(&stream, &fields, waiter, "readuntil", wanted)
        }
        Kind::Drain => unreachable!("returned above"),
    }
}

/// The same for a call that reads until the end.
///
/// # Safety
/// As for `go_on`, of which this is a part.
unsafe fn go_on_reading_all<'py>(
    py: Python<'py>,
    this: *mut StreamCall,
    stream: &Bound<'py, PyAny>,
    fields: &Fields<'_, 'py>,
    buffer: &Bound<'py, PyByteArray>,
    waiter: Bound<'py, PyAny>,
) -> PyResult<Progress<'py>> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
    let (collected, has_waited) = unsafe { (collected_of(py, this)?, (*this).has_waited) };
    let collected = collected.get();
    let Some(limit) = stream_reader::limit_of(fields)? else {
        // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
        return unsafe { take_over(py, this) };
    };
    let len = buffer.len();
    if len > 0 {
        collected.add(&take(buffer, len)?)?;
        resume_transport(stream, fields)?;
    } else if has_waited {
        // A block without content is the end to asyncio.
        return taken(stream, fields, collected.join(py)?);
    }
    // With the next block, asyncio looks again.
    if !fields.get(&EXCEPTION)?.is_none() {
        // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
        return unsafe { take_over(py, this) };
    }
    if fields.is(&EOF)? {
        return taken(stream, fields, collected.join(py)?);
    }
    let wanted = unless_kept(buffer, Wanted::up_to(limit));
    wait_for_data(stream, fields, waiter, "read", wanted)
}

/// Adds a block to what a call that reads all has collected.
///
/// # Safety
/// Called with the GIL for a live object of our type, whose fields are not replaced while a step runs.
unsafe fn collect(py: Python<'_>, this: *mut StreamCall, bytes: &Bound<'_, PyAny>) -> PyResult<()> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract.
    let collected = unsafe { collected_of(py, this)? };
    collected.get().add(bytes.cast::<PyBytes>()?)
}

/// Where the separator begins in the bytes, from `offset` on.
fn find(bytes: &[u8], separator: &[u8], offset: usize) -> Option<usize> {
    let rest = bytes.get(offset..)?;
    // SAFETY: both functions read within the lengths.
    unsafe {
        let found = match *separator {
            [byte] => libc::memchr(rest.as_ptr().cast(), byte.into(), rest.len()),
            _ => libc::memmem(
                rest.as_ptr().cast(),
                rest.len(),
                separator.as_ptr().cast(),
                separator.len(),
            ),
        };
        (!found.is_null()).then(|| found.cast::<u8>().offset_from(bytes.as_ptr()) as usize)
    }
}

/// `drain`, from its beginning or after its `sleep(0)`.
fn drain_now<'py>(writer: &Bound<'py, PyAny>, has_slept: bool) -> PyResult<Progress<'py>> {
    let py = writer.py();
    let fields = Fields::of(writer);
    if !has_slept {
        let reader = fields.get(&WRITER_READER)?;
        if !reader.is_none() {
            let exception = exception_of(&reader)?;
            if !exception.is_none() {
                return Err(support::raise_any(exception));
            }
        }
        let transport = fields.get(&WRITER_TRANSPORT)?;
        if support::ask(&transport, intern!(py, "is_closing"))? {
            let sleep = py.import(New("asyncio.streams"))?.getattr(New("sleep"))?;
            return Ok(Progress::Hand(sleep.call1((New(0),))?, Inner::Waits));
        }
    }
    let protocol = fields.get(&WRITER_PROTOCOL)?;
    if drains_at_once(&protocol)? {
        return Ok(Progress::Return(py.None().into_bound(py)));
    }
    let helper = protocol.call_method0(intern!(py, "_drain_helper"))?;
    Ok(Progress::Hand(helper, Inner::TakesOver))
}

/// Whether `protocol._drain_helper()` would do nothing.
fn drains_at_once(protocol: &Bound<'_, PyAny>) -> PyResult<bool> {
    static FLOW_CONTROL: Originals<1> = Originals::new("asyncio.streams", ["_drain_helper"]);
    let py = protocol.py();
    let class = stream_reader::protocol_class(py)?;
    let is_plain = stream_reader::is_server_protocol(protocol) || protocol.get_type().is(class);
    if !is_plain || !FLOW_CONTROL.are_in_place(class)? {
        return Ok(false);
    }
    let fields = Fields::of(protocol);
    Ok(!fields.is(&CONNECTION_LOST)?
        && !fields.is(&WRITING_PAUSED)?
        && fields.find(intern!(py, "_drain_helper"))?.is_none())
}

/// `reader.exception()`.
fn exception_of<'py>(reader: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static EXCEPTION_METHOD: Originals<1> = Originals::new("asyncio.streams", ["exception"]);
    let py = reader.py();
    let name = intern!(py, "exception");
    if stream_reader::is_native(reader) && EXCEPTION_METHOD.are_in_place(asyncios(py, true)?)? {
        let fields = Fields::of(reader);
        if !stream_reader::is_replaced(&fields, name)? {
            return fields.get(&EXCEPTION);
        }
    }
    reader.call_method0(name)
}

/// The call that a step makes on the coroutine that is inside.
type Resume<'a, 'py> = &'a dyn Fn(&Bound<'py, PyAny>) -> PyResult<Step<'py>>;

/// Takes the next step, or has the coroutine that is inside take it.
fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    let this = content::<StreamCall>(object);
    // SAFETY: called with the GIL for a live object of our type.
    unsafe {
        (*this).phase.begin(py)?;
        let mut bytes = None;
        let waited = match (*this).future.bound(py) {
            // A task throws the future's exception; others only resume.
            Some(future) if waiter::is_one(&future) => {
                let outcome = waiter::outcome(&future);
                if outcome.is_ok() {
                    bytes = waiter::take_bytes(&future);
                }
                outcome
            }
            Some(future) => match support::ask(&future, intern!(py, "done")) {
                Ok(true) => future.call_method0(intern!(py, "result")).map(drop),
                Ok(false) => Err(coroutine::not_awaited(py)),
                Err(error) => Err(error),
            },
            None => Ok(()),
        };
        let result = match (end_wait(py, this), bytes) {
            (Ok(()), Some(bytes)) => {
                let resumed = stream_of(py, this)
                    .and_then(|stream| resume_transport(&stream, &Fields::of(&stream)));
                if (*this).kind == Kind::ReadAll {
                    (*this).has_waited = false;
                    resumed
                        .and_then(|()| collect(py, this, &bytes))
                        .and_then(|()| run(py, this, &coroutine::resume))
                } else {
                    resumed.map(|()| Step::Return(bytes))
                }
            }
            (ended, _) => ended
                .and(waited)
                .and_then(|()| run(py, this, &coroutine::resume)),
        };
        settle(py, object, result)
    }
}

/// Ends a wait for a future of ours, as the `finally` of `_wait_for_data` does.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn end_wait(py: Python<'_>, this: *mut StreamCall) -> PyResult<()> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract. The
    // field is emptied, and its reference is `future`'s. A call that waits has a stream.
    unsafe {
        let Some(future) = (*this).future.take() else {
            return Ok(());
        };
        let future = future.into_bound(py);
        let stream = stream_of(py, this)?;
        let fields = Fields::of(&stream);
        stream_reader::settle(&fields, &future)?;
        let waiter = fields.get(&WAITER)?;
        stream_reader::unlist_waiter(&fields, &waiter)
    }
}

/// Runs until something has to be waited for, or all is done. `resume` is for a coroutine that is inside already.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn run<'py>(
    py: Python<'py>,
    this: *mut StreamCall,
    resume: Resume<'_, 'py>,
) -> PyResult<Step<'py>> {
    // SAFETY: the GIL is held (`py`), and `this` is a live object of our type, which is the function's contract. While
    // `inner` runs, the phase keeps others from replacing the fields.
    unsafe {
        let mut resume = resume;
        loop {
            if let Some(inner) = (*this).inner.bound(py) {
                match resume(&inner)? {
                    Step::Return(value) if (*this).inner_role == Inner::TakesOver => {
                        return Ok(Step::Return(value));
                    }
                    Step::Return(_) => {
                        drop((*this).inner.take());
                    }
                    waits @ Step::Yield(_) => return Ok(waits),
                }
            }
            resume = &coroutine::resume;
            match go_on(py, this)? {
                Progress::Return(value) => return Ok(Step::Return(value)),
                Progress::Wait(future) => {
                    (*this).has_waited = true;
                    drop((*this).future.replace(future.clone().into()));
                    return Ok(Step::Yield(future));
                }
                Progress::Hand(coroutine, role) => {
                    (*this).has_waited = true;
                    (*this).inner_role = role;
                    drop((*this).inner.replace(coroutine.into()));
                }
            }
        }
    }
}

/// Notes how a step has ended.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn settle<'py>(
    py: Python<'py>,
    object: *mut ffi::PyObject,
    result: PyResult<Step<'py>>,
) -> PyResult<Step<'py>> {
    // SAFETY: the GIL is held (`py`), and `object` is a live object of our type, which is the function's contract.
    unsafe {
        if let Ok(Step::Yield(_)) = &result {
            (*content::<StreamCall>(object)).phase = Phase::Waiting;
            return result;
        }
        let ended = end_wait(py, content(object));
        finish(object);
        ended.and(result)
    }
}

/// Ends a call that is not to go on.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn finish(object: *mut ffi::PyObject) {
    // SAFETY: the GIL is held, and `object` is a live object of our type, which is the function's contract.
    let taken = unsafe {
        let this = content::<StreamCall>(object);
        (*this).phase = Phase::Finished;
        (*this).take()
    };
    drop(taken);
}

/// Ends a call whose caller does not wait any longer.
fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    let this = content::<StreamCall>(object);
    // SAFETY: called with the GIL for a live object of our type that is not running.
    unsafe {
        let inner = (*this).inner.bound(py);
        // Both run Python code, which may come back to this call.
        let phase = std::mem::replace(&mut (*this).phase, Phase::Running);
        let ended = match phase {
            Phase::Waiting => end_wait(py, this),
            _ => Ok(()),
        };
        let closed = match inner {
            Some(inner) => inner.call_method0(intern!(py, "close")).map(drop),
            None => Ok(()),
        };
        finish(object);
        ended.and(closed)
    }
}

impl Coroutine for StreamCall {
    #[cfg(Py_GIL_DISABLED)]
    fn section(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
        // SAFETY: called with the GIL for a live object of our type. The field never changes.
        unsafe { (*content::<Self>(object)).section.as_ptr() }
    }

    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: called with the GIL for a live object of our type.
        unsafe { (*content::<Self>(object)).phase }
    }

    fn qualified_name(object: *mut ffi::PyObject) -> &'static str {
        // SAFETY: the trait's functions are called with the GIL and a live object of the type.
        unsafe { (*content::<Self>(object)).kind }.qualified_name()
    }

    fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
        step(py, object)
    }

    fn throw<'py>(
        py: Python<'py>,
        object: *mut ffi::PyObject,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Step<'py>> {
        let this = content::<Self>(object);
        // SAFETY: the trait's functions are called with the GIL and a live object of the type, and `arguments` is a
        // tuple. The phase keeps others from replacing the fields.
        unsafe {
            (*this).phase.begin(py)?;
            let result = if (*this).inner.is_none() {
                match end_wait(py, this) {
                    Ok(()) => Err(support::thrown(py, arguments.as_ptr())),
                    Err(error) => Err(error),
                }
            } else {
                run(py, this, &|inner| coroutine::throw_into(inner, arguments))
            };
            settle(py, object, result)
        }
    }

    fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
        Self::phase(object).check_not_running(py)?;
        close(py, object)
    }
}

/// The object that is awaited, for those who follow a chain of coroutines.
unsafe extern "C" fn cr_await(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard_in(StreamCall::section(object), |py| {
        // SAFETY: called with the GIL for a live object of our type.
        let awaited = unsafe {
            let this = content::<StreamCall>(object);
            (*this).inner.bound(py).or_else(|| (*this).future.bound(py))
        };
        Ok(awaited.unwrap_or_else(|| py.None().into_bound(py)))
    })
}

/// Whether the collector has cleared the reader, which is garbage with its call then.
///
/// # Safety
/// Called with the GIL for an object of our type that waits.
unsafe fn is_emptied(py: Python<'_>, this: *mut StreamCall) -> PyResult<bool> {
    // SAFETY: the GIL is held (`py`), and `this` is of our type and waits, which is the function's contract.
    let stream = unsafe { stream_of(py, this)? };
    let waiter = Fields::of(&stream).own(&WAITER)?;
    Ok(waiter.is_none())
}

/// Ends a call that nobody refers to any longer, before its fields are dropped.
///
/// # Safety
/// Called with the GIL for an object of our type that does not run.
unsafe fn abandon(object: *mut ffi::PyObject) {
    // SAFETY: the GIL is held, and `object` is one of our type that does not run, which is the function's contract.
    unsafe {
        let this = content::<StreamCall>(object);
        match (*this).phase {
            Phase::Created => coroutine::warn_if_never_awaited::<StreamCall>(object),
            // As the end of a coroutine that waits in a `finally`.
            Phase::Waiting if (*this).future.is_some() => {
                let pending = PendingException::take();
                support::attached(|py| {
                    let section = Borrowed::from_ptr(py, StreamCall::section(object));
                    let ended = with_critical_section(&section, || match is_emptied(py, this) {
                        Ok(true) => Ok(()),
                        Ok(false) => end_wait(py, this),
                        Err(error) => Err(error),
                    });
                    if let Err(error) = ended {
                        error.write_unraisable(py, None);
                    }
                });
                pending.restore();
            }
            _ => {}
        }
    }
}

// SAFETY: the functions of the table are for calls of streams.
unsafe impl Native for StreamCall {
    const NAME: &'static CStr = c"ringloop._core.StreamCall";
    const DOC: &'static CStr =
        c"The awaitable that the methods of streams return; it acts like a coroutine.";

    #[inline]
    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn table() -> Table {
        let mut table = coroutine::table::<Self>();
        let am_await = coroutine::am_await::<Self> as *mut c_void;
        table.slots.push(slot(ffi::Py_am_await, am_await));
        let cr_await = native_type::attribute(c"cr_await", cr_await);
        table.attributes.push(cr_await);
        table
    }

    #[inline]
    unsafe fn end(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is of our type, which is the function's contract. Nobody refers to it,
        // so that it doesn't run.
        unsafe { abandon(object) };
    }

    unsafe fn clear(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is alive and of our type, which is the function's contract. It is
        // garbage, and therefore doesn't run.
        unsafe {
            abandon(object);
            finish(object);
        }
    }
}

/// Gives the streams of an asyncio `StreamReaderProtocol` their native classes.
pub(crate) fn adopt(protocol: &Bound<'_, PyAny>) -> PyResult<()> {
    static ADOPT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = protocol.py();
    let adopt = ADOPT.get_or_try_init(py, || {
        let adopt = support::python(py)?.getattr(intern!(py, "adopt_streams"))?;
        Ok::<_, PyErr>(adopt.unbind())
    })?;
    adopt.bind(py).call1((protocol,)).map(drop)
}

/// The classes with slots that a server's connections get: for readers, writers and protocols.
type ServerClasses<'py> = (Bound<'py, PyType>, Bound<'py, PyType>, Bound<'py, PyType>);

/// Gives these classes, which derive from asyncio's, their methods; those of `server` inherit them. `reader_attributes` is
/// how many attributes a new reader has, and `done` a future whose result is None. To be called once.
#[pyfunction]
fn _add_stream_methods(
    reader: &Bound<'_, PyType>,
    writer: &Bound<'_, PyType>,
    server: ServerClasses<'_>,
    reader_attributes: usize,
    done: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = reader.py();
    let (server_reader, server_writer, server_protocol) = server;
    stream_reader::OWN_ATTRIBUTES.store(reader_attributes, Relaxed);
    let slots: [(&Bound<'_, PyType>, &[&Attribute]); 3] = [
        (
            &server_reader,
            &[
                &LIMIT, &LOOP, &BUFFER, &EOF, &WAITER, &EXCEPTION, &PAUSED, &TRANSPORT,
            ],
        ),
        (
            &server_writer,
            &[&WRITER_TRANSPORT, &WRITER_READER, &WRITER_PROTOCOL],
        ),
        (
            &server_protocol,
            &[&REFERENCE, &WRITING_PAUSED, &CONNECTION_LOST],
        ),
    ];
    for (class, attributes) in slots {
        for attribute in attributes {
            attribute.find_slot(class)?;
        }
    }
    slotted::register(slots.map(|(class, _)| class));
    stream_reader::set_classes(reader, &server_reader, &server_protocol)?;
    waiter::set_done(py, done)?;
    for is_reader in [true, false] {
        is_unpatched(asyncios(py, is_reader)?, is_reader)?;
    }
    let methods: [(&Bound<'_, PyType>, &'static CStr, Function, &'static CStr); 7] = [
        (
            reader,
            c"feed_data",
            feed_data,
            c"feed_data($self, data)\n--\n\nSee asyncio.StreamReader.feed_data.",
        ),
        (
            reader,
            c"read",
            read,
            c"read($self, n=-1)\n--\n\nSee asyncio.StreamReader.read.",
        ),
        (
            reader,
            c"readexactly",
            read_exactly,
            c"readexactly($self, n)\n--\n\nSee asyncio.StreamReader.readexactly.",
        ),
        (
            reader,
            c"readuntil",
            read_until,
            c"readuntil($self, separator=b'\\n')\n--\n\nSee asyncio.StreamReader.readuntil.",
        ),
        (
            reader,
            c"readline",
            read_line,
            c"readline($self)\n--\n\nSee asyncio.StreamReader.readline.",
        ),
        (
            writer,
            c"drain",
            drain,
            c"drain($self)\n--\n\nSee asyncio.StreamWriter.drain.",
        ),
        (
            writer,
            c"write",
            write,
            c"write($self, data)\n--\n\nSee asyncio.StreamWriter.write.",
        ),
    ];
    let ends: [(&Bound<'_, PyType>, &'static CStr, Function, &'static CStr); 2] = [
        (
            reader,
            c"feed_eof",
            feed_eof,
            c"feed_eof($self)\n--\n\nSee asyncio.StreamReader.feed_eof.",
        ),
        (
            reader,
            c"set_exception",
            set_exception,
            c"set_exception($self, exc)\n--\n\nSee asyncio.StreamReader.set_exception.",
        ),
    ];
    let ends = ends.into_iter().filter(|_| cfg!(Py_GIL_DISABLED));
    for (class, name, function, doc) in methods.into_iter().chain(ends) {
        // SAFETY: each function takes the objects of its class, by METH_FASTCALL | METH_KEYWORDS.
        unsafe { add_method(class, method_with_arguments(name, function, doc))? };
    }
    Ok(())
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    native_type::add_to::<StreamCall>(module)?;
    module.add_function(wrap_pyfunction!(_add_stream_methods, module)?)
}
