//! `sock_recv`, `sock_sendall`, `sock_accept`, `sock_connect` and their like: one awaitable for each call.
//!
//! Under asyncio these are coroutines: a frame, a future, two callbacks and a partial per packet. Here each is one
//! object that behaves like that coroutine (it does nothing until awaited, then tries the system call, and waits on a
//! future only if the socket isn't ready), and runs no Python.

#![allow(unsafe_code)]

mod attempt;
mod datagram;
mod object;

use std::os::fd::RawFd;
use std::ptr;

use pyo3::exceptions::{PyBaseException, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use ringloop_driver::Mode;

use self::attempt::attempt;
use crate::addresses;
use crate::buffers::FileSending;
use crate::coroutine::{self, Phase, Step};
use crate::event_loop::Loop;
use crate::handle::Call;
use crate::names::intern;
use crate::native_type::{self, Owned, references};
use crate::objects;
use crate::scheduling;
use crate::socket_object;
use crate::support;
use crate::watching;

pub(crate) use self::object::add_to;

/// The operation on the socket.
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
    /// Nothing is needed.
    Accept,
    /// The argument is an address that needs no resolver.
    Connect,
    /// The operation has the file.
    SendFile,
}

impl Kind {
    fn qualified_name(self) -> &'static str {
        match self {
            Self::Receive { .. } => "EventLoop.sock_recv",
            Self::ReceiveInto => "EventLoop.sock_recv_into",
            Self::SendAll => "EventLoop.sock_sendall",
            Self::ReceiveFrom { .. } => "EventLoop.sock_recvfrom",
            Self::ReceiveFromInto { .. } => "EventLoop.sock_recvfrom_into",
            Self::SendTo => "EventLoop.sock_sendto",
            Self::Accept => "EventLoop.sock_accept",
            Self::Connect => "EventLoop.sock_connect",
            Self::SendFile => "EventLoop.sock_sendfile",
        }
    }

    /// Whether it waits until the socket is writable, rather than readable.
    fn is_sending(self) -> bool {
        matches!(
            self,
            Self::SendAll | Self::SendTo | Self::Connect | Self::SendFile
        )
    }
}

struct Operation {
    event_loop: Owned<Loop>,
    sock: Owned,
    argument: Owned,
    kind: Kind,
    phase: Phase,
    /// The watched descriptor, -1 before the first attempt. If the socket is closed, another file may get the number.
    fd: RawFd,
    sent: usize,
    file: Option<FileSending>,
    future: Option<Owned>,
    handle: Option<Owned>,
    outcome: Option<Outcome>,
}

references! {
    Operation {
        keeps { event_loop, sock, argument }
        takes { future, handle, outcome }
    }
}

/// The result: the value, or the exception.
type Outcome = Result<Owned, Owned<PyBaseException>>;

/// Makes the awaitable, for a usual socket outside of debug mode. None otherwise: the caller then returns asyncio's own
/// coroutine.
pub(crate) fn new<'py>(
    event_loop: &Bound<'py, Loop>,
    sock: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
    kind: Kind,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = event_loop.py();
    if !serves(event_loop, sock)? {
        return Ok(None);
    }
    let gives_address = matches!(
        kind,
        Kind::ReceiveFrom { .. } | Kind::ReceiveFromInto { .. }
    );
    if gives_address && datagram::known_family(sock)?.is_none() {
        return Ok(None);
    }
    let made = native_type::new(py, || Operation {
        event_loop: event_loop.clone().into(),
        sock: sock.clone().into(),
        argument: argument.clone().into(),
        kind,
        phase: Phase::Created,
        fd: -1,
        sent: 0,
        file: None,
        future: None,
        handle: None,
        outcome: None,
    })?;
    Ok(Some(made))
}

/// Whether it is a `socket.socket` with its own methods, outside of debug mode.
fn serves(event_loop: &Bound<'_, Loop>, sock: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!event_loop.get().is_debug() && socket_object::is_usual(sock)?)
}

/// Makes the awaitable of `sock_connect`. None for an address that has to be resolved, as in `new`.
pub(crate) fn connect<'py>(
    event_loop: &Bound<'py, Loop>,
    sock: &Bound<'py, PyAny>,
    address: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if serves(event_loop, sock)? && addresses::needs_no_resolver(sock, address)? {
        new(event_loop, sock, address, Kind::Connect)
    } else {
        Ok(None)
    }
}

