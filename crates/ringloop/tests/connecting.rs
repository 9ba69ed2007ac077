//! Connecting to hosts of which some addresses do not answer, on both backends.

mod common;

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as Plain};
use std::time::Duration;

use common::{LONG, on_both};
use ringloop::net::{TcpConnectOptions, TcpKeepalive, TcpSocket, TcpStream};
use ringloop::time::timeout;
use ringloop::{spawn, yield_now};
use socket2::{Domain, SockRef, Socket, Type};

/// An address that does not answer: the backlog of its listener is full, and the kernel drops further requests.
struct Hole {
    socket: Socket,
    address: SocketAddr,
    fillers: Vec<Socket>,
}

impl Hole {
    fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let fillers = (0..3)
            .map(|_| {
                let filler = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
                let _ = filler.connect(&address.into());
                filler
            })
            .collect();
        Self {
            socket,
            address,
            fillers,
        }
    }

    /// Makes room. The kernel notices with its next request, a second after the first one.
    fn answer(&mut self) -> Vec<Socket> {
        self.fillers.clear();
        self.socket.set_nonblocking(true).unwrap();
        std::iter::from_fn(|| Some(self.socket.accept().ok()?.0)).collect()
    }
}

fn good() -> (Plain, SocketAddr) {
    let listener = Plain::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address that is bound, but that nobody listens on.
fn refusing() -> SocketAddr {
    thread_local!(static TAKEN: RefCell<Vec<Socket>> = const { RefCell::new(Vec::new()) });
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    TAKEN.with_borrow_mut(|taken| taken.push(socket));
    address
}

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);

fn options(attempt_delay: Duration, attempt_timeout: Duration) -> TcpConnectOptions {
    let mut options = TcpConnectOptions::default();
    options.attempt_delay = attempt_delay;
    options.attempt_timeout = attempt_timeout;
    options
}

/// The kernel waits for two minutes for each address that does not answer.
#[test]
fn addresses_that_do_not_answer_hold_up_no_other() {
    on_both(|runtime| {
        let holes = [Hole::new(), Hole::new()];
        let (_listener, good) = good();
        let addresses = [holes[0].address, holes[1].address, good];
        runtime.block_on(async {
            let connecting = timeout(LONG, TcpStream::connect(&addresses[..]));
            let stream = connecting.await.unwrap().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), good);
        });
    });
}

#[test]
fn an_address_that_fails_makes_room_for_the_next_at_once() {
    on_both(|runtime| {
        let (_listener, good) = good();
        let addresses = [refusing(), refusing(), good];
        let options = options(NEVER, NEVER);
        runtime.block_on(async {
            let connecting = timeout(LONG, TcpStream::connect_with(&addresses[..], &options));
            let stream = connecting.await.unwrap().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), good);
        });
    });
}

/// An attempt in progress continues while the next address is tried.
#[test]
fn an_address_that_answers_late_is_still_connected_to() {
    on_both(|runtime| {
        let mut holes = [Hole::new(), Hole::new(), Hole::new()];
        let addresses = [0, 1, 2].map(|index: usize| holes[index].address);
        let options = options(Duration::from_millis(10), NEVER);
        runtime.block_on(async {
            let connecting =
                spawn(async move { TcpStream::connect_with(&addresses[..], &options).await });
            // All of them are asked by now, most likely.
            ringloop::time::sleep(Duration::from_millis(100)).await;
            let _accepted = holes[1].answer();
            let connected = timeout(LONG, connecting).await.unwrap().unwrap();
            let stream = connected.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), holes[1].address);
        });
    });
}

#[test]
fn an_attempt_is_given_up_after_its_time() {
    on_both(|runtime| {
        let holes = [Hole::new(), Hole::new()];
        let limited = options(Duration::from_millis(1), Duration::from_millis(30));
        runtime.block_on(async {
            for addresses in [
                &[holes[0].address][..],
                &[refusing(), holes[0].address],
                &[holes[1].address, refusing(), holes[0].address],
            ] {
                let connecting = TcpStream::connect_with(addresses, &limited);
                let error = timeout(LONG, connecting).await.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                let text = error.to_string();
                assert!(text.ends_with("did not answer within 30ms"), "{text}");
            }
            // Which makes room for the next one.
            let (_listener, good) = good();
            let addresses = [holes[0].address, good];
            let limited = options(NEVER, Duration::from_millis(30));
            let connecting = TcpStream::connect_with(&addresses[..], &limited);
            let stream = timeout(LONG, connecting).await.unwrap().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), good);
        });
    });
}

