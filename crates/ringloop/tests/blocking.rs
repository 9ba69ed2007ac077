//! The promises of blocking calls if their callers are dropped, if results panic when they are dropped, and after
//! fork(2).

mod common;

use std::future::Future;
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{LONG, config, in_child, on_both, poll_times};
use ringloop::driver::BackendChoice;
use ringloop::time::timeout;
use ringloop::{Runtime, blocking, net, spawn};

/// More than the maximum number of threads.
const CALLS: usize = 70;

/// One test at a time, because a child must not be forked during the calls of another test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports that it is dropped, and panics, with a payload that panics when it is dropped.
struct Bomb(Option<mpsc::Sender<()>>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if let Some(dropped) = self.0.take() {
            dropped.send(()).unwrap();
            panic_any(Bomb(Some(mpsc::channel().0)));
        }
    }
}

#[test]
fn results_that_panic_when_they_are_dropped_cost_no_threads() {
    let _alone = alone();
    on_both(|runtime| {
        runtime.block_on(async {
            for call in 0..CALLS {
                let (go, gone) = mpsc::channel::<()>();
                let (dropped, is_dropped) = mpsc::channel();
                let run = blocking::run(move || {
                    gone.recv().unwrap_err();
                    let bomb = Bomb(Some(dropped));
                    if call % 2 == 0 {
                        panic_any(bomb);
                    }
                    bomb
                });
                assert!(poll_times(1, run).await.is_none());
                // Nobody waits for it any more.
                drop(go);
                is_dropped.recv_timeout(LONG).unwrap();
            }
            let answer = timeout(LONG, blocking::run(|| 42)).await;
            assert_eq!(answer.expect("no thread is left").unwrap(), 42);
            timeout(LONG, net::resolve("localhost", 1))
                .await
                .unwrap()
                .unwrap();
        });
    });
}

#[test]
fn slow_calls_do_not_keep_names_from_being_looked_up() {
    let _alone = alone();
    on_both(|runtime| {
        let (go, gone) = mpsc::channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        runtime.block_on(async {
            let calls: Vec<_> = (0..CALLS)
                .map(|_| {
                    let gone = Arc::clone(&gone);
                    spawn(blocking::run(move || {
                        let gone = gone.lock().unwrap_or_else(PoisonError::into_inner);
                        gone.recv().unwrap_err();
                    }))
                })
                .collect();
            let listener = net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connecting = net::TcpStream::connect(("localhost", port));
            timeout(LONG, connecting).await.unwrap().unwrap();
            assert!(!calls.iter().any(ringloop::JoinHandle::is_finished));
            drop(go);
            for call in calls {
                call.await.unwrap().unwrap();
            }
        });
    });
}

/// Returns the largest number of calls that ran at the same time.
fn most_at_once(runtime: &mut Runtime, calls: usize) -> usize {
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    runtime.block_on(async {
        let calls: Vec<_> = (0..calls)
            .map(|_| {
                let running = Arc::clone(&running);
                spawn(blocking::run(move || {
                    let (now, most) = &*running;
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(2));
                    now.fetch_sub(1, Ordering::SeqCst);
                }))
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
    });
    running.1.load(Ordering::SeqCst)
}

/// In a child process, which has no threads yet.
#[test]
fn the_number_of_threads_is_set_by_each_runtime() {
    let _alone = alone();
    in_child(|| {
        let with = |threads| {
            let mut config = config(BackendChoice::Epoll);
            config.blocking_threads = threads;
            Runtime::new(&config).unwrap()
        };
        let (mut one, mut three) = (with(1), with(3));
        let mut hold = most_at_once(&mut one, 10) == 1;
        // While its first calls wait, the second one starts up to two more.
        hold &= (1..=3).contains(&most_at_once(&mut three, 100));
        // It starts none, and uses those that are there.
        hold && (1..=3).contains(&most_at_once(&mut one, 100))
    });
}

struct Waits;

impl Wake for Waits {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_call_that_goes_on_keeps_no_waker_of_who_has_stopped_waiting() {
    let _alone = alone();
    let (go, gone) = mpsc::channel::<()>();
    let waits = Arc::new(Waits);
    let waker = Waker::from(Arc::clone(&waits));
    let mut run = Box::pin(blocking::run(move || gone.recv().unwrap_err()));
    let mut context = Context::from_waker(&waker);
    assert!(run.as_mut().poll(&mut context).is_pending());
    drop((run, waker));
    assert_eq!(Arc::strong_count(&waits), 1);
    drop(go);
}

#[test]
fn a_child_after_fork_has_threads_of_its_own() {
    let _alone = alone();
    on_both(|runtime| {
        let backend: BackendChoice = runtime.backend().name().parse().unwrap();
        runtime.block_on(async { blocking::run(|| ()).await.unwrap() });
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // The parent's locks are taken at any time.
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut runtime = Runtime::new(&common::config(backend)).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        runtime.block_on(async { blocking::run(|| ()).await.unwrap() });
                    }
                });
            }
            for _ in 0..20 {
                in_child(|| {
                    let answer = Runtime::new(&common::config(backend))
                        .and_then(|mut runtime| runtime.block_on(blocking::run(|| 42)));
                    matches!(answer, Ok(42))
                });
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
