//! UDP, on both backends.

mod common;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ringloop::net::{UdpSocket, UdpSocketOptions};
use ringloop::time::{sleep, timeout};
use ringloop::{spawn, yield_now};

use common::{LONG, on_both, pattern, poll_times};

async fn local() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

async fn connected() -> (UdpSocket, UdpSocket) {
    let (near, far) = (local().await, local().await);
    near.connect(far.local_addr().unwrap()).await.unwrap();
    far.connect(near.local_addr().unwrap()).await.unwrap();
    (near, far)
}

#[test]
fn datagrams_keep_their_bounds_their_bytes_and_their_sender() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = (local().await, local().await);
            let (near_address, far_address) =
                (near.local_addr().unwrap(), far.local_addr().unwrap());
            const SIZES: [usize; 6] = [1, 1200, 0, 9000, 65507, 3];
            let answering = spawn(async move {
                for size in SIZES {
                    // The receiver is there first, and has to wait.
                    let (received, bytes) = far.recv_from(BytesMut::with_capacity(65536)).await;
                    assert_eq!(received.unwrap(), (size, near_address));
                    assert_eq!(bytes, pattern(size));
                    far.send_to(bytes, near_address).await.0.unwrap();
                }
            });
            yield_now().await;
            for size in SIZES {
                let (sent, _) = near.send_to(&pattern(size)[..], far_address).await;
                assert_eq!(sent.unwrap(), size);
                let mut buffer = vec![0; 65536];
                let (received, _) = near.recv_from(&mut buffer[..]).await;
                assert_eq!(received.unwrap(), (size, far_address));
                assert_eq!(buffer[..size], pattern(size));
            }
            answering.await.unwrap();
        });
    });
}

#[test]
fn a_chain_of_pieces_is_one_datagram() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            let pieces = Bytes::from_static(b"head")
                .chain(Bytes::from_static(b" and "))
                .chain(&b"tail"[..]);
            let (sent, rest) = near.send(pieces).await;
            assert_eq!(sent.unwrap(), 13);
            assert!(!rest.has_remaining());
            let to = far.local_addr().unwrap();
            drop(far.connect(near.local_addr().unwrap()).await);
            let pieces = Bytes::from_static(b"to ").chain(&b"you"[..]);
            near.send_to(pieces, to).await.0.unwrap();
            for expected in [&b"head and tail"[..], b"to you"] {
                let (count, bytes) = far.recv(Vec::with_capacity(64)).await;
                assert_eq!((count.unwrap(), &bytes[..]), (expected.len(), expected));
            }
        });
    });
}

#[test]
fn what_does_not_fit_is_cut_off_and_the_next_one_is_whole() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            near.send(&b"much too long"[..]).await.0.unwrap();
            near.send(&b"next"[..]).await.0.unwrap();
            let mut small = [0; 4];
            assert_eq!(far.recv(&mut small[..]).await.0.unwrap(), 4);
            assert_eq!(&small, b"much");
            let (count, bytes) = far.recv(BytesMut::with_capacity(64).limit(8)).await;
            assert_eq!(count.unwrap(), 4);
            assert_eq!(bytes.into_inner(), &b"next"[..]);
            let (too_long, _) = near.send(&vec![0; 70_000][..]).await;
            assert_eq!(too_long.unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        });
    });
}

#[test]
fn trying_never_waits_and_loses_no_event() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            let mut buffer = Vec::with_capacity(64);
            let error = far.try_recv(&mut buffer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            let error = far.try_recv_from(&mut buffer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            let far_address = far.local_addr().unwrap();
            assert_eq!(near.try_send(b"one").unwrap(), 3);
            assert_eq!(near.try_send_to(b"two", far_address).unwrap(), 3);
            assert_eq!(near.try_send(b"three").unwrap(), 5);
            assert_eq!(far.try_recv(&mut buffer).unwrap(), 3);
            let (count, from) = far.try_recv_from(&mut buffer).unwrap();
            assert_eq!((count, from), (3, near.local_addr().unwrap()));
            assert_eq!(buffer, b"onetwo");
            let (count, bytes) = far.recv(buffer).await;
            assert_eq!((count.unwrap(), &bytes[..]), (5, &b"onetwothree"[..]));
            // Now it waits for an event, and gets it.
            let waiting = spawn(async move { far.recv(Vec::with_capacity(8)).await });
            yield_now().await;
            near.try_send(b"four").unwrap();
            let (count, bytes) = timeout(LONG, waiting).await.unwrap().unwrap();
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"four"[..]));
        });
    });
}

