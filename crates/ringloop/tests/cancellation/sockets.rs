//! Streams, listeners and datagrams.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSliceMut};
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use ringloop::net::{
    TcpConnectOptions, TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream,
};
use ringloop::spawn;
use ringloop::time::{sleep, timeout};
use socket2::SockRef;

use crate::common::{self, pattern};
use crate::cut::at_every_poll;
use crate::memory::{MARKED, buffer};

/// More than the kernel keeps of a stream.
const LENGTH: usize = 300_000;

pub(crate) static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(LENGTH));

/// Lets the kernel work, too, and whoever waits for it.
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

/// Reading, in a future that is dropped somewhere in the stream, and then in another one to the end: each byte comes
/// once. `$reader` makes what is read from of a stream.
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

pub(crate) use read_in_place;

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

/// A task that receives all there is, more slowly than it is written.
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

/// Writing, in a future that is dropped somewhere, and then the rest as the buffer has it: each byte arrives once.
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

/// What was not written yet: a few watched buffers in a chain, as a program might have them.
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

    /// The next chunk, to be written by itself.
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

pub(crate) use {receive_slowly, write_chunks, write_once, write_vectored};

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

/// A body that is lent to the kernel, and something that is watched to tell for how long.
struct Lent {
    bytes: &'static [u8],
    _watched: Vec<u8>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

/// What was sent without a copy is a part of the body from its beginning, and comes before what is written next.
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

#[test]
fn accepting_from_tcp_loses_no_connection() {
    at_every_poll(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connecting = spawn(async move {
            // After the first poll.
            a_turn().await;
            let mut clients = Vec::new();
            for index in 0..3_u8 {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(&[index][..]).await.0.unwrap();
                clients.push(client);
                a_turn().await;
            }
            clients
        });
        let accepted = RefCell::new(Vec::new());
        let accepting = async || {
            while accepted.borrow().len() < 3 {
                let (stream, peer) = listener.accept().await.unwrap();
                accepted.borrow_mut().push((stream, peer));
            }
        };
        cut.run(accepting()).await;
        accepting().await;
        let clients = connecting.await.unwrap();
        for (index, (stream, peer)) in accepted.into_inner().iter_mut().enumerate() {
            assert_eq!(*peer, clients[index].local_addr().unwrap());
            let (count, bytes) = stream.read(Vec::with_capacity(2)).await;
            assert_eq!((count.unwrap(), bytes), (1, vec![index as u8]));
        }
    });
}

#[test]
fn accepting_from_unix_loses_no_connection() {
    at_every_poll(async |cut| {
        let address = abstract_name();
        let listener = UnixListener::bind(&address).unwrap();
        let connecting = spawn(async move {
            a_turn().await;
            let mut clients = Vec::new();
            for index in 0..3_u8 {
                let mut client = UnixStream::connect(&address).await.unwrap();
                client.write_all(&[index][..]).await.0.unwrap();
                clients.push(client);
                a_turn().await;
            }
            clients
        });
        let accepted = RefCell::new(Vec::new());
        let accepting = async || {
            while accepted.borrow().len() < 3 {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.borrow_mut().push(stream);
            }
        };
        cut.run(accepting()).await;
        accepting().await;
        let _clients = connecting.await.unwrap();
        for (index, stream) in accepted.into_inner().iter_mut().enumerate() {
            let (count, bytes) = stream.read(Vec::with_capacity(2)).await;
            assert_eq!((count.unwrap(), bytes), (1, vec![index as u8]));
        }
    });
}

/// The listener is dropped with what it has accepted ahead, which somebody waits at the other end of.
#[test]
fn connections_that_nobody_took_are_closed_with_their_listener() {
    at_every_poll(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connecting = spawn(async move {
            a_turn().await;
            let mut clients = Vec::new();
            // Those that come when nobody listens any more are refused.
            while clients.len() < 3
                && let Ok(client) = TcpStream::connect(address).await
            {
                clients.push(client);
            }
            clients
        });
        let accepting = async move {
            let mut accepted = Vec::new();
            while accepted.len() < 3 {
                accepted.push(listener.accept().await.unwrap());
            }
        };
        cut.run(accepting).await;
        for mut client in connecting.await.unwrap() {
            let (count, _) = client.read(buffer()).await;
            assert!(matches!(count, Ok(0) | Err(_)), "{count:?}");
        }
    });
}

