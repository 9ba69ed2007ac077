//! WebSocket: the result must not depend on how the input is cut, must agree with tungstenite, and must survive
//! compression.

use std::io;

use ringloop_http::h1;
use ringloop_http::websocket::{Config, Connection, Deflate, Event, Failure, Handshake, Pool};
use tungstenite::Message;
use tungstenite::protocol::{Role, WebSocket, WebSocketConfig};

use super::pieces;

/// An event that a server receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    Failure(u16),
}

/// The limit for messages in these tests, in bytes.
pub(crate) const MESSAGE_BYTES: usize = 10_000;

pub(crate) fn config(deflate: Option<Deflate>) -> Config {
    let mut config = Config::default();
    config.message_bytes = MESSAGE_BYTES;
    config.deflate = deflate;
    config
}

/// A connection that has negotiated compression.
pub(crate) fn compressing(deflate: Deflate) -> Connection {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
    let mut connection = h1::Connection::new(h1::Limits::default());
    let mut head = h1::Head::default();
    connection.read(request, &mut 0, &mut head).unwrap();
    let config = config(Some(deflate));
    let handshake = Handshake::check(connection.request(), &head, request, &config).unwrap();
    assert!(handshake.is_compressed());
    let mut lines = ringloop_http::Lines::new(None, false);
    handshake
        .accept(&mut connection, None, [], &mut lines, 0, &mut Vec::new())
        .unwrap()
}

/// Returns what `connection` receives when a client sends `pieces`.
pub(crate) fn listen<'a>(
    mut connection: Connection,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<Heard> {
    let mut pool = Pool::default();
    let mut heard = Vec::new();
    for piece in pieces {
        let mut input = piece.to_vec();
        let mut at = 0;
        loop {
            let before = at;
            let event = connection.read(&mut input, &mut at, &mut pool);
            assert!(before <= at && at <= input.len());
            match event {
                Ok(Event::NeedMore) => {
                    assert_eq!(at, input.len());
                    break;
                }
                Ok(Event::Message { is_text, payload }) => {
                    let payload = connection.payload(&payload, &input).to_vec();
                    assert!(payload.len() <= MESSAGE_BYTES);
                    heard.push(match String::from_utf8(payload) {
                        Ok(text) if is_text => Heard::Text(text),
                        Err(_) if is_text => {
                            let failure = connection.invalid_text();
                            check_failed(&mut connection, failure);
                            Heard::Failure(failure.code())
                        }
                        Ok(text) => Heard::Binary(text.into_bytes()),
                        Err(error) => Heard::Binary(error.into_bytes()),
                    });
                }
                Ok(Event::Ping) => {
                    heard.push(Heard::Ping(connection.control().to_vec()));
                    let pong = connection.pong().unwrap();
                    assert_eq!(&pong.as_slice()[2..], connection.control());
                }
                Ok(Event::Pong) => heard.push(Heard::Pong(connection.control().to_vec())),
                Ok(Event::Close(code)) => {
                    heard.push(Heard::Close(code, connection.close_reason().to_owned()));
                    assert!(!connection.is_over());
                    connection.close(code, "").unwrap();
                    assert!(connection.is_over());
                }
                Ok(Event::Over) => break,
                Err(failure) => {
                    heard.push(Heard::Failure(failure.code()));
                    check_failed(&mut connection, failure);
                }
            }
        }
    }
    heard
}

fn check_failed(connection: &mut Connection, failure: Failure) {
    assert_eq!(
        connection.read(&mut [0x81], &mut 0, &mut Pool::default()),
        Ok(Event::Over)
    );
    connection
        .close(Some(failure.code()), failure.reason())
        .unwrap();
    assert!(connection.is_over());
}

/// A socket with fixed input, which discards its output.
struct Socket<'a>(&'a [u8]);

