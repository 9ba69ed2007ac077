//! The state of an HTTP/1 connection: what to read next, what may be written, and whether it stays open.

use std::ops::Range;

use super::body::{ChunkedDecoder, Piece, is_forbidden as is_forbidden_trailer};
use super::fault::Fault;
use super::head::{Facts, Head, Scan};
use super::limits::Limits;
use super::request::{BodyLength, Method, Upgrade, Version};
use super::response::{self, CONTINUE, Framed, write_checked_field};
use crate::names::Known;
use crate::response::{Framing, Lines, ResponseError};
use crate::syntax;

/// The first bytes of an HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The result of [`Connection::read`]. Ranges refer to the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More input is needed. Keep the rest of this one, and pass it again with more bytes appended.
    NeedMore,
    /// A request. [`Connection::request`] describes it, and the [`Head`] has its fields.
    Request {
        /// The bytes of the head.
        head: Range<usize>,
        /// Whether the head is equal, byte for byte, to that of the previous request on this connection. It was not
        /// parsed again: [`Connection::request`] is unchanged, and the `Head` is empty. Use what was made of the fields
        /// the first time.
        repeated: bool,
        /// Whether the request has no body.
        end: bool,
    },
    /// A part of the request's body.
    Data {
        /// The bytes of this part.
        range: Range<usize>,
        /// Whether this is the last part.
        end: bool,
    },
    /// The end of the request's body, if no [`Event::Data`] was marked as the last part.
    End,
    /// The request was read, and its response is not finished. Keep the rest of the input until it is.
    Paused,
    /// The client speaks HTTP/2. No input was consumed: pass all of it to [`crate::h2`].
    Http2,
    /// The connection reads no more input.
    Over,
}

/// The part of a message to read next.
#[derive(Debug)]
enum Reading {
    Head,
    Sized(u64),
    Chunked(Box<ChunkedDecoder>),
    /// The request has been read.
    Done,
    Over,
}

/// The part of a message to write next.
#[derive(Clone, Copy, Debug)]
enum Writing {
    /// The head of a response, if there is a request.
    Head,
    Body(Framing),
    Done,
}

/// An HTTP/1 connection, without its socket.
///
/// Requests are handled one at a time. The next request is not read before the response to the current one is finished;
/// it stays in the caller's buffer. When request and response are both finished, the connection reads the next head, or
/// it [is over](Connection::is_over).
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    reading: Reading,
    writing: Writing,
    scan: Scan,
    facts: Facts,
    /// The head that `facts` describes, if it is one to be remembered. Otherwise empty.
    remembered: Vec<u8>,
    /// The number of requests so far.
    requests: u64,
    /// Whether an empty line before the head has been skipped.
    has_skipped_line: bool,
    /// Whether the client waits for `100 Continue`.
    awaits_continue: bool,
    /// Whether the connection ends with the response.
    closes: bool,
}

impl Connection {
    /// A new connection.
    pub fn new(limits: Limits) -> Self {
        Connection {
            limits,
            reading: Reading::Head,
            writing: Writing::Head,
            scan: Scan::default(),
            facts: Facts::default(),
            remembered: Vec::new(),
            requests: 0,
            has_skipped_line: false,
            awaits_continue: false,
            closes: false,
        }
    }

    /// Parses what comes next in `input[*at..]`, and advances `at` past it. Call it repeatedly until it returns
    /// [`Event::NeedMore`], [`Event::Paused`], [`Event::Http2`] or [`Event::Over`].
    ///
    /// `head` receives the fields of a request. One is enough for all connections of a thread.
    ///
    /// # Errors
    /// If the request must be refused. The connection reads no more input, and [`refuse`](Connection::refuse)
    /// writes the response.
    ///
    /// # Panics
    /// If `at` is beyond the end of `input`.
    pub fn read(&mut self, input: &[u8], at: &mut usize, head: &mut Head) -> Result<Event, Fault> {
        let event = match &mut self.reading {
            Reading::Head => self.read_head(input, at, head),
            Reading::Sized(left) => {
                let available = input.len() - *at;
                if available == 0 {
                    return Ok(Event::NeedMore);
                }
                let taken = usize::try_from(*left).map_or(available, |left| left.min(available));
                *left -= taken as u64;
                let range = *at..*at + taken;
                *at = range.end;
                let end = *left == 0;
                if end {
                    self.finish_request();
                }
                self.awaits_continue = false;
                Ok(Event::Data { range, end })
            }
            Reading::Chunked(decoder) => match decoder.read(input, at, &self.limits) {
                Ok(Piece::Data(range)) => {
                    self.awaits_continue = false;
                    Ok(Event::Data { range, end: false })
                }
                Ok(Piece::NeedMore) => Ok(Event::NeedMore),
                Ok(Piece::End) => {
                    self.awaits_continue = false;
                    self.finish_request();
                    Ok(Event::End)
                }
                Err(fault) => Err(fault),
            },
            Reading::Done => Ok(Event::Paused),
            Reading::Over => Ok(Event::Over),
        };
        if event.is_err() {
            if let Reading::Head = self.reading {
                // The facts of the previous request say nothing about this one.
                self.facts = Facts::default();
            }
            self.reading = Reading::Over;
            self.closes = true;
        }
        event
    }

