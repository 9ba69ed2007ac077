//! What is sent and what must come back: the part of the generator that knows a protocol.

use std::io::{self, Write};
use std::net::TcpStream;

use crate::failure::{Failure, Kind};
use crate::pattern::{Frame, Pattern};

/// A protocol of requests and answers, which come in the order of the requests. Each thread has one of its own.
pub(crate) trait Exchange {
    /// What is remembered of an answer of which a part has come.
    type Partial: Default;

    /// Bytes flow both ways without pauses: what counts is how many came back, and there are no single latencies.
    const STREAMING: bool = false;

    /// A connection that the server closes after an answer, with nothing else to answer, is made anew.
    const RECONNECTS: bool = false;

    /// The length of each request in bytes.
    fn request_bytes(&self) -> usize;

    /// Sends requests from `first` on, beginning at byte `position` of it, `count` at most; returns how many bytes the socket took.
    fn send(
        &mut self,
        to: &TcpStream,
        first: Frame,
        position: usize,
        count: usize,
    ) -> io::Result<usize>;

    /// Takes received bytes, which are not none, of the answer to `request`: at most to its end.
    fn take(
        &mut self,
        request: Frame,
        partial: &mut Self::Partial,
        received: &[u8],
    ) -> Result<Taken, Failure>;

    /// How much of an answer has come, in words; `None` if nothing has.
    fn describe(&self, partial: &Self::Partial) -> Option<String>;
}

/// What was made of received bytes.
#[derive(Debug)]
pub(crate) struct Taken {
    /// How many of them belong to the answer.
    pub(crate) bytes: usize,
    pub(crate) answer: Answer,
}

/// How far an answer is.
#[derive(Debug)]
pub(crate) enum Answer {
    /// More is to come.
    Incomplete,
    /// Nothing more is to come.
    Complete {
        /// The server says that it will close the connection.
        last: bool,
        /// Why it isn't what was asked for, though the connection can go on.
        wrong: Option<Failure>,
    },
}

/// Frames that are echoed.
#[derive(Clone, Debug)]
pub(crate) struct Frames(pub(crate) Pattern);

impl Exchange for Frames {
    /// How many bytes have come.
    type Partial = usize;

    fn request_bytes(&self) -> usize {
        self.0.size()
    }

    fn send(
        &mut self,
        to: &TcpStream,
        first: Frame,
        position: usize,
        count: usize,
    ) -> io::Result<usize> {
        self.0.write(to, first, position, count)
    }

    #[inline]
    fn take(
        &mut self,
        request: Frame,
        partial: &mut usize,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        let wanted = self.0.size() - *partial;
        let bytes = wanted.min(received.len());
        self.0.check(request, *partial, &received[..bytes])?;
        let answer = if bytes == wanted {
            *partial = 0;
            Answer::Complete {
                last: false,
                wrong: None,
            }
        } else {
            *partial += bytes;
            Answer::Incomplete
        };
        Ok(Taken { bytes, answer })
    }

    fn describe(&self, partial: &usize) -> Option<String> {
        (*partial > 0).then(|| format!("{partial} of {} bytes of its echo", self.0.size()))
    }
}

/// What the streams say, over and over.
pub(crate) const STREAM_MESSAGE: &[u8] = b"hello world";
/// How much of a stream is written at once.
pub(crate) const STREAM_WRITE_BYTES: usize = 128 * 1024;

/// How many bytes of a stream may be sent and not have come back, on each of so many connections.
///
/// A server that doesn't read on while it can't send leaves them in the buffers of the two sockets (tcp_rmem and tcp_wmem, tens of MB
/// at most, and mostly less than 10): on few connections it never meets this bound. One that takes everything before it answers would
/// take until the machine has no memory left. What is below the bound keeps any server busy.
pub(crate) fn outstanding_most(connections: u32) -> u64 {
    const MIB: u64 = 1024 * 1024;
    (1024 * MIB / u64::from(connections.max(1))).clamp(4 * MIB, 256 * MIB)
}

/// Endless streams of 'hello world', as tcpkali sends them, that are echoed. `Frame::sequence` has no meaning for them; positions
/// are those within the repeated message.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    repeated: Vec<u8>,
}

impl Stream {
    /// Streams of which at most `read_bytes` are received at once.
    pub(crate) fn new(read_bytes: usize) -> Self {
        let length = read_bytes.max(STREAM_WRITE_BYTES) + STREAM_MESSAGE.len();
        Self {
            repeated: STREAM_MESSAGE
                .iter()
                .copied()
                .cycle()
                .take(length)
                .collect(),
        }
    }
}

impl Exchange for Stream {
    /// How many bytes have come since the connection was made.
    type Partial = u64;

    const STREAMING: bool = true;

    fn request_bytes(&self) -> usize {
        STREAM_MESSAGE.len()
    }

    fn send(
        &mut self,
        mut to: &TcpStream,
        _: Frame,
        position: usize,
        _: usize,
    ) -> io::Result<usize> {
        to.write(&self.repeated[position..][..STREAM_WRITE_BYTES])
    }

    fn take(
        &mut self,
        request: Frame,
        partial: &mut u64,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        let position = (*partial % STREAM_MESSAGE.len() as u64) as usize;
        let expected = &self.repeated[position..][..received.len()];
        if received != expected {
            let wrong = received
                .iter()
                .zip(expected)
                .position(|(came, sent)| came != sent)
                .unwrap_or(0);
            return Err(Failure::new(
                Kind::Mismatch,
                format!(
                    "wrong echo on connection {}: byte {} of the stream is 0x{:02x}, 0x{:02x} was sent",
                    request.connection,
                    *partial + wrong as u64,
                    received[wrong],
                    expected[wrong],
                ),
            ));
        }
        *partial += received.len() as u64;
        Ok(Taken {
            bytes: received.len(),
            answer: Answer::Incomplete,
        })
    }

    fn describe(&self, partial: &u64) -> Option<String> {
        Some(format!("{partial} bytes of the stream"))
    }
}
