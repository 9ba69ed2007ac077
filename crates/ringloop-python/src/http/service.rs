//! `HttpService`: what the connections of a server have in common.
//!
//! It knows its connections, and the requests whose tasks wait, only as objects. What Python calls on it, and what it does
//! with them, is in `service_methods`.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_http::Lines;
use ringloop_http::h1::{self, Limits};
use ringloop_http::h2;
use ringloop_http::websocket::{Config, Pool};
use ringloop_reactor::clock;

use super::access_log::{self, Entry};
use super::calls;
use super::counters::{Begun, Counters};
use super::deadlines::{Deadlines, Kind};
use super::gathering::Gathering;
use super::pages::{Dispatch, Route, Routes};
use super::settings::HttpSettings;
use crate::cell::GilCell;
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{self, CloneRefOption, python_is_at_least};

/// The settings that were given when the service was made, and do not change.
struct Settings {
    limits: Limits,
    http2: h2::Config,
    body_ahead: usize,
    concurrency: Option<usize>,
    root_path_bytes: Vec<u8>,
    default_fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// In nanoseconds, by `Kind`. None: none.
    timeouts_ns: [Option<u64>; Kind::ALL.len()],
    logs: Logs,
    routes: Routes,
    has_state: bool,
    /// None: requests for WebSockets are requests as others are.
    websocket: Option<Config>,
    websocket_queue: usize,
    wsgi_threads: usize,
    wsgi_queue: usize,
    /// Each request runs in an empty context.
    reset_contextvars: bool,
}

/// The parts of requests that are logged.
struct Logs {
    access: bool,
    /// A request is logged when its response has ended, with what is known then.
    ends: bool,
    /// The access log may take lines that are formatted here.
    lines: bool,
}

impl Logs {
    /// Those that an access log takes, by the methods that it has.
    fn of(py: Python<'_>, log: Option<&Py<PyAny>>) -> PyResult<Self> {
        let has =
            |name: &Bound<'_, PyString>| log.map_or(Ok(false), |it| it.bind(py).hasattr(name));
        Ok(Self {
            access: log.is_some(),
            ends: has(intern!(py, "log_request"))?,
            lines: has(intern!(py, "begin"))?,
        })
    }
}

/// Python objects that the collector must see.
struct Objects {
    event_loop: Py<Loop>,
    application: Py<PyAny>,
    /// The application that answers what `Settings::routes` says.
    pages: Option<Py<PyAny>>,
    root_path: Py<PyString>,
    asgi: Py<PyDict>,
    /// Each request gets a copy of it as it is then.
    state: Option<Py<PyDict>>,
    access_log: Option<Py<PyAny>>,
    /// WSGI: what the environments of all requests have.
    environ: Option<Py<PyDict>>,
    /// WSGI: the threads that run views, once there was a request.
    pool: Option<Py<PyAny>>,
    forwarded: Option<Py<PyAny>>,
    /// Called when as many requests have begun as `State::requests_max` says.
    on_max_requests: Option<Py<PyAny>>,
    logger: Py<PyAny>,
    /// The context that those of the requests are copies of.
    context: Py<PyAny>,
    task_class: Py<PyAny>,
    /// Python 3.11: asyncio's table of the tasks that run, by loop.
    current_tasks: Option<Py<PyDict>>,
    /// Names of the arguments to make a task with, and their constant values.
    task_names: Py<PyTuple>,
}

/// A table whose places are used again.
struct Table<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    fn insert(&mut self, value: T) -> usize {
        if let Some(place) = self.free.pop() {
            self.places[place] = Some(value);
            return place;
        }
        self.places.push(Some(value));
        self.places.len() - 1
    }

    fn remove(&mut self, place: usize) -> Option<T> {
        let value = self.places.get_mut(place).and_then(Option::take);
        if value.is_some() {
            self.free.push(place);
        }
        value
    }

    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

struct State {
    objects: Option<Objects>,
    /// And the WebSockets on streams of some, which have deadlines of their own.
    connections: Table<Py<PyAny>>,
    /// How many of these are on streams.
    streams: usize,
    /// Those of which only the rest of the client's data is awaited.
    lingering: usize,
    /// Protocols that may still get their connections.
    awaited: usize,
    /// Requests whose tasks wait.
    waiting: Table<Py<PyAny>>,
    /// Requests whose tasks are not over.
    active: usize,
    requests: u64,
    requests_max: Option<u64>,
    is_shutting_down: bool,
    has_warned_of_upgrade: bool,
    invalid: Ration,
    deadlines: Deadlines,
    timers: [Option<Py<PyAny>>; Kind::ALL.len()],
    /// Futures of those who wait for the end.
    closing: Vec<Py<PyAny>>,
}

/// How many lines about refused clients the log gets in a second.
const INVALID_PER_SECOND: u64 = 100;

/// Lines that are logged up to a number in each second.
#[derive(Default)]
struct Ration {
    second: u64,
    /// Those that have come in this second.
    come: u64,
    unlogged: u64,
}

