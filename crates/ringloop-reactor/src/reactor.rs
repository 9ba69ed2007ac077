//! The one wait for events, deadlines and other threads.

use crate::busy_poll::{BusyPoll, Policy, Wait};
use crate::clock;
use ringloop_driver::{BackendKind, Driver, Event, Peek, Waker, affinity};
use std::io;
use std::time::Duration;

/// How often the driver is asked between two readings of the clock while polling. Asking takes a few loads from memory
/// and a pause of about 50 ns, so the clock is read every 200 ns or so.
const PEEKS_PER_CLOCK_READ: u32 = 4;

/// The configuration of a [`Reactor`].
///
/// By default the driver chooses its backend, and waiting is adaptive.
///
/// ```
/// use ringloop_reactor::{BusyPoll, Reactor, ReactorConfig};
///
/// let mut config = ReactorConfig::from_env()?;
/// config.busy_poll = BusyPoll::Off;
/// let reactor = Reactor::new(&config)?;
/// println!("{}: {}", reactor.backend(), reactor.backend_reason());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReactorConfig {
    /// The driver's configuration: backend and queue sizes.
    pub driver: ringloop_driver::Config,
    /// Whether to poll before sleeping.
    pub busy_poll: BusyPoll,
}

impl ReactorConfig {
    /// Reads the settings from the environment: those of [`ringloop_driver::Config::from_env`], and
    /// `RINGLOOP_BUSY_POLL=off|adaptive|MICROSECONDS`.
    ///
    /// # Errors
    /// Returns `InvalidInput` for an invalid value, with the name of the variable and the values that are accepted.
    pub fn from_env() -> io::Result<Self> {
        Ok(Self {
            driver: ringloop_driver::Config::from_env()?,
            busy_poll: BusyPoll::from_env()?,
        })
    }
}

/// Counts of what a reactor has done since it was created. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct ReactorCounters {
    /// Calls to [`Reactor::turn`].
    pub turns: u64,
    /// Turns that waited: all whose deadline had not passed.
    pub waits: u64,
    /// Waits that polled before they slept.
    pub spins: u64,
    /// Waits that an event or a wake ended during polling, before they slept.
    pub spin_hits: u64,
    /// Time spent polling, whether or not something arrived.
    pub spun_ns: u64,
    /// The part of `spun_ns` in which nothing arrived.
    pub wasted_ns: u64,
    /// Time spent asleep in the kernel.
    pub blocked_ns: u64,
    /// How long the next wait would poll.
    pub window_ns: u64,
    /// The driver's own counters.
    pub driver: ringloop_driver::Counters,
}

/// A driver, a way to wake it from other threads, and a wait with a deadline.
///
/// ```
/// use ringloop_reactor::{Reactor, ReactorConfig, clock};
/// use ringloop_reactor::driver::{Interest, Mode};
/// use std::io::Write;
/// use std::os::fd::AsRawFd;
/// use std::os::unix::net::UnixStream;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new(&ReactorConfig::default())?;
/// let (mut near, far) = UnixStream::pair()?;
/// let token = reactor.driver_mut().watch(far.as_raw_fd(), Interest::READ, Mode::Edge)?;
/// near.write_all(b"hello")?;
///
/// let mut events = Vec::new();
/// let deadline_ns = clock::now_ns() + 10_000_000_000;
/// while events.is_empty() && clock::now_ns() < deadline_ns {
///     reactor.turn(Some(deadline_ns), &mut events)?;
/// }
/// assert_eq!(events[0].token(), token);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reactor {
    driver: Driver,
    policy: Policy,
    turns: u64,
    turn_ended_ns: u64,
}

impl Reactor {
    /// Creates a reactor with its own driver.
    ///
    /// The adaptive policy counts the CPUs that the calling thread may use, here and in [`Reactor::set_busy_poll`].
    /// With only one CPU it does not poll.
    ///
    /// # Errors
    /// Returns the errors of [`Driver::new`].
    pub fn new(config: &ReactorConfig) -> io::Result<Self> {
        Ok(Self {
            driver: Driver::new(&config.driver)?,
            policy: Policy::new(config.busy_poll, usable_cpus()),
            turns: 0,
            turn_ended_ns: 0,
        })
    }

