//! An exchange: a request with its response, and who waits for which part.
//!
//! It knows neither the protocol that carries it nor who answers it. [`Protocol`] is what it needs from the protocol: HTTP/1
//! and HTTP/2 implement it, beside the connection. [`WebSocketProtocol`] is what it needs in addition once it has become a
//! WebSocket. [`Answerer`] is what a connection needs from whoever answers, such as an asyncio task for each request (`task`).
//!
//! It is a Python class, because the connection and the answerer share it. An answerer keeps its own state in a class that
//! is derived from this one.

mod response;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_http::ResponseError;
use ringloop_http::websocket::{AcceptError, Handshake, SendError};
use ringloop_reactor::clock;

use self::response::Trailers;
pub(super) use self::response::{Progress, response_error};
use super::counters::Begun;
use super::gathering::{GATHERED_MAX, GATHERED_MIN, Reserved};
use super::link::Link;
use super::message::Fields;
use super::pages::{Dispatch, Route};
use super::scope::Told;
use super::service::{self, HttpService};
use super::websocket::WebSocket;
use crate::buffers::Gathered;
use crate::cell::GilCell;
use crate::objects;
use crate::receiver::{Receipt, ReceiveInto};
use crate::support::CloneRefOption;
use crate::transport::SocketTransport;

/// How long a request whose client has ended its side may wait for its answer to be begun.
const GIVEN_UP_NS: u64 = 1_000_000_000;

/// The interface of the protocol that carries an exchange. The state is that of `connection`, which is always the object
/// that the exchange was made with.
pub(super) trait Protocol: Sync {
    /// Whether a connection carries several exchanges at a time.
    fn is_multiplexed(&self) -> bool;

    /// The connection's transport.
    fn link<'a>(&self, connection: &'a Bound<'_, PyAny>) -> PyResult<&'a Link>;

    /// Whether the client has to read before more is sent.
    fn is_full(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>) -> bool;

    /// Tells a client that waits for it that its body is wanted.
    fn ask_for_body(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>) -> PyResult<()>;

    /// A part of the body was received; the last one only counts where a connection carries several exchanges.
    fn on_body_taken(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        length: usize,
    ) -> PyResult<()>;

