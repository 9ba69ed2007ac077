//! Sending without a copy.

use std::io::{Read, Write};
use std::net::{Shutdown, UdpSocket};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringloop_driver::{BackendKind, Bytes, Driver, Op, SENT_BY_COPY, SENT_WITHOUT_COPY};

use crate::support::{
    PATIENCE, QUIET, all_events, event_of, fill, lend, on_both_backends, pair, pattern, pipe, poll,
    raw, read, rest_of, tcp_pair,
};

on_both_backends!(
    bytes_are_sent_from_where_they_lie,
    a_zero_copy_send_of_much_arrives_whole,
    a_zero_copy_send_that_fails_says_so_once,
    a_zero_copy_send_is_cancelled_or_discarded,
    a_zero_copy_send_that_would_copy_does_not_after_its_cancel,
    a_zero_copy_send_that_is_answered_outlives_its_socket,
    a_driver_dropped_under_zero_copy_sends_frees_nothing_too_early,
    an_owner_that_panics_disturbs_neither_the_driver_nor_other_operations,
);

/// Bytes that note when they are freed, and are overwritten then.
struct Guarded {
    bytes: Vec<u8>,
    freed: Arc<AtomicBool>,
}

impl Guarded {
    fn new(bytes: Vec<u8>) -> (Guarded, Arc<AtomicBool>) {
        let freed = Arc::new(AtomicBool::new(false));
        let guarded = Guarded {
            bytes,
            freed: Arc::clone(&freed),
        };
        (guarded, freed)
    }
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.bytes.fill(0xff);
        self.freed.store(true, Ordering::Relaxed);
    }
}

fn send_zero_copy(fd: RawFd, bytes: impl AsRef<[u8]> + Send + 'static) -> Op {
    Op::SendZeroCopy {
        fd: lend(fd),
        bytes: Bytes::new(bytes),
        flags: libc::MSG_WAITALL,
    }
}

