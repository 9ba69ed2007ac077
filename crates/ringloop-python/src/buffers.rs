//! Bytes on their way between sockets and Python objects: the receive buffer, what waits to be sent, and the system
//! calls that move them.

#![allow(unsafe_code)]

mod batch;
mod file;
mod gathered;

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMemoryView};

use crate::addresses::Address;
use crate::cell;
use crate::metrics;
use crate::objects;
use crate::support;
use crate::thread_exit::SleepsAtExit;

pub(crate) use self::batch::Batch;
pub(crate) use self::file::{FileSending, Progress};
pub(crate) use self::gathered::Gathered;

/// Deliveries that are copied after a protocol kept a `bytes` object that was received in place.
pub(crate) const COPIES_AFTER_KEPT: u8 = 32;
/// Pieces handed to one sendmsg(2).
pub(crate) const PIECES_PER_SEND: usize = 256;
/// Smaller amounts are copied: that costs less than making a new buffer if the protocol keeps this one.
pub(crate) const IN_PLACE_MIN: usize = 16 * 1024;

/// The loop's receive buffer: one large `bytes` object, kept warm.
///
/// A receive goes into the object's own memory. Little data is copied into a `bytes` of its size. Much data is handed
/// out as the object itself, without a copy, and if nobody kept it the next receive uses it again: an object that only
/// we refer to is as good as new. A protocol that does keep it gets copies for a while, so that it doesn't sit on
/// buffers that are larger than their content.
pub(crate) struct Received {
    /// Owned. The only reference, except while `Delivery::InPlace` is out.
    object: NonNull<ffi::PyBytesObject>,
}

// SAFETY: only touched by attached threads, and by one at a time: the loop's cell gives it to one of them.
unsafe impl Send for Received {}

/// Received data as a `bytes` object.
pub(crate) enum Delivery {
    Copied(Py<PyAny>),
    InPlace(*mut ffi::PyObject),
}

