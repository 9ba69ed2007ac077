//! `SocketTransport`: the native half of a stream connection.
//!
//! It reads when the socket is ready, directly, and writes directly first. What happens once per connection (set-up,
//! `connection_lost`, reports, `repr`) is Python, in the subclass `ringloop._transports.SocketTransport`.
//!
//! The watch is edge-triggered and stands for the whole connection. So a transport remembers for itself whether its
//! socket may have more to read (`readable`), and comes back in a later turn while it may.

#![allow(unsafe_code)]

mod extra_info;
mod file_sending;
mod reading;
mod writing;

use std::collections::VecDeque;
use std::os::fd::RawFd;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyMemoryView, PyType};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::{Interest, Mode};

use crate::buffers::{self, Chunk, View};
use crate::event_loop::{Loop, Ready};
use crate::names::intern;
use crate::objects::{self, New};
use crate::receiver::Sink;
use crate::socket_object;
use crate::support::{self, CloneRefOption, GilCell, Made, ask, copy_context, in_context};
use crate::watches::{self, Entered, Readiness, TransportKind, Watch};

use self::extra_info::ExtraInfo;
use self::file_sending::FileSending;
use self::reading::read_once;
use self::writing::{
    begin_blocked_write, collect, count_lost_write, enqueue, fail, flush, maybe_pause_protocol,
    refuse_data, send_directly,
};

/// asyncio's default high-water mark, in bytes.
const HIGH_WATER_DEFAULT: usize = 64 * 1024;

/// What asyncio says of a write that failed.
const WRITE_ERROR: &str = "Fatal write error on socket transport";

/// The socket, and the future that waits for an empty buffer.
type Detached = (Option<Py<PyAny>>, Option<Py<PyAny>>);

/// How the protocol takes what arrives.
enum Receiver {
    /// `data_received(bytes)`.
    Data,
    /// `get_buffer()` and `buffer_updated(count)`.
    Buffered,
    /// Natively, without a Python call.
    Sink(Sink),
}

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
    protocol: Option<Py<PyAny>>,
    receiver: Receiver,
    protocol_connected: bool,
    server: Option<Py<PyAny>>,
    extra: ExtraInfo,
    /// The loop knows that this transport has the descriptor.
    entered: Option<Entered>,
    watch: Option<Watch>,
    /// The driver itself has watched the socket: before that is closed, the kernel must let go of it.
    was_held: bool,
    /// The context of all callbacks, from Python 3.15 on. Before, each takes a copy of the current one when it is scheduled.
    context: Option<Py<PyAny>>,
    /// The context that protocol callbacks for arriving data run in; taken when reading (re)starts.
    read_context: Option<Py<PyAny>>,
    /// The context for `resume_writing`; taken when writing blocks.
    write_context: Option<Py<PyAny>>,
    started: bool,
    paused: bool,
    closing: bool,
    /// `write_eof` was called.
    eof: bool,
    /// The peer's end of stream was delivered, and the protocol keeps the connection open.
    end_received: bool,
    /// The socket may have something to read.
    readable: bool,
    /// The protocol is being served with what arrived, or in the one context of all callbacks. It may make the loop turn
    /// meanwhile.
    delivering: bool,
    /// The socket reported meanwhile, and that context can't be entered twice.
    reported: bool,
    /// A short read doesn't mean that nothing is left: the peer has ended, the socket failed, or something came at which
    /// reads end (urgent data, descriptors). Until a read finds nothing.
    read_on: bool,
    /// A Unix stream, whose reads may end before what has arrived does.
    is_unix: bool,
    protocol_paused: bool,
    /// Above zero once `connection_lost` is scheduled; counts writes after that.
    lost: u32,
    buffer: VecDeque<Chunk>,
    buffer_len: usize,
    high_water: usize,
    low_water: usize,
    empty_waiter: Option<Py<PyAny>>,
    file: Option<FileSending>,
    /// Deliveries left for which received data is copied, because the protocol kept the last one.
    copies_left: u8,
}

