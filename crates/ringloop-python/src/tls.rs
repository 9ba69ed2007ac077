//! `SSLProtocol`: the hot half of asyncio's TLS, natively.
//!
//! `ringloop._tls.SSLProtocol` derives from this class and from the running Python's `asyncio.sslproto.SSLProtocol`.
//! Handshake, shutdown, timeouts, flow control, errors and their messages are asyncio's. What runs per packet is here,
//! under the names that asyncio's own code calls it by: records that arrive, what they decrypt to, what is written.
//! The state that both halves use is here, too, as attributes with asyncio's names.
//!
//! OpenSSL is reached through the `_ssl` module's own methods. Where the SSL object or a memory BIO is not the `ssl`
//! module's own (an `SSLContext.sslobject_class`, a test's mock), asyncio's code does the reading and writing as well.

#![allow(unsafe_code)]

mod reading;
mod records;
mod window;
mod writing;

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAnyMethods, PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};

use crate::cell::GilCell;
use crate::names::intern;
use crate::objects::New;
use crate::originals::Originals;
use crate::receiver::{self, Input, Receiver, Sink};
use crate::support::{self, CloneRefOption, Made};

use self::records::Records;
use self::window::Window;

/// asyncio's `SSLProtocolState`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Unwrapped,
    Handshake,
    Wrapped,
    Flushing,
    Shutdown,
}

impl Phase {
    const NAMED: [(Self, &'static str); 5] = [
        (Self::Unwrapped, "UNWRAPPED"),
        (Self::Handshake, "DO_HANDSHAKE"),
        (Self::Wrapped, "WRAPPED"),
        (Self::Flushing, "FLUSHING"),
        (Self::Shutdown, "SHUTDOWN"),
    ];

    /// The phase that a member of the enumeration stands for.
    fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        static MEMBERS: PyOnceLock<Vec<(Phase, Py<PyAny>)>> = PyOnceLock::new();
        let py = value.py();
        let members = MEMBERS.get_or_try_init(py, || {
            let class = py
                .import(intern!(py, "asyncio.sslproto"))?
                .getattr(intern!(py, "SSLProtocolState"))?;
            let member = |&(phase, name): &(Phase, &'static str)| {
                Ok((phase, class.getattr(New(name))?.unbind()))
            };
            Self::NAMED.iter().map(member).collect::<PyResult<Vec<_>>>()
        })?;
        let found = members.iter().find(|(_, member)| member.is(value));
        Ok(found.map_or(Self::Unwrapped, |&(phase, _)| phase))
    }
}

/// `_ssl`'s own objects of a connection, and their methods, bound.
struct Engine {
    /// Of the SSL object.
    read: Py<PyAny>,
    write: Py<PyAny>,
    /// The memory BIO that holds what has arrived.
    incoming: Py<PyAny>,
    /// Its `write`.
    feed: Py<PyAny>,
    /// The memory BIO that holds what is to be sent.
    outgoing: Py<PyAny>,
    /// Its `read`.
    drain: Py<PyAny>,
}

impl Engine {
    /// The engine of `protocol`, if it is made of the ssl module's own objects, with their own methods.
    fn of(protocol: &Bound<'_, SSLProtocol>) -> PyResult<Option<Self>> {
        static OBJECT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        static METHODS: Originals<2> = Originals::new("ssl", ["read", "write"]);
        static SOCKET: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        static BIO: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let py = protocol.py();
        let is_own = |object: &Bound<'_, PyAny>, class: &Bound<'_, PyType>| {
            object.get_type().as_type_ptr() == class.as_type_ptr()
        };
        let class = support::class(py, &OBJECT, "ssl", "SSLObject")?;
        let object = protocol.getattr(intern!(py, "_sslobj"))?;
        let incoming = protocol.getattr(intern!(py, "_incoming"))?;
        let outgoing = protocol.getattr(intern!(py, "_outgoing"))?;
        let bio = support::class(py, &BIO, "_ssl", "MemoryBIO")?;
        if !is_own(&object, class)
            || !METHODS.are_in_place(class)?
            || !is_own(&incoming, bio)
            || !is_own(&outgoing, bio)
        {
            return Ok(None);
        }
        let inner = object.getattr(intern!(py, "_sslobj"))?;
        if !is_own(&inner, support::class(py, &SOCKET, "_ssl", "_SSLSocket")?) {
            return Ok(None);
        }
        Ok(Some(Self {
            read: inner.getattr(intern!(py, "read"))?.unbind(),
            write: inner.getattr(intern!(py, "write"))?.unbind(),
            feed: incoming.getattr(intern!(py, "write"))?.unbind(),
            incoming: incoming.unbind(),
            drain: outgoing.getattr(intern!(py, "read"))?.unbind(),
            outgoing: outgoing.unbind(),
        }))
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [
            &self.read,
            &self.write,
            &self.incoming,
            &self.feed,
            &self.outgoing,
            &self.drain,
        ] {
            visit.call(object)?;
        }
        Ok(())
    }

