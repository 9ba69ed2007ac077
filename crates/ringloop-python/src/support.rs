//! Helpers that the other modules share: the boundary between C and Rust, errors, and the Python objects that are looked
//! up once.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::cell;
use crate::names::intern;
use crate::objects::{self, New};
use pyo3::Borrowed;
use pyo3::exceptions::{
    PyBaseException, PyImportError, PyKeyboardInterrupt, PyOSError, PyRuntimeError, PySystemError,
    PySystemExit, PyTypeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyString, PyTuple, PyType};
use ringloop_driver::Refused;

/// The content of a Python object of ours that may be subclassed.
///
/// Up to Python 3.12 `object.__new__` gives a subclass's object its room for attributes last. Where there is no memory
/// for that, the interpreter ends an object that is all zeros: PyO3 drops a content that was never written.
pub(crate) struct Made<T> {
    is_made: bool,
    content: MaybeUninit<T>,
}

impl<T> Made<T> {
    pub(crate) const fn new(content: T) -> Self {
        Self {
            is_made: true,
            content: MaybeUninit::new(content),
        }
    }

    /// To be asked in `Drop`; everywhere else it is true.
    pub(crate) fn is_made(this: &Self) -> bool {
        this.is_made
    }
}

impl<T> Deref for Made<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: an object gets its content, by `new`, before anybody else sees it; whoever ends one asks `is_made`
        // first.
        unsafe { self.content.assume_init_ref() }
    }
}

impl<T> Drop for Made<T> {
    fn drop(&mut self) {
        if self.is_made {
            // SAFETY: `new` has written it, and it is dropped once.
            unsafe { self.content.assume_init_drop() };
        }
    }
}

/// Tells PyO3 that this thread has the GIL, in a function that the interpreter calls and not PyO3. It would take the
/// thread for detached otherwise, unless a function of its own is further up the stack, and put off the drop of every
/// `Py` until it is entered again.
///
/// # Safety
/// The GIL is held.
pub(crate) unsafe fn attached<R>(body: impl FnOnce(Python<'_>) -> R) -> R {
    // SAFETY: the GIL is held, which is the function's contract. Unlike `attach` it works in the thread that is
    // finalizing the interpreter, too.
    unsafe { Python::attach_unchecked(body) }
}

/// Runs the body of a C function: an error becomes the current exception, and so does a panic.
pub(crate) fn guard(
    body: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
) -> *mut ffi::PyObject {
    // SAFETY: only called from functions that the interpreter calls, with the GIL held.
    unsafe {
        attached(|py: Python<'_>| {
            catch(|| {
                cell::expect_none_borrowed("Python called into ringloop");
                body(py)
            })
        })
    }
}

/// The same in a critical section of an object, which another thread that wants it waits for. It is lost while this
/// thread is detached: which any Python code may cause, as with the GIL, but also a wait for a cell that another thread has
/// borrowed, or for another section. So everything may have changed after a borrow, too, and what must change together
/// changes within one, or with none in between.
#[inline]
pub(crate) fn guard_in(
    section: *mut ffi::PyObject,
    body: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: only called from functions that the interpreter calls, for objects that live until they return.
        let section = unsafe { Borrowed::from_ptr(py, section) };
        with_critical_section(&section, || body(py))
    })
}

/// The same for the functions that run once per callback, where telling PyO3 would take 30 of 500 instructions. `body`
/// must not drop a `Py`; a `Bound` is dropped at once in any case.
pub(crate) fn guard_scheduling<'py>(
    body: impl FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
) -> *mut ffi::PyObject {
    // SAFETY: only called from functions that the interpreter calls, with the GIL held.
    let py = unsafe { Python::assume_attached() };
    catch(|| {
        cell::expect_none_borrowed("Python called into ringloop");
        body(py)
    })
}

/// Runs `body`, and hands its result to the interpreter: a new reference, or null with the exception set. A panic is an
/// error like others.
#[inline]
fn catch<'py>(body: impl FnOnce() -> PyResult<Bound<'py, PyAny>>) -> *mut ffi::PyObject {
    // What leaves `catch_unwind` is a pointer: a `PyResult` has 64 bytes, and would be copied on the way.
    let handed = catch_unwind(AssertUnwindSafe(|| match body() {
        Ok(value) => value.into_ptr(),
        Err(error) => raise(error),
    }));
    handed.unwrap_or_else(|payload| {
        // SAFETY: only called by `guard` and `guard_scheduling`, with the GIL held.
        raise(unsafe { attached(|py| panic_error(py, &*payload)) })
    })
}

#[cold]
fn raise(error: PyErr) -> *mut ffi::PyObject {
    // SAFETY: only called by `catch`, with the GIL held. An error may hold more than it hands over. PyO3's own errors
    // are made only here, and panic without memory.
    unsafe {
        attached(|py| {
            if catch_unwind(AssertUnwindSafe(|| error.restore(py))).is_err() {
                ffi::PyErr_NoMemory();
            }
        });
    }
    std::ptr::null_mut()
}

