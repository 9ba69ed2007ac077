//! WebSocket: handshakes, messages, errors, compression, and closing.

mod targets;

use proptest::prelude::*;
use ringloop_http::h1::{self, Limits};
use ringloop_http::websocket::{
    AcceptError, Config, Connection, Deflate, Event, Handshake, Pool, Refusal, SendError,
};
use ringloop_http::{Lines, ResponseError};
use targets::websocket::{Heard, MESSAGE_BYTES, compressing, config, listen, masked};

const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const VERSION: &str = "Sec-WebSocket-Version: 13\r\n";

/// Checks a request with these fields. Returns the connection, too.
fn shake(fields: &str, config: &Config) -> (h1::Connection, Result<Handshake, Refusal>) {
    let request = format!("GET /chat HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    shake_by(&request, config)
}

fn shake_by(request: &str, config: &Config) -> (h1::Connection, Result<Handshake, Refusal>) {
    let mut connection = h1::Connection::new(Limits::default());
    let mut head = h1::Head::default();
    let mut at = 0;
    connection
        .read(request.as_bytes(), &mut at, &mut head)
        .unwrap();
    let bytes = &request.as_bytes()[..at];
    let handshake = Handshake::check(connection.request(), &head, bytes, config);
    (connection, handshake)
}

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n";

#[test]
fn the_handshake_of_rfc_6455_is_accepted() {
    let fields = format!(
        "{UPGRADE}{KEY}Origin: http://example.com\r\nSec-WebSocket-Protocol: chat, superchat\r\n{VERSION}"
    );
    let (mut connection, handshake) = shake(&fields, &Config::default());
    let handshake = handshake.unwrap();
    let subprotocols: Vec<_> = handshake.subprotocols().collect();
    assert_eq!(subprotocols, [&b"chat"[..], b"superchat"]);
    assert!(!handshake.is_compressed());
    let mut out = b"before".to_vec();
    let mut lines = Lines::new(Some("ringloop"), true);
    let fields = [(&b"X-Id"[..], &b"1"[..])];
    handshake
        .accept(
            &mut connection,
            Some(b"chat"),
            fields,
            &mut lines,
            784_111_777,
            &mut out,
        )
        .unwrap();
    assert_eq!(
        str::from_utf8(&out).unwrap(),
        "beforeHTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nsec-websocket-protocol: chat\r\n\
         X-Id: 1\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nserver: ringloop\r\n\r\n"
    );
    // The connection does not speak HTTP any more.
    assert_eq!(
        connection.read(b"\x81", &mut 0, &mut h1::Head::default()),
        Ok(h1::Event::Over)
    );
}

#[test]
fn requests_for_something_else_are_refused() {
    let all = format!("{UPGRADE}{KEY}{VERSION}");
    for (fields, expected) in [
        (format!("{KEY}{VERSION}"), Refusal::Request),
        (
            format!("Upgrade: h2c\r\nConnection: Upgrade\r\n{KEY}{VERSION}"),
            Refusal::Request,
        ),
        (format!("{all}Content-Length: 5\r\n"), Refusal::Request),
        (
            format!("{all}Transfer-Encoding: chunked\r\n"),
            Refusal::Request,
        ),
        (format!("{UPGRADE}{VERSION}"), Refusal::Key),
        (format!("{all}{KEY}"), Refusal::Key),
        (
            format!("{UPGRADE}{VERSION}Sec-WebSocket-Key:\r\n"),
            Refusal::Key,
        ),
        (
            format!("{UPGRADE}{VERSION}Sec-WebSocket-Key: a\r\n"),
            Refusal::Key,
        ),
        // 15 bytes, 17 bytes, and two that are not base64.
        (
            format!("{UPGRADE}{VERSION}Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1\r\n"),
            Refusal::Key,
        ),
        (
            format!("{UPGRADE}{VERSION}Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Njc=\r\n"),
            Refusal::Key,
        ),
        (
            format!("{UPGRADE}{VERSION}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZ===\r\n"),
            Refusal::Key,
        ),
        (
            format!("{UPGRADE}{VERSION}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25!ZQ==\r\n"),
            Refusal::Key,
        ),
        (format!("{UPGRADE}{KEY}"), Refusal::Version),
        (
            format!("{UPGRADE}{KEY}Sec-WebSocket-Version: 8\r\n"),
            Refusal::Version,
        ),
        (
            format!("{UPGRADE}{KEY}Sec-WebSocket-Version: 13, 8\r\n"),
            Refusal::Version,
        ),
        (
            format!("{UPGRADE}{KEY}Sec-WebSocket-Version: 013\r\n"),
            Refusal::Version,
        ),
        (format!("{all}{VERSION}"), Refusal::Version),
        (
            format!("{UPGRADE}Sec-WebSocket-Version: 76\r\n"),
            Refusal::Version,
        ),
        (
            format!("{all}Sec-WebSocket-Protocol: a b\r\n"),
            Refusal::Subprotocols,
        ),
        (
            format!("{all}Sec-WebSocket-Protocol: a,,b\r\n"),
            Refusal::Subprotocols,
        ),
        (
            format!("{all}Sec-WebSocket-Protocol:\r\n"),
            Refusal::Subprotocols,
        ),
        (
            format!("{all}Sec-WebSocket-Protocol: a/b\r\n"),
            Refusal::Subprotocols,
        ),
        (
            format!("{all}Sec-WebSocket-Extensions:\r\n"),
            Refusal::Extensions,
        ),
        (
            format!("{all}Sec-WebSocket-Extensions: a;\r\n"),
            Refusal::Extensions,
        ),
        (
            format!("{all}Sec-WebSocket-Extensions: a\r\nSec-WebSocket-Extensions: b c\r\n"),
            Refusal::Extensions,
        ),
    ] {
        for config in [config(None), Config::default()] {
            assert_eq!(shake(&fields, &config).1.unwrap_err(), expected, "{fields}");
        }
    }
    for start in ["POST / HTTP/1.1", "HEAD / HTTP/1.1"] {
        let request = format!("{start}\r\nHost: a\r\n{all}\r\n");
        let refusal = shake_by(&request, &Config::default()).1.unwrap_err();
        assert_eq!(refusal, Refusal::Request);
    }
    let request = format!("GET / HTTP/1.0\r\nHost: a\r\n{all}\r\n");
    assert!(shake_by(&request, &Config::default()).1.is_err());
}

#[test]
fn a_refusal_for_the_version_tells_the_right_one() {
    let (mut connection, handshake) = shake(&format!("{UPGRADE}{KEY}"), &Config::default());
    let refusal = handshake.unwrap_err();
    let mut out = Vec::new();
    let mut response = connection.respond(refusal.status(), &mut out).unwrap();
    for (name, value) in refusal.fields() {
        response.field(name, value).unwrap();
    }
    response.finish(Some(0), &mut Lines::new(None, false), 0);
    assert_eq!(
        str::from_utf8(&out).unwrap(),
        "HTTP/1.1 426 Upgrade Required\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-version: 13\r\ncontent-length: 0\r\n\r\n"
    );
    assert_eq!(Refusal::Key.status(), 400);
    assert!(Refusal::Key.fields().is_empty());
}

#[test]
fn keys_with_bits_left_over_are_accepted() {
    let fields = format!("{UPGRADE}{VERSION}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR==\r\n");
    assert!(shake(&fields, &Config::default()).1.is_ok());
}

#[test]
fn compression_is_agreed_on_where_both_want_it() {
    let offer = "Sec-WebSocket-Extensions: x\r\n\
        Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let fields = format!("{UPGRADE}{KEY}{VERSION}{offer}");
    let write = |config: &Config| {
        let (mut connection, handshake) = shake(&fields, config);
        let mut out = Vec::new();
        let mut lines = Lines::new(None, false);
        handshake
            .unwrap()
            .accept(&mut connection, None, [], &mut lines, 0, &mut out)
            .unwrap();
        String::from_utf8(out).unwrap()
    };
    let agreed = "sec-websocket-extensions: permessage-deflate; server_no_context_takeover; \
        client_no_context_takeover; server_max_window_bits=12; client_max_window_bits=12\r\n";
    assert!(write(&Config::default()).contains(agreed));
    assert!(!write(&config(None)).contains("extensions"));
}

#[test]
fn what_the_application_adds_is_checked() {
    let fields = format!("{UPGRADE}{KEY}{VERSION}Sec-WebSocket-Protocol: chat\r\n");
    let (mut connection, handshake) = shake(&fields, &Config::default());
    let handshake = handshake.unwrap();
    let mut lines = Lines::new(Some("ringloop"), true);
    let mut accept = |subprotocol: Option<&str>, name: &str, value: &str| {
        let mut out = Vec::new();
        let result = handshake.accept(
            &mut connection,
            subprotocol.map(str::as_bytes),
            [(name.as_bytes(), value.as_bytes())],
            &mut lines,
            0,
            &mut out,
        );
        assert_eq!(result.is_err(), out.is_empty());
        result.map(drop)
    };
    for unknown in ["superchat", "", "chat, superchat", "Chat"] {
        assert_eq!(
            accept(Some(unknown), "x", "y"),
            Err(AcceptError::Subprotocol)
        );
    }
    for reserved in [
        "Upgrade",
        "connection",
        "content-length",
        "transfer-encoding",
        "sec-websocket-accept",
        "sec-websocket-protocol",
        "sec-websocket-extensions",
    ] {
        assert_eq!(accept(None, reserved, "y"), Err(AcceptError::Field));
    }
    use ResponseError::{FieldName, FieldValue, NoRequest};
    assert_eq!(
        accept(None, "x:", "y"),
        Err(AcceptError::Response(FieldName))
    );
    assert_eq!(
        accept(None, "x", "y\r\nz: a"),
        Err(AcceptError::Response(FieldValue))
    );
    assert_eq!(accept(Some("chat"), "date", "mine"), Ok(()));
    assert_eq!(
        accept(None, "x", "y"),
        Err(AcceptError::Response(NoRequest))
    );
}

/// A client's frame with this first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = vec![first];
    match payload.len() {
        length @ 0..=125 => head.push(length as u8),
        length @ 126..=0xFFFF => {
            head.push(126);
            head.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            head.push(127);
            head.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    masked(&head, payload, 0x1234_5678)
}

/// Returns what a server hears when it receives `frames`, which must not depend on how they are cut.
fn hear(frames: &[Vec<u8>]) -> Vec<Heard> {
    let input = frames.concat();
    let connection = || Connection::new(config(None), None);
    let whole = listen(connection(), [input.as_slice()]);
    for step in [1, 3, 100] {
        assert_eq!(whole, listen(connection(), input.chunks(step)));
    }
    whole
}

fn text(text: &str) -> Heard {
    Heard::Text(text.to_owned())
}

#[test]
fn messages_are_put_together() {
    let long = "x".repeat(MESSAGE_BYTES);
    let heard = hear(&[
        frame(0x81, b"one"),
        frame(0x82, b"\xFF\x00"),
        frame(0x81, b""),
        frame(0x82, b""),
        // Fragments, with control frames between them.
        frame(0x01, b"t"),
        frame(0x89, b"ping"),
        frame(0x00, b"w"),
        frame(0x8A, b""),
        frame(0x00, b""),
        frame(0x80, b"o"),
        // A character that is split.
        frame(0x01, b"\xE2"),
        frame(0x00, b"\x82"),
        frame(0x80, b"\xAC"),
        frame(0x02, b""),
        frame(0x80, b""),
        frame(0x81, long.as_bytes()),
        frame(0x88, b"\x03\xE8bye"),
        // Everything after a close frame is ignored.
        frame(0x81, b"late"),
    ]);
    assert_eq!(
        heard,
        [
            text("one"),
            Heard::Binary(vec![0xFF, 0]),
            text(""),
            Heard::Binary(vec![]),
            Heard::Ping(b"ping".to_vec()),
            Heard::Pong(vec![]),
            text("two"),
            text("€"),
            Heard::Binary(vec![]),
            text(&long),
            Heard::Close(Some(1000), "bye".to_owned()),
        ]
    );
}

#[test]
fn a_broken_protocol_ends_the_connection() {
    let unmasked = vec![0x81, 0];
    let too_long = vec![b'x'; MESSAGE_BYTES + 1];
    let half = vec![b'x'; MESSAGE_BYTES / 2 + 1];
    for (frames, code) in [
        (vec![unmasked], 1002),
        (vec![frame(0xC1, b"")], 1002),
        (vec![frame(0x83, b"")], 1002),
        (vec![frame(0x09, b"")], 1002),
        (vec![frame(0x89, &[0; 126])], 1002),
        (vec![frame(0x80, b"")], 1002),
        (vec![frame(0x00, b"")], 1002),
        (vec![frame(0x01, b"a"), frame(0x81, b"b")], 1002),
        (vec![frame(0x02, b"a"), frame(0x02, b"b")], 1002),
        (vec![frame(0x81, b"\xFF")], 1007),
        (vec![frame(0x81, b"\xE2\x82")], 1007),
        (vec![frame(0x01, b"\xE2"), frame(0x80, b"a")], 1007),
        (vec![frame(0x01, b"\xE2"), frame(0x80, b"")], 1007),
        (
            vec![
                frame(0x01, b"\xE2"),
                frame(0x89, b"\x82\xAC"),
                frame(0x00, b"\x82"),
                frame(0x80, b"\x82\xAC"),
            ],
            1007,
        ),
        (vec![frame(0x81, b"\xED\xA0\x80")], 1007),
        (vec![frame(0x82, &too_long)], 1009),
        (vec![frame(0x02, &half), frame(0x80, &half)], 1009),
        (vec![frame(0x88, b"\x03")], 1002),
        (vec![frame(0x88, b"\x03\xE8\xFF")], 1007),
    ] {
        assert_eq!(
            hear(&frames).last(),
            Some(&Heard::Failure(code)),
            "{frames:x?}"
        );
    }
}

#[test]
fn errors_are_told_before_the_frame_is_there() {
    let fails = |input: &[u8]| {
        let heard = listen(Connection::new(config(None), None), [input]);
        matches!(heard.as_slice(), [Heard::Failure(_)])
    };
    // A length beyond the limit, and invalid UTF-8.
    assert!(fails(
        b"\x82\xFF\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00"
    ));
    assert!(fails(b"\x81\xFE\x10\x00\x00\x00\x00\x00\xFF"));
    assert!(!fails(b"\x81\xFE\x10\x00\x00\x00\x00\x00\xE2"));
}

#[test]
fn closing_codes_are_those_of_the_registry() {
    let valid = |code: u16| matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    for code in 0..=u16::MAX {
        let mut connection = Connection::new(Config::default(), None);
        let mut input = frame(0x88, &code.to_be_bytes());
        let event = connection.read(&mut input, &mut 0, &mut Pool::default());
        assert_eq!(event.is_ok(), valid(code), "{code}");
        assert_eq!(connection.close_reason(), "");
        let sent = Connection::new(Config::default(), None).close(Some(code), "");
        assert_eq!(sent.is_ok(), valid(code), "{code}");
    }
    assert_eq!(
        hear(&[frame(0x88, b"")]),
        [Heard::Close(None, String::new())]
    );
}

#[test]
fn both_halves_of_the_closing_handshake_end_it() {
    let mut pool = Pool::default();
    // The client closes first.
    let mut connection = Connection::new(Config::default(), None);
    let mut input = frame(0x88, b"\x03\xE8bye");
    let event = connection.read(&mut input, &mut 0, &mut pool);
    assert_eq!(event, Ok(Event::Close(Some(1000))));
    assert_eq!(connection.close_reason(), "bye");
    assert!(!connection.is_over() && !connection.is_closing());
    assert_eq!(
        connection.close(Some(1000), "").unwrap().as_slice(),
        b"\x88\x02\x03\xE8"
    );
    assert!(connection.is_over());

    // The server closes first. What the client has sent before is still received.
    let mut connection = Connection::new(Config::default(), None);
    let close = connection.close(Some(1012), "restart").unwrap();
    assert_eq!(close.as_slice(), b"\x88\x09\x03\xF4restart");
    assert!(connection.is_closing() && !connection.is_over());
    let mut input = frame(0x81, b"late");
    let event = connection.read(&mut input, &mut 0, &mut pool);
    assert!(matches!(event, Ok(Event::Message { .. })));
    assert_eq!(
        connection.message(true, b"a", &mut pool).map(drop),
        Err(SendError::Closing)
    );
    assert_eq!(connection.ping(b"").map(drop), Err(SendError::Closing));
    assert_eq!(connection.pong().map(drop), Err(SendError::Closing));
    assert_eq!(
        connection.close(None, "").map(drop),
        Err(SendError::Closing)
    );
    let mut input = frame(0x88, b"");
    let event = connection.read(&mut input, &mut 0, &mut pool);
    assert_eq!(event, Ok(Event::Close(None)));
    assert!(connection.is_over());
}

#[test]
fn control_frames_are_short() {
    let mut connection = Connection::new(Config::default(), None);
    assert_eq!(
        connection.ping(&[0; 126]).map(drop),
        Err(SendError::TooLong)
    );
    assert_eq!(
        connection.ping(&[7; 125]).unwrap().as_slice()[..2],
        [0x89, 125]
    );
    assert_eq!(
        connection.close(Some(1000), &"x".repeat(124)).map(drop),
        Err(SendError::TooLong)
    );
    assert_eq!(
        connection.close(None, "why").map(drop),
        Err(SendError::Code(1005))
    );
    assert_eq!(
        connection.close(Some(1006), "").map(drop),
        Err(SendError::Code(1006))
    );
    // None of these was a close frame.
    let frame = connection.close(Some(1000), &"x".repeat(123)).unwrap();
    assert_eq!(frame.as_slice().len(), 127);
}

#[test]
fn messages_are_compressed_from_the_threshold_on() {
    let mut pool = Pool::default();
    let mut deflate = Deflate::default();
    deflate.threshold_bytes = 10;
    let mut connection = compressing(deflate);
    let short = connection.message(true, &[b'a'; 9], &mut pool).unwrap();
    assert_eq!(
        (short.head(), short.payload()),
        (&b"\x81\x09"[..], &[b'a'; 9][..])
    );
    let long = connection.message(true, &[b'a'; 10], &mut pool).unwrap();
    assert_eq!(long.head(), [0xC1, long.payload().len() as u8]);
    assert_ne!(long.payload(), [b'a'; 10]);
    let empty = connection.message(false, b"", &mut pool).unwrap();
    assert_eq!(
        (empty.head(), empty.payload()),
        (&b"\x82\x00"[..], &b""[..])
    );
}

#[test]
fn compressed_messages_come_in_fragments_too() {
    let mut deflate = Deflate::default();
    deflate.client_context_takeover = true;
    // RFC 7692, section 7.2.3.
    let input = [
        frame(0x41, b"\xF2\x48\xCD"),
        frame(0x89, b"ping"),
        frame(0x80, b"\xC9\xC9\x07\x00"),
        frame(0xC1, b"\xF2\x00\x11\x00\x00"),
        frame(0x81, b"plain"),
        frame(0xC2, b"\x00"),
    ]
    .concat();
    for step in [1, 2, 1000] {
        let heard = listen(compressing(deflate), input.chunks(step));
        let expected = [
            Heard::Ping(b"ping".to_vec()),
            text("Hello"),
            text("Hello"),
            text("plain"),
            Heard::Binary(vec![]),
        ];
        assert_eq!(heard, expected);
    }
    // RSV1 on a continuation.
    let input = [
        frame(0x41, b"\xF2\x48\xCD"),
        frame(0xC0, b"\xC9\xC9\x07\x00"),
    ]
    .concat();
    let heard = listen(compressing(deflate), [input.as_slice()]);
    assert_eq!(heard, [Heard::Failure(1002)]);
    // A character that is cut by frames, and a wrong one. The data is in blocks without compression.
    let euro = [
        frame(0x41, b"\x00\x02\x00\xFD\xFF\xE2\x82"),
        frame(0x80, b"\x00\x01\x00\xFE\xFF\xAC\x00"),
    ];
    let heard = listen(compressing(deflate), [euro.concat().as_slice()]);
    assert_eq!(heard, [text("€")]);
    let wrong = frame(0x00, b"\x00\x01\x00\xFE\xFF\x41\x00");
    let input = [euro[0].as_slice(), &wrong].concat();
    let heard = listen(compressing(deflate), [input.as_slice()]);
    assert_eq!(heard, [Heard::Failure(1007)]);
    // Invalid UTF-8, and invalid data.
    for payload in [&b"\x00\x01\x00\xFE\xFF\xFF\x00"[..], b"\xFF\xFF"] {
        let heard = listen(compressing(deflate), [frame(0xC1, payload).as_slice()]);
        assert_eq!(heard, [Heard::Failure(1007)]);
    }
    // No data.
    let heard = listen(compressing(deflate), [frame(0xC1, b"").as_slice()]);
    assert_eq!(heard, [text("")]);
}

#[test]
fn a_bomb_is_not_unpacked() {
    let mut bomb_maker = compressing({
        let mut deflate = Deflate::default();
        deflate.level = 9;
        deflate
    });
    let mut pool = Pool::default();
    let zeros = vec![0; 100 * MESSAGE_BYTES];
    let bomb = bomb_maker.message(false, &zeros, &mut pool).unwrap();
    let input = masked(bomb.head(), bomb.payload(), 7);
    // It is refused before most of it has arrived.
    let heard = listen(
        compressing(Deflate::default()),
        [&input[..input.len() / 10]],
    );
    assert_eq!(heard, [Heard::Failure(1009)]);
}

proptest! {
    #[test]
    fn what_one_side_sends_the_other_hears(
        messages in proptest::collection::vec((any::<bool>(), "\\PC{0,300}"), 1..10),
        flags: u8,
        bits in 8..16_u8,
        level in 0..11_u8,
        seed: u64,
    ) {
        let mut deflate = Deflate::default();
        deflate.server_context_takeover = flags & 1 != 0;
        deflate.client_context_takeover = flags & 1 != 0;
        deflate.server_window_bits = bits;
        deflate.client_window_bits = bits;
        deflate.level = level;
        deflate.threshold_bytes = 20;
        let mut server = compressing(deflate);
        let mut pool = Pool::default();
        let mut sent = Vec::new();
        let mut expected = Vec::new();
        for (is_text, content) in &messages {
            let frame = server.message(*is_text, content.as_bytes(), &mut pool).unwrap();
            sent.extend_from_slice(&masked(frame.head(), frame.payload(), seed as u32));
            expected.push(if *is_text { text(content) } else { Heard::Binary(content.clone().into_bytes()) });
        }
        prop_assert_eq!(listen(compressing(deflate), targets::pieces(&sent, seed)), expected);
    }

    #[test]
    fn tungstenite_hears_the_same(
        frames in proptest::collection::vec(
            (prop_oneof![Just(0x81_u8), Just(0x82), Just(0x01), Just(0x00), Just(0x80), Just(0x89), Just(0x8A), Just(0x88), any::<u8>()],
             prop_oneof!["\\PC{0,40}".prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..200)]),
            0..8),
        seed: u64,
    ) {
        let mut data = seed.to_le_bytes().to_vec();
        for (first, payload) in frames {
            data.extend_from_slice(&frame(first, &payload));
        }
        targets::websocket::frames(&data);
    }
}
