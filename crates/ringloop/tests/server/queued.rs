//! A server that ends serves the connections that the kernel has accepted for it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::server::{Running, Server};

use crate::case::{Case, Echo, Served, Stream, ask, on_both, try_ask};
use crate::certificates;
use crate::common::{self, LONG, ReadOnce};

/// Keeps a worker from accepting until the result is dropped.
pub(crate) fn block(running: &Running, worker: usize) -> mpsc::Sender<()> {
    let (go, gone) = mpsc::channel::<()>();
    let (begin, has_begun) = mpsc::channel();
    drop(running.pool().spawn_on(worker, move || async move {
        begin.send(()).unwrap();
        gone.recv().unwrap_err();
    }));
    has_begun.recv_timeout(LONG).unwrap();
    go
}

/// Shuts a server down while connections wait in the kernel's queue. Returns when it has begun.
pub(crate) fn shut_down(
    running: Running,
    blocked: Vec<mpsc::Sender<()>>,
) -> thread::JoinHandle<()> {
    let closing = thread::spawn(move || running.shutdown(LONG));
    // Time for it to tell the workers. Should it take longer, they accept the connections before.
    thread::sleep(Duration::from_millis(30));
    drop(blocked);
    closing
}

fn ask_hello(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
}

fn is_answered(stream: &mut TcpStream) {
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).expect("it was dropped");
    assert_eq!(&answer, b"hello");
    // Then it ends in order.
    assert_eq!(stream.read_once(&mut answer).unwrap(), 0);
}

fn plain(case: Case) -> Option<Server> {
    (!case.is_secure).then_some(case.server)
}

#[test]
fn connections_that_wait_for_the_server_are_served_before_it_ends() {
    on_both(|case| {
        let Some(server) = plain(case) else { return };
        let running = server.workers(1).start(|| Echo).unwrap();
        let address = running.local_addr();
        let blocked = block(&running, 0);
        let mut clients: Vec<_> = (0..20).map(|_| common::connect(address)).collect();
        clients.iter_mut().for_each(ask_hello);
        shut_down(running, vec![blocked]).join().unwrap();
        clients.iter_mut().for_each(is_answered);
        TcpStream::connect(address).expect_err("it has ended");
    });
}

#[test]
fn a_successor_on_the_same_port_makes_no_difference() {
    on_both(|case| {
        let Some(server) = plain(case) else { return };
        let server = server.reuse_port(true);
        let old = server.clone().start(|| Echo).unwrap();
        let address = old.local_addr();
        let blocked = vec![block(&old, 0), block(&old, 1)];
        let mut before: Vec<_> = (0..20).map(|_| common::connect(address)).collect();
        let new = Server::new(address.to_string())
            .workers(2)
            .reuse_port(true)
            .start(|| Echo)
            .unwrap();
        let mut beside: Vec<_> = (0..20).map(|_| common::connect(address)).collect();
        before.iter_mut().chain(&mut beside).for_each(ask_hello);
        let closing = shut_down(old, blocked);
        // While the old one ends, nobody is refused or reset.
        let connect = |_| {
            let mut client = common::connect(address);
            ask_hello(&mut client);
            client
        };
        let mut meanwhile: Vec<_> = (0..20).map(connect).collect();
        closing.join().unwrap();
        let mut after: Vec<_> = (0..20).map(connect).collect();
        for client in before
            .iter_mut()
            .chain(&mut beside)
            .chain(&mut meanwhile)
            .chain(&mut after)
        {
            let mut answer = [0; 5];
            client.read_exact(&mut answer).expect("it was dropped");
            assert_eq!(&answer, b"hello");
        }
        assert!(new.counters().accepted >= 20);
        new.shutdown(LONG);
    });
}

#[test]
fn connections_beyond_the_limit_are_served_when_places_become_free() {
    on_both(|case| {
        let Some(server) = plain(case) else { return };
        let running = server.workers(1).max_connections(1).start(|| Echo).unwrap();
        let address = running.local_addr();
        let mut first = Stream::Plain(common::connect(address));
        ask(&mut first, b"hello");
        // One is accepted and held back, the others wait in the kernel.
        let mut others: Vec<_> = (0..4).map(|_| common::connect(address)).collect();
        others.iter_mut().for_each(ask_hello);
        running.shutdown(LONG);
        assert_eq!(first.read_once(&mut [0; 1]).unwrap(), 0);
        others.iter_mut().for_each(is_answered);
    });
}

/// A client has a second. On a machine that is busy it may need more than this to ask, and is late then.
const IN_TIME: Duration = Duration::from_millis(500);

/// The kernel has accepted it, and what its client asks is on the way.
#[test]
fn a_new_connection_may_ask_its_first_question_while_the_server_drains() {
    on_both(|case| {
        let is_secure = case.is_secure;
        let server = case.with(|server| server.workers(1)).start(|| Echo);
        let blocked = block(&server.running, 0);
        let stream = server.connect_plain();
        let Served { running, .. } = server;
        let config = certificates::client();
        let closing = shut_down(running, vec![blocked]);
        let begun = Instant::now();
        let mut stream = if is_secure {
            let stream = certificates::connect_blocking(config, stream);
            if stream.is_err() && begun.elapsed() > IN_TIME {
                return;
            }
            Stream::Tls(Box::new(stream.expect("handshakes in progress end first")))
        } else {
            // Time for the server to accept it, and to see that it is silent.
            thread::sleep(Duration::from_millis(50));
            Stream::Plain(stream)
        };
        let asked = Instant::now();
        match try_ask(&mut stream, b"hello") {
            Err(_) if asked - begun > IN_TIME => return,
            answer => assert_eq!(answer.unwrap(), b"hello"),
        }
        assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
        closing.join().unwrap();
    });
}

#[test]
fn what_waits_when_the_time_is_over_is_cut_off() {
    on_both(|case| {
        let Some(server) = plain(case) else { return };
        let running = server
            .workers(1)
            .max_connections(1)
            .start_with(|mut stream, _client| async move {
                stream.write_all(&b"x"[..]).await.0?;
                std::future::pending().await
            })
            .unwrap();
        let mut first = common::connect(running.local_addr());
        first.read_exact(&mut [0]).unwrap();
        let mut second = common::connect(running.local_addr());
        running.shutdown(Duration::from_millis(50));
        let is_cut_off = match second.read_once(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        };
        assert!(is_cut_off);
    });
}
