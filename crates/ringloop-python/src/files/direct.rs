//! Calls that never wait: what is in the page cache is read, and what is in the directory cache opened, on the loop's
//! thread.
//!
//! preadv2(2) with `RWF_NOWAIT` fails with `EAGAIN` where the kernel would have to wait for a disk, and openat2(2) with
//! `RESOLVE_CACHED` where it would have to look up a name on one. These are the criteria by which io_uring itself decides
//! what it does at once.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::CString;
use std::mem;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCFunction};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_reactor::clock;

use super::{beneath, mounts};
use crate::buffers::{self, View};
use crate::names::intern;
use crate::objects;
use crate::support;

/// A task that finds everything in the cache would never suspend. After this time without a turn of the loop, its
/// direct calls pretend that they would have to wait.
const BURST_NS_MAX: u64 = 1_000_000;
/// While more bytes than this are copied, other threads may have the GIL.
const DETACHED_MIN: usize = 256 * 1024;
/// No direct call transfers more than this, about 200 us. Beyond, the loop may turn.
const DIRECT_MAX: usize = 2 * 1024 * 1024;

/// Direct calls of one task, without a turn of the loop.
#[derive(Clone, Copy)]
struct Burst {
    /// When the first was made, or 0.
    begin_ns: u64,
    /// The addresses of the task and of its loop, to be compared only.
    task: usize,
    event_loop: usize,
}

const NO_BURST: Burst = Burst {
    begin_ns: 0,
    task: 0,
    event_loop: 0,
};

thread_local! {
    static BURST: Cell<Burst> = const { Cell::new(NO_BURST) };
}

/// The operations on a file that the kernel can do without waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Ability {
    /// `RWF_NOWAIT` says whether it would wait.
    Tells = 0,
    /// It never waits, for there is no device: a file system in memory.
    Memory,
    /// Nobody knows.
    Unknown,
}

impl Ability {
    fn of(value: u8) -> Self {
        match value {
            0 => Self::Tells,
            1 => Self::Memory,
            _ => Self::Unknown,
        }
    }

    /// That of a file that refuses `RWF_NOWAIT`.
    fn without_flag(fd: RawFd) -> Self {
        // SAFETY: the struct is plain data, and large enough.
        let (result, status) = unsafe {
            let mut status: libc::statfs = mem::zeroed();
            (libc::fstatfs(fd, &raw mut status), status)
        };
        #[allow(clippy::unnecessary_cast, reason = "the type depends on the platform")]
        let (kind, tmpfs) = (status.f_type as i64, libc::TMPFS_MAGIC as i64);
        if result == 0 && (kind == tmpfs || kind == RAMFS_MAGIC) {
            Self::Memory
        } else {
            Self::Unknown
        }
    }
}

/// How often this process has forked. Each child has inherited the files that were open.
static FORKS: AtomicU64 = AtomicU64::new(0);

// linux/magic.h
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// The outcome of a direct transfer.
enum Transferred {
    Bytes(usize),
    WouldWait,
    Failed(i32),
}

/// A file's descriptor, for calls that never wait.
#[pyclass(module = "ringloop._core", frozen)]
pub(super) struct DirectFile {
    /// -1 once closed.
    fd: AtomicI32,
    /// A short transfer is the end of the file.
    is_regular: bool,
    event_loop: Py<PyAny>,
    reading: AtomicU8,
    writing: AtomicU8,
    /// Others may have the file, and move its position.
    shared: AtomicBool,
    /// `FORKS` when it was opened.
    forks: u64,
}

#[pymethods]
impl DirectFile {
    /// Of a file that `is_remote`, no call is known not to wait.
    #[new]
    fn new(
        fd: RawFd,
        is_regular: bool,
        is_remote: bool,
        shared: bool,
        event_loop: Py<PyAny>,
    ) -> Self {
        let ability = if is_remote {
            Ability::Unknown
        } else {
            Ability::Tells
        };
        Self {
            fd: AtomicI32::new(fd),
            is_regular,
            event_loop,
            reading: AtomicU8::new(ability as u8),
            writing: AtomicU8::new(ability as u8),
            shared: AtomicBool::new(shared),
            forks: FORKS.load(Relaxed),
        }
    }

