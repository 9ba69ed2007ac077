//! Overflowing queues, and large numbers of everything.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringloop_driver::{BackendChoice, Config, Driver, Event, Interest, Mode, Op, Peek, Token};

use crate::support::{
    PATIENCE, all_events, driver_with, event_of, on_both_backends, pair, pairs, poll, raw, read,
};

on_both_backends!(
    thousands_of_watches_are_served,
    slots_are_reused_under_a_storm_of_late_completions,
    what_ends_while_another_is_reported_is_reported_too,
);

/// A ring whose queues overflow at once.
fn tiny_ring() -> Option<Driver> {
    let mut config = Config::with_backend(BackendChoice::IoUring);
    config.entries = 2;
    config.completion_entries = Some(2);
    driver_with(&config)
}

fn thousands_of_watches_are_served(mut driver: Driver) {
    watch_many(&mut driver, 2000);
}

#[test]
fn a_tiny_ring_serves_many_watches() {
    if let Some(mut driver) = tiny_ring() {
        watch_many(&mut driver, 300);
        assert!(
            driver.counters().overflows > 0,
            "the completion queue never overflowed"
        );
    }
}

#[test]
fn a_tiny_ring_whose_readers_leave_everything_gives_all_their_turn() {
    let Some(mut driver) = tiny_ring() else {
        return;
    };
    let mut pairs = pairs(300);
    let watch = |driver: &mut Driver, (here, _): &(UnixStream, UnixStream)| {
        driver.watch(raw(here), Interest::READ, Mode::Edge).unwrap()
    };
    // A third is armed and then ready at once, so that completions overflow. The others are queued behind. Each arming
    // finds data and no room in the completion queue, and is queued again. A poll that submitted until nothing is left
    // would never return.
    let mut missing: HashSet<Token> = pairs[..100]
        .iter()
        .map(|pair| watch(&mut driver, pair))
        .collect();
    driver.flush().unwrap();
    for (_, there) in &mut pairs {
        there.write_all(b"left behind").unwrap();
    }
    missing.extend(pairs[100..].iter().map(|pair| watch(&mut driver, pair)));
    let mut events = Vec::new();
    while !missing.is_empty() {
        events.clear();
        poll(&mut driver, Some(PATIENCE), &mut events);
        for event in &events {
            missing.remove(&event.token());
        }
    }
}

fn watch_many(driver: &mut Driver, count: usize) {
    let mut pairs = pairs(count);
    let tokens: Vec<Token> = pairs
        .iter()
        .map(|(here, _)| driver.watch(raw(here), Interest::READ, Mode::Edge).unwrap())
        .collect();
    driver.flush().unwrap();
    for _ in 0..3 {
        for (_, there) in &mut pairs {
            there.write_all(b"x").unwrap();
        }
        let mut missing: HashSet<Token> = tokens.iter().copied().collect();
        let mut events = Vec::new();
        while !missing.is_empty() {
            events.clear();
            poll(driver, Some(PATIENCE), &mut events);
            assert!(
                !events.is_empty(),
                "{} watches were never heard of",
                missing.len()
            );
            for event in &events {
                missing.remove(&event.token());
            }
        }
        for (here, _) in &mut pairs {
            let _ = here.read(&mut [0; 8]);
        }
        all_events(driver);
    }
    for token in tokens {
        driver.unwatch(token);
    }
    assert_eq!(all_events(driver), []);
    assert_eq!(driver.counters().watches, 0);
}

#[test]
fn a_tiny_ring_finishes_many_operations() {
    let Some(mut driver) = tiny_ring() else {
        return;
    };
    let mut pairs = pairs(200);
    let tokens: Vec<Token> = pairs
        .iter()
        .map(|(here, _)| driver.submit(read(raw(here), 8)).unwrap())
        .collect();
    driver.flush().unwrap();
    for (_, there) in &mut pairs {
        there.write_all(b"x").unwrap();
    }
    let mut missing: HashSet<Token> = tokens.into_iter().collect();
    let mut events = Vec::new();
    while !missing.is_empty() {
        events.clear();
        poll(&mut driver, Some(PATIENCE), &mut events);
        for event in &events {
            assert_eq!(event.result(), 1);
            assert!(missing.remove(&event.token()));
            assert!(
                matches!(driver.take(event.token()), Some(Op::Read { buffer, .. }) if buffer.filled() == b"x")
            );
        }
    }
}

