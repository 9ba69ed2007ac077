//! `create_connection` to an address literal: one awaitable from the socket to the transport.
//!
//! Under asyncio these are four coroutines with two futures, and a callback each for the socket and for the transport.
//! Here it is one object, which takes the same steps in the same turns, and is itself the callback that ends its waits.
//! It serves only where nobody has replaced one of asyncio's methods on the way (`is_served`); the caller then awaits
//! asyncio's own coroutine.

#![allow(unsafe_code)]

mod object;

use std::ffi::c_int;
use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::ptr;

use pyo3::exceptions::PyBaseException;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};
use ringloop_driver::Mode;

use super::{SocketTransport, readiness};
use crate::addresses::{self, Address};
use crate::coroutine::{self, Phase, Step};
use crate::event_loop::Loop;
use crate::fields::Fields;
use crate::handle::{Call, Deadline};
use crate::names::{self, intern};
use crate::native_type::{self, Member, Optional, Owned, Visitor, references};
use crate::objects;
use crate::originals::{Checked, is_function_of};
use crate::scheduling;
use crate::socket_object;
use crate::support;
use crate::waiter::{self, Wanted};
use crate::watching;

pub(crate) use self::object::add_to;

struct Connecting {
    event_loop: Owned<Loop>,
    protocol_factory: Owned,
    host: Owned,
    port: Owned,
    address: Address,
    phase: Phase,
    sock: Option<Owned>,
    /// While the kernel connects: the handle of the watch, and the watched descriptor.
    watch: Option<(Owned, RawFd)>,
    /// Why there is no connection.
    failure: Option<Owned<PyBaseException>>,
    /// From when it was begun until this object is over.
    made: Option<Made>,
    /// The future that the task waits for.
    future: Option<Owned>,
}

references! {
    Connecting {
        keeps { event_loop, protocol_factory, host, port }
        takes { sock, watch, failure, made, future }
    }
}

struct Made {
    transport: Owned,
    protocol: Owned,
}

impl Member for Made {
    fn show(&self, visitor: Visitor) -> ControlFlow<c_int> {
        self.transport.show(visitor)?;
        self.protocol.show(visitor)
    }
}

/// The object's content.
///
/// # Safety
/// The GIL is held and `object` is a live `Connecting`, or without a GIL this thread is in its critical section, or nobody
/// else has it. The reference must not be held while Python code runs.
unsafe fn content<'a>(object: *mut ffi::PyObject) -> &'a mut Connecting {
    // SAFETY: `object` is a live `Connecting`, which is the function's contract; its content is written before anybody
    // sees it.
    unsafe { &mut *native_type::content(object) }
}

/// The address that was connected to, if `object` is an awaitable of this module.
pub(super) fn address(object: &Bound<'_, PyAny>) -> Option<Address> {
    // SAFETY: the object is a live one of our type. Its address never changes: it is copied without a reference to the rest,
    // which another thread may change.
    native_type::is::<Connecting>(object)
        .then(|| unsafe { (*native_type::content::<Connecting>(object.as_ptr())).address })
}

/// Makes the awaitable of a connection. None if asyncio has to connect: the address is no literal, the loop is in debug
/// mode, or the user has replaced something that asyncio would call.
pub(crate) fn connect<'py>(
    event_loop: &Bound<'py, Loop>,
    protocol_factory: &Bound<'py, PyAny>,
    host: &Bound<'py, PyAny>,
    port: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = event_loop.py();
    let Some(address) = Address::of_literal(host, port) else {
        return Ok(None);
    };
    if !is_served(event_loop)? {
        return Ok(None);
    }
    let made = native_type::new(py, || Connecting {
        event_loop: event_loop.clone().into(),
        protocol_factory: protocol_factory.clone().into(),
        host: host.clone().into(),
        port: port.clone().into(),
        address,
        phase: Phase::Created,
        sock: None,
        watch: None,
        failure: None,
        made: None,
        future: None,
    })?;
    Ok(Some(made))
}

// What asyncio calls, and this module doesn't

/// The methods of a loop that asyncio calls while it connects, and that this module calls by no name.
const METHODS: [usize; 6] = [
    names::index("_connect_sock"),
    names::index("_create_connection_transport"),
    names::index("_ensure_fd_no_transport"),
    names::index("_ensure_resolved"),
    names::index("_make_socket_transport"),
    names::index("sock_connect"),
];

/// Where they are defined, unless they are native.
const MODULES: [&str; 3] = [
    "asyncio.base_events",
    "asyncio.selector_events",
    "ringloop._loop",
];

/// `ringloop.EventLoop`'s, as they were when it was made.
static ORIGINALS: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();

/// Whether the class of the last loop that was asked about has them.
static CHECKED: Checked = Checked::new();

