//! Waiting for readiness alone, and looking at data without reading it.

use std::cell::RefCell;
use std::io::Read;

use ringloop::driver::Interest;
use ringloop::net::UnixStream;
use ringloop::{AsyncFd, spawn};

use crate::cut::at_every_poll;
use crate::memory::buffer;
use crate::sockets::a_turn;

#[test]
fn a_wait_for_any_descriptor_loses_nothing() {
    at_every_poll(async |cut| {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = AsyncFd::new(near).unwrap();
        let mut far = UnixStream::try_from(far).unwrap();
        let writing = spawn(async move {
            for byte in 0..4_u8 {
                a_turn().await;
                far.write_all(&[byte][..]).await.0.unwrap();
            }
        });
        let received = RefCell::new(Vec::new());
        let reading = async || loop {
            let mut byte = [0];
            let count = near
                .async_io(Interest::READ, |mut near| near.read(&mut byte))
                .await
                .unwrap();
            if count == 0 {
                return;
            }
            received.borrow_mut().push(byte[0]);
        };
        cut.run(reading()).await;
        reading().await;
        writing.await.unwrap();
        assert_eq!(received.into_inner(), [0, 1, 2, 3]);
    });
}

#[test]
fn peeking_and_trying_lose_no_byte() {
    at_every_poll(async |cut| {
        let (near, mut far) = UnixStream::pair().unwrap();
        let writing = spawn(async move {
            for byte in 0..4_u8 {
                a_turn().await;
                far.write_all(&[byte][..]).await.0.unwrap();
            }
        });
        let received = RefCell::new(Vec::new());
        let reading = async || {
            loop {
                let (count, peeked) = near.peek(buffer()).await;
                if count.unwrap() == 0 {
                    return;
                }
                near.readable().await.unwrap();
                let mut read = buffer();
                near.try_read(&mut read).unwrap();
                assert!(read.starts_with(&peeked));
                received.borrow_mut().extend_from_slice(&read);
            }
        };
        cut.run(reading()).await;
        reading().await;
        writing.await.unwrap();
        assert_eq!(received.into_inner(), [0, 1, 2, 3]);
    });
}

#[test]
fn room_is_awaited_by_several() {
    at_every_poll(async |cut| {
        let (near, far) = UnixStream::pair().unwrap();
        while near.try_write(&[0; 4096]).is_ok() {}
        let reading = spawn(async move {
            a_turn().await;
            while far.try_read(&mut buffer()).is_ok() {}
            far
        });
        let other = near.writable();
        let mut other = std::pin::pin!(other);
        assert!(crate::common::poll_times(1, other.as_mut()).await.is_none());
        cut.run(near.writable()).await;
        other.await.unwrap();
        reading.await.unwrap();
    });
}
