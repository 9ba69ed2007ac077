//! Answers each request by an asyncio task that runs the application.
//!
//! A `Request` is the coroutine of its task. It calls the application in the task's first step, passes every step on to the
//! application's own coroutine, and sees how that ends.

use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::awaitable;
use super::calls;
use super::exchange::{Answerer, Exchange};
use super::request::{Application, Request};
use super::scope::Told;
use super::service::HttpService;
use super::websocket_messages;
use crate::coroutine::{self, Step};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::queue::Ready;
use crate::support::{CloneRefOption, python_is_at_least};

/// The answerer that runs the application in a task of asyncio's for each request. Its first step runs at once.
pub(super) struct Tasks;

impl Answerer for Tasks {
    fn take<'py>(&self, exchange: Exchange, told: Told<'py>) -> PyResult<Bound<'py, Exchange>> {
        Request::new(exchange, told.scope).map(Bound::into_super)
    }

    fn start(
        &self,
        service: &Bound<'_, HttpService>,
        exchange: &Bound<'_, Exchange>,
    ) -> PyResult<()> {
        start(service, exchange.cast::<Request>()?)
    }
}

/// Starts the task of a request. Its first step runs at once, unless the user has a task factory.
fn start(service: &Bound<'_, HttpService>, request: &Bound<'_, Request>) -> PyResult<()> {
    let this = service.get();
    let py = service.py();
    this.count_request(py)?;
    this.begin_active(py);
    let task = match make_task(this, py, request) {
        Ok(task) => task,
        Err(error) => {
            if !request.get().is_over(py) {
                this.on_request_over(py, None)?;
            }
            return Err(error);
        }
    };
    if !request.get().is_over(py) {
        let slot = this.keep_waiting(request.as_any());
        request.get().set_task(&task, slot);
        let event_loop = this.event_loop(py)?;
        if event_loop.get().has_task_factory(py) {
            let callback = request.getattr(intern!(py, "_on_task_done"))?;
            task.call_method1(intern!(py, "add_done_callback"), (callback,))?;
        }
    }
    Ok(())
}

fn make_task<'py>(
    service: &HttpService,
    py: Python<'py>,
    request: &Bound<'py, Request>,
) -> PyResult<Bound<'py, PyAny>> {
    let context = service.context(py)?;
    let event_loop = service.event_loop(py)?;
    if event_loop.get().has_task_factory(py) {
        let options = objects::dict(py)?;
        options.set_item(intern!(py, "context"), context)?;
        return event_loop.call_method(intern!(py, "create_task"), (request,), Some(&options));
    }
    let (class, names) = service.task_class(py)?;
    let eager = pyo3::types::PyBool::new(py, true);
    let (request, context) = (request.as_any(), context.as_any());
    if python_is_at_least(12) {
        let arguments = [request, event_loop.as_any(), context, eager.as_any()];
        return objects::call(&class, arguments, Some(&names));
    }
    // The task has queued its first step, as the last of all. Nothing else runs in between.
    let queued = event_loop.get().queue.get(py).ready.len();
    let task = objects::call(
        &class,
        [request, event_loop.as_any(), context],
        Some(&names),
    )?;
    let step = if runs_task(service, py, &event_loop)? {
        None
    } else {
        let mut queue = event_loop.get().queue.get_mut(py);
        let is_next =
            queue.ready.len() == queued + 1 && matches!(queue.ready.back(), Some(Ready::Handle(_)));
        is_next.then(|| queue.ready.pop_back()).flatten()
    };
    if let Some(Ready::Handle(step)) = step {
        let result = step.run(py);
        step.finish_run(py);
        step.release(py);
        result?;
    }
    Ok(task)
}

/// Python 3.11: whether a task runs, inside of which no other one can.
fn runs_task(
    service: &HttpService,
    py: Python<'_>,
    event_loop: &Bound<'_, Loop>,
) -> PyResult<bool> {
    let tasks = service.current_tasks(py);
    tasks.map_or(Ok(false), |tasks| tasks.contains(event_loop))
}

impl Request {
    /// Remembers the task of a request that waits.
    fn set_task(&self, task: &Bound<'_, PyAny>, slot: usize) {
        let mut state = self.state.get_mut(task.py());
        state.task = Some(task.clone().unbind());
        state.slot = Some(slot);
    }

    pub(super) fn task(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state.get(py).task.clone_ref_opt(py)
    }

    fn is_over(&self, py: Python<'_>) -> bool {
        matches!(self.state.get(py).application, Application::Over)
    }

