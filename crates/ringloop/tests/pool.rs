//! The promises of a pool, on both backends.

mod common;

use std::cell::Cell;
use std::collections::HashSet;
use std::future::{pending, poll_fn};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use ringloop::driver::BackendChoice;
use ringloop::net::{TcpListener, TcpListenerOptions};
use ringloop::time::sleep;
use ringloop::{Pool, PoolConfig, Server, channel, spawn};

use common::{LONG, backends, pool_config};

fn on_both(workers: usize, body: impl Fn(Pool)) {
    for backend in backends() {
        body(Pool::new(workers, &pool_config(backend)).unwrap());
    }
}

/// Pools whose workers have CPUs of their own.
fn pinned_on_both(workers: usize, body: impl Fn(Pool)) {
    for backend in backends() {
        let mut config = pool_config(backend);
        config.pin = true;
        body(Pool::new(workers, &config).unwrap());
    }
}

/// Blocks on a handle, in a thread without a runtime.
fn wait<T>(handle: ringloop::JoinHandle<T>) -> Result<T, ringloop::JoinError> {
    ringloop::Runtime::new(&ringloop::RuntimeConfig::default())
        .unwrap()
        .block_on(handle)
}

/// The CPUs that a thread of this process may use, from /proc.
fn usable_cpus(thread: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/{thread}status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"));
    line.unwrap().to_owned()
}

/// The folder below /proc/self of the calling thread.
fn own_folder() -> String {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    let number = link.file_name().unwrap().to_str().unwrap().to_owned();
    format!("task/{number}/")
}

#[test]
fn workers_may_use_the_cpus_of_the_process() {
    on_both(2, |pool| {
        for worker in pool.spawn_on_each(|_| async { usable_cpus(&own_folder()) }) {
            assert_eq!(wait(worker).unwrap(), usable_cpus(""));
        }
    });
}

