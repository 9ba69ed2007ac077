//! How TLS reads: records go into the memory BIO, and the decrypted data goes to the protocol.

#![allow(unsafe_code)]

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{
    Engine, Phase, SSLProtocol, State, Window, call_asyncio, fatal_error, is_again, writing,
};
use crate::buffers::{self, IN_PLACE_MIN, Received, View};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::receiver::{Input, Sink};
use crate::support::{CloneRefOption, call_method1};

/// Gives OpenSSL what has arrived.
pub(super) fn feed(protocol: &Bound<'_, SSLProtocol>, bytes: &[u8]) -> PyResult<()> {
    let py = protocol.py();
    let this = protocol.get();
    if let Some(engine) = this.engine(py) {
        // SAFETY: `MemoryBIO.write` copies the bytes, with the GIL held.
        unsafe { Window::on_bytes(py, bytes, |window| engine.feed.bind(py).call1((window,))) }?;
        let mut state = this.state.get_mut(py);
        state.records.follow(bytes);
        state.pending = state.pending.map(|pending| pending + bytes.len() as u64);
    } else {
        this.state.get_mut(py).records.lose_track();
        protocol
            .getattr(intern!(py, "_incoming"))?
            .call_method1(intern!(py, "write"), (New(bytes),))?;
    }
    Ok(())
}

/// The same for `buffer[:end]`.
pub(super) fn feed_object(
    protocol: &Bound<'_, SSLProtocol>,
    buffer: &Bound<'_, PyAny>,
    end: isize,
) -> PyResult<()> {
    let view = View::new(buffer, ffi::PyBUF_SIMPLE)?;
    let end = match usize::try_from(end) {
        Ok(end) => end.min(view.len()),
        Err(_) => view.len().saturating_sub(end.unsigned_abs()),
    };
    feed(protocol, &view.bytes()[..end])
}

/// Goes on with what has arrived: what asyncio's `buffer_updated` does next.
pub(super) fn on_arrival(protocol: &Bound<'_, SSLProtocol>) -> PyResult<()> {
    let py = protocol.py();
    let phase = protocol.get().state.get(py).phase;
    let next = match phase {
        Phase::Wrapped => return do_read(protocol),
        Phase::Handshake => intern!(py, "_do_handshake"),
        Phase::Flushing => intern!(py, "_do_flush"),
        Phase::Shutdown => intern!(py, "_do_shutdown"),
        Phase::Unwrapped => return Ok(()),
    };
    // What asyncio's code reads of it is not counted here.
    protocol.get().state.get_mut(py).pending = None;
    protocol.call_method0(next).map(drop)
}

/// Decrypts and delivers what has arrived, then sends what came of it.
pub(super) fn do_read(protocol: &Bound<'_, SSLProtocol>) -> PyResult<()> {
    let py = protocol.py();
    let this = protocol.get();
    let paused = {
        let state = this.state.get(py);
        if !matches!(state.phase, Phase::Wrapped | Phase::Flushing) {
            return Ok(());
        }
        state.app_reading_paused
    };
    let Some(engine) = this.engine(py) else {
        return call_asyncio(protocol, "_do_read", ()).map(drop);
    };
    let body = || {
        if !paused {
            let is_buffer = {
                let state = this.state.get(py);
                state.app_protocol_is_buffer && state.sink.is_none()
            };
            if is_buffer {
                read_into_protocol(protocol, &engine)?;
            } else {
                read_for_protocol(protocol, &engine)?;
            }
            if this.has_backlog(py)? {
                protocol.call_method0(intern!(py, "_do_write"))?;
            } else {
                // OpenSSL may have something to send though only data came: a request for the client's certificate.
                writing::process_outgoing(protocol)?;
            }
        }
        control_ssl_reading(protocol, &engine)
    };
    body().or_else(|error| fatal_error(protocol, error))
}

