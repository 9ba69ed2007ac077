//! Writes that wait for the end of their callback, so that several become one system call and one packet.
//!
//! HTTP servers write a head and then a body, in one callback. Sent at once, as a first write is, that costs twice the
//! kernel's TCP. Which transports are written to in this way can only be learned: one that saw more than one write in each
//! of its last few callbacks holds the first one back. Callback by callback, nothing else than the moment of sending
//! changes: what is held is sent when the callback ends, however it ends, before anything else runs, and before whatever
//! could tell that it wasn't sent (closing, aborting, the end of writing, a file, a look at the socket).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};

use super::writing::{flush, maybe_pause_protocol};
use super::{SocketTransport, State, copy_context, list, update_hold};
use crate::buffers::Chunk;
use crate::support::GilCell;

/// Callbacks in a row with several writes each, after which the next one's are held back.
const CALLBACKS_TO_LEARN: u8 = 4;
/// Bytes that are held back at most; more is sent at once.
const HELD_BYTES_MAX: usize = 16 * 1024;

/// The loop's part: which callback runs, and which transports hold something back.
pub(crate) struct Holding {
    /// Odd while a callback runs, and another number for each.
    callback: AtomicU64,
    held: GilCell<Vec<Py<SocketTransport>>>,
    held_count: AtomicU64,
}

/// What a transport remembers of the writes to it.
#[derive(Default)]
pub(super) struct WriteHabit {
    /// In which the last write was.
    callback: u64,
    /// Writes in that callback.
    count: u8,
    /// Callbacks before it with several writes, in a row.
    several: u8,
    /// The buffer holds what waits for the end of the callback, and nothing else.
    pub(super) holding: bool,
}

impl Holding {
    pub(crate) const fn new() -> Self {
        Self {
            callback: AtomicU64::new(0),
            held: GilCell::new(Vec::new()),
            held_count: AtomicU64::new(0),
        }
    }

    /// Runs a callback; then what its writes have left is sent, also if it failed.
    #[inline]
    pub(crate) fn around(
        &self,
        py: Python<'_>,
        callback: impl FnOnce() -> PyResult<()>,
        report: impl FnMut(&Bound<'_, SocketTransport>, PyResult<()>) -> PyResult<()>,
    ) -> PyResult<()> {
        // Written by the thread that runs the loop alone.
        let number = self.callback.load(Relaxed);
        self.callback.store(number + 1, Relaxed);
        let result = callback();
        self.callback.store(number + 2, Relaxed);
        if self.held_count.load(Relaxed) == 0 {
            return result;
        }
        let released = self.release_all(py, report);
        result.and(released)
    }

    #[cold]
    fn release_all(
        &self,
        py: Python<'_>,
        mut report: impl FnMut(&Bound<'_, SocketTransport>, PyResult<()>) -> PyResult<()>,
    ) -> PyResult<()> {
        let mut transports = self.held.replace(py, Vec::new());
        self.held_count.store(0, Relaxed);
        let mut result = Ok(());
        for transport in transports.drain(..) {
            let transport = transport.bind(py);
            let released = report(transport, release(transport));
            result = result.and(released);
        }
        // Its room is used again; nothing was held meanwhile, because no callback runs.
        drop(self.held.replace(py, transports));
        result
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(held) = self.held.for_traversal() else {
            return Ok(());
        };
        held.iter().try_for_each(|transport| visit.call(transport))
    }

    pub(crate) fn clear(&self, py: Python<'_>) {
        drop(self.held.replace(py, Vec::new()));
        self.held_count.store(0, Relaxed);
    }
}

impl State {
    /// Notes a write, and says whether its data is to be held back.
    #[inline]
    pub(super) fn holds_back(&mut self, data: &Bound<'_, PyAny>) -> bool {
        let Some(event_loop) = &self.event_loop else {
            return false;
        };
        let callback = event_loop.get().holding.callback.load(Relaxed);
        let habit = &mut self.habit;
        if habit.callback != callback {
            habit.several = if habit.count > 1 {
                habit.several.saturating_add(1)
            } else {
                0
            };
            habit.callback = callback;
            habit.count = 0;
        }
        habit.count = habit.count.saturating_add(1);
        habit.holding
            || (habit.several >= CALLBACKS_TO_LEARN
                && callback % 2 == 1
                && self.buffer.is_empty()
                && !self.closing
                // So that what is held never reaches the mark: pausing the protocol is for its own callback.
                && self.high_water >= HELD_BYTES_MAX
                && data
                    .cast_exact::<PyBytes>()
                    .is_ok_and(|bytes| bytes.as_bytes().len() <= HELD_BYTES_MAX))
    }

    /// Bytes that wait for room in the socket; what is held back doesn't.
    pub(super) fn waiting_bytes(&self) -> usize {
        if self.habit.holding {
            0
        } else {
            self.buffer_len
        }
    }
}

/// Holds data back until the callback ends, or sends it with what is held already if that is too much.
pub(super) fn hold(
    transport: &Bound<'_, SocketTransport>,
    data: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let chunk = Chunk::rest_of(data, 0)?;
    if chunk.len() == 0 {
        return Ok(());
    }
    let context = copy_context(py)?;
    let event_loop = this.event_loop(py)?;
    let (first, full, previous) = {
        let mut state = this.state.get_mut(py);
        state.buffer_len += chunk.len();
        state.buffer.push_back(chunk);
        (
            !std::mem::replace(&mut state.habit.holding, true),
            state.buffer_len > HELD_BYTES_MAX,
            // As if writing had blocked here, which it may when this is sent.
            state.write_context.replace(context),
        )
    };
    drop(previous);
    if first {
        let holding = &event_loop.get().holding;
        holding.held.get_mut(py).push(transport.clone().unbind());
        holding.held_count.fetch_add(1, Relaxed);
    }
    if full { release(transport) } else { Ok(()) }
}

/// Sends what is held back, if there is anything.
pub(super) fn release(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    {
        let mut state = this.state.get_mut(py);
        if !std::mem::take(&mut state.habit.holding) || state.buffer.is_empty() {
            return Ok(());
        }
    }
    flush(transport)?;
    if this.state.get(py).buffer.is_empty() {
        return Ok(());
    }
    list(transport)?;
    update_hold(transport);
    maybe_pause_protocol(transport)
}
