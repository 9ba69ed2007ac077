//! Files, pipes and other connections that are copied to a TLS connection: by the kernel alone where it encrypts, and
//! otherwise by reads and writes.

use std::io::{ErrorKind, Read, SeekFrom, Write};
use std::os::fd::OwnedFd;

use ringloop::fs::File;
use ringloop::net::TcpStream;
use ringloop::time::timeout;
use ringloop::tls::TlsStream;
use ringloop::tls::rustls::SupportedCipherSuite;
use ringloop::{JoinHandle, io, spawn, yield_now};
use socket2::SockRef;

use crate::certificates::connect_blocking;
use crate::common::named::Named;
use crate::common::{LONG, on_both, pattern, poll_times, tcp};
use crate::{
    accept_from, can_renew_keys, client_of, frugal, is_on, read_to_end, server_of, shake, suites,
};

/// A suite of each version of TLS.
fn of_both_versions() -> [SupportedCipherSuite; 2] {
    let of = |is_13| suites().find(|suite| suite.tls13().is_some() == is_13);
    [of(false).unwrap(), of(true).unwrap()]
}

/// A client that decrypts by itself, and a server that leaves it to the kernel. Both sides have little room, so that the
/// server waits often.
async fn pair(suite: SupportedCipherSuite) -> (TlsStream, TlsStream) {
    let mut server = server_of(suite);
    // Tickets that nobody has read would reset the connection.
    server.send_tls13_tickets = 0;
    let (near, far) = tcp().await;
    let small = 20_000;
    SockRef::from(&near).set_recv_buffer_size(small).unwrap();
    SockRef::from(&far).set_send_buffer_size(small).unwrap();
    shake((near, far), client_of(suite), server, (false, true)).await
}

/// Receives everything in a task, and whether the end was told.
fn receive(mut stream: TlsStream) -> JoinHandle<(Vec<u8>, bool)> {
    spawn(async move {
        let mut received = Vec::new();
        loop {
            received.reserve(50_000);
            let (count, filled) = timeout(LONG, stream.read(received)).await.unwrap();
            received = filled;
            match count {
                Ok(0) => return (received, true),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return (received, false);
                }
                Err(error) => panic!("{error}"),
            }
        }
    })
}

/// How many bytes this thread has read from files by system calls, sendfile(2) among them.
fn bytes_read_here() -> usize {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_file_is_sent_with_every_cipher() {
    for size in [0, 1, 16_384, 100_001, 1_000_001] {
        let contents = pattern(size);
        let named = Named::new(&contents);
        on_both(|runtime| {
            runtime.block_on(async {
                for suite in suites() {
                    let (near, mut far) = pair(suite).await;
                    let in_kernel = is_on(&far);
                    let receiving = receive(near);
                    let mut file = named.open().await;
                    let before = bytes_read_here();
                    assert_eq!(io::copy(&mut file, &mut far).await.unwrap(), size as u64);
                    // In the kernel it was this thread's call, while the driver would have had it read elsewhere.
                    assert!(!in_kernel || bytes_read_here() - before >= size);
                    assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), size as u64);
                    assert_eq!(io::copy(&mut file, &mut far).await.unwrap(), 0);
                    far.shutdown().await.unwrap();
                    let (received, is_told) = receiving.await.unwrap();
                    assert!(received == contents && is_told);
                }
            });
        });
    }
}

/// A client that shares nothing with the code under test but rustls.
#[test]
fn parts_of_a_file_and_other_data_keep_their_order() {
    let contents = pattern(1_000_000);
    let named = Named::new(&contents);
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in of_both_versions() {
                let (mut stream, peer) = accept_from(server_of(suite), move |socket| {
                    let mut client = connect_blocking(client_of(suite), socket).unwrap();
                    let mut received = Vec::new();
                    client.read_to_end(&mut received).unwrap();
                    client.write_all(b"got it").unwrap();
                    client.conn.send_close_notify();
                    client.flush().unwrap();
                    received
                })
                .await;
                let file = named.open().await;
                let mut expected = Vec::new();
                for (offset, count) in [
                    (0, 10),
                    (999_990, 500),
                    (4095, 400_000),
                    (5, 0),
                    (2_000_000, 9),
                    (131_072, 131_072),
                ] {
                    stream.write_all(&b"a header"[..]).await.0.unwrap();
                    expected.extend_from_slice(b"a header");
                    let end = (offset + count).min(contents.len());
                    let part = contents.get(offset..end).unwrap_or_default();
                    let sent = io::send_file(&file, offset as u64, count as u64, &mut stream);
                    assert_eq!(sent.await.unwrap(), part.len() as u64);
                    expected.extend_from_slice(part);
                    // Queued behind it, if there is no room.
                    let written = stream.try_write(b"and more").unwrap_or(0);
                    expected.extend_from_slice(&b"and more"[..written]);
                }
                stream.shutdown().await.unwrap();
                let gone = io::send_file(&file, 0, 9, &mut stream).await.unwrap_err();
                assert_eq!(gone.kind(), ErrorKind::BrokenPipe);
                assert_eq!(read_to_end(&mut stream).await.unwrap(), b"got it");
                assert!(peer.join().unwrap() == expected);
            }
        });
    });
}

