//! HTTP/1, as exchanges see it.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringloop_http::ResponseError;
use ringloop_http::h1::{self, Framed, ParkedHead};

use super::Connection;
use crate::http::exchange::{Exchange, FileBegun, FileStart, Part, Protocol, response_error};
use crate::http::link::Link;
use crate::http::message::Fields;
use crate::http::service::HttpService;
use crate::objects;

/// The status of a response that announces links (RFC 8297).
pub(super) const EARLY_HINTS: u16 = 103;

pub(super) struct Http1;

pub(super) static HTTP1: Http1 = Http1;

/// The connection that an exchange was made with.
pub(super) fn connection<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, Connection>> {
    Ok(object.cast::<Connection>()?)
}

impl Protocol for Http1 {
    fn is_multiplexed(&self) -> bool {
        false
    }

    fn link<'a>(&self, object: &'a Bound<'_, PyAny>) -> PyResult<&'a Link> {
        Ok(&connection(object)?.get().link)
    }

    fn is_full(&self, _: &Exchange, object: &Bound<'_, PyAny>) -> bool {
        connection(object).is_ok_and(|it| it.get().link.is_writing_paused(it.py()))
    }

    fn ask_for_body(&self, _: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        Connection::ask_for_body(connection(object)?)
    }

    fn on_body_taken(&self, _: &Exchange, object: &Bound<'_, PyAny>, _: usize) -> PyResult<()> {
        Connection::on_body_taken(connection(object)?)
    }

    fn on_waits_changed(&self, _: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        Connection::on_waits_changed(connection(object)?)
    }

    fn begin_head(
        &self,
        _: &Exchange,
        object: &Bound<'_, PyAny>,
        status: u16,
        fields: Option<&Fields<'_>>,
        service: &Bound<'_, HttpService>,
    ) -> Result<(), ResponseError> {
        let py = object.py();
        let Ok(connection) = connection(object) else {
            return Err(ResponseError::NoRequest);
        };
        let mut buffer = service.get().take_buffer(py);
        let begun = connection
            .get()
            .begin_response(py, status, fields, service, &mut buffer);
        match begun {
            Ok(head) => {
                connection.get().state.get_mut(py).parked = Some((head, buffer));
                Ok(())
            }
            Err(error) => {
                service.get().return_buffer(py, buffer);
                Err(error)
            }
        }
    }

