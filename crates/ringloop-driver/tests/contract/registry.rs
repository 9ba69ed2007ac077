//! The registry: watches that any thread may make, and that keep no file open.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use ringloop_driver::{Driver, Event, Interest, Mode, Peek, Registration, Registry, Script};

use crate::support::{
    PATIENCE, all_events, errno, listener, on_both_backends, own, pair, pairs, poll,
    raise_descriptor_limit, raw,
};

on_both_backends!(
    an_edge_registration_reports_what_is_there_and_each_arrival,
    a_level_registration_reports_as_long_as_it_is_ready,
    a_one_shot_registration_reports_once_until_it_is_armed_again,
    more_registrations_than_one_look_fetches_are_all_reported,
    a_socket_that_is_closed_is_let_go_of_at_once,
    a_listener_that_is_closed_takes_no_more_connections,
    another_thread_registers_while_the_driver_waits,
    registrations_outlast_a_move_to_another_thread,
    a_registration_that_was_replaced_is_not_reported,
    a_duplicate_still_reports_under_the_old_registration,
    a_registration_that_is_gone_with_its_file_is_told_from_one_that_lives,
    dropping_a_registration_ends_it,
    what_cannot_be_registered_is_refused,
    watches_and_registrations_live_side_by_side,
    a_level_registration_reports_once_in_a_poll_however_much_that_brings,
    an_idle_registry_makes_no_system_call,
);

/// Polls until an event of the registration comes, and returns it. Others are dropped.
fn event_of(driver: &mut Driver, registration: Registration) -> Event {
    let mut events = Vec::new();
    loop {
        poll(driver, Some(PATIENCE), &mut events);
        let found = events.drain(..);
        let mut found = found.filter(|event| event.registration() == Some(registration));
        if let Some(event) = found.next() {
            assert!(event.is_watch());
            return event;
        }
    }
}

/// A duplicate of a descriptor, with a number that no other test gets: each has its own `place`.
fn copy_of(file: &impl AsRawFd, place: RawFd, driver: &Driver) -> OwnedFd {
    let lowest = raise_descriptor_limit() - 20 - 10 * place - driver.backend() as RawFd;
    // SAFETY: takes no memory of ours.
    own(unsafe { libc::fcntl(raw(file), libc::F_DUPFD_CLOEXEC, lowest) })
}

/// Closes `copy` and opens another file with its number.
fn reuse(copy: &OwnedFd, other: &impl AsRawFd) {
    // SAFETY: takes no memory of ours. `copy` owns what lies under its number from now on.
    let result = unsafe { libc::dup2(raw(other), raw(copy)) };
    assert_eq!(result, raw(copy));
}

fn add(registry: &Registry, file: &impl AsRawFd, mode: Mode) -> Registration {
    registry.add(raw(file), Interest::READ, mode).unwrap()
}

fn an_edge_registration_reports_what_is_there_and_each_arrival(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (mut here, mut there) = pair();
    there.write_all(b"one").unwrap();
    let registration = add(&registry, &here, Mode::Edge);
    assert_eq!(registration.fd(), raw(&here));
    for _ in 0..3 {
        assert!(
            event_of(&mut driver, registration)
                .readiness()
                .is_readable()
        );
        assert_eq!(all_events(&mut driver), []);
        let mut buffer = [0; 16];
        while here.read(&mut buffer).is_ok() {}
        there.write_all(b"more").unwrap();
    }
    there.shutdown(Shutdown::Write).unwrap();
    assert!(
        event_of(&mut driver, registration)
            .readiness()
            .is_read_closed()
    );
}

fn a_level_registration_reports_as_long_as_it_is_ready(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (mut here, mut there) = pair();
    let registration = add(&registry, &here, Mode::Level);
    for _ in 0..3 {
        there.write_all(b"x").unwrap();
        let mut events = Vec::new();
        for round in 0..6 {
            if round % 2 == 0 {
                // What comes while it is ready causes no second report: a user who reads once for each report must
                // always find something.
                there.write_all(b"x").unwrap();
            }
            events.clear();
            poll(&mut driver, Some(PATIENCE), &mut events);
            assert_eq!(events.len(), 1);
            assert_eq!(events[0].registration(), Some(registration));
        }
        here.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(all_events(&mut driver), []);
    }
}

fn a_one_shot_registration_reports_once_until_it_is_armed_again(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (here, mut there) = pair();
    let registration = add(&registry, &here, Mode::OneShot);
    for _ in 0..3 {
        there.write_all(b"x").unwrap();
        event_of(&mut driver, registration);
        there.write_all(b"y").unwrap();
        assert_eq!(all_events(&mut driver), []);
        registry
            .change(registration, Interest::READ, Mode::OneShot)
            .unwrap();
    }
    event_of(&mut driver, registration);
    // Registered again, while the old registration still exists.
    let next = add(&registry, &here, Mode::OneShot);
    assert_ne!(next, registration);
    event_of(&mut driver, next);
}

