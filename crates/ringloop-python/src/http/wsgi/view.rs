//! A request that a thread of the pool answers. As a Python object it is the `start_response` of its view.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_http::h1::Method;

use super::input::Input;
use super::pool::{Number, Pool};
use super::start::{Head, name_of_class};
use super::waiting::{Parker, Waiter};
use crate::cell::GilCell;
use crate::http::exchange::Exchange;
use crate::http::pages::Route;
use crate::http::scope::Told;
use crate::http::service::HttpService;
use crate::names::intern;
use crate::objects;
use crate::support::{self, in_context};

/// A view waits while the loop has yet to send this many bytes.
const UNSENT_MAX: usize = 64 * 1024;

/// How often a view that waits for the loop checks whether the loop was closed, which notifies nobody.
const LOOP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The parts of a list are joined up to this length.
const JOINED_MAX: usize = 64 * 1024;

/// How far the response has got, as the view sees it.
enum Phase {
    /// `start_response` was not called.
    Before,
    /// Its arguments wait for the first part of the body.
    Started(Head),
    Sent,
}

/// How the response ends.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    Open,
    Complete,
    /// It can't be completed.
    Broken,
}

/// The reason for which a view waits.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    /// More of the request's body.
    Body,
    /// Room to send more.
    Room,
}

/// The work that the loop has yet to do for a view.
#[derive(Default)]
pub(super) struct Out {
    pub(super) head: Option<Head>,
    pub(super) parts: Vec<Py<PyBytes>>,
    /// The bytes of all parts.
    pub(super) length: usize,
    /// A file that is the body.
    pub(super) file: Option<Py<PyAny>>,
    /// Bytes of the request's body that were taken.
    pub(super) taken: usize,
    pub(super) waits: Vec<(Wait, Py<Waiter>)>,
}

/// Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct State {
    /// The template of the environment, until the view is called.
    environ: Option<Py<PyDict>>,
    /// The thread that runs the view.
    thread: Number,
    phase: Phase,
    /// The bytes that Content-Length leaves, if they count.
    left: Option<u64>,
    /// More was given than Content-Length says.
    has_cut: bool,
    pub(super) end: End,
    pub(super) out: Out,
    /// The number that the service knows the request by.
    pub(super) slot: Option<usize>,
    /// The loop was told to look at `out`.
    pub(super) is_posted: bool,
    /// The client has to read before more is sent, as far as the loop has seen.
    pub(super) is_full: bool,
    /// Nothing can be sent any more.
    pub(super) is_gone: bool,
    /// The thread is done with the view.
    pub(super) is_over: bool,
    pub(super) sends_file: bool,
    pub(super) is_finished: bool,
}

/// The fate of a part of the body.
enum Given {
    /// The loop has to look at it.
    Posted,
    /// The view's end follows, or it does not count any more.
    Nothing,
    /// Nothing can be sent.
    Refused,
}

impl State {
    /// Takes a part of the body, which has no more bytes than are left.
    fn give(&mut self, part: Bound<'_, PyBytes>, is_cut: bool, is_last: bool) -> Given {
        let length = part.as_bytes().len();
        self.left = self.left.map(|left| left - length as u64);
        if is_cut && length == 0 && !is_last {
            return Given::Nothing;
        }
        if self.is_gone {
            return Given::Refused;
        }
        if self.end == End::Complete {
            return Given::Nothing;
        }
        if let Phase::Started(head) = std::mem::replace(&mut self.phase, Phase::Sent) {
            self.out.head = Some(head);
        }
        self.out.length += length;
        self.out.parts.push(part.unbind());
        let is_short = self.left.is_some_and(|left| left > 0);
        if (is_last && !is_short) || self.left == Some(0) {
            self.end = End::Complete;
        }
        if is_last {
            Given::Nothing
        } else {
            Given::Posted
        }
    }

    /// Whether `start_response` may be called now. Not for the second time, unless for an error before anything was sent.
    fn may_start(&self, has_error: bool) -> bool {
        match self.phase {
            Phase::Before => true,
            Phase::Started(_) => has_error,
            Phase::Sent => false,
        }
    }
}

#[pyclass(module = "ringloop._core", name = "WsgiStartResponse", frozen, extends = Exchange)]
pub(super) struct View {
    pub(super) state: GilCell<State>,
}

