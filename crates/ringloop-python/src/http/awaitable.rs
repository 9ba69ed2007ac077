//! `receive` and `send`, and what they return: awaitables that take a request's messages without a coroutine's frame.
//!
//! Nothing happens before the first step, as with a coroutine: a task that is cancelled before it has started takes no
//! message. An awaitable that has to wait yields a future of asyncio's, so that everything that works with coroutines works
//! with these: `create_task`, `gather`, `wait_for`, task groups (see `coroutine`).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::mem::offset_of;
use std::ptr;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::calls;
use super::request::{Request, Sending};
use super::websocket_messages;
use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::names::intern;
use crate::native_type::{
    self, Class, Native, Optional, Owned, References, Table, attribute, content, references, slot,
};
use crate::objects;
use crate::support::{self, guard};

/// The `receive` or the `send` of a request.
struct Channel<const SENDS: bool> {
    vectorcall: ffi::vectorcallfunc,
    /// None once the collector has cleared it.
    request: Option<Owned<Request>>,
}

references! {
    <const SENDS: bool> Channel<SENDS> {
        keeps {}
        takes { request }
    }
}

/// One call of a channel.
struct Call {
    /// The future that was yielded; None if nothing is waited for but the next turn.
    future: Option<Owned>,
    /// The message to send; None to receive, and when it has been taken.
    message: Option<Owned>,
    /// The coroutine that sends the message, if one does; then it is this that is resumed, and yields.
    inner: Option<Owned>,
    /// Stays when the collector clears the call: steps rely on it, and it breaks the cycle itself.
    request: Owned<Request>,
    phase: Phase,
    sends: bool,
}

references! {
    Call {
        keeps { request }
        takes { future, message, inner }
    }
}

/// The two channels of a request: `receive` and `send`.
pub(super) fn channels<'py>(
    request: &Bound<'py, Request>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let receive = channel::<false>(request, call_receive)?;
    Ok((receive, channel::<true>(request, call_send)?))
}

fn channel<'py, const SENDS: bool>(
    request: &Bound<'py, Request>,
    vectorcall: ffi::vectorcallfunc,
) -> PyResult<Bound<'py, PyAny>> {
    native_type::new(request.py(), || Channel::<SENDS> {
        vectorcall,
        request: Some(request.clone().into()),
    })
}

