//! The promises of the runtime, on both backends.

mod common;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use common::{LONG, on_both, pattern, tcp};
use ringloop::driver::{BackendChoice, BackendKind};
use ringloop::net::{TcpListener, TcpStream};
use ringloop::time::{interval, sleep, sleep_until, timeout};
use ringloop::{Handle, JoinHandle, Runtime, RuntimeConfig, spawn, yield_now};

#[test]
fn tasks_run_in_the_order_in_which_they_were_spawned() {
    on_both(|runtime| {
        let order = Rc::new(RefCell::new(Vec::new()));
        runtime.block_on(async {
            let handles: Vec<_> = (0..100)
                .map(|index| {
                    let order = Rc::clone(&order);
                    spawn(async move {
                        order.borrow_mut().push(index);
                        yield_now().await;
                        order.borrow_mut().push(100 + index);
                        index
                    })
                })
                .collect();
            for (index, handle) in handles.into_iter().enumerate() {
                assert_eq!(handle.await.unwrap(), index);
            }
        });
        assert_eq!(*order.borrow(), (0..200).collect::<Vec<_>>());
        assert_eq!(runtime.metrics().tasks_live, 0);
    });
}

#[test]
fn a_panic_reaches_the_handle_and_ends_nothing_else() {
    on_both(|runtime| {
        runtime.block_on(async {
            let other = spawn(async {
                sleep(Duration::from_millis(2)).await;
                7
            });
            let number = std::hint::black_box(5);
            let error = spawn(async move { panic!("number {number}") })
                .await
                .unwrap_err();
            assert!(error.is_panic() && !error.is_cancelled());
            assert_eq!(error.to_string(), "the task panicked: number 5");
            let payload = error.try_into_panic().unwrap();
            assert_eq!(payload.downcast_ref::<String>().unwrap(), "number 5");
            assert_eq!(other.await.unwrap(), 7);
        });
    });
}

#[test]
fn the_first_panic_of_a_task_is_told_and_what_is_not_wanted_may_panic() {
    /// Panics when it is dropped, with a payload that does so as well.
    struct Bomb(u32);
    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Bomb(self.0 - 1));
            }
        }
    }
    on_both(|runtime| {
        runtime.block_on(async {
            let held = Bomb(1);
            let told = spawn(poll_fn(move |_| -> Poll<()> {
                let _held = &held;
                panic!("first");
            }));
            assert_eq!(
                told.await.unwrap_err().to_string(),
                "the task panicked: first"
            );
            // A result is lost to a panic that comes after it.
            let held = Bomb(1);
            let task = spawn(poll_fn(move |_| {
                let _held = &held;
                Poll::Ready(Bomb(3))
            }));
            let error = task.await.map(drop).unwrap_err();
            assert!(error.try_into_panic().unwrap().is::<Bomb>());
            for times in 0..4 {
                drop(spawn(async move { Bomb(times) }));
                drop(spawn(async move { panic_any(Bomb(times)) }));
                spawn(async move {
                    let _held = Bomb(times);
                    pending::<()>().await;
                })
                .abort();
            }
            yield_now().await;
            assert_eq!(spawn(async { 1 }).await.unwrap(), 1);
        });
    });
}

#[test]
fn an_abort_drops_the_future_in_its_thread() {
    struct Dropped(Rc<Cell<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    on_both(|runtime| {
        let dropped = Rc::new(Cell::new(false));
        runtime.block_on(async {
            let guard = Dropped(Rc::clone(&dropped));
            let task = spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            });
            yield_now().await;
            assert!(!task.is_finished());
            thread::scope(|scope| {
                scope.spawn(|| task.abort());
            });
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert!(dropped.get());
    });
}

#[test]
fn tasks_that_are_left_are_dropped_with_the_runtime_and_may_use_it_meanwhile() {
    struct SpawnsWhenDropped(Rc<Cell<u32>>);
    impl Drop for SpawnsWhenDropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            let count = Rc::clone(&self.0);
            let guard = DropCounter(count);
            drop(spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            }));
        }
    }
    struct DropCounter(Rc<Cell<u32>>);
    impl Drop for DropCounter {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 10);
        }
    }
    for backend in [BackendChoice::Auto, BackendChoice::Epoll] {
        let mut config = RuntimeConfig::default();
        config.reactor.driver = ringloop::driver::Config::with_backend(backend);
        let mut runtime = Runtime::new(&config).unwrap();
        let count = Rc::new(Cell::new(0));
        let guard = SpawnsWhenDropped(Rc::clone(&count));
        let handle = runtime.spawn(async move {
            let _guard = guard;
            sleep(LONG).await;
        });
        runtime.block_on(yield_now());
        drop(runtime);
        assert_eq!(count.get(), 11);
        assert!(handle.is_finished());
    }
}

