//! `receive` and `send`, and what they return: awaitables that take a request's messages without a coroutine's frame.
//!
//! Nothing happens before the first step, as with a coroutine: a task that is cancelled before it has started takes no
//! message. An awaitable that has to wait yields a future of asyncio's, so that everything that works with coroutines works
//! with these: `create_task`, `gather`, `wait_for`, task groups (see `coroutine`).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::calls;
use super::request::{Request, Sending};
use super::websocket_messages;
use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::names::intern;
use crate::native_type::{self, EndOfLife, Head, NativeType, attribute, slot, visit_all};
use crate::objects;
use crate::support::{self, guard};

/// The `receive` or the `send` of a request.
#[repr(C)]
struct Channel {
    head: Head,
    vectorcall: ffi::vectorcallfunc,
    request: *mut ffi::PyObject,
}

/// One call of a channel.
#[repr(C)]
struct Call {
    head: Head,
    request: *mut ffi::PyObject,
    /// The message to send; null to receive, and when it has been taken.
    message: *mut ffi::PyObject,
    /// The future that was yielded; null if nothing is waited for but the next turn.
    future: *mut ffi::PyObject,
    /// The coroutine that sends the message, if one does; then it is this that is resumed, and yields.
    inner: *mut ffi::PyObject,
    phase: Phase,
    sends: bool,
}

static mut RECEIVE: *mut ffi::PyTypeObject = ptr::null_mut();
static mut SEND: *mut ffi::PyTypeObject = ptr::null_mut();
static mut CALL: *mut ffi::PyTypeObject = ptr::null_mut();

/// The two channels of a request: `receive` and `send`.
pub(super) fn channels<'py>(
    request: &Bound<'py, Request>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = request.py();
    // SAFETY: the types are made when the module is imported, and each goes with its function.
    unsafe {
        let receive = channel(py, RECEIVE, call_receive, request)?;
        Ok((receive, channel(py, SEND, call_send, request)?))
    }
}

/// # Safety
/// `class` is one of the two types of channels, and `vectorcall` its function.
unsafe fn channel<'py>(
    py: Python<'py>,
    class: *mut ffi::PyTypeObject,
    vectorcall: ffi::vectorcallfunc,
    request: &Bound<'py, Request>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held, and every field is set before the object is tracked.
    unsafe {
        let object = native_type::allocate(class);
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        let this = object.cast::<Channel>();
        (*this).vectorcall = vectorcall;
        (*this).request = ffi::Py_NewRef(request.as_ptr());
        ffi::PyObject_GC_Track(object.cast());
        Ok(Bound::from_owned_ptr(py, object))
    }
}

/// A new awaitable; null with an exception set.
///
/// # Safety
/// The GIL is held, and `channel` is one.
unsafe fn new_call(channel: *mut ffi::PyObject, message: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the GIL is held, and `channel` is a live one, which is the function's contract. Every field is set before
    // the object is tracked.
    unsafe {
        let request = (*channel.cast::<Channel>()).request;
        if request.is_null() {
            ffi::PyErr_SetString(ffi::PyExc_RuntimeError, c"the request is gone".as_ptr());
            return ptr::null_mut();
        }
        let object = native_type::allocate(CALL);
        if !object.is_null() {
            let this = object.cast::<Call>();
            (*this).request = ffi::Py_NewRef(request);
            (*this).message = ffi::Py_XNewRef(message);
            (*this).sends = !message.is_null();
            ffi::PyObject_GC_Track(object.cast());
        }
        object
    }
}

unsafe extern "C" fn call_receive(
    channel: *mut ffi::PyObject,
    _arguments: *const *mut ffi::PyObject,
    positional: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, with the GIL, for an object of our type; `names` is a tuple or null.
    unsafe {
        let is_empty = ffi::PyVectorcall_NARGS(positional) == 0
            && (names.is_null() || ffi::PyTuple_GET_SIZE(names) == 0);
        if !is_empty {
            ffi::PyErr_SetString(
                ffi::PyExc_TypeError,
                c"receive() takes no arguments".as_ptr(),
            );
            return ptr::null_mut();
        }
        new_call(channel, ptr::null_mut())
    }
}

