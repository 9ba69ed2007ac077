//! Callbacks from other threads: how the loop and the threads that post them share the GIL.
//!
//! The loop's thread needs the GIL. It waits 5 ms for the GIL if another thread does nothing but post, and much longer
//! if several do. By then tens of thousands of callbacks are queued ahead of timers and I/O. In asyncio each post
//! releases the GIL, because it is a system call: whoever waits for it often gets it then. Here threads may post
//! [`POSTS_PER_TURN`] callbacks in a turn as fast as they can, and go on for [`POSTING_NS`]. A thread that posts even
//! more gives the GIL away now and then:
//!
//! - The loop says when it has woken and waits for the GIL. Then the thread sleeps until the loop has it.
//! - Otherwise the loop is in a callback. If the interpreter has taken the GIL away from it, it waits for the GIL. If the
//!   callback has released the GIL, it may well wait for the very thread that posts, or for a lock that this thread
//!   holds. Nobody can tell the two apart from outside. So the thread leaves the GIL free for a moment, and stays awake.
//!   Where that has let the loop go on, threads sleep the next time, to leave it the CPU as well. They stop doing so when
//!   it doesn't help, and no thread does it twice before the loop has gone on.
//!
//! So nobody sleeps while the loop doesn't run, nor while a callback takes long without the GIL.
//!
//! On a free-threaded interpreter the loop needs nobody's leave to run, and threads post as fast as they can.

use std::cell::Cell;
use std::hint;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use ringloop_reactor::clock;

use crate::metrics::Meter;

/// How many callbacks run between two looks at the timers and the kernel.
pub(crate) const CALLBACKS_PER_LOOK: usize = 1024;

/// How many callbacks may be posted during one turn before the clock is read: as many as run between two looks at timers
/// and I/O.
const POSTS_PER_TURN: u64 = CALLBACKS_PER_LOOK as u64;
/// For how long threads may post after that before they give the GIL away. What they post in this time runs in about as
/// long. A sleep takes 0.1 ms, so that one after every 1,024 callbacks would take as long as all else.
const POSTING_NS: u64 = 1_000_000;
/// The number of callbacks after which the clock is read, and the GIL given away.
const POSTS_PER_GIFT: u64 = 16;
/// How long a thread that stays awake leaves the GIL free: about as long as it takes to wake another thread.
const OFFER_NS: u64 = 50_000;
/// After `OFFERS_MAX` offers in vain, the loop can't be waiting for the GIL. Only one in `RARELY` is made from then on.
const OFFERS_MAX: u64 = 100;
const RARELY: u64 = 16;
/// A sleep is as many naps as it needs. The kernel adds 50 us to each.
const NAP: Duration = Duration::from_micros(50);
/// The longest sleep if the loop is known to wait for the GIL: other threads may keep it until then.
const SLEEP_NS_MAX: u64 = 5_000_000;
/// The longest sleep if it only seems to.
const DOUBTFUL_SLEEP_NS_MAX: u64 = 2_000_000;
/// Threads sleep in doubt while there is trust that this helps. Each time that it has helped adds one, up to this.
const TRUST_MAX: u64 = 16;
/// The trust that a sleep in vain takes away. It may just have been too short: other threads want the GIL and the CPU,
/// too.
const TRUST_LOST: u64 = 1;

// The clock is read at the last of them.
const _: () = assert!(POSTS_PER_TURN.is_multiple_of(POSTS_PER_GIFT));

