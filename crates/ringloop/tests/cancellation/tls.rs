//! TLS: when a future is dropped between two records or within one, no plaintext is lost or doubled, and no unsent
//! ciphertext is forgotten.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, BufMut};
use ringloop::fs::File;
use ringloop::io::copy;
use ringloop::net::{Stream, TcpStream};
use ringloop::time::{sleep, timeout};
use ringloop::tls::TlsStream;
use ringloop::tls::rustls::{ClientConfig, ServerConfig};
use ringloop::{JoinHandle, blocking, spawn};

use crate::certificates;
use crate::common::{LONG, poll_times};
use crate::cut::{Cut, When, at_every_poll, leaving_nothing};
use crate::memory::{MARKED, buffer};
use crate::servers::{Echo, server, until_nobody_is_left};
use crate::sockets::{
    BYTES, Rest, a_turn, pieces, read_in_place, receive_slowly, tcp, unix, write_chunks,
    write_once, write_vectored,
};

static CLIENT: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| Arc::new(certificates::client()));
static SERVER: LazyLock<Arc<ServerConfig>> = LazyLock::new(|| Arc::new(certificates::server()));

/// Both ends of a connection, after the handshake.
async fn over<S: Stream + 'static>((near, far): (S, S)) -> (TlsStream<S>, TlsStream<S>) {
    let accepting = spawn(async move {
        let acceptor = certificates::acceptor(Arc::clone(&SERVER));
        acceptor.accept(far).await.unwrap()
    });
    let connector = certificates::connector(Arc::clone(&CLIENT));
    let name = certificates::NAME.try_into().unwrap();
    let near = connector.connect(name, near).await.unwrap();
    (near, accepting.await.unwrap())
}