    /// Creates a reactor on an existing driver. It never polls before it sleeps. Meant for tests with a
    /// [scripted](ringloop_driver::Driver::scripted) driver.
    #[cfg(feature = "test-util")]
    pub fn with_driver(driver: Driver) -> Self {
        Self {
            driver,
            policy: Policy::new(BusyPoll::Off, 1),
            turns: 0,
            turn_ended_ns: 0,
        }
    }

    /// The driver, for what it knows.
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The driver, for watching descriptors and submitting operations.
    #[inline]
    pub fn driver_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Returns a handle by which any thread can end the current or the next wait.
    pub fn waker(&self) -> Waker {
        self.driver.waker()
    }

    /// The backend that the driver uses.
    pub fn backend(&self) -> BackendKind {
        self.driver.backend()
    }

    /// Why the driver uses this backend, in words.
    pub fn backend_reason(&self) -> &str {
        self.driver.backend_reason()
    }

    /// How the reactor waits.
    pub fn busy_poll(&self) -> BusyPoll {
        self.policy.choice()
    }

    /// Changes how the reactor waits, from the next turn on. Resets what the adaptive policy has learned, but not the
    /// counters.
    pub fn set_busy_poll(&mut self, busy_poll: BusyPoll) {
        self.policy.choose(busy_poll, usable_cpus());
    }

    /// Returns the counts of what the reactor has done so far.
    #[inline]
    pub fn counters(&self) -> ReactorCounters {
        let waits = self.policy.counters();
        ReactorCounters {
            turns: self.turns,
            waits: waits.waits,
            spins: waits.spins,
            spin_hits: waits.spin_hits,
            spun_ns: waits.spun_ns,
            wasted_ns: waits.wasted_ns,
            blocked_ns: waits.blocked_ns,
            window_ns: self.policy.window_ns(),
            driver: self.driver.counters(),
        }
    }