    fn read_head(&mut self, input: &[u8], at: &mut usize, head: &mut Head) -> Result<Event, Fault> {
        let mut rest = &input[*at..];
        if rest.is_empty() {
            return Ok(Event::NeedMore);
        }
        if !self.scan.has_begun() {
            if !self.remembered.is_empty() && rest.starts_with(&self.remembered) {
                head.clear();
                return Ok(self.begin_request(at, self.remembered.len(), true));
            }
            if self.limits.http2 && self.requests == 0 && !self.has_skipped_line {
                if rest.starts_with(PREFACE) {
                    return Ok(Event::Http2);
                }
                if PREFACE.starts_with(rest) {
                    return Ok(Event::NeedMore);
                }
            }
            // RFC 9112, section 2.2: ignore an empty line before a request. Old clients send one after a body.
            if rest[0] == b'\r' && !self.has_skipped_line {
                match rest.get(1) {
                    None => return Ok(Event::NeedMore),
                    Some(b'\n') => {
                        *at += 2;
                        rest = &rest[2..];
                        self.has_skipped_line = true;
                    }
                    Some(_) => return Err(Fault::RequestLine),
                }
            }
        }
        let Some(length) = self.scan.end(rest, &self.limits)? else {
            return Ok(Event::NeedMore);
        };
        let bytes = &rest[..length];
        // A head that arrived in pieces can be equal to the remembered one, too.
        let repeated = bytes == self.remembered;
        if repeated {
            head.clear();
        } else {
            self.remembered.clear();
            self.facts = head.parse(bytes, &self.limits)?;
            // Who switches protocols needs the fields themselves.
            let is_plain = self.facts.upgrade == Upgrade::None;
            if is_plain && length <= self.limits.remembered_bytes {
                self.remembered.extend_from_slice(bytes);
            }
        }
        Ok(self.begin_request(at, length, repeated))
    }

    fn begin_request(&mut self, at: &mut usize, length: usize, repeated: bool) -> Event {
        let range = *at..*at + length;
        *at = range.end;
        self.requests += 1;
        self.scan = Scan::default();
        self.has_skipped_line = false;
        self.awaits_continue = self.facts.expects_continue;
        self.reading = match self.facts.body {
            BodyLength::Sized(0) => Reading::Done,
            BodyLength::Sized(length) => Reading::Sized(length),
            BodyLength::Chunked => Reading::Chunked(Box::default()),
        };
        Event::Request {
            head: range,
            repeated,
            end: matches!(self.reading, Reading::Done),
        }
    }

    /// Releases the memory of the remembered head, for a connection that is idle. The next head is parsed, even if it is
    /// equal to the last one.
    pub fn forget_head(&mut self) {
        self.remembered = Vec::new();
    }

    fn finish_request(&mut self) {
        self.reading = Reading::Done;
        self.finish_exchange();
    }

    /// If request and response are both finished, move on to the next request, or end the connection.
    fn finish_exchange(&mut self) {
        if let (Reading::Done, Writing::Done) = (&self.reading, self.writing) {
            if self.closes {
                self.reading = Reading::Over;
            } else {
                self.reading = Reading::Head;
                self.writing = Writing::Head;
            }
        }
    }

