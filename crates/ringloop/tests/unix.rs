//! Unix sockets, on both backends.

mod common;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use ringloop::net::{ToUnixAddress, UnixDatagram, UnixListener, UnixStream};
use ringloop::time::{sleep, timeout};
use ringloop::{Handle, spawn, yield_now};
use socket2::SockRef;

use common::{LONG, on_both, pattern, poll_times};

/// A name that no other test and no other process uses.
fn name(test: &str) -> String {
    format!("\0ringloop-{}-{test}", std::process::id())
}

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringloop-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_stream_carries_every_byte_both_ways_at_a_path_and_at_a_name() {
    let folder = Folder::new("stream");
    on_both(|runtime| {
        let path = folder.0.join("socket");
        drop(std::fs::remove_file(&path));
        let by_path = path.to_unix_address().unwrap();
        let by_name = name("stream").to_unix_address().unwrap();
        for address in [by_path, by_name] {
            runtime.block_on(async {
                let listener = UnixListener::bind(&address).unwrap();
                let bound = listener.local_addr().unwrap();
                assert_eq!(format!("{bound:?}"), format!("{address:?}"));
                let near = UnixStream::connect(&address).await.unwrap();
                let (mut far, peer) = listener.accept().await.unwrap();
                assert!(peer.is_unnamed() && far.peer_addr().unwrap().is_unnamed());
                assert_eq!(
                    format!("{:?}", near.peer_addr().unwrap()),
                    format!("{address:?}")
                );
                let echo = spawn(async move {
                    let mut buffer = BytesMut::new();
                    loop {
                        buffer.clear();
                        buffer.reserve(16 * 1024);
                        let (count, filled) = far.read(buffer).await;
                        if count.unwrap() == 0 {
                            break;
                        }
                        let (result, rest) = far.write_all(filled).await;
                        result.unwrap();
                        buffer = rest;
                    }
                });
                let (mut reader, mut writer) = near.into_split();
                let sent = pattern(3_000_000);
                let expected = sent.clone();
                let writing = spawn(async move {
                    let (head, tail) = sent.split_at(1_000_000);
                    let (result, rest) = writer.write_all(head.chain(tail)).await;
                    result.unwrap();
                    assert!(!rest.has_remaining());
                });
                let mut received = Vec::new();
                while received.len() < expected.len() {
                    let count = reader
                        .read_with(|bytes, _| {
                            received.extend_from_slice(bytes);
                            bytes.len()
                        })
                        .await
                        .unwrap();
                    assert!(count > 0);
                }
                assert!(received == expected);
                writing.await.unwrap();
                echo.await.unwrap();
                // The echo ends, because the half that wrote is dropped.
                let (count, _) = reader.read(Vec::with_capacity(1)).await;
                assert_eq!(count.unwrap(), 0);
            });
        }
    });
}

#[test]
fn credentials_are_those_of_the_peer() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, _far) = UnixStream::pair().unwrap();
            let credentials = near.peer_credentials().unwrap();
            assert_eq!(
                credentials.pid,
                Some(std::process::id().cast_signed()),
                "{credentials:?}"
            );
            let me = std::fs::metadata("/proc/self").unwrap();
            use std::os::unix::fs::MetadataExt;
            assert_eq!((credentials.uid, credentials.gid), (me.uid(), me.gid()));
        });
    });
}

#[test]
fn bad_addresses_are_refused_with_a_reason() {
    let folder = Folder::new("refused");
    on_both(|runtime| {
        let missing = folder.0.join("missing");
        let stale = folder.0.join("stale");
        drop(std::fs::remove_file(&stale));
        runtime.block_on(async {
            let kind = |error: io::Error| error.kind();
            let long = "x".repeat(200);
            for bad in ["", &long, "a\0b"] {
                let error = UnixListener::bind(bad).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
                let error = UnixStream::connect(bad).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
                let socket = UnixDatagram::unbound().unwrap();
                let error = socket.send_to(&b"x"[..], bad).await.0.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
            }
            assert_eq!(
                kind(UnixStream::connect(&missing).await.unwrap_err()),
                io::ErrorKind::NotFound
            );
            drop(UnixListener::bind(&stale).unwrap());
            assert_eq!(
                kind(UnixStream::connect(&stale).await.unwrap_err()),
                io::ErrorKind::ConnectionRefused
            );
            assert_eq!(
                kind(UnixListener::bind(&stale).unwrap_err()),
                io::ErrorKind::AddrInUse
            );
        });
    });
}

