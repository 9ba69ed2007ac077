//! How a stream transport sends a file: by sendfile(2), over the watch that it has.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;

use super::SocketTransport;
use super::flow_control::settle_waiter;
use super::readiness::{list, update_hold};
use crate::endpoint;
use crate::metrics;
use crate::names::intern;
use crate::objects;
use crate::queue::Readiness;
use crate::support::{self, CloneRefOption};

/// Bytes sent in one turn, so that a peer that takes all it gets doesn't hold up the others.
const TURN_BYTES: usize = 1 << 20;

/// A file that is being sent. It is kept until `stop` asks how much was sent.
pub(super) struct FileSending {
    file: RawFd,
    offset: libc::off_t,
    /// Bytes still to send; None for all that the file has.
    left: Option<usize>,
    sent: usize,
    ended: bool,
}

enum Progress {
    Ended,
    /// The socket is full, and reports when it has room again.
    Blocked,
    /// There is more to send, in the next turn.
    TurnOver,
}

impl FileSending {
    pub(super) fn is_under_way(&self) -> bool {
        !self.ended
    }

    /// Bytes that are still to be sent, if that is known.
    pub(super) fn unsent(&self) -> usize {
        match self.left {
            Some(left) if !self.ended => left,
            _ => 0,
        }
    }

    /// Sends what the socket takes, within the bounds of a turn.
    fn advance(&mut self, socket: RawFd) -> io::Result<Progress> {
        let mut budget = TURN_BYTES;
        loop {
            let count = self.left.map_or(budget, |left| left.min(budget));
            if self.left == Some(0) {
                return Ok(Progress::Ended);
            }
            if count == 0 {
                return Ok(Progress::TurnOver);
            }
            metrics::count_system_call();
            // SAFETY: a system call on descriptor numbers; the offset lives for the call, which moves it on.
            let sent = unsafe { libc::sendfile(socket, self.file, &raw mut self.offset, count) };
            match usize::try_from(sent) {
                Ok(0) => return Ok(Progress::Ended),
                Ok(sent) => {
                    budget -= sent;
                    self.sent += sent;
                    self.left = self.left.map(|left| left - sent);
                }
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Progress::Blocked);
                    }
                    // Python runs signal handlers between callbacks.
                    error if error.kind() == io::ErrorKind::Interrupted => {
                        return Ok(Progress::TurnOver);
                    }
                    error => return Err(error),
                },
            }
        }
    }
}

/// Begins to send; the write buffer is empty and writing refused, by `_make_empty_waiter`. None if that was all; else a
/// future that is done when it is. `OSError` if sendfile(2) fails.
pub(super) fn start(
    transport: &Bound<'_, SocketTransport>,
    file: RawFd,
    offset: libc::off_t,
    count: Option<usize>,
) -> PyResult<Option<Py<PyAny>>> {
    let py = transport.py();
    let this = transport.get();
    let progress = {
        let mut state = this.state.get_mut(py);
        if state.lost > 0 || state.attachment.sock.is_none() {
            drop(state);
            return Err(objects::error::<PyConnectionError>(
                py,
                "Connection is closed by peer",
            ));
        }
        let socket = state.attachment.descriptor(py);
        state
            .file
            .insert(FileSending {
                file,
                offset,
                left: count,
                sent: 0,
                ended: false,
            })
            .advance(socket)
    };
    match progress {
        Err(error) => Err(support::os_error(py, &error)),
        Ok(Progress::Ended) => Ok(None),
        Ok(progress) => {
            let waiter = endpoint::event_loop(this, py)?
                .bind(py)
                .call_method0(intern!(py, "create_future"))?
                .unbind();
            // Where the transport looks for whoever must hear that the connection is lost.
            let previous = this
                .state
                .get_mut(py)
                .empty_waiter
                .replace(waiter.clone_ref(py));
            drop(previous);
            list(transport)?;
            update_hold(transport);
            if let Progress::TurnOver = progress {
                queue_step(transport)?;
            }
            Ok(Some(waiter))
        }
    }
}

/// Sends on, as the socket has room, or as the turn has come.
pub(super) fn step(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let (progress, waiter) = {
        let mut state = transport.get().state.get_mut(py);
        let socket = state.attachment.descriptor(py);
        let progress = match &mut state.file {
            Some(file) if file.is_under_way() => match file.advance(socket) {
                Ok(Progress::Blocked) => return Ok(()),
                other => {
                    file.ended = !matches!(other, Ok(Progress::TurnOver));
                    other
                }
            },
            _ => return Ok(()),
        };
        (progress, state.empty_waiter.clone_ref_opt(py))
    };
    let Some(waiter) = waiter else {
        return Ok(());
    };
    match progress {
        Ok(Progress::TurnOver | Progress::Blocked) => queue_step(transport),
        Ok(Progress::Ended) => settle_waiter(
            waiter.bind(py),
            intern!(py, "set_result"),
            py.None().into_bound(py),
        ),
        Err(error) => settle_waiter(
            waiter.bind(py),
            intern!(py, "set_exception"),
            support::os_error(py, &error)
                .into_value(py)
                .into_bound(py)
                .into_any(),
        ),
    }
}

/// Ends the sending, also before its end; returns how many bytes were sent.
pub(super) fn stop(transport: &Bound<'_, SocketTransport>) -> usize {
    let file = transport.get().state.get_mut(transport.py()).file.take();
    update_hold(transport);
    file.map_or(0, |file| file.sent)
}

fn queue_step(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let event_loop = endpoint::event_loop(transport.get(), transport.py())?;
    endpoint::queue_ready(transport, event_loop.get(), Readiness::WRITABLE);
    Ok(())
}