    /// Bytes that have arrived and that OpenSSL has not taken.
    fn pending_incoming(&self, py: Python<'_>) -> PyResult<u64> {
        pending(self.incoming.bind(py))
    }
}

/// The class of `_write_backlog`.
fn deque(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static DEQUE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    support::class(py, &DEQUE, "collections", "deque")
}

/// `bio.pending`.
fn pending(bio: &Bound<'_, PyAny>) -> PyResult<u64> {
    bio.getattr(intern!(bio.py(), "pending"))?.extract()
}

/// The flags are asyncio's, and independent of one another.
#[allow(clippy::struct_excessive_bools)]
struct State {
    /// The member of asyncio's enumeration that `phase` stands for.
    member: Option<Py<PyAny>>,
    phase: Phase,
    /// None until the handshake begins, and where asyncio's code does the reading and writing.
    engine: Option<Arc<Engine>>,
    records: Records,
    /// Bytes in the incoming memory BIO, where that is known without asking it.
    pending: Option<u64>,
    transport: Option<Py<PyAny>>,
    app_protocol: Option<Py<PyAny>>,
    /// `app_protocol`, where it takes bytes natively.
    sink: Option<Sink>,
    app_protocol_is_buffer: bool,
    /// asyncio's queue of data to encrypt. None while nobody has asked for it: most connections never need it, and an
    /// empty one takes 760 bytes.
    write_backlog: Option<Py<PyAny>>,
    app_reading_paused: bool,
    app_writing_paused: bool,
    ssl_reading_paused: bool,
    ssl_writing_paused: bool,
    /// A high-water mark is zero: then even an empty buffer is a matter for flow control.
    zero_marks: bool,
    /// A read has filled its buffer: OpenSSL may have more of the same record.
    leftover: bool,
    /// Deliveries left for which received data is copied, because the protocol kept the last one.
    copies_left: u8,
}

#[pyclass(module = "ringloop._core", subclass, frozen)]
pub(crate) struct SSLProtocol {
    state: Made<GilCell<State>>,
}

