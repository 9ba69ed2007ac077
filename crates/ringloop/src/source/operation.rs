//! Operations in flight.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use ringloop_driver::{Op, Token};

use crate::shared::{Current, InFlight, Kind, Shared};

/// An operation in flight. Dropping it cancels the operation; its buffers live until the kernel has finished.
pub(crate) struct Operation {
    shared: Rc<Shared>,
    state: Rc<InFlight>,
    token: Token,
}

/// Why an operation was not submitted, and the operation.
#[derive(Debug)]
pub(crate) struct NotSubmitted {
    pub(crate) error: io::Error,
    pub(crate) op: Box<Op>,
}

impl From<NotSubmitted> for io::Error {
    fn from(refused: NotSubmitted) -> Self {
        refused.error
    }
}

impl Operation {
    /// Submits an operation in the current runtime.
    pub(crate) fn submit(op: Op) -> Result<Self, NotSubmitted> {
        let shared = Shared::current();
        let owns_buffer = matches!(op, Op::Read { .. } | Op::Write { .. });
        let submitted = shared.submit(op);
        let token = submitted.map_err(|(error, op)| NotSubmitted { error, op })?;
        shared.io_counters.submitted();
        let state = Rc::new(InFlight::new(owns_buffer));
        shared
            .sources
            .insert(token, Kind::Operation(Rc::clone(&state)));
        Ok(Self {
            shared,
            state,
            token,
        })
    }

    /// Returns the next result of an operation that has several; `None` after the last.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<io::Result<u32>>> {
        if let Some(result) = self.try_next() {
            return Poll::Ready(Some(result));
        }
        if self.state.is_over.get() {
            return Poll::Ready(None);
        }
        if let Err(error) = self.shared.check_here() {
            return Poll::Ready(Some(Err(error)));
        }
        self.state.register(context);
        Poll::Pending
    }

    /// Returns a result that has already arrived.
    pub(crate) fn try_next(&self) -> Option<io::Result<u32>> {
        self.state.try_next()
    }

    /// Waits for the file that the operation opens.
    pub(crate) async fn opened(mut self) -> io::Result<OwnedFd> {
        let (result, _) = (&mut self).await;
        result?;
        let opened = self.state.opened.take();
        opened.ok_or_else(|| io::Error::other("the driver did not return the file"))
    }

    /// Cancels the operation before anything else is done with its file. Fails if the kernel accepts no cancel at the
    /// moment; then the operation may still run.
    pub(crate) fn cancel_now(self) -> io::Result<()> {
        let shared = Rc::clone(&self.shared);
        drop(self);
        shared.flush()
    }
}

/// Waits for the only result, and returns it together with the operation. If the future is polled where it would wait in
/// vain, that is an error; the operation is then taken back from the driver, unless the kernel does not release it soon.
impl Future for Operation {
    type Output = (io::Result<u32>, Option<Op>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.state.take_outcome() {
            return Poll::Ready(outcome);
        }
        if let Err(error) = self.shared.check_here() {
            if self.state.owns_buffer {
                self.shared.recall(&[(self.token, Rc::clone(&self.state))]);
            }
            let outcome = self.state.take_outcome();
            return Poll::Ready(outcome.unwrap_or((Err(error), None)));
        }
        self.state.register(context);
        Poll::Pending
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.state.is_over.get() {
            self.shared.sources.remove(self.token);
            // Bytes that the driver gives back must not be dropped before it is done (`Lent`).
            let current = (!Shared::is_any_current()).then(|| Current::new(&self.shared));
            self.shared.with_driver(|driver| driver.discard(self.token));
            if !self.shared.is_running() {
                self.shared.let_go();
            }
            if current.is_some() {
                drop(current);
                self.shared.drop_returned();
            }
        }
    }
}
