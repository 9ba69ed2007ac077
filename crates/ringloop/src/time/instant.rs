//! Points in time.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use ringloop_reactor::clock;

/// A point in time, on the clock of all deadlines ([`crate::clock`]): `CLOCK_MONOTONIC`, in nanoseconds.
///
/// Arithmetic saturates: the latest point in time is some 584 years after the machine was started, and no difference is
/// negative.
///
/// ```
/// use ringloop::time::Instant;
/// use std::time::Duration;
///
/// let start = Instant::now();
/// let deadline = start + Duration::from_secs(5);
/// assert!(start < deadline);
/// assert_eq!(deadline - start, Duration::from_secs(5));
/// assert_eq!(start - deadline, Duration::ZERO);
/// assert!(start.elapsed() < Duration::from_secs(5));
/// assert!(deadline < start + Duration::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

/// A duration in nanoseconds. One of more than 584 years counts as that.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Instant {
    /// The present.
    #[inline]
    pub fn now() -> Self {
        Self(clock::now_ns())
    }

    /// A point in time by its nanoseconds of [`clock::now_ns`], as a [`Reactor`](crate::Reactor) and
    /// [`Timers`](crate::timers::Timers) have it.
    #[inline]
    pub const fn from_clock_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// The nanoseconds of [`clock::now_ns`].
    #[inline]
    pub const fn as_clock_ns(self) -> u64 {
        self.0
    }

    /// How long ago it was; zero if it is in the future.
    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }
}

impl From<std::time::Instant> for Instant {
    /// The same point in time. The standard library does not say what its clock shows, so both clocks are read, one after
    /// the other: the result is late by a few nanoseconds, and never early.
    fn from(instant: std::time::Instant) -> Self {
        let std_now = std::time::Instant::now();
        let now = Self::now();
        match instant.checked_duration_since(std_now) {
            Some(ahead) => now + ahead,
            None => now - std_now.saturating_duration_since(instant),
        }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanoseconds(duration)))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// How much later it is than `earlier`; zero if it is not later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Instant {
    /// The seconds of the clock.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ns) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        write!(formatter, "Instant({seconds}.{ns:09})")
    }
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let (first, last) = (Instant(0), Instant(u64::MAX));
        assert_eq!(first - Duration::MAX, first);
        assert_eq!(last + Duration::from_nanos(1), last);
        assert_eq!(first + Duration::MAX, last);
        assert_eq!(first - last, Duration::ZERO);
        assert_eq!(last - first, Duration::from_nanos(u64::MAX));
        let mut instant = Instant(5);
        instant += Duration::from_nanos(10);
        instant -= Duration::from_nanos(3);
        assert_eq!(instant.as_clock_ns(), 12);
        assert_eq!(
            format!("{:?}", Instant(3_000_000_007)),
            "Instant(3.000000007)"
        );
    }

    #[test]
    fn a_point_in_time_of_the_standard_library_is_the_same_one_here() {
        let day = Duration::from_secs(86_400);
        for std in [std::time::Instant::now(), std::time::Instant::now() + day] {
            let (before, std_before) = (Instant::now(), std::time::Instant::now());
            let instant = Instant::from(std);
            let took = before.elapsed();
            let expected = before + std.saturating_duration_since(std_before);
            let earliest = expected - std_before.saturating_duration_since(std);
            assert!(instant >= earliest && instant <= earliest + took);
        }
    }
}