fn more_registrations_than_one_look_fetches_are_all_reported(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let mut pairs = pairs(1200);
    for mode in [Mode::Level, Mode::Edge, Mode::OneShot] {
        let mut missing: Vec<_> = pairs
            .iter()
            .map(|(here, _)| add(&registry, here, mode))
            .collect();
        for (_, there) in &mut pairs {
            there.write_all(b"x").unwrap();
        }
        let mut events = Vec::new();
        while !missing.is_empty() {
            events.clear();
            poll(&mut driver, Some(PATIENCE), &mut events);
            missing.retain(|it| events.iter().all(|event| event.registration() != Some(*it)));
        }
        for (here, _) in &mut pairs {
            here.read_exact(&mut [0]).unwrap();
        }
        assert_eq!(all_events(&mut driver), []);
    }
}

fn a_socket_that_is_closed_is_let_go_of_at_once(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        let (here, mut there) = pair();
        add(&registry, &here, mode);
        assert_eq!(all_events(&mut driver), []);
        drop(here);
        // The peer doesn't block: anything but the end is an error.
        assert_eq!(there.read(&mut [0]).unwrap(), 0, "{mode:?}");
        assert_eq!(all_events(&mut driver), [], "{mode:?}");
    }
}

fn a_listener_that_is_closed_takes_no_more_connections(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (listener, address) = listener();
    let registration = add(&registry, &listener, Mode::Level);
    drop(TcpStream::connect(address).unwrap());
    event_of(&mut driver, registration);
    drop(listener);
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(all_events(&mut driver), []);
}

fn another_thread_registers_while_the_driver_waits(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (mut here, there) = pair();
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        for readable_before in [true, false] {
            let (registry_there, ours) = (registry.clone(), raw(&here));
            let mut theirs = there.try_clone().unwrap();
            let thread = thread::spawn(move || {
                // The driver is probably waiting by now. It does not matter if it is not.
                thread::sleep(Duration::from_millis(20));
                if readable_before {
                    theirs.write_all(b"x").unwrap();
                }
                let registration = registry_there.add(ours, Interest::READ, mode).unwrap();
                if !readable_before {
                    theirs.write_all(b"x").unwrap();
                }
                registration
            });
            let mut events = Vec::new();
            poll(&mut driver, Some(PATIENCE), &mut events);
            let registration = thread.join().unwrap();
            assert_eq!(events[0].registration(), Some(registration));
            here.read_exact(&mut [0]).unwrap();
            registry.remove(registration);
            assert_eq!(all_events(&mut driver), []);
        }
    }
}

fn registrations_outlast_a_move_to_another_thread(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (mut here, mut there) = pair();
    let (mut level, mut level_peer) = pair();
    let edge = add(&registry, &here, Mode::Edge);
    let still_ready = add(&registry, &level, Mode::Level);
    level_peer.write_all(b"x").unwrap();
    event_of(&mut driver, still_ready);
    for _ in 0..3 {
        there.write_all(b"x").unwrap();
        driver = thread::spawn(move || {
            event_of(&mut driver, edge);
            event_of(&mut driver, still_ready);
            driver
        })
        .join()
        .unwrap();
        here.read_exact(&mut [0]).unwrap();
    }
    level.read_exact(&mut [0]).unwrap();
    assert_eq!(all_events(&mut driver), []);
}

fn a_registration_that_was_replaced_is_not_reported(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (here, mut there) = pair();
    let old = add(&registry, &here, Mode::Level);
    let new = add(&registry, &here, Mode::Level);
    assert_ne!(old, new);
    there.write_all(b"x").unwrap();
    let mut events = Vec::new();
    poll(&mut driver, Some(PATIENCE), &mut events);
    let registrations: Vec<_> = events.iter().map(Event::registration).collect();
    assert_eq!(registrations, [Some(new)]);
}

fn a_duplicate_still_reports_under_the_old_registration(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (here, mut there) = pair();
    let (other, mut peer) = pair();
    let number = copy_of(&here, 0, &driver);
    let old = add(&registry, &number, Mode::Edge);
    // `here` keeps the first file open; its number means the second one now.
    reuse(&number, &other);
    let new = add(&registry, &number, Mode::Edge);
    assert_eq!((old.fd(), new.fd()), (raw(&number), raw(&number)));
    assert_ne!(old, new);
    there.write_all(b"x").unwrap();
    event_of(&mut driver, old);
    peer.write_all(b"y").unwrap();
    event_of(&mut driver, new);
}

