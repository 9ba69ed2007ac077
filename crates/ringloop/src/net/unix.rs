//! Unix sockets.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::task::ready;
use std::time::Duration;

use bytes::Buf;
use ringloop_driver::Interest;
use socket2::{Domain, SockAddr, Socket, Type};

use super::accept::Acceptor;
use super::buffer::ReadBuffer;
use super::datagram::{self, Datagrams};
use super::stream::{Core, HasCore, OwnedReadHalf, OwnedWriteHalf, ShortRead, Stream, split};
use crate::source::Source;
use crate::sys;
use crate::time::sleep;

/// How many connections wait in the kernel until they are accepted.
const BACKLOG: i32 = 1024;

/// For how long the first wait for a full backlog lasts; each further one is twice as long.
const BACKLOG_WAIT: Duration = Duration::from_millis(1);

/// The longest such wait.
const BACKLOG_WAIT_MAX: Duration = Duration::from_millis(32);

/// For how long a datagram waits that may have room, but no event to tell of it.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// What Unix sockets can be bound and connected to: paths, and addresses of the standard library's, which may be names in
/// the abstract namespace. A path that begins with a zero byte is such a name as well.
///
/// ```
/// use ringloop::net::ToUnixAddress;
///
/// let by_path = "/run/service".to_unix_address()?;
/// assert_eq!(by_path.as_pathname().unwrap().to_str(), Some("/run/service"));
/// assert!("\0service".to_unix_address()?.as_pathname().is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait ToUnixAddress {
    /// The address.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is longer than unix(7) allows, or that has a zero byte after its beginning.
    fn to_unix_address(&self) -> io::Result<SocketAddr>;
}

impl ToUnixAddress for SocketAddr {
    fn to_unix_address(&self) -> io::Result<SocketAddr> {
        Ok(self.clone())
    }
}

impl ToUnixAddress for OsStr {
    fn to_unix_address(&self) -> io::Result<SocketAddr> {
        match self.as_bytes() {
            [] => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path of a Unix socket is empty",
            )),
            [0, name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(self),
        }
    }
}

macro_rules! paths {
    ($($path:ty)*) => {$(
        impl ToUnixAddress for $path {
            fn to_unix_address(&self) -> io::Result<SocketAddr> {
                AsRef::<OsStr>::as_ref(self).to_unix_address()
            }
        }
    )*};
}

paths!(str String Path PathBuf OsString);

impl<T: ToUnixAddress + ?Sized> ToUnixAddress for &T {
    fn to_unix_address(&self) -> io::Result<SocketAddr> {
        (**self).to_unix_address()
    }
}

/// The address as the kernel's calls take it.
fn to_kernel(address: &SocketAddr) -> io::Result<SockAddr> {
    if let Some(path) = address.as_pathname() {
        return SockAddr::unix(path);
    }
    let mut name = vec![0];
    name.extend_from_slice(address.as_abstract_name().unwrap_or_default());
    SockAddr::unix(OsStr::from_bytes(&name))
}

/// An address that the kernel gave; without a name if nobody gave the socket one.
fn from_kernel(address: &SockAddr) -> io::Result<SocketAddr> {
    if let Some(name) = address.as_abstract_namespace() {
        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(address.as_pathname().unwrap_or(Path::new("")))
}

fn socket(kind: Type) -> io::Result<Socket> {
    Socket::new(Domain::UNIX, kind.nonblocking(), None)
}

/// Accepts connections at a path or an abstract name.
///
/// The path stays when the listener is gone: to use it again, remove it first.
///
/// ```
/// use ringloop::net::{UnixListener, UnixStream};
/// use ringloop::{Runtime, RuntimeConfig};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let listener = UnixListener::bind(format!("\0example-{}", std::process::id()))?;
///     let mut near = UnixStream::connect(listener.local_addr()?).await?;
///     let (mut far, _address) = listener.accept().await?;
///     near.write_all(&b"hello"[..]).await.0?;
///     let (count, bytes) = far.read(Vec::with_capacity(16)).await;
///     assert_eq!((count?, &bytes[..]), (5, &b"hello"[..]));
///     assert_eq!(far.peer_credentials()?.pid, Some(std::process::id().cast_signed()));
///     Ok(())
/// })
/// # }
/// ```
pub struct UnixListener {
    acceptor: Acceptor,
}

impl UnixListener {
    /// Binds and listens.
    ///
    /// # Errors
    /// Those of bind(2) and of listen(2): `AddrInUse` if the path exists.
    pub fn bind(address: impl ToUnixAddress) -> io::Result<Self> {
        let socket = socket(Type::STREAM)?;
        socket.bind(&to_kernel(&address.to_unix_address()?)?)?;
        socket.listen(BACKLOG)?;
        Ok(Self::from_socket(socket))
    }

    fn from_socket(socket: Socket) -> Self {
        Self {
            acceptor: Acceptor::new(socket),
        }
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        from_kernel(&self.acceptor.socket().local_addr()?)
    }

    /// Waits for a connection.
    ///
    /// Dropping the future loses no connection. Any number of tasks may wait.
    ///
    /// # Errors
    /// Those of accept(2): for want of descriptors (`EMFILE`) wait a little and try again.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (socket, peer) = self.acceptor.accept().await?;
        Ok((UnixStream::from_socket(socket)?, from_kernel(&peer)?))
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.socket().as_fd()
    }
}

