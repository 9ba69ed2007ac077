//! Passes values from other threads to the reactor's thread.
//!
//! An [`Inbox`] belongs to the thread that runs the reactor; any number of [`Sender`]s push to it. Waking a thread
//! costs a system call and, if its CPU has gone to sleep, tens of microseconds until it runs. So a sender wakes the
//! reactor only if that has announced by [`Inbox::prepare_wait`] that it is about to wait. While the loop is busy,
//! sending is just a push.

use std::fmt;
use std::sync::{Arc, PoisonError};

#[cfg(ringloop_loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(ringloop_loom)]
use loom::sync::{Mutex, MutexGuard};
use ringloop_driver::Waker;

use crate::panics;
#[cfg(not(ringloop_loom))]
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(ringloop_loom))]
use std::sync::{Mutex, MutexGuard};

/// The receiving end, owned by the event loop.
///
/// ```
/// use ringloop_reactor::inbox::Inbox;
/// use ringloop_reactor::{Reactor, ReactorConfig};
///
/// let mut reactor = Reactor::new(&ReactorConfig::default())?;
/// let mut inbox = Inbox::new(reactor.waker());
/// let sender = inbox.sender();
/// let thread = std::thread::spawn(move || sender.send("hello"));
///
/// let (mut events, mut messages) = (Vec::new(), Vec::new());
/// while messages.is_empty() {
///     if inbox.prepare_wait() {
///         reactor.turn(None, &mut events)?;
///     }
///     inbox.receive(&mut messages);
/// }
/// assert_eq!(messages, ["hello"]);
/// # thread.join().unwrap().unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
}

/// A sending end. Clone it to send from several threads.
#[derive(Debug)]
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The inbox is gone. Contains the value that could not be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

#[derive(Debug)]
struct Shared<T> {
    mailbox: Mailbox<T>,
    waker: Waker,
}

/// The values that were not received yet, and whether the receiver must be woken for them.
///
/// Public only for the models of other crates (`make test-loom`), whose receiver does not wait in the kernel.
#[doc(hidden)]
#[derive(Debug)]
pub struct Mailbox<T> {
    state: Mutex<State<T>>,
    /// Whether `state.values` has values, so that checking an empty inbox takes no lock. Only a hint: before it sleeps,
    /// the receiver checks under the lock.
    pending: AtomicBool,
    /// The receiver has found nothing and waits, or is about to. Set under the lock, so that it is ordered with the
    /// values; cleared without it, because an unnecessary wake does no harm.
    waiting: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    values: Vec<T>,
    closed: bool,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                values: Vec::new(),
                closed: false,
            }),
            pending: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
        }
    }
}

impl<T> Mailbox<T> {
    /// The lock is held only to move a few words, so it is not poisoned unless an allocation fails, and even then the
    /// state is consistent.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a value. Returns true if the caller must wake the receiver.
    pub fn push(&self, value: T) -> Result<bool, SendError<T>> {
        let mut state = self.lock();
        if state.closed {
            return Err(SendError(value));
        }
        state.values.push(value);
        self.pending.store(true, Ordering::Release);
        // The receiver announces its wait under the same lock. So either it saw this value then, or the announcement is
        // visible here.
        Ok(self.waiting.swap(false, Ordering::Relaxed))
    }

    /// See [`Inbox::receive`].
    pub fn receive(&self, values: &mut Vec<T>) {
        self.waiting.store(false, Ordering::Relaxed);
        if !self.pending.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.lock();
        self.pending.store(false, Ordering::Relaxed);
        if values.is_empty() {
            // Swaps the vectors: no copy, and each keeps its memory for the next time.
            std::mem::swap(&mut state.values, values);
        } else {
            values.append(&mut state.values);
        }
    }

    /// See [`Inbox::prepare_wait`].
    pub fn prepare_wait(&self) -> bool {
        let state = self.lock();
        let nothing = state.values.is_empty();
        self.waiting.store(nothing, Ordering::Relaxed);
        nothing
    }

    /// Accepts no more values.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let values = std::mem::take(&mut state.values);
        // The values' destructors may send, so they run after the lock is released. They may panic, too.
        drop(state);
        panics::discard_each(values);
    }
}

