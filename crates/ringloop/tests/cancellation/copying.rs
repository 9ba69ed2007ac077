//! Copying in the kernel.

use std::io::SeekFrom;
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use ringloop::fs::File;
use ringloop::net::UnixStream;
use ringloop::{io, spawn};

use crate::common::on_both;
use crate::cut::{Cut, When, at_every_poll};
use crate::memory::buffer;
use crate::sockets::{BYTES, a_turn, pieces, tcp, unix};

/// Reads until the end, with turns in between.
macro_rules! receive_all {
    ($stream:expr) => {{
        let mut stream = $stream;
        spawn(async move {
            let mut all = Vec::new();
            while let (Ok(1..), bytes) = stream.read(buffer()).await {
                all.extend_from_slice(&bytes);
                a_turn().await;
            }
            all
        })
    }};
}

/// The file's position tells what was sent, so that each byte arrives once.
#[test]
fn sending_a_file() {
    let path = std::env::temp_dir().join(format!("ringloop-copied-{}", std::process::id()));
    std::fs::write(&path, &*BYTES).unwrap();
    at_every_poll(async |cut| {
        let mut file = File::open(&path).await.unwrap();
        let (mut near, far) = tcp().await;
        let received = receive_all!(far);
        cut.run(async { io::copy(&mut file, &mut near).await.unwrap() })
            .await;
        io::copy(&mut file, &mut near).await.unwrap();
        assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), BYTES.len() as u64);
        drop(near);
        assert!(
            received.await.unwrap() == *BYTES,
            "bytes are lost or doubled"
        );
    });
    std::fs::remove_file(path).unwrap();
}

/// The bytes that arrive are those that were sent, as far as they go.
async fn joining(cut: &Cut) {
    let ((mut left, mut first), (mut second, right)) = (tcp().await, unix());
    let received = receive_all!(right);
    let sending = spawn(async move {
        // Enough at once for a pipe to be used.
        if left.write_all(&BYTES[..]).await.0.is_err() {
            return;
        }
        for piece in pieces(&BYTES) {
            if left.write_all(piece).await.0.is_err() {
                return;
            }
            a_turn().await;
        }
        drop(left.shutdown(Shutdown::Write));
        while let (Ok(1..), _) = left.read(buffer()).await {}
    });
    let whole = async {
        io::copy_bidirectional(&mut first, &mut second)
            .await
            .unwrap()
    };
    let counts = cut.run(whole).await;
    drop((first, second));
    sending.await.unwrap();
    let received = received.await.unwrap();
    let expected = [&BYTES[..], &BYTES[..]].concat();
    assert!(expected.starts_with(&received), "bytes are wrong");
    if let Some((there, back)) = counts {
        assert_eq!((there, back), (expected.len() as u64, 0));
        assert_eq!(received.len(), expected.len());
    }
}

#[test]
fn joining_connections() {
    // The thread keeps the pipes, which therefore have to be there before.
    on_both(|runtime| runtime.block_on(joining(&Cut::new(usize::MAX, When::Polled))));
    at_every_poll(joining);
}

#[test]
fn copying_from_and_to_a_pipe() {
    at_every_poll(async |cut| {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut reader = File::from(OwnedFd::from(reader));
        let mut writer = File::from(OwnedFd::from(writer));
        let ((mut near, mut middle), (mut other, far)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let received = receive_all!(far);
        let sending = spawn(async move {
            for piece in pieces(&BYTES) {
                if near.write_all(piece).await.0.is_err() {
                    break;
                }
                a_turn().await;
            }
        });
        let whole = async {
            let there = async {
                let count = io::copy(&mut middle, &mut writer).await.unwrap();
                drop(writer);
                count
            };
            let onwards = async { io::copy(&mut reader, &mut other).await.unwrap() };
            futures_util::future::join(there, onwards).await
        };
        let counts = cut.run_keeping_wakers(whole).await;
        drop((reader, middle, other));
        sending.await.unwrap();
        let received = received.await.unwrap();
        assert!(BYTES.starts_with(&received), "bytes are wrong");
        if counts.is_some() {
            assert_eq!(received.len(), BYTES.len());
        }
    });
}
