//! A WebSocket's frames and messages, and how far its application and its client have got.
//!
//! It begins as a request whose response is missing. The application accepts it, or answers with a response of HTTP.
//! Once it is accepted, the connection passes on what it receives, and `ringloop_http::websocket` makes messages of it
//! in the receive buffer. They are queued for the application; if the queue is full, reading stops.
//!
//! This module writes nothing: the connection does (`connection/websocket.rs`), or one of its streams
//! (`connection/websocket_stream.rs`). `websocket_messages` talks to the
//! application.

use std::collections::VecDeque;

use pyo3::exceptions::PyUnicodeDecodeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringloop_http::websocket::{
    Connection as Codec, ControlFrame, Event, Failure, Handshake, Payload, SendError,
};
use ringloop_reactor::clock;

use super::service::HttpService;
use crate::cell::GilCell;
use crate::objects;

/// Close codes (RFC 6455, section 7.4.1).
pub(super) const NORMAL: u16 = 1000;
const NO_CODE: u16 = 1005;
pub(super) const ABNORMAL: u16 = 1006;
pub(super) const INTERNAL_ERROR: u16 = 1011;
pub(super) const SERVICE_RESTART: u16 = 1012;

/// Where the application stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has not answered the handshake.
    Connecting,
    /// It answers with a response of HTTP.
    Denying,
    Open,
    /// It has closed the WebSocket, or refused it.
    Closed,
}

/// A message that the application has not received yet.
pub(super) struct Message {
    pub(super) is_text: bool,
    pub(super) content: Py<PyAny>,
    length: usize,
}

/// How the WebSocket has ended.
struct Disconnect {
    code: u16,
    reason: String,
}

struct State {
    phase: Phase,
    /// Until the application accepts.
    handshake: Option<Box<Handshake>>,
    /// From then on, until the connection is lost.
    codec: Option<Box<Codec>>,
    has_connected: bool,
    queue: VecDeque<Message>,
    /// The size of the messages in the queue.
    queued_bytes: usize,
    disconnect: Option<Disconnect>,
    /// The payload of the ping that was not answered yet.
    ping: Option<[u8; 4]>,
    /// The answer to the last ping that came while nothing could be written.
    pong: Option<Box<ControlFrame>>,
    /// On a stream: the number that the service knows it by, for its deadlines.
    slot: Option<usize>,
}

impl State {
    /// Whether the application has to receive before more is read.
    fn is_full(&self, limits: Limits) -> bool {
        self.queue.len() >= limits.messages || self.queued_bytes > limits.bytes
    }
}

/// How much may be queued before reading stops.
#[derive(Clone, Copy)]
struct Limits {
    messages: usize,
    bytes: usize,
}

impl Limits {
    fn of(service: &HttpService) -> Self {
        Self {
            messages: service.websocket_queue(),
            bytes: service.body_ahead(),
        }
    }
}

/// The state of a request for a WebSocket besides that of every request.
pub(super) struct WebSocket {
    state: GilCell<State>,
}

/// The next step of the application's `receive()`.
pub(super) enum Next {
    Connect,
    /// A message, and whether it was the last that could be read.
    Message(Message, bool),
    Disconnect(u16, String),
    Wait,
}

/// Frames that were read.
#[derive(Default)]
pub(super) struct Read {
    /// The bytes that were used.
    pub(super) used: usize,
    /// The client has answered our last ping.
    pub(super) is_ping_answered: bool,
    pub(super) end: Option<End>,
}

/// Why reading has stopped for good.
pub(super) enum End {
    /// The client has sent a close frame.
    Closed(Option<u16>),
    /// It has broken the protocol or a limit.
    Failed(Failure),
}

impl WebSocket {
    pub(super) fn new(handshake: Handshake) -> Self {
        let state = State {
            phase: Phase::Connecting,
            handshake: Some(Box::new(handshake)),
            codec: None,
            has_connected: false,
            queue: VecDeque::new(),
            queued_bytes: 0,
            disconnect: None,
            ping: None,
            pong: None,
            slot: None,
        };
        Self {
            state: GilCell::new(state),
        }
    }