fn abstract_name() -> String {
    thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
    COUNT.set(COUNT.get() + 1);
    format!(
        "\0ringloop-cancellation-{}-{:?}-{}",
        std::process::id(),
        std::thread::current().id(),
        COUNT.get()
    )
}

#[test]
fn connecting_by_name() {
    at_every_poll(async |cut| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("localhost:{}", listener.local_addr().unwrap().port());
        let stream = cut.run(TcpStream::connect(&name)).await;
        let is_connected = stream.is_some();
        if let Some(stream) = stream {
            stream.unwrap().write_all(&b"hello"[..]).await.0.unwrap();
        }
        // If one that was dropped came so far as to connect, it has been closed.
        let accepting = async {
            let (mut accepted, _) = listener.accept().await.unwrap();
            let (count, bytes) = accepted.read(buffer()).await;
            assert_eq!(
                count.unwrap(),
                if is_connected { 5 } else { 0 },
                "{bytes:?}"
            );
        };
        if is_connected {
            accepting.await;
        } else {
            let _ = timeout(Duration::from_micros(300), accepting).await;
        }
    });
}

/// A listener whose backlog is full: it does not answer.
async fn full() -> (socket2::Socket, std::net::SocketAddr, TcpStream) {
    let plain = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    plain.bind(&any.into()).unwrap();
    plain.listen(0).unwrap();
    let address = plain.local_addr().unwrap().as_socket().unwrap();
    let filler = TcpStream::connect(address).await.unwrap();
    (plain, address, filler)
}

/// Two addresses do not answer, and one refuses, before the one that does.
#[test]
fn connecting_to_a_host_of_several_addresses() {
    at_every_poll(async |cut| {
        let holes = [full().await, full().await];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let refusing: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
        let addresses = [holes[0].1, refusing, holes[1].1, good];
        let mut options = TcpConnectOptions::default();
        options.attempt_delay = Duration::from_micros(100);
        let connecting = TcpStream::connect_with(&addresses[..], &options);
        if let Some(stream) = cut.run(connecting).await {
            assert_eq!(stream.unwrap().peer_addr().unwrap(), good);
        }
    });
}

/// A connection that has to wait: the listener's backlog is full, and the kernel tries again after a second.
#[test]
fn connecting_to_a_backlog_that_is_full() {
    at_every_poll(async |cut| {
        let (plain, address, filler) = full().await;
        let room = spawn(async move {
            a_turn().await;
            let accepted = plain.accept().unwrap();
            (plain, accepted, filler)
        });
        if let Some(stream) = cut.run(TcpStream::connect(address)).await {
            assert_eq!(stream.unwrap().peer_addr().unwrap(), address);
        }
        drop(room.await.unwrap());
    });
}

#[test]
fn connecting_to_a_unix_backlog_that_is_full() {
    at_every_poll(async |cut| {
        let plain =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let address = abstract_name();
        plain
            .bind(&socket2::SockAddr::unix(&address).unwrap())
            .unwrap();
        plain.listen(0).unwrap();
        let filler = UnixStream::connect(&address).await.unwrap();
        let room = spawn(async move {
            sleep(Duration::from_millis(3)).await;
            let accepted = plain.accept().unwrap();
            (plain, accepted, filler)
        });
        if let Some(stream) = cut.run(UnixStream::connect(&address)).await {
            stream.unwrap();
        }
        drop(room.await.unwrap());
    });
}

const DATAGRAMS: usize = 40;

/// A datagram that tells which one it is.
fn datagram(index: usize) -> Vec<u8> {
    let mut bytes = buffer();
    bytes.resize(1 + index * 37 % 1200, index as u8);
    bytes
}

/// Receiving, in a future that is dropped somewhere, and then on: each datagram comes once, in order.
macro_rules! receiving {
    ($name:ident, $pair:expr, |$socket:ident| $receive:expr) => {
        #[test]
        fn $name() {
            at_every_poll(async |cut| {
                let (near, $socket) = $pair;
                let sending = spawn(async move {
                    for index in 0..DATAGRAMS {
                        near.send(&datagram(index)[..]).await.0.unwrap();
                        if index % 3 == 0 {
                            a_turn().await;
                        }
                    }
                    near
                });
                let received = RefCell::new(Vec::new());
                let receiving = async || {
                    while received.borrow().len() < DATAGRAMS {
                        let (count, bytes) = $receive;
                        assert_eq!(count, bytes.len());
                        received.borrow_mut().push(bytes);
                    }
                };
                cut.run(receiving()).await;
                receiving().await;
                let expected: Vec<_> = (0..DATAGRAMS).map(datagram).collect();
                assert!(
                    received.into_inner() == expected,
                    "datagrams are lost or doubled"
                );
                sending.await.unwrap();
            });
        }
    };
}

