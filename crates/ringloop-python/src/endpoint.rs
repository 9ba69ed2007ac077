//! The common parts of stream and datagram transports: how one is attached to its socket and to its loop, and whether
//! it reads.

use std::os::fd::RawFd;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::{Interest, Mode};

use crate::cell::Exclusive;
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::queue::{Readiness, Ready, Reason, Served, Transport};
use crate::scheduling;
use crate::socket_object;
use crate::support::{self, CloneRefOption};
use crate::watches::{Entered, Watch};
use crate::watching;

/// A transport's socket and loop, what the loop knows of it, and whether it is to read.
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are independent of one another"
)]
pub(crate) struct Attachment {
    pub(crate) event_loop: Option<Py<Loop>>,
    pub(crate) sock: Option<Py<PyAny>>,
    /// The descriptor that the socket had at the beginning, which the loop knows the transport by. For the one that it
    /// has now ask `descriptor`.
    pub(crate) fd: RawFd,
    /// The socket was passed in by the user, who may close it at any time.
    lent: bool,
    /// The driver itself has watched the socket: the kernel must let go of it before it is closed.
    was_held: bool,
    /// The loop knows that this transport has the descriptor.
    entered: Option<Entered>,
    pub(crate) watch: Option<Watch>,
    /// `pause_reading` was called.
    pub(crate) paused: bool,
    /// It closes, or has closed.
    pub(crate) closing: bool,
    /// Another thread has asked for that, and the loop's own has yet to begin. What was asked for before comes first.
    pub(crate) closes_later: bool,
}

/// A native type of transports that has an attachment.
pub(crate) trait Endpoint: Transport {
    fn of<'a>(transport: &'a Bound<'_, Self>) -> &'a Self;
    fn attachment<'a>(&'a self, py: Python<'a>) -> Exclusive<'a, Attachment>;
}

impl Attachment {
    pub(crate) fn new(
        event_loop: &Bound<'_, Loop>,
        sock: &Bound<'_, PyAny>,
        lent: bool,
    ) -> PyResult<Self> {
        Ok(Self {
            event_loop: Some(event_loop.clone().unbind()),
            fd: socket_object::number(sock)?,
            sock: Some(sock.clone().unbind()),
            lent,
            was_held: false,
            entered: None,
            watch: None,
            paused: false,
            closing: false,
            closes_later: false,
        })
    }

    /// The descriptor that the socket has now: -1 once it is closed or detached. To be asked right before it is used.
    #[inline]
    pub(crate) fn descriptor(&self, py: Python<'_>) -> RawFd {
        self.sock.as_ref().map_or(-1, |sock| {
            socket_object::descriptor(sock.bind(py)).unwrap_or(self.fd)
        })
    }

    #[inline]
    pub(crate) fn is_reading(&self) -> bool {
        !self.closing && !self.paused
    }

    /// The loop, if another thread runs it: this one must leave it to that to change the transport.
    #[inline]
    pub(crate) fn elsewhere(&self, py: Python<'_>) -> Option<Py<Loop>> {
        let event_loop = self.event_loop.as_ref()?;
        event_loop
            .get()
            .runs_elsewhere()
            .then(|| event_loop.clone_ref(py))
    }

    /// Whether nothing is to be sent any more, once the buffer is empty.
    pub(crate) fn ends_when_sent(&self) -> bool {
        self.closing && !self.closes_later
    }

    /// The loop, unless the transport has left it.
    pub(crate) fn event_loop(&self, py: Python<'_>) -> Option<Py<Loop>> {
        self.event_loop.clone_ref_opt(py)
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.sock)
    }
}

/// The loop; `RuntimeError` once the transport has left it.
pub(crate) fn event_loop<T: Endpoint>(transport: &T, py: Python<'_>) -> PyResult<Py<Loop>> {
    let event_loop = transport.attachment(py).event_loop(py);
    event_loop.ok_or_else(|| closed(py))
}

/// The error of a transport that has left its loop.
#[cold]
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    objects::error::<PyRuntimeError>(py, "the transport is closed")
}

/// Enters the transport as the one that has its descriptor.
pub(crate) fn enter<T: Endpoint>(transport: &Bound<'_, T>, event_loop: &Loop) {
    let py = transport.py();
    let mut attachment = T::of(transport).attachment(py);
    let mut watches = event_loop.watches.get_mut(py);
    attachment.entered = watches.enter_transport(attachment.fd, transport.as_any());
}

/// Frees the descriptor's number for other uses of the loop.
fn leave<T: Endpoint>(transport: &T, py: Python<'_>) {
    let mut attachment = transport.attachment(py);
    let attachment = &mut *attachment;
    if let Some(event_loop) = &attachment.event_loop
        && let Some(entered) = attachment.entered.take()
    {
        let mut watches = event_loop.get().watches.get_mut(py);
        watches.leave_transport(attachment.fd, entered);
    }
}

