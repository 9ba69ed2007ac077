//! A timer queue that stays fast with a million live timers.
//!
//! [`Timers`] is a priority queue of deadlines. Inserting costs O(log n) at worst, and O(1) for the usual deadline,
//! which is later than most. Cancelling is O(1) and returns the value at once, so that nothing is kept alive until a
//! deadline that nobody waits for. Cancelled entries do not accumulate: they are removed when they reach the head or
//! the tail of the heap, and all at once when they outnumber the live ones.
//!
//! Memory is released, too. When fewer than a quarter of the slots are in use, the table shrinks to twice the number of
//! timers, but keeps at least 65,536 slots, which are likely to be needed again. Shrinking takes time proportional to
//! the number of slots. At least a quarter as many timers have ended since the last time, so that is O(1) for each of
//! them.
//!
//! It reads no clock. Deadlines are plain numbers, in practice those of [`crate::clock::now_ns`].
//!
//! ```
//! use ringloop_reactor::timers::Timers;
//!
//! let mut timers = Timers::new();
//! let late = timers.insert(2_000, "late");
//! timers.insert(1_000, "early");
//! assert_eq!(timers.next_deadline_ns(), Some(1_000));
//!
//! assert_eq!(timers.pop_expired(1_500), Some("early"));
//! assert_eq!(timers.pop_expired(1_500), None);
//!
//! assert_eq!(timers.cancel(late), Some("late"));
//! assert_eq!(timers.cancel(late), None);
//! assert!(timers.is_empty());
//! ```

// This file is long because the heap's entries and the slots refer to each other, and every operation keeps both in
// step.

use std::collections::{HashMap, TryReserveError};
use std::num::NonZeroU32;

/// Children per node. Four entries of 16 bytes fill a cache line; `benches/timers.rs` has the
/// comparison with two and eight.
const ARITY: usize = 4;

/// With fewer cancelled entries than this, a pass over the heap is not worth it.
const CANCELLED_FLOOR: usize = 64;

/// With fewer stale keys of moved timers than this, a pass over them is not worth it.
const MOVED_FLOOR: usize = 64;

/// Of this many timers that expire at once, and of this share of the heap, each is removed by itself.
const SINGLE_FLOOR: usize = if cfg!(test) { 4 } else { 64 };
const SINGLE_SHARE: usize = 64;

/// The number of slots that are always kept.
const SLOTS_KEPT: usize = 1 << 16;

/// The end of the list of vacant slots.
const NO_SLOT: u32 = u32::MAX;

/// Identifies one timer of one [`Timers`], for [`Timers::cancel`].
///
/// A key remains safe to use forever: once its timer has expired or was cancelled, the key is stale and identifies
/// nothing, even if its slot is used by another timer. A key fits a register, and so does an `Option` of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerKey {
    slot: u32,
    generation: NonZeroU32,
}

impl TimerKey {
    /// The key as a number, never 0, for an atomic word.
    #[inline]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.slot)
    }

    /// The key that a number of [`to_bits`](Self::to_bits) stands for; `None` for 0.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        Some(Self {
            slot: bits as u32,
            generation: NonZeroU32::new((bits >> 32) as u32)?,
        })
    }
}

/// An entry of the heap: deadline, sequence number and slot in one number, most significant first. So one comparison
/// orders entries by deadline, and equal deadlines by insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

impl Entry {
    fn new(deadline_ns: u64, sequence: u32, slot: u32) -> Self {
        Self(u128::from(deadline_ns) << 64 | u128::from(sequence) << 32 | u128::from(slot))
    }

