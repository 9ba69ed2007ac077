//! The counters of a loop.
//!
//! The counters are plain loads and stores, because only the thread writes them that runs the loop. Any thread may read them.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use crate::cell::GilCell;
use pyo3::prelude::*;
use ringloop_reactor::ReactorCounters;
use ringloop_reactor::clock::{self, Ticks};

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

/// Only for counters that one thread writes at a time.
#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed) + amount, Relaxed);
}

/// The value, or what was told before if that is more.
fn grow(told: &AtomicU64, value: u64) -> u64 {
    told.fetch_max(value, Relaxed).max(value)
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
    /// The most that a snapshot has told: the end of a wait is known a moment after it.
    told_idle_ns: AtomicU64,
    told_busy_ns: AtomicU64,
    /// Written by the thread that watches the loop.
    stalls: AtomicU64,
    slowest_ns: AtomicU64,
    slowest: GilCell<String>,
    /// Of runs that are over.
    system_calls: AtomicU64,
    /// The running thread's count, and what it was when the run began. Borrowed while a run begins or ends.
    thread_system_calls: GilCell<Option<(Arc<AtomicU64>, u64)>>,
    /// As they were when the reactor was last put away: before a wait, and when the loop was closed.
    reactor: GilCell<ReactorCounters>,
}

/// The time that a loop has waited. The end of a wait is written without the GIL, so that waiting for the GIL doesn't
/// count: hence one word that is either the sum of all waits, or while one is under way, marked, what the clock showed
/// when it began less the sum before.
#[derive(Default)]
struct Idle(AtomicU64);

impl Idle {
    const WAITING: u64 = 1 << 63;

    fn begin_wait(&self, now_ns: u64) {
        let sum_ns = self.0.load(Relaxed);
        let base_ns = now_ns.wrapping_sub(sum_ns) & !Self::WAITING;
        self.0.store(base_ns | Self::WAITING, Release);
    }

    fn end_wait(&self, sum_ns: u64) {
        self.0.store(sum_ns & !Self::WAITING, Release);
    }

    /// The time, and the sum up to then.
    fn now_and_sum_ns(&self) -> (u64, u64) {
        loop {
            let word = self.0.load(Acquire);
            let now_ns = clock::now_ns();
            fence(Acquire);
            // Otherwise a wait may have begun or ended before that time.
            if self.0.load(Relaxed) == word {
                let is_waiting = word & Self::WAITING != 0;
                let sum_ns = if is_waiting {
                    now_ns.wrapping_sub(word) & !Self::WAITING
                } else {
                    word
                };
                return (now_ns, sum_ns);
            }
        }
    }
}

/// A place in a run of the loop, as another thread can see it. It is the same twice only as long as one callback runs, or the
/// loop itself does something between two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    progress: u64,
    /// Tells apart the time before and after a wait in one turn.
    idle: u64,
}

/// The counts and times of a loop.
pub(crate) struct Totals {
    pub(crate) turns: u64,
    pub(crate) callbacks: u64,
    /// Running callbacks, and waiting for the kernel, and for the GIL.
    pub(crate) busy_ns: u64,
    pub(crate) idle_ns: u64,
    pub(crate) gil_ns: u64,
    pub(crate) slowest_ns: u64,
    pub(crate) slowest: Option<String>,
    pub(crate) stalls: u64,
    /// The driver's and the others.
    pub(crate) system_calls: u64,
    pub(crate) reactor: ReactorCounters,
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

    /// A number that grows with each turn and callback. Any thread may ask, also without the GIL.
    #[inline]
    pub(crate) fn progress(&self) -> u64 {
        self.turns.load(Relaxed) + self.callbacks.load(Relaxed)
    }

    /// Where a run of the loop is; None if there is none. Any thread may ask, also without the GIL.
    pub(crate) fn moment(&self) -> Option<Moment> {
        self.is_running().then(|| Moment {
            progress: self.progress(),
            idle: self.idle.0.load(Relaxed),
        })
    }

    /// Counts a callback that has held the loop for too long. Only for the thread that watches the loop.
    pub(crate) fn count_stall(&self) {
        add(&self.stalls, 1);
    }

    /// How many callbacks have run.
    #[inline]
    pub(crate) fn callbacks(&self) -> u64 {
        self.callbacks.load(Relaxed)
    }

    /// Counts a callback that has run: how many that makes.
    #[inline]
    pub(crate) fn count_callback(&self) -> u64 {
        let callbacks = self.callbacks.load(Relaxed) + 1;
        self.callbacks.store(callbacks, Relaxed);
        callbacks
    }