    /// When the last [`turn`](Self::turn) ended, in nanoseconds of [`clock::now_ns`]; 0 before the first. It saves a reading
    /// of the clock.
    ///
    /// ```
    /// use ringloop_reactor::{Reactor, ReactorConfig, clock};
    ///
    /// let mut reactor = Reactor::new(&ReactorConfig::default())?;
    /// let deadline_ns = clock::now_ns() + 1_000_000;
    /// while reactor.turn_ended_ns() < deadline_ns {
    ///     reactor.turn(Some(deadline_ns), &mut Vec::new())?;
    /// }
    /// assert!(clock::now_ns() >= deadline_ns);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn turn_ended_ns(&self) -> u64 {
        self.turn_ended_ns
    }

    /// Time spent waiting, asleep and polling.
    #[inline]
    pub fn waited_ns(&self) -> u64 {
        let waits = self.policy.counters();
        waits.blocked_ns + waits.spun_ns
    }

    /// Appends the events that are ready to `events`, without waiting. Makes no system call if the driver can tell that
    /// there are none and nothing must be submitted.
    ///
    /// # Errors
    /// Returns `Interrupted` if a signal arrived, and the errors of [`Driver::poll`].
    #[inline]
    pub fn poll_now(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let before = events.len();
        let result = self.driver.poll(Some(Duration::ZERO), events);
        if events.len() > before {
            self.policy.arrived_without_wait();
        }
        result
    }

    /// Waits until events arrive, which are appended to `events`; until a [`Waker`] is used; or until the deadline, in
    /// nanoseconds of [`clock::now_ns`]. Without a deadline it waits as long as it takes.
    ///
    /// It may return early without an event, so check the clock and the inbox before each turn. A signal whose handler
    /// runs in this thread ends the wait only while it sleeps. Handlers that must be noticed write to a watched
    /// descriptor or use a [`Waker`], as Python's do.
    ///
    /// # Errors
    /// Returns `Interrupted` if the wait was ended by a signal, or by work that the kernel had to do in this thread,
    /// such as cleaning up after an `io_uring` that was closed; and the errors of [`Driver::poll`].
    pub fn turn(&mut self, deadline_ns: Option<u64>, events: &mut Vec<Event>) -> io::Result<()> {
        self.turn_from(clock::now_ns(), deadline_ns, events)
    }

    /// Does a [`turn`](Reactor::turn) for a caller that has just read the clock, and passes the result as `start_ns`. A
    /// time that is not the present makes the counters and the adaptive policy wrong, and nothing else.
    ///
    /// # Errors
    /// Returns the errors of [`turn`](Reactor::turn).
    pub fn turn_from(
        &mut self,
        start_ns: u64,
        deadline_ns: Option<u64>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        self.turns += 1;
        let remaining_ns =
            deadline_ns.map_or(u64::MAX, |deadline| deadline.saturating_sub(start_ns));
        self.turn_ended_ns = start_ns;
        if remaining_ns == 0 {
            return self.poll_now(events);
        }
        let window_ns = self.policy.begin(start_ns).min(remaining_ns);
        let events_before = events.len();

        let mut result = Ok(());
        let mut spun = Spun::Nothing;
        let mut polled_until_ns = start_ns;
        if window_ns > 0 {
            match self.spin(start_ns.saturating_add(window_ns), events) {
                Ok(outcome) => spun = outcome,
                Err(error) => result = Err(error),
            }
            polled_until_ns = clock::now_ns();
        }
        let mut end_ns = polled_until_ns;
        if result.is_ok() && matches!(spun, Spun::Nothing) {
            let timeout = deadline_ns.map(|deadline| deadline.saturating_sub(polled_until_ns));
            result = self.driver.poll(timeout.map(Duration::from_nanos), events);
            end_ns = clock::now_ns();
            if result.is_ok() && end_ns.saturating_sub(start_ns) < remaining_ns {
                // Neither the deadline nor a signal ended the wait, so something has arrived, at least a wake.
                spun = Spun::Arrived;
            }
        }

        self.turn_ended_ns = end_ns;
        let woken = u32::from(matches!(spun, Spun::Arrived));
        let arrivals = woken.max((events.len() - events_before) as u32);
        self.policy.end(Wait {
            start_ns,
            polled_until_ns,
            end_ns,
            arrivals,
        });
        result
    }

    /// Polls until something arrives, or until the given time.
    fn spin(&mut self, until_ns: u64, events: &mut Vec<Event>) -> io::Result<Spun> {
        let events_before = events.len();
        let wakes_before = self.driver.counters().wakes;
        // Queued submissions must reach the kernel first, because peeking at memory submits nothing.
        match self.driver.flush() {
            // The kernel accepts nothing at the moment, so nothing would arrive here. The wait tries again.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(Spun::Nothing),
            flushed => flushed?,
        }
        loop {
            let mut unknown = false;
            for _ in 0..PEEKS_PER_CLOCK_READ {
                match self.driver.peek() {
                    Peek::Ready => {
                        self.driver.poll(Some(Duration::ZERO), events)?;
                        return Ok(Spun::Arrived);
                    }
                    Peek::Empty => std::hint::spin_loop(),
                    // Unknown.
                    _ => {
                        unknown = true;
                        break;
                    }
                }
            }
            if unknown {
                self.driver.poll(Some(Duration::ZERO), events)?;
                if events.len() > events_before || self.driver.counters().wakes > wakes_before {
                    return Ok(Spun::Arrived);
                }
            }
            if clock::now_ns() >= until_ns {
                return Ok(Spun::Nothing);
            }
        }
    }
}

/// The result of polling for a while.
enum Spun {
    /// Events or a wake have arrived.
    Arrived,
    /// Nothing has arrived: sleep.
    Nothing,
}

/// If the number is unknown, 1 is the safe answer: no polling.
fn usable_cpus() -> usize {
    affinity::usable_cpus().map_or(1, |cpus| cpus.len())
}
