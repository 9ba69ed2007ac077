//! Who hears about which descriptor: `add_reader`/`add_writer` callbacks and transports.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::ptr::NonNull;

use pyo3::exceptions::{
    PyAttributeError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit, ffi};
use ringloop_driver::{Event, Interest, Mode, Token};

use crate::datagram::DatagramTransport;
use crate::event_loop::{Loop, Queue, Ready};
use crate::handle::{Call, HandleRef};
use crate::support;
use crate::transport::SocketTransport;

/// What a descriptor reported, as the transports need it.
#[derive(Copy, Clone)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has closed its side, the socket failed, or urgent data came: read on until nothing is left.
    pub(crate) read_on: bool,
}

/// The reader's and the writer's handle of a descriptor.
pub(crate) type Handles = (Option<Py<PyAny>>, Option<Py<PyAny>>);

/// The callbacks of one descriptor.
#[derive(Default)]
struct Callbacks {
    token: Option<Token>,
    /// Whether the watch is `Mode::Level`.
    level: bool,
    reader: Option<Py<PyAny>>,
    writer: Option<Py<PyAny>>,
}

/// The native type of a transport.
#[derive(Copy, Clone)]
pub(crate) enum TransportKind {
    Stream,
    Datagram,
}

/// A transport as the table holds it. The reference is counted only while the transport is reading or writing: one
/// that is paused and that nobody else refers to may go, as under asyncio.
struct Listed {
    transport: NonNull<ffi::PyObject>,
    kind: TransportKind,
    strong: bool,
}

// SAFETY: only touched under the GIL.
unsafe impl Send for Listed {}

// SAFETY: as for `Listed`; the pointers in `transports` are only followed under the GIL.
unsafe impl Send for Watches {}

#[derive(Default)]
enum Source {
    #[default]
    Nobody,
    Callbacks(RawFd),
    Transport(Listed),
}

/// The tables: by descriptor for callbacks, by token for events.
#[derive(Default)]
pub(crate) struct Watches {
    callbacks: Vec<Option<Box<Callbacks>>>,
    /// By token index, with the token: an index is used again.
    sources: Vec<(Option<Token>, Source)>,
    /// The transport that has a descriptor, borrowed: it takes itself out before it goes.
    transports: Vec<Option<NonNull<ffi::PyObject>>>,
    /// Watches that ended while the reactor was away; dropped when it is back.
    orphans: Vec<Token>,
}

impl Watches {
    fn callbacks_mut(&mut self, fd: RawFd) -> &mut Callbacks {
        let index = fd as usize;
        if self.callbacks.len() <= index {
            self.callbacks.resize_with(index + 1, || None);
        }
        self.callbacks[index].get_or_insert_default()
    }

    /// Drops the entry that a failed attempt to watch has left.
    fn forget_if_unused(&mut self, fd: RawFd) {
        if self
            .callbacks(fd)
            .is_some_and(|it| it.token.is_none() && it.reader.is_none() && it.writer.is_none())
        {
            self.callbacks[fd as usize] = None;
        }
    }

    fn callbacks(&self, fd: RawFd) -> Option<&Callbacks> {
        self.callbacks.get(fd as usize)?.as_deref()
    }

    fn set_source(&mut self, token: Token, source: Source) -> Source {
        let index = token.index() as usize;
        if self.sources.len() <= index {
            self.sources
                .resize_with(index + 1, || (None, Source::Nobody));
        }
        std::mem::replace(&mut self.sources[index], (Some(token), source)).1
    }

    fn source(&self, token: Token) -> Option<&Source> {
        match self.sources.get(token.index() as usize) {
            Some((Some(known), source)) if *known == token => Some(source),
            _ => None,
        }
    }

    pub(crate) fn enter_transport(&mut self, fd: RawFd, transport: &Bound<'_, PyAny>) {
        let index = fd as usize;
        if self.transports.len() <= index {
            self.transports.resize(index + 1, None);
        }
        self.transports[index] = NonNull::new(transport.as_ptr());
    }