/// A panic as Python's exception for an internal error, so that it neither aborts nor passes unseen.
#[cold]
fn panic_error(py: Python<'_>, payload: &(dyn Any + Send)) -> PyErr {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic");
    objects::error::<PySystemError>(py, &format!("internal error in ringloop: {text}"))
}

/// Python's exception for an error of the operating system: the `OSError` subclass that belongs to its errno, with
/// errno and text, as CPython raises it.
pub(crate) fn os_error(py: Python<'_>, error: &io::Error) -> PyErr {
    if let Some(refused) = Refused::of(error) {
        let text = refused.to_string();
        return match refused.errno() {
            Some(code) => objects::os_error(py, code, &text),
            None => objects::error::<PyOSError>(py, &text),
        };
    }
    match error.raw_os_error() {
        Some(code) => errno_error(py, code),
        None if error.kind() == io::ErrorKind::InvalidInput => {
            objects::error::<PyValueError>(py, &error.to_string())
        }
        None => objects::error::<PyRuntimeError>(py, &error.to_string()),
    }
}

/// The `OSError` subclass for an errno.
pub(crate) fn errno_error(py: Python<'_>, code: i32) -> PyErr {
    // SAFETY: the GIL is held; errno is this thread's own.
    unsafe {
        *libc::__errno_location() = code;
        ffi::PyErr_SetFromErrno(ffi::PyExc_OSError);
    }
    PyErr::fetch(py)
}

/// `ImportError` in a subinterpreter: types and looked-up objects are kept once per process. From Python 3.12 on,
/// CPython refuses by itself, except in interpreters that were made to be lenient.
pub(crate) fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    // SAFETY: the GIL is held.
    let is_main = unsafe { ffi::PyInterpreterState_Get() == ffi::PyInterpreterState_Main() };
    if is_main {
        return Ok(());
    }
    Err(objects::error::<PyImportError>(
        py,
        "ringloop does not support subinterpreters; use asyncio's own event loop here",
    ))
}

/// Whether the running Python is 3.`minor` or later.
#[inline]
pub(crate) fn python_is_at_least(minor: u8) -> bool {
    // SAFETY: a constant of the interpreter's, 0x03.. with the minor version in the next byte.
    let version = unsafe { ffi::Py_Version };
    (version >> 16) as u8 >= minor
}

/// An integer as C's `ssize_t`, with the interpreter's own error where it is too large.
pub(crate) fn to_ssize(number: &Bound<'_, PyAny>) -> PyResult<isize> {
    // SAFETY: the GIL is held and the object is alive.
    let value = unsafe { ffi::PyLong_AsSsize_t(number.as_ptr()) };
    match PyErr::take(number.py()) {
        Some(error) => Err(error),
        None => Ok(value),
    }
}

/// Calls `function` as the `except` block does that has caught `error`, so that the user's code finds the exception in
/// `sys.exc_info()`, can raise it again, and has it for the context of its own errors.
#[cold]
pub(crate) fn call_handling<'py, A>(
    error: PyErr,
    function: &Bound<'py, PyAny>,
    arguments: impl FnOnce(Bound<'py, PyAny>) -> A,
) -> PyResult<()>
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
{
    let py = function.py();
    let error = error.into_value(py).into_bound(py).into_any();
    let arguments = arguments(error.clone()).into_pyobject(py)?;
    python(py)?
        .getattr(intern!(py, "call_handling"))?
        .call1((error, function, arguments))
        .map(drop)
}

