//! The connections of a client to one server.
//!
//! A request holds a permit while it uses a connection of HTTP/1.1. So there are at most as many of them as permits: a new
//! one is opened only by who has a permit and finds none that is idle. One connection of HTTP/2 serves all requests, and
//! needs no permit.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_lock::{Mutex, Semaphore, SemaphoreGuardArc};
use hyper::client::conn::{http1, http2};
use hyper::{Uri, Version};

use super::client::{ClientOptions, RequestBody};
use super::client_error::ClientError;
use super::connector::Connector;
use super::negotiated::IsHttp2;
use crate::runtime::spawn_background;
use crate::sealed::INTERNAL;
use crate::time::{Instant, sleep};

/// A connection that was not used for this long may have been closed by its server, and the runtime has not looked yet.
const FRESH: Duration = Duration::from_millis(10);

/// The connections to one server.
pub(super) struct Host<B> {
    /// The server, as errors name it.
    pub(super) name: String,
    is_https: bool,
    keeps_idle: bool,
    /// Connections of HTTP/1.1 that wait for a request. The last one was used last.
    idle: RefCell<Vec<Idle<http1::SendRequest<B>>>>,
    /// Those whose response is being read.
    busy: RefCell<Vec<Rc<Busy<B>>>>,
    http2: RefCell<Option<Idle<http2::SendRequest<B>>>>,
    permits: Arc<Semaphore>,
    /// Held while a connection is made that may turn out to be of HTTP/2, which then serves all who wait.
    connecting: Mutex<()>,
    /// Counts the attempts to connect that have failed.
    failures: Cell<u64>,
    /// The version of the last connection.
    version: Cell<Option<Version>>,
}

/// A connection whose response is being read, with its permit. Whoever sees first that it is ready takes it out: a task that
/// waits for this, or the next request.
type Busy<B> = RefCell<Option<(Idle<http1::SendRequest<B>>, SemaphoreGuardArc)>>;

/// A connection, and when it was last used.
struct Idle<S> {
    sender: S,
    since: Instant,
    /// When it was last known to be open.
    seen: Instant,
}

impl<S> Idle<S> {
    fn new(sender: S) -> Self {
        let now = Instant::now();
        Self {
            sender,
            since: now,
            seen: now,
        }
    }
}

/// A connection for one request.
pub(super) enum Sender<B> {
    Http1(http1::SendRequest<B>, SemaphoreGuardArc),
    Http2(http2::SendRequest<B>),
}

/// A connection for one request, and whether it was used before.
pub(super) struct Leased<B> {
    pub(super) sender: Sender<B>,
    pub(super) is_reused: bool,
}

impl<B: RequestBody> Host<B> {
    pub(super) fn new(name: String, is_https: bool, options: &ClientOptions) -> Self {
        Self {
            name,
            is_https,
            keeps_idle: !options.idle_timeout.is_zero(),
            idle: RefCell::default(),
            busy: RefCell::default(),
            http2: RefCell::default(),
            permits: Arc::new(Semaphore::new(options.connections_per_host.max(1))),
            connecting: Mutex::new(()),
            failures: Cell::new(0),
            version: Cell::new(None),
        }
    }

    /// Returns an idle connection, or makes one. Waits while there are as many as there may be.
    pub(super) async fn lease(
        &self,
        uri: &Uri,
        connector: &Connector,
        options: &ClientOptions,
    ) -> Result<Leased<B>, ClientError> {
        if let Some(leased) = self.lease_http2().await {
            return Ok(leased);
        }
        self.take_back();
        let permit = self.permits.acquire_arc().await;
        let may_be_http2 = options.http2_only
            || connector.may_be_http2(self.is_https)
                && self.version.get() != Some(Version::HTTP_11);
        let failures = self.failures.get();
        let connecting = if may_be_http2 {
            Some(self.connecting.lock().await)
        } else {
            None
        };
        // If whoever was first has failed, those who have waited try side by side, and not one after the other.
        let connecting = connecting.filter(|_| self.failures.get() == failures);
        if let Some(leased) = self.lease_http2().await {
            return Ok(leased);
        }
        if let Some(sender) = self.take_idle(options.idle_timeout).await {
            return Ok(Leased {
                sender: Sender::Http1(sender, permit),
                is_reused: true,
            });
        }
        let connected = connector.connect(uri).await;
        let has_failed = || self.failures.set(self.failures.get().wrapping_add(1));
        let stream = connected.map_err(|error| {
            has_failed();
            ClientError::connect(&self.name, error)
        })?;
        let failed = |error| {
            has_failed();
            ClientError::http(&self.name, error)
        };
        let sender = if options.http2_only || stream.is_http2(INTERNAL) {
            let made = options.http2.handshake(stream).await;
            let (sender, connection) = made.map_err(failed)?;
            // Its errors are those of the requests.
            drop(spawn_background(connection));
            *self.http2.borrow_mut() = Some(Idle::new(sender.clone()));
            self.version.set(Some(Version::HTTP_2));
            Sender::Http2(sender)
        } else {
            let made = options.http1.handshake(stream).await;
            let (sender, connection) = made.map_err(failed)?;
            drop(spawn_background(connection));
            self.version.set(Some(Version::HTTP_11));
            Sender::Http1(sender, permit)
        };
        drop(connecting);
        Ok(Leased {
            sender,
            is_reused: false,
        })
    }

