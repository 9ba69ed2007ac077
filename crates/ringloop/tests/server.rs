//! What a server promises, on both backends, to clients that behave and to those that do not.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::PoolConfig;
use ringloop::driver::{BackendChoice, Config};
use ringloop::server::{Connection, Counters, Handler, Running, Server};

const LONG: Duration = Duration::from_secs(20);

fn on_both(body: impl Fn(Server)) {
    for backend in [BackendChoice::Auto, BackendChoice::Epoll] {
        let mut config = PoolConfig::default();
        config.runtime.reactor.driver = Config::with_backend(backend);
        body(Server::bind("127.0.0.1:0").workers(2).pool(config));
    }
}

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// Waits until the counters satisfy a condition; fails loudly if they never do.
fn wait_for(server: &Running, condition: impl Fn(&Counters) -> bool) -> Counters {
    let start = Instant::now();
    loop {
        let counters = server.counters();
        if condition(&counters) {
            return counters;
        }
        assert!(start.elapsed() < LONG, "never came: {counters:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        match bytes {
            b"panic" => panic!("the client asked for it"),
            b"fail" => Err(io::Error::other("the client asked for it")),
            b"close" => {
                connection.write(b"bye")?;
                connection.close();
                Ok(())
            }
            _ => connection.write(bytes),
        }
    }
}

fn ask(stream: &mut TcpStream, question: &[u8]) -> Vec<u8> {
    stream.write_all(question).unwrap();
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn every_byte_comes_back_to_its_connection() {
    on_both(|server| {
        let server = server.start(|| Echo).unwrap();
        thread::scope(|scope| {
            for client in 0..8_u8 {
                let mut stream = connect(&server);
                scope.spawn(move || {
                    let message: Vec<u8> = (0..200_000_u32)
                        .map(|index| (index as u8).wrapping_mul(client))
                        .collect();
                    let mut reading = stream.try_clone().unwrap();
                    let expected = message.clone();
                    let reader = thread::spawn(move || {
                        let mut answer = vec![0; expected.len()];
                        reading.read_exact(&mut answer).unwrap();
                        assert!(answer == expected);
                    });
                    for piece in message.chunks(7_777) {
                        stream.write_all(piece).unwrap();
                    }
                    reader.join().unwrap();
                });
            }
        });
        let counters = wait_for(&server, |counters| counters.live == 0);
        assert_eq!((counters.accepted, counters.errors), (8, 0));
        server.shutdown(LONG);
    });
}

#[test]
fn a_panic_and_an_error_close_their_own_connection_only() {
    on_both(|server| {
        let server = server.start(|| Echo).unwrap();
        let mut other = connect(&server);
        assert_eq!(ask(&mut other, b"before"), b"before");
        for question in [&b"panic"[..], b"fail"] {
            let mut victim = connect(&server);
            victim.write_all(question).unwrap();
            assert_eq!(victim.read(&mut [0; 8]).unwrap(), 0);
        }
        assert_eq!(ask(&mut other, b"after"), b"after");
        let counters = wait_for(&server, |counters| counters.live == 1);
        assert_eq!((counters.panics, counters.errors), (1, 1));
    });
}

#[test]
fn a_close_comes_after_what_was_written() {
    on_both(|server| {
        let server = server.start(|| Echo).unwrap();
        let mut stream = connect(&server);
        stream.write_all(b"close").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"bye");
    });
}

#[test]
fn further_connections_wait_until_one_ends() {
    on_both(|server| {
        let server = server.max_connections(2).start(|| Echo).unwrap();
        let mut first = connect(&server);
        let mut second = connect(&server);
        ask(&mut first, b"1");
        ask(&mut second, b"2");
        let mut third = connect(&server);
        third.write_all(b"3").unwrap();
        third
            .set_read_timeout(Some(Duration::from_millis(30)))
            .unwrap();
        let kind = third.read(&mut [0; 1]).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert_eq!(server.counters().live, 2);
        drop(first);
        third.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = [0; 1];
        third.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"3");
    });
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    on_both(|server| {
        let server = server
            .idle_timeout(Duration::from_millis(150))
            .start(|| Echo)
            .unwrap();
        let mut idle = connect(&server);
        let mut busy = connect(&server);
        let (stop, stopped) = mpsc::channel::<()>();
        let talking = thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(10)).is_err() {
                assert_eq!(ask(&mut busy, b"still here"), b"still here");
            }
            busy
        });
        assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
        stop.send(()).unwrap();
        let _busy = talking.join().unwrap();
        let counters = server.counters();
        assert_eq!((counters.timeouts, counters.errors), (1, 0));
    });
}

#[test]
fn clients_that_misbehave_disturb_nobody() {
    on_both(|server| {
        let server = server.start(|| Echo).unwrap();
        let mut good = connect(&server);
        // Never reads what it asks for: its own connection stalls.
        let deaf = connect(&server);
        deaf.set_nonblocking(true).unwrap();
        let flood = vec![1; 64 * 1024];
        let mut quiet_rounds = 0;
        while quiet_rounds < 3 {
            match (&deaf).write(&flood) {
                Ok(_) => quiet_rounds = 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    quiet_rounds += 1;
                    thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(ask(&mut good, b"one"), b"one");
        // Resets in mid-answer.
        let resets = connect(&server);
        (&resets).write_all(&flood).unwrap();
        socket2::SockRef::from(&resets)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(resets);
        assert_eq!(ask(&mut good, b"two"), b"two");
        // Connects and vanishes.
        for _ in 0..50 {
            drop(connect(&server));
        }
        // Byte by byte.
        let mut slow = connect(&server);
        for byte in 0..20 {
            assert_eq!(ask(&mut slow, &[byte]), [byte]);
        }
        assert_eq!(ask(&mut good, b"three"), b"three");
        drop(deaf);
        drop(slow);
        wait_for(&server, |counters| counters.live == 1);
    });
}

#[test]
fn a_shutdown_refuses_new_connections_and_lets_the_old_ones_finish() {
    on_both(|server| {
        let server = server.start(|| Echo).unwrap();
        let address = server.local_addr();
        let mut stream = connect(&server);
        ask(&mut stream, b"hello");
        let closing = thread::spawn(move || server.shutdown(LONG));
        let start = Instant::now();
        while TcpStream::connect(address).is_ok() {
            assert!(start.elapsed() < LONG, "it still listens");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ask(&mut stream, b"still served"), b"still served");
        drop(stream);
        closing.join().unwrap();
    });
}

#[test]
fn a_connection_may_be_a_plain_async_function() {
    on_both(|server| {
        let server = server
            .start_with(|mut stream, peer| async move {
                let greeting = format!("hello {peer}");
                stream.write_all(greeting.as_bytes()).await.0?;
                stream.shutdown(Shutdown::Write)
            })
            .unwrap();
        let mut stream = connect(&server);
        let mut greeting = String::new();
        stream.read_to_string(&mut greeting).unwrap();
        assert_eq!(greeting, format!("hello {}", stream.local_addr().unwrap()));
    });
}

#[test]
fn an_address_in_use_and_a_limit_of_nothing_are_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = Server::bind(address).workers(1).start(|| Echo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let error = Server::bind("127.0.0.1:0")
        .max_connections(0)
        .start(|| Echo)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}
