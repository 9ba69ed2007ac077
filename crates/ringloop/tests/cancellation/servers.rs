//! The server's connections: their futures end in the middle, alone or with their server.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::driver::BackendKind;
use ringloop::net::AnyStream;
use ringloop::server::{Connection, Handler, Running, Server};
use socket2::Socket;

use crate::common::{self, LONG, ReadOnce, pattern, pool_config};
use crate::cut::{Cut, When, leaving_nothing};
use crate::memory::buffer;

pub(crate) fn server(backend: BackendKind) -> Server {
    let pool = pool_config(backend.name().parse().unwrap());
    Server::new("127.0.0.1:0").workers(2).pool_config(pool)
}

/// The same, also at a Unix socket.
fn at_both(backend: BackendKind) -> Server<AnyStream> {
    let name = format!("\0ringloop-servers-{}-{backend}", std::process::id());
    server(backend).and_unix(name)
}

fn connect(server: &Running, is_unix: bool) -> Socket {
    if !is_unix {
        return common::connect(server.local_addr()).into();
    }
    let stream = UnixStream::connect_addr(&server.local_unix_addrs()[0]).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream.into()
}

pub(crate) fn until_nobody_is_left(server: &Running) {
    let start = Instant::now();
    while server.counters().live > 0 {
        assert!(start.elapsed() < LONG, "{:?}", server.counters());
        thread::sleep(Duration::from_micros(200));
    }
}

/// Sends all of `sent`, and returns what comes back until the connection ends.
fn talk(stream: &mut Socket, sent: Vec<u8>) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        // The server may close before it has read everything.
        let _ = writer.write_all(&sent);
        let _ = writer.shutdown(std::net::Shutdown::Write);
    });
    let mut received = Vec::new();
    let mut piece = vec![0; 10_000];
    while let Ok(count @ 1..) = stream.read_once(&mut piece) {
        received.extend_from_slice(&piece[..count]);
    }
    writing.join().unwrap();
    received
}

/// The future of one connection is dropped after each of its polls. Its client has the beginning of the answer, and
/// another connection of the same worker gets all of it.
#[test]
fn a_connection_that_ends_in_its_middle_disturbs_no_other() {
    leaving_nothing(|runtime| {
        for when in [When::Polled, When::Woken] {
            for polls in 0..12 {
                let server = at_both(runtime.backend())
                    .start_with(move |mut stream, _| async move {
                        let mut first = [0];
                        stream.read(&mut first[..]).await.0?;
                        let echo = async {
                            loop {
                                let (count, bytes) = stream.read(buffer()).await;
                                if count? == 0 {
                                    return Ok(());
                                }
                                stream.write_all(&bytes[..]).await.0?;
                            }
                        };
                        if first == [b'v'] {
                            Cut::new(polls, when).run(echo).await.unwrap_or(Ok(()))
                        } else {
                            echo.await
                        }
                    })
                    .unwrap();
                let is_unix = polls % 2 == 1;
                let (mut victim, mut other) =
                    (connect(&server, is_unix), connect(&server, !is_unix));
                let bytes = pattern(300_000);
                let answer = thread::scope(|scope| {
                    let other = scope.spawn(|| talk(&mut other, [b"o", &bytes[..]].concat()));
                    let answer = talk(&mut victim, [b"v", &bytes[..]].concat());
                    assert!(other.join().unwrap() == bytes);
                    answer
                });
                assert!(bytes.starts_with(&answer));
                until_nobody_is_left(&server);
                assert_eq!(server.counters().panics, 0);
                server.shutdown(LONG);
            }
        }
    });
}

pub(crate) struct Echo {
    pub(crate) kept: Vec<u8>,
}

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
        self.kept.clear();
        self.kept
            .extend_from_slice(&bytes[..bytes.len().min(self.kept.capacity())]);
        connection.write(bytes)
    }
}

/// A server that ends while its connections are in the middle of everything.
#[test]
fn a_server_that_ends_lets_go_of_its_connections() {
    leaving_nothing(|runtime| {
        for patience in [Duration::ZERO, Duration::from_millis(1)] {
            for round in 0..8 {
                let server = at_both(runtime.backend())
                    .idle_timeout(LONG)
                    .start(|| Echo { kept: buffer() })
                    .unwrap();
                let bytes = pattern(400_000);
                let clients: Vec<_> = (0..6)
                    .map(|index| {
                        let mut client = connect(&server, index % 2 == 1);
                        let bytes = bytes.clone();
                        thread::spawn(move || {
                            if index % 3 == 2 {
                                // Says nothing, or hears nothing.
                                let _ = client.write_all(&bytes[..round * 50_000]);
                                let mut byte = [0];
                                let _ = client.read_once(&mut byte);
                                return;
                            }
                            assert!(bytes.starts_with(&talk(&mut client, bytes.clone())));
                        })
                    })
                    .collect();
                thread::sleep(Duration::from_micros(150 * round as u64));
                server.shutdown(patience);
                for client in clients {
                    client.join().unwrap();
                }
            }
        }
    });
}
