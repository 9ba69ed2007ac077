//! The promises of docs/rust.md that no other test covers.

mod common;

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use common::{LONG, config_on, on_both};
use ringloop::driver::{BackendChoice, BackendKind};
use ringloop::net::{TcpConnectOptions, UdpSocket, UnixDatagram, UnixStream};
use ringloop::server::{Connection, Handler, Server};
use ringloop::time::{interval, sleep, timeout};
use ringloop::tls::TlsAcceptor;
use ringloop::{
    BusyPoll, Handle, Pool, PoolConfig, Runtime, RuntimeConfig, blocking, fs, pool, spawn,
    yield_now,
};
use socket2::SockRef;

#[path = "common/certificates.rs"]
mod certificates;

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

#[test]
fn defaults_are_those_of_the_guide() {
    let config = PoolConfig::default();
    let driver = &config.runtime.reactor.driver;
    assert_eq!(driver.backend, BackendChoice::Auto);
    assert_eq!(driver.entries, 256);
    assert_eq!(driver.completion_entries.unwrap_or(8 * 256), 8 * 256);
    assert_eq!(driver.slots, 0);
    assert!(!driver.sq_poll);
    assert_eq!(config.runtime.reactor.busy_poll, BusyPoll::Adaptive);
    assert_eq!(config.runtime.hot_buffer_bytes, 256 * 1024);
    assert_eq!(config.runtime.blocking_threads, 64);
    assert_eq!(config.runtime.resolver_threads, 64);
    assert!(!config.pin);
    assert!(config.blocked_after.is_none());
    let connecting = TcpConnectOptions::default();
    assert_eq!(connecting.attempt_delay, Duration::from_millis(250));
    assert_eq!(connecting.attempt_timeout, Duration::from_secs(20));
    // What these two wait for would take as long to show.
    let acceptor = TlsAcceptor::new(certificates::server());
    assert!(
        format!("{acceptor:?}").contains("handshake_timeout: 10s"),
        "{acceptor:?}"
    );
    let server = Server::new("127.0.0.1:0");
    let text = format!("{server:?}");
    for setting in [
        "drain_timeout: 5s",
        "idle_timeout: Some(300s)",
        "nodelay: true",
    ] {
        assert!(text.contains(setting), "{text}");
    }
    let running = server.start(|| Echo).unwrap();
    assert_eq!(running.pool().workers(), pool::default_workers());
}

/// The second time in a process whose environment says so.
#[test]
fn the_environment_is_for_those_who_ask_for_it() {
    const NAME: &str = "RINGLOOP_TEST_GUIDE";
    if std::env::var_os(NAME).is_some() {
        let config = RuntimeConfig::from_env().unwrap();
        assert_eq!(config.reactor.driver.backend, BackendChoice::Epoll);
        assert_eq!(config.reactor.busy_poll, BusyPoll::Off);
        let runtime = Runtime::new(&config).unwrap();
        assert_eq!(runtime.backend(), BackendKind::Epoll);
        let reason = runtime.backend_reason();
        assert!(reason.contains("RINGLOOP_BACKEND"), "{reason}");
        let config = PoolConfig::from_env().unwrap().runtime.reactor;
        assert_eq!(config.driver.backend, BackendChoice::Epoll);
        // Nobody has asked here.
        let config = RuntimeConfig::default();
        assert_eq!(config.reactor.driver.backend, BackendChoice::Auto);
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_environment_is_for_those_who_ask_for_it"])
        .envs([
            (NAME, "1"),
            ("RINGLOOP_BACKEND", "epoll"),
            ("RINGLOOP_BUSY_POLL", "off"),
        ])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn what_needs_a_runtime_says_so_outside_of_one() {
    fn says_so<T>(call: impl FnOnce() -> T) {
        let Err(payload) = catch_unwind(AssertUnwindSafe(call)) else {
            panic!("it has worked without");
        };
        let text = payload.downcast_ref::<String>().unwrap();
        assert!(
            text.contains("no ringloop runtime runs in this thread"),
            "{text}"
        );
    }
    fn poll<F: Future>(future: F) {
        let mut context = Context::from_waker(Waker::noop());
        drop(std::pin::pin!(future).poll(&mut context));
    }
    says_so(Handle::current);
    says_so(|| spawn(async {}));
    says_so(|| poll(sleep(LONG)));
    says_so(UnixStream::pair);
    says_so(UnixDatagram::unbound);
    says_so(|| poll(UdpSocket::bind("127.0.0.1:0")));
    says_so(|| poll(fs::read("/etc/passwd")));
    says_so(ringloop::signal::ctrl_c);
    // What may be used from anywhere.
    poll(blocking::run(|| ()));
    poll(yield_now());
    let pool = Pool::new(1, &PoolConfig::default()).unwrap();
    drop(pool.handle(0).clone().spawn_with(|| async {}));
}

#[test]
fn a_panic_of_what_block_on_runs_goes_on_to_its_caller() {
    on_both(|runtime| {
        let task = runtime.spawn(async { 7 });
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                yield_now().await;
                panic!("on purpose");
            })
        }));
        let payload = panicked.unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
        // Its tasks go on.
        assert_eq!(runtime.block_on(task).unwrap(), 7);
    });
}

