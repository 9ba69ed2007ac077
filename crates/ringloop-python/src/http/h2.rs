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
    /// WebSockets whose input is read in the next turn.
    pub(super) reading: VecDeque<Stream>,
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
    /// Of a WebSocket.
    pub(super) unread: Option<Box<Unread>>,
}

/// The bytes that a WebSocket's client has sent and the WebSocket has not read. They are never more than the window of the stream.
#[derive(Default)]
pub(super) struct Unread {
    input: Vec<u8>,
    /// Where it begins.
    at: usize,
    /// The client has ended its side.
    pub(super) has_ended: bool,
}

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        self.at == self.input.len()
    }

    pub(super) fn add(&mut self, data: &[u8]) {
        self.input.extend_from_slice(data);
    }

    /// Takes all of it: it begins at the second value.
    pub(super) fn take(&mut self) -> (Vec<u8>, usize) {
        let at = std::mem::take(&mut self.at);
        (std::mem::take(&mut self.input), at)
    }

    /// Keeps what was not used, in front of what has come meanwhile. It is moved only when it is less than what was used,
    /// so that many small messages don't move it many times.
    pub(super) fn put_back(&mut self, mut input: Vec<u8>, at: usize) {
        let rest = input.len() - at;
        self.at = at;
        if rest == 0 {
            self.at = 0;
            input = Vec::new();
        } else if rest < at {
            self.at = 0;
            input.drain(..at);
        }
        input.append(&mut self.input);
        self.input = input;
    }
}

impl Http2 {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            messages: h2::Connection::new(config),
            exchanges: BTreeMap::new(),
            starting: VecDeque::new(),
            reading: VecDeque::new(),
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

    /// The bytes that the WebSocket of a stream has not read.
    pub(super) fn unread(&mut self, stream: Stream) -> Option<&mut Unread> {
        self.exchanges.get_mut(&stream)?.unread.as_deref_mut()
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