/// One side of a handshake, and a message after it. If the other side is dropped, this side sees all of the message or
/// an error, and never takes a connection that was cut off for one that has ended.
async fn shaken<S: Stream + 'static>(
    here: impl AsyncFnOnce() -> io::Result<TlsStream<S>>,
) -> io::Result<()> {
    let mut stream = here().await?;
    stream.write_all(&b"hello"[..]).await.0?;
    let mut received = Vec::new();
    while received.len() < 5 {
        let (count, filled) = stream.read(buffer()).await;
        assert_ne!(
            count?, 0,
            "a connection that was cut off seems to have ended"
        );
        received.extend_from_slice(&filled);
    }
    assert_eq!(received, b"hello");
    stream.shutdown().await?;
    let (count, _) = stream.read(buffer()).await;
    assert_eq!(count?, 0);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

fn shaking_hands(dropped: Side, client: ClientConfig, server: ServerConfig) {
    let (client, server) = (Arc::new(client), Arc::new(server));
    at_every_poll(async |cut| {
        let (near, far) = tcp().await;
        let connector = certificates::connector(Arc::clone(&client));
        let connecting = async move {
            let name = certificates::NAME.try_into().unwrap();
            shaken(async || connector.connect(name, near).await).await
        };
        let acceptor = certificates::acceptor(Arc::clone(&server));
        let accepting = async move { shaken(async || acceptor.accept(far).await).await };
        let (result, other) = if dropped == Side::Client {
            let other = spawn(accepting);
            (cut.run(connecting).await, other)
        } else {
            let other = spawn(connecting);
            (cut.run(accepting).await, other)
        };
        let other = other.await.unwrap();
        match result {
            Some(result) => {
                result.unwrap();
                other.unwrap();
            }
            // It may have been dropped when it had said everything.
            None => drop(other),
        }
    });
}

#[test]
fn shaking_hands_as_a_client() {
    shaking_hands(Side::Client, certificates::client(), certificates::server());
}

#[test]
fn shaking_hands_as_a_server() {
    shaking_hands(Side::Server, certificates::client(), certificates::server());
}

#[test]
fn shaking_hands_with_messages_of_several_records() {
    let (client, server) = certificates::wordy();
    shaking_hands(Side::Client, client.clone(), server.clone());
    shaking_hands(Side::Server, client, server);
}

/// A dropped handshake closes its connection, so that the peer does not wait for the rest.
#[test]
fn a_handshake_that_is_dropped_ends_the_other_one() {
    at_every_poll(async |cut| {
        let (near, mut far) = tcp().await;
        let connector = certificates::connector(Arc::clone(&CLIENT));
        let name = certificates::NAME.try_into().unwrap();
        let silence = spawn(async move {
            a_turn().await;
            // In the middle of the record that it waits for.
            let _ = far.write_all(&[22, 3, 3, 0][..]).await;
            a_turn().await;
            let _ = far.shutdown(Shutdown::Write);
            while let (Ok(1..), _) = far.read(buffer()).await {}
        });
        if let Some(result) = cut.run(connector.connect(name, near)).await {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        silence.await.unwrap();
    });
}

/// Sends everything in pieces, and then close_notify. Returns the stream, so that it stays open until somebody drops
/// it.
fn send_all<S: Stream + 'static>(mut stream: TlsStream<S>) -> JoinHandle<TlsStream<S>> {
    spawn(async move {
        for piece in pieces(&BYTES) {
            stream.write_all(piece).await.0.unwrap();
            a_turn().await;
        }
        stream.shutdown().await.unwrap();
        stream
    })
}

/// Reads in a future that is dropped somewhere in the stream, and then in another one to the end.
macro_rules! reading {
    ($name:ident, $pair:expr, $reader:expr, |$from:ident, $received:ident| $read:expr) => {
        #[test]
        fn $name() {
            at_every_poll(async |cut| {
                let (near, far) = over($pair).await;
                let sending = send_all(far);
                let mut whole = $reader(near);
                let $from = &mut whole.0;
                let mut $received = Vec::new();
                let reading = async { while $read > 0 {} };
                cut.run(reading).await;
                while $read > 0 {}
                assert!($received == *BYTES, "bytes are lost or doubled");
                sending.await.unwrap();
            });
        }
    };
}

macro_rules! read_buffers {
    ($from:ident, $received:ident, $room:expr) => {{
        let (count, filled) = $from.read(buffer().limit($room)).await;
        let filled = filled.into_inner();
        assert_eq!(count.unwrap(), filled.len());
        $received.extend_from_slice(&filled);
        filled.len()
    }};
}

reading!(
    reading,
    tcp().await,
    |near| (near,),
    |from, received| read_buffers!(from, received, MARKED)
);
// What a record has beyond the buffer waits for the next read.
reading!(
    reading_parts_of_records,
    tcp().await,
    |near| (near,),
    |from, received| read_buffers!(from, received, 5000)
);
reading!(
    reading_in_place,
    tcp().await,
    |near| (near,),
    |from, received| read_in_place!(from, received)
);
reading!(
    reading_from_unix,
    unix(),
    |near| (near,),
    |from, received| read_buffers!(from, received, MARKED)
);
reading!(
    reading_in_place_from_a_half,
    tcp().await,
    TlsStream::into_split,
    |from, received| read_in_place!(from, received)
);

/// Each read has its own future, which is dropped after its first poll. Together they get every byte once.
#[test]
fn reads_that_are_dropped_again_and_again_lose_nothing() {
    leaving_nothing(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = over(tcp().await).await;
            let sending = send_all(far);
            let mut received = Vec::new();
            let mut dropped = 0;
            for round in 0.. {
                let result = if round % 2 == 0 {
                    let read = near.read(buffer().limit(1 + round % 9000));
                    poll_times(1, read).await.map(|(count, filled)| {
                        received.extend_from_slice(filled.get_ref());
                        count
                    })
                } else {
                    let read = near.read_with(|bytes, _| {
                        received.extend_from_slice(bytes);
                        bytes.len()
                    });
                    poll_times(1, read).await
                };
                match result {
                    Some(Ok(0)) => break,
                    Some(count) => drop(count.unwrap()),
                    None => {
                        dropped += 1;
                        a_turn().await;
                    }
                }
            }
            assert!(received == *BYTES, "bytes are lost or doubled");
            assert!(dropped > 0);
            sending.await.unwrap();
        });
    });
}

