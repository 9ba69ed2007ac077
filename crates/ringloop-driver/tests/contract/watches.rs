//! Readiness: modes, errors, reuse.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use ringloop_driver::{BackendKind, Driver, Event, Interest, Mode, Peek, Readiness};

use crate::support::{
    PATIENCE, all_events, errno, event_of, fill, listener, on_both_backends, own, pair, pairs,
    poll, raise_descriptor_limit, raw,
};

on_both_backends!(
    an_edge_watch_reports_what_is_there_and_each_arrival,
    an_edge_watch_of_both_directions_reports_both,
    a_reader_that_leaves_data_behind_hears_of_the_next_arrival_only,
    a_level_watch_reports_as_long_as_it_is_ready,
    a_one_shot_watch_reports_once_until_it_is_armed_again,
    a_dropped_watch_is_never_heard_of_again,
    a_second_watch_is_refused,
    what_cannot_be_watched_is_refused,
    a_watch_changes_under_its_token,
    a_half_closed_peer_is_read_closed,
    urgent_data_is_told_to_those_who_ask,
    a_writer_hears_nothing_of_the_end_of_what_the_peer_sends,
    a_writer_to_a_half_closed_peer_hears_of_room,
    a_watch_of_a_half_closed_peer_changes,
    a_fired_one_shot_survives_the_reuse_of_its_descriptor,
    one_poll_reports_all_that_is_ready,
    a_poll_leaves_what_is_too_much_to_the_next,
    closing_under_a_watch_reaches_the_peer,
);

fn an_edge_watch_reports_what_is_there_and_each_arrival(mut driver: Driver) {
    let (mut here, mut there) = pair();
    there.write_all(b"one").unwrap();
    let token = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    for _ in 0..3 {
        let event = event_of(&mut driver, token);
        assert!(event.is_watch() && event.readiness().is_readable());
        let mut buffer = [0; 16];
        while here.read(&mut buffer).is_ok() {}
        all_events(&mut driver);
        there.write_all(b"more").unwrap();
    }
}

fn an_edge_watch_of_both_directions_reports_both(mut driver: Driver) {
    let (here, mut there) = pair();
    fill(raw(&here));
    let token = driver
        .watch(raw(&here), Interest::READ | Interest::WRITE, Mode::Edge)
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.write_all(b"x").unwrap();
    assert!(event_of(&mut driver, token).readiness().is_readable());
    all_events(&mut driver);
    let mut buffer = vec![0; 1 << 20];
    while there.read(&mut buffer).is_ok() {}
    assert!(event_of(&mut driver, token).readiness().is_writable());
}

fn a_reader_that_leaves_data_behind_hears_of_the_next_arrival_only(mut driver: Driver) {
    let (mut here, mut there) = pair();
    let token = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    there.write_all(b"two bytes and more").unwrap();
    event_of(&mut driver, token);
    let mut two = [0; 2];
    here.read_exact(&mut two).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.write_all(b"!").unwrap();
    assert!(event_of(&mut driver, token).readiness().is_readable());
    // Arming again reports what is there, so that a reader can come back to data that it left.
    all_events(&mut driver);
    driver.rewatch(token, Interest::READ, Mode::Edge).unwrap();
    assert!(event_of(&mut driver, token).readiness().is_readable());
}

fn a_level_watch_reports_as_long_as_it_is_ready(mut driver: Driver) {
    let (mut here, mut there) = pair();
    let token = driver
        .watch(raw(&here), Interest::READ, Mode::Level)
        .unwrap();
    there.write_all(b"x").unwrap();
    let mut events = Vec::new();
    for _ in 0..5 {
        events.clear();
        poll(&mut driver, Some(PATIENCE), &mut events);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].token(), token);
    }
    here.read_exact(&mut [0]).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.write_all(b"x").unwrap();
    assert!(event_of(&mut driver, token).readiness().is_readable());
    driver.unwatch(token);
    assert_eq!(all_events(&mut driver), []);
}

fn a_one_shot_watch_reports_once_until_it_is_armed_again(mut driver: Driver) {
    let (here, mut there) = pair();
    let token = driver
        .watch(raw(&here), Interest::READ, Mode::OneShot)
        .unwrap();
    there.write_all(b"x").unwrap();
    event_of(&mut driver, token);
    there.write_all(b"y").unwrap();
    assert_eq!(all_events(&mut driver), []);
    driver
        .rewatch(token, Interest::READ, Mode::OneShot)
        .unwrap();
    assert_eq!(event_of(&mut driver, token).token(), token);
    assert_eq!(all_events(&mut driver), []);
}

