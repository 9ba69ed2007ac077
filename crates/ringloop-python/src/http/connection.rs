//! `HttpConnection`: the protocol of a connection.
//!
//! It parses what arrives in the loop's receive buffer, starts a request's task outside of every other request's steps, and
//! writes what the requests send. Input is kept only where it can't be used yet.

mod ending;
mod http1;
mod http2;
mod websocket;
mod writing;

use std::os::fd::RawFd;

use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{PyTraverseError, PyVisit};
use ringloop::clock;
use ringloop_http::h1::{self, Event, ParkedHead, Upgrade};
use ringloop_http::websocket::{Handshake, Refusal};

use self::writing::Output;
use super::counters::Begun;
use super::deadlines::Kind;
use super::exchange::{Answerer, Exchange, WebSocketProtocol};
use super::h2::Http2;
use super::scope::{Peer, Template};
use super::service::HttpService;
use crate::names::intern;
use crate::objects;
use crate::receiver::{Input, Receiver};
use crate::support::{self, CloneRefOption, GilCell, in_context};
use crate::transport::SocketTransport;

/// Pipelined requests that are started before the loop goes on with other things.
pub(super) const REQUESTS_PER_TURN: usize = 16;

/// How long a server that shuts down waits for a request on a connection that has just been opened.
pub(super) const FIRST_REQUEST_S: f64 = 1.0;

/// Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct State {
    pub(super) answerer: &'static dyn Answerer,
    service: Option<Py<HttpService>>,
    /// The service counts it as a protocol that may still get its connection.
    is_awaited: bool,
    /// The number that the service knows the connection by.
    pub(super) slot: Option<usize>,
    transport: Option<Py<PyAny>>,
    /// The transport, if it is ours.
    socket: Option<Py<SocketTransport>>,
    /// Both ends, if the transport is not ours. One of ours can be asked at any time.
    known_peer: Option<Peer>,
    http: h1::Connection,
    /// The client has chosen HTTP/2, in place of `http`.
    pub(super) http2: Option<Box<Http2>>,
    /// Received, and not parsed yet.
    pub(super) input: Vec<u8>,
    /// The request whose response is not complete.
    current: Option<Py<Exchange>>,
    /// The template that was made of the last request's head.
    template: Option<Template>,
    /// Input is being parsed, or a request started.
    pub(super) is_busy: bool,
    /// The rest of the input is parsed in a later turn.
    pub(super) is_continuing: bool,
    is_reading_paused: bool,
    pub(super) is_writing_paused: bool,
    pub(super) is_closing: bool,
    /// Our side has ended, and what the client still sends is dropped for a while.
    is_lingering: bool,
    /// The client has sent too much for too long: what still comes is dropped, and the connection ends with the response.
    is_overrun: bool,
    /// The current request has become a WebSocket.
    is_websocket: bool,
    /// The head of a response that waits for the body's first part, and the buffer that it was written to.
    parked: Option<(ParkedHead, Vec<u8>)>,
    output: Output,
    /// Bytes that were written or collected so far.
    written: u64,
    /// The progress of sending when the deadline for writing was set.
    write_deadline: Option<Sent>,
}

/// How far a connection's output has got.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    written: u64,
    unsent: usize,
}

impl Sent {
    /// Less than anything that is found later.
    pub(super) const UNKNOWN: Self = Self {
        written: 0,
        unsent: usize::MAX / 2,
    };

    /// Whether the peer has taken something since.
    fn has_grown_to(self, now: Self) -> bool {
        (now.unsent as u64) < self.unsent as u64 + (now.written - self.written)
    }
}

#[pyclass(module = "ringloop._core", name = "HttpConnection", frozen, weakref)]
pub(crate) struct Connection {
    pub(super) state: GilCell<State>,
}

