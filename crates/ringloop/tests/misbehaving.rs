//! Clients that misbehave, next to one that does not and that checks each byte: on both backends, with a handler and
//! with an async function.

mod common;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringloop::server::{Connection, Handler, Running, Server};

use common::{LONG, backends, echo, pattern, pool_config};

/// The maximum number of connections.
const CONNECTIONS_MAX: usize = 8;

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

/// The servers: on each backend, of each kind, with one worker for everybody.
fn each_server(body: impl Fn(&Running)) {
    for backend in backends() {
        let server = Server::new("127.0.0.1:0")
            .workers(1)
            .max_connections(CONNECTIONS_MAX)
            .pool_config(pool_config(backend));
        let handler = server.clone().start(|| Echo).unwrap();
        body(&handler);
        handler.shutdown(LONG);
        let function = server
            .start_with(|mut stream, _| async move {
                let mut buffer = Vec::with_capacity(64 << 10);
                loop {
                    let (count, filled) = stream.read(buffer).await;
                    if count? == 0 {
                        return Ok(());
                    }
                    stream.write_all(&filled[..]).await.0?;
                    buffer = filled;
                    buffer.clear();
                }
            })
            .unwrap();
        body(&function);
        function.shutdown(LONG);
    }
}

fn connect(server: &Running) -> TcpStream {
    common::connect(server.local_addr())
}

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
}

/// Counts the answers to the client that behaves.
#[derive(Default)]
struct Progress(AtomicUsize);

impl Progress {
    /// Waits for more answers.
    fn wait(&self, more: usize) {
        let (start, before) = (Instant::now(), self.0.load(Ordering::Acquire));
        while self.0.load(Ordering::Acquire) < before + more {
            assert!(
                start.elapsed() < LONG,
                "the client that behaves is disturbed"
            );
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Lets clients misbehave next to one that behaves, and checks that nothing of them is left.
fn disturbed_by(misbehave: impl Fn(&Running, &Progress)) {
    each_server(|server| {
        let (progress, is_over) = (Progress::default(), AtomicBool::new(false));
        let mut good = connect(server);
        echo(&mut good, b"first");
        thread::scope(|scope| {
            scope.spawn(|| {
                let bytes = pattern(40_000);
                let mut length = 1;
                while !is_over.load(Ordering::Acquire) {
                    echo(&mut good, &bytes[..length]);
                    length = length * 7 % 40_000 + 1;
                    progress.0.fetch_add(1, Ordering::AcqRel);
                }
            });
            // Also if this panics, the other one is to end.
            struct Over<'a>(&'a AtomicBool);
            impl Drop for Over<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Release);
                }
            }
            let _over = Over(&is_over);
            misbehave(server, &progress);
            progress.wait(3);
            let start = Instant::now();
            while server.counters().live > 1 {
                assert!(start.elapsed() < LONG, "{:?}", server.counters());
                thread::sleep(Duration::from_micros(200));
            }
            // Whoever comes next is served.
            echo(&mut connect(server), b"next");
        });
        assert_eq!(server.counters().panics, 0);
    });
}

#[test]
fn clients_that_vanish() {
    disturbed_by(|server, _| {
        for index in 0..60 {
            let mut client = connect(server);
            if index % 3 > 0 {
                client.write_all(b"and away").unwrap();
            }
            if index % 2 == 0 {
                // Before it is accepted, perhaps.
                reset(client);
            }
        }
    });
}

#[test]
fn clients_that_send_byte_by_byte() {
    disturbed_by(|server, _| {
        let mut clients: Vec<_> = (0..4).map(|_| connect(server)).collect();
        for byte in 0..50 {
            for client in &mut clients {
                client.set_nodelay(true).unwrap();
                client.write_all(&[byte]).unwrap();
            }
        }
        for client in &mut clients {
            let mut answer = [0; 50];
            client.read_exact(&mut answer).unwrap();
            assert!(answer.iter().copied().eq(0..50));
        }
    });
}

/// The server stops reading from them, so what it stores is limited.
#[test]
fn clients_that_never_read() {
    disturbed_by(|server, progress| {
        let deaf: Vec<_> = (0..3).map(|_| connect(server)).collect();
        let flood = vec![1; 64 << 10];
        let mut sent = 0;
        for client in &deaf {
            client.set_nonblocking(true).unwrap();
        }
        loop {
            let before = sent;
            for client in &deaf {
                match (&*client).write(&flood) {
                    Ok(count) => sent += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(sent < 512 << 20, "it reads on and on");
            if sent == before {
                // For as long as the other one takes for much more than this it stays as it is.
                progress.wait(20);
                let is_full = |client: &TcpStream| {
                    let mut client = client;
                    matches!(client.write(&flood), Err(error) if error.kind() == ErrorKind::WouldBlock)
                };
                if deaf.iter().all(is_full) {
                    break;
                }
            }
        }
    });
}

#[test]
fn clients_that_reset_in_mid_answer() {
    disturbed_by(|server, _| {
        for round in 0..20 {
            let mut client = connect(server);
            client.set_nonblocking(true).unwrap();
            let bytes = vec![round; 300_000];
            let mut sent = 0;
            while sent < bytes.len() {
                match client.write(&bytes[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            client.set_nonblocking(false).unwrap();
            let mut part = vec![0; usize::from(round) * 1000 + 1];
            client.read_exact(&mut part).unwrap();
            assert!(part.iter().all(|byte| *byte == round));
            reset(client);
        }
    });
}

#[test]
fn clients_that_close_one_half_get_all_of_their_answer() {
    disturbed_by(|server, _| {
        let bytes = pattern(100_000);
        for _ in 0..5 {
            let mut client = connect(server);
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert!(answer == bytes);
        }
        // The other half: the answer has nowhere to go.
        let client = connect(server);
        client.shutdown(Shutdown::Read).unwrap();
        (&client).write_all(&bytes).unwrap();
    });
}

/// More clients than the maximum: some are served, the others wait, and any of them may leave at any time.
#[test]
fn clients_that_are_too_many() {
    disturbed_by(|server, progress| {
        let mut flood: Vec<_> = (0..100).map(|_| connect(server)).collect();
        for client in &mut flood {
            client.write_all(b"me too").unwrap();
        }
        progress.wait(10);
        assert!(server.counters().live <= CONNECTIONS_MAX as u64);
        let mut answers = 0;
        for (index, mut client) in flood.into_iter().enumerate() {
            if index % 5 == 4 {
                reset(client);
                continue;
            }
            // Those before it have left by now.
            let mut answer = [0; 6];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"me too");
            answers += 1;
        }
        assert_eq!(answers, 80);
    });
}