    /// Notes that others may have the file from now on.
    fn share(&self) {
        self.shared.store(true, Relaxed);
    }

    /// Whether others may have the file, and move its position: it was shared, or the process has forked since it was
    /// opened. Reads at its position are then never undone, so a read may give fewer bytes than asked for before the end.
    fn is_shared(&self) -> bool {
        self.shared.load(Relaxed) || self.forks != FORKS.load(Relaxed)
    }

    /// Reads up to `size` bytes at an offset, or with -1 at the file's position, which moves. Fewer from a regular file
    /// are the last, unless it is shared. None if that would wait, or if the loop has not turned for too long; nothing
    /// has happened then.
    #[pyo3(signature = (size, offset, /))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: i64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(fd) = self.begin(py, size, &self.reading)? else {
            return Ok(None);
        };
        // SAFETY: the GIL is held; the new object has room for `size` bytes, nobody else refers to it until it is
        // returned, and resizing leaves null (with an exception set) or an object of the new length.
        unsafe {
            let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size as ffi::Py_ssize_t);
            if object.is_null() {
                return Err(PyErr::fetch(py));
            }
            let memory = ffi::PyBytes_AsString(object).cast::<u8>();
            let transferred = self.transfer_in(py, fd, (memory, size), offset);
            let mut object = Bound::from_owned_ptr(py, object).into_ptr();
            match transferred {
                Transferred::Bytes(count) => {
                    if count < size {
                        buffers::resize_bytes(&raw mut object, count);
                    }
                    Bound::from_owned_ptr_or_err(py, object)
                        .map(|bytes| Some(bytes.cast_into_unchecked()))
                }
                Transferred::WouldWait => {
                    ffi::Py_DECREF(object);
                    Ok(None)
                }
                Transferred::Failed(errno) => {
                    ffi::Py_DECREF(object);
                    Err(support::errno_error(py, errno))
                }
            }
        }
    }

    /// Reads a regular file from its position to its end. None as for `read`, and for other files and shared ones.
    fn read_all<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let fd = self.ready(py)?;
        let ability = Ability::of(self.reading.load(Relaxed));
        if !self.is_regular || ability == Ability::Unknown || self.is_shared() {
            return Ok(None);
        }
        // SAFETY: the struct is plain data, and large enough; otherwise system calls on a number.
        let (result, size, position) = unsafe {
            let mut status: libc::stat = mem::zeroed();
            let result = libc::fstat(fd, &raw mut status);
            (result, status.st_size, libc::lseek(fd, 0, libc::SEEK_CUR))
        };
        if result != 0 || position < 0 {
            return Ok(None);
        }
        // One more: a read that gives less has found the end.
        let room = usize::try_from(size - position).unwrap_or(0) + 1;
        let content = self.read(py, room, -1)?;
        if let Some(content) = &content
            && content.as_bytes().len() == room
        {
            // The file has grown since.
            // SAFETY: a system call on a number.
            unsafe { libc::lseek(fd, position, libc::SEEK_SET) };
            return Ok(None);
        }
        Ok(content)
    }

    /// The same into a writable bytes-like object: how many bytes.
    #[pyo3(signature = (buffer, offset, /))]
    fn readinto(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: i64,
    ) -> PyResult<Option<usize>> {
        let view = View::new(buffer, ffi::PyBUF_WRITABLE)?;
        let Some(fd) = self.begin(py, view.len(), &self.reading)? else {
            return Ok(None);
        };
        // SAFETY: the view is writable, of this length, and lives to the end of the function.
        let transferred = unsafe { self.transfer_in(py, fd, (view.memory(), view.len()), offset) };
        settle(py, &transferred)
    }

    /// Writes a bytes-like object at an offset, or with -1 at the file's position: how many bytes, perhaps fewer. None
    /// as for `read`.
    #[pyo3(signature = (data, offset, /))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: i64,
    ) -> PyResult<Option<usize>> {
        let view = View::new(data, ffi::PyBUF_SIMPLE)?;
        let Some(fd) = self.begin(py, view.len(), &self.writing)? else {
            return Ok(None);
        };
        let memory = Memory(view.memory(), view.len());
        let transferred = detached(py, view.len(), || {
            let part = memory.rest(0);
            self.attempt(fd, &self.writing, |flags| {
                // SAFETY: the view has this many bytes to read, and lives to the end of the function.
                unsafe { transfer(libc::SYS_pwritev2, fd, &part, offset, flags) }
            })
        });
        settle(py, &transferred)
    }

    /// Makes later calls raise `ValueError`.
    fn close(&self) {
        self.fd.store(-1, Relaxed);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)
    }
}

