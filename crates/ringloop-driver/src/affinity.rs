//! The CPUs that a thread may run on: sched_setaffinity(2).

#![allow(unsafe_code)]

use std::io;

/// A set of CPUs, as bits. A kernel that is built for more CPUs than the set can hold refuses it with `EINVAL`. A
/// `cpu_set_t` holds 1024, this set 16 times as many.
type CpuSet = [u64; 256];

const NONE: CpuSet = [0; 256];

/// The CPUs of a thread, or of the calling thread if `thread` is zero.
fn get(thread: libc::pid_t) -> io::Result<CpuSet> {
    let mut set = NONE;
    // SAFETY: the kernel writes at most the given number of bytes to `set`, which is that long and outlives the call.
    // Every pattern of bits is a valid u64.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            thread,
            size_of_val(&set),
            set.as_mut_ptr(),
        )
    };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(set)
}

/// Restricts the calling thread to these CPUs.
fn set(set: &CpuSet) -> io::Result<()> {
    // SAFETY: the kernel reads the given number of bytes from `set`, which is that long and outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(set),
            set.as_ptr(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The CPUs that the calling thread may run on, in ascending order.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    let set = get(0)?;
    Ok((0..size_of_val(&set) * 8)
        .filter(|cpu| set[cpu / 64] >> (cpu % 64) & 1 == 1)
        .collect())
}

/// Binds the calling thread to one CPU. Fails with [`io::ErrorKind::InvalidInput`] if it may not use that one.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut one = NONE;
    let word = one.get_mut(cpu / 64).ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (cpu % 64);
    set(&one)
}

/// Lets the calling thread run on all CPUs that the process's first thread may use.
///
/// A thread inherits the CPUs of the thread that starts it. A helper of a pinned thread would therefore share its CPU.
/// Has no effect if the kernel does not allow it.
pub fn unpin_thread() {
    if let Ok(first) = get(std::process::id().cast_signed()) {
        let _ = set(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_and_unpinned() {
        // Undo a restriction that this thread was started with.
        unpin_thread();
        let all = usable_cpus().unwrap();
        assert!(!all.is_empty());
        for &cpu in &all {
            pin_thread(cpu).unwrap();
            assert_eq!(usable_cpus().unwrap(), [cpu]);
        }
        unpin_thread();
        assert_eq!(usable_cpus().unwrap(), all);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        let before = usable_cpus().unwrap();
        for cpu in [size_of::<CpuSet>() * 8 - 1, size_of::<CpuSet>() * 8] {
            let error = pin_thread(cpu).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(usable_cpus().unwrap(), before);
    }
}
