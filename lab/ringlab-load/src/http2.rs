//! HTTP/2 (RFC 9113), as far as a load generator needs it: GET requests, one or several at a time, and the check of their responses.
//!
//! Responses are completed in the order of the requests: one that comes earlier waits for those of the streams before it.
//!
//! The first request of a connection is a part of its greeting. It puts its fields into the server's table (RFC 7541), so that all
//! others have the same few bytes. Of a response's fields only the status is read: it comes first, and is a constant.
//!
//! The windows for what the server sends are 2 GiB, and are not refilled: that is enough for any run with small bodies.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write};

use crate::exchange::{Answer, Exchange, Taken};
use crate::failure::{Failure, Kind};
use crate::http::{Expected, shown};
use crate::link::Link;
use crate::pattern::{Frame, Unsent};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
/// The maximum size of a frame, unless it is announced otherwise.
const FRAME_BYTES_MAX: usize = 16 * 1024;
const WINDOW_MAX: u32 = (1 << 31) - 1;
const WINDOW_DEFAULT: u32 = 65_535;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

const SETTINGS_ENABLE_PUSH: u16 = 2;
const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;
/// The acknowledgement of the server's settings.
const SETTINGS_ACK: &[u8] = &[0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];
/// `:status: 200` in HPACK's static table.
const STATUS_200: u8 = 0x88;

/// The requests of a run.
#[derive(Debug)]
pub(crate) struct Streams {
    greeting: Vec<u8>,
    /// A request, on a stream whose number is put in.
    request: Vec<u8>,
    /// Those that are sent at once.
    requests: Vec<u8>,
    /// How many streams a connection may have at a time.
    most: u32,
    expected: Expected,
}

impl Streams {
    /// GET requests for `path` at `host`, `most` at a time on each connection.
    pub(crate) fn new(path: &str, host: &str, tls: bool, most: u32, expected: Expected) -> Self {
        // :method and :scheme are in the static table. The last field that is put into the dynamic one has the number 62.
        let mut first = vec![0x82, if tls { 0x87 } else { 0x86 }];
        let mut others = first.clone();
        if path == "/" {
            first.push(0x84);
            others.push(0x84);
        } else {
            put_field(&mut first, 4, path);
            others.push(0x80 | 0x3f);
        }
        put_field(&mut first, 1, host);
        others.push(0x80 | 0x3e);

        let mut settings = Vec::new();
        for (name, value) in [
            (SETTINGS_ENABLE_PUSH, 0),
            (SETTINGS_INITIAL_WINDOW_SIZE, WINDOW_MAX),
        ] {
            settings.extend_from_slice(&name.to_be_bytes());
            settings.extend_from_slice(&value.to_be_bytes());
        }
        let mut greeting = PREFACE.to_vec();
        put_frame(&mut greeting, SETTINGS, 0, 0, &settings);
        let more = WINDOW_MAX - WINDOW_DEFAULT;
        put_frame(&mut greeting, WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        put_frame(&mut greeting, HEADERS, END_STREAM | END_HEADERS, 1, &first);
        let mut request = Vec::new();
        put_frame(&mut request, HEADERS, END_STREAM | END_HEADERS, 0, &others);
        Self {
            greeting,
            request,
            requests: Vec::new(),
            most,
            expected,
        }
    }
}

/// Appends a frame.
fn put_frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// Appends a field whose name is in the static table, and which the server shall remember (RFC 7541, section 6.2.1).
fn put_field(to: &mut Vec<u8>, name: u8, value: &str) {
    to.push(0x40 | name);
    // The length is a number with a prefix of 7 bits (section 5.1).
    let mut length = value.len();
    if length < 127 {
        to.push(length as u8);
    } else {
        to.push(127);
        length -= 127;
        while length >= 128 {
            to.push(length as u8 | 0x80);
            length >>= 7;
        }
        to.push(length as u8);
    }
    to.extend_from_slice(value.as_bytes());
}

/// A frame that has come.
struct Received<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

impl<'a> Received<'a> {
    /// The frame at the beginning of `bytes`, if it is there as a whole.
    fn first(bytes: &'a [u8]) -> Result<Option<Self>, String> {
        let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let &[high, middle, low, kind, flags, stream @ ..] = header;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if length > FRAME_BYTES_MAX {
            return Err(format!("a frame of {length} bytes"));
        }
        let stream = u32::from_be_bytes(stream) & WINDOW_MAX;
        Ok(rest.get(..length).map(|payload| Self {
            kind,
            flags,
            stream,
            payload,
        }))
    }

