//! Connections: accepting, connecting, shutting down, closing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use ringloop_driver::{Driver, Interest, Mode, Op, SocketAddress};

use crate::support::{
    PATIENCE, accept, accept_one, accepted, all_events, connect, event_of, finish,
    is_nonblocking_and_cloexec, listener, on_both_backends, pair, poll, raw, read, receive,
    shut_down, status_flags, stream_socket,
};

on_both_backends!(
    one_connection_is_accepted,
    a_connection_that_nobody_takes_is_closed,
    connections_are_accepted_until_cancelled,
    a_connection_is_made_or_refused,
    a_unix_socket_is_connected,
    a_blocking_socket_does_not_block_the_loop,
    closing_under_an_operation_reaches_the_peer,
    closing_under_a_watch_reaches_the_peer,
    a_direction_is_shut_down,
);

fn one_connection_is_accepted(mut driver: Driver) {
    let (listener, address) = listener();
    let token = driver.submit(accept_one(raw(&listener))).unwrap();
    assert_eq!(all_events(&mut driver), []);
    let _client = TcpStream::connect(address).unwrap();
    let event = event_of(&mut driver, token);
    assert!(!event.is_more());
    let connection = driver.take_fd(&event).unwrap();
    assert_eq!(raw(&connection), event.result());
    assert!(driver.take_fd(&event).is_none(), "it was taken");
    assert!(is_nonblocking_and_cloexec(raw(&connection)));
    let _second = TcpStream::connect(address).unwrap();
    assert_eq!(all_events(&mut driver), []);
}

fn a_connection_that_nobody_takes_is_closed(mut driver: Driver) {
    let (listener, address) = listener();
    let token = driver.submit(accept(raw(&listener))).unwrap();
    let mut clients = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    let mut events = Vec::new();
    while events.len() < 2 {
        poll(&mut driver, Some(PATIENCE), &mut events);
    }
    assert!(events.iter().all(|event| event.token() == token));
    // The next poll closes them; what a poll has closed cannot be taken.
    driver.poll(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    assert!(driver.take_fd(&events[1]).is_none());
    for client in &mut clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
    // Those of the last poll are closed with the driver.
    let mut client = TcpStream::connect(address).unwrap();
    assert!(event_of(&mut driver, token).result() >= 0);
    drop(driver);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

fn connections_are_accepted_until_cancelled(mut driver: Driver) {
    let (listener, address) = listener();
    let token = driver.submit(accept(raw(&listener))).unwrap();
    for _ in 0..3 {
        let clients: Vec<_> = (0..5)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        assert!(
            accepted(&mut driver, token, clients.len())
                .iter()
                .all(|connection| is_nonblocking_and_cloexec(raw(connection)))
        );
    }
    driver.cancel(token);
    let event = event_of(&mut driver, token);
    assert_eq!(event.result(), -libc::ECANCELED);
    assert!(!event.is_more());
    assert_eq!(driver.counters().operations, 0);
}

fn a_connection_is_made_or_refused(mut driver: Driver) {
    let (listener, address) = listener();
    let socket = stream_socket(libc::AF_INET, libc::SOCK_NONBLOCK);
    let (result, op) = finish(&mut driver, connect(raw(&socket), address));
    assert_eq!(result, 0);
    assert!(matches!(op, Op::Connect { addr, .. } if addr.to_ip() == Some(address)));
    let socket = TcpStream::from(socket);
    assert_eq!(socket.peer_addr().unwrap(), address);
    drop(listener);
    let socket = stream_socket(libc::AF_INET, libc::SOCK_NONBLOCK);
    let (result, _) = finish(&mut driver, connect(raw(&socket), address));
    assert_eq!(result, -libc::ECONNREFUSED);
}

fn a_unix_socket_is_connected(mut driver: Driver) {
    let name = format!(
        "\0ringloop-driver-{}-{}",
        std::process::id(),
        driver.backend()
    );
    let address = SocketAddress::unix(name.as_bytes()).unwrap();
    let socket = || stream_socket(libc::AF_UNIX, libc::SOCK_NONBLOCK);
    let (result, _) = finish(&mut driver, connect(raw(&socket()), address));
    assert_eq!(result, -libc::ECONNREFUSED);
    let bound =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            &name[1..],
        )
        .unwrap();
    let _listener = UnixListener::bind_addr(&bound).unwrap();
    let (result, _) = finish(&mut driver, connect(raw(&socket()), address));
    assert_eq!(result, 0);
}

fn a_blocking_socket_does_not_block_the_loop(mut driver: Driver) {
    let (here, mut there) = UnixStream::pair().unwrap();
    let receiving = driver.submit(receive(raw(&here), 8)).unwrap();
    let reading = driver.submit(read(raw(&here), 8)).unwrap();
    let (listener, address) = listener();
    listener.set_nonblocking(false).unwrap();
    let accepting = driver.submit(accept(raw(&listener))).unwrap();
    assert_eq!(all_events(&mut driver), []);
    there.write_all(b"x").unwrap();
    let first = all_events(&mut driver);
    assert_eq!(first.len(), 1);
    there.write_all(b"y").unwrap();
    let second = all_events(&mut driver);
    assert_eq!(second.len(), 1);
    let mut tokens = [first[0].token(), second[0].token()];
    tokens.sort_by_key(|token| token.index());
    assert_eq!(tokens, [receiving, reading]);
    let socket = stream_socket(libc::AF_INET, 0);
    let connecting = driver.submit(connect(raw(&socket), address)).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        for event in all_events(&mut driver) {
            if event.token() == accepting {
                assert!(event.result() >= 0);
            } else {
                assert_eq!((event.token(), event.result()), (connecting, 0));
            }
            seen.push(event.token());
        }
    }
    assert_eq!(
        status_flags(raw(&socket)) & libc::O_NONBLOCK,
        0,
        "the socket's mode is the user's"
    );
}

fn closing_under_an_operation_reaches_the_peer(mut driver: Driver) {
    for _ in 0..20 {
        let (listener, address) = listener();
        let mut client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let token = driver.submit(receive(raw(&server), 8)).unwrap();
        assert_eq!(driver.peek(), ringloop_driver::Peek::Ready);
        poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
        driver.cancel_fd(raw(&server));
        driver.flush().unwrap();
        drop(server);
        // At once: without another call to the driver.
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(event_of(&mut driver, token).result(), -libc::ECANCELED);
    }
}

fn closing_under_a_watch_reaches_the_peer(mut driver: Driver) {
    for mode in [Mode::Edge, Mode::Level, Mode::OneShot] {
        for polled in [false, true] {
            let (listener, address) = listener();
            let mut client = TcpStream::connect(address).unwrap();
            let (server, _) = listener.accept().unwrap();
            let watch = driver.watch(raw(&server), Interest::READ, mode).unwrap();
            if polled {
                poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
            }
            driver.unwatch(watch);
            driver.flush().unwrap();
            drop(server);
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
    assert_eq!(all_events(&mut driver), []);
}

fn a_direction_is_shut_down(mut driver: Driver) {
    let (here, mut there) = pair();
    assert_eq!(
        finish(&mut driver, shut_down(raw(&here), libc::SHUT_WR)).0,
        0
    );
    assert_eq!(there.read(&mut [0]).unwrap(), 0);
    let (unconnected, _) = listener();
    let result = finish(&mut driver, shut_down(raw(&unconnected), 77)).0;
    assert_eq!(result, -libc::EINVAL);
}
