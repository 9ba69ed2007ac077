//! The I/O traits of other libraries, on both backends.

mod common;

use std::io::{self, IoSlice};

use ringloop::net::UnixStream;
use ringloop::time::timeout;
use ringloop::{spawn, yield_now};

use common::{LONG, on_both, pattern, poll_times, tcp};

const LENGTH: usize = 2_000_003;

mod futures_io {
    use super::*;
    use ::futures_util::io::{
        AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy,
    };

    /// Sends bytes through an echo at the other end, and checks each.
    async fn echo<N, F>(near: N, far: F)
    where
        N: AsyncRead + AsyncWrite + Unpin + 'static,
        F: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let echoing = spawn(async move {
            let (reader, mut writer) = far.split();
            let count = copy(reader, &mut writer).await.unwrap();
            writer.close().await.unwrap();
            // A second time changes nothing.
            writer.close().await.unwrap();
            count
        });
        let (mut reader, mut writer) = near.split();
        let writing = spawn(async move {
            let bytes = pattern(LENGTH);
            let (head, tail) = bytes.split_at(1000);
            let pieces = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
            let count = writer.write_vectored(&pieces).await.unwrap();
            assert!(count > 1000);
            writer.write_all(&bytes[count..]).await.unwrap();
            writer.flush().await.unwrap();
            writer.close().await.unwrap();
        });
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        assert!(received == pattern(LENGTH));
        assert_eq!(reader.read(&mut [0; 8]).await.unwrap(), 0);
        writing.await.unwrap();
        assert_eq!(echoing.await.unwrap(), LENGTH as u64);
    }

    #[test]
    fn streams_carry_every_byte() {
        on_both(|runtime| {
            runtime.block_on(async {
                let (near, far) = tcp().await;
                timeout(LONG, echo(near, far)).await.unwrap();
                let (near, far) = UnixStream::pair().unwrap();
                timeout(LONG, echo(near, far)).await.unwrap();
            });
        });
    }

    #[test]
    fn halves_carry_lines() {
        on_both(|runtime| {
            runtime.block_on(async {
                let (near, far) = UnixStream::pair().unwrap();
                let (_reader, mut writer) = near.into_split();
                let (reader, _writer) = far.into_split();
                let reading = spawn(async move {
                    let mut lines = Vec::new();
                    let mut reader = BufReader::new(reader);
                    let mut line = String::new();
                    while reader.read_line(&mut line).await.unwrap() > 0 {
                        lines.push(std::mem::take(&mut line));
                    }
                    lines
                });
                for piece in [&b"one\ntw"[..], b"o\n", b"three"] {
                    AsyncWriteExt::write_all(&mut writer, piece).await.unwrap();
                    yield_now().await;
                }
                AsyncWriteExt::close(&mut writer).await.unwrap();
                let lines = timeout(LONG, reading).await.unwrap().unwrap();
                assert_eq!(lines, ["one\n", "two\n", "three"]);
            });
        });
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_of_writing_and_none_of_closing() {
        on_both(|runtime| {
            runtime.block_on(async {
                let (mut near, far) = UnixStream::pair().unwrap();
                drop(far);
                yield_now().await;
                let error = AsyncWriteExt::write_all(&mut near, b"x").await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
                AsyncWriteExt::close(&mut near).await.unwrap();
            });
        });
    }
}

mod tokio_io {
    use super::*;
    use ::tokio::io::{
        AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
        copy_bidirectional,
    };

    /// near <-> (relay: far <-> front) <-> back, with the bytes going both ways at once.
    async fn relay<S>(near: S, mut far: S, mut front: S, back: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        assert!(near.is_write_vectored());
        let relaying = spawn(async move { copy_bidirectional(&mut far, &mut front).await });
        let ends = [near, back].map(|end| {
            let (mut reader, mut writer) = tokio::io::split(end);
            let writing = spawn(async move {
                writer.write_all(&pattern(LENGTH)).await.unwrap();
                writer.flush().await.unwrap();
                writer.shutdown().await.unwrap();
                writer
            });
            let reading = spawn(async move {
                let mut received = Vec::new();
                reader.read_to_end(&mut received).await.unwrap();
                received
            });
            (writing, reading)
        });
        for (writing, reading) in ends {
            writing.await.unwrap();
            assert!(reading.await.unwrap() == pattern(LENGTH));
        }
        let counts = relaying.await.unwrap().unwrap();
        assert_eq!(counts, (LENGTH as u64, LENGTH as u64));
    }

    #[test]
    fn streams_carry_every_byte_both_ways() {
        on_both(|runtime| {
            runtime.block_on(async {
                let ((near, far), (front, back)) = (tcp().await, tcp().await);
                timeout(LONG, relay(near, far, front, back)).await.unwrap();
                let (near, far) = UnixStream::pair().unwrap();
                let (front, back) = UnixStream::pair().unwrap();
                timeout(LONG, relay(near, far, front, back)).await.unwrap();
            });
        });
    }

    #[test]
    fn halves_carry_lines() {
        on_both(|runtime| {
            runtime.block_on(async {
                let (near, far) = tcp().await;
                let (reader, mut writer) = near.into_split();
                let (far_reader, far_writer) = far.into_split();
                let sending = spawn(async move {
                    AsyncWriteExt::write_all(&mut writer, b"one\ntwo\n")
                        .await
                        .unwrap();
                    AsyncWriteExt::shutdown(&mut writer).await.unwrap();
                });
                let mut lines = BufReader::new(far_reader).lines();
                assert_eq!(lines.next_line().await.unwrap().unwrap(), "one");
                assert_eq!(lines.next_line().await.unwrap().unwrap(), "two");
                assert!(lines.next_line().await.unwrap().is_none());
                sending.await.unwrap();
                drop((far_writer, reader));
            });
        });
    }

    #[test]
    fn what_is_behind_many_empty_slices_is_written() {
        on_both(|runtime| {
            runtime.block_on(async {
                let (mut near, far) = tcp().await;
                for empty in [0, 63, 64, 3000] {
                    let mut pieces = vec![IoSlice::new(&[]); empty];
                    pieces.push(IoSlice::new(b"x"));
                    assert_eq!(near.write_vectored(&pieces).await.unwrap(), 1, "{empty}");
                }
                let none = [IoSlice::new(&[]); 100];
                assert_eq!(near.write_vectored(&none).await.unwrap(), 0);
                drop(far);
            });
        });
    }

    #[test]
    fn every_future_may_be_dropped_after_any_poll() {
        on_both(|runtime| {
            runtime.block_on(async {
                for polls in 0..4 {
                    let (mut near, mut far) = tcp().await;
                    let mut buffer = [0; 8];
                    drop(poll_times(polls, AsyncReadExt::read(&mut far, &mut buffer)).await);
                    let big = vec![1; 4 << 20];
                    drop(poll_times(polls, AsyncWriteExt::write_all(&mut near, &big)).await);
                    drop(poll_times(polls, AsyncWriteExt::shutdown(&mut near)).await);
                    drop(poll_times(polls, copy_bidirectional(&mut near, &mut far)).await);
                }
            });
        });
    }
}
