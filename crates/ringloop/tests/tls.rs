//! TLS connections, on both backends.

#[path = "common/certificates.rs"]
mod certificates;
mod common;
#[path = "common/tls_ends.rs"]
mod tls_ends;

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1 as client1, http2 as client2};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use ringloop::hyper::{Executor, Timer};
use ringloop::net::{OwnedReadHalf, OwnedWriteHalf, Stream, TcpListener, UnixStream};
use ringloop::time::{sleep, timeout};
use ringloop::tls::TlsStream;
use ringloop::tls::rustls::server::{ClientHello, ResolvesServerCert};
use ringloop::tls::rustls::sign::CertifiedKey;
use ringloop::tls::rustls::{self, ClientConfig, HandshakeKind, ProtocolVersion, ServerConfig};
use ringloop::{spawn, yield_now};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use certificates::{
    NAME, VERSIONS, certificate, client, client_of, connect_blocking, distrustful_client,
    known_client, server, strict_server, wordy,
};
use common::{LONG, ReadOnce, on_both, pattern, poll_times, tcp};
use tls_ends::{ends_are_told, exchange};

/// Both ends' results of a handshake.
async fn shake<S: Stream + 'static>(
    (near, far): (S, S),
    client: impl Into<Arc<ClientConfig>>,
    server: impl Into<Arc<ServerConfig>>,
) -> (io::Result<TlsStream<S>>, io::Result<TlsStream<S>>) {
    let acceptor = certificates::acceptor(server).handshake_timeout(LONG);
    let accepting = spawn(async move { acceptor.accept(far).await });
    let near = certificates::connector(client)
        .handshake_timeout(LONG)
        .connect(NAME.try_into().unwrap(), near)
        .await;
    (near, timeout(LONG, accepting).await.unwrap().unwrap())
}

/// The client's end and the server's.
async fn pair() -> (TlsStream, TlsStream) {
    let (near, far) = shake(tcp().await, client(), server()).await;
    (near.unwrap(), far.unwrap())
}

/// The error of rustls inside an error.
fn reason(error: &io::Error) -> &rustls::Error {
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    error.get_ref().unwrap().downcast_ref().unwrap()
}

async fn read_to_end<S: Stream>(stream: &mut TlsStream<S>) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    loop {
        received.reserve(5000);
        let (count, filled) = stream.read(received).await;
        received = filled;
        if count? == 0 {
            return Ok(received);
        }
    }
}

#[test]
fn every_byte_arrives_in_both_directions_and_the_end_is_told() {
    on_both(|runtime| {
        runtime.block_on(async {
            for version in VERSIONS {
                for size in [0, 1, 16_384, 16_385, 700_000] {
                    let (near, far) = shake(tcp().await, client_of(&[version]), server()).await;
                    exchange(near.unwrap(), far.unwrap(), size).await;
                    let streams = UnixStream::pair().unwrap();
                    let (near, far) = shake(streams, client_of(&[version]), server()).await;
                    exchange(near.unwrap(), far.unwrap(), size).await;
                }
            }
        });
    });
}

/// Forwards bytes one at a time.
async fn trickle(mut from: OwnedReadHalf<UnixStream>, mut to: OwnedWriteHalf<UnixStream>) {
    loop {
        let (count, byte) = from.read(Vec::with_capacity(1)).await;
        if !matches!(count, Ok(1..)) || to.write_all(&byte[..]).await.0.is_err() {
            return;
        }
        yield_now().await;
    }
}

#[test]
fn records_may_come_byte_by_byte() {
    on_both(|runtime| {
        runtime.block_on(async {
            for version in VERSIONS {
                let (near, relay_near) = UnixStream::pair().unwrap();
                let (relay_far, far) = UnixStream::pair().unwrap();
                let (from_near, to_near) = relay_near.into_split();
                let (from_far, to_far) = relay_far.into_split();
                drop(spawn(trickle(from_near, to_far)));
                drop(spawn(trickle(from_far, to_near)));
                let (near, far) = shake((near, far), client_of(&[version]), server()).await;
                let (mut near, mut far) = (near.unwrap(), far.unwrap());
                let sending = spawn(async move {
                    near.write_all(&pattern(3000)[..]).await.0.unwrap();
                    near.shutdown().await.unwrap();
                    read_to_end(&mut near).await.unwrap()
                });
                let received = timeout(LONG, read_to_end(&mut far)).await.unwrap();
                assert!(received.unwrap() == pattern(3000));
                far.write_all(&b"all of it"[..]).await.0.unwrap();
                far.shutdown().await.unwrap();
                assert_eq!(sending.await.unwrap(), b"all of it");
            }
        });
    });
}

