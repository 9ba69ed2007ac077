//! A connection that speaks HTTP/2.
//!
//! Events become requests, and what the requests send goes back. Output is collected: what is sent while events are handled
//! goes out in one write at their end.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use ringloop_http::ResponseError;
use ringloop_http::h2::{self, Event};
use ringloop_http::websocket::Handshake;
use ringloop_reactor::clock;

use super::http1::{EARLY_HINTS, connection};
use super::websocket::FRAMES;
use super::{Connection, FIRST_REQUEST_S, REQUESTS_PER_TURN};
use crate::http::counters::Begun;
use crate::http::deadlines::Kind;
use crate::http::exchange::{
    Exchange, FileBegun, FileStart, Part, Protocol, WebSocketProtocol, response_error,
};
use crate::http::h2::{Http2, Open, Stream};
use crate::http::link::{Link, Sent};
use crate::http::message::Fields;
use crate::http::pages::Route;
use crate::http::scope::Template;
use crate::http::service::HttpService;
use crate::names::intern;
use crate::objects;
use crate::receiver::Input;

/// Error codes (RFC 9113, section 7).
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;

/// Shorter bodies are copied, which costs less than to share them.
const SHARED: usize = 4096;

pub(super) fn now_ms() -> u64 {
    clock::now_ns() / 1_000_000
}

/// A body to send. It must not change, and letting go of it must not run code of the application.
pub(super) fn shared(body: &Bound<'_, PyBytes>) -> Bytes {
    let content = body.as_bytes();
    if content.len() < SHARED || !body.is_exact_instance_of::<PyBytes>() {
        Bytes::copy_from_slice(content)
    } else {
        Bytes::from_owner(PyBackedBytes::from(body.clone()))
    }
}