    fn send_head(
        &self,
        _: &Exchange,
        object: &Bound<'_, PyAny>,
        _: bool,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<()> {
        let py = object.py();
        let connection = connection(object)?;
        let parked = connection.get().state.get_mut(py).parked.take();
        let Some((head, mut buffer)) = parked else {
            return Ok(());
        };
        connection
            .get()
            .finish_head(py, head, None, service, &mut buffer);
        let result = connection.get().link.write(connection, &buffer, None, b"");
        service.get().return_buffer(py, buffer);
        result
    }

    fn send_body(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        part: &Part<'_, '_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<bool> {
        let py = object.py();
        let connection = connection(object)?;
        // From here to the write no Python code runs, and no other thread sends: nothing comes in between.
        let (mut buffer, parked) = connection.get().take_head(py, part.has_head, service.get());
        let (body, is_last) = (part.body, part.is_last);
        let content = body.as_bytes();
        let framed =
            connection
                .get()
                .frame_body(py, parked, content.len(), is_last, service, &mut buffer);
        let framed = match framed {
            Ok(framed) => framed,
            Err(error) => {
                // The head goes out all the same, as it would have without waiting for the body; so does a part that is too
                // short.
                let is_short = matches!(error, ResponseError::TooShort(_));
                let payload = Some(body).filter(|_| is_short);
                let result = connection
                    .get()
                    .link
                    .write(connection, &buffer, payload, b"");
                service.get().return_buffer(py, buffer);
                result?;
                return Err(response_error(py, error));
            }
        };
        buffer.extend_from_slice(part.file_tail);
        buffer.extend_from_slice(framed.head());
        let payload = (!framed.payload(content).is_empty()).then_some(body);
        exchange.advance(py, is_last);
        let result = if is_last {
            connection
                .get()
                .link
                .write_now(py, &buffer, payload, framed.tail())
        } else {
            connection
                .get()
                .link
                .write(connection, &buffer, payload, framed.tail())
        };
        service.get().return_buffer(py, buffer);
        result.map(|()| framed.is_forbidden())
    }

    fn flush(&self, _: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(()) // It was written.
    }

    fn send_hints(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        links: &[Bound<'_, PyBytes>],
    ) -> PyResult<()> {
        let links = links.iter().map(|link| (&b"link"[..], link.as_bytes()));
        write_with(exchange, object, |http, out| {
            http.inform(EARLY_HINTS, links, out)
        })
    }

    fn takes_trailers(&self, object: &Bound<'_, PyAny>) -> bool {
        connection(object).is_ok_and(|connection| {
            let state = connection.get().state.get(object.py());
            state.http.request().takes_trailers
        })
    }

    fn send_trailers(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        fields: &[(Vec<u8>, Vec<u8>)],
    ) -> PyResult<()> {
        let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
        write_with(exchange, object, |http, out| {
            http.send_trailers(fields, out)
        })
    }

    fn begin_file(
        &self,
        exchange: &Exchange,
        object: &Bound<'_, PyAny>,
        file: &FileStart<'_, '_>,
        service: &Bound<'_, HttpService>,
    ) -> PyResult<FileBegun> {
        let py = object.py();
        let connection = connection(object)?;
        let (mut buffer, parked) = connection.get().take_head(py, file.has_head, service.get());
        if let Some(head) = parked {
            let complete = (!file.has_trailers).then_some(file.size as u64);
            connection
                .get()
                .finish_head(py, head, complete, service, &mut buffer);
        }
        let count = connection.get().file_length(py, file.size);
        let framed = connection
            .get()
            .frame_body(py, None, count, false, service, &mut buffer);
        let framed = match framed {
            Ok(framed) => framed,
            Err(error) => {
                let result = connection.get().link.write(connection, &buffer, None, b"");
                service.get().return_buffer(py, buffer);
                result?;
                return Err(response_error(py, error));
            }
        };
        buffer.extend_from_slice(framed.head());
        exchange.set_file_tail(py, framed.tail());
        let content = match file.content {
            Some(content) if content.as_bytes().len() > count => {
                Some(objects::bytes(py, &content.as_bytes()[..count])?)
            }
            other => other.cloned(),
        };
        let payload = content.filter(|_| framed.sends_payload());
        exchange.count_file(py, if framed.sends_payload() { count } else { 0 });
        let left = if payload.is_some() || !framed.sends_payload() {
            0
        } else {
            count
        };
        let result = connection
            .get()
            .link
            .write_now(py, &buffer, payload.as_ref(), b"");
        service.get().return_buffer(py, buffer);
        result?;
        Ok(FileBegun {
            left,
            is_forbidden: framed.is_forbidden(),
        })
    }

    fn write_file(
        &self,
        _: &Exchange,
        object: &Bound<'_, PyAny>,
        content: &Bound<'_, PyBytes>,
    ) -> PyResult<()> {
        let connection = connection(object)?;
        let link = &connection.get().link;
        link.write(connection, b"", Some(content), b"")
    }

    fn on_complete(
        &self,
        exchange: &Bound<'_, Exchange>,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        Connection::on_response_complete(connection(object)?, exchange)
    }

    fn give_up(&self, _: &Exchange, object: &Bound<'_, PyAny>) -> PyResult<()> {
        Connection::linger(connection(object)?)
    }

    fn refuse(
        &self,
        _: &Exchange,
        object: &Bound<'_, PyAny>,
        scope: Option<Py<PyDict>>,
        status: u16,
        text: &str,
    ) -> PyResult<()> {
        Connection::refuse_request(connection(object)?, scope, status, text)
    }
}

/// Writes now what `run` puts into a buffer.
fn write_with(
    exchange: &Exchange,
    object: &Bound<'_, PyAny>,
    run: impl FnOnce(&mut h1::Connection, &mut Vec<u8>) -> Result<(), ResponseError>,
) -> PyResult<()> {
    let py = object.py();
    let connection = connection(object)?.get();
    let service = exchange.service(py)?;
    let mut buffer = service.get().take_buffer(py);
    let ran = run(&mut connection.state.get_mut(py).http, &mut buffer);
    let result = match ran {
        Ok(()) if buffer.is_empty() => Ok(()),
        Ok(()) => connection.link.write_now(py, &buffer, None, b""),
        Err(error) => Err(response_error(py, error)),
    };
    service.get().return_buffer(py, buffer);
    result
}

impl Connection {
    /// Tells a client that waits for it that its body is wanted.
    fn ask_for_body(slf: &Bound<'_, Self>) -> PyResult<()> {
        let answer = slf.get().state.get_mut(slf.py()).http.ask_for_body();
        match answer {
            Some(answer) => slf.get().link.write(slf, answer, None, b""),
            None => Ok(()),
        }
    }

    /// Writes the head of a response, up to where the length of its body must be known.
    fn begin_response(
        &self,
        py: Python<'_>,
        status: u16,
        fields: Option<&Fields<'_>>,
        service: &Bound<'_, HttpService>,
        buffer: &mut Vec<u8>,
    ) -> Result<ParkedHead, ResponseError> {
        let mut state = self.state.get_mut(py);
        let mut head = state.http.respond(status, buffer)?;
        let has = |name: &[u8]| fields.is_some_and(|fields| fields.has(name));
        for (name, value) in service.get().default_fields_with(has) {
            head.field(name, value)?;
        }
        if let Some(fields) = fields {
            fields.each(|name, value| head.field(name, value))?;
        }
        Ok(head.park())
    }

    /// Finishes a head. `complete` is the length of the body if it is known.
    fn finish_head(
        &self,
        py: Python<'_>,
        head: ParkedHead,
        complete: Option<u64>,
        service: &Bound<'_, HttpService>,
        buffer: &mut Vec<u8>,
    ) {
        let mut state = self.state.get_mut(py);
        let head = head.resume(&mut state.http, buffer);
        service
            .get()
            .with_lines(py, |lines, unix_s| head.finish(complete, lines, unix_s));
    }

    /// Counts and frames a part of a body, after the head if that has waited for it.
    fn frame_body(
        &self,
        py: Python<'_>,
        head: Option<ParkedHead>,
        length: usize,
        last: bool,
        service: &Bound<'_, HttpService>,
        buffer: &mut Vec<u8>,
    ) -> Result<Framed, ResponseError> {
        if let Some(head) = head {
            let complete = last.then_some(length as u64);
            self.finish_head(py, head, complete, service, buffer);
        }
        self.state.get_mut(py).http.send(length, last)
    }

    /// How many bytes of a file of this size the response takes: a file that has grown is sent as far as the head says.
    fn file_length(&self, py: Python<'_>, size: usize) -> usize {
        let announced = self.state.get(py).http.announced();
        announced.map_or(size, |left| {
            usize::try_from(left).map_or(size, |left| left.min(size))
        })
    }

    /// The head that waits for a body, if it was not sent, and the buffer that it is in.
    fn take_head(
        &self,
        py: Python<'_>,
        has_head: bool,
        service: &HttpService,
    ) -> (Vec<u8>, Option<ParkedHead>) {
        let parked = if has_head {
            self.state.get_mut(py).parked.take()
        } else {
            None
        };
        match parked {
            Some((head, buffer)) => (buffer, Some(head)),
            None => (service.take_buffer(py), None),
        }
    }
}
