//! HTTP connections that go on with another protocol.

mod common;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::sync::mpsc;

use common::{LONG, ReadOnce, backends, pool_config};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use ringloop::hyper::Http;
use ringloop::server::{Running, Server};

type Answer = Result<Response<Full<Bytes>>, Infallible>;

/// Switches where it is asked to, and answers everything else.
async fn switch(request: Request<Incoming>) -> Answer {
    let answer = if request.headers().contains_key(header::UPGRADE) {
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, "echo")
            .body(Full::default())
    } else if request.method() == Method::CONNECT {
        Response::builder().body(Full::default())
    } else {
        Response::builder().body(Full::from(request.uri().path().to_owned()))
    };
    Ok(answer.unwrap())
}

/// Echoes once the protocol is switched. Tells how each connection ended: whether it was switched.
fn start(server: Server) -> (Running, mpsc::Receiver<bool>) {
    let (sender, ended) = mpsc::channel();
    let http = Http::new();
    let running = server
        .start_with(move |stream, client| {
            let (http, sender) = (http.clone(), sender.clone());
            async move {
                let until = http.serve_until_upgrade(stream, &client, service_fn(switch));
                let upgraded = until.await?;
                sender.send(upgraded.is_some()).unwrap();
                let Some(upgraded) = upgraded else {
                    return Ok(());
                };
                let mut stream = upgraded.stream;
                stream.write_all(upgraded.read_ahead).await.0?;
                loop {
                    let (count, bytes) = stream.read(Vec::with_capacity(64)).await;
                    if count? == 0 {
                        return Ok(());
                    }
                    stream.write_all(&bytes[..]).await.0?;
                }
            }
        })
        .unwrap();
    (running, ended)
}

fn on_both(body: impl Fn(Server)) {
    for backend in backends() {
        body(
            Server::new("127.0.0.1:0")
                .workers(1)
                .pool_config(pool_config(backend)),
        );
    }
}

/// Reads up to the end of a head.
fn head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn exchange(stream: &mut (impl Read + Write), words: &[u8]) {
    stream.write_all(words).unwrap();
    let mut echo = vec![0; words.len()];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(echo, words);
}

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";

#[test]
fn a_connection_goes_on_with_another_protocol() {
    on_both(|server| {
        let (running, ended) = start(server);
        let mut stream = common::connect(running.local_addr());
        // After an ordinary request, and with the first words of the new protocol right behind its own.
        stream
            .write_all(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\n")
            .unwrap();
        assert!(head(&mut stream).starts_with("HTTP/1.1 200 OK"));
        let mut body = [0; 6];
        stream.read_exact(&mut body).unwrap();
        assert_eq!(&body, b"/first");
        stream.write_all(&[UPGRADE, b"early"].concat()).unwrap();
        let answer = head(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
        let mut early = [0; 5];
        stream.read_exact(&mut early).unwrap();
        assert_eq!(&early, b"early");
        exchange(&mut stream, b"GET / is not HTTP here\r\n\r\n");
        assert!(ended.recv_timeout(LONG).unwrap());
        drop(stream);
        running.shutdown(LONG);
    });
}

#[test]
fn a_tunnel_is_one_as_well() {
    on_both(|server| {
        let (running, ended) = start(server);
        let mut stream = common::connect(running.local_addr());
        stream
            .write_all(b"CONNECT example.org:80 HTTP/1.1\r\nhost: example.org:80\r\n\r\n")
            .unwrap();
        let answer = head(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        exchange(&mut stream, b"through the tunnel");
        assert!(ended.recv_timeout(LONG).unwrap());
        drop(stream);
        running.shutdown(LONG);
    });
}

#[test]
fn a_connection_that_only_ends_is_closed_in_order() {
    on_both(|server| {
        let (running, ended) = start(server);
        let mut stream = common::connect(running.local_addr());
        stream
            .write_all(b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("/last"), "{answer}");
        assert!(!ended.recv_timeout(LONG).unwrap());
        // One that rests ends when the server drains.
        let mut stream = common::connect(running.local_addr());
        stream
            .write_all(b"GET /rest HTTP/1.1\r\nhost: x\r\n\r\n")
            .unwrap();
        head(&mut stream);
        stream.read_exact(&mut [0; 5]).unwrap();
        running.shutdown(LONG);
        assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
        assert!(!ended.recv_timeout(LONG).unwrap());
    });
}
