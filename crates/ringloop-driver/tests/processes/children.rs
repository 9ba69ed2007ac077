//! A driver and fork(2), and a driver at the limit of its process.

use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::Duration;

use ringloop_driver::{Driver, Interest, Mode, Op, Peek};

use crate::support::{
    all_events, descriptor_of, event_of, in_child, lend, on_both_backends, pair, raw, read,
};

on_both_backends!(
    a_child_leaves_its_parents_driver_alone,
    a_child_leaves_its_parents_registrations_alone,
    a_child_makes_a_driver_of_its_own,
    running_out_of_descriptors_ends_opening,
    a_registration_that_outlived_its_descriptor_is_taken_over,
);

fn a_child_leaves_its_parents_driver_alone(mut driver: Driver) {
    let (here, mut there) = pair();
    let watch = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    let (receiving, mut sending) = pair();
    let operation = driver.submit(read(raw(&receiving), 8)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    let (other, _peer) = pair();
    let number = other.as_raw_fd();
    // The child has a copy of the driver. Dropping it must not affect the parent's, either. SAFETY: each process uses
    // and drops one of the two: this one the driver, the child its copy.
    let mut copy = ManuallyDrop::new(Some(unsafe { std::ptr::read(&raw const driver) }));
    in_child(|| {
        let mut driver = copy.take().ok_or("no driver")?;
        let refused = |result: std::io::Result<()>| match result {
            Err(error)
                if error.kind() == std::io::ErrorKind::Other
                    && error.to_string().contains("fork") =>
            {
                Ok(())
            }
            other => Err(format!("expected to hear of the fork, got {other:?}")),
        };
        refused(driver.watch(number, Interest::READ, Mode::Edge).map(drop))?;
        refused(driver.rewatch(watch, Interest::READ, Mode::Edge))?;
        refused(
            driver
                .submit(Op::Fsync {
                    fd: lend(number),
                    data_only: true,
                })
                .map(drop)
                .map_err(Into::into),
        )?;
        refused(driver.poll(Some(Duration::ZERO), &mut Vec::new()))?;
        refused(driver.flush())?;
        // Otherwise a loop that peeks until something comes would never hear of the fork; and on io_uring, a peek
        // writes to the ring.
        if driver.peek() != Peek::Ready || !driver.is_inherited() {
            return Err("a peek found the parent's driver".to_owned());
        }
        driver.unwatch(watch);
        driver.cancel(operation);
        driver.cancel_fd(raw(&receiving));
        driver.discard(operation);
        drop(driver);
        Ok(())
    });
    there.write_all(b"x").unwrap();
    assert!(event_of(&mut driver, watch).readiness().is_readable());
    sending.write_all(b"x").unwrap();
    assert_eq!(event_of(&mut driver, operation).result(), 1);
}

fn a_child_makes_a_driver_of_its_own(mut driver: Driver) {
    let (here, mut there) = pair();
    driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    let choice = driver.backend().name().parse().unwrap();
    in_child(|| {
        let mut driver = crate::support::driver(choice).ok_or("no driver in the child")?;
        let watch = driver
            .watch(raw(&here), Interest::READ, Mode::Edge)
            .map_err(|error| error.to_string())?;
        there.write_all(b"x").map_err(|error| error.to_string())?;
        if event_of(&mut driver, watch).readiness().is_readable() {
            Ok(())
        } else {
            Err("not readable".to_owned())
        }
    });
}

fn running_out_of_descriptors_ends_opening(driver: Driver) {
    // The limit belongs to the process, and so does the driver.
    let backend = driver.backend();
    drop(driver);
    in_child(|| {
        let choice = backend.name().parse().unwrap();
        let mut driver = crate::support::driver(choice).ok_or("no driver in the child")?;
        let open = || Op::OpenAt {
            directory: None,
            path: c"/dev/null".to_owned(),
            flags: libc::O_RDONLY,
            mode: 0,
        };
        // Whatever it needs for that is there.
        drop(descriptor_of(&mut driver, open()));
        // Use all free numbers below the limit, so that the next descriptor exceeds it.
        let next = raw(&std::fs::File::open("/dev/null").unwrap());
        let mut before = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the kernel writes one rlimit to `before`, which outlives the call.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) };
        let limit = |count| {
            let limit = libc::rlimit {
                rlim_cur: count,
                ..before
            };
            // SAFETY: the kernel reads one rlimit from `limit`, which outlives the call.
            let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
            assert_eq!(result, 0);
        };
        limit(next as libc::rlim_t);
        let token = driver.submit(open()).unwrap();
        let event = event_of(&mut driver, token);
        if event.result() != -libc::EMFILE {
            return Err(format!("expected EMFILE, got {event:?}"));
        }
        if driver.counters().operations != 0 || !all_events(&mut driver).is_empty() {
            return Err("the driver goes on by itself".to_owned());
        }
        // Once there are descriptors again, the same file is opened.
        limit(before.rlim_cur);
        let token = driver.submit(open()).unwrap();
        let event = event_of(&mut driver, token);
        if event.result() < 0 {
            Err(format!("expected a descriptor, got {event:?}"))
        } else {
            Ok(())
        }
    });
}

fn a_registration_that_outlived_its_descriptor_is_taken_over(driver: Driver) {
    // In a child, which has no other threads, so that nobody else gets the number while it is free.
    let backend = driver.backend();
    drop(driver);
    in_child(|| {
        let choice = backend.name().parse().unwrap();
        let mut driver = crate::support::driver(choice).ok_or("no driver in the child")?;
        let (here, mut there) = pair();
        let number = raw(&here);
        let duplicate = here.try_clone().map_err(|error| error.to_string())?;
        let stale = driver
            .watch(number, Interest::READ, Mode::Edge)
            .map_err(|error| error.to_string())?;
        driver.flush().map_err(|error| error.to_string())?;
        // Closed before the watch was dropped: the registration can no longer be removed, and the duplicate keeps the
        // file open. So the same file is still in the set with the same number.
        drop(here);
        driver.unwatch(stale);
        // SAFETY: takes no memory of ours. The number is free since `here` was dropped: there is no other thread to take it.
        let result = unsafe { libc::dup2(raw(&duplicate), number) };
        assert_eq!(result, number);
        let watch = driver
            .watch(number, Interest::READ, Mode::Edge)
            .map_err(|error| error.to_string())?;
        there.write_all(b"x").map_err(|error| error.to_string())?;
        if event_of(&mut driver, watch).readiness().is_readable() {
            Ok(())
        } else {
            Err("not readable".to_owned())
        }
    });
}

fn a_child_leaves_its_parents_registrations_alone(mut driver: Driver) {
    let registry = driver.registry().unwrap();
    let (here, mut there) = pair();
    let registration = registry
        .add(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    in_child(|| {
        registry.remove(registration);
        let refusals = [
            registry
                .add(raw(&here), Interest::READ, Mode::Edge)
                .is_err(),
            registry
                .change(registration, Interest::WRITE, Mode::Edge)
                .is_err(),
            driver.registry().is_err(),
        ];
        if refusals == [true; 3] {
            Ok(())
        } else {
            Err(format!("{refusals:?}"))
        }
    });
    there.write_all(b"x").unwrap();
    let events = all_events(&mut driver);
    assert_eq!(events[0].registration(), Some(registration));
    assert!(events[0].readiness().is_readable());
}