/// Two servers in one process, for example, with one worker each.
#[test]
fn pools_that_are_bound_share_no_cpu_while_another_one_is_free() {
    if ringloop::pool::default_workers() < 2 {
        eprintln!("left out: there is only one CPU");
        return;
    }
    // In a process of its own, because other tests bind workers, too.
    const NAME: &str = "RINGLOOP_TEST_POOL_CPUS";
    if std::env::var_os(NAME).is_none() {
        let test = "pools_that_are_bound_share_no_cpu_while_another_one_is_free";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(NAME, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let cpu_of = |pool: &Pool| wait(pool.spawn_on(0, || async { usable_cpus(&own_folder()) }));
    pinned_on_both(1, |first| {
        let mut config = pool_config(BackendChoice::Epoll);
        config.pin = true;
        let second = Pool::new(1, &config).unwrap();
        let (one, other) = (cpu_of(&first).unwrap(), cpu_of(&second).unwrap());
        assert_ne!(one, other);
        // The next pool gets what is free again.
        first.shutdown(Duration::ZERO);
        let third = Pool::new(1, &config).unwrap();
        assert_eq!(cpu_of(&third).unwrap(), one);
        let server = Server::new("127.0.0.1:0")
            .workers(1)
            .start_with(|_, _| async { Ok(()) });
        assert_eq!(cpu_of(server.unwrap().pool()).unwrap(), usable_cpus(""));
    });
    let server = Server::new("127.0.0.1:0").workers(1).pin(true);
    let running = server.start_with(|_, _| async { Ok(()) }).unwrap();
    assert_ne!(cpu_of(running.pool()).unwrap(), usable_cpus(""));
}

#[test]
fn what_blocks_does_not_share_the_cpu_of_its_worker() {
    pinned_on_both(1, |pool| {
        let (worker, helper) = wait(pool.spawn_on(0, || async {
            let helper = ringloop::blocking::run(|| usable_cpus(&own_folder())).await;
            // Under epoll a thread opens it.
            ringloop::fs::File::open("/proc/self/status").await.unwrap();
            (usable_cpus(&own_folder()), helper.unwrap())
        }))
        .unwrap();
        let process = usable_cpus("");
        assert_eq!(helper, process);
        if process.contains([',', '-']) {
            assert_ne!(worker, process, "the worker has a CPU of its own");
        }
        for entry in std::fs::read_dir("/proc/self/task").unwrap() {
            let thread = format!("task/{}/", entry.unwrap().file_name().display());
            let name = std::fs::read_to_string(format!("/proc/self/{thread}comm"));
            if name.is_ok_and(|name| name.trim_end() == "ringloop-file") {
                assert_eq!(usable_cpus(&thread), process);
            }
        }
    });
}

#[test]
fn each_worker_is_a_thread_of_its_own() {
    on_both(2, |pool| {
        let threads: HashSet<_> = pool
            .spawn_on_each(|worker| async move {
                let thread = thread::current();
                assert_eq!(thread.name(), Some(&*format!("ringloop-{worker}")));
                // A future that cannot move between threads.
                let local = Rc::new(worker);
                sleep(Duration::from_micros(10)).await;
                assert_eq!(*local, worker);
                thread.id()
            })
            .into_iter()
            .map(|handle| wait(handle).unwrap())
            .collect();
        assert_eq!(threads.len(), 2);
        assert!(!threads.contains(&thread::current().id()));
    });
}

#[test]
fn a_panic_crosses_threads_to_its_handle() {
    on_both(1, |pool| {
        let error = wait(pool.spawn_on(0, || async { panic!("over there") })).unwrap_err();
        assert_eq!(error.to_string(), "the task panicked: over there");
        let early = pool.spawn_on(0, || -> std::future::Ready<()> {
            panic!("before it began")
        });
        assert!(wait(early).unwrap_err().is_panic());
        assert_eq!(wait(pool.spawn_on(0, || async { 1 })).unwrap(), 1);
    });
}

#[test]
fn messages_go_round_between_workers_in_order() {
    on_both(2, |pool| {
        let (to_second, at_second) = channel::bounded::<u32>(4);
        let (to_first, at_first) = channel::bounded::<u32>(4);
        let second = pool.spawn_on(1, move || async move {
            while let Ok(number) = at_second.recv().await {
                to_first.send(number + 1).await.unwrap();
            }
        });
        let first = pool.spawn_on(0, move || async move {
            let reading = spawn(async move {
                for number in 0..5_000 {
                    assert_eq!(at_first.recv().await, Ok(number + 1));
                }
            });
            for number in 0..5_000 {
                to_second.send(number).await.unwrap();
            }
            drop(to_second);
            reading.await.unwrap();
        });
        wait(first).unwrap();
        wait(second).unwrap();
        pool.shutdown(LONG);
    });
}

#[test]
fn a_shutdown_waits_for_tasks_and_drops_those_that_take_too_long() {
    on_both(2, |pool| {
        let ended = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ended);
        let quick = pool.spawn_on_each(move |_| async move {
            sleep(Duration::from_millis(5)).await;
            counter.fetch_add(1, Ordering::Relaxed);
        });
        pool.shutdown(LONG);
        assert_eq!(ended.load(Ordering::Relaxed), 2);
        assert!(quick.iter().all(ringloop::JoinHandle::is_finished));
    });
    on_both(1, |pool| {
        let endless = pool.spawn_on(0, pending::<()>);
        pool.shutdown(Duration::from_millis(5));
        assert!(wait(endless).unwrap_err().is_cancelled());
    });
    on_both(1, |pool| {
        let handle = pool.handle(0).clone();
        drop(pool);
        assert!(
            wait(handle.spawn_with(|| async {}))
                .unwrap_err()
                .is_cancelled()
        );
    });
}

/// A wake during a task's last poll queues it once more. The task that has taken its place by then must not be ended.
#[test]
fn a_shutdown_waits_for_a_task_in_the_place_of_one_that_was_woken_too_late() {
    on_both(1, |pool| {
        let task = pool.spawn_on(0, || async {
            let ended = spawn(poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::Ready(())
            }));
            let spawned = Rc::new(Cell::new(None));
            let place = Rc::clone(&spawned);
            drop(spawn(async move {
                place.set(Some(spawn(sleep(Duration::from_millis(50)))));
            }));
            ended.await.unwrap();
            spawned.take()
        });
        let task = wait(task).unwrap().expect("it was spawned before");
        pool.shutdown(LONG);
        assert!(task.is_finished(), "it was forgotten");
        wait(task).expect("it was cut off");
    });
}

