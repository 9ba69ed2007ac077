//! `sock_recv`, `sock_sendall` and their like: one awaitable for each call.
//!
//! Under asyncio these are coroutines: a frame, a future, two callbacks and a partial per packet. Here each is one object
//! that behaves like that coroutine (it does nothing until awaited, then tries the system call, and waits on a future
//! only where the socket isn't ready), and runs no Python.

#![allow(unsafe_code)]

pub(crate) mod datagram;

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::{
    PyBaseException, PyRuntimeError, PyStopIteration, PyTypeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMemoryView, PyTuple, PyType};
use ringloop_driver::Mode;

use crate::buffers::{self, Received};
use crate::event_loop::Loop;
use crate::handle::{Call, HandleRef};
use crate::names::intern;
use crate::native_type::{EndOfLife, Head, NativeType, method, slot, visit_all};
use crate::objects::{self, New};
use crate::socket_object;
use crate::support::{self, attached, guard};
use crate::watching;

/// What to do with the socket.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The argument is the number of bytes to receive at most.
    Receive { count_max: usize },
    /// The argument is a writable buffer.
    ReceiveInto,
    /// The argument is a bytes-like object.
    SendAll,
    /// The argument is the number of bytes to receive at most.
    ReceiveFrom { count_max: usize },
    /// The argument is a writable buffer; 0 stands for its length.
    ReceiveFromInto { count_max: usize },
    /// The argument is a tuple of a bytes-like object and an address.
    SendTo,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Receive { .. } => "sock_recv",
            Self::ReceiveInto => "sock_recv_into",
            Self::SendAll => "sock_sendall",
            Self::ReceiveFrom { .. } => "sock_recvfrom",
            Self::ReceiveFromInto { .. } => "sock_recvfrom_into",
            Self::SendTo => "sock_sendto",
        }
    }

    /// Whether it waits for room to send, rather than for something to receive.
    fn is_sending(self) -> bool {
        matches!(self, Self::SendAll | Self::SendTo)
    }
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Phase {
    /// Not awaited yet.
    Created,
    /// In its first step. Code of the user's that runs meanwhile must not step it again.
    Running,
    /// The future was handed to the task.
    Waiting,
    /// Returned, raised or closed.
    Finished,
}

struct Operation {
    event_loop: Py<Loop>,
    sock: Py<PyAny>,
    argument: Py<PyAny>,
    kind: Kind,
    phase: Phase,
    /// The watched descriptor, -1 before the first attempt. The socket may be closed meanwhile, and the number be another's.
    fd: RawFd,
    sent: usize,
    future: Option<Py<PyAny>>,
    handle: Option<Py<PyAny>>,
    outcome: Option<Outcome>,
}

/// What it came to: the value, or the exception.
type Outcome = Result<Py<PyAny>, Py<PyBaseException>>;

#[repr(C)]
struct OperationObject {
    head: Head,
    operation: ManuallyDrop<Operation>,
}

static mut CLASS: *mut ffi::PyTypeObject = ptr::null_mut();

/// Makes the awaitable, where the native way serves: a plain `socket.socket`, outside debug mode. None otherwise, and
/// asyncio's own coroutine does it.
pub(crate) fn new<'py>(
    event_loop: &Bound<'py, Loop>,
    sock: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
    kind: Kind,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    static SOCKET: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = event_loop.py();
    let class = support::class(py, &SOCKET, "socket", "socket")?;
    if event_loop.get().is_debug() || !sock.get_type().is(class) {
        return Ok(None);
    }
    let gives_address = matches!(
        kind,
        Kind::ReceiveFrom { .. } | Kind::ReceiveFromInto { .. }
    );
    if gives_address && datagram::known_family(sock)?.is_none() {
        return Ok(None);
    }
    // SAFETY: the GIL is held; every field is written before the object is tracked and can be seen.
    unsafe {
        let object = ffi::PyType_GenericAlloc(CLASS, 0);
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        let this = object.cast::<OperationObject>();
        (&raw mut (*this).operation).write(ManuallyDrop::new(Operation {
            event_loop: event_loop.clone().unbind(),
            sock: sock.clone().unbind(),
            argument: argument.clone().unbind(),
            kind,
            phase: Phase::Created,
            fd: -1,
            sent: 0,
            future: None,
            handle: None,
            outcome: None,
        }));
        ffi::PyObject_GC_Track(object.cast());
        Ok(Some(Bound::from_owned_ptr(py, object)))
    }
}