fn a_registration_that_is_gone_with_its_file_is_told_from_one_that_lives(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (here, mut there) = pair();
    let (other, mut peer) = pair();
    let number = copy_of(&here, 1, &driver);
    drop(here);
    let old = add(&registry, &number, Mode::Level);
    registry.change(old, Interest::WRITE, Mode::Level).unwrap();
    event_of(&mut driver, old);
    reuse(&number, &other);
    assert_eq!(there.read(&mut [0]).unwrap(), 0);
    let changed = registry.change(old, Interest::READ, Mode::Level);
    assert_eq!(errno(changed), libc::ENOENT);
    // The next file with that number is reported once it is registered, and not before.
    peer.write_all(b"x").unwrap();
    assert_eq!(all_events(&mut driver), []);
    let new = add(&registry, &number, Mode::Edge);
    event_of(&mut driver, new);
    drop(number);
    let changed = registry.change(new, Interest::READ, Mode::Level);
    assert_eq!(errno(changed), libc::EBADF);
    registry.remove(new);
}

fn dropping_a_registration_ends_it(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        let (here, mut there) = pair();
        let registration = add(&registry, &here, mode);
        assert_eq!(all_events(&mut driver), []);
        registry.remove(registration);
        registry.remove(registration);
        there.write_all(b"x").unwrap();
        assert_eq!(all_events(&mut driver), [], "{mode:?}");
    }
}

fn what_cannot_be_registered_is_refused(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let directory = std::fs::File::open("/").unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for refused in [&file, &directory, &null] {
        let result = registry.add(raw(refused), Interest::READ, Mode::Level);
        assert_eq!(errno(result), libc::EPERM);
    }
    for bad in [-1, 1_000_000, i32::MAX] {
        let result = registry.add(bad, Interest::READ, Mode::Edge);
        assert_eq!(errno(result), libc::EBADF);
    }
    let scripted = Driver::scripted(Script::new()).unwrap().registry();
    assert_eq!(scripted.unwrap_err().kind(), ErrorKind::Unsupported);
}

fn watches_and_registrations_live_side_by_side(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (watched, mut there) = pair();
    let (registered, mut peer) = pair();
    let token = driver
        .watch(raw(&watched), Interest::READ, Mode::Edge)
        .unwrap();
    let registration = add(&registry, &registered, Mode::Edge);
    there.write_all(b"x").unwrap();
    peer.write_all(b"x").unwrap();
    let events = all_events(&mut driver);
    assert_eq!(events.len(), 2);
    let is_of_watch = |event: &Event| event.token() == token && event.registration().is_none();
    assert_eq!(events.iter().filter(|it| is_of_watch(it)).count(), 1);
    let of_registry = events.iter().filter_map(Event::registration);
    assert_eq!(of_registry.collect::<Vec<_>>(), [registration]);
}

/// Such a poll enters an `io_uring` many times, and each time the registry may have events.
fn a_level_registration_reports_once_in_a_poll_however_much_that_brings(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (registered, mut peer) = pair();
    let registration = add(&registry, &registered, Mode::Level);
    let mut pairs = pairs(400);
    for (here, _) in &pairs {
        driver.watch(raw(here), Interest::READ, Mode::Edge).unwrap();
    }
    driver.flush().unwrap();
    for round in 0..4 {
        // What comes last is reported last, so the registry's events are among the others.
        for (index, (_, there)) in pairs.iter_mut().enumerate() {
            there.write_all(b"x").unwrap();
            if index % 100 == 50 {
                peer.write_all(b"x").unwrap();
            }
        }
        let mut events = Vec::new();
        poll(&mut driver, Some(Duration::ZERO), &mut events);
        let of_registry = events.iter().filter_map(Event::registration);
        assert_eq!(of_registry.collect::<Vec<_>>(), [registration]);
        assert_eq!(events.len(), 401, "round {round}");
        for (here, _) in &mut pairs {
            here.read_exact(&mut [0]).unwrap();
        }
    }
}

fn an_idle_registry_makes_no_system_call(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (mut here, mut there) = pair();
    let level = add(&registry, &here, Mode::Level);
    there.write_all(b"x").unwrap();
    event_of(&mut driver, level);
    here.read_exact(&mut [0]).unwrap();
    assert_eq!(all_events(&mut driver), []);
    let calls = driver.counters().system_calls;
    for _ in 0..10 {
        assert_ne!(driver.peek(), Peek::Ready);
        if driver.peek() == Peek::Empty {
            poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
        }
    }
    assert_eq!(driver.counters().system_calls, calls);
}
