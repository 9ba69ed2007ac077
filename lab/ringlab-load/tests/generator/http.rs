//! HTTP servers with known behaviour, and what the generator says of them.

use crate::common::{
    Answer, PROGRAM, RIGHT_RESPONSE, assert_flawless, assert_only_failure, events, events_of,
    flawless, histogram, http_server, result, server,
};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const BRIEFLY: [&str; 6] = ["--warm-up", "0.1", "--window", "0.4", "--connections", "5"];
const ENDLESS: [&str; 6] = ["--warm-up", "0", "--window", "3600", "--connections", "2"];
const NS_PER_MS: u64 = 1_000_000;

#[test]
fn a_right_server_has_no_failures_in_either_loop() {
    let address = http_server(|_, _| (RIGHT_RESPONSE.to_owned(), Answer::Sent));
    for more in [&[][..], &["--pipeline", "9"], &["--rate", "500"]] {
        let result = flawless("http", address, &[&BRIEFLY[..], more].concat());
        assert_eq!(result["connections"]["alive_at_end"], 5);
    }
}

/// A server whose answer for one path is another one, after a moment.
fn server_with_slow_path(slow: &'static str) -> SocketAddr {
    server(move |mut stream, _| {
        let mut buffer = [0; 4096];
        loop {
            let bytes = stream.read(&mut buffer)?;
            if bytes == 0 {
                return Ok(());
            }
            if buffer.starts_with(b"GET /slow ") {
                thread::sleep(Duration::from_millis(20));
                stream.write_all(slow.as_bytes())?;
            } else {
                stream.write_all(RIGHT_RESPONSE.as_bytes())?;
            }
        }
    })
}

#[test]
fn requests_beside_the_measured_ones_are_answered_and_not_counted() {
    let address = server_with_slow_path("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow");
    let beside = ["--beside", "3", "--beside-path", "/slow"];
    let found = flawless("http", address, &[&BRIEFLY[..], &beside].concat());
    assert_eq!(found["connections"]["asked"], 5);
    assert_eq!(found["beside"]["connections"], 3);
    assert!(found["beside"]["answered"].as_u64().unwrap() > 0, "{found}");
    // A body of 4 bytes is wrong for the measured connections.
    assert!(found["operations"].as_u64().unwrap() > 0, "{found}");
}

