//! Callbacks from other threads: how they wake the loop, and how the threads that post them give way to it.
//!
//! The loop's thread needs the GIL. From a thread that does nothing but post it gets the GIL after 5 ms, from several such
//! threads one time in many; by then tens of thousands of callbacks are queued, and timers and I/O stand behind them. In
//! asyncio each post releases the GIL, because it is a system call. Here threads may post [`POSTS_PER_TURN`] callbacks in a
//! turn as fast as they can. Who posts more rests now and then, without the GIL, until the loop's next turn.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::event_loop::Loop;
use crate::turn::{self, CALLBACKS_PER_LOOK};

/// So many callbacks may be posted while the loop makes one turn: as many as it runs between two looks at timers and I/O.
const POSTS_PER_TURN: u64 = CALLBACKS_PER_LOOK as u64;
/// After that, one thread rests at each so many callbacks.
const POSTS_PER_REST: u64 = 16;
/// The longest rest. The callback that runs may wait for the very thread that rests.
const REST_MAX: Duration = Duration::from_millis(20);
/// Where no rest helps, one thread takes a nap at each so many callbacks, so that others get the GIL. That costs a post what
/// asyncio's system call does.
const POSTS_PER_NAP: u64 = 32;
/// How long a nap is; a rest is as many of them as it needs. The kernel adds 50 us.
const NAP: Duration = Duration::from_micros(50);

/// What has been posted to a loop. Written under the GIL.
#[derive(Default)]
pub(crate) struct Posting {
    /// The turn that the loop was in at the last post, and how many callbacks were posted in it.
    turn: AtomicU64,
    posts: AtomicU64,
    /// How many callbacks the loop had run, and one more, when it ran none during a rest: the one that it is in takes long.
    stuck_at: AtomicU64,
}

/// To be called when `call_soon_threadsafe` has queued a callback. Wakes the loop, and may give way to it.
#[inline]
pub(crate) fn posted(py: Python<'_>, this: &Loop) {
    // The queue and this flag change under the GIL: a loop that isn't waiting yet sees the callback first.
    if this.waiting.load(Relaxed) {
        this.wake(py);
    }
    if this.runs_here() {
        return;
    }
    let posting = &this.posting;
    let turn = this.meter.turns();
    let posts = if posting.turn.load(Relaxed) == turn {
        posting.posts.load(Relaxed) + 1
    } else {
        posting.turn.store(turn, Relaxed);
        1
    };
    posting.posts.store(posts, Relaxed);
    if posts > POSTS_PER_TURN && posts.is_multiple_of(POSTS_PER_REST) {
        give_way(py, this, posts);
    }
}

/// Sleeps without the GIL, so that the loop's thread gets it.
#[cold]
fn give_way(py: Python<'_>, this: &Loop, posts: u64) {
    let (turn, ran) = (this.meter.turns(), this.meter.callbacks());
    let is_stuck = this.posting.stuck_at.load(Relaxed) == ran + 1;
    // A thread that runs a loop of its own has others waiting for it.
    if !this.is_running() || is_stuck || turn::is_inside_loop() {
        if posts.is_multiple_of(POSTS_PER_NAP) {
            py.detach(|| thread::sleep(NAP));
        }
        return;
    }
    py.detach(|| {
        let begin = Instant::now();
        while this.meter.turns() == turn && this.is_running() && begin.elapsed() < REST_MAX {
            thread::sleep(NAP);
        }
    });
    if this.meter.callbacks() == ran {
        this.posting.stuck_at.store(ran + 1, Relaxed);
    }
}
