//! Datagrams: each comes once, in order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ringloop::net::{UdpBatch, UdpDatagram, UdpSocket, UnixDatagram};
use ringloop::spawn;
use ringloop::time::sleep;

use crate::cut::at_every_poll;
use crate::memory::buffer;
use crate::sockets::{a_turn, abstract_name};

const DATAGRAMS: usize = 40;

/// A datagram whose contents say which one it is.
fn datagram(index: usize) -> Vec<u8> {
    let mut bytes = buffer();
    bytes.resize(1 + index * 37 % 1200, index as u8);
    bytes
}

/// Receives in a future that is dropped somewhere, and then in another one: each datagram arrives once, in order.
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
receiving!(receiving_messages_from_udp, udp().await, |socket| {
    let (result, bytes) = socket.recv_message(buffer()).await;
    (result.unwrap().length, bytes)
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

/// Receives batches in a future that is dropped somewhere, and then in another one.
#[test]
fn receiving_batches_from_udp() {
    at_every_poll(async |cut| {
        let (near, far) = udp().await;
        let sending = spawn(async move {
            let datagrams: Vec<_> = (0..DATAGRAMS).map(datagram).collect();
            for some in datagrams.chunks(7) {
                let some: Vec<_> = some.iter().map(|bytes| UdpDatagram::new(bytes)).collect();
                assert_eq!(near.send_batch(&some).await.unwrap(), some.len());
                a_turn().await;
            }
            near
        });
        let received = RefCell::new(Vec::new());
        let receiving = async || {
            let mut batch = UdpBatch::new(5, 1500);
            while received.borrow().len() < DATAGRAMS {
                let count = far.recv_batch(&mut batch).await.unwrap();
                assert_eq!(count, batch.len());
                let datagrams = batch.iter().map(|(_, bytes)| bytes.to_vec());
                received.borrow_mut().extend(datagrams);
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

/// Sends to a receiver that is often full: what was reported as sent arrives once, and nothing else does.
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

/// The budget of a task makes futures wait that would never wait for the kernel.
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
            for index in 0..160_usize {
                let count = match index % 4 {
                    0 => near.send(&[7; 20][..]).await.0.unwrap(),
                    1 => near.send_to(&[7; 20][..], to).await.0.unwrap(),
                    2 => {
                        let some = [UdpDatagram::new(&[7; 20]).to(to); 2];
                        let sending = near.send_batch(&some).await.unwrap();
                        sent.set(sent.get() + sending - 1);
                        20
                    }
                    _ => {
                        let one = UdpDatagram::new(&[7; 20]);
                        near.send_message(&one).await.unwrap();
                        20
                    }
                };
                assert_eq!(count, 20);
                sent.set(sent.get() + 1);
            }
        })
        .await;
        near.send(&b"the last"[..]).await.0.unwrap();
        // Fewer than the receiver's buffer takes.
        assert_eq!(received.await.unwrap(), sent.get());
    });
}
