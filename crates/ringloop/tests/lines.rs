//! Buffered reading.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::io::ErrorKind;
use std::rc::Rc;

use common::{on_both, pattern, poll_times, tcp};
use ringloop::net::{BufReader, ReadStream, TcpStream, UnixStream};
use ringloop::tls::{TlsAcceptor, TlsConnector, TlsStream};
use ringloop::{spawn, yield_now};

/// The two ends of a TLS connection.
async fn tls() -> (TlsStream, TlsStream) {
    let (near, far) = tcp().await;
    let acceptor = TlsAcceptor::new(certificates::server());
    let accepting = spawn(async move { acceptor.accept(far).await });
    let connector = TlsConnector::new(certificates::client());
    let name = certificates::NAME.try_into().unwrap();
    let near = connector.connect(name, near).await.unwrap();
    (near, accepting.await.unwrap().unwrap())
}

/// Reads lines of all lengths, through small buffers and large ones.
async fn reads_all<R: ReadStream>(stream: R, capacity: usize, lengths: &[usize]) {
    let mut reader = BufReader::with_capacity(capacity, stream);
    for &length in lengths {
        let mut line = Vec::new();
        let count = reader.read_until(b'\n', &mut line).await.unwrap();
        assert_eq!(count, length + 1);
        assert_eq!(line.pop(), Some(b'\n'));
        assert!(line.iter().all(|byte| *byte == b'x') && line.len() == length);
    }
    let mut rest = String::new();
    assert_eq!(reader.read_line(&mut rest).await.unwrap(), 4);
    assert_eq!(reader.read_line(&mut rest).await.unwrap(), 0);
    assert_eq!(rest, "rest");
    assert!(reader.fill_buf().await.unwrap().is_empty());
}

const LENGTHS: [usize; 9] = [0, 1, 5, 0, 100, 8191, 8192, 100_000, 3];

fn all_lines() -> Vec<u8> {
    let mut bytes = Vec::new();
    for length in LENGTHS {
        bytes.resize(bytes.len() + length, b'x');
        bytes.push(b'\n');
    }
    bytes.extend_from_slice(b"rest");
    bytes
}

#[test]
fn every_kind_of_connection_has_lines() {
    on_both(|runtime| {
        runtime.block_on(async {
            for capacity in [0, 7, 8192, 1_000_000] {
                let (mut near, far) = tcp().await;
                let writing = spawn(async move { near.write_all(&all_lines()[..]).await.0 });
                reads_all(far, capacity, &LENGTHS).await;
                writing.await.unwrap().unwrap();

                let (near, far) = UnixStream::pair().unwrap();
                let (_, mut writer) = near.into_split();
                let writing = spawn(async move { writer.write_all(&all_lines()[..]).await.0 });
                reads_all(far.into_split().0, capacity, &LENGTHS).await;
                writing.await.unwrap().unwrap();

                let (mut near, far) = tls().await;
                let writing = spawn(async move {
                    near.write_all(&all_lines()[..]).await.0?;
                    near.shutdown().await?;
                    // Open until all is read: closing it with session tickets unread would reset the connection.
                    std::io::Result::Ok(near)
                });
                reads_all(far, capacity, &LENGTHS).await;
                writing.await.unwrap().unwrap();

                let (mut near, far) = tls().await;
                let writing = spawn(async move {
                    near.write_all(&all_lines()[..]).await.0?;
                    near.shutdown().await?;
                    // Open until all is read: closing it with session tickets unread would reset the connection.
                    std::io::Result::Ok(near)
                });
                reads_all(far.into_split().0, capacity, &LENGTHS).await;
                writing.await.unwrap().unwrap();
            }
        });
    });
}