#[test]
fn a_failure_beside_the_measured_requests_is_reported() {
    let address = server_with_slow_path("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
    let beside = ["--beside", "1", "--beside-path", "/slow"];
    let found = result("http", address, &[&BRIEFLY[..], &beside].concat());
    assert_only_failure(
        &found,
        "status",
        1,
        "connection 0 beside the measured ones: it was answered with status 503",
    );
    assert_eq!(found["beside"]["answered"], 0);
}

#[test]
fn responses_that_change_and_come_in_pieces_are_right_as_well() {
    let address = server(|mut stream, _| {
        let mut buffer = [0; 4096];
        for number in 0.. {
            if stream.read(&mut buffer)? == 0 {
                return Ok(());
            }
            let response = format!(
                "HTTP/1.1 200 OK\r\nX-Number: {number}\r\nContent-Length: 13\r\n\r\nHello, World!"
            );
            for piece in response.as_bytes().chunks(30) {
                stream.write_all(piece)?;
                thread::yield_now();
            }
        }
        Ok(())
    });
    flawless("http", address, &BRIEFLY);
}

#[test]
fn a_connection_that_the_server_closes_in_good_order_is_made_anew() {
    let address = http_server(|_, number| {
        let last = number == 9;
        let close = if last { "Connection: close\r\n" } else { "" };
        let response = format!("HTTP/1.1 200 OK\r\n{close}Content-Length: 13\r\n\r\nHello, World!");
        (response, if last { Answer::Close } else { Answer::Sent })
    });
    for more in [&[][..], &["--pipeline", "4"], &["--rate", "300"]] {
        let result = flawless("http", address, &[&BRIEFLY[..], more].concat());
        let reopened = result["connections"]["reopened"].as_u64().unwrap();
        assert!(reopened > 0, "{result}");
    }
}

#[test]
fn a_server_that_closes_every_connection_unasked_ends_the_run() {
    let address = server(|_, _| Ok(()));
    // With a second between connections all but the last are closed before anything is asked.
    for ramp in ["0", "1"] {
        let result = result("http", address, &[&ENDLESS[..], &["--ramp", ramp]].concat());
        let connections = &result["connections"];
        assert_eq!(connections["opened"], 2, "{result}");
        assert_eq!(connections["reopened"], 0, "{result}");
        let count = |kind: &str| result["errors"][kind]["count"].as_u64().unwrap_or(0);
        assert_eq!(count("closed") + count("reset"), 2, "{result}");
        assert!(result["void"].is_string());
    }
}

#[test]
fn a_connection_that_is_not_closed_as_announced_is_told() {
    let last = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\nHello, World!";
    let address = http_server(move |connection, number| {
        let hangs = (connection, number) == (0, 2);
        let response = if hangs { last } else { RIGHT_RESPONSE };
        (response.to_owned(), Answer::Sent)
    });
    let result = result(
        "http",
        address,
        &[&BRIEFLY[..], &["--timeout", "2"]].concat(),
    );
    assert_only_failure(
        &result,
        "timeout",
        1,
        "the server said that it closes connection 0, and didn't within 2 s",
    );
    assert_eq!(result["connections"]["alive_at_end"], 4);
}

#[test]
fn a_rate_beyond_all_servers_ends_in_time_and_counts_all_that_was_due() {
    let address = http_server(|_, _| (RIGHT_RESPONSE.to_owned(), Answer::Sent));
    // Without optimisation, and without the CPU, the generator counts for a long time what was due meanwhile.
    let load = ["--rate", "1000000"];
    let result = flawless("http", address, &[&BRIEFLY[..], &load].concat());
    let due = result["open_loop"]["due"].as_f64().unwrap();
    let expected = 1e6 * result["window_s"].as_f64().unwrap();
    assert!((due - expected).abs() <= 4.0, "{result}");
    assert_eq!(result["latency"]["corrected"]["count"], due as u64);
}

/// A server that answers `ok`, with status 200 to requests that are right, judged by their text and the server's port, and else with 404.
fn judging_server(
    is_right: impl Fn(&str, u16) -> bool + Send + Sync + 'static,
) -> std::net::SocketAddr {
    server(move |mut stream, _| {
        let mut buffer = [0; 4096];
        loop {
            let bytes = stream.read(&mut buffer)?;
            if bytes == 0 {
                return Ok(());
            }
            let request = String::from_utf8_lossy(&buffer[..bytes]);
            let right = is_right(&request, stream.local_addr()?.port());
            let status = if right { 200 } else { 404 };
            write!(stream, "HTTP/1.1 {status} -\r\nContent-Length: 2\r\n\r\nok")?;
        }
    })
}

#[test]
fn the_name_of_the_server_is_its_host() {
    let address = judging_server(|request, port| {
        request.contains(&format!("\r\nHost: localhost:{port}\r\n"))
    });
    let output = Command::new(PROGRAM)
        .args(["http", "--any-body", "--address"])
        .arg(format!("localhost:{}", address.port()))
        .args(BRIEFLY)
        .output()
        .unwrap();
    let result = events_of(&output).pop().unwrap();
    assert_flawless(&result);
    assert_eq!(result["options"]["address"], address.to_string());
}

#[test]
fn wrong_statuses_are_counted_and_the_connection_goes_on() {
    let address = http_server(|connection, number| {
        let response = if (connection, number) == (0, 5) {
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
        } else {
            RIGHT_RESPONSE
        };
        (response.to_owned(), Answer::Sent)
    });
    let result = result("http", address, &BRIEFLY);
    assert_only_failure(
        &result,
        "status",
        1,
        "message 5 was answered with status 503",
    );
    assert!(result["void"].is_null());
    assert_eq!(result["connections"]["alive_at_end"], 5);
}

#[test]
fn wrong_and_short_bodies_void_the_run() {
    for (response, words) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, world!",
            "'Hello, world!' came, and 'Hello, World!' was expected",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello",
            "it has 5 bytes: 'Hello', and 13 were expected",
        ),
    ] {
        let address = http_server(move |connection, number| {
            let wrong = (connection, number) == (1, 7);
            (
                if wrong { response } else { RIGHT_RESPONSE }.to_owned(),
                Answer::Sent,
            )
        });
        let result = result("http", address, &ENDLESS);
        assert_only_failure(&result, "mismatch", 1, words);
        assert!(result["void"].is_string());
    }
}

