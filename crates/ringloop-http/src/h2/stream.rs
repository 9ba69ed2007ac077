//! A stream: the body of its request, and its response.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE, Entry, HeaderMap, HeaderName, HeaderValue, SERVER};
use http::{Method, Response, StatusCode};

use super::event::Event;
use crate::h1::is_forbidden_trailer;
use crate::names::Known;
use crate::response::{Framing, Lines, ResponseError};
use crate::syntax;

/// The size of the `h2` crate's send buffer of a stream, in bytes.
pub(super) const SEND_BUFFER: usize = 64 << 10;

/// The numbers of the streams that must be polled.
pub(super) type Ready = Arc<Mutex<Vec<u32>>>;

/// The waker of a stream: adds its number to those that must be polled.
#[derive(Debug)]
struct StreamFlag {
    stream: u32,
    is_ready: AtomicBool,
    ready: Ready,
}

impl Wake for StreamFlag {
    fn wake(self: Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::Relaxed) {
            self.ready
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.stream);
        }
    }
}

/// A stream's waker, which is made when the stream first has to wait. Most streams end before that.
#[derive(Default)]
struct Alarm(Option<(Arc<StreamFlag>, Waker)>);

impl Alarm {
    fn context(&mut self, stream: u32, ready: &Ready) -> Context<'_> {
        let (_, waker) = self.0.get_or_insert_with(|| {
            let flag = Arc::new(StreamFlag {
                stream,
                is_ready: AtomicBool::new(false),
                ready: Arc::clone(ready),
            });
            (Arc::clone(&flag), Waker::from(flag))
        });
        Context::from_waker(waker)
    }

    /// The stream is polled: whatever comes after this wakes it again.
    fn reset(&self) {
        if let Some((flag, _)) = &self.0 {
            flag.is_ready.store(false, Ordering::Relaxed);
        }
    }
}

/// The sending half of a stream.
enum Sending {
    Head(SendResponse<Bytes>),
    Body(SendStream<Bytes>),
}

#[allow(
    clippy::struct_excessive_bools,
    reason = "the two directions are independent"
)]
pub(super) struct Stream {
    number: u32,
    alarm: Alarm,
    is_head: bool,
    is_connect: bool,
    is_websocket: bool,
    receiving: Option<RecvStream>,
    /// Whether the request ended with trailers that are not allowed, so that the stream is reset.
    has_invalid_trailers: bool,
    /// None: the request has no body.
    flow: Option<h2::FlowControl>,
    sending: Sending,
    /// A head that was begun and not sent, and its Content-Length.
    parked: Option<(Response<()>, Option<u64>)>,
    framing: Framing,
    /// Whether the response consists of its head only.
    is_head_only: bool,
    /// The part of the response's body that the client has not made room for: the first piece, and the others.
    next: Bytes,
    pending: VecDeque<Bytes>,
    /// The length of all of it.
    pending_bytes: usize,
    /// Whether [`Event::Drained`] is due when nothing is pending any more.
    has_waited: bool,
    /// When the pending part was last reduced.
    stalled_since_ms: u64,
    /// Whether the application has passed in all of the response.
    is_last: bool,
    trailers: Option<HeaderMap>,
    /// Whether the end of the response was passed to the `h2` crate.
    has_ended: bool,
}

/// The head of a response that is being written. Dropping it forgets what was written.
#[must_use]
pub struct Head<'a> {
    stream: &'a mut Stream,
    response: Response<()>,
    /// Not among the fields of the response yet.
    content_length: Option<u64>,
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.response.fmt(formatter)
    }
}

impl Head<'_> {
    /// Adds a field. Connection-specific fields of HTTP/1 are left out (RFC 9113, section 8.2.2).
    ///
    /// # Errors
    /// If the field is invalid, or a second Content-Length.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), ResponseError> {
        let headers = self.response.headers_mut();
        add_field(name, value, headers, &mut self.content_length)
    }

    /// Keeps the head for [`send_head`](super::Connection::send_head).
    pub fn park(self) {
        self.stream.parked = Some((self.response, self.content_length));
    }
}