    async fn lease_http2(&self) -> Option<Leased<B>> {
        let seen = self.http2.borrow().as_ref()?.seen;
        refresh(seen).await;
        let mut http2 = self.http2.borrow_mut();
        let idle = http2.as_mut()?;
        if idle.sender.is_closed() {
            *http2 = None;
            return None;
        }
        idle.since = Instant::now();
        idle.seen = idle.since;
        Some(Leased {
            sender: Sender::Http2(idle.sender.clone()),
            is_reused: true,
        })
    }

    async fn take_idle(&self, idle_timeout: Duration) -> Option<http1::SendRequest<B>> {
        loop {
            let Idle {
                sender,
                since,
                seen,
            } = self.idle.borrow_mut().pop()?;
            let is_expired = since.elapsed() >= idle_timeout;
            refresh(seen).await;
            if !is_expired && sender.is_ready() {
                return Some(sender);
            }
        }
    }

    /// Keeps a connection for other requests, as soon as the response has been read. If the response is dropped before,
    /// hyper closes the connection.
    pub(super) fn give_back(
        self: &Rc<Self>,
        sender: http1::SendRequest<B>,
        permit: SemaphoreGuardArc,
    ) {
        let busy = Rc::new(RefCell::new(Some((Idle::new(sender), permit))));
        self.busy.borrow_mut().push(Rc::clone(&busy));
        let host = Rc::downgrade(self);
        drop(spawn_background(async move {
            let ended = poll_fn(|context| match &mut *busy.borrow_mut() {
                Some((idle, _)) => idle.sender.poll_ready(context),
                None => Poll::Ready(Ok(())),
            });
            let result = ended.await;
            if let Some((idle, _)) = &mut *busy.borrow_mut() {
                idle.seen = Instant::now();
            }
            if result.is_err() {
                drop(busy.take());
            }
            if let Some(host) = host.upgrade() {
                host.take_back();
            }
        }));
    }

    /// Whether responses are being read.
    pub(super) fn is_busy(&self) -> bool {
        !self.busy.borrow().is_empty()
    }

    /// Moves the connections whose responses have been read to the idle ones.
    fn take_back(&self) {
        let mut returned = Vec::new();
        self.busy.borrow_mut().retain(|busy| {
            let mut place = busy.borrow_mut();
            let Some((idle, _)) = &*place else {
                return false;
            };
            if idle.sender.is_closed() {
                let failed = place.take();
                drop(place);
                drop(failed);
                return false;
            }
            let is_ready = idle.sender.is_ready();
            if is_ready {
                returned.extend(place.take());
            }
            !is_ready
        });
        for (mut idle, permit) in returned {
            if self.keeps_idle {
                idle.since = Instant::now();
                self.idle.borrow_mut().push(idle);
            }
            drop(permit);
        }
    }

    /// Closes what was not used for this long. Returns when the next one is due; `None` if nothing is left.
    pub(super) fn expire(&self, idle_timeout: Duration) -> Option<Instant> {
        let is_due = |since: Instant| since.elapsed() >= idle_timeout;
        let mut idle = self.idle.borrow_mut();
        let due = idle.iter().take_while(|idle| is_due(idle.since)).count();
        let expired: Vec<_> = idle.drain(..due).collect();
        let oldest = idle.first().map(|idle| idle.since);
        drop(idle);
        drop(expired);
        let mut http2 = self.http2.borrow_mut();
        let unused = http2.take_if(|idle| is_due(idle.since) || idle.sender.is_closed());
        let used = http2.as_ref().map(|idle| idle.since);
        drop(http2);
        drop(unused);
        let oldest = oldest.into_iter().chain(used).min()?;
        Some(oldest + idle_timeout)
    }
}

/// Lets a connection notice that it has ended, if it was not used for a while.
async fn refresh(seen: Instant) {
    if seen.elapsed() >= FRESH {
        // The runtime looks at the kernel, and passes events on before it wakes those who sleep.
        sleep(Duration::ZERO).await;
    }
}
