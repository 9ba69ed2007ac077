//! The limits of an operation: it must not start after its cancel, hold a socket that was released, expose
//! uninitialised memory, or wait when it is told not to.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use ringloop_driver::{Buffer, Bytes, Driver, Op, SharedFd, Token};

use crate::support::{
    PATIENCE, all_events, errno, event_of, fill, finish, lend, on_both_backends, own, pair, pipe,
    raw, read, temporary_path,
};

on_both_backends!(
    what_is_cancelled_before_a_flush_never_begins,
    a_discarded_operation_lets_go_of_its_socket_with_the_next_flush,
    a_discarded_operation_that_was_not_flushed_lets_go_at_once,
    an_operation_holds_its_file_until_it_is_over,
    flags_that_reach_beyond_the_operation_are_refused,
    offsets_beyond_the_largest_are_mistakes,
    what_has_no_places_refuses_offsets,
    an_operation_that_must_not_wait_does_not,
);

fn what_is_cancelled_before_a_flush_never_begins(mut driver: Driver) {
    let path = temporary_path(&driver, "unbegun");
    std::fs::write(&path, "old").unwrap();
    for by_discard in [false, true] {
        let (near, mut far) = pair();
        (&near).write_all(b"kept").unwrap();
        let ops = [
            Op::Write {
                fd: SharedFd::new(File::options().write(true).open(&path).unwrap()),
                bytes: Bytes::new("new"),
                start: 0,
                offset: Some(0),
            },
            read(raw(&far), 8),
        ];
        for op in ops {
            let token = driver.submit(op).unwrap();
            if by_discard {
                driver.discard(token);
                assert_eq!(driver.counters().operations, 0);
            } else {
                driver.cancel(token);
                assert_eq!(event_of(&mut driver, token).result(), -libc::ECANCELED);
                assert!(driver.take(token).is_some());
            }
        }
        assert_eq!(all_events(&mut driver), []);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let mut kept = [0; 8];
        assert_eq!(far.read(&mut kept).unwrap(), 4);
    }
    std::fs::remove_file(path).unwrap();
}

/// The other end sees the end without another call to the driver, behind what was sent before.
fn is_closed(mut far: UnixStream) {
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut received = Vec::new();
    far.read_to_end(&mut received).unwrap();
    assert!(!received.contains(&b'x'));
}

/// A send that waits for room.
fn send(fd: SharedFd, flags: i32) -> Op {
    Op::SendZeroCopy {
        fd,
        bytes: Bytes::new("x"),
        flags,
    }
}

/// A socket with a waiting send, and its peer.
fn waiting(driver: &mut Driver) -> (Token, UnixStream) {
    let (near, far) = pair();
    fill(raw(&near));
    let token = driver.submit(send(SharedFd::new(near), 0)).unwrap();
    (token, far)
}

fn a_discarded_operation_lets_go_of_its_socket_with_the_next_flush(mut driver: Driver) {
    for polled in [false, true] {
        let (token, far) = waiting(&mut driver);
        if polled {
            assert_eq!(all_events(&mut driver), []);
        } else {
            driver.flush().unwrap();
        }
        driver.discard(token);
        driver.flush().unwrap();
        is_closed(far);
        assert_eq!(all_events(&mut driver), []);
        assert_eq!(driver.counters().operations, 0);
    }
}

fn a_discarded_operation_that_was_not_flushed_lets_go_at_once(mut driver: Driver) {
    let (token, far) = waiting(&mut driver);
    driver.discard(token);
    is_closed(far);
    assert_eq!(driver.counters().operations, 0);
}

fn an_operation_holds_its_file_until_it_is_over(mut driver: Driver) {
    let (reader, mut writer) = pipe();
    let token = driver.submit(Op::Read {
        fd: SharedFd::new(reader),
        buffer: Buffer::new(Vec::with_capacity(8)),
        offset: None,
    });
    let token = token.unwrap();
    assert_eq!(all_events(&mut driver), []);
    writer.write_all(b"held").unwrap();
    assert_eq!(event_of(&mut driver, token).result(), 4);
    let Some(Op::Read { fd, buffer, .. }) = driver.take(token) else {
        panic!("nothing came back")
    };
    assert_eq!(buffer.filled(), b"held");
    // The reference to the file comes back with the buffer.
    writer.write_all(b"still").unwrap();
    drop(fd.try_unwrap().unwrap());
    assert_eq!(errno(writer.write_all(b"gone")), libc::EPIPE);
}

