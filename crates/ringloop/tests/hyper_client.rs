//! The HTTP client and its pool, on both backends.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::convert::Infallible;
use std::error::Error;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use ringloop::driver::BackendKind;
use ringloop::hyper::{Client, ClientOptions, Connector, Http};
use ringloop::net::{TcpListener, UnixListener};
use ringloop::server::{Running, Server};
use ringloop::time::{sleep, timeout};
use ringloop::{Runtime, channel, spawn};

use common::{LONG, on_both, pattern, poll_times, pool_config};

type Body = Full<Bytes>;

/// Answers with what it was asked: the version, the host, the path and the body. Some paths are special.
async fn echo(
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Box<dyn Error + Send + Sync>> {
    let uri = request.uri().clone();
    let version = format!("{:?}", request.version());
    let host = match request.headers().get("host") {
        Some(host) => host.to_str()?.to_owned(),
        None => uri.authority().map(ToString::to_string).unwrap_or_default(),
    };
    let body = request.into_body().collect().await?.to_bytes();
    let body = match uri.path() {
        "/large" => pattern(3_000_000).into(),
        "/slow" => {
            // In a task of its own, because it is not Send.
            spawn(sleep(Duration::from_millis(30))).await?;
            body
        }
        _ => body,
    };
    Ok(Response::builder()
        .header("x-version", version)
        .header("x-host", host)
        .header("x-path", uri.path())
        .body(Full::new(body).boxed())?)
}

fn serving(backend: BackendKind) -> Server {
    let pool = pool_config(backend.name().parse().unwrap());
    Server::new("127.0.0.1:0").workers(1).pool_config(pool)
}

fn plain(runtime: &Runtime) -> Running {
    let http = Http::new();
    serving(runtime.backend())
        .start_with(move |stream, client| {
            let http = http.clone();
            async move { http.serve(stream, &client, service_fn(echo)).await }
        })
        .unwrap()
}

fn secure(runtime: &Runtime, protocols: &[&[u8]]) -> Running {
    let http = Http::new();
    let mut config = certificates::server();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    serving(runtime.backend())
        .tls(config)
        .start_with(move |stream, client| {
            let http = http.clone();
            async move { http.serve(stream, &client, service_fn(echo)).await }
        })
        .unwrap()
}

/// Ends a server, once the connections of the clients have ended.
fn end(runtime: &mut Runtime, server: Running) {
    let start = Instant::now();
    while server.counters().live > 0 {
        assert!(start.elapsed() < LONG, "{:?}", server.counters());
        runtime.block_on(sleep(Duration::from_micros(200)));
    }
    server.shutdown(LONG);
}

fn post(uri: &str, body: Vec<u8>) -> Request<Body> {
    Request::post(uri).body(Full::new(body.into())).unwrap()
}

async fn read(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

/// Counts the connections that a blocking server has accepted.
struct Blocking {
    uri: String,
    accepted: Arc<AtomicUsize>,
}

/// A server of threads, whose connections are handled by `body`.
fn blocking(
    body: impl Fn(usize, std::net::TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> Blocking {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&accepted);
    let body = Arc::new(body);
    // It ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let number = counter.fetch_add(1, Ordering::SeqCst);
            let body = Arc::clone(&body);
            let stream = common::with_time_limits(stream.unwrap());
            thread::spawn(move || drop(body(number, stream)));
        }
    });
    Blocking { uri, accepted }
}

/// Reads the head of a request, and a body whose length it knows.
fn read_request(stream: &mut impl Read, body: usize) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    stream.read_exact(&mut vec![0; body])?;
    Ok(String::from_utf8(head).unwrap())
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn requests_one_after_another_use_one_connection() {
    on_both(|runtime| {
        let server = plain(runtime);
        let address = server.local_addr();
        runtime.block_on(async {
            let client: Client<Body> = Client::new(Connector::new());
            for size in [0, 1, 100_000, 3] {
                let uri = format!("http://{address}/path?{size}");
                let response = client.request(post(&uri, pattern(size))).await.unwrap();
                assert_eq!(response.status(), StatusCode::OK);
                assert_eq!(response.headers()["x-version"], "HTTP/1.1");
                assert_eq!(response.headers()["x-host"], address.to_string());
                assert_eq!(response.headers()["x-path"], "/path");
                assert!(read(response).await == pattern(size));
            }
            // Whatever the case of the name and the version are, and with a host of one's own.
            let uri = format!("http://LOCALHOST:{}", address.port());
            let other = format!("http://localhost:{}", address.port());
            for uri in [uri, other] {
                let mut request = post(&uri, Vec::new());
                *request.version_mut() = Version::HTTP_2;
                request
                    .headers_mut()
                    .insert("host", "example.org".parse().unwrap());
                let response = client.clone().request(request).await.unwrap();
                assert_eq!(response.headers()["x-host"], "example.org");
                assert_eq!(response.headers()["x-path"], "/");
                read(response).await;
            }
        });
        assert_eq!(server.counters().accepted, 2);
        end(runtime, server);
    });
}