fn bytes_are_sent_from_where_they_lie(mut driver: Driver) {
    let (near, mut far) = tcp_pair();
    let (unix_near, mut unix_far) = pair();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(udp.local_addr().unwrap()).unwrap();
    type Receive<'a> = &'a mut dyn FnMut(&mut [u8]) -> usize;
    let peers: [(RawFd, Receive<'_>); 3] = [
        (raw(&near), &mut |buffer| far.read(buffer).unwrap()),
        (raw(&unix_near), &mut |buffer| {
            unix_far.read(buffer).unwrap()
        }),
        (raw(&udp), &mut |buffer| udp.recv(buffer).unwrap()),
    ];
    for (index, (fd, receive)) in peers.into_iter().enumerate() {
        let bytes = pattern(5000);
        let (guarded, freed) = Guarded::new(bytes.clone());
        let token = driver.submit(send_zero_copy(fd, guarded)).unwrap();
        let first = event_of(&mut driver, token);
        assert!(first.is_more(), "the memory comes back later");
        assert_eq!(first.result(), 5000);
        let mut buffer = [0; 8192];
        assert_eq!(receive(&mut buffer), 5000);
        assert_eq!(buffer[..5000], bytes);
        // The last event may have come with the first.
        if driver.counters().operations > 0 {
            assert!(driver.take(token).is_none());
            let last = event_of(&mut driver, token);
            assert!(!last.is_more());
            assert!([SENT_WITHOUT_COPY, SENT_BY_COPY].contains(&last.result()));
        }
        assert!(!freed.load(Ordering::Relaxed));
        assert!(driver.take(token).is_some());
        assert!(freed.load(Ordering::Relaxed));
        let counters = driver.counters();
        assert_eq!(counters.operations, 0);
        assert_eq!(counters.zero_copy_sends, index as u64 + 1);
        assert!(counters.zero_copy_copies <= counters.zero_copy_sends);
        if driver.backend() == BackendKind::Epoll {
            assert_eq!(counters.zero_copy_copies, counters.zero_copy_sends);
        }
    }
}

fn a_zero_copy_send_of_much_arrives_whole(mut driver: Driver) {
    for unix in [false, true] {
        let (tcp, unix_pair) = (tcp_pair(), pair());
        let (fd, mut far): (RawFd, Box<dyn Read>) = if unix {
            (raw(&unix_pair.0), Box::new(&unix_pair.1))
        } else {
            (raw(&tcp.0), Box::new(&tcp.1))
        };
        let whole: Arc<[u8]> = pattern(3_000_000).into();
        let (mut sent, mut received) = (0, Vec::new());
        while sent < whole.len() {
            let rest = whole[sent..].to_vec();
            let token = driver.submit(send_zero_copy(fd, rest)).unwrap();
            let mut events = Vec::new();
            while !events
                .iter()
                .any(|event: &ringloop_driver::Event| !event.is_more())
            {
                poll(&mut driver, Some(QUIET), &mut events);
                let _ = far.read_to_end(&mut received);
            }
            assert!(events.iter().all(|event| event.token() == token));
            assert_eq!(events.len(), 2, "a count and the memory: {events:?}");
            sent += events[0].io_result().unwrap() as usize;
        }
        while received.len() < whole.len() {
            let _ = far.read_to_end(&mut received);
        }
        assert!(received == whole[..], "the bytes differ");
    }
}

fn a_zero_copy_send_that_fails_says_so_once(mut driver: Driver) {
    let (here, there) = pair();
    drop(there);
    let (near, far) = tcp_pair();
    near.shutdown(Shutdown::Write).unwrap();
    let (pipe, _writer) = pipe();
    let failures = [
        (raw(&here), libc::EPIPE),
        (raw(&near), libc::EPIPE),
        (raw(&pipe), libc::ENOTSOCK),
        (-1, libc::EBADF),
    ];
    for (fd, errno) in failures {
        let (guarded, freed) = Guarded::new(pattern(100));
        let token = driver.submit(send_zero_copy(fd, guarded)).unwrap();
        let event = event_of(&mut driver, token);
        assert_eq!(event.result(), -errno);
        assert!(!event.is_more());
        assert!(!freed.load(Ordering::Relaxed));
        let Some(Op::SendZeroCopy { bytes, .. }) = driver.take(token) else {
            panic!("nothing came back")
        };
        assert_eq!(bytes.as_slice(), pattern(100));
        assert_eq!(all_events(&mut driver), []);
    }
    drop(far);
    assert_eq!(driver.counters().zero_copy_sends, 0);
    assert_eq!(driver.counters().operations, 0);
}

fn a_zero_copy_send_is_cancelled_or_discarded(mut driver: Driver) {
    for flushed in [false, true] {
        for by in ["token", "descriptor", "discard"] {
            let (near, mut far) = tcp_pair();
            let filled = fill(raw(&near));
            let mut sent = 0;
            let (guarded, freed) = Guarded::new(pattern(50_000));
            let token = driver.submit(send_zero_copy(raw(&near), guarded)).unwrap();
            if flushed {
                driver.flush().unwrap();
            }
            match by {
                "token" => driver.cancel(token),
                "descriptor" => driver.cancel_fd(raw(&near)),
                _ => driver.discard(token),
            }
            driver.flush().unwrap();
            // The peer sees the end as soon as the socket is closed. Nothing may be sent after that.
            drop(near);
            if by == "discard" {
                assert_eq!(all_events(&mut driver), []);
            } else {
                let event = event_of(&mut driver, token);
                if event.is_more() {
                    // The peer's kernel has made room, and the bytes were sent before the cancel.
                    sent = event.result() as usize;
                } else {
                    assert_eq!(event.result(), -libc::ECANCELED);
                    assert!(!freed.load(Ordering::Relaxed));
                    assert!(driver.take(token).is_some());
                }
            }
            let received = rest_of(&mut far);
            // The kernel uses sent bytes until the peer has received them.
            while driver.counters().operations > 0 {
                poll(&mut driver, Some(QUIET), &mut Vec::new());
            }
            poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
            assert!(freed.load(Ordering::Relaxed));
            let range = if by == "discard" {
                filled..=filled + 50_000
            } else {
                filled + sent..=filled + sent
            };
            assert!(
                range.contains(&received.len()),
                "{} bytes came, not {range:?}",
                received.len()
            );
        }
    }
}

/// A socket that does not support it refuses at once, and the driver uses an ordinary send instead. But not after a
/// cancel: it would come behind later writes, or reach another file with the descriptor's number.
fn a_zero_copy_send_that_would_copy_does_not_after_its_cancel(mut driver: Driver) {
    for by in ["token", "descriptor", "discard"] {
        let (mut near, mut far) = pair();
        let (guarded, freed) = Guarded::new(pattern(100));
        let token = driver.submit(send_zero_copy(raw(&near), guarded)).unwrap();
        match by {
            "token" => driver.cancel(token),
            "descriptor" => driver.cancel_fd(raw(&near)),
            _ => driver.discard(token),
        }
        driver.flush().unwrap();
        near.write_all(b"later").unwrap();
        if by == "discard" {
            assert_eq!(all_events(&mut driver), []);
        } else {
            let event = event_of(&mut driver, token);
            assert_eq!((event.result(), event.is_more()), (-libc::ECANCELED, false));
            assert!(driver.take(token).is_some());
            assert_eq!(all_events(&mut driver), []);
        }
        assert!(freed.load(Ordering::Relaxed));
        assert_eq!(driver.counters().operations, 0);
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"later", "{by}");
    }
}

