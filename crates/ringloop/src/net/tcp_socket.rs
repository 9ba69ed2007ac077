//! TCP sockets before they connect or listen.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::address::ip;
use super::connect::TcpConnectOptions;
use super::tcp::{TcpListener, TcpStream};
use crate::source::reclaiming;
use crate::sys;

/// How TCP asks a silent peer whether it is still there (tcp(7), `SO_KEEPALIVE`). Times are rounded down to seconds, and
/// must be at least one. The defaults are the kernel's.
///
/// ```
/// use ringloop::net::TcpKeepalive;
/// use std::time::Duration;
///
/// let mut keepalive = TcpKeepalive::default();
/// keepalive.idle = Duration::from_secs(60);
/// // A peer that has vanished is noticed after 60 + 9 * 75 seconds.
/// assert_eq!((keepalive.interval, keepalive.probes), (Duration::from_secs(75), 9));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpKeepalive {
    /// How long the connection is silent before the first probe. The default is two hours.
    pub idle: Duration,
    /// The time between two probes. The default is 75 seconds.
    pub interval: Duration,
    /// How many probes without an answer end the connection. The default is 9.
    pub probes: u32,
}

impl Default for TcpKeepalive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            probes: 9,
        }
    }
}

/// A TCP socket that is not connected yet, for options that must be set before, and for binding to a local address.
///
/// To connect to a name with several addresses, use [`TcpStream::connect_with`], whose
/// [options](TcpConnectOptions) include the common ones. Other options: `socket2::SockRef::from(&socket)`.
///
/// ```
/// use ringloop::net::{TcpListener, TcpSocket};
/// use ringloop::{Runtime, RuntimeConfig};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let socket = TcpSocket::new_v4()?;
///     socket.bind("127.0.0.2:0".parse().unwrap())?;
///     socket.set_nodelay(true)?;
///     let _near = socket.connect(listener.local_addr()?).await?;
///     let (_far, peer) = listener.accept().await?;
///     assert_eq!(peer.ip().to_string(), "127.0.0.2");
///     Ok(())
/// })
/// # }
/// ```
pub struct TcpSocket {
    socket: Socket,
}

impl TcpSocket {
    /// Creates a socket for IPv4.
    ///
    /// # Errors
    /// Returns the errors of socket(2), such as `EMFILE`.
    pub fn new_v4() -> io::Result<Self> {
        Self::of(Domain::IPV4)
    }

    /// Creates a socket for IPv6.
    ///
    /// # Errors
    /// Returns the errors of socket(2), such as `EMFILE`, and `EAFNOSUPPORT` on a system without IPv6.
    pub fn new_v6() -> io::Result<Self> {
        Self::of(Domain::IPV6)
    }

    fn of(domain: Domain) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking();
        let socket = reclaiming(|| Socket::new(domain, kind, Some(Protocol::TCP)))?;
        Ok(Self { socket })
    }

    /// Creates a socket that is going to connect to an address, with the given options.
    pub(super) fn for_connecting(
        address: SocketAddr,
        options: &TcpConnectOptions,
    ) -> io::Result<Socket> {
        let this = Self::of(Domain::for_address(address))?;
        if options.reuse_address {
            this.set_reuse_address(true)?;
        }
        if options.nodelay {
            this.set_nodelay(true)?;
        }
        if let Some(keepalive) = &options.keepalive {
            this.set_keepalive(Some(keepalive))?;
        }
        if let Some(interface) = &options.interface {
            this.set_interface(Some(interface))?;
        }
        if let Some(local) = options.local_address {
            if local.port() == 0 {
                sys::choose_port_late(this.as_fd())?;
            }
            this.bind(local)?;
        }
        Ok(this.socket)
    }

    /// Binds to a local address: the one that the connection comes from, or that a listener listens at.
    ///
    /// # Errors
    /// Returns the errors of bind(2), such as `AddrInUse` and `AddrNotAvailable`.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = address.into();
        reclaiming(|| self.socket.bind(&address))
    }

    /// Sets whether the address may be bound although connections of an earlier socket are still closing
    /// (`SO_REUSEADDR`).
    pub fn set_reuse_address(&self, reuse: bool) -> io::Result<()> {
        self.socket.set_reuse_address(reuse)
    }

    /// Sets whether several sockets may be bound to one address, if all of them set this (`SO_REUSEPORT`).
    pub fn set_reuse_port(&self, reuse: bool) -> io::Result<()> {
        self.socket.set_reuse_port(reuse)
    }

    /// Sets whether small writes are sent at once (`TCP_NODELAY`).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket.set_tcp_nodelay(nodelay)
    }

    /// Sets whether and how a silent peer is asked if it is still there. `None` switches it off.
    ///
    /// # Errors
    /// Returns `InvalidInput` (`EINVAL`) for times or counts that tcp(7) does not allow.
    pub fn set_keepalive(&self, keepalive: Option<&TcpKeepalive>) -> io::Result<()> {
        let Some(keepalive) = keepalive else {
            return self.socket.set_keepalive(false);
        };
        let parameters = socket2::TcpKeepalive::new()
            .with_time(keepalive.idle)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.probes);
        self.socket.set_tcp_keepalive(&parameters)
    }

    /// Binds to a network interface by its name, such as `eth0`: packets leave and arrive only there
    /// (`SO_BINDTODEVICE`). `None` removes the limit.
    ///
    /// # Errors
    /// Returns `ENODEV` if there is no such interface, and `PermissionDenied` where it needs `CAP_NET_RAW` (before Linux
    /// 5.7, and to change an interface that is set).
    pub fn set_interface(&self, name: Option<&str>) -> io::Result<()> {
        self.socket.bind_device(name.map(str::as_bytes))
    }

    /// Sets the size of the kernel's send buffer in bytes (`SO_SNDBUF`). The kernel doubles it, up to a limit.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_send_buffer_size(bytes)
    }

    /// Sets the size of the kernel's receive buffer in bytes (`SO_RCVBUF`). The kernel doubles it, up to a limit. Set it
    /// before connecting: it decides the scale of the receive window.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_recv_buffer_size(bytes)
    }

    /// The address that the socket is bound to. The port is 0 if it is not bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.socket.local_addr()?)
    }

    /// Connects. Dropping the future closes the socket. There is no limit of time but the kernel's, about two minutes:
    /// use [`timeout`](crate::time::timeout).
    ///
    /// # Errors
    /// Returns the errors of connect(2).
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect_socket(self.socket, address).await
    }

    /// Listens for connections. `backlog` is the maximum number of those that wait in the kernel to be accepted
    /// (listen(2)).
    ///
    /// # Errors
    /// Returns the errors of listen(2).
    ///
    /// ```
    /// use ringloop::net::{TcpSocket, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let socket = TcpSocket::new_v4()?;
    /// socket.set_reuse_address(true)?;
    /// socket.bind("127.0.0.1:0".parse().unwrap())?;
    /// let listener = socket.listen(128)?;
    /// TcpStream::connect(listener.local_addr()?).await?;
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        reclaiming(|| self.socket.listen(backlog))?;
        Ok(TcpListener::from_socket(self.socket))
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for TcpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl From<TcpSocket> for OwnedFd {
    fn from(socket: TcpSocket) -> Self {
        socket.socket.into()
    }
}

impl fmt::Debug for TcpSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TcpSocket")
            .field("local_addr", &self.local_addr())
            .finish()
    }
}