#[test]
fn a_line_that_is_cut_off_or_not_text_is_an_error() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = tcp().await;
            near.write_all(&b"12345\n123456\n"[..]).await.0.unwrap();
            let mut reader = BufReader::new(far).line_limit(6);
            let mut line = String::from("> ");
            assert_eq!(reader.read_line(&mut line).await.unwrap(), 6);
            for _ in 0..2 {
                let error = reader.read_line(&mut line).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData);
                assert_eq!(error.to_string(), "a line has more than 6 bytes");
            }
            assert_eq!(
                (line.as_str(), reader.buffer()),
                ("> 12345\n", &b"123456\n"[..])
            );
            // Also one whose end has not arrived.
            reader.consume(7);
            near.write_all(&b"1234567"[..]).await.0.unwrap();
            assert!(reader.read_line(&mut line).await.is_err());
            reader.consume(7);
            // What is not UTF-8 is left out.
            near.write_all(&b"\xff\nok\n"[..]).await.0.unwrap();
            let error = reader.read_line(&mut line).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert_eq!(reader.read_line(&mut line).await.unwrap(), 3);
            assert_eq!(line, "> 12345\nok\n");
            // A connection that is reset.
            near.write_all(&b"half"[..]).await.0.unwrap();
            reader.get_mut().write_all(&b"unread"[..]).await.0.unwrap();
            socket2::SockRef::from(&near)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap();
            assert_eq!(reader.fill_buf().await.unwrap(), b"half");
            drop(near);
            let error = reader.read_line(&mut line).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert_eq!(reader.buffer(), b"half");
        });
    });
}

#[test]
fn lines_have_no_ends() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = tcp().await;
            near.write_all(&b"\n\r\n\ra\r\r\nb\nc\r"[..])
                .await
                .0
                .unwrap();
            drop(near);
            let mut lines = BufReader::new(far).lines();
            let mut seen = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                seen.push(line);
            }
            assert_eq!(seen, ["", "", "\ra\r", "b", "c\r"]);
            assert!(lines.next_line().await.unwrap().is_none());
        });
    });
}

/// Whatever was polled and dropped, the next call gets all of the line.
#[test]
fn a_line_that_is_given_up_is_still_to_come() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = tcp().await;
            let writing = spawn(async move {
                for _ in 0..20 {
                    for byte in b"a line\n" {
                        near.write_all(&[*byte][..]).await.0.unwrap();
                        yield_now().await;
                    }
                }
            });
            let mut lines = BufReader::with_capacity(3, far).lines();
            let mut seen = 0;
            while seen < 20 {
                if let Some(line) = poll_times(1, lines.next_line()).await {
                    assert_eq!(line.unwrap().unwrap(), "a line");
                    seen += 1;
                } else {
                    yield_now().await;
                }
            }
            assert!(lines.next_line().await.unwrap().is_none());
            writing.await.unwrap();
        });
    });
}

#[test]
fn reading_takes_what_is_buffered_first() {
    on_both(|runtime| {
        runtime.block_on(async {
            let bytes = Rc::new(pattern(300_000));
            let (mut near, far) = tcp().await;
            let written = Rc::clone(&bytes);
            let writing = spawn(async move { near.write_all(&written[..]).await.0 });
            let mut reader = BufReader::with_capacity(100, far);
            assert_eq!(reader.read(Vec::new()).await.0.unwrap(), 0);
            let mut seen = Vec::new();
            for size in [1, 99, 100, 101, 50, 10_000].into_iter().cycle() {
                let (count, piece) = reader.read(Vec::with_capacity(size)).await;
                seen.extend_from_slice(&piece);
                if count.unwrap() == 0 {
                    break;
                }
            }
            assert!(seen == *bytes);
            writing.await.unwrap().unwrap();
        });
    });
}

#[test]
fn the_connection_comes_back_with_what_was_read() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = tcp().await;
            near.write_all(&b"line\nbody"[..]).await.0.unwrap();
            drop(near);
            let mut reader = BufReader::new(far);
            let mut line = String::new();
            reader.read_line(&mut line).await.unwrap();
            assert!(format!("{reader:?}").contains("buffered: 4"));
            let (stream, rest): (TcpStream, _) = reader.into_parts();
            assert_eq!(rest, b"body");
            drop(stream);
        });
    });
}

#[test]
#[should_panic(expected = "2 bytes consumed of 1")]
fn no_more_can_be_consumed_than_there_is() {
    let mut runtime = ringloop::Runtime::new(&ringloop::RuntimeConfig::default()).unwrap();
    runtime.block_on(async {
        let (mut near, far) = tcp().await;
        near.write_all(&b"1"[..]).await.0.unwrap();
        let mut reader = BufReader::new(far);
        reader.fill_buf().await.unwrap();
        reader.consume(2);
    });
}
