//! The head of a response, from its status to the fields that frame the body (RFC 9112, section 6).

use super::connection::Connection;
use super::request::{Method, Version};
use super::response::{check_field, write_field, write_status_line};
use crate::names::Known;
use crate::response::{Framing, Lines, ResponseError};
use crate::syntax;

impl Connection {
    /// Starts the response to the current request, with a status from 200 to 999. The head is appended to `out`.
    ///
    /// # Errors
    /// If no request is waiting for a response, if the status is not a final one, or if it would turn the
    /// connection into a tunnel.
    pub fn respond<'a>(
        &'a mut self,
        status: u16,
        out: &'a mut Vec<u8>,
    ) -> Result<ResponseHead<'a>, ResponseError> {
        self.check_awaits_response()?;
        let opens_tunnel = self.request().method == Method::Connect && (200..300).contains(&status);
        if !(200..1000).contains(&status) || opens_tunnel {
            return Err(ResponseError::Status(status));
        }
        Ok(ResponseHead::begin(self, status, out))
    }
}

/// A response head that is being written. [`Connection::respond`] creates it. If it is dropped before it is finished,
/// it leaves nothing in the buffer, and another one can be started.
#[derive(Debug)]
#[must_use = "a response that is dropped unfinished is not sent"]
pub struct ResponseHead<'a> {
    connection: &'a mut Connection,
    out: &'a mut Vec<u8>,
    parts: ParkedHead,
    finished: bool,
}

/// The state of a response head that is not finished. [`ResponseHead::park`] gives it to a caller that has to wait
/// before it knows whether the body is complete.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each stands for a field that was given"
)]
pub struct ParkedHead {
    /// The start of the head in the buffer.
    start: usize,
    status: u16,
    content_length: Option<u64>,
    chunked: bool,
    close: bool,
    has_date: bool,
    has_server: bool,
}

impl ParkedHead {
    /// Goes on with the head, with the connection and the buffer that it was started with.
    pub fn resume<'a>(
        self,
        connection: &'a mut Connection,
        out: &'a mut Vec<u8>,
    ) -> ResponseHead<'a> {
        ResponseHead {
            connection,
            out,
            parts: self,
            finished: false,
        }
    }
}

impl<'a> ResponseHead<'a> {
    fn begin(
        connection: &'a mut Connection,
        status: u16,
        out: &'a mut Vec<u8>,
    ) -> ResponseHead<'a> {
        let start = out.len();
        out.reserve(256);
        write_status_line(status, out);
        ResponseHead {
            connection,
            out,
            parts: ParkedHead {
                start,
                status,
                content_length: None,
                chunked: false,
                close: false,
                has_date: false,
                has_server: false,
            },
            finished: false,
        }
    }

    /// Adds a field.
    ///
    /// [`finish`](ResponseHead::finish) writes the fields that frame the body, as the request and the status demand. If
    /// both Transfer-Encoding and Content-Length are given, Content-Length is left out.
    ///
    /// # Errors
    /// If the name is not a token, if the value contains a control character, or if a field that controls
    /// framing has an invalid value.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), ResponseError> {
        let known = Known::find(name);
        check_field(name, known, value)?;
        match known {
            Some(Known::CONTENT_LENGTH) => {
                let length =
                    syntax::decimal(syntax::trim(value)).ok_or(ResponseError::ContentLength)?;
                let error = ResponseError::ContentLength;
                return syntax::set_once(&mut self.parts.content_length, length, error);
            }
            Some(Known::TRANSFER_ENCODING) => {
                if self.parts.chunked || !syntax::trim(value).eq_ignore_ascii_case(b"chunked") {
                    return Err(ResponseError::TransferEncoding);
                }
                self.parts.chunked = true;
                return Ok(());
            }
            Some(Known::CONNECTION) => {
                let mut has_others = false;
                for option in syntax::list(value) {
                    let close = option.eq_ignore_ascii_case(b"close");
                    self.parts.close |= close;
                    has_others |= !close && !option.eq_ignore_ascii_case(b"keep-alive");
                }
                if !has_others {
                    return Ok(());
                }
            }
            Some(Known::DATE) => self.parts.has_date = true,
            Some(Known::SERVER) => self.parts.has_server = true,
            _ => {}
        }
        write_field(name, value, self.out);
        Ok(())
    }

    /// Finishes the head.
    ///
    /// `complete` is the length of the body in bytes, if the caller already has all of it. A response without a
    /// Content-Length then gets one. Otherwise its body is sent in chunks, or until the end of the connection to a
    /// client of HTTP/1.0. Date and Server are added from `lines` unless the response has its own. `unix_s` is the
    /// current time in seconds since 1970.
    pub fn finish(mut self, complete: Option<u64>, lines: &mut Lines, unix_s: u64) {
        let request = self.connection.request();
        let (is_head, version) = (request.method == Method::Head, request.version);
        let framing = self.frame(complete, is_head, version);
        let closes =
            self.parts.close || framing == Framing::Stream || self.connection.must_close_now();
        lines.write(unix_s, self.parts.has_date, self.parts.has_server, self.out);
        if closes {
            self.out.extend_from_slice(b"connection: close\r\n");
        } else if version == Version::Http10 {
            self.out.extend_from_slice(b"connection: keep-alive\r\n");
        }
        self.out.extend_from_slice(b"\r\n");
        self.finished = true;
        self.connection.begin_response(framing, closes);
    }

    /// Puts the head aside, to be finished when the length of the body is known. What was written of it stays in the
    /// buffer, and nothing else must be written there until [`resume`](ParkedHead::resume).
    pub fn park(mut self) -> ParkedHead {
        self.finished = true;
        self.parts
    }

    /// Chooses the framing, and writes the field that declares it.
    fn frame(&mut self, complete: Option<u64>, is_head: bool, version: Version) -> Framing {
        // RFC 9112, section 6.1: a client of HTTP/1.0 does not know chunks.
        let has_chunks = version == Version::Http11;
        let (given, complete) = match (self.parts.chunked, has_chunks) {
            (false, _) => (self.parts.content_length, complete),
            (true, true) => (None, None),
            (true, false) => (None, complete),
        };
        let otherwise = if has_chunks {
            Framing::Chunked
        } else {
            Framing::Stream
        };
        let (framing, written) =
            Framing::choose(self.parts.status, is_head, given, complete, otherwise);
        if let Some(length) = written {
            self.out.extend_from_slice(b"content-length: ");
            syntax::push_decimal(length, self.out);
            self.out.extend_from_slice(b"\r\n");
        } else if framing == Framing::Chunked {
            self.out
                .extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        framing
    }
}

impl Drop for ResponseHead<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.out.truncate(self.parts.start);
        }
    }
}
