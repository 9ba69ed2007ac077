//! What the standard library does not offer in the form needed here, and all the `unsafe` of this crate:
//! two system calls, and the processor's time stamp counter.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// Nanoseconds of `CLOCK_MONOTONIC`, see `clock_gettime(2)`. [`std::time::Instant`] reads the same
/// clock, but does not say what it shows.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `now` is valid for writes of a timespec, and outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr()) };
    // The only errors are a bad address and a clock that does not exist: neither can happen.
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

/// Whether the time stamp counter runs at one rate, and alike on all CPUs. The kernel watches it, and
/// uses it for its own clock while it does.
pub(crate) fn time_stamps_are_trusted() -> bool {
    const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(all(target_arch = "x86_64", not(miri)))
        && std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|name| name.trim_end() == "tsc")
}

/// The number of CPUs that the calling thread may run on, see `sched_getaffinity(2)`.
pub(crate) fn usable_cpus() -> io::Result<usize> {
    // A `cpu_set_t` has room for 1024 CPUs; a kernel built for more refuses it with EINVAL.
    let mut words = [0_u64; size_of::<libc::cpu_set_t>() / size_of::<u64>() * 16];
    // SAFETY: the kernel writes at most the given number of bytes to `words`, which is that long
    // and lives until the call has returned. Every pattern of bits is a valid u64.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(words.iter().map(|word| word.count_ones() as usize).sum())
}