#[pyclass(module = "ringloop._core", subclass, frozen, weakref)]
pub(crate) struct SocketTransport {
    state: Made<GilCell<State>>,
}

#[pymethods]
impl SocketTransport {
    #[new]
    #[pyo3(signature = (event_loop, sock, protocol, extra=None, context=None, lent=false))]
    fn new(
        event_loop: &Bound<'_, Loop>,
        sock: &Bound<'_, PyAny>,
        protocol: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyDict>>,
        context: Option<Py<PyAny>>,
        lent: bool,
    ) -> PyResult<Self> {
        let extra = ExtraInfo::new(sock, extra)?;
        Ok(Self {
            state: Made::new(GilCell::new(State {
                event_loop: Some(event_loop.clone().unbind()),
                fd: socket_object::number(sock)?,
                sock: Some(sock.clone().unbind()),
                lent,
                receiver: receiver_for(protocol)?,
                protocol: Some(protocol.clone().unbind()),
                protocol_connected: true,
                server: None,
                extra,
                entered: None,
                watch: None,
                was_held: false,
                context,
                read_context: None,
                write_context: None,
                started: false,
                paused: false,
                closing: false,
                eof: false,
                end_received: false,
                readable: false,
                delivering: false,
                reported: false,
                read_on: false,
                is_unix: socket_object::family(sock)? == libc::AF_UNIX,
                protocol_paused: false,
                lost: 0,
                buffer: VecDeque::new(),
                buffer_len: 0,
                high_water: HIGH_WATER_DEFAULT,
                low_water: HIGH_WATER_DEFAULT / 4,
                empty_waiter: None,
                file: None,
                copies_left: 1,
            })),
        })
    }

