//! The state of an HTTP/2 connection: one type around the connection, the streams and the futures of the `h2` crate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use h2::server::{self, Handshake, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE, HeaderMap, HeaderName, HeaderValue, SERVER};
use http::{Response, StatusCode};

use super::Config;
use super::meter::Meter;
use super::pipe::Pipe;
use super::request::{Refused, Request};
use crate::h1::{Form, is_forbidden_trailer};
use crate::names::Known;
use crate::response::{Framing, Lines, ResponseError};
use crate::syntax;

/// What happened on a connection. `stream` is the number of a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request.
    Request {
        /// Its stream.
        stream: u32,
        /// Its head.
        request: Box<Request>,
        /// Whether it has no body.
        end: bool,
    },
    /// A part of a request's body. Only the last part can be empty. Call [`Connection::release`] when the application
    /// has received it. Until then, keep a copy if it is short: the `Bytes` keep the whole buffer in memory that they
    /// were received in.
    Data {
        /// The stream of the request.
        stream: u32,
        /// The bytes of this part.
        data: Bytes,
        /// Whether this is the last part.
        end: bool,
    },
    /// The trailers of a request, which also end its body.
    Trailers {
        /// The stream of the request.
        stream: u32,
        /// Names in lower case, and values.
        fields: Vec<(String, Vec<u8>)>,
    },
    /// Nothing of a response's body is [buffered](Connection::buffered) any more.
    Drained {
        /// The stream of the response.
        stream: u32,
    },
    /// The stream was reset by the client, by [`Connection::reset_stalled`], or because of an error. It has no more
    /// events, and nothing can be sent on it.
    Reset {
        /// The stream.
        stream: u32,
        /// The error code (RFC 9113, section 7).
        code: u32,
    },
    /// The connection is over. All open streams were reset before this. Send the rest of the output, and close the
    /// socket.
    End(End),
}

/// The way in which a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The client has closed the connection, or all streams were finished after a GOAWAY.
    Orderly,
    /// There was an error, with this message.
    Error(String),
    /// The client has sent too many control frames, or too many requests after a GOAWAY.
    Flood,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Orderly => formatter.write_str("closed"),
            End::Error(error) => formatter.write_str(error),
            End::Flood => formatter.write_str("too many requests or control frames"),
        }
    }
}

/// Set if the connection must be polled. The `h2` crate sets it when there is something to send.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The numbers of the streams that must be polled.
type Ready = Arc<Mutex<Vec<u32>>>;

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

enum State {
    Handshake(Handshake<Pipe, Bytes>),
    Open(server::Connection<Pipe, Bytes>),
    Over,
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
struct Stream {
    flag: Arc<StreamFlag>,
    waker: Waker,
    is_head: bool,
    is_connect: bool,
    receiving: Option<RecvStream>,
    /// Whether the request ended with trailers that are not allowed, so that the stream is reset.
    has_invalid_trailers: bool,
    flow: h2::FlowControl,
    sending: Sending,
    framing: Framing,
    /// Whether the response consists of its head only.
    is_head_only: bool,
    /// The part of the response's body that the client has not made room for.
    pending: VecDeque<Bytes>,
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

/// The number of requests that a client can send after a GOAWAY, because it has not received that yet.
const REQUESTS_AFTER_GOAWAY: u64 = 1_000;
/// The size of the `h2` crate's send buffer of a stream, in bytes.
const SEND_BUFFER: usize = 64 << 10;
/// The amount of unprocessed input from which on no more should be received, in bytes.
const INPUT: usize = 64 << 10;

/// An HTTP/2 connection, without its socket.
///
/// Times are in milliseconds, of any monotonic clock.
pub struct Connection {
    config: Config,
    pipe: Pipe,
    state: State,
    meter: Meter,
    flag: Arc<Flag>,
    waker: Waker,
    ready: Ready,
    streams: BTreeMap<u32, Stream>,
    events: VecDeque<Event>,
    requests: u64,
    is_going_away: bool,
    /// Whether the connection must end, because the client has sent too much.
    is_flooded: bool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("streams", &self.streams.keys())
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// A new connection. It expects the client's preface first.
    pub fn new(config: &Config) -> Self {
        let pipe = Pipe::new(config.output_bytes);
        let window = |bytes: u32| bytes.min((1 << 31) - 1);
        let handshake = server::Builder::new()
            .initial_window_size(window(config.stream_window_bytes))
            .initial_connection_window_size(window(config.connection_window_bytes))
            .max_header_list_size(config.header_list_bytes)
            .max_concurrent_streams(config.concurrent_streams)
            .max_local_error_reset_streams(Some(config.error_resets))
            .max_send_buffer_size(SEND_BUFFER)
            .handshake(pipe.clone());
        // The settings must be sent.
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        Connection {
            config: *config,
            pipe,
            state: State::Handshake(handshake),
            meter: Meter::new(config),
            waker: Waker::from(Arc::clone(&flag)),
            flag,
            ready: Ready::default(),
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            requests: 0,
            is_going_away: false,
            is_flooded: false,
        }
    }