    /// Somebody waits for a message, or waits no longer.
    fn on_waits_changed(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Begins the head of a response, and keeps it until `send_head` or the first part of the body.
    fn begin_head(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        status: u16,
        fields: Option<&Fields<'_>>,
        service: &Bound<'_, HttpService>,
    ) -> Result<(), ResponseError>;

    /// Sends the head that was kept, whose body may take its time.
    fn send_head(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        has_trailers: bool,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()>;

    /// Sends a part of the body, behind the head if that was kept. Returns whether it was dropped, because the response must
    /// not have a body.
    fn send_body(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        part: &Part<'_, '_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<bool>;

    /// A part was sent that was not the last one, and nothing will follow now.
    fn flush(&self, connection: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Sends 103 (Early Hints) with these values of Link, to a client that may get it.
    fn send_hints(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        links: &[Bound<'_, PyBytes>],
    ) -> PyResult<()>;

    /// Whether the client gets the trailers of a response.
    fn takes_trailers(&self, connection: &Bound<'_, PyAny>) -> bool;

    /// Finishes a response with trailers.
    fn send_trailers(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        fields: &[(Vec<u8>, Vec<u8>)],
    ) -> PyResult<()>;

    /// Begins to send a file as the body: sends the head, and `content` if that is all of the file.
    fn begin_file(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        file: &FileStart<'_, '_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<FileBegun>;

    /// Sends bytes of a file.
    fn write_file(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        content: &Bound<'_, PyBytes>,
    ) -> PyResult<()>;

    /// The response is complete.
    fn on_complete(
        &self,
        exchange: &Bound<'_, Exchange>,
        connection: &Bound<'_, PyAny>,
    ) -> PyResult<()>;

    /// The response can't be completed.
    fn give_up(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Answers with an error; if a response has begun, it just ends. `scope` is that of a request that is logged.
    fn refuse(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        scope: Option<Py<PyDict>>,
        status: u16,
        text: &str,
    ) -> PyResult<()>;
}

/// The further interface for an exchange that has become a WebSocket.
pub(super) trait WebSocketProtocol: Sync {
    /// The handshake is answered with a response, after which the connection or the stream ends.
    fn deny(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>);

    /// Accepts the handshake.
    fn accept(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        handshake: &Handshake,
        subprotocol: Option<&str>,
        fields: &[(Vec<u8>, Vec<u8>)],
    ) -> PyResult<Result<(), AcceptError>>;

    /// The handshake was accepted, and that is logged.
    fn begin(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Writes a frame, and `payload` behind it.
    fn write(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        frame: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<()>;

    /// Reads on: the application has taken all messages.
    fn read_on(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Sends the close frame, and waits for the client's. 1005 stands for no code. Nothing happens if one was sent.
    fn close(
        &self,
        exchange: &Exchange,
        connection: &Bound<'_, PyAny>,
        code: u16,
        reason: &str,
    ) -> PyResult<Result<(), SendError>>;

    /// Ends the connection or the stream, whose handshake was answered in part only.
    fn end(&self, exchange: &Exchange, connection: &Bound<'_, PyAny>) -> PyResult<()>;
}

/// Who answers exchanges.
pub(super) trait Answerer: Sync {
    /// Makes the object of an exchange, of the answerer's own class.
    fn take<'py>(&self, exchange: Exchange, told: Told<'py>) -> PyResult<Bound<'py, Exchange>>;

    /// Whether a body is better received before the answer is begun, if it is there already.
    fn wants_whole_body(&self) -> bool {
        false
    }

    /// Whether a client that has ended its side still gets an answer to a request that is complete.
    fn answers_half_closed(&self) -> bool {
        false
    }

    /// Begins to answer.
    fn start(
        &self,
        service: &Bound<'_, HttpService>,
        exchange: &Bound<'_, Exchange>,
    ) -> PyResult<()>;
}

/// A part of a response's body.
pub(super) struct Part<'a, 'py> {
    pub(super) body: &'a Bound<'py, PyBytes>,
    pub(super) is_last: bool,
    /// The bytes that end a file that was sent before.
    pub(super) file_tail: &'static [u8],
    /// The head was kept for it.
    pub(super) has_head: bool,
    pub(super) has_trailers: bool,
}

/// A file that is to be the body of a response.
pub(super) struct FileStart<'a, 'py> {
    pub(super) size: usize,
    /// All of the file, if it was read already.
    pub(super) content: Option<&'a Bound<'py, PyBytes>>,
    /// The head was kept for it.
    pub(super) has_head: bool,
    pub(super) has_trailers: bool,
}

/// How a file has begun.
pub(super) struct FileBegun {
    /// How many bytes are left to send.
    pub(super) left: usize,
    /// The response must not have a body.
    pub(super) is_forbidden: bool,
}

/// A part of the body of a request, as it has come.
pub(super) enum Piece {
    First(Py<PyBytes>),
    Gathered(Box<Gathered>),
    Rest(Vec<u8>),
}

impl Piece {
    pub(super) fn as_bytes<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        match self {
            Self::First(first) => first.as_bytes(py),
            Self::Gathered(gathered) => gathered.bytes(),
            Self::Rest(rest) => rest,
        }
    }
}

/// The next step of who receives the body of a request.
pub(super) enum Body<P> {
    /// A part, and whether there may be another.
    Part(P, bool),
    /// The client is gone, or its response complete.
    Disconnected,
    Wait,
}

/// Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
struct State {
    service: Option<Py<HttpService>>,
    /// Until the response is complete, or the connection lost.
    connection: Option<Py<PyAny>>,
    /// The scope, where the access log needs what the application's callers may have changed in it.
    logged_scope: Option<Py<PyDict>>,
    /// The first part of the body that was not received yet, and what came after it.
    first: Option<Py<PyBytes>>,
    body: Vec<u8>,
    /// In place of the first part: one that is received as a whole. What comes after it is in `body`.
    gathered: Option<Box<Gathered>>,
    /// The memory that this takes before the body is asked for.
    reserved: Option<Reserved>,
    /// Bytes of the body that have not come, if the client has said how many.
    expected: u64,
    body_ended: bool,
    /// The application has taken a part that was received as a whole.
    has_read: bool,
    /// The last part was received.
    end_received: bool,
    /// Futures of those who wait for a message.
    receivers: Vec<Py<PyAny>>,
    /// Futures of those who wait for room to write.
    senders: Vec<Py<PyAny>>,
    /// The protocol keeps the head of the response until the first part of its body comes.
    has_head: bool,
    begun: Begun,
    /// Bytes of the response's body, where the access log wants to know. Those of a file count from its beginning.
    body_length: u64,
    /// The response's, once it is started.
    status: u16,
    /// Trailers were announced.
    trailers: Option<Box<Trailers>>,
    /// They were, and the client doesn't take them: they are dropped as they come.
    drops_trailers: bool,
    is_started: bool,
    /// A part of the body was given.
    has_body: bool,
    /// A body was dropped that the response must not have.
    has_dropped: bool,
    /// While a file is sent: what comes after it.
    file_tail: Option<&'static [u8]>,
    /// A file could not be sent to its end, and the connection or the stream ends.
    has_broken_file: bool,
    is_complete: bool,
    is_disconnected: bool,
    /// When the client ended its side, if it has and still gets an answer.
    ended_ns: Option<u64>,
}

impl State {
    /// Bytes of the body that were not received.
    fn arrived(&self, py: Python<'_>) -> usize {
        let first = self.first.as_ref();
        let first = first.map_or(0, |first| first.bind(py).as_bytes().len());
        let gathered = self.gathered.as_ref().map_or(0, |gathered| gathered.len());
        first + gathered + self.body.len()
    }

    /// Whether what is waited for of `gathered` is there.
    fn has_gathered(&self) -> bool {
        self.gathered.as_ref().is_some_and(|it| it.is_enough())
    }

    /// Whether the body will grow no more.
    fn has_all(&self) -> bool {
        self.body_ended || self.is_complete || self.is_disconnected
    }

    /// Receives the body as a whole from now on, up to `length` bytes.
    fn begin_gathering(&mut self, py: Python<'_>, length: usize) -> PyResult<()> {
        let mut gathered = Gathered::new(py, length)?;
        if let Some(first) = self.first.take() {
            gathered.push(first.bind(py).as_bytes());
        }
        gathered.push(&std::mem::take(&mut self.body));
        self.gathered = Some(Box::new(gathered));
        Ok(())
    }
}

/// An exchange for a WebSocket.
struct Upgrade {
    websocket: WebSocket,
    protocol: &'static dyn WebSocketProtocol,
}

#[pyclass(
    module = "ringloop._core",
    name = "_HttpExchange",
    frozen,
    weakref,
    subclass
)]
pub(super) struct Exchange {
    protocol: &'static dyn Protocol,
    /// The number that its connection knows it by.
    number: u32,
    route: Route,
    state: GilCell<State>,
    upgrade: Option<Box<Upgrade>>,
}

impl Exchange {
    #[allow(
        clippy::too_many_arguments,
        reason = "each is what only a connection knows"
    )]
    pub(super) fn new(
        service: &Bound<'_, HttpService>,
        connection: &Bound<'_, PyAny>,
        protocol: &'static dyn Protocol,
        number: u32,
        scope: &Bound<'_, PyDict>,
        dispatch: Dispatch,
        begun: Begun,
        body_ended: bool,
        websocket: Option<(Handshake, &'static dyn WebSocketProtocol)>,
    ) -> Self {
        let is_logged = (service.get().logs_access() && dispatch.is_logged) || websocket.is_some();
        let state = State {
            service: Some(service.clone().unbind()),
            connection: Some(connection.clone().unbind()),
            logged_scope: is_logged.then(|| scope.clone().unbind()),
            first: None,
            body: Vec::new(),
            gathered: None,
            reserved: None,
            expected: 0,
            body_ended,
            has_read: false,
            end_received: false,
            receivers: Vec::new(),
            senders: Vec::new(),
            has_head: false,
            begun,
            body_length: 0,
            status: 0,
            trailers: None,
            drops_trailers: false,
            is_started: false,
            has_body: false,
            has_dropped: false,
            file_tail: None,
            has_broken_file: false,
            is_complete: false,
            is_disconnected: false,
            ended_ns: None,
        };
        let upgrade = websocket.map(|(handshake, protocol)| {
            let websocket = WebSocket::new(handshake);
            Box::new(Upgrade {
                websocket,
                protocol,
            })
        });
        Self {
            protocol,
            number,
            route: dispatch.route,
            state: GilCell::new(state),
            upgrade,
        }
    }

    /// The client has said how many bytes of the body will come.
    pub(super) fn expect(&self, py: Python<'_>, count: u64) {
        self.state.get_mut(py).expected = count;
    }

    /// The number that its connection knows it by.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Who answers it.
    pub(super) fn route(&self) -> Route {
        self.route
    }

    /// Whether it has a stream of HTTP/2, and not all of a connection.
    pub(super) fn has_stream(&self) -> bool {
        self.protocol.is_multiplexed()
    }

    pub(super) fn websocket(&self) -> Option<&WebSocket> {
        self.upgrade.as_deref().map(|it| &it.websocket)
    }

    /// The WebSocket, and who writes for it.
    pub(super) fn upgrade(
        &self,
        py: Python<'_>,
    ) -> PyResult<(&WebSocket, &'static dyn WebSocketProtocol)> {
        let upgrade = self.upgrade.as_deref();
        let parts = upgrade.map(|it| (&it.websocket, it.protocol));
        let text = "the request is not for a WebSocket";
        parts.ok_or_else(|| objects::error::<PyRuntimeError>(py, text))
    }

    pub(super) fn connection<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let state = self.state.get(py);
        state.connection.as_ref().map(|it| it.bind(py).clone())
    }

    pub(super) fn service<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, HttpService>> {
        let service = {
            let state = self.state.get(py);
            state.service.as_ref().map(|it| it.bind(py).clone())
        };
        service.ok_or_else(|| objects::error::<PyRuntimeError>(py, "the request is gone"))
    }

    /// Whether another thread runs the loop that this belongs to.
    pub(super) fn is_elsewhere(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        let service = state.service.as_ref();
        service.is_some_and(|it| it.get().is_elsewhere(py))
    }

    /// The scope for the access log, once.
    pub(super) fn take_logged_scope(&self, py: Python<'_>) -> Option<Py<PyDict>> {
        self.state.get_mut(py).logged_scope.take()
    }

    pub(super) fn return_logged_scope(&self, py: Python<'_>, scope: Option<Py<PyDict>>) {
        self.state.get_mut(py).logged_scope = scope;
    }

    /// Logs how a handshake was answered, once.
    pub(super) fn log_handshake(&self, py: Python<'_>, outcome: &str) -> PyResult<()> {
        let Some(scope) = self.take_logged_scope(py) else {
            return Ok(());
        };
        let outcome = objects::string(py, outcome)?;
        let argument = objects::tuple(py, [scope.into_bound(py).into_any(), outcome.into_any()])?;
        let service = self.service(py)?;
        service.get().report(py, "log_websocket", &argument)
    }

    pub(super) fn begun(&self, py: Python<'_>) -> Begun {
        self.state.get(py).begun
    }

    /// Whether somebody waits for more of the body.
    pub(super) fn wants_body(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        !state.body_ended && !state.is_complete && !state.receivers.is_empty()
    }

    /// Whether somebody waits for the client to leave.
    pub(super) fn awaits_end(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.body_ended && !state.is_complete && !state.receivers.is_empty()
    }

    /// Bytes of the body that were not received.
    pub(super) fn unread(&self, py: Python<'_>) -> usize {
        self.state.get(py).arrived(py)
    }

    // -- What the connection tells -----------------------------------------------------------------------------------

    /// Takes a part of the body.
    pub(super) fn push_body(&self, py: Python<'_>, mut part: &[u8], end: bool) -> PyResult<()> {
        let is_first = {
            let state = self.state.get(py);
            state.first.is_none() && state.body.is_empty() && state.gathered.is_none()
        };
        let object = (is_first && !part.is_empty())
            .then(|| objects::bytes(py, part))
            .transpose()?;
        {
            let mut state = self.state.get_mut(py);
            state.expected = state.expected.saturating_sub(part.len() as u64);
            state.body_ended |= end;
            // A thread may have begun it since the look above.
            if let Some(gathered) = &mut state.gathered {
                part = gathered.push(part);
            }
            match object {
                Some(object) if state.gathered.is_none() => state.first = Some(object.unbind()),
                _ => state.body.extend_from_slice(part),
            }
            let is_awaited = state.gathered.is_some() && !state.has_gathered();
            if is_awaited && !state.has_all() {
                return Ok(());
            }
        }
        self.wake_receivers(py)
    }

    /// Receives the next part of the body, if that is received as a whole.
    pub(super) fn gather(&self, py: Python<'_>, receive_into: ReceiveInto<'_>) -> Option<Receipt> {
        let mut state = self.state.get_mut(py);
        if state.has_all() {
            return None;
        }
        let gathered = state.gathered.as_mut().filter(|it| it.room() > 0)?;
        let room = gathered.room();
        let received = receive_into(gathered);
        if let Ok(count) = &received {
            // In this borrow: what a thread gathers next has room for just the rest of the body.
            state.expected = state.expected.saturating_sub(*count as u64);
        }
        Some((received, room))
    }

    /// `gather` has received something, the last bytes if `end`.
    pub(super) fn on_gathered(&self, py: Python<'_>, end: bool) -> PyResult<()> {
        {
            let mut state = self.state.get_mut(py);
            state.body_ended |= end;
            if !state.has_gathered() && !state.has_all() {
                return Ok(());
            }
        }
        self.wake_receivers(py)
    }

    /// Receives the body as a whole before the answerer is started, if there is memory for it.
    pub(super) fn gather_ahead(&self, py: Python<'_>) -> bool {
        let Ok(service) = self.service(py) else {
            return false;
        };
        let mut state = self.state.get_mut(py);
        let Some(length) = usize::try_from(state.expected)
            .ok()
            .and_then(|expected| expected.checked_add(state.arrived(py)))
            .filter(|length| (GATHERED_MIN..=GATHERED_MAX).contains(length))
        else {
            return false;
        };
        let Some(reserved) = service.get().gathering().reserve(length) else {
            return false;
        };
        // Without memory the answerer takes the parts as they come.
        if state.begin_gathering(py, length).is_err() {
            return false;
        }
        state.reserved = Some(reserved);
        true
    }

    /// The exchange is over, or nearly: a body that nobody has asked for does not count any more. Returns whether there was
    /// one.
    pub(super) fn release_reserved(&self, py: Python<'_>) -> bool {
        self.state.get_mut(py).reserved.take().is_some()
    }

    /// Nobody will read the body.
    pub(super) fn forget_body(&self, py: Python<'_>) {
        let forgotten = {
            let mut state = self.state.get_mut(py);
            (state.gathered.take(), state.reserved.take())
        };
        drop(forgotten);
    }

    /// Whether all of the body is there.
    pub(super) fn has_whole_body(&self, py: Python<'_>) -> bool {
        self.state.get(py).has_all()
    }

    /// The client has ended its side, and still gets an answer.
    pub(super) fn note_client_has_ended(&self, py: Python<'_>) {
        self.state.get_mut(py).ended_ns = Some(clock::now_ns());
    }

    /// Whether an answer that is only begun now would come too late: the client ended its side long ago, and is more likely
    /// to have given up than to wait for an answer.
    pub(super) fn is_given_up(&self, py: Python<'_>) -> bool {
        let ended_ns = self.state.get(py).ended_ns;
        ended_ns.is_some_and(|ended_ns| ended_ns + GIVEN_UP_NS < clock::now_ns())
    }

    /// The connection is gone, or its server asks the application to end.
    pub(super) fn disconnect(&self, py: Python<'_>, is_lost: bool) -> PyResult<()> {
        let dropped = {
            let mut state = self.state.get_mut(py);
            state.is_disconnected = true;
            state.has_head &= !is_lost;
            is_lost.then(|| state.connection.take())
        };
        drop(dropped);
        if let Some(websocket) = self.websocket() {
            websocket.disconnect(py, is_lost);
            let slot = if is_lost {
                websocket.take_slot(py)
            } else {
                None
            };
            if let Some(slot) = slot {
                self.service(py)?.get().leave_stream(py, slot)?;
            }
        }
        self.wake_receivers(py)?;
        self.wake_senders(py)
    }

    pub(super) fn wake_receivers(&self, py: Python<'_>) -> PyResult<()> {
        let waiting = std::mem::take(&mut self.state.get_mut(py).receivers);
        service::wake(py, waiting)
    }

    pub(super) fn wake_senders(&self, py: Python<'_>) -> PyResult<()> {
        let waiting = std::mem::take(&mut self.state.get_mut(py).senders);
        service::wake(py, waiting)
    }

    // -- What the answerer asks for ----------------------------------------------------------------------------------

    /// Tells a client that waits for it that its body is wanted.
    pub(super) fn ask_for_body(&self, py: Python<'_>) -> PyResult<()> {
        match self.connection(py) {
            Some(connection) => self.protocol.ask_for_body(self, &connection),
            None => Ok(()),
        }
    }

    /// Receives a part of the body, if there is one.
    pub(super) fn take_body<'py>(&self, py: Python<'py>) -> PyResult<Body<Bound<'py, PyBytes>>> {
        let body = self.take_arrived(py)?;
        if let Body::Part(part, more) = &body
            && (*more || self.protocol.is_multiplexed())
        {
            self.release(py, part.as_bytes().len())?;
        }
        Ok(body)
    }

    /// Has the client send more, after `length` bytes of the body were taken.
    pub(super) fn release(&self, py: Python<'_>, length: usize) -> PyResult<()> {
        match self.connection(py) {
            Some(connection) => self.protocol.on_body_taken(self, &connection, length),
            None => Ok(()),
        }
    }

    /// Whether to wait before the body is taken, so that `count` bytes of it come as one part, or all that fit into one. In
    /// any thread.
    pub(super) fn must_gather(&self, py: Python<'_>, count: usize) -> bool {
        let mut state = self.state.get_mut(py);
        let arrived = state.arrived(py);
        let expected = usize::try_from(state.expected).unwrap_or(usize::MAX);
        let wanted = (arrived.saturating_add(expected))
            .min(count)
            .min(GATHERED_MAX);
        if state.has_all() || wanted <= arrived {
            return false;
        }
        let is_enough = match &state.gathered {
            Some(gathered) => gathered.room() == 0,
            None if wanted < GATHERED_MIN => true,
            // Without memory the parts are taken as they come.
            None => state.begin_gathering(py, wanted).is_err(),
        };
        if !is_enough && let Some(gathered) = &mut state.gathered {
            gathered.want(wanted);
            state.reserved = None; // It is asked for.
        }
        !is_enough
    }

    fn take_arrived<'py>(&self, py: Python<'py>) -> PyResult<Body<Bound<'py, PyBytes>>> {
        Ok(match self.take_piece(py) {
            Body::Part(piece, more) => Body::Part(self.finish_piece(py, piece)?, more),
            Body::Disconnected => Body::Disconnected,
            Body::Wait => Body::Wait,
        })
    }

    /// As `take_body`, in any thread: the connection hears of it by `release`. Runs no Python code.
    pub(super) fn take_piece(&self, py: Python<'_>) -> Body<Piece> {
        let mut state = self.state.get_mut(py);
        if state.is_complete {
            return Body::Disconnected;
        }
        let has_gathered = state.gathered.as_ref().is_some_and(|it| it.len() > 0);
        let gathered = state.gathered.take_if(|_| has_gathered);
        let (piece, more) = if let Some(gathered) = gathered {
            state.reserved = None;
            let more = !state.body_ended || !state.body.is_empty();
            (Piece::Gathered(gathered), more)
        } else if let Some(first) = state.first.take() {
            let more = !state.body_ended || !state.body.is_empty();
            (Piece::First(first), more)
        } else if !state.body.is_empty() || (state.body_ended && !state.end_received) {
            let more = !state.body_ended;
            (Piece::Rest(std::mem::take(&mut state.body)), more)
        } else if state.is_disconnected {
            return Body::Disconnected;
        } else {
            return Body::Wait;
        };
        state.end_received = !more;
        Body::Part(piece, more)
    }

    /// The object of a part that was taken.
    pub(super) fn finish_piece<'py>(
        &self,
        py: Python<'py>,
        piece: Piece,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.note_piece(py, &piece);
        match piece {
            Piece::First(first) => Ok(first.into_bound(py)),
            Piece::Gathered(gathered) => gathered.finish(py),
            Piece::Rest(rest) => objects::bytes(py, &rest),
        }
    }

    /// Notes once for a request that its body is read.
    pub(super) fn note_piece(&self, py: Python<'_>, piece: &Piece) {
        if !matches!(piece, Piece::Gathered(_))
            || std::mem::replace(&mut self.state.get_mut(py).has_read, true)
        {
            return;
        }
        if let Ok(service) = self.service(py) {
            service.get().gathering().count_read();
        }
    }

    /// A future that is done when there is a message to receive. The connection reads on for it.
    pub(super) fn wait_to_receive<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.service(py)?.get().create_future(py)?;
        self.add_receiver(&future)?;
        Ok(future)
    }

