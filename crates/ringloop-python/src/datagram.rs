//! `DatagramTransport`: the native half of a datagram endpoint (UDP, and Unix datagrams).
//!
//! It receives in batches when the socket is ready, and sends directly first. What happens once per endpoint, and what
//! goes wrong, is Python, in the subclass `ringloop._datagrams.DatagramTransport`, mostly asyncio's own code.
//!
//! While nothing waits to be sent, the watch is for reading only and edge-triggered. A blocked socket is watched
//! level-triggered for both: a Unix socket tells by no edge that the queue of the peer it wants to reach has room.

#![allow(unsafe_code)]

mod batch;
mod receiving;
mod sending;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyMemoryView};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::{Interest, Mode};

use crate::addresses::AddressCache;
use crate::event_loop::{Loop, Ready};
use crate::names::intern;
use crate::objects::{self, New};
use crate::socket_object;
use crate::support::{self, CloneRefOption, GilCell, Made, ask, copy_context, in_context};
use crate::transport::report;
use crate::watches::{self, Entered, Readiness, TransportKind, Watch};

pub(crate) use self::batch::Batch;
use self::receiving::{SecondLook, read_batch};
use self::sending::{block, enqueue, flush, on_send_error, refuse, transmit};

/// A datagram that waits to be sent, and to whom.
type Outgoing = (Py<PyBytes>, Option<Py<PyAny>>);
/// A datagram that was received but not delivered yet, and from whom.
type Incoming = (Py<PyAny>, Py<PyAny>);