/// The outcome of parsing.
enum Parsed {
    /// A request is complete enough to be started.
    Request {
        request: Py<Exchange>,
        /// It asks for another protocol in vain.
        upgrades: bool,
    },
    /// A request for a WebSocket that is refused.
    BadHandshake(Refusal),
    /// There is nothing to do until something happens.
    Nothing,
    /// The client speaks HTTP/2.
    Http2,
    /// Something was refused.
    Refused(u16, &'static str),
}

impl Connection {
    /// The protocol of a connection, whose requests `answerer` answers.
    pub(super) fn new<'py>(
        service: &Bound<'py, HttpService>,
        answerer: &'static dyn Answerer,
    ) -> PyResult<Bound<'py, Self>> {
        let state = State {
            answerer,
            service: Some(service.clone().unbind()),
            is_awaited: false,
            slot: None,
            transport: None,
            socket: None,
            known_peer: None,
            http: h1::Connection::new(service.get().limits()),
            http2: None,
            input: Vec::new(),
            current: None,
            template: None,
            is_busy: false,
            is_continuing: false,
            is_reading_paused: false,
            is_writing_paused: false,
            is_closing: false,
            is_lingering: false,
            is_overrun: false,
            is_websocket: false,
            parked: None,
            output: Output::new(),
            written: 0,
            write_deadline: None,
        };
        let state = GilCell::new(state);
        let connection = Bound::new(service.py(), Self { state })?;
        service.get().begin_awaiting(service.py());
        connection.get().state.get_mut(service.py()).is_awaited = true;
        Ok(connection)
    }

    /// The connection has come, or will never come.
    fn end_awaiting(&self, py: Python<'_>) {
        let mut state = self.state.get_mut(py);
        if std::mem::take(&mut state.is_awaited)
            && let Some(service) = &state.service
        {
            service.get().end_awaiting(py);
        }
    }

    pub(super) fn service<'py>(&self, py: Python<'py>) -> Option<Bound<'py, HttpService>> {
        let state = self.state.get(py);
        state.service.as_ref().map(|it| it.bind(py).clone())
    }

    pub(super) fn transport<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let state = self.state.get(py);
        state.transport.as_ref().map(|it| it.bind(py).clone())
    }

    fn current<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Exchange>> {
        let state = self.state.get(py);
        state.current.as_ref().map(|it| it.bind(py).clone())
    }

    /// Both ends of the connection. If the transport is ours, an idle connection doesn't keep the objects.
    pub(super) fn peer(&self, py: Python<'_>) -> PyResult<Option<Peer>> {
        let (known, socket) = {
            let state = self.state.get(py);
            let known = state.known_peer.as_ref().map(|peer| peer.clone_ref(py));
            (known, state.socket.clone_ref_opt(py))
        };
        let Some(socket) = socket.filter(|_| known.is_none()) else {
            return Ok(known);
        };
        let peer = match socket.get().names(py)? {
            Some((server, client)) => Peer::of_names(&server, &client),
            None => Peer::of_transport(socket.bind(py).as_any()),
        };
        peer.map(Some)
    }

    pub(super) fn is_writing_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_writing_paused
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_closing
    }

    /// Takes what has arrived.
    fn arrive(slf: &Bound<'_, Self>, input: Input<'_, '_>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        {
            let mut state = this.state.get_mut(py);
            if state.is_closing || state.is_overrun {
                return Ok(());
            }
            if let Some(service) = &state.service {
                service.get().count_received(py, input.len());
            }
            if state.is_websocket && !state.is_busy {
                drop(state);
                return Self::arrive_at_websocket(slf, Some(input));
            }
            if state.http2.is_some() {
                drop(state);
                return Self::arrive_http2(slf, input);
            }
            if state.is_busy || state.is_continuing || !state.input.is_empty() {
                state.input.extend_from_slice(&input);
                if state.is_busy || state.is_continuing {
                    return Ok(());
                }
                drop(state);
                drop(input);
                return Self::work(slf, None);
            }
        }
        Self::work(slf, Some(input))
    }

    /// Parses input and starts requests, until there is nothing more to do.
    fn work(slf: &Bound<'_, Self>, mut arrived: Option<Input<'_, '_>>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(service) = this.service(py) else {
            return Ok(());
        };
        if this.state.get(py).is_websocket {
            return Self::arrive_at_websocket(slf, arrived);
        }
        this.state.get_mut(py).is_busy = true;
        let mut started = 0;
        let result = loop {
            let hot = arrived.take();
            let kept = match &hot {
                Some(_) => Vec::new(),
                None => std::mem::take(&mut this.state.get_mut(py).input),
            };
            let mut at = 0;
            let input = hot.as_deref().unwrap_or(&kept);
            let parsed = Self::parse(slf, &service, input, &mut at);
            this.keep(py, hot.as_deref(), kept, at);
            drop(hot);
            match parsed {
                Ok(Parsed::Request { request, upgrades }) => {
                    if let Err(error) = Self::start(slf, &service, request.bind(py), upgrades) {
                        break Err(error);
                    }
                    started += 1;
                    let has_more = {
                        let state = this.state.get(py);
                        !state.input.is_empty() && !state.is_closing && !state.is_websocket
                    };
                    if !has_more {
                        break Ok(());
                    }
                    if started == REQUESTS_PER_TURN {
                        break Self::continue_later(slf, &service);
                    }
                }
                Ok(Parsed::Nothing) => break Ok(()),
                Ok(Parsed::BadHandshake(refusal)) => {
                    let fields = refusal.fields();
                    let refused =
                        Self::refuse_with(slf, refusal.status(), refusal.as_str(), fields);
                    let warned = service.get().warn(py, "Invalid HTTP request received.");
                    break refused.and(warned);
                }
                Ok(Parsed::Http2) => {
                    this.state.get_mut(py).is_busy = false;
                    return Self::begin_http2(slf, &service);
                }
                Ok(Parsed::Refused(status, text)) => {
                    let refused = Self::refuse(slf, status, text);
                    let warned = service.get().warn(py, "Invalid HTTP request received.");
                    break refused.and(warned);
                }
                Err(error) => break Err(error),
            }
        };
        this.state.get_mut(py).is_busy = false;
        result?;
        if this.state.get(py).is_websocket {
            return Self::read_on(slf);
        }
        if started > 0 {
            // Otherwise the deadline for the previous head would go on. A connection that ends has another one.
            let slot = {
                let state = this.state.get(py);
                state.slot.filter(|_| !state.is_closing)
            };
            if let Some(slot) = slot {
                HttpService::set_deadline(&service, slot, None)?;
            }
        }
        Self::settle(slf, &service)
    }

    /// Keeps what was not used of the input, in front of what has come meanwhile, if anything has.
    fn keep(&self, py: Python<'_>, hot: Option<&[u8]>, mut kept: Vec<u8>, used: usize) {
        let mut state = self.state.get_mut(py);
        match hot {
            Some(hot) if used == hot.len() => return,
            Some(hot) => kept.extend_from_slice(&hot[used..]),
            None if used == kept.len() => return,
            None => drop(kept.drain(..used)),
        }
        kept.append(&mut state.input);
        state.input = kept;
    }

    /// Parses input up to the next request that can be started. Runs no code of the application.
    fn parse(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        input: &[u8],
        at: &mut usize,
    ) -> PyResult<Parsed> {
        let py = service.py();
        let mut head = service.get().take_head(py);
        let result = Self::parse_with(slf, service, input, at, &mut head);
        service.get().return_head(py, head);
        result
    }

    fn parse_with(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        input: &[u8],
        at: &mut usize,
        head: &mut h1::Head,
    ) -> PyResult<Parsed> {
        let this = slf.get();
        let py = service.py();
        let mut begun = None;
        loop {
            let event = {
                let mut state = this.state.get_mut(py);
                if state.is_closing {
                    *at = input.len();
                    return Ok(Parsed::Nothing);
                }
                state.http.read(input, at, head)
            };
            match event {
                Ok(Event::Request {
                    head: range,
                    repeated,
                    end,
                }) => {
                    let bytes = &input[range];
                    let handshake = match Self::handshake(slf, service, bytes, head) {
                        Ok(handshake) => handshake,
                        Err(refusal) => {
                            *at = input.len();
                            return Ok(Parsed::BadHandshake(refusal));
                        }
                    };
                    let made =
                        Self::make_request(slf, service, bytes, head, repeated, end, handshake);
                    let (request, upgrades) = made?;
                    if end {
                        return Ok(Parsed::Request { request, upgrades });
                    }
                    begun = Some((request, upgrades));
                }
                Ok(Event::Data { range, end }) => {
                    let request = this.current(py);
                    if let Some(request) = request {
                        request.get().push_body(py, &input[range], end)?;
                    }
                    if end && begun.is_some() {
                        break;
                    }
                }
                Ok(Event::End) => {
                    if let Some(request) = this.current(py) {
                        request.get().push_body(py, b"", true)?;
                    }
                    if begun.is_some() {
                        break;
                    }
                }
                Ok(Event::Paused | Event::NeedMore) => break,
                Ok(Event::Http2) => return Ok(Parsed::Http2),
                Ok(Event::Over) => {
                    *at = input.len();
                    break;
                }
                Err(fault) => {
                    *at = input.len();
                    return Ok(Parsed::Refused(fault.status(), fault.as_str()));
                }
            }
        }
        Ok(match begun {
            Some((request, upgrades)) => Parsed::Request { request, upgrades },
            None => Parsed::Nothing,
        })
    }

    /// Makes a request of a head.
    fn make_request(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        bytes: &[u8],
        head: &h1::Head,
        repeated: bool,
        end: bool,
        handshake: Option<Handshake>,
    ) -> PyResult<(Py<Exchange>, bool)> {
        let this = slf.get();
        let py = service.py();
        let template = if repeated {
            this.state.get_mut(py).template.take()
        } else {
            None
        };
        // A head that wants to switch protocols is not remembered.
        let mut upgrades = false;
        let template = if let Some(template) = template {
            template
        } else {
            let facts = *this.state.get(py).http.request();
            let peer = this.peer(py)?;
            upgrades = facts.upgrade != Upgrade::None && handshake.is_none();
            Template::new(
                py,
                service.get(),
                peer.as_ref(),
                &facts,
                bytes,
                head.fields(),
            )?
        };
        let scope = template.scope(py, service.get(), handshake.as_ref())?;
        let begun = Begun {
            method: this.state.get(py).http.request().method,
            at_ns: clock::now_ns(),
        };
        let websocket =
            handshake.map(|it| (it, &websocket::FRAMES as &'static dyn WebSocketProtocol));
        let exchange = Exchange::new(
            service,
            slf.as_any(),
            &http1::HTTP1,
            0,
            &scope,
            begun,
            end,
            websocket,
        );
        let answerer = this.state.get(py).answerer;
        let request = answerer.take(exchange, scope)?;
        let previous = {
            let mut state = this.state.get_mut(py);
            let previous = state.template.replace(template);
            (previous, state.current.replace(request.clone().unbind()))
        };
        drop(previous);
        Ok((request.unbind(), upgrades))
    }

    /// Starts a request's task.
    fn start(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        request: &Bound<'_, Exchange>,
        upgrades: bool,
    ) -> PyResult<()> {
        let py = slf.py();
        if upgrades {
            service.get().warn_of_upgrade(py)?;
        }
        if service.get().is_overloaded(py) {
            service.get().count_request(py)?;
            let text = "Service Unavailable";
            let refused = if request.get().websocket().is_some() {
                request
                    .get()
                    .log_handshake(py, "503")
                    .and(Self::refuse(slf, 503, text))
            } else {
                let scope = request.get().take_logged_scope(py);
                Self::refuse_request(slf, scope, 503, text)
            };
            let warned = service.get().warn(py, "Exceeded concurrency limit.");
            return refused.and(warned);
        }
        let answerer = slf.get().state.get(py).answerer;
        answerer.start(service, request)
    }

    /// Parses the rest of the input in the next turn.
    pub(super) fn continue_later(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        let py = slf.py();
        if std::mem::replace(&mut slf.get().state.get_mut(py).is_continuing, true) {
            return Ok(());
        }
        let callback = slf.getattr(intern!(py, "_continue"))?;
        service.get().call_soon(py, &callback)
    }

    /// Sets deadlines and reading as what the connection waits for demands.
    fn settle(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (slot, waiting, has_input) = {
            let state = this.state.get(py);
            let is_over = state.is_closing || state.is_websocket;
            let Some(slot) = state.slot.filter(|_| !is_over) else {
                return Ok(());
            };
            let waiting = match &state.current {
                Some(request) => {
                    let wants_body = request.get().wants_body(py);
                    wants_body.then_some(Kind::Body)
                }
                None if state.is_continuing => None,
                None if state.http.is_reading_body() => Some(Kind::Body),
                None if state.input.is_empty() && state.http.requests() > 0 => {
                    Some(Kind::KeepAlive)
                }
                None => Some(Kind::Head),
            };
            (slot, waiting, state.input.len())
        };
        let (unread, awaits_end) = match this.current(py) {
            Some(request) => (request.get().unread(py), request.get().awaits_end(py)),
            None => (0, false),
        };
        let is_full = unread + has_input > service.get().body_ahead();
        // While nothing is read the peer's end isn't seen. An application that waits for it does not wait for ever.
        let is_blind = is_full && awaits_end;
        let deadline = if is_blind { Some(Kind::Body) } else { waiting };
        HttpService::set_deadline(service, slot, deadline)?;
        // Without a request everything that comes is used at once.
        if is_full && waiting.is_none() {
            this.pause_reading(py)
        } else {
            this.resume_reading(py, service)
        }
    }

    pub(super) fn pause_reading(&self, py: Python<'_>) -> PyResult<()> {
        if std::mem::replace(&mut self.state.get_mut(py).is_reading_paused, true) {
            return Ok(());
        }
        match self.transport(py) {
            Some(transport) => transport
                .call_method0(intern!(py, "pause_reading"))
                .map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn resume_reading(
        &self,
        py: Python<'_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        if !std::mem::replace(&mut self.state.get_mut(py).is_reading_paused, false) {
            return Ok(());
        }
        let Some(transport) = self.transport(py) else {
            return Ok(());
        };
        // The transport reads in the context that it is resumed in: not in that of a request.
        let context = service.get().context(py)?;
        in_context(py, &context.unbind(), || {
            transport
                .call_method0(intern!(py, "resume_reading"))
                .map(drop)
        })
    }

    /// The application waits for a message, or waits no longer.
    pub(super) fn on_waits_changed(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        let is_busy = this.state.get(slf.py()).is_busy;
        match this.service(slf.py()) {
            Some(service) if !is_busy => Self::settle(slf, &service),
            _ => Ok(()),
        }
    }

    /// The application has taken what there was of the body, and there will be more.
    pub(super) fn on_body_taken(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        let is_paused = this.state.get(slf.py()).is_reading_paused;
        match this.service(slf.py()) {
            Some(service) if is_paused => this.resume_reading(slf.py(), &service),
            _ => Ok(()),
        }
    }

    /// Ends the connection after the current response.
    pub(super) fn close_after_response(&self, py: Python<'_>) {
        self.state.get_mut(py).http.close_after_response();
    }

    /// The transport, if it can send files.
    pub(super) fn socket<'py>(&self, py: Python<'py>) -> Option<Bound<'py, SocketTransport>> {
        let state = self.state.get(py);
        state.socket.as_ref().map(|it| it.bind(py).clone())
    }

    /// Sends bytes of a file; see `SocketTransport::start_file`.
    pub(super) fn start_file(
        slf: &Bound<'_, Self>,
        file: RawFd,
        count: usize,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = slf.py();
        let Some(socket) = slf.get().socket(py) else {
            let text = "the connection is closed";
            return Err(objects::error::<PyConnectionError>(py, text));
        };
        slf.get().flush_output(py)?;
        slf.get().state.get_mut(py).count_written(py, count);
        let waiter = SocketTransport::start_file(&socket, file, count)?;
        if waiter.is_some() {
            slf.get().watch_unsent(py)?;
        }
        Ok(waiter)
    }

    /// A request's response is complete.
    pub(super) fn on_response_complete(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, Exchange>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (is_over, is_busy, has_input, previous) = {
            let mut state = this.state.get_mut(py);
            let is_current = state.current.as_ref().is_some_and(|it| it.is(request));
            let previous = is_current.then(|| state.current.take()).flatten();
            (
                state.http.is_over(),
                state.is_busy,
                !state.input.is_empty(),
                previous,
            )
        };
        drop(previous);
        if is_over {
            // The client may still be sending the rest of the body, or the next request.
            return Self::linger(slf);
        }
        let Some(service) = this.service(py).filter(|_| !is_busy) else {
            return Ok(());
        };
        if has_input {
            Self::continue_later(slf, &service)?;
        }
        Self::settle(slf, &service)
    }
}