fn a_dropped_watch_is_never_heard_of_again(mut driver: Driver) {
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        let (here, mut there) = pair();
        // Dropped before the kernel has it, after, and while its event is under way.
        let token = driver.watch(raw(&here), Interest::READ, mode).unwrap();
        driver.unwatch(token);
        there.write_all(b"x").unwrap();
        assert_eq!(all_events(&mut driver), []);
        let token = driver.watch(raw(&here), Interest::READ, mode).unwrap();
        driver.flush().unwrap();
        driver.unwatch(token);
        // The slot's next owner must not get the event of the previous one.
        let (idle, _peer) = pair();
        let next = driver.watch(raw(&idle), Interest::READ, mode).unwrap();
        assert_eq!(next.index(), token.index());
        assert_ne!(next, token);
        assert_eq!(all_events(&mut driver), []);
        driver.unwatch(token);
        driver.unwatch(next);
    }
    assert_eq!(driver.counters().watches, 0);
}

fn a_second_watch_is_refused(mut driver: Driver) {
    let (here, _there) = pair();
    let token = driver
        .watch(raw(&here), Interest::READ, Mode::Level)
        .unwrap();
    assert_eq!(
        errno(driver.watch(raw(&here), Interest::WRITE, Mode::Level)),
        libc::EEXIST
    );
    driver.unwatch(token);
    let token = driver
        .watch(raw(&here), Interest::WRITE, Mode::Level)
        .unwrap();
    assert!(event_of(&mut driver, token).readiness().is_writable());
}

fn what_cannot_be_watched_is_refused(mut driver: Driver) {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let directory = std::fs::File::open("/").unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for refused in [&file, &directory, &null] {
        assert_eq!(
            errno(driver.watch(refused.as_raw_fd(), Interest::READ, Mode::Level)),
            libc::EPERM
        );
    }
    for bad in [-1, 1_000_000, i32::MAX] {
        assert_eq!(
            errno(driver.watch(bad, Interest::READ, Mode::Edge)),
            libc::EBADF
        );
    }
    let closed = closed_descriptor(&driver);
    assert_eq!(
        errno(driver.watch(closed, Interest::READ, Mode::OneShot)),
        libc::EBADF
    );
    assert_eq!(driver.counters().watches, 0);
}

/// A closed descriptor whose number nobody else gets by chance: the kernel uses the lowest free number.
fn closed_descriptor(driver: &Driver) -> RawFd {
    let (here, _there) = pair();
    // One for each backend, because their tests run at the same time.
    let number = raise_descriptor_limit() - 1 - driver.backend() as RawFd;
    // SAFETY: takes no memory of ours.
    let copy = own(unsafe { libc::fcntl(raw(&here), libc::F_DUPFD_CLOEXEC, number) });
    raw(&copy)
}

fn a_watch_changes_under_its_token(mut driver: Driver) {
    let (here, mut there) = pair();
    there.write_all(b"x").unwrap();
    let token = driver
        .watch(raw(&here), Interest::WRITE, Mode::Edge)
        .unwrap();
    assert!(!event_of(&mut driver, token).readiness().is_readable());
    driver.rewatch(token, Interest::READ, Mode::Level).unwrap();
    let event = event_of(&mut driver, token);
    assert!(event.readiness().is_readable() && !event.readiness().is_writable());
    driver
        .rewatch(token, Interest::READ | Interest::WRITE, Mode::OneShot)
        .unwrap();
    let event = event_of(&mut driver, token);
    assert!(event.readiness().is_readable() && event.readiness().is_writable());
    assert_eq!(all_events(&mut driver), []);
    driver.unwatch(token);
    assert_eq!(
        errno(driver.rewatch(token, Interest::READ, Mode::Edge)),
        libc::ENOENT
    );
}

fn a_half_closed_peer_is_read_closed(mut driver: Driver) {
    let (mut here, there) = pair();
    let token = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.shutdown(Shutdown::Write).unwrap();
    let readiness = event_of(&mut driver, token).readiness();
    assert!(readiness.is_readable() && readiness.is_read_closed() && !readiness.is_hang_up());
    assert_eq!(here.read(&mut [0; 4]).unwrap(), 0);
    // The other direction still works.
    here.write_all(b"still here").unwrap();
}

