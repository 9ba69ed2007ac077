//! The policy behind `adaptive`; the module above says how it decides.

use super::BusyPoll;

/// The longest wait that polling could shorten by enough to pay for itself: waking a halted CPU costs some 30 us, and
/// polling for more than twice that is not worth it.
const WINDOW_NS_MAX: u64 = 100_000;

/// Shorter windows end before the peer can have answered.
const WINDOW_NS_MIN: u64 = 10_000;

/// The least that polling must save per event. Measured with one connection in ping-pong on a
/// virtual machine: while its host let CPUs halt, sleeping cost more than 30 us, and polling cut
/// the round trip from 52 to 20 us at the same CPU per message; while its host kept CPUs awake,
/// polling saved 4 us of 15, for half as much CPU again. The first is worth it, the second is not.
const SAVED_NS_MIN: u64 = 8_000;

/// When waits are this short already, on average per event, there is nothing to gain: the CPU is
/// awake, or there is enough to do. A peer on the same machine takes some 4 us to answer.
const WAIT_NS_WORTHWHILE: u64 = SAVED_NS_MIN + 4_000;

/// How many short waits in a row lead to the first trial of polling. Every trial that fails makes
/// the number for the next one four times as large, up to the maximum.
const EVIDENCE_MIN: u32 = 8;
const EVIDENCE_MAX: u32 = 1 << 16;

/// How many polled waits a trial takes before it is judged.
const TRIAL_WAITS: u32 = 4;

/// A polling phase with at least this many hits was a success: the next one needs only the least evidence.
const SUCCESS_HITS: u32 = 128;

/// While polling pays, one wait in this many sleeps at once, to measure what sleeping would cost now.
const SAMPLE_INTERVAL: u32 = 256;

/// After this many missed windows in a row, polling ends.
const MISSES_MAX: u32 = 2;

/// At most this many nanoseconds are spent polling for each nanosecond that events come earlier. Part of that is no
/// loss: entering and leaving the kernel's idle loop also takes some microseconds of CPU time.
const POLLED_PER_SAVED: u64 = 2;

/// At most one part in this many of elapsed time may be wasted.
const WASTE_DIVISOR: u64 = 64;

/// The allowance does not accumulate beyond this, so that a long quiet time does not pay for a burst of waste. It
/// covers several misses, as at the ends of a few exchanges in quick succession.
const WASTE_NS_MAX: u64 = 1_000_000;

/// One wait, as the reactor saw it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) start_ns: u64,
    /// When polling ended: the start if there was none, the end if the wait ended while polling.
    pub(crate) polled_until_ns: u64,
    pub(crate) end_ns: u64,
    /// The number of events that ended the wait: 1 for a wake, 0 for a deadline or a signal.
    pub(crate) arrivals: u32,
}

/// The totals over all waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WaitCounters {
    pub(crate) waits: u64,
    pub(crate) spins: u64,
    pub(crate) spin_hits: u64,
    pub(crate) spun_ns: u64,
    pub(crate) wasted_ns: u64,
    pub(crate) blocked_ns: u64,
}

/// Decides how long to poll. It reads no clock: its caller says when waits begin and end, and what they brought.
#[derive(Debug)]
pub(crate) struct Policy {
    choice: BusyPoll,
    /// Polling cannot pay, because the peer needs the only CPU.
    one_cpu: bool,
    mode: Mode,
    /// The average length of a short wait per event, asleep and polling, as last measured.
    slept_ns: Average,
    polled_ns: Average,
    evidence_needed: u32,
    /// The greatest length of a slept wait from which polling has failed to save enough, since it last succeeded. When
    /// sleeping becomes twice as expensive, that experience is out of date.
    failed_at_ns: u64,
    allowance_ns: u64,
    allowance_at_ns: u64,
    counters: WaitCounters,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Sleeping {
        /// Roughly the number of short waits in a row; a long one halves it.
        evidence: u32,
    },
    Polling {
        window_ns: u64,
        hits: u32,
        misses_in_a_row: u32,
        /// Waits until the next one that sleeps, for comparison.
        until_sample: u32,
    },
}

impl Mode {
    const ASLEEP: Self = Self::Sleeping { evidence: 0 };
}

impl Policy {
    /// A policy for a thread that may run on `usable_cpus` CPUs.
    pub(crate) fn new(choice: BusyPoll, usable_cpus: usize) -> Self {
        Self {
            choice,
            one_cpu: usable_cpus <= 1,
            mode: Mode::ASLEEP,
            slept_ns: Average::default(),
            polled_ns: Average::default(),
            evidence_needed: EVIDENCE_MIN,
            failed_at_ns: 0,
            allowance_ns: WASTE_NS_MAX,
            allowance_at_ns: 0,
            counters: WaitCounters::default(),
        }
    }

