//! How many connections there may be, and where a server may listen.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use ringloop::server::Server;

use crate::case::{Echo, ask, on_both};
use crate::certificates;
use crate::common::{LONG, ReadOnce};

#[test]
fn further_connections_wait_until_one_ends() {
    on_both(|case| {
        let server = case.with(|server| server.max_connections(2)).start(|| Echo);
        let mut first = server.connect();
        let mut second = server.connect();
        ask(&mut first, b"1");
        ask(&mut second, b"2");
        let mut third = server.connect_plain();
        third.write_all(b"3").unwrap();
        third
            .set_read_timeout(Some(Duration::from_millis(30)))
            .unwrap();
        let kind = third.read_once(&mut [0; 1]).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert_eq!(server.running.counters().live, 2);
        drop(first);
        if server.is_secure {
            // It is no TLS: but it is looked at now.
            server.wait_for(|counters| counters.accepted == 3);
        } else {
            third.set_read_timeout(Some(LONG)).unwrap();
            let mut answer = [0; 1];
            third.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"3");
        }
    });
}

#[test]
fn a_connection_in_its_handshake_counts_as_one() {
    on_both(|case| {
        if !case.is_secure {
            return;
        }
        let server = case.with(|server| server.max_connections(1)).start(|| Echo);
        let silent = server.connect_plain();
        server.wait_for(|counters| counters.accepted == 1);
        let waiting = server.connect_plain();
        waiting
            .set_read_timeout(Some(Duration::from_millis(30)))
            .unwrap();
        let shaking = certificates::connect_blocking(certificates::client(), waiting);
        let kind = shaking.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert_eq!(server.running.counters().accepted, 1);
        drop(silent);
        // The one that has given up had its turn, perhaps.
        assert_eq!(ask(&mut server.connect(), b"hello"), b"hello");
    });
}

#[test]
fn an_address_in_use_and_a_limit_of_nothing_are_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for workers in [1, 2] {
        let server = Server::new(&address).workers(workers);
        let error = server.start(|| Echo).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
    let server = || Server::new("127.0.0.1:0");
    for of_nothing in [
        server().max_connections(0),
        server().idle_timeout(Duration::ZERO),
    ] {
        let error = of_nothing.start(|| Echo).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn an_address_is_shared_only_by_servers_that_want_to() {
    for workers in [1, 2] {
        let server = |address: &str| Server::new(address).workers(workers);
        let first = server("127.0.0.1:0").start(|| Echo).unwrap();
        let address = first.local_addr().to_string();
        let error = server(&address).start(|| Echo).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(first);
        let first = server("127.0.0.1:0").reuse_port(true).start(|| Echo);
        let first = first.unwrap();
        let address = first.local_addr().to_string();
        let second = server(&address).reuse_port(true).start(|| Echo).unwrap();
        // One of them is enough from here on.
        drop(first);
        let mut stream = std::net::TcpStream::connect(second.local_addr()).unwrap();
        stream.write_all(b"still here").unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"still here");
    }
}
