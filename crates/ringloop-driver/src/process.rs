//! The identity of the process and of its threads, and the version of the kernel.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks since the first call, which a process inherits from its parent. It changes only in children.
pub(crate) fn fork_generation() -> u64 {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: the handler only increments an atomic, which is allowed in the child of a process with several
        // threads.
        unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
    forks()
}

/// The same, if [`fork_generation`] was called before.
#[inline]
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// A number from 1 that is unique to the calling thread and never reused. Makes no system call.
#[inline]
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The running kernel's release, such as "6.18.4".
pub(crate) fn kernel_release() -> String {
    // SAFETY: utsname consists of byte arrays, for which all zeroes are valid.
    let mut name: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: the pointer is to a utsname of ours, which the kernel fills with terminated strings.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return "unknown".to_owned();
    }
    // SAFETY: uname succeeded, so the field is a terminated string within `name`.
    unsafe { CStr::from_ptr(name.release.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

/// Whether the running kernel is this version or a later one.
pub(crate) fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    is_at_least(&kernel_release(), (major, minor))
}

fn is_at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map_while(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) >= wanted,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        for release in ["6.2.0", "6.10-rc1", "7.0.1-generic", "6.2"] {
            assert!(is_at_least(release, (6, 2)), "{release}");
        }
        for release in ["6.1.99", "5.19.0", "unknown", "6", ""] {
            assert!(!is_at_least(release, (6, 2)), "{release}");
        }
    }
}