unsafe extern "C" fn call_send(
    channel: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, with the GIL, for an object of our type; `names` is a tuple or null, and
    // `arguments` has as many objects as both counts say.
    unsafe {
        let positional = ffi::PyVectorcall_NARGS(positional);
        let keywords = if names.is_null() {
            0
        } else {
            ffi::PyTuple_GET_SIZE(names)
        };
        let is_one = match (positional, keywords) {
            (1, 0) => true,
            (0, 1) => {
                let name = ffi::PyTuple_GET_ITEM(names, 0);
                ffi::PyUnicode_CompareWithASCIIString(name, c"message".as_ptr()) == 0
            }
            _ => false,
        };
        if !is_one {
            ffi::PyErr_SetString(
                ffi::PyExc_TypeError,
                c"send() takes one argument, 'message'".as_ptr(),
            );
            return ptr::null_mut();
        }
        new_call(channel, *arguments)
    }
}

/// A step of `receive()`.
fn receive<'py>(request: &Bound<'py, Request>) -> PyResult<Step<'py>> {
    if request.as_super().get().websocket().is_some() {
        websocket_messages::receive(request)
    } else {
        Request::receive(request)
    }
}

/// A step of `send(message)`.
fn send<'py>(request: &Bound<'py, Request>, message: &Bound<'py, PyAny>) -> PyResult<Sending<'py>> {
    let sending = if request.as_super().get().websocket().is_some() {
        websocket_messages::send(request, message)?
    } else {
        Request::send(request, message)?
    };
    match sending {
        // The message has been taken, so that giving way neither changes the order of messages nor loses one.
        Sending::Done if request.get().has_to_give_way(request.py()) => Ok(Sending::DoneNextTurn),
        sending => Ok(sending),
    }
}

/// Takes the next step.
fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    let this = object.cast::<Call>();
    // SAFETY: called with the GIL for a live object of our type. What a field held is dropped when all is consistent.
    unsafe {
        let phase = (*this).phase.begin(py)?;
        if let Some(future) = Bound::from_borrowed_ptr_or_opt(py, (*this).future) {
            let refusal = match support::ask(&future, intern!(py, "done")) {
                Ok(true) => None,
                Ok(false) => Some(coroutine::awaited_already(py)),
                Err(error) => Some(error),
            };
            if let Some(error) = refusal {
                (*this).phase = phase;
                return Err(error);
            }
        }
        if let Some(inner) = inner(py, object) {
            return after_inner(object, coroutine::resume(&inner));
        }
        let request = Bound::from_borrowed_ptr(py, (*this).request);
        let request = request.cast_unchecked::<Request>();
        let message = Bound::from_borrowed_ptr_or_opt(py, (*this).message);
        let result = match &message {
            None if (*this).sends => Ok(Step::Return(py.None().into_bound(py))),
            None => receive(request),
            Some(message) => match send(request, message) {
                Ok(Sending::Done) => Ok(Step::Return(py.None().into_bound(py))),
                Ok(Sending::DoneNextTurn) => {
                    let taken = std::mem::replace(&mut (*this).message, ptr::null_mut());
                    return Ok(yield_turn(py, object, taken));
                }
                Ok(Sending::AgainNextTurn) => return Ok(yield_turn(py, object, ptr::null_mut())),
                Ok(Sending::Wait(future)) => Ok(Step::Yield(future)),
                Ok(Sending::Coroutine(coroutine)) => {
                    (*this).inner = ffi::Py_NewRef(coroutine.as_ptr());
                    return after_inner(object, coroutine::resume(&coroutine));
                }
                Err(error) => Err(error),
            },
        };
        let (phase, future) = match &result {
            Ok(Step::Yield(future)) => (Phase::Waiting, ffi::Py_NewRef(future.as_ptr())),
            _ => (Phase::Finished, ptr::null_mut()),
        };
        (*this).phase = phase;
        let previous = std::mem::replace(&mut (*this).future, future);
        ffi::Py_XDECREF(previous);
        if let Ok(Step::Yield(future)) = &result {
            future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        }
        result
    }
}

