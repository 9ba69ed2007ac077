//! Connections of HTTP/1.1 that go on with another protocol.

use std::cell::Cell;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode};

/// A connection whose last answer has switched it to another protocol: one with the status 101 (Switching Protocols), or a
/// successful one to CONNECT. Returned by [`Http::serve_until_upgrade`](super::Http::serve_until_upgrade).
#[derive(Debug)]
#[non_exhaustive]
pub struct Upgraded<C> {
    /// The connection.
    pub stream: C,
    /// The bytes of the new protocol that the client had sent already, and that were read with its request. They come
    /// before those of the stream.
    pub read_ahead: Bytes,
}

type BoxError = Box<dyn Error + Send + Sync>;

/// The future of a service, in a box, because hyper moves it.
type Answering<B> = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>>>>;

/// A service of any type.
struct Anything<B>(Box<dyn Fn(Request<Incoming>) -> Answering<B>>);

impl<B> Service<Request<Incoming>> for Anything<B> {
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Answering<B>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        (self.0)(request)
    }
}

/// Returns a service that also notes whether its last answer has switched the protocol.
fn noting<S, B>(service: S, has_switched: Rc<Cell<bool>>) -> Anything<B>
where
    S: Service<Request<Incoming>, Response = Response<B>> + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
{
    Anything(Box::new(move |request| {
        let is_connect = request.method() == Method::CONNECT;
        let has_switched = Rc::clone(&has_switched);
        let answering = service.call(request);
        Box::pin(async move {
            let answer = answering.await.map_err(Into::into)?;
            let status = answer.status();
            let switches = status == StatusCode::SWITCHING_PROTOCOLS;
            has_switched.set(switches || is_connect && status.is_success());
            Ok(answer)
        })
    }))
}

/// Serves a connection, and returns it when its protocol is switched.
pub(super) struct UntilUpgrade<C, B: Body + 'static>
where
    B::Error: Into<BoxError>,
{
    connection: Option<http1::Connection<C, Anything<B>>>,
    has_switched: Rc<Cell<bool>>,
    /// The connection, if it has only ended, and is being shut down.
    ended: Option<C>,
}

impl<C, B> UntilUpgrade<C, B>
where
    C: Read + Write + Unpin,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) fn new<S>(builder: &http1::Builder, connection: C, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + 'static,
        S::Future: 'static,
        S::Error: Into<BoxError>,
    {
        let has_switched = Rc::new(Cell::new(false));
        let service = noting(service, Rc::clone(&has_switched));
        Self {
            connection: Some(builder.serve_connection(connection, service)),
            has_switched,
            ended: None,
        }
    }

    /// Answers the request in progress, and accepts no more.
    pub(super) fn end(mut self: Pin<&mut Self>) {
        if let Some(connection) = &mut self.connection {
            Pin::new(connection).graceful_shutdown();
        }
    }
}

// Nothing in it is pinned: the futures of the service are in boxes.
impl<C, B: Body + 'static> Unpin for UntilUpgrade<C, B> where B::Error: Into<BoxError> {}

impl<C, B> Future for UntilUpgrade<C, B>
where
    C: Read + Write + Unpin,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    type Output = io::Result<Option<Upgraded<C>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(connection) = &mut this.connection {
            ready!(connection.poll_without_shutdown(context)).map_err(io::Error::other)?;
        }
        if let Some(connection) = this.connection.take() {
            let parts = connection.into_parts();
            if this.has_switched.get() {
                return Poll::Ready(Ok(Some(Upgraded {
                    stream: parts.io,
                    read_ahead: parts.read_buf,
                })));
            }
            this.ended = Some(parts.io);
        }
        if let Some(stream) = &mut this.ended {
            // The client may be gone.
            let _ = ready!(Pin::new(stream).poll_shutdown(context));
        }
        Poll::Ready(Ok(None))
    }
}
