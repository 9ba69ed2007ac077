//! How a stream transport writes: directly first; what the socket doesn't take at once is buffered.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use super::SocketTransport;
use super::closing::fatal_error;
use super::file_sending;
use super::flow_control::{maybe_pause_protocol, maybe_resume_protocol, settle_waiter};
use super::readiness::{context_for, list, update_hold};
use super::state::State;
use crate::buffers::{self, Chunk, View};
use crate::endpoint;
use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{self, CloneRefOption};

/// The message of asyncio for a write that failed.
const WRITE_ERROR: &str = "Fatal write error on socket transport";

/// asyncio's `constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES`.
const LOST_WRITES_BEFORE_WARNING: u32 = 5;

/// Sends data, now as far as the socket takes it; the rest is buffered. Never blocks.
pub(super) fn write(
    transport: &Bound<'_, SocketTransport>,
    data: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = transport.py();
    if !buffers::is_bytes_like(data) {
        return Err(support::python(py)?
            .getattr(intern!(py, "write_type_error"))?
            .call1((data,))
            .map_or_else(|error| error, PyErr::from_value));
    }
    {
        let state = transport.get().state.get(py);
        if let Some(event_loop) = state.attachment.elsewhere(py) {
            drop(state);
            let name = intern!(py, "write");
            let data = buffers::unchanging(data)?;
            return endpoint::post(event_loop.bind(py), transport, name, [&data]);
        }
        if state.eof {
            return Err(objects::error::<PyRuntimeError>(
                py,
                "Cannot call write() after write_eof()",
            ));
        }
        if state.empty_waiter.is_some() {
            return Err(objects::error::<PyRuntimeError>(
                py,
                "unable to write; sendfile is in progress",
            ));
        }
    }
    if buffers::is_empty(data)? {
        return Ok(());
    }
    if transport.get().state.get(py).lost > 0 {
        return count_lost_write(transport);
    }
    let outcome = if let Ok(bytes) = data.cast_exact::<PyBytes>() {
        let left = send_directly(transport, bytes.as_bytes());
        left.map(|left| left.map(|sent| Ok(Chunk::rest_of(bytes, sent))))
    } else {
        let view = match View::new(data, ffi::PyBUF_SIMPLE) {
            Ok(view) => view,
            Err(error) => return refuse_data(transport, data, error),
        };
        let left = send_directly(transport, view.bytes());
        left.map(|left| left.map(|sent| Chunk::copy_of_data(py, &view.bytes()[sent..])))
    };
    match outcome {
        Ok(None) => Ok(()),
        Ok(Some(rest)) => enqueue(transport, rest?),
        Err(error) => {
            let error = support::os_error(py, &error);
            fatal_error(transport, error, WRITE_ERROR)
        }
    }
}

/// Like `write` for each of several buffers, in as few system calls as possible.
pub(super) fn write_lines(
    transport: &Bound<'_, SocketTransport>,
    list_of_data: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = transport.py();
    if !support::python_is_at_least(12) {
        let all = objects::bytes(py, b"")?.call_method1(intern!(py, "join"), (list_of_data,))?;
        return transport
            .call_method1(intern!(py, "write"), (all,))
            .map(drop);
    }
    {
        let state = transport.get().state.get(py);
        if let Some(event_loop) = state.attachment.elsewhere(py) {
            drop(state);
            let name = intern!(py, "writelines");
            let lines = buffers::all_unchanging(list_of_data)?;
            return endpoint::post(event_loop.bind(py), transport, name, [lines.as_any()]);
        }
        if state.eof {
            return Err(objects::error::<PyRuntimeError>(
                py,
                "Cannot call writelines() after write_eof()",
            ));
        }
        if state.empty_waiter.is_some() {
            return Err(objects::error::<PyRuntimeError>(
                py,
                "unable to writelines; sendfile is in progress",
            ));
        }
    }
    if !list_of_data.is_truthy()? {
        return Ok(());
    }
    if support::python_is_at_least(14) && transport.get().state.get(py).lost > 0 {
        return count_lost_write(transport);
    }
    let chunks = match collect(list_of_data)? {
        Ok(chunks) if chunks.is_empty() => return Ok(()),
        chunks => chunks,
    };
    if transport.get().state.get(py).lost > 0 {
        return count_lost_write(transport);
    }
    let mut chunks = match chunks {
        Ok(chunks) => chunks,
        Err(error) => return fail(transport, error),
    };
    let was_empty = {
        let mut state = transport.get().state.get_mut(py);
        let was_empty = state.buffer.is_empty();
        state.buffer_len += chunks.iter().map(Chunk::len).sum::<usize>();
        state.buffer.append(&mut chunks);
        was_empty
    };
    // Also what the kernel had no room for before: as asyncio, which tries whatever was reported.
    flush(transport)?;
    settle_buffered(transport, was_empty)
}