#[test]
fn http2_is_used_if_the_server_chooses_it() {
    on_both(|runtime| {
        for (protocols, version, connections) in [
            (&[&b"h2"[..], b"http/1.1"][..], "HTTP/2.0", 1..=1),
            (&[b"http/1.1"], "HTTP/1.1", 2..=20),
            (&[], "HTTP/1.1", 2..=20),
        ] {
            let server = secure(runtime, protocols);
            let uri = format!("https://{}/slow", server.local_addr());
            runtime.block_on(async {
                let client = Client::new(Connector::new().tls(certificates::client()));
                // All at once, before anybody knows the version.
                let requests = (0..20usize).map(|index| {
                    let (client, uri) = (client.clone(), &uri);
                    async move {
                        let body = pattern(index * 1000);
                        let response = client.request(post(uri, body.clone())).await.unwrap();
                        assert_eq!(response.headers()["x-version"], version);
                        assert!(read(response).await == body);
                    }
                });
                timeout(LONG, join_all(requests)).await.unwrap();
                // A host of one's own is the authority.
                let mut request = post(&uri, Vec::new());
                request
                    .headers_mut()
                    .insert("host", "example.org".parse().unwrap());
                let response = client.request(request).await.unwrap();
                assert_eq!(response.headers()["x-host"], "example.org");
                read(response).await;
            });
            let accepted = server.counters().accepted as usize;
            assert!(connections.contains(&accepted), "{version}: {accepted}");
            assert_eq!(server.counters().handshake_errors, 0);
            end(runtime, server);
        }
    });
}

#[test]
fn http2_can_be_known_in_advance() {
    on_both(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let uri = format!("http://{}/", listener.local_addr().unwrap());
            let server = spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                hyper::server::conn::http2::Builder::new(ringloop::hyper::Executor)
                    .serve_connection(stream, service_fn(echo))
                    .await
            });
            let mut options = ClientOptions::default();
            options.http2_only = true;
            let client: Client<Body> = Client::with_options(Connector::new(), options);
            let responses = join_all((0..10).map(|_| client.get(&uri))).await;
            for response in responses {
                let response = response.unwrap();
                assert_eq!(response.headers()["x-version"], "HTTP/2.0");
                read(response).await;
            }
            // The connection ends with the client.
            drop(client);
            timeout(LONG, server).await.unwrap().unwrap().unwrap();
        });
    });
}

#[test]
fn there_are_no_more_connections_to_a_host_than_allowed() {
    on_both(|runtime| {
        let server = plain(runtime);
        let uri = format!("http://{}/slow", server.local_addr());
        runtime.block_on(async {
            let mut options = ClientOptions::default();
            options.connections_per_host = 2;
            let client: Client<Body> = Client::with_options(Connector::new(), options);
            let requests = (0..7u8).map(|index| {
                let (client, uri) = (client.clone(), &uri);
                async move {
                    let response = client.request(post(uri, vec![index])).await.unwrap();
                    assert_eq!(read(response).await, [index][..]);
                }
            });
            timeout(LONG, join_all(requests)).await.unwrap();
            // Whoever waits may give up, and a response that is dropped makes room.
            let first = client.get(&uri).await.unwrap();
            let second = client.get(&uri.replace("slow", "large")).await.unwrap();
            assert!(poll_times(5, client.get(&uri)).await.is_none());
            let waiting = spawn({
                let (client, uri) = (client.clone(), uri.clone());
                async move { client.get(&uri).await.map(drop) }
            });
            sleep(Duration::from_millis(1)).await;
            assert!(!waiting.is_finished());
            drop(second);
            timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
            drop(first);
        });
        let accepted = server.counters().accepted;
        assert!((2..=4).contains(&accepted), "{accepted}");
        end(runtime, server);
    });
}

