//! The state of a WebSocket: assembling messages from frames, and making frames from messages.

use std::fmt;
use std::ops::Range;

use super::config::Config;
use super::deflate::{Deflater, InflateError, Inflater, Negotiated, Pool};
use super::frame::{self, CONTROL_BYTES_MAX, ControlFrame, FIN, Head, Opcode, RSV1, ServerHead};
use super::utf8::Utf8;

/// The result of [`Connection::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All input was consumed.
    NeedMore,
    /// A complete message.
    Message {
        /// Whether it is text. Text that arrived in pieces is UTF-8. Text that arrived at once was not checked, because
        /// making a string of it checks it anyway. If that fails, call [`Connection::invalid_text`].
        is_text: bool,
        /// Where its bytes are; [`Connection::payload`] returns them.
        payload: Payload,
    },
    /// A ping. [`Connection::pong`] answers it.
    Ping,
    /// A pong. [`Connection::control`] returns its payload.
    Pong,
    /// The client's close frame with its optional code (RFC 6455, section 7.4) and [reason](Connection::close_reason).
    /// If the server has not sent a close frame, it answers with [`Connection::close`].
    Close(Option<u16>),
    /// The connection reads no more input.
    Over,
}

/// The location of a message. It is valid until the next call of [`Connection::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A range of the input.
    Input(Range<usize>),
    /// The connection's own buffer, because the message arrived in pieces or was compressed.
    Own,
}

/// The reason why a connection cannot continue. Close it with [`code`](Failure::code).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    code: u16,
    reason: &'static str,
}

impl Failure {
    fn protocol(reason: &'static str) -> Self {
        Failure { code: 1002, reason }
    }

    const INVALID_TEXT: Failure = Failure {
        code: 1007,
        reason: "text is not UTF-8",
    };
    const INVALID_DATA: Failure = Failure {
        code: 1007,
        reason: "compressed data is invalid",
    };
    const TOO_LONG: Failure = Failure {
        code: 1009,
        reason: "message too long",
    };

    /// The code to close with: 1002 (protocol error), 1007 (invalid data) or 1009 (message too big).
    pub fn code(self) -> u16 {
        self.code
    }

    /// A short message.
    pub fn reason(self) -> &'static str {
        self.reason
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.reason, self.code)
    }
}

impl std::error::Error for Failure {}

/// The reason why something cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// A close frame was sent. Nothing may follow it (RFC 6455, section 5.5.1).
    Closing,
    /// The payload of a ping is longer than 125 bytes, or the reason of a close frame is longer than 123 bytes.
    TooLong,
    /// This code must not be sent (RFC 6455, section 7.4).
    Code(u16),
    /// Compression failed, with zlib's error message.
    Compression(String),
}

impl fmt::Display for SendError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Closing => formatter.write_str("the connection is closing"),
            SendError::TooLong => formatter.write_str("payload of a control frame is too long"),
            SendError::Code(code) => write!(formatter, "invalid close code {code}"),
            SendError::Compression(reason) => write!(formatter, "compression failed: {reason}"),
        }
    }
}

impl std::error::Error for SendError {}

/// A frame to send: first the head, then the payload.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    head: ServerHead,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The head.
    pub fn head(&self) -> &[u8] {
        self.head.as_slice()
    }

    /// The payload: the message itself, or the compressed message in the pool.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
struct Message {
    is_text: bool,
    is_compressed: bool,
}

/// A frame that is being received.
#[derive(Clone, Copy, Debug)]
struct Current {
    head: Head,
    /// The number of payload bytes that were received.
    taken: u64,
}

/// The message buffer shrinks to this size after a larger message, in bytes.
const BUFFER_KEPT: usize = 4 << 10;

/// The server's side of a WebSocket.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the two directions are independent"
)]
pub struct Connection {
    config: Config,
    threshold_bytes: usize,
    deflater: Option<Deflater>,
    inflater: Option<Inflater>,
    /// An incomplete frame head.
    head: [u8; 14],
    head_length: u8,
    frame: Option<Current>,
    message: Option<Message>,
    /// The received part of the message, decompressed.
    buffer: Vec<u8>,
    /// Whether the buffer holds a message that was returned, so that the next read empties it.
    is_given: bool,
    utf8: Utf8,
    /// The payload of the last control frame.
    control: [u8; CONTROL_BYTES_MAX],
    control_length: u8,
    has_sent_close: bool,
    has_received_close: bool,
    has_failed: bool,
}