impl<T> Inbox<T> {
    /// Creates an inbox whose senders wake a reactor by `waker`, which comes from
    /// [`Reactor::waker`](crate::Reactor::waker).
    pub fn new(waker: Waker) -> Self {
        let shared = Shared {
            mailbox: Mailbox::default(),
            waker,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Creates a sending end.
    pub fn sender(&self) -> Sender<T> {
        Sender {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Appends all values that have arrived to `values`, in the order in which they were sent. Costs one load from
    /// memory if there are none.
    pub fn receive(&mut self, values: &mut Vec<T>) {
        self.shared.mailbox.receive(values);
    }

    /// Announces a wait. Returns true if there are no values: the next one will wake the reactor, even if it does not
    /// wait yet. Returns false if values have arrived and there is no need to wait.
    ///
    /// Call it directly before [`Reactor::turn`](crate::Reactor::turn).
    pub fn prepare_wait(&mut self) -> bool {
        self.shared.mailbox.prepare_wait()
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.shared.mailbox.close();
    }
}

impl<T> Sender<T> {
    /// Sends a value, and wakes the reactor if it has announced a wait.
    ///
    /// It blocks at most for as long as another thread takes to move a few words. The number of values is not limited.
    ///
    /// # Errors
    /// Returns the value in a [`SendError`] if the inbox has been dropped.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.shared.mailbox.push(value)? {
            self.shared.waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SendError(..)")
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the loop that this value was sent to has ended")
    }
}

impl<T> std::error::Error for SendError<T> {}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;
    use crate::reactor::{Reactor, ReactorConfig};
    use std::sync::atomic::AtomicU32;
    use std::thread;

    fn reactor() -> Reactor {
        Reactor::new(&ReactorConfig::default()).expect("a reactor can be made")
    }

    #[test]
    fn values_arrive_in_the_order_in_which_they_were_sent() {
        let mut inbox = Inbox::new(reactor().waker());
        let sender = inbox.sender();
        let mut values = Vec::new();
        inbox.receive(&mut values);
        assert_eq!(values, []);
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        inbox.receive(&mut values);
        sender.send(3).unwrap();
        inbox.receive(&mut values);
        assert_eq!(values, [1, 2, 3]);
    }

    #[test]
    fn a_wait_is_announced_only_when_there_is_nothing() {
        let mut inbox = Inbox::new(reactor().waker());
        assert!(inbox.prepare_wait());
        inbox.sender().send(()).unwrap();
        assert!(!inbox.prepare_wait());
        inbox.receive(&mut Vec::new());
        assert!(inbox.prepare_wait());
    }

    #[test]
    fn a_value_sent_between_the_announcement_and_the_wait_ends_the_wait() {
        let mut reactor = reactor();
        let mut inbox = Inbox::new(reactor.waker());
        assert!(inbox.prepare_wait());
        inbox.sender().send(7).unwrap();
        // Would never return without the wake.
        reactor.turn(None, &mut Vec::new()).unwrap();
        let mut values = Vec::new();
        inbox.receive(&mut values);
        assert_eq!(values, [7]);
    }

    #[test]
    fn nothing_is_lost_between_many_senders_and_a_receiver_that_sleeps() {
        const SENDERS: usize = 4;
        const EACH: usize = if cfg!(miri) { 10 } else { 5_000 };
        let mut reactor = reactor();
        let mut inbox = Inbox::new(reactor.waker());
        let threads: Vec<_> = (0..SENDERS)
            .map(|sender_index| {
                let sender = inbox.sender();
                thread::spawn(move || {
                    for index in 0..EACH {
                        sender
                            .send((sender_index, index))
                            .expect("the inbox is alive");
                        if index % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0; SENDERS];
        let (mut values, mut events) = (Vec::new(), Vec::new());
        while next.iter().sum::<usize>() < SENDERS * EACH {
            if inbox.prepare_wait() {
                reactor.turn(None, &mut events).unwrap();
            }
            inbox.receive(&mut values);
            for (sender, index) in values.drain(..) {
                assert_eq!(index, next[sender], "sender {sender} was reordered");
                next[sender] += 1;
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }

    /// Of several destructors that panic, the second would end the process if they ran as one.
    #[test]
    fn values_whose_destructors_panic_are_dropped_with_the_inbox() {
        struct Bomb<'a>(&'a AtomicU32);
        impl Drop for Bomb<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
                panic!("a destructor that panics, on purpose");
            }
        }
        let dropped = AtomicU32::new(0);
        let inbox = Inbox::new(reactor().waker());
        for _ in 0..3 {
            inbox.sender().send(Bomb(&dropped)).unwrap();
        }
        drop(inbox);
        assert_eq!(dropped.into_inner(), 3);
    }

    #[test]
    fn a_value_for_an_inbox_that_is_gone_comes_back() {
        let inbox = Inbox::new(reactor().waker());
        let sender = inbox.sender();
        let value = Arc::new(());
        sender.send(Arc::clone(&value)).unwrap();
        drop(inbox);
        assert_eq!(
            Arc::strong_count(&value),
            1,
            "a value that nobody received is dropped"
        );
        let SendError(returned) = sender.send(value).unwrap_err();
        assert_eq!(Arc::strong_count(&returned), 1);
    }
}

#[cfg(all(test, ringloop_loom))]
mod model {
    use super::*;
    use loom::sync::{Arc, Notify};
    use loom::thread;

    /// A receiver that sleeps whenever it may gets what two threads send. A lost wake is a deadlock.
    #[test]
    fn no_value_is_left_behind_and_no_wake_is_lost() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::default());
            let wake = Arc::new(Notify::new());
            let senders: Vec<_> = (1..=2)
                .map(|value| {
                    let (mailbox, wake) = (Arc::clone(&mailbox), Arc::clone(&wake));
                    thread::spawn(move || {
                        if mailbox.push(value).unwrap() {
                            wake.notify();
                        }
                    })
                })
                .collect();
            let mut values = Vec::new();
            while values.len() < 2 {
                if mailbox.prepare_wait() {
                    wake.wait();
                }
                mailbox.receive(&mut values);
            }
            assert_eq!(values.iter().sum::<i32>(), 3);
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }

    /// A value that is sent while the receiver is dropped is either dropped or returned.
    #[test]
    fn a_value_for_a_receiver_that_goes_is_not_lost() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::default());
            let value = Arc::new(());
            let sender = {
                let (mailbox, value) = (Arc::clone(&mailbox), Arc::clone(&value));
                thread::spawn(move || drop(mailbox.push(value)))
            };
            mailbox.close();
            sender.join().unwrap();
            assert_eq!(Arc::strong_count(&value), 1);
        });
    }
}
