//! Certificates and TLS configurations for tests, created anew in each process.

#![allow(dead_code, reason = "no test uses all of it")]

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};

use ringloop::tls::rustls::client::WebPkiServerVerifier;
use ringloop::tls::rustls::crypto::{CryptoProvider, ring};
use ringloop::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use ringloop::tls::rustls::server::WebPkiClientVerifier;
use ringloop::tls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    SupportedProtocolVersion,
};
use ringloop::tls::{TlsAcceptor, TlsConnector};

pub(crate) const NAME: &str = "ringloop.test";

/// Accepts as the tests' settings say: with `RINGLOOP_TEST_KERNEL_TLS`, the kernel takes over after the handshake.
pub(crate) fn acceptor(config: impl Into<Arc<ServerConfig>>) -> TlsAcceptor {
    TlsAcceptor::new(config).kernel(asks_kernel())
}

/// Connects as the tests' settings say.
pub(crate) fn connector(config: impl Into<Arc<ClientConfig>>) -> TlsConnector {
    TlsConnector::new(config).kernel(asks_kernel())
}

fn asks_kernel() -> bool {
    std::env::var_os("RINGLOOP_TEST_KERNEL_TLS").is_some()
}

struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

/// A self-signed certificate, for a server and for a client.
static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let made =
        rcgen::generate_simple_self_signed([NAME.to_owned(), "127.0.0.1".to_owned()]).unwrap();
    Identity {
        certificate: made.cert.der().clone(),
        key: made.signing_key.serialize_der().try_into().unwrap(),
    }
});

pub(crate) static VERSIONS: [&SupportedProtocolVersion; 2] = [
    &ringloop::tls::rustls::version::TLS12,
    &ringloop::tls::rustls::version::TLS13,
];

pub(crate) fn certificate() -> CertificateDer<'static> {
    IDENTITY.certificate.clone()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots() -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    Arc::new(roots)
}

/// A server for any client.
pub(crate) fn server() -> ServerConfig {
    server_by(provider())
}

/// The same with another provider of cryptography.
pub(crate) fn server_by(provider: Arc<CryptoProvider>) -> ServerConfig {
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], IDENTITY.key.clone_key())
        .unwrap()
}

/// A server that requires a certificate from its clients.
pub(crate) fn strict_server() -> ServerConfig {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(), provider())
        .build()
        .unwrap();
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate()], IDENTITY.key.clone_key())
        .unwrap()
}

/// Both ends of a handshake whose certificates do not fit into one record.
pub(crate) fn wordy() -> (ClientConfig, ServerConfig) {
    let chain = vec![certificate(); 60];
    assert!(
        chain
            .iter()
            .map(|certificate| certificate.len())
            .sum::<usize>()
            > 20_000
    );
    let client = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots())
        .with_client_auth_cert(chain.clone(), IDENTITY.key.clone_key())
        .unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(), provider())
        .build()
        .unwrap();
    let server = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, IDENTITY.key.clone_key())
        .unwrap();
    (client, server)
}

/// A client that trusts the server.
pub(crate) fn client() -> ClientConfig {
    client_of(&VERSIONS)
}

/// The same with another provider of cryptography.
pub(crate) fn client_by(provider: Arc<CryptoProvider>) -> ClientConfig {
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots())
        .with_no_client_auth()
}

/// The same for some versions of the protocol.
pub(crate) fn client_of(versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots())
        .with_no_client_auth()
}

/// A client that trusts the server and presents a certificate.
pub(crate) fn known_client() -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots())
        .with_client_auth_cert(vec![certificate()], IDENTITY.key.clone_key())
        .unwrap()
}

/// A client that trusts somebody else.
pub(crate) fn distrustful_client() -> ClientConfig {
    let other = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(other.cert.der().clone()).unwrap();
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .unwrap();
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_webpki_verifier(verifier)
        .with_no_client_auth()
}

/// A blocking client that shares nothing with the code under test but rustls.
pub(crate) fn connect_blocking(
    config: ClientConfig,
    stream: TcpStream,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let connection = ClientConnection::new(Arc::new(config), NAME.try_into().unwrap())
        .map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}
