//! Datagrams with what comes along: ECN, destination, interface, and several in one buffer.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::slice::Chunks;

use socket2::{Domain, Socket};

use super::UdpSocket;
use crate::buffer::ReadBuffer;
use crate::net::datagram;
use crate::sys::messages::{self, Envelope, Outgoing};

/// Explicit congestion notification: the last two bits of the field that IPv4 calls TOS and IPv6 traffic class
/// (RFC 3168).
///
/// ```
/// use ringloop::net::Ecn;
///
/// assert_eq!(Ecn::Ce as u8, 0b11);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The sender does not take part.
    NotEct = 0b00,
    /// The sender takes part, and uses the second code point, as L4S does (RFC 9331).
    Ect1 = 0b01,
    /// The sender takes part.
    Ect0 = 0b10,
    /// A router on the way was congested.
    Ce = 0b11,
}

impl Ecn {
    fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// The properties of a datagram that was received with [`UdpSocket::recv_message`] or [`UdpSocket::recv_batch`].
///
/// ```
/// use ringloop::net::{UdpReceived, UdpSocket};
/// use std::io;
///
/// async fn receive_whole(socket: &UdpSocket) -> io::Result<Vec<u8>> {
///     let (received, bytes) = socket.recv_message(Vec::with_capacity(1500)).await;
///     let received: UdpReceived = received?;
///     if received.is_truncated() {
///         let mistake = format!("{} has sent {} bytes", received.from, received.length);
///         return Err(io::Error::new(io::ErrorKind::InvalidData, mistake));
///     }
///     Ok(bytes)
/// }
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let socket = UdpSocket::bind("127.0.0.1:0").await?;
/// # let address = socket.local_addr()?;
/// # socket.send_to(&[7; 1500][..], address).await.0?;
/// # assert_eq!(receive_whole(&socket).await?, [7; 1500]);
/// # socket.send_to(&[7; 1501][..], address).await.0?;
/// # assert_eq!(receive_whole(&socket).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
/// # Ok::<(), io::Error>(())
/// # })?;
/// # Ok::<(), io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpReceived {
    /// How many bytes were received into the buffer.
    pub count: usize,
    /// How long the datagram is, in bytes. More than `count` if the buffer had no room for all of it; the rest is lost.
    pub length: usize,
    /// The sender.
    pub from: SocketAddr,
    /// With [`set_gro`](UdpSocket::set_gro): the buffer holds several datagrams of this many bytes each; the last one may
    /// be shorter. `None` if it is one datagram.
    pub segment_bytes: Option<usize>,
    /// With [`set_receive_ecn`](UdpSocket::set_receive_ecn): how congested the way was.
    pub ecn: Option<Ecn>,
    /// With [`set_receive_packet_info`](UdpSocket::set_receive_packet_info): where the datagram was sent to, which is one of
    /// this host's addresses, or a broadcast or multicast address. A socket that receives both IPv6 and IPv4 gets
    /// IPv4-mapped addresses, here as in `from`.
    pub to: Option<IpAddr>,
    /// With [`set_receive_packet_info`](UdpSocket::set_receive_packet_info): the index of the interface at which it arrived.
    pub interface: Option<u32>,
}

impl UdpReceived {
    pub(super) fn new(envelope: &Envelope, room: usize) -> io::Result<Self> {
        let details = envelope.details();
        let from = envelope.from().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the sender has no IP address")
        })?;
        Ok(Self {
            count: envelope.length.min(room),
            length: envelope.length,
            from,
            segment_bytes: details.segment_bytes.filter(|bytes| *bytes > 0),
            ecn: details.ecn.map(Ecn::from_bits),
            to: details.to,
            interface: details.interface,
        })
    }

    /// Whether the buffer was too small, so that the end of the datagram is lost.
    pub fn is_truncated(&self) -> bool {
        self.count < self.length
    }

    /// Cuts the bytes that were received into datagrams. There is one, unless [`UdpSocket::set_gro`] is on. An empty
    /// datagram gives none.
    pub fn segments<'b>(&self, bytes: &'b [u8]) -> Chunks<'b, u8> {
        bytes.chunks(self.segment_bytes.unwrap_or(usize::MAX))
    }
}

/// A datagram to be sent with [`UdpSocket::send_message`] or [`UdpSocket::send_batch`], or several in one buffer.
///
/// ```
/// use ringloop::net::{Ecn, UdpDatagram};
///
/// let bytes = [7; 3000];
/// let datagram = UdpDatagram::new(&bytes)
///     .to("127.0.0.1:9000".parse().unwrap())
///     .segments_of(1200) // three datagrams
///     .ecn(Ecn::Ect0);
/// assert_eq!(datagram.bytes().len(), 3000);
/// ```
#[derive(Clone, Copy)]
#[must_use = "a datagram does nothing unless it is sent"]
pub struct UdpDatagram<'b>(pub(super) Outgoing<'b>);

