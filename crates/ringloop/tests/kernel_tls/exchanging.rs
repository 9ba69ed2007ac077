//! Data in both directions, and what surrounds the moment at which the kernel takes over.

use std::io::{Read, Write};
use std::sync::Arc;

use ringloop::net::{TcpListener, UnixStream};
use ringloop::server::{Connection, Handler, Server};
use ringloop::spawn;
use ringloop::time::timeout;
use ringloop::tls::rustls::{ClientConnection, HandshakeKind};
use ringloop::tls::{KernelTls, TlsAcceptor, TlsConnector};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::certificates::{self, NAME, connect_blocking};
use crate::common::{self, LONG, backends, echo, on_both, pattern, poll_times, pool_config, tcp};
use crate::tls_ends::exchange;
use crate::{accept_from, client_of, is_on, pair, read_to_end, server_of, shake, suites};

#[test]
fn every_byte_arrives_with_every_cipher_whoever_has_the_kernel() {
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in suites() {
                for in_kernel in [(true, true), (true, false), (false, true)] {
                    for size in [0, 1, 16_384, 16_385, 300_000] {
                        let (client, server) = (client_of(suite), server_of(suite));
                        let (near, far) = shake(tcp().await, client, server, in_kernel).await;
                        if in_kernel.0 {
                            is_on(&near);
                        } else {
                            assert_eq!(near.kernel(), KernelTls::NotAsked);
                        }
                        if in_kernel.1 {
                            is_on(&far);
                        }
                        exchange(near, far, size).await;
                    }
                }
            }
        });
    });
}

#[test]
fn what_was_agreed_on_is_still_known() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut server = certificates::strict_server();
            server.alpn_protocols = vec![b"h2".to_vec()];
            let mut client = certificates::known_client();
            client.alpn_protocols = vec![b"h2".to_vec()];
            let (near, far) = shake(tcp().await, client, server, (true, true)).await;
            for end in [&near, &far] {
                assert_eq!(end.alpn_protocol().unwrap(), b"h2");
                assert_eq!(
                    end.peer_certificates().unwrap(),
                    [certificates::certificate()]
                );
                assert!(end.protocol_version().is_some() && end.cipher_suite().is_some());
                assert_eq!(end.handshake_kind(), Some(HandshakeKind::Full));
            }
            assert_eq!(far.server_name().as_deref(), Some(NAME));
        });
    });
}

#[test]
fn what_is_no_tcp_connection_stays_with_rustls() {
    on_both(|runtime| {
        runtime.block_on(async {
            let streams = UnixStream::pair().unwrap();
            let (client, server) = (certificates::client(), certificates::server());
            let (mut near, mut far) = shake(streams, client, server, (true, true)).await;
            assert!(matches!(near.kernel(), KernelTls::Refused(_)));
            near.write_all(&b"hello"[..]).await.0.unwrap();
            near.shutdown().await.unwrap();
            assert_eq!(read_to_end(&mut far).await.unwrap(), b"hello");
        });
    });
}

#[test]
fn the_state_is_known_before_the_first_connection() {
    let acceptor = TlsAcceptor::new(certificates::server());
    assert_eq!(acceptor.kernel_support(), KernelTls::NotAsked);
    let asked = acceptor.kernel(true).kernel_support();
    assert!(asked.is_on() || !crate::is_required(), "{asked}");
    assert!(asked.to_string().starts_with("kernel TLS is "));
    let connector = TlsConnector::new(certificates::client()).kernel(true);
    assert_eq!(connector.kernel_support(), asked);
}

/// Data that comes with the end of the handshake belongs to the kernel: nothing of it may be read before.
#[test]
fn data_right_behind_the_handshake_is_not_lost() {
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in suites() {
                for cut_at in [None, Some(3), Some(200)] {
                    let client = client_of(suite);
                    let (mut stream, peer) = accept_from(server_of(suite), move |mut socket| {
                        let name = NAME.try_into().unwrap();
                        let mut tls = ClientConnection::new(Arc::new(client), name).unwrap();
                        while tls.is_handshaking() {
                            while tls.wants_write() {
                                tls.write_tls(&mut socket).unwrap();
                            }
                            tls.read_tls(&mut socket).unwrap();
                            tls.process_new_packets().unwrap();
                        }
                        // The last message of the handshake is still here.
                        tls.writer().write_all(&pattern(5000)).unwrap();
                        let mut sent = Vec::new();
                        while tls.wants_write() {
                            tls.write_tls(&mut sent).unwrap();
                        }
                        let (first, rest) = sent.split_at(sent.len() - cut_at.unwrap_or(0));
                        socket.write_all(first).unwrap();
                        // The rest of a record comes when the kernel is already there.
                        std::thread::sleep(std::time::Duration::from_millis(2));
                        socket.write_all(rest).unwrap();
                        let mut stream = ringloop::tls::rustls::StreamOwned::new(tls, socket);
                        stream.conn.send_close_notify();
                        stream.flush().unwrap();
                        let mut answer = vec![];
                        stream.read_to_end(&mut answer).unwrap();
                        answer
                    })
                    .await;
                    is_on(&stream);
                    assert!(read_to_end(&mut stream).await.unwrap() == pattern(5000));
                    stream.write_all(&b"thanks"[..]).await.0.unwrap();
                    stream.shutdown().await.unwrap();
                    assert_eq!(peer.join().unwrap(), b"thanks");
                }
            }
        });
    });
}

