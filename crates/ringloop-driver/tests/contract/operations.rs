//! Operations: results, errors, buffers, cancelling.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringloop_driver::{
    BackendKind, Bytes, Driver, FileStatus, Interest, Message, Mode, Op, SENT_BY_COPY,
    SENT_WITHOUT_COPY, SharedFd, SocketAddress,
};

use crate::support::{
    PATIENCE, QUIET, accept, accepted, all_events, descriptor_flags, errno, event_of, fill, finish,
    lend, listener, on_both_backends, own, pair, pipe, poll, raw, receive, status_flags,
};

on_both_backends!(
    one_connection_is_accepted,
    connections_are_accepted_until_cancelled,
    a_connection_is_made_or_refused,
    a_unix_socket_is_connected,
    a_blocking_socket_does_not_block_the_loop,
    bytes_are_received_and_sent,
    a_send_that_is_cut_short_says_so,
    sends_in_one_direction_keep_their_order,
    the_end_of_a_stream_is_zero,
    datagrams_carry_addresses,
    messages_carry_descriptors,
    a_truncated_datagram_says_so,
    a_peer_that_is_gone_is_a_broken_pipe,
    pipes_are_read_and_written,
    files_are_opened_written_read_and_described,
    bad_descriptors_are_results,
    mistakes_are_refused,
    cancelling_ends_an_operation,
    cancelling_loses_to_what_has_happened,
    cancelling_by_descriptor_leaves_the_watch,
    a_discarded_operation_is_never_heard_of_again,
    a_discarded_accept_closes_what_it_gets,
    resources_can_be_taken_once_and_until_the_next_poll,
    a_watch_and_operations_share_a_descriptor,
    closing_under_an_operation_reaches_the_peer,
    closing_under_a_watch_reaches_the_peer,
    a_direction_is_shut_down,
    a_dropped_driver_lets_go_of_everything,
    a_close_that_is_cancelled_closes_all_the_same,
    a_file_that_does_not_block_is_waited_for,
    bytes_are_sent_from_where_they_lie,
    a_zero_copy_send_of_much_arrives_whole,
    a_zero_copy_send_that_fails_says_so_once,
    a_zero_copy_send_is_cancelled_or_discarded,
    a_zero_copy_send_that_would_copy_does_not_after_its_cancel,
    a_zero_copy_send_that_is_answered_outlives_its_socket,
    a_driver_dropped_under_zero_copy_sends_frees_nothing_too_early,
);

fn is_nonblocking_and_cloexec(fd: RawFd) -> bool {
    status_flags(fd) & libc::O_NONBLOCK != 0 && descriptor_flags(fd) & libc::FD_CLOEXEC != 0
}

fn send(fd: RawFd, bytes: &[u8]) -> Op {
    Op::Send {
        fd: lend(fd),
        buffer: bytes.to_vec(),
        start: 0,
        flags: 0,
    }
}

/// What an operation that is over has received or read.
fn bytes_of(op: Op) -> Vec<u8> {
    match op {
        Op::Recv { buffer, .. } | Op::Read { buffer, .. } => buffer,
        Op::RecvMsg { message, .. } => message.buffer,
        other => panic!("{other:?} receives nothing"),
    }
}

fn one_connection_is_accepted(mut driver: Driver) {
    let (listener, address) = listener();
    let token = driver
        .submit(Op::Accept {
            fd: lend(raw(&listener)),
            multishot: false,
        })
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    let _client = TcpStream::connect(address).unwrap();
    let event = event_of(&mut driver, token);
    assert!(!event.is_more());
    let connection = own(event.result);
    assert!(is_nonblocking_and_cloexec(raw(&connection)));
    let _second = TcpStream::connect(address).unwrap();
    assert_eq!(all_events(&mut driver), []);
}

fn connections_are_accepted_until_cancelled(mut driver: Driver) {
    let (listener, address) = listener();
    let token = driver.submit(accept(raw(&listener))).unwrap();
    for _ in 0..3 {
        let clients: Vec<_> = (0..5)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        assert!(
            accepted(&mut driver, token, clients.len())
                .iter()
                .all(|connection| is_nonblocking_and_cloexec(raw(connection)))
        );
    }
    driver.cancel(token);
    let event = event_of(&mut driver, token);
    assert_eq!(event.result, -libc::ECANCELED);
    assert!(!event.is_more());
    assert_eq!(driver.counters().operations, 0);
}

