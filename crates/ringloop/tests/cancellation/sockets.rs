//! Streams whose reads and writes wait often, and how scenarios read and write them.

use std::cell::Cell;
use std::io::{self};
use std::sync::LazyLock;
use std::time::Duration;

use bytes::{Buf, Bytes};
use ringloop::net::{TcpStream, UnixStream};
use ringloop::time::sleep;
use socket2::SockRef;

use crate::common::{self, pattern};
use crate::memory::{MARKED, buffer};

/// More than the kernel buffers for a stream.
const LENGTH: usize = 300_000;

pub(crate) static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(LENGTH));

/// Lets the kernel and other tasks work.
pub(crate) async fn a_turn() {
    sleep(Duration::ZERO).await;
}

pub(crate) async fn tcp() -> (TcpStream, TcpStream) {
    let (near, far) = common::tcp().await;
    // So that writing has to wait often.
    for stream in [&near, &far] {
        SockRef::from(stream)
            .set_send_buffer_size(32 << 10)
            .unwrap();
        SockRef::from(stream)
            .set_recv_buffer_size(32 << 10)
            .unwrap();
    }
    (near, far)
}

pub(crate) fn unix() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    for stream in [&near, &far] {
        SockRef::from(stream).set_send_buffer_size(8 << 10).unwrap();
    }
    (near, far)
}

pub(crate) fn abstract_name() -> String {
    thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
    COUNT.set(COUNT.get() + 1);
    format!(
        "\0ringloop-cancellation-{}-{:?}-{}",
        std::process::id(),
        std::thread::current().id(),
        COUNT.get()
    )
}

/// The pieces in which a stream's bytes are sent.
pub(crate) fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    let mut size = 1;
    std::iter::from_fn(move || {
        let (piece, others) = rest.split_at(size.min(rest.len()));
        rest = others;
        size = size * 3 % 90_001;
        (!piece.is_empty()).then_some(piece)
    })
}

macro_rules! read_buffers {
    ($from:ident, $received:ident) => {{
        let (count, filled) = $from.read(buffer()).await;
        assert_eq!(*count.as_ref().unwrap(), filled.len());
        $received.extend_from_slice(&filled);
        filled.len()
    }};
}

macro_rules! read_in_place {
    ($from:ident, $received:ident) => {
        $from
            .read_with(|bytes, _| {
                $received.extend_from_slice(bytes);
                bytes.len()
            })
            .await
            .unwrap()
    };
}

/// A task that receives everything, more slowly than it is written.
macro_rules! receive_slowly {
    ($from:ident) => {
        spawn(async move {
            let mut received = Vec::new();
            loop {
                let (count, filled) = $from.read(buffer().limit(10_000)).await;
                received.extend_from_slice(filled.get_ref());
                if count.unwrap() == 0 {
                    return received;
                }
                a_turn().await;
            }
        })
    };
}

/// The bytes that were not written yet: a chain of watched buffers, as a program might have them.
pub(crate) struct Rest {
    chunks: Vec<Bytes>,
}

impl Rest {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let chunks = bytes.chunks(MARKED).map(|chunk| {
            let mut copy = buffer();
            copy.extend_from_slice(chunk);
            Bytes::from(copy)
        });
        Self {
            chunks: chunks.rev().collect(),
        }
    }

    /// The next chunk, to be written alone.
    pub(crate) fn first(&mut self) -> Option<&mut Bytes> {
        while self.chunks.last().is_some_and(Bytes::is_empty) {
            self.chunks.pop();
        }
        self.chunks.last_mut()
    }
}

impl Buf for Rest {
    fn remaining(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.last().map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, pieces: &mut [io::IoSlice<'a>]) -> usize {
        let chunks = self.chunks.iter().rev().filter(|chunk| !chunk.is_empty());
        pieces
            .iter_mut()
            .zip(chunks)
            .map(|(piece, chunk)| *piece = io::IoSlice::new(chunk))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(chunk) = self.chunks.last_mut() {
            let step = count.min(chunk.len());
            chunk.advance(step);
            count -= step;
            if !chunk.is_empty() {
                return;
            }
            self.chunks.pop();
        }
        assert_eq!(count, 0, "more was written than there was");
    }
}

macro_rules! write_once {
    ($to:ident, $rest:ident) => {
        match $rest.first() {
            None => false,
            Some(chunk) => {
                let before = chunk.len();
                let (count, chunk) = $to.write(chunk).await;
                assert_eq!(count.unwrap(), before - chunk.len());
                true
            }
        }
    };
}

macro_rules! write_chunks {
    ($to:ident, $rest:ident) => {
        match $rest.first() {
            None => false,
            Some(chunk) => {
                $to.write_all(chunk).await.0.unwrap();
                true
            }
        }
    };
}

macro_rules! write_vectored {
    ($to:ident, $rest:ident) => {
        $rest.has_remaining() && {
            $to.write_all(&mut $rest).await.0.unwrap();
            true
        }
    };
}

pub(crate) use {
    read_buffers, read_in_place, receive_slowly, write_chunks, write_once, write_vectored,
};
