//! Tasks, time, channels, signals, threads and names.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringloop::signal::{SignalKind, signal};
use ringloop::time::{interval, sleep, timeout, timeout_at};
use ringloop::{Handle, JoinSet, blocking, channel, net, spawn, yield_now};

use crate::common::LONG;
use crate::cut::at_every_poll;
use crate::memory::buffer;

#[test]
fn sleeping_and_ticking() {
    at_every_poll(async |cut| {
        let mut ticks = interval(Duration::from_micros(300));
        let whole = async {
            sleep(Duration::from_micros(200)).await;
            sleep(Duration::ZERO).await;
            let never = std::future::pending::<()>();
            assert!(timeout(Duration::from_micros(100), never).await.is_err());
            let early = timeout(LONG, sleep(Duration::from_micros(100))).await;
            assert_eq!(early, Ok(()));
            // One deadline for both.
            let deadline = ringloop::time::Instant::now() + Duration::from_micros(200);
            let none = timeout_at(deadline, std::future::pending::<()>()).await;
            assert!(none.is_err());
            let late = timeout_at(deadline, sleep(LONG)).await;
            assert!(late.is_err());
            for _ in 0..3 {
                ticks.tick().await;
            }
            yield_now().await;
        };
        cut.run(whole).await;
        // It ticks on.
        ticks.tick().await;
    });
}

#[test]
fn a_tick_that_nobody_took_is_still_to_come() {
    at_every_poll(async |cut| {
        let start = Instant::now();
        let mut ticks = interval(Duration::from_micros(500));
        let first = cut.run(ticks.tick()).await;
        ticks.tick().await;
        let ticks_seen = 1 + u32::from(first.is_some());
        assert!(start.elapsed() >= ticks_seen * Duration::from_micros(500));
    });
}

#[test]
fn a_task_goes_on_without_its_handle() {
    at_every_poll(async |cut| {
        let steps = Rc::new(Cell::new(0));
        let task = spawn({
            let steps = Rc::clone(&steps);
            async move {
                let _watched = buffer();
                for _ in 0..5 {
                    yield_now().await;
                    steps.set(steps.get() + 1);
                }
                steps.get()
            }
        });
        if let Some(result) = cut.run(task).await {
            assert_eq!(result.unwrap(), 5);
        }
        while steps.get() < 5 {
            yield_now().await;
        }
    });
}

#[test]
fn a_task_that_is_aborted_drops_what_it_has() {
    at_every_poll(async |cut| {
        let task = spawn(async {
            let _watched = buffer();
            let inner = spawn(async {
                let _watched = buffer();
                std::future::pending::<()>().await;
            });
            struct Abort(ringloop::JoinHandle<()>);
            impl Drop for Abort {
                fn drop(&mut self) {
                    self.0.abort();
                }
            }
            let _inner = Abort(inner);
            std::future::pending::<()>().await;
        });
        let aborting = async {
            yield_now().await;
            task.abort();
            yield_now().await;
        };
        cut.run(aborting).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    });
}

/// A set's results come once each, whenever waiting for them is given up.
#[test]
fn joining_a_set() {
    at_every_poll(async |cut| {
        let mut tasks = JoinSet::new();
        for number in 0..4u32 {
            tasks.spawn(async move {
                let _watched = buffer();
                for _ in 0..number {
                    yield_now().await;
                }
                number
            });
        }
        let sum = Cell::new(0);
        let joining = async |tasks: &mut JoinSet<u32>| {
            while let Some(result) = tasks.join_next().await {
                sum.set(sum.get() + result.unwrap());
            }
        };
        cut.run(joining(&mut tasks)).await;
        joining(&mut tasks).await;
        assert_eq!(sum.get(), 6);
    });
}

#[test]
fn shutting_a_set_down() {
    at_every_poll(async |cut| {
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            tasks.spawn(async {
                let _watched = buffer();
                std::future::pending::<()>().await;
            });
        }
        let whole = async {
            yield_now().await;
            tasks.shutdown().await;
        };
        cut.run(whole).await;
        // Dropping it aborts the rest.
    });
}