    /// Sets the connection up and queues its beginning: `connection_made`, then reading, then the waiter's wake.
    #[pyo3(signature = (waiter=None))]
    fn _begin(slf: &Bound<'_, Self>, waiter: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let (event_loop, sock, protocol) = {
            let state = this.state.get(py);
            let (Some(event_loop), Some(sock), Some(protocol)) =
                (&state.event_loop, &state.sock, &state.protocol)
            else {
                return Err(objects::error::<PyRuntimeError>(
                    py,
                    "the transport is closed",
                ));
            };
            (
                event_loop.clone_ref(py).into_bound(py),
                sock.clone_ref(py).into_bound(py),
                protocol.clone_ref(py).into_bound(py),
            )
        };
        let (fd, current) = {
            let state = this.state.get(py);
            (state.fd, state.descriptor(py))
        };
        if current < 0 {
            // The socket was closed by whoever made the protocol; asyncio says what that means.
            support::python(py)?
                .getattr(intern!(py, "set_nodelay"))?
                .call1((&sock,))?;
        }
        buffers::disable_nagle(current);
        let entered = event_loop
            .get()
            .watches
            .get_mut(py)
            .enter_transport(fd, slf.as_any());
        this.state.get_mut(py).entered = entered;
        let connection_made = protocol.getattr(intern!(py, "connection_made"))?;
        call_soon(slf, &event_loop, (connection_made, slf))?;
        take_read_context(slf)?;
        event_loop
            .get()
            .queue
            .get_mut(py)
            .ready
            .push_back(Ready::StartReading(slf.clone().unbind()));
        if let Some(waiter) = waiter {
            let wake = support::python(py)?.getattr(intern!(py, "wake_waiter"))?;
            call_soon(slf, &event_loop, (wake, waiter, py.None()))?;
        }
        Ok(())
    }

    /// Information on the connection: "socket", "sockname", "peername", or what the caller added.
    #[pyo3(signature = (name, default=None))]
    fn get_extra_info(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        default: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let found = extra_info::item(self, name)?;
        Ok(found.map_or_else(|| default.unwrap_or_else(|| py.None()), Bound::unbind))
    }

    /// Replaces the protocol; what arrives next goes to it.
    fn set_protocol(&self, py: Python<'_>, protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let receiver = receiver_for(protocol)?;
        let previous = {
            let mut state = self.state.get_mut(py);
            state.protocol_connected = true;
            (
                std::mem::replace(&mut state.receiver, receiver),
                state.protocol.replace(protocol.clone().unbind()),
            )
        };
        drop(previous);
        Ok(())
    }

    fn get_protocol(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let state = self.state.get(py);
        state.protocol.as_ref().map(|it| it.clone_ref(py))
    }

    /// True once the connection is closing or closed.
    fn is_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).closing
    }

    /// True while data is delivered to the protocol.
    fn is_reading(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        Ok(!ask(slf.as_any(), intern!(py, "is_closing"))? && !slf.get().state.get(py).paused)
    }

    /// Stops delivering data until `resume_reading`. Does nothing when paused or closing.
    fn pause_reading(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if !ask(slf.as_any(), intern!(py, "is_reading"))? {
            return Ok(());
        }
        slf.get().state.get_mut(py).paused = true;
        update_hold(slf);
        log_if_debug(slf, "%r pauses reading")
    }

    /// Delivers data again.
    fn resume_reading(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let (event_loop, watch, readable, is_current) = {
            let mut state = slf.get().state.get_mut(py);
            if state.closing || !state.paused {
                return Ok(());
            }
            state.paused = false;
            let is_current = state.fd == state.descriptor(py);
            let Some(event_loop) = state.event_loop.as_ref().map(|it| it.clone_ref(py)) else {
                return Ok(());
            };
            if state.end_received {
                // As asyncio: reading again finds the end again.
                state.end_received = false;
                state.readable = true;
            }
            (event_loop, state.watch, state.readable, is_current)
        };
        event_loop.get().check_closed(py)?;
        if let Some(watch) = watch
            && !is_current
        {
            // asyncio's transport would register the number again, and be told that it is closed.
            watches::check_alive(py, event_loop.get(), watch)?;
        }
        take_read_context(slf)?;
        if !slf.get().state.get(py).started {
            // Paused before reading had begun: it begins now.
            start_reading(slf)?;
        } else if watch.is_some() && readable {
            queue_read(slf, event_loop.get());
        }
        update_hold(slf);
        log_if_debug(slf, "%r resumes reading")
    }

    /// Sends data, now as far as the socket takes it; the rest is buffered. Never blocks.
    pub(crate) fn write(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        if !(data.is_instance_of::<PyBytes>()
            || data.is_instance_of::<PyByteArray>()
            || data.is_instance_of::<PyMemoryView>())
        {
            return Err(support::python(py)?
                .getattr(intern!(py, "write_type_error"))?
                .call1((data,))
                .map_or_else(|error| error, PyErr::from_value));
        }
        {
            let state = slf.get().state.get(py);
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
        if slf.get().state.get(py).lost > 0 {
            return count_lost_write(slf);
        }
        let outcome = if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            let left = send_directly(slf, bytes.as_bytes());
            left.map(|left| left.map(|sent| Chunk::rest_of(bytes, sent)))
        } else {
            let view = match View::new(data, ffi::PyBUF_SIMPLE) {
                Ok(view) => view,
                Err(error) => return refuse_data(slf, data, error),
            };
            let left = send_directly(slf, view.bytes());
            left.map(|left| left.map(|sent| Chunk::copy_of(&view.bytes()[sent..])))
        };
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(rest)) => enqueue(slf, rest),
            Err(error) => {
                let error = support::os_error(py, &error);
                fatal_error(slf, error, WRITE_ERROR)
            }
        }
    }

    /// Like `write` for each of several buffers, in as few system calls as possible.
    fn writelines(slf: &Bound<'_, Self>, list_of_data: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        if !support::python_is_at_least(12) {
            let all =
                objects::bytes(py, b"")?.call_method1(intern!(py, "join"), (list_of_data,))?;
            return slf.call_method1(intern!(py, "write"), (all,)).map(drop);
        }
        {
            let state = slf.get().state.get(py);
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
        if support::python_is_at_least(14) && slf.get().state.get(py).lost > 0 {
            return count_lost_write(slf);
        }
        let chunks = match collect(list_of_data)? {
            Ok(chunks) if chunks.is_empty() => return Ok(()),
            chunks => chunks,
        };
        if slf.get().state.get(py).lost > 0 {
            return count_lost_write(slf);
        }
        let mut chunks = match chunks {
            Ok(chunks) => chunks,
            Err(error) => return fail(slf, error),
        };
        let was_empty = {
            let mut state = slf.get().state.get_mut(py);
            let was_empty = state.buffer.is_empty();
            state.buffer_len += chunks.iter().map(Chunk::len).sum::<usize>();
            state.buffer.append(&mut chunks);
            was_empty
        };
        // Also what the kernel had no room for before: as asyncio, which tries whatever was reported.
        flush(slf)?;
        if slf.get().state.get(py).buffer.is_empty() {
            return Ok(());
        }
        if was_empty {
            begin_blocked_write(slf)?;
        }
        maybe_pause_protocol(slf)
    }

    /// Ends the sending side once everything buffered is sent; receiving goes on.
    fn write_eof(&self, py: Python<'_>) -> PyResult<()> {
        let fd = {
            let mut state = self.state.get_mut(py);
            if state.closing || state.eof {
                return Ok(());
            }
            state.eof = true;
            if !state.buffer.is_empty() {
                return Ok(());
            }
            state.descriptor(py)
        };
        buffers::shut_down_writing(fd).map_err(|error| support::os_error(py, &error))
    }

    fn can_write_eof(&self) -> bool {
        true
    }

    /// Closes the connection once everything buffered is sent; nothing more is received.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        {
            let mut state = slf.get().state.get_mut(py);
            if state.closing {
                return Ok(());
            }
            state.closing = true;
            if !state.buffer.is_empty() {
                return Ok(());
            }
            state.lost += 1;
        }
        schedule_connection_lost(slf, None)
    }

    /// Closes the connection at once; what is buffered is dropped.
    fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        slf.call_method1(intern!(py, "_force_close"), (py.None(),))
            .map(drop)
    }

    #[pyo3(signature = (exc))]
    fn _force_close(slf: &Bound<'_, Self>, exc: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let dropped = {
            let mut state = slf.get().state.get_mut(slf.py());
            if state.lost > 0 {
                return Ok(());
            }
            state.closing = true;
            state.lost += 1;
            state.buffer_len = 0;
            std::mem::take(&mut state.buffer)
        };
        drop(dropped);
        schedule_connection_lost(slf, exc)
    }

    /// Bytes that wait to be sent.
    fn get_write_buffer_size(&self, py: Python<'_>) -> New<usize> {
        New(self.state.get(py).buffer_len)
    }

    /// The (low, high) marks of flow control, in bytes.
    fn get_write_buffer_limits(&self, py: Python<'_>) -> New<(New<usize>, New<usize>)> {
        let state = self.state.get(py);
        New((New(state.low_water), New(state.high_water)))
    }

    /// Sets when `pause_writing` (above `high` bytes) and `resume_writing` (at `low` or below) are called.
    #[pyo3(signature = (high=None, low=None))]
    fn set_write_buffer_limits(
        slf: &Bound<'_, Self>,
        high: Option<Bound<'_, PyAny>>,
        low: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let (high_water, low_water) = support::python(py)?
            .getattr(intern!(py, "water_marks"))?
            .call1((high, low))?
            .extract()?;
        {
            let mut state = slf.get().state.get_mut(py);
            state.high_water = high_water;
            state.low_water = low_water;
        }
        maybe_pause_protocol(slf)
    }

    /// A future that is done when the write buffer is empty; writing is refused until `_reset_empty_waiter`.
    fn _make_empty_waiter(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let this = slf.get();
        if this.state.get(py).empty_waiter.is_some() {
            return Err(objects::error::<PyRuntimeError>(
                py,
                "Empty waiter is already set",
            ));
        }
        let event_loop = this.event_loop(py)?;
        let waiter = event_loop
            .bind(py)
            .call_method0(intern!(py, "create_future"))?;
        if this.state.get(py).buffer.is_empty() {
            waiter.call_method1(intern!(py, "set_result"), (py.None(),))?;
        }
        this.state.get_mut(py).empty_waiter = Some(waiter.clone().unbind());
        Ok(waiter.unbind())
    }

    fn _reset_empty_waiter(&self, py: Python<'_>) {
        let previous = self.state.get_mut(py).empty_waiter.take();
        drop(previous);
    }

    /// Sends a file by sendfile(2), from `offset` on, `count` bytes or all. Returns None if that was all, else a future
    /// that is done when it is. After that, or to give up, `_stop_sendfile` says how many bytes were sent.
    #[pyo3(signature = (file, offset, count))]
    fn _start_sendfile(
        slf: &Bound<'_, Self>,
        file: RawFd,
        offset: i64,
        count: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let count = count.map(support::to_ssize).transpose()?;
        let count = count.map(|count| usize::try_from(count).unwrap_or(0));
        file_sending::start(slf, file, offset, count)
    }

    fn _stop_sendfile(slf: &Bound<'_, Self>) -> New<usize> {
        New(file_sending::stop(slf))
    }

    /// Takes the connection off the loop for good; the caller closes the socket next. Returns (sock,
    /// `empty_waiter`).
    fn _detach(slf: &Bound<'_, Self>) -> New<Detached> {
        let py = slf.py();
        slf.get().let_go(py);
        let (dropped, result) = {
            let mut state = slf.get().state.get_mut(py);
            state.closing = true;
            state.buffer_len = 0;
            let dropped = (
                state.event_loop.take(),
                state.protocol.take(),
                std::mem::replace(&mut state.receiver, Receiver::Data),
                state.context.take(),
                state.read_context.take(),
                state.write_context.take(),
                std::mem::take(&mut state.buffer),
            );
            let sock = state.sock.take();
            if let Some(sock) = &sock {
                state.extra.keep_closed(sock.clone_ref(py));
            }
            let result = (sock, state.empty_waiter.clone_ref_opt(py));
            (dropped, result)
        };
        drop(dropped);
        New(result)
    }

    /// Has the loop and the kernel forget the socket, so that its peer hears at once when the caller closes it next.
    fn _let_go(&self, py: Python<'_>) {
        self.let_go(py);
    }

    #[getter(_loop)]
    fn get_loop(&self, py: Python<'_>) -> Option<Py<Loop>> {
        self.state
            .get(py)
            .event_loop
            .as_ref()
            .map(|it| it.clone_ref(py))
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

    #[getter(_server)]
    fn get_server(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).server.clone_ref_opt(py)
    }

    #[setter(_server)]
    fn set_server(&self, py: Python<'_>, server: Option<Py<PyAny>>) {
        let previous = std::mem::replace(&mut self.state.get_mut(py).server, server);
        drop(previous);
    }

    #[getter(_protocol_paused)]
    fn get_protocol_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).protocol_paused
    }

    #[getter(_extra)]
    fn get_extra(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        extra_info::dictionary(self, py)
    }

    #[getter(_closing)]
    fn get_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).closing
    }

    #[getter(_paused)]
    fn get_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).paused
    }

    #[getter(_eof)]
    fn get_eof(&self, py: Python<'_>) -> bool {
        self.state.get(py).eof
    }

    #[getter(_conn_lost)]
    fn get_conn_lost(&self, py: Python<'_>) -> New<u32> {
        New(self.state.get(py).lost)
    }

    /// (reading, writing): what the transport waits for, for `repr`.
    fn _polling(&self, py: Python<'_>) -> New<(bool, bool)> {
        let state = self.state.get(py);
        New((
            state.started && state.is_reading() && !state.end_received,
            state.is_sending(),
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.event_loop)?;
        visit.call(&state.sock)?;
        visit.call(&state.protocol)?;
        visit.call(&state.server)?;
        state.extra.traverse(&visit)?;
        visit.call(&state.context)?;
        visit.call(&state.read_context)?;
        visit.call(&state.write_context)?;
        visit.call(&state.empty_waiter)?;
        match &state.receiver {
            Receiver::Data | Receiver::Buffered => {}
            Receiver::Sink(sink) => sink.traverse(&visit)?,
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
                state.protocol.take(),
                state.server.take(),
                state.context.take(),
                state.read_context.take(),
                state.write_context.take(),
                state.empty_waiter.take(),
                std::mem::replace(&mut state.receiver, Receiver::Data),
                std::mem::take(&mut state.buffer),
            )
        };
        drop(dropped);
    }
}

