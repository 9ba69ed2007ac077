//! The clock that all deadlines are on, and a counter for short times that costs less to read.

use std::sync::OnceLock;

use crate::sys;

/// Nanoseconds of `CLOCK_MONOTONIC`: the clock of Python's `time.monotonic()`, which does not go
/// back and does not count time that the machine was suspended.
///
/// It costs about as much as thirty additions where the kernel's vDSO can read the clock, as on
/// every usual machine.
///
/// ```
/// let before_ns = ringloop::clock::now_ns();
/// assert!(ringloop::clock::now_ns() >= before_ns);
/// ```
#[inline]
pub fn now_ns() -> u64 {
    sys::monotonic_ns()
}

/// A counter for how long something took, where even reading the clock would show: the processor's
/// time stamp counter, where the kernel trusts it for its own clock, and elsewhere the clock itself.
///
/// It may be read while earlier instructions are still under way, so that single readings are off by
/// some nanoseconds. In return it costs a fifth of [`now_ns`], and stops nothing.
///
/// ```
/// use ringloop::clock::Ticks;
///
/// let ticks = Ticks::new();
/// let start = ticks.now();
/// std::thread::sleep(std::time::Duration::from_millis(2));
/// assert!(ticks.to_ns(ticks.now() - start) >= 1_900_000);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    /// The time stamp counter is read, not the clock.
    stamps: bool,
    /// What both showed at the same moment.
    first: u64,
    first_ns: u64,
}

impl Ticks {
    /// Chooses what to count by, and looks at the clock: from now on it is known how long a tick is.
    pub fn new() -> Self {
        static TRUSTED: OnceLock<bool> = OnceLock::new();
        let stamps = *TRUSTED.get_or_init(sys::time_stamps_are_trusted);
        Self {
            stamps,
            first: if stamps { sys::time_stamp() } else { now_ns() },
            first_ns: now_ns(),
        }
    }

    /// The counter. A tick is between 0.1 ns and 1 ns long, for as long as the machine runs.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.stamps {
            sys::time_stamp()
        } else {
            now_ns()
        }
    }

    /// So many ticks in nanoseconds, as exact as the time since [`Ticks::new`] is long: within 0.1% after
    /// 100 us.
    pub fn to_ns(&self, ticks: u64) -> u64 {
        if !self.stamps {
            return ticks;
        }
        let elapsed_ns = now_ns().saturating_sub(self.first_ns);
        let elapsed_ticks = self.now().saturating_sub(self.first).max(1);
        (u128::from(ticks) * u128::from(elapsed_ns) / u128::from(elapsed_ticks)) as u64
    }
}

impl Default for Ticks {
    fn default() -> Self {
        Self::new()
    }
}