impl Stream {
    /// The stream of a request, with its body if it has one.
    pub(super) fn new(
        number: u32,
        method: &Method,
        receiving: Option<RecvStream>,
        response: SendResponse<Bytes>,
    ) -> Self {
        let mut receiving = receiving;
        let flow = receiving.as_mut().map(|it| it.flow_control().clone());
        Stream {
            number,
            alarm: Alarm::default(),
            is_head: *method == Method::HEAD,
            is_connect: *method == Method::CONNECT,
            is_websocket: false,
            receiving,
            has_invalid_trailers: false,
            flow,
            sending: Sending::Head(response),
            parked: None,
            framing: Framing::Nothing,
            is_head_only: false,
            next: Bytes::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            has_waited: false,
            stalled_since_ms: 0,
            is_last: false,
            trailers: None,
            has_ended: false,
        }
    }

    /// Says whether the request is for a WebSocket.
    pub(super) fn set_websocket(&mut self, is_websocket: bool) {
        self.is_websocket = is_websocket;
    }

    // ---- the request

    /// Receives and sends what is possible. An error ends the stream. Its number is added to `ready` when it must be
    /// polled again.
    pub(super) fn poll(
        &mut self,
        ready: &Ready,
        events: &mut VecDeque<Event>,
        now_ms: u64,
    ) -> Result<(), Reason> {
        self.alarm.reset();
        self.receive(ready, events)?;
        let mut context = self.alarm.context(self.number, ready);
        check_reset(&mut self.sending, &mut context)?;
        self.send(ready, now_ms)
    }

    /// Fails if the stream was reset while it waited to be accepted.
    pub(super) fn check_accepted(&mut self) -> Result<(), Reason> {
        check_reset(&mut self.sending, &mut Context::from_waker(Waker::noop()))
    }