impl Drop for SocketTransport {
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

    /// Whether something waits for room in the socket.
    fn is_sending(&self) -> bool {
        !self.buffer.is_empty() || self.file.as_ref().is_some_and(FileSending::is_under_way)
    }

    /// The descriptor that the socket has now: -1 once it is closed or detached. To be asked right before it is used.
    #[inline]
    fn descriptor(&self, py: Python<'_>) -> RawFd {
        self.sock.as_ref().map_or(-1, |sock| {
            socket_object::descriptor(sock.bind(py)).unwrap_or(self.fd)
        })
    }

    fn wants_data(&self) -> bool {
        self.started && self.is_reading() && self.lost == 0 && !self.end_received
    }
}

impl SocketTransport {
    /// Takes the transport off the loop's table of events.
    fn delist(&self, py: Python<'_>) {
        let (watch, event_loop) = {
            let mut state = self.state.get_mut(py);
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
            state
                .was_held
                .then(|| state.event_loop.clone_ref_opt(py))
                .flatten()
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
        self.state
            .get(py)
            .event_loop
            .as_ref()
            .map(|it| it.clone_ref(py))
            .ok_or_else(|| objects::error::<PyRuntimeError>(py, "the transport is closed"))
    }
}

/// The context of a callback that is scheduled now: the transport's, where it has one for all.
fn context_for(transport: &Bound<'_, SocketTransport>) -> PyResult<Py<PyAny>> {
    let py = transport.py();
    let own = transport.get().state.get(py).context.clone_ref_opt(py);
    own.map_or_else(|| copy_context(py), Ok)
}

/// `loop.call_soon(*arguments)`, in the transport's context where it has one for all.
fn call_soon<'py>(
    transport: &Bound<'py, SocketTransport>,
    event_loop: &Bound<'py, Loop>,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<()> {
    let py = transport.py();
    let context = transport.get().state.get(py).context.clone_ref_opt(py);
    let options = match context {
        Some(context) => {
            let options = objects::dict(py)?;
            options.set_item(intern!(py, "context"), context)?;
            Some(options)
        }
        None => None,
    };
    event_loop
        .call_method(intern!(py, "call_soon"), arguments, options.as_ref())
        .map(drop)
}