impl<'b> UdpDatagram<'b> {
    /// A datagram with these bytes, to the address that the socket is connected to.
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self(Outgoing {
            bytes,
            to: None,
            segment_bytes: None,
            ecn: None,
            from: None,
            interface: None,
        })
    }

    /// Sends it to this address.
    pub const fn to(mut self, address: SocketAddr) -> Self {
        self.0.to = Some(address);
        self
    }

    /// Has the kernel, or the network card, cut the bytes into datagrams of this size; the last one may be shorter
    /// (`UDP_SEGMENT`, "GSO"). The kernel takes up to 64 at a time, newer ones 128, and all of them fit into 64 KB
    /// together.
    pub const fn segments_of(mut self, bytes: usize) -> Self {
        self.0.segment_bytes = Some(bytes);
        self
    }

    /// Sets the congestion bits. The rest of that header field, the DSCP, is then 0 for this datagram.
    pub const fn ecn(mut self, ecn: Ecn) -> Self {
        self.0.ecn = Some(ecn as u8);
        self
    }

    /// Sends it from this address of the host, such as the [`to`](UdpReceived::to) of what it answers. Otherwise the kernel
    /// chooses, if the socket is bound to no address.
    pub const fn from(mut self, address: IpAddr) -> Self {
        self.0.from = Some(address);
        self
    }

    /// Sends it through the interface with this index.
    pub const fn interface(mut self, index: u32) -> Self {
        self.0.interface = Some(index);
        self
    }

    /// The bytes.
    pub const fn bytes(&self) -> &'b [u8] {
        self.0.bytes
    }
}

impl fmt::Debug for UdpDatagram<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UdpDatagram")
            .field("length", &self.0.bytes.len())
            .field("to", &self.0.to)
            .field("segment_bytes", &self.0.segment_bytes)
            .field("ecn", &self.0.ecn.map(Ecn::from_bits))
            .field("from", &self.0.from)
            .field("interface", &self.0.interface)
            .finish()
    }
}

/// The options that have a socket tell more about datagrams.
pub(super) mod ask {
    use super::{AsFd, Domain, Socket, io, messages};

    pub(in super::super) fn gro(socket: &Socket, is_on: bool) -> io::Result<()> {
        set(socket, libc::SOL_UDP, libc::UDP_GRO, is_on)
    }

    pub(in super::super) fn ecn(socket: &Socket, is_on: bool) -> io::Result<()> {
        if is_v6(socket)? {
            set(socket, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, is_on)?;
        }
        // Of a socket for both families, this is for IPv4.
        set(socket, libc::SOL_IP, libc::IP_RECVTOS, is_on)
    }

    pub(in super::super) fn packet_info(socket: &Socket, is_on: bool) -> io::Result<()> {
        if is_v6(socket)? {
            set(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, is_on)
        } else {
            set(socket, libc::SOL_IP, libc::IP_PKTINFO, is_on)
        }
    }

    fn is_v6(socket: &Socket) -> io::Result<bool> {
        Ok(socket.domain()? == Domain::IPV6)
    }

    fn set(socket: &Socket, level: i32, option: i32, is_on: bool) -> io::Result<()> {
        messages::set_option(socket.as_fd(), level, option, i32::from(is_on))
    }
}

