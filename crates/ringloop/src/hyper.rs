//! Serving and sending HTTP with the `hyper` library; feature `hyper`.
//!
//! [`TcpStream`](crate::net::TcpStream), [`UnixStream`](crate::net::UnixStream) and `TlsStream` implement hyper's
//! `Read` and `Write`, so that hyper can use a connection directly. [`Http`] serves the connections of a
//! [`Server`](crate::server::Server), and ends them gracefully when it drains. [`Client`] sends requests, over
//! connections that it keeps, and [`Connector`] makes these. [`Executor`] spawns hyper's own tasks,
//! which HTTP/2 needs, and [`Timer`] implements its timeouts. [`Io`] is for the few places where hyper requires a
//! connection that is `Send`, such as upgrades.
//!
//! ```
//! use std::convert::Infallible;
//! use http_body_util::Full;
//! use hyper::body::{Bytes, Incoming};
//! use hyper::service::service_fn;
//! use hyper::{Request, Response};
//! use ringloop::hyper::Timer;
//! use ringloop::net::{TcpListener, TcpStream};
//! use ringloop::{Runtime, RuntimeConfig, spawn};
//!
//! async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
//!     Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! Runtime::new(&RuntimeConfig::default())?.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?;
//!     let server = spawn(async move {
//!         let (stream, _) = listener.accept().await.unwrap();
//!         hyper::server::conn::http1::Builder::new()
//!             .timer(Timer)
//!             .serve_connection(stream, service_fn(hello))
//!             .await
//!     });
//!     let stream = TcpStream::connect(address).await?;
//!     let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
//!     let connection = spawn(connection);
//!     let answer = sender.send_request(Request::new(Full::<Bytes>::default())).await?;
//!     assert_eq!(answer.status(), 200);
//!     drop((sender, answer));
//!     connection.await??;
//!     server.await??;
//!     Ok(())
//! })
//! # }
//! ```

#![allow(unsafe_code)]

mod client;
mod client_error;
mod connector;
mod leaving;
mod pool;
mod upgrade;

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem::{self, ManuallyDrop};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};

use crate::runtime::{Handle, spawn, spawn_background};
use crate::sealed::INTERNAL;
use crate::server::{self, Draining};
use crate::time::{Sleep, sleep, sleep_until};
use leaving::Leaving;

/// How long a half-closed connection may be idle, by default.
const HALF_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

pub use client::{Client, ClientOptions, RequestBody};
pub use client_error::ClientError;
pub use connector::{ClientStream, Connector};
use upgrade::UntilUpgrade;
pub use upgrade::Upgraded;