fn receiver_for(protocol: &Bound<'_, PyAny>) -> PyResult<Receiver> {
    static BUFFERED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = protocol.py();
    if let Some(sink) = Sink::for_protocol(protocol)? {
        return Ok(Receiver::Sink(sink));
    }
    let buffered = support::class(py, &BUFFERED, "asyncio.protocols", "BufferedProtocol")?;
    Ok(if protocol.is_instance(buffered)? {
        Receiver::Buffered
    } else {
        Receiver::Data
    })
}

/// Takes the context that arriving data is delivered in, where reading is asked for; it begins later.
pub(crate) fn take_read_context(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let context = context_for(transport)?;
    let previous = transport
        .get()
        .state
        .get_mut(py)
        .read_context
        .replace(context);
    drop(previous);
    Ok(())
}

/// Begins to read, in the turn after that in which it was asked for. What fails goes to the loop's exception handler.
pub(crate) fn on_start(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, SocketTransport>,
) -> PyResult<()> {
    let result = start_reading(transport);
    let context = {
        let state = transport.get().state.get(transport.py());
        state.read_context.clone_ref_opt(transport.py())
    };
    report(
        event_loop,
        transport.as_any(),
        "_add_reader",
        context,
        result,
    )
}

/// Begins to watch the socket, after `connection_made` (or earlier, when a write blocks before that).
fn start_reading(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    if !ask(transport.as_any(), intern!(py, "is_reading"))? {
        return Ok(());
    }
    {
        let mut state = this.state.get_mut(py);
        if state.event_loop.is_none() {
            return Ok(());
        }
        state.started = true;
    }
    list(transport)?;
    if this.state.get(py).readable {
        queue_read(transport, this.event_loop(py)?.get());
    }
    update_hold(transport);
    Ok(())
}

