//! `run`.

use std::io::Write;
use std::process::{Output, Stdio};
use std::thread;

use crate::common::backends;
use crate::program::command;

/// Runs the example on each backend with some input, and passes what it has printed on.
fn on_each(arguments: &[&str], input: &[u8], check: impl Fn(Output)) {
    for backend in backends() {
        let mut child = command("run")
            .args(["--backend", &backend.to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // In a thread, because it prints before it has read everything. An error means that it has ended.
        let writing = thread::spawn(move || drop(stdin.write_all(&input)));
        check(child.wait_with_output().unwrap());
        writing.join().unwrap();
    }
}

#[test]
fn run_marks_what_a_command_prints_and_passes_its_input_on() {
    let script = "while read line; do echo \"got $line\"; done; echo last >&2; exit 7";
    on_each(&["sh", "-c", script], b"one\ntwo\n", |output| {
        assert_eq!(output.status.code(), Some(7));
        let said = String::from_utf8(output.stdout).unwrap();
        let (out, err): (Vec<_>, Vec<_>) = said.lines().partition(|line| line.starts_with("out: "));
        assert_eq!(out, ["out: got one", "out: got two"]);
        assert_eq!(err, ["err: last"]);
    });
    let input = b"a line of the input\n".repeat(20_000);
    on_each(&["cat"], &input, |output| {
        assert!(output.stdout == b"out: a line of the input\n".repeat(20_000));
    });
    on_each(&["printf", "no end"], b"", |output| {
        assert_eq!(output.stdout, b"out: no end");
    });
}

#[test]
fn run_ends_a_command_that_takes_too_long() {
    on_each(&["--timeout", "0.05", "sleep", "1000"], b"", |output| {
        assert_eq!(output.status.code(), Some(128 + libc::SIGTERM));
    });
    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    on_each(&["--timeout", "0.5", "sh", "-c", deaf], b"", |output| {
        assert_eq!(output.status.code(), Some(128 + libc::SIGKILL));
    });
}

#[test]
fn run_says_what_it_cannot_run() {
    on_each(&["/no/such/command"], b"", |output| {
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            said,
            "error: cannot run /no/such/command: No such file or directory (os error 2)\n"
        );
    });
}
