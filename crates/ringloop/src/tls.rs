//! TLS with rustls, over connections of this runtime; feature `tls`.
//!
//! rustls implements the protocol, with the cryptography provider of your configuration; this crate does not choose
//! one. Create the configuration with your own `rustls` dependency, with one of its providers as a feature, or with
//! [`rustls`] from here.
//!
//! ```
//! use std::sync::Arc;
//! use ringloop::net::{TcpListener, TcpStream};
//! use ringloop::tls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
//! use ringloop::tls::{TlsAcceptor, TlsConnector};
//! use ringloop::{Runtime, RuntimeConfig, spawn};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A certificate made on the spot; a service reads its own from a file.
//! let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
//! let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der().try_into()?);
//! let provider = Arc::new(ring::default_provider());
//! let mut roots = RootCertStore::empty();
//! roots.add(certificate.clone())?;
//! let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
//!     .with_safe_default_protocol_versions()?
//!     .with_no_client_auth()
//!     .with_single_cert(vec![certificate], key)?;
//! let client = ClientConfig::builder_with_provider(provider)
//!     .with_safe_default_protocol_versions()?
//!     .with_root_certificates(roots)
//!     .with_no_client_auth();
//!
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?;
//!     let acceptor = TlsAcceptor::new(server);
//!     let serving = spawn(async move {
//!         let (stream, _) = listener.accept().await?;
//!         let mut stream = acceptor.accept(stream).await?;
//!         assert_eq!(stream.server_name().as_deref(), Some("localhost"));
//!         stream.write_all(&b"hello"[..]).await.0?;
//!         stream.shutdown().await
//!     });
//!     let stream = TcpStream::connect(address).await?;
//!     let mut stream = TlsConnector::new(client).connect("localhost".try_into()?, stream).await?;
//!     let (count, bytes) = stream.read(Vec::with_capacity(16)).await;
//!     assert_eq!((count?, &bytes[..]), (5, &b"hello"[..]));
//!     // A proper end (`close_notify`), and not a lost connection.
//!     assert_eq!(stream.read(bytes).await.0?, 0);
//!     serving.await??;
//!     Ok(())
//! })
//! # }
//! ```

mod boundary;
mod halves;
mod in_kernel;
mod kernel;
mod session;
mod stream;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

pub use rustls;

use crate::net::Stream;
use crate::time::timeout;
use session::Session;

pub use halves::{TlsReadHalf, TlsReuniteError, TlsWriteHalf};
pub use kernel::KernelTls;
pub use stream::TlsStream;

/// How long a handshake may take, by default.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts TLS connections, on the server's side.
///
/// Early data (0-RTT) is never accepted, whatever the configuration says, because it can be replayed.
#[derive(Clone)]
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
    handshake_timeout: Duration,
    kernel: bool,
}

impl TlsAcceptor {
    /// Creates an acceptor with a handshake timeout of 10 seconds.
    pub fn new(config: impl Into<Arc<ServerConfig>>) -> Self {
        Self {
            config: session::prepare(&config.into()),
            handshake_timeout: HANDSHAKE_TIMEOUT,
            kernel: false,
        }
    }