fn slots_are_reused_under_a_storm_of_late_completions(mut driver: Driver) {
    let mut pairs = pairs(20);
    for (_, there) in &mut pairs {
        there.write_all(b"x").unwrap();
    }
    for round in 0..200 {
        // Dropped while their events are under way. Others get the same slots at once.
        let stale: Vec<Token> = pairs
            .iter()
            .map(|(here, _)| driver.watch(raw(here), Interest::READ, Mode::Edge).unwrap())
            .collect();
        if round % 2 == 0 {
            driver.flush().unwrap();
        }
        for token in &stale {
            driver.unwatch(*token);
        }
        let (idle, _peer) = pair();
        let live = driver
            .watch(raw(&idle), Interest::READ, Mode::Edge)
            .unwrap();
        let operation = driver.submit(read(raw(&idle), 8)).unwrap();
        let mut events = Vec::new();
        poll(&mut driver, Some(std::time::Duration::ZERO), &mut events);
        assert_eq!(events, []);
        driver.unwatch(live);
        driver.cancel(operation);
        assert_eq!(event_of(&mut driver, operation).result(), -libc::ECANCELED);
    }
    if driver.backend() == ringloop_driver::BackendKind::IoUring {
        assert!(driver.counters().stale_events > 0);
    }
}

#[test]
fn a_submission_thread_of_the_kernels_serves_watches_and_operations() {
    let mut config = Config::with_backend(BackendChoice::IoUring);
    config.sq_poll = true;
    let Some(mut driver) = driver_with(&config) else {
        return;
    };
    watch_many(&mut driver, 50);
    let (here, mut there) = pair();
    let token = driver.submit(read(raw(&here), 8)).unwrap();
    there.write_all(b"x").unwrap();
    assert_eq!(event_of(&mut driver, token).result(), 1);
    let token = driver.submit(read(raw(&here), 8)).unwrap();
    driver.flush().unwrap();
    driver.cancel(token);
    assert_eq!(event_of(&mut driver, token).result(), -libc::ECANCELED);
}

#[test]
fn a_submission_thread_of_the_kernels_saves_system_calls() {
    const ROUNDS: u64 = 200;
    let mut config = Config::with_backend(BackendChoice::IoUring);
    config.sq_poll = true;
    let Some(mut driver) = driver_with(&config) else {
        return;
    };
    let (mut here, mut there) = pair();
    let watch = driver
        .watch(raw(&here), Interest::READ, Mode::Level)
        .unwrap();
    let before = driver.counters().system_calls;
    let mut events = Vec::new();
    for _ in 0..ROUNDS {
        let token = driver.submit(read(raw(&there), 8)).unwrap();
        there.write_all(b"x").unwrap();
        // Like a caller that polls for events and never sleeps.
        let mut next = |driver: &mut Driver, token: Token| {
            // The thread may not be scheduled.
            drop(driver.flush());
            events.clear();
            let start = Instant::now();
            while !events.iter().any(|event: &Event| event.token() == token) {
                assert!(start.elapsed() < PATIENCE, "nothing comes");
                if driver.peek() == Peek::Ready {
                    driver.poll(Some(Duration::ZERO), &mut events).unwrap();
                }
            }
        };
        next(&mut driver, watch);
        here.read_exact(&mut [0]).unwrap();
        driver.cancel(token);
        next(&mut driver, token);
    }
    // The thread is woken sometimes.
    let calls = driver.counters().system_calls - before;
    assert!(
        calls <= 4 * ROUNDS,
        "{calls} system calls in {ROUNDS} rounds"
    );
    // A poll that waits makes one call, and one without a timeout that finds nothing makes none.
    drop(driver.flush());
    while driver.peek() != Peek::Empty {
        std::thread::yield_now();
    }
    let before = driver.counters().system_calls;
    for _ in 0..100 {
        driver.poll(Some(Duration::ZERO), &mut events).unwrap();
    }
    assert_eq!(driver.counters().system_calls, before);
    for _ in 0..100 {
        let timeout = Some(Duration::from_micros(1));
        driver.poll(timeout, &mut Vec::new()).unwrap();
    }
    let calls = driver.counters().system_calls - before;
    assert!(calls <= 200, "{calls} system calls for 100 waits");
}

/// On epoll, threads do these. One finishes while a poll returns that another one has ended.
fn what_ends_while_another_is_reported_is_reported_too(mut driver: Driver) {
    let mut events = Vec::new();
    for round in 0..3000 {
        let mut missing: HashSet<Token> = (0..2 + round % 3)
            .map(|_| {
                let op = Op::Statx {
                    directory: None,
                    path: c"/".to_owned(),
                    flags: 0,
                    mask: libc::STATX_BASIC_STATS,
                    status: Box::default(),
                };
                driver.submit(op).unwrap()
            })
            .collect();
        while !missing.is_empty() {
            events.clear();
            let start = Instant::now();
            poll(&mut driver, Some(PATIENCE), &mut events);
            assert!(
                start.elapsed() < PATIENCE,
                "seen by chance, with the timeout"
            );
            for event in &events {
                assert_eq!(event.result(), 0);
                assert!(missing.remove(&event.token()));
            }
        }
    }
}
