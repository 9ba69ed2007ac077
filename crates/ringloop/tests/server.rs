//! What a server promises, on both backends, to clients that behave and to those that do not.

#[path = "common/certificates.rs"]
mod certificates;

use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::driver::{BackendChoice, Config};
use ringloop::server::{Client, Connection, Counters, Handler, Running, Server};
use ringloop::tls::TlsAcceptor;
use ringloop::tls::rustls::{ClientConnection, StreamOwned};
use ringloop::{Pool, PoolConfig, spawn};

const LONG: Duration = Duration::from_secs(60);

/// A server on one of the backends, over TCP or over TLS.
#[derive(Clone)]
struct Case {
    server: Server,
    is_secure: bool,
}

fn on_both(body: impl Fn(Case)) {
    for backend in [BackendChoice::IoUring, BackendChoice::Epoll] {
        let mut config = PoolConfig::default();
        config.runtime.reactor.driver = Config::with_backend(backend);
        if backend == BackendChoice::IoUring
            && let Err(error) = Pool::new(1, &config)
        {
            eprintln!("left out: {error}");
            continue;
        }
        for is_secure in [false, true] {
            body(Case {
                server: Server::bind("127.0.0.1:0").workers(2).pool(config.clone()),
                is_secure,
            });
        }
    }
}

impl Case {
    fn with(self, change: impl FnOnce(Server) -> Server) -> Self {
        Self {
            server: change(self.server),
            ..self
        }
    }

    fn start<H: Handler>(self, make: impl Fn() -> H + Clone + Send + 'static) -> Served {
        let running = if self.is_secure {
            self.server.tls(certificates::server()).start(make)
        } else {
            self.server.start(make)
        };
        Served {
            running: running.unwrap(),
            is_secure: self.is_secure,
        }
    }
}

/// A server that runs.
struct Served {
    running: Running,
    is_secure: bool,
}

impl Served {
    fn connect(&self) -> Stream {
        let stream = self.connect_plain();
        if self.is_secure {
            let stream = certificates::connect_blocking(certificates::client(), stream);
            Stream::Tls(Box::new(stream.unwrap()))
        } else {
            Stream::Plain(stream)
        }
    }

    fn connect_plain(&self) -> TcpStream {
        let stream = TcpStream::connect(self.running.local_addr()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Waits until the counters satisfy a condition; fails loudly if they never do.
    fn wait_for(&self, condition: impl Fn(&Counters) -> bool) -> Counters {
        let start = Instant::now();
        loop {
            let counters = self.running.counters();
            if condition(&counters) {
                return counters;
            }
            assert!(start.elapsed() < LONG, "never came: {counters:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A client's connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// Ends the connection as it should be.
    fn close(mut self) {
        if let Self::Tls(stream) = &mut self {
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Whether a connection was ended without the word that TLS has for that.
fn is_cut_off(result: io::Result<usize>, is_secure: bool) -> bool {
    match result {
        Ok(0) => !is_secure,
        Err(error) => {
            error.kind() == ErrorKind::UnexpectedEof || error.kind() == ErrorKind::ConnectionReset
        }
        Ok(_) => false,
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

fn ask(stream: &mut Stream, question: &[u8]) -> Vec<u8> {
    try_ask(stream, question).unwrap()
}

fn try_ask(stream: &mut Stream, question: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(question)?;
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

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

/// Writes twice as much as it gets, in pieces.
struct Double;

impl Handler for Double {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(10_000) {
            connection.write(piece)?;
            connection.write(piece)?;
        }
        Ok(())
    }
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
            assert!(is_cut_off(victim.read(&mut [0; 8]), is_secure));
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
        assert!(is_cut_off(server.connect().read(&mut [0; 8]), is_secure));
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
            assert_eq!(server.connect().read(&mut [0; 8]).unwrap(), 0);
        }
        assert_eq!(server.wait_for(|counters| counters.live == 0).panics, 1);
    });
}

/// Panics where it is told to.
struct Fragile {
    question: Vec<u8>,
}

/// What was panicked with panics itself when it is dropped.
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
            let _ = victim.read(&mut [0; 8]);
            let counters = server.wait_for(|counters| counters.live == 1);
            assert_eq!(counters.panics, panics as u64 + 1, "{counters:?}");
            assert_eq!(ask(&mut other, b"after"), b"after");
        }
        other.close();
        // Fails with what a worker has panicked with.
        server.running.shutdown(LONG);
    });
}

#[test]
fn a_close_comes_after_what_was_written() {
    on_both(|case| {
        let server = case.start(|| Echo);
        let mut stream = server.connect();
        stream.write_all(b"close").unwrap();
        let mut answer = Vec::new();
        // Over TLS this fails if the end was not told.
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"bye");
    });
}

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
        let kind = third.read(&mut [0; 1]).unwrap_err().kind();
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

    /// Asked after each exchange: whether the server had no reason yet to take this client for idle. It may have read the last
    /// question as early as the exchange before ended, so that two pauses together must be shorter than the limit.
    fn holds(&mut self) -> bool {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
        self.longest < IDLE_MAX / 2
    }
}

/// Repeats a case until its busy client has held its pace: a busy machine may stop it, or the server, for as long as an idle
/// one may live.
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
            assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
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

/// Is asked to wait once more, and then no longer.
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
        assert_eq!(server.connect().read(&mut [0; 1]).unwrap(), 0);
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
        assert_eq!(server.connect().read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(server.running.counters().timeouts, 1);
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
        // The others may be slow on a busy machine.
        let hasty = start(acceptor.clone().handshake_timeout(Duration::from_secs(2)));
        let server = start(acceptor);
        // Says nothing.
        let mut silent = hasty.connect_plain();
        assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
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

/// Goes on while the server drains, until it is told that it is enough.
struct Busy {
    is_draining: bool,
}

impl Handler for Busy {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        if bytes == b"enough" && self.is_draining {
            connection.close();
        }
        connection.write(bytes)
    }

    fn draining(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        self.is_draining = true;
        connection.write(b"hurry")
    }
}

fn wait_until_refused(address: std::net::SocketAddr) {
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < LONG, "it still listens");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_shutdown_refuses_new_connections_and_closes_those_that_rest() {
    on_both(|case| {
        let server = case.start(|| Echo);
        let address = server.running.local_addr();
        let mut streams: Vec<Stream> = (0..20).map(|_| server.connect()).collect();
        for stream in &mut streams {
            ask(stream, b"hello");
        }
        server.running.shutdown(LONG);
        TcpStream::connect(address).unwrap_err();
        for stream in &mut streams {
            // The end is told.
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        }
    });
}

#[test]
fn a_shutdown_lets_a_handler_finish() {
    on_both(|case| {
        let server = case.start(|| Busy { is_draining: false });
        let address = server.running.local_addr();
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        let closing = thread::spawn(move || server.running.shutdown(LONG));
        wait_until_refused(address);
        let mut told = [0; 5];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"hurry");
        assert_eq!(ask(&mut stream, b"still served"), b"still served");
        assert_eq!(ask(&mut stream, b"enough"), b"enough");
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        closing.join().unwrap();
    });
}

