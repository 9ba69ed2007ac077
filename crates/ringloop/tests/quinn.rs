//! QUIC by quinn, on both backends.

mod common;
#[path = "common/quic.rs"]
mod quic;

use std::future::{Future, poll_fn};
use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, ConnectionError, Runtime as _, TransportConfig};
use ringloop::quinn::RingloopRuntime;
use ringloop::time::{sleep, timeout};
use ringloop::{Pool, Runtime, spawn, yield_now};

use common::{LONG, backends, config, on_both, pattern, pool_config};
use quic::{Identity, connect, echo, serve_echo};

/// Runs a future in a thread that has no runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(start.elapsed() < LONG, "it waits for ever");
        thread::park_timeout(LONG);
    }
}

#[test]
fn bulk_comes_back_on_several_streams_and_connections() {
    on_both(|runtime| {
        runtime.block_on(async {
            let identity = Identity::new();
            let ours = RingloopRuntime::current();
            let server = identity.endpoint(&ours).unwrap();
            let address = server.local_addr().unwrap();
            let serving = spawn(serve_echo(server.clone()));
            let client = identity.endpoint(&ours).unwrap();
            let clients: Vec<_> = (0..3)
                .map(|index| {
                    let client = client.clone();
                    spawn(async move {
                        let connection = connect(&client, address).await;
                        let streams = (0..4).map(|stream| {
                            let connection = connection.clone();
                            async move {
                                echo(&connection, &pattern(700_000 * stream + 1000 * index)).await;
                            }
                        });
                        futures_util::future::join_all(streams).await;
                        connection.close(0_u32.into(), b"done");
                    })
                })
                .collect();
            for task in clients {
                timeout(LONG, task).await.unwrap().unwrap();
            }
            timeout(LONG, client.wait_idle()).await.unwrap();
            server.close(0_u32.into(), b"");
            timeout(LONG, serving).await.unwrap().unwrap();
            timeout(LONG, server.wait_idle()).await.unwrap();
        });
    });
}

#[test]
fn an_endpoint_of_one_worker_is_used_from_another_one_and_from_any_thread() {
    for backend in backends() {
        let pool = Pool::new(2, &pool_config(backend)).unwrap();
        let identity = Arc::new(Identity::new());
        let (sender, receiver) = mpsc::channel();
        let made = Arc::clone(&identity);
        let serving = pool.spawn_on(0, move || async move {
            let server = made.endpoint(&RingloopRuntime::current()).unwrap();
            sender.send(server.clone()).unwrap();
            serve_echo(server).await;
        });
        let server = receiver.recv_timeout(LONG).unwrap();
        let address = server.local_addr().unwrap();
        let made = Arc::clone(&identity);
        let worker = pool.spawn_on(1, move || async move {
            let client = made.endpoint(&RingloopRuntime::current()).unwrap();
            let connection = connect(&client, address).await;
            echo(&connection, &pattern(300_000)).await;
            (client, connection)
        });
        let (client, connection) = block_on(worker).unwrap();
        // No runtime runs here: quinn's tasks and sockets are in the worker.
        block_on(async {
            echo(&connection, &pattern(300_000)).await;
            let another = connect(&client, address).await;
            echo(&another, &pattern(1000)).await;
            client
                .rebind(UdpSocket::bind("127.0.0.1:0").unwrap())
                .unwrap();
            echo(&another, &pattern(100_000)).await;
            another.close(0_u32.into(), b"");
            connection.close(0_u32.into(), b"");
            client.wait_idle().await;
            server.close(0_u32.into(), b"");
            server.wait_idle().await;
        });
        block_on(serving).unwrap();
        // As long as there is an endpoint, it has a task.
        drop((server, client, connection));
        pool.shutdown(LONG);
    }
}

#[test]
fn an_endpoint_may_be_made_before_its_runtime_runs() {
    on_both(|runtime| {
        let identity = Identity::new();
        let ours = RingloopRuntime::new(runtime.handle());
        let (server, client) = (identity.endpoint(&ours), identity.endpoint(&ours));
        let (server, client) = (server.unwrap(), client.unwrap());
        runtime.block_on(async {
            let address = server.local_addr().unwrap();
            let serving = spawn(serve_echo(server.clone()));
            let connection = connect(&client, address).await;
            echo(&connection, &pattern(10_000)).await;
            connection.close(0_u32.into(), b"");
            client.wait_idle().await;
            server.close(0_u32.into(), b"");
            serving.await.unwrap();
        });
        drop((server, client));
    });
}

#[test]
fn a_peer_that_never_answers_is_given_up() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut identity = Identity::new();
            let mut transport = TransportConfig::default();
            let idle = Duration::from_millis(200);
            transport.max_idle_timeout(Some(idle.try_into().unwrap()));
            identity.transport = Arc::new(transport);
            let client = identity.endpoint(&RingloopRuntime::current()).unwrap();
            let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
            let connecting = client.connect(silent.local_addr().unwrap(), quic::NAME);
            let start = Instant::now();
            let result = timeout(LONG, connecting.unwrap()).await.unwrap();
            assert_eq!(result.unwrap_err(), ConnectionError::TimedOut);
            assert!(start.elapsed() >= idle);
        });
    });
}

