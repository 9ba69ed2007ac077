//! Signals, on both backends. Each test uses different signals, because they reach the whole process.

mod common;

use std::future::poll_fn;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use ringloop::server::EndSignals;
use ringloop::signal::{self, Signal, SignalKind, ctrl_c, signal};
use ringloop::time::{sleep, timeout};
use ringloop::{Runtime, RuntimeConfig, spawn, yield_now};

use common::{LONG, on_both, poll_times};

/// A signal that no other test uses.
fn own(index: i32) -> SignalKind {
    SignalKind::from_raw(libc::SIGRTMIN() + index)
}

/// Sends a signal to this thread. It has been handled when this returns.
fn send(kind: SignalKind) {
    // SAFETY: takes no memory of ours. The tests have a handler for what they send, or mean to end by it.
    assert_eq!(unsafe { libc::raise(kind.as_raw()) }, 0);
}

/// Sends a signal to this process. Some thread will handle it at some time.
fn send_to_process(kind: SignalKind) {
    // SAFETY: takes no memory of ours. The tests have a handler for what they send, or mean to end by it.
    assert_eq!(unsafe { libc::kill(libc::getpid(), kind.as_raw()) }, 0);
}

async fn received(signal: &mut Signal) {
    timeout(LONG, signal.recv()).await.unwrap().unwrap();
}

/// Whether a signal has arrived that was not received.
async fn is_pending(signal: &mut Signal) -> bool {
    // Long enough for what is under way.
    sleep(Duration::from_millis(2)).await;
    poll_fn(|context| Poll::Ready(signal.poll_recv(context).is_ready())).await
}

#[test]
fn a_signal_is_heard_whether_anybody_waits_or_not() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut listener = signal(own(0)).unwrap();
            assert_eq!(listener.kind(), own(0));
            assert!(!is_pending(&mut listener).await);
            // Nobody waits; several count as one.
            send(own(0));
            send(own(0));
            received(&mut listener).await;
            assert!(!is_pending(&mut listener).await);
            // Somebody waits.
            let waiting = spawn(async move {
                received(&mut listener).await;
                listener
            });
            yield_now().await;
            send(own(0));
            let mut listener = timeout(LONG, waiting).await.unwrap().unwrap();
            // Between two polls of a future that is dropped.
            assert!(poll_times(1, listener.recv()).await.is_none());
            send(own(0));
            received(&mut listener).await;
        });
    });
}

#[test]
fn every_listener_hears_in_every_runtime_and_thread() {
    on_both(|runtime| {
        let (ready, is_ready) = mpsc::channel();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let ready = ready.clone();
                thread::spawn(move || {
                    let mut runtime = Runtime::new(&RuntimeConfig::default()).unwrap();
                    runtime.block_on(async {
                        let mut one = signal(own(1)).unwrap();
                        let mut two = signal(own(1)).unwrap();
                        ready.send(()).unwrap();
                        received(&mut one).await;
                        received(&mut two).await;
                    });
                })
            })
            .collect();
        runtime.block_on(async {
            let mut here = signal(own(1)).unwrap();
            let mut also = signal(own(1)).unwrap();
            let mut other = signal(own(2)).unwrap();
            for _ in &threads {
                is_ready.recv_timeout(LONG).unwrap();
            }
            send(own(1));
            received(&mut also).await;
            received(&mut here).await;
            assert!(!is_pending(&mut other).await);
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn no_signal_is_lost_however_they_are_timed() {
    const ROUNDS: u32 = 2000;
    on_both(|runtime| {
        let heard = AtomicU32::new(0);
        thread::scope(|scope| {
            let (start, started) = mpsc::channel();
            let heard = &heard;
            scope.spawn(move || {
                started.recv().unwrap();
                for round in 0..ROUNDS {
                    send_to_process(own(3));
                    let start = std::time::Instant::now();
                    while heard.load(Ordering::Acquire) <= round {
                        assert!(start.elapsed() < LONG, "signal {round} is lost");
                        thread::yield_now();
                    }
                }
            });
            runtime.block_on(async {
                let mut listener = signal(own(3)).unwrap();
                start.send(()).unwrap();
                for round in 1..=ROUNDS {
                    if round % 3 == 0 {
                        // A future that is dropped at any point takes nothing with it.
                        if poll_times(round as usize % 4, listener.recv())
                            .await
                            .is_some()
                        {
                            heard.store(round, Ordering::Release);
                            continue;
                        }
                    }
                    received(&mut listener).await;
                    heard.store(round, Ordering::Release);
                }
            });
        });
        assert_eq!(heard.load(Ordering::Acquire), ROUNDS);
    });
}

#[test]
fn ctrl_c_listens_from_the_call_on() {
    on_both(|runtime| {
        runtime.block_on(async {
            let waiting = ctrl_c();
            send(SignalKind::interrupt());
            timeout(LONG, waiting).await.unwrap().unwrap();
        });
    });
}

#[test]
fn what_cannot_be_listened_to_is_refused() {
    on_both(|runtime| {
        runtime.block_on(async {
            for number in [
                libc::SIGKILL,
                libc::SIGSTOP,
                libc::SIGSEGV,
                libc::SIGILL,
                libc::SIGFPE,
                0,
                -1,
                4096,
            ] {
                let error = signal(SignalKind::from_raw(number)).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{number}");
            }
            let error = signal::restore_default(SignalKind::from_raw(4096)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        });
    });
}

#[test]
fn without_listeners_a_signal_is_ignored_and_a_new_one_hears_again() {
    on_both(|runtime| {
        for polls in 0..4 {
            runtime.block_on(async {
                let mut listener = signal(SignalKind::user_defined1()).unwrap();
                drop(poll_times(polls, listener.recv()).await);
                drop(poll_times(polls, async { signal(own(4)).unwrap().recv().await }).await);
            });
            // Its default effect would be to end the process.
            send(SignalKind::user_defined1());
            runtime.block_on(async {
                let mut listener = signal(SignalKind::user_defined1()).unwrap();
                assert!(!is_pending(&mut listener).await);
                send(SignalKind::user_defined1());
                received(&mut listener).await;
            });
        }
    });
}

static FORMER_CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn former(_signal: i32) {
    FORMER_CALLS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_handler_that_was_there_before_is_still_called() {
    let handler = former as extern "C" fn(i32) as libc::sighandler_t;
    // SAFETY: `former` takes what a handler is passed, and only increments an atomic.
    let result = unsafe { libc::signal(own(5).as_raw(), handler) };
    assert_ne!(result, libc::SIG_ERR);
    on_both(|runtime| {
        let before = FORMER_CALLS.load(Ordering::SeqCst);
        runtime.block_on(async {
            let mut listener = signal(own(5)).unwrap();
            send(own(5));
            received(&mut listener).await;
        });
        assert_eq!(FORMER_CALLS.load(Ordering::SeqCst), before + 1);
    });
}

#[test]
fn a_forked_child_keeps_its_signals_to_itself() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut listener = signal(own(6)).unwrap();
            let mut command = Command::new("true");
            let number = own(6).as_raw();
            // SAFETY: between fork and exec the child does nothing but raise a signal, whose handler is made for that.
            unsafe {
                command.pre_exec(move || {
                    // Between fork and exec the parent's handlers are still there.
                    libc::raise(number);
                    Ok(())
                });
            }
            assert!(command.status().unwrap().success());
            assert!(!is_pending(&mut listener).await);
        });
    });
}