fn urgent_data_is_told_to_those_who_ask(mut driver: Driver) {
    let (listener, address) = listener();
    for asks in [true, false] {
        let peer = TcpStream::connect(address).unwrap();
        let (mut here, _) = listener.accept().unwrap();
        let interest = if asks {
            Interest::READ | Interest::PRIORITY
        } else {
            Interest::READ
        };
        let token = driver.watch(raw(&here), interest, Mode::Edge).unwrap();
        let urgent = b"!";
        // SAFETY: the kernel reads one byte of `urgent`, which outlives the call.
        let sent = unsafe { libc::send(raw(&peer), urgent.as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1);
        (&peer).write_all(b"behind").unwrap();
        let events = all_events(&mut driver);
        assert!(events.iter().all(|event| event.token() == token));
        let is_told = |is: fn(&Readiness) -> bool| events.iter().any(|e| is(&e.readiness()));
        assert!(is_told(|readiness| readiness.is_readable()));
        let can_tell = driver.backend() == BackendKind::Epoll;
        assert_eq!(
            is_told(|readiness| readiness.is_priority()),
            asks && can_tell
        );
        let mut buffer = [0; 16];
        assert_eq!(here.read(&mut buffer).unwrap(), 6);
        driver.unwatch(token);
        driver.flush().unwrap();
    }
}

fn a_writer_hears_nothing_of_the_end_of_what_the_peer_sends(mut driver: Driver) {
    for mode in [Mode::Level, Mode::OneShot, Mode::Edge] {
        let (here, there) = pair();
        fill(raw(&here));
        let token = driver.watch(raw(&here), Interest::WRITE, mode).unwrap();
        assert_eq!(all_events(&mut driver), []);
        there.shutdown(Shutdown::Write).unwrap();
        assert_eq!(all_events(&mut driver), [], "{mode:?}");
        // It does not keep the driver busy, either.
        let calls = driver.counters().system_calls;
        assert_eq!(all_events(&mut driver), []);
        assert!(driver.counters().system_calls <= calls + 4, "{mode:?}");
        driver.unwatch(token);
    }
}

fn a_writer_to_a_half_closed_peer_hears_of_room(mut driver: Driver) {
    for mode in [Mode::Level, Mode::OneShot, Mode::Edge] {
        let (here, mut there) = pair();
        fill(raw(&here));
        there.shutdown(Shutdown::Write).unwrap();
        let token = driver.watch(raw(&here), Interest::WRITE, mode).unwrap();
        assert_eq!(all_events(&mut driver), []);
        for _ in 0..3 {
            let mut buffer = vec![0; 1 << 20];
            while there.read(&mut buffer).is_ok() {}
            let readiness = event_of(&mut driver, token).readiness();
            assert!(readiness.is_writable(), "{mode:?}");
            assert!(!readiness.is_read_closed(), "{mode:?}: {readiness:?}");
            fill(raw(&here));
            if mode == Mode::OneShot {
                assert_eq!(all_events(&mut driver), []);
                driver.rewatch(token, Interest::WRITE, mode).unwrap();
            }
            // What was under way when the room was filled may still be reported.
            while !all_events(&mut driver).is_empty() {}
        }
        driver.unwatch(token);
        let mut buffer = vec![0; 1 << 20];
        while there.read(&mut buffer).is_ok() {}
        assert_eq!(all_events(&mut driver), [], "{mode:?}");
    }
}

fn a_watch_of_a_half_closed_peer_changes(mut driver: Driver) {
    let (here, mut there) = pair();
    fill(raw(&here));
    there.shutdown(Shutdown::Write).unwrap();
    let token = driver
        .watch(raw(&here), Interest::WRITE, Mode::Level)
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    driver.rewatch(token, Interest::READ, Mode::Level).unwrap();
    for _ in 0..3 {
        let readiness = event_of(&mut driver, token).readiness();
        assert!(readiness.is_readable() && readiness.is_read_closed());
    }
    driver
        .rewatch(token, Interest::READ | Interest::WRITE, Mode::Level)
        .unwrap();
    assert!(event_of(&mut driver, token).readiness().is_readable());
    driver.rewatch(token, Interest::WRITE, Mode::Level).unwrap();
    assert_eq!(all_events(&mut driver), []);
    let mut buffer = vec![0; 1 << 20];
    while there.read(&mut buffer).is_ok() {}
    for _ in 0..3 {
        assert!(event_of(&mut driver, token).readiness().is_writable());
    }
}

fn a_fired_one_shot_survives_the_reuse_of_its_descriptor(mut driver: Driver) {
    let (here, mut there) = pair();
    let number = raw(&here);
    let stale = driver.watch(number, Interest::READ, Mode::OneShot).unwrap();
    there.write_all(b"x").unwrap();
    event_of(&mut driver, stale);
    // Closed without telling the driver. Another file gets the same number.
    let (other, mut peer) = pair();
    // SAFETY: takes no memory of ours. The number is `here`'s, which owns what lies under it from now on.
    let result = unsafe { libc::dup2(raw(&other), number) };
    assert_eq!(result, number);
    let token = driver.watch(number, Interest::READ, Mode::OneShot).unwrap();
    assert_ne!(token, stale);
    assert_eq!(
        errno(driver.rewatch(stale, Interest::READ, Mode::OneShot)),
        libc::EEXIST
    );
    driver.unwatch(stale);
    peer.write_all(b"y").unwrap();
    assert!(event_of(&mut driver, token).readiness().is_readable());
    driver.unwatch(token);
    // And again on the same file, whose registration still exists.
    let token = driver.watch(number, Interest::READ, Mode::OneShot).unwrap();
    assert!(event_of(&mut driver, token).readiness().is_readable());
    let mut events = Vec::new();
    poll(&mut driver, Some(Duration::ZERO), &mut events);
    assert_eq!(events, []);
    assert_ne!(driver.peek(), Peek::Ready);
}

/// One enter of an `io_uring` yields some twenty events and takes 256 entries. A poll must hide that.
fn one_poll_reports_all_that_is_ready(mut driver: Driver) {
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        let mut pairs = pairs(400);
        let tokens: Vec<_> = pairs
            .iter()
            .map(|(here, _)| driver.watch(raw(here), Interest::READ, mode).unwrap())
            .collect();
        for round in 0..2 {
            // In the first round the watches are not even armed when the data comes.
            for (_, there) in &mut pairs {
                there.write_all(b"x").unwrap();
            }
            let mut events = Vec::new();
            poll(&mut driver, Some(Duration::ZERO), &mut events);
            let reported: HashSet<_> = events.iter().map(Event::token).collect();
            assert_eq!(events.len(), 400, "{mode:?}, round {round}");
            assert_eq!(reported.len(), 400, "{mode:?}, round {round}");
            for ((here, _), &token) in pairs.iter_mut().zip(&tokens) {
                here.read_exact(&mut [0]).unwrap();
                if mode == Mode::OneShot {
                    driver.rewatch(token, Interest::READ, mode).unwrap();
                }
            }
            assert_eq!(all_events(&mut driver), []);
        }
        for token in tokens {
            driver.unwatch(token);
        }
        driver.flush().unwrap();
    }
}

