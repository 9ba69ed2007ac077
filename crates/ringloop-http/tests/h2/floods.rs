//! Floods: what costs a server more than its client.

use std::collections::VecDeque;

use bytes::Bytes;
use ringloop_http::h2::{Config, End, Event};

use crate::support::{CANCEL, ENHANCE_YOUR_CALM, GET, Server, get_but, goaway, only_request};
use crate::targets::h2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, block, frame,
};

/// When a client that gives room for each DATA frame by itself does so.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// As soon as the frames have come, or one by one when the server can send no more.
    AtOnce,
    WhenFull,
    /// The same, and the server sends between the frame for the stream and that for the connection, or the other way
    /// round.
    StreamFirst,
    ConnectionFirst,
}

/// Sends these pieces on each of the streams to a client that gives room for each DATA frame, for its stream and for the
/// connection, while no time passes. Returns the number of DATA frames and of bytes that the server has sent.
fn download(server: &mut Server, streams: &[u32], pieces: &[Bytes], room: Room) -> (u64, u64) {
    for &stream in streams {
        only_request(server.request(stream, GET));
        server.respond(stream, 200, &[], None).unwrap();
    }
    let mut left: Vec<_> = streams.iter().map(|&stream| (stream, 0)).collect();
    // Data that was received and not acknowledged yet: streams and lengths.
    let mut received: VecDeque<(u32, u32)> = VecDeque::new();
    let (mut count, mut sent) = (0, 0);
    let mut out = Vec::new();
    loop {
        for (stream, next) in &mut left {
            while *next < pieces.len() && server.connection.buffered(*stream) == 0 {
                let piece = pieces[*next].clone();
                *next += 1;
                let last = *next == pieces.len();
                server.connection.send(*stream, piece, last, 0).unwrap();
            }
        }
        out.clear();
        server.connection.take_output(&mut out, 0);
        sent += out.len() as u64;
        let mut rest = &out[..];
        let mut was_sent = false;
        while let Some((head, behind)) = rest.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            assert_ne!(head[3], GOAWAY, "after {count} frames: {room:?}");
            if head[3] == DATA && length > 0 {
                was_sent = true;
                count += 1;
                received.push_back((stream, length));
            }
            rest = &behind[length as usize..];
        }
        if was_sent && !matches!(room, Room::AtOnce) {
            continue;
        }
        let number = match room {
            Room::AtOnce => received.len(),
            _ => received.len().min(1),
        };
        if number == 0 {
            assert!(left.iter().all(|(_, next)| *next == pieces.len()));
            return (count, sent);
        }
        let given: Vec<_> = received.drain(..number).collect();
        for (stream, length) in given {
            let update = |stream| frame(WINDOW_UPDATE, 0, stream, &length.to_be_bytes());
            let (first, second) = match room {
                Room::ConnectionFirst => (0, stream),
                _ => (stream, 0),
            };
            server.give(&update(first));
            if matches!(room, Room::StreamFirst | Room::ConnectionFirst) {
                let now = server.output();
                count += now.len() as u64;
                for frame in now {
                    assert_eq!(frame.kind, DATA, "{room:?}");
                    sent += 9 + frame.payload.len() as u64;
                    received.push_back((frame.stream, frame.payload.len() as u32));
                }
            }
            server.give(&update(second));
        }
    }
}

/// A server that allows for little besides what follows from what it has sent.
fn strict() -> Server {
    let mut config = Config::default();
    config.window_updates = 100;
    config.window_updates_per_s = 0;
    Server::new(&config)
}

#[test]
fn a_client_may_give_room_for_each_frame_by_itself() {
    let piece = |length| Bytes::from(vec![b'x'; length]);
    // Small pieces, for more than two windows: the window is no multiple of their length, so that it cuts them into ever
    // smaller frames.
    let small = |length| vec![piece(length); 150_000 / length];
    // Small pieces, and then a large one, which the client's frames cut as small.
    let mixed = [vec![piece(100); 656], vec![piece(100_000)]].concat();
    for room in [
        Room::AtOnce,
        Room::WhenFull,
        Room::StreamFirst,
        Room::ConnectionFirst,
    ] {
        for pieces in [small(22), small(100), small(1000), mixed.clone()] {
            let (count, _) = download(&mut strict(), &[1], &pieces, room);
            assert!(count >= pieces.len() as u64);
        }
        download(&mut strict(), &[1, 3, 5], &small(100), room);
    }
}

#[test]
fn a_client_may_give_room_for_each_frame_of_a_gigabyte() {
    // A multiple of the window, so that this doesn't cut it into small frames, which take too long.
    let pieces = vec![Bytes::from(vec![b'x'; 16 * 65_535]); 1025];
    let (count, sent) = download(&mut strict(), &[1], &pieces, Room::WhenFull);
    assert!(count >= 1 << 16 && sent > 1 << 30);
}

#[test]
fn a_client_may_give_room_for_each_part_of_a_frame_that_it_has_read() {
    let mut server = strict();
    only_request(server.request(1, GET));
    server.respond(1, 200, &[], None).unwrap();
    let piece = Bytes::from(vec![b'x'; 60_000]);
    for _ in 0..20 {
        server.connection.send(1, piece.clone(), false, 0).unwrap();
        let sent: usize = server.output().iter().map(|it| it.payload.len()).sum();
        // The smallest segments that TCP has to send: RFC 9293, section 3.7.1.
        for part in (0..sent).step_by(536) {
            let length = (sent - part).min(536) as u32;
            for stream in [1, 0] {
                let events = server.give(&frame(WINDOW_UPDATE, 0, stream, &length.to_be_bytes()));
                assert!(events.is_empty(), "{events:?}");
            }
        }
    }
    assert_eq!(server.connection.buffered(1), 0);
}

#[test]
fn a_client_that_gives_more_room_than_it_was_sent_data_is_a_flood() {
    for room in [Room::AtOnce, Room::WhenFull] {
        let mut server = strict();
        let pieces = vec![Bytes::from(vec![b'x'; 100]); 1500];
        let (count, sent) = download(&mut server, &[1], &pieces, room);
        // It has given room for each frame already. What was sent, and the burst, allow for some more.
        let more = sent / 256 + 100;
        let update = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
        let ends = (0..=more).any(|_| !server.give(&update).is_empty());
        assert!(ends, "after {count} frames");
        assert_eq!(goaway(&server.output()), Some(ENHANCE_YOUR_CALM));
    }
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
    // A program that writes little by little makes such frames.
    assert!(!is_flooded(1000, true, |_| frame(DATA, 0, 1, b"x").repeat(100)));
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
