//! Sleeping, timeouts and intervals, on the clock of [`crate::clock`].

mod instant;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use ringloop_reactor::timers::TimerKey;

use crate::budget;
use crate::shared::Shared;
pub use instant::Instant;
use instant::nanoseconds;

/// Waits until a point in time. Created by [`sleep`] and [`sleep_until`].
///
/// # Panics
/// Panics if it is polled outside of a runtime. So do [`timeout`], [`timeout_at`] and [`Interval::tick`], which wait by one.
///
/// ```
/// use ringloop::time::{Instant, sleep};
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut waiting = sleep(Duration::from_secs(3600));
/// // Something has happened: no need to wait that long.
/// waiting.reset(Instant::now() + Duration::from_millis(1));
/// waiting.await;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    deadline: Instant,
    timer: Option<(Rc<Shared>, TimerKey)>,
}

/// Waits for at least the given duration. With a duration of zero, it lets the other tasks that are ready run.
///
/// ```
/// use ringloop::time::{Instant, sleep};
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let start = Instant::now();
/// sleep(Duration::from_millis(2)).await;
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(Instant::now() + duration)
}

/// Waits until a point in time.
///
/// ```
/// use ringloop::time::{Instant, sleep_until};
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let deadline = Instant::now() + Duration::from_millis(2);
/// sleep_until(deadline).await;
/// assert!(Instant::now() >= deadline);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        timer: None,
    }
}

impl Sleep {
    /// The deadline.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Changes the deadline. A task that already waits is woken at the new one.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        if let Some((shared, key)) = self.timer.take() {
            let mut timers = shared.timers.borrow_mut();
            // Without a waker the timer had expired, and the task will be polled.
            let rearmed = timers
                .cancel(key)
                .map(|waker| timers.insert(deadline.as_clock_ns(), waker));
            drop(timers);
            self.timer = rearmed.map(|key| (shared, key));
        }
    }

    /// If a task waits for it, and is to be woken: when the runtime last looked at its timers.
    pub(crate) fn turn_if_armed(&self) -> Option<Instant> {
        let (shared, key) = self.timer.as_ref()?;
        let is_armed = shared.timers.borrow().get(*key).is_some();
        is_armed.then(|| Instant::from_clock_ns(shared.turn_ns()))
    }

    fn disarm(&mut self) {
        if let Some((shared, key)) = self.timer.take() {
            let waker = shared.timers.borrow_mut().cancel(key);
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.timer.is_some() && Instant::now() >= self.deadline {
            self.disarm();
            return Poll::Ready(());
        }
        // The task's waker may have changed.
        self.disarm();
        let shared = Shared::current();
        // Cloning may run the user's code.
        let waker = context.waker().clone();
        let deadline_ns = self.deadline.as_clock_ns();
        let key = shared.timers.borrow_mut().insert(deadline_ns, waker);
        self.timer = Some((shared, key));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// The error of [`timeout`] when the time is over.
///
/// ```
/// use ringloop::time::timeout;
/// use std::future::pending;
/// use std::io;
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let elapsed = timeout(Duration::from_millis(1), pending::<()>()).await.unwrap_err();
/// // With `?` it becomes an I/O error.
/// assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed(());

impl Elapsed {
    /// For what a server ends after a time.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the deadline has passed")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Runs a future for at most `duration`, and then drops it.
///
/// ```
/// use ringloop::time::{sleep, timeout};
/// use ringloop::{Runtime, RuntimeConfig};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let long = sleep(Duration::from_secs(3600));
///     assert!(timeout(Duration::from_millis(1), long).await.is_err());
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// Returns [`Elapsed`] if the future did not complete in time. A future that is ready counts as completed in time,
/// however late it is polled.
///
/// ```
/// use ringloop::net::UnixStream;
/// use ringloop::time::timeout;
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let (mut near, mut far) = UnixStream::pair()?;
/// let reading = near.read(Vec::with_capacity(16));
/// assert!(timeout(Duration::from_millis(1), reading).await.is_err());
///
/// // The read was cancelled, and nothing is lost.
/// far.write_all(&b"late"[..]).await.0?;
/// let reading = near.read(Vec::with_capacity(16));
/// let (count, bytes) = timeout(Duration::from_secs(10), reading).await?;
/// assert_eq!((count?, &bytes[..]), (4, &b"late"[..]));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    timeout_at(Instant::now() + duration, future).await
}

/// Runs a future until `deadline` at the latest, and then drops it. Use it to share one deadline among several steps.
///
/// ```
/// use ringloop::time::{Instant, sleep, timeout_at};
/// use ringloop::{Runtime, RuntimeConfig};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let deadline = Instant::now() + Duration::from_millis(5);
///     let mut steps = 0;
///     while timeout_at(deadline, sleep(Duration::from_millis(1))).await.is_ok() {
///         steps += 1;
///     }
///     assert!(Instant::now() >= deadline && steps <= 5);
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// See [`timeout`].
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    let mut sleep = sleep_until(deadline);
    std::future::poll_fn(move |context| {
        budget::poll_counted(context, |context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            Pin::new(&mut sleep)
                .poll(context)
                .map(|()| Err(Elapsed(())))
        })
    })
    .await
}

