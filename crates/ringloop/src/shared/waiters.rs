//! The futures that wait for one direction of a source.

use std::borrow::Borrow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::task::{Context, Waker};

use ringloop_reactor::panics;

/// The ticket of the seat that is not shared.
const ALONE: u64 = u64::MAX;

/// The wakers of those who wait, each in a seat.
#[derive(Default)]
pub(crate) struct Waiters {
    alone: Cell<Option<Waker>>,
    /// Used only by sources that several futures wait for. A connection has none, and should be small.
    others: Cell<Option<Box<Queue>>>,
}

/// The waiting futures of a shared source, in the order in which they came.
#[derive(Default)]
struct Queue {
    last_ticket: u64,
    waiting: VecDeque<(u64, Waker)>,
}

impl Queue {
    fn find(&self, ticket: u64) -> Option<usize> {
        self.waiting
            .binary_search_by_key(&ticket, |(ticket, _)| *ticket)
            .ok()
    }
}

/// The place of one waiting future.
#[derive(Debug)]
pub(crate) struct Seat(Cell<u64>);

impl Seat {
    /// For a direction in which one future waits at a time: the latest one takes the seat.
    pub(crate) const fn alone() -> Self {
        Self(Cell::new(ALONE))
    }

    /// For one future of several.
    pub(crate) const fn beside_others() -> Self {
        Self(Cell::new(0))
    }
}

impl Waiters {
    /// Stores the task's waker in a seat, unless it is there already.
    pub(crate) fn register(&self, seat: &Seat, context: &Context<'_>) {
        if seat.0.get() != ALONE {
            return self.register_beside_others(seat, context);
        }
        let waker = match self.alone.take() {
            Some(waker) if waker.will_wake(context.waker()) => waker,
            _ => context.waker().clone(),
        };
        self.alone.set(Some(waker));
    }

    fn register_beside_others(&self, seat: &Seat, context: &Context<'_>) {
        // Cloning runs the user's code, which may call back into this, so nothing is taken yet.
        let mut waker = context.waker().clone();
        let mut queue = self.others.take().unwrap_or_default();
        if let Some(place) = queue.find(seat.0.get()) {
            std::mem::swap(&mut queue.waiting[place].1, &mut waker);
        } else {
            queue.last_ticket += 1;
            seat.0.set(queue.last_ticket);
            queue.waiting.push_back((queue.last_ticket, waker));
            return self.others.set(Some(queue));
        }
        self.others.set(Some(queue));
        drop(waker);
    }

    /// Removes the waker from a seat.
    pub(crate) fn leave(&self, seat: &Seat) {
        if seat.0.get() == ALONE {
            return drop(self.alone.take());
        }
        let Some(mut queue) = self.others.take() else {
            return;
        };
        let place = queue.find(seat.0.get());
        let waker = place.and_then(|place| queue.waiting.remove(place));
        self.others.set(Some(queue));
        drop(waker);
    }

    /// Removes all wakers.
    pub(crate) fn clear(&self) {
        panics::discard(self.alone.take());
        if let Some(queue) = self.others.take() {
            panics::discard_each(queue.waiting);
        }
    }

    /// Wakes all who wait, and empties their seats. Of several who share a source, all are woken even if a waker panics.
    pub(crate) fn wake(&self) {
        let alone = self.alone.take();
        let others = self.others.take();
        if others.is_none() {
            if let Some(waker) = alone {
                waker.wake();
            }
            return;
        }
        self.others.set(others);
        if let Some(waker) = alone {
            panics::contain(|| waker.wake());
        }
        let mut last_ticket = None;
        while let Some(mut queue) = self.others.take() {
            // Whoever comes back meanwhile waits for the next wake.
            let last_ticket = *last_ticket.get_or_insert(queue.last_ticket);
            let is_due = |(ticket, _): &(u64, Waker)| *ticket <= last_ticket;
            let next = match queue.waiting.front() {
                Some(next) if is_due(next) => queue.waiting.pop_front(),
                _ => None,
            };
            self.others.set(Some(queue));
            let Some((_, waker)) = next else { return };
            panics::contain(|| waker.wake());
        }
    }
}

/// A future's wait in a seat, which the future brings along or which is kept for it. Dropping this removes its waker.
pub(crate) struct Waiting<'w, S: Borrow<Seat> = Seat> {
    waiters: &'w Waiters,
    seat: S,
}

