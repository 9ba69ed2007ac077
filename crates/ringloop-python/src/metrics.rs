//! What a loop counts about itself, and how it times callbacks at a cost that doesn't show.
//!
//! Reading the processor's time stamp counter takes 8 ns, which is nothing to a callback that does something and a tenth
//! of one that does nothing. So it is read after each callback while they take 1 us or so on average, and less often where
//! they are shorter. Only what takes 100 us and more is looked at closely.
//!
//! The counters are plain loads and stores, because whoever writes them holds the GIL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ringloop::Counters;
use ringloop::clock::{self, Ticks};

use crate::event_loop::{Loop, Ready};
use crate::names::intern;
use crate::objects::New;
use crate::support::GilCell;

/// After so many readings in a row with less than this between them, the counter is read half as often. A tick is 0.1 to
/// 1 ns long.
const SHORT_TICKS: u64 = 2_048;
const SHORT_IN_A_ROW: u32 = 16;
/// With more than this between two readings, it is read after each callback again.
const LONG_TICKS: u64 = 5_120;
/// No more callbacks than this run between two readings.
const CALLBACKS_PER_READ_MAX: u64 = 32;
/// What takes less is not worth a name.
const SLOW_NS: u64 = 100_000;
/// After a slow callback that could not be told from its neighbours, the counter is read after each of so many.
const EXACT_AFTER_DOUBT: u32 = 100_000;

thread_local! {
    /// System calls that this thread made outside of the driver. Shared with the meter of the loop that it runs.
    static SYSTEM_CALLS: Arc<AtomicU64> = Arc::default();
}

/// Counts a system call made outside of the driver, for the loop that this thread runs.
#[inline]
pub(crate) fn count_system_call() {
    // The thread may be ending; nobody reads its count then.
    let _ = SYSTEM_CALLS.try_with(|count| add(count, 1));
}

/// Only for counters that are written under the GIL, or by one thread.
#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed) + amount, Relaxed);
}

/// A loop's counters.
#[derive(Default)]
pub(crate) struct Meter {
    pub(crate) ticks: Ticks,
    turns: AtomicU64,
    callbacks: AtomicU64,
    /// Time spent in runs that are over.
    ran_ns: AtomicU64,
    /// Zero while the loop doesn't run.
    running_since_ns: AtomicU64,
    idle: Idle,
    /// Between the end of a wait and having the GIL back: up to the last snapshot, and since.
    gil_ns: AtomicU64,
    gil_ticks: AtomicU64,
    slowest_ns: AtomicU64,
    slowest: GilCell<String>,
    /// Of runs that are over.
    system_calls: AtomicU64,
    /// The running thread's count, and what it was when the run began.
    thread_system_calls: GilCell<Option<(Arc<AtomicU64>, u64)>>,
    /// As they were when the reactor was last put away: before a wait, and when the loop was closed.
    reactor: GilCell<Counters>,
    /// How callbacks are timed, from one run to the next.
    pace: GilCell<Pace>,
}

/// The time that a loop has waited. The end of a wait is written without the GIL, so that waiting for the GIL doesn't
/// count: hence one word that is either the sum of all waits, or while one is under way, marked, what the clock showed when
/// it began less the sum before.
#[derive(Default)]
struct Idle(AtomicU64);

impl Idle {
    const WAITING: u64 = 1 << 63;

    fn begin_wait(&self, now_ns: u64) {
        let sum_ns = self.0.load(Relaxed);
        let base_ns = now_ns.wrapping_sub(sum_ns) & !Self::WAITING;
        self.0.store(base_ns | Self::WAITING, Relaxed);
    }

    fn end_wait(&self, sum_ns: u64) {
        self.0.store(sum_ns & !Self::WAITING, Relaxed);
    }

    fn sum_ns(&self, now_ns: u64) -> u64 {
        match self.0.load(Relaxed) {
            base_ns if base_ns & Self::WAITING != 0 => {
                now_ns.wrapping_sub(base_ns) & !Self::WAITING
            }
            sum_ns => sum_ns,
        }
    }
}

/// How often the counter is read.
#[derive(Clone, Copy)]
struct Pace {
    callbacks_per_read: u64,
    /// Readings in a row between which little time had passed.
    short: u32,
    /// Callbacks left for which the counter is read after each.
    exact_left: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            callbacks_per_read: 1,
            short: 0,
            exact_left: 0,
        }
    }
}

impl Meter {
    /// A turn has begun: how many that makes.
    #[inline]
    pub(crate) fn count_turn(&self) -> u64 {
        add(&self.turns, 1);
        self.turns.load(Relaxed)
    }

