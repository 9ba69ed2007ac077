//! How a stream transport ends: when everything is sent, at once, or by an error.

use pyo3::prelude::*;

use super::SocketTransport;
use super::readiness::call_soon;
use crate::endpoint;
use crate::names::intern;
use crate::objects::New;
use crate::support::{self, CloneRefOption};
use crate::waiter;

/// The socket, and the future that waits for an empty buffer.
pub(super) type Detached = (Option<Py<PyAny>>, Option<Py<PyAny>>);

/// Ends the connection once everything buffered is sent; nothing more is received.
pub(super) fn close(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let event_loop = {
        let mut state = transport.get().state.get_mut(py);
        let attachment = &mut state.attachment;
        if attachment.closing {
            return Ok(());
        }
        attachment.closing = true;
        let event_loop = attachment.elsewhere(py);
        attachment.closes_later = event_loop.is_some();
        event_loop
    };
    match event_loop {
        Some(event_loop) => endpoint::post(
            event_loop.bind(py),
            transport,
            intern!(py, "_close_later"),
            [],
        ),
        None => close_later(transport),
    }
}

/// The rest of `close`, in the loop's thread: after what the thread that closes has asked for before.
pub(super) fn close_later(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    {
        let mut state = transport.get().state.get_mut(transport.py());
        state.attachment.closes_later = false;
        if !state.buffer.is_empty() || state.lost > 0 {
            return Ok(());
        }
        state.lost += 1;
    }
    schedule_connection_lost(transport, None)
}

/// Ends the connection at once; what is buffered is dropped.
pub(super) fn force_close(
    transport: &Bound<'_, SocketTransport>,
    exception: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = transport.py();
    let event_loop = {
        let mut state = transport.get().state.get_mut(py);
        if state.lost > 0 {
            return Ok(());
        }
        state.attachment.closing = true;
        state.attachment.elsewhere(py)
    };
    if let Some(event_loop) = event_loop {
        let exception = exception.unwrap_or_else(|| py.None().into_bound(py));
        let name = intern!(py, "_force_close");
        return endpoint::post(event_loop.bind(py), transport, name, [&exception]);
    }
    let dropped = {
        let mut state = transport.get().state.get_mut(py);
        if state.lost > 0 {
            return Ok(());
        }
        state.lost += 1;
        state.buffer_len = 0;
        std::mem::take(&mut state.buffer)
    };
    drop(dropped);
    schedule_connection_lost(transport, exception)
}

/// `connection_lost` comes in the next turn; the socket is no longer watched.
fn schedule_connection_lost(
    transport: &Bound<'_, SocketTransport>,
    exception: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = transport.py();
    endpoint::delist(transport.get(), py);
    let event_loop = endpoint::event_loop(transport.get(), py)?;
    let callback = transport.getattr(intern!(py, "_call_connection_lost"))?;
    let event_loop = event_loop.bind(py);
    let is_plain = waiter::is_plain(event_loop.as_any())?;
    let exception = exception.unwrap_or_else(|| py.None().into_bound(py));
    call_soon(transport, event_loop, is_plain, &callback, &[&exception])
}

/// Ends the connection by an error, as asyncio reports it.
#[cold]
pub(super) fn fatal_error(
    transport: &Bound<'_, SocketTransport>,
    error: PyErr,
    message: &str,
) -> PyResult<()> {
    let method = transport.getattr(intern!(transport.py(), "_fatal_error"))?;
    support::call_handling(error, &method, |error| New((error, New(message))))
}

/// Takes the connection off the loop for good; the caller closes the socket next.
pub(super) fn detach(transport: &SocketTransport, py: Python<'_>) -> Detached {
    endpoint::let_go(transport, py);
    let (dropped, result) = {
        let mut state = transport.state.get_mut(py);
        state.attachment.closing = true;
        state.buffer_len = 0;
        state.is_buffered = false;
        let dropped = (
            state.attachment.event_loop.take(),
            state.protocol.take(),
            state.sink.take(),
            state.context.take(),
            state.read_context.take(),
            state.write_context.take(),
            std::mem::take(&mut state.buffer),
        );
        let sock = state.attachment.sock.take();
        if let Some(sock) = &sock {
            state.extra.keep_closed(sock.clone_ref(py));
        }
        let result = (sock, state.empty_waiter.clone_ref_opt(py));
        (dropped, result)
    };
    drop(dropped);
    result
}

/// The same, and closes the socket: the connection is over.
pub(super) fn disconnect(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let (sock, empty_waiter) = detach(transport.get(), py);
    if let Some(sock) = sock {
        sock.bind(py).call_method0(intern!(py, "close"))?;
    }
    if transport.get().state.get(py).server.is_some() {
        transport.call_method0(intern!(py, "_leave_server"))?;
    }
    match empty_waiter {
        Some(waiter) => support::python(py)?
            .getattr(intern!(py, "end_empty_waiter"))?
            .call1((waiter,))
            .map(drop),
        None => Ok(()),
    }
}

/// Drops what refers to others' objects, for the collector.
pub(super) fn clear(transport: &SocketTransport, py: Python<'_>) {
    endpoint::detach(transport, py);
    let dropped = {
        let mut state = transport.state.get_mut(py);
        state.is_buffered = false;
        (
            state.attachment.event_loop.take(),
            state.attachment.sock.take(),
            state.protocol.take(),
            state.server.take(),
            state.context.take(),
            state.read_context.take(),
            state.write_context.take(),
            state.empty_waiter.take(),
            state.sink.take(),
            std::mem::take(&mut state.buffer),
        )
    };
    drop(dropped);
}