impl Receiver for Connection {
    const METHOD: &'static str = "data_received";

    fn receive(this: &Bound<'_, Self>, input: Input<'_, '_>) -> PyResult<()> {
        Self::arrive(this, input)
    }
}

#[pymethods]
impl Connection {
    /// For `ringloop._tls`: when the peer has ended the connection, what it sent before is delivered even while reading is
    /// paused, and then the end. A request would otherwise not learn that its client has left.
    #[classattr]
    #[pyo3(name = "_takes_rest_at_end")]
    const TAKES_REST_AT_END: bool = true;

    fn connection_made(slf: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        this.end_awaiting(py);
        let Some(service) = this.service(py) else {
            return Ok(());
        };
        let socket = transport.cast::<SocketTransport>().ok();
        let (mut known_peer, mut is_http2) = (None, false);
        if socket.is_none() {
            known_peer = Some(Peer::of_transport(transport)?);
            let has_chosen = support::http(py)?
                .getattr(intern!(py, "has_chosen_http2"))?
                .call1((transport,))?
                .is_truthy()?;
            is_http2 = has_chosen && service.get().limits().http2;
        }
        let slot = service.get().enter(slf.as_any());
        {
            let mut state = this.state.get_mut(py);
            state.known_peer = known_peer;
            state.slot = Some(slot);
            state.transport = Some(transport.clone().unbind());
            state.socket = socket.map(|socket| socket.clone().unbind());
        }
        HttpService::set_deadline(&service, slot, Some(Kind::Head))?;
        if is_http2 {
            Self::begin_http2(slf, &service)
        } else if service.get().is_shutting_down(py) {
            Self::shut_down(slf)
        } else {
            Ok(())
        }
    }

