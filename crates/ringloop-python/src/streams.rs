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

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyTuple, PyType};

use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::names::intern;
use crate::native_type::{
    self, EndOfLife, Head, NativeType, PendingException, attribute, slot, visit_all,
};
use crate::objects::{self, New};
use crate::stream_reader::{self, Originals};
use crate::support::{self, Fields, guard};

/// The method that was called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    ReadExactly,
    ReadUntil,
    ReadLine,
    Drain,
}

impl Kind {
    fn qualified_name(self) -> &'static str {
        match self {
            Self::Read => "StreamReader.read",
            Self::ReadExactly => "StreamReader.readexactly",
            Self::ReadUntil => "StreamReader.readuntil",
            Self::ReadLine => "StreamReader.readline",
            Self::Drain => "StreamWriter.drain",
        }
    }
}

/// What a coroutine of asyncio's does for us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inner {
    /// All that is left: its result is ours.
    TakesOver,
    /// `_wait_for_data`; we go on after it.
    Waits,
}

/// One call of a method.
#[repr(C)]
struct StreamCall {
    head: Head,
    /// The reader, or the writer.
    stream: *mut ffi::PyObject,
    /// What the method was given; null where that is nothing.
    argument: *mut ffi::PyObject,
    /// The future that was yielded, if it is ours.
    future: *mut ffi::PyObject,
    /// A coroutine of asyncio's.
    inner: *mut ffi::PyObject,
    /// How many bytes are asked for.
    count: usize,
    /// Where the search for the separator goes on.
    offset: usize,
    kind: Kind,
    phase: Phase,
    inner_role: Inner,
    has_waited: bool,
}

static mut CLASS: *mut ffi::PyTypeObject = ptr::null_mut();

static READER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static WRITER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static READER_METHODS: Originals<6> = Originals::new([
    "read",
    "readexactly",
    "readuntil",
    "readline",
    "_wait_for_data",
    "_maybe_resume_transport",
]);
static WRITER_METHODS: Originals<2> = Originals::new(["drain", "write"]);

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

/// asyncio's method, called with the arguments of ours.
///
/// # Safety
/// The GIL is held; `arguments` has `positional` objects and one for each of `names`, all alive.
unsafe fn call_asyncio<'py>(
    method: &Bound<'py, PyAny>,
    stream: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as the function asks; the vector lives until the call is over.
    unsafe {
        let keywords = if names.is_null() {
            0
        } else {
            ffi::PyTuple_GET_SIZE(names)
        };
        let given: &[*mut ffi::PyObject] = if positional + keywords == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(arguments, (positional + keywords) as usize)
        };
        let all: Vec<_> = std::iter::once(stream)
            .chain(given.iter().copied())
            .collect();
        let result = ffi::PyObject_Vectorcall(
            method.as_ptr(),
            all.as_ptr(),
            positional as usize + 1,
            names,
        );
        Bound::from_owned_ptr_or_err(method.py(), result)
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
    // SAFETY: as the function asks; every field is set before the object is tracked.
    unsafe {
        let object = native_type::allocate(CLASS);
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        let this = object.cast::<StreamCall>();
        (*this).stream = ffi::Py_NewRef(stream);
        (*this).argument = ffi::Py_XNewRef(argument);
        (*this).count = count;
        (*this).kind = kind;
        (*this).phase = Phase::Created;
        (*this).inner_role = Inner::TakesOver;
        (*this).has_waited = false;
        ffi::PyObject_GC_Track(object.cast());
        Ok(Bound::from_owned_ptr(py, object))
    }
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

/// The one positional argument of a call that has no other.
///
/// # Safety
/// As `call_asyncio`.
unsafe fn only_argument(
    py: Python<'_>,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> Option<Bound<'_, PyAny>> {
    // SAFETY: as the function asks.
    unsafe {
        let has_names = !names.is_null() && ffi::PyTuple_GET_SIZE(names) > 0;
        (positional == 1 && !has_names).then(|| Bound::from_borrowed_ptr(py, *arguments))
    }
}

/// Whether a call has no arguments.
///
/// # Safety
/// The GIL is held; `names` is a tuple or null.
unsafe fn has_none(positional: ffi::Py_ssize_t, names: *mut ffi::PyObject) -> bool {
    // SAFETY: as the function asks.
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
                // SAFETY: as above.
                unsafe { call_asyncio(&method, $stream, $arguments, $positional, $names) }
            })
        }
    )* };
}

