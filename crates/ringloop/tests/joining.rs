//! `copy_bidirectional`, on both backends.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::io::ErrorKind;
use std::net::Shutdown;

use ringloop::net::{Stream, TcpStream, UnixStream};
use ringloop::time::timeout;
use ringloop::tls::{TlsAcceptor, TlsConnector, TlsStream};
use ringloop::{JoinHandle, io, spawn, yield_now};
use socket2::SockRef;

use certificates::{NAME, client, server};
use common::{LONG, on_both, pattern, tcp};

type Joined = JoinHandle<std::io::Result<(u64, u64)>>;

/// Runs a body on each backend; it fails instead of hanging.
fn each(body: impl AsyncFn()) {
    on_both(|runtime| runtime.block_on(async { timeout(LONG, body()).await.unwrap() }));
}

/// Two connections that are joined: the far end of each, and the task in between.
macro_rules! joined {
    ($first:expr, $second:expr) => {{
        let ((left, mut first), (mut second, right)) = ($first, $second);
        let joined: Joined =
            spawn(async move { io::copy_bidirectional(&mut first, &mut second).await });
        (left, right, joined)
    }};
}

/// Reads until the end.
macro_rules! rest {
    ($stream:expr) => {{
        let mut all = Vec::new();
        loop {
            all.reserve(64 * 1024);
            let result;
            (result, all) = $stream.read(all).await;
            if result.unwrap() == 0 {
                break all;
            }
        }
    }};
}

/// Both ends of a TLS connection.
async fn tls<S: Stream + 'static>((near, far): (S, S)) -> (TlsStream<S>, TlsStream<S>) {
    let acceptor = TlsAcceptor::new(server()).handshake_timeout(LONG);
    let accepting = spawn(async move { acceptor.accept(far).await });
    let connector = TlsConnector::new(client()).handshake_timeout(LONG);
    let near = connector.connect(NAME.try_into().unwrap(), near).await;
    (near.unwrap(), accepting.await.unwrap().unwrap())
}

#[test]
fn half_closes_are_passed_on() {
    let (question, answer) = (pattern(3_000_000), pattern(4_000_000));
    each(async || {
        for bulk in [false, true] {
            let (question, answer) = if bulk {
                (&question[..], &answer[..])
            } else {
                (&question[..10], &answer[..20])
            };
            let (mut left, mut right, joined) = joined!(tcp().await, UnixStream::pair().unwrap());
            let asked = question.to_vec();
            let asking = spawn(async move {
                left.write_all(&asked[..]).await.0.unwrap();
                left.shutdown(Shutdown::Write).unwrap();
                rest!(left)
            });
            assert!(rest!(right) == question);
            right.write_all(answer).await.0.unwrap();
            drop(right);
            assert!(asking.await.unwrap() == answer);
            let counts = joined.await.unwrap().unwrap();
            assert_eq!(counts, (question.len() as u64, answer.len() as u64));
        }
    });
}

#[test]
fn both_directions_run_at_once() {
    let bytes = pattern(2_000_000);
    each(async || {
        let (left, right, joined) = joined!(tcp().await, tcp().await);
        let mut tasks = Vec::new();
        for end in [left, right] {
            let (mut reader, mut writer) = end.into_split();
            let mine = bytes.clone();
            tasks.push(spawn(async move {
                for piece in mine.chunks(12_345) {
                    writer.write_all(piece).await.0.unwrap();
                    yield_now().await;
                }
                Vec::new()
            }));
            tasks.push(spawn(async move { rest!(reader) }));
        }
        for task in tasks {
            let received = task.await.unwrap();
            assert!(received.is_empty() || received == bytes);
        }
        assert_eq!(joined.await.unwrap().unwrap(), (2_000_000, 2_000_000));
    });
}

