//! Waiting, waking, threads and signals.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ringloop_driver::{
    BackendChoice, BackendKind, Config, Driver, Event, Interest, Mode, Peek, SLOTS_MAX, Waker,
};

use crate::support::{
    PATIENCE, all_events, driver_with, event_of, on_both_backends, pair, pairs, poll, raw, read,
};

on_both_backends!(
    a_poll_waits_as_long_as_it_is_told,
    a_wake_from_another_thread_ends_a_poll,
    a_wake_before_a_poll_ends_it,
    many_wakes_are_one,
    peeking_and_polling_while_idle_make_no_system_call,
    a_peek_sees_what_is_coming,
    a_signal_interrupts_a_poll,
    a_wake_outlives_a_poll_that_is_interrupted,
    a_driver_moves_between_threads,
    another_thread_that_only_flushes_takes_nothing,
    a_driver_is_filled_in_one_thread_and_polled_in_another,
    moving_with_operations_in_flight_loses_nothing,
    a_driver_may_be_dropped_in_another_thread,
);

fn a_poll_waits_as_long_as_it_is_told(mut driver: Driver) {
    for timeout in [Duration::from_micros(300), Duration::from_millis(20)] {
        let start = Instant::now();
        let mut events = Vec::new();
        driver.poll(Some(timeout), &mut events).unwrap();
        assert!(start.elapsed() >= timeout);
        assert_eq!(events, []);
    }
    driver.poll(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    // A timeout that the kernel cannot represent is as good as none.
    let waker = driver.waker();
    let start = Instant::now();
    let thread = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        waker.wake();
    });
    driver.poll(Some(Duration::MAX), &mut Vec::new()).unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(20),
        "came back by itself"
    );
    thread.join().unwrap();
}

fn a_wake_from_another_thread_ends_a_poll(mut driver: Driver) {
    for _ in 0..50 {
        let waker = driver.waker();
        let thread = thread::spawn(move || waker.wake());
        let mut events = Vec::new();
        // A lost wake would leave this waiting for ever.
        driver.poll(None, &mut events).unwrap();
        assert_eq!(events, []);
        thread.join().unwrap();
        // Its eventfd may have been written to after the last poll. That must not wake the next one.
    }
    // The same with a thread that finds the poller asleep for certain.
    let waker = driver.waker();
    let thread = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        waker.clone().wake();
    });
    driver.poll(None, &mut Vec::new()).unwrap();
    thread.join().unwrap();
}

fn a_wake_before_a_poll_ends_it(mut driver: Driver) {
    let waker = driver.waker();
    waker.wake();
    waker.wake();
    assert_eq!(driver.peek(), Peek::Ready);
    driver.poll(None, &mut Vec::new()).unwrap();
    assert_ne!(driver.peek(), Peek::Ready);
    let start = Instant::now();
    driver
        .poll(Some(Duration::from_millis(20)), &mut Vec::new())
        .unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(20),
        "one wake ended two polls"
    );
}

fn many_wakes_are_one(mut driver: Driver) {
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (waker, sender) = (driver.waker(), sender.clone());
            thread::spawn(move || {
                for number in 0..1000 {
                    sender.send(number).unwrap();
                    waker.wake();
                }
            })
        })
        .collect();
    drop(sender);
    // Each message is followed by a wake, so a poll after an empty inbox never waits in vain.
    let mut count = 0;
    while count < 4000 {
        driver.poll(None, &mut Vec::new()).unwrap();
        count += receiver.try_iter().count();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

fn peeking_and_polling_while_idle_make_no_system_call(mut driver: Driver) {
    let (here, _there) = pair();
    driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    let before = driver.counters().system_calls;
    for _ in 0..100 {
        let peek = driver.peek();
        match driver.backend() {
            BackendKind::IoUring => {
                assert_eq!(peek, Peek::Empty);
                driver.poll(Some(Duration::ZERO), &mut Vec::new()).unwrap();
            }
            // Only the kernel knows, and asking it takes a system call.
            _ => assert_eq!(peek, Peek::Unknown),
        }
    }
    assert_eq!(driver.counters().system_calls, before);
}

fn a_peek_sees_what_is_coming(mut driver: Driver) {
    let (here, mut there) = pair();
    let watch = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    all_events(&mut driver);
    there.write_all(b"x").unwrap();
    assert_ne!(driver.peek(), Peek::Empty);
    assert_eq!(event_of(&mut driver, watch).token(), watch);
    driver.submit(read(raw(&here), 8)).unwrap();
    assert_eq!(driver.peek(), Peek::Ready);
    driver.flush().unwrap();
    assert_eq!(driver.peek(), Peek::Ready, "a result waits to be reported");
}

/// Installs a signal handler, which interrupts system calls that wait.
fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: a sigaction consists of integers, and of a function that may be none: all zeroes are valid for it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: the kernel copies `action`, which outlives the call. The callers' handlers do only what one may do.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

fn a_signal_interrupts_a_poll(mut driver: Driver) {
    extern "C" fn ignore(_: libc::c_int) {}
    // With and without entries to submit: the kernel reports the two differently.
    let (here, _there) = pair();
    for busy in [true, false] {
        handle(libc::SIGUSR1, ignore);
        // SAFETY: takes no memory of ours.
        let poller = unsafe { libc::pthread_self() };
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel::<()>();
            scope.spawn(move || {
                // Repeat it, in case the first one comes before the poll.
                while receiver.recv_timeout(Duration::from_millis(10))
                    == Err(mpsc::RecvTimeoutError::Timeout)
                {
                    // SAFETY: the thread that polls lives: the scope makes it wait for this one.
                    unsafe { libc::pthread_kill(poller, libc::SIGUSR1) };
                }
            });
            if busy {
                driver
                    .watch(raw(&here), Interest::READ, Mode::Edge)
                    .unwrap();
            }
            let error = driver.poll(None, &mut Vec::new()).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
            sender.send(()).unwrap();
        });
    }
}

