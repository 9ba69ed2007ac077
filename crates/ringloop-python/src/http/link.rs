//! A connection's transport: what goes out, the deadlines, and the end. It knows no protocol.
//!
//! A protocol's object has one ([`Owner`]), and passes itself to what may have to call it later.

mod writing;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use self::writing::Output;
use super::deadlines::Kind;
use super::scope::Peer;
use super::service::HttpService;
use crate::cell::GilCell;
use crate::names::intern;
use crate::queue::Collector;
use crate::support::{self, CloneRefOption, in_context};
use crate::transport::SocketTransport;

/// The object of a protocol, which has a link. Its method `_continue` goes on with the input that is left.
pub(super) trait Owner: Collector {}

/// Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
struct State {
    service: Option<Py<HttpService>>,
    /// The service counts it as a protocol that may still get its connection.
    is_awaited: bool,
    /// The number that the service knows the connection by.
    slot: Option<usize>,
    transport: Option<Py<PyAny>>,
    /// The transport, if it is ours.
    socket: Option<Py<SocketTransport>>,
    /// Both ends, if the transport is not ours. One of ours can be asked at any time.
    known_peer: Option<Peer>,
    /// The rest of the input is parsed in a later turn.
    is_continuing: bool,
    is_reading_paused: bool,
    is_writing_paused: bool,
    is_closing: bool,
    /// Our side has ended, and what the client still sends is dropped for a while.
    is_lingering: bool,
    output: Output,
    /// Bytes that were written or collected so far.
    written: u64,
    /// The progress of sending when the deadline for writing was set.
    write_deadline: Option<Sent>,
}

/// How far a connection's output has got.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    written: u64,
    /// Bytes that the kernel has not taken.
    unsent: usize,
    /// Bytes that it has taken, and the peer has not. A socket is writable again only when a third of them is gone, which
    /// may take a slow peer longer than its deadline.
    queued: usize,
}

impl Sent {
    /// Less than anything that is found later.
    pub(super) const UNKNOWN: Self = Self {
        written: 0,
        unsent: usize::MAX / 2,
        queued: 0,
    };

    /// Whether the peer has taken something since: from the kernel, or so much that the kernel has taken more.
    fn has_grown_to(self, now: Self) -> bool {
        let written = now.written - self.written;
        let all = |sent: Self| sent.unsent as u64 + sent.queued as u64;
        (now.unsent as u64) < self.unsent as u64 + written || all(now) < all(self) + written
    }
}

/// The transport of a connection, as far as it has one.
pub(super) struct Link {
    state: GilCell<State>,
}

impl Link {
    pub(super) fn new(service: &Bound<'_, HttpService>) -> Self {
        let state = State {
            service: Some(service.clone().unbind()),
            is_awaited: false,
            slot: None,
            transport: None,
            socket: None,
            known_peer: None,
            is_continuing: false,
            is_reading_paused: false,
            is_writing_paused: false,
            is_closing: false,
            is_lingering: false,
            output: Output::new(),
            written: 0,
            write_deadline: None,
        };
        Self {
            state: GilCell::new(state),
        }
    }

    /// Has the service count it as a protocol that may still get its connection.
    pub(super) fn begin_awaiting(&self, py: Python<'_>) {
        let mut state = self.state.get_mut(py);
        if let Some(service) = &state.service {
            service.get().begin_awaiting(py);
            state.is_awaited = true;
        }
    }

    /// The connection has come, or will never come.
    pub(super) fn end_awaiting(&self, py: Python<'_>) {
        let mut state = self.state.get_mut(py);
        if std::mem::take(&mut state.is_awaited)
            && let Some(service) = &state.service
        {
            service.get().end_awaiting(py);
        }
    }

    /// The connection has come, and its service has entered it.
    pub(super) fn connect(
        &self,
        transport: &Bound<'_, PyAny>,
        known_peer: Option<Peer>,
        slot: usize,
    ) {
        let socket = transport.cast::<SocketTransport>().ok();
        let mut state = self.state.get_mut(transport.py());
        state.known_peer = known_peer;
        state.slot = Some(slot);
        state.transport = Some(transport.clone().unbind());
        state.socket = socket.map(|socket| socket.clone().unbind());
    }

