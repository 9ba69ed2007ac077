//! When the requests of the open loop are due.

use crate::pattern::mix;

/// The intended instants of the open loop. Request `number` is due at `begin_ns + number * gap_ns`. The
/// connections take turns.
pub(crate) struct Schedule {
    begin_ns: u64,
    /// The time between two requests.
    gap_ns: f64,
    /// The connections, in the order in which their requests are due.
    order: Vec<u32>,
    /// The place of each connection in that order.
    places: Vec<u32>,
    next: u64,
    /// When the next request is due; `u64::MAX` before [`begin`](Self::begin).
    pub(crate) next_ns: u64,
}

impl Schedule {
    /// A schedule that hasn't begun yet. `seed` determines the order of the connections.
    pub(crate) fn new(connections: usize, gap_ns: f64, seed: u64) -> Self {
        let mut order: Vec<u32> = (0..connections as u32).collect();
        for last in (1..order.len()).rev() {
            order.swap(
                last,
                (mix(seed ^ mix(last as u64)) % (last as u64 + 1)) as usize,
            );
        }
        let mut places = vec![0; connections];
        for (place, &connection) in order.iter().enumerate() {
            places[connection as usize] = place as u32;
        }
        Self {
            begin_ns: 0,
            gap_ns,
            order,
            places,
            next: 0,
            next_ns: u64::MAX,
        }
    }

    /// Begins: the first request is due at `begin_ns`.
    pub(crate) fn begin(&mut self, begin_ns: u64) {
        self.begin_ns = begin_ns;
        self.next_ns = self.instant_ns(0);
    }

    #[inline]
    fn instant_ns(&self, number: u64) -> u64 {
        self.begin_ns + (number as f64 * self.gap_ns) as u64
    }

    /// The number of requests that were due from `begin_ns` on and before `end_ns`.
    pub(crate) fn count_between(&self, begin_ns: u64, end_ns: u64) -> u64 {
        let before = |ns: u64| {
            let (mut low, mut high) = (0, self.next);
            while low < high {
                let middle = low.midpoint(high);
                if self.instant_ns(middle) < ns {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            low
        };
        before(end_ns).saturating_sub(before(begin_ns))
    }

    /// When request `sequence` of a connection is due.
    #[inline]
    pub(crate) fn intended_ns(&self, connection: usize, sequence: u32) -> u64 {
        self.instant_ns(
            u64::from(sequence) * self.order.len() as u64 + u64::from(self.places[connection]),
        )
    }

    /// The connection whose request is due next. Moves on to the request after it.
    #[inline]
    pub(crate) fn step(&mut self) -> usize {
        let connection = self.order[(self.next % self.order.len() as u64) as usize];
        self.next += 1;
        self.next_ns = self.instant_ns(self.next);
        connection as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_evenly_on_all_connections_in_turn() {
        let mut schedule = Schedule::new(7, 250.0, 42);
        assert_eq!(schedule.next_ns, u64::MAX);
        schedule.begin(1_000_000);
        let mut next = [0; 7];
        for number in 0..70 {
            let due_ns = schedule.next_ns;
            assert_eq!(due_ns, 1_000_000 + number * 250);
            let connection = schedule.step();
            // The latency of the answer counts from the instant at which the request was due.
            assert_eq!(schedule.intended_ns(connection, next[connection]), due_ns);
            next[connection] += 1;
        }
        assert_eq!(schedule.count_between(1_000_250, 1_000_501), 2);
        assert_eq!(schedule.count_between(0, u64::MAX), 70);
        assert_eq!(schedule.count_between(u64::MAX, u64::MAX), 0);
        assert_eq!(next, [10; 7]);
    }

    #[test]
    fn the_seed_decides_the_order_of_connections() {
        let order = |seed| Schedule::new(50, 1.0, seed).order;
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<u32>>());
    }
}