    /// Has a future, or what acts like one, done when there is a message to receive. The connection reads on for it.
    pub(super) fn add_receiver(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = future.py();
        self.state
            .get_mut(py)
            .receivers
            .push(future.clone().unbind());
        match self.connection(py) {
            Some(connection) => self.protocol.on_waits_changed(self, &connection),
            None => Ok(()),
        }
    }

    /// Whether `take_body` would not have to wait.
    pub(super) fn has_message(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.is_complete
            || state.is_disconnected
            || state.first.is_some()
            || state.has_gathered()
            || !state.body.is_empty()
            || state.body_ended
    }

    /// A future that is done when the client has read enough to make room for a write.
    pub(super) fn wait_for_room<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.service(py)?.get().create_future(py)?;
        self.add_sender(&future);
        Ok(future)
    }

    /// Has a future, or what acts like one, done when there is room for a write.
    pub(super) fn add_sender(&self, future: &Bound<'_, PyAny>) {
        let waiting = future.clone().unbind();
        self.state.get_mut(future.py()).senders.push(waiting);
    }

    /// Forgets a future whose wait was given up. A deadline for the body lasts as long as somebody waits for it.
    pub(super) fn forget(
        &self,
        py: Python<'_>,
        sends: bool,
        future: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (forgotten, connection) = {
            let mut state = self.state.get_mut(py);
            let waiting = if sends {
                &mut state.senders
            } else {
                &mut state.receivers
            };
            let found = waiting.iter().position(|it| it.is(future));
            let forgotten = found.map(|at| waiting.remove(at));
            (forgotten, state.connection.clone_ref_opt(py))
        };
        match connection {
            // Another thread leaves the connection alone: a deadline that goes on finds nobody who waits.
            Some(_) if cfg!(Py_GIL_DISABLED) && self.is_elsewhere(py) => Ok(()),
            Some(connection) if !sends && forgotten.is_some() => {
                self.protocol.on_waits_changed(self, connection.bind(py))
            }
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl Exchange {
    /// Sends a head that was given while the answerer did not run, if nothing has come after it meanwhile.
    fn _flush(&self, py: Python<'_>) -> PyResult<()> {
        self.flush_head(py)
    }

    /// The transport that can send files by sendfile(2), if it is one.
    fn _socket<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, SocketTransport>>> {
        Ok(self.protocol.link(&self.open_connection(py)?)?.socket(py))
    }

    /// Begins to send a file as the body: sends the head, and `content` if that is all of the file. Returns how many of
    /// `size` bytes are left to send.
    #[pyo3(signature = (size, content))]
    fn _begin_file(
        &self,
        py: Python<'_>,
        size: usize,
        content: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<objects::New<usize>> {
        self.begin_file(py, size, content).map(objects::New)
    }

    /// Has the kernel send bytes of a file; see `SocketTransport._start_sendfile`.
    fn _start_file(
        &self,
        py: Python<'_>,
        file: std::os::fd::RawFd,
        offset: u64,
        count: usize,
    ) -> PyResult<Option<Py<PyAny>>> {
        let connection = self.open_connection(py)?;
        let link = self.protocol.link(&connection)?;
        link.start_file(py, file, offset, count)
    }

    /// Whether the response goes out on a stream of HTTP/2.
    #[getter]
    fn _has_stream(&self) -> bool {
        self.has_stream()
    }

    /// Sends bytes of a file.
    fn _write_file(&self, py: Python<'_>, content: &Bound<'_, PyBytes>) -> PyResult<()> {
        let connection = self.open_connection(py)?;
        self.protocol.write_file(self, &connection, content)
    }

    /// A future to wait for before more is written, if the client has yet to read what was.
    fn _room<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_full = self.is_full(&self.open_connection(py)?);
        is_full.then(|| self.wait_for_room(py)).transpose()
    }

    /// All of the file was sent.
    fn _end_file(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::end_file(slf)
    }

    /// The rest of the file can't be sent: the connection or the stream ends.
    fn _give_up_file(&self, py: Python<'_>) -> PyResult<()> {
        {
            let mut state = self.state.get_mut(py);
            state.file_tail = None;
            state.has_broken_file = true;
        }
        self.give_up(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.service)?;
        visit.call(&state.connection)?;
        visit.call(&state.logged_scope)?;
        for future in state.receivers.iter().chain(&state.senders) {
            visit.call(future)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        let dropped = {
            let mut state = self.state.get_mut(py);
            (
                state.connection.take(),
                state.logged_scope.take(),
                std::mem::take(&mut state.receivers),
                std::mem::take(&mut state.senders),
            )
        };
        drop(dropped);
    }
}