    /// Receives the request's body. An error ends the stream.
    fn receive(&mut self, ready: &Ready, events: &mut VecDeque<Event>) -> Result<(), Reason> {
        let mut context = self.alarm.context(self.number, ready);
        while let Some(receiving) = &mut self.receiving {
            match receiving.poll_data(&mut context) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(data))) => {
                    let end = receiving.is_end_stream();
                    if end {
                        self.receiving = None;
                    } else if data.is_empty() {
                        continue;
                    }
                    let stream = self.number;
                    events.push_back(Event::Data { stream, data, end });
                }
                Poll::Ready(Some(Err(error))) => return Err(reason_of(&error)),
                Poll::Ready(None) => match receiving.poll_trailers(&mut context) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => return Err(reason_of(&error)),
                    Poll::Ready(Ok(trailers)) => {
                        self.receiving = None;
                        let stream = self.number;
                        events.push_back(match trailers.as_ref().map(check_trailers) {
                            None => Event::Data {
                                stream,
                                data: Bytes::new(),
                                end: true,
                            },
                            Some(Some(fields)) => Event::Trailers { stream, fields },
                            Some(None) => {
                                self.has_invalid_trailers = true;
                                return Err(Reason::PROTOCOL_ERROR);
                            }
                        });
                    }
                },
            }
        }
        Ok(())
    }

    /// Whether the request ended with trailers that are not allowed, so that the stream is reset.
    pub(super) fn has_invalid_trailers(&self) -> bool {
        self.has_invalid_trailers
    }

    /// Lets the client send `length` more bytes of the request's body.
    pub(super) fn release(&mut self, length: usize) {
        if let Some(flow) = &mut self.flow {
            // Releasing more than was received has no effect.
            let _ = flow.release_capacity(length);
        }
    }

    // ---- the response

    /// Begins the head of the response. See [`Connection::begin`](super::Connection::begin).
    pub(super) fn begin(&mut self, status: u16) -> Result<Head<'_>, ResponseError> {
        if self.parked.is_some() {
            return Err(ResponseError::Begun);
        }
        let opens_tunnel = |code: StatusCode| self.is_connect && code.is_success();
        let is_allowed = |code: StatusCode| !code.is_informational() && !opens_tunnel(code);
        let response = self.unsent_head(status, is_allowed)?;
        Ok(Head {
            stream: self,
            response,
            content_length: None,
        })
    }

    /// Sends the head that was begun. See [`Connection::send_head`](super::Connection::send_head).
    pub(super) fn send_head(
        &mut self,
        complete: Option<u64>,
        has_trailers: bool,
        lines: &mut Lines,
        unix_s: u64,
    ) -> Result<(), ResponseError> {
        let (Sending::Head(sending), Some(parked)) = (&mut self.sending, self.parked.take()) else {
            return Err(ResponseError::NotBegun);
        };
        let (mut head, given) = parked;
        let status = head.status().as_u16();
        let (framing, written) =
            Framing::choose(status, self.is_head, given, complete, Framing::Stream);
        let headers = head.headers_mut();
        // A map that is full takes no more.
        let full = |_| ResponseError::FieldName;
        if let Some(length) = written {
            let value = HeaderValue::from(length);
            headers.try_insert(CONTENT_LENGTH, value).map_err(full)?;
        }
        add_lines(headers, lines, unix_s)?;
        let is_head_only = match framing {
            Framing::Nothing | Framing::Discarded => true,
            Framing::Length(0) => !has_trailers,
            _ => false,
        };
        let sending = sending
            .send_response(head, is_head_only)
            .map_err(|_| ResponseError::NoRequest)?;
        self.sending = Sending::Body(sending);
        self.framing = framing;
        self.is_head_only = is_head_only;
        Ok(())
    }

    /// Accepts a request for a WebSocket. See [`Connection::open`](super::Connection::open).
    pub(super) fn open<'f>(
        &mut self,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        lines: &mut Lines,
        unix_s: u64,
    ) -> Result<(), ResponseError> {
        let is_allowed = |_: StatusCode| self.is_websocket && self.parked.is_none();
        let mut head = self.unsent_head(200, is_allowed)?;
        let mut content_length = None;
        for (name, value) in fields {
            add_field(name, value, head.headers_mut(), &mut content_length)?;
        }
        add_lines(head.headers_mut(), lines, unix_s)?;
        let Sending::Head(response) = &mut self.sending else {
            return Err(ResponseError::Begun);
        };
        let sending = response
            .send_response(head, false)
            .map_err(|_| ResponseError::NoRequest)?;
        self.sending = Sending::Body(sending);
        self.framing = Framing::Stream;
        Ok(())
    }

    /// Sends an informational response. See [`Connection::inform`](super::Connection::inform).
    pub(super) fn inform<'f>(
        &mut self,
        status: u16,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    ) -> Result<(), ResponseError> {
        let is_allowed =
            |code: StatusCode| code.is_informational() && code != StatusCode::SWITCHING_PROTOCOLS;
        let mut head = self.unsent_head(status, is_allowed)?;
        let mut content_length = None;
        for (name, value) in fields {
            add_field(name, value, head.headers_mut(), &mut content_length)?;
        }
        let Sending::Head(response) = &mut self.sending else {
            return Err(ResponseError::Begun);
        };
        response
            .send_informational(head)
            .map_err(|_| ResponseError::NoRequest)
    }

    /// A head with this status, if none was sent yet.
    fn unsent_head(
        &self,
        status: u16,
        is_allowed: impl FnOnce(StatusCode) -> bool,
    ) -> Result<Response<()>, ResponseError> {
        if let Sending::Body(_) = self.sending {
            return Err(ResponseError::Begun);
        }
        let mut head = Response::new(());
        *head.status_mut() = match StatusCode::from_u16(status) {
            Ok(code) if is_allowed(code) => code,
            _ => return Err(ResponseError::Status(status)),
        };
        Ok(head)
    }

    /// Buffers a piece of the body, for [`flush`](Stream::flush).
    pub(super) fn add(
        &mut self,
        data: Bytes,
        last: bool,
        now_ms: u64,
    ) -> Result<(), ResponseError> {
        self.check_is_responding()?;
        if self.framing.account(data.len(), last)? && !data.is_empty() {
            let is_first = self.pending_bytes == 0;
            self.pending_bytes += data.len();
            if is_first {
                self.stalled_since_ms = now_ms;
                self.next = data;
            } else {
                self.pending.push_back(data);
            }
        }
        self.is_last = last;
        Ok(())
    }

    /// How much of the body is still to be added, if that is known.
    pub(super) fn announced(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(left) => Some(left),
            Framing::Nothing | Framing::Discarded => Some(0),
            Framing::Chunked | Framing::Stream => None,
        }
    }

    /// Whether the response must not have a body, because of its status.
    pub(super) fn forbids_body(&self) -> bool {
        matches!(self.sending, Sending::Body(_)) && self.framing == Framing::Nothing
    }

    /// Whether the head was sent as the whole response.
    pub(super) fn is_head_only(&self) -> bool {
        self.is_head_only
    }

    /// Finishes the body with trailers, for [`flush`](Stream::flush).
    pub(super) fn add_trailers<'f>(
        &mut self,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    ) -> Result<(), ResponseError> {
        self.check_is_responding()?;
        let mut trailers = HeaderMap::new();
        for (name, value) in fields {
            if is_forbidden_trailer(name) {
                return Err(ResponseError::FieldName);
            }
            append(Known::find(name), name, value, &mut trailers)?;
        }
        self.framing.account(0, true)?;
        if !self.is_head_only {
            self.trailers = Some(trailers);
        }
        self.is_last = true;
        Ok(())
    }

    /// Fails unless the response was started and is not finished.
    fn check_is_responding(&self) -> Result<(), ResponseError> {
        match self.sending {
            Sending::Head(_) => Err(ResponseError::NotBegun),
            Sending::Body(_) if self.is_last => Err(ResponseError::NotBegun),
            Sending::Body(_) => Ok(()),
        }
    }

    /// Sends what is buffered, as far as the client has made room.
    pub(super) fn flush(&mut self, ready: &Ready, now_ms: u64) -> Result<(), Reason> {
        let outcome = self.send(ready, now_ms);
        self.has_waited |= self.pending_bytes > 0;
        outcome
    }

    /// How much is buffered, in bytes.
    pub(super) fn buffered(&self) -> usize {
        self.pending_bytes
    }

    /// When the buffered part was last reduced, if there is one.
    pub(super) fn stalled_since_ms(&self) -> Option<u64> {
        (self.pending_bytes > 0).then_some(self.stalled_since_ms)
    }

    /// Whether what was buffered is sent since the last call.
    pub(super) fn has_drained(&mut self) -> bool {
        let has_drained = self.has_waited && self.pending_bytes == 0;
        if has_drained {
            self.has_waited = false;
        }
        has_drained
    }

    /// Whether the end of the response was passed to the `h2` crate.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Passes to the `h2` crate what the client has made room for.
    fn send(&mut self, ready: &Ready, now_ms: u64) -> Result<(), Reason> {
        let Sending::Body(body) = &mut self.sending else {
            return Ok(());
        };
        let gone = |_| Reason::CANCEL;
        while self.pending_bytes > 0 {
            let mut capacity = body.capacity();
            if capacity == 0 {
                body.reserve_capacity(self.pending_bytes.min(SEND_BUFFER));
                capacity = body.capacity();
            }
            if capacity == 0 {
                let mut context = self.alarm.context(self.number, ready);
                capacity = match body.poll_capacity(&mut context) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Some(Ok(capacity))) => capacity,
                    Poll::Ready(Some(Err(error))) => return Err(reason_of(&error)),
                    Poll::Ready(None) => return Err(Reason::CANCEL),
                };
            }
            let data = self.next.split_to(capacity.min(self.next.len()));
            if self.next.is_empty() {
                self.next = self.pending.pop_front().unwrap_or_default();
            }
            self.pending_bytes -= data.len();
            self.stalled_since_ms = now_ms;
            let ends = self.is_last && self.pending_bytes == 0 && self.trailers.is_none();
            body.send_data(data, ends).map_err(gone)?;
            self.has_ended |= ends;
        }
        if self.is_last && !self.has_ended {
            match self.trailers.take() {
                Some(trailers) => body.send_trailers(trailers).map_err(gone)?,
                None if self.is_head_only => {}
                None => body.send_data(Bytes::new(), true).map_err(gone)?,
            }
            self.has_ended = true;
        }
        Ok(())
    }

    /// Resets the stream.
    pub(super) fn reset(&mut self, reason: Reason) {
        match &mut self.sending {
            Sending::Head(response) => response.send_reset(reason),
            Sending::Body(body) => body.send_reset(reason),
        }
    }
}

