//! Connections that are opened, used once and closed, connections that rest, and loads of echo servers at a fixed rate.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{
    Answer, RIGHT_RESPONSE, assert_flawless, assert_only_failure, echo_server, flawless,
    http_server, is_alone, message_server, result, run, server, text,
};

const BRIEFLY: [&str; 6] = ["--warm-up", "0.1", "--window", "0.3", "--connections", "3"];
/// A window that a failure must end.
const ENDLESS: [&str; 6] = ["--warm-up", "0", "--window", "3600", "--connections", "1"];

/// How many connections from or to a port are in TIME_WAIT. Other programs may have left some with this port as theirs.
fn time_wait(address: SocketAddr) -> usize {
    let port = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[1].ends_with(&port) || fields[2].ends_with(&port))
        .filter(|fields| fields[3] == "06")
        .count()
}

// --- churn ---

#[test]
fn each_connection_of_a_churn_carries_one_message_and_leaves_no_port_behind() {
    let (connections, messages) = (Arc::default(), Arc::default());
    let (counted, answered): (Arc<AtomicUsize>, Arc<AtomicUsize>) =
        (Arc::clone(&connections), Arc::clone(&messages));
    let address = message_server(1024, move |_, number, _| {
        if number == 0 {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        answered.fetch_add(1, Ordering::Relaxed);
        Answer::Sent
    });
    let before = time_wait(address);
    let result = flawless("echo", address, &[&BRIEFLY[..], &["--churn"]].concat());
    assert_eq!(result["connections"]["alive_at_end"], 3);
    let operations = result["operations"].as_u64().unwrap() as usize;
    let seen = messages.load(Ordering::Relaxed);
    assert_eq!(connections.load(Ordering::Relaxed), seen);
    assert!(operations > 0 && operations <= seen, "{operations}, {seen}");
    assert_eq!(result["latency"]["service"]["count"], result["operations"]);
    assert!(time_wait(address) <= before);
}

#[test]
fn http_requests_of_a_churn_ask_for_the_end_of_the_connection() {
    for closes in [true, false] {
        let address = server(move |mut stream, _| {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                request.push(byte[0]);
            }
            let asked = text(&request).contains("\r\nConnection: close\r\n");
            let last = if closes { "Connection: close\r\n" } else { "" };
            let right = format!(
                "HTTP/1.1 {} OK\r\n{last}Content-Length: 13\r\n\r\nHello, World!",
                if asked { 200 } else { 400 }
            );
            stream.write_all(right.as_bytes())?;
            if !closes {
                let _ = stream.read(&mut [0]);
            }
            Ok(())
        });
        let before = time_wait(address);
        let result = flawless("http", address, &[&BRIEFLY[..], &["--churn"]].concat());
        assert_eq!(result["connections"]["alive_at_end"], 3);
        assert!(time_wait(address) <= before);
    }
}

#[test]
fn a_wrong_answer_or_more_than_one_voids_a_churn() {
    let address = message_server(64, |connection, _, message| {
        message[20] ^= u8::from(connection == 5);
        Answer::Sent
    });
    let options = [&ENDLESS[..], &["--churn", "--size", "64"]].concat();
    let wrong = result("echo", address, &options);
    assert_only_failure(&wrong, "mismatch", 1, "byte 20 of 64");
    assert_eq!(wrong["void"], wrong["errors"]["mismatch"]["first"]);

    let address = message_server(64, |connection, _, message| {
        if connection == 5 {
            message.push(b'!');
        }
        Answer::Sent
    });
    let more = result("echo", address, &options);
    assert_only_failure(
        &more,
        "unexpected",
        1,
        "1 bytes came on connection 0 after the answer to its message 5, which nobody asked for",
    );
    assert!(more["void"].is_string(), "{more}");

    let wrong = RIGHT_RESPONSE.replace("World", "Wurld");
    let address = http_server(move |_, _| (wrong.clone(), Answer::Sent));
    let wrong = result("http", address, &[&ENDLESS[..], &["--churn"]].concat());
    assert_only_failure(&wrong, "mismatch", 1, "wrong body");
}

#[test]
fn a_server_that_closes_or_resets_instead_of_answering_is_told() {
    for (what, kind) in [(Answer::Close, "closed"), (Answer::Reset, "reset")] {
        let address = message_server(64, move |connection, _, message| {
            if connection < 5 {
                return Answer::Sent;
            }
            message.clear();
            what
        });
        let options = [&ENDLESS[..], &["--churn", "--size", "64"]].concat();
        let failed = result("echo", address, &options);
        assert_only_failure(&failed, kind, 1, "without an answer to message");
        assert_eq!(failed["ended_early"], "no connection was left");
    }
}

// --- idle connections ---