    /// For transports that are not ours.
    fn data_received(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let input = crate::buffers::with_bytes(data, |bytes| Ok(Input::copied(py, bytes)))?;
        Self::arrive(slf, input)
    }

    /// As uvicorn, a client that has ended its side is taken for gone: the transport closes, once it has sent what it was
    /// given. Of a file it has not, so that this one closes after the response.
    fn eof_received(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        let sends_file = {
            let state = this.state.get(py);
            let request = state.current.as_ref().filter(|_| state.socket.is_some());
            request.is_some_and(|request| request.get().sends_file(py))
        };
        if !sends_file {
            let taken = Self::end_websocket_input(slf);
            return taken.and(Self::end(slf)).map(|()| false);
        }
        this.state.get_mut(py).http.close_after_response();
        if let Some(request) = this.current(py) {
            request.get().disconnect(py, false)?;
        }
        Ok(true)
    }

    #[pyo3(signature = (exc))]
    fn connection_lost(slf: &Bound<'_, Self>, exc: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let _ = exc;
        let py = slf.py();
        let this = slf.get();
        this.end_awaiting(py);
        let (service, slot, was_lingering, dropped) = {
            let mut state = this.state.get_mut(py);
            state.is_closing = true;
            state.is_writing_paused = false;
            let was_lingering = std::mem::take(&mut state.is_lingering);
            let dropped = (
                state.transport.take(),
                state.socket.take(),
                state.known_peer.take(),
                state.template.take(),
                std::mem::take(&mut state.input),
                state.parked.take(),
                std::mem::replace(&mut state.output, Output::new()),
            );
            (
                state.service.take(),
                state.slot.take(),
                was_lingering,
                dropped,
            )
        };
        drop(dropped);
        let (current, http2) = {
            let mut state = this.state.get_mut(py);
            (state.current.take(), state.http2.take())
        };
        let streams = http2.as_deref().map_or(Vec::new(), |it| it.requests(py));
        drop(http2);
        let told = support::for_each(py, current.iter().chain(&streams), |request| {
            request.get().disconnect(py, true)
        });
        let left = match (service, slot) {
            (Some(service), Some(slot)) => service.get().leave(py, slot, was_lingering),
            _ => Ok(()),
        };
        support::first_error(py, told, left)
    }

