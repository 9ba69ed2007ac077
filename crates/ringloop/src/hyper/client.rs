//! A client that keeps its connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, Uri, Version};

use super::client_error::ClientError;
use super::connector::{Connector, Target, without_password};
use super::pool::{Host, Leased, Sender};
use super::{BackgroundExecutor, Timer};
use crate::runtime::spawn_background;
use crate::task::AbortOnDrop;
use crate::time::{Instant, sleep_until};

/// The options of a [`Client`].
///
/// ```
/// use http_body_util::Empty;
/// use hyper::body::Bytes;
/// use ringloop::hyper::{Client, ClientOptions, Connector};
/// use std::time::Duration;
///
/// let mut options = ClientOptions::default();
/// options.connections_per_host = 8;
/// options.idle_timeout = Duration::from_secs(10);
/// let client: Client<Empty<Bytes>> = Client::with_options(Connector::new(), options);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How many connections of HTTP/1.1 there may be to one host and port, at least 1. Further requests wait. A
    /// connection is in use until its response has been read or dropped. The default is 100. All requests of HTTP/2 share
    /// one connection.
    pub connections_per_host: usize,
    /// How long a connection is kept without a request. The default is 60 seconds. Choose less than your servers do, so
    /// that they do not close a connection while a request is on its way. For HTTP/2 it counts from the beginning of the
    /// last request. 0 keeps no connection of HTTP/1.1, and one of HTTP/2 for up to a second.
    pub idle_timeout: Duration,
    /// Whether HTTP/2 is used without negotiation ("prior knowledge"). The default is no: HTTP/2 is used if the server
    /// chooses it in the TLS handshake (ALPN).
    pub http2_only: bool,
    /// The settings of HTTP/1.1: hyper's defaults.
    pub http1: http1::Builder,
    /// The settings of HTTP/2: hyper's defaults, and a [`Timer`]. With a `keep_alive_interval`, a server that is gone
    /// without closing its connection is noticed.
    pub http2: http2::Builder<BackgroundExecutor>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        let mut http2 = http2::Builder::new(BackgroundExecutor);
        http2.timer(Timer);
        Self {
            connections_per_host: 100,
            idle_timeout: Duration::from_secs(60),
            http2_only: false,
            http1: http1::Builder::new(),
            http2,
        }
    }
}

/// A body that a [`Client`] can send: any that hyper's clients can. It is implemented for all of them.
pub trait RequestBody:
    Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static
{
}

impl<B> RequestBody for B where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static
{
}

/// An HTTP client that keeps its connections for later requests: HTTP/2 if the server chooses it by ALPN, otherwise
/// HTTP/1.1.
///
/// A client belongs to the worker that created it, as its connections do, and is not `Send`. Clones share the
/// connections. Create one for each worker, for example in a `thread_local`. When the last clone is dropped, its idle
/// connections are closed, and requests in progress continue.
///
/// - A request that finds its connection closed before anything of it was sent is sent again over another one.
/// - If you drop a response or its body before its end, the connection is closed (HTTP/1.1) or the stream is reset
///   (HTTP/2). Other requests are not affected.
/// - There is no timeout for a request: use [`timeout`](crate::time::timeout).
/// - Redirects, cookies, compression, proxies and upgrades are not handled.
///
/// `B` is the type of the requests' bodies.
///
/// ```
/// use http_body_util::{BodyExt, Full};
/// use hyper::body::{Bytes, Incoming};
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
/// use ringloop::hyper::{Client, Connector, Http};
/// use ringloop::server::Server;
/// use std::convert::Infallible;
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
///     Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let http = Http::new();
/// let server = Server::new("127.0.0.1:0").workers(1).start_with(move |stream, client| {
///     let http = http.clone();
///     async move { http.serve(stream, &client, service_fn(hello)).await }
/// })?;
/// let uri = format!("http://{}/", server.local_addr());
/// ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
///     let client: Client<Full<Bytes>> = Client::new(Connector::new());
///     for _ in 0..3 {
///         let response = client.get(&uri).await?;
///         assert_eq!(response.into_body().collect().await?.to_bytes(), "Hello, World!");
///     }
///     // All of them over one connection.
///     assert_eq!(server.counters().accepted, 1);
///     Ok(())
/// })
/// # }
/// ```
pub struct Client<B> {
    shared: Rc<Shared<B>>,
}