/// Enters the transport in the loop's table, once.
fn list(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let (event_loop, fd, current, lent) = {
        let state = this.state.get(py);
        let Some(event_loop) = state.event_loop.as_ref() else {
            return Ok(());
        };
        if state.watch.is_some() {
            return Ok(());
        }
        (
            event_loop.clone_ref(py),
            state.fd,
            state.descriptor(py),
            state.lent,
        )
    };
    watches::check_current(py, fd, current)?;
    let watch = watches::list_transport(
        event_loop.get(),
        transport.as_any(),
        TransportKind::Stream,
        (fd, lent),
        (
            Interest::READ | Interest::WRITE | Interest::PRIORITY,
            Mode::Edge,
        ),
    )?;
    let mut state = this.state.get_mut(py);
    state.watch = Some(watch);
    state.was_held |= matches!(watch, Watch::Held(_));
    Ok(())
}

/// The loop keeps the transport alive while it reads or has something to send.
fn update_hold(transport: &Bound<'_, SocketTransport>) {
    let py = transport.py();
    let (watch, event_loop, hold) = {
        let state = transport.get().state.get(py);
        let hold = (state.is_reading() && !state.end_received) || state.is_sending();
        (
            state.watch,
            state.event_loop.as_ref().map(|it| it.clone_ref(py)),
            hold,
        )
    };
    if let (Some(watch), Some(event_loop)) = (watch, event_loop) {
        watches::hold_transport(py, event_loop.get(), watch, hold);
    }
}

