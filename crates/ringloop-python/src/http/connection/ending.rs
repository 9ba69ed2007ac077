//! How a connection ends: refusals, closing, lingering, deadlines.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Connection, FIRST_REQUEST_S, Sent};
use crate::http::deadlines::Kind;
use crate::http::service::HttpService;
use crate::names::intern;
use crate::support::{self, CloneRefOption};

/// The reason that a client is given that was too slow.
const TIMEOUT: &str = "request timeout";

impl Connection {
    /// As `refuse`, for a request that is logged.
    pub(in crate::http) fn refuse_request(
        slf: &Bound<'_, Self>,
        scope: Option<Py<PyDict>>,
        status: u16,
        text: &str,
    ) -> PyResult<()> {
        let py = slf.py();
        let logged = match (scope, slf.get().service(py)) {
            (Some(scope), Some(service)) if !slf.get().is_closing(py) => {
                HttpService::log_access(&service, scope.bind(py), status)
            }
            _ => Ok(()),
        };
        Self::refuse(slf, status, text).and(logged)
    }

    /// Answers with an error and ends the connection; if a response has begun, it just ends.
    pub(in crate::http) fn refuse(slf: &Bound<'_, Self>, status: u16, text: &str) -> PyResult<()> {
        Self::refuse_with(slf, status, text, &[])
    }

    /// As `refuse`, with more fields.
    pub(super) fn refuse_with(
        slf: &Bound<'_, Self>,
        status: u16,
        text: &str,
        fields: &[(&[u8], &[u8])],
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(service) = this.service(py) else {
            return Ok(());
        };
        let mut buffer = service.get().take_buffer(py);
        let is_refused = service.get().with_lines(py, |lines, unix_s| {
            let mut state = this.state.get_mut(py);
            let defaults = service.get().default_fields();
            let fields = fields.iter().copied().chain(defaults);
            state
                .http
                .refuse(status, text, fields, lines, unix_s, &mut buffer)
        });
        if is_refused {
            let begun = this.current(py).map(|request| request.get().begun(py));
            service.get().count_response(py, begun, status);
        }
        let result = Self::write(slf, &buffer, None, b"");
        service.get().return_buffer(py, buffer);
        result.and(Self::linger(slf))
    }