    fn deadline_ns(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn sequence(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn slot(self) -> u32 {
        self.0 as u32
    }
}

#[derive(Debug)]
struct Slot<T> {
    /// `None` if the slot is vacant, or if the heap still has the entry of a cancelled timer.
    value: Option<T>,
    generation: NonZeroU32,
    /// The next vacant slot, if this one is vacant.
    next_vacant: u32,
}

/// A set of timers, each with a deadline in nanoseconds and a value.
#[derive(Debug)]
pub struct Timers<T> {
    /// A d-ary heap, smallest entry first. It contains the live timers and `cancelled` stale entries.
    heap: Vec<Entry>,
    slots: Vec<Slot<T>>,
    vacant: u32,
    cancelled: usize,
    next_sequence: u32,
    /// The generation of new slots: later than that of any slot that was released.
    first_generation: NonZeroU32,
    /// The slots of timers that were moved out of released slots, by their first keys.
    moved: HashMap<TimerKey, TimerKey>,
    /// With this number of slots or fewer, none is released.
    slots_kept: usize,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Timers<T> {
    /// Creates an empty set. It does not allocate.
    pub fn new() -> Self {
        Self {
            heap: Vec::new(),
            slots: Vec::new(),
            vacant: NO_SLOT,
            cancelled: 0,
            next_sequence: 0,
            first_generation: NonZeroU32::MIN,
            moved: HashMap::new(),
            slots_kept: SLOTS_KEPT,
        }
    }

    /// Reserves memory, so that the next [`insert`](Timers::insert) does not allocate.
    ///
    /// # Errors
    /// Returns an error if there is no memory. `insert` would then abort the process.
    #[inline]
    pub fn try_reserve(&mut self) -> Result<(), TryReserveError> {
        if self.vacant == NO_SLOT {
            self.slots.try_reserve(1)?;
        }
        self.heap.try_reserve(1)
    }

    /// The number of live timers: those that have neither expired nor been cancelled.
    pub fn len(&self) -> usize {
        self.heap.len() - self.cancelled
    }

    /// Whether there is no live timer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inserts a timer. Of two timers with equal deadlines, the one inserted first expires first.
    pub fn insert(&mut self, deadline_ns: u64, value: T) -> TimerKey {
        if self.next_sequence == u32::MAX {
            self.renumber();
        }
        let key = self.occupy(value);
        self.heap
            .push(Entry::new(deadline_ns, self.next_sequence, key.slot));
        self.next_sequence += 1;
        self.sift_up(self.heap.len() - 1);
        key
    }

    /// Cancels a timer and returns its value, or `None` if the key is stale. O(1), amortised.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let slot = match self.slots.get(key.slot as usize) {
            Some(slot) if slot.generation == key.generation => key.slot,
            _ => self.slot_of_moved(key)?,
        };
        let value = self.slots[slot as usize].value.take()?;
        self.cancelled += 1;
        // A timeout that is cancelled soon is often still the last entry, which can be removed directly.
        while let Some(&last) = self.heap.last() {
            if self.slots[last.slot() as usize].value.is_some() {
                break;
            }
            self.heap.pop();
            self.cancelled -= 1;
            self.vacate(last.slot());
        }
        self.remove_cancelled_if_many();
        self.shrink_if_sparse();
        Some(value)
    }

    /// The earliest deadline of the live timers. Removes entries of cancelled timers from the head.
    pub fn next_deadline_ns(&mut self) -> Option<u64> {
        loop {
            let first = *self.heap.first()?;
            if self.cancelled == 0 || self.slots[first.slot() as usize].value.is_some() {
                return Some(first.deadline_ns());
            }
            self.remove_first();
            self.cancelled -= 1;
            self.vacate(first.slot());
        }
    }

    /// Removes the earliest timer whose deadline is at or before `now_ns`, and returns its value.
    pub fn pop_expired(&mut self, now_ns: u64) -> Option<T> {
        loop {
            let first = *self.heap.first()?;
            if first.deadline_ns() > now_ns {
                return None;
            }
            self.remove_first();
            let value = self.slots[first.slot() as usize].value.take();
            self.vacate(first.slot());
            if value.is_some() {
                self.remove_cancelled_if_many();
                self.shrink_if_sparse();
                return value;
            }
            self.cancelled -= 1;
        }
    }

    /// Removes all timers whose deadlines are at or before `now_ns`, and calls `sink` with their values, in the order
    /// of their deadlines. Many that are due at once are sorted, which is faster than removing one after the other.
    ///
    /// If `sink` panics, the timers that it has not been called for stay.
    pub fn expire(&mut self, now_ns: u64, mut sink: impl FnMut(T)) {
        // A pass over the heap is worth it once this number of them has expired.
        let mut single = SINGLE_FLOOR.max(self.heap.len() / SINGLE_SHARE);
        while let Some(value) = self.pop_expired(now_ns) {
            sink(value);
            single -= 1;
            if single == 0 {
                break;
            }
        }
        if single > 0 {
            return;
        }
        let mut expired = 0;
        for index in 0..self.heap.len() {
            if self.heap[index].deadline_ns() <= now_ns {
                self.heap.swap(index, expired);
                expired += 1;
            }
        }
        self.heap[..expired].sort_unstable();
        let mut removing = Removing {
            timers: self,
            done: 0,
        };
        while removing.done < expired {
            if let Some(value) = removing.remove_next() {
                sink(value);
            }
        }
    }

    /// The value of a live timer, or `None` if the key is stale.
    #[inline]
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        let find = |key: TimerKey| {
            let slot = self.slots.get(key.slot as usize)?;
            (slot.generation == key.generation).then_some(slot)
        };
        let slot = find(key).or_else(|| find(*self.moved.get(&key)?))?;
        slot.value.as_ref()
    }

