//! How a connection ends: refusals, closing, lingering, deadlines.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Connection, FIRST_REQUEST_S};
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
        let begun = slf.get().current(py).map(|request| request.get().begun(py));
        let logged = match (scope, slf.get().link.service(py)) {
            (Some(scope), Some(service)) if !slf.get().link.is_closing(py) => {
                HttpService::log_refusal(&service, scope.bind(py), status, begun, text)
            }
            _ => Ok(()),
        };
        Self::refuse(slf, status, text).and(logged)
    }

    /// Logs that the client has sent something that is refused, and what becomes of it: as "gets 400: invalid host".
    #[cold]
    pub(super) fn warn_of_invalid(
        &self,
        service: &Bound<'_, HttpService>,
        outcome: &str,
    ) -> PyResult<()> {
        let py = service.py();
        let peer = self.link.peer(py)?;
        let none = py.None().into_bound(py);
        let client = peer.as_ref().map_or(&none, |peer| peer.client(py));
        service.get().warn_of_invalid(py, client, outcome)
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
        let Some(service) = this.link.service(py) else {
            return Ok(());
        };
        let mut buffer = service.get().take_buffer(py);
        let is_refused = {
            let mut state = this.state.get_mut(py);
            let defaults = service.get().default_fields();
            let fields = fields.iter().copied().chain(defaults);
            service.get().with_lines(py, |lines, unix_s| {
                state
                    .http
                    .refuse(status, text, fields, lines, unix_s, &mut buffer)
            })
        };
        if is_refused {
            let begun = this.current(py).map(|request| request.get().begun(py));
            service.get().count_response(py, begun, status);
        }
        let result = slf.get().link.write(slf, &buffer, None, b"");
        service.get().return_buffer(py, buffer);
        result.and(Self::linger(slf))
    }

    /// Closes the connection once everything is sent.
    pub(in crate::http) fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if slf.get().link.is_closing(py) {
            return Ok(());
        }
        let result = Self::end(slf);
        slf.get().link.close(py)?;
        let is_shutting_down =
            (slf.get().link.service(py)).is_some_and(|it| it.get().is_shutting_down(py));
        if is_shutting_down {
            slf.get().link.limit_closing(py)?;
        }
        result
    }

    /// As `close`, where the client may still be sending. If its data met a closed socket, the kernel would reset the
    /// connection, and the client might lose the response. So only our side ends, and what still comes is dropped, until
    /// the client has closed or its time is over, which begins when everything is sent. Under TLS the connection just
    /// closes.
    pub(in crate::http) fn linger(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let has_ended = this.state.get(py).has_ended;
        let service = this
            .link
            .service(py)
            .filter(|_| !has_ended && this.link.can_half_close(py));
        let Some(service) = service.filter(|it| !it.get().is_shutting_down(py)) else {
            return Self::close(slf);
        };
        let ended = Self::end(slf);
        if this.link.end_writing(py)? {
            this.link.linger(py, &service)?;
        }
        ended
    }

    /// Nothing is read or answered any more. A peer that does not take what is left keeps the connection for a limited
    /// time only.
    pub(super) fn end(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        this.link.begin_closing(py);
        let (current, streams, dropped) = {
            let mut state = this.state.get_mut(py);
            state.http.abort();
            let http2 = state.http2.as_deref();
            let streams = http2.map_or(Vec::new(), |http2| http2.requests(py));
            let dropped = std::mem::take(&mut state.input);
            (state.current.clone_ref_opt(py), streams, dropped)
        };
        drop(dropped);
        let flushed = this.link.end(py);
        let told = support::for_each(py, current.iter().chain(&streams), |request| {
            request.get().disconnect(py, false)
        });
        support::first_error(py, flushed, told)
    }

    pub(in crate::http) fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().link.abort(slf.py())
    }

    /// The server shuts down: ends the connection now if it is idle, or else after its response. A client that has just
    /// connected, or begun to send, gets time for its request.
    pub(in crate::http) fn shut_down(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if Self::shut_down_websocket(slf)? {
            return Ok(());
        }
        if slf.get().link.is_lingering(py) {
            return slf.get().link.close(py);
        }
        if slf.get().link.is_closing(py) {
            return slf.get().link.limit_closing(py);
        }
        let (is_idle, is_expected) = {
            let mut state = slf.get().state.get_mut(py);
            if state.http2.is_some() {
                drop(state);
                let closed = Self::for_each_stream(slf, Self::shut_down_open_websocket);
                return closed.and(Self::retire(slf));
            }
            let has_request = state.current.is_some();
            let is_idle = !has_request && state.http.is_idle();
            state.http.close_after_response();
            // Only the rest of an answered request's body would come.
            let is_over = !has_request && state.http.is_over();
            let is_expected = state.http.requests() == 0 || !state.input.is_empty();
            let is_idle = is_idle || is_over;
            let is_expected = is_expected && !is_over;
            (is_idle, is_expected)
        };
        match slf.get().link.service(py) {
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
        let Some(transport) = slf.get().link.transport(py) else {
            return Ok(());
        };
        let has_arrived = support::http(py)?
            .getattr(intern!(py, "has_arrived"))?
            .call1((transport,))?
            .is_truthy()?;
        if has_arrived {
            return slf.get().link.set_deadline(py, Some(Kind::Idle));
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
        slf.get().link.set_deadline(py, Some(Kind::Idle))
    }

    /// A deadline has expired.
    pub(in crate::http) fn on_deadline(slf: &Bound<'_, Self>, kind: Kind) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let is_http2 = this.state.get(py).http2.is_some();
        if let Some(service) = this.link.service(py).filter(|_| is_http2) {
            if kind == Kind::Write {
                slf.get().link.on_write_deadline(slf.py())?;
            }
            return Self::on_deadline_http2(slf, &service, kind);
        }
        match kind {
            Kind::KeepAlive => Self::on_idle(slf),
            Kind::Idle => Self::close_unless_asked(slf),
            Kind::Linger => slf.get().link.on_lingered(slf.py()),
            Kind::Gather => Self::on_gathering_deadline(slf),
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
            Kind::Write => slf.get().link.on_write_deadline(slf.py()),
        }
    }

    /// The client has not sent more of a body in time; or it has sent too much, and the application waits for it to leave,
    /// which isn't seen while reading is paused.
    fn on_body_deadline(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (Some(request), Some(service)) = (this.current(py), this.link.service(py)) else {
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
        this.link.resume_reading(py, &service)
    }
}
