//! Waking a poller from another thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::sys;

/// The poller runs, and nobody has woken it since it last looked.
const AWAKE: u8 = 0;
/// The poller sleeps in the kernel, or is about to.
const ASLEEP: u8 = 1;
/// Somebody has woken it.
const NOTIFIED: u8 = 2;

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    event: OwnedFd,
}

/// Ends a driver's [`poll`](crate::Driver::poll) from any thread.
///
/// Wakes are coalesced: any number of them between two polls end one poll. Only a poller that sleeps costs a
/// system call. The eventfd is never read: both backends watch it edge-triggered, so each write is an event.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker {
            shared: Arc::new(Shared {
                state: AtomicU8::new(AWAKE),
                event: sys::eventfd()?,
            }),
        })
    }

    /// Makes the running poll return, or else the next one. What the caller wrote before is visible to the poller
    /// after. Safe in a signal handler.
    pub fn wake(&self) {
        // AcqRel: releases what the caller has queued to the poller, which acquires it in `clear`.
        if self.shared.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            sys::eventfd_signal(&self.shared.event);
        }
    }

    /// The descriptor to watch while asleep.
    pub(crate) fn fd(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }

    /// Announces that the poller is about to sleep. `false`: it has been woken already and must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.shared
            .state
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The poller is back from its sleep. Returns whether it was woken by one of us; the notice stays for `clear`.
    pub(crate) fn get_up(&self) -> bool {
        self.shared
            .state
            .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
    }

    /// Whether a wake waits to be noticed.
    #[inline]
    pub(crate) fn is_notified(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// Takes the notice, if there is one, and returns how many that is: whoever wakes from here on ends the next poll.
    #[inline]
    pub(crate) fn clear(&self) -> u64 {
        if !self.is_notified() {
            return 0;
        }
        self.shared.state.swap(AWAKE, Ordering::AcqRel);
        1
    }
}

#[cfg(test)]
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