    /// Pass in received bytes.
    pub fn receive(&mut self, bytes: &[u8], now_ms: u64) {
        if bytes.is_empty() || self.is_over() {
            return;
        }
        if self.is_flooded || !self.meter.count(bytes, now_ms) {
            // The connection is about to end: ignore the rest.
            self.is_flooded = true;
        } else {
            self.pipe.feed(bytes);
        }
        self.wake();
    }

    /// Report that the client has closed its side of the connection.
    pub fn receive_end(&mut self) {
        self.pipe.end();
        self.wake();
    }

    /// Whether the caller should receive more. This is false if input cannot be processed, because the client does not
    /// read the output.
    pub fn wants_input(&self) -> bool {
        !self.is_over() && self.pipe.unread() < INPUT
    }

    fn wake(&self) {
        self.flag.0.store(true, Ordering::Relaxed);
    }

    /// The next event. Call it repeatedly until there is none, after receiving, sending, or taking output.
    pub fn next_event(&mut self, now_ms: u64) -> Option<Event> {
        loop {
            if self.events.is_empty() {
                self.drive(now_ms);
            }
            let event = self.events.pop_front()?;
            // The response was finished, or the stream was reset, after this was queued.
            let is_late = match &event {
                Event::Data { stream, .. }
                | Event::Trailers { stream, .. }
                | Event::Drained { stream } => !self.streams.contains_key(stream),
                Event::Request { .. } | Event::Reset { .. } | Event::End(_) => false,
            };
            if !is_late {
                return Some(event);
            }
        }
    }

    /// Append the bytes to send to `out`. Call it when there are no more events, and again when those bytes were sent.
    pub fn take_output(&mut self, out: &mut Vec<u8>, now_ms: u64) {
        self.drive(now_ms);
        if self.pipe.take_output(out) {
            self.wake();
        }
    }

    /// Whether the connection is over. There may still be output to send.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Whether there are no open streams.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Poll the connection and the streams until nothing is left to do.
    fn drive(&mut self, now_ms: u64) {
        loop {
            let is_woken = self.flag.0.swap(false, Ordering::Relaxed);
            if is_woken {
                self.poll_connection(now_ms);
            }
            let ready = {
                let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *ready)
            };
            if ready.is_empty() && !is_woken {
                return;
            }
            for stream in ready {
                self.poll_stream(stream, now_ms);
            }
        }
    }

    fn poll_connection(&mut self, now_ms: u64) {
        let waker = self.waker.clone();
        let mut context = Context::from_waker(&waker);
        if let State::Handshake(handshake) = &mut self.state {
            match Pin::new(handshake).poll(&mut context) {
                Poll::Pending if self.is_flooded => return self.end(End::Flood),
                Poll::Pending => return,
                Poll::Ready(Ok(connection)) => self.state = State::Open(connection),
                Poll::Ready(Err(error)) => return self.end(End::Error(error.to_string())),
            }
        }
        loop {
            let State::Open(connection) = &mut self.state else {
                return;
            };
            if self.is_flooded {
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            }
            match connection.poll_accept(&mut context) {
                // Do not wait for a client that may not read, either.
                Poll::Pending if self.is_flooded => return self.end(End::Flood),
                Poll::Pending => return,
                Poll::Ready(Some(Ok((request, response)))) => {
                    self.accept(request, response, now_ms);
                }
                Poll::Ready(_) if self.is_flooded => return self.end(End::Flood),
                Poll::Ready(None) => return self.end(End::Orderly),
                Poll::Ready(Some(Err(error))) => return self.end(End::Error(error.to_string())),
            }
        }
    }