impl View {
    pub(super) fn make(exchange: Exchange, told: Told<'_>) -> PyResult<Bound<'_, Self>> {
        let py = told.scope.py();
        let state = State {
            environ: told.environ.map(Bound::unbind),
            thread: 0,
            phase: Phase::Before,
            left: None,
            has_cut: false,
            end: End::Open,
            out: Out::default(),
            slot: None,
            is_posted: false,
            is_full: false,
            is_gone: false,
            is_over: false,
            sends_file: false,
            is_finished: false,
        };
        let state = GilCell::new(state);
        let initializer = PyClassInitializer::from(exchange).add_subclass(Self { state });
        Bound::new(py, initializer)
    }

    /// The request is in the queue.
    pub(super) fn begin(&self, py: Python<'_>, slot: usize) {
        self.state.get_mut(py).slot = Some(slot);
    }

    /// Runs the view, in a thread of the pool: in the thread's own context, or in a new one if contexts are reset.
    pub(super) fn run(
        slf: &Bound<'_, Self>,
        pool: &Bound<'_, Pool>,
        service: &Bound<'_, HttpService>,
        number: Number,
    ) -> PyResult<()> {
        let py = slf.py();
        let environ = {
            let mut state = slf.get().state.get_mut(py);
            state.thread = number;
            state.environ.take()
        };
        let run = || {
            let answered = Self::answer(slf, service, environ);
            answered.or_else(|error| Self::fail(slf, service, error))
        };
        let result = if service.get().resets_contexts() {
            let context = service.get().context(py);
            context.and_then(|context| in_context(py, &context.unbind(), run))
        } else {
            run()
        };
        {
            let mut state = slf.get().state.get_mut(py);
            state.is_over = true;
            if state.end == End::Open {
                state.end = End::Broken;
            }
        }
        // It fails only where there is no loop any more, and so nobody to tell.
        let _ = Self::post(slf, pool);
        result
    }

    /// Calls the application, and sends what it returns.
    fn answer(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        environ: Option<Py<PyDict>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let Some(template) = environ else {
            return Ok(());
        };
        if slf.as_super().get().connection(py).is_none() {
            return Ok(()); // The client has left while the request waited, or the server has given up.
        }
        if slf.as_super().get().is_given_up(py) {
            let status = objects::string(py, "503 Service Unavailable")?;
            let headers = objects::list(py, Vec::<Py<PyAny>>::new())?;
            Self::__call__(slf, &status, &headers, None)?;
            return Self::send_all(slf, &[]);
        }
        let environ = template.bind(py).copy()?;
        environ.set_item(intern!(py, "wsgi.input"), Input::make(slf)?)?;
        let application = service.get().application(py, Route::Application)?;
        let result = objects::call(&application, [environ.as_any(), slf.as_any()], None)?;
        drop(environ);
        if let Ok(list) = result.cast_exact::<PyList>() {
            return match list.len() {
                1 => Self::send_all(slf, &[list.get_item(0)?]),
                _ => Self::send_all(slf, &list.iter().collect::<Vec<_>>()),
            };
        }
        if let Ok(tuple) = result.cast_exact::<PyTuple>() {
            return Self::send_all(slf, &tuple.iter().collect::<Vec<_>>());
        }
        let sent = Self::send_each(slf, &result);
        let closed = match result.getattr_opt(intern!(py, "close")) {
            Ok(Some(close)) => close.call0().map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match (sent, closed) {
            (Err(sent), Err(closed)) => {
                Self::fail(slf, service, sent)?;
                Err(closed)
            }
            (sent, closed) => sent.and(closed),
        }
    }

    /// The view has raised an exception.
    #[cold]
    fn fail(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>, error: PyErr) -> PyResult<()> {
        let py = slf.py();
        {
            let mut state = slf.get().state.get_mut(py);
            if state.end == End::Open {
                state.end = End::Broken;
            }
        }
        // The client's leaving is none of the application's errors.
        if error.is_instance(py, &disconnected_class(py)?) {
            return Ok(());
        }
        let error = error.into_value(py).into_bound(py).into_any();
        let report = "report_wsgi_exception";
        service.get().report(py, report, &error)
    }

    // -- Sending -----------------------------------------------------------------------------------------------------

    /// Sends a list or a tuple.
    fn send_all(slf: &Bound<'_, Self>, parts: &[Bound<'_, PyAny>]) -> PyResult<()> {
        let py = slf.py();
        let mut total = 0;
        for part in parts {
            total += as_bytes(part)?.as_bytes().len();
        }
        if parts.len() > 1 && total <= JOINED_MAX {
            let mut all = Vec::with_capacity(total);
            for part in parts {
                all.extend_from_slice(as_bytes(part)?.as_bytes());
            }
            Self::send(slf, &objects::bytes(py, &all)?, true)?;
            return Self::complete(slf);
        }
        let last = parts.len().saturating_sub(1);
        for (index, part) in parts.iter().enumerate() {
            if !Self::send(slf, as_bytes(part)?, index == last)? {
                return Ok(());
            }
        }
        Self::complete(slf)
    }

    /// Sends what an iterable gives.
    fn send_each(slf: &Bound<'_, Self>, result: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let http = support::http(py)?;
        if result
            .get_type()
            .is(&http.getattr(intern!(py, "FileWrapper"))?)
        {
            let left = slf.get().state.get(py).left;
            let found = http
                .getattr(intern!(py, "file_of_wrapper"))?
                .call1((result, objects::New(left)))?;
            if let Ok(content) = found.cast_exact::<PyBytes>() {
                Self::send(slf, content, true)?;
                return Self::complete(slf);
            }
            if !found.is_none() {
                return Self::send_file(slf, &found);
            }
        }
        for part in result.try_iter()? {
            if !Self::send(slf, as_bytes(&part?)?, false)? {
                return Ok(());
            }
        }
        Self::complete(slf)
    }

    /// Hands over a part of the body. Returns whether more may be sent.
    fn send(slf: &Bound<'_, Self>, part: &Bound<'_, PyBytes>, is_last: bool) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        let length = part.as_bytes().len();
        if length == 0 && !is_last {
            return Ok(true); // Not even the head goes out for it.
        }
        let (is_started, is_all_given) = {
            let state = this.state.get(py);
            let is_started = !matches!(state.phase, Phase::Before);
            (is_started, state.left == Some(0))
        };
        if !is_started {
            return Err(not_started(py));
        }
        if !is_all_given && !this.has_room(py) && !Self::wait_for_room(slf)? {
            return Ok(false);
        }
        // What is kept of a class of the application's could run its code wherever it is let go of.
        let mut part = if part.is_exact_instance_of::<PyBytes>() {
            part.clone()
        } else {
            objects::bytes(py, part.as_bytes())?
        };
        // Counted and given in one borrow: other threads of the application may send, too.
        let (is_first_cut, given) = loop {
            let mut state = this.state.get_mut(py);
            if let Some(left) = state
                .left
                .filter(|&left| left < part.as_bytes().len() as u64)
            {
                drop(state);
                part = objects::bytes(py, &part.as_bytes()[..left as usize])?;
                continue; // There may be even less left by now.
            }
            let is_cut = part.as_bytes().len() < length;
            let is_first_cut = is_cut && !std::mem::replace(&mut state.has_cut, true);
            break (is_first_cut, state.give(part, is_cut, is_last));
        };
        if is_first_cut {
            Self::report_length(slf, "longer")?;
        }
        match given {
            Given::Posted => Self::post_to(slf).map(|()| true),
            Given::Nothing => Ok(true),
            Given::Refused => Ok(false),
        }
    }