fn stream_socket(family: i32, flags: i32) -> OwnedFd {
    // SAFETY: takes no memory of ours.
    own(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) })
}

fn a_connection_is_made_or_refused(mut driver: Driver) {
    let (listener, address) = listener();
    let socket = stream_socket(libc::AF_INET, libc::SOCK_NONBLOCK);
    let (result, op) = finish(
        &mut driver,
        Op::Connect {
            fd: lend(raw(&socket)),
            addr: address.into(),
        },
    );
    assert_eq!(result, 0);
    assert!(matches!(op, Op::Connect { addr, .. } if addr.to_ip() == Some(address)));
    let socket = TcpStream::from(socket);
    assert_eq!(socket.peer_addr().unwrap(), address);
    drop(listener);
    let socket = stream_socket(libc::AF_INET, libc::SOCK_NONBLOCK);
    let (result, _) = finish(
        &mut driver,
        Op::Connect {
            fd: lend(raw(&socket)),
            addr: address.into(),
        },
    );
    assert_eq!(result, -libc::ECONNREFUSED);
}

fn a_unix_socket_is_connected(mut driver: Driver) {
    let name = format!(
        "\0ringloop-driver-{}-{}",
        std::process::id(),
        driver.backend()
    );
    let address = SocketAddress::unix(name.as_bytes()).unwrap();
    let socket = || stream_socket(libc::AF_UNIX, libc::SOCK_NONBLOCK);
    let (result, _) = finish(
        &mut driver,
        Op::Connect {
            fd: lend(raw(&socket())),
            addr: address,
        },
    );
    assert_eq!(result, -libc::ECONNREFUSED);
    let bound =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            &name[1..],
        )
        .unwrap();
    let _listener = UnixListener::bind_addr(&bound).unwrap();
    let (result, _) = finish(
        &mut driver,
        Op::Connect {
            fd: lend(raw(&socket())),
            addr: address,
        },
    );
    assert_eq!(result, 0);
}

fn a_blocking_socket_does_not_block_the_loop(mut driver: Driver) {
    let (here, mut there) = UnixStream::pair().unwrap();
    let receiving = driver.submit(receive(raw(&here), 8)).unwrap();
    let reading = driver
        .submit(Op::Read {
            fd: lend(raw(&here)),
            buffer: Vec::with_capacity(8),
            offset: None,
        })
        .unwrap();
    let (listener, address) = listener();
    listener.set_nonblocking(false).unwrap();
    let accepting = driver.submit(accept(raw(&listener))).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.write_all(b"x").unwrap();
    let first = all_events(&mut driver);
    assert_eq!(first.len(), 1);
    there.write_all(b"y").unwrap();
    let second = all_events(&mut driver);
    assert_eq!(second.len(), 1);
    let mut tokens = [first[0].token, second[0].token];
    tokens.sort_by_key(|token| token.index());
    assert_eq!(tokens, [receiving, reading]);
    let socket = stream_socket(libc::AF_INET, 0);
    let connecting = driver
        .submit(Op::Connect {
            fd: lend(raw(&socket)),
            addr: address.into(),
        })
        .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        for event in all_events(&mut driver) {
            if event.token == accepting {
                drop(own(event.result));
            } else {
                assert_eq!((event.token, event.result), (connecting, 0));
            }
            seen.push(event.token);
        }
    }
    assert_eq!(
        status_flags(raw(&socket)) & libc::O_NONBLOCK,
        0,
        "the socket's mode is the user's"
    );
}