    /// Whether a close frame was sent.
    pub(super) fn is_closing(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.codec.as_ref().is_some_and(|codec| codec.is_closing())
    }

    /// Whether reading must wait for the application.
    pub(super) fn is_full(&self, py: Python<'_>, service: &HttpService) -> bool {
        let state = self.state.get(py);
        let is_closing = state.codec.as_ref().is_some_and(|codec| codec.is_closing());
        state.is_full(Limits::of(service)) && !is_closing
    }

    /// Whether the application has yet to answer the handshake.
    pub(super) fn is_connecting(&self, py: Python<'_>) -> bool {
        self.phase(py) == Phase::Connecting
    }

    pub(super) fn phase(&self, py: Python<'_>) -> Phase {
        self.state.get(py).phase
    }

    pub(super) fn set_phase(&self, py: Python<'_>, phase: Phase) {
        self.state.get_mut(py).phase = phase;
    }

    pub(super) fn slot(&self, py: Python<'_>) -> Option<usize> {
        self.state.get(py).slot
    }

    pub(super) fn set_slot(&self, py: Python<'_>, slot: usize) {
        self.state.get_mut(py).slot = Some(slot);
    }

    pub(super) fn take_slot(&self, py: Python<'_>) -> Option<usize> {
        self.state.get_mut(py).slot.take()
    }

    /// Whether it is known how the WebSocket has ended.
    pub(super) fn is_disconnected(&self, py: Python<'_>) -> bool {
        self.state.get(py).disconnect.is_some()
    }

    /// Whether there is something to receive.
    pub(super) fn has_news(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        !state.queue.is_empty() || state.disconnect.is_some()
    }

    /// The next step of `receive()`.
    pub(super) fn next(&self, py: Python<'_>) -> Next {
        let mut state = self.state.get_mut(py);
        if !std::mem::replace(&mut state.has_connected, true) {
            Next::Connect
        } else if let Some(message) = state.queue.pop_front() {
            state.queued_bytes -= message.length;
            let is_drained = state.queue.is_empty() && state.codec.is_some();
            Next::Message(message, is_drained)
        } else if let Some(disconnect) = &state.disconnect {
            Next::Disconnect(disconnect.code, disconnect.reason.clone())
        } else {
            Next::Wait
        }
    }

    /// The handshake, if it was not answered. To be given back if it can't be.
    pub(super) fn take_handshake(&self, py: Python<'_>) -> Option<Box<Handshake>> {
        self.state.get_mut(py).handshake.take()
    }

    pub(super) fn return_handshake(&self, py: Python<'_>, handshake: Box<Handshake>) {
        self.state.get_mut(py).handshake = Some(handshake);
    }

    /// The handshake is accepted.
    pub(super) fn open(&self, py: Python<'_>, codec: Codec) {
        let mut state = self.state.get_mut(py);
        state.codec = Some(Box::new(codec));
        state.phase = Phase::Open;
    }

    /// Remembers how the WebSocket has ended, if that is not known.
    pub(super) fn set_disconnect(&self, py: Python<'_>, code: u16, reason: &str) {
        let mut state = self.state.get_mut(py);
        if state.disconnect.is_none() {
            let reason = reason.to_owned();
            state.disconnect = Some(Disconnect { code, reason });
        }
    }

    /// The connection is gone or going.
    pub(super) fn disconnect(&self, py: Python<'_>, is_lost: bool) {
        self.set_disconnect(py, ABNORMAL, "");
        let mut state = self.state.get_mut(py);
        if is_lost {
            state.handshake = None;
            state.codec = None;
            state.pong = None;
        }
    }

    // -- What the client sends ---------------------------------------------------------------------------------------

