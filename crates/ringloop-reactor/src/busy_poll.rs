//! How long to poll before sleeping: the user's choice, and the policy behind `adaptive`.
//!
//! A thread that sleeps in the kernel is woken late, by a few microseconds where its CPU was still
//! warm and by more than thirty where a virtual machine had halted it. A thread that polls instead
//! sees an event at once, but burns its CPU until then. Which is better depends on the machine,
//! on its load at the moment and on the program, so the policy does not assume: it measures both.
//!
//! - While it sleeps, it tracks the average length of short waits. If program and machine are idle, if the loop only
//!   waits for the next tick of a timer, or if a busy server finds several events at each wait, it keeps sleeping,
//!   which costs nothing.
//! - After several short waits in a row it tries polling, for up to twice as long as a wait lasted. If events arrive
//!   sooner by a fair part of the time spent polling, it keeps polling. Otherwise it goes back to sleep, and needs four
//!   times the evidence before it tries again.
//! - While it polls, it sleeps through one wait in 256, so that the comparison stays valid when the machine's load
//!   changes. When events stop arriving, two missed windows are enough to go back to sleep.
//! - Time spent polling without an event counts as wasted. It is paid from an allowance that grows by one sixty-fourth
//!   of elapsed time, so that no pattern of arrivals can waste more than that.
//!
//! A window that grows with short waits and shrinks with long ones is the idea of KVM's halt polling
//! (Documentation/virt/kvm/halt-polling.rst in the kernel's sources). Comparing what polling gains with what it costs
//! is our addition: a process pays for its CPU time, a hypervisor less so.

mod policy;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

pub(crate) use policy::{Policy, Wait};

/// The environment variable that [`BusyPoll::from_env`] reads.
const VARIABLE: &str = "RINGLOOP_BUSY_POLL";

/// Whether [`Reactor::turn`](crate::Reactor::turn) polls for a while before it sleeps.
///
/// As text, in the environment variable `RINGLOOP_BUSY_POLL` and in Python: `off`, `adaptive`, or a
/// number of microseconds.
///
/// ```
/// use ringloop_reactor::BusyPoll;
/// use std::time::Duration;
///
/// assert_eq!("50".parse::<BusyPoll>()?, BusyPoll::Fixed(Duration::from_micros(50)));
/// assert_eq!(BusyPoll::Adaptive.to_string(), "adaptive");
/// # Ok::<(), ringloop_reactor::busy_poll::UnknownBusyPoll>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BusyPoll {
    /// Never poll: sleep in the kernel at once.
    Off,
    /// Poll while that makes events arrive sooner, by an amount that is worth the CPU it takes.
    /// Never polls where the thread may run on one CPU only. What it wastes, in windows that end
    /// without an event, is at most one sixty-fourth of elapsed time.
    #[default]
    Adaptive,
    /// Poll for this long before every sleep, whatever it costs: for a thread with a CPU of its own.
    Fixed(Duration),
}

impl BusyPoll {
    /// Reads the choice from the environment variable `RINGLOOP_BUSY_POLL`, ignoring case and surrounding white space.
    /// Returns the default if the variable is unset or empty.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the value is not one of those that [`BusyPoll`] names.
    pub fn from_env() -> io::Result<Self> {
        Self::from_variable(std::env::var_os(VARIABLE).as_deref())
    }

    fn from_variable(value: Option<&OsStr>) -> io::Result<Self> {
        let value = value.unwrap_or_default().to_string_lossy();
        let text = value.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let choice = text.to_ascii_lowercase().parse();
        // The error quotes the value as it was written.
        let choice = choice.or_else(|_| text.parse());
        choice.map_err(|error: UnknownBusyPoll| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{VARIABLE}: {error}"))
        })
    }
}

/// The error for a text that is no [`BusyPoll`]. It quotes the text, and says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownBusyPoll {
    text: String,
}

impl fmt::Display for UnknownBusyPoll {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "'{}' is not a valid busy_poll value; use 'off', 'adaptive' or a number of microseconds from 0 to {}",
            self.text,
            u32::MAX
        )
    }
}

impl std::error::Error for UnknownBusyPoll {}

impl From<UnknownBusyPoll> for io::Error {
    fn from(error: UnknownBusyPoll) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

impl FromStr for BusyPoll {
    type Err = UnknownBusyPoll;

    fn from_str(text: &str) -> Result<Self, UnknownBusyPoll> {
        // `parse` would also accept a sign.
        let digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
        match (text, text.parse::<u32>()) {
            ("off", _) => return Ok(Self::Off),
            ("adaptive", _) => return Ok(Self::Adaptive),
            (_, Ok(microseconds)) if digits_only => {
                return Ok(Self::Fixed(Duration::from_micros(microseconds.into())));
            }
            _ => {}
        }
        Err(UnknownBusyPoll {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for BusyPoll {
    /// The form that [`FromStr`] reads.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => formatter.write_str("off"),
            Self::Adaptive => formatter.write_str("adaptive"),
            Self::Fixed(window) => write!(formatter, "{}", window.as_micros()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 128 }))]
        #[test]
        fn a_fixed_window_is_read_back_as_it_was_written(microseconds: u32) {
            let choice = BusyPoll::Fixed(Duration::from_micros(microseconds.into()));
            prop_assert_eq!(choice.to_string().parse::<BusyPoll>().unwrap(), choice);
        }
    }

    #[test]
    fn the_environment_has_a_say() {
        let read = |value: &str| BusyPoll::from_variable(Some(OsStr::new(value)));
        assert_eq!(BusyPoll::from_variable(None).unwrap(), BusyPoll::Adaptive);
        assert_eq!(read("").unwrap(), BusyPoll::Adaptive);
        assert_eq!(read("off").unwrap(), BusyPoll::Off);
        assert_eq!(read(" OFF\n").unwrap(), BusyPoll::Off);
        assert_eq!(read("Adaptive").unwrap(), BusyPoll::Adaptive);
        let error = read("sometimes").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let expected = "RINGLOOP_BUSY_POLL: 'sometimes' is not a valid busy_poll value; use 'off'";
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    #[test]
    fn the_choice_is_read_from_text() {
        assert_eq!("off".parse::<BusyPoll>().unwrap(), BusyPoll::Off);
        assert_eq!("adaptive".parse::<BusyPoll>().unwrap(), BusyPoll::Adaptive);
        assert_eq!(
            "0".parse::<BusyPoll>().unwrap(),
            BusyPoll::Fixed(Duration::ZERO)
        );
        for text in ["", "on", "OFF", "-1", "+5", "1.5", "20us", "4294967296"] {
            let error = text.parse::<BusyPoll>().unwrap_err();
            let message = error.to_string();
            let error = io::Error::from(error);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), message);
            for part in [&format!("'{text}'"), "'off'", "'adaptive'", "microseconds"] {
                assert!(message.contains(part), "{message:?} does not name {part}");
            }
        }
    }
}