/// Waits for the next turn, as asyncio.sleep(0) does. `taken`, if it is not null, is dropped.
///
/// # Safety
/// `object` is a live one of our type, and `taken` a reference that the caller gives away.
unsafe fn yield_turn(
    py: Python<'_>,
    object: *mut ffi::PyObject,
    taken: *mut ffi::PyObject,
) -> Step<'_> {
    let this = object.cast::<Call>();
    // SAFETY: the GIL is held (`py`), `object` is a live one of our type, and `taken` is the caller's to give away,
    // which is the function's contract. Both references are dropped when all is consistent.
    unsafe {
        (*this).phase = Phase::Waiting;
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).future, ptr::null_mut()));
        ffi::Py_XDECREF(taken);
    }
    Step::Yield(py.None().into_bound(py))
}

/// The coroutine that sends the message.
fn inner(py: Python<'_>, object: *mut ffi::PyObject) -> Option<Bound<'_, PyAny>> {
    // SAFETY: called with the GIL for a live object of our type.
    unsafe { Bound::from_borrowed_ptr_or_opt(py, (*object.cast::<Call>()).inner) }
}

/// Notes what a step of the coroutine that sends the message came to.
fn after_inner(object: *mut ffi::PyObject, result: PyResult<Step<'_>>) -> PyResult<Step<'_>> {
    // SAFETY: called with the GIL for a live object of our type.
    unsafe {
        match &result {
            Ok(Step::Yield(_)) => (*object.cast::<Call>()).phase = Phase::Waiting,
            _ => finish(object),
        }
    }
    result
}

/// Ends an awaitable whose caller does not wait any longer.
fn give_up(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    let this = object.cast::<Call>();
    // SAFETY: called with the GIL for a live object of our type that is not running.
    unsafe {
        let request = Bound::from_borrowed_ptr(py, (*this).request);
        let future = Bound::from_borrowed_ptr_or_opt(py, (*this).future);
        let sends = (*this).sends;
        finish(object);
        match future {
            Some(future) => {
                let request = request.cast_unchecked::<Request>();
                request.as_super().get().forget(py, sends, &future)
            }
            None => Ok(()),
        }
    }
}

/// Ends an awaitable that is not to go on.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn finish(object: *mut ffi::PyObject) {
    let this = object.cast::<Call>();
    // SAFETY: the GIL is held, and `object` is a live one of our type, which is the function's contract.
    unsafe {
        (*this).phase = Phase::Finished;
        drop_fields(object);
    }
}

/// # Safety
/// Called with the GIL for an object of our type that is not running.
unsafe fn drop_fields(object: *mut ffi::PyObject) {
    let this = object.cast::<Call>();
    // SAFETY: the GIL is held, and `object` is one of our type that is not running, which is the function's contract.
    // Each field is emptied before its reference is dropped.
    unsafe {
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).future, ptr::null_mut()));
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).message, ptr::null_mut()));
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).inner, ptr::null_mut()));
    }
}

impl Coroutine for Call {
    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: called with the GIL for a live object of our type.
        unsafe { (*object.cast::<Self>()).phase }
    }

    /// The name of the channel.
    fn qualified_name(object: *mut ffi::PyObject) -> &'static str {
        // SAFETY: called with the GIL for a live object of our type.
        if unsafe { (*object.cast::<Self>()).sends } {
            "send"
        } else {
            "receive"
        }
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
        let Some(inner) = inner(py, object) else {
            give_up(py, object)?;
            return Err(calls::thrown(arguments));
        };
        // SAFETY: called with the GIL for a live object of our type.
        unsafe { (*object.cast::<Self>()).phase = Phase::Running };
        after_inner(object, coroutine::throw_into(&inner, arguments))
    }

    fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
        Self::phase(object).check_not_running(py)?;
        if let Some(inner) = inner(py, object) {
            inner.call_method0(intern!(py, "close"))?;
        }
        give_up(py, object)
    }
}

unsafe extern "C" fn receive_name(_: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|py| Ok(objects::string(py, "receive")?.into_any()))
}

unsafe extern "C" fn send_name(_: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|py| Ok(objects::string(py, "send")?.into_any()))
}

