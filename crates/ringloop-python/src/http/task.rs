//! Requests are answered by tasks: one for each, which runs the application.

use pyo3::prelude::*;

use super::calls;
use super::request::Request;
use super::service::HttpService;
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects;
use crate::queue::Ready;
use crate::support::python_is_at_least;

/// Starts the task of a request. Its first step runs at once, unless the user has a task factory.
pub(super) fn start(
    service: &Bound<'_, HttpService>,
    request: &Bound<'_, Request>,
) -> PyResult<()> {
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
    let arguments = [
        request.as_ptr(),
        event_loop.as_ptr(),
        context.as_ptr(),
        eager.as_ptr(),
    ];
    if python_is_at_least(12) {
        return calls::call(&class, &arguments, Some(&names));
    }
    // The task has queued its first step, as the last of all. Nothing else runs in between.
    let queued = event_loop.get().queue.get(py).ready.len();
    let task = calls::call(&class, &arguments[..3], Some(&names))?;
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