/// Ends the sending side once everything buffered is sent; receiving goes on.
pub(super) fn write_eof(transport: &SocketTransport, py: Python<'_>) -> PyResult<()> {
    let fd = {
        let mut state = transport.state.get_mut(py);
        if state.attachment.closing || state.eof {
            return Ok(());
        }
        state.eof = true;
        if !state.buffer.is_empty() {
            return Ok(());
        }
        state.attachment.descriptor(py)
    };
    buffers::shut_down_writing(fd).map_err(|error| support::os_error(py, &error))
}

impl State {
    /// Notes that the socket is full from now on.
    pub(super) fn note_full(&mut self) {
        if let Some(event_loop) = &self.attachment.event_loop {
            self.full_turn = event_loop.get().turn();
        }
    }

    /// Sends what is buffered until the socket is full: it reports room only when it was full before. Pieces that are
    /// sent go to `done`, to be dropped when nothing is borrowed.
    fn send_buffered(&mut self, py: Python<'_>, done: &mut Vec<Chunk>) -> std::io::Result<()> {
        let fd = self.attachment.descriptor(py);
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
        let finish = state.attachment.ends_when_sent() && state.lost == 0;
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
        let fd = this.state.get(py).attachment.descriptor(py);
        buffers::shut_down_writing(fd).map_err(|error| support::os_error(py, &error))
    } else {
        Ok(())
    }
}

/// Ends the connection by an error of sending; what is buffered is dropped.
#[cold]
fn fail(transport: &Bound<'_, SocketTransport>, error: PyErr) -> PyResult<()> {
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

/// Sends at once what the socket takes, unless something else waits to be sent: the number of bytes, if any are left.
#[inline]
fn send_directly(
    transport: &Bound<'_, SocketTransport>,
    bytes: &[u8],
) -> std::io::Result<Option<usize>> {
    let (fd, direct, lost) = {
        let py = transport.py();
        let state = transport.get().state.get(py);
        (
            state.attachment.descriptor(py),
            state.buffer.is_empty(),
            state.lost > 0,
        )
    };
    if lost {
        // Exporting the buffer of the user's own type has run the user's code, or another thread has run, and ended the
        // connection.
        return Ok(None);
    }
    let sent = if direct { buffers::send(fd, bytes)? } else { 0 };
    Ok((sent < bytes.len()).then_some(sent))
}

/// Does what asyncio does with data whose bytes can't be had, such as a view that is not contiguous.
#[cold]
fn refuse_data(
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
        // Its buffer is a bytearray, and this raises what that raises.
        let buffer = objects::bytearray(py, b"")?;
        return buffer
            .call_method1(intern!(py, "extend"), (data,))
            .map(drop);
    }
    fatal_error(transport, error, WRITE_ERROR)
}

