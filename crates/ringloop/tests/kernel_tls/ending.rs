//! Ends: those that are told, those that are not, and errors.

use std::io::ErrorKind;
use std::time::Duration;

use ringloop::spawn;
use ringloop::time::{sleep, timeout};
use ringloop::tls::rustls::{self, AlertDescription};
use socket2::SockRef;

use crate::common::{LONG, on_both, pattern, poll_times, tcp};
use crate::tls_ends::ends_are_told;
use crate::{certificates, client_of, is_on, pair, read_to_end, server_of, shake, suites};

fn reason(error: &std::io::Error) -> &rustls::Error {
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    error.get_ref().unwrap().downcast_ref().unwrap()
}

#[test]
fn an_end_without_a_word_is_an_error_and_a_told_one_is_not() {
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in suites() {
                let ends = async || {
                    let (client, server) = (client_of(suite), server_of(suite));
                    shake(tcp().await, client, server, (true, true)).await
                };
                ends_are_told(ends).await;
            }
        });
    });
}

/// close_notify without the end of the TCP connection: nothing else comes that would wake the reader.
#[test]
fn close_notify_is_noticed_right_behind_data() {
    on_both(|runtime| {
        runtime.block_on(async {
            for pause in [0, 2] {
                let (near, far) = tcp().await;
                let socket =
                    std::net::TcpStream::from(std::os::fd::OwnedFd::from(near.into_std().unwrap()));
                socket.set_nonblocking(false).unwrap();
                let silent = std::thread::spawn(move || {
                    use std::io::{Read, Write};
                    let mut client =
                        certificates::connect_blocking(certificates::client(), socket).unwrap();
                    let mut sent = Vec::new();
                    client.conn.writer().write_all(b"data").unwrap();
                    client.conn.send_close_notify();
                    while client.conn.wants_write() {
                        client.conn.write_tls(&mut sent).unwrap();
                    }
                    client.sock.write_all(&sent).unwrap();
                    // It ends only after the server has.
                    let mut rest = Vec::new();
                    client.read_to_end(&mut rest).unwrap();
                    rest
                });
                let acceptor = ringloop::tls::TlsAcceptor::new(certificates::server());
                let mut far = acceptor.kernel(true).accept(far).await.unwrap();
                sleep(Duration::from_millis(pause)).await;
                assert_eq!(read_to_end(&mut far).await.unwrap(), b"data");
                far.write_all(&b"bye"[..]).await.0.unwrap();
                far.shutdown().await.unwrap();
                assert_eq!(silent.join().unwrap(), b"bye");
            }
        });
    });
}

#[test]
fn a_record_that_was_tampered_with_ends_the_connection_after_what_came_before() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (client, server) = (certificates::client(), certificates::server());
            let (mut near, mut far) = shake(tcp().await, client, server, (false, true)).await;
            near.write_all(&b"good"[..]).await.0.unwrap();
            // A record of application data that nobody has encrypted.
            let mut forged = vec![0x17, 3, 3, 0, 40];
            forged.extend_from_slice(&[7; 40]);
            near.stream().try_write(&forged).unwrap();
            let (count, bytes) = far.read(Vec::with_capacity(64)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"good"[..]));
            for _ in 0..2 {
                let read = timeout(LONG, far.read(Vec::with_capacity(64))).await;
                let error = read.unwrap().0.unwrap_err();
                assert!(
                    matches!(reason(&error), rustls::Error::DecryptError),
                    "{error}"
                );
            }
            let error = far.write(&b"more"[..]).await.0.unwrap_err();
            assert!(matches!(reason(&error), rustls::Error::DecryptError));
            // The peer has been told.
            let read = timeout(LONG, near.read(Vec::with_capacity(64))).await;
            let error = read.unwrap().0.unwrap_err();
            assert_eq!(
                *reason(&error),
                rustls::Error::AlertReceived(AlertDescription::BadRecordMac)
            );
        });
    });
}

#[test]
fn what_is_no_record_ends_the_connection() {
    on_both(|runtime| {
        runtime.block_on(async {
            for rubbish in [
                &b"GET / HTTP/1.1\r\n\r\n"[..],
                &[0x17, 3, 3, 0xff, 0xff, 1, 2],
            ] {
                let (client, server) = (certificates::client(), certificates::server());
                let (near, mut far) = shake(tcp().await, client, server, (false, true)).await;
                near.stream().try_write(rubbish).unwrap();
                let read = timeout(LONG, far.read(Vec::with_capacity(64))).await;
                let error = read.unwrap().0.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            }
        });
    });
}

