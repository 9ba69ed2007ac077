//! Files: what is done at once, on the loop's thread, and what the driver does.
//!
//! `ringloop.files` is Python. Here is what it needs of the kernel. [`direct`] has the calls that never wait: they
//! return None where the kernel would have to. [`FileOperation`] is for those that may take as long as they like.

#![allow(unsafe_code)]

mod beneath;
mod direct;
mod mounts;
mod status;

use std::ffi::CString;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::{Buffer, Bytes, Event, FileStatus, Op, SharedFd, Token};

use crate::buffers;
use crate::cell::GilCell;
use crate::event_loop::Loop;
use crate::handle::Call;
use crate::names::intern;
use crate::objects::{self, New};
use crate::operations::Submitted;
use crate::queue::Ready;
use crate::scheduling;
use crate::support;

/// The result of an operation.
enum Outcome {
    /// The bytes that were read.
    Bytes(Vec<u8>),
    /// The number of bytes written.
    Count(u32),
    /// The file that was opened.
    Opened(OwnedFd),
    Status(Box<FileStatus>),
    Nothing,
    Failed(i32),
}

/// An operation of the driver on a file, as the one who waits for it sees it. The buffer is the driver's until it is
/// over.
#[pyclass(module = "ringloop._core", frozen)]
pub(crate) struct FileOperation {
    event_loop: Py<Loop>,
    token: GilCell<Option<Token>>,
    outcome: GilCell<Option<Outcome>>,
}

#[pymethods]
impl FileOperation {
    /// Asks the kernel to end the operation. Its callback is called in any case.
    fn cancel(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (this, py) = (slf.get(), slf.py());
        let Some(token) = *this.token.get(py) else {
            return Ok(());
        };
        let event_loop = this.event_loop.bind(py);
        if event_loop.get().is_closed() {
            return Ok(());
        }
        let asked = event_loop.get().with_reactor_if_here(py, |reactor| {
            reactor.driver_mut().cancel(token);
        });
        if asked.is_none() {
            // Another thread waits in the loop: the coroutine that waits for the operation is closed by a collector, say.
            let again = slf.getattr(intern!(py, "cancel"))?;
            event_loop.call_method1(intern!(py, "call_soon_threadsafe"), (again,))?;
        }
        Ok(())
    }

    /// The bytes that were read, how many were written, the descriptor that was opened (the caller's from then on), or
    /// the `os.stat_result`, or None; or the `OSError`. To be asked once, when it is over.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.outcome.replace(py, None) {
            Some(Outcome::Bytes(content)) => Ok(objects::bytes(py, &content)?.into_any()),
            Some(Outcome::Count(count)) => Ok(New(count).into_pyobject(py)?.into_any()),
            Some(Outcome::Opened(fd)) => {
                let number = New(fd.as_raw_fd()).into_pyobject(py)?;
                // The number is the caller's now.
                let _ = fd.into_raw_fd();
                Ok(number.into_any())
            }
            Some(Outcome::Status(status)) => status::to_python(py, &status),
            Some(Outcome::Nothing) => Ok(py.None().into_bound(py)),
            Some(Outcome::Failed(errno)) => Err(support::errno_error(py, errno)),
            None => Err(objects::error::<PyRuntimeError>(
                py,
                "the operation has no result yet, or it was taken",
            )),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)
    }
}

/// Reads up to `size` bytes. Without an offset, as read(2) does; only for files that have no position.
pub(crate) fn read<'py>(
    event_loop: &Bound<'py, Loop>,
    fd: RawFd,
    size: usize,
    offset: Option<u64>,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let py = event_loop.py();
    let mut buffer = Vec::new();
    if size == 0 {
        let text = "cannot read no bytes";
        return Err(objects::error::<PyValueError>(py, text));
    }
    if buffer.try_reserve_exact(size).is_err() {
        return Err(objects::error::<PyMemoryError>(py, ""));
    }
    let op = Op::Read {
        fd: lent(fd),
        buffer: Buffer::new(buffer),
        offset,
    };
    submit(event_loop, op, callback)
}

/// Writes a bytes-like object, of which it makes a copy.
pub(crate) fn write<'py>(
    event_loop: &Bound<'py, Loop>,
    fd: RawFd,
    data: &Bound<'py, PyAny>,
    offset: Option<u64>,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let op = Op::Write {
        fd: lent(fd),
        bytes: Bytes::new(buffers::with_bytes(data, |bytes| {
            buffers::copy(data.py(), bytes)
        })?),
        start: 0,
        offset,
    };
    submit(event_loop, op, callback)
}

/// fsync(2) or fdatasync(2).
pub(crate) fn sync<'py>(
    event_loop: &Bound<'py, Loop>,
    fd: RawFd,
    data_only: bool,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let op = Op::Fsync {
        fd: lent(fd),
        data_only,
    };
    submit(event_loop, op, callback)
}

/// Opens a file. Its descriptor is close-on-exec.
pub(crate) fn open<'py>(
    event_loop: &Bound<'py, Loop>,
    path: &[u8],
    (flags, mode): (i32, u32),
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let op = Op::OpenAt {
        directory: None,
        path: terminated(event_loop.py(), path)?,
        flags,
        mode,
    };
    submit(event_loop, op, callback)
}

