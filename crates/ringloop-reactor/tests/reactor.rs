//! The promises of a [`Reactor`] to an event loop that waits with it, on each backend that this
//! machine grants.

use ringloop_reactor::driver::{BackendChoice, BackendKind, Event, Interest, Mode};
use ringloop_reactor::{BusyPoll, Reactor, ReactorConfig, clock};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// A window that no test can wait for.
const FOR_EVER: Duration = Duration::from_secs(3_600);

/// A window that outlasts the delays of these tests.
const WINDOW: Duration = Duration::from_millis(20);

/// A turn as an event loop makes it: being interrupted is not an error.
fn turn(reactor: &mut Reactor, deadline_ns: Option<u64>, events: &mut Vec<Event>) {
    match reactor.turn(deadline_ns, events) {
        Err(error) if error.kind() == ErrorKind::Interrupted => turn(reactor, deadline_ns, events),
        result => result.expect("the wait works"),
    }
}

/// The same for polling without waiting.
fn poll_now(reactor: &mut Reactor, events: &mut Vec<Event>) {
    match reactor.poll_now(events) {
        Err(error) if error.kind() == ErrorKind::Interrupted => poll_now(reactor, events),
        result => result.expect("the look works"),
    }
}

/// Runs a test body on epoll, and on `io_uring` unless the kernel or the container refuses it, each in its own thread.
/// A thread that has closed an `io_uring` is interrupted later, when the kernel makes it clean up, and tests that count
/// turns would notice.
fn on_each_backend(busy_poll: BusyPoll, body: impl Fn(&mut Reactor) + Sync) {
    for backend in [BackendChoice::Epoll, BackendChoice::IoUring] {
        let mut config = ReactorConfig::default();
        config.driver.backend = backend;
        config.busy_poll = busy_poll;
        let run = || match Reactor::new(&config) {
            Ok(mut reactor) => body(&mut reactor),
            Err(error) if backend == BackendChoice::IoUring => {
                println!("skipped on io_uring, which is refused here: {error}");
            }
            Err(error) => panic!("{backend}: {error}"),
        };
        let outcome = thread::scope(|scope| scope.spawn(run).join());
        assert!(
            outcome.is_ok(),
            "failed on {backend}, busy polling {busy_poll}"
        );
    }
}

fn on_each_backend_and_way_to_wait(body: impl Fn(&mut Reactor) + Sync) {
    let short = BusyPoll::Fixed(Duration::from_micros(20));
    for busy_poll in [
        BusyPoll::Off,
        BusyPoll::Adaptive,
        short,
        BusyPoll::Fixed(WINDOW),
    ] {
        on_each_backend(busy_poll, &body);
    }
}

#[test]
fn a_turn_ends_at_its_deadline_and_not_before() {
    on_each_backend_and_way_to_wait(|reactor| {
        let mut events = Vec::new();
        let deadline_ns = clock::now_ns() + 3_000_000;
        while clock::now_ns() < deadline_ns {
            turn(reactor, Some(deadline_ns), &mut events);
        }
        assert!(events.is_empty());
        // After polling in vain it may come back once, to have the inbox looked at.
        assert!(reactor.counters().turns <= 2, "{:?}", reactor.counters());
        assert_eq!(reactor.counters().wasted_ns, reactor.counters().spun_ns);
    });
}

#[test]
fn a_deadline_in_the_past_is_no_wait() {
    on_each_backend_and_way_to_wait(|reactor| {
        turn(reactor, Some(0), &mut Vec::new());
        assert_eq!((reactor.counters().turns, reactor.counters().waits), (1, 0));
    });
}

#[test]
fn a_wake_before_a_turn_ends_that_turn_only() {
    on_each_backend_and_way_to_wait(|reactor| {
        let mut events = Vec::new();
        reactor.waker().wake();
        reactor.waker().wake();
        // Would not return without the wake.
        turn(reactor, None, &mut events);
        let deadline_ns = clock::now_ns() + 1_000_000;
        let deadline = Some(deadline_ns);
        turn(reactor, deadline, &mut events);
        if reactor.backend() == BackendKind::Epoll && reactor.counters().wasted_ns > 0 {
            // It came back early to have the inbox looked at, as it may after polling in vain.
            turn(reactor, deadline, &mut events);
        }
        assert!(clock::now_ns() >= deadline_ns, "one wake ended two turns");
        assert!(events.is_empty());
    });
}

#[test]
fn a_wake_from_another_thread_ends_a_turn() {
    on_each_backend_and_way_to_wait(|reactor| {
        for delay in [
            Duration::ZERO,
            Duration::from_micros(50),
            Duration::from_millis(2),
        ] {
            let waker = reactor.waker();
            let thread = thread::spawn(move || {
                thread::sleep(delay);
                waker.wake();
            });
            let mut events = Vec::new();
            turn(reactor, None, &mut events);
            thread.join().unwrap();
            assert!(events.is_empty());
        }
    });
}

