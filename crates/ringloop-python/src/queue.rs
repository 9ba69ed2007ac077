//! The queue of what waits for its turn: callbacks, transports that have something to do, and timers.
//!
//! Nothing here knows what a transport is. The queue holds the object and the kind of its native type. The turn knows
//! the types, and calls the right one.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_reactor::timers::{TimerKey, Timers};

use crate::handle::HandleRef;
use crate::names::intern;
use crate::native_type::IS_TRACKED_AT_ONCE;
use crate::objects;

/// An entry that a turn runs, in order of arrival.
pub(crate) enum Ready {
    Handle(HandleRef),
    /// One of asyncio's own handles: in debug mode, and for signals.
    Foreign(Py<PyAny>),
    /// A transport that has something to do.
    Transport(Served),
}

// Tens of thousands of them may wait at once.
const _: () = assert!(size_of::<Ready>() == 2 * size_of::<usize>());

/// A transport, and what it is to be served for.
pub(crate) struct Served {
    transport: Py<PyAny>,
    kind: TransportKind,
    reason: Reason,
}

/// The native type of a transport.
#[derive(Copy, Clone, Eq, PartialEq)]
pub(crate) enum TransportKind {
    Stream,
    Datagram,
}

/// Why a transport is served.
#[derive(Copy, Clone)]
pub(crate) enum Reason {
    /// `connection_made` has been called: it begins to read.
    Begin,
    /// Its socket reported something, or it has not finished.
    Ready(Readiness),
}

/// The readiness that a descriptor reported, as the transports need it.
#[derive(Copy, Clone)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has closed its side, the socket failed, or urgent data came: read on until nothing is left.
    pub(crate) read_on: bool,
}

impl Readiness {
    pub(crate) const READABLE: Self = Self {
        readable: true,
        writable: false,
        read_on: false,
    };
    pub(crate) const WRITABLE: Self = Self {
        readable: false,
        writable: true,
        read_on: false,
    };
}

/// A native type that collects output during a turn.
pub(crate) trait Collector: PyTypeInfo {
    /// The turn is over: sends what was collected.
    fn flush(this: &Bound<'_, Self>) -> PyResult<()>;
}

/// A collector that has output.
pub(crate) struct Collected {
    collector: Py<PyAny>,
    flush: fn(&Bound<'_, PyAny>) -> PyResult<()>,
}

impl Collected {
    fn of<T: Collector>(collector: &Bound<'_, T>) -> Self {
        Self {
            collector: collector.as_any().clone().unbind(),
            flush: |collector| T::flush(collector.cast()?),
        }
    }

    /// Sends the output.
    pub(crate) fn flush(&self, py: Python<'_>) -> PyResult<()> {
        (self.flush)(self.collector.bind(py))
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.collector)
    }
}

/// A native type of transports.
///
/// # Safety
/// No other type has the same kind.
pub(crate) unsafe trait Transport: PyTypeInfo {
    const KIND: TransportKind;
}

impl Served {
    pub(crate) fn new<T: Transport>(transport: &Bound<'_, T>, reason: Reason) -> Self {
        Self {
            transport: transport.as_any().clone().unbind(),
            kind: T::KIND,
            reason,
        }
    }

    /// The same, where only the kind of the type is known.
    ///
    /// # Safety
    /// The transport is an instance of the type that has this kind.
    pub(crate) unsafe fn of_kind(
        transport: Py<PyAny>,
        kind: TransportKind,
        reason: Reason,
    ) -> Self {
        Self {
            transport,
            kind,
            reason,
        }
    }

    /// The transport, if it is one of this type.
    #[inline]
    pub(crate) fn get<'a, 'py, T: Transport>(
        &'a self,
        py: Python<'py>,
    ) -> Option<&'a Bound<'py, T>> {
        // SAFETY: only the instances of one type have its kind.
        (self.kind == T::KIND).then(|| unsafe { self.transport.bind(py).cast_unchecked() })
    }

    #[inline]
    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    pub(crate) fn transport(&self) -> &Py<PyAny> {
        &self.transport
    }
}

/// Everything that waits to be run.
pub(crate) struct Queue {
    pub(crate) ready: VecDeque<Ready>,
    /// Transports that have more to read, or to do: served as if the kernel reported them in the next turn.
    pub(crate) arrived: Vec<Ready>,
    /// Output that goes out when the turn is over.
    pub(crate) collected: Vec<Collected>,
    pub(crate) timers: Timers<Ready>,
    /// The timer that was inserted last: nobody has looked yet whether its handle is kept.
    newest_timer: Option<TimerKey>,
    /// Debug mode's timers by the address of their handle, for cancelling.
    foreign_timers: HashMap<usize, TimerKey>,
    /// The largest number of entries that were ready at once since the last `shrink`.
    ready_max: usize,
}

/// Places in the queue that are kept when they are not needed any more.
const READY_KEPT: usize = 4096;

impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            arrived: Vec::new(),
            collected: Vec::new(),
            timers: Timers::new(),
            newest_timer: None,
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

