//! Servers of other protocols than plain GET requests, right and lying, and what the generator says of them.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs, process, thread};

use crate::common::{
    Answer, RIGHT_RESPONSE, assert_only_failure, echo, flawless, http_server, result, run, server,
    text,
};

const BRIEFLY: [&str; 6] = ["--warm-up", "0.1", "--window", "0.3", "--connections", "3"];
const ENDLESS: [&str; 6] = ["--warm-up", "3600", "--window", "1", "--connections", "1"];

fn head_of(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(head)
}

/// The run is void because of a mismatch, also before the window opens.
fn assert_void(workload: &str, address: SocketAddr, options: &[&str], words: &str) {
    let result = result(workload, address, &[&ENDLESS[..], options].concat());
    assert_only_failure(&result, "mismatch", 1, words);
    assert_eq!(result["void"], result["errors"]["mismatch"]["first"]);
    assert!(result["operations_per_s"].is_null(), "{result}");
}

// --- bodies and fields ---

#[test]
fn a_body_is_sent_whole_and_its_answer_checked() {
    for size in [1usize, 1024, 1 << 20] {
        let address = server(move |mut stream, _| {
            loop {
                let head = String::from_utf8(head_of(&mut stream)?).unwrap();
                assert!(head.starts_with("POST / HTTP/1.1\r\n"), "{head}");
                assert!(head.contains(&format!("Content-Length: {size}\r\n")));
                let mut body = vec![0; size];
                stream.read_exact(&mut body)?;
                let right = b"0123456789abcdef".iter().cycle().zip(&body);
                assert!(right.clone().all(|(right, came)| right == came));
                let answer = size.to_string();
                let length = answer.len();
                let response =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{answer}");
                stream.write_all(response.as_bytes())?;
            }
        });
        let size = size.to_string();
        let options = ["--send", &size, "--body", &size];
        flawless("http", address, &[&BRIEFLY[..], &options].concat());
    }
}

#[test]
fn any_request_can_be_sent_and_any_answer_expected() {
    let address = server(|mut stream, _| {
        loop {
            let head = String::from_utf8(head_of(&mut stream)?).unwrap();
            assert!(head.starts_with("PUT /items/7 HTTP/1.1\r\n"));
            assert!(head.contains("Content-Type: application/json\r\n"));
            assert!(head.contains("Content-Length: 9\r\n"));
            let mut body = [0; 9];
            stream.read_exact(&mut body)?;
            assert_eq!(&body, b"{\"n\": 1}\n");
            stream.write_all(
                b"HTTP/1.1 201 Created\r\nContent-Length: 14\r\n\r\n{\"state\":\"ok\"}",
            )?;
        }
    });
    let request = [
        "--method",
        "PUT",
        "--path",
        "/items/7",
        "--data",
        "{\"n\": 1}\n",
    ];
    let header = ["--header", "Content-Type: application/json"];
    let asked = [&BRIEFLY[..], &request, &header].concat();
    let right = ["--status", "201", "--contains", "\"state\":\"ok\""];
    flawless("http", address, &[&asked[..], &right].concat());
    let wrong = |words: &[&str]| result("http", address, &[&asked[..], words].concat());
    let status = wrong(&["--any-body"]);
    assert!(
        status["errors"]["status"]["count"].as_u64().unwrap() > 0,
        "{status}"
    );
    assert_eq!(status["operations"], 0);
    let part = wrong(&["--status", "201", "--contains", "failed"]);
    assert!(
        part["errors"]["mismatch"]["first"]
            .as_str()
            .unwrap()
            .contains("doesn't contain 'failed'"),
        "{part}"
    );
    assert!(part["void"].is_string());
}

