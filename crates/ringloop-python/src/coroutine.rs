//! Native objects that act like coroutines: what their types have in common, and how others' coroutines are resumed.
//!
//! They have a coroutine's methods, which is what `asyncio.iscoroutine` asks for, and of its attributes those that
//! AnyIO, asyncio and `inspect` look at. The interpreter takes steps by `am_send` or by `tp_iternext`, which one depends
//! on its version.

#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::ptr;

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::names::intern;
use crate::native_type::{PendingException, Table, attribute, method, slot};
use crate::objects;
use crate::support::{guard, guard_in};

/// The outcome of a step of a coroutine.
pub(crate) enum Step<'py> {
    Yield(Bound<'py, PyAny>),
    Return(Bound<'py, PyAny>),
}

/// Where a native coroutine stands.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// It has not been awaited. What zeroed memory says.
    Created = 0,
    /// In a step. The user's code, if it runs meanwhile, must not step it again.
    Running,
    /// It has yielded what it waits for.
    Waiting,
    /// Returned, raised or closed.
    Finished,
}

impl Phase {
    /// Refuses a step, unless it is possible.
    #[inline]
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Created | Self::Waiting => Ok(()),
            Self::Running => Err(executing(py)),
            Self::Finished => Err(over(py)),
        }
    }

    /// Begins a step, if it is possible, and returns the phase before. Nothing of a step may run Python code before this:
    /// it could come back to the coroutine.
    #[inline]
    pub(crate) fn begin(&mut self, py: Python<'_>) -> PyResult<Self> {
        self.check(py)?;
        Ok(std::mem::replace(self, Self::Running))
    }

    /// Refuses to touch a coroutine in the middle of its own step.
    pub(crate) fn check_not_running(self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Running => Err(executing(py)),
            _ => Ok(()),
        }
    }
}

#[cold]
pub(crate) fn executing(py: Python<'_>) -> PyErr {
    objects::error::<PyValueError>(py, "coroutine already executing")
}

#[cold]
pub(crate) fn over(py: Python<'_>) -> PyErr {
    objects::error::<PyRuntimeError>(py, "cannot reuse already awaited coroutine")
}

#[cold]
pub(crate) fn awaited_already(py: Python<'_>) -> PyErr {
    objects::error::<PyRuntimeError>(py, "coroutine is being awaited already")
}

/// The error of a future for whoever resumes a coroutine before it is done.
#[cold]
pub(crate) fn not_awaited(py: Python<'_>) -> PyErr {
    objects::error::<PyRuntimeError>(py, "await wasn't used with future")
}

/// A qualified name without its class.
pub(crate) fn unqualified(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, name)| name)
}

/// A native type that acts like a coroutine. All functions are called with the GIL and a live object of the type.
pub(crate) trait Coroutine {
    /// The object whose critical section a step, and whatever else uses the content, runs in. It lives as long as the
    /// coroutine, and never changes.
    #[inline]
    fn section(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
        object
    }

    fn phase(object: *mut ffi::PyObject) -> Phase;

    /// The name of the method that a call of which it is, with the name of its class if it has one.
    fn qualified_name(object: *mut ffi::PyObject) -> &'static str;

    /// Takes the next step.
    fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>>;

    /// Raises an exception where it waits; there is at least one argument.
    fn throw<'py>(
        py: Python<'py>,
        object: *mut ffi::PyObject,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Step<'py>>;

    fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()>;
}

/// Slots, methods and attributes that these types have in common.
pub(crate) fn table<C: Coroutine>() -> Table {
    Table {
        slots: slots::<C>().into(),
        methods: methods::<C>(),
        attributes: attributes::<C>(),
    }
}

