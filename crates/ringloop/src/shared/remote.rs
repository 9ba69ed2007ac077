//! The access of other threads to a runtime: wake its tasks, send it new ones, read its metrics.

#[cfg(feature = "hyper")]
use std::any::Any;
use std::sync::Arc;

use ringloop_reactor::inbox::Sender;

use super::CURRENT;
use crate::metrics::Published;
use crate::task::{self, Runnable, Schedule};

/// A message to a runtime from another thread.
pub(crate) enum Message {
    /// A task to be queued.
    Run(Runnable),
    /// A task that another thread has made.
    Adopt(Orphan),
    /// A value that must be dropped in the runtime's thread.
    #[cfg(feature = "hyper")]
    Drop(Box<dyn Any + Send>),
}

/// A task that no runtime has adopted yet. If it is dropped as such, its runtime is gone, and its handle says that it was cancelled.
pub(crate) struct Orphan(Option<Runnable>);

impl Orphan {
    /// The task was never polled, and its future holds only what any thread may drop.
    pub(crate) fn new(task: Runnable) -> Self {
        Self(Some(task))
    }

    pub(crate) fn into_task(mut self) -> Option<Runnable> {
        self.0.take()
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task::end(&task);
        }
    }
}

/// The part of a runtime that other threads hold.
pub(crate) struct Remote {
    pub(crate) sender: Sender<Message>,
    pub(crate) metrics: Published,
}

impl Remote {
    pub(crate) fn new(sender: Sender<Message>) -> Self {
        Self {
            sender,
            metrics: Published::new(),
        }
    }
}

impl Schedule for Remote {
    /// If the runtime is gone, the task has ended, and nothing happens.
    fn schedule(self: &Arc<Self>, task: Runnable) {
        let mut task = Some(task);
        let _ = CURRENT.try_with(|current| {
            if let Some(shared) = current.borrow().as_ref()
                && Arc::ptr_eq(&shared.remote, self)
                && let Some(task) = task.take()
            {
                shared.tasks.queue(task);
            }
        });
        if let Some(task) = task {
            // An error hands the task back: its runtime has ended it.
            drop(self.sender.send(Message::Run(task)));
        }
    }
}
