//! HTTP/1.1 by hyper, on tokio: its current-thread runtime with one worker, else its multi-threaded one.

use std::convert::Infallible;
use std::io;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use target_support::{Arguments, Command, Serving};
use tokio::net::TcpListener;
use tokio::runtime::Builder;

fn main() -> io::Result<()> {
    match <Arguments as clap::Parser>::parse().command {
        Command::Http(serving) => serve(serving),
        Command::Echo(_) | Command::Discard(_) | Command::Bind(_) => {
            eprintln!("hyper: it serves HTTP only: use http");
            std::process::exit(2);
        }
    }
}

fn serve(serving: Serving) -> io::Result<()> {
    let listener = target_support::listen_once(serving)?;
    target_support::announce(&listener)?;
    let runtime = if serving.workers == 1 {
        Builder::new_current_thread().enable_all().build()?
    } else {
        let workers = usize::from(serving.workers);
        Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()?
    };
    runtime.block_on(async {
        // In a task, because what block_on runs itself is no worker's.
        let accepting = tokio::spawn(async move {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // A connection that fails is over, and nobody else's business.
                tokio::spawn(
                    http1::Builder::new()
                        // For the time that a client may take to send its request's head.
                        .timer(TokioTimer::new())
                        .pipeline_flush(true)
                        .serve_connection(TokioIo::new(stream), service_fn(hello)),
                );
            }
        });
        accepting.await?
    })
}

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut answer = Response::new(Full::new(Bytes::from_static(b"Hello, World!")));
    if request.uri().path() != "/" {
        *answer.status_mut() = StatusCode::NOT_FOUND;
    }
    let kind = HeaderValue::from_static("text/plain");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(answer)
}