    /// Whether a run of the loop is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.running_since_ns.load(Relaxed) != 0
    }

    /// The loop begins to run in this thread.
    pub(crate) fn begin_run(&self, py: Python<'_>, now_ns: u64) {
        let counted = SYSTEM_CALLS.try_with(|count| (count.clone(), count.load(Relaxed)));
        let mut held = self.thread_system_calls.get_mut(py);
        self.running_since_ns.store(now_ns, Relaxed);
        *held = counted.ok();
    }

    /// The run is over.
    pub(crate) fn end_run(&self, py: Python<'_>, now_ns: u64) {
        let mut held = self.thread_system_calls.get_mut(py);
        let since_ns = self.running_since_ns.swap(0, Relaxed);
        add(&self.ran_ns, now_ns.saturating_sub(since_ns));
        if let Some((count, before)) = held.take() {
            add(&self.system_calls, count.load(Relaxed) - before);
        }
    }

    /// The loop's thread is about to wait without the GIL.
    #[inline]
    pub(crate) fn begin_wait(&self, py: Python<'_>, now_ns: u64, counters: ReactorCounters) {
        self.idle.begin_wait(now_ns);
        *self.reactor.get_mut(py) = counters;
    }

    /// The wait is over, but the thread doesn't have the GIL yet. Returns the ticks.
    #[inline]
    pub(crate) fn end_wait(&self, counters: ReactorCounters) -> u64 {
        self.idle.end_wait(counters.blocked_ns + counters.spun_ns);
        self.ticks.now()
    }

    /// It has the GIL.
    #[inline]
    pub(crate) fn go_on(&self, woke_ticks: u64) {
        let ticks = self.ticks.now().saturating_sub(woke_ticks);
        if cfg!(Py_GIL_DISABLED) {
            // Another thread may take them at this moment.
            self.gil_ticks.fetch_add(ticks, Relaxed);
        } else {
            add(&self.gil_ticks, ticks);
        }
    }

    /// Keeps the last counters of a reactor that goes away.
    pub(crate) fn keep(&self, py: Python<'_>, counters: ReactorCounters) {
        *self.reactor.get_mut(py) = counters;
    }

    /// Returns the counts and times so far. `reactor` has the counters of a reactor that is not away.
    pub(crate) fn totals(&self, py: Python<'_>, reactor: Option<ReactorCounters>) -> Totals {
        let reactor = reactor.unwrap_or_else(|| *self.reactor.get(py));
        // Several threads may ask at once.
        let more_ns = self.ticks.to_ns(self.gil_ticks.swap(0, Relaxed));
        let gil_ns = self.gil_ns.fetch_add(more_ns, Relaxed) + more_ns;
        let run = self.thread_system_calls.get(py);
        let (now_ns, idle_ns) = self.idle.now_and_sum_ns();
        let running_ns = match self.running_since_ns.load(Relaxed) {
            0 => 0,
            since_ns => now_ns.saturating_sub(since_ns),
        };
        let ran_ns = self.ran_ns.load(Relaxed) + running_ns;
        let mut direct_calls = self.system_calls.load(Relaxed);
        if let Some((count, before)) = &*run {
            direct_calls += count.load(Relaxed) - before;
        }
        drop(run);
        let slowest_ns = self.slowest_ns.load(Relaxed);
        Totals {
            turns: self.turns.load(Relaxed),
            callbacks: self.callbacks.load(Relaxed),
            busy_ns: grow(&self.told_busy_ns, ran_ns.saturating_sub(idle_ns + gil_ns)),
            idle_ns: grow(&self.told_idle_ns, idle_ns),
            gil_ns,
            slowest_ns,
            stalls: self.stalls.load(Relaxed),
            slowest: (slowest_ns > 0).then(|| self.slowest.get(py).clone()),
            system_calls: reactor.driver.system_calls + direct_calls,
            reactor,
        }
    }

    /// Whether a callback that took `ns` is the slowest yet.
    pub(crate) fn is_slowest(&self, ns: u64) -> bool {
        ns > self.slowest_ns.load(Relaxed)
    }

    /// Remembers the slowest callback.
    pub(crate) fn set_slowest(&self, py: Python<'_>, ns: u64, text: String) {
        self.slowest_ns.store(ns, Relaxed);
        drop(self.slowest.replace(py, text));
    }

    /// Forgets the slowest callback.
    pub(crate) fn forget_slowest(&self, py: Python<'_>) {
        self.set_slowest(py, 0, String::new());
    }
}