#[test]
fn idle_connections_exchange_one_message_and_the_memory_is_read_in_steps() {
    if !is_alone(
        "connections::idle_connections_exchange_one_message_and_the_memory_is_read_in_steps",
    ) {
        return;
    }
    let messages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&messages);
    let address = message_server(64, move |_, _, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Answer::Sent
    });
    let own = std::process::id().to_string();
    let options = [
        "--idle",
        "--steps",
        "4",
        "--connections",
        "10",
        "--size",
        "64",
        "--warm-up",
        "0.01",
        "--window",
        "0.01",
        "--account",
        &own,
    ];
    let result = result("echo", address, &options);
    assert!(result["void"].is_null(), "{result}");
    assert_eq!(result["errors"], serde_json::json!({}));
    assert_eq!(messages.load(Ordering::Relaxed), 10);
    assert_eq!(result["connections"]["alive_at_end"], 10);
    let levels = result["levels"].as_array().unwrap();
    let connections: Vec<_> = levels.iter().map(|level| &level["connections"]).collect();
    assert_eq!(connections, [2, 5, 7, 10]);
    for level in levels {
        let (rss, pss) = (&level["rss_bytes"], &level["pss_bytes"]);
        assert!(rss.as_u64() >= pss.as_u64(), "{level}");
        assert!(pss.as_u64() > Some(0), "{level}");
    }
}

#[test]
fn a_lie_to_an_idle_connection_and_a_lost_one_are_told() {
    let options = [
        "--idle",
        "--steps",
        "2",
        "--connections",
        "2",
        "--window",
        "0.1",
    ];
    let size = ["--size", "64", "--warm-up", "0.01"];
    let address = message_server(64, |_, _, message| {
        message[7] ^= 1;
        Answer::Sent
    });
    let wrong = result("echo", address, &[&options[..], &size].concat());
    assert_eq!(wrong["void"], wrong["errors"]["mismatch"]["first"]);

    let address = message_server(64, |_, _, message| {
        message.push(b'!');
        Answer::Sent
    });
    let more = result("echo", address, &[&options[..], &size].concat());
    assert_eq!(more["void"], more["errors"]["unexpected"]["first"]);

    let address = message_server(64, |connection, _, message| {
        if connection == 0 {
            return Answer::Sent;
        }
        message.clear();
        Answer::Close
    });
    let lost = result("echo", address, &[&options[..], &size].concat());
    assert_only_failure(&lost, "closed", 1, "without an answer to message 0");
    assert_eq!(lost["connections"]["alive_at_end"], 1);
    assert_eq!(lost["levels"].as_array().unwrap().len(), 2);
}

// --- echo at a fixed rate, and other messages of streams ---

#[test]
fn echo_has_an_open_loop() {
    let options = [&BRIEFLY[..], &["--rate", "500", "--size", "64"]].concat();
    let result = flawless("echo", echo_server(), &options);
    assert_eq!(result["open_loop"]["rate_asked_per_s"], 500.0);
    assert_eq!(
        result["latency"]["corrected"]["count"],
        result["open_loop"]["due"]
    );
}

#[test]
fn a_stream_repeats_the_message_that_is_asked_for() {
    let stream = ["--mode", "stream", "--message", "0123456789abcdef"];
    let right = result("echo", echo_server(), &[&BRIEFLY[..], &stream].concat());
    assert_flawless(&right);
    for name in ["reads", "writes"] {
        assert!(right["streams"][name].as_u64() > Some(0), "{right}");
    }
    let address = server(|mut stream, _| {
        let mut bytes = [0; 16];
        loop {
            stream.read_exact(&mut bytes)?;
            bytes[3] = b'x';
            stream.write_all(&bytes)?;
        }
    });
    let wrong = result("echo", address, &[&ENDLESS[..], &stream].concat());
    assert_only_failure(&wrong, "mismatch", 1, "byte 3 of the stream is 0x78");
}

#[test]
fn options_of_messages_and_of_streams_do_not_mix() {
    let address = "127.0.0.1:9";
    for (options, words) in [
        (
            &["--mode", "stream", "--churn"][..],
            "--churn is for messages",
        ),
        (&["--mode", "stream", "--idle"], "--idle is for messages"),
        (
            &["--mode", "stream", "--rate", "5"],
            "--rate is for messages",
        ),
        (&["--churn", "--idle"], "cannot be used with"),
        (&["--churn", "--rate", "5"], "cannot be used with"),
        (&["--steps", "5"], "--idle"),
        (&["--mode", "stream", "--message", ""], "1 to 65536 bytes"),
    ] {
        let output = run("echo", address, options);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        let said = text(&output.stderr);
        assert!(said.contains(words), "{options:?}: {said}");
    }
}
