//! Failures of connections: their kinds, and how they are counted.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

use crate::endpoint::Endpoint;

/// The kinds of failures. A failure that [voids](Kind::voids) a run ends it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A connection couldn't be made.
    Connect,
    /// The server didn't speak the protocol: TLS, WebSocket or HTTP/2 couldn't be begun.
    Handshake,
    /// The server reset a connection.
    Reset,
    /// The server closed a connection before it answered.
    Closed,
    /// The server closed or reset a connection in the middle of an answer.
    HalfAnswer,
    /// No answer came in time.
    Timeout,
    /// No answer to a datagram came in time. Others may.
    Lost,
    /// An answer has wrong bytes.
    Mismatch,
    /// Bytes came that nobody had asked for.
    Unexpected,
    /// An HTTP response with a status other than 200.
    Status,
    /// Something that isn't an HTTP response.
    Malformed,
    /// Any other error that the kernel reports.
    Other,
}

impl Kind {
    /// Whether it makes all figures of the run meaningless.
    pub(crate) fn voids(self) -> bool {
        matches!(self, Self::Mismatch | Self::Unexpected)
    }
}

/// A failure, with its description.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// The failures of a kind: their number, and the description of the first.
#[derive(Debug, Default, Serialize)]
struct Counted {
    count: u64,
    first: String,
}

/// All failures of a run. Shared with the connections beside the load, but not accessed unless there is a failure.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<BTreeMap<Kind, Counted>>);

impl Failures {
    pub(crate) fn add(&self, failure: Failure) {
        let mut kinds = self.kinds();
        let counted = kinds.entry(failure.kind).or_default();
        if counted.count == 0 {
            counted.first = failure.message;
        }
        counted.count += 1;
    }

    /// The description of the first failure of a kind.
    pub(crate) fn first(&self, kind: Kind) -> Option<String> {
        self.kinds().get(&kind).map(|counted| counted.first.clone())
    }

    /// Why the run is void, if it is.
    pub(crate) fn void_reason(&self) -> Option<String> {
        let kinds = self.kinds();
        let voiding = kinds.iter().find(|(kind, _)| kind.voids());
        voiding.map(|(_, counted)| counted.first.clone())
    }

    /// `{KIND: {"count": N, "first": TEXT}}`, with the kinds that occurred.
    pub(crate) fn to_json(&self) -> Value {
        json!(*self.kinds())
    }

    fn kinds(&self) -> MutexGuard<'_, BTreeMap<Kind, Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a connection couldn't be made, and what to do about it.
pub(crate) fn connect_failure(number: u32, endpoint: &Endpoint, error: &io::Error) -> Failure {
    let advice = match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => format!(
            "; no local port is free: there are {} for one address (net.ipv4.ip_local_port_range), and closed connections keep theirs \
             for a minute",
            crate::system::local_ports()
                .map_or_else(|| "few".to_owned(), |count| count.to_string())
        ),
        Some(libc::EMFILE) => "; this process may open no more descriptors (ulimit -n)".to_owned(),
        Some(libc::ENFILE) => "; the machine may open no more descriptors (fs.file-max)".to_owned(),
        Some(libc::ECONNREFUSED | libc::ENOENT) => "; is the server listening there?".to_owned(),
        Some(libc::EAGAIN) => "; its backlog is full, because the server accepts connections more slowly than they are opened (--ramp)"
            .to_owned(),
        _ => String::new(),
    };
    Failure::new(
        Kind::Connect,
        format!("connection {number} to {endpoint} failed: {error}{advice}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_ports_and_descriptors_are_explained() {
        let endpoint = Endpoint::Tcp("127.0.0.1:80".parse().unwrap());
        for (error, words) in [
            (libc::EADDRNOTAVAIL, "no local port is free"),
            (libc::EMFILE, "ulimit -n"),
            (libc::ENFILE, "fs.file-max"),
            (libc::ECONNREFUSED, "is the server listening there?"),
            (libc::EAGAIN, "its backlog is full"),
        ] {
            let failure = connect_failure(7, &endpoint, &io::Error::from_raw_os_error(error));
            assert_eq!(failure.kind, Kind::Connect);
            assert!(
                failure
                    .message
                    .starts_with("connection 7 to 127.0.0.1:80 failed: "),
                "{failure}"
            );
            assert!(failure.message.contains(words), "{failure}");
        }
    }

    #[test]
    fn failures_are_counted_by_kind_with_the_first_of_each() {
        let failures = Failures::default();
        for (kind, message) in [(Kind::Reset, "a"), (Kind::Timeout, "b"), (Kind::Reset, "c")] {
            failures.add(Failure::new(kind, message));
        }
        assert_eq!(
            failures.to_json(),
            json!({"reset": {"count": 2, "first": "a"}, "timeout": {"count": 1, "first": "b"}})
        );
        assert_eq!(failures.void_reason(), None);
        failures.add(Failure::new(Kind::Unexpected, "d"));
        assert_eq!(failures.void_reason().as_deref(), Some("d"));
    }
}
