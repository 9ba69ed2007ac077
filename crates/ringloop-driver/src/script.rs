//! What a scripted kernel does, as a test writes it.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::Readiness;
use crate::op::Op;
use crate::plan::{Fault, Plan};

/// Something that the scripted kernel does.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// A watched descriptor is ready.
    Ready(RawFd, Readiness),
    /// The oldest operation on a descriptor comes to this result; a negative one is `-errno`. A multishot operation
    /// goes on unless the result is negative. What is received or read is zeroes.
    Complete(RawFd, i32),
    /// The same for the oldest operation on a path: opening a file, or asking for its metadata, which is all zeroes.
    CompletePath(i32),
    /// A completion comes for the latest arming that a descriptor's watch or operation no longer has.
    Late(RawFd),
    /// The completion queue overflows: every multishot request in the kernel ends, and is to be queued anew.
    Overflow,
    /// The kernel takes at most this many of the queued requests in this turn.
    Accept(usize),
    /// Somebody uses the waker while the poll waits.
    Wake,
    /// A signal ends the wait, after what else happens in this turn.
    Interrupt,
    /// The poll fails with this errno.
    Fail(i32),
}

/// What the scripted kernel does, poll by poll, and what it was asked for.
///
/// Clones share one script, so that a test keeps one while the driver has another.
#[derive(Clone, Debug, Default)]
pub struct Script {
    shared: Arc<Mutex<Shared>>,
}

/// What all clones of a script share.
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

    /// Adds a turn: what happens during the next poll that has none yet.
    pub fn turn(&self, steps: impl IntoIterator<Item = Step>) -> &Script {
        self.lock().turns.push_back(steps.into_iter().collect());
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

    /// Makes the driver that is made next with this script do what it is asked for, with the faults that `decide` chooses: for
    /// each operation when the kernel hears of it, and with `None` for each readiness of a watch. Steps are played besides.
    /// Polls wait for a moment only.
    pub fn plan(&self, decide: impl FnMut(Option<&Op>) -> Fault + Send + 'static) -> &Script {
        self.lock().plan = Some(Plan::new(decide));
        self
    }

    /// For how long each poll so far would have waited: its timeout, or zero if it had something to report at once.
    pub fn timeouts(&self) -> Vec<Option<Duration>> {
        self.lock().timeouts.clone()
    }

    /// Whether every turn has been played.
    pub fn is_over(&self) -> bool {
        self.lock().turns.is_empty()
    }
}