    fn bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.payload.len()
    }

    /// The payload of DATA or HEADERS without padding. A server sends no priority.
    fn content(&self) -> Result<&'a [u8], String> {
        if self.flags & PADDED == 0 {
            return Ok(self.payload);
        }
        let (&padding, content) = self.payload.split_first().unwrap_or((&1, &[]));
        let length = content.len().checked_sub(usize::from(padding));
        let length = length.ok_or_else(|| "a frame that is too short".to_owned())?;
        Ok(&content[..length])
    }
}

/// The parts that have come of the responses to the requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    /// Of a frame that hasn't come as a whole.
    frame: Vec<u8>,
    /// The response to the oldest request, and to those after it as far as anything has come.
    responses: VecDeque<Response>,
}

impl Responses {
    /// Takes a frame, of which `request` is the oldest request in flight.
    fn take(&mut self, oldest: u32, most: u32, frame: &Received<'_>) -> Result<(), String> {
        let mut stream = oldest;
        if matches!(frame.kind, DATA | HEADERS | RST_STREAM | CONTINUATION) {
            let streams = oldest..oldest.saturating_add(2 * most);
            if streams.contains(&frame.stream) && frame.stream % 2 == 1 {
                stream = frame.stream;
            }
        }
        let place = ((stream - oldest) / 2) as usize;
        while self.responses.len() <= place {
            self.responses.push_back(Response::default());
        }
        let response = &mut self.responses[place];
        if response.whole && stream == frame.stream {
            return Err(format!("more on stream {stream}, which had ended"));
        }
        response.whole |= response.take(stream, frame)?;
        Ok(())
    }
}

/// The received part of a response.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// Whether the server answered with 200. `None` before its HEADERS.
    right: Option<bool>,
    body: Vec<u8>,
    whole: bool,
}

impl Response {
    /// Takes a frame of a response on `stream`. Returns whether the response is whole.
    fn take(&mut self, stream: u32, frame: &Received<'_>) -> Result<bool, String> {
        match frame.kind {
            DATA | HEADERS | RST_STREAM if frame.stream != stream => {
                return Err(format!(
                    "a frame of type {} on stream {}, and not on {stream}",
                    frame.kind, frame.stream
                ));
            }
            RST_STREAM => return Err("the stream was reset".to_owned()),
            GOAWAY => {
                let debug = shown(frame.payload.get(8..).unwrap_or_default());
                let code = frame.payload.get(4..8).unwrap_or_default();
                return Err(format!("GOAWAY with error {code:?} {debug}"));
            }
            PUSH_PROMISE => return Err("a push, which was disabled".to_owned()),
            HEADERS => {
                let mut block = frame.content()?;
                // The server may change the size of its table first (RFC 7541, section 6.3).
                while let [first, rest @ ..] = block
                    && first & 0xe0 == 0x20
                {
                    block = rest;
                }
                // The second HEADERS are trailers.
                self.right.get_or_insert(block.first() == Some(&STATUS_200));
            }
            DATA if self.right.is_none() => return Err("a body without a head".to_owned()),
            DATA => self.body.extend_from_slice(frame.content()?),
            CONTINUATION => {}
            // SETTINGS, PING, WINDOW_UPDATE, and types that a client must ignore.
            _ => return Ok(false),
        }
        Ok(matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0)
    }

