//! Noticing that a peer has gone without reading from it, on both backends.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::future::{Future, pending, poll_fn};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, join, join3, select};
use ringloop::net::{Closed, OwnedWriteHalf, TcpStream, UnixStream};
use ringloop::server::{Connection, Handler, Server};
use ringloop::time::{sleep, timeout};
use ringloop::tls::{TlsAcceptor, TlsConnector};
use ringloop::{Runtime, spawn};
use socket2::SockRef;

use common::{LONG, config_on, connect, on_both, pool_config, tcp};

async fn within(closed: Closed) -> io::Result<()> {
    timeout(LONG, closed).await.expect("it is not noticed")
}

/// Whether a future still waits, after events have had time to arrive.
async fn still_waits(mut closed: impl Future<Output = io::Result<()>> + Unpin) -> bool {
    for _ in 0..5 {
        let is_ready =
            poll_fn(|context| Poll::Ready(pin!(&mut closed).poll(context).is_ready())).await;
        if is_ready {
            return false;
        }
        sleep(Duration::from_millis(2)).await;
    }
    true
}

/// Closes a connection with a reset.
fn reset(stream: TcpStream) {
    let linger = Some(Duration::ZERO);
    SockRef::from(&stream).set_linger(linger).unwrap();
    drop(stream);
}

#[test]
fn a_reset_is_noticed_by_all_who_wait_for_it() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = tcp().await;
            let (first, second, ended) = (near.closed(), near.closed(), near.read_closed());
            let waiting = spawn(join3(within(first), within(second), within(ended)));
            assert!(still_waits(near.closed()).await);
            reset(far);
            let (first, second, ended) = waiting.await.unwrap();
            assert!(first.is_ok() && second.is_ok() && ended.is_ok());
            // Whoever asks later learns it as well, and the error is still there to be read.
            within(near.closed()).await.unwrap();
            within(near.clone_closed()).await.unwrap();
            let mut near = near;
            let (result, _) = near.read(Vec::with_capacity(1)).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
        });
    });
}

/// The same future again.
trait CloneClosed {
    fn clone_closed(&self) -> Closed;
}

impl CloneClosed for TcpStream {
    fn clone_closed(&self) -> Closed {
        let closed = self.closed();
        closed.clone()
    }
}

#[test]
fn a_peer_that_finishes_sending_may_still_read() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = tcp().await;
            far.write_all(&b"question"[..]).await.0.unwrap();
            assert!(still_waits(near.read_closed()).await);
            far.shutdown(Shutdown::Write).unwrap();
            within(near.read_closed()).await.unwrap();
            assert!(still_waits(near.closed()).await);
            // Nothing was read by that.
            let (count, bytes) = near.read(Vec::with_capacity(100)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (8, &b"question"[..]));
            near.write_all(&b"answer"[..]).await.0.unwrap();
            assert!(still_waits(near.closed()).await);
            near.shutdown(Shutdown::Write).unwrap();
            within(near.closed()).await.unwrap();
            let (count, bytes) = far.read(Vec::with_capacity(100)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (6, &b"answer"[..]));
        });
    });
}

#[test]
fn a_future_outlives_its_stream_and_does_not_borrow_it() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, mut far) = UnixStream::pair().unwrap();
            let closed = {
                let closed = near.closed();
                // It is read meanwhile.
                let reading = pin!(near.read(Vec::with_capacity(4)));
                let writing = async {
                    sleep(Duration::from_millis(1)).await;
                    far.write_all(&b"some"[..]).await.0.unwrap();
                };
                match select(closed, pin!(join(reading, writing))).await {
                    Either::Right((((count, _), ()), closed)) => {
                        assert_eq!(count.unwrap(), 4);
                        closed
                    }
                    Either::Left(_) => panic!("nobody has closed it"),
                }
            };
            let waiting = spawn(join(within(closed), within(near.read_closed())));
            sleep(Duration::from_millis(1)).await;
            drop(near);
            let (closed, ended) = waiting.await.unwrap();
            assert!(closed.is_ok() && ended.is_ok());
            // A stream that is given away ends here as well.
            let waiting = spawn(within(far.closed()));
            sleep(Duration::from_millis(1)).await;
            drop(far.into_std().unwrap());
            waiting.await.unwrap().unwrap();
        });
    });
}

