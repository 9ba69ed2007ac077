//! `Loop`: the native half of `ringloop.EventLoop`.
//!
//! It holds the queue of callbacks, the timers and the reactor, and serves what runs once per callback. What runs once
//! per loop or per connection is Python: `ringloop.EventLoop` inherits it from the running interpreter's asyncio.
//!
//! State is kept in three cells, so that Python code which comes back while one is in use finds the others free: the
//! queue (never borrowed while Python runs), the watches, and the reactor (absent while its thread waits in it).

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use ringloop::clock;
use ringloop::timers::{TimerKey, Timers};
use ringloop::{BusyPoll, Config, Reactor};
use ringloop_driver::{BackendKind, Event, ForcedBy, Waker};

use crate::buffers::Received;
use crate::datagram::{Batch, DatagramTransport};
use crate::handle::{Call, Deadline, HandleRef};
use crate::metrics::Meter;
use crate::names::intern;
use crate::objects::{self, New};
use crate::posting::{self, Posting};
use crate::socket_operation::{self, Kind};
use crate::support::{self, GilCell, Made, guard, guard_scheduling};
use crate::thread_exit::SleepsAtExit;
use crate::transport::SocketTransport;
use crate::watches::{self, Readiness, Watches};

/// What a turn runs, in order of arrival.
pub(crate) enum Ready {
    Handle(HandleRef),
    /// One of asyncio's own handles: in debug mode, and for signals.
    Foreign(Py<PyAny>),
    /// A stream transport whose socket reported something.
    Transport(Py<SocketTransport>, Readiness),
    /// The same for a datagram transport.
    Datagrams(Py<DatagramTransport>, Readiness),
    /// A stream transport whose `connection_made` has been called.
    StartReading(Py<SocketTransport>),
}

/// Everything that waits to be run.
pub(crate) struct Queue {
    pub(crate) ready: VecDeque<Ready>,
    /// Transports that have more to read, or to do: served as if the kernel reported them in the next turn.
    pub(crate) arrived: Vec<Ready>,
    pub(crate) timers: Timers<Ready>,
    /// Debug mode's timers by the address of their handle, for cancelling.
    foreign_timers: HashMap<usize, TimerKey>,
    /// The most that was ready at once since the last `shrink`.
    ready_max: usize,
}

/// Places in the queue that are kept when they are not needed any more.
const READY_KEPT: usize = 4096;

/// The native base of `ringloop.EventLoop`.
#[pyclass(module = "ringloop._core", subclass, frozen)]
pub(crate) struct Loop {
    state: Made<State>,
}

/// What a loop is made of.
pub(crate) struct State {
    pub(crate) queue: GilCell<Queue>,
    pub(crate) watches: GilCell<Watches>,
    pub(crate) reactor: GilCell<Option<Box<Reactor>>>,
    pub(crate) events: GilCell<Vec<Event>>,
    /// Absent once closed: it holds a descriptor.
    waker: GilCell<Option<Waker>>,
    pub(crate) backend_kind: BackendKind,
    backend_reason: String,
    /// The loop's thread is in the kernel, or about to be: a callback from another thread must wake it.
    pub(crate) waiting: AtomicBool,
    pub(crate) stopping: AtomicBool,
    closed: AtomicBool,
    debug: AtomicBool,
    /// `threading.get_ident()` of the running thread, or 0.
    thread_id: AtomicU64,
    task_factory: GilCell<Option<Py<PyAny>>>,
    /// Bytes that the last `sock_recv` received: the next is likely to find as many.
    pub(crate) sock_recv_habit: AtomicUsize,
    /// Absent while a delivery from it is under way.
    receive_buffer: GilCell<Option<Received>>,
    /// The memory that datagrams are received into; absent while they are delivered.
    pub(crate) batch: GilCell<Option<Batch>>,
    pub(crate) meter: Meter,
    pub(crate) posting: Posting,
}

