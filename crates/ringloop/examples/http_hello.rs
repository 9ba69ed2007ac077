//! "Hello, World!" over HTTP/1.1, with hyper.

mod arguments;

use std::convert::Infallible;
use std::process::ExitCode;

use clap::Parser;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use ringloop::hyper::Http;

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
    let mut http = Http::new();
    http.http1.pipeline_flush(true);
    let server = listening.start(|server| {
        server.start_with(move |stream, client| {
            let http = http.clone();
            async move { http.serve(stream, &client, service_fn(hello)).await }
        })
    });
    arguments::exit_code(server.and_then(|server| listening.run(server)))
}