    /// Takes a step of the application: calls it, resumes it, or throws into it.
    fn step<'py>(
        slf: &Bound<'py, Self>,
        throw: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = slf.py();
        let this = slf.get();
        let application = {
            let mut state = this.state.get_mut(py);
            state.sent = 0;
            std::mem::replace(&mut state.application, Application::Running)
        };
        let result = match application {
            Application::Waiting(scope) => match throw {
                None => Self::call_application(slf, scope.into_bound(py)),
                // Cancelled before its first step.
                Some(arguments) => Err(calls::thrown(arguments)),
            },
            Application::Suspended => this.resume(py, throw),
            Application::Running => {
                return Err(coroutine::executing(py));
            }
            Application::Over => {
                this.state.get_mut(py).application = Application::Over;
                return Err(coroutine::over(py));
            }
        };
        let outcome = match result {
            Ok(Step::Yield(future)) => match slf.as_super().get().flush_head(py) {
                Ok(()) => return Ok(Some(future)),
                Err(error) => Err(error),
            },
            Ok(Step::Return(value)) => Ok(value),
            Err(error) => Err(error),
        };
        this.forget_application(py);
        Self::finish(slf, outcome)?;
        Ok(None)
    }

    fn forget_application(&self, py: Python<'_>) {
        let dropped = {
            let mut state = self.state.get_mut(py);
            (
                std::mem::replace(&mut state.application, Application::Over),
                state.coroutine.take(),
                state.task.take(),
            )
        };
        drop(dropped);
    }

    /// The first step.
    fn call_application<'py>(
        slf: &Bound<'py, Self>,
        scope: Bound<'py, PyDict>,
    ) -> PyResult<Step<'py>> {
        let this = slf.get();
        let py = slf.py();
        let (receive, send) = awaitable::channels(slf)?;
        let exchange = slf.as_super().get();
        let service = exchange.service(py)?;
        let application = service.get().application(py, exchange.route())?;
        let arguments = [scope.as_any(), receive.as_any(), send.as_any()];
        let given = objects::call(&application, arguments, None)?;
        drop((scope, receive, send));
        let coroutine = calls::coroutine_of(given)?;
        this.state.get_mut(py).coroutine = Some(coroutine.unbind());
        this.resume(py, None)
    }

    fn resume<'py>(
        &self,
        py: Python<'py>,
        throw: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Step<'py>> {
        let coroutine = self.state.get(py).coroutine.clone_ref_opt(py);
        let Some(coroutine) = coroutine else {
            return Ok(Step::Return(py.None().into_bound(py)));
        };
        let coroutine = coroutine.bind(py);
        let result = match throw {
            None => coroutine::resume(coroutine),
            Some(arguments) => coroutine::throw_into(coroutine, arguments),
        };
        if let Ok(Step::Yield(_)) = &result {
            self.state.get_mut(py).application = Application::Suspended;
        }
        result
    }

    /// The application has ended: as uvicorn, says what was wrong, and gives the client an end. Whatever fails, the rest
    /// is done all the same.
    fn finish(slf: &Bound<'_, Self>, outcome: PyResult<Bound<'_, PyAny>>) -> PyResult<()> {
        let py = slf.py();
        let exchange = slf.as_super().get();
        let service = exchange.service(py)?;
        let slot = slf.get().state.get_mut(py).slot.take();
        let is_complete = exchange.is_complete(py);
        let is_disconnected = exchange.is_disconnected(py);
        let is_started = exchange.count_broken(py, service.get());
        let counted = service.get().on_request_over(py, slot);
        if exchange.websocket().is_some() {
            return counted.and(websocket_messages::finish(slf, outcome));
        }
        let logged = if is_started {
            exchange.log_end(py, service.get())
        } else {
            Ok(())
        };
        let scope = exchange.take_logged_scope(py);
        let connection = exchange.connection(py);
        // What to log, and whether the connection just ends.
        let (report, argument, is_closing) = match outcome {
            Err(error) => {
                // With its traceback, which `value` leaves out up to Python 3.11.
                let error = error.into_value(py).into_bound(py).into_any();
                (Some("report_exception"), error, is_started)
            }
            Ok(value) if !value.is_none() => (Some("report_result"), value, true),
            Ok(_) if is_complete => return counted.and(logged),
            // Its client is gone, or the server has ended the connection.
            Ok(value) if is_disconnected => (None, value, true),
            Ok(value) if is_started => (Some("report_incomplete"), value, true),
            Ok(value) => (Some("report_no_response"), value, false),
        };
        let ended = match connection {
            None => Ok(()),
            Some(_) if is_closing => {
                let flushed = exchange.flush_head(py);
                flushed.and(exchange.give_up(py))
            }
            Some(connection) => exchange.refuse(&connection, scope, 500, "Internal Server Error"),
        };
        let reported = match report {
            Some(report) => service.get().report(py, report, &argument),
            None => Ok(()),
        };
        counted.and(logged).and(ended).and(reported)
    }
}

