//! HTTP/2: what a connection does once its client has chosen it.
//!
//! `ringloop_http::h2` has the frames, windows and limits. Here its events become requests, and what the requests send
//! goes back. Output is collected: what is sent while events are handled goes out in one write at their end.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use pyo3::{PyTraverseError, PyVisit};
use ringloop::clock;
use ringloop_http::ResponseError;
use ringloop_http::h2::{self, Config, Event};

use super::connection::{Connection, FIRST_REQUEST_S, REQUESTS_PER_TURN, Sent};
use super::counters::Begun;
use super::deadlines::Kind;
use super::message::Fields;
use super::request::Request;
use super::scope::Template;
use super::service::HttpService;
use super::task;
use crate::names::intern;
use crate::receiver::Input;

/// Error codes (RFC 9113, section 7).
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;

/// Shorter bodies are copied, which costs less than to share them.
const SHARED: usize = 4096;

/// The number of a stream.
pub(super) type Stream = NonZeroU32;

/// The state of a connection that speaks HTTP/2. Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Http2 {
    messages: h2::Connection,
    /// The requests whose responses are not complete.
    exchanges: BTreeMap<Stream, Exchange>,
    /// Those that were not started.
    starting: VecDeque<Stream>,
    /// The last request's head, and what was made of it.
    last: Option<(Arc<h2::Request>, Template)>,
    /// The number of requests that wait for more of their bodies.
    waiting: usize,
    /// Requests have come since the connection began to wait for a request, or for the rest of a head.
    was_used: bool,
    /// A response has not found room.
    has_waited: bool,
    /// A GOAWAY was sent because the connection, or the server, ends.
    is_retiring: bool,
    /// The connection will be closed soon if it is idle.
    is_closing_soon: bool,
}

/// A request on its stream.
struct Exchange {
    request: Py<Request>,
    /// The client waits for 100 (Continue).
    awaits_continue: bool,
    /// Since when the application has waited for more of the body.
    waits_since_ms: Option<u64>,
}

impl Http2 {
    fn new(config: &Config) -> Self {
        Self {
            messages: h2::Connection::new(config),
            exchanges: BTreeMap::new(),
            starting: VecDeque::new(),
            last: None,
            waiting: 0,
            was_used: false,
            has_waited: false,
            is_retiring: false,
            is_closing_soon: false,
        }
    }

    /// Whether no response is left to give or to write. While writing is paused, `messages` keeps some.
    fn is_idle(&self, is_writing_paused: bool) -> bool {
        !is_writing_paused && self.exchanges.is_empty() && self.messages.is_idle()
    }

    pub(super) fn requests(&self, py: Python<'_>) -> Vec<Py<Request>> {
        let exchanges = self.exchanges.values();
        exchanges.map(|it| it.request.clone_ref(py)).collect()
    }

    fn request(&self, py: Python<'_>, stream: Stream) -> Option<Py<Request>> {
        let exchange = self.exchanges.get(&stream)?;
        Some(exchange.request.clone_ref(py))
    }

    /// The next request to start.
    fn next_start(&mut self, py: Python<'_>) -> Option<Py<Request>> {
        loop {
            let stream = self.starting.pop_front()?;
            // Those that were reset are not started.
            if let Some(request) = self.request(py, stream) {
                return Some(request);
            }
        }
    }

    /// Sets since when a request has waited for its body.
    fn set_waiting(&mut self, stream: Stream, since_ms: Option<u64>) {
        if let Some(exchange) = self.exchanges.get_mut(&stream) {
            self.waiting -= usize::from(exchange.waits_since_ms.is_some());
            self.waiting += usize::from(since_ms.is_some());
            exchange.waits_since_ms = since_ms;
        }
    }

    /// Forgets a request. To be dropped when nothing is borrowed.
    #[must_use]
    fn remove(&mut self, stream: Stream) -> Option<Py<Request>> {
        self.set_waiting(stream, None);
        self.exchanges.remove(&stream).map(|it| it.request)
    }

    /// The streams whose requests have waited for their bodies since that time, or longer.
    fn waiting_since(&self, since_ms: u64) -> Vec<Stream> {
        let exchanges = self.exchanges.iter();
        exchanges
            .filter(|(_, it)| it.waits_since_ms.is_some_and(|at_ms| at_ms <= since_ms))
            .map(|(stream, _)| *stream)
            .collect()
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for exchange in self.exchanges.values() {
            visit.call(&exchange.request)?;
        }
        match &self.last {
            Some((_, template)) => template.traverse(visit),
            None => Ok(()),
        }
    }
}

/// The stream that an event is about.
fn number(stream: u32) -> Option<Stream> {
    NonZeroU32::new(stream)
}