/// Wakers cross threads and runtimes.
#[test]
fn channels_and_locks_of_other_libraries_work() {
    on_both(|runtime| {
        let mut config = PoolConfig::default();
        config.runtime = config_on(runtime.backend());
        let pool = Pool::new(2, &config).unwrap();
        let (numbers, mut arrivals) = tokio::sync::mpsc::channel(2);
        let sum = Arc::new(tokio::sync::Mutex::new(0));
        let (first, started) = tokio::sync::oneshot::channel();
        let mut first = Some(first);
        for worker in 0..2 {
            let (numbers, sum) = (numbers.clone(), Arc::clone(&sum));
            let first = first.take();
            drop(pool.spawn_on(worker, move || async move {
                if let Some(first) = first {
                    first.send(worker).unwrap();
                }
                for number in 0..100 {
                    numbers.send(number).await.unwrap();
                    let mut sum = sum.lock().await;
                    // Others wait for it meanwhile.
                    yield_now().await;
                    *sum += number;
                }
            }));
        }
        drop(numbers);
        let received = runtime.block_on(async {
            assert_eq!(timeout(LONG, started).await.unwrap().unwrap(), 0);
            let mut received = 0;
            while let Some(number) = timeout(LONG, arrivals.recv()).await.unwrap() {
                received += number;
            }
            received
        });
        pool.shutdown(LONG);
        assert_eq!((received, *sum.blocking_lock()), (9900, 9900));
    });
}

#[test]
fn the_first_tick_comes_after_one_period() {
    on_both(|runtime| {
        runtime.block_on(async {
            let start = ringloop::time::Instant::now();
            let period = Duration::from_millis(5);
            let due = interval(period).tick().await;
            assert!(due >= start + period);
        });
    });
}

/// A spawned task starts when the spawning task waits, and continues when its handle is dropped.
#[test]
fn a_task_begins_when_its_spawner_waits() {
    on_both(|runtime| {
        let spawner = runtime.spawn(async {
            let seen = Rc::new(Cell::new(0));
            let counting = Rc::clone(&seen);
            drop(spawn(async move {
                counting.set(1);
                yield_now().await;
                counting.set(2);
            }));
            assert_eq!(seen.get(), 0);
            yield_now().await;
            assert_eq!(seen.get(), 1);
            yield_now().await;
            assert_eq!(seen.get(), 2);
        });
        runtime.block_on(spawner).unwrap();
    });
}

#[test]
fn other_options_are_set_by_socket2() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, _far) = common::tcp().await;
            SockRef::from(&near).set_keepalive(true).unwrap();
            assert!(SockRef::from(&near).keepalive().unwrap());
        });
    });
}