/// Makes the awaitable that sends a file: of the number of bytes sent. None as in `new`.
pub(crate) fn send_file<'py>(
    event_loop: &Bound<'py, Loop>,
    sock: &Bound<'py, PyAny>,
    file: FileSending,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let none = event_loop.py().None().into_bound(event_loop.py());
    let made = new(event_loop, sock, &none, Kind::SendFile)?;
    if let Some(made) = &made {
        // SAFETY: the GIL is held, and `new` has made the object.
        unsafe { operation(made.as_ptr()).file = Some(file) };
    }
    Ok(made)
}

/// The operation inside `object`.
///
/// # Safety
/// The GIL is held and `object` is a live operation, or without a GIL this thread is in its critical section, or nobody else
/// has it. The reference must not be held while Python code runs.
unsafe fn operation<'a>(object: *mut ffi::PyObject) -> &'a mut Operation {
    // SAFETY: `object` is a live operation, which is the function's contract; its content is written before anybody sees
    // it.
    unsafe { &mut *native_type::content(object) }
}

/// Starts the operation, or ends it after its future is done.
fn resume(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    // SAFETY: called from slots with the GIL and a live object; no Python code runs while the reference is used.
    let phase = unsafe { operation(object).phase };
    match phase {
        Phase::Created => {
            // SAFETY: the GIL is held (`py`), and `object` is a live object of our type. Only a field is written, and
            // no Python code runs.
            unsafe { operation(object).phase = Phase::Running };
            match attempt(py, object) {
                Some(outcome) => {
                    finish(py, object);
                    match outcome {
                        Ok(value) => Ok(Step::Return(value.into_bound(py))),
                        Err(error) => Err(support::in_context_of_handled(py, error)),
                    }
                }
                None => begin_waiting(py, object)
                    .map(Step::Yield)
                    .inspect_err(|_| finish(py, object)),
            }
        }
        Phase::Running => Err(coroutine::executing(py)),
        Phase::Waiting => {
            // SAFETY: the GIL is held (`py`), and `object` is a live object of our type. The outcome is moved out, and
            // no Python code runs.
            let outcome = unsafe { operation(object).outcome.take() };
            finish(py, object);
            match outcome {
                Some(Ok(value)) => Ok(Step::Return(value.into_bound(py))),
                Some(Err(exception)) => Err(support::raised(exception.bind(py))),
                None => Err(objects::error::<PyRuntimeError>(
                    py,
                    "await wasn't used with future",
                )),
            }
        }
        Phase::Finished => Err(coroutine::over(py)),
    }
}

/// Makes the future that the task waits for, and watches the socket.
fn begin_waiting(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning references runs no Python code.
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
        // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
        // Cloning a reference runs no Python code.
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
    let handle = scheduling::handle_in_table(&event_loop, &call)?;
    watching::insert(&event_loop, fd, &handle, kind.is_sending(), Mode::OneShot)?;
    let previous = {
        // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
        // The fields were None before, and the former argument is dropped below: no Python code runs while the
        // reference is used.
        let operation = unsafe { operation(object) };
        operation.future = Some(future.clone().into());
        operation.handle = Some(handle.into());
        operation.phase = Phase::Waiting;
        argument.map(|view| std::mem::replace(&mut operation.argument, view.into()))
    };
    drop(previous);
    future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
    Ok(future)
}

/// The socket is ready: tries again, and wakes the task if that settled it.
fn on_ready(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    let future = {
        // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
        // Cloning a reference runs no Python code.
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
    // This fails only if the loop is gone, and the watch with it.
    drop(stop_watching(py, object));
    let outcome = match outcome {
        Ok(value) => Ok(value.into_bound(py).into()),
        Err(error) => Err(error.into_value(py).into_bound(py).into()),
    };
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here. The
    // former outcome is dropped below, when the reference is gone.
    let previous = unsafe { operation(object).outcome.replace(outcome) };
    drop(previous);
    future
        .call_method1(intern!(py, "set_result"), (py.None(),))
        .map(drop)
}

/// Watches on after a look that found the socket not ready.
fn watch_again(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning references runs no Python code.
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
    watching::watch_again(event_loop.bind(py), fd, kind.is_sending(), handle.bind(py))
}

/// Takes the watch back, if it is still ours.
fn stop_watching(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning and taking references runs no Python code.
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
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // What is taken out is dropped below, when the reference is gone.
    let dropped = unsafe {
        let operation = operation(object);
        operation.phase = Phase::Finished;
        (operation.future.take(), operation.outcome.take())
    };
    drop(dropped);
}
