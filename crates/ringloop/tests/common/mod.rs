//! Helpers that the tests of the runtime's I/O share.

#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod named;

use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use ringloop::driver::{BackendChoice, BackendKind, Config, Driver};
use ringloop::net::{TcpListener, TcpStream};
use ringloop::time::sleep;
use ringloop::{PoolConfig, Runtime, RuntimeConfig, yield_now};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The backends that this machine grants: `io_uring` may be refused, epoll may not.
pub(crate) fn backends() -> impl Iterator<Item = BackendChoice> {
    let both = [BackendChoice::IoUring, BackendChoice::Epoll];
    both.into_iter().filter(
        |backend| match Driver::new(&Config::with_backend(*backend)) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(*backend, BackendChoice::IoUring, "{error}");
                eprintln!("left out: {error}");
                false
            }
        },
    )
}

/// Runs a body on each backend, and checks that it leaves nothing behind.
pub(crate) fn on_both(body: impl Fn(&mut Runtime)) {
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        body(&mut runtime);
        until_nothing_is_left(&mut runtime);
    }
}

/// Runs a body in a child process, and checks that it returns true. The child is then ended without destructors; it is
/// killed if it does not end.
pub(crate) fn in_child(body: impl FnOnce() -> bool) {
    // SAFETY: the child uses the C library, which takes care of its own locks, and nothing that another thread of this
    // process may have locked.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let held = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!matches!(held, Ok(true)))) };
    }
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for writes, and the child is ours.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            assert_eq!(status, 0, "the child has failed");
            return;
        }
        if start.elapsed() > LONG {
            // SAFETY: takes no memory of ours. The child is ours, and has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs until the runtime holds nothing. Some operations end in a later turn, or when a thread has finished them.
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

/// The resources that a runtime holds.
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

pub(crate) fn pool_config(backend: BackendChoice) -> PoolConfig {
    let mut pool = PoolConfig::default();
    pool.runtime = config(backend);
    pool
}

/// The settings of another runtime on the same backend.
pub(crate) fn config_on(backend: BackendKind) -> RuntimeConfig {
    config(backend.name().parse().unwrap())
}

/// Polls a future at most this many times, with a turn in between, and then drops it.
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

/// Bytes that depend on their position, for a stream of any length.
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

/// Connects a blocking client to a server under test.
pub(crate) fn connect(address: SocketAddr) -> std::net::TcpStream {
    with_time_limits(std::net::TcpStream::connect(address).unwrap())
}

/// A connection whose calls fail rather than hang.
pub(crate) fn with_time_limits(stream: std::net::TcpStream) -> std::net::TcpStream {
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// Reads once, in a blocking client. If a process was stopped for a while, the kernel returns `Interrupted` for a
/// socket with a time limit (signal(7)). The methods of [`Read`] that read repeatedly handle that, `read` does not.
pub(crate) trait ReadOnce: Read {
    fn read_once(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl<T: Read + ?Sized> ReadOnce for T {}

/// Sends something to a server that sends it back.
pub(crate) fn echo(stream: &mut (impl Read + Write + ?Sized), question: &[u8]) {
    stream.write_all(question).unwrap();
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer == question, "{} bytes", question.len());
}
