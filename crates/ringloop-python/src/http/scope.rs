//! The scope of a request: what ASGI tells an application about it. For WSGI, its environment.
//!
//! A template is made from a request's head. Each request gets a copy of it, with new objects where ASGI has mutable
//! ones. A connection keeps its last template, because most requests on a connection have equal heads.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use ringloop_http::Known;
use ringloop_http::h1::{Facts, Field, Form, Version};
use ringloop_http::h2;
use ringloop_http::websocket::Handshake;

use super::calls;
use super::environ::{self, Target};
use super::message;
use super::pages::{Dispatch, Route};
use super::service::HttpService;
use crate::names::intern;
use crate::objects;
use crate::support;

/// The ends of a connection, as far as it knows them.
pub(super) struct Peer {
    server: Py<PyAny>,
    client: Py<PyAny>,
    scheme: Py<PyAny>,
}

impl Peer {
    /// Of what any transport says.
    pub(super) fn of_transport(transport: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = transport.py();
        let addresses = support::http(py)?
            .getattr(intern!(py, "addresses"))?
            .call1((transport,))?;
        let addresses = addresses.cast::<PyTuple>()?;
        Ok(Self {
            server: addresses.get_item(0)?.unbind(),
            client: addresses.get_item(1)?.unbind(),
            scheme: addresses.get_item(2)?.unbind(),
        })
    }

    /// Of the names that a plain connection's socket has.
    pub(super) fn of_names(server: &Bound<'_, PyAny>, client: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = server.py();
        // A Unix socket has a path or nothing.
        let server = if server.is_instance_of::<PyString>() {
            let none = py.None().into_bound(py);
            objects::tuple(py, [server.clone(), none])?.into_any()
        } else {
            host_and_port(server)?
        };
        Ok(Self {
            server: server.unbind(),
            client: host_and_port(client)?.unbind(),
            scheme: intern!(py, "http").clone().into_any().unbind(),
        })
    }

    /// The client's host and port, or None.
    pub(super) fn client<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.client.bind(py)
    }

    pub(super) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            server: self.server.clone_ref(py),
            client: self.client.clone_ref(py),
            scheme: self.scheme.clone_ref(py),
        }
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.server)?;
        visit.call(&self.client)?;
        visit.call(&self.scheme)
    }
}

/// The facts about a request.
pub(super) struct Told<'py> {
    /// ASGI: the application's own. WSGI: shared by all requests of its template, and never changed.
    pub(super) scope: Bound<'py, PyDict>,
    /// WSGI: the environment of the template, to be copied.
    pub(super) environ: Option<Bound<'py, PyDict>>,
}

/// The scope of all requests with the same head on a connection.
pub(super) struct Template {
    scope: Py<PyDict>,
    /// WSGI: what applications get in place of the scope.
    environ: Option<Py<PyDict>>,
    headers: Py<PyList>,
    /// The request has passed a proxy that says so.
    is_forwarded: bool,
    dispatch: Dispatch,
    offers: Offers,
}

/// The extensions of ASGI that a request's client can make use of, besides files.
#[derive(Clone, Copy)]
struct Offers {
    hints: bool,
    trailers: bool,
}

/// The header fields of a request, while they are collected.
struct Headers<'py> {
    list: Bound<'py, PyList>,
    is_forwarded: bool,
}

impl<'py> Headers<'py> {
    fn new(py: Python<'py>) -> PyResult<Self> {
        Ok(Self {
            list: objects::list(py, std::iter::empty::<Bound<'_, PyAny>>())?,
            is_forwarded: false,
        })
    }

    fn add(&mut self, known: Option<Known>, name: &[u8], value: &[u8]) -> PyResult<()> {
        let py = self.list.py();
        let name = match known {
            Some(known) => known_name(py, known)?,
            None => lower_case_name(py, name)?,
        };
        self.is_forwarded |= known
            .is_some_and(|known| matches!(known.as_str(), "x-forwarded-for" | "x-forwarded-proto"));
        let value = objects::bytes(py, value)?;
        self.list
            .append(objects::tuple(py, [name.into_any(), value.into_any()])?)
    }
}

impl Template {
    pub(super) fn new(
        py: Python<'_>,
        service: &HttpService,
        peer: Option<&Peer>,
        facts: &Facts,
        head: &[u8],
        fields: &[Field],
    ) -> PyResult<Self> {
        let version = match facts.version {
            Version::Http11 => intern!(py, "1.1"),
            Version::Http10 => intern!(py, "1.0"),
        };
        let mut headers = Headers::new(py)?;
        // In absolute-form the target says which server is asked.
        let is_absolute = facts.form == Form::Absolute;
        if is_absolute && !fields.iter().any(|field| field.known == Some(Known::HOST)) {
            headers.add(Some(Known::HOST), b"", facts.host.of(head))?;
        }
        for field in fields {
            let is_host = is_absolute && field.known == Some(Known::HOST);
            let value = if is_host { facts.host } else { field.value };
            headers.add(field.known, field.name.of(head), value.of(head))?;
        }
        let target = Target {
            method: facts.method_name.of(head),
            path: facts.path(head),
            query: facts.query(head),
            has_query: facts.has_query(),
        };
        let offers = Offers {
            hints: facts.version == Version::Http11,
            trailers: facts.takes_trailers,
        };
        Self::assemble(py, service, peer, version, &target, headers, offers)
    }

