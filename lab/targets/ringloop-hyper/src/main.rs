//! HTTP/1.1 by hyper, on ringloop's socket pool. `RINGLOOP_BACKEND` chooses the backend.

use std::convert::Infallible;
use std::io;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use ringloop::hyper::Timer;
use ringloop::server::Server;
use ringloop::{PoolConfig, RuntimeConfig};
use target_support::{Arguments, Command, Serving};

fn main() -> io::Result<()> {
    match <Arguments as clap::Parser>::parse().command {
        Command::Http(serving) => serve(serving),
        Command::Echo(_) | Command::Discard(_) | Command::Bind(_) => {
            eprintln!("ringloop-hyper: it serves HTTP only: use http");
            std::process::exit(2);
        }
    }
}

fn serve(serving: Serving) -> io::Result<()> {
    let mut config = PoolConfig::default();
    config.runtime = RuntimeConfig::from_env()?;
    let server = Server::new(format!("{}:{}", serving.host, serving.port))
        .pool_config(config)
        .workers(usize::from(serving.workers))
        // No other target closes idle connections.
        .idle_timeout(None)
        .start_with(|stream, _| async move {
            http1::Builder::new()
                // For the time that a client may take to send its request's head.
                .timer(Timer)
                .pipeline_flush(true)
                .serve_connection(stream, service_fn(hello))
                .await
                .map_err(io::Error::other)
        })?;
    target_support::announce_at(server.local_addr())?;
    loop {
        // The signal ends the process.
        std::thread::park();
    }
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
