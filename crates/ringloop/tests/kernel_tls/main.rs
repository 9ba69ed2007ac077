//! TLS that is left to the kernel, on both backends. Where the kernel has no kernel TLS, the same tests show that rustls
//! goes on and nothing else changes; `make test-ktls` runs them in a virtual machine whose kernel has it, and sets
//! `RINGLOOP_TEST_KERNEL_TLS`, so that a refusal is a failure there.

#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod exchanging;
mod granted;
mod keys;
mod measuring;
mod sending;
#[path = "../common/tls_ends.rs"]
mod tls_ends;

use std::io;
use std::sync::Arc;

use ringloop::net::{Stream, TcpListener, TcpStream};
use ringloop::spawn;
use ringloop::time::timeout;
use ringloop::tls::rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use ringloop::tls::rustls::crypto::{CipherSuiteCommon, CryptoProvider, ring};
use ringloop::tls::rustls::{ClientConfig, ServerConfig, SupportedCipherSuite, Tls13CipherSuite};
use ringloop::tls::{KernelTls, TlsAcceptor, TlsConnector, TlsStream};

use common::{LONG, tcp};

/// Whether this machine must have kernel TLS.
fn is_required() -> bool {
    std::env::var_os("RINGLOOP_TEST_KERNEL_TLS").is_some()
}

/// Whether the kernel has the keys of a connection that has asked for that.
fn is_on<S: Stream>(stream: &TlsStream<S>) -> bool {
    let state = stream.kernel();
    match &state {
        KernelTls::On => {}
        KernelTls::Refused(reason) => assert!(!is_required(), "{reason}"),
        other => panic!("{other}"),
    }
    state.is_on()
}

/// Linux 6.14 and later can renew the keys of a connection.
fn can_renew_keys() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-', '+']).map(str::parse::<u32>);
    let version = (
        numbers.next().unwrap().unwrap(),
        numbers.next().unwrap().unwrap(),
    );
    version >= (6, 14)
}

/// All suites of rustls: three ciphers, in both versions of TLS.
fn suites() -> impl Iterator<Item = SupportedCipherSuite> {
    // The certificate is for ECDSA.
    let usable = |suite: &SupportedCipherSuite| !format!("{suite:?}").contains("RSA_WITH");
    ring::ALL_CIPHER_SUITES.iter().copied().filter(usable)
}

fn provider_of(suite: SupportedCipherSuite) -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![suite],
        ..ring::default_provider()
    }
}

/// A client that knows one suite.
fn client_of(suite: SupportedCipherSuite) -> ClientConfig {
    certificates::client_by(Arc::new(provider_of(suite)))
}

/// A server that knows one suite.
fn server_of(suite: SupportedCipherSuite) -> ServerConfig {
    certificates::server_by(Arc::new(provider_of(suite)))
}

/// A suite that may make fewer records with one key.
fn frugal() -> SupportedCipherSuite {
    let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else {
        unreachable!("its name says so");
    };
    let frugal = Tls13CipherSuite {
        common: CipherSuiteCommon {
            confidentiality_limit: 50,
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    };
    SupportedCipherSuite::Tls13(Box::leak(Box::new(frugal)))
}

/// A handshake of two ends, each of which may leave the rest to the kernel.
async fn shake<S: Stream + 'static>(
    (near, far): (S, S),
    client: impl Into<Arc<ClientConfig>>,
    server: impl Into<Arc<ServerConfig>>,
    in_kernel: (bool, bool),
) -> (TlsStream<S>, TlsStream<S>) {
    let acceptor = TlsAcceptor::new(server).handshake_timeout(LONG);
    let acceptor = acceptor.kernel(in_kernel.1);
    let accepting = spawn(async move { acceptor.accept(far).await });
    let connector = TlsConnector::new(client).handshake_timeout(LONG);
    let near = connector
        .kernel(in_kernel.0)
        .connect(certificates::NAME.try_into().unwrap(), near)
        .await
        .unwrap();
    let far = timeout(LONG, accepting).await.unwrap().unwrap().unwrap();
    (near, far)
}

/// The client's end and the server's, both with the kernel if it can.
async fn pair() -> (TlsStream, TlsStream) {
    let (client, server) = (certificates::client(), certificates::server());
    shake(tcp().await, client, server, (true, true)).await
}

async fn read_to_end<S: Stream>(stream: &mut TlsStream<S>) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    loop {
        received.reserve(50_000);
        let (count, filled) = timeout(LONG, stream.read(received)).await.unwrap();
        received = filled;
        if count? == 0 {
            return Ok(received);
        }
    }
}

/// Accepts one connection of a blocking client that runs in a thread.
async fn accept_from<T: Send + 'static>(
    server: ServerConfig,
    client: impl FnOnce(std::net::TcpStream) -> T + Send + 'static,
) -> (TlsStream, std::thread::JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || client(common::connect(address)));
    let (stream, _): (TcpStream, _) = listener.accept().await.unwrap();
    let acceptor = TlsAcceptor::new(server)
        .handshake_timeout(LONG)
        .kernel(true);
    (acceptor.accept(stream).await.unwrap(), client)
}
