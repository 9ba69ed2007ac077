//! The state of a connection that speaks HTTP/2.
//!
//! `ringloop_http::h2` has the frames, windows and limits. This module has which exchange each stream
//! belongs to, and what it waits for; `connection/http2.rs` uses it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_http::h2::{self, Config};

use super::exchange::Exchange;
use super::scope::Template;

/// The number of a stream.
pub(super) type Stream = u32;

/// The state of a connection that speaks HTTP/2. Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Http2 {
    pub(super) messages: h2::Connection,
    /// The requests whose responses are not complete.
    pub(super) exchanges: BTreeMap<Stream, Open>,
    /// Those that were not started.
    pub(super) starting: VecDeque<Stream>,
    /// The last request's head, and what was made of it.
    pub(super) last: Option<(Arc<h2::Request>, Template)>,
    /// The number of requests that wait for more of their bodies.
    pub(super) waiting: usize,
    /// Requests have come since the connection began to wait for a request, or for the rest of a head.
    pub(super) was_used: bool,
    /// A response has not found room.
    pub(super) has_waited: bool,
    /// A GOAWAY was sent because the connection, or the server, ends.
    pub(super) is_retiring: bool,
    /// The connection will be closed soon if it is idle.
    pub(super) is_closing_soon: bool,
}

/// A request on its stream, whose response is not complete.
pub(super) struct Open {
    pub(super) request: Py<Exchange>,
    /// The client waits for 100 (Continue).
    pub(super) awaits_continue: bool,
    /// Since when the application has waited for more of the body.
    pub(super) waits_since_ms: Option<u64>,
}

impl Http2 {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            messages: h2::Connection::new(config),
            exchanges: BTreeMap::new(),
            starting: VecDeque::new(),
            last: None,
            waiting: 0,
            was_used: false,
            has_waited: false,
            is_retiring: false,
            is_closing_soon: false,
        }
    }

    /// Whether no response is left to give or to write. While writing is paused, `messages` keeps some.
    pub(super) fn is_idle(&self, is_writing_paused: bool) -> bool {
        !is_writing_paused && self.exchanges.is_empty() && self.messages.is_idle()
    }

    pub(super) fn requests(&self, py: Python<'_>) -> Vec<Py<Exchange>> {
        let exchanges = self.exchanges.values();
        exchanges.map(|it| it.request.clone_ref(py)).collect()
    }

    pub(super) fn request(&self, py: Python<'_>, stream: Stream) -> Option<Py<Exchange>> {
        let exchange = self.exchanges.get(&stream)?;
        Some(exchange.request.clone_ref(py))
    }

    /// The next request to start.
    pub(super) fn next_start(&mut self, py: Python<'_>) -> Option<Py<Exchange>> {
        loop {
            let stream = self.starting.pop_front()?;
            // Those that were reset are not started.
            if let Some(request) = self.request(py, stream) {
                return Some(request);
            }
        }
    }

    /// Sets since when a request has waited for its body.
    pub(super) fn set_waiting(&mut self, stream: Stream, since_ms: Option<u64>) {
        if let Some(exchange) = self.exchanges.get_mut(&stream) {
            self.waiting -= usize::from(exchange.waits_since_ms.is_some());
            self.waiting += usize::from(since_ms.is_some());
            exchange.waits_since_ms = since_ms;
        }
    }

    /// Forgets a request. To be dropped when nothing is borrowed.
    #[must_use]
    pub(super) fn remove(&mut self, stream: Stream) -> Option<Py<Exchange>> {
        self.set_waiting(stream, None);
        self.exchanges.remove(&stream).map(|it| it.request)
    }

    /// The streams whose requests have waited for their bodies since that time, or longer.
    pub(super) fn waiting_since(&self, since_ms: u64) -> Vec<Stream> {
        let exchanges = self.exchanges.iter();
        exchanges
            .filter(|(_, it)| it.waits_since_ms.is_some_and(|at_ms| at_ms <= since_ms))
            .map(|(stream, _)| *stream)
            .collect()
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for exchange in self.exchanges.values() {
            visit.call(&exchange.request)?;
        }
        match &self.last {
            Some((_, template)) => template.traverse(visit),
            None => Ok(()),
        }
    }
}
