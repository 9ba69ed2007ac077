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
//! // Making a string of text checks it.
//! let text = str::from_utf8(connection.payload(&payload, &input)).map_err(|_| "not UTF-8")?;
//! assert_eq!(text, "hello");
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

mod config;
mod connection;
mod deflate;
mod frame;
mod handshake;
mod utf8;

pub use config::Config;
pub use connection::{Connection, Event, Failure, Frame, Payload, SendError};
pub use deflate::{Deflate, Negotiated, Pool};
pub use frame::ControlFrame;
pub use handshake::{AcceptError, Handshake, Refusal};
