//! HTTP with hyper, on both backends.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1 as client1, http2 as client2};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::rt::{Read as HyperRead, Write as HyperWrite};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use ringloop::hyper::{Executor, Http, Io, Timer};
use ringloop::net::{TcpStream, UnixStream};
use ringloop::server::{Running, Server};
use ringloop::time::{sleep, timeout};
use ringloop::tls::rustls::ServerConfig;
use ringloop::tls::{TlsConnector, TlsStream};
use ringloop::{JoinHandle, Runtime, RuntimeConfig, channel, spawn, yield_now};
use tower_service::Service;

use common::{LONG, backends, on_both, pattern, poll_times, pool_config, tcp};

/// Answers with the request's path and its body.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    let mut answer = Response::new(Full::new(body));
    answer
        .headers_mut()
        .insert("x-path", path.parse().expect("a path is a header's value"));
    Ok(answer)
}

fn request(index: usize, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri(format!("http://example.org/{index}"))
        .header("host", "example.org")
        .body(Full::new(body.into()))
        .unwrap()
}

async fn check(answer: Response<Incoming>, index: usize, body: &[u8]) {
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["x-path"], format!("/{index}"));
    let received = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(received == body);
}

fn serve1<S: HyperRead + HyperWrite + Unpin + 'static>(
    stream: S,
) -> JoinHandle<Result<(), hyper::Error>> {
    spawn(
        http1::Builder::new()
            .timer(Timer)
            .serve_connection(stream, service_fn(echo)),
    )
}

fn serve2<S: HyperRead + HyperWrite + Unpin + 'static>(
    stream: S,
) -> JoinHandle<Result<(), hyper::Error>> {
    spawn(
        http2::Builder::new(Executor)
            .timer(Timer)
            .serve_connection(stream, service_fn(echo)),
    )
}

const BODIES: [usize; 5] = [0, 1, 5000, 700_001, 3];

async fn talk1<S: HyperRead + HyperWrite + Unpin + 'static>(near: S, far: S) {
    let server = serve1(far);
    let (mut sender, connection) = client1::handshake(near).await.unwrap();
    let connection = spawn(connection);
    for (index, size) in BODIES.into_iter().enumerate() {
        sender.ready().await.unwrap();
        let answer = sender
            .send_request(request(index, pattern(size)))
            .await
            .unwrap();
        check(answer, index, &pattern(size)).await;
    }
    drop(sender);
    connection.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
}

async fn talk2<S: HyperRead + HyperWrite + Unpin + 'static>(near: S, far: S) {
    let server = serve2(far);
    let (sender, connection) = client2::handshake(Executor, near).await.unwrap();
    let connection = spawn(connection);
    // All at once, over one connection.
    let requests: Vec<_> = (0..50)
        .map(|index| {
            let mut sender = sender.clone();
            spawn(async move {
                let body = pattern(BODIES[index % BODIES.len()]);
                let answer = sender
                    .send_request(request(index, body.clone()))
                    .await
                    .unwrap();
                check(answer, index, &body).await;
            })
        })
        .collect();
    for request in requests {
        request.await.unwrap();
    }
    drop(sender);
    connection.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
}

#[test]
fn http_1_and_2_are_answered_over_tcp_and_unix_sockets() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, far) = tcp().await;
            timeout(LONG, talk1(near, far)).await.unwrap();
            let (near, far) = tcp().await;
            timeout(LONG, talk2(near, far)).await.unwrap();
            let (near, far) = UnixStream::pair().unwrap();
            timeout(LONG, talk1(near, far)).await.unwrap();
            let (near, far) = UnixStream::pair().unwrap();
            timeout(LONG, talk2(near, far)).await.unwrap();
        });
    });
}

/// A server on each backend.
fn on_each_server(body: impl Fn(Server)) {
    for backend in backends() {
        let server = Server::new("127.0.0.1:0").workers(2);
        body(server.pool_config(pool_config(backend)));
    }
}