/// Notes the methods of `ringloop.EventLoop`: functions of ringloop's or asyncio's modules, or native ones. Without this
/// call, or if the user has put others there before, asyncio connects.
#[pyfunction]
fn _note_connecting_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    let found = find_methods(class)?;
    let mut modules = Vec::with_capacity(MODULES.len());
    for name in MODULES {
        modules.push(py.import(objects::New(name))?.dict());
    }
    let is_own = |method: &Bound<'_, PyAny>| {
        let is_in = |names| is_function_of(method, names);
        // SAFETY: the GIL is held, and the object is alive.
        let is_native =
            unsafe { ffi::Py_TYPE(method.as_ptr()) == &raw mut ffi::PyMethodDescr_Type };
        is_native || modules.iter().any(is_in)
    };
    if found.iter().all(|method| is_own(method.bind(py))) {
        ORIGINALS.get_or_init(py, || found);
    }
    Ok(())
}

fn find_methods(class: &Bound<'_, PyType>) -> PyResult<Vec<Py<PyAny>>> {
    let names = names::all(class.py(), METHODS).into_iter();
    names
        .map(|name| Ok(class.getattr(name)?.unbind()))
        .collect()
}

fn is_served(event_loop: &Bound<'_, Loop>) -> PyResult<bool> {
    let py = event_loop.py();
    if event_loop.get().is_debug() || !has_originals(event_loop)? || !has_usual_sockets(py)? {
        return Ok(false);
    }
    Ok(!Fields::of(event_loop.as_any()).has_any(&names::all(py, METHODS))?)
}

fn has_originals(event_loop: &Bound<'_, Loop>) -> PyResult<bool> {
    let class = event_loop.get_type();
    CHECKED.find(&class, || {
        let found = find_methods(&class)?;
        let originals = ORIGINALS.get(class.py());
        Ok(originals.is_some_and(|them| them.iter().zip(&found).all(|(it, now)| it.is(now))))
    })
}

/// Whether `socket.socket`, as asyncio finds it, is the interpreter's, with its own methods.
fn has_usual_sockets(py: Python<'_>) -> PyResult<bool> {
    static MODULES: PyOnceLock<(Py<PyAny>, Py<PyDict>, Py<PyDict>)> = PyOnceLock::new();
    let (module, names, asyncios) = MODULES.get_or_try_init(py, || {
        let module = py.import(intern!(py, "socket"))?;
        let asyncio = py.import(objects::New("asyncio.base_events").into_pyobject(py)?)?;
        let names = module.dict().unbind();
        PyResult::Ok((module.into_any().unbind(), names, asyncio.dict().unbind()))
    })?;
    let name = intern!(py, "socket");
    let find = |names: &Py<PyDict>| {
        // SAFETY: the GIL is held, and both objects are alive.
        unsafe { objects::dict_item(py, names.as_ptr(), name.as_ptr()) }
    };
    if !find(asyncios)?.is_some_and(|it| it.is(module)) {
        return Ok(false);
    }
    match find(names)?.as_ref().map(|it| it.cast::<PyType>()) {
        Some(Ok(class)) => socket_object::is_usual_class(class),
        _ => Ok(false),
    }
}

// The steps

/// Takes the next step.
fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    // SAFETY: called with the GIL for a live object of our type; no reference to its content is held while Python code
    // runs.
    let (phase, future) = unsafe {
        let this = content(object);
        (this.phase.begin(py)?, this.future.take())
    };
    let result = match (phase, future) {
        (Phase::Created, _) => begin(py, object),
        (_, Some(future)) => outcome(future.bind(py)).and_then(|()| go_on(py, object)),
        (_, None) => Err(coroutine::not_awaited(py)),
    };
    match result {
        Ok(Step::Yield(future)) => {
            // SAFETY: the GIL is held (`py`), and `object` is a live object of our type. `future` was taken out above,
            // so that nothing is dropped here.
            unsafe {
                let this = content(object);
                this.phase = Phase::Waiting;
                this.future = Some(future.clone().into());
            }
            Ok(Step::Yield(future))
        }
        Ok(step) => {
            drop(finish(object));
            Ok(step)
        }
        Err(error) => Err(give_up(py, object, error)),
    }
}

/// The outcome of the future that a coroutine waited for, which it gets when it is resumed.
fn outcome(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    if waiter::is_one(future) {
        return waiter::outcome(future);
    }
    if !support::ask(future, intern!(py, "done"))? {
        return Err(coroutine::not_awaited(py));
    }
    future.call_method0(intern!(py, "result")).map(drop)
}