    #[cold]
    fn report_length(slf: &Bound<'_, Self>, how: &str) -> PyResult<()> {
        let py = slf.py();
        let service = slf.as_super().get().service(py)?;
        let text = objects::string(py, &format!("Response content {how} than Content-Length"))?;
        service.get().report(py, "report_error", text.as_any())
    }

    /// All of the body was given.
    fn complete(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let is_short = {
            let mut state = this.state.get_mut(py);
            match std::mem::replace(&mut state.phase, Phase::Sent) {
                Phase::Before => {
                    state.phase = Phase::Before;
                    drop(state);
                    return Err(not_started(py));
                }
                Phase::Started(head) => state.out.head = Some(head),
                Phase::Sent => {}
            }
            let is_short = state.left.is_some_and(|left| left > 0) && !state.is_gone;
            if state.end == End::Open {
                state.end = if is_short { End::Broken } else { End::Complete };
            }
            is_short
        };
        if is_short {
            return Self::report_length(slf, "shorter");
        }
        Ok(())
    }

    /// Has a file sent as the body. The loop goes on with it when the view is over.
    fn send_file(slf: &Bound<'_, Self>, file: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let mut state = slf.get().state.get_mut(py);
        match std::mem::replace(&mut state.phase, Phase::Sent) {
            Phase::Before => {
                state.phase = Phase::Before;
                drop(state);
                file.call_method0(intern!(py, "close"))?;
                return Err(not_started(py));
            }
            Phase::Started(head) => state.out.head = Some(head),
            Phase::Sent => {}
        }
        state.out.file = Some(file.clone().unbind());
        state.sends_file = true;
        state.end = End::Complete;
        Ok(())
    }

    // -- Waiting -----------------------------------------------------------------------------------------------------

    fn has_room(&self, py: Python<'_>) -> bool {
        let state = self.state.get(py);
        !state.is_full && state.out.length < UNSENT_MAX
    }

    /// Waits until there is room to send more; false if nothing can be sent.
    #[cold]
    fn wait_for_room(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        loop {
            if slf.get().state.get(py).is_gone {
                return Ok(false);
            }
            if slf.get().has_room(py) {
                return Ok(true);
            }
            Self::wait(slf, Wait::Room)?;
        }
    }

