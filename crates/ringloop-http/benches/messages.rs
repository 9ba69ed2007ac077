//! The cost of messages, in nanoseconds of CPU time per operation. The rounds interleave the operations.
//!
//! `cargo bench -p ringloop-http --bench messages` runs it in full. With `--quick`, or under `cargo test`, it runs once
//! and small. With the name of an operation and a number, it runs only that operation this number of times, for
//! callgrind.

use std::hint::black_box;

use bytes::Bytes;
use ringloop_http::h1::{ChunkedDecoder, Connection, Event, Head, Limits, Piece};
use ringloop_http::{Lines, h2, websocket};

const SMALL: &[u8] = b"GET /hello?name=world HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: wrk/4.1.0\r\nAccept: */*\r\n\r\n";

fn twenty_fields() -> Vec<u8> {
    let mut head =
        b"GET /articles/2026/11/22?page=2&sort=newest HTTP/1.1\r\nHost: www.example.org\r\n"
            .to_vec();
    for (name, value) in [
        ("Connection", "keep-alive"),
        (
            "sec-ch-ua",
            "\"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\"",
        ),
        ("sec-ch-ua-mobile", "?0"),
        ("sec-ch-ua-platform", "\"Linux\""),
        ("Upgrade-Insecure-Requests", "1"),
        (
            "User-Agent",
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
        ),
        (
            "Accept",
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
        ),
        ("Sec-Fetch-Site", "same-origin"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-User", "?1"),
        ("Sec-Fetch-Dest", "document"),
        ("Referer", "https://www.example.org/articles"),
        ("Accept-Encoding", "gzip, deflate, br, zstd"),
        ("Accept-Language", "en-GB,en;q=0.9,de;q=0.8"),
        (
            "Cookie",
            "session=0123456789abcdef0123456789abcdef; theme=dark; consent=1",
        ),
        ("If-None-Match", "\"5f3a-61e0c3a2\""),
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Forwarded-Proto", "https"),
        ("X-Application-Tenant", "blue"),
    ] {
        head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// An operation and its name. The argument is how often to do it.
type Operation = (&'static str, Box<dyn FnMut(usize)>);

/// Requests on one connection, each answered with a minimal response.
fn requests(bytes: Vec<u8>, remembered: bool) -> impl FnMut(usize) {
    let mut limits = Limits::default();
    if !remembered {
        limits.remembered_bytes = 0;
    }
    let mut connection = Connection::new(limits);
    let mut head = Head::default();
    let mut lines = Lines::new(None, false);
    let mut out = Vec::new();
    move |times| {
        for _ in 0..times {
            let event = connection.read(black_box(&bytes), &mut 0, &mut head);
            assert!(matches!(event, Ok(Event::Request { .. })));
            black_box(head.fields());
            out.clear();
            connection
                .respond(204, &mut out)
                .unwrap()
                .finish(None, &mut lines, 0);
            connection.send(0, true).unwrap();
        }
    }
}

/// Requests and responses of a "hello world" server.
fn hello() -> impl FnMut(usize) {
    let mut connection = Connection::new(Limits::default());
    let mut head = Head::default();
    let mut lines = Lines::new(Some("ringloop"), true);
    let mut out = Vec::new();
    move |times| {
        for _ in 0..times {
            let event = connection.read(black_box(SMALL), &mut 0, &mut head);
            assert!(matches!(event, Ok(Event::Request { .. })));
            out.clear();
            let mut response = connection.respond(200, &mut out).unwrap();
            response
                .field(b"content-type", b"text/plain; charset=utf-8")
                .unwrap();
            response.field(b"content-length", b"13").unwrap();
            response.finish(None, &mut lines, 1_700_000_000);
            black_box(connection.send(13, true).unwrap());
            black_box(&out);
        }
    }
}

/// Minimal requests, each answered with a response of `count` fields.
fn responses(count: usize) -> impl FnMut(usize) {
    let fields = [
        (&b"content-type"[..], &b"text/html; charset=utf-8"[..]),
        (b"content-length", b"5120"),
        (b"cache-control", b"private, max-age=0, must-revalidate"),
        (b"etag", b"\"5f3a-61e0c3a2\""),
        (
            b"set-cookie",
            b"session=0123456789abcdef; Path=/; HttpOnly; SameSite=Lax",
        ),
        (b"x-request-id", b"0f8fad5b-d9cb-469f-a165-70867728950e"),
        (b"vary", b"accept-encoding"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
        (b"x-tenant-of-application", b"blue"),
    ];
    let mut connection = Connection::new(Limits::default());
    let mut head = Head::default();
    let mut lines = Lines::new(Some("ringloop"), true);
    let mut out = Vec::new();
    move |times| {
        for _ in 0..times {
            // The head is always the same, so it is only compared.
            let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
            connection.read(request, &mut 0, &mut head).unwrap();
            out.clear();
            let mut response = connection.respond(200, &mut out).unwrap();
            for &(name, value) in fields.iter().cycle().take(count) {
                if name != b"content-length" {
                    response.field(black_box(name), black_box(value)).unwrap();
                }
            }
            response.finish(Some(5120), &mut lines, 1_700_000_000);
            black_box(connection.send(5120, true).unwrap());
            black_box(&out);
        }
    }
}

/// Chunks of `size` bytes.
fn chunks(size: usize) -> impl FnMut(usize) {
    const COUNT: usize = 32;
    let chunk = [
        format!("{size:x}\r\n").into_bytes(),
        vec![b'x'; size],
        b"\r\n".to_vec(),
    ]
    .concat();
    let body = [chunk.repeat(COUNT), b"0\r\n\r\n".to_vec()].concat();
    let limits = Limits::default();
    move |times| {
        for _ in 0..times.div_ceil(COUNT) {
            let mut decoder = ChunkedDecoder::new();
            let mut at = 0;
            loop {
                match decoder.read(black_box(&body), &mut at, &limits).unwrap() {
                    Piece::Data(range) => assert_eq!(black_box(range).len(), size),
                    Piece::NeedMore => unreachable!(),
                    Piece::End => break,
                }
            }
        }
    }
}

/// A connection with a client that offers compression.
fn websocket(deflate: Option<websocket::Deflate>) -> websocket::Connection {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
    let mut connection = Connection::new(Limits::default());
    let mut head = Head::default();
    connection.read(request, &mut 0, &mut head).unwrap();
    let mut config = websocket::Config::default();
    config.deflate = deflate;
    let facts = connection.request();
    let handshake = websocket::Handshake::check(facts, &head, request, &config).unwrap();
    let mut lines = Lines::new(None, false);
    handshake
        .accept(&mut connection, None, [], &mut lines, 0, &mut Vec::new())
        .unwrap()
}

/// A client's frame.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x34, 0x56, 0x78];
    let mut frame = vec![first, 0x80 | 0x7E];
    frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    frame.extend_from_slice(&mask);
    let bytes = payload.iter().zip(mask.iter().cycle());
    frame.extend(bytes.map(|(byte, mask)| byte ^ mask));
    frame
}

/// 1 KB of JSON.
fn text() -> Vec<u8> {
    (0_u32..)
        .flat_map(|number| {
            format!("{{\"id\":{},\"name\":\"item {number}\"}},", number * 7919).into_bytes()
        })
        .take(1024)
        .collect()
}

/// Messages of 1 KB that are received and sent back.
fn echo(is_text: bool, deflate: Option<websocket::Deflate>) -> impl FnMut(usize) {
    let mut connection = websocket(deflate);
    let mut pool = websocket::Pool::default();
    let message = text();
    let frame = {
        let own = connection.message(is_text, &message, &mut pool).unwrap();
        masked(own.head()[0], own.payload())
    };
    let mut input = frame.clone();
    // The application's copy.
    let mut received = Vec::new();
    move |times| {
        for _ in 0..times {
            // The frame is unmasked in place, so it must be copied each time, as the kernel does.
            input.copy_from_slice(&frame);
            let event = connection.read(black_box(&mut input), &mut 0, &mut pool);
            let Ok(websocket::Event::Message { payload, .. }) = event else {
                panic!();
            };
            received.clear();
            received.extend_from_slice(connection.payload(&payload, &input));
            assert_eq!(received.len(), message.len());
            black_box(connection.message(is_text, &received, &mut pool).unwrap());
        }
    }
}

/// Requests and responses of a "hello world" server on HTTP/2.
fn h2_hello() -> impl FnMut(usize) {
    let mut config = h2::Config::default();
    config.requests = u64::MAX;
    let mut connection = h2::Connection::new(&config);
    connection.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", 0);
    // A WINDOW_UPDATE that is enough for all responses.
    connection.receive(b"\0\0\x04\x08\0\0\0\0\0\x7F\xFF\0\0", 0);
    let mut lines = Lines::new(Some("ringloop"), true);
    let mut out = Vec::new();
    let mut number = 1_u32;
    // Two indexed fields, a path, and an authority.
    let block = b"\x82\x86\x04\x06/hello\x01\x0E127.0.0.1:8000";
    move |times| {
        for _ in 0..times {
            let mut frame = [0; 9 + 26];
            frame[2..5].copy_from_slice(&[block.len() as u8, 1, 5]);
            frame[5..9].copy_from_slice(&number.to_be_bytes());
            frame[9..].copy_from_slice(block);
            number += 2;
            connection.receive(black_box(&frame), 0);
            while let Some(event) = connection.next_event(0) {
                let h2::Event::Request {
                    stream, request, ..
                } = event
                else {
                    continue;
                };
                black_box(request.fields().count());
                let fields = [(&b"content-type"[..], &b"text/plain; charset=utf-8"[..])];
                connection
                    .respond(stream, 200, fields, Some(13), &mut lines, 1_700_000_000)
                    .unwrap();
                let body = Bytes::from_static(b"Hello, world!");
                connection.send(stream, body, true, 0).unwrap();
            }
            out.clear();
            connection.take_output(&mut out, 0);
            assert!(!black_box(&out).is_empty());
        }
    }
}

fn operations() -> Vec<Operation> {
    vec![
        (
            "h1 request, 3 fields",
            Box::new(requests(SMALL.to_vec(), false)),
        ),
        (
            "h1 request, 20 fields",
            Box::new(requests(twenty_fields(), false)),
        ),
        (
            "h1 request, 3 fields, as the one before",
            Box::new(requests(SMALL.to_vec(), true)),
        ),
        ("h1 response head, 2 fields", Box::new(responses(2))),
        ("h1 response head, 20 fields", Box::new(responses(20))),
        ("h1 hello world, request and response", Box::new(hello())),
        ("h1 chunk of 16 bytes", Box::new(chunks(16))),
        ("h1 chunk of 4 KB", Box::new(chunks(4096))),
        (
            "websocket echo of 1 KB, binary",
            Box::new(echo(false, None)),
        ),
        ("websocket echo of 1 KB, text", Box::new(echo(true, None))),
        (
            "websocket echo of 1 KB, deflate",
            Box::new(echo(true, Some(websocket::Deflate::default()))),
        ),
        ("h2 hello world, request and response", Box::new(h2_hello())),
    ]
}

/// The CPU time of this thread, which depends less on other work on the machine than wall-clock time does.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec to `time`, which outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let mut operations = operations();
    if let [name, times] = arguments.as_slice() {
        let (_, operation) = operations
            .iter_mut()
            .find(|(candidate, _)| candidate == name)
            .expect("no operation of that name");
        operation(times.parse().expect("a number of times"));
        return;
    }
    let full = std::env::args().any(|argument| argument == "--bench")
        && !arguments.iter().any(|argument| argument == "--quick");
    let (rounds, times) = if full { (21, 50_000) } else { (1, 64) };
    let mut costs = vec![Vec::new(); operations.len()];
    for _ in 0..rounds {
        for ((_, operation), costs) in operations.iter_mut().zip(&mut costs) {
            let start_ns = cpu_ns();
            operation(times);
            costs.push((cpu_ns() - start_ns) as f64 / times as f64);
        }
    }
    println!(
        "{:<44}{:>10}{:>10}",
        "ns of CPU time per operation", "median", "least"
    );
    for ((name, _), mut costs) in operations.iter().zip(costs) {
        costs.sort_by(f64::total_cmp);
        println!(
            "{name:<44}{:>10.1}{:>10.1}",
            costs[costs.len() / 2],
            costs[0]
        );
    }
}
