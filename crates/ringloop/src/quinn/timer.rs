//! A timer of quinn's. Any thread may use it; quinn does so in the tasks that it has spawned.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use quinn::AsyncTimer;
use ringloop_reactor::timers::TimerKey;

use crate::runtime::Handle;
use crate::shared::Shared;
use crate::time::Instant;

pub(super) struct Timer {
    home: Handle,
    alarm: Arc<Alarm>,
}

/// The part that the runtime wakes when the deadline has passed.
struct Alarm(Mutex<State>);

struct State {
    deadline: Instant,
    waker: Option<Waker>,
    /// The runtime's timer, and when it expires.
    armed: Option<(TimerKey, Instant)>,
}

impl Timer {
    pub(super) fn new(home: Handle, deadline: Instant) -> Self {
        let state = State {
            deadline,
            waker: None,
            armed: None,
        };
        Self {
            home,
            alarm: Arc::new(Alarm(Mutex::new(state))),
        }
    }

    /// Has the runtime do what the alarm now says, in its own thread.
    fn settle(&self) {
        let alarm = Arc::clone(&self.alarm);
        self.home.do_there(move |shared| alarm.settle(shared));
    }
}

impl Alarm {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that may panic runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(self: Arc<Self>, shared: &Shared) {
        let mut timers = shared.timers.borrow_mut();
        let mut state = self.lock();
        // Its waker is this alarm, of which there is another reference.
        let before = state.armed.take().and_then(|(key, _)| timers.cancel(key));
        if state.waker.is_some() {
            let deadline = state.deadline;
            let alarm = Waker::from(Arc::clone(&self));
            let key = timers.insert(deadline.as_clock_ns(), alarm);
            state.armed = Some((key, deadline));
        }
        drop((state, timers));
        drop(before);
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        // This may be the end of a timer that another one has replaced meanwhile.
        let is_over = |(_, deadline)| Instant::now() >= deadline;
        if !state.armed.is_none_or(is_over) {
            return;
        }
        state.armed = None;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl AsyncTimer for Timer {
    fn reset(self: Pin<&mut Self>, deadline: std::time::Instant) {
        let mut state = self.alarm.lock();
        state.deadline = deadline.into();
        let is_waiting = state.waker.is_some();
        drop(state);
        if is_waiting {
            self.settle();
        }
    }

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Cloning may run the user's code.
        let waker = context.waker().clone();
        let mut state = self.alarm.lock();
        if Instant::now() >= state.deadline {
            let before = state.waker.take();
            let is_armed = state.armed.is_some();
            drop(state);
            drop(before);
            if is_armed {
                self.settle();
            }
            return Poll::Ready(());
        }
        let before = state.waker.replace(waker);
        let is_armed = state
            .armed
            .is_some_and(|(_, deadline)| deadline == state.deadline);
        drop(state);
        drop(before);
        if !is_armed {
            self.settle();
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut state = self.alarm.lock();
        let waker = state.waker.take();
        let is_armed = state.armed.is_some();
        drop(state);
        drop(waker);
        if is_armed {
            self.settle();
        }
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deadline = self.alarm.lock().deadline;
        formatter
            .debug_struct("Timer")
            .field("deadline", &deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringloop_reactor::timers::Timers;

    use super::*;

    #[test]
    fn the_end_of_a_timer_that_was_replaced_is_ignored() {
        let later = Instant::now() + Duration::from_secs(1000);
        let key = Timers::new().insert(later.as_clock_ns(), ());
        let alarm = |armed| {
            Arc::new(Alarm(Mutex::new(State {
                deadline: later,
                waker: Some(Waker::noop().clone()),
                armed: Some((key, armed)),
            })))
        };
        let replaced = alarm(later);
        Arc::clone(&replaced).wake();
        let state = replaced.lock();
        assert_eq!(state.armed, Some((key, later)));
        assert!(state.waker.is_some());
        let over = alarm(Instant::now());
        Arc::clone(&over).wake();
        assert!(over.lock().armed.is_none());
        assert!(over.lock().waker.is_none());
    }
}
