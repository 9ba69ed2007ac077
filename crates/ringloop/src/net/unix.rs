//! Unix sockets.

use std::ffi::{OsStr, OsString};
use std::future::{Future, poll_fn};
use std::io::{self, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::AsFd;
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
use super::family::{datagram_socket, socket_traits, stream};
use super::halves::{OwnedReadHalf, OwnedWriteHalf, split};
use super::stream::{Core, HasCore, ShortRead, Stream};
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

socket_traits!(
    UnixListener { acceptor },
    std::os::unix::net::UnixListener: |socket| Ok(UnixListener::from_socket(socket)),
    [local_addr],
    finish_non_exhaustive
);

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
}

stream! {
    UnixStream, std::os::unix::net::UnixStream, SocketAddr: from_kernel;
    read;
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
    read_vectored;
    read_with;
    write;
    write_all;
    try_write;
    shutdown;
    into_split;
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

    /// Sets the address that [`send`](Self::send) sends to, and the only one that is received from.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(&self, address: impl ToUnixAddress) -> io::Result<()> {
        self.socket()
            .connect(&to_kernel(&address.to_unix_address()?)?)
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

    /// Sends a datagram, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room.
    pub fn try_send_to(&self, bytes: &[u8], to: impl ToUnixAddress) -> io::Result<usize> {
        let address = to_kernel(&to.to_unix_address()?)?;
        self.datagrams
            .call(|socket| datagram::send(socket, bytes, Some(&address)))
    }

    /// Ends one or both directions.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }
}

datagram_socket! {
    UnixDatagram, std::os::unix::net::UnixDatagram, SocketAddr: from_kernel;
    send;
    recv;
    try_recv_from;
}
