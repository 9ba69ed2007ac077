//! The clock that all deadlines are on.

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