#[pymethods]
impl Loop {
    #[new]
    #[pyo3(signature = (*_args, backend=None, busy_poll=None, **_options))]
    fn new(
        _args: &Bound<'_, PyTuple>,
        backend: Option<&str>,
        busy_poll: Option<&Bound<'_, PyAny>>,
        _options: Option<&Bound<'_, PyDict>>,
        py: Python<'_>,
    ) -> PyResult<Self> {
        let mut config = Config::from_env().map_err(|error| support::os_error(py, &error))?;
        if let Some(name) = backend {
            config.driver.backend =
                name.parse()
                    .map_err(|error: ringloop_driver::UnknownBackend| {
                        objects::error::<PyValueError>(py, &error.to_string())
                    })?;
        }
        if backend.is_some() {
            config.driver.forced_by = ForcedBy::Configuration;
        }
        if let Some(policy) = busy_poll {
            config.busy_poll = parse_busy_poll(policy)?;
        }
        let os_error = |error| support::os_error(py, &error);
        let mut reactor = Reactor::new(&config).map_err(os_error)?;
        let registry = reactor.driver().registry().map_err(os_error)?;
        let state = State {
            queue: GilCell::new(Queue::new()),
            watches: GilCell::new(Watches::new(registry)),
            events: GilCell::new(Vec::new()),
            waker: GilCell::new(Some(reactor.waker())),
            backend_kind: reactor.backend(),
            backend_reason: reactor.backend_reason().to_owned(),
            reactor: GilCell::new(Some(Box::new(reactor))),
            waiting: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            // Open once it is initialised: asyncio's `__init__` says so.
            closed: AtomicBool::new(true),
            debug: AtomicBool::new(false),
            thread_id: AtomicU64::new(0),
            task_factory: GilCell::new(None),
            sock_recv_habit: AtomicUsize::new(0),
            receive_buffer: GilCell::new(None),
            batch: GilCell::new(None),
            meter: Meter::default(),
            posting: Posting::default(),
        };
        Ok(Self {
            state: Made::new(state),
        })
    }

