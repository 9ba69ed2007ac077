//! Streams: reading, writing, and their halves.

use std::io::IoSliceMut;
use std::net::Shutdown;

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::join;
use ringloop::net::{BufReader, TcpStream, UnixStream};
use ringloop::spawn;

use crate::cut::at_every_poll;
use crate::memory::{MARKED, buffer};
use crate::sockets::{
    BYTES, Rest, a_turn, pieces, read_buffers, read_in_place, receive_slowly, tcp, unix,
    write_chunks, write_once, write_vectored,
};

/// Reads in a future that is dropped somewhere in the stream, and then in another one to the end: each byte arrives
/// once. `$reader` makes what is read from out of a stream.
macro_rules! reading {
    ($name:ident, $pair:expr, $reader:expr, |$from:ident, $received:ident| $read:expr) => {
        #[test]
        fn $name() {
            at_every_poll(async |cut| {
                let (near, mut far) = $pair;
                let sending = spawn(async move {
                    for piece in pieces(&BYTES) {
                        far.write_all(piece).await.0.unwrap();
                        a_turn().await;
                    }
                    far.shutdown(Shutdown::Write).unwrap();
                });
                #[allow(unused_mut, reason = "a half of a stream is a part of what is made")]
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

macro_rules! read_pieces {
    ($from:ident, $received:ident) => {{
        let (mut first, mut second) = (buffer(), buffer());
        first.resize(100, 0);
        second.resize(MARKED, 0);
        let mut pieces = [&mut first[..], &mut second].map(IoSliceMut::new);
        let count = $from.read_vectored(&mut pieces).await.unwrap();
        first.extend_from_slice(&second);
        $received.extend_from_slice(&first[..count]);
        count
    }};
}

reading!(
    reading_from_tcp,
    tcp().await,
    |near| (near,),
    |from, received| read_buffers!(from, received)
);
reading!(
    reading_from_unix,
    unix(),
    |near| (near,),
    |from, received| read_buffers!(from, received)
);
reading!(
    reading_pieces_from_tcp,
    tcp().await,
    |near| (near,),
    |from, received| read_pieces!(from, received)
);
reading!(
    reading_pieces_from_a_half_of_unix,
    unix(),
    UnixStream::into_split,
    |from, received| read_pieces!(from, received)
);
reading!(
    reading_in_place_from_tcp,
    tcp().await,
    |near| (near,),
    |from, received| read_in_place!(from, received)
);
reading!(
    reading_in_place_from_unix,
    unix(),
    |near| (near,),
    |from, received| read_in_place!(from, received)
);
reading!(
    reading_from_a_half_of_tcp,
    tcp().await,
    TcpStream::into_split,
    |from, received| read_buffers!(from, received)
);
reading!(
    reading_in_place_from_a_half_of_unix,
    unix(),
    UnixStream::into_split,
    |from, received| { read_in_place!(from, received) }
);

/// Writes in a future that is dropped somewhere, and then the rest as the buffer has it: each byte arrives once.
macro_rules! writing {
    ($name:ident, $pair:expr, $writer:expr, |$to:ident, $rest:ident| $write:expr) => {
        #[test]
        fn $name() {
            at_every_poll(async |cut| {
                let (near, mut far) = $pair;
                let receiving = receive_slowly!(far);
                let mut whole = $writer(near);
                let mut $rest = Rest::new(&BYTES);
                let $to = &mut whole.0;
                let writing = async { while $write {} };
                cut.run(writing).await;
                while $write {}
                drop(whole);
                assert!(
                    receiving.await.unwrap() == *BYTES,
                    "bytes are lost or doubled"
                );
            });
        }
    };
}

writing!(
    writing_to_tcp,
    tcp().await,
    |near| (near,),
    |to, rest| write_once!(to, rest)
);
writing!(
    writing_to_unix,
    unix(),
    |near| (near,),
    |to, rest| write_once!(to, rest)
);
writing!(
    writing_all_to_tcp,
    tcp().await,
    |near| (near,),
    |to, rest| write_chunks!(to, rest)
);
writing!(
    writing_all_to_unix,
    unix(),
    |near| (near,),
    |to, rest| write_chunks!(to, rest)
);
writing!(
    writing_pieces_to_tcp,
    tcp().await,
    |near| (near,),
    |to, rest| write_vectored!(to, rest)
);
writing!(
    writing_pieces_to_unix,
    unix(),
    |near| (near,),
    |to, rest| write_vectored!(to, rest)
);
writing!(
    writing_to_a_half_of_tcp,
    tcp().await,
    |near: TcpStream| {
        let (reader, writer) = near.into_split();
        (writer, reader)
    },
    |to, rest| write_once!(to, rest)
);
writing!(
    writing_all_to_a_half_of_unix,
    unix(),
    |near: UnixStream| {
        let (reader, writer) = near.into_split();
        (writer, reader)
    },
    |to, rest| write_vectored!(to, rest)
);

/// A body that is lent to the kernel, with a watched buffer that shows for how long.
struct Lent {
    bytes: &'static [u8],
    _watched: Vec<u8>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

/// The bytes that were sent without a copy are a beginning of the body, and come before what is written next.
#[test]
fn writing_without_a_copy() {
    at_every_poll(async |cut| {
        let (mut near, mut far) = tcp().await;
        let receiving = spawn(async move {
            let mut received = Vec::new();
            while read_buffers!(far, received) > 0 {
                // Slower than the writer.
                a_turn().await;
            }
            received
        });
        let body = Bytes::from_owner(Lent {
            bytes: &BYTES,
            _watched: buffer(),
        });
        let whole = async {
            near.write_all(&b"before"[..]).await.0.unwrap();
            near.write_all_zero_copy(body.slice(..100_000))
                .await
                .0
                .unwrap();
            near.write_all_zero_copy(body.slice(100_000..))
                .await
                .0
                .unwrap();
        };
        let is_over = cut.run(whole).await.is_some();
        near.write_all(&b"behind"[..]).await.0.unwrap();
        drop((near, body));
        let received = receiving.await.unwrap();
        let sent = received.strip_suffix(b"behind").expect("the last words");
        let expected = [b"before", &BYTES[..]].concat();
        assert!(expected.starts_with(sent), "bytes are lost or doubled");
        assert!(!is_over || sent.len() == expected.len());
    });
}

/// Two tasks on the halves of one connection: the future of one is dropped, the other continues.
#[test]
fn a_half_whose_other_half_is_dropped_goes_on() {
    at_every_poll(async |cut| {
        let (near, far) = tcp().await;
        let (mut far_reader, mut far_writer) = far.into_split();
        let echo = spawn(async move {
            loop {
                let (count, filled) = far_reader.read(buffer()).await;
                if count.unwrap() == 0 {
                    return;
                }
                if far_writer.write_all(&filled[..]).await.0.is_err() {
                    return;
                }
            }
        });
        let (mut reader, mut writer) = near.into_split();
        let writing = spawn(async move {
            writer.write_all(&BYTES[..]).await.0.unwrap();
        });
        let mut received = Vec::new();
        let part = async { while read_buffers!(reader, received) > 0 {} };
        cut.run(part).await;
        while read_in_place!(reader, received) > 0 {}
        assert!(received == *BYTES);
        writing.await.unwrap();
        echo.await.unwrap();
    });
}

/// Lines arrive whole and once, whenever a future that reads them is dropped.
#[test]
fn reading_lines() {
    at_every_poll(async |cut| {
        let (near, mut far) = unix();
        let sending = spawn(async move {
            for number in 0..40 {
                for piece in ["line ", &number.to_string(), "\n"] {
                    far.write_all(piece.as_bytes()).await.0.unwrap();
                    a_turn().await;
                }
            }
        });
        let mut lines = BufReader::with_capacity(5, near).lines();
        let mut next = 0;
        let mut reading = async || {
            while let Some(line) = lines.next_line().await.unwrap() {
                assert_eq!(line, format!("line {next}"));
                next += 1;
            }
        };
        cut.run(reading()).await;
        reading().await;
        assert_eq!(next, 40);
        sending.await.unwrap();
    });
}
/// Waits for the ends of a connection, beside another future that does. Whichever is dropped, the other one is told.
macro_rules! waiting_for_the_end {
    ($name:ident, $pair:expr) => {
        #[test]
        fn $name() {
            at_every_poll(async |cut| {
                let (mut near, mut far) = $pair;
                let (closed, ended) = (near.closed(), near.read_closed());
                let others = spawn(join(near.closed(), near.read_closed()));
                let ending = spawn(async move {
                    a_turn().await;
                    far.write_all(&b"last"[..]).await.0.unwrap();
                    far.shutdown(Shutdown::Write).unwrap();
                    a_turn().await;
                    far
                });
                let waiting = async {
                    ended.await.unwrap();
                    near.shutdown(Shutdown::Write).unwrap();
                    closed.await.unwrap();
                };
                cut.run(waiting).await;
                near.read_closed().await.unwrap();
                let (count, bytes) = near.read(Vec::with_capacity(8)).await;
                assert_eq!((count.unwrap(), &bytes[..]), (4, &b"last"[..]));
                let far = ending.await.unwrap();
                // The direction may be closed already.
                let _ = near.shutdown(Shutdown::Write);
                let (closed, ended) = others.await.unwrap();
                assert!(closed.is_ok() && ended.is_ok());
                drop(far);
            });
        }
    };
}

waiting_for_the_end!(waiting_for_the_end_of_tcp, tcp().await);
waiting_for_the_end!(waiting_for_the_end_of_unix, unix());
