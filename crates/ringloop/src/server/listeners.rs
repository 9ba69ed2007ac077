//! The sockets that a server listens on, and how its workers share them.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;

use socket2::SockRef;

use crate::net::{TcpListener, TcpListenerOptions};
use crate::sys;

/// A place to listen on.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// `host:port`.
    Address(String),
    /// A socket that listens already.
    Socket {
        listener: Arc<StdListener>,
        /// Whether somebody else may go on to listen on it when this server has ended.
        is_shared: bool,
    },
}

/// A socket that one worker accepts from.
#[derive(Debug)]
pub(super) struct Listening {
    /// It is non-blocking.
    pub(super) socket: StdListener,
    /// See [`Place::Socket`].
    pub(super) is_shared: bool,
    /// Whether it is a second descriptor of a socket that another worker has, too.
    pub(super) is_copy: bool,
}

/// Binds what has to be bound, and returns the sockets of each worker. `taken` are those of the process that ran before,
/// which are used for the addresses that they are bound to; others are closed.
///
/// Each worker has a socket of its own for each address. Sockets that were passed to the server are divided among the workers;
/// if there are too few of them, workers share them.
pub(super) fn open(
    places: &[Place],
    workers: usize,
    options: &TcpListenerOptions,
    mut taken: Vec<Listening>,
) -> io::Result<Vec<Vec<Listening>>> {
    let mut each: Vec<Vec<Listening>> = (0..workers).map(|_| Vec::new()).collect();
    let mut given: Vec<(SocketAddr, Vec<Listening>)> = Vec::new();
    for place in places {
        match place {
            Place::Address(address) => {
                let found = take_bound(address, &mut taken, options)?;
                if !found.is_empty() {
                    divide(found, &mut each)?;
                    continue;
                }
                for (own, socket) in each.iter_mut().zip(bind_each(address, workers, options)?) {
                    own.push(Listening {
                        socket,
                        is_shared: false,
                        is_copy: false,
                    });
                }
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
    Ok(each)
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
        let bound = listening.socket.local_addr();
        bound.is_ok_and(|bound| addresses.contains(&bound))
    };
    let found: Vec<_> = taken.extract_if(.., is_bound).collect();
    for listening in &found {
        // The length of the queue may be another one now.
        TcpListener::listen(&SockRef::from(&listening.socket), options)?;
    }
    Ok(found)
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
        });
    }
    for (index, socket) in sockets.into_iter().enumerate() {
        each[index % workers].push(socket);
    }
    Ok(())
}

/// Makes a socket non-blocking, and fails if it does not listen. Returns its address.
fn check(listener: &StdListener) -> io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    if !SockRef::from(listener).is_listener()? {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the socket at {address} does not listen; call listen(2) first"),
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
) -> io::Result<Vec<StdListener>> {
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
    let listeners: Vec<_> = sys::inherited_descriptors()?
        .into_iter()
        .map(StdListener::from)
        .collect();
    for (number, listener) in listeners.iter().enumerate() {
        check(listener).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("descriptor {} of LISTEN_FDS: {error}", number + 3),
            )
        })?;
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which sockets each worker has.
    fn divided(sockets: usize, workers: usize) -> Vec<Vec<u16>> {
        let sockets: Vec<_> = (0..sockets)
            .map(|_| StdListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let port = |socket: &StdListener| socket.local_addr().unwrap().port();
        let ports: Vec<_> = sockets.iter().map(port).collect();
        let sockets = sockets
            .into_iter()
            .map(|socket| Listening {
                socket,
                is_shared: false,
                is_copy: false,
            })
            .collect();
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