#[test]
fn a_task_may_end_its_own_pool() {
    for is_shut_down in [true, false] {
        on_both(2, |pool| {
            // Each worker has a task that nobody ends: these tell that their workers have.
            let (held, is_dropped) = mpsc::channel::<()>();
            for task in pool.spawn_on_each(move |_| async move {
                let _held = held;
                pending::<()>().await;
            }) {
                drop(task);
            }
            let (send, receive) = channel::bounded(1);
            let own = pool.spawn_on(0, move || async move {
                let pool: Pool = receive.recv().await.unwrap();
                if is_shut_down {
                    pool.shutdown(Duration::from_millis(1));
                } else {
                    drop(pool);
                }
            });
            send.send_blocking(pool).unwrap();
            wait(own).unwrap();
            let end = is_dropped.recv_timeout(LONG);
            assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
        });
    }
}

/// Replaces what descriptors refer to by a file that nothing can be waited for with. Returns how many there were.
fn spoil(kind: &str) -> usize {
    let is_meant = |name: &std::path::Path| {
        std::fs::read_link(name).is_ok_and(|target| target.to_string_lossy().contains(kind))
    };
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers: Vec<i32> = names
        .map(|name| name.unwrap().path())
        .filter(|name| is_meant(name))
        .map(|name| name.file_name().unwrap().to_str().unwrap().parse().unwrap())
        .collect();
    let other = std::fs::File::open("/dev/null").unwrap();
    for &number in &numbers {
        // SAFETY: takes no memory of ours. The process is the test's own, and its only purpose is that these descriptors
        // fail.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    }
    numbers.len()
}

/// A panic of a worker is reported when the other workers have ended. Only a kernel that refuses to wait makes one panic.
/// The test takes a process of its own, whose descriptors it can spoil.
#[test]
fn a_shutdown_waits_for_every_worker_whatever_becomes_of_one() {
    const NAME: &str = "a_shutdown_waits_for_every_worker_whatever_becomes_of_one";
    if std::env::var_os("RINGLOOP_TEST_ALONE").is_none() {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env("RINGLOOP_TEST_ALONE", "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    for backend in backends() {
        let pool = Pool::new(2, &pool_config(backend)).unwrap();
        let kind = match backend {
            BackendChoice::Epoll => "[eventpoll]",
            _ => "[io_uring]",
        };
        let (send, receive) = mpsc::channel();
        let (started, is_running) = mpsc::channel();
        // It doesn't wait in the kernel before it is done: what it would wait with is spoiled, too.
        drop(pool.spawn_on(1, || async move {
            started.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            send.send("done").unwrap();
        }));
        is_running.recv_timeout(LONG).unwrap();
        // A worker that shuts down already would not wait any more: its task ends when it has waited.
        let (task, task_ended) = mpsc::channel::<()>();
        drop(pool.spawn_on(0, move || async move {
            let _task = task;
            assert!(spoil(kind) >= 2);
            sleep(Duration::from_millis(1)).await;
        }));
        let ended = task_ended.recv_timeout(LONG);
        assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
        let error = catch_unwind(AssertUnwindSafe(|| pool.shutdown(LONG))).unwrap_err();
        let message = error.downcast_ref::<String>().unwrap();
        assert!(message.contains("cannot wait"), "{message}");
        assert_eq!(receive.try_recv(), Ok("done"));
    }
}

#[test]
fn workers_share_a_port() {
    on_both(2, |pool| {
        let mut options = TcpListenerOptions::default();
        options.reuse_port = true;
        let reserved = wait(pool.spawn_on(0, || async {
            let mut options = TcpListenerOptions::default();
            options.reuse_port = true;
            let listener = TcpListener::bind_with("127.0.0.1:0", &options).await?;
            listener.local_addr()
        }))
        .unwrap()
        .unwrap();
        let (listening, ready) = channel::bounded(2);
        let accepting = pool.spawn_on_each(move |_| async move {
            let listener = TcpListener::bind_with(reserved, &options).await.unwrap();
            listening.send(()).await.unwrap();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                drop(spawn(async move {
                    let (count, buffer) = stream.read(Vec::with_capacity(64)).await;
                    if count.is_ok_and(|count| count > 0) {
                        stream.write_all(&buffer[..]).await.0.unwrap();
                    }
                }));
            }
        });
        ready.recv_blocking().unwrap();
        ready.recv_blocking().unwrap();
        for index in 0..50_u8 {
            let mut stream = std::net::TcpStream::connect(reserved).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.write_all(&[index; 9]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, [index; 9]);
        }
        for task in &accepting {
            task.abort();
        }
        pool.shutdown(LONG);
    });
}

#[test]
fn a_pool_without_workers_is_refused() {
    let error = Pool::new(0, &PoolConfig::default()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}