/// The slots by which it is resumed, and its `repr`. What `await` asks for, `am_await`, is [`am_await`] or [`itself`].
pub(crate) fn slots<C: Coroutine>() -> [ffi::PyType_Slot; 4] {
    [
        slot(ffi::Py_tp_repr, repr::<C> as *mut c_void),
        slot(ffi::Py_tp_iter, itself as *mut c_void),
        slot(ffi::Py_tp_iternext, next::<C> as *mut c_void),
        slot(ffi::Py_am_send, am_send::<C> as *mut c_void),
    ]
}

/// `send(value)`, `throw(type[, value[, traceback]])` and `close()`.
pub(crate) fn methods<C: Coroutine>() -> Vec<ffi::PyMethodDef> {
    let mut send = method(c"send", method_send::<C>, c"Start or resume.");
    send.ml_flags = ffi::METH_O;
    let mut throw = method(
        c"throw",
        method_throw::<C>,
        c"Raise an exception at the await.",
    );
    throw.ml_flags = ffi::METH_VARARGS;
    vec![send, throw, method(c"close", method_close::<C>, c"End it.")]
}

/// The attributes that tell its name and where it stands.
pub(crate) fn attributes<C: Coroutine>() -> Vec<ffi::PyGetSetDef> {
    vec![
        attribute(c"__name__", name::<C>),
        attribute(c"__qualname__", qualified_name::<C>),
        attribute(c"cr_running", cr_running::<C>),
        attribute(c"cr_suspended", cr_suspended::<C>),
        attribute(c"cr_state", cr_state::<C>),
        attribute(c"cr_frame", cr_frame::<C>),
        attribute(c"cr_code", none),
    ]
}

/// A slot that answers with the object itself, as `__iter__` of an iterator does.
pub(crate) unsafe extern "C" fn itself(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live object.
    unsafe { ffi::Py_NewRef(object) }
}

/// The same for `await`, which refuses a coroutine that somebody else awaits.
pub(crate) unsafe extern "C" fn am_await<C: Coroutine>(
    object: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(C::section(object), |py| {
        if C::phase(object) == Phase::Waiting {
            return Err(awaited_already(py));
        }
        // SAFETY: called by the interpreter with the GIL and a live object.
        Ok(unsafe { Bound::from_borrowed_ptr(py, object) })
    })
}

/// Warns of an object that goes before anybody has awaited it.
///
/// # Safety
/// The GIL is held and `object` is one of `C`. An exception that is on its way stays so.
pub(crate) unsafe fn warn_if_never_awaited<C: Coroutine>(object: *mut ffi::PyObject) {
    if C::phase(object) == Phase::Created {
        // SAFETY: the GIL is held, which is the function's contract.
        unsafe { warn_never_awaited(C::qualified_name(object)) };
    }
}

/// # Safety
/// The GIL is held.
#[cold]
unsafe fn warn_never_awaited(name: &str) {
    let text = format!("coroutine '{name}' was never awaited");
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the GIL is held, which is the function's contract, and the text ends with a zero. Where warnings are
    // errors, there is nobody to raise it to.
    unsafe {
        let pending = PendingException::take();
        if ffi::PyErr_WarnEx(ffi::PyExc_RuntimeWarning, text.as_ptr(), 1) != 0 {
            ffi::PyErr_WriteUnraisable(ptr::null_mut());
        }
        pending.restore();
    }
}

/// A step, whose error is as a coroutine raises it: the interpreter would take a `StopIteration` for the result.
#[inline]
fn checked<'py>(py: Python<'py>, step: PyResult<Step<'py>>) -> PyResult<Step<'py>> {
    step.map_err(|error| {
        if error.is_instance_of::<PyStopIteration>(py) {
            no_result(py, &error)
        } else {
            error
        }
    })
}

#[cold]
fn no_result(py: Python<'_>, cause: &PyErr) -> PyErr {
    let error = objects::error::<PyRuntimeError>(py, "coroutine raised StopIteration");
    let (value, cause) = (error.value(py), cause.value(py));
    // SAFETY: the GIL is held and both are exceptions; each call takes a reference.
    unsafe {
        ffi::PyException_SetCause(value.as_ptr(), ffi::Py_NewRef(cause.as_ptr()));
        ffi::PyException_SetContext(value.as_ptr(), ffi::Py_NewRef(cause.as_ptr()));
    }
    error
}