#[test]
fn an_alert_of_the_peer_is_an_error_that_names_it() {
    on_both(|runtime| {
        runtime.block_on(async {
            // Without a certificate: the client hears of it when it reads.
            let (near, far) = tcp().await;
            let acceptor = ringloop::tls::TlsAcceptor::new(certificates::strict_server());
            let accepting = spawn(async move { acceptor.accept(far).await.map(drop) });
            let connector = ringloop::tls::TlsConnector::new(certificates::client()).kernel(true);
            let name = certificates::NAME.try_into().unwrap();
            let mut near = connector.connect(name, near).await.unwrap();
            accepting.await.unwrap().unwrap_err();
            let error = near.read(Vec::with_capacity(8)).await.0.unwrap_err();
            assert_eq!(
                *reason(&error),
                rustls::Error::AlertReceived(AlertDescription::CertificateRequired)
            );
        });
    });
}

#[test]
fn a_reset_is_an_error() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair().await;
            let socket = SockRef::from(near.stream());
            socket.set_linger(Some(Duration::ZERO)).unwrap();
            drop(near);
            let read = timeout(LONG, far.read(Vec::with_capacity(64))).await;
            let error = read.unwrap().0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            // It must not wait for a peer that is gone.
            drop(timeout(LONG, far.shutdown()).await.unwrap());
        });
    });
}

/// The kernel keeps records that TCP has no room for, and would lose them at a shutdown.
#[test]
fn a_shutdown_loses_nothing_when_the_buffers_are_full() {
    end_with_full_buffers(true);
}

/// A stream that was flushed may be dropped. Its end is not told then.
#[test]
fn a_flush_loses_nothing_when_the_buffers_are_full() {
    end_with_full_buffers(false);
}

fn end_with_full_buffers(is_told: bool) {
    on_both(|runtime| {
        runtime.block_on(async {
            for (suite, size) in suites().zip([4096, 20_000, 60_000, 4096, 20_000, 60_000]) {
                let (client, mut server) = (client_of(suite), server_of(suite));
                // Tickets that nobody has read would reset the connection.
                server.send_tls13_tickets = 0;
                let (near, far) = tcp().await;
                let socket = SockRef::from(&near);
                socket.set_send_buffer_size(size).unwrap();
                let socket = SockRef::from(&far);
                socket.set_recv_buffer_size(size).unwrap();
                let (mut near, mut far) = shake((near, far), client, server, (true, false)).await;
                is_on(&near);
                let all = pattern(3_000_000);
                let mut written = 0;
                while let Some((count, _)) = poll_times(
                    3,
                    near.write(&all[written..(written + 30_000).min(all.len())]),
                )
                .await
                {
                    written += count.unwrap();
                    assert!(written < all.len(), "nothing stops the writer");
                }
                let ending = spawn(async move {
                    if is_told {
                        near.shutdown().await.unwrap();
                    } else {
                        near.flush().await.unwrap();
                    }
                    // Closed at once: what TCP has, it sends.
                    drop(near);
                });
                // It takes its time.
                sleep(Duration::from_millis(5)).await;
                let mut received = Vec::new();
                let end = loop {
                    received.reserve(50_000);
                    let (count, filled) = timeout(LONG, far.read(received)).await.unwrap();
                    received = filled;
                    if !matches!(count, Ok(1..)) {
                        break count;
                    }
                };
                match end {
                    Ok(_) => assert!(is_told),
                    Err(error) => {
                        assert!(!is_told, "{error}");
                        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                    }
                }
                assert!(received == all[..written], "{}", received.len());
                ending.await.unwrap();
            }
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
                far.write_all(&b"got it"[..]).await.0.unwrap();
                far.shutdown().await.unwrap();
                received
            });
            timeout(LONG, near.shutdown()).await.unwrap().unwrap();
            assert_eq!(read_to_end(&mut near).await.unwrap(), b"got it");
            assert!(receiving.await.unwrap() == all[..written]);
        });
    });
}