#[test]
fn a_handshake_may_be_larger_than_a_record() {
    on_both(|runtime| {
        runtime.block_on(async {
            for is_slow in [false, true] {
                let (client, server) = wordy();
                let (near, relay_near) = UnixStream::pair().unwrap();
                let (near, far) = if is_slow {
                    let (relay_far, far) = UnixStream::pair().unwrap();
                    let (from_near, to_near) = relay_near.into_split();
                    let (from_far, to_far) = relay_far.into_split();
                    drop(spawn(trickle(from_near, to_far)));
                    drop(spawn(trickle(from_far, to_near)));
                    shake((near, far), client, server).await
                } else {
                    shake((near, relay_near), client, server).await
                };
                let (near, far) = (near.unwrap(), far.unwrap());
                assert_eq!(far.peer_certificates().unwrap().len(), 60);
                assert_eq!(near.peer_certificates().unwrap().len(), 60);
                exchange(near, far, 1000).await;
            }
        });
    });
}

#[test]
fn an_end_without_a_word_is_an_error_and_a_told_one_is_not() {
    on_both(|runtime| runtime.block_on(ends_are_told(pair)));
}

#[test]
fn what_was_agreed_on_is_known() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut server = strict_server();
            server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let server = Arc::new(server);
            let mut client = known_client();
            client.alpn_protocols = vec![b"http/1.1".to_vec()];
            let client = Arc::new(client);
            let acceptor = certificates::acceptor(server);
            for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
                let (near, far) = tcp().await;
                let acceptor = acceptor.clone();
                let accepting = spawn(async move { acceptor.accept(far).await });
                let mut near = certificates::connector(Arc::clone(&client))
                    .connect(NAME.try_into().unwrap(), near)
                    .await
                    .unwrap();
                let mut far = accepting.await.unwrap().unwrap();
                for end in [&near, &far] {
                    assert_eq!(end.alpn_protocol().unwrap(), b"http/1.1");
                    assert_eq!(end.peer_certificates().unwrap(), [certificate()]);
                    assert_eq!(end.protocol_version(), Some(ProtocolVersion::TLSv1_3));
                    assert_eq!(end.handshake_kind(), Some(kind));
                    assert!(end.cipher_suite().is_some());
                }
                assert_eq!(far.server_name().as_deref(), Some(NAME));
                assert_eq!(near.server_name(), None);
                assert_eq!(
                    near.stream().local_addr().unwrap(),
                    far.stream().peer_addr().unwrap()
                );
                // The ticket for the next one comes with the first data.
                far.write_all(&b"x"[..]).await.0.unwrap();
                near.read(Vec::with_capacity(1)).await.0.unwrap();
            }
            let (_, far) = pair().await;
            assert_eq!(far.alpn_protocol(), None);
            assert_eq!(far.peer_certificates(), None);
        });
    });
}

/// Has no certificate for clients that ask by name, and panics.
#[derive(Debug)]
struct Nameless(Arc<dyn ResolvesServerCert>);

impl ResolvesServerCert for Nameless {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        assert_eq!(hello.server_name(), None, "nobody has a name here");
        self.0.resolve(hello)
    }
}