fn a_wake_outlives_a_poll_that_is_interrupted(mut driver: Driver) {
    static WAKER: OnceLock<Mutex<Option<Waker>>> = OnceLock::new();
    extern "C" fn wake(_: libc::c_int) {
        if let Some(waker) = WAKER.get().and_then(|waker| waker.try_lock().ok())
            && let Some(waker) = waker.as_ref()
        {
            waker.wake();
        }
    }
    // One test at a time: the handler belongs to the process.
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap();
    *WAKER.get_or_init(|| Mutex::new(None)).lock().unwrap() = Some(driver.waker());
    handle(libc::SIGUSR2, wake);
    // SAFETY: takes no memory of ours.
    let poller = unsafe { libc::pthread_self() };
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(30));
            // SAFETY: the thread that polls lives: the scope makes it wait for this one.
            unsafe { libc::pthread_kill(poller, libc::SIGUSR2) };
        });
        // Either the signal or the wake ends it. If it was the signal, the wake must stay pending, or nobody would read
        // its message.
        if driver.poll(None, &mut Vec::new()).is_err() {
            assert_eq!(driver.peek(), Peek::Ready);
            driver.poll(None, &mut Vec::new()).unwrap();
        }
        // The wake's write to its eventfd may still come, but ends nothing.
        assert_eq!(all_events(&mut driver), []);
        assert_ne!(driver.peek(), Peek::Ready);
    });
    drop(alone);
}

fn a_driver_moves_between_threads(mut driver: Driver) {
    let (here, mut there) = pair();
    let (level, mut level_peer) = pair();
    let (resting, mut resting_peer) = pair();
    let edge = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    let level_watch = driver
        .watch(raw(&level), Interest::READ, Mode::Level)
        .unwrap();
    let once = driver
        .watch(raw(&resting), Interest::READ, Mode::OneShot)
        .unwrap();
    resting_peer.write_all(b"x").unwrap();
    event_of(&mut driver, once);
    for round in 0..4 {
        // Data that arrives between the threads is not lost.
        there.write_all(b"x").unwrap();
        level_peer.write_all(b"x").unwrap();
        driver = thread::spawn(move || {
            let mut events: Vec<Event> = Vec::new();
            while !(events.iter().any(|event| event.token() == edge)
                && events.iter().any(|event| event.token() == level_watch))
            {
                poll(&mut driver, Some(PATIENCE), &mut events);
            }
            assert!(
                events.iter().all(|event| event.token() != once),
                "a one-shot watch fired twice in round {round}"
            );
            driver
        })
        .join()
        .unwrap();
    }
    driver.rewatch(once, Interest::READ, Mode::OneShot).unwrap();
    event_of(&mut driver, once);
    if driver.backend() == BackendKind::IoUring {
        assert!(driver.counters().rings_rebuilt >= 4);
    }
}