fn a_zero_copy_send_that_is_answered_outlives_its_socket(mut driver: Driver) {
    let (near, mut far) = tcp_pair();
    let (guarded, freed) = Guarded::new(pattern(30_000));
    let token = driver.submit(send_zero_copy(raw(&near), guarded)).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        poll(&mut driver, Some(PATIENCE), &mut events);
    }
    assert_eq!((events[0].token(), events[0].result()), (token, 30_000));
    let fd = raw(&near);
    drop(near);
    // It is too late, and the number may belong to another file by now.
    driver.cancel_fd(fd);
    driver.discard(token);
    let received = rest_of(&mut far);
    assert!(received == pattern(30_000));
    while driver.counters().operations > 0 {
        poll(&mut driver, Some(QUIET), &mut Vec::new());
    }
    poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
    assert!(freed.load(Ordering::Relaxed));
}

fn a_driver_dropped_under_zero_copy_sends_frees_nothing_too_early(mut driver: Driver) {
    let (near, mut far) = tcp_pair();
    for _ in 0..20 {
        let (guarded, _) = Guarded::new(pattern(251 * 1000));
        driver.submit(send_zero_copy(raw(&near), guarded)).unwrap();
    }
    poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
    drop(driver);
    drop(near);
    let received = rest_of(&mut far);
    assert!(!received.is_empty());
    assert!(
        !received.contains(&0xff),
        "memory was freed before it was sent"
    );
}

/// A panic that left a driver in the middle of its drop would free memory that the kernel still writes to.
fn an_owner_that_panics_disturbs_neither_the_driver_nor_other_operations(mut driver: Driver) {
    struct Panicking;
    impl AsRef<[u8]> for Panicking {
        fn as_ref(&self) -> &[u8] {
            b"hello"
        }
    }
    impl Drop for Panicking {
        fn drop(&mut self) {
            panic!("a destructor that panics, on purpose");
        }
    }
    let (near, mut far) = tcp_pair();
    let (receiving, mut sending) = pair();
    let received = driver.submit(read(raw(&receiving), 8)).unwrap();
    // One is discarded before it starts, one when it has, and one is finished and not taken.
    let unstarted = driver
        .submit(send_zero_copy(raw(&near), Panicking))
        .unwrap();
    driver.discard(unstarted);
    let started = driver
        .submit(send_zero_copy(raw(&near), Panicking))
        .unwrap();
    driver.flush().unwrap();
    driver.discard(started);
    driver
        .submit(send_zero_copy(raw(&near), Panicking))
        .unwrap();
    driver.flush().unwrap();
    far.set_nonblocking(false).unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
    sending.write_all(b"x").unwrap();
    assert_eq!(event_of(&mut driver, received).result(), 1);
    assert!(driver.take(received).is_some());
    all_events(&mut driver);
    driver.submit(read(raw(&receiving), 8)).unwrap();
    driver
        .submit(send_zero_copy(raw(&near), Panicking))
        .unwrap();
    driver.flush().unwrap();
    drop(driver);
}