    pub(crate) fn choice(&self) -> BusyPoll {
        self.choice
    }

    /// Changes the choice and forgets what was learned; the counters go on.
    pub(crate) fn choose(&mut self, choice: BusyPoll, usable_cpus: usize) {
        let counters = self.counters;
        *self = Self {
            counters,
            ..Self::new(choice, usable_cpus)
        };
    }

    #[inline]
    pub(crate) fn counters(&self) -> WaitCounters {
        self.counters
    }

    /// How long the next wait would poll, before the allowance and sampling are applied.
    #[inline]
    pub(crate) fn window_ns(&self) -> u64 {
        match (self.choice, self.mode) {
            (BusyPoll::Fixed(window), _) => u64::try_from(window.as_nanos()).unwrap_or(u64::MAX),
            (BusyPoll::Adaptive, Mode::Polling { window_ns, .. }) => window_ns,
            (BusyPoll::Off, _) | (_, Mode::Sleeping { .. }) => 0,
        }
    }

    /// Begins a wait. Returns how many nanoseconds to poll before sleeping; 0 means not to poll.
    pub(crate) fn begin(&mut self, now_ns: u64) -> u64 {
        if self.choice != BusyPoll::Adaptive {
            return self.window_ns();
        }
        let Mode::Polling {
            window_ns,
            until_sample,
            ..
        } = &mut self.mode
        else {
            return 0;
        };
        if *until_sample == 0 {
            *until_sample = SAMPLE_INTERVAL;
            return 0;
        }
        *until_sample -= 1;
        let elapsed_ns = now_ns.saturating_sub(self.allowance_at_ns);
        self.allowance_at_ns = now_ns;
        self.allowance_ns = WASTE_NS_MAX.min(self.allowance_ns + elapsed_ns / WASTE_DIVISOR);
        if self.allowance_ns < *window_ns {
            0
        } else {
            *window_ns
        }
    }

    /// Notes that events were there without a wait, which is the best case of both ways to wait.
    #[inline]
    pub(crate) fn arrived_without_wait(&mut self) {
        match &mut self.mode {
            Mode::Sleeping { evidence } => {
                self.slept_ns.add(0);
                *evidence = 0;
            }
            Mode::Polling { .. } => self.polled_ns.add(0),
        }
    }

    /// Ends a wait that [`Policy::begin`] began.
    pub(crate) fn end(&mut self, wait: Wait) {
        // The caller says when the wait began, and may be wrong.
        let spun_ns = wait.polled_until_ns.saturating_sub(wait.start_ns);
        let spun = spun_ns > 0;
        let hit = spun && wait.polled_until_ns == wait.end_ns && wait.arrivals > 0;
        self.counters.waits += 1;
        self.counters.spins += u64::from(spun);
        self.counters.spin_hits += u64::from(hit);
        self.counters.spun_ns = self.counters.spun_ns.saturating_add(spun_ns);
        let blocked_ns = wait.end_ns.saturating_sub(wait.polled_until_ns);
        self.counters.blocked_ns = self.counters.blocked_ns.saturating_add(blocked_ns);
        if spun && !hit {
            self.counters.wasted_ns = self.counters.wasted_ns.saturating_add(spun_ns);
            self.allowance_ns = self.allowance_ns.saturating_sub(spun_ns);
        }
        if self.choice == BusyPoll::Adaptive && !self.one_cpu {
            self.learn(wait, spun, hit);
        }
    }