#[test]
fn a_resolver_that_panics_ends_its_own_handshake_only() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut server = server();
            server.cert_resolver = Arc::new(Nameless(server.cert_resolver));
            let acceptor = certificates::acceptor(server);
            let (near, far) = tcp().await;
            let accepting = acceptor.clone();
            let accepting = spawn(async move { accepting.accept(far).await.map(drop) });
            let connector = certificates::connector(client());
            let connected = connector.connect(NAME.try_into().unwrap(), near).await;
            assert_eq!(connected.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert!(accepting.await.unwrap_err().is_panic());
            // The next one asks by address, which is told by no name: the former one's is forgotten.
            let (near, far) = tcp().await;
            let accepting = spawn(async move { acceptor.accept(far).await });
            connector
                .connect("127.0.0.1".try_into().unwrap(), near)
                .await
                .unwrap();
            assert_eq!(accepting.await.unwrap().unwrap().server_name(), None);
        });
    });
}

#[test]
fn handshakes_that_fail_say_why_to_both_ends() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = shake(tcp().await, distrustful_client(), server()).await;
            let near = near.unwrap_err();
            assert!(
                matches!(reason(&near), rustls::Error::InvalidCertificate(_)),
                "{near}"
            );
            let far = far.unwrap_err();
            assert!(
                matches!(reason(&far), rustls::Error::AlertReceived(_)),
                "{far}"
            );

            // Without a certificate: the client hears of it when it reads.
            let (near, far) = shake(tcp().await, client(), strict_server()).await;
            assert!(matches!(
                reason(&far.unwrap_err()),
                rustls::Error::NoCertificatesPresented
            ));
            let error = near
                .unwrap()
                .read(Vec::with_capacity(8))
                .await
                .0
                .unwrap_err();
            assert!(
                matches!(reason(&error), rustls::Error::AlertReceived(_)),
                "{error}"
            );

            let acceptor = certificates::acceptor(server());
            let (mut near, far) = tcp().await;
            near.write_all(&b"GET / HTTP/1.1\r\n\r\n"[..])
                .await
                .0
                .unwrap();
            let error = acceptor.accept(far).await.unwrap_err();
            assert!(
                matches!(reason(&error), rustls::Error::InvalidMessage(_)),
                "{error}"
            );

            let (near, far) = tcp().await;
            drop(near);
            let error = acceptor.accept(far).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);

            let limit = Duration::from_millis(3);
            let (_near, far) = tcp().await;
            let error = acceptor
                .handshake_timeout(limit)
                .accept(far)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let (near, _far) = tcp().await;
            let connector = certificates::connector(client()).handshake_timeout(limit);
            let error = connector
                .connect(NAME.try_into().unwrap(), near)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        });
    });
}

#[test]
fn a_record_that_was_tampered_with_ends_the_connection_after_what_came_before() {
    on_both(|runtime| {
        runtime.block_on(async {
            // The kernel would encrypt the forged record; tests/kernel_tls/ending.rs is about that.
            let (near, far) = tcp().await;
            let acceptor = certificates::acceptor(server()).kernel(false);
            let accepting = spawn(async move { acceptor.accept(far).await.unwrap() });
            let connector = certificates::connector(client()).kernel(false);
            let name = NAME.try_into().unwrap();
            let mut near = connector.connect(name, near).await.unwrap();
            let mut far = accepting.await.unwrap();
            near.write_all(&b"good"[..]).await.0.unwrap();
            // A record of application data that nobody has encrypted.
            let mut forged = vec![0x17, 3, 3, 0, 40];
            forged.extend_from_slice(&[7; 40]);
            near.stream().try_write(&forged).unwrap();
            let (count, bytes) = far.read(Vec::with_capacity(64)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"good"[..]));
            for _ in 0..2 {
                let error = far.read(Vec::with_capacity(64)).await.0.unwrap_err();
                assert!(
                    matches!(reason(&error), rustls::Error::DecryptError),
                    "{error}"
                );
            }
            let error = far.write(&b"more"[..]).await.0.unwrap_err();
            assert!(matches!(reason(&error), rustls::Error::DecryptError));
            // The peer has been told.
            let error = near.read(Vec::with_capacity(64)).await.0.unwrap_err();
            assert!(
                matches!(reason(&error), rustls::Error::AlertReceived(_)),
                "{error}"
            );
        });
    });
}

