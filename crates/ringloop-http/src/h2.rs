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

mod connection;
mod meter;
mod pipe;
mod request;

pub use connection::{Connection, End, Event};
pub use request::Request;

/// The settings and limits of a connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The flow-control window of a stream in bytes: how much of a request's body can wait for the application.
    /// Default: 65,535, as in RFC 9113, section 6.9.2.
    pub stream_window_bytes: u32,
    /// The flow-control window of the connection in bytes, for all streams together. Default: 1 MiB.
    pub connection_window_bytes: u32,
    /// The size of a request's fields in bytes, with 32 bytes added for each (RFC 9113, section 6.5.2). Default: 64
    /// KiB.
    pub header_list_bytes: u32,
    /// The number of fields of a request. Cookies count as one. More get a 431. Default: 128.
    pub fields: usize,
    /// The number of concurrent streams. Default: 128.
    pub concurrent_streams: u32,
    /// The number of requests after which the client is asked to open a new connection, by GOAWAY. Default: 1,000.
    pub requests: u64,
    /// How many streams a client can reset at once. Malformed requests and trailers count, too. Default: 200.
    pub resets: u32,
    /// How many more streams a client can reset per second. Default: 50.
    pub resets_per_s: u32,
    /// How many other control frames (PING, SETTINGS, PRIORITY, GOAWAY and unknown frames) a client can send at once.
    /// Default: 1,000.
    pub control_frames: u32,
    /// How many more control frames a client can send per second. Default: 200.
    pub control_frames_per_s: u32,
    /// How many WINDOW_UPDATE frames a client can send at once. Default: 10,000.
    pub window_updates: u32,
    /// How many more WINDOW_UPDATE frames a client can send per second. Default: 5,000.
    pub window_updates_per_s: u32,
    /// How many DATA frames of less than 64 bytes, which do not end a request, a client can send at once. Default:
    /// 20,000.
    pub small_data_frames: u32,
    /// How many more of these DATA frames a client can send per second. Default: 10,000.
    pub small_data_frames_per_s: u32,
    /// How many streams the `h2` crate refuses or resets, because the client violates the protocol, before it ends the
    /// connection. Default: 256.
    pub error_resets: usize,
    /// How many bytes of output are produced before [`Connection::take_output`] must be called. Default: 64 KiB.
    pub output_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            stream_window_bytes: (64 << 10) - 1,
            connection_window_bytes: 1 << 20,
            header_list_bytes: 64 << 10,
            fields: 128,
            concurrent_streams: 128,
            requests: 1_000,
            resets: 200,
            resets_per_s: 50,
            control_frames: 1_000,
            control_frames_per_s: 200,
            window_updates: 10_000,
            window_updates_per_s: 5_000,
            small_data_frames: 20_000,
            small_data_frames_per_s: 10_000,
            error_resets: 256,
            output_bytes: 64 << 10,
        }
    }
}

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