    fn learn(&mut self, wait: Wait, spun: bool, hit: bool) {
        let wait_ns = wait.end_ns.saturating_sub(wait.start_ns);
        let short = wait.arrivals > 0 && wait_ns <= WINDOW_NS_MAX;
        // A deadline or a signal soon after the start says nothing about when events arrive.
        if wait.arrivals == 0 && wait_ns <= WINDOW_NS_MAX && !spun {
            return;
        }
        let wait_ns_per_event = wait_ns / u64::from(wait.arrivals.max(1));
        if short {
            if spun {
                &mut self.polled_ns
            } else {
                &mut self.slept_ns
            }
            .add(wait_ns_per_event);
        }
        match &mut self.mode {
            Mode::Sleeping { evidence } => {
                if !short {
                    *evidence /= 2;
                } else if self.slept_ns.value_ns < WAIT_NS_WORTHWHILE {
                    *evidence = 0;
                } else {
                    *evidence += 1;
                    if self.slept_ns.value_ns > self.failed_at_ns.saturating_mul(2) {
                        self.evidence_needed = EVIDENCE_MIN;
                    }
                    if *evidence >= self.evidence_needed {
                        self.start_polling();
                    }
                }
            }
            Mode::Polling {
                window_ns,
                hits,
                misses_in_a_row,
                ..
            } => {
                if hit {
                    *hits = hits.saturating_add(1);
                    *misses_in_a_row = 0;
                } else if spun {
                    *misses_in_a_row += 1;
                    if short {
                        // A longer window would have caught it.
                        *window_ns = WINDOW_NS_MAX.min(*window_ns * 2);
                    }
                }
                let (hits, misses_in_a_row) = (*hits, *misses_in_a_row);
                if misses_in_a_row >= MISSES_MAX || hits >= TRIAL_WAITS && !self.polling_pays() {
                    self.stop_polling(hits);
                }
            }
        }
    }

    fn polling_pays(&self) -> bool {
        let polled_ns = self.polled_ns.value_ns;
        let saved_ns = self.slept_ns.value_ns.saturating_sub(polled_ns);
        saved_ns >= SAVED_NS_MIN && polled_ns <= saved_ns * POLLED_PER_SAVED
    }

    fn start_polling(&mut self) {
        // Polling sees an event no later than sleeping did. Twice that leaves room for the spread.
        let window_ns = (self.slept_ns.value_ns * 2).clamp(WINDOW_NS_MIN, WINDOW_NS_MAX);
        self.polled_ns = Average::default();
        self.mode = Mode::Polling {
            window_ns,
            hits: 0,
            misses_in_a_row: 0,
            until_sample: SAMPLE_INTERVAL,
        };
    }

    fn stop_polling(&mut self, hits: u32) {
        self.mode = Mode::ASLEEP;
        if hits >= SUCCESS_HITS {
            self.evidence_needed = EVIDENCE_MIN;
            self.failed_at_ns = 0;
        } else {
            self.evidence_needed = EVIDENCE_MAX.min(self.evidence_needed * 4);
            self.failed_at_ns = self.failed_at_ns.max(self.slept_ns.value_ns);
        }
    }
}

/// A moving average that gives each new value one eighth of the weight, and the first one all.
#[derive(Debug, Clone, Copy, Default)]
struct Average {
    value_ns: u64,
    known: bool,
}

