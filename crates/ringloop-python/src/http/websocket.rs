//! A WebSocket: the messages between the application and the client.
//!
//! It begins as a request whose response is missing. The application accepts it, or answers with a response of HTTP.
//! Once it is accepted, the connection passes on what it receives, and `ringloop_http::websocket` makes messages of it
//! in the receive buffer. They are queued for the application; if the queue is full, reading stops.

use std::collections::VecDeque;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyUnicodeDecodeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ringloop::clock;
use ringloop_http::websocket::{
    Connection as Codec, ControlFrame, Event, Failure, Handshake, Payload, SendError,
};

use super::connection::Connection;
use super::deadlines::Kind;
use super::message;
use super::request::{Request, Sending};
use super::service::HttpService;
use crate::buffers;
use crate::coroutine::Step;
use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{self, GilCell};

/// The status of an accepted handshake.
const SWITCHING_PROTOCOLS: u16 = 101;

/// Close codes (RFC 6455, section 7.4.1).
const NORMAL: u16 = 1000;
const NO_CODE: u16 = 1005;
const ABNORMAL: u16 = 1006;
const INTERNAL_ERROR: u16 = 1011;
const SERVICE_RESTART: u16 = 1012;

/// From here on, `bytes` are sent where they are, and not copied behind the frame's head.
const SENT_IN_PLACE: usize = 8 * 1024;

/// Where the application stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not answered the handshake.
    Connecting,
    /// It answers with a response of HTTP.
    Denying,
    Open,
    /// It has closed the WebSocket, or refused it.
    Closed,
}