/// The future is dropped again and again, and the file's position says what was sent.
#[test]
fn a_copy_that_is_dropped_is_continued() {
    let contents = pattern(1_000_000);
    let named = Named::new(&contents);
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in of_both_versions() {
                let (near, mut far) = pair(suite).await;
                let receiving = receive(near);
                let mut file = named.open().await;
                let mut polls = 1;
                while poll_times(polls, io::copy(&mut file, &mut far))
                    .await
                    .is_none()
                {
                    polls += 1;
                }
                far.shutdown().await.unwrap();
                let (received, is_told) = receiving.await.unwrap();
                assert!(received == contents && is_told);
            }
        });
    });
}

/// The kernel may have taken a part of a record, and wait for the rest of it. Whatever is called next sends it.
#[test]
fn what_a_dropped_copy_has_sent_arrives() {
    let contents = pattern(1_000_000);
    let named = Named::new(&contents);
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in of_both_versions() {
                for polls in [1, 2, 5] {
                    // A flush, the end, or other data.
                    for next in 0..3 {
                        let (near, mut far) = pair(suite).await;
                        let mut file = named.open().await;
                        drop(poll_times(polls, io::copy(&mut file, &mut far)).await);
                        let sent = file.seek(SeekFrom::Current(0)).unwrap() as usize;
                        assert!(sent < contents.len());
                        // A first poll sends at once, unless the file must be read.
                        assert!(sent > 0 || !is_on(&far));
                        let mut expected = contents[..sent].to_vec();
                        let receiving = receive(near);
                        match next {
                            0 => timeout(LONG, far.flush()).await.unwrap().unwrap(),
                            1 => timeout(LONG, far.shutdown()).await.unwrap().unwrap(),
                            _ => {
                                far.write_all(&b"more"[..]).await.0.unwrap();
                                expected.extend_from_slice(b"more");
                                timeout(LONG, far.flush()).await.unwrap().unwrap();
                            }
                        }
                        drop(far);
                        let (received, is_told) = timeout(LONG, receiving).await.unwrap().unwrap();
                        assert!(received == expected, "{} of {sent}", received.len());
                        assert_eq!(is_told, next == 1);
                    }
                }
            }
        });
    });
}

/// More than the kernel buffers.
const LARGE: usize = 2_000_000;

/// Sends a file to a peer that begins to read when the file has been changed.
async fn change(
    named: &Named,
    suite: SupportedCipherSuite,
    change: impl FnOnce(&std::fs::File),
) -> (u64, Vec<u8>) {
    let (near, mut far) = pair(suite).await;
    let mut file = named.open().await;
    let sending = spawn(async move {
        let count = io::copy(&mut file, &mut far).await.unwrap();
        far.flush().await.unwrap();
        drop(far);
        count
    });
    for _ in 0..50 {
        yield_now().await;
    }
    let file = std::fs::File::options().append(true).open(&named.0);
    change(&file.unwrap());
    let (received, is_told) = receive(near).await.unwrap();
    assert!(!is_told);
    (sending.await.unwrap(), received)
}

#[test]
fn a_file_that_changes_is_sent_to_its_new_end() {
    let contents = pattern(LARGE);
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in of_both_versions() {
                let named = Named::new(&contents);
                let (count, received) = change(&named, suite, |mut file| {
                    file.write_all(b"something more").unwrap();
                })
                .await;
                assert_eq!(count as usize, LARGE + 14);
                assert!(received[..LARGE] == contents);
                assert_eq!(received[LARGE..], *b"something more");

                let (count, received) =
                    change(&named, suite, |file| file.set_len(100_000).unwrap()).await;
                assert_eq!(received.len() as u64, count);
                assert!(count < LARGE as u64 && received[..100_000] == contents[..100_000]);
            }
        });
    });
}

