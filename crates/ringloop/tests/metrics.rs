//! The counts of runtimes, on both backends: everything that was done, and no more time than has passed.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{LONG, backends, config, on_both, pool_config};
use ringloop::net::{TcpListener, TcpStream, UdpSocket};
use ringloop::server::{Connection, Handler, Server};
use ringloop::time::sleep;
use ringloop::{Handle, Metrics, Pool, Runtime, fs, spawn, yield_now};

fn pools() -> impl Iterator<Item = Pool> {
    backends().map(|backend| Pool::new(2, &pool_config(backend)).unwrap())
}

/// Waits until a condition holds.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG);
        thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn reads_writes_and_operations_are_counted_as_they_are_done() {
    const ROUNDS: u64 = 100;
    on_both(|runtime| {
        let before = runtime.metrics();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut near = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let (mut far, _) = listener.accept().await.unwrap();
            drop(spawn(async move {
                while far
                    .read_with(|bytes, stream| stream.try_write(bytes).is_ok() && !bytes.is_empty())
                    .await
                    .unwrap()
                {}
            }));
            let mut buffer = Vec::with_capacity(16);
            for _ in 0..ROUNDS {
                near.write_all(&b"hello"[..]).await.0.unwrap();
                buffer.clear();
                let (count, filled) = near.read(buffer).await;
                assert_eq!(count.unwrap(), 5);
                buffer = filled;
            }
        });
        let after = runtime.metrics();
        let of = |counter: fn(&Metrics) -> u64| counter(&after) - counter(&before);
        // Each round two writes and two reads, and once an accept.
        assert_eq!(of(|metrics| metrics.completions), 4 * ROUNDS + 1);
        assert!(of(|metrics| metrics.operations) > 4 * ROUNDS);
        assert!(of(|metrics| metrics.system_calls) >= 4 * ROUNDS);
        assert!(of(|metrics| metrics.reactor.driver.events) >= 2 * ROUNDS);
        assert!(of(|metrics| metrics.tasks_run) >= ROUNDS);
        assert!(of(|metrics| metrics.turns) >= of(|metrics| metrics.reactor.turns));
        assert!(of(|metrics| metrics.turns) > 0);
    });
}

#[test]
fn tries_that_find_nothing_are_no_completions() {
    on_both(|runtime| {
        let before = runtime.metrics();
        runtime.block_on(async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            for _ in 0..10 {
                socket.try_recv(&mut Vec::with_capacity(8)).unwrap_err();
            }
        });
        let after = runtime.metrics();
        assert_eq!(after.operations - before.operations, 10);
        assert_eq!(after.completions, before.completions);
        assert!(after.system_calls - before.system_calls >= 10);
    });
}

#[test]
fn files_and_zero_copy_sends_are_operations_with_one_completion_each() {
    on_both(|runtime| {
        let path = std::env::temp_dir().join(format!("ringloop-metrics-{}", std::process::id()));
        let before = runtime.metrics();
        runtime.block_on(async {
            fs::write(&path, vec![1; 100]).await.unwrap();
            std::fs::remove_file(&path).unwrap();
        });
        let after = runtime.metrics();
        // It is opened and written.
        assert_eq!(after.operations - before.operations, 2);
        assert_eq!(after.completions - before.completions, 2);
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut near = TcpStream::connect(address).await.unwrap();
            let body = Bytes::from(vec![1; 32 * 1024]);
            near.write_all_zero_copy(body).await.0.unwrap();
            // The notification is none.
            while Handle::current().metrics().reactor.driver.operations > 0 {
                yield_now().await;
            }
        });
        let last = runtime.metrics();
        assert_eq!(last.operations - after.operations, 1);
        assert_eq!(last.completions - after.completions, 1);
    });
}

#[test]
fn times_add_up_to_what_has_passed() {
    for backend in backends() {
        let start = Instant::now();
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let made = Instant::now();
        thread::sleep(Duration::from_millis(5));
        let outside = runtime.metrics();
        assert!(outside.idle_ns >= 5_000_000, "nothing runs outside");
        let (before, after) = runtime.block_on(async {
            let before = Handle::current().metrics();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(5) {
                std::hint::spin_loop();
            }
            (before, Handle::current().metrics())
        });
        assert_eq!(before.idle_ns, after.idle_ns);
        assert!(after.busy_ns - before.busy_ns >= 5_000_000);
        let mut last = runtime.metrics();
        runtime.block_on(async {
            let begin = Instant::now();
            // A thread may lose the CPU for all of a sleep, but not of each.
            while Handle::current().metrics().idle_ns == last.idle_ns {
                assert!(begin.elapsed() < LONG);
                sleep(Duration::from_millis(1)).await;
            }
        });
        let lived = made.elapsed();
        last = runtime.metrics();
        let sum = Duration::from_nanos(last.busy_ns + last.idle_ns);
        assert!(sum >= lived, "{sum:?} of {lived:?}");
        assert!(sum <= start.elapsed());
        assert!(last.reactor.blocked_ns + last.reactor.spun_ns <= last.idle_ns);
    }
}

#[test]
fn any_thread_sees_what_each_worker_does() {
    for pool in pools() {
        let done = pool.spawn_on(1, || async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            for _ in 0..50 {
                socket.send_to(&b"x"[..], address).await.0.unwrap();
                socket.recv(Vec::with_capacity(8)).await.0.unwrap();
            }
            sleep(LONG).await;
        });
        wait_until(|| pool.metrics()[1].completions == 100);
        let [idler, worker] = pool.metrics()[..] else {
            panic!("there are two workers")
        };
        assert_eq!(idler.completions, 0);
        assert_eq!((idler.tasks_live, worker.tasks_live), (0, 1));
        assert!(worker.system_calls >= 100 && worker.timers == 1);
        // Time passes for a worker that sleeps, too.
        wait_until(|| pool.metrics()[0].idle_ns > idler.idle_ns);
        let handle = pool.handle(0);
        let turns = handle.metrics().turns;
        drop(handle.spawn_with(|| async {}));
        wait_until(|| pool.metrics()[0].turns > turns && pool.metrics()[0].tasks_run == 1);
        done.abort();
    }
}

#[test]
fn a_server_gives_access_to_its_workers_metrics() {
    struct Echo;
    impl Handler for Echo {
        fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
            connection.write(bytes)
        }
    }
    use std::io::{Read, Write};

    let server = Server::new("127.0.0.1:0")
        .workers(2)
        .start(|| Echo)
        .unwrap();
    let mut client = std::net::TcpStream::connect(server.local_addr()).unwrap();
    client.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    wait_until(|| {
        let completions = server
            .pool()
            .metrics()
            .iter()
            .map(|metrics| metrics.completions)
            .sum::<u64>();
        // An accept, a read and a write.
        completions == 3
    });
    drop(client);
    server.shutdown(Duration::from_secs(5));
}
