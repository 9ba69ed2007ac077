//! Callbacks from other threads: how they wake the loop, and how the threads that post them give way to it.
//!
//! The loop's thread needs the GIL. It waits 5 ms for the GIL if another thread does nothing but post, and much longer
//! if several do. By then tens of thousands of callbacks are queued ahead of timers and I/O. In asyncio each post
//! releases the GIL, because it is a system call. Here threads may post [`POSTS_PER_TURN`] callbacks in a turn as fast
//! as they can, and go on for [`POSTING_NS`]. A thread that posts even more rests now and then, without the GIL, until
//! the loop's next turn.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringloop::clock;

use crate::metrics::Meter;

/// How many callbacks run between two looks at the timers and the kernel.
pub(crate) const CALLBACKS_PER_LOOK: usize = 1024;

/// How many callbacks may be posted during one turn before the clock is read: as many as run between two looks at timers
/// and I/O.
const POSTS_PER_TURN: u64 = CALLBACKS_PER_LOOK as u64;
/// For how long threads may post after that before they rest. What they post in this time runs in about as long. A rest
/// takes 0.1 ms, so that one after every 1,024 callbacks would take as long as all else.
const POSTING_NS: u64 = 1_000_000;
/// The clock is read, and a thread rests, at every so many callbacks.
const POSTS_PER_REST: u64 = 16;
/// The longest rest. The callback that runs may wait for the very thread that rests.
const REST_MAX: Duration = Duration::from_millis(20);
/// If resting doesn't help, a thread naps at every so many callbacks, so that others get the GIL. On average a post
/// then costs as much as asyncio's, which is a system call.
const POSTS_PER_NAP: u64 = 32;
/// How long a nap is; a rest is as many of them as it needs. The kernel adds 50 us.
const NAP: Duration = Duration::from_micros(50);

// The clock is read at the last of them.
const _: () = assert!(POSTS_PER_TURN.is_multiple_of(POSTS_PER_REST));

/// What has been posted to a loop. Written under the GIL.
#[derive(Default)]
pub(crate) struct Posting {
    /// The turn that the loop was in at the last post, how many callbacks were posted in it, and until when threads may
    /// post more of them.
    turn: AtomicU64,
    posts: AtomicU64,
    until_ns: AtomicU64,
    /// One more than the number of callbacks that the loop had run when it ran none during a rest: the current one
    /// takes long.
    stuck_at: AtomicU64,
}

impl Posting {
    /// Counts a callback that another thread has queued, and may have that thread give way to the loop.
    #[inline]
    pub(crate) fn posted(
        &self,
        py: Python<'_>,
        meter: &Meter,
        is_running: impl Fn() -> bool + Sync,
    ) {
        let turn = meter.turns();
        let posts = if self.turn.load(Relaxed) == turn {
            self.posts.load(Relaxed) + 1
        } else {
            self.turn.store(turn, Relaxed);
            1
        };
        self.posts.store(posts, Relaxed);
        if posts >= POSTS_PER_TURN && posts.is_multiple_of(POSTS_PER_REST) {
            let now_ns = clock::now_ns();
            if posts == POSTS_PER_TURN {
                self.until_ns.store(now_ns + POSTING_NS, Relaxed);
            } else if now_ns >= self.until_ns.load(Relaxed) {
                self.give_way(py, meter, posts, is_running);
            }
        }
    }

    /// Sleeps without the GIL, so that the loop's thread gets it.
    #[cold]
    fn give_way(
        &self,
        py: Python<'_>,
        meter: &Meter,
        posts: u64,
        is_running: impl Fn() -> bool + Sync,
    ) {
        let (turn, ran) = (meter.turns(), meter.callbacks());
        let is_stuck = self.stuck_at.load(Relaxed) == ran + 1;
        // A thread that runs a loop of its own has others waiting for it.
        if !is_running() || is_stuck || is_inside_loop() {
            if posts.is_multiple_of(POSTS_PER_NAP) {
                py.detach(|| thread::sleep(NAP));
            }
            return;
        }
        py.detach(|| {
            let begin = Instant::now();
            while meter.turns() == turn && is_running() && begin.elapsed() < REST_MAX {
                thread::sleep(NAP);
            }
        });
        if meter.callbacks() == ran {
            self.stuck_at.store(ran + 1, Relaxed);
        }
    }
}

thread_local! {
    /// How many loops this thread runs, one inside of a callback of another.
    static LOOPS: Cell<u32> = const { Cell::new(0) };
}

/// While this exists, its thread runs a loop.
pub(crate) struct InsideLoop;

impl InsideLoop {
    pub(crate) fn new() -> Self {
        LOOPS.set(LOOPS.get() + 1);
        Self
    }
}

impl Drop for InsideLoop {
    fn drop(&mut self) {
        LOOPS.set(LOOPS.get() - 1);
    }
}

/// Whether this thread runs any loop.
fn is_inside_loop() -> bool {
    LOOPS.get() > 0
}