#[test]
fn session_tickets_are_sent_before_the_kernel_takes_over_and_received_after() {
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in suites() {
                let server = Arc::new(server_of(suite));
                let client = Arc::new(client_of(suite));
                let acceptor = TlsAcceptor::new(server).kernel(true);
                let connector = TlsConnector::new(client).kernel(true);
                for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
                    let (near, far) = tcp().await;
                    let accepting = acceptor.clone();
                    let accepting = spawn(async move { accepting.accept(far).await.unwrap() });
                    let name = NAME.try_into().unwrap();
                    let mut near = connector.connect(name, near).await.unwrap();
                    let mut far = accepting.await.unwrap();
                    assert_eq!(
                        (near.handshake_kind(), far.handshake_kind()),
                        (Some(kind), Some(kind))
                    );
                    // In TLS 1.3 the tickets come before the first data.
                    far.write_all(&b"x"[..]).await.0.unwrap();
                    assert_eq!(near.read(Vec::with_capacity(8)).await.1, b"x");
                }
            }
        });
    });
}

#[test]
fn reads_of_any_size_in_any_order_get_each_byte_once() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair().await;
            let (mut reader, mut writer) = near.into_split();
            let sending = spawn(async move {
                for piece in pattern(300_000).chunks(29_000) {
                    writer.write_all(piece).await.0.unwrap();
                }
            });
            let echoing = spawn(async move {
                loop {
                    let (is_over, unsent) = far
                        .read_with(|bytes, stream| {
                            let sent = stream.try_write(bytes).unwrap_or(0);
                            (bytes.is_empty(), bytes[sent..].to_vec())
                        })
                        .await
                        .unwrap();
                    far.write_all(&unsent[..]).await.0.unwrap();
                    if is_over {
                        return far.shutdown().await.unwrap();
                    }
                }
            });
            let mut received = Vec::new();
            let mut buffer = vec![0; 50_000];
            for size in (1..).map(|step| step * 997 % 40_000 + 1) {
                // A read that is dropped has taken nothing.
                drop(poll_times(size % 3, reader.read(&mut buffer[..0])).await);
                let count = if size % 3 == 0 {
                    let bytes = reader.read_with(|bytes, _| bytes.to_vec()).await.unwrap();
                    received.extend_from_slice(&bytes);
                    bytes.len()
                } else {
                    let read = timeout(LONG, reader.read(&mut buffer[..size])).await;
                    let count = read.unwrap().0.unwrap();
                    received.extend_from_slice(&buffer[..count]);
                    count
                };
                if count == 0 {
                    break;
                }
            }
            assert!(received == pattern(300_000));
            sending.await.unwrap();
            echoing.await.unwrap();
        });
    });
}

#[test]
fn every_future_may_be_dropped_after_any_poll() {
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..6 {
                let (near, far) = tcp().await;
                let acceptor = TlsAcceptor::new(certificates::server()).kernel(true);
                let accepting =
                    spawn(async move { poll_times(polls, acceptor.accept(far)).await.is_some() });
                let connector = TlsConnector::new(certificates::client()).kernel(true);
                let connected = connector.connect(NAME.try_into().unwrap(), near).await;
                drop((accepting.await.unwrap(), connected));

                let (mut near, mut far) = pair().await;
                let sent = pattern(400_000);
                let sending = spawn(async move {
                    let mut rest = &sent[..];
                    while !rest.is_empty() {
                        let piece = &rest[..rest.len().min(10_000)];
                        // What a dropped write has sent, it has said by completing: a write is one call.
                        if let Some((count, _)) = poll_times(polls + 1, near.write(piece)).await {
                            rest = &rest[count.unwrap()..];
                        }
                    }
                    while poll_times(polls + 1, near.shutdown()).await.is_none() {}
                    // Tickets that nobody has read would reset the connection.
                    near
                });
                let mut received = Vec::new();
                let mut buffer = [0; 3333];
                loop {
                    let read = poll_times(polls, far.read(&mut buffer[..])).await;
                    let (count, _) = match read {
                        Some(read) => read,
                        None => timeout(LONG, far.read(&mut buffer[..])).await.unwrap(),
                    };
                    let count = count.unwrap();
                    if count == 0 {
                        break;
                    }
                    received.extend_from_slice(&buffer[..count]);
                }
                assert!(received == pattern(400_000));
                sending.await.unwrap();
            }
        });
    });
}