    pub(crate) fn leave_transport(&mut self, fd: RawFd) {
        if let Some(entry) = self.transports.get_mut(fd as usize) {
            *entry = None;
        }
    }

    /// The transport that has this descriptor.
    pub(crate) fn transport<'py>(&self, py: Python<'py>, fd: RawFd) -> Option<Bound<'py, PyAny>> {
        let entry = self.transports.get(usize::try_from(fd).ok()?)?;
        // SAFETY: a transport takes itself out before it goes, so the pointer is live; the GIL is held.
        entry.map(|transport| unsafe { Bound::from_borrowed_ptr(py, transport.as_ptr()) })
    }

    /// How many transports have a descriptor.
    pub(crate) fn transports(&self) -> usize {
        self.transports.iter().flatten().count()
    }

    pub(crate) fn handles(&self, py: Python<'_>, fd: RawFd) -> Option<Handles> {
        let callbacks = self.callbacks(fd)?;
        let copy = |handle: &Option<Py<PyAny>>| handle.as_ref().map(|it| it.clone_ref(py));
        Some((copy(&callbacks.reader), copy(&callbacks.writer)))
    }

    /// Makes the kernel forget the watches that ended while the reactor was away.
    pub(crate) fn drop_orphans(&mut self, driver: &mut ringloop_driver::Driver) {
        for token in self.orphans.drain(..) {
            // The descriptor may be closed by now; there is nothing left to undo then.
            let _ = driver.unwatch(token);
        }
    }

    /// Queues what the event stands for.
    pub(crate) fn dispatch(&self, py: Python<'_>, event: &Event, queue: &mut Queue) {
        let ready = event.readiness();
        let read_on = ready.is_read_closed() || ready.is_error() || ready.is_priority();
        let readiness = Readiness {
            readable: ready.is_readable(),
            // Not at the end of what the peer sends: there may be no room, and asyncio would wait for some.
            writable: ready.is_writable(),
            read_on,
        };
        match self.source(event.token) {
            Some(Source::Transport(listed)) => {
                // SAFETY: the transport takes itself off this list before it goes, so the pointer is live; the GIL is
                // held. It was listed by its kind.
                let ready = unsafe {
                    let transport = Bound::from_borrowed_ptr(py, listed.transport.as_ptr());
                    match listed.kind {
                        TransportKind::Stream => Ready::Transport(
                            transport.cast_into_unchecked::<SocketTransport>().unbind(),
                            readiness,
                        ),
                        TransportKind::Datagram => Ready::Datagrams(
                            transport
                                .cast_into_unchecked::<DatagramTransport>()
                                .unbind(),
                            readiness,
                        ),
                    }
                };
                queue.ready.push_back(ready);
            }
            Some(Source::Callbacks(fd)) => {
                if let Some(callbacks) = self.callbacks(*fd) {
                    let both = [
                        (readiness.readable, &callbacks.reader),
                        (readiness.writable, &callbacks.writer),
                    ];
                    for (fired, handle) in both {
                        if let (true, Some(handle)) = (fired, handle) {
                            queue.ready.push_back(Ready::from_object(handle.bind(py)));
                        }
                    }
                }
            }
            Some(Source::Nobody) | None => {}
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for callbacks in self.callbacks.iter().flatten() {
            visit.call(&callbacks.reader)?;
            visit.call(&callbacks.writer)?;
        }
        for (_, source) in &self.sources {
            if let Source::Transport(listed) = source
                && listed.strong
            {
                visit.call(support::borrow_pointer(&listed.transport))?;
            }
        }
        Ok(())
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        let sources = std::mem::take(&mut self.sources);
        for (_, source) in sources {
            if let Source::Transport(listed) = source {
                listed.release();
            }
        }
    }
}

impl Listed {
    fn release(self) {
        if self.strong {
            // SAFETY: a strong entry owns one reference; the table is only touched under the GIL.
            unsafe { ffi::Py_DECREF(self.transport.as_ptr()) };
        }
    }
}

/// Stands for every number that is too large for a descriptor: nothing is ever watched under it.
const TOO_LARGE: RawFd = RawFd::MAX;