methods! {
    read true "read" |py, stream, arguments, positional, names| {
        match only_argument(py, arguments, positional, names) {
            Some(argument) => match count_of(&argument) {
                Some(count) => Some(new_call(py, Kind::Read, stream, argument.as_ptr(), count)?),
                None => None,
            },
            None => None,
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
                let transport = Fields::of(&stream)?.get(intern!(py, "_transport"))?;
                support::call_method1(&transport, intern!(py, "write"), data.as_ptr())?;
                Some(py.None().into_bound(py))
            }
            None => None,
        }
    }
}

/// What a step that could not wait for a future of ours comes to.
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
    // SAFETY: as the function asks; the fields are not replaced while a step runs.
    unsafe {
        let kind = (*this).kind;
        let class = asyncios(py, kind != Kind::Drain)?;
        let method =
            class.getattr(New(coroutine::unqualified(kind.qualified_name())).into_pyobject(py)?)?;
        let arguments = [(*this).argument];
        let count = (!(*this).argument.is_null()).into();
        let coroutine = call_asyncio(
            &method,
            (*this).stream,
            arguments.as_ptr(),
            count,
            ptr::null_mut(),
        )?;
        Ok(Progress::Hand(coroutine, Inner::TakesOver))
    }
}

/// asyncio's `IncompleteReadError`, for all that there was; it is taken out of the buffer.
fn incomplete(
    py: Python<'_>,
    buffer: &Bound<'_, PyByteArray>,
    expected: Option<Bound<'_, PyAny>>,
) -> PyResult<PyErr> {
    static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = support::class(py, &ERROR, "asyncio.exceptions", "IncompleteReadError")?;
    let partial = take(buffer, buffer.len())?;
    Ok(support::raised(&class.call1((partial, expected))?))
}

/// What `readuntil` and `readline` raise for a line beyond the limit. `readuntil` leaves it in the buffer; `readline`
/// takes out all that is known to belong to it.
#[cold]
fn too_long(
    reader: &Bound<'_, PyAny>,
    buffer: &Bound<'_, PyByteArray>,
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
    // SAFETY: the GIL is held, and no Python code runs while the slice is used.
    let ends_there = unsafe { buffer.as_bytes() }.get(consumed) == Some(&b'\n');
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

/// Takes the first bytes out of a buffer.
fn take<'py>(buffer: &Bound<'py, PyByteArray>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
    let py = buffer.py();
    // SAFETY: the GIL is held, the array is at least this long, and no Python code runs while its bytes are copied.
    unsafe {
        let start = ffi::PyByteArray_AS_STRING(buffer.as_ptr()).cast::<u8>();
        let bytes = objects::bytes(py, std::slice::from_raw_parts(start, count))?;
        let status = if count == buffer.len() {
            ffi::PyByteArray_Resize(buffer.as_ptr(), 0)
        } else {
            ffi::PySequence_DelSlice(buffer.as_ptr(), 0, count as ffi::Py_ssize_t)
        };
        match status {
            0 => Ok(bytes),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

/// `_maybe_resume_transport`, after bytes were taken; returns these.
fn taken<'py>(
    reader: &Bound<'py, PyAny>,
    fields: &Fields<'_, 'py>,
    bytes: Bound<'py, PyBytes>,
) -> PyResult<Progress<'py>> {
    let py = reader.py();
    if fields.is(intern!(py, "_paused"))? {
        reader.call_method0(intern!(py, "_maybe_resume_transport"))?;
    }
    Ok(Progress::Return(bytes.into_any()))
}

/// `_wait_for_data`.
fn wait_for_data<'py>(
    reader: &Bound<'py, PyAny>,
    fields: &Fields<'_, 'py>,
    name: &str,
) -> PyResult<Progress<'py>> {
    let py = reader.py();
    if !fields.get(intern!(py, "_waiter"))?.is_none()
        || fields.is(intern!(py, "_paused"))?
        || fields.find(intern!(py, "_wait_for_data"))?.is_some()
    {
        let wait = reader.call_method1(intern!(py, "_wait_for_data"), (New(name),))?;
        return Ok(Progress::Hand(wait, Inner::Waits));
    }
    let event_loop = fields.get(intern!(py, "_loop"))?;
    let future = event_loop.call_method0(intern!(py, "create_future"))?;
    fields.set(intern!(py, "_waiter"), &future)?;
    Ok(Progress::Wait(future))
}