impl AsRawFd for UnixListener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl TryFrom<std::os::unix::net::UnixListener> for UnixListener {
    type Error = io::Error;

    /// Takes over a listener of the standard library's.
    fn try_from(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::from_socket(Socket::from(listener)))
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UnixListener")
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

/// Who is at the other end of a [`UnixStream`]: as it was when the connection was made (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process; `None` if it is in a namespace that cannot be seen from here.
    pub pid: Option<i32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// A connection of a Unix socket.
///
/// Buffers may be owned or borrowed, as for [`TcpStream`](super::TcpStream).
///
/// ```
/// use ringloop::net::UnixStream;
/// use ringloop::{Runtime, RuntimeConfig};
/// use std::net::Shutdown;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let (mut near, mut far) = UnixStream::pair()?;
///     near.write_all(&b"all of it"[..]).await.0?;
///     near.shutdown(Shutdown::Write)?;
///     let text = far.read_with(|bytes, _| bytes.to_vec()).await?;
///     assert_eq!(text, b"all of it");
///     assert_eq!(far.read(text).await.0?, 0);
///     Ok(())
/// })
/// # }
/// ```
pub struct UnixStream {
    core: Core,
}

impl UnixStream {
    /// Connects. While the listener's backlog is full this waits, and looks again every few milliseconds.
    ///
    /// # Errors
    /// Those of connect(2).
    pub async fn connect(address: impl ToUnixAddress) -> io::Result<Self> {
        let address = to_kernel(&address.to_unix_address()?)?;
        let socket = socket(Type::STREAM)?;
        let mut wait = BACKLOG_WAIT;
        loop {
            match socket.connect(&address) {
                Ok(()) => return Self::from_socket(socket),
                // A socket without a connection has no event for this.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(wait).await,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            wait = (wait * 2).min(BACKLOG_WAIT_MAX);
        }
    }

    /// Two ends of a connection without an address.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = Socket::pair(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        Ok((Self::from_socket(near)?, Self::from_socket(far)?))
    }

    fn from_socket(socket: Socket) -> io::Result<Self> {
        let core = Core::new(socket, ShortRead::MayLeave)?;
        Ok(Self { core })
    }

    /// Reads what is there, once, into the room that the buffer has, behind what is in it. It never grows. 0 is the end of
    /// the stream, or a buffer without room.
    pub async fn read<B: ReadBuffer>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.core.read(buffer).await
    }

