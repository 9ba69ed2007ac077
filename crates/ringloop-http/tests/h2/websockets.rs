//! WebSockets on streams (RFC 8441).

use ringloop_http::ResponseError;
use ringloop_http::h1::Form;
use ringloop_http::h2::{Config, Event};
use ringloop_http::websocket::{self, AcceptError, Handshake, Refusal};

use crate::support::{GET, PROTOCOL_ERROR, Server, get_but, only_request, reset};
use crate::targets::h2::{END_HEADERS, END_STREAM, HEADERS, block, frame};

const DATA: u8 = 0;
const ASK: &[(&str, &str)] = &[
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/chat?x"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-protocol", "one, two"),
];

fn config() -> Config {
    let mut config = Config::default();
    config.websocket = true;
    config
}

#[test]
fn a_stream_carries_bytes_both_ways_once_it_is_open() {
    let mut server = Server::new(&config());
    // The second one has an equal head.
    for number in [1, 3] {
        let asked = server.give(&frame(HEADERS, END_HEADERS, number, &block(ASK)));
        let (_, request, end) = only_request(asked);
        assert!(request.is_websocket() && !end);
        assert_eq!(
            (request.form(), request.path(), request.query()),
            (Form::Origin, "/chat", "x")
        );
        let fields = request
            .fields()
            .map(|(name, value)| (name.as_bytes(), value));
        let config = websocket::Config::default();
        let handshake = Handshake::check_on_stream(fields, end, &config).unwrap();
        let refused = server.respond(number, 200, &[], None);
        assert_eq!(refused, Err(ResponseError::Status(200)));

        let mut answer = Vec::new();
        let more = [(&b"x-a"[..], &b"1"[..])];
        let accepted = handshake.accept_on_stream(Some(b"two"), more, |name, value| {
            answer.push((name.to_vec(), value.to_vec()));
        });
        assert!(accepted.is_ok());
        let answer: Vec<_> = answer
            .iter()
            .map(|(name, value)| (&name[..], &value[..]))
            .collect();
        let two = (&b"sec-websocket-protocol"[..], &b"two"[..]);
        assert_eq!(answer, [two, more[0]]);
        let invalid = [(&b"a b"[..], &b""[..])];
        let refused = server
            .connection
            .open(number, invalid, &mut server.lines, 0);
        assert_eq!(refused, Err(ResponseError::FieldName));
        server
            .connection
            .open(number, answer, &mut server.lines, 0)
            .unwrap();
        let again = server.connection.open(number, [], &mut server.lines, 0);
        assert_eq!(again, Err(ResponseError::Begun));

        server.send(number, "there", false).unwrap();
        let output: Vec<_> = server
            .output()
            .into_iter()
            .map(|frame| (frame.kind, frame.flags, frame.stream))
            .collect();
        assert_eq!(output, [(HEADERS, END_HEADERS, number), (DATA, 0, number)]);
        let events = server.give(&frame(DATA, 0, number, b"here"));
        assert!(
            matches!(&events[..], [Event::Data { data, end: false, .. }] if data == "here"),
            "{events:?}"
        );
        let events = server.give(&frame(DATA, END_STREAM, number, b""));
        assert!(
            matches!(&events[..], [Event::Data { data, end: true, .. }] if data.is_empty()),
            "{events:?}"
        );
        server.send(number, "", true).unwrap();
        assert_eq!(server.output()[0].flags, END_STREAM);
        assert!(server.connection.is_idle());
    }
}

#[test]
fn handshakes_are_checked_as_on_http_1() {
    let check = |fields: &[(&'static str, &'static str)], end| {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        Handshake::check_on_stream(fields, end, &websocket::Config::default())
    };
    let version = ("sec-websocket-version", "13");
    for (fields, end, expected) in [
        (vec![version], true, Refusal::Request),
        (
            vec![version, ("content-length", "0")],
            false,
            Refusal::Request,
        ),
        (vec![], false, Refusal::Version),
        (vec![version, version], false, Refusal::Version),
        (
            vec![("sec-websocket-version", "8")],
            false,
            Refusal::Version,
        ),
        (
            vec![version, ("sec-websocket-protocol", "a b")],
            false,
            Refusal::Subprotocols,
        ),
        (
            vec![version, ("sec-websocket-extensions", "=")],
            false,
            Refusal::Extensions,
        ),
    ] {
        assert_eq!(check(&fields, end).err(), Some(expected), "{fields:?}");
    }
    // A key says nothing here.
    let deflate = ("sec-websocket-extensions", "permessage-deflate");
    let handshake = check(&[version, ("sec-websocket-key", "x"), deflate], false).unwrap();
    assert!(handshake.is_compressed());
    let mut names = Vec::new();
    let accepted = handshake.accept_on_stream(None, [], |name, _| names.push(name.to_vec()));
    assert!(accepted.is_ok());
    assert_eq!(names, [b"sec-websocket-extensions"]);
    let other = handshake.accept_on_stream(Some(b"a"), [], |_, _| {});
    assert_eq!(other.err(), Some(AcceptError::Subprotocol));
    let reserved = [(&b"content-length"[..], &b"0"[..])];
    let framed = handshake.accept_on_stream(None, reserved, |_, _| {});
    assert_eq!(framed.err(), Some(AcceptError::Field));
}

#[test]
fn other_protocols_are_malformed() {
    for (config, protocol) in [
        (config(), "connect-udp"),
        (config(), "WebSocket"),
        (Config::default(), "websocket"),
    ] {
        let mut server = Server::new(&config);
        let mut fields = ASK.to_vec();
        fields[1].1 = protocol;
        assert!(server.request(1, &fields).is_empty());
        assert_eq!(server.output(), [reset(1, PROTOCOL_ERROR)]);
    }
    let mut server = Server::new(&config());
    let fields = get_but("", None, &[(":protocol", "websocket")]);
    assert!(server.request(1, &fields).is_empty());
    // Other requests can't become one.
    only_request(server.request(3, GET));
    let refused = server.connection.open(3, [], &mut server.lines, 0);
    assert_eq!(refused, Err(ResponseError::Status(200)));
}
