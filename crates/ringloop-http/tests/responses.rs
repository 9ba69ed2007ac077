//! HTTP/1 responses: their framing, their checks, and how hyper's client reads them.

mod targets;

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Incoming};
use proptest::prelude::*;
use ringloop_http::h1::{CONTINUE, ChunkedDecoder, Connection, Event, Head, Limits, Piece};
use ringloop_http::{Lines, ResponseError};
use targets::hyper_server::Memory;

/// The fields of a response.
type Fields<'a> = &'a [(&'a str, &'a str)];

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A connection that has read `request`.
fn asked(request: &str) -> Connection {
    let mut connection = Connection::new(Limits::default());
    let mut at = 0;
    let mut head = Head::default();
    while at < request.len() {
        match connection.read(request.as_bytes(), &mut at, &mut head) {
            Ok(Event::Request { .. } | Event::Data { .. } | Event::End) => {}
            other => panic!("{other:?}"),
        }
    }
    connection
}

/// Sends a response whose body consists of `pieces`, and returns the bytes for the socket.
fn send(
    connection: &mut Connection,
    status: u16,
    fields: Fields,
    complete: Option<u64>,
    pieces: &[&str],
) -> Result<String, ResponseError> {
    let mut out = Vec::new();
    let mut response = connection.respond(status, &mut out)?;
    for (name, value) in fields {
        response.field(name.as_bytes(), value.as_bytes())?;
    }
    response.finish(complete, &mut Lines::new(None, false), 0);
    for (index, piece) in pieces.iter().enumerate() {
        let framed = connection.send(piece.len(), index + 1 == pieces.len())?;
        out.extend_from_slice(framed.head());
        out.extend_from_slice(framed.payload(piece.as_bytes()));
        out.extend_from_slice(framed.tail());
    }
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn a_head_that_was_put_aside_is_finished_like_others() {
    for complete in [None, Some(5)] {
        let mut connection = asked(GET);
        let mut out = b"before".to_vec();
        let mut response = connection.respond(200, &mut out).unwrap();
        response.field(b"a", b"b").unwrap();
        let parked = response.park();
        assert!(connection.awaits_response());
        let mut response = parked.resume(&mut connection, &mut out);
        response.field(b"connection", b"close").unwrap();
        response.finish(complete, &mut Lines::new(None, false), 0);
        assert!(connection.is_responding());
        let framing = complete.map_or("transfer-encoding: chunked", |_| "content-length: 5");
        let expected =
            format!("beforeHTTP/1.1 200 OK\r\na: b\r\n{framing}\r\nconnection: close\r\n\r\n");
        assert_eq!(str::from_utf8(&out), Ok(&*expected));
    }
    // One that is given up leaves nothing.
    let mut connection = asked(GET);
    let mut out = b"before".to_vec();
    let parked = connection.respond(200, &mut out).unwrap().park();
    drop(parked.resume(&mut connection, &mut out));
    assert_eq!(out, b"before");
    assert!(connection.awaits_response());
}

#[test]
#[allow(clippy::type_complexity, reason = "a table")]
fn responses_are_framed_as_request_and_status_demand() {
    let get = GET;
    let head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
    let closing = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let old = "GET / HTTP/1.0\r\n\r\n";
    let old_open = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let length = [("Content-Length", "5")].as_slice();
    let chunked = [("transfer-encoding", "Chunked")].as_slice();
    let both = [("content-length", "5"), ("transfer-encoding", "chunked")].as_slice();
    // Request, status, fields, length of a complete body, pieces of the body; then the bytes that are sent, and whether
    // the connection is over.
    #[rustfmt::skip]
    let rows: &[(&str, u16, Fields, Option<u64>, &[&str], &str, bool)] = &[
        (get, 200, &[], None, &["hello", ", world", ""],
            "200 OK|transfer-encoding: chunked||5|hello|7|, world|0||", false),
        (get, 200, &[], None, &["hello"], "200 OK|transfer-encoding: chunked||5|hello|0||", false),
        (get, 200, &[], None, &["", "hello", "", ""], "200 OK|transfer-encoding: chunked||5|hello|0||", false),
        (get, 200, &[], None, &[""], "200 OK|transfer-encoding: chunked||0||", false),
        (get, 200, &[], Some(5), &["hello"], "200 OK|content-length: 5||hello", false),
        (get, 200, &[], Some(0), &[""], "200 OK|content-length: 0||", false),
        (get, 200, length, None, &["he", "llo"], "200 OK|content-length: 5||hello", false),
        (get, 200, chunked, Some(5), &["hello"], "200 OK|transfer-encoding: chunked||5|hello|0||", false),
        (get, 200, both, Some(5), &["hello"], "200 OK|transfer-encoding: chunked||5|hello|0||", false),
        (get, 200, &[("X", "y"), ("A", "")], Some(0), &[""], "200 OK|X: y|A: |content-length: 0||", false),
        (get, 299, &[], Some(0), &[""], "299 |content-length: 0||", false),
        (get, 999, &[], Some(0), &[""], "999 |content-length: 0||", false),
        (get, 204, &[], None, &[""], "204 No Content||", false),
        (get, 204, length, Some(0), &[""], "204 No Content||", false),
        (get, 204, chunked, None, &[""], "204 No Content||", false),
        (get, 304, &[], None, &[""], "304 Not Modified||", false),
        (get, 304, length, Some(0), &[""], "304 Not Modified|content-length: 5||", false),
        (get, 205, length, None, &[""], "205 Reset Content|content-length: 0||", false),
        (head, 200, &[], None, &["hello", ""], "200 OK||", false),
        (head, 200, &[], Some(0), &[""], "200 OK||", false),
        (head, 200, length, Some(0), &[""], "200 OK|content-length: 5||", false),
        (head, 200, length, None, &["hello"], "200 OK|content-length: 5||", false),
        (head, 200, chunked, None, &["hello"], "200 OK||", false),
        (head, 205, &[], None, &[""], "205 Reset Content||", false),
        (closing, 200, &[], Some(5), &["hello"], "200 OK|content-length: 5|connection: close||hello", true),
        (closing, 200, &[("Connection", "keep-alive")], Some(0), &[""],
            "200 OK|content-length: 0|connection: close||", true),
        (get, 200, &[("Connection", "close")], Some(0), &[""], "200 OK|content-length: 0|connection: close||", true),
        (get, 200, &[("Connection", "keep-alive, CLOSE")], Some(0), &[""],
            "200 OK|content-length: 0|connection: close||", true),
        (get, 426, &[("Upgrade", "x"), ("Connection", "upgrade")], Some(0), &[""],
            "426 Upgrade Required|Upgrade: x|Connection: upgrade|content-length: 0||", false),
        (old, 200, &[], None, &["hello", ""], "200 OK|connection: close||hello", true),
        (old, 200, chunked, None, &["hello", ""], "200 OK|connection: close||hello", true),
        (old, 200, length, None, &["hello"], "200 OK|content-length: 5|connection: close||hello", true),
        (old_open, 200, &[], None, &["hello"], "200 OK|connection: close||hello", true),
        (old_open, 200, &[], Some(5), &["hello"], "200 OK|content-length: 5|connection: keep-alive||hello", false),
        (old_open, 200, chunked, Some(5), &["hello"], "200 OK|content-length: 5|connection: keep-alive||hello", false),
        (old_open, 204, &[], None, &[""], "204 No Content|connection: keep-alive||", false),
        (old_open, 200, &[("Connection", "close")], Some(0), &[""],
            "200 OK|content-length: 0|connection: close||", true),
    ];
    for (request, status, fields, complete, pieces, expected, over) in rows {
        let mut connection = asked(request);
        let sent = send(&mut connection, *status, fields, *complete, pieces).unwrap();
        assert_eq!(
            sent,
            format!("HTTP/1.1 {}", expected.replace('|', "\r\n")),
            "{request} {status} {fields:?}"
        );
        assert_eq!(connection.is_over(), *over, "{request} {status} {fields:?}");
        assert_eq!(connection.is_idle(), !over);
    }
}

#[test]
fn date_and_server_are_added_where_the_response_has_none() {
    let mut lines = Lines::new(Some("ringloop"), true);
    let mut write = |fields: &[(&str, &str)], unix_s| {
        let mut connection = asked(GET);
        let mut out = Vec::new();
        let mut response = connection.respond(204, &mut out).unwrap();
        for (name, value) in fields {
            response.field(name.as_bytes(), value.as_bytes()).unwrap();
        }
        response.finish(None, &mut lines, unix_s);
        String::from_utf8(out).unwrap()
    };
    let start = "HTTP/1.1 204 No Content\r\n";
    let now = 784_111_777;
    let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let server = "server: ringloop\r\n";
    assert_eq!(write(&[], now), format!("{start}{date}{server}\r\n"));
    let later = "date: Sun, 06 Nov 1994 08:49:38 GMT\r\n";
    assert_eq!(write(&[], now + 1), format!("{start}{later}{server}\r\n"));
    assert_eq!(
        write(&[("Server", "mine")], now),
        format!("{start}Server: mine\r\n{date}\r\n")
    );
    assert_eq!(
        write(&[("DATE", "mine"), ("server", "mine")], now),
        format!("{start}DATE: mine\r\nserver: mine\r\n\r\n")
    );
}

#[test]
#[should_panic(expected = "Server is not a valid field value")]
fn the_servers_name_is_checked() {
    Lines::new(Some("a\r\nset-cookie: b"), true);
}

#[test]
fn fields_cannot_carry_others_in_them() {
    use ResponseError::{ContentLength, FieldName, FieldValue, TransferEncoding};
    let rows: &[(Fields, ResponseError)] = &[
        (&[("X", "a\r\nSet-Cookie: b")], FieldValue),
        (&[("X", "a\nb")], FieldValue),
        (&[("X", "a\rb")], FieldValue),
        (&[("X", "a\0b")], FieldValue),
        (&[("X", "\u{1b}[31m")], FieldValue),
        (&[("X", "\u{7f}")], FieldValue),
        (&[("Host", "a\r\n\r\nHTTP/1.1 200 OK")], FieldValue),
        (&[("", "a")], FieldName),
        (&[("X: a\r\nY", "a")], FieldName),
        (&[("X ", "a")], FieldName),
        (&[("X:", "a")], FieldName),
        (&[("X\0", "a")], FieldName),
        (&[("é", "a")], FieldName),
        (&[("content-length", "5, 5")], ContentLength),
        (&[("content-length", "+5")], ContentLength),
        (&[("content-length", "")], ContentLength),
        (
            &[("content-length", "5"), ("Content-Length", "5")],
            ContentLength,
        ),
        (&[("transfer-encoding", "gzip")], TransferEncoding),
        (&[("transfer-encoding", "gzip, chunked")], TransferEncoding),
        (
            &[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
            TransferEncoding,
        ),
    ];
    for (fields, expected) in rows {
        let mut connection = asked(GET);
        let mut out = b"before".to_vec();
        let mut response = connection.respond(200, &mut out).unwrap();
        let result = fields
            .iter()
            .try_for_each(|(name, value)| response.field(name.as_bytes(), value.as_bytes()));
        assert_eq!(result, Err(*expected), "{fields:?}");
        drop(response);
        // Nothing is left in the buffer, and an error response can be sent.
        assert_eq!(out, b"before");
        let sent = send(&mut connection, 500, &[], Some(0), &[""]).unwrap();
        assert!(sent.starts_with("HTTP/1.1 500 Internal Server Error\r\n"));
    }
}

#[test]
fn bodies_are_as_long_as_announced() {
    let length = [("content-length", "5")].as_slice();
    let too_long = Err(ResponseError::TooLong);
    let rows: &[(u16, Fields, &[&str], _)] = &[
        (200, length, &["hello!"], too_long),
        (200, length, &["hello", "!"], too_long),
        (200, length, &["hell", ""], Err(ResponseError::TooShort(1))),
        (200, length, &[""], Err(ResponseError::TooShort(5))),
    ];
    for (status, fields, pieces, expected) in rows {
        let mut connection = asked(GET);
        let result = send(&mut connection, *status, fields, None, pieces).map(drop);
        assert_eq!(result, *expected, "{status} {pieces:?}");
        let short = matches!(expected, Err(ResponseError::TooShort(_)));
        assert_eq!(connection.is_over(), short);
        // A piece that was too long does not end the connection by itself.
        assert_eq!(connection.is_responding(), !short);
        connection.abort();
        assert!(connection.is_over());
        assert_eq!(
            connection.send(1, true).map(drop),
            Err(ResponseError::NotBegun)
        );
    }
}

#[test]
fn a_body_is_dropped_where_the_status_has_none() {
    let length = [("content-length", "5")].as_slice();
    for (status, fields, complete, announced) in [
        (204, &[][..], None, None),
        (204, length, Some(5), None),
        (304, &[], None, None),
        (304, length, Some(5), Some("content-length: 5\r\n")),
        (205, &[], None, Some("content-length: 0\r\n")),
        (205, length, Some(5), Some("content-length: 0\r\n")),
    ] {
        for (request, is_forbidden) in [(GET, true), (HEAD, false)] {
            let mut connection = asked(request);
            let mut out = Vec::new();
            let mut head = connection.respond(status, &mut out).unwrap();
            for (name, value) in fields {
                head.field(name.as_bytes(), value.as_bytes()).unwrap();
            }
            head.finish(complete, &mut Lines::new(None, false), 0);
            let text = String::from_utf8(out).unwrap();
            if is_forbidden {
                let found = text
                    .find("content-length")
                    .map(|at| &text[at..text.len() - 2]);
                assert_eq!(found, announced, "{status}");
            }
            assert!(!text.contains("connection: close"), "{text}");
            for (content, last) in [(&b""[..], false), (b"hello", false), (b"!", true)] {
                let framed = connection.send(content.len(), last).unwrap();
                assert!(framed.head().is_empty() && framed.tail().is_empty());
                assert!(framed.payload(content).is_empty());
                // To a request for the head alone, an application may answer as to any other.
                let drops = is_forbidden && !content.is_empty();
                assert_eq!(framed.is_forbidden(), drops, "{status} {content:?}");
            }
            assert!(connection.is_idle());
        }
    }
    // All other statuses have a body.
    let mut connection = asked(GET);
    let mut out = Vec::new();
    let head = connection.respond(200, &mut out).unwrap();
    head.finish(Some(5), &mut Lines::new(None, false), 0);
    assert!(!connection.send(5, true).unwrap().is_forbidden());
}

#[test]
fn a_response_is_begun_once_and_for_a_request() {
    let mut out = Vec::new();
    let mut connection = Connection::new(Limits::default());
    let no_fields = || std::iter::empty::<(&[u8], &[u8])>();
    assert_eq!(
        connection.respond(200, &mut out).map(drop),
        Err(ResponseError::NoRequest)
    );
    assert_eq!(
        connection.inform(103, no_fields(), &mut out),
        Err(ResponseError::NoRequest)
    );
    assert_eq!(connection.switch_protocol(), Err(ResponseError::NoRequest));

    let mut connection = asked(GET);
    for status in [0, 99, 100, 101, 199, 1000, 65535] {
        assert_eq!(
            connection.respond(status, &mut out).map(drop),
            Err(ResponseError::Status(status))
        );
    }
    assert_eq!(
        connection.send(1, false).map(drop),
        Err(ResponseError::NotBegun)
    );
    connection
        .respond(200, &mut out)
        .unwrap()
        .finish(None, &mut Lines::new(None, false), 0);
    assert_eq!(
        connection.respond(200, &mut out).map(drop),
        Err(ResponseError::Begun)
    );
    assert_eq!(
        connection.inform(103, no_fields(), &mut out),
        Err(ResponseError::Begun)
    );
    assert_eq!(connection.switch_protocol(), Err(ResponseError::Begun));
    assert!(!connection.refuse(
        500,
        "late",
        no_fields(),
        &mut Lines::new(None, false),
        0,
        &mut out
    ));
    connection.send(0, true).unwrap();
    assert_eq!(
        connection.respond(200, &mut out).map(drop),
        Err(ResponseError::NoRequest)
    );
}

#[test]
fn connect_cannot_succeed() {
    let mut connection = asked("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n");
    assert_eq!(
        connection.respond(200, &mut Vec::new()).map(drop),
        Err(ResponseError::Status(200))
    );
    let sent = send(&mut connection, 405, &[], Some(0), &[""]).unwrap();
    assert!(sent.starts_with("HTTP/1.1 405 "));
}

#[test]
fn a_body_is_asked_for_once_and_before_the_response() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n";
    let mut connection = asked(head);
    assert_eq!(connection.ask_for_body(), Some(CONTINUE));
    assert_eq!(connection.ask_for_body(), None);
    connection
        .read(b"hello", &mut 0, &mut Head::default())
        .unwrap();
    send(&mut connection, 204, &[], None, &[""]).unwrap();
    assert!(connection.is_idle());

    // The client has not waited.
    let mut connection = asked(head);
    connection
        .read(b"hell", &mut 0, &mut Head::default())
        .unwrap();
    assert_eq!(connection.ask_for_body(), None);

    // The final response comes first. The client may or may not send the body.
    let mut connection = asked(head);
    let sent = send(&mut connection, 413, &[], Some(0), &[""]).unwrap();
    assert!(sent.contains("connection: close\r\n"));
    assert_eq!(connection.ask_for_body(), None);
    assert!(connection.is_over());

    for nothing in [
        GET,
        "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        "POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    ] {
        assert_eq!(asked(nothing).ask_for_body(), None);
    }
}

#[test]
fn informational_responses_go_before_the_final_one() {
    let mut connection = asked(GET);
    let mut out = Vec::new();
    let link = [(&b"Link"[..], &b"</a>; rel=preload"[..])];
    connection.inform(103, link, &mut out).unwrap();
    assert_eq!(
        out,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
    );
    // They cannot have a body, whatever the application says.
    let framing = [
        (&b"content-length"[..], &b"5"[..]),
        (b"Transfer-Encoding", b"chunked"),
    ];
    out.clear();
    connection.inform(103, framing, &mut out).unwrap();
    assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\n\r\n");
    for status in [99, 101, 200] {
        assert_eq!(
            connection.inform(status, link, &mut out),
            Err(ResponseError::Status(status))
        );
    }
    out.clear();
    assert_eq!(
        connection.inform(103, [(&b"Link"[..], &b"a\r\nb"[..])], &mut out),
        Err(ResponseError::FieldValue)
    );
    assert_eq!(out, b"");
    asked("GET / HTTP/1.0\r\n\r\n")
        .inform(103, link, &mut out)
        .unwrap();
    assert_eq!(out, b"");
    send(&mut connection, 204, &[], None, &[""]).unwrap();
}

#[test]
fn trailers_follow_chunks_if_the_client_wants_them() {
    let wants = "GET / HTTP/1.1\r\nHost: a\r\nTE: gzip, Trailers\r\n\r\n";
    let old = "GET / HTTP/1.0\r\nTE: trailers\r\n\r\n";
    let fields = [(&b"x-a"[..], &b"1"[..]), (b"X-B", b"")];
    for (request, length, expected) in [
        (wants, None, "0\r\nx-a: 1\r\nX-B: \r\n\r\n"),
        (wants, Some("2"), ""),
        (GET, None, "0\r\n\r\n"),
        (GET, Some("2"), ""),
        (old, None, ""),
        (HEAD, None, ""),
    ] {
        let mut connection = asked(request);
        assert_eq!(connection.request().takes_trailers, request == wants);
        let mut out = Vec::new();
        let mut response = connection.respond(200, &mut out).unwrap();
        if let Some(length) = length {
            response
                .field(b"content-length", length.as_bytes())
                .unwrap();
        }
        response.finish(None, &mut Lines::new(None, false), 0);
        connection.send(2, false).unwrap();
        let mut out = b"before".to_vec();
        for name in [&b"content-length"[..], b"authorization", b"a b", b"TE"] {
            let fields = [(&b"x-a"[..], &b"1"[..]), (name, b"1")];
            let refused = connection.send_trailers(fields, &mut out);
            assert_eq!(refused, Err(ResponseError::FieldName));
        }
        assert_eq!(out, b"before");
        connection.send_trailers(fields, &mut out).unwrap();
        assert_eq!(str::from_utf8(&out).unwrap(), format!("before{expected}"));
        assert!(!connection.is_responding());
        let again = connection.send_trailers(fields, &mut out);
        assert_eq!(again, Err(ResponseError::NotBegun));
    }
    // The body has to be as long as announced, all the same.
    let mut connection = asked(wants);
    let mut out = Vec::new();
    let mut response = connection.respond(200, &mut out).unwrap();
    response.field(b"content-length", b"3").unwrap();
    response.finish(None, &mut Lines::new(None, false), 0);
    connection.send(2, false).unwrap();
    let mut out = Vec::new();
    let short = connection.send_trailers(fields, &mut out);
    assert_eq!(short, Err(ResponseError::TooShort(1)));
    assert!(out.is_empty() && connection.is_over());
}

#[test]
fn the_next_request_waits_for_the_response() {
    let input = format!("{GET}{GET}");
    let mut connection = Connection::new(Limits::default());
    let (mut at, mut head) = (0, Head::default());
    let mut read = |connection: &mut Connection| {
        connection
            .read(input.as_bytes(), &mut at, &mut head)
            .unwrap()
    };
    assert!(matches!(
        read(&mut connection),
        Event::Request { end: true, .. }
    ));
    assert_eq!(read(&mut connection), Event::Paused);
    let mut out = Vec::new();
    connection
        .respond(200, &mut out)
        .unwrap()
        .finish(None, &mut Lines::new(None, false), 0);
    assert_eq!(read(&mut connection), Event::Paused);
    connection.send(1, false).unwrap();
    assert_eq!(read(&mut connection), Event::Paused);
    connection.send(1, true).unwrap();
    assert!(matches!(
        read(&mut connection),
        Event::Request { repeated: true, .. }
    ));
    assert_eq!(connection.requests(), 2);
}

#[test]
fn a_body_that_nobody_wants_is_read_to_its_end() {
    let input = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello{GET}");
    let mut connection = Connection::new(Limits::default());
    let (mut at, mut head) = (0, Head::default());
    connection
        .read(input.as_bytes(), &mut at, &mut head)
        .unwrap();
    send(&mut connection, 403, &[], Some(0), &[""]).unwrap();
    assert!(connection.is_reading_body() && !connection.is_over() && !connection.is_idle());
    let event = connection.read(input.as_bytes(), &mut at, &mut head);
    assert!(matches!(event, Ok(Event::Data { end: true, .. })));
    assert!(connection.is_idle());
    let event = connection.read(input.as_bytes(), &mut at, &mut head);
    assert!(matches!(event, Ok(Event::Request { .. })));
}

#[test]
fn a_server_that_ends_says_so_in_its_last_response() {
    let mut connection = asked(GET);
    connection.close_after_response();
    let sent = send(&mut connection, 204, &[], None, &[""]).unwrap();
    assert_eq!(sent, "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
    assert!(connection.is_over());
    let event = connection.read(GET.as_bytes(), &mut 0, &mut Head::default());
    assert_eq!(event, Ok(Event::Over));

    // The head was sent before.
    let mut connection = asked(GET);
    let mut lines = Lines::new(None, false);
    connection
        .respond(200, &mut Vec::new())
        .unwrap()
        .finish(None, &mut lines, 0);
    connection.close_after_response();
    assert!(!connection.is_over());
    connection.send(0, true).unwrap();
    assert!(connection.is_over());
}

#[test]
fn refusals_have_the_fields_that_are_given_and_no_others_twice() {
    let fields: [(&[u8], &[u8]); 8] = [
        (b"x-a", b"1"),
        (b"Connection", b"keep-alive"),
        (b"connection", b"upgrade"),
        (b"content-type", b"text/html"),
        (b"content-LENGTH", b"5"),
        (b"transfer-encoding", b"chunked"),
        (b"x-b", b"a\r\nb"),
        (b"x-c", b"2"),
    ];
    let mut out = Vec::new();
    let mut lines = Lines::new(Some("me"), false);
    assert!(asked(GET).refuse(400, "no", fields, &mut lines, 0, &mut out));
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 2\r\n\
         connection: close\r\nx-a: 1\r\nconnection: upgrade\r\nx-c: 2\r\nserver: me\r\n\r\nno"
    );
}

#[test]
fn refusals_are_whole_responses() {
    let refuse = |connection: &mut Connection| {
        let mut out = Vec::new();
        let mut lines = Lines::new(None, false);
        assert!(connection.refuse(408, "too slow", [], &mut lines, 0, &mut out));
        assert!(connection.is_over() && !connection.is_idle());
        String::from_utf8(out).unwrap()
    };
    let head = "HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n\
                content-length: 8\r\nconnection: close\r\n\r\n";
    assert_eq!(
        refuse(&mut Connection::new(Limits::default())),
        format!("{head}too slow")
    );
    assert_eq!(refuse(&mut asked(GET)), format!("{head}too slow"));
    assert_eq!(
        refuse(&mut asked("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")),
        head
    );
    // The method of the previous request does not matter.
    let mut connection = asked("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    send(&mut connection, 204, &[], None, &[""]).unwrap();
    connection
        .read(b"?", &mut 0, &mut Head::default())
        .unwrap_err();
    assert_eq!(refuse(&mut connection), format!("{head}too slow"));
    // With an invalid body, the method is known.
    let chunked = "HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut connection = asked(chunked);
    connection
        .read(b"?", &mut 0, &mut Head::default())
        .unwrap_err();
    assert_eq!(refuse(&mut connection), head);
}

#[test]
fn a_response_under_way_is_finished_though_the_body_went_wrong() {
    let mut connection = asked("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut lines = Lines::new(None, false);
    connection
        .respond(200, &mut Vec::new())
        .unwrap()
        .finish(None, &mut lines, 0);
    connection
        .read(b"?", &mut 0, &mut Head::default())
        .unwrap_err();
    assert!(connection.is_responding() && !connection.is_over());
    connection.send(5, true).unwrap();
    assert!(connection.is_over());
}

#[test]
fn another_protocol_gets_what_follows() {
    let mut connection = asked(GET);
    connection.switch_protocol().unwrap();
    assert!(connection.is_over());
    assert_eq!(
        connection.read(b"\x81", &mut 0, &mut Head::default()),
        Ok(Event::Over)
    );
    let mut connection = asked("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    assert_eq!(connection.switch_protocol(), Err(ResponseError::NoRequest));
}

/// A response as hyper's client understands it.
struct Understood {
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// How hyper's client reads `output`, as the response to a request with this method.
fn read_by_hyper(output: &[u8], method: &str) -> Option<Understood> {
    let mut context = Context::from_waker(Waker::noop());
    let mut handshake = pin!(hyper::client::conn::http1::handshake(Memory::answering(
        output
    )));
    let Poll::Ready(Ok((mut sender, connection))) = handshake.as_mut().poll(&mut context) else {
        panic!("no handshake");
    };
    let mut connection = pin!(connection);
    let request = hyper::Request::builder()
        .method(method)
        .uri("/")
        .header("host", "a")
        .body(String::new())
        .unwrap();
    let mut response = pin!(async move {
        let response = sender.send_request(request).await.ok()?;
        let (head, mut body): (_, Incoming) = response.into_parts();
        let mut understood = Understood {
            status: head.status.as_u16(),
            fields: head
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect(),
            body: Vec::new(),
        };
        while let Some(frame) =
            std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            let data = frame.ok()?.into_data().ok()?;
            understood.body.extend_from_slice(&data);
        }
        Some(understood)
    });
    let mut connection_is_over = false;
    for _ in 0..100 {
        if let Poll::Ready(found) = response.as_mut().poll(&mut context) {
            return found;
        }
        if !connection_is_over {
            connection_is_over = connection.as_mut().poll(&mut context).is_ready();
        }
    }
    None
}

fn token() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9!#$%&'*+.^_`|~-]{1,20}".prop_filter("framing has tests of its own", |name| {
        ![
            "content-length",
            "transfer-encoding",
            "connection",
            "trailer",
        ]
        .contains(&name.to_lowercase().as_str())
    })
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(b'\t'), b' '..=0x7E, 0x80..=u8::MAX], 0..60)
        .prop_map(|value| value.trim_ascii().to_vec())
}