/// The flags are asyncio's, each with its own life.
#[allow(clippy::struct_excessive_bools)]
struct State {
    event_loop: Option<Py<Loop>>,
    sock: Option<Py<PyAny>>,
    /// The descriptor that the socket had at the beginning, which the loop knows the transport by. What the socket has now
    /// is for `State::descriptor` to say.
    fd: RawFd,
    /// The socket was handed in, and whoever did so may close it at any time.
    lent: bool,
    family: c_int,
    protocol: Option<Py<PyAny>>,
    protocol_connected: bool,
    /// The one address that `sendto` accepts, where the endpoint was made with a remote address.
    address: Option<Py<PyAny>>,
    /// The socket knows its peer: no address goes with what is sent.
    has_peer: bool,
    extra: Py<PyDict>,
    /// The loop knows that this transport has the descriptor.
    entered: Option<Entered>,
    watch: Option<Watch>,
    /// The driver itself has watched the socket: before that is closed, the kernel must let go of it.
    was_held: bool,
    /// What `watch` waits for.
    watched: Option<(Interest, Mode)>,
    /// The context that datagrams are delivered in; taken when reading (re)starts.
    read_context: Option<Py<PyAny>>,
    /// The context for what happens when the socket has room again; taken when sending blocks.
    write_context: Option<Py<PyAny>>,
    started: bool,
    paused: bool,
    closing: bool,
    /// Waiting for room to send.
    blocked: bool,
    /// Above zero once `connection_lost` is scheduled; counts what is sent after that.
    lost: i64,
    buffer: VecDeque<Outgoing>,
    buffer_size: usize,
    /// What each datagram counts in the buffer besides its content.
    header_size: usize,
    sends_empty: bool,
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
    /// `header_size` is what each datagram counts in the write buffer besides its content; `sends_empty` tells whether
    /// `sendto` sends datagrams without content, or drops them. Both depend on the Python version. A `lent` socket was
    /// handed in by the user.
    #[new]
    #[pyo3(signature = (event_loop, sock, protocol, address, extra, header_size, sends_empty, lent=false))]
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
                event_loop: Some(event_loop.clone().unbind()),
                fd: socket_object::number(sock)?,
                lent,
                family: socket_object::family(sock)?,
                sock: Some(sock.clone().unbind()),
                protocol: Some(protocol.clone().unbind()),
                protocol_connected: true,
                address,
                has_peer,
                extra: extra.clone().unbind(),
                entered: None,
                watch: None,
                was_held: false,
                watched: None,
                read_context: None,
                write_context: None,
                started: false,
                paused: false,
                closing: false,
                blocked: false,
                lost: 0,
                buffer: VecDeque::new(),
                buffer_size: 0,
                header_size,
                sends_empty,
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
        let py = slf.py();
        let event_loop = slf.get().event_loop(py)?;
        let fd = slf.get().state.get(py).fd;
        let entered = event_loop
            .get()
            .watches
            .get_mut(py)
            .enter_transport(fd, slf.as_any());
        slf.get().state.get_mut(py).entered = entered;
        Ok(())
    }

    /// Begins to deliver datagrams, in a copy of the current context; not while paused or closing.
    fn _start_reading(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        if !ask(slf.as_any(), intern!(py, "is_reading"))? {
            return Ok(());
        }
        this.event_loop(py)?.get().check_closed(py)?;
        let context = copy_context(py)?;
        let (previous, more) = {
            let mut state = this.state.get_mut(py);
            state.started = true;
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
    fn set_protocol(&self, py: Python<'_>, protocol: Py<PyAny>) {
        let previous = {
            let mut state = self.state.get_mut(py);
            state.protocol_connected = true;
            state.protocol.replace(protocol)
        };
        drop(previous);
    }

    fn get_protocol(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).protocol.clone_ref_opt(py)
    }

    /// True once the endpoint is closing or closed.
    fn is_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).closing
    }

    /// True while datagrams are delivered to the protocol.
    fn is_reading(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        Ok(!ask(slf.as_any(), intern!(py, "is_closing"))? && !slf.get().state.get(py).paused)
    }

    /// Stops or allows delivering; the caller starts it again.
    fn _set_paused(slf: &Bound<'_, Self>, paused: bool) -> PyResult<()> {
        slf.get().state.get_mut(slf.py()).paused = paused;
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
        let is_bytes = data.is_exact_instance_of::<PyBytes>();
        let has_data_type = is_bytes
            || data.is_instance_of::<PyBytes>()
            || data.is_instance_of::<PyByteArray>()
            || data.is_instance_of::<PyMemoryView>();
        let (address, is_alive, sends_empty) = {
            let state = this.state.get(py);
            (
                state.address.clone_ref_opt(py),
                state.sock.is_some() && (state.lost == 0 || state.address.is_none()),
                state.sends_empty,
            )
        };
        if !has_data_type || !is_alive {
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
        if this.state.get(py).buffer.is_empty() {
            match transmit(slf, data, target) {
                Ok(true) => return Ok(()),
                Ok(false) => block(slf)?,
                Err(error) => return on_send_error(slf, error),
            }
        }
        enqueue(slf, data, target)
    }

    /// What asyncio's `_read_ready` does, for all that has arrived.
    fn _read_ready(slf: &Bound<'_, Self>) -> PyResult<()> {
        read_batch(slf)
    }

    /// Sends what is buffered, as far as the socket takes it.
    fn _sendto_ready(slf: &Bound<'_, Self>) -> PyResult<()> {
        flush(slf)
    }

    /// Begins to close: nothing more is received. True if something is still to be sent, so that the connection goes
    /// on until then.
    fn _begin_close(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        let (undelivered, sending) = {
            let mut state = slf.get().state.get_mut(py);
            state.closing = true;
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
            state.closing = true;
            state.lost += 1;
            state.blocked = false;
            (
                std::mem::take(&mut state.buffer),
                std::mem::take(&mut state.undelivered),
            )
        };
        drop(dropped);
        update_watch(slf)?;
        Ok(true)
    }

    /// Takes the endpoint off the loop for good; the caller closes the socket next, which this returns.
    fn _detach(slf: &Bound<'_, Self>) -> Option<Py<PyAny>> {
        let py = slf.py();
        let this = slf.get();
        this.let_go(py);
        let (sock, dropped) = {
            let mut state = this.state.get_mut(py);
            state.closing = true;
            (
                state.sock.take(),
                (state.event_loop.take(), state.take_rest()),
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
        let state = self.state.get(py);
        state.event_loop.as_ref().map(|it| it.clone_ref(py))
    }

    #[getter(_sock)]
    fn get_sock(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).sock.clone_ref_opt(py)
    }

    #[getter(_sock_fd)]
    fn get_sock_fd(&self, py: Python<'_>) -> New<RawFd> {
        New(self.state.get(py).fd)
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
        self.state.get(py).closing
    }

    #[getter(_paused)]
    fn get_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).paused
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
        New((state.started && state.is_reading(), state.blocked))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.event_loop)?;
        visit.call(&state.sock)?;
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

    fn __clear__(slf: &Bound<'_, Self>) {
        let py = slf.py();
        slf.get().delist(py);
        slf.get().leave(py);
        let dropped = {
            let mut state = slf.get().state.get_mut(py);
            (
                state.event_loop.take(),
                state.sock.take(),
                state.address.take(),
                state.take_rest(),
            )
        };
        drop(dropped);
    }
}

impl Drop for DatagramTransport {
    fn drop(&mut self) {
        if !Made::is_made(&self.state) {
            return;
        }
        Python::attach(|py| {
            self.leave(py);
            self.delist(py);
        });
    }
}

impl State {
    fn is_reading(&self) -> bool {
        !self.closing && !self.paused
    }

    /// The descriptor that the socket has now: -1 once it is closed or detached. To be asked right before it is used.
    #[inline]
    fn descriptor(&self, py: Python<'_>) -> RawFd {
        self.sock.as_ref().map_or(-1, |sock| {
            socket_object::descriptor(sock.bind(py)).unwrap_or(self.fd)
        })
    }

    /// What the socket is to be watched for.
    fn wanted(&self) -> Option<(Interest, Mode)> {
        match (self.started && self.is_reading(), self.blocked) {
            (true, false) => Some((Interest::READ, Mode::Edge)),
            (true, true) => Some((Interest::READ | Interest::WRITE, Mode::Level)),
            (false, true) => Some((Interest::WRITE, Mode::Level)),
            (false, false) => None,
        }
    }

