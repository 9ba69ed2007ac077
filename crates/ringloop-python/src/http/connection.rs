//! `HttpConnection`: the protocol of a connection.
//!
//! It parses what arrives in the loop's receive buffer, starts a request's task outside of every other request's steps, and
//! writes what the requests send. Input is kept only where it can't be used yet.

mod ending;
mod http1;
mod http2;
mod websocket;
mod websocket_stream;

use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_http::h1::{self, Event, ParkedHead, Upgrade};
use ringloop_http::websocket::{Handshake, Refusal};
use ringloop_reactor::clock;

use super::counters::Begun;
use super::deadlines::Kind;
use super::exchange::{Answerer, Exchange, WebSocketProtocol};
use super::h2::Http2;
use super::link::{Link, Owner};
use super::pages::Route;
use super::scope::{Peer, Template};
use super::service::HttpService;
use crate::cell::GilCell;
use crate::names::intern;
use crate::objects;
use crate::queue::Collector;
use crate::receiver::{Input, Receipt, ReceiveInto, Receiver};
use crate::support::{self, CloneRefOption};
use crate::transport::SocketTransport;

/// Pipelined requests that are started before the loop goes on with other things.
pub(super) const REQUESTS_PER_TURN: usize = 16;

/// How long a request may wait for its body before it is started.
const GATHERING_NS_MAX: u64 = 500_000_000;

/// How long a server that shuts down waits for a request on a connection that has just been opened.
pub(super) const FIRST_REQUEST_S: f64 = 1.0;

/// Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct State {
    /// Who answers requests for the application.
    answerer: &'static dyn Answerer,
    /// Who answers those for the server's own.
    own_answerer: &'static dyn Answerer,
    http: h1::Connection,
    /// The client has chosen HTTP/2, in place of `http`.
    pub(super) http2: Option<Box<Http2>>,
    /// Received, and not parsed yet.
    pub(super) input: Vec<u8>,
    /// The request whose response is not complete.
    current: Option<Py<Exchange>>,
    /// The template that was made of the last request's head.
    template: Option<Template>,
    /// The current request is started when its body is there, or the client is slow to send it.
    is_gathering: bool,
    /// Input is being parsed, or a request started.
    pub(super) is_busy: bool,
    /// The client has sent too much for too long: what still comes is dropped, and the connection ends with the response.
    is_overrun: bool,
    /// The client has ended its side, and gets the answers to what it has asked.
    has_ended: bool,
    /// The current request has become a WebSocket.
    is_websocket: bool,
    /// The head of a response that waits for the body's first part, and the buffer that it was written to.
    parked: Option<(ParkedHead, Vec<u8>)>,
}