impl Connection {
    /// A connection after its handshake. `deflate` is the result of the negotiation.
    pub fn new(config: Config, deflate: Option<Negotiated>) -> Self {
        Connection {
            config,
            threshold_bytes: deflate
                .as_ref()
                .map_or(usize::MAX, Negotiated::threshold_bytes),
            deflater: deflate.map(Deflater::new),
            inflater: deflate.map(Inflater::new),
            head: [0; 14],
            head_length: 0,
            frame: None,
            message: None,
            buffer: Vec::new(),
            is_given: false,
            utf8: Utf8::default(),
            control: [0; CONTROL_BYTES_MAX],
            control_length: 0,
            has_sent_close: false,
            has_received_close: false,
            has_failed: false,
        }
    }

    /// Parses what comes next in `input[*at..]`, and advances `at` past it. Payloads are unmasked in place. Call it
    /// repeatedly until it returns [`Event::NeedMore`], which consumes all of the input, or [`Event::Over`].
    ///
    /// # Errors
    /// If the client violates the protocol or exceeds the limits. The connection reads no more input. Send a
    /// [close frame](Connection::close), and close the socket.
    ///
    /// # Panics
    /// If `at` is beyond the end of `input`.
    pub fn read(
        &mut self,
        input: &mut [u8],
        at: &mut usize,
        pool: &mut Pool,
    ) -> Result<Event, Failure> {
        if self.has_received_close || self.has_failed {
            return Ok(Event::Over);
        }
        if self.is_given {
            self.is_given = false;
            self.buffer.clear();
            self.buffer.shrink_to(BUFFER_KEPT);
        }
        let event = self.read_frames(input, at, pool);
        if event.is_err() {
            self.fail();
        }
        event
    }

    fn fail(&mut self) {
        self.has_failed = true;
        self.buffer = Vec::new();
    }

    /// Reports that the text that [`read`](Connection::read) has just returned is not UTF-8. The connection reads no
    /// more input, as if `read` had returned this failure.
    pub fn invalid_text(&mut self) -> Failure {
        self.fail();
        Failure::INVALID_TEXT
    }

    fn read_frames(
        &mut self,
        input: &mut [u8],
        at: &mut usize,
        pool: &mut Pool,
    ) -> Result<Event, Failure> {
        loop {
            let mut current = match self.frame {
                Some(current) => current,
                None => match self.read_head(input, at)? {
                    Some(head) => Current { head, taken: 0 },
                    None => return Ok(Event::NeedMore),
                },
            };
            let missing = current.head.length - current.taken;
            let available = input.len() - *at;
            let length = usize::try_from(missing).map_or(available, |all| all.min(available));
            let range = *at..*at + length;
            *at = range.end;
            frame::unmask(&mut input[range.clone()], current.head.mask, current.taken);
            let ends = length as u64 == missing;
            current.taken += length as u64;
            self.frame = (!ends).then_some(current);
            let event = if current.head.opcode.is_control() {
                self.read_control(&input[range], current.head.opcode, ends)?
            } else {
                self.read_data(input, range, &current, ends, pool)?
            };
            if let Some(event) = event {
                return Ok(event);
            }
            if !ends {
                return Ok(Event::NeedMore);
            }
        }
    }

    /// Reads a frame head. If it is incomplete, stores the part that there is, and returns `None`.
    fn read_head(&mut self, input: &[u8], at: &mut usize) -> Result<Option<Head>, Failure> {
        let rest = &input[*at..];
        if self.head_length == 0 {
            let length = frame::head_length(rest);
            if let Some(bytes) = rest.get(..length) {
                *at += length;
                return self.check_head(bytes).map(Some);
            }
        }
        let mut rest = rest.iter();
        loop {
            let kept = usize::from(self.head_length);
            if kept >= 2 && kept == frame::head_length(&self.head[..kept]) {
                self.head_length = 0;
                let head = self.head;
                return self.check_head(&head[..kept]).map(Some);
            }
            let Some(byte) = rest.next() else {
                return Ok(None);
            };
            *at += 1;
            self.head[kept] = *byte;
            self.head_length += 1;
        }
    }