#[test]
fn a_wake_ends_polling_at_once() {
    on_each_backend(BusyPoll::Fixed(FOR_EVER), |reactor| {
        let waker = reactor.waker();
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            waker.wake();
        });
        turn(reactor, None, &mut Vec::new());
        thread.join().unwrap();
        let counters = reactor.counters();
        assert_eq!((counters.turns, counters.spin_hits), (1, 1), "{counters:?}");
        assert_eq!(
            (counters.wasted_ns, counters.blocked_ns),
            (0, 0),
            "{counters:?}"
        );
    });
}

#[test]
fn no_wake_is_lost_while_the_reactor_polls() {
    const ROUNDS: u32 = 500;
    on_each_backend(BusyPoll::Fixed(Duration::from_micros(30)), |reactor| {
        let (request, requests) = std::sync::mpsc::channel::<u32>();
        let waker = reactor.waker();
        let answered = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let answers = std::sync::Arc::clone(&answered);
        let thread = thread::spawn(move || {
            for round in requests {
                // Now and then the wake comes late, so that it meets every stage of a wait.
                for _ in 0..(round % 97) * 20 {
                    std::hint::spin_loop();
                }
                answers.store(round, std::sync::atomic::Ordering::Release);
                waker.wake();
            }
        });
        let mut events = Vec::new();
        for round in 1..=ROUNDS {
            request.send(round).unwrap();
            while answered.load(std::sync::atomic::Ordering::Acquire) < round {
                // A lost wake would leave this waiting for ever.
                turn(reactor, None, &mut events);
            }
        }
        drop(request);
        thread.join().unwrap();
    });
}

#[test]
fn events_arrive_however_it_waits() {
    on_each_backend_and_way_to_wait(|reactor| {
        let (mut near, far) = UnixStream::pair().unwrap();
        let token = reactor
            .driver_mut()
            .watch(far.as_raw_fd(), Interest::READ, Mode::Edge)
            .unwrap();
        let mut events = Vec::new();
        for delay in [Duration::ZERO, Duration::from_millis(1)] {
            let mut sender = near.try_clone().unwrap();
            let thread = thread::spawn(move || {
                thread::sleep(delay);
                sender.write_all(b"hello").unwrap();
            });
            while events.is_empty() {
                turn(reactor, None, &mut events);
            }
            thread.join().unwrap();
            assert!(events.drain(..).all(|event| event.token() == token));
        }
        near.write_all(b"hello").unwrap();
        while events.is_empty() {
            poll_now(reactor, &mut events);
        }
        reactor.driver_mut().unwatch(token);
    });
}

#[test]
fn polling_for_nothing_returns_at_once_and_is_no_turn() {
    on_each_backend_and_way_to_wait(|reactor| {
        let mut events = Vec::new();
        for _ in 0..100 {
            poll_now(reactor, &mut events);
        }
        assert!(events.is_empty());
        assert_eq!(
            (reactor.counters().turns, reactor.counters().spun_ns),
            (0, 0)
        );
    });
}

#[test]
fn the_way_to_wait_can_be_changed() {
    let mut reactor = Reactor::new(&ReactorConfig::default()).unwrap();
    assert_eq!(reactor.busy_poll(), BusyPoll::Adaptive);
    assert_eq!(reactor.counters().window_ns, 0);
    reactor.set_busy_poll(BusyPoll::Fixed(Duration::from_micros(70)));
    assert_eq!(reactor.busy_poll().to_string(), "70");
    assert_eq!(reactor.counters().window_ns, 70_000);
    // A turn that begins after its deadline, on a busy machine, does not wait.
    for _ in 0..100 {
        let deadline_ns = clock::now_ns() + 200_000;
        turn(&mut reactor, Some(deadline_ns), &mut Vec::new());
        if reactor.counters().spins > 0 {
            break;
        }
    }
    let before = reactor.counters();
    assert_eq!((before.spins, before.spin_hits), (1, 0));
    reactor.set_busy_poll(BusyPoll::Off);
    turn(
        &mut reactor,
        Some(clock::now_ns() + 200_000),
        &mut Vec::new(),
    );
    let after = reactor.counters();
    assert_eq!((after.spins, after.spun_ns), (before.spins, before.spun_ns));
}

#[test]
fn a_turn_survives_a_caller_whose_clock_is_wrong() {
    on_each_backend_and_way_to_wait(|reactor| {
        let waker = reactor.waker();
        for start_ns in [0, clock::now_ns() + 1_000_000_000, u64::MAX] {
            for deadline_ns in [None, Some(0), Some(start_ns), Some(u64::MAX)] {
                waker.wake();
                match reactor.turn_from(start_ns, deadline_ns, &mut Vec::new()) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    result => result.unwrap(),
                }
            }
        }
        assert_eq!(reactor.counters().turns, 12);
    });
}
