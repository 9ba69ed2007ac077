//! How a server takes the connections that wait at its listening socket, and what it makes of each of them.
//!
//! The steps are those of asyncio's `_accept_connection` and of the task that it makes for each connection, in the same
//! turns and in the same contexts. But the second step is a callback instead of a task: nothing in it waits.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use pyo3::{PyTraverseError, PyVisit};

use super::{SocketTransport, readiness};
use crate::addresses::{self, CompactAddress};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::socket_object;
use crate::support;
use crate::waiter;

/// A connection that was accepted, and gets its protocol and its transport in the next turn, when it is called.
#[pyclass(module = "ringloop._core", frozen)]
pub(crate) struct AcceptedConnection {
    event_loop: Py<Loop>,
    sock: Py<PyAny>,
    peer: CompactAddress,
    protocol_factory: Py<PyAny>,
    server: Option<Py<PyAny>>,
}

#[pymethods]
impl AcceptedConnection {
    fn __call__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let Err(error) = set_up(slf) else {
            return Ok(());
        };
        slf.get().sock.bind(py).call_method0(intern!(py, "close"))?;
        if support::ends_the_loop(py, &error) {
            return Err(error);
        }
        // asyncio tells of others in debug mode only, in which it accepts connections itself.
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.sock)?;
        visit.call(&self.protocol_factory)?;
        visit.call(&self.server)
    }
}

impl AcceptedConnection {
    pub(super) fn peer(&self) -> &CompactAddress {
        &self.peer
    }
}

fn set_up(accepted: &Bound<'_, AcceptedConnection>) -> PyResult<()> {
    static TRANSPORT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = accepted.py();
    let this = accepted.get();
    let sock = this.sock.bind(py);
    let protocol = this.protocol_factory.bind(py).call0()?;
    let event_loop = this.event_loop.bind(py);
    event_loop.call_method1(intern!(py, "_ensure_fd_no_transport"), (sock,))?;
    let class = support::class(py, &TRANSPORT, "ringloop._transports", "SocketTransport")?;
    let transport = class.call1((event_loop, sock, protocol, accepted))?;
    let transport = transport.cast::<SocketTransport>()?;
    if let Some(server) = &this.server {
        transport.call_method1(intern!(py, "_attach"), (server,))?;
    }
    readiness::begin(transport, waiter::is_plain(event_loop.as_any())?)
}

/// Accepts the connections that wait, up to `count_max`, and queues each of them. False if an error is left to asyncio,
/// which will find it again.
pub(crate) fn accept(
    event_loop: &Bound<'_, Loop>,
    protocol_factory: &Bound<'_, PyAny>,
    listener: &Bound<'_, PyAny>,
    server: Option<&Bound<'_, PyAny>>,
    count_max: usize,
) -> PyResult<bool> {
    let py = event_loop.py();
    if !matches!(
        socket_object::family(listener)?,
        libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX
    ) {
        return Ok(false);
    }
    if addresses::is_blocking(socket_object::number(listener)?) {
        // Somebody else has made it so. asyncio waits for the next connection, but with the GIL released.
        return Ok(false);
    }
    for _ in 0..count_max {
        let (fd, peer) = match addresses::accept(socket_object::number(listener)?) {
            Ok(accepted) => accepted,
            Err(error) => {
                return Ok(matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED)
                ));
            }
        };
        let accepted = AcceptedConnection {
            event_loop: event_loop.clone().unbind(),
            sock: socket_object::for_accepted(listener, fd)?.unbind(),
            peer,
            protocol_factory: protocol_factory.clone().unbind(),
            server: server.map(|it| it.clone().unbind()),
        };
        event_loop.call_method1(intern!(py, "call_soon"), (Bound::new(py, accepted)?,))?;
    }
    Ok(true)
}
