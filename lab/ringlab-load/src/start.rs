//! When a load begins that other machines begin at the same instant: whoever started the generators says so on their stdin, once all of
//! them are connected.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Nothing has been said yet.
const UNKNOWN: u64 = 0;
/// stdin has ended, or what it said is no instant.
const NEVER: u64 = u64::MAX;

/// The instant at which the warm-up begins, on CLOCK_MONOTONIC.
#[derive(Debug)]
pub(crate) struct Start(AtomicU64);

impl Start {
    /// Waits for the instant in a thread of its own.
    pub(crate) fn from_stdin() -> Arc<Self> {
        let start = Arc::new(Self(AtomicU64::new(UNKNOWN)));
        let told = Arc::clone(&start);
        thread::spawn(move || told.0.store(read().unwrap_or(NEVER), Ordering::Release));
        start
    }

    /// The instant in ns, `None` as long as nobody has said it. After the error nobody will.
    pub(crate) fn instant_ns(&self) -> Option<Result<u64, &'static str>> {
        match self.0.load(Ordering::Acquire) {
            UNKNOWN => None,
            NEVER => Some(Err("stdin ended before it said when to start")),
            instant_ns => Some(Ok(instant_ns)),
        }
    }
}

/// Reads an instant from stdin, which must be a line with a number of ns. `None` if there is none.
pub(crate) fn read() -> Option<u64> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).ok()?;
    line.trim()
        .parse()
        .ok()
        .filter(|&instant_ns| instant_ns != UNKNOWN)
}
