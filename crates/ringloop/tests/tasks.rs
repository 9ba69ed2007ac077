//! Sets of tasks, and handles that abort tasks.

mod common;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use common::{LONG, backends, on_both, poll_times, pool_config};
use ringloop::time::{sleep, timeout};
use ringloop::{AbortHandle, JoinHandle, JoinSet, Pool, spawn, yield_now};

/// Counts the futures that are dropped.
struct Dropped(Rc<Cell<u32>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn waiting_forever(dropped: &Rc<Cell<u32>>) -> impl Future<Output = ()> + 'static {
    let guard = Dropped(Rc::clone(dropped));
    async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    }
}

#[test]
fn results_come_in_the_order_in_which_tasks_end() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            assert!(tasks.is_empty() && tasks.join_next().await.is_none());
            let gates: Vec<_> = (0..3)
                .map(|number| {
                    let (gate, opened) = ringloop::channel::bounded::<()>(1);
                    tasks.spawn(async move {
                        opened.recv().await.unwrap();
                        number
                    });
                    gate
                })
                .collect();
            assert_eq!(tasks.len(), 3);
            assert!(tasks.try_join_next().is_none());
            for number in [2, 0, 1] {
                gates[number].send(()).await.unwrap();
                assert_eq!(tasks.join_next().await.unwrap().unwrap(), number);
            }
            assert!(tasks.is_empty() && tasks.join_next().await.is_none());
            // Places are used again.
            for round in 0..10 {
                tasks.spawn(async move { round });
                tasks.spawn(async { panic!("on purpose") });
                let first = tasks.join_next().await.unwrap();
                assert_eq!(first.unwrap(), round);
                assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
            }
        });
    });
}

#[test]
fn aborted_tasks_are_results_too() {
    on_both(|runtime| {
        runtime.block_on(async {
            let dropped = Rc::default();
            let mut tasks = JoinSet::new();
            let first = tasks.spawn(waiting_forever(&dropped));
            tasks.spawn(waiting_forever(&dropped));
            tasks.spawn(async {});
            yield_now().await;
            first.abort();
            yield_now().await;
            assert!(first.is_finished());
            assert_eq!(dropped.get(), 1);
            assert!(tasks.join_next().await.unwrap().is_ok());
            assert!(tasks.join_next().await.unwrap().unwrap_err().is_cancelled());
            tasks.abort_all();
            assert_eq!(tasks.len(), 1);
            assert!(tasks.join_next().await.unwrap().unwrap_err().is_cancelled());
            assert_eq!(dropped.get(), 2);
        });
    });
}

#[test]
fn a_set_that_is_dropped_or_shut_down_aborts_its_tasks() {
    on_both(|runtime| {
        runtime.block_on(async {
            let dropped = Rc::default();
            let mut tasks = JoinSet::new();
            for _ in 0..5 {
                tasks.spawn(waiting_forever(&dropped));
            }
            tasks.spawn(async { panic!("on purpose") });
            tasks.shutdown().await;
            assert!(tasks.is_empty());
            assert_eq!(dropped.get(), 5);
            for _ in 0..5 {
                tasks.spawn(waiting_forever(&dropped));
            }
            yield_now().await;
            drop(tasks);
            yield_now().await;
            assert_eq!(dropped.get(), 10);
        });
    });
}

#[test]
fn detached_tasks_continue_and_say_nothing() {
    on_both(|runtime| {
        runtime.block_on(async {
            let ended = Rc::new(Cell::new(false));
            let mut tasks = JoinSet::new();
            let seen = Rc::clone(&ended);
            tasks.spawn(async move {
                yield_now().await;
                seen.set(true);
                1
            });
            tasks.detach_all();
            tasks.spawn(async {
                sleep(Duration::from_millis(1)).await;
                2
            });
            assert_eq!(tasks.join_next().await.unwrap().unwrap(), 2);
            assert!(ended.get() && tasks.is_empty());
        });
    });
}

/// A result that nobody waits for is not lost, however often waiting for it is given up.
#[test]
fn waiting_may_be_given_up_at_any_poll() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for number in 0..50 {
                tasks.spawn(async move {
                    for _ in 0..number {
                        yield_now().await;
                    }
                    number
                });
            }
            let mut sum = 0;
            while !tasks.is_empty() {
                if let Some(result) = poll_times(1, tasks.join_next()).await {
                    sum += result.unwrap().unwrap();
                } else {
                    yield_now().await;
                }
            }
            assert_eq!(sum, 49 * 50 / 2);
        });
    });
}

/// Tasks that end all the time must not keep others from running.
#[test]
fn joining_lets_others_run() {
    on_both(|runtime| {
        runtime.block_on(async {
            let has_run = Rc::new(Cell::new(false));
            let mut tasks = JoinSet::new();
            for _ in 0..1000 {
                tasks.spawn(async {});
            }
            yield_now().await;
            let seen = Rc::clone(&has_run);
            drop(spawn(async move { seen.set(true) }));
            let mut joined = 0;
            while !has_run.get() {
                assert!(tasks.join_next().await.unwrap().is_ok());
                joined += 1;
            }
            assert!(joined < 1000);
            tasks.shutdown().await;
        });
    });
}