    fn end(&mut self, end: End) {
        // Drop the connection before the streams, so that nothing is sent for them.
        self.state = State::Over;
        while let Some((stream, _)) = self.streams.pop_first() {
            let code = u32::from(Reason::CANCEL);
            self.events.push_back(Event::Reset { stream, code });
        }
        self.events.push_back(Event::End(end));
    }

    fn accept(
        &mut self,
        request: http::Request<RecvStream>,
        mut response: SendResponse<Bytes>,
        now_ms: u64,
    ) {
        self.requests += 1;
        if self.requests >= self.config.requests {
            self.go_away();
        }
        if self.requests >= self.config.requests.saturating_add(REQUESTS_AFTER_GOAWAY) {
            self.is_flooded = true;
        }
        let (parts, mut receiving) = request.into_parts();
        let request = match Request::new(parts, self.config.fields) {
            Ok(request) => request,
            Err(Refused::Malformed) => {
                self.is_flooded |= !self.meter.count_reset(now_ms);
                return response.send_reset(Reason::PROTOCOL_ERROR);
            }
            Err(Refused::Status(status)) => {
                let mut head = Response::new(());
                *head.status_mut() =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
                // If the stream is gone, nobody waits for the answer.
                let _ = response.send_response(head, true);
                return;
            }
        };
        let stream = response.stream_id().as_u32();
        let flag = Arc::new(StreamFlag {
            stream,
            is_ready: AtomicBool::new(false),
            ready: Arc::clone(&self.ready),
        });
        let end = receiving.is_end_stream();
        let flow = receiving.flow_control().clone();
        self.streams.insert(
            stream,
            Stream {
                waker: Waker::from(Arc::clone(&flag)),
                flag,
                is_head: request.method() == "HEAD",
                is_connect: request.form() == Form::Authority,
                receiving: (!end).then_some(receiving),
                has_invalid_trailers: false,
                flow,
                sending: Sending::Head(response),
                framing: Framing::Nothing,
                is_head_only: false,
                pending: VecDeque::new(),
                pending_bytes: 0,
                has_waited: false,
                stalled_since_ms: 0,
                is_last: false,
                trailers: None,
                has_ended: false,
            },
        );
        let request = Box::new(request);
        self.events.push_back(Event::Request {
            stream,
            request,
            end,
        });
        self.poll_stream(stream, now_ms);
    }

    fn poll_stream(&mut self, number: u32, now_ms: u64) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.flag.is_ready.store(false, Ordering::Relaxed);
        let outcome = stream
            .receive(number, &mut self.events)
            .and_then(|()| stream.check_reset())
            .and_then(|()| stream.send(now_ms));
        if stream.has_invalid_trailers && !self.meter.count_reset(now_ms) {
            self.is_flooded = true;
            self.wake();
        }
        self.settle(number, outcome);
    }

