//! Servers on Unix stream sockets.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process, thread};

use crate::common::{RIGHT_RESPONSE, assert_only_failure, echo, flawless, result, run, text};

const BRIEFLY: [&str; 4] = ["--warm-up", "0.1", "--window", "0.3"];

/// The path of a socket, which is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringlab-load-test-{}-{number}", process::id());
        Self(env::temp_dir().join(name))
    }

    /// As `common::server`.
    fn serve(serve: impl Fn(UnixStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let place = Self::new();
        let listener = UnixListener::bind(&place.0).unwrap();
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
                thread::spawn(move || serve(stream));
            }
        });
        place
    }

    fn address(&self) -> String {
        format!("unix:{}", self.0.display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_right_server_has_no_failures_whatever_the_load() {
    let place = Place::serve(|stream| echo(stream, |_| ()));
    let loads: [&[&str]; 6] = [
        &["--size", "1", "--connections", "1"],
        &["--size", "1024", "--connections", "50"],
        &["--size", "500000", "--connections", "3", "--pipeline", "2"],
        &["--connections", "5", "--rate", "200"],
        &["--connections", "5", "--churn"],
        &["--connections", "2", "--mode", "stream"],
    ];
    for load in loads {
        let result = flawless("echo", place.address(), &[&BRIEFLY, load].concat());
        assert_eq!(result["options"]["address"], place.address());
    }
    let rests = ["--idle", "--connections", "4", "--window", "0.1"];
    let result = result("echo", place.address(), &rests);
    assert_eq!(result["connections"]["alive_at_end"], 4, "{result}");
    flawless(
        "rtt",
        place.address(),
        &[&BRIEFLY[..], &["--cold", "3"]].concat(),
    );
}

#[test]
fn a_wrong_byte_voids_the_run() {
    let place = Place::serve(|stream| echo(stream, |bytes| bytes[100] ^= 1));
    let load = ["--connections", "1", "--warm-up", "0", "--window", "3600"];
    let result = result("echo", place.address(), &load);
    assert_only_failure(&result, "mismatch", 1, "message 0: byte 100 of 1024 is 0x");
    assert_eq!(result["ended_early"], "void");
}

#[test]
fn http_servers_are_probed_and_loaded_as_localhost() {
    let place = Place::serve(|mut stream| {
        let mut buffer = [0; 4096];
        loop {
            let bytes = stream.read(&mut buffer)?;
            if bytes == 0 {
                return Ok(());
            }
            let request = String::from_utf8_lossy(&buffer[..bytes]);
            let right = request.contains("\r\nHost: localhost\r\n");
            let answer = if right { RIGHT_RESPONSE } else { "who?" };
            stream.write_all(answer.as_bytes())?;
        }
    });
    let load = [&BRIEFLY[..], &["--connections", "3"]].concat();
    flawless("http", place.address(), &load);
    let probed = run("http", place.address(), &["--probe"]);
    assert!(probed.status.success(), "{}", text(&probed.stderr));
}

#[test]
fn a_path_without_a_server_is_explained() {
    let place = Place::new();
    let missing = run("echo", place.address(), &["--connections", "2"]);
    assert_eq!(missing.status.code(), Some(1));
    let stderr = text(&missing.stderr);
    let begin = format!("connection 0 to {} failed: ", place.address());
    assert!(stderr.contains(&begin), "{stderr}");
    assert!(
        stderr.contains("is the server listening there?"),
        "{stderr}"
    );
}

#[test]
fn a_server_that_does_not_accept_is_explained() {
    let place = Place::new();
    let listener =
        socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    let address = socket2::SockAddr::unix(&place.0).unwrap();
    listener.bind(&address).unwrap();
    listener.listen(1).unwrap();
    let load = [
        "--connections",
        "10",
        "--warm-up",
        "0",
        "--window",
        "0.1",
        "--timeout",
        "1",
    ];
    let result = result("echo", place.address(), &load);
    let first = result["errors"]["connect"]["first"].as_str().unwrap();
    assert!(first.contains("its backlog is full"), "{result}");
}
