//! The fields of the interpreter's socket objects, read without a call.
//!
//! A descriptor's number doesn't identify a file: when a socket is closed, the next file gets its number. So the number
//! is read from the object right before each system call, and no Python code of this thread may run in between. It is -1
//! once the socket is closed or detached, and the system call fails with `EBADF`, as the object's own methods do. On a
//! free-threaded interpreter another thread may close a socket in between, as with those methods: a user who lends one
//! must not do that, and those that are the loop's are closed in the loop's thread, or when nobody has them any longer.
//!
//! Native code makes system calls where asyncio calls a socket's methods. That is the same only for the interpreter's own
//! class with its own methods ([`is_usual`]). Programs put other methods there (pytest-socket), and other classes in the
//! place of `socket.socket` (`PySocks`, mocket), to have connections go elsewhere or nowhere: asyncio then serves the socket.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::Relaxed};

use crate::names::intern;
use crate::objects::{self, New};
use crate::originals::{Checked, is_function_of};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The beginning of `PySocketSockObject` (Modules/socketmodule.h), which no version has changed from Python 3.11 to
/// 3.15.
#[repr(C)]
struct SocketObject {
    ob_base: ffi::PyObject,
    fd: c_int,
    family: c_int,
    kind: c_int,
    proto: c_int,
}

/// `_socket.socket`, the base of `socket.socket`. Null before `add_to`.
static CLASS: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());
/// The interpreter's `socket.socket`, which nearly all sockets are of, and which is derived from `CLASS`. Null while nobody
/// has seen it with its own methods.
static USUAL: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());
/// Whether it has its own methods; while it is not known, whether the last class that was asked about has.
static CHECKED: Checked = Checked::new();
/// The methods and attributes of `_socket.socket` that native code takes the place of.
const METHODS: [&str; 17] = [
    "__getattribute__",
    "_accept",
    "connect",
    "fileno",
    "getpeername",
    "getsockname",
    "getsockopt",
    "proto",
    "recv",
    "recv_into",
    "recvfrom",
    "recvfrom_into",
    "send",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
];
/// Whether the objects of the running interpreter were seen to begin as `SocketObject` does.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// The current values of a socket object's fields.
#[derive(Clone, Copy)]
struct Fields {
    fd: c_int,
    family: c_int,
    kind: c_int,
    proto: c_int,
}

/// Reads the fields of a socket object; None if it is not one, or if the layout is unknown.
#[inline]
fn fields(sock: &Bound<'_, PyAny>) -> Option<Fields> {
    if !IS_KNOWN.load(Relaxed) || !is_socket(sock) {
        return None;
    }
    // SAFETY: an instance of `_socket.socket` begins with these fields, as `check_layout` has seen.
    Some(unsafe { read(sock) })
}

/// Reads what lies where the fields should be.
///
/// # Safety
/// The object is as large as a `SocketObject`, and the GIL is held. Under it the fields change; without it, the number does
/// at any time, and nothing else ever.
#[inline]
unsafe fn read(sock: &Bound<'_, PyAny>) -> Fields {
    let object = sock.as_ptr().cast::<SocketObject>();
    // SAFETY: the object is as large as a `SocketObject`, and the GIL is held, which is the function's contract. Any
    // bytes are integers. Without the GIL, the interpreter writes the number atomically.
    unsafe {
        Fields {
            fd: AtomicI32::from_ptr(&raw mut (*object).fd).load(Relaxed),
            family: (*object).family,
            kind: (*object).kind,
            proto: (*object).proto,
        }
    }
}

/// Whether it is a socket of the interpreter's, or of a class derived from it.
#[inline]
fn is_socket(sock: &Bound<'_, PyAny>) -> bool {
    let class = CLASS.load(Relaxed);
    if sock.get_type_ptr() == USUAL.load(Relaxed) {
        return true;
    }
    // SAFETY: the GIL is held, and `class` is null or a type that lives for ever.
    !class.is_null() && unsafe { ffi::PyObject_TypeCheck(sock.as_ptr(), class) != 0 }
}

/// The descriptor that a socket object has at the moment, or -1 if it is closed or detached. None if it is not a socket
/// object.
///
/// Runs none of the user's code: a subclass's `fileno` is ignored, as `send` and `recv` ignore it.
#[inline]
pub(crate) fn descriptor(sock: &Bound<'_, PyAny>) -> Option<RawFd> {
    match fields(sock) {
        Some(fields) => Some(fields.fd),
        None => is_socket(sock).then(|| ask_for_number(sock).unwrap_or(-1)),
    }
}

