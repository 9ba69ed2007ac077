//! The values that `get_extra_info` returns for a connection. The objects are made when one of them is first asked for.
//! Most connections are never asked, and the objects would take as much memory as the rest of an idle connection.

use pyo3::exceptions::PyOSError;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};
use pyo3::{PyTraverseError, PyVisit};

use super::SocketTransport;
use crate::addresses::{Address, CompactAddress};
use crate::names::intern;
use crate::objects;
use crate::socket_object;
use crate::support;

pub(super) enum ExtraInfo {
    /// The addresses as they were when the connection was set up. They stay known after it is closed.
    Addresses {
        socket_name: Name,
        peer_name: Name,
        /// The socket, once the transport has closed it.
        closed: Option<Py<PyAny>>,
    },
    /// The dictionary that asyncio's transports have from the beginning.
    Made(Py<PyDict>),
}

pub(super) enum Name {
    /// The socket has none.
    Unknown,
    Address(CompactAddress),
    /// An object of the caller's.
    Given(Py<PyAny>),
}

impl ExtraInfo {
    /// Finds out what can be told of a socket. `given` is what the caller knows of the connection, such as "peername".
    ///
    /// Runs code of the user's if the socket is not a usual one.
    pub(super) fn new(
        sock: &Bound<'_, PyAny>,
        given: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let py = sock.py();
        let peer = given.map_or(Ok(None), |it| it.get_item(intern!(py, "peername")))?;
        let is_plain = given.map_or(0, PyDictMethods::len) == usize::from(peer.is_some());
        if is_plain && let Some(fd) = plain_socket(sock)? {
            return Ok(Self::Addresses {
                socket_name: Name::from(CompactAddress::of_socket(fd)),
                peer_name: match peer {
                    None => Name::from(CompactAddress::of_peer(fd)),
                    // Only of IPv4 is there one notation, so that the object made later equals this one.
                    Some(peer) => match Address::from_python(libc::AF_INET, &peer) {
                        Some(address) => Name::Address(CompactAddress::from(&address)),
                        None => Name::Given(peer.unbind()),
                    },
                },
                closed: None,
            });
        }
        let extra = given.map_or_else(|| objects::dict(py), PyDictMethods::copy)?;
        extra.set_item(intern!(py, "socket"), wrapper(sock)?)?;
        extra.set_item(
            intern!(py, "sockname"),
            call_or_none(sock, intern!(py, "getsockname"))?,
        )?;
        if peer.is_none() {
            extra.set_item(
                intern!(py, "peername"),
                call_or_none(sock, intern!(py, "getpeername"))?,
            )?;
        }
        Ok(Self::Made(extra.unbind()))
    }

    /// The same of a connection that was just accepted, from the address that the kernel gave with it.
    pub(super) fn of_accepted(sock: &Bound<'_, PyAny>, peer: &CompactAddress) -> PyResult<Self> {
        Ok(Self::Addresses {
            socket_name: Name::from(CompactAddress::of_socket(socket_object::number(sock)?)),
            peer_name: Name::Address(peer.clone()),
            closed: None,
        })
    }

    /// The same of a socket that was connected to an address.
    pub(super) fn of_connected(sock: &Bound<'_, PyAny>, address: &Address) -> PyResult<Self> {
        let fd = socket_object::number(sock)?;
        // No address stands for this machine, which the kernel gives another.
        let peer = (!address.is_unspecified()).then(|| CompactAddress::from(address));
        Ok(Self::Addresses {
            socket_name: Name::from(CompactAddress::of_socket(fd)),
            peer_name: Name::from(peer.or_else(|| CompactAddress::of_peer(fd))),
            closed: None,
        })
    }

    /// Remembers the socket, which the transport is about to close.
    pub(super) fn keep_closed(&mut self, sock: Py<PyAny>) {
        if let Self::Addresses { closed, .. } = self {
            *closed = Some(sock);
        }
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Made(extra) => visit.call(extra),
            Self::Addresses {
                peer_name, closed, ..
            } => {
                if let Name::Given(name) = peer_name {
                    visit.call(name)?;
                }
                visit.call(closed)
            }
        }
    }
}

impl From<Option<CompactAddress>> for Name {
    fn from(address: Option<CompactAddress>) -> Self {
        address.map_or(Self::Unknown, Self::Address)
    }
}