fn now_ms() -> u64 {
    clock::now_ns() / 1_000_000
}

/// A body to send. It must not change.
fn shared(body: &Bound<'_, PyBytes>) -> Bytes {
    let content = body.as_bytes();
    if content.len() < SHARED {
        Bytes::copy_from_slice(content)
    } else {
        Bytes::from_owner(PyBackedBytes::from(body.clone()))
    }
}

/// The connection's own work.
impl Connection {
    fn with_http2<R>(&self, py: Python<'_>, run: impl FnOnce(&mut Http2) -> R) -> Option<R> {
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
        let Some(service) = this.service(py) else {
            return Ok(());
        };
        {
            let mut state = this.state.get_mut(py);
            // Who is busy will see to it.
            if state.is_closing || std::mem::replace(&mut state.is_busy, true) {
                return Ok(());
            }
        }
        let result = Self::exchange(slf, &service);
        this.state.get_mut(py).is_busy = false;
        result?;
        Self::settle_http2(slf, &service)
    }

    fn exchange(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let mut started = 0;
        loop {
            let now_ms = now_ms();
            while let Some(event) = this
                .with_http2(py, |http2| http2.messages.next_event(now_ms))
                .flatten()
            {
                Self::on_event(slf, service, event)?;
            }
            let may_start = {
                let state = this.state.get(py);
                started < REQUESTS_PER_TURN && !state.is_continuing && !state.is_closing
            };
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
            Self::continue_later(slf, service)?;
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
            } => match number(stream) {
                Some(stream) => Self::begin_request(slf, service, stream, request, end),
                None => Ok(()),
            },
            Event::Refused { stream, fault } => match number(stream) {
                Some(stream) => {
                    let warned = service.get().warn(py, "Invalid HTTP request received.");
                    Self::refuse_stream(slf, stream, None, fault.status(), fault.as_str())
                        .and(warned)
                }
                None => Ok(()),
            },
            Event::Data { stream, data, end } => this.on_data(py, stream, &data, end),
            Event::Trailers { stream, .. } => this.on_data(py, stream, b"", true),
            Event::Drained { stream } => {
                let found = number(stream)
                    .and_then(|it| this.with_http2(py, |http2| http2.request(py, it)).flatten());
                match found {
                    Some(request) => request.get().wake_senders(py),
                    None => Ok(()),
                }
            }
            Event::Reset { stream, .. } => {
                let removed = number(stream)
                    .and_then(|it| this.with_http2(py, |http2| http2.remove(it)).flatten());
                match removed {
                    Some(request) => request.get().disconnect(py, true),
                    None => Ok(()),
                }
            }
            Event::End(end) => {
                Self::flush_last(slf, service)?;
                let warned = match &end {
                    h2::End::Orderly => Ok(()),
                    h2::End::Error(_) => service.get().warn(py, "Invalid HTTP request received."),
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
        let last = this.with_http2(py, |http2| http2.last.take()).flatten();
        let template = match last {
            Some((last, template)) if Arc::ptr_eq(&last, &head) => template,
            _ => {
                let peer = this.peer(py)?;
                Template::of_stream(py, service.get(), peer.as_ref(), &head)?
            }
        };
        let scope = template.scope(py, service.get(), None)?;
        let begun = Begun {
            method: head.known_method(),
            at_ns: clock::now_ns(),
        };
        let request = Request::new(service, slf, Some(stream), scope, begun, end, None)?.unbind();
        let awaits_continue = head.expects_continue() && !end;
        this.with_http2(py, |http2| {
            http2.last = Some((head, template));
            http2.was_used = true;
            http2.starting.push_back(stream);
            let exchange = Exchange {
                request,
                awaits_continue,
                waits_since_ms: None,
            };
            http2.exchanges.insert(stream, exchange);
        });
        Ok(())
    }

    /// Takes a part of a request's body.
    fn on_data(&self, py: Python<'_>, stream: u32, data: &[u8], end: bool) -> PyResult<()> {
        let request = number(stream).and_then(|number| {
            let find = |http2: &mut Http2| {
                http2.set_waiting(number, None);
                let exchange = http2.exchanges.get_mut(&number);
                if let Some(exchange) = exchange {
                    exchange.awaits_continue = false;
                    return Some(exchange.request.clone_ref(py));
                }
                // Nobody will ask for it.
                http2.messages.release(stream, data.len());
                None
            };
            self.with_http2(py, find).flatten()
        });
        match request {
            Some(request) => request.get().push_body(py, data, end),
            None => Ok(()),
        }
    }

    fn start_on_stream(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        request: &Bound<'_, Request>,
    ) -> PyResult<()> {
        let py = slf.py();
        let Some(stream) = request.get().stream() else {
            return Ok(());
        };
        if service.get().is_overloaded(py) {
            service.get().count_request(py)?;
            let scope = request.get().take_logged_scope(py);
            let refused = Self::refuse_stream(slf, stream, scope, 503, "Service Unavailable");
            let warned = service.get().warn(py, "Exceeded concurrency limit.");
            return refused.and(warned);
        }
        task::start(service, request)
    }

    /// Writes what there is to send. Returns whether there was something.
    fn flush(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        {
            let state = this.state.get(py);
            if state.is_closing || state.is_writing_paused {
                return Ok(false);
            }
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
            Self::write(slf, &buffer, None, b"").map(|()| true)
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
            let (Some(slot), Some(http2)) = (state.slot, state.http2.as_deref_mut()) else {
                return Ok(());
            };
            if state.is_closing {
                return Ok(());
            }
            let is_idle = http2.is_idle(state.is_writing_paused);
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
            this.set_write_deadline(py, Sent::UNKNOWN)?;
        }
        if is_at_end {
            let callback = slf.getattr(intern!(py, "_close_idle"))?;
            service.get().call_later(py, FIRST_REQUEST_S, &callback)?;
        }
        if wants_input {
            this.resume_reading(py, service)
        } else {
            this.pause_reading(py)
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
        if slf.get().is_closing(py) {
            return Ok(());
        }
        let is_writing_paused = slf.get().is_writing_paused(py);
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
                this.set_deadline(py, Some(Kind::Idle))
            }
            Kind::Idle => Self::retire(slf),
            Kind::Head => Self::end_http2(slf),
            Kind::Body => {
                let late = this.with_http2(py, |http2| http2.waiting_since(since_ms));
                for stream in late.unwrap_or_default() {
                    Self::refuse_stream(slf, stream, None, 408, "request timeout")?;
                }
                Self::drive(slf)
            }
            Kind::Write => {
                this.with_http2(py, |http2| http2.messages.reset_stalled(since_ms));
                Self::drive(slf)
            }
            Kind::Linger => Self::on_lingered(slf),
            // Of WebSockets, which are not on HTTP/2.
            Kind::Ping | Kind::Pong | Kind::Close => Ok(()),
        }
    }
}

/// The connection's work for its requests.
impl Connection {
    /// Whether a request has to wait before it sends more.
    pub(super) fn is_stream_full(&self, py: Python<'_>, stream: Stream) -> bool {
        let state = self.state.get(py);
        let http2 = state.http2.as_deref();
        state.is_writing_paused
            || http2.is_some_and(|http2| http2.messages.buffered(stream.get()) > 0)
    }

