//! A WebSocket on a stream of HTTP/2 (RFC 8441): what it does where one of HTTP/1.1 has a connection to itself.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringloop_http::ResponseError;
use ringloop_http::websocket::{AcceptError, Connection as Codec, Handshake};

use super::Connection;
use super::http1::connection;
use super::http2::{now_ms, shared};
use crate::http::deadlines::Kind;
use crate::http::exchange::Exchange;
use crate::http::h2::{Http2, Stream, Unread};
use crate::http::service::HttpService;
use crate::http::websocket::Phase;
use crate::support;

/// Error code (RFC 9113, section 7).
const CANCEL: u32 = 8;

impl Connection {
    /// Takes what has arrived on the stream of a WebSocket.
    pub(super) fn arrive_on_stream(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, Exchange>,
        data: &[u8],
        end: bool,
    ) -> PyResult<()> {
        let stream = request.get().number();
        slf.get().with_http2(slf.py(), |http2| {
            if let Some(unread) = http2.unread(stream) {
                unread.add(data);
                unread.has_ended |= end;
            }
        });
        Self::read_stream(slf, request.get())
    }

    /// Has a WebSocket read what has arrived on its stream, as far as the application has room for it. The client may send
    /// as much again. What comes before the handshake is accepted is kept.
    fn read_stream(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let stream = exchange.number();
        let (Some(websocket), Some(service)) = (exchange.websocket(), this.link.service(py)) else {
            return Ok(());
        };
        let phase = websocket.phase(py);
        let is_waiting = matches!(phase, Phase::Connecting | Phase::Denying);
        let is_full = websocket.is_full(py, service.get());
        let taken = this.with_http2(py, |http2| {
            let unread = http2.unread(stream)?;
            let has_ended = unread.has_ended;
            let is_later = is_waiting || (is_full && !has_ended);
            let input = (!is_later).then(|| unread.take());
            Some((has_ended, input))
        });
        let Some((has_ended, input)) = taken.flatten() else {
            return Ok(());
        };
        let read = match input {
            Some((mut input, at)) => {
                let read = Self::read_websocket(slf, exchange, &mut input[at..], has_ended);
                let used = *read.as_ref().unwrap_or(&(input.len() - at));
                this.with_http2(py, |http2| {
                    http2.messages.release(stream, used);
                    if let Some(unread) = http2.unread(stream) {
                        unread.put_back(input, at + used);
                    }
                });
                read.map(drop)
            }
            None => Ok(()),
        };
        if has_ended && phase != Phase::Denying {
            return support::first_error(py, read, Self::end_stream(slf, exchange));
        }
        read
    }

    /// Reads on: the application has taken all messages.
    pub(super) fn read_stream_on(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        let stream = exchange.number();
        let has_unread = |unread: &mut Unread| !unread.is_empty();
        let found = slf
            .get()
            .with_http2(slf.py(), |http2| http2.unread(stream).map(has_unread));
        if found.flatten() != Some(true) {
            return Ok(());
        }
        Self::while_busy(slf, || Self::read_stream(slf, exchange))?;
        Self::drive(slf)
    }

    /// The client has ended its side of the connection: has the WebSockets read what they have not.
    pub(super) fn end_streams_input(slf: &Bound<'_, Self>) -> PyResult<()> {
        if slf.get().state.get(slf.py()).http2.is_none() {
            return Ok(());
        }
        let read = Self::while_busy(slf, || {
            Self::for_each_stream(slf, |slf, exchange| {
                slf.get().with_http2(slf.py(), |http2| {
                    let unread = http2.unread(exchange.number());
                    unread.map(|unread| unread.has_ended = true)
                });
                Self::read_stream(slf, exchange)
            })
        });
        // What they have answered is sent before the end.
        support::first_error(slf.py(), read, Self::drive(slf))
    }

    /// Has what arrives wait while input is read: it is behind that.
    fn while_busy(slf: &Bound<'_, Self>, run: impl FnOnce() -> PyResult<()>) -> PyResult<()> {
        let py = slf.py();
        let was_busy = std::mem::replace(&mut slf.get().state.get_mut(py).is_busy, true);
        let result = run();
        if !was_busy {
            slf.get().state.get_mut(py).is_busy = false;
        }
        result
    }

    /// Has the rest of the input read in the next turn.
    pub(super) fn read_stream_later(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        let py = slf.py();
        let stream = exchange.number();
        let is_left = slf.get().with_http2(py, |http2| {
            let is_left = http2
                .unread(stream)
                .is_some_and(|unread| !unread.is_empty() || unread.has_ended);
            if is_left {
                http2.reading.push_back(stream);
            }
            is_left
        });
        match slf.get().link.service(py) {
            Some(service) if is_left == Some(true) => slf.get().link.continue_later(slf, &service),
            _ => Ok(()),
        }
    }

    /// Reads on the streams that were put off.
    pub(super) fn read_streams(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let next = || {
            let next = slf.get().with_http2(py, |http2| {
                loop {
                    let stream = http2.reading.pop_front()?;
                    if let Some(request) = http2.request(py, stream) {
                        return Some(request);
                    }
                }
            });
            next.flatten()
        };
        let mut result = Ok(());
        while let Some(request) = next() {
            let read = Self::read_stream(slf, request.get());
            result = support::first_error(py, result, read);
        }
        result
    }

