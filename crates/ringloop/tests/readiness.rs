//! Waiting for readiness alone, reading and writing without waiting, and looking without reading.

mod common;

use std::io::ErrorKind;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use ringloop::net::{Stream, TcpStream, UdpSocket, UnixDatagram, UnixStream};
use ringloop::time::{sleep, timeout};
use ringloop::{spawn, yield_now};

use common::{LONG, on_both, pattern, poll_times, tcp};

fn room() -> Vec<u8> {
    Vec::with_capacity(64)
}

/// Runs a body on connections of both families.
macro_rules! on_streams {
    (|$near:ident, $far:ident| $body:block) => {
        on_both(|runtime| {
            runtime.block_on(async {
                {
                    #[allow(unused_mut)]
                    let (mut $near, mut $far): (TcpStream, TcpStream) = tcp().await;
                    timeout(LONG, async $body).await.unwrap();
                }
                {
                    #[allow(unused_mut)]
                    let (mut $near, mut $far): (UnixStream, UnixStream) =
                        UnixStream::pair().unwrap();
                    timeout(LONG, async $body).await.unwrap();
                }
            });
        });
    };
}

#[test]
fn a_stream_is_read_when_it_is_readable() {
    on_streams!(|near, far| {
        assert!(poll_times(4, near.readable()).await.is_none());
        let error = near.try_read(&mut room()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let writing = spawn(async move {
            for piece in [&b"one"[..], b"two", b"three"] {
                sleep(Duration::from_millis(1)).await;
                far.write_all(piece).await.0.unwrap();
            }
        });
        let mut all = Vec::new();
        loop {
            near.readable().await.unwrap();
            all.reserve(2);
            match near.try_read(&mut all) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert_eq!(all, b"onetwothree");
        // The end stays readable.
        near.readable().await.unwrap();
        assert_eq!(near.read(room()).await.0.unwrap(), 0);
        writing.await.unwrap();
    });
}

#[test]
fn trying_does_not_disturb_reading() {
    on_streams!(|near, far| {
        for _ in 0..3 {
            assert!(near.try_read(&mut room()).is_err());
            far.write_all(&b"both"[..]).await.0.unwrap();
            let mut two = Vec::with_capacity(2);
            near.readable().await.unwrap();
            while near.try_read(&mut two).is_err() {
                yield_now().await;
            }
            assert_eq!(two, b"bo");
            assert_eq!(near.try_read(&mut two).unwrap(), 0, "no room");
            assert_eq!(near.read(room()).await.1, b"th");
        }
    });
}

#[test]
fn a_stream_is_written_when_it_is_writable() {
    on_streams!(|near, far| {
        socket2::SockRef::from(&near)
            .set_send_buffer_size(32 << 10)
            .unwrap();
        socket2::SockRef::from(&far)
            .set_recv_buffer_size(32 << 10)
            .unwrap();
        let bytes = pattern(2_000_000);
        let expected = bytes.clone();
        let reading = spawn(async move {
            let mut all = Vec::new();
            while far
                .read_with(|bytes, _| {
                    all.extend_from_slice(bytes);
                    bytes.len()
                })
                .await
                .unwrap()
                > 0
            {
                yield_now().await;
            }
            assert!(all == expected);
        });
        let mut rest = &bytes[..];
        let mut waits = 0;
        while !rest.is_empty() {
            near.writable().await.unwrap();
            match near.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    waits += 1;
                }
            }
        }
        assert!(waits > 0);
        near.shutdown(Shutdown::Write).unwrap();
        reading.await.unwrap();
    });
}

#[test]
fn a_full_stream_is_not_writable() {
    on_streams!(|near, far| {
        while near.try_write(&[0; 4096]).is_ok() {}
        assert!(poll_times(4, near.writable()).await.is_none());
        while far.try_read(&mut Vec::with_capacity(1 << 20)).is_ok() {}
        near.writable().await.unwrap();
    });
}