/// How an [`Interval`] handles ticks that were missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// Skips them: the next tick comes at its regular time.
    #[default]
    Skip,
    /// Catches up: they come at once, one after the other.
    Burst,
    /// Skips them and starts a new schedule: the next tick comes one period after the late one.
    Delay,
}

/// Ticks at a fixed rate. Created by [`interval`].
#[derive(Debug)]
#[must_use = "an interval does nothing unless its ticks are awaited"]
pub struct Interval {
    next: Sleep,
    period: Duration,
    missed: MissedTickBehavior,
}

/// Waits for a deadline that may be waited for again. Dropping this removes the timer.
struct Armed<'s>(&'s mut Sleep);

impl Future for Armed<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.0).poll(context)
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.0.disarm();
    }
}

/// Ticks every `period`; the first tick is one period from now. Missed ticks are skipped, unless
/// [`set_missed_tick_behavior`](Interval::set_missed_tick_behavior) says otherwise.
///
/// ```
/// use ringloop::time::{Instant, interval};
/// use ringloop::{Runtime, RuntimeConfig};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let start = Instant::now();
///     let mut ticks = interval(Duration::from_millis(1));
///     for _ in 0..3 {
///         ticks.tick().await;
///     }
///     assert!(start.elapsed() >= Duration::from_millis(3));
///     Ok(())
/// })
/// # }
/// ```
///
/// # Panics
/// Panics if the period is zero. Its ticks panic outside of a runtime.
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period above zero");
    Interval {
        next: sleep(period),
        period,
        missed: MissedTickBehavior::default(),
    }
}

impl Interval {
    /// Waits for the next tick. Returns when it was due. Dropping the future does not lose a tick.
    pub async fn tick(&mut self) -> Instant {
        Armed(&mut self.next).await;
        let due = self.next.deadline;
        let next = self.after(due, Instant::now());
        self.next.reset(next);
        due
    }

    /// Returns when the tick after one that was due at `due`, and was noticed at `now`, is due.
    fn after(&self, due: Instant, now: Instant) -> Instant {
        let period_ns = nanoseconds(self.period);
        let missed = nanoseconds(now - due) / period_ns;
        match self.missed {
            MissedTickBehavior::Skip => {
                due + Duration::from_nanos((missed + 1).saturating_mul(period_ns))
            }
            MissedTickBehavior::Delay if missed > 0 => now + self.period,
            MissedTickBehavior::Burst | MissedTickBehavior::Delay => due + self.period,
        }
    }

    /// Sets how missed ticks are handled, from the next tick on.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_ticks_are_left_out_made_up_for_or_begin_a_new_rhythm() {
        let at = Instant::from_clock_ns;
        let ticks = |missed| Interval {
            next: sleep_until(at(0)),
            period: Duration::from_nanos(10),
            missed,
        };
        let skip = ticks(MissedTickBehavior::Skip);
        let burst = ticks(MissedTickBehavior::Burst);
        let delay = ticks(MissedTickBehavior::Delay);
        // Due at 100, noticed at ...
        for (now_ns, skipped, burst_at, delayed) in [
            (100, 110, 110, 110),
            (109, 110, 110, 110),
            (110, 120, 110, 120),
            (134, 140, 110, 144),
        ] {
            assert_eq!(skip.after(at(100), at(now_ns)), at(skipped));
            assert_eq!(burst.after(at(100), at(now_ns)), at(burst_at));
            assert_eq!(delay.after(at(100), at(now_ns)), at(delayed));
        }
        let (late, last) = (at(u64::MAX - 5), at(u64::MAX));
        assert_eq!(skip.after(late, last), last);
        assert_eq!(delay.after(late, last), last);
    }
}