fn chunked_server(chunks: impl Fn(usize) -> Vec<String> + Send + Sync + 'static) -> SocketAddr {
    let number = AtomicUsize::new(0);
    server(move |mut stream, _| {
        loop {
            head_of(&mut stream)?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            for chunk in chunks(number.fetch_add(1, Ordering::Relaxed)) {
                write!(stream, "{:x}\r\n{chunk}\r\n", chunk.len())?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        }
    })
}

const CHUNKED: [&str; 4] = ["--body", "0123456789", "--times", "100"];

#[test]
fn a_missing_chunk_and_a_wrong_byte_in_a_late_one_void_the_run() {
    let right = || vec!["0123456789".repeat(10); 10];
    let address = chunked_server(move |_| right());
    flawless("http", address, &[&BRIEFLY[..], &CHUNKED].concat());

    // The right answers before make the response a familiar one, which is compared and not parsed.
    let short = chunked_server(move |number| right().split_off(usize::from(number == 20)));
    assert_void("http", short, &CHUNKED, "it has 900 bytes");

    let wrong = chunked_server(move |number| {
        let mut chunks = right();
        if number == 20 {
            chunks[9] = "0123456789".repeat(9) + "012345678x";
        }
        chunks
    });
    assert_void("http", wrong, &CHUNKED, "'x' came at byte 999");
}

#[test]
fn a_field_that_is_missing_or_has_another_value_voids_the_run() {
    let options = ["--expect-header", "X-Answer: right"];
    for (field, is_right) in [
        ("x-answer: right", true),
        ("x-answer: wrong", false),
        ("x-other: right", false),
    ] {
        let address = http_server(move |_, _| {
            let head = format!("HTTP/1.1 200 OK\r\n{field}\r\nContent-Length: 13");
            (format!("{head}\r\n\r\nHello, World!"), Answer::Sent)
        });
        if is_right {
            flawless("http", address, &[&BRIEFLY[..], &options].concat());
        } else {
            assert_void("http", address, &options, "it has no 'X-Answer: right'");
        }
    }
}

// --- idle connections ---

#[test]
fn idle_connections_make_one_request_and_rest() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let address = http_server(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        (RIGHT_RESPONSE.to_owned(), Answer::Sent)
    });
    let result = result("http", address, &[&BRIEFLY[..], &["--idle"]].concat());
    assert_eq!(requests.load(Ordering::Relaxed), 3);
    assert!(result["void"].is_null(), "{result}");
    assert_eq!(result["errors"], serde_json::json!({}));
    assert_eq!(result["operations"], 0);
    assert_eq!(result["connections"]["alive_at_end"], 3);
}

#[test]
fn an_idle_connection_that_is_closed_or_was_answered_wrongly_is_told() {
    let address = http_server(|connection, _| {
        let what = if connection == 1 {
            Answer::Close
        } else {
            Answer::Sent
        };
        (RIGHT_RESPONSE.to_owned(), what)
    });
    let closed = result("http", address, &[&BRIEFLY[..], &["--idle"]].concat());
    assert_only_failure(&closed, "closed", 1, "with nothing to answer");
    assert_eq!(closed["connections"]["alive_at_end"], 2);

    let wrong = RIGHT_RESPONSE.replace("World", "Wurld");
    let address = http_server(move |_, _| (wrong.clone(), Answer::Sent));
    assert_void("http", address, &["--idle"], "wrong body");
}

// --- TLS ---

/// A server's configuration with a certificate of its own, and that in PEM.
fn tls_config(protocols: &[&str]) -> (Arc<rustls::ServerConfig>, String) {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            key.signing_key.serialize_der().try_into().unwrap(),
        )
        .unwrap();
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    (Arc::new(config), key.cert.pem())
}

fn tls_server(response: &'static str, protocol: &'static str) -> SocketAddr {
    let (config, _) = tls_config(&[protocol]);
    server(move |stream, _| {
        let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        loop {
            head_of(&mut stream)?;
            stream.write_all(response.as_bytes())?;
        }
    })
}

/// Answers a request on each connection, and then ends it: TLS's end and TCP's come in one packet, when the answer has been read.
fn tls_server_that_closes() -> SocketAddr {
    let (config, _) = tls_config(&["http/1.1"]);
    server(move |stream, _| {
        let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        head_of(&mut stream)?;
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\nHello, World!",
        )?;
        thread::sleep(Duration::from_millis(20));
        socket2::SockRef::from(&stream.sock).set_tcp_cork(true)?;
        stream.conn.send_close_notify();
        stream.flush()
    })
}

