//! A server and its clients: one that sends handwritten frames, and one of the `h2` crate.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use ringloop_http::h2::{Config, Connection, Event, Request};
use ringloop_http::{Lines, ResponseError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::targets::h2::{
    ACK, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, block, frame, frames,
};

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// A server whose client sends handwritten frames.
pub(crate) struct Server {
    pub(crate) connection: Connection,
    pub(crate) lines: Lines,
    pub(crate) now_ms: u64,
}

impl Server {
    pub(crate) fn new(config: &Config) -> Self {
        let mut server = Server {
            connection: Connection::new(config),
            lines: Lines::new(None, false),
            now_ms: 0,
        };
        assert!(server.give(PREFACE).is_empty());
        assert!(server.give(&frame(SETTINGS, 0, 0, b"")).is_empty());
        let kinds: Vec<_> = server
            .output()
            .iter()
            .map(|frame| (frame.kind, frame.flags))
            .collect();
        // The settings, the window of the connection, and the acknowledgement of the client's settings.
        assert_eq!(kinds, [(SETTINGS, 0), (WINDOW_UPDATE, 0), (SETTINGS, ACK)]);
        server
    }

    /// Receives `bytes`, and returns the events.
    pub(crate) fn give(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.connection.receive(bytes, self.now_ms);
        self.events()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.connection.next_event(self.now_ms)).collect()
    }

    pub(crate) fn output(&mut self) -> Vec<Frame> {
        let mut out = Vec::new();
        self.connection.take_output(&mut out, self.now_ms);
        frames(&out)
    }

    /// Receives a request without a body.
    pub(crate) fn request(&mut self, stream: u32, fields: &[(&str, &str)]) -> Vec<Event> {
        self.give(&frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &block(fields),
        ))
    }

    pub(crate) fn respond(
        &mut self,
        stream: u32,
        status: u16,
        fields: &[(&str, &str)],
        complete: Option<u64>,
    ) -> Result<(), ResponseError> {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        self.connection
            .respond(stream, status, fields, complete, &mut self.lines, 0)
    }

    pub(crate) fn send(
        &mut self,
        stream: u32,
        data: &'static str,
        last: bool,
    ) -> Result<(), ResponseError> {
        let data = Bytes::from_static(data.as_bytes());
        self.connection.send(stream, data, last, self.now_ms)
    }
}

pub(crate) const GET: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "a.example"),
    (":path", "/"),
];

/// `GET` with one of its fields changed or removed, and with `more` fields.
pub(crate) fn get_but(
    name: &str,
    value: Option<&'static str>,
    more: &[(&'static str, &'static str)],
) -> Vec<(&'static str, &'static str)> {
    GET.iter()
        .filter_map(|&(own, default)| {
            if own == name {
                value.map(|value| (own, value))
            } else {
                Some((own, default))
            }
        })
        .chain(more.iter().copied())
        .collect()
}

pub(crate) fn reset(stream: u32, code: u32) -> Frame {
    Frame {
        kind: RST_STREAM,
        flags: 0,
        stream,
        payload: code.to_be_bytes().to_vec(),
    }
}

/// The code of the GOAWAY in `output`.
pub(crate) fn goaway(output: &[Frame]) -> Option<u32> {
    let frame = output.iter().rfind(|frame| frame.kind == GOAWAY)?;
    Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()))
}