fn another_thread_that_only_flushes_takes_nothing(mut driver: Driver) {
    let (watched, mut there) = pair();
    let (receiving, mut sending) = pair();
    for is_entered in [false, true] {
        if is_entered {
            assert_eq!(all_events(&mut driver), []);
        }
        let watch = driver
            .watch(raw(&watched), Interest::READ, Mode::Level)
            .unwrap();
        let operation = driver.submit(read(raw(&receiving), 1)).unwrap();
        driver = thread::spawn(move || {
            driver.unwatch(watch);
            driver.flush_if_own().unwrap();
            driver
        })
        .join()
        .unwrap();
        there.write_all(b"x").unwrap();
        sending.write_all(b"x").unwrap();
        assert_eq!(event_of(&mut driver, operation).token(), operation);
        assert_eq!(all_events(&mut driver), []);
    }
    assert_eq!(driver.counters().rings_rebuilt, 0);
}

fn a_driver_is_filled_in_one_thread_and_polled_in_another(mut driver: Driver) {
    // More than the submission queue holds (256 entries by default).
    let mut pairs = pairs(400);
    let tokens: Vec<_> = pairs
        .iter()
        .map(|(here, _)| driver.watch(raw(here), Interest::READ, Mode::Edge).unwrap())
        .collect();
    let (receiving, mut sending) = pair();
    let operation = driver.submit(read(raw(&receiving), 8)).unwrap();
    for (_, there) in &mut pairs {
        there.write_all(b"x").unwrap();
    }
    sending.write_all(b"x").unwrap();
    thread::spawn(move || {
        let mut events = Vec::new();
        while !(events
            .iter()
            .any(|event: &Event| event.token() == operation)
            && tokens
                .iter()
                .all(|token| events.iter().any(|event| event.token() == *token)))
        {
            poll(&mut driver, Some(PATIENCE), &mut events);
        }
    })
    .join()
    .unwrap();
}

fn moving_with_operations_in_flight_loses_nothing(mut driver: Driver) {
    let (here, mut there) = pair();
    let token = driver.submit(read(raw(&here), 8)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    let mut driver = thread::spawn(move || {
        // io_uring cannot move it and reports that. epoll has nothing to move.
        match driver.poll(Some(Duration::ZERO), &mut Vec::new()) {
            Err(error) => {
                assert_eq!(driver.backend(), BackendKind::IoUring);
                assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
                assert!(error.to_string().contains("in flight"), "{error}");
            }
            Ok(()) => assert_eq!(driver.backend(), BackendKind::Epoll),
        }
        driver
    })
    .join()
    .unwrap();
    there.write_all(b"x").unwrap();
    assert_eq!(event_of(&mut driver, token).result(), 1);
}

fn a_driver_may_be_dropped_in_another_thread(mut driver: Driver) {
    let (here, mut there) = pair();
    driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    driver.submit(read(raw(&here), 1 << 16)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    thread::spawn(move || drop(driver)).join().unwrap();
    // The kernel may still write to the buffer, so the memory must not be reused.
    there.write_all(&[7; 1 << 14]).unwrap();
    let fresh = vec![0_u8; 1 << 16];
    assert!(fresh.iter().all(|byte| *byte == 0));
}

#[test]
fn sizes_that_no_backend_can_have_are_refused_on_each() {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config
    };
    for backend in [
        BackendChoice::Auto,
        BackendChoice::IoUring,
        BackendChoice::Epoll,
    ] {
        for (mut config, word) in [
            (with(|config| config.entries = 0), "entries is 0"),
            (with(|config| config.entries = 32_769), "1 to 32768"),
            (
                with(|config| config.completion_entries = Some(255)),
                "completion_entries is 255",
            ),
            (
                with(|config| config.completion_entries = Some(65_537)),
                "at most 65536",
            ),
            (
                with(|config| config.slots = SLOTS_MAX + 1),
                "at most 16777216",
            ),
        ] {
            config.backend = backend;
            let error = Driver::new(&config).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

#[test]
fn the_largest_and_the_smallest_queues_and_slots_set_aside_work() {
    for (entries, completion_entries, slots) in
        [(1, None, 0), (1, Some(1), 1), (32_768, None, 10_000)]
    {
        for backend in [BackendChoice::IoUring, BackendChoice::Epoll] {
            let mut config = Config::with_backend(backend);
            config.entries = entries;
            config.completion_entries = completion_entries;
            config.slots = slots;
            let Some(mut driver) = driver_with(&config) else {
                continue;
            };
            let (here, mut there) = pair();
            let watch = driver
                .watch(raw(&here), Interest::READ, Mode::Edge)
                .unwrap();
            there.write_all(b"x").unwrap();
            assert!(event_of(&mut driver, watch).readiness().is_readable());
        }
    }
}