/// Stops and starts the socket's reading by how much has arrived that nobody has read.
fn control_ssl_reading(protocol: &Bound<'_, SSLProtocol>, engine: &Engine) -> PyResult<()> {
    let py = protocol.py();
    let pending = pending_incoming(protocol, engine)?;
    {
        let state = protocol.get().state.get(py);
        if state.records.unread(pending) == 0 && !state.ssl_reading_paused && !state.zero_marks {
            return Ok(());
        }
    }
    protocol
        .call_method0(intern!(py, "_control_ssl_reading"))
        .map(drop)
}

/// The outcome of a read by OpenSSL.
enum Found<T> {
    Data(T),
    /// The peer has ended its side, in TLS's own way.
    End,
    /// Nothing for now.
    Again,
}

impl Engine {
    /// Reads into memory: the number of bytes.
    ///
    /// # Safety
    /// `memory` is valid for writing `len` bytes, also while the GIL is released.
    unsafe fn read_into(
        &self,
        py: Python<'_>,
        memory: *mut u8,
        len: usize,
    ) -> PyResult<Found<usize>> {
        // SAFETY: `memory` is valid for writing `len` bytes, which is the function's contract; `_SSLSocket.read` is
        // done with its buffer when it returns.
        let result = unsafe {
            Window::on_memory(py, memory, len, |window| {
                self.read.bind(py).call1((New(len), window))
            })
        };
        match result {
            Ok(count) => match count.extract::<usize>()? {
                0 => Ok(Found::End),
                count if count > len => {
                    Err(objects::error::<PyValueError>(py, "read() found too much"))
                }
                count => Ok(Found::Data(count)),
            },
            Err(error) if is_again(py, &error)? => Ok(Found::Again),
            Err(error) => Err(error),
        }
    }

    /// Reads up to `len` bytes into a new `bytes` object.
    fn read_bytes<'py>(&self, py: Python<'py>, len: usize) -> PyResult<Found<Bound<'py, PyBytes>>> {
        match self.read.bind(py).call1((New(len),)) {
            Ok(data) => {
                let data = data.cast_into::<PyBytes>()?;
                Ok(if data.as_bytes().is_empty() {
                    Found::End
                } else {
                    Found::Data(data)
                })
            }
            Err(error) if is_again(py, &error)? => Ok(Found::Again),
            Err(error) => Err(error),
        }
    }
}

/// Bytes that have arrived and that OpenSSL has not taken.
fn pending_incoming(protocol: &Bound<'_, SSLProtocol>, engine: &Engine) -> PyResult<u64> {
    let py = protocol.py();
    if let Some(known) = protocol.get().state.get(py).pending {
        return Ok(known);
    }
    let pending = engine.pending_incoming(py)?;
    protocol.get().state.get_mut(py).pending = Some(pending);
    Ok(pending)
}

impl State {
    /// OpenSSL has asked for more: it has taken all there was.
    fn on_again(&mut self) {
        self.leftover = false;
        self.pending = Some(0);
        self.records.settle();
    }
}

/// Whether OpenSSL has anything left to read; where it hasn't, it counts as asked.
fn is_any_left(protocol: &Bound<'_, SSLProtocol>, engine: &Engine) -> PyResult<bool> {
    let py = protocol.py();
    let pending = pending_incoming(protocol, engine)?;
    let mut state = protocol.get().state.get_mut(py);
    let left = state.leftover || state.records.is_any_complete(pending);
    if !left {
        state.records.settle();
    }
    Ok(left)
}