    /// The kernel interface in use: "io_uring" or "epoll".
    #[getter]
    fn backend(&self) -> New<&'static str> {
        New(self.backend_kind.name())
    }

    /// Why this backend was chosen, in words.
    #[getter]
    fn backend_reason(&self) -> New<&str> {
        New(&self.backend_reason)
    }

    /// How the loop waits: "off", "adaptive", or a number of microseconds to poll before sleeping.
    #[getter]
    fn get_busy_poll(&self, py: Python<'_>) -> PyResult<New<String>> {
        self.with_reactor(py, |reactor| Ok(New(reactor.busy_poll().to_string())))
    }

    #[setter]
    fn set_busy_poll(&self, policy: &Bound<'_, PyAny>) -> PyResult<()> {
        let policy_parsed = parse_busy_poll(policy)?;
        self.with_reactor(policy.py(), |reactor| {
            reactor.set_busy_poll(policy_parsed);
            Ok(())
        })
    }

    /// Seconds of the clock that timers are measured by, `time.monotonic()`.
    fn time(&self) -> New<f64> {
        New(seconds_now())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.thread_id.load(Relaxed) != 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    fn get_debug(&self) -> bool {
        self.is_debug()
    }

    /// Ends `run_forever` at the end of the turn in progress.
    fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// A future attached to this loop.
    fn create_future<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static FUTURE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let py = slf.py();
        let class = support::class(py, &FUTURE, "asyncio.futures", "Future")?;
        vectorcall(class, &[slf.as_ptr()], 0, Some(loop_keyword(py)?))
    }

    /// Queues one of asyncio's own handles (debug mode, signals).
    fn _add_callback(slf: &Bound<'_, Self>, handle: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        if handle.getattr(intern!(py, "_cancelled"))?.is_truthy()? {
            return Ok(());
        }
        slf.get()
            .queue
            .get_mut(py)
            .ready
            .push_back(Ready::from_object(handle));
        Ok(())
    }

    /// The same from another thread or a signal handler.
    fn _add_callback_signalsafe(slf: &Bound<'_, Self>, handle: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::_add_callback(slf, handle)?;
        slf.get().wake(slf.py());
        Ok(())
    }

    /// Queues one of asyncio's own timer handles (debug mode).
    fn _add_timer(slf: &Bound<'_, Self>, handle: &Bound<'_, PyAny>, when: f64) {
        let mut queue = slf.get().queue.get_mut(slf.py());
        let key = queue
            .timers
            .insert(deadline_ns(when), Ready::from_object(handle));
        queue.foreign_timers.insert(handle.as_ptr() as usize, key);
    }

    /// asyncio's timer handles tell their loop when they are cancelled.
    fn _timer_handle_cancelled(&self, py: Python<'_>, handle: &Bound<'_, PyAny>) {
        let removed = {
            let mut queue = self.queue.get_mut(py);
            let key = queue.foreign_timers.remove(&(handle.as_ptr() as usize));
            key.and_then(|key| queue.timers.cancel(key))
        };
        if let Some(ready) = removed {
            ready.discard(py);
        }
    }

    /// Wakes the loop's thread if it waits in the kernel. Safe from any thread.
    fn _write_to_self(&self, py: Python<'_>) {
        self.wake(py);
    }

    /// Runs turns until `stop()`.
    fn _run(slf: &Bound<'_, Self>) -> PyResult<()> {
        crate::turn::run(slf)
    }

    /// Runs one turn, for programs that drive the loop themselves.
    fn _run_once(slf: &Bound<'_, Self>) -> PyResult<()> {
        crate::turn::run_once(slf)
    }

    /// Drops the queue, the watches and the kernel's objects. The loop is closed already.
    fn _release(&self, py: Python<'_>) {
        self.clear(py);
    }

    /// Raises RuntimeError if a transport has this descriptor, ValueError if it is none.
    fn _ensure_fd_no_transport(slf: &Bound<'_, Self>, fd: &Bound<'_, PyAny>) -> PyResult<()> {
        watches::ensure_no_transport(slf, fd, watches::file_number(fd)?)
    }

    fn _remove_reader(slf: &Bound<'_, Self>, fd: &Bound<'_, PyAny>) -> PyResult<bool> {
        watches::remove(slf, fd, false)
    }

    fn _remove_writer(slf: &Bound<'_, Self>, fd: &Bound<'_, PyAny>) -> PyResult<bool> {
        watches::remove(slf, fd, true)
    }

    /// Receives up to `n` bytes from a socket: an awaitable of bytes, empty at the end of the stream.
    fn sock_recv<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        n: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The socket module takes no more than an `isize`, and says so itself.
        let count_max = n.extract().ok().filter(|&it| isize::try_from(it).is_ok());
        if let Some(count_max) = count_max {
            let kind = Kind::Receive { count_max };
            if let Some(operation) = socket_operation::new(slf, sock, n, kind)? {
                return Ok(operation);
            }
        }
        asyncio_coroutine(slf, "sock_recv", (slf, sock, n))
    }

    /// Receives into a writable buffer: an awaitable of the number of bytes.
    fn sock_recv_into<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        buf: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match socket_operation::new(slf, sock, buf, Kind::ReceiveInto)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_recv_into", (slf, sock, buf)),
        }
    }

    /// Sends all of a bytes-like object: an awaitable of None.
    fn sock_sendall<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match socket_operation::new(slf, sock, data, Kind::SendAll)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_sendall", (slf, sock, data)),
        }
    }

    /// Receives a datagram of up to `bufsize` bytes: an awaitable of (bytes, address).
    fn sock_recvfrom<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        bufsize: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // More than the receive buffer holds is asked for in vain, save for the largest of Unix datagrams.
        let count_max = bufsize
            .extract()
            .ok()
            .filter(|&it| it <= Received::CAPACITY);
        if let Some(count_max) = count_max {
            let kind = Kind::ReceiveFrom { count_max };
            if let Some(operation) = socket_operation::new(slf, sock, bufsize, kind)? {
                return Ok(operation);
            }
        }
        asyncio_coroutine(slf, "sock_recvfrom", (slf, sock, bufsize))
    }

    /// Receives a datagram into a writable buffer: an awaitable of (number of bytes, address).
    #[pyo3(signature = (sock, buf, nbytes=None))]
    fn sock_recvfrom_into<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        buf: &Bound<'py, PyAny>,
        nbytes: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(count_max) = nbytes.map_or(Some(0), |nbytes| nbytes.extract().ok()) {
            let kind = Kind::ReceiveFromInto { count_max };
            if let Some(operation) = socket_operation::new(slf, sock, buf, kind)? {
                return Ok(operation);
            }
        }
        match nbytes {
            Some(nbytes) => asyncio_coroutine(slf, "sock_recvfrom_into", (slf, sock, buf, nbytes)),
            None => asyncio_coroutine(slf, "sock_recvfrom_into", (slf, sock, buf)),
        }
    }

    /// Sends a datagram to an address: an awaitable of the number of bytes sent.
    fn sock_sendto<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
        address: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pair = objects::tuple(slf.py(), [data.clone(), address.clone()])?;
        match socket_operation::new(slf, sock, pair.as_any(), Kind::SendTo)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_sendto", (slf, sock, data, address)),
        }
    }

    /// What the loop has done so far, in the order of `ringloop.Metrics`.
    #[pyo3(signature = (*, reset_slowest))]
    fn _metrics<'py>(&self, py: Python<'py>, reset_slowest: bool) -> PyResult<Bound<'py, PyTuple>> {
        let snapshot = self.meter.snapshot(py, self)?;
        if reset_slowest {
            self.meter.forget_slowest(py);
        }
        Ok(snapshot)
    }

    /// The descriptor of `file` and the handles that watch it, as (reader or None, writer or None), or None where nothing
    /// does. A file that is closed is found while it is watched. `ValueError` for what is no file.
    fn _watched<'py>(
        slf: &Bound<'py, Self>,
        file: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (fd, handles) = watches::watched(slf, file)?;
        New((New(fd), New(handles))).into_pyobject(slf.py())
    }

    #[getter(_closed)]
    fn get_closed(&self) -> bool {
        self.is_closed()
    }

    #[setter(_closed)]
    fn set_closed(&self, value: bool) {
        self.closed.store(value, Relaxed);
    }

    #[getter(_debug)]
    fn get_debug_flag(&self) -> bool {
        self.is_debug()
    }

    #[setter(_debug)]
    fn set_debug_flag(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.debug.store(value.is_truthy()?, Relaxed);
        Ok(())
    }

    #[getter(_stopping)]
    fn get_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    #[setter(_stopping)]
    fn set_stopping(&self, value: bool) {
        self.stopping.store(value, Relaxed);
    }

    #[getter(_thread_id)]
    fn get_thread_id(&self) -> New<Option<u64>> {
        New(Some(self.thread_id.load(Relaxed)).filter(|&id| id != 0))
    }

    #[setter(_thread_id)]
    fn set_thread_id(&self, value: Option<u64>) {
        self.thread_id.store(value.unwrap_or(0), Relaxed);
    }

    #[getter(_task_factory)]
    fn get_task_factory_slot(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.task_factory
            .get(py)
            .as_ref()
            .map(|it| it.clone_ref(py))
    }

    #[setter(_task_factory)]
    fn set_task_factory_slot(&self, py: Python<'_>, value: Option<Py<PyAny>>) {
        drop(self.task_factory.replace(py, value));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(queue) = self.queue.for_traversal() {
            for ready in queue.all() {
                ready.traverse(&visit)?;
            }
        }
        if let Some(watches) = self.watches.for_traversal() {
            watches.traverse(&visit)?;
        }
        if let Some(factory) = self.task_factory.for_traversal()
            && let Some(factory) = &*factory
        {
            visit.call(factory)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        self.clear(py);
        drop(self.task_factory.replace(py, None));
    }
}

