//! Servers of streams in one direction, right and wrong ones, and what the generator says of them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{assert_flawless, assert_only_failure, result, run, server, text};

const BRIEFLY: [&str; 4] = ["--warm-up", "0.1", "--window", "0.3"];
/// A window that a failure must end.
const ENDLESS: [&str; 4] = ["--warm-up", "0", "--window", "3600"];

/// Reads up to the end; returns how many bytes came.
fn count(stream: &mut TcpStream) -> io::Result<u64> {
    let (mut counted, mut buffer) = (0, vec![0; 256 * 1024]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(counted),
            bytes => counted += bytes as u64,
        }
    }
}

/// A server that answers the end of each stream with what `answer` makes of its count.
fn counting_server(answer: impl Fn(u64) -> String + Send + Sync + 'static) -> SocketAddr {
    server(move |mut stream, _| {
        let counted = count(&mut stream)?;
        stream.write_all(answer(counted).as_bytes())
    })
}

fn discard(address: SocketAddr, first: &[&str], rest: &[&str]) -> Value {
    result("discard", address, &[first, rest].concat())
}

#[test]
fn a_right_server_has_counted_all_that_was_sent() {
    let address = counting_server(|counted| format!("{counted}\n"));
    let load = ["--connections", "5"];
    let result = discard(address, &BRIEFLY, &load);
    assert_flawless(&result);
    assert!(result["latency"]["service"].is_null());
    assert_eq!(result["connections"]["alive_at_end"], 5);
    assert_eq!(result["bytes_in"], 0);
    let (messages, bytes) = (&result["operations"], &result["bytes_out"]);
    let (messages, bytes) = (messages.as_f64().unwrap(), bytes.as_f64().unwrap());
    assert!((bytes / 11.0 - messages).abs() <= 5.0, "{result}");
    // The warm-up counts here, and whatever was sent until the end.
    let counted = result["streams"]["counted_bytes"].as_f64().unwrap();
    assert!(counted >= bytes, "{result}");
    assert!(result["streams"]["writes"].as_u64().unwrap() > 0);
    assert_eq!(result["streams"]["reads"], 0);
}

#[test]
fn a_message_of_any_length_is_repeated() {
    let address = server(|mut stream, _| {
        let (mut received, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                bytes => received.extend_from_slice(&buffer[..bytes]),
            }
        }
        let right = received.iter().copied().eq(b"abcde"
            .iter()
            .copied()
            .cycle()
            .take(received.len()));
        // What is wrong is said by a wrong count.
        let counted = if right { received.len() } else { 0 };
        stream.write_all(format!("{counted}\n").as_bytes())
    });
    let load = ["--message", "abcde", "--connections", "2"];
    assert_flawless(&discard(
        address,
        &["--warm-up", "0", "--window", "0.1"],
        &load,
    ));
}

#[test]
fn a_wrong_count_voids_the_run() {
    for (wrong, words) in [
        (
            counting_server(|counted| format!("{}\n", counted - 1)),
            "were sent",
        ),
        (
            counting_server(|counted| format!("{}\n", counted + 1)),
            "were sent",
        ),
        (
            counting_server(|counted| format!("0{counted}\n")),
            "were sent",
        ),
        (
            counting_server(|counted| format!("{counted}\n!")),
            "\\n!\" bytes, and ",
        ),
        (
            counting_server(|_| "thanks\n".to_owned()),
            "it has received \"thanks\" bytes, and ",
        ),
        (
            counting_server(|_| "9".repeat(100)),
            "it has received \"999",
        ),
    ] {
        let result = discard(wrong, &BRIEFLY, &["--connections", "1"]);
        assert_only_failure(&result, "mismatch", 1, "wrong count on connection 0: ");
        let void = result["void"].as_str().unwrap();
        assert!(void.contains(words), "{void}");
    }
}

#[test]
fn a_server_that_answers_before_the_end_voids_the_run() {
    // It takes one piece, says so, and leaves the rest to the kernel's buffers.
    let address = server(|mut stream, _| {
        let bytes = stream.read(&mut [0; 4096])?;
        stream.write_all(format!("{bytes}\n").as_bytes())?;
        count(&mut stream).map(|_| ())
    });
    let result = discard(address, &ENDLESS, &["--connections", "1"]);
    let words = "5 bytes came on connection 0 before the end of its stream";
    assert_only_failure(&result, "unexpected", 1, words);
    assert_eq!(result["void"], words);
}

