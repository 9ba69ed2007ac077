//! UDP.

mod batch;
mod message;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Buf;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::address::{ToAddresses, ip, use_first};
use super::datagram::{self, Datagrams};
use super::family::datagram_socket;
use crate::buffer::ReadBuffer;
use crate::source::{Direction, reclaiming};
pub use batch::UdpBatch;
use message::ask;
pub use message::{Ecn, UdpDatagram, UdpReceived};

/// The options of a [`UdpSocket`].
///
/// ```
/// use ringloop::net::UdpSocketOptions;
///
/// let mut options = UdpSocketOptions::default();
/// options.reuse_address = true;
/// assert!(!options.reuse_port);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[expect(
    clippy::struct_excessive_bools,
    reason = "options of the kernel, each of which is on or off"
)]
pub struct UdpSocketOptions {
    /// Whether other sockets may bind to the same address, as several receivers of a multicast group do
    /// (`SO_REUSEADDR`).
    pub reuse_address: bool,
    /// Whether other sockets may bind to the same address and share its datagrams, by sender (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// The size of the kernel's receive buffer in bytes (`SO_RCVBUF`). `None` is the system's default.
    pub receive_buffer_bytes: Option<usize>,
    /// Whether datagrams may be joined to one, from the first one on; see [`UdpSocket::set_gro`].
    pub gro: bool,
    /// Whether the congestion bits are known from the first datagram on; see [`UdpSocket::set_receive_ecn`].
    pub receive_ecn: bool,
    /// Whether destination and interface are known from the first datagram on; see
    /// [`UdpSocket::set_receive_packet_info`].
    pub receive_packet_info: bool,
}

/// A UDP socket.
///
/// Buffers may be owned or borrowed, see [`TcpStream`](super::TcpStream). Any number of tasks may send and receive at
/// once. Dropping a future does not lose a datagram: either the caller has it, or it was not received.
///
/// A datagram that is longer than the buffer is cut off. [`recv_message`](Self::recv_message) says so, and everything else
/// that the kernel knows of a datagram; `recv` and `recv_from` do not.
///
/// For bulk, [`UdpDatagram::segments_of`] and [`set_gro`](Self::set_gro) pass many datagrams to and from the kernel as one:
/// over loopback, 40 datagrams of 1200 bytes then cost less than a fifth of the CPU time on both sides. Without them,
/// [`send_batch`](Self::send_batch) and [`recv_batch`](Self::recv_batch) save only the entry into the kernel: recvmmsg(2)
/// costs about as much per datagram as recvfrom(2).
///
/// ```
/// use ringloop::net::UdpSocket;
/// use ringloop::{Runtime, RuntimeConfig};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let near = UdpSocket::bind("127.0.0.1:0").await?;
///     let far = UdpSocket::bind("127.0.0.1:0").await?;
///     near.send_to(&b"hello"[..], far.local_addr()?).await.0?;
///     let (received, bytes) = far.recv_from(Vec::with_capacity(1500)).await;
///     assert_eq!(received?, (5, near.local_addr()?));
///     assert_eq!(bytes, b"hello");
///     Ok(())
/// })
/// # }
/// ```
pub struct UdpSocket {
    datagrams: Datagrams,
}

impl UdpSocket {
    /// Binds to the first address that can be bound.
    ///
    /// # Errors
    /// Returns the errors of the resolver and of bind(2).
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub async fn bind(address: impl ToAddresses) -> io::Result<Self> {
        Self::bind_with(address, &UdpSocketOptions::default()).await
    }

    /// Binds with the given options.
    pub async fn bind_with(
        address: impl ToAddresses,
        options: &UdpSocketOptions,
    ) -> io::Result<Self> {
        use_first(address, |address| {
            reclaiming(|| Self::bind_to(address, options))
        })
        .await
    }

