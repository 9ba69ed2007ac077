//! The order of locks, which builds with debug assertions check on a free-threaded interpreter.
//!
//! A kind of lock is the place in the source that makes it. Whenever a thread takes a lock while it holds others, this
//! notes for the whole process that their kinds come before the new one. It panics if that contradicts an order that was
//! noted before, even if no two threads have met so far.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Where a lock is made.
pub(crate) type Kind = &'static Location<'static>;
type Place = &'static Location<'static>;

#[derive(Clone, Copy)]
struct Taken {
    lock: *const (),
    kind: Kind,
    place: Place,
}

/// Which kinds come after a kind, and where both were taken when that was first seen.
type Order = HashMap<Kind, HashMap<Kind, (Place, Place)>>;

thread_local! {
    /// The locks that this thread holds, in the order in which they were taken.
    static HELD: RefCell<Vec<Taken>> = const { RefCell::new(Vec::new()) };
    /// The pairs that this thread need not look up.
    static KNOWN: RefCell<HashSet<(Kind, Kind)>> = RefCell::new(HashSet::new());
}

static ORDER: Mutex<Option<Order>> = Mutex::new(None);

fn order() -> MutexGuard<'static, Option<Order>> {
    ORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that this thread is about to take a lock. Panics if that contradicts the order.
pub(crate) fn take(lock: *const (), kind: Kind, place: Place) {
    // A thread that ends has no list any more.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if !held.iter().any(|other| other.lock == lock) {
            for before in held.iter() {
                check(before, kind, place);
            }
        }
        held.push(Taken { lock, kind, place });
    });
}

/// Notes that this thread has given a lock back.
pub(crate) fn give_back(lock: *const ()) {
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if let Some(index) = held.iter().rposition(|other| other.lock == lock) {
            held.remove(index);
        }
    });
}

/// Panics if this thread holds a lock: `what` must not happen then.
#[track_caller]
pub(crate) fn expect_none(what: &str) {
    let first = HELD.try_with(|held| held.borrow().first().copied());
    if let Ok(Some(taken)) = first
        && !thread::panicking()
    {
        let Taken { kind, place, .. } = taken;
        fail(&format!(
            "{what} while the cell made at {kind} is still borrowed (at {place})"
        ));
    }
}

fn check(before: &Taken, kind: Kind, place: Place) {
    let pair = (before.kind, kind);
    if KNOWN.with(|known| known.borrow().contains(&pair)) {
        return;
    }
    let mut order = order();
    let order = order.get_or_insert_default();
    if let Some(path) = path(order, kind, before.kind) {
        if thread::panicking() {
            return; // What is dropped while a panic unwinds must not panic again.
        }
        let before_kind = before.kind;
        let before_place = before.place;
        fail(&format!(
            "the cell made at {kind} is borrowed at {place}, while the one made at {before_kind} is still borrowed (at \
             {before_place}); the opposite order was used before: {path}"
        ));
    }
    order
        .entry(before.kind)
        .or_default()
        .entry(kind)
        .or_insert((before.place, place));
    KNOWN.with(|known| known.borrow_mut().insert(pair));
}

/// The noted path from `from` to `to`, if any. A kind has a path to itself: holding two locks of one kind is an error.
fn path(order: &Order, from: Kind, to: Kind) -> Option<String> {
    let mut seen = HashSet::from([from]);
    let mut open = vec![(from, String::new())];
    while let Some((kind, text)) = open.pop() {
        if kind == to {
            return Some(text);
        }
        for (next, (first, second)) in order.get(kind).into_iter().flatten() {
            if seen.insert(next) {
                open.push((
                    *next,
                    format!("{text} [{kind} at {first}, then {next} at {second}]"),
                ));
            }
        }
    }
    None
}

/// Prints the failure, too: some callers swallow panics.
fn fail(text: &str) -> ! {
    #[expect(clippy::print_stderr, reason = "a check for developers, who run tests")]
    {
        eprintln!("ringloop: lock order: {text}");
    }
    panic!("{text}");
}
