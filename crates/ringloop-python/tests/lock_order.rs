//! The check of the order of locks finds what it is for. `make test-lock-order` runs this.

#![cfg(debug_assertions)]

use std::panic::{self, Location};
use std::ptr;
use std::thread;

#[path = "../src/lock_order.rs"]
mod lock_order;

use lock_order::{Kind, expect_none, give_back, take};

struct Lock {
    kind: Kind,
}

impl Lock {
    #[track_caller]
    const fn new() -> Self {
        Self {
            kind: Location::caller(),
        }
    }

    #[track_caller]
    fn take(&self) {
        take(ptr::from_ref(self).cast(), self.kind, Location::caller());
    }

    fn give_back(&self) {
        give_back(ptr::from_ref(self).cast());
    }
}

/// Takes the locks one after the other in a thread of its own, and gives them back. What the check says, if it fails.
fn take_all(locks: &[&Lock]) -> Result<(), String> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            for lock in locks {
                lock.take();
            }
            for lock in locks {
                lock.give_back();
            }
        });
        thread
            .join()
            .map_err(|payload| *payload.downcast::<String>().expect("a message"))
    })
}

#[test]
fn an_order_that_all_follow_is_right() {
    let (first, second, third) = (Lock::new(), Lock::new(), Lock::new());
    for _ in 0..2 {
        take_all(&[&first, &second, &third]).unwrap();
        take_all(&[&first, &third]).unwrap();
        take_all(&[&second, &third]).unwrap();
    }
}

#[test]
fn the_opposite_order_is_found_in_other_threads() {
    let (first, second) = (Lock::new(), Lock::new());
    take_all(&[&first, &second]).unwrap();
    let text = take_all(&[&second, &first]).unwrap_err();
    assert!(
        text.contains("the opposite order was used before"),
        "{text}"
    );
    assert!(text.contains(&first.kind.to_string()), "{text}");
    assert!(text.contains(&second.kind.to_string()), "{text}");
}

#[test]
fn a_circle_of_three_is_found() {
    let (first, second, third) = (Lock::new(), Lock::new(), Lock::new());
    take_all(&[&first, &second]).unwrap();
    take_all(&[&second, &third]).unwrap();
    take_all(&[&third, &first]).unwrap_err();
}

#[test]
fn two_locks_of_one_kind_have_no_order() {
    let same = [(); 2].map(|()| Lock::new());
    take_all(&[&same[0], &same[1]]).unwrap_err();
}

#[test]
fn a_thread_may_take_what_it_has() {
    let (first, second) = (Lock::new(), Lock::new());
    take_all(&[&first, &second, &first]).unwrap();
}

#[test]
fn what_must_not_happen_during_a_borrow_is_found() {
    let lock = Lock::new();
    expect_none("nothing");
    lock.take();
    panic::catch_unwind(|| expect_none("something")).unwrap_err();
    lock.give_back();
    expect_none("nothing");
}
