//! Sockets that leave the runtime: what they had is not lost, and the runtime and the kernel let go of them.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net;

use bytes::Bytes;
use common::{LONG, on_both, pattern, tcp};
use ringloop::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};

#[test]
fn connections_leave_with_what_has_arrived_and_close_at_once() {
    on_both(|runtime| {
        let (near, mut far) = runtime.block_on(async {
            let (mut near, mut far) = tcp().await;
            far.write_all(&b"question, and more"[..]).await.0.unwrap();
            let (count, _) = near.read(Vec::with_capacity(8)).await;
            assert_eq!(count.unwrap(), 8);
            near.write_all(&b"answer"[..]).await.0.unwrap();
            (near, far)
        });
        let number = near.as_raw_fd();
        let mut near = near.into_std().unwrap();
        assert_eq!(near.as_raw_fd(), number);
        let mut bytes = [0; 10];
        near.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b", and more");
        assert_eq!(
            near.read(&mut bytes).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        near.write_all(b", written later").unwrap();
        // Nothing holds the file, so the peer sees the end at once.
        drop(near);
        runtime.block_on(async {
            let (mut received, mut count) = (Vec::with_capacity(64), 1);
            while count > 0 {
                let result;
                (result, received) = far.read(received).await;
                count = result.unwrap();
            }
            assert_eq!(received, b"answer, written later");
        });
    });
}

#[test]
fn a_connection_leaves_although_the_kernel_still_has_bytes_of_it() {
    on_both(|runtime| {
        let (near, far) = runtime.block_on(async {
            let (mut near, far) = tcp().await;
            let bytes = Bytes::from(pattern(200_000));
            near.write_all_zero_copy(bytes).await.0.unwrap();
            (near, far)
        });
        let mut near = std::net::TcpStream::try_from(near).unwrap();
        let mut far = std::net::TcpStream::try_from(far).unwrap();
        near.write_all(b"!").unwrap();
        drop(near);
        far.set_nonblocking(false).unwrap();
        far.set_read_timeout(Some(LONG)).unwrap();
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert!(received == [pattern(200_000), b"!".to_vec()].concat());
    });
}

#[test]
fn sockets_of_every_kind_leave_and_come_back() {
    on_both(|runtime| {
        let name = format!("\0ringloop-leaving-{}", std::process::id());
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            drop(TcpStream::connect(address).await.unwrap());
            // Watched, and then not any more.
            drop(listener.accept().await.unwrap());
            let listener = TcpListener::try_from(listener.into_std().unwrap()).unwrap();
            let (connected, accepted) =
                futures_util::future::join(TcpStream::connect(address), listener.accept()).await;
            drop((connected.unwrap(), accepted.unwrap()));

            let unix = UnixListener::bind(&name).unwrap();
            let unix: net::UnixListener = unix.into_std().unwrap();
            assert!(net::UnixStream::connect_addr(&unix.local_addr().unwrap()).is_ok());

            let (near, mut far) = UnixStream::pair().unwrap();
            let mut near = UnixStream::try_from(near.into_std().unwrap()).unwrap();
            near.write_all(&b"again"[..]).await.0.unwrap();
            assert_eq!(far.read(Vec::with_capacity(8)).await.1, b"again");

            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = udp.local_addr().unwrap();
            udp.try_send_to(b"to myself", address).unwrap();
            let udp = UdpSocket::try_from(udp.into_std().unwrap()).unwrap();
            assert_eq!(udp.recv(Vec::with_capacity(16)).await.1, b"to myself");

            let (one, other) = UnixDatagram::pair().unwrap();
            let other = OwnedFd::try_from(other).unwrap();
            one.send(&b"x"[..]).await.0.unwrap();
            assert_eq!(net::UnixDatagram::from(other).recv(&mut [0; 8]).unwrap(), 1);
        });
    });
}

/// Whoever has a socket may take it along when its runtime is gone.
#[test]
fn a_socket_leaves_a_runtime_that_has_ended() {
    on_both(|runtime| {
        let mut ended = ringloop::Runtime::new(&common::config_on(runtime.backend())).unwrap();
        let (near, far) = ended.block_on(async { UnixStream::pair().unwrap() });
        drop(ended);
        let (mut near, mut far) = (near.into_std().unwrap(), far.into_std().unwrap());
        near.write_all(b"x").unwrap();
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 1);
    });
}

#[test]
fn halves_have_the_descriptor_of_their_connection() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, _far) = UnixStream::pair().unwrap();
            let number = near.as_raw_fd();
            let (reader, writer) = near.into_split();
            assert_eq!((reader.as_raw_fd(), writer.as_raw_fd()), (number, number));
            assert_eq!(reader.as_fd().as_raw_fd(), writer.as_fd().as_raw_fd());
        });
    });
}
