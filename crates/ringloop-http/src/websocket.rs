//! WebSocket (RFC 6455) for a server, with permessage-deflate (RFC 7692).
//!
//! [`Handshake::check`] checks a request that [`h1`](crate::h1) has parsed. [`Handshake::accept`] writes the response
//! and returns a [`Connection`], which unmasks the received frames in place and assembles messages:
//!
//! ```
//! use ringloop_http::websocket::{Config, Connection, Event, Pool};
//!
//! let mut pool = Pool::default();
//! let mut connection = Connection::new(Config::default(), None);
//! let mut input = *b"\x81\x85\x01\x02\x03\x04igohn\x89\x80";
//! let mut at = 0;
//! let Event::Message { is_text: true, payload } = connection.read(&mut input, &mut at, &mut pool)? else { panic!() };
//! assert_eq!(connection.payload(&payload, &input), b"hello");
//! // The rest is an incomplete frame head. The connection stores it.
//! assert!(matches!(connection.read(&mut input, &mut at, &mut pool)?, Event::NeedMore));
//! assert_eq!(at, input.len());
//!
//! let frame = connection.message(true, b"world", &mut pool)?;
//! assert_eq!((frame.head(), frame.payload()), (&b"\x81\x05"[..], &b"world"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There are no timers. The caller decides when to send pings, and how long to wait for the client's close frame.

mod connection;
mod deflate;
mod frame;
mod handshake;
mod utf8;

pub use connection::{Connection, Event, Failure, Frame, Payload, SendError};
pub use deflate::{Deflate, Negotiated, Pool};
pub use frame::ControlFrame;
pub use handshake::{AcceptError, Handshake, Refusal};

/// The settings of a server's WebSockets.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The size of the largest message to receive, in bytes, after decompression. A larger one ends the connection with
    /// 1009, as soon as its size is known. Default: 16 MiB.
    pub message_bytes: usize,
    /// How to compress messages, with clients that support it. `None` turns compression off. Default: on.
    pub deflate: Option<Deflate>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            message_bytes: 16 << 20,
            deflate: Some(Deflate::default()),
        }
    }
}
