//! Worker threads for the epoll backend, for operations that block.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::affinity;
use crate::emulation::{failure, perform};
use crate::parked::Parked;
use crate::sys;
use crate::token::Token;
use crate::waker::Waker;

/// The maximum number of threads for the files of a driver, whether they are its own or the kernel's. A file that
/// hangs, for instance on a server that does not answer, occupies one of them.
pub(crate) const THREADS_MAX: usize = 64;

/// How long an idle thread stays.
const IDLE_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Token, Parked)>,
    done: Vec<(Token, Parked, i32)>,
    threads: usize,
    idle: usize,
    /// How many threads are changing a file.
    changing: usize,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// A change of a file is done.
    finished: Condvar,
    waker: Waker,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code panics under the lock in the middle of a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worker threads. A worker owns an operation while it works on it, so nobody else can access its buffers.
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

impl Workers {
    pub(crate) fn new(waker: Waker) -> Workers {
        Workers {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                changed: Condvar::new(),
                finished: Condvar::new(),
                waker,
            }),
        }
    }

    /// Gives an operation to a worker.
    pub(crate) fn hire(&self, token: Token, parked: Parked) {
        let mut queue = self.shared.lock();
        queue.jobs.push_back((token, parked));
        if queue.idle >= queue.jobs.len() || queue.threads == THREADS_MAX {
            self.shared.changed.notify_one();
            return;
        }
        queue.threads += 1;
        drop(queue);
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new()
            .name("ringloop-file".to_owned())
            .spawn(move || work(&shared));
        if let Err(error) = spawned {
            let mut queue = self.shared.lock();
            queue.threads -= 1;
            // If there is another thread, the operation only waits longer. Without any, it fails with the error of the
            // spawn.
            if queue.threads == 0 {
                let jobs = std::mem::take(&mut queue.jobs);
                queue.done.extend(
                    jobs.into_iter()
                        .map(|(token, parked)| (token, parked, failure(&error))),
                );
                self.shared.waker.wake();
            }
        }
    }

    /// Takes back an operation that no worker has started.
    pub(crate) fn withdraw(&self, token: Token) -> Option<Parked> {
        let mut queue = self.shared.lock();
        let index = queue.jobs.iter().position(|(job, _)| *job == token)?;
        queue.jobs.remove(index).map(|(_, parked)| parked)
    }

    /// Drops the operations that have not begun, except for changes of files, and waits for up to `limit` until those are
    /// done. None may begin after the driver is gone: the number of a borrowed descriptor can belong to another file by then.
    pub(crate) fn finish_changes(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        // Dropped when the lock has been released.
        let mut dropped = Vec::new();
        let mut queue = self.shared.lock();
        for (token, mut parked) in std::mem::take(&mut queue.jobs) {
            if parked.get_mut().op.changes_storage() {
                queue.jobs.push_back((token, parked));
            } else {
                dropped.push(parked);
            }
        }
        while queue.changing > 0 || !queue.jobs.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self
                .shared
                .finished
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Takes the finished operations and their results.
    pub(crate) fn collect(&self) -> Vec<(Token, Parked, i32)> {
        std::mem::take(&mut self.shared.lock().done)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        let jobs = std::mem::take(&mut queue.jobs);
        let done = std::mem::take(&mut queue.done);
        self.shared.changed.notify_all();
        // Their buffers may be of the user's types, whose destructors may do anything.
        drop(queue);
        drop(jobs);
        for (_, parked, result) in done {
            discard(parked, result);
        }
    }
}

fn work(shared: &Shared) {
    affinity::unpin_thread();
    let mut queue = shared.lock();
    loop {
        if let Some((token, mut parked)) = queue.jobs.pop_front() {
            let changes = parked.get_mut().op.changes_storage();
            queue.changing += usize::from(changes);
            drop(queue);
            let result = perform(&mut parked);
            queue = shared.lock();
            if changes {
                queue.changing -= 1;
                shared.finished.notify_all();
            }
            if queue.closed {
                drop(queue);
                discard(parked, result);
                queue = shared.lock();
            } else {
                queue.done.push((token, parked, result));
                shared.waker.wake();
            }
            continue;
        }
        if queue.closed {
            break;
        }
        queue.idle += 1;
        let (guard, timeout) = shared
            .changed
            .wait_timeout(queue, IDLE_MAX)
            .unwrap_or_else(PoisonError::into_inner);
        queue = guard;
        queue.idle -= 1;
        if timeout.timed_out() && queue.jobs.is_empty() {
            break;
        }
    }
    queue.threads -= 1;
}

/// Drops a result that came after its driver was dropped. Closes it if it is a descriptor.
fn discard(parked: Parked, result: i32) {
    if parked.into_op().brings_descriptor() && result >= 0 {
        drop(sys::own_result(result));
    }
}
