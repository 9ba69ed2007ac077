//! Whether a task is queued, has ended, or is to be ended: one atomic word, so that any thread may ask.

#[cfg(all(test, ringloop_loom))]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(all(test, ringloop_loom)))]
use std::sync::atomic::{AtomicU8, Ordering};

/// The task is in a run queue, or on its way to one.
const SCHEDULED: u8 = 1;
/// The task's future has been dropped.
const OVER: u8 = 2;
/// The task is to be ended instead of polled.
const ABORTED: u8 = 4;

#[derive(Debug)]
pub(super) struct State(AtomicU8);

/// The next step for a task that was taken from the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    Poll,
    Abort,
    /// Nothing: the task ended before its turn.
    Over,
}

impl State {
    /// The state of a task that is about to be queued for the first time.
    pub(super) fn scheduled() -> Self {
        Self(AtomicU8::new(SCHEDULED))
    }

    /// Returns true if the caller must queue the task: it is alive, and not queued yet.
    ///
    /// The next poll sees what the caller did before, even if the task was queued by another thread.
    pub(super) fn schedule(&self) -> bool {
        self.0.fetch_or(SCHEDULED, Ordering::AcqRel) & (SCHEDULED | OVER) == 0
    }

    /// Requests the end of the task. Returns true as `schedule` does.
    pub(super) fn abort(&self) -> bool {
        self.0.fetch_or(SCHEDULED | ABORTED, Ordering::AcqRel) & (SCHEDULED | OVER) == 0
    }

    /// Must be called when the task was taken from the queue. From here on, a wake queues it again.
    pub(super) fn begin(&self) -> Begin {
        let state = self.0.fetch_and(!SCHEDULED, Ordering::AcqRel);
        if state & OVER != 0 {
            Begin::Over
        } else if state & ABORTED != 0 {
            Begin::Abort
        } else {
            Begin::Poll
        }
    }

    /// Marks the end of the task. From here on, nobody queues it.
    pub(super) fn finish(&self) {
        self.0.fetch_or(OVER, Ordering::AcqRel);
    }

    /// Whether the task has ended, or its future is being dropped.
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire) & OVER != 0
    }
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_queued_once_until_its_turn_begins() {
        let state = State::scheduled();
        assert!(!state.schedule());
        assert_eq!(state.begin(), Begin::Poll);
        assert!(state.schedule(), "a wake while it runs queues it again");
        assert!(!state.schedule());
    }

    #[test]
    fn an_abort_queues_a_task_that_waits_and_is_seen_by_one_that_is_queued() {
        let waiting = State::scheduled();
        waiting.begin();
        assert!(waiting.abort());
        assert_eq!(waiting.begin(), Begin::Abort);
        let queued = State::scheduled();
        assert!(!queued.abort());
        assert_eq!(queued.begin(), Begin::Abort);
    }

    #[test]
    fn what_is_over_is_never_queued() {
        let state = State::scheduled();
        state.begin();
        state.finish();
        assert!(!state.schedule() && !state.abort());
        assert_eq!(state.begin(), Begin::Over);
    }
}

#[cfg(all(test, ringloop_loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize};

    /// A poll after a wake sees what was written before it, and no wake is lost.
    #[test]
    fn a_wake_is_followed_by_a_poll_that_sees_its_cause() {
        loom::model(|| {
            let state = Arc::new(State::scheduled());
            let queued = Arc::new(AtomicUsize::new(1));
            let cause = Arc::new(AtomicBool::new(false));
            let waker = {
                let (state, queued, cause) =
                    (Arc::clone(&state), Arc::clone(&queued), Arc::clone(&cause));
                loom::thread::spawn(move || {
                    cause.store(true, Ordering::Relaxed);
                    if state.schedule() {
                        queued.fetch_add(1, Ordering::Release);
                    }
                })
            };
            let mut seen = false;
            let run = |seen: &mut bool| {
                if queued.load(Ordering::Acquire) > 0 {
                    queued.fetch_sub(1, Ordering::AcqRel);
                    assert_eq!(state.begin(), Begin::Poll);
                    *seen = cause.load(Ordering::Relaxed);
                }
            };
            run(&mut seen);
            waker.join().unwrap();
            run(&mut seen);
            assert!(seen, "the wake was lost");
            assert_eq!(queued.load(Ordering::Relaxed), 0, "queued twice");
        });
    }

    /// Of two threads that wake a waiting task, exactly one queues it.
    #[test]
    fn two_wakes_queue_once() {
        loom::model(|| {
            let state = Arc::new(State::scheduled());
            state.begin();
            let other = {
                let state = Arc::clone(&state);
                loom::thread::spawn(move || u32::from(state.schedule()))
            };
            let mine = u32::from(state.abort());
            assert_eq!(mine + other.join().unwrap(), 1);
            assert_eq!(state.begin(), Begin::Abort);
        });
    }

    /// As `Remote::schedule` does it: whoever queues the task sends it to the runtime, which sleeps whenever it may.
    /// Two wakes, one of them perhaps during a poll, are both noticed. A lost wake would be a deadlock.
    #[test]
    fn a_wake_from_another_thread_reaches_a_runtime_that_sleeps() {
        use loom::sync::Notify;
        use ringloop_reactor::inbox::Mailbox;

        loom::model(|| {
            let state = Arc::new(State::scheduled());
            state.begin();
            let mailbox = Arc::new(Mailbox::default());
            let wake = Arc::new(Notify::new());
            let causes = Arc::new(AtomicUsize::new(0));
            let waker = {
                let (state, mailbox) = (Arc::clone(&state), Arc::clone(&mailbox));
                let (wake, causes) = (Arc::clone(&wake), Arc::clone(&causes));
                loom::thread::spawn(move || {
                    for cause in 1..=2 {
                        causes.store(cause, Ordering::Relaxed);
                        if state.schedule() && mailbox.push(()).unwrap() {
                            wake.notify();
                        }
                    }
                })
            };
            let mut seen = 0;
            let mut queue = Vec::new();
            while seen < 2 {
                if mailbox.prepare_wait() {
                    wake.wait();
                }
                mailbox.receive(&mut queue);
                assert!(queue.len() <= 1, "queued twice");
                if queue.pop().is_some() {
                    assert_eq!(state.begin(), Begin::Poll);
                    seen = causes.load(Ordering::Relaxed);
                }
            }
            waker.join().unwrap();
        });
    }
}
