//! The wait for everything: events, deadlines, other threads.

use crate::busy_poll::{BusyPoll, Policy, Wait};
use crate::clock;
use ringloop_driver::{BackendKind, Driver, Event, Peek, Waker, affinity};
use std::io;
use std::time::Duration;

/// How often the driver is asked between two looks at the clock while polling. A question is a few
/// loads from memory and a pause of about 50 ns, so that the clock is read every 200 ns or so.
const PEEKS_PER_CLOCK_READ: u32 = 4;

/// How a [`Reactor`] is set up.
///
/// The default lets the driver choose its backend, and waits adaptively.
///
/// ```
/// use ringloop::{BusyPoll, Config, Reactor};
///
/// let mut config = Config::from_env()?;
/// config.busy_poll = BusyPoll::Off;
/// let reactor = Reactor::new(&config)?;
/// println!("{}: {}", reactor.backend(), reactor.backend_reason());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The driver's own settings: the backend, sizes of queues.
    pub driver: ringloop_driver::Config,
    /// Whether to poll before sleeping.
    pub busy_poll: BusyPoll,
}

impl Config {
    /// The settings in the environment: those of [`ringloop_driver::Config::from_env`], and
    /// `RINGLOOP_BUSY_POLL=off|adaptive|MICROSECONDS`.
    ///
    /// # Errors
    /// `InvalidInput` for a value that is not known, with the name of the variable and the accepted
    /// values.
    pub fn from_env() -> io::Result<Self> {
        Ok(Self {
            driver: ringloop_driver::Config::from_env()?,
            busy_poll: BusyPoll::from_env()?,
        })
    }
}

/// What a reactor has done since it was made. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Calls of [`Reactor::turn`].
    pub turns: u64,
    /// Turns that waited, if only for a moment: all but those whose deadline had passed.
    pub waits: u64,
    /// Waits that polled before they slept.
    pub spins: u64,
    /// Waits that an event or a wake ended while they polled, so that they did not sleep.
    pub spin_hits: u64,
    /// Time spent polling, hits and misses together.
    pub spun_ns: u64,
    /// The part of `spun_ns` in which nothing arrived.
    pub wasted_ns: u64,
    /// Time spent asleep in the kernel.
    pub blocked_ns: u64,
    /// For how long the next wait would poll.
    pub window_ns: u64,
    /// The driver's own counters.
    pub driver: ringloop_driver::Counters,
}

/// A driver, a way to be woken, and a wait with a deadline.
///
/// ```
/// use ringloop::{Config, Reactor, clock};
/// use ringloop::driver::{Interest, Mode};
/// use std::io::Write;
/// use std::os::fd::AsRawFd;
/// use std::os::unix::net::UnixStream;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new(&Config::default())?;
/// let (mut near, far) = UnixStream::pair()?;
/// let token = reactor.driver().watch(far.as_raw_fd(), Interest::READ, Mode::Edge)?;
/// near.write_all(b"hello")?;
///
/// let mut events = Vec::new();
/// let deadline_ns = clock::now_ns() + 10_000_000_000;
/// while events.is_empty() && clock::now_ns() < deadline_ns {
///     reactor.turn(Some(deadline_ns), &mut events)?;
/// }
/// assert_eq!(events[0].token, token);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reactor {
    driver: Driver,
    policy: Policy,
    turns: u64,
}