    fn check_head(&mut self, bytes: &[u8]) -> Result<Head, Failure> {
        let head = frame::parse_head(bytes).map_err(Failure::protocol)?;
        if head.compressed && self.inflater.is_none() {
            return Err(Failure::protocol("reserved bits set"));
        }
        match (head.opcode, self.message) {
            (Opcode::Text | Opcode::Binary, None) => {
                self.message = Some(Message {
                    is_text: head.opcode == Opcode::Text,
                    is_compressed: head.compressed,
                });
            }
            (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(Failure::protocol("message within a message"));
            }
            (Opcode::Continuation, None) => {
                return Err(Failure::protocol("continuation of no message"));
            }
            (Opcode::Continuation, Some(_)) => {}
            _ => {
                self.control_length = 0;
                return Ok(head);
            }
        }
        // The size of a compressed message is checked while it is decompressed.
        let is_compressed = self.message.is_some_and(|message| message.is_compressed);
        let room = self.config.message_bytes.saturating_sub(self.buffer.len());
        if !is_compressed && head.length > room as u64 {
            return Err(Failure::TOO_LONG);
        }
        Ok(head)
    }

    /// Receives a part of a control frame's payload. If it `ends` the frame, returns an event.
    fn read_control(
        &mut self,
        part: &[u8],
        opcode: Opcode,
        ends: bool,
    ) -> Result<Option<Event>, Failure> {
        let start = usize::from(self.control_length);
        self.control[start..start + part.len()].copy_from_slice(part);
        self.control_length += part.len() as u8;
        if !ends {
            return Ok(None);
        }
        Ok(Some(match opcode {
            Opcode::Ping => Event::Ping,
            Opcode::Close => Event::Close(self.read_close()?),
            _ => Event::Pong,
        }))
    }

    /// Checks the payload of a close frame (RFC 6455, section 5.5.1), and returns its code.
    fn read_close(&mut self) -> Result<Option<u16>, Failure> {
        let code = match self.control() {
            [] => None,
            [_] => return Err(Failure::protocol("close frame with half a code")),
            [high, low, reason @ ..] => {
                let code = u16::from_be_bytes([*high, *low]);
                if !is_code(code) {
                    return Err(Failure::protocol("invalid close code"));
                }
                if str::from_utf8(reason).is_err() {
                    return Err(Failure::INVALID_TEXT);
                }
                Some(code)
            }
        };
        self.has_received_close = true;
        self.buffer = Vec::new();
        Ok(code)
    }

    /// Receives a part of a data frame's payload, which is at `range` of the input. If it ends a message, returns an
    /// event.
    fn read_data(
        &mut self,
        input: &[u8],
        range: Range<usize>,
        current: &Current,
        ends: bool,
        pool: &mut Pool,
    ) -> Result<Option<Event>, Failure> {
        let Some(message) = self.message else {
            return Err(Failure::protocol("continuation of no message"));
        };
        let is_text = message.is_text;
        let ends_message = ends && current.head.fin;
        let part = &input[range.clone()];
        // Most messages are one frame that arrives completely. They are returned in place.
        let is_all = ends_message
            && current.head.opcode != Opcode::Continuation
            && part.len() as u64 == current.head.length;
        if is_all && !message.is_compressed {
            self.message = None;
            let payload = Payload::Input(range);
            return Ok(Some(Event::Message { is_text, payload }));
        }

        let start = self.buffer.len();
        match &mut self.inflater {
            Some(inflater) if message.is_compressed => {
                let limit = self.config.message_bytes;
                inflater.inflate(part, &mut self.buffer, limit, pool)?;
                if ends_message {
                    inflater.finish(&mut self.buffer, limit, pool)?;
                }
            }
            _ => self.buffer.extend_from_slice(part),
        }
        // What arrives in pieces fails with its first wrong byte (RFC 6455, section 8.1), not at the end.
        if is_text && !is_all && !self.utf8.push(&self.buffer[start..]) {
            return Err(Failure::INVALID_TEXT);
        }
        if !ends_message {
            return Ok(None);
        }
        if is_text && !self.utf8.is_complete() {
            return Err(Failure::INVALID_TEXT);
        }
        self.message = None;
        self.is_given = true;
        Ok(Some(Event::Message {
            is_text,
            payload: Payload::Own,
        }))
    }

    /// The bytes of the message that [`read`](Connection::read) has just returned for `input`.
    pub fn payload<'a>(&'a self, payload: &Payload, input: &'a [u8]) -> &'a [u8] {
        match payload {
            Payload::Input(range) => &input[range.clone()],
            Payload::Own => &self.buffer,
        }
    }

