//! Reading what an application gives to `start_response`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use ringloop_http::is_field;

use crate::http::message::{self, FieldLines};
use crate::objects;

/// The head of a response.
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) fields: FieldLines,
    /// The Content-Length, if there is one.
    pub(super) length: Option<u64>,
}

/// Fields that belong to the connection, which an application must not give (PEP 3333, "Other HTTP Features").
const HOP_BY_HOP: [&[u8]; 9] = [
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"te",
    b"trailer",
    b"trailers",
    b"transfer-encoding",
    b"upgrade",
];

impl Head {
    pub(super) fn read(status: &Bound<'_, PyAny>, headers: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut head = Self {
            status: read_status(status)?,
            fields: FieldLines::default(),
            length: None,
        };
        if let Ok(list) = headers.cast_exact::<PyList>() {
            for pair in list.iter() {
                head.add(&pair)?;
            }
        } else {
            for pair in headers.try_iter()? {
                head.add(&pair?)?;
            }
        }
        Ok(head)
    }

    fn add(&mut self, pair: &Bound<'_, PyAny>) -> PyResult<()> {
        let (name, value) = match pair.cast_exact::<PyTuple>() {
            Ok(pair) if pair.len() == 2 => (pair.get_item(0)?, pair.get_item(1)?),
            _ => message::name_and_value(pair)?,
        };
        let (name, value) = (
            text(&name, "a header's name")?,
            text(&value, "a header's value")?,
        );
        with_latin1(name, |name| {
            with_latin1(value, |value| self.add_field(pair, name, value))
        })
    }

    fn add_field(&mut self, pair: &Bound<'_, PyAny>, name: &[u8], value: &[u8]) -> PyResult<()> {
        if !is_field(name, value) {
            return Err(invalid(pair, "is not a valid header"));
        }
        // All of these begin with one of few letters.
        if matches!(name[0] | 0x20, b'c' | b'k' | b'p' | b't' | b'u') {
            if HOP_BY_HOP.iter().any(|it| name.eq_ignore_ascii_case(it)) {
                let text = "is a header of the connection, which is the server's";
                return Err(invalid(pair, text));
            }
            if name.eq_ignore_ascii_case(b"content-length") {
                let digits = value.trim_ascii();
                let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
                let length = is_number.then(|| str::from_utf8(digits).ok()?.parse().ok());
                let Some(Some(length)) = length else {
                    return Err(invalid(pair, "is not a valid length"));
                };
                if self.length.is_some_and(|other| other != length) {
                    return Err(invalid(pair, "is not the only length"));
                }
                if self.length.replace(length).is_some() {
                    return Ok(());
                }
            }
        }
        self.fields.push(name, value);
        Ok(())
    }
}

/// The number that a status begins with.
fn read_status(status: &Bound<'_, PyAny>) -> PyResult<u16> {
    let status = text(status, "the status")?;
    let read = with_latin1(status, |status| {
        let digits = status
            .get(..3)
            .filter(|it| it.iter().all(u8::is_ascii_digit));
        let digits = digits.and_then(|it| str::from_utf8(it).ok()?.parse().ok());
        let is_printable = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7F);
        let reason = status.get(3..).unwrap_or_default();
        let is_valid = matches!(reason, [] | [b' ', ..]) && reason.iter().all(is_printable);
        Ok(digits.filter(|number: &u16| is_valid && *number >= 200))
    })?;
    read.ok_or_else(|| {
        let text = "is not a status from 200 on, such as '200 OK'";
        invalid(status.as_any(), text)
    })
}

#[cold]
fn invalid(given: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let shown = given.repr().map(|shown| format!("{shown} {what}"));
    match shown {
        Ok(text) => objects::error::<PyValueError>(given.py(), &text),
        Err(error) => error,
    }
}

fn text<'a, 'py>(given: &'a Bound<'py, PyAny>, what: &str) -> PyResult<&'a Bound<'py, PyString>> {
    given.cast::<PyString>().map_err(|_| {
        let text = format!("{what} must be a str, not {}", name_of_class(given));
        objects::error::<PyTypeError>(given.py(), &text)
    })
}

/// The name of an object's class, for messages.
pub(super) fn name_of_class(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().name();
    name.map_or_else(|_| "another object".to_owned(), |name| name.to_string())
}

/// Runs `body` with the bytes that a string of WSGI stands for.
fn with_latin1<R>(
    text: &Bound<'_, PyString>,
    body: impl FnOnce(&[u8]) -> PyResult<R>,
) -> PyResult<R> {
    let utf8 = text.to_str()?;
    if utf8.is_ascii() {
        return body(utf8.as_bytes());
    }
    let bytes: Option<Vec<u8>> = utf8
        .chars()
        .map(|it| u8::try_from(u32::from(it)).ok())
        .collect();
    match bytes {
        Some(bytes) => body(&bytes),
        None => Err(invalid(text.as_any(), "has characters beyond Latin-1")),
    }
}
