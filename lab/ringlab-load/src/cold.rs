//! The first message of fresh connections, which costs more than the messages after it.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::failure::{Failure, Failures, Kind, connect_failure};
use crate::latencies::Latencies;
use crate::pattern::{Frame, Pattern};
use crate::settings::Settings;
use crate::system::{EDGE_TRIGGERED, ENDED, Epoll, NO_EVENT, READABLE, WRITABLE, Wait, now_ns};

/// The first number of fresh connections, so that their frames differ from all others.
const FIRST_NUMBER: u32 = 1 << 31;

/// How often to check, while nothing comes, whether to continue.
const LOOK_NS: u64 = 50_000_000;

/// Makes `count` connections, one after the other, and sends one message on each. Returns the latencies from sending it to receiving
/// its whole echo.
pub(crate) fn measure(
    settings: &Settings,
    pattern: &mut Pattern,
    count: u32,
    interrupted: &AtomicBool,
    failures: &Failures,
) -> Latencies {
    let mut latencies = Latencies::default();
    let mut buffer = vec![0; pattern.size()];
    for index in 0..count {
        match one_message(settings, pattern, index, &mut buffer, interrupted) {
            Ok(None) => break,
            Ok(Some(latency_ns)) => latencies.record(latency_ns),
            Err(failure) => {
                // It would take as long for each further connection.
                let hopeless =
                    matches!(failure.kind, Kind::Connect | Kind::Timeout) || failure.kind.voids();
                failures.add(failure);
                if hopeless {
                    break;
                }
            }
        }
    }
    latencies
}

/// The latency of the message, in ns. `None` if it was interrupted.
fn one_message(
    settings: &Settings,
    pattern: &mut Pattern,
    index: u32,
    buffer: &mut [u8],
    interrupted: &AtomicBool,
) -> Result<Option<u64>, Failure> {
    let frame = Frame {
        connection: FIRST_NUMBER + index,
        sequence: 0,
    };
    let timeout = Duration::from_nanos(settings.timeout_ns);
    let mut stream = (settings.endpoint.connect(timeout))
        .map_err(|error| connect_failure(index, &settings.endpoint, &error))?;
    let watch = || -> io::Result<Epoll> {
        stream.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        epoll.add(&stream, READABLE | WRITABLE | ENDED | EDGE_TRIGGERED, 0)?;
        Ok(epoll)
    };
    let epoll = watch().map_err(|error| explain(index, &error, 0))?;

    let sent_ns = now_ns();
    let mut moved_ns = sent_ns;
    let (mut sent, mut received) = (0, 0);
    // The server echoes while it receives. Sending all of a message before receiving would be a deadlock, if it fills all buffers.
    while received < buffer.len() {
        let explain = move |error: io::Error| explain(index, &error, received);
        let now = now_ns();
        if interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if now - sent_ns > settings.timeout_ns {
            return Err(explain(io::ErrorKind::TimedOut.into()));
        }
        let mut bytes = 0;
        if sent < buffer.len() {
            bytes = pattern
                .with_frame(frame, |message| moved(stream.write(&message[sent..])))
                .map_err(explain)?;
            sent += bytes;
        }
        // The echo can't be longer than what was sent. Extra bytes are detected with the next ones.
        if received < sent {
            let came = moved(stream.read(&mut buffer[received..sent])).map_err(explain)?;
            received += came;
            bytes += came;
        }
        if bytes > 0 {
            moved_ns = now;
        } else if now - moved_ns > settings.spin_ns {
            // It spins before it sleeps, as the load does, so that the two can be compared.
            epoll
                .wait(&mut [NO_EVENT], Wait::Coarse(LOOK_NS))
                .map_err(explain)?;
        }
    }
    let answered_ns = now_ns();
    pattern.check(frame, 0, buffer)?;
    Ok(Some(answered_ns - sent_ns))
}

/// How many bytes a call has moved, which may be none for now. The end of the connection is an error.
fn moved(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
            ) =>
        {
            Ok(0)
        }
        result => result,
    }
}

fn explain(index: u32, error: &io::Error, received: usize) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::TimedOut => Kind::Timeout,
        _ if received > 0 => Kind::HalfAnswer,
        io::ErrorKind::UnexpectedEof => Kind::Closed,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Kind::Reset,
        _ => Kind::Other,
    };
    let what = match kind {
        Kind::Timeout => "no whole echo came in time".to_owned(),
        Kind::Closed => "the server closed it".to_owned(),
        _ => error.to_string(),
    };
    let words = format!(
        "fresh connection {index}: {what}, after {received} bytes of the echo of its first message"
    );
    Failure::new(kind, words)
}