/// Delivers to `data_received`, or natively, all at once.
fn read_for_protocol(protocol: &Bound<'_, SSLProtocol>, engine: &Engine) -> PyResult<()> {
    let py = protocol.py();
    let this = protocol.get();
    let pending = pending_incoming(protocol, engine)?;
    let (only, wants_buffer) = {
        let mut state = this.state.get_mut(py);
        let wants_buffer = state.sink.as_ref().is_some_and(Sink::wants_buffer);
        if state.leftover {
            (None, wants_buffer)
        } else if !state.records.is_any_complete(pending) {
            state.records.settle();
            return Ok(());
        } else {
            (state.records.only_complete(pending), wants_buffer)
        }
    };
    let Some(len) = only.filter(|&len| len < IN_PLACE_MIN && !wants_buffer) else {
        return read_all(protocol, engine);
    };
    // The usual case, and it needs no buffer.
    this.state.get_mut(py).pending = None;
    match engine.read_bytes(py, len)? {
        Found::Data(data) => {
            {
                let mut state = this.state.get_mut(py);
                state.pending = Some(state.records.beyond_complete());
                state.records.settle();
                // Only a compressed record holds more than its length.
                state.leftover = data.as_bytes().len() == len;
            }
            deliver(protocol, &data)?;
            if this.state.get(py).leftover {
                read_all(protocol, engine)?;
            }
            Ok(())
        }
        Found::End => on_end(protocol),
        Found::Again => {
            this.state.get_mut(py).on_again();
            Ok(())
        }
    }
}

/// Reads several records, or a large one, into the loop's buffer.
fn read_all(protocol: &Bound<'_, SSLProtocol>, engine: &Engine) -> PyResult<()> {
    let py = protocol.py();
    let event_loop = protocol.getattr(intern!(py, "_loop"))?;
    let event_loop = event_loop.cast::<Loop>().ok().map(Bound::get);
    let received = match event_loop {
        Some(event_loop) => event_loop.receive_buffer(py)?,
        None => Received::new(py)?,
    };
    // What there is beyond the buffer: asyncio delivers in one piece whatever has arrived.
    let mut before = Vec::new();
    let mut filled = 0;
    let read: PyResult<bool> = (|| {
        loop {
            if filled == Received::CAPACITY {
                before.extend_from_slice(received.bytes(filled));
                filled = 0;
            }
            let room = Received::CAPACITY - filled;
            protocol.get().state.get_mut(py).pending = None;
            // SAFETY: within the buffer, which nobody else refers to while we have it.
            match unsafe { engine.read_into(py, received.memory().add(filled), room) }? {
                Found::Data(count) => filled += count,
                Found::End => return Ok(true),
                Found::Again => break,
            }
            protocol.get().state.get_mut(py).leftover = filled == Received::CAPACITY;
            if !is_any_left(protocol, engine)? {
                return Ok(false);
            }
        }
        protocol.get().state.get_mut(py).on_again();
        Ok(false)
    })();
    let give_back = |received| {
        if let Some(event_loop) = event_loop {
            event_loop.return_receive_buffer(py, received);
        }
    };
    let delivered = match &read {
        Err(_) => {
            give_back(received);
            Ok(())
        }
        Ok(_) if !before.is_empty() => {
            before.extend_from_slice(received.bytes(filled));
            give_back(received);
            deliver_bytes(protocol, &before)
        }
        Ok(_) if filled == 0 => {
            give_back(received);
            Ok(())
        }
        Ok(_) => deliver_received(protocol, event_loop, received, filled),
    };
    delivered?;
    if read? { on_end(protocol) } else { Ok(()) }
}

/// Delivers the first `count` bytes of the loop's buffer, and gives that back.
fn deliver_received(
    protocol: &Bound<'_, SSLProtocol>,
    event_loop: Option<&Loop>,
    mut received: Received,
    count: usize,
) -> PyResult<()> {
    let py = protocol.py();
    if let Some(sink) = sink(protocol) {
        return sink.receive(Input::new(py, event_loop, received, count));
    }
    let copy = {
        let mut state = protocol.get().state.get_mut(py);
        let copy = state.copies_left > 0;
        state.copies_left = state.copies_left.saturating_sub(1);
        copy
    };
    let data = received.take(py, count, copy);
    let result = deliver_object(protocol, data.object());
    if data.was_kept() {
        protocol.get().state.get_mut(py).copies_left = buffers::COPIES_AFTER_KEPT;
    }
    if let (Some(received), Some(event_loop)) = (received.put_back(&data), event_loop) {
        event_loop.return_receive_buffer(py, received);
    }
    result
}

