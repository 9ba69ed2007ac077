//! How long a connection has been idle.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::source::{Activity, Closed, Observer};
use crate::time::{Instant, Sleep, sleep_until};

/// How long a function may continue whose connection was reset.
const RESET_MAX: Duration = Duration::from_secs(2);

/// After all other points in time.
const NEVER: Instant = Instant::from_clock_ns(u64::MAX);

/// A timer that is not reset for every byte: when it expires, it checks whether bytes have moved since. It observes the
/// connection from outside, whoever reads and writes.
pub(super) struct Idle {
    limit: Duration,
    last: Instant,
    timer: Sleep,
    activity: Activity,
    /// The end of the time that is left after a reset; far away before that.
    last_end: Instant,
    /// Tells that the connection was reset, if that is to be noticed. Boxed, because a connection with a handler has none,
    /// and should be small.
    closed: Option<Box<Closed>>,
}

impl Idle {
    pub(super) fn new(limit: Duration, activity: Activity, closed: Option<Closed>) -> Self {
        let now = Instant::now();
        Self {
            limit,
            last: now,
            timer: sleep_until(now + limit),
            activity,
            last_end: NEVER,
            closed: closed.map(Box::new),
        }
    }

    /// How long nothing may move.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Ready when nothing has moved for too long; the time then starts anew. A closed connection is not idle: its
    /// function does something else.
    ///
    /// The task must poll with the same waker each time.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.activity.is_over() {
            return Poll::Pending;
        }
        let has_moved = self.activity.take(Observer::Server);
        self.poll_closed(context);
        let Some(turn) = self.timer.turn_if_armed() else {
            return self.poll_timer(context, has_moved);
        };
        if has_moved {
            // Every message comes past here, so the clock is not read.
            self.last = self.last.max(turn);
        }
        Poll::Pending
    }

    /// Shortens the time if the connection was reset.
    fn poll_closed(&mut self, context: &Context<'_>) {
        let Some(closed) = &self.closed else { return };
        if !closed.is_reached() {
            return closed.register(context);
        }
        self.closed = None;
        let end = Instant::now() + self.limit.min(RESET_MAX);
        self.last_end = end;
        if end < self.timer.deadline() {
            self.timer.reset(end);
        }
    }

    fn poll_timer(&mut self, context: &mut Context<'_>, has_moved: bool) -> Poll<()> {
        while Pin::new(&mut self.timer).poll(context).is_ready() {
            let now = Instant::now();
            if has_moved {
                self.last = now;
            }
            let deadline = self.last_end.min(self.last + self.limit);
            if deadline <= now {
                self.last = now;
                self.timer.reset(now + self.limit);
                return Poll::Ready(());
            }
            self.timer.reset(deadline);
        }
        Poll::Pending
    }
}
