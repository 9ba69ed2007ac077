//! The state that the load shares with the connections beside it: the phase of the run, and its failures.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::failure::{Failure, Failures};

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Phase {
    Connecting,
    WarmUp,
    /// Nothing is in flight, until the next window.
    Rest,
    Window,
    Drain,
    Over,
}

/// The state that the load shares with the connections beside it.
#[derive(Debug)]
pub(crate) struct Shared {
    phase: AtomicU8,
    /// Whether a failure has voided the run.
    voided: AtomicBool,
    pub(crate) failures: Failures,
}

impl Shared {
    pub(crate) fn new(failures: Failures) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            voided: AtomicBool::new(failures.void_reason().is_some()),
            failures,
        }
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Connecting,
            1 => Phase::WarmUp,
            2 => Phase::Rest,
            3 => Phase::Window,
            4 => Phase::Drain,
            _ => Phase::Over,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    #[cold]
    pub(crate) fn fail(&self, failure: Failure) {
        if failure.kind.voids() {
            self.voided.store(true, Ordering::Release);
        }
        self.failures.add(failure);
    }

    /// Whether a failure has voided the run.
    pub(crate) fn is_voided(&self) -> bool {
        self.voided.load(Ordering::Acquire)
    }
}