#[test]
fn tasks_of_other_workers_can_be_joined() {
    for backend in backends() {
        let pool = Pool::new(2, &pool_config(backend)).unwrap();
        let (results, received) = ringloop::channel::bounded(1);
        let handles: Vec<_> = (0..100)
            .map(|number| pool.spawn_on(number % 2, move || async move { number }))
            .collect();
        drop(pool.spawn_on(0, move || async move {
            let mut tasks = JoinSet::new();
            for handle in handles {
                tasks.insert(handle);
            }
            let mut sum = 0;
            while let Some(result) = tasks.join_next().await {
                sum += result.unwrap();
            }
            results.send(sum).await.unwrap();
        }));
        assert_eq!(received.recv_blocking().unwrap(), 99 * 100 / 2);
        pool.shutdown(LONG);
    }
}

#[test]
fn a_task_ends_with_its_handle() {
    on_both(|runtime| {
        runtime.block_on(async {
            let dropped = Rc::default();
            let task = spawn(waiting_forever(&dropped)).abort_on_drop();
            assert!(timeout(Duration::from_millis(1), task).await.is_err());
            yield_now().await;
            assert_eq!(dropped.get(), 1);
            assert_eq!(spawn(async { 5 }).abort_on_drop().await.unwrap(), 5);
            // Detached, it continues.
            let task = spawn(waiting_forever(&dropped)).abort_on_drop().detach();
            let abort = task.abort_handle();
            drop(task);
            yield_now().await;
            assert!(!abort.is_finished());
            assert_eq!(dropped.get(), 1);
            abort.abort();
            yield_now().await;
            assert!(abort.is_finished());
            assert_eq!(dropped.get(), 2);
            abort.abort();
        });
    });
}

/// A result that is not `Send` is dropped in its own thread, also if an abort handle in another one is the last that knows
/// the task.
#[test]
fn an_abort_handle_may_be_the_last_one() {
    struct Here(thread::ThreadId, Rc<Cell<u32>>);
    impl Drop for Here {
        fn drop(&mut self) {
            assert_eq!(thread::current().id(), self.0);
            self.1.set(self.1.get() + 1);
        }
    }
    on_both(|runtime| {
        let drops = Rc::new(Cell::new(0));
        let handles: Vec<AbortHandle> = runtime.block_on(async {
            let here = || Here(thread::current().id(), Rc::clone(&drops));
            let (first, second, third) = (here(), here(), here());
            let finished = spawn(async move { first });
            yield_now().await;
            let unfinished = spawn(async move {
                yield_now().await;
                second
            });
            let aborted = spawn(async move {
                std::future::pending::<()>().await;
                third
            });
            let handles = [&finished, &unfinished, &aborted].map(JoinHandle::abort_handle);
            drop((finished, unfinished, aborted));
            yield_now().await;
            handles[2].abort();
            yield_now().await;
            handles.into()
        });
        assert_eq!(drops.get(), 3);
        thread::spawn(move || drop(handles)).join().unwrap();
    });
}

/// A runtime that has ended ends new tasks at once. A set then has results that were there from the beginning.
#[test]
fn a_set_knows_tasks_that_never_ran() {
    let mut runtime = ringloop::Runtime::new(&ringloop::RuntimeConfig::default()).unwrap();
    let handle = runtime.handle();
    runtime.block_on(async {});
    drop(runtime);
    let task = handle.spawn_with(|| async {});
    let mut tasks = JoinSet::new();
    tasks.insert(task);
    assert_eq!(tasks.len(), 1);
    let result = tasks.try_join_next().unwrap();
    assert!(result.unwrap_err().is_cancelled());
    assert!(catch_unwind(AssertUnwindSafe(|| tasks.spawn(async {}))).is_err());
    assert!(tasks.is_empty());
}

/// A set takes many results in one poll, and after other operations that do not wait.
#[test]
fn a_set_gives_all_results_whatever_is_left_of_the_budget() {
    on_both(|runtime| {
        runtime.block_on(async {
            const TASKS: usize = 400;
            for others in 0..4 {
                let mut tasks = JoinSet::new();
                let ended = Rc::new(Cell::new(0));
                for number in 0..TASKS {
                    let ended = Rc::clone(&ended);
                    tasks.spawn(async move {
                        ended.set(ended.get() + 1);
                        number
                    });
                }
                while ended.get() < TASKS {
                    yield_now().await;
                }
                while tasks.len() > TASKS / 2 {
                    assert!(tasks.try_join_next().unwrap().unwrap() < TASKS);
                }
                let (sender, receiver) = ringloop::channel::unbounded();
                let mut taken = 0;
                while !tasks.is_empty() {
                    for _ in 0..others {
                        sender.send(()).await.unwrap();
                        receiver.recv().await.unwrap();
                    }
                    tasks.join_next().await.unwrap().unwrap();
                    taken += 1;
                }
                assert_eq!(taken, TASKS / 2);
            }
        });
    });
}

/// A task that is added when nothing is left of the budget has not ended.
#[test]
fn a_set_takes_tasks_when_the_budget_is_used_up() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (sender, receiver) = ringloop::channel::bounded::<()>(1);
            let mut tasks = JoinSet::new();
            // Each is added after another number of operations in the same poll.
            for number in 0..300 {
                ringloop::consume_budget().await;
                let receiver = receiver.clone();
                tasks.spawn(async move {
                    receiver.recv().await.unwrap_err();
                    number
                });
            }
            yield_now().await;
            assert!(tasks.try_join_next().is_none());
            drop(sender);
            let mut numbers = Vec::new();
            while let Some(number) = tasks.join_next().await {
                numbers.push(number.unwrap());
            }
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..300));
        });
    });
}