#[test]
fn a_host_without_a_good_address_says_what_was_wrong() {
    on_both(|runtime| {
        runtime.block_on(async {
            let error = TcpStream::connect(&[][..] as &[SocketAddr])
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            for count in 1..4 {
                let addresses: Vec<_> = (0..count).map(|_| refusing()).collect();
                let error = TcpStream::connect(&addresses[..]).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            }
            yield_now().await;
        });
    });
}

fn local(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn a_connection_comes_from_where_it_is_told() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (listener, address) = good();
            let mut keepalive = TcpKeepalive::default();
            keepalive.idle = Duration::from_secs(30);
            keepalive.interval = Duration::from_secs(5);
            keepalive.probes = 3;
            let mut options = TcpConnectOptions::default();
            options.local_address = Some(local("127.0.0.7:0"));
            options.reuse_address = true;
            options.nodelay = true;
            options.keepalive = Some(keepalive);
            options.interface = Some("lo".to_owned());
            let mut streams = Vec::new();
            for _ in 0..3 {
                let stream = TcpStream::connect_with(address, &options).await.unwrap();
                let (_, peer) = listener.accept().unwrap();
                assert_eq!(peer, stream.local_addr().unwrap());
                assert_eq!(peer.ip(), local("127.0.0.7:0").ip());
                let socket = SockRef::from(&stream);
                assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
                assert_eq!(
                    socket.tcp_keepalive_time().unwrap(),
                    Duration::from_secs(30)
                );
                assert_eq!(
                    socket.tcp_keepalive_interval().unwrap(),
                    Duration::from_secs(5)
                );
                assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
                assert_eq!(socket.device().unwrap().unwrap(), b"lo");
                streams.push(stream);
            }
        });
    });
}

/// One port for two destinations at once, which a port that is chosen early would not allow.
#[test]
fn a_local_port_is_used_again_for_another_destination() {
    on_both(|runtime| {
        runtime.block_on(async {
            let ((_one, first), (_two, second)) = (good(), good());
            let mut options = TcpConnectOptions::default();
            options.local_address = Some(local("127.0.0.8:0"));
            options.reuse_address = true;
            let near = TcpStream::connect_with(first, &options).await.unwrap();
            options.local_address = Some(near.local_addr().unwrap());
            let again = TcpStream::connect_with(second, &options).await.unwrap();
            assert_eq!(again.local_addr().unwrap(), near.local_addr().unwrap());
            let error = TcpStream::connect_with(first, &options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        });
    });
}

#[test]
fn addresses_of_another_family_are_left_out() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (_listener, address) = good();
            let v6 = local("[::1]:9");
            let mut options = TcpConnectOptions::default();
            options.local_address = Some(local("127.0.0.1:0"));
            let stream = TcpStream::connect_with(&[v6, address][..], &options).await;
            assert_eq!(stream.unwrap().peer_addr().unwrap(), address);
            let error = TcpStream::connect_with(v6, &options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            options.local_address = Some(local("192.0.2.1:0"));
            let error = TcpStream::connect_with(address, &options)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            options.local_address = None;
            options.interface = Some("no-such-one".to_owned());
            let error = TcpStream::connect_with(address, &options)
                .await
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
            options.interface = None;
            options.keepalive = Some(TcpKeepalive::default());
            options.keepalive.as_mut().unwrap().idle = Duration::from_millis(1);
            let error = TcpStream::connect_with(address, &options)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        });
    });
}

#[test]
fn a_socket_is_bound_and_then_connects_or_listens() {
    on_both(|runtime| {
        runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(local("127.0.0.1:0")).unwrap();
            let address = socket.local_addr().unwrap();
            let listener = socket.listen(16).unwrap();
            assert_eq!(listener.local_addr().unwrap(), address);

            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(local("127.0.0.9:0")).unwrap();
            socket
                .set_keepalive(Some(&TcpKeepalive::default()))
                .unwrap();
            socket.set_keepalive(None).unwrap();
            socket.set_send_buffer_size(64 << 10).unwrap();
            socket.set_recv_buffer_size(64 << 10).unwrap();
            let from = socket.local_addr().unwrap();
            let mut near = socket.connect(address).await.unwrap();
            let (mut far, peer) = listener.accept().await.unwrap();
            assert_eq!(peer, from);
            near.write_all(&b"hello"[..]).await.0.unwrap();
            assert_eq!(far.read(Vec::with_capacity(8)).await.1, b"hello");

            let socket = TcpSocket::new_v4().unwrap();
            let error = socket.bind(address).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            let error = socket.connect(refusing()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
    });
}