    /// Sets how long a handshake may take.
    #[must_use]
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// Sets whether the kernel encrypts and decrypts after the handshake (kernel TLS), where it can. The default is
    /// false.
    ///
    /// Then data goes from the program's buffers to the kernel and back as it does without TLS, and files go there without
    /// a copy in the program ([`io::send_file`](crate::io::send_file)). This needs TCP, a kernel
    /// with `CONFIG_TLS`, AES-GCM or ChaCha20-Poly1305, and a cryptography provider that can give its keys away; otherwise
    /// rustls goes on. [`TlsStream::kernel`] and [`kernel_support`](Self::kernel_support) say which, and why. Some things
    /// differ:
    /// - With TLS 1.2, a provider that cannot give its keys away is noticed too late, and the connection fails.
    /// - Your program is trusted with the keys: rustls gives them away, once, as `enable_secret_extraction` allows. This
    ///   method sets that in the acceptor's copy of the configuration.
    /// - Before Linux 6.14, a connection fails if its peer renews its keys (`KeyUpdate`, TLS 1.3). With TLS 1.2, and before
    ///   Linux 6.14, it can send only as many records as one key may make (2^24 for AES-GCM: up to 256 GB). Then writing
    ///   fails, the peer is sent close_notify, and reading goes on. The errors say so.
    /// - The kernel accepts data for which the socket's send buffer has no room, and loses it if the stream is dropped
    ///   then. So end with [`shutdown`](TlsStream::shutdown), or with [`flush`](TlsStream::flush), which wait for room.
    ///   [`write_all`](TlsStream::write_all) alone does not.
    ///
    /// ```
    /// use ringloop::tls::TlsAcceptor;
    ///
    /// # let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    /// # let key = made.signing_key.serialize_der().try_into()?;
    /// # let provider = std::sync::Arc::new(ringloop::tls::rustls::crypto::ring::default_provider());
    /// # let config = ringloop::tls::rustls::ServerConfig::builder_with_provider(provider)
    /// #     .with_safe_default_protocol_versions()?
    /// #     .with_no_client_auth()
    /// #     .with_single_cert(vec![made.cert.der().clone()], key)?;
    /// let acceptor = TlsAcceptor::new(config).kernel(true);
    /// println!("{}", acceptor.kernel_support());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn kernel(mut self, kernel: bool) -> Self {
        self.kernel = kernel;
        Arc::make_mut(&mut self.config).enable_secret_extraction |= kernel;
        self
    }

    /// Whether connections may be left to the kernel: [`KernelTls::On`] if that was asked for and the kernel has kernel
    /// TLS. It may still lack a connection's cipher; [`TlsStream::kernel`] says that.
    pub fn kernel_support(&self) -> KernelTls {
        kernel::asked(self.kernel)
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// Returns `TimedOut` if it takes too long, `UnexpectedEof` if the client closes the connection, and `InvalidData`
    /// with rustls' error if the handshake fails; the client has then been sent an alert.
    pub async fn accept<S: Stream>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let stream = self.begin(stream)?;
        handshake(stream, self.handshake_timeout).await
    }

    /// Creates a connection whose handshake must follow.
    pub(crate) fn begin<S: Stream>(&self, stream: S) -> io::Result<TlsStream<S>> {
        Ok(TlsStream::new(
            stream,
            Session::server(Arc::clone(&self.config), self.kernel)?,
        ))
    }

    pub(crate) fn handshake_limit(&self) -> Duration {
        self.handshake_timeout
    }
}

impl From<ServerConfig> for TlsAcceptor {
    fn from(config: ServerConfig) -> Self {
        Self::new(config)
    }
}

impl From<Arc<ServerConfig>> for TlsAcceptor {
    fn from(config: Arc<ServerConfig>) -> Self {
        Self::new(config)
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsAcceptor")
            .field("handshake_timeout", &self.handshake_timeout)
            .field("kernel", &self.kernel)
            .finish_non_exhaustive()
    }
}

/// Makes TLS connections, on the client's side.
#[derive(Clone)]
pub struct TlsConnector {
    config: Arc<ClientConfig>,
    handshake_timeout: Duration,
    kernel: bool,
}

impl TlsConnector {
    /// Creates a connector with a handshake timeout of 10 seconds.
    pub fn new(config: impl Into<Arc<ClientConfig>>) -> Self {
        Self {
            config: config.into(),
            handshake_timeout: HANDSHAKE_TIMEOUT,
            kernel: false,
        }
    }

    /// Sets how long a handshake may take.
    #[must_use]
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// Sets whether the kernel encrypts and decrypts after the handshake, see [`TlsAcceptor::kernel`].
    #[must_use]
    pub fn kernel(mut self, kernel: bool) -> Self {
        self.kernel = kernel;
        Arc::make_mut(&mut self.config).enable_secret_extraction |= kernel;
        self
    }

    /// Whether connections may be left to the kernel, see [`TlsAcceptor::kernel_support`].
    pub fn kernel_support(&self) -> KernelTls {
        kernel::asked(self.kernel)
    }

    /// Performs the handshake with a server, whose certificate must be valid for `name`.
    ///
    /// # Errors
    /// See [`TlsAcceptor::accept`].
    pub async fn connect<S: Stream>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let session = Session::client(Arc::clone(&self.config), name, self.kernel)?;
        handshake(TlsStream::new(stream, session), self.handshake_timeout).await
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsConnector")
            .field("handshake_timeout", &self.handshake_timeout)
            .field("kernel", &self.kernel)
            .finish_non_exhaustive()
    }
}

async fn handshake<S: Stream>(stream: TlsStream<S>, limit: Duration) -> io::Result<TlsStream<S>> {
    let shaken = timeout(limit, poll_fn(|context| stream.poll_handshake(context))).await;
    shaken.unwrap_or_else(|_| Err(handshake_timed_out(limit)))?;
    Ok(stream)
}

fn handshake_timed_out(limit: Duration) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the TLS handshake took longer than {limit:?}"),
    )
}