struct Shared<B> {
    connector: Connector,
    options: ClientOptions,
    hosts: RefCell<HashMap<Key, Rc<Host<B>>>>,
    /// Closes what is idle for too long. It runs while there is a host.
    reaper: RefCell<Option<AbortOnDrop<()>>>,
}

/// The server that a connection is for.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    is_https: bool,
    /// In lower case.
    host: String,
    port: u16,
}

impl<B> Clone for Client<B> {
    fn clone(&self) -> Self {
        Self {
            shared: Rc::clone(&self.shared),
        }
    }
}

impl<B: RequestBody> Client<B> {
    /// Creates a client with the default options.
    pub fn new(connector: Connector) -> Self {
        Self::with_options(connector, ClientOptions::default())
    }

    /// Creates a client.
    pub fn with_options(connector: Connector, options: ClientOptions) -> Self {
        Self {
            shared: Rc::new(Shared {
                connector,
                options,
                hosts: RefCell::default(),
                reaper: RefCell::default(),
            }),
        }
    }

    /// Sends a GET request with an empty body, see [`request`](Self::request).
    ///
    /// # Errors
    /// See [`request`](Self::request).
    pub async fn get(&self, uri: &str) -> Result<Response<Incoming>, ClientError>
    where
        B: Default,
    {
        let uri = uri.parse::<Uri>().map_err(|error| {
            let uri = without_password(uri);
            ClientError::request(format!("the URI {uri}: {error}"))
        })?;
        let mut request = Request::new(B::default());
        *request.uri_mut() = uri;
        self.request(request).await
    }

    /// Sends a request, and returns the head of the response. The URI must be absolute, such as
    /// `http://example.org/path`; it says where to connect. A `host` header is added if there is none. The request's
    /// version does not matter.
    ///
    /// # Errors
    /// Returns a [`ClientError`] if the URI cannot be used, if no connection can be made, or if the request fails. A
    /// status such as 500 is not an error. If the future is dropped, the request is given up, and the server may have
    /// received it.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub async fn request(
        &self,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, ClientError> {
        if request.method() == Method::CONNECT {
            return Err(ClientError::request(
                "the method CONNECT: a pooled client cannot open tunnels; use hyper's connections",
            ));
        }
        let uri = request.uri().clone();
        let host = self.host(&uri)?;
        let host_header = request.headers().get(HOST).cloned();
        let Shared {
            connector, options, ..
        } = &*self.shared;
        loop {
            let Leased { sender, is_reused } = host.lease(&uri, connector, options).await?;
            let result = match sender {
                Sender::Http1(mut sender, permit) => {
                    for_http1(&mut request, &uri)?;
                    let result = sender.try_send_request(request).await;
                    if result.is_ok() {
                        host.give_back(sender, permit);
                    }
                    result
                }
                Sender::Http2(mut sender) => {
                    for_http2(&mut request, &uri);
                    sender.try_send_request(request).await
                }
            };
            match result {
                Ok(response) => return Ok(response),
                Err(mut error) => match error.take_message() {
                    // It was closed, and nothing was sent. A new connection that does this is an error.
                    Some(unsent) if is_reused => {
                        request = unsent;
                        // As the caller has made it, for either version.
                        request.headers_mut().remove(HOST);
                        if let Some(host) = &host_header {
                            request.headers_mut().insert(HOST, host.clone());
                        }
                    }
                    _ => return Err(ClientError::http(&host.name, error.into_error())),
                },
            }
        }
    }