    fn bind_to(address: SocketAddr, options: &UdpSocketOptions) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM.nonblocking(),
            Some(Protocol::UDP),
        )?;
        if options.reuse_address {
            socket.set_reuse_address(true)?;
        }
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        if let Some(bytes) = options.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if options.gro {
            ask::gro(&socket, true)?;
        }
        if options.receive_ecn {
            ask::ecn(&socket, true)?;
        }
        if options.receive_packet_info {
            ask::packet_info(&socket, true)?;
        }
        socket.bind(&address.into())?;
        Self::from_socket(socket)
    }

    /// Connects the socket: [`send`](Self::send) sends to this address, and datagrams are received from this address
    /// only.
    ///
    /// # Errors
    /// Returns the errors of the resolver and of connect(2).
    ///
    /// ```
    /// use ringloop::net::UdpSocket;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let server = UdpSocket::bind("127.0.0.1:0").await?;
    /// let client = UdpSocket::bind("127.0.0.1:0").await?;
    /// client.connect(server.local_addr()?).await?;
    /// client.send(&b"question"[..]).await.0?;
    /// let (received, _) = server.recv_from(Vec::with_capacity(1500)).await;
    /// let (_, peer) = received?;
    /// server.send_to(&b"answer"[..], peer).await.0?;
    /// let (count, bytes) = client.recv(Vec::with_capacity(1500)).await;
    /// assert_eq!((count?, &bytes[..]), (6, &b"answer"[..]));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn connect(&self, address: impl ToAddresses) -> io::Result<()> {
        use_first(address, |address| self.socket().connect(&address.into())).await
    }

    /// Sends all of a buffer as one datagram.
    ///
    /// # Errors
    /// Returns the errors of sendto(2).
    pub async fn send_to<B: Buf>(&self, buffer: B, to: SocketAddr) -> (io::Result<usize>, B) {
        self.datagrams.send(buffer, Some(&SockAddr::from(to))).await
    }

    /// Sends a datagram, without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no room.
    pub fn try_send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.datagrams.try_call(Direction::Write, |socket| {
            datagram::send(socket, bytes, Some(&SockAddr::from(to)))
        })
    }

    /// Takes the error that the kernel has stored for the socket, if any (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    /// Whether the socket may send to broadcast addresses.
    pub fn broadcast(&self) -> io::Result<bool> {
        self.socket().broadcast()
    }

    /// Sets whether the socket may send to broadcast addresses.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.socket().set_broadcast(broadcast)
    }

    /// Joins a multicast group on the interface with the given address. If that is unspecified, the system chooses.
    ///
    /// ```no_run
    /// use ringloop::net::UdpSocket;
    /// use std::net::Ipv4Addr;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let socket = UdpSocket::bind("0.0.0.0:5353").await?;
    /// socket.join_multicast_v4(Ipv4Addr::new(224, 0, 0, 251), Ipv4Addr::UNSPECIFIED)?;
    /// let (received, bytes) = socket.recv_from(Vec::with_capacity(9000)).await;
    /// println!("{} bytes from {}", bytes.len(), received?.1);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().join_multicast_v4(&group, &interface)
    }

    /// Leaves a multicast group.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().leave_multicast_v4(&group, &interface)
    }

    /// Joins a multicast group on the interface with the given index. If that is 0, the system chooses.
    pub fn join_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        self.socket().join_multicast_v6(&group, interface)
    }

    /// Leaves a multicast group.
    pub fn leave_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        self.socket().leave_multicast_v6(&group, interface)
    }

    /// Sets the interface for outgoing multicast datagrams, by its address.
    pub fn set_multicast_if_v4(&self, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().set_multicast_if_v4(&interface)
    }

    /// Sets whether receivers on this host get the datagrams that this socket sends to a group.
    pub fn set_multicast_loop_v4(&self, comes_back: bool) -> io::Result<()> {
        self.socket().set_multicast_loop_v4(comes_back)
    }

    /// Sets whether receivers on this host get the datagrams that this socket sends to an IPv6 group.
    pub fn set_multicast_loop_v6(&self, comes_back: bool) -> io::Result<()> {
        self.socket().set_multicast_loop_v6(comes_back)
    }

    /// Sets the time to live of outgoing multicast datagrams.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.socket().set_multicast_ttl_v4(ttl)
    }

    /// The time to live of outgoing datagrams.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket().ttl_v4()
    }

    /// Sets the time to live of outgoing datagrams.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket().set_ttl_v4(ttl)
    }
}

datagram_socket! {
    UdpSocket, std::net::UdpSocket, SocketAddr: ip;
    /// `ConnectionRefused` means that an earlier datagram found no receiver.
    send;
    /// `ConnectionRefused` means that a datagram that was sent found no receiver.
    recv;
    ///
    /// ```
    /// use ringloop::net::UdpSocket;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let socket = UdpSocket::bind("127.0.0.1:0").await?;
    /// let mut buffer = Vec::with_capacity(1500);
    /// let error = socket.try_recv_from(&mut buffer).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// assert_eq!(socket.try_send_to(b"to myself", socket.local_addr()?)?, 9);
    /// assert_eq!(socket.try_recv_from(&mut buffer)?, (9, socket.local_addr()?));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    try_recv_from;
    ///
    /// ```
    /// use ringloop::net::UdpSocket;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let socket = UdpSocket::bind("127.0.0.1:0").await?;
    /// socket.send_to(&b"to myself"[..], socket.local_addr()?).await.0?;
    /// let mut buffer = Vec::with_capacity(1500);
    /// loop {
    ///     socket.readable().await?;
    ///     match socket.try_recv(&mut buffer) {
    ///         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
    ///         result => break assert_eq!(result?, 9),
    ///     }
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    readable;
    ///
    /// ```
    /// use ringloop::net::UdpSocket;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let socket = UdpSocket::bind("127.0.0.1:0").await?;
    /// socket.send_to(&b"to myself"[..], socket.local_addr()?).await.0?;
    /// let (peeked, _) = socket.peek_from(Vec::with_capacity(1500)).await;
    /// assert_eq!(peeked?, (9, socket.local_addr()?));
    /// assert_eq!(socket.recv(Vec::with_capacity(1500)).await.1, b"to myself");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    peek_from;
}