#[test]
fn peeking_reads_nothing() {
    on_streams!(|near, far| {
        assert!(poll_times(4, near.peek(room())).await.is_none());
        far.write_all(&b"hello"[..]).await.0.unwrap();
        for _ in 0..3 {
            let (count, bytes) = near.peek(Vec::with_capacity(3)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (3, &b"hel"[..]));
            let (count, bytes) = near.peek(room()).await;
            assert_eq!((count.unwrap(), &bytes[..]), (5, &b"hello"[..]));
        }
        assert_eq!(near.peek(Vec::new()).await.0.unwrap(), 0);
        assert_eq!(near.read(room()).await.1, b"hello");
        assert!(poll_times(4, near.peek(room())).await.is_none());
        drop(far);
        assert_eq!(near.peek(room()).await.0.unwrap(), 0);
        assert_eq!(near.read(room()).await.0.unwrap(), 0);
    });
}

#[test]
fn several_wait_beside_a_reader() {
    on_streams!(|near, far| {
        let (mut reader, writer) = near.into_split();
        let reader_task = {
            let (mut a, mut b) = (false, false);
            far.write_all(&b"x"[..]).await.0.unwrap();
            for _ in 0..100 {
                a |= poll_times(1, reader.readable()).await.is_some();
                b |= poll_times(1, reader.stream().readable()).await.is_some();
                yield_now().await;
                if a && b {
                    break;
                }
            }
            a && b
        };
        assert!(reader_task);
        assert_eq!(reader.read(room()).await.1, b"x");
        let waiting = Rc::new(reader);
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let reader = Rc::clone(&waiting);
                spawn(async move { reader.readable().await.unwrap() })
            })
            .collect();
        sleep(Duration::ZERO).await;
        far.write_all(&b"y"[..]).await.0.unwrap();
        for task in tasks {
            timeout(LONG, task).await.unwrap().unwrap();
        }
        writer.writable().await.unwrap();
        assert_eq!(writer.try_write(b"z").unwrap(), 1);
        assert_eq!(far.read(room()).await.1, b"z");
    });
}

fn is_stream<S: Stream>(_: &S) {}

#[test]
fn a_connection_that_was_reset_is_readable_and_writable() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = tcp().await;
            is_stream(&near);
            socket2::SockRef::from(&far)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(far);
            timeout(LONG, near.readable()).await.unwrap().unwrap();
            let error = near.peek(room()).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            timeout(LONG, near.writable()).await.unwrap().unwrap();
        });
    });
}

#[test]
fn datagrams_are_awaited_peeked_and_received() {
    on_both(|runtime| {
        runtime.block_on(async {
            let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = near.local_addr().unwrap();
            assert!(poll_times(4, near.readable()).await.is_none());
            assert!(poll_times(4, near.peek_from(room())).await.is_none());
            far.writable().await.unwrap();
            assert_eq!(far.try_send_to(b"one", address).unwrap(), 3);
            let (peeked, bytes) = timeout(LONG, near.peek_from(room())).await.unwrap();
            assert_eq!(peeked.unwrap(), (3, far.local_addr().unwrap()));
            assert_eq!(bytes, b"one");
            let (count, bytes) = near.peek(Vec::with_capacity(2)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (2, &b"on"[..]));
            near.readable().await.unwrap();
            let mut buffer = room();
            assert_eq!(near.try_recv(&mut buffer).unwrap(), 3);
            assert_eq!(
                near.try_recv(&mut buffer).unwrap_err().kind(),
                ErrorKind::WouldBlock
            );
            assert!(poll_times(4, near.readable()).await.is_none());
            far.send_to(&b"two"[..], address).await.0.unwrap();
            assert_eq!(timeout(LONG, near.recv(room())).await.unwrap().1, b"two");
        });
    });
}

#[test]
fn a_full_queue_of_datagrams_is_awaited() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = UnixDatagram::pair().unwrap();
            let mut sent = 0;
            while near.try_send(b"datagram").is_ok() {
                sent += 1;
            }
            assert!(poll_times(4, near.writable()).await.is_none());
            for _ in 0..sent {
                assert_eq!(far.try_recv(&mut room()).unwrap(), 8);
            }
            timeout(LONG, near.writable()).await.unwrap().unwrap();
            assert_eq!(near.try_send(b"more").unwrap(), 4);
            let (peeked, bytes) = far.peek(room()).await;
            assert_eq!((peeked.unwrap(), &bytes[..]), (4, &b"more"[..]));
        });
    });
}
