//! Reads into buffers of every shape, and writes from them, against a model: a stream is the bytes that were written, one
//! after another.

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use common::{LONG, on_both, pattern, tcp};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ringloop::net::UnixStream;
use ringloop::time::timeout;
use ringloop::{Runtime, spawn};
use socket2::SockRef;

/// What is written, in pieces of these sizes, and by which call.
#[derive(Clone, Debug)]
struct Write {
    sizes: Vec<usize>,
    call: Call,
    /// Whether the buffer shows all of its pieces, or the first alone, as is the default.
    shows_all: bool,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    /// Again and again.
    Write,
    WriteAll,
    TryWrite,
}

/// Where a read goes to.
#[derive(Clone, Debug)]
enum Read {
    /// To the end of a vector that has something already, into no more than so much room.
    Vec(usize, usize),
    /// Into a slice.
    Slice(usize),
    /// Into pieces of which a read sees one after another.
    Pieces(Vec<usize>),
    /// Into several at once.
    Vectored(Vec<usize>),
    BytesMut(usize),
    InPlace,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..20_usize, 1..3000_usize, 1..40_000_usize]
}

fn write() -> impl Strategy<Value = Write> {
    let call = prop_oneof![
        Just(Call::Write),
        Just(Call::WriteAll),
        Just(Call::TryWrite)
    ];
    // More pieces than one system call takes, too.
    let sizes = prop_oneof![vec(size(), 0..6), vec(0..9_usize, 60..140)];
    (sizes, call, any::<bool>()).prop_map(|(sizes, call, shows_all)| Write {
        sizes,
        call,
        shows_all,
    })
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        (0..50_usize, size()).prop_map(|(before, room)| Read::Vec(before, room)),
        size().prop_map(Read::Slice),
        vec(size(), 1..4).prop_map(Read::Pieces),
        vec(size(), 0..5).prop_map(Read::Vectored),
        // More than the kernel takes at once.
        vec(0..3_usize, 1000..1100).prop_map(Read::Vectored),
        size().prop_map(Read::BytesMut),
        Just(Read::InPlace),
    ]
}