    /// Gives memory back, before a wait: all but twice what was needed at most since the wait before. A burst that
    /// repeats keeps its memory; after one that doesn't, the next wait frees it. (The timers shrink by themselves.)
    #[inline]
    pub(crate) fn shrink(&mut self) {
        self.track_newest_timer();
        let needed = READY_KEPT.max(2 * std::mem::take(&mut self.ready_max));
        if self.ready.capacity() > 2 * needed {
            self.ready.shrink_to(needed);
        }
        let needed = READY_KEPT.max(2 * self.foreign_timers.len());
        if self.foreign_timers.capacity() > 2 * needed {
            self.foreign_timers.shrink_to(needed);
        }
    }

    /// Queues a callback. The caller keeps its own reference to the handle.
    ///
    /// # Errors
    /// `MemoryError`.
    #[inline]
    pub(crate) fn push_handle(&mut self, py: Python<'_>, handle: HandleRef) -> PyResult<()> {
        if self.ready.len() == self.ready.capacity() && self.ready.try_reserve(1).is_err() {
            return Err(objects::error::<PyMemoryError>(py, ""));
        }
        self.ready.push_back(Ready::Handle(handle.retain(py)));
        Ok(())
    }

    /// Enters a timer. The caller keeps its own reference to the handle.
    ///
    /// # Errors
    /// `MemoryError`.
    #[inline]
    pub(crate) fn insert_timer(
        &mut self,
        py: Python<'_>,
        handle: HandleRef,
        deadline_ns: u64,
    ) -> PyResult<()> {
        if !IS_TRACKED_AT_ONCE {
            self.track_newest_timer();
        }
        if self.timers.try_reserve().is_err() {
            return Err(objects::error::<PyMemoryError>(py, ""));
        }
        let key = self
            .timers
            .insert(deadline_ns, Ready::Handle(handle.retain(py)));
        handle.set_timer(Some(key));
        if !IS_TRACKED_AT_ONCE {
            self.newest_timer = Some(key);
        }
        Ok(())
    }

    /// Tells the collector of the newest timer's handle if it is kept. When it was made, only its maker knew whether
    /// it would be.
    #[inline]
    fn track_newest_timer(&mut self) {
        if let Some(key) = self.newest_timer.take()
            && let Some(Ready::Handle(handle)) = self.timers.get(key)
            && handle.is_shared()
        {
            handle.track();
        }
    }

    /// Queues the timers that are due.
    pub(crate) fn expire_timers(&mut self, now_ns: u64) {
        let Self {
            timers,
            ready,
            foreign_timers,
            ..
        } = self;
        timers.expire(now_ns, |expired| {
            match &expired {
                Ready::Handle(handle) => handle.set_timer(None),
                Ready::Foreign(handle) => {
                    foreign_timers.remove(&(handle.as_ptr() as usize));
                }
                Ready::Transport(_) => {}
            }
            ready.push_back(expired);
        });
    }

    /// Has a collector flushed when the turn is over. To be called once per turn.
    pub(crate) fn collect<T: Collector>(&mut self, collector: &Bound<'_, T>) {
        self.collected.push(Collected::of(collector));
    }

    /// Enters a timer of debug mode's.
    pub(crate) fn insert_foreign_timer(&mut self, handle: &Bound<'_, PyAny>, deadline_ns: u64) {
        let key = self.timers.insert(deadline_ns, Ready::from_object(handle));
        self.foreign_timers.insert(handle.as_ptr() as usize, key);
    }

    /// Takes a timer of debug mode's out; what it held is to be discarded when nothing is borrowed.
    pub(crate) fn cancel_foreign_timer(&mut self, handle: &Bound<'_, PyAny>) -> Option<Ready> {
        let key = self.foreign_timers.remove(&(handle.as_ptr() as usize))?;
        self.timers.cancel(key)
    }

    /// Whether nothing waits for its turn, timers aside.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.arrived.is_empty()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Ready> {
        self.ready
            .iter()
            .chain(&self.arrived)
            .chain(self.timers.iter())
    }

    pub(crate) fn discard(self, py: Python<'_>) {
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
            Self::Transport(_) => Ok(false),
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

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Handle(handle) => handle.traverse(visit),
            Self::Foreign(object) => visit.call(object),
            Self::Transport(served) => visit.call(&served.transport),
        }
    }
}
