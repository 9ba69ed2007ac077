//! One connection of the generator, as its thread keeps it.

use std::net::TcpStream;

use crate::pattern::Frame;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not yet made.
    New,
    Connecting,
    Open,
    /// Failed; it isn't made again.
    Dead,
}

/// A connection and its requests.
pub(crate) struct Connection<P> {
    pub(crate) stream: Option<TcpStream>,
    pub(crate) state: State,
    /// Its number among all connections of the run.
    pub(crate) number: u32,
    /// Requests are numbered from 0. Those below `answered` are answered, those below `sent` are sent, those below `started`
    /// were to be sent, those below `due` should have been: `answered <= sent <= started <= due`, the last in the open loop only.
    /// A stream is one request without an end, which counts as sent while nothing more of it is to be sent.
    pub(crate) answered: u32,
    pub(crate) sent: u32,
    pub(crate) started: u32,
    pub(crate) due: u32,
    /// How much of request `sent` is sent, in bytes; how much of the message that a stream repeats.
    pub(crate) position: usize,
    /// What was sent on a stream and has not come back, in bytes.
    pub(crate) outstanding: u64,
    /// Sending failed, because the server has closed the connection or reset it.
    pub(crate) broken: bool,
    /// It was open at some time.
    pub(crate) opened: bool,
    /// What `answered` was when the connection was made the last time.
    pub(crate) answered_before: u32,
    /// The server said that it will close.
    pub(crate) closing: bool,
    pub(crate) partial: P,
    /// When the connection was begun, or (streams) something came last, or the server said that it will close.
    pub(crate) since_ns: u64,
    /// What was answered in the window: requests, or (streams) bytes.
    pub(crate) operations: u64,
}

impl<P: Default> Connection<P> {
    /// A connection that isn't made yet.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            stream: None,
            state: State::New,
            number,
            answered: 0,
            sent: 0,
            started: 0,
            due: 0,
            position: 0,
            outstanding: 0,
            broken: false,
            opened: false,
            answered_before: 0,
            closing: false,
            partial: P::default(),
            since_ns: 0,
            operations: 0,
        }
    }
}

impl<P> Connection<P> {
    /// How many requests are started and not answered.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.started.wrapping_sub(self.answered)
    }

    /// How many requests are started and not sent.
    #[inline]
    pub(crate) fn unsent(&self) -> u32 {
        self.started.wrapping_sub(self.sent)
    }

    /// What names one of its requests.
    #[inline]
    pub(crate) fn frame(&self, sequence: u32) -> Frame {
        Frame {
            connection: self.number,
            sequence,
        }
    }
}
