//! Datagrams with ECN, packet info and segments, and several of them per system call, on both backends.

mod common;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::BufMut;
use ringloop::net::{Ecn, UdpBatch, UdpDatagram, UdpReceived, UdpSocket, UdpSocketOptions};
use ringloop::time::timeout;
use ringloop::{spawn, yield_now};
use socket2::{Domain, Protocol, Socket, Type};

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

/// A socket that is told everything about what it receives.
async fn curious(address: &str) -> UdpSocket {
    let mut options = UdpSocketOptions::default();
    options.receive_ecn = true;
    options.receive_packet_info = true;
    UdpSocket::bind_with(address, &options).await.unwrap()
}

async fn receive(socket: &UdpSocket) -> (UdpReceived, Vec<u8>) {
    let receiving = socket.recv_message(Vec::with_capacity(65536));
    let (received, bytes) = timeout(LONG, receiving).await.unwrap();
    let received = received.unwrap();
    assert_eq!(
        (received.count, received.length),
        (bytes.len(), bytes.len())
    );
    (received, bytes)
}

fn loopback() -> u32 {
    // SAFETY: the name is a string of C.
    unsafe { libc::if_nametoindex(c"lo".as_ptr()) }
}

#[test]
fn what_is_cut_off_is_said_so() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            for (size, room) in [(9, 4), (4, 4), (0, 4), (3, 0), (65_507, 1), (2, 9)] {
                near.send(&pattern(size)[..]).await.0.unwrap();
                let (received, bytes) = far.recv_message(Vec::with_capacity(room)).await;
                let received = received.unwrap();
                assert_eq!((received.count, received.length), (size.min(room), size));
                assert_eq!(received.is_truncated(), size > room);
                assert_eq!(bytes, &pattern(size)[..size.min(room)]);
                assert_eq!(received.from, near.local_addr().unwrap());
                assert_eq!((received.to, received.interface), (None, None));
                assert_eq!((received.ecn, received.segment_bytes), (None, None));
            }
            // In pieces, it is the next piece that counts.
            near.send(&b"abcdef"[..]).await.0.unwrap();
            let mut pieces = [[0; 2], [0; 2]];
            let [one, two] = &mut pieces;
            let received = far.try_recv_message(&mut (&mut one[..]).chain_mut(&mut two[..]));
            let received = received.unwrap();
            assert_eq!((received.count, received.length), (2, 6));
            assert_eq!(pieces, [*b"ab", [0; 2]]);
            let nothing = far
                .try_recv_message(&mut Vec::with_capacity(9))
                .unwrap_err();
            assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        });
    });
}

#[test]
fn a_batch_says_of_each_what_is_cut_off() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            let sent = [pattern(3), pattern(0), pattern(2000), pattern(100)];
            let datagrams: Vec<_> = sent.iter().map(|bytes| UdpDatagram::new(bytes)).collect();
            assert_eq!(near.send_batch(&datagrams).await.unwrap(), 4);
            let mut batch = UdpBatch::new(3, 100);
            assert_eq!(far.recv_batch(&mut batch).await.unwrap(), 3);
            assert_eq!((batch.len(), batch.iter().len()), (3, 3));
            for ((received, bytes), sent) in batch.iter().zip(&sent) {
                assert_eq!(bytes, &sent[..sent.len().min(100)]);
                assert_eq!(received.length, sent.len());
                assert_eq!(received.is_truncated(), sent.len() > 100);
                assert_eq!(received.from, near.local_addr().unwrap());
            }
            // What was there before is replaced.
            assert_eq!(far.try_recv_batch(&mut batch).unwrap(), 1);
            let all: Vec<_> = batch.iter().map(|(_, bytes)| bytes.to_vec()).collect();
            assert_eq!(all, [pattern(100)]);
            let nothing = far.try_recv_batch(&mut batch).unwrap_err();
            assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
            assert!(batch.is_empty());
            assert_eq!(near.send_batch(&[]).await.unwrap(), 0);
        });
    });
}

/// A socket for both families.
fn dual_stack() -> UdpSocket {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_only_v6(false).unwrap();
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    socket.bind(&any.into()).unwrap();
    UdpSocket::try_from(std::net::UdpSocket::from(socket)).unwrap()
}

