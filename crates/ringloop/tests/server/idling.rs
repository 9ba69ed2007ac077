//! Connections on which nothing moves.

use std::future::Future;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::server::{Client, Connection, Handler};
use ringloop::spawn;

use crate::case::{Double, Echo, Served, Stream, on_both, try_ask};
use crate::certificates;
use crate::common::{LONG, ReadOnce};

/// How long a connection may be idle beside one that is not.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// How steadily a client talks.
struct Pace {
    last: Instant,
    longest: Duration,
}

impl Pace {
    fn begin() -> Self {
        Self {
            last: Instant::now(),
            longest: Duration::ZERO,
        }
    }

    /// Called after each exchange. Returns whether the server could not yet have considered this client idle. It may
    /// have read the last question as early as the end of the exchange before, so two pauses together must be shorter
    /// than the limit.
    fn holds(&mut self) -> bool {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
        self.longest < IDLE_MAX / 2
    }
}

/// Repeats a case until its busy client has kept its pace. A busy machine may stop the client or the server for as long
/// as an idle connection may live.
fn until_the_pace_holds(mut case: impl FnMut(Pace) -> bool) {
    assert!(
        (0..20).any(|_| case(Pace::begin())),
        "exchanges take too long"
    );
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    on_both(|case| {
        until_the_pace_holds(|mut pace| {
            let server = case
                .clone()
                .with(|server| server.idle_timeout(IDLE_MAX))
                .start(|| Echo);
            let mut idle = server.connect();
            let mut busy = server.connect();
            let (stop, stopped) = mpsc::channel::<()>();
            let talking = thread::spawn(move || {
                while stopped.recv_timeout(Duration::from_millis(10)).is_err() {
                    let answer = try_ask(&mut busy, b"still here");
                    if !pace.holds() {
                        break;
                    }
                    assert_eq!(answer.unwrap(), b"still here");
                }
                (busy, pace)
            });
            // The end is told.
            assert_eq!(idle.read_once(&mut [0; 1]).unwrap(), 0);
            // Nobody hears it where the pace is lost.
            let _ = stop.send(());
            let (_busy, mut pace) = talking.join().unwrap();
            let counters = server.running.counters();
            if !pace.holds() {
                return false;
            }
            assert_eq!((counters.timeouts, counters.errors), (1, 0));
            true
        });
    });
}

/// Keeps the connection twice, and then closes it.
struct Patient(u32);

impl Handler for Patient {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }

    fn timeout(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        self.0 += 1;
        if self.0 == 3 {
            connection.close();
            return Ok(());
        }
        connection.write(b"?")
    }
}

#[test]
fn a_handler_may_let_an_idle_connection_live() {
    on_both(|case| {
        let server = case
            .with(|server| server.idle_timeout(Duration::from_millis(5)))
            .start(|| Patient(0));
        let mut stream = server.connect();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"??");
        assert_eq!(server.running.counters().timeouts, 3);
    });
}

#[test]
fn who_never_reads_is_idle_as_well() {
    on_both(|case| {
        let server = case
            .with(|server| server.idle_timeout(Duration::from_millis(100)))
            .start(|| Double);
        let mut deaf = server.connect();
        // More than all buffers hold: writing fails in the end, because the server has given up.
        let flood = vec![1; 64 * 1024];
        let mut rounds = 0;
        while deaf.write_all(&flood).is_ok() {
            rounds += 1;
            assert!(rounds < 100_000, "the server takes it for ever");
        }
        let counters = server.wait_for(|counters| counters.live == 0);
        assert_eq!(counters.timeouts, 1);
    });
}