#[test]
fn a_body_that_ends_too_early_is_a_half_answer() {
    let address = http_server(|connection, number| {
        if (connection, number) == (0, 3) {
            let half = &RIGHT_RESPONSE[..RIGHT_RESPONSE.len() - 8];
            return (half.to_owned(), Answer::Close);
        }
        (RIGHT_RESPONSE.to_owned(), Answer::Sent)
    });
    let result = result("http", address, &BRIEFLY);
    assert_only_failure(
        &result,
        "half_answer",
        1,
        "44 bytes of a response, in answer to message 3",
    );
    assert_eq!(result["connections"]["alive_at_end"], 4);
}

#[test]
fn what_is_not_http_is_malformed() {
    let address = http_server(|_, _| ("220 mail.example ready\r\n".to_owned(), Answer::Sent));
    let result = result("http", address, &ENDLESS);
    assert_only_failure(
        &result,
        "malformed",
        2,
        "it begins with '220 mail.example ready",
    );
    assert_eq!(result["void"], "nothing was answered in the window");
}

#[test]
fn other_bodies_paths_and_headers_can_be_asked_for() {
    let address = judging_server(|request, _| {
        request.starts_with("GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:")
            && request.ends_with("\r\nAccept: text/html\r\nX: y\r\n\r\n")
    });
    let asked = [
        "--path",
        "/a?b",
        "--header",
        "Accept: text/html",
        "--header",
        "X: y",
    ];
    for body in [&["--body", "ok"][..], &["--any-body"]] {
        flawless("http", address, &[&BRIEFLY[..], &asked, body].concat());
    }
}

/// A server that stands still in the first 100 ms of every second, on all connections.
fn stalling_server() -> std::net::SocketAddr {
    const PERIOD: Duration = Duration::from_secs(1);
    const STALL: Duration = Duration::from_millis(100);
    let began = Instant::now();
    http_server(move |_, _| {
        let into_period =
            Duration::from_nanos((began.elapsed().as_nanos() % PERIOD.as_nanos()) as u64);
        thread::sleep(STALL.saturating_sub(into_period));
        (RIGHT_RESPONSE.to_owned(), Answer::Sent)
    })
}

#[test]
fn stalls_show_in_the_corrected_latencies_of_the_open_loop_and_not_in_the_service_times() {
    let load = [
        "--warm-up",
        "0.2",
        "--window",
        "4",
        "--connections",
        "2",
        "--rate",
        "1000",
        "--hdr",
    ];
    let result = flawless("http", stalling_server(), &load);
    let due = result["open_loop"]["due"].as_u64().unwrap();
    let window_s = result["window_s"].as_f64().unwrap();
    assert!((due as f64 - 1000.0 * window_s).abs() <= 2.0, "{result}");

    // A tenth of all requests are due in a stall, half of these in its first half. A stall, whoever causes it, delays all that are due
    // in it; of those that were sent, it delays two: that is why service times hide it.
    let (corrected, service) = (
        histogram(&result, "corrected"),
        histogram(&result, "service"),
    );
    assert_eq!(corrected.len(), due);
    let late = |histogram: &hdrhistogram::Histogram<u64>| {
        histogram.count_between(50 * NS_PER_MS, u64::MAX)
    };
    assert!(
        corrected.value_at_quantile(0.99) > 50 * NS_PER_MS,
        "{result}"
    );
    assert!(
        service.value_at_quantile(0.99) < corrected.value_at_quantile(0.99) / 2,
        "{result}"
    );
    assert!(
        late(&corrected) > 5 * late(&service),
        "{} {}",
        late(&corrected),
        late(&service)
    );
}

#[test]
fn stalls_show_in_the_closed_loop_in_the_maximum_at_most_once_per_connection() {
    let load = [
        "--warm-up",
        "0.2",
        "--window",
        "3",
        "--connections",
        "2",
        "--hdr",
    ];
    let result = flawless("http", stalling_server(), &load);
    assert!(result["latency"]["corrected"].is_null());
    let service = histogram(&result, "service");
    // Three stalls, each of which meets the one request in flight of both connections; the rest of the window is not in here at all.
    assert!(service.max() > 50 * NS_PER_MS, "{result}");
    assert!(
        service.count_between(50 * NS_PER_MS, u64::MAX) >= 4,
        "{result}"
    );
}