/// Serves HTTP on the connections of a [`Server`](crate::server::Server): HTTP/2 if `h2` was negotiated by ALPN,
/// otherwise HTTP/1.1.
///
/// ```no_run
/// use std::convert::Infallible;
/// use http_body_util::Full;
/// use hyper::body::{Bytes, Incoming};
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
/// use ringloop::hyper::Http;
/// use ringloop::server::Server;
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
///     Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let http = Http::new();
/// Server::new("127.0.0.1:8000").serve_with(move |stream, client| {
///     let http = http.clone();
///     async move { http.serve(stream, &client, service_fn(hello)).await }
/// })
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Http {
    /// The settings of HTTP/1.1: hyper's defaults, a [`Timer`], and `half_close`. With `half_close`, a client that
    /// shuts down its side of the connection after its last request still gets its answers, if they begin within
    /// [`half_close_timeout`](Self::half_close_timeout). With `half_close(false)` the service is dropped as soon as the
    /// client has closed its side, and the last answer to such a client is lost.
    pub http1: http1::Builder,
    /// How long a service of HTTP/1.1 may go on without a byte being sent when its client has closed its side of the
    /// connection. The default is 2 seconds. A client that has closed both sides looks just the same, so after this time
    /// the service and the connection are dropped. `None` leaves this to the server's idle timeout. If the client has reset
    /// the connection, they are dropped at once.
    pub half_close_timeout: Option<Duration>,
    /// The settings of HTTP/2: hyper's defaults, and a [`Timer`].
    pub http2: http2::Builder<Executor>,
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl Http {
    /// Creates a server with hyper's default settings.
    pub fn new() -> Self {
        let mut http1 = http1::Builder::new();
        http1.timer(Timer).half_close(true);
        let mut http2 = http2::Builder::new(Executor);
        http2.timer(Timer);
        Self {
            http1,
            half_close_timeout: Some(HALF_CLOSE_TIMEOUT),
            http2,
        }
    }

    /// Serves one connection until it ends. When the server drains, requests in progress are completed, and no further
    /// ones are accepted: HTTP/1.1 sends `connection: close` with the last answer, HTTP/2 sends GOAWAY.
    ///
    /// For upgrades, such as to WebSocket, use [`serve_until_upgrade`](Self::serve_until_upgrade): `hyper::upgrade::on` requires
    /// connections that are `Send`.
    ///
    /// # Errors
    /// Returns hyper's errors, as an [`io::Error`].
    pub async fn serve<C, S, B>(
        &self,
        connection: C,
        client: &server::Client,
        service: S,
    ) -> io::Result<()>
    where
        C: Negotiated + Read + Write + Unpin + 'static,
        S: Service<Request<Incoming>, Response = Response<B>> + 'static,
        S::Future: 'static,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let draining = client.draining();
        // Boxed, because each connection would otherwise reserve memory for both.
        let served = if connection.is_http2(INTERNAL) {
            // It reads all the time, and notices by that when its client goes away.
            let serving = Box::pin(self.http2.serve_connection(connection, service));
            until_drained(
                serving,
                http2::Connection::graceful_shutdown,
                draining,
                None,
            )
            .await
        } else {
            let leaving = Leaving::new(connection.core_of(INTERNAL), self.half_close_timeout);
            let serving = Box::pin(self.http1.serve_connection(connection, service));
            let end = http1::Connection::graceful_shutdown;
            until_drained(serving, end, draining, Some(leaving)).await
        };
        served?.map_err(io::Error::other)
    }
}

impl Http {
    /// Serves one connection as [`serve`](Self::serve) does, until it ends or its protocol is switched: by an answer with the
    /// status 101, or by a successful one to CONNECT. Returns the connection then, after the answer was sent. Connections of
    /// HTTP/2 are served as by `serve`.
    ///
    /// ```no_run
    /// use std::convert::Infallible;
    /// use http_body_util::Empty;
    /// use hyper::body::{Bytes, Incoming};
    /// use hyper::service::service_fn;
    /// use hyper::{Request, Response, StatusCode, header};
    /// use ringloop::hyper::Http;
    /// use ringloop::server::Server;
    ///
    /// async fn switch(_: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    ///     let answer = Response::builder()
    ///         .status(StatusCode::SWITCHING_PROTOCOLS)
    ///         .header(header::CONNECTION, "upgrade")
    ///         .header(header::UPGRADE, "greeting");
    ///     Ok(answer.body(Empty::new()).expect("the head is valid"))
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let http = Http::new();
    /// Server::new("127.0.0.1:8000").serve_with(move |stream, client| {
    ///     let http = http.clone();
    ///     async move {
    ///         let served = http.serve_until_upgrade(stream, &client, service_fn(switch));
    ///         let Some(mut upgraded) = served.await? else {
    ///             return Ok(()); // it has ended
    ///         };
    ///         upgraded.stream.write_all(&b"hello in another protocol"[..]).await.0
    ///     }
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns hyper's errors, as an [`io::Error`].
    pub async fn serve_until_upgrade<C, S, B>(
        &self,
        connection: C,
        client: &server::Client,
        service: S,
    ) -> io::Result<Option<Upgraded<C>>>
    where
        C: Negotiated + Read + Write + Unpin + 'static,
        S: Service<Request<Incoming>, Response = Response<B>> + 'static,
        S::Future: 'static,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        if connection.is_http2(INTERNAL) {
            return self.serve(connection, client, service).await.map(|()| None);
        }
        let leaving = Leaving::new(connection.core_of(INTERNAL), self.half_close_timeout);
        let serving = Box::pin(UntilUpgrade::new(&self.http1, connection, service));
        let draining = client.draining();
        until_drained(serving, UntilUpgrade::end, draining, Some(leaving)).await?
    }
}