    /// Handle the outcome of polling a stream: reset it, remove it, or report that it has drained.
    fn settle(&mut self, number: u32, outcome: Result<(), Reason>) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        if let Err(reason) = outcome {
            stream.reset(reason);
            self.streams.remove(&number);
            let code = u32::from(reason);
            self.events.push_back(Event::Reset {
                stream: number,
                code,
            });
        } else if stream.has_ended {
            // If the client is still sending a body, the `h2` crate asks it to stop (RFC 9113, section 8.1).
            self.streams.remove(&number);
        } else if stream.has_waited && stream.pending_bytes == 0 {
            stream.has_waited = false;
            self.events.push_back(Event::Drained { stream: number });
        }
    }

    /// Let the client send `length` more bytes of a request's body, because the application has received as many.
    pub fn release(&mut self, stream: u32, length: usize) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            // Releasing more than was received has no effect.
            let _ = stream.flow.release_capacity(length);
        }
    }

    /// Send the head of a response, with a status from 200 to 999.
    ///
    /// `complete` is the length of the body in bytes, if the caller already has all of it. A response without a
    /// Content-Length then gets one. Date and Server are added from `lines` unless the response has its own. `unix_s`
    /// is the current time in seconds since 1970. Connection-specific fields of HTTP/1 are left out (RFC 9113, section
    /// 8.2.2).
    ///
    /// # Errors
    /// If the stream does not exist (any more), if the response was started, if the status is not a final one
    /// or would turn the stream into a tunnel, or if a field is invalid. Nothing is sent in case of an error.
    pub fn respond<'f>(
        &mut self,
        stream: u32,
        status: u16,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        complete: Option<u64>,
        lines: &mut Lines,
        unix_s: u64,
    ) -> Result<(), ResponseError> {
        let found = self
            .streams
            .get_mut(&stream)
            .ok_or(ResponseError::NoRequest)?;
        let Sending::Head(response) = &mut found.sending else {
            return Err(ResponseError::Begun);
        };
        let mut head = Response::new(());
        let opens_tunnel = found.is_connect && (200..300).contains(&status);
        *head.status_mut() = match StatusCode::from_u16(status) {
            Ok(code) if !code.is_informational() && !opens_tunnel => code,
            _ => return Err(ResponseError::Status(status)),
        };
        let given = add_fields(fields, head.headers_mut())?;
        let (framing, written) =
            Framing::choose(status, found.is_head, given, complete, Framing::Stream);
        let headers = head.headers_mut();
        if let Some(length) = written {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let (date, server) = lines.values(unix_s);
        for (name, value) in [(DATE, date), (SERVER, server)] {
            if !value.is_empty() && !headers.contains_key(&name) {
                // Both are valid.
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    headers.insert(name, value);
                }
            }
        }
        found.is_head_only = matches!(
            framing,
            Framing::Nothing | Framing::Discarded | Framing::Length(0)
        );
        let sending = response
            .send_response(head, found.is_head_only)
            .map_err(|_| ResponseError::NoRequest)?;
        found.sending = Sending::Body(sending);
        found.framing = framing;
        Ok(())
    }

    /// Send an informational response: 100 to a client that waits for it, or 103 with Link.
    ///
    /// # Errors
    /// As for [`respond`](Connection::respond). The status must be from 100 to 199 and not 101.
    pub fn inform<'f>(
        &mut self,
        stream: u32,
        status: u16,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    ) -> Result<(), ResponseError> {
        let found = self
            .streams
            .get_mut(&stream)
            .ok_or(ResponseError::NoRequest)?;
        let Sending::Head(response) = &mut found.sending else {
            return Err(ResponseError::Begun);
        };
        let mut head = Response::new(());
        *head.status_mut() = match StatusCode::from_u16(status) {
            Ok(code) if code.is_informational() && status != 101 => code,
            _ => return Err(ResponseError::Status(status)),
        };
        add_fields(fields, head.headers_mut())?;
        response
            .send_informational(head)
            .map_err(|_| ResponseError::NoRequest)
    }

    /// Send a piece of a response's body. The `last` piece finishes the response. Once all of it is on its way, the
    /// stream does not exist any more, and has no more events, even if the request's body was not received completely.
    ///
    /// What the client has not made room for is buffered. If [`buffered`](Connection::buffered) is not 0, the
    /// application should wait for [`Event::Drained`].
    ///
    /// # Errors
    /// If the stream does not exist (any more), if the response was not started or is finished, or if the body
    /// does not have the length that Content-Length says. If it is too short, the stream is reset. If it is too long,
    /// the piece is not sent.
    pub fn send(
        &mut self,
        stream: u32,
        data: Bytes,
        last: bool,
        now_ms: u64,
    ) -> Result<(), ResponseError> {
        let found = self.responding(stream)?;
        match found.framing.account(data.len(), last) {
            Ok(true) if !data.is_empty() => {
                if found.pending.is_empty() {
                    found.stalled_since_ms = now_ms;
                }
                found.pending_bytes += data.len();
                found.pending.push_back(data);
            }
            Ok(_) => {}
            Err(error) => {
                if let ResponseError::TooShort(_) = error {
                    self.reset(stream, u32::from(Reason::INTERNAL_ERROR));
                }
                return Err(error);
            }
        }
        found.is_last = last;
        self.flush(stream, now_ms);
        Ok(())
    }

    /// Finish a response with trailers. They are left out if the response must not have a body.
    ///
    /// # Errors
    /// As for [`send`](Connection::send), and if a field is invalid or not allowed in trailers (RFC 9110,
    /// section 6.5.1).
    pub fn send_trailers<'f>(
        &mut self,
        stream: u32,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        now_ms: u64,
    ) -> Result<(), ResponseError> {
        let found = self.responding(stream)?;
        let mut trailers = HeaderMap::new();
        for (name, value) in fields {
            if is_forbidden_trailer(name) {
                return Err(ResponseError::FieldName);
            }
            add_field(name, value, &mut trailers)?;
        }
        found.framing.account(0, true)?;
        if !found.is_head_only {
            found.trailers = Some(trailers);
        }
        found.is_last = true;
        self.flush(stream, now_ms);
        Ok(())
    }

    /// The stream, if its response was started and is not finished.
    fn responding(&mut self, stream: u32) -> Result<&mut Stream, ResponseError> {
        let found = self
            .streams
            .get_mut(&stream)
            .ok_or(ResponseError::NoRequest)?;
        match found.sending {
            Sending::Head(_) => Err(ResponseError::NotBegun),
            Sending::Body(_) if found.is_last => Err(ResponseError::NotBegun),
            Sending::Body(_) => Ok(found),
        }
    }

    fn flush(&mut self, stream: u32, now_ms: u64) {
        if let Some(found) = self.streams.get_mut(&stream) {
            let outcome = found.send(now_ms);
            found.has_waited |= found.pending_bytes > 0;
            self.settle(stream, outcome);
        }
    }

    /// How much of a response's body the client has not made room for, in bytes.
    pub fn buffered(&self, stream: u32) -> usize {
        self.streams
            .get(&stream)
            .map_or(0, |found| found.pending_bytes)
    }

    /// Reset a stream with an error code (RFC 9113, section 7). There is no [`Event::Reset`] for it.
    pub fn reset(&mut self, stream: u32, code: u32) {
        if let Some(mut found) = self.streams.remove(&stream) {
            found.reset(Reason::from(code));
        }
    }

    /// Ask the client to send no more requests, by GOAWAY. The connection ends when all streams are finished.
    pub fn go_away(&mut self) {
        match &mut self.state {
            State::Open(connection) if !self.is_going_away => {
                connection.graceful_shutdown();
                self.is_going_away = true;
                self.wake();
            }
            State::Handshake(_) => self.end(End::Orderly),
            State::Open(_) | State::Over => {}
        }
    }

    /// End the connection at once, with an error code (RFC 9113, section 7). All streams are reset.
    pub fn abort(&mut self, code: u32) {
        match &mut self.state {
            State::Open(connection) => {
                connection.abrupt_shutdown(Reason::from(code));
                self.wake();
            }
            State::Handshake(_) => self.end(End::Orderly),
            State::Over => {}
        }
    }

    /// The earliest time at which a response that is still [buffered](Connection::buffered) made progress. A deadline
    /// for [`reset_stalled`](Connection::reset_stalled) can be computed from it.
    pub fn stalled_since_ms(&self) -> Option<u64> {
        self.streams
            .values()
            .filter(|stream| stream.pending_bytes > 0)
            .map(|stream| stream.stalled_since_ms)
            .min()
    }

    /// Reset all streams whose responses are still buffered and have made no progress after `since_ms`. Each has an
    /// [`Event::Reset`].
    pub fn reset_stalled(&mut self, since_ms: u64) {
        let stalled: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.pending_bytes > 0 && stream.stalled_since_ms <= since_ms)
            .map(|(&number, _)| number)
            .collect();
        for number in stalled {
            self.settle(number, Err(Reason::CANCEL));
        }
    }
}

