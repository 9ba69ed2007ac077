//! The clock of all deadlines, and a cheaper counter for short durations.

use std::sync::OnceLock;

use crate::sys;

/// Nanoseconds of `CLOCK_MONOTONIC`: the clock of Python's `time.monotonic()`, which does not go
/// back and does not count time that the machine was suspended.
///
/// A call costs about as much as thirty additions where the kernel's vDSO can read the clock, as it can on all common
/// machines.
///
/// ```
/// let before_ns = ringloop_reactor::clock::now_ns();
/// assert!(ringloop_reactor::clock::now_ns() >= before_ns);
/// ```
#[inline]
pub fn now_ns() -> u64 {
    sys::monotonic_ns()
}

/// Measures short durations where even reading the clock would be noticeable. It uses the processor's time stamp
/// counter if the kernel trusts that for its own clock, and otherwise the clock itself.
///
/// The counter may be read while earlier instructions are still executing, so that a single reading can be off by some
/// nanoseconds. In return it costs a fifth of [`now_ns`] and does not stall the pipeline.
///
/// ```
/// use ringloop_reactor::clock::Ticks;
///
/// let ticks = Ticks::new();
/// let start = ticks.now();
/// std::thread::sleep(std::time::Duration::from_millis(2));
/// assert!(ticks.to_ns(ticks.now() - start) >= 1_900_000);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    /// Whether the time stamp counter is read, rather than the clock.
    stamps: bool,
    /// The readings of counter and clock at the same moment.
    first: u64,
    first_ns: u64,
}

impl Ticks {
    /// Chooses the counter and reads the clock once, to learn from then on how long a tick is.
    pub fn new() -> Self {
        static TRUSTED: OnceLock<bool> = OnceLock::new();
        let stamps = *TRUSTED.get_or_init(sys::time_stamps_are_trusted);
        Self {
            stamps,
            first: if stamps { sys::time_stamp() } else { now_ns() },
            first_ns: now_ns(),
        }
    }

    /// Reads the counter. A tick is between 0.1 ns and 1 ns long, and does not change while the machine runs.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.stamps {
            sys::time_stamp()
        } else {
            now_ns()
        }
    }

    /// Converts a number of ticks to nanoseconds. The result gets more precise with the time since [`Ticks::new`]:
    /// within 0.1% after 100 us.
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