#[test]
fn a_connection_waits_while_the_backlog_is_full() {
    on_both(|runtime| {
        runtime.block_on(async {
            let plain =
                socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
            let address = name("backlog");
            plain
                .bind(&socket2::SockAddr::unix(&address).unwrap())
                .unwrap();
            plain.listen(0).unwrap();
            let _first = UnixStream::connect(&address).await.unwrap();
            let second = spawn(async move { UnixStream::connect(&address).await });
            sleep(Duration::from_millis(3)).await;
            assert!(!second.is_finished());
            let (_first, _) = plain.accept().unwrap();
            let mut second = timeout(LONG, second).await.unwrap().unwrap().unwrap();
            let (mut accepted, _) = plain.accept().unwrap();
            accepted.write_all(b"hello").unwrap();
            let (count, _) = second.read(Vec::with_capacity(8)).await;
            assert_eq!(count.unwrap(), 5);
        });
    });
}

/// Sends bytes together with a descriptor (`SCM_RIGHTS`, unix(7)).
fn send_with_descriptor(socket: &UnixStream, text: &[u8]) {
    let number = socket.as_fd().as_raw_fd();
    // Room for one descriptor, aligned for the header of a control message.
    let mut control = [0_u64; 4];
    let mut bytes = libc::iovec {
        iov_base: text.as_ptr().cast_mut().cast(),
        iov_len: text.len(),
    };
    // SAFETY: a msghdr consists of integers and pointers, for which all zeroes are valid. All that it is made to point
    // to is valid for the call and as long as it says, and sendmsg(2) only reads it. The control memory has room for
    // CMSG_SPACE of an int, 24 bytes, so CMSG_FIRSTHDR is not null and CMSG_DATA has room for the int.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut bytes;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header)
            .cast::<[u8; 4]>()
            .write(number.to_ne_bytes());
        libc::sendmsg(number, &raw const message, 0)
    };
    assert_eq!(usize::try_from(sent), Ok(text.len()));
}

/// The kernel ends a read where descriptors were sent along, with more behind it. That must not count as everything.
#[test]
fn data_behind_descriptors_is_read_too() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = UnixStream::pair().unwrap();
            let send = |text: &[u8]| {
                let socket = SockRef::from(&near);
                assert_eq!(socket.send(text).unwrap(), text.len());
            };
            send_with_descriptor(&near, b"one");
            send_with_descriptor(&near, b"two");
            send(b"three");
            let mut received = Vec::new();
            while received.len() < 11 {
                received.reserve(64);
                let (count, filled) = timeout(LONG, far.read(received)).await.unwrap();
                assert!(count.unwrap() > 0);
                received = filled;
            }
            assert_eq!(received, b"onetwothree");
            send_with_descriptor(&near, b"four");
            send(b"five");
            let mut received = Vec::new();
            while received.len() < 8 {
                let reading = far.read_with(|bytes, _| received.extend_from_slice(bytes));
                timeout(LONG, reading).await.unwrap().unwrap();
            }
            assert_eq!(received, b"fourfive");
        });
    });
}

