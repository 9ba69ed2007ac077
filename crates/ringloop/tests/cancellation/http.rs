//! HTTP with hyper: connections that are dropped in the middle of a request leave nothing behind, and the other end
//! notices.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1 as client1, http2 as client2};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use ringloop::hyper::{Client, ClientOptions, Connector, Executor, Http, Timer};
use ringloop::net::{TcpListener, TcpStream};
use ringloop::server::Server;
use ringloop::time::timeout;
use ringloop::tls::{TlsConnector, TlsStream};
use ringloop::{JoinSet, spawn};

use crate::certificates;
use crate::common::LONG;
use crate::cut::{Cut, When, at_every_poll, leaving_nothing};
use crate::memory::buffer;
use crate::servers::{server, until_nobody_is_left};
use crate::sockets::{BYTES, tcp};

/// How long the bodies are, one request after another.
const LENGTHS: [usize; 4] = [0, 5, 150_000, 10_000];

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _watched = buffer();
    // A request that is cut off has nobody who waits for its answer.
    let body = request.into_body().collect().await;
    let body = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    Ok(Response::new(Full::new(body)))
}

/// Sends all requests over a connection made by `$client`, until an error. Counts the complete answers in `$answered`.
macro_rules! ask {
    ($handshake:expr, $answered:expr) => {
        async {
            let (mut sender, connection) = $handshake.await?;
            let connection = spawn(connection);
            for length in LENGTHS {
                let request = Request::post("http://ringloop.test/")
                    .body(Full::new(Bytes::from_static(&BYTES[..length])))
                    .unwrap();
                sender.ready().await?;
                let answer = sender.send_request(request).await?;
                let body = answer.into_body().collect().await?.to_bytes();
                assert!(
                    body == BYTES[..length],
                    "an answer is not what was asked for"
                );
                $answered.set($answered.get() + 1);
            }
            drop(sender);
            connection.await.unwrap()
        }
    };
}

/// Drops one end of a connection after each poll; the other end ends by itself.
macro_rules! a_connection {
    ($serving:ident, $asking:ident, $serve:expr, $handshake:expr) => {
        #[test]
        fn $serving() {
            at_every_poll(async |cut| {
                let (near, far) = tcp().await;
                let asking = spawn(async move {
                    let answered = Cell::new(0);
                    let result: hyper::Result<()> = ask!($handshake(near), answered).await;
                    (result, answered.get())
                });
                let is_over = cut.run_keeping_wakers($serve(far)).await.is_some();
                let (result, answered) = asking.await.unwrap();
                // A connection may be cut off after its last answer.
                assert!(answered == LENGTHS.len() || result.is_err() && !is_over);
            });
        }

        #[test]
        fn $asking() {
            at_every_poll(async |cut| {
                let (near, far) = tcp().await;
                let serving = spawn($serve(far));
                let answered = Cell::new(0);
                let result = cut
                    .run_keeping_wakers(ask!($handshake(near), answered))
                    .await;
                if let Some(result) = result {
                    let result: hyper::Result<()> = result;
                    result.unwrap();
                    assert_eq!(answered.get(), LENGTHS.len());
                }
                // It may find the connection broken in the middle of a request.
                drop(serving.await.unwrap());
            });
        }
    };
}

a_connection!(
    serving_http1,
    asking_by_http1,
    |stream| http1::Builder::new()
        .timer(Timer)
        .serve_connection(stream, service_fn(echo)),
    client1::handshake
);
a_connection!(
    serving_http2,
    asking_by_http2,
    |stream| http2::Builder::new(Executor)
        .timer(Timer)
        .serve_connection(stream, service_fn(echo)),
    |stream| client2::handshake(Executor, stream)
);

