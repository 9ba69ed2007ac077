//! Requests: what is accepted, and what is refused.

use std::sync::Arc;

use ringloop_http::h1::{Fault, Form};
use ringloop_http::h2::{Config, Event};

use crate::support::{
    Client, GET, PROTOCOL_ERROR, Server, fields_of, get_but, goaway, only_request, reset,
};
use crate::targets::h2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, block, frame,
};

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
fn requests_that_are_refused_get_a_response_like_others() {
    let many: Vec<(&str, &str)> = GET
        .iter()
        .copied()
        .chain(std::iter::repeat_n(("x", "y"), 128))
        .collect();
    for (fields, fault, status) in [
        (
            get_but("", None, &[("expect", "tea")]),
            Fault::Expectation,
            417,
        ),
        (many, Fault::TooManyFields, 431),
    ] {
        for flags in [0, END_STREAM] {
            let mut server = Server::new(&Config::default());
            let head = frame(HEADERS, END_HEADERS | flags, 1, &block(&fields));
            let body = frame(DATA, END_STREAM, 1, b"hello");
            let has_body = flags == 0;
            let events = server.give(&[&head[..], if has_body { &body } else { b"" }].concat());
            assert!(
                matches!(&events[..], [Event::Refused { stream: 1, fault: found }] if *found == fault),
                "{events:?}"
            );
            assert_eq!(fault.status(), status);
            server.respond(1, status, &[], Some(2)).unwrap();
            server.send(1, "no", true).unwrap();
            let output = server.output();
            let heads: Vec<_> = output.iter().filter(|it| it.kind == HEADERS).collect();
            assert_eq!(Client::new().status_of(heads[0]), status);
            assert_eq!(heads.len(), 1);
            assert!(server.connection.is_idle());
        }
    }
}

#[test]
fn a_head_that_is_too_large_is_answered_by_the_h2_crate() {
    let long = "x".repeat(70_000);
    let mut large = GET.to_vec();
    large.push(("x", &long));
    let mut server = Server::new(&Config::default());
    let block = block(&large);
    let (first, rest) = block.split_at(16_000);
    let mut input = frame(HEADERS, END_STREAM, 1, first);
    for piece in rest.chunks(16_000) {
        input.extend_from_slice(&frame(CONTINUATION, 0, 1, piece));
    }
    input.extend_from_slice(&frame(CONTINUATION, END_HEADERS, 1, b""));
    assert!(server.give(&input).is_empty());
    // The status is compressed, so a client must read it.
    let output = server.output();
    let head = output.iter().find(|frame| frame.kind == HEADERS).unwrap();
    assert_eq!(Client::new().status_of(head), 431);
}

#[test]
fn equal_heads_are_shared() {
    let mut server = Server::new(&Config::default());
    let heads = [
        GET.to_vec(),
        get_but("", None, &[("x", "1"), ("y", "2")]),
        get_but("", None, &[("y", "2"), ("x", "1")]),
        get_but("", None, &[("x", "1"), ("y", "3")]),
        get_but("", None, &[("x", "1")]),
        get_but("", None, &[("cookie", "a"), ("cookie", "b")]),
        get_but("", None, &[("cookie", "a; b")]),
        get_but(":method", Some("HEAD"), &[]),
        get_but(":scheme", Some("https"), &[]),
        // The letters of a host mean the same, but the application is told what the client has written.
        get_but(":authority", Some("A.example"), &[]),
        get_but(":path", Some("/?"), &[]),
        get_but(":path", Some("/?q"), &[]),
        GET.to_vec(),
    ];
    let mut last = None;
    for (number, fields) in heads.iter().enumerate() {
        let stream = 4 * number as u32 + 1;
        let (_, first, _) = only_request(server.request(stream, fields));
        let (_, second, _) = only_request(server.request(stream + 2, fields));
        assert!(Arc::ptr_eq(&first, &second), "{fields:?}");
        assert!(
            last.is_none_or(|last| !Arc::ptr_eq(&last, &first)),
            "{fields:?}"
        );
        assert_eq!(first.fields().next().unwrap().1, first.host());
        last = Some(first);
    }
    server.connection.forget_head();
    let (_, again, _) = only_request(server.request(1001, GET));
    assert!(!Arc::ptr_eq(&last.unwrap(), &again));
}

#[test]
fn heads_are_not_mistaken_for_ones_that_were_refused() {
    let mut server = Server::new(&Config::default());
    let refused = get_but("", None, &[("content-length", "x")]);
    assert_eq!(server.request(1, GET).len(), 1);
    assert_eq!(server.request(3, &refused).len(), 0);
    assert_eq!(server.request(5, &refused).len(), 0);
    assert_eq!(server.request(7, GET).len(), 1);
}

#[test]
fn a_reset_that_comes_with_its_request_is_heard_with_it() {
    let mut server = Server::new(&Config::default());
    let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(GET));
    let events = server.give(&[request, frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])].concat());
    assert!(
        matches!(
            events.as_slice(),
            [] | [
                Event::Request { stream: 1, .. },
                Event::Reset { stream: 1, code: 8 }
            ]
        ),
        "{events:?}"
    );
    assert!(server.connection.is_idle());
}

#[test]
fn a_reset_that_comes_after_its_request_is_heard() {
    // Before the output was taken, and after that.
    for takes_output in [false, true] {
        let mut server = Server::new(&Config::default());
        only_request(server.request(1, GET));
        if takes_output {
            server.output();
        }
        let events = server.give(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
        assert!(
            matches!(events.as_slice(), [Event::Reset { stream: 1, code: 8 }]),
            "{events:?}"
        );
    }
}
