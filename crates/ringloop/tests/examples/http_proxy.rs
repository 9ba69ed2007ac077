//! `http_proxy`.

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use ringloop::hyper::{Client, Connector, Http};
use ringloop::server::Server;
use ringloop::tls::rustls::crypto::ring;
use ringloop::tls::rustls::{ClientConfig, RootCertStore};
use ringloop::{Runtime, RuntimeConfig};

use crate::common::{self, LONG, pattern};
use crate::program::{Folder, Program};

/// Answers with the request's body, and some of what it has seen.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let mut response = Response::new(Full::new(body.collect().await?.to_bytes()));
    let headers = response.headers_mut();
    for name in [
        "host",
        "x-forwarded-host",
        "x-forwarded-for",
        "x-kept",
        "x-dropped",
    ] {
        for value in parts.headers.get_all(name) {
            headers.append(
                format!("seen-{name}")
                    .parse::<hyper::header::HeaderName>()
                    .unwrap(),
                value.clone(),
            );
        }
    }
    headers.insert("seen-path", parts.uri.path().parse().unwrap());
    Ok(response)
}

/// A client, through a proxy, through another one, to a server. All of it but the last step is over TLS.
#[test]
fn the_http_proxy_passes_requests_on() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (folder.0.join("certificate.pem"), folder.0.join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();

    for backend in common::backends() {
        let name = backend.to_string();
        let pool = common::pool_config(backend);
        let server = Server::new("127.0.0.1:0").workers(1).pool_config(pool);
        let http = Http::new();
        let server = server
            .start_with(move |stream, client| {
                let http = http.clone();
                async move { http.serve(stream, &client, service_fn(echo)).await }
            })
            .unwrap();
        let to = format!("http://{}", server.local_addr());
        let own = [
            "--backend",
            &name,
            "--workers",
            "1",
            "--drain-timeout",
            "1",
            "--certificate",
            certificate,
            "--key",
            key,
        ];
        let start = |others: &[&str]| Program::start("http_proxy", &[&own, others].concat());
        let inner = start(&["--to", &to]);
        let inner_uri = format!("https://{}", inner.address);
        let outer = start(&["--to", &inner_uri, "--trust", certificate]);

        for protocols in [&["h2", "http/1.1"][..], &["http/1.1"]] {
            config.alpn_protocols = protocols
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect();
            let connector = Connector::new().tls(config.clone());
            Runtime::new(&RuntimeConfig::default())
                .unwrap()
                .block_on(async {
                    let client = Client::new(connector);
                    for size in [0, 10, 1_000_000] {
                        let request =
                            Request::post(format!("https://{}/a/path?query", outer.address))
                                .header("x-kept", "yes")
                                .header("x-dropped", "yes");
                        let request = match protocols {
                            // In HTTP/2 there is no such field.
                            ["h2", ..] => request.header("te", "trailers"),
                            _ => request.header("connection", "x-dropped, close"),
                        };
                        let request = request.body(Full::new(Bytes::from(pattern(size)))).unwrap();
                        let response = client.request(request).await.unwrap();
                        assert_eq!(response.status(), 200);
                        let headers = response.headers();
                        assert_eq!(headers["seen-path"], "/a/path");
                        assert_eq!(headers["seen-host"], server.local_addr().to_string());
                        assert_eq!(headers["seen-x-kept"], "yes");
                        assert_eq!(headers.get_all("seen-x-forwarded-for").iter().count(), 2);
                        assert_eq!(headers.contains_key("seen-x-dropped"), protocols[0] == "h2");
                        let body = response.into_body().collect().await.unwrap().to_bytes();
                        assert!(body == pattern(size));
                    }
                });
        }
        drop(outer);
        // Nobody listens there.
        let unused = TcpListener::bind("127.0.0.1:0").unwrap();
        let nowhere = format!("http://{}", unused.local_addr().unwrap());
        drop(unused);
        let broken = start(&["--to", &nowhere]);
        Runtime::new(&RuntimeConfig::default())
            .unwrap()
            .block_on(async {
                let client: Client<Full<Bytes>> = Client::new(Connector::new().tls(config.clone()));
                let response = client
                    .get(&format!("https://{}/", broken.address))
                    .await
                    .unwrap();
                assert_eq!(response.status(), 502);
            });
        let said = broken.end(libc::SIGINT);
        assert!(said.contains("ended"), "{said}");
        drop(inner);
        server.shutdown(LONG);
    }
}
