//! System calls on sockets fail: each call of each future with each error in its manual page, while the future is
//! dropped at each of its polls. Errors are returned as they are, and nothing is left behind.

use std::future::{Future, poll_fn};
use std::io::{self, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::Poll;

use bytes::Buf;
use socket2::SockRef;

use crate::fs::File;
use crate::io::{copy, copy_bidirectional, copy_up_to};
use crate::metrics::injected;
use crate::net::{UdpSocket, UnixDatagram, UnixStream};
use crate::runtime::{spawn, yield_now};

/// recv(2) and recvmsg(2).
const RECEIVING: &[i32] = &[
    libc::ECONNREFUSED,
    libc::ECONNRESET,
    libc::EHOSTUNREACH,
    libc::EINTR,
    libc::EINVAL,
    libc::ENOBUFS,
    libc::ENOMEM,
    libc::ENOTCONN,
    libc::ETIMEDOUT,
];

/// send(2) and sendmsg(2).
const SENDING: &[i32] = &[
    libc::EACCES,
    libc::ECONNREFUSED,
    libc::ECONNRESET,
    libc::EDESTADDRREQ,
    libc::EHOSTUNREACH,
    libc::EINTR,
    libc::EINVAL,
    libc::EMSGSIZE,
    libc::ENETUNREACH,
    libc::ENOBUFS,
    libc::ENOMEM,
    libc::ENOTCONN,
    libc::EPERM,
    libc::EPIPE,
    libc::ETIMEDOUT,
];

/// sendfile(2), splice(2), recv(2) and send(2), without those at which bytes are copied in another way.
const COPYING: &[i32] = &[
    libc::ECONNRESET,
    libc::EINTR,
    libc::EIO,
    libc::ENOBUFS,
    libc::ENOMEM,
    libc::EOVERFLOW,
    libc::EPIPE,
    libc::ETIMEDOUT,
];

/// Polls a future at most this often, and drops it.
async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

/// Runs a scenario with each call failing with each error. The scenario polls its future at most as often as it is
/// told.
fn failing(errors: &[i32], scenario: impl AsyncFn(usize) -> Option<io::Result<()>>) {
    for errno in errors {
        let mut failures = 0;
        for call in 0.. {
            let mut has_failed = false;
            for polls in 0..100 {
                let mut runtime = super::planned();
                injected::fail_after(call, *errno);
                let result = runtime.block_on(scenario(polls));
                has_failed = injected::has_failed();
                runtime.block_on(async {
                    for _ in 0..4 {
                        yield_now().await;
                    }
                });
                let metrics = runtime.metrics();
                let driver = metrics.reactor.driver;
                assert_eq!((driver.operations, driver.watches), (0, 0));
                assert_eq!((metrics.sources, metrics.tasks_live), (0, 0));
                match result {
                    None => continue,
                    Some(Ok(())) => assert!(!has_failed, "nobody was told of errno {errno}"),
                    Some(Err(error)) => assert_eq!(error.raw_os_error(), Some(*errno)),
                }
                break;
            }
            if !has_failed {
                break;
            }
            failures += 1;
        }
        assert!(failures > 0, "no call failed");
    }
}

/// A connection whose other end makes no calls that count; it writes something a turn later, and then reads everything.
fn stream() -> UnixStream {
    let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    drop(spawn(async move {
        yield_now().await;
        drop(far.write_all(b"some bytes"));
        let mut buffer = vec![0; 1 << 16];
        while !matches!(far.read(&mut buffer), Ok(0)) {
            yield_now().await;
        }
    }));
    UnixStream::try_from(near).unwrap()
}

#[test]
fn streams_fail_to_receive() {
    failing(RECEIVING, async |polls| {
        let mut stream = stream();
        let reading = async { stream.read(Vec::with_capacity(64)).await.0.map(drop) };
        polled(polls, reading).await
    });
    failing(RECEIVING, async |polls| {
        let mut stream = stream();
        let reading = async { stream.read_with(|_, _| ()).await };
        polled(polls, reading).await
    });
    failing(RECEIVING, async |polls| {
        let mut stream = stream();
        let reading = async {
            let mut room = [0; 64];
            let (one, other) = room.split_at_mut(3);
            let mut pieces = [IoSliceMut::new(one), IoSliceMut::new(other)];
            stream.read_vectored(&mut pieces).await.map(drop)
        };
        polled(polls, reading).await
    });
}

#[test]
fn streams_fail_to_be_looked_at() {
    failing(RECEIVING, async |polls| {
        let stream = stream();
        let peeking = async { stream.peek(Vec::with_capacity(64)).await.0.map(drop) };
        polled(polls, peeking).await
    });
    failing(RECEIVING, async |polls| {
        let stream = stream();
        let reading = async {
            stream.readable().await?;
            stream.try_read(&mut Vec::with_capacity(64)).map(drop)
        };
        polled(polls, reading).await
    });
    failing(SENDING, async |polls| {
        let stream = stream();
        let writing = async {
            stream.writable().await?;
            stream.try_write(b"x").map(drop)
        };
        polled(polls, writing).await
    });
    failing(RECEIVING, async |polls| {
        let (socket, _) = udp();
        let peeking = async { socket.peek_from(Vec::with_capacity(64)).await.0.map(drop) };
        polled(polls, peeking).await
    });
}

#[test]
fn streams_fail_to_send() {
    failing(SENDING, async |polls| {
        let mut stream = stream();
        polled(polls, async { stream.write(&b"x"[..]).await.0.map(drop) }).await
    });
    // More than there is room for at once, in one piece and in two.
    let bytes = vec![7; 1_000_000];
    failing(SENDING, async |polls| {
        let mut stream = stream();
        polled(polls, async { stream.write_all(&bytes[..]).await.0 }).await
    });
    failing(SENDING, async |polls| {
        let mut stream = stream();
        let (one, other) = bytes.split_at(3);
        polled(polls, async {
            stream.write_all(Buf::chain(one, other)).await.0
        })
        .await
    });
}

/// A file of more than fits into a socket's buffer.
fn large_file() -> File {
    let name = format!("ringloop-faults-{:?}", std::thread::current().id());
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    std::fs::write(&path, vec![7; 1_000_000]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    File::from(file)
}

#[test]
fn files_fail_to_be_sent() {
    failing(COPYING, async |polls| {
        let (mut stream, mut file) = (stream(), large_file());
        polled(polls, async {
            copy(&mut file, &mut stream).await.map(drop)
        })
        .await
    });
}

#[test]
fn connections_fail_to_be_joined() {
    failing(COPYING, async |polls| {
        let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        // Enough for a pipe to be used.
        SockRef::from(&far).set_send_buffer_size(400_000).unwrap();
        drop(spawn(async move {
            let (bytes, mut sent) = (vec![7; 300_000], 0);
            while sent < bytes.len() {
                match far.write(&bytes[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => yield_now().await,
                    Err(_) => break,
                }
            }
            drop(far.shutdown(Shutdown::Write));
            while !matches!(far.read(&mut [0; 64]), Ok(0)) {
                yield_now().await;
            }
        }));
        let (mut near, mut stream) = (UnixStream::try_from(near).unwrap(), stream());
        polled(polls, async {
            copy_bidirectional(&mut near, &mut stream).await.map(drop)
        })
        .await
    });
}

#[test]
fn pipes_fail_to_be_copied() {
    failing(COPYING, async |polls| {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"some bytes").unwrap();
        drop(writer);
        let (mut stream, mut reader) = (stream(), File::from(OwnedFd::from(reader)));
        polled(polls, async {
            copy(&mut reader, &mut stream).await.map(drop)
        })
        .await
    });
    failing(COPYING, async |polls| {
        let (_reader, writer) = io::pipe().unwrap();
        let (mut stream, mut writer) = (stream(), File::from(OwnedFd::from(writer)));
        polled(polls, async {
            copy_up_to(&mut stream, &mut writer, 5).await.map(drop)
        })
        .await
    });
}

/// For some files and sockets, the kernel refuses. Then bytes are read and written.
#[test]
fn what_the_kernel_refuses_is_copied() {
    for errno in [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP] {
        let mut runtime = super::planned();
        runtime.block_on(async {
            let (mut near, mut far) = UnixStream::pair().unwrap();
            let mut file = large_file();
            injected::fail_after(0, errno);
            let sending = spawn(async move { copy(&mut file, &mut near).await.unwrap() });
            yield_now().await;
            assert!(injected::has_failed());
            let mut received = Vec::with_capacity(1_000_000);
            while received.len() < 1_000_000 {
                let (count, read) = far.read(received).await;
                assert_ne!(count.unwrap(), 0, "the copy has ended early");
                received = read;
            }
            assert!(received == vec![7; 1_000_000]);
            assert_eq!(sending.await.unwrap(), 1_000_000);
        });
    }
}

/// A socket whose peer makes no calls that count; it sends a datagram a turn later, and then receives everything.
fn udp() -> (UdpSocket, SocketAddr) {
    let near = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = far.local_addr().unwrap();
    near.connect(address).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    drop(spawn(async move {
        yield_now().await;
        drop(far.send(b"a datagram"));
        yield_now().await;
    }));
    (UdpSocket::try_from(near).unwrap(), address)
}

fn unix() -> UnixDatagram {
    let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
    drop(spawn(async move {
        yield_now().await;
        drop(far.send(b"a datagram"));
        yield_now().await;
    }));
    UnixDatagram::try_from(near).unwrap()
}

#[test]
fn datagrams_fail_to_be_received() {
    failing(RECEIVING, async |polls| {
        let (socket, _) = udp();
        let receiving = async { socket.recv(Vec::with_capacity(64)).await.0.map(drop) };
        polled(polls, receiving).await
    });
    failing(RECEIVING, async |polls| {
        let (socket, _) = udp();
        let receiving = async { socket.recv_from(Vec::with_capacity(64)).await.0.map(drop) };
        polled(polls, receiving).await
    });
    failing(RECEIVING, async |polls| {
        let socket = unix();
        let receiving = async { socket.recv(Vec::with_capacity(64)).await.0.map(drop) };
        polled(polls, receiving).await
    });
    failing(RECEIVING, async |polls| {
        let socket = unix();
        let receiving = async { socket.recv_from(Vec::with_capacity(64)).await.0.map(drop) };
        polled(polls, receiving).await
    });
}

#[test]
fn datagrams_fail_to_be_sent() {
    failing(SENDING, async |polls| {
        let (socket, _) = udp();
        polled(polls, async { socket.send(&b"x"[..]).await.0.map(drop) }).await
    });
    failing(SENDING, async |polls| {
        let (socket, to) = udp();
        let sending = async { socket.send_to(&b"x"[..], to).await.0.map(drop) };
        polled(polls, sending).await
    });
    failing(SENDING, async |polls| {
        let socket = unix();
        polled(polls, async { socket.send(&b"x"[..]).await.0.map(drop) }).await
    });
}