/// Writes in a future that is dropped somewhere, and then the rest as the buffer has it. close_notify is sent in a
/// future that is dropped, too.
macro_rules! writing {
    ($name:ident, $pair:expr, $writer:expr, |$to:ident, $rest:ident| $write:expr) => {
        #[test]
        fn $name() {
            at_every_poll(async |cut| {
                let (near, mut far) = over($pair).await;
                let receiving = receive_slowly!(far);
                let mut whole = $writer(near);
                let mut $rest = Rest::new(&BYTES);
                let $to = &mut whole.0;
                let writing = async {
                    while $write {}
                    $to.flush().await.unwrap();
                    $to.shutdown().await.unwrap();
                };
                cut.run(writing).await;
                while $write {}
                $to.shutdown().await.unwrap();
                assert!(
                    receiving.await.unwrap() == *BYTES,
                    "bytes are lost or doubled"
                );
            });
        }
    };
}

writing!(
    writing,
    tcp().await,
    |near| (near,),
    |to, rest| write_once!(to, rest)
);
writing!(
    writing_all,
    tcp().await,
    |near| (near,),
    |to, rest| write_chunks!(to, rest)
);
writing!(
    writing_pieces,
    tcp().await,
    |near| (near,),
    |to, rest| write_vectored!(to, rest)
);
writing!(
    writing_pieces_to_a_half_over_unix,
    unix(),
    |near: TlsStream<_>| {
        let (reader, writer) = near.into_split();
        (writer, reader)
    },
    |to, rest| write_vectored!(to, rest)
);

/// Bytes that were accepted, but that the socket had no room for, are sent by whatever is called next: here, by ending
/// the connection.
#[test]
fn ending_sends_what_was_queued() {
    at_every_poll(async |cut| {
        let (mut near, mut far) = over(tcp().await).await;
        let mut sent = 0;
        while let Ok(count) = near.try_write(&BYTES[sent..(sent + 40_000).min(BYTES.len())])
            && sent < BYTES.len()
        {
            sent += count;
        }
        let receiving = spawn(async move {
            let mut received = Vec::new();
            while read_in_place!(far, received) > 0 {
                a_turn().await;
            }
            received
        });
        let ending = async {
            near.flush().await.unwrap();
            near.shutdown().await.unwrap();
        };
        cut.run(ending).await;
        near.shutdown().await.unwrap();
        assert!(receiving.await.unwrap() == BYTES[..sent]);
    });
}

/// The file's position tells what was sent, so that each byte arrives once.
#[test]
fn sending_a_file() {
    let path = std::env::temp_dir().join(format!("ringloop-sent-{}", std::process::id()));
    std::fs::write(&path, &*BYTES).unwrap();
    at_every_poll(async |cut| {
        let mut file = File::open(&path).await.unwrap();
        let (mut near, mut far) = over(tcp().await).await;
        let receiving = receive_slowly!(far);
        cut.run(async { copy(&mut file, &mut near).await.unwrap() })
            .await;
        copy(&mut file, &mut near).await.unwrap();
        near.shutdown().await.unwrap();
        assert!(
            receiving.await.unwrap() == *BYTES,
            "bytes are lost or doubled"
        );
    });
    std::fs::remove_file(path).unwrap();
}

/// Two tasks on the halves of one connection, whose reads send what the writes have left.
#[test]
fn a_half_whose_other_half_is_dropped_goes_on() {
    at_every_poll(async |cut| {
        let (near, far) = over(tcp().await).await;
        let (mut far_reader, mut far_writer) = far.into_split();
        let echo = spawn(async move {
            loop {
                let (count, filled) = far_reader.read(buffer()).await;
                if count.unwrap() == 0 {
                    return far_writer.shutdown().await.unwrap();
                }
                far_writer.write_all(&filled[..]).await.0.unwrap();
            }
        });
        let (mut reader, mut writer) = near.into_split();
        let writing = spawn(async move {
            writer.write_all(&BYTES[..]).await.0.unwrap();
            writer.shutdown().await.unwrap();
            writer
        });
        let mut received = Vec::new();
        let from = &mut reader;
        let part = async { while read_buffers!(from, received, MARKED) > 0 {} };
        cut.run(part).await;
        while read_in_place!(from, received) > 0 {}
        assert!(received == *BYTES);
        writing.await.unwrap();
        echo.await.unwrap();
    });
}