/// Sends back everything, after `change` has seen it; with its certificate in PEM.
fn tls_echo_server(change: fn(&mut [u8])) -> (SocketAddr, String) {
    let (config, certificate) = tls_config(&[]);
    let address = server(move |stream, _| {
        let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        echo(rustls::StreamOwned::new(session, stream), change)
    });
    (address, certificate)
}

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(content: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringlab-load-test-{}-{number}.pem", process::id());
        let path = env::temp_dir().join(name);
        fs::write(&path, content).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn echoes_through_tls_are_checked() {
    let (address, certificate) = tls_echo_server(|_| ());
    let certificate = File::new(&certificate);
    let trusting = ["--tls", "--certificate", certificate.path()];
    let loads: [&[&str]; 5] = [
        &["--size", "1"],
        &["--size", "70000"],
        &["--size", "1000000"],
        &["--size", "1024", "--pipeline", "3"],
        &["--churn"],
    ];
    for load in loads {
        flawless("echo", address, &[&BRIEFLY[..], &trusting, load].concat());
    }
    let (wrong, _) = tls_echo_server(|bytes| bytes[0] ^= 1);
    assert_void("echo", wrong, &["--tls"], "message 0: byte 0 of 1024 is 0x");
}

#[test]
fn a_server_with_another_certificate_is_not_measured() {
    let (address, _) = tls_echo_server(|_| ());
    let (_, other) = tls_config(&[]);
    for (content, words) in [
        (
            other.as_str(),
            "no TLS: unexpected error: the server shows another certificate than --certificate",
        ),
        ("nothing", "there is no certificate in "),
    ] {
        let file = File::new(content);
        let load = ["--tls", "--certificate", file.path()];
        let output = run("echo", address, &[&BRIEFLY[..], &load].concat());
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn tls_is_spoken_and_what_it_brings_is_checked() {
    let options = [&BRIEFLY[..], &["--tls"]].concat();
    flawless("http", tls_server(RIGHT_RESPONSE, "http/1.1"), &options);
    let idle = [&options[..], &["--idle"]].concat();
    let rested = result("http", tls_server(RIGHT_RESPONSE, "http/1.1"), &idle);
    assert_eq!(rested["connections"]["alive_at_end"], 3, "{rested}");
    let wrong = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, Wurld!";
    assert_void(
        "http",
        tls_server(wrong, "http/1.1"),
        &["--tls"],
        "wrong body",
    );
}

#[test]
fn the_end_of_a_connection_is_seen_that_comes_with_the_end_of_tls() {
    let result = flawless(
        "http",
        tls_server_that_closes(),
        &[&BRIEFLY[..], &["--tls"]].concat(),
    );
    let reopened = result["connections"]["reopened"].as_u64().unwrap();
    assert!(reopened > 0, "{result}");
}

#[test]
fn a_large_body_comes_whole_through_tls() {
    let response: &'static str = Box::leak(
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}",
            "0123456789".repeat(100_000)
        )
        .into_boxed_str(),
    );
    let body = ["--tls", "--body", "0123456789", "--times", "100000"];
    let address = tls_server(response, "http/1.1");
    flawless("http", address, &[&BRIEFLY[..], &body].concat());
}