fn server_of_both_versions() -> ServerConfig {
    let mut config = certificates::server();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

#[test]
fn the_socket_pool_serves_http() {
    on_each_server(|server| {
        let http = Http::new();
        let server = server
            .start_with(move |stream, client| {
                let http = http.clone();
                async move { http.serve(stream, &client, service_fn(echo)).await }
            })
            .unwrap();
        for index in 0..10 {
            let mut client = std::net::TcpStream::connect(server.local_addr()).unwrap();
            client.set_read_timeout(Some(LONG)).unwrap();
            let text = format!(
                "POST /{index} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
            );
            // Byte by byte.
            for byte in text.as_bytes() {
                client.write_all(&[*byte]).unwrap();
            }
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(
                answer.contains(&format!("x-path: /{index}\r\n")),
                "{answer}"
            );
            assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        }
        server.shutdown(LONG);
    });
}

/// Connects with TLS, for one version of HTTP.
async fn secure(server: &Running, protocol: &[u8]) -> TlsStream {
    let mut config = certificates::client();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(server.local_addr()).await.unwrap();
    TlsConnector::new(config)
        .connect(certificates::NAME.try_into().unwrap(), stream)
        .await
        .unwrap()
}

/// Answers when it is told to.
#[derive(Clone)]
struct Gate {
    began: channel::Sender<()>,
    open: channel::Receiver<()>,
}

impl Gate {
    async fn answer(self, _: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        self.began.send(()).await.unwrap();
        self.open.recv().await.unwrap();
        Ok(Response::new(Full::new(Bytes::from_static(b"finished"))))
    }
}

#[test]
fn a_server_that_drains_finishes_requests_and_closes_what_rests() {
    on_each_server(|server| {
        let (began, has_begun) = channel::unbounded();
        let (opener, open) = channel::unbounded();
        let gate = Gate { began, open };
        let http = Http::new();
        // One worker: when the first connection ends, all have heard that the server drains.
        let server = server
            .workers(1)
            .tls(server_of_both_versions())
            .start_with(move |stream, client| {
                let (http, gate) = (http.clone(), gate.clone());
                let service = service_fn(move |request| gate.clone().answer(request));
                async move { http.serve(stream, &client, service).await }
            })
            .unwrap();
        let mut runtime = Runtime::new(&RuntimeConfig::default()).unwrap();
        runtime.block_on(async {
            let request = || Request::new(Full::<Bytes>::default());
            let text = async |answer: Response<Incoming>| {
                answer.into_body().collect().await.unwrap().to_bytes()
            };
            let (mut one, connection_1) = client1::handshake(secure(&server, b"http/1.1").await)
                .await
                .unwrap();
            let connection_1 = spawn(connection_1);
            let (mut two, connection_2) =
                client2::handshake(Executor, secure(&server, b"h2").await)
                    .await
                    .unwrap();
            let connection_2 = spawn(connection_2);
            let (_resting, connection_3) =
                client1::handshake::<_, Full<Bytes>>(secure(&server, b"http/1.1").await)
                    .await
                    .unwrap();
            let connection_3 = spawn(connection_3);
            let asking_1 = spawn(one.send_request(request()));
            let asking_2 = spawn(two.send_request(request()));
            has_begun.recv().await.unwrap();
            has_begun.recv().await.unwrap();
            let closing = thread::spawn(move || server.shutdown(LONG));
            // What rests ends at once, while requests are under way.
            drop(timeout(LONG, connection_3).await.unwrap().unwrap());
            assert!(!asking_1.is_finished() && !asking_2.is_finished());
            opener.send(()).await.unwrap();
            opener.send(()).await.unwrap();
            let answer = timeout(LONG, asking_1).await.unwrap().unwrap().unwrap();
            assert_eq!(answer.headers()[CONNECTION], "close");
            assert_eq!(text(answer).await, "finished");
            let answer = timeout(LONG, asking_2).await.unwrap().unwrap().unwrap();
            assert_eq!(text(answer).await, "finished");
            drop(timeout(LONG, connection_1).await.unwrap().unwrap());
            timeout(LONG, connection_2).await.unwrap().unwrap().unwrap();
            assert!(two.send_request(request()).await.is_err());
            closing.join().unwrap();
        });
    });
}

/// The last of several requests in a row is answered like the others, even if the client has already shut down writing.
#[test]
fn a_client_that_closes_its_half_gets_all_of_its_answers() {
    on_each_server(|server| {
        let (began, has_begun) = channel::unbounded();
        let (opener, open) = channel::unbounded();
        let gate = Gate { began, open };
        let mut http = Http::new();
        http.half_close_timeout = Some(LONG);
        let server = server
            .start_with(move |stream, client| {
                let (http, gate) = (http.clone(), gate.clone());
                let service = service_fn(move |request| gate.clone().answer(request));
                async move { http.serve(stream, &client, service).await }
            })
            .unwrap();
        let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
            .write_all(&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3))
            .unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        has_begun.recv_blocking().unwrap();
        for _ in 0..3 {
            // Meanwhile the end of the requests is seen.
            thread::sleep(Duration::from_millis(20));
            opener.send_blocking(()).unwrap();
        }
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        assert_eq!(answers.matches("finished").count(), 3, "{answers}");
        server.shutdown(LONG);
    });
}

