//! Floods: what costs a server more than its client.

use ringloop_http::h2::{Config, End, Event};

use crate::support::{CANCEL, ENHANCE_YOUR_CALM, GET, Server, get_but, goaway, only_request};
use crate::targets::h2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, block, frame,
};

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