#[test]
fn a_receiver_that_is_gone_is_an_error_once_and_the_socket_goes_on() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            let address = far.local_addr().unwrap();
            drop(far);
            // On io_uring a socket is closed at the end of the turn.
            yield_now().await;
            near.send(&b"lost"[..]).await.0.unwrap();
            let receiving = timeout(LONG, near.recv(Vec::with_capacity(8)));
            let (count, _) = receiving.await.unwrap();
            assert_eq!(count.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            assert!(near.take_error().unwrap().is_none());
            let far = UdpSocket::bind(address).await.unwrap();
            near.send(&b"found"[..]).await.0.unwrap();
            let (count, bytes) = far.recv(Vec::with_capacity(8)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (5, &b"found"[..]));
            far.send_to(&b"back"[..], near.local_addr().unwrap())
                .await
                .0
                .unwrap();
            let (count, bytes) = timeout(LONG, near.recv(Vec::with_capacity(8)))
                .await
                .unwrap();
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"back"[..]));
        });
    });
}

#[test]
fn tasks_that_share_a_socket_all_get_their_share() {
    const TASKS: usize = 5;
    const EACH: usize = 40;
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            let far = Rc::new(far);
            let seen = Rc::new(RefCell::new(Vec::new()));
            let receivers: Vec<_> = (0..TASKS)
                .map(|_| {
                    let (far, seen) = (Rc::clone(&far), Rc::clone(&seen));
                    spawn(async move {
                        for _ in 0..EACH {
                            let (count, bytes) = far.recv(Vec::with_capacity(8)).await;
                            assert_eq!(count.unwrap(), 4);
                            seen.borrow_mut()
                                .push(u32::from_le_bytes(bytes.try_into().unwrap()));
                        }
                    })
                })
                .collect();
            yield_now().await;
            for number in 0..(TASKS * EACH) as u32 {
                near.send(&number.to_le_bytes()[..]).await.0.unwrap();
                if number % 7 == 0 {
                    yield_now().await;
                }
            }
            for receiver in receivers {
                timeout(LONG, receiver).await.unwrap().unwrap();
            }
            let mut seen = seen.take();
            seen.sort_unstable();
            assert_eq!(seen, (0..(TASKS * EACH) as u32).collect::<Vec<_>>());
        });
    });
}

#[test]
fn every_future_may_be_dropped_after_any_poll() {
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..4 {
                drop(poll_times(polls, UdpSocket::bind("127.0.0.1:0")).await);
                let (near, far) = connected().await;
                let near_address = near.local_addr().unwrap();
                drop(poll_times(polls, near.connect(far.local_addr().unwrap())).await);
                drop(poll_times(polls, near.send(&b"maybe"[..])).await);
                drop(poll_times(polls, near.send_to(&b"maybe"[..], near_address)).await);
                let buffer = Vec::with_capacity(8);
                let received = poll_times(polls, far.recv(buffer)).await;
                let buffer = Vec::with_capacity(8);
                let also = poll_times(polls, far.recv_from(buffer)).await;
                // A datagram that a dropped future has not given is still there.
                let sent = usize::from(polls > 0);
                let taken = usize::from(received.is_some()) + usize::from(also.is_some());
                let mut left = 0;
                while far.try_recv(&mut Vec::with_capacity(8)).is_ok() {
                    left += 1;
                }
                assert_eq!(taken + left, sent, "{polls} polls");
            }
        });
    });
}

#[test]
fn a_receiver_that_is_flooded_lets_the_others_run() {
    on_both(|runtime| {
        runtime.block_on(async {
            let options = {
                let mut options = UdpSocketOptions::default();
                options.receive_buffer_bytes = Some(4 << 20);
                options
            };
            let far = UdpSocket::bind_with("127.0.0.1:0", &options).await.unwrap();
            let near = local().await;
            near.connect(far.local_addr().unwrap()).await.unwrap();
            let turns = Rc::new(Cell::new(0_u32));
            let counting = spawn({
                let turns = Rc::clone(&turns);
                async move {
                    loop {
                        turns.set(turns.get() + 1);
                        yield_now().await;
                    }
                }
            });
            let mut arrived = 0;
            for _ in 0..2000 {
                near.try_send(&[1; 8]).unwrap();
            }
            sleep(Duration::from_millis(1)).await;
            let before = turns.get();
            let mut buffer = [0; 8];
            loop {
                match timeout(Duration::from_millis(20), far.recv(&mut buffer[..])).await {
                    Ok((count, _)) => assert_eq!(count.unwrap(), 8),
                    Err(_) => break,
                }
                arrived += 1;
            }
            assert!(arrived >= 128, "{arrived} of 2000 arrived");
            assert!(turns.get() - before >= arrived / 128);
            counting.abort();
            assert!(counting.await.unwrap_err().is_cancelled());
        });
    });
}