impl Received {
    /// Bytes that one receive takes at most: asyncio's `max_size`.
    pub(crate) const CAPACITY: usize = 256 * 1024;

    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        // SAFETY: the GIL is held; the result is a new object or null with an exception set.
        let object = unsafe {
            ffi::PyBytes_FromStringAndSize(std::ptr::null(), Self::CAPACITY as ffi::Py_ssize_t)
        };
        NonNull::new(object.cast())
            .map(|object| Self { object })
            .ok_or_else(|| PyErr::fetch(py))
    }

    /// Where the content begins: `CAPACITY` bytes, for whoever has this value to write to.
    pub(crate) fn memory(&self) -> *mut u8 {
        // SAFETY: the object is alive; its content begins at `ob_sval`.
        unsafe { (&raw mut (*self.object.as_ptr()).ob_sval).cast() }
    }

    /// Receives what the socket has, up to `CAPACITY`; for `cut_short` see `receive`.
    pub(crate) fn receive(&mut self, fd: RawFd, cut_short: Option<&mut bool>) -> io::Result<usize> {
        // SAFETY: the object has room for `CAPACITY` bytes, and nobody else refers to it (`&mut self`, not handed out).
        unsafe { receive(fd, self.memory(), Self::CAPACITY, cut_short) }
    }

    /// Receives up to `count_max` bytes, at most `CAPACITY`.
    pub(crate) fn receive_up_to(&mut self, fd: RawFd, count_max: usize) -> io::Result<usize> {
        // SAFETY: the object has room for `CAPACITY` bytes, and nobody else refers to it (`&mut self`, not handed out).
        unsafe { receive(fd, self.memory(), count_max.min(Self::CAPACITY), None) }
    }

    /// Receives a datagram, or its first `count_max` bytes, at most `CAPACITY`; and where it came from.
    pub(crate) fn receive_from(
        &mut self,
        fd: RawFd,
        count_max: usize,
    ) -> io::Result<(usize, Address)> {
        // SAFETY: the object has room for `CAPACITY` bytes, and nobody else refers to it (`&mut self`, not handed out).
        unsafe { receive_from(fd, self.memory(), count_max.min(Self::CAPACITY)) }
    }

    /// Reads what a pipe has, up to `CAPACITY`.
    pub(crate) fn read(&mut self, py: Python<'_>, fd: RawFd) -> io::Result<usize> {
        let memory = self.memory() as usize;
        // SAFETY: the object has room for `CAPACITY` bytes, and nobody else refers to it (`&mut self`, not handed out),
        // also while other threads run.
        released(py, move || unsafe {
            libc::read(fd, memory as *mut libc::c_void, Self::CAPACITY)
        })
    }

    /// The first `count` bytes received.
    pub(crate) fn bytes(&self, count: usize) -> &[u8] {
        debug_assert!(count <= Self::CAPACITY);
        // SAFETY: within the object; a receive has written the first `count` bytes.
        unsafe { std::slice::from_raw_parts(self.memory(), count) }
    }

    /// The same, to be changed in place.
    pub(crate) fn bytes_mut(&mut self, count: usize) -> &mut [u8] {
        debug_assert!(count <= Self::CAPACITY);
        // SAFETY: within the object; a receive has written the first `count` bytes. Nobody else refers to it, as `self`
        // is borrowed mutably and not handed out.
        unsafe { std::slice::from_raw_parts_mut(self.memory(), count) }
    }

    /// The first `count` bytes received, as an object for a protocol. Give it back with `put_back`.
    pub(crate) fn take(&mut self, py: Python<'_>, count: usize, copy: bool) -> Delivery {
        if (copy || count < IN_PLACE_MIN)
            // If there is no memory for a copy, the buffer itself is handed out, so that nothing is lost.
            && let Ok(copy) = objects::bytes(py, self.bytes(count))
        {
            return Delivery::Copied(copy.into_any().unbind());
        }
        // SAFETY: only we refer to the object, so it may still change: it gets its length and the final NUL that every
        // bytes object has, and forgets the hash of what it held before.
        unsafe {
            let object = self.object.as_ptr();
            (*object).ob_base.ob_size = count as ffi::Py_ssize_t;
            #[allow(deprecated)]
            {
                (*object).ob_shash = -1;
            }
            *self.memory().add(count) = 0;
            Delivery::InPlace(object.cast())
        }
    }

    /// The first `count` bytes received, for good; and the buffer, if it was not needed for them.
    pub(crate) fn hand_over(mut self, py: Python<'_>, count: usize) -> (Py<PyAny>, Option<Self>) {
        match self.take(py, count, true) {
            Delivery::Copied(copy) => (copy, Some(self)),
            // SAFETY: the object is alive, and `self` is forgotten together with its reference.
            Delivery::InPlace(object) => unsafe {
                std::mem::forget(self);
                (Bound::from_owned_ptr(py, object).unbind(), None)
            },
        }
    }

    /// Ends a delivery. An object that the protocol kept is the protocol's from now on, and None is left.
    pub(crate) fn put_back(self, delivery: &Delivery) -> Option<Self> {
        let kept = matches!(delivery, Delivery::InPlace(_)) && delivery.was_kept();
        (!kept).then_some(self)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        // SAFETY: every user of this module holds the GIL, and this reference is ours.
        unsafe { ffi::Py_DECREF(self.object.as_ptr().cast()) };
    }
}

impl Delivery {
    /// Borrowed.
    pub(crate) fn object(&self) -> *mut ffi::PyObject {
        match self {
            Self::Copied(object) => object.as_ptr(),
            Self::InPlace(object) => *object,
        }
    }

    /// True if somebody besides us refers to the object now.
    pub(crate) fn was_kept(&self) -> bool {
        // SAFETY: we own a reference, so the object is alive; the GIL is held by every caller.
        unsafe { !support::is_own(self.object()) }
    }
}

/// A piece of data that waits to be sent.
pub(crate) struct Chunk {
    content: Content,
    sent: usize,
}