#[test]
fn a_peer_that_does_not_read_stops_the_writer_and_loses_nothing() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = pair().await;
            let mut written = 0;
            let all = pattern(24_000_000);
            // Until there is no room. What is on its way is bounded by the socket's buffers and one write.
            while let Some((count, _)) = poll_times(3, near.write(&all[written..])).await {
                written += count.unwrap();
                assert!(written < all.len(), "nothing stops the writer");
            }
            // TCP may have found a little more room meanwhile.
            let error = loop {
                match near.try_write(&all[written..=written]) {
                    Ok(count) => written += count,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            let receiving = spawn(async move {
                let received = read_to_end(&mut far).await.unwrap();
                far.write_all(&received.len().to_string().into_bytes()[..])
                    .await
                    .0
                    .unwrap();
                far.shutdown().await.unwrap();
                received
            });
            // Reading sends the rest as well.
            let (first, _) = poll_times(1, near.read(Vec::with_capacity(64)))
                .await
                .unzip();
            assert!(first.is_none());
            near.shutdown().await.unwrap();
            let answer = timeout(LONG, read_to_end(&mut near))
                .await
                .unwrap()
                .unwrap();
            assert_eq!(answer, written.to_string().into_bytes());
            assert!(receiving.await.unwrap() == all[..written]);
        });
    });
}

#[test]
fn reading_alone_sends_what_was_left_unsent() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = pair().await;
            let all = pattern(24_000_000);
            let mut written = 0;
            while let Some((count, _)) = poll_times(3, near.write(&all[written..])).await {
                written += count.unwrap();
            }
            let receiving = spawn(async move {
                let mut received = Vec::new();
                while received.len() < written {
                    received.reserve(100_000);
                    let (count, filled) = far.read(received).await;
                    received = filled;
                    assert!(count.unwrap() > 0);
                }
                far.write_all(&b"got it"[..]).await.0.unwrap();
                received
            });
            // Nobody writes or flushes any more.
            let (count, answer) = timeout(LONG, near.read(Vec::with_capacity(64)))
                .await
                .unwrap();
            assert_eq!((count.unwrap(), &answer[..]), (6, &b"got it"[..]));
            assert!(receiving.await.unwrap() == all[..written]);
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
                // In place, and answered at once where there is room.
                loop {
                    let unsent = far
                        .read_with(|bytes, stream| {
                            let sent = stream.try_write(bytes).unwrap_or(0);
                            (bytes.is_empty(), bytes[sent..].to_vec())
                        })
                        .await
                        .unwrap();
                    far.write_all(&unsent.1[..]).await.0.unwrap();
                    if unsent.0 {
                        return far.shutdown().await.unwrap();
                    }
                }
            });
            let mut received = Vec::new();
            let mut buffer = vec![0; 50_000];
            for size in (1..).map(|step| step * 997 % 40_000) {
                if size % 3 == 0 {
                    let bytes = reader.read_with(|bytes, _| bytes.to_vec()).await.unwrap();
                    received.extend_from_slice(&bytes);
                    if bytes.is_empty() {
                        break;
                    }
                } else {
                    let (count, _) = timeout(LONG, reader.read(&mut buffer[..size]))
                        .await
                        .unwrap();
                    let count = count.unwrap();
                    received.extend_from_slice(&buffer[..count]);
                    if count == 0 && size > 0 {
                        break;
                    }
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
                let acceptor = certificates::acceptor(server());
                let accepting =
                    spawn(async move { poll_times(polls, acceptor.accept(far)).await.is_some() });
                let connector = certificates::connector(client());
                let connected = connector.connect(NAME.try_into().unwrap(), near).await;
                assert!(accepting.await.unwrap() || connected.is_err() || polls > 1);

                let (mut near, mut far) = pair().await;
                let sent = pattern(400_000);
                let sending = spawn(async move {
                    for piece in sent.chunks(1000) {
                        near.write_all(piece).await.0.unwrap();
                        yield_now().await;
                    }
                    near.shutdown().await.unwrap();
                    // It has session tickets that nobody has read. If it were closed now, the kernel would reset the
                    // connection, and drop what it has not sent yet.
                    near
                });
                let mut received = Vec::new();
                let mut buffer = [0; 333];
                loop {
                    // A read that is dropped has taken nothing.
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
                drop(sending.await.unwrap());
            }
        });
    });
}

