//! The promises of blocking calls if their callers are dropped, if results panic when they are dropped, and after
//! fork(2).

mod common;

use std::future::Future;
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;

use common::{LONG, in_child, on_both, poll_times};
use ringloop::driver::BackendChoice;
use ringloop::time::timeout;
use ringloop::{Runtime, blocking, net};

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
