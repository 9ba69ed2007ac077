//! The tasks of a runtime: those that are alive, and the queue of those to be polled.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::{Role, Runnable};

/// Belongs to the runtime's thread.
///
/// The queue may still contain a task that has ended: one that was woken during its last poll. Its index may belong to
/// another task by then. So a task is removed from the list where it ends, and nowhere else.
pub(crate) struct Tasks {
    live: RefCell<Slab<Runnable>>,
    queue: RefCell<VecDeque<Runnable>>,
    /// The role of the task that is polled, and so of those that it spawns.
    role: Cell<Role>,
    /// How many of those alive belong to connections, and to nothing.
    of_connections: Cell<usize>,
    in_background: Cell<usize>,
    /// The waker of whoever waits for tasks to end.
    ended: Cell<Option<Waker>>,
    /// Whether the runtime has ended, so that nothing would ever run or end a new task.
    is_closed: Cell<bool>,
}

/// The tasks that whoever ends a runtime waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// All but those in the background.
    Tasks,
    /// Those that belong to connections.
    Connections,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            live: RefCell::default(),
            queue: RefCell::default(),
            role: Cell::new(Role::Plain),
            of_connections: Cell::default(),
            in_background: Cell::default(),
            ended: Cell::default(),
            is_closed: Cell::default(),
        }
    }
}

impl Tasks {
    /// The role of a task that is spawned now.
    pub(crate) fn role(&self) -> Role {
        self.role.get()
    }

    /// Counts the tasks of a role.
    fn count(&self, role: Role, change: isize) {
        let counter = match role {
            Role::Plain => return,
            Role::Connection => &self.of_connections,
            Role::Background => &self.in_background,
        };
        counter.set(counter.get().wrapping_add_signed(change));
    }

    /// Adds a new task, and queues it. If the runtime has ended, it ends the task.
    pub(crate) fn adopt(&self, task: Runnable) {
        if self.is_closed.get() {
            return super::end(&task);
        }
        let index = self.live.borrow_mut().insert(Arc::clone(&task));
        task.adopt(index);
        self.count(task.role(), 1);
        self.queue(task);
    }

    /// Queues a task that was woken.
    pub(crate) fn queue(&self, task: Runnable) {
        self.queue.borrow_mut().push_back(task);
    }

    /// Whether no task is queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// How many are alive.
    pub(crate) fn live(&self) -> usize {
        self.live.borrow().len()
    }

    /// Takes the next task from the queue, which must then be [`run`](Self::run).
    pub(crate) fn next(&self) -> Option<Runnable> {
        self.queue.borrow_mut().pop_front()
    }

    /// Runs a task once.
    pub(crate) fn run(&self, task: Runnable) {
        let index = task.index();
        self.role.set(task.role());
        let has_ended = super::run(task);
        self.role.set(Role::Plain);
        if has_ended {
            self.forget(index);
        }
    }

    /// Removes a task that has just ended from the list.
    fn forget(&self, index: usize) {
        let task = self.live.borrow_mut().remove(index);
        self.count(task.role(), -1);
        drop(task);
        if let Some(waiter) = self.ended.take() {
            // It looks at what is left.
            waiter.wake();
        }
    }

    /// How many of those that are awaited are alive. The future of `block_on` is not a task.
    pub(crate) fn left(&self, awaited: Awaited) -> usize {
        match awaited {
            Awaited::Tasks => self.live() - self.in_background.get(),
            Awaited::Connections => self.of_connections.get(),
        }
    }

    /// Ready when none of those that are awaited is alive.
    pub(crate) fn poll_ended(&self, awaited: Awaited, context: &Context<'_>) -> Poll<()> {
        if self.left(awaited) == 0 {
            return Poll::Ready(());
        }
        self.ended.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// From now on, new tasks are ended at once.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
    }

    /// Ends all tasks where they are. Returns false if there was none. Ending them may spawn new ones.
    pub(crate) fn end(&self) -> bool {
        let tasks: Vec<Runnable> = self.live.borrow_mut().drain().collect();
        self.of_connections.set(0);
        self.in_background.set(0);
        // Queued tasks are among them, or have ended.
        drop(self.queue.take());
        for task in &tasks {
            // What its destructors spawn is as the task is.
            self.role.set(task.role());
            super::end(task);
        }
        self.role.set(Role::Plain);
        !tasks.is_empty()
    }
}

#[cfg(all(test, ringloop_loom))]
mod model {
    use std::future::{pending, poll_fn};
    use std::panic::Location;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use loom::thread;

    use super::*;
    use crate::task::{self, Schedule};
    use ringloop_reactor::{
        Reactor, ReactorConfig,
        inbox::{Inbox, Sender},
    };

    /// A runtime of another thread.
    struct Owner(Sender<Runnable>);

    impl Schedule for Owner {
        fn schedule(self: &Arc<Self>, task: Runnable) {
            drop(self.0.send(task));
        }
    }

    /// Another thread wakes and aborts a task during its last poll, and the next task takes its place in the list. That
    /// one stays in the list until it ends itself.
    #[test]
    fn a_task_is_taken_off_the_list_once_whenever_it_is_woken() {
        let wake = Reactor::new(&ReactorConfig::default()).unwrap().waker();
        let late_turns = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&late_turns);
        loom::model(move || {
            let mut inbox = Inbox::new(wake.clone());
            let owner = Arc::new(Owner(inbox.sender()));
            let tasks = Tasks::default();
            let waking = Rc::new(Cell::new(None));
            let last_poll = {
                let waking = Rc::clone(&waking);
                poll_fn(move |context| {
                    let waker = context.waker().clone();
                    waking.set(Some(thread::spawn(move || waker.wake())));
                    // Perhaps before the task is over.
                    thread::yield_now();
                    Poll::Ready(())
                })
            };
            let (first, handle) = task::new::<(), _, _>(
                last_poll,
                Role::Plain,
                Arc::clone(&owner),
                Location::caller(),
            );
            tasks.adopt(first);
            let aborting = thread::spawn(move || handle.abort());
            tasks.run(tasks.next().unwrap());
            assert_eq!(tasks.live(), 0);
            let (second, _handle) =
                task::new::<(), _, _>(pending::<()>(), Role::Plain, owner, Location::caller());
            tasks.adopt(second);
            aborting.join().unwrap();
            if let Some(waking) = waking.take() {
                waking.join().unwrap();
            }
            let mut woken = Vec::new();
            inbox.receive(&mut woken);
            assert!(woken.len() <= 1, "queued twice");
            seen.fetch_add(woken.len(), Ordering::Relaxed);
            for task in woken {
                tasks.queue(task);
            }
            while let Some(task) = tasks.next() {
                tasks.run(task);
            }
            assert_eq!(tasks.live(), 1, "it is still alive");
            assert!(tasks.end());
            assert!(!tasks.end());
        });
        assert!(late_turns.load(Ordering::Relaxed) > 0);
    }
}
