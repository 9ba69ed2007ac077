//! `Loop`: the state of `ringloop.EventLoop`, its native base.
//!
//! It holds the queue of callbacks, the timers, the watches and the reactor. What Python calls on it is in
//! `loop_methods.rs`. What runs once per loop or per connection is Python: `ringloop.EventLoop` inherits it from the
//! running interpreter's asyncio.
//!
//! The queue (never borrowed while Python runs), the watches, and the reactor (absent while its thread waits in it) are
//! in separate cells, so that reentrant calls find the others free while one is in use.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::sync::atomic::{
    self, AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::{BackendKind, Event, Waker};
use ringloop_reactor::timers::TimerKey;
use ringloop_reactor::{Reactor, ReactorConfig};

use crate::buffers::{Batch, Received};
use crate::cell::GilCell;
use crate::handle::HandleRef;
use crate::metrics::{Meter, Moment};
use crate::objects;
use crate::operations::Operations;
use crate::posting::Posting;
use crate::queue::{Queue, Ready};
use crate::stopwatch::Pace;
use crate::support::{self, CloneRefOption, Made};
use crate::thread_exit::SleepsAtExit;
use crate::watches::Watches;

/// The native base of `ringloop.EventLoop`.
#[pyclass(module = "ringloop._core", subclass, frozen)]
pub(crate) struct Loop {
    state: Made<State>,
}

/// The parts of a loop.
pub(crate) struct State {
    pub(crate) queue: GilCell<Queue>,
    pub(crate) watches: GilCell<Watches>,
    /// Operations on files that are in progress.
    pub(crate) operations: GilCell<Operations>,
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
    /// The same of pipes, whose data a protocol gets as an object.
    pub(crate) pipe_habit: AtomicUsize,
    /// Absent while a delivery from it is under way.
    receive_buffer: GilCell<Option<Received>>,
    /// The memory that datagrams are received into; absent while they are delivered.
    pub(crate) batch: GilCell<Option<Batch>>,
    pub(crate) meter: Meter,
    /// How callbacks are timed, from one run to the next.
    pub(crate) pace: GilCell<Pace>,
    pub(crate) posting: Posting,
    /// It has a watchdog.
    pub(crate) is_watched: AtomicBool,
}

impl Loop {
    /// A loop that is closed, until asyncio's `__init__` says that it is open.
    pub(crate) fn open(config: &ReactorConfig) -> io::Result<Self> {
        let mut reactor = Reactor::new(config)?;
        let registry = reactor.driver_mut().registry()?;
        let state = State {
            queue: GilCell::new(Queue::new()),
            watches: GilCell::new(Watches::new(registry)),
            operations: GilCell::new(Operations::default()),
            events: GilCell::new(Vec::new()),
            waker: GilCell::new(Some(reactor.waker())),
            backend_kind: reactor.backend(),
            backend_reason: reactor.backend_reason().to_owned(),
            reactor: GilCell::new(Some(Box::new(reactor))),
            waiting: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            closed: AtomicBool::new(true),
            debug: AtomicBool::new(false),
            thread_id: AtomicU64::new(0),
            task_factory: GilCell::new(None),
            sock_recv_habit: AtomicUsize::new(0),
            pipe_habit: AtomicUsize::new(0),
            receive_buffer: GilCell::new(None),
            batch: GilCell::new(None),
            meter: Meter::default(),
            pace: GilCell::new(Pace::default()),
            posting: Posting::default(),
            is_watched: AtomicBool::new(false),
        };
        Ok(Self {
            state: Made::new(state),
        })
    }

