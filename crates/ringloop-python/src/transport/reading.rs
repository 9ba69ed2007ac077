//! How a stream transport reads: once for each time its socket is ready, into the loop's buffer or the protocol's own.

use std::io::ErrorKind;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::closing::fatal_error;
use super::readiness::update_hold;
use super::{SocketTransport, log_if_debug};
use crate::buffers::{self, Received};
use crate::endpoint;
use crate::names::intern;
use crate::objects::{self, New};
use crate::receiver::{Input, Sink};
use crate::support::{self, CloneRefOption, call_method1};

/// Reads once. Leaves `readable` set while there may be more.
pub(super) fn read_once(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let protocol = {
        let state = transport.get().state.get(py);
        state.is_buffered.then(|| state.protocol.clone_ref_opt(py))
    };
    match protocol {
        Some(Some(protocol)) => read_into_protocol(transport, &protocol),
        Some(None) => Ok(()),
        None => read_for_protocol(transport),
    }
}

/// Settles what a receive of `capacity` bytes found: the count if data is to be delivered.
fn settle(
    transport: &Bound<'_, SocketTransport>,
    result: std::io::Result<usize>,
    capacity: usize,
) -> PyResult<Option<usize>> {
    let py = transport.py();
    match result {
        Ok(0) => {
            // An error that ends the loop leaves the end to be found, and told, again.
            on_end(transport)?;
            transport.get().state.get_mut(py).readable = false;
            Ok(None)
        }
        Ok(count) => {
            let mut state = transport.get().state.get_mut(py);
            state.readable = count == capacity || state.read_on;
            Ok(Some(count))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let mut state = transport.get().state.get_mut(py);
            state.readable = false;
            state.read_on = false;
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
        Err(error) => {
            let error = support::os_error(py, &error);
            fatal_error(transport, error, "Fatal read error on socket transport")?;
            Ok(None)
        }
    }
}

/// The sink, if it may take what is received without the loop's buffer, and how many bytes to expect. That costs more than
/// a copy of little data, so the last receive must have been large, and this one is guessed from it. For Unix sockets, see
/// `cut_short`.
fn direct_sink(transport: &Bound<'_, SocketTransport>) -> Option<(Sink, usize)> {
    let py = transport.py();
    let state = transport.get().state.get(py);
    let habit = usize::from(state.habit_kb) * 1024;
    if habit < buffers::DIRECT_MIN || state.is_unix {
        return None;
    }
    Some((state.sink.as_ref()?.clone_ref(py), habit))
}

/// Receives to where the sink wants it. False if it has no such place.
fn gather(transport: &Bound<'_, SocketTransport>, sink: &Sink) -> PyResult<bool> {
    let py = transport.py();
    let fd = transport.get().state.get(py).attachment.descriptor(py);
    let Some((result, capacity)) = sink.gather(py, &mut |gathered| gathered.receive(fd)) else {
        return Ok(false);
    };
    if let Some(count) = settle(transport, result, capacity)? {
        note_habit(transport, count, capacity);
        delivered(transport, sink.gathered(py, count), sink.method())?;
    }
    Ok(true)
}

/// Remembers how much a receive for a sink took; after one that took all of `capacity`, more may come.
fn note_habit(transport: &Bound<'_, SocketTransport>, count: usize, capacity: usize) {
    let expected = if count == capacity { 2 * count } else { count };
    let expected = expected.min(Received::CAPACITY) / 1024;
    transport.get().state.get_mut(transport.py()).habit_kb =
        u16::try_from(expected).unwrap_or(u16::MAX);
}

/// Receives into the object that the transport's sink is given. False if there is no memory for that.
fn read_directly(transport: &Bound<'_, SocketTransport>, capacity: usize) -> PyResult<bool> {
    let py = transport.py();
    let this = transport.get();
    let current = || this.state.get(py).attachment.descriptor(py);
    let Ok(result) = buffers::receive_bytes(py, current, capacity) else {
        return Ok(false);
    };
    let (object, result) = match result {
        Ok((object, count)) => (Some(object), Ok(count)),
        Err(error) => (None, Err(error)),
    };
    let count = settle(transport, result, capacity)?;
    let sink = this.state.get(py).sink.as_ref().map(|it| it.clone_ref(py));
    if let (Some(count), Some(object), Some(sink)) = (count, object, sink) {
        note_habit(transport, count, capacity);
        let result = sink.receive_object(object.bind(py).cast::<PyBytes>()?);
        delivered(transport, result, sink.method())?;
    }
    Ok(true)
}

/// Receives into the loop's buffer and delivers to `data_received`, or natively.
fn read_for_protocol(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    if let Some((sink, habit)) = direct_sink(transport) {
        if gather(transport, &sink)? {
            return Ok(());
        }
        let room = sink.room(py)?;
        let capacity = room.min(buffers::with_slack(habit));
        if room >= buffers::DIRECT_MIN && read_directly(transport, capacity)? {
            return Ok(());
        }
    }
    let event_loop = endpoint::event_loop(this, py)?;
    let mut received = event_loop.get().receive_buffer(py)?;
    let (fd, is_unix, protocol) = {
        let state = this.state.get(py);
        (
            state.attachment.descriptor(py),
            state.is_unix,
            state.protocol.clone_ref_opt(py),
        )
    };
    let mut cut_short = false;
    let result = received.receive(fd, is_unix.then_some(&mut cut_short));
    if cut_short {
        this.state.get_mut(py).read_on = true;
    }
    let count = settle(transport, result, Received::CAPACITY)?;
    let (Some(count), Some(protocol)) = (count, protocol) else {
        event_loop.get().return_receive_buffer(py, received);
        return Ok(());
    };
    let sink = {
        let state = this.state.get(py);
        state.sink.as_ref().map(|sink| sink.clone_ref(py))
    };
    if let Some(sink) = sink {
        note_habit(transport, count, Received::CAPACITY);
        let input = Input::new(py, Some(event_loop.get()), received, count);
        let result = sink.receive(input);
        return delivered(transport, result, sink.method());
    }
    let copy = {
        let mut state = this.state.get_mut(py);
        let copy = state.copies_left > 0;
        state.copies_left = state.copies_left.saturating_sub(1);
        copy
    };
    let data = received.take(py, count, copy);
    let result = call_method1(
        protocol.bind(py),
        intern!(py, "data_received"),
        data.object(),
    );
    if data.was_kept() {
        this.state.get_mut(py).copies_left = buffers::COPIES_AFTER_KEPT;
    }
    if let Some(received) = received.put_back(&data) {
        event_loop.get().return_receive_buffer(py, received);
    }
    delivered(transport, result, "data_received")
}

/// Settles a delivery: what the protocol's `method` raised ends the connection.
fn delivered(
    transport: &Bound<'_, SocketTransport>,
    result: PyResult<()>,
    method: &str,
) -> PyResult<()> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if support::ends_the_loop(transport.py(), &error) => Err(error),
        Err(error) => {
            let message = format!("Fatal error: protocol.{method}() call failed.");
            fatal_error(transport, error, &message)
        }
    }
}