impl Average {
    fn add(&mut self, sample_ns: u64) {
        self.value_ns = if self.known {
            (self.value_ns * 7 + sample_ns) / 8
        } else {
            sample_ns
        };
        self.known = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// How late a sleeping thread runs, and how long it takes to answer a message.
    const WAKE_NS: u64 = 33_000;
    const WORK_NS: u64 = 5_000;

    /// A thread that waits and works, on a clock of its own.
    struct Simulation {
        policy: Policy,
        now_ns: u64,
        wake_ns: u64,
    }

    impl Simulation {
        fn new() -> Self {
            Self::with_wake_ns(WAKE_NS)
        }

        fn with_wake_ns(wake_ns: u64) -> Self {
            Self {
                policy: Policy::new(BusyPoll::Adaptive, 2),
                now_ns: 1_000_000_000,
                wake_ns,
            }
        }

        /// Waits, and works if something arrived. `arrival_ns` counts from the start of the wait.
        fn wait(&mut self, arrival_ns: Option<u64>, deadline_ns: Option<u64>, arrivals: u32) {
            let start_ns = self.now_ns;
            let limit_ns = deadline_ns.unwrap_or(u64::MAX);
            let window_ns = self.policy.begin(start_ns).min(limit_ns);
            let (polled_ns, total_ns, arrivals) = match arrival_ns {
                Some(arrival_ns) if arrival_ns <= window_ns && window_ns > 0 => {
                    let polled_ns = arrival_ns.max(1);
                    (polled_ns, polled_ns, arrivals)
                }
                Some(arrival_ns) if arrival_ns <= limit_ns => {
                    (window_ns, arrival_ns + self.wake_ns, arrivals)
                }
                _ => (window_ns, limit_ns + self.wake_ns, 0),
            };
            self.now_ns = start_ns + total_ns;
            self.policy.end(Wait {
                start_ns,
                polled_until_ns: start_ns + polled_ns,
                end_ns: self.now_ns,
                arrivals,
            });
            if arrivals > 0 {
                self.now_ns += WORK_NS;
            }
        }

        /// Messages that answer ours: each arrives `gap_ns` after we began to wait.
        fn ping_pong(&mut self, messages: u64, gap_ns: std::ops::Range<u64>) {
            for index in 0..messages {
                // Knuth's multiplicative hash scrambles the index, so that gaps are spread evenly.
                let spread = (index.wrapping_mul(2_654_435_761) >> 8) % (gap_ns.end - gap_ns.start);
                self.wait(Some(gap_ns.start + spread), None, 1);
            }
        }

        /// Messages at a pace of their own, whether we are quick or slow.
        fn paced(&mut self, messages: u64, period_ns: u64) {
            let first_ns = self.now_ns;
            for index in 1..=messages {
                let arrival_ns = first_ns + index * period_ns;
                self.wait(Some(arrival_ns.saturating_sub(self.now_ns)), None, 1);
            }
        }

        fn counters(&self) -> WaitCounters {
            self.policy.counters()
        }
    }

    #[test]
    fn ping_pong_is_polled_after_a_short_learning_phase() {
        for gap_ns in [4_000..5_000, 12_000..15_000, 20_000..60_000] {
            let mut simulation = Simulation::new();
            simulation.ping_pong(u64::from(EVIDENCE_MIN), gap_ns.clone());
            assert_eq!(simulation.counters().spins, 0);
            simulation.ping_pong(10_000, gap_ns.clone());
            let counters = simulation.counters();
            assert!(counters.spin_hits >= 9_950, "{gap_ns:?}: {counters:?}");
            assert_eq!(
                counters.spins, counters.spin_hits,
                "{gap_ns:?}: {counters:?}"
            );
        }
    }

    #[test]
    fn a_message_every_ten_milliseconds_is_slept_for() {
        let mut simulation = Simulation::new();
        simulation.paced(10_000, 10_000_000);
        assert_eq!(simulation.counters().spins, 0);
    }

    #[test]
    fn an_idle_loop_sleeps() {
        let mut simulation = Simulation::new();
        for deadline_ns in [1_000_000_000, 1_000_000, 50_000, 1_000] {
            for _ in 0..1_000 {
                simulation.wait(None, Some(deadline_ns), 1);
            }
        }
        assert_eq!(simulation.counters().spins, 0);
    }

    #[test]
    fn polling_ends_two_misses_after_the_messages_do() {
        let mut simulation = Simulation::new();
        simulation.ping_pong(1_000, 12_000..15_000);
        assert!(simulation.policy.window_ns() > 0);
        let before = simulation.counters();
        simulation.paced(1_000, 10_000_000);
        let after = simulation.counters();
        assert_eq!(after.spins - before.spins, u64::from(MISSES_MAX));
        assert_eq!(after.spin_hits, before.spin_hits);
        assert!(after.wasted_ns <= u64::from(MISSES_MAX) * WINDOW_NS_MAX);
        assert_eq!(simulation.policy.window_ns(), 0);
    }

    #[test]
    fn long_exchanges_are_polled_and_few_pauses_between_them() {
        let mut simulation = Simulation::new();
        let start_ns = simulation.now_ns;
        for _ in 0..1_000 {
            simulation.ping_pong(200, 12_000..15_000);
            simulation.wait(Some(10_000_000), None, 1);
        }
        let counters = simulation.counters();
        assert!(counters.spin_hits >= 195_000, "{counters:?}");
        assert!(counters.wasted_ns <= (simulation.now_ns - start_ns) / WASTE_DIVISOR);
    }

    #[test]
    fn exchanges_of_a_few_messages_are_slept_through() {
        let mut simulation = Simulation::new();
        for _ in 0..10_000 {
            simulation.ping_pong(4, 12_000..15_000);
            simulation.wait(Some(10_000_000), None, 1);
        }
        assert_eq!(simulation.counters().spins, 0);
    }

    #[test]
    fn messages_that_do_not_come_sooner_for_polling_are_slept_for() {
        for period_ns in [40_000, 60_000, 100_000] {
            let mut simulation = Simulation::new();
            let start_ns = simulation.now_ns;
            simulation.paced(1_000_000, period_ns);
            let counters = simulation.counters();
            // A handful of trials, each after four times as many messages as the one before.
            assert!(counters.spins < 400, "every {period_ns} ns: {counters:?}");
            assert!(
                counters.spun_ns < (simulation.now_ns - start_ns) / 5_000,
                "{counters:?}"
            );
        }
    }

    #[test]
    fn a_server_that_finds_several_events_at_each_wait_sleeps() {
        let mut simulation = Simulation::new();
        for _ in 0..100_000 {
            simulation.wait(Some(20_000), None, 10);
        }
        assert_eq!(simulation.counters().spins, 0);
    }

    #[test]
    fn events_that_are_there_before_the_wait_speak_against_polling() {
        let mut simulation = Simulation::new();
        for _ in 0..100_000 {
            simulation.wait(Some(10_000), None, 1);
            for _ in 0..3 {
                simulation.policy.arrived_without_wait();
            }
        }
        assert_eq!(simulation.counters().spins, 0);
    }

    #[test]
    fn where_sleeping_costs_little_there_is_no_polling() {
        let mut simulation = Simulation::with_wake_ns(4_000);
        simulation.ping_pong(100_000, 6_000..8_000);
        simulation.ping_pong(100_000, 12_000..15_000);
        let counters = simulation.counters();
        assert!(counters.spins < 200, "{counters:?}");
    }

    #[test]
    fn polling_ends_when_sleeping_has_become_cheap_and_returns_when_it_is_dear() {
        let mut simulation = Simulation::new();
        simulation.ping_pong(10_000, 12_000..15_000);
        assert!(simulation.policy.window_ns() > 0);
        simulation.wake_ns = 2_000;
        simulation.ping_pong(u64::from(SAMPLE_INTERVAL) * 20, 12_000..15_000);
        assert_eq!(simulation.policy.window_ns(), 0);
        simulation.wake_ns = WAKE_NS;
        simulation.ping_pong(1_000, 12_000..15_000);
        assert!(simulation.policy.window_ns() > 0);
    }

    #[test]
    fn polling_ends_when_another_thread_needs_the_cpu() {
        let mut simulation = Simulation::new();
        simulation.ping_pong(1_000, 12_000..15_000);
        let before = simulation.counters();
        // The peer answers only when the scheduler takes the CPU away from whoever polls.
        simulation.ping_pong(10_000, 90_000..95_000);
        let after = simulation.counters();
        assert!(after.spins - before.spins < 200, "{after:?}");
    }

    #[test]
    fn one_longer_wait_in_an_exchange_does_not_end_polling() {
        let mut simulation = Simulation::new();
        for _ in 0..1_000 {
            simulation.ping_pong(400, 12_000..15_000);
            simulation.wait(Some(WINDOW_NS_MAX), None, 1);
        }
        let counters = simulation.counters();
        assert!(counters.spin_hits >= 390_000, "{counters:?}");
    }

    #[test]
    fn with_one_cpu_it_never_polls() {
        let mut simulation = Simulation::new();
        simulation.policy = Policy::new(BusyPoll::Adaptive, 1);
        simulation.ping_pong(10_000, 12_000..15_000);
        assert_eq!(simulation.counters().spins, 0);
    }

    #[test]
    fn off_never_polls_and_fixed_always_does() {
        let mut simulation = Simulation::new();
        simulation.policy.choose(BusyPoll::Off, 2);
        simulation.ping_pong(1_000, 12_000..15_000);
        assert_eq!(simulation.counters().spins, 0);
        simulation
            .policy
            .choose(BusyPoll::Fixed(Duration::from_micros(50)), 2);
        assert_eq!(simulation.policy.window_ns(), 50_000);
        simulation.ping_pong(1_000, 12_000..15_000);
        simulation.paced(1_000, 10_000_000);
        let counters = simulation.counters();
        assert_eq!((counters.waits, counters.spins), (3_000, 2_000));
        assert_eq!(counters.spin_hits, 1_000);
        assert_eq!(counters.wasted_ns, 1_000 * 50_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 128 }))]
        #[test]
        fn no_pattern_of_arrivals_wastes_more_than_the_allowance(
            // Stretches of an exchange with gaps of one length, each followed by a pause.
            stretches in proptest::collection::vec(
                (1_u64..300, 1_u64..200_000, 1_u64..5_000_000),
                1..100,
            ),
            wake_ns in 0_u64..60_000,
        ) {
            let mut simulation = Simulation::with_wake_ns(wake_ns);
            let start_ns = simulation.now_ns;
            for (messages, gap_ns, pause_ns) in stretches {
                simulation.ping_pong(messages, gap_ns..gap_ns + 1);
                simulation.wait(Some(pause_ns), None, 1);
                let wasted_ns = simulation.counters().wasted_ns;
                let elapsed_ns = simulation.now_ns - start_ns;
                prop_assert!(wasted_ns <= WASTE_NS_MAX + elapsed_ns / WASTE_DIVISOR);
            }
        }
    }
}
