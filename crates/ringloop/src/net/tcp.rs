//! TCP.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::accept::Acceptor;
use super::address::ToAddresses;
use super::buffer::ReadBuffer;
use super::connect::{TcpConnectOptions, connect_to_first};
use super::stream::{Core, HasCore, OwnedReadHalf, OwnedWriteHalf, ShortRead, Stream, split};

/// How a [`TcpListener`] is set up.
///
/// ```
/// use ringloop::net::{TcpListener, TcpListenerOptions};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut options = TcpListenerOptions::default();
/// options.reuse_port = true;
/// let one = TcpListener::bind_with("127.0.0.1:0", &options).await?;
/// let two = TcpListener::bind_with(one.local_addr()?, &options).await?;
/// assert_eq!(one.local_addr()?, two.local_addr()?);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TcpListenerOptions {
    /// How many connections wait in the kernel until they are accepted, as for listen(2).
    pub backlog: u32,
    /// Whether further listeners may be bound to the same address, and share its connections (`SO_REUSEPORT`).
    pub reuse_port: bool,
}

impl Default for TcpListenerOptions {
    fn default() -> Self {
        Self {
            backlog: 1024,
            reuse_port: false,
        }
    }
}

/// Accepts TCP connections.
///
/// ```
/// use ringloop::net::{TcpListener, TcpStream};
/// use ringloop::{Runtime, RuntimeConfig};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let mut near = TcpStream::connect(listener.local_addr()?).await?;
///     let (mut far, _address) = listener.accept().await?;
///     near.write_all(&b"hello"[..]).await.0?;
///     let mut buffer = [0; 16];
///     let (count, _) = far.read(&mut buffer[..]).await;
///     assert_eq!(&buffer[..count?], b"hello");
///     Ok(())
/// })
/// # }
/// ```
pub struct TcpListener {
    acceptor: Acceptor,
}

impl TcpListener {
    /// Binds and listens, with the default [`TcpListenerOptions`], on the first address that can be bound.
    ///
    /// # Errors
    /// Those of the resolver, of bind(2) and of listen(2).
    pub async fn bind(address: impl ToAddresses) -> io::Result<Self> {
        Self::bind_with(address, &TcpListenerOptions::default()).await
    }

    /// Binds and listens.
    pub async fn bind_with(
        address: impl ToAddresses,
        options: &TcpListenerOptions,
    ) -> io::Result<Self> {
        let mut last_error = None;
        for address in address.to_addresses().await? {
            match Self::bind_to(address, options) {
                Ok(listener) => return Ok(listener),
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.unwrap_or_else(no_address))
    }

    fn bind_to(address: SocketAddr, options: &TcpListenerOptions) -> io::Result<Self> {
        let socket = Self::bound_socket(address, options)?;
        Self::listen(&socket, options)?;
        Ok(Self::from(socket))
    }

    /// Listeners on one address, each for another thread's runtime to take over.
    pub(crate) fn bind_several(
        address: SocketAddr,
        count: usize,
        options: &TcpListenerOptions,
    ) -> io::Result<Vec<std::net::TcpListener>> {
        let first = Self::bound_socket(address, options)?;
        if count > 1 {
            // Only now: so the bind has failed if another program listens there, also if that one shares its address.
            first.set_reuse_port(true)?;
        }
        // Port 0 is the kernel's choice: the others follow the first.
        let address = ip(&first.local_addr()?)?;
        let mut sockets = vec![first];
        let sharing = TcpListenerOptions {
            reuse_port: true,
            ..options.clone()
        };
        while sockets.len() < count {
            sockets.push(Self::bound_socket(address, &sharing)?);
        }
        for socket in &sockets {
            Self::listen(socket, options)?;
        }
        Ok(sockets
            .into_iter()
            .map(std::net::TcpListener::from)
            .collect())
    }

    fn bound_socket(address: SocketAddr, options: &TcpListenerOptions) -> io::Result<Socket> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        Ok(socket)
    }

    fn listen(socket: &Socket, options: &TcpListenerOptions) -> io::Result<()> {
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.acceptor.socket().local_addr()?)
    }

    /// Waits for a connection.
    ///
    /// Dropping the future loses no connection. Any number of tasks may wait. A connection whose peer has reset it since is
    /// accepted like any other: reading from it tells.
    ///
    /// # Errors
    /// Those of accept(2): for want of descriptors (`EMFILE`) wait a little and try again.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, peer) = self.acceptor.accept().await?;
        Ok((TcpStream::from_socket(socket)?, ip(&peer)?))
    }
}

impl From<Socket> for TcpListener {
    fn from(socket: Socket) -> Self {
        Self {
            acceptor: Acceptor::new(socket),
        }
    }
}

