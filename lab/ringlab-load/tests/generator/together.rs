//! Generators that begin when their stdin says so, and the cost of a server that others load.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use serde_json::Value;

use crate::common::{Answer, PROGRAM, assert_flawless, echo_server, message_server, result};

const BRIEFLY: [&str; 4] = ["--warm-up", "0", "--window", "0.2"];
/// An instant that has passed on every machine: the load begins at once, and late.
const PAST: &str = "1\n";

/// The generator with a stdin, and its events as they come.
struct Generator {
    child: Child,
    stdin: Option<ChildStdin>,
    events: mpsc::Receiver<Value>,
}

impl Generator {
    fn start(words: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            for line in lines {
                let _ = sender.send(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        Self {
            child,
            stdin,
            events,
        }
    }

    /// The next event that isn't about progress.
    fn event(&self, name: &str) -> Value {
        loop {
            let event = self.events.recv().unwrap();
            if event["event"] != "progress" {
                assert_eq!(event["event"], name, "{event}");
                return event;
            }
        }
    }

    fn say(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn nothing_is_sent_before_stdin_says_so() {
    let messages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&messages);
    let address = message_server(64, move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Answer::Sent
    });
    let address = address.to_string();
    let words = [
        "echo",
        "--address",
        &address,
        "--size",
        "64",
        "--connections",
        "6",
        "--threads",
        "2",
        "--start-on-stdin",
    ];
    let mut generator = Generator::start(&[&words[..], &BRIEFLY].concat());
    assert_eq!(generator.event("connected")["connections"], 6);
    assert_eq!(messages.load(Ordering::SeqCst), 0);
    generator.say(PAST);
    generator.event("window_start");
    generator.event("window_end");
    let result = generator.event("result");
    assert_flawless(&result);
    assert!(result["start_late_ns"].as_u64().unwrap() > 0, "{result}");
}

#[test]
fn a_load_that_nobody_starts_ends_without_figures() {
    for said in ["", "soon\n", "0\n"] {
        let address = echo_server().to_string();
        let words = ["echo", "--address", &address, "--start-on-stdin"];
        let mut generator = Generator::start(&[&words[..], &BRIEFLY].concat());
        generator.event("connected");
        generator.say(said);
        generator.stdin = None;
        let result = generator.event("result");
        assert_eq!(result["operations"], 0);
        assert_eq!(
            result["ended_early"], "stdin ended before it said when to start",
            "{result}"
        );
        assert!(result["void"].is_string(), "{result}");
    }
}

#[test]
fn a_load_of_its_own_has_no_start() {
    assert!(result("echo", echo_server(), &BRIEFLY)["start_late_ns"].is_null());
}

#[test]
fn the_cost_of_a_server_is_counted_without_a_load() {
    let mut busy = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    let pid = busy.id().to_string();
    let words = ["account", "--account", &pid];
    let mut generator =
        Generator::start(&[&words[..], &["--warm-up", "0.1", "--window", "0.5"]].concat());
    generator.event("accounting");
    generator.say(PAST);
    generator.event("window_start");
    generator.event("window_end");
    let result = generator.event("result");
    busy.kill().unwrap();
    busy.wait().unwrap();
    let server = &result["server"];
    assert!(server["error"].is_null(), "{result}");
    assert!(server["cpu_ns"].as_u64().unwrap() > 0, "{result}");
    assert!(server["rss_rest_bytes"].as_u64().unwrap() > 0, "{result}");
    assert!(result["window_s"].as_f64().unwrap() >= 0.5, "{result}");
    assert!(result["start_late_ns"].as_u64().unwrap() > 0, "{result}");
}

#[test]
fn a_cost_that_nobody_waits_for_is_an_error() {
    let pid = std::process::id().to_string();
    let mut generator = Generator::start(&["account", "--account", &pid]);
    generator.event("accounting");
    generator.stdin = None;
    assert_eq!(generator.child.wait().unwrap().code(), Some(1));
}
