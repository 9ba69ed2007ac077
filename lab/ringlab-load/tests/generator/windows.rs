//! Loads that rest until they are asked for a window, so that several servers can be measured in turn.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use serde_json::Value;

use crate::common::{
    Answer, PROGRAM, RIGHT_RESPONSE, assert_flawless, echo, http_server, is_alone, message_server,
    server, text,
};

const ONE: &str = "\n";
const BRIEFLY: [&str; 5] = ["--windows-on-stdin", "--warm-up", "0.05", "--window", "0.1"];

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

    /// The next event, which must have this name.
    fn event(&self, name: &str) -> Value {
        let event = self.events.recv().unwrap();
        assert_eq!(event["event"], name, "{event}");
        event
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

fn start(workload: &str, address: &str, options: &[&str]) -> Generator {
    let first = [workload, "--address", address, "--timeout", "60"];
    Generator::start(&[&first[..], &BRIEFLY, options].concat())
}

#[test]
fn nothing_is_sent_between_windows_and_everything_in_them_counts() {
    let messages = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&messages);
    let address = message_server(64, move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Answer::Sent
    });
    let load = ["--size", "64", "--connections", "6"];
    let mut generator = start("echo", &address.to_string(), &load);
    assert_eq!(generator.event("connected")["connections"], 6);
    generator.event("resting");
    let mut before = messages.load(Ordering::SeqCst);
    assert!(before > 0, "the warm-up");
    let (mut operations, mut seconds) = (0, 0.0);
    for _ in 0..3 {
        generator.say(ONE);
        generator.event("window_start");
        let window = generator.event("window_end");
        let now = messages.load(Ordering::SeqCst);
        assert_eq!(window["operations"], now - before, "{window}");
        assert!(window["seconds"].as_f64().unwrap() >= 0.1, "{window}");
        assert!(window["cpu_ns"].is_null(), "{window}");
        operations += now - before;
        seconds += window["seconds"].as_f64().unwrap();
        before = now;
    }
    generator.stdin = None;
    let result = generator.event("result");
    assert_flawless(&result);
    assert_eq!(messages.load(Ordering::SeqCst), before);
    assert_eq!(result["operations"], operations, "{result}");
    assert_eq!(
        result["latency"]["service"]["count"], operations,
        "{result}"
    );
    assert_eq!(result["windows"].as_array().unwrap().len(), 3, "{result}");
    assert_eq!(result["bytes_in"], 64 * operations, "{result}");
    assert_eq!(result["connections"]["alive_at_end"], 6, "{result}");
    let window_s = result["window_s"].as_f64().unwrap();
    assert!((window_s - seconds).abs() < 1e-6, "{result}");
    let in_flight = result["littles_law"]["expected"].as_f64().unwrap();
    assert!(in_flight > 0.0 && in_flight < 6.01, "{result}");
    assert!(result["rest_s"].as_f64().unwrap() > 0.0, "{result}");
}

#[test]
fn windows_that_were_asked_for_at_once_are_measured_one_after_the_other() {
    let address = http_server(|_, _| (RIGHT_RESPONSE.to_owned(), Answer::Sent)).to_string();
    let mut generator = start("http", &address, &["--connections", "3"]);
    generator.say("\n\n\n\n");
    generator.stdin = None;
    generator.event("connected");
    generator.event("resting");
    for _ in 0..4 {
        generator.event("window_start");
        generator.event("window_end");
    }
    assert_flawless(&generator.event("result"));
}