#[pymethods]
impl SSLProtocol {
    #[new]
    #[pyo3(signature = (*_args, **_options))]
    fn new(_args: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            state: Made::new(GilCell::new(State {
                member: None,
                phase: Phase::Unwrapped,
                engine: None,
                records: Records::new(),
                pending: None,
                transport: None,
                app_protocol: None,
                sink: None,
                app_protocol_is_buffer: false,
                write_backlog: None,
                app_reading_paused: false,
                app_writing_paused: false,
                ssl_reading_paused: false,
                ssl_writing_paused: false,
                zero_marks: false,
                leftover: false,
                copies_left: 1,
            })),
        }
    }

    #[getter(_state)]
    fn get_state(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).member.clone_ref_opt(py)
    }

    #[setter(_state)]
    fn set_state(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let phase = Phase::of(value)?;
        let engine = match phase {
            Phase::Handshake => Engine::of(slf)?,
            _ => None,
        };
        // Some asyncios hand over here what a stream reader had read before the upgrade.
        let fed = match &engine {
            Some(engine) => engine.pending_incoming(value.py())? > 0,
            None => false,
        };
        let previous = {
            let mut state = slf.get().state.get_mut(value.py());
            state.phase = phase;
            state.pending = None;
            if fed {
                state.records.lose_track();
            }
            let engine = engine.map(|engine| state.engine.replace(Arc::new(engine)));
            (engine, state.member.replace(value.clone().unbind()))
        };
        drop(previous);
        Ok(())
    }

    #[getter(_transport)]
    fn get_transport(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).transport.clone_ref_opt(py)
    }

    #[setter(_transport)]
    fn set_transport(&self, py: Python<'_>, transport: Option<Py<PyAny>>) {
        let previous = std::mem::replace(&mut self.state.get_mut(py).transport, transport);
        drop(previous);
    }

    #[getter(_app_protocol)]
    fn get_app_protocol(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).app_protocol.clone_ref_opt(py)
    }

    #[setter(_app_protocol)]
    fn set_app_protocol(&self, py: Python<'_>, protocol: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let sink = match &protocol {
            Some(protocol) => Sink::for_protocol(protocol)?,
            None => None,
        };
        let previous = {
            let mut state = self.state.get_mut(py);
            state.copies_left = 1;
            (
                std::mem::replace(&mut state.sink, sink),
                std::mem::replace(&mut state.app_protocol, protocol.map(Bound::unbind)),
            )
        };
        drop(previous);
        Ok(())
    }

    #[getter(_app_protocol_is_buffer)]
    fn get_app_protocol_is_buffer(&self, py: Python<'_>) -> bool {
        self.state.get(py).app_protocol_is_buffer
    }

    #[setter(_app_protocol_is_buffer)]
    fn set_app_protocol_is_buffer(&self, py: Python<'_>, value: bool) {
        self.state.get_mut(py).app_protocol_is_buffer = value;
    }

    #[getter(_write_backlog)]
    fn get_write_backlog<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(backlog) = self.state.get(py).write_backlog.clone_ref_opt(py) {
            return Ok(backlog.into_bound(py));
        }
        let backlog = deque(py)?.call0()?;
        let previous = (self.state.get_mut(py).write_backlog).replace(backlog.clone().unbind());
        drop(previous);
        Ok(backlog)
    }

    #[setter(_write_backlog)]
    fn set_write_backlog(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        let is_new = value.get_type().is(deque(py)?) && value.is_empty()?;
        let value = (!is_new).then(|| value.clone().unbind());
        let previous = std::mem::replace(&mut self.state.get_mut(py).write_backlog, value);
        drop(previous);
        Ok(())
    }

    #[getter(_app_reading_paused)]
    fn get_app_reading_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).app_reading_paused
    }

    #[setter(_app_reading_paused)]
    fn set_app_reading_paused(&self, py: Python<'_>, value: bool) {
        self.state.get_mut(py).app_reading_paused = value;
    }

    #[getter(_app_writing_paused)]
    fn get_app_writing_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).app_writing_paused
    }

    #[setter(_app_writing_paused)]
    fn set_app_writing_paused(&self, py: Python<'_>, value: bool) {
        self.state.get_mut(py).app_writing_paused = value;
    }

    #[getter(_ssl_reading_paused)]
    fn get_ssl_reading_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).ssl_reading_paused
    }

    #[setter(_ssl_reading_paused)]
    fn set_ssl_reading_paused(&self, py: Python<'_>, value: bool) {
        self.state.get_mut(py).ssl_reading_paused = value;
    }

    #[getter(_ssl_writing_paused)]
    fn get_ssl_writing_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).ssl_writing_paused
    }

    #[setter(_ssl_writing_paused)]
    fn set_ssl_writing_paused(&self, py: Python<'_>, value: bool) {
        self.state.get_mut(py).ssl_writing_paused = value;
    }

    #[getter(_zero_marks)]
    fn get_zero_marks(&self, py: Python<'_>) -> bool {
        self.state.get(py).zero_marks
    }

    #[setter(_zero_marks)]
    fn set_zero_marks(&self, py: Python<'_>, value: bool) {
        self.state.get_mut(py).zero_marks = value;
    }

    /// Takes what a transport that isn't ours has put into the buffer of `get_buffer`.
    fn buffer_updated(slf: &Bound<'_, Self>, nbytes: isize) -> PyResult<()> {
        let py = slf.py();
        reading::feed_object(slf, &slf.getattr(intern!(py, "_ssl_buffer_view"))?, nbytes)?;
        reading::on_arrival(slf)
    }

    /// Decrypts what has arrived and delivers it.
    fn _do_read(slf: &Bound<'_, Self>) -> PyResult<()> {
        reading::do_read(slf)
    }

    /// Sends the records that OpenSSL has made.
    fn _process_outgoing(slf: &Bound<'_, Self>) -> PyResult<()> {
        writing::process_outgoing(slf)
    }

    /// Bytes that have arrived and are not decrypted.
    fn _get_read_buffer_size(slf: &Bound<'_, Self>) -> PyResult<New<u64>> {
        let py = slf.py();
        let pending = pending(&slf.getattr(intern!(py, "_incoming"))?)?;
        Ok(New(slf.get().state.get(py).records.unread(pending)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.member)?;
        visit.call(&state.transport)?;
        visit.call(&state.app_protocol)?;
        visit.call(&state.write_backlog)?;
        if let Some(sink) = &state.sink {
            sink.traverse(&visit)?;
        }
        if let Some(engine) = &state.engine {
            engine.traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        let dropped = {
            let mut state = self.state.get_mut(py);
            state.phase = Phase::Unwrapped;
            (
                state.member.take(),
                state.engine.take(),
                state.transport.take(),
                state.app_protocol.take(),
                state.sink.take(),
                state.write_backlog.take(),
            )
        };
        drop(dropped);
    }
}

impl SSLProtocol {
    fn engine(&self, py: Python<'_>) -> Option<Arc<Engine>> {
        self.state.get(py).engine.clone()
    }

    /// Whether the user's data waits to be encrypted.
    fn has_backlog(&self, py: Python<'_>) -> PyResult<bool> {
        let backlog = self.state.get(py).write_backlog.clone_ref_opt(py);
        backlog.map_or(Ok(false), |backlog| backlog.bind(py).is_truthy())
    }
}

impl Receiver for SSLProtocol {
    const METHOD: &'static str = "buffer_updated";

    fn receive(this: &Bound<'_, Self>, input: Input<'_, '_>) -> PyResult<()> {
        reading::feed(this, &input)?;
        // What was taken is decrypted into the same buffer.
        drop(input);
        reading::on_arrival(this)
    }
}

/// Calls the method of asyncio's own class, which the native one stands in front of.
#[cold]
fn call_asyncio<'py>(
    protocol: &Bound<'py, SSLProtocol>,
    method: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = protocol.py();
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = support::class(py, &CLASS, "asyncio.sslproto", "SSLProtocol")?;
    let function = class.getattr(New(method))?;
    function
        .call_method1(intern!(py, "__get__"), (protocol,))?
        .call1(arguments)
}

/// Does what asyncio does with an exception of its reading and writing.
#[cold]
fn fatal_error(protocol: &Bound<'_, SSLProtocol>, error: PyErr) -> PyResult<()> {
    let py = protocol.py();
    if !error.is_instance_of::<PyException>(py) {
        return Err(error);
    }
    let method = protocol.getattr(intern!(py, "_fatal_error"))?;
    let message = "Fatal error on SSL protocol";
    support::call_handling(error, &method, |error| New((error, New(message))))
}

/// Whether OpenSSL only asks for more: asyncio's `SSLAgainErrors`.
fn is_again(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    static WANT_READ: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static SYSCALL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let want_read = support::class(py, &WANT_READ, "ssl", "SSLWantReadError")?;
    let syscall = support::class(py, &SYSCALL, "ssl", "SSLSyscallError")?;
    let class = error.get_type(py);
    Ok(class.is_subclass(want_read)? || class.is_subclass(syscall)?)
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SSLProtocol>()?;
    receiver::register::<SSLProtocol>(module.py());
    module.add_function(wrap_pyfunction!(writing::add_transport_methods, module)?)
}
