//! Connecting to HTTP servers.

use std::io::{self, IoSlice};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};

use super::negotiated::IsHttp2;
use crate::net::stream::Core;
use crate::net::{TcpConnectOptions, TcpStream, UnixStream};
use crate::sealed::{INTERNAL, Internal};
use crate::time::timeout;
#[cfg(feature = "tls")]
use crate::tls::{
    TlsConnector, TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// How long connecting may take, by default.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to HTTP servers, by the scheme, host and port of a URI: over TCP, or over TLS for `https`.
///
/// Names are resolved, and their addresses tried, as [`TcpStream::connect`] does. Small writes are sent at once
/// (`TCP_NODELAY`).
///
/// ```
/// use ringloop::hyper::Connector;
/// use ringloop::net::TcpListener;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let uri = format!("http://{}/", listener.local_addr()?).parse().unwrap();
/// let stream = Connector::new().connect(&uri).await?;
/// let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
/// # sender.is_ready();
/// # let _: &hyper::client::conn::http1::SendRequest<String> = &sender;
/// # drop(connection);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Connector {
    tcp: TcpConnectOptions,
    timeout: Duration,
    unix: Option<Arc<Path>>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConnector>,
    offers_http2: bool,
}

impl Default for Connector {
    fn default() -> Self {
        Self::new()
    }
}

impl Connector {
    /// Creates a connector for `http`. For `https`, add [`tls`](Self::tls).
    pub fn new() -> Self {
        Self {
            tcp: TcpConnectOptions::default(),
            timeout: TIMEOUT,
            unix: None,
            #[cfg(feature = "tls")]
            tls: None,
            offers_http2: false,
        }
    }

    /// Sets how long connecting may take in total: resolving the name, trying its addresses, and the TLS handshake. The
    /// default is 30 seconds.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how the addresses of a name are tried.
    #[must_use]
    pub fn tcp(mut self, options: TcpConnectOptions) -> Self {
        self.tcp = options;
        self
    }

    /// Connects to this Unix socket, whatever the host of a URI is. A proxy uses this for a server on the same machine.
    ///
    /// ```
    /// use ringloop::hyper::Connector;
    /// use ringloop::net::UnixListener;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let path = std::env::temp_dir().join(format!("ringloop-connector-{}", std::process::id()));
    /// let listener = UnixListener::bind(&path)?;
    /// let connector = Connector::new().unix_socket(&path);
    /// connector.connect(&"http://localhost/".parse().unwrap()).await?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn unix_socket(mut self, path: impl AsRef<Path>) -> Self {
        self.unix = Some(path.as_ref().into());
        self
    }

    /// Sets the configuration for `https`. If it has no ALPN protocols, `h2` and `http/1.1` are offered, in this order; a
    /// configuration with `http/1.1` alone keeps to HTTP/1.1.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, config: impl Into<Arc<ClientConfig>>) -> Self {
        let mut config = config.into();
        if config.alpn_protocols.is_empty() {
            Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".into(), b"http/1.1".into()];
        }
        self.offers_http2 = config.alpn_protocols.iter().any(|name| name == b"h2");
        self.tls = Some(TlsConnector::new(config));
        self
    }

    /// Whether a connection may turn out to be HTTP/2.
    pub(super) fn may_be_http2(&self, is_https: bool) -> bool {
        is_https && self.offers_http2
    }

    /// Connects to the server of a URI.
    ///
    /// # Errors
    /// Returns `InvalidInput` for a URI without a host or with another scheme than `http` and `https`, and for `https`
    /// without a TLS configuration; `TimedOut` if it takes too long; and the errors of [`TcpStream::connect`] and
    /// `TlsConnector::connect`.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub async fn connect(&self, uri: &Uri) -> io::Result<ClientStream> {
        let target = Target::of(uri)?;
        let connected = timeout(self.timeout, self.connect_to(&target)).await;
        connected.unwrap_or_else(|_| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("connecting took longer than {:?}", self.timeout),
            ))
        })
    }

    async fn connect_to(&self, target: &Target<'_>) -> io::Result<ClientStream> {
        #[cfg(feature = "tls")]
        if target.is_https {
            let tls = self.tls.as_ref().ok_or_else(no_tls)?;
            let name = ServerName::try_from(target.name().to_owned())
                .map_err(|error| invalid(format!("the host {}: {error}", target.host)))?;
            return Ok(ClientStream(match &self.unix {
                Some(path) => {
                    let stream = UnixStream::connect(&**path).await?;
                    Kind::TlsUnix(tls.connect(name, stream).await?)
                }
                None => Kind::Tls(tls.connect(name, self.tcp_to(target).await?).await?),
            }));
        }
        if target.is_https {
            return Err(no_tls());
        }
        Ok(ClientStream(match &self.unix {
            Some(path) => Kind::Unix(UnixStream::connect(&**path).await?),
            None => Kind::Tcp(self.tcp_to(target).await?),
        }))
    }

    async fn tcp_to(&self, target: &Target<'_>) -> io::Result<TcpStream> {
        let address = (target.host, target.port);
        let stream = TcpStream::connect_with(address, &self.tcp).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn no_tls() -> io::Error {
    invalid("there is no TLS configuration; set one with Connector::tls (feature `tls`)".to_owned())
}

/// The server that a URI names.
pub(super) struct Target<'u> {
    pub(super) is_https: bool,
    pub(super) host: &'u str,
    pub(super) port: u16,
}

impl<'u> Target<'u> {
    pub(super) fn of(uri: &'u Uri) -> io::Result<Self> {
        let is_https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => {
                let uri = without_password(&uri.to_string());
                return Err(invalid(format!("the URI {uri}: use http:// or https://")));
            }
        };
        let host = uri.host().unwrap_or_default();
        if host.is_empty() {
            let uri = without_password(&uri.to_string());
            return Err(invalid(format!("the URI {uri} has no host")));
        }
        let default = if is_https { 443 } else { 80 };
        Ok(Self {
            is_https,
            host,
            port: uri.port_u16().unwrap_or(default),
        })
    }

    /// The host, without the brackets of an IPv6 address.
    #[cfg(feature = "tls")]
    fn name(&self) -> &str {
        let literal = self.host.strip_prefix('[');
        literal
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(self.host)
    }
}

/// A connection to an HTTP server, made by a [`Connector`]. hyper can use it directly.
#[derive(Debug)]
pub struct ClientStream(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(TlsStream),
    #[cfg(feature = "tls")]
    TlsUnix(TlsStream<UnixStream>),
}

/// A URI for an error message, without the name and the password of a user.
pub(super) fn without_password(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("//") else {
        return uri.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    format!("{scheme}//{host}{path}")
}

/// Does the same with a stream of any kind.
macro_rules! each {
    ($stream:expr, $name:ident => $body:expr) => {
        match $stream {
            Kind::Tcp($name) => $body,
            Kind::Unix($name) => $body,
            #[cfg(feature = "tls")]
            Kind::Tls($name) => $body,
            #[cfg(feature = "tls")]
            Kind::TlsUnix($name) => $body,
        }
    };
}

impl IsHttp2 for ClientStream {
    fn is_http2(&self, _: Internal) -> bool {
        each!(&self.0, stream => stream.is_http2(INTERNAL))
    }

    fn core_of(&self, _: Internal) -> &Core {
        each!(&self.0, stream => stream.core_of(INTERNAL))
    }
}

impl Read for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl Write for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_shutdown(context))
    }
}