    /// What refers to others' objects, to be dropped when nothing is borrowed.
    #[allow(clippy::type_complexity)]
    fn take_rest(
        &mut self,
    ) -> (
        [Option<Py<PyAny>>; 3],
        VecDeque<Outgoing>,
        VecDeque<Incoming>,
        AddressCache,
    ) {
        (
            [
                self.protocol.take(),
                self.read_context.take(),
                self.write_context.take(),
            ],
            std::mem::take(&mut self.buffer),
            std::mem::take(&mut self.undelivered),
            std::mem::take(&mut self.addresses),
        )
    }
}

impl DatagramTransport {
    /// Takes the transport off the loop's table of events.
    fn delist(&self, py: Python<'_>) {
        let (watch, event_loop) = {
            let mut state = self.state.get_mut(py);
            state.watched = None;
            state.blocked = false;
            (state.watch.take(), state.event_loop.clone_ref_opt(py))
        };
        if let (Some(watch), Some(event_loop)) = (watch, event_loop) {
            watches::delist_transport(py, event_loop.get(), watch);
        }
    }

    /// Has the loop and the kernel forget the socket.
    fn let_go(&self, py: Python<'_>) {
        self.delist(py);
        self.leave(py);
        let event_loop = {
            let state = self.state.get(py);
            let event_loop = state.was_held.then_some(state.event_loop.as_ref());
            event_loop.flatten().map(|it| it.clone_ref(py))
        };
        if let Some(event_loop) = event_loop {
            // Where that fails, it does so at the next turn; the socket must be closed all the same.
            drop(watches::flush(py, event_loop.get()));
        }
    }

    /// Frees the descriptor's number for other uses of the loop.
    fn leave(&self, py: Python<'_>) {
        let (entered, event_loop, fd) = {
            let mut state = self.state.get_mut(py);
            let event_loop = state.event_loop.clone_ref_opt(py);
            (state.entered.take(), event_loop, state.fd)
        };
        if let (Some(entered), Some(event_loop)) = (entered, event_loop) {
            let mut watches = event_loop.get().watches.get_mut(py);
            watches.leave_transport(fd, entered);
        }
    }

    fn event_loop(&self, py: Python<'_>) -> PyResult<Py<Loop>> {
        let state = self.state.get(py);
        let event_loop = state.event_loop.as_ref().map(|it| it.clone_ref(py));
        drop(state);
        event_loop.ok_or_else(|| objects::error::<PyRuntimeError>(py, "the transport is closed"))
    }
}

/// Brings the watch in line with what the transport waits for. The loop keeps a watched transport alive.
fn update_watch(transport: &Bound<'_, DatagramTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let (wanted, watched, watch, (fd, current, lent), event_loop) = {
        let state = this.state.get(py);
        let Some(event_loop) = state.event_loop.as_ref() else {
            return Ok(());
        };
        (
            state.wanted(),
            state.watched,
            state.watch,
            (state.fd, state.descriptor(py), state.lent),
            event_loop.clone_ref(py),
        )
    };
    if wanted == watched {
        return Ok(());
    }
    let Some((interest, mode)) = wanted else {
        this.delist(py);
        return Ok(());
    };
    let this_loop = event_loop.get();
    let watch = if let Some(watch) = watch {
        watches::change_transport(py, this_loop, watch, (interest, mode))?;
        watch
    } else {
        watches::check_current(py, fd, current)?;
        watches::list_transport(
            this_loop,
            transport.as_any(),
            TransportKind::Datagram,
            (fd, lent),
            (interest, mode),
        )?
    };
    let mut state = this.state.get_mut(py);
    state.watch = Some(watch);
    state.was_held |= matches!(watch, Watch::Held(_));
    state.watched = wanted;
    Ok(())
}

/// Reads once more in the next turn.
fn queue_read(transport: &Bound<'_, DatagramTransport>) {
    let py = transport.py();
    let event_loop = {
        let mut state = transport.get().state.get_mut(py);
        let Some(event_loop) = state.event_loop.as_ref().map(|it| it.clone_ref(py)) else {
            return;
        };
        if std::mem::replace(&mut state.queued, true) {
            return;
        }
        event_loop
    };
    let readiness = Readiness {
        readable: true,
        writable: false,
        read_on: false,
    };
    event_loop
        .get()
        .queue
        .get_mut(py)
        .arrived
        .push(Ready::Datagrams(transport.clone().unbind(), readiness));
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
    let context = {
        let mut state = this.state.get_mut(py);
        let read = readiness.readable && state.started && state.is_reading() && state.lost == 0;
        if read {
            state.queued = false;
        }
        let deliver = read && !state.delivering;
        state.reported |= read && !deliver;
        let context = deliver.then(|| state.read_context.clone_ref_opt(py));
        let context = context.flatten();
        state.delivering |= context.is_some();
        context
    };
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
            (reported || !entered) && state.is_reading()
        };
        if again {
            queue_read(transport);
        }
        let context = Some(context);
        report(
            event_loop,
            transport.as_any(),
            "_read_ready",
            context,
            result,
        )?;
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
        report(
            event_loop,
            transport.as_any(),
            "_sendto_ready",
            context,
            result,
        )?;
    }
    Ok(())
}

/// Tells the protocol of an error, which is being handled meanwhile.
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