    /// Of a request of HTTP/2.
    pub(super) fn of_stream(
        py: Python<'_>,
        service: &HttpService,
        peer: Option<&Peer>,
        request: &h2::Request,
    ) -> PyResult<Self> {
        let mut headers = Headers::new(py)?;
        for (name, value) in request.fields() {
            let name = name.as_bytes();
            headers.add(Known::find(name), name, value)?;
        }
        let target = Target {
            method: request.method().as_bytes(),
            path: request.path().as_bytes(),
            query: request.query().as_bytes(),
            has_query: request.has_query(),
        };
        let version = intern!(py, "2");
        let offers = Offers {
            hints: true,
            trailers: true,
        };
        Self::assemble(py, service, peer, version, &target, headers, offers)
    }

    fn assemble(
        py: Python<'_>,
        service: &HttpService,
        peer: Option<&Peer>,
        version: &Bound<'_, PyString>,
        target: &Target<'_>,
        headers: Headers<'_>,
        offers: Offers,
    ) -> PyResult<Self> {
        let scope = objects::dict(py)?;
        let none = py.None();
        let (server, client, scheme) = match peer {
            Some(peer) => (&peer.server, &peer.client, &peer.scheme),
            None => (&none, &none, &none),
        };
        let raw_path = target.path;
        let root_path = service.root_path(py)?;
        scope.set_item(intern!(py, "type"), intern!(py, "http"))?;
        scope.set_item(intern!(py, "asgi"), &none)?;
        scope.set_item(intern!(py, "http_version"), version)?;
        scope.set_item(intern!(py, "server"), server)?;
        scope.set_item(intern!(py, "client"), client)?;
        scope.set_item(intern!(py, "scheme"), scheme)?;
        scope.set_item(intern!(py, "root_path"), &root_path)?;
        scope.set_item(intern!(py, "headers"), &none)?;
        if service.has_state() {
            scope.set_item(intern!(py, "state"), &none)?;
        }
        let method = ascii(py, target.method)?;
        scope.set_item(intern!(py, "method"), method)?;
        let path = path(py, raw_path)?;
        let dispatch = service.dispatch(path.to_str()?);
        let raw_path = objects::bytes(py, raw_path)?;
        if service.root_path_bytes().is_empty() {
            scope.set_item(intern!(py, "path"), path)?;
            scope.set_item(intern!(py, "raw_path"), raw_path)?;
        } else {
            scope.set_item(intern!(py, "path"), root_path.add(path)?)?;
            let all = [service.root_path_bytes(), raw_path.as_bytes()].concat();
            scope.set_item(intern!(py, "raw_path"), objects::bytes(py, &all)?)?;
        }
        let query = objects::bytes(py, target.query)?;
        scope.set_item(intern!(py, "query_string"), query)?;
        scope.set_item(intern!(py, "extensions"), &none)?;
        let environ = match service.environ(py) {
            // What the server answers itself is one of ASGI.
            Some(base) if dispatch.route == Route::Application => {
                scope.set_item(intern!(py, "headers"), &headers.list)?;
                if headers.is_forwarded {
                    service.forward(py, &scope)?;
                }
                let environ = environ::make(&base, &scope, &headers.list, target)?;
                Some(environ.unbind())
            }
            _ => None,
        };
        Ok(Self {
            scope: scope.unbind(),
            environ,
            headers: headers.list.unbind(),
            is_forwarded: headers.is_forwarded,
            dispatch,
            offers,
        })
    }

    /// Who answers these requests.
    pub(super) fn dispatch(&self) -> Dispatch {
        self.dispatch
    }