/// Goes on with a method, from its beginning or after a wait.
///
/// # Safety
/// Called with the GIL for a live object of our type, whose fields are not replaced while a step runs.
unsafe fn go_on(py: Python<'_>, this: *mut StreamCall) -> PyResult<Progress<'_>> {
    // SAFETY: as the function asks.
    let (stream, kind, has_waited, count) = unsafe {
        let stream = Bound::from_borrowed_ptr(py, (*this).stream);
        (stream, (*this).kind, (*this).has_waited, (*this).count)
    };
    if kind == Kind::Drain {
        if can_drain(&stream)? {
            return Ok(Progress::Return(py.None().into_bound(py)));
        }
        // SAFETY: as above.
        return unsafe { take_over(py, this) };
    }
    let fields = Fields::of(&stream)?;
    let is_replaced = || {
        Ok::<_, PyErr>(kind == Kind::ReadLine && fields.find(intern!(py, "readuntil"))?.is_some())
    };
    if !has_waited && (!fields.get(intern!(py, "_exception"))?.is_none() || is_replaced()?) {
        // SAFETY: as above.
        return unsafe { take_over(py, this) };
    }
    let buffer = fields.get(intern!(py, "_buffer"))?;
    let Ok(buffer) = buffer.cast_exact::<PyByteArray>() else {
        // SAFETY: as above.
        return unsafe { take_over(py, this) };
    };
    let is_at_end = || fields.is(intern!(py, "_eof"));
    match kind {
        Kind::Read => {
            if buffer.len() == 0 && !has_waited && !is_at_end()? {
                return wait_for_data(&stream, &fields, "read");
            }
            taken(&stream, &fields, take(buffer, count.min(buffer.len()))?)
        }
        Kind::ReadExactly => {
            if buffer.len() >= count {
                return taken(&stream, &fields, take(buffer, count)?);
            }
            if is_at_end()? {
                // SAFETY: as above.
                let expected = unsafe { Bound::from_borrowed_ptr_or_opt(py, (*this).argument) };
                return Err(incomplete(py, buffer, expected)?);
            }
            wait_for_data(&stream, &fields, "readexactly")
        }
        Kind::ReadUntil | Kind::ReadLine => {
            // SAFETY: as above.
            let argument = unsafe { Bound::from_borrowed_ptr_or_opt(py, (*this).argument) };
            let separator = match &argument {
                Some(separator) => separator.cast::<PyBytes>()?.as_bytes(),
                None => b"\n",
            };
            // SAFETY: as above.
            let offset = unsafe { (*this).offset };
            let limit = fields.get(intern!(py, "_limit"))?;
            let Ok(limit) = limit.extract::<usize>() else {
                // SAFETY: as above.
                return unsafe { take_over(py, this) };
            };
            let len = buffer.len();
            if len >= offset + separator.len() {
                // SAFETY: the GIL is held, and no Python code runs during the search.
                let found = unsafe { find(buffer, separator, offset) };
                match found {
                    Some(start) if start <= limit => {
                        return taken(&stream, &fields, take(buffer, start + separator.len())?);
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
                // SAFETY: as above.
                unsafe { (*this).offset = offset };
            }
            if is_at_end()? {
                if kind == Kind::ReadLine {
                    let partial = take(buffer, buffer.len())?;
                    return Ok(Progress::Return(partial.into_any()));
                }
                return Err(incomplete(py, buffer, None)?);
            }
            wait_for_data(&stream, &fields, "readuntil")
        }
        Kind::Drain => unreachable!("returned above"),
    }
}

/// Where the separator begins in the buffer, from `offset` on.
///
/// # Safety
/// The GIL is held, and `offset` is within the buffer.
unsafe fn find(buffer: &Bound<'_, PyByteArray>, separator: &[u8], offset: usize) -> Option<usize> {
    // SAFETY: as the function asks; memmem reads within both lengths.
    unsafe {
        let start = ffi::PyByteArray_AS_STRING(buffer.as_ptr()).cast::<u8>();
        let rest = buffer.len() - offset;
        let found = libc::memmem(
            start.add(offset).cast(),
            rest,
            separator.as_ptr().cast(),
            separator.len(),
        );
        (!found.is_null()).then(|| found.cast::<u8>().offset_from(start) as usize)
    }
}

/// Whether `drain` has nothing to wait for, and no error to raise.
fn can_drain(writer: &Bound<'_, PyAny>) -> PyResult<bool> {
    static PROTOCOL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static FLOW_CONTROL: Originals<1> = Originals::new(["_drain_helper"]);
    let py = writer.py();
    let fields = Fields::of(writer)?;
    let reader = fields.get(intern!(py, "_reader"))?;
    if !reader.is_none() && has_exception(&reader)? {
        return Ok(false);
    }
    let transport = fields.get(intern!(py, "_transport"))?;
    if support::ask(&transport, intern!(py, "is_closing"))? {
        return Ok(false);
    }
    let protocol = fields.get(intern!(py, "_protocol"))?;
    let class = support::class(py, &PROTOCOL, "asyncio.streams", "StreamReaderProtocol")?;
    if !protocol.get_type().is(class) || !FLOW_CONTROL.are_in_place(class)? {
        return Ok(false);
    }
    let fields = Fields::of(&protocol)?;
    Ok(!fields.is(intern!(py, "_connection_lost"))?
        && !fields.is(intern!(py, "_paused"))?
        && fields.find(intern!(py, "_drain_helper"))?.is_none())
}

/// Whether `reader.exception()` gives one.
fn has_exception(reader: &Bound<'_, PyAny>) -> PyResult<bool> {
    static EXCEPTION: Originals<1> = Originals::new(["exception"]);
    let py = reader.py();
    let name = intern!(py, "exception");
    if is_native(reader) && EXCEPTION.are_in_place(asyncios(py, true)?)? {
        let fields = Fields::of(reader)?;
        if fields.find(name)?.is_none() {
            return Ok(!fields.get(intern!(py, "_exception"))?.is_none());
        }
    }
    Ok(!reader.call_method0(name)?.is_none())
}

/// Whether a reader has our class.
fn is_native(reader: &Bound<'_, PyAny>) -> bool {
    let class = stream_reader::NATIVE_READER.get(reader.py());
    class.is_some_and(|class| reader.get_type().is(class))
}

/// What a step asks of the coroutine that is inside.
type Resume<'a, 'py> = &'a dyn Fn(&Bound<'py, PyAny>) -> PyResult<Step<'py>>;

/// Takes the next step, or has the coroutine that is inside take it.
fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    let this = object.cast::<StreamCall>();
    // SAFETY: called with the GIL for a live object of our type.
    unsafe {
        (*this).phase.check(py)?;
        let waited = match Bound::from_borrowed_ptr_or_opt(py, (*this).future) {
            // A task throws the future's exception; others only resume.
            Some(future) => match future.call_method0(intern!(py, "result")) {
                Err(_) if !support::ask(&future, intern!(py, "done"))? => {
                    return Err(coroutine::awaited_already(py));
                }
                result => result.map(drop),
            },
            None => Ok(()),
        };
        (*this).phase = Phase::Running;
        let result = end_wait(py, this)
            .and(waited)
            .and_then(|()| run(py, this, &coroutine::resume));
        settle(py, object, result)
    }
}

/// Ends a wait for a future of ours, as the `finally` of `_wait_for_data` does.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn end_wait(py: Python<'_>, this: *mut StreamCall) -> PyResult<()> {
    // SAFETY: as the function asks. The field is emptied before its reference is dropped.
    unsafe {
        let future = std::mem::replace(&mut (*this).future, ptr::null_mut());
        let Some(_future) = Bound::from_owned_ptr_or_opt(py, future) else {
            return Ok(());
        };
        let stream = Bound::from_borrowed_ptr(py, (*this).stream);
        Fields::of(&stream)?.set(intern!(py, "_waiter"), py.None().bind(py))
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
    // SAFETY: as the function asks.
    unsafe {
        let mut resume = resume;
        loop {
            if let Some(inner) = Bound::from_borrowed_ptr_or_opt(py, (*this).inner) {
                match resume(&inner)? {
                    Step::Return(value) if (*this).inner_role == Inner::TakesOver => {
                        return Ok(Step::Return(value));
                    }
                    Step::Return(_) => {
                        ffi::Py_XDECREF(std::mem::replace(&mut (*this).inner, ptr::null_mut()));
                    }
                    waits @ Step::Yield(_) => return Ok(waits),
                }
            }
            resume = &coroutine::resume;
            match go_on(py, this)? {
                Progress::Return(value) => return Ok(Step::Return(value)),
                Progress::Wait(future) => {
                    (*this).has_waited = true;
                    (*this).future = ffi::Py_NewRef(future.as_ptr());
                    future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
                    return Ok(Step::Yield(future));
                }
                Progress::Hand(coroutine, role) => {
                    (*this).has_waited = true;
                    (*this).inner_role = role;
                    (*this).inner = coroutine.into_ptr();
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
    // SAFETY: as the function asks.
    unsafe {
        if let Ok(Step::Yield(_)) = &result {
            (*object.cast::<StreamCall>()).phase = Phase::Waiting;
            return result;
        }
        let ended = end_wait(py, object.cast());
        finish(object);
        ended.and(result)
    }
}

/// Ends a call that is not to go on.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn finish(object: *mut ffi::PyObject) {
    // SAFETY: as the function asks.
    unsafe {
        (*object.cast::<StreamCall>()).phase = Phase::Finished;
        drop_fields(object);
    }
}

/// # Safety
/// Called with the GIL for an object of our type that is not running.
unsafe fn drop_fields(object: *mut ffi::PyObject) {
    let this = object.cast::<StreamCall>();
    // SAFETY: as the function asks. Each field is emptied before its reference is dropped.
    unsafe {
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).inner, ptr::null_mut()));
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).future, ptr::null_mut()));
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).argument, ptr::null_mut()));
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).stream, ptr::null_mut()));
    }
}