/// The operation inside `object`.
///
/// # Safety
/// The GIL is held and `object` is a live `OperationObject`. The reference must not be held while Python code runs.
unsafe fn operation<'a>(object: *mut ffi::PyObject) -> &'a mut Operation {
    // SAFETY: as the function asks.
    unsafe { &mut (*object.cast::<OperationObject>()).operation }
}

/// What a resumed operation gives to whoever drives it.
enum Step<'py> {
    Yield(Bound<'py, PyAny>),
    Return(Py<PyAny>),
}

/// Starts the operation, or ends it after its future is done.
fn resume(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    // SAFETY: called from slots with the GIL and a live object; no Python code runs while the reference is used.
    let phase = unsafe { operation(object).phase };
    match phase {
        Phase::Created => {
            // SAFETY: as above.
            unsafe { operation(object).phase = Phase::Running };
            match attempt(py, object) {
                Some(outcome) => {
                    finish(py, object);
                    outcome.map(Step::Return)
                }
                None => begin_waiting(py, object)
                    .map(Step::Yield)
                    .inspect_err(|_| finish(py, object)),
            }
        }
        Phase::Running => Err(objects::error::<PyValueError>(
            py,
            "coroutine already executing",
        )),
        Phase::Waiting => {
            // SAFETY: as above.
            let outcome = unsafe { operation(object).outcome.take() };
            finish(py, object);
            match outcome {
                Some(Ok(value)) => Ok(Step::Return(value)),
                Some(Err(exception)) => Err(PyErr::from_value(exception.into_bound(py).into_any())),
                None => Err(objects::error::<PyRuntimeError>(
                    py,
                    "await wasn't used with future",
                )),
            }
        }
        Phase::Finished => Err(objects::error::<PyRuntimeError>(
            py,
            "cannot reuse already awaited coroutine",
        )),
    }
}

/// Tries the system call; None if the socket isn't ready.
fn attempt(py: Python<'_>, object: *mut ffi::PyObject) -> Option<PyResult<Py<PyAny>>> {
    // SAFETY: as in `resume`.
    let (event_loop, sock, argument, kind, known_fd, sent, is_ready) = unsafe {
        let operation = operation(object);
        (
            operation.event_loop.clone_ref(py),
            operation.sock.clone_ref(py),
            operation.argument.clone_ref(py).into_bound(py),
            operation.kind,
            operation.fd,
            operation.sent,
            operation.phase == Phase::Waiting,
        )
    };
    let sock = sock.bind(py);
    // Asked for anew by whoever runs code before the system call.
    let current = || socket_object::descriptor(sock).unwrap_or(-1);
    let fd = current();
    if known_fd >= 0 && fd != known_fd {
        return Some(Err(support::errno_error(py, libc::EBADF)));
    }
    if fd < 0 {
        return Some(said_by_the_socket(sock, kind, &argument));
    }
    // SAFETY: as in `resume`.
    unsafe { operation(object).fd = fd };
    let would_block = |error: &std::io::Error| {
        matches!(
            error.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
        )
    };
    match kind {
        // As in the socket module, which asks nobody for nothing.
        Kind::Receive { count_max: 0 } => {
            Some(objects::bytes(py, b"").map(|empty| empty.into_any().unbind()))
        }
        Kind::Receive { count_max } => match receive(sock, event_loop.get(), count_max, is_ready) {
            Ok(Ok(bytes)) => Some(Ok(bytes)),
            Ok(Err(error)) if would_block(&error) => None,
            Ok(Err(error)) => Some(Err(support::os_error(py, &error))),
            Err(error) => Some(Err(error)),
        },
        Kind::ReceiveInto => match buffers::receive_into(current, &argument, None) {
            Ok((Ok(count), _)) => Some(
                New(count)
                    .into_pyobject(py)
                    .map(|count| count.into_any().unbind()),
            ),
            Ok((Err(error), _)) if would_block(&error) => None,
            Ok((Err(error), _)) => Some(Err(support::os_error(py, &error))),
            // No writable buffer.
            Err(_) => Some(said_by_the_socket(sock, kind, &argument)),
        },
        Kind::SendAll => {
            let result = buffers::with_bytes(&argument, |bytes| {
                let rest = bytes.get(sent..).unwrap_or_default();
                if rest.is_empty() && sent > 0 {
                    return Ok((0, true));
                }
                match buffers::send(current(), rest) {
                    Ok(count) => Ok((count, count == rest.len())),
                    Err(error) => Err(support::os_error(py, &error)),
                }
            });
            match result {
                Ok((_, true)) => Some(Ok(py.None())),
                Ok((count, false)) => {
                    // SAFETY: as in `resume`.
                    unsafe { operation(object).sent += count };
                    None
                }
                Err(error) => Some(Err(error)),
            }
        }
        Kind::ReceiveFrom { count_max } => {
            datagram::receive_from(sock, event_loop.get(), count_max)
        }
        Kind::ReceiveFromInto { count_max } => {
            datagram::receive_from_into(sock, &argument, count_max)
        }
        Kind::SendTo => match argument.cast::<PyTuple>() {
            Ok(pair) => datagram::send_to(sock, pair).unwrap_or_else(|error| Some(Err(error))),
            Err(error) => Some(Err(error.into())),
        },
    }
}

