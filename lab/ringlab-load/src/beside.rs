//! Connections beside the measured ones: each asks for one path, again and again, in a thread of its own that sleeps until the answer
//! comes. They are for seeing how slow requests affect the measured ones. Their answers are checked for their status, and not measured.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Kind, connect_failure};
use crate::http;
use crate::settings::{Beside, Settings};
use crate::shared::{Phase, Shared};

/// How often to check whether the run is over.
const TICK: Duration = Duration::from_millis(20);
const READ_BYTES: usize = 64 * 1024;

/// Asks on one of these connections from the warm-up until the end of the window, and counts the answers. Ends at its first failure.
pub(crate) fn ask(
    settings: &Settings,
    beside: &Beside,
    number: u32,
    shared: &Shared,
    answered: &AtomicU64,
) {
    while shared.phase() < Phase::WarmUp {
        thread::sleep(TICK);
    }
    match ask_until_drained(settings, beside, number, shared, answered) {
        // At the end, the server may have closed the connection first.
        Err(failure) if shared.phase() < Phase::Drain => shared.fail(failure),
        _ => {}
    }
}

fn ask_until_drained(
    settings: &Settings,
    beside: &Beside,
    number: u32,
    shared: &Shared,
    answered: &AtomicU64,
) -> Result<(), Failure> {
    let (endpoint, timeout) = (
        &settings.endpoint,
        Duration::from_nanos(settings.timeout_ns),
    );
    let place = format!("connection {number} beside the measured ones");
    let broke =
        |kind: Kind, words: &dyn std::fmt::Display| Failure::new(kind, format!("{place}: {words}"));
    let is_over = || shared.phase() >= Phase::Drain;
    let mut buffer = vec![0; READ_BYTES];
    let mut socket = None;
    while !is_over() {
        let link = if let Some(link) = &mut socket {
            link
        } else {
            let made = endpoint
                .connect(timeout)
                .and_then(|made| made.set_read_timeout(Some(TICK)).map(|()| made))
                .map_err(|error| connect_failure(number, endpoint, &error))?;
            socket.insert(made)
        };
        link.write_all(&beside.request)
            .map_err(|error| broke(Kind::Reset, &error))?;
        let asked = Instant::now();
        let mut response = Vec::new();
        let whole = loop {
            if is_over() {
                return Ok(());
            }
            if asked.elapsed() >= timeout {
                let words = format!("no answer within {} s", timeout.as_secs_f64());
                return Err(broke(Kind::Timeout, &words));
            }
            match link.read(&mut buffer) {
                Ok(0) => return Err(broke(Kind::Closed, &"the server closed it")),
                Ok(bytes) => response.extend_from_slice(&buffer[..bytes]),
                Err(error) if is_no_failure(&error) => continue,
                Err(error) => return Err(broke(Kind::Reset, &error)),
            }
            let parsed = http::parse(&response).map_err(|words| broke(Kind::Malformed, &words))?;
            if let Some(parsed) = parsed
                && parsed.body.is_some()
            {
                break parsed;
            }
        };
        if whole.status != 200 {
            let words = format!("it was answered with status {}", whole.status);
            return Err(broke(Kind::Status, &words));
        }
        if whole.bytes < response.len() {
            let words = format!(
                "{} bytes came after the answer",
                response.len() - whole.bytes
            );
            return Err(broke(Kind::Unexpected, &words));
        }
        answered.fetch_add(1, Ordering::Relaxed);
        if whole.last {
            socket = None;
        }
    }
    Ok(())
}

/// Nothing has come yet.
fn is_no_failure(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
