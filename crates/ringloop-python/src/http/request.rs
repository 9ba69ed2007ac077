//! A request: the application's coroutine, and the messages between it and the connection.
//!
//! The object is the coroutine of the request's task. It calls the application in the task's first step, passes every step
//! on to the application's own coroutine, and sees how that ends.

mod response;

use std::os::fd::RawFd;

use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

pub(super) use self::response::Sending;
use self::response::{Pending, Trailers};
use super::awaitable;
use super::calls;
use super::connection::Connection;
use super::counters::Begun;
use super::h2::Stream;
use super::service::{self, HttpService};
use super::websocket::WebSocket;
use super::websocket_messages;
use crate::coroutine::{self, Step};
use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{CloneRefOption, GilCell};
use crate::transport::SocketTransport;

/// The application's side.
enum Application {
    /// It was not called; with the scope that it will be called with.
    Waiting(Py<PyDict>),
    /// Its coroutine waits.
    Suspended,
    /// A step is under way.
    Running,
    Over,
}

/// Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
struct State {
    service: Option<Py<HttpService>>,
    /// Until the response is complete, or the connection lost.
    connection: Option<Py<Connection>>,
    application: Application,
    /// The application's coroutine, from its call to its end.
    coroutine: Option<Py<PyAny>>,
    /// While it is not over, and was not after its first step.
    task: Option<Py<PyAny>>,
    /// The scope, where the access log needs what the application's callers may have changed in it.
    logged_scope: Option<Py<PyDict>>,
    /// The number that the service knows it by while its task waits.
    slot: Option<usize>,
    /// The first part of the body that was not received yet, and what came after it.
    first: Option<Py<PyBytes>>,
    body: Vec<u8>,
    body_ended: bool,
    /// The application has received the last part.
    end_received: bool,
    /// Futures of those who wait for a message.
    receivers: Vec<Py<PyAny>>,
    /// Futures of those who wait for room to write.
    senders: Vec<Py<PyAny>>,
    /// Messages that were sent since the application last waited for something.
    sent: u32,
    pending: Option<Pending>,
    begun: Begun,
    /// The response's, once it is started.
    status: u16,
    /// The application has announced trailers, on HTTP/2.
    trailers: Option<Box<Trailers>>,
    is_started: bool,
    /// A part of the body was given.
    has_body: bool,
    /// A body was dropped that the response must not have.
    has_dropped: bool,
    /// While a file is sent: what comes after it.
    file_tail: Option<&'static [u8]>,
    is_complete: bool,
    is_disconnected: bool,
}

#[pyclass(module = "ringloop._core", name = "HttpRequest", frozen, weakref)]
pub(super) struct Request {
    /// The stream of an HTTP/2 connection.
    stream: Option<Stream>,
    state: GilCell<State>,
    /// The further state of a request for a WebSocket.
    websocket: Option<Box<WebSocket>>,
}