impl UdpSocket {
    /// Receives a datagram as [`recv`](Self::recv) does, and everything that is known of it: its sender, whether it was cut
    /// off, and what [`set_gro`](Self::set_gro), [`set_receive_ecn`](Self::set_receive_ecn) and
    /// [`set_receive_packet_info`](Self::set_receive_packet_info) ask for. To dropped futures the same applies: no datagram
    /// is lost.
    ///
    /// # Errors
    /// Returns the errors of recvmsg(2).
    ///
    /// ```
    /// use ringloop::net::UdpSocket;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let near = UdpSocket::bind("127.0.0.1:0").await?;
    /// let far = UdpSocket::bind("127.0.0.1:0").await?;
    /// near.send_to(&b"too long"[..], far.local_addr()?).await.0?;
    /// let (received, bytes) = far.recv_message(Vec::with_capacity(3)).await;
    /// let received = received?;
    /// assert_eq!(bytes, b"too");
    /// assert!(received.is_truncated());
    /// assert_eq!((received.length, received.from), (8, near.local_addr()?));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn recv_message<B: ReadBuffer>(&self, mut buffer: B) -> (io::Result<UdpReceived>, B) {
        let result = self
            .datagrams
            .recv_by(|socket| receive(socket, &mut buffer))
            .await;
        (result, buffer)
    }

    /// Receives a datagram that has already arrived, as [`recv_message`](Self::recv_message) does.
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is none.
    pub fn try_recv_message(&self, buffer: &mut impl ReadBuffer) -> io::Result<UdpReceived> {
        self.datagrams.call(|socket| receive(socket, buffer))
    }

    /// Sends a datagram, or several in one buffer, with what is said about them. A dropped future has sent nothing.
    ///
    /// # Errors
    /// Returns the errors of sendmmsg(2), and `InvalidInput` for a segment size of 0. With segments, `EIO` means that the
    /// interface cannot compute checksums: send them one by one instead. `EMSGSIZE` and `EINVAL` mean that there are too
    /// many of them, or that they are longer than the interface takes.
    ///
    /// ```
    /// use ringloop::net::{Ecn, UdpDatagram, UdpSocket};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let near = UdpSocket::bind("127.0.0.1:0").await?;
    /// // Bound to all addresses of the host.
    /// let far = UdpSocket::bind("0.0.0.0:0").await?;
    /// far.set_receive_ecn(true)?;
    /// far.set_receive_packet_info(true)?;
    /// let address = ([127, 0, 0, 1], far.local_addr()?.port()).into();
    /// let datagram = UdpDatagram::new(b"question").to(address).ecn(Ecn::Ect0);
    /// near.send_message(&datagram).await?;
    ///
    /// let (received, _) = far.recv_message(Vec::with_capacity(1500)).await;
    /// let received = received?;
    /// assert_eq!((received.ecn, received.to), (Some(Ecn::Ect0), Some(address.ip())));
    /// // Answered from the address that was asked.
    /// let answer = UdpDatagram::new(b"answer").to(received.from).from(received.to.unwrap());
    /// far.send_message(&answer).await?;
    /// let (received, _) = near.recv_message(Vec::with_capacity(1500)).await;
    /// assert_eq!(received?.from, address);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn send_message(&self, datagram: &UdpDatagram<'_>) -> io::Result<()> {
        self.send_batch(std::slice::from_ref(datagram)).await?;
        Ok(())
    }

    /// Sends a datagram as [`send_message`](Self::send_message) does, without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no room.
    pub fn try_send_message(&self, datagram: &UdpDatagram<'_>) -> io::Result<()> {
        self.try_send_batch(std::slice::from_ref(datagram))?;
        Ok(())
    }

    /// Sets whether the kernel may join datagrams of the same size and sender to one, up to 64 KB (`UDP_GRO`). Receive with
    /// room for that much, and with [`recv_message`](Self::recv_message) or [`recv_batch`](Self::recv_batch), whose
    /// [`UdpReceived::segments`] cuts them apart again: to all other calls they look like one.
    ///
    /// # Errors
    /// Returns `ENOPROTOOPT` before Linux 5.0.
    ///
    /// ```
    /// use ringloop::net::{UdpDatagram, UdpSocket};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let near = UdpSocket::bind("127.0.0.1:0").await?;
    /// let far = UdpSocket::bind("127.0.0.1:0").await?;
    /// far.set_gro(true)?;
    /// let datagrams = UdpDatagram::new(b"one two three").segments_of(4).to(far.local_addr()?);
    /// near.send_message(&datagrams).await?;
    /// let mut all = Vec::new();
    /// while all.len() < 4 {
    ///     // Together, or one by one.
    ///     let (received, bytes) = far.recv_message(Vec::with_capacity(65536)).await;
    ///     all.extend(received?.segments(&bytes).map(<[u8]>::to_vec));
    /// }
    /// assert_eq!(all, [&b"one "[..], b"two ", b"thre", b"e"]);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_gro(&self, is_on: bool) -> io::Result<()> {
        ask::gro(self.socket(), is_on)
    }

    /// Sets whether [`UdpReceived::ecn`] is known of datagrams that arrive from now on.
    pub fn set_receive_ecn(&self, is_on: bool) -> io::Result<()> {
        ask::ecn(self.socket(), is_on)
    }

    /// Sets whether [`UdpReceived::to`] and [`UdpReceived::interface`] are known of datagrams that arrive from now on.
    pub fn set_receive_packet_info(&self, is_on: bool) -> io::Result<()> {
        ask::packet_info(self.socket(), is_on)
    }
}

fn receive(socket: &Socket, buffer: &mut impl ReadBuffer) -> io::Result<UdpReceived> {
    let mut envelope = Envelope::new();
    let count = datagram::receive_message(socket, buffer, &mut envelope)?;
    UdpReceived::new(&envelope, count)
}