async fn udp() -> (UdpSocket, UdpSocket) {
    let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    near.connect(far.local_addr().unwrap()).await.unwrap();
    far.connect(near.local_addr().unwrap()).await.unwrap();
    (near, far)
}

fn unix_datagrams() -> (UnixDatagram, UnixDatagram) {
    UnixDatagram::pair().unwrap()
}

receiving!(receiving_from_udp, udp().await, |socket| {
    let (count, bytes) = socket.recv(buffer()).await;
    (count.unwrap(), bytes)
});
receiving!(receiving_from_udp_with_the_sender, udp().await, |socket| {
    let (result, bytes) = socket.recv_from(buffer()).await;
    (result.unwrap().0, bytes)
});
receiving!(receiving_from_unix, unix_datagrams(), |socket| {
    let (count, bytes) = socket.recv(buffer()).await;
    (count.unwrap(), bytes)
});
receiving!(
    receiving_from_unix_with_the_sender,
    unix_datagrams(),
    |socket| {
        let (result, bytes) = socket.recv_from(buffer()).await;
        (result.unwrap().0, bytes)
    }
);

/// Sending to a receiver that is often full: what was reported as sent arrives once, what was not does not.
fn sending_to_unix(is_connected: bool) {
    at_every_poll(async |cut| {
        let address = abstract_name();
        let receiver = Rc::new(UnixDatagram::bind(&address).unwrap());
        let sender = UnixDatagram::unbound().unwrap();
        if is_connected {
            sender.connect(&address).unwrap();
        }
        let is_sent = Rc::new(Cell::new(false));
        let receiving = spawn({
            let (receiver, is_sent) = (Rc::clone(&receiver), Rc::clone(&is_sent));
            async move {
                let mut arrived = Vec::new();
                loop {
                    let mut bytes = buffer();
                    match receiver.try_recv(&mut bytes) {
                        Ok(_) => arrived.push(bytes),
                        Err(_) if is_sent.get() => return arrived,
                        Err(_) => {}
                    }
                    sleep(Duration::ZERO).await;
                }
            }
        });
        let next = Cell::new(0);
        let sending = async || {
            while next.get() < DATAGRAMS {
                let bytes = datagram(next.get());
                let length = bytes.len();
                let sent = if is_connected {
                    sender.send(&bytes[..]).await.0
                } else {
                    sender.send_to(&bytes[..], &address).await.0
                };
                assert_eq!(sent.unwrap(), length);
                next.set(next.get() + 1);
            }
        };
        cut.run(sending()).await;
        sending().await;
        is_sent.set(true);
        let expected: Vec<_> = (0..DATAGRAMS).map(datagram).collect();
        assert!(
            receiving.await.unwrap() == expected,
            "datagrams are lost or doubled"
        );
    });
}

#[test]
fn sending_to_unix_connected() {
    sending_to_unix(true);
}

#[test]
fn sending_to_unix_by_address() {
    sending_to_unix(false);
}

/// The budget of a task makes futures wait that never would for the kernel.
#[test]
fn sending_to_udp() {
    at_every_poll(async |cut| {
        let (near, far) = udp().await;
        let sent = Cell::new(0);
        let to = far.local_addr().unwrap();
        let received = spawn(async move {
            let mut received = 0;
            loop {
                let (count, bytes) = far.recv(buffer()).await;
                assert_eq!(count.unwrap(), bytes.len());
                if bytes == b"the last" {
                    return received;
                }
                received += 1;
            }
        });
        cut.run(async {
            for index in 0..200_usize {
                let (count, _) = if index % 2 == 0 {
                    near.send(&[7; 20][..]).await
                } else {
                    near.send_to(&[7; 20][..], to).await
                };
                assert_eq!(count.unwrap(), 20);
                sent.set(sent.get() + 1);
            }
        })
        .await;
        near.send(&b"the last"[..]).await.0.unwrap();
        // Fewer than the receiver's buffer takes.
        assert_eq!(received.await.unwrap(), sent.get());
    });
}

/// Two tasks on the halves of one connection: the future of one is dropped, the other one goes on.
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