/// The connection's own work.
impl Connection {
    pub(super) fn with_http2<R>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut Http2) -> R,
    ) -> Option<R> {
        let mut state = self.state.get_mut(py);
        // If it is gone, `run` is dropped after the borrow.
        let http2 = state.http2.as_deref_mut()?;
        Some(run(http2))
    }

    /// Goes over to HTTP/2, with the input that there is.
    pub(super) fn begin_http2(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        {
            let mut state = slf.get().state.get_mut(slf.py());
            let mut http2 = Http2::new(service.get().http2());
            let input = std::mem::take(&mut state.input);
            http2.messages.receive(&input, now_ms());
            state.http2 = Some(Box::new(http2));
        }
        if service.get().is_shutting_down(slf.py()) {
            Self::retire(slf)
        } else {
            Self::drive(slf)
        }
    }

    /// Takes what has arrived.
    pub(super) fn arrive_http2(slf: &Bound<'_, Self>, input: Input<'_, '_>) -> PyResult<()> {
        let this = slf.get();
        this.with_http2(slf.py(), |http2| http2.messages.receive(&input, now_ms()));
        drop(input);
        Self::drive(slf)
    }

    /// Handles what has happened, starts requests, and sends what there is to send.
    pub(super) fn drive(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(service) = this.link.service(py) else {
            return Ok(());
        };
        {
            let mut state = this.state.get_mut(py);
            // Who is busy will see to it.
            if this.link.is_closing(py) || std::mem::replace(&mut state.is_busy, true) {
                return Ok(());
            }
        }
        let result = Self::run_http2(slf, &service);
        this.state.get_mut(py).is_busy = false;
        result?;
        Self::settle_http2(slf, &service)
    }

    fn run_http2(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let mut started = 0;
        Self::read_streams(slf)?;
        loop {
            let now_ms = now_ms();
            while let Some(event) = this
                .with_http2(py, |http2| http2.messages.next_event(now_ms))
                .flatten()
            {
                Self::on_event(slf, service, event)?;
            }
            let may_start = started < REQUESTS_PER_TURN
                && !this.link.is_continuing(py)
                && !this.link.is_closing(py);
            let request = if may_start {
                this.with_http2(py, |http2| http2.next_start(py)).flatten()
            } else {
                None
            };
            if let Some(request) = request {
                started += 1;
                Self::start_on_stream(slf, service, request.bind(py))?;
            } else if !Self::flush(slf, service)?
                && this.with_http2(py, |http2| http2.messages.has_events()) != Some(true)
            {
                break;
            }
        }
        let is_left = this.with_http2(py, |http2| !http2.starting.is_empty());
        if is_left == Some(true) {
            slf.get().link.continue_later(slf, service)?;
        }
        Ok(())
    }

    fn on_event(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        event: Event,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        match event {
            Event::Request {
                stream,
                request,
                end,
            } => Self::begin_request(slf, service, stream, request, end),
            Event::Refused { stream, fault } => {
                let (status, text) = (fault.status(), fault.as_str());
                let warned = this.warn_of_invalid(service, &format!("gets {status}: {text}"));
                Self::refuse_stream(slf, stream, None, status, text, &[]).and(warned)
            }
            Event::Data { stream, data, end } => Self::on_data(slf, stream, &data, end),
            Event::Trailers { stream, .. } => Self::on_data(slf, stream, b"", true),
            Event::Drained { stream } => {
                let found = this.with_http2(py, |http2| http2.request(py, stream));
                match found.flatten() {
                    Some(request) => {
                        let resumed = Self::resume_websocket(slf, request.get());
                        resumed.and(request.get().wake_senders(py))
                    }
                    None => Ok(()),
                }
            }
            Event::Reset { stream, .. } => {
                let removed = this.with_http2(py, |http2| http2.remove(stream));
                match removed.flatten() {
                    Some(request) => request.get().disconnect(py, true),
                    None => Ok(()),
                }
            }
            Event::End(end) => {
                Self::flush_last(slf, service)?;
                let warned = match &end {
                    h2::End::Orderly => Ok(()),
                    h2::End::Error(error) => {
                        this.warn_of_invalid(service, &format!("is disconnected: {error}"))
                    }
                    h2::End::Flood => {
                        let text = format!("An HTTP/2 client was disconnected: {end}.");
                        service.get().warn(py, &text)
                    }
                };
                let ended = match end {
                    h2::End::Orderly | h2::End::Error(_) => Self::linger(slf),
                    h2::End::Flood => Self::close(slf),
                };
                ended.and(warned)
            }
            _ => Ok(()),
        }
    }

    /// Makes a request of a head.
    fn begin_request(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        stream: Stream,
        head: Arc<h2::Request>,
        end: bool,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let handshake = match service.get().websocket_config() {
            Some(config) if head.is_websocket() => {
                let fields = head.fields();
                let fields = fields.map(|(name, value)| (name.as_bytes(), value));
                match Handshake::check_on_stream(fields, end, config) {
                    Ok(handshake) => Some(handshake),
                    Err(refusal) => {
                        let (status, text) = (refusal.status(), refusal.as_str());
                        let fields = refusal.fields();
                        let warned =
                            this.warn_of_invalid(service, &format!("gets {status}: {text}"));
                        let refused = Self::refuse_stream(slf, stream, None, status, text, fields);
                        return refused.and(warned);
                    }
                }
            }
            _ => None,
        };
        let is_websocket = handshake.is_some();
        let last = if is_websocket {
            None
        } else {
            this.with_http2(py, |http2| http2.last.take()).flatten()
        };
        let template = match last {
            Some((last, template)) if Arc::ptr_eq(&last, &head) => template,
            _ => {
                let peer = this.link.peer(py)?;
                Template::of_stream(py, service.get(), peer.as_ref(), &head)?
            }
        };
        let told = template.tell(py, service.get(), handshake.as_ref())?;
        let begun = Begun {
            method: head.known_method(),
            at_ns: clock::now_ns(),
        };
        let mut dispatch = template.dispatch();
        if is_websocket {
            // The server itself answers no WebSockets.
            dispatch.route = Route::Application;
        }
        let exchange = Exchange::new(
            service,
            slf.as_any(),
            &HTTP2,
            stream,
            &told.scope,
            dispatch,
            begun,
            // A WebSocket has no body.
            end || is_websocket,
            handshake.map(|it| (it, &FRAMES as &'static dyn WebSocketProtocol)),
        );
        let answerer = this.answerer(py, dispatch.route);
        let request = answerer.take(exchange, told)?.unbind();
        let awaits_continue = head.expects_continue() && !end && !is_websocket;
        let dropped = this.with_http2(py, |http2| {
            let mut latest = Some((head, template));
            if !is_websocket {
                std::mem::swap(&mut http2.last, &mut latest);
            }
            http2.was_used = true;
            http2.starting.push_back(stream);
            let open = Open {
                request,
                awaits_continue,
                waits_since_ms: None,
                unread: is_websocket.then(Box::default),
            };
            http2.exchanges.insert(stream, open);
            latest
        });
        drop(dropped);
        Ok(())
    }

    /// Takes a part of a request's body.
    fn on_data(slf: &Bound<'_, Self>, stream: Stream, data: &[u8], end: bool) -> PyResult<()> {
        let py = slf.py();
        let find = |http2: &mut Http2| {
            http2.set_waiting(stream, None);
            let exchange = http2.exchanges.get_mut(&stream);
            if let Some(exchange) = exchange {
                exchange.awaits_continue = false;
                return Some(exchange.request.clone_ref(py));
            }
            // Nobody will ask for it.
            http2.messages.release(stream, data.len());
            None
        };
        let request = slf.get().with_http2(py, find).flatten();
        match request {
            Some(request) if request.get().websocket().is_some() => {
                Self::arrive_on_stream(slf, request.bind(py), data, end)
            }
            Some(request) => request.get().push_body(py, data, end),
            None => Ok(()),
        }
    }

    fn start_on_stream(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        request: &Bound<'_, Exchange>,
    ) -> PyResult<()> {
        let py = slf.py();
        let stream = request.get().number();
        let route = request.get().route();
        if route != Route::Page && service.get().is_overloaded(py) {
            service.get().count_request(py)?;
            let text = "Service Unavailable";
            let refused = if request.get().websocket().is_some() {
                let logged = request.get().log_handshake(py, "503");
                logged.and(Self::refuse_stream(slf, stream, None, 503, text, &[]))
            } else {
                let scope = request.get().take_logged_scope(py);
                Self::refuse_stream(slf, stream, scope, 503, text, &[])
            };
            let warned = service.get().warn(py, "Exceeded concurrency limit.");
            return refused.and(warned);
        }
        let answerer = slf.get().answerer(py, route);
        answerer.start(service, request)
    }

    /// Writes what there is to send. Returns whether there was something.
    fn flush(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        if this.link.is_closing(py) || this.link.is_writing_paused(py) {
            return Ok(false);
        }
        Self::flush_last(slf, service)
    }

    /// As `flush`, even to a client that doesn't read.
    fn flush_last(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<bool> {
        let py = slf.py();
        let mut buffer = service.get().take_buffer(py);
        slf.get().with_http2(py, |http2| {
            http2.messages.take_output(&mut buffer, now_ms());
        });
        let result = if buffer.is_empty() {
            Ok(false)
        } else {
            slf.get().link.write(slf, &buffer, None, b"").map(|()| true)
        };
        service.get().return_buffer(py, buffer);
        result
    }

    /// Sets deadlines and reading as what the connection waits for demands.
    fn settle_http2(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (slot, waiting, starts_anew, wants_input, is_stalled, is_at_end) = {
            let mut state = this.state.get_mut(py);
            let state = &mut *state;
            let (Some(slot), Some(http2)) = (this.link.slot(py), state.http2.as_deref_mut()) else {
                return Ok(());
            };
            if this.link.is_closing(py) {
                return Ok(());
            }
            let is_idle = http2.is_idle(this.link.is_writing_paused(py));
            let waiting = if http2.waiting > 0 {
                Some(Kind::Body)
            } else if http2.messages.is_receiving_head() || http2.messages.requests() == 0 {
                Some(Kind::Head)
            } else {
                is_idle.then_some(Kind::KeepAlive)
            };
            // After a request, the head that is incomplete is another one.
            let is_new = is_idle || waiting == Some(Kind::Head);
            let starts_anew = is_new && std::mem::take(&mut http2.was_used);
            let is_stalled = http2.has_waited && http2.messages.stalled_since_ms().is_some();
            http2.has_waited = is_stalled;
            let is_at_end = is_idle
                && http2.is_retiring
                && !std::mem::replace(&mut http2.is_closing_soon, true);
            http2.is_closing_soon &= is_idle && http2.is_retiring;
            (
                slot,
                waiting,
                starts_anew,
                http2.messages.wants_input(),
                is_stalled,
                is_at_end,
            )
        };
        if starts_anew {
            // Otherwise the deadline for the previous head would go on.
            HttpService::set_deadline(service, slot, None)?;
        }
        if waiting.is_none() || starts_anew {
            HttpService::set_deadline(service, slot, waiting)?;
        } else if let Some(kind) = waiting {
            HttpService::begin_deadline(service, slot, kind)?;
        }
        if is_stalled {
            this.link.set_write_deadline(py, Sent::UNKNOWN)?;
        }
        if is_at_end {
            let callback = slf.getattr(intern!(py, "_close_idle"))?;
            service.get().call_later(py, FIRST_REQUEST_S, &callback)?;
        }
        if wants_input {
            this.link.resume_reading(py, service)
        } else {
            this.link.pause_reading(py)
        }
    }

    /// Asks the client to send no more requests. The connection ends after those that were sent.
    pub(super) fn retire(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().with_http2(slf.py(), |http2| {
            http2.is_retiring = true;
            http2.messages.go_away();
        });
        Self::drive(slf)
    }

    /// Ends the connection, if it is idle, with a GOAWAY that says which requests were served.
    pub(super) fn close_idle_http2(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if slf.get().link.is_closing(py) {
            return Ok(());
        }
        let is_writing_paused = slf.get().link.is_writing_paused(py);
        let is_idle = slf.get().with_http2(py, |http2| {
            http2.is_closing_soon = false;
            http2.is_idle(is_writing_paused)
        });
        if is_idle == Some(true) {
            Self::end_http2(slf)
        } else {
            Ok(())
        }
    }

    /// Ends the connection with a GOAWAY.
    fn end_http2(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        this.with_http2(slf.py(), |http2| http2.messages.abort(NO_ERROR));
        Self::drive(slf)?;
        Self::close(slf)
    }

    /// A deadline for reading has expired.
    pub(super) fn on_deadline_http2(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        kind: Kind,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let timeout_ms = service.get().timeout_ms(kind).unwrap_or(u64::MAX);
        let since_ms = now_ms().saturating_sub(timeout_ms);
        match kind {
            Kind::KeepAlive => {
                let dropped = this.with_http2(py, |http2| {
                    http2.messages.forget_head();
                    http2.last.take()
                });
                drop(dropped);
                this.link.set_deadline(py, Some(Kind::Idle))
            }
            Kind::Idle => Self::retire(slf),
            Kind::Head => Self::end_http2(slf),
            Kind::Body => {
                let late = this.with_http2(py, |http2| http2.waiting_since(since_ms));
                for stream in late.unwrap_or_default() {
                    Self::refuse_stream(slf, stream, None, 408, "request timeout", &[])?;
                }
                Self::drive(slf)
            }
            Kind::Write => {
                this.with_http2(py, |http2| http2.messages.reset_stalled(since_ms));
                Self::drive(slf)
            }
            Kind::Linger => slf.get().link.on_lingered(slf.py()),
            // Each WebSocket has its own.
            Kind::Ping | Kind::Pong | Kind::Close | Kind::Gather => Ok(()),
        }
    }
}

/// HTTP/2, as exchanges see it.
pub(super) struct Http2Protocol;

static HTTP2: Http2Protocol = Http2Protocol;

impl Protocol for Http2Protocol {
    fn is_multiplexed(&self) -> bool {
        true
    }

    fn link<'a>(&self, object: &'a Bound<'_, PyAny>) -> PyResult<&'a Link> {
        Ok(&connection(object)?.get().link)
    }

    fn is_full(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) -> bool {
        let Ok(connection) = connection(object) else {
            return false;
        };
        let state = connection.get().state.get(object.py());
        let http2 = state.http2.as_deref();
        connection.get().link.is_writing_paused(object.py())
            || http2.is_some_and(|http2| http2.messages.buffered(exchange.number()) > 0)
    }

    fn ask_for_body(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = exchange.number();
        let connection = connection(object)?;
        let is_asked = connection.get().with_http2(object.py(), |http2| {
            let open = http2.exchanges.get_mut(&stream);
            let asks = open.is_some_and(|it| std::mem::take(&mut it.awaits_continue));
            asks && http2.messages.inform(stream, 100, []).is_ok()
        });
        if is_asked == Some(true) {
            Connection::drive(connection)
        } else {
            Ok(())
        }
    }

    fn on_body_taken(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        length: usize,
    ) -> PyResult<()> {
        let connection = connection(object)?;
        connection.get().with_http2(object.py(), |http2| {
            http2.messages.release(exchange.number(), length);
        });
        Connection::drive(connection)
    }

    fn on_waits_changed(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let connection = connection(object)?;
        let py = object.py();
        let since_ms = exchange.wants_body(py).then(now_ms);
        connection.get().with_http2(py, |http2| {
            http2.set_waiting(exchange.number(), since_ms);
        });
        Connection::drive(connection)
    }

    fn begin_head(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        status: u16,
        fields: Option<&Fields<'_>>,
        service: &Bound<'_, HttpService>,
    ) -> Result<(), ResponseError> {
        let stream = exchange.number();
        let begin = |http2: &mut Http2| {
            if let Some(open) = http2.exchanges.get_mut(&stream) {
                open.awaits_continue = false;
            }
            let mut head = http2.messages.begin(stream, status)?;
            let has = |name: &[u8]| fields.is_some_and(|fields| fields.has(name));
            for (name, value) in service.get().default_fields_with(has) {
                head.field(name, value)?;
            }
            if let Some(fields) = fields {
                fields.each(|name, value| head.field(name, value))?;
            }
            head.park();
            Ok(())
        };
        on_stream(object, begin)
    }

    fn send_head(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        has_trailers: bool,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        send_head(exchange, object, None, has_trailers, service)
            .map_err(|error| response_error(object.py(), error))?;
        Connection::drive(connection(object)?)
    }

    fn send_body(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        part: &Part<'_, '_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<bool> {
        let content = part.body.as_bytes();
        let sent = if part.has_head {
            let complete = part.is_last.then_some(content.len() as u64);
            send_head(exchange, object, complete, part.has_trailers, service)
        } else {
            Ok(())
        };
        let is_forbidden = !content.is_empty() && forbids_body(exchange, object);
        let sent = sent.and_then(|()| send_part(exchange, object, part.body, part.is_last));
        if let Err(error) = sent {
            // The head goes out all the same, as it would have without waiting for the body.
            Connection::drive(connection(object)?)?;
            return Err(response_error(object.py(), error));
        }
        Ok(is_forbidden)
    }

    fn flush(&self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        Connection::drive(connection(object)?)
    }

    fn send_hints(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        links: &[Bound<'_, PyBytes>],
    ) -> PyResult<()> {
        let links = links.iter().map(|link| (&b"link"[..], link.as_bytes()));
        let stream = exchange.number();
        on_stream(object, |http2| {
            http2.messages.inform(stream, EARLY_HINTS, links)
        })
        .map_err(|error| response_error(object.py(), error))?;
        Connection::drive(connection(object)?)
    }

    fn takes_trailers(&self, _: &Bound<'_, PyAny>) -> bool {
        true
    }

    fn send_trailers(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        fields: &[(Vec<u8>, Vec<u8>)],
    ) -> PyResult<()> {
        let pairs = fields.iter().map(|(name, value)| (&name[..], &value[..]));
        let stream = exchange.number();
        on_stream(object, |http2| {
            http2.messages.send_trailers(stream, pairs, now_ms())
        })
        .map_err(|error| response_error(object.py(), error))
    }

    fn begin_file(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        file: &FileStart<'_, '_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<FileBegun> {
        let py = object.py();
        let connection = connection(object)?;
        if file.has_head {
            let complete = (!file.has_trailers).then_some(file.size as u64);
            send_head(exchange, object, complete, file.has_trailers, service)
                .map_err(|error| response_error(py, error))?;
        }
        let is_forbidden = file.size > 0 && forbids_body(exchange, object);
        exchange.set_file_tail(py, b"");
        let announced = connection
            .get()
            .with_http2(py, |http2| http2.messages.announced(exchange.number()));
        let count = announced.flatten().map_or(file.size, |left| {
            usize::try_from(left).map_or(file.size, |left| left.min(file.size))
        });
        exchange.count_file(py, if is_forbidden { 0 } else { count });
        let left = match file.content {
            None => {
                Connection::drive(connection)?;
                count
            }
            Some(content) if content.as_bytes().len() > count => {
                let content = objects::bytes(py, &content.as_bytes()[..count])?;
                self.write_file(exchange, object, &content)?;
                0
            }
            Some(content) => {
                self.write_file(exchange, object, content)?;
                0
            }
        };
        Ok(FileBegun { left, is_forbidden })
    }

    fn write_file(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        content: &Bound<'_, PyBytes>,
    ) -> PyResult<()> {
        let sent = send_part(exchange, object, content, false);
        let driven = Connection::drive(connection(object)?);
        sent.map_err(|error| response_error(object.py(), error))?;
        driven
    }

    fn on_complete(
        &self,
        exchange: &Bound<'_, Exchange>,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let connection = connection(object)?;
        let stream = exchange.get().number();
        let removed = connection
            .get()
            .with_http2(object.py(), |http2| http2.remove(stream))
            .flatten();
        drop(removed);
        Connection::drive(connection)
    }

    fn give_up(&self, exchange: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        Connection::reset_stream(connection(object)?, exchange.number())
    }

    fn refuse(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        scope: Option<Py<PyDict>>,
        status: u16,
        text: &str,
    ) -> PyResult<()> {
        let stream = exchange.number();
        Connection::refuse_stream(connection(object)?, stream, scope, status, text, &[])
    }
}

/// Runs `run` with the messages of a connection. A stream that has ended takes everything and drops it.
fn on_stream(
    object: &Bound<'_, PyAny>,
    run: impl FnOnce(&mut Http2) -> Result<(), ResponseError>,
) -> Result<(), ResponseError> {
    let connection = connection(object).ok();
    let result = connection.and_then(|it| it.get().with_http2(it.py(), run));
    match result {
        None | Some(Err(ResponseError::NoRequest)) => Ok(()),
        Some(result) => result,
    }
}

/// Sends a head. `complete` is the length of the body if it is known.
fn send_head(
    exchange: &Exchange,
    object: &Bound<'_, PyAny>,
    complete: Option<u64>,
    has_trailers: bool,
    service: &Bound<'_, HttpService>,
) -> Result<(), ResponseError> {
    let stream = exchange.number();
    on_stream(object, |http2| {
        service.get().with_lines(object.py(), |lines, unix_s| {
            http2
                .messages
                .send_head(stream, complete, has_trailers, lines, unix_s)
        })
    })
}

/// Sends a part of a body.
fn send_part(
    exchange: &Exchange,
    object: &Bound<'_, PyAny>,
    body: &Bound<'_, PyBytes>,
    last: bool,
) -> Result<(), ResponseError> {
    let stream = exchange.number();
    on_stream(object, |http2| {
        http2.messages.send(stream, shared(body), last, now_ms())?;
        http2.has_waited |= http2.messages.buffered(stream) > 0;
        Ok(())
    })
}

/// Whether a response must not have a body, because of its status. Its head was sent.
fn forbids_body(exchange: &Exchange, object: &Bound<'_, PyAny>) -> bool {
    let forbids = |http2: &mut Http2| http2.messages.forbids_body(exchange.number());
    let found = connection(object).ok();
    found.and_then(|it| it.get().with_http2(it.py(), forbids)) == Some(true)
}

/// The end of a stream.
impl Connection {
    /// Ends a stream whose response can't be completed.
    pub(super) fn reset_stream(slf: &Bound<'_, Self>, stream: Stream) -> PyResult<()> {
        slf.get().with_http2(slf.py(), |http2| {
            http2.messages.give_up(stream, now_ms());
        });
        Self::leave_stream(slf, stream)
    }

    /// Answers with an error, and these fields. If a response has begun, its stream is reset.
    pub(super) fn refuse_stream(
        slf: &Bound<'_, Self>,
        stream: Stream,
        scope: Option<Py<PyDict>>,
        status: u16,
        text: &str,
        fields: &[(&[u8], &[u8])],
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(service) = this.link.service(py).filter(|_| !this.link.is_closing(py)) else {
            return Ok(());
        };
        let kind = (&b"content-type"[..], &b"text/plain; charset=utf-8"[..]);
        let defaults = service.get().default_fields();
        let fields = fields.iter().copied().chain(std::iter::once(kind));
        let fields = fields.chain(defaults.filter(|(name, _)| *name != kind.0));
        let body = Bytes::copy_from_slice(text.as_bytes());
        let length = Some(body.len() as u64);
        let request = this.with_http2(py, |http2| http2.request(py, stream));
        let begun = request.flatten().map(|request| request.get().begun(py));
        this.with_http2(py, |http2| {
            let number = stream;
            let answered = service.get().with_lines(py, |lines, unix_s| {
                http2
                    .messages
                    .respond(number, status, fields, length, lines, unix_s)
            });
            let answered =
                answered.and_then(|()| http2.messages.send(number, body, true, now_ms()));
            if answered.is_err() {
                http2.messages.reset(number, INTERNAL_ERROR);
                return;
            }
            http2.has_waited |= http2.messages.buffered(number) > 0;
            service.get().count_response(py, begun, status);
        });
        let logged = match scope {
            Some(scope) => HttpService::log_refusal(&service, scope.bind(py), status, begun, text),
            None => Ok(()),
        };
        Self::leave_stream(slf, stream).and(logged)
    }

    /// Forgets a stream that has ended before its request.
    pub(super) fn leave_stream(slf: &Bound<'_, Self>, stream: Stream) -> PyResult<()> {
        let py = slf.py();
        let removed = slf.get().with_http2(py, |http2| http2.remove(stream));
        let told = match removed.flatten() {
            Some(request) => request.get().disconnect(py, true),
            None => Ok(()),
        };
        Self::drive(slf).and(told)
    }
}