impl Loop {
    #[inline]
    pub(crate) fn is_debug(&self) -> bool {
        self.debug.load(Relaxed)
    }

    /// Whether this thread runs the loop.
    #[inline]
    pub(crate) fn runs_here(&self) -> bool {
        // SAFETY: it takes nothing and needs nothing.
        self.thread_id.load(Relaxed) == unsafe { ffi::PyThread_get_thread_ident() } as u64
    }

    pub(crate) fn check_closed(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() {
            return Err(objects::error::<PyRuntimeError>(py, "Event loop is closed"));
        }
        Ok(())
    }

    /// Ends the wait of the loop's thread, if it waits.
    pub(crate) fn wake(&self, py: Python<'_>) {
        if let Some(waker) = &*self.waker.get(py) {
            waker.wake();
        }
    }

    /// Takes a timer out of the queue; its reference goes to the caller.
    pub(crate) fn cancel_timer(&self, py: Python<'_>, key: TimerKey) -> Option<HandleRef> {
        match self.queue.get_mut(py).timers.cancel(key) {
            Some(Ready::Handle(handle)) => Some(handle),
            _ => None,
        }
    }

    /// Runs `body` with the reactor. An error where there is none: the loop is closed, or waits in another thread.
    pub(crate) fn with_reactor<R>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Reactor) -> io::Result<R>,
    ) -> PyResult<R> {
        let mut slot = self.reactor.get_mut(py);
        let Some(reactor) = slot.as_deref_mut() else {
            self.check_closed(py)?;
            return Err(objects::error::<PyRuntimeError>(
                py,
                "Non-thread-safe operation invoked on an event loop that waits in another thread; \
                 use loop.call_soon_threadsafe()",
            ));
        };
        let result = body(reactor);
        drop(slot);
        result.map_err(|error| support::os_error(py, &error))
    }

    /// The buffer that stream transports receive into; to be given back.
    pub(crate) fn receive_buffer(&self, py: Python<'_>) -> PyResult<Received> {
        match self.receive_buffer.replace(py, None) {
            Some(buffer) => Ok(buffer),
            None => Received::new(py),
        }
    }

    pub(crate) fn return_receive_buffer(&self, py: Python<'_>, buffer: Received) {
        drop(self.receive_buffer.replace(py, Some(buffer)));
    }

    /// Returns the receive buffer, and its first `count` bytes as an object.
    pub(crate) fn settle_receive_buffer(
        &self,
        py: Python<'_>,
        buffer: Received,
        count: usize,
    ) -> Py<PyAny> {
        let (bytes, buffer) = buffer.hand_over(py, count);
        drop(self.receive_buffer.replace(py, buffer));
        bytes
    }

    fn clear(&self, py: Python<'_>) {
        let _sleeps_at_exit = SleepsAtExit::new();
        let queue = self.queue.replace(py, Queue::new());
        let watches = self.watches.replace(py, Watches::default());
        if let Some(reactor) = self.reactor.replace(py, None) {
            self.meter.keep(py, reactor.counters());
        }
        drop(self.waker.replace(py, None));
        drop(self.receive_buffer.replace(py, None));
        drop(self.batch.replace(py, None));
        queue.discard(py);
        drop(watches);
    }
}

impl Deref for Loop {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if Made::is_made(&self.state) {
            Python::attach(|py| self.clear(py));
        }
    }
}

