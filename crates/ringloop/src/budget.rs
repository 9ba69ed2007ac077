//! How much a task may do in one poll before it must let the others run.
//!
//! The runtime cannot interrupt a task. So everything in this crate that can be awaited, and may complete without
//! waiting, asks here first. The kernel is looked at between the polls of tasks, hence also timers and I/O depend on it.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

/// How many operations that do not wait a task may do in one poll.
const OPERATIONS_PER_POLL: i32 = 128;

thread_local! {
    /// How many of them are left to the task that is being polled. Below zero: how often it was refused.
    static LEFT: Cell<i32> = const { Cell::new(OPERATIONS_PER_POLL) };
    /// Whether a runtime runs in this thread. Where none does, there is nobody to let run.
    static IS_LIMITED: Cell<bool> = const { Cell::new(false) };
}

/// Gives the next poll of a task its full budget.
pub(crate) fn renew() {
    LEFT.set(OPERATIONS_PER_POLL);
}

/// Whether the task that was polled last has used up its budget.
pub(crate) fn is_used_up() -> bool {
    LEFT.get() <= 0
}

/// Notes whether a runtime runs in this thread.
pub(crate) fn limit(is_limited: bool) {
    IS_LIMITED.set(is_limited);
}

/// Counts one operation of the task that is polled. `Pending` if its budget is used up: the task has been woken, and must
/// let others run.
pub(crate) fn poll(context: &Context<'_>) -> Poll<()> {
    let left = LEFT.get();
    LEFT.set(left - 1);
    if left > 0 {
        return Poll::Ready(());
    }
    refuse(left, context)
}

/// Polls something that may complete without waiting. If it does, and has not counted that itself, it counts as one
/// operation.
pub(crate) fn poll_counted<T>(
    context: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let left = LEFT.get();
    if left <= 0 {
        LEFT.set(left - 1);
        ready!(refuse(left, context));
    }
    let left = LEFT.get();
    let polled = poll(context);
    if polled.is_ready() && LEFT.get() == left {
        LEFT.set(left - 1);
    }
    polled
}

/// Waits until the task may do another operation, and counts it.
pub(crate) async fn consume() {
    poll_fn(|context| poll(context)).await;
}

/// Refuses an operation when the budget is used up, or renews the budget of those who would wait in vain.
#[cold]
fn refuse(left: i32, context: &Context<'_>) -> Poll<()> {
    // Somebody who polls on and on without returning to the runtime, such as a blocking executor inside of a task, would
    // never get any further.
    if !IS_LIMITED.get() || left <= -OPERATIONS_PER_POLL {
        // With the operation that is counted here.
        LEFT.set(OPERATIONS_PER_POLL - 1);
        return Poll::Ready(());
    }
    context.waker().wake_by_ref();
    Poll::Pending
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use std::task::Waker;

    use super::*;

    /// How many operations are done until one is refused, if at most this many are tried.
    fn done(tries: i32, mut operation: impl FnMut(&mut Context<'_>) -> Poll<()>) -> i32 {
        let mut context = Context::from_waker(Waker::noop());
        (0..tries)
            .take_while(|_| operation(&mut context).is_ready())
            .count() as i32
    }

    #[test]
    fn a_task_is_refused_after_its_budget_and_no_sooner() {
        limit(true);
        renew();
        let counted = |context: &mut Context<'_>| poll_counted(context, |_| Poll::Ready(()));
        assert_eq!(done(1000, |context| poll(context)), OPERATIONS_PER_POLL);
        renew();
        assert_eq!(done(1000, counted), OPERATIONS_PER_POLL);
        renew();
        // What counts itself is not counted twice.
        let twice = |context: &mut Context<'_>| poll_counted(context, |context| poll(context));
        assert_eq!(done(1000, twice), OPERATIONS_PER_POLL);
        limit(false);
    }

    #[test]
    fn waiting_costs_nothing() {
        limit(true);
        renew();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            assert!(poll_counted(&mut context, |_| Poll::<()>::Pending).is_pending());
        }
        assert!(poll(&context).is_ready());
        limit(false);
    }

    #[test]
    fn without_a_runtime_nothing_is_refused() {
        renew();
        assert_eq!(done(100_000, |context| poll(context)), 100_000);
        let counted = |context: &mut Context<'_>| poll_counted(context, |_| Poll::Ready(()));
        assert_eq!(done(100_000, counted), 100_000);
    }

    #[test]
    fn who_polls_on_without_returning_gets_further() {
        limit(true);
        renew();
        let mut context = Context::from_waker(Waker::noop());
        let mut completed = 0;
        for _ in 0..10_000 {
            completed += i32::from(poll(&context).is_ready());
            completed += i32::from(poll_counted(&mut context, |_| Poll::Ready(())).is_ready());
        }
        assert!(completed > 5_000, "{completed}");
        limit(false);
    }
}