/// The number of a file object, as the selectors module finds it.
pub(crate) fn file_number(file: &Bound<'_, PyAny>) -> PyResult<RawFd> {
    let py = file.py();
    if file.is_instance_of::<PyInt>() {
        return match file.extract::<RawFd>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
                Ok(if file.lt(0)? { -1 } else { TOO_LARGE })
            }
            number => number,
        };
    }
    file.call_method0(intern!(py, "fileno"))
        .and_then(|number| number.extract())
        .map_err(|error| {
            if error.is_instance_of::<PyAttributeError>(py)
                || error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyValueError>(py)
            {
                match file.repr() {
                    Ok(text) => PyValueError::new_err(format!("Invalid file object: {text}")),
                    Err(error) => error,
                }
            } else {
                error
            }
        })
}

/// The descriptor of a file object; ValueError where it has none.
fn descriptor(file: &Bound<'_, PyAny>) -> PyResult<RawFd> {
    match file_number(file)? {
        number if number < 0 => Err(PyValueError::new_err(if file.is_instance_of::<PyInt>() {
            format!("Invalid file descriptor: {}", file.str()?)
        } else {
            format!("Invalid file descriptor: {number}")
        })),
        fd => Ok(fd),
    }
}

/// asyncio's `_ensure_fd_no_transport`: a descriptor that a transport has is not to be watched besides.
pub(crate) fn ensure_no_transport(
    event_loop: &Bound<'_, Loop>,
    file: &Bound<'_, PyAny>,
    fd: RawFd,
) -> PyResult<()> {
    let py = event_loop.py();
    let transport = event_loop.get().watches.get(py).transport(py, fd);
    if let Some(transport) = transport
        && !transport
            .call_method0(intern!(py, "is_closing"))?
            .is_truthy()?
    {
        return Err(PyRuntimeError::new_err(format!(
            "File descriptor {} is used by transport {}",
            file.repr()?,
            transport.repr()?
        )));
    }
    // asyncio's own transports (pipes, TLS) are entered by themselves.
    static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let others = event_loop.getattr(intern!(py, "_transports"))?;
    if others.getattr(intern!(py, "data"))?.is_truthy()? {
        support::class(
            py,
            &BASE,
            "asyncio.selector_events",
            "BaseSelectorEventLoop",
        )?
        .call_method1(intern!(py, "_ensure_fd_no_transport"), (event_loop, file))?;
    }
    Ok(())
}

/// Watches `file` with a callback, which runs in `context` or in a copy of the current one; returns the callback's
/// handle. Replaces (and cancels) the one there was.
pub(crate) fn add<'py>(
    event_loop: &Bound<'py, Loop>,
    file: &Bound<'py, PyAny>,
    callback: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
    context: Option<&Bound<'py, PyAny>>,
    for_writing: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = event_loop.py();
    let this = event_loop.get();
    this.check_closed()?;
    let handle = if this.is_debug() {
        support::python(py)?
            .getattr(intern!(py, "make_handle"))?
            .call1((event_loop, callback, arguments, context))?
    } else {
        let items: Vec<_> = arguments
            .iter_borrowed()
            .map(pyo3::Borrowed::as_ptr)
            .collect();
        let call = Call {
            callback: callback.as_ptr(),
            arguments: &items,
            context: context.map_or(std::ptr::null_mut(), Bound::as_ptr),
        };
        // SAFETY: the GIL is held and the pointers are borrowed from live `Bound`s.
        let handle = unsafe { HandleRef::new(&call, event_loop.as_ptr(), None) };
        let Some(handle) = handle else {
            return Err(PyErr::fetch(py));
        };
        // It stays in the table, not in the queue.
        handle.track();
        // SAFETY: `new` gives an owned reference.
        unsafe { Bound::from_owned_ptr(py, handle.as_ptr()) }
    };
    let fd = descriptor(file)?;
    if fd == TOO_LARGE {
        return Err(PyOverflowError::new_err(
            "Python int too large to convert to C int",
        ));
    }
    insert(event_loop, fd, &handle, for_writing, Mode::Level)?;
    Ok(handle)
}