proptest! {
    #[test]
    fn what_is_written_is_read_by_others(
        status in 200_u16..600,
        is_head: bool,
        fields in proptest::collection::vec((token(), value()), 0..20),
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..5),
        tells_length: bool,
        version in 0..2,
    ) {
        let method = if is_head { "HEAD" } else { "GET" };
        let mut connection = asked(&format!("{method} / HTTP/1.{version}\r\nHost: a\r\n\r\n"));
        let mut out = Vec::new();
        let mut response = connection.respond(status, &mut out).unwrap();
        for (name, value) in &fields {
            response.field(name.as_bytes(), value).unwrap();
        }
        let has_body = !matches!(status, 204 | 205 | 304);
        let pieces = if has_body { pieces } else { vec![Vec::new()] };
        let body = pieces.concat();
        let complete = tells_length.then_some(body.len() as u64);
        response.finish(complete, &mut Lines::new(Some("ringloop"), true), 0);
        let head_length = out.len();
        for (index, piece) in pieces.iter().enumerate() {
            let framed = connection.send(piece.len(), index + 1 == pieces.len()).unwrap();
            out.extend_from_slice(framed.head());
            out.extend_from_slice(framed.payload(piece));
            out.extend_from_slice(framed.tail());
        }

        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Response::new(&mut headers);
        prop_assert_eq!(parsed.parse(&out), Ok(httparse::Status::Complete(head_length)));
        prop_assert_eq!(parsed.code, Some(status));
        for (header, (name, value)) in parsed.headers.iter().zip(&fields) {
            prop_assert_eq!((header.name, header.value), (name.as_str(), value.as_slice()));
        }
        let has = |name: &str| parsed.headers.iter().any(|header| header.name == name);
        prop_assert_eq!(has("connection"), version == 0);
        if has("transfer-encoding") {
            let mut decoder = ChunkedDecoder::new();
            let (mut at, mut decoded) = (head_length, Vec::new());
            while let Piece::Data(range) = decoder.read(&out, &mut at, &Limits::default()).unwrap() {
                decoded.extend_from_slice(&out[range]);
            }
            prop_assert_eq!(&decoded, &body);
            prop_assert_eq!(at, out.len());
        }

        let theirs = read_by_hyper(&out, method).expect("hyper refuses it");
        prop_assert_eq!(theirs.status, status);
        for (name, value) in &fields {
            prop_assert!(theirs.fields.contains(&(name.to_lowercase(), value.clone())));
        }
        prop_assert_eq!(theirs.body, if is_head { Vec::new() } else { body });
    }
}
