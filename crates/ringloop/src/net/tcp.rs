//! TCP.

use std::io::{self, IoSliceMut};
use std::net::{Shutdown, SocketAddr};

use bytes::{Buf, Bytes};
use socket2::{Domain, Protocol, Socket, Type};

use super::accept::Acceptor;
use super::address::{ToAddresses, ip, use_first};
use super::connect::{TcpConnectOptions, connect_to_first};
use super::family::{socket_traits, stream};
use super::halves::{OwnedReadHalf, OwnedWriteHalf, split};
use super::stream::{Core, HasCore, ShortRead, Stream};
use super::tcp_socket::TcpSocket;
use crate::buffer::ReadBuffer;
use crate::source::{Closed, Direction, End, reclaiming};

/// The options of a [`TcpListener`].
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
    /// The maximum number of connections that wait in the kernel to be accepted, see listen(2).
    pub backlog: u32,
    /// Whether other listeners may bind to the same address and share its connections (`SO_REUSEPORT`).
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

/// A TCP socket that listens for connections.
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
    /// Binds to the first address that can be bound, and listens, with the default [`TcpListenerOptions`].
    ///
    /// # Errors
    /// Returns the errors of the resolver, of bind(2) and of listen(2).
    pub async fn bind(address: impl ToAddresses) -> io::Result<Self> {
        Self::bind_with(address, &TcpListenerOptions::default()).await
    }

    /// Binds and listens with the given options.
    pub async fn bind_with(
        address: impl ToAddresses,
        options: &TcpListenerOptions,
    ) -> io::Result<Self> {
        use_first(address, |address| {
            reclaiming(|| Self::bind_to(address, options))
        })
        .await
    }

    fn bind_to(address: SocketAddr, options: &TcpListenerOptions) -> io::Result<Self> {
        let socket = Self::bound_socket(address, options)?;
        Self::listen(&socket, options)?;
        Ok(Self::from_socket(socket))
    }

    /// A listener for a socket that listens, and is non-blocking.
    pub(super) fn from_socket(socket: Socket) -> Self {
        Self {
            acceptor: Acceptor::new(socket),
        }
    }

    /// Binds several listeners to one address, each for the runtime of another thread.
    pub(crate) fn bind_several(
        address: SocketAddr,
        count: usize,
        options: &TcpListenerOptions,
    ) -> io::Result<Vec<Socket>> {
        let first = Self::bound_socket(address, options)?;
        if count > 1 {
            // Only after the bind, which has failed if another program listens there, even with SO_REUSEPORT.
            first.set_reuse_port(true)?;
        }
        // If the port was 0, the kernel has chosen one, and the others follow.
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
        Ok(sockets)
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

    pub(crate) fn listen(socket: &Socket, options: &TcpListenerOptions) -> io::Result<()> {
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))
    }

    /// The address that the listener is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.acceptor.socket().local_addr()?)
    }

    /// Waits for a connection.
    ///
    /// Dropping the future does not lose a connection. Any number of tasks may wait at once. If the peer has already
    /// reset the connection, it is accepted nevertheless, and reading from it returns the error.
    ///
    /// # Errors
    /// Returns the errors of accept(2). If there are too many open descriptors (`EMFILE`), wait a little and try again.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, peer) = self.acceptor.accept().await?;
        Ok((TcpStream::from_socket(socket)?, ip(&peer)?))
    }
}

socket_traits!(
    TcpListener { acceptor },
    std::net::TcpListener: |socket| Ok(TcpListener::from_socket(socket)),
    [local_addr],
    finish_non_exhaustive
);