#[test]
fn a_function_whose_connection_is_idle_is_dropped() {
    async fn echo<S>(stream: S, _client: Client) -> io::Result<()>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + 'static,
    {
        // In a task of its own, where the server does not see it poll.
        spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(stream);
            tokio::io::copy(&mut reader, &mut writer).await
        })
        .await
        .unwrap()
        .map(drop)
    }
    on_both(|case| {
        until_the_pace_holds(|mut pace| {
            let server = case.server.clone().idle_timeout(IDLE_MAX);
            let running = if case.is_secure {
                server.tls(certificates::server()).start_with(echo)
            } else {
                server.start_with(echo)
            };
            let server = Served {
                running: running.unwrap(),
                is_secure: case.is_secure,
            };
            let mut busy = server.connect();
            let _idle = server.connect();
            // Longer than the idle one may live, in steps that are far shorter.
            loop {
                let counters = server.running.counters();
                let answer = try_ask(&mut busy, b"still here");
                if !pace.holds() {
                    return false;
                }
                assert_eq!(answer.unwrap(), b"still here");
                if counters.timeouts > 0 {
                    assert_eq!((counters.timeouts, counters.errors), (1, 0));
                    return true;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
    });
}

#[test]
fn a_function_that_writes_without_waiting_is_not_idle() {
    async fn tick(is_busy: bool, write: impl Fn() -> io::Result<usize>) -> io::Result<()> {
        if !is_busy {
            std::future::pending::<()>().await;
        }
        loop {
            write()?;
            ringloop::time::sleep(Duration::from_millis(5)).await;
        }
    }
    on_both(|case| {
        let server = case.server.idle_timeout(Duration::from_secs(2));
        let seen = Arc::new(AtomicUsize::new(0));
        let running = if case.is_secure {
            let server = server.tls(certificates::server());
            server.start_with(move |stream, _client| {
                let is_busy = seen.fetch_add(1, Ordering::Relaxed) == 0;
                async move { tick(is_busy, || stream.try_write(b"x")).await }
            })
        } else {
            server.start_with(move |stream, _client| {
                let is_busy = seen.fetch_add(1, Ordering::Relaxed) == 0;
                async move { tick(is_busy, || stream.try_write(b"x")).await }
            })
        };
        let server = Served {
            running: running.unwrap(),
            is_secure: case.is_secure,
        };
        let mut busy = server.connect();
        busy.read_exact(&mut [0; 1]).unwrap();
        let idle = server.connect();
        while server.running.counters().timeouts == 0 {
            busy.read_exact(&mut [0; 1]).unwrap();
        }
        // Whatever lay there before, more comes.
        for _ in 0..100 {
            busy.read_exact(&mut [0; 1]).unwrap();
        }
        assert_eq!(server.running.counters().timeouts, 1);
        drop(idle);
    });
}

#[test]
fn who_takes_long_for_a_record_is_not_idle() {
    on_both(|case| {
        if !case.is_secure {
            return;
        }
        until_the_pace_holds(|mut pace| {
            let server = case
                .clone()
                .with(|server| server.workers(1).idle_timeout(IDLE_MAX))
                .start(|| Echo);
            let Stream::Tls(mut slow) = server.connect() else {
                unreachable!("it is secure");
            };
            let message = vec![7; 10_000];
            slow.conn.writer().write_all(&message).unwrap();
            let mut record = Vec::new();
            slow.conn.write_tls(&mut record).unwrap();
            // Its answers tell that the worker has come past the byte before.
            let mut witness = server.connect();
            let _idle = server.connect();
            let mut rest = &record[..];
            while server.running.counters().timeouts == 0 {
                let sent = slow.sock.write_all(&rest[..1]);
                rest = &rest[1..];
                let answer = try_ask(&mut witness, b"still here");
                if !pace.holds() {
                    return false;
                }
                sent.unwrap();
                assert_eq!(answer.unwrap(), b"still here");
                thread::sleep(Duration::from_millis(5));
            }
            let mut answer = vec![0; message.len()];
            let answered = slow
                .sock
                .write_all(rest)
                .and_then(|()| slow.read_exact(&mut answer));
            let counters = server.running.counters();
            if !pace.holds() {
                return false;
            }
            answered.unwrap();
            assert!(answer == message);
            assert_eq!(counters.timeouts, 1);
            true
        });
    });
}

#[test]
fn a_function_whose_connection_rests_is_cut_off_and_one_that_has_closed_it_is_not() {
    on_both(|case| {
        let (done, is_done) = mpsc::channel();
        let resting = case.server.clone();
        let running = case
            .server
            .idle_timeout(Duration::from_millis(5))
            .start_with(move |stream, _client| {
                let done = done.clone();
                async move {
                    drop(stream);
                    ringloop::time::sleep(Duration::from_millis(40)).await;
                    done.send(()).unwrap();
                    Ok(())
                }
            })
            .unwrap();
        let server = Served {
            running,
            is_secure: false,
        };
        assert_eq!(server.connect().read_once(&mut [0; 1]).unwrap(), 0);
        is_done.recv_timeout(LONG).unwrap();
        assert_eq!(server.running.counters().timeouts, 0);
        drop(server);

        let running = resting
            .idle_timeout(Duration::from_millis(5))
            .start_with(|stream, _client| async move {
                std::future::pending::<()>().await;
                drop(stream);
                Ok(())
            })
            .unwrap();
        let server = Served {
            running,
            is_secure: false,
        };
        assert_eq!(server.connect().read_once(&mut [0; 1]).unwrap(), 0);
        assert_eq!(server.running.counters().timeouts, 1);
    });
}

/// A function that works on an answer, and never touches its connection meanwhile. It counts how often it began.
fn works_elsewhere<S: 'static>(
    begun: &Arc<AtomicUsize>,
) -> impl Fn(S, Client) -> Pin<Box<dyn Future<Output = io::Result<()>>>> + Clone + Send + use<S> {
    let begun = Arc::clone(begun);
    move |stream, _client| {
        begun.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(stream);
            Ok(())
        })
    }
}

/// A client that is known to be gone does not keep its function for the whole time that it may be idle.
#[test]
fn a_function_whose_client_has_reset_the_connection_is_dropped_soon() {
    on_both(|case| {
        // None of these is over before the others.
        let patient = LONG * 100;
        let server = case.server.clone().idle_timeout(patient);
        let begun = Arc::new(AtomicUsize::new(0));
        let running = if case.is_secure {
            server
                .tls(certificates::server())
                .start_with(works_elsewhere(&begun))
        } else {
            server.start_with(works_elsewhere(&begun))
        };
        let server = Served {
            running: running.unwrap(),
            is_secure: case.is_secure,
        };
        let (gone, stays) = (server.connect(), server.connect());
        // A reset during the handshake would be an error of that.
        server.wait_for(|counters| counters.live == 2 && begun.load(Ordering::SeqCst) == 2);
        gone.reset();
        let counters = server.wait_for(|counters| counters.live == 1);
        assert_eq!((counters.timeouts, counters.errors), (1, 0));
        drop(stays);
    });
}

#[test]
fn without_an_idle_timeout_a_function_may_go_on_without_its_client() {
    on_both(|case| {
        if case.is_secure {
            return;
        }
        let (done, is_done) = mpsc::channel();
        let running = case
            .server
            .idle_timeout(None)
            .start_with(move |stream, client| {
                let done = done.clone();
                async move {
                    client.closed().await?;
                    // Longer than a function with a limit has left.
                    ringloop::time::sleep(Duration::from_millis(2500)).await;
                    drop(stream);
                    done.send(()).unwrap();
                    Ok(())
                }
            })
            .unwrap();
        let server = Served {
            running,
            is_secure: false,
        };
        let gone = server.connect();
        server.wait_for(|counters| counters.live == 1);
        gone.reset();
        is_done.recv_timeout(LONG).unwrap();
        assert_eq!(server.running.counters().timeouts, 0);
    });
}
