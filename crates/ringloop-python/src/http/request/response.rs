//! The response of a request: what `send` does with a message.

use pyo3::exceptions::{PyConnectionError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringloop_http::ResponseError;
use ringloop_http::h1::ParkedHead;

use super::{Application, Request};
use crate::http::connection::Connection;
use crate::http::h2::Stream;
use crate::http::message;
use crate::http::service::HttpService;
use crate::http::websocket_messages;
use crate::names::intern;
use crate::objects;
use crate::support;

/// The number of messages that an application may send without waiting for anything; then others have their turn.
/// Otherwise one that sends for ever would not even hear that its client is gone.
const SENT_MAX: u32 = 1000;

/// The outcome of sending a message.
pub(in crate::http) enum Sending<'py> {
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

/// A response head that waits for the body's first part, and the buffer that it was written to.
pub(super) enum Pending {
    Http1 {
        head: ParkedHead,
        buffer: Vec<u8>,
    },
    /// The stream keeps it.
    Http2,
}

/// The trailers of a response.
#[derive(Default)]
pub(super) struct Trailers {
    /// The body is over.
    is_due: bool,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Request {
    /// A step of `send(message)`.
    pub(in crate::http) fn send<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<Sending<'py>> {
        let py = slf.py();
        let this = slf.get();
        let sending = if this.websocket.is_some() {
            websocket_messages::send(slf, message)?
        } else {
            Self::send_http(slf, message)?
        };
        match sending {
            // The message has been taken, so that giving way neither changes the order of messages nor loses one.
            Sending::Done if this.has_to_give_way(py) => Ok(Sending::DoneNextTurn),
            sending => Ok(sending),
        }
    }

    /// Counts a message for which `send` does not wait. Whether others should have their turn.
    pub(in crate::http) fn has_to_give_way(&self, py: Python<'_>) -> bool {
        let mut state = self.state.get_mut(py);
        state.sent = (state.sent + 1) % SENT_MAX;
        state.sent == 0
    }

    fn send_http<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<Sending<'py>> {
        let py = slf.py();
        let this = slf.get();
        let (is_started, has_body, is_complete) = {
            let state = this.state.get(py);
            let is_complete = state.is_complete || state.file_tail.is_some();
            (state.is_started, state.has_body, is_complete)
        };
        let kind = message::item(message, intern!(py, "type"))?;
        if is_complete {
            return Err(message::unexpected(&kind, |kind| {
                format!("Unexpected ASGI message '{kind}' sent, after response already completed.")
            }));
        }
        let Some(connection) = this.connection(py) else {
            return Ok(Sending::Done);
        };
        if connection.get().is_closing(py) {
            return Ok(Sending::Done);
        }
        if this.is_full(&connection) {
            return this.wait_for_room(py).map(Sending::Wait);
        }
        if let Some(stream) = this.stream.filter(|_| this.awaits_trailers(py)) {
            if !message::is_text(&kind, intern!(py, "http.response.trailers"))? {
                return Err(message::unexpected(&kind, |kind| {
                    format!("Expected ASGI message 'http.response.trailers', but got '{kind}'.")
                }));
            }
            Self::send_trailers(slf, &connection, stream, message)?;
        } else if is_started {
            if !message::is_text(&kind, intern!(py, "http.response.body"))? {
                if !has_body && message::is_text(&kind, intern!(py, "http.response.pathsend"))? {
                    let path = message::item(message, intern!(py, "path"))?;
                    let function = support::http(py)?.getattr(intern!(py, "send_path"))?;
                    return function.call1((slf, path)).map(Sending::Coroutine);
                }
                return Err(message::unexpected(&kind, |kind| {
                    format!("Expected ASGI message 'http.response.body', but got '{kind}'.")
                }));
            }
            Self::send_body(slf, &connection, message)?;
        } else {
            if !message::is_text(&kind, intern!(py, "http.response.start"))? {
                return Err(message::unexpected(&kind, |kind| {
                    format!("Expected ASGI message 'http.response.start', but got '{kind}'.")
                }));
            }
            Self::begin_response(slf, &connection, message)?;
        }
        Ok(Sending::Done)
    }

    /// Whether the client has to read before more is sent.
    pub(super) fn is_full(&self, connection: &Bound<'_, Connection>) -> bool {
        let py = connection.py();
        match self.stream {
            None => connection.get().is_writing_paused(py),
            Some(stream) => connection.get().is_stream_full(py, stream),
        }
    }

    /// A future that is done when the client has read enough to make room for a write.
    pub(in crate::http) fn wait_for_room<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let future = self.service(py)?.get().create_future(py)?;
        self.state.get_mut(py).senders.push(future.clone().unbind());
        Ok(future)
    }

    /// The connection, as long as something can be sent on it. `ConnectionError` afterwards.
    pub(super) fn open_connection<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Connection>> {
        let connection = self.connection(py).filter(|it| !it.get().is_closing(py));
        connection
            .ok_or_else(|| objects::error::<PyConnectionError>(py, "Connection is closed by peer"))
    }

    /// Whether a file is being sent.
    pub(in crate::http) fn sends_file(&self, py: Python<'_>) -> bool {
        self.state.get(py).file_tail.is_some()
    }

    /// Starts the response, and makes sure that its head will be sent.
    pub(in crate::http) fn begin_response<'py>(
        slf: &Bound<'py, Self>,
        connection: &Bound<'py, Connection>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        this.start_response(connection, message)?;
        let is_running = matches!(this.state.get(py).application, Application::Running);
        if is_running {
            return Ok(());
        }
        // Another task sends, and it is not seen when that one suspends.
        let flush = slf.getattr(intern!(py, "_flush"))?;
        this.service(py)?.get().call_soon(py, &flush)
    }

    fn start_response<'py>(
        &self,
        connection: &Bound<'py, Connection>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = message.py();
        let service = self.service(py)?;
        let status: u16 = message::item(message, intern!(py, "status"))?.extract()?;
        let fields = match message::optional_item(message, intern!(py, "headers"))? {
            Some(headers) => Some(message::plain_fields(&headers)?),
            None => None,
        };
        let pending = if let Some(stream) = self.stream {
            connection
                .get()
                .begin_response_on(py, stream, status, fields.as_ref(), &service)
                .map(|()| Pending::Http2)
        } else {
            let mut buffer = service.get().take_buffer(py);
            let begun =
                connection
                    .get()
                    .begin_response(py, status, fields.as_ref(), &service, &mut buffer);
            match begun {
                Ok(head) => Ok(Pending::Http1 { head, buffer }),
                Err(error) => {
                    service.get().return_buffer(py, buffer);
                    Err(error)
                }
            }
        };
        let pending = pending.map_err(|error| response_error(py, error))?;
        let has_trailers = match self.stream {
            Some(_) => message::optional_item(message, intern!(py, "trailers"))?,
            None => None,
        };
        let has_trailers = has_trailers.map_or(Ok(false), |it| it.is_truthy())?;
        {
            let mut state = self.state.get_mut(py);
            state.is_started = true;
            state.status = status;
            state.pending = Some(pending);
            state.trailers = has_trailers.then(Box::default);
        }
        let scope = self.take_logged_scope(py);
        if let Some(scope) = scope {
            HttpService::log_access(&service, scope.bind(py), status)?;
        }
        Ok(())
    }

    pub(in crate::http) fn send_body<'py>(
        slf: &Bound<'py, Self>,
        connection: &Bound<'py, Connection>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let this = slf.get();
        let py = message.py();
        let more = match message::optional_item(message, intern!(py, "more_body"))? {
            Some(more) => more.is_truthy()?,
            None => false,
        };
        let body = match message::optional_item(message, intern!(py, "body"))? {
            Some(body) => message::body_bytes(body)?,
            None => objects::bytes(py, b"")?,
        };
        let service = this.service(py)?;
        if let Some(stream) = this.stream {
            return Self::send_body_on(slf, connection, &service, stream, &body, !more);
        }
        // From here to the write no Python code runs, so that nothing comes in between.
        let (mut buffer, parked) = this.take_head(py, service.get());
        let content = body.as_bytes();
        let framed =
            connection
                .get()
                .frame_body(py, parked, content.len(), !more, &service, &mut buffer);
        let framed = match framed {
            Ok(framed) => framed,
            Err(error) => {
                // The head goes out all the same, as it would have without waiting for the body; so does a part that is too
                // short.
                let is_short = matches!(error, ResponseError::TooShort(_));
                let payload = Some(&body).filter(|_| is_short);
                let result = Connection::write(connection, &buffer, payload, b"");
                service.get().return_buffer(py, buffer);
                result?;
                return Err(response_error(py, error));
            }
        };
        buffer.extend_from_slice(framed.head());
        let payload = (!framed.payload(content).is_empty()).then_some(&body);
        {
            let mut state = this.state.get_mut(py);
            state.has_body = true;
            state.is_complete = !more;
        }
        let result = if more {
            Connection::write(connection, &buffer, payload, framed.tail())
        } else {
            connection
                .get()
                .write_now(py, &buffer, payload, framed.tail())
        };
        service.get().return_buffer(py, buffer);
        result?;
        let completed = if more {
            Ok(())
        } else {
            Self::complete(slf, connection, &service)
        };
        if framed.is_forbidden() {
            return completed.and(this.warn_of_body(py, service.get()));
        }
        completed
    }

    /// Says once for a response that its status has no body, so that what was sent of one is dropped.
    #[cold]
    fn warn_of_body(&self, py: Python<'_>, service: &HttpService) -> PyResult<()> {
        let status = {
            let mut state = self.state.get_mut(py);
            if std::mem::replace(&mut state.has_dropped, true) {
                return Ok(());
            }
            state.status
        };
        let text = format!(
            "A response with status {status} has no body. What was sent of one is dropped."
        );
        service.warn(py, &text)
    }

    /// The last part of the response was written.
    fn complete(
        slf: &Bound<'_, Self>,
        connection: &Bound<'_, Connection>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (previous, begun, status) = {
            let mut state = this.state.get_mut(py);
            state.is_complete = true;
            (state.connection.take(), state.begun, state.status)
        };
        drop(previous);
        service.get().count_response(py, Some(begun), status);
        this.wake_receivers(py)?;
        // The connection forgets the request, so nothing else would wake them.
        this.wake_senders(py)?;
        match this.stream {
            None => Connection::on_response_complete(connection, slf),
            Some(stream) => Connection::on_stream_complete(connection, stream),
        }
    }

    /// The head that waits for a body, if it was not sent, and the buffer that it is in.
    fn take_head(&self, py: Python<'_>, service: &HttpService) -> (Vec<u8>, Option<ParkedHead>) {
        let pending = self.state.get_mut(py).pending.take();
        match pending {
            Some(Pending::Http1 { head, buffer }) => (buffer, Some(head)),
            _ => (service.take_buffer(py), None),
        }
    }

    fn send_body_on(
        slf: &Bound<'_, Self>,
        connection: &Bound<'_, Connection>,
        service: &Bound<'_, HttpService>,
        stream: Stream,
        body: &Bound<'_, PyBytes>,
        last: bool,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (has_head, has_trailers) = {
            let mut state = this.state.get_mut(py);
            if let Some(trailers) = &mut state.trailers {
                trailers.is_due = last;
            }
            (state.pending.take().is_some(), state.trailers.is_some())
        };
        let last = last && !has_trailers;
        let sent = if has_head {
            let complete = last.then_some(body.as_bytes().len() as u64);
            connection
                .get()
                .send_head_on(py, stream, complete, has_trailers, service)
        } else {
            Ok(())
        };
        let is_forbidden =
            !body.as_bytes().is_empty() && connection.get().forbids_body_on(py, stream);
        let sent = sent.and_then(|()| connection.get().send_body_on(stream, body, last));
        if let Err(error) = sent {
            // The head goes out all the same, as it would have without waiting for the body.
            Connection::drive(connection)?;
            return Err(response_error(py, error));
        }
        let done = if last {
            Self::complete(slf, connection, service)
        } else {
            Connection::drive(connection)
        };
        if is_forbidden {
            return done.and(this.warn_of_body(py, service.get()));
        }
        done
    }

    /// Begins to send a file as the body: sends the head, and `content` if that is all of the file. Returns how many of
    /// `size` bytes are left to send.
    pub(super) fn begin_file(
        slf: &Bound<'_, Self>,
        size: usize,
        content: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<usize> {
        let py = slf.py();
        let this = slf.get();
        let connection = this.open_connection(py)?;
        let service = this.service(py)?;
        if let Some(stream) = this.stream {
            return this.begin_file_on(&connection, &service, stream, size, content);
        }
        let (mut buffer, parked) = this.take_head(py, service.get());
        if let Some(head) = parked {
            let complete = Some(size as u64);
            connection
                .get()
                .finish_head(py, head, complete, &service, &mut buffer);
        }
        let count = connection.get().file_length(py, size);
        let framed = connection
            .get()
            .frame_body(py, None, count, false, &service, &mut buffer);
        let framed = match framed {
            Ok(framed) => framed,
            Err(error) => {
                let result = Connection::write(&connection, &buffer, None, b"");
                service.get().return_buffer(py, buffer);
                result?;
                return Err(response_error(py, error));
            }
        };
        buffer.extend_from_slice(framed.head());
        this.state.get_mut(py).file_tail = Some(framed.tail());
        let content = match content {
            Some(content) if content.as_bytes().len() > count => {
                Some(objects::bytes(py, &content.as_bytes()[..count])?)
            }
            other => other.cloned(),
        };
        let payload = content.filter(|_| framed.sends_payload());
        let left = if payload.is_some() || !framed.sends_payload() {
            0
        } else {
            count
        };
        let connection = connection.get();
        let result = connection.write_now(py, &buffer, payload.as_ref(), b"");
        service.get().return_buffer(py, buffer);
        result?;
        if framed.is_forbidden() {
            this.warn_of_body(py, service.get())?;
        }
        Ok(left)
    }

    /// As `begin_file`, on a stream of HTTP/2.
    fn begin_file_on(
        &self,
        connection: &Bound<'_, Connection>,
        service: &Bound<'_, HttpService>,
        stream: Stream,
        size: usize,
        content: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<usize> {
        let py = connection.py();
        let (has_head, has_trailers) = {
            let mut state = self.state.get_mut(py);
            (state.pending.take().is_some(), state.trailers.is_some())
        };
        if has_head {
            let complete = (!has_trailers).then_some(size as u64);
            let connection = connection.get();
            let sent = connection.send_head_on(py, stream, complete, has_trailers, service);
            sent.map_err(|error| response_error(py, error))?;
        }
        if size > 0 && connection.get().forbids_body_on(py, stream) {
            self.warn_of_body(py, service.get())?;
        }
        self.state.get_mut(py).file_tail = Some(b"");
        let count = connection.get().file_length_on(py, stream, size);
        let Some(content) = content else {
            Connection::drive(connection)?;
            return Ok(count);
        };
        let content = if content.as_bytes().len() > count {
            &objects::bytes(py, &content.as_bytes()[..count])?
        } else {
            content
        };
        Self::write_on(connection, stream, content)?;
        Ok(0)
    }

    /// Sends a part of a body that is not the last one, on a stream of HTTP/2.
    pub(super) fn write_on(
        connection: &Bound<'_, Connection>,
        stream: Stream,
        content: &Bound<'_, PyBytes>,
    ) -> PyResult<()> {
        let sent = connection.get().send_body_on(stream, content, false);
        let driven = Connection::drive(connection);
        sent.map_err(|error| response_error(content.py(), error))?;
        driven
    }

    /// All of the file was sent.
    pub(super) fn end_file(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let connection = this.open_connection(py)?;
        let service = this.service(py)?;
        if let Some(stream) = this.stream {
            this.state.get_mut(py).file_tail = None;
            let body = objects::bytes(py, b"")?;
            return Self::send_body_on(slf, &connection, &service, stream, &body, true);
        }
        let framed = connection
            .get()
            .frame_body(py, None, 0, true, &service, &mut Vec::new())
            .map_err(|error| response_error(py, error))?;
        let tail = {
            let mut state = this.state.get_mut(py);
            state.is_complete = true;
            state.file_tail.take().unwrap_or_default()
        };
        connection.get().write_now(py, tail, None, framed.tail())?;
        Self::complete(slf, &connection, &service)
    }

    /// Whether the body is over, and trailers are to follow.
    fn awaits_trailers(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.trailers.as_ref().is_some_and(|it| it.is_due)
    }

    /// Collects trailers, and sends them when there are no more.
    fn send_trailers<'py>(
        slf: &Bound<'py, Self>,
        connection: &Bound<'py, Connection>,
        stream: Stream,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let this = slf.get();
        let py = message.py();
        let more = match message::optional_item(message, intern!(py, "more_trailers"))? {
            Some(more) => more.is_truthy()?,
            None => false,
        };
        let mut collected = Vec::new();
        if let Some(headers) = message::optional_item(message, intern!(py, "headers"))? {
            let collect = |name: &[u8], value: &[u8]| {
                collected.push((name.to_vec(), value.to_vec()));
                Ok::<(), PyErr>(())
            };
            message::plain_fields(&headers)?.each(collect)?;
        }
        let fields = {
            let mut state = this.state.get_mut(py);
            match &mut state.trailers {
                Some(trailers) => {
                    trailers.fields.append(&mut collected);
                    if more {
                        return Ok(());
                    }
                    std::mem::take(&mut trailers.fields)
                }
                None => collected,
            }
        };
        let sent = connection.get().send_trailers_on(py, stream, &fields);
        sent.map_err(|error| response_error(py, error))?;
        let service = this.service(py)?;
        Self::complete(slf, connection, &service)
    }

    /// Sends a head that waits for a body. The application may take its time.
    pub(in crate::http) fn flush_head(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        if this.state.get(py).pending.is_none() {
            return Ok(());
        }
        let (Some(connection), service) = (this.connection(py), this.service(py)?) else {
            return Ok(());
        };
        let (pending, has_trailers) = {
            let mut state = this.state.get_mut(py);
            (state.pending.take(), state.trailers.is_some())
        };
        match (pending, this.stream) {
            (Some(Pending::Http1 { head, mut buffer }), _) => {
                connection
                    .get()
                    .finish_head(py, head, None, &service, &mut buffer);
                let result = Connection::write(&connection, &buffer, None, b"");
                service.get().return_buffer(py, buffer);
                result
            }
            (Some(Pending::Http2), Some(stream)) => {
                let sent = connection
                    .get()
                    .send_head_on(py, stream, None, has_trailers, &service);
                sent.map_err(|error| response_error(py, error))?;
                Connection::drive(&connection)
            }
            _ => Ok(()),
        }
    }
}

/// The error that uvicorn raises, where it refuses the same.
#[cold]
fn response_error(py: Python<'_>, error: ResponseError) -> PyErr {
    let text = match error {
        ResponseError::FieldName => "Invalid HTTP header name.",
        ResponseError::FieldValue => "Invalid HTTP header value.",
        ResponseError::TooLong => "Response content longer than Content-Length",
        ResponseError::TooShort(_) => "Response content shorter than Content-Length",
        other => return objects::error::<PyRuntimeError>(py, &other.to_string()),
    };
    objects::error::<PyRuntimeError>(py, text)
}