/// Fails if the client has reset the stream, or if the connection has failed.
fn check_reset(sending: &mut Sending, context: &mut Context<'_>) -> Result<(), Reason> {
    let polled = match sending {
        Sending::Head(response) => response.poll_reset(context),
        Sending::Body(body) => body.poll_reset(context),
    };
    match polled {
        Poll::Pending => Ok(()),
        Poll::Ready(Ok(reason)) => Err(reason),
        Poll::Ready(Err(error)) => Err(reason_of(&error)),
    }
}

fn reason_of(error: &h2::Error) -> Reason {
    error.reason().unwrap_or(Reason::CANCEL)
}

/// Converts the trailers of a request. `None` if a field is not allowed in trailers.
fn check_trailers(trailers: &HeaderMap) -> Option<Vec<(String, Vec<u8>)>> {
    trailers
        .iter()
        .map(|(name, value)| {
            let is_allowed = !is_forbidden_trailer(name.as_str().as_bytes());
            is_allowed.then(|| (name.to_string(), value.as_bytes().to_vec()))
        })
        .collect()
}

/// Adds Date and Server, unless the response has its own.
fn add_lines(headers: &mut HeaderMap, lines: &mut Lines, unix_s: u64) -> Result<(), ResponseError> {
    let (date, server) = lines.values(unix_s);
    for (name, value) in [(DATE, date), (SERVER, server)] {
        if let Some(value) = value
            && let Ok(Entry::Vacant(place)) = headers.try_entry(name)
        {
            // A map that is full takes no more.
            place
                .try_insert(value.clone())
                .map_err(|_| ResponseError::FieldName)?;
        }
    }
    Ok(())
}