/// `object.name()`, true or false: by its name, because the user may have put another method in its place.
pub(crate) fn ask(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyResult<bool> {
    object.call_method0(name)?.is_truthy()
}

/// The first of two errors. If both failed, the second one is reported as unraisable.
pub(crate) fn first_error(
    py: Python<'_>,
    first: PyResult<()>,
    second: PyResult<()>,
) -> PyResult<()> {
    match (first, second) {
        (Err(first), Err(second)) => {
            second.write_unraisable(py, None);
            Err(first)
        }
        (first, second) => first.and(second),
    }
}

/// Runs `action` for all of them, even if it fails for some. Returns the first error.
pub(crate) fn for_each<T>(
    py: Python<'_>,
    all: impl IntoIterator<Item = T>,
    mut action: impl FnMut(T) -> PyResult<()>,
) -> PyResult<()> {
    let mut result = Ok(());
    for one in all {
        result = first_error(py, result, action(one));
    }
    result
}

/// `Option<Py<T>>::clone_ref`.
pub(crate) trait CloneRefOption {
    fn clone_ref_opt(&self, py: Python<'_>) -> Self;
}

impl<T> CloneRefOption for Option<Py<T>> {
    fn clone_ref_opt(&self, py: Python<'_>) -> Self {
        self.as_ref().map(|it| it.clone_ref(py))
    }
}

/// A copy of the current `contextvars.Context`.
pub(crate) fn copy_context(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // SAFETY: the GIL is held; the result is a new reference or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent()).map(Bound::unbind) }
}

/// An empty `contextvars.Context`.
pub(crate) fn new_context(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // SAFETY: the GIL is held; the result is a new reference or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_New()).map(Bound::unbind) }
}

/// Whether all callbacks of a stream transport run in one context, which is copied before the protocol is made.
pub(crate) fn has_one_context_per_connection() -> bool {
    python_is_at_least(15)
}

/// Whether nobody else refers to an object, to which this thread has made a reference.
///
/// # Safety
/// The GIL is held, and the object is alive; the caller owns a reference.
#[inline]
pub(crate) unsafe fn is_own(object: *mut ffi::PyObject) -> bool {
    // SAFETY: the GIL is held, and the object is alive, which is the function's contract.
    #[cfg(not(Py_GIL_DISABLED))]
    return unsafe { ffi::Py_REFCNT(object) == 1 };
    // SAFETY: as above.
    #[cfg(Py_GIL_DISABLED)]
    return unsafe { PyUnstable_Object_IsUniquelyReferenced(object) != 0 };
}

/// A pointer to an object that takes its address out of a table, under the table's lock, before its memory goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct WeakPointer(NonNull<ffi::PyObject>);

// SAFETY: it is only followed in attached threads.
unsafe impl Send for WeakPointer {}

impl WeakPointer {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Self {
        // SAFETY: the GIL is held, and the object is alive. Without the GIL, the interpreter has to know before the last
        // reference goes that there may be others to come.
        #[cfg(Py_GIL_DISABLED)]
        unsafe {
            PyUnstable_EnableTryIncRef(object.as_ptr());
        }
        // SAFETY: an object is not at null.
        Self(unsafe { NonNull::new_unchecked(object.as_ptr()) })
    }

    pub(crate) fn addr(self) -> NonZeroUsize {
        self.0.addr()
    }

    pub(crate) fn as_ptr(self) -> *mut ffi::PyObject {
        self.0.as_ptr()
    }

    /// The object, for the collector.
    pub(crate) fn borrowed(&self) -> &Py<PyAny> {
        borrow_pointer(&self.0)
    }

    /// The object. Without the GIL, None if it is ending in another thread.
    ///
    /// # Safety
    /// The lock of the table is held, whose entry this is.
    #[cfg_attr(
        not(Py_GIL_DISABLED),
        allow(clippy::unnecessary_wraps, reason = "the other build needs it")
    )]
    #[inline]
    pub(crate) unsafe fn upgrade(self, py: Python<'_>) -> Option<Bound<'_, PyAny>> {
        // SAFETY: the object's memory is there, since it hasn't taken itself out of the table. With the GIL it is alive.
        unsafe {
            #[cfg(Py_GIL_DISABLED)]
            return (PyUnstable_TryIncRef(self.as_ptr()) != 0)
                .then(|| Bound::from_owned_ptr(py, self.as_ptr()));
            #[cfg(not(Py_GIL_DISABLED))]
            return Some(Bound::from_borrowed_ptr(py, self.as_ptr()));
        }
    }
}

// Of CPython's C API since 3.14 (Include/cpython/object.h); PyO3 doesn't declare them.
#[cfg(Py_GIL_DISABLED)]
unsafe extern "C" {
    fn PyUnstable_Object_IsUniquelyReferenced(object: *mut ffi::PyObject) -> std::ffi::c_int;
    fn PyUnstable_EnableTryIncRef(object: *mut ffi::PyObject);
    fn PyUnstable_TryIncRef(object: *mut ffi::PyObject) -> std::ffi::c_int;
}

/// Runs `body` in a `contextvars.Context`.
pub(crate) fn in_context(
    py: Python<'_>,
    context: &Py<PyAny>,
    body: impl FnOnce() -> PyResult<()>,
) -> PyResult<()> {
    // SAFETY: the GIL is held; an object that is no Context is refused.
    if unsafe { ffi::PyContext_Enter(context.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let result = body();
    // An error of `body` is held in `result`, not set, so it survives leaving the context.
    // SAFETY: the GIL is held (`py`), and it is a Context: `PyContext_Enter` would have refused another object.
    if unsafe { ffi::PyContext_Exit(context.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    result
}

/// True for the exceptions that end the loop instead of going to its exception handler.
pub(crate) fn ends_the_loop(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PySystemExit>(py) || error.is_instance_of::<PyKeyboardInterrupt>(py)
}

/// `ringloop._support`: the Python half of what happens rarely.
pub(crate) fn python(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE
        .get_or_try_init(py, || {
            py.import(intern!(py, "ringloop._support"))
                .map(Bound::unbind)
        })
        .map(|module| module.bind(py))
}

/// The exception that a coroutine's `throw` was given, with the arguments of its call: an instance, or a class with a value.
///
/// # Safety
/// The GIL is held, and `arguments` is a tuple.
pub(crate) unsafe fn thrown(py: Python<'_>, arguments: *mut ffi::PyObject) -> PyErr {
    // SAFETY: the GIL is held, and `arguments` is a live tuple, which is the function's contract.
    let arguments =
        unsafe { Bound::from_borrowed_ptr(py, arguments).cast_into_unchecked::<PyTuple>() };
    let error = || {
        let given = arguments.get_item(0)?;
        let Ok(class) = given.cast::<PyType>() else {
            return Ok(given);
        };
        match arguments.get_item(1) {
            Ok(value) if value.is_instance(class)? => Ok(value),
            Ok(value) if !value.is_none() => class.call1((value,)),
            _ => class.call0(),
        }
    };
    match error() {
        Ok(error) if error.is_instance_of::<PyBaseException>() => PyErr::from_value(error),
        Ok(_) => objects::error::<PyTypeError>(
            py,
            "exceptions must be classes or instances deriving from BaseException",
        ),
        Err(error) => error,
    }
}

/// Whether asyncio's `assert` statements are executed: `python -O` leaves them out.
pub(crate) fn has_assertions(py: Python<'_>) -> PyResult<bool> {
    static OPTIMIZE: PyOnceLock<bool> = PyOnceLock::new();
    let has = OPTIMIZE.get_or_try_init(py, || {
        let flags = py.import(New("sys"))?.getattr(New("flags"))?;
        PyResult::Ok(flags.getattr(New("optimize"))?.extract::<i32>()? == 0)
    })?;
    Ok(*has)
}

/// An exception as `raise` raises it: its context is the one that is being handled.
#[cold]
pub(crate) fn raised(exception: &Bound<'_, PyAny>) -> PyErr {
    // SAFETY: the GIL is held and the object is alive.
    unsafe { ffi::PyErr_SetObject(ffi::Py_TYPE(exception.as_ptr()).cast(), exception.as_ptr()) };
    PyErr::fetch(exception.py())
}

/// The same of an error that native code has made. One that has a context already was raised.
#[cold]
pub(crate) fn in_context_of_handled(py: Python<'_>, error: PyErr) -> PyErr {
    if error.context(py).is_some() {
        return error;
    }
    raised(error.value(py))
}

/// `raise exception`, of an instance or a class.
#[cold]
pub(crate) fn raise_any(exception: Bound<'_, PyAny>) -> PyErr {
    let py = exception.py();
    raised(PyErr::from_value(exception).value(py))
}

/// `ringloop._http`: the same for the HTTP server.
pub(crate) fn http(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE
        .get_or_try_init(py, || {
            py.import(intern!(py, "ringloop._http")).map(Bound::unbind)
        })
        .map(|module| module.bind(py))
}

/// A class, imported once.
pub(crate) fn class<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyType>>,
    module: &str,
    name: &str,
) -> PyResult<&'py Bound<'py, PyType>> {
    let class = cell.get_or_try_init(py, || {
        let class = py.import(New(module))?.getattr(New(name))?;
        class.cast_into().map(Bound::unbind).map_err(PyErr::from)
    })?;
    Ok(class.bind(py))
}

/// Frees the room of a queue that has become empty, where it is more than a few places: a connection may never need it
/// again.
pub(crate) fn give_back_if_empty<T>(queue: &mut VecDeque<T>) {
    const PLACES_KEPT: usize = 64;
    if queue.is_empty() && queue.capacity() > PLACES_KEPT {
        *queue = VecDeque::new();
    }
}

/// A pointer to a live object, seen as a reference, for the collector.
pub(crate) fn borrow_pointer<T>(pointer: &NonNull<T>) -> &Py<PyAny> {
    // SAFETY: `Py` is a transparent wrapper of a non-null object pointer, and the callers' pointers are live objects.
    unsafe { &*std::ptr::from_ref(pointer).cast::<Py<PyAny>>() }
}

/// `object.name(argument)`, without a tuple and without a bound method.
pub(crate) fn call_method1(
    object: &Bound<'_, PyAny>,
    name: &Bound<'_, PyString>,
    argument: *mut ffi::PyObject,
) -> PyResult<()> {
    let py = object.py();
    let stack = [std::ptr::null_mut(), object.as_ptr(), argument];
    // SAFETY: the GIL is held, the objects are alive, and the slot before the first argument is free for the callee.
    unsafe {
        let result = ffi::PyObject_VectorcallMethod(
            name.as_ptr(),
            stack.as_ptr().add(1),
            2 | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, result).map(drop)
    }
}
