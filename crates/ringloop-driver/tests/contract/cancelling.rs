//! Cancelling and discarding operations.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use ringloop_driver::{Bytes, Driver, Event, Interest, Mode, Op};

use crate::support::{
    PATIENCE, all_events, event_of, fill, finish, lend, listener, on_both_backends, pair, poll,
    raw, read, write,
};

on_both_backends!(
    cancelling_ends_an_operation,
    cancelling_loses_to_what_has_happened,
    cancelling_ends_a_send_that_was_woken_for_nothing,
    cancelling_by_descriptor_leaves_the_watch,
    a_discarded_operation_is_never_heard_of_again,
    closing_under_an_operation_reaches_the_peer,
);

fn cancelling_ends_an_operation(mut driver: Driver) {
    let (here, mut there) = pair();
    // Before the kernel has it, and after.
    for flushed in [false, true] {
        let token = driver.submit(read(raw(&here), 8)).unwrap();
        if flushed {
            driver.flush().unwrap();
        }
        driver.cancel(token);
        driver.cancel(token);
        let event = event_of(&mut driver, token);
        assert_eq!(event.result(), -libc::ECANCELED);
        assert_eq!(
            event.io_result().unwrap_err().raw_os_error(),
            Some(libc::ECANCELED)
        );
        assert!(matches!(driver.take(token), Some(Op::Read { buffer, .. }) if buffer.room() == 8));
        driver.cancel(token);
        assert_eq!(all_events(&mut driver), []);
    }
    there.write_all(b"kept").unwrap();
    assert_eq!(finish(&mut driver, read(raw(&here), 8)).0, 4);
}

fn cancelling_loses_to_what_has_happened(mut driver: Driver) {
    // Whichever wins, there is one last event, and no byte is lost.
    for round in 0..200_u8 {
        let (mut here, mut there) = pair();
        let token = driver.submit(read(raw(&here), 8)).unwrap();
        driver.flush().unwrap();
        there.write_all(&[round]).unwrap();
        if round % 2 == 0 {
            driver.flush().unwrap();
        }
        driver.cancel(token);
        let event = event_of(&mut driver, token);
        let mut byte = [0];
        match driver.take(token) {
            Some(Op::Read { buffer, .. }) if event.result() == 1 => {
                assert_eq!(buffer.filled(), [round]);
            }
            Some(Op::Read { .. }) => {
                assert_eq!(event.result(), -libc::ECANCELED);
                here.read_exact(&mut byte).unwrap();
                assert_eq!(byte, [round]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(driver.counters().operations, 0);
    }
}

/// The end of the peer's data wakes a sender that waits for room. The kernel tries it again, finds no room, and for a moment
/// no cancel finds it.
fn cancelling_ends_a_send_that_was_woken_for_nothing(mut driver: Driver) {
    for is_discarded in [false, true] {
        let (here, there) = pair();
        fill(raw(&here));
        let token = driver.submit(Op::SendZeroCopy {
            fd: lend(raw(&here)),
            bytes: Bytes::new("x"),
            flags: 0,
        });
        let token = token.unwrap();
        assert_eq!(all_events(&mut driver), []);
        there.shutdown(Shutdown::Write).unwrap();
        poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
        if is_discarded {
            driver.discard(token);
            assert_eq!(all_events(&mut driver), []);
        } else {
            driver.cancel(token);
            assert_eq!(event_of(&mut driver, token).result(), -libc::ECANCELED);
        }
        assert_eq!(driver.counters().operations, 0);
    }
}

fn cancelling_by_descriptor_leaves_the_watch(mut driver: Driver) {
    let (here, mut there) = pair();
    let (elsewhere, _peer) = pair();
    let watch = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    fill(raw(&here));
    let tokens = [
        driver.submit(read(raw(&here), 8)).unwrap(),
        driver.submit(write(raw(&here), b"x")).unwrap(),
    ];
    let other = driver.submit(read(raw(&elsewhere), 8)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    driver.cancel_fd(raw(&here));
    let mut events = all_events(&mut driver);
    events.retain(|event| !event.is_watch());
    events.sort_by_key(|event| event.token().index());
    assert_eq!(events.iter().map(Event::token).collect::<Vec<_>>(), tokens);
    assert!(
        events
            .iter()
            .all(|event| event.result() == -libc::ECANCELED)
    );
    there.write_all(b"x").unwrap();
    assert!(event_of(&mut driver, watch).readiness().is_readable());
    driver.cancel(other);
    assert_eq!(event_of(&mut driver, other).result(), -libc::ECANCELED);
}

fn a_discarded_operation_is_never_heard_of_again(mut driver: Driver) {
    let (here, mut there) = pair();
    for flushed in [false, true] {
        let token = driver.submit(read(raw(&here), 8)).unwrap();
        if flushed {
            driver.flush().unwrap();
        }
        driver.discard(token);
        assert_eq!(all_events(&mut driver), []);
        assert!(driver.take(token).is_none());
        assert_eq!(driver.counters().operations, 0);
    }
    there.write_all(b"x").unwrap();
    // The same for one that has completed, but was not reported.
    let token = driver.submit(read(raw(&here), 8)).unwrap();
    driver.flush().unwrap();
    driver.discard(token);
    assert_eq!(all_events(&mut driver), []);
}

fn closing_under_an_operation_reaches_the_peer(mut driver: Driver) {
    for _ in 0..20 {
        let (listener, address) = listener();
        let mut client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let token = driver.submit(read(raw(&server), 8)).unwrap();
        assert_eq!(driver.peek(), ringloop_driver::Peek::Ready);
        poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
        driver.cancel_fd(raw(&server));
        driver.flush().unwrap();
        drop(server);
        // At once: without another call to the driver.
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(event_of(&mut driver, token).result(), -libc::ECANCELED);
    }
}
