//! `DatagramTransport`: the native half of a datagram endpoint (UDP, and Unix datagrams).
//!
//! It receives in batches when the socket is ready, and tries to send directly first. What happens once per endpoint,
//! and the handling of errors, is Python, in the subclass `ringloop._datagrams.DatagramTransport`: mostly asyncio's own
//! code.
//!
//! While nothing waits to be sent, the watch is for reading only and edge-triggered. A blocked socket is watched
//! level-triggered for both: a Unix socket reports no edge when there is room again in the queue of the peer it sends
//! to.

#![allow(unsafe_code)]

mod receiving;
mod sending;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::{Interest, Mode};

use crate::addresses::AddressCache;
use crate::buffers;
use crate::cell::{Exclusive, GilCell};
use crate::endpoint::{self, Attachment, Endpoint, report};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::queue::{Readiness, Transport, TransportKind};
use crate::socket_object;
use crate::support::{self, CloneRefOption, Made, ask, copy_context, in_context};
use crate::watching;

use self::receiving::{SecondLook, read_batch};
use self::sending::{block, enqueue, flush, on_send_error, refuse, transmit};

/// A datagram that waits to be sent, and to whom.
type Outgoing = (Py<PyBytes>, Option<Py<PyAny>>);
/// A datagram that was received but not delivered yet, and from whom.
type Incoming = (Py<PyAny>, Py<PyAny>);

/// The flags are asyncio's, and independent of one another.
#[allow(clippy::struct_excessive_bools)]
struct State {
    attachment: Attachment,
    family: c_int,
    protocol: Option<Py<PyAny>>,
    protocol_connected: bool,
    /// The one address that `sendto` accepts, if the endpoint was made with a remote address.
    address: Option<Py<PyAny>>,
    /// The socket knows its peer: no address goes with what is sent.
    has_peer: bool,
    extra: Py<PyDict>,
    /// The events that the socket is watched for.
    watched: Option<(Interest, Mode)>,
    /// The context that datagrams are delivered in; taken when reading (re)starts.
    read_context: Option<Py<PyAny>>,
    /// The context for what happens when the socket has room again; taken when sending blocks.
    write_context: Option<Py<PyAny>>,
    started: bool,
    /// The turn in which reading was asked for last: in the rest of it nothing is read. See `Loop::turn`.
    start_turn: u32,
    /// Waiting for room to send.
    blocked: bool,
    /// Above zero once `connection_lost` is scheduled; counts what is sent after that.
    lost: i64,
    buffer: VecDeque<Outgoing>,
    buffer_size: usize,
    /// How many bytes each datagram adds to the size of the buffer, besides its content.
    header_size: usize,
    sends_empty: bool,
    /// The size of the buffer is zero once the transport is aborted.
    forgets_size: bool,
    undelivered: VecDeque<Incoming>,
    /// A read is queued for the next turn.
    queued: bool,
    /// The protocol is being served with what arrived. It may make the loop turn meanwhile.
    delivering: bool,
    /// The socket reported while delivering.
    reported: bool,
    second_look: SecondLook,
    addresses: AddressCache,
}

#[pyclass(module = "ringloop._core", subclass, frozen, weakref)]
pub(crate) struct DatagramTransport {
    state: Made<GilCell<State>>,
}