impl Queue {
    fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            arrived: Vec::new(),
            timers: Timers::new(),
            foreign_timers: HashMap::new(),
            ready_max: 0,
        }
    }

    /// How many callbacks are ready, for a turn to run.
    #[inline]
    pub(crate) fn count_ready(&mut self) -> usize {
        self.ready_max = self.ready_max.max(self.ready.len());
        self.ready.len()
    }

    /// Gives memory back, before a wait: what is beyond twice the most that was ready at once since the wait before. So a
    /// burst that comes again finds its room, and one that doesn't has none from the next wait on. (Timers do so by
    /// themselves.)
    #[inline]
    pub(crate) fn shrink(&mut self) {
        let needed = READY_KEPT.max(2 * std::mem::take(&mut self.ready_max));
        if self.ready.capacity() > 2 * needed {
            self.ready.shrink_to(needed);
        }
        let needed = READY_KEPT.max(2 * self.foreign_timers.len());
        if self.foreign_timers.capacity() > 2 * needed {
            self.foreign_timers.shrink_to(needed);
        }
    }

    /// Queues an expired timer.
    pub(crate) fn expire(&mut self, ready: Ready) {
        match &ready {
            Ready::Handle(handle) => handle.set_timer(None),
            Ready::Foreign(handle) => {
                self.foreign_timers.remove(&(handle.as_ptr() as usize));
            }
            Ready::Transport(..) | Ready::Datagrams(..) | Ready::StartReading(_) => {}
        }
        self.ready.push_back(ready);
    }

    /// Whether nothing waits for its turn, timers aside.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.arrived.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Ready> {
        self.ready
            .iter()
            .chain(&self.arrived)
            .chain(self.timers.iter())
    }

    fn discard(self, py: Python<'_>) {
        let waiting = self.ready.into_iter().chain(self.arrived);
        for ready in waiting.chain(self.timers.into_values()) {
            ready.discard(py);
        }
    }
}

impl Ready {
    pub(crate) fn from_object(handle: &Bound<'_, PyAny>) -> Self {
        match HandleRef::from_object(handle) {
            Some(native) => Self::Handle(native.retain(handle.py())),
            None => Self::Foreign(handle.clone().unbind()),
        }
    }

    /// Whether it was cancelled while it was queued.
    #[inline]
    pub(crate) fn is_cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        match self {
            Self::Handle(handle) => Ok(handle.is_cancelled()),
            Self::Foreign(handle) => handle
                .bind(py)
                .getattr(intern!(py, "_cancelled"))?
                .is_truthy(),
            Self::Transport(..) | Self::Datagrams(..) | Self::StartReading(_) => Ok(false),
        }
    }

    /// Drops what has been run.
    #[inline]
    pub(crate) fn release(self, py: Python<'_>) {
        if let Self::Handle(handle) = self {
            handle.release(py);
        }
    }

    /// Drops what was queued without running it.
    pub(crate) fn discard(self, py: Python<'_>) {
        if let Self::Handle(handle) = self {
            handle.set_timer(None);
            if handle.is_shared() {
                handle.track();
            }
            handle.release(py);
        }
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Handle(handle) => handle.traverse(visit),
            Self::Foreign(object) => visit.call(object),
            Self::Transport(transport, _) | Self::StartReading(transport) => visit.call(transport),
            Self::Datagrams(transport, _) => visit.call(transport),
        }
    }
}

/// Seconds of CLOCK_MONOTONIC.
#[inline]
pub(crate) fn seconds_now() -> f64 {
    clock::now_ns() as f64 * 1e-9
}

/// Up to here, a float holds every integer exactly.
const EXACT_INTEGERS: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;

/// The timer queue's deadline for a time of the loop's clock in seconds. What lies before the clock's start, and what
/// is no number, is due at once, as asyncio has it; what lies beyond its end never comes.
fn deadline_ns(when_s: f64) -> u64 {
    // A float to integer conversion saturates, and NaN becomes 0.
    (when_s * 1e9).round() as u64
}

fn parse_busy_poll(policy: &Bound<'_, PyAny>) -> PyResult<BusyPoll> {
    let py = policy.py();
    let text = policy.str()?;
    text.to_str()?
        .parse()
        .map_err(|error: io::Error| objects::error::<PyValueError>(py, &error.to_string()))
}

/// asyncio's own coroutine for a socket operation.
fn asyncio_coroutine<'py>(
    event_loop: &Bound<'py, Loop>,
    method: &str,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = event_loop.py();
    support::class(
        py,
        &BASE,
        "asyncio.selector_events",
        "BaseSelectorEventLoop",
    )?
    .call_method1(New(method), arguments)
}

/// Calls `callable` with `positional` arguments first and one keyword argument per name after.
fn vectorcall<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: &[*mut ffi::PyObject],
    positional: usize,
    names: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = callable.py();
    // SAFETY: the GIL is held; the arguments are live objects borrowed from the caller for the length of the call.
    unsafe {
        let result = ffi::PyObject_Vectorcall(
            callable.as_ptr(),
            arguments.as_ptr(),
            positional,
            names.map_or(ptr::null_mut(), Bound::as_ptr),
        );
        Bound::from_owned_ptr_or_err(py, result)
    }
}

