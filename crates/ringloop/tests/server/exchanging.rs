//! Bytes go there and back.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use ringloop::server::{Connection, Handler};
use socket2::SockRef;

use crate::case::{Double, Echo, Served, Stream, ask, on_both};
use crate::certificates;
use crate::common::{LONG, ReadOnce};

#[test]
fn every_byte_comes_back_to_its_connection() {
    on_both(|case| {
        let server = case.start(|| Echo);
        thread::scope(|scope| {
            for client in 0..8_u8 {
                let mut stream = server.connect();
                scope.spawn(move || {
                    let message: Vec<u8> = (0..200_000_u32)
                        .map(|index| (index as u8).wrapping_mul(client))
                        .collect();
                    for piece in message.chunks(37_777) {
                        assert!(ask(&mut stream, piece) == piece);
                    }
                    stream.close();
                });
            }
        });
        let counters = server.wait_for(|counters| counters.live == 0);
        assert_eq!((counters.accepted, counters.errors), (8, 0));
        server.running.shutdown(LONG);
    });
}

#[test]
fn what_the_socket_has_no_room_for_is_sent_later() {
    on_both(|case| {
        let server = case.start(|| Double);
        let mut stream = server.connect();
        let message = vec![7; 200_000];
        let mut expected = 0;
        // Nobody reads meanwhile, so that the answers pile up.
        for _ in 0..10 {
            stream.write_all(&message).unwrap();
            expected += 2 * message.len();
        }
        let mut answer = vec![0; expected];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer.iter().all(|byte| *byte == 7));
        stream.close();
        let counters = server.wait_for(|counters| counters.live == 0);
        assert_eq!(counters.errors, 0);
    });
}

/// A client that has asked the server to close, and has read to the end.
fn closed_by(server: &Served) -> Stream {
    let mut stream = server.connect();
    stream.write_all(b"close").unwrap();
    let mut answer = Vec::new();
    // Over TLS this fails if the end was not told.
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"bye");
    stream
}

#[test]
fn a_close_comes_after_what_was_written() {
    on_both(|case| {
        let server = case.start(|| Echo);
        closed_by(&server);
    });
}

#[test]
fn an_end_without_a_word_is_an_error_for_the_handler() {
    on_both(|case| {
        let server = case.start(|| Echo);
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        drop(stream);
        let counters = server.wait_for(|counters| counters.live == 0);
        assert_eq!(counters.errors, u64::from(server.is_secure));
    });
}

#[test]
fn a_connection_may_be_a_plain_async_function() {
    on_both(|case| {
        let running = if case.is_secure {
            let server = case.server.tls(certificates::server());
            server.start_with(|mut stream, client| async move {
                let greeting = format!("hello {client} {}", client.addr());
                stream.write_all(greeting.as_bytes()).await.0?;
                stream.shutdown().await
            })
        } else {
            case.server.start_with(|mut stream, client| async move {
                let greeting = format!("hello {client} {}", client.addr());
                stream.write_all(greeting.as_bytes()).await.0?;
                stream.shutdown(Shutdown::Write)
            })
        };
        let server = Served {
            running: running.unwrap(),
            is_secure: case.is_secure,
        };
        let mut stream = server.connect();
        let mut greeting = String::new();
        stream.read_to_string(&mut greeting).unwrap();
        let address = stream.socket().local_addr().unwrap();
        assert_eq!(greeting, format!("hello {address} {address}"));
    });
}

#[test]
fn clients_that_misbehave_disturb_nobody() {
    on_both(|case| {
        let server = case.start(|| Echo);
        let mut good = server.connect();
        // Never reads what it asks for: its own connection stalls.
        let mut deaf = server.connect();
        deaf.socket().set_nonblocking(true).unwrap();
        let flood = vec![1; 64 * 1024];
        let mut quiet_rounds = 0;
        while quiet_rounds < 3 {
            match deaf.write(&flood) {
                Ok(1..) => quiet_rounds = 0,
                Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                _ => {
                    quiet_rounds += 1;
                    thread::sleep(Duration::from_millis(2));
                }
            }
        }
        assert_eq!(ask(&mut good, b"one"), b"one");
        // Resets in mid-answer.
        let mut resets = server.connect();
        resets.write_all(&flood).unwrap();
        socket2::SockRef::from(resets.socket())
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(resets);
        assert_eq!(ask(&mut good, b"two"), b"two");
        // Connects and vanishes.
        for _ in 0..50 {
            drop(server.connect_plain());
        }
        // Byte by byte.
        let mut slow = server.connect();
        for byte in 0..20 {
            assert_eq!(ask(&mut slow, &[byte]), [byte]);
        }
        assert_eq!(ask(&mut good, b"three"), b"three");
        drop(deaf);
        drop(slow);
        server.wait_for(|counters| counters.live == 1);
    });
}

/// How much is sent in one go to a client that reads slowly.
const MUCH: usize = 400_000;

/// Answers everything with many bytes, and perhaps ends the connection.
struct Generous {
    closes: bool,
}

impl Handler for Generous {
    fn data(&mut self, connection: &mut Connection<'_>, _: &[u8]) -> io::Result<()> {
        connection.write(&vec![7; MUCH])?;
        if self.closes {
            connection.close();
        }
        Ok(())
    }
}

/// Reads to the end, slowly. Returns how much came.
fn read_slowly(stream: &mut Stream) -> usize {
    let (mut total, mut piece) = (0, [0; 4096]);
    loop {
        match stream.read_once(&mut piece).unwrap() {
            0 => return total,
            count => total += count,
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// The kernel would reset a connection that is closed with unread data, and discard what is still to be sent.
#[test]
fn a_client_that_sends_on_gets_all_that_was_written_before_the_close() {
    on_both(|case| {
        for closes in [true, false] {
            let server = case.clone().start(move || Generous { closes });
            let mut stream = server.connect();
            // A tenth of the answer fits. If less does, the kernel sends it in tiny segments, for a minute.
            SockRef::from(stream.socket())
                .set_recv_buffer_size(MUCH / 20)
                .unwrap();
            stream.write_all(b"request").unwrap();
            // The answer has begun.
            stream.read_exact(&mut [0; 1]).unwrap();
            let ending = if closes {
                None
            } else {
                Some(thread::spawn(move || server.running.shutdown(LONG)))
            };
            thread::sleep(Duration::from_millis(30));
            stream.write_all(b"another one").unwrap();
            // Answered, too, if it comes before the shutdown.
            let total = 1 + read_slowly(&mut stream);
            assert!(total == MUCH || !closes && total == 2 * MUCH, "{total}");
            stream.close();
            if let Some(ending) = ending {
                ending.join().unwrap();
            }
        }
    });
}

#[test]
fn a_client_that_never_closes_its_side_is_left_after_a_moment() {
    on_both(|case| {
        // A shorter limit for idle connections makes the moment shorter. A machine that stands still may let both be over
        // before this thread sees one of them end, but not each time.
        let earlier = (0..20).any(|_| {
            let limited = case
                .clone()
                .with(|server| server.idle_timeout(Duration::from_millis(100)));
            let [server, limited] = [case.clone(), limited].map(|case| case.start(|| Echo));
            let _streams = [closed_by(&server), closed_by(&limited)];
            let counters = limited.wait_for(|counters| counters.live == 0);
            let earlier = server.running.counters().live == 1;
            assert_eq!((counters.errors, counters.timeouts), (0, 0));
            let counters = server.wait_for(|counters| counters.live == 0);
            assert_eq!((counters.errors, counters.timeouts), (0, 0));
            earlier
        });
        assert!(earlier, "the limit for idle connections is not kept");
    });
}
