//! Clients that go away while their request is being worked on.
//!
//! With `half_close`, hyper does not read meanwhile, and learns nothing.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::net::stream::Core;
use crate::source::{Closed, End, Observer};
use crate::time::{Instant, Sleep, sleep};

/// Notices that a client has gone.
pub(super) struct Leaving {
    /// Both directions; also woken by the end of one.
    closed: Closed,
    read_closed: Closed,
    /// How long nothing may move when the client has closed its direction.
    limit: Option<Duration>,
    /// The end of that time.
    end: Option<Sleep>,
    /// Who is woken, until the client has closed its direction or after that.
    registered: Option<(Waker, bool)>,
}

impl Leaving {
    pub(super) fn new(core: &Core, limit: Option<Duration>) -> Self {
        Self {
            closed: core.until(End::Both),
            read_closed: core.until(End::Reading),
            // Without any time it would be over and over again.
            limit: limit.map(|limit| limit.max(Duration::from_millis(1))),
            end: None,
            registered: None,
        }
    }

    /// Ready when the client has gone.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.closed.is_reached() {
            return Poll::Ready(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the client has reset the connection",
            ));
        }
        let is_read_closed = self.read_closed.is_reached();
        let is_known = |(waker, seen): &(Waker, bool)| {
            waker.will_wake(context.waker()) && *seen == is_read_closed
        };
        if self.registered.as_ref().is_some_and(is_known) && self.end.is_none() {
            return Poll::Pending;
        }
        self.closed.register(context);
        self.registered = Some((context.waker().clone(), is_read_closed));
        let Some(limit) = self.limit.filter(|_| is_read_closed) else {
            return Poll::Pending;
        };
        let closed = &self.closed;
        let end = self.end.get_or_insert_with(|| {
            closed.is_in_use(Observer::Http);
            sleep(limit)
        });
        while Pin::new(&mut *end).poll(context).is_ready() {
            if !closed.is_in_use(Observer::Http) {
                return Poll::Ready(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the client closed the connection, and had no answer in time",
                ));
            }
            end.reset(Instant::now() + limit);
        }
        Poll::Pending
    }
}
