//! The CPUs that workers are bound to.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use ringloop_driver::affinity;

use crate::sys::PerProcess;

/// How many workers of this process are bound to each CPU. A forked child has no workers.
static BOUND: PerProcess<Mutex<BTreeMap<usize, usize>>> = PerProcess::new();

fn with_bound<T>(change: impl FnOnce(&mut BTreeMap<usize, usize>) -> T) -> T {
    let bound = BOUND.get(Mutex::default);
    change(&mut bound.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The CPU of one worker, as long as this exists.
#[derive(Debug)]
pub(super) struct Cpu(usize);

impl Cpu {
    /// Chooses a CPU among these for one more worker: one to which the fewest workers are bound, whatever pool they belong
    /// to.
    ///
    /// # Panics
    /// Panics if there are none.
    pub(super) fn choose(cpus: &[usize]) -> Self {
        with_bound(|bound| {
            let count = |cpu: &usize| bound.get(cpu).copied().unwrap_or_default();
            let cpu = cpus.iter().copied().min_by_key(count);
            let cpu = cpu.expect("a thread may use at least one CPU");
            *bound.entry(cpu).or_default() += 1;
            Self(cpu)
        })
    }

    /// Binds the calling thread to it.
    pub(super) fn bind_thread(&self) -> io::Result<()> {
        affinity::pin_thread(self.0)
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        with_bound(|bound| {
            if let Some(count) = bound.get_mut(&self.0) {
                *count = count.saturating_sub(1);
            }
        });
    }
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    /// With CPUs that no machine of today has, because other tests of this process bind workers, too.
    #[test]
    fn workers_share_a_cpu_only_if_there_are_too_few() {
        let cpus = [9001, 9002, 9003];
        let mut first: Vec<_> = (0..2).map(|_| Cpu::choose(&cpus)).collect();
        let second: Vec<_> = (0..2).map(|_| Cpu::choose(&cpus)).collect();
        let numbers = |cpus: &[Cpu]| cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>();
        assert_eq!(numbers(&first), [9001, 9002]);
        assert_eq!(numbers(&second), [9003, 9001]);
        // What has ended needs none.
        first.clear();
        assert_eq!(Cpu::choose(&cpus).0, 9002);
        assert_eq!(Cpu::choose(&[9003]).0, 9003);
        drop(second);
        assert_eq!(Cpu::choose(&cpus).0, 9001);
    }
}
