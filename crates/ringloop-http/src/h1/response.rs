//! Response heads, and the framing of response bodies (RFC 9112, sections 4 and 6).

use super::connection::Connection;
use super::head::{Method, Version};
use crate::names::{self, Known};
use crate::response::{Framing, Lines, ResponseError};
use crate::syntax;

/// The response that asks a waiting client for its body (RFC 9110, section 15.2.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A framed piece of a body. Send [`head`](Framed::head), [`payload`](Framed::payload) and [`tail`](Framed::tail), each
/// of which may be empty, with one writev(2); nothing has to be copied.
#[derive(Clone, Copy, Debug)]
pub struct Framed {
    head: [u8; 18],
    head_start: u8,
    sends_payload: bool,
    tail: &'static [u8],
}

impl Framed {
    const HEAD_END: usize = 18;

    /// Count a piece of `length` bytes, and frame it.
    pub(super) fn new(
        framing: &mut Framing,
        length: usize,
        last: bool,
    ) -> Result<Self, ResponseError> {
        let sends_payload = framing.account(length, last)?;
        Ok(if *framing == Framing::Chunked {
            Framed::chunk(length, last)
        } else {
            Framed::plain(sends_payload)
        })
    }

    fn plain(sends_payload: bool) -> Self {
        Framed {
            head: [0; 18],
            head_start: Self::HEAD_END as u8,
            sends_payload,
            tail: b"",
        }
    }

    fn chunk(length: usize, last: bool) -> Self {
        let mut framed = Framed::plain(length > 0);
        framed.tail = match (length, last) {
            (0, false) => b"",
            (0, true) => b"0\r\n\r\n",
            (_, false) => b"\r\n",
            (_, true) => b"\r\n0\r\n\r\n",
        };
        if length > 0 {
            let mut start = Self::HEAD_END - 2;
            framed.head[start..].copy_from_slice(b"\r\n");
            let mut rest = length;
            while rest > 0 {
                start -= 1;
                framed.head[start] = b"0123456789abcdef"[rest & 15];
                rest >>= 4;
            }
            framed.head_start = start as u8;
        }
        framed
    }

    /// The bytes before the payload: the size of the chunk.
    pub fn head(&self) -> &[u8] {
        &self.head[usize::from(self.head_start)..]
    }

    /// The part of `payload` to send, which is all of it or nothing.
    pub fn payload<'a>(&self, payload: &'a [u8]) -> &'a [u8] {
        if self.sends_payload { payload } else { b"" }
    }

    /// The bytes after the payload.
    pub fn tail(&self) -> &'static [u8] {
        self.tail
    }
}

/// A response head that is being written. [`Connection::respond`] creates it. If it is dropped before it is finished,
/// it leaves nothing in the buffer, and another one can be started.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each stands for a field that was given"
)]
#[must_use = "a response that is dropped unfinished is not sent"]
pub struct ResponseHead<'a> {
    connection: &'a mut Connection,
    out: &'a mut Vec<u8>,
    /// The start of the head in `out`.
    start: usize,
    status: u16,
    content_length: Option<u64>,
    chunked: bool,
    close: bool,
    has_date: bool,
    has_server: bool,
    finished: bool,
}