thread_local! {
    /// The loop for which this thread last slept in doubt, and how much that had run then.
    static SLEPT_AT: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// The callbacks that have been posted to a loop. Written under the GIL, except for `wants_gil`; not used without one.
#[derive(Default)]
pub(crate) struct Posting {
    /// The turn that the loop was in at the last post, how many callbacks were posted in it, and until when threads may
    /// post more of them.
    turn: AtomicU64,
    posts: AtomicU64,
    until_ns: AtomicU64,
    /// The loop's thread has woken, and doesn't have the GIL yet.
    wants_gil: AtomicBool,
    /// How much the loop had run when a thread last gave the GIL away, and how often threads have done so since.
    progress: AtomicU64,
    gifts: AtomicU64,
    /// How much can be expected of a sleep in doubt.
    trust: AtomicU64,
}

impl Posting {
    /// Counts a callback that another thread has queued, and may have that thread give the GIL away.
    #[inline]
    pub(crate) fn posted(&self, py: Python<'_>, meter: &Meter, is_running: impl FnOnce() -> bool) {
        let turn = meter.turns();
        let posts = if self.turn.load(Relaxed) == turn {
            self.posts.load(Relaxed) + 1
        } else {
            self.turn.store(turn, Relaxed);
            1
        };
        self.posts.store(posts, Relaxed);
        if posts >= POSTS_PER_TURN && posts.is_multiple_of(POSTS_PER_GIFT) {
            let now_ns = clock::now_ns();
            if posts == POSTS_PER_TURN {
                self.until_ns.store(now_ns + POSTING_NS, Relaxed);
            } else if now_ns >= self.until_ns.load(Relaxed) && is_running() {
                self.give_gil(py, meter, now_ns);
            }
        }
    }

    #[cold]
    fn give_gil(&self, py: Python<'_>, meter: &Meter, now_ns: u64) {
        if self.wants_gil.load(Relaxed) {
            py.detach(|| self.sleep_until_gil_is_taken(now_ns));
            return;
        }
        let progress = meter.progress();
        if self.progress.swap(progress, Relaxed) != progress {
            self.gifts.store(0, Relaxed);
        }
        let gifts = self.gifts.load(Relaxed);
        self.gifts.store(gifts + 1, Relaxed);
        let here = (ptr::from_ref(self).addr(), progress);
        let sleeps = self.trust.load(Relaxed) > 0 && SLEPT_AT.get() != here;
        let goes_on = || meter.progress() != progress;
        if sleeps {
            SLEPT_AT.set(here);
            py.detach(|| {
                while !goes_on() && clock::now_ns() - now_ns < DOUBTFUL_SLEEP_NS_MAX {
                    thread::sleep(NAP);
                }
            });
        } else if gifts < OFFERS_MAX || gifts.is_multiple_of(RARELY) {
            py.detach(|| {
                while !goes_on() && clock::now_ns() - now_ns < OFFER_NS {
                    hint::spin_loop();
                }
            });
        }
        let trust = self.trust.load(Relaxed);
        if goes_on() {
            self.trust.store((trust + 1).min(TRUST_MAX), Relaxed);
        } else if sleeps {
            self.trust.store(trust.saturating_sub(TRUST_LOST), Relaxed);
        }
    }

    /// Whether the loop's thread has woken, and waits for the GIL.
    #[inline]
    pub(crate) fn loop_wants_gil(&self) -> bool {
        self.wants_gil.load(Relaxed)
    }

    /// Lets the loop's thread have the GIL, for a thread that would keep it otherwise.
    pub(crate) fn let_loop_run(&self, py: Python<'_>) {
        py.detach(|| self.sleep_until_gil_is_taken(clock::now_ns()));
    }

    fn sleep_until_gil_is_taken(&self, now_ns: u64) {
        while self.wants_gil.load(Relaxed) {
            if clock::now_ns() - now_ns >= SLEEP_NS_MAX {
                // The next post is not to sleep in vain as well. In a forked child the loop's thread may not even exist.
                self.wants_gil.store(false, Relaxed);
                return;
            }
            thread::sleep(NAP);
        }
    }

    /// The loop's thread waits for the GIL from now on.
    #[inline]
    pub(crate) fn want_gil(&self) {
        self.wants_gil.store(true, Relaxed);
    }

    /// The loop's thread has the GIL.
    #[inline]
    pub(crate) fn got_gil(&self) {
        self.wants_gil.store(false, Relaxed);
    }
}
