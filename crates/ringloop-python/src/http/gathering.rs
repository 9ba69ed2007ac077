//! Bodies of requests that are received as a whole: which, and how much memory they may take.
//!
//! The parts of a body otherwise pass through the loop's buffer one by one. Where it is known how much a view wants, they
//! are received into one `bytes` object, and the view is called once. That is so while a view waits in `read(size)`. It is
//! also so before a view is started, as long as the client doesn't pause, if views have lately read
//! all of such bodies: the view then finds the body complete, and doesn't wait.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

/// The longest part of a body that gets memory before it has come. A client can announce more without sending anything.
pub(super) const GATHERED_MAX: usize = 1024 * 1024;

/// The shortest: receiving less into the loop's buffer and copying it costs no more.
pub(super) const GATHERED_MIN: usize = 32 * 1024;

/// The most memory for bodies that no view has asked for yet.
const AHEAD_MAX: usize = 32 * 1024 * 1024;

/// glibc gives memory at the end of the heap back to the kernel once it is twice as long as the longest block that was
/// mapped and freed. Bodies of 1 MB would be given back nearly as often as they come, and each of their pages be made
/// again: that took a third of the time of a request. A block of this length, mapped and freed once, raises the limit to
/// 32 MB.
const MAPPED: usize = 31 * 1024 * 1024;

/// As many views must have read such bodies, since one has ignored its own, before others are received ahead of their views.
const READS_MIN: u8 = 4;

/// The state of a service.
#[derive(Default)]
pub(super) struct Gathering(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The memory for bodies that no view has asked for yet.
    ahead: AtomicUsize,
    /// Views that have read theirs, since one has ignored a body that was received ahead.
    reads: AtomicU8,
    /// The allocator keeps the memory of bodies.
    keeps_memory: AtomicBool,
}

impl Gathering {
    /// The memory for bodies that no view has asked for yet, in bytes.
    pub(super) fn ahead(&self) -> usize {
        self.0.ahead.load(Relaxed)
    }

    /// A view has ignored its body, which was received ahead: the next ones may not want theirs.
    pub(super) fn count_unread(&self) {
        self.0.reads.store(0, Relaxed);
    }

    /// A view has read a body.
    pub(super) fn count_read(&self) {
        let reads = self.0.reads.load(Relaxed);
        self.0.reads.store((reads + 1).min(READS_MIN), Relaxed);
        if reads < READS_MIN && !self.0.keeps_memory.swap(true, Relaxed) {
            let mut mapped = Vec::<u8>::new();
            // Without memory there is nothing to keep.
            let _ = mapped.try_reserve_exact(MAPPED);
            drop(black_box(mapped));
        }
    }

    /// Memory for a body that no view has asked for yet, unless views may not want it, or there is too much of that.
    pub(super) fn reserve(&self, length: usize) -> Option<Reserved> {
        let ahead = self.0.ahead.load(Relaxed) + length;
        if self.0.reads.load(Relaxed) < READS_MIN || ahead > AHEAD_MAX {
            return None;
        }
        // Requests may end in the threads of their views.
        self.0.ahead.fetch_add(length, Relaxed);
        Some(Reserved {
            shared: Arc::clone(&self.0),
            length,
        })
    }
}

/// Memory for a body that no view has asked for yet.
pub(super) struct Reserved {
    shared: Arc<Shared>,
    length: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shared.ahead.fetch_sub(self.length, Relaxed);
    }
}
