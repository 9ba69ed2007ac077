//! The sockets that a server listens on.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::{self, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::thread;

use ringloop::Pool;
use ringloop::server::{Connection, Handler, Server};
use socket2::{Domain, Socket, Type};

use crate::case::{Echo, Stream, ask, on_both};
use crate::certificates;
use crate::common::{self, LONG, ReadOnce, backends, pool_config};

fn asked(address: std::net::SocketAddr) -> Vec<u8> {
    ask(&mut Stream::Plain(common::connect(address)), b"hello")
}

#[test]
fn a_server_listens_on_all_of_its_addresses() {
    on_both(|case| {
        let server = case.with(|server| server.and("127.0.0.2:0")).start(|| Echo);
        let addresses = server.running.local_addrs().to_vec();
        assert_eq!(addresses.len(), 2);
        assert_eq!(addresses[0], server.running.local_addr());
        assert_ne!(addresses[0].ip(), addresses[1].ip());
        for address in &addresses {
            let stream = common::connect(*address);
            let mut stream = if server.is_secure {
                let stream = certificates::connect_blocking(certificates::client(), stream);
                Stream::Tls(Box::new(stream.unwrap()))
            } else {
                Stream::Plain(stream)
            };
            assert_eq!(ask(&mut stream, b"hello"), b"hello");
        }
        assert_eq!(server.running.counters().accepted, 2);
        server.running.shutdown(LONG);
        for address in addresses {
            TcpStream::connect(address).expect_err("it listens no longer");
        }
    });
}

#[test]
fn sockets_that_listen_already_are_shared_by_all_workers() {
    for backend in backends() {
        for (sockets, workers) in [(1, 3), (3, 2)] {
            let first = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = first.local_addr().unwrap();
            let mut listeners = vec![first];
            for _ in 1..sockets {
                listeners.push(TcpListener::bind("127.0.0.1:0").unwrap());
            }
            let addresses: Vec<_> = listeners
                .iter()
                .map(|listener| listener.local_addr().unwrap())
                .collect();
            let running = Server::from_listeners(listeners)
                .workers(workers)
                .pool_config(pool_config(backend))
                .start(|| Echo)
                .unwrap();
            assert_eq!(running.local_addr(), address);
            for address in &addresses {
                assert!(running.local_addrs().contains(address));
                assert_eq!(asked(*address), b"hello");
            }
            running.shutdown(LONG);
            TcpStream::connect(address).expect_err("it listens no longer");
        }
    }
}

/// As with systemd, which keeps its sockets.
#[test]
fn connections_at_a_socket_that_others_share_are_served_or_left() {
    for backend in backends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let start = || {
            Server::from_listeners([listener.try_clone().unwrap()])
                .workers(1)
                .pool_config(pool_config(backend))
                .start(|| Echo)
                .unwrap()
        };
        let first = start();
        assert_eq!(asked(address), b"hello");
        first.shutdown(LONG);
        // Nobody serves, and still nobody is refused.
        let mut waiting = Stream::Plain(common::connect(address));
        let second = start();
        assert_eq!(ask(&mut waiting, b"hello"), b"hello");
        assert_eq!(asked(address), b"hello");
        second.shutdown(LONG);
    }
}

#[test]
fn what_does_not_listen_and_nothing_at_all_are_refused() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket
        .bind(
            &"127.0.0.1:0"
                .parse::<std::net::SocketAddr>()
                .unwrap()
                .into(),
        )
        .unwrap();
    let error = Server::from_listeners([socket.into()])
        .start(|| Echo)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("does not listen"), "{error}");
    let error = Server::from_listeners([]).start(|| Echo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(
        error.to_string().contains("nothing to listen on"),
        "{error}"
    );
}

#[test]
fn servers_that_differ_share_the_workers_of_a_pool() {
    for backend in backends() {
        let pool = Pool::new(2, &pool_config(backend)).unwrap();
        let plain = Server::new("127.0.0.1:0").start_on(&pool, || Echo).unwrap();
        let secure = Server::new("127.0.0.1:0")
            .tls(certificates::server())
            .start_on(&pool, || Echo)
            .unwrap();
        let greeting = Server::new("127.0.0.1:0")
            .start_with_on(&pool, |mut stream, client| async move {
                stream.write_all(&b"hi"[..]).await.0?;
                client.draining().await;
                stream.write_all(&b"bye"[..]).await.0
            })
            .unwrap();
        let connect = || {
            let mut stream = common::connect(greeting.local_addr());
            stream.read_exact(&mut [0; 2]).unwrap();
            stream
        };
        let mut held = connect();
        assert_eq!(asked(plain.local_addr()), b"hello");
        let stream = common::connect(secure.local_addr());
        let stream = certificates::connect_blocking(certificates::client(), stream).unwrap();
        let mut stream = Stream::Tls(Box::new(stream));
        assert_eq!(ask(&mut stream, b"hello"), b"hello");
        // One ends by itself, and the others go on.
        let address = plain.local_addr();
        plain.stop();
        let start = std::time::Instant::now();
        while TcpStream::connect(address).is_ok() {
            assert!(start.elapsed() < LONG, "it listens on");
            thread::yield_now();
        }
        assert_eq!(ask(&mut stream, b"hello"), b"hello");
        drop(connect());
        // All end with the pool.
        pool.shutdown(LONG);
        let mut rest = Vec::new();
        held.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"bye");
        assert_eq!(stream.read_once(&mut [0]).unwrap(), 0);
        assert_eq!(secure.counters().accepted, 1);
    }
}

/// Answers with its worker's number, and how many were served there.
struct Counting(Rc<(usize, Cell<u64>)>);

impl Handler for Counting {
    fn data(&mut self, connection: &mut Connection<'_>, _: &[u8]) -> io::Result<()> {
        let (worker, served) = &*self.0;
        served.set(served.get() + 1);
        connection.write(&[*worker as u8, served.get() as u8])
    }
}

#[test]
fn each_worker_has_state_of_its_own() {
    for backend in backends() {
        let pool = Pool::new(2, &pool_config(backend)).unwrap();
        let service = Server::new("127.0.0.1:0")
            .start_each_on(&pool, |worker| {
                let state = Rc::new((worker, Cell::new(0)));
                move || Counting(Rc::clone(&state))
            })
            .unwrap();
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let answer = ask(
                &mut Stream::Plain(common::connect(service.local_addr())),
                b"xx",
            );
            assert!(answer[0] < 2);
            assert!(seen.insert(answer), "a number came twice");
        }
        let functions = Server::new("127.0.0.1:0")
            .start_each_with_on(&pool, |worker| {
                let served = Rc::new(Cell::new(0));
                move |mut stream: ringloop::net::TcpStream, _| {
                    let served = Rc::clone(&served);
                    async move {
                        served.set(served.get() + 1);
                        let answer = [worker as u8, served.get()];
                        stream.write_all(&answer[..]).await.0
                    }
                }
            })
            .unwrap();
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let mut answer = [0; 2];
            common::connect(functions.local_addr())
                .read_exact(&mut answer)
                .unwrap();
            assert!(seen.insert(answer), "a number came twice");
        }
        pool.shutdown(LONG);
    }
}
