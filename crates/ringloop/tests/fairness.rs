//! A task that never has to wait does not keep timers, I/O and other tasks from making progress.

mod common;

use std::cell::Cell;
use std::future::{Future, ready};
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::{LONG, on_both};
use futures_util::{FutureExt, StreamExt};
use ringloop::net::{TcpListener, UnixListener, UnixStream, resolve};
use ringloop::time::{interval, sleep, timeout};
use ringloop::{blocking, channel, consume_budget, spawn, yield_now};

/// The progress of a runtime beside a task that never waits.
#[derive(Default)]
struct Beside {
    ticks: Cell<u32>,
    reads: Cell<u32>,
    polls: Cell<u32>,
}

impl Beside {
    fn is_done(&self) -> bool {
        self.ticks.get() >= 3 && self.reads.get() >= 3 && self.polls.get() >= 3
    }
}

/// Starts a timer, a connection and a task whose progress is counted.
fn start() -> (Rc<Beside>, [ringloop::JoinHandle<()>; 4]) {
    let beside = Rc::new(Beside::default());
    let (ticking, reading, polling) = (Rc::clone(&beside), Rc::clone(&beside), Rc::clone(&beside));
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let tasks = [
        spawn(async move {
            let mut ticks = interval(Duration::from_millis(1));
            loop {
                ticks.tick().await;
                ticking.ticks.set(ticking.ticks.get() + 1);
            }
        }),
        spawn(async move {
            while near.write_all(&b"x"[..]).await.0.is_ok() {
                sleep(Duration::from_micros(100)).await;
            }
        }),
        spawn(async move {
            while far.read(Vec::with_capacity(1)).await.0.is_ok() {
                reading.reads.set(reading.reads.get() + 1);
            }
        }),
        spawn(async move {
            loop {
                yield_now().await;
                polling.polls.set(polling.polls.get() + 1);
            }
        }),
    ];
    (beside, tasks)
}

/// Repeats what never waits until a timer, a connection and a task have made progress beside it.
async fn repeat(mut step: impl AsyncFnMut()) {
    let (beside, tasks) = start();
    let begin = Instant::now();
    while !beside.is_done() {
        assert!(begin.elapsed() < LONG, "others have not run");
        step().await;
    }
    for task in tasks {
        task.abort();
    }
}

/// Runs what repeats something, in the future of `block_on` and in a task.
fn lets_others_run<F: Future<Output = ()> + 'static>(make: impl Fn() -> F) {
    on_both(|runtime| {
        runtime.block_on(make());
        runtime.block_on(async { spawn(make()).await.unwrap() });
    });
}

#[test]
fn a_work_queue_that_is_never_empty() {
    lets_others_run(|| async {
        let (sender, receiver) = channel::unbounded();
        for job in 0..3 {
            sender.try_send(job).unwrap();
        }
        repeat(async || {
            let job = receiver.recv().await.unwrap();
            sender.send(job).await.unwrap();
        })
        .await;
    });
}

/// A worker with such a task still answers its connections about as fast as before.
#[test]
fn the_kernel_is_looked_at_each_time_a_budget_is_used_up() {
    on_both(|runtime| {
        let before = runtime.metrics().turns;
        runtime.block_on(async {
            let (sender, receiver) = channel::unbounded();
            spawn(async move {
                for job in 0..6400 {
                    sender.send(job).await.unwrap();
                    receiver.recv().await.unwrap();
                }
            })
            .await
            .unwrap();
        });
        let turns = runtime.metrics().turns - before;
        assert!(turns >= 2 * 6400 / 128, "{turns} turns");
    });
}

#[test]
fn a_bounded_channel_a_stream_and_one_that_is_closed() {
    lets_others_run(|| async {
        let (sender, mut receiver) = channel::bounded(2);
        repeat(async || {
            sender.send(1).await.unwrap();
            receiver.recv().await.unwrap();
        })
        .await;
        sender.send(1).await.unwrap();
        let mut stream = std::pin::pin!(receiver.clone());
        repeat(async || {
            let job = stream.next().await.unwrap();
            sender.try_send(job).unwrap();
        })
        .await;
        receiver.close();
        while receiver.try_recv().is_ok() {}
        receiver = receiver.clone();
        repeat(async || {
            assert!(receiver.recv().await.is_err());
            assert!(sender.send(1).await.is_err());
            sender.closed().await;
        })
        .await;
    });
}

#[test]
fn tasks_that_wake_one_another() {
    lets_others_run(|| async {
        let (question, questions) = channel::bounded(1);
        let (answer, answers) = channel::bounded(1);
        let echo = spawn(async move {
            while let Ok(question) = questions.recv().await {
                answer.send(question).await.unwrap();
            }
        });
        repeat(async || {
            question.send(1).await.unwrap();
            answers.recv().await.unwrap();
        })
        .await;
        drop(question);
        echo.await.unwrap();
    });
}

#[test]
fn yields_sleeps_timeouts_and_new_tasks() {
    lets_others_run(|| async {
        repeat(async || yield_now().await).await;
        repeat(async || sleep(Duration::ZERO).await).await;
        repeat(async || timeout(LONG, ready(())).await.unwrap()).await;
        repeat(async || spawn(async {}).await.unwrap()).await;
        repeat(async || consume_budget().await).await;
    });
}

#[test]
fn tasks_and_calls_that_have_ended_already() {
    lets_others_run(|| async {
        let mut tasks = Vec::new();
        repeat(async || {
            while tasks.len() < 10_000 {
                tasks.push(spawn(async {}));
            }
            let before = Instant::now();
            while !tasks.iter().all(ringloop::JoinHandle::is_finished) {
                assert!(before.elapsed() < LONG);
                yield_now().await;
            }
            // All of these are there at once. A worker that did not look up would let nothing else run meanwhile.
            let polls = Rc::new(Cell::new(0));
            let counting = Rc::clone(&polls);
            let beside = spawn(async move {
                loop {
                    counting.set(counting.get() + 1);
                    yield_now().await;
                }
            });
            for task in tasks.drain(..) {
                task.await.unwrap();
            }
            beside.abort();
            assert!(polls.get() > 10, "{} polls", polls.get());
        })
        .await;
        repeat(async || {
            let call = blocking::run(|| ());
            call.await.unwrap();
        })
        .await;
    });
}

#[test]
fn listeners_connections_and_names_that_are_addresses() {
    lets_others_run(|| async {
        repeat(async || drop(TcpListener::bind("127.0.0.1:0").await.unwrap())).await;
        repeat(async || drop(resolve("127.0.0.1", 80).await.unwrap())).await;
        let name = format!("\0ringloop-{}-fairness", std::process::id());
        let listener = UnixListener::bind(&*name).unwrap();
        repeat(async || {
            drop(UnixStream::connect(&*name).await.unwrap());
            listener.accept().await.unwrap();
        })
        .await;
    });
}

/// It would poll the same future again and again, and never return to the runtime that could renew the budget.
#[test]
fn a_blocking_executor_inside_of_a_task_is_not_stopped() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (sender, receiver) = channel::unbounded();
            spawn(async move {
                for number in 0..1000 {
                    sender.try_send(number).unwrap();
                    let at_once = receiver.recv().now_or_never();
                    // Refused now and then, as in any poll of a task that has used up its budget.
                    if at_once.is_none() {
                        assert_eq!(block_on(receiver.recv()), Ok(number));
                    }
                }
            })
            .await
            .unwrap();
        });
    });
}

/// Polls a future until it is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let begin = Instant::now();
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        assert!(begin.elapsed() < LONG);
    }
}