    /// Tells a client that waits for it that its body is wanted.
    pub(super) fn ask_for_body_on(slf: &Bound<'_, Self>, stream: Stream) -> PyResult<()> {
        let is_asked = slf.get().with_http2(slf.py(), |http2| {
            let exchange = http2.exchanges.get_mut(&stream);
            let asks = exchange.is_some_and(|it| std::mem::take(&mut it.awaits_continue));
            asks && http2.messages.inform(stream.get(), 100, []).is_ok()
        });
        if is_asked == Some(true) {
            Self::drive(slf)
        } else {
            Ok(())
        }
    }

    /// The application has received a part of a body.
    pub(super) fn on_body_taken_from(
        slf: &Bound<'_, Self>,
        stream: Stream,
        length: usize,
    ) -> PyResult<()> {
        slf.get().with_http2(slf.py(), |http2| {
            http2.messages.release(stream.get(), length);
        });
        Self::drive(slf)
    }

    /// The application waits for a message, or waits no longer.
    pub(super) fn on_waits_changed_on(
        slf: &Bound<'_, Self>,
        stream: Stream,
        wants_body: bool,
    ) -> PyResult<()> {
        let since_ms = wants_body.then(now_ms);
        slf.get()
            .with_http2(slf.py(), |http2| http2.set_waiting(stream, since_ms));
        Self::drive(slf)
    }