    /// How many turns have begun. Any thread may ask, also without the GIL.
    #[inline]
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Relaxed)
    }

    /// How many callbacks have run. Any thread may ask, also without the GIL.
    pub(crate) fn callbacks(&self) -> u64 {
        self.callbacks.load(Relaxed)
    }

    /// The loop begins to run in this thread.
    fn begin_run(&self, py: Python<'_>, now_ns: u64) {
        self.running_since_ns.store(now_ns, Relaxed);
        let counted = SYSTEM_CALLS.try_with(|count| (count.clone(), count.load(Relaxed)));
        drop(self.thread_system_calls.replace(py, counted.ok()));
    }

    fn end_run(&self, py: Python<'_>, now_ns: u64) {
        let since_ns = self.running_since_ns.swap(0, Relaxed);
        add(&self.ran_ns, now_ns.saturating_sub(since_ns));
        if let Some((count, before)) = self.thread_system_calls.replace(py, None) {
            add(&self.system_calls, count.load(Relaxed) - before);
        }
    }

    /// The loop's thread is about to wait without the GIL.
    #[inline]
    pub(crate) fn begin_wait(&self, py: Python<'_>, now_ns: u64, counters: Counters) {
        self.idle.begin_wait(now_ns);
        *self.reactor.get_mut(py) = counters;
    }

    /// The wait is over, but the thread doesn't have the GIL yet. Returns the ticks.
    #[inline]
    pub(crate) fn end_wait(&self, counters: Counters) -> u64 {
        self.idle.end_wait(counters.blocked_ns + counters.spun_ns);
        self.ticks.now()
    }

    /// It has the GIL.
    #[inline]
    pub(crate) fn go_on(&self, woke_ticks: u64) {
        add(&self.gil_ticks, self.ticks.now().saturating_sub(woke_ticks));
    }

    /// Keeps the last counters of a reactor that goes away.
    pub(crate) fn keep(&self, py: Python<'_>, counters: Counters) {
        *self.reactor.get_mut(py) = counters;
    }

    /// What the loop has done so far, in the order of the fields of `ringloop.Metrics` after the backend.
    pub(crate) fn snapshot<'py>(
        &self,
        py: Python<'py>,
        event_loop: &Loop,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let now_ns = clock::now_ns();
        let running_ns = match self.running_since_ns.load(Relaxed) {
            0 => 0,
            since_ns => now_ns.saturating_sub(since_ns),
        };
        let reactor = match event_loop.reactor.get(py).as_deref() {
            Some(reactor) => reactor.counters(),
            None => *self.reactor.get(py),
        };
        let (ready, timers) = {
            let queue = event_loop.queue.get(py);
            (queue.ready.len() + queue.arrived.len(), queue.timers.len())
        };
        let connections = event_loop.watches.get(py).transports();
        let idle_ns = self.idle.sum_ns(now_ns);
        add(
            &self.gil_ns,
            self.ticks.to_ns(self.gil_ticks.swap(0, Relaxed)),
        );
        let gil_ns = self.gil_ns.load(Relaxed);
        let ran_ns = self.ran_ns.load(Relaxed) + running_ns;
        let direct_calls = match &*self.thread_system_calls.get(py) {
            Some((count, before)) => count.load(Relaxed) - before,
            None => 0,
        };
        let slowest_ns = self.slowest_ns.load(Relaxed);
        let slowest = (slowest_ns > 0).then(|| self.slowest.get(py).clone());
        New((
            New((
                New(self.turns.load(Relaxed)),
                New(self.callbacks.load(Relaxed)),
                New(ready),
                New(timers),
                New(connections),
            )),
            New((
                seconds(ran_ns.saturating_sub(idle_ns + gil_ns)),
                seconds(idle_ns),
                seconds(gil_ns),
                seconds(reactor.spun_ns),
                seconds(reactor.wasted_ns),
            )),
            New((seconds(slowest_ns), New(slowest))),
            New((
                New(reactor.driver.system_calls + self.system_calls.load(Relaxed) + direct_calls),
                New(reactor.driver.events),
                New(reactor.driver.wakes),
                New(reactor.waits),
                New(reactor.spins),
                New(reactor.spin_hits),
            )),
        ))
        .into_pyobject(py)
    }

    /// Forgets the slowest callback.
    pub(crate) fn forget_slowest(&self, py: Python<'_>) {
        self.slowest_ns.store(0, Relaxed);
        drop(self.slowest.replace(py, String::new()));
    }
}

fn seconds(ns: u64) -> New<f64> {
    New(ns as f64 * 1e-9)
}

/// Counts and times what runs, from the beginning of a run of the loop to its end.
pub(crate) struct Stopwatch<'a> {
    meter: &'a Meter,
    py: Python<'a>,
    outermost: bool,
    /// When the callbacks that are to be timed began, in ticks, and how many had run by then.
    since_ticks: u64,
    since: u64,
    /// At how many callbacks the counter is read.
    read_at: u64,
    pace: Pace,
}

impl<'a> Stopwatch<'a> {
    /// A run of the loop begins.
    pub(crate) fn start(event_loop: &'a Bound<'_, Loop>) -> Self {
        let py = event_loop.py();
        let meter = &event_loop.get().meter;
        // `_run_once` may be called by a callback.
        let outermost = meter.running_since_ns.load(Relaxed) == 0;
        if outermost {
            meter.begin_run(py, clock::now_ns());
        }
        Self {
            meter,
            py,
            outermost,
            since_ticks: meter.ticks.now(),
            since: meter.callbacks.load(Relaxed),
            read_at: 0,
            pace: *meter.pace.get(py),
        }
    }