#[test]
fn a_fixed_delay_beyond_the_rate_makes_the_corrected_latencies_grow() {
    let address = http_server(|_, _| {
        thread::sleep(Duration::from_millis(50));
        (RIGHT_RESPONSE.to_owned(), Answer::Sent)
    });
    // 20 answers per second at most, 100 are asked for: after a second the requests are 0.8 s late.
    let load = [
        "--warm-up",
        "0",
        "--window",
        "1",
        "--connections",
        "1",
        "--rate",
        "100",
    ];
    let result = result("http", address, &load);
    let latency = |which: &str, what: &str| result["latency"][which][what].as_u64().unwrap();
    assert!(latency("service", "min_ns") >= 49 * NS_PER_MS);
    assert!(latency("corrected", "max_ns") > 600 * NS_PER_MS, "{result}");
    assert!(latency("corrected", "p50_ns") > 300 * NS_PER_MS, "{result}");
    // What had no answer in the end counts with the time for which it had waited.
    let due = result["open_loop"]["due"].as_u64().unwrap();
    let unfinished = result["open_loop"]["unfinished"].as_u64().unwrap();
    assert_eq!(latency("corrected", "count"), due);
    assert_eq!(latency("service", "count") + unfinished, due, "{result}");
    assert!(unfinished > 70, "{result}");
}

#[test]
fn a_server_that_never_answers_is_charged_for_all_that_was_due() {
    let address = http_server(|_, _| (String::new(), Answer::Hang));
    let load = [
        "--warm-up",
        "0",
        "--window",
        "0.5",
        "--connections",
        "2",
        "--rate",
        "1000",
        "--timeout",
        "2",
    ];
    let result = result("http", address, &load);
    assert_only_failure(&result, "timeout", 2, "within 2 s; nothing came");
    let due = result["open_loop"]["due"].as_u64().unwrap();
    assert!(due > 400, "{result}");
    assert_eq!(result["open_loop"]["unfinished"], due);
}

fn probe(address: std::net::SocketAddr) -> serde_json::Value {
    let probe = events("http", address, &["--probe"]).pop().unwrap();
    assert_eq!(probe["event"], "probe");
    probe
}

#[test]
fn the_probe_knows_an_answer_to_whatever_comes() {
    let address = server(|mut stream, _| {
        let mut buffer = [0; 4096];
        while stream.read(&mut buffer)? > 0 {
            stream.write_all(RIGHT_RESPONSE.as_bytes())?;
        }
        Ok(())
    });
    let probe = probe(address);
    assert_eq!(probe["parser"], "canned");
    let text = probe["text"].as_str().unwrap();
    assert!(
        text.contains("a request in pieces isn't answered once"),
        "{probe}"
    );
    assert!(
        text.contains("three requests at once don't get three answers"),
        "{probe}"
    );
}

#[test]
fn the_probe_knows_a_server_that_only_looks_for_the_empty_line() {
    let probe = probe(http_server(|_, _| {
        (RIGHT_RESPONSE.to_owned(), Answer::Sent)
    }));
    assert_eq!(probe["parser"], "canned");
    assert_eq!(probe["text"], "a request's body is taken for a request");
}

/// A server that parses, and answers what is malformed with `refusal`.
fn parsing_server(refusal: &'static str) -> std::net::SocketAddr {
    server(move |mut stream, _| {
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 16];
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(&received) {
                Err(_) => {
                    return stream.write_all(refusal.as_bytes());
                }
                Ok(httparse::Status::Complete(head)) => {
                    let body: usize = request
                        .headers
                        .iter()
                        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
                        .map_or(0, |header| {
                            std::str::from_utf8(header.value).unwrap().parse().unwrap()
                        });
                    if received.len() >= head + body {
                        received.drain(..head + body);
                        stream.write_all(RIGHT_RESPONSE.as_bytes())?;
                        continue;
                    }
                }
                Ok(httparse::Status::Partial) => {}
            }
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                bytes => received.extend_from_slice(&buffer[..bytes]),
            }
        }
    })
}

#[test]
fn the_probe_knows_a_parser() {
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let probe = probe(parsing_server(refusal));
    assert_eq!(probe["parser"], "real", "{probe}");
    assert_eq!(probe["answers"]["malformed"], "400 with 0 bytes, closed");
}

#[test]
fn the_probe_sees_the_status_of_an_answer_without_a_length() {
    for (refusal, parser) in [
        ("HTTP/1.0 400 Bad Request\r\n\r\nno", "real"),
        ("<html>no", "real"),
        ("", "real"),
        ("HTTP/1.0 200 OK\r\n\r\nHello, World!", "unknown"),
    ] {
        let probe = probe(parsing_server(refusal));
        assert_eq!(probe["parser"], parser, "{probe}");
    }
}