impl<'w, S: Borrow<Seat>> Waiting<'w, S> {
    pub(crate) fn new(waiters: &'w Waiters, seat: S) -> Self {
        Self { waiters, seat }
    }

    pub(crate) fn seat(&self) -> &Seat {
        self.seat.borrow()
    }
}

impl<S: Borrow<Seat>> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        self.waiters.leave(self.seat.borrow());
    }
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Counter {
        fn wait(self: &Arc<Self>, waiters: &Waiters, seat: &Seat) {
            let waker = Waker::from(Arc::clone(self));
            waiters.register(seat, &Context::from_waker(&waker));
        }

        fn take(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    #[test]
    fn all_are_woken_once_and_nothing_is_left_of_them() {
        let waiters = Waiters::default();
        let counter = Arc::new(Counter::default());
        let seats: Vec<_> = (0..5).map(|_| Seat::beside_others()).collect();
        for _ in 0..3 {
            for seat in seats.iter().chain([&Seat::alone()]) {
                counter.wait(&waiters, seat);
                counter.wait(&waiters, seat);
            }
            assert_eq!(Arc::strong_count(&counter), 7);
            waiters.wake();
            assert_eq!((counter.take(), Arc::strong_count(&counter)), (6, 1));
            waiters.wake();
            assert_eq!(counter.take(), 0);
        }
    }

    #[test]
    fn who_leaves_is_not_woken_and_disturbs_nobody() {
        let waiters = Waiters::default();
        let counters: [_; 6] = std::array::from_fn(|_| Arc::new(Counter::default()));
        let seats: Vec<_> = (0..6).map(|_| Seat::beside_others()).collect();
        for gone in 0..6 {
            for (counter, seat) in counters.iter().zip(&seats) {
                counter.wait(&waiters, seat);
            }
            for _ in 0..2 {
                // The second time, nothing is there.
                waiters.leave(&seats[gone]);
            }
            assert_eq!(Arc::strong_count(&counters[gone]), 1);
            waiters.wake();
            for (index, counter) in counters.iter().enumerate() {
                assert_eq!(counter.take(), usize::from(index != gone));
            }
            // The seats are empty by now.
            waiters.leave(&seats[gone]);
        }
        counters[0].wait(&waiters, &Seat::alone());
        waiters.leave(&Seat::alone());
        assert_eq!(Arc::strong_count(&counters[0]), 1);
    }

    #[test]
    fn who_comes_with_another_waker_is_woken_by_that_one() {
        let waiters = Waiters::default();
        let (first, second) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
        for seat in [Seat::alone(), Seat::beside_others()] {
            first.wait(&waiters, &seat);
            second.wait(&waiters, &seat);
            assert_eq!(Arc::strong_count(&first), 1);
            waiters.wake();
            assert_eq!((first.take(), second.take()), (0, 1));
        }
    }

    /// A waker that registers again when it is used.
    struct Persistent {
        waiters: Rc<Waiters>,
        seats: [Seat; 2],
        times: Cell<u32>,
    }

    thread_local!(static PERSISTENT: Cell<Option<Rc<Persistent>>> = const { Cell::new(None) });

    struct WaitAgain;

    impl Wake for WaitAgain {
        fn wake(self: Arc<Self>) {
            let this = PERSISTENT.take().unwrap();
            PERSISTENT.set(Some(Rc::clone(&this)));
            this.times.set(this.times.get() + 1);
            let waker = Waker::from(self);
            for seat in &this.seats {
                this.waiters.leave(seat);
                this.waiters.register(seat, &Context::from_waker(&waker));
            }
        }
    }

    #[test]
    fn who_waits_again_at_once_is_woken_the_next_time() {
        let this = Rc::new(Persistent {
            waiters: Rc::default(),
            seats: [Seat::beside_others(), Seat::beside_others()],
            times: Cell::new(0),
        });
        PERSISTENT.set(Some(Rc::clone(&this)));
        Arc::new(WaitAgain).wake();
        this.waiters.wake();
        // The first one to be woken removes the other from its seat, and registers it again for the next wake.
        assert_eq!(this.times.get(), 2);
        this.waiters.wake();
        assert_eq!(this.times.get(), 3);
        PERSISTENT.take();
    }
}
