//! The lines of a response head, and the framing of response bodies (RFC 9112, sections 4 and 6).

use crate::names::{self, Known};
use crate::response::{Framing, ResponseError};
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
    is_forbidden: bool,
    tail: &'static [u8],
}

impl Framed {
    const HEAD_END: usize = 18;

    /// Counts a piece of `length` bytes, and frames it.
    pub(super) fn new(
        framing: &mut Framing,
        length: usize,
        last: bool,
    ) -> Result<Self, ResponseError> {
        let sends_payload = framing.account(length, last)?;
        Ok(match *framing {
            Framing::Chunked => Framed::chunk(length, last),
            Framing::Nothing => Framed {
                is_forbidden: length > 0,
                ..Framed::plain(false)
            },
            _ => Framed::plain(sends_payload),
        })
    }

    fn plain(sends_payload: bool) -> Self {
        Framed {
            head: [0; 18],
            head_start: Self::HEAD_END as u8,
            sends_payload,
            is_forbidden: false,
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

    /// Whether the payload is to be sent.
    pub fn sends_payload(&self) -> bool {
        self.sends_payload
    }

    /// Whether there is a payload, and a response with this status must not have one, so that it is not to be sent. In
    /// response to HEAD, nothing is forbidden: it just isn't sent.
    pub fn is_forbidden(&self) -> bool {
        self.is_forbidden
    }

    /// The bytes after the payload.
    pub fn tail(&self) -> &'static [u8] {
        self.tail
    }
}

/// Appends a field line. The caller has checked both parts.
pub(crate) fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Checks a field that does not control framing, and appends it.
pub(crate) fn write_checked_field(
    name: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), ResponseError> {
    check_field(name, Known::find(name), value)?;
    write_field(name, value, out);
    Ok(())
}

/// Checks the name and the value of a field.
pub(super) fn check_field(
    name: &[u8],
    known: Option<Known>,
    value: &[u8],
) -> Result<(), ResponseError> {
    if !names::is_valid(name, known) {
        return Err(ResponseError::FieldName);
    }
    if !syntax::is_field_value(value) {
        return Err(ResponseError::FieldValue);
    }
    Ok(())
}

/// Appends the status line. A status that is not registered has no reason phrase.
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