/// Returns what stat(2) or lstat(2) returns.
pub(crate) fn stat<'py>(
    event_loop: &Bound<'py, Loop>,
    path: &[u8],
    follow: bool,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let op = Op::Statx {
        directory: None,
        path: terminated(event_loop.py(), path)?,
        flags: status::flags(follow),
        mask: libc::STATX_BASIC_STATS,
        status: Box::default(),
    };
    submit(event_loop, op, callback)
}

/// rename(2).
pub(crate) fn rename<'py>(
    event_loop: &Bound<'py, Loop>,
    from: &[u8],
    to: &[u8],
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let py = event_loop.py();
    let op = Op::RenameAt {
        from_directory: None,
        from: terminated(py, from)?,
        to_directory: None,
        to: terminated(py, to)?,
        flags: 0,
    };
    submit(event_loop, op, callback)
}

/// unlink(2), or rmdir(2) if it `is_directory`.
pub(crate) fn remove<'py>(
    event_loop: &Bound<'py, Loop>,
    path: &[u8],
    is_directory: bool,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let op = Op::UnlinkAt {
        directory: None,
        path: terminated(event_loop.py(), path)?,
        flags: if is_directory { libc::AT_REMOVEDIR } else { 0 },
    };
    submit(event_loop, op, callback)
}

/// mkdir(2).
pub(crate) fn make_directory<'py>(
    event_loop: &Bound<'py, Loop>,
    path: &[u8],
    mode: u32,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let op = Op::MkDirAt {
        directory: None,
        path: terminated(event_loop.py(), path)?,
        mode,
    };
    submit(event_loop, op, callback)
}

/// A path for the kernel.
fn terminated(py: Python<'_>, path: &[u8]) -> PyResult<CString> {
    CString::new(path).map_err(|_| objects::error::<PyValueError>(py, "embedded null byte"))
}

fn lent(fd: RawFd) -> SharedFd {
    // SAFETY: the callback of an operation keeps what has the descriptor alive, which does not close it while an operation
    // is in progress, even if nobody has the file any longer (`ringloop.files._descriptor`). A program that closes the number behind its back
    // gets what it would get from read(2) in another thread.
    unsafe { SharedFd::borrow_raw(fd) }
}

/// Submits an operation. `callback` is called with it in the loop when it is over.
fn submit<'py>(
    event_loop: &Bound<'py, Loop>,
    op: Op,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, FileOperation>> {
    let py = event_loop.py();
    let this = event_loop.get();
    this.check_closed(py)?;
    let operation = Bound::new(
        py,
        FileOperation {
            event_loop: event_loop.clone().unbind(),
            token: GilCell::new(None),
            outcome: GilCell::new(None),
        },
    )?;
    let call = Call {
        callback: callback.as_ptr(),
        arguments: &[operation.as_ptr()],
        context: ptr::null_mut(),
    };
    let handle = scheduling::handle_in_table(event_loop, &call)?;
    let submitted = Submitted {
        operation: operation.clone().into_any().unbind(),
        handle: handle.unbind(),
    };
    let result = {
        // One step, as `complete` drops the results of operations that aren't entered, and without the GIL another thread
        // may submit one.
        let mut operations = this.operations.get_mut(py);
        let token = this.with_reactor_if_here(py, |reactor| reactor.driver_mut().submit(op));
        if let Some(Ok(token)) = &token {
            *operation.get().token.get_mut(py) = Some(*token);
            operations.enter(*token, submitted);
        }
        token
    };
    match result {
        Some(Ok(_)) => Ok(operation),
        Some(Err(error)) => Err(support::os_error(py, &error.into())),
        None => Err(this.reactor_is_absent(py)),
    }
}

/// Stores the result of an operation that is over: what is to be queued. Runs no Python code.
#[cold]
pub(crate) fn complete(py: Python<'_>, this: &Loop, event: &Event) -> Option<Ready> {
    if event.is_more() {
        return None;
    }
    let submitted = this.operations.get_mut(py).take_out(event.token())?;
    let (op, opened) = match &mut *this.reactor.get_mut(py) {
        Some(reactor) => {
            let driver = reactor.driver_mut();
            (driver.take(event.token()), driver.take_fd(event))
        }
        None => (None, None),
    };
    let outcome = match (event.io_result(), op) {
        (Ok(_), Some(Op::Read { buffer, .. })) => match buffer.into_owner() {
            Ok(bytes) => Outcome::Bytes(bytes),
            Err(_) => Outcome::Failed(libc::EIO),
        },
        (Ok(_), Some(Op::Statx { status, .. })) => Outcome::Status(status),
        (Ok(_), Some(Op::OpenAt { .. })) => match opened {
            Some(file) => Outcome::Opened(file),
            None => Outcome::Failed(libc::EBADF),
        },
        (Ok(count), Some(Op::Write { .. })) => Outcome::Count(count),
        (Ok(_), _) => Outcome::Nothing,
        (Err(error), _) => Outcome::Failed(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    if let Ok(operation) = submitted.operation.bind(py).cast::<FileOperation>() {
        *operation.get().token.get_mut(py) = None;
        drop(operation.get().outcome.replace(py, Some(outcome)));
    }
    // The handle refers to the operation, so nothing is freed with this reference.
    Some(Ready::from_object(submitted.handle.bind(py)))
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FileOperation>()?;
    beneath::add_to(module)?;
    direct::add_to(module)?;
    mounts::add_to(module)
}