/// Sends all of `sent`, and returns what comes back until the connection ends.
async fn talk(address: SocketAddr, sent: Vec<u8>) -> Vec<u8> {
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = certificates::connector(Arc::clone(&CLIENT));
    let name = certificates::NAME.try_into().unwrap();
    let mut received = Vec::new();
    // The server may end meanwhile.
    let Ok(stream) = connector.connect(name, stream).await else {
        return received;
    };
    let (mut reader, mut writer) = stream.into_split();
    let writing = spawn(async move {
        let _ = writer.write_all(&sent[..]).await;
        let _ = writer.shutdown().await;
    });
    while let Ok(1..) = reader
        .read_with(|bytes, _| {
            received.extend_from_slice(bytes);
            bytes.len()
        })
        .await
    {}
    writing.await.unwrap();
    received
}

/// The future of one connection is dropped after each of its polls. Its client has the beginning of the answer, and
/// another connection of the same worker gets all of it.
#[test]
fn a_connection_that_ends_in_its_middle_disturbs_no_other() {
    leaving_nothing(|runtime| {
        for when in [When::Polled, When::Woken] {
            for polls in 0..12 {
                let server = server(runtime.backend())
                    .tls(certificates::acceptor(Arc::clone(&SERVER)))
                    .start_with(move |mut stream, _| async move {
                        let mut first = [0];
                        stream.read(&mut first[..]).await.0?;
                        let echo = async {
                            loop {
                                let (count, bytes) = stream.read(buffer()).await;
                                if count? == 0 {
                                    return stream.shutdown().await;
                                }
                                stream.write_all(&bytes[..]).await.0?;
                            }
                        };
                        if first == [b'v'] {
                            Cut::new(polls, when).run(echo).await.unwrap_or(Ok(()))
                        } else {
                            echo.await
                        }
                    })
                    .unwrap();
                let address = server.local_addr();
                let (victim, other) = runtime.block_on(async {
                    let victim = spawn(talk(address, [b"v", &BYTES[..]].concat()));
                    let other = spawn(talk(address, [b"o", &BYTES[..]].concat()));
                    timeout(LONG, async {
                        (victim.await.unwrap(), other.await.unwrap())
                    })
                    .await
                    .unwrap()
                });
                assert!(BYTES.starts_with(&victim));
                assert!(other == *BYTES);
                until_nobody_is_left(&server);
                assert_eq!(server.counters().panics, 0);
                server.shutdown(LONG);
            }
        }
    });
}

/// A server that ends while its connections are in handshakes, exchanging data and closing.
#[test]
fn a_server_that_ends_lets_go_of_its_connections() {
    leaving_nothing(|runtime| {
        for patience in [Duration::ZERO, Duration::from_millis(1)] {
            for round in 0..12 {
                let server = server(runtime.backend())
                    .tls(certificates::acceptor(Arc::clone(&SERVER)))
                    .idle_timeout(LONG)
                    .start(|| Echo { kept: buffer() })
                    .unwrap();
                let address = server.local_addr();
                runtime.block_on(async {
                    let talking = [(); 4].map(|()| spawn(talk(address, BYTES.clone())));
                    let mute = TcpStream::connect(address).await.unwrap();
                    sleep(Duration::from_micros(500) * round).await;
                    blocking::run(move || server.shutdown(patience))
                        .await
                        .unwrap();
                    for talk in talking {
                        let answer = timeout(LONG, talk).await.unwrap().unwrap();
                        assert!(BYTES.starts_with(&answer));
                    }
                    drop(mute);
                });
            }
        }
    });
}