/// Enters a handle for one direction of `fd`; cancels the one that was there.
///
/// `Mode::OneShot` is for handles that take themselves out, or ask again, when they have run; where another handle
/// needs `Mode::Level` for the other direction, that wins.
pub(crate) fn insert(
    event_loop: &Bound<'_, Loop>,
    fd: RawFd,
    handle: &Bound<'_, PyAny>,
    for_writing: bool,
    mode: Mode,
) -> PyResult<()> {
    let py = event_loop.py();
    let this = event_loop.get();
    let (token, interest, mode) = {
        let mut watches = this.watches.get_mut(py);
        let callbacks = watches.callbacks_mut(fd);
        let (own, other) = if for_writing {
            (Interest::WRITE, callbacks.reader.is_some())
        } else {
            (Interest::READ, callbacks.writer.is_some())
        };
        let interest = if other {
            Interest::READ | Interest::WRITE
        } else {
            own
        };
        let mode = if other && callbacks.level {
            Mode::Level
        } else {
            mode
        };
        (callbacks.token, interest, mode)
    };
    // Nothing is borrowed here: making an exception may run the collector, and that may run anything.
    let outcome = this.with_reactor(py, |reactor| {
        let driver = reactor.driver();
        match token {
            Some(token) => driver.rewatch(token, interest, mode).map(|()| token),
            None => driver.watch(fd, interest, mode),
        }
    });
    let token = match outcome {
        Ok(token) => token,
        Err(error) => {
            this.watches.get_mut(py).forget_if_unused(fd);
            return Err(error);
        }
    };
    let previous = {
        let mut watches = this.watches.get_mut(py);
        let callbacks = watches.callbacks_mut(fd);
        callbacks.token = Some(token);
        callbacks.level = mode == Mode::Level;
        let slot = if for_writing {
            &mut callbacks.writer
        } else {
            &mut callbacks.reader
        };
        let previous = slot.replace(handle.clone().unbind());
        watches.set_source(token, Source::Callbacks(fd));
        previous
    };
    match previous {
        Some(previous) if !previous.is(handle) => cancel(previous.bind(py)),
        _ => Ok(()),
    }
}

/// Ends a callback's watch of `file`; true if there was one.
pub(crate) fn remove(
    event_loop: &Bound<'_, Loop>,
    file: &Bound<'_, PyAny>,
    for_writing: bool,
) -> PyResult<bool> {
    if event_loop.get().is_closed() {
        return Ok(false);
    }
    take_out(event_loop, descriptor(file)?, for_writing)
}

/// `remove` by descriptor number.
pub(crate) fn take_out(
    event_loop: &Bound<'_, Loop>,
    fd: RawFd,
    for_writing: bool,
) -> PyResult<bool> {
    let py = event_loop.py();
    let this = event_loop.get();
    let remaining = {
        let watches = this.watches.get(py);
        let Some(callbacks) = watches.callbacks(fd) else {
            return Ok(false);
        };
        let (slot, other, interest) = if for_writing {
            (&callbacks.writer, &callbacks.reader, Interest::READ)
        } else {
            (&callbacks.reader, &callbacks.writer, Interest::WRITE)
        };
        if slot.is_none() {
            return Ok(false);
        }
        let mode = if callbacks.level {
            Mode::Level
        } else {
            Mode::OneShot
        };
        callbacks
            .token
            .filter(|_| other.is_some())
            .map(|token| (token, interest, mode))
    };
    if let Some((token, interest, mode)) = remaining {
        this.with_reactor(py, |reactor| {
            reactor.driver().rewatch(token, interest, mode)
        })?;
    }
    let removed = {
        let mut watches = this.watches.get_mut(py);
        let callbacks = watches.callbacks_mut(fd);
        let slot = if for_writing {
            &mut callbacks.writer
        } else {
            &mut callbacks.reader
        };
        let removed = slot.take();
        let token = callbacks.token;
        if remaining.is_none() {
            watches.callbacks[fd as usize] = None;
            if let Some(token) = token {
                watches.set_source(token, Source::Nobody);
                end_watch(py, this, &mut watches, token);
            }
        }
        removed
    };
    if remaining.is_none() {
        // The owner is likely to close the descriptor next, and its peer is to hear of that at once.
        flush(py, this)?;
    }
    let Some(removed) = removed else {
        return Ok(false);
    };
    cancel(removed.bind(py))?;
    Ok(true)
}

