//! The work that the loop does for views: sending, waiting for clients, and the end of requests.

use pyo3::exceptions::asyncio::CancelledError;
use pyo3::exceptions::{PyConnectionError, PyTimeoutError};
use pyo3::prelude::*;

use super::view::{End, Out, View, Wait};
use crate::http::exchange::Exchange;
use crate::http::service::HttpService;
use crate::names::intern;
use crate::objects;
use crate::support;

impl View {
    /// Does what the view needs.
    pub(super) fn deliver(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let exchange = slf.as_super().get();
        // The view goes on while this runs Python code, such as the access log's: what it does then has its own call of this.
        let (mut out, end, was_over) = {
            let mut state = this.state.get_mut(py);
            state.is_posted = false;
            (std::mem::take(&mut state.out), state.end, state.is_over)
        };
        let waits = std::mem::take(&mut out.waits);
        let released = match out.taken {
            0 => Ok(()),
            taken => exchange.release(py, taken),
        };
        let sent = Self::send_out(slf, &out, end).or_else(|error| {
            this.break_off(py);
            // The file, if there is one, keeps the request from ending. It may be closed already.
            let dropped = Self::drop_file(slf, &out);
            support::first_error(py, Self::report(slf, error), dropped)
        });
        let mut result = support::first_error(py, released, sent);
        let connection = exchange
            .connection(py)
            .filter(|it| !exchange.is_closing(it));
        let is_over = {
            let is_full = connection.as_ref().is_some_and(|it| exchange.is_full(it));
            let mut state = this.state.get_mut(py);
            state.is_gone |= connection.is_none() && !exchange.is_complete(py);
            state.is_full = is_full;
            was_over && !state.sends_file
        };
        for (wait, waiter) in waits {
            let begun = match wait {
                Wait::Body if connection.is_some() => {
                    let asked = exchange.ask_for_body(py);
                    if exchange.has_message(py) {
                        waiter.get().call(py);
                        asked
                    } else {
                        asked.and(exchange.add_receiver(waiter.bind(py).as_any()))
                    }
                }
                Wait::Room if this.state.get(py).is_full => {
                    exchange.add_sender(waiter.bind(py).as_any());
                    Ok(())
                }
                _ => {
                    waiter.get().call(py);
                    Ok(())
                }
            };
            result = support::first_error(py, result, begun);
        }
        if is_over {
            result = support::first_error(py, result, Self::finish(slf));
        }
        result
    }

    /// Sends what the view has given.
    fn send_out(slf: &Bound<'_, Self>, out: &Out, end: End) -> PyResult<()> {
        let py = slf.py();
        let exchange = slf.as_super();
        let connection = exchange.get().connection(py);
        let Some(connection) = connection.filter(|it| !exchange.get().is_closing(it)) else {
            return Self::drop_file(slf, out);
        };
        let service = exchange.get().service(py)?;
        if let Some(head) = &out.head {
            let fields = head.fields.as_fields();
            exchange
                .get()
                .begin_head(&connection, head.status, Some(&fields), &service)?;
            exchange.get().start(&connection, head.status, false);
            exchange.get().log_start(&service, head.status)?;
        }
        if let Some(file) = &out.file {
            for part in &out.parts {
                Exchange::send_body(exchange, &connection, part.bind(py), false)?;
            }
            return Self::begin_file(slf, &service, file.bind(py));
        }
        let is_complete = end == End::Complete;
        let last = out.parts.len().saturating_sub(1);
        for (index, part) in out.parts.iter().enumerate() {
            let is_last = is_complete && index == last;
            Exchange::send_body(exchange, &connection, part.bind(py), is_last)?;
        }
        if is_complete && !exchange.get().is_complete(py) && out.parts.is_empty() {
            let sends_file = slf.get().state.get(py).sends_file;
            if !sends_file {
                let nothing = objects::bytes(py, b"")?;
                Exchange::send_body(exchange, &connection, &nothing, true)?;
            }
        }
        Ok(())
    }

    /// Nothing can be sent any more.
    fn break_off(&self, py: Python<'_>) {
        let mut state = self.state.get_mut(py);
        state.is_gone = true;
        state.end = End::Broken;
    }

    #[cold]
    fn report(slf: &Bound<'_, Self>, error: PyErr) -> PyResult<()> {
        let py = slf.py();
        let service = slf.as_super().get().service(py)?;
        let error = error.into_value(py).into_bound(py).into_any();
        let report = "report_wsgi_exception";
        service.get().report(py, report, &error)
    }