#[test]
fn what_waits_for_a_runtime_that_has_ended_is_told() {
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let identity = Identity::new();
        let ours = RingloopRuntime::new(runtime.handle());
        let (server, connection, socket) = runtime.block_on(async {
            let server = identity.endpoint(&ours).unwrap();
            let serving = spawn(serve_echo(server.clone()));
            let connection = connect(&server, server.local_addr().unwrap()).await;
            echo(&connection, b"x").await;
            serving.abort();
            let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
            (server, connection, ours.wrap_udp_socket(plain).unwrap())
        });
        let waiting = thread::spawn({
            let socket = Arc::clone(&socket);
            move || block_on(receive(&*socket))
        });
        thread::sleep(Duration::from_millis(5));
        drop(runtime);
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        let mut poller = Arc::clone(&socket).create_io_poller();
        let writable = block_on(poll_fn(|context| poller.as_mut().poll_writable(context)));
        assert_eq!(writable.unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert!(block_on(server.accept()).is_none());
        drop((connection, server));
        // One that is made too late.
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        let late = ours.wrap_udp_socket(plain).unwrap();
        let error = block_on(receive(&*late)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    }
}

async fn receive(socket: &dyn AsyncUdpSocket) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 1500];
    let mut meta = [RecvMeta::default()];
    let count = poll_fn(|context| {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        socket.poll_recv(context, &mut buffers, &mut meta)
    });
    assert_eq!(count.await?, 1);
    Ok(bytes[..meta[0].len].to_vec())
}

#[test]
fn a_socket_wakes_whoever_waits_in_any_thread() {
    const ROUNDS: u32 = 200;
    on_both(|runtime| {
        let ours = RingloopRuntime::new(runtime.handle());
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = plain.local_addr().unwrap();
        let socket = ours.wrap_udp_socket(plain).unwrap();
        let elsewhere = thread::spawn({
            let socket = Arc::clone(&socket);
            move || {
                let near = UdpSocket::bind("127.0.0.1:0").unwrap();
                near.set_read_timeout(Some(LONG)).unwrap();
                for round in 0..ROUNDS {
                    near.send_to(&round.to_le_bytes(), address).unwrap();
                    let bytes = block_on(receive(&*socket)).unwrap();
                    assert_eq!(bytes, round.to_le_bytes());
                    let transmit = Transmit {
                        destination: near.local_addr().unwrap(),
                        ecn: None,
                        contents: &bytes,
                        segment_size: None,
                        src_ip: None,
                    };
                    socket.try_send(&transmit).unwrap();
                    assert_eq!(near.recv(&mut [0; 8]).unwrap(), 4);
                }
            }
        });
        let waiting = async {
            while !elsewhere.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        runtime.block_on(async { timeout(LONG, waiting).await.unwrap() });
        elsewhere.join().unwrap();
    });
}

async fn expiry(timer: &mut Pin<Box<dyn AsyncTimer>>) {
    poll_fn(|context| timer.as_mut().poll(context)).await;
}

#[test]
fn timers_expire_when_they_should_in_any_thread() {
    let (short, long) = (Duration::from_millis(5), 2 * LONG);
    on_both(|runtime| {
        let ours = RingloopRuntime::new(runtime.handle());
        runtime.block_on(async {
            let start = Instant::now();
            let mut timer = ours.new_timer(start + short);
            expiry(&mut timer).await;
            assert!(start.elapsed() >= short);
            // It may be used again, and expires at once if it is late.
            expiry(&mut timer).await;
            timer.as_mut().reset(Instant::now() + long);
            let mut context = Context::from_waker(Waker::noop());
            assert!(timer.as_mut().poll(&mut context).is_pending());
            timer.as_mut().reset(Instant::now() + short);
            timeout(LONG, expiry(&mut timer)).await.unwrap();
            // Changed while a task waits.
            let mut timer = ours.new_timer(Instant::now() + long);
            let waiting = poll_fn(|context| {
                let polled = timer.as_mut().poll(context);
                timer.as_mut().reset(Instant::now());
                polled
            });
            timeout(LONG, waiting).await.unwrap();
            // What is dropped leaves nothing behind, in this thread and in another one.
            let mut timers = [0; 2].map(|_| ours.new_timer(Instant::now() + long));
            for timer in &mut timers {
                assert!(timer.as_mut().poll(&mut context).is_pending());
            }
            let [here, there] = timers;
            drop(here);
            thread::spawn(move || drop(there)).join().unwrap();
            yield_now().await;
        });
        let elsewhere = thread::spawn(move || {
            let mut timer = ours.new_timer(Instant::now() + short);
            block_on(expiry(&mut timer));
            timer.as_mut().reset(Instant::now() + long);
            let mut context = Context::from_waker(Waker::noop());
            assert!(timer.as_mut().poll(&mut context).is_pending());
            timer.as_mut().reset(Instant::now() + short);
            block_on(expiry(&mut timer));
            timer.as_mut().reset(Instant::now() + long);
            assert!(timer.as_mut().poll(&mut context).is_pending());
        });
        let waiting = async {
            while !elsewhere.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        runtime.block_on(async { timeout(LONG, waiting).await.unwrap() });
        elsewhere.join().unwrap();
    });
}