/// The protocol's sink, if it takes bytes natively.
fn sink(protocol: &Bound<'_, SSLProtocol>) -> Option<Sink> {
    let py = protocol.py();
    let state = protocol.get().state.get(py);
    state.sink.as_ref().map(|sink| sink.clone_ref(py))
}

/// Delivers an object.
fn deliver(protocol: &Bound<'_, SSLProtocol>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
    match sink(protocol) {
        Some(sink) => sink.receive_bytes(protocol.py(), data.as_bytes()),
        None => deliver_object(protocol, data.as_ptr()),
    }
}

/// Delivers more than a receive buffer holds.
fn deliver_bytes(protocol: &Bound<'_, SSLProtocol>, bytes: &[u8]) -> PyResult<()> {
    let py = protocol.py();
    match sink(protocol) {
        Some(sink) => sink.receive_bytes(py, bytes),
        None => deliver_object(protocol, objects::bytes(py, bytes)?.as_ptr()),
    }
}

/// `self._app_protocol.data_received(data)`
fn deliver_object(protocol: &Bound<'_, SSLProtocol>, data: *mut ffi::PyObject) -> PyResult<()> {
    let py = protocol.py();
    let app_protocol = protocol.get().state.get(py).app_protocol.clone_ref_opt(py);
    let app_protocol = app_protocol.unwrap_or_else(|| py.None());
    call_method1(app_protocol.bind(py), intern!(py, "data_received"), data)
}

/// Decrypts into the buffer that a `BufferedProtocol` offers.
fn read_into_protocol(protocol: &Bound<'_, SSLProtocol>, engine: &Engine) -> PyResult<()> {
    let py = protocol.py();
    let hint = SSLProtocol::_get_read_buffer_size(protocol)?;
    let buffer = protocol
        .getattr(intern!(py, "_app_protocol_get_buffer"))?
        .call1((hint,))?;
    let wanted = buffer.len()?;
    let mut offset = 0;
    let mut end = false;
    match View::new(&buffer, ffi::PyBUF_WRITABLE) {
        Ok(view) if wanted > 0 => {
            let wanted = wanted.min(view.len());
            loop {
                if !is_any_left(protocol, engine)? {
                    break;
                }
                protocol.get().state.get_mut(py).pending = None;
                // SAFETY: the view is writable and this long until it is released, after this loop.
                let found =
                    unsafe { engine.read_into(py, view.memory().add(offset), wanted - offset) }?;
                match found {
                    Found::Data(count) => offset += count,
                    Found::End => {
                        end = true;
                        break;
                    }
                    Found::Again => {
                        protocol.get().state.get_mut(py).on_again();
                        break;
                    }
                }
                let full = offset == wanted;
                protocol.get().state.get_mut(py).leftover = full;
                if full {
                    let again = protocol.getattr(intern!(py, "_do_read"))?;
                    protocol
                        .getattr(intern!(py, "_loop"))?
                        .call_method1(intern!(py, "call_soon"), (again,))?;
                    break;
                }
            }
        }
        // An empty buffer, or none at all: the ssl module knows what to make of it.
        _ => {
            protocol.get().state.get_mut(py).pending = None;
            match engine.read.bind(py).call1((New(wanted), &buffer)) {
                Ok(count) => {
                    offset = count.extract()?;
                    end = offset == 0;
                }
                Err(error) if is_again(py, &error)? => {}
                Err(error) => return Err(error),
            }
        }
    }
    if offset > 0 {
        protocol
            .getattr(intern!(py, "_app_protocol_buffer_updated"))?
            .call1((New(offset),))?;
    }
    if end { on_end(protocol) } else { Ok(()) }
}

/// The peer's close_notify has come.
#[cold]
fn on_end(protocol: &Bound<'_, SSLProtocol>) -> PyResult<()> {
    let py = protocol.py();
    protocol.call_method0(intern!(py, "_call_eof_received"))?;
    protocol
        .call_method0(intern!(py, "_start_shutdown"))
        .map(drop)
}
