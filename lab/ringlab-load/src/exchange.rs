//! Protocols: what is sent, and what must come back.

use std::io::{self, Write};
use std::net::Shutdown;

use crate::failure::{Failure, Kind};
use crate::link::Link;
use crate::pattern::{Frame, Pattern, Unsent, difference};

/// A protocol of requests and answers. Answers come in the order of the requests.
pub(crate) trait Exchange {
    /// The state of an answer that has come in part.
    type Partial: Default;

    /// Whether bytes flow both ways without pauses. Then the bytes that come back are counted, and there are no latencies.
    const STREAMING: bool = false;

    /// Whether the server sends nothing before the end of a stream, and then its whole answer.
    const ONE_WAY: bool = false;

    /// Whether to open a connection again that the server closes after an answer, with no request outstanding.
    const RECONNECTS: bool = false;

    /// Whether the server may send frames that answer no request. `take` skips them, and gets them even if nothing was asked.
    const CONTROL_FRAMES: bool = false;

    /// Whether each request and each answer is a datagram, which may be lost. Then `take` gets whole datagrams, and each connection has
    /// at most one request in flight.
    const DATAGRAMS: bool = false;

    /// The bytes that a new connection sends first, before any request. Empty if the protocol needs nothing.
    fn greeting(&self) -> &[u8] {
        &[]
    }

    /// Takes all that has come in answer to the greeting. Returns what to send in reply: a few bytes, so that an idle socket takes
    /// them at once. `None` if more is to come.
    fn greeted(&self, _received: &[u8]) -> Result<Option<&'static [u8]>, Failure> {
        Ok(None)
    }

    /// The length of each request in bytes.
    fn request_bytes(&self) -> usize;

    /// Sends requests, all or some of them. Returns how many bytes the socket took.
    fn send(&mut self, to: &mut Link, unsent: Unsent) -> io::Result<usize>;

    /// Ends a stream of which `sent` bytes were sent, if that is what the server waits for.
    fn end(&self, _to: &Link, _partial: &mut Self::Partial, _sent: u64) -> io::Result<()> {
        Ok(())
    }

    /// Takes received bytes (at least one) of the answer to `request`, at most up to its end.
    fn take(
        &mut self,
        request: Frame,
        partial: &mut Self::Partial,
        received: &[u8],
    ) -> Result<Taken, Failure>;

    /// Whether the answer to the next request has come already, with earlier bytes. Then `take` needs no more of them.
    fn has_next(_partial: &Self::Partial) -> bool {
        false
    }

    /// How much of an answer has come, as text. `None` if nothing has.
    fn describe(&self, partial: &Self::Partial) -> Option<String>;
}

/// The result of taking received bytes.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The number of bytes that belong to the answer.
    pub(crate) bytes: usize,
    /// The answer, if it is complete.
    pub(crate) answer: Option<Answer>,
}

/// A complete answer; the default is a right one, after which the connection goes on.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Whether the server has announced that it will close the connection.
    pub(crate) last: bool,
    /// Why the answer is wrong, although the connection can go on.
    pub(crate) wrong: Option<Failure>,
}

/// Echoed frames. If each is a datagram, the kernel or the server may lose some.
#[derive(Debug)]
pub(crate) struct Frames<const DATAGRAMS: bool>(pub(crate) Pattern);

impl<const DATAGRAMS: bool> Exchange for Frames<DATAGRAMS> {
    /// The number of bytes that have come.
    type Partial = usize;

    const DATAGRAMS: bool = DATAGRAMS;

    fn request_bytes(&self) -> usize {
        self.0.size()
    }

    fn send(&mut self, to: &mut Link, unsent: Unsent) -> io::Result<usize> {
        self.0.write(to, unsent)
    }

    #[inline]
    fn take(
        &mut self,
        request: Frame,
        partial: &mut usize,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        let wanted = self.0.size() - *partial;
        if DATAGRAMS && received.len() != wanted {
            let words = format!(
                "wrong echo on {request}: a datagram of {} bytes came, and {wanted} were sent",
                received.len()
            );
            return Err(Failure::new(Kind::Mismatch, words));
        }
        let bytes = wanted.min(received.len());
        self.0.check(request, *partial, &received[..bytes])?;
        let answer = if bytes == wanted {
            *partial = 0;
            Some(Answer::default())
        } else {
            *partial += bytes;
            None
        };
        Ok(Taken { bytes, answer })
    }

    fn describe(&self, partial: &usize) -> Option<String> {
        (*partial > 0).then(|| format!("{partial} of {} bytes of its echo", self.0.size()))
    }
}

/// The maximum number of bytes received at once.
pub(crate) const READ_BYTES: usize = 256 * 1024;
/// The number of bytes of a stream that are written at once.
pub(crate) const STREAM_WRITE_BYTES: usize = 128 * 1024;