#[test]
fn a_shutdown_does_not_wait_for_handshakes() {
    on_both(|case| {
        if !case.is_secure {
            return;
        }
        let server = case.start(|| Busy { is_draining: false });
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        let mut silent = server.connect_plain();
        server.wait_for(|counters| counters.accepted == 2);
        let closing = thread::spawn(move || server.running.shutdown(LONG));
        assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
        // While others have their time.
        let mut told = [0; 5];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(ask(&mut stream, b"enough"), b"enough");
        closing.join().unwrap();
    });
}

#[test]
fn a_shutdown_cuts_off_who_is_not_done_in_time() {
    on_both(|case| {
        let is_secure = case.is_secure;
        let server = case.start(|| Busy { is_draining: false });
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        server.running.shutdown(Duration::from_secs(1));
        let mut told = [0; 5];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"hurry");
        assert!(is_cut_off(stream.read(&mut [0; 1]), is_secure));
    });
}

#[test]
fn functions_hear_of_a_shutdown() {
    on_both(|case| {
        async fn serve(mut stream: ringloop::net::TcpStream, client: Client) -> io::Result<()> {
            assert!(!client.is_draining());
            let mut draining = std::pin::pin!(client.draining());
            // Asked by another task first, as happens where a future is passed on.
            let waker = std::task::Waker::noop();
            let mut context = std::task::Context::from_waker(waker);
            assert!(draining.as_mut().poll(&mut context).is_pending());
            stream.write_all(&b"ready"[..]).await.0?;
            draining.await;
            assert!(client.is_draining());
            client.draining().await;
            stream.write_all(&b"bye"[..]).await.0
        }
        let running = case.server.start_with(serve).unwrap();
        let server = Served {
            running,
            is_secure: false,
        };
        let mut streams: Vec<Stream> = (0..5).map(|_| server.connect()).collect();
        for stream in &mut streams {
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        server.running.shutdown(LONG);
        for stream in &mut streams {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"bye");
        }
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
fn an_address_in_use_and_a_limit_of_nothing_are_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for workers in [1, 2] {
        let server = Server::bind(&address).workers(workers);
        let error = server.start(|| Echo).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
    let server = || Server::bind("127.0.0.1:0");
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
        let server = |address: &str| Server::bind(address).workers(workers);
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