/// Makes the socket, and has the kernel connect it.
fn begin(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning references runs no Python code.
    let (event_loop, host, port, address) = unsafe {
        let this = content(object);
        (
            this.event_loop.clone_ref(py).into_bound(py),
            this.host.clone_ref(py).into_bound(py),
            this.port.clone_ref(py).into_bound(py),
            this.address,
        )
    };
    let sock = socket_object::for_stream(py, address.family())?;
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here. It
    // had no socket, so that nothing is dropped here.
    unsafe { content(object).sock = Some(sock.clone().into()) };
    addresses::audit_connect(&sock, &address, &host, &port)?;
    let fd = socket_object::number(&sock)?;
    match addresses::connect(fd, &address) {
        0 => return begin_transport(py, object),
        libc::EINPROGRESS | libc::EINTR => {}
        code => return Err(support::errno_error(py, code)),
    }
    let number = objects::New(fd).into_pyobject(py)?;
    watching::ensure_no_transport(&event_loop, number.as_any(), fd)?;
    let future = new_future(&event_loop)?;
    // Over loopback the outcome is known by now; a second call returns it.
    let call = Call {
        callback: object,
        arguments: &[],
        context: ptr::null_mut(),
    };
    match addresses::connect(fd, &address) {
        libc::EINPROGRESS | libc::EALREADY | libc::EINTR => {
            let handle = scheduling::handle_in_table(&event_loop, &call)?;
            watching::insert(&event_loop, fd, &handle, true, Mode::Level)?;
            // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead
            // here. It had no watch, so that nothing is dropped here.
            unsafe { content(object).watch = Some((handle.into(), fd)) };
        }
        code => {
            if !matches!(code, 0 | libc::EISCONN) {
                let error = failure(&sock, &address, &host, &port, code)?;
                // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods
                // lead here. It had no failure, so that nothing is dropped here.
                unsafe { content(object).failure = Some(error.into()) };
            }
            // asyncio waits for the kernel's report even if the outcome is known. Meanwhile a server of this loop accepts,
            // and a client that tries again and again lets others run. This timer is due in the next turn and runs where
            // asyncio's callback would: after what the kernel reports about other descriptors.
            let now = Deadline {
                seconds: 0.0,
                integer: true,
            };
            let callback = callback(py, object, waiter::is_one(&future))?;
            let call = Call {
                callback: callback.as_ptr(),
                ..call
            };
            // SAFETY: the GIL is held, and all objects are alive.
            unsafe { scheduling::schedule_at(py, event_loop.as_ptr(), now, &call)? };
        }
    }
    Ok(Step::Yield(future))
}

/// After a wait: makes the transport, or returns it.
fn go_on(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning and taking references runs no Python code.
    let (failure, pair) = unsafe {
        let this = content(object);
        let pair = this.made.as_ref().map(|made| {
            [&made.transport, &made.protocol].map(|it| it.clone_ref(py).into_bound(py))
        });
        (this.failure.take(), pair)
    };
    if let Some(error) = failure {
        return Err(support::raised(error.bind(py)));
    }
    match pair {
        Some(pair) => Ok(Step::Return(objects::tuple(py, pair)?.into_any())),
        None => begin_transport(py, object),
    }
}

/// Makes the protocol and the transport, whose beginning the task waits for.
fn begin_transport(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
    static TRANSPORT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning references runs no Python code.
    let (event_loop, factory, sock, this) = unsafe {
        let this = content(object);
        (
            this.event_loop.clone_ref(py).into_bound(py),
            this.protocol_factory.clone_ref(py).into_bound(py),
            this.sock.bound(py),
            Bound::from_borrowed_ptr(py, object),
        )
    };
    let context = if support::has_one_context_per_connection() {
        Some(support::copy_context(py)?)
    } else {
        None
    };
    let protocol = factory.call0()?;
    let future = new_future(&event_loop)?;
    let Some(sock) = sock else {
        return Err(coroutine::executing(py));
    };
    watching::ensure_no_transport(&event_loop, &sock, socket_object::number(&sock)?)?;
    let class = support::class(py, &TRANSPORT, "ringloop._transports", "SocketTransport")?;
    let transport = class.call1((&event_loop, &sock, &protocol, &this, context))?;
    let transport = transport.cast_into::<SocketTransport>()?;
    let is_plain = waiter::is_one(&future);
    readiness::begin(&transport, is_plain)?;
    let callback = callback(py, object, is_plain)?;
    readiness::call_soon(&transport, &event_loop, is_plain, &callback, &[])?;
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Nothing was made before, so that nothing is dropped here.
    unsafe {
        content(object).made = Some(Made {
            transport: transport.into_any().into(),
            protocol: protocol.into(),
        });
    }
    Ok(Step::Yield(future))
}

/// The callback that ends a wait. asyncio refuses to call coroutines in debug mode, and so may methods of the user's.
fn callback(
    py: Python<'_>,
    object: *mut ffi::PyObject,
    is_plain: bool,
) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held, and the object is alive.
    let this = unsafe { Bound::from_borrowed_ptr(py, object) };
    if is_plain {
        return Ok(this);
    }
    this.getattr(intern!(py, "_end_wait"))
}

