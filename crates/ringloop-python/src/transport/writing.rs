//! How a stream transport writes: what the socket doesn't take at once is buffered, and flow control told.

use std::collections::VecDeque;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

use super::{SocketTransport, State, WRITE_ERROR, context_for, fatal_error, list, update_hold};
use crate::buffers::{self, Chunk, View};
use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{self, CloneRefOption};

/// asyncio's `constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES`.
const LOST_WRITES_BEFORE_WARNING: u32 = 5;

impl State {
    /// Sends what is buffered until the socket is full: it reports room only when it was full before. Pieces that are
    /// sent go to `done`, to be dropped when nothing is borrowed.
    fn send_buffered(&mut self, py: Python<'_>, done: &mut Vec<Chunk>) -> std::io::Result<()> {
        let fd = self.descriptor(py);
        while !self.buffer.is_empty() {
            let pieces = || self.buffer.iter().take(buffers::PIECES_PER_SEND);
            let offered: usize = pieces().map(Chunk::len).sum();
            let sent = match buffers::send_pieces(fd, pieces()) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                other => other?,
            };
            self.buffer_len -= sent;
            let mut rest = sent;
            while let Some(first) = self.buffer.front_mut() {
                if first.len() > rest {
                    first.advance(rest);
                    break;
                }
                rest -= first.len();
                done.extend(self.buffer.pop_front());
            }
            if sent < offered {
                return Ok(());
            }
        }
        support::give_back_if_empty(&mut self.buffer);
        Ok(())
    }
}

/// Sends what is buffered, as far as the socket takes it.
pub(super) fn flush(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let mut sent = Vec::new();
    let result = this.state.get_mut(py).send_buffered(py, &mut sent);
    drop(sent);
    if let Err(error) = result {
        return fail(transport, support::os_error(py, &error));
    }
    maybe_resume_protocol(transport)?;
    let (waiter, closing, eof) = {
        let mut state = this.state.get_mut(py);
        if !state.buffer.is_empty() {
            return Ok(());
        }
        let finish = state.closing && state.lost == 0;
        if finish {
            state.lost += 1;
        }
        (state.empty_waiter.clone_ref_opt(py), finish, state.eof)
    };
    update_hold(transport);
    if let Some(waiter) = waiter {
        let none = py.None().into_bound(py);
        settle_waiter(waiter.bind(py), intern!(py, "set_result"), none)?;
    }
    if closing {
        transport
            .call_method1(intern!(py, "_call_connection_lost"), (py.None(),))
            .map(drop)
    } else if eof {
        let fd = this.state.get(py).descriptor(py);
        buffers::shut_down_writing(fd).map_err(|error| support::os_error(py, &error))
    } else {
        Ok(())
    }
}

/// Ends the connection by an error of sending; what is buffered is dropped.
#[cold]
pub(super) fn fail(transport: &Bound<'_, SocketTransport>, error: PyErr) -> PyResult<()> {
    let py = transport.py();
    if support::ends_the_loop(py, &error) {
        return Err(error);
    }
    let (dropped, waiter) = {
        let mut state = transport.get().state.get_mut(py);
        state.buffer_len = 0;
        (
            std::mem::take(&mut state.buffer),
            state.empty_waiter.clone_ref_opt(py),
        )
    };
    drop(dropped);
    let value = error.value(py).clone().into_any();
    fatal_error(transport, error, WRITE_ERROR)?;
    match waiter {
        Some(waiter) => settle_waiter(waiter.bind(py), intern!(py, "set_exception"), value),
        None => Ok(()),
    }
}

/// Ends the wait for an empty buffer, unless whoever waited has gone.
pub(super) fn settle_waiter<'py>(
    waiter: &Bound<'py, PyAny>,
    method: &Bound<'py, PyString>,
    value: Bound<'py, PyAny>,
) -> PyResult<()> {
    if waiter
        .call_method0(intern!(waiter.py(), "done"))?
        .is_truthy()?
    {
        return Ok(());
    }
    waiter.call_method1(method, (value,)).map(drop)
}

/// Sends at once what the socket takes, unless something else waits to be sent: the number of bytes, if any are left.
#[inline]
pub(super) fn send_directly(
    transport: &Bound<'_, SocketTransport>,
    bytes: &[u8],
) -> std::io::Result<Option<usize>> {
    let (fd, direct, lost) = {
        let py = transport.py();
        let state = transport.get().state.get(py);
        (
            state.descriptor(py),
            state.buffer.is_empty(),
            state.lost > 0,
        )
    };
    if lost {
        // Getting at the bytes of the user's own type has run code of the user's, which ended the connection.
        return Ok(None);
    }
    let sent = if direct { buffers::send(fd, bytes)? } else { 0 };
    Ok((sent < bytes.len()).then_some(sent))
}

