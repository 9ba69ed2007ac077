//! The methods of `_core.Loop`, which Python calls.

mod fast_calls;
mod metrics;

use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_driver::{BackendChoice, UnknownBackend};
use ringloop_reactor::busy_poll::UnknownBusyPoll;
use ringloop_reactor::{BusyPoll, ReactorConfig};

use self::fast_calls::loop_keyword;
use crate::buffers::{FileSending, Received};
use crate::event_loop::Loop;
use crate::files::{self, FileOperation};
use crate::names::intern;
use crate::objects::{self, New};
use crate::queue::Ready;
use crate::scheduling::{deadline_ns, seconds_now};
use crate::socket_operation::{self, Kind};
use crate::support;
use crate::transport;
use crate::turn;
use crate::watching;

#[pymethods]
impl Loop {
    #[new]
    #[pyo3(signature = (*_args, backend=None, busy_poll=None, **_options))]
    fn new(
        _args: &Bound<'_, PyTuple>,
        backend: Option<&Bound<'_, PyAny>>,
        busy_poll: Option<&Bound<'_, PyAny>>,
        _options: Option<&Bound<'_, PyDict>>,
        py: Python<'_>,
    ) -> PyResult<Self> {
        let mut config =
            ReactorConfig::from_env().map_err(|error| support::os_error(py, &error))?;
        if let Some(name) = backend {
            // The environment's choice is forgotten: messages must not name a variable that has no effect.
            config.driver = ringloop_driver::Config::with_backend(parse_backend(name)?);
        }
        if let Some(policy) = busy_poll {
            config.busy_poll = parse_busy_poll(policy)?;
        }
        Loop::open(&config).map_err(|error| support::os_error(py, &error))
    }