pub(crate) fn only_request(events: Vec<Event>) -> (u32, Arc<Request>, bool) {
    match <[Event; 1]>::try_from(events) {
        Ok(
            [
                Event::Request {
                    stream,
                    request,
                    end,
                },
            ],
        ) => (stream, request, end),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn fields_of(request: &Request) -> Vec<(String, String)> {
    request
        .fields()
        .map(|(name, value)| (name.to_owned(), String::from_utf8(value.to_vec()).unwrap()))
        .collect()
}

/// The client's socket.
#[derive(Clone, Default)]
pub(crate) struct Wire {
    pub(crate) to_client: Arc<Mutex<Vec<u8>>>,
    pub(crate) to_server: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut bytes = self.to_client.lock().unwrap();
        if bytes.is_empty() {
            return Poll::Pending;
        }
        let length = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..length]);
        bytes.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.to_server.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A client of the `h2` crate.
pub(crate) struct Client {
    pub(crate) wire: Wire,
    pub(crate) connection: Pin<Box<h2::client::Connection<Wire, Bytes>>>,
    pub(crate) sender: h2::client::SendRequest<Bytes>,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self::with(&mut h2::client::Builder::new())
    }

    pub(crate) fn with(builder: &mut h2::client::Builder) -> Self {
        let wire = Wire::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut handshake = Box::pin(builder.handshake(wire.clone()));
        let Poll::Ready(Ok((sender, connection))) = handshake.as_mut().poll(&mut context) else {
            panic!("no handshake");
        };
        Client {
            wire,
            connection: Box::pin(connection),
            sender,
        }
    }

    /// Exchanges bytes until both sides have nothing more to send, and returns the server's events.
    pub(crate) fn exchange(&mut self, server: &mut Connection) -> Vec<Event> {
        let mut context = Context::from_waker(Waker::noop());
        let mut events = Vec::new();
        loop {
            let _ = self.connection.as_mut().poll(&mut context);
            let to_server = std::mem::take(&mut *self.wire.to_server.lock().unwrap());
            server.receive(&to_server, 0);
            events.extend(std::iter::from_fn(|| server.next_event(0)));
            let mut to_client = Vec::new();
            server.take_output(&mut to_client, 0);
            if to_server.is_empty() && to_client.is_empty() {
                return events;
            }
            self.wire
                .to_client
                .lock()
                .unwrap()
                .extend_from_slice(&to_client);
        }
    }

    pub(crate) fn ask(
        &mut self,
        method: &str,
        end: bool,
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let request = http::Request::builder()
            .method(method)
            .uri("http://a.example/")
            .body(())
            .unwrap();
        self.sender.send_request(request, end).unwrap()
    }

    /// The status in a HEADERS frame, which must be the first one of its connection.
    pub(crate) fn status_of(&mut self, head: &Frame) -> u16 {
        let mut context = Context::from_waker(Waker::noop());
        let (response, _sending) = self.ask("GET", true);
        let _ = self.connection.as_mut().poll(&mut context);
        let mut to_client = frame(SETTINGS, 0, 0, b"");
        to_client.extend_from_slice(&frame(head.kind, head.flags, 1, &head.payload));
        self.wire
            .to_client
            .lock()
            .unwrap()
            .extend_from_slice(&to_client);
        let _ = self.connection.as_mut().poll(&mut context);
        let mut response = Box::pin(response);
        match response.as_mut().poll(&mut context) {
            Poll::Ready(Ok(response)) => response.status().as_u16(),
            other => panic!("{other:?}"),
        }
    }
}

/// A response, as far as the client has received it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<BTreeMap<String, String>>,
    pub(crate) complete: bool,
}

pub(crate) fn map_of(headers: &http::HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

/// Receives what has arrived of a response, and releases its flow-control capacity.
pub(crate) fn hear(response: h2::client::ResponseFuture) -> Answer {
    let mut context = Context::from_waker(Waker::noop());
    let mut response = Box::pin(response);
    let mut answer = Answer::default();
    let Poll::Ready(Ok(found)) = response.as_mut().poll(&mut context) else {
        return answer;
    };
    let (head, mut body) = found.into_parts();
    answer.status = head.status.as_u16();
    answer.fields = map_of(&head.headers);
    loop {
        match body.poll_data(&mut context) {
            Poll::Ready(Some(Ok(data))) => {
                body.flow_control().release_capacity(data.len()).unwrap();
                answer.body.extend_from_slice(&data);
            }
            Poll::Ready(None) => {
                if let Poll::Ready(Ok(trailers)) = body.poll_trailers(&mut context) {
                    answer.trailers = trailers.as_ref().map(map_of);
                    answer.complete = true;
                }
                return answer;
            }
            _ => return answer,
        }
    }
}