/// Long polling, for example: a client that closes its connection looks like one that has shut down writing.
#[test]
fn a_service_ends_soon_after_its_client_has_gone() {
    /// Tells when it is dropped.
    struct Told(channel::Sender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.try_send(());
        }
    }

    on_each_server(|server| {
        let (began, has_begun) = channel::unbounded();
        let (told, is_told) = channel::unbounded();
        let http = Http::new();
        let server = server
            .workers(1)
            .start_with(move |stream, client| {
                let (http, began, told) = (http.clone(), began.clone(), told.clone());
                let service = service_fn(move |_: Request<Incoming>| {
                    let (began, told) = (began.clone(), Told(told.clone()));
                    async move {
                        began.send(()).await.unwrap();
                        std::future::pending::<()>().await;
                        drop(told);
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
                    }
                });
                async move { http.serve(stream, &client, service).await }
            })
            .unwrap();
        let ask = || {
            let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
            stream
                .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                .unwrap();
            has_begun.recv_blocking().unwrap();
            stream
        };
        let (closes, resets, stays) = (ask(), ask(), ask());
        drop(closes);
        socket2::SockRef::from(&resets)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(resets);
        let mut runtime = Runtime::new(&RuntimeConfig::default()).unwrap();
        for _ in 0..2 {
            let hearing = async { timeout(LONG, is_told.recv()).await };
            runtime.block_on(hearing).unwrap().unwrap();
        }
        while server.counters().live > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(server.counters().errors, 2);
        drop(stays);
        server.shutdown(Duration::ZERO);
    });
}

/// It has nothing else to do: without a limit of HTTP's own, the server's counts.
#[test]
fn a_service_may_be_given_all_the_time_after_its_client_has_closed_its_half() {
    on_each_server(|server| {
        let mut http = Http::new();
        http.half_close_timeout = None;
        let server = server
            .idle_timeout(None)
            .start_with(move |stream, client| {
                let http = http.clone();
                let service = service_fn(|request| async {
                    // Longer than the default.
                    sleep(Duration::from_millis(2500)).await;
                    echo(request).await
                });
                async move { http.serve(stream, &client, service).await }
            })
            .unwrap();
        let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
            .write_all(b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n")
            .unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("x-path: /late"), "{answer}");
        server.shutdown(LONG);
    });
}