/// Pieces to be written.
struct Pieces {
    pieces: VecDeque<Bytes>,
    shows_all: bool,
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        let first = self.pieces.iter().find(|piece| !piece.is_empty());
        first.map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let count = if self.shows_all { usize::MAX } else { 1 };
        let pieces = self.pieces.iter().filter(|piece| !piece.is_empty());
        slices
            .iter_mut()
            .zip(pieces.take(count))
            .map(|(slice, piece)| *slice = IoSlice::new(piece))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let first = self.pieces.front_mut().expect("more than there was");
            let step = count.min(first.len());
            first.advance(step);
            count -= step;
            if first.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

/// Pieces to be read into, which look at what is done with them.
struct Room {
    pieces: Vec<Vec<u8>>,
    sizes: Vec<usize>,
}

impl Room {
    fn current(&self) -> Option<usize> {
        (0..self.sizes.len()).find(|index| self.pieces[*index].len() < self.sizes[*index])
    }
}

// SAFETY: what is advanced over is what `chunk_mut` has given out, within the capacity of a vector.
#[allow(unsafe_code)]
unsafe impl BufMut for Room {
    fn remaining_mut(&self) -> usize {
        let filled: usize = self.pieces.iter().map(Vec::len).sum();
        self.sizes.iter().sum::<usize>() - filled
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let index = self.current().expect("room");
        let filled = self.pieces[index].len() + count;
        assert!(filled <= self.sizes[index], "more than there was room for");
        // SAFETY: the caller's: so many bytes were written.
        unsafe { self.pieces[index].set_len(filled) };
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        match self.current() {
            None => UninitSlice::new(&mut []),
            Some(index) => {
                let room = self.sizes[index] - self.pieces[index].len();
                let spare = self.pieces[index].spare_capacity_mut();
                UninitSlice::uninit(&mut spare[..room])
            }
        }
    }
}

/// Reads once. Gives the room that there was and what came, and looks that nothing else was touched.
macro_rules! read_once {
    ($stream:ident, $read:expr) => {
        match $read {
            Read::Vec(before, room) => {
                let mut bytes = Vec::with_capacity(before + room);
                bytes.resize(before, 0xee);
                let (count, bytes) = $stream.read(bytes.limit(room)).await;
                let bytes = bytes.into_inner();
                assert!(bytes[..before].iter().all(|byte| *byte == 0xee));
                assert_eq!(count.unwrap(), bytes.len() - before);
                (room, bytes[before..].to_vec())
            }
            Read::Slice(room) => {
                let mut bytes = vec![0xee; room];
                let (count, rest) = $stream.read(&mut bytes[..]).await;
                let (count, left) = (count.unwrap(), rest.len());
                assert_eq!(count + left, room);
                assert!(bytes[count..].iter().all(|byte| *byte == 0xee));
                bytes.truncate(count);
                (room, bytes)
            }
            Read::Pieces(sizes) => {
                let pieces = sizes.iter().map(|size| Vec::with_capacity(*size)).collect();
                let room = sizes.iter().sum();
                let (count, filled) = $stream.read(Room { pieces, sizes }).await;
                let bytes = filled.pieces.concat();
                assert_eq!(count.unwrap(), bytes.len());
                (room, bytes)
            }
            Read::Vectored(sizes) => {
                let mut pieces: Vec<_> = sizes.iter().map(|size| vec![0xee; *size]).collect();
                let mut slices: Vec<_> = pieces
                    .iter_mut()
                    .map(|piece| IoSliceMut::new(piece))
                    .collect();
                let count = $stream.read_vectored(&mut slices).await.unwrap();
                let mut bytes = pieces.concat();
                assert!(bytes[count..].iter().all(|byte| *byte == 0xee));
                bytes.truncate(count);
                // The kernel takes 1024 at once.
                (sizes.iter().take(1024).sum(), bytes)
            }
            Read::BytesMut(room) => {
                let (count, bytes) = $stream
                    .read(BytesMut::with_capacity(room).limit(room))
                    .await;
                assert_eq!(count.unwrap(), bytes.get_ref().len());
                (room, bytes.into_inner().to_vec())
            }
            Read::InPlace => {
                let bytes = $stream.read_with(|bytes, _| bytes.to_vec()).await.unwrap();
                (usize::MAX, bytes)
            }
        }
    };
}

/// Writes all of it, one after another, and reads in the shapes that are given, in turn, to the end.
macro_rules! talk {
    ($near:ident, $far:ident, $writes:expr, $reads:expr) => {{
        let total: usize = $writes.iter().flat_map(|write| &write.sizes).sum();
        let expected = pattern(total);
        let mut rest = Bytes::from(expected.clone());
        let writes = $writes.to_vec();
        let writing = spawn(async move {
            for Write {
                sizes,
                call,
                shows_all,
            } in writes
            {
                let pieces = sizes.iter().map(|size| rest.split_to(*size)).collect();
                let mut pieces = Pieces { pieces, shows_all };
                if let Call::TryWrite = call {
                    let first = pieces.chunk();
                    match $near.try_write(first) {
                        Ok(count) => pieces.advance(count),
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                }
                while matches!(call, Call::Write) && pieces.has_remaining() {
                    let before = pieces.remaining();
                    let (count, _) = $near.write(&mut pieces).await;
                    let count = count.unwrap();
                    assert!(count > 0);
                    assert_eq!(pieces.remaining(), before - count);
                }
                let (result, pieces) = $near.write_all(pieces).await;
                result.unwrap();
                assert!(!pieces.has_remaining());
            }
        });
        let mut received = Vec::new();
        for read in $reads.iter().cycle() {
            let (room, bytes): (usize, Vec<u8>) = read_once!($far, read.clone());
            assert!(bytes.len() <= room);
            if bytes.is_empty() && room > 0 {
                break;
            }
            received.extend_from_slice(&bytes);
        }
        writing.await.unwrap();
        assert!(received == expected, "the bytes differ");
    }};
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "a closure that is written where it is passed"
)]
fn run(runtime: &mut Runtime, body: impl AsyncFn(&[Write], &[Read])) {
    let config = Config {
        // Shared by both backends and both families.
        cases: Config::default().cases.div_ceil(8),
        failure_persistence: None,
        ..Config::default()
    };
    let cases = (vec(write(), 0..12), vec(read(), 1..6));
    let runtime = RefCell::new(runtime);
    TestRunner::new(config)
        .run(&cases, |(writes, mut reads)| {
            // Some read must get on.
            reads.push(Read::Vec(0, 10_000));
            runtime
                .borrow_mut()
                .block_on(timeout(LONG, body(&writes, &reads)))
                .expect("a hang");
            Ok(())
        })
        .unwrap();
}

#[test]
fn buffers_of_every_shape_over_tcp() {
    on_both(|runtime| {
        run(runtime, async |writes, reads| {
            let (mut near, mut far) = tcp().await;
            // So that writes are partial.
            SockRef::from(&near).set_send_buffer_size(16 << 10).unwrap();
            SockRef::from(&far).set_recv_buffer_size(16 << 10).unwrap();
            talk!(near, far, writes, reads);
        });
    });
}

#[test]
fn buffers_of_every_shape_over_unix() {
    on_both(|runtime| {
        run(runtime, async |writes, reads| {
            let (mut near, mut far) = UnixStream::pair().unwrap();
            SockRef::from(&near).set_send_buffer_size(8 << 10).unwrap();
            talk!(near, far, writes, reads);
        });
    });
}
