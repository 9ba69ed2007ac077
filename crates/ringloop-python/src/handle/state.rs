//! Whether a handle was cancelled, and whether it runs: one word, so that of a run that begins and a cancellation one
//! comes first, for all threads.

#[cfg(Py_GIL_DISABLED)]
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

#[cfg(not(Py_GIL_DISABLED))]
use std::cell::Cell;

const CANCELLED: u32 = 1;
/// Added for each run in progress.
const RUN: u32 = 2;

#[cfg(not(Py_GIL_DISABLED))]
type Word = Cell<u32>;
#[cfg(Py_GIL_DISABLED)]
type Word = AtomicU32;

pub(super) struct State(Word);

impl State {
    #[inline]
    pub(super) fn new() -> Self {
        Self(Word::new(0))
    }

    #[inline]
    pub(super) fn is_cancelled(&self) -> bool {
        self.get() & CANCELLED != 0
    }

    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.get() >= RUN
    }

    /// A run begins; false if it must not, because the handle was cancelled.
    #[inline]
    pub(super) fn begin_run(&self) -> bool {
        if cfg!(not(Py_GIL_DISABLED)) && self.is_cancelled() {
            return false;
        }
        let before = self.add(RUN);
        if before & CANCELLED == 0 {
            return true;
        }
        self.end_run();
        false
    }

    /// The run that `begin_run` allowed is over.
    #[inline]
    pub(super) fn end_run(&self) {
        self.add(RUN.wrapping_neg());
    }
}

#[cfg(not(Py_GIL_DISABLED))]
impl State {
    #[inline]
    fn get(&self) -> u32 {
        self.0.get()
    }

    /// Returns the word as it was.
    #[inline]
    fn add(&self, amount: u32) -> u32 {
        let before = self.0.get();
        self.0.set(before.wrapping_add(amount));
        before
    }

    /// False if it was cancelled before.
    #[inline]
    pub(super) fn cancel(&self) -> bool {
        let before = self.0.get();
        self.0.set(before | CANCELLED);
        before & CANCELLED == 0
    }
}

#[cfg(Py_GIL_DISABLED)]
impl State {
    #[inline]
    fn get(&self) -> u32 {
        self.0.load(SeqCst)
    }

    /// Returns the word as it was.
    #[inline]
    fn add(&self, amount: u32) -> u32 {
        self.0.fetch_add(amount, SeqCst)
    }

    /// False if it was cancelled before.
    #[inline]
    pub(super) fn cancel(&self) -> bool {
        self.0.fetch_or(CANCELLED, SeqCst) & CANCELLED == 0
    }
}