enum Content {
    /// Immutable, so it is referred to.
    Bytes(Py<PyBytes>),
    /// The user may change the original, so it is copied.
    Copy(Box<[u8]>),
}

impl Chunk {
    /// The rest of `bytes` after the first `sent` of them.
    pub(crate) fn rest_of(bytes: &Bound<'_, PyBytes>, sent: usize) -> Self {
        Self {
            content: Content::Bytes(bytes.clone().unbind()),
            sent,
        }
    }

    /// Of bytes that are few.
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        Self {
            content: Content::Copy(bytes.into()),
            sent: 0,
        }
    }

    /// Of as many bytes as the user likes: `MemoryError` if there is no memory for a copy.
    pub(crate) fn copy_of_data(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        Ok(Self {
            content: Content::Copy(copy(py, bytes)?.into()),
            sent: 0,
        })
    }

    fn all(&self) -> &[u8] {
        match &self.content {
            // SAFETY: a bytes object is immutable and alive while referred to; reading its memory needs no GIL token.
            Content::Bytes(bytes) => unsafe {
                let object = bytes.as_ptr();
                std::slice::from_raw_parts(
                    ffi::PyBytes_AS_STRING(object).cast::<u8>(),
                    ffi::PyBytes_Size(object) as usize,
                )
            },
            Content::Copy(bytes) => bytes,
        }
    }

    fn rest(&self) -> &[u8] {
        &self.all()[self.sent..]
    }

    pub(crate) fn len(&self) -> usize {
        self.rest().len()
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.sent += count;
    }
}

/// A copy of as many bytes as the user likes: `MemoryError` if there is no memory for it.
pub(crate) fn copy(py: Python<'_>, bytes: &[u8]) -> PyResult<Vec<u8>> {
    let mut copy = Vec::new();
    if copy.try_reserve_exact(bytes.len()).is_err() {
        return Err(objects::error::<PyMemoryError>(py, ""));
    }
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Runs `body`, which runs no Python code, on the memory of a bytes-like object. The GIL is held throughout, so nobody
/// changes it meanwhile. Without the GIL, whoever changes a bytearray waits; who changes one by a memoryview may change what
/// is sent, as with any other program that reads such memory.
pub(crate) fn with_bytes<R>(
    data: &Bound<'_, PyAny>,
    body: impl FnOnce(&[u8]) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(bytes) = data.cast_exact::<PyBytes>() {
        return body(bytes.as_bytes());
    }
    let view = View::new(data, ffi::PyBUF_SIMPLE)?;
    with_critical_section(data, || body(view.bytes()))
}

/// Whether it is what a transport's `write` takes.
#[inline]
pub(crate) fn is_bytes_like(data: &Bound<'_, PyAny>) -> bool {
    data.is_instance_of::<PyBytes>()
        || data.is_instance_of::<PyByteArray>()
        || data.is_instance_of::<PyMemoryView>()
}

/// Bytes-like data as it is now, for a later use: `bytes` itself, or a copy. Data whose bytes can't be had, such as a view
/// that is not contiguous, is given back: whoever uses it will say so.
pub(crate) fn unchanging<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = data.py();
    if data.is_exact_instance_of::<PyBytes>() {
        return Ok(data.clone());
    }
    match with_bytes(data, |bytes| objects::bytes(py, bytes)) {
        Ok(copy) => Ok(copy.into_any()),
        Err(error) if error.is_instance_of::<PyBufferError>(py) => Ok(data.clone()),
        Err(error) => Err(error),
    }
}

/// The same of each of several: what `writelines` was given.
pub(crate) fn all_unchanging<'py>(
    list_of_data: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let pieces = list_of_data.try_iter()?.map(|data| {
        let data = data?;
        if data.is_exact_instance_of::<PyBytes>() {
            return Ok(data);
        }
        unchanging(PyMemoryView::from(&data)?.as_any())
    });
    objects::list(list_of_data.py(), pieces.collect::<PyResult<Vec<_>>>()?)
}

