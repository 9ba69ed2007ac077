//! Both directions between two connections.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use super::copying::{ALL, Copying};
use super::ends::{Duplex, Sink, Source};
use crate::sealed::INTERNAL;

/// Copies between two connections in both directions, until both have ended. Returns how many bytes went from the first
/// to the second, and from the second to the first.
///
/// When one side finishes sending, that is passed on: writing to the other side is shut down, with a close_notify for
/// TLS. The other direction goes on. The connections stay open until they are dropped.
///
/// An error of either side ends both directions. A side that reads slowly slows down the one that sends to it. There is
/// no limit of time: use [`timeout`](crate::time::timeout), or a server's idle timeout.
///
/// From a plain connection to a plain one, or to one with kernel TLS, bulk data goes through a pipe in the kernel
/// (splice(2)), and small messages are copied.
/// If the future is dropped, up to 256 KB per direction that were read and not yet written are lost.
///
/// # Errors
/// Returns the errors of recv(2), send(2) and splice(2), and those of TLS, such as `UnexpectedEof` for a connection that
/// was cut off.
///
/// ```
/// use ringloop::net::UnixStream;
/// use ringloop::{Runtime, RuntimeConfig, io, spawn};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let (mut client, mut near) = UnixStream::pair()?;
///     let (mut far, mut server) = UnixStream::pair()?;
///     let proxy = spawn(async move { io::copy_bidirectional(&mut near, &mut far).await });
///
///     client.write_all(&b"question"[..]).await.0?;
///     client.shutdown(std::net::Shutdown::Write)?;
///     let (_, question) = server.read(Vec::with_capacity(64)).await;
///     assert_eq!(question, b"question");
///     // The server sees the end, and may still answer.
///     assert_eq!(server.read(Vec::with_capacity(64)).await.0?, 0);
///     server.write_all(&b"the answer"[..]).await.0?;
///     drop(server);
///     assert_eq!(proxy.await.unwrap()?, (8, 10));
///     let (_, answer) = client.read(Vec::with_capacity(64)).await;
///     assert_eq!(answer, b"the answer");
///     Ok(())
/// })
/// # }
/// ```
pub async fn copy_bidirectional<A: Duplex, B: Duplex>(
    first: &mut A,
    second: &mut B,
) -> io::Result<(u64, u64)> {
    let (from_first, to_first) = first.ends(INTERNAL);
    let (from_second, to_second) = second.ends(INTERNAL);
    let mut there = pin!(one_way(from_first, to_second));
    let mut back = pin!(one_way(from_second, to_first));
    let (mut there_count, mut back_count) = (None, None);
    let mut is_backs_turn = false;
    poll_fn(|context| {
        // A direction that never waits uses up the task's budget. So they take turns at being first.
        is_backs_turn = !is_backs_turn;
        for is_back in [is_backs_turn, !is_backs_turn] {
            let (way, count) = if is_back {
                (&mut back, &mut back_count)
            } else {
                (&mut there, &mut there_count)
            };
            if count.is_none()
                && let Poll::Ready(result) = way.as_mut().poll(context)
            {
                *count = Some(result?);
            }
        }
        match (there_count, back_count) {
            (Some(there), Some(back)) => Poll::Ready(Ok((there, back))),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Copies one direction, and passes on its end.
async fn one_way(source: Source<'_>, sink: Sink<'_>) -> io::Result<u64> {
    let mut copying = Copying::new(source, sink, ALL);
    let count = copying.run().await?;
    copying.sink.finish().await?;
    Ok(count)
}
