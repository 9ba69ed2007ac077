//! The messages of ASGI between the application of a WebSocket and its client.

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ringloop_http::websocket::{Handshake, SendError};

use super::exchange::Exchange;
use super::message;
use super::request::{self, Request, Sending};
use super::service::HttpService;
use super::websocket::{ABNORMAL, INTERNAL_ERROR, Message, NORMAL, Next, Phase};
use crate::buffers;
use crate::coroutine::Step;
use crate::names::intern;
use crate::objects::{self, New};
use crate::support;

/// The status of an accepted handshake, which on HTTP/2 is `OK`.
const SWITCHING_PROTOCOLS: u16 = 101;
const OK: u16 = 200;

/// From here on, `bytes` are sent where they are, and not copied behind the frame's head.
const SENT_IN_PLACE: usize = 8 * 1024;

/// A field of a response.
type OwnField = (Vec<u8>, Vec<u8>);

/// A step of `receive()`.
pub(super) fn receive<'py>(request: &Bound<'py, Request>) -> PyResult<Step<'py>> {
    let py = request.py();
    let exchange = request.as_super().get();
    let (this, wire) = exchange.upgrade(py)?;
    let next = this.next(py);
    let kind = intern!(py, "type");
    let message = match next {
        Next::Connect => {
            let message = objects::dict(py)?;
            message.set_item(kind, intern!(py, "websocket.connect"))?;
            message
        }
        Next::Message(
            Message {
                is_text, content, ..
            },
            is_drained,
        ) => {
            if is_drained && let Some(connection) = exchange.connection(py) {
                // The message is out of the queue already: this error must not lose it.
                if let Err(error) = wire.read_on(exchange, &connection) {
                    error.write_unraisable(py, Some(request.as_any()));
                }
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
        Next::Wait => return exchange.wait_to_receive(py).map(Step::Yield),
    };
    Ok(Step::Return(message.into_any()))
}

/// A step of `send(message)`.
pub(super) fn send<'py>(
    request: &Bound<'py, Request>,
    message: &Bound<'py, PyAny>,
) -> PyResult<Sending<'py>> {
    let py = request.py();
    let exchange = request.as_super().get();
    let (this, wire) = exchange.upgrade(py)?;
    let phase = this.phase(py);
    let is_disconnected = this.is_disconnected(py);
    let kind = message::item(message, intern!(py, "type"))?;
    let connection = match exchange.connection(py) {
        _ if phase == Phase::Closed => None,
        Some(connection) if is_disconnected || exchange.is_closing(&connection) => None,
        connection => connection,
    };
    let Some(connection) = connection else {
        if phase == Phase::Closed || (phase == Phase::Denying && exchange.is_complete(py)) {
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
    if exchange.is_full(&connection) {
        return exchange.wait_for_room(py).map(Sending::Wait);
    }
    let is = |name: &Bound<'py, PyString>| message::is_text(&kind, name);
    match phase {
        Phase::Open if is(intern!(py, "websocket.send"))? => {
            send_message(exchange, &connection, message)?;
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
            wire.close(exchange, &connection, code, reason)?
                .map_err(|error| send_error(py, &error))?;
            this.set_phase(py, Phase::Closed);
        }
        Phase::Open => {
            return Err(message::unexpected(&kind, |kind| {
                format!(
                    "Expected ASGI message 'websocket.send' or 'websocket.close', but got '{kind}'."
                )
            }));
        }
        Phase::Connecting if is(intern!(py, "websocket.accept"))? => {
            accept(exchange, &connection, message)?;
        }
        Phase::Connecting if is(intern!(py, "websocket.close"))? => {
            this.set_phase(py, Phase::Closed);
            let logged = exchange.log_handshake(py, "403");
            exchange.refuse(&connection, None, 403, "").and(logged)?;
        }
        Phase::Connecting if is(intern!(py, "websocket.http.response.start"))? => {
            let status: u16 = message::item(message, intern!(py, "status"))?.extract()?;
            let scope = exchange.take_logged_scope(py);
            wire.deny(exchange, &connection);
            if let Err(error) = Request::begin_response(request, &connection, message) {
                exchange.return_logged_scope(py, scope);
                return Err(error);
            }
            this.set_phase(py, Phase::Denying);
            exchange.return_logged_scope(py, scope);
            exchange.log_handshake(py, &status.to_string())?;
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
            request::send_body(request.as_super(), &connection, message)?;
            if exchange.is_complete(py) {
                this.set_disconnect(py, ABNORMAL, "");
                exchange.wake_receivers(py)?;
            }
        }
        Phase::Denying | Phase::Closed => {
            return Err(message::unexpected(&kind, |kind| {
                format!("Expected ASGI message 'websocket.http.response.body' but got '{kind}'.")
            }));
        }
    }
    Ok(Sending::Done)
}

fn accept(
    exchange: &Exchange,
    connection: &Bound<'_, PyAny>,
    message: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = message.py();
    let service = exchange.service(py)?;
    let subprotocol = match message::optional_item(message, intern!(py, "subprotocol"))? {
        Some(name) if !name.is_none() => Some(name.cast_into::<PyString>()?),
        _ => None,
    };
    let subprotocol = subprotocol.as_ref().map(|name| name.to_str()).transpose()?;
    let fields = accept_fields(message, service.get())?;
    // Reading the message may have run code that has accepted meanwhile.
    let websocket = exchange.websocket();
    let Some(handshake) = websocket.and_then(|it| it.take_handshake(py)) else {
        return Err(client_disconnected(py));
    };
    let (this, wire) = exchange.upgrade(py)?;
    let subprotocol = subprotocol.filter(|name| !name.is_empty());
    if let Err(error) = wire.accept(exchange, connection, &handshake, subprotocol, &fields)? {
        this.return_handshake(py, handshake);
        return Err(objects::error::<PyRuntimeError>(py, &error.to_string()));
    }
    let begun = Some(exchange.begun(py));
    let status = if exchange.has_stream() {
        OK
    } else {
        SWITCHING_PROTOCOLS
    };
    service.get().count_response(py, begun, status);
    exchange.log_handshake(py, "[accepted]")?;
    wire.begin(exchange, connection)
}

fn send_message(
    exchange: &Exchange,
    connection: &Bound<'_, PyAny>,
    message: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = message.py();
    let service = exchange.service(py)?;
    let given = |name| {
        let found = message::optional_item(message, name)?;
        Ok::<_, PyErr>(found.filter(|value| !value.is_none()))
    };
    if let Some(content) = given(intern!(py, "bytes"))? {
        let kept = content.cast_exact::<PyBytes>().ok();
        let kept = kept.filter(|bytes| bytes.as_bytes().len() >= SENT_IN_PLACE);
        return buffers::with_bytes(&content, |bytes| {
            send_frame(exchange, connection, &service, false, bytes, kept)
        });
    }
    match given(intern!(py, "text"))? {
        Some(content) => {
            let Ok(text) = content.cast::<PyString>() else {
                let text = "'text' of 'websocket.send' must be a string";
                return Err(objects::error::<PyTypeError>(py, text));
            };
            send_frame(
                exchange,
                connection,
                &service,
                true,
                text.to_str()?.as_bytes(),
                None,
            )
        }
        None => Ok(()),
    }
}

/// Sends a message. `kept` are its bytes, if these need not be copied.
fn send_frame(
    exchange: &Exchange,
    connection: &Bound<'_, PyAny>,
    service: &Bound<'_, HttpService>,
    is_text: bool,
    content: &[u8],
    kept: Option<&Bound<'_, PyBytes>>,
) -> PyResult<()> {
    let py = connection.py();
    let (this, wire) = exchange.upgrade(py)?;
    let mut buffer = service.get().take_buffer(py);
    let result = match this.frame(service, is_text, content, kept, &mut buffer) {
        Ok(kept) => wire.write(exchange, connection, &buffer, kept),
        Err(error) => Err(send_error(py, &error)),
    };
    service.get().return_buffer(py, buffer);
    result
}

/// The application has ended.
pub(super) fn finish(
    request: &Bound<'_, Request>,
    outcome: PyResult<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = request.py();
    let exchange = request.as_super().get();
    let (this, wire) = exchange.upgrade(py)?;
    let service = exchange.service(py)?;
    let phase = this.phase(py);
    let is_disconnected = this.is_disconnected(py);
    let is_answered = match phase {
        Phase::Connecting => false,
        Phase::Denying => exchange.is_complete(py),
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
    let ended = match (exchange.connection(py), phase) {
        (None, _) | (_, Phase::Closed) => Ok(()),
        (Some(connection), Phase::Connecting) => {
            exchange.refuse(&connection, None, 500, "Internal Server Error")
        }
        (Some(connection), Phase::Denying) => {
            let flushed = exchange.flush_head(py);
            flushed.and(wire.end(exchange, &connection))
        }
        (Some(connection), Phase::Open) => {
            // It has a valid code and no reason.
            wire.close(exchange, &connection, code, "").map(drop)
        }
    };
    let dropped = exchange.take_logged_scope(py);
    drop(dropped);
    let reported = match report {
        Some(report) => service.get().report(py, report, &argument),
        None => Ok(()),
    };
    ended.and(reported)
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
