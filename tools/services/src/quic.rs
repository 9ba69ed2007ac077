//! The echo over QUIC on quinn, and its load.

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, Endpoint, EndpointConfig, RecvStream, Runtime, SendStream, ServerConfig};
use ringloop::quinn::RingloopRuntime;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::runtime::Builder;

use crate::{Result, announce, identity};

/// Bytes of each stream.
const SIZE: usize = 1_000_000;

async fn echo(mut sender: SendStream, mut receiver: RecvStream) {
    while let Ok(Some(chunk)) = receiver.read_chunk(usize::MAX, true).await {
        if sender.write_chunk(chunk.bytes).await.is_err() {
            return;
        }
    }
    // It fails if the client has stopped the stream.
    let _ = sender.finish();
}

/// Accepts connections and their streams, each in a task that `spawn` makes.
async fn serve<S: Fn(Task) + Copy + Send + 'static>(endpoint: Endpoint, spawn: S) {
    while let Some(incoming) = endpoint.accept().await {
        spawn(Box::pin(async move {
            if let Ok(connection) = incoming.await {
                streams(connection, spawn).await;
            }
        }));
    }
}

async fn streams(connection: Connection, spawn: impl Fn(Task)) {
    while let Ok((sender, receiver)) = connection.accept_bi().await {
        spawn(Box::pin(echo(sender, receiver)));
    }
}

type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn listen(runtime: impl Runtime) -> Result<Endpoint> {
    let (chain, key) = identity()?;
    let config = ServerConfig::with_single_cert(chain, key)?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let endpoint = Endpoint::new(
        EndpointConfig::default(),
        Some(config),
        socket,
        Arc::new(runtime),
    )?;
    announce(endpoint.local_addr()?);
    Ok(endpoint)
}

pub fn on_ringloop() -> Result<()> {
    let config = ringloop::RuntimeConfig::from_env()?;
    ringloop::Runtime::new(&config)?.block_on(async {
        let endpoint = listen(RingloopRuntime::current())?;
        serve(endpoint, |task| drop(ringloop::spawn(task))).await;
        Ok(())
    })
}

pub fn on_tokio() -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let endpoint = listen(quinn::TokioRuntime)?;
        tokio::spawn(serve(endpoint, |task| drop(tokio::spawn(task)))).await?;
        Ok(())
    })
}

/// Trusts every server: this is about the cost of the encryption alone.
#[derive(Debug)]
struct TrustAll(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

pub fn load(address: SocketAddr, seconds: f64, streams: usize) -> Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let crypto = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll(provider)))
        .with_no_client_auth();
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?));
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let mut endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(address, "localhost")?.await?;
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let tasks: Vec<_> = (0..streams)
            .map(|_| tokio::spawn(send_until(end, connection.clone())))
            .collect();
        let mut count = 0;
        for task in tasks {
            count += task.await??;
        }
        println!("{count}");
        connection.close(0_u32.into(), b"");
        endpoint.wait_idle().await;
        Ok(())
    })
}

/// Sends one stream after the other, and returns how many came back.
async fn send_until(end: Instant, connection: Connection) -> Result<u64> {
    let data: Vec<u8> = (0_u8..251).cycle().take(SIZE).collect();
    let mut count = 0;
    while Instant::now() < end {
        let (mut sender, mut receiver) = connection.open_bi().await?;
        let sending = async {
            sender.write_all(&data).await?;
            sender.finish()?;
            Result::Ok(())
        };
        let receiving = async { Result::Ok(receiver.read_to_end(SIZE).await?) };
        let ((), echoed) = tokio::try_join!(sending, receiving)?;
        if echoed != data {
            return Err("wrong bytes came back".into());
        }
        count += 1;
    }
    Ok(count)
}