/// The future that serves the first connection is dropped after some polls. The other client gets all its answers.
macro_rules! a_server {
    ($name:ident, $server:expr, |$stream:ident| $handshake:expr) => {
        #[test]
        fn $name() {
            leaving_nothing(|runtime| {
                for when in [When::Polled, When::Woken] {
                    for polls in 0..12 {
                        let is_first = Arc::new(AtomicBool::new(true));
                        let server = $server(server(runtime.backend()))
                            .start_with(move |stream, client| {
                                let is_first = is_first.swap(false, Ordering::Relaxed);
                                async move {
                                    let http = Http::new();
                                    let serving = http.serve(stream, &client, service_fn(echo));
                                    if is_first {
                                        let cut = Cut::new(polls, when);
                                        cut.run_keeping_wakers(serving).await.unwrap_or(Ok(()))
                                    } else {
                                        serving.await
                                    }
                                }
                            })
                            .unwrap();
                        let address = server.local_addr();
                        let clients = [(); 2].map(|()| async move {
                            let answered = Cell::new(0);
                            let asking = async {
                                let $stream = TcpStream::connect(address).await.unwrap();
                                ask!($handshake, answered).await
                            };
                            let result: hyper::Result<()> = timeout(LONG, asking).await.unwrap();
                            (result.is_ok(), answered.get())
                        });
                        let mut results = runtime.block_on(async {
                            let [first, second] = clients.map(spawn);
                            [first.await.unwrap(), second.await.unwrap()]
                        });
                        results.sort_unstable();
                        assert_eq!(results[1], (true, LENGTHS.len()));
                        assert!(!results[0].0 || results[0].1 == LENGTHS.len());
                        until_nobody_is_left(&server);
                        assert_eq!(server.counters().panics, 0);
                        server.shutdown(LONG);
                    }
                }
            });
        }
    };
}

a_server!(a_server_of_http1, |server| server, |stream| {
    client1::handshake(stream)
});

fn with_http2(server: Server) -> Server<TlsStream> {
    let mut config = certificates::server();
    config.alpn_protocols = vec![b"h2".to_vec()];
    server.tls(config)
}

async fn secure(stream: TcpStream) -> TlsStream {
    let mut config = certificates::client();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = certificates::NAME.try_into().unwrap();
    TlsConnector::new(config)
        .connect(name, stream)
        .await
        .unwrap()
}

a_server!(a_server_of_http2_over_tls, with_http2, |stream| {
    client2::handshake(Executor, secure(stream).await)
});

/// A request of a pool is dropped after each poll. The next one gets its answer, also where there may be one connection.
macro_rules! a_pool {
    ($name:ident, $http2_only:expr, $serve:expr) => {
        #[test]
        fn $name() {
            at_every_poll(async |cut| {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let uri = format!("http://{}/", listener.local_addr().unwrap());
                let server = spawn(async move {
                    let mut connections = JoinSet::new();
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        connections.spawn($serve(stream));
                    }
                })
                .abort_on_drop();
                let mut options = ClientOptions::default();
                options.connections_per_host = 1;
                options.http2_only = $http2_only;
                let client = Client::with_options(Connector::new(), options);
                let ask = async |length: usize| {
                    let body = Full::new(Bytes::from_static(&BYTES[..length]));
                    let request = Request::post(&uri).body(body).unwrap();
                    let response = client.request(request).await.unwrap();
                    let body = response.into_body().collect().await.unwrap().to_bytes();
                    assert!(body == BYTES[..length]);
                };
                let asking = async {
                    for length in LENGTHS {
                        ask(length).await;
                    }
                };
                cut.run_keeping_wakers(asking).await;
                ask(5).await;
                drop((client, server));
            });
        }
    };
}

a_pool!(a_pool_of_http1, false, |stream| http1::Builder::new()
    .timer(Timer)
    .serve_connection(stream, service_fn(echo)));
a_pool!(a_pool_of_http2, true, |stream| http2::Builder::new(
    Executor
)
.timer(Timer)
.serve_connection(stream, service_fn(echo)));
