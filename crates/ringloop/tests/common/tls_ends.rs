//! The promises of TLS connections to both ends, whoever encrypts. The program that includes this has a `read_to_end`.

use std::io::ErrorKind;

use ringloop::net::Stream;
use ringloop::spawn;
use ringloop::time::timeout;
use ringloop::tls::TlsStream;

use crate::common::{LONG, pattern};
use crate::read_to_end;

/// Sends everything to the other end, and gets it back.
pub(crate) async fn exchange<S: Stream + 'static>(
    near: TlsStream<S>,
    mut far: TlsStream<S>,
    size: usize,
) {
    // Halves that are put together again end nothing.
    let (reader, writer) = near.into_split();
    let near = reader.reunite(writer).ok().unwrap();
    let (mut reader, mut writer) = near.into_split();
    let sending = spawn(async move {
        writer.write_all(&pattern(size)[..]).await.0.unwrap();
        writer.shutdown().await.unwrap();
    });
    let echoing = spawn(async move {
        loop {
            let bytes = far.read_with(|bytes, _| bytes.to_vec()).await.unwrap();
            if bytes.is_empty() {
                break;
            }
            far.write_all(&bytes[..]).await.0.unwrap();
        }
        far.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    loop {
        received.reserve(7000);
        let (count, filled) = timeout(LONG, reader.read(received)).await.unwrap();
        received = filled;
        if count.unwrap() == 0 {
            break;
        }
    }
    assert!(received == pattern(size));
    sending.await.unwrap();
    echoing.await.unwrap();
}

/// An end without a word is an error, and a told one is not. `pair` makes two ends of a connection.
pub(crate) async fn ends_are_told(pair: impl AsyncFn() -> (TlsStream, TlsStream)) {
    let (mut near, mut far) = pair().await;
    far.write_all(&b"the beginning"[..]).await.0.unwrap();
    drop(far);
    let (count, bytes) = near.read(Vec::with_capacity(64)).await;
    assert_eq!((count.unwrap(), &bytes[..]), (13, &b"the beginning"[..]));
    for _ in 0..2 {
        let error = near.read(Vec::with_capacity(64)).await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    let (mut near, mut far) = pair().await;
    far.write_all(&b"all"[..]).await.0.unwrap();
    far.shutdown().await.unwrap();
    far.shutdown().await.unwrap();
    let error = far.write(&b"more"[..]).await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(read_to_end(&mut near).await.unwrap(), b"all");
    // That was one direction.
    near.write_all(&b"answer"[..]).await.0.unwrap();
    near.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut far).await.unwrap(), b"answer");

    // A half that is dropped ends its direction, and says so unless a panic drops it.
    let (near, mut far) = pair().await;
    let (_reader, mut writer) = near.into_split();
    writer.write_all(&b"all"[..]).await.0.unwrap();
    drop(writer);
    assert_eq!(read_to_end(&mut far).await.unwrap(), b"all");
    let (near, mut far) = pair().await;
    let (_reader, mut writer) = near.into_split();
    let panicking = spawn(async move {
        writer.write_all(&b"half"[..]).await.0.unwrap();
        panic!("in the middle");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    let error = read_to_end(&mut far).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}