#[test]
fn a_peer_that_vanishes_or_never_reads_disturbs_nobody() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = UnixStream::pair().unwrap();
            // Never reads: the write waits, and others go on.
            let big = vec![5; 4 << 20];
            let writing = spawn(async move {
                let (result, rest) = near.write_all(Bytes::from(big)).await;
                (result, rest, near)
            });
            yield_now().await;
            let (mut other, mut end) = UnixStream::pair().unwrap();
            other.write_all(&b"alive"[..]).await.0.unwrap();
            let (count, _) = end.read(Vec::with_capacity(8)).await;
            assert_eq!(count.unwrap(), 5);
            assert!(!writing.is_finished());
            // Vanishes with data that it has not read: a reset, no signal.
            drop(far);
            let (result, rest, mut near) = timeout(LONG, writing).await.unwrap().unwrap();
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            assert!(rest.has_remaining() && rest.remaining() < 4 << 20);
            let error = near.try_write(b"x").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            let (count, _) = timeout(LONG, near.read(Vec::with_capacity(8)))
                .await
                .unwrap();
            assert!(matches!(count, Ok(0) | Err(_)));
        });
    });
}

#[test]
fn halves_end_their_direction_and_a_shutdown_says_the_end() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = UnixStream::pair().unwrap();
            let (reader, mut writer) = near.into_split();
            writer.write_all(&b"last"[..]).await.0.unwrap();
            assert!(writer.stream().local_addr().unwrap().is_unnamed());
            drop(writer);
            let (count, bytes) = far.read(Vec::with_capacity(8)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"last"[..]));
            assert_eq!(far.read(bytes).await.0.unwrap(), 0);
            far.shutdown(Shutdown::Both).unwrap();
            let mut reader = reader;
            let (count, _) = timeout(LONG, reader.read(Vec::with_capacity(8)))
                .await
                .unwrap();
            assert_eq!(count.unwrap(), 0);
            let plain = std::os::unix::net::UnixStream::pair().unwrap();
            let mut near = UnixStream::try_from(plain.0).unwrap();
            (&plain.1).write_all(b"std").unwrap();
            assert_eq!(near.read(Vec::with_capacity(8)).await.0.unwrap(), 3);
        });
    });
}

#[test]
fn datagrams_keep_their_bounds_and_their_order() {
    let folder = Folder::new("datagrams");
    on_both(|runtime| {
        let path = folder.0.join("socket");
        drop(std::fs::remove_file(&path));
        runtime.block_on(async {
            let receiver = UnixDatagram::bind(&path).unwrap();
            let sender = UnixDatagram::bind(name("sender")).unwrap();
            let waiting = spawn(async move {
                let mut seen = Vec::new();
                for _ in 0..200_usize {
                    let (from, bytes) = receiver.recv_from(Vec::with_capacity(4096)).await;
                    let (count, from) = from.unwrap();
                    assert_eq!(count, bytes.len());
                    assert!(from.as_pathname().is_none() && !from.is_unnamed());
                    seen.push(bytes);
                }
                seen
            });
            yield_now().await;
            for index in 0..200_usize {
                let (sent, _) = sender.send_to(&pattern(index * 20)[..], &path).await;
                assert_eq!(sent.unwrap(), index * 20);
            }
            let seen = timeout(LONG, waiting).await.unwrap().unwrap();
            for (index, bytes) in seen.iter().enumerate() {
                assert!(*bytes == pattern(index * 20), "datagram {index}");
            }
        });
    });
}