/// The arguments of one of the scheduling methods, still borrowed.
struct Parsed<'a> {
    /// `delay`, `when` or `fd`, where the method takes one before the callback.
    first: *mut ffi::PyObject,
    call: Call<'a>,
}

/// Splits a vectorcall into what comes first (where `first_name` names it), callback, further arguments and context.
///
/// # Safety
/// The GIL is held; `arguments` holds `positional` objects and one more per name in `names`, all alive.
#[inline]
unsafe fn parse<'a>(
    method: &str,
    first_name: Option<&str>,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    py: Python<'_>,
) -> PyResult<Parsed<'a>> {
    // SAFETY: as the function asks.
    let given = unsafe { std::slice::from_raw_parts(arguments, positional as usize) };
    let mut before = ptr::null_mut();
    let mut callback = ptr::null_mut();
    let mut context = ptr::null_mut();
    let mut rest = given;
    if first_name.is_some()
        && let [first, others @ ..] = rest
    {
        before = *first;
        rest = others;
    }
    if let [first, others @ ..] = rest {
        callback = *first;
        rest = others;
    }
    if !names.is_null() {
        // SAFETY: `names` is a tuple of strings, and a keyword's value stands behind the positional arguments.
        let names = unsafe { Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>() };
        for (index, name) in names.iter().enumerate() {
            // SAFETY: as above.
            let value = unsafe { *arguments.add(positional as usize + index) };
            let name = name.str()?;
            let name = name.to_str()?;
            let slot = match name {
                "context" => &mut context,
                "callback" => &mut callback,
                _ if Some(name) == first_name => &mut before,
                _ => {
                    return Err(objects::error::<PyTypeError>(
                        py,
                        &format!("{method}() got an unexpected keyword argument '{name}'"),
                    ));
                }
            };
            if !slot.is_null() {
                return Err(objects::error::<PyTypeError>(
                    py,
                    &format!("{method}() got multiple values for argument '{name}'"),
                ));
            }
            *slot = value;
        }
    }
    if callback.is_null() || (first_name.is_some() && before.is_null()) {
        let missing: Vec<&str> = first_name
            .filter(|_| before.is_null())
            .into_iter()
            .chain(callback.is_null().then_some("callback"))
            .collect();
        let message = match missing[..] {
            [one] => format!("{method}() missing 1 required positional argument: '{one}'"),
            _ => format!(
                "{method}() missing 2 required positional arguments: '{}' and '{}'",
                missing[0], missing[1]
            ),
        };
        return Err(objects::error::<PyTypeError>(py, &message));
    }
    Ok(Parsed {
        first: before,
        call: Call {
            callback,
            arguments: rest,
            context,
        },
    })
}

/// Debug mode: asyncio's own checks and its own handle, with a source traceback.
#[cold]
fn schedule_in_debug_mode<'py>(
    py: Python<'py>,
    helper: &str,
    this: *mut ffi::PyObject,
    when: Option<Deadline>,
    call: &Call<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let _sleeps_at_exit = SleepsAtExit::new();
    // SAFETY: the GIL is held and the pointers are live objects, borrowed from the caller of the method.
    unsafe {
        let arguments = objects::tuple_from_borrowed(call.arguments);
        let arguments = Bound::from_owned_ptr_or_err(py, arguments)?;
        let this = Bound::from_borrowed_ptr(py, this);
        let callback = Bound::from_borrowed_ptr(py, call.callback);
        let context = Bound::from_borrowed_ptr_or_opt(py, call.context);
        support::python(py)?.getattr(New(helper))?.call1((
            this,
            callback,
            arguments,
            context,
            New(when),
        ))
    }
}

/// Queues `call` to run in the next turn.
///
/// # Safety
/// The GIL is held; `this` is an instance of `Loop` and `call` holds live objects.
#[inline]
unsafe fn schedule_soon<'py>(
    py: Python<'py>,
    this: *mut ffi::PyObject,
    call: &Call<'_>,
    debug_helper: &str,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as the function asks.
    unsafe {
        let object = Bound::from_borrowed_ptr(py, this);
        let owner = object.cast_unchecked::<Loop>().get();
        owner.check_closed(py)?;
        if owner.is_debug() {
            return schedule_in_debug_mode(py, debug_helper, this, None, call);
        }
        let Some(handle) = HandleRef::new(call, this, None) else {
            return Err(PyErr::fetch(py));
        };
        owner
            .queue
            .get_mut(py)
            .ready
            .push_back(Ready::Handle(handle.retain(py)));
        Ok(Bound::from_owned_ptr(py, handle.as_ptr()))
    }
}