#[test]
fn tls_is_joined_with_what_is_not() {
    let bytes = pattern(1_000_000);
    each(async || {
        let (mut left, mut right, joined) =
            joined!(tls(tcp().await).await, UnixStream::pair().unwrap());
        let question = bytes.clone();
        let asking = spawn(async move {
            left.write_all(&question[..]).await.0.unwrap();
            left.shutdown().await.unwrap();
            rest!(left)
        });
        assert!(rest!(right) == bytes);
        right.write_all(&b"an answer"[..]).await.0.unwrap();
        drop(right);
        // With close_notify, or reading would fail.
        assert_eq!(asking.await.unwrap(), b"an answer");
        assert_eq!(joined.await.unwrap().unwrap(), (1_000_000, 9));

        // Both sides are TLS, and one of them is cut off.
        let (mut left, right, joined) = joined!(
            tls(tcp().await).await,
            tls(UnixStream::pair().unwrap()).await
        );
        left.write_all(&b"text"[..]).await.0.unwrap();
        let mut right = right;
        assert_eq!(right.read(Vec::with_capacity(64)).await.1, b"text");
        // With this, the client has read all that has arrived, so that closing does not reset the connection.
        right.write_all(&b"reply"[..]).await.0.unwrap();
        assert_eq!(left.read(Vec::with_capacity(64)).await.1, b"reply");
        drop(left);
        let error = joined.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn tls_is_copied_to_and_from_files() {
    let contents = pattern(700_000);
    let path = std::env::temp_dir().join(format!("ringloop-joining-{}", std::process::id()));
    each(async || {
        std::fs::write(&path, &contents).unwrap();
        let (mut near, mut far) = tls(tcp().await).await;
        let sent = path.clone();
        let sending = spawn(async move {
            let mut file = ringloop::fs::File::open(&sent).await.unwrap();
            assert_eq!(io::copy(&mut file, &mut near).await.unwrap(), 700_000);
            near.shutdown().await.unwrap();
            near
        });
        let copy = path.with_extension("copy");
        let mut file = ringloop::fs::File::create(&copy).await.unwrap();
        assert_eq!(
            io::copy_up_to(&mut far, &mut file, 100_001).await.unwrap(),
            100_001
        );
        assert_eq!(io::copy(&mut far, &mut file).await.unwrap(), 599_999);
        drop(sending.await.unwrap());
        assert!(std::fs::read(&copy).unwrap() == contents);
        std::fs::remove_file(copy).unwrap();
    });
    std::fs::remove_file(path).unwrap();
}

/// Makes dropping a connection reset it.
fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(std::time::Duration::ZERO))
        .unwrap();
    drop(stream);
}

#[test]
fn an_error_of_either_side_ends_both() {
    each(async || {
        for side in 0..2 {
            let (mut left, mut right, joined) = joined!(tcp().await, tcp().await);
            left.write_all(&b"there"[..]).await.0.unwrap();
            assert_eq!(right.read(Vec::with_capacity(9)).await.1, b"there");
            let (gone, mut stays) = if side == 0 {
                (left, right)
            } else {
                (right, left)
            };
            reset(gone);
            let error = joined.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            // Its connections are dropped with it.
            assert!(matches!(
                stays.read(Vec::with_capacity(9)).await.0,
                Ok(0) | Err(_)
            ));
        }
    });
}

#[test]
fn a_side_that_reads_slowly_slows_down_the_other() {
    each(async || {
        let (mut left, mut right, joined) = joined!(tcp().await, tcp().await);
        let mut sent = 0;
        // As much as there is room for on the way.
        let mut idle_turns = 0;
        while idle_turns < 100 {
            match left.try_write(&[7; 16_000]) {
                Ok(count) => (sent, idle_turns) = (sent + count, 0),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    idle_turns += 1;
                    yield_now().await;
                }
            }
            assert!(sent < 1 << 30, "nothing holds the sender back");
        }
        // The other direction is as fast as ever.
        right.write_all(&b"quick"[..]).await.0.unwrap();
        assert_eq!(left.read(Vec::with_capacity(9)).await.1, b"quick");
        left.shutdown(Shutdown::Write).unwrap();
        let mut received = 0;
        loop {
            let (count, _) = right.read(Vec::with_capacity(1 << 20)).await;
            match count.unwrap() {
                0 => break,
                count => received += count,
            }
        }
        assert_eq!(received, sent);
        drop(right);
        assert_eq!(joined.await.unwrap().unwrap(), (sent as u64, 5));
    });
}