#[test]
fn a_peer_that_does_not_read_blocks_nobody_and_one_that_goes_is_an_error() {
    let named = Named::new(&pattern(LARGE));
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in of_both_versions() {
                let (near, mut far) = pair(suite).await;
                let mut file = named.open().await;
                let sending = spawn(async move {
                    let error = io::copy(&mut file, &mut far).await.unwrap_err();
                    // It must not wait for a peer that is gone.
                    drop(timeout(LONG, far.shutdown()).await.unwrap());
                    (error.kind(), file.seek(SeekFrom::Current(0)).unwrap())
                });
                // This task goes on.
                for _ in 0..200 {
                    yield_now().await;
                }
                drop(near);
                let (kind, position) = timeout(LONG, sending).await.unwrap().unwrap();
                assert!(matches!(
                    kind,
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ));
                assert!(position < LARGE as u64);
            }
        });
    });
}

/// Each key makes as many records as it may. Where the kernel cannot renew it, the copy fails, and the end is told.
#[test]
fn the_keys_are_renewed_within_a_file() {
    let contents = pattern(1_000_000);
    let named = Named::new(&contents);
    let frugal = frugal();
    let ordinary = suites().find(|suite| suite.suite() == frugal.suite());
    on_both(|runtime| {
        runtime.block_on(async {
            let (client, server) = (client_of(ordinary.unwrap()), server_of(frugal));
            let (near, mut far) = shake(tcp().await, client, server, (false, true)).await;
            let fails = is_on(&far) && !can_renew_keys();
            let receiving = receive(near);
            let mut file = named.open().await;
            let copied = timeout(LONG, io::copy(&mut file, &mut far)).await.unwrap();
            let sent = file.seek(SeekFrom::Current(0)).unwrap() as usize;
            if fails {
                let error = copied.unwrap_err();
                assert!(error.to_string().contains("Linux 6.14"), "{error}");
                assert!(sent > 0 && sent < contents.len());
            } else {
                assert_eq!(copied.unwrap(), contents.len() as u64);
            }
            timeout(LONG, far.shutdown()).await.unwrap().unwrap();
            let (received, is_told) = receiving.await.unwrap();
            assert!(received == contents[..sent] && is_told);
        });
    });
}

#[test]
fn pipes_and_connections_are_copied() {
    let contents = pattern(700_000);
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in of_both_versions() {
                // From a pipe whose writer is slow.
                let (near, mut far) = pair(suite).await;
                let receiving = receive(near);
                let (reader, mut writer) = std::io::pipe().unwrap();
                let bytes = contents.clone();
                let thread = std::thread::spawn(move || {
                    for piece in bytes.chunks(100_000) {
                        std::thread::yield_now();
                        writer.write_all(piece).unwrap();
                    }
                });
                let mut reader = File::from(OwnedFd::from(reader));
                let few = io::copy_up_to(&mut reader, &mut far, 10).await;
                let many = io::copy(&mut reader, &mut far).await;
                assert_eq!((few.unwrap(), many.unwrap()), (10, 699_990));
                far.flush().await.unwrap();
                thread.join().unwrap();
                drop(far);
                let (received, is_told) = receiving.await.unwrap();
                assert!(received == contents && !is_told);

                // From a plain connection, and in both directions.
                let (near, mut far) = pair(suite).await;
                let (mut plain, mut middle): (TcpStream, TcpStream) = tcp().await;
                let bytes = contents.clone();
                let sending = spawn(async move {
                    plain.write_all(&bytes[..]).await.0.unwrap();
                    plain.shutdown(std::net::Shutdown::Write).unwrap();
                    let mut answer = Vec::new();
                    loop {
                        let (count, filled) = plain.read(Vec::with_capacity(64)).await;
                        answer.extend_from_slice(&filled);
                        if count.unwrap() == 0 {
                            break answer;
                        }
                    }
                });
                let joining =
                    spawn(async move { io::copy_bidirectional(&mut middle, &mut far).await });
                let (mut reader, mut writer) = near.into_split();
                writer.write_all(&b"an answer"[..]).await.0.unwrap();
                writer.shutdown().await.unwrap();
                let mut received = Vec::new();
                loop {
                    received.reserve(50_000);
                    let (count, filled) = timeout(LONG, reader.read(received)).await.unwrap();
                    received = filled;
                    if count.unwrap() == 0 {
                        break;
                    }
                }
                assert!(received == contents);
                assert_eq!(joining.await.unwrap().unwrap(), (700_000, 9));
                assert_eq!(sending.await.unwrap(), b"an answer");
            }
        });
    });
}