#[test]
fn axum_says_hello() {
    on_each_server(|server| {
        let app = Router::new()
            .route("/", get(|| async { "Hello, World!" }))
            .route(
                "/greet/{name}",
                // What is not `Send` runs in a task: its handle is.
                get(|Path(name): Path<String>| async move {
                    let pausing = spawn(async { sleep(Duration::from_millis(1)).await });
                    pausing.await.unwrap();
                    format!("Hello, {name}!")
                }),
            );
        let http = Http::new();
        let server = server
            .tls(server_of_both_versions())
            .start_with(move |stream, client| {
                let (http, app) = (http.clone(), app.clone());
                let service = service_fn(move |request| app.clone().call(request));
                async move { http.serve(stream, &client, service).await }
            })
            .unwrap();
        let mut runtime = Runtime::new(&RuntimeConfig::default()).unwrap();
        runtime.block_on(async {
            let ask = |path: &str| {
                Request::builder()
                    .uri(format!("https://{}{path}", certificates::NAME))
                    .header("host", certificates::NAME)
                    .body(Full::<Bytes>::default())
                    .unwrap()
            };
            let read = async |answer: Response<Incoming>| {
                let status = answer.status();
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                (status, String::from_utf8(body.to_vec()).unwrap())
            };
            let expected = [
                ("/", StatusCode::OK, "Hello, World!"),
                ("/greet/you", StatusCode::OK, "Hello, you!"),
                ("/nowhere", StatusCode::NOT_FOUND, ""),
            ];
            let (mut one, connection) = client1::handshake(secure(&server, b"http/1.1").await)
                .await
                .unwrap();
            let connection_1 = spawn(connection);
            let (mut two, connection) = client2::handshake(Executor, secure(&server, b"h2").await)
                .await
                .unwrap();
            let connection_2 = spawn(connection);
            for (path, status, text) in expected {
                one.ready().await.unwrap();
                let answer = timeout(LONG, one.send_request(ask(path))).await.unwrap();
                assert_eq!(read(answer.unwrap()).await, (status, text.to_owned()));
                let answer = timeout(LONG, two.send_request(ask(path))).await.unwrap();
                assert_eq!(read(answer.unwrap()).await, (status, text.to_owned()));
            }
            drop((one, two));
            timeout(LONG, connection_1).await.unwrap().unwrap().unwrap();
            timeout(LONG, connection_2).await.unwrap().unwrap().unwrap();
        });
        server.shutdown(LONG);
    });
}

#[test]
fn clients_that_vanish_or_talk_nonsense_disturb_nobody() {
    on_both(|runtime| {
        runtime.block_on(async {
            // In the middle of a head, of a body, of an answer.
            for text in [
                "GET / HT",
                "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
            ] {
                let (mut near, far) = tcp().await;
                let server = serve1(far);
                near.write_all(text.as_bytes()).await.0.unwrap();
                yield_now().await;
                drop(near);
                let ended = timeout(LONG, server).await.unwrap().unwrap();
                // The service hears of a body that ends too early, and fails with that.
                let error = ended.unwrap_err();
                assert!(error.is_incomplete_message() || error.is_user(), "{error}");
            }
            let (mut near, far) = tcp().await;
            let server = serve1(far);
            near.write_all(&b"\0\0\0 nonsense\r\n\r\n"[..])
                .await
                .0
                .unwrap();
            let mut answer = Vec::with_capacity(1024);
            loop {
                let (count, filled) = near.read(answer).await;
                answer = filled;
                if count.unwrap() == 0 {
                    break;
                }
            }
            assert!(answer.starts_with(b"HTTP/1.1 400 Bad Request\r\n"));
            let ended = timeout(LONG, server).await.unwrap().unwrap();
            assert!(ended.unwrap_err().is_parse());
            let (mut near, far) = tcp().await;
            let server = serve2(far);
            near.write_all(&b"GET / HTTP/1.1\r\n\r\n\r\n\r\n\r\n\r\n"[..])
                .await
                .0
                .unwrap();
            assert!(timeout(LONG, server).await.unwrap().unwrap().is_err());
            // Never reads its large answer, and goes: a reset, because what was sent is unread.
            let (mut near, far) = tcp().await;
            let server = serve1(far);
            let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 6000000\r\n\r\n";
            near.write_all(head.as_bytes()).await.0.unwrap();
            near.write_all(&vec![1; 6_000_000][..]).await.0.unwrap();
            sleep(Duration::from_millis(2)).await;
            assert!(!server.is_finished());
            drop(near);
            assert!(timeout(LONG, server).await.unwrap().unwrap().is_err());
            // And others go on.
            let (near, far) = tcp().await;
            timeout(LONG, talk1(near, far)).await.unwrap();
        });
    });
}

