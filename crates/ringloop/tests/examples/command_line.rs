//! The command lines of all examples.

use std::net::TcpListener;
use std::process::Output;

use crate::program::command;

/// Runs an example that must fail.
fn fails(example: &str, arguments: &[&str]) -> Output {
    let output = command(example).args(arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    output
}

#[test]
fn an_error_is_one_line_and_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let in_use =
        format!("error: cannot serve on 127.0.0.1:{port}: Address already in use (os error 98)\n");
    let to = &["--to", "127.0.0.1:1"][..];
    for (example, more) in [
        ("echo", &[][..]),
        ("http_raw", &[]),
        ("http_hello", &[]),
        ("axum_hello", &[]),
        ("chat", &[]),
        ("static_files", &[]),
        ("file_server", &[]),
        ("proxy", to),
        ("http_proxy", &["--to", "http://127.0.0.1:1"]),
        ("tls_echo", &[]),
    ] {
        for workers in ["1", "2"] {
            let mut arguments = vec!["--port", &port, "--workers", workers];
            arguments.extend(more);
            let output = fails(example, &arguments);
            assert_eq!(String::from_utf8_lossy(&output.stderr), in_use);
            assert_eq!(output.status.code(), Some(1));
        }
    }
    for (example, arguments, error) in [
        (
            "static_files",
            &["/nonexistent"][..],
            "error: cannot serve /nonexistent: No such file or directory (os error 2)\n",
        ),
        (
            "file_server",
            &["/etc/passwd"],
            "error: cannot serve /etc/passwd: Not a directory (os error 20)\n",
        ),
        (
            "proxy",
            &["--to", "nowhere"],
            "error: --to nowhere: invalid socket address\n",
        ),
        (
            "http_proxy",
            &["--to", "nowhere"],
            "error: --to nowhere: use http://HOST:PORT\n",
        ),
        (
            "http_proxy",
            &["--to", "https://127.0.0.1"],
            "error: --to https://127.0.0.1/: add --trust\n",
        ),
        (
            "echo",
            &["--port", "0", "--workers", "0"],
            "error: cannot serve on 127.0.0.1:0: a pool needs at least one worker\n",
        ),
        (
            "echo",
            &["--host", "300.0.0.1:80"],
            "error: cannot serve on [300.0.0.1:80]:7000: ",
        ),
    ] {
        let output = fails(example, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(error), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
    let output = fails("echo", &["--backend", "kqueue"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("unknown backend \"kqueue\""), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn each_program_explains_itself() {
    for (example, about) in [
        ("echo", "Sends back what it receives"),
        ("chat", "A chat room"),
        ("proxy", "Passes TCP connections on"),
        ("http_proxy", "Passes HTTPS requests on"),
        ("http_hello", "Hello, World!"),
        ("http_raw", "every HTTP request"),
        ("axum_hello", "Says hello"),
        ("tls_echo", "over TLS"),
        ("static_files", "the files of a directory"),
        ("file_server", "the files of a directory"),
    ] {
        let output = command(example).arg("--help").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{example}");
        assert!(said.contains(about), "{example}: {said}");
        for option in ["--port", "--workers", "--backend"] {
            assert!(said.contains(option), "{example}: {said}");
        }
    }
}