#[test]
fn a_small_hot_buffer_and_nested_reads_are_enough() {
    for backend in common::backends() {
        let mut config = common::config(backend);
        config.hot_buffer_bytes = 100;
        let mut runtime = ringloop::Runtime::new(&config).unwrap();
        runtime.block_on(async {
            let (near, far) = pair().await;
            exchange(near, far, 300_000).await;
        });
    }
}

/// A client that shares nothing with the code under test but rustls, and renews its keys as often as it can.
#[test]
fn keys_may_be_renewed_at_any_time() {
    on_both(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let peer = thread::spawn(move || {
                let stream = std::net::TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(LONG)).unwrap();
                let mut stream = connect_blocking(client_of(&[VERSIONS[1]]), stream).unwrap();
                for round in 0..50 {
                    stream.conn.refresh_traffic_keys().unwrap();
                    let message = pattern(round * 700 + 1);
                    stream.write_all(&message).unwrap();
                    let mut answer = vec![0; message.len()];
                    stream.read_exact(&mut answer).unwrap();
                    assert!(answer == message);
                }
                stream.conn.send_close_notify();
                stream.flush().unwrap();
                assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
            });
            let (stream, _) = listener.accept().await.unwrap();
            // Not every kernel can; tests/kernel_tls/keys.rs is about those.
            let acceptor = certificates::acceptor(server()).kernel(false);
            let mut stream = acceptor.accept(stream).await.unwrap();
            loop {
                let (count, bytes) = timeout(LONG, stream.read(Vec::with_capacity(10_000)))
                    .await
                    .unwrap();
                if count.unwrap() == 0 {
                    break;
                }
                stream.write_all(&bytes[..]).await.0.unwrap();
            }
            stream.shutdown().await.unwrap();
            peer.join().unwrap();
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
            let sent = pattern(100_000);
            AsyncWriteExt::write_all(&mut near, &sent).await.unwrap();
            AsyncWriteExt::flush(&mut near).await.unwrap();
            AsyncWriteExt::shutdown(&mut near).await.unwrap();
            let mut received = Vec::new();
            AsyncReadExt::read_to_end(&mut near, &mut received)
                .await
                .unwrap();
            assert!(received == sent);
            copying.await.unwrap();
        });
    });
}

#[test]
fn the_traits_of_futures_io_work() {
    use futures_util::io::{AsyncReadExt, AsyncWriteExt};
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = pair().await;
            let sending = spawn(async move {
                AsyncWriteExt::write_all(&mut far, &pattern(100_000))
                    .await
                    .unwrap();
                AsyncWriteExt::close(&mut far).await.unwrap();
                far
            });
            let mut received = Vec::new();
            AsyncReadExt::read_to_end(&mut near, &mut received)
                .await
                .unwrap();
            assert!(received == pattern(100_000));
            drop(sending.await.unwrap());
        });
    });
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(body)))
}

#[test]
fn http_1_and_2_are_chosen_by_alpn() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut server = server();
            server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let server = Arc::new(server);
            for protocol in [&b"h2"[..], b"http/1.1"] {
                let mut client = client();
                client.alpn_protocols = vec![protocol.to_vec()];
                let (near, far) = shake(tcp().await, client, Arc::clone(&server)).await;
                let (near, far) = (near.unwrap(), far.unwrap());
                let is_2 = far.alpn_protocol().unwrap() == b"h2";
                assert_eq!(is_2, protocol == b"h2");
                let request = || Request::new(Full::new(Bytes::from(pattern(500_000))));
                let check = async |answer: Response<Incoming>| {
                    let body = answer.into_body().collect().await.unwrap().to_bytes();
                    assert!(body == pattern(500_000));
                };
                if is_2 {
                    let mut serving = http2::Builder::new(Executor);
                    serving.timer(Timer);
                    let serving = spawn(serving.serve_connection(far, service_fn(echo)));
                    let (mut sender, connection) =
                        client2::handshake(Executor, near).await.unwrap();
                    let connection = spawn(connection);
                    for _ in 0..5 {
                        check(sender.send_request(request()).await.unwrap()).await;
                    }
                    drop(sender);
                    timeout(LONG, connection).await.unwrap().unwrap().unwrap();
                    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
                } else {
                    let serving = http1::Builder::new();
                    let serving = spawn(serving.serve_connection(far, service_fn(echo)));
                    let (mut sender, connection) = client1::handshake(near).await.unwrap();
                    let connection = spawn(connection);
                    for _ in 0..5 {
                        sender.ready().await.unwrap();
                        check(sender.send_request(request()).await.unwrap()).await;
                    }
                    drop(sender);
                    timeout(LONG, connection).await.unwrap().unwrap().unwrap();
                    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
                }
            }
        });
    });
}