#[test]
fn who_listens_after_the_default_was_restored_hears_again() {
    on_both(|runtime| {
        runtime.block_on(async {
            // Its default action is to do nothing.
            let kind = SignalKind::window_change();
            let mut before = signal(kind).unwrap();
            for _ in 0..3 {
                signal::restore_default(kind).unwrap();
                signal::restore_default(kind).unwrap();
                send(kind);
                assert!(!is_pending(&mut before).await);
                let mut after = signal(kind).unwrap();
                send(kind);
                received(&mut before).await;
                received(&mut after).await;
            }
        });
    });
}

#[test]
fn a_handler_of_others_stays_although_the_default_was_restored_before() {
    let kind = own(7);
    let handler = former as extern "C" fn(i32) as libc::sighandler_t;
    on_both(|runtime| {
        runtime.block_on(async {
            drop(signal(kind).unwrap());
            signal::restore_default(kind).unwrap();
            // SAFETY: `former` takes what a handler is passed, and only increments an atomic.
            let replaced = unsafe { libc::signal(kind.as_raw(), handler) };
            assert_eq!(replaced, libc::SIG_DFL);
            let _listener = signal(kind).unwrap();
            // SAFETY: `former` takes what a handler is passed, and only increments an atomic.
            let installed = unsafe { libc::signal(kind.as_raw(), handler) };
            assert_eq!(installed, handler);
        });
    });
}

/// Runs one test of this file in a process of its own, on each backend, and returns how that ends.
fn in_process(test: &str) -> impl Iterator<Item = ExitStatus> {
    ["auto", "epoll"].into_iter().map(move |backend| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(CHILD, "1")
            .env("RINGLOOP_BACKEND", backend)
            .output()
            .unwrap()
            .status
    })
}

#[test]
fn a_server_hears_of_its_end_although_the_default_was_restored_before() {
    if std::env::var_os(CHILD).is_some() {
        drop(EndSignals::listen().unwrap());
        signal::restore_default(SignalKind::terminate()).unwrap();
        let signals = EndSignals::listen().unwrap();
        send(SignalKind::terminate());
        assert_eq!(signals.wait().number(), libc::SIGTERM);
        return;
    }
    for status in in_process("a_server_hears_of_its_end_although_the_default_was_restored_before") {
        assert!(status.success(), "{status}");
    }
}

/// Set for the processes that these tests start.
const CHILD: &str = "RINGLOOP_SIGNAL_CHILD";

#[test]
fn a_process_may_end_by_the_signal_after_all() {
    if std::env::var_os(CHILD).is_some() {
        Runtime::new(&RuntimeConfig::from_env().unwrap())
            .unwrap()
            .block_on(async {
                let mut listener = signal(SignalKind::terminate()).unwrap();
                send(SignalKind::terminate());
                received(&mut listener).await;
            });
        signal::restore_default(SignalKind::terminate()).unwrap();
        send(SignalKind::terminate());
        unreachable!("SIGTERM ends the process");
    }
    for status in in_process("a_process_may_end_by_the_signal_after_all") {
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
    }
}