/// What asyncio makes of data whose bytes it can't have: a view that is not contiguous, for one.
#[cold]
pub(super) fn refuse_data(
    transport: &Bound<'_, SocketTransport>,
    data: &Bound<'_, PyAny>,
    error: PyErr,
) -> PyResult<()> {
    let py = transport.py();
    if support::ends_the_loop(py, &error) {
        return Err(error);
    }
    let direct = transport.get().state.get(py).buffer.is_empty();
    if !direct && !support::python_is_at_least(12) {
        // It has a bytearray for a buffer, and this is what that says.
        let buffer = objects::bytearray(py)?;
        return buffer
            .call_method1(intern!(py, "extend"), (data,))
            .map(drop);
    }
    fatal_error(transport, error, WRITE_ERROR)
}

/// The pieces that `writelines` was given, without the empty ones. Inside, the first error of those whose bytes can't be
/// had, which asyncio finds when it sends them; outside, those of what is no data at all.
pub(super) fn collect(list_of_data: &Bound<'_, PyAny>) -> PyResult<PyResult<VecDeque<Chunk>>> {
    let mut chunks = VecDeque::new();
    let mut refused = None;
    for data in list_of_data.try_iter()? {
        let data = data?;
        let chunk = if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            Chunk::rest_of(bytes, 0)
        } else if support::python_is_at_least(14) && !data.is_truthy()? {
            continue;
        } else {
            let view = PyMemoryView::from(&data)?;
            match View::new(&view, ffi::PyBUF_SIMPLE) {
                Ok(view) => Chunk::copy_of(view.bytes()),
                Err(error) => {
                    refused.get_or_insert(error);
                    continue;
                }
            }
        };
        if chunk.len() > 0 {
            chunks.push_back(chunk);
        }
    }
    Ok(refused.map_or(Ok(chunks), Err))
}

/// Buffers what the socket did not take.
pub(super) fn enqueue(transport: &Bound<'_, SocketTransport>, chunk: Chunk) -> PyResult<()> {
    let py = transport.py();
    let first = {
        let mut state = transport.get().state.get_mut(py);
        state.buffer_len += chunk.len();
        state.buffer.push_back(chunk);
        state.buffer.len() == 1
    };
    if first {
        begin_blocked_write(transport)?;
    }
    maybe_pause_protocol(transport)
}

/// The socket is full: the rest goes out when it reports room.
pub(super) fn begin_blocked_write(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let context = context_for(transport)?;
    let previous = transport
        .get()
        .state
        .get_mut(py)
        .write_context
        .replace(context);
    drop(previous);
    list(transport)?;
    update_hold(transport);
    Ok(())
}

pub(super) fn maybe_pause_protocol(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    if transport.get().state.get(py).protocol_paused {
        return Ok(());
    }
    let size = buffer_size(transport)?;
    {
        let mut state = transport.get().state.get_mut(py);
        if size <= state.high_water || state.protocol_paused {
            return Ok(());
        }
        state.protocol_paused = true;
    }
    call_flow_control(transport, "pause_writing")
}

/// Asked for by its name, because the user may have put another method in its place.
fn buffer_size(transport: &Bound<'_, SocketTransport>) -> PyResult<usize> {
    let name = intern!(transport.py(), "get_write_buffer_size");
    transport.call_method0(name)?.extract()
}

fn maybe_resume_protocol(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    if !transport.get().state.get(py).protocol_paused {
        return Ok(());
    }
    let size = buffer_size(transport)?;
    {
        let mut state = transport.get().state.get_mut(py);
        if !state.protocol_paused || size > state.low_water {
            return Ok(());
        }
        state.protocol_paused = false;
    }
    call_flow_control(transport, "resume_writing")
}

#[cold]
fn call_flow_control(transport: &Bound<'_, SocketTransport>, method: &str) -> PyResult<()> {
    let py = transport.py();
    let Some(protocol) = transport.get().state.get(py).protocol.clone_ref_opt(py) else {
        return Ok(());
    };
    match protocol.bind(py).call_method0(New(method)) {
        Ok(_) => Ok(()),
        Err(error) if support::ends_the_loop(py, &error) => Err(error),
        Err(error) => {
            let context = objects::dict(py)?;
            let message = format!("protocol.{method}() failed");
            context.set_item(intern!(py, "message"), New(message))?;
            context.set_item(intern!(py, "exception"), error.value(py))?;
            context.set_item(intern!(py, "transport"), transport)?;
            context.set_item(intern!(py, "protocol"), protocol)?;
            let event_loop = transport.get().event_loop(py)?.into_bound(py);
            let handler = event_loop.getattr(intern!(py, "call_exception_handler"))?;
            support::call_handling(error, &handler, |_| New((context,)))
        }
    }
}

/// A write after the connection was lost: counted, and from the fifth on logged, as asyncio does.
#[cold]
pub(super) fn count_lost_write(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let lost = {
        let mut state = transport.get().state.get_mut(py);
        state.lost += 1;
        state.lost
    };
    if lost <= LOST_WRITES_BEFORE_WARNING {
        return Ok(());
    }
    support::python(py)?
        .getattr(intern!(py, "logger"))?
        .call_method1(
            intern!(py, "warning"),
            (New("socket.send() raised exception."),),
        )
        .map(drop)
}
