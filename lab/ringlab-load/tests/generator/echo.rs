//! Echo servers with known behaviour, and what the generator says of them.

use crate::common::{
    Answer, assert_flawless, assert_only_failure, echo_server, flawless, message_server, result,
    server,
};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const BRIEFLY: [&str; 4] = ["--warm-up", "0.1", "--window", "0.3"];
/// A window that a failure must end.
const ENDLESS: [&str; 4] = ["--warm-up", "0", "--window", "3600"];

fn options<'a>(first: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [first, rest].concat()
}

#[test]
fn a_right_server_has_no_failures_whatever_the_frames() {
    let address = echo_server();
    for (size, connections, pipeline) in [
        ("1", "1", "1"),
        ("1024", "50", "1"),
        ("15", "7", "5"),
        ("70000", "10", "4"),
        ("3000000", "2", "1"),
    ] {
        let load = [
            "--size",
            size,
            "--connections",
            connections,
            "--pipeline",
            pipeline,
        ];
        let result = flawless("echo", address, &options(&BRIEFLY, &load));
        let figure = |name: &str| result[name].as_f64().unwrap();
        assert!(figure("bytes_in") > 0.0 && figure("bytes_out") > 0.0);
        let connections: u64 = connections.parse().unwrap();
        assert_eq!(result["connections"]["opened"], connections);
        assert_eq!(result["connections"]["alive_at_end"], connections);
        // `asked` requests were in flight, or fewer where the generator came late into the window.
        let in_flight = result["littles_law"]["expected"].as_f64().unwrap();
        let asked = connections as f64 * pipeline.parse::<f64>().unwrap();
        assert!(
            in_flight < 1.001 * asked && in_flight > 0.3 * asked,
            "{result}"
        );
    }
}

#[test]
fn streams_come_back_whole() {
    let address = echo_server();
    let load = ["--mode", "stream", "--connections", "5"];
    let result = flawless("echo", address, &options(&BRIEFLY, &load));
    assert!(result["latency"]["service"].is_null());
    assert_eq!(result["connections"]["alive_at_end"], 5);
    let messages = result["operations"].as_f64().unwrap();
    let bytes = result["bytes_in"].as_f64().unwrap();
    // Each connection's last message may be incomplete.
    assert!((bytes / 11.0 - messages).abs() <= 5.0, "{result}");
}

#[test]
fn one_flipped_bit_in_a_frame_ends_the_run_and_voids_it() {
    let address = message_server(1000, |connection, number, message| {
        if (connection, number) == (2, 40) {
            message[777] ^= 1;
        }
        Answer::Sent
    });
    let result = result(
        "echo",
        address,
        &options(&ENDLESS, &["--size", "1000", "--connections", "4"]),
    );
    assert_only_failure(&result, "mismatch", 1, "message 40: byte 777 of 1000 is 0x");
    assert_eq!(result["void"], result["errors"]["mismatch"]["first"]);
    assert_eq!(result["ended_early"], "void");
}

#[test]
fn one_flipped_bit_in_a_stream_ends_the_run_and_voids_it() {
    const AT: usize = 1_000_003;
    let address = server(|mut stream, _| {
        let mut buffer = vec![0; 64 * 1024];
        let mut position = 0;
        loop {
            let bytes = stream.read(&mut buffer)?;
            if (position..position + bytes).contains(&AT) {
                buffer[AT - position] ^= 0x20;
            }
            position += bytes;
            stream.write_all(&buffer[..bytes])?;
        }
    });
    let result = result(
        "echo",
        address,
        &options(&ENDLESS, &["--mode", "stream", "--connections", "1"]),
    );
    assert_only_failure(
        &result,
        "mismatch",
        1,
        &format!("byte {AT} of the stream is 0x"),
    );
    assert!(result["void"].is_string());
}

#[test]
fn answers_out_of_order_are_told_apart_from_damaged_ones() {
    let address = server(|mut stream, _| {
        let (mut first, mut second) = ([0; 64], [0; 64]);
        stream.read_exact(&mut first)?;
        stream.read_exact(&mut second)?;
        stream.write_all(&second)?;
        stream.write_all(&first)?;
        stream.read_exact(&mut first)
    });
    let result = result(
        "echo",
        address,
        &options(
            &ENDLESS,
            &["--size", "64", "--pipeline", "2", "--connections", "1"],
        ),
    );
    assert_only_failure(
        &result,
        "mismatch",
        1,
        "what came begins as message 1 of connection 0",
    );
}

