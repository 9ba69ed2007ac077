//! The methods of an `HttpService` that Python calls.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_reactor::clock;

use super::connection::Connection;
use super::deadlines::Kind;
use super::exchange::Exchange;
use super::request::Request;
use super::service::{Given, HttpService};
use super::settings::HttpSettings;
use super::task::Tasks;
use super::wsgi::{self, Threads};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::support;

#[pymethods]
impl HttpService {
    #[new]
    #[pyo3(signature = (
        r#loop, app, settings, *, headers=None, ws=true, state=None, limit_max_requests=None, on_max_requests=None,
        access_log=None, pages=None, forwarded=None, logger=None, wsgi=None,
    ))]
    #[allow(clippy::too_many_arguments, reason = "all but three are keywords")]
    fn new(
        py: Python<'_>,
        r#loop: &Bound<'_, Loop>,
        app: Py<PyAny>,
        settings: HttpSettings,
        headers: Option<&Bound<'_, PyAny>>,
        ws: bool,
        state: Option<Py<PyDict>>,
        limit_max_requests: Option<u64>,
        on_max_requests: Option<Py<PyAny>>,
        access_log: Option<Py<PyAny>>,
        pages: Option<Bound<'_, PyAny>>,
        forwarded: Option<Py<PyAny>>,
        logger: Option<Py<PyAny>>,
        wsgi: Option<Py<PyDict>>,
    ) -> PyResult<Self> {
        let given = Given {
            event_loop: r#loop,
            application: app,
            settings,
            headers,
            has_websockets: ws,
            state,
            limit_max_requests,
            on_max_requests,
            access_log,
            pages,
            forwarded,
            logger,
            environ: wsgi,
        };
        Self::make(py, given)
    }

    /// A protocol for a new connection.
    fn protocol<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Connection>> {
        match slf.get().environ(slf.py()) {
            None => Connection::new(slf, &Tasks, &Tasks),
            Some(_) => Connection::new(slf, &Threads, &Tasks),
        }
    }

    /// How many connections are open.
    #[getter]
    fn connections(&self, py: Python<'_>) -> New<usize> {
        New(self.open(py))
    }

    /// How many protocols have no connection yet, which some get after TLS's handshake only.
    #[getter(awaited)]
    fn method_awaited(&self, py: Python<'_>) -> New<usize> {
        New(self.awaited(py))
    }

    /// How many requests have begun.
    #[getter(requests)]
    fn method_requests(&self, py: Python<'_>) -> New<u64> {
        New(self.requests(py))
    }

    /// How many requests are being answered.
    #[getter(active)]
    fn method_active(&self, py: Python<'_>) -> New<usize> {
        New(self.active(py))
    }

    /// The memory for bodies of WSGI requests that no view has asked for yet, in bytes.
    #[getter(_bytes_ahead)]
    fn method_bytes_ahead(&self) -> New<usize> {
        New(self.gathering().ahead())
    }

    /// The tasks of requests in flight.
    fn tasks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let requests = self.waiting_requests(py)?;
        let tasks = requests.iter().filter_map(|it| task_of(it));
        let tasks = tasks.map(|task| task.into_bound(py).into_any());
        Ok(objects::list(py, tasks)?.into_any())
    }

    /// A snapshot of what was counted so far; `_core.pyi` describes it.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.counters(py);
        let (open, active) = (self.open(py), self.active(py));
        let metrics = counters.to_dict(py)?;
        metrics.set_item(New("connections_open"), New(open))?;
        metrics.set_item(New("requests_active"), New(active))?;
        Ok(metrics)
    }

    /// Closes idle connections now, and the others after their responses.
    fn shut_down(&self, py: Python<'_>) -> PyResult<()> {
        self.begin_shutting_down(py);
        wsgi::stop(py, self);
        self.for_each_connection(py, Connection::shut_down)
    }

    /// Tells the applications of requests in flight that their clients are gone. Views of WSGI hear of it where they read.
    fn disconnect(&self, py: Python<'_>) -> PyResult<()> {
        let told = support::for_each(py, self.waiting_requests(py)?, |request| {
            request.get().disconnect(py, false)
        });
        // The others are started soon.
        let others = self.for_each_connection(py, Connection::disconnect_gathering);
        let told = support::first_error(py, told, others);
        let ended = self.for_each_connection(py, Connection::end_closing_websocket);
        support::first_error(py, told, ended)
    }

    /// Cancels the tasks of requests in flight, and drops all connections.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let cancelled =
            support::for_each(py, self.waiting_requests(py)?, |request| {
                match task_of(&request) {
                    Some(task) => task.call_method0(py, intern!(py, "cancel")).map(drop),
                    None => Ok(()),
                }
            });
        let aborted = self.for_each_connection(py, Connection::abort);
        support::first_error(py, cancelled, aborted)
    }

    /// A future that is done when no connection is open and no request in flight.
    fn wait_closed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.when_closed(py)
    }

    /// Writes the lines of the access log that are held back.
    fn _flush_access_log(&self, py: Python<'_>) -> PyResult<()> {
        self.flush_access_log(py)
    }

    /// A deadline of the kind with this number may have expired.
    fn _on_timer(slf: &Bound<'_, Self>, number: usize) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(&kind) = Kind::ALL.get(number) else {
            return Ok(());
        };
        this.forget_timer(py, kind);
        let now_ns = clock::now_ns();
        let mut result = Ok(());
        while let Some(expired) = this.expire(py, kind, now_ns) {
            let ended = match expired.bind(py).cast::<Exchange>() {
                Ok(exchange) => Connection::on_stream_deadline(exchange, kind),
                Err(_) => Connection::on_deadline(as_connection(expired.bind(py))?, kind),
            };
            result = support::first_error(py, result, ended);
        }
        support::first_error(py, result, Self::set_timer(slf, kind))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        self.clear(py);
    }
}

impl HttpService {
    /// The requests that are being answered.
    fn waiting_requests<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, Exchange>>> {
        let requests = self.all_waiting(py).into_iter();
        requests
            .map(|request| Ok(request.into_bound(py).cast_into::<Exchange>()?))
            .collect()
    }

    /// Does something with each connection, even if that fails for one.
    fn for_each_connection(
        &self,
        py: Python<'_>,
        run: impl Fn(&Bound<'_, Connection>) -> PyResult<()>,
    ) -> PyResult<()> {
        let mut connections = self.all_connections(py);
        // Each of the others is on a stream of one.
        connections.retain(|it| !it.bind(py).is_instance_of::<Exchange>());
        support::for_each(py, connections, |connection| {
            run(as_connection(connection.bind(py))?)
        })
    }
}

/// The task that answers a request, if one does.
fn task_of(request: &Bound<'_, Exchange>) -> Option<Py<PyAny>> {
    let request = request.cast::<Request>().ok()?;
    request.get().task(request.py())
}

/// A connection, as a service has it.
fn as_connection<'a, 'py>(object: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, Connection>> {
    Ok(object.cast::<Connection>()?)
}