    /// Closes the connection once everything is sent.
    pub(in crate::http) fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if slf.get().is_closing(py) {
            return Ok(());
        }
        let result = Self::end(slf);
        slf.get().close_transport(py)?;
        let is_shutting_down =
            (slf.get().service(py)).is_some_and(|it| it.get().is_shutting_down(py));
        if is_shutting_down {
            slf.get().limit_closing(py)?;
        }
        result
    }

    /// While the server shuts down, a connection that closes ends after a moment. Under TLS it would wait until the
    /// client has closed, too, which many don't do.
    pub(super) fn limit_closing(&self, py: Python<'_>) -> PyResult<()> {
        let is_native = self.state.get(py).socket.is_some();
        if is_native {
            return Ok(());
        }
        self.set_deadline(py, Some(Kind::Linger))
    }

    /// The time to linger, or to close, is over.
    pub(in crate::http) fn on_lingered(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let is_lingering = this.state.get(py).is_lingering;
        let is_unsent = this.sent(py)?.unsent > 0;
        if is_lingering && is_unsent {
            // The client has yet to read what it was sent: the deadline for writing sees to it that it does.
            this.set_deadline(py, Some(Kind::Linger))
        } else if is_lingering {
            this.close_transport(py)
        } else if is_unsent {
            this.limit_closing(py)
        } else {
            Self::abort(slf)
        }
    }

    pub(in crate::http) fn close_transport(&self, py: Python<'_>) -> PyResult<()> {
        let flushed = self.flush_output(py);
        let closed = match self.transport(py) {
            Some(transport) => transport.call_method0(intern!(py, "close")).map(drop),
            None => Ok(()),
        };
        support::first_error(py, flushed, closed)
    }

    /// As `close`, where the client may still be sending. If its data met a closed socket, the kernel would reset the
    /// connection, and the client might lose the response. So only our side ends, and what still comes is dropped, until
    /// the client has closed or its time is over, which begins when everything is sent. Under TLS the connection just
    /// closes.
    pub(in crate::http) fn linger(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let service = this.service(py).filter(|_| this.can_half_close(py));
        let Some(service) = service.filter(|it| !it.get().is_shutting_down(py)) else {
            return Self::close(slf);
        };
        let ended = Self::end(slf);
        if this.end_writing(py)? {
            if !std::mem::replace(&mut this.state.get_mut(py).is_lingering, true) {
                service.get().begin_lingering(py);
            }
            this.resume_reading(py, &service)?;
            this.set_deadline(py, Some(Kind::Linger))?;
        }
        ended
    }

    /// Whether our side can end by itself. TLS has no end of one direction.
    pub(in crate::http) fn can_half_close(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.socket.is_some() && !state.is_closing
    }

    /// Ends our side of the connection. If the client has gone, this closes it and returns false.
    pub(in crate::http) fn end_writing(&self, py: Python<'_>) -> PyResult<bool> {
        self.flush_output(py)?;
        let Some(transport) = self.transport(py) else {
            return Ok(false);
        };
        if transport.call_method0(intern!(py, "write_eof")).is_ok() {
            return Ok(true);
        }
        self.close_transport(py).map(|()| false)
    }

    /// Nothing is read or answered any more. A peer that does not take what is left keeps the connection for a limited
    /// time only.
    pub(super) fn end(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (current, streams, dropped) = {
            let mut state = this.state.get_mut(py);
            state.is_closing = true;
            state.http.abort();
            let http2 = state.http2.as_deref();
            let streams = http2.map_or(Vec::new(), |http2| http2.requests(py));
            let dropped = std::mem::take(&mut state.input);
            (state.current.clone_ref_opt(py), streams, dropped)
        };
        drop(dropped);
        this.set_deadline(py, None)?;
        let flushed = this.flush_output(py).and_then(|()| this.watch_unsent(py));
        let told = support::for_each(py, current.iter().chain(&streams), |request| {
            request.get().disconnect(py, false)
        });
        support::first_error(py, flushed, told)
    }

    pub(in crate::http) fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        slf.get().state.get_mut(py).is_closing = true;
        // As much of it as there is room for.
        let flushed = slf.get().flush_output(py);
        let aborted = match slf.get().transport(py) {
            Some(transport) => transport.call_method0(intern!(py, "abort")).map(drop),
            None => Ok(()),
        };
        support::first_error(py, flushed, aborted)
    }

    /// The server shuts down: ends the connection now if it is idle, or else after its response. A client that has just
    /// connected, or begun to send, gets time for its request.
    pub(in crate::http) fn shut_down(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if Self::shut_down_websocket(slf)? {
            return Ok(());
        }
        if slf.get().state.get(py).is_lingering {
            return slf.get().close_transport(py);
        }
        if slf.get().is_closing(py) {
            return slf.get().limit_closing(py);
        }
        let (is_idle, is_expected, service) = {
            let mut state = slf.get().state.get_mut(py);
            if state.http2.is_some() {
                drop(state);
                return Self::retire(slf);
            }
            let has_request = state.current.is_some();
            let is_idle = !has_request && state.http.is_idle();
            state.http.close_after_response();
            // Only the rest of an answered request's body would come.
            let is_over = !has_request && state.http.is_over();
            let is_expected = state.http.requests() == 0 || !state.input.is_empty();
            let is_idle = is_idle || is_over;
            let is_expected = is_expected && !is_over;
            (is_idle, is_expected, state.service.clone_ref_opt(py))
        };
        match service {
            Some(service) if is_idle && is_expected => {
                let callback = slf.getattr(intern!(py, "_close_idle"))?;
                service.get().call_later(py, FIRST_REQUEST_S, &callback)
            }
            _ if is_idle => Self::close(slf),
            _ => Ok(()),
        }
    }

    /// Closes an idle connection, unless a request has arrived that the loop has not read yet.
    pub(super) fn close_unless_asked(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let Some(transport) = slf.get().transport(py) else {
            return Ok(());
        };
        let has_arrived = support::http(py)?
            .getattr(intern!(py, "has_arrived"))?
            .call1((transport,))?
            .is_truthy()?;
        if has_arrived {
            return slf.get().set_deadline(py, Some(Kind::Idle));
        }
        Self::close(slf)
    }

    /// No request has come for a moment: the connection now keeps as little as it can.
    pub(super) fn on_idle(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let dropped = {
            let mut state = slf.get().state.get_mut(py);
            state.http.forget_head();
            state.input.shrink_to_fit();
            state.template.take()
        };
        drop(dropped);
        slf.get().set_deadline(py, Some(Kind::Idle))
    }

    /// A deadline has expired.
    pub(in crate::http) fn on_deadline(slf: &Bound<'_, Self>, kind: Kind) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let is_http2 = this.state.get(py).http2.is_some();
        if let Some(service) = this.service(py).filter(|_| is_http2) {
            if kind == Kind::Write {
                Self::on_write_deadline(slf)?;
            }
            return Self::on_deadline_http2(slf, &service, kind);
        }
        match kind {
            Kind::KeepAlive => Self::on_idle(slf),
            Kind::Idle => Self::close_unless_asked(slf),
            Kind::Linger => Self::on_lingered(slf),
            Kind::Ping | Kind::Pong | Kind::Close => Self::on_websocket_deadline(slf, kind),
            Kind::Head => {
                let has_begun = !this.state.get(py).input.is_empty();
                if has_begun {
                    Self::refuse(slf, 408, TIMEOUT)
                } else {
                    Self::close(slf)
                }
            }
            Kind::Body => Self::on_body_deadline(slf),
            Kind::Write => Self::on_write_deadline(slf),
        }
    }

    /// The client has not sent more of a body in time; or it has sent too much, and the application waits for it to leave,
    /// which isn't seen while reading is paused.
    fn on_body_deadline(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (Some(request), Some(service)) = (this.current(py), this.service(py)) else {
            return Self::refuse(slf, 408, TIMEOUT);
        };
        if !request.get().awaits_end(py) {
            return if request.get().wants_body(py) {
                Self::refuse(slf, 408, TIMEOUT)
            } else {
                Ok(()) // The application was told something else, and doesn't wait any more.
            };
        }
        if let Some(websocket) = request.get().websocket()
            && websocket.is_connecting(py)
        {
            // What was sent ahead can't be dropped: the WebSocket would begin in the middle of a frame.
            let logged = request.get().log_handshake(py, "408");
            return Self::refuse(slf, 408, TIMEOUT).and(logged);
        }
        let dropped = {
            let mut state = this.state.get_mut(py);
            state.is_overrun = true;
            state.http.close_after_response();
            std::mem::take(&mut state.input)
        };
        drop(dropped);
        this.resume_reading(py, &service)
    }

    /// Aborts the connection if its peer has not read anything.
    pub(super) fn on_write_deadline(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let before = this.state.get_mut(py).write_deadline.take();
        let now = this.sent(py)?;
        match before {
            _ if now.unsent == 0 => Ok(()),
            Some(before) if !before.has_grown_to(now) => Self::abort(slf),
            _ => this.watch_unsent(py),
        }
    }

    /// Sets the connection's deadline for anything but writing, in place of the one it had.
    pub(in crate::http) fn set_deadline(&self, py: Python<'_>, kind: Option<Kind>) -> PyResult<()> {
        let slot = self.state.get(py).slot;
        match (slot, self.service(py)) {
            (Some(slot), Some(service)) => HttpService::set_deadline(&service, slot, kind),
            _ => Ok(()),
        }
    }

    pub(super) fn sent(&self, py: Python<'_>) -> PyResult<Sent> {
        let (socket, transport, written, collected) = {
            let state = self.state.get(py);
            (
                state.socket.clone_ref_opt(py),
                state.transport.clone_ref_opt(py),
                state.written,
                state.output.len(),
            )
        };
        let unsent = match (socket, transport) {
            (Some(socket), _) => socket.get().unsent(py),
            (None, Some(transport)) => support::http(py)?
                .getattr(intern!(py, "unsent"))?
                .call1((transport,))?
                .extract()?,
            (None, None) => 0,
        };
        Ok(Sent {
            written,
            unsent: unsent + collected,
        })
    }

    /// Gives the peer a limited time for each part of what is not sent yet. Nobody tells when it is all sent: that is
    /// looked at when the time is over.
    pub(super) fn watch_unsent(&self, py: Python<'_>) -> PyResult<()> {
        let sent = self.sent(py)?;
        if sent.unsent == 0 {
            return Ok(());
        }
        self.set_write_deadline(py, sent)
    }

    /// Sets a deadline for the peer to take something, unless there is one.
    pub(in crate::http) fn set_write_deadline(&self, py: Python<'_>, sent: Sent) -> PyResult<()> {
        let (slot, service) = {
            let mut state = self.state.get_mut(py);
            if state.write_deadline.is_some() {
                return Ok(());
            }
            state.write_deadline = Some(sent);
            (state.slot, state.service.clone_ref_opt(py))
        };
        match (slot, service) {
            (Some(slot), Some(service)) => HttpService::set_write_deadline(service.bind(py), slot),
            _ => Ok(()),
        }
    }
}
