//! WebSocket (RFC 6455): messages that the server sends back, each a binary one in one frame. No extensions are offered.

use std::io::{self, Write};

use crate::exchange::{Answer, Exchange, Taken};
use crate::failure::{Failure, Kind};
use crate::http::shown;
use crate::link::Link;
use crate::pattern::{Frame, Pattern, Unsent, mix};

/// The example of RFC 6455, section 1.3. A server can't know that the key isn't random.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// A binary message in one frame: FIN and the opcode.
const BINARY: u8 = 0x82;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;
const MASKED: u8 = 0x80;
const HEADERS_MAX: usize = 100;

/// The messages of a run.
#[derive(Debug)]
pub(crate) struct Messages {
    pattern: Pattern,
    upgrade: Vec<u8>,
    /// The header of each of the server's frames.
    header: Vec<u8>,
    /// Where a frame is assembled, and which one it is.
    assembled: Vec<u8>,
    assembled_for: Option<Frame>,
}

impl Messages {
    /// Messages of the pattern.
    pub(crate) fn new(path: &str, host: &str, pattern: Pattern) -> Self {
        let upgrade = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {KEY}\r\n\
             Sec-WebSocket-Version: 13\r\n\r\n"
        );
        Self {
            header: frame_header(pattern.size()),
            pattern,
            upgrade: upgrade.into_bytes(),
            assembled: Vec::new(),
            assembled_for: None,
        }
    }

    fn assemble(&mut self, message: Frame) {
        if self.assembled_for == Some(message) {
            return;
        }
        let number = (u64::from(message.connection) << 32) | u64::from(message.sequence);
        let mask = (mix(number) as u32).to_le_bytes();
        self.assembled.clear();
        self.assembled.extend_from_slice(&self.header);
        self.assembled[1] |= MASKED;
        self.assembled.extend_from_slice(&mask);
        let begin = self.assembled.len();
        let assembled = &mut self.assembled;
        self.pattern
            .with_frame(message, |payload| assembled.extend_from_slice(payload));
        for four in self.assembled[begin..].chunks_mut(4) {
            for (byte, mask) in four.iter_mut().zip(mask) {
                *byte ^= mask;
            }
        }
        self.assembled_for = Some(message);
    }
}

/// The header of an unmasked binary frame.
fn frame_header(size: usize) -> Vec<u8> {
    let mut header = vec![BINARY];
    if size < 126 {
        header.push(size as u8);
    } else if let Ok(size) = u16::try_from(size) {
        header.push(126);
        header.extend_from_slice(&size.to_be_bytes());
    } else {
        header.push(127);
        header.extend_from_slice(&(size as u64).to_be_bytes());
    }
    header
}

/// The received part of a frame.
#[derive(Debug, Default)]
pub(crate) struct Part {
    header: Vec<u8>,
    /// How many bytes of a control frame are still to come.
    control_bytes: usize,
    payload_bytes: usize,
}

impl Exchange for Messages {
    type Partial = Part;

    const CONTROL_FRAMES: bool = true;

    fn greeting(&self) -> &[u8] {
        &self.upgrade
    }

    fn greeted(&self, received: &[u8]) -> Result<Option<&'static [u8]>, Failure> {
        let refused = |why: String| {
            let what = format!("it doesn't speak WebSocket: {why}");
            Failure::new(Kind::Handshake, what)
        };
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let bytes = match head.parse(received) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(refused(format!("{error}: {}", shown(received)))),
        };
        if head.code != Some(101) {
            let why = format!("the upgrade was answered with {}", shown(received));
            return Err(refused(why));
        }
        let accepts = |header: &httparse::Header<'_>| {
            header.name.eq_ignore_ascii_case("sec-websocket-accept") && header.value == ACCEPT
        };
        if !head.headers.iter().any(accepts) {
            let why = "its Sec-WebSocket-Accept doesn't belong to the key that was sent";
            return Err(refused(why.to_owned()));
        }
        if bytes < received.len() {
            let more = received.len() - bytes;
            let words = format!("{more} bytes came after the answer to the greeting");
            return Err(Failure::new(Kind::Unexpected, words));
        }
        Ok(Some(&[]))
    }

    fn request_bytes(&self) -> usize {
        self.header.len() + 4 + self.pattern.size()
    }

    fn send(&mut self, to: &mut Link, unsent: Unsent) -> io::Result<usize> {
        self.assemble(unsent.first);
        to.write(&self.assembled[unsent.position..])
    }

    fn take(
        &mut self,
        request: Frame,
        partial: &mut Part,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        let mut bytes = 0;
        while partial.header.len() < self.header.len() || partial.control_bytes > 0 {
            let skipped = partial.control_bytes.min(received.len() - bytes);
            partial.control_bytes -= skipped;
            bytes += skipped;
            let Some(&byte) = received.get(bytes) else {
                return Ok(Taken {
                    bytes,
                    answer: None,
                });
            };
            bytes += 1;
            partial.header.push(byte);
            let header = &partial.header;
            if matches!(header[0], PING | PONG) {
                if let &[_, length] = &header[..] {
                    partial.control_bytes = usize::from(length);
                    partial.header.clear();
                }
            } else if *header != self.header[..header.len()] {
                let words = format!(
                    "wrong frame: {request}: it begins with {header:02x?}, and {:02x?} was expected (a binary message in one frame)",
                    self.header
                );
                return Err(Failure::new(Kind::Mismatch, words));
            }
        }
        let wanted = self.pattern.size() - partial.payload_bytes;
        let payload = &received[bytes..][..wanted.min(received.len() - bytes)];
        self.pattern
            .check(request, partial.payload_bytes, payload)?;
        bytes += payload.len();
        partial.payload_bytes += payload.len();
        let whole = partial.payload_bytes == self.pattern.size();
        if whole {
            partial.header.clear();
            partial.payload_bytes = 0;
        }
        Ok(Taken {
            bytes,
            answer: whole.then(Answer::default),
        })
    }

    fn describe(&self, partial: &Part) -> Option<String> {
        let bytes = partial.header.len() + partial.payload_bytes;
        (bytes > 0).then(|| {
            let whole = self.header.len() + self.pattern.size();
            format!("{bytes} of {whole} bytes of a frame")
        })
    }
}