impl Request {
    pub(super) fn new<'py>(
        service: &Bound<'py, HttpService>,
        connection: &Bound<'py, Connection>,
        stream: Option<Stream>,
        scope: Bound<'py, PyDict>,
        begun: Begun,
        body_ended: bool,
        websocket: Option<WebSocket>,
    ) -> PyResult<Bound<'py, Self>> {
        let is_logged = service.get().logs_access() || websocket.is_some();
        let logged_scope = is_logged.then(|| scope.clone().unbind());
        let websocket = websocket.map(Box::new);
        let state = State {
            service: Some(service.clone().unbind()),
            connection: Some(connection.clone().unbind()),
            application: Application::Waiting(scope.unbind()),
            coroutine: None,
            task: None,
            logged_scope,
            slot: None,
            first: None,
            body: Vec::new(),
            body_ended,
            end_received: false,
            receivers: Vec::new(),
            senders: Vec::new(),
            sent: 0,
            pending: None,
            begun,
            status: 0,
            trailers: None,
            is_started: false,
            has_body: false,
            has_dropped: false,
            file_tail: None,
            is_complete: false,
            is_disconnected: false,
        };
        let state = GilCell::new(state);
        Bound::new(
            service.py(),
            Self {
                stream,
                state,
                websocket,
            },
        )
    }

    /// Remembers the task of a request that waits.
    pub(super) fn set_task(&self, task: &Bound<'_, PyAny>, slot: usize) {
        let mut state = self.state.get_mut(task.py());
        state.task = Some(task.clone().unbind());
        state.slot = Some(slot);
    }

    pub(super) fn stream(&self) -> Option<Stream> {
        self.stream
    }

    pub(super) fn task(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).task.clone_ref_opt(py)
    }

    /// The scope for the access log, once.
    pub(super) fn take_logged_scope(&self, py: Python<'_>) -> Option<Py<PyDict>> {
        self.state.get_mut(py).logged_scope.take()
    }

    pub(super) fn begun(&self, py: Python<'_>) -> Begun {
        self.state.get(py).begun
    }

    pub(super) fn return_logged_scope(&self, py: Python<'_>, scope: Option<Py<PyDict>>) {
        self.state.get_mut(py).logged_scope = scope;
    }

    pub(super) fn websocket(&self) -> Option<&WebSocket> {
        self.websocket.as_deref()
    }

    /// Whether the response has been given.
    pub(super) fn is_complete(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_complete
    }

    pub(super) fn is_over(&self, py: Python<'_>) -> bool {
        matches!(self.state.get(py).application, Application::Over)
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

    /// Bytes of the body that the application has not received.
    pub(super) fn unread(&self, py: Python<'_>) -> usize {
        let state = self.state.get(py);
        let first = state.first.as_ref();
        first.map_or(0, |first| first.bind(py).as_bytes().len()) + state.body.len()
    }

    /// Takes a part of the body.
    pub(super) fn push_body(&self, py: Python<'_>, part: &[u8], end: bool) -> PyResult<()> {
        let is_first = {
            let state = self.state.get(py);
            state.first.is_none() && state.body.is_empty()
        };
        let object = (is_first && !part.is_empty())
            .then(|| objects::bytes(py, part))
            .transpose()?;
        {
            let mut state = self.state.get_mut(py);
            state.body_ended |= end;
            match object {
                Some(object) => state.first = Some(object.unbind()),
                None => state.body.extend_from_slice(part),
            }
        }
        self.wake_receivers(py)
    }

    /// The connection is gone, or its server asks the application to end.
    pub(super) fn disconnect(&self, py: Python<'_>, is_lost: bool) -> PyResult<()> {
        let dropped = {
            let mut state = self.state.get_mut(py);
            state.is_disconnected = true;
            is_lost.then(|| (state.connection.take(), state.pending.take()))
        };
        drop(dropped);
        if let Some(websocket) = &self.websocket {
            websocket.disconnect(py, is_lost);
        }
        self.wake_receivers(py)?;
        self.wake_senders(py)
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
            Some(connection) if !sends && forgotten.is_some() => {
                self.on_waits_changed(connection.bind(py))
            }
            _ => Ok(()),
        }
    }

    fn on_waits_changed(&self, connection: &Bound<'_, Connection>) -> PyResult<()> {
        match self.stream {
            None => Connection::on_waits_changed(connection),
            Some(stream) => {
                let wants_body = self.wants_body(connection.py());
                Connection::on_waits_changed_on(connection, stream, wants_body)
            }
        }
    }

    pub(super) fn wake_receivers(&self, py: Python<'_>) -> PyResult<()> {
        let waiting = std::mem::take(&mut self.state.get_mut(py).receivers);
        service::wake(py, waiting)
    }

    pub(super) fn wake_senders(&self, py: Python<'_>) -> PyResult<()> {
        let waiting = std::mem::take(&mut self.state.get_mut(py).senders);
        service::wake(py, waiting)
    }

    pub(super) fn connection<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Connection>> {
        let state = self.state.get(py);
        state.connection.as_ref().map(|it| it.bind(py).clone())
    }

    pub(super) fn service<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, HttpService>> {
        let state = self.state.get(py);
        let service = state.service.as_ref().map(|it| it.bind(py).clone());
        service.ok_or_else(|| objects::error::<PyRuntimeError>(py, "the request is gone"))
    }

    /// A step of `receive()`.
    pub(super) fn receive<'py>(slf: &Bound<'py, Self>) -> PyResult<Step<'py>> {
        let py = slf.py();
        let this = slf.get();
        if this.websocket.is_some() {
            return websocket_messages::receive(slf);
        }
        if let Some(connection) = this.connection(py) {
            match this.stream {
                None => Connection::ask_for_body(&connection)?,
                Some(stream) => Connection::ask_for_body_on(&connection, stream)?,
            }
        }
        enum Next {
            Body(Option<Py<PyBytes>>, Vec<u8>, bool),
            Disconnect,
            Wait,
        }
        let next = {
            let mut state = this.state.get_mut(py);
            if state.is_complete {
                Next::Disconnect
            } else if let Some(first) = state.first.take() {
                let more = !state.body_ended || !state.body.is_empty();
                state.end_received = !more;
                Next::Body(Some(first), Vec::new(), more)
            } else if !state.body.is_empty() || (state.body_ended && !state.end_received) {
                let more = !state.body_ended;
                state.end_received = !more;
                Next::Body(None, std::mem::take(&mut state.body), more)
            } else if state.is_disconnected {
                Next::Disconnect
            } else {
                Next::Wait
            }
        };
        match next {
            Next::Body(first, rest, more) => {
                let body = match first {
                    Some(first) => first.into_bound(py),
                    None => objects::bytes(py, &rest)?,
                };
                if (more || this.stream.is_some())
                    && let Some(connection) = this.connection(py)
                {
                    match this.stream {
                        None => Connection::on_body_taken(&connection)?,
                        Some(stream) => {
                            let length = body.as_bytes().len();
                            Connection::on_body_taken_from(&connection, stream, length)?;
                        }
                    }
                }
                let message = objects::dict(py)?;
                message.set_item(intern!(py, "type"), intern!(py, "http.request"))?;
                message.set_item(intern!(py, "body"), body)?;
                message.set_item(intern!(py, "more_body"), more)?;
                Ok(Step::Return(message.into_any()))
            }
            Next::Disconnect => {
                let message = objects::dict(py)?;
                message.set_item(intern!(py, "type"), intern!(py, "http.disconnect"))?;
                Ok(Step::Return(message.into_any()))
            }
            Next::Wait => this.wait_to_receive(py).map(Step::Yield),
        }
    }

    /// A future that is done when there is a message to receive. The connection reads on for it.
    pub(super) fn wait_to_receive<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.service(py)?.get().create_future(py)?;
        let waiting = future.clone().unbind();
        self.state.get_mut(py).receivers.push(waiting);
        if let Some(connection) = self.connection(py) {
            self.on_waits_changed(&connection)?;
        }
        Ok(future)
    }

    /// Takes a step of the application: calls it, resumes it, or throws into it.
    fn step<'py>(
        slf: &Bound<'py, Self>,
        throw: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = slf.py();
        let this = slf.get();
        let application = {
            let mut state = this.state.get_mut(py);
            state.sent = 0;
            std::mem::replace(&mut state.application, Application::Running)
        };
        let result = match application {
            Application::Waiting(scope) => match throw {
                None => Self::call_application(slf, scope.into_bound(py)),
                // Cancelled before its first step.
                Some(arguments) => Err(calls::thrown(arguments)),
            },
            Application::Suspended => this.resume(py, throw),
            Application::Running => {
                return Err(coroutine::executing(py));
            }
            Application::Over => {
                this.state.get_mut(py).application = Application::Over;
                return Err(coroutine::over(py));
            }
        };
        let outcome = match result {
            Ok(Step::Yield(future)) => match Self::flush_head(slf) {
                Ok(()) => return Ok(Some(future)),
                Err(error) => Err(error),
            },
            Ok(Step::Return(value)) => Ok(value),
            Err(error) => Err(error),
        };
        this.forget_application(py);
        Self::finish(slf, outcome)?;
        Ok(None)
    }

    fn forget_application(&self, py: Python<'_>) {
        let dropped = {
            let mut state = self.state.get_mut(py);
            (
                std::mem::replace(&mut state.application, Application::Over),
                state.coroutine.take(),
                state.task.take(),
            )
        };
        drop(dropped);
    }

    /// The first step.
    fn call_application<'py>(
        slf: &Bound<'py, Self>,
        scope: Bound<'py, PyDict>,
    ) -> PyResult<Step<'py>> {
        let this = slf.get();
        let py = slf.py();
        let (receive, send) = awaitable::channels(slf)?;
        let application = this.service(py)?.get().application(py)?;
        let arguments = [scope.as_ptr(), receive.as_ptr(), send.as_ptr()];
        let given = calls::call(&application, &arguments, None)?;
        drop((scope, receive, send));
        let coroutine = calls::coroutine_of(given)?;
        this.state.get_mut(py).coroutine = Some(coroutine.unbind());
        this.resume(py, None)
    }

    fn resume<'py>(
        &self,
        py: Python<'py>,
        throw: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Step<'py>> {
        let coroutine = self.state.get(py).coroutine.clone_ref_opt(py);
        let Some(coroutine) = coroutine else {
            return Ok(Step::Return(py.None().into_bound(py)));
        };
        let coroutine = coroutine.bind(py);
        let result = match throw {
            None => coroutine::resume(coroutine),
            Some(arguments) => coroutine::throw_into(coroutine, arguments),
        };
        if let Ok(Step::Yield(_)) = &result {
            self.state.get_mut(py).application = Application::Suspended;
        }
        result
    }

    /// The application has ended: as uvicorn, says what was wrong, and gives the client an end. Whatever fails, the rest
    /// is done all the same.
    fn finish(slf: &Bound<'_, Self>, outcome: PyResult<Bound<'_, PyAny>>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let service = this.service(py)?;
        let (slot, is_started, is_complete, is_disconnected, begun, status) = {
            let mut state = this.state.get_mut(py);
            (
                state.slot.take(),
                state.is_started,
                state.is_complete,
                state.is_disconnected,
                state.begun,
                state.status,
            )
        };
        if is_started && !is_complete {
            service.get().count_response(py, Some(begun), status);
        }
        let counted = service.get().on_request_over(py, slot);
        if this.websocket.is_some() {
            return counted.and(websocket_messages::finish(slf, outcome));
        }
        let scope = this.take_logged_scope(py);
        let connection = this.connection(py);
        // What to log, and whether the connection just ends.
        let (report, argument, is_closing) = match outcome {
            Err(error) => {
                // With its traceback, which `value` leaves out up to Python 3.11.
                let error = error.into_value(py).into_bound(py).into_any();
                (Some("report_exception"), error, is_started)
            }
            Ok(value) if !value.is_none() => (Some("report_result"), value, true),
            Ok(_) if is_complete => return counted,
            // Its client is gone, or the server has ended the connection.
            Ok(value) if is_disconnected => (None, value, true),
            Ok(value) if is_started => (Some("report_incomplete"), value, true),
            Ok(value) => (Some("report_no_response"), value, false),
        };
        let ended = match connection {
            None => Ok(()),
            Some(connection) if is_closing => {
                let flushed = Self::flush_head(slf);
                flushed.and(match this.stream {
                    None => Connection::linger(&connection),
                    Some(stream) => Connection::reset_stream(&connection, stream),
                })
            }
            Some(connection) => {
                let text = "Internal Server Error";
                match this.stream {
                    None => Connection::refuse_request(&connection, scope, 500, text),
                    Some(stream) => {
                        Connection::refuse_stream(&connection, stream, scope, 500, text)
                    }
                }
            }
        };
        let reported = match report {
            Some(report) => service.get().report(py, report, &argument),
            None => Ok(()),
        };
        counted.and(ended).and(reported)
    }
}