    /// The values of the live timers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Mutable references to the values of the live timers, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    /// Removes all timers, and returns the values of the live ones, in no particular order.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(|slot| slot.value)
    }

    fn occupy(&mut self, value: T) -> TimerKey {
        if self.vacant == NO_SLOT {
            let slot = self.slots.len() as u32;
            assert!(
                slot != NO_SLOT,
                "more than 2^32 - 1 timers are alive at once"
            );
            let generation = self.first_generation;
            self.slots.push(Slot {
                value: Some(value),
                generation,
                next_vacant: NO_SLOT,
            });
            return TimerKey { slot, generation };
        }
        let index = self.vacant;
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        self.vacant = slot.next_vacant;
        TimerKey {
            slot: index,
            generation: slot.generation,
        }
    }

    /// Makes a slot available again, with its next generation. The heap must have no entry for it.
    fn vacate(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        // A slot that has used up its generations is retired: 24 bytes are lost per four billion timers, and no key
        // becomes valid again.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            slot.next_vacant = self.vacant;
            self.vacant = index;
        }
    }

    /// Renumbers the entries 0, 1, 2... in their present order. This happens every 2^32 insertions, so that the order
    /// survives the wrap.
    fn renumber(&mut self) {
        self.remove_cancelled();
        // A sorted array is a heap.
        self.heap.sort_unstable();
        for (sequence, entry) in self.heap.iter_mut().enumerate() {
            *entry = Entry::new(entry.deadline_ns(), sequence as u32, entry.slot());
        }
        self.next_sequence = self.heap.len() as u32;
    }

    fn remove_cancelled_if_many(&mut self) {
        if self.cancelled > CANCELLED_FLOOR && self.cancelled > self.len() {
            self.remove_cancelled();
        }
    }

    /// Removes the entries of all cancelled timers and restores the heap. O(n), paid for by the n cancellations before.
    fn remove_cancelled(&mut self) {
        let mut heap = std::mem::take(&mut self.heap);
        heap.retain(|entry| {
            let live = self.slots[entry.slot() as usize].value.is_some();
            if !live {
                self.vacate(entry.slot());
            }
            live
        });
        self.heap = heap;
        self.cancelled = 0;
        self.restore_order();
    }

    /// Makes a heap of entries in any order. O(n).
    fn restore_order(&mut self) {
        if self.heap.len() > 1 {
            for index in (0..=(self.heap.len() - 2) / ARITY).rev() {
                self.sift_down(index);
            }
        }
    }

    #[inline]
    fn shrink_if_sparse(&mut self) {
        if self.slots.len() > self.slots_kept && self.len() < self.slots.len() / 4 {
            self.shrink();
        }
        if self.moved.len() > 2 * self.len() + MOVED_FLOOR {
            self.forget_moved();
        }
    }

    /// Releases all slots but twice as many as there are timers. Timers in the released part move, and their keys stay
    /// valid.
    #[cold]
    fn shrink(&mut self) {
        self.remove_cancelled();
        // A retired slot stays, because no generation is left for a slot that would take its place.
        let is_retired =
            |slot: &Slot<T>| slot.value.is_none() && slot.generation == NonZeroU32::MAX;
        let retired = self.slots.iter().filter(|slot| is_retired(slot)).count();
        let behind_retired = self
            .slots
            .iter()
            .rposition(is_retired)
            .map_or(0, |last| last + 1);
        let kept = (2 * self.heap.len() + retired)
            .max(SLOTS_KEPT.min(self.slots_kept))
            .max(behind_retired);
        let given_up = self.slots.get(kept..).unwrap_or_default();
        let newest = given_up.iter().map(|slot| slot.generation).max();
        let Some(next) = newest.and_then(|newest| newest.checked_add(1)) else {
            self.slots_kept = self.slots.len();
            return;
        };
        let count = given_up.iter().filter(|slot| slot.value.is_some()).count();
        let mut moved = HashMap::new();
        if moved.try_reserve(count).is_err() || self.moved.try_reserve(count).is_err() {
            return;
        }
        // The front fills up first.
        self.vacant = NO_SLOT;
        for (index, slot) in self.slots[..kept].iter_mut().enumerate().rev() {
            if slot.value.is_none() && !is_retired(slot) {
                slot.next_vacant = self.vacant;
                self.vacant = index as u32;
            }
        }
        for index in 0..self.heap.len() {
            let entry = self.heap[index];
            if (entry.slot() as usize) < kept {
                continue;
            }
            let slot = &mut self.slots[entry.slot() as usize];
            let before = TimerKey {
                slot: entry.slot(),
                generation: slot.generation,
            };
            if let Some(value) = slot.value.take() {
                let after = self.occupy(value);
                // The sequence number alone tells timers with equal deadlines apart.
                self.heap[index] = Entry::new(entry.deadline_ns(), entry.sequence(), after.slot);
                moved.insert(before, after);
            }
        }
        self.moved.retain(|_, key| match moved.remove(key) {
            Some(after) => {
                *key = after;
                true
            }
            None => self
                .slots
                .get(key.slot as usize)
                .is_some_and(|slot| slot.generation == key.generation && slot.value.is_some()),
        });
        self.moved.extend(moved);
        self.moved.shrink_to_fit();
        self.slots.truncate(kept);
        self.slots.shrink_to_fit();
        self.heap.shrink_to(kept);
        self.first_generation = self.first_generation.max(next);
    }

    /// Forgets the keys of moved timers that are gone.
    #[cold]
    fn forget_moved(&mut self) {
        self.moved.retain(|_, key| {
            self.slots
                .get(key.slot as usize)
                .is_some_and(|slot| slot.generation == key.generation && slot.value.is_some())
        });
        self.moved.shrink_to_fit();
    }

    /// Returns the slot of a live timer that was moved, by its first key.
    #[cold]
    fn slot_of_moved(&mut self, key: TimerKey) -> Option<u32> {
        let now = self.moved.remove(&key)?;
        let slot = self.slots.get(now.slot as usize)?;
        (slot.generation == now.generation).then_some(now.slot)
    }

    fn remove_first(&mut self) {
        let last = self.heap.pop().expect("the caller has seen a first entry");
        if let Some(first) = self.heap.first_mut() {
            *first = last;
            self.sift_down(0);
        }
    }

    fn sift_up(&mut self, mut index: usize) {
        let entry = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / ARITY;
            if self.heap[parent] < entry {
                break;
            }
            self.heap[index] = self.heap[parent];
            index = parent;
        }
        self.heap[index] = entry;
    }

    fn sift_down(&mut self, mut index: usize) {
        let heap = self.heap.as_mut_slice();
        let entry = heap[index];
        loop {
            let first_child = index * ARITY + 1;
            let child = match heap.get(first_child..) {
                Some(&[a, b, c, d, ..]) => first_child + smallest_of_four([a, b, c, d]),
                Some(rest) => match rest.iter().enumerate().min_by_key(|(_, entry)| **entry) {
                    Some((child, _)) => first_child + child,
                    None => break,
                },
                None => break,
            };
            if entry < heap[child] {
                break;
            }
            heap[index] = heap[child];
            index = child;
        }
        heap[index] = entry;
    }
}

