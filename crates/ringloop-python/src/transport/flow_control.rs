//! Flow control of a stream transport's writing: the marks, who is notified about them, and who waits for an empty
//! buffer.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::SocketTransport;
use crate::endpoint;
use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{self, CloneRefOption};

/// Sets when `pause_writing` (above `high` bytes) and `resume_writing` (at `low` or below) are called.
pub(super) fn set_limits(
    transport: &Bound<'_, SocketTransport>,
    high: Option<Bound<'_, PyAny>>,
    low: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = transport.py();
    let marks = support::python(py)?
        .getattr(intern!(py, "water_marks"))?
        .call1((high, low))?;
    let (high, low) = (marks.get_item(0)?, marks.get_item(1)?);
    let name = intern!(py, "set_write_buffer_limits");
    if endpoint::leave_to_loop(transport, name, [&high, &low])? {
        return Ok(());
    }
    let (high_water, low_water) = (high.extract()?, low.extract()?);
    {
        let mut state = transport.get().state.get_mut(py);
        state.high_water = high_water;
        state.low_water = low_water;
    }
    maybe_pause_protocol(transport)
}

pub(super) fn maybe_pause_protocol(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    if transport.get().state.get(py).protocol_paused {
        return Ok(());
    }
    let size = buffer_size(transport)?;
    {
        let mut state = transport.get().state.get_mut(py);
        if size <= state.high_water || state.protocol_paused {
            return Ok(());
        }
        state.protocol_paused = true;
    }
    call_flow_control(transport, "pause_writing")
}

/// Asked for by its name, because the user may have put another method in its place.
fn buffer_size(transport: &Bound<'_, SocketTransport>) -> PyResult<usize> {
    let name = intern!(transport.py(), "get_write_buffer_size");
    transport.call_method0(name)?.extract()
}

pub(super) fn maybe_resume_protocol(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    if !transport.get().state.get(py).protocol_paused {
        return Ok(());
    }
    let size = buffer_size(transport)?;
    {
        let mut state = transport.get().state.get_mut(py);
        if !state.protocol_paused || size > state.low_water {
            return Ok(());
        }
        state.protocol_paused = false;
    }
    call_flow_control(transport, "resume_writing")
}

#[cold]
fn call_flow_control(transport: &Bound<'_, SocketTransport>, method: &str) -> PyResult<()> {
    let py = transport.py();
    let Some(protocol) = transport.get().state.get(py).protocol.clone_ref_opt(py) else {
        return Ok(());
    };
    match protocol.bind(py).call_method0(New(method)) {
        Ok(_) => Ok(()),
        Err(error) if support::ends_the_loop(py, &error) => Err(error),
        Err(error) => {
            let context = objects::dict(py)?;
            let message = format!("protocol.{method}() failed");
            context.set_item(intern!(py, "message"), New(message))?;
            context.set_item(intern!(py, "exception"), error.value(py))?;
            context.set_item(intern!(py, "transport"), transport)?;
            context.set_item(intern!(py, "protocol"), protocol)?;
            let event_loop = endpoint::event_loop(transport.get(), py)?.into_bound(py);
            let handler = event_loop.getattr(intern!(py, "call_exception_handler"))?;
            support::call_handling(error, &handler, |_| New((context,)))
        }
    }
}

/// A future that is done when the write buffer is empty; writing is refused until `_reset_empty_waiter`.
pub(super) fn make_empty_waiter(transport: &Bound<'_, SocketTransport>) -> PyResult<Py<PyAny>> {
    let py = transport.py();
    let this = transport.get();
    if this.state.get(py).empty_waiter.is_some() {
        return Err(objects::error::<PyRuntimeError>(
            py,
            "Empty waiter is already set",
        ));
    }
    let event_loop = endpoint::event_loop(this, py)?;
    let waiter = event_loop
        .bind(py)
        .call_method0(intern!(py, "create_future"))?;
    let (is_empty, previous) = {
        let mut state = this.state.get_mut(py);
        let previous = state.empty_waiter.replace(waiter.clone().unbind());
        (state.buffer.is_empty(), previous)
    };
    drop(previous);
    if is_empty {
        waiter.call_method1(intern!(py, "set_result"), (py.None(),))?;
    }
    Ok(waiter.unbind())
}

/// Ends the wait for an empty buffer, unless whoever waited has gone.
pub(super) fn settle_waiter<'py>(
    waiter: &Bound<'py, PyAny>,
    method: &Bound<'py, PyString>,
    value: Bound<'py, PyAny>,
) -> PyResult<()> {
    if waiter
        .call_method0(intern!(waiter.py(), "done"))?
        .is_truthy()?
    {
        return Ok(());
    }
    waiter.call_method1(method, (value,)).map(drop)
}
