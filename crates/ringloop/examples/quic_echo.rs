//! An echo server over QUIC, with an endpoint on each worker.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::{Connection, Endpoint, EndpointConfig, ServerConfig};
use ringloop::driver::BackendChoice;
use ringloop::quinn::RingloopRuntime;
use ringloop::server::EndSignals;
use ringloop::time::timeout;
use ringloop::{Pool, PoolConfig, spawn};
use socket2::{Domain, Protocol, Socket, Type};

/// Sends back what it receives on each stream, over QUIC, with the ALPN protocol "echo".
#[derive(Parser)]
struct Arguments {
    /// The address to listen on
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST.into())]
    host: IpAddr,
    /// The port to listen on; 0 lets the kernel choose
    #[arg(long, default_value_t = 7000)]
    port: u16,
    /// How many workers, each with an endpoint of its own
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// The backend: io_uring, epoll or auto
    #[arg(long, env = ringloop::driver::BACKEND_VARIABLE, default_value = "auto")]
    backend: BackendChoice,
    /// How many seconds connections have to end after Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain_timeout: u64,
    /// The server's certificate chain, in a PEM file. Without it, a self-signed certificate is created.
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key, in a PEM file.
    #[arg(long, requires = "certificate")]
    key: Option<PathBuf>,
}

/// Sends back each stream of a connection. Nobody is told about a client that goes away.
async fn serve(connection: Connection) {
    while let Ok((mut sender, mut receiver)) = connection.accept_bi().await {
        drop(spawn(async move {
            while let Ok(Some(chunk)) = receiver.read_chunk(usize::MAX, true).await {
                if sender.write_chunk(chunk.bytes).await.is_err() {
                    return;
                }
            }
            // It fails if the client has stopped the stream.
            let _ = sender.finish();
        }));
    }
}

/// Serves whoever completes the handshake.
async fn accept(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        drop(spawn(async move {
            if let Ok(connection) = incoming.await {
                serve(connection).await;
            }
        }));
    }
}

fn config(arguments: &Arguments) -> io::Result<ServerConfig> {
    let (chain, key) =
        if let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) {
            let chain = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect)
                .map_err(|error| unusable(certificate, &error))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
            (chain, key)
        } else {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
            let made = made.map_err(io::Error::other)?;
            let key = made.signing_key.serialize_der().try_into();
            (
                vec![made.cert.der().clone()],
                key.map_err(io::Error::other)?,
            )
        };
    ServerConfig::with_single_cert(chain, key)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

fn unusable(path: &std::path::Path, error: &dyn std::error::Error) -> io::Error {
    let message = format!("{}: {error}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// A socket that shares its address with those of the other workers.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let config = config(arguments)?;
    let mut settings = PoolConfig::from_env()?;
    settings.runtime.reactor.driver.backend = arguments.backend;
    let pool = Pool::new(arguments.workers, &settings)?;
    let mut address = SocketAddr::new(arguments.host, arguments.port);
    let mut endpoints = Vec::new();
    for worker in 0..arguments.workers {
        let socket = bind(address)?;
        // If the kernel has chosen a port, the others take the same one.
        address = socket.local_addr()?;
        let runtime = RingloopRuntime::new(pool.handle(worker).clone());
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            Some(config.clone()),
            socket,
            Arc::new(runtime),
        )?;
        endpoints.push(endpoint.clone());
        drop(pool.spawn_on(worker, move || accept(endpoint)));
    }

    let signals = EndSignals::listen()?;
    println!("listening on {address}, Ctrl-C ends it");
    let signal = signals.wait();
    let live: usize = endpoints.iter().map(Endpoint::open_connections).sum();
    let seconds = arguments.drain_timeout;
    eprintln!("{signal}: waiting up to {seconds} s for {live} connections");
    let drains: Vec<_> = endpoints
        .into_iter()
        .enumerate()
        .map(|(worker, endpoint)| {
            pool.spawn_on(worker, move || {
                drain(endpoint, Duration::from_secs(seconds))
            })
        })
        .collect();
    pool.shutdown(Duration::from_secs(seconds + 1));
    drop(drains);
    eprintln!("ended");
    Ok(())
}

/// Accepts nobody any more, and waits until all connections have ended; then closes the rest.
async fn drain(endpoint: Endpoint, time: Duration) {
    endpoint.set_server_config(None);
    // Either they have ended, or the time is over.
    let _ = timeout(time, endpoint.wait_idle()).await;
    endpoint.close(0_u32.into(), b"the server ends");
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