/// Watches the socket for the first time. Does nothing once the transport has left its loop.
pub(crate) fn list<T: Endpoint>(transport: &Bound<'_, T>, told: (Interest, Mode)) -> PyResult<()> {
    let py = transport.py();
    let this = T::of(transport);
    let (event_loop, fd, current, lent) = {
        let attachment = this.attachment(py);
        let Some(event_loop) = attachment.event_loop(py) else {
            return Ok(());
        };
        let current = attachment.descriptor(py);
        (event_loop, attachment.fd, current, attachment.lent)
    };
    watching::check_current(py, fd, current)?;
    let watch = watching::list_transport(event_loop.get(), transport, (fd, lent), told)?;
    let mut attachment = this.attachment(py);
    if attachment.event_loop.is_none() || attachment.watch.is_some() {
        // It has left its loop meanwhile, because the user's code ran, or another thread has done the same.
        drop(attachment);
        watching::delist_transport(py, event_loop.get(), watch);
        return Ok(());
    }
    attachment.watch = Some(watch);
    attachment.was_held |= matches!(watch, Watch::Held(_));
    Ok(())
}

/// Ends the watch.
pub(crate) fn delist<T: Endpoint>(transport: &T, py: Python<'_>) {
    let (watch, event_loop) = {
        let mut attachment = transport.attachment(py);
        (attachment.watch.take(), attachment.event_loop(py))
    };
    if let (Some(watch), Some(event_loop)) = (watch, event_loop) {
        watching::delist_transport(py, event_loop.get(), watch);
    }
}

/// Sets whether the loop keeps the transport alive. A reference that is given up goes to the caller, who drops it when
/// nothing is borrowed. The attachment is borrowed: nobody changes what `hold` was found from before it is set.
#[must_use = "dropping it may run Python code"]
pub(crate) fn hold(py: Python<'_>, attachment: &Attachment, hold: bool) -> Option<Py<PyAny>> {
    let (event_loop, watch) = (attachment.event_loop.as_ref()?, attachment.watch?);
    let mut watches = event_loop.get().watches.get_mut(py);
    watches.keep_alive(py, watch, hold)
}

/// Has the loop forget the socket.
pub(crate) fn detach<T: Endpoint>(transport: &T, py: Python<'_>) {
    delist(transport, py);
    leave(transport, py);
}

/// Has the loop and the kernel forget the socket, so that its peer hears at once when it is closed next.
pub(crate) fn let_go<T: Endpoint>(transport: &T, py: Python<'_>) {
    detach(transport, py);
    let event_loop = {
        let attachment = transport.attachment(py);
        attachment
            .was_held
            .then(|| attachment.event_loop(py))
            .flatten()
    };
    if let Some(event_loop) = event_loop {
        // If that fails, the next turn does it; the socket must be closed all the same.
        drop(watching::flush(py, event_loop.get()));
    }
}

/// Serves the transport in the next turn, as if its socket had reported.
pub(crate) fn queue_ready<T: Endpoint>(
    transport: &Bound<'_, T>,
    event_loop: &Loop,
    readiness: Readiness,
) {
    let served = Served::new(transport, Reason::Ready(readiness));
    let py = transport.py();
    let mut queue = event_loop.queue.get_mut(py);
    queue.arrived.push(Ready::Transport(served));
    drop(queue);
    event_loop.queued(py);
}

/// Has the loop's thread call a method of the native type, if another thread runs the loop: then the caller has nothing
/// left to do. The type's own method, so that one that overrides it is not called twice.
pub(crate) fn leave_to_loop<T: Endpoint, const N: usize>(
    transport: &Bound<'_, T>,
    name: &Bound<'_, PyString>,
    arguments: [&Bound<'_, PyAny>; N],
) -> PyResult<bool> {
    let py = transport.py();
    let event_loop = T::of(transport).attachment(py).elsewhere(py);
    let Some(event_loop) = event_loop else {
        return Ok(false);
    };
    post(event_loop.bind(py), transport, name, arguments).map(|()| true)
}

/// The same, where the loop is known.
#[cold]
pub(crate) fn post<T: Endpoint, const N: usize>(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, T>,
    name: &Bound<'_, PyString>,
    arguments: [&Bound<'_, PyAny>; N],
) -> PyResult<()> {
    let class = event_loop.py().get_type::<T>();
    scheduling::post(event_loop, &class, name, transport.as_any(), arguments)
}

/// Tells the loop's exception handler of an error that a transport's step raised. It is told what asyncio would say of
/// its callback of this name, which ran in `context`.
pub(crate) fn report<T: Endpoint>(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, T>,
    callback: &str,
    context: Option<Py<PyAny>>,
    result: PyResult<()>,
) -> PyResult<()> {
    let py = event_loop.py();
    match result {
        Err(error) if !support::ends_the_loop(py, &error) => support::python(py)?
            .getattr(intern!(py, "report_transport_error"))?
            .call1((
                event_loop,
                transport,
                New(callback),
                context,
                error.value(py),
            ))
            .map(drop),
        other => other,
    }
}
