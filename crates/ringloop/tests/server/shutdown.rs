//! How a server ends.

use std::future::Future;
use std::io::{self, Read};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::server::{Client, Connection, Handler};

use crate::case::{Echo, Served, Stream, ask, is_cut_off, on_both};
use crate::common::{LONG, ReadOnce};

/// Continues while the server drains, until it is told to end.
struct Busy {
    is_draining: bool,
}

impl Handler for Busy {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        if bytes == b"enough" && self.is_draining {
            connection.close();
        }
        connection.write(bytes)
    }

    fn draining(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        self.is_draining = true;
        connection.write(b"hurry")
    }
}

fn wait_until_refused(address: std::net::SocketAddr) {
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < LONG, "it still listens");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_shutdown_refuses_new_connections_and_closes_those_that_rest() {
    on_both(|case| {
        let server = case.start(|| Echo);
        let address = server.running.local_addr();
        let mut streams: Vec<Stream> = (0..20).map(|_| server.connect()).collect();
        for stream in &mut streams {
            ask(stream, b"hello");
        }
        server.running.shutdown(LONG);
        TcpStream::connect(address).unwrap_err();
        for stream in &mut streams {
            // The end is told.
            assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
        }
    });
}

#[test]
fn a_shutdown_lets_a_handler_finish() {
    on_both(|case| {
        let server = case.start(|| Busy { is_draining: false });
        let address = server.running.local_addr();
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        let closing = thread::spawn(move || server.running.shutdown(LONG));
        wait_until_refused(address);
        let mut told = [0; 5];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"hurry");
        assert_eq!(ask(&mut stream, b"still served"), b"still served");
        assert_eq!(ask(&mut stream, b"enough"), b"enough");
        assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
        closing.join().unwrap();
    });
}

#[test]
fn a_shutdown_does_not_wait_for_handshakes() {
    on_both(|case| {
        if !case.is_secure {
            return;
        }
        let server = case.start(|| Busy { is_draining: false });
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        let mut silent = server.connect_plain();
        server.wait_for(|counters| counters.accepted == 2);
        let closing = thread::spawn(move || server.running.shutdown(LONG));
        assert_eq!(silent.read_once(&mut [0; 1]).unwrap(), 0);
        // While others have their time.
        let mut told = [0; 5];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(ask(&mut stream, b"enough"), b"enough");
        closing.join().unwrap();
    });
}

#[test]
fn a_shutdown_cuts_off_who_is_not_done_in_time() {
    on_both(|case| {
        let is_secure = case.is_secure;
        let server = case.start(|| Busy { is_draining: false });
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        server.running.shutdown(Duration::from_secs(1));
        let mut told = [0; 5];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"hurry");
        assert!(is_cut_off(stream.read_once(&mut [0; 1]), is_secure));
    });
}

#[test]
fn functions_hear_of_a_shutdown() {
    on_both(|case| {
        async fn serve(mut stream: ringloop::net::TcpStream, client: Client) -> io::Result<()> {
            assert!(!client.is_draining());
            let mut draining = std::pin::pin!(client.draining());
            // Asked by another task first, as happens where a future is passed on.
            let waker = std::task::Waker::noop();
            let mut context = std::task::Context::from_waker(waker);
            assert!(draining.as_mut().poll(&mut context).is_pending());
            stream.write_all(&b"ready"[..]).await.0?;
            draining.await;
            assert!(client.is_draining());
            client.draining().await;
            stream.write_all(&b"bye"[..]).await.0
        }
        let running = case.server.start_with(serve).unwrap();
        let server = Served {
            running,
            is_secure: false,
        };
        let mut streams: Vec<Stream> = (0..5).map(|_| server.connect()).collect();
        for stream in &mut streams {
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        server.running.shutdown(LONG);
        for stream in &mut streams {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"bye");
        }
    });
}
