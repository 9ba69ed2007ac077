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
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Buf;
use ringloop_driver::Interest;
use socket2::{Domain, SockAddr, Socket, Type};

use super::accept::Acceptor;
use super::datagram::{self, Datagrams};
use super::family::{datagram_socket, socket_traits, stream};
use super::halves::{OwnedReadHalf, OwnedWriteHalf, split};
use super::stream::{Core, HasCore, ShortRead, Stream};
use crate::budget;
use crate::buffer::ReadBuffer;
use crate::source::{Closed, Direction, End, Source, reclaiming};
use crate::sys;
use crate::time::sleep;

/// The maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;

/// The length of the first wait for a full backlog. Each further one is twice as long.
const BACKLOG_WAIT: Duration = Duration::from_millis(1);

/// The longest such wait.
const BACKLOG_WAIT_MAX: Duration = Duration::from_millis(32);

/// How long to wait if there may be room for a datagram, but no event will tell.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// Types that can be converted to addresses of Unix sockets: paths, and addresses of the standard library, which may be
/// abstract names. A path that begins with a zero byte is an abstract name, too. A program may implement it for types of its
/// own.
///
/// The address of a socket that was not bound is unnamed. Nothing can be sent to it: connecting and sending fail with
/// `InvalidInput`. Binding to it lets the kernel choose an abstract name (unix(7)).
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
    /// Returns the address.
    ///
    /// # Errors
    /// Returns `InvalidInput` for a path that is empty, longer than unix(7) allows, or contains a zero byte that is not
    /// the first.
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

/// Converts an address for the kernel.
fn to_kernel(address: &SocketAddr) -> io::Result<SockAddr> {
    if let Some(path) = address.as_pathname() {
        return SockAddr::unix(path);
    }
    let Some(abstract_name) = address.as_abstract_name() else {
        // Not the empty abstract name, which anybody may have bound.
        return SockAddr::unix("");
    };
    let mut name = vec![0];
    name.extend_from_slice(abstract_name);
    SockAddr::unix(OsStr::from_bytes(&name))
}

/// Creates a socket for connections that is bound to a path or a name, and does not listen yet.
pub(crate) fn bind_unix_socket(address: &SocketAddr) -> io::Result<Socket> {
    bound(Type::STREAM, address)
}

/// The address of a Unix socket, as the kernel says it; `None` for other families.
pub(crate) fn unix_address(address: &SockAddr) -> Option<SocketAddr> {
    address.is_unix().then(|| from_kernel(address).ok())?
}

/// Converts an address from the kernel. It is unnamed if the socket was not bound. A path of 108 bytes, which leaves no room
/// for a zero byte at its end, can be bound but not be converted; it counts as unnamed, too, because a connection or a
/// datagram must not be lost for it.
fn from_kernel(address: &SockAddr) -> io::Result<SocketAddr> {
    if let Some(name) = address.as_abstract_namespace() {
        return SocketAddr::from_abstract_name(name);
    }
    let path = address.as_pathname().unwrap_or(Path::new(""));
    SocketAddr::from_pathname(path).or_else(|_| SocketAddr::from_pathname(""))
}

fn socket(kind: Type) -> io::Result<Socket> {
    reclaiming(|| Socket::new(Domain::UNIX, kind.nonblocking(), None))
}

fn pair_of(kind: Type) -> io::Result<(Socket, Socket)> {
    reclaiming(|| Socket::pair(Domain::UNIX, kind.nonblocking(), None))
}

/// Creates a socket that is bound.
fn bound(kind: Type, address: &impl ToUnixAddress) -> io::Result<Socket> {
    let address = to_kernel(&address.to_unix_address()?)?;
    let socket = socket(kind)?;
    reclaiming(|| socket.bind(&address))?;
    Ok(socket)
}

/// A Unix socket that listens for connections, at a path or an abstract name.
///
/// The path remains when the listener is dropped. Remove it before you use it again.
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
    /// Returns the errors of bind(2) and listen(2): `AddrInUse` if the path exists.
    pub fn bind(address: impl ToUnixAddress) -> io::Result<Self> {
        let socket = bound(Type::STREAM, &address)?;
        socket.listen(BACKLOG)?;
        Ok(Self::from_socket(socket))
    }

    fn from_socket(socket: Socket) -> Self {
        Self {
            acceptor: Acceptor::new(socket),
        }
    }

    /// The address that the listener is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        from_kernel(&self.acceptor.socket().local_addr()?)
    }

    /// Waits for a connection. The address is the peer's; it is unnamed if the peer was not bound, or was bound to a path
    /// of 108 bytes, the longest one.
    ///
    /// Dropping the future does not lose a connection. Any number of tasks may wait at once.
    ///
    /// # Errors
    /// Returns the errors of accept(2). If there are too many open descriptors (`EMFILE`), wait a little and try again.
    ///
    /// # Panics
    /// Panics outside of a runtime.
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