#[pyclass(module = "ringloop._core", name = "HttpConnection", frozen, weakref)]
pub(crate) struct Connection {
    pub(super) link: Link,
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
    /// The protocol of a connection. `answerer` answers its requests for the application, and `own_answerer` those for the
    /// server's own, which is an ASGI application in any case.
    pub(super) fn new<'py>(
        service: &Bound<'py, HttpService>,
        answerer: &'static dyn Answerer,
        own_answerer: &'static dyn Answerer,
    ) -> PyResult<Bound<'py, Self>> {
        let state = State {
            answerer,
            own_answerer,
            http: h1::Connection::new(service.get().limits()),
            http2: None,
            input: Vec::new(),
            current: None,
            template: None,
            is_gathering: false,
            is_busy: false,
            is_overrun: false,
            has_ended: false,
            is_websocket: false,
            parked: None,
        };
        let connection = Self {
            link: Link::new(service),
            state: GilCell::new(state),
        };
        let connection = Bound::new(service.py(), connection)?;
        connection.get().link.begin_awaiting(service.py());
        Ok(connection)
    }

    /// Who answers requests of a route.
    pub(super) fn answerer(&self, py: Python<'_>, route: Route) -> &'static dyn Answerer {
        let state = self.state.get(py);
        match route {
            Route::Application => state.answerer,
            Route::Page | Route::Files => state.own_answerer,
        }
    }

    fn current<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Exchange>> {
        let state = self.state.get(py);
        state.current.as_ref().map(|it| it.bind(py).clone())
    }

    /// Takes what has arrived.
    fn arrive(slf: &Bound<'_, Self>, input: Input<'_, '_>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        if this.link.is_closing(py) {
            return Ok(());
        }
        {
            let mut state = this.state.get_mut(py);
            if state.is_overrun {
                return Ok(());
            }
            this.link.count_received(py, input.len());
            if state.is_websocket && !state.is_busy {
                drop(state);
                return Self::arrive_at_websocket(slf, Some(input));
            }
            if state.http2.is_some() {
                drop(state);
                return Self::arrive_http2(slf, input);
            }
            let is_later = state.is_busy || this.link.is_continuing(py);
            if is_later || !state.input.is_empty() {
                state.input.extend_from_slice(&input);
                if is_later {
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
        let Some(service) = this.link.service(py) else {
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
            if hot.is_none() {
                let mut state = this.state.get_mut(py);
                if state.has_ended && state.input.is_empty() {
                    state.http.close_after_response();
                }
            }
            drop(hot);
            match parsed {
                Ok(Parsed::Request { request, .. }) if this.is_cut_off(py, request.bind(py)) => {
                    request.get().forget_body(py);
                    break Self::close(slf);
                }
                Ok(Parsed::Request { request, upgrades }) => {
                    if this.state.get(py).is_gathering {
                        break if upgrades {
                            service.get().warn_of_upgrade(py)
                        } else {
                            Ok(())
                        };
                    }
                    if let Err(error) = Self::start(slf, &service, request.bind(py), upgrades) {
                        break Err(error);
                    }
                    started += 1;
                    let has_more = {
                        let state = this.state.get(py);
                        !state.input.is_empty() && !state.is_websocket && !this.link.is_closing(py)
                    };
                    if !has_more {
                        break Ok(());
                    }
                    if started == REQUESTS_PER_TURN {
                        break slf.get().link.continue_later(slf, &service);
                    }
                }
                Ok(Parsed::Nothing) => break Ok(()),
                Ok(Parsed::BadHandshake(refusal)) => {
                    let (status, text) = (refusal.status(), refusal.as_str());
                    let warned = this.warn_of_invalid(&service, &format!("gets {status}: {text}"));
                    let fields = refusal.fields();
                    break Self::refuse_with(slf, status, text, fields).and(warned);
                }
                Ok(Parsed::Http2) => {
                    this.state.get_mut(py).is_busy = false;
                    return Self::begin_http2(slf, &service);
                }
                Ok(Parsed::Refused(status, text)) => {
                    let warned = this.warn_of_invalid(&service, &format!("gets {status}: {text}"));
                    break Self::refuse(slf, status, text).and(warned);
                }
                Err(error) => break Err(error),
            }
        };
        this.state.get_mut(py).is_busy = false;
        result?;
        {
            let state = this.state.get(py);
            if state.is_websocket {
                drop(state);
                return Self::read_on(slf);
            }
            if state.has_ended && state.current.is_none() && !this.link.is_continuing(py) {
                drop(state);
                return Self::close(slf);
            }
        }
        if Self::start_gathered(slf, &service)? {
            started += 1;
        }
        if started > 0 {
            // Otherwise the deadline for the previous head would go on. A connection that ends has another one.
            if let Some(slot) = this.link.slot(py).filter(|_| !this.link.is_closing(py)) {
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

    /// Parses input up to the next request that can be started, or that waits for its body. Runs no code of the
    /// application.
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
                if this.link.is_closing(py) {
                    *at = input.len();
                    return Ok(Parsed::Nothing);
                }
                this.state.get_mut(py).http.read(input, at, head)
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
                        let is_first = begun.is_some() && !this.state.get(py).is_gathering;
                        if is_first && !end && this.gathers_ahead(service, &request) {
                            this.state.get_mut(py).is_gathering = true;
                        }
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
            let peer = this.link.peer(py)?;
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
        let told = template.tell(py, service.get(), handshake.as_ref())?;
        let begun = Begun {
            method: this.state.get(py).http.request().method,
            at_ns: clock::now_ns(),
        };
        let mut dispatch = template.dispatch();
        if handshake.is_some() {
            dispatch.route = Route::Application;
        }
        let websocket =
            handshake.map(|it| (it, &websocket::FRAMES as &'static dyn WebSocketProtocol));
        let exchange = Exchange::new(
            service,
            slf.as_any(),
            &http1::HTTP1,
            0,
            &told.scope,
            dispatch,
            begun,
            end,
            websocket,
        );
        if let Some(left) = this.state.get(py).http.body_left() {
            exchange.expect(py, left);
        }
        let answerer = this.answerer(py, dispatch.route);
        let request = answerer.take(exchange, told)?;
        let previous = {
            let mut state = this.state.get_mut(py);
            let previous = state.template.replace(template);
            (previous, state.current.replace(request.clone().unbind()))
        };
        drop(previous);
        Ok((request.unbind(), upgrades))
    }

    /// Whether a request is started only when its body is there, as far as this comes without a pause.
    fn gathers_ahead(
        &self,
        service: &Bound<'_, HttpService>,
        request: &Bound<'_, Exchange>,
    ) -> bool {
        let py = service.py();
        let route = request.get().route();
        self.link.has_socket(py)
            && self.answerer(py, route).wants_whole_body()
            && !service.get().is_overloaded(py)
            && request.get().gather_ahead(py)
    }

    /// Starts a request that has waited for its body, if that is there.
    fn start_gathered(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        if !this.state.get(py).is_gathering {
            return Ok(false);
        }
        match this.current(py) {
            Some(request) if request.get().has_whole_body(py) => {
                Self::end_gathering(slf, service, &request).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Tells a request that waits for its body that its client is gone, as those that were started hear of it.
    pub(in crate::http) fn disconnect_gathering(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if !slf.get().state.get(py).is_gathering {
            return Ok(());
        }
        match slf.get().current(py) {
            Some(request) => request.get().disconnect(py, false),
            None => Ok(()),
        }
    }

    /// Starts a request that has waited for its body.
    fn end_gathering(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        request: &Bound<'_, Exchange>,
    ) -> PyResult<()> {
        let py = slf.py();
        {
            let mut state = slf.get().state.get_mut(py);
            state.is_gathering = false;
            if slf.get().link.is_closing(py) {
                drop(state);
                request.get().forget_body(py);
                return Ok(());
            }
            state.is_busy = true;
        }
        let result = Self::start(slf, service, request, false);
        slf.get().state.get_mut(py).is_busy = false;
        result
    }

    /// The client has paused within a body that is gathered: the view waits for the rest.
    fn on_gathering_deadline(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let is_gathering = this.state.get(py).is_gathering;
        match (this.link.service(py), this.current(py)) {
            (Some(service), Some(request)) if is_gathering => {
                let ended = Self::end_gathering(slf, &service, &request);
                Self::or_abort(slf, ended.and_then(|()| Self::settle(slf, &service)))
            }
            _ => Ok(()),
        }
    }

    /// Ends the connection after an error that nobody else ends it for: its client would wait.
    fn or_abort(slf: &Bound<'_, Self>, result: PyResult<()>) -> PyResult<()> {
        result.inspect_err(|_| {
            if let Err(error) = slf.get().link.abort(slf.py()) {
                error.write_unraisable(slf.py(), Some(slf.as_any()));
            }
        })
    }

    /// Limits how long a request waits for its body: each part of it gives the client time for the next one, but not for
    /// ever.
    fn limit_gathering(&self, service: &Bound<'_, HttpService>, slot: usize) -> PyResult<()> {
        let begun = self
            .current(service.py())
            .map(|it| it.get().begun(service.py()));
        let is_long = begun.is_some_and(|it| it.at_ns + GATHERING_NS_MAX < clock::now_ns());
        if is_long {
            HttpService::begin_deadline(service, slot, Kind::Gather)
        } else {
            HttpService::set_deadline(service, slot, Some(Kind::Gather))
        }
    }

    /// Takes what was received of a body that is received as a whole.
    fn take_gathered(slf: &Bound<'_, Self>, count: usize) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (Some(service), Some(request)) = (this.link.service(py), this.current(py)) else {
            return Ok(());
        };
        this.link.count_received(py, count);
        let end = this.state.get_mut(py).http.skip_body(count as u64);
        request.get().on_gathered(py, end)?;
        Self::start_gathered(slf, &service)?;
        Self::settle(slf, &service)
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
        let route = request.get().route();
        if route != Route::Page && service.get().is_overloaded(py) {
            service.get().count_request(py)?;
            request.get().forget_body(py);
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
        let answerer = slf.get().answerer(py, route);
        answerer.start(service, request)
    }

    /// Sets deadlines and reading as what the connection waits for demands.
    fn settle(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (slot, waiting, has_input) = {
            let state = this.state.get(py);
            let is_over = state.is_websocket || this.link.is_closing(py);
            let Some(slot) = this.link.slot(py).filter(|_| !is_over) else {
                return Ok(());
            };
            let waiting = match &state.current {
                Some(request) => {
                    let wants_body = request.get().wants_body(py);
                    wants_body.then_some(Kind::Body)
                }
                None if this.link.is_continuing(py) => None,
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
        let is_gathering = this.state.get(py).is_gathering;
        let is_full = unread + has_input > service.get().body_ahead() && !is_gathering;
        // While nothing is read the peer's end isn't seen. An application that waits for it does not wait for ever.
        let is_blind = is_full && awaits_end;
        let deadline = if is_blind { Some(Kind::Body) } else { waiting };
        if is_gathering {
            this.limit_gathering(service, slot)?;
        } else {
            HttpService::set_deadline(service, slot, deadline)?;
        }
        // Without a request everything that comes is used at once.
        if is_full && waiting.is_none() {
            this.link.pause_reading(py)
        } else {
            this.link.resume_reading(py, service)
        }
    }

    /// The application waits for a message, or waits no longer.
    pub(super) fn on_waits_changed(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        let is_busy = this.state.get(slf.py()).is_busy;
        match this.link.service(slf.py()) {
            Some(service) if !is_busy => Self::settle(slf, &service),
            _ => Ok(()),
        }
    }

    /// The application has taken what there was of the body, and there will be more.
    pub(super) fn on_body_taken(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        let is_paused = this.link.is_reading_paused(slf.py());
        match this.link.service(slf.py()) {
            Some(service) if is_paused => this.link.resume_reading(slf.py(), &service),
            _ => Ok(()),
        }
    }

    /// Ends the connection after the current response.
    pub(super) fn close_after_response(&self, py: Python<'_>) {
        self.state.get_mut(py).http.close_after_response();
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
        let Some(service) = this.link.service(py).filter(|_| !is_busy) else {
            return Ok(());
        };
        if has_input {
            slf.get().link.continue_later(slf, &service)?;
        }
        Self::settle(slf, &service)
    }

    /// Whether the rest of a request can't come any more.
    fn is_cut_off(&self, py: Python<'_>, request: &Bound<'_, Exchange>) -> bool {
        self.state.get(py).has_ended && !request.get().has_whole_body(py)
    }

    /// The client has ended its side. Whether it still gets answers: it does if its request is complete and the application
    /// is WSGI, because a view can't be told that its client may be gone.
    fn end_input(&self, py: Python<'_>) -> bool {
        let current = self.current(py);
        let answers = {
            let state = self.state.get(py);
            let is_http1 = state.http2.is_none() && !state.is_websocket;
            is_http1 && state.answerer.answers_half_closed()
        };
        let is_complete = match &current {
            Some(request) => request.get().has_whole_body(py),
            None => self.link.is_continuing(py),
        };
        if !answers || !is_complete || !self.link.has_socket(py) || self.link.is_closing(py) {
            return false;
        }
        if let Some(request) = &current {
            request.get().note_client_has_ended(py);
        }
        let mut state = self.state.get_mut(py);
        state.has_ended = true;
        if state.input.is_empty() {
            state.http.close_after_response();
        }
        true
    }
}

impl Owner for Connection {}

impl Collector for Connection {
    fn flush(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        Self::or_abort(this, this.get().link.flush(py))
    }
}

impl Receiver for Connection {
    const METHOD: &'static str = "data_received";

    fn receive(this: &Bound<'_, Self>, input: Input<'_, '_>) -> PyResult<()> {
        Self::arrive(this, input)
    }

    fn gather(slf: &Bound<'_, Self>, receive_into: ReceiveInto<'_>) -> Option<Receipt> {
        let py = slf.py();
        let link = &slf.get().link;
        let state = slf.get().state.get(py);
        let has_other = state.is_websocket || state.is_overrun || state.http2.is_some();
        let is_later = state.is_busy || !state.input.is_empty() || link.is_continuing(py);
        if has_other || is_later || link.is_closing(py) {
            return None;
        }
        state.http.body_left()?;
        state.current.as_ref()?.get().gather(py, receive_into)
    }

    fn gathered(slf: &Bound<'_, Self>, count: usize) -> PyResult<()> {
        Self::take_gathered(slf, count)
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
        this.link.end_awaiting(py);
        let Some(service) = this.link.service(py) else {
            return Ok(());
        };
        let (mut known_peer, mut is_http2) = (None, false);
        if transport.cast::<SocketTransport>().is_err() {
            known_peer = Some(Peer::of_transport(transport)?);
            let has_chosen = support::http(py)?
                .getattr(intern!(py, "has_chosen_http2"))?
                .call1((transport,))?
                .is_truthy()?;
            is_http2 = has_chosen && service.get().limits().http2;
        }
        let slot = service.get().enter(slf.as_any());
        this.link.connect(transport, known_peer, slot);
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

    /// A WSGI application still answers, as under gunicorn. Otherwise a client that has ended its side is taken to be gone, as
    /// in uvicorn: the transport closes once it has sent what it was given. It was not given the contents of a file, so while
    /// one is sent, the connection closes after the response.
    fn eof_received(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        if this.end_input(py) {
            return Ok(true);
        }
        let sends_file = {
            let state = this.state.get(py);
            let request = state.current.as_ref();
            this.link.has_socket(py) && request.is_some_and(|it| it.get().sends_file(py))
        };
        if !sends_file {
            let taken = Self::end_websocket_input(slf).and(Self::end_streams_input(slf));
            return taken.and(Self::end(slf)).map(|()| false);
        }
        {
            let mut state = this.state.get_mut(py);
            state.has_ended = true;
            state.http.close_after_response();
        }
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
        this.link.end_awaiting(py);
        let left = this.link.disconnect(py);
        let dropped = {
            let mut state = this.state.get_mut(py);
            (
                state.template.take(),
                std::mem::take(&mut state.input),
                state.parked.take(),
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
        let left = left.leave(py);
        support::first_error(py, told, left)
    }

    fn pause_writing(&self, py: Python<'_>) {
        self.link.set_writing_paused(py, true);
    }

    fn resume_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let (current, streams) = {
            slf.get().link.set_writing_paused(py, false);
            let state = slf.get().state.get(py);
            let http2 = state.http2.as_deref();
            let streams = http2.map(|http2| http2.requests(py));
            (state.current.clone_ref_opt(py), streams)
        };
        let mut result = Ok(());
        for request in current.iter().chain(streams.iter().flatten()) {
            result = result.and(Self::resume_websocket(slf, request.get()));
            result = result.and(request.get().wake_senders(py));
        }
        match streams {
            Some(_) => Self::drive(slf).and(result),
            None => result,
        }
    }

    /// For `ringloop._tls`: the client has sent plain HTTP in place of a handshake.
    fn _refuse_plain_http(&self, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.link.service(transport.py()) {
            Some(service) => (service.get()).report(transport.py(), "refuse_plain_http", transport),
            None => Ok(()),
        }
    }

    /// For `ringloop._tls`: the handshake has failed, so that nothing else will be called.
    fn _connection_not_made(&self, py: Python<'_>) {
        self.link.end_awaiting(py);
    }

    /// Closes the connection of a server that shuts down, unless a request has come after all.
    fn _close_idle(slf: &Bound<'_, Self>) -> PyResult<()> {
        let is_idle = {
            let state = slf.get().state.get(slf.py());
            if state.http2.is_some() {
                drop(state);
                return Self::close_idle_http2(slf);
            }
            state.current.is_none() && state.http.is_idle() && !slf.get().link.is_closing(slf.py())
        };
        if is_idle { Self::close(slf) } else { Ok(()) }
    }

    /// Goes on with the input that is left.
    fn _continue(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        {
            slf.get().link.end_continuing(py);
            let state = slf.get().state.get(py);
            if state.is_busy || slf.get().link.is_closing(py) {
                return Ok(());
            }
            if state.http2.is_some() {
                drop(state);
                return Self::or_abort(slf, Self::drive(slf));
            }
        }
        Self::or_abort(slf, Self::work(slf, None))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<Py<PyString>> {
        let text = format!("<HttpConnection at {:p}>", slf.as_ptr());
        objects::string(slf.py(), &text).map(Bound::unbind)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.link.traverse(&visit)?;
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.current)?;
        if let Some(template) = &state.template {
            template.traverse(&visit)?;
        }
        if let Some(http2) = &state.http2 {
            http2.traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        self.link.clear(py);
        let dropped = {
            let mut state = self.state.get_mut(py);
            (
                state.current.take(),
                state.template.take(),
                state.http2.take(),
            )
        };
        drop(dropped);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        Python::attach(|py| self.link.end_awaiting(py));
    }
}
