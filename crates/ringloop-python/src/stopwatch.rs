//! How a loop times its callbacks, at a negligible cost.
//!
//! Reading the processor's time stamp counter takes 8 ns: negligible for most callbacks, but a tenth of the time of an
//! empty one. So it is read after each callback while they take about 1 us or more on average, and less often if they
//! are shorter. Only callbacks of 100 us and more are examined closely.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use ringloop_reactor::clock;

use crate::cell::GilCell;
use crate::metrics::Meter;
use crate::names::intern;
use crate::queue::{Queue, Ready};

/// After `SHORT_IN_A_ROW` readings in a row with fewer ticks than this between them, the counter is read half as often.
/// A tick is 0.1 to 1 ns long.
const SHORT_TICKS: u64 = 2_048;
const SHORT_IN_A_ROW: u32 = 16;
/// With more ticks than this between two readings, it is read after each callback again.
const LONG_TICKS: u64 = 5_120;
/// No more callbacks than this run between two readings.
const CALLBACKS_PER_READ_MAX: u64 = 32;
/// Callbacks that take less time are not named.
const SLOW_NS: u64 = 100_000;
/// The number of callbacks after each of which the counter is read, once a slow callback could not be told from its
/// neighbours.
const EXACT_AFTER_DOUBT: u32 = 100_000;

/// How often the counter is read.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
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
    /// Where the pace is kept until the next run.
    kept: &'a GilCell<Pace>,
}

impl<'a> Stopwatch<'a> {
    /// A run of the loop begins.
    pub(crate) fn start(py: Python<'a>, meter: &'a Meter, kept: &'a GilCell<Pace>) -> Self {
        // `_run_once` may be called by a callback.
        let outermost = !meter.is_running();
        if outermost {
            meter.begin_run(py, clock::now_ns());
        }
        Self {
            meter,
            py,
            outermost,
            since_ticks: meter.ticks.now(),
            since: meter.callbacks(),
            read_at: 0,
            pace: *kept.get(py),
            kept,
        }
    }

    /// Callbacks that have run and are still to be timed.
    #[inline]
    fn pending(&self) -> u64 {
        self.meter.callbacks() - self.since
    }

    /// The time until now was not spent in a callback.
    #[inline]
    pub(crate) fn skip(&mut self) {
        // Callbacks that are still to be timed keep their beginning, so that a slow one among them is not missed.
        if self.pending() == 0 {
            self.since_ticks = self.meter.ticks.now();
        }
    }

    /// A callback has run, and `left` of its turn are left. True if it is time for `read`: when some have run, and
    /// after the last one before a wait.
    #[inline]
    pub(crate) fn count(&mut self, left: usize, queue: &GilCell<Queue>) -> bool {
        let callbacks = self.meter.count_callback();
        callbacks >= self.read_at || left == 0 && queue.get(self.py).is_idle()
    }

    /// Times what has run since the last reading. `last` is the last callback, if known.
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

    /// Remembers a slow callback, if it is the slowest yet.
    #[cold]
    fn slow(&mut self, last: Option<&Ready>, elapsed_ticks: u64, callbacks: u64) -> PyResult<()> {
        let py = self.py;
        // A tick is a nanosecond or less.
        let elapsed_ns = self.meter.ticks.to_ns(elapsed_ticks);
        if elapsed_ns < SLOW_NS || !self.meter.is_slowest(elapsed_ns) {
            return Ok(());
        }
        let last = last.map(|ready| describe_safely(py, ready)).transpose()?;
        let text = match last {
            Some(last) if callbacks == 1 => last,
            Some(last) => format!("one of {callbacks} callbacks, the last of them {last}"),
            None => format!("one of {callbacks} callbacks"),
        };
        if callbacks > 1 {
            self.pace.exact_left = EXACT_AFTER_DOUBT;
        }
        self.meter.set_slowest(py, elapsed_ns, text);
        self.skip();
        Ok(())
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        *self.kept.get_mut(self.py) = self.pace;
        if self.outermost {
            self.meter.end_run(self.py, clock::now_ns());
        }
    }
}

/// `describe`, or a text in its place if that raises: an exception would end the loop.
fn describe_safely(py: Python<'_>, ready: &Ready) -> PyResult<String> {
    describe(py, ready).or_else(|error| {
        if error.is_instance_of::<PyException>(py) {
            Ok("what cannot be described".to_owned())
        } else {
            Err(error)
        }
    })
}

/// A short text that says what was run, and keeps nothing alive.
fn describe(py: Python<'_>, ready: &Ready) -> PyResult<String> {
    let object = match ready {
        Ready::Handle(handle) => handle.callback(py).unwrap_or_else(|| handle.to_object(py)),
        Ready::Foreign(handle) => handle.bind(py).clone(),
        Ready::Transport(served) => served.transport().bind(py).clone(),
    };
    py.import(intern!(py, "ringloop._metrics"))?
        .getattr(intern!(py, "describe"))?
        .call1((object,))?
        .extract()
}
