//! Waking a poller from another thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

#[cfg(all(test, ringloop_loom))]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(all(test, ringloop_loom)))]
use std::sync::atomic::{AtomicU8, Ordering};

use crate::process;
use crate::sys;

/// The poller runs, and was not woken since its last poll.
const AWAKE: u8 = 0;
/// The poller sleeps in the kernel, or is about to.
const ASLEEP: u8 = 1;
/// The poller was woken.
const NOTIFIED: u8 = 2;

#[derive(Debug)]
struct Shared {
    sleep: Sleep,
    event: OwnedFd,
    /// [`process::fork_generation`] of the process that made the waker.
    forks: u64,
}

/// Whether the poller sleeps or was woken.
#[derive(Debug)]
struct Sleep(AtomicU8);

impl Sleep {
    fn new() -> Sleep {
        Sleep(AtomicU8::new(AWAKE))
    }

    /// Notes a wake. True if the poller sleeps, so that the caller has to signal the eventfd.
    fn wake(&self) -> bool {
        // AcqRel: releases what the caller has queued; the poller acquires it in `clear`.
        self.0.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP
    }

    /// See [`Waker::fall_asleep`].
    fn fall_asleep(&self) -> bool {
        self.0
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// See [`Waker::get_up`].
    fn get_up(&self) -> bool {
        self.0
            .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
    }

    #[inline]
    fn is_notified(&self) -> bool {
        self.0.load(Ordering::Acquire) == NOTIFIED
    }

    /// See [`Waker::clear`].
    #[inline]
    fn clear(&self) -> u64 {
        if !self.is_notified() {
            return 0;
        }
        self.0.swap(AWAKE, Ordering::AcqRel);
        1
    }
}

/// Ends a driver's [`poll`](crate::Driver::poll) from any thread.
///
/// Wakes are coalesced: any number of them between two polls ends one poll. Only waking a sleeping poller costs a
/// system call. The eventfd is never read: both backends watch it edge-triggered, so each write is an event.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker {
            shared: Arc::new(Shared {
                sleep: Sleep::new(),
                event: sys::eventfd()?,
                forks: process::fork_generation(),
            }),
        })
    }

    /// Makes the current poll return, or the next one. What the caller wrote before is visible to the poller
    /// afterwards. Safe in a signal handler.
    pub fn wake(&self) {
        // In a child process after fork(2) the state is a copy, but the eventfd is the one that the parent sleeps on.
        if self.shared.sleep.wake() && self.shared.forks == process::forks() {
            sys::eventfd_signal(&self.shared.event);
        }
    }

    /// The descriptor to watch while asleep.
    pub(crate) fn fd(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }

    /// Announces that the poller is about to sleep. Returns false if it was woken already and must not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.shared.sleep.fall_asleep()
    }

    /// Notes that the poller no longer sleeps. Returns whether a waker has woken it. The wake stays pending until
    /// `clear`.
    pub(crate) fn get_up(&self) -> bool {
        self.shared.sleep.get_up()
    }

    /// Whether a wake is pending.
    #[inline]
    pub(crate) fn is_notified(&self) -> bool {
        self.shared.sleep.is_notified()
    }

    /// Consumes the pending wake, if there is one, and returns the number of wakes. Later wakes end the next poll.
    #[inline]
    pub(crate) fn clear(&self) -> u64 {
        self.shared.sleep.clear()
    }
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_sleep_forbids_sleep_once() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        assert!(waker.is_notified());
        assert!(!waker.fall_asleep());
        waker.clear();
        assert!(!waker.is_notified());
        assert!(waker.fall_asleep());
        assert!(!waker.get_up());
    }

    #[test]
    fn a_child_does_not_wake_its_parent() {
        let waker = Waker::new().unwrap();
        let of_child = Waker {
            shared: Arc::new(Shared {
                sleep: Sleep::new(),
                event: waker.shared.event.try_clone().unwrap(),
                forks: waker.shared.forks.wrapping_sub(1),
            }),
        };
        assert!(waker.fall_asleep() && of_child.fall_asleep());
        of_child.wake();
        assert_eq!(sys::poll_now(waker.fd(), libc::POLLIN).unwrap(), 0);
    }

    #[test]
    fn only_a_sleeper_costs_a_write() {
        let waker = Waker::new().unwrap();
        waker.wake();
        assert_eq!(sys::poll_now(waker.fd(), libc::POLLIN).unwrap(), 0);
        waker.clear();
        assert!(waker.fall_asleep());
        waker.wake();
        assert_eq!(
            sys::poll_now(waker.fd(), libc::POLLIN).unwrap(),
            libc::POLLIN
        );
        assert!(waker.get_up());
    }
}

#[cfg(all(test, ringloop_loom))]
mod model {
    use super::*;
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Arc, Notify};
    use loom::thread;

    /// A poller that always tries to sleep sees what two threads have queued. A lost wake would be a deadlock. The
    /// eventfd is loom's `Notify`: if it is signalled before the sleep, it ends the sleep.
    #[test]
    fn no_wake_is_lost() {
        loom::model(|| {
            let sleep = Arc::new(Sleep::new());
            let event = Arc::new(Notify::new());
            let queued = Arc::new(AtomicUsize::new(0));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let sleep = Arc::clone(&sleep);
                    let (event, queued) = (Arc::clone(&event), Arc::clone(&queued));
                    thread::spawn(move || {
                        queued.fetch_add(1, Ordering::Relaxed);
                        if sleep.wake() {
                            event.notify();
                        }
                    })
                })
                .collect();
            let mut seen = 0;
            while seen < 2 {
                if sleep.fall_asleep() {
                    event.wait();
                    sleep.get_up();
                }
                if sleep.clear() > 0 {
                    seen = queued.load(Ordering::Relaxed);
                    assert!(seen > 0, "what was queued before the wake is not seen");
                }
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}