#[test]
fn a_sender_waits_for_a_receiver_that_is_full_connected_or_not() {
    on_both(|runtime| {
        runtime.block_on(async {
            let address = name("full");
            let receiver = Rc::new(UnixDatagram::bind(&address).unwrap());
            // Others have filled the receiver, so that no event of ours will tell of room.
            let filler = UnixDatagram::unbound().unwrap();
            let mut fillers = 0_u32;
            let full = loop {
                match filler.try_send_to(b"filler", &address) {
                    Ok(6) => fillers += 1,
                    Ok(count) => panic!("{count} bytes"),
                    Err(error) => break error,
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            let connected = UnixDatagram::unbound().unwrap();
            connected.connect(&address).unwrap();
            let unconnected = UnixDatagram::unbound().unwrap();
            let first = spawn(async move { connected.send(&b"connected"[..]).await.0 });
            let second = spawn({
                let address = address.clone();
                async move { unconnected.send_to(&b"unconnected"[..], address).await.0 }
            });
            sleep(Duration::from_millis(3)).await;
            assert!(!first.is_finished() && !second.is_finished());
            let waits_before = times_asleep();
            sleep(Duration::from_millis(5)).await;
            // They wait for an event rather than try again and again.
            assert!(times_asleep() - waits_before < 50);
            let mut late = Vec::new();
            for _ in 0..fillers + 2 {
                let (count, bytes) = timeout(LONG, receiver.recv(Vec::with_capacity(16)))
                    .await
                    .unwrap();
                assert_eq!(count.unwrap(), bytes.len());
                if bytes != b"filler" {
                    late.push(bytes);
                }
            }
            late.sort();
            assert_eq!(late, [&b"connected"[..], b"unconnected"]);
            first.await.unwrap().unwrap();
            second.await.unwrap().unwrap();
        });
    });
}

/// Roughly how often this thread has slept: its voluntary context switches.
fn times_asleep() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_sender_whose_receiver_vanishes_hears_of_it() {
    on_both(|runtime| {
        runtime.block_on(async {
            let address = name("vanishes");
            let receiver = UnixDatagram::bind(&address).unwrap();
            let filler = UnixDatagram::unbound().unwrap();
            while filler.try_send_to(b"filler", &address).is_ok() {}
            let sender = UnixDatagram::unbound().unwrap();
            let sending = spawn({
                let address = address.clone();
                async move { sender.send_to(&b"late"[..], address).await.0 }
            });
            sleep(Duration::from_millis(2)).await;
            drop(receiver);
            let error = timeout(LONG, sending).await.unwrap().unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            let (near, far) = UnixDatagram::pair().unwrap();
            drop(far);
            // On io_uring a socket is closed at the end of the turn.
            yield_now().await;
            let error = near.send(&b"x"[..]).await.0.unwrap_err();
            assert!(matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::NotConnected
                    | io::ErrorKind::BrokenPipe
            ));
        });
    });
}

#[test]
fn a_sender_whose_receiver_is_full_waits_without_spinning() {
    on_both(|runtime| {
        runtime.block_on(async {
            let address = name("spinning");
            let receiver = UnixDatagram::bind(&address).unwrap();
            let sender = Rc::new(UnixDatagram::unbound().unwrap());
            while sender.try_send_to(b"filler", &address).is_ok() {}
            let sending = spawn({
                let (sender, address) = (Rc::clone(&sender), address.clone());
                async move { sender.send_to(&b"late"[..], address).await.0 }
            });
            let runs = || Handle::current().metrics().tasks_run;
            sleep(Duration::from_millis(5)).await;
            let before = runs();
            sleep(Duration::from_millis(50)).await;
            assert!(runs() - before < 5, "it ran {} times", runs() - before);
            assert!(!sending.is_finished());
            let mut datagram = Vec::with_capacity(16);
            while datagram != b"late" {
                datagram.clear();
                let count;
                (count, datagram) = timeout(LONG, receiver.recv(datagram)).await.unwrap();
                count.unwrap();
            }
            assert_eq!(sending.await.unwrap().unwrap(), 4);
        });
    });
}

#[test]
fn a_sender_whose_own_buffer_is_full_waits_without_spinning() {
    on_both(|runtime| {
        runtime.block_on(async {
            // Large datagrams fill the sender's buffer before they fill the receiver's queue.
            let address = name("own-buffer");
            let receiver = UnixDatagram::bind(&address).unwrap();
            let sender = Rc::new(UnixDatagram::unbound().unwrap());
            let mut queued = 0;
            while sender.try_send_to(&vec![1; 60_000], &address).is_ok() {
                queued += 1;
            }
            let sending = spawn({
                let (sender, address) = (Rc::clone(&sender), address.clone());
                async move { sender.send_to(vec![2; 60_000].as_slice(), address).await.0 }
            });
            sleep(Duration::from_millis(5)).await;
            assert!(!sending.is_finished());
            for index in 0..=queued {
                let (count, bytes) = timeout(LONG, receiver.recv(Vec::with_capacity(65536)))
                    .await
                    .unwrap();
                assert_eq!(count.unwrap(), 60_000);
                assert_eq!(bytes[0], if index == queued { 2 } else { 1 });
            }
            assert_eq!(sending.await.unwrap().unwrap(), 60_000);
        });
    });
}

#[test]
fn trying_with_datagrams_never_waits() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = UnixDatagram::pair().unwrap();
            let mut buffer = Vec::with_capacity(64);
            let error = far.try_recv(&mut buffer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            near.try_send(b"one").unwrap();
            near.try_send(b"").unwrap();
            near.try_send(b"two").unwrap();
            assert_eq!(far.try_recv(&mut buffer).unwrap(), 3);
            let (count, from) = far.try_recv_from(&mut buffer).unwrap();
            assert!(count == 0 && from.is_unnamed());
            let (count, bytes) = far.recv(buffer).await;
            assert_eq!((count.unwrap(), &bytes[..]), (3, &b"onetwo"[..]));
            far.shutdown(Shutdown::Read).unwrap();
            let error = near.send(&b"x"[..]).await.0.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn every_future_may_be_dropped_after_any_poll() {
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..5 {
                let address = name(&format!("dropped-{polls}"));
                let listener = UnixListener::bind(&address).unwrap();
                drop(poll_times(polls, listener.accept()).await);
                drop(poll_times(polls, UnixStream::connect(&address)).await);
                let (mut near, mut far) = UnixStream::pair().unwrap();
                drop(poll_times(polls, far.read(Vec::with_capacity(8))).await);
                drop(poll_times(polls, far.read_with(|_, _| {})).await);
                drop(poll_times(polls, near.write_all(&vec![7; 4 << 20][..])).await);
                drop(poll_times(polls, near.write(&[7][..])).await);

                let address = name(&format!("dropped-datagrams-{polls}"));
                let receiver = UnixDatagram::bind(&address).unwrap();
                let sender = UnixDatagram::unbound().unwrap();
                drop(poll_times(polls, sender.send_to(&b"maybe"[..], &address)).await);
                while sender.try_send_to(b"filler", &address).is_ok() {}
                drop(poll_times(polls, sender.send_to(&b"never"[..], &address)).await);
                sender.connect(&address).unwrap();
                drop(poll_times(polls, sender.send(&b"never"[..])).await);
                while receiver.try_recv(&mut Vec::with_capacity(8)).is_ok() {}
                drop(poll_times(polls, receiver.recv(Vec::with_capacity(8))).await);
                drop(poll_times(polls, receiver.recv_from(Vec::with_capacity(8))).await);
            }
        });
    });
}