#[test]
fn congestion_bits_arrive_in_both_families() {
    on_both(|runtime| {
        runtime.block_on(async {
            let both = dual_stack();
            both.set_receive_ecn(true).unwrap();
            let port = both.local_addr().unwrap().port();
            let receivers = [
                (curious("127.0.0.1:0").await, None),
                (curious("[::1]:0").await, None),
                (both, Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))),
            ];
            for (far, to) in receivers {
                let to = to.unwrap_or_else(|| far.local_addr().unwrap());
                let near = UdpSocket::bind(SocketAddr::new(to.ip(), 0)).await.unwrap();
                for ecn in [Ecn::Ect0, Ecn::Ce, Ecn::Ect1, Ecn::NotEct] {
                    let datagram = UdpDatagram::new(b"x").to(to).ecn(ecn);
                    near.send_message(&datagram).await.unwrap();
                    assert_eq!(receive(&far).await.0.ecn, Some(ecn));
                }
                near.send_to(&b"x"[..], to).await.0.unwrap();
                assert_eq!(receive(&far).await.0.ecn, Some(Ecn::NotEct));
                near.connect(to).await.unwrap();
                let datagram = UdpDatagram::new(b"x").ecn(Ecn::Ect0);
                near.try_send_message(&datagram).unwrap();
                assert_eq!(receive(&far).await.0.ecn, Some(Ecn::Ect0));
                far.set_receive_ecn(false).unwrap();
                near.try_send_message(&datagram).unwrap();
                assert_eq!(receive(&far).await.0.ecn, None);
            }
        });
    });
}

#[test]
fn an_answer_comes_from_the_address_that_was_asked() {
    on_both(|runtime| {
        runtime.block_on(async {
            let both = dual_stack();
            both.set_receive_packet_info(true).unwrap();
            let v4 = curious("0.0.0.0:0").await;
            let v6 = curious("[::]:0").await;
            let (second, v6_loopback) = (Ipv4Addr::new(127, 0, 0, 2), Ipv6Addr::LOCALHOST);
            for (far, asked) in [
                (&v4, IpAddr::from(Ipv4Addr::LOCALHOST)),
                (&v4, second.into()),
                (&v6, v6_loopback.into()),
                (&both, second.into()),
                (&both, v6_loopback.into()),
            ] {
                let to = SocketAddr::new(asked, far.local_addr().unwrap().port());
                let near = UdpSocket::bind(SocketAddr::new(
                    if asked.is_ipv4() {
                        Ipv4Addr::LOCALHOST.into()
                    } else {
                        asked
                    },
                    0,
                ));
                let near = near.await.unwrap();
                near.send_to(&b"question"[..], to).await.0.unwrap();
                let (received, _) = receive(far).await;
                let to_ip = received.to.unwrap();
                assert_eq!(to_ip.to_canonical(), asked);
                assert_eq!(to_ip.is_ipv4(), received.from.is_ipv4());
                assert_eq!(received.interface, Some(loopback()));
                let answer = UdpDatagram::new(b"answer").to(received.from).from(to_ip);
                far.send_message(&answer).await.unwrap();
                assert_eq!(receive(&near).await.0.from, to);
                let interface = received.interface.unwrap();
                far.send_message(&answer.interface(interface))
                    .await
                    .unwrap();
                assert_eq!(receive(&near).await.0.from, to);
                // Without an address to choose by.
                let answer = UdpDatagram::new(b"answer").to(received.from);
                far.send_message(&answer.interface(interface))
                    .await
                    .unwrap();
                receive(&near).await;
            }
        });
    });
}

#[test]
fn a_connected_socket_chooses_interface_and_sender_too() {
    on_both(|runtime| {
        runtime.block_on(async {
            for (any, far) in [("0.0.0.0:0", "127.0.0.1:0"), ("[::]:0", "[::1]:0")] {
                let (near, far) = (curious(any).await, curious(far).await);
                let address = far.local_addr().unwrap();
                near.connect(address).await.unwrap();
                let datagram = UdpDatagram::new(b"x").interface(loopback());
                near.send_message(&datagram).await.unwrap();
                assert_eq!(receive(&far).await.0.from, near.local_addr().unwrap());
                near.send_message(&datagram.from(address.ip()))
                    .await
                    .unwrap();
                assert_eq!(receive(&far).await.0.from, near.local_addr().unwrap());
                let foreign = if address.is_ipv4() {
                    "192.0.2.1"
                } else {
                    "2001:db8::1"
                };
                let foreign = datagram.from(foreign.parse().unwrap());
                assert!(near.send_message(&foreign).await.is_err());
            }
        });
    });
}

