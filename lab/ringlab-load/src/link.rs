//! The bytes of a connection: those of its socket, or TLS on it.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
use socket2::Socket;

/// A connection to the server.
pub(crate) enum Link {
    Plain(Socket),
    Tls(Box<Tls>),
}

/// A connection with TLS.
pub(crate) struct Tls {
    stream: Socket,
    session: ClientConnection,
}

impl Link {
    /// A connection on a non-blocking socket.
    pub(crate) fn new(stream: Socket, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let Some(config) = tls else {
            return Ok(Self::Plain(stream));
        };
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self::Tls(Box::new(Tls { stream, session })))
    }

    pub(crate) fn socket(&self) -> &Socket {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => &tls.stream,
        }
    }

    /// Goes on with TLS's handshake as far as possible. Returns whether it is done.
    pub(crate) fn handshake(&mut self) -> io::Result<bool> {
        let Self::Tls(tls) = self else {
            return Ok(true);
        };
        while tls.session.is_handshaking() {
            tls.flush()?;
            if !tls.session.is_handshaking() {
                break;
            }
            match tls.session.read_tls(&mut tls.stream) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            tls.session
                .process_new_packets()
                .map_err(io::Error::other)?;
        }
        tls.flush()?;
        Ok(true)
    }

    /// Receives what is there. Returns how many bytes that is, 0 if the server has closed the connection, and whether there may be
    /// more: otherwise a new edge announces it. The buffer must be large: with TLS, one half of it is for what comes encrypted.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        match self {
            Self::Plain(stream) => {
                let bytes = stream.read(buffer)?;
                Ok((bytes, bytes == buffer.len()))
            }
            Self::Tls(tls) => tls.receive(buffer),
        }
    }
}

impl Write for Link {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(tls) => {
                tls.flush()?;
                if tls.session.wants_write() {
                    return Err(ErrorKind::WouldBlock.into());
                }
                let written = tls.session.writer().write(bytes)?;
                tls.flush()?;
                Ok(written)
            }
        }
    }

    /// Sends what is encrypted, as far as the socket takes it.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

impl Tls {
    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives encrypted data, and puts the decrypted data at the beginning of the buffer.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let (plain, encrypted) = buffer.split_at_mut(buffer.len() / 2);
        // What had no room in the buffer the last time.
        let mut filled = self.decrypted(plain)?;
        let mut more = true;
        // Until the socket says that it has nothing, or its end: it reports each only once.
        while filled == 0 {
            let came = self.stream.read(encrypted)?;
            if came == 0 {
                return Ok((0, false));
            }
            more = came == encrypted.len();
            let mut rest = &encrypted[..came];
            while !rest.is_empty() {
                self.session.read_tls(&mut rest)?;
                self.session
                    .process_new_packets()
                    .map_err(io::Error::other)?;
                filled += self.decrypted(&mut plain[filled..])?;
            }
            more |= filled == plain.len();
        }
        Ok((filled, more))
    }

    fn decrypted(&mut self, plain: &mut [u8]) -> io::Result<usize> {
        if plain.is_empty() {
            return Ok(0);
        }
        match self.session.reader().read(plain) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }
}

/// TLS 1.3 without resumption, so that each connection costs the server the same. `protocol` is what ALPN asks for, if anything. The
/// server must show `certificate`; without one, any will do, because the load generator measures servers on its own machine.
pub(crate) fn tls(
    protocol: Option<&str>,
    certificate: Option<CertificateDer<'static>>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = ring::default_provider();
    let verifier = Arc::new(Shown {
        certificate,
        algorithms: provider.signature_verification_algorithms,
    });
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = protocol
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The certificate that the server must show, byte by byte.
#[derive(Debug)]
struct Shown {
    /// `None`: any.
    certificate: Option<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Shown {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.certificate {
            Some(certificate) if certificate != shown => Err(rustls::Error::General(
                "the server shows another certificate than --certificate".to_owned(),
            )),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, shown, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
