//! The state of an HTTP/2 connection: one type around the connection, the streams and the futures of the `h2` crate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use h2::server::{self, Handshake, SendResponse};
use h2::{Reason, RecvStream};

use super::config::Config;
use super::event::{End, Event};
use super::meter::Meter;
use super::pipe::Pipe;
use super::request::{Refused, Request};
use super::stream::{Head, Ready, SEND_BUFFER, Stream};
use crate::response::{Lines, ResponseError};

/// Set by the `h2` crate when the connection must be polled, because there is something to send.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

enum State {
    Handshake(Handshake<Pipe, Bytes>),
    Open(server::Connection<Pipe, Bytes>),
    Over,
}

/// The number of requests that a client can send after a GOAWAY, because it has not received that yet.
const REQUESTS_AFTER_GOAWAY: u64 = 1_000;
/// The amount of unprocessed input from which on no more should be received, in bytes.
const INPUT: usize = 64 << 10;

/// The most characters of an error's text. A client may put data of its own into it.
const ERROR_CHARS: usize = 200;

/// An HTTP/2 connection, without its socket.
///
/// Times are in milliseconds, of any monotonic clock.
pub struct Connection {
    config: Config,
    pipe: Pipe,
    state: State,
    meter: Meter,
    /// Whether the connection must be polled for events: there is input, or it was asked to end.
    is_stirred: bool,
    flag: Arc<Flag>,
    waker: Waker,
    ready: Ready,
    /// Streams that have not been polled yet.
    accepted: Vec<u32>,
    /// The head of the last request.
    last: Option<Arc<Request>>,
    /// In boxes, because a tree moves its values.
    streams: BTreeMap<u32, Box<Stream>>,
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
        let mut builder = server::Builder::new();
        if config.websocket {
            builder.enable_connect_protocol();
        }
        let handshake = builder
            .initial_window_size(window(config.stream_window_bytes))
            .initial_connection_window_size(window(config.connection_window_bytes))
            .max_header_list_size(config.header_list_bytes)
            .max_concurrent_streams(config.concurrent_streams)
            .max_local_error_reset_streams(Some(config.error_resets))
            .max_send_buffer_size(SEND_BUFFER)
            // Frames are taken from it as soon as they have arrived, and therefore small ones don't occupy memory, even
            // if there are many.
            .data_frame_budget(usize::MAX)
            .handshake(pipe.clone());
        let flag = Arc::new(Flag::default());
        Connection {
            config: *config,
            pipe,
            state: State::Handshake(handshake),
            meter: Meter::new(config),
            // The settings must be sent.
            is_stirred: true,
            waker: Waker::from(Arc::clone(&flag)),
            flag,
            ready: Ready::default(),
            accepted: Vec::new(),
            last: None,
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            requests: 0,
            is_going_away: false,
            is_flooded: false,
        }
    }

    /// Passes in received bytes.
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
        self.is_stirred = true;
    }

    /// Reports that the client has closed its side of the connection.
    pub fn receive_end(&mut self) {
        self.pipe.end();
        self.is_stirred = true;
    }

    /// Whether the caller should receive more. This is false if input cannot be processed, because the client does not
    /// read the output.
    pub fn wants_input(&self) -> bool {
        !self.is_over() && self.pipe.unread() < INPUT
    }

    /// The next event. Call it repeatedly until there is none, after receiving, sending, or taking output.
    pub fn next_event(&mut self, now_ms: u64) -> Option<Event> {
        loop {
            if self.events.is_empty() {
                self.drive(false, now_ms);
            }
            let event = self.events.pop_front()?;
            // The response was finished, or the stream was reset, after this was queued.
            let is_late = match &event {
                Event::Data { stream, .. }
                | Event::Trailers { stream, .. }
                | Event::Drained { stream } => !self.streams.contains_key(stream),
                Event::Request { .. }
                | Event::Refused { .. }
                | Event::Reset { .. }
                | Event::End(_) => false,
            };
            if !is_late {
                return Some(event);
            }
        }
    }

    /// Appends the bytes to send to `out`. Call it when there are no more events, and again when those bytes were sent.
    pub fn take_output(&mut self, out: &mut Vec<u8>, now_ms: u64) {
        self.drive(true, now_ms);
        let before = out.len();
        self.is_stirred |= self.pipe.take_output(out);
        self.meter.count_sent(&out[before..]);
    }

    /// Whether there are events. More can follow when those were taken.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether the connection is over. There may still be output to send.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Whether there are no open streams.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether the client is in the middle of sending a request's head, or its trailers.
    pub fn is_receiving_head(&self) -> bool {
        self.meter.is_in_head()
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Lets go of the head of the last request, which is kept to recognize equal ones.
    pub fn forget_head(&mut self) {
        self.last = None;
    }

    /// Polls the connection and the streams until nothing is left to do. What was only queued to be sent waits until
    /// `sends`, so that one poll sends the responses of many streams.
    fn drive(&mut self, sends: bool, now_ms: u64) {
        loop {
            let is_due = self.is_stirred || (sends && self.flag.0.load(Ordering::Relaxed));
            if is_due {
                self.is_stirred = false;
                self.flag.0.store(false, Ordering::Relaxed);
                // Those that have not ended yet want to hear of what comes now.
                for stream in std::mem::take(&mut self.accepted) {
                    self.poll_stream(stream, now_ms);
                }
                self.poll_connection(now_ms);
            }
            let ready = {
                let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *ready)
            };
            if ready.is_empty() && !is_due {
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
                Poll::Ready(Ok(mut connection)) => {
                    if self.is_going_away {
                        connection.graceful_shutdown();
                    }
                    self.state = State::Open(connection);
                }
                Poll::Ready(Err(error)) => return self.end(End::Error(shorten(&error))),
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
                Poll::Ready(Some(Err(error))) => return self.end(End::Error(shorten(&error))),
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
        let (parts, receiving) = request.into_parts();
        let stream = response.stream_id().as_u32();
        let end = receiving.is_end_stream();
        let body = (!end).then_some(receiving);
        let method = parts.method.clone();
        let known = self.last.take().filter(|last| last.is_of(&parts));
        let request =
            match known.map_or_else(|| Request::new(parts, self.config.fields).map(Arc::new), Ok) {
                Ok(request) => request,
                Err(Refused::Malformed) => {
                    self.is_flooded |= !self.meter.count_reset(now_ms);
                    return response.send_reset(Reason::PROTOCOL_ERROR);
                }
                Err(Refused::Fault(fault)) => {
                    let refused = Stream::new(stream, &method, body, response);
                    self.streams.insert(stream, Box::new(refused));
                    self.events.push_back(Event::Refused { stream, fault });
                    return;
                }
            };
        let mut accepted = Stream::new(stream, &method, body, response);
        accepted.set_websocket(request.is_websocket());
        // Nothing else happens on a stream without a body before the application has responded.
        let outcome = if end {
            accepted.check_accepted()
        } else {
            Ok(())
        };
        self.streams.insert(stream, Box::new(accepted));
        // Few clients open several WebSockets with equal heads.
        self.last = (!request.is_websocket()).then(|| Arc::clone(&request));
        self.events.push_back(Event::Request {
            stream,
            request,
            end,
        });
        if end {
            self.accepted.push(stream);
            self.settle(stream, outcome);
        } else {
            self.poll_stream(stream, now_ms);
        }
    }

    fn poll_stream(&mut self, number: u32, now_ms: u64) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let outcome = stream.poll(&self.ready, &mut self.events, now_ms);
        if stream.has_invalid_trailers() && !self.meter.count_reset(now_ms) {
            self.is_flooded = true;
            self.is_stirred = true;
        }
        self.settle(number, outcome);
    }

    /// Handles the outcome of polling a stream: resets it, removes it, or reports that it has drained.
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
        } else if stream.has_ended() {
            // If the client is still sending a body, the `h2` crate asks it to stop (RFC 9113, section 8.1).
            self.streams.remove(&number);
        } else if stream.has_drained() {
            self.events.push_back(Event::Drained { stream: number });
        }
    }

    /// Lets the client send `length` more bytes of a request's body, because the application has received as many.
    pub fn release(&mut self, stream: u32, length: usize) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.release(length);
        }
    }

    /// Sends the head of a response, with a status from 200 to 999.
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
        let mut head = self.begin(stream, status)?;
        for (name, value) in fields {
            head.field(name, value)?;
        }
        head.park();
        self.send_head(stream, complete, false, lines, unix_s)
    }

    /// Accepts a request for a WebSocket: sends a head with the status 200 and these fields, and Date and Server as
    /// [`respond`](Connection::respond) does. From here on the stream carries bytes in both directions, as the bodies of
    /// request and response.
    ///
    /// # Errors
    /// If the stream does not exist (any more), if the request is none for a WebSocket or was answered, or if a field is
    /// invalid. Nothing is sent in case of an error.
    pub fn open<'f>(
        &mut self,
        stream: u32,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        lines: &mut Lines,
        unix_s: u64,
    ) -> Result<(), ResponseError> {
        self.found(stream)?.open(fields, lines, unix_s)
    }

    /// Begins the head of a response. It is kept by [`Head::park`], and sent by [`send_head`](Connection::send_head), when
    /// it is known whether the body is complete. [`respond`](Connection::respond) does all of that at once.
    ///
    /// # Errors
    /// As for [`respond`](Connection::respond).
    pub fn begin(&mut self, stream: u32, status: u16) -> Result<Head<'_>, ResponseError> {
        self.found(stream)?.begin(status)
    }

    /// Sends the head of a response that was begun. The parameters are those of [`respond`](Connection::respond), and
    /// whether trailers will follow. Without them, a head that announces no content is the whole response.
    ///
    /// # Errors
    /// If the stream does not exist (any more), or if no head is kept.
    pub fn send_head(
        &mut self,
        stream: u32,
        complete: Option<u64>,
        has_trailers: bool,
        lines: &mut Lines,
        unix_s: u64,
    ) -> Result<(), ResponseError> {
        self.found(stream)?
            .send_head(complete, has_trailers, lines, unix_s)
    }

    /// Sends an informational response: 100 to a client that waits for it, or 103 with Link.
    ///
    /// # Errors
    /// As for [`respond`](Connection::respond). The status must be from 100 to 199 and not 101.
    pub fn inform<'f>(
        &mut self,
        stream: u32,
        status: u16,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    ) -> Result<(), ResponseError> {
        self.found(stream)?.inform(status, fields)
    }

    /// Sends a piece of a response's body. The `last` piece finishes the response. Once all of it is on its way, the
    /// stream does not exist any more, and has no more events, even if the request's body was not received completely.
    ///
    /// Bytes for which the client has not made room are buffered. If [`buffered`](Connection::buffered) is not 0, the
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
        if let Err(error) = self.found(stream)?.add(data, last, now_ms) {
            if let ResponseError::TooShort(_) = error {
                self.reset(stream, u32::from(Reason::INTERNAL_ERROR));
            }
            return Err(error);
        }
        self.flush(stream, now_ms);
        Ok(())
    }

    /// Finishes a response with trailers. They are left out if the response must not have a body.
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
        self.found(stream)?.add_trailers(fields)?;
        self.flush(stream, now_ms);
        Ok(())
    }

    fn found(&mut self, stream: u32) -> Result<&mut Stream, ResponseError> {
        let found = self.streams.get_mut(&stream);
        found.map(Box::as_mut).ok_or(ResponseError::NoRequest)
    }

    fn flush(&mut self, stream: u32, now_ms: u64) {
        if let Some(found) = self.streams.get_mut(&stream) {
            let outcome = found.flush(&self.ready, now_ms);
            self.settle(stream, outcome);
        }
    }

    /// How much of a response's body the client has not made room for, in bytes.
    pub fn buffered(&self, stream: u32) -> usize {
        self.streams
            .get(&stream)
            .map_or(0, |stream| stream.buffered())
    }

    /// Whether a response must not have a body because of its status, so that what is sent of one is dropped. In response
    /// to HEAD, nothing is forbidden: it just isn't sent. The head must have been sent.
    pub fn forbids_body(&self, stream: u32) -> bool {
        let found = self.streams.get(&stream);
        found.is_some_and(|found| found.forbids_body())
    }

    /// How much of a response's body is still to be sent, if Content-Length says so: nothing in response to HEAD, or where
    /// the status has no body. The head must have been sent.
    pub fn announced(&self, stream: u32) -> Option<u64> {
        self.streams
            .get(&stream)
            .and_then(|found| found.announced())
    }

    /// Resets a stream with an error code (RFC 9113, section 7). There is no [`Event::Reset`] for it.
    pub fn reset(&mut self, stream: u32, code: u32) {
        if let Some(mut found) = self.streams.remove(&stream) {
            found.reset(Reason::from(code));
        }
    }

    /// Gives up a response that can't be completed: resets its stream. A response that has no body is complete with its
    /// head, so it is finished.
    pub fn give_up(&mut self, stream: u32, now_ms: u64) {
        let is_sent = self
            .streams
            .get(&stream)
            .is_some_and(|stream| stream.is_head_only());
        if !is_sent || self.send(stream, Bytes::new(), true, now_ms).is_err() {
            self.reset(stream, u32::from(Reason::INTERNAL_ERROR));
        }
    }

    /// Asks the client to send no more requests, by GOAWAY. The connection ends when the client has acknowledged that and
    /// all streams are finished. A client that has not sent its preface yet is asked after that.
    pub fn go_away(&mut self) {
        if std::mem::replace(&mut self.is_going_away, true) {
            return;
        }
        if let State::Open(connection) = &mut self.state {
            connection.graceful_shutdown();
            self.is_stirred = true;
        }
    }

    /// Ends the connection at once, with an error code (RFC 9113, section 7). All streams are reset.
    pub fn abort(&mut self, code: u32) {
        match &mut self.state {
            State::Open(connection) => {
                connection.abrupt_shutdown(Reason::from(code));
                self.is_stirred = true;
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
            .filter_map(|stream| stream.stalled_since_ms())
            .min()
    }

    /// Resets all streams whose responses are still buffered and have made no progress after `since_ms`. Each has an
    /// [`Event::Reset`].
    pub fn reset_stalled(&mut self, since_ms: u64) {
        let stalled: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, stream)| {
                let stalled = stream.stalled_since_ms();
                stalled.is_some_and(|stalled_ms| stalled_ms <= since_ms)
            })
            .map(|(&number, _)| number)
            .collect();
        for number in stalled {
            self.settle(number, Err(Reason::CANCEL));
        }
    }
}

/// The beginning of an error's text.
fn shorten(error: &h2::Error) -> String {
    error.to_string().chars().take(ERROR_CHARS).collect()
}