    /// The current request, or the last one.
    #[inline]
    pub fn request(&self) -> &Facts {
        &self.facts
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether the connection waits for a request. A part of a head may already be in the caller's buffer.
    pub fn is_idle(&self) -> bool {
        matches!(
            (&self.reading, self.writing),
            (Reading::Head, Writing::Head)
        )
    }

    /// Whether the body of the current request has not been read completely.
    pub fn is_reading_body(&self) -> bool {
        matches!(self.reading, Reading::Sized(_) | Reading::Chunked(_))
    }

    /// Bytes of the current request's body that have not been read, if Content-Length says how many.
    pub fn body_left(&self) -> Option<u64> {
        match self.reading {
            Reading::Sized(left) => Some(left),
            _ => None,
        }
    }

    /// Counts bytes of the body that did not pass through [`read`](Connection::read): the caller has put the next `count`
    /// bytes of the connection elsewhere. Returns whether the body is complete.
    ///
    /// # Panics
    /// If there are fewer [left](Connection::body_left).
    pub fn skip_body(&mut self, count: u64) -> bool {
        let left = self.body_left().unwrap_or(0);
        assert!(count <= left, "{count} bytes are more than {left}");
        if count == 0 {
            return false;
        }
        self.awaits_continue = false;
        self.reading = Reading::Sized(left - count);
        if count == left {
            self.finish_request();
        }
        count == left
    }

    /// Whether a response was started and is not finished.
    pub fn is_responding(&self) -> bool {
        matches!(self.writing, Writing::Body(_))
    }

    /// Whether there is a request whose response was not started.
    pub fn awaits_response(&self) -> bool {
        matches!(self.writing, Writing::Head)
            && matches!(
                self.reading,
                Reading::Sized(_) | Reading::Chunked(_) | Reading::Done
            )
    }

    /// Whether the caller should close the socket, once everything written was sent.
    pub fn is_over(&self) -> bool {
        matches!(
            (&self.reading, self.writing),
            (Reading::Over, Writing::Head | Writing::Done)
        ) || (self.closes && matches!(self.writing, Writing::Done))
    }

    /// Ends the connection after the current response, for a server that is shutting down. An
    /// [idle](Connection::is_idle) connection can be closed by the caller at once.
    pub fn close_after_response(&mut self) {
        self.closes = true;
    }

    /// The bytes to send when the application asks for the body. `None` unless the client is waiting for `100
    /// Continue`.
    pub fn ask_for_body(&mut self) -> Option<&'static [u8]> {
        let asks = self.awaits_continue && matches!(self.writing, Writing::Head);
        if asks {
            self.awaits_continue = false;
        }
        asks.then_some(CONTINUE)
    }

