//! Reads into buffers of every shape and writes from them, compared with a model: a stream is the sequence of the bytes
//! written.

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
use ringloop::fs::File;
use ringloop::net::{ReadBuffer, UdpSocket, UnixDatagram, UnixStream};
use ringloop::time::timeout;
use ringloop::{Runtime, spawn};
use socket2::SockRef;

/// A write, in pieces of these sizes, and its call.
#[derive(Clone, Debug)]
struct Write {
    sizes: Vec<usize>,
    call: Call,
    /// Whether the buffer returns all of its pieces, or only the first, as is the default.
    shows_all: bool,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    /// By repeated calls.
    Write,
    WriteAll,
    TryWrite,
}

/// The buffer that is read into.
#[derive(Clone, Debug)]
enum Read {
    /// The end of a vector that is not empty, with this much room.
    Vec(usize, usize),
    /// A slice.
    Slice(usize),
    /// Pieces that are filled one after another.
    Pieces(Vec<usize>),
    /// Several slices at once.
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

/// A buffer in pieces to write from.
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

/// A buffer in pieces to read into, which checks how it is used.
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
        // SAFETY: the first `count` bytes of the room were written, which is the function's contract, and they fit, as
        // was checked.
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

impl ReadBuffer for Room {
    fn room(&self) -> usize {
        let left = |index: usize| self.sizes[index] - self.pieces[index].len();
        self.current().map_or(0, left)
    }
}

/// Reads once. Returns the room that there was and what was read, and checks that nothing else was written.
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
                // The kernel takes 1024 at once. It isn't given those without room in front.
                let first = sizes.iter().skip_while(|size| **size == 0);
                (first.take(1024).sum(), bytes)
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

/// Writes everything in order, and reads in the given shapes, in turn, to the end.
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

/// Buffers without room, some of which could grow.
macro_rules! with_each_full_buffer {
    (|$buffer:ident| $read:expr) => {{
        let full = || {
            let mut bytes = Vec::with_capacity(8);
            bytes.resize(bytes.capacity(), 7);
            bytes
        };
        {
            let $buffer = Vec::new();
            let bytes: Vec<u8> = $read;
            assert_eq!(bytes.capacity(), 0);
        }
        {
            let mut given = full();
            let capacity = given.capacity();
            let $buffer = &mut given;
            $read;
            assert_eq!((given.len(), given.capacity()), (capacity, capacity));
        }
        {
            let $buffer = Box::new(BytesMut::new());
            let bytes: Box<BytesMut> = $read;
            assert_eq!(bytes.capacity(), 0);
        }
        {
            let mut given = BytesMut::with_capacity(8);
            given.resize(given.capacity(), 7);
            let capacity = given.capacity();
            let $buffer = (&mut given).limit(100);
            $read;
            assert_eq!((given.len(), given.capacity()), (capacity, capacity));
        }
        {
            let $buffer = &mut [0_u8; 0][..];
            $read;
        }
        {
            let $buffer = Vec::with_capacity(8).limit(0);
            $read;
        }
        {
            // The first piece could grow, and so is never done with.
            let $buffer = full().chain_mut(Vec::with_capacity(8));
            let (first, second) = $read.into_inner();
            assert_eq!((first.len(), first.capacity()), (8, 8));
            assert!(second.is_empty());
        }
        {
            let $buffer = Room {
                pieces: vec![Vec::new(); 2],
                sizes: vec![0; 2],
            };
            $read;
        }
    }};
}

#[test]
fn a_read_into_no_room_takes_nothing_and_makes_no_buffer_grow() {
    macro_rules! check {
        ($near:ident, $far:ident) => {{
            // Whether something waits or not.
            for round in 0..2 {
                with_each_full_buffer!(|buffer| {
                    let (count, buffer) = timeout(LONG, $far.read(buffer)).await.unwrap();
                    assert_eq!(count.unwrap(), 0, "{round}");
                    buffer
                });
                $near.write_all(&b"waits"[..]).await.0.unwrap();
            }
            // No further than there is room.
            let mut bytes = Vec::with_capacity(9);
            bytes.extend_from_slice(b"before");
            let room = bytes.capacity() - 6;
            let (count, bytes) = $far.read(bytes).await;
            let count = count.unwrap();
            assert!((1..=room).contains(&count));
            assert_eq!(bytes, b"beforewaitswaits"[..6 + count]);
            let mut first = [0; 1];
            let pieces = (&mut first[..]).chain_mut(Vec::with_capacity(20));
            let (count, pieces) = $far.read(pieces).await;
            assert_eq!(count.unwrap(), 1);
            let (count, pieces) = $far.read(pieces).await;
            let expected = &b"waitswaits"[bytes.len() - 5..];
            assert_eq!(count.unwrap(), expected.len());
            assert_eq!(pieces.last_ref(), expected);
        }};
    }
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = tcp().await;
            check!(near, far);
            let (mut near, far) = tcp().await;
            let (mut far, _writer) = far.into_split();
            check!(near, far);
            let (mut near, mut far) = UnixStream::pair().unwrap();
            check!(near, far);
        });
    });
}

#[test]
fn a_datagram_is_received_into_the_room_that_there_is() {
    macro_rules! check {
        ($near:ident, $far:ident) => {{
            with_each_full_buffer!(|buffer| {
                $near.send(&b"lost"[..]).await.0.unwrap();
                let (count, buffer) = timeout(LONG, $far.recv(buffer)).await.unwrap();
                assert_eq!(count.unwrap(), 0);
                buffer
            });
            with_each_full_buffer!(|buffer| {
                $near.send(&b"lost"[..]).await.0.unwrap();
                let (result, buffer) = timeout(LONG, $far.recv_from(buffer)).await.unwrap();
                assert_eq!(result.unwrap().0, 0);
                buffer
            });
            $near.send(&b"one"[..]).await.0.unwrap();
            let mut bytes = Vec::with_capacity(9);
            bytes.extend_from_slice(b"before a");
            let room = bytes.capacity() - bytes.len();
            let (count, bytes) = $far.recv(bytes).await;
            assert_eq!(count.unwrap(), room.min(3));
            assert_eq!(bytes, b"before aone"[..8 + room.min(3)]);
        }};
    }
    on_both(|runtime| {
        runtime.block_on(async {
            let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            near.connect(far.local_addr().unwrap()).await.unwrap();
            check!(near, far);
            let (near, far) = UnixDatagram::pair().unwrap();
            check!(near, far);
        });
    });
}

#[test]
fn a_file_is_read_into_the_room_that_there_is() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut file = File::open("/etc/passwd").await.unwrap();
            let full = vec![7; 4];
            for bytes in [Vec::new(), full] {
                let (capacity, length) = (bytes.capacity(), bytes.len());
                let (count, bytes) = file.read(bytes).await;
                assert_eq!(count.unwrap(), 0);
                let (count, bytes) = file.read_at(bytes, 1).await;
                assert_eq!(count.unwrap(), 0);
                assert_eq!((bytes.capacity(), bytes.len()), (capacity, length));
            }
            // Nothing was taken.
            let (count, bytes) = file.read(Vec::with_capacity(4)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"root"[..]));
        });
    });
}
