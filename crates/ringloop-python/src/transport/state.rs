//! The state of a stream transport's connection.

use std::collections::VecDeque;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use pyo3::{PyTraverseError, PyVisit};

use super::extra_info::ExtraInfo;
use crate::buffers::{Chunk, FileSending};
use crate::endpoint::Attachment;
use crate::receiver::Sink;
use crate::support;

/// asyncio's default high-water mark, in bytes.
const HIGH_WATER_DEFAULT: usize = 64 * 1024;

/// How a protocol takes what arrives: without a Python call, as a sink; or by `get_buffer()` and
/// `buffer_updated(count)`, if the second is true; or else by `data_received(bytes)`.
pub(super) fn way_to(protocol: &Bound<'_, PyAny>) -> PyResult<(Option<Sink>, bool)> {
    static BUFFERED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = protocol.py();
    if let Some(sink) = Sink::for_protocol(protocol)? {
        return Ok((Some(sink), false));
    }
    let class = support::class(py, &BUFFERED, "asyncio.protocols", "BufferedProtocol")?;
    Ok((None, protocol.is_instance(class)?))
}

/// The flags are asyncio's, and independent of one another.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct State {
    pub(super) attachment: Attachment,
    pub(super) protocol: Option<Py<PyAny>>,
    /// See `way_to`.
    pub(super) sink: Option<Sink>,
    pub(super) is_buffered: bool,
    pub(super) protocol_connected: bool,
    pub(super) server: Option<Py<PyAny>>,
    pub(super) extra: ExtraInfo,
    /// The context of all callbacks, from Python 3.15 on. Before, each takes a copy of the current one when it is
    /// scheduled.
    pub(super) context: Option<Py<PyAny>>,
    /// The context that protocol callbacks for arriving data run in; taken when reading (re)starts.
    pub(super) read_context: Option<Py<PyAny>>,
    /// The context for `resume_writing`; taken when writing blocks.
    pub(super) write_context: Option<Py<PyAny>>,
    pub(super) started: bool,
    /// `write_eof` was called.
    pub(super) eof: bool,
    /// The peer's end of stream was delivered, and the protocol keeps the connection open.
    pub(super) end_received: bool,
    /// The socket may have something to read.
    pub(super) readable: bool,
    /// The last turn in which was read, or in which reading was asked for: in the rest of it nothing is read. See
    /// `Loop::turn`.
    pub(super) read_turn: u32,
    /// The last turn in which a write found the socket full: what was reported before is no room.
    pub(super) full_turn: u32,
    /// The protocol is being served with what arrived, or in the one context of all callbacks. It may make the loop
    /// turn meanwhile.
    pub(super) delivering: bool,
    /// The socket reported meanwhile, and that context can't be entered twice.
    pub(super) reported: bool,
    /// A short read doesn't mean that nothing is left: the peer has ended, the socket failed, or something came at
    /// which reads end (urgent data, descriptors). Until a read finds nothing.
    pub(super) read_on: bool,
    /// A Unix stream, whose reads may end before what has arrived does.
    pub(super) is_unix: bool,
    pub(super) protocol_paused: bool,
    /// Above zero once `connection_lost` is scheduled; counts writes after that.
    pub(super) lost: u32,
    pub(super) buffer: VecDeque<Chunk>,
    pub(super) buffer_len: usize,
    pub(super) high_water: usize,
    pub(super) low_water: usize,
    pub(super) empty_waiter: Option<Py<PyAny>>,
    /// Apart, because few connections ever send one.
    pub(super) file: Option<Box<FileSending>>,
    /// The size of the last receive for a sink, in KB.
    pub(super) habit_kb: u16,
    /// Deliveries left for which received data is copied, because the protocol kept the last one.
    pub(super) copies_left: u8,
}

impl State {
    pub(super) fn new(
        attachment: Attachment,
        protocol: &Bound<'_, PyAny>,
        extra: ExtraInfo,
        context: Option<Py<PyAny>>,
        is_unix: bool,
    ) -> PyResult<Self> {
        let (sink, is_buffered) = way_to(protocol)?;
        Ok(Self {
            attachment,
            protocol: Some(protocol.clone().unbind()),
            sink,
            is_buffered,
            protocol_connected: true,
            server: None,
            extra,
            context,
            read_context: None,
            write_context: None,
            started: false,
            eof: false,
            end_received: false,
            readable: false,
            read_turn: 0,
            full_turn: 0,
            delivering: false,
            reported: false,
            read_on: false,
            is_unix,
            protocol_paused: false,
            lost: 0,
            buffer: VecDeque::new(),
            buffer_len: 0,
            high_water: HIGH_WATER_DEFAULT,
            low_water: HIGH_WATER_DEFAULT / 4,
            empty_waiter: None,
            file: None,
            habit_kb: 0,
            copies_left: 1,
        })
    }

    /// Whether something waits for room in the socket.
    pub(super) fn is_sending(&self) -> bool {
        !self.buffer.is_empty() || self.file.as_ref().is_some_and(|file| file.is_under_way())
    }

    pub(super) fn wants_data(&self) -> bool {
        self.started && self.attachment.is_reading() && self.lost == 0 && !self.end_received
    }

    /// Whether the loop has this transport.
    pub(super) fn has_loop(&self) -> bool {
        self.attachment.event_loop.is_some()
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.attachment.traverse(visit)?;
        visit.call(&self.protocol)?;
        visit.call(&self.server)?;
        self.extra.traverse(visit)?;
        visit.call(&self.context)?;
        visit.call(&self.read_context)?;
        visit.call(&self.write_context)?;
        visit.call(&self.empty_waiter)?;
        match &self.sink {
            Some(sink) => sink.traverse(visit),
            None => Ok(()),
        }
    }
}