/// Spawns a task in the place of one that was woken in its last poll, and is still queued.
async fn spawn_behind_a_late_wake<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    let ended = spawn(poll_fn(|context| {
        context.waker().wake_by_ref();
        Poll::Ready(())
    }));
    let spawned = Rc::new(Cell::new(None));
    let place = Rc::clone(&spawned);
    // Between the end of that task and its second turn.
    drop(spawn(async move { place.set(Some(spawn(future))) }));
    ended.await.unwrap();
    yield_now().await;
    spawned.take().expect("it was spawned")
}

#[test]
fn a_late_wake_of_a_task_that_has_ended_forgets_no_other_task() {
    on_both(|runtime| {
        let task = runtime.block_on(spawn_behind_a_late_wake(pending::<()>()));
        assert_eq!(runtime.metrics().tasks_live, 1);
        task.abort();
        assert!(runtime.block_on(task).unwrap_err().is_cancelled());
    });
}

#[test]
fn a_task_behind_a_late_wake_is_dropped_with_its_runtime() {
    for backend in [BackendChoice::Auto, BackendChoice::Epoll] {
        let mut runtime = Runtime::new(&common::config(backend)).unwrap();
        // A value that no other thread may drop; a waker that outlives the runtime must not keep it.
        let (held, kept) = (Rc::new(7), Rc::new(RefCell::new(None)));
        let (value, waker) = (Rc::clone(&held), Rc::clone(&kept));
        drop(
            runtime.block_on(spawn_behind_a_late_wake(poll_fn(move |context| {
                assert_eq!(*value, 7);
                *waker.borrow_mut() = Some(context.waker().clone());
                Poll::<()>::Pending
            }))),
        );
        drop(runtime);
        assert_eq!(Rc::strong_count(&held), 1);
        drop(kept.take().expect("the task has run"));
    }
}

#[test]
fn another_thread_wakes_a_runtime_that_sleeps() {
    on_both(|runtime| {
        let handle = runtime.handle();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            for index in 0..100 {
                let sender = sender.clone();
                drop(handle.spawn_with(move || async move {
                    yield_now().await;
                    sender.send((index, thread::current().id())).unwrap();
                }));
                if index % 10 == 0 {
                    thread::sleep(Duration::from_micros(300));
                }
            }
        });
        let seen: Vec<_> = runtime.block_on(async {
            let mut seen = Vec::new();
            timeout(LONG, async {
                while seen.len() < 100 {
                    sleep(Duration::from_micros(200)).await;
                    seen.extend(receiver.try_iter());
                }
            })
            .await
            .unwrap();
            seen
        });
        thread.join().unwrap();
        assert!(
            seen.iter()
                .enumerate()
                .all(|(index, (sent, thread))| index == *sent && *thread == thread::current().id())
        );
    });
}

#[test]
fn a_handle_of_a_runtime_that_is_gone_says_so() {
    let runtime = Runtime::new(&RuntimeConfig::default()).unwrap();
    let handle = runtime.handle();
    drop(runtime);
    let task = handle.spawn_with(|| async {});
    assert!(task.is_finished());
    let error = catch_unwind(Handle::current).unwrap_err();
    let text = error.downcast_ref::<String>().unwrap();
    assert!(
        text.contains("no ringloop runtime runs in this thread"),
        "{text}"
    );
}

#[test]
fn a_runtime_inside_of_a_runtime_is_refused_and_the_outer_one_goes_on() {
    on_both(|runtime| {
        let value = runtime.block_on(async {
            let mut inner = Runtime::new(&RuntimeConfig::default()).unwrap();
            let refused = catch_unwind(AssertUnwindSafe(|| inner.block_on(async {})));
            assert!(refused.is_err());
            drop(inner);
            sleep(Duration::from_millis(1)).await;
            spawn(async { 3 }).await.unwrap()
        });
        assert_eq!(value, 3);
    });
}