    /// The request is over: gives the client an end. Whatever fails, the rest is done all the same.
    fn finish(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let exchange = slf.as_super().get();
        let slot = {
            let mut state = slf.get().state.get_mut(py);
            if std::mem::replace(&mut state.is_finished, true) {
                return Ok(());
            }
            state.slot.take()
        };
        let is_unread = exchange.release_reserved(py);
        let service = exchange.service(py)?;
        let is_complete = exchange.is_complete(py);
        let is_disconnected = exchange.is_disconnected(py);
        if is_unread && !is_disconnected {
            service.get().gathering().count_unread();
        }
        let is_started = exchange.count_broken(py, service.get());
        let counted = service.get().on_request_over(py, slot);
        if is_complete {
            return counted;
        }
        let logged = if is_started {
            exchange.log_end(py, service.get())
        } else {
            Ok(())
        };
        let counted = support::first_error(py, counted, logged);
        let scope = exchange.take_logged_scope(py);
        let ended = match exchange.connection(py) {
            None => Ok(()),
            Some(_) if is_started || is_disconnected => {
                let flushed = exchange.flush_head(py);
                flushed.and(exchange.give_up(py))
            }
            Some(connection) => exchange.refuse(&connection, scope, 500, "Internal Server Error"),
        };
        support::first_error(py, counted, ended)
    }

    /// Answers a request that no thread will take.
    pub(super) fn give_up(slf: &Bound<'_, Self>, status: u16, text: &str) -> PyResult<()> {
        let py = slf.py();
        let refused = Self::refuse(slf, status, text);
        let slot = {
            let mut state = slf.get().state.get_mut(py);
            state.is_finished = true;
            state.slot.take()
        };
        let service = slf.as_super().get().service(py)?;
        let counted = service.get().on_request_over(py, slot);
        support::first_error(py, refused, counted)
    }

    /// Answers with an error.
    pub(super) fn refuse(slf: &Bound<'_, Self>, status: u16, text: &str) -> PyResult<()> {
        let py = slf.py();
        let exchange = slf.as_super().get();
        exchange.forget_body(py);
        let scope = exchange.take_logged_scope(py);
        match exchange.connection(py) {
            Some(connection) => exchange.refuse(&connection, scope, status, text),
            None => Ok(()),
        }
    }

    /// Starts a task that sends a file.
    fn begin_file(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        file: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = slf.py();
        let send = support::http(py)?.getattr(intern!(py, "send_file"))?;
        let coroutine = send.call1((slf, file))?;
        let options = objects::dict(py)?;
        options.set_item(intern!(py, "context"), service.get().context(py)?)?;
        let event_loop = service.get().event_loop(py)?;
        let create = intern!(py, "create_task");
        let task = event_loop.call_method(create, (coroutine,), Some(&options))?;
        let callback = slf.getattr(intern!(py, "_on_file_sent"))?;
        task.call_method(
            intern!(py, "add_done_callback"),
            (callback,),
            Some(&options),
        )
        .map(drop)
    }

    /// The file of a response that can't be sent is closed.
    fn drop_file(slf: &Bound<'_, Self>, out: &Out) -> PyResult<()> {
        let py = slf.py();
        let Some(file) = &out.file else {
            return Ok(());
        };
        slf.get().state.get_mut(py).sends_file = false;
        file.call_method0(py, intern!(py, "close")).map(drop)
    }

    /// The task that sends a file is over.
    pub(super) fn end_file(slf: &Bound<'_, Self>, task: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        slf.get().state.get_mut(py).sends_file = false;
        let reported = match task.call_method0(intern!(py, "result")) {
            Ok(_) => Ok(()),
            Err(error) => {
                slf.get().break_off(py);
                let is_lost = error.is_instance_of::<PyConnectionError>(py)
                    || error.is_instance_of::<PyTimeoutError>(py)
                    || error.is_instance_of::<CancelledError>(py);
                if is_lost {
                    Ok(())
                } else {
                    Self::report(slf, error)
                }
            }
        };
        let is_over = slf.get().state.get(py).is_over;
        let finished = if is_over { Self::finish(slf) } else { Ok(()) };
        support::first_error(py, reported, finished)
    }
}
