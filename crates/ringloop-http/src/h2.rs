//! HTTP/2 (RFC 9113), on top of the `h2` crate, without sockets or a runtime.
//!
//! A [`Connection`] takes the bytes that a client sends, and returns [`Event`]s and bytes to send. Streams are
//! identified by their numbers.
//!
//! ```
//! use bytes::Bytes;
//! use ringloop_http::Lines;
//! use ringloop_http::h2::{Config, Connection, Event};
//!
//! # let from_client = ringloop_http::h2::doc_example();
//! let mut connection = Connection::new(&Config::default());
//! let (mut lines, mut out, now_ms) = (Lines::new(None, false), Vec::new(), 0);
//! connection.receive(&from_client, now_ms);
//! while let Some(event) = connection.next_event(now_ms) {
//!     if let Event::Request { stream, request, end: true } = event {
//!         assert_eq!((request.method(), request.path()), ("GET", "/greet"));
//!         connection.respond(stream, 200, [(&b"content-type"[..], &b"text/plain"[..])], Some(2), &mut lines, 0)?;
//!         connection.send(stream, Bytes::from_static(b"hi"), true, now_ms)?;
//!     }
//! }
//! // The frames to send: settings, the head of the response, and its body.
//! connection.take_output(&mut out, now_ms);
//! assert!(out.windows(2).any(|bytes| bytes == b"hi"));
//! # Ok::<(), ringloop_http::ResponseError>(())
//! ```
//!
//! # Limits
//!
//! [`Config`] limits what a connection can cost.
//!
//! - Request bodies: a client can send as much as the flow-control windows allow. They open again when the application
//!   has received the data ([`Connection::release`]), not before.
//! - Response bodies: [`Connection::buffered`] returns how much the client has not made room for, and
//!   [`Event::Drained`] reports when it has. [`Connection::reset_stalled`] enforces a deadline.
//! - Floods: frames that cost the server more than the client are counted and limited as they arrive. These are resets,
//!   before and after the application has seen the request (CVE-2023-44487), window updates, DATA of a few bytes, and
//!   all other frames except for HEADERS and CONTINUATION. Streams that have to be reset because the client made an
//!   error are limited, too (CVE-2025-8671). The `h2` crate limits header blocks that do not end (CVE-2024-27316), and
//!   those that expand to much more than their size.
//!
//! # What is refused
//!
//! A request that would be refused in HTTP/1 ([`crate::h1::Fault`]) is malformed here, too. Its stream is reset with
//! PROTOCOL_ERROR (RFC 9113, section 8.1.1). There are two differences, because the `h2` crate decides on these itself:
//! it removes a fragment from `:path`, and it answers a header block that exceeds the limit with a 431.

mod config;
mod connection;
mod event;
mod meter;
mod pipe;
mod request;
mod stream;

pub use config::Config;
pub use connection::Connection;
pub use event::{End, Event};
pub use request::Request;
pub use stream::Head;

/// The input of the example: the preface, settings, and `GET /greet`.
#[doc(hidden)]
pub fn doc_example() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // HPACK: two indexed fields, and two literals without indexing.
    let block = b"\x82\x86\x04\x06/greet\x01\x09a.example";
    bytes.extend_from_slice(&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(block);
    bytes
}