/// The maximum number of outstanding bytes of a stream, on each of this many connections.
///
/// If a server stops reading while it can't send, outstanding bytes are in the buffers of the two sockets (tcp_rmem and tcp_wmem,
/// tens of MB at most, usually less than 10). With few connections it never reaches this bound. A server that reads everything
/// before it answers would use up the machine's memory without the bound. The bound is large enough to keep any server busy.
pub(crate) fn outstanding_limit(connections: u32) -> u64 {
    const MIB: u64 = 1024 * 1024;
    (1024 * MIB / u64::from(connections.max(1))).clamp(4 * MIB, 256 * MIB)
}

/// Echoed endless streams of one message, as tcpkali sends them. `Frame::sequence` has no meaning here, and positions are those
/// in the repeated message.
#[derive(Debug)]
pub(crate) struct Stream {
    message_bytes: usize,
    repeated: Vec<u8>,
}

impl Stream {
    /// Streams of this message, which is not empty.
    pub(crate) fn new(message: &[u8]) -> Self {
        let length = READ_BYTES.max(STREAM_WRITE_BYTES) + message.len();
        Self {
            message_bytes: message.len(),
            repeated: message.iter().copied().cycle().take(length).collect(),
        }
    }
}

impl Exchange for Stream {
    /// The number of bytes that have come since the connection was opened.
    type Partial = u64;

    const STREAMING: bool = true;

    fn request_bytes(&self) -> usize {
        self.message_bytes
    }

    fn send(&mut self, to: &mut Link, unsent: Unsent) -> io::Result<usize> {
        to.write(&self.repeated[unsent.position..][..STREAM_WRITE_BYTES])
    }

    fn take(
        &mut self,
        request: Frame,
        partial: &mut u64,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        let position = (*partial % self.message_bytes as u64) as usize;
        let expected = &self.repeated[position..][..received.len()];
        if received != expected {
            let wrong = difference(received, expected);
            let words = format!(
                "wrong echo on connection {}: byte {} of the stream is 0x{:02x}, 0x{:02x} was sent",
                request.connection,
                *partial + wrong as u64,
                received[wrong],
                expected[wrong],
            );
            return Err(Failure::new(Kind::Mismatch, words));
        }
        let bytes = received.len();
        *partial += bytes as u64;
        Ok(Taken {
            bytes,
            answer: None,
        })
    }

    fn describe(&self, partial: &u64) -> Option<String> {
        Some(format!("{partial} bytes of the stream"))
    }
}

/// The maximum length of the count of a stream: 20 digits and a line feed.
const COUNT_BYTES_MAX: usize = 21;

/// Endless streams of one message that the server reads and throws away. After the end of a stream it answers with the number of
/// bytes that it has received on the connection, in decimal digits and with a line feed. So it can't have left any of them in a buffer.
#[derive(Debug)]
pub(crate) struct Discarded(pub(crate) Stream);

impl Exchange for Discarded {
    /// How many bytes were sent, if that was all, and what has come of the server's count.
    type Partial = (Option<u64>, Vec<u8>);

    const STREAMING: bool = true;
    const ONE_WAY: bool = true;

    fn request_bytes(&self) -> usize {
        self.0.request_bytes()
    }

    fn send(&mut self, to: &mut Link, unsent: Unsent) -> io::Result<usize> {
        self.0.send(to, unsent)
    }

    fn end(&self, to: &Link, (all, _): &mut Self::Partial, sent: u64) -> io::Result<()> {
        *all = Some(sent);
        to.socket().shutdown(Shutdown::Write)
    }

    fn take(
        &mut self,
        request: Frame,
        (sent, count): &mut Self::Partial,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        let (connection, bytes) = (request.connection, received.len());
        let Some(sent) = sent else {
            let words = format!(
                "{bytes} bytes came on connection {connection} before the end of its stream"
            );
            return Err(Failure::new(Kind::Unexpected, words));
        };
        count.extend_from_slice(received);
        if !count.contains(&b'\n') && count.len() < COUNT_BYTES_MAX {
            return Ok(Taken {
                bytes,
                answer: None,
            });
        }
        if *count != format!("{sent}\n").as_bytes() {
            let shown = &count[..count.len().min(2 * COUNT_BYTES_MAX)];
            let words = format!(
                "wrong count on connection {connection}: the server says that it has received \"{}\" bytes, and {sent} were sent",
                shown.trim_ascii_end().escape_ascii(),
            );
            return Err(Failure::new(Kind::Mismatch, words));
        }
        Ok(Taken {
            bytes,
            answer: Some(Answer::default()),
        })
    }

    fn describe(&self, (_, count): &Self::Partial) -> Option<String> {
        Some(format!("{} bytes of the count of its stream", count.len()))
    }
}
