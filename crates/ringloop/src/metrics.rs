//! The counters of a runtime, and how other threads read them.
//!
//! [`Runtime::metrics`](crate::Runtime::metrics), [`Handle::metrics`](crate::Handle::metrics) and
//! [`Pool::metrics`](crate::Pool::metrics) return [`Metrics`], and [`prometheus`] turns these into text.
//!
//! A runtime counts in plain cells, and publishes a copy once per turn with relaxed stores. Other threads only read the
//! copy. So counting is cheap (12 ns per turn), and reading does not disturb the workers.

#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod prometheus;

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use ringloop_reactor::{ReactorCounters, clock};

#[cfg(feature = "opentelemetry")]
pub use opentelemetry::observe;
pub use prometheus::prometheus;

/// Counts of what a runtime has done since it was created. Times are in nanoseconds.
///
/// ```
/// use ringloop::{Pool, PoolConfig};
///
/// # fn main() -> std::io::Result<()> {
/// let pool = Pool::new(2, &PoolConfig::default())?;
/// for (worker, metrics) in pool.metrics().into_iter().enumerate() {
///     let share = metrics.busy_ns as f64 / (metrics.busy_ns + metrics.idle_ns) as f64;
///     println!("worker {worker}: {} turns, {:.0}% busy", metrics.turns, 100.0 * share);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// How often the runtime has looked at the kernel. Tasks run between two looks.
    pub turns: u64,
    /// How often a task was polled.
    pub tasks_run: u64,
    /// Tasks that are alive.
    pub tasks_live: u64,
    /// Timers that have not expired.
    pub timers: u64,
    /// Watched descriptors and operations in flight.
    pub sources: u64,
    /// Attempted reads and writes of sockets, and operations given to the driver: accepting, files, sends without a
    /// copy.
    pub operations: u64,
    /// How many of them had a result, including errors. A read that finds nothing has none; accepting has one per
    /// connection.
    pub completions: u64,
    /// System calls: the driver's, and reads and writes of sockets. Creating, connecting, configuring and closing
    /// sockets is not counted, and neither is what other threads do for the runtime.
    pub system_calls: u64,
    /// Time in which tasks ran, or the runtime looked at the kernel without waiting.
    pub busy_ns: u64,
    /// Time in which the runtime waited, asleep or polling, or was outside of [`block_on`](crate::Runtime::block_on).
    /// Together with `busy_ns` it is the time since the runtime was created.
    pub idle_ns: u64,
    /// The reactor's counters: waits, how they went, and the driver's counters.
    pub reactor: ReactorCounters,
}

/// The number of counters.
const COUNTERS: usize = size_of::<Metrics>() / size_of::<u64>();

impl Metrics {
    /// All counters, in a fixed order.
    fn counters(&mut self) -> [&mut u64; COUNTERS] {
        let Self {
            turns,
            tasks_run,
            tasks_live,
            timers,
            sources,
            operations,
            completions,
            system_calls,
            busy_ns,
            idle_ns,
            reactor,
        } = self;
        let driver = &mut reactor.driver;
        [
            turns,
            tasks_run,
            tasks_live,
            timers,
            sources,
            operations,
            completions,
            system_calls,
            busy_ns,
            idle_ns,
            &mut reactor.turns,
            &mut reactor.waits,
            &mut reactor.spins,
            &mut reactor.spin_hits,
            &mut reactor.spun_ns,
            &mut reactor.wasted_ns,
            &mut reactor.blocked_ns,
            &mut reactor.window_ns,
            &mut driver.system_calls,
            &mut driver.events,
            &mut driver.wakes,
            &mut driver.watches,
            &mut driver.operations,
            &mut driver.stale_events,
            &mut driver.overflows,
            &mut driver.rearms,
            &mut driver.short_submits,
            &mut driver.refused_submits,
            &mut driver.rings_rebuilt,
            &mut driver.zero_copy_sends,
            &mut driver.zero_copy_copies,
        ]
    }
}

/// The counters of I/O objects, in the runtime's thread.
#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    operations: Cell<u64>,
    completions: Cell<u64>,
    system_calls: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl IoCounters {
    /// Makes a system call that reads or writes, and repeats it if a signal interrupts it.
    pub(crate) fn call<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        #[cfg(test)]
        injected::before_call()?;
        count(&self.operations);
        loop {
            count(&self.system_calls);
            match call() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                result => {
                    count(&self.completions);
                    return result;
                }
            }
        }
    }

    /// Counts an operation that was given to the driver.
    pub(crate) fn submitted(&self) {
        count(&self.operations);
    }

    /// Counts a result that the driver has reported.
    pub(crate) fn completed(&self) {
        count(&self.completions);
    }

    /// Adds these counters to a runtime's metrics.
    pub(crate) fn add_to(&self, metrics: &mut Metrics) {
        metrics.operations = self.operations.get();
        metrics.completions = self.completions.get();
        metrics.system_calls = self.system_calls.get() + metrics.reactor.driver.system_calls;
    }
}

