//! `Timers` with 10^3, 10^5 and 10^6 live timers, compared with two structures of the standard library that could do
//! the same work: `BTreeMap` (every cancellation removes) and `BinaryHeap` (cancelled entries stay until their
//! deadline).
//!
//! `cargo bench -p ringloop-reactor --bench timers` prints nanoseconds per operation, the best of five rounds. With `--
//! --quick`, and in `cargo test --benches`, it only checks that it works.
//!
//! - *insert*: from none to n, with random deadlines within 10 s.
//! - *insert + cancel*: with n alive, one more timer, later than most, cancelled at once.
//! - *insert + cancel later*: the same, but cancelled only after 1,000 others were inserted, like the timeouts of 1,000
//!   busy connections; with random deadlines.
//! - *expire and renew*: with n alive, the earliest expires and is inserted again, up to 10 s later.
//! - *expire all*: from n to none, in order.

use ringloop_reactor::timers::{TimerKey, Timers};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::hint::black_box;
use std::time::Instant;

const HORIZON_NS: u64 = 10_000_000_000;
const BUSY_TIMEOUTS: usize = 1_000;

/// The interface of each contestant. A value has the size of a pointer, like those that event loops store.
trait Queue: Default {
    type Key;
    fn insert(&mut self, deadline_ns: u64, value: usize) -> Self::Key;
    fn cancel(&mut self, key: Self::Key) -> Option<usize>;
    fn pop(&mut self) -> Option<usize>;
}

impl Queue for Timers<usize> {
    type Key = TimerKey;
    fn insert(&mut self, deadline_ns: u64, value: usize) -> TimerKey {
        Timers::insert(self, deadline_ns, value)
    }
    fn cancel(&mut self, key: TimerKey) -> Option<usize> {
        Timers::cancel(self, key)
    }
    fn pop(&mut self) -> Option<usize> {
        self.pop_expired(u64::MAX)
    }
}

#[derive(Default)]
struct OrderedMap {
    map: BTreeMap<(u64, u64), usize>,
    sequence: u64,
}

impl Queue for OrderedMap {
    type Key = (u64, u64);
    fn insert(&mut self, deadline_ns: u64, value: usize) -> (u64, u64) {
        self.sequence += 1;
        let key = (deadline_ns, self.sequence);
        self.map.insert(key, value);
        key
    }
    fn cancel(&mut self, key: (u64, u64)) -> Option<usize> {
        self.map.remove(&key)
    }
    fn pop(&mut self) -> Option<usize> {
        self.map.pop_first().map(|(_, value)| value)
    }
}

#[derive(Default)]
struct LazyHeap {
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    values: Vec<Option<usize>>,
}

impl Queue for LazyHeap {
    type Key = usize;
    fn insert(&mut self, deadline_ns: u64, value: usize) -> usize {
        let sequence = self.values.len();
        self.values.push(Some(value));
        self.heap.push(Reverse((deadline_ns, sequence)));
        sequence
    }
    fn cancel(&mut self, key: usize) -> Option<usize> {
        self.values[key].take()
    }
    fn pop(&mut self) -> Option<usize> {
        loop {
            let Reverse((_, sequence)) = self.heap.pop()?;
            if let Some(value) = self.values[sequence].take() {
                return Some(value);
            }
        }
    }
}

/// Marsaglia's xorshift64: random enough for deadlines, and reproducible.
struct Random(u64);

impl Random {
    fn deadline_ns(&mut self, now_ns: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        now_ns + self.0 % HORIZON_NS
    }
}

const WORKLOADS: [&str; 5] = [
    "insert",
    "insert + cancel",
    "insert + cancel later",
    "expire and renew",
    "expire all",
];

/// Runs every workload once and returns nanoseconds per operation.
fn round<Q: Queue>(live: usize, operations: usize) -> [f64; WORKLOADS.len()] {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut queue = Q::default();
    let insert = time(live, |value| {
        queue.insert(random.deadline_ns(0), value);
    });
    let cancel_at_once = time(operations, |value| {
        let key = queue.insert(HORIZON_NS + value as u64, value);
        assert_eq!(queue.cancel(black_box(key)), Some(value));
    });
    let mut pending = VecDeque::with_capacity(BUSY_TIMEOUTS + 1);
    let cancel_later = time(operations, |value| {
        pending.push_back(queue.insert(random.deadline_ns(0), value));
        if pending.len() > BUSY_TIMEOUTS {
            let key = pending.pop_front().expect("it was just seen to be full");
            assert!(queue.cancel(key).is_some());
        }
    });
    for key in pending {
        queue.cancel(key);
    }
    // Every insertion is later than the ones before, so the clock must follow.
    let mut now_ns = 0;
    let renew = time(operations, |value| {
        assert!(queue.pop().is_some());
        now_ns += HORIZON_NS / live as u64;
        queue.insert(random.deadline_ns(now_ns), value);
    });
    let expire = time(live, |_| assert!(queue.pop().is_some()));
    assert!(queue.pop().is_none());
    [insert, cancel_at_once, cancel_later, renew, expire]
}

fn time(operations: usize, mut operation: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    for index in 0..operations {
        operation(index);
    }
    start.elapsed().as_nanos() as f64 / operations as f64
}

fn report<Q: Queue>(name: &str, live: usize, operations: usize, rounds: usize) {
    let mut best = [f64::INFINITY; WORKLOADS.len()];
    for _ in 0..rounds {
        for (best, now) in best.iter_mut().zip(round::<Q>(live, operations)) {
            *best = best.min(now);
        }
    }
    print!("{live:>9}  {name:<12}");
    for (workload, nanoseconds) in WORKLOADS.iter().zip(best) {
        print!("{nanoseconds:>width$.1}", width = workload.len() + 2);
    }
    println!();
}

fn main() {
    // Cargo passes `--bench` from `cargo bench` and nothing from `cargo test`.
    let full = std::env::args().any(|argument| argument == "--bench")
        && !std::env::args().any(|argument| argument == "--quick");
    let (sizes, operations, rounds): (&[usize], usize, usize) = if full {
        (&[1_000, 100_000, 1_000_000], 1_000_000, 5)
    } else {
        (&[1_000], 2_000, 1)
    };
    println!(
        "ns per operation\n     live  {:<12}  {}",
        "",
        WORKLOADS.join("  ")
    );
    for &live in sizes {
        report::<Timers<usize>>("Timers", live, operations, rounds);
        report::<OrderedMap>("BTreeMap", live, operations, rounds);
        report::<LazyHeap>("BinaryHeap", live, operations, rounds);
    }
}