/// A new awaitable; null with an exception set.
///
/// # Safety
/// The GIL is held, `channel` is alive and a `Channel<SENDS>`, and `message` is null or alive.
unsafe fn new_call<const SENDS: bool>(
    channel: *mut ffi::PyObject,
    message: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the GIL is held, `channel` is a live one, and `message` is null or alive, which is the function's
    // contract. Only the collector changes the content of `channel`, when nobody else has it.
    unsafe {
        let py = Python::assume_attached();
        let Some(request) = (*content::<Channel<SENDS>>(channel)).request.bound(py) else {
            ffi::PyErr_SetString(ffi::PyExc_RuntimeError, c"the request is gone".as_ptr());
            return ptr::null_mut();
        };
        let made = native_type::new(py, || Call {
            future: None,
            message: Owned::from_owned(ffi::Py_XNewRef(message)),
            inner: None,
            request: request.into(),
            phase: Phase::Created,
            sends: SENDS,
        });
        match made {
            Ok(call) => call.into_ptr(),
            Err(error) => {
                error.restore(py);
                ptr::null_mut()
            }
        }
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
        new_call::<false>(channel, ptr::null_mut())
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
        new_call::<true>(channel, *arguments)
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
    let this = content::<Call>(object);
    // SAFETY: called with the GIL for a live object of our type. What a field held is dropped when all is consistent.
    unsafe {
        let phase = (*this).phase.begin(py)?;
        if cfg!(Py_GIL_DISABLED) && is_elsewhere(py, object) {
            let error = elsewhere(py, (*this).sends);
            // As a coroutine that has raised. One that waits goes on in the loop's thread.
            match phase {
                Phase::Created => finish(object),
                phase => (*this).phase = phase,
            }
            return Err(error);
        }
        if let Some(future) = (*this).future.bound(py) {
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
        let request = &(*this).request.bind(py).clone();
        let message = (*this).message.bound(py);
        let result = match &message {
            None if (*this).sends => Ok(Step::Return(py.None().into_bound(py))),
            None => receive(request),
            Some(message) => match send(request, message) {
                Ok(Sending::Done) => Ok(Step::Return(py.None().into_bound(py))),
                Ok(Sending::DoneNextTurn) => {
                    let taken = (*this).message.take();
                    return Ok(yield_turn(py, object, taken));
                }
                Ok(Sending::AgainNextTurn) => return Ok(yield_turn(py, object, None)),
                Ok(Sending::Wait(future)) => Ok(Step::Yield(future)),
                Ok(Sending::Coroutine(coroutine)) => {
                    drop((*this).inner.replace(coroutine.clone().into()));
                    return after_inner(object, coroutine::resume(&coroutine));
                }
                Err(error) => Err(error),
            },
        };
        let (phase, future) = match &result {
            Ok(Step::Yield(future)) => (Phase::Waiting, Some(future.clone().into())),
            _ => (Phase::Finished, None),
        };
        (*this).phase = phase;
        drop(std::mem::replace(&mut (*this).future, future));
        if let Ok(Step::Yield(future)) = &result {
            future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        }
        result
    }
}

/// Whether another thread runs the request's loop. Without the GIL that loop would serve the connection at the same time as
/// a step, which looks at the state of it, of the request and of the transport, and then changes it: so steps are refused
/// here, and nothing that they call has to expect anybody else between the two.
fn is_elsewhere(py: Python<'_>, object: *mut ffi::PyObject) -> bool {
    // SAFETY: called with the GIL for a live object of our type.
    let request = unsafe { &(*content::<Call>(object)).request };
    request.bind(py).as_super().get().is_elsewhere(py)
}

#[cold]
fn elsewhere(py: Python<'_>, sends: bool) -> PyErr {
    let (name, call) = if sends {
        ("send()", "send(...)")
    } else {
        ("receive()", "receive()")
    };
    let text = format!(
        "{name} was awaited in another thread than its request's: use \
         asyncio.run_coroutine_threadsafe({call}, loop)"
    );
    objects::error::<PyRuntimeError>(py, &text)
}

/// Waits for the next turn, as asyncio.sleep(0) does. `taken` is dropped when all is consistent.
///
/// # Safety
/// `object` is a live one of our type.
unsafe fn yield_turn(py: Python<'_>, object: *mut ffi::PyObject, taken: Option<Owned>) -> Step<'_> {
    let this = content::<Call>(object);
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type, which is the function's contract.
    let future = unsafe {
        (*this).phase = Phase::Waiting;
        (*this).future.take()
    };
    drop((future, taken));
    Step::Yield(py.None().into_bound(py))
}

/// The coroutine that sends the message.
fn inner(py: Python<'_>, object: *mut ffi::PyObject) -> Option<Bound<'_, PyAny>> {
    // SAFETY: called with the GIL for a live object of our type.
    unsafe { (*content::<Call>(object)).inner.bound(py) }
}

/// Notes what a step of the coroutine that sends the message came to.
fn after_inner(object: *mut ffi::PyObject, result: PyResult<Step<'_>>) -> PyResult<Step<'_>> {
    // SAFETY: called with the GIL for a live object of our type.
    unsafe {
        match &result {
            Ok(Step::Yield(_)) => (*content::<Call>(object)).phase = Phase::Waiting,
            _ => finish(object),
        }
    }
    result
}

/// Ends an awaitable whose caller does not wait any longer.
fn give_up(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    let this = content::<Call>(object);
    // SAFETY: called with the GIL for a live object of our type that is not running.
    unsafe {
        let request = (*this).request.bind(py).clone();
        let future = (*this).future.bound(py);
        let sends = (*this).sends;
        finish(object);
        match future {
            Some(future) => request.as_super().get().forget(py, sends, &future),
            None => Ok(()),
        }
    }
}

/// Ends an awaitable that is not to go on.
///
/// # Safety
/// Called with the GIL for a live object of our type.
unsafe fn finish(object: *mut ffi::PyObject) {
    let this = content::<Call>(object);
    // SAFETY: the GIL is held, and `object` is a live one of our type, which is the function's contract.
    let taken = unsafe {
        (*this).phase = Phase::Finished;
        (*this).take()
    };
    drop(taken);
}

impl Coroutine for Call {
    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: called with the GIL for a live object of our type.
        unsafe { (*content::<Self>(object)).phase }
    }

    /// The name of the channel.
    fn qualified_name(object: *mut ffi::PyObject) -> &'static str {
        // SAFETY: called with the GIL for a live object of our type.
        if unsafe { (*content::<Self>(object)).sends } {
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
        unsafe { (*content::<Self>(object)).phase = Phase::Running };
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

// SAFETY: the functions of the table are for calls of channels.
unsafe impl Native for Call {
    const NAME: &'static CStr = c"ringloop._core.HttpExchange";
    const DOC: &'static CStr =
        c"The awaitable that a request's receive and send return; it acts like a coroutine.";

    #[inline]
    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn table() -> Table {
        let mut table = coroutine::table::<Self>();
        let am_await = coroutine::am_await::<Self> as *mut c_void;
        table.slots.push(slot(ffi::Py_am_await, am_await));
        table
    }

    #[inline]
    unsafe fn end(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is of our type, which is the function's contract.
        unsafe { coroutine::warn_if_never_awaited::<Self>(object) };
    }

    unsafe fn clear(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is alive and of our type, which is the function's contract.
        unsafe { finish(object) };
    }
}

// SAFETY: each of the two types has a class of its own, and its function takes its objects.
unsafe impl<const SENDS: bool> Native for Channel<SENDS> {
    const NAME: &'static CStr = if SENDS {
        c"ringloop._core.HttpSend"
    } else {
        c"ringloop._core.HttpReceive"
    };
    const DOC: &'static CStr = if SENDS {
        c"The send of a request; see ASGI."
    } else {
        c"The receive of a request; see ASGI."
    };
    const VECTORCALL: Option<usize> = Some(offset_of!(Self, vectorcall));

    #[inline]
    fn class() -> &'static Class {
        static RECEIVE: Class = Class::new();
        static SEND: Class = Class::new();
        if SENDS { &SEND } else { &RECEIVE }
    }

    fn table() -> Table {
        let name = if SENDS { send_name } else { receive_name };
        Table {
            attributes: vec![
                attribute(c"__name__", name),
                attribute(c"__qualname__", name),
                attribute(c"_is_coroutine_marker", coroutine_mark),
                attribute(c"_is_coroutine", asyncio_mark),
            ],
            ..Table::default()
        }
    }
}

/// Makes the types.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    native_type::add_to::<Call>(module)?;
    native_type::add_to::<Channel<false>>(module)?;
    native_type::add_to::<Channel<true>>(module)
}