/// Ends a call whose caller does not wait any longer.
fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    let this = object.cast::<StreamCall>();
    // SAFETY: called with the GIL for a live object of our type that is not running.
    unsafe {
        let inner = Bound::from_borrowed_ptr_or_opt(py, (*this).inner);
        let ended = match (*this).phase {
            Phase::Waiting => end_wait(py, this),
            _ => Ok(()),
        };
        let closed = match inner {
            Some(inner) => {
                (*this).phase = Phase::Running;
                inner.call_method0(intern!(py, "close")).map(drop)
            }
            None => Ok(()),
        };
        finish(object);
        ended.and(closed)
    }
}

impl Coroutine for StreamCall {
    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: called with the GIL for a live object of our type.
        unsafe { (*object.cast::<Self>()).phase }
    }

    fn qualified_name(object: *mut ffi::PyObject) -> &'static str {
        // SAFETY: as above.
        unsafe { (*object.cast::<Self>()).kind }.qualified_name()
    }

    fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
        step(py, object)
    }

    fn throw<'py>(
        py: Python<'py>,
        object: *mut ffi::PyObject,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Step<'py>> {
        Self::phase(object).check(py)?;
        let this = object.cast::<Self>();
        // SAFETY: as above.
        unsafe {
            (*this).phase = Phase::Running;
            let result = if (*this).inner.is_null() {
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

/// What is awaited, for those who follow a chain of coroutines.
unsafe extern "C" fn cr_await(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called with the GIL for a live object of our type.
    unsafe {
        let this = object.cast::<StreamCall>();
        let awaited = [(*this).inner, (*this).future]
            .into_iter()
            .find(|it| !it.is_null());
        ffi::Py_NewRef(awaited.unwrap_or_else(|| ffi::Py_None()))
    }
}

/// What happens to a call that nobody refers to any longer, before its fields are dropped.
///
/// # Safety
/// Called with the GIL for an object of our type that does not run.
unsafe fn abandon(object: *mut ffi::PyObject) {
    // SAFETY: as the function asks.
    unsafe {
        let this = object.cast::<StreamCall>();
        match (*this).phase {
            Phase::Created => coroutine::warn_if_never_awaited::<StreamCall>(object),
            // As the end of a coroutine that waits in a `finally`.
            Phase::Waiting if !(*this).future.is_null() => {
                let pending = PendingException::take();
                support::attached(|py| {
                    if let Err(error) = end_wait(py, this) {
                        error.write_unraisable(py, None);
                    }
                });
                pending.restore();
            }
            _ => {}
        }
    }
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object of our type whose count fell to zero.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        abandon(object);
        drop_fields(object);
        let class = ffi::Py_TYPE(object);
        native_type::free(object);
        ffi::Py_DECREF(class.cast());
        end.finish();
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, object.
    unsafe {
        let this = object.cast::<StreamCall>();
        let members = [
            (*this).stream,
            (*this).argument,
            (*this).future,
            (*this).inner,
            ffi::Py_TYPE(object).cast(),
        ];
        visit_all(members, visit, argument)
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector, with the GIL, for an unreachable object, which therefore doesn't run.
    unsafe {
        abandon(object);
        finish(object);
    }
    0
}

type Method = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    ffi::Py_ssize_t,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// Gives the method to a class.
fn add_method(
    class: &Bound<'_, PyType>,
    name: &'static CStr,
    function: Method,
    doc: &'static CStr,
) -> PyResult<()> {
    let py = class.py();
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: function,
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.as_ptr().cast::<c_char>(),
    }));
    // SAFETY: the GIL is held; the definition lives for ever.
    let method = unsafe {
        let method = ffi::PyDescr_NewMethod(class.as_ptr().cast(), definition);
        Bound::from_owned_ptr_or_err(py, method)?
    };
    class.setattr(
        New(name.to_str().unwrap_or_default()).into_pyobject(py)?,
        method,
    )
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

/// Gives these classes, which derive from asyncio's, their methods. To be called once.
#[pyfunction]
fn _add_stream_methods(reader: &Bound<'_, PyType>, writer: &Bound<'_, PyType>) -> PyResult<()> {
    let py = reader.py();
    stream_reader::NATIVE_READER.get_or_init(py, || reader.clone().unbind());
    for is_reader in [true, false] {
        is_unpatched(asyncios(py, is_reader)?, is_reader)?;
    }
    let methods: [(&Bound<'_, PyType>, &'static CStr, Method, &'static CStr); 6] = [
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
    for (class, name, function, doc) in methods {
        add_method(class, name, function, doc)?;
    }
    Ok(())
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let mut attributes = coroutine::attributes::<StreamCall>();
    attributes.push(attribute(c"cr_await", cr_await));
    let class = NativeType {
        name: c"ringloop._core.StreamCall",
        doc: c"What the methods of streams return: an awaitable that acts like a coroutine.",
        size: size_of::<StreamCall>(),
        slots: [
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(
                ffi::Py_am_await,
                coroutine::am_await::<StreamCall> as *mut c_void,
            ),
        ]
        .into_iter()
        .chain(coroutine::slots::<StreamCall>())
        .collect(),
        methods: coroutine::methods::<StreamCall>(),
        attributes,
        vectorcall_offset: None,
    }
    .make(py)?;
    // SAFETY: the module is initialised once, with the GIL, before any call is made; the type lives for ever.
    unsafe {
        CLASS = class;
        module.add("StreamCall", Bound::from_borrowed_ptr(py, class.cast()))?;
    }
    module.add_function(wrap_pyfunction!(_add_stream_methods, module)?)
}