    /// Appends an informational response to `out`, such as 103 with Link. Content-Length and Transfer-Encoding are left
    /// out, because it has no body (RFC 9110, section 8.6; RFC 9112, section 6.1). A client of HTTP/1.0 must not get
    /// one, so nothing is written for it (RFC 9110, section 15.2).
    ///
    /// # Errors
    /// As for [`respond`](Connection::respond). The status must be from 100 to 199 and not 101, which ends
    /// HTTP. Nothing is written in case of an error.
    pub fn inform<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        out: &mut Vec<u8>,
    ) -> Result<(), ResponseError> {
        self.check_awaits_response()?;
        if !(100..200).contains(&status) || status == 101 {
            return Err(ResponseError::Status(status));
        }
        if self.facts.version == Version::Http10 {
            return Ok(());
        }
        let start = out.len();
        response::write_status_line(status, out);
        for (name, value) in fields {
            if let Some(Known::CONTENT_LENGTH | Known::TRANSFER_ENCODING) = Known::find(name) {
                continue;
            }
            if let Err(error) = write_checked_field(name, value, out) {
                out.truncate(start);
                return Err(error);
            }
        }
        out.extend_from_slice(b"\r\n");
        if status == 100 {
            self.awaits_continue = false;
        }
        Ok(())
    }

    pub(super) fn check_awaits_response(&self) -> Result<(), ResponseError> {
        match (&self.reading, self.writing) {
            (Reading::Head | Reading::Over, _) => Err(ResponseError::NoRequest),
            (_, Writing::Body(_) | Writing::Done) => Err(ResponseError::Begun),
            (_, Writing::Head) => Ok(()),
        }
    }

    /// Whether a response whose head is written now is the last one. If the client is waiting for `100 Continue`,
    /// nobody knows whether it will send the body after a final response, so the connection ends (RFC 9110, section
    /// 10.1.1).
    pub(super) fn must_close_now(&self) -> bool {
        self.closes || !self.facts.keep_alive || self.awaits_continue
    }

    pub(super) fn begin_response(&mut self, framing: Framing, closes: bool) {
        self.closes = closes;
        self.writing = Writing::Body(framing);
    }

    /// Counts a piece of the response's body of `length` bytes, and frames it. The `last` piece finishes the response.
    ///
    /// # Errors
    /// If no response was started, or if the body does not have the length that Content-Length says. If it is
    /// too short, the connection is over. If it is too long, the piece must not be sent. A body that the status does not
    /// have is no error, but [not to be sent](Framed::is_forbidden).
    pub fn send(&mut self, length: usize, last: bool) -> Result<Framed, ResponseError> {
        let Writing::Body(framing) = &mut self.writing else {
            return Err(ResponseError::NotBegun);
        };
        match Framed::new(framing, length, last) {
            Ok(framed) => {
                if last {
                    self.writing = Writing::Done;
                    self.finish_exchange();
                }
                Ok(framed)
            }
            Err(error) => {
                if let ResponseError::TooShort(_) = error {
                    self.abort();
                }
                Err(error)
            }
        }
    }

    /// Finishes the response with trailers, which are appended to `out` with the end of the body. All of the body must have
    /// been [sent](Connection::send), and none of it as the last piece. They are left out if the client does not [want
    /// them](super::Facts::takes_trailers), or if the body is not sent in chunks.
    ///
    /// # Errors
    /// As for [`send`](Connection::send), and if a field is invalid or not allowed in trailers (RFC 9110, section 6.5.1).
    /// Nothing is written in case of an error.
    pub fn send_trailers<'f>(
        &mut self,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        out: &mut Vec<u8>,
    ) -> Result<(), ResponseError> {
        let Writing::Body(framing) = self.writing else {
            return Err(ResponseError::NotBegun);
        };
        let start = out.len();
        out.extend_from_slice(b"0\r\n");
        let fields_start = out.len();
        let written = fields.into_iter().try_for_each(|(name, value)| {
            if is_forbidden_trailer(name) {
                return Err(ResponseError::FieldName);
            }
            write_checked_field(name, value, out)
        });
        if !self.facts.takes_trailers {
            out.truncate(fields_start);
        }
        out.extend_from_slice(b"\r\n");
        let sent = written.and_then(|()| self.send(0, true));
        if sent.is_err() || framing != Framing::Chunked {
            out.truncate(start);
        }
        sent.map(drop)
    }

    /// Bytes of the body that Content-Length still announces, if the response under way has one.
    pub fn announced(&self) -> Option<u64> {
        match self.writing {
            Writing::Body(Framing::Length(left)) => Some(left),
            _ => None,
        }
    }

    /// Ends the connection at once, because the response cannot be finished.
    pub fn abort(&mut self) {
        self.reading = Reading::Over;
        self.writing = Writing::Done;
        self.closes = true;
    }

    /// Leaves HTTP. The caller sends the 101 response itself, and the rest of the input belongs to the new protocol.
    ///
    /// # Errors
    /// If no request is waiting for a response, or its body was not read completely.
    pub fn switch_protocol(&mut self) -> Result<(), ResponseError> {
        self.check_awaits_response()?;
        if !matches!(self.reading, Reading::Done) {
            return Err(ResponseError::NoRequest);
        }
        self.abort();
        Ok(())
    }

    /// Appends a complete response with `text` as its body to `out`, and ends the connection. It is for requests that are
    /// refused, that take too long, or that cannot be served. Returns false and writes nothing if a response was
    /// started. Of `fields`, those are left out that are invalid, or that the response has anyway.
    ///
    /// # Panics
    /// If `status` is not from 400 to 599.
    pub fn refuse<'f>(
        &mut self,
        status: u16,
        text: &str,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        lines: &mut Lines,
        unix_s: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        assert!((400..600).contains(&status), "{status} is no error status");
        if !matches!(self.writing, Writing::Head) {
            return false;
        }
        let has_request = !matches!(self.reading, Reading::Head);
        let is_head = has_request && self.facts.method == Method::Head;
        response::write_status_line(status, out);
        out.extend_from_slice(b"content-type: text/plain; charset=utf-8\r\ncontent-length: ");
        syntax::push_decimal(text.len() as u64, out);
        out.extend_from_slice(b"\r\nconnection: close\r\n");
        for (name, value) in fields {
            let is_given = match Known::find(name) {
                Some(Known::CONTENT_LENGTH | Known::TRANSFER_ENCODING) => true,
                // Other options go with another field, such as Upgrade.
                Some(Known::CONNECTION) => syntax::list(value).all(|option| {
                    option.eq_ignore_ascii_case(b"close")
                        || option.eq_ignore_ascii_case(b"keep-alive")
                }),
                _ => name.eq_ignore_ascii_case(b"content-type"),
            };
            if !is_given {
                let _ = write_checked_field(name, value, out);
            }
        }
        lines.write(unix_s, false, false, out);
        out.extend_from_slice(b"\r\n");
        if !is_head {
            out.extend_from_slice(text.as_bytes());
        }
        self.abort();
        true
    }
}