#[test]
fn more_than_was_sent_voids_the_run() {
    let address = message_server(100, |_, number, message| {
        if number == 3 {
            message.push(b'!');
        }
        Answer::Sent
    });
    let result = result(
        "echo",
        address,
        &options(&ENDLESS, &["--size", "100", "--connections", "1"]),
    );
    assert_only_failure(
        &result,
        "unexpected",
        1,
        "after the answer to its message 3, which nobody asked for",
    );
    assert!(result["void"].is_string());
}

#[test]
fn what_comes_before_the_first_message_voids_the_run() {
    let address = server(|mut stream, connection| {
        if connection == 0 {
            stream.write_all(&[b'!'; 100])?;
        }
        stream.read_exact(&mut [0; 1])
    });
    // Nothing is sent before the last connection is open.
    let load = ["--size", "100", "--connections", "2", "--ramp", "60"];
    let result = result("echo", address, &options(&ENDLESS, &load));
    assert_only_failure(
        &result,
        "unexpected",
        1,
        "100 bytes came on connection 0 before its first message was sent, which nobody asked for",
    );
    assert!(result["void"].is_string());
}

/// Three connections, of which the second fails after three messages.
fn second_fails(answer: Answer, bytes: usize) -> Value {
    let address = message_server(500, move |connection, number, message| {
        if (connection, number) == (1, 3) {
            message.truncate(bytes);
            return answer;
        }
        Answer::Sent
    });
    // The other connections must have their answers within the time, on whatever machine.
    let load = ["--size", "500", "--connections", "3", "--timeout", "2"];
    let window = if matches!(answer, Answer::Hang) {
        "3"
    } else {
        "0.5"
    };
    result(
        "echo",
        address,
        &options(&["--warm-up", "0", "--window", window], &load),
    )
}

#[test]
fn a_dropped_connection_is_named_and_the_others_go_on() {
    let result = second_fails(Answer::Close, 0);
    assert_only_failure(
        &result,
        "closed",
        1,
        "the server closed connection 1 without an answer to message 3",
    );
    assert!(result["void"].is_null());
    assert_eq!(result["connections"]["alive_at_end"], 2);
    assert!(result["ended_early"].is_null());
}

#[test]
fn a_server_that_closes_every_connection_at_once_is_not_one_that_refuses() {
    let address = server(|_, _| Ok(()));
    let load = ["--connections", "4"];
    let result = result("echo", address, &options(&ENDLESS, &load));
    assert_eq!(result["connections"]["opened"], 4, "{result}");
    assert_eq!(result["connections"]["alive_at_end"], 0);
    assert_eq!(result["ended_early"], "no connection was left");
    assert!(result["void"].is_string());
    let count = |kind: &str| result["errors"][kind]["count"].as_u64().unwrap_or(0);
    assert_eq!(count("closed") + count("reset"), 4, "{result}");
}

#[test]
fn a_reset_connection_is_named() {
    let result = second_fails(Answer::Reset, 0);
    assert_only_failure(
        &result,
        "reset",
        1,
        "the server reset connection 1 without an answer to message 3",
    );
}

#[test]
fn a_half_answer_is_named() {
    let result = second_fails(Answer::Close, 250);
    assert_only_failure(
        &result,
        "half_answer",
        1,
        "the server closed connection 1 after 250 of 500 bytes of its echo, in answer to message 3",
    );
}

#[test]
fn a_reset_in_the_middle_of_an_answer_is_named() {
    let result = second_fails(Answer::Reset, 250);
    assert_only_failure(
        &result,
        "half_answer",
        1,
        "the server reset connection 1 after 250 of 500 bytes of its echo, in answer to message 3",
    );
}

#[test]
fn streams_in_small_pieces_count_as_well() {
    let address = server(|mut stream, _| {
        let mut buffer = [0; 7];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                bytes => stream.write_all(&buffer[..bytes])?,
            }
            // Long enough for each piece to arrive by itself.
            thread::sleep(Duration::from_millis(1));
        }
    });
    let load = [
        "--mode",
        "stream",
        "--connections",
        "1",
        "--max-operations",
        "100",
        // What was sent would take long to come back; this is how long it is waited for.
        "--timeout",
        "0.5",
    ];
    let result = flawless("echo", address, &options(&ENDLESS, &load));
    assert!(result["operations"].as_u64().unwrap() >= 100, "{result}");
}

/// The figures of one stream on a server when it ended.
struct Stream {
    /// The most that it had received and not yet sent back, in bytes.
    behind_max: usize,
    /// Everything that it had received was sent back, and the generator had taken it: it closed, and reset nothing.
    whole: bool,
}