fn settle(py: Python<'_>, transferred: &Transferred) -> PyResult<Option<usize>> {
    match *transferred {
        Transferred::Bytes(count) => Ok(Some(count)),
        Transferred::WouldWait => Ok(None),
        Transferred::Failed(errno) => Err(support::errno_error(py, errno)),
    }
}

/// Where a buffer begins, and its size.
struct Memory(*mut u8, usize);

// SAFETY: it is only used in the thread that made it. `Python::detach` asks for this so that no objects are touched
// without the GIL, and here are none.
unsafe impl Sync for Memory {}

impl Memory {
    /// The bytes after the first `done`, of which there must be as many.
    fn rest(&self, done: usize) -> libc::iovec {
        libc::iovec {
            iov_base: self.0.wrapping_add(done).cast(),
            iov_len: self.1 - done,
        }
    }
}

impl DirectFile {
    /// The descriptor. An error if the file is closed, or another loop's.
    #[inline]
    fn ready(&self, py: Python<'_>) -> PyResult<RawFd> {
        let fd = self.fd.load(Relaxed);
        if fd < 0 {
            return Err(objects::error::<PyValueError>(
                py,
                "I/O operation on closed file.",
            ));
        }
        if !running_loop(py)?.is(&self.event_loop) {
            return Err(objects::error::<PyRuntimeError>(
                py,
                "this file belongs to another event loop; open it in the loop that uses it",
            ));
        }
        Ok(fd)
    }

    /// The descriptor for a transfer of this size, with what is known of the file. None where it is not to be tried.
    #[inline]
    fn begin(&self, py: Python<'_>, size: usize, known: &AtomicU8) -> PyResult<Option<RawFd>> {
        let fd = self.ready(py)?;
        let may_work = size <= DIRECT_MAX && Ability::of(known.load(Relaxed)) != Ability::Unknown;
        Ok((may_work && self.may_go_on(py)?).then_some(fd))
    }

    /// Whether the loop has turned recently. The first direct call of a turn asks the loop to say when it has.
    #[inline]
    fn may_go_on(&self, py: Python<'_>) -> PyResult<bool> {
        let burst = BURST.get();
        let event_loop = self.event_loop.as_ptr() as usize;
        if burst.begin_ns != 0 && burst.event_loop == event_loop {
            return Ok(!burst.is_over() || !continues(py, burst)?);
        }
        static END: PyOnceLock<Py<PyCFunction>> = PyOnceLock::new();
        let end = END.get_or_try_init(py, || wrap_pyfunction!(end_burst, py).map(Bound::unbind))?;
        self.event_loop
            .bind(py)
            .call_method1(intern!(py, "call_soon"), (end,))?;
        begin_burst(current_task(py)?, event_loop);
        Ok(true)
    }

