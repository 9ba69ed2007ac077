//! The native half of `ringloop.watch`: it finds out that a callback holds the loop, from another thread.
//!
//! It adds nothing to what the loop does. Its thread sleeps without the GIL, and compares now and then what the loop counts
//! anyway ([`Meter::moment`](crate::metrics::Meter::moment)).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_reactor::clock;

use crate::cell::GilCell;
use crate::event_loop::Loop;
use crate::metrics::Moment;
use crate::objects::{self, New};
use crate::support::CloneRefOption;
use crate::thread_exit::SleepsAtExit;

/// A callback is found after this many looks in a row at the same moment, or fewer if they would be closer together than
/// `LOOK_INTERVAL_MIN`. The interval is counted, and not the time: a process that was stopped is not to blame for that.
const LOOKS: u32 = 4;
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Between two reports.
const REPORT_INTERVAL_NS: u64 = 1_000_000_000;

/// The state of `_wait` from one call to the next.
#[derive(Default)]
struct State {
    /// The last callback that was counted.
    counted: Option<Moment>,
    /// It was not reported yet.
    is_pending: bool,
    /// How many were counted and not reported since the last report.
    unreported: u64,
    reported_ns: Option<u64>,
}

/// Looks at a loop. One thread calls `_wait`, and another one `_stop`.
#[pyclass(module = "ringloop._core", name = "LoopWatchdog", frozen)]
pub(crate) struct Watchdog {
    event_loop: GilCell<Option<Py<Loop>>>,
    interval: Duration,
    looks: u32,
    state: GilCell<State>,
    stopped: Mutex<bool>,
    changed: Condvar,
}

#[pymethods]
impl Watchdog {
    /// The watchdog of a loop that has none, with a threshold in seconds.
    #[new]
    #[pyo3(signature = (event_loop, threshold_s, /))]
    fn new(event_loop: &Bound<'_, Loop>, threshold_s: f64) -> PyResult<Self> {
        let py = event_loop.py();
        let Ok(threshold) = Duration::try_from_secs_f64(threshold_s) else {
            let text = "the threshold is no number of seconds";
            return Err(objects::error::<PyValueError>(py, text));
        };
        event_loop.get().check_closed(py)?;
        if event_loop.get().is_watched.swap(true, Relaxed) {
            let text = "this loop is watched already; close its other watchdog first";
            return Err(objects::error::<PyRuntimeError>(py, text));
        }
        let interval = (threshold / LOOKS).max(LOOK_INTERVAL_MIN);
        let looks = threshold.as_nanos().div_ceil(interval.as_nanos());
        Ok(Self {
            event_loop: GilCell::new(Some(event_loop.clone().unbind())),
            interval,
            looks: u32::try_from(looks).unwrap_or(LOOKS).max(1),
            state: GilCell::new(State::default()),
            stopped: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    /// Waits, without the GIL, until a callback is to be reported: (the seconds that it has held the loop, the number of
    /// those that were not reported since the last report). None when it was stopped, or the loop closed.
    fn _wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = self.event_loop.get(py).clone_ref_opt(py);
        let Some(event_loop) = event_loop else {
            return Ok(py.None().into_bound(py));
        };
        let mut state = self.state.replace(py, State::default());
        let _sleeps_at_exit = SleepsAtExit::new();
        let found = py.detach(|| self.look(event_loop.get(), &mut state));
        let now_ns = clock::now_ns();
        let unreported = state.unreported;
        if found.is_some() {
            state.reported_ns = Some(now_ns);
            state.unreported = 0;
        }
        *self.state.get_mut(py) = state;
        let Some(since_ns) = found else {
            return Ok(py.None().into_bound(py));
        };
        let held_s = now_ns.saturating_sub(since_ns) as f64 * 1e-9;
        let found = New((New(held_s), New(unreported)));
        found.into_pyobject(py).map(Bound::into_any)
    }

    /// Whether the callback that was reported last still runs.
    fn _is_held(&self, py: Python<'_>) -> bool {
        let counted = self.state.get(py).counted;
        let event_loop = self.event_loop.get(py);
        let moment = event_loop.as_ref().and_then(|it| it.get().moment());
        counted.is_some() && moment == counted
    }

    /// Ends `_wait`, and lets the loop have another watchdog.
    #[pyo3(name = "_stop")]
    fn stop(&self, py: Python<'_>) {
        self.let_go(py);
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(event_loop) = self.event_loop.for_traversal() {
            visit.call(&*event_loop)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        // Without the lock: after a fork, a thread that is gone may hold it. Nobody waits any more.
        self.let_go(py);
    }
}

impl Watchdog {
    /// Lets the loop have another watchdog.
    fn let_go(&self, py: Python<'_>) {
        let event_loop = self.event_loop.replace(py, None);
        if let Some(event_loop) = &event_loop {
            event_loop.get().is_watched.store(false, Relaxed);
        }
    }

    /// Looks at the loop until a callback is to be reported: when it was first seen. None when nothing will come any more.
    fn look(&self, event_loop: &Loop, state: &mut State) -> Option<u64> {
        let mut last = None;
        let mut since_ns = 0;
        let mut same = 0_u32;
        loop {
            if self.sleep() || event_loop.is_closed() {
                return None;
            }
            let now_ns = clock::now_ns();
            let moment = event_loop.moment();
            if moment.is_none() || moment != last {
                (last, since_ns, same) = (moment, now_ns, 0);
            } else {
                same = same.saturating_add(1);
            }
            if state.is_pending && moment != state.counted {
                state.is_pending = false;
                state.unreported += 1;
            }
            if same >= self.looks && moment != state.counted {
                event_loop.meter.count_stall();
                state.counted = moment;
                state.is_pending = true;
            }
            let may_report = state
                .reported_ns
                .is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= REPORT_INTERVAL_NS);
            if state.is_pending && may_report {
                state.is_pending = false;
                return Some(since_ns);
            }
        }
    }

    /// Sleeps until the next look. Returns whether it was stopped.
    fn sleep(&self) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(stopped, self.interval, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Adds `LoopWatchdog` to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Watchdog>()
}