/// Whether data counts as empty. A subclass may define its own truth value, and asking a released view is an error.
#[inline]
pub(crate) fn is_empty(data: &Bound<'_, PyAny>) -> PyResult<bool> {
    match data.cast_exact::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().is_empty()),
        Err(_) => Ok(!data.is_truthy()?),
    }
}

/// An exported buffer, released when dropped.
pub(crate) struct View(Box<ffi::Py_buffer>);

impl View {
    pub(crate) fn new(data: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the GIL is held, and the view stays where it is until it is released.
        if unsafe { ffi::PyObject_GetBuffer(data.as_ptr(), &raw mut *view, flags) } != 0 {
            return Err(PyErr::fetch(data.py()));
        }
        Ok(Self(view))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: a simple view is contiguous, `len` bytes long, and valid until it is released.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.0.len as usize) }
    }
}

impl View {
    /// Where the content begins.
    pub(crate) fn memory(&self) -> *mut u8 {
        self.0.buf.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len as usize
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view was filled by PyObject_GetBuffer, and every user of this module holds the GIL.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// From this size on `sock_recv` receives straight into the `bytes` that it returns: the size is guessed from the last
/// receive, and a copy would cost more than a new object.
pub(crate) const DIRECT_MIN: usize = 32 * 1024;

/// Room for a little more than `habit` bytes. Not for much more: glibc maps and unmaps blocks over 128 KB at each use.
pub(crate) fn with_slack(habit: usize) -> usize {
    (habit + habit / 16 + 4096).min(Received::CAPACITY)
}

// Of CPython's C API (Include/cpython/bytesobject.h), in every version; PyO3 doesn't declare it.
unsafe extern "C" {
    fn _PyBytes_Resize(object: *mut *mut ffi::PyObject, size: ffi::Py_ssize_t) -> libc::c_int;
}

/// Shortens a new `bytes` object; null, with `MemoryError` set, if that fails.
///
/// # Safety
/// The GIL is held, and nobody else refers to the object, which has at least that many bytes.
pub(crate) unsafe fn resize_bytes(object: *mut *mut ffi::PyObject, size: usize) {
    // SAFETY: the GIL is held, nobody else refers to the object, and it has at least `size` bytes, which is the
    // function's contract.
    unsafe { _PyBytes_Resize(object, size as ffi::Py_ssize_t) };
}

/// Receives up to `capacity` bytes into a new `bytes` object. The inner error is that of recv(2), the outer one
/// `MemoryError`. `fd` is called last, right before the system call.
pub(crate) fn receive_bytes(
    py: Python<'_>,
    fd: impl FnOnce() -> RawFd,
    capacity: usize,
) -> PyResult<io::Result<(Py<PyAny>, usize)>> {
    // SAFETY: `fill_bytes` gives as much memory.
    fill_bytes(py, capacity, |memory| unsafe {
        receive(fd(), memory, capacity, None)
    })
}

/// Reads up to `capacity` bytes from a pipe into a new `bytes` object; errors as above.
pub(crate) fn read_bytes(
    py: Python<'_>,
    fd: RawFd,
    capacity: usize,
) -> PyResult<io::Result<(Py<PyAny>, usize)>> {
    fill_bytes(py, capacity, |memory| {
        let memory = memory as usize;
        // SAFETY: `fill_bytes` gives as much memory, of an object that nobody else has.
        released(py, move || unsafe {
            libc::read(fd, memory as *mut libc::c_void, capacity)
        })
    })
}

/// Makes a `bytes` object of what `fill` writes to the memory of `capacity` bytes that it is given.
fn fill_bytes(
    py: Python<'_>,
    capacity: usize,
    fill: impl FnOnce(*mut u8) -> io::Result<usize>,
) -> PyResult<io::Result<(Py<PyAny>, usize)>> {
    // SAFETY: the GIL is held; the new object has room for `capacity` bytes, nobody else refers to it until it is
    // returned, and resizing leaves null (with an exception set) or an object of the new length.
    unsafe {
        let mut object =
            ffi::PyBytes_FromStringAndSize(std::ptr::null(), capacity as ffi::Py_ssize_t);
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        let memory = ffi::PyBytes_AsString(object).cast::<u8>();
        match fill(memory) {
            Ok(count) => {
                _PyBytes_Resize(&raw mut object, count as ffi::Py_ssize_t);
                Bound::from_owned_ptr_or_err(py, object).map(|bytes| Ok((bytes.unbind(), count)))
            }
            Err(error) => {
                ffi::Py_DECREF(object);
                Ok(Err(error))
            }
        }
    }
}

/// Receives into a writable bytes-like object: the result of recv(2), and the capacity. `Err` if it isn't such an
/// object. For `cut_short` see `receive`. `fd` is called last, because exporting the buffer may run the object's own
/// code.
pub(crate) fn receive_into(
    fd: impl FnOnce() -> RawFd,
    buffer: &Bound<'_, PyAny>,
    cut_short: Option<&mut bool>,
) -> PyResult<(io::Result<usize>, usize)> {
    let view = View::new(buffer, ffi::PyBUF_WRITABLE)?;
    let capacity = view.0.len as usize;
    if capacity == 0 {
        // As in the socket module: receiving no bytes is no system call.
        return Ok((Ok(0), 0));
    }
    // SAFETY: the view is writable and `capacity` bytes long until it is released.
    let result = unsafe { receive(fd(), view.0.buf.cast(), capacity, cut_short) };
    Ok((result, capacity))
}

/// Receives a datagram, or its first `count_max` bytes, into a writable bytes-like object: the number of bytes, and
/// where it came from. None if the object is smaller than that, `Err` if it isn't such an object. `fd` is called last,
/// as above.
pub(crate) fn receive_from_into(
    fd: impl FnOnce() -> RawFd,
    buffer: &Bound<'_, PyAny>,
    count_max: usize,
) -> PyResult<Option<io::Result<(usize, Address)>>> {
    let view = View::new(buffer, ffi::PyBUF_WRITABLE)?;
    if count_max > view.0.len as usize {
        return Ok(None);
    }
    // SAFETY: the view is writable and at least `count_max` bytes long until it is released.
    Ok(Some(unsafe {
        receive_from(fd(), view.0.buf.cast(), count_max)
    }))
}

/// recvfrom(2).
///
/// # Safety
/// `memory` is valid for writing `capacity` bytes.
unsafe fn receive_from(
    fd: RawFd,
    memory: *mut u8,
    capacity: usize,
) -> io::Result<(usize, Address)> {
    // SAFETY: all-zero is a valid address storage.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&name) as libc::socklen_t;
    metrics::count_system_call();
    // SAFETY: `memory` is valid for writing `capacity` bytes, which is the function's contract; `length` tells the size
    // of `name`.
    let received = unsafe {
        libc::recvfrom(
            fd,
            memory.cast(),
            capacity,
            libc::MSG_DONTWAIT,
            (&raw mut name).cast(),
            &raw mut length,
        )
    };
    Ok((count(received)?, Address::from_kernel(&name, length)))
}

/// recv(2); or recvmsg(2) if `cut_short` is wanted, which tells whether descriptors or credentials came along. A read
/// of a Unix stream ends at these, even if there is more data behind them. They are dropped, as by recv(2).
///
/// # Safety
/// `memory` is valid for writing `capacity` bytes.
unsafe fn receive(
    fd: RawFd,
    memory: *mut u8,
    capacity: usize,
    cut_short: Option<&mut bool>,
) -> io::Result<usize> {
    let Some(cut_short) = cut_short else {
        // SAFETY: `memory` is valid for writing `capacity` bytes, which is the function's contract.
        return count(unsafe { libc::recv(fd, memory.cast(), capacity, libc::MSG_DONTWAIT) });
    };
    let mut piece = libc::iovec {
        iov_base: memory.cast(),
        iov_len: capacity,
    };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    // SAFETY: the message has one piece, `capacity` bytes of `memory`, which may be written to by the function's
    // contract. It has no room for a name or control data.
    let received = count(unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) })?;
    *cut_short = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(received)
}