/// Reads once more in the next turn.
fn queue_read(transport: &Bound<'_, SocketTransport>, event_loop: &Loop) {
    let readiness = Readiness {
        readable: true,
        writable: false,
        read_on: false,
    };
    queue_ready(transport, event_loop, readiness);
}

/// Serves the transport in the next turn, as if its socket had reported.
fn queue_ready(transport: &Bound<'_, SocketTransport>, event_loop: &Loop, readiness: Readiness) {
    event_loop
        .queue
        .get_mut(transport.py())
        .arrived
        .push(Ready::Transport(transport.clone().unbind(), readiness));
}

/// Serves what the socket reported. What the user's code raises goes to the loop's exception handler, save for what ends
/// the loop.
pub(crate) fn on_ready(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, SocketTransport>,
    readiness: Readiness,
) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let context = {
        let mut state = this.state.get_mut(py);
        state.readable |= readiness.readable;
        state.read_on |= readiness.read_on;
        if state.delivering && state.context.is_some() {
            state.reported = true;
            return Ok(());
        }
        let read = state.readable && state.wants_data() && !state.delivering;
        let context = read.then(|| state.read_context.clone_ref_opt(py)).flatten();
        state.delivering |= context.is_some();
        context
    };
    if let Some(context) = context {
        let result = in_context(py, &context, || read_once(transport));
        let (again, come_back) = {
            let mut state = this.state.get_mut(py);
            state.delivering = false;
            let reported = std::mem::take(&mut state.reported);
            // The kernel reports arrivals, not remains: come back for those, and for what is left undone by an error.
            let again = Readiness {
                readable: state.readable && state.wants_data(),
                writable: reported || (readiness.writable && result.is_err()),
                read_on: false,
            };
            let come_back = (again.readable || again.writable) && state.event_loop.is_some();
            (again, come_back)
        };
        if come_back {
            queue_ready(transport, event_loop.get(), again);
        }
        if result.is_err() {
            let context = Some(context);
            return report(
                event_loop,
                transport.as_any(),
                "_read_ready",
                context,
                result,
            );
        }
    }
    if readiness.writable {
        let (context, has_one_context) = {
            let mut state = this.state.get_mut(py);
            if state.lost > 0 {
                return Ok(());
            }
            if state.buffer.is_empty() {
                drop(state);
                let result = file_sending::step(transport);
                return report(event_loop, transport.as_any(), "_write_ready", None, result);
            }
            let has_one_context = state.context.is_some();
            state.delivering |= has_one_context;
            (state.write_context.clone_ref_opt(py), has_one_context)
        };
        let result = match &context {
            Some(context) => in_context(py, context, || flush(transport)),
            None => flush(transport),
        };
        let (again, come_back) = {
            let mut state = this.state.get_mut(py);
            let reported = has_one_context && std::mem::take(&mut state.reported);
            state.delivering &= !has_one_context;
            // The edge is spent; an error that left something to send, such as that of a nested turn, must not end it.
            let again = Readiness {
                readable: reported && state.readable,
                writable: reported || (result.is_err() && state.is_sending() && state.lost == 0),
                read_on: false,
            };
            (again, again.writable && state.event_loop.is_some())
        };
        if come_back {
            queue_ready(transport, event_loop.get(), again);
        }
        return report(
            event_loop,
            transport.as_any(),
            "_write_ready",
            context,
            result,
        );
    }
    Ok(())
}