/// The flag in [`Published::idle`] while the runtime waits.
const WAITING: u64 = 1 << 63;

/// A runtime's metrics as other threads see them. Only the runtime's thread writes here.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Published {
    counters: [AtomicU64; COUNTERS],
    /// How long the runtime has been idle. While it waits, [`WAITING`] is set, and the rest is the time at which its
    /// idle time would be 0. It is one word, so that a reader sees a consistent value while a wait begins or ends.
    idle: AtomicU64,
    started_ns: u64,
}

impl Published {
    /// Creates the metrics of a runtime that waits.
    pub(crate) fn new() -> Self {
        let started_ns = clock::now_ns();
        Self {
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            idle: AtomicU64::new(WAITING | started_ns),
            started_ns,
        }
    }

    /// Publishes all counters except the times.
    pub(crate) fn publish(&self, mut metrics: Metrics) {
        for (place, counter) in self.counters.iter().zip(metrics.counters()) {
            place.store(*counter, Ordering::Relaxed);
        }
    }

    /// Begins a wait. Returns how long the runtime has waited before.
    pub(crate) fn begin_wait(&self, now_ns: u64) -> u64 {
        let idle_ns = self.idle.load(Ordering::Relaxed);
        self.idle
            .store(WAITING | (now_ns - idle_ns), Ordering::Relaxed);
        idle_ns
    }

    /// Ends a wait. `idle_ns` is how long the runtime has waited in total.
    pub(crate) fn end_wait(&self, idle_ns: u64) {
        self.idle.store(idle_ns, Ordering::Relaxed);
    }

    /// How long the runtime has waited until `now_ns`.
    pub(crate) fn idle_ns(&self, now_ns: u64) -> u64 {
        let idle = self.idle.load(Ordering::Relaxed);
        if idle & WAITING == 0 {
            idle
        } else {
            now_ns.saturating_sub(idle & !WAITING)
        }
    }

    /// Fills in the times.
    pub(crate) fn add_times(&self, metrics: &mut Metrics) {
        let now_ns = clock::now_ns();
        let elapsed_ns = now_ns - self.started_ns;
        metrics.idle_ns = self.idle_ns(now_ns).min(elapsed_ns);
        metrics.busy_ns = elapsed_ns - metrics.idle_ns;
    }

    /// The counters as last published, with the times until now.
    pub(crate) fn snapshot(&self) -> Metrics {
        let mut metrics = Metrics::default();
        for (place, counter) in self.counters.iter().zip(metrics.counters()) {
            *counter = place.load(Ordering::Relaxed);
        }
        self.add_times(&mut metrics);
        metrics
    }
}

/// Makes system calls fail in tests (`faults::calls`).
#[cfg(test)]
pub(crate) mod injected {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// How many calls succeed before one fails, and the error of that one.
        static FAILING: Cell<Option<(usize, i32)>> = const { Cell::new(None) };
    }

    /// Lets this many calls of the thread pass, and fails the next one.
    pub(crate) fn fail_after(calls: usize, errno: i32) {
        FAILING.set(Some((calls, errno)));
    }

    /// Lets all further calls pass. Returns whether one has failed.
    pub(crate) fn has_failed() -> bool {
        FAILING.take().is_none()
    }

    pub(super) fn before_call() -> io::Result<()> {
        match FAILING.take() {
            None => Ok(()),
            Some((0, errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some((calls, errno)) => {
                fail_after(calls - 1, errno);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_published_in_its_own_place() {
        let mut metrics = Metrics::default();
        for (index, counter) in metrics.counters().into_iter().enumerate() {
            *counter = index as u64 + 1;
        }
        let published = Published::new();
        published.publish(metrics);
        let mut seen = published.snapshot();
        (seen.busy_ns, seen.idle_ns) = (metrics.busy_ns, metrics.idle_ns);
        assert_eq!(format!("{seen:?}"), format!("{metrics:?}"));
    }

    #[test]
    fn a_wait_counts_while_it_lasts() {
        let published = Published::new();
        let start_ns = published.started_ns;
        assert_eq!(published.idle_ns(start_ns + 5), 5);
        published.end_wait(5);
        assert_eq!(published.idle_ns(start_ns + 100), 5);
        assert_eq!(published.begin_wait(start_ns + 100), 5);
        assert_eq!(published.idle_ns(start_ns + 103), 8);
        published.end_wait(9);
        let seen = published.snapshot();
        assert_eq!(seen.idle_ns, 9);
        assert!(seen.busy_ns + seen.idle_ns <= clock::now_ns() - start_ns);
    }
}
