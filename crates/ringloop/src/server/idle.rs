//! How long a connection has been idle.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock;
use crate::source::Activity;
use crate::time::{Sleep, sleep_until};

/// A timer that is not reset for every byte: when it expires, it checks whether bytes have moved since. It observes the
/// connection from outside, whoever reads and writes.
pub(super) struct Idle {
    limit_ns: u64,
    last_ns: u64,
    timer: Sleep,
    activity: Activity,
}

impl Idle {
    pub(super) fn new(limit: Duration, activity: Activity) -> Self {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = clock::now_ns();
        Self {
            limit_ns,
            last_ns: now_ns,
            timer: sleep_until(now_ns.saturating_add(limit_ns)),
            activity,
        }
    }

    /// Ready when nothing has moved for too long; the time then starts anew. A closed connection is not idle: its
    /// function does something else.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.activity.is_over() {
            return Poll::Pending;
        }
        if self.activity.take() {
            self.last_ns = clock::now_ns();
        }
        while Pin::new(&mut self.timer).poll(context).is_ready() {
            let now_ns = clock::now_ns();
            let deadline_ns = self.last_ns.saturating_add(self.limit_ns);
            if deadline_ns <= now_ns {
                self.last_ns = now_ns;
                self.timer.reset(now_ns.saturating_add(self.limit_ns));
                return Poll::Ready(());
            }
            self.timer.reset(deadline_ns);
        }
        Poll::Pending
    }
}
