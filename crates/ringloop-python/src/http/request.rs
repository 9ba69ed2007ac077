//! A request, as its application sees it: what `receive` and `send` do with the messages of ASGI.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::exchange::{Body, Exchange, Progress};
use super::message;
use crate::cell::GilCell;
use crate::coroutine::Step;
use crate::names::intern;
use crate::objects;
use crate::support;

/// The number of messages that an application may send without waiting for anything; then others have their turn.
/// Otherwise one that sends for ever would not even hear that its client is gone.
const SENT_MAX: u32 = 1000;

/// The application's side.
pub(super) enum Application {
    /// It was not called; with the scope that it will be called with.
    Waiting(Py<PyDict>),
    /// Its coroutine waits.
    Suspended,
    /// A step is under way.
    Running,
    Over,
}

pub(super) struct State {
    pub(super) application: Application,
    /// The application's coroutine, from its call to its end.
    pub(super) coroutine: Option<Py<PyAny>>,
    /// While it is not over, and was not after its first step.
    pub(super) task: Option<Py<PyAny>>,
    /// The number that the service knows it by while its task waits.
    pub(super) slot: Option<usize>,
    /// Messages that were sent since the application last waited for something.
    pub(super) sent: u32,
}

/// An exchange that an ASGI application answers. As a Python object it is the coroutine of the task that does so
/// (`task`).
#[pyclass(module = "ringloop._core", name = "HttpRequest", frozen, extends = Exchange)]
pub(super) struct Request {
    pub(super) state: GilCell<State>,
}

/// The outcome of sending a message.
pub(super) enum Sending<'py> {
    Done,
    /// The message is taken, but others have their turn before `send` returns.
    DoneNextTurn,
    /// Others have their turn before the message is looked at.
    AgainNextTurn,
    /// There will be room when this future is done.
    Wait(Bound<'py, PyAny>),
    /// A coroutine goes on with it.
    Coroutine(Bound<'py, PyAny>),
}

impl Request {
    pub(super) fn new(exchange: Exchange, scope: Bound<'_, PyDict>) -> PyResult<Bound<'_, Self>> {
        let py = scope.py();
        let state = State {
            application: Application::Waiting(scope.unbind()),
            coroutine: None,
            task: None,
            slot: None,
            sent: 0,
        };
        let state = GilCell::new(state);
        let initializer = PyClassInitializer::from(exchange).add_subclass(Self { state });
        Bound::new(py, initializer)
    }

    /// A step of `receive()`.
    pub(super) fn receive<'py>(slf: &Bound<'py, Self>) -> PyResult<Step<'py>> {
        let py = slf.py();
        let exchange = slf.as_super().get();
        exchange.ask_for_body(py)?;
        match exchange.take_body(py)? {
            Body::Part(body, more) => {
                let message = objects::dict(py)?;
                message.set_item(intern!(py, "type"), intern!(py, "http.request"))?;
                message.set_item(intern!(py, "body"), body)?;
                message.set_item(intern!(py, "more_body"), more)?;
                Ok(Step::Return(message.into_any()))
            }
            Body::Disconnected => {
                let message = objects::dict(py)?;
                message.set_item(intern!(py, "type"), intern!(py, "http.disconnect"))?;
                Ok(Step::Return(message.into_any()))
            }
            Body::Wait => exchange.wait_to_receive(py).map(Step::Yield),
        }
    }

    /// A step of `send(message)`.
    pub(super) fn send<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<Sending<'py>> {
        let py = slf.py();
        let exchange = slf.as_super();
        let progress = exchange.get().progress(py);
        let kind = message::item(message, intern!(py, "type"))?;
        if let Progress::Complete = progress {
            if exchange.get().drops_trailers(py)
                && message::is_text(&kind, intern!(py, "http.response.trailers"))?
            {
                exchange
                    .get()
                    .drop_trailers(py, has_more_trailers(message)?);
                return Ok(Sending::Done);
            }
            return Err(message::unexpected(&kind, |kind| {
                format!("Unexpected ASGI message '{kind}' sent, after response already completed.")
            }));
        }
        let Some(connection) = exchange.get().connection(py) else {
            return Ok(Sending::Done);
        };
        if exchange.get().is_closing(&connection) {
            return Ok(Sending::Done);
        }
        if exchange.get().is_full(&connection) {
            return exchange.get().wait_for_room(py).map(Sending::Wait);
        }
        match progress {
            Progress::Head => {
                if !message::is_text(&kind, intern!(py, "http.response.start"))? {
                    if message::is_text(&kind, intern!(py, "http.response.early_hint"))? {
                        send_hints(exchange.get(), &connection, message)?;
                        return Ok(Sending::Done);
                    }
                    return Err(expected(&kind, "http.response.start"));
                }
                Self::begin_response(slf, &connection, message)?;
            }
            Progress::Body | Progress::MoreBody => {
                if !message::is_text(&kind, intern!(py, "http.response.body"))? {
                    let is_first = matches!(progress, Progress::Body);
                    if is_first && message::is_text(&kind, intern!(py, "http.response.pathsend"))? {
                        let path = message::item(message, intern!(py, "path"))?;
                        let function = support::http(py)?.getattr(intern!(py, "send_path"))?;
                        return function.call1((slf, path)).map(Sending::Coroutine);
                    }
                    return Err(expected(&kind, "http.response.body"));
                }
                send_body(exchange, &connection, message)?;
            }
            Progress::Trailers => {
                if !message::is_text(&kind, intern!(py, "http.response.trailers"))? {
                    return Err(expected(&kind, "http.response.trailers"));
                }
                send_trailers(exchange, &connection, message)?;
            }
            Progress::Complete => {}
        }
        Ok(Sending::Done)
    }

    /// Counts a message for which `send` does not wait. Whether others should have their turn.
    pub(super) fn has_to_give_way(&self, py: Python<'_>) -> bool {
        let mut state = self.state.get_mut(py);
        state.sent = (state.sent + 1) % SENT_MAX;
        state.sent == 0
    }

    /// Starts the response, and makes sure that its head will be sent.
    pub(super) fn begin_response<'py>(
        slf: &Bound<'py, Self>,
        connection: &Bound<'py, PyAny>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = slf.py();
        let exchange = slf.as_super().get();
        start_response(exchange, connection, message)?;
        let is_running = matches!(slf.get().state.get(py).application, Application::Running);
        if is_running {
            return Ok(());
        }
        // Another task sends, and it is not seen when that one suspends.
        let flush = slf.getattr(intern!(py, "_flush"))?;
        exchange.service(py)?.get().call_soon(py, &flush)
    }
}