    /// Waits until the loop says that there may be what is waited for.
    pub(super) fn wait(slf: &Bound<'_, Self>, wait: Wait) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let pool = Self::pool(slf)?;
        let parker = Arc::new(Parker::default());
        let waiter = Bound::new(py, Waiter::new(Arc::clone(&parker), &pool))?;
        let thread = {
            let mut state = this.state.get_mut(py);
            state.out.waits.push((wait, waiter.unbind()));
            state.thread
        };
        Self::post(slf, &pool)?;
        Pool::step_aside(&pool, thread)?;
        let event_loop = slf.as_super().get().service(py)?.get().event_loop(py)?;
        while !py.detach(|| parker.wait_for(LOOP_CHECK_INTERVAL)) {
            if event_loop.get().is_closed() {
                // Nothing that it was asked for will be done.
                this.state.get_mut(py).is_gone = true;
                return Err(disconnected(py));
            }
        }
        Ok(())
    }

    fn pool<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Pool>> {
        let py = slf.py();
        match slf.as_super().get().service(py)?.get().pool(py) {
            Some(pool) => Ok(pool.cast_into()?),
            None => Err(disconnected(py)),
        }
    }

    /// A part of the request's body was taken, after which there may be `more`.
    pub(super) fn on_taken(slf: &Bound<'_, Self>, length: usize, more: bool) -> PyResult<()> {
        slf.get().state.get_mut(slf.py()).out.taken += length;
        if more { Self::post_to(slf) } else { Ok(()) }
    }

    fn post_to(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::post(slf, &Self::pool(slf)?)
    }

    /// Has the loop look at this request.
    fn post(slf: &Bound<'_, Self>, pool: &Bound<'_, Pool>) -> PyResult<()> {
        let py = slf.py();
        if std::mem::replace(&mut slf.get().state.get_mut(py).is_posted, true) {
            return Ok(());
        }
        Pool::post(pool, slf).map_err(|_| {
            // There is no loop any more.
            let mut state = slf.get().state.get_mut(py);
            state.is_posted = false;
            state.is_gone = true;
            drop(state);
            disconnected(py)
        })
    }
}

#[pymethods]
impl View {
    /// `start_response` of PEP 3333.
    #[pyo3(signature = (status, headers, exc_info=None, /))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        status: &Bound<'py, PyAny>,
        headers: &Bound<'py, PyAny>,
        exc_info: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let may_start = this.state.get(py).may_start(exc_info.is_some());
        if !may_start {
            return Err(started(py, exc_info));
        }
        let head = Head::read(status, headers)?;
        let is_head = slf.as_super().get().begun(py).method == Method::Head;
        let has_body = !is_head && !matches!(head.status, 204 | 205 | 304);
        let previous = {
            let mut state = this.state.get_mut(py);
            // Reading the head may have run code that has called this, too, and so may other threads.
            if !state.may_start(exc_info.is_some()) {
                drop(state);
                return Err(started(py, exc_info));
            }
            state.left = head.length.filter(|_| has_body);
            std::mem::replace(&mut state.phase, Phase::Started(head))
        };
        drop(previous);
        slf.getattr(intern!(py, "write"))
    }

    /// `write` of PEP 3333.
    fn write(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        if Self::send(slf, as_bytes(data)?, false)? {
            Ok(())
        } else {
            Err(disconnected(slf.py()))
        }
    }

    /// The task that sends the file is over.
    fn _on_file_sent(slf: &Bound<'_, Self>, task: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::end_file(slf, task)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.environ)?;
        visit.call(&state.out.file)?;
        for (_, waiter) in &state.out.waits {
            visit.call(waiter)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        let dropped = {
            let mut state = self.state.get_mut(py);
            (state.environ.take(), std::mem::take(&mut state.out))
        };
        drop(dropped);
    }
}

/// A part of a body, which must be `bytes`.
fn as_bytes<'a, 'py>(part: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyBytes>> {
    part.cast::<PyBytes>().map_err(|_| {
        let name = name_of_class(part);
        let text = format!("a part of a response must be bytes, not {name}");
        objects::error::<PyTypeError>(part.py(), &text)
    })
}

/// The error of a second `start_response`: the application's own, if it was called for that.
#[cold]
fn started(py: Python<'_>, exc_info: Option<&Bound<'_, PyAny>>) -> PyErr {
    let Some(exc_info) = exc_info else {
        let text = "start_response was already called";
        return objects::error::<PyRuntimeError>(py, text);
    };
    match exc_info.get_item(objects::New(1)) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

#[cold]
fn not_started(py: Python<'_>) -> PyErr {
    objects::error::<PyRuntimeError>(py, "the application has not called start_response")
}

fn disconnected_class(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    support::http(py)?.getattr(intern!(py, "ClientDisconnected"))
}

/// The error that tells a view that its client is gone.
#[cold]
pub(super) fn disconnected(py: Python<'_>) -> PyErr {
    let text = objects::string(py, "the client is gone");
    let made = text.and_then(|text| disconnected_class(py)?.call1((text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}
