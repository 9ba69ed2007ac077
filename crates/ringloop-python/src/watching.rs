//! Who is notified about which descriptor: `add_reader`/`add_writer` callbacks and transports.
//!
//! Files that the user may close without telling the loop are watched by the driver's registry, which lets go of a file
//! when it is closed, and which any thread may use: those of callbacks, and of transports whose socket the user passed
//! in. On io_uring, other transports are watched by the driver itself, which holds their sockets until they are closed
//! here.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use pyo3::exceptions::{
    PyAttributeError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyType};
use ringloop_driver::{BackendKind, Interest, Mode};

use crate::event_loop::Loop;
use crate::fields::{Attribute, Fields, attribute};
use crate::handle::{Call, HandleRef};
use crate::names::intern;
use crate::objects;
use crate::queue::Transport;
use crate::scheduling;
use crate::support;
use crate::watches::{Displaced, Handles, Listed, Place, Watch, Watches};

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
                    Ok(text) => {
                        objects::error::<PyValueError>(py, &format!("Invalid file object: {text}"))
                    }
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
        number if number < 0 => {
            let message = if file.is_instance_of::<PyInt>() {
                format!("Invalid file descriptor: {}", file.str()?.to_str()?)
            } else {
                format!("Invalid file descriptor: {number}")
            };
            Err(objects::error::<PyValueError>(file.py(), &message))
        }
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
        return Err(objects::error::<PyRuntimeError>(
            py,
            &format!(
                "File descriptor {} is used by transport {}",
                file.repr()?,
                transport.repr()?
            ),
        ));
    }
    // asyncio's own transports (pipes, TLS) are entered by themselves.
    static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if has_others(event_loop)? {
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

/// Whether there are transports of asyncio's own.
fn has_others(event_loop: &Bound<'_, Loop>) -> PyResult<bool> {
    static OTHERS: Attribute = attribute!("_transports");
    static DATA: Attribute = attribute!("data");
    let others = Fields::of(event_loop).get(&OTHERS)?;
    Fields::of(&others).is(&DATA)
}

/// Watches `file` with a callback, which runs in its context or in a copy of the current one; returns the callback's
/// handle. Replaces (and cancels) the one there was.
pub(crate) fn add<'py>(
    event_loop: &Bound<'py, Loop>,
    file: &Bound<'py, PyAny>,
    call: &Call<'_>,
    for_writing: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = event_loop.py();
    let this = event_loop.get();
    this.check_closed(py)?;
    let handle = if this.is_debug() {
        // SAFETY: the GIL is held and the call holds live objects.
        let (callback, arguments, context) = unsafe {
            (
                Bound::from_borrowed_ptr(py, call.callback),
                Bound::from_owned_ptr_or_err(py, objects::tuple_from_borrowed(call.arguments))?,
                Bound::from_borrowed_ptr_or_opt(py, call.context),
            )
        };
        support::python(py)?
            .getattr(intern!(py, "make_handle"))?
            .call1((event_loop, callback, arguments, context))?
    } else {
        scheduling::handle_in_table(event_loop, call)?
    };
    let (fd, is_closed) = find(event_loop, file)?;
    let is_number = file.is_instance_of::<PyInt>();
    if is_number && fd == TOO_LARGE && file.gt(TOO_LARGE)? {
        return Err(objects::error::<PyOverflowError>(
            py,
            "Python int too large to convert to C int",
        ));
    }
    let place = Place {
        fd,
        for_writing,
        file: (!is_number).then(|| file.clone().unbind()),
        is_closed,
    };
    enter(event_loop, place, &handle, Mode::Level)?;
    Ok(handle)
}

/// The descriptor of a file object, and whether the object is closed: then it is found as what it was registered as, as
/// the selectors module does. `ValueError` where it never was.
fn find(event_loop: &Bound<'_, Loop>, file: &Bound<'_, PyAny>) -> PyResult<(RawFd, bool)> {
    let py = event_loop.py();
    match descriptor(file) {
        Ok(fd) => Ok((fd, false)),
        Err(error) if error.is_instance_of::<PyValueError>(py) => {
            let known = event_loop.get().watches.get(py).number_of(file);
            known.map(|fd| (fd, true)).ok_or(error)
        }
        Err(error) => Err(error),
    }
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
    let place = Place {
        fd,
        for_writing,
        file: None,
        is_closed: false,
    };
    enter(event_loop, place, handle, mode)
}

