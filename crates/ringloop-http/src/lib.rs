//! The message layer of an HTTP server: HTTP/1.1, HTTP/2 and WebSocket without sockets, threads or an event loop.
//!
//! The caller passes in the bytes it has received and gets events. It passes in responses and gets bytes to send. The
//! caller owns the buffers and the clock. Heads, chunks and frames are parsed in place, in a buffer that all
//! connections of a thread can share; a connection stores only what it needs until more bytes arrive.
//!
//! - [`h1`]: requests and responses of HTTP/1.1 and HTTP/1.0.
//! - [`websocket`]: handshake, frames and compression.
//! - [`h2`]: HTTP/2, on top of the `h2` crate.
//!
//! Input is untrusted. What could be read in two ways is refused wherever the specifications allow that. All sizes and
//! counts are limited. There is no `unsafe` code.

#![forbid(unsafe_code)]

mod date;
pub mod h1;
pub mod h2;
mod names;
mod response;
mod syntax;
pub mod websocket;

pub use date::http_date;
pub use names::{Known, lower_case};
pub use response::{Lines, ResponseError, is_field};