impl TryFrom<std::net::TcpListener> for TcpListener {
    type Error = io::Error;

    /// Takes over a listener of the standard library's.
    fn try_from(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::from(Socket::from(listener)))
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.socket().as_fd()
    }
}

impl AsRawFd for TcpListener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TcpListener")
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

/// A TCP connection.
///
/// Buffers may be owned or borrowed: whatever is a [`ReadBuffer`] can be read into (`Vec<u8>`, `BytesMut`, `&mut [u8]`), and
/// whatever is a [`Buf`] can be written (`Bytes`, `&[u8]`, a chain of both). They come back with the result.
///
/// ```
/// use bytes::{Buf, BytesMut};
/// use ringloop::net::{TcpListener, TcpStream};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr()?;
/// # let mut near = TcpStream::connect(address).await?;
/// # let (mut far, _) = listener.accept().await?;
/// // Several pieces go out by one system call.
/// let message = (&b"head "[..]).chain(&b"body"[..]);
/// near.write_all(message).await.0?;
///
/// let (count, mut buffer) = far.read(BytesMut::with_capacity(64)).await;
/// assert_eq!(count?, 9);
/// assert_eq!(buffer.split_to(5), "head ");
/// assert_eq!(buffer, "body");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpStream {
    core: Core,
}

impl TcpStream {
    /// Connects to the first address that answers. They are tried in their order: the next one as soon as one has failed, and
    /// beside one that has not answered for a quarter of a second (RFC 8305, "Happy Eyeballs"). An attempt is given up after
    /// 20 seconds; [`connect_with`](Self::connect_with) takes other times.
    ///
    /// # Errors
    /// Those of the resolver and of connect(2), from the address that failed last; `TimedOut`.
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let listener = TcpListener::bind("localhost:0").await?;
    /// let port = listener.local_addr()?.port();
    /// let stream = TcpStream::connect(("localhost", port)).await?;
    /// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn connect(address: impl ToAddresses) -> io::Result<Self> {
        Self::connect_with(address, &TcpConnectOptions::default()).await
    }

    /// Connects as [`connect`](Self::connect) does, with other times.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_with(
        address: impl ToAddresses,
        options: &TcpConnectOptions,
    ) -> io::Result<Self> {
        let addresses = address.to_addresses().await?;
        connect_to_first(&addresses, options, Self::connect_to).await
    }

    async fn connect_to(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        let core = Core::connect(socket, &address.into(), ShortRead::Drains).await?;
        Ok(Self { core })
    }

    fn from_socket(socket: Socket) -> io::Result<Self> {
        let core = Core::new(socket, ShortRead::Drains)?;
        Ok(Self { core })
    }

    /// Reads what is there, once, into the room that the buffer has, behind what is in it. It never grows. 0 is the end of
    /// the stream, or a buffer without room.
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// near.write_all(&b"one two"[..]).await.0?;
    /// drop(near);
    /// let mut text = Vec::with_capacity(16);
    /// loop {
    ///     let count;
    ///     // The buffer comes back with what it had before and what was read.
    ///     (count, text) = far.read(text).await;
    ///     if count? == 0 {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(text, b"one two");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn read<B: ReadBuffer>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.core.read(buffer).await
    }

    /// Reads what is there, once, into several buffers, one after the other (readv(2)). 0 is the end of the stream, or buffers
    /// without room. The other way needs no method of its own: [`write`](Self::write) takes a chain of buffers.
    pub async fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.core.read_vectored(buffers).await
    }

    /// Reads in place: waits for data, reads it into the buffer that the connections of this thread share, and hands it
    /// to `use_bytes`, without a copy. An empty slice is the end of the stream.
    ///
    /// What `use_bytes` does not use is lost. It cannot wait, but it may answer at once: it is given the stream too, for
    /// [`try_write`](Self::try_write).
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// near.write_all(&b"3\n4\n"[..]).await.0?;
    /// let sum = far
    ///     .read_with(|bytes, stream| {
    ///         let text = String::from_utf8_lossy(bytes);
    ///         let sum: u32 = text.lines().filter_map(|line| line.parse::<u32>().ok()).sum();
    ///         stream.try_write(sum.to_string().as_bytes()).map(|_| sum)
    ///     })
    ///     .await??;
    /// assert_eq!(sum, 7);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn read_with<T>(
        &mut self,
        use_bytes: impl FnOnce(&[u8], &TcpStream) -> T,
    ) -> io::Result<T> {
        let stream = &*self;
        stream
            .core
            .read_with(|bytes| use_bytes(bytes, stream))
            .await
    }

    pub(crate) fn poll_write_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl Buf,
    ) -> Poll<io::Result<usize>> {
        self.core.poll_write_from(context, buffer)
    }

    pub(crate) fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8], &TcpStream) -> T,
    ) -> Poll<io::Result<T>> {
        self.core
            .poll_read_with(context, |bytes| use_bytes(bytes, self))
    }

    /// Writes part of a buffer, as much as there is room for, and advances it by that.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// let (count, rest) = near.write(Bytes::from_static(b"hello")).await;
    /// assert_eq!(count?, 5 - rest.len());
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn write<B: Buf>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.core.write(buffer).await
    }

    /// Writes all of a buffer. After an error the buffer has what was not written.
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// let bytes = vec![7; 10_000];
    /// let (result, rest) = near.write_all(&bytes[..]).await;
    /// result?;
    /// assert!(rest.is_empty());
    /// # drop(far);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        self.core.write_all(buffer).await
    }

    /// Writes all of a buffer as [`write_all`](Self::write_all) does, but lets the network card take the bytes from where they
    /// lie, where the kernel can do that and it pays: for large bodies that are not in the processor's caches.
    ///
    /// Less than 32 KB are copied. So is all that goes to an address of the same machine, and everything under epoll; a
    /// connection that the kernel has told of a copy does without the attempts. The runtime holds on to the bytes until
    /// the peer has acknowledged them, which may be long after this is over; a clone of `bytes` may be sent to others
    /// meanwhile. [`Metrics`](crate::Metrics) counts such sends, and the copies (`reactor.driver.zero_copy_sends` and
    /// `zero_copy_copies`).
    ///
    /// ```
    /// use bytes::Bytes;
    /// use ringloop::net::{TcpListener, TcpStream};
    /// use ringloop::{Runtime, RuntimeConfig};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// Runtime::new(&RuntimeConfig::default())?.block_on(async {
    ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
    ///     let mut near = TcpStream::connect(listener.local_addr()?).await?;
    ///     let (mut far, _address) = listener.accept().await?;
    ///     let body = Bytes::from(vec![7; 100_000]);
    ///     near.write_all_zero_copy(body.clone()).await.0?;
    ///     let (count, bytes) = far.read(Vec::with_capacity(body.len())).await;
    ///     assert_eq!(bytes, body[..count?]);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of send(2). The buffer that comes back has what was not written.
    pub async fn write_all_zero_copy(&mut self, bytes: Bytes) -> (io::Result<()>, Bytes) {
        self.core.write_all_zero_copy(bytes).await
    }

    /// Writes as much as there is room for now, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// let error = loop {
    ///     if let Err(error) = near.try_write(&[0; 4096]) {
    ///         break error;
    ///     }
    /// };
    /// // Nobody reads: the socket is full.
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # drop(far);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.try_write(bytes)
    }

    /// Ends one or both directions. What was written before still arrives.
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    /// use std::net::Shutdown;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// near.shutdown(Shutdown::Write)?;
    /// assert_eq!(far.read(Vec::with_capacity(1)).await.0?, 0);
    /// // The other direction is still open.
    /// far.write_all(&b"answer"[..]).await.0?;
    /// assert_eq!(near.read(Vec::with_capacity(16)).await.0?, 6);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.core.shutdown(how)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.core.socket().local_addr()?)
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.core.socket().peer_addr()?)
    }

    /// Whether small writes go out at once (`TCP_NODELAY`).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.core.socket().tcp_nodelay()
    }

    /// Sets whether small writes go out at once.
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// near.set_nodelay(true)?;
    /// assert!(near.nodelay()?);
    /// # drop(far);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.core.socket().set_tcp_nodelay(nodelay)
    }

    /// Splits the connection, so that one task may read while another one writes.
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    /// use ringloop::spawn;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// let (mut reader, mut writer) = near.into_split();
    /// let reading = spawn(async move { reader.read(Vec::with_capacity(16)).await.1 });
    /// writer.write_all(&b"question"[..]).await.0?;
    /// far.write_all(&b"answer"[..]).await.0?;
    /// assert_eq!(reading.await.unwrap(), b"answer");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        split(self)
    }
}

impl Stream for TcpStream {}

impl HasCore for TcpStream {
    fn core(&self) -> &Core {
        &self.core
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl TryFrom<std::net::TcpStream> for TcpStream {
    type Error = io::Error;

    /// Takes over a connection of the standard library's.
    fn try_from(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::from_socket(Socket::from(stream))
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TcpStream")
            .field("local_addr", &self.local_addr())
            .field("peer_addr", &self.peer_addr())
            .finish()
    }
}

pub(super) fn ip(address: &SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an IP address"))
}

pub(super) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}
