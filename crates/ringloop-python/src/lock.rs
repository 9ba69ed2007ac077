//! The lock of a cell on a free-threaded interpreter: a word and a futex.
//!
//! It is held for as long as native code uses a cell, mostly some ten nanoseconds, and hardly ever contended: a loop's
//! state is used by the loop's own thread, and now and then by one that posts a callback. A thread may lock what it has
//! locked: whether that is right is the `RefCell`'s to say, as on an interpreter with the GIL.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::hint;
use std::marker::PhantomData;
#[cfg(debug_assertions)]
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use pyo3::prelude::*;

#[cfg(debug_assertions)]
use crate::lock_order;

/// How often a thread looks before it sleeps. A lock is held for less than this takes, unless its holder lost its CPU.
const SPINS: u32 = 100;

/// Somebody sleeps until the lock is free.
const CONTENDED: u32 = 1;

thread_local! {
    /// This thread's number, even and not zero; zero before it was asked for.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

#[inline]
fn this_thread() -> u32 {
    let number = NUMBER.get();
    if number == 0 { number_thread() } else { number }
}

/// A number of this thread. They are given out one after the other, when threads first lock something.
#[inline]
pub(crate) fn thread_number() -> usize {
    this_thread() as usize / 2
}

#[cold]
fn number_thread() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    loop {
        // After two billion threads the numbers begin again. By then the first ones have ended.
        let number = LAST.fetch_add(2, Relaxed).wrapping_add(2);
        if number != 0 {
            NUMBER.set(number);
            return number;
        }
    }
}

pub(crate) struct Lock {
    /// The number of the thread that has the lock, and [`CONTENDED`]; zero while it is free.
    owner: AtomicU32,
    /// How often the owner has locked it beyond the first time.
    depth: Cell<u32>,
    #[cfg(debug_assertions)]
    kind: lock_order::Kind,
}

// SAFETY: only the owner touches `depth`.
unsafe impl Sync for Lock {}

/// A lock that this thread holds.
pub(crate) struct Held<'a> {
    lock: &'a Lock,
    _not_send: PhantomData<*mut ()>,
}

impl Lock {
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) const fn new() -> Self {
        Self {
            owner: AtomicU32::new(0),
            depth: Cell::new(0),
            #[cfg(debug_assertions)]
            kind: Location::caller(),
        }
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self, py: Python<'_>) -> Held<'_> {
        #[cfg(debug_assertions)]
        lock_order::take(ptr::from_ref(self).cast(), self.kind, Location::caller());
        let this_thread = this_thread();
        if !self.is_taken_by(this_thread) {
            self.lock_slowly(py, this_thread);
        }
        Held {
            lock: self,
            _not_send: PhantomData,
        }
    }

    #[inline]
    fn is_taken_by(&self, owner: u32) -> bool {
        self.owner
            .compare_exchange(0, owner, Acquire, Relaxed)
            .is_ok()
    }

    #[cold]
    fn lock_slowly(&self, py: Python<'_>, this_thread: u32) {
        if self.owner.load(Relaxed) & !CONTENDED == this_thread {
            self.depth.set(self.depth.get() + 1);
            return;
        }
        for _ in 0..SPINS {
            if self.owner.load(Relaxed) == 0 && self.is_taken_by(this_thread) {
                return;
            }
            hint::spin_loop();
        }
        loop {
            let owner = self.owner.load(Relaxed);
            if owner == 0 {
                // Others may sleep: nobody knows, so the next unlock wakes one of them.
                if self.is_taken_by(this_thread | CONTENDED) {
                    return;
                }
            } else if owner & CONTENDED != 0
                || self
                    .owner
                    .compare_exchange(owner, owner | CONTENDED, Relaxed, Relaxed)
                    .is_ok()
            {
                // Detached, or a stop of the world would wait for the holder, and the holder perhaps for that stop. The
                // lock is taken only when this thread is attached again: whoever forks finds locks only in the hands of
                // threads that wait for another one.
                py.detach(|| sleep_while(&self.owner, owner | CONTENDED));
            }
        }
    }

    #[inline]
    fn unlock(&self) {
        #[cfg(debug_assertions)]
        lock_order::give_back(ptr::from_ref(self).cast());
        let depth = self.depth.get();
        if depth > 0 {
            self.depth.set(depth - 1);
        } else if self.owner.swap(0, Release) & CONTENDED != 0 {
            wake_one(&self.owner);
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

/// Sleeps until it is woken, if the word has this value; maybe for less.
fn sleep_while(word: &AtomicU32, value: u32) {
    // SAFETY: futex(2) reads the word, which outlives the call. There is no time limit.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            ptr::null::<libc::timespec>(),
        );
    }
}

#[cold]
fn wake_one(word: &AtomicU32) {
    // SAFETY: futex(2) uses the word's address only, whatever is there by now.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        );
    }
}