/// Returns the index of the smallest entry, without a branch: the result is unpredictable, and mispredictions would
/// cost more than the rest of an expiry from a heap in the cache.
fn smallest_of_four(entries: [Entry; ARITY]) -> usize {
    let left = usize::from(entries[1] < entries[0]);
    let right = 2 + usize::from(entries[3] < entries[2]);
    left + usize::from(entries[right] < entries[left]) * (right - left)
}

/// Removes the first timers of a heap that is sorted up to there, and otherwise out of order. Restores the heap in the end,
/// also if a panic unwinds through this.
struct Removing<'t, T> {
    timers: &'t mut Timers<T>,
    /// How many of the heap's entries have no timer any more.
    done: usize,
}

impl<T> Removing<'_, T> {
    /// Takes the value of the next timer, unless it was cancelled.
    fn remove_next(&mut self) -> Option<T> {
        let slot = self.timers.heap[self.done].slot();
        let value = self.timers.slots[slot as usize].value.take();
        if value.is_none() {
            self.timers.cancelled -= 1;
        }
        self.timers.vacate(slot);
        self.done += 1;
        value
    }
}

impl<T> Drop for Removing<'_, T> {
    fn drop(&mut self) {
        let timers = &mut *self.timers;
        timers.heap.drain(..self.done);
        timers.restore_order();
        timers.remove_cancelled_if_many();
        timers.shrink_if_sparse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    impl<T> Timers<T> {
        fn check_invariants(&self) {
            for index in 1..self.heap.len() {
                assert!(
                    self.heap[(index - 1) / ARITY] < self.heap[index],
                    "the heap is out of order at {index}"
                );
            }
            let cancelled = self
                .heap
                .iter()
                .filter(|entry| self.slots[entry.slot() as usize].value.is_none())
                .count();
            assert_eq!(cancelled, self.cancelled);
            assert!(
                self.cancelled <= CANCELLED_FLOOR.max(self.len()),
                "{} cancelled among {} live",
                self.cancelled,
                self.len()
            );
            assert_eq!(self.iter().count(), self.len());
            assert!(self.slots.len() >= self.heap.len());
            assert!(self.moved.len() <= 2 * self.len() + MOVED_FLOOR);
            assert!(
                self.slots.len() <= self.slots_kept.max(4 * (self.len() + 1)),
                "{} slots for {} timers",
                self.slots.len(),
                self.len()
            );
        }
    }

    #[test]
    fn equal_deadlines_expire_in_order_of_insertion() {
        let mut timers = Timers::new();
        for value in 0..1_000 {
            timers.insert(7, value);
        }
        let expired: Vec<_> = std::iter::from_fn(|| timers.pop_expired(7)).collect();
        assert_eq!(expired, (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_sink_that_panics_loses_one_timer_and_spoils_none() {
        // One after the other, and many at once.
        for panics_at in [1, SINGLE_FLOOR as u64, 100, 299] {
            let mut timers = Timers::new();
            let keys: Vec<_> = (0..300_u64).map(|n| timers.insert(10, n)).collect();
            timers.cancel(keys[150]);
            let kept = timers.insert(1_000, 9_999);
            let mut seen = Vec::new();
            let expired = catch_unwind(AssertUnwindSafe(|| {
                timers.expire(10, |value| {
                    seen.push(value);
                    assert_ne!(value, panics_at, "on purpose");
                });
            }));
            assert!(expired.is_err());
            timers.check_invariants();
            // Slots that were given away are not named by the heap any more.
            for n in 0..300 {
                timers.insert(5_000, 100_000 + n);
            }
            timers.expire(10, |value| seen.push(value));
            timers.check_invariants();
            assert!(seen.into_iter().eq((0..300).filter(|n| *n != 150)));
            assert_eq!((timers.get(kept), timers.len()), (Some(&9_999), 301));
        }
    }

    #[test]
    fn order_of_insertion_survives_the_end_of_the_sequence_numbers() {
        let mut timers = Timers::new();
        timers.next_sequence = u32::MAX - 3;
        let keys: Vec<_> = (0..10).map(|value| timers.insert(7, value)).collect();
        assert_eq!(timers.next_sequence, 10);
        timers.check_invariants();
        assert_eq!(timers.cancel(keys[1]), Some(1));
        let expired: Vec<_> = std::iter::from_fn(|| timers.pop_expired(7)).collect();
        assert_eq!(expired, [0, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_key_is_stale_after_its_slot_was_given_away() {
        let mut timers = Timers::new();
        let first = timers.insert(1, 'a');
        assert_eq!(timers.pop_expired(1), Some('a'));
        let second = timers.insert(2, 'b');
        assert_eq!(first.slot, second.slot);
        assert_eq!(timers.cancel(first), None);
        assert_eq!(timers.cancel(second), Some('b'));
    }

    #[test]
    fn a_slot_without_further_generations_is_not_used_again() {
        let mut timers = Timers::new();
        let first = timers.insert(1, 'a');
        timers.slots[0].generation = NonZeroU32::MAX;
        assert_eq!(timers.pop_expired(1), Some('a'));
        let second = timers.insert(1, 'b');
        assert_ne!(first.slot, second.slot);
        assert_eq!(
            timers.cancel(TimerKey {
                slot: 0,
                generation: NonZeroU32::MAX
            }),
            None
        );
    }

    #[test]
    fn cancelling_drops_the_value_at_once() {
        let mut timers = Timers::new();
        let value = Rc::new(());
        // Neither the first nor the last entry, so that its place in the heap stays behind.
        timers.insert(1, Rc::new(()));
        let key = timers.insert(2, Rc::clone(&value));
        timers.insert(3, Rc::new(()));
        drop(timers.cancel(key));
        assert_eq!(Rc::strong_count(&value), 1);
        assert_eq!((timers.cancelled, timers.len()), (1, 2));
    }

    #[test]
    fn cancelled_timers_do_not_pile_up_behind_one_that_stays() {
        let mut timers = Timers::new();
        timers.insert(u64::MAX, 0);
        timers.insert(0, 0);
        for round in 0..100_000_u64 {
            // Every deadline is earlier than the previous one, so that no cancelled entry is ever
            // the last.
            let key = timers.insert(1_000_000 - round, 1);
            timers.cancel(key);
        }
        assert!(
            timers.slots.len() <= 2 * CANCELLED_FLOOR,
            "{} slots for 2 timers",
            timers.slots.len()
        );
        timers.check_invariants();
    }

    #[test]
    fn the_values_of_live_timers_are_left() {
        let mut timers = Timers::new();
        let keys: Vec<_> = (0..10).map(|value| timers.insert(value, value)).collect();
        timers.cancel(keys[4]);
        let mut left: Vec<_> = timers.into_values().collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn memory_comes_back_although_a_few_timers_stay() {
        const MANY: u64 = if cfg!(miri) { 2_000 } else { 1_400_000 };
        let mut timers = Timers::new();
        timers.slots_kept = timers.slots_kept.min(MANY as usize / 20);
        let keys: Vec<_> = (0..MANY)
            .map(|number| {
                // The first, the last, and some in between.
                let stays = number % (MANY / 100) == 0 || number == MANY - 1;
                timers.insert(if stays { u64::MAX } else { number }, number)
            })
            .collect();
        let full = timers.slots.capacity();
        while timers.pop_expired(MANY).is_some() {}
        timers.check_invariants();
        assert_eq!(timers.len(), 101);
        for capacity in [timers.slots.capacity(), timers.heap.capacity()] {
            assert!(capacity <= timers.slots_kept, "{capacity} of {full}");
        }
        assert!(timers.moved.capacity() <= 2 * (2 * timers.len() + MOVED_FLOOR));
        // New timers are not taken for old ones, and old keys name what they named.
        for number in 0..MANY {
            timers.insert(number, MANY);
        }
        let mut cancelled = keys.into_iter().filter_map(|key| timers.cancel(key));
        assert!(cancelled.all(|number| number < MANY));
        drop(cancelled);
        assert_eq!(timers.len() as u64, MANY);
        while timers.pop_expired(MANY).is_some() {}
        timers.check_invariants();
    }

    #[test]
    fn cancelling_gives_memory_back() {
        let mut timers = Timers::new();
        timers.slots_kept = 16;
        let keys: Vec<_> = (0..1_000)
            .map(|number| timers.insert(number, number))
            .collect();
        for &key in keys.iter().skip(1) {
            timers.cancel(key);
            timers.check_invariants();
        }
        assert!(timers.slots.capacity() <= 16 && timers.heap.capacity() <= 16);
        assert_eq!(timers.cancel(keys[0]), Some(0));
    }

    #[test]
    fn slots_without_further_generations_outlive_the_rest() {
        let mut timers = Timers::new();
        timers.slots_kept = 4;
        let keys: Vec<_> = (0..100)
            .map(|number| timers.insert(number, number))
            .collect();
        timers.slots[50].generation = NonZeroU32::MAX;
        while timers.pop_expired(100).is_some() {}
        assert_eq!(timers.slots.len(), 51);
        for number in 0..200 {
            timers.insert(number, number);
        }
        assert!(keys.iter().all(|&key| timers.cancel(key).is_none()));
        assert_eq!(
            timers.cancel(TimerKey {
                slot: 50,
                generation: NonZeroU32::MAX
            }),
            None
        );
    }

    #[test]
    fn room_for_the_next_timer_is_made_before() {
        let mut timers = Timers::new();
        for number in 0..100 {
            timers.try_reserve().unwrap();
            let before = (timers.slots.capacity(), timers.heap.capacity());
            timers.insert(number, number);
            assert_eq!(before, (timers.slots.capacity(), timers.heap.capacity()));
        }
    }

    #[test]
    fn a_key_and_an_optional_key_take_eight_bytes() {
        assert_eq!(size_of::<TimerKey>(), 8);
        assert_eq!(size_of::<Option<TimerKey>>(), 8);
    }

    #[derive(Debug, Clone)]
    enum Action {
        Insert {
            deadline_ns: u64,
        },
        /// Cancels the n-th key ever handed out (modulo their number), stale or not.
        Cancel {
            nth: usize,
        },
        CancelNewest,
        Expire {
            now_ns: u64,
        },
        ExpireAll {
            now_ns: u64,
        },
        NextDeadline,
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            // Few distinct deadlines, so that many are equal.
            30 => (0_u64..50).prop_map(|deadline_ns| Action::Insert { deadline_ns }),
            25 => any::<usize>().prop_map(|nth| Action::Cancel { nth }),
            5 => Just(Action::CancelNewest),
            2 => (0_u64..50).prop_map(|now_ns| Action::Expire { now_ns }),
            2 => (0_u64..50).prop_map(|now_ns| Action::ExpireAll { now_ns }),
            4 => Just(Action::NextDeadline),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        #[test]
        fn behaves_as_an_ordered_set(actions in proptest::collection::vec(action(), 1..600)) {
            let mut timers = Timers::new();
            timers.slots_kept = 4;
            let mut model = BTreeSet::new();
            let mut keys: Vec<(TimerKey, u64)> = Vec::new();
            for action in actions {
                match action {
                    Action::Insert { deadline_ns } => {
                        let id = keys.len();
                        keys.push((timers.insert(deadline_ns, id), deadline_ns));
                        model.insert((deadline_ns, id));
                    }
                    Action::Cancel { .. } | Action::CancelNewest if keys.is_empty() => {}
                    Action::Cancel { .. } | Action::CancelNewest => {
                        let id = match action {
                            Action::Cancel { nth } => nth % keys.len(),
                            _ => keys.len() - 1,
                        };
                        let (key, deadline_ns) = keys[id];
                        let expected = model.remove(&(deadline_ns, id)).then_some(id);
                        prop_assert_eq!(timers.cancel(key), expected);
                    }
                    Action::Expire { now_ns } => {
                        while let Some(id) = timers.pop_expired(now_ns) {
                            prop_assert_eq!(model.pop_first().map(|(_, id)| id), Some(id));
                        }
                        prop_assert!(model.first().is_none_or(|&(deadline_ns, _)| deadline_ns > now_ns));
                    }
                    Action::ExpireAll { now_ns } => {
                        let mut expired = Vec::new();
                        timers.expire(now_ns, |id| expired.push(id));
                        let later = model.split_off(&(now_ns + 1, 0));
                        prop_assert_eq!(expired, model.iter().map(|&(_, id)| id).collect::<Vec<_>>());
                        model = later;
                    }
                    Action::NextDeadline => {
                        let expected = model.first().map(|&(deadline_ns, _)| deadline_ns);
                        prop_assert_eq!(timers.next_deadline_ns(), expected);
                    }
                }
                timers.check_invariants();
                prop_assert_eq!(timers.len(), model.len());
            }
            let found: BTreeSet<_> = keys.iter().filter_map(|&(key, _)| timers.get(key)).copied().collect();
            prop_assert_eq!(found, model.iter().map(|&(_, id)| id).collect());
        }
    }
}