#[pymethods]
impl DatagramTransport {
    /// `header_size` is how many bytes each datagram adds to the size of the write buffer, besides its content.
    /// `sends_empty` tells whether `sendto` sends empty datagrams, or drops them, and `forgets_size` whether the size of the
    /// buffer is zero after an abort. All three depend on the Python version. A `lent` socket was passed in by the user.
    #[new]
    #[pyo3(signature = (event_loop, sock, protocol, address, extra, header_size, sends_empty, forgets_size, lent=false))]
    #[allow(
        clippy::too_many_arguments,
        reason = "they are those of a Python class"
    )]
    fn new(
        event_loop: &Bound<'_, Loop>,
        sock: &Bound<'_, PyAny>,
        protocol: &Bound<'_, PyAny>,
        address: Option<Py<PyAny>>,
        extra: &Bound<'_, PyDict>,
        header_size: usize,
        sends_empty: bool,
        forgets_size: bool,
        lent: bool,
    ) -> PyResult<Self> {
        let py = event_loop.py();
        let address = match address {
            Some(address) if address.bind(py).is_truthy()? => Some(address),
            _ => None,
        };
        let has_peer = extra
            .get_item(intern!(py, "peername"))?
            .is_some_and(|peer| peer.is_truthy().unwrap_or(true));
        Ok(Self {
            state: Made::new(GilCell::new(State {
                attachment: Attachment::new(event_loop, sock, lent)?,
                family: socket_object::family(sock)?,
                protocol: Some(protocol.clone().unbind()),
                protocol_connected: true,
                address,
                has_peer,
                extra: extra.clone().unbind(),
                watched: None,
                read_context: None,
                write_context: None,
                started: false,
                start_turn: 0,
                blocked: false,
                lost: 0,
                buffer: VecDeque::new(),
                buffer_size: 0,
                header_size,
                sends_empty,
                forgets_size,
                undelivered: VecDeque::new(),
                queued: false,
                delivering: false,
                reported: false,
                second_look: SecondLook::default(),
                addresses: AddressCache::default(),
            })),
        })
    }

    /// Enters the transport as the one that has its descriptor.
    fn _enter(slf: &Bound<'_, Self>) -> PyResult<()> {
        let event_loop = endpoint::event_loop(slf.get(), slf.py())?;
        endpoint::enter(slf, event_loop.get());
        Ok(())
    }

    /// Begins to deliver datagrams, in a copy of the current context; not while paused or closing.
    fn _start_reading(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        if !ask(slf.as_any(), intern!(py, "is_reading"))? {
            return Ok(());
        }
        let event_loop = endpoint::event_loop(this, py)?;
        event_loop.get().check_closed(py)?;
        let context = copy_context(py)?;
        let (previous, more) = {
            let mut state = this.state.get_mut(py);
            state.started = true;
            state.start_turn = event_loop.get().turn();
            (
                state.read_context.replace(context),
                !state.undelivered.is_empty(),
            )
        };
        drop(previous);
        if more {
            queue_read(slf);
        }
        update_watch(slf)
    }

    /// Replaces the protocol; what arrives next goes to it.
    fn set_protocol(slf: &Bound<'_, Self>, protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        if endpoint::leave_to_loop(slf, intern!(py, "set_protocol"), [protocol])? {
            return Ok(());
        }
        let previous = {
            let mut state = slf.get().state.get_mut(py);
            state.protocol_connected = true;
            state.protocol.replace(protocol.clone().unbind())
        };
        drop(previous);
        Ok(())
    }

    fn get_protocol(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).protocol.clone_ref_opt(py)
    }

    /// True once the endpoint is closing or closed.
    fn is_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).attachment.closing
    }

    /// True while datagrams are delivered to the protocol.
    fn is_reading(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        Ok(!ask(slf.as_any(), intern!(py, "is_closing"))?
            && !slf.get().state.get(py).attachment.paused)
    }

    /// Stops or allows delivering; the caller starts it again.
    fn _set_paused(slf: &Bound<'_, Self>, paused: bool) -> PyResult<()> {
        slf.get().state.get_mut(slf.py()).attachment.paused = paused;
        if paused { update_watch(slf) } else { Ok(()) }
    }

    /// Sends a datagram, now if the socket takes it; otherwise it is buffered. Never blocks.
    #[pyo3(signature = (data, addr=None))]
    fn sendto(
        slf: &Bound<'_, Self>,
        data: &Bound<'_, PyAny>,
        addr: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (address, is_alive, sends_empty, elsewhere) = {
            let state = this.state.get(py);
            (
                state.address.clone_ref_opt(py),
                // What `connection_lost` sent and the socket had no room for stays, as in asyncio, and more joins it.
                (state.attachment.sock.is_some() || !state.buffer.is_empty())
                    && (state.lost == 0 || state.address.is_none()),
                state.sends_empty,
                state.attachment.elsewhere(py),
            )
        };
        if !buffers::is_bytes_like(data) || !is_alive {
            return refuse(slf, data, addr);
        }
        if !sends_empty && data.len()? == 0 {
            return Ok(());
        }
        let address = address.map(|it| it.into_bound(py));
        let target = match (&address, addr) {
            (Some(address), Some(addr)) if !addr.is(address) && !address.eq(addr)? => {
                return refuse(slf, data, Some(addr));
            }
            (Some(address), _) => Some(address),
            (None, addr) => addr,
        };
        if let Some(event_loop) = elsewhere {
            let data = buffers::unchanging(data)?;
            let none = py.None().into_bound(py);
            let arguments = [&data, addr.unwrap_or(&none)];
            return endpoint::post(event_loop.bind(py), slf, intern!(py, "sendto"), arguments);
        }
        if this.state.get(py).buffer.is_empty() {
            match transmit(slf, data, target) {
                Ok(true) => return Ok(()),
                Ok(false) => block(slf)?,
                Err(error) => return on_send_error(slf, error),
            }
        }
        enqueue(slf, data, target)
    }

    /// Does what asyncio's `_read_ready` does, for all that has arrived.
    fn _read_ready(slf: &Bound<'_, Self>) -> PyResult<()> {
        read_batch(slf)
    }

    /// Sends what is buffered, as far as the socket takes it.
    fn _sendto_ready(slf: &Bound<'_, Self>) -> PyResult<()> {
        flush(slf)
    }

    /// If another thread runs the loop: notes that the endpoint is closing, and returns the loop, whose thread is to do the
    /// rest. `after_the_rest` tells whether what was to be sent before is sent.
    fn _note_end(&self, py: Python<'_>, after_the_rest: bool) -> Option<Py<Loop>> {
        let mut state = self.state.get_mut(py);
        let event_loop = state.attachment.elsewhere(py)?;
        state.attachment.closes_later |= after_the_rest && !state.attachment.closing;
        state.attachment.closing = true;
        Some(event_loop)
    }

    /// Begins to close: nothing more is received. True if something is still to be sent, which delays the end, or if it has
    /// ended.
    fn _begin_close(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        let (undelivered, sending) = {
            let mut state = slf.get().state.get_mut(py);
            state.attachment.closing = true;
            state.attachment.closes_later = false;
            if state.lost != 0 {
                return Ok(true);
            }
            let sending = !state.buffer.is_empty();
            if !sending {
                state.lost += 1;
                state.blocked = false;
            }
            (std::mem::take(&mut state.undelivered), sending)
        };
        drop(undelivered);
        update_watch(slf)?;
        Ok(sending)
    }

    /// Ends at once: what is buffered is dropped. False if the connection had ended before.
    fn _begin_abort(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        let dropped = {
            let mut state = slf.get().state.get_mut(py);
            if state.lost != 0 {
                return Ok(false);
            }
            state.attachment.closing = true;
            state.lost += 1;
            state.blocked = false;
            if state.forgets_size && !state.buffer.is_empty() {
                state.buffer_size = 0;
            }
            (
                std::mem::take(&mut state.buffer),
                std::mem::take(&mut state.undelivered),
            )
        };
        drop(dropped);
        update_watch(slf)?;
        Ok(true)
    }

    /// Takes the endpoint off the loop for good. Returns the socket, which the caller closes next.
    fn _detach(slf: &Bound<'_, Self>) -> Option<Py<PyAny>> {
        let py = slf.py();
        let this = slf.get();
        this.let_go(py);
        let (sock, dropped) = {
            let mut state = this.state.get_mut(py);
            state.attachment.closing = true;
            (
                state.attachment.sock.take(),
                (state.attachment.event_loop.take(), state.take_rest()),
            )
        };
        drop(dropped);
        sock
    }

    /// Has the loop and the kernel forget the socket, before the caller closes it.
    fn _let_go(&self, py: Python<'_>) {
        self.let_go(py);
    }

    #[getter(_loop)]
    fn get_loop(&self, py: Python<'_>) -> Option<Py<Loop>> {
        self.state.get(py).attachment.event_loop(py)
    }

    #[getter(_sock)]
    fn get_sock(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).attachment.sock.clone_ref_opt(py)
    }

    #[getter(_sock_fd)]
    fn get_sock_fd(&self, py: Python<'_>) -> New<RawFd> {
        New(self.state.get(py).attachment.fd)
    }

    #[getter(_protocol)]
    fn get_protocol_slot(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).protocol.clone_ref_opt(py)
    }

    #[getter(_protocol_connected)]
    fn get_protocol_connected(&self, py: Python<'_>) -> bool {
        self.state.get(py).protocol_connected
    }

    #[getter(_address)]
    fn get_address(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).address.clone_ref_opt(py)
    }

    #[getter(_extra)]
    fn get_extra(&self, py: Python<'_>) -> Py<PyDict> {
        self.state.get(py).extra.clone_ref(py)
    }

    #[getter(_closing)]
    fn get_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).attachment.closing
    }

    #[getter(_paused)]
    fn get_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).attachment.paused
    }

    #[getter(_conn_lost)]
    fn get_conn_lost(&self, py: Python<'_>) -> New<i64> {
        New(self.state.get(py).lost)
    }

    #[setter(_conn_lost)]
    fn set_conn_lost(&self, py: Python<'_>, value: i64) {
        self.state.get_mut(py).lost = value;
    }

    /// A copy of what waits to be sent, as pairs of data and address.
    #[getter(_buffer)]
    fn get_buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let copy: Vec<Outgoing> = {
            let state = self.state.get(py);
            let pairs = state.buffer.iter();
            pairs
                .map(|(data, target)| (data.clone_ref(py), target.clone_ref_opt(py)))
                .collect()
        };
        objects::list(py, copy.into_iter().map(New))
    }

    /// Bytes that wait to be sent; with their headers, where the running Python counts these.
    fn get_write_buffer_size(&self, py: Python<'_>) -> New<usize> {
        New(self.state.get(py).buffer_size)
    }

    /// (reading, writing): what the transport waits for, for `repr`.
    fn _polling(&self, py: Python<'_>) -> New<(bool, bool)> {
        let state = self.state.get(py);
        New((
            state.started && state.attachment.is_reading(),
            state.blocked,
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        state.attachment.traverse(&visit)?;
        visit.call(&state.protocol)?;
        visit.call(&state.address)?;
        visit.call(&state.extra)?;
        visit.call(&state.read_context)?;
        visit.call(&state.write_context)?;
        for (_, target) in &state.buffer {
            visit.call(target)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        self.forget_watch(py);
        endpoint::detach(self, py);
        let dropped = {
            let mut state = self.state.get_mut(py);
            (
                state.attachment.event_loop.take(),
                state.attachment.sock.take(),
                state.address.take(),
                state.take_rest(),
                std::mem::take(&mut state.buffer),
            )
        };
        drop(dropped);
    }
}

impl Drop for DatagramTransport {
    fn drop(&mut self) {
        if Made::is_made(&self.state) {
            Python::attach(|py| endpoint::detach(self, py));
        }
    }
}

impl State {
    /// The events that the socket is to be watched for.
    fn wanted(&self) -> Option<(Interest, Mode)> {
        match (self.started && self.attachment.is_reading(), self.blocked) {
            (true, false) => Some((Interest::READ, Mode::Edge)),
            (true, true) => Some((Interest::READ | Interest::WRITE, Mode::Level)),
            (false, true) => Some((Interest::WRITE, Mode::Level)),
            (false, false) => None,
        }
    }

    /// Takes out what may run Python code when it is dropped. The caller drops it when nothing is borrowed.
    #[allow(clippy::type_complexity)]
    fn take_rest(&mut self) -> ([Option<Py<PyAny>>; 3], VecDeque<Incoming>, AddressCache) {
        (
            [
                self.protocol.take(),
                self.read_context.take(),
                self.write_context.take(),
            ],
            std::mem::take(&mut self.undelivered),
            std::mem::take(&mut self.addresses),
        )
    }
}

// SAFETY: no other type has this kind.
unsafe impl Transport for DatagramTransport {
    const KIND: TransportKind = TransportKind::Datagram;
}

impl Endpoint for DatagramTransport {
    #[inline]
    fn of<'a>(transport: &'a Bound<'_, Self>) -> &'a Self {
        transport.get()
    }

    #[inline]
    fn attachment<'a>(&'a self, py: Python<'a>) -> Exclusive<'a, Attachment> {
        Exclusive::map(self.state.get_mut(py), |state| &mut state.attachment)
    }
}

impl DatagramTransport {
    /// Forgets what the socket is watched for, before the watch ends.
    fn forget_watch(&self, py: Python<'_>) {
        let mut state = self.state.get_mut(py);
        state.watched = None;
        state.blocked = false;
    }

    /// Has the loop and the kernel forget the socket.
    fn let_go(&self, py: Python<'_>) {
        self.forget_watch(py);
        endpoint::let_go(self, py);
    }
}

/// Brings the watch in line with what the transport waits for. The loop keeps a watched transport alive.
fn update_watch(transport: &Bound<'_, DatagramTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let (wanted, watched, watch, event_loop) = {
        let state = this.state.get(py);
        let Some(event_loop) = state.attachment.event_loop(py) else {
            return Ok(());
        };
        (
            state.wanted(),
            state.watched,
            state.attachment.watch,
            event_loop,
        )
    };
    if wanted == watched {
        return Ok(());
    }
    let Some(told) = wanted else {
        this.forget_watch(py);
        endpoint::delist(this, py);
        return Ok(());
    };
    match watch {
        Some(watch) => watching::change_transport(py, event_loop.get(), watch, told)?,
        None => endpoint::list(transport, told)?,
    }
    this.state.get_mut(py).watched = wanted;
    Ok(())
}

/// Reads once more in the next turn.
fn queue_read(transport: &Bound<'_, DatagramTransport>) {
    let py = transport.py();
    let event_loop = {
        let mut state = transport.get().state.get_mut(py);
        let Some(event_loop) = state.attachment.event_loop(py) else {
            return;
        };
        if std::mem::replace(&mut state.queued, true) {
            return;
        }
        event_loop
    };
    endpoint::queue_ready(transport, event_loop.get(), Readiness::READABLE);
}

/// Serves what the socket reported. What the user's code raises goes to the loop's exception handler, save for what
/// ends the loop.
pub(crate) fn on_ready(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, DatagramTransport>,
    readiness: Readiness,
) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let (context, too_early) = {
        let mut state = this.state.get_mut(py);
        if readiness.readable {
            // Also while nothing is to be read: reading may go on before anything else arrives.
            state.queued = false;
        }
        let read =
            readiness.readable && state.started && state.attachment.is_reading() && state.lost == 0;
        let too_early = read && state.start_turn == event_loop.get().turn();
        let read = read && !too_early;
        let deliver = read && !state.delivering;
        state.reported |= read && !deliver;
        let context = deliver.then(|| state.read_context.clone_ref_opt(py));
        let context = context.flatten();
        state.delivering |= context.is_some();
        (context, too_early)
    };
    if too_early {
        // Reading was asked for in this turn: asyncio's selector would report the socket in the next.
        queue_read(transport);
    }
    if let Some(context) = context {
        let mut entered = false;
        let result = in_context(py, &context, || {
            entered = true;
            read_batch(transport)
        });
        let again = {
            let mut state = this.state.get_mut(py);
            state.delivering = false;
            let reported = std::mem::take(&mut state.reported);
            (reported || !entered) && state.attachment.is_reading()
        };
        if again {
            queue_read(transport);
        }
        let context = Some(context);
        report(event_loop, transport, "_read_ready", context, result)?;
    }
    let context = {
        let state = this.state.get(py);
        let write = readiness.writable && state.blocked;
        write
            .then(|| state.write_context.clone_ref_opt(py))
            .flatten()
    };
    if let Some(context) = context {
        let result = in_context(py, &context, || flush(transport));
        let context = Some(context);
        report(event_loop, transport, "_sendto_ready", context, result)?;
    }
    Ok(())
}

/// Calls `error_received`, as from an `except` block.
#[cold]
fn error_received(transport: &Bound<'_, DatagramTransport>, error: PyErr) -> PyResult<()> {
    let py = transport.py();
    let protocol = transport.get().state.get(py).protocol.clone_ref_opt(py);
    let Some(protocol) = protocol else {
        return Ok(());
    };
    let method = protocol.bind(py).getattr(intern!(py, "error_received"))?;
    support::call_handling(error, &method, |error| New((error,)))
}