    /// Begins the head of a response.
    pub(super) fn begin_response_on(
        &self,
        py: Python<'_>,
        stream: Stream,
        status: u16,
        fields: Option<&Fields<'_>>,
        service: &Bound<'_, HttpService>,
    ) -> Result<(), ResponseError> {
        let begin = |http2: &mut Http2| {
            if let Some(exchange) = http2.exchanges.get_mut(&stream) {
                exchange.awaits_continue = false;
            }
            let mut head = http2.messages.begin(stream.get(), status)?;
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
        unless_gone(self.with_http2(py, begin))
    }

    /// Sends a head. `complete` is the length of the body if it is known.
    pub(super) fn send_head_on(
        &self,
        py: Python<'_>,
        stream: Stream,
        complete: Option<u64>,
        has_trailers: bool,
        service: &Bound<'_, HttpService>,
    ) -> Result<(), ResponseError> {
        let send = |http2: &mut Http2| {
            service.get().with_lines(py, |lines, unix_s| {
                http2
                    .messages
                    .send_head(stream.get(), complete, has_trailers, lines, unix_s)
            })
        };
        unless_gone(self.with_http2(py, send))
    }

    /// Sends a part of a body.
    pub(super) fn send_body_on(
        &self,
        stream: Stream,
        body: &Bound<'_, PyBytes>,
        last: bool,
    ) -> Result<(), ResponseError> {
        let send = |http2: &mut Http2| {
            let number = stream.get();
            http2.messages.send(number, shared(body), last, now_ms())?;
            http2.has_waited |= http2.messages.buffered(number) > 0;
            Ok(())
        };
        unless_gone(self.with_http2(body.py(), send))
    }

    /// Whether a response must not have a body, because of its status. Its head was sent.
    pub(super) fn forbids_body_on(&self, py: Python<'_>, stream: Stream) -> bool {
        let state = self.state.get(py);
        let http2 = state.http2.as_deref();
        http2.is_some_and(|http2| http2.messages.forbids_body(stream.get()))
    }

    /// How many bytes of a file of this size the response takes. Its head was sent.
    pub(super) fn file_length_on(&self, py: Python<'_>, stream: Stream, size: usize) -> usize {
        let state = self.state.get(py);
        let http2 = state.http2.as_deref();
        let announced = http2.and_then(|http2| http2.messages.announced(stream.get()));
        announced.map_or(size, |left| {
            usize::try_from(left).map_or(size, |left| left.min(size))
        })
    }

    /// Finishes a response with trailers.
    pub(super) fn send_trailers_on(
        &self,
        py: Python<'_>,
        stream: Stream,
        fields: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), ResponseError> {
        let pairs = fields.iter().map(|(name, value)| (&name[..], &value[..]));
        let send = |http2: &mut Http2| http2.messages.send_trailers(stream.get(), pairs, now_ms());
        unless_gone(self.with_http2(py, send))
    }

    /// A response is complete.
    pub(super) fn on_stream_complete(slf: &Bound<'_, Self>, stream: Stream) -> PyResult<()> {
        let removed = slf
            .get()
            .with_http2(slf.py(), |http2| http2.remove(stream))
            .flatten();
        drop(removed);
        Self::drive(slf)
    }

    /// Ends a stream whose response can't be completed.
    pub(super) fn reset_stream(slf: &Bound<'_, Self>, stream: Stream) -> PyResult<()> {
        slf.get().with_http2(slf.py(), |http2| {
            http2.messages.give_up(stream.get(), now_ms());
        });
        Self::leave_stream(slf, stream)
    }

    /// Answers with an error. If a response has begun, its stream is reset.
    pub(super) fn refuse_stream(
        slf: &Bound<'_, Self>,
        stream: Stream,
        scope: Option<Py<PyDict>>,
        status: u16,
        text: &str,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(service) = this.service(py).filter(|_| !this.is_closing(py)) else {
            return Ok(());
        };
        let kind = (&b"content-type"[..], &b"text/plain; charset=utf-8"[..]);
        let defaults = service.get().default_fields();
        let fields = std::iter::once(kind).chain(defaults.filter(|(name, _)| *name != kind.0));
        let body = Bytes::copy_from_slice(text.as_bytes());
        let length = Some(body.len() as u64);
        this.with_http2(py, |http2| {
            let number = stream.get();
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
            let exchange = http2.exchanges.get(&stream);
            let begun = exchange.map(|it| it.request.get().begun(py));
            service.get().count_response(py, begun, status);
        });
        let logged = match scope {
            Some(scope) => HttpService::log_access(&service, scope.bind(py), status),
            None => Ok(()),
        };
        Self::leave_stream(slf, stream).and(logged)
    }

    /// Forgets a stream that has ended before its request.
    fn leave_stream(slf: &Bound<'_, Self>, stream: Stream) -> PyResult<()> {
        let py = slf.py();
        let removed = slf.get().with_http2(py, |http2| http2.remove(stream));
        let told = match removed.flatten() {
            Some(request) => request.get().disconnect(py, true),
            None => Ok(()),
        };
        Self::drive(slf).and(told)
    }
}

/// A stream that has ended takes everything and drops it.
fn unless_gone(result: Option<Result<(), ResponseError>>) -> Result<(), ResponseError> {
    match result {
        None | Some(Err(ResponseError::NoRequest)) => Ok(()),
        Some(result) => result,
    }
}
