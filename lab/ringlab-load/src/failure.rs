//! Failures of connections: their kinds, and how they are counted.

use std::fmt;
use std::io;
use std::sync::Mutex;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::endpoint::Endpoint;

/// The kinds of failures. A failure that [voids](Kind::voids) a run ends it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

const KINDS: [Kind; 12] = [
    Kind::Connect,
    Kind::Handshake,
    Kind::Reset,
    Kind::Closed,
    Kind::HalfAnswer,
    Kind::Timeout,
    Kind::Lost,
    Kind::Mismatch,
    Kind::Unexpected,
    Kind::Status,
    Kind::Malformed,
    Kind::Other,
];

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Handshake => "handshake",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::HalfAnswer => "half_answer",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Mismatch => "mismatch",
            Self::Unexpected => "unexpected",
            Self::Status => "status",
            Self::Malformed => "malformed",
            Self::Other => "other",
        }
    }

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

/// All failures of a run: the number of each kind, and the description of the first. Shared by the threads, but not accessed
/// unless there is a failure.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    kinds: Mutex<[(u64, Option<String>); KINDS.len()]>,
}

impl Failures {
    pub(crate) fn add(&self, failure: Failure) {
        let mut kinds = self
            .kinds
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (count, first) = &mut kinds[failure.kind as usize];
        *count += 1;
        first.get_or_insert(failure.message);
    }

    /// The number of failures of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.read(|kinds| kinds.iter().map(|(count, _)| count).sum())
    }

    /// The description of the first failure of a kind.
    pub(crate) fn first(&self, kind: Kind) -> Option<String> {
        self.read(|kinds| kinds[kind as usize].1.clone())
    }

    /// Why the run is void, if it is.
    pub(crate) fn void_reason(&self) -> Option<String> {
        let voiding = KINDS.into_iter().filter(|kind| kind.voids());
        voiding.into_iter().find_map(|kind| self.first(kind))
    }

    /// `{KIND: {"count": N, "first": TEXT}}`, with the kinds that occurred.
    pub(crate) fn to_json(&self) -> Value {
        self.read(|kinds| {
            let mut object = Map::new();
            for kind in KINDS {
                let (count, first) = &kinds[kind as usize];
                if *count == 0 {
                    continue;
                }
                object.insert(kind.name().into(), json!({"count": count, "first": first}));
            }
            Value::Object(object)
        })
    }

    fn read<R>(&self, look: impl FnOnce(&[(u64, Option<String>); KINDS.len()]) -> R) -> R {
        look(
            &self
                .kinds
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        )
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
        assert_eq!(failures.total(), 3);
        assert_eq!(
            failures.to_json(),
            json!({"reset": {"count": 2, "first": "a"}, "timeout": {"count": 1, "first": "b"}})
        );
        assert_eq!(failures.void_reason(), None);
        failures.add(Failure::new(Kind::Unexpected, "d"));
        assert_eq!(failures.void_reason().as_deref(), Some("d"));
    }
}
