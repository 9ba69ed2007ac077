//! `SocketTransport`: the native half of a stream connection.
//!
//! It reads when the socket is ready, directly, and writes directly first. What happens once per connection (set-up,
//! `connection_lost`, reports, `repr`) is Python, in the subclass `ringloop._transports.SocketTransport`.
//!
//! The watch is edge-triggered and stands for the whole connection. So a transport remembers for itself whether its
//! socket may have more to read (`readable`), and comes back in a later turn while it may.

#![allow(unsafe_code)]

mod accepting;
mod closing;
mod connecting;
mod extra_info;
mod file_sending;
mod flow_control;
mod readiness;
mod reading;
mod state;
mod writing;

use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use self::accepting::AcceptedConnection;
use self::extra_info::ExtraInfo;
use self::state::{State, way_to};
use crate::cell::{Exclusive, GilCell};
use crate::endpoint::{self, Attachment, Endpoint};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::New;
use crate::queue::{Transport, TransportKind};
use crate::socket_object;
use crate::support::{self, CloneRefOption, Made, ask};
use crate::waiter;

pub(crate) use self::accepting::accept;
pub(crate) use self::connecting::connect;
pub(crate) use self::readiness::{on_ready, on_start};

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
        extra: Option<&Bound<'_, PyAny>>,
        context: Option<Py<PyAny>>,
        lent: bool,
    ) -> PyResult<Self> {
        let extra = match extra.map(|it| it.cast::<AcceptedConnection>()) {
            Some(Ok(accepted)) => ExtraInfo::of_accepted(sock, accepted.get().peer())?,
            _ => match extra.and_then(connecting::address) {
                Some(address) => ExtraInfo::of_connected(sock, &address)?,
                None => ExtraInfo::new(sock, extra.map(|it| it.cast()).transpose()?)?,
            },
        };
        let attachment = Attachment::new(event_loop, sock, lent)?;
        let is_unix = socket_object::family(sock)? == libc::AF_UNIX;
        let state = State::new(attachment, protocol, extra, context, is_unix)?;
        Ok(Self {
            state: Made::new(GilCell::new(state)),
        })
    }

    /// Sets the connection up and queues its beginning: `connection_made`, then reading, then the waiter's wake.
    #[pyo3(signature = (waiter=None))]
    fn _begin(slf: &Bound<'_, Self>, waiter: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let event_loop = endpoint::event_loop(slf.get(), slf.py())?;
        let is_plain = waiter::is_plain(event_loop.bind(slf.py()).as_any())?;
        readiness::begin(slf, is_plain)?;
        match waiter {
            Some(waiter) => readiness::wake_soon(slf, waiter, is_plain),
            None => Ok(()),
        }
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
    fn set_protocol(slf: &Bound<'_, Self>, protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let (sink, is_buffered) = way_to(protocol)?;
        if endpoint::leave_to_loop(slf, intern!(py, "set_protocol"), [protocol])? {
            return Ok(());
        }
        let previous = {
            let mut state = slf.get().state.get_mut(py);
            state.protocol_connected = true;
            state.is_buffered = is_buffered;
            (
                std::mem::replace(&mut state.sink, sink),
                state.protocol.replace(protocol.clone().unbind()),
            )
        };
        drop(previous);
        Ok(())
    }

    fn get_protocol(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).protocol.clone_ref_opt(py)
    }

    /// True once the connection is closing or closed.
    fn is_closing(&self, py: Python<'_>) -> bool {
        self.state.get(py).attachment.closing
    }

    /// True while data is delivered to the protocol.
    fn is_reading(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        Ok(!ask(slf.as_any(), intern!(py, "is_closing"))?
            && !slf.get().state.get(py).attachment.paused)
    }

    /// Stops delivering data until `resume_reading`. Does nothing when paused or closing.
    fn pause_reading(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if endpoint::leave_to_loop(slf, intern!(py, "pause_reading"), [])?
            || !ask(slf.as_any(), intern!(py, "is_reading"))?
        {
            return Ok(());
        }
        slf.get().state.get_mut(py).attachment.paused = true;
        readiness::update_hold(slf);
        log_if_debug(slf, "%r pauses reading")
    }

    /// Delivers data again.
    fn resume_reading(slf: &Bound<'_, Self>) -> PyResult<()> {
        if !endpoint::leave_to_loop(slf, intern!(slf.py(), "resume_reading"), [])?
            && readiness::resume(slf)?
        {
            log_if_debug(slf, "%r resumes reading")?;
        }
        Ok(())
    }

    /// Sends data, now as far as the socket takes it; the rest is buffered. Never blocks.
    fn write(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        writing::write(slf, data)
    }

    /// Like `write` for each of several buffers, in as few system calls as possible.
    fn writelines(slf: &Bound<'_, Self>, list_of_data: &Bound<'_, PyAny>) -> PyResult<()> {
        writing::write_lines(slf, list_of_data)
    }

    /// Ends the sending side once everything buffered is sent; receiving goes on.
    fn write_eof(slf: &Bound<'_, Self>) -> PyResult<()> {
        if endpoint::leave_to_loop(slf, intern!(slf.py(), "write_eof"), [])? {
            return Ok(());
        }
        writing::write_eof(slf.get(), slf.py())
    }

    fn can_write_eof(&self) -> bool {
        true
    }

    /// Closes the connection once everything buffered is sent; nothing more is received.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        closing::close(slf)
    }

    /// Begins what another thread has asked for by `close`.
    fn _close_later(slf: &Bound<'_, Self>) -> PyResult<()> {
        closing::close_later(slf)
    }

    /// Closes the connection at once; what is buffered is dropped.
    fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        slf.call_method1(intern!(py, "_force_close"), (py.None(),))
            .map(drop)
    }

    #[pyo3(signature = (exc))]
    fn _force_close(slf: &Bound<'_, Self>, exc: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        closing::force_close(slf, exc)
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
        flow_control::set_limits(slf, high, low)
    }

    /// A future that is done when the write buffer is empty; writing is refused until `_reset_empty_waiter`.
    fn _make_empty_waiter(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        flow_control::make_empty_waiter(slf)
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

    /// Takes the connection off the loop for good, and closes its socket.
    fn _disconnect(slf: &Bound<'_, Self>) -> PyResult<()> {
        closing::disconnect(slf)
    }

    /// Has the loop and the kernel forget the socket, so that its peer hears at once when the caller closes it next.
    fn _let_go(&self, py: Python<'_>) {
        endpoint::let_go(self, py);
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
        self.state.get(py).attachment.closing
    }

    #[getter(_paused)]
    fn get_paused(&self, py: Python<'_>) -> bool {
        self.state.get(py).attachment.paused
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
            state.started && state.attachment.is_reading() && !state.end_received,
            state.is_sending(),
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.state.for_traversal() {
            Some(state) => state.traverse(&visit),
            None => Ok(()),
        }
    }

    fn __clear__(&self, py: Python<'_>) {
        closing::clear(self, py);
    }
}