    /// Reads into memory: everything up to the end of a regular file, and of others what one call gives.
    ///
    /// # Safety
    /// There is room for that many bytes, to which nobody else refers.
    unsafe fn transfer_in(
        &self,
        py: Python<'_>,
        fd: RawFd,
        (memory, size): (*mut u8, usize),
        offset: i64,
    ) -> Transferred {
        let memory = Memory(memory, size);
        detached(py, size, || {
            let mut done = 0;
            loop {
                let rest = memory.rest(done);
                let from = if offset < 0 { -1 } else { offset + done as i64 };
                let transferred = self.attempt(fd, &self.reading, |flags| {
                    // SAFETY: `rest` lies in the memory of `size` bytes that may be written to, which is the function's
                    // contract.
                    unsafe { transfer(libc::SYS_preadv2, fd, &rest, from, flags) }
                });
                match transferred {
                    Transferred::Bytes(count) => {
                        done += count;
                        if count == 0 || done == size || !self.is_regular {
                            return Transferred::Bytes(done);
                        }
                    }
                    // Others may have gone on from there.
                    Transferred::WouldWait if done > 0 && offset < 0 && self.is_shared() => {
                        return Transferred::Bytes(done);
                    }
                    Transferred::WouldWait if done > 0 && offset < 0 => {
                        // The rest is not in the cache: the whole is read again, from the beginning.
                        // SAFETY: a system call on a number.
                        unsafe { libc::lseek(fd, -(done as i64), libc::SEEK_CUR) };
                        return Transferred::WouldWait;
                    }
                    Transferred::Failed(_) if done > 0 => return Transferred::Bytes(done),
                    other => return other,
                }
            }
        })
    }

    /// One system call, with the flags that this file takes.
    fn attempt(
        &self,
        fd: RawFd,
        known: &AtomicU8,
        call: impl Fn(libc::c_int) -> isize,
    ) -> Transferred {
        loop {
            let ability = Ability::of(known.load(Relaxed));
            let flags = match ability {
                Ability::Tells => libc::RWF_NOWAIT,
                Ability::Memory => 0,
                Ability::Unknown => return Transferred::WouldWait,
            };
            let result = call(flags);
            if let Ok(count) = usize::try_from(result) {
                return Transferred::Bytes(count);
            }
            let errno = last_errno();
            match errno {
                libc::EAGAIN => return Transferred::WouldWait,
                libc::EINTR => {}
                libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL if ability == Ability::Tells => {
                    known.store(Ability::without_flag(fd) as u8, Relaxed);
                }
                _ => return Transferred::Failed(errno),
            }
        }
    }
}

fn last_errno() -> i32 {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Copies much without the GIL.
fn detached<R: Send>(py: Python<'_>, size: usize, body: impl FnOnce() -> R + Send) -> R {
    if size >= DETACHED_MIN {
        py.detach(body)
    } else {
        body()
    }
}

/// The loop that runs in this thread, or None.
#[inline]
fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET.get_or_try_init(py, || {
        py.import(intern!(py, "asyncio.events"))?
            .getattr(intern!(py, "_get_running_loop"))
            .map(Bound::unbind)
    })?
    .bind(py)
    .call0()
}

impl Burst {
    #[inline]
    fn is_over(self) -> bool {
        clock::now_ns().saturating_sub(self.begin_ns) >= BURST_NS_MAX
    }
}

fn begin_burst(task: usize, event_loop: usize) {
    BURST.set(Burst {
        begin_ns: clock::now_ns(),
        task,
        event_loop,
    });
}

/// Whether a burst is that of the running task. Others begin one of their own: that a thousand tasks take a while is
/// nothing that waiting would change.
fn continues(py: Python<'_>, burst: Burst) -> PyResult<bool> {
    let task = current_task(py)?;
    if task == burst.task {
        return Ok(true);
    }
    begin_burst(task, burst.event_loop);
    Ok(false)
}

