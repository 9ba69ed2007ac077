//! A connection that speaks WebSocket: what is read, the deadlines, and the end. What concerns a WebSocket's exchange serves
//! those on streams of HTTP/2, too; `websocket_stream` has what is different there.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringloop_http::h1::{self, Upgrade};
use ringloop_http::websocket::{AcceptError, Connection as Codec, Handshake, Refusal, SendError};

use super::Connection;
use super::http1::connection;
use crate::http::deadlines::Kind;
use crate::http::exchange::{Exchange, WebSocketProtocol};
use crate::http::service::HttpService;
use crate::http::websocket::{End, INTERNAL_ERROR, Read, SERVICE_RESTART, WebSocket};
use crate::receiver::Input;

impl Connection {
    /// The request that became a WebSocket, if the connection still has it.
    fn websocket_request<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Exchange>> {
        self.current(py)
            .filter(|request| request.get().websocket().is_some())
    }

    /// The handshake in the head of a request, if it asks for a WebSocket.
    pub(super) fn handshake(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        bytes: &[u8],
        head: &h1::Head,
    ) -> Result<Option<Handshake>, Refusal> {
        let facts = *slf.get().state.get(slf.py()).http.request();
        match service.get().websocket_config() {
            Some(config) if facts.upgrade == Upgrade::WebSocket => {
                Handshake::check(&facts, head, bytes, config).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Writes the answer to a handshake into `buffer`. From here on the connection speaks WebSocket.
    fn accept(
        &self,
        py: Python<'_>,
        handshake: &Handshake,
        subprotocol: Option<&str>,
        fields: &[(Vec<u8>, Vec<u8>)],
        service: &HttpService,
        buffer: &mut Vec<u8>,
    ) -> Result<Codec, AcceptError> {
        let (codec, dropped) = {
            let mut state = self.state.get_mut(py);
            let codec = service.with_lines(py, |lines, unix_s| {
                let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
                let subprotocol = subprotocol.map(str::as_bytes);
                handshake.accept(&mut state.http, subprotocol, fields, lines, unix_s, buffer)
            })?;
            state.is_websocket = true;
            // They are for further requests.
            (codec, state.template.take())
        };
        drop(dropped);
        self.link.forget_peer(py);
        Ok(codec)
    }

    /// Gives the WebSocket what has arrived, behind what was kept.
    pub(super) fn arrive_at_websocket(
        slf: &Bound<'_, Self>,
        input: Option<Input<'_, '_>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (Some(request), Some(service)) = (this.websocket_request(py), this.link.service(py))
        else {
            return Ok(());
        };
        let mut kept = std::mem::take(&mut this.state.get_mut(py).input);
        this.state.get_mut(py).is_busy = true;
        let result = match input {
            Some(mut input) if kept.is_empty() => {
                let result = Self::read_websocket(slf, request.get(), &mut input, false);
                let used = *result.as_ref().unwrap_or(&input.len());
                this.keep(py, Some(&input), kept, used);
                result
            }
            input => {
                if let Some(input) = input {
                    kept.extend_from_slice(&input);
                }
                let result = Self::read_websocket(slf, request.get(), &mut kept, false);
                let used = *result.as_ref().unwrap_or(&kept.len());
                this.keep(py, None, kept, used);
                result
            }
        };
        this.state.get_mut(py).is_busy = false;
        result?;
        let has_input = !this.state.get(py).input.is_empty();
        if this.link.is_closing(py) {
            Ok(())
        } else if !has_input {
            this.link.resume_reading(py, &service)
        } else if is_full(request.get(), py, service.get()) {
            this.link.pause_reading(py)
        } else {
            // It came while the rest was being read.
            slf.get().link.continue_later(slf, &service)
        }
    }

    /// Gives the WebSocket the input that is kept: there will be no more. Under TLS, the end is told even while reading is
    /// paused.
    pub(super) fn end_websocket_input(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let mut kept = {
            let mut state = slf.get().state.get_mut(py);
            if !state.is_websocket || state.is_busy || slf.get().link.is_closing(py) {
                return Ok(());
            }
            std::mem::take(&mut state.input)
        };
        let Some(request) = slf.get().websocket_request(py).filter(|_| !kept.is_empty()) else {
            return Ok(());
        };
        slf.get().state.get_mut(py).is_busy = true;
        let result = Self::read_websocket(slf, request.get(), &mut kept, true);
        slf.get().state.get_mut(py).is_busy = false;
        result.map(drop)
    }

    /// Reads on: the application has taken all messages, or wants no more.
    pub(super) fn read_on(slf: &Bound<'_, Self>) -> PyResult<()> {
        let is_stuck = {
            let link = &slf.get().link;
            let state = slf.get().state.get(slf.py());
            let has_input = link.is_reading_paused(slf.py()) || !state.input.is_empty();
            let is_open = state.is_websocket && !link.is_closing(slf.py());
            has_input && !state.is_busy && is_open
        };
        if is_stuck {
            Self::arrive_at_websocket(slf, None)
        } else {
            Ok(())
        }
    }

    /// Has the rest of the input read in the next turn.
    fn read_on_later(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        if exchange.has_stream() {
            return Self::read_stream_later(slf, exchange);
        }
        let py = slf.py();
        let this = slf.get();
        let has_input = {
            let state = this.state.get(py);
            this.link.is_reading_paused(py) || !state.input.is_empty()
        };
        match this.link.service(py) {
            Some(service) if has_input => slf.get().link.continue_later(slf, &service),
            _ => Ok(()),
        }
    }

    /// Sets the deadline that a WebSocket has.
    fn set_websocket_deadline(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
        kind: Kind,
    ) -> PyResult<()> {
        let py = slf.py();
        if slf.get().link.is_closing(py) {
            return Ok(());
        }
        if exchange.has_stream() {
            return Self::set_stream_deadline(slf, exchange, kind);
        }
        slf.get().link.set_deadline(py, Some(kind))
    }

    /// Whether a client that is silent may be waiting for us: it has not been listened to, or not been sent everything.
    fn has_work_left(&self, py: Python<'_>, exchange: &Exchange) -> PyResult<bool> {
        if self.link.is_reading_paused(py)
            || (exchange.has_stream() && self.has_stream_work_left(py, exchange.number()))
        {
            return Ok(true);
        }
        self.link.has_unsent(py)
    }

    /// Writes a WebSocket's frame, and `payload` behind it.
    fn write_frame(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
        frame: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        if exchange.has_stream() {
            return Self::write_on_stream(slf, exchange.number(), frame, payload);
        }
        slf.get().link.write(slf, frame, payload, b"")
    }

    /// Closes what carries a WebSocket, once everything is sent.
    fn close_carrier(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        if exchange.has_stream() {
            Self::end_stream(slf, exchange)
        } else {
            Self::close(slf)
        }
    }

    /// Closes a connection whose client breaks the rules. To close it while the client sends would reset it, and the
    /// client might never read why: its data is dropped for a while first.
    fn close_slowly(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(service) = this
            .link
            .service(py)
            .filter(|_| this.link.can_half_close(py))
        else {
            return Self::close(slf);
        };
        let dropped = {
            let mut state = this.state.get_mut(py);
            state.is_overrun = true;
            std::mem::take(&mut state.input)
        };
        drop(dropped);
        this.link.set_deadline(py, Some(Kind::Close))?;
        if this.link.end_writing(py)? {
            this.link.resume_reading(py, &service)?;
        }
        Ok(())
    }

    /// As `shut_down`, for a connection with a WebSocket. Returns whether it is one.
    pub(super) fn shut_down_websocket(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        if !slf.get().state.get(py).is_websocket {
            return Ok(false);
        }
        match slf.get().websocket_request(py) {
            Some(request) => Self::shut_down_open_websocket(slf, request.get()).map(|()| true),
            None => Ok(true),
        }
    }

    /// Closes a connection whose WebSocket waits for the client's part of the closing handshake.
    pub(in crate::http) fn end_closing_websocket(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        Self::for_each_stream(slf, |slf, exchange| {
            if is_closing(exchange, py) {
                Self::end_stream(slf, exchange)
            } else {
                Ok(())
            }
        })?;
        let request = slf.get().websocket_request(py);
        let is_closing = request.is_some_and(|request| is_closing(request.get(), py));
        if is_closing { Self::close(slf) } else { Ok(()) }
    }

    /// A deadline of a WebSocket has expired.
    pub(super) fn on_websocket_deadline(slf: &Bound<'_, Self>, kind: Kind) -> PyResult<()> {
        match slf.get().websocket_request(slf.py()) {
            Some(request) if kind != Kind::Close => {
                Self::on_ping_deadline(slf, request.get(), kind)
            }
            _ => Self::close(slf),
        }
    }

    /// Has a WebSocket read `input`, and does what that demands. Returns how many bytes were used.
    pub(super) fn read_websocket(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
        input: &mut [u8],
        is_last: bool,
    ) -> PyResult<usize> {
        let py = slf.py();
        let websocket = websocket_of(exchange, py)?;
        let service = exchange.service(py)?;
        let mut answers = service.get().take_buffer(py);
        let is_paused = exchange.is_full(slf.as_any());
        let read = websocket.read(&service, input, &mut answers, is_paused, is_last);
        let timed = match &read {
            Ok(read) if read.is_ping_answered => {
                Self::set_websocket_deadline(slf, exchange, Kind::Ping)
            }
            _ => Ok(()),
        };
        // Even if something has failed.
        let answered = if answers.is_empty() {
            Ok(())
        } else {
            Self::write_frame(slf, exchange, &answers, None)
        };
        service.get().return_buffer(py, answers);
        let ended = match &read {
            Ok(Read { end: Some(end), .. }) => Self::end_websocket(slf, exchange, end),
            _ => Ok(()),
        };
        let woken = if websocket.has_news(py) {
            exchange.wake_receivers(py)
        } else {
            Ok(())
        };
        let read = read?;
        timed.and(answered).and(ended).and(woken)?;
        Ok(read.used)
    }

    /// The client has ended its part, or made it meaningless.
    fn end_websocket(slf: &Bound<'_, Self>, exchange: &Exchange, end: &End) -> PyResult<()> {
        let py = slf.py();
        let websocket = websocket_of(exchange, py)?;
        let (frame, is_orderly) = match end {
            End::Closed(code) => (websocket.answer_close(py, *code), true),
            End::Failed(failure) => (websocket.fail(py, *failure), false),
        };
        if let Some(frame) = frame {
            Self::write_frame(slf, exchange, frame.as_slice(), None)?;
        }
        // What still comes on a stream that is closed does no harm.
        if is_orderly || exchange.has_stream() {
            Self::close_carrier(slf, exchange)
        } else {
            Self::close_slowly(slf)
        }
    }

    /// A handshake was accepted.
    fn begin_websocket(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        let service = exchange.service(slf.py())?;
        if service.get().is_shutting_down(slf.py()) {
            return Self::shut_down_open_websocket(slf, exchange);
        }
        Self::set_websocket_deadline(slf, exchange, Kind::Ping)?;
        Self::read_on_later(slf, exchange)
    }

    /// Sends the close frame, and waits for the client's. 1005 stands for no code. Nothing happens if one was sent.
    fn close_websocket(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
        code: u16,
        reason: &str,
    ) -> PyResult<Result<(), SendError>> {
        let py = slf.py();
        let frame = match websocket_of(exchange, py)?.close(py, code, reason) {
            Ok(frame) => frame,
            Err(SendError::Closing) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        Self::write_frame(slf, exchange, frame.as_slice(), None)?;
        Self::set_websocket_deadline(slf, exchange, Kind::Close)?;
        Self::read_on_later(slf, exchange)?;
        exchange.wake_receivers(py)?;
        exchange.wake_senders(py)?;
        Ok(Ok(()))
    }

    pub(super) fn shut_down_open_websocket(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
    ) -> PyResult<()> {
        if is_closing(exchange, slf.py()) {
            return Self::close_carrier(slf, exchange);
        }
        // It has a valid code and no reason.
        Self::close_websocket(slf, exchange, SERVICE_RESTART, "").map(drop)
    }

    /// It is time for a ping, or for the answer to one.
    pub(super) fn on_ping_deadline(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
        kind: Kind,
    ) -> PyResult<()> {
        let py = slf.py();
        let websocket = websocket_of(exchange, py)?;
        if kind == Kind::Ping {
            let Some(frame) = websocket.ping(py) else {
                return Ok(());
            };
            Self::write_frame(slf, exchange, frame.as_slice(), None)?;
            let service = exchange.service(py)?;
            let kind = if service.get().has_timeout(Kind::Pong) {
                Kind::Pong
            } else {
                Kind::Ping
            };
            return Self::set_websocket_deadline(slf, exchange, kind);
        }
        if slf.get().has_work_left(py, exchange)? {
            return Self::set_websocket_deadline(slf, exchange, kind);
        }
        Self::close_websocket(slf, exchange, INTERNAL_ERROR, "keepalive ping timeout")
            .and_then(|_| Self::close_carrier(slf, exchange))
    }

    /// There is room to write.
    pub(super) fn resume_websocket(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        let Some(websocket) = exchange.websocket() else {
            return Ok(());
        };
        if exchange.has_stream() && exchange.is_full(slf.as_any()) {
            return Ok(());
        }
        match websocket.take_pong(slf.py()) {
            Some(pong) => Self::write_frame(slf, exchange, pong.as_slice(), None),
            None => Ok(()),
        }
    }
}

/// WebSocket, as exchanges see it.
pub(super) struct Frames;

pub(super) static FRAMES: Frames = Frames;

impl WebSocketProtocol for Frames {
    fn deny(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) {
        if let Ok(connection) = connection(object)
            && !exchange.has_stream()
        {
            connection.get().close_after_response(object.py());
        }
    }

    fn accept(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        handshake: &Handshake,
        subprotocol: Option<&str>,
        fields: &[(Vec<u8>, Vec<u8>)],
    ) -> PyResult<Result<(), AcceptError>> {
        let py = object.py();
        let connection = connection(object)?;
        let service = exchange.service(py)?;
        if exchange.has_stream() {
            let accepted = Connection::accept_on_stream(
                connection,
                exchange,
                handshake,
                subprotocol,
                fields,
                service.get(),
            );
            return match accepted {
                Ok(codec) => {
                    websocket_of(exchange, py)?.open(py, codec);
                    Connection::drive(connection).map(Ok)
                }
                Err(error) => Ok(Err(error)),
            };
        }
        let mut buffer = service.get().take_buffer(py);
        let accepted = connection.get().accept(
            py,
            handshake,
            subprotocol,
            fields,
            service.get(),
            &mut buffer,
        );
        let codec = match accepted {
            Ok(codec) => codec,
            Err(error) => {
                service.get().return_buffer(py, buffer);
                return Ok(Err(error));
            }
        };
        websocket_of(exchange, py)?.open(py, codec);
        let written = connection.get().link.write(connection, &buffer, None, b"");
        service.get().return_buffer(py, buffer);
        written.map(Ok)
    }

    fn begin(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        Connection::begin_websocket(connection(object)?, exchange)
    }

    fn write(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        frame: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        Connection::write_frame(connection(object)?, exchange, frame, payload)
    }

    fn read_on(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let connection = connection(object)?;
        let read = if exchange.has_stream() {
            Connection::read_stream_on(connection, exchange)
        } else {
            Connection::read_on(connection)
        };
        Connection::or_abort(connection, read)
    }

    fn close(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        code: u16,
        reason: &str,
    ) -> PyResult<Result<(), SendError>> {
        Connection::close_websocket(connection(object)?, exchange, code, reason)
    }

    fn end(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let connection = connection(object)?;
        if exchange.has_stream() {
            Connection::reset_stream(connection, exchange.number())
        } else {
            Connection::close(connection)
        }
    }
}

fn websocket_of<'a>(exchange: &'a Exchange, py: Python<'_>) -> PyResult<&'a WebSocket> {
    exchange.upgrade(py).map(|(websocket, _)| websocket)
}

/// Whether a close frame was sent.
fn is_closing(exchange: &Exchange, py: Python<'_>) -> bool {
    let websocket = exchange.websocket();
    websocket.is_some_and(|websocket| websocket.is_closing(py))
}

/// Whether reading must wait for the application.
fn is_full(exchange: &Exchange, py: Python<'_>, service: &HttpService) -> bool {
    let websocket = exchange.websocket();
    websocket.is_some_and(|websocket| websocket.is_full(py, service))
}