/// The descriptor of a socket object, or of what stands for one.
pub(crate) fn number(sock: &Bound<'_, PyAny>) -> PyResult<RawFd> {
    match descriptor(sock) {
        Some(number) => Ok(number),
        None => sock.call_method0(intern!(sock.py(), "fileno"))?.extract(),
    }
}

/// Returns what `_socket.socket.fileno` returns. It makes nothing that the collector tracks, so that it may be called
/// while something is borrowed.
#[cold]
fn ask_for_number(sock: &Bound<'_, PyAny>) -> PyResult<RawFd> {
    static METHOD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = sock.py();
    let method = METHOD.get_or_try_init(py, || {
        let method = base(py)?.getattr(intern!(py, "fileno"))?;
        PyResult::Ok(method.unbind())
    })?;
    // SAFETY: the GIL is held and both objects are alive; the result is a new reference or null with an exception set.
    let number = unsafe {
        let number = ffi::PyObject_CallOneArg(method.as_ptr(), sock.as_ptr());
        Bound::from_owned_ptr_or_err(py, number)?
    };
    number.extract()
}

/// The address family of a socket object.
pub(crate) fn family(sock: &Bound<'_, PyAny>) -> PyResult<c_int> {
    fields(sock).map_or_else(|| member(sock, "family"), |fields| Ok(fields.family))
}

/// The type of a socket object, such as `SOCK_STREAM`.
pub(crate) fn kind(sock: &Bound<'_, PyAny>) -> PyResult<c_int> {
    fields(sock).map_or_else(|| member(sock, "type"), |fields| Ok(fields.kind))
}

/// The protocol of a socket object, which is 0 for most.
pub(crate) fn proto(sock: &Bound<'_, PyAny>) -> PyResult<c_int> {
    fields(sock).map_or_else(|| member(sock, "proto"), |fields| Ok(fields.proto))
}

/// An object for a connection that a listening socket has accepted, as its `accept` makes it, with the timeout of a
/// socket that doesn't block.
pub(crate) fn for_accepted<'py>(
    listener: &Bound<'py, PyAny>,
    accepted: OwnedFd,
) -> PyResult<Bound<'py, PyAny>> {
    let py = listener.py();
    let fields = (
        New(family(listener)?),
        New(kind(listener)?),
        New(proto(listener)?),
        New(accepted.as_raw_fd()),
    );
    let sock = listener.get_type().call1(fields)?;
    // It belongs to the object now.
    let _ = accepted.into_raw_fd();
    sock.call_method1(intern!(py, "setblocking"), (false,))?;
    Ok(sock)
}

/// Whether native code may do what a socket's methods do: it is of the interpreter's class, whose methods nobody has
/// replaced.
#[inline]
pub(crate) fn is_usual(sock: &Bound<'_, PyAny>) -> PyResult<bool> {
    is_usual_class(&sock.get_type())
}

/// The same of sockets of a class.
pub(crate) fn is_usual_class(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let usual = USUAL.load(Relaxed);
    if !usual.is_null() && class.as_type_ptr() != usual {
        return Ok(false);
    }
    let is_usual = CHECKED.find(class, || is_as_made(class))?;
    if is_usual && usual.is_null() {
        // It lives for ever from here on, so that no other type ever has its address.
        USUAL.store(class.clone().into_ptr().cast(), Relaxed);
    }
    Ok(is_usual)
}

/// Whether a class is what the module `socket` makes of `_socket.socket`. Its name doesn't matter, and nor does whether
/// the module still has it: a replacement may be there since before we were imported.
fn is_as_made(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let py = class.py();
    let base = base(py)?;
    let mro = class.mro();
    if !class.get_type().is(py.get_type::<PyType>()) || mro.len() != 3 || !mro.get_item(1)?.is(base)
    {
        return Ok(false);
    }
    for name in METHODS {
        let (found, own) = (class.getattr_opt(New(name))?, base.getattr_opt(New(name))?);
        if !found.zip(own).is_some_and(|(found, own)| found.is(&own)) {
            return Ok(false);
        }
    }
    let names = py.import(intern!(py, "socket"))?.dict();
    for name in ["family", "type"] {
        let getter = match class.getattr_opt(New(name))? {
            Some(property) => property.getattr_opt(New("fget"))?,
            None => None,
        };
        if !getter.is_some_and(|it| is_function_of(&it, &names)) {
            return Ok(false);
        }
    }
    let accept = class.getattr_opt(intern!(py, "accept"))?;
    Ok(accept.is_some_and(|it| is_function_of(&it, &names)))
}