fn bytes_are_received_and_sent(mut driver: Driver) {
    let (here, mut there) = pair();
    let token = driver.submit(receive(raw(&here), 64)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.write_all(b"hello").unwrap();
    let event = event_of(&mut driver, token);
    assert_eq!(event.io_result().unwrap(), 5);
    let Some(Op::Recv { mut buffer, .. }) = driver.take(token) else {
        panic!("no buffer")
    };
    assert_eq!(buffer, b"hello");
    // A buffer that holds something is appended to.
    there.write_all(b", you").unwrap();
    buffer.reserve(32);
    let (result, op) = finish(
        &mut driver,
        Op::Recv {
            fd: lend(raw(&here)),
            buffer,
            flags: 0,
        },
    );
    assert_eq!(result, 5);
    assert!(matches!(op, Op::Recv { buffer, .. } if buffer == b"hello, you"));
    let (result, op) = finish(
        &mut driver,
        Op::Send {
            fd: lend(raw(&here)),
            buffer: b"--echo".to_vec(),
            start: 2,
            flags: 0,
        },
    );
    assert_eq!(result, 4);
    assert!(matches!(op, Op::Send { buffer, .. } if buffer == b"--echo"));
    let mut answer = [0; 16];
    assert_eq!(there.read(&mut answer).unwrap(), 4);
    assert_eq!(&answer[..4], b"echo");
}

fn a_send_that_is_cut_short_says_so(mut driver: Driver) {
    let (here, mut there) = pair();
    let large: Vec<u8> = (0..4_000_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let mut buffer = large.clone();
    let mut start = 0;
    let mut received = Vec::new();
    while start < large.len() {
        let token = driver
            .submit(Op::Send {
                fd: lend(raw(&here)),
                buffer,
                start,
                flags: 0,
            })
            .unwrap();
        let mut events = Vec::new();
        while events.is_empty() {
            poll(&mut driver, Some(QUIET), &mut events);
            let _ = there.read_to_end(&mut received);
        }
        assert_eq!(events[0].token, token);
        let sent = events[0].io_result().unwrap() as usize;
        assert!(sent > 0 && start + sent <= large.len());
        start += sent;
        let Some(Op::Send { buffer: same, .. }) = driver.take(token) else {
            panic!("no buffer")
        };
        buffer = same;
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
    // Each waits for the one before: upper layers keep one send in flight per socket (DESIGN.md section 8).
    let mut expected = Vec::new();
    for number in 0..100_u8 {
        let chunk = vec![number; 100];
        let (result, _) = finish(&mut driver, send(raw(&here), &chunk));
        assert_eq!(result, 100);
        expected.extend(chunk);
    }
    let mut received = vec![0; expected.len()];
    there.read_exact(&mut received).unwrap();
    assert_eq!(received, expected);
}

fn the_end_of_a_stream_is_zero(mut driver: Driver) {
    let (here, there) = pair();
    let token = driver.submit(receive(raw(&here), 8)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.shutdown(Shutdown::Write).unwrap();
    assert_eq!(event_of(&mut driver, token).result, 0);
    // The other direction is open.
    assert_eq!(finish(&mut driver, send(raw(&here), b"x")).0, 1);
}

fn datagrams_carry_addresses(mut driver: Driver) {
    let here = UdpSocket::bind("127.0.0.1:0").unwrap();
    let there = UdpSocket::bind("127.0.0.1:0").unwrap();
    here.set_nonblocking(true).unwrap();
    let message = Message::from(Vec::with_capacity(100));
    let token = driver
        .submit(Op::RecvMsg {
            fd: lend(raw(&here)),
            message,
            flags: 0,
        })
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    let mut message = Message::from(b"datagram".to_vec());
    message.addr = Some(here.local_addr().unwrap().into());
    let sending = driver
        .submit(Op::SendMsg {
            fd: lend(raw(&there)),
            message,
            flags: 0,
        })
        .unwrap();
    let mut results = Vec::new();
    let mut received = None;
    while results.len() < 2 {
        let mut events = Vec::new();
        poll(&mut driver, Some(PATIENCE), &mut events);
        for event in events {
            results.push((event.token, event.result));
            received = received.or_else(|| driver.take(token));
        }
    }
    assert!(
        results.contains(&(token, 8)) && results.contains(&(sending, 8)),
        "{results:?}"
    );
    let Some(Op::RecvMsg { message, .. }) = received else {
        panic!("no message")
    };
    assert_eq!(message.buffer, b"datagram");
    assert_eq!(
        message.addr.unwrap().to_ip(),
        Some(there.local_addr().unwrap())
    );
    assert_eq!(message.flags & libc::MSG_TRUNC, 0);
}

fn messages_carry_descriptors(mut driver: Driver) {
    let (here, there) = pair();
    let (file, mut other_end) = pipe();
    let mut message = Message::from(b"take this".to_vec());
    message.descriptors = vec![OwnedFd::from(file)];
    let (result, _) = finish(
        &mut driver,
        Op::SendMsg {
            fd: lend(raw(&here)),
            message,
            flags: 0,
        },
    );
    assert_eq!(result, 9);
    let mut message = Message::from(Vec::with_capacity(32));
    message.descriptors_max = 4;
    let (result, op) = finish(
        &mut driver,
        Op::RecvMsg {
            fd: lend(raw(&there)),
            message,
            flags: 0,
        },
    );
    assert_eq!(result, 9);
    let Op::RecvMsg { mut message, .. } = op else {
        panic!("no message")
    };
    assert_eq!(message.buffer, b"take this");
    assert_eq!(message.descriptors.len(), 1);
    let received = message.descriptors.pop().unwrap();
    assert_ne!(descriptor_flags(raw(&received)) & libc::FD_CLOEXEC, 0);
    other_end.write_all(b"through").unwrap();
    drop(other_end);
    let mut text = String::new();
    std::fs::File::from(received)
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "through");
}

fn a_truncated_datagram_says_so(mut driver: Driver) {
    let (here, there) = UnixDatagram::pair().unwrap();
    there.send(b"longer than the buffer").unwrap();
    let message = Message::from(Vec::with_capacity(6));
    let room = message.buffer.capacity();
    let (result, op) = finish(
        &mut driver,
        Op::RecvMsg {
            fd: lend(raw(&here)),
            message,
            flags: libc::MSG_TRUNC,
        },
    );
    assert_eq!(result, 22);
    let Op::RecvMsg { message, .. } = op else {
        panic!("no message")
    };
    assert_eq!(message.buffer, b"longer than the buffer"[..room]);
    assert_ne!(message.flags & libc::MSG_TRUNC, 0);
}

fn a_peer_that_is_gone_is_a_broken_pipe(mut driver: Driver) {
    let (here, there) = pair();
    drop(there);
    assert_eq!(finish(&mut driver, send(raw(&here), b"x")).0, -libc::EPIPE);
    let message = Message::from(b"x".to_vec());
    assert_eq!(
        finish(
            &mut driver,
            Op::SendMsg {
                fd: lend(raw(&here)),
                message,
                flags: 0
            }
        )
        .0,
        -libc::EPIPE
    );
    assert_eq!(finish(&mut driver, receive(raw(&here), 8)).0, 0);
}

fn pipes_are_read_and_written(mut driver: Driver) {
    for nonblocking in [true, false] {
        let (reader, writer) = pipe();
        if nonblocking {
            for end in [&reader, &writer] {
                set_nonblocking(end);
            }
        }
        let read = || Op::Read {
            fd: lend(raw(&reader)),
            buffer: Vec::with_capacity(16),
            offset: None,
        };
        let token = driver.submit(read()).unwrap();
        assert_eq!(all_events(&mut driver), []);
        let write = Op::Write {
            fd: lend(raw(&writer)),
            buffer: b"..abc".to_vec(),
            start: 2,
            offset: None,
        };
        let writing = driver.submit(write).unwrap();
        let mut seen = Vec::new();
        let mut buffer = None;
        while seen.len() < 2 {
            let mut events = Vec::new();
            poll(&mut driver, Some(PATIENCE), &mut events);
            for event in events {
                seen.push((event.token, event.result));
                if event.token == token {
                    buffer = driver.take(token);
                }
            }
        }
        assert!(
            seen.contains(&(token, 3)) && seen.contains(&(writing, 3)),
            "{seen:?}"
        );
        assert!(matches!(buffer, Some(Op::Read { buffer, .. }) if buffer == b"abc"));
        drop(writer);
        assert_eq!(finish(&mut driver, read()).0, 0);
    }
}

fn files_are_opened_written_read_and_described(mut driver: Driver) {
    let path = std::env::temp_dir().join(format!(
        "ringloop-driver-{}-{}",
        std::process::id(),
        driver.backend()
    ));
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let open = |flags| Op::OpenAt {
        directory: None,
        path: name.clone(),
        flags,
        mode: 0o600,
    };
    let (result, _) = finish(&mut driver, open(libc::O_RDWR));
    assert_eq!(result, -libc::ENOENT);
    let (result, _) = finish(
        &mut driver,
        open(libc::O_RDWR | libc::O_CREAT | libc::O_EXCL),
    );
    let file = SharedFd::new(own(result));
    let write = Op::Write {
        fd: file.clone(),
        buffer: b"0123456789".to_vec(),
        start: 0,
        offset: Some(5),
    };
    assert_eq!(finish(&mut driver, write).0, 10);
    let write = Op::Write {
        fd: file.clone(),
        buffer: b"head".to_vec(),
        start: 0,
        offset: None,
    };
    assert_eq!(finish(&mut driver, write).0, 4);
    assert_eq!(
        finish(
            &mut driver,
            Op::Fsync {
                fd: file.clone(),
                data_only: true
            }
        )
        .0,
        0
    );
    assert_eq!(
        finish(
            &mut driver,
            Op::Fsync {
                fd: file.clone(),
                data_only: false
            }
        )
        .0,
        0
    );
    let read = |offset| Op::Read {
        fd: file.clone(),
        buffer: Vec::with_capacity(64),
        offset,
    };
    let (result, op) = finish(&mut driver, read(Some(7)));
    assert_eq!((result, &bytes_of(op)[..]), (8, &b"23456789"[..]));
    let (result, op) = finish(&mut driver, read(None));
    assert_eq!((result, &bytes_of(op)[..]), (11, &b"\x000123456789"[..]));
    assert_eq!(finish(&mut driver, read(Some(100))).0, 0);
    let status = Box::<FileStatus>::default();
    let (path_of, mask) = (name.clone(), libc::STATX_SIZE);
    let (result, op) = finish(
        &mut driver,
        Op::Statx {
            directory: None,
            path: path_of,
            flags: 0,
            mask,
            status,
        },
    );
    assert_eq!(result, 0);
    assert!(matches!(op, Op::Statx { status, .. } if status.0.stx_size == 15));
    let fd = file.try_unwrap().expect("nobody else has it");
    let number = raw(&fd);
    let (result, op) = finish(&mut driver, Op::Close { fd: Some(fd) });
    assert_eq!(result, 0);
    assert!(matches!(op, Op::Close { fd: None }));
    // Another test may have opened something under the same number.
    let left = std::fs::read_link(format!("/proc/self/fd/{number}"));
    assert_ne!(
        left.ok(),
        Some(path.canonicalize().unwrap()),
        "the file is still open"
    );
    std::fs::remove_file(path).unwrap();
}

fn bad_descriptors_are_results(mut driver: Driver) {
    let (pipe, _writer) = pipe();
    for fd in [-1, 900_000] {
        assert_eq!(finish(&mut driver, receive(fd, 8)).0, -libc::EBADF);
        assert_eq!(finish(&mut driver, accept(fd)).0, -libc::EBADF);
        assert_eq!(
            finish(
                &mut driver,
                Op::Read {
                    fd: lend(fd),
                    buffer: Vec::with_capacity(1),
                    offset: None
                }
            )
            .0,
            -libc::EBADF
        );
    }
    assert_eq!(
        finish(&mut driver, receive(raw(&pipe), 8)).0,
        -libc::ENOTSOCK
    );
    let (here, _there) = pair();
    assert_eq!(
        finish(
            &mut driver,
            Op::Accept {
                fd: lend(raw(&here)),
                multishot: false
            }
        )
        .0,
        -libc::EINVAL
    );
}

fn mistakes_are_refused(mut driver: Driver) {
    let error = driver.submit(receive(0, 0)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(driver.counters().operations, 0);
}

fn cancelling_ends_an_operation(mut driver: Driver) {
    let (here, mut there) = pair();
    // Before the kernel has heard of it, and after.
    for flushed in [false, true] {
        let token = driver.submit(receive(raw(&here), 8)).unwrap();
        if flushed {
            driver.flush().unwrap();
        }
        driver.cancel(token);
        driver.cancel(token);
        let event = event_of(&mut driver, token);
        assert_eq!(event.result, -libc::ECANCELED);
        assert_eq!(
            event.io_result().unwrap_err().raw_os_error(),
            Some(libc::ECANCELED)
        );
        assert!(
            matches!(driver.take(token), Some(Op::Recv { buffer, .. }) if buffer.capacity() == 8)
        );
        driver.cancel(token);
        assert_eq!(all_events(&mut driver), []);
    }
    there.write_all(b"kept").unwrap();
    assert_eq!(finish(&mut driver, receive(raw(&here), 8)).0, 4);
}

fn cancelling_loses_to_what_has_happened(mut driver: Driver) {
    // Whoever wins, there is one last event, and no byte is lost.
    for round in 0..200_u8 {
        let (mut here, mut there) = pair();
        let token = driver.submit(receive(raw(&here), 8)).unwrap();
        driver.flush().unwrap();
        there.write_all(&[round]).unwrap();
        if round % 2 == 0 {
            driver.flush().unwrap();
        }
        driver.cancel(token);
        let event = event_of(&mut driver, token);
        let mut byte = [0];
        match driver.take(token) {
            Some(Op::Recv { buffer, .. }) if event.result == 1 => assert_eq!(buffer, [round]),
            Some(Op::Recv { .. }) => {
                assert_eq!(event.result, -libc::ECANCELED);
                here.read_exact(&mut byte).unwrap();
                assert_eq!(byte, [round]);
            }
            other => panic!("{other:?}"),
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
        driver.submit(receive(raw(&here), 8)).unwrap(),
        driver.submit(send(raw(&here), b"x")).unwrap(),
    ];
    let other = driver.submit(receive(raw(&elsewhere), 8)).unwrap();
    assert_eq!(all_events(&mut driver), []);
    driver.cancel_fd(raw(&here));
    let mut events = all_events(&mut driver);
    events.retain(|event| !event.is_watch());
    events.sort_by_key(|event| event.token.index());
    assert_eq!(
        events.iter().map(|event| event.token).collect::<Vec<_>>(),
        tokens
    );
    assert!(events.iter().all(|event| event.result == -libc::ECANCELED));
    there.write_all(b"x").unwrap();
    assert!(event_of(&mut driver, watch).readiness().is_readable());
    driver.cancel(other);
    assert_eq!(event_of(&mut driver, other).result, -libc::ECANCELED);
}

fn a_discarded_operation_is_never_heard_of_again(mut driver: Driver) {
    let (here, mut there) = pair();
    for flushed in [false, true] {
        let token = driver.submit(receive(raw(&here), 8)).unwrap();
        if flushed {
            driver.flush().unwrap();
        }
        driver.discard(token);
        assert_eq!(all_events(&mut driver), []);
        assert!(driver.take(token).is_none());
        assert_eq!(driver.counters().operations, 0);
    }
    there.write_all(b"x").unwrap();
    // Also one that has happened, but was not reported.
    let token = driver.submit(receive(raw(&here), 8)).unwrap();
    driver.flush().unwrap();
    driver.discard(token);
    assert_eq!(all_events(&mut driver), []);
}

fn a_discarded_accept_closes_what_it_gets(mut driver: Driver) {
    let (listener, address) = listener();
    let token = driver.submit(accept(raw(&listener))).unwrap();
    driver.flush().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    driver.flush().unwrap();
    driver.discard(token);
    assert_eq!(all_events(&mut driver), []);
    // Accepted and closed, or never accepted and reset with the listener: in no case left open.
    drop(listener);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    match client.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

fn resources_can_be_taken_once_and_until_the_next_poll(mut driver: Driver) {
    let (here, mut there) = pair();
    there.write_all(b"xy").unwrap();
    let token = driver.submit(receive(raw(&here), 1)).unwrap();
    assert!(
        driver.take(token).is_none(),
        "nothing to take before the last event"
    );
    event_of(&mut driver, token);
    assert!(driver.take(token).is_some());
    assert!(driver.take(token).is_none());
    let late = driver.submit(receive(raw(&here), 1)).unwrap();
    event_of(&mut driver, late);
    poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
    assert!(driver.take(late).is_none());
}

fn a_watch_and_operations_share_a_descriptor(mut driver: Driver) {
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        let (here, mut there) = pair();
        let watch = driver.watch(raw(&here), Interest::READ, mode).unwrap();
        fill(raw(&here));
        let sending = driver.submit(send(raw(&here), b"last")).unwrap();
        assert_eq!(all_events(&mut driver), []);
        there.write_all(b"ping").unwrap();
        let event = event_of(&mut driver, watch);
        assert!(event.readiness().is_readable() && !event.readiness().is_writable());
        let mut buffer = vec![0; 1 << 20];
        while there.read(&mut buffer).is_ok() {}
        assert_eq!(event_of(&mut driver, sending).result, 4);
        let receiving = driver.submit(receive(raw(&here), 8)).unwrap();
        assert_eq!(event_of(&mut driver, receiving).result, 4);
        driver.unwatch(watch).unwrap();
        let receiving = driver.submit(receive(raw(&here), 8)).unwrap();
        assert_eq!(all_events(&mut driver), []);
        there.write_all(b"pong").unwrap();
        assert_eq!(event_of(&mut driver, receiving).result, 4);
    }
}

fn closing_under_an_operation_reaches_the_peer(mut driver: Driver) {
    for _ in 0..20 {
        let (listener, address) = listener();
        let mut client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let token = driver.submit(receive(raw(&server), 8)).unwrap();
        assert_eq!(driver.peek(), ringloop_driver::Peek::Ready);
        poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
        driver.cancel_fd(raw(&server));
        driver.flush().unwrap();
        drop(server);
        // At once: without another call to the driver.
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(event_of(&mut driver, token).result, -libc::ECANCELED);
    }
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
            driver.unwatch(watch).unwrap();
            driver.flush().unwrap();
            drop(server);
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
    assert_eq!(all_events(&mut driver), []);
}

fn a_direction_is_shut_down(mut driver: Driver) {
    let (here, mut there) = pair();
    assert_eq!(
        finish(
            &mut driver,
            Op::Shutdown {
                fd: lend(raw(&here)),
                how: libc::SHUT_WR
            }
        )
        .0,
        0
    );
    assert_eq!(there.read(&mut [0]).unwrap(), 0);
    let (unconnected, _) = listener();
    let result = finish(
        &mut driver,
        Op::Shutdown {
            fd: lend(raw(&unconnected)),
            how: 77,
        },
    )
    .0;
    assert_eq!(result, -libc::EINVAL);
}

fn a_dropped_driver_lets_go_of_everything(mut driver: Driver) {
    let (listener, address) = listener();
    let mut client = TcpStream::connect(address).unwrap();
    let (server, _) = listener.accept().unwrap();
    driver.submit(receive(raw(&server), 1 << 16)).unwrap();
    driver.submit(accept(raw(&listener))).unwrap();
    driver
        .watch(raw(&server), Interest::READ, Mode::Edge)
        .unwrap();
    poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
    driver.submit(receive(raw(&server), 1 << 16)).unwrap();
    drop(driver);
    drop(server);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop(listener);
    assert_eq!(errno(TcpStream::connect(address)), libc::ECONNREFUSED);
}

fn set_nonblocking(file: &File) {
    // SAFETY: takes no memory of ours.
    let result = unsafe { libc::fcntl(raw(file), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}

fn a_close_that_is_cancelled_closes_all_the_same(mut driver: Driver) {
    let mut readers = Vec::new();
    let mut submit = |driver: &mut Driver| {
        let (reader, writer) = pipe();
        readers.push(reader);
        let fd = Some(OwnedFd::from(writer));
        driver.submit(Op::Close { fd }).unwrap()
    };
    let cancelled = submit(&mut driver);
    driver.cancel(cancelled);
    let result = event_of(&mut driver, cancelled).result;
    assert!([0, -libc::ECANCELED].contains(&result));
    let discarded = submit(&mut driver);
    driver.discard(discarded);
    assert_eq!(all_events(&mut driver), []);
    submit(&mut driver);
    drop(driver);
    for mut reader in readers {
        // A child that another test has forked may have it open for a moment.
        set_nonblocking(&reader);
        let start = Instant::now();
        while let Err(error) = reader.read(&mut [0]) {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            assert!(start.elapsed() < PATIENCE, "the writer is open");
            std::thread::yield_now();
        }
    }
}

/// What has no way to be read without waiting is not read before there is something, `O_NONBLOCK` or not.
fn a_file_that_does_not_block_is_waited_for(mut driver: Driver) {
    let folder = std::env::temp_dir().join(format!(
        "ringloop-driver-{}-{}-watched",
        std::process::id(),
        driver.backend()
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let name = CString::new(folder.to_str().unwrap()).unwrap();
    for flags in [0, libc::O_NONBLOCK] {
        // SAFETY: the path is a terminated string, which outlives its call; the others take no memory of ours.
        let (counter, notifier, terminal) = unsafe {
            let notifier = libc::inotify_init1(flags);
            libc::inotify_add_watch(notifier, name.as_ptr(), libc::IN_CREATE);
            (
                own(libc::eventfd(0, flags)),
                own(notifier),
                own(libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | flags)),
            )
        };
        let (counter, notifier) = (SharedFd::new(counter), SharedFd::new(notifier));
        let mut path = [0; 64];
        // SAFETY: the kernel writes a terminated string of no more than `path` has room for.
        let other_end = unsafe {
            assert_eq!(libc::unlockpt(raw(&terminal)), 0);
            assert_eq!(libc::ptsname_r(raw(&terminal), path.as_mut_ptr(), 64), 0);
            own(libc::open(path.as_ptr(), libc::O_RDWR | libc::O_NOCTTY))
        };
        let mut other_end = File::from(other_end);
        let terminal = SharedFd::new(terminal);
        let read = |fd: &SharedFd| Op::Read {
            fd: fd.clone(),
            buffer: Vec::with_capacity(256),
            offset: None,
        };
        let tokens = [&counter, &notifier, &terminal].map(|fd| driver.submit(read(fd)).unwrap());
        assert_eq!(all_events(&mut driver), []);
        // SAFETY: the kernel reads eight bytes of `one`.
        unsafe { libc::write(raw(&counter), (&raw const ONE).cast(), 8) };
        static ONE: u64 = 1;
        std::fs::write(folder.join(format!("{flags}")), "").unwrap();
        other_end.write_all(b"typed").unwrap();
        let mut events = Vec::new();
        while events.len() < tokens.len() {
            poll(&mut driver, Some(PATIENCE), &mut events);
        }
        for (token, count) in tokens.into_iter().zip([8, 32, 5]) {
            let event = events.iter().find(|event| event.token == token);
            assert_eq!(event.unwrap().result, count, "flags {flags}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Bytes that tell when they are freed, and are spoiled then.
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

/// Bytes below 251 that tell where they are.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

fn send_zero_copy(fd: RawFd, bytes: impl AsRef<[u8]> + Send + 'static) -> Op {
    Op::SendZeroCopy {
        fd: lend(fd),
        bytes: Bytes::new(bytes),
        flags: libc::MSG_WAITALL,
    }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, address) = listener();
    let here = TcpStream::connect(address).unwrap();
    let (there, _) = listener.accept().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    (here, there)
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
        assert_eq!(first.result, 5000);
        let mut buffer = [0; 8192];
        assert_eq!(receive(&mut buffer), 5000);
        assert_eq!(buffer[..5000], bytes);
        // The last event may have come along with the first.
        if driver.counters().operations > 0 {
            assert!(driver.take(token).is_none());
            let last = event_of(&mut driver, token);
            assert!(!last.is_more());
            assert!([SENT_WITHOUT_COPY, SENT_BY_COPY].contains(&last.result));
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
            assert!(events.iter().all(|event| event.token == token));
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
        assert_eq!(event.result, -errno);
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
            // What the peer does not read now is refused: it sees the end as soon as the socket is closed.
            drop(near);
            if by == "discard" {
                assert_eq!(all_events(&mut driver), []);
            } else {
                let event = event_of(&mut driver, token);
                if event.is_more() {
                    // The peer's kernel has made room, and the bytes were sent before the cancel.
                    sent = event.result as usize;
                } else {
                    assert_eq!(event.result, -libc::ECANCELED);
                    assert!(!freed.load(Ordering::Relaxed));
                    assert!(driver.take(token).is_some());
                }
            }
            let mut received = Vec::new();
            far.set_nonblocking(false).unwrap();
            far.set_read_timeout(Some(PATIENCE)).unwrap();
            far.read_to_end(&mut received).unwrap();
            // What was sent all the same is the kernel's until the peer has it.
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

/// A socket that knows no such sending refuses it at once, and gets an ordinary send instead: but not if that would come
/// after the cancel, behind what was written since, or to a file that has got the descriptor's number since.
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
            assert_eq!((event.result, event.is_more()), (-libc::ECANCELED, false));
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
    assert_eq!((events[0].token, events[0].result), (token, 30_000));
    let fd = raw(&near);
    drop(near);
    // Too late, and for a number that may be another file's by now.
    driver.cancel_fd(fd);
    driver.discard(token);
    let mut received = Vec::new();
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    far.read_to_end(&mut received).unwrap();
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
    let mut received = Vec::new();
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    far.read_to_end(&mut received).unwrap();
    assert!(!received.is_empty());
    assert!(
        !received.contains(&0xff),
        "memory was freed before it was sent"
    );
}
