//! How a connection writes: the first bytes of a turn go out at once, and those that follow are collected and written
//! together when the turn is over.

use std::os::fd::RawFd;

use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{Link, Owner, Sent, State};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects;
use crate::support::CloneRefOption;
use crate::transport::SocketTransport;

/// Collected bytes are written at once when there are this many: as many as asyncio's transports buffer before they
/// call `pause_writing`.
const COLLECTED_MAX: usize = 64 * 1024;

/// A longer payload is written where it is, and not copied.
const COPIED_MAX: usize = 8 * 1024;

/// Output that comes later than this after the last write goes out at once, in the same turn too: the application
/// computes, or blocks the loop. A tick is 0.1 to 1 ns long.
const LATE_TICKS: u64 = 2_000_000;

/// The bytes that a connection has written in a turn, and those that it has yet to write.
pub(super) struct Output {
    collected: Vec<u8>,
    /// The turn of the last write that could have been collected, and when that was.
    turn: u64,
    ticks: u64,
}

impl Output {
    pub(super) const fn new() -> Self {
        Self {
            collected: Vec::new(),
            turn: 0,
            ticks: 0,
        }
    }

    /// Bytes that are collected.
    pub(super) fn len(&self) -> usize {
        self.collected.len()
    }

    /// Whether a write of `length` bytes is to be collected. If not, it is the one that later ones follow.
    fn collects(&mut self, event_loop: &Loop, length: usize) -> bool {
        let (turn, ticks) = (event_loop.meter.turns(), event_loop.meter.ticks.now());
        let follows = self.turn == turn && event_loop.is_running() && !event_loop.runs_elsewhere();
        let is_early = ticks.saturating_sub(self.ticks) < LATE_TICKS;
        if follows && is_early && self.len() + length < COLLECTED_MAX {
            return true;
        }
        (self.turn, self.ticks) = (turn, ticks);
        false
    }
}

impl State {
    /// Counts bytes that are written or collected.
    pub(super) fn count_written(&mut self, py: Python<'_>, length: usize) {
        self.written += length as u64;
        if let Some(service) = &self.service {
            service.get().count_sent(py, length);
        }
    }

    /// Whether everything that was written before has gone out, as far as that is known.
    fn has_room(&self, py: Python<'_>) -> bool {
        let socket = self.socket.as_ref();
        !self.is_writing_paused && socket.is_none_or(|socket| socket.get().unsent(py) == 0)
    }
}

impl Link {
    /// Writes bytes, the payload without copying it if it is large, and bytes after it: now, or when the turn is over.
    pub(in crate::http) fn write<T: Owner>(
        &self,
        owner: &Bound<'_, T>,
        before: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
        after: &'static [u8],
    ) -> PyResult<()> {
        let py = owner.py();
        let content = payload.map_or(&b""[..], |payload| payload.as_bytes());
        let length = before.len() + content.len() + after.len();
        let Some(service) = self.service(py).filter(|_| length > 0) else {
            return Ok(());
        };
        let event_loop = service.get().event_loop(py)?;
        let is_first = {
            let mut state = self.state.get_mut(py);
            if state.is_closing {
                return Ok(());
            }
            let collects = content.len() <= COPIED_MAX
                && state.output.collects(event_loop.get(), length)
                && state.has_room(py);
            if !collects {
                drop(state);
                return self.write_now(py, before, payload, after);
            }
            state.count_written(py, length);
            let is_first = state.output.collected.is_empty();
            if is_first {
                state.output.collected = service.get().take_buffer(py);
            }
            let collected = &mut state.output.collected;
            collected.extend_from_slice(before);
            collected.extend_from_slice(content);
            collected.extend_from_slice(after);
            is_first
        };
        if is_first {
            event_loop.get().queue.get_mut(py).collect(owner);
        }
        Ok(())
    }

    /// As `write`, but now, with what is collected before it.
    pub(in crate::http) fn write_now(
        &self,
        py: Python<'_>,
        before: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
        after: &'static [u8],
    ) -> PyResult<()> {
        let mut collected = {
            let mut state = self.state.get_mut(py);
            if state.is_closing {
                return Ok(());
            }
            let payload = payload.map_or(0, |payload| payload.as_bytes().len());
            state.count_written(py, before.len() + payload + after.len());
            std::mem::take(&mut state.output.collected)
        };
        if collected.is_empty() {
            return self.deliver(py, before, payload, after);
        }
        collected.extend_from_slice(before);
        let result = self.deliver(py, &collected, payload, after);
        self.return_collected(py, collected);
        result
    }

    /// Writes what is collected.
    pub(in crate::http) fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let collected = std::mem::take(&mut self.state.get_mut(py).output.collected);
        if collected.is_empty() {
            return Ok(());
        }
        let result = self.deliver(py, &collected, None, b"");
        self.return_collected(py, collected);
        result
    }

    /// Whether the peer has to read before more is written.
    pub(in crate::http) fn is_writing_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_writing_paused
    }

    pub(in crate::http) fn set_writing_paused(&self, py: Python<'_>, is_paused: bool) {
        self.state.get_mut(py).is_writing_paused = is_paused;
    }

    /// Sends bytes of a file; see `SocketTransport::start_file`.
    pub(in crate::http) fn start_file(
        &self,
        py: Python<'_>,
        file: RawFd,
        offset: u64,
        count: usize,
    ) -> PyResult<Option<Py<PyAny>>> {
        let Some(socket) = self.socket(py) else {
            let text = "the connection is closed";
            return Err(objects::error::<PyConnectionError>(py, text));
        };
        self.flush(py)?;
        self.state.get_mut(py).count_written(py, count);
        let waiter = SocketTransport::start_file(&socket, file, offset, count)?;
        if waiter.is_some() {
            self.watch_unsent(py)?;
        }
        Ok(waiter)
    }

    fn return_collected(&self, py: Python<'_>, collected: Vec<u8>) {
        if let Some(service) = self.service(py) {
            service.get().return_buffer(py, collected);
        }
    }

    /// Gives bytes to the transport.
    fn deliver(
        &self,
        py: Python<'_>,
        before: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
        after: &'static [u8],
    ) -> PyResult<()> {
        let (socket, transport) = {
            let state = self.state.get(py);
            (
                state.socket.as_ref().map(|it| it.bind(py).clone()),
                state.transport.clone_ref_opt(py),
            )
        };
        if let Some(socket) = socket {
            SocketTransport::write_parts(&socket, before, payload, after)?;
            return match socket.get().unsent(py) {
                0 => Ok(()),
                _ => self.watch_unsent(py),
            };
        }
        let Some(transport) = transport else {
            return Ok(());
        };
        let content = payload.map_or(&b""[..], |payload| payload.as_bytes());
        let all = match payload {
            Some(payload) if before.is_empty() && after.is_empty() => payload.clone(),
            None if after.is_empty() => objects::bytes(py, before)?,
            _ => objects::bytes(py, &[before, content, after].concat())?,
        };
        if all.as_bytes().is_empty() {
            return Ok(());
        }
        transport
            .bind(py)
            .call_method1(intern!(py, "write"), (all,))?;
        // To ask it after each write would be expensive.
        self.set_write_deadline(py, Sent::UNKNOWN)
    }
}