impl Reactor {
    /// A reactor with a driver of its own.
    ///
    /// The adaptive policy counts the CPUs that the calling thread may run on, here and at
    /// [`Reactor::set_busy_poll`]; with only one it does not poll.
    ///
    /// # Errors
    /// Those of [`Driver::new`].
    pub fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            driver: Driver::new(&config.driver)?,
            policy: Policy::new(config.busy_poll, usable_cpus()),
            turns: 0,
        })
    }

    /// A reactor on a driver of the caller's, which sleeps where there is nothing to do and never polls. For tests, on a
    /// [scripted](ringloop_driver::Driver::scripted) one.
    pub fn with_driver(driver: Driver) -> Self {
        Self {
            driver,
            policy: Policy::new(BusyPoll::Off, 1),
            turns: 0,
        }
    }

    /// The driver, to watch descriptors and to submit operations.
    #[inline]
    pub fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// The driver, to look at.
    #[inline]
    pub fn driver_ref(&self) -> &Driver {
        &self.driver
    }

    /// A handle with which any thread can end the present or the next wait.
    pub fn waker(&self) -> Waker {
        self.driver.waker()
    }

    /// The interface to the kernel that the driver uses.
    pub fn backend(&self) -> BackendKind {
        self.driver.backend()
    }

    /// Why it uses that one, in words.
    pub fn backend_reason(&self) -> &str {
        self.driver.backend_reason()
    }

    /// How it waits.
    pub fn busy_poll(&self) -> BusyPoll {
        self.policy.choice()
    }

    /// Changes how it waits, from the next turn on. What the adaptive policy has learned is
    /// forgotten, the counters go on.
    pub fn set_busy_poll(&mut self, busy_poll: BusyPoll) {
        self.policy.choose(busy_poll, usable_cpus());
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        let waits = self.policy.counters();
        Counters {
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

    /// Time spent in waits, asleep and polling.
    #[cfg(feature = "runtime")]
    pub(crate) fn waited_ns(&self) -> u64 {
        let waits = self.policy.counters();
        waits.blocked_ns + waits.spun_ns
    }

    /// Appends the events that are there to `events`, and never waits. Where the driver can tell
    /// that nothing is there, and nothing is to be submitted, it makes no system call.
    ///
    /// # Errors
    /// `Interrupted` when a signal came, and those of [`Driver::poll`].
    #[inline]
    pub fn poll_now(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let before = events.len();
        let result = self.driver.poll(Some(Duration::ZERO), events);
        if events.len() > before {
            self.policy.arrived_without_wait();
        }
        result
    }

    /// Waits until events arrive, which are appended to `events`, until a [`Waker`] is used, or
    /// until the deadline, in nanoseconds of [`clock::now_ns`]; without one, for as long as it takes.
    ///
    /// It may return early without an event, so the caller looks at its clock and its inbox before each turn.
    /// A signal whose handler runs in this thread ends the wait only while it sleeps: handlers that
    /// must be noticed write to a watched descriptor or use a [`Waker`], as Python's do.
    ///
    /// # Errors
    /// `Interrupted` when a signal ended the wait, or work that the kernel had for this thread, such
    /// as the rest of an `io_uring` that was closed; and those of [`Driver::poll`].
    pub fn turn(&mut self, deadline_ns: Option<u64>, events: &mut Vec<Event>) -> io::Result<()> {
        self.turn_from(clock::now_ns(), deadline_ns, events)
    }

    /// [`turn`](Reactor::turn) for a caller who has just read the clock, and says what it showed.
    ///
    /// # Errors
    /// Those of [`turn`](Reactor::turn).
    pub fn turn_from(
        &mut self,
        start_ns: u64,
        deadline_ns: Option<u64>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        self.turns += 1;
        let remaining_ns =
            deadline_ns.map_or(u64::MAX, |deadline| deadline.saturating_sub(start_ns));
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
            if result.is_ok() && end_ns - start_ns < remaining_ns {
                // Neither the deadline nor a signal, so something has come, be it only a wake.
                spun = Spun::Arrived;
            }
        }

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

    /// Polls until something arrives or the given time comes.
    fn spin(&mut self, until_ns: u64, events: &mut Vec<Event>) -> io::Result<Spun> {
        let events_before = events.len();
        let wakes_before = self.driver.counters().wakes;
        // What has been queued must reach the kernel now: looking at memory submits nothing.
        self.driver.flush()?;
        loop {
            let mut unknown = false;
            for _ in 0..PEEKS_PER_CLOCK_READ {
                match self.driver.peek() {
                    Peek::Ready => {
                        self.driver.poll(Some(Duration::ZERO), events)?;
                        return Ok(Spun::Arrived);
                    }
                    Peek::Empty => std::hint::spin_loop(),
                    Peek::Unknown => {
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

/// What polling for a while has brought.
enum Spun {
    /// Events, or a wake.
    Arrived,
    /// Nothing: sleep.
    Nothing,
}

/// Where the number cannot be known, one is the answer that does no harm: no polling.
fn usable_cpus() -> usize {
    affinity::usable_cpus().map_or(1, |cpus| cpus.len())
}