fn current_task(py: Python<'_>) -> PyResult<usize> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let task = GET
        .get_or_try_init(py, || {
            py.import(intern!(py, "asyncio.tasks"))?
                .getattr(intern!(py, "current_task"))
                .map(Bound::unbind)
        })?
        .bind(py)
        .call0()?;
    Ok(task.as_ptr() as usize)
}

/// The loop has turned.
#[pyfunction]
#[pyo3(name = "_end_burst")]
fn end_burst() {
    BURST.set(NO_BURST);
}

/// Whether direct calls of this task return None until the loop has turned.
#[pyfunction]
#[pyo3(name = "_burst_is_over")]
fn burst_is_over(py: Python<'_>) -> PyResult<bool> {
    let burst = BURST.get();
    Ok(burst.begin_ns != 0 && burst.is_over() && continues(py, burst)?)
}

/// Counts a fork. Called after it, in the parent and in the child: both have the files that were open.
#[pyfunction]
#[pyo3(name = "_count_fork")]
fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// Opens an existing regular file, if its name is in the directory cache and its file system asks nobody: the descriptor.
/// None in all other cases, errors included: the caller then opens it in the usual way.
#[pyfunction]
#[pyo3(name = "_open_cached", signature = (path, flags, /))]
fn open_cached(path: &[u8], flags: i32) -> Option<RawFd> {
    if flags & (libc::O_CREAT | libc::O_TRUNC) != 0 {
        return None;
    }
    let path = CString::new(path).ok()?;
    // Opening a FIFO or a device may wait, and has effects. So the file is looked at first. If it is replaced meanwhile,
    // O_NONBLOCK keeps the open from waiting.
    let looked_at = open_if_cached(&path, libc::O_PATH)?;
    let glance = mounts::glance(looked_at.as_raw_fd());
    drop(looked_at);
    if !glance.is_some_and(|glance| glance.is_regular && !glance.is_remote) {
        return None;
    }
    let file = open_if_cached(&path, flags | libc::O_NONBLOCK)?;
    let fd = file.as_raw_fd();
    // SAFETY: a system call on a number. Without O_NONBLOCK the flags are as open(2) would have left them.
    let cleared = unsafe { libc::fcntl(fd, libc::F_SETFL, flags) == 0 };
    let is_regular = mounts::glance(fd).is_some_and(|glance| glance.is_regular);
    (cleared && is_regular).then(|| file.into_raw_fd())
}

/// `preadv2(2)` or `pwritev2(2)` of one buffer, by number: musl has these functions only since 1.2.5.
///
/// # Safety
/// The buffer is valid for as many bytes as it says: for writes with `SYS_preadv2`, and for reads with `SYS_pwritev2`.
unsafe fn transfer(
    call: libc::c_long,
    fd: RawFd,
    buffer: &libc::iovec,
    offset: i64,
    flags: i32,
) -> isize {
    // SAFETY: the buffer is valid for as many bytes as it says, which is the function's contract. The offset comes in
    // two halves, of which 64-bit kernels use only the first.
    let transferred = unsafe {
        libc::syscall(
            call,
            fd,
            &raw const *buffer,
            1_usize,
            offset as libc::c_long,
            (offset >> 32) as libc::c_long,
            flags,
        )
    };
    transferred as isize
}

/// Opens what is in the directory cache.
fn open_if_cached(path: &CString, flags: i32) -> Option<OwnedFd> {
    beneath::openat2(libc::AT_FDCWD, path, flags, libc::RESOLVE_CACHED).ok()
}

pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DirectFile>()?;
    module.add_function(wrap_pyfunction!(end_burst, module)?)?;
    module.add_function(wrap_pyfunction!(burst_is_over, module)?)?;
    module.add_function(wrap_pyfunction!(count_fork, module)?)?;
    module.add_function(wrap_pyfunction!(open_cached, module)?)
}