    /// Judges the whole response. A failure within means that the connection can go on.
    fn judge(&self, expected: &Expected, place: &dyn Display) -> Result<Option<Failure>, Failure> {
        if self.right != Some(true) {
            let words = format!("{place} was answered with a status other than 200");
            return Ok(Some(Failure::new(Kind::Status, words)));
        }
        expected.check_body(place, &self.body)?;
        Ok(None)
    }
}

impl Exchange for Streams {
    type Partial = Responses;

    const CONTROL_FRAMES: bool = true;

    fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    fn greeted(&self, received: &[u8]) -> Result<Option<&'static [u8]>, Failure> {
        let refused = |problem: &str| {
            let words = format!("it doesn't speak HTTP/2: {problem}: {}", shown(received));
            Failure::new(Kind::Handshake, words)
        };
        let (mut bytes, mut settled, mut acknowledged, mut whole) = (0, false, false, false);
        let mut response = Response::default();
        if received.starts_with(b"HTTP/1") {
            return Err(refused("it answered in HTTP/1"));
        }
        while let Some(frame) = Received::first(&received[bytes..]).map_err(|why| refused(&why))? {
            bytes += frame.bytes();
            match (frame.kind, frame.flags & ACK) {
                (SETTINGS, 0) => settled = true,
                (SETTINGS, _) => acknowledged = true,
                _ => whole |= response.take(1, &frame).map_err(|why| refused(&why))?,
            }
        }
        if !(settled && acknowledged && whole && bytes == received.len()) {
            return Ok(None);
        }
        match response.judge(&self.expected, &"its first request")? {
            Some(failure) => Err(failure),
            None => Ok(Some(SETTINGS_ACK)),
        }
    }

    fn request_bytes(&self) -> usize {
        self.request.len()
    }

    fn send(&mut self, to: &mut Link, unsent: Unsent) -> io::Result<usize> {
        self.requests.clear();
        for sequence in (unsent.first.sequence..).take(unsent.count) {
            let start = self.requests.len();
            self.requests.extend_from_slice(&self.request);
            self.requests[start + 5..start + FRAME_HEADER_BYTES]
                .copy_from_slice(&stream_of(sequence).to_be_bytes());
        }
        to.write(&self.requests[unsent.position..])
    }

    fn take(
        &mut self,
        request: Frame,
        partial: &mut Responses,
        received: &[u8],
    ) -> Result<Taken, Failure> {
        let malformed = |problem: String| {
            let words = format!("not an HTTP/2 response: {request}: {problem}");
            Failure::new(Kind::Malformed, words)
        };
        let (mut taken, mut before, mut held) = (0, 0, Vec::new());
        if !Self::has_next(partial) {
            before = partial.frame.len();
            held = std::mem::take(&mut partial.frame);
            let bytes = if before == 0 {
                received
            } else {
                held.extend_from_slice(received);
                &held
            };
            let oldest = stream_of(request.sequence);
            while !Self::has_next(partial) {
                let frame = Received::first(&bytes[taken..]).map_err(malformed)?;
                let Some(frame) = frame else {
                    partial.frame = bytes[taken..].to_vec();
                    return Ok(Taken {
                        bytes: received.len(),
                        answer: None,
                    });
                };
                taken += frame.bytes();
                let took = partial.take(oldest, self.most, &frame);
                took.map_err(malformed)?;
            }
        }
        drop(held);
        let response = partial.responses.pop_front().unwrap_or_default();
        let wrong = response.judge(&self.expected, &request)?;
        Ok(Taken {
            bytes: taken - before,
            answer: Some(Answer { last: false, wrong }),
        })
    }

    fn has_next(partial: &Responses) -> bool {
        partial.responses.front().is_some_and(|it| it.whole)
    }

    fn describe(&self, partial: &Responses) -> Option<String> {
        let first = partial.responses.front();
        let body = first.map_or(0, |response| response.body.len());
        let begun = !partial.frame.is_empty() || first.is_some_and(|it| it.right.is_some());
        begun.then(|| format!("{body} bytes of a body"))
    }
}

/// The stream of a request. Stream 1 was that of the greeting.
fn stream_of(sequence: u32) -> u32 {
    sequence * 2 + 3
}