/// A name, out of the state.
enum Taken {
    Address(Address),
    Object(Py<PyAny>),
}

impl Name {
    fn take(&self, py: Python<'_>) -> Taken {
        match self {
            Self::Unknown => Taken::Object(py.None()),
            Self::Address(address) => Taken::Address(address.expand()),
            Self::Given(name) => Taken::Object(name.clone_ref(py)),
        }
    }
}

impl Taken {
    fn object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Address(address) => address.object(py),
            Self::Object(object) => Ok(object.into_bound(py)),
        }
    }
}

/// One item of a transport's dictionary.
pub(super) fn item<'py>(
    transport: &SocketTransport,
    name: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = name.py();
    if matches!(transport.state.get(py).extra, ExtraInfo::Addresses { .. })
        && let Ok(name) = name.cast_exact::<PyString>()
        && let Ok(name) = name.to_str()
        && !matches!(name, "socket" | "sockname" | "peername")
    {
        // asyncio's streams ask for "sslcontext" at once.
        return Ok(None);
    }
    dictionary(transport, py)?.bind(py).get_item(name)
}

impl SocketTransport {
    /// The names of the socket and of its peer, without making the dictionary. None if that is there already.
    pub(crate) fn names<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let (socket_name, peer_name) = match &self.state.get(py).extra {
            ExtraInfo::Made(_) => return Ok(None),
            ExtraInfo::Addresses {
                socket_name,
                peer_name,
                ..
            } => (socket_name.take(py), peer_name.take(py)),
        };
        Ok(Some((socket_name.object(py)?, peer_name.object(py)?)))
    }
}

/// The dictionary of a transport, which is made now if it isn't there.
pub(super) fn dictionary(transport: &SocketTransport, py: Python<'_>) -> PyResult<Py<PyDict>> {
    let (socket_name, peer_name, sock) = {
        let state = transport.state.get(py);
        match &state.extra {
            ExtraInfo::Made(extra) => return Ok(extra.clone_ref(py)),
            ExtraInfo::Addresses {
                socket_name,
                peer_name,
                closed,
            } => (
                socket_name.take(py),
                peer_name.take(py),
                state
                    .attachment
                    .sock
                    .as_ref()
                    .or(closed.as_ref())
                    .map(|it| it.clone_ref(py)),
            ),
        }
    };
    let extra = objects::dict(py)?;
    extra.set_item(intern!(py, "peername"), peer_name.object(py)?)?;
    if let Some(sock) = sock {
        extra.set_item(intern!(py, "socket"), wrapper(sock.bind(py))?)?;
    }
    extra.set_item(intern!(py, "sockname"), socket_name.object(py)?)?;
    let extra = extra.unbind();
    let replaced = {
        let mut state = transport.state.get_mut(py);
        if let ExtraInfo::Made(earlier) = &state.extra {
            // By what the collector ran meanwhile, or by another thread.
            return Ok(earlier.clone_ref(py));
        }
        std::mem::replace(&mut state.extra, ExtraInfo::Made(extra.clone_ref(py)))
    };
    drop(replaced);
    Ok(extra)
}

/// The descriptor of a socket whose addresses are exactly those of the kernel; None if its methods have to be called.
fn plain_socket(sock: &Bound<'_, PyAny>) -> PyResult<Option<std::os::fd::RawFd>> {
    if !socket_object::is_usual(sock)? {
        return Ok(None);
    }
    match socket_object::family(sock)? {
        libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX => socket_object::number(sock).map(Some),
        _ => Ok(None),
    }
}

fn wrapper<'py>(sock: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static TRANSPORT_SOCKET: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    support::class(
        sock.py(),
        &TRANSPORT_SOCKET,
        "asyncio.trsock",
        "TransportSocket",
    )?
    .call1((sock,))
}

/// The result of a method that gives an address; None if it raises `OSError`, as in asyncio.
fn call_or_none<'py>(
    sock: &Bound<'py, PyAny>,
    method: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = sock.py();
    match sock.call_method0(method) {
        Err(error) if error.is_instance_of::<PyOSError>(py) => Ok(py.None().into_bound(py)),
        result => result,
    }
}
