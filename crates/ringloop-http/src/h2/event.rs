//! The events of a connection.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::request::Request;
use crate::h1::Fault;

/// An event on a connection. `stream` is the number of a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request.
    Request {
        /// Its stream.
        stream: u32,
        /// Its head. Requests in succession share it if their heads are equal.
        request: Arc<Request>,
        /// Whether it has no body.
        end: bool,
    },
    /// A request that is to be answered with an error: [`status`](Fault::status) says which one.
    Refused {
        /// Its stream.
        stream: u32,
        /// The fault.
        fault: Fault,
    },
    /// A part of a request's body. Only the last part can be empty. Call [`Connection::release`](super::Connection::release) when the application
    /// has received it. Until then, keep a copy if it is short: the `Bytes` keep the whole buffer in memory that they
    /// were received in.
    Data {
        /// The stream of the request.
        stream: u32,
        /// The bytes of this part.
        data: Bytes,
        /// Whether this is the last part.
        end: bool,
    },
    /// The trailers of a request, which also end its body.
    Trailers {
        /// The stream of the request.
        stream: u32,
        /// Names in lower case, and values.
        fields: Vec<(String, Vec<u8>)>,
    },
    /// Nothing of a response's body is [buffered](super::Connection::buffered) any more.
    Drained {
        /// The stream of the response.
        stream: u32,
    },
    /// The stream was reset by the client, by [`Connection::reset_stalled`](super::Connection::reset_stalled), or because of an error. It has no more
    /// events, and nothing can be sent on it.
    Reset {
        /// The stream.
        stream: u32,
        /// The error code (RFC 9113, section 7).
        code: u32,
    },
    /// The connection is over. All open streams were reset before this. Send the rest of the output, and close the
    /// socket.
    End(End),
}

/// The way in which a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The client has closed the connection, or all streams were finished after a GOAWAY.
    Orderly,
    /// There was an error, with this message.
    Error(String),
    /// The client has sent too many control frames, or too many requests after a GOAWAY.
    Flood,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Orderly => formatter.write_str("closed"),
            End::Error(error) => formatter.write_str(error),
            End::Flood => formatter.write_str("too many requests or control frames"),
        }
    }
}
