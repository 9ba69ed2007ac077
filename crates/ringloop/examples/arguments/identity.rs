//! The certificate of a server over TLS.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ringloop::tls::rustls::ServerConfig;
use ringloop::tls::rustls::crypto::ring;
use ringloop::tls::rustls::pki_types::pem::{self, PemObject};
use ringloop::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Where the certificate is.
#[derive(Args)]
pub(crate) struct Identity {
    /// The server's certificate chain, in a PEM file. Without it, a self-signed certificate is created.
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key, in a PEM file.
    #[arg(long, requires = "certificate")]
    key: Option<PathBuf>,
}

impl Identity {
    /// A configuration with this certificate.
    pub(crate) fn config(&self) -> io::Result<ServerConfig> {
        let (chain, key) = self.read()?;
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    /// The certificate chain and its private key.
    fn read(&self) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
                .map_err(io::Error::other)?;
            let key = made.signing_key.serialize_der().try_into();
            return Ok((
                vec![made.cert.der().clone()],
                key.map_err(io::Error::other)?,
            ));
        };
        let unusable = |path: &PathBuf, error: pem::Error| {
            let kind = io::ErrorKind::InvalidInput;
            io::Error::new(kind, format!("{}: {error}", path.display()))
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<_, _>>)
            .map_err(|error| unusable(certificate, error))?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
        Ok((chain, key))
    }
}
