//! An HTTPS reverse proxy, on hyper: HTTP/1.1 and HTTP/2 on both sides, with a pool of connections per worker.
//!
//! Bodies pass through in both directions as they come. A client that goes away gives up its request. Upgrades, such as to
//! WebSocket, are not passed on.

mod arguments;
#[path = "arguments/identity.rs"]
mod identity;

use std::cell::OnceCell;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri};
use ringloop::hyper::{Client, Connector, Http};
use ringloop::time::timeout;
use ringloop::tls::rustls::crypto::ring;
use ringloop::tls::rustls::pki_types::CertificateDer;
use ringloop::tls::rustls::pki_types::pem::PemObject;
use ringloop::tls::rustls::{ClientConfig, RootCertStore};

/// Passes HTTPS requests on to another server.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
    #[command(flatten)]
    identity: identity::Identity,
    /// Where requests are passed on to, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    to: Uri,
    /// The certificates that an https server there may have, or their authorities, in a PEM file
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// How many seconds the server there has to begin its answer
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    answer_timeout: u64,
}

type Body = Either<Incoming, Full<Bytes>>;

/// Where requests go.
struct Target {
    scheme: Scheme,
    authority: Authority,
    connector: Connector,
    answer_timeout: Duration,
}

thread_local! {
    /// Each worker has connections of its own.
    static CLIENT: OnceCell<Client<Incoming>> = const { OnceCell::new() };
}

impl Target {
    fn new(arguments: &Arguments) -> io::Result<Self> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        let to = arguments.to.clone().into_parts();
        let (Some(scheme), Some(authority)) = (to.scheme, to.authority) else {
            return Err(invalid(format!(
                "--to {}: use http://HOST:PORT",
                arguments.to
            )));
        };
        let mut connector = Connector::new().timeout(Duration::from_secs(10));
        if let Some(path) = &arguments.trust {
            let unusable = |error| invalid(format!("{}: {error}", path.display()));
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(path).map_err(unusable)? {
                let added = roots.add(certificate.map_err(unusable)?);
                added.map_err(|error| invalid(format!("{}: {error}", path.display())))?;
            }
            let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?
                .with_root_certificates(roots)
                .with_no_client_auth();
            connector = connector.tls(config);
        } else if scheme == Scheme::HTTPS {
            return Err(invalid(format!("--to {}: add --trust", arguments.to)));
        }
        Ok(Self {
            scheme,
            authority,
            connector,
            answer_timeout: Duration::from_secs(arguments.answer_timeout),
        })
    }

    fn client(&self) -> Client<Incoming> {
        let new = || Client::new(self.connector.clone());
        CLIENT.with(|client| client.get_or_init(new).clone())
    }

    /// Passes one request on.
    async fn pass_on(&self, mut request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
        if let Err(error) = self.readdress(&mut request, peer) {
            return failure(StatusCode::BAD_REQUEST, &error);
        }
        match timeout(self.answer_timeout, self.client().request(request)).await {
            Ok(Ok(mut response)) => {
                end_to_end(response.headers_mut());
                response.map(Either::Left)
            }
            Ok(Err(error)) if error.is_timeout() => failure(StatusCode::GATEWAY_TIMEOUT, &error),
            Ok(Err(error)) => failure(StatusCode::BAD_GATEWAY, &error),
            Err(elapsed) => failure(StatusCode::GATEWAY_TIMEOUT, &elapsed),
        }
    }

    /// Changes the address of a request, and says where it came from.
    fn readdress(
        &self,
        request: &mut Request<Incoming>,
        peer: IpAddr,
    ) -> Result<(), hyper::http::Error> {
        let path = request.uri().path_and_query().cloned();
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
            .build()?;
        let asked = std::mem::replace(request.uri_mut(), uri);
        let headers = request.headers_mut();
        end_to_end(headers);
        let host = match (headers.remove(HOST), asked.authority()) {
            (Some(host), _) => Some(host),
            (None, Some(authority)) => Some(HeaderValue::from_str(authority.as_str())?),
            (None, None) => None,
        };
        if let Some(host) = host {
            headers.insert("x-forwarded-host", host);
        }
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        headers.append("x-forwarded-for", HeaderValue::from_str(&peer.to_string())?);
        Ok(())
    }
}

/// Removes the fields that concern one connection (RFC 9110, section 7.6.1).
fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

fn failure(status: StatusCode, error: &dyn std::error::Error) -> Response<Body> {
    eprintln!("{status}: {error}");
    let text = format!("{status}\n");
    let mut response = Response::new(Either::Right(Full::new(text.into())));
    *response.status_mut() = status;
    response
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let target = Arc::new(Target::new(arguments)?);
    let mut config = arguments.identity.config()?;
    config.alpn_protocols = vec![b"h2".into(), b"http/1.1".into()];
    let http = Http::new();
    let server = arguments.listening.start(|server| {
        server.tls(config).start_with(move |stream, client| {
            let (target, http) = (Arc::clone(&target), http.clone());
            async move {
                let peer: SocketAddr = client.addr();
                let service = service_fn(move |request| {
                    let target = Arc::clone(&target);
                    async move { Ok::<_, Infallible>(target.pass_on(request, peer.ip()).await) }
                });
                http.serve(stream, &client, service).await
            }
        })
    })?;
    arguments.listening.run(server)
}

fn main() -> ExitCode {
    arguments::exit_code(run(&Arguments::parse()))
}