impl Ration {
    /// None if a line is one too many. Otherwise the number of those that were, since the last one that was not.
    fn next(&mut self, now_ns: u64) -> Option<u64> {
        let second = now_ns / 1_000_000_000;
        if second != self.second {
            (self.second, self.come) = (second, 0);
        }
        self.come += 1;
        if self.come > INVALID_PER_SECOND {
            self.unlogged += 1;
            return None;
        }
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl State {
    /// How many connections are open.
    fn open(&self) -> usize {
        self.connections.len() - self.streams
    }
}

/// Memory that requests take turns at.
struct Scratch {
    head: h1::Head,
    buffers: Vec<Vec<u8>>,
    lines: Lines,
    /// For compressed messages of WebSockets.
    pool: Pool,
}

/// The state that the connections of a server share: the application, settings, counters.
#[pyclass(module = "ringloop._core", frozen, weakref)]
pub(crate) struct HttpService {
    settings: Settings,
    state: GilCell<State>,
    scratch: GilCell<Scratch>,
    counters: GilCell<Counters>,
    lines: GilCell<access_log::Lines>,
    gathering: Gathering,
}

/// A buffer that has grown beyond this is not kept.
const BUFFER_KEPT: usize = 64 * 1024;
/// The most buffers that are kept.
const BUFFERS_KEPT: usize = 4;

/// The arguments of `HttpService`.
pub(super) struct Given<'a, 'py> {
    pub(super) event_loop: &'a Bound<'py, Loop>,
    pub(super) application: Py<PyAny>,
    pub(super) settings: HttpSettings,
    pub(super) headers: Option<&'a Bound<'py, PyAny>>,
    pub(super) has_websockets: bool,
    pub(super) state: Option<Py<PyDict>>,
    pub(super) limit_max_requests: Option<u64>,
    pub(super) on_max_requests: Option<Py<PyAny>>,
    pub(super) access_log: Option<Py<PyAny>>,
    pub(super) pages: Option<Bound<'py, PyAny>>,
    pub(super) forwarded: Option<Py<PyAny>>,
    pub(super) logger: Option<Py<PyAny>>,
    pub(super) environ: Option<Py<PyDict>>,
}

/// Fields that are added to every response, the value of Server, and whether Date is among the fields.
type DefaultFields = (Vec<(Vec<u8>, Vec<u8>)>, Option<String>, bool);

fn default_fields(py: Python<'_>, headers: Option<&Bound<'_, PyAny>>) -> PyResult<DefaultFields> {
    let mut fields = Vec::new();
    let mut servers = Vec::new();
    let mut has_date = false;
    let Some(headers) = headers else {
        return Ok((fields, None, has_date));
    };
    for pair in headers.try_iter()? {
        let (name, value) = super::message::name_and_value(&pair?)?;
        let name = crate::buffers::with_bytes(&name, |name| Ok(name.to_ascii_lowercase()))?;
        let value = crate::buffers::with_bytes(&value, |value| Ok(value.to_vec()))?;
        if !ringloop_http::is_field(&name, &value) {
            return Err(objects::error::<PyValueError>(py, "invalid HTTP header"));
        }
        if matches!(name.as_slice(), b"content-length" | b"transfer-encoding") {
            let text = "the length of a response can't be a default header";
            return Err(objects::error::<PyValueError>(py, text));
        }
        has_date |= name == b"date";
        match String::from_utf8(value) {
            Ok(value) if name == b"server" => servers.push(value),
            Ok(value) => fields.push((name, value.into_bytes())),
            Err(error) => fields.push((name, error.into_bytes())),
        }
    }
    // The usual one has a fast way, which several don't fit.
    let server = if servers.len() == 1 {
        servers.pop()
    } else {
        fields.extend(
            servers
                .into_iter()
                .map(|value| (b"server".to_vec(), value.into_bytes())),
        );
        None
    };
    Ok((fields, server, has_date))
}

/// The versions of ASGI that scopes name.
fn asgi_versions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let asgi = objects::dict(py)?;
    asgi.set_item(intern!(py, "version"), intern!(py, "3.0"))?;
    asgi.set_item(intern!(py, "spec_version"), intern!(py, "2.3"))?;
    Ok(asgi)
}

/// The names of the arguments that a task is made with.
fn task_names(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let [of_loop, of_context] = [intern!(py, "loop"), intern!(py, "context")];
    let names = [of_loop, of_context].map(|name| name.clone().into_any());
    if python_is_at_least(12) {
        let [of_loop, of_context] = names;
        let eager = intern!(py, "eager_start").clone().into_any();
        objects::tuple(py, [of_loop, of_context, eager])
    } else {
        objects::tuple(py, names)
    }
}

impl HttpService {
    /// A service, with the settings that Python gave.
    pub(super) fn make(py: Python<'_>, given: Given<'_, '_>) -> PyResult<Self> {
        let Given {
            event_loop,
            application,
            settings,
            headers,
            has_websockets,
            state,
            limit_max_requests,
            on_max_requests,
            access_log,
            pages,
            forwarded,
            logger,
            environ,
        } = given;
        let (default_fields, server, has_own_date) = default_fields(py, headers)?;
        let logger = match logger {
            Some(logger) => logger,
            None => support::http(py)?.getattr(intern!(py, "logger"))?.unbind(),
        };
        let asgi = asgi_versions(py)?;
        let routes = pages.as_ref().map(Routes::of).transpose()?;
        let date_header = settings.date_header && !has_own_date;
        let root_path = objects::string(py, &settings.root_path)?.unbind();
        let settings = Settings {
            limits: settings.limits(),
            http2: settings.http2_config(has_websockets),
            body_ahead: settings.limit_body_ahead,
            concurrency: settings.limit_concurrency,
            default_fields,
            timeouts_ns: Kind::ALL.map(|kind| settings.timeout_ns(kind)),
            logs: Logs::of(py, access_log.as_ref())?,
            routes: routes.unwrap_or_default(),
            has_state: state.is_some(),
            websocket: has_websockets.then(|| settings.websocket_config()),
            websocket_queue: settings.ws_max_queue.max(1),
            wsgi_threads: settings.wsgi_threads(),
            wsgi_queue: settings.wsgi_queue.max(1),
            reset_contextvars: settings.reset_contextvars,
            root_path_bytes: settings.root_path.into_bytes(),
        };
        let objects = Objects {
            event_loop: event_loop.clone().unbind(),
            application,
            pages: pages.map(Bound::unbind),
            root_path,
            asgi: asgi.unbind(),
            state,
            access_log,
            environ,
            pool: None,
            forwarded,
            on_max_requests,
            logger,
            context: if settings.reset_contextvars {
                support::new_context(py)?
            } else {
                support::copy_context(py)?
            },
            current_tasks: if python_is_at_least(12) {
                None
            } else {
                let tasks = support::http(py)?.getattr(intern!(py, "current_tasks"))?;
                Some(tasks.cast_into::<PyDict>()?.unbind())
            },
            task_class: support::http(py)?.getattr(intern!(py, "Task"))?.unbind(),
            task_names: task_names(py)?.unbind(),
        };
        let state = State {
            objects: Some(objects),
            connections: Table::new(),
            streams: 0,
            lingering: 0,
            awaited: 0,
            waiting: Table::new(),
            active: 0,
            requests: 0,
            requests_max: limit_max_requests,
            is_shutting_down: false,
            has_warned_of_upgrade: false,
            invalid: Ration::default(),
            deadlines: Deadlines::new(),
            timers: [const { None }; Kind::ALL.len()],
            closing: Vec::new(),
        };
        let scratch = Scratch {
            head: h1::Head::default(),
            buffers: Vec::with_capacity(BUFFERS_KEPT),
            lines: Lines::new(server.as_deref(), date_header),
            pool: Pool::default(),
        };
        Ok(Self {
            settings,
            state: GilCell::new(state),
            scratch: GilCell::new(scratch),
            counters: GilCell::new(Counters::default()),
            lines: GilCell::new(access_log::Lines::default()),
            gathering: Gathering::default(),
        })
    }

