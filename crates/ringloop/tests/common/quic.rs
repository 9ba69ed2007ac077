//! Endpoints of QUIC that trust one another.

#![allow(dead_code, reason = "no test uses all of it")]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TransportConfig};
use ringloop::quinn::RingloopRuntime;

/// The name in the certificate.
pub(crate) const NAME: &str = "ringloop.test";

pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    pub(crate) transport: Arc<TransportConfig>,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        Self {
            certificate: made.cert.der().clone(),
            key: made.signing_key.serialize_der().try_into().unwrap(),
            transport: Arc::default(),
        }
    }

    /// An endpoint on a port of loopback that can be connected to, and can connect to others of this identity.
    pub(crate) fn endpoint(&self, runtime: &RingloopRuntime) -> io::Result<Endpoint> {
        let chain = vec![self.certificate.clone()];
        let mut config = ServerConfig::with_single_cert(chain, self.key.clone_key()).unwrap();
        config.transport_config(Arc::clone(&self.transport));
        let mut endpoint = Endpoint::new(
            EndpointConfig::default(),
            Some(config),
            UdpSocket::bind("127.0.0.1:0")?,
            Arc::new(runtime.clone()),
        )?;
        endpoint.set_default_client_config(self.client_config());
        Ok(endpoint)
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
        config.transport_config(Arc::clone(&self.transport));
        config
    }
}

/// Sends back what comes on each stream, until the endpoint is closed.
pub(crate) async fn serve_echo(endpoint: Endpoint) {
    let mut connections = Vec::new();
    while let Some(incoming) = endpoint.accept().await {
        connections.push(ringloop::spawn(async move {
            // A client may give up.
            let Ok(connection) = incoming.await else {
                return;
            };
            while let Ok((mut sender, mut receiver)) = connection.accept_bi().await {
                drop(ringloop::spawn(async move {
                    while let Ok(Some(chunk)) = receiver.read_chunk(usize::MAX, true).await {
                        if sender.write_chunk(chunk.bytes).await.is_err() {
                            return;
                        }
                    }
                    let _ = sender.finish();
                    // Nobody may wait for the end of a stream that is over.
                    let _ = sender.stopped().await;
                }));
            }
        }));
    }
    for connection in connections {
        connection.await.unwrap();
    }
}

/// Sends bytes on a stream of their own while they come back.
pub(crate) async fn echo(connection: &Connection, bytes: &[u8]) {
    let (mut sender, mut receiver) = connection.open_bi().await.unwrap();
    let sending = async {
        sender.write_all(bytes).await.unwrap();
        sender.finish().unwrap();
    };
    let receiving = receiver.read_to_end(bytes.len());
    let ((), answer) = futures_util::future::join(sending, receiving).await;
    assert!(answer.unwrap() == bytes);
}

pub(crate) async fn connect(client: &Endpoint, to: SocketAddr) -> Connection {
    client.connect(to, NAME).unwrap().await.unwrap()
}