    fn pause_writing(&self, py: Python<'_>) {
        self.state.get_mut(py).is_writing_paused = true;
    }

    fn resume_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let (current, streams) = {
            let mut state = slf.get().state.get_mut(py);
            state.is_writing_paused = false;
            let http2 = state.http2.as_deref();
            let streams = http2.map(|http2| http2.requests(py));
            (state.current.clone_ref_opt(py), streams)
        };
        let mut result = Ok(());
        for request in current.iter().chain(streams.iter().flatten()) {
            if let Some(websocket) = request.get().websocket() {
                result = result.and(Self::resume_websocket(slf, websocket));
            }
            result = result.and(request.get().wake_senders(py));
        }
        match streams {
            Some(_) => Self::drive(slf).and(result),
            None => result,
        }
    }

    /// For `ringloop._tls`: the handshake has failed, so that nothing else will be called.
    fn _connection_not_made(&self, py: Python<'_>) {
        self.end_awaiting(py);
    }

    /// Closes the connection of a server that shuts down, unless a request has come after all.
    fn _close_idle(slf: &Bound<'_, Self>) -> PyResult<()> {
        let is_idle = {
            let state = slf.get().state.get(slf.py());
            if state.http2.is_some() {
                drop(state);
                return Self::close_idle_http2(slf);
            }
            state.current.is_none() && state.http.is_idle() && !state.is_closing
        };
        if is_idle { Self::close(slf) } else { Ok(()) }
    }

    /// Goes on with the input that is left.
    fn _continue(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        {
            let mut state = slf.get().state.get_mut(py);
            state.is_continuing = false;
            if state.is_busy || state.is_closing {
                return Ok(());
            }
            if state.http2.is_some() {
                drop(state);
                return Self::drive(slf);
            }
        }
        Self::work(slf, None)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<Py<PyString>> {
        let text = format!("<HttpConnection at {:p}>", slf.as_ptr());
        objects::string(slf.py(), &text).map(Bound::unbind)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.service)?;
        visit.call(&state.transport)?;
        visit.call(&state.socket)?;
        visit.call(&state.current)?;
        if let Some(peer) = &state.known_peer {
            peer.traverse(&visit)?;
        }
        if let Some(template) = &state.template {
            template.traverse(&visit)?;
        }
        if let Some(http2) = &state.http2 {
            http2.traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        self.end_awaiting(py);
        let dropped = {
            let mut state = self.state.get_mut(py);
            state.is_closing = true;
            (
                state.service.take(),
                state.transport.take(),
                state.socket.take(),
                state.current.take(),
                state.known_peer.take(),
                state.template.take(),
                state.http2.take(),
            )
        };
        drop(dropped);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        Python::attach(|py| self.end_awaiting(py));
    }
}
