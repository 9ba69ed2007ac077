//! reqwest, tonic and sqlx on a worker of ringloop, by `ringloop::tokio::in_tokio`.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use ringloop::driver::{BackendChoice, Config, Driver};
use ringloop::hyper::Http;
use ringloop::server::{Running, Server};
use ringloop::time::timeout;
use ringloop::tokio::in_tokio;
use ringloop::{JoinSet, Pool, PoolConfig, Runtime, RuntimeConfig};
use tokio::runtime::Handle;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const LONG: Duration = Duration::from_secs(60);

/// Runs a body on each backend that this machine grants, beside a tokio runtime with one thread.
fn on_each(body: impl AsyncFn(BackendChoice, &Handle)) {
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for backend in [BackendChoice::IoUring, BackendChoice::Epoll] {
        if Driver::new(&Config::with_backend(backend)).is_err() {
            continue;
        }
        let mut config = RuntimeConfig::default();
        config.reactor.driver = Config::with_backend(backend);
        Runtime::new(&config).unwrap().block_on(async {
            timeout(LONG, body(backend, other.handle())).await.unwrap();
        });
        assert!(Handle::try_current().is_err());
    }
}

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = format!("hello from {}", request.uri().path());
    Ok(Response::new(Full::new(text.into())))
}

fn server() -> Running {
    let http = Http::new();
    Server::new("127.0.0.1:0")
        .workers(1)
        .start_with(move |stream, client| {
            let http = http.clone();
            async move { http.serve(stream, &client, service_fn(hello)).await }
        })
        .unwrap()
}

#[test]
fn reqwest_asks_a_server_of_ours() {
    let server = server();
    let address = server.local_addr();
    on_each(async |_, tokio| {
        let asking = in_tokio(tokio, async {
            let client = reqwest::Client::builder().timeout(LONG).build().unwrap();
            let mut requests = JoinSet::new();
            for number in 0..20 {
                let (client, handle) = (client.clone(), Handle::current());
                // A task of ours does not inherit the runtime of tokio.
                requests.spawn(async move {
                    let uri = format!("http://{address}/{number}");
                    in_tokio(&handle, async {
                        let response = client.get(uri).send().await.unwrap();
                        assert_eq!(
                            response.text().await.unwrap(),
                            format!("hello from /{number}")
                        );
                    })
                    .await;
                });
            }
            while let Some(result) = requests.join_next().await {
                result.unwrap();
            }
            // Given up in the middle of connecting and later.
            for _ in 0..5 {
                let request = client.get(format!("http://{address}/")).send();
                let _ = timeout(Duration::from_micros(300), request).await;
            }
            let response = client
                .get(format!("http://{address}/last"))
                .send()
                .await
                .unwrap();
            assert_eq!(response.text().await.unwrap(), "hello from /last");
        });
        asking.await;
    });
    server.shutdown(LONG);
}

#[test]
fn tonic_calls_from_a_worker() {
    on_each(async |backend, tokio| {
        let listener = in_tokio(tokio, tokio::net::TcpListener::bind("127.0.0.1:0"))
            .await
            .unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let (_, service) = tonic_health::server::health_reporter();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let serving = tokio.spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming),
        );
        let mut config = PoolConfig::default();
        config.runtime.reactor.driver = Config::with_backend(backend);
        let pool = Pool::new(2, &config).unwrap();
        let mut calls = JoinSet::new();
        for number in 0..8 {
            let (tokio, uri) = (tokio.clone(), uri.clone());
            calls.insert(pool.spawn_on(number % 2, move || async move {
                in_tokio(&tokio, async move {
                    let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
                    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
                    for _ in 0..10 {
                        let question = HealthCheckRequest {
                            service: String::new(),
                        };
                        let answer = client.check(question).await.unwrap();
                        assert_eq!(answer.into_inner().status, 1, "serving");
                    }
                })
                .await;
            }));
        }
        while let Some(result) = calls.join_next().await {
            result.unwrap();
        }
        pool.shutdown(LONG);
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn sqlx_queries_a_database() {
    on_each(async |_, tokio| {
        in_tokio(tokio, async {
            let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
            let pool = options.connect("sqlite::memory:").await.unwrap();
            let create = "CREATE TABLE numbers (number INTEGER NOT NULL)";
            sqlx::query(create).execute(&pool).await.unwrap();
            for number in 0..100 {
                let insert = sqlx::query("INSERT INTO numbers VALUES (?)").bind(number);
                insert.execute(&pool).await.unwrap();
            }
            // A transaction that is dropped is rolled back.
            let mut transaction = pool.begin().await.unwrap();
            let delete = sqlx::query("DELETE FROM numbers");
            delete.execute(&mut *transaction).await.unwrap();
            drop(transaction);
            let sum = sqlx::query_scalar::<_, i64>("SELECT SUM(number) FROM numbers");
            assert_eq!(sum.fetch_one(&pool).await.unwrap(), 4950);
            pool.close().await;
        })
        .await;
    });
}
