//! Reading what applications send: messages, which are mappings, and the fields of a response.

use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::buffers;
use crate::names::intern;
use crate::objects::{self, New};

/// `message[name]`.
pub(super) fn item<'py>(
    message: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    match message.cast_exact::<PyDict>() {
        Ok(message) => match message.get_item(name)? {
            Some(value) => Ok(value),
            None => Err(objects::error_with::<PyKeyError>(message.py(), name)),
        },
        Err(_) => message.get_item(name),
    }
}

/// `message.get(name)`.
pub(super) fn optional_item<'py>(
    message: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if let Ok(message) = message.cast_exact::<PyDict>() {
        return message.get_item(name);
    }
    let found = message.call_method1(intern!(message.py(), "get"), (name,))?;
    Ok((!found.is_none()).then_some(found))
}

/// Whether a string is the one that is expected.
pub(super) fn is_text(value: &Bound<'_, PyAny>, expected: &Bound<'_, PyString>) -> PyResult<bool> {
    if value.is(expected) {
        return Ok(true);
    }
    value.eq(expected)
}

#[cold]
pub(super) fn unexpected(kind: &Bound<'_, PyAny>, message: impl FnOnce(&str) -> String) -> PyErr {
    let py = kind.py();
    let text = kind.str().and_then(|text| Ok(message(text.to_str()?)));
    match text {
        Ok(text) => objects::error::<PyRuntimeError>(py, &text),
        Err(error) => error,
    }
}

/// A body as `bytes`, copied if it is another object with bytes.
pub(super) fn body_bytes(body: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyBytes>> {
    let body = match body.cast_into_exact::<PyBytes>() {
        Ok(bytes) => return Ok(bytes),
        Err(error) => error.into_inner(),
    };
    let py = body.py();
    if body.is_none() {
        return objects::bytes(py, b"");
    }
    buffers::with_bytes(&body, |content| objects::bytes(py, content))
}

/// The fields of a response.
pub(super) enum Fields<'a> {
    /// A list or a tuple of pairs of `bytes`.
    Python(Bound<'a, PyAny>),
    Native(&'a FieldLines),
}

/// Fields that were read already, in one piece of memory.
#[derive(Default)]
pub(super) struct FieldLines {
    text: Vec<u8>,
    /// Where each name ends, and its value.
    ends: Vec<(u32, u32)>,
}

impl FieldLines {
    pub(super) fn as_fields(&self) -> Fields<'_> {
        Fields::Native(self)
    }

    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.text.extend_from_slice(name);
        let name_end = self.text.len() as u32;
        self.text.extend_from_slice(value);
        self.ends.push((name_end, self.text.len() as u32));
    }

    fn each<E>(&self, mut take: impl FnMut(&[u8], &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut start = 0;
        for &(name_end, value_end) in &self.ends {
            let (name_end, value_end) = (name_end as usize, value_end as usize);
            take(&self.text[start..name_end], &self.text[name_end..value_end])?;
            start = value_end;
        }
        Ok(())
    }
}

/// Makes sure that fields can be read without running Python code.
pub(super) fn plain_fields<'py>(headers: &Bound<'py, PyAny>) -> PyResult<Fields<'py>> {
    let py = headers.py();
    // Without the GIL, other threads may change a list while it is walked.
    let copied = match headers.cast_exact::<PyList>() {
        Ok(list) if cfg!(Py_GIL_DISABLED) => Some(objects::tuple_of_list(list)?.into_any()),
        _ => None,
    };
    let headers = copied.as_ref().unwrap_or(headers);
    if is_plain(headers) {
        return Ok(Fields::Python(headers.clone()));
    }
    let plain = objects::list(py, std::iter::empty::<Bound<'py, PyAny>>())?;
    for pair in headers.try_iter()? {
        let pair = pair?;
        let (name, value) = name_and_value(&pair)?;
        let bytes = |part: Bound<'py, PyAny>| {
            buffers::with_bytes(&part, |content| Ok(objects::bytes(py, content)?.into_any()))
        };
        plain.append(objects::tuple(py, [bytes(name)?, bytes(value)?])?)?;
    }
    Ok(Fields::Python(plain.into_any()))
}

/// The two parts of a field, which may be any sequence of two.
pub(super) fn name_and_value<'py>(
    pair: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    if pair.len()? != 2 {
        let text = "a header must be a pair of a name and a value";
        return Err(objects::error::<PyValueError>(pair.py(), text));
    }
    Ok((pair.get_item(New(0))?, pair.get_item(New(1))?))
}

/// Whether fields consist of exact lists, tuples and `bytes` only; without the GIL, of tuples and `bytes`.
fn is_plain(headers: &Bound<'_, PyAny>) -> bool {
    let is_bytes = |part: &Bound<'_, PyAny>| part.is_exact_instance_of::<PyBytes>();
    let is_pair = |pair: &Bound<'_, PyAny>| {
        if let Ok(pair) = pair.cast_exact::<PyTuple>() {
            pair.len() == 2 && pair.iter_borrowed().all(|part| is_bytes(&part))
        } else if let Ok(pair) = pair.cast_exact::<PyList>()
            && cfg!(not(Py_GIL_DISABLED))
        {
            pair.len() == 2 && pair.iter().all(|part| is_bytes(&part))
        } else {
            false
        }
    };
    if let Ok(list) = headers.cast_exact::<PyList>() {
        list.iter().all(|pair| is_pair(&pair))
    } else if let Ok(tuple) = headers.cast_exact::<PyTuple>() {
        tuple.iter_borrowed().all(|pair| is_pair(&pair))
    } else {
        false
    }
}

impl Fields<'_> {
    /// Whether there is a field of this name.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        let differs = |given: &[u8], _: &[u8]| {
            if given.eq_ignore_ascii_case(name) {
                Err(())
            } else {
                Ok(())
            }
        };
        self.each(differs).is_err()
    }

    /// Passes each field on, until one fails.
    pub(super) fn each<E>(
        &self,
        mut take: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let pairs = match self {
            Self::Native(lines) => return lines.each(take),
            Self::Python(pairs) => pairs,
        };
        let mut pair = |pair: &Bound<'_, PyAny>| {
            let (name, value) = if let Ok(pair) = pair.cast_exact::<PyTuple>() {
                (pair.get_item(0), pair.get_item(1))
            } else if let Ok(pair) = pair.cast_exact::<PyList>() {
                (pair.get_item(0), pair.get_item(1))
            } else {
                return Ok(());
            };
            let (Ok(name), Ok(value)) = (name, value) else {
                return Ok(());
            };
            match (name.cast_exact::<PyBytes>(), value.cast_exact::<PyBytes>()) {
                (Ok(name), Ok(value)) => take(name.as_bytes(), value.as_bytes()),
                _ => Ok(()),
            }
        };
        if let Ok(list) = pairs.cast_exact::<PyList>() {
            list.iter().try_for_each(|item| pair(&item))
        } else if let Ok(tuple) = pairs.cast_exact::<PyTuple>() {
            tuple.iter_borrowed().try_for_each(|item| pair(&item))
        } else {
            Ok(())
        }
    }
}