#[test]
fn who_sends_to_several_receivers_keeps_nobody_else_from_sending() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (full, free) = (name("several-full"), name("several-free"));
            let receiver = UnixDatagram::bind(&full).unwrap();
            let other = UnixDatagram::bind(&free).unwrap();
            let sender = Rc::new(UnixDatagram::unbound().unwrap());
            let send = |text: &'static [u8]| {
                let sender = Rc::clone(&sender);
                spawn(async move { sender.send(text).await.0 })
            };
            let send_to = |text: &'static [u8], to: &str| {
                let (sender, to) = (Rc::clone(&sender), to.to_owned());
                spawn(async move { sender.send_to(text, to).await.0 })
            };
            let mut queued = 0;
            while sender.try_send_to(b"filler", &full).is_ok() {
                queued += 1;
            }

            // Whoever waits for the full one does not delay the others.
            sender.connect(&free).unwrap();
            let late = send_to(b"late", &full);
            sleep(Duration::from_millis(3)).await;
            timeout(LONG, send(b"one")).await.unwrap().unwrap().unwrap();
            timeout(LONG, send_to(b"two", &free))
                .await
                .unwrap()
                .unwrap()
                .unwrap();

            // And whoever succeeds meanwhile does not keep those who wait from hearing of room.
            sender.connect(&full).unwrap();
            let later = send(b"later");
            sleep(Duration::from_millis(3)).await;
            timeout(LONG, send_to(b"three", &free))
                .await
                .unwrap()
                .unwrap()
                .unwrap();
            assert!(!late.is_finished() && !later.is_finished());
            for _ in 0..queued + 2 {
                let receiving = receiver.recv(Vec::with_capacity(16));
                timeout(LONG, receiving).await.unwrap().0.unwrap();
            }
            late.await.unwrap().unwrap();
            later.await.unwrap().unwrap();
            let mut others = Vec::with_capacity(16);
            while other.try_recv(&mut others).is_ok() {}
            assert_eq!(others, b"onetwothree");
        });
    });
}