    /// The connection is gone. Returns what is to be called when its protocol has let go of everything, too.
    pub(super) fn disconnect(&self, py: Python<'_>) -> Left {
        let (left, dropped) = {
            let mut state = self.state.get_mut(py);
            state.is_closing = true;
            state.is_writing_paused = false;
            let left = Left {
                was_lingering: std::mem::take(&mut state.is_lingering),
                service: state.service.take(),
                slot: state.slot.take(),
            };
            let dropped = (
                state.transport.take(),
                state.socket.take(),
                state.known_peer.take(),
                std::mem::replace(&mut state.output, Output::new()),
            );
            (left, dropped)
        };
        drop(dropped);
        left
    }

    /// For the collector.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.service)?;
        visit.call(&state.transport)?;
        visit.call(&state.socket)?;
        match &state.known_peer {
            Some(peer) => peer.traverse(visit),
            None => Ok(()),
        }
    }

    /// For the collector.
    pub(super) fn clear(&self, py: Python<'_>) {
        self.end_awaiting(py);
        let dropped = {
            let mut state = self.state.get_mut(py);
            state.is_closing = true;
            (
                state.service.take(),
                state.transport.take(),
                state.socket.take(),
                state.known_peer.take(),
            )
        };
        drop(dropped);
    }

    pub(super) fn service<'py>(&self, py: Python<'py>) -> Option<Bound<'py, HttpService>> {
        let state = self.state.get(py);
        state.service.as_ref().map(|it| it.bind(py).clone())
    }

    pub(super) fn transport<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let state = self.state.get(py);
        state.transport.as_ref().map(|it| it.bind(py).clone())
    }

    /// The number that the service knows the connection by.
    pub(super) fn slot(&self, py: Python<'_>) -> Option<usize> {
        self.state.get(py).slot
    }

    /// The transport, if it can send files.
    pub(super) fn socket<'py>(&self, py: Python<'py>) -> Option<Bound<'py, SocketTransport>> {
        let state = self.state.get(py);
        state.socket.as_ref().map(|it| it.bind(py).clone())
    }

    pub(super) fn has_socket(&self, py: Python<'_>) -> bool {
        self.state.get(py).socket.is_some()
    }

    /// Both ends of the connection. If the transport is ours, an idle connection doesn't keep the objects.
    pub(super) fn peer(&self, py: Python<'_>) -> PyResult<Option<Peer>> {
        let (known, socket) = {
            let state = self.state.get(py);
            let known = state.known_peer.as_ref().map(|peer| peer.clone_ref(py));
            (known, state.socket.clone_ref_opt(py))
        };
        let Some(socket) = socket.filter(|_| known.is_none()) else {
            return Ok(known);
        };
        let peer = match socket.get().names(py)? {
            Some((server, client)) => Peer::of_names(&server, &client),
            None => Peer::of_transport(socket.bind(py).as_any()),
        };
        peer.map(Some)
    }

    /// No further request will ask for both ends.
    pub(super) fn forget_peer(&self, py: Python<'_>) {
        let peer = self.state.get_mut(py).known_peer.take();
        drop(peer);
    }

    /// Counts what has arrived.
    pub(super) fn count_received(&self, py: Python<'_>, length: usize) {
        if let Some(service) = &self.state.get(py).service {
            service.get().count_received(py, length);
        }
    }

    // -- Reading -----------------------------------------------------------------------------------------------------

    /// Calls the owner's `_continue` in the next turn.
    pub(super) fn continue_later<T: Owner>(
        &self,
        owner: &Bound<'_, T>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        let py = owner.py();
        if std::mem::replace(&mut self.state.get_mut(py).is_continuing, true) {
            return Ok(());
        }
        let callback = owner.as_any().getattr(intern!(py, "_continue"))?;
        service.get().call_soon(py, &callback)
    }

    pub(super) fn is_continuing(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_continuing
    }

    /// `_continue` was called.
    pub(super) fn end_continuing(&self, py: Python<'_>) {
        self.state.get_mut(py).is_continuing = false;
    }

    pub(super) fn is_reading_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_reading_paused
    }

    pub(super) fn pause_reading(&self, py: Python<'_>) -> PyResult<()> {
        if std::mem::replace(&mut self.state.get_mut(py).is_reading_paused, true) {
            return Ok(());
        }
        match self.transport(py) {
            Some(transport) => transport
                .call_method0(intern!(py, "pause_reading"))
                .map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn resume_reading(
        &self,
        py: Python<'_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        if !std::mem::replace(&mut self.state.get_mut(py).is_reading_paused, false) {
            return Ok(());
        }
        let Some(transport) = self.transport(py) else {
            return Ok(());
        };
        // The transport reads in the context that it is resumed in: not in that of a request.
        let context = service.get().context(py)?;
        in_context(py, &context.unbind(), || {
            transport
                .call_method0(intern!(py, "resume_reading"))
                .map(drop)
        })
    }

    // -- The end -----------------------------------------------------------------------------------------------------

    /// Whether nothing can be sent any more.
    pub(super) fn is_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_closing
    }

    /// Nothing is read or sent any more.
    pub(super) fn begin_closing(&self, py: Python<'_>) {
        self.state.get_mut(py).is_closing = true;
    }

    /// Writes what is collected. A peer that does not take what is left keeps the connection for a limited time only.
    pub(super) fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.set_deadline(py, None)?;
        self.flush(py).and_then(|()| self.watch_unsent(py))
    }

    pub(super) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let flushed = self.flush(py);
        let closed = match self.transport(py) {
            Some(transport) => transport.call_method0(intern!(py, "close")).map(drop),
            None => Ok(()),
        };
        support::first_error(py, flushed, closed)
    }

    pub(super) fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.begin_closing(py);
        // As much of it as there is room for.
        let flushed = self.flush(py);
        let aborted = match self.transport(py) {
            Some(transport) => transport.call_method0(intern!(py, "abort")).map(drop),
            None => Ok(()),
        };
        support::first_error(py, flushed, aborted)
    }

    /// Whether our side can end by itself. TLS has no end of one direction.
    pub(super) fn can_half_close(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        state.socket.is_some() && !state.is_closing
    }

    /// Ends our side of the connection. If the client has gone, this closes it and returns false.
    pub(super) fn end_writing(&self, py: Python<'_>) -> PyResult<bool> {
        self.flush(py)?;
        let Some(transport) = self.transport(py) else {
            return Ok(false);
        };
        if transport.call_method0(intern!(py, "write_eof")).is_ok() {
            return Ok(true);
        }
        self.close(py).map(|()| false)
    }

    pub(super) fn is_lingering(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_lingering
    }

    /// Our side has ended. What the client still sends is dropped until it has closed or its time is over.
    pub(super) fn linger(&self, py: Python<'_>, service: &Bound<'_, HttpService>) -> PyResult<()> {
        if !std::mem::replace(&mut self.state.get_mut(py).is_lingering, true) {
            service.get().begin_lingering(py);
        }
        self.resume_reading(py, service)?;
        self.set_deadline(py, Some(Kind::Linger))
    }

    /// While the server shuts down, a connection that closes ends after a moment. Under TLS it would wait until the
    /// client has closed, too, which many don't do.
    pub(super) fn limit_closing(&self, py: Python<'_>) -> PyResult<()> {
        if self.has_socket(py) {
            return Ok(());
        }
        self.set_deadline(py, Some(Kind::Linger))
    }

    /// The time to linger, or to close, is over.
    pub(super) fn on_lingered(&self, py: Python<'_>) -> PyResult<()> {
        let is_lingering = self.is_lingering(py);
        let is_unsent = self.has_unsent(py)?;
        if is_lingering && is_unsent {
            // The client has yet to read what it was sent: the deadline for writing sees to it that it does.
            self.set_deadline(py, Some(Kind::Linger))
        } else if is_lingering {
            self.close(py)
        } else if is_unsent {
            self.limit_closing(py)
        } else {
            self.abort(py)
        }
    }

    // -- Deadlines ---------------------------------------------------------------------------------------------------

    /// Sets the connection's deadline for anything but writing, in place of the one it had.
    pub(super) fn set_deadline(&self, py: Python<'_>, kind: Option<Kind>) -> PyResult<()> {
        let (slot, service) = {
            let state = self.state.get(py);
            (state.slot, state.service.clone_ref_opt(py))
        };
        match (slot, service) {
            (Some(slot), Some(service)) => HttpService::set_deadline(service.bind(py), slot, kind),
            _ => Ok(()),
        }
    }

    /// Gives the peer a limited time for each part of what is not sent yet. Nobody tells when it is all sent: that is
    /// looked at when the time is over.
    pub(super) fn watch_unsent(&self, py: Python<'_>) -> PyResult<()> {
        if self.state.get(py).write_deadline.is_some() || !self.has_unsent(py)? {
            return Ok(());
        }
        let progress = self.progress(py)?;
        self.set_write_deadline(py, progress)
    }

    /// Sets a deadline for the peer to take something, unless there is one.
    pub(super) fn set_write_deadline(&self, py: Python<'_>, sent: Sent) -> PyResult<()> {
        let (slot, service) = {
            let mut state = self.state.get_mut(py);
            if state.write_deadline.is_some() {
                return Ok(());
            }
            state.write_deadline = Some(sent);
            (state.slot, state.service.clone_ref_opt(py))
        };
        match (slot, service) {
            (Some(slot), Some(service)) => HttpService::set_write_deadline(service.bind(py), slot),
            _ => Ok(()),
        }
    }

    /// Aborts the connection if its peer has not read anything.
    pub(super) fn on_write_deadline(&self, py: Python<'_>) -> PyResult<()> {
        let before = self.state.get_mut(py).write_deadline.take();
        let now = self.progress(py)?;
        match before {
            _ if now.unsent == 0 => Ok(()),
            Some(before) if !before.has_grown_to(now) => self.abort(py),
            _ => self.set_write_deadline(py, now),
        }
    }

    /// How far the output has got, for a deadline.
    fn progress(&self, py: Python<'_>) -> PyResult<Sent> {
        let unsent = self.unsent(py)?;
        Ok(Sent {
            written: self.state.get(py).written,
            unsent,
            queued: self.queued(py)?,
        })
    }

    /// Returns how many bytes the kernel has not taken.
    fn unsent(&self, py: Python<'_>) -> PyResult<usize> {
        let (socket, transport, collected) = {
            let state = self.state.get(py);
            (
                state.socket.clone_ref_opt(py),
                state.transport.clone_ref_opt(py),
                state.output.len(),
            )
        };
        let unsent = match (socket, transport) {
            (Some(socket), _) => socket.get().unsent(py),
            (None, Some(transport)) => support::http(py)?
                .getattr(intern!(py, "unsent"))?
                .call1((transport,))?
                .extract()?,
            (None, None) => 0,
        };
        Ok(unsent + collected)
    }

    /// Returns how many bytes the kernel holds that the peer has not taken.
    fn queued(&self, py: Python<'_>) -> PyResult<usize> {
        let Some(transport) = self.state.get(py).transport.clone_ref_opt(py) else {
            return Ok(0);
        };
        support::http(py)?
            .getattr(intern!(py, "queued"))?
            .call1((transport,))?
            .extract()
    }

    /// Whether something was not sent yet.
    pub(super) fn has_unsent(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.unsent(py)? > 0)
    }
}

/// A connection that is gone.
pub(super) struct Left {
    service: Option<Py<HttpService>>,
    slot: Option<usize>,
    was_lingering: bool,
}

impl Left {
    /// Has the service forget it.
    pub(super) fn leave(self, py: Python<'_>) -> PyResult<()> {
        match (&self.service, self.slot) {
            (Some(service), Some(slot)) => service.get().leave(py, slot, self.was_lingering),
            _ => Ok(()),
        }
    }
}