/// What the socket module itself says, in its own words and order, to a closed socket or a wrong argument.
fn said_by_the_socket(
    sock: &Bound<'_, PyAny>,
    kind: Kind,
    argument: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    let py = sock.py();
    match kind {
        Kind::Receive { count_max } => sock.call_method1(intern!(py, "recv"), (New(count_max),)),
        Kind::ReceiveInto => sock.call_method1(intern!(py, "recv_into"), (argument,)),
        Kind::SendAll => sock.call_method1(intern!(py, "send"), (argument,)),
        Kind::ReceiveFrom { count_max } => {
            sock.call_method1(intern!(py, "recvfrom"), (New(count_max),))
        }
        Kind::ReceiveFromInto { count_max } => {
            let count_max = if count_max == 0 {
                argument.len()?
            } else {
                count_max
            };
            sock.call_method1(intern!(py, "recvfrom_into"), (argument, New(count_max)))
        }
        Kind::SendTo => {
            let pair = argument.cast::<PyTuple>()?;
            sock.call_method1(intern!(py, "sendto"), pair)
        }
    }
    .map(Bound::unbind)
}

/// recv(2) into a `bytes` object: by way of the loop's buffer, or straight into the object where the socket is known to be
/// ready and much is expected. Only a stream may be given less than it asks for: of a datagram the rest would be lost.
fn receive(
    sock: &Bound<'_, PyAny>,
    event_loop: &Loop,
    count_max: usize,
    is_ready: bool,
) -> PyResult<std::io::Result<Py<PyAny>>> {
    let py = sock.py();
    let habit = event_loop.sock_recv_habit.load(Relaxed);
    let capacity = buffers::with_slack(habit).min(count_max);
    let direct = is_ready && habit >= buffers::DIRECT_MIN;
    let allowed = if direct { capacity } else { Received::CAPACITY };
    let current = || socket_object::descriptor(sock).unwrap_or(-1);
    if allowed < count_max && socket_object::kind(sock)? != libc::SOCK_STREAM {
        let result = buffers::receive_bytes(py, current, count_max)?;
        return Ok(result.map(|(bytes, _)| bytes));
    }
    let result = if direct {
        buffers::receive_bytes(py, current, capacity)?
    } else {
        let mut received = event_loop.receive_buffer(py)?;
        match received.receive_up_to(current(), count_max.min(Received::CAPACITY)) {
            Ok(count) => Ok((event_loop.settle_receive_buffer(py, received, count), count)),
            Err(error) => {
                event_loop.return_receive_buffer(py, received);
                Err(error)
            }
        }
    };
    if let Ok((_, count)) = &result {
        // What fills its room is likely to be followed by more.
        let next = if *count == capacity {
            count * 2
        } else {
            *count
        };
        event_loop.sock_recv_habit.store(next, Relaxed);
    }
    Ok(result.map(|(bytes, _)| bytes))
}