#[test]
fn nobody_gets_what_is_sent_to_an_unnamed_socket() {
    on_both(|runtime| {
        runtime.block_on(async {
            let address = name("asked");
            let server = UnixDatagram::bind(&address).unwrap();
            let client = UnixDatagram::unbound().unwrap();
            client.send_to(&b"question"[..], &address).await.0.unwrap();
            let (received, _) = server.recv_from(Vec::with_capacity(16)).await;
            let (_, from) = received.unwrap();
            assert!(from.is_unnamed());
            // The empty abstract name, which is one zero byte.
            let empty = UnixDatagram::bind("\0").unwrap();
            let error = server.send_to(&b"secret"[..], &from).await.0.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let error = server.try_send_to(b"secret", &from).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let error = server.connect(&from).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let error = empty.try_recv(&mut Vec::with_capacity(16)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            let error = UnixStream::connect(&from).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            // As with the standard library, the kernel chooses a name of five bytes.
            let listener = UnixListener::bind(&from).unwrap();
            let chosen = listener.local_addr().unwrap();
            assert_eq!(chosen.as_abstract_name().map(<[u8]>::len), Some(5));
        });
    });
}

/// Binds a socket to a path of 108 bytes, which the standard library refuses to do.
fn bind_to_longest(socket: &impl AsFd, folder: &Folder) {
    let mut path = folder.0.as_os_str().as_bytes().to_vec();
    path.push(b'/');
    // SAFETY: an address consists of numbers, for which all zeroes are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    path.resize(address.sun_path.len(), b'x');
    drop(std::fs::remove_file(OsStr::from_bytes(&path)));
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = from as libc::c_char;
    }
    let length = size_of_val(&address) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the address is valid for reads of its length, and outlives the call.
    let result = unsafe { libc::bind(fd, (&raw const address).cast(), length) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_peer_at_the_longest_path_loses_nothing() {
    let folder = Folder::new("longest");
    on_both(|runtime| {
        runtime.block_on(async {
            let address = name("longest");
            let listener = UnixListener::bind(&address).unwrap();
            let near =
                socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
            bind_to_longest(&near, &folder);
            near.connect(&socket2::SockAddr::unix(&address).unwrap())
                .unwrap();
            near.send(b"hello").unwrap();
            let (mut far, peer) = listener.accept().await.unwrap();
            assert!(peer.is_unnamed() && far.peer_addr().unwrap().is_unnamed());
            assert_eq!(far.read(Vec::with_capacity(8)).await.1, b"hello");

            let receiver = UnixDatagram::bind(name("longest-datagram")).unwrap();
            let sender = UnixDatagram::unbound().unwrap();
            bind_to_longest(&sender, &folder);
            for text in [b"one", b"two"] {
                let to = receiver.local_addr().unwrap();
                sender.send_to(&text[..], to).await.0.unwrap();
            }
            let (result, bytes) = receiver.recv_from(Vec::with_capacity(8)).await;
            let (count, from) = result.unwrap();
            assert_eq!((count, &bytes[..]), (3, &b"one"[..]));
            assert!(from.is_unnamed());
            let mut bytes = Vec::with_capacity(8);
            assert_eq!(receiver.try_recv_from(&mut bytes).unwrap().0, 3);
        });
    });
}
