//! HTTP/2: handwritten frames, and a server that answers all requests.

use bytes::Bytes;
use ringloop_http::Lines;
use ringloop_http::h2::{Config, Connection, Event};

use super::pieces;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Splits `bytes` into frames.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, rest) = rest.split_at(length);
        frames.push(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload: payload.to_vec(),
        });
        bytes = rest;
    }
    assert!(bytes.is_empty(), "half a frame");
    frames
}

/// A header block of uncompressed literals (RFC 7541, section 6.2.2), with one byte for each character.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // The length, as an integer with a prefix of seven bits (RFC 7541, section 5.1).
            let bytes: Vec<u8> = text.chars().map(|character| character as u8).collect();
            let mut rest = bytes.len();
            if rest < 127 {
                block.push(rest as u8);
            } else {
                block.push(127);
                rest -= 127;
                while rest >= 128 {
                    block.push(rest as u8 | 128);
                    rest >>= 7;
                }
                block.push(rest as u8);
            }
            block.extend_from_slice(&bytes);
        }
    }
    block
}

/// The target `h2_feed`. `data` is a seed of eight bytes, and the client's input after its preface.
pub(crate) fn feed(data: &[u8]) {
    let Some((seed, input)) = data.split_first_chunk() else {
        return;
    };
    let seed = u64::from_le_bytes(*seed);
    let mut connection = Connection::new(&Config::default());
    let mut lines = Lines::new(Some("test"), true);
    let mut open = std::collections::BTreeSet::new();
    let mut has_ended = false;
    let mut output = Vec::new();
    let input = [PREFACE, &frame(SETTINGS, 0, 0, b""), input].concat();
    let mut all = pieces(&input, seed);
    all.push(b"");
    for (now_ms, piece) in (0..).zip(all) {
        if piece.is_empty() {
            connection.receive_end();
        }
        connection.receive(piece, now_ms);
        while let Some(event) = connection.next_event(now_ms) {
            assert!(!has_ended, "an event behind the end: {event:?}");
            match event {
                Event::Request {
                    stream,
                    request,
                    end,
                } => {
                    check_request(&request);
                    assert!(open.insert(stream), "a stream twice");
                    // Some responses are long, some come early, and some never come.
                    let length = stream as usize * 1000 % 70_001;
                    let answers = end || stream % 3 == 0;
                    if answers
                        && connection
                            .respond(stream, 200, [], None, &mut lines, 0)
                            .is_ok()
                        && connection
                            .send(stream, Bytes::from(vec![0; length]), true, now_ms)
                            .is_ok()
                        && connection.buffered(stream) == 0
                    {
                        open.remove(&stream);
                    }
                }
                Event::Refused { stream, fault } => {
                    assert!(open.insert(stream), "a stream twice");
                    if stream % 3 == 0 {
                        // The client may have reset it.
                        let _ = connection.respond(stream, fault.status(), [], None, &mut lines, 0);
                        let answered = connection.send(stream, Bytes::new(), true, now_ms);
                        if answered.is_ok() {
                            open.remove(&stream);
                        }
                    }
                }
                Event::Data { stream, data, end } => {
                    assert!(open.contains(&stream));
                    assert!(end || !data.is_empty());
                    connection.release(stream, data.len());
                }
                Event::Trailers { stream, .. } => assert!(open.contains(&stream)),
                Event::Drained { stream } => assert_eq!(connection.buffered(stream), 0),
                Event::Reset { stream, .. } => assert!(open.remove(&stream)),
                Event::End(_) => has_ended = true,
                other => panic!("{other:?}"),
            }
        }
        connection.take_output(&mut output, now_ms);
        assert!(output.len() < 1 << 20);
        output.clear();
        if connection.is_over() {
            break;
        }
    }
    while let Some(event) = connection.next_event(u64::MAX) {
        has_ended |= matches!(event, Event::End(_));
    }
    // The connection must be over after the end of the input.
    assert!(has_ended && connection.is_over() && connection.is_idle());
}

/// Checks what must hold for every request.
fn check_request(request: &ringloop_http::h2::Request) {
    let fields: Vec<_> = request.fields().collect();
    assert_eq!(fields[0], ("host", request.host()));
    assert!(fields.len() <= Config::default().fields);
    for (name, value) in &fields {
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && byte != b':')
        );
        assert!(
            value
                .iter()
                .all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7F))
        );
        assert_eq!(value.trim_ascii(), *value);
    }
    let count = |name: &str| fields.iter().filter(|(found, _)| *found == name).count();
    assert!(count("host") == 1 && count("content-length") <= 1 && count("cookie") <= 1);
    for of_connections in ["connection", "transfer-encoding", "keep-alive", "upgrade"] {
        assert_eq!(count(of_connections), 0);
    }
    let path = request.path();
    match request.method() {
        "CONNECT" => assert_eq!(path, ""),
        "OPTIONS" => assert!(path.starts_with('/') || path == "*"),
        _ => assert!(path.starts_with('/')),
    }
    assert!(
        path.bytes()
            .chain(request.query().bytes())
            .all(|byte| byte.is_ascii_graphic())
    );
}