/// The process at the other end of a [`UnixStream`], as it was when the connection was made (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process ID; `None` if the process is in a namespace that is not visible from here.
    pub pid: Option<i32>,
    /// The effective user ID.
    pub uid: u32,
    /// The effective group ID.
    pub gid: u32,
}

/// A connection between two Unix sockets.
///
/// Buffers may be owned or borrowed, see [`TcpStream`](super::TcpStream).
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
    /// Connects. While the listener's backlog is full, this retries every few milliseconds.
    ///
    /// # Errors
    /// Returns the errors of connect(2).
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub async fn connect(address: impl ToUnixAddress) -> io::Result<Self> {
        let address = to_kernel(&address.to_unix_address()?)?;
        // The kernel connects at once if the listener has room.
        poll_fn(|context| budget::poll(context)).await;
        let socket = socket(Type::STREAM)?;
        let mut wait = BACKLOG_WAIT;
        loop {
            match socket.connect(&address) {
                Ok(()) => return Self::from_socket(socket),
                // The kernel reports no event for this on a socket without a connection.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(wait).await,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            wait = (wait * 2).min(BACKLOG_WAIT_MAX);
        }
    }

    /// Creates two connected sockets without addresses.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = pair_of(Type::STREAM)?;
        Ok((Self::from_socket(near)?, Self::from_socket(far)?))
    }

    pub(crate) fn from_socket(socket: Socket) -> io::Result<Self> {
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
    readable;
    peek;
    shutdown;
    into_split;
}

/// A Unix socket for datagrams. Datagrams are not lost or reordered; a sender waits while the receiver's queue is full.
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
    /// Creates a socket at a path or an abstract name.
    ///
    /// # Errors
    /// Returns the errors of bind(2): `AddrInUse` if the path exists.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn bind(address: impl ToUnixAddress) -> io::Result<Self> {
        Self::from_socket(bound(Type::DGRAM, &address)?)
    }

    /// Creates a socket without an address. It can send, but nobody can answer.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn unbound() -> io::Result<Self> {
        Self::from_socket(socket(Type::DGRAM)?)
    }

    /// Creates two sockets that are connected to each other.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = pair_of(Type::DGRAM)?;
        Ok((Self::from_socket(near)?, Self::from_socket(far)?))
    }

    /// Connects the socket: [`send`](Self::send) sends to this address, and datagrams are received from this address
    /// only.
    ///
    /// # Errors
    /// Returns the errors of connect(2).
    pub fn connect(&self, address: impl ToUnixAddress) -> io::Result<()> {
        self.socket()
            .connect(&to_kernel(&address.to_unix_address()?)?)
    }

    /// Sends all of a buffer as one datagram. Waits while the receiver's queue is full.
    ///
    /// # Errors
    /// Returns the errors of sendto(2).
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
                let datagrams = &self.datagrams;
                let sent = datagrams.poll_send_to(context, waiting.seat(), &mut buffer, &address);
                if let Some(count) = ready!(sent)? {
                    return Poll::Ready(Ok(count));
                }
                let waiting = room.get_or_insert_with(|| Box::pin(room_at(&address)));
                ready!(waiting.as_mut().poll(context))?;
                room = None;
            }
        })
        .await;
        drop(room);
        (result, buffer)
    }

    /// Sends a datagram, without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no room.
    pub fn try_send_to(&self, bytes: &[u8], to: impl ToUnixAddress) -> io::Result<usize> {
        let address = to_kernel(&to.to_unix_address()?)?;
        self.datagrams
            .call(|socket| datagram::send(socket, bytes, Some(&address)))
    }

    /// Shuts down one or both directions.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }
}

/// Waits until a receiver has room. The kernel reports that only to sockets that are connected to it, so this connects
/// one. If the receiver has room, either our own send buffer is full, and the caller waits for that event, too; or the
/// room has just become free, and there is no event. If there are no descriptors or no memory for it, it just takes a
/// moment.
async fn room_at(address: &SockAddr) -> io::Result<()> {
    let probe = match socket(Type::DGRAM) {
        Ok(probe) => probe,
        Err(error) if is_scarcity(&error) => {
            sleep(ROOM_WAIT).await;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    probe.connect(address)?;
    if sys::is_writable_now(probe.as_fd())? {
        sleep(ROOM_WAIT).await;
    } else {
        Source::new(probe, Interest::WRITE)?.writable().await?;
    }
    Ok(())
}

/// Whether a socket could not be created because there are too many, here or in the system.
fn is_scarcity(error: &io::Error) -> bool {
    sys::is_out_of_descriptors(error)
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

datagram_socket! {
    UnixDatagram, std::os::unix::net::UnixDatagram, SocketAddr: from_kernel;
    send;
    recv;
    try_recv_from;
    readable;
    peek_from;
}
