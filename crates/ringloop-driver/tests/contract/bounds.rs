//! The limits of an operation: it must not start after its cancel, hold a socket that was released, expose
//! uninitialised memory, or wait when it is told not to.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{OwnedFd, RawFd};

use ringloop_driver::{Bytes, Driver, Message, Op, SharedFd};

use crate::support::{
    PATIENCE, all_events, errno, event_of, fill, finish, lend, listener, on_both_backends, own,
    pair, pipe, raw, receive, temporary_path,
};

on_both_backends!(
    what_is_cancelled_before_a_flush_never_begins,
    a_discarded_operation_lets_go_of_its_socket_with_the_next_flush,
    a_discarded_operation_that_was_not_flushed_lets_go_at_once,
    an_operation_holds_its_file_until_it_is_over,
    a_truncating_receive_gives_out_no_memory_that_nobody_has_written,
    flags_that_reach_beyond_the_operation_are_refused,
    offsets_beyond_the_largest_are_mistakes,
    what_has_no_places_refuses_offsets,
    an_operation_that_must_not_wait_does_not,
);

fn what_is_cancelled_before_a_flush_never_begins(mut driver: Driver) {
    let path = temporary_path(&driver, "unbegun");
    std::fs::write(&path, "old").unwrap();
    for by_discard in [false, true] {
        let (listener, address) = listener();
        let client = TcpStream::connect(address).unwrap();
        let (near, mut far) = pair();
        (&near).write_all(b"kept").unwrap();
        let ops = [
            Op::Write {
                fd: SharedFd::new(File::options().write(true).open(&path).unwrap()),
                buffer: b"new".to_vec(),
                start: 0,
                offset: Some(0),
            },
            Op::Accept {
                fd: lend(raw(&listener)),
                multishot: true,
            },
            receive(raw(&far), 8),
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
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        let mut kept = [0; 8];
        assert_eq!(far.read(&mut kept).unwrap(), 4);
    }
    std::fs::remove_file(path).unwrap();
}

/// The other end sees the end, or can no longer connect, without another call to the driver.
fn is_closed(mut far: TcpStream, listener: std::net::SocketAddr) {
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
    assert_eq!(errno(TcpStream::connect(listener)), libc::ECONNREFUSED);
}

/// A socket with a waiting receive, and a listener with a waiting accept.
fn waiting(driver: &mut Driver) -> ([ringloop_driver::Token; 2], TcpStream, std::net::SocketAddr) {
    let (plain, address) = listener();
    let far = TcpStream::connect(address).unwrap();
    let (near, _) = plain.accept().unwrap();
    let (listening, address) = listener();
    let receiving = driver.submit(Op::Recv {
        fd: SharedFd::new(near),
        buffer: Vec::with_capacity(8),
        flags: 0,
    });
    let accepting = driver.submit(Op::Accept {
        fd: SharedFd::new(listening),
        multishot: true,
    });
    ([receiving.unwrap(), accepting.unwrap()], far, address)
}

fn a_discarded_operation_lets_go_of_its_socket_with_the_next_flush(mut driver: Driver) {
    for polled in [false, true] {
        let (tokens, far, address) = waiting(&mut driver);
        if polled {
            assert_eq!(all_events(&mut driver), []);
        } else {
            driver.flush().unwrap();
        }
        for token in tokens {
            driver.discard(token);
        }
        driver.flush().unwrap();
        is_closed(far, address);
        assert_eq!(all_events(&mut driver), []);
        assert_eq!(driver.counters().operations, 0);
    }
}

fn a_discarded_operation_that_was_not_flushed_lets_go_at_once(mut driver: Driver) {
    let (tokens, far, address) = waiting(&mut driver);
    for token in tokens {
        driver.discard(token);
    }
    is_closed(far, address);
    assert_eq!(driver.counters().operations, 0);
}

fn an_operation_holds_its_file_until_it_is_over(mut driver: Driver) {
    let (reader, mut writer) = pipe();
    let token = driver.submit(Op::Read {
        fd: SharedFd::new(reader),
        buffer: Vec::with_capacity(8),
        offset: None,
    });
    let token = token.unwrap();
    assert_eq!(all_events(&mut driver), []);
    writer.write_all(b"held").unwrap();
    assert_eq!(event_of(&mut driver, token).result(), 4);
    let Some(Op::Read { fd, buffer, .. }) = driver.take(token) else {
        panic!("nothing came back")
    };
    assert_eq!(buffer, b"held");
    // The reference to the file comes back with the buffer.
    writer.write_all(b"still").unwrap();
    drop(fd.try_unwrap().unwrap());
    assert_eq!(errno(writer.write_all(b"gone")), libc::EPIPE);
}

/// A buffer whose spare capacity contains secret bytes.
fn secret(room: usize) -> Vec<u8> {
    let mut buffer = vec![0xaa; room];
    buffer.clear();
    buffer
}

fn a_truncating_receive_gives_out_no_memory_that_nobody_has_written(mut driver: Driver) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = datagrams.local_addr().unwrap();
    for by_message in [false, true] {
        let truncate = |fd: RawFd, room| {
            let (fd, flags) = (lend(fd), libc::MSG_TRUNC);
            if by_message {
                let message = Message::from(secret(room));
                Op::RecvMsg { fd, message, flags }
            } else {
                let buffer = secret(room);
                Op::Recv { fd, buffer, flags }
            }
        };
        let bytes_of = |op| match op {
            Op::Recv { buffer, .. } => buffer,
            Op::RecvMsg { message, .. } => message.buffer,
            other => panic!("{other:?}"),
        };
        // TCP discards the bytes.
        near.write_all(&[7; 10]).unwrap();
        let (result, op) = finish(&mut driver, truncate(raw(&far), 64));
        assert_eq!((result, &bytes_of(op)[..]), (10, &[0; 10][..]));
        // Datagrams are counted in full.
        datagrams.send_to(&[7; 1000], to).unwrap();
        let (result, op) = finish(&mut driver, truncate(raw(&datagrams), 16));
        assert_eq!((result, &bytes_of(op)[..]), (1000, &[7; 16][..]));
        datagrams.send_to(&[7; 5], to).unwrap();
        let (result, op) = finish(&mut driver, truncate(raw(&datagrams), 16));
        assert_eq!((result, &bytes_of(op)[..]), (5, &[7; 5][..]));
    }
    assert_eq!(driver.counters().operations, 0);
}