    /// The kernel interface in use: "io_uring" or "epoll".
    #[getter]
    fn backend(&self) -> New<&'static str> {
        New(self.backend_kind.name())
    }

    /// Why this backend was chosen, in words.
    #[getter]
    fn get_backend_reason(&self) -> New<&str> {
        New(self.backend_reason())
    }

    /// How the loop waits: "off", "adaptive", or a number of microseconds to poll before sleeping.
    #[getter]
    fn get_busy_poll(&self, py: Python<'_>) -> PyResult<New<String>> {
        self.with_reactor(py, |reactor| Ok(New(reactor.busy_poll().to_string())))
    }

    #[setter]
    fn set_busy_poll(&self, policy: &Bound<'_, PyAny>) -> PyResult<()> {
        let policy_parsed = parse_busy_poll(policy)?;
        self.with_reactor(policy.py(), |reactor| {
            reactor.set_busy_poll(policy_parsed);
            Ok(())
        })
    }

    /// Seconds of the clock that timers are measured by, `time.monotonic()`.
    fn time(&self) -> New<f64> {
        New(seconds_now())
    }

    fn get_debug(&self) -> bool {
        self.is_debug()
    }

    /// Ends `run_forever` at the end of the turn in progress.
    fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// A future attached to this loop.
    fn create_future<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static FUTURE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let py = slf.py();
        let class = support::class(py, &FUTURE, "asyncio.futures", "Future")?;
        objects::call(class, [slf.as_any()], Some(loop_keyword(py)?))
    }

    /// Queues one of asyncio's own handles (debug mode, signals).
    fn _add_callback(slf: &Bound<'_, Self>, handle: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        if handle.getattr(intern!(py, "_cancelled"))?.is_truthy()? {
            return Ok(());
        }
        slf.get()
            .queue
            .get_mut(py)
            .ready
            .push_back(Ready::from_object(handle));
        Ok(())
    }

    /// The same from another thread or a signal handler.
    fn _add_callback_signalsafe(slf: &Bound<'_, Self>, handle: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::_add_callback(slf, handle)?;
        slf.get().wake(slf.py());
        Ok(())
    }

    /// Queues one of asyncio's own timer handles (debug mode).
    fn _add_timer(slf: &Bound<'_, Self>, handle: &Bound<'_, PyAny>, when: f64) {
        let mut queue = slf.get().queue.get_mut(slf.py());
        queue.insert_foreign_timer(handle, deadline_ns(when));
    }

    /// asyncio's timer handles tell their loop when they are cancelled.
    fn _timer_handle_cancelled(&self, py: Python<'_>, handle: &Bound<'_, PyAny>) {
        let removed = self.queue.get_mut(py).cancel_foreign_timer(handle);
        if let Some(ready) = removed {
            ready.discard(py);
        }
    }

    /// Wakes the loop's thread if it waits in the kernel. Safe from any thread.
    fn _write_to_self(&self, py: Python<'_>) {
        self.wake(py);
    }

    /// Runs turns until `stop()`.
    fn _run(slf: &Bound<'_, Self>) -> PyResult<()> {
        turn::run(slf)
    }

    /// Runs one turn, for programs that drive the loop themselves.
    fn _run_once(slf: &Bound<'_, Self>) -> PyResult<()> {
        turn::run_once(slf)
    }

    /// Drops the queue, the watches and the kernel's objects. The loop is closed already.
    fn _release(&self, py: Python<'_>) {
        self.clear(py);
    }

    /// Raises RuntimeError if a transport has this descriptor, ValueError if it is not a descriptor.
    fn _ensure_fd_no_transport(slf: &Bound<'_, Self>, fd: &Bound<'_, PyAny>) -> PyResult<()> {
        watching::ensure_no_transport(slf, fd, watching::file_number(fd)?)
    }

    /// Accepts connections for a server, as asyncio's `_accept_connection` does: up to `count_max` that wait. False if an
    /// error is left to asyncio.
    #[pyo3(signature = (protocol_factory, sock, server, count_max, /))]
    fn _accept(
        slf: &Bound<'_, Self>,
        protocol_factory: &Bound<'_, PyAny>,
        sock: &Bound<'_, PyAny>,
        server: Option<&Bound<'_, PyAny>>,
        count_max: usize,
    ) -> PyResult<bool> {
        transport::accept(slf, protocol_factory, sock, server, count_max)
    }

    /// Connects to an address literal, as asyncio's `create_connection` does: an awaitable of (transport, protocol). None
    /// if asyncio has to do it.
    #[pyo3(signature = (protocol_factory, host, port, /))]
    fn _connect<'py>(
        slf: &Bound<'py, Self>,
        protocol_factory: &Bound<'py, PyAny>,
        host: &Bound<'py, PyAny>,
        port: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        transport::connect(slf, protocol_factory, host, port)
    }

    fn _remove_reader(slf: &Bound<'_, Self>, fd: &Bound<'_, PyAny>) -> PyResult<bool> {
        watching::remove(slf, fd, false)
    }

    fn _remove_writer(slf: &Bound<'_, Self>, fd: &Bound<'_, PyAny>) -> PyResult<bool> {
        watching::remove(slf, fd, true)
    }

    /// Receives up to `n` bytes from a socket: an awaitable of bytes, empty at the end of the stream.
    fn sock_recv<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        n: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The socket module accepts no more than an `isize`, and raises the error itself.
        let count_max = n.extract().ok().filter(|&it| isize::try_from(it).is_ok());
        if let Some(count_max) = count_max {
            let kind = Kind::Receive { count_max };
            if let Some(operation) = socket_operation::new(slf, sock, n, kind)? {
                return Ok(operation);
            }
        }
        asyncio_coroutine(slf, "sock_recv", (slf, sock, n))
    }

    /// Receives into a writable buffer: an awaitable of the number of bytes.
    fn sock_recv_into<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        buf: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match socket_operation::new(slf, sock, buf, Kind::ReceiveInto)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_recv_into", (slf, sock, buf)),
        }
    }

    /// Sends all of a bytes-like object: an awaitable of None.
    fn sock_sendall<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match socket_operation::new(slf, sock, data, Kind::SendAll)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_sendall", (slf, sock, data)),
        }
    }

    /// Receives a datagram of up to `bufsize` bytes: an awaitable of (bytes, address).
    fn sock_recvfrom<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        bufsize: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Only a Unix datagram could be larger than the receive buffer.
        let count_max = bufsize
            .extract()
            .ok()
            .filter(|&it| it <= Received::CAPACITY);
        if let Some(count_max) = count_max {
            let kind = Kind::ReceiveFrom { count_max };
            if let Some(operation) = socket_operation::new(slf, sock, bufsize, kind)? {
                return Ok(operation);
            }
        }
        asyncio_coroutine(slf, "sock_recvfrom", (slf, sock, bufsize))
    }

    /// Receives a datagram into a writable buffer: an awaitable of (number of bytes, address).
    #[pyo3(signature = (sock, buf, nbytes=None))]
    fn sock_recvfrom_into<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        buf: &Bound<'py, PyAny>,
        nbytes: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(count_max) = nbytes.map_or(Some(0), |nbytes| nbytes.extract().ok()) {
            let kind = Kind::ReceiveFromInto { count_max };
            if let Some(operation) = socket_operation::new(slf, sock, buf, kind)? {
                return Ok(operation);
            }
        }
        match nbytes {
            Some(nbytes) => asyncio_coroutine(slf, "sock_recvfrom_into", (slf, sock, buf, nbytes)),
            None => asyncio_coroutine(slf, "sock_recvfrom_into", (slf, sock, buf)),
        }
    }

    /// Sends a datagram to an address: an awaitable of the number of bytes sent.
    fn sock_sendto<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
        address: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pair = objects::tuple(slf.py(), [data.clone(), address.clone()])?;
        match socket_operation::new(slf, sock, pair.as_any(), Kind::SendTo)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_sendto", (slf, sock, data, address)),
        }
    }

    /// Accepts a connection: an awaitable of (socket, address).
    fn sock_accept<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let none = slf.py().None().into_bound(slf.py());
        match socket_operation::new(slf, sock, &none, Kind::Accept)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_accept", (slf, sock)),
        }
    }

    /// Connects a socket to an address: an awaitable of None.
    fn sock_connect<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        address: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match socket_operation::connect(slf, sock, address)? {
            Some(operation) => Ok(operation),
            None => asyncio_coroutine(slf, "sock_connect", (slf, sock, address)),
        }
    }

    /// Sends a file by sendfile(2), from `offset` on, `count` bytes or all: an awaitable of the number of bytes, whose
    /// `sent` says how many were sent so far. None for sockets that asyncio has to serve.
    #[pyo3(signature = (sock, file, offset, count))]
    fn _sock_send_file<'py>(
        slf: &Bound<'py, Self>,
        sock: &Bound<'py, PyAny>,
        file: RawFd,
        offset: i64,
        count: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let count = count.map(support::to_ssize).transpose()?;
        let count = count.map(|count| usize::try_from(count).unwrap_or(0));
        socket_operation::send_file(slf, sock, FileSending::new(file, offset, count))
    }

    /// Reads up to `size` bytes from a file, at an offset unless it has no position. `callback` is called with the
    /// operation when it is over.
    #[pyo3(signature = (fd, size, offset, callback, /))]
    fn _read_file<'py>(
        slf: &Bound<'py, Self>,
        fd: RawFd,
        size: usize,
        offset: Option<u64>,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::read(slf, fd, size, offset, callback)
    }

    /// Writes a copy of a bytes-like object to a file, in the same way.
    #[pyo3(signature = (fd, data, offset, callback, /))]
    fn _write_file<'py>(
        slf: &Bound<'py, Self>,
        fd: RawFd,
        data: &Bound<'py, PyAny>,
        offset: Option<u64>,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::write(slf, fd, data, offset, callback)
    }

    /// fsync(2), or fdatasync(2) if `data_only`, in the same way.
    #[pyo3(signature = (fd, data_only, callback, /))]
    fn _sync_file<'py>(
        slf: &Bound<'py, Self>,
        fd: RawFd,
        data_only: bool,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::sync(slf, fd, data_only, callback)
    }

    /// open(2): the operation's result is a close-on-exec descriptor.
    #[pyo3(signature = (path, flags, mode, callback, /))]
    fn _open_path<'py>(
        slf: &Bound<'py, Self>,
        path: &[u8],
        flags: i32,
        mode: u32,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::open(slf, path, (flags, mode), callback)
    }

    /// stat(2), or lstat(2) unless `follow`: the operation's result is an `os.stat_result`.
    #[pyo3(signature = (path, follow, callback, /))]
    fn _stat_path<'py>(
        slf: &Bound<'py, Self>,
        path: &[u8],
        follow: bool,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::stat(slf, path, follow, callback)
    }

    /// rename(2).
    #[pyo3(signature = (from_path, to_path, callback, /))]
    fn _rename_path<'py>(
        slf: &Bound<'py, Self>,
        from_path: &[u8],
        to_path: &[u8],
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::rename(slf, from_path, to_path, callback)
    }

    /// unlink(2), or rmdir(2) if it `is_directory`.
    #[pyo3(signature = (path, is_directory, callback, /))]
    fn _remove_path<'py>(
        slf: &Bound<'py, Self>,
        path: &[u8],
        is_directory: bool,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::remove(slf, path, is_directory, callback)
    }

    /// mkdir(2).
    #[pyo3(signature = (path, mode, callback, /))]
    fn _make_directory<'py>(
        slf: &Bound<'py, Self>,
        path: &[u8],
        mode: u32,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FileOperation>> {
        files::make_directory(slf, path, mode, callback)
    }

    /// Returns what the loop has done so far, in the order of `ringloop.Metrics`.
    #[pyo3(signature = (*, reset_slowest))]
    fn _metrics<'py>(&self, py: Python<'py>, reset_slowest: bool) -> PyResult<Bound<'py, PyTuple>> {
        let snapshot = metrics::snapshot(py, self)?;
        if reset_slowest {
            self.meter.forget_slowest(py);
        }
        Ok(snapshot)
    }

    /// The descriptor of `file`, and the handles that watch it as (reader or None, writer or None), or None if nothing
    /// does. A closed file is found as long as it is watched. `ValueError` for what is no file.
    fn _watched<'py>(
        slf: &Bound<'py, Self>,
        file: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (fd, handles) = watching::watched(slf, file)?;
        New((New(fd), New(handles))).into_pyobject(slf.py())
    }

    #[pyo3(name = "is_running")]
    fn get_is_running(&self) -> bool {
        self.is_running()
    }

    /// Whether another thread runs the loop, and transports are to be left to it. Never on builds with the GIL.
    fn _runs_elsewhere(&self) -> bool {
        self.runs_elsewhere()
    }

    #[pyo3(name = "is_closed")]
    fn get_is_closed(&self) -> bool {
        self.is_closed()
    }

    #[getter(_closed)]
    fn get_closed_flag(&self) -> bool {
        self.is_closed()
    }

    #[setter(_closed)]
    fn set_closed_flag(&self, value: bool) {
        self.set_closed(value);
    }

    #[getter(_debug)]
    fn get_debug_flag(&self) -> bool {
        self.is_debug()
    }

    #[setter(_debug)]
    fn set_debug_flag(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_debug(value.is_truthy()?);
        Ok(())
    }

    #[getter(_stopping)]
    fn get_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    #[setter(_stopping)]
    fn set_stopping(&self, value: bool) {
        self.stopping.store(value, Relaxed);
    }

    #[getter(_thread_id)]
    fn get_thread_id_slot(&self) -> New<Option<u64>> {
        New(Some(self.thread_id()).filter(|&id| id != 0))
    }

    #[setter(_thread_id)]
    fn set_thread_id_slot(&self, value: Option<u64>) {
        self.set_thread_id(value.unwrap_or(0));
    }

    #[getter(_task_factory)]
    fn get_task_factory_slot(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.task_factory(py)
    }

    #[setter(_task_factory)]
    fn set_task_factory_slot(&self, py: Python<'_>, value: Option<Py<PyAny>>) {
        self.set_task_factory(py, value);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        self.clear(py);
        self.set_task_factory(py, None);
    }
}