    /// The facts about one request. `handshake` is that of a request for a WebSocket.
    pub(super) fn tell<'py>(
        &self,
        py: Python<'py>,
        service: &HttpService,
        handshake: Option<&Handshake>,
    ) -> PyResult<Told<'py>> {
        let environ = self.environ.as_ref().map(|it| it.bind(py).clone());
        let scope = match environ {
            Some(_) => self.scope.bind(py).clone(),
            None => self.scope(py, service, handshake)?,
        };
        Ok(Told { scope, environ })
    }

    /// The scope of one request of ASGI.
    fn scope<'py>(
        &self,
        py: Python<'py>,
        service: &HttpService,
        handshake: Option<&Handshake>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let scope = self.scope.bind(py).copy()?;
        let headers = calls::copy_of_list(self.headers.bind(py))?;
        scope.set_item(intern!(py, "asgi"), service.asgi(py)?)?;
        scope.set_item(intern!(py, "headers"), headers)?;
        if let Some(state) = service.state(py)? {
            scope.set_item(intern!(py, "state"), state)?;
        }
        match handshake {
            Some(handshake) => complete_scope(&scope, handshake)?,
            None => scope.set_item(intern!(py, "extensions"), self.extensions(py)?)?,
        }
        if self.is_forwarded {
            service.forward(py, &scope)?;
        }
        Ok(scope)
    }

    /// A new `scope["extensions"]`. The application may change what is in it, so that it isn't shared with other requests.
    /// None of the extensions has anything to tell, and one empty dict stands for all of them.
    fn extensions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (extensions, nothing) = (objects::dict(py)?, objects::dict(py)?);
        extensions.set_item(intern!(py, "http.response.pathsend"), &nothing)?;
        if self.offers.hints {
            extensions.set_item(intern!(py, "http.response.early_hint"), &nothing)?;
        }
        if self.offers.trailers {
            extensions.set_item(intern!(py, "http.response.trailers"), &nothing)?;
        }
        Ok(extensions)
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.scope)?;
        visit.call(&self.environ)?;
        visit.call(&self.headers)
    }
}

/// Makes a WebSocket's scope of that of a request.
fn complete_scope(scope: &Bound<'_, PyDict>, handshake: &Handshake) -> PyResult<()> {
    let py = scope.py();
    scope.set_item(intern!(py, "type"), intern!(py, "websocket"))?;
    if let Some(asgi) = scope.get_item(intern!(py, "asgi"))? {
        asgi.set_item(intern!(py, "spec_version"), intern!(py, "2.4"))?;
    }
    if let Some(scheme) = scope.get_item(intern!(py, "scheme"))? {
        let is_http = message::is_text(&scheme, intern!(py, "http"))?;
        let scheme = if is_http {
            intern!(py, "ws")
        } else {
            intern!(py, "wss")
        };
        scope.set_item(intern!(py, "scheme"), scheme)?;
    }
    scope.del_item(intern!(py, "method"))?;
    let subprotocols = objects::list(py, std::iter::empty::<Bound<'_, PyAny>>())?;
    for subprotocol in handshake.subprotocols() {
        subprotocols.append(objects::text(py, subprotocol)?)?;
    }
    scope.set_item(intern!(py, "subprotocols"), subprotocols)?;
    let extensions = objects::dict(py)?;
    extensions.set_item(intern!(py, "websocket.http.response"), objects::dict(py)?)?;
    scope.set_item(intern!(py, "extensions"), extensions)
}

/// The first two parts of an internet address; None for any other.
fn host_and_port<'py>(name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match name.cast::<PyTuple>() {
        Ok(name) if name.len() == 2 => Ok(name.clone().into_any()),
        Ok(name) if name.len() > 2 => {
            let parts = [name.get_item(0)?, name.get_item(1)?];
            Ok(objects::tuple(name.py(), parts)?.into_any())
        }
        _ => Ok(name.py().None().into_bound(name.py())),
    }
}

/// The `bytes` of a known name, made once.
fn known_name(py: Python<'_>, known: Known) -> PyResult<Bound<'_, PyBytes>> {
    static NAMES: PyOnceLock<Vec<Py<PyBytes>>> = PyOnceLock::new();
    let names = NAMES.get_or_try_init(py, || {
        let bytes = |name: &&str| objects::bytes(py, name.as_bytes()).map(Bound::unbind);
        Known::NAMES.iter().map(bytes).collect::<PyResult<Vec<_>>>()
    })?;
    Ok(names[known.index()].bind(py).clone())
}

fn lower_case_name<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let mut lower = vec![0; name.len()];
    ringloop_http::lower_case(name, &mut lower);
    objects::bytes(py, &lower)
}

/// A string of a part of a head that is known to be ASCII.
fn ascii<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    objects::string(py, &String::from_utf8_lossy(bytes))
}

/// The path without its percent-encoding, as `urllib.parse.unquote` decodes it.
fn path<'py>(py: Python<'py>, raw: &[u8]) -> PyResult<Bound<'py, PyString>> {
    // Python replaces what is not UTF-8 by the same rule as Rust: one character for each maximal part of one.
    ascii(py, &environ::unquote(raw))
}