/// Runs a connection until it ends, or its client has gone, and asks it to end when the server drains.
async fn until_drained<C: Future>(
    mut connection: Pin<Box<C>>,
    end: impl FnOnce(Pin<&mut C>),
    draining: Draining,
    mut leaving: Option<Leaving>,
) -> io::Result<C::Output> {
    let mut draining = pin!(draining);
    let mut end = Some(end);
    poll_fn(|context| {
        // First, so that a request that has arrived is answered.
        if let Poll::Ready(output) = connection.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        if let Some(leaving) = &mut leaving
            && let Poll::Ready(error) = leaving.poll(context)
        {
            return Poll::Ready(Err(error));
        }
        if end.is_some()
            && draining.as_mut().poll(context).is_ready()
            && let Some(end) = end.take()
        {
            end(connection.as_mut());
            return connection.as_mut().poll(context).map(Ok);
        }
        Poll::Pending
    })
    .await
}

/// A connection that knows which version of HTTP was negotiated: a [`TcpStream`](crate::net::TcpStream), a
/// [`UnixStream`](crate::net::UnixStream), an [`AnyStream`](crate::net::AnyStream) or a `TlsStream`. The trait is sealed: no other type can implement it.
pub trait Negotiated: negotiated::IsHttp2 {}

impl<C: negotiated::IsHttp2> Negotiated for C {}

mod negotiated {
    use crate::net::stream::{Core, HasCore};
    use crate::net::{AnyStream, TcpStream, UnixStream};
    use crate::sealed::Internal;

    /// Only the crate can call the method.
    pub trait IsHttp2 {
        fn is_http2(&self, _: Internal) -> bool;
        fn core_of(&self, _: Internal) -> &Core;
    }

    macro_rules! plain {
        ($($stream:ty),*) => {$(
            impl IsHttp2 for $stream {
                fn is_http2(&self, _: Internal) -> bool {
                    false
                }

                fn core_of(&self, _: Internal) -> &Core {
                    self.core()
                }
            }
        )*};
    }

    plain!(AnyStream, TcpStream, UnixStream);

    #[cfg(feature = "tls")]
    impl<S: crate::net::Stream> IsHttp2 for crate::tls::TlsStream<S> {
        fn is_http2(&self, _: Internal) -> bool {
            self.alpn_protocol().as_deref() == Some(b"h2")
        }

        fn core_of(&self, _: Internal) -> &Core {
            self.stream().core()
        }
    }
}

/// Spawns hyper's tasks on the runtime of the current thread.
///
/// ```no_run
/// use ringloop::hyper::Executor;
///
/// let server = hyper::server::conn::http2::Builder::new(Executor);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Executor;

impl<F: Future + 'static> hyper::rt::Executor<F> for Executor {
    /// # Panics
    /// Panics if it is called outside of a runtime.
    fn execute(&self, future: F) {
        drop(spawn(future));
    }
}

/// Spawns hyper's own tasks as ringloop tasks [in the background](crate::spawn_background), for clients: no shutdown waits for
/// a connection to another server that is kept for later.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackgroundExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for BackgroundExecutor {
    /// # Panics
    /// Panics if it is called outside of a runtime.
    fn execute(&self, future: F) {
        drop(spawn_background(future));
    }
}

/// Implements hyper's timers. A sleep must be used in the thread that created it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timer;

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(BoundSleep(Bound::new(sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(BoundSleep(Bound::new(sleep_until(deadline.into()))))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn hyper::rt::Sleep>>, new_deadline: Instant) {
        if let Some(mut bound) = sleep.as_mut().downcast_mut_pin::<BoundSleep>() {
            bound.0.get_mut().reset(new_deadline.into());
        } else {
            *sleep = self.sleep_until(new_deadline);
        }
    }
}

struct BoundSleep(Bound<Sleep>);

impl Future for BoundSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(self.0.get_mut()).poll(context)
    }
}