#[test]
fn the_cost_of_a_server_is_that_of_its_windows() {
    if !is_alone("windows::the_cost_of_a_server_is_that_of_its_windows") {
        return;
    }
    // It also works while it has nothing to answer.
    let work = || {
        let mut numbers: Vec<u64> = (0..1_000_000).rev().collect();
        numbers.sort_unstable_by_key(|number| number % 1000);
        assert_ne!(numbers[0], numbers[1]);
    };
    let address = server(|stream, _| echo(stream, |_| ())).to_string();
    let pid = std::process::id().to_string();
    let mut generator = start("echo", &address, &["--connections", "2", "--account", &pid]);
    generator.event("connected");
    generator.event("resting");
    let mut cpu_ns = 0;
    for _ in 0..3 {
        generator.say(ONE);
        generator.event("window_start");
        cpu_ns += generator.event("window_end")["cpu_ns"].as_u64().unwrap();
        std::thread::spawn(work).join().unwrap();
    }
    generator.stdin = None;
    let result = generator.event("result");
    assert_flawless(&result);
    assert!(result["server"]["error"].is_null(), "{result}");
    assert_eq!(result["server"]["cpu_ns"], cpu_ns, "{result}");
    assert!(cpu_ns > 0, "{result}");
    assert!(
        result["server"]["rest_cpu_ns"].as_u64().unwrap() > 0,
        "{result}"
    );
}

#[test]
fn a_load_that_is_asked_for_no_window_has_no_figures() {
    let address = message_server(1024, |_, _, _| Answer::Sent).to_string();
    let mut generator = start("echo", &address, &[]);
    generator.event("connected");
    generator.event("resting");
    generator.stdin = None;
    let result = generator.event("result");
    assert_eq!(result["operations"], 0);
    assert_eq!(result["windows"], serde_json::json!([]));
    assert_eq!(
        result["void"], "the run ended before the window was opened",
        "{result}"
    );
}

#[test]
fn a_wrong_byte_in_any_window_voids_all() {
    let broken = Arc::new(AtomicU64::new(0));
    let breaks = Arc::clone(&broken);
    let address = message_server(64, move |_, _, message| {
        if breaks.load(Ordering::SeqCst) > 0 {
            message[40] ^= 1;
        }
        Answer::Sent
    });
    let mut generator = start("echo", &address.to_string(), &["--size", "64"]);
    generator.event("connected");
    generator.event("resting");
    generator.say(ONE);
    generator.event("window_start");
    generator.event("window_end");
    broken.store(1, Ordering::SeqCst);
    generator.say(ONE);
    generator.event("window_start");
    generator.event("window_end");
    let result = generator.event("result");
    assert!(result["void"].is_string(), "{result}");
    assert_eq!(result["ended_early"], "void", "{result}");
}

#[test]
fn a_server_that_leaves_between_windows_ends_the_load() {
    let (leave, left) = mpsc::channel::<()>();
    let left = std::sync::Mutex::new(Some(left));
    let address = server(move |stream, _| {
        let closing = stream.try_clone()?;
        let left = left.lock().unwrap().take();
        std::thread::spawn(move || {
            if left.is_some_and(|left| left.recv().is_ok()) {
                let _ = closing.shutdown(std::net::Shutdown::Both);
            }
        });
        echo(stream, |_| ())
    });
    let mut generator = start("echo", &address.to_string(), &["--connections", "1"]);
    generator.event("connected");
    generator.event("resting");
    generator.say(ONE);
    generator.event("window_start");
    generator.event("window_end");
    leave.send(()).unwrap();
    let result = generator.event("result");
    assert_eq!(result["ended_early"], "no connection was left", "{result}");
    assert_eq!(result["errors"]["closed"]["count"], 1, "{result}");
}

#[test]
fn only_closed_loops_on_connections_that_stay_have_windows() {
    for (workload, options) in [
        ("echo", &["--mode", "stream"][..]),
        ("echo", &["--rate", "100"]),
        ("echo", &["--churn"]),
        ("echo", &["--max-operations", "5"]),
        ("http", &["--idle"]),
        ("http", &["--rate", "100"]),
        ("discard", &[]),
    ] {
        let output = Command::new(PROGRAM)
            .args([workload, "--address", "127.0.0.1:1", "--windows-on-stdin"])
            .args(options)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{workload} {options:?}");
        let words = text(&output.stderr);
        assert!(words.contains("--windows-on-stdin"), "{words}");
    }
}