fn enter(
    event_loop: &Bound<'_, Loop>,
    place: Place,
    handle: &Bound<'_, PyAny>,
    mode: Mode,
) -> PyResult<()> {
    let py = event_loop.py();
    let this = event_loop.get();
    this.check_closed(py)?;
    let mut displaced = Displaced::default();
    let result = this.watches.get_mut(py).enter_callback(
        place,
        handle.clone().unbind(),
        mode,
        &mut displaced,
    );
    cancel_displaced(py, displaced, Some(handle))?;
    result.map_err(|error| support::os_error(py, &error))
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
    let (fd, _) = find(event_loop, file)?;
    change(event_loop, |watches, displaced| {
        watches.take_out(fd, for_writing, displaced)
    })
}

/// Ends the watch of this handle by descriptor number, unless another one took its place.
pub(crate) fn take_out_if(
    event_loop: &Bound<'_, Loop>,
    fd: RawFd,
    for_writing: bool,
    handle: &Bound<'_, PyAny>,
) -> PyResult<()> {
    change(event_loop, |watches, displaced| {
        watches.take_out_if(fd, for_writing, handle, displaced)
    })
    .map(drop)
}

/// Watches on for a handle that was entered with `Mode::OneShot`, unless another one took its place.
pub(crate) fn watch_again(
    event_loop: &Bound<'_, Loop>,
    fd: RawFd,
    for_writing: bool,
    handle: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = event_loop.py();
    let this = event_loop.get();
    this.check_closed(py)?;
    let mut displaced = Displaced::default();
    let result = this
        .watches
        .get_mut(py)
        .watch_again(fd, for_writing, handle, &mut displaced);
    cancel_displaced(py, displaced, Some(handle))?;
    result.map_err(|error| support::os_error(py, &error))
}

/// Changes the tables in one step, and cancels what loses its place.
fn change<R>(
    event_loop: &Bound<'_, Loop>,
    step: impl FnOnce(&mut Watches, &mut Displaced) -> io::Result<R>,
) -> PyResult<R> {
    let py = event_loop.py();
    let mut displaced = Displaced::default();
    let result = step(&mut event_loop.get().watches.get_mut(py), &mut displaced);
    cancel_displaced(py, displaced, None)?;
    result.map_err(|error| support::os_error(py, &error))
}

/// The descriptor that a file object is watched under, and its handles. `ValueError` for what is no file object and was
/// never watched.
pub(crate) fn watched(
    event_loop: &Bound<'_, Loop>,
    file: &Bound<'_, PyAny>,
) -> PyResult<(RawFd, Option<Handles>)> {
    let py = event_loop.py();
    let (fd, _) = find(event_loop, file)?;
    Ok((fd, event_loop.get().watches.get(py).handles(py, fd)))
}

/// Cancels the handles that have lost their place, save for `except`, and drops the rest. Nothing is borrowed here:
/// that may run any code.
fn cancel_displaced(
    py: Python<'_>,
    displaced: Displaced,
    except: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    for handle in displaced.into_handles() {
        if except.is_none_or(|except| !handle.is(except)) {
            cancel(handle.bind(py))?;
        }
    }
    Ok(())
}

fn cancel(handle: &Bound<'_, PyAny>) -> PyResult<()> {
    match HandleRef::from_object(handle) {
        Some(native) => scheduling::cancel(handle.py(), native),
        None => {
            handle.call_method0(intern!(handle.py(), "cancel"))?;
        }
    }
    Ok(())
}

