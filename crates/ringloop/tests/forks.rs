//! A child after fork(2), and its parent's reactor and runtime: it may do nothing that the parent notices.

mod common;

use std::future::Future;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use common::{LONG, backends, config, in_child, on_both, pool_config, tcp};
use ringloop::fs::File;
use ringloop::net::UnixStream;
use ringloop::server::{Connection, Handler, Server};
use ringloop::signal::{self, SignalKind, signal};
use ringloop::{BusyPoll, Pool, Reactor, ReactorConfig};

fn is_open(descriptor: RawFd) -> bool {
    // SAFETY: F_GETFD accesses no memory and changes nothing.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
}

#[test]
fn a_child_that_polls_for_events_hears_of_the_fork_instead_of_touching_the_ring() {
    for backend in backends() {
        for busy_poll in [BusyPoll::Off, BusyPoll::Fixed(Duration::from_secs(3_600))] {
            let mut config = ReactorConfig::default();
            config.driver.backend = backend;
            config.busy_poll = busy_poll;
            let mut reactor = Reactor::new(&config).unwrap();
            reactor.poll_now(&mut Vec::new()).unwrap();
            let waker = reactor.waker();
            in_child(|| {
                let waited = reactor.turn(None, &mut Vec::new());
                waited.is_err_and(|error| error.to_string().contains("fork"))
            });
            // The parent's reactor still works.
            waker.wake();
            reactor.turn(None, &mut Vec::new()).unwrap();
        }
    }
}

#[test]
fn a_child_closes_its_own_descriptors_of_inherited_connections() {
    on_both(|runtime| {
        let (near, mut far) = runtime.block_on(async { UnixStream::pair().unwrap() });
        let mut near = Some(near);
        in_child(|| {
            let near = near.take().unwrap();
            let descriptor = near.as_raw_fd();
            drop(near);
            !is_open(descriptor)
        });
        runtime
            .block_on(async {
                let mut near = near.take().unwrap();
                near.write_all(&b"alive"[..]).await.0?;
                assert_eq!(far.read(Vec::with_capacity(8)).await.1, b"alive");
                Ok::<(), io::Error>(())
            })
            .unwrap();
    });
}

#[test]
fn a_child_gets_back_what_its_parents_runtime_cannot_do_for_it() {
    on_both(|runtime| {
        let path = std::env::temp_dir().join(format!("ringloop-forks-{}", std::process::id()));
        let file = File::from(std::fs::File::create(&path).unwrap());
        std::fs::remove_file(path).unwrap();
        in_child(|| {
            let (written, buffer) =
                runtime.block_on(file.write_all_at(b"the only copy".to_vec(), 0));
            written.is_err_and(|error| error.to_string().contains("fork"))
                && buffer == b"the only copy"
        });
    });
}

#[test]
fn a_child_that_drops_a_send_does_not_shut_down_the_connection() {
    for backend in backends() {
        let mut runtime = ringloop::Runtime::new(&config(backend)).unwrap();
        let (mut near, mut far) = runtime.block_on(tcp());
        let bytes = Bytes::from(vec![7; 16 << 20]);
        let mut sending = Some(Box::pin(near.write_all_zero_copy(bytes.clone())));
        runtime.block_on(async {
            let sending = sending.as_mut().unwrap().as_mut();
            let mut context = Context::from_waker(Waker::noop());
            assert!(sending.poll(&mut context).is_pending());
            ringloop::yield_now().await;
        });
        in_child(|| {
            drop(sending.take());
            true
        });
        runtime.block_on(async {
            let sending = sending.take().unwrap();
            let reading = async {
                let mut received = Vec::with_capacity(bytes.len());
                while received.len() < bytes.len() {
                    let count;
                    (count, received) = far.read(received).await;
                    assert!(
                        count.unwrap() > 0,
                        "{backend}: the end after {} bytes",
                        received.len()
                    );
                }
                received
            };
            let ((sent, _), received) = futures_util::future::join(sending, reading).await;
            sent.unwrap();
            assert!(received == bytes);
        });
    }
}

#[test]
fn a_child_may_drop_its_parents_pool() {
    for backend in backends() {
        let mut pools = [(); 2].map(|()| Pool::new(2, &pool_config(backend)).ok());
        in_child(|| {
            let [first, second] = &mut pools;
            drop(first.take());
            second.take().unwrap().shutdown(LONG);
            true
        });
        let pool = pools[0].take().unwrap();
        let task = pool.spawn_on(1, || async { 7 });
        let result = ringloop::Runtime::new(&config(backend))
            .unwrap()
            .block_on(task);
        assert_eq!(result.unwrap(), 7);
    }
}

#[test]
fn a_child_may_drop_its_parents_server() {
    struct Echo;

    impl Handler for Echo {
        fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
            connection.write(bytes)
        }
    }

    for backend in backends() {
        let start = || {
            let server = Server::new("127.0.0.1:0").pool_config(pool_config(backend));
            Some(server.workers(1).start(|| Echo).unwrap())
        };
        let mut servers = [(); 2].map(|()| start());
        in_child(|| {
            let [first, second] = &mut servers;
            drop(first.take());
            second.take().unwrap().shutdown(LONG);
            true
        });
        for server in servers.into_iter().flatten() {
            let mut client = std::net::TcpStream::connect(server.local_addr()).unwrap();
            client.write_all(b"still here").unwrap();
            let mut answer = [0; 10];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"still here");
        }
    }
}

#[test]
fn a_child_hears_of_a_signal_whose_default_its_parent_has_restored() {
    let kind = SignalKind::user_defined1();
    for backend in backends() {
        let mut runtime = ringloop::Runtime::new(&config(backend)).unwrap();
        let listening = runtime.block_on(async { signal(kind).unwrap() });
        signal::restore_default(kind).unwrap();
        in_child(|| {
            let mut runtime = ringloop::Runtime::new(&config(backend)).unwrap();
            runtime.block_on(async {
                let mut listening = signal(kind).unwrap();
                // SAFETY: only sends a signal to this process, which has a handler for it.
                assert_eq!(unsafe { libc::raise(kind.as_raw()) }, 0);
                listening.recv().await.unwrap();
            });
            true
        });
        drop(listening);
    }
}