#[test]
fn servers_that_do_not_speak_a_protocol_are_told() {
    let plain = http_server(|_, _| (RIGHT_RESPONSE.to_owned(), Answer::Sent));
    for (workload, option, words) in [
        (
            "http",
            &["--http2"][..],
            "it doesn't speak HTTP/2: it answered in HTTP/1",
        ),
        (
            "websocket",
            &[][..],
            "it doesn't speak WebSocket: the upgrade was answered with",
        ),
    ] {
        let output = run(workload, plain, &[&BRIEFLY[..], option].concat());
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(words), "{said}");
    }
    let echo = crate::common::echo_server();
    for workload in ["http", "echo"] {
        let output = run(workload, echo, &[&BRIEFLY[..], &["--tls"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("no TLS: "), "{said}");
    }
}

// --- WebSocket ---

const ACCEPTED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Sends messages back, as changed by `change`, which gets the number of the message and a whole frame, without a mask.
fn websocket_server(change: impl Fn(usize, &mut Vec<u8>) + Send + Sync + 'static) -> SocketAddr {
    server(move |mut stream, _| {
        head_of(&mut stream)?;
        stream.write_all(ACCEPTED)?;
        for number in 0.. {
            let mut header = [0; 2];
            stream.read_exact(&mut header)?;
            assert_eq!(header[0], 0x82, "a binary message in one frame");
            assert_eq!(header[1] & 0x80, 0x80, "a client masks");
            let extended = match header[1] & 0x7f {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            let mut length = vec![0; extended];
            stream.read_exact(&mut length)?;
            let size = match extended {
                0 => u64::from(header[1] & 0x7f),
                _ => length
                    .iter()
                    .fold(0, |size, &byte| size << 8 | u64::from(byte)),
            };
            let mut mask = [0; 4];
            stream.read_exact(&mut mask)?;
            let mut payload = vec![0; size as usize];
            stream.read_exact(&mut payload)?;
            for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
                *byte ^= mask;
            }
            let mut frame = vec![header[0], header[1] & 0x7f];
            frame.extend(length);
            frame.extend(payload);
            change(number, &mut frame);
            stream.write_all(&frame)?;
        }
        Ok(())
    })
}

#[test]
fn messages_of_all_lengths_come_back() {
    for size in ["1", "125", "126", "1024", "65536", "100000"] {
        let address = websocket_server(|_, _| {});
        let options = [&BRIEFLY[..], &["--size", size]].concat();
        flawless("websocket", address, &options);
    }
}

#[test]
fn pings_in_between_are_no_messages() {
    let address = websocket_server(|number, frame| {
        if number % 3 == 1 {
            frame.splice(..0, [0x89, 4, 1, 2, 3, 4]);
        }
        frame.extend([0x89, 0]);
    });
    flawless("websocket", address, &BRIEFLY);
}

#[test]
fn wrong_frames_void_the_run() {
    let flipped = websocket_server(|number, frame| frame[500] ^= u8::from(number == 3));
    assert_void("websocket", flipped, &[], "wrong echo");
    let text_frame = websocket_server(|_, frame| frame[0] = 0x81);
    assert_void("websocket", text_frame, &[], "it begins with [81]");
    let short = websocket_server(|_, frame| {
        frame[2] = 3;
        frame.truncate(4 + 3 * 256);
    });
    assert_void("websocket", short, &[], "it begins with [82, 7e, 03]");
    let masked = websocket_server(|_, frame| frame[1] |= 0x80);
    assert_void("websocket", masked, &[], "it begins with [82, fe]");
}

#[test]
fn an_accept_for_another_key_is_no_websocket() {
    let address = server(|mut stream, _| {
        head_of(&mut stream)?;
        let wrong = text(ACCEPTED).replace("s3pP", "S3pP");
        stream.write_all(wrong.as_bytes())?;
        stream.read_exact(&mut [0])
    });
    let output = run("websocket", address, &BRIEFLY);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("Sec-WebSocket-Accept doesn't belong to the key"),
        "{said}"
    );
}

// --- HTTP/2 ---

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Answers requests with what `answer` makes for the number of the request and its stream.
fn http2_server(answer: impl Fn(usize, u32) -> Vec<Vec<u8>> + Send + Sync + 'static) -> SocketAddr {
    server(move |mut stream, _| {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface)?;
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        stream.write_all(&frame(4, 0, 0, &[]))?;
        let mut number = 0;
        loop {
            let mut header = [0; 9];
            stream.read_exact(&mut header)?;
            let length = usize::from(header[1]) << 8 | usize::from(header[2]);
            stream.read_exact(&mut vec![0; length])?;
            let id = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            match header[3] {
                4 if header[4] & 1 == 0 => stream.write_all(&frame(4, 1, 0, &[]))?,
                1 => {
                    for frame in answer(number, id) {
                        stream.write_all(&frame)?;
                    }
                    number += 1;
                }
                _ => {}
            }
        }
    })
}

