//! Responses, as far as they are the same in all versions of HTTP: errors, the fields that the server adds, and the
//! length of bodies.

use std::fmt;

use http::HeaderValue;

use crate::date::{self, http_date};
use crate::syntax;

/// The reason why a response cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseError {
    /// No request is waiting for a response.
    NoRequest,
    /// The response was already started.
    Begun,
    /// The response was not started.
    NotBegun,
    /// The status is not valid: it must be 200 to 999 for a final response and 100 to 199 for an informational one. A
    /// CONNECT request cannot succeed, because that would turn the connection into a tunnel.
    Status(u16),
    /// A field's name is not a token (RFC 9110, section 5.6.2).
    FieldName,
    /// A field's value contains a control character (RFC 9110, section 5.5).
    FieldValue,
    /// Content-Length is not a number, or there is more than one.
    ContentLength,
    /// Transfer-Encoding is not `chunked`.
    TransferEncoding,
    /// The body is longer than Content-Length says. The last piece was not accepted.
    TooLong,
    /// The body ended this number of bytes before what Content-Length says.
    TooShort(u64),
}

impl fmt::Display for ResponseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponseError::NoRequest => formatter.write_str("no request is waiting for a response"),
            ResponseError::Begun => formatter.write_str("the response was already started"),
            ResponseError::NotBegun => formatter.write_str("the response was not started"),
            ResponseError::Status(status) => write!(formatter, "invalid status {status}"),
            ResponseError::FieldName => formatter.write_str("invalid header name"),
            ResponseError::FieldValue => formatter.write_str("invalid header value"),
            ResponseError::ContentLength => formatter.write_str("invalid Content-Length"),
            ResponseError::TransferEncoding => formatter.write_str("invalid Transfer-Encoding"),
            ResponseError::TooLong => {
                formatter.write_str("response body longer than Content-Length")
            }
            ResponseError::TooShort(missing) => write!(
                formatter,
                "response body {missing} bytes shorter than Content-Length"
            ),
        }
    }
}

impl std::error::Error for ResponseError {}

/// The fields that the server adds: Date, which is formatted once per second, and Server. One is enough for all
/// connections of a thread.
#[derive(Debug)]
pub struct Lines {
    server: Vec<u8>,
    has_date: bool,
    unix_s: u64,
    date: Vec<u8>,
    values: Option<Values>,
}

/// The values of Date and Server, for HTTP/2. None: there is no such field.
#[derive(Debug)]
struct Values {
    /// Since when Date is right.
    unix_s: u64,
    date: Option<HeaderValue>,
    server: Option<HeaderValue>,
}

/// Whether a field with this name and this value can be part of a response.
pub fn is_field(name: &[u8], value: &[u8]) -> bool {
    syntax::is_token(name) && syntax::is_field_value(value)
}

const DATE_NAME: &[u8] = b"date: ";
const SERVER_NAME: &[u8] = b"server: ";

impl Lines {
    /// `server` is the value of Server; without one, there is no such field. `has_date` says whether to send Date. RFC
    /// 9110, section 6.6.1 wants one from a server that has a clock.
    ///
    /// # Panics
    /// If `server` is not a valid field value.
    pub fn new(server: Option<&str>, has_date: bool) -> Self {
        let server = server.map_or_else(Vec::new, |value| {
            assert!(
                syntax::is_field_value(value.as_bytes()),
                "Server is not a valid field value"
            );
            format!("server: {value}\r\n").into_bytes()
        });
        let mut date = Vec::new();
        if has_date {
            date = [DATE_NAME, &http_date(0), b"\r\n"].concat();
        }
        Lines {
            server,
            has_date,
            unix_s: 0,
            date,
            values: None,
        }
    }

    /// The line with Date, empty if that is off.
    fn date(&mut self, unix_s: u64) -> &[u8] {
        if self.has_date && self.unix_s != unix_s {
            self.unix_s = unix_s;
            let value = DATE_NAME.len()..DATE_NAME.len() + date::LENGTH;
            self.date[value].copy_from_slice(&http_date(unix_s));
        }
        &self.date
    }

    /// Appends both lines, except for those that the response already has.
    pub(crate) fn write(
        &mut self,
        unix_s: u64,
        has_date: bool,
        has_server: bool,
        out: &mut Vec<u8>,
    ) {
        if !has_date {
            out.extend_from_slice(self.date(unix_s));
        }
        if !has_server {
            out.extend_from_slice(&self.server);
        }
    }

    /// The values of Date and Server, if they are on.
    pub(crate) fn values(&mut self, unix_s: u64) -> (Option<&HeaderValue>, Option<&HeaderValue>) {
        if self.values.as_ref().is_none_or(|it| it.unix_s != unix_s) {
            self.date(unix_s);
            let value = |line: &[u8], name: &[u8]| {
                let value = line.get(name.len()..line.len().checked_sub(b"\r\n".len())?)?;
                HeaderValue::from_bytes(value).ok()
            };
            self.values = Some(Values {
                unix_s,
                date: value(&self.date, DATE_NAME),
                server: value(&self.server, SERVER_NAME),
            });
        }
        let values = self.values.as_ref();
        (
            values.and_then(|values| values.date.as_ref()),
            values.and_then(|values| values.server.as_ref()),
        )
    }
}

/// The framing of a response's body, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There must be no body: 204, 205 and 304. It is not sent.
    Nothing,
    /// The body is not sent: HEAD.
    Discarded,
    /// The number of bytes that are left.
    Length(u64),
    /// Chunks of HTTP/1.1.
    Chunked,
    /// The body ends with the HTTP/2 stream, or with the HTTP/1.0 connection.
    Stream,
}

impl Framing {
    /// Chooses the framing, and the Content-Length to send.
    ///
    /// `given` is the application's Content-Length, `complete` the length of the body if it is known, and `otherwise`
    /// the framing of a body of unknown length.
    pub(crate) fn choose(
        status: u16,
        is_head: bool,
        given: Option<u64>,
        complete: Option<u64>,
        otherwise: Framing,
    ) -> (Framing, Option<u64>) {
        let without_body = if is_head {
            Framing::Discarded
        } else {
            Framing::Nothing
        };
        match status {
            // RFC 9110, section 8.6: a 204 must not have a Content-Length.
            204 => (without_body, None),
            304 => (without_body, given),
            _ if is_head => (Framing::Discarded, given),
            // RFC 9110, section 15.3.6: a 205 has no content, but it is framed like other responses.
            205 => (Framing::Nothing, Some(0)),
            _ => match given.or(complete) {
                Some(length) => (Framing::Length(length), Some(length)),
                None => (otherwise, None),
            },
        }
    }

    /// Counts a piece of `length` bytes, which may be the `last` one. Returns whether it must be sent.
    pub(crate) fn account(&mut self, length: usize, last: bool) -> Result<bool, ResponseError> {
        match self {
            Framing::Nothing | Framing::Discarded => Ok(false),
            Framing::Length(left) => {
                *left = left
                    .checked_sub(length as u64)
                    .ok_or(ResponseError::TooLong)?;
                if last && *left > 0 {
                    return Err(ResponseError::TooShort(*left));
                }
                Ok(true)
            }
            Framing::Chunked | Framing::Stream => Ok(true),
        }
    }
}
