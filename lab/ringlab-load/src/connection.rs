//! One connection of the generator.

use crate::link::Link;
use crate::pattern::Frame;

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Not opened yet, or failed, and isn't opened again.
    #[default]
    Closed,
    Connecting,
    /// TCP is connected; TLS's handshake isn't done yet.
    Securing,
    /// The protocol's greeting is sent, and its answer hasn't come yet.
    Greeting,
    Open,
}

/// A connection and its requests.
#[derive(Default)]
pub(crate) struct Connection<P> {
    pub(crate) link: Option<Link>,
    pub(crate) state: State,
    /// Its number among all connections of the run.
    pub(crate) number: u32,
    /// Requests are numbered from 0. Those below `answered` are answered, those below `sent` are sent, those below `started` are
    /// started, and in the open loop those below `due` are due: `answered <= sent <= started <= due`. A stream is one endless
    /// request, which counts as sent while it is held back.
    pub(crate) answered: u32,
    pub(crate) sent: u32,
    pub(crate) started: u32,
    pub(crate) due: u32,
    /// How many bytes of request `sent` are sent. For a stream, the position in the repeated message.
    pub(crate) position: usize,
    /// The number of bytes that were sent on a stream and have not come back. If nothing comes back, all that were sent.
    pub(crate) outstanding: u64,
    /// How many bytes of a stream in one direction the server's kernel had acknowledged when the window was opened, and when that was
    /// last looked up.
    pub(crate) acknowledged_before: u64,
    pub(crate) acknowledged: u64,
    /// Sending failed, because the server has closed or reset the connection.
    pub(crate) broken: bool,
    /// It was open at least once.
    pub(crate) opened: bool,
    /// The value of `answered` when the connection was last opened.
    pub(crate) answered_before: u32,
    /// The server has announced that it will close the connection.
    pub(crate) closing: bool,
    pub(crate) partial: P,
    /// The bytes that came in answer to the greeting.
    pub(crate) heard: Vec<u8>,
    /// When opening the connection began, when something last came (streams), or when the server announced the close.
    pub(crate) since_ns: u64,
    /// The operations that were answered in the window: requests, or bytes (streams).
    pub(crate) operations: u64,
}

impl<P: Default> Connection<P> {
    /// A connection that isn't opened yet.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }
}

impl<P> Connection<P> {
    /// The number of requests that are started and not answered.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.started.wrapping_sub(self.answered)
    }

    /// The number of requests that are started and not sent.
    #[inline]
    pub(crate) fn unsent(&self) -> u32 {
        self.started.wrapping_sub(self.sent)
    }

    /// The identity of one of its requests.
    #[inline]
    pub(crate) fn frame(&self, sequence: u32) -> Frame {
        Frame {
            connection: self.number,
            sequence,
        }
    }
}