/// Queues `call` to run at `when`.
///
/// # Safety
/// As `schedule_soon`.
#[inline]
unsafe fn schedule_at<'py>(
    py: Python<'py>,
    this: *mut ffi::PyObject,
    when: Deadline,
    call: &Call<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as the function asks.
    unsafe {
        let object = Bound::from_borrowed_ptr(py, this);
        let owner = object.cast_unchecked::<Loop>().get();
        owner.check_closed(py)?;
        if owner.is_debug() {
            return schedule_in_debug_mode(py, "call_at_debug", this, Some(when), call);
        }
        let Some(handle) = HandleRef::new(call, this, Some(when)) else {
            return Err(PyErr::fetch(py));
        };
        let key = owner
            .queue
            .get_mut(py)
            .timers
            .insert(deadline_ns(when.seconds), Ready::Handle(handle.retain(py)));
        handle.set_timer(Some(key));
        Ok(Bound::from_owned_ptr(py, handle.as_ptr()))
    }
}

/// A number of seconds as a float.
///
/// # Safety
/// The GIL is held and `value` is alive.
#[inline]
unsafe fn seconds(py: Python<'_>, value: *mut ffi::PyObject) -> PyResult<f64> {
    // SAFETY: as the function asks.
    unsafe {
        let number = ffi::PyFloat_AsDouble(value);
        // The exact value that says that there may be an error.
        #[allow(clippy::float_cmp)]
        if number == -1.0 && !ffi::PyErr_Occurred().is_null() {
            return Err(PyErr::fetch(py));
        }
        Ok(number)
    }
}

/// The time `delay` from now. What is no plain number adds itself to the clock, or refuses to, as it would in Python.
///
/// # Safety
/// The GIL is held and `delay` is alive.
#[inline]
unsafe fn time_after(py: Python<'_>, delay: *mut ffi::PyObject) -> PyResult<f64> {
    // SAFETY: as the function asks.
    unsafe {
        if ffi::PyFloat_CheckExact(delay) != 0 || ffi::PyLong_CheckExact(delay) != 0 {
            return Ok(seconds_now() + seconds(py, delay)?);
        }
        let delay = Bound::from_borrowed_ptr(py, delay);
        objects::float(py, seconds_now())?.add(delay)?.extract()
    }
}

type FastCall = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    ffi::Py_ssize_t,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

unsafe extern "C" fn call_soon(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: called by the interpreter through a method descriptor of `Loop`, which checks the type of `this`.
        unsafe {
            let parsed = parse("call_soon", None, arguments, positional, names, py)?;
            schedule_soon(py, this, &parsed.call, "call_soon_debug")
        }
    })
}

unsafe extern "C" fn call_soon_threadsafe(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: as in `call_soon`.
        unsafe {
            let parsed = parse(
                "call_soon_threadsafe",
                None,
                arguments,
                positional,
                names,
                py,
            )?;
            let handle = schedule_soon(py, this, &parsed.call, "call_soon_threadsafe_debug")?;
            let object = Bound::from_borrowed_ptr(py, this);
            let owner = object.cast_unchecked::<Loop>().get();
            if let Some(native) = HandleRef::from_object(&handle) {
                native.set_threadsafe();
            }
            posting::posted(py, owner);
            Ok(handle)
        }
    })
}

unsafe extern "C" fn call_later(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: as in `call_soon`.
        unsafe {
            let parsed = parse(
                "call_later",
                Some("delay"),
                arguments,
                positional,
                names,
                py,
            )?;
            if parsed.first == ffi::Py_None() {
                return Err(objects::error::<PyTypeError>(py, "delay must not be None"));
            }
            let when = Deadline {
                seconds: time_after(py, parsed.first)?,
                integer: false,
            };
            schedule_at(py, this, when, &parsed.call)
        }
    })
}

unsafe extern "C" fn call_at(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: as in `call_soon`.
        unsafe {
            let parsed = parse("call_at", Some("when"), arguments, positional, names, py)?;
            if parsed.first == ffi::Py_None() {
                return Err(objects::error::<PyTypeError>(py, "when cannot be None"));
            }
            // Before the time is looked at: a closed loop says that it is closed, whatever it is given.
            Bound::from_borrowed_ptr(py, this)
                .cast_unchecked::<Loop>()
                .get()
                .check_closed(py)?;
            let seconds = seconds(py, parsed.first)?;
            let when = Deadline {
                seconds,
                // Larger ones may have lost digits.
                integer: ffi::PyLong_CheckExact(parsed.first) != 0
                    && seconds.abs() <= EXACT_INTEGERS,
            };
            schedule_at(py, this, when, &parsed.call)
        }
    })
}

