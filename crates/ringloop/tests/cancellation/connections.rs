//! Accepting and connecting.

use std::cell::RefCell;
use std::time::Duration;

use ringloop::net::{
    TcpConnectOptions, TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream,
};
use ringloop::spawn;
use ringloop::time::{sleep, timeout};

use crate::cut::at_every_poll;
use crate::memory::buffer;
use crate::sockets::{a_turn, abstract_name};

#[test]
fn accepting_from_tcp_loses_no_connection() {
    at_every_poll(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connecting = spawn(async move {
            // After the first poll.
            a_turn().await;
            let mut clients = Vec::new();
            for index in 0..3_u8 {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(&[index][..]).await.0.unwrap();
                clients.push(client);
                a_turn().await;
            }
            clients
        });
        let accepted = RefCell::new(Vec::new());
        let accepting = async || {
            while accepted.borrow().len() < 3 {
                let (stream, peer) = listener.accept().await.unwrap();
                accepted.borrow_mut().push((stream, peer));
            }
        };
        cut.run(accepting()).await;
        accepting().await;
        let clients = connecting.await.unwrap();
        for (index, (stream, peer)) in accepted.into_inner().iter_mut().enumerate() {
            assert_eq!(*peer, clients[index].local_addr().unwrap());
            let (count, bytes) = stream.read(Vec::with_capacity(2)).await;
            assert_eq!((count.unwrap(), bytes), (1, vec![index as u8]));
        }
    });
}

#[test]
fn accepting_from_unix_loses_no_connection() {
    at_every_poll(async |cut| {
        let address = abstract_name();
        let listener = UnixListener::bind(&address).unwrap();
        let connecting = spawn(async move {
            a_turn().await;
            let mut clients = Vec::new();
            for index in 0..3_u8 {
                let mut client = UnixStream::connect(&address).await.unwrap();
                client.write_all(&[index][..]).await.0.unwrap();
                clients.push(client);
                a_turn().await;
            }
            clients
        });
        let accepted = RefCell::new(Vec::new());
        let accepting = async || {
            while accepted.borrow().len() < 3 {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.borrow_mut().push(stream);
            }
        };
        cut.run(accepting()).await;
        accepting().await;
        let _clients = connecting.await.unwrap();
        for (index, stream) in accepted.into_inner().iter_mut().enumerate() {
            let (count, bytes) = stream.read(Vec::with_capacity(2)).await;
            assert_eq!((count.unwrap(), bytes), (1, vec![index as u8]));
        }
    });
}

/// The listener is dropped while clients wait for the connections that it has not accepted.
#[test]
fn connections_that_nobody_took_are_closed_with_their_listener() {
    at_every_poll(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connecting = spawn(async move {
            a_turn().await;
            let mut clients = Vec::new();
            // Those that come when nobody listens any more are refused.
            while clients.len() < 3
                && let Ok(client) = TcpStream::connect(address).await
            {
                clients.push(client);
            }
            clients
        });
        let accepting = async move {
            let mut accepted = Vec::new();
            while accepted.len() < 3 {
                accepted.push(listener.accept().await.unwrap());
            }
        };
        cut.run(accepting).await;
        for mut client in connecting.await.unwrap() {
            let (count, _) = client.read(buffer()).await;
            assert!(matches!(count, Ok(0) | Err(_)), "{count:?}");
        }
    });
}

#[test]
fn connecting_by_name() {
    at_every_poll(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("localhost:{}", listener.local_addr().unwrap().port());
        let stream = cut.run(TcpStream::connect(&name)).await;
        let is_connected = stream.is_some();
        if let Some(stream) = stream {
            stream.unwrap().write_all(&b"hello"[..]).await.0.unwrap();
        }
        // If one that was dropped came so far as to connect, it has been closed.
        let accepting = async {
            let (mut accepted, _) = listener.accept().await.unwrap();
            let (count, bytes) = accepted.read(buffer()).await;
            assert_eq!(
                count.unwrap(),
                if is_connected { 5 } else { 0 },
                "{bytes:?}"
            );
        };
        if is_connected {
            accepting.await;
        } else {
            let _ = timeout(Duration::from_micros(300), accepting).await;
        }
    });
}

/// A listener that does not answer, because its backlog is full.
async fn full() -> (socket2::Socket, std::net::SocketAddr, TcpStream) {
    let plain = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    plain.bind(&any.into()).unwrap();
    plain.listen(0).unwrap();
    let address = plain.local_addr().unwrap().as_socket().unwrap();
    let filler = TcpStream::connect(address).await.unwrap();
    (plain, address, filler)
}

/// Two addresses do not answer, and one refuses, before the one that does.
#[test]
fn connecting_to_a_host_of_several_addresses() {
    at_every_poll(async |cut| {
        let holes = [full().await, full().await];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let refusing: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
        let addresses = [holes[0].1, refusing, holes[1].1, good];
        let mut options = TcpConnectOptions::default();
        options.attempt_delay = Duration::from_micros(100);
        let connecting = TcpStream::connect_with(&addresses[..], &options);
        if let Some(stream) = cut.run(connecting).await {
            assert_eq!(stream.unwrap().peer_addr().unwrap(), good);
        }
    });
}

/// A connection that has to wait: the listener's backlog is full, and the kernel tries again after a second.
#[test]
fn connecting_to_a_backlog_that_is_full() {
    at_every_poll(async |cut| {
        let (plain, address, filler) = full().await;
        let room = spawn(async move {
            a_turn().await;
            let accepted = plain.accept().unwrap();
            (plain, accepted, filler)
        });
        if let Some(stream) = cut.run(TcpStream::connect(address)).await {
            assert_eq!(stream.unwrap().peer_addr().unwrap(), address);
        }
        drop(room.await.unwrap());
    });
}

#[test]
fn connecting_to_a_unix_backlog_that_is_full() {
    at_every_poll(async |cut| {
        let plain =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let address = abstract_name();
        plain
            .bind(&socket2::SockAddr::unix(&address).unwrap())
            .unwrap();
        plain.listen(0).unwrap();
        let filler = UnixStream::connect(&address).await.unwrap();
        let room = spawn(async move {
            sleep(Duration::from_millis(3)).await;
            let accepted = plain.accept().unwrap();
            (plain, accepted, filler)
        });
        if let Some(stream) = cut.run(UnixStream::connect(&address)).await {
            stream.unwrap();
        }
        drop(room.await.unwrap());
    });
}

#[test]
fn connecting_from_a_local_address() {
    at_every_poll(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let from = socket.local_addr().unwrap();
        if let Some(stream) = cut.run(socket.connect(address)).await {
            assert_eq!(stream.unwrap().local_addr().unwrap(), from);
        }
        let mut options = TcpConnectOptions::default();
        options.local_address = Some("127.0.0.1:0".parse().unwrap());
        let connecting = TcpStream::connect_with(address, &options);
        if let Some(stream) = cut.run(connecting).await {
            assert_eq!(stream.unwrap().peer_addr().unwrap(), address);
        }
    });
}
