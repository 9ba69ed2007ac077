//! Writing to a connection from outside of its handler.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::server::{Connection, ConnectionHandle, Handler};

use crate::case::{Case, Served, Stream, ask, on_both};
use crate::common::{LONG, ReadOnce};

/// Passes its handle on, and echoes.
struct Open(mpsc::Sender<ConnectionHandle>);

impl Handler for Open {
    fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        self.0.send(connection.handle()).unwrap();
        connection.write(b"welcome")
    }

    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

fn start(case: Case) -> (Served, Stream, ConnectionHandle) {
    let (sender, handles) = mpsc::channel();
    let server = case.start(move || Open(sender.clone()));
    let mut stream = server.connect();
    stream.read_exact(&mut [0; 7]).unwrap();
    (server, stream, handles.recv_timeout(LONG).unwrap())
}

#[test]
fn what_others_write_arrives_in_order_and_beside_what_the_handler_writes() {
    on_both(|case| {
        let (_server, mut stream, handle) = start(case);
        assert_eq!(ask(&mut stream, b"hello"), b"hello");
        const WRITERS: u8 = 4;
        const WRITES: u16 = 500;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let handle = handle.clone();
                thread::spawn(move || {
                    for number in 0..WRITES {
                        let [high, low] = number.to_be_bytes();
                        handle.write(vec![writer, high, low]).unwrap();
                    }
                })
            })
            .collect();
        let mut next = [0_u16; WRITERS as usize];
        for _ in 0..usize::from(WRITERS) * usize::from(WRITES) {
            let mut message = [0; 3];
            stream.read_exact(&mut message).unwrap();
            let [writer, high, low] = message;
            let next = &mut next[usize::from(writer)];
            assert_eq!(u16::from_be_bytes([high, low]), *next);
            *next += 1;
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(ask(&mut stream, b"still here"), b"still here");
        assert!(!handle.is_closed());
    });
}

#[test]
fn a_close_from_outside_comes_after_what_was_written() {
    on_both(|case| {
        let (_server, mut stream, handle) = start(case);
        handle.write("first ").unwrap();
        handle.write(&b"last"[..]).unwrap();
        handle.close();
        let error = handle.write("too late").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"first last");
        drop(stream);
        let start = Instant::now();
        while !handle.is_closed() {
            assert!(start.elapsed() < LONG, "it never ends");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn who_writes_to_a_connection_that_is_gone_is_told() {
    on_both(|case| {
        let (server, stream, handle) = start(case);
        drop(stream);
        server.wait_for(|counters| counters.live == 0);
        assert!(handle.is_closed());
        let error = handle.write("hello?").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        handle.close();
        // The server may be gone as well.
        drop(server);
        handle.write("hello?").unwrap_err();
    });
}

#[test]
fn who_writes_more_than_the_peer_reads_is_told_and_nothing_is_lost() {
    on_both(|case| {
        let (_server, mut stream, handle) = start(case);
        // More than all buffers of the kernel's together.
        let piece = vec![7_u8; 256 * 1024];
        let mut accepted = 0;
        let start = Instant::now();
        let error = loop {
            match handle.write(piece.clone()) {
                Ok(()) => accepted += piece.len(),
                Err(error) => break error,
            }
            assert!(start.elapsed() < LONG, "it takes all");
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let mut received = vec![0; accepted];
        stream.read_exact(&mut received).unwrap();
        assert!(received.iter().all(|byte| *byte == 7));
        // There is room again.
        handle.write("end").unwrap();
        let mut end = [0; 3];
        stream.read_exact(&mut end).unwrap();
        assert_eq!(&end, b"end");
        stream.flush().unwrap();
    });
}

#[test]
fn a_handle_does_not_keep_a_draining_server() {
    on_both(|case| {
        let (server, mut stream, handle) = start(case);
        server.running.shutdown(LONG);
        assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
        assert!(handle.is_closed());
    });
}
