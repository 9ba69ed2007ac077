//! `proxy`.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::{self, pattern};
use crate::program::{Program, echoes, rest};

/// A server for one connection, for a proxy to connect to.
fn upstream<T: Send + 'static>(
    body: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread =
        thread::spawn(move || body(common::with_time_limits(listener.accept().unwrap().0)));
    (address, thread)
}

/// Runs a proxy on each backend for one connection, which the server behind it handles with `at_server`.
fn through_a_proxy(
    at_server: impl FnOnce(TcpStream) + Clone + Send + 'static,
    at_client: impl Fn(TcpStream),
) {
    for backend in common::backends() {
        let backend = backend.to_string();
        for workers in ["1", "2"] {
            let (address, server) = upstream(at_server.clone());
            let options = [
                "--backend",
                &backend,
                "--workers",
                workers,
                "--to",
                &address,
            ];
            let program = Program::start("proxy", &options);
            at_client(program.connect());
            server.join().unwrap();
            let said = program.end(libc::SIGINT);
            assert!(
                said.contains("1 connections passed on, of which 0 failed; 0 refused; "),
                "{said}"
            );
        }
    }
}

#[test]
fn the_proxy_passes_on_what_either_side_finishes_first() {
    // The client is done first, and gets its answer all the same.
    through_a_proxy(
        |mut stream| {
            let bytes = rest(&mut stream);
            assert!(bytes == pattern(5_000_000));
            stream.write_all(&pattern(7_000_000)).unwrap();
        },
        |mut stream| {
            stream.write_all(&pattern(5_000_000)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(rest(&mut stream) == pattern(7_000_000));
        },
    );
    // The server is.
    through_a_proxy(
        |mut stream| {
            stream.write_all(b"only this").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(rest(&mut stream) == pattern(5_000_000));
        },
        |mut stream| {
            assert_eq!(rest(&mut stream), b"only this");
            stream.write_all(&pattern(5_000_000)).unwrap();
        },
    );
    // Both talk at once.
    through_a_proxy(
        |stream| {
            let mut writer = stream.try_clone().unwrap();
            io::copy(&mut &stream, &mut writer).unwrap();
        },
        |stream| {
            for length in [1, 1000, 8_000_000] {
                echoes(&stream, &pattern(length));
            }
        },
    );
}

#[test]
fn the_proxy_counts_and_closes_what_it_cannot_pass_on() {
    // A port that nobody listens on.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap().to_string();
    drop(unused);
    let program = Program::start("proxy", &["--to", &address]);
    assert_eq!(rest(&mut program.connect()), b"");
    let said = program.end(libc::SIGTERM);
    let counts =
        "0 connections passed on, of which 0 failed; 1 refused; 0 bytes there, 0 bytes back\n";
    assert!(said.ends_with(counts), "{said}");

    // A listener whose queue is full lets the kernel try for minutes.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&full).listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let _waiting: Vec<_> = (0..8)
        .map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok())
        .collect();
    let options = ["--to", &address.to_string(), "--connect-timeout", "1"];
    let program = Program::start("proxy", &options);
    assert_eq!(rest(&mut program.connect()), b"");
    let said = program.end(libc::SIGTERM);
    assert!(said.ends_with(counts), "{said}");

    // The server resets the connection.
    let (address, server) = upstream(|stream| {
        let mut first = [0; 5];
        (&stream).read_exact(&mut first).unwrap();
        // Closing with bytes unread resets.
        assert_eq!(stream.peek(&mut first).unwrap(), 5);
    });
    let program = Program::start("proxy", &["--to", &address]);
    let mut stream = program.connect();
    stream.write_all(b"helloagain").unwrap();
    server.join().unwrap();
    let mut left = Vec::new();
    let _ = stream.read_to_end(&mut left);
    assert_eq!(left, b"");
    let said = program.end(libc::SIGTERM);
    let counts =
        "1 connections passed on, of which 1 failed; 0 refused; 10 bytes there, 0 bytes back\n";
    assert!(said.ends_with(counts), "{said}");
}
