//! TLS handshakes.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringloop::server::{Connection, Handler};
use ringloop::tls::TlsAcceptor;

use crate::case::{Served, on_both};
use crate::certificates;
use crate::common::ReadOnce;

#[test]
fn handshakes_that_fail_are_counted_and_told_to_no_handler() {
    struct Loud;
    impl Handler for Loud {
        fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
            assert_eq!(
                connection.tls().unwrap().server_name().unwrap(),
                certificates::NAME
            );
            connection.write(b"hello")
        }

        fn data(&mut self, _: &mut Connection<'_>, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
    }
    on_both(|case| {
        if !case.is_secure {
            return;
        }
        let made = Arc::new(AtomicUsize::new(0));
        let start = |acceptor: TlsAcceptor| {
            let counting = Arc::clone(&made);
            let running = case.server.clone().tls(acceptor).start(move || {
                counting.fetch_add(1, Ordering::Relaxed);
                Loud
            });
            Served {
                running: running.unwrap(),
                is_secure: true,
            }
        };
        let acceptor = TlsAcceptor::new(certificates::server());
        // For the one that says nothing. The others may be slow on a busy machine.
        let hasty = start(
            acceptor
                .clone()
                .handshake_timeout(Duration::from_millis(100)),
        );
        let server = start(acceptor);
        // Says nothing.
        let mut silent = hasty.connect_plain();
        assert_eq!(silent.read_once(&mut [0; 1]).unwrap(), 0);
        // Goes at once.
        drop(server.connect_plain());
        // Speaks something else, and is answered with an alert.
        let mut other = server.connect_plain();
        other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut alert = [0; 7];
        other.read_exact(&mut alert).unwrap();
        assert_eq!(alert[..6], [21, 3, 3, 0, 2, 2], "a fatal alert");
        // Does not trust the server.
        let stream = server.connect_plain();
        certificates::connect_blocking(certificates::distrustful_client(), stream).unwrap_err();
        for (server, clients) in [(&hasty, 1), (&server, 3)] {
            let counters =
                server.wait_for(|counters| counters.accepted == clients && counters.live == 0);
            assert_eq!(counters.handshake_errors, clients);
            assert_eq!(
                (counters.errors, counters.timeouts, counters.panics),
                (0, 0, 0)
            );
        }
        assert_eq!(made.load(Ordering::Relaxed), 0);
        let mut greeting = [0; 5];
        server.connect().read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hello");
    });
}