#[test]
fn early_data_is_not_accepted() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut server = server();
            server.max_early_data_size = 1000;
            let acceptor = certificates::acceptor(server);
            let mut client = client_of(&[VERSIONS[1]]);
            client.enable_early_data = true;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let peer = thread::spawn(move || {
                for _ in 0..2 {
                    let stream = std::net::TcpStream::connect(address).unwrap();
                    stream.set_read_timeout(Some(LONG)).unwrap();
                    let mut stream = connect_blocking(client.clone(), stream).unwrap();
                    assert!(!stream.conn.is_early_data_accepted());
                    assert_eq!(stream.read_once(&mut [0; 8]).unwrap(), 5);
                }
            });
            for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = acceptor.accept(stream).await.unwrap();
                assert_eq!(stream.handshake_kind(), Some(kind));
                stream.write_all(&b"hello"[..]).await.0.unwrap();
                sleep(Duration::ZERO).await;
            }
            peer.join().unwrap();
        });
    });
}

#[test]
fn a_read_takes_what_there_is_room_for_and_makes_no_buffer_grow() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = pair().await;
            for bytes in [Vec::new(), vec![7; 4]] {
                let (capacity, length) = (bytes.capacity(), bytes.len());
                // Whether something waits or not.
                let (count, bytes) = timeout(LONG, far.read(bytes)).await.unwrap();
                assert_eq!(count.unwrap(), 0);
                near.write_all(&b"waits"[..]).await.0.unwrap();
                let (count, bytes) = timeout(LONG, far.read(bytes)).await.unwrap();
                assert_eq!(count.unwrap(), 0);
                assert_eq!((bytes.capacity(), bytes.len()), (capacity, length));
            }
            let mut received = Vec::new();
            while received.len() < 10 {
                // Less than a record has: the rest is kept.
                let mut bytes = Vec::with_capacity(3);
                bytes.push(7);
                let room = bytes.capacity() - 1;
                let (count, bytes) = timeout(LONG, far.read(bytes)).await.unwrap();
                assert!((1..=room).contains(&count.unwrap()));
                received.extend_from_slice(&bytes[1..]);
            }
            assert_eq!(received, b"waitswaits");
        });
    });
}

/// Most of the reads find their bytes in a record that was received before.
#[test]
fn many_reads_of_one_record_let_other_tasks_run() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = pair().await;
            near.write_all(&[1; 4096][..]).await.0.unwrap();
            let polls = Rc::new(Cell::new(0));
            let counting = Rc::clone(&polls);
            let beside = spawn(async move {
                loop {
                    counting.set(counting.get() + 1);
                    yield_now().await;
                }
            });
            for _ in 0..2048 {
                assert_eq!(far.read(&mut [0; 1][..]).await.0.unwrap(), 1);
            }
            near.shutdown().await.unwrap();
            let before = polls.get();
            assert!(before > 10, "{before} polls");
            while far.read(Vec::with_capacity(4096)).await.0.unwrap() > 0 {}
            // The end comes again and again.
            for _ in 0..2048 {
                assert_eq!(far.read(Vec::with_capacity(1)).await.0.unwrap(), 0);
            }
            assert!(polls.get() > before + 10, "{} polls", polls.get() - before);
            beside.abort();
        });
    });
}