    /// Reads what is there, once, into several buffers, one after the other (readv(2)). 0 is the end of the stream, or buffers
    /// without room. The other way needs no method of its own: [`write`](Self::write) takes a chain of buffers.
    ///
    /// ```
    /// use bytes::Buf;
    /// use ringloop::net::UnixStream;
    /// use ringloop::{Runtime, RuntimeConfig};
    /// use std::io::IoSliceMut;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// Runtime::new(&RuntimeConfig::default())?.block_on(async {
    ///     let (mut near, mut far) = UnixStream::pair()?;
    ///     near.write_all(b"head".chain(&b"body"[..])).await.0?;
    ///     let (mut head, mut body) = ([0; 4], [0; 16]);
    ///     let mut buffers = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body)];
    ///     assert_eq!(far.read_vectored(&mut buffers).await?, 8);
    ///     assert_eq!((&head, &body[..4]), (b"head", &b"body"[..]));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub async fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.core.read_vectored(buffers).await
    }

    /// Reads in place, as [`TcpStream::read_with`](super::TcpStream::read_with).
    pub async fn read_with<T>(
        &mut self,
        use_bytes: impl FnOnce(&[u8], &UnixStream) -> T,
    ) -> io::Result<T> {
        let stream = &*self;
        stream
            .core
            .read_with(|bytes| use_bytes(bytes, stream))
            .await
    }

    /// Writes part of a buffer, as much as there is room for, and advances it by that.
    pub async fn write<B: Buf>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.core.write(buffer).await
    }

    /// Writes all of a buffer. After an error the buffer has what was not written.
    pub async fn write_all<B: Buf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        self.core.write_all(buffer).await
    }

    /// Writes as much as there is room for now, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.try_write(bytes)
    }

    /// Ends one or both directions. What was written before still arrives.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.core.shutdown(how)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        from_kernel(&self.core.socket().local_addr()?)
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        from_kernel(&self.core.socket().peer_addr()?)
    }

    /// The process at the other end.
    ///
    /// ```
    /// use ringloop::net::UnixStream;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, _far) = UnixStream::pair()?;
    /// assert_eq!(near.peer_credentials()?.pid, Some(std::process::id().cast_signed()));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        let (pid, uid, gid) = sys::peer_credentials(self.as_fd())?;
        Ok(PeerCredentials {
            pid: (pid > 0).then_some(pid),
            uid,
            gid,
        })
    }

    /// Splits the connection, so that one task may read while another one writes.
    pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        split(self)
    }
}

impl Stream for UnixStream {}

impl HasCore for UnixStream {
    fn core(&self) -> &Core {
        &self.core
    }
}

impl AsFd for UnixStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.as_fd()
    }
}

impl AsRawFd for UnixStream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl TryFrom<std::os::unix::net::UnixStream> for UnixStream {
    type Error = io::Error;

    /// Takes over a connection of the standard library's.
    fn try_from(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::from_socket(Socket::from(stream))
    }
}

impl fmt::Debug for UnixStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UnixStream")
            .field("local_addr", &self.local_addr())
            .field("peer_addr", &self.peer_addr())
            .finish()
    }
}

/// A Unix socket for datagrams: none is lost or overtaken, and who sends too much waits.
///
/// Any number of tasks may send and receive at once.
///
/// ```
/// use ringloop::net::UnixDatagram;
/// use ringloop::{Runtime, RuntimeConfig};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let (near, far) = UnixDatagram::pair()?;
///     near.send(&b"one"[..]).await.0?;
///     near.send(&b"two"[..]).await.0?;
///     let (count, bytes) = far.recv(Vec::with_capacity(16)).await;
///     assert_eq!((count?, &bytes[..]), (3, &b"one"[..]));
///     Ok(())
/// })
/// # }
/// ```
pub struct UnixDatagram {
    datagrams: Datagrams,
}

impl UnixDatagram {
    /// A socket at a path or an abstract name.
    ///
    /// # Errors
    /// Those of bind(2): `AddrInUse` if the path exists.
    pub fn bind(address: impl ToUnixAddress) -> io::Result<Self> {
        let socket = socket(Type::DGRAM)?;
        socket.bind(&to_kernel(&address.to_unix_address()?)?)?;
        Self::from_socket(socket)
    }

    /// A socket without an address: it can send, but nobody can answer.
    pub fn unbound() -> io::Result<Self> {
        Self::from_socket(socket(Type::DGRAM)?)
    }