fn parse_backend(name: &Bound<'_, PyAny>) -> PyResult<BackendChoice> {
    let py = name.py();
    let Ok(text) = name.cast::<PyString>() else {
        let text = format!(
            "backend must be 'auto', 'io_uring' or 'epoll', not {}",
            name.get_type().name()?
        );
        return Err(objects::error::<PyTypeError>(py, &text));
    };
    text.to_str()?
        .parse()
        .map_err(|error: UnknownBackend| objects::error::<PyValueError>(py, &error.to_string()))
}

fn parse_busy_poll(policy: &Bound<'_, PyAny>) -> PyResult<BusyPoll> {
    let py = policy.py();
    let text = policy.str()?;
    text.to_str()?
        .parse()
        .map_err(|error: UnknownBusyPoll| objects::error::<PyValueError>(py, &error.to_string()))
}

/// asyncio's own coroutine for a socket operation.
fn asyncio_coroutine<'py>(
    event_loop: &Bound<'py, Loop>,
    method: &str,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = event_loop.py();
    support::class(
        py,
        &BASE,
        "asyncio.selector_events",
        "BaseSelectorEventLoop",
    )?
    .call_method1(New(method), arguments)
}

/// Adds `Loop` to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Loop>()?;
    fast_calls::add_to(&module.py().get_type::<Loop>())
}
