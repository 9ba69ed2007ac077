//! What the tests of the runtime's I/O share.

#![allow(dead_code, reason = "no test uses all of it")]

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use ringloop::driver::{BackendChoice, BackendKind, Config};
use ringloop::net::{TcpListener, TcpStream};
use ringloop::time::sleep;
use ringloop::{Runtime, RuntimeConfig, yield_now};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Runs a body on each backend that is to be had, and looks that it leaves nothing behind.
pub(crate) fn on_both(body: impl Fn(&mut Runtime)) {
    for backend in [BackendChoice::IoUring, BackendChoice::Epoll] {
        let mut runtime = match Runtime::new(&config(backend)) {
            Ok(runtime) => runtime,
            Err(error) if backend == BackendChoice::IoUring => {
                eprintln!("left out: {error}");
                continue;
            }
            Err(error) => panic!("epoll is refused: {error}"),
        };
        body(&mut runtime);
        until_nothing_is_left(&mut runtime);
    }
}

/// Runs until the runtime holds nothing: what was told to end last ends in a later turn; operations that threads work on,
/// when they are done.
pub(crate) fn until_nothing_is_left(runtime: &mut Runtime) {
    runtime.block_on(yield_now());
    let start = Instant::now();
    let mut left = Left::of(runtime);
    while left != Left::default() {
        assert!(start.elapsed() < LONG, "{}: {left:?}", runtime.backend());
        runtime.block_on(sleep(Duration::from_micros(200)));
        left = Left::of(runtime);
    }
}

/// What a runtime holds.
#[derive(Debug, Default, PartialEq)]
struct Left {
    tasks: u64,
    timers: u64,
    sources: u64,
    watches: u64,
    operations: u64,
}

impl Left {
    fn of(runtime: &Runtime) -> Self {
        let metrics = runtime.metrics();
        Self {
            tasks: metrics.tasks_live,
            timers: metrics.timers,
            sources: metrics.sources,
            watches: metrics.reactor.driver.watches,
            operations: metrics.reactor.driver.operations,
        }
    }
}

pub(crate) fn config(backend: BackendChoice) -> RuntimeConfig {
    let mut config = RuntimeConfig::default();
    config.reactor.driver = Config::with_backend(backend);
    config
}

/// The settings of another runtime on the same backend.
pub(crate) fn config_on(backend: BackendKind) -> RuntimeConfig {
    config(backend.name().parse().unwrap())
}

/// Polls a future so many times, with a turn in between, and drops it at once if it is not over by then.
pub(crate) async fn poll_times<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    for turn in 0..times {
        if turn > 0 {
            yield_now().await;
        }
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
    }
    None
}

/// Bytes that tell where they are, for a stream of any length.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| ((index * 7) >> 3) as u8).collect()
}

/// The two ends of a TCP connection.
pub(crate) async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (far, _) = listener.accept().await.unwrap();
    (near, far)
}