/// The pieces that `writelines` was given, without the empty ones. The inner error is the first of a piece whose bytes
/// can't be had, which asyncio finds when it sends them; the outer one is of something that is no data at all.
fn collect(list_of_data: &Bound<'_, PyAny>) -> PyResult<PyResult<VecDeque<Chunk>>> {
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
                Ok(view) => Chunk::copy_of_data(data.py(), view.bytes())?,
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

/// Up to here, one send of a copy is cheaper than a send of several pieces.
const COPIED_MAX: usize = 8 * 1024;

impl SocketTransport {
    /// Bytes that wait to be sent, in the buffer or in a file.
    pub(crate) fn unsent(&self, py: Python<'_>) -> usize {
        let state = self.state.get(py);
        state.buffer_len + state.file.as_ref().map_or(0, |file| file.unsent())
    }

    /// See `_start_sendfile`.
    pub(crate) fn start_file(
        slf: &Bound<'_, Self>,
        file: RawFd,
        offset: u64,
        count: usize,
    ) -> PyResult<Option<Py<PyAny>>> {
        // The kernel refuses what is too large.
        let offset = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
        file_sending::start(slf, file, offset, Some(count))
    }

    /// Sends bytes, a payload, and more bytes, as one `write` of all of them would. A large payload is not copied.
    pub(crate) fn write_parts(
        slf: &Bound<'_, Self>,
        before: &[u8],
        payload: Option<&Bound<'_, PyBytes>>,
        after: &[u8],
    ) -> PyResult<()> {
        let py = slf.py();
        {
            let state = slf.get().state.get(py);
            if state.eof || state.empty_waiter.is_some() || state.attachment.elsewhere(py).is_some()
            {
                drop(state);
                let all = [before, payload.map_or(b"", |it| it.as_bytes()), after].concat();
                // It says what is wrong, or leaves it to the loop's thread.
                return Self::write(slf, objects::bytes(py, &all)?.as_any());
            }
            if state.lost > 0 {
                drop(state);
                return count_lost_write(slf);
            }
        }
        let content = payload.map_or(&b""[..], |payload| payload.as_bytes());
        if content.is_empty() && after.is_empty() {
            return write_slice(slf, before);
        }
        if content.len() <= COPIED_MAX {
            return write_slice(slf, &[before, content, after].concat());
        }
        let was_empty = {
            let mut state = slf.get().state.get_mut(py);
            let was_empty = state.buffer.is_empty();
            state.buffer_len += before.len() + content.len() + after.len();
            if !before.is_empty() {
                state.buffer.push_back(Chunk::copy_of(before));
            }
            if let Some(payload) = payload {
                state.buffer.push_back(Chunk::rest_of(payload, 0));
            }
            if !after.is_empty() {
                state.buffer.push_back(Chunk::copy_of(after));
            }
            was_empty
        };
        if was_empty {
            flush(slf)?;
        }
        settle_buffered(slf, was_empty)
    }
}

/// Sends bytes, now as far as the socket takes them.
fn write_slice(transport: &Bound<'_, SocketTransport>, bytes: &[u8]) -> PyResult<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match send_directly(transport, bytes) {
        Ok(None) => Ok(()),
        Ok(Some(sent)) => {
            let rest = Chunk::copy_of_data(transport.py(), &bytes[sent..])?;
            enqueue(transport, rest)
        }
        Err(error) => {
            let error = support::os_error(transport.py(), &error);
            fatal_error(transport, error, WRITE_ERROR)
        }
    }
}

/// After something was buffered: waits for room and tells flow control, unless all of it was sent.
fn settle_buffered(transport: &Bound<'_, SocketTransport>, was_empty: bool) -> PyResult<()> {
    if transport.get().state.get(transport.py()).buffer.is_empty() {
        return Ok(());
    }
    if was_empty {
        begin_blocked_write(transport)?;
    }
    maybe_pause_protocol(transport)
}

/// Buffers what the socket did not take.
fn enqueue(transport: &Bound<'_, SocketTransport>, chunk: Chunk) -> PyResult<()> {
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
fn begin_blocked_write(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let context = context_for(transport)?;
    let previous = {
        let mut state = transport.get().state.get_mut(py);
        state.note_full();
        state.write_context.replace(context)
    };
    drop(previous);
    list(transport)?;
    update_hold(transport);
    Ok(())
}

/// A write after the connection was lost: counted, and from the fifth on logged, as asyncio does.
#[cold]
fn count_lost_write(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
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