#[test]
fn one_buffer_is_sent_as_many_datagrams() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            let bytes = pattern(12_100);
            let segments = UdpDatagram::new(&bytes).segments_of(1200).ecn(Ecn::Ect0);
            near.send_message(&segments).await.unwrap();
            for sent in bytes.chunks(1200) {
                let (received, bytes) = receive(&far).await;
                assert_eq!(bytes, sent);
                assert_eq!(received.segment_bytes, None);
                assert_eq!(received.segments(&bytes).collect::<Vec<_>>(), [sent]);
            }
            // Not more than one segment: nothing is cut, and nothing refused.
            for size in [12_100, 65_535] {
                near.send_message(&segments.segments_of(size))
                    .await
                    .unwrap();
                assert_eq!(receive(&far).await.1, bytes);
            }
            let nothing = UdpDatagram::new(b"").segments_of(10);
            near.send_message(&nothing).await.unwrap();
            let (received, bytes) = receive(&far).await;
            assert_eq!(received.segments(&bytes).count(), 0);
            for mistake in [0, 65_536] {
                let refused = near.send_message(&segments.segments_of(mistake)).await;
                assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
            // More than the kernel takes at a time.
            let refused = near.send_message(&segments.segments_of(1)).await;
            assert!(refused.unwrap_err().raw_os_error().is_some());
        });
    });
}

#[test]
fn datagrams_that_were_joined_are_cut_apart_again() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            far.set_gro(true).unwrap();
            far.set_receive_packet_info(true).unwrap();
            far.set_receive_ecn(true).unwrap();
            let bytes = pattern(30_001);
            let segments = UdpDatagram::new(&bytes).segments_of(1000).ecn(Ecn::Ce);
            let mut batch = UdpBatch::new(4, 65_536);
            for is_batch in [false, true] {
                near.send_message(&segments).await.unwrap();
                near.send_message(&UdpDatagram::new(b"alone"))
                    .await
                    .unwrap();
                // The kernel may join them, or some of them.
                let mut all = Vec::new();
                let mut joined = 0;
                while all.len() < 32 {
                    let mut see = |received: UdpReceived, bytes: &[u8]| {
                        joined += usize::from(received.segment_bytes == Some(1000));
                        assert_eq!(received.to, Some(Ipv4Addr::LOCALHOST.into()));
                        all.extend(received.segments(bytes).map(<[u8]>::to_vec));
                        received.ecn
                    };
                    if is_batch {
                        far.recv_batch(&mut batch).await.unwrap();
                        for (received, bytes) in batch.iter() {
                            see(received, bytes);
                        }
                    } else {
                        let (received, bytes) = receive(&far).await;
                        let is_last = bytes == b"alone";
                        let expected = if is_last { Ecn::NotEct } else { Ecn::Ce };
                        assert_eq!(see(received, &bytes), Some(expected));
                    }
                }
                let mut sent: Vec<_> = bytes.chunks(1000).map(<[u8]>::to_vec).collect();
                sent.push(b"alone".to_vec());
                assert!(all == sent);
                assert!(joined > 0, "loopback joins them");
            }
            // What is cut off is said so of joined ones, too.
            near.send_message(&segments).await.unwrap();
            let (received, bytes) = far.recv_message(Vec::with_capacity(2500)).await;
            let received = received.unwrap();
            assert_eq!((bytes.len(), received.length), (2500, 30_001));
            assert_eq!(received.segments(&bytes).count(), 3);
            far.set_gro(false).unwrap();
            near.send_message(&segments).await.unwrap();
            assert_eq!(receive(&far).await.1, pattern(1000));
        });
    });
}