#[test]
fn hypers_timeouts_end_connections() {
    on_both(|runtime| {
        runtime.block_on(async {
            // HTTP/1.1: a client that sends no head.
            let (_near, far) = tcp().await;
            let server = spawn(
                http1::Builder::new()
                    .timer(Timer)
                    .header_read_timeout(Duration::from_millis(3))
                    .serve_connection(far, service_fn(echo)),
            );
            let ended = timeout(LONG, server).await.unwrap().unwrap();
            assert!(ended.unwrap_err().is_timeout());
            // HTTP/2: a client that answers no ping; one that does lives through many.
            let (mut near, far) = tcp().await;
            let serve = |far, patience| {
                spawn(
                    http2::Builder::new(Executor)
                        .timer(Timer)
                        .keep_alive_interval(Duration::from_millis(2))
                        .keep_alive_timeout(patience)
                        .serve_connection(far, service_fn(echo)),
                )
            };
            let server = serve(far, Duration::from_millis(200));
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
            near.write_all(&preface[..]).await.0.unwrap();
            let ended = timeout(LONG, server).await.unwrap().unwrap();
            assert!(ended.unwrap_err().is_timeout());

            let (near, far) = tcp().await;
            let server = serve(far, LONG);
            let (mut sender, connection) = client2::handshake(Executor, near).await.unwrap();
            let connection = spawn(connection);
            for index in 0..5 {
                let answer = sender
                    .send_request(request(index, pattern(index)))
                    .await
                    .unwrap();
                check(answer, index, &pattern(index)).await;
                sleep(Duration::from_millis(10)).await;
            }
            drop(sender);
            connection.await.unwrap().unwrap();
            server.await.unwrap().unwrap();
        });
    });
}

async fn upgrade(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    drop(spawn(async move {
        let upgraded = hyper::upgrade::on(request).await.unwrap();
        let parts = upgraded.downcast::<Io<TcpStream>>().unwrap();
        let mut stream = parts.io.into_inner();
        let mut received = parts.read_buf.to_vec();
        loop {
            stream.write_all(&received[..]).await.0.unwrap();
            received.clear();
            received.reserve(64);
            let (count, filled) = stream.read(received).await;
            received = filled;
            if count.unwrap() == 0 {
                return;
            }
        }
    }));
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer
        .headers_mut()
        .insert(UPGRADE, "echo".parse().expect("a value"));
    answer
        .headers_mut()
        .insert(CONNECTION, "upgrade".parse().expect("a value"));
    Ok(answer)
}

#[test]
fn a_connection_can_be_upgraded() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = tcp().await;
            let server = spawn(
                http1::Builder::new()
                    .serve_connection(Io::new(far), service_fn(upgrade))
                    .with_upgrades(),
            );
            let head =
                "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nhello";
            near.write_all(head.as_bytes()).await.0.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"hello") {
                answer.reserve(256);
                let (count, filled) = timeout(LONG, near.read(answer)).await.unwrap();
                assert!(count.unwrap() > 0);
                answer = filled;
            }
            assert!(answer.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"));
            near.write_all(&b" and again"[..]).await.0.unwrap();
            let (count, bytes) = timeout(LONG, near.read(Vec::with_capacity(64)))
                .await
                .unwrap();
            assert_eq!((count.unwrap(), &bytes[..]), (10, &b" and again"[..]));
            server.await.unwrap().unwrap();
            drop(near);
        });
    });
}