/// Tasks that another thread spawns, and a handle that waits in this one.
#[test]
fn a_task_from_another_thread_runs_once() {
    at_every_poll(async |cut| {
        let runs = Arc::new(AtomicU32::new(0));
        let handle = Handle::current();
        let task = thread::spawn({
            let runs = Arc::clone(&runs);
            move || {
                handle.spawn_with(move || async move {
                    yield_now().await;
                    runs.fetch_add(1, Ordering::Relaxed);
                    buffer()
                })
            }
        })
        .join()
        .unwrap();
        if let Some(result) = cut.run(task).await {
            assert!(result.unwrap().is_empty());
        }
        while runs.load(Ordering::Relaxed) == 0 {
            yield_now().await;
        }
        yield_now().await;
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}

/// Receives from another thread: each message arrives once, in order.
#[test]
fn receiving_from_a_channel() {
    at_every_poll(async |cut| {
        let (sender, receiver) = channel::bounded(2);
        let thread = thread::spawn(move || {
            for index in 0..30 {
                let mut message = buffer();
                message.push(index);
                sender.send_blocking(message).unwrap();
            }
        });
        let next = Cell::new(0);
        let whole = async || {
            while let Ok(message) = receiver.recv().await {
                assert_eq!(message, [next.get()]);
                next.set(next.get() + 1);
            }
        };
        cut.run(whole()).await;
        whole().await;
        assert_eq!(next.get(), 30);
        thread.join().unwrap();
    });
}

/// Sends to another thread: what was reported as sent arrives once, and nothing else does.
#[test]
fn sending_to_a_channel() {
    at_every_poll(async |cut| {
        let (sender, receiver) = channel::bounded(2);
        let thread = thread::spawn(move || {
            let mut arrived = Vec::new();
            while let Ok(message) = receiver.recv_blocking() {
                let message: Vec<u8> = message;
                arrived.extend(message);
                thread::yield_now();
            }
            arrived
        });
        let next = Cell::new(0);
        let whole = async || {
            while next.get() < 30 {
                let mut message = buffer();
                message.push(next.get());
                sender.send(message).await.unwrap();
                next.set(next.get() + 1);
            }
        };
        cut.run(whole()).await;
        whole().await;
        drop(sender);
        let arrived = blocking::run(|| thread.join().unwrap()).await.unwrap();
        assert_eq!(arrived, (0..30).collect::<Vec<u8>>());
    });
}

#[test]
fn a_call_that_blocks_is_made_once_whoever_waits() {
    at_every_poll(async |cut| {
        let calls = Arc::new(AtomicU32::new(0));
        let call = blocking::run({
            let calls = Arc::clone(&calls);
            move || {
                calls.fetch_add(1, Ordering::Relaxed);
                let mut bytes = buffer();
                bytes.push(7);
                bytes
            }
        });
        let mut was_polled = true;
        if let Some(result) = cut.run(call).await {
            assert_eq!(result.unwrap(), [7]);
        } else if cut.polls() == 0 {
            was_polled = false;
        }
        while was_polled && calls.load(Ordering::Relaxed) == 0 {
            sleep(Duration::ZERO).await;
        }
        assert_eq!(calls.load(Ordering::Relaxed), u32::from(was_polled));
    });
}

#[test]
fn resolving_a_name() {
    at_every_poll(async |cut| {
        let whole = async {
            for port in 1..4 {
                let addresses = net::resolve("localhost", port).await.unwrap();
                assert!(addresses.iter().all(|address| address.ip().is_loopback()));
                assert_eq!(addresses[0].port(), port);
            }
        };
        cut.run(whole).await;
        assert!(!net::resolve("localhost", 1).await.unwrap().is_empty());
    });
}

#[test]
fn a_signal_that_nobody_took_is_still_to_come() {
    at_every_poll(async |cut| {
        let kind = SignalKind::from_raw(libc::SIGRTMIN() + 9);
        let mut listener = signal(kind).unwrap();
        drop(spawn(async move {
            yield_now().await;
            // SAFETY: somebody listens to it.
            assert_eq!(unsafe { libc::raise(kind.as_raw()) }, 0);
        }));
        if cut.run(listener.recv()).await.is_none() {
            listener.recv().await.unwrap();
        }
    });
}

#[test]
fn interrupts_are_waited_for() {
    at_every_poll(async |cut| {
        let listening = ringloop::signal::ctrl_c();
        drop(spawn(async {
            yield_now().await;
            // SAFETY: somebody has listened to it, so that it does not end the process.
            assert_eq!(unsafe { libc::raise(libc::SIGINT) }, 0);
        }));
        if let Some(result) = cut.run(listening).await {
            result.unwrap();
        }
        yield_now().await;
    });
}
