//! Operations of any kind: errors, resources, and what they share a descriptor with.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ringloop_driver::{Bytes, Driver, Interest, Mode, Op, SharedFd};

use crate::support::{
    PATIENCE, all_events, event_of, fill, finish, lend, listener, on_both_backends, pair, pipe,
    poll, raw, read, write,
};

on_both_backends!(
    bad_descriptors_are_results,
    mistakes_are_refused,
    what_is_refused_is_the_submitters_again,
    resources_can_be_taken_once_and_until_the_next_poll,
    a_watch_and_operations_share_a_descriptor,
    a_dropped_driver_lets_go_of_everything,
);

fn bad_descriptors_are_results(mut driver: Driver) {
    let send = |fd| Op::SendZeroCopy {
        fd: lend(fd),
        bytes: Bytes::new("x"),
        flags: 0,
    };
    for fd in [-1, 900_000] {
        assert_eq!(finish(&mut driver, read(fd, 8)).0, -libc::EBADF);
        assert_eq!(finish(&mut driver, send(fd)).0, -libc::EBADF);
    }
    let (_reader, pipe) = pipe();
    assert_eq!(finish(&mut driver, send(raw(&pipe))).0, -libc::ENOTSOCK);
}

fn mistakes_are_refused(mut driver: Driver) {
    let error = driver.submit(read(0, 0)).unwrap_err();
    assert_eq!(error.error().kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(driver.counters().operations, 0);
}

fn what_is_refused_is_the_submitters_again(mut driver: Driver) {
    let (here, mut there) = pair();
    let refused = driver
        .submit(Op::SendZeroCopy {
            fd: SharedFd::new(here),
            bytes: Bytes::new("hello"),
            flags: libc::MSG_ZEROCOPY,
        })
        .unwrap_err();
    let text = refused.to_string();
    let (error, op) = refused.into_parts();
    assert_eq!(error.to_string(), text);
    let Op::SendZeroCopy { fd, bytes, .. } = op else {
        panic!("{op:?}");
    };
    // Neither the buffer nor the descriptor is gone.
    assert_eq!(bytes.as_slice(), b"hello");
    let sent = Op::SendZeroCopy {
        fd,
        bytes,
        flags: 0,
    };
    let token = driver.submit(sent).unwrap();
    assert_eq!(event_of(&mut driver, token).result(), 5);
    let mut received = [0; 5];
    there.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"hello");
}

fn resources_can_be_taken_once_and_until_the_next_poll(mut driver: Driver) {
    let (here, mut there) = pair();
    there.write_all(b"xy").unwrap();
    let token = driver.submit(read(raw(&here), 1)).unwrap();
    assert!(
        driver.take(token).is_none(),
        "nothing to take before the last event"
    );
    event_of(&mut driver, token);
    assert!(driver.take(token).is_some());
    assert!(driver.take(token).is_none());
    let late = driver.submit(read(raw(&here), 1)).unwrap();
    event_of(&mut driver, late);
    poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
    assert!(driver.take(late).is_none());
}

fn a_watch_and_operations_share_a_descriptor(mut driver: Driver) {
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        let (here, mut there) = pair();
        let watch = driver.watch(raw(&here), Interest::READ, mode).unwrap();
        fill(raw(&here));
        let sending = driver.submit(write(raw(&here), b"last")).unwrap();
        assert_eq!(all_events(&mut driver), []);
        there.write_all(b"ping").unwrap();
        let event = event_of(&mut driver, watch);
        assert!(event.readiness().is_readable() && !event.readiness().is_writable());
        let mut buffer = vec![0; 1 << 20];
        while there.read(&mut buffer).is_ok() {}
        assert_eq!(event_of(&mut driver, sending).result(), 4);
        let receiving = driver.submit(read(raw(&here), 8)).unwrap();
        assert_eq!(event_of(&mut driver, receiving).result(), 4);
        driver.unwatch(watch);
        let receiving = driver.submit(read(raw(&here), 8)).unwrap();
        assert_eq!(all_events(&mut driver), []);
        there.write_all(b"pong").unwrap();
        assert_eq!(event_of(&mut driver, receiving).result(), 4);
    }
}

fn a_dropped_driver_lets_go_of_everything(mut driver: Driver) {
    let (listener, address) = listener();
    let mut client = TcpStream::connect(address).unwrap();
    let (server, _) = listener.accept().unwrap();
    driver.submit(read(raw(&server), 1 << 16)).unwrap();
    driver
        .watch(raw(&server), Interest::READ, Mode::Edge)
        .unwrap();
    poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
    driver.submit(read(raw(&server), 1 << 16)).unwrap();
    drop(driver);
    drop(server);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}