#[test]
fn what_is_bound_to_a_thread_works_in_no_other() {
    let held = Rc::new(());
    let io = Io::new(Rc::clone(&held));
    let io = thread::spawn(move || {
        let error = catch_unwind(AssertUnwindSafe(|| drop(Rc::clone(io.get_ref())))).unwrap_err();
        let text = error.downcast_ref::<&str>().unwrap();
        assert!(text.contains("another thread"), "{text}");
        io
    })
    .join()
    .unwrap();
    assert_eq!(Rc::strong_count(&held), 2);
    drop(io);
    assert_eq!(Rc::strong_count(&held), 1);
    assert!(Rc::ptr_eq(&Io::new(Rc::clone(&held)).into_inner(), &held));
}

#[test]
fn what_is_dropped_in_another_thread_goes_home() {
    on_both(|runtime| {
        runtime.block_on(async {
            let held = Rc::new(());
            let (near, mut far) = UnixStream::pair().unwrap();
            let io = Io::new((Rc::clone(&held), near));
            let timer = hyper::rt::Timer::sleep(&Timer, LONG);
            thread::spawn(move || drop((io, timer))).join().unwrap();
            let (count, _) = timeout(LONG, far.read(Vec::with_capacity(1)))
                .await
                .unwrap();
            assert_eq!(count.unwrap(), 0);
            assert_eq!(Rc::strong_count(&held), 1);
            // A destructor that panics there harms nobody.
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    panic!("in its own thread");
                }
            }
            let bomb = Io::new(Bomb);
            thread::spawn(move || drop(bomb)).join().unwrap();
            yield_now().await;
            yield_now().await;
        });
        // What comes when nobody looks any more is dropped with the runtime; later it stays.
        let held = Rc::new(());
        let [first, second] =
            runtime.block_on(async { [Io::new(Rc::clone(&held)), Io::new(Rc::clone(&held))] });
        let config = common::config_on(runtime.backend());
        let ended = std::mem::replace(runtime, Runtime::new(&config).unwrap());
        thread::spawn(move || drop(first)).join().unwrap();
        assert_eq!(Rc::strong_count(&held), 3);
        drop(ended);
        assert_eq!(Rc::strong_count(&held), 2);
        thread::spawn(move || drop(second)).join().unwrap();
        assert_eq!(Rc::strong_count(&held), 2);
        let outside = Io::new(Rc::clone(&held));
        thread::spawn(move || drop(outside)).join().unwrap();
        assert_eq!(
            Rc::strong_count(&held),
            3,
            "no runtime ran where it was made"
        );
    });
}

#[test]
fn every_future_may_be_dropped_after_any_poll() {
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..8 {
                let (near, far) = tcp().await;
                let server = serve2(far);
                let (mut sender, connection) = client2::handshake(Executor, near).await.unwrap();
                let connection = spawn(connection);
                let body = pattern(100_000);
                drop(poll_times(polls, sender.send_request(request(0, body.clone()))).await);
                // The connection goes on without the one that was dropped.
                let answer = sender.send_request(request(1, body.clone())).await.unwrap();
                check(answer, 1, &body).await;
                drop(sender);
                timeout(LONG, connection).await.unwrap().unwrap().unwrap();
                timeout(LONG, server).await.unwrap().unwrap().unwrap();
                let (near, far) = tcp().await;
                let serving = http1::Builder::new()
                    .timer(Timer)
                    .serve_connection(far, service_fn(echo));
                let (mut sender, connection) = client1::handshake(near).await.unwrap();
                let connection = spawn(connection);
                let sending = spawn(async move {
                    drop(sender.send_request(request(0, pattern(10))).await);
                });
                drop(poll_times(polls, serving).await);
                timeout(LONG, sending).await.unwrap().unwrap();
                drop(timeout(LONG, connection).await.unwrap().unwrap());
            }
        });
    });
}