#[test]
fn multicast_and_broadcast_reach_their_receivers() {
    on_both(|runtime| {
        runtime.block_on(async {
            let group = Ipv4Addr::new(239, 255, 77, 1);
            let mut options = UdpSocketOptions::default();
            options.reuse_address = true;
            // Bound to the group, they hear nobody from outside: only the loopback interface joins it.
            let first = UdpSocket::bind_with((group, 0), &options).await.unwrap();
            let port = first.local_addr().unwrap().port();
            let second = UdpSocket::bind_with((group, port), &options).await.unwrap();
            for receiver in [&first, &second] {
                receiver
                    .join_multicast_v4(group, Ipv4Addr::LOCALHOST)
                    .unwrap();
            }
            let sender = local().await;
            sender.set_multicast_if_v4(Ipv4Addr::LOCALHOST).unwrap();
            sender.set_multicast_loop_v4(true).unwrap();
            sender.set_multicast_ttl_v4(1).unwrap();
            let to = SocketAddr::from((group, port));
            sender.send_to(&b"all"[..], to).await.0.unwrap();
            for receiver in [&first, &second] {
                let (received, bytes) = timeout(LONG, receiver.recv_from(Vec::with_capacity(8)))
                    .await
                    .unwrap();
                assert_eq!(received.unwrap(), (3, sender.local_addr().unwrap()));
                assert_eq!(bytes, b"all");
            }
            first
                .leave_multicast_v4(group, Ipv4Addr::LOCALHOST)
                .unwrap();
            let gone = first.leave_multicast_v4(group, Ipv4Addr::LOCALHOST);
            assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::EADDRNOTAVAIL));

            assert!(!sender.broadcast().unwrap());
            let hears = UdpSocket::bind("127.255.255.255:0").await.unwrap();
            let everyone = hears.local_addr().unwrap();
            let refused = sender.send_to(&b"x"[..], everyone).await.0.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            sender.set_broadcast(true).unwrap();
            assert!(sender.broadcast().unwrap());
            sender.send_to(&b"everyone"[..], everyone).await.0.unwrap();
            let (count, bytes) = timeout(LONG, hears.recv(Vec::with_capacity(8)))
                .await
                .unwrap();
            assert_eq!((count.unwrap(), &bytes[..]), (8, &b"everyone"[..]));
        });
    });
}

#[test]
fn options_and_errors_are_the_systems() {
    on_both(|runtime| {
        runtime.block_on(async {
            let socket = local().await;
            socket.set_ttl(9).unwrap();
            assert_eq!(socket.ttl().unwrap(), 9);
            let taken = UdpSocket::bind(socket.local_addr().unwrap()).await;
            assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
            let unconnected = socket.peer_addr().unwrap_err();
            assert_eq!(unconnected.kind(), io::ErrorKind::NotConnected);
            let nowhere = socket.send(&b"x"[..]).await.0.unwrap_err();
            assert_eq!(nowhere.raw_os_error(), Some(libc::EDESTADDRREQ));
            let plain = std::net::UdpSocket::bind("[::1]:0").unwrap();
            let address = plain.local_addr().unwrap();
            let taken_over = UdpSocket::try_from(plain).unwrap();
            assert_eq!(taken_over.local_addr().unwrap(), address);
            taken_over.send_to(&b"self"[..], address).await.0.unwrap();
            let (received, _) = taken_over.recv_from(Vec::with_capacity(8)).await;
            assert_eq!(received.unwrap(), (4, address));
            let mut sharing = UdpSocketOptions::default();
            sharing.reuse_port = true;
            let one = UdpSocket::bind_with("127.0.0.1:0", &sharing).await.unwrap();
            UdpSocket::bind_with(one.local_addr().unwrap(), &sharing)
                .await
                .unwrap();
        });
    });
}