    /// The bytes of a message that [`read`](Connection::read) has just returned as [`Payload::Own`], without copying
    /// them.
    pub fn take_message(&mut self) -> Vec<u8> {
        self.is_given = false;
        std::mem::take(&mut self.buffer)
    }

    /// The payload of the last control frame.
    pub fn control(&self) -> &[u8] {
        &self.control[..usize::from(self.control_length)]
    }

    /// The reason in the client's close frame. Empty if there is none.
    pub fn close_reason(&self) -> &str {
        if !self.has_received_close {
            return "";
        }
        let reason = self.control().get(2..).unwrap_or_default();
        // It was checked when it arrived.
        str::from_utf8(reason).unwrap_or_default()
    }

    /// Makes a frame of a message. Text must be UTF-8. If compression was negotiated, and the message is not shorter
    /// than the threshold, it is compressed into the pool's memory.
    ///
    /// # Errors
    /// If a close frame was sent, or if compression fails.
    pub fn message<'a>(
        &mut self,
        is_text: bool,
        payload: &'a [u8],
        pool: &'a mut Pool,
    ) -> Result<Frame<'a>, SendError> {
        self.check_may_send()?;
        let opcode = if is_text {
            Opcode::Text
        } else {
            Opcode::Binary
        };
        let first = FIN | opcode as u8;
        match &mut self.deflater {
            Some(deflater) if payload.len() >= self.threshold_bytes => {
                deflater
                    .compress(payload, pool)
                    .map_err(SendError::Compression)?;
                Ok(Frame {
                    head: ServerHead::new(first | RSV1, pool.output.len()),
                    payload: &pool.output,
                })
            }
            _ => Ok(Frame {
                head: ServerHead::new(first, payload.len()),
                payload,
            }),
        }
    }

    /// Makes a ping.
    ///
    /// # Errors
    /// If a close frame was sent, or if `payload` is longer than 125 bytes.
    pub fn ping(&self, payload: &[u8]) -> Result<ControlFrame, SendError> {
        self.check_may_send()?;
        if payload.len() > CONTROL_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        Ok(ControlFrame::new(Opcode::Ping, [payload, b""]))
    }

    /// Makes the answer to the last ping. If several pings arrived before it can be sent, one answer is enough (RFC
    /// 6455, section 5.5.3).
    ///
    /// # Errors
    /// If a close frame was sent.
    pub fn pong(&self) -> Result<ControlFrame, SendError> {
        self.check_may_send()?;
        Ok(ControlFrame::new(Opcode::Pong, [self.control(), b""]))
    }

    /// Makes the close frame, with a code and a reason, or with neither. There is only one. To answer the client's close
    /// frame, use its code.
    ///
    /// # Errors
    /// If a close frame was sent, if the code must not be sent, if the reason is longer than 123 bytes, or if
    /// there is a reason without a code.
    pub fn close(&mut self, code: Option<u16>, reason: &str) -> Result<ControlFrame, SendError> {
        self.check_may_send()?;
        let frame = match code {
            Some(code) if !is_code(code) => return Err(SendError::Code(code)),
            // 1005 stands for a missing code.
            None if !reason.is_empty() => return Err(SendError::Code(1005)),
            _ if reason.len() > CONTROL_BYTES_MAX - 2 => return Err(SendError::TooLong),
            Some(code) => {
                ControlFrame::new(Opcode::Close, [&code.to_be_bytes(), reason.as_bytes()])
            }
            None => ControlFrame::new(Opcode::Close, [b"", b""]),
        };
        self.has_sent_close = true;
        Ok(frame)
    }

    fn check_may_send(&self) -> Result<(), SendError> {
        if self.has_sent_close {
            Err(SendError::Closing)
        } else {
            Ok(())
        }
    }

    /// Whether [`close`](Connection::close) was called.
    pub fn is_closing(&self) -> bool {
        self.has_sent_close
    }

    /// Whether the caller should close the socket, once everything written was sent: both sides have made their close
    /// frames, or the connection has failed. The server closes first (RFC 6455, section 7.1.1).
    pub fn is_over(&self) -> bool {
        self.has_sent_close && (self.has_received_close || self.has_failed)
    }
}

impl From<InflateError> for Failure {
    fn from(error: InflateError) -> Self {
        match error {
            InflateError::Invalid => Failure::INVALID_DATA,
            InflateError::TooLong => Failure::TOO_LONG,
        }
    }
}

/// Whether a close frame may contain this code (RFC 6455, section 7.4, and IANA's WebSocket Close Code Number
/// Registry).
fn is_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}
