//! Sends without a copy, on both backends: what arrives, in which order, and who owns the bytes until when.

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::{LONG, on_both, pattern, poll_times, tcp};
use ringloop::driver::BackendKind;
use ringloop::net::TcpStream;
use ringloop::time::timeout;
use ringloop::{spawn, yield_now};

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        received.reserve(256 * 1024);
        let (count, filled) = timeout(LONG, stream.read(received)).await.unwrap();
        received = filled;
        if count.unwrap() == 0 {
            return received;
        }
    }
}

/// Bytes that count how many of their kind are alive, and are overwritten when they are freed.
struct Counted {
    bytes: Vec<u8>,
    alive: Arc<AtomicUsize>,
}

impl Counted {
    fn bytes(bytes: Vec<u8>, alive: &Arc<AtomicUsize>) -> Bytes {
        alive.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Self {
            bytes,
            alive: Arc::clone(alive),
        })
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bytes.fill(0xff);
        self.alive.fetch_sub(1, Ordering::Relaxed);
        // A destructor may use the runtime.
        if std::thread::panicking() {
            return;
        }
        drop(spawn(async {}));
    }
}

/// The kernel releases memory some time after it was sent.
async fn until_none_is_alive(alive: &AtomicUsize) {
    timeout(LONG, async {
        while alive.load(Ordering::Relaxed) > 0 {
            yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[test]
fn bodies_of_any_size_arrive_between_other_writes() {
    on_both(|runtime| {
        let alive = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            let (mut near, mut far) = tcp().await;
            let reading = spawn(async move { read_to_end(&mut far).await });
            let mut expected = Vec::new();
            for size in [
                0,
                1,
                32 * 1024 - 1,
                32 * 1024,
                1 << 20,
                (5 << 20) + 7,
                100_000,
            ] {
                let body = pattern(size);
                near.write_all(&b"before"[..]).await.0.unwrap();
                let (result, rest) = near
                    .write_all_zero_copy(Counted::bytes(body.clone(), &alive))
                    .await;
                result.unwrap();
                assert!(rest.is_empty());
                near.write_all(&b"behind"[..]).await.0.unwrap();
                expected.extend_from_slice(b"before");
                expected.extend_from_slice(&body);
                expected.extend_from_slice(b"behind");
            }
            drop(near);
            assert!(reading.await.unwrap() == expected, "the bytes differ");
            until_none_is_alive(&alive).await;
        });
        let driver = runtime.metrics().reactor.driver;
        assert!(driver.zero_copy_sends >= 1);
        if runtime.backend() == BackendKind::Epoll {
            assert_eq!(
                (driver.zero_copy_sends, driver.zero_copy_copies),
                (1, 1),
                "a copy is made, so the connection does without the attempts"
            );
        }
    });
}

#[test]
fn halves_and_several_connections_share_a_body() {
    on_both(|runtime| {
        let alive = Arc::new(AtomicUsize::new(0));
        let body = Counted::bytes(pattern(700_000), &alive);
        runtime.block_on(async {
            let mut tasks = Vec::new();
            for _ in 0..8 {
                let (near, mut far) = tcp().await;
                let body = body.clone();
                tasks.push(spawn(async move {
                    let (reader, mut writer) = near.into_split();
                    writer.write_all_zero_copy(body).await.0.unwrap();
                    drop((reader, writer));
                }));
                let expected = pattern(700_000);
                tasks.push(spawn(async move {
                    assert!(read_to_end(&mut far).await == expected);
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(alive.load(Ordering::Relaxed), 1);
            drop(body);
            until_none_is_alive(&alive).await;
        });
    });
}

/// A write that is dropped has sent some of its first bytes, and none of them come after what is written next.
#[test]
fn a_write_that_is_dropped_at_any_point_leaves_the_order() {
    on_both(|runtime| {
        let alive = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            let body = pattern(8 << 20);
            for times in 1..10 {
                let (mut near, mut far) = tcp().await;
                let sending = near.write_all_zero_copy(Counted::bytes(body.clone(), &alive));
                assert!(poll_times(times, sending).await.is_none());
                // Without room it waits, which needs a reader.
                let writing =
                    spawn(async move { near.write_all(&b"the end"[..]).await.0.unwrap() });
                let received = read_to_end(&mut far).await;
                writing.await.unwrap();
                let sent = received.strip_suffix(b"the end").expect("the last words");
                assert!(sent == &body[..sent.len()], "the bytes differ");
            }
            until_none_is_alive(&alive).await;
        });
    });
}

#[test]
fn a_peer_that_goes_away_is_an_error_and_the_rest_comes_back() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = tcp().await;
            let whole = Bytes::from(pattern(16 << 20));
            let body = whole.clone();
            let writing = spawn(async move { near.write_all_zero_copy(body).await });
            let (count, _) = far.read(Vec::with_capacity(1000)).await;
            assert!(count.unwrap() > 0);
            drop(far);
            let (result, rest) = timeout(LONG, writing).await.unwrap().unwrap();
            assert!(matches!(
                result.unwrap_err().kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ));
            assert!(!rest.is_empty() && whole.ends_with(&rest));
        });
    });
}

#[test]
fn a_runtime_dropped_under_a_write_sends_nothing_that_is_freed() {
    use std::io::Read;

    on_both(|runtime| {
        let backend = runtime.backend();
        let mut inner = ringloop::Runtime::new(&common::config_on(backend)).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        inner.block_on(async {
            let mut near = TcpStream::connect(address).await.unwrap();
            drop(spawn(async move {
                let body = Bytes::from(pattern(8 << 20));
                near.write_all_zero_copy(body).await
            }));
            yield_now().await;
            yield_now().await;
        });
        let (mut far, _) = listener.accept().unwrap();
        drop(inner);
        let mut received = Vec::new();
        far.set_read_timeout(Some(LONG)).unwrap();
        far.read_to_end(&mut received).unwrap();
        assert!(received == pattern(8 << 20)[..received.len()], "{backend}");
    });
}
