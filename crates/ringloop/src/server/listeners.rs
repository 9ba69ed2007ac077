//! The sockets that a server listens on, and how its workers share them.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener as StdUnixListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use socket2::{SockAddr, Socket};

use super::paths::{Identity, PathGuard};
use crate::net::{TcpListener, TcpListenerOptions, bind_unix_socket, unix_address};
use crate::sys;

/// A place to listen on.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// `host:port`.
    Address(String),
    /// A path or a name of a Unix socket, or why there is none.
    Unix(Result<UnixAddr, String>),
    /// A socket that listens already.
    Socket {
        listener: Arc<Socket>,
        /// Whether somebody else may go on to listen on it when this server has ended.
        is_shared: bool,
    },
}

impl Place {
    /// A socket that somebody else may go on to listen on.
    pub(super) fn listening(socket: Socket) -> Self {
        Self::Socket {
            listener: Arc::new(socket),
            is_shared: true,
        }
    }
}

/// How sockets are bound.
#[derive(Debug, Clone)]
pub(super) struct Binding {
    pub(super) tcp: TcpListenerOptions,
    /// The permissions of the paths of Unix sockets.
    pub(super) unix_mode: Option<u32>,
}

/// A socket that listens already, of either family: for [`Server::from_any_listeners`](super::Server::from_any_listeners).
///
/// ```
/// use ringloop::server::AnyListener;
///
/// let listener = AnyListener::from(std::net::TcpListener::bind("127.0.0.1:0")?);
/// assert!(matches!(listener, AnyListener::Tcp(_)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub enum AnyListener {
    /// A TCP socket.
    Tcp(StdListener),
    /// A Unix socket.
    Unix(StdUnixListener),
}