#[cold]
fn expected(kind: &Bound<'_, PyAny>, name: &str) -> PyErr {
    message::unexpected(kind, |kind| {
        format!("Expected ASGI message '{name}', but got '{kind}'.")
    })
}

fn start_response<'py>(
    exchange: &Exchange,
    connection: &Bound<'py, PyAny>,
    message: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = message.py();
    let service = exchange.service(py)?;
    let status: u16 = message::item(message, intern!(py, "status"))?.extract()?;
    let fields = match message::optional_item(message, intern!(py, "headers"))? {
        Some(headers) => Some(message::plain_fields(&headers)?),
        None => None,
    };
    exchange.begin_head(connection, status, fields.as_ref(), &service)?;
    // Most messages have a type, a status and headers only.
    let is_plain = fields.is_some() && message.cast_exact::<PyDict>().is_ok_and(|it| it.len() == 3);
    let has_trailers = !is_plain
        && message::optional_item(message, intern!(py, "trailers"))?
            .map_or(Ok(false), |it| it.is_truthy())?;
    exchange.start(connection, status, has_trailers);
    exchange.log_start(&service, status)
}

/// Sends a part of the body.
pub(super) fn send_body<'py>(
    exchange: &Bound<'py, Exchange>,
    connection: &Bound<'py, PyAny>,
    message: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = message.py();
    let more = match message::optional_item(message, intern!(py, "more_body"))? {
        Some(more) => more.is_truthy()?,
        None => false,
    };
    let body: Bound<'py, PyBytes> = match message::optional_item(message, intern!(py, "body"))? {
        Some(body) => message::body_bytes(body)?,
        None => objects::bytes(py, b"")?,
    };
    Exchange::send_body(exchange, connection, &body, !more)
}

/// Sends the links of an early hint.
#[cold]
fn send_hints<'py>(
    exchange: &Exchange,
    connection: &Bound<'py, PyAny>,
    message: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let given = message::item(message, intern!(message.py(), "links"))?;
    let mut links = Vec::new();
    for link in given.try_iter()? {
        links.push(message::body_bytes(link?)?);
    }
    // Without links there is nothing to say.
    if links.is_empty() {
        return Ok(());
    }
    exchange.send_hints(connection, &links)
}

fn has_more_trailers(message: &Bound<'_, PyAny>) -> PyResult<bool> {
    let more = message::optional_item(message, intern!(message.py(), "more_trailers"))?;
    more.map_or(Ok(false), |more| more.is_truthy())
}

/// Collects trailers, and sends them when there are no more.
fn send_trailers<'py>(
    exchange: &Bound<'py, Exchange>,
    connection: &Bound<'py, PyAny>,
    message: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = message.py();
    let more = has_more_trailers(message)?;
    let mut collected = Vec::new();
    if let Some(headers) = message::optional_item(message, intern!(py, "headers"))? {
        let collect = |name: &[u8], value: &[u8]| {
            collected.push((name.to_vec(), value.to_vec()));
            Ok::<(), PyErr>(())
        };
        message::plain_fields(&headers)?.each(collect)?;
    }
    Exchange::send_trailers(exchange, connection, collected, more)
}