    /// Accepts a handshake. From here on the stream carries a WebSocket.
    pub(super) fn accept_on_stream(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
        handshake: &Handshake,
        subprotocol: Option<&str>,
        fields: &[(Vec<u8>, Vec<u8>)],
        service: &HttpService,
    ) -> Result<Codec, AcceptError> {
        let py = slf.py();
        let mut all = Vec::new();
        let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
        let codec =
            handshake.accept_on_stream(subprotocol.map(str::as_bytes), fields, |name, value| {
                all.push((name.to_vec(), value.to_vec()));
            })?;
        let fields = all.iter().map(|(name, value)| (&name[..], &value[..]));
        let opened = slf.get().with_http2(py, |http2| {
            service.with_lines(py, |lines, unix_s| {
                http2
                    .messages
                    .open(exchange.number(), fields, lines, unix_s)
            })
        });
        match opened {
            // One that the client has reset takes everything and drops it; its end is told.
            None | Some(Ok(()) | Err(ResponseError::NoRequest)) => Ok(codec),
            Some(Err(error)) => Err(AcceptError::Response(error)),
        }
    }

    /// Writes a frame, and `payload` behind it.
    pub(super) fn write_on_stream(
        slf: &Bound<'_, Self>,
        stream: Stream,
        frame: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        let sent = slf.get().with_http2(slf.py(), |http2| {
            let frame = Bytes::copy_from_slice(frame);
            for piece in std::iter::once(frame).chain(payload.map(shared)) {
                // A stream that has ended takes everything and drops it.
                let _ = http2.messages.send(stream, piece, false, now_ms());
            }
            http2.has_waited |= http2.messages.buffered(stream) > 0;
        });
        if sent.is_none() {
            return Ok(());
        }
        Self::drive(slf)
    }

    /// Ends our side of a WebSocket's stream, once everything is sent, and forgets it: nothing is read or sent any more.
    pub(super) fn end_stream(slf: &Bound<'_, Self>, exchange: &Exchange) -> PyResult<()> {
        let stream = exchange.number();
        let is_left = slf.get().with_http2(slf.py(), |http2| {
            if !http2.exchanges.contains_key(&stream) {
                return true;
            }
            let ended = http2.messages.send(stream, Bytes::new(), true, now_ms());
            if ended.is_err() {
                // The handshake was not answered.
                http2.messages.reset(stream, CANCEL);
            }
            http2.has_waited |= http2.messages.buffered(stream) > 0;
            false
        });
        if is_left == Some(false) {
            Self::leave_stream(slf, stream)
        } else {
            Ok(())
        }
    }

    /// Sets the deadline that the WebSocket of a stream has.
    pub(super) fn set_stream_deadline(
        slf: &Bound<'_, Self>,
        exchange: &Exchange,
        kind: Kind,
    ) -> PyResult<()> {
        let py = slf.py();
        let (Some(websocket), Some(service)) = (exchange.websocket(), slf.get().link.service(py))
        else {
            return Ok(());
        };
        let slot = if let Some(slot) = websocket.slot(py) {
            slot
        } else {
            let find = |http2: &mut Http2| http2.request(py, exchange.number());
            let Some(request) = slf.get().with_http2(py, find).flatten() else {
                return Ok(());
            };
            let slot = service.get().enter_stream(request.bind(py).as_any());
            websocket.set_slot(py, slot);
            slot
        };
        HttpService::set_deadline(&service, slot, Some(kind))
    }

    /// A deadline of a WebSocket on a stream has expired.
    pub(in crate::http) fn on_stream_deadline(
        exchange: &Bound<'_, Exchange>,
        kind: Kind,
    ) -> PyResult<()> {
        let py = exchange.py();
        let Some(object) = exchange.get().connection(py) else {
            return Ok(());
        };
        let slf = connection(&object)?;
        match kind {
            Kind::Ping | Kind::Pong => Self::on_ping_deadline(slf, exchange.get(), kind),
            _ => Self::end_stream(slf, exchange.get()),
        }
    }

    /// Whether the client of a silent stream may be waiting for us.
    pub(super) fn has_stream_work_left(&self, py: Python<'_>, stream: Stream) -> bool {
        let has_work = self.with_http2(py, |http2| {
            http2.messages.buffered(stream) > 0
                || http2.unread(stream).is_some_and(|it| !it.is_empty())
        });
        has_work == Some(true)
    }

    /// Does something with the WebSocket of each stream.
    pub(super) fn for_each_stream(
        slf: &Bound<'_, Self>,
        run: impl Fn(&Bound<'_, Self>, &Exchange) -> PyResult<()>,
    ) -> PyResult<()> {
        let py = slf.py();
        let requests = slf.get().with_http2(py, |http2| http2.requests(py));
        let requests = requests.unwrap_or_default().into_iter();
        let websockets = requests.filter(|it| it.get().websocket().is_some());
        support::for_each(py, websockets, |request| run(slf, request.get()))
    }
}
