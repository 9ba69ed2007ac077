//! Responses: their heads, their lengths, and errors of the application.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use ringloop_http::h2::{Config, Connection};
use ringloop_http::{Lines, ResponseError};

use crate::support::{
    Answer, Client, GET, INTERNAL_ERROR, Server, get_but, hear, only_request, reset,
};
use crate::targets::h2::{DATA, END_HEADERS, END_STREAM, HEADERS};

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
fn trailers_follow_a_body_of_length_0() {
    for complete in [None, Some(0)] {
        let mut server = Connection::new(&Config::default());
        let mut client = Client::new();
        let (response, _sending) = client.ask("GET", true);
        let (stream, ..) = only_request(client.exchange(&mut server));
        let mut head = server.begin(stream, 200).unwrap();
        if complete.is_none() {
            head.field(b"content-length", b"0").unwrap();
        }
        head.park();
        let mut lines = Lines::new(None, false);
        server
            .send_head(stream, complete, true, &mut lines, 0)
            .unwrap();
        server.send(stream, Bytes::new(), false, 0).unwrap();
        let trailers = [(&b"x-sum"[..], &b"1"[..])];
        server.send_trailers(stream, trailers, 0).unwrap();
        assert!(server.is_idle());
        client.exchange(&mut server);
        let found = hear(response);
        assert_eq!(found.fields["content-length"], "0");
        let expected = BTreeMap::from([("x-sum".to_owned(), "1".to_owned())]);
        assert_eq!(
            (found.trailers, found.complete),
            (Some(expected), true),
            "{complete:?}"
        );
    }
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
    ] {
        assert_eq!(answer("GET", status, fields, None, pieces), Err(expected));
    }
}

#[test]
fn a_body_is_dropped_where_the_status_has_none() {
    let length = [("content-length", "5")].as_slice();
    for (status, fields, complete, announced) in [
        (204, &[][..], None, None),
        (204, length, Some(5), None),
        (304, &[], None, None),
        (304, length, Some(5), Some("5")),
        (205, &[], None, Some("0")),
        (205, length, Some(5), Some("0")),
    ] {
        let found = answer("GET", status, fields, complete, &["", "hello", "!"]).unwrap();
        let given = found.fields.get("content-length").map(String::as_str);
        assert_eq!((found.status, given), (status, announced));
        assert!(found.body.is_empty() && found.complete, "{found:?}");
        for (method, is_forbidden) in [("GET", true), ("HEAD", false)] {
            let mut server = Server::new(&Config::default());
            only_request(server.request(1, &get_but(":method", Some(method), &[])));
            server.respond(1, status, fields, complete).unwrap();
            assert_eq!(server.connection.forbids_body(1), is_forbidden);
            assert_eq!(server.connection.announced(1), Some(0));
            server.send(1, "hello", false).unwrap();
            let trailers = [(&b"x-sum"[..], &b"1"[..])];
            server.connection.send_trailers(1, trailers, 0).unwrap();
            let kinds: Vec<_> = server
                .output()
                .iter()
                .map(|it| (it.kind, it.flags))
                .collect();
            assert_eq!(kinds, [(HEADERS, END_HEADERS | END_STREAM)]);
            assert!(server.connection.is_idle());
        }
    }
    let mut server = Server::new(&Config::default());
    only_request(server.request(1, GET));
    server.respond(1, 200, &[], Some(0)).unwrap();
    assert!(!server.connection.forbids_body(1));
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