#[test]
fn sleeps_end_in_order_and_never_early() {
    on_both(|runtime| {
        runtime.block_on(async {
            loop {
                let ended = Rc::new(RefCell::new(Vec::new()));
                let begun_late = Rc::new(Cell::new(false));
                let start = ringloop::time::Instant::now();
                let tasks: Vec<_> = [5, 1, 3, 2, 4]
                    .into_iter()
                    .map(|milliseconds| {
                        let (ended, begun_late) = (Rc::clone(&ended), Rc::clone(&begun_late));
                        let deadline = start + Duration::from_millis(milliseconds);
                        spawn(async move {
                            if start.elapsed() >= Duration::from_millis(1) {
                                begun_late.set(true);
                            }
                            sleep_until(deadline).await;
                            assert!(ringloop::time::Instant::now() >= deadline);
                            ended.borrow_mut().push(milliseconds);
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                // On a busy machine the first may be over before the last has begun.
                if !begun_late.get() {
                    assert_eq!(*ended.borrow(), [1, 2, 3, 4, 5]);
                    break;
                }
            }
            let start = Instant::now();
            sleep(Duration::from_millis(1)).await;
            assert!(start.elapsed() >= Duration::from_millis(1));
            let never = timeout(Duration::from_millis(1), pending::<()>());
            assert!(never.await.is_err());
            assert_eq!(timeout(Duration::ZERO, async { 5 }).await, Ok(5));
            let mut ticks = interval(Duration::from_millis(1));
            for _ in 0..3 {
                ticks.tick().await;
            }
        });
        assert_eq!(
            runtime.metrics().timers,
            0,
            "a dropped sleep leaves no timer"
        );
    });
}

#[test]
fn a_stream_carries_every_byte_both_ways() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = tcp().await;
            let echo = spawn(async move {
                let mut buffer = BytesMut::with_capacity(16 * 1024);
                loop {
                    buffer.clear();
                    buffer.reserve(16 * 1024);
                    let (count, filled) = far.read(buffer).await;
                    if count.unwrap() == 0 {
                        break;
                    }
                    let (result, rest) = far.write_all(filled).await;
                    result.unwrap();
                    buffer = rest;
                }
            });
            let sent = pattern(3_000_000);
            let (mut reader, mut writer) = near.into_split();
            let expected = sent.clone();
            let writing = spawn(async move {
                writer.write_all(&sent[..]).await.0.unwrap();
            });
            let mut received = Vec::new();
            while received.len() < expected.len() {
                received.reserve(64 * 1024);
                let (count, filled) = reader.read(received).await;
                received = filled;
                assert!(count.unwrap() > 0);
            }
            assert!(received == expected);
            writing.await.unwrap();
            echo.await.unwrap();
            let (count, _) = reader.read(Vec::with_capacity(1)).await;
            assert_eq!(count.unwrap(), 0);
        });
        assert_eq!(runtime.metrics().sources, 0);
    });
}

#[test]
fn a_read_in_place_sees_the_bytes_and_the_end() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = tcp().await;
            near.write_all(&b"in place"[..]).await.0.unwrap();
            near.shutdown(Shutdown::Write).unwrap();
            assert_eq!(
                far.read_with(|bytes, _| bytes.to_vec()).await.unwrap(),
                b"in place"
            );
            assert!(far.read_with(|bytes, _| bytes.is_empty()).await.unwrap());
        });
    });
}

/// The kernel ends a read at urgent data, with more behind it. That must not count as everything.
#[test]
fn data_behind_urgent_data_is_read_too() {
    on_both(|runtime| {
        if runtime.backend() == BackendKind::IoUring {
            // It does not tell of urgent data: what lies behind comes with the next packet.
            return;
        }
        runtime.block_on(async {
            let (near, mut far) = tcp().await;
            let plain = socket2::SockRef::from(&near);
            let mut expected = Vec::new();
            let mut received = Vec::new();
            for turn in 0..3 {
                plain.send(b"before").unwrap();
                if turn == 1 {
                    // The urgent data is news of its own.
                    sleep(Duration::from_millis(1)).await;
                }
                plain.send_out_of_band(b"!").unwrap();
                plain.send(b"behind").unwrap();
                expected.extend_from_slice(b"beforebehind");
                while received.len() < expected.len() {
                    received.reserve(64);
                    let (count, filled) = timeout(LONG, far.read(received)).await.unwrap();
                    assert!(count.unwrap() > 0);
                    received = filled;
                }
                assert_eq!(received, expected);
            }
            drop(near);
            let (count, _) = timeout(LONG, far.read(received)).await.unwrap();
            assert_eq!(count.unwrap(), 0);
        });
    });
}