impl<'a> ResponseHead<'a> {
    pub(super) fn begin(
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
            start,
            status,
            content_length: None,
            chunked: false,
            close: false,
            has_date: false,
            has_server: false,
            finished: false,
        }
    }

    /// Add a field.
    ///
    /// [`finish`](ResponseHead::finish) writes the fields that frame the body, as the request and the status demand. If
    /// both Transfer-Encoding and Content-Length are given, Content-Length is left out.
    ///
    /// # Errors
    /// If the name is not a token, if the value contains a control character, or if a field that controls
    /// framing has an invalid value.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), ResponseError> {
        let known = Known::find(name);
        if !names::is_valid(name, known) {
            return Err(ResponseError::FieldName);
        }
        if !syntax::is_field_value(value) {
            return Err(ResponseError::FieldValue);
        }
        match known {
            Some(Known::CONTENT_LENGTH) => {
                let length =
                    syntax::decimal(syntax::trim(value)).ok_or(ResponseError::ContentLength)?;
                let error = ResponseError::ContentLength;
                return syntax::set_once(&mut self.content_length, length, error);
            }
            Some(Known::TRANSFER_ENCODING) => {
                if self.chunked || !syntax::trim(value).eq_ignore_ascii_case(b"chunked") {
                    return Err(ResponseError::TransferEncoding);
                }
                self.chunked = true;
                return Ok(());
            }
            Some(Known::CONNECTION) => {
                let mut has_others = false;
                for option in syntax::list(value) {
                    let close = option.eq_ignore_ascii_case(b"close");
                    self.close |= close;
                    has_others |= !close && !option.eq_ignore_ascii_case(b"keep-alive");
                }
                if !has_others {
                    return Ok(());
                }
            }
            Some(Known::DATE) => self.has_date = true,
            Some(Known::SERVER) => self.has_server = true,
            _ => {}
        }
        write_field(name, value, self.out);
        Ok(())
    }

    /// Finish the head.
    ///
    /// `complete` is the length of the body in bytes, if the caller already has all of it. A response without a
    /// Content-Length then gets one. Otherwise its body is sent in chunks, or until the end of the connection to a
    /// client of HTTP/1.0. Date and Server are added from `lines` unless the response has its own. `unix_s` is the
    /// current time in seconds since 1970.
    pub fn finish(mut self, complete: Option<u64>, lines: &mut Lines, unix_s: u64) {
        let request = self.connection.request();
        let (is_head, version) = (request.method == Method::Head, request.version);
        let framing = self.frame(complete, is_head, version);
        let closes = self.close || framing == Framing::Stream || self.connection.must_close_now();
        lines.write(unix_s, self.has_date, self.has_server, self.out);
        if closes {
            self.out.extend_from_slice(b"connection: close\r\n");
        } else if version == Version::Http10 {
            self.out.extend_from_slice(b"connection: keep-alive\r\n");
        }
        self.out.extend_from_slice(b"\r\n");
        self.finished = true;
        self.connection.begin_response(framing, closes);
    }

    /// Choose the framing, and write the field that declares it.
    fn frame(&mut self, complete: Option<u64>, is_head: bool, version: Version) -> Framing {
        // RFC 9112, section 6.1: a client of HTTP/1.0 does not know chunks.
        let has_chunks = version == Version::Http11;
        let (given, complete) = match (self.chunked, has_chunks) {
            (false, _) => (self.content_length, complete),
            (true, true) => (None, None),
            (true, false) => (None, complete),
        };
        let otherwise = if has_chunks {
            Framing::Chunked
        } else {
            Framing::Stream
        };
        let (framing, written) = Framing::choose(self.status, is_head, given, complete, otherwise);
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
            self.out.truncate(self.start);
        }
    }
}

/// Append a field line. The caller has checked both parts.
pub(crate) fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Check a field that does not control framing, and append it.
pub(crate) fn write_checked_field(
    name: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), ResponseError> {
    if !names::is_valid(name, Known::find(name)) {
        return Err(ResponseError::FieldName);
    }
    if !syntax::is_field_value(value) {
        return Err(ResponseError::FieldValue);
    }
    write_field(name, value, out);
    Ok(())
}

/// Append the status line. A status that is not registered has no reason phrase.
pub(crate) fn write_status_line(status: u16, out: &mut Vec<u8>) {
    if let Some(line) = status_line(status) {
        out.extend_from_slice(line);
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        syntax::push_decimal(u64::from(status), out);
        out.extend_from_slice(b" \r\n");
    }
}

macro_rules! status_lines {
    ($($status:literal $reason:literal)*) => {
        /// The status lines of the registered statuses (IANA's HTTP Status Code Registry, and RFC 2324).
        fn status_line(status: u16) -> Option<&'static [u8]> {
            match status {
                $($status => Some(concat!("HTTP/1.1 ", $status, " ", $reason, "\r\n").as_bytes()),)*
                _ => None,
            }
        }
    };
}

status_lines! {
    100 "Continue"
    101 "Switching Protocols"
    102 "Processing"
    103 "Early Hints"
    200 "OK"
    201 "Created"
    202 "Accepted"
    203 "Non-Authoritative Information"
    204 "No Content"
    205 "Reset Content"
    206 "Partial Content"
    207 "Multi-Status"
    208 "Already Reported"
    226 "IM Used"
    300 "Multiple Choices"
    301 "Moved Permanently"
    302 "Found"
    303 "See Other"
    304 "Not Modified"
    305 "Use Proxy"
    307 "Temporary Redirect"
    308 "Permanent Redirect"
    400 "Bad Request"
    401 "Unauthorized"
    402 "Payment Required"
    403 "Forbidden"
    404 "Not Found"
    405 "Method Not Allowed"
    406 "Not Acceptable"
    407 "Proxy Authentication Required"
    408 "Request Timeout"
    409 "Conflict"
    410 "Gone"
    411 "Length Required"
    412 "Precondition Failed"
    413 "Content Too Large"
    414 "URI Too Long"
    415 "Unsupported Media Type"
    416 "Range Not Satisfiable"
    417 "Expectation Failed"
    418 "I'm a Teapot"
    421 "Misdirected Request"
    422 "Unprocessable Content"
    423 "Locked"
    424 "Failed Dependency"
    425 "Too Early"
    426 "Upgrade Required"
    428 "Precondition Required"
    429 "Too Many Requests"
    431 "Request Header Fields Too Large"
    451 "Unavailable For Legal Reasons"
    500 "Internal Server Error"
    501 "Not Implemented"
    502 "Bad Gateway"
    503 "Service Unavailable"
    504 "Gateway Timeout"
    505 "HTTP Version Not Supported"
    506 "Variant Also Negotiates"
    507 "Insufficient Storage"
    508 "Loop Detected"
    510 "Not Extended"
    511 "Network Authentication Required"
}
