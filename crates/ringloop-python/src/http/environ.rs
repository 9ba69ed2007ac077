//! The environment of a request, as PEP 3333 has it, of its scope.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use ringloop_http::Known;

use super::calls::latin1;
use crate::names::intern;
use crate::objects;

/// The parts of a request's first line.
pub(super) struct Target<'a> {
    pub(super) method: &'a [u8],
    pub(super) path: &'a [u8],
    pub(super) query: &'a [u8],
    /// Whether the path ends at a question mark, which an empty query may follow.
    pub(super) has_query: bool,
}

/// Makes the environment of all requests with the same head: a copy of `base`, which the server's requests have in common.
pub(super) fn make<'py>(
    base: &Bound<'py, PyDict>,
    scope: &Bound<'py, PyDict>,
    headers: &Bound<'py, PyList>,
    target: &Target<'_>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = base.py();
    let environ = base.copy()?;
    let method = scope.get_item(intern!(py, "method"))?;
    environ.set_item(intern!(py, "REQUEST_METHOD"), method)?;
    environ.set_item(intern!(py, "PATH_INFO"), latin1(py, &unquote(target.path))?)?;
    environ.set_item(intern!(py, "QUERY_STRING"), latin1(py, target.query)?)?;
    let raw = if target.has_query {
        latin1(py, &[target.path, b"?", target.query].concat())?
    } else {
        latin1(py, target.path)?
    };
    environ.set_item(intern!(py, "RAW_URI"), &raw)?;
    environ.set_item(intern!(py, "REQUEST_URI"), raw)?;
    let protocol = match scope.get_item(intern!(py, "http_version"))? {
        Some(version) if version.eq(intern!(py, "1.1"))? => intern!(py, "HTTP/1.1"),
        Some(version) if version.eq(intern!(py, "1.0"))? => intern!(py, "HTTP/1.0"),
        _ => intern!(py, "HTTP/2"),
    };
    environ.set_item(intern!(py, "SERVER_PROTOCOL"), protocol)?;
    let scheme = scope.get_item(intern!(py, "scheme"))?;
    let is_secure = match &scheme {
        Some(scheme) => scheme.eq(intern!(py, "https"))? || scheme.eq(intern!(py, "wss"))?,
        None => false,
    };
    let scheme = if is_secure {
        intern!(py, "https")
    } else {
        intern!(py, "http")
    };
    environ.set_item(intern!(py, "wsgi.url_scheme"), scheme)?;
    let mut host = None;
    for pair in headers.iter() {
        let pair = pair.cast::<PyTuple>()?;
        let (name, value) = (pair.get_item(0)?, pair.get_item(1)?);
        let (name, value) = (name.cast::<PyBytes>()?, value.cast::<PyBytes>()?);
        if name.as_bytes() == b"host" && host.is_none() {
            host = Some(value.clone());
        }
        add_field(&environ, name.as_bytes(), value.as_bytes())?;
    }
    let client = scope.get_item(intern!(py, "client"))?;
    match client.as_ref().map(|it| it.cast::<PyTuple>()) {
        Some(Ok(client)) => {
            environ.set_item(intern!(py, "REMOTE_ADDR"), client.get_item(0)?)?;
            environ.set_item(intern!(py, "REMOTE_PORT"), client.get_item(1)?.str()?)?;
        }
        // A Unix socket's peer has no name.
        _ => environ.set_item(intern!(py, "REMOTE_ADDR"), intern!(py, ""))?,
    }
    let server = scope.get_item(intern!(py, "server"))?;
    let (name, port) = match server.as_ref().map(|it| it.cast::<PyTuple>()) {
        Some(Ok(server)) if !server.get_item(1)?.is_none() => {
            (server.get_item(0)?, server.get_item(1)?.str()?)
        }
        _ => {
            let host = host.as_ref().map_or(&b""[..], |host| host.as_bytes());
            let (name, port) = host_and_port(host);
            let name = match name {
                b"" => intern!(py, "localhost").clone(),
                name => latin1(py, name)?,
            };
            let port = match port {
                b"" if is_secure => intern!(py, "443").clone(),
                b"" => intern!(py, "80").clone(),
                port => latin1(py, port)?,
            };
            (name.into_any(), port)
        }
    };
    environ.set_item(intern!(py, "SERVER_NAME"), name)?;
    environ.set_item(intern!(py, "SERVER_PORT"), port)?;
    Ok(environ)
}

/// Adds a field of the request. One whose name has an underscore is left out, because it would look like another field's.
fn add_field(environ: &Bound<'_, PyDict>, name: &[u8], value: &[u8]) -> PyResult<()> {
    let py = environ.py();
    if name.contains(&b'_') {
        return Ok(());
    }
    let key = match Known::find(name) {
        Some(known) => known_key(py, known)?,
        None => objects::string(py, &key(name))?,
    };
    let value = latin1(py, value)?;
    let Some(previous) = environ.get_item(&key)? else {
        return environ.set_item(key, value);
    };
    let separator = if name == b"cookie" { "; " } else { "," };
    let joined = format!(
        "{}{separator}{}",
        previous.cast::<PyString>()?.to_str()?,
        value.to_str()?
    );
    environ.set_item(key, objects::string(py, &joined)?)
}

/// The key of a field, whose name is in lower case.
fn key(name: &[u8]) -> String {
    match name {
        b"content-type" => return "CONTENT_TYPE".to_owned(),
        b"content-length" => return "CONTENT_LENGTH".to_owned(),
        _ => {}
    }
    let upper = |byte: &u8| match byte {
        b'-' => '_',
        byte => char::from(byte.to_ascii_uppercase()),
    };
    "HTTP_".chars().chain(name.iter().map(upper)).collect()
}

/// The key of a known name, made once.
fn known_key(py: Python<'_>, known: Known) -> PyResult<Bound<'_, PyString>> {
    static KEYS: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();
    let keys = KEYS.get_or_try_init(py, || {
        let make = |name: &&str| objects::interned(py, &key(name.as_bytes())).map(Bound::unbind);
        Known::NAMES.iter().map(make).collect::<PyResult<Vec<_>>>()
    })?;
    Ok(keys[known.index()].bind(py).clone())
}

/// The two parts of a Host field; the port may be missing.
fn host_and_port(host: &[u8]) -> (&[u8], &[u8]) {
    let after_address = host
        .iter()
        .rposition(|&byte| byte == b']')
        .map_or(0, |at| at + 1);
    match host[after_address..].iter().position(|&byte| byte == b':') {
        Some(at) => (&host[..after_address + at], &host[after_address + at + 1..]),
        None => (host, b""),
    }
}

/// A path without its percent-encoding.
pub(super) fn unquote(raw: &[u8]) -> Cow<'_, [u8]> {
    if !raw.contains(&b'%') {
        return Cow::Borrowed(raw);
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let [first, after @ ..] = rest {
        let digits = match after {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = digits {
            decoded.push(high << 4 | low);
            rest = &after[2..];
        } else {
            decoded.push(*first);
            rest = after;
        }
    }
    Cow::Owned(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}