fn a_poll_leaves_what_is_too_much_to_the_next(mut driver: Driver) {
    let mut pairs = pairs(2000);
    let mut missing: HashSet<_> = pairs
        .iter()
        .map(|(here, _)| {
            driver
                .watch(raw(here), Interest::READ, Mode::Level)
                .unwrap()
        })
        .collect();
    driver.flush().unwrap();
    for (_, there) in &mut pairs {
        there.write_all(b"x").unwrap();
    }
    // Nobody reads, so a watch that was reported is ready again at once. It must not displace the others.
    for turn in 0..4 {
        let mut events = Vec::new();
        poll(&mut driver, Some(Duration::ZERO), &mut events);
        assert!(events.len() >= 500, "{} in poll {turn}", events.len());
        assert!(turn > 0 || events.len() < 1024, "{} in one", events.len());
        for event in &events {
            missing.remove(&event.token());
        }
    }
    assert_eq!(missing.len(), 0);
}

fn closing_under_a_watch_reaches_the_peer(mut driver: Driver) {
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        for polled in [false, true] {
            let (listener, address) = listener();
            let mut client = TcpStream::connect(address).unwrap();
            let (server, _) = listener.accept().unwrap();
            let watch = driver.watch(raw(&server), Interest::READ, mode).unwrap();
            if polled {
                poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
            }
            driver.unwatch(watch);
            driver.flush().unwrap();
            drop(server);
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
    assert_eq!(all_events(&mut driver), []);
}
