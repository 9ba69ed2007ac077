//! HTTP/2: checks of requests, responses, flow control, floods, and the end of connections.

mod targets;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use proptest::prelude::*;
use ringloop_http::h1::Form;
use ringloop_http::h2::{Config, Connection, End, Event, Request};
use ringloop_http::{Lines, ResponseError};
use targets::h2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, frames,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A server whose client sends handwritten frames.
struct Server {
    connection: Connection,
    lines: Lines,
    now_ms: u64,
}

impl Server {
    fn new(config: &Config) -> Self {
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

    /// Receive `bytes`, and return the events.
    fn give(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.connection.receive(bytes, self.now_ms);
        self.events()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.connection.next_event(self.now_ms)).collect()
    }

    fn output(&mut self) -> Vec<Frame> {
        let mut out = Vec::new();
        self.connection.take_output(&mut out, self.now_ms);
        frames(&out)
    }

    /// Receive a request without a body.
    fn request(&mut self, stream: u32, fields: &[(&str, &str)]) -> Vec<Event> {
        self.give(&frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &block(fields),
        ))
    }

    fn respond(
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

    fn send(&mut self, stream: u32, data: &'static str, last: bool) -> Result<(), ResponseError> {
        let data = Bytes::from_static(data.as_bytes());
        self.connection.send(stream, data, last, self.now_ms)
    }
}

const GET: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "a.example"),
    (":path", "/"),
];

/// `GET` with one of its fields changed or removed, and with `more` fields.
fn get_but(
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

fn reset(stream: u32, code: u32) -> Frame {
    Frame {
        kind: RST_STREAM,
        flags: 0,
        stream,
        payload: code.to_be_bytes().to_vec(),
    }
}

/// The code of the GOAWAY in `output`.
fn goaway(output: &[Frame]) -> Option<u32> {
    let frame = output.iter().rfind(|frame| frame.kind == GOAWAY)?;
    Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()))
}