#[pymethods]
impl Request {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::step(slf, None)
    }

    /// Starts or resumes the application.
    #[pyo3(name = "send")]
    fn method_send<'py>(
        slf: &Bound<'py, Self>,
        _value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        or_stop(slf.py(), Self::step(slf, None)?)
    }

    /// Raises an exception where the application waits.
    #[pyo3(signature = (*arguments))]
    fn throw<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if arguments.is_empty() {
            return Err(objects::error::<PyTypeError>(
                slf.py(),
                "throw expected at least 1 argument, got 0",
            ));
        }
        or_stop(slf.py(), Self::step(slf, Some(arguments))?)
    }

    /// Ends the application where it waits.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let application = {
            let mut state = this.state.get_mut(py);
            if let Application::Running = state.application {
                None
            } else {
                Some(std::mem::replace(&mut state.application, Application::Over))
            }
        };
        if application.is_none() {
            return Err(coroutine::executing(py));
        }
        drop(application);
        let coroutine = this.state.get_mut(py).coroutine.take();
        let closed = match coroutine {
            Some(coroutine) => coroutine.call_method0(py, intern!(py, "close")).map(drop),
            None => Ok(()),
        };
        let slot = this.state.get_mut(py).slot.take();
        let counted = match (slot, slf.as_super().get().service(py)) {
            (Some(_), Ok(service)) => service.get().on_request_over(py, slot),
            _ => Ok(()),
        };
        closed.and(counted)
    }

    /// A task that the user's factory has made may end without this coroutine: one that wraps it, and is cancelled before
    /// its first step.
    fn _on_task_done(slf: &Bound<'_, Self>, task: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        if this.is_over(py) {
            return Ok(());
        }
        this.forget_application(py);
        let outcome = task.call_method0(intern!(py, "result")).and_then(|_| {
            let text = "the request's task has ended without running it";
            Err(objects::error::<PyRuntimeError>(py, text))
        });
        Self::finish(slf, outcome)
    }

    /// The coroutine of the application: what is asked of this one is found there.
    fn __getattr__<'py>(
        slf: &Bound<'py, Self>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let coroutine = slf.get().state.get(py).coroutine.clone_ref_opt(py);
        let text = name.to_str()?;
        match coroutine {
            Some(coroutine) if text.starts_with("cr_") => coroutine.bind(py).getattr(name),
            _ => match text {
                "cr_running" => {
                    let state = slf.get().state.get(py);
                    let is_running = matches!(state.application, Application::Running);
                    Ok(is_running.into_pyobject(py)?.to_owned().into_any())
                }
                "cr_state" => {
                    let state = match slf.get().state.get(py).application {
                        Application::Waiting(_) => "CORO_CREATED",
                        Application::Running => "CORO_RUNNING",
                        Application::Suspended => "CORO_SUSPENDED",
                        Application::Over => "CORO_CLOSED",
                    };
                    Ok(objects::string(py, state)?.into_any())
                }
                "cr_suspended" => Ok(false.into_pyobject(py)?.to_owned().into_any()),
                "cr_frame" | "cr_code" => Ok(py.None().into_bound(py)),
                _ => Err(objects::error::<PyAttributeError>(
                    py,
                    &format!("'HttpRequest' object has no attribute '{text}'"),
                )),
            },
        }
    }

    #[getter]
    fn __name__(&self) -> New<&'static str> {
        New("application")
    }

    #[getter]
    fn __qualname__(&self) -> New<&'static str> {
        New("application")
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.coroutine)?;
        visit.call(&state.task)?;
        match &state.application {
            Application::Waiting(scope) => visit.call(scope),
            Application::Suspended | Application::Running | Application::Over => Ok(()),
        }
    }

    fn __clear__(&self, py: Python<'_>) {
        self.forget_application(py);
    }
}

/// The result of a step, for callers who expect `StopIteration` at the end.
fn or_stop<'py>(py: Python<'py>, result: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    result.ok_or_else(|| objects::error_with::<PyStopIteration>(py, py.None()))
}