impl Stream {
    /// Receive the request's body. An error ends the stream.
    fn receive(&mut self, number: u32, events: &mut VecDeque<Event>) -> Result<(), Reason> {
        let mut context = Context::from_waker(&self.waker);
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
                    let stream = number;
                    events.push_back(Event::Data { stream, data, end });
                }
                Poll::Ready(Some(Err(error))) => return Err(reason_of(&error)),
                Poll::Ready(None) => match receiving.poll_trailers(&mut context) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => return Err(reason_of(&error)),
                    Poll::Ready(Ok(trailers)) => {
                        self.receiving = None;
                        let stream = number;
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

    /// Fail if the client has reset the stream, or if the connection has failed.
    fn check_reset(&mut self) -> Result<(), Reason> {
        if self.has_ended {
            return Ok(());
        }
        let mut context = Context::from_waker(&self.waker);
        let polled = match &mut self.sending {
            Sending::Head(response) => response.poll_reset(&mut context),
            Sending::Body(body) => body.poll_reset(&mut context),
        };
        match polled {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(reason)) => Err(reason),
            Poll::Ready(Err(error)) => Err(reason_of(&error)),
        }
    }

    /// Pass to the `h2` crate what the client has made room for.
    fn send(&mut self, now_ms: u64) -> Result<(), Reason> {
        let Sending::Body(body) = &mut self.sending else {
            return Ok(());
        };
        let mut context = Context::from_waker(&self.waker);
        let gone = |_| Reason::CANCEL;
        while let Some(front) = self.pending.front_mut() {
            let mut capacity = body.capacity();
            if capacity == 0 {
                body.reserve_capacity(self.pending_bytes.min(SEND_BUFFER));
                capacity = match body.poll_capacity(&mut context) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Some(Ok(capacity))) => capacity,
                    Poll::Ready(Some(Err(error))) => return Err(reason_of(&error)),
                    Poll::Ready(None) => return Err(Reason::CANCEL),
                };
            }
            let data = if capacity < front.len() {
                front.split_to(capacity)
            } else {
                self.pending.pop_front().unwrap_or_default()
            };
            self.pending_bytes -= data.len();
            self.stalled_since_ms = now_ms;
            let ends = self.is_last && self.pending.is_empty() && self.trailers.is_none();
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