/// The mark that says that a call gives a coroutine: `inspect.iscoroutinefunction` asks for it from Python 3.12 on.
unsafe extern "C" fn coroutine_mark(_: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|py| support::http(py)?.getattr(intern!(py, "COROUTINE_MARK")))
}

/// The same for `asyncio.iscoroutinefunction`.
unsafe extern "C" fn asyncio_mark(_: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|py| support::http(py)?.getattr(intern!(py, "ASYNCIO_COROUTINE_MARK")))
}

unsafe extern "C" fn call_dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object of our type whose count fell to zero.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        coroutine::warn_if_never_awaited::<Call>(object);
        drop_fields(object);
        ffi::Py_XDECREF((*object.cast::<Call>()).request);
        end.free(object);
    }
}

unsafe extern "C" fn call_traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, object.
    unsafe {
        let this = object.cast::<Call>();
        let members = [
            (*this).request,
            (*this).message,
            (*this).future,
            (*this).inner,
            ffi::Py_TYPE(object).cast(),
        ];
        visit_all(members, visit, argument)
    }
}

unsafe extern "C" fn call_clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector, with the GIL, for an unreachable object. The request stays: steps rely on it, and it
    // breaks the cycle itself.
    unsafe { finish(object) };
    0
}

unsafe extern "C" fn channel_dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object of our types whose count fell to zero.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        ffi::Py_XDECREF((*object.cast::<Channel>()).request);
        end.free(object);
    }
}

unsafe extern "C" fn channel_traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, object.
    unsafe {
        let members = [
            (*object.cast::<Channel>()).request,
            ffi::Py_TYPE(object).cast(),
        ];
        visit_all(members, visit, argument)
    }
}

unsafe extern "C" fn channel_clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector, with the GIL, for an unreachable object.
    unsafe {
        let this = object.cast::<Channel>();
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).request, ptr::null_mut()));
    }
    0
}

fn channel_type(
    py: Python<'_>,
    name: &'static CStr,
    doc: &'static CStr,
    getter: ffi::getter,
) -> PyResult<*mut ffi::PyTypeObject> {
    NativeType {
        name,
        doc,
        size: size_of::<Channel>(),
        slots: vec![
            slot(ffi::Py_tp_dealloc, channel_dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, channel_traverse as *mut c_void),
            slot(ffi::Py_tp_clear, channel_clear as *mut c_void),
        ],
        methods: vec![],
        attributes: vec![
            attribute(c"__name__", getter),
            attribute(c"__qualname__", getter),
            attribute(c"_is_coroutine_marker", coroutine_mark),
            attribute(c"_is_coroutine", asyncio_mark),
        ],
        vectorcall_offset: Some(offset_of!(Channel, vectorcall)),
    }
    .make(py)
}

/// Makes the types.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let call = NativeType {
        name: c"ringloop._core.HttpExchange",
        doc: c"The awaitable that a request's receive and send return; it acts like a coroutine.",
        size: size_of::<Call>(),
        slots: [
            slot(ffi::Py_tp_dealloc, call_dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, call_traverse as *mut c_void),
            slot(ffi::Py_tp_clear, call_clear as *mut c_void),
            slot(ffi::Py_am_await, coroutine::am_await::<Call> as *mut c_void),
        ]
        .into_iter()
        .chain(coroutine::slots::<Call>())
        .collect(),
        methods: coroutine::methods::<Call>(),
        attributes: coroutine::attributes::<Call>(),
        vectorcall_offset: None,
    }
    .make(py)?;
    let receive = channel_type(
        py,
        c"ringloop._core.HttpReceive",
        c"The receive of a request; see ASGI.",
        receive_name,
    )?;
    let send = channel_type(
        py,
        c"ringloop._core.HttpSend",
        c"The send of a request; see ASGI.",
        send_name,
    )?;
    // SAFETY: the module is initialised once, with the GIL, before any request is made; the types live for ever.
    unsafe {
        CALL = call;
        RECEIVE = receive;
        SEND = send;
        module.add("HttpExchange", Bound::from_borrowed_ptr(py, call.cast()))?;
        module.add("HttpReceive", Bound::from_borrowed_ptr(py, receive.cast()))?;
        module.add("HttpSend", Bound::from_borrowed_ptr(py, send.cast()))
    }
}