#[test]
fn the_traits_of_tokio_work() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = pair().await;
            let (mut reader, mut writer) = far.into_split();
            let copying = spawn(async move {
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                AsyncWriteExt::shutdown(&mut writer).await.unwrap();
            });
            AsyncWriteExt::write_all(&mut near, &pattern(100_000))
                .await
                .unwrap();
            AsyncWriteExt::shutdown(&mut near).await.unwrap();
            let mut received = Vec::new();
            near.read_to_end(&mut received).await.unwrap();
            assert!(received == pattern(100_000));
            copying.await.unwrap();
        });
    });
}

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
        is_on(connection.tls().unwrap());
        connection.write(bytes)?;
        if bytes.ends_with(b"bye") {
            connection.close();
        }
        Ok(())
    }
}

#[test]
fn a_server_of_handlers_may_use_the_kernel() {
    for backend in backends() {
        let acceptor = TlsAcceptor::new(certificates::server()).kernel(true);
        let server = Server::new("127.0.0.1:0")
            .workers(1)
            .pool_config(pool_config(backend))
            .tls(acceptor)
            .start(|| Echo)
            .unwrap();
        let socket = common::connect(server.local_addr());
        let mut client = connect_blocking(certificates::client(), socket).unwrap();
        for size in [1, 1000, 100_000] {
            echo(&mut client, &pattern(size));
        }
        client.write_all(b"bye").unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"bye");
        drop(client);

        // A client that never reads until the end: what the socket has no room for waits.
        let socket = common::connect(server.local_addr());
        let client = connect_blocking(certificates::client(), socket).unwrap();
        let all = pattern(8_000_000);
        let (mut tls, mut socket) = (client.conn, client.sock);
        let mut writer = socket.try_clone().unwrap();
        let mut sent = Vec::new();
        for piece in all.chunks(16_000) {
            tls.writer().write_all(piece).unwrap();
            tls.write_tls(&mut sent).unwrap();
        }
        tls.send_close_notify();
        while tls.wants_write() {
            tls.write_tls(&mut sent).unwrap();
        }
        let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut received = Vec::new();
        while received.len() < all.len() {
            assert!(tls.read_tls(&mut socket).unwrap() > 0);
            tls.process_new_packets().unwrap();
            let mut some = vec![0; 1 << 20];
            while let Ok(count @ 1..) = tls.reader().read(&mut some) {
                received.extend_from_slice(&some[..count]);
            }
        }
        assert!(received == all);
        writing.join().unwrap();
        server.shutdown(LONG);
    }
}

#[test]
fn a_listener_may_serve_connections_with_and_without_the_kernel() {
    on_both(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let acceptor = TlsAcceptor::new(certificates::server());
            let serving = spawn(async move {
                for in_kernel in [true, false, true] {
                    let (stream, _) = listener.accept().await.unwrap();
                    let acceptor = acceptor.clone().kernel(in_kernel);
                    let mut stream = acceptor.accept(stream).await.unwrap();
                    assert!(in_kernel || stream.kernel() == KernelTls::NotAsked);
                    stream.write_all(&b"hello"[..]).await.0.unwrap();
                    stream.shutdown().await.unwrap();
                    read_to_end(&mut stream).await.unwrap();
                }
            });
            for _ in 0..3 {
                let stream = ringloop::net::TcpStream::connect(address).await.unwrap();
                let mut stream = TlsConnector::new(certificates::client())
                    .connect(NAME.try_into().unwrap(), stream)
                    .await
                    .unwrap();
                assert_eq!(read_to_end(&mut stream).await.unwrap(), b"hello");
                stream.shutdown().await.unwrap();
            }
            serving.await.unwrap();
        });
    });
}