/// Receives into the buffer that a `BufferedProtocol` offers.
fn read_into_protocol(
    transport: &Bound<'_, SocketTransport>,
    protocol: &Py<PyAny>,
) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let (is_unix, sock) = {
        let state = this.state.get(py);
        let Some(sock) = &state.attachment.sock else {
            return Ok(());
        };
        (state.is_unix, sock.clone_ref(py))
    };
    let offered = protocol
        .bind(py)
        .call_method1(intern!(py, "get_buffer"), (New(-1),))
        .and_then(|buffer| {
            if buffer.len()? == 0 {
                return Err(objects::error::<PyRuntimeError>(
                    py,
                    "get_buffer() returned an empty buffer",
                ));
            }
            Ok(buffer)
        });
    let buffer = match offered {
        Ok(buffer) => buffer,
        Err(error) if support::ends_the_loop(py, &error) => return Err(error),
        Err(error) => {
            fatal_error(
                transport,
                error,
                "Fatal error: protocol.get_buffer() call failed.",
            )?;
            return Ok(());
        }
    };
    let mut cut_short = false;
    let current = || this.state.get(py).attachment.descriptor(py);
    let received = buffers::receive_into(current, &buffer, is_unix.then_some(&mut cut_short));
    if cut_short {
        this.state.get_mut(py).read_on = true;
    }
    let Ok((result, capacity)) = received else {
        // No writable buffer: the socket module says so in its own words.
        let error = sock
            .bind(py)
            .call_method1(intern!(py, "recv_into"), (&buffer,))
            .err()
            .unwrap_or_else(|| objects::error::<PyTypeError>(py, "the buffer is not writable"));
        fatal_error(transport, error, "Fatal read error on socket transport")?;
        return Ok(());
    };
    let count = settle(transport, result, capacity)?;
    let Some(count) = count else {
        return Ok(());
    };
    // get_buffer may have replaced it.
    let current = this.state.get(py).protocol.clone_ref_opt(py);
    let result = current
        .as_ref()
        .unwrap_or(protocol)
        .bind(py)
        .call_method1(intern!(py, "buffer_updated"), (New(count),))
        .map(drop);
    delivered(transport, result, "buffer_updated")
}

/// The peer has ended its side.
fn on_end(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    log_if_debug(transport, "%r received EOF")?;
    let Some(protocol) = transport.get().state.get(py).protocol.clone_ref_opt(py) else {
        return Ok(());
    };
    let keep_open = protocol.bind(py).call_method0(intern!(py, "eof_received"));
    match keep_open {
        Ok(answer) => {
            if answer.is_truthy()? {
                transport.get().state.get_mut(py).end_received = true;
                update_hold(transport);
                Ok(())
            } else {
                transport.call_method0(intern!(py, "close")).map(drop)
            }
        }
        Err(error) if support::ends_the_loop(py, &error) => Err(error),
        Err(error) => fatal_error(
            transport,
            error,
            "Fatal error: protocol.eof_received() call failed.",
        ),
    }
}