#[test]
fn batches_keep_the_order_and_take_no_more_than_they_say() {
    const ALL: usize = 300;
    on_both(|runtime| {
        runtime.block_on(async {
            let mut options = UdpSocketOptions::default();
            options.receive_buffer_bytes = Some(1 << 20);
            let far = UdpSocket::bind_with("127.0.0.1:0", &options).await.unwrap();
            let to = far.local_addr().unwrap();
            let near = local().await;
            let receiving = spawn(async move {
                let mut batch = UdpBatch::new(UdpBatch::DATAGRAMS_MAX, 64);
                let mut all = Vec::new();
                while all.len() < ALL {
                    let count = far.recv_batch(&mut batch).await.unwrap();
                    assert!((1..=UdpBatch::DATAGRAMS_MAX).contains(&count));
                    all.extend(batch.iter().map(|(_, bytes)| bytes.to_vec()));
                }
                all
            });
            // The receiver is there first, and has to wait.
            yield_now().await;
            let sent: Vec<_> = (0..ALL as u32).map(u32::to_le_bytes).collect();
            let datagrams: Vec<_> = sent
                .iter()
                .map(|bytes| UdpDatagram::new(bytes).to(to))
                .collect();
            let mut rest = &datagrams[..];
            while !rest.is_empty() {
                let count = near.send_batch(rest).await.unwrap();
                assert!((1..=UdpBatch::DATAGRAMS_MAX).contains(&count));
                rest = &rest[count..];
            }
            let received = timeout(LONG, receiving).await.unwrap().unwrap();
            assert!(received == sent);
        });
    });
}

#[test]
fn an_error_behind_some_datagrams_comes_with_the_next_call() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = connected().await;
            let too_long = vec![0; 70_000];
            for (mistake, errno) in [
                (UdpDatagram::new(&too_long), Some(libc::EMSGSIZE)),
                (UdpDatagram::new(b"x").segments_of(0), None),
            ] {
                let good = UdpDatagram::new(b"good");
                let datagrams = [good, good, mistake, good];
                assert_eq!(near.send_batch(&datagrams).await.unwrap(), 2);
                let error = near.send_batch(&datagrams[2..]).await.unwrap_err();
                assert_eq!(error.raw_os_error(), errno);
                assert_eq!(near.send_batch(&datagrams[3..]).await.unwrap(), 1);
                for _ in 0..3 {
                    assert_eq!(receive(&far).await.1, b"good");
                }
            }
            // Two have arrived before it turns out that nobody is there any more.
            let address = far.local_addr().unwrap();
            far.send(&b"one"[..]).await.0.unwrap();
            far.send(&b"two"[..]).await.0.unwrap();
            drop(far);
            yield_now().await;
            near.send(&b"lost"[..]).await.0.unwrap();
            let mut batch = UdpBatch::new(8, 64);
            let mut received = 0;
            let refused = loop {
                match timeout(LONG, near.recv_batch(&mut batch)).await.unwrap() {
                    Ok(count) => received += count,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            received += near.try_recv_batch(&mut batch).unwrap_or(0);
            assert_eq!(received, 2);
            let far = UdpSocket::bind(address).await.unwrap();
            far.send_to(&b"again"[..], near.local_addr().unwrap())
                .await
                .0
                .unwrap();
            assert_eq!(receive(&near).await.1, b"again");
        });
    });
}

#[test]
fn every_future_may_be_dropped_after_any_poll() {
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..4 {
                let (near, far) = connected().await;
                let datagrams = [UdpDatagram::new(b"maybe"); 3];
                drop(poll_times(polls, near.send_batch(&datagrams)).await);
                drop(poll_times(polls, near.send_message(&datagrams[0])).await);
                let mut batch = UdpBatch::new(2, 8);
                let some = poll_times(polls, far.recv_batch(&mut batch)).await;
                let one = poll_times(polls, far.recv_message(Vec::with_capacity(8))).await;
                let taken = some.map_or(0, Result::unwrap) + usize::from(one.is_some());
                let mut left = 0;
                while far.try_recv_message(&mut Vec::with_capacity(8)).is_ok() {
                    left += 1;
                }
                assert_eq!(taken + left, if polls > 0 { 4 } else { 0 });
            }
        });
    });
}

#[test]
#[should_panic(expected = "a batch has from 1 to 64 datagrams")]
fn a_batch_of_too_many_is_a_mistake() {
    drop(UdpBatch::new(65, 1));
}