/// Makes the future that the task waits for, and watches the socket.
fn begin_waiting(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: as in `resume`.
    let (event_loop, sock, fd, kind) = unsafe {
        let operation = operation(object);
        (
            operation.event_loop.clone_ref(py).into_bound(py),
            operation.sock.clone_ref(py),
            operation.fd,
            operation.kind,
        )
    };
    watching::ensure_no_transport(&event_loop, sock.bind(py), fd)?;
    // As under asyncio, what is being sent can't be resized meanwhile.
    let argument = if kind == Kind::SendAll {
        // SAFETY: as in `resume`.
        let data = unsafe { operation(object).argument.clone_ref(py) };
        Some(PyMemoryView::from(data.bind(py))?.into_any())
    } else {
        None
    };
    let future = event_loop.call_method0(intern!(py, "create_future"))?;
    let call = Call {
        callback: object,
        arguments: &[],
        context: ptr::null_mut(),
    };
    // SAFETY: the GIL is held and both pointers are live objects.
    let handle = unsafe { HandleRef::new(&call, event_loop.as_ptr(), None) };
    let Some(handle) = handle else {
        return Err(PyErr::fetch(py));
    };
    handle.track();
    // SAFETY: `new` gave an owned reference.
    let handle = unsafe { Bound::from_owned_ptr(py, handle.as_ptr()) };
    watching::insert(&event_loop, fd, &handle, kind.is_sending(), Mode::OneShot)?;
    let previous = {
        // SAFETY: as in `resume`.
        let operation = unsafe { operation(object) };
        operation.future = Some(future.clone().unbind());
        operation.handle = Some(handle.unbind());
        operation.phase = Phase::Waiting;
        argument.map(|view| std::mem::replace(&mut operation.argument, view.unbind()))
    };
    drop(previous);
    future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
    Ok(future)
}

/// The socket is ready: tries again, and wakes the task if that settled it.
fn on_ready(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    let future = {
        // SAFETY: as in `resume`.
        let operation = unsafe { operation(object) };
        match (&operation.phase, &operation.future) {
            (Phase::Waiting, Some(future)) => future.clone_ref(py).into_bound(py),
            _ => return Ok(()),
        }
    };
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        // Cancelled in this turn; the task is about to come and clean up.
        return Ok(());
    }
    let outcome = match attempt(py, object) {
        Some(outcome) => outcome,
        None => match watch_again(py, object) {
            Ok(()) => return Ok(()),
            Err(error) => Err(error),
        },
    };
    if let Err(error) = &outcome
        && support::ends_the_loop(py, error)
    {
        return outcome.map(drop);
    }
    // A watch that can't be ended ended with its loop.
    drop(stop_watching(py, object));
    let outcome = outcome.map_err(|error| error.into_value(py));
    // SAFETY: as in `resume`.
    let previous = unsafe { operation(object).outcome.replace(outcome) };
    drop(previous);
    future
        .call_method1(intern!(py, "set_result"), (py.None(),))
        .map(drop)
}

/// Watches on after a look that found the socket not ready.
fn watch_again(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    // SAFETY: as in `resume`.
    let (event_loop, handle, fd, kind) = unsafe {
        let operation = operation(object);
        (
            operation.event_loop.clone_ref(py),
            operation.handle.as_ref().map(|it| it.clone_ref(py)),
            operation.fd,
            operation.kind,
        )
    };
    let Some(handle) = handle else {
        return Ok(());
    };
    watching::insert(
        event_loop.bind(py),
        fd,
        handle.bind(py),
        kind.is_sending(),
        Mode::OneShot,
    )
}

