//! The state that the threads of a run share: its phase, its window, and the progress of each thread.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::failure::{Failure, Failures};

/// How often a thread checks between two windows whether the next one begins. Others are measured meanwhile.
pub(crate) const REST_NS: u64 = 5_000_000;

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

/// The progress of one thread, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Published {
    completed: AtomicU64,
    /// Connections that are open or being opened.
    alive: AtomicU64,
}

/// The state that the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    phase: AtomicU8,
    /// The window. The beginning and the end are `u64::MAX` until they are known.
    window_begin_ns: AtomicU64,
    window_end_ns: AtomicU64,
    /// The length of all windows that were closed.
    measured_ns: AtomicU64,
    /// Whether nothing more is to be sent in this phase, which ends when everything is answered.
    finishing: AtomicBool,
    /// From when on requests may be sent.
    pub(crate) sending_begin_ns: AtomicU64,
    /// Connections with this number or a greater one are not to be opened yet.
    pub(crate) connections_allowed: AtomicU64,
    /// How many connections have been opened, or have failed to be.
    pub(crate) connections_tried: AtomicU64,
    pub(crate) threads_ready: AtomicUsize,
    pub(crate) threads_drained: AtomicUsize,
    /// Whether a failure has voided the run.
    voided: AtomicBool,
    published: Vec<Published>,
    pub(crate) failures: Failures,
}

impl Shared {
    pub(crate) fn new(threads: usize, failures: Failures) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            window_begin_ns: AtomicU64::new(u64::MAX),
            window_end_ns: AtomicU64::new(u64::MAX),
            measured_ns: AtomicU64::new(0),
            finishing: AtomicBool::new(false),
            sending_begin_ns: AtomicU64::new(0),
            connections_allowed: AtomicU64::new(u64::MAX),
            connections_tried: AtomicU64::new(0),
            threads_ready: AtomicUsize::new(0),
            threads_drained: AtomicUsize::new(0),
            voided: AtomicBool::new(failures.void_reason().is_some()),
            published: (0..threads).map(|_| Published::default()).collect(),
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

    /// Whether nothing more is to be sent in this phase.
    #[inline]
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Acquire)
    }

    /// Has everything answered that was sent in this phase; `threads_drained` counts the threads that have nothing left.
    pub(crate) fn finish_phase(&self) {
        self.finishing.store(true, Ordering::Release);
    }

    /// Rests until the next window, with what was finished: a warm-up, or a window that ends now.
    pub(crate) fn rest(&self, now: u64) {
        if self.phase() == Phase::Window {
            let begin = self.window_begin_ns.swap(u64::MAX, Ordering::Relaxed);
            self.measured_ns.fetch_add(now - begin, Ordering::Relaxed);
        }
        // Unless the run has ended meanwhile.
        for phase in [Phase::WarmUp, Phase::Window] {
            let _ = self.phase.compare_exchange(
                phase as u8,
                Phase::Rest as u8,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
        }
    }

    /// Moves on to a phase, never back to an earlier one.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn window_begin_ns(&self) -> u64 {
        self.window_begin_ns.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn window_end_ns(&self) -> u64 {
        self.window_end_ns.load(Ordering::Relaxed)
    }

    /// Whether what began at `ns` began in the window.
    #[inline]
    pub(crate) fn counts(&self, ns: u64) -> bool {
        ns >= self.window_begin_ns() && ns < self.window_end_ns()
    }

    #[cold]
    pub(crate) fn fail(&self, failure: Failure) {
        if failure.kind.voids() {
            self.voided.store(true, Ordering::Release);
        }
        self.failures.add(failure);
    }

    #[inline]
    pub(crate) fn publish(&self, thread: usize, completed: u64, alive: u64) {
        let published = &self.published[thread];
        published.completed.store(completed, Ordering::Relaxed);
        published.alive.store(alive, Ordering::Relaxed);
    }

    pub(crate) fn completed(&self) -> u64 {
        let counts = self.published.iter();
        counts
            .map(|one| one.completed.load(Ordering::Relaxed))
            .sum()
    }

    pub(crate) fn alive(&self) -> u64 {
        let counts = self.published.iter();
        counts.map(|one| one.alive.load(Ordering::Relaxed)).sum()
    }
    /// Whether a failure has voided the run.
    pub(crate) fn is_voided(&self) -> bool {
        self.voided.load(Ordering::Acquire)
    }

    /// Opens a window at `now`.
    pub(crate) fn open_window(&self, now: u64) {
        self.threads_drained.store(0, Ordering::SeqCst);
        self.finishing.store(false, Ordering::Release);
        self.window_begin_ns.store(now, Ordering::Relaxed);
        self.set_phase(Phase::Window);
    }

    /// Closes the last window at `now`.
    pub(crate) fn close_window(&self, now: u64) {
        self.measured_ns
            .fetch_add(now - self.window_begin_ns(), Ordering::Relaxed);
        self.window_end_ns.store(now, Ordering::Relaxed);
        self.set_phase(Phase::Drain);
    }

    /// The length of all windows that were opened and closed.
    pub(crate) fn window_s(&self) -> f64 {
        self.measured_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}
