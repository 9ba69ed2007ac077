//! Handlers that panic and fail.

use std::io::{self, Write};
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringloop::server::{Connection, Handler};

use crate::case::{Echo, Served, ask, is_cut_off, on_both};
use crate::common::{LONG, ReadOnce};

#[test]
fn a_panic_and_an_error_close_their_own_connection_only() {
    on_both(|case| {
        let is_secure = case.is_secure;
        let server = case.start(|| Echo);
        let mut other = server.connect();
        assert_eq!(ask(&mut other, b"before"), b"before");
        for question in [&b"panic"[..], b"fail"] {
            let mut victim = server.connect();
            victim.write_all(question).unwrap();
            assert!(is_cut_off(victim.read_once(&mut [0; 8]), is_secure));
        }
        assert_eq!(ask(&mut other, b"after"), b"after");
        let counters = server.wait_for(|counters| counters.live == 1);
        assert_eq!((counters.panics, counters.errors), (1, 1));
    });
}

#[test]
fn a_panic_where_handlers_and_futures_are_made_closes_that_connection_only() {
    on_both(|case| {
        let made = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&made);
        let is_secure = case.is_secure;
        let server = case
            .clone()
            .with(|server| server.workers(1))
            .start(move || {
                assert!(
                    counting.fetch_add(1, Ordering::Relaxed) != 0,
                    "the first has no luck"
                );
                Echo
            });
        assert!(is_cut_off(
            server.connect().read_once(&mut [0; 8]),
            is_secure
        ));
        assert_eq!(ask(&mut server.connect(), b"hello"), b"hello");
        assert_eq!(server.running.counters().panics, 1);

        let running = case
            .server
            .workers(1)
            .start_with(move |_stream, _client| {
                assert!(
                    made.fetch_add(1, Ordering::Relaxed) != 2,
                    "nor has the third"
                );
                async { Ok(()) }
            })
            .unwrap();
        let server = Served {
            running,
            is_secure: false,
        };
        for _ in 0..2 {
            assert_eq!(server.connect().read_once(&mut [0; 8]).unwrap(), 0);
        }
        assert_eq!(server.wait_for(|counters| counters.live == 0).panics, 1);
    });
}

/// Panics where it is told to.
struct Fragile {
    question: Vec<u8>,
}

/// A payload whose destructor panics.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            panic_any(Bomb(self.0 - 1));
        }
    }
}

impl Handler for Fragile {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        self.question = bytes.to_vec();
        match bytes {
            b"a bomb" | b"a bomb, and when dropped" => panic_any(Bomb(3)),
            b"when told of an error" => Err(io::Error::other("the client asked for it")),
            b"when closed" | b"when dropped" => {
                connection.close();
                Ok(())
            }
            _ => connection.write(bytes),
        }
    }

    fn error(&mut self, _: &io::Error) {
        panic!("when told of an error");
    }

    fn closed(&mut self) {
        assert_ne!(self.question, b"when closed");
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if self.question.ends_with(b"when dropped") {
            panic_any(Bomb(2));
        }
    }
}

#[test]
fn panics_are_counted_once_wherever_they_are_and_end_no_worker() {
    on_both(|case| {
        let server = case
            .with(|server| server.workers(1))
            .start(|| Fragile { question: vec![] });
        let mut other = server.connect();
        ask(&mut other, b"before");
        for (panics, question) in [
            &b"a bomb"[..],
            b"a bomb, and when dropped",
            b"when told of an error",
            b"when closed",
            b"when dropped",
        ]
        .into_iter()
        .enumerate()
        {
            let mut victim = server.connect();
            victim.write_all(question).unwrap();
            // With or without TLS's word for the end.
            let _ = victim.read_once(&mut [0; 8]);
            let counters = server.wait_for(|counters| counters.live == 1);
            assert_eq!(counters.panics, panics as u64 + 1, "{counters:?}");
            assert_eq!(ask(&mut other, b"after"), b"after");
        }
        other.close();
        // Fails with what a worker has panicked with.
        server.running.shutdown(LONG);
    });
}