/// Takes the watch back, if it is still ours.
fn stop_watching(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    // SAFETY: as in `resume`.
    let (event_loop, handle, fd, kind) = unsafe {
        let operation = operation(object);
        (
            operation.event_loop.clone_ref(py),
            operation.handle.take(),
            operation.fd,
            operation.kind,
        )
    };
    let Some(handle) = handle else {
        return Ok(());
    };
    watching::take_out_if(event_loop.bind(py), fd, kind.is_sending(), handle.bind(py))
}

fn finish(py: Python<'_>, object: *mut ffi::PyObject) {
    if let Err(error) = stop_watching(py, object) {
        // Only where the loop was closed or is waiting in another thread; there is no watch to take back then.
        drop(error);
    }
    // SAFETY: as in `resume`.
    let dropped = unsafe {
        let operation = operation(object);
        operation.phase = Phase::Finished;
        (operation.future.take(), operation.outcome.take())
    };
    drop(dropped);
}

unsafe extern "C" fn send(
    object: *mut ffi::PyObject,
    _value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut is_return = false;
    let value = guard(|py| match resume(py, object)? {
        Step::Yield(future) => Ok(future),
        Step::Return(value) => {
            is_return = true;
            Ok(value.into_bound(py))
        }
    });
    // SAFETY: the interpreter gives a place for the result.
    unsafe { *result = value };
    if value.is_null() {
        ffi::PySendResult::PYGEN_ERROR
    } else if is_return {
        ffi::PySendResult::PYGEN_RETURN
    } else {
        ffi::PySendResult::PYGEN_NEXT
    }
}

/// The result of a step for callers without `am_send`: a return is `StopIteration`.
fn step_or_stop(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Bound<'_, PyAny>> {
    match resume(py, object)? {
        Step::Yield(future) => Ok(future),
        Step::Return(value) => Err(objects::error_with::<PyStopIteration>(
            py,
            value.into_bound(py),
        )),
    }
}

unsafe extern "C" fn next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|py| step_or_stop(py, object))
}

unsafe extern "C" fn method_send(
    object: *mut ffi::PyObject,
    _value: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| step_or_stop(py, object))
}

unsafe extern "C" fn method_throw(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: METH_VARARGS gives a tuple.
        let arguments =
            unsafe { Bound::from_borrowed_ptr(py, arguments).cast_into_unchecked::<PyTuple>() };
        let given = arguments.get_item(0)?;
        finish(py, object);
        let error = match given.cast::<PyType>() {
            Ok(class) => match arguments.get_item(1) {
                Ok(value) if value.is_instance(class)? => value,
                Ok(value) if !value.is_none() => class.call1((value,))?,
                _ => class.call0()?,
            },
            Err(_) => given,
        };
        if !error.is_instance_of::<pyo3::exceptions::PyBaseException>() {
            return Err(objects::error::<PyTypeError>(
                py,
                "exceptions must be classes or instances deriving from BaseException",
            ));
        }
        Err(PyErr::from_value(error))
    })
}

unsafe extern "C" fn method_close(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        finish(py, object);
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn call(
    object: *mut ffi::PyObject,
    _arguments: *mut ffi::PyObject,
    _names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        on_ready(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn itself(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live object.
    unsafe { ffi::Py_NewRef(object) }
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: as in `resume`.
        let name = unsafe { operation(object).kind.name() };
        let text = format!("<coroutine object EventLoop.{name} at {object:p}>");
        Ok(objects::string(py, &text)?.into_any())
    })
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object whose count fell to zero. The pending exception, if
    // any, is set aside: warning and dropping may run Python code.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        let pending = PendingException::take();
        if operation(object).phase == Phase::Created {
            warn_never_awaited(operation(object).kind);
        }
        attached(|_| ManuallyDrop::drop(&mut (*object.cast::<OperationObject>()).operation));
        pending.restore();
        let class = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(class.cast());
        end.finish();
    }
}

