//! The response of an exchange.

use pyo3::exceptions::{PyConnectionError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringloop_http::ResponseError;
use ringloop_http::h1::Method;

use super::{Exchange, FileStart, Part};
use crate::http::message::Fields;
use crate::http::service::HttpService;
use crate::objects;

/// The trailers of a response.
#[derive(Default)]
pub(super) struct Trailers {
    /// The body is over.
    is_due: bool,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The next part of a response.
pub(in crate::http) enum Progress {
    Head,
    /// The body, of which nothing was given.
    Body,
    MoreBody,
    /// The body is over, and trailers are to follow.
    Trailers,
    /// None: all was given, or a file is being sent that is the rest.
    Complete,
}

impl Exchange {
    pub(in crate::http) fn progress(&self, py: Python<'_>) -> Progress {
        let state = self.state.get(py);
        if state.is_complete || state.file_tail.is_some() {
            Progress::Complete
        } else if state.trailers.as_ref().is_some_and(|it| it.is_due) {
            Progress::Trailers
        } else if !state.is_started {
            Progress::Head
        } else if state.has_body {
            Progress::MoreBody
        } else {
            Progress::Body
        }
    }

    /// Whether the response has been given.
    pub(in crate::http) fn is_complete(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_complete
    }

    /// Whether the connection, or the server, has ended the exchange.
    pub(in crate::http) fn is_disconnected(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.is_disconnected || state.has_broken_file
    }

    /// Whether a file is being sent.
    pub(in crate::http) fn sends_file(&self, py: Python<'_>) -> bool {
        self.state.get(py).file_tail.is_some()
    }

    /// Sends 103 (Early Hints) with these values of Link, to a client that may get it.
    pub(in crate::http) fn send_hints(
        &self,
        connection: &Bound<'_, PyAny>,
        links: &[Bound<'_, PyBytes>],
    ) -> PyResult<()> {
        self.protocol.send_hints(self, connection, links)
    }

    /// Takes the trailers of a response whose client does not want any, to drop them. `more` will follow.
    pub(in crate::http) fn drop_trailers(&self, py: Python<'_>, more: bool) {
        self.state.get_mut(py).drops_trailers = more;
    }

    /// Whether the response is complete but for trailers, which are to be dropped.
    pub(in crate::http) fn drops_trailers(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.is_complete && state.drops_trailers
    }

    /// Whether nothing can be sent any more.
    pub(in crate::http) fn is_closing(&self, connection: &Bound<'_, PyAny>) -> bool {
        let link = self.protocol.link(connection);
        link.map_or(true, |link| link.is_closing(connection.py()))
    }

    /// Whether the client has to read before more is sent.
    pub(in crate::http) fn is_full(&self, connection: &Bound<'_, PyAny>) -> bool {
        self.protocol.is_full(self, connection)
    }

    /// The connection, as long as something can be sent on it. `ConnectionError` afterwards.
    pub(super) fn open_connection<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let connection = self.connection(py).filter(|it| !self.is_closing(it));
        connection
            .ok_or_else(|| objects::error::<PyConnectionError>(py, "Connection is closed by peer"))
    }

    /// Begins the head of the response. It is sent with the first part of the body, or by `flush_head`.
    pub(in crate::http) fn begin_head(
        &self,
        connection: &Bound<'_, PyAny>,
        status: u16,
        fields: Option<&Fields<'_>>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        self.protocol
            .begin_head(self, connection, status, fields, service)
            .map_err(|error| response_error(connection.py(), error))
    }

    /// The head has begun. `has_trailers` says whether trailers are announced.
    pub(in crate::http) fn start(
        &self,
        connection: &Bound<'_, PyAny>,
        status: u16,
        has_trailers: bool,
    ) {
        // ASGI has no trailers for the response that refuses a WebSocket.
        let takes_trailers =
            has_trailers && self.websocket().is_none() && self.protocol.takes_trailers(connection);
        let mut state = self.state.get_mut(connection.py());
        state.is_started = true;
        state.status = status;
        state.has_head = true;
        state.trailers = takes_trailers.then(Box::default);
        state.drops_trailers = has_trailers && !takes_trailers;
    }

    /// Logs a response that has begun, unless it is logged at its end.
    pub(in crate::http) fn log_start(
        &self,
        service: &Bound<'_, HttpService>,
        status: u16,
    ) -> PyResult<()> {
        if service.get().logs_ends() {
            return Ok(());
        }
        match self.take_logged_scope(service.py()) {
            Some(scope) => HttpService::log_access(service, scope.bind(service.py()), status),
            None => Ok(()),
        }
    }

    /// Sends a head that waits for a body. The application may take its time.
    pub(in crate::http) fn flush_head(&self, py: Python<'_>) -> PyResult<()> {
        if !self.state.get(py).has_head {
            return Ok(());
        }
        let (Some(connection), service) = (self.connection(py), self.service(py)?) else {
            return Ok(());
        };
        let has_trailers = {
            let mut state = self.state.get_mut(py);
            state.has_head = false;
            state.trailers.is_some()
        };
        self.protocol
            .send_head(self, &connection, has_trailers, &service)
    }

    /// Sends a part of the body.
    pub(in crate::http) fn send_body(
        slf: &Bound<'_, Self>,
        connection: &Bound<'_, PyAny>,
        body: &Bound<'_, PyBytes>,
        is_last: bool,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let service = this.service(py)?;
        let part = {
            let mut state = this.state.get_mut(py);
            if let Some(trailers) = &mut state.trailers {
                trailers.is_due = is_last;
            }
            let has_trailers = state.trailers.is_some();
            Part {
                body,
                is_last: is_last && !has_trailers,
                file_tail: state.file_tail.take().unwrap_or_default(),
                has_head: std::mem::take(&mut state.has_head),
                has_trailers,
            }
        };
        let is_forbidden = this.protocol.send_body(this, connection, &part, &service)?;
        if service.get().logs_ends() && !is_forbidden {
            let mut state = this.state.get_mut(py);
            if state.begun.method != Method::Head {
                state.body_length += body.as_bytes().len() as u64;
            }
        }
        let done = if part.is_last {
            Self::complete(slf, connection, &service)
        } else {
            this.protocol.flush(connection)
        };
        if is_forbidden {
            return done.and(this.warn_of_body(py, service.get()));
        }
        done
    }

    /// A part of the body is about to be written, after which the response may be complete.
    pub(in crate::http) fn advance(&self, py: Python<'_>, is_complete: bool) {
        let mut state = self.state.get_mut(py);
        state.has_body = true;
        state.is_complete = is_complete;
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
        connection: &Bound<'_, PyAny>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (previous, is_unread, begun, status) = {
            let mut state = this.state.get_mut(py);
            state.is_complete = true;
            let is_unread = state.reserved.take().is_some();
            // Nobody can read it any more.
            let previous = (state.connection.take(), state.gathered.take());
            (previous, is_unread, state.begun, state.status)
        };
        drop(previous);
        if is_unread {
            service.get().gathering().count_unread();
        }
        service.get().count_response(py, Some(begun), status);
        this.wake_receivers(py)?;
        // The connection forgets the request, so nothing else would wake them.
        this.wake_senders(py)?;
        let logged = this.log_end(py, service.get());
        this.protocol.on_complete(slf, connection).and(logged)
    }

    /// Logs a request whose response has begun, and ends here, if that was not logged at its beginning.
    pub(in crate::http) fn log_end(&self, py: Python<'_>, service: &HttpService) -> PyResult<()> {
        if !service.logs_ends() {
            return Ok(());
        }
        let (scope, status, begun, length) = {
            let mut state = self.state.get_mut(py);
            let is_known = state.file_tail.is_none() && !state.has_broken_file;
            let length = is_known.then_some(state.body_length);
            (state.logged_scope.take(), state.status, state.begun, length)
        };
        match scope {
            Some(scope) => service.log_end(scope.bind(py), status, Some(begun), length),
            None => Ok(()),
        }
    }

    /// Collects trailers, and sends them when there are no more.
    pub(in crate::http) fn send_trailers(
        slf: &Bound<'_, Self>,
        connection: &Bound<'_, PyAny>,
        mut collected: Vec<(Vec<u8>, Vec<u8>)>,
        more: bool,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
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
        this.protocol.send_trailers(this, connection, &fields)?;
        let service = this.service(py)?;
        Self::complete(slf, connection, &service)
    }

    /// Begins to send a file as the body: sends the head, and `content` if that is all of the file. Returns how many of
    /// `size` bytes are left to send.
    pub(super) fn begin_file(
        &self,
        py: Python<'_>,
        size: usize,
        content: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<usize> {
        let connection = self.open_connection(py)?;
        let service = self.service(py)?;
        let file = {
            let mut state = self.state.get_mut(py);
            FileStart {
                size,
                content,
                has_head: std::mem::take(&mut state.has_head),
                has_trailers: state.trailers.is_some(),
            }
        };
        let begun = self
            .protocol
            .begin_file(self, &connection, &file, &service)?;
        if begun.is_forbidden {
            self.warn_of_body(py, service.get())?;
        }
        Ok(begun.left)
    }

    /// A file is about to be sent, with this number of bytes.
    pub(in crate::http) fn count_file(&self, py: Python<'_>, length: usize) {
        let mut state = self.state.get_mut(py);
        if state.begun.method != Method::Head {
            state.body_length += length as u64;
        }
    }

    /// A file is being sent from here on; `tail` comes after it.
    pub(in crate::http) fn set_file_tail(&self, py: Python<'_>, tail: &'static [u8]) {
        self.state.get_mut(py).file_tail = Some(tail);
    }

    /// All of the file was sent.
    pub(super) fn end_file(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let connection = slf.get().open_connection(py)?;
        let body = objects::bytes(py, b"")?;
        Self::send_body(slf, &connection, &body, true)
    }

    /// The response can't be completed.
    pub(in crate::http) fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        match self.connection(py) {
            Some(connection) => self.protocol.give_up(self, &connection),
            None => Ok(()),
        }
    }

    /// Answers with an error; if a response has begun, it just ends. `scope` is that of a request that is logged.
    pub(in crate::http) fn refuse(
        &self,
        connection: &Bound<'_, PyAny>,
        scope: Option<Py<PyDict>>,
        status: u16,
        text: &str,
    ) -> PyResult<()> {
        self.protocol.refuse(self, connection, scope, status, text)
    }

    /// Counts a response that has ended before it was complete, if one has begun. Returns whether one has.
    pub(in crate::http) fn count_broken(&self, py: Python<'_>, service: &HttpService) -> bool {
        let (is_started, is_complete, begun, status) = {
            let state = self.state.get(py);
            (
                state.is_started,
                state.is_complete,
                state.begun,
                state.status,
            )
        };
        if is_started && !is_complete {
            service.count_response(py, Some(begun), status);
        }
        is_started
    }
}

/// The error that uvicorn raises, where it refuses the same.
#[cold]
pub(in crate::http) fn response_error(py: Python<'_>, error: ResponseError) -> PyErr {
    let text = match error {
        ResponseError::FieldName => "Invalid HTTP header name.",
        ResponseError::FieldValue => "Invalid HTTP header value.",
        ResponseError::TooLong => "Response content longer than Content-Length",
        ResponseError::TooShort(_) => "Response content shorter than Content-Length",
        other => return objects::error::<PyRuntimeError>(py, &other.to_string()),
    };
    objects::error::<PyRuntimeError>(py, text)
}
