//! Reading into several buffers and writing from several, on both backends.

mod common;

use std::io::IoSliceMut;

use bytes::{Buf, Bytes};
use common::{on_both, pattern, poll_times, tcp};
use ringloop::net::UnixStream;
use ringloop::{spawn, yield_now};

/// Runs the body of a test on a pair of TCP connections and on one of Unix sockets.
macro_rules! on_tcp_and_unix {
    ($near:ident, $far:ident => $body:block) => {
        on_both(|runtime| {
            runtime.block_on(async {
                #[allow(
                    unused_mut,
                    reason = "not every test writes at one end and reads at the other"
                )]
                let (mut $near, mut $far) = tcp().await;
                $body
            });
            runtime.block_on(async {
                #[allow(unused_mut, reason = "as above")]
                let (mut $near, mut $far) = UnixStream::pair().unwrap();
                $body
            });
        });
    };
}

#[test]
fn what_is_written_in_pieces_is_read_into_pieces() {
    on_tcp_and_unix!(near, far => {
        let whole = pattern(1_000_000);
        let expected = whole.clone();
        let writing = spawn(async move {
            let (first, rest) = whole.split_at(10);
            let (second, third) = rest.split_at(300_000);
            let pieces = Bytes::copy_from_slice(first).chain(second).chain(third);
            near.write_all(pieces).await.0.unwrap();
        });
        let mut received = Vec::new();
        let (mut short, mut none, mut long) = ([0; 7], [0; 0], vec![0; 50_000]);
        loop {
            let mut buffers = [&mut short[..], &mut none, &mut long].map(IoSliceMut::new);
            let count = far.read_vectored(&mut buffers).await.unwrap();
            if count == 0 {
                break;
            }
            let first = count.min(short.len());
            received.extend_from_slice(&short[..first]);
            received.extend_from_slice(&long[..count - first]);
        }
        writing.await.unwrap();
        assert!(received == expected, "the bytes differ");
    });
}

#[test]
fn more_buffers_than_the_kernel_takes_are_filled_as_far_as_it_goes() {
    on_tcp_and_unix!(near, far => {
        near.write_all(&pattern(3000)[..]).await.0.unwrap();
        let mut received = Vec::new();
        while received.len() < 3000 {
            let mut memory = vec![0; 2000];
            let mut buffers: Vec<_> = memory.chunks_mut(1).map(IoSliceMut::new).collect();
            let count = far.read_vectored(&mut buffers).await.unwrap();
            assert!((1..=1024).contains(&count));
            received.extend_from_slice(&memory[..count]);
        }
        assert_eq!(received, pattern(3000));
        assert_eq!(far.read_vectored(&mut []).await.unwrap(), 0);
        assert_eq!(far.read_vectored(&mut [IoSliceMut::new(&mut [])]).await.unwrap(), 0);
    });
}

#[test]
fn a_read_that_is_dropped_takes_nothing() {
    on_tcp_and_unix!(near, far => {
        for polls in 0..4 {
            let mut byte = [0; 1];
            let reading = poll_times(polls, far.read_vectored(&mut [IoSliceMut::new(&mut byte)])).await;
            assert!(reading.is_none());
        }
        near.write_all(&b"kept"[..]).await.0.unwrap();
        let (mut reader, writer) = far.into_split();
        let (mut one, mut other) = ([0; 2], [0; 8]);
        let reading = spawn(async move {
            let mut buffers = [&mut one[..], &mut other[..]].map(IoSliceMut::new);
            let count = reader.read_vectored(&mut buffers).await.unwrap();
            (count, one, other)
        });
        yield_now().await;
        let (count, one, other) = reading.await.unwrap();
        assert_eq!((count, &one, &other[..2]), (4, b"ke", &b"pt"[..]));
        drop(writer);
    });
}

#[test]
fn room_behind_many_slices_without_any_is_used() {
    on_tcp_and_unix!(near, far => {
        near.write_all(&b"behind"[..]).await.0.unwrap();
        for empty in [1, 1023, 1024, 3000] {
            let mut room = [0; 1];
            let mut buffers: Vec<_> = (0..empty).map(|_| IoSliceMut::new(&mut [])).collect();
            buffers.push(IoSliceMut::new(&mut room));
            assert_eq!(far.read_vectored(&mut buffers).await.unwrap(), 1, "{empty}");
        }
        let mut none: Vec<_> = (0..2000).map(|_| IoSliceMut::new(&mut [])).collect();
        assert_eq!(far.read_vectored(&mut none).await.unwrap(), 0);
        assert_eq!(far.read(Vec::with_capacity(8)).await.1, b"nd");
    });
}
