//! Where a server is, and sockets that lead there.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use socket2::{SockAddr, Socket, Type};

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    /// A stream socket with a path.
    Unix(PathBuf),
}

impl Endpoint {
    /// A new socket for it, and its address.
    pub(crate) fn socket(&self) -> io::Result<(Socket, SockAddr)> {
        let (kind, address) = match self {
            Self::Tcp(address) => (Type::STREAM, (*address).into()),
            Self::Udp(address) => (Type::DGRAM, (*address).into()),
            Self::Unix(path) => (Type::STREAM, SockAddr::unix(path)?),
        };
        let socket = Socket::new(address.domain(), kind, None)?;
        if matches!(self, Self::Tcp(_)) {
            socket.set_tcp_nodelay(true)?;
        }
        Ok((socket, address))
    }

    /// A blocking socket that is connected with it.
    pub(crate) fn connect(&self, timeout: Duration) -> io::Result<Socket> {
        let (socket, address) = self.socket()?;
        socket.connect_timeout(&address, timeout)?;
        Ok(socket)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Udp(address) => write!(formatter, "udp:{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}
