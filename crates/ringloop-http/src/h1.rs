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
mod limits;
mod request;
mod response;
mod response_head;
mod target;

pub use body::{ChunkedDecoder, Piece, Trailers};
pub use connection::{Connection, Event};
pub use fault::Fault;
pub use head::{Facts, Field, Head};
pub use limits::Limits;
pub use request::{BodyLength, Method, Span, Upgrade, Version};
pub use response::{CONTINUE, Framed};
pub use response_head::{ParkedHead, ResponseHead};
pub use target::Form;

pub(crate) use body::is_forbidden as is_forbidden_trailer;
pub(crate) use response::{write_checked_field, write_field};
