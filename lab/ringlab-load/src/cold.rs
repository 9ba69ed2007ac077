//! The first message of fresh connections, which costs more than the messages after it.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::Socket;

use crate::failure::{Failure, Failures, Kind, connect_failure};
use crate::latencies::Latencies;
use crate::pattern::{Frame, Pattern};
use crate::settings::Settings;
use crate::system::now_ns;

/// The first number of fresh connections, so that their frames differ from all others.
const FIRST_NUMBER: u32 = 1 << 31;

/// How often to check, while nothing comes, whether to continue.
const LOOK: Duration = Duration::from_millis(50);

/// Latencies of fresh connections.
#[derive(Debug)]
pub(crate) struct Cold {
    pub(crate) connect: Latencies,
    /// From sending the first message to receiving its whole echo.
    pub(crate) first_message: Latencies,
    /// That latency on the very first connection.
    pub(crate) first_of_all_ns: Option<u64>,
}

/// Makes `count` connections, one after the other, and sends one message on each.
pub(crate) fn measure(
    settings: &Settings,
    pattern: &mut Pattern,
    count: u32,
    interrupted: &AtomicBool,
    failures: &Failures,
) -> Cold {
    let mut cold = Cold {
        connect: Latencies::new(),
        first_message: Latencies::new(),
        first_of_all_ns: None,
    };
    let mut buffer = vec![0; pattern.size()];
    for index in 0..count {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        match one_message(settings, pattern, index, &mut buffer, interrupted) {
            Ok(None) => break,
            Ok(Some((connect_ns, message_ns))) => {
                cold.connect.record(connect_ns);
                cold.first_message.record(message_ns);
                if index == 0 {
                    cold.first_of_all_ns = Some(message_ns);
                }
            }
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
    cold
}

/// The latencies of connecting and of the message, in ns. `None` if it was interrupted.
fn one_message(
    settings: &Settings,
    pattern: &mut Pattern,
    index: u32,
    buffer: &mut [u8],
    interrupted: &AtomicBool,
) -> Result<Option<(u64, u64)>, Failure> {
    let timeout = Duration::from_nanos(settings.timeout_ns);
    let frame = Frame {
        connection: FIRST_NUMBER + index,
        sequence: 0,
    };
    let began_ns = now_ns();
    let mut stream = (settings.endpoint.connect(timeout))
        .map_err(|error| connect_failure(index, &settings.endpoint, &error))?;
    let connected_ns = now_ns();
    let prepared = stream
        .set_read_timeout(Some(timeout.min(LOOK)))
        .and_then(|()| stream.set_write_timeout(Some(timeout)));
    prepared.map_err(|error| explain(index, &error, 0))?;

    let sent_ns = now_ns();
    // The server echoes while it receives. If a message fills all buffers, sending all of it before receiving would be a
    // deadlock.
    let mut sent = 0;
    let mut received = 0;
    let size = buffer.len();
    let portion = 64 * 1024;
    while received < size {
        if sent < size {
            let until = (sent + portion).min(size);
            pattern
                .with_frame(frame, |bytes| stream.write_all(&bytes[sent..until]))
                .map_err(|error| explain(index, &error, received))?;
            sent = until;
        }
        // Up to a portion, which any socket can hold, stays outstanding. At the end, wait for everything.
        while received < size && (sent == size || sent - received > portion) {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if now_ns() - sent_ns > settings.timeout_ns {
                return Err(explain(index, &io::ErrorKind::TimedOut.into(), received));
            }
            // The echo can't be longer than what was sent. Extra bytes are detected with the next ones.
            match receive(&mut stream, &mut buffer[received..sent], settings.spin_ns) {
                Ok(0) => {
                    return Err(explain(
                        index,
                        &io::ErrorKind::UnexpectedEof.into(),
                        received,
                    ));
                }
                Ok(bytes) => received += bytes,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                    ) => {}
                Err(error) => return Err(explain(index, &error, received)),
            }
        }
    }
    let answered_ns = now_ns();
    pattern.check(frame, 0, buffer)?;
    Ok(Some((connected_ns - began_ns, answered_ns - sent_ns)))
}

/// Receives something. It spins before it sleeps, as the load does, so that the two can be compared.
fn receive(stream: &mut Socket, buffer: &mut [u8], spin_ns: u64) -> io::Result<usize> {
    if spin_ns > 0 {
        stream.set_nonblocking(true)?;
        let until_ns = now_ns() + spin_ns;
        let result = loop {
            match stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if now_ns() >= until_ns {
                        break None;
                    }
                }
                result => break Some(result),
            }
        };
        stream.set_nonblocking(false)?;
        if let Some(result) = result {
            return result;
        }
    }
    stream.read(buffer)
}

fn explain(index: u32, error: &io::Error, received: usize) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Kind::Timeout,
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
    Failure::new(
        kind,
        format!(
            "fresh connection {index}: {what}, after {received} bytes of the echo of its first message"
        ),
    )
}