    pub(crate) fn backend_reason(&self) -> &str {
        &self.backend_reason
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    pub(crate) fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Relaxed);
    }

    pub(crate) fn set_debug(&self, debug: bool) {
        self.debug.store(debug, Relaxed);
    }

    /// `threading.get_ident()` of the thread that runs the loop, or 0.
    pub(crate) fn thread_id(&self) -> u64 {
        self.thread_id.load(Relaxed)
    }

    pub(crate) fn set_thread_id(&self, id: u64) {
        self.thread_id.store(id, Relaxed);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.thread_id() != 0
    }

    /// The number of the current turn, or of the last one, in its low bits.
    #[inline]
    pub(crate) fn turn(&self) -> u32 {
        self.meter.turns() as u32
    }

    pub(crate) fn has_task_factory(&self, py: Python<'_>) -> bool {
        self.task_factory.get(py).is_some()
    }

    pub(crate) fn task_factory(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.task_factory.get(py).clone_ref_opt(py)
    }

    pub(crate) fn set_task_factory(&self, py: Python<'_>, factory: Option<Py<PyAny>>) {
        drop(self.task_factory.replace(py, factory));
    }

    #[inline]
    pub(crate) fn is_debug(&self) -> bool {
        self.debug.load(Relaxed)
    }

    /// Whether this thread runs the loop.
    #[inline]
    pub(crate) fn runs_here(&self) -> bool {
        // SAFETY: it has no preconditions.
        self.thread_id() == unsafe { ffi::PyThread_get_thread_ident() } as u64
    }

    /// Whether another thread runs the loop, and this one must leave the loop's transports to it. With the GIL none
    /// must.
    #[inline]
    pub(crate) fn runs_elsewhere(&self) -> bool {
        cfg!(Py_GIL_DISABLED) && self.is_running() && !self.runs_here()
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

    /// To be called when another thread may have queued a callback. Wakes the loop, and may give way to it.
    #[inline]
    pub(crate) fn posted(&self, py: Python<'_>) {
        // With the GIL, the queue and this flag change together: a loop that isn't waiting yet sees the callback first.
        // Without it, the loop looks at the queue again after it has set the flag (`begin_waiting`).
        if cfg!(Py_GIL_DISABLED) {
            atomic::fence(SeqCst);
        }
        if self.waiting.load(Relaxed) {
            self.wake(py);
        }
        // Without the GIL, nobody keeps the loop from running.
        if cfg!(not(Py_GIL_DISABLED)) && !self.runs_here() {
            self.posting.posted(py, &self.meter, || self.is_running());
        }
    }

    /// To be called when something was queued that is mostly queued by the loop's own thread. Wakes the loop if it was
    /// another one; with the GIL it is left to the caller, as under asyncio.
    #[inline]
    pub(crate) fn queued(&self, py: Python<'_>) {
        if cfg!(Py_GIL_DISABLED) && !self.runs_here() {
            self.posted(py);
        }
    }

    /// The loop is about to wait. False if another thread has queued something that it can't have seen: it wakes the loop
    /// only if it has seen the flag that is set here.
    #[inline]
    pub(crate) fn begin_waiting(&self, py: Python<'_>) -> bool {
        self.waiting.store(true, Relaxed);
        if cfg!(Py_GIL_DISABLED) {
            atomic::fence(SeqCst);
            let queue = self.queue.get(py);
            return queue.is_idle() && queue.collected.is_empty();
        }
        let _ = py;
        true
    }

    /// Where a run of the loop is; None while it waits for the kernel, or for the GIL after that. Any thread may ask, also
    /// without the GIL.
    pub(crate) fn moment(&self) -> Option<Moment> {
        self.meter.moment().filter(|_| !self.waiting.load(Relaxed))
    }

    /// Takes a timer out of the queue; its reference goes to the caller.
    pub(crate) fn cancel_timer(&self, py: Python<'_>, key: TimerKey) -> Option<HandleRef> {
        match self.queue.get_mut(py).timers.cancel(key) {
            Some(Ready::Handle(handle)) => Some(handle),
            _ => None,
        }
    }

    /// Runs `body` with the reactor. An error if it is absent: the loop is closed, or waits in another thread.
    #[inline]
    pub(crate) fn with_reactor<R>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Reactor) -> io::Result<R>,
    ) -> PyResult<R> {
        match self.with_reactor_if_here(py, body) {
            Some(result) => result.map_err(|error| support::os_error(py, &error)),
            None => Err(self.reactor_is_absent(py)),
        }
    }

    /// The same; None if it is absent. Makes no Python object, so that other cells may be borrowed meanwhile.
    #[inline]
    pub(crate) fn with_reactor_if_here<R>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Reactor) -> R,
    ) -> Option<R> {
        self.reactor.get_mut(py).as_deref_mut().map(body)
    }

    /// Takes the reactor away: to wait in it without holding its lock, or to drop it.
    pub(crate) fn take_reactor(&self, py: Python<'_>) -> Option<Box<Reactor>> {
        let mut slot = self.reactor.get_mut(py);
        if cfg!(Py_GIL_DISABLED)
            && let Some(reactor) = slot.as_deref()
        {
            // Done while the slot is locked, so that another thread never reads older counters.
            self.meter.keep(py, reactor.counters());
        }
        slot.take()
    }

    /// The error of whoever needs the reactor while it is absent.
    #[cold]
    pub(crate) fn reactor_is_absent(&self, py: Python<'_>) -> PyErr {
        self.check_closed(py).err().unwrap_or_else(|| {
            objects::error::<PyRuntimeError>(
                py,
                "Non-thread-safe operation invoked on an event loop that waits in another thread; \
                 use loop.call_soon_threadsafe()",
            )
        })
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

    /// Shows the collector what the loop refers to.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(queue) = self.queue.for_traversal() {
            for ready in queue.all() {
                ready.traverse(visit)?;
            }
            for collected in &queue.collected {
                collected.traverse(visit)?;
            }
        }
        if let Some(watches) = self.watches.for_traversal() {
            watches.traverse(visit)?;
        }
        if let Some(operations) = self.operations.for_traversal() {
            operations.traverse(visit)?;
        }
        if let Some(factory) = self.task_factory.for_traversal()
            && let Some(factory) = &*factory
        {
            visit.call(factory)?;
        }
        Ok(())
    }

    /// Drops the queue, the watches and the kernel's objects.
    pub(crate) fn clear(&self, py: Python<'_>) {
        let _sleeps_at_exit = SleepsAtExit::new();
        let queue = self.queue.replace(py, Queue::new());
        let watches = self.watches.replace(py, Watches::default());
        let operations = self.operations.replace(py, Operations::default());
        if let Some(reactor) = self.take_reactor(py) {
            self.meter.keep(py, reactor.counters());
        }
        drop(self.waker.replace(py, None));
        drop(self.receive_buffer.replace(py, None));
        drop(self.batch.replace(py, None));
        queue.discard(py);
        drop(watches);
        // Their files may be closed now: without the reactor, the kernel works on none.
        drop(operations);
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