    fn reset(&mut self, reason: Reason) {
        match &mut self.sending {
            Sending::Head(response) => response.send_reset(reason),
            Sending::Body(body) => body.send_reset(reason),
        }
    }
}

fn reason_of(error: &h2::Error) -> Reason {
    error.reason().unwrap_or(Reason::CANCEL)
}

/// Convert the trailers of a request. `None` if a field is not allowed in trailers.
fn check_trailers(trailers: &HeaderMap) -> Option<Vec<(String, Vec<u8>)>> {
    trailers
        .iter()
        .map(|(name, value)| {
            let is_allowed = !is_forbidden_trailer(name.as_str().as_bytes());
            is_allowed.then(|| (name.to_string(), value.as_bytes().to_vec()))
        })
        .collect()
}

/// Add the fields of a response, except for those of HTTP/1 connections and Content-Length, which is returned.
fn add_fields<'f>(
    fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    headers: &mut HeaderMap,
) -> Result<Option<u64>, ResponseError> {
    let mut content_length = None;
    for (name, value) in fields {
        match Known::find(name) {
            Some(
                Known::CONNECTION
                | Known::KEEP_ALIVE
                | Known::PROXY_CONNECTION
                | Known::TRANSFER_ENCODING
                | Known::UPGRADE,
            ) => {}
            Some(Known::CONTENT_LENGTH) => {
                let length =
                    syntax::decimal(syntax::trim(value)).ok_or(ResponseError::ContentLength)?;
                syntax::set_once(&mut content_length, length, ResponseError::ContentLength)?;
            }
            _ => add_field(name, value, headers)?,
        }
    }
    Ok(content_length)
}

fn add_field(name: &[u8], value: &[u8], headers: &mut HeaderMap) -> Result<(), ResponseError> {
    let name = HeaderName::from_bytes(name).map_err(|_| ResponseError::FieldName)?;
    let value =
        HeaderValue::from_bytes(syntax::trim(value)).map_err(|_| ResponseError::FieldValue)?;
    headers
        .try_append(name, value)
        .map(drop)
        .map_err(|_| ResponseError::FieldName)
}