/// send(2): the number of bytes that the socket took, 0 where it is full.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the slice is valid for reading.
        let sent = unsafe {
            libc::send(
                fd,
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            )
        };
        match count(sent) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// sendmsg(2) of up to `PIECES_PER_SEND` pieces.
pub(crate) fn send_pieces<'a>(
    fd: RawFd,
    chunks: impl Iterator<Item = &'a Chunk>,
) -> io::Result<usize> {
    let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; PIECES_PER_SEND];
    let used = describe(&mut pieces, chunks);
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr().cast();
    message.msg_iovlen = used as _;
    loop {
        // SAFETY: the first `used` pieces are initialised and point into chunks that live for the call.
        let sent = unsafe {
            libc::sendmsg(
                fd,
                &raw const message,
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            )
        };
        match count(sent) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// write(2): the number of bytes that a pipe took. The bytes must stay as they are while other threads run.
pub(crate) fn write(py: Python<'_>, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the slice is valid for reading.
    released(py, || unsafe {
        libc::write(fd, bytes.as_ptr().cast(), bytes.len())
    })
}

/// writev(2) of the first `PIECES_PER_SEND` pieces: the number of bytes that a pipe took, and of pieces that it took
/// whole. The one after these is advanced.
pub(crate) fn write_pieces(
    py: Python<'_>,
    fd: RawFd,
    chunks: &mut VecDeque<Chunk>,
) -> io::Result<(usize, usize)> {
    let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; PIECES_PER_SEND];
    let used = describe(&mut pieces, chunks.iter());
    let address = pieces.as_ptr() as usize;
    // SAFETY: the first `used` pieces are initialised and point into chunks that live for the call. Nobody else has
    // them, and their content doesn't change.
    let written = released(py, move || unsafe {
        libc::writev(fd, address as *const libc::iovec, used as _)
    })?;
    let mut rest = written;
    let mut whole = 0;
    for chunk in chunks {
        if chunk.len() > rest {
            chunk.advance(rest);
            break;
        }
        rest -= chunk.len();
        whole += 1;
    }
    Ok((written, whole))
}