/// Refuses to watch a transport's first descriptor if its socket no longer has it, because another file may. The errors
/// are those of asyncio's transport: `OSError` if the socket was closed since, `ValueError` if it was closed from the
/// beginning.
pub(crate) fn check_current(py: Python<'_>, fd: RawFd, current: RawFd) -> PyResult<()> {
    if fd < 0 {
        return Err(objects::error::<PyValueError>(
            py,
            &format!("Invalid file descriptor: {fd}"),
        ));
    }
    if fd != current {
        return Err(support::errno_error(py, libc::EBADF));
    }
    Ok(())
}

/// Watches a transport's socket. A socket that is `lent` may be closed by its owner at any time.
pub(crate) fn list_transport<T: Transport>(
    this: &Loop,
    transport: &Bound<'_, T>,
    (fd, lent): (RawFd, bool),
    (interest, mode): (Interest, Mode),
) -> PyResult<Watch> {
    let py = transport.py();
    this.check_closed(py)?;
    let mut displaced = Displaced::default();
    if lent || this.backend_kind != BackendKind::IoUring {
        let listed = Listed::new(transport);
        let result = this.watches.get_mut(py).register_transport(
            fd,
            listed,
            (interest, mode),
            &mut displaced,
        );
        cancel_displaced(py, displaced, None)?;
        return result.map_err(|error| support::os_error(py, &error));
    }
    let result = this.watches.get_mut(py).make_way(fd, &mut displaced);
    cancel_displaced(py, displaced, None)?;
    result.map_err(|error| support::os_error(py, &error))?;
    let watched = {
        // One step, as `dispatch` drops the reports of a watch that isn't entered, and the first may come at once.
        let mut watches = this.watches.get_mut(py);
        let token =
            this.with_reactor_if_here(py, |reactor| reactor.driver_mut().watch(fd, interest, mode));
        token.map(|token| token.map(|token| watches.enter_held(token, Listed::new(transport))))
    };
    match watched {
        Some(result) => result.map_err(|error| support::os_error(py, &error)),
        None => Err(this.reactor_is_absent(py)),
    }
}

/// Refuses a watch whose file is closed, with the `OSError` that registering its number would give.
pub(crate) fn check_alive(py: Python<'_>, this: &Loop, watch: Watch) -> PyResult<()> {
    if this.watches.get_mut(py).is_alive(watch) {
        return Ok(());
    }
    Err(support::errno_error(py, libc::EBADF))
}

/// Changes what a transport waits for.
pub(crate) fn change_transport(
    py: Python<'_>,
    this: &Loop,
    watch: Watch,
    (interest, mode): (Interest, Mode),
) -> PyResult<()> {
    match watch {
        Watch::Held(token) => this.with_reactor(py, |reactor| {
            reactor.driver_mut().rewatch(token, interest, mode)
        }),
        Watch::Registered(registration) => {
            let mut watches = this.watches.get_mut(py);
            let result = watches.change_registered(registration, (interest, mode));
            drop(watches);
            result.map_err(|error| support::os_error(py, &error))
        }
    }
}

/// Ends a transport's watch. If the reactor is away, a watch of the driver's ends when it is back.
pub(crate) fn delist_transport(py: Python<'_>, this: &Loop, watch: Watch) {
    let mut displaced = Displaced::default();
    {
        let mut watches = this.watches.get_mut(py);
        watches.delist(watch, &mut displaced);
        if let Watch::Held(token) = watch {
            let mut slot = this.reactor.get_mut(py);
            if let Some(reactor) = slot.as_deref_mut() {
                reactor.driver_mut().unwatch(token);
            } else {
                watches.put_off(token);
                this.wake(py);
            }
        }
    }
    drop(displaced);
}

/// Submits cancelled watches to the kernel. To be called before a socket is closed that the driver has held, so that
/// its peer hears of it at once. In another thread than the one that polls, that one's next turn submits them.
pub(crate) fn flush(py: Python<'_>, this: &Loop) -> PyResult<()> {
    let mut slot = this.reactor.get_mut(py);
    let Some(reactor) = slot.as_deref_mut() else {
        return Ok(());
    };
    let result = reactor.driver_mut().flush_if_own();
    drop(slot);
    result.map_err(|error| support::os_error(py, &error))
}
