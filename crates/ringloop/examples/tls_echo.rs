//! An echo server over TLS.

mod arguments;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use ringloop::server::{Connection, Handler};
use ringloop::tls::rustls::ServerConfig;
use ringloop::tls::rustls::crypto::ring;
use ringloop::tls::rustls::pki_types::pem::{self, PemObject};
use ringloop::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Sends back what it receives, over TLS. Try it with: openssl s_client -connect 127.0.0.1:7000
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
    /// The server's certificate chain, in a PEM file. Without it, a self-signed certificate is created.
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key, in a PEM file.
    #[arg(long, requires = "certificate")]
    key: Option<PathBuf>,
}

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

/// The certificate chain and its private key.
fn identity(
    arguments: &Arguments,
) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) else {
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

fn serve(arguments: &Arguments) -> io::Result<()> {
    let (chain, key) = identity(arguments)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let server = arguments
        .listening
        .start(|server| server.tls(config).start(|| Echo))?;
    arguments.listening.run(server)
}

fn main() -> ExitCode {
    arguments::exit_code(serve(&Arguments::parse()))
}