#[test]
fn a_server_that_does_not_count_is_named() {
    // It reads everything, and closes without a word.
    let address = server(|mut stream, _| count(&mut stream).map(|_| ()));
    let result = discard(address, &BRIEFLY, &["--connections", "2"]);
    let words = "after 0 bytes of the count of its stream";
    assert_only_failure(&result, "half_answer", 2, words);
    assert_eq!(result["connections"]["alive_at_end"], 0);

    let address = server(|mut stream, _| {
        let counted = count(&mut stream)?;
        let counted = counted.to_string();
        stream.write_all(&counted.as_bytes()[..1])
    });
    let result = discard(address, &BRIEFLY, &["--connections", "1"]);
    let words = "after 1 bytes of the count of its stream";
    assert_only_failure(&result, "half_answer", 1, words);
}

#[test]
fn a_server_that_reads_nothing_measures_nothing() {
    let address = server(|_stream, _| {
        loop {
            thread::park();
        }
    });
    let begun = Instant::now();
    let load = ["--connections", "1", "--timeout", "2"];
    let result = discard(address, &["--warm-up", "0.5", "--window", "20"], &load);
    // Not as long as a server that reads nothing would let it wait.
    assert!(begun.elapsed() < Duration::from_secs(100));
    assert!(result["errors"]["timeout"]["count"] == 1, "{result}");
    assert_eq!(result["operations"], 0);
    assert_eq!(result["void"], "nothing was answered in the window");
}

#[test]
fn what_the_server_has_not_taken_does_not_count() {
    // It stops reading for good, after a while. The rest lies in the kernel's buffers, and isn't counted as taken.
    const TAKEN: u64 = 3_000_000;
    let address = server(|mut stream, _| {
        io::copy(&mut (&mut stream).take(TAKEN), &mut io::sink())?;
        loop {
            thread::park();
        }
    });
    let load = ["--connections", "1", "--timeout", "0.5"];
    let result = discard(address, &["--warm-up", "0", "--window", "30"], &load);
    let bytes = result["bytes_out"].as_u64().unwrap();
    // The server's own kernel acknowledges what it has room for: tcp_rmem's maximum at most.
    let rmem = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    let most: u64 = rmem.split_whitespace().last().unwrap().parse().unwrap();
    assert!(bytes <= TAKEN + most, "{bytes} were counted");
    assert!(result["errors"]["timeout"]["count"] == 1, "{result}");
}

#[test]
fn a_dropped_connection_is_named() {
    let address = server(|mut stream, number| {
        if number == 1 {
            stream.read_exact(&mut vec![0; 100_000])?;
            return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
        let counted = count(&mut stream)?;
        stream.write_all(format!("{counted}\n").as_bytes())
    });
    let result = discard(address, &BRIEFLY, &["--connections", "3"]);
    assert_only_failure(&result, "half_answer", 1, "the server reset connection ");
    assert_eq!(result["connections"]["alive_at_end"], 2);
}

#[test]
fn a_slow_server_counts_after_the_window_as_well() {
    // It takes what the buffers hold at the end in its own time, and what it counts is still right.
    let address = server(|mut stream, _| {
        let (mut counted, mut buffer) = (0, vec![0; 64 * 1024]);
        loop {
            thread::sleep(Duration::from_millis(1));
            match stream.read(&mut buffer)? {
                0 => break,
                bytes => counted += bytes,
            }
        }
        stream.write_all(format!("{counted}\n").as_bytes())
    });
    assert_flawless(&discard(address, &BRIEFLY, &["--connections", "3"]));
}

#[test]
fn a_stream_has_no_pipeline() {
    let address = "127.0.0.1:9";
    let output = run("discard", address, &["--pipeline", "2"]);
    assert_eq!(output.status.code(), Some(2));
    let words = text(&output.stderr);
    assert!(
        words.contains("--pipeline is for messages, and a stream has none: leave it out"),
        "{words}"
    );
}
