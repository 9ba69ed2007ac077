//! Streams of bytes: reading and writing sockets.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use ringloop_driver::{Buffer, Bytes, Driver, Op};

use crate::support::{
    QUIET, all_events, bytes_of, event_of, finish, lend, on_both_backends, pair, pattern, poll,
    raw, read, status_flags, write,
};

on_both_backends!(
    bytes_are_received_and_sent,
    a_send_that_is_cut_short_says_so,
    sends_in_one_direction_keep_their_order,
    the_end_of_a_stream_is_zero,
    a_peer_that_is_gone_is_a_broken_pipe,
    a_blocking_socket_does_not_block_the_loop,
);

fn bytes_are_received_and_sent(mut driver: Driver) {
    let (here, mut there) = pair();
    let token = driver.submit(read(raw(&here), 64)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.write_all(b"hello").unwrap();
    let event = event_of(&mut driver, token);
    assert_eq!(event.io_result().unwrap(), 5);
    let mut text = bytes_of(driver.take(token).unwrap());
    assert_eq!(text, b"hello");
    // A buffer with contents is appended to.
    there.write_all(b", you").unwrap();
    text.reserve(32);
    let (result, op) = finish(
        &mut driver,
        Op::Read {
            fd: lend(raw(&here)),
            buffer: Buffer::new(text),
            offset: None,
        },
    );
    assert_eq!(result, 5);
    assert_eq!(bytes_of(op), b"hello, you");
    let (result, op) = finish(
        &mut driver,
        Op::Write {
            fd: lend(raw(&here)),
            bytes: Bytes::new("--echo"),
            start: 2,
            offset: None,
        },
    );
    assert_eq!(result, 4);
    assert!(matches!(op, Op::Write { bytes, .. } if bytes.as_slice() == b"--echo"));
    let mut answer = [0; 16];
    assert_eq!(there.read(&mut answer).unwrap(), 4);
    assert_eq!(&answer[..4], b"echo");
}

fn a_send_that_is_cut_short_says_so(mut driver: Driver) {
    let (here, mut there) = pair();
    let large = pattern(4_000_000);
    let mut bytes = Bytes::new(large.clone());
    let mut start = 0;
    let mut received = Vec::new();
    while start < large.len() {
        let token = driver
            .submit(Op::Write {
                fd: lend(raw(&here)),
                bytes,
                start,
                offset: None,
            })
            .unwrap();
        let mut events = Vec::new();
        while events.is_empty() {
            poll(&mut driver, Some(QUIET), &mut events);
            let _ = there.read_to_end(&mut received);
        }
        assert_eq!(events[0].token(), token);
        let sent = events[0].io_result().unwrap() as usize;
        assert!(sent > 0 && start + sent <= large.len());
        start += sent;
        let Some(Op::Write { bytes: same, .. }) = driver.take(token) else {
            panic!("no bytes")
        };
        bytes = same;
    }
    drop(here);
    let _ = there.read_to_end(&mut received);
    assert!(
        received == large,
        "{} of {} bytes, or wrong ones",
        received.len(),
        large.len()
    );
}

fn sends_in_one_direction_keep_their_order(mut driver: Driver) {
    let (here, mut there) = pair();
    // Each waits for the previous one: users keep one send in flight per socket.
    let mut expected = Vec::new();
    for number in 0..100_u8 {
        let chunk = vec![number; 100];
        let (result, _) = finish(&mut driver, write(raw(&here), &chunk));
        assert_eq!(result, 100);
        expected.extend(chunk);
    }
    let mut received = vec![0; expected.len()];
    there.read_exact(&mut received).unwrap();
    assert_eq!(received, expected);
}

fn the_end_of_a_stream_is_zero(mut driver: Driver) {
    let (here, there) = pair();
    let token = driver.submit(read(raw(&here), 8)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.shutdown(Shutdown::Write).unwrap();
    assert_eq!(event_of(&mut driver, token).result(), 0);
    // The other direction is open.
    assert_eq!(finish(&mut driver, write(raw(&here), b"x")).0, 1);
}

fn a_peer_that_is_gone_is_a_broken_pipe(mut driver: Driver) {
    let (here, there) = pair();
    drop(there);
    assert_eq!(finish(&mut driver, write(raw(&here), b"x")).0, -libc::EPIPE);
    assert_eq!(finish(&mut driver, read(raw(&here), 8)).0, 0);
}

fn a_blocking_socket_does_not_block_the_loop(mut driver: Driver) {
    let (here, mut there) = UnixStream::pair().unwrap();
    let expected = [8, 8].map(|room| driver.submit(read(raw(&here), room)).unwrap());
    assert_eq!(all_events(&mut driver), []);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        there.write_all(b"x").unwrap();
        let events = all_events(&mut driver);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].result(), 1);
        tokens.push(events[0].token());
    }
    tokens.sort_by_key(|token| token.index());
    assert_eq!(tokens, expected);
    assert_eq!(
        status_flags(raw(&here)) & libc::O_NONBLOCK,
        0,
        "the socket's mode is the user's"
    );
}
