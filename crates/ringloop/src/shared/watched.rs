//! The state of a watched descriptor, and those who wait for it.

use std::cell::{Cell, OnceCell};
use std::task::{Context, Poll};

use ringloop_driver::Readiness;
use ringloop_reactor::panics;

use super::waiters::{Seat, Waiters};

/// The state of a watched descriptor.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) readable: Cell<bool>,
    pub(crate) writable: Cell<bool>,
    /// A short read no longer means that nothing is left. Either the peer has finished sending, which is announced only
    /// once, perhaps together with the last data; or it has sent urgent data, at which a read ends.
    pub(crate) short_reads_leave: Cell<bool>,
    /// Whether bytes have moved since this was last asked, a bit for each of those who ask.
    pub(crate) moved: Cell<u8>,
    /// Counts the reads that brought something, for [`poll_rechecked`](Self::poll_rechecked).
    pub(crate) reads: Cell<u16>,
    /// Counts the reports of readiness, so that nobody takes a new one back (`Source::clear_ready`).
    pub(crate) reports: Cell<u16>,
    pub(crate) reader: Waiters,
    pub(crate) writer: Waiters,
    /// Which ends have been reached, a bit for each.
    reached: Cell<u8>,
    /// Those who wait for one. Most connections have none, and should be small.
    ends: OnceCell<Box<Waiters>>,
}

/// The ends that a connection has reached when both directions are closed.
const END_OF_ALL: u8 = End::Reading as u8 | End::Both as u8;

/// Those who ask whether bytes have moved, each for itself.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Observer {
    /// The server, for its idle timeout.
    Server = 1,
    /// HTTP, after a client has closed its direction.
    #[cfg(feature = "hyper")]
    Http = 2,
}

impl Observer {
    /// The bits of all of them.
    pub(crate) const ALL: u8 = u8::MAX;
}

/// An end of a connection that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    /// Of what the peer sends.
    Reading = 1,
    /// Of both directions.
    Both = 2,
    /// Of both directions, by a reset or another error that nobody has read yet.
    Failure = 4,
}

/// Whether one of those who may request a read has done so, and how many reads had brought something by then.
#[derive(Debug, Default)]
pub(crate) struct Asked(Option<u16>);

impl Watched {
    pub(crate) fn report(&self, readiness: Readiness) {
        self.reports.set(self.reports.get().wrapping_add(1));
        if readiness.is_read_closed() || readiness.is_error() || readiness.is_priority() {
            self.short_reads_leave.set(true);
        }
        if readiness.is_error() {
            self.reach(END_OF_ALL | End::Failure as u8);
        } else if readiness.is_hang_up() {
            self.reach(END_OF_ALL);
        } else if readiness.is_read_closed() {
            self.reach(End::Reading as u8);
        }
        let is_writable = readiness.is_writable();
        if is_writable {
            self.writable.set(true);
        }
        if readiness.is_readable() {
            self.readable.set(true);
            if is_writable {
                // If the reader's waker panics, the writer is woken all the same.
                panics::contain(|| self.reader.wake());
            } else {
                self.reader.wake();
            }
        }
        // Even if it counted as writable before: whoever sends to one of several receivers may wait all the same.
        if is_writable {
            self.writer.wake();
        }
    }

    /// Removes all wakers, when nothing can be reported any more.
    pub(crate) fn clear(&self) {
        self.reader.clear();
        self.writer.clear();
        if let Some(ends) = self.ends.get() {
            ends.clear();
        }
    }

    /// Whether bytes have moved, in either direction, since this observer last asked.
    pub(crate) fn take_moved(&self, observer: Observer) -> bool {
        let moved = self.moved.get();
        self.moved.set(moved & !(observer as u8));
        moved & observer as u8 != 0
    }

    /// Whether an end has been reached.
    pub(crate) fn has_reached(&self, end: End) -> bool {
        self.reached.get() & end as u8 != 0
    }

    /// Where those wait who want to know the end.
    pub(crate) fn ends(&self) -> &Waiters {
        self.ends.get_or_init(Box::default)
    }

    /// Removes the waker of one of them.
    pub(crate) fn leave(&self, seat: &Seat) {
        if let Some(ends) = self.ends.get() {
            ends.leave(seat);
        }
    }

    /// Notes that the watch has ended, so that nothing more will be reported.
    pub(crate) fn end(&self) {
        self.reach(END_OF_ALL);
    }

    /// Notes that ends have been reached. Wakes those who wait if one is new.
    fn reach(&self, ends: u8) {
        let before = self.reached.get();
        self.reached.set(before | ends);
        if self.reached.get() != before
            && let Some(ends) = self.ends.get()
        {
            // Even if a waker panics, others are woken.
            panics::contain(|| ends.wake());
        }
    }

    /// Ready if a read was tried since whoever has `asked` did so, and brought nothing; data may have arrived that was not
    /// reported yet. Otherwise wakes the reader and this task. If nobody reads, this takes one turn.
    pub(crate) fn poll_rechecked(&self, context: &mut Context<'_>, asked: &mut Asked) -> Poll<()> {
        let reads = self.reads.get();
        if asked.0.replace(reads) == Some(reads) {
            return Poll::Ready(());
        }
        self.readable.set(true);
        // Before the task that asks, which may be another one, and must not fail if the reader's waker panics.
        panics::contain(|| self.reader.wake());
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