    /// How many connections are open.
    pub(super) fn open(&self, py: Python<'_>) -> usize {
        self.state.get(py).open()
    }

    /// How many protocols have no connection yet, which some get after TLS's handshake only.
    pub(super) fn awaited(&self, py: Python<'_>) -> usize {
        self.state.get(py).awaited
    }

    /// How many requests have begun.
    pub(super) fn requests(&self, py: Python<'_>) -> u64 {
        self.state.get(py).requests
    }

    /// How many requests are being answered.
    pub(super) fn active(&self, py: Python<'_>) -> usize {
        self.state.get(py).active
    }

    /// A snapshot of the counters.
    pub(super) fn counters(&self, py: Python<'_>) -> Counters {
        self.counters.get(py).clone()
    }

    pub(super) fn begin_shutting_down(&self, py: Python<'_>) {
        self.state.get_mut(py).is_shutting_down = true;
    }

    /// For the collector.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        if let Some(objects) = &state.objects {
            visit.call(&objects.event_loop)?;
            visit.call(&objects.application)?;
            visit.call(&objects.pages)?;
            visit.call(&objects.state)?;
            visit.call(&objects.access_log)?;
            visit.call(&objects.environ)?;
            visit.call(&objects.pool)?;
            visit.call(&objects.forwarded)?;
            visit.call(&objects.on_max_requests)?;
            visit.call(&objects.logger)?;
            visit.call(&objects.context)?;
        }
        for connection in state.connections.iter() {
            visit.call(connection)?;
        }
        for request in state.waiting.iter() {
            visit.call(request)?;
        }
        for timer in state.timers.iter().flatten() {
            visit.call(timer)?;
        }
        for future in &state.closing {
            visit.call(future)?;
        }
        Ok(())
    }

    /// For the collector.
    pub(super) fn clear(&self, py: Python<'_>) {
        let dropped = {
            let mut state = self.state.get_mut(py);
            (
                state.objects.take(),
                std::mem::replace(&mut state.connections, Table::new()),
                std::mem::take(&mut state.streams),
                std::mem::replace(&mut state.waiting, Table::new()),
                std::mem::take(&mut state.timers),
                std::mem::take(&mut state.closing),
            )
        };
        drop(dropped);
    }

    /// A future that is done when no connection is open and no request in flight.
    pub(super) fn when_closed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.create_future(py)?;
        self.state.get_mut(py).closing.push(future.clone().unbind());
        self.check_closed(py)?;
        Ok(future)
    }

    pub(super) fn limits(&self) -> Limits {
        self.settings.limits
    }

    pub(super) fn http2(&self) -> &h2::Config {
        &self.settings.http2
    }

    /// How long a deadline of this kind is, if there is one.
    pub(super) fn timeout_ms(&self, kind: Kind) -> Option<u64> {
        self.settings.timeouts_ns[kind as usize].map(|timeout_ns| timeout_ns / 1_000_000)
    }

    pub(super) fn gathering(&self) -> &Gathering {
        &self.gathering
    }

    pub(super) fn body_ahead(&self) -> usize {
        self.settings.body_ahead
    }

    pub(super) fn logs_access(&self) -> bool {
        self.settings.logs.access
    }

    /// Whether a request is logged when its response has ended (`log_end`), rather than when it begins.
    pub(super) fn logs_ends(&self) -> bool {
        self.settings.logs.ends
    }

    /// Who answers requests for a path.
    pub(super) fn dispatch(&self, path: &str) -> Dispatch {
        self.settings.routes.find(path)
    }

    pub(super) fn has_state(&self) -> bool {
        self.settings.has_state
    }

    pub(super) fn root_path_bytes(&self) -> &[u8] {
        &self.settings.root_path_bytes
    }

    /// The settings of WebSockets, if there may be any.
    pub(super) fn websocket_config(&self) -> Option<&Config> {
        self.settings.websocket.as_ref()
    }

    /// The number of a WebSocket's messages after which reading stops.
    pub(super) fn websocket_queue(&self) -> usize {
        self.settings.websocket_queue
    }

    pub(super) fn has_timeout(&self, kind: Kind) -> bool {
        self.settings.timeouts_ns[kind as usize].is_some()
    }

    /// The default fields of a response of the server's own.
    pub(super) fn default_fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.settings.default_fields.iter();
        fields.map(|(name, value)| (&name[..], &value[..]))
    }

    /// The default fields of a response of the application: all but Date and Server, if it `has` them. As in uvicorn, they
    /// come before the application's, even if that has a field of the same name.
    pub(super) fn default_fields_with(
        &self,
        has: impl Fn(&[u8]) -> bool,
    ) -> impl Iterator<Item = &(Vec<u8>, Vec<u8>)> {
        let fields = self.settings.default_fields.iter();
        fields.filter(move |(name, _)| !(matches!(&name[..], b"date" | b"server") && has(name)))
    }

    /// The object that `pick` finds among those of the service, which has them until the collector ends it.
    fn object<'py, T>(
        &self,
        py: Python<'py>,
        pick: impl FnOnce(&Objects) -> &Py<T>,
    ) -> PyResult<Bound<'py, T>> {
        let state = self.state.get(py);
        if let Some(objects) = &state.objects {
            return Ok(pick(objects).bind(py).clone());
        }
        drop(state);
        Err(objects::error::<PyRuntimeError>(py, "the service is gone"))
    }

    /// The ASGI application that answers requests of this route.
    pub(super) fn application<'py>(
        &self,
        py: Python<'py>,
        route: Route,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.object(py, |it| match &it.pages {
            Some(pages) if route != Route::Application => pages,
            _ => &it.application,
        })
    }

    pub(super) fn root_path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.object(py, |it| &it.root_path)
    }

    /// A new `scope["asgi"]`.
    pub(super) fn asgi<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.object(py, |it| &it.asgi)?.copy()
    }

    /// A new `scope["state"]`, if there is one.
    pub(super) fn state<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        if !self.settings.has_state {
            return Ok(None);
        }
        let template = {
            let state = self.state.get(py);
            let objects = state.objects.as_ref();
            objects.and_then(|objects| objects.state.clone_ref_opt(py))
        };
        template
            .map(|template| template.bind(py).copy())
            .transpose()
    }

    /// WSGI: what the environments of all requests have. None: the application is one of ASGI.
    pub(super) fn environ<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyDict>> {
        let state = self.state.get(py);
        let environ = state.objects.as_ref()?.environ.as_ref();
        environ.map(|it| it.bind(py).clone())
    }

    /// WSGI: the threads that run views.
    pub(super) fn pool<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let state = self.state.get(py);
        let pool = state.objects.as_ref()?.pool.as_ref();
        pool.map(|it| it.bind(py).clone())
    }

    pub(super) fn set_pool(&self, pool: &Bound<'_, PyAny>) {
        let mut state = self.state.get_mut(pool.py());
        if let Some(objects) = &mut state.objects {
            objects.pool = Some(pool.clone().unbind());
        }
    }

    /// The most threads that run views, and the most requests that wait for one.
    pub(super) fn wsgi_limits(&self) -> (usize, usize) {
        (self.settings.wsgi_threads, self.settings.wsgi_queue)
    }

    pub(super) fn event_loop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Loop>> {
        self.object(py, |it| &it.event_loop)
    }

    /// Whether another thread runs the loop.
    pub(super) fn is_elsewhere(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        let objects = state.objects.as_ref();
        objects.is_some_and(|it| it.event_loop.get().runs_elsewhere())
    }

    /// Whether nothing is in the context of a request but what the request puts there.
    pub(super) fn resets_contexts(&self) -> bool {
        self.settings.reset_contextvars
    }

    /// A new context for a request.
    pub(super) fn context<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        calls::copy_of_context(&self.object(py, |it| &it.context)?)
    }

    /// Has the scope of a forwarded request changed to what its proxy says.
    pub(super) fn forward(&self, py: Python<'_>, scope: &Bound<'_, PyDict>) -> PyResult<()> {
        let forwarded = {
            let state = self.state.get(py);
            let objects = state.objects.as_ref();
            objects.and_then(|objects| objects.forwarded.clone_ref_opt(py))
        };
        match forwarded {
            Some(forwarded) => forwarded.bind(py).call1((scope,)).map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.event_loop(py)?
            .call_method0(intern!(py, "create_future"))
    }

    pub(super) fn call_soon(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        let event_loop = self.event_loop(py)?;
        let options = objects::dict(py)?;
        options.set_item(intern!(py, "context"), self.context(py)?)?;
        event_loop
            .call_method(intern!(py, "call_soon"), (callback,), Some(&options))
            .map(drop)
    }

    pub(super) fn call_later(
        &self,
        py: Python<'_>,
        delay_s: f64,
        callback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let event_loop = self.event_loop(py)?;
        let options = objects::dict(py)?;
        options.set_item(intern!(py, "context"), self.context(py)?)?;
        let arguments = (New(delay_s), callback);
        event_loop
            .call_method(intern!(py, "call_later"), arguments, Some(&options))
            .map(drop)
    }

    /// Calls a function of `ringloop._http` that logs something.
    #[cold]
    pub(super) fn report(
        &self,
        py: Python<'_>,
        function: &str,
        argument: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.flush_lines(py)?;
        let logger = self.object(py, |it| &it.logger)?;
        support::http(py)?
            .getattr(New(function))?
            .call1((logger, argument))
            .map(drop)
    }

    /// Says, once, that there is no protocol to switch to.
    #[cold]
    pub(super) fn warn_of_upgrade(&self, py: Python<'_>) -> PyResult<()> {
        if std::mem::replace(&mut self.state.get_mut(py).has_warned_of_upgrade, true) {
            return Ok(());
        }
        self.warn(py, "Unsupported upgrade request.")
    }

    /// Says which client sent something that is refused, and what becomes of it. Clients could fill the log: what goes beyond
    /// `INVALID_PER_SECOND` is only counted, and the next line says how many there were.
    #[cold]
    pub(super) fn warn_of_invalid(
        &self,
        py: Python<'_>,
        client: &Bound<'_, PyAny>,
        outcome: &str,
    ) -> PyResult<()> {
        let Some(unlogged) = self.state.get_mut(py).invalid.next(clock::now_ns()) else {
            return Ok(());
        };
        let argument = objects::tuple(
            py,
            [
                client.clone(),
                objects::string(py, outcome)?.into_any(),
                New(unlogged).into_pyobject(py)?.into_any(),
            ],
        )?;
        self.report(py, "report_invalid", &argument)
    }

    #[cold]
    pub(super) fn warn(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        self.flush_lines(py)?;
        let logger = self.object(py, |it| &it.logger)?;
        logger
            .call_method1(intern!(py, "warning"), (New(text),))
            .map(drop)
    }

    fn access_log<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let state = self.state.get(py);
        let objects = state.objects.as_ref()?;
        objects.access_log.as_ref().map(|log| log.bind(py).clone())
    }

    /// Logs a request that is being answered.
    pub(super) fn log_access(
        slf: &Bound<'_, Self>,
        scope: &Bound<'_, PyDict>,
        status: u16,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Some(log) = this.access_log(py) else {
            return Ok(());
        };
        if this.settings.logs.lines {
            if let Some(entry) = Entry::of(scope)
                && Self::log_line(slf, &log, &entry, status)?
            {
                return Ok(());
            }
            this.flush_lines(py)?;
        }
        support::http(py)?
            .getattr(intern!(py, "log_access"))?
            .call1((log, scope, New(status)))
            .map(drop)
    }

    /// Logs a request whose response has ended, complete or not. `body_length` is the length of the body, if it is known.
    #[cold]
    pub(super) fn log_end(
        &self,
        scope: &Bound<'_, PyDict>,
        status: u16,
        begun: Option<Begun>,
        body_length: Option<u64>,
    ) -> PyResult<()> {
        let py = scope.py();
        let Some(log) = self.access_log(py) else {
            return Ok(());
        };
        let duration_ns = begun.map(|begun| clock::now_ns().saturating_sub(begun.at_ns));
        let duration = duration_ns.map(|duration_ns| New(duration_ns as f64 * 1e-9));
        let arguments = (scope, New(status), duration, body_length.map(New));
        log.call_method1(intern!(py, "log_request"), arguments)
            .map(drop)
    }

    /// Logs a request that was refused with a text.
    pub(super) fn log_refusal(
        slf: &Bound<'_, Self>,
        scope: &Bound<'_, PyDict>,
        status: u16,
        begun: Option<Begun>,
        text: &str,
    ) -> PyResult<()> {
        if slf.get().logs_ends() {
            let length = text.len() as u64;
            return slf.get().log_end(scope, status, begun, Some(length));
        }
        Self::log_access(slf, scope, status)
    }

    /// Adds a line that is written with others; false if the log wants to get the request by itself.
    fn log_line(
        slf: &Bound<'_, Self>,
        log: &Bound<'_, PyAny>,
        entry: &Entry<'_>,
        status: u16,
    ) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        let is_full = this.lines.get(py).is_full_for(entry);
        if is_full {
            this.flush_lines(py)?;
        }
        let has_colors = this.lines.get(py).has_colors;
        let has_colors = if let Some(has_colors) = has_colors {
            has_colors
        } else {
            let flush = slf.getattr(intern!(py, "_flush_access_log"))?;
            let answer = log.call_method1(intern!(py, "begin"), (&flush,))?;
            if answer.is_none() {
                return Ok(false);
            }
            let has_colors = answer.is_truthy()?;
            if !this.lines.get(py).is_scheduled {
                this.call_soon(py, &flush)?;
            }
            let mut lines = this.lines.get_mut(py);
            lines.is_scheduled = true;
            lines.has_colors = Some(has_colors);
            has_colors
        };
        let is_known = this.lines.get(py).has_layout(status, has_colors);
        if !is_known {
            let arguments = (New(status), has_colors);
            let layout = log.call_method1(intern!(py, "layout"), arguments)?;
            let parts = layout.extract()?;
            this.lines.get_mut(py).add_layout(status, has_colors, parts);
        }
        let is_added = this.lines.get_mut(py).push(entry, status);
        Ok(is_added)
    }

    /// Writes the lines of the access log that are held back: the loop has called for it.
    pub(super) fn flush_access_log(&self, py: Python<'_>) -> PyResult<()> {
        self.lines.get_mut(py).is_scheduled = false;
        self.flush_lines(py)
    }

    fn flush_lines(&self, py: Python<'_>) -> PyResult<()> {
        let lines = self.lines.get_mut(py).take();
        let (Some(lines), Some(log)) = (lines, self.access_log(py)) else {
            return Ok(());
        };
        let text = objects::string(py, &lines)?;
        self.lines.get_mut(py).recycle(lines);
        log.call_method1(intern!(py, "write"), (text,)).map(drop)
    }

    /// Memory for the fields of a head. To be given back.
    pub(super) fn take_head(&self, py: Python<'_>) -> h1::Head {
        std::mem::take(&mut self.scratch.get_mut(py).head)
    }

    pub(super) fn return_head(&self, py: Python<'_>, head: h1::Head) {
        self.scratch.get_mut(py).head = head;
    }

    /// An empty buffer for a response. To be given back.
    pub(super) fn take_buffer(&self, py: Python<'_>) -> Vec<u8> {
        self.scratch.get_mut(py).buffers.pop().unwrap_or_default()
    }

    pub(super) fn return_buffer(&self, py: Python<'_>, mut buffer: Vec<u8>) {
        let buffers = &mut self.scratch.get_mut(py).buffers;
        if buffers.len() < BUFFERS_KEPT && buffer.capacity() <= BUFFER_KEPT {
            buffer.clear();
            buffers.push(buffer);
        }
    }

    /// Runs `body` with the server's own fields, and the time in seconds since 1970. It must not run Python code.
    pub(super) fn with_lines<R>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Lines, u64) -> R,
    ) -> R {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH);
        let unix_s = since.map_or(0, |since| since.as_secs());
        body(&mut self.scratch.get_mut(py).lines, unix_s)
    }

    /// Runs `body` with the memory for compressed messages. It must not run Python code.
    pub(super) fn with_pool<R>(&self, py: Python<'_>, body: impl FnOnce(&mut Pool) -> R) -> R {
        body(&mut self.scratch.get_mut(py).pool)
    }

    pub(super) fn is_shutting_down(&self, py: Python<'_>) -> bool {
        self.state.get(py).is_shutting_down
    }

    /// Whether uvicorn's `limit_concurrency` is reached.
    pub(super) fn is_overloaded(&self, py: Python<'_>) -> bool {
        self.settings.concurrency.is_some_and(|limit| {
            let state = self.state.get(py);
            let open = state.open().saturating_sub(state.lingering);
            open >= limit || state.active >= limit
        })
    }

    /// Counts a request.
    pub(super) fn count_request(&self, py: Python<'_>) -> PyResult<()> {
        let is_last = {
            let mut state = self.state.get_mut(py);
            state.requests += 1;
            state.requests_max == Some(state.requests)
        };
        if is_last {
            self.tell_of_max_requests(py)?;
        }
        Ok(())
    }

    #[cold]
    fn tell_of_max_requests(&self, py: Python<'_>) -> PyResult<()> {
        let callback = {
            let state = self.state.get(py);
            let objects = state.objects.as_ref();
            objects.and_then(|objects| objects.on_max_requests.clone_ref_opt(py))
        };
        callback.map_or(Ok(()), |callback| self.call_soon(py, callback.bind(py)))
    }

    /// Counts what has arrived on a connection.
    pub(super) fn count_received(&self, py: Python<'_>, length: usize) {
        self.counters.get_mut(py).bytes_received += length as u64;
    }

    /// Counts what is written to a connection.
    pub(super) fn count_sent(&self, py: Python<'_>, length: usize) {
        self.counters.get_mut(py).bytes_sent += length as u64;
    }

    /// Counts a response that has ended, complete or not. `begun` is None for a refusal without a request.
    pub(super) fn count_response(&self, py: Python<'_>, begun: Option<Begun>, status: u16) {
        let now_ns = clock::now_ns();
        self.counters
            .get_mut(py)
            .count_response(begun, status, now_ns);
    }

    /// Counts a protocol that has no connection yet.
    pub(super) fn begin_awaiting(&self, py: Python<'_>) {
        self.state.get_mut(py).awaited += 1;
    }

    /// Counts it no longer.
    pub(super) fn end_awaiting(&self, py: Python<'_>) {
        self.state.get_mut(py).awaited -= 1;
    }

    /// Enters a connection.
    pub(super) fn enter(&self, connection: &Bound<'_, PyAny>) -> usize {
        self.counters.get_mut(connection.py()).connections += 1;
        let mut state = self.state.get_mut(connection.py());
        state.connections.insert(connection.clone().unbind())
    }

    /// Enters a WebSocket on a stream of a connection. Returns the number that its deadlines are set with.
    pub(super) fn enter_stream(&self, exchange: &Bound<'_, PyAny>) -> usize {
        let mut state = self.state.get_mut(exchange.py());
        state.streams += 1;
        state.connections.insert(exchange.clone().unbind())
    }

    /// Forgets a WebSocket on a stream.
    pub(super) fn leave_stream(&self, py: Python<'_>, slot: usize) -> PyResult<()> {
        let is_entered = {
            let mut state = self.state.get_mut(py);
            let is_entered = state
                .connections
                .places
                .get(slot)
                .is_some_and(Option::is_some);
            state.streams -= usize::from(is_entered);
            is_entered
        };
        if is_entered {
            return self.leave(py, slot, false);
        }
        Ok(())
    }

    /// Counts a connection as one that is answered, and of which only the rest of the client's data is awaited.
    pub(super) fn begin_lingering(&self, py: Python<'_>) {
        self.state.get_mut(py).lingering += 1;
    }

    /// Forgets a connection.
    pub(super) fn leave(&self, py: Python<'_>, slot: usize, was_lingering: bool) -> PyResult<()> {
        let removed = {
            let mut state = self.state.get_mut(py);
            state.lingering -= usize::from(was_lingering);
            state.deadlines.clear_reading(slot);
            state.deadlines.clear_writing(slot);
            state.connections.remove(slot)
        };
        drop(removed);
        self.check_closed(py)
    }

    pub(super) fn all_connections(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let state = self.state.get(py);
        state
            .connections
            .iter()
            .map(|it| it.clone_ref(py))
            .collect()
    }

    pub(super) fn all_waiting(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let state = self.state.get(py);
        state.waiting.iter().map(|it| it.clone_ref(py)).collect()
    }

    /// Counts a request whose answer begins.
    pub(super) fn begin_active(&self, py: Python<'_>) {
        self.state.get_mut(py).active += 1;
    }

    /// Keeps a request that is not over. Returns the number that it is known by.
    pub(super) fn keep_waiting(&self, request: &Bound<'_, PyAny>) -> usize {
        let mut state = self.state.get_mut(request.py());
        state.waiting.insert(request.clone().unbind())
    }

    /// The class of tasks, and the names of the arguments to make one with.
    pub(super) fn task_class<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        Ok((
            self.object(py, |it| &it.task_class)?,
            self.object(py, |it| &it.task_names)?,
        ))
    }

    /// Python 3.11: asyncio's table of the tasks that run.
    pub(super) fn current_tasks<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyDict>> {
        let state = self.state.get(py);
        let tasks = state.objects.as_ref()?.current_tasks.as_ref();
        tasks.map(|tasks| tasks.bind(py).clone())
    }

    /// Tells those who wait for it that all is over, if it is.
    fn check_closed(&self, py: Python<'_>) -> PyResult<()> {
        let (waiting, timers) = {
            let mut state = self.state.get_mut(py);
            if state.connections.len() > 0 || state.active > 0 {
                return Ok(());
            }
            (
                std::mem::take(&mut state.closing),
                std::mem::take(&mut state.timers),
            )
        };
        for timer in timers.into_iter().flatten() {
            timer.bind(py).call_method0(intern!(py, "cancel"))?;
        }
        wake(py, waiting)
    }

    /// The task of a request is over.
    pub(super) fn on_request_over(&self, py: Python<'_>, slot: Option<usize>) -> PyResult<()> {
        let removed = {
            let mut state = self.state.get_mut(py);
            state.active = state.active.saturating_sub(1);
            slot.and_then(|slot| state.waiting.remove(slot))
        };
        drop(removed);
        if self.state.get(py).active == 0 {
            return self.check_closed(py);
        }
        Ok(())
    }

    /// Sets the deadline that a connection has for reading, or clears it. One for a head or a body goes on.
    pub(super) fn set_deadline(
        slf: &Bound<'_, Self>,
        slot: usize,
        kind: Option<Kind>,
    ) -> PyResult<()> {
        let this = slf.get();
        let py = slf.py();
        let timeout_ns = kind.and_then(|kind| this.settings.timeouts_ns[kind as usize]);
        let (Some(kind), Some(timeout_ns)) = (kind, timeout_ns) else {
            this.state.get_mut(py).deadlines.clear_reading(slot);
            return Ok(());
        };
        {
            let mut state = this.state.get_mut(py);
            if kind == Kind::Head && state.deadlines.reading(slot) == Some(kind) {
                return Ok(());
            }
            let at_ns = clock::now_ns().saturating_add(timeout_ns);
            state.deadlines.set(slot, kind, at_ns);
            if state.timers[kind as usize].is_some() {
                return Ok(());
            }
        }
        Self::set_timer(slf, kind)
    }

    /// Sets a deadline for reading, unless there is one of this kind.
    pub(super) fn begin_deadline(slf: &Bound<'_, Self>, slot: usize, kind: Kind) -> PyResult<()> {
        let current = slf.get().state.get(slf.py()).deadlines.reading(slot);
        if current == Some(kind) || (current, kind) == (Some(Kind::Idle), Kind::KeepAlive) {
            return Ok(());
        }
        Self::set_deadline(slf, slot, Some(kind))
    }

    /// Gives a peer time to read.
    pub(super) fn set_write_deadline(slf: &Bound<'_, Self>, slot: usize) -> PyResult<()> {
        let this = slf.get();
        let Some(timeout_ns) = this.settings.timeouts_ns[Kind::Write as usize] else {
            return Ok(());
        };
        let at_ns = clock::now_ns().saturating_add(timeout_ns);
        this.state
            .get_mut(slf.py())
            .deadlines
            .set(slot, Kind::Write, at_ns);
        Self::set_timer(slf, Kind::Write)
    }

    /// The timer of a kind of deadline has called.
    pub(super) fn forget_timer(&self, py: Python<'_>, kind: Kind) {
        let previous = self.state.get_mut(py).timers[kind as usize].take();
        drop(previous);
    }

    /// Takes a connection whose deadline of this kind has expired.
    pub(super) fn expire(&self, py: Python<'_>, kind: Kind, now_ns: u64) -> Option<Py<PyAny>> {
        let mut state = self.state.get_mut(py);
        loop {
            let slot = state.deadlines.expire(kind, now_ns)?;
            let connection = state.connections.places.get(slot);
            if let Some(Some(connection)) = connection {
                return Some(connection.clone_ref(py));
            }
        }
    }

    /// Has the loop call when the first deadline of a kind expires.
    pub(super) fn set_timer(slf: &Bound<'_, Self>, kind: Kind) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let first_ns = {
            let state = this.state.get(py);
            if state.timers[kind as usize].is_some() {
                return Ok(());
            }
            state.deadlines.first(kind)
        };
        let Some(first_ns) = first_ns else {
            return Ok(());
        };
        let event_loop = this.event_loop(py)?;
        let callback = slf.getattr(intern!(py, "_on_timer"))?;
        let options = objects::dict(py)?;
        options.set_item(intern!(py, "context"), this.context(py)?)?;
        let arguments = (New(first_ns as f64 * 1e-9), callback, New(kind as usize));
        let timer = event_loop.call_method(intern!(py, "call_at"), arguments, Some(&options))?;
        let previous = this.state.get_mut(py).timers[kind as usize].replace(timer.unbind());
        drop(previous);
        Ok(())
    }
}

/// Ends waits, except those that have been cancelled. All of them, even if one fails.
pub(super) fn wake(py: Python<'_>, waiting: Vec<Py<PyAny>>) -> PyResult<()> {
    let wake_one = |future: &Bound<'_, PyAny>| {
        if support::ask(future, intern!(py, "done"))? {
            return Ok(());
        }
        let set_result = intern!(py, "set_result");
        future.call_method1(set_result, (py.None(),)).map(drop)
    };
    support::for_each(py, waiting, |future| wake_one(future.bind(py)))
}
