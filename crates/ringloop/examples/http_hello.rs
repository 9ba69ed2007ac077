//! "Hello, World!" over HTTP/1.1, by hyper, on the socket pool.

mod arguments;

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::process::ExitCode;

use clap::Parser;
use futures_util::future::{Either, select};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use ringloop::hyper::Timer;

/// Answers every request with "Hello, World!".
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
}

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut answer = Response::new(Full::new(Bytes::from_static(b"Hello, World!")));
    let kind = HeaderValue::from_static("text/plain");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(answer)
}

fn main() -> ExitCode {
    let Arguments { listening } = Arguments::parse();
    let server = listening.start(|server| {
        server.start_with(|stream, client| async move {
            let mut connection = pin!(
                http1::Builder::new()
                    // For the time that a client may take to send its request's head.
                    .timer(Timer)
                    .pipeline_flush(true)
                    .serve_connection(stream, service_fn(hello))
            );
            let result = match select(connection.as_mut(), client.draining()).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            result.map_err(io::Error::other)
        })
    });
    arguments::exit_code(server.and_then(|server| listening.run(server)))
}