/// Runs a coroutine as a task of the loop, `asyncio.loop.create_task`.
unsafe extern "C" fn create_task(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: as in `call_soon`; the arguments are as the interpreter lays them out.
        let (this, arguments, names) = unsafe {
            let keywords = if names.is_null() {
                0
            } else {
                ffi::PyTuple_GET_SIZE(names)
            };
            (
                Bound::from_borrowed_ptr(py, this),
                std::slice::from_raw_parts(arguments, (positional + keywords) as usize),
                Bound::from_borrowed_ptr_or_opt(py, names)
                    .map(|names| names.cast_into_unchecked::<PyTuple>()),
            )
        };
        // SAFETY: as in `call_soon`.
        let owner = unsafe { this.cast_unchecked::<Loop>() }.get();
        if let ([coroutine], 1) = (arguments, positional)
            && !owner.is_debug()
            && !owner.is_closed()
            && owner.task_factory.get(py).is_none()
        {
            static TASK: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            let class = support::class(py, &TASK, "asyncio.tasks", "Task")?;
            return vectorcall(
                class,
                &[*coroutine, this.as_ptr()],
                1,
                Some(loop_keyword(py)?),
            );
        }
        // Names, contexts, factories: asyncio's own, called directly so that tracebacks show no frame of ours.
        static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let function = support::class(py, &BASE, "asyncio.base_events", "BaseEventLoop")?
            .getattr(intern!(py, "create_task"))?;
        let _sleeps_at_exit = SleepsAtExit::new();
        let mut all = vec![this.as_ptr()];
        all.extend_from_slice(arguments);
        vectorcall(&function, &all, positional as usize + 1, names.as_ref())
    })
}

/// The names of the arguments of a call with `loop=` alone.
fn loop_keyword(py: Python<'_>) -> PyResult<&Bound<'_, PyTuple>> {
    static NAMES: PyOnceLock<Py<PyTuple>> = PyOnceLock::new();
    NAMES
        .get_or_try_init(py, || {
            let name = intern!(py, "loop").clone().into_any();
            objects::tuple(py, [name]).map(Bound::unbind)
        })
        .map(|names| names.bind(py))
}

unsafe extern "C" fn add_reader(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, as `watch` asks.
    guard(|py| unsafe { watch(py, "_add_reader", this, arguments, positional, names, false) })
}

unsafe extern "C" fn add_writer(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, as `watch` asks.
    guard(|py| unsafe { watch(py, "_add_writer", this, arguments, positional, names, true) })
}

/// Watches a descriptor with a callback.
///
/// # Safety
/// As `parse`; `this` is an instance of `Loop`.
unsafe fn watch<'py>(
    py: Python<'py>,
    method: &str,
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    for_writing: bool,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as the function asks.
    unsafe {
        let parsed = parse(method, Some("fd"), arguments, positional, names, py)?;
        let this = Bound::from_borrowed_ptr(py, this);
        let file = Bound::from_borrowed_ptr(py, parsed.first);
        watches::add(this.cast_unchecked(), &file, &parsed.call, for_writing)
    }
}

/// Adds what runs once per callback, and what takes any arguments, to the class as plain C methods.
fn add_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    let methods: [(&std::ffi::CStr, FastCall, &std::ffi::CStr); 7] = [
        (
            c"call_soon",
            call_soon,
            c"call_soon($self, callback, /, *args, context=None)\n--\n\nRun callback(*args) in the next turn; returns its Handle.",
        ),
        (
            c"call_soon_threadsafe",
            call_soon_threadsafe,
            c"call_soon_threadsafe($self, callback, /, *args, context=None)\n--\n\nLike call_soon, from any thread: wakes the loop.",
        ),
        (
            c"call_later",
            call_later,
            c"call_later($self, delay, callback, /, *args, context=None)\n--\n\nRun callback(*args) after delay seconds; returns its TimerHandle.",
        ),
        (
            c"call_at",
            call_at,
            c"call_at($self, when, callback, /, *args, context=None)\n--\n\nRun callback(*args) at loop.time() == when; returns its TimerHandle.",
        ),
        (
            c"create_task",
            create_task,
            c"create_task($self, coro, **kwargs)\n--\n\nRuns a coroutine as a task of this loop; see asyncio.loop.create_task.",
        ),
        (
            c"_add_reader",
            add_reader,
            c"_add_reader($self, fd, callback, /, *args, context=None)\n--\n\n",
        ),
        (
            c"_add_writer",
            add_writer,
            c"_add_writer($self, fd, callback, /, *args, context=None)\n--\n\n",
        ),
    ];
    for (name, function, doc) in methods {
        // The descriptor keeps the pointer for the life of the process.
        let definition = Box::leak(Box::new(ffi::PyMethodDef {
            ml_name: name.as_ptr(),
            ml_meth: ffi::PyMethodDefPointer {
                PyCFunctionFastWithKeywords: function,
            },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: doc.as_ptr(),
        }));
        // SAFETY: the GIL is held and the definition lives for ever.
        let descriptor = unsafe {
            Bound::from_owned_ptr_or_err(
                py,
                ffi::PyDescr_NewMethod(class.as_type_ptr(), definition),
            )?
        };
        class.setattr(New(&*name.to_string_lossy()), descriptor)?;
    }
    Ok(())
}

/// Adds `Loop` to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Loop>()?;
    add_methods(&module.py().get_type::<Loop>())
}