/// Adds a field of a response. Those of HTTP/1 connections are left out, and Content-Length is set apart.
fn add_field(
    name: &[u8],
    value: &[u8],
    headers: &mut HeaderMap,
    content_length: &mut Option<u64>,
) -> Result<(), ResponseError> {
    match Known::find(name) {
        Some(
            Known::CONNECTION
            | Known::KEEP_ALIVE
            | Known::PROXY_CONNECTION
            | Known::TRANSFER_ENCODING
            | Known::UPGRADE,
        ) => Ok(()),
        Some(Known::CONTENT_LENGTH) => {
            let length =
                syntax::decimal(syntax::trim(value)).ok_or(ResponseError::ContentLength)?;
            syntax::set_once(content_length, length, ResponseError::ContentLength)
        }
        known => append(known, name, value, headers),
    }
}

/// Adds a field. `known` is its name, if that is a known one.
fn append(
    known: Option<Known>,
    name: &[u8],
    value: &[u8],
    headers: &mut HeaderMap,
) -> Result<(), ResponseError> {
    static NAMES: LazyLock<Vec<HeaderName>> = LazyLock::new(|| {
        let names = Known::NAMES.iter().copied();
        names.map(HeaderName::from_static).collect()
    });
    let name = match known {
        Some(known) => NAMES[known.index()].clone(),
        None => HeaderName::from_bytes(name).map_err(|_| ResponseError::FieldName)?,
    };
    let value =
        HeaderValue::from_bytes(syntax::trim(value)).map_err(|_| ResponseError::FieldValue)?;
    headers
        .try_append(name, value)
        .map(drop)
        .map_err(|_| ResponseError::FieldName)
}
