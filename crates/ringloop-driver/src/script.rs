//! Scripts: what a scripted kernel does in a test.

use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::Readiness;
use crate::op::Op;
use crate::plan::{ERRNO_MAX, Fault, Plan};

/// A step of the scripted kernel.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step {
    /// A watched descriptor is ready.
    Ready(RawFd, Readiness),
    /// The oldest operation on a descriptor gets this result, `-errno` if negative. Data that is read is
    /// zeroes.
    Complete(RawFd, i32),
    /// The same for the oldest operation on a path: opening a file, or getting its metadata, which is all zeroes.
    CompletePath(i32),
    /// The oldest operation on a path, which opens a file, gets this descriptor.
    Open(OwnedFd),
    /// A late completion comes for the latest outdated arming of a descriptor's watch or operation.
    Late(RawFd),
    /// The completion queue overflows: the request of each edge-triggered watch ends and has to be queued again.
    Overflow,
    /// The kernel takes at most this many of the queued requests in this turn.
    Accept(usize),
    /// The waker is used while the poll waits.
    Wake,
    /// A signal ends the wait, after the other steps of this turn.
    Interrupt,
    /// The poll fails with this errno.
    Fail(i32),
}

/// The behaviour of the scripted kernel, poll by poll, and a record of how it was polled.
///
/// Clones share one script: the test keeps one, the driver has another.
#[derive(Clone, Debug, Default)]
pub struct Script {
    shared: Arc<Mutex<Shared>>,
}

/// The state that all clones of a script share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) turns: VecDeque<Vec<Step>>,
    pub(crate) watch_refusals: VecDeque<i32>,
    pub(crate) flush_refusals: usize,
    pub(crate) plan: Option<Plan>,
    pub(crate) timeouts: Vec<Option<Duration>>,
}

impl Script {
    /// An empty script: nothing ever happens.
    pub fn new() -> Script {
        Script::default()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a turn: the steps of the next poll that has none yet.
    ///
    /// # Panics
    /// Panics if an operation would get a result below -4095, which no kernel returns. The poll that plays a turn panics if
    /// it would give an operation a result that its user takes for a descriptor, which only [`Step::Open`] has.
    pub fn turn(&self, steps: impl IntoIterator<Item = Step>) -> &Script {
        let steps: Vec<Step> = steps.into_iter().collect();
        for step in &steps {
            if let Step::Complete(_, result) | Step::CompletePath(result) = step {
                assert!(
                    *result >= -ERRNO_MAX,
                    "{result} is no errno: use 0 to -{ERRNO_MAX}"
                );
            }
        }
        self.lock().turns.push_back(steps);
        self
    }

    /// Makes the next `watch` or `rewatch` that has no refusal yet fail with an errno.
    pub fn refuse_watch(&self, errno: i32) -> &Script {
        self.lock().watch_refusals.push_back(errno);
        self
    }

    /// Makes the next `flush` that is not refused yet fail: the kernel takes nothing.
    pub fn refuse_flush(&self) -> &Script {
        self.lock().flush_refusals += 1;
        self
    }

    /// Makes the next driver with this script really perform its requests, with faults that `decide` chooses. It is
    /// called for each operation that the kernel takes, and with `None` whenever a watch is ready. Steps are played,
    /// too. Polls wait for a moment only, and panic if `decide` returns a fault with an impossible errno.
    pub fn plan(&self, decide: impl FnMut(Option<&Op>) -> Fault + Send + 'static) -> &Script {
        self.lock().plan = Some(Plan::new(decide));
        self
    }

    /// How long each poll so far would have waited: its timeout, or zero if it had something to report at once.
    pub fn timeouts(&self) -> Vec<Option<Duration>> {
        self.lock().timeouts.clone()
    }

    /// Whether every turn has been played.
    pub fn is_over(&self) -> bool {
        self.lock().turns.is_empty()
    }
}