/// Refuses a value that nobody could receive.
#[inline]
fn check_sent<C: Coroutine>(
    py: Python<'_>,
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
) -> PyResult<()> {
    // SAFETY: called with the GIL; the value is an object or null.
    let is_none = value.is_null() || unsafe { ffi::Py_IsNone(value) } != 0;
    if !is_none && C::phase(object) == Phase::Created {
        let text = "can't send non-None value to a just-started coroutine";
        return Err(objects::error::<PyTypeError>(py, text));
    }
    Ok(())
}

unsafe extern "C" fn am_send<C: Coroutine>(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut returned = false;
    let value = guard_in(C::section(object), |py| {
        check_sent::<C>(py, object, value)?;
        match checked(py, C::step(py, object))? {
            Step::Yield(future) => Ok(future),
            Step::Return(value) => {
                returned = true;
                Ok(value)
            }
        }
    });
    // SAFETY: the interpreter gives a place for the result.
    unsafe { *result = value };
    if value.is_null() {
        ffi::PySendResult::PYGEN_ERROR
    } else if returned {
        ffi::PySendResult::PYGEN_RETURN
    } else {
        ffi::PySendResult::PYGEN_NEXT
    }
}

/// Null without an exception is a return of None, which takes no `StopIteration`.
unsafe extern "C" fn next<C: Coroutine>(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let mut returned_none = false;
    let value = guard_in(C::section(object), |py| {
        match checked(py, C::step(py, object))? {
            Step::Return(value) if value.is_none() => {
                returned_none = true;
                Ok(value)
            }
            step => as_generator(py, step),
        }
    });
    if returned_none && !value.is_null() {
        // SAFETY: the reference to None is ours.
        unsafe { ffi::Py_DECREF(value) };
        return ptr::null_mut();
    }
    value
}

/// A step as `send` and `throw` give it.
fn as_generator<'py>(py: Python<'py>, step: Step<'py>) -> PyResult<Bound<'py, PyAny>> {
    match step {
        Step::Yield(future) => Ok(future),
        Step::Return(value) => Err(objects::error_with::<PyStopIteration>(py, value)),
    }
}

unsafe extern "C" fn method_send<C: Coroutine>(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(C::section(object), |py| {
        check_sent::<C>(py, object, value)?;
        let step = checked(py, C::step(py, object))?;
        as_generator(py, step)
    })
}

unsafe extern "C" fn method_throw<C: Coroutine>(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(C::section(object), |py| {
        // SAFETY: called with the GIL; METH_VARARGS gives a tuple.
        let arguments =
            unsafe { Bound::from_borrowed_ptr(py, arguments).cast_into_unchecked::<PyTuple>() };
        if arguments.is_empty() {
            return Err(objects::error::<PyTypeError>(
                py,
                "throw expected at least 1 argument, got 0",
            ));
        }
        let step = checked(py, C::throw(py, object, &arguments))?;
        as_generator(py, step)
    })
}

unsafe extern "C" fn method_close<C: Coroutine>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(C::section(object), |py| {
        C::close(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn repr<C: Coroutine>(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|py| {
        let name = C::qualified_name(object);
        let text = format!("<coroutine object {name} at {object:p}>");
        Ok(objects::string(py, &text)?.into_any())
    })
}

unsafe extern "C" fn name<C: Coroutine>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    guard(|py| {
        let name = unqualified(C::qualified_name(object));
        Ok(objects::string(py, name)?.into_any())
    })
}

unsafe extern "C" fn qualified_name<C: Coroutine>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    guard(|py| Ok(objects::string(py, C::qualified_name(object))?.into_any()))
}