/// A TCP connection.
///
/// Buffers may be owned or borrowed. Every [`ReadBuffer`] can be read into (`Vec<u8>`, `BytesMut`, `&mut [u8]`), and
/// every [`Buf`] can be written (`Bytes`, `&[u8]`, a chain of both). Methods return the buffer with the result.
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
    /// Connects to the first address that answers. Addresses are tried in order: the next one as soon as an attempt
    /// fails, or in parallel when there was no answer for a quarter of a second (RFC 8305, "Happy Eyeballs"). An
    /// attempt may take 20 seconds. Use [`connect_with`](Self::connect_with) to change these times.
    ///
    /// # Errors
    /// Returns the errors of the resolver and of connect(2), the latter for the address that failed last, and
    /// `TimedOut`.
    ///
    /// # Panics
    /// Panics outside of a runtime.
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

    /// Connects as [`connect`](Self::connect) does, with other times, from a given local address, or with options set
    /// before.
    ///
    /// # Errors
    /// See [`connect`](Self::connect). Also returns the errors of bind(2) and setsockopt(2), and `InvalidInput` if no
    /// address of the host is of the family of `local_address`.
    pub async fn connect_with(
        address: impl ToAddresses,
        options: &TcpConnectOptions,
    ) -> io::Result<Self> {
        let addresses = options.reachable(address.to_addresses().await?)?;
        let connect = async |address| {
            let socket = TcpSocket::for_connecting(address, options)?;
            Self::connect_socket(socket, address).await
        };
        connect_to_first(&addresses, options, connect).await
    }

    /// Connects a socket, which must be non-blocking.
    pub(super) async fn connect_socket(socket: Socket, address: SocketAddr) -> io::Result<Self> {
        let core = Core::connect(socket, &address.into(), ShortRead::Drains).await?;
        Ok(Self { core })
    }

    pub(crate) fn from_socket(socket: Socket) -> io::Result<Self> {
        let core = Core::new(socket, ShortRead::Drains)?;
        Ok(Self { core })
    }

    /// Writes all of a buffer like [`write_all`](Self::write_all), but lets the network card fetch the bytes from the
    /// buffer where the kernel supports it. This pays for large bodies that are not in the CPU's caches.
    ///
    /// Less than 32 KB are copied, and so is everything that is sent to the same machine, or with epoll. If the kernel
    /// reports that it has copied, further writes on the connection do not try again. The runtime keeps the bytes until
    /// the peer has acknowledged them, which may be long after this future completes; meanwhile, clones of `bytes` can
    /// be sent to others. [`Metrics`](crate::Metrics) counts these sends and the copies
    /// (`reactor.driver.zero_copy_sends` and `zero_copy_copies`).
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
    /// Returns the errors of send(2). The buffer that comes back holds what was not written.
    pub async fn write_all_zero_copy(&mut self, bytes: Bytes) -> (io::Result<()>, Bytes) {
        self.core.write_all_zero_copy(bytes).await
    }

    /// Whether small writes are sent at once (`TCP_NODELAY`).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.core.socket().tcp_nodelay()
    }

    /// Sets whether small writes are sent at once.
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
}

stream! {
    TcpStream, std::net::TcpStream, SocketAddr: ip;
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
    read;
    read_vectored;
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
    read_with;
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
    write;
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
    write_all;
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
    try_write;
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// near.write_all(&b"hello"[..]).await.0?;
    /// let mut buffer = Vec::new();
    /// while buffer.len() < 5 {
    ///     far.readable().await?;
    ///     buffer.reserve(16); // only now
    ///     match far.try_read(&mut buffer) {
    ///         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
    ///         result => assert!(result? > 0),
    ///     }
    /// }
    /// assert_eq!(buffer, b"hello");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    readable;
    ///
    /// ```
    /// use ringloop::net::{TcpListener, TcpStream};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// # let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?;
    /// # let mut near = TcpStream::connect(address).await?;
    /// # let (mut far, _) = listener.accept().await?;
    /// near.write_all(&b"GET / HTTP/1.1"[..]).await.0?;
    /// let (count, first) = far.peek(Vec::with_capacity(1)).await;
    /// assert_eq!((count?, &first[..]), (1, &b"G"[..]));
    /// assert_eq!(far.read(Vec::with_capacity(64)).await.1, b"GET / HTTP/1.1");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    peek;
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
    shutdown;
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
    into_split;
}