    /// Callbacks that have run and are still to be timed.
    #[inline]
    fn pending(&self) -> u64 {
        self.meter.callbacks.load(Relaxed) - self.since
    }

    /// What has taken time until now was no callback.
    #[inline]
    pub(crate) fn skip(&mut self) {
        // Callbacks that are still to be timed keep their beginning, so that a slow one among them is not missed.
        if self.pending() == 0 {
            self.since_ticks = self.meter.ticks.now();
        }
    }

    /// A callback has run, and so many of its turn are left. True if it is time for `read`: when some have run, and after
    /// the last one before a wait.
    #[inline]
    pub(crate) fn count(&mut self, left: usize, event_loop: &Loop) -> bool {
        let callbacks = self.meter.callbacks.load(Relaxed) + 1;
        self.meter.callbacks.store(callbacks, Relaxed);
        callbacks >= self.read_at || left == 0 && event_loop.queue.get(self.py).is_idle()
    }

    /// Times what has run; `last` was the last of it, where that is known.
    #[inline(never)]
    pub(crate) fn read(&mut self, last: Option<&Ready>) -> PyResult<()> {
        let now_ticks = self.meter.ticks.now();
        let elapsed_ticks = now_ticks.saturating_sub(self.since_ticks);
        let callbacks = self.pending();
        self.since_ticks = now_ticks;
        self.since += callbacks;
        let pace = &mut self.pace;
        if elapsed_ticks >= LONG_TICKS || pace.exact_left > 0 {
            pace.exact_left = pace.exact_left.saturating_sub(1);
            pace.short = 0;
            pace.callbacks_per_read = 1;
        } else if elapsed_ticks < SHORT_TICKS && pace.callbacks_per_read < CALLBACKS_PER_READ_MAX {
            pace.short += 1;
            if pace.short == SHORT_IN_A_ROW {
                pace.short = 0;
                pace.callbacks_per_read *= 2;
            }
        }
        self.read_at = self.since + pace.callbacks_per_read;
        if elapsed_ticks >= SLOW_NS {
            return self.slow(last, elapsed_ticks, callbacks);
        }
        Ok(())
    }

    /// Times what is still to be timed, before the loop waits: the last callbacks of the turn were cancelled ones.
    #[inline]
    pub(crate) fn settle(&mut self) -> PyResult<()> {
        if self.pending() > 0 {
            return self.read(None);
        }
        Ok(())
    }

    /// Remembers what was slow, if nothing has been slower.
    #[cold]
    fn slow(&mut self, last: Option<&Ready>, elapsed_ticks: u64, callbacks: u64) -> PyResult<()> {
        let py = self.py;
        // A tick is a nanosecond or less.
        let elapsed_ns = self.meter.ticks.to_ns(elapsed_ticks);
        if elapsed_ns < SLOW_NS || elapsed_ns <= self.meter.slowest_ns.load(Relaxed) {
            return Ok(());
        }
        let last = last.map(|ready| ready.describe_safely(py)).transpose()?;
        let text = match last {
            Some(last) if callbacks == 1 => last,
            Some(last) => format!("one of {callbacks} callbacks, the last of them {last}"),
            None => format!("one of {callbacks} callbacks"),
        };
        if callbacks > 1 {
            self.pace.exact_left = EXACT_AFTER_DOUBT;
        }
        self.meter.slowest_ns.store(elapsed_ns, Relaxed);
        drop(self.meter.slowest.replace(py, text));
        self.skip();
        Ok(())
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        *self.meter.pace.get_mut(self.py) = self.pace;
        if self.outermost {
            self.meter.end_run(self.py, clock::now_ns());
        }
    }
}

impl Ready {
    /// The same, or a text that stands for it: an exception would end the loop.
    fn describe_safely(&self, py: Python<'_>) -> PyResult<String> {
        self.describe(py).or_else(|error| {
            if error.is_instance_of::<PyException>(py) {
                Ok("what cannot be described".to_owned())
            } else {
                Err(error)
            }
        })
    }

    /// A short text that says what was run, and keeps nothing alive.
    fn describe(&self, py: Python<'_>) -> PyResult<String> {
        let object = match self {
            Self::Handle(handle) => handle.callback(py).unwrap_or_else(|| handle.to_object(py)),
            Self::Foreign(handle) => handle.bind(py).clone(),
            Self::Transport(transport, _) | Self::StartReading(transport) => {
                transport.bind(py).clone().into_any()
            }
            Self::Datagrams(transport, _) => transport.bind(py).clone().into_any(),
        };
        py.import(intern!(py, "ringloop._metrics"))?
            .getattr(intern!(py, "describe"))?
            .call1((object,))?
            .extract()
    }
}
