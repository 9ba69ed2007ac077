//! Messages: datagrams with addresses, bytes with descriptors.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use ringloop_driver::{Driver, Message, Op};

use crate::support::{
    PATIENCE, all_events, descriptor_flags, finish, on_both_backends, pair, pipe, poll, raw,
    receive_message, send_message,
};

on_both_backends!(
    datagrams_carry_addresses,
    messages_carry_descriptors,
    a_truncated_datagram_says_so,
);

fn datagrams_carry_addresses(mut driver: Driver) {
    let here = UdpSocket::bind("127.0.0.1:0").unwrap();
    let there = UdpSocket::bind("127.0.0.1:0").unwrap();
    here.set_nonblocking(true).unwrap();
    let message = Message::from(Vec::with_capacity(100));
    let token = driver
        .submit(receive_message(raw(&here), message, 0))
        .unwrap();
    assert_eq!(all_events(&mut driver), []);
    let mut message = Message::from(b"datagram".to_vec());
    message.addr = Some(here.local_addr().unwrap().into());
    let sending = driver.submit(send_message(raw(&there), message)).unwrap();
    let mut results = Vec::new();
    let mut received = None;
    while results.len() < 2 {
        let mut events = Vec::new();
        poll(&mut driver, Some(PATIENCE), &mut events);
        for event in events {
            results.push((event.token(), event.result()));
            received = received.or_else(|| driver.take(token));
        }
    }
    assert!(
        results.contains(&(token, 8)) && results.contains(&(sending, 8)),
        "{results:?}"
    );
    let Some(Op::RecvMsg { message, .. }) = received else {
        panic!("no message")
    };
    assert_eq!(message.buffer, b"datagram");
    assert_eq!(
        message.addr.unwrap().to_ip(),
        Some(there.local_addr().unwrap())
    );
    assert_eq!(message.flags & libc::MSG_TRUNC, 0);
}

fn messages_carry_descriptors(mut driver: Driver) {
    let (here, there) = pair();
    let (file, mut other_end) = pipe();
    let mut message = Message::from(b"take this".to_vec());
    message.descriptors = vec![OwnedFd::from(file)];
    let (result, _) = finish(&mut driver, send_message(raw(&here), message));
    assert_eq!(result, 9);
    let mut message = Message::from(Vec::with_capacity(32));
    message.descriptors_max = 4;
    let (result, op) = finish(&mut driver, receive_message(raw(&there), message, 0));
    assert_eq!(result, 9);
    let Op::RecvMsg { mut message, .. } = op else {
        panic!("no message")
    };
    assert_eq!(message.buffer, b"take this");
    assert_eq!(message.descriptors.len(), 1);
    let received = message.descriptors.pop().unwrap();
    assert_ne!(descriptor_flags(raw(&received)) & libc::FD_CLOEXEC, 0);
    other_end.write_all(b"through").unwrap();
    drop(other_end);
    let mut text = String::new();
    std::fs::File::from(received)
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "through");
}

fn a_truncated_datagram_says_so(mut driver: Driver) {
    let (here, there) = UnixDatagram::pair().unwrap();
    there.send(b"longer than the buffer").unwrap();
    let message = Message::from(Vec::with_capacity(6));
    let room = message.buffer.capacity();
    let (result, op) = finish(
        &mut driver,
        receive_message(raw(&here), message, libc::MSG_TRUNC),
    );
    assert_eq!(result, 22);
    let Op::RecvMsg { message, .. } = op else {
        panic!("no message")
    };
    assert_eq!(message.buffer, b"longer than the buffer"[..room]);
    assert_ne!(message.flags & libc::MSG_TRUNC, 0);
}