// SAFETY: no other type has this kind.
unsafe impl Transport for SocketTransport {
    const KIND: TransportKind = TransportKind::Stream;
}

impl Endpoint for SocketTransport {
    #[inline]
    fn of<'a>(transport: &'a Bound<'_, Self>) -> &'a Self {
        transport.get()
    }

    #[inline]
    fn attachment<'a>(&'a self, py: Python<'a>) -> Exclusive<'a, Attachment> {
        Exclusive::map(self.state.get_mut(py), |state| &mut state.attachment)
    }
}

impl Drop for SocketTransport {
    fn drop(&mut self) {
        if Made::is_made(&self.state) {
            Python::attach(|py| endpoint::detach(self, py));
        }
    }
}

/// Adds the types to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    connecting::add_to(module)?;
    module.add_class::<SocketTransport>()
}

fn log_if_debug(transport: &Bound<'_, SocketTransport>, text: &str) -> PyResult<()> {
    let py = transport.py();
    let debug = {
        let state = transport.get().state.get(py);
        let event_loop = state.attachment.event_loop.as_ref();
        event_loop.is_some_and(|it| it.get().is_debug())
    };
    if debug {
        support::python(py)?
            .getattr(intern!(py, "logger"))?
            .call_method1(intern!(py, "debug"), (New(text), transport))?;
    }
    Ok(())
}