/// `take_out`, unless another handle took this one's place.
pub(crate) fn take_out_if(
    event_loop: &Bound<'_, Loop>,
    fd: RawFd,
    for_writing: bool,
    handle: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let ours = {
        let watches = event_loop.get().watches.get(event_loop.py());
        watches.callbacks(fd).is_some_and(|callbacks| {
            let slot = if for_writing {
                &callbacks.writer
            } else {
                &callbacks.reader
            };
            slot.as_ref().is_some_and(|it| it.is(handle))
        })
    };
    if ours {
        take_out(event_loop, fd, for_writing)?;
    }
    Ok(())
}

/// Ends a watch now, or, while the reactor is away, as soon as it is back.
fn end_watch(py: Python<'_>, this: &Loop, watches: &mut Watches, token: Token) {
    let mut slot = this.reactor.get_mut(py);
    if let Some(reactor) = slot.as_deref_mut() {
        // A descriptor that was closed first is gone from the kernel's set already.
        let _ = reactor.driver().unwatch(token);
    } else {
        watches.orphans.push(token);
        this.wake(py);
    }
}

fn cancel(handle: &Bound<'_, PyAny>) -> PyResult<()> {
    match HandleRef::from_object(handle) {
        Some(native) => native.cancel(handle.py()),
        None => {
            handle.call_method0(intern!(handle.py(), "cancel"))?;
        }
    }
    Ok(())
}

/// Watches a transport's socket. `transport` is of the native type that `kind` tells.
pub(crate) fn list_transport(
    this: &Loop,
    transport: &Bound<'_, PyAny>,
    kind: TransportKind,
    fd: RawFd,
    (interest, mode): (Interest, Mode),
) -> PyResult<Token> {
    let py = transport.py();
    let token = this.with_reactor(py, |reactor| reactor.driver().watch(fd, interest, mode))?;
    let pointer = transport.clone().into_ptr();
    let listed = Listed {
        // SAFETY: `into_ptr` never gives null.
        transport: unsafe { NonNull::new_unchecked(pointer) },
        kind,
        strong: true,
    };
    this.watches
        .get_mut(py)
        .set_source(token, Source::Transport(listed));
    Ok(token)
}

/// Sets whether the table keeps the transport alive.
pub(crate) fn hold_transport(py: Python<'_>, this: &Loop, token: Token, hold: bool) {
    let released = {
        let mut watches = this.watches.get_mut(py);
        match watches.sources.get_mut(token.index() as usize) {
            Some((known, Source::Transport(listed)))
                if *known == Some(token) && listed.strong != hold =>
            {
                listed.strong = hold;
                // SAFETY: the pointer is live (see `dispatch`); one reference is taken, or handed to `released`.
                unsafe {
                    if hold {
                        ffi::Py_INCREF(listed.transport.as_ptr());
                        None
                    } else {
                        Some(Bound::from_owned_ptr(py, listed.transport.as_ptr()))
                    }
                }
            }
            _ => None,
        }
    };
    drop(released);
}

/// Ends a transport's watch.
pub(crate) fn delist_transport(py: Python<'_>, this: &Loop, token: Token) {
    let listed = {
        let mut watches = this.watches.get_mut(py);
        let source = watches.set_source(token, Source::Nobody);
        end_watch(py, this, &mut watches, token);
        source
    };
    if let Source::Transport(listed) = listed {
        listed.release();
    }
}

/// Hands to the kernel what it must know before a socket is closed, so that the peer learns of the close at once.
pub(crate) fn flush(py: Python<'_>, this: &Loop) -> PyResult<()> {
    let mut slot = this.reactor.get_mut(py);
    let Some(reactor) = slot.as_deref_mut() else {
        return Ok(());
    };
    let result = reactor.driver().flush();
    drop(slot);
    result.map_err(|error| support::os_error(py, &error))
}