/// A server of streams that answers nothing before nothing has come for `pause`, and then all at once. As it knows what it gets, it
/// keeps nothing of it.
fn lagging_server(pause: Duration) -> (SocketAddr, Receiver<Stream>) {
    let (sender, streams) = mpsc::channel();
    let address = server(move |mut stream, _| {
        stream.set_read_timeout(Some(pause))?;
        let text: Vec<u8> = b"hello world".repeat(10_000);
        let mut buffer = vec![0; 1024 * 1024];
        let (mut behind, mut behind_max, mut at) = (0, 0, 0);
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break Ok(()),
                Ok(bytes) => behind += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    behind_max = behind_max.max(behind);
                    while behind > 0 {
                        let piece = &text[at..text.len().min(at + behind)];
                        if stream.write_all(piece).is_err() {
                            break;
                        }
                        behind -= piece.len();
                        at = (at + piece.len()) % text.len();
                    }
                }
                Err(error) => break Err(error),
            }
        };
        let whole = end.is_ok() && behind == 0;
        sender.send(Stream { behind_max, whole }).unwrap();
        Ok(())
    });
    (address, streams)
}

/// The bytes that may be outstanding on each of `connections` streams, as the result says: at most 256 MiB, and 1 GiB
/// in all.
fn outstanding_limit(result: &Value, connections: u64) -> usize {
    let most = result["streams"]["outstanding_bytes_most"]
        .as_u64()
        .unwrap();
    assert!(most <= 256 << 20 && most * connections <= 1 << 30);
    most as usize
}

#[test]
fn a_stream_is_held_back_until_a_server_that_lags_has_caught_up() {
    let (address, streams) = lagging_server(Duration::from_millis(500));
    // More bytes than may be outstanding.
    let messages = "60000000";
    let load = ["--mode", "stream", "--connections", "2"];
    let load = options(&load, &["--max-operations", messages]);
    let result = flawless("echo", address, &options(&ENDLESS, &load));
    assert_eq!(result["connections"]["alive_at_end"], 2);
    assert!(result["streams"]["held_back"].as_u64().unwrap() > 0);
    let most = outstanding_limit(&result, 2);
    for stream in streams.iter().take(2) {
        assert!(stream.whole && stream.behind_max <= most, "{result}");
    }
}

#[test]
fn a_stream_that_is_held_back_when_the_window_ends_comes_back_whole() {
    // Nothing is sent back before the window has ended.
    let (address, streams) = lagging_server(Duration::from_millis(5500));
    let load = ["--mode", "stream", "--connections", "1", "--timeout", "30"];
    let window = ["--warm-up", "0", "--window", "5"];
    let result = result("echo", address, &options(&window, &load));
    assert_eq!(result["errors"], serde_json::json!({}));
    assert_eq!(result["void"], "nothing was answered in the window");
    assert_eq!(result["connections"]["alive_at_end"], 1);
    assert_eq!(result["streams"]["held_back"], 1);
    let stream = streams.recv().unwrap();
    assert!(stream.whole);
    let sent = result["streams"]["outstanding_bytes_max"].as_u64().unwrap() as usize;
    let most = outstanding_limit(&result, 1);
    assert!(stream.behind_max == sent && sent <= most, "{result}");
}

