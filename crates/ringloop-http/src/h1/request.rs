//! The terms in which a request is described: places in its head, methods, versions, lengths of bodies.

use std::ops::Range;

/// A range of bytes within a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    length: u32,
}

impl Span {
    pub(super) fn new(start: usize, length: usize) -> Self {
        Span {
            start: start as u32,
            length: length as u32,
        }
    }

    /// The place of `part` within `whole`.
    pub(super) fn of_part(whole: &[u8], part: &[u8]) -> Self {
        let start = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
        debug_assert!(start + part.len() <= whole.len());
        Span::new(start, part.len())
    }

    pub(super) fn start(self) -> usize {
        self.start as usize
    }

    pub(super) fn end(self) -> usize {
        (self.start + self.length) as usize
    }

    /// The bytes of the range, given the bytes of the head.
    ///
    /// # Panics
    /// If `head` is shorter than the head that the span belongs to.
    #[inline]
    pub fn of(self, head: &[u8]) -> &[u8] {
        &head[self.start()..self.end()]
    }

    /// The span as a range.
    pub fn range(self) -> Range<usize> {
        self.start()..self.end()
    }

    /// The number of bytes.
    pub fn len(self) -> usize {
        self.length as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(self) -> bool {
        self.length == 0
    }
}

/// The method of a request: those of RFC 9110 and RFC 5789, and any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    /// [`Facts::method_name`](super::Facts::method_name) has its name.
    Other,
}

impl Method {
    /// Methods are case-sensitive (RFC 9110, section 9.1).
    pub(crate) fn from_bytes(name: &[u8]) -> Self {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// The name; `OTHER` for a method that is not one of these.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Connect => "CONNECT",
            Method::Options => "OPTIONS",
            Method::Trace => "TRACE",
            Method::Patch => "PATCH",
            Method::Other => "OTHER",
        }
    }
}

/// The version of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
}

/// The length of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// The length in bytes, which is 0 if the head does not mention a body.
    Sized(u64),
    /// The body is sent in chunks.
    Chunked,
}

impl Default for BodyLength {
    fn default() -> Self {
        BodyLength::Sized(0)
    }
}

/// The protocol that the client wants to switch to (RFC 9110, section 7.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upgrade {
    /// The client does not want to switch.
    #[default]
    None,
    /// `websocket`, possibly among others. [`Handshake`](crate::websocket::Handshake) checks the rest of the head.
    WebSocket,
    /// Another protocol. A server may ignore it.
    Other,
}