#[pymethods]
impl Request {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::step(slf, None)
    }

    /// Starts or resumes the application.
    #[pyo3(name = "send")]
    fn method_send<'py>(
        slf: &Bound<'py, Self>,
        _value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        or_stop(slf.py(), Self::step(slf, None)?)
    }

    /// Raises an exception where the application waits.
    #[pyo3(signature = (*arguments))]
    fn throw<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if arguments.is_empty() {
            return Err(objects::error::<PyTypeError>(
                slf.py(),
                "throw expected at least 1 argument, got 0",
            ));
        }
        or_stop(slf.py(), Self::step(slf, Some(arguments))?)
    }

    /// Ends the application where it waits.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let application = {
            let mut state = this.state.get_mut(py);
            if let Application::Running = state.application {
                return Err(coroutine::executing(py));
            }
            std::mem::replace(&mut state.application, Application::Over)
        };
        drop(application);
        let coroutine = this.state.get_mut(py).coroutine.take();
        let closed = match coroutine {
            Some(coroutine) => coroutine.call_method0(py, intern!(py, "close")).map(drop),
            None => Ok(()),
        };
        let slot = this.state.get_mut(py).slot.take();
        let counted = match (slot, this.service(py)) {
            (Some(_), Ok(service)) => service.get().on_request_over(py, slot),
            _ => Ok(()),
        };
        closed.and(counted)
    }

    /// Sends a head that another task has given, if nothing has come after it meanwhile.
    fn _flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::flush_head(slf)
    }

    /// The transport that can send files by sendfile(2), if it is one.
    fn _socket<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, SocketTransport>>> {
        Ok(self.open_connection(py)?.get().socket(py))
    }

    /// Begins to send a file as the body: sends the head, and `content` if that is all of the file. Returns how many of
    /// `size` bytes are left to send.
    #[pyo3(signature = (size, content))]
    fn _begin_file(
        slf: &Bound<'_, Self>,
        size: usize,
        content: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<New<usize>> {
        Self::begin_file(slf, size, content).map(New)
    }

    /// Has the kernel send bytes of a file; see `SocketTransport._start_sendfile`.
    fn _start_file(
        &self,
        py: Python<'_>,
        file: RawFd,
        count: usize,
    ) -> PyResult<Option<Py<PyAny>>> {
        Connection::start_file(&self.open_connection(py)?, file, count)
    }

    /// Whether the response goes out on a stream of HTTP/2.
    #[getter]
    fn _has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Sends bytes of a file.
    fn _write_file(&self, py: Python<'_>, content: &Bound<'_, PyBytes>) -> PyResult<()> {
        let connection = self.open_connection(py)?;
        match self.stream {
            None => Connection::write(&connection, b"", Some(content), b""),
            Some(stream) => Self::write_on(&connection, stream, content),
        }
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
        self.state.get_mut(py).file_tail = None;
        match (self.connection(py), self.stream) {
            (Some(connection), None) => Connection::linger(&connection),
            (Some(connection), Some(stream)) => Connection::reset_stream(&connection, stream),
            (None, _) => Ok(()),
        }
    }

    /// A task that the user's factory has made may end without this coroutine: one that wraps it, and is cancelled before
    /// its first step.
    fn _on_task_done(slf: &Bound<'_, Self>, task: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        if this.is_over(py) {
            return Ok(());
        }
        this.forget_application(py);
        let outcome = task.call_method0(intern!(py, "result")).and_then(|_| {
            let text = "the request's task has ended without running it";
            Err(objects::error::<PyRuntimeError>(py, text))
        });
        Self::finish(slf, outcome)
    }

    /// The coroutine of the application: what is asked of this one is found there.
    fn __getattr__<'py>(
        slf: &Bound<'py, Self>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let coroutine = slf.get().state.get(py).coroutine.clone_ref_opt(py);
        let text = name.to_str()?;
        match coroutine {
            Some(coroutine) if text.starts_with("cr_") => coroutine.bind(py).getattr(name),
            _ => match text {
                "cr_running" => {
                    let state = slf.get().state.get(py);
                    let is_running = matches!(state.application, Application::Running);
                    Ok(is_running.into_pyobject(py)?.to_owned().into_any())
                }
                "cr_state" => {
                    let state = match slf.get().state.get(py).application {
                        Application::Waiting(_) => "CORO_CREATED",
                        Application::Running => "CORO_RUNNING",
                        Application::Suspended => "CORO_SUSPENDED",
                        Application::Over => "CORO_CLOSED",
                    };
                    Ok(objects::string(py, state)?.into_any())
                }
                "cr_suspended" => Ok(false.into_pyobject(py)?.to_owned().into_any()),
                "cr_frame" | "cr_code" => Ok(py.None().into_bound(py)),
                _ => Err(objects::error::<PyAttributeError>(
                    py,
                    &format!("'HttpRequest' object has no attribute '{text}'"),
                )),
            },
        }
    }

    #[getter]
    fn __name__(&self) -> New<&'static str> {
        New("application")
    }

    #[getter]
    fn __qualname__(&self) -> New<&'static str> {
        New("application")
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.service)?;
        visit.call(&state.connection)?;
        visit.call(&state.coroutine)?;
        visit.call(&state.task)?;
        visit.call(&state.logged_scope)?;
        match &state.application {
            Application::Waiting(scope) => visit.call(scope)?,
            Application::Suspended | Application::Running | Application::Over => {}
        }
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
                std::mem::replace(&mut state.application, Application::Over),
                state.coroutine.take(),
                state.task.take(),
                state.logged_scope.take(),
                std::mem::take(&mut state.receivers),
                std::mem::take(&mut state.senders),
            )
        };
        drop(dropped);
    }
}

/// The result of a step, for callers who expect `StopIteration` at the end.
fn or_stop<'py>(py: Python<'py>, result: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    result.ok_or_else(|| objects::error_with::<PyStopIteration>(py, py.None()))
}