impl From<StdListener> for AnyListener {
    fn from(listener: StdListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<StdUnixListener> for AnyListener {
    fn from(listener: StdUnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl From<AnyListener> for Socket {
    fn from(listener: AnyListener) -> Self {
        match listener {
            AnyListener::Tcp(listener) => listener.into(),
            AnyListener::Unix(listener) => listener.into(),
        }
    }
}

/// A socket that one worker accepts from.
#[derive(Debug)]
pub(super) struct Listening {
    /// It is non-blocking.
    pub(super) socket: Socket,
    /// See [`Place::Socket`].
    pub(super) is_shared: bool,
    /// Whether it is a second descriptor of a socket that another worker has, too.
    pub(super) is_copy: bool,
    /// The file of a Unix socket whose path is the server's to remove.
    pub(super) file: Option<Identity>,
}

impl Listening {
    fn own(socket: Socket) -> Self {
        Self {
            socket,
            is_shared: false,
            is_copy: false,
            file: None,
        }
    }
}

/// The sockets of each worker, and the paths to remove at the end.
pub(super) struct Opened {
    pub(super) each: Vec<Vec<Listening>>,
    pub(super) paths: Vec<PathGuard>,
    pub(super) left: Vec<Left>,
}

/// A Unix socket of the process that ran before, of which there is no use any more, and its path.
#[derive(Debug)]
pub(super) struct Left {
    socket: Socket,
    #[expect(dead_code, reason = "its drop removes the path")]
    path: Option<PathGuard>,
}

impl Left {
    fn new(left: Listening, has_successor: &Arc<AtomicBool>) -> Option<Self> {
        let address = unix_address(&left.socket.local_addr().ok()?)?;
        if left.is_shared {
            return None;
        }
        let path = match (address.as_pathname(), left.file) {
            (Some(path), Some(file)) => {
                PathGuard::of_bound(path, Some(file), Arc::clone(has_successor)).ok()?
            }
            _ => None,
        };
        Some(Self {
            socket: left.socket,
            path,
        })
    }

    /// Refuses whoever connects from now on, while the process that ran before still has the socket.
    pub(super) fn end(self) {
        let _ = self.socket.shutdown(Shutdown::Read);
    }
}

/// Binds what has to be bound. `taken` are the sockets of the process that ran before, which are used for the addresses that
/// they are bound to; others are closed. Paths stay when `has_successor` is set.
///
/// Each worker has a socket of its own for each address of TCP. Other sockets are divided among the workers; if there are too
/// few of them, workers share them. So they share each Unix socket, of which there can be only one at a path: whoever is free
/// accepts.
///
/// Paths come last, since binding there moves aside a socket that somebody may listen on.
pub(super) fn open(
    places: &[Place],
    workers: usize,
    binding: &Binding,
    mut taken: Vec<Listening>,
    has_successor: &Arc<AtomicBool>,
) -> io::Result<Opened> {
    let mut each: Vec<Vec<Listening>> = (0..workers).map(|_| Vec::new()).collect();
    let mut given: Vec<(SockAddr, Vec<Listening>)> = Vec::new();
    let mut unix = Vec::new();
    for place in places {
        match place {
            Place::Address(address) => {
                let found = take_bound(address, &mut taken, &binding.tcp)?;
                if !found.is_empty() {
                    divide(found, &mut each)?;
                    continue;
                }
                let sockets = bind_each(address, workers, &binding.tcp)?;
                for (own, socket) in each.iter_mut().zip(sockets) {
                    own.push(Listening::own(socket));
                }
            }
            Place::Unix(address) => {
                let invalid =
                    |reason: &String| io::Error::new(io::ErrorKind::InvalidInput, reason.clone());
                unix.push(address.as_ref().map_err(invalid)?);
            }
            Place::Socket {
                listener,
                is_shared,
            } => {
                let address = check(listener)?;
                let socket = Listening {
                    socket: listener.try_clone()?,
                    is_shared: *is_shared,
                    is_copy: false,
                    file: None,
                };
                match given.iter_mut().find(|(other, _)| *other == address) {
                    Some((_, sockets)) => sockets.push(socket),
                    None => given.push((address, vec![socket])),
                }
            }
        }
    }
    for (_, sockets) in given {
        divide(sockets, &mut each)?;
    }
    let mut paths = Vec::new();
    for address in unix {
        let (sockets, path) = open_unix(address, binding, &mut taken, has_successor)
            .map_err(|error| at(address, &error))?;
        paths.extend(path);
        divide(sockets, &mut each)?;
    }
    let left = taken.into_iter();
    let left = left.filter_map(|left| Left::new(left, has_successor));
    Ok(Opened {
        each,
        paths,
        left: left.collect(),
    })
}

/// Takes those that are bound to a path or a name, or binds a new one.
fn open_unix(
    address: &UnixAddr,
    binding: &Binding,
    taken: &mut Vec<Listening>,
    has_successor: &Arc<AtomicBool>,
) -> io::Result<(Vec<Listening>, Option<PathGuard>)> {
    let listen = |socket: &Socket| TcpListener::listen(socket, &binding.tcp);
    let Some(path) = address.as_pathname() else {
        let mut found: Vec<_> = taken
            .extract_if(.., |own| is_bound_to(&own.socket, address))
            .collect();
        if found.is_empty() {
            found.push(Listening::own(bind_unix_socket(address)?));
        }
        for own in &found {
            listen(&own.socket)?;
        }
        return Ok((found, None));
    };
    // Another server may have taken the path meanwhile, or somebody has removed it.
    let is_there = |own: &Listening| PathGuard::of_bound(path, own.file, Arc::clone(has_successor));
    for index in 0..taken.len() {
        if !is_bound_to(&taken[index].socket, address) {
            continue;
        }
        if let Some(guard) = is_there(&taken[index])? {
            if let Some(mode) = binding.unix_mode {
                guard.set_mode(mode)?;
            }
            let own = Listening {
                file: guard.identity(),
                ..taken.swap_remove(index)
            };
            listen(&own.socket)?;
            return Ok((vec![own], Some(guard)));
        }
    }
    let (guard, socket) =
        PathGuard::bind(path, binding.unix_mode, Arc::clone(has_successor), || {
            bind_unix_socket(address)
        })?;
    // Nobody can connect before that.
    listen(&socket)?;
    let own = Listening {
        file: guard.identity(),
        ..Listening::own(socket)
    };
    Ok((vec![own], Some(guard)))
}

/// Says where an error is.
fn at(address: &UnixAddr, error: &io::Error) -> io::Error {
    let place = match address.as_pathname() {
        Some(path) => path.display().to_string(),
        None => format!("{address:?}"),
    };
    io::Error::new(error.kind(), format!("{place}: {error}"))
}

/// Takes those that are bound to an address.
fn take_bound(
    address: &str,
    taken: &mut Vec<Listening>,
    options: &TcpListenerOptions,
) -> io::Result<Vec<Listening>> {
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let is_bound = |listening: &mut Listening| {
        let bound = listening.socket.local_addr().ok();
        let bound = bound.and_then(|bound| bound.as_socket());
        bound.is_some_and(|bound| addresses.contains(&bound))
    };
    let found: Vec<_> = taken.extract_if(.., is_bound).collect();
    for listening in &found {
        // The length of the queue may be another one now.
        TcpListener::listen(&listening.socket, options)?;
    }
    Ok(found)
}

fn is_bound_to(socket: &Socket, address: &UnixAddr) -> bool {
    let bound = socket.local_addr().ok();
    bound
        .and_then(|bound| unix_address(&bound))
        .is_some_and(|bound| {
            bound.as_pathname() == address.as_pathname()
                && bound.as_abstract_name() == address.as_abstract_name()
        })
}

/// Divides sockets of one address among the workers: each worker has at least one of them, and each socket has a worker.
fn divide(sockets: Vec<Listening>, each: &mut [Vec<Listening>]) -> io::Result<()> {
    let (count, workers) = (sockets.len(), each.len());
    for worker in count..workers {
        let original = &sockets[worker % count];
        each[worker].push(Listening {
            socket: original.socket.try_clone()?,
            is_shared: original.is_shared,
            is_copy: true,
            file: original.file,
        });
    }
    for (index, socket) in sockets.into_iter().enumerate() {
        each[index % workers].push(socket);
    }
    Ok(())
}

/// Makes a socket non-blocking, and fails if it does not listen. Returns its address.
fn check(listener: &Socket) -> io::Result<SockAddr> {
    let address = listener.local_addr()?;
    if !listener.is_listener()? {
        let name = match (address.as_socket(), address.as_pathname()) {
            (Some(address), _) => address.to_string(),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => "no address".to_owned(),
        };
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the socket at {name} does not listen; call listen(2) first"),
        ));
    }
    listener.set_nonblocking(true)?;
    Ok(address)
}

/// Binds a listener for each worker, all to one address.
fn bind_each(
    address: &str,
    workers: usize,
    options: &TcpListenerOptions,
) -> io::Result<Vec<Socket>> {
    let mut last_error = io::Error::new(
        io::ErrorKind::NotFound,
        format!("no address found for {address:?}"),
    );
    for address in address.to_socket_addrs()? {
        match TcpListener::bind_several(address, workers, options) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Returns the TCP sockets that the service manager listens on for this process, in its order: those of systemd's socket
/// units (sd_listen_fds(3): `LISTEN_FDS` and `LISTEN_PID`), or of another program that passes sockets in the same way. Empty
/// if there are none, and from the second call on.
///
/// The sockets are closed on exec(2) from now on, so that child processes do not inherit them. The two variables stay in the
/// environment, but mean nothing to processes with another id.
///
/// # Errors
/// Returns `InvalidInput` if one of the descriptors is not a TCP socket, or does not listen.
///
/// ```no_run
/// use ringloop::server::{Connection, Handler, Server, inherited_listeners};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> std::io::Result<()> {
/// #         connection.write(bytes)
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let inherited = inherited_listeners()?;
/// let server = if inherited.is_empty() {
///     Server::new("127.0.0.1:7000")
/// } else {
///     Server::from_listeners(inherited)
/// };
/// server.serve(|| Echo)
/// # }
/// ```
pub fn inherited_listeners() -> io::Result<Vec<StdListener>> {
    let only_tcp = |listener| match listener {
        AnyListener::Tcp(listener) => Ok(listener),
        AnyListener::Unix(_) => Err("it is a Unix socket; use inherited_any_listeners"),
    };
    inherited(only_tcp)
}

/// Returns the sockets that the service manager listens on for this process, as [`inherited_listeners`] does, of TCP and
/// Unix sockets.
///
/// # Errors
/// Returns `InvalidInput` if one of the descriptors is not a TCP or a Unix socket, or does not listen.
///
/// ```no_run
/// use ringloop::server::{Server, inherited_any_listeners};
///
/// # fn main() -> std::io::Result<()> {
/// Server::from_any_listeners(inherited_any_listeners()?)
///     .serve_with(|mut stream, _| async move { stream.write_all(&b"hello"[..]).await.0 })
/// # }
/// ```
pub fn inherited_any_listeners() -> io::Result<Vec<AnyListener>> {
    inherited(Ok)
}

/// Takes the descriptors, if all of them are what is wanted.
fn inherited<T>(
    mut convert: impl FnMut(AnyListener) -> Result<T, &'static str>,
) -> io::Result<Vec<T>> {
    let mut listeners = Vec::new();
    for (number, descriptor) in sys::inherited_descriptors()?.into_iter().enumerate() {
        let listener = identify(descriptor)
            .and_then(|listener| {
                convert(listener)
                    .map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))
            })
            .map_err(|error| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("descriptor {} of LISTEN_FDS: {error}", number + 3),
                )
            })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn identify(descriptor: OwnedFd) -> io::Result<AnyListener> {
    let socket = Socket::from(descriptor);
    let address = check(&socket)?;
    if address.as_socket().is_some() {
        Ok(AnyListener::Tcp(socket.into()))
    } else if address.is_unix() {
        Ok(AnyListener::Unix(socket.into()))
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is neither a TCP nor a Unix socket",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which sockets each worker has.
    fn divided(sockets: usize, workers: usize) -> Vec<Vec<u16>> {
        let sockets: Vec<_> = (0..sockets)
            .map(|_| StdListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let port = |socket: &Socket| {
            let address = socket.local_addr().unwrap().as_socket();
            address.unwrap().port()
        };
        let sockets: Vec<_> = sockets.into_iter().map(Socket::from).collect();
        let ports: Vec<_> = sockets.iter().map(port).collect();
        let sockets = sockets.into_iter().map(Listening::own).collect();
        let mut each: Vec<_> = (0..workers).map(|_| Vec::new()).collect();
        divide(sockets, &mut each).unwrap();
        let number = |own: &Listening| {
            let position = ports.iter().position(|port_| *port_ == port(&own.socket));
            position.unwrap() as u16
        };
        each.iter()
            .map(|own| own.iter().map(number).collect())
            .collect()
    }

    #[test]
    fn each_socket_has_a_worker_and_each_worker_a_socket() {
        assert_eq!(divided(1, 3), [[0], [0], [0]]);
        assert_eq!(divided(2, 3), [[0], [1], [0]]);
        assert_eq!(divided(3, 3), [[0], [1], [2]]);
        assert_eq!(divided(5, 2), [vec![0, 2, 4], vec![1, 3]]);
    }
}