fn flags_that_reach_beyond_the_operation_are_refused(mut driver: Driver) {
    const MSG_CMSG_COMPAT: i32 = i32::MIN;
    let (here, _there) = pair();
    for flags in [libc::MSG_ZEROCOPY, MSG_CMSG_COMPAT] {
        let error = driver.submit(send(lend(raw(&here)), flags)).unwrap_err();
        assert_eq!(error.error().kind(), std::io::ErrorKind::InvalidInput);
    }
    let nothing = driver.submit(Op::Close { fd: None }).unwrap_err();
    assert_eq!(nothing.error().kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(driver.counters().operations, 0);
}

fn read_at(fd: &SharedFd, offset: u64) -> Op {
    Op::Read {
        fd: fd.clone(),
        buffer: Buffer::new(Vec::with_capacity(8)),
        offset: Some(offset),
    }
}

fn write_at(fd: &SharedFd, offset: u64) -> Op {
    Op::Write {
        fd: fd.clone(),
        bytes: Bytes::new("x"),
        start: 0,
        offset: Some(offset),
    }
}

fn offsets_beyond_the_largest_are_mistakes(mut driver: Driver) {
    let path = temporary_path(&driver, "offsets");
    std::fs::write(&path, "old").unwrap();
    let file = SharedFd::new(File::options().read(true).write(true).open(&path).unwrap());
    for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64 + 1] {
        for op in [read_at(&file, offset), write_at(&file, offset)] {
            let error = driver.submit(op).unwrap_err();
            assert_eq!(error.error().kind(), std::io::ErrorKind::InvalidInput);
        }
    }
    // Offsets that fit are checked by the kernel.
    assert_eq!(finish(&mut driver, read_at(&file, 1 << 40)).0, 0);
    let refused = finish(&mut driver, write_at(&file, i64::MAX as u64)).0;
    assert!(
        [-libc::EFBIG, -libc::EINVAL].contains(&refused),
        "{refused}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    std::fs::remove_file(path).unwrap();
}

fn what_has_no_places_refuses_offsets(mut driver: Driver) {
    let (reader, mut writer) = pipe();
    writer.write_all(b"kept").unwrap();
    let (near, far) = pair();
    (&far).write_all(b"kept").unwrap();
    // SAFETY: no pointers are involved.
    let counter = own(unsafe { libc::eventfd(5, 0) });
    // SAFETY: no pointers are involved.
    let terminal = own(unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) });
    let writer = SharedFd::new(writer);
    let without: Vec<SharedFd> = [reader.into(), near.into(), counter, terminal]
        .map(|fd: OwnedFd| SharedFd::new(fd))
        .into();
    for fd in &without {
        assert!(!fd.has_position());
        for offset in [0, 5] {
            assert_eq!(finish(&mut driver, read_at(fd, offset)).0, -libc::ESPIPE);
        }
    }
    assert_eq!(finish(&mut driver, write_at(&writer, 0)).0, -libc::ESPIPE);
    // Nothing was consumed, and reads without an offset still work.
    for (fd, count) in without.iter().zip([4, 4, 8]) {
        let op = Op::Read {
            fd: fd.clone(),
            buffer: Buffer::new(Vec::with_capacity(16)),
            offset: None,
        };
        assert_eq!(finish(&mut driver, op).0, count);
    }
    // A device may have offsets but no position.
    let zeroes = SharedFd::new(File::open("/dev/zero").unwrap());
    assert!(!zeroes.has_position());
    assert_eq!(finish(&mut driver, read_at(&zeroes, 5)).0, 8);
}

fn an_operation_that_must_not_wait_does_not(mut driver: Driver) {
    let (full, mut reader) = pair();
    fill(raw(&full));
    let try_to_send = || send(lend(raw(&full)), libc::MSG_DONTWAIT);
    assert_eq!(finish(&mut driver, try_to_send()).0, -libc::EAGAIN);
    // It does not wait for one that does, either.
    let waiting = driver.submit(send(lend(raw(&full)), 0)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    assert_eq!(finish(&mut driver, try_to_send()).0, -libc::EAGAIN);
    let end = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(event_of(&mut driver, waiting).result(), 1);
}
