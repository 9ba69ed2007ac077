//! The windows that stdin asks for while a load rests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// One window with each line, and no more when stdin ends.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    asked: AtomicU64,
    ended: AtomicBool,
}

impl Windows {
    /// Reads stdin in a thread of its own.
    pub(crate) fn from_stdin() -> Arc<Self> {
        let windows = Arc::new(Self::default());
        let told = Arc::clone(&windows);
        thread::spawn(move || {
            for _ in io::stdin().lines().map_while(Result::ok) {
                told.asked.fetch_add(1, Ordering::Release);
            }
            told.ended.store(true, Ordering::Release);
        });
        windows
    }

    /// Whether more than `measured` windows have been asked for; `None` if there will be no more.
    pub(crate) fn wanted(&self, measured: u64) -> Option<bool> {
        // In this order: what was asked for before the end is still measured.
        let ended = self.ended.load(Ordering::Acquire);
        let wanted = self.asked.load(Ordering::Acquire) > measured;
        (wanted || !ended).then_some(wanted)
    }
}
