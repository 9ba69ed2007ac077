//! The settings of a server, as Python has them, and what the protocols make of them.

use pyo3::prelude::*;
use ringloop_http::h1::Limits;
use ringloop_http::{h2, websocket};

use super::deadlines::Kind;
use crate::objects::New;

/// How long the client of a WebSocket may take for its part of the closing handshake, in seconds.
const CLOSE_S: f64 = 10.0;

/// The shortest time to linger, in seconds.
const LINGER_S_MIN: f64 = 0.1;

/// How long an idle connection keeps what was made of its last head, which takes more memory than all the rest.
/// Clients that are idle longer ask so rarely that making it again costs little.
const HEAD_KEPT_S: f64 = 0.25;

/// How long a client may pause within a body that is gathered before its request is started.
const PAUSE_S: f64 = 0.002;

/// The number of threads for WSGI is that of the CPUs, and this many more.
const THREADS_MORE: usize = 4;

/// Declares the settings, and how they are read: from the attributes of the same names.
macro_rules! settings {
    ($($name:ident: $type:ty,)*) => {
        /// `HttpSettings` of python/ringloop/http/_config.py, which says what each is.
        #[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
        pub(super) struct HttpSettings {
            $(pub(super) $name: $type,)*
        }

        impl<'a, 'py> FromPyObject<'a, 'py> for HttpSettings {
            type Error = PyErr;

            fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
                Ok(Self {
                    $($name: object.getattr(New(stringify!($name)))?.extract()?,)*
                })
            }
        }
    };
}

settings! {
    root_path: String,
    http2: bool,
    date_header: bool,
    limit_concurrency: Option<usize>,
    limit_http2_requests: Option<u64>,
    limit_head: usize,
    limit_fields: usize,
    limit_body_ahead: usize,
    timeout_keep_alive: Option<f64>,
    timeout_head: Option<f64>,
    timeout_body: Option<f64>,
    timeout_write: Option<f64>,
    timeout_linger: f64,
    wsgi_threads: Option<usize>,
    wsgi_queue: usize,
    reset_contextvars: bool,
    ws_max_size: usize,
    ws_max_queue: usize,
    ws_ping_interval: Option<f64>,
    ws_ping_timeout: Option<f64>,
    ws_per_message_deflate: bool,
}

impl HttpSettings {
    /// The most threads that run views of WSGI.
    pub(super) fn wsgi_threads(&self) -> usize {
        let more_than_cpus = || {
            let cpus = std::thread::available_parallelism();
            cpus.map_or(1, std::num::NonZeroUsize::get) + THREADS_MORE
        };
        self.wsgi_threads.unwrap_or_else(more_than_cpus).max(1)
    }

    pub(super) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.head_bytes = self.limit_head;
        limits.request_line_bytes = self.limit_head;
        limits.fields = self.limit_fields;
        limits.http2 = self.http2;
        limits
    }

    pub(super) fn http2_config(&self, has_websockets: bool) -> h2::Config {
        let mut config = h2::Config::default();
        config.websocket = has_websockets;
        config.header_list_bytes = u32::try_from(self.limit_head).unwrap_or(u32::MAX);
        config.fields = self.limit_fields;
        config.requests = self.limit_http2_requests.unwrap_or(u64::MAX);
        config.stream_window_bytes = u32::try_from(self.limit_body_ahead).unwrap_or(u32::MAX);
        // Requests whose bodies nobody reads leave room for the others.
        config.connection_window_bytes = config
            .stream_window_bytes
            .saturating_mul(config.concurrent_streams);
        config
    }

    pub(super) fn websocket_config(&self) -> websocket::Config {
        let mut config = websocket::Config::default();
        config.message_bytes = self.ws_max_size;
        config.deflate = self
            .ws_per_message_deflate
            .then(websocket::Deflate::default);
        config
    }

    /// How long a connection has for something, in nanoseconds. None: without limit.
    pub(super) fn timeout_ns(&self, kind: Kind) -> Option<u64> {
        let seconds = match kind {
            Kind::KeepAlive => Some(
                self.timeout_keep_alive
                    .map_or(HEAD_KEPT_S, |it| it.min(HEAD_KEPT_S)),
            ),
            Kind::Idle => self
                .timeout_keep_alive
                .map(|it| (it - HEAD_KEPT_S).max(0.0)),
            Kind::Head => self.timeout_head,
            Kind::Body => self.timeout_body,
            Kind::Write => self.timeout_write,
            Kind::Ping => self.ws_ping_interval.filter(|seconds| *seconds > 0.0),
            Kind::Pong => self.ws_ping_timeout,
            Kind::Close => Some(CLOSE_S),
            // It is set again while something is unsent: 0 would keep the loop busy.
            Kind::Linger => Some(self.timeout_linger.max(LINGER_S_MIN)),
            Kind::Gather => Some(PAUSE_S),
        };
        seconds.map(|seconds| (seconds * 1e9).round() as u64)
    }
}