fn only_request(events: Vec<Event>) -> (u32, Box<Request>, bool) {
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

fn fields_of(request: &Request) -> Vec<(String, String)> {
    request
        .fields()
        .map(|(name, value)| (name.to_owned(), String::from_utf8(value.to_vec()).unwrap()))
        .collect()
}

#[test]
fn requests_are_given_with_their_fields() {
    let mut server = Server::new(&Config::default());
    let fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "A.example:443"),
        (":path", "/a%20b?c=d?"),
        ("cookie", "a=b"),
        ("x-id", "1"),
        ("cookie", "c=d"),
        ("host", "a.EXAMPLE"),
        ("te", "trailers"),
        ("expect", "100-continue"),
    ];
    let events = server.give(&frame(HEADERS, END_HEADERS, 1, &block(&fields)));
    let (stream, request, end) = only_request(events);
    assert_eq!((stream, end), (1, false));
    assert_eq!(request.method(), "POST");
    assert_eq!(request.scheme(), "https");
    assert_eq!(request.host(), b"A.example:443");
    assert_eq!((request.path(), request.query()), ("/a%20b", "c=d?"));
    assert_eq!(request.form(), Form::Origin);
    assert!(request.expects_continue());
    let expected = [
        ("host", "A.example:443"),
        ("cookie", "a=b; c=d"),
        ("x-id", "1"),
        ("te", "trailers"),
        ("expect", "100-continue"),
    ];
    assert_eq!(
        fields_of(&request),
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );

    for (fields, form, path) in [
        (get_but(":method", Some("OPTIONS"), &[]), Form::Origin, "/"),
        (
            vec![
                (":method", "OPTIONS"),
                (":scheme", "http"),
                (":authority", "a"),
                (":path", "*"),
            ],
            Form::Asterisk,
            "*",
        ),
        (
            vec![(":method", "CONNECT"), (":authority", "a:443")],
            Form::Authority,
            "",
        ),
        // Host replaces a missing authority.
        (
            get_but(":authority", None, &[("host", "a.example")]),
            Form::Origin,
            "/",
        ),
    ] {
        let stream = server.connection.requests() as u32 * 2 + 1;
        let (_, request, end) = only_request(server.request(stream, &fields));
        assert!(end);
        assert_eq!((request.form(), request.path()), (form, path));
        assert!(request.host().starts_with(b"a"));
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn malformed_requests_are_reset() {
    let more = |fields: &[(&'static str, &'static str)]| get_but("", None, fields);
    let rows: &[(&str, Vec<(&'static str, &'static str)>)] = &[
        ("no authority", get_but(":authority", None, &[])),
        ("an empty authority", get_but(":authority", Some(""), &[])),
        ("userinfo", get_but(":authority", Some("u@a"), &[])),
        (
            "a port that is none",
            get_but(":authority", Some("a:x"), &[]),
        ),
        ("a list of hosts", get_but(":authority", Some("a,b"), &[])),
        ("another host", more(&[("host", "b.example")])),
        ("another port", more(&[("host", "a.example:81")])),
        ("an invalid host", more(&[("host", "a/b")])),
        (
            "two hosts",
            more(&[("host", "a.example"), ("host", "a.example")]),
        ),
        (
            "two hosts without an authority",
            get_but(":authority", None, &[("host", "a"), ("host", "a")]),
        ),
        (
            "an invalid host without an authority",
            get_but(":authority", None, &[("host", "a b")]),
        ),
        ("no method", get_but(":method", None, &[])),
        ("no scheme", get_but(":scheme", None, &[])),
        ("another scheme", get_but(":scheme", Some("ftp"), &[])),
        ("no path", get_but(":path", None, &[])),
        ("an empty path", get_but(":path", Some(""), &[])),
        ("a relative path", get_but(":path", Some("a"), &[])),
        ("a query alone", get_but(":path", Some("?a"), &[])),
        ("an asterisk with GET", get_but(":path", Some("*"), &[])),
        ("a space in the path", get_but(":path", Some("/a b"), &[])),
        ("a quote in the path", get_but(":path", Some("/a\"b"), &[])),
        (
            "a control character in the path",
            get_but(":path", Some("/a\nb"), &[]),
        ),
        (
            "a path beyond ASCII",
            get_but(":path", Some("/\u{c3}\u{a9}"), &[]),
        ),
        (
            "CONNECT without a port",
            vec![(":method", "CONNECT"), (":authority", "a")],
        ),
        (
            "CONNECT with a path",
            vec![
                (":method", "CONNECT"),
                (":authority", "a:1"),
                (":path", "/"),
            ],
        ),
        (
            "CONNECT of a protocol",
            get_but(":method", Some("CONNECT"), &[(":protocol", "websocket")]),
        ),
        (
            "two lengths",
            more(&[("content-length", "0"), ("content-length", "0")]),
        ),
        ("an empty length", more(&[("content-length", "")])),
        ("a signed length", more(&[("content-length", "+0")])),
        ("a length without a body", more(&[("content-length", "5")])),
        ("connection", more(&[("connection", "close")])),
        ("keep-alive", more(&[("keep-alive", "1")])),
        ("proxy-connection", more(&[("proxy-connection", "close")])),
        (
            "transfer-encoding",
            more(&[("transfer-encoding", "chunked")]),
        ),
        ("upgrade", more(&[("upgrade", "websocket")])),
        ("te", more(&[("te", "gzip")])),
        ("a name in capital letters", more(&[("X-Id", "1")])),
        ("a name with a space", more(&[("x id", "1")])),
        ("an empty name", more(&[("", "1")])),
        ("a value with a line end", more(&[("x", "a\r\nb: c")])),
        ("a value with a NUL", more(&[("x", "a\0b")])),
        ("a space before a value", more(&[("x", " a")])),
        ("a tab behind a value", more(&[("x", "a\t")])),
        (
            "a pseudo-header field behind others",
            more(&[("x", "a"), (":path", "/")]),
        ),
        ("an unknown pseudo-header field", more(&[(":x", "a")])),
        (
            "a response's pseudo-header field",
            more(&[(":status", "200")]),
        ),
        ("a pseudo-header field twice", more(&[(":path", "/")])),
    ];
    for (name, fields) in rows {
        let mut server = Server::new(&Config::default());
        let events = server.request(1, fields);
        let output = server.output();
        // For some of these, the `h2` crate ends the connection.
        assert!(
            output.contains(&reset(1, PROTOCOL_ERROR)) || goaway(&output) == Some(PROTOCOL_ERROR),
            "{name}: {output:?}"
        );
        assert!(
            events.iter().all(|event| matches!(event, Event::End(_))),
            "{name}: {events:?}"
        );
    }
}

#[test]
fn a_fragment_is_cut_off() {
    // The `h2` crate does that itself. HTTP/1 refuses such a request.
    let mut server = Server::new(&Config::default());
    let (_, request, _) = only_request(server.request(1, &get_but(":path", Some("/a#b"), &[])));
    assert_eq!(request.path(), "/a");
}

#[test]
fn some_requests_are_answered_by_the_server_itself() {
    let many: Vec<(&str, &str)> = GET
        .iter()
        .copied()
        .chain(std::iter::repeat_n(("x", "y"), 128))
        .collect();
    let long = "x".repeat(70_000);
    let mut large = GET.to_vec();
    large.push(("x", &long));
    for (fields, status) in [
        (get_but("", None, &[("expect", "tea")]), 417),
        (many, 431),
        (large, 431),
    ] {
        let mut server = Server::new(&Config::default());
        let block = block(&fields);
        let (first, rest) = block.split_at(block.len().min(16_000));
        let mut input = frame(HEADERS, END_STREAM, 1, first);
        for piece in rest.chunks(16_000) {
            input.extend_from_slice(&frame(CONTINUATION, 0, 1, piece));
        }
        input.extend_from_slice(&frame(CONTINUATION, END_HEADERS, 1, b""));
        assert!(server.give(&input).is_empty());
        let mut client = Client::new();
        // The status is compressed, so a client must read it.
        let output = server.output();
        let head = output.iter().find(|frame| frame.kind == HEADERS).unwrap();
        assert_eq!(client.status_of(head), status);
    }
}

/// The client's socket.
#[derive(Clone, Default)]
struct Wire {
    to_client: Arc<Mutex<Vec<u8>>>,
    to_server: Arc<Mutex<Vec<u8>>>,
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
struct Client {
    wire: Wire,
    connection: Pin<Box<h2::client::Connection<Wire, Bytes>>>,
    sender: h2::client::SendRequest<Bytes>,
}

impl Client {
    fn new() -> Self {
        Self::with(&mut h2::client::Builder::new())
    }

    fn with(builder: &mut h2::client::Builder) -> Self {
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

    /// Exchange bytes until both sides have nothing more to send, and return the server's events.
    fn exchange(&mut self, server: &mut Connection) -> Vec<Event> {
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

    fn ask(
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
    fn status_of(&mut self, head: &Frame) -> u16 {
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
struct Answer {
    status: u16,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
    trailers: Option<BTreeMap<String, String>>,
    complete: bool,
}

fn map_of(headers: &http::HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

/// Receive what has arrived of a response, and release its flow-control capacity.
fn hear(response: h2::client::ResponseFuture) -> Answer {
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

/// The client's view of a response with these parts.
fn answer(
    method: &str,
    status: u16,
    fields: &[(&str, &str)],
    complete: Option<u64>,
    pieces: &[&'static str],
) -> Result<Answer, ResponseError> {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    let (response, _sending) = client.ask(method, true);
    let (stream, _, end) = only_request(client.exchange(&mut server));
    assert!(end);
    let mut lines = Lines::new(Some("ringloop"), true);
    let fields = fields
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    server.respond(stream, status, fields, complete, &mut lines, 784_111_777)?;
    for (index, piece) in pieces.iter().enumerate() {
        let data = Bytes::from_static(piece.as_bytes());
        server.send(stream, data, index + 1 == pieces.len(), 0)?;
    }
    assert!(server.is_idle());
    assert!(client.exchange(&mut server).is_empty());
    Ok(hear(response))
}

#[test]
fn responses_are_what_request_and_status_demand() {
    let length = [("Content-Length", "5")].as_slice();
    for (method, status, fields, complete, pieces, expected_length, body) in [
        (
            "GET",
            200,
            &[][..],
            None,
            &["hello", ", world", ""][..],
            None,
            "hello, world",
        ),
        ("GET", 200, &[], None, &["hello"], None, "hello"),
        ("GET", 200, &[], Some(5), &["hello"], Some("5"), "hello"),
        ("GET", 200, &[], Some(0), &[""], Some("0"), ""),
        ("GET", 200, length, None, &["he", "llo"], Some("5"), "hello"),
        ("GET", 200, length, None, &["hello", ""], Some("5"), "hello"),
        ("GET", 299, &[], None, &[""], None, ""),
        ("GET", 204, length, None, &[""], None, ""),
        ("GET", 304, length, None, &[""], Some("5"), ""),
        ("GET", 205, length, None, &[""], Some("0"), ""),
        ("HEAD", 200, length, None, &["hello"], Some("5"), ""),
        ("HEAD", 200, &[], None, &["he", "llo"], None, ""),
        (
            "POST",
            200,
            &[
                ("connection", "close"),
                ("transfer-encoding", "chunked"),
                ("Keep-Alive", "1"),
                ("upgrade", "x"),
            ],
            None,
            &["hello"],
            None,
            "hello",
        ),
    ] {
        let found = answer(method, status, fields, complete, pieces).unwrap();
        assert!(found.complete, "{method} {status}");
        assert_eq!(found.status, status);
        assert_eq!(found.body, body.as_bytes());
        let mut expected = BTreeMap::from([
            (
                "date".to_owned(),
                "Sun, 06 Nov 1994 08:49:37 GMT".to_owned(),
            ),
            ("server".to_owned(), "ringloop".to_owned()),
        ]);
        if let Some(length) = expected_length {
            expected.insert("content-length".to_owned(), length.to_owned());
        }
        assert_eq!(found.fields, expected, "{method} {status}");
    }
    let own = answer(
        "GET",
        200,
        &[("Date", "mine"), ("server", " mine "), ("X-Id", "1")],
        None,
        &[""],
    )
    .unwrap();
    let expected = [("date", "mine"), ("server", "mine"), ("x-id", "1")];
    assert_eq!(
        own.fields,
        expected
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    );
}

#[test]
fn what_is_wrong_with_a_response_is_told() {
    use ResponseError::{ContentLength, FieldName, FieldValue, Status, TooLong, TooShort};
    let length = [("content-length", "5")].as_slice();
    for (status, fields, pieces, expected) in [
        (100, &[][..], &[""][..], Status(100)),
        (101, &[], &[""], Status(101)),
        (1000, &[], &[""], Status(1000)),
        (200, &[("x:", "y")], &[""], FieldName),
        (200, &[("", "y")], &[""], FieldName),
        (200, &[("x", "a\r\nb: c")], &[""], FieldValue),
        (200, &[("x", "a\0b")], &[""], FieldValue),
        (200, &[("content-length", "+5")], &[""], ContentLength),
        (
            200,
            &[("content-length", "5"), ("content-length", "5")],
            &[""],
            ContentLength,
        ),
        (200, length, &["hello!"], TooLong),
        (200, length, &["hell"], TooShort(1)),
        (204, &[], &["a"], TooLong),
        (304, &[], &["a"], TooLong),
        (205, &[], &["a"], TooLong),
    ] {
        assert_eq!(answer("GET", status, fields, None, pieces), Err(expected));
    }
}

#[test]
fn connect_cannot_succeed() {
    let mut server = Server::new(&Config::default());
    only_request(server.request(1, &[(":method", "CONNECT"), (":authority", "a:1")]));
    assert_eq!(
        server.respond(1, 200, &[], None),
        Err(ResponseError::Status(200))
    );
    server.respond(1, 405, &[], None).unwrap();
}

#[test]
fn responses_go_to_requests_that_are_known() {
    let mut server = Server::new(&Config::default());
    assert_eq!(
        server.respond(1, 200, &[], None),
        Err(ResponseError::NoRequest)
    );
    assert_eq!(server.send(1, "a", true), Err(ResponseError::NoRequest));
    only_request(server.request(1, GET));
    assert_eq!(server.send(1, "a", true), Err(ResponseError::NotBegun));
    // After an error, another response can be sent.
    assert_eq!(
        server.respond(1, 200, &[("x", "\n")], None),
        Err(ResponseError::FieldValue)
    );
    server.respond(1, 500, &[], None).unwrap();
    assert_eq!(server.respond(1, 200, &[], None), Err(ResponseError::Begun));
    let inform = |server: &mut Server| server.connection.inform(1, 103, []);
    assert_eq!(inform(&mut server), Err(ResponseError::Begun));
    server.send(1, "a", true).unwrap();
    assert_eq!(server.send(1, "a", true), Err(ResponseError::NoRequest));
    let kinds: Vec<_> = server
        .output()
        .iter()
        .map(|frame| (frame.kind, frame.flags))
        .collect();
    assert_eq!(kinds, [(HEADERS, END_HEADERS), (DATA, END_STREAM)]);
}

#[test]
fn a_response_that_is_too_short_is_reset() {
    let mut server = Server::new(&Config::default());
    only_request(server.request(1, GET));
    server
        .respond(1, 200, &[("content-length", "5")], None)
        .unwrap();
    server.send(1, "hell", false).unwrap();
    assert_eq!(server.send(1, "", true), Err(ResponseError::TooShort(1)));
    assert!(server.output().contains(&reset(1, INTERNAL_ERROR)));
    assert!(server.connection.is_idle());
}

#[test]
fn informational_responses_go_before_the_final_one() {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    let (mut response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    for status in [99, 101, 200] {
        assert_eq!(
            server.inform(stream, status, []),
            Err(ResponseError::Status(status))
        );
    }
    server.inform(stream, 100, []).unwrap();
    server
        .inform(stream, 103, [(&b"link"[..], &b"</a>"[..])])
        .unwrap();
    server
        .respond(stream, 204, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server.send(stream, Bytes::new(), true, 0).unwrap();
    client.exchange(&mut server);
    let mut context = Context::from_waker(Waker::noop());
    let mut statuses = Vec::new();
    while let Poll::Ready(Some(Ok(head))) = response.poll_informational(&mut context) {
        statuses.push(head.status().as_u16());
    }
    assert_eq!(statuses, [100, 103]);
    assert_eq!(hear(response).status, 204);
}

#[test]
fn bodies_and_trailers_go_both_ways() {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    let (response, mut sending) = client.ask("POST", false);
    let (stream, _, end) = only_request(client.exchange(&mut server));
    assert!(!end);
    sending
        .send_data(Bytes::from_static(b"hello"), false)
        .unwrap();
    let events = client.exchange(&mut server);
    assert!(matches!(&events[..], [Event::Data { data, end: false, .. }] if data == "hello"));
    let trailers: http::HeaderMap = [("x-sum".parse().unwrap(), "1".parse().unwrap())]
        .into_iter()
        .collect();
    sending.send_trailers(trailers).unwrap();
    let events = client.exchange(&mut server);
    let expected = vec![("x-sum".to_owned(), b"1".to_vec())];
    assert!(matches!(&events[..], [Event::Trailers { fields, .. }] if *fields == expected));

    server
        .respond(stream, 200, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from_static(b"bye"), false, 0)
        .unwrap();
    for (name, error) in [
        ("content-length", ResponseError::FieldName),
        ("x:", ResponseError::FieldName),
    ] {
        let fields = [(name.as_bytes(), &b"1"[..])];
        assert_eq!(server.send_trailers(stream, fields, 0), Err(error));
    }
    server
        .send_trailers(stream, [(&b"X-Sum"[..], &b"2"[..])], 0)
        .unwrap();
    assert!(server.is_idle());
    client.exchange(&mut server);
    let found = hear(response);
    assert_eq!((found.body.as_slice(), found.complete), (&b"bye"[..], true));
    assert_eq!(
        found.trailers,
        Some([("x-sum".to_owned(), "2".to_owned())].into())
    );
}

#[test]
fn trailers_behind_no_body_are_left_out() {
    for (method, status) in [("HEAD", 200), ("GET", 204)] {
        let mut server = Connection::new(&Config::default());
        let mut client = Client::new();
        let (response, _sending) = client.ask(method, true);
        let (stream, ..) = only_request(client.exchange(&mut server));
        server
            .respond(stream, status, [], None, &mut Lines::new(None, false), 0)
            .unwrap();
        server
            .send_trailers(stream, [(&b"x"[..], &b"y"[..])], 0)
            .unwrap();
        assert!(server.is_idle());
        client.exchange(&mut server);
        let found = hear(response);
        assert_eq!((found.complete, found.trailers), (true, None));
    }
}

#[test]
fn requests_with_trailers_that_must_not_be_are_reset() {
    for name in ["content-length", "host", "authorization", "cookie"] {
        let mut server = Server::new(&Config::default());
        only_request(server.give(&frame(HEADERS, END_HEADERS, 1, &block(GET))));
        let events = server.request(1, &[(name, "1")]);
        assert!(
            matches!(
                events[..],
                [Event::Reset {
                    stream: 1,
                    code: PROTOCOL_ERROR
                }]
            ),
            "{events:?}"
        );
        assert!(server.output().contains(&reset(1, PROTOCOL_ERROR)));
    }
}

#[test]
fn a_body_waits_for_the_application() {
    let config = Config::default();
    let window = config.stream_window_bytes as usize;
    let mut server = Connection::new(&config);
    let mut client = Client::new();
    let (_response, mut sending) = client.ask("POST", false);
    let (stream, ..) = only_request(client.exchange(&mut server));
    sending
        .send_data(Bytes::from(vec![b'x'; 3 * window]), true)
        .unwrap();
    let received = |events: &[Event]| -> usize {
        events
            .iter()
            .map(|event| match event {
                Event::Data { data, .. } => data.len(),
                other => panic!("{other:?}"),
            })
            .sum()
    };
    let events = client.exchange(&mut server);
    assert_eq!(received(&events), window);
    // No more is received before the application has taken this.
    assert!(client.exchange(&mut server).is_empty());
    server.release(stream, window);
    assert_eq!(received(&client.exchange(&mut server)), window);
    // Releasing too much, or on an unknown stream, has no effect.
    server.release(stream, 10 * window);
    server.release(stream + 2, 1);
    assert!(client.exchange(&mut server).is_empty());
    server.release(stream, window);
    let events = client.exchange(&mut server);
    assert_eq!(received(&events), window);
    assert!(matches!(events.last(), Some(Event::Data { end: true, .. })));
}

#[test]
fn all_bodies_together_wait_too() {
    let mut config = Config::default();
    config.connection_window_bytes = 100_000;
    let window = config.stream_window_bytes as usize;
    let mut server = Connection::new(&config);
    let mut client = Client::new();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let (response, mut sending) = client.ask("POST", false);
        sending
            .send_data(Bytes::from(vec![b'x'; window]), true)
            .unwrap();
        kept.push((response, sending));
    }
    let mut streams = BTreeMap::new();
    let mut count = |events: Vec<Event>| {
        for event in events {
            if let Event::Data { stream, data, .. } = event {
                *streams.entry(stream).or_insert(0) += data.len();
            }
        }
        streams.clone()
    };
    let received = count(client.exchange(&mut server));
    assert_eq!(received.values().sum::<usize>(), 100_000);
    // A reset stream releases its part of the connection's window.
    let (&first, _) = received.first_key_value().unwrap();
    server.reset(first, CANCEL);
    let received = count(client.exchange(&mut server));
    assert_eq!(received.values().sum::<usize>(), 100_000 + window);
}

#[test]
fn a_response_waits_for_the_client() {
    let mut server = Connection::new(&Config::default());
    let mut builder = h2::client::Builder::new();
    let mut client = Client::with(builder.initial_window_size(1000));
    let (response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    server
        .respond(stream, 200, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from(vec![b'x'; 2500]), false, 0)
        .unwrap();
    assert!(client.exchange(&mut server).is_empty());
    assert_eq!(server.buffered(stream), 1500);
    let mut context = Context::from_waker(Waker::noop());
    let mut response = Box::pin(response);
    let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) else {
        panic!();
    };
    let mut body = response.into_body();
    let mut take = |client: &mut Client, server: &mut Connection| {
        while let Poll::Ready(Some(Ok(data))) = body.poll_data(&mut context) {
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        client.exchange(server)
    };
    assert!(take(&mut client, &mut server).is_empty());
    assert_eq!(server.buffered(stream), 500);
    let events = take(&mut client, &mut server);
    assert!(matches!(events[..], [Event::Drained { .. }]), "{events:?}");
    assert_eq!(server.buffered(stream), 0);
    // The end of the response is buffered as well. There is no Drained for a finished stream.
    server
        .send(stream, Bytes::from(vec![b'x'; 2700]), true, 0)
        .unwrap();
    for _ in 0..5 {
        assert!(take(&mut client, &mut server).is_empty());
    }
    assert!(server.is_idle());
    assert!(body.is_end_stream());
}

#[test]
fn the_end_of_a_response_waits_for_room_too() {
    let mut server = Connection::new(&Config::default());
    let mut builder = h2::client::Builder::new();
    let mut client = Client::with(builder.initial_window_size(10));
    let (response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    server
        .respond(stream, 200, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from_static(b"hello, world, hello"), false, 0)
        .unwrap();
    server
        .send_trailers(stream, [(&b"x"[..], &b"y"[..])], 0)
        .unwrap();
    client.exchange(&mut server);
    assert!(!server.is_idle());
    let mut context = Context::from_waker(Waker::noop());
    let mut response = Box::pin(response);
    let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) else {
        panic!();
    };
    let mut body = response.into_body();
    let mut taken = Vec::new();
    for _ in 0..3 {
        while let Poll::Ready(Some(Ok(data))) = body.poll_data(&mut context) {
            body.flow_control().release_capacity(data.len()).unwrap();
            taken.extend_from_slice(&data);
        }
        // There is no Drained for a finished stream.
        assert!(client.exchange(&mut server).is_empty());
    }
    assert_eq!(taken, b"hello, world, hello");
    assert!(server.is_idle());
    let Poll::Ready(Ok(Some(trailers))) = body.poll_trailers(&mut context) else {
        panic!();
    };
    assert_eq!(trailers["x"], "y");
}

#[test]
fn clients_that_do_not_read_meet_a_deadline() {
    let mut server = Server::new(&Config::default());
    // The client's windows are 0.
    server.give(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for stream in [1, 3, 5] {
        server.now_ms = u64::from(stream) * 100;
        only_request(server.request(stream, GET));
        server.respond(stream, 200, &[], None).unwrap();
        server.send(stream, "hello", true).unwrap();
    }
    assert_eq!(server.connection.stalled_since_ms(), Some(100));
    server.output();
    server.connection.reset_stalled(99);
    assert!(server.events().is_empty());
    server.connection.reset_stalled(300);
    let events = server.events();
    assert!(
        matches!(
            events[..],
            [
                Event::Reset {
                    stream: 1,
                    code: CANCEL
                },
                Event::Reset {
                    stream: 3,
                    code: CANCEL
                }
            ]
        ),
        "{events:?}"
    );
    let output = server.output();
    assert!(output.contains(&reset(1, CANCEL)) && output.contains(&reset(3, CANCEL)));
    // A client that reads a little gets more time.
    server.now_ms = 700;
    server.give(&frame(WINDOW_UPDATE, 0, 5, &[0, 0, 0, 1]));
    assert_eq!(server.connection.buffered(5), 4);
    assert_eq!(server.connection.stalled_since_ms(), Some(700));
    server.give(&frame(WINDOW_UPDATE, 0, 5, &[0, 0, 0, 9]));
    assert_eq!(server.connection.stalled_since_ms(), None);
    assert!(server.connection.is_idle());
}

#[test]
fn resets_of_the_client_are_heard() {
    let cancel = |stream| frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    let mut server = Server::new(&Config::default());
    // Before the response, during the response, and during the request's body.
    only_request(server.request(1, GET));
    only_request(server.request(3, GET));
    server.respond(3, 200, &[], None).unwrap();
    server.send(3, "a", false).unwrap();
    only_request(server.give(&frame(HEADERS, END_HEADERS, 5, &block(GET))));
    server.output();
    for number in [1, 3, 5] {
        let events = server.give(&cancel(number));
        assert!(matches!(events[..], [Event::Reset { stream, code: CANCEL }] if stream == number));
        assert_eq!(
            server.respond(number, 200, &[], None),
            Err(ResponseError::NoRequest)
        );
        assert_eq!(
            server.send(number, "a", true),
            Err(ResponseError::NoRequest)
        );
    }
    // There is no event for a finished stream.
    only_request(server.request(7, GET));
    server.respond(7, 204, &[], None).unwrap();
    server.send(7, "", true).unwrap();
    server.output();
    assert!(server.give(&cancel(7)).is_empty());
    assert!(server.connection.is_idle());
}

#[test]
fn a_body_that_nobody_wants_is_refused_in_order() {
    let mut server = Server::new(&Config::default());
    only_request(server.give(&frame(HEADERS, END_HEADERS, 1, &block(GET))));
    server.respond(1, 403, &[], Some(0)).unwrap();
    server.send(1, "", true).unwrap();
    assert!(server.connection.is_idle());
    assert!(server.output().contains(&reset(1, NO_ERROR)));
}

/// Whether a server ends the connection when it receives `flood` this number of times.
fn is_flooded(times: usize, open_first: bool, mut flood: impl FnMut(u32) -> Vec<u8>) -> bool {
    let mut config = Config::default();
    // Another limit, which is tested elsewhere.
    config.requests = u64::MAX;
    let mut server = Server::new(&config);
    if open_first {
        only_request(server.give(&frame(HEADERS, END_HEADERS, 1, &block(GET))));
    }
    for index in 0..times {
        let events = server.give(&flood(index as u32 * 2 + 3));
        for event in events {
            match event {
                Event::End(end) => {
                    let output = server.output();
                    assert!(server.connection.is_over());
                    assert_ne!(end, End::Orderly);
                    assert_eq!(goaway(&output), Some(ENHANCE_YOUR_CALM));
                    return true;
                }
                Event::Data { stream, data, .. } => server.connection.release(stream, data.len()),
                _ => {}
            }
        }
        let output = server.output();
        assert!(output.len() < 100);
        if goaway(&output) == Some(ENHANCE_YOUR_CALM) {
            return true;
        }
    }
    false
}

#[test]
fn floods_end_the_connection() {
    let config = Config::default();
    let get = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(GET));
    let cancel = |stream| frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    let control_frames = config.control_frames as usize;
    // Rapid reset, after the application has seen the requests.
    let resets = config.resets as usize;
    let one_by_one = |stream| [get(stream), cancel(stream)].concat();
    assert!(is_flooded(resets + 1, false, one_by_one));
    // Rapid reset, before the application sees the requests.
    assert!(is_flooded(1, false, |_| (0..50)
        .flat_map(|index| one_by_one(2 * index + 1))
        .collect()));
    let ping = |_| frame(PING, 0, 0, b"12345678");
    assert!(!is_flooded(control_frames / 2, false, ping));
    assert!(is_flooded(control_frames + 1, false, ping));
    assert!(is_flooded(control_frames + 1, false, |_| frame(
        SETTINGS, 0, 0, b""
    )));
    assert!(is_flooded(control_frames + 1, false, |stream| frame(
        PRIORITY,
        0,
        stream,
        &[0, 0, 0, 0, 1]
    )));
    assert!(is_flooded(control_frames + 1, false, |_| frame(
        0x77, 0, 0, b""
    )));
    // Answers to pings that were not sent, and repeated goodbyes while a request is open.
    assert!(is_flooded(control_frames + 1, false, |_| frame(
        PING,
        ACK,
        0,
        b"12345678"
    )));
    assert!(is_flooded(control_frames + 1, true, |_| frame(
        GOAWAY, 0, 0, &[0; 8]
    )));
    let window_updates = config.window_updates as usize;
    assert!(is_flooded(window_updates + 1, false, |_| frame(
        WINDOW_UPDATE,
        0,
        0,
        &[0, 0, 0, 1]
    )));
    // Empty DATA frames.
    assert!(is_flooded(100_000, true, |_| frame(DATA, 0, 1, b"").repeat(100)));
    assert!(!is_flooded(100, true, |_| frame(DATA, 0, 1, &[0; 1000])));
    assert!(!is_flooded(100, true, |_| frame(DATA, 0, 1, b"x").repeat(100)));
    // DATA frames of one byte, which the application receives at once.
    assert!(is_flooded(201, true, |_| frame(DATA, 0, 1, b"x").repeat(100)));
    // Header blocks that do not end.
    let endless = |stream| {
        let mut flood = frame(HEADERS, END_STREAM, stream, &block(GET));
        for _ in 0..100 {
            flood.extend_from_slice(&frame(CONTINUATION, 0, stream, &block(&[("x", "y")])));
        }
        flood
    };
    assert!(is_flooded(1, false, endless));
    // Streams that the server has to reset (CVE-2025-8671).
    let invalid = |stream| {
        let fields = get_but("", None, &[("connection", "close")]);
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&fields))
    };
    assert!(!is_flooded(config.error_resets, false, invalid));
    assert!(is_flooded(config.error_resets + 1, false, invalid));
    // The same, where this crate finds the error: in the request, and in trailers after the application has seen it.
    let no_host = |stream| {
        let fields = get_but(":authority", None, &[]);
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&fields))
    };
    assert!(!is_flooded(resets, false, no_host));
    assert!(is_flooded(resets + 1, false, no_host));
    let bad_trailers = |stream| {
        let trailers = block(&[("host", "a")]);
        [
            frame(HEADERS, END_HEADERS, stream, &block(GET)),
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers),
        ]
        .concat()
    };
    assert!(!is_flooded(resets, false, bad_trailers));
    assert!(is_flooded(resets + 1, false, bad_trailers));
}

#[test]
fn compressed_fields_are_limited_by_what_they_expand_to() {
    // A literal that enters the dynamic table (RFC 7541, section 6.2.1), and references to it of one byte each.
    let value = "x".repeat(4000);
    let mut bomb = block(GET);
    let mut entry = block(&[("x", &value)]);
    entry[0] = 0x40;
    bomb.extend_from_slice(&entry);
    bomb.resize(16_000, 0xBE);
    let mut server = Server::new(&Config::default());
    let flags = END_HEADERS | END_STREAM;
    let events = server.give(&frame(HEADERS, flags, 1, &bomb));
    assert!(
        matches!(events[..], [Event::End(End::Error(_))]),
        "{events:?}"
    );
    assert_eq!(goaway(&server.output()), Some(ENHANCE_YOUR_CALM));
}

#[test]
fn a_body_that_is_never_released_does_not_use_up_the_connection() {
    let mut config = Config::default();
    config.connection_window_bytes = 100_000;
    let mut server = Server::new(&config);
    for stream in (1..200).step_by(2) {
        only_request(server.give(&frame(HEADERS, END_HEADERS, stream, &block(GET))));
        let events = server.give(&frame(DATA, 0, stream, &[0; 10_000]));
        assert!(matches!(events[..], [Event::Data { .. }]), "{events:?}");
        // The response ends before the application has received the body.
        server.respond(stream, 204, &[], None).unwrap();
        server.send(stream, "", true).unwrap();
        server.output();
        // This comes too late to have an effect.
        server.connection.release(stream, 10_000);
    }
    assert!(!server.connection.is_over());
}

#[test]
fn a_flood_ends_though_its_answers_are_not_read() {
    let mut server = Server::new(&Config::default());
    let mut ended = false;
    for _ in 0..200 {
        let pings = frame(PING, 0, 0, b"12345678").repeat(1000);
        let events = server.give(&pings);
        ended |= events
            .iter()
            .any(|event| matches!(event, Event::End(End::Flood)));
    }
    assert!(ended && server.connection.is_over());
    assert!(!server.connection.wants_input());
}

#[test]
fn output_that_is_not_taken_holds_up_input() {
    let mut config = Config::default();
    config.control_frames = u32::MAX;
    let mut server = Server::new(&config);
    let mut given = 0;
    while server.connection.wants_input() {
        let pings = frame(PING, 0, 0, b"12345678").repeat(1000);
        server.give(&pings);
        given += 1000;
        assert!(given < 1_000_000, "it takes everything");
    }
    let mut taken = 0;
    loop {
        let output = server.output();
        if output.is_empty() {
            break;
        }
        taken += output.iter().filter(|frame| frame.kind == PING).count();
    }
    assert_eq!(taken, given);
    assert!(server.connection.wants_input());
}

#[test]
fn connections_are_exchanged_after_so_many_requests() {
    let mut config = Config::default();
    config.requests = 3;
    let mut server = Server::new(&config);
    let ask = |server: &mut Server, stream: u32| {
        only_request(server.request(stream, GET));
        server.respond(stream, 204, &[], None).unwrap();
        server.send(stream, "", true).unwrap();
        server.output()
    };
    assert_eq!(goaway(&ask(&mut server, 1)), None);
    assert_eq!(goaway(&ask(&mut server, 3)), None);
    let output = ask(&mut server, 5);
    assert_eq!(goaway(&output), Some(NO_ERROR));
    // Requests are answered until the client has acknowledged the GOAWAY, by answering the ping.
    assert_eq!(goaway(&ask(&mut server, 7)), None);
    let ping = output.iter().find(|frame| frame.kind == PING).unwrap();
    let events = server.give(&frame(PING, ACK, 0, &ping.payload));
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );
    assert_eq!(goaway(&server.output()), Some(NO_ERROR));
}

#[test]
fn clients_that_ignore_goaway_are_cut_off() {
    let mut config = Config::default();
    config.requests = 3;
    let mut server = Server::new(&config);
    let mut answered = 0;
    for index in 0..2000 {
        let stream = 2 * index + 1;
        for event in server.request(stream, GET) {
            match event {
                Event::Request { stream, .. } => {
                    answered += 1;
                    // The last request cannot be answered.
                    if server.respond(stream, 204, &[], None).is_ok() {
                        server.send(stream, "", true).unwrap();
                    }
                }
                Event::End(end) => assert_eq!(end, End::Flood),
                Event::Reset { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        server.output();
    }
    assert!(server.connection.is_over());
    assert_eq!(answered, 1003);
}

#[test]
fn a_server_that_ends_finishes_what_it_has_begun() {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    let (response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    server.go_away();
    server.go_away();
    assert!(client.exchange(&mut server).is_empty());
    assert!(!server.is_over());
    server
        .respond(stream, 200, [], Some(2), &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from_static(b"ok"), true, 0)
        .unwrap();
    let events = client.exchange(&mut server);
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );
    assert_eq!(hear(response).body, b"ok");
}

#[test]
fn an_idle_server_ends_at_once() {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    client.exchange(&mut server);
    server.go_away();
    let events = client.exchange(&mut server);
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );

    let mut connection = Connection::new(&Config::default());
    connection.receive(&PREFACE[..10], 0);
    connection.go_away();
    let event = connection.next_event(0);
    assert!(matches!(event, Some(Event::End(End::Orderly))));
}

#[test]
fn an_abort_cuts_off_what_is_under_way() {
    let mut server = Server::new(&Config::default());
    only_request(server.request(1, GET));
    server.connection.abort(INTERNAL_ERROR);
    let events = server.events();
    assert!(
        matches!(&events[..], [Event::Reset { stream: 1, .. }, Event::End(_)]),
        "{events:?}"
    );
    assert_eq!(goaway(&server.output()), Some(INTERNAL_ERROR));

    let mut connection = Connection::new(&Config::default());
    connection.abort(INTERNAL_ERROR);
    assert!(matches!(
        connection.next_event(0),
        Some(Event::End(End::Orderly))
    ));
    connection.abort(INTERNAL_ERROR);
    connection.receive(PREFACE, 0);
    assert!(connection.next_event(0).is_none());
}

#[test]
fn the_clients_end_is_the_connections() {
    let mut server = Server::new(&Config::default());
    only_request(server.request(1, GET));
    server.connection.receive_end();
    let events = server.events();
    assert!(
        matches!(&events[..], [Event::Reset { stream: 1, .. }, Event::End(_)]),
        "{events:?}"
    );
    assert!(server.connection.is_over() && server.connection.is_idle());

    let mut server = Server::new(&Config::default());
    server.connection.receive_end();
    let events = server.events();
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );

    let mut connection = Connection::new(&Config::default());
    connection.receive(&PREFACE[..10], 0);
    connection.receive_end();
    assert!(matches!(
        connection.next_event(0),
        Some(Event::End(End::Error(_)))
    ));
}

#[test]
fn what_is_no_http2_is_told() {
    let mut connection = Connection::new(&Config::default());
    connection.receive(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0);
    assert!(matches!(
        connection.next_event(0),
        Some(Event::End(End::Error(_)))
    ));
    // A frame that exceeds the maximum size.
    let mut server = Server::new(&Config::default());
    let events = server.give(b"\0\x40\x01\0\0\0\0\0\x01");
    assert!(
        matches!(&events[..], [Event::End(End::Error(_))]),
        "{events:?}"
    );
    assert_eq!(goaway(&server.output()), Some(6));
}

/// The events, as text, when the input arrives in `pieces`.
fn events_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut server = Server::new(&Config::default());
    let mut found = Vec::new();
    for piece in pieces {
        for event in server.give(piece) {
            found.push(match event {
                Event::Request {
                    stream,
                    request,
                    end,
                } => {
                    format!(
                        "{stream} {} {:?} {end}",
                        request.path(),
                        fields_of(&request)
                    )
                }
                other => format!("{other:?}"),
            });
        }
    }
    found
}

proptest! {
    #[test]
    fn it_does_not_matter_where_frames_are_cut(
        seed: u64,
        requests in proptest::collection::vec(("/[a-z]{0,10}", proptest::collection::vec(any::<u8>(), 0..300)), 1..20),
    ) {
        let mut input = Vec::new();
        for (index, (path, body)) in requests.iter().enumerate() {
            let stream = 2 * index as u32 + 1;
            let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path.as_str())];
            input.extend_from_slice(&frame(HEADERS, END_HEADERS, stream, &block(&fields)));
            input.extend_from_slice(&frame(DATA, END_STREAM, stream, body));
        }
        let mut whole = events_of([input.as_slice()]);
        let mut cut = events_of(targets::pieces(&input, seed));
        // The order between streams depends on the pieces.
        whole.sort();
        cut.sort();
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn any_frames_are_survived(
        seed: u64,
        given in proptest::collection::vec(
            (0..11_u8, any::<u8>(), 0..8_u32, prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..20),
                Just(block(GET)),
                Just(vec![0, 0, 0, 1]),
            ]), 0..30),
    ) {
        let mut data = seed.to_le_bytes().to_vec();
        for (kind, flags, stream, payload) in given {
            data.extend_from_slice(&frame(kind, flags, stream, &payload));
        }
        targets::h2::feed(&data);
    }
}