#[test]
fn a_connection_that_is_dropped_is_closed_at_once() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = tcp().await;
            drop(near);
            let read = far.read(Vec::with_capacity(8));
            let (count, _) = timeout(LONG, read).await.unwrap();
            assert_eq!(count.unwrap(), 0);
        });
    });
}

#[test]
fn a_listener_that_is_dropped_refuses_connections_and_closes_those_nobody_took() {
    on_both(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let first = TcpStream::connect(address).await.unwrap();
            let (_taken, _) = listener.accept().await.unwrap();
            let mut second = TcpStream::connect(address).await.unwrap();
            drop(first);
            yield_now().await;
            drop(listener);
            let read = second.read(Vec::with_capacity(8));
            let (count, _) = timeout(LONG, read).await.unwrap();
            assert!(matches!(count, Ok(0) | Err(_)));
            let refused = timeout(LONG, TcpStream::connect(address)).await.unwrap();
            assert_eq!(
                refused.unwrap_err().kind(),
                io::ErrorKind::ConnectionRefused
            );
        });
    });
}

#[test]
fn connections_that_nobody_takes_wait_in_the_kernel() {
    const CLIENTS: usize = 400;
    on_both(|runtime| {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        // From now on it is told of them.
        runtime.block_on(poll_times(1, listener.accept()));
        let before = runtime.metrics().completions;
        let mut clients = Vec::new();
        runtime.block_on(async {
            for _ in 0..CLIENTS {
                clients.push(std::net::TcpStream::connect(address).unwrap());
                yield_now().await;
            }
        });
        assert_eq!(runtime.metrics().completions, before, "none is taken ahead");
        runtime.block_on(async {
            for client in clients {
                let accepting = timeout(LONG, listener.accept());
                let (_, peer) = accepting.await.unwrap().unwrap();
                assert_eq!(peer, client.local_addr().unwrap(), "in their order");
            }
            drop(listener);
        });
    });
}

#[test]
fn every_future_may_be_dropped_after_any_poll() {
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..4 {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                poll_times(polls, listener.accept()).await;
                poll_times(polls, TcpStream::connect(address)).await;
                let mut near = TcpStream::connect(address).await.unwrap();
                // The one that was dropped may have got through.
                let mut far = loop {
                    let (far, peer) = listener.accept().await.unwrap();
                    if peer == near.local_addr().unwrap() {
                        break far;
                    }
                };
                poll_times(polls, far.read(Vec::with_capacity(8))).await;
                poll_times(polls, near.write_all(&vec![7; 4 << 20][..])).await;
                poll_times(polls, sleep(LONG)).await;
                let mut task = spawn(pending::<()>());
                poll_times(polls, &mut task).await;
                task.abort();
            }
        });
        let metrics = runtime.metrics();
        assert_eq!((metrics.sources, metrics.timers), (0, 0));
        assert_eq!(metrics.reactor.driver.watches, 0);
    });
}

/// Polls a future this many times, with a turn after each, and drops it.
async fn poll_times<F: Future>(times: usize, future: F) {
    let mut future = std::pin::pin!(future);
    for _ in 0..times {
        let is_ready =
            poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if is_ready {
            return;
        }
        yield_now().await;
    }
}

#[test]
fn a_task_that_always_has_data_lets_the_others_run() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = tcp().await;
            let turns = Rc::new(Cell::new(0_u32));
            let counting = {
                let turns = Rc::clone(&turns);
                spawn(async move {
                    loop {
                        turns.set(turns.get() + 1);
                        yield_now().await;
                    }
                })
            };
            // One byte at a time, from what has arrived: no read has to wait.
            near.write_all(&[1; 4096][..]).await.0.unwrap();
            sleep(Duration::from_millis(1)).await;
            let before = turns.get();
            for _ in 0..4096 {
                far.read(&mut [0; 1][..]).await.0.unwrap();
            }
            assert!(turns.get() > before + 10, "{} turns", turns.get() - before);
            counting.abort();
        });
    });
}
