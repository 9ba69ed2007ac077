//! The HTTPS reverse proxy: both do the same to requests and responses, and keep connections to the server.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client as TokioClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ringloop::hyper::{Client, Connector, Http};
use ringloop::server::Server;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_rustls::TlsAcceptor;

use crate::{Result, announce, identity};

type Body = Either<Incoming, Empty<Bytes>>;

/// Addresses a request to the server, and says where it came from.
fn readdress(
    request: &mut Request<Incoming>,
    to: SocketAddr,
    peer: SocketAddr,
) -> hyper::http::Result<()> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let uri = Uri::builder()
        .scheme("http")
        .authority(to.to_string())
        .path_and_query(path)
        .build()?;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.remove(CONNECTION);
    if let Some(host) = headers.remove(HOST) {
        headers.insert("x-forwarded-host", host);
    }
    headers.append(
        "x-forwarded-for",
        HeaderValue::from_str(&peer.ip().to_string())?,
    );
    Ok(())
}

/// The server's response without the fields of its connection, or 502.
fn passed_on(response: std::result::Result<Response<Incoming>, impl Error>) -> Response<Body> {
    match response {
        Ok(mut response) => {
            response.headers_mut().remove(CONNECTION);
            response.headers_mut().remove(TRANSFER_ENCODING);
            response.map(Either::Left)
        }
        Err(error) => failure(StatusCode::BAD_GATEWAY, &error),
    }
}

fn failure(status: StatusCode, error: &dyn Error) -> Response<Body> {
    eprintln!("{status}: {error}");
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = status;
    response
}

fn config() -> Result<rustls::ServerConfig> {
    let (chain, key) = identity()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder?
        .with_no_client_auth()
        .with_single_cert(chain, key)?)
}

thread_local! {
    static CLIENT: OnceCell<Client<Incoming>> = const { OnceCell::new() };
}

pub fn on_ringloop(to: SocketAddr, workers: usize) -> Result<()> {
    let http = Http::new();
    let server = Server::new("127.0.0.1:0")
        .pool_config(ringloop::PoolConfig::from_env()?)
        .workers(workers)
        .tls(config()?)
        .start_with(move |stream, client| {
            let http = http.clone();
            async move {
                let peer = client.addr();
                let service = service_fn(move |mut request| async move {
                    if let Err(error) = readdress(&mut request, to, peer) {
                        return Ok(failure(StatusCode::BAD_REQUEST, &error));
                    }
                    let client = CLIENT.with(|client| {
                        client.get_or_init(|| Client::new(Connector::new())).clone()
                    });
                    Ok::<_, Infallible>(passed_on(client.request(request).await))
                });
                http.serve(stream, &client, service).await
            }
        })?;
    announce(server.local_addr());
    loop {
        std::thread::park();
    }
}

pub fn on_tokio(to: SocketAddr, workers: usize) -> Result<()> {
    let runtime = if workers == 1 {
        Builder::new_current_thread().enable_all().build()?
    } else {
        Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()?
    };
    let acceptor = TlsAcceptor::from(Arc::new(config()?));
    let serving = async move {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = TokioClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        announce(listener.local_addr()?);
        loop {
            let (stream, peer) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (acceptor, client): (_, TokioClient<_, Incoming>) =
                (acceptor.clone(), client.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = service_fn(move |mut request| {
                    let client = client.clone();
                    async move {
                        if let Err(error) = readdress(&mut request, to, peer) {
                            return Ok(failure(StatusCode::BAD_REQUEST, &error));
                        }
                        Ok::<_, Infallible>(passed_on(client.request(request).await))
                    }
                });
                // A connection that fails is over, and nobody else's business.
                let _ = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    };
    // In a task, because what block_on runs itself is no worker's.
    match runtime.block_on(async { tokio::spawn(serving).await })? {
        Ok::<Infallible, _>(never) => match never {},
        Err(error) => Err(error),
    }
}