    /// Takes frames from `input`, and puts answers to pings into `answers`, unless nothing can be written now. Uses all of
    /// the input, unless the queue is full. Of the last input, which is in memory already, the queue takes all; only
    /// compressed messages are limited.
    pub(super) fn read(
        &self,
        service: &Bound<'_, HttpService>,
        input: &mut [u8],
        answers: &mut Vec<u8>,
        is_writing_paused: bool,
        is_last: bool,
    ) -> PyResult<Read> {
        let py = service.py();
        let mut limits = Limits::of(service.get());
        if is_last {
            limits.messages = usize::MAX;
            let in_memory = self.state.get(py).queued_bytes + input.len();
            limits.bytes = limits.bytes.saturating_add(in_memory);
        }
        let mut read = Read::default();
        let at = &mut read.used;
        let end = loop {
            let (event, own, is_dropped) = {
                let mut state = self.state.get_mut(py);
                let state = &mut *state;
                let is_full = state.is_full(limits);
                let Some(codec) = &mut state.codec else {
                    *at = input.len();
                    break None;
                };
                // Once a close frame was sent, messages are dropped until the client's own arrives.
                let is_dropped = codec.is_closing();
                if is_full && !is_dropped {
                    break None;
                }
                let event = service
                    .get()
                    .with_pool(py, |pool| codec.read(input, at, pool));
                let own = match &event {
                    Ok(Event::Message {
                        payload: Payload::Own,
                        ..
                    }) => codec.take_message(),
                    _ => Vec::new(),
                };
                (event, own, is_dropped)
            };
            match event {
                Ok(Event::Message { is_text, payload }) => {
                    let content = match &payload {
                        Payload::Input(range) => &input[range.clone()],
                        Payload::Own => &own,
                    };
                    if is_dropped && !is_text {
                        continue;
                    }
                    match Self::content(py, is_text, content) {
                        Ok(_) if is_dropped => {}
                        Ok(object) => self.queue(py, is_text, object, content.len()),
                        Err(error) if error.is_instance_of::<PyUnicodeDecodeError>(py) => {
                            let mut state = self.state.get_mut(py);
                            let failure = state.codec.as_mut().map(|it| it.invalid_text());
                            *at = input.len();
                            break failure.map(End::Failed);
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(Event::Ping) => self.answer_ping(py, is_writing_paused, answers),
                Ok(Event::Pong) => read.is_ping_answered |= self.is_answer(py),
                Ok(Event::Close(code)) => break Some(End::Closed(code)),
                Ok(Event::NeedMore) => break None,
                Ok(Event::Over) => {
                    *at = input.len();
                    break None;
                }
                Err(failure) => {
                    // The rest means nothing. Kept, it would stop reading.
                    *at = input.len();
                    break Some(End::Failed(failure));
                }
            }
        };
        read.end = end;
        Ok(read)
    }

    /// The part of a message that the application gets. Text that is not UTF-8 is a `UnicodeDecodeError`.
    fn content(py: Python<'_>, is_text: bool, content: &[u8]) -> PyResult<Py<PyAny>> {
        Ok(if is_text {
            objects::text(py, content)?.into_any().unbind()
        } else {
            objects::bytes(py, content)?.into_any().unbind()
        })
    }

    fn queue(&self, py: Python<'_>, is_text: bool, content: Py<PyAny>, length: usize) {
        let mut state = self.state.get_mut(py);
        state.queued_bytes += length;
        state.queue.push_back(Message {
            is_text,
            content,
            length,
        });
    }

    fn answer_ping(&self, py: Python<'_>, is_writing_paused: bool, answers: &mut Vec<u8>) {
        let mut state = self.state.get_mut(py);
        // There is none after a close frame.
        let Some(Ok(pong)) = state.codec.as_ref().map(|codec| codec.pong()) else {
            return;
        };
        if is_writing_paused {
            state.pong = Some(Box::new(pong));
        } else {
            answers.extend_from_slice(pong.as_slice());
        }
    }

    /// Whether a pong answers our last ping.
    fn is_answer(&self, py: Python<'_>) -> bool {
        let mut state = self.state.get_mut(py);
        let state = &mut *state;
        let is_answer = match (&state.codec, &state.ping) {
            (Some(codec), Some(ping)) => !codec.is_closing() && codec.control() == ping,
            _ => false,
        };
        if is_answer {
            state.ping = None;
        }
        is_answer
    }

    // -- What is sent ------------------------------------------------------------------------------------------------

    /// The close frame that answers the client's, unless that is the answer to ours.
    pub(super) fn answer_close(&self, py: Python<'_>, code: Option<u16>) -> Option<ControlFrame> {
        let (frame, reason) = {
            let mut state = self.state.get_mut(py);
            match &mut state.codec {
                Some(codec) => {
                    let reason = codec.close_reason().to_owned();
                    (codec.close(code, "").ok(), reason)
                }
                None => (None, String::new()),
            }
        };
        self.set_disconnect(py, code.unwrap_or(NO_CODE), &reason);
        frame
    }

    /// The close frame for a client that has broken the protocol or a limit.
    pub(super) fn fail(&self, py: Python<'_>, failure: Failure) -> Option<ControlFrame> {
        let (code, reason) = (failure.code(), failure.reason());
        let frame = {
            let mut state = self.state.get_mut(py);
            let codec = state.codec.as_mut();
            codec.and_then(|codec| codec.close(Some(code), reason).ok())
        };
        self.set_disconnect(py, code, reason);
        frame
    }

    /// The close frame that begins the closing handshake. 1005 stands for no code.
    pub(super) fn close(
        &self,
        py: Python<'_>,
        code: u16,
        reason: &str,
    ) -> Result<ControlFrame, SendError> {
        let sent = Some(code).filter(|code| *code != NO_CODE || !reason.is_empty());
        let frame = match &mut self.state.get_mut(py).codec {
            Some(codec) => codec.close(sent, reason)?,
            None => return Err(SendError::Closing),
        };
        self.set_disconnect(py, code, reason);
        Ok(frame)
    }

    /// A ping, whose answer is awaited from here on.
    pub(super) fn ping(&self, py: Python<'_>) -> Option<ControlFrame> {
        // It only has to differ from those before.
        let payload = (clock::now_ns() as u32).to_be_bytes();
        let mut state = self.state.get_mut(py);
        let frame = state.codec.as_ref()?.ping(&payload).ok()?;
        state.ping = Some(payload);
        Some(frame)
    }

    /// The pong that could not be written, if it still may be.
    pub(super) fn take_pong(&self, py: Python<'_>) -> Option<Box<ControlFrame>> {
        let mut state = self.state.get_mut(py);
        let is_closing = state.codec.as_ref().is_none_or(|codec| codec.is_closing());
        state.pong.take().filter(|_| !is_closing)
    }

    /// Writes a message's frame into `buffer`, up to its payload if that is `kept`, the bytes which need not be copied.
    /// Then it returns them.
    pub(super) fn frame<'a, 'py>(
        &self,
        service: &Bound<'py, HttpService>,
        is_text: bool,
        content: &[u8],
        kept: Option<&'a Bound<'py, PyBytes>>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<&'a Bound<'py, PyBytes>>, SendError> {
        let py = service.py();
        let mut state = self.state.get_mut(py);
        let Some(codec) = &mut state.codec else {
            return Err(SendError::Closing);
        };
        service.get().with_pool(py, |pool| {
            let frame = codec.message(is_text, content, pool)?;
            buffer.extend_from_slice(frame.head());
            let is_plain = std::ptr::eq(frame.payload(), content);
            let kept = kept.filter(|_| is_plain);
            if kept.is_none() {
                buffer.extend_from_slice(frame.payload());
            }
            Ok(kept)
        })
    }
}