unsafe extern "C" fn cr_running<C: Coroutine>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    phase_is::<C>(object, Phase::Running)
}

unsafe extern "C" fn cr_suspended<C: Coroutine>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    phase_is::<C>(object, Phase::Waiting)
}

fn phase_is<C: Coroutine>(object: *mut ffi::PyObject, phase: Phase) -> *mut ffi::PyObject {
    guard_in(C::section(object), |py| {
        let is_it = C::phase(object) == phase;
        Ok(PyBool::new(py, is_it).to_owned().into_any())
    })
}

/// The state that `inspect.getcoroutinestate` asks for from Python 3.15 on.
unsafe extern "C" fn cr_state<C: Coroutine>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    guard_in(C::section(object), |py| {
        let state = match C::phase(object) {
            Phase::Created => "CORO_CREATED",
            Phase::Running => "CORO_RUNNING",
            Phase::Waiting => "CORO_SUSPENDED",
            Phase::Finished => "CORO_CLOSED",
        };
        Ok(objects::string(py, state)?.into_any())
    })
}

/// A frame that has not begun, for a coroutine that has not: before Python 3.15, `inspect.getcoroutinestate` tells by that
/// whether it has ended. There is no other.
unsafe extern "C" fn cr_frame<C: Coroutine>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    guard_in(C::section(object), |py| {
        if C::phase(object) != Phase::Created {
            return Ok(py.None().into_bound(py));
        }
        let name = CString::new(unqualified(C::qualified_name(object))).unwrap_or_default();
        let globals = objects::dict(py)?;
        // SAFETY: the GIL is held, and the strings and the dictionary are alive; each result is a new reference, or null
        // with an exception set.
        unsafe {
            let code = ffi::PyCode_NewEmpty(c"<ringloop>".as_ptr(), name.as_ptr(), 1);
            let code = Bound::from_owned_ptr_or_err(py, code.cast())?;
            let frame = ffi::PyFrame_New(
                ffi::PyThreadState_Get(),
                code.as_ptr().cast(),
                globals.as_ptr(),
                ptr::null_mut(),
            );
            Bound::from_owned_ptr_or_err(py, frame.cast())
        }
    })
}

/// For `cr_code`: there is none.
unsafe extern "C" fn none(_: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called with the GIL.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

/// Resumes a coroutine, or another iterator that `await` takes, as `await` does: the step, or its exception.
pub(crate) fn resume<'py>(inner: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
    let py = inner.py();
    let mut result = ptr::null_mut();
    // SAFETY: the GIL is held, the object is alive, and the result is a new reference, or null with an exception set.
    unsafe {
        let status = ffi::PyIter_Send(inner.as_ptr(), ffi::Py_None(), &raw mut result);
        match status {
            ffi::PySendResult::PYGEN_RETURN => {
                Ok(Step::Return(Bound::from_owned_ptr_or_err(py, result)?))
            }
            ffi::PySendResult::PYGEN_NEXT => {
                Ok(Step::Yield(Bound::from_owned_ptr_or_err(py, result)?))
            }
            ffi::PySendResult::PYGEN_ERROR => {
                returned_value(py, PyErr::fetch(py)).map(Step::Return)
            }
        }
    }
}

/// Raises an exception where a coroutine waits: the step that it comes to.
pub(crate) fn throw_into<'py>(
    coroutine: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Step<'py>> {
    let py = coroutine.py();
    match coroutine.call_method1(intern!(py, "throw"), arguments) {
        Ok(future) => Ok(Step::Yield(future)),
        Err(error) => returned_value(py, error).map(Step::Return),
    }
}

/// The value of a `StopIteration`; other errors stay what they are.
fn returned_value(py: Python<'_>, error: PyErr) -> PyResult<Bound<'_, PyAny>> {
    if error.is_instance_of::<PyStopIteration>(py) {
        return error.value(py).getattr(intern!(py, "value"));
    }
    Err(error)
}