/// Describes as many chunks as there is room for; returns how many.
fn describe<'a>(
    pieces: &mut [MaybeUninit<libc::iovec>],
    chunks: impl Iterator<Item = &'a Chunk>,
) -> usize {
    let mut used = 0;
    for (piece, chunk) in pieces.iter_mut().zip(chunks) {
        let bytes = chunk.rest();
        piece.write(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
        used += 1;
    }
    used
}

/// Makes a system call that may block, for example if somebody else has made the file blocking, with the GIL released.
fn released(py: Python<'_>, call: impl FnOnce() -> isize + Send) -> io::Result<usize> {
    let _sleeps_at_exit = SleepsAtExit::new();
    cell::expect_none_borrowed("a system call waits");
    let result = py.detach(|| usize::try_from(call()).map_err(|_| io::Error::last_os_error()));
    metrics::count_system_call();
    result
}

/// Sends small pieces without waiting for acknowledgements: `TCP_NODELAY`.
pub(crate) fn disable_nagle(fd: RawFd) -> bool {
    metrics::count_system_call();
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int that lives for the call.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    result == 0
}

/// shutdown(2) of the sending side.
pub(crate) fn shut_down_writing(fd: RawFd) -> io::Result<()> {
    // SAFETY: a system call on a descriptor number.
    count(unsafe { libc::shutdown(fd, libc::SHUT_WR) } as isize).map(drop)
}

/// The result of a system call.
fn count(result: isize) -> io::Result<usize> {
    let result = usize::try_from(result).map_err(|_| io::Error::last_os_error());
    metrics::count_system_call();
    result
}