#[test]
fn http2_is_spoken_with_right_answers_of_all_kinds() {
    let address = http2_server(|number, stream| match number % 3 {
        0 => vec![
            frame(1, 4, stream, &[0x88]),
            frame(0, 1, stream, b"Hello, World!"),
        ],
        // A changed table, padding, two pieces, control frames between them, and trailers.
        1 => vec![
            frame(6, 0, 0, &[0; 8]),
            frame(1, 4 | 8, stream, &[2, 0x20, 0x88, 0, 0]),
            frame(0, 0, stream, b"Hello, "),
            frame(8, 0, 0, &[0, 0, 0, 1]),
            frame(0, 8, stream, b"\x01World!\x00"),
            frame(1, 4 | 1, stream, &[0x82]),
        ],
        _ => vec![
            [
                frame(1, 4, stream, &[0x88]),
                frame(0, 0, stream, b"Hello, World!"),
            ]
            .concat(),
            frame(0, 1, stream, b""),
        ],
    });
    flawless("http", address, &[&BRIEFLY[..], &["--http2"]].concat());
}

#[test]
fn streams_of_http2_may_end_in_any_order() {
    let head = |stream| frame(1, 4, stream, &[0x88]);
    let body = |stream| frame(0, 1, stream, b"Hello, World!");
    // The first request comes alone, and all others in pairs, of which the second is answered first.
    let address = http2_server(move |number, stream| match (number, number % 2) {
        (0, _) => vec![head(stream), body(stream)],
        (_, 1) => vec![],
        _ => vec![
            head(stream),
            head(stream - 2),
            body(stream),
            body(stream - 2),
        ],
    });
    let pairs = &[&BRIEFLY[..], &["--http2", "--pipeline", "2"]].concat();
    flawless("http", address, pairs);
}

#[test]
fn answers_on_wrong_streams_of_http2_are_told() {
    let head = |stream| frame(1, 4, stream, &[0x88]);
    let body = |stream| frame(0, 1, stream, b"Hello, World!");
    for (on_new_stream, words) in [
        (true, "a frame of type 1 on stream 7, and not on 3"),
        (false, "more on stream 5, which had ended"),
    ] {
        let address = http2_server(move |number, stream| match number {
            0 => vec![head(stream), body(stream)],
            1 => vec![],
            _ if on_new_stream => vec![head(stream + 2)],
            _ => vec![head(stream), body(stream), body(stream)],
        });
        let pair = ["--connections", "1", "--http2", "--pipeline", "2"];
        let result = result("http", address, &[&BRIEFLY[..4], &pair].concat());
        let first = result["errors"]["malformed"]["first"].as_str();
        assert!(first.is_some_and(|first| first.contains(words)), "{result}");
    }
}

#[test]
fn wrong_answers_in_http2_are_told() {
    let right = |stream| {
        vec![
            frame(1, 4, stream, &[0x88]),
            frame(0, 1, stream, b"Hello, World!"),
        ]
    };
    for body in [&b"Hello, Wurld!"[..], b"Hello", b"Hello, World!!"] {
        let address = http2_server(move |number, stream| {
            let mut frames = right(stream);
            if number == 4 {
                frames[1] = frame(0, 1, stream, body);
            }
            frames
        });
        assert_void("http", address, &["--http2"], "wrong body");
    }
    for (kind, wrong, words) in [
        ("status", frame(1, 4, 0, &[0x8d]), "a status other than 200"),
        ("malformed", frame(3, 0, 0, &[0; 4]), "the stream was reset"),
        ("malformed", frame(7, 0, 0, &[0; 8]), "GOAWAY"),
        ("malformed", vec![0xff; 9], "a frame of 16777215 bytes"),
    ] {
        let address = http2_server(move |number, stream| {
            let mut frames = right(stream);
            if number > 0 {
                let mut wrong = wrong.clone();
                if kind == "status" || wrong[3] == 3 {
                    wrong[5..9].copy_from_slice(&stream.to_be_bytes());
                }
                frames[0] = wrong;
            }
            frames
        });
        let result = result(
            "http",
            address,
            &[&BRIEFLY[..4], &["--connections", "1", "--http2"]].concat(),
        );
        let first = result["errors"][kind]["first"].as_str();
        assert!(first.is_some_and(|first| first.contains(words)), "{result}");
    }
}