#[test]
fn halves_and_unix_sockets_notice_it_too() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = UnixStream::pair().unwrap();
            let (reader, writer) = near.into_split();
            let waiting = spawn(join3(
                within(reader.closed()),
                within(writer.closed()),
                within(writer.read_closed()),
            ));
            assert!(still_waits(reader.read_closed()).await);
            drop(far);
            let (by_reader, by_writer, ended) = waiting.await.unwrap();
            assert!(by_reader.is_ok() && by_writer.is_ok() && ended.is_ok());
            drop::<OwnedWriteHalf<UnixStream>>(writer);
        });
    });
}

#[test]
fn tls_notices_the_end_of_the_connection_below() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = tcp().await;
            let acceptor = TlsAcceptor::new(certificates::server());
            let accepting = spawn(async move { acceptor.accept(far).await });
            let name = certificates::NAME.try_into().unwrap();
            let near = TlsConnector::new(certificates::client())
                .connect(name, near)
                .await
                .unwrap();
            let far = accepting.await.unwrap().unwrap();
            assert!(still_waits(far.closed()).await && still_waits(far.read_closed()).await);
            let linger = Some(Duration::ZERO);
            SockRef::from(near.stream()).set_linger(linger).unwrap();
            let (reader, writer) = far.into_split();
            let waiting = spawn(join3(
                within(reader.closed()),
                within(writer.closed()),
                within(reader.read_closed()),
            ));
            sleep(Duration::from_millis(1)).await;
            drop(near);
            let (by_reader, by_writer, ended) = waiting.await.unwrap();
            assert!(by_reader.is_ok() && by_writer.is_ok() && ended.is_ok());
        });
    });
}

#[test]
fn waiting_where_nobody_would_wake_it_is_an_error() {
    on_both(|runtime| {
        let (near, far) = runtime.block_on(tcp());
        let closed = near.closed();
        let mut other = Runtime::new(&config_on(runtime.backend())).unwrap();
        let error = other.block_on(closed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        drop((near, far));
    });
}

#[test]
fn a_function_learns_that_its_client_is_gone_while_it_waits_elsewhere() {
    for backend in common::backends() {
        let (told, hears) = mpsc::channel();
        let server = Server::new("127.0.0.1:0")
            .workers(1)
            .pool_config(pool_config(backend))
            .start_with(move |mut stream, client| {
                let told = told.clone();
                async move {
                    stream.read(Vec::with_capacity(8)).await.0?;
                    match select(pending::<()>(), client.closed()).await {
                        Either::Left(_) => unreachable!("it waits for ever"),
                        Either::Right((closed, _)) => told.send(closed.is_ok()).unwrap(),
                    }
                    Ok(())
                }
            })
            .unwrap();
        let mut client = connect(server.local_addr());
        client.write_all(b"question").unwrap();
        let linger = Some(Duration::ZERO);
        SockRef::from(&client).set_linger(linger).unwrap();
        drop(client);
        assert!(hears.recv_timeout(LONG).unwrap());
        server.shutdown(LONG);
    }
}

#[test]
fn a_task_of_a_handler_learns_that_its_client_is_gone() {
    /// Starts a task for each connection, which outlives the handler.
    struct Spawns(mpsc::Sender<&'static str>);

    impl Handler for Spawns {
        fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
            let (closed, told) = (connection.closed(), self.0.clone());
            drop(spawn(async move {
                closed.await.unwrap();
                told.send("task").unwrap();
            }));
            connection.write(b"!")
        }

        fn data(&mut self, _: &mut Connection<'_>, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn closed(&mut self) {
            self.0.send("handler").unwrap();
        }
    }

    for backend in common::backends() {
        let (told, hears) = mpsc::channel();
        let server = Server::new("127.0.0.1:0")
            .workers(1)
            .pool_config(pool_config(backend))
            .start(move || Spawns(told.clone()))
            .unwrap();
        let mut client = connect(server.local_addr());
        client.read_exact(&mut [0]).unwrap();
        drop(client);
        let mut who = [0; 2].map(|_| hears.recv_timeout(LONG).unwrap());
        who.sort_unstable();
        assert_eq!(who, ["handler", "task"]);
        server.shutdown(LONG);
    }
}