/// Tells the loop's exception handler what left a transport's step, as asyncio does with what leaves the callback that
/// has this name there, and ran in `context`.
pub(crate) fn report(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, PyAny>,
    callback: &str,
    context: Option<Py<PyAny>>,
    result: PyResult<()>,
) -> PyResult<()> {
    let py = event_loop.py();
    match result {
        Err(error) if !support::ends_the_loop(py, &error) => support::python(py)?
            .getattr(intern!(py, "report_transport_error"))?
            .call1((event_loop, transport, callback, context, error.value(py)))
            .map(drop),
        other => other,
    }
}

#[cold]
fn fatal_error(
    transport: &Bound<'_, SocketTransport>,
    error: PyErr,
    message: &str,
) -> PyResult<()> {
    let method = transport.getattr(intern!(transport.py(), "_fatal_error"))?;
    support::call_handling(error, &method, |error| New((error, New(message))))
}

/// `connection_lost` comes in the next turn; the socket is no longer watched.
fn schedule_connection_lost(
    transport: &Bound<'_, SocketTransport>,
    exception: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = transport.py();
    transport.get().delist(py);
    let event_loop = transport.get().event_loop(py)?;
    let callback = transport.getattr(intern!(py, "_call_connection_lost"))?;
    call_soon(transport, event_loop.bind(py), (callback, exception))
}

fn log_if_debug(transport: &Bound<'_, SocketTransport>, text: &str) -> PyResult<()> {
    let py = transport.py();
    let debug = {
        let state = transport.get().state.get(py);
        state
            .event_loop
            .as_ref()
            .is_some_and(|it| it.get().is_debug())
    };
    if debug {
        support::python(py)?
            .getattr(intern!(py, "logger"))?
            .call_method1(intern!(py, "debug"), (New(text), transport))?;
    }
    Ok(())
}
