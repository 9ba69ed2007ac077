//! Sleeping, timeouts and intervals, on the clock of [`crate::clock`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock;
use crate::shared::Shared;
use crate::timers::TimerKey;

/// Waits until a point in time. Created by [`sleep`] and [`sleep_until`].
///
/// ```
/// use ringloop::clock;
/// use ringloop::time::sleep;
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut waiting = sleep(Duration::from_secs(3600));
/// // Something has happened: no need to wait that long.
/// waiting.reset(clock::now_ns() + 1_000_000);
/// waiting.await;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    deadline_ns: u64,
    timer: Option<(Rc<Shared>, TimerKey)>,
}

/// Waits for at least the given duration. With a duration of zero, it lets the other tasks that are ready run.
///
/// ```
/// use ringloop::time::sleep;
/// use std::time::{Duration, Instant};
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
    sleep_until(clock::now_ns().saturating_add(nanoseconds(duration)))
}

/// Waits until `deadline_ns`, in nanoseconds of [`clock::now_ns`].
///
/// ```
/// use ringloop::clock;
/// use ringloop::time::sleep_until;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let deadline_ns = clock::now_ns() + 2_000_000;
/// sleep_until(deadline_ns).await;
/// assert!(clock::now_ns() >= deadline_ns);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sleep_until(deadline_ns: u64) -> Sleep {
    Sleep {
        deadline_ns,
        timer: None,
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Sleep {
    /// The deadline, in nanoseconds of [`clock::now_ns`].
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Changes the deadline. A task that already waits is woken at the new one.
    pub fn reset(&mut self, deadline_ns: u64) {
        self.deadline_ns = deadline_ns;
        if let Some((shared, key)) = self.timer.take() {
            let mut timers = shared.timers.borrow_mut();
            // Without a waker the timer had expired, and the task will be polled.
            let rearmed = timers
                .cancel(key)
                .map(|waker| timers.insert(deadline_ns, waker));
            drop(timers);
            self.timer = rearmed.map(|key| (shared, key));
        }
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
        if self.timer.is_some() && clock::now_ns() >= self.deadline_ns {
            self.disarm();
            return Poll::Ready(());
        }
        // The task's waker may have changed.
        self.disarm();
        let shared = Shared::current();
        // Cloning may run the user's code.
        let waker = context.waker().clone();
        let key = shared.timers.borrow_mut().insert(self.deadline_ns, waker);
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
            .field("deadline_ns", &self.deadline_ns)
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
    let deadline_ns = clock::now_ns().saturating_add(nanoseconds(duration));
    timeout_at(deadline_ns, future).await
}

/// Runs a future until `deadline_ns` at the latest, in nanoseconds of [`clock::now_ns`], and then drops it. Use it to
/// share one deadline among several steps.
///
/// ```
/// use ringloop::time::{sleep, timeout_at};
/// use ringloop::{Runtime, RuntimeConfig, clock};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let deadline_ns = clock::now_ns() + 5_000_000;
///     let mut steps = 0;
///     while timeout_at(deadline_ns, sleep(Duration::from_millis(1))).await.is_ok() {
///         steps += 1;
///     }
///     assert!(clock::now_ns() >= deadline_ns && steps <= 5);
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// See [`timeout`].
pub async fn timeout_at<F: Future>(deadline_ns: u64, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    let mut sleep = sleep_until(deadline_ns);
    std::future::poll_fn(move |context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep)
            .poll(context)
            .map(|()| Err(Elapsed(())))
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
    period_ns: u64,
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
/// use ringloop::time::interval;
/// use ringloop::{Runtime, RuntimeConfig, clock};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let start_ns = clock::now_ns();
///     let mut ticks = interval(Duration::from_millis(1));
///     for _ in 0..3 {
///         ticks.tick().await;
///     }
///     assert!(clock::now_ns() - start_ns >= 3_000_000);
///     Ok(())
/// })
/// # }
/// ```
///
/// # Panics
/// Panics if the period is zero.
///
/// ```
/// use ringloop::time::interval;
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut ticks = interval(Duration::from_millis(1));
/// for _ in 0..3 {
///     ticks.tick().await;
/// }
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn interval(period: Duration) -> Interval {
    let period_ns = nanoseconds(period);
    assert!(period_ns > 0, "an interval needs a period above zero");
    Interval {
        next: sleep(period),
        period_ns,
        missed: MissedTickBehavior::default(),
    }
}

impl Interval {
    /// Waits for the next tick. Returns when it was due, in nanoseconds of [`clock::now_ns`]. Dropping the future does
    /// not lose a tick.
    pub async fn tick(&mut self) -> u64 {
        Armed(&mut self.next).await;
        let due_ns = self.next.deadline_ns;
        let next_ns = self.after(due_ns, clock::now_ns());
        self.next.reset(next_ns);
        due_ns
    }

    /// Returns when the tick after one that was due at `due_ns`, and was noticed at `now_ns`, is due.
    fn after(&self, due_ns: u64, now_ns: u64) -> u64 {
        let missed = now_ns.saturating_sub(due_ns) / self.period_ns;
        match self.missed {
            MissedTickBehavior::Skip => {
                due_ns.saturating_add((missed + 1).saturating_mul(self.period_ns))
            }
            MissedTickBehavior::Delay if missed > 0 => now_ns.saturating_add(self.period_ns),
            MissedTickBehavior::Burst | MissedTickBehavior::Delay => {
                due_ns.saturating_add(self.period_ns)
            }
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
        let ticks = |missed| Interval {
            next: sleep_until(0),
            period_ns: 10,
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
            assert_eq!(skip.after(100, now_ns), skipped);
            assert_eq!(burst.after(100, now_ns), burst_at);
            assert_eq!(delay.after(100, now_ns), delayed);
        }
        assert_eq!(skip.after(u64::MAX - 5, u64::MAX), u64::MAX);
        assert_eq!(delay.after(u64::MAX - 5, u64::MAX), u64::MAX);
    }
}
