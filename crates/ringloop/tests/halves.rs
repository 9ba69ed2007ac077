//! Halves of connections that are put together again.

mod common;

use std::time::Duration;

use ringloop::net::UnixStream;
use ringloop::time::sleep;

use common::{on_both, poll_times, tcp};

fn room() -> Vec<u8> {
    Vec::with_capacity(16)
}

macro_rules! reunited {
    ($near:ident, $far:ident) => {{
        let (reader, mut writer) = $near.into_split();
        writer.write_all(&b"one"[..]).await.0.unwrap();
        let mut near = reader.reunite(writer).unwrap();
        sleep(Duration::ZERO).await;
        near.write_all(&b"two"[..]).await.0.unwrap();
        let mut all = Vec::with_capacity(6);
        while all.len() < 6 {
            assert!($far.read(&mut all).await.0.unwrap() > 0);
        }
        assert_eq!(all, b"onetwo");
        assert!(poll_times(3, $far.read(room())).await.is_none());
        $far.write_all(&b"answer"[..]).await.0.unwrap();
        assert_eq!(near.read(room()).await.1, b"answer");
        // Again, and now the writer is dropped.
        let (mut reader, writer) = near.into_split();
        drop(writer);
        assert_eq!($far.read(room()).await.0.unwrap(), 0);
        $far.write_all(&b"last"[..]).await.0.unwrap();
        assert_eq!(reader.read(room()).await.1, b"last");
    }};
}

#[test]
fn a_connection_that_was_split_is_whole_again() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = tcp().await;
            reunited!(near, far);
            let (near, mut far) = UnixStream::pair().unwrap();
            reunited!(near, far);
        });
    });
}

#[test]
fn halves_of_different_connections_come_back() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = UnixStream::pair().unwrap();
            let (near_reader, near_writer) = near.into_split();
            let (far_reader, far_writer) = far.into_split();
            let error = near_reader.reunite(far_writer).unwrap_err();
            assert!(error.to_string().contains("different"));
            let (near_reader, mut far_writer) = (error.0, error.1);
            far_writer.write_all(&b"open"[..]).await.0.unwrap();
            let mut near = near_reader.reunite(near_writer).unwrap();
            assert_eq!(near.read(room()).await.1, b"open");
            far_reader.reunite(far_writer).unwrap();
        });
    });
}