    /// Two sockets that are connected to one another.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = Socket::pair(Domain::UNIX, Type::DGRAM.nonblocking(), None)?;
        Ok((Self::from_socket(near)?, Self::from_socket(far)?))
    }

    fn from_socket(socket: Socket) -> io::Result<Self> {
        Ok(Self {
            datagrams: Datagrams::new(socket)?,
        })
    }

    fn socket(&self) -> &Socket {
        self.datagrams.socket()
    }

    /// Sets the address that [`send`](Self::send) sends to, and the only one that is received from.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(&self, address: impl ToUnixAddress) -> io::Result<()> {
        self.socket()
            .connect(&to_kernel(&address.to_unix_address()?)?)
    }

    /// Sends all of a buffer as one datagram to the address that the socket is connected to.
    ///
    /// # Errors
    /// Those of send(2).
    pub async fn send<B: Buf>(&self, buffer: B) -> (io::Result<usize>, B) {
        self.datagrams.send(buffer, None).await
    }

    /// Sends all of a buffer as one datagram, and waits while the receiver has as many as it may.
    ///
    /// # Errors
    /// Those of sendto(2).
    ///
    /// ```
    /// use ringloop::net::UnixDatagram;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let name = format!("\0doc-{}", std::process::id());
    /// let receiver = UnixDatagram::bind(&name)?;
    /// let sender = UnixDatagram::unbound()?;
    /// sender.send_to(&b"hello"[..], &name).await.0?;
    /// let (count, bytes) = receiver.recv(Vec::with_capacity(16)).await;
    /// assert_eq!((count?, &bytes[..]), (5, &b"hello"[..]));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn send_to<B: Buf>(
        &self,
        mut buffer: B,
        to: impl ToUnixAddress,
    ) -> (io::Result<usize>, B) {
        let address = match to.to_unix_address().and_then(|to| to_kernel(&to)) {
            Ok(address) => address,
            Err(error) => return (Err(error), buffer),
        };
        let mut room = None;
        let waiting = self.datagrams.sending();
        let result = poll_fn(|context| {
            loop {
                let sent =
                    self.datagrams
                        .poll_send(context, waiting.seat(), &mut buffer, Some(&address));
                // While it counts as writable, the task has only had its share and will be back.
                if sent.is_ready() || self.datagrams.is_writable() {
                    return sent;
                }
                let waiting = room.get_or_insert_with(|| Box::pin(self.room_at(&address)));
                ready!(waiting.as_mut().poll(context))?;
                room = None;
                self.datagrams.assume_writable();
            }
        })
        .await;
        drop(room);
        (result, buffer)
    }

    /// Waits until a receiver has room, of which the kernel tells only sockets that are connected to it: this uses one of
    /// its own. If the receiver has room, it was our own buffer that is full, whose event the caller waits for as well; or
    /// the room has come just now, and there is no event.
    async fn room_at(&self, address: &SockAddr) -> io::Result<()> {
        let probe = socket(Type::DGRAM)?;
        probe.connect(address)?;
        if sys::is_writable_now(probe.as_fd())? {
            sleep(ROOM_WAIT).await;
        } else {
            Source::new(probe, Interest::WRITE)?.writable().await?;
        }
        Ok(())
    }

    /// Receives a datagram into the room that the buffer has, behind what is in it; of a buffer in pieces into the next one.
    /// What does not fit is lost: all of it, if there is no room.
    ///
    /// # Errors
    /// Those of recv(2).
    pub async fn recv<B: ReadBuffer>(&self, buffer: B) -> (io::Result<usize>, B) {
        self.datagrams.recv(buffer).await
    }

    /// Receives a datagram, as [`recv`](Self::recv) does, and who sent it.
    pub async fn recv_from<B: ReadBuffer>(
        &self,
        buffer: B,
    ) -> (io::Result<(usize, SocketAddr)>, B) {
        let (result, buffer) = self.datagrams.recv_from(buffer).await;
        let result = result.and_then(|(count, address)| Ok((count, from_kernel(&address)?)));
        (result, buffer)
    }

    /// Sends a datagram to the address that the socket is connected to, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.datagrams
            .call(|socket| datagram::send(socket, bytes, None))
    }

    /// Sends a datagram, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room.
    pub fn try_send_to(&self, bytes: &[u8], to: impl ToUnixAddress) -> io::Result<usize> {
        let address = to_kernel(&to.to_unix_address()?)?;
        self.datagrams
            .call(|socket| datagram::send(socket, bytes, Some(&address)))
    }

    /// Receives a datagram that is there already.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn try_recv(&self, buffer: &mut impl ReadBuffer) -> io::Result<usize> {
        self.datagrams
            .call(|socket| datagram::receive(socket, buffer))
    }

    /// Receives a datagram that is there already, and who sent it.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn try_recv_from(&self, buffer: &mut impl ReadBuffer) -> io::Result<(usize, SocketAddr)> {
        let (count, address) = self
            .datagrams
            .call(|socket| datagram::receive_from(socket, buffer))?;
        Ok((count, from_kernel(&address)?))
    }

    /// Ends one or both directions.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        from_kernel(&self.socket().local_addr()?)
    }

    /// The address that it is connected to.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        from_kernel(&self.socket().peer_addr()?)
    }
}

impl AsFd for UnixDatagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.datagrams.as_fd()
    }
}

impl AsRawFd for UnixDatagram {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl TryFrom<std::os::unix::net::UnixDatagram> for UnixDatagram {
    type Error = io::Error;

    /// Takes over a socket of the standard library's.
    fn try_from(socket: std::os::unix::net::UnixDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Self::from_socket(Socket::from(socket))
    }
}

impl fmt::Debug for UnixDatagram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UnixDatagram")
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}