/// What an asyncio coroutine says when nobody awaits it.
///
/// # Safety
/// The GIL is held and no exception is set.
#[cold]
unsafe fn warn_never_awaited(kind: Kind) {
    let text = match kind {
        Kind::Receive { .. } => c"coroutine 'EventLoop.sock_recv' was never awaited",
        Kind::ReceiveInto => c"coroutine 'EventLoop.sock_recv_into' was never awaited",
        Kind::SendAll => c"coroutine 'EventLoop.sock_sendall' was never awaited",
        Kind::ReceiveFrom { .. } => c"coroutine 'EventLoop.sock_recvfrom' was never awaited",
        Kind::ReceiveFromInto { .. } => {
            c"coroutine 'EventLoop.sock_recvfrom_into' was never awaited"
        }
        Kind::SendTo => c"coroutine 'EventLoop.sock_sendto' was never awaited",
    };
    // SAFETY: as the function asks. Where warnings are errors, there is nobody to raise it to.
    unsafe {
        if ffi::PyErr_WarnEx(ffi::PyExc_RuntimeWarning, text.as_ptr(), 1) != 0 {
            ffi::PyErr_WriteUnraisable(ptr::null_mut());
        }
    }
}

/// An exception that is on its way while an object is destroyed.
struct PendingException([*mut ffi::PyObject; 3]);

impl PendingException {
    /// # Safety
    /// The GIL is held.
    unsafe fn take() -> Self {
        let mut parts = [ptr::null_mut(); 3];
        let [kind, value, traceback] = &mut parts;
        // SAFETY: as the function asks. The newer call that takes one object is not in Python 3.11.
        #[allow(deprecated)]
        unsafe {
            ffi::PyErr_Fetch(kind, value, traceback);
        }
        Self(parts)
    }

    /// # Safety
    /// The GIL is held.
    unsafe fn restore(self) {
        let [kind, value, traceback] = self.0;
        // SAFETY: as the function asks; the references go back to where they came from.
        #[allow(deprecated)]
        unsafe {
            ffi::PyErr_Restore(kind, value, traceback);
        }
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, object.
    unsafe {
        let operation = operation(object);
        let outcome = match &operation.outcome {
            Some(Ok(value)) => value.as_ptr(),
            Some(Err(exception)) => exception.as_ptr(),
            None => ptr::null_mut(),
        };
        let optional = |it: &Option<Py<PyAny>>| it.as_ref().map_or(ptr::null_mut(), Py::as_ptr);
        let members = [
            operation.event_loop.as_ptr(),
            operation.sock.as_ptr(),
            operation.argument.as_ptr(),
            optional(&operation.future),
            optional(&operation.handle),
            outcome,
            ffi::Py_TYPE(object).cast(),
        ];
        visit_all(members, visit, argument)
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector, with the GIL, for an unreachable object.
    unsafe {
        attached(|_| {
            let operation = operation(object);
            operation.phase = Phase::Finished;
            let dropped = (
                operation.future.take(),
                operation.handle.take(),
                operation.outcome.take(),
            );
            drop(dropped);
        });
    }
    0
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let mut throw = method(c"throw", method_throw, c"Raise an exception at the await.");
    throw.ml_flags = ffi::METH_VARARGS;
    let mut send_method = method(c"send", method_send, c"Start or resume the operation.");
    send_method.ml_flags = ffi::METH_O;
    let class = NativeType {
        name: c"ringloop._core.SocketOperation",
        doc: c"What sock_recv, sock_sendall and their like return: an awaitable that acts like a coroutine.",
        size: size_of::<OperationObject>(),
        slots: vec![
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(ffi::Py_tp_repr, repr as *mut c_void),
            slot(ffi::Py_tp_call, call as *mut c_void),
            slot(ffi::Py_tp_iter, itself as *mut c_void),
            slot(ffi::Py_tp_iternext, next as *mut c_void),
            slot(ffi::Py_am_await, itself as *mut c_void),
            slot(ffi::Py_am_send, send as *mut c_void),
        ],
        methods: vec![
            send_method,
            throw,
            method(c"close", method_close, c"End the operation."),
        ],
        attributes: vec![],
    }
    .make(module.py())?;
    // SAFETY: the module is initialised once, with the GIL, before any operation is made; the type lives for ever.
    unsafe {
        CLASS = class;
        module.add(
            "SocketOperation",
            Bound::from_borrowed_ptr(module.py(), class.cast()),
        )
    }
}