impl io::Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns what tungstenite's server receives, and whether it failed.
fn listen_by_tungstenite(input: &[u8]) -> (Vec<Heard>, bool) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    let mut socket = WebSocket::from_raw_socket(Socket(input), Role::Server, Some(config));
    let mut heard = Vec::new();
    loop {
        heard.push(match socket.read() {
            Ok(Message::Text(text)) => Heard::Text(text.as_str().to_owned()),
            Ok(Message::Binary(bytes)) => Heard::Binary(bytes.to_vec()),
            Ok(Message::Ping(bytes)) => Heard::Ping(bytes.to_vec()),
            Ok(Message::Pong(bytes)) => Heard::Pong(bytes.to_vec()),
            Ok(Message::Close(frame)) => {
                let (code, reason) = frame.map_or((None, String::new()), |frame| {
                    (Some(frame.code.into()), frame.reason.as_str().to_owned())
                });
                heard.push(Heard::Close(code, reason));
                return (heard, false);
            }
            Ok(Message::Frame(_)) => unreachable!("only for writing"),
            Err(
                tungstenite::Error::Protocol(
                    tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
                )
                | tungstenite::Error::ConnectionClosed,
            ) => return (heard, false),
            Err(_) => return (heard, true),
        });
    }
}

/// The target `websocket_frames`. `data` is a seed of eight bytes, and the client's input.
pub(crate) fn frames(data: &[u8]) {
    let Some((seed, input)) = data.split_first_chunk() else {
        return;
    };
    let connection = || Connection::new(config(None), None);
    let whole = listen(connection(), [input]);
    let cut = listen(connection(), pieces(input, u64::from_le_bytes(*seed)));
    assert_eq!(whole, cut);

    let (theirs, they_failed) = listen_by_tungstenite(input);
    let mut ours = whole;
    if !matches!(ours.last(), Some(Heard::Failure(_))) {
        assert_eq!(ours, theirs);
        assert!(!they_failed);
        return;
    }
    ours.pop();
    assert!(theirs.starts_with(&ours), "{ours:?} {theirs:?}");
    // tungstenite continues in two cases: it reports an invalid close code as 1002, and accepts lengths in too many
    // bytes.
    match theirs.get(ours.len()) {
        None | Some(Heard::Close(Some(1002), _)) => {}
        Some(more) => {
            let reason = failure_of(connection(), input).map(Failure::reason);
            assert_eq!(
                reason,
                Some("frame length encoded in too many bytes"),
                "{more:?}"
            );
        }
    }
}

/// The failure of `connection` when a client sends `input`.
fn failure_of(mut connection: Connection, input: &[u8]) -> Option<Failure> {
    let (mut input, mut at) = (input.to_vec(), 0);
    loop {
        match connection.read(&mut input, &mut at, &mut Pool::default()) {
            Ok(Event::NeedMore | Event::Over) => return None,
            Ok(_) => {}
            Err(failure) => return Some(failure),
        }
    }
}

/// The target `websocket_deflate`. `data` is three bytes of settings, a seed of eight bytes, and the client's input.
/// The input is also sent to the client.
pub(crate) fn deflate(data: &[u8]) {
    let Some(([flags, bits, level], rest)) = data.split_first_chunk() else {
        return;
    };
    let Some((seed, input)) = rest.split_first_chunk() else {
        return;
    };
    let seed = u64::from_le_bytes(*seed);
    let mut settings = Deflate::default();
    settings.server_context_takeover = flags & 1 != 0;
    settings.client_context_takeover = flags & 2 != 0;
    settings.server_window_bits = 8 + bits % 8;
    settings.client_window_bits = 8 + bits / 8 % 8;
    settings.level = level % 10;
    settings.threshold_bytes = 0;

    let whole = listen(compressing(settings), [input]);
    let cut = listen(compressing(settings), pieces(input, seed));
    assert_eq!(whole, cut);

    // The server's frames are masked and read back.
    settings.client_window_bits = settings.server_window_bits;
    settings.client_context_takeover = settings.server_context_takeover;
    let mut server = compressing(settings);
    let mut pool = Pool::default();
    let mut sent = Vec::new();
    let mut expected = Vec::new();
    for piece in pieces(input, seed ^ 0x5555) {
        // Twice, so that the context matters.
        for _ in 0..2 {
            expected.push(Heard::Binary(piece.to_vec()));
            let frame = server.message(false, piece, &mut pool).unwrap();
            sent.extend_from_slice(&masked(frame.head(), frame.payload(), seed as u32));
        }
    }
    assert_eq!(listen(compressing(settings), pieces(&sent, seed)), expected);
}

/// A server's frame, masked like a client's.
pub(crate) fn masked(head: &[u8], payload: &[u8], mask: u32) -> Vec<u8> {
    let mask = mask.to_le_bytes();
    let mut frame = head.to_vec();
    frame[1] |= 0x80;
    frame.extend_from_slice(&mask);
    frame.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}
