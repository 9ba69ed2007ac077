//! How long a connection has been idle.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::source::Activity;
use crate::time::{Instant, Sleep, sleep_until};

/// A timer that is not reset for every byte: when it expires, it checks whether bytes have moved since. It observes the
/// connection from outside, whoever reads and writes.
pub(super) struct Idle {
    limit: Duration,
    last: Instant,
    timer: Sleep,
    activity: Activity,
}

impl Idle {
    pub(super) fn new(limit: Duration, activity: Activity) -> Self {
        let now = Instant::now();
        Self {
            limit,
            last: now,
            timer: sleep_until(now + limit),
            activity,
        }
    }

    /// How long nothing may move.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Ready when nothing has moved for too long; the time then starts anew. A closed connection is not idle: its
    /// function does something else.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.activity.is_over() {
            return Poll::Pending;
        }
        if self.activity.take() {
            self.last = Instant::now();
        }
        while Pin::new(&mut self.timer).poll(context).is_ready() {
            let now = Instant::now();
            let deadline = self.last + self.limit;
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