/// `socket.socket(family, SOCK_STREAM, IPPROTO_TCP)`, which doesn't block. The class is the usual one.
pub(crate) fn for_stream(py: Python<'_>, family: c_int) -> PyResult<Bound<'_, PyAny>> {
    let class = USUAL.load(Relaxed).cast::<ffi::PyObject>();
    // SAFETY: the GIL is held; the class lives for ever.
    let Some(class) = (unsafe { Bound::from_borrowed_ptr_or_opt(py, class) }) else {
        return Err(objects::error::<PyRuntimeError>(py, "no class of sockets"));
    };
    let sock = class.call1((New(family), New(libc::SOCK_STREAM), New(libc::IPPROTO_TCP)))?;
    sock.call_method1(intern!(py, "setblocking"), (false,))?;
    Ok(sock)
}

/// A member of `_socket.socket`, whose property in `socket.socket` makes an enum of it; of anything else, its
/// attribute.
#[cold]
fn member(sock: &Bound<'_, PyAny>, name: &str) -> PyResult<c_int> {
    if !is_socket(sock) {
        return sock.getattr(New(name))?.extract();
    }
    base(sock.py())?
        .getattr(New(name))?
        .call_method1(intern!(sock.py(), "__get__"), (sock,))?
        .extract()
}

fn base(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static BASE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    BASE.get_or_try_init(py, || {
        let class = py
            .import(intern!(py, "_socket"))?
            .getattr(intern!(py, "socket"))?;
        Ok(class.unbind())
    })
    .map(|class| class.bind(py))
}

/// Compares the fields with what the methods say, of a socket that is open and of one that is closed or detached.
fn check_layout(py: Python<'_>) -> PyResult<bool> {
    for end in ["close", "detach"] {
        let sock = base(py)?.call1((libc::AF_UNIX, libc::SOCK_DGRAM))?;
        // SAFETY: `add_to` has compared the size, and the GIL is held.
        let open = unsafe { read(&sock) };
        let number = ask_for_number(&sock)?;
        let is_as_said = open.fd == number
            && open.family == member(&sock, "family")?
            && open.kind == member(&sock, "type")?
            && open.proto == member(&sock, "proto")?;
        sock.call_method0(end)?;
        if end == "detach" {
            // SAFETY: detaching has handed this descriptor over, and nobody else has it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        // SAFETY: `add_to` has compared the size, and the GIL is held.
        if !is_as_said || unsafe { read(&sock) }.fd != -1 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The number according to the fields and according to the methods, which tests compare.
#[pyfunction]
fn _socket_descriptor(sock: &Bound<'_, PyAny>) -> (Option<RawFd>, Option<RawFd>) {
    let read = fields(sock).map(|fields| fields.fd);
    (read, ask_for_number(sock).ok())
}

/// Whether native code may do what the methods of an object do: it is a `socket.socket` as the interpreter has made it.
/// Neither an object that acts like one is, nor one of a subclass or of another class in its place, nor any while a method
/// is replaced.
#[pyfunction]
fn _is_usual_socket(sock: &Bound<'_, PyAny>) -> PyResult<bool> {
    is_usual(sock)
}

/// Finds out how the running interpreter lays out its sockets.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let class = base(py)?.as_ptr().cast::<ffi::PyTypeObject>();
    CLASS.store(class, Relaxed);
    if let Ok(class) = py.import("socket")?.getattr("socket")?.cast_into() {
        is_usual_class(&class)?;
    }
    // SAFETY: the GIL is held and `class` is a type.
    let is_large_enough =
        unsafe { (*class).tp_basicsize } >= size_of::<SocketObject>() as ffi::Py_ssize_t;
    // If no socket can be made to check the layout, methods are called instead.
    IS_KNOWN.store(
        is_large_enough && check_layout(py).unwrap_or(false),
        Relaxed,
    );
    module.add_function(wrap_pyfunction!(_is_usual_socket, module)?)?;
    module.add_function(wrap_pyfunction!(_socket_descriptor, module)?)
}