    /// The server of a URI.
    fn host(&self, uri: &Uri) -> Result<Rc<Host<B>>, ClientError> {
        let target = Target::of(uri).map_err(ClientError::request)?;
        let Target { is_https, port, .. } = target;
        let key = Key {
            is_https,
            host: target.host.to_ascii_lowercase(),
            port,
        };
        let mut hosts = self.shared.hosts.borrow_mut();
        if let Some(host) = hosts.get(&key) {
            let host = Rc::clone(host);
            drop(hosts);
            // It may have ended with another runtime.
            self.start_reaper();
            return Ok(host);
        }
        let scheme = if is_https { "https" } else { "http" };
        let name = format!("{scheme}://{}:{port}", target.host);
        let host = Rc::new(Host::new(name, is_https, &self.shared.options));
        hosts.insert(key, Rc::clone(&host));
        drop(hosts);
        self.start_reaper();
        Ok(host)
    }

    fn start_reaper(&self) {
        let mut reaper = self.shared.reaper.borrow_mut();
        let is_running = |task: &AbortOnDrop<()>| !task.is_finished();
        if !reaper.as_ref().is_some_and(is_running) {
            let client = Rc::downgrade(&self.shared);
            let idle_timeout = self.shared.options.idle_timeout;
            *reaper = Some(spawn_background(reap(client, idle_timeout)).abort_on_drop());
        }
    }
}

/// Closes connections that were idle for too long, and forgets servers that are not used, while there is one.
async fn reap<B: RequestBody>(client: Weak<Shared<B>>, idle_timeout: Duration) {
    // How long to wait if nothing is due: the servers' entries in the table are to be forgotten at some time.
    let pause = if idle_timeout.is_zero() {
        Duration::from_secs(1)
    } else {
        idle_timeout.max(Duration::from_millis(10))
    };
    let mut next = Instant::now() + pause;
    loop {
        sleep_until(next).await;
        let Some(client) = client.upgrade() else {
            return;
        };
        next = Instant::now() + pause;
        let mut unused = Vec::new();
        let mut hosts = client.hosts.borrow_mut();
        hosts.retain(|_, host| match host.expire(idle_timeout) {
            Some(due) => {
                next = next.min(due);
                true
            }
            // Requests in progress hold the others.
            None if Rc::strong_count(host) > 1 || host.is_busy() => true,
            None => {
                unused.push(Rc::clone(host));
                false
            }
        });
        if hosts.is_empty() {
            // A request to a new server starts another task.
            drop(hosts);
            drop(client.reaper.take().map(AbortOnDrop::detach));
            return;
        }
        drop(hosts);
    }
}

/// Brings a request into the form that HTTP/1.1 sends: a path, and a `host` header.
fn for_http1<B>(request: &mut Request<B>, uri: &Uri) -> Result<(), ClientError> {
    *request.version_mut() = Version::HTTP_11;
    let path = uri.path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    if !request.headers().contains_key(HOST) {
        let authority = uri.authority().map_or("", Authority::as_str);
        // Without a user's name and password.
        let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let host = HeaderValue::from_str(host)
            .map_err(|error| ClientError::request(format!("the host {host}: {error}")))?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

/// Brings a request into the form that HTTP/2 sends: an absolute URI, whose authority a `host` header replaces.
fn for_http2<B>(request: &mut Request<B>, uri: &Uri) {
    *request.version_mut() = Version::HTTP_2;
    let mut parts = uri.clone().into_parts();
    if let Some(host) = request.headers_mut().remove(HOST)
        && let Ok(authority) = Authority::try_from(host.as_bytes())
    {
        parts.authority = Some(authority);
    }
    // Without a user's name and password (RFC 9113, 8.3.1).
    if let Some(authority) = &parts.authority
        && let Some((_, host)) = authority.as_str().rsplit_once('@')
        && let Ok(host) = Authority::try_from(host)
    {
        parts.authority = Some(host);
    }
    parts.scheme.get_or_insert(Scheme::HTTP);
    let path = || PathAndQuery::from_static("/");
    parts.path_and_query.get_or_insert_with(path);
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_else(|_| uri.clone());
}

impl<B> fmt::Debug for Client<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}