#[test]
fn nothing_more_is_sent_on_a_stream_after_the_window() {
    let (sender, ends) = mpsc::channel();
    let address = server(move |mut stream, _| {
        let mut buffer = vec![0; 64 * 1024];
        let end = loop {
            let echoed = stream.read(&mut buffer).and_then(|bytes| {
                stream.write_all(&buffer[..bytes])?;
                Ok(bytes)
            });
            match echoed {
                Ok(0) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
            // So slow that the client finds room to send at whatever comes back.
            thread::sleep(Duration::from_millis(1));
        };
        sender.send(end).unwrap();
        Ok(())
    });
    let load = ["--mode", "stream", "--connections", "1"];
    flawless("echo", address, &options(&BRIEFLY, &load));
    // It was closed when all had come back: otherwise it would have been reset.
    ends.recv().unwrap().unwrap();
}

#[test]
fn a_server_that_hangs_or_dawdles_is_given_up_after_one_fresh_connection() {
    for dawdles in [false, true] {
        let address = message_server(100_000, move |_, _, message| {
            if dawdles {
                return Answer::Dawdle;
            }
            message.truncate(1);
            Answer::Hang
        });
        let load = ["--size", "100000", "--timeout", "0.5", "--cold", "1000000"];
        let result = result("rtt", address, &options(&ENDLESS, &load));
        assert_eq!(result["errors"]["timeout"]["count"], 2, "{result}");
        let first = result["errors"]["timeout"]["first"].as_str().unwrap();
        assert!(first.starts_with("fresh connection 0: no whole echo came in time, after "));
    }
}

#[test]
fn an_answer_that_never_ends_is_a_timeout() {
    let result = second_fails(Answer::Hang, 250);
    assert_only_failure(
        &result,
        "timeout",
        1,
        "no whole answer to message 3 on connection 1 within 2 s; 250 of 500 bytes of its echo came",
    );
}

#[test]
fn a_server_that_never_answers_ends_the_run() {
    let address = server(|mut stream, _| {
        let mut ignored = Vec::new();
        stream.read_to_end(&mut ignored).map(|_| ())
    });
    for mode in ["framed", "stream"] {
        let load = ["--connections", "3", "--timeout", "0.3", "--mode", mode];
        let result = result("echo", address, &options(&ENDLESS, &load));
        assert_only_failure(&result, "timeout", 3, "within 0.3 s; ");
        assert_eq!(result["ended_early"], "no connection was left");
        assert_eq!(result["void"], "nothing was answered in the window");
    }
}

#[test]
fn a_fixed_delay_is_in_every_latency() {
    const DELAY: Duration = Duration::from_millis(30);
    let address = message_server(64, |_, _, _| {
        thread::sleep(DELAY);
        Answer::Sent
    });
    let load = ["--size", "64", "--warm-up", "0", "--window", "0.5"];
    let delay_ns = DELAY.as_nanos() as f64;
    // The histograms round by up to 0.1%.
    let at_least =
        |figure: &Value| assert!(figure.as_f64().unwrap() > 0.999 * delay_ns, "{figure}");

    let echo = result("echo", address, &options(&load, &["--connections", "5"]));
    assert_flawless(&echo);
    at_least(&echo["latency"]["service"]["min_ns"]);

    let rtt = result("rtt", address, &options(&load, &["--cold", "3"]));
    assert_flawless(&rtt);
    assert_eq!(rtt["connections"]["asked"], 1);
    at_least(&rtt["latency"]["service"]["min_ns"]);
    at_least(&rtt["latency"]["cold"]["min_ns"]);
    assert_eq!(rtt["latency"]["cold"]["count"], 3);
}

#[test]
fn latencies_of_about_the_windows_length_are_not_left_out() {
    const DELAY: Duration = Duration::from_millis(700);
    let address = message_server(64, |_, _, _| {
        thread::sleep(DELAY);
        Answer::Sent
    });
    // What is sent at 0 s is answered at 0.7 s, in the window from 0.3 to 1.3 s; what is sent then, at 1.4 s.
    let load = [
        "--size",
        "64",
        "--warm-up",
        "0.3",
        "--window",
        "1",
        "--connections",
        "5",
    ];
    let result = flawless("echo", address, &load);
    let service = &result["latency"]["service"];
    assert_eq!(service["count"], result["operations"], "{result}");
    let shortest_ns = service["min_ns"].as_f64().unwrap();
    assert!(shortest_ns > 0.999 * DELAY.as_nanos() as f64, "{result}");
}

#[test]
fn failures_of_fresh_connections_count_as_well() {
    let connections = AtomicUsize::new(0);
    let address = message_server(100_000, move |_, number, message| {
        if number == 0 && connections.fetch_add(1, Ordering::SeqCst) == 1 {
            message.truncate(10);
            return Answer::Close;
        }
        Answer::Sent
    });
    let load = ["--size", "100000", "--cold", "3"];
    let result = result("rtt", address, &options(&BRIEFLY, &load));
    assert_only_failure(
        &result,
        "half_answer",
        1,
        "after 10 bytes of the echo of its first message",
    );
    assert_eq!(result["latency"]["cold"]["count"], 2);
    assert!(result["void"].is_null());
}

#[test]
fn more_than_was_sent_on_a_fresh_connection_voids_the_run() {
    // It comes before the message has been sent to its end.
    let address = server(|mut stream, _| {
        let mut begin = vec![0; 64 * 1024];
        stream.read_exact(&mut begin)?;
        stream.write_all(&begin)?;
        stream.write_all(b"!")?;
        io::copy(&mut stream.try_clone()?, &mut stream).map(|_| ())
    });
    let result = result("rtt", address, &options(&ENDLESS, &["--size", "200000"]));
    let words = "message 0: byte 65536 of 200000 is 0x21";
    assert_only_failure(&result, "mismatch", 1, words);
    assert!(result["void"].is_string());
}

#[test]
fn a_wrong_byte_on_a_fresh_connection_voids_the_run() {
    let address = message_server(10, |_, _, message| {
        message[9] ^= 0x80;
        Answer::Sent
    });
    let result = result("rtt", address, &options(&ENDLESS, &["--size", "10"]));
    assert_only_failure(&result, "mismatch", 1, "message 0: byte 9 of 10 is 0x");
    assert!(result["void"].is_string());
}