impl hyper::rt::Sleep for BoundSleep {}

/// Makes a connection `Send`, for interfaces that require it, such as hyper's upgrades.
///
/// It panics if it is used in another thread. If it is dropped in another thread, the connection is sent back to its
/// own thread and closed there at the next turn of its runtime. If that runtime has ended, the connection is leaked.
///
/// ```
/// use ringloop::hyper::Io;
/// use ringloop::net::UnixStream;
/// use ringloop::{Runtime, RuntimeConfig};
///
/// fn wants_send<T: Send>(connection: T) -> T {
///     connection
/// }
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let (near, _far) = UnixStream::pair()?;
///     let near: UnixStream = wants_send(Io::new(near)).into_inner();
///     near.try_write(b"hello")?;
///     Ok(())
/// })
/// # }
/// ```
pub struct Io<T: 'static>(Bound<T>);

impl<T> Io<T> {
    /// Binds a connection to the current thread.
    pub fn new(connection: T) -> Self {
        Self(Bound::new(connection))
    }

    /// Returns a reference to the connection.
    ///
    /// # Panics
    /// Panics in another thread.
    pub fn get_ref(&self) -> &T {
        self.0.get()
    }

    /// Returns the connection.
    ///
    /// # Panics
    /// Panics in another thread.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: Read + Unpin> Read for Io<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for Io<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.get().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_shutdown(context)
    }
}

impl<T> fmt::Debug for Io<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Io")
    }
}

/// A value that any thread may hold, but only its own thread may access.
struct Bound<T: 'static> {
    owner: ThreadId,
    /// The runtime that drops the value when another thread drops this.
    home: Option<Handle>,
    value: ManuallyDrop<T>,
}

// SAFETY: the value is reached through `get`, `get_mut`, `into_inner` and `drop` alone, and each makes sure that it runs in
// the thread that the value was made in; other threads touch nothing but `owner` and `home`, and `drop` moves it there as a
// `Stray`.
unsafe impl<T> Send for Bound<T> {}
// SAFETY: a shared reference gives the value through `get` alone, which makes sure that it runs in the thread that the
// value was made in.
unsafe impl<T> Sync for Bound<T> {}

impl<T> Bound<T> {
    fn new(value: T) -> Self {
        Self {
            owner: thread::current().id(),
            home: Handle::try_current(),
            value: ManuallyDrop::new(value),
        }
    }

    fn is_here(&self) -> bool {
        thread::current().id() == self.owner
    }

    fn check(&self) {
        assert!(
            self.is_here(),
            "a ringloop connection or timer was used in another thread than its own",
        );
    }

    fn get(&self) -> &T {
        self.check();
        &self.value
    }

    fn get_mut(&mut self) -> &mut T {
        self.check();
        &mut self.value
    }

    fn into_inner(self) -> T {
        self.check();
        let mut this = ManuallyDrop::new(self);
        drop(this.home.take());
        // SAFETY: `this` is not dropped, so the value is taken only once.
        unsafe { ManuallyDrop::take(&mut this.value) }
    }
}

impl<T> Drop for Bound<T> {
    fn drop(&mut self) {
        // SAFETY: a value is dropped once, and `into_inner` prevents this drop.
        let value = Stray(unsafe { ManuallyDrop::take(&mut self.value) });
        if self.is_here() {
            return drop(value);
        }
        let value: Box<dyn Any + Send> = Box::new(value);
        let left = match self.home.take() {
            Some(home) => home.drop_there(value),
            None => Err(value),
        };
        if let Err(value) = left {
            // No thread is left that may drop it.
            mem::forget(value);
        }
    }
}

/// A value on its way back to its own thread.
struct Stray<T>(T);

// SAFETY: made by the drop of a `Bound`, which drops it in the value's own thread, sends it to a runtime that was current in
// that thread when the value was bound, and so is in it for good, or leaks it. On the way nobody touches it.
unsafe impl<T> Send for Stray<T> {}
