//! The clock as a number, and the processor's time stamp counter, which the standard library does not offer.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds, see `clock_gettime(2)`. [`std::time::Instant`] reads the same
/// clock, but does not reveal its value.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `now` is valid for writes of a timespec, and outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr()) };
    // The only errors are a bad address and an unknown clock, and neither can happen.
    assert_eq!(result, 0, "clock_gettime(CLOCK_MONOTONIC) failed");
    // SAFETY: clock_gettime returned 0, so it has filled in the whole structure.
    let now = unsafe { now.assume_init() };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The processor's time stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets processes use it (it can be
    // told not to by prctl(2), and then the vDSO's clock fails as well).
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Never called: `time_stamps_are_trusted` is false.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn time_stamp() -> u64 {
    monotonic_ns()
}

/// Whether the time stamp counter runs at a constant rate, and in step on all CPUs. The kernel checks this, and uses
/// the counter for its own clock only while it holds.
pub(crate) fn time_stamps_are_trusted() -> bool {
    const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(all(target_arch = "x86_64", not(miri)))
        && std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|name| name.trim_end() == "tsc")
}
