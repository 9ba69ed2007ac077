//! How a stream transport sends a file: by sendfile(2), over the watch that it has.

use std::io;
use std::os::fd::RawFd;

use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;

use super::SocketTransport;
use super::flow_control::settle_waiter;
use super::readiness::{list, update_hold};
use crate::buffers::{FileSending, Progress};
use crate::endpoint;
use crate::names::intern;
use crate::objects;
use crate::queue::Readiness;
use crate::support::{self, CloneRefOption};

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
    let is_closed = {
        let state = this.state.get(py);
        state.lost > 0 || state.attachment.sock.is_none()
    };
    if is_closed {
        return Err(objects::error::<PyConnectionError>(
            py,
            "Connection is closed by peer",
        ));
    }
    match advance(this, py, Box::new(FileSending::new(file, offset, count))) {
        Err(error) => Err(support::os_error(py, &error)),
        Ok(Progress::Ended) => Ok(None),
        Ok(progress) => {
            let waiter = endpoint::event_loop(this, py)?
                .bind(py)
                .call_method0(intern!(py, "create_future"))?
                .unbind();
            // Where the transport looks for whoever must hear that the connection is lost.
            let previous = {
                let mut state = this.state.get_mut(py);
                state.note_full();
                state.empty_waiter.replace(waiter.clone_ref(py))
            };
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
    let this = transport.get();
    let file = this
        .state
        .get_mut(py)
        .file
        .take_if(|file| file.is_under_way());
    let Some(file) = file else {
        return Ok(());
    };
    let progress = advance(this, py, file);
    if let Ok(Progress::Blocked) = progress {
        return Ok(());
    }
    let waiter = this.state.get(py).empty_waiter.clone_ref_opt(py);
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

/// Sends what the socket takes. The state must not be borrowed while other threads run, so it has the file only afterwards.
fn advance(
    transport: &SocketTransport,
    py: Python<'_>,
    mut file: Box<FileSending>,
) -> io::Result<Progress> {
    let socket = || transport.state.get(py).attachment.descriptor(py);
    let progress = file.advance(py, socket);
    transport.state.get_mut(py).file = Some(file);
    progress
}

/// Ends the sending, also before its end; returns how many bytes were sent.
pub(super) fn stop(transport: &Bound<'_, SocketTransport>) -> usize {
    let file = transport.get().state.get_mut(transport.py()).file.take();
    update_hold(transport);
    file.map_or(0, |file| file.sent())
}

fn queue_step(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let event_loop = endpoint::event_loop(transport.get(), transport.py())?;
    endpoint::queue_ready(transport, event_loop.get(), Readiness::WRITABLE);
    Ok(())
}
