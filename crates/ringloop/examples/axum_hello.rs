//! An axum application on a ringloop server, over HTTP/1.1.

mod arguments;

use std::process::ExitCode;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use clap::Parser;
use hyper::service::service_fn;
use ringloop::hyper::Http;
use tower_service::Service;

/// Says hello: at / to the world, at /greet/NAME to somebody.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
}

async fn greet(Path(name): Path<String>) -> String {
    format!("Hello, {name}!\n")
}

fn main() -> ExitCode {
    let Arguments { listening } = Arguments::parse();
    let app = Router::new()
        .route("/", get(|| async { "Hello, World!\n" }))
        .route("/greet/{name}", get(greet));
    let http = Http::new();
    let server = listening.start(|server| {
        server.start_with(move |stream, client| {
            let (http, app) = (http.clone(), app.clone());
            let service = service_fn(move |request| app.clone().call(request));
            async move { http.serve(stream, &client, service).await }
        })
    });
    arguments::exit_code(server.and_then(|server| listening.run(server)))
}