fn flags_that_reach_beyond_the_operation_are_refused(mut driver: Driver) {
    const MSG_CMSG_COMPAT: i32 = i32::MIN;
    let (here, _there) = pair();
    let fd = || lend(raw(&here));
    for flags in [libc::MSG_ZEROCOPY, MSG_CMSG_COMPAT] {
        let (buffer, message) = (|| vec![1], || Message::from(vec![1]));
        let ops = [
            Op::Send {
                fd: fd(),
                buffer: buffer(),
                start: 0,
                flags,
            },
            Op::SendZeroCopy {
                fd: fd(),
                bytes: Bytes::new("x"),
                flags,
            },
            Op::SendMsg {
                fd: fd(),
                message: message(),
                flags,
            },
            Op::Recv {
                fd: fd(),
                buffer: Vec::with_capacity(1),
                flags,
            },
            Op::RecvMsg {
                fd: fd(),
                message: message(),
                flags,
            },
        ];
        for op in ops {
            let error = driver.submit(op).unwrap_err();
            assert_eq!(error.error().kind(), std::io::ErrorKind::InvalidInput);
        }
    }
    let nothing = driver.submit(Op::Close { fd: None }).unwrap_err();
    assert_eq!(nothing.error().kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(driver.counters().operations, 0);
}

fn read_at(fd: &SharedFd, offset: u64) -> Op {
    Op::Read {
        fd: fd.clone(),
        buffer: Vec::with_capacity(8),
        offset: Some(offset),
    }
}

fn write_at(fd: &SharedFd, offset: u64) -> Op {
    Op::Write {
        fd: fd.clone(),
        buffer: b"x".to_vec(),
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
            buffer: Vec::with_capacity(16),
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
    let (empty, mut there) = pair();
    let (full, _reader) = pair();
    fill(raw(&full));
    let flags = libc::MSG_DONTWAIT;
    let ops = || {
        [
            Op::Recv {
                fd: lend(raw(&empty)),
                buffer: Vec::with_capacity(8),
                flags,
            },
            Op::RecvMsg {
                fd: lend(raw(&empty)),
                message: Message::from(Vec::with_capacity(8)),
                flags,
            },
            Op::Send {
                fd: lend(raw(&full)),
                buffer: vec![1],
                start: 0,
                flags,
            },
            Op::SendMsg {
                fd: lend(raw(&full)),
                message: Message::from(vec![1]),
                flags,
            },
            Op::SendZeroCopy {
                fd: lend(raw(&full)),
                bytes: Bytes::new("x"),
                flags,
            },
        ]
    };
    for op in ops() {
        assert_eq!(finish(&mut driver, op).0, -libc::EAGAIN);
    }
    // It does not wait for the operations that do, either.
    let waiting = driver.submit(receive(raw(&empty), 8)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    for op in ops() {
        assert_eq!(finish(&mut driver, op).0, -libc::EAGAIN);
    }
    there.write_all(b"for the one").unwrap();
    assert_eq!(event_of(&mut driver, waiting).result(), 8);
    let [op, ..] = ops();
    assert_eq!(finish(&mut driver, op).0, 3);
}