#[test]
fn idle_connections_are_closed_after_a_while() {
    on_both(|runtime| {
        for is_secure in [false, true] {
            let server = if is_secure {
                secure(runtime, &[b"h2"])
            } else {
                plain(runtime)
            };
            let scheme = if is_secure { "https" } else { "http" };
            let uri = format!("{scheme}://{}/", server.local_addr());
            runtime.block_on(async {
                let mut options = ClientOptions::default();
                options.idle_timeout = Duration::from_millis(20);
                let connector = Connector::new().tls(certificates::client());
                let client: Client<Body> = Client::with_options(connector, options);
                for round in 1..=2 {
                    read(client.get(&uri).await.unwrap()).await;
                    assert_eq!(server.counters().accepted, round);
                    let start = Instant::now();
                    while server.counters().live > 0 {
                        assert!(start.elapsed() < LONG);
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
            end(runtime, server);
        }
        // No connection is kept.
        let server = plain(runtime);
        let uri = format!("http://{}/large", server.local_addr());
        runtime.block_on(async {
            let mut options = ClientOptions::default();
            options.idle_timeout = Duration::ZERO;
            options.connections_per_host = 1;
            let client: Client<Body> = Client::with_options(Connector::new(), options);
            for round in 1..=3 {
                let body = read(client.get(&uri).await.unwrap()).await;
                assert_eq!(body.len(), 3_000_000);
                assert_eq!(server.counters().accepted, round);
            }
        });
        end(runtime, server);
    });
}

/// The runtime has not looked at the kernel since the server closed the connection.
#[test]
fn a_connection_that_was_closed_meanwhile_is_replaced() {
    on_both(|runtime| {
        let (closed, is_closed) = channel::unbounded();
        let server = blocking(move |number, mut stream| {
            for _ in 0..=number {
                read_request(&mut stream, 5)?;
                stream.write_all(ANSWER)?;
            }
            drop(stream);
            closed.send_blocking(()).unwrap();
            Ok(())
        });
        runtime.block_on(async {
            let client = Client::new(Connector::new());
            for round in 0..4 {
                for _ in 0..=round {
                    let request = post(&server.uri, b"hello".to_vec());
                    let response = client.request(request).await.unwrap();
                    assert_eq!(read(response).await, "ok");
                }
                // Blocks the runtime.
                is_closed.recv_blocking().unwrap();
                thread::sleep(Duration::from_millis(15));
            }
        });
        assert_eq!(server.accepted.load(Ordering::SeqCst), 4);
    });
}

/// A request that was perhaps sent is not sent again.
#[test]
fn a_request_that_may_have_arrived_is_sent_once() {
    on_both(|runtime| {
        let server = blocking(|_, mut stream| {
            read_request(&mut stream, 5)?;
            stream.write_all(ANSWER)?;
            read_request(&mut stream, 5).map(drop)
        });
        runtime.block_on(async {
            let client = Client::new(Connector::new());
            let request = || post(&server.uri, b"hello".to_vec());
            read(client.request(request()).await.unwrap()).await;
            let error = client.request(request()).await.unwrap_err();
            assert!(error.as_hyper().unwrap().is_incomplete_message(), "{error}");
            let expected = format!(
                "the request to {} failed: ",
                &server.uri.trim_end_matches('/')
            );
            assert!(error.to_string().starts_with(&expected), "{error}");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::Other);
        });
        assert_eq!(server.accepted.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_body_that_is_dropped_in_the_middle_disturbs_no_other_request() {
    on_both(|runtime| {
        for (is_secure, connections) in [(false, 2), (true, 1)] {
            let server = if is_secure {
                secure(runtime, &[b"h2"])
            } else {
                plain(runtime)
            };
            let scheme = if is_secure { "https" } else { "http" };
            let uri = format!("{scheme}://{}/", server.local_addr());
            runtime.block_on(async {
                let client: Client<Body> =
                    Client::new(Connector::new().tls(certificates::client()));
                let mut response = client.get(&format!("{uri}large")).await.unwrap();
                let frame = response.body_mut().frame().await.unwrap().unwrap();
                assert!(frame.into_data().unwrap().len() < 3_000_000);
                drop(response);
                for _ in 0..3 {
                    let response = client.request(post(&uri, pattern(1000))).await.unwrap();
                    assert!(read(response).await == pattern(1000));
                }
            });
            assert_eq!(server.counters().accepted, connections);
            end(runtime, server);
        }
    });
}

#[test]
fn a_request_that_is_dropped_at_any_poll_disturbs_no_other() {
    on_both(|runtime| {
        for is_secure in [false, true] {
            let server = if is_secure {
                secure(runtime, &[b"h2"])
            } else {
                plain(runtime)
            };
            let scheme = if is_secure { "https" } else { "http" };
            let uri = format!("{scheme}://{}/", server.local_addr());
            runtime.block_on(async {
                let mut options = ClientOptions::default();
                options.connections_per_host = 1;
                let connector = Connector::new().tls(certificates::client());
                let client = Client::with_options(connector, options);
                for polls in 0..30 {
                    let request = client.request(post(&uri, pattern(100_000)));
                    drop(poll_times(polls, request).await);
                    let asking = client.request(post(&uri, vec![polls as u8]));
                    let response = timeout(LONG, asking).await.unwrap().unwrap();
                    assert_eq!(read(response).await, [polls as u8][..]);
                }
            });
            end(runtime, server);
        }
    });
}

#[test]
fn a_response_outlives_its_client() {
    on_both(|runtime| {
        let server = plain(runtime);
        let uri = format!("http://{}/large", server.local_addr());
        runtime.block_on(async {
            let client: Client<Body> = Client::new(Connector::new());
            let response = client.get(&uri).await.unwrap();
            drop(client);
            assert!(read(response).await == pattern(3_000_000));
        });
        end(runtime, server);
    });
}

#[test]
fn unix_sockets_serve_all_hosts() {
    on_both(|runtime| {
        let path = std::env::temp_dir().join(format!("ringloop-client-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        runtime.block_on(async {
            let listener = UnixListener::bind(&path).unwrap();
            let server = spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(stream, service_fn(echo))
                    .await
            });
            let client: Client<Body> = Client::new(Connector::new().unix_socket(&path));
            let response = client.get("http://any.name/").await.unwrap();
            assert_eq!(response.headers()["x-host"], "any.name");
            read(response).await;
            drop(client);
            timeout(LONG, server).await.unwrap().unwrap().unwrap();
        });
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn errors_say_what_is_wrong() {
    on_both(|runtime| {
        let server = secure(runtime, &[b"h2"]);
        let port = server.local_addr().port();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent_uri = format!("https://{}/", silent.local_addr().unwrap());
        let hangs_up = blocking(|_, mut stream| read_request(&mut stream, 0).map(drop));
        runtime.block_on(async {
            let connector = Connector::new().tls(certificates::client());
            let secure: Client<Body> = Client::new(connector.clone());
            let hasty: Client<Body> = Client::new(connector.timeout(Duration::from_millis(50)));
            let plain: Client<Body> = Client::new(Connector::new());
            let fails = async |client: &Client<Body>, uri: &str| client.get(uri).await.unwrap_err();

            let error = fails(&plain, "/path").await;
            assert_eq!(error.to_string(), "the URI /path: use http:// or https://");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
            let error = fails(&plain, "ftp://example.org/").await;
            assert_eq!(error.to_string(), "the URI ftp://example.org/: use http:// or https://");
            assert!(fails(&plain, "http://a b/").await.to_string().starts_with("the URI http://a b/: "));
            for uri in ["ftp://name:secret@example.org/x", "http://name:secret@a b/x"] {
                let error = fails(&plain, uri).await.to_string();
                assert!(!error.contains("secret") && error.contains("/x"), "{error}");
            }

            let error = fails(&plain, &format!("https://127.0.0.1:{port}/")).await;
            assert!(error.is_connect() && !error.is_timeout());
            let expected = format!(
                "cannot connect to https://127.0.0.1:{port}: there is no TLS configuration; set one with Connector::tls"
            );
            assert!(error.to_string().starts_with(&expected), "{error}");

            // The certificate is of another name.
            let error = fails(&secure, &format!("https://localhost:{port}/")).await;
            assert!(error.is_connect());
            assert!(error.to_string().contains("certificate"), "{error}");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidData);

            let error = fails(&hasty, &silent_uri).await;
            assert!(error.is_timeout());
            assert!(error.to_string().ends_with("connecting took longer than 50ms"), "{error}");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);

            let error = fails(&plain, &hangs_up.uri).await;
            assert!(!error.is_connect() && error.as_hyper().unwrap().is_incomplete_message());

            let request = Request::builder().method(Method::CONNECT).uri("http://127.0.0.1/");
            let error = plain.request(request.body(Body::default()).unwrap()).await.unwrap_err();
            assert!(error.to_string().starts_with("the method CONNECT: "), "{error}");
        });
        // Nobody was asked twice.
        assert_eq!(hangs_up.accepted.load(Ordering::SeqCst), 1);
        end(runtime, server);
    });
}

/// Bodies need not be `Send`.
#[test]
fn bodies_belong_to_the_worker() {
    struct Local(Rc<Vec<u8>>, bool);
    impl hyper::body::Body for Local {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
            let is_sent = std::mem::replace(&mut self.1, true);
            let bytes = Bytes::copy_from_slice(&self.0);
            std::task::Poll::Ready((!is_sent).then(|| Ok(hyper::body::Frame::data(bytes))))
        }
    }
    on_both(|runtime| {
        let server = plain(runtime);
        let uri = format!("http://{}/", server.local_addr());
        runtime.block_on(async {
            let client = Client::new(Connector::new());
            let body = Rc::new(pattern(5000));
            for _ in 0..2 {
                let request = Request::post(&uri).body(Local(Rc::clone(&body), false));
                let response = client.request(request.unwrap()).await.unwrap();
                assert!(read(response).await == *body);
            }
        });
        assert_eq!(server.counters().accepted, 1);
        end(runtime, server);
    });
}