/// A message that the application has not received yet.
struct Message {
    is_text: bool,
    content: Py<PyAny>,
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

/// A field of a response.
pub(super) type OwnField = (Vec<u8>, Vec<u8>);

/// Why reading has stopped for good.
enum End {
    Closed(Option<u16>),
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
        };
        Self {
            state: GilCell::new(state),
        }
    }

    fn of<'a>(request: &'a Bound<'_, Request>) -> PyResult<&'a Self> {
        let text = "the request is not for a WebSocket";
        let websocket = request.get().websocket();
        websocket.ok_or_else(|| objects::error::<PyRuntimeError>(request.py(), text))
    }

    /// Whether a close frame was sent.
    pub(super) fn is_closing(request: &Bound<'_, Request>) -> bool {
        request.get().websocket().is_some_and(|this| {
            let state = this.state.get(request.py());
            state.codec.as_ref().is_some_and(|codec| codec.is_closing())
        })
    }

    /// Whether reading must wait for the application.
    pub(super) fn is_full(request: &Bound<'_, Request>, service: &HttpService) -> bool {
        request.get().websocket().is_some_and(|this| {
            let state = this.state.get(request.py());
            let is_closing = state.codec.as_ref().is_some_and(|codec| codec.is_closing());
            state.is_full(Limits::of(service)) && !is_closing
        })
    }

    /// Whether the application has yet to answer the handshake.
    pub(super) fn is_connecting(&self, py: Python<'_>) -> bool {
        self.phase(py) == Phase::Connecting
    }

    fn phase(&self, py: Python<'_>) -> Phase {
        self.state.get(py).phase
    }

    /// Remembers how the WebSocket has ended, if that is not known.
    fn set_disconnect(&self, py: Python<'_>, code: u16, reason: &str) {
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

    /// Takes frames from `input`. Returns how many bytes were used: all, unless the queue is full. Of the last input, which
    /// is in memory already, the queue takes all; only compressed messages are limited.
    pub(super) fn read(
        request: &Bound<'_, Request>,
        connection: &Bound<'_, Connection>,
        input: &mut [u8],
        is_last: bool,
    ) -> PyResult<usize> {
        let py = request.py();
        let this = Self::of(request)?;
        let service = request.get().service(py)?;
        let mut answers = service.get().take_buffer(py);
        let mut at = 0;
        let mut limits = Limits::of(service.get());
        if is_last {
            limits.messages = usize::MAX;
            let in_memory = this.state.get(py).queued_bytes + input.len();
            limits.bytes = limits.bytes.saturating_add(in_memory);
        }
        let read = this.read_frames(&service, connection, input, &mut at, &mut answers, limits);
        // Even if something has failed.
        let answered = if answers.is_empty() {
            Ok(())
        } else {
            Connection::write(connection, &answers, None, b"")
        };
        service.get().return_buffer(py, answers);
        let ended = match &read {
            Ok(Some(End::Closed(code))) => this.on_close_frame(connection, *code),
            Ok(Some(End::Failed(failure))) => this.fail(connection, *failure),
            _ => Ok(()),
        };
        let has_news = {
            let state = this.state.get(py);
            !state.queue.is_empty() || state.disconnect.is_some()
        };
        let woken = if has_news {
            request.get().wake_receivers(py)
        } else {
            Ok(())
        };
        read?;
        answered.and(ended).and(woken)?;
        Ok(at)
    }

    fn read_frames(
        &self,
        service: &Bound<'_, HttpService>,
        connection: &Bound<'_, Connection>,
        input: &mut [u8],
        at: &mut usize,
        answers: &mut Vec<u8>,
        limits: Limits,
    ) -> PyResult<Option<End>> {
        let py = service.py();
        loop {
            let (event, own, is_dropped) = {
                let mut state = self.state.get_mut(py);
                let state = &mut *state;
                let is_full = state.is_full(limits);
                let Some(codec) = &mut state.codec else {
                    *at = input.len();
                    return Ok(None);
                };
                // Once a close frame was sent, messages are dropped until the client's own arrives.
                let is_dropped = codec.is_closing();
                if is_full && !is_dropped {
                    return Ok(None);
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
                            return Ok(failure.map(End::Failed));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(Event::Ping) => self.answer_ping(connection, answers),
                Ok(Event::Pong) => self.on_pong(connection)?,
                Ok(Event::Close(code)) => return Ok(Some(End::Closed(code))),
                Ok(Event::NeedMore) => return Ok(None),
                Ok(Event::Over) => {
                    *at = input.len();
                    return Ok(None);
                }
                Err(failure) => {
                    // The rest means nothing. Kept, it would stop reading.
                    *at = input.len();
                    return Ok(Some(End::Failed(failure)));
                }
            }
        }
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

    fn answer_ping(&self, connection: &Bound<'_, Connection>, answers: &mut Vec<u8>) {
        let py = connection.py();
        let is_paused = connection.get().is_writing_paused(py);
        let mut state = self.state.get_mut(py);
        // There is none after a close frame.
        let Some(Ok(pong)) = state.codec.as_ref().map(|codec| codec.pong()) else {
            return;
        };
        if is_paused {
            state.pong = Some(Box::new(pong));
        } else {
            answers.extend_from_slice(pong.as_slice());
        }
    }

    fn on_pong(&self, connection: &Bound<'_, Connection>) -> PyResult<()> {
        let is_answer = {
            let mut state = self.state.get_mut(connection.py());
            let state = &mut *state;
            let is_answer = match (&state.codec, &state.ping) {
                (Some(codec), Some(ping)) => !codec.is_closing() && codec.control() == ping,
                _ => false,
            };
            if is_answer {
                state.ping = None;
            }
            is_answer
        };
        if is_answer {
            Connection::set_websocket_deadline(connection, Kind::Ping)
        } else {
            Ok(())
        }
    }

    /// The client has sent its close frame, which is answered unless it is the answer to ours.
    fn on_close_frame(
        &self,
        connection: &Bound<'_, Connection>,
        code: Option<u16>,
    ) -> PyResult<()> {
        let py = connection.py();
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
        if let Some(frame) = frame {
            Connection::write(connection, frame.as_slice(), None, b"")?;
        }
        Connection::close(connection)
    }

    /// The client has broken the protocol or a limit.
    fn fail(&self, connection: &Bound<'_, Connection>, failure: Failure) -> PyResult<()> {
        let py = connection.py();
        let (code, reason) = (failure.code(), failure.reason());
        let frame = {
            let mut state = self.state.get_mut(py);
            let codec = state.codec.as_mut();
            codec.and_then(|codec| codec.close(Some(code), reason).ok())
        };
        self.set_disconnect(py, code, reason);
        if let Some(frame) = frame {
            Connection::write(connection, frame.as_slice(), None, b"")?;
        }
        Connection::close_slowly(connection)
    }

    // -- receive -----------------------------------------------------------------------------------------------------

    /// A step of `receive()`.
    pub(super) fn receive<'py>(request: &Bound<'py, Request>) -> PyResult<Step<'py>> {
        enum Next {
            Connect,
            Message(Message),
            Disconnect(u16, String),
            Wait,
        }
        let py = request.py();
        let this = Self::of(request)?;
        let (next, is_drained) = {
            let mut state = this.state.get_mut(py);
            let next = if !std::mem::replace(&mut state.has_connected, true) {
                Next::Connect
            } else if let Some(message) = state.queue.pop_front() {
                state.queued_bytes -= message.length;
                Next::Message(message)
            } else if let Some(disconnect) = &state.disconnect {
                Next::Disconnect(disconnect.code, disconnect.reason.clone())
            } else {
                Next::Wait
            };
            (next, state.queue.is_empty() && state.codec.is_some())
        };
        let kind = intern!(py, "type");
        let message = match next {
            Next::Connect => {
                let message = objects::dict(py)?;
                message.set_item(kind, intern!(py, "websocket.connect"))?;
                message
            }
            Next::Message(Message {
                is_text, content, ..
            }) => {
                if is_drained && let Some(connection) = request.get().connection(py) {
                    Connection::read_on(&connection)?;
                }
                let message = objects::dict(py)?;
                message.set_item(kind, intern!(py, "websocket.receive"))?;
                let name = if is_text {
                    intern!(py, "text")
                } else {
                    intern!(py, "bytes")
                };
                message.set_item(name, content)?;
                message
            }
            Next::Disconnect(code, reason) => {
                let message = objects::dict(py)?;
                message.set_item(kind, intern!(py, "websocket.disconnect"))?;
                message.set_item(intern!(py, "code"), New(code))?;
                message.set_item(intern!(py, "reason"), objects::string(py, &reason)?)?;
                message
            }
            Next::Wait => return request.get().wait_to_receive(py).map(Step::Yield),
        };
        Ok(Step::Return(message.into_any()))
    }

    // -- send --------------------------------------------------------------------------------------------------------

    /// A step of `send(message)`.
    pub(super) fn send<'py>(
        request: &Bound<'py, Request>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<Sending<'py>> {
        let py = request.py();
        let this = Self::of(request)?;
        let phase = this.phase(py);
        let is_disconnected = this.state.get(py).disconnect.is_some();
        let kind = message::item(message, intern!(py, "type"))?;
        let connection = match request.get().connection(py) {
            _ if phase == Phase::Closed => None,
            Some(connection) if is_disconnected || connection.get().is_closing(py) => None,
            connection => connection,
        };
        let Some(connection) = connection else {
            if phase == Phase::Closed || (phase == Phase::Denying && request.get().is_complete(py))
            {
                return Err(message::unexpected(&kind, |kind| {
                    format!("Unexpected ASGI message '{kind}', after sending 'websocket.close'.")
                }));
            }
            // The application may go on all the same.
            if request.get().has_to_give_way(py) {
                return Ok(Sending::AgainNextTurn);
            }
            return Err(client_disconnected(py));
        };
        if connection.get().is_writing_paused(py) {
            return request.get().wait_for_room(py).map(Sending::Wait);
        }
        let is = |name: &Bound<'py, PyString>| message::is_text(&kind, name);
        match phase {
            Phase::Open if is(intern!(py, "websocket.send"))? => {
                this.send_message(request, &connection, message)?;
            }
            Phase::Open if is(intern!(py, "websocket.close"))? => {
                let code = match message::optional_item(message, intern!(py, "code"))? {
                    Some(code) if !code.is_none() => code.extract()?,
                    _ => NORMAL,
                };
                let reason = match message::optional_item(message, intern!(py, "reason"))? {
                    Some(reason) if !reason.is_none() => Some(reason.cast_into::<PyString>()?),
                    _ => None,
                };
                let reason = reason.as_ref().map_or(Ok(""), |reason| reason.to_str())?;
                this.close(request, &connection, code, reason)?
                    .map_err(|error| send_error(py, &error))?;
                this.state.get_mut(py).phase = Phase::Closed;
            }
            Phase::Open => {
                return Err(message::unexpected(&kind, |kind| {
                    format!(
                        "Expected ASGI message 'websocket.send' or 'websocket.close', but got '{kind}'."
                    )
                }));
            }
            Phase::Connecting if is(intern!(py, "websocket.accept"))? => {
                this.accept(request, &connection, message)?;
            }
            Phase::Connecting if is(intern!(py, "websocket.close"))? => {
                this.state.get_mut(py).phase = Phase::Closed;
                let logged = log(request, "403");
                Connection::refuse(&connection, 403, "").and(logged)?;
            }
            Phase::Connecting if is(intern!(py, "websocket.http.response.start"))? => {
                let status: u16 = message::item(message, intern!(py, "status"))?.extract()?;
                let scope = request.get().take_logged_scope(py);
                connection.get().close_after_response(py);
                if let Err(error) = Request::begin_response(request, &connection, message) {
                    request.get().return_logged_scope(py, scope);
                    return Err(error);
                }
                this.state.get_mut(py).phase = Phase::Denying;
                request.get().return_logged_scope(py, scope);
                log(request, &status.to_string())?;
            }
            Phase::Connecting => {
                return Err(message::unexpected(&kind, |kind| {
                    format!(
                        "Expected ASGI message 'websocket.accept', 'websocket.close' or \
                         'websocket.http.response.start' but got '{kind}'."
                    )
                }));
            }
            Phase::Denying if is(intern!(py, "websocket.http.response.body"))? => {
                Request::send_body(request, &connection, message)?;
                if request.get().is_complete(py) {
                    this.set_disconnect(py, ABNORMAL, "");
                    request.get().wake_receivers(py)?;
                }
            }
            Phase::Denying | Phase::Closed => {
                return Err(message::unexpected(&kind, |kind| {
                    format!(
                        "Expected ASGI message 'websocket.http.response.body' but got '{kind}'."
                    )
                }));
            }
        }
        Ok(Sending::Done)
    }

    fn accept(
        &self,
        request: &Bound<'_, Request>,
        connection: &Bound<'_, Connection>,
        message: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = request.py();
        let service = request.get().service(py)?;
        let subprotocol = match message::optional_item(message, intern!(py, "subprotocol"))? {
            Some(name) if !name.is_none() => Some(name.cast_into::<PyString>()?),
            _ => None,
        };
        let subprotocol = subprotocol.as_ref().map(|name| name.to_str()).transpose()?;
        let fields = accept_fields(message, service.get())?;
        // Reading the message may have run code that has accepted meanwhile.
        let Some(handshake) = self.state.get_mut(py).handshake.take() else {
            return Err(client_disconnected(py));
        };
        let mut buffer = service.get().take_buffer(py);
        let subprotocol = subprotocol.filter(|name| !name.is_empty());
        let accepted = connection.get().accept(
            py,
            &handshake,
            subprotocol,
            &fields,
            service.get(),
            &mut buffer,
        );
        let codec = match accepted {
            Ok(codec) => codec,
            Err(error) => {
                self.state.get_mut(py).handshake = Some(handshake);
                service.get().return_buffer(py, buffer);
                let text = error.to_string();
                return Err(objects::error::<PyRuntimeError>(py, &text));
            }
        };
        {
            let mut state = self.state.get_mut(py);
            state.codec = Some(Box::new(codec));
            state.phase = Phase::Open;
        }
        let written = Connection::write(connection, &buffer, None, b"");
        service.get().return_buffer(py, buffer);
        written?;
        let begun = Some(request.get().begun(py));
        service.get().count_response(py, begun, SWITCHING_PROTOCOLS);
        log(request, "[accepted]")?;
        if service.get().is_shutting_down(py) {
            return Self::shut_down(request, connection);
        }
        Connection::set_websocket_deadline(connection, Kind::Ping)?;
        Connection::read_on_later(connection)
    }

    fn send_message(
        &self,
        request: &Bound<'_, Request>,
        connection: &Bound<'_, Connection>,
        message: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = request.py();
        let service = request.get().service(py)?;
        let given = |name| {
            let found = message::optional_item(message, name)?;
            Ok::<_, PyErr>(found.filter(|value| !value.is_none()))
        };
        if let Some(content) = given(intern!(py, "bytes"))? {
            let kept = content.cast_exact::<PyBytes>().ok();
            let kept = kept.filter(|bytes| bytes.as_bytes().len() >= SENT_IN_PLACE);
            return buffers::with_bytes(&content, |bytes| {
                self.send_frame(connection, &service, false, bytes, kept)
            });
        }
        match given(intern!(py, "text"))? {
            Some(content) => {
                let Ok(text) = content.cast::<PyString>() else {
                    let text = "'text' of 'websocket.send' must be a string";
                    return Err(objects::error::<PyTypeError>(py, text));
                };
                self.send_frame(connection, &service, true, text.to_str()?.as_bytes(), None)
            }
            None => Ok(()),
        }
    }

    /// Sends a message. `kept` are its bytes, if these need not be copied.
    fn send_frame(
        &self,
        connection: &Bound<'_, Connection>,
        service: &Bound<'_, HttpService>,
        is_text: bool,
        content: &[u8],
        kept: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        let py = connection.py();
        let mut buffer = service.get().take_buffer(py);
        let framed = {
            let mut state = self.state.get_mut(py);
            match &mut state.codec {
                None => Err(SendError::Closing),
                Some(codec) => service.get().with_pool(py, |pool| {
                    let frame = codec.message(is_text, content, pool)?;
                    buffer.extend_from_slice(frame.head());
                    let is_plain = std::ptr::eq(frame.payload(), content);
                    let kept = kept.filter(|_| is_plain);
                    if kept.is_none() {
                        buffer.extend_from_slice(frame.payload());
                    }
                    Ok(kept)
                }),
            }
        };
        let result = match framed {
            Ok(kept) => Connection::write(connection, &buffer, kept, b""),
            Err(error) => Err(send_error(py, &error)),
        };
        service.get().return_buffer(py, buffer);
        result
    }

    // -- The end -----------------------------------------------------------------------------------------------------

    /// Sends the close frame, and waits for the client's. 1005 stands for no code. Nothing happens if one was sent.
    fn close(
        &self,
        request: &Bound<'_, Request>,
        connection: &Bound<'_, Connection>,
        code: u16,
        reason: &str,
    ) -> PyResult<Result<(), SendError>> {
        let py = request.py();
        let sent = Some(code).filter(|code| *code != NO_CODE || !reason.is_empty());
        let frame = {
            let mut state = self.state.get_mut(py);
            match &mut state.codec {
                Some(codec) => codec.close(sent, reason),
                None => Err(SendError::Closing),
            }
        };
        let frame = match frame {
            Ok(frame) => frame,
            Err(SendError::Closing) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        self.set_disconnect(py, code, reason);
        Connection::write(connection, frame.as_slice(), None, b"")?;
        Connection::set_websocket_deadline(connection, Kind::Close)?;
        Connection::read_on_later(connection)?;
        request.get().wake_receivers(py)?;
        request.get().wake_senders(py)?;
        Ok(Ok(()))
    }

    /// The server shuts down.
    pub(super) fn shut_down(
        request: &Bound<'_, Request>,
        connection: &Bound<'_, Connection>,
    ) -> PyResult<()> {
        if Self::is_closing(request) {
            return Connection::close(connection);
        }
        let this = Self::of(request)?;
        // It has a valid code and no reason.
        this.close(request, connection, SERVICE_RESTART, "")
            .map(drop)
    }

    pub(super) fn on_deadline(
        request: &Bound<'_, Request>,
        connection: &Bound<'_, Connection>,
        kind: Kind,
    ) -> PyResult<()> {
        let py = request.py();
        let this = Self::of(request)?;
        if kind == Kind::Ping {
            return this.ping(request, connection);
        }
        if connection.get().has_work_left(py)? {
            return Connection::set_websocket_deadline(connection, kind);
        }
        this.close(
            request,
            connection,
            INTERNAL_ERROR,
            "keepalive ping timeout",
        )
        .and_then(|_| Connection::close(connection))
    }

    fn ping(
        &self,
        request: &Bound<'_, Request>,
        connection: &Bound<'_, Connection>,
    ) -> PyResult<()> {
        let py = request.py();
        // It only has to differ from those before.
        let payload = (clock::now_ns() as u32).to_be_bytes();
        let frame = {
            let mut state = self.state.get_mut(py);
            let frame = state.codec.as_ref().map(|codec| codec.ping(&payload));
            match frame {
                Some(Ok(frame)) => {
                    state.ping = Some(payload);
                    frame
                }
                _ => return Ok(()),
            }
        };
        Connection::write(connection, frame.as_slice(), None, b"")?;
        let service = request.get().service(py)?;
        let kind = if service.get().has_timeout(Kind::Pong) {
            Kind::Pong
        } else {
            Kind::Ping
        };
        Connection::set_websocket_deadline(connection, kind)
    }

    /// There is room to write.
    pub(super) fn resume_writing(&self, connection: &Bound<'_, Connection>) -> PyResult<()> {
        let py = connection.py();
        let pong = {
            let mut state = self.state.get_mut(py);
            let is_closing = state.codec.as_ref().is_none_or(|codec| codec.is_closing());
            state.pong.take().filter(|_| !is_closing)
        };
        match pong {
            Some(pong) => Connection::write(connection, pong.as_slice(), None, b""),
            None => Ok(()),
        }
    }

    /// The application has ended.
    pub(super) fn finish(
        request: &Bound<'_, Request>,
        outcome: PyResult<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = request.py();
        let this = Self::of(request)?;
        let service = request.get().service(py)?;
        let phase = this.phase(py);
        let is_disconnected = this.state.get(py).disconnect.is_some();
        let is_answered = match phase {
            Phase::Connecting => false,
            Phase::Denying => request.get().is_complete(py),
            Phase::Open | Phase::Closed => true,
        };
        let code = if outcome.is_ok() {
            NORMAL
        } else {
            INTERNAL_ERROR
        };
        let (report, argument) = match outcome {
            Err(error) => {
                // With its traceback, which `value` leaves out up to Python 3.11.
                let error = error.into_value(py).into_bound(py).into_any();
                let class = support::http(py)?.getattr(intern!(py, "ClientDisconnected"))?;
                let is_expected = error.is_instance(&class)?;
                ((!is_expected).then_some("report_exception"), error)
            }
            Ok(value) if !is_answered && !is_disconnected => (Some("report_no_handshake"), value),
            Ok(value) if !value.is_none() => (Some("report_result"), value),
            Ok(value) => (None, value),
        };
        let ended = match (request.get().connection(py), phase) {
            (None, _) | (_, Phase::Closed) => Ok(()),
            (Some(connection), Phase::Connecting) => {
                Connection::refuse(&connection, 500, "Internal Server Error")
            }
            (Some(connection), Phase::Denying) => {
                let flushed = Request::flush_head(request);
                flushed.and(Connection::close(&connection))
            }
            (Some(connection), Phase::Open) => {
                // It has a valid code and no reason.
                this.close(request, &connection, code, "").map(drop)
            }
        };
        let dropped = request.get().take_logged_scope(py);
        drop(dropped);
        let reported = match report {
            Some(report) => service.get().report(py, report, &argument),
            None => Ok(()),
        };
        ended.and(reported)
    }
}

/// The fields of an accepted handshake: the server's own, and the application's.
fn accept_fields(message: &Bound<'_, PyAny>, service: &HttpService) -> PyResult<Vec<OwnField>> {
    let py = message.py();
    let mut fields: Vec<OwnField> = Vec::new();
    if let Some(headers) = message::optional_item(message, intern!(py, "headers"))?
        && !headers.is_none()
    {
        for pair in headers.try_iter()? {
            let (name, value) = message::name_and_value(&pair?)?;
            let name = buffers::with_bytes(&name, |name| Ok(name.to_vec()))?;
            let value = buffers::with_bytes(&value, |value| Ok(value.to_vec()))?;
            fields.push((name, value));
        }
    }
    let has = |name: &[u8]| {
        fields
            .iter()
            .any(|(given, _)| given.eq_ignore_ascii_case(name))
    };
    let defaults = service.default_fields_with(has);
    let defaults = defaults.filter(|(name, _)| Handshake::may_have(name));
    let mut all: Vec<OwnField> = defaults.cloned().collect();
    all.append(&mut fields);
    Ok(all)
}

/// Logs how a handshake was answered, once.
pub(super) fn log(request: &Bound<'_, Request>, outcome: &str) -> PyResult<()> {
    let py = request.py();
    let Some(scope) = request.get().take_logged_scope(py) else {
        return Ok(());
    };
    let outcome = objects::string(py, outcome)?;
    let argument = objects::tuple(py, [scope.into_bound(py).into_any(), outcome.into_any()])?;
    let service = request.get().service(py)?;
    service.get().report(py, "log_websocket", &argument)
}

#[cold]
fn client_disconnected(py: Python<'_>) -> PyErr {
    let made = support::http(py)
        .and_then(|module| module.getattr(intern!(py, "ClientDisconnected")))
        .and_then(|class| class.call0());
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

#[cold]
fn send_error(py: Python<'_>, error: &SendError) -> PyErr {
    match error {
        SendError::Closing => client_disconnected(py),
        other => objects::error::<PyRuntimeError>(py, &other.to_string()),
    }
}