/// Makes the future that a task waits for.
fn new_future<'py>(event_loop: &Bound<'py, Loop>) -> PyResult<Bound<'py, PyAny>> {
    let py = event_loop.py();
    if let Some(waiter) = waiter::new(event_loop.as_any(), Wanted::Other, 0)? {
        return Ok(waiter);
    }
    let future = event_loop.call_method0(intern!(py, "create_future"))?;
    future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
    Ok(future)
}

/// The wait is over, unless the task was cancelled: the outcome of connecting is known, the socket is writable, or the
/// transport has begun.
fn on_called(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning references runs no Python code.
    let (phase, future, watched) = unsafe {
        let this = content(object);
        (this.phase, this.future.bound(py), this.watch.is_some())
    };
    let (Phase::Waiting, Some(future)) = (phase, future) else {
        return Ok(());
    };
    if watched {
        if support::ask(&future, intern!(py, "done"))? {
            // Cancelled in this turn; the task is about to come and clean up.
            return Ok(());
        }
        match end_connecting(py, object) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                let error = error.into_value(py).into_bound(py).into();
                // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods
                // lead here. One that was watched had no failure yet, so that nothing is dropped here.
                unsafe { content(object).failure = Some(error) };
            }
        }
        // This fails only if the loop is gone, and the watch with it.
        drop(stop_watching(py, object));
    }
    if waiter::is_one(&future) {
        return waiter::wake(&future);
    }
    support::python(py)?
        .getattr(intern!(py, "wake_waiter"))?
        .call1((future, py.None()))
        .map(drop)
}

/// Finds out how connecting has ended, from the socket that has become writable. False if it has not.
fn end_connecting(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<bool> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning references runs no Python code.
    let (sock, host, port, address) = unsafe {
        let this = content(object);
        let Some(sock) = this.sock.bound(py) else {
            return Ok(true);
        };
        (
            sock,
            this.host.clone_ref(py).into_bound(py),
            this.port.clone_ref(py).into_bound(py),
            this.address,
        )
    };
    let level = (objects::New(libc::SOL_SOCKET), objects::New(libc::SO_ERROR));
    let code = sock
        .call_method1(intern!(py, "getsockopt"), level)?
        .extract()?;
    match code {
        0 => Ok(true),
        libc::EAGAIN | libc::EINPROGRESS | libc::EALREADY | libc::EINTR => Ok(false),
        code => {
            let error = failure(&sock, &address, &host, &port, code)?;
            Err(PyErr::from_value(error.into_any()))
        }
    }
}

/// The error of a connection that was refused.
fn failure<'py>(
    sock: &Bound<'py, PyAny>,
    address: &Address,
    host: &Bound<'py, PyAny>,
    port: &Bound<'py, PyAny>,
    code: i32,
) -> PyResult<Bound<'py, PyBaseException>> {
    let py = sock.py();
    let address = address.of_parts(host, port)?;
    let text = format!("Connect call failed {}", address.str()?.to_str()?);
    Ok(objects::os_error(py, code, &text)
        .into_value(py)
        .into_bound(py))
}

// The end

/// Takes the watch back, if it is still ours.
fn stop_watching(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning and taking references runs no Python code.
    let (event_loop, watch) = unsafe {
        let this = content(object);
        (this.event_loop.clone_ref(py), this.watch.take())
    };
    match watch {
        Some((handle, fd)) => watching::take_out_if(event_loop.bind(py), fd, true, handle.bind(py)),
        None => Ok(()),
    }
}

/// The objects that it refers to until it is over.
type Rest = (
    Option<Owned>,
    Option<Owned<PyBaseException>>,
    Option<Made>,
    Option<Owned>,
);

/// It is over. The caller drops what is returned.
fn finish(object: *mut ffi::PyObject) -> Rest {
    // SAFETY: called with the GIL for a live object of our type. What is taken out goes to the caller, so that no
    // Python code runs while the reference is used.
    let this = unsafe { content(object) };
    this.phase = Phase::Finished;
    (
        this.sock.take(),
        this.failure.take(),
        this.made.take(),
        this.future.take(),
    )
}

/// Closes what there is of the connection; returns the error that is to be raised.
fn give_up(py: Python<'_>, object: *mut ffi::PyObject, error: PyErr) -> PyErr {
    match close(py, object) {
        Ok(()) => error,
        Err(another) => another,
    }
}

/// Closes what there is of the connection.
fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
    // This fails only if the loop was closed or is waiting in another thread; there is no watch to take back then.
    drop(stop_watching(py, object));
    let (sock, _failure, made, _future) = finish(object);
    let open = made.map(|made| made.transport).or(sock);
    let name: &Bound<'_, PyString> = intern!(py, "close");
    match open {
        Some(open) => open.bind(py).call_method0(name).map(drop),
        None => Ok(()),
    }
}
