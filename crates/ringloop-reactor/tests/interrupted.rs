//! A signal ends a wait. Runs in its own process, because a signal may be delivered to any thread of a process.

use ringloop_reactor::{BusyPoll, Reactor, ReactorConfig};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU32, Ordering};

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Delivers SIGALRM every 2 ms, to a handler that only counts.
fn start_alarms() {
    // SAFETY: the all-zero sigaction is valid: no flags (so system calls are not restarted), an
    // empty mask; the handler set in it only touches an atomic, which is safe in a signal handler.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as libc::sighandler_t;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(result, 0);
    let period = libc::timeval {
        tv_sec: 0,
        tv_usec: 2_000,
    };
    let timer = libc::itimerval {
        it_interval: period,
        it_value: period,
    };
    // SAFETY: `timer` is valid for reads, and the old value may be null: setitimer(2).
    let result =
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Without the test harness, whose main thread would receive the signals instead of the one that waits.
fn main() {
    use ringloop_reactor::driver::BackendChoice;
    start_alarms();
    for backend in [BackendChoice::Epoll, BackendChoice::IoUring] {
        let mut config = ReactorConfig::default();
        config.driver.backend = backend;
        config.busy_poll = BusyPoll::Off;
        let mut reactor = match Reactor::new(&config) {
            Ok(reactor) => reactor,
            Err(error) if backend == BackendChoice::IoUring => {
                println!("skipped on io_uring, which is refused here: {error}");
                continue;
            }
            Err(error) => panic!("{backend}: {error}"),
        };
        let mut events = Vec::new();
        // Without a deadline: only a signal can end this wait.
        let error = reactor
            .turn(None, &mut events)
            .expect_err("a signal ends the wait");
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{backend}: {error}");
        assert!(SIGNALS.swap(0, Ordering::Relaxed) > 0);
        assert!(events.is_empty());
        println!("{backend}: interrupted, as it should be");
    }
}
