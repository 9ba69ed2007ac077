//! HTTP/1.1 and HTTP/1.0 (RFC 9110, RFC 9112).
//!
//! A server keeps one [`Connection`] per client. [`Connection::read`] returns what the received bytes contain:
//!
//! ```
//! use ringloop_http::Lines;
//! use ringloop_http::h1::{Connection, Event, Head, Limits};
//!
//! let input = b"POST /greet?loud HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhelloGET / HT";
//! let mut connection = Connection::new(Limits::default());
//! let mut head = Head::default();
//! let mut at = 0;
//!
//! let Event::Request { head: range, .. } = connection.read(input, &mut at, &mut head)? else { panic!() };
//! let bytes = &input[range];
//! assert_eq!(connection.request().path(bytes), b"/greet");
//! assert_eq!(head.fields()[0].value.of(bytes), b"a.example");
//! let Event::Data { range, end } = connection.read(input, &mut at, &mut head)? else { panic!() };
//! assert_eq!((&input[range], end), (&b"hello"[..], true));
//! // The next request is not read before this one is answered.
//! assert!(matches!(connection.read(input, &mut at, &mut head)?, Event::Paused));
//!
//! let mut lines = Lines::new(None, false);
//! let mut out = Vec::new();
//! let mut response = connection.respond(200, &mut out)?;
//! response.field(b"content-type", b"text/plain")?;
//! response.finish(Some(2), &mut lines, 0);
//! connection.send(2, true)?;
//! assert_eq!(out, b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n");
//!
//! // The next head is incomplete. It stays in the caller's buffer, and parsing resumes when more has arrived.
//! assert!(matches!(connection.read(input, &mut at, &mut head)?, Event::NeedMore));
//! assert_eq!(&input[at..], b"GET / HT");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Parsing is strict: a request that two servers read differently can be smuggled past one of them. [`Fault`] lists
//! what is refused, and with which status.

mod body;
mod connection;
mod fault;
mod head;
mod response;
mod target;

pub use body::{ChunkedDecoder, Piece, Trailers};
pub use connection::{Connection, Event};
pub use fault::Fault;
pub use head::{BodyLength, Facts, Field, Head, Method, Span, Upgrade, Version};
pub use response::{CONTINUE, Framed, ResponseHead};
pub use target::Form;

pub(crate) use body::is_forbidden as is_forbidden_trailer;
pub(crate) use response::{write_checked_field, write_field};

/// The limits of a request. One that exceeds them is refused.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Size of a head in bytes, from the request line to the empty line at its end. Larger heads get a 431. Default:
    /// 64 KiB; values above 16 MiB count as 16 MiB.
    pub head_bytes: usize,
    /// Length of the request line in bytes, including its line end. Longer ones get a 414. Default: 16 KiB.
    pub request_line_bytes: usize,
    /// Number of header fields. More get a 431. Default: 128; values above [`Limits::FIELDS_MAX`] count as that.
    pub fields: usize,
    /// Total size of a body's chunk extensions in bytes. Nothing uses them, but reading them costs time. Default: 4
    /// KiB.
    pub chunk_extension_bytes: usize,
    /// Size of the trailer section in bytes. Larger ones get a 431. Default: 8 KiB.
    pub trailer_bytes: usize,
    /// Size in bytes of the largest head that a connection remembers. A head that is equal to the remembered one is not
    /// parsed again. 0 turns this off. Default: 1 KiB.
    pub remembered_bytes: usize,
    /// Whether a connection may start with the preface of HTTP/2 ([`Event::Http2`]). Default: true.
    pub http2: bool,
}

impl Limits {
    /// The largest possible value of [`Limits::fields`].
    pub const FIELDS_MAX: usize = 256;
    /// The largest possible value of [`Limits::head_bytes`].
    const HEAD_BYTES_MAX: usize = 16 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_bytes: 64 << 10,
            request_line_bytes: 16 << 10,
            fields: 128,
            chunk_extension_bytes: 4 << 10,
            trailer_bytes: 8 << 10,
            remembered_bytes: 1 << 10,
            http2: true,
        }
    }
}
