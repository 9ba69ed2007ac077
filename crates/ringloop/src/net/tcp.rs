//! TCP.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut};
use ringloop_driver::{Interest, Op};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::address::ToAddresses;
use crate::source::{Operation, Source};

/// Connections that are accepted ahead of the program; beyond that they wait in the kernel's backlog.
const ACCEPTED_AHEAD_MAX: usize = 64;

/// The most pieces that one vectored write takes: `IOV_MAX`.
const PIECES_MAX: usize = 64;

/// How a [`TcpListener`] is set up.
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
    socket: Socket,
    accepting: RefCell<Option<Operation>>,
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
        Self::listen(address, options).map(Self::from)
    }

    /// A listener that another thread's runtime will take over.
    pub(crate) fn bind_blocking(
        address: SocketAddr,
        options: &TcpListenerOptions,
    ) -> io::Result<std::net::TcpListener> {
        Self::listen(address, options).map(std::net::TcpListener::from)
    }

    fn listen(address: SocketAddr, options: &TcpListenerOptions) -> io::Result<Socket> {
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
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(socket)
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.socket.local_addr()?)
    }

    /// Waits for a connection.
    ///
    /// Dropping the future loses no connection. One task at a time may wait.
    ///
    /// # Errors
    /// Those of accept(2): for want of descriptors (`EMFILE`) wait a little and try again.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let descriptor = poll_fn(|context| self.poll_accept(context)).await?;
        let socket = Socket::from(descriptor);
        let peer = ip(&socket.peer_addr()?)?;
        Ok((TcpStream::from_socket(socket)?, peer))
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        let mut accepting = self.accepting.borrow_mut();
        loop {
            let Some(operation) = accepting.as_ref() else {
                *accepting = Some(Operation::submit(Op::Accept {
                    fd: self.socket.as_raw_fd(),
                    multishot: true,
                })?);
                continue;
            };
            let Some(result) = std::task::ready!(operation.poll_next(context)) else {
                *accepting = None;
                continue;
            };
            if operation.backlog() > ACCEPTED_AHEAD_MAX {
                // The program is slower than its clients: let them wait where they are refused in the end.
                operation.cancel();
            }
            match result {
                Ok(descriptor) => {
                    // SAFETY: the driver hands over the descriptor of a new connection, which nobody else has.
                    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
                    return Poll::Ready(Ok(descriptor));
                }
                Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl From<Socket> for TcpListener {
    fn from(socket: Socket) -> Self {
        Self {
            socket,
            accepting: RefCell::new(None),
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
        self.socket.as_fd()
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let Some(operation) = self.accepting.get_mut().take() else {
            return;
        };
        for result in operation.take_results() {
            if result >= 0 {
                // SAFETY: a connection that was accepted ahead: it is ours, and nobody has asked for it.
                drop(unsafe { OwnedFd::from_raw_fd(result) });
            }
        }
        // The kernel's operation holds the socket open: another descriptor of it is closed when that is cancelled. If
        // there is none to be had, the socket ends a turn later.
        if let Ok(socket) = self.socket.try_clone() {
            operation.cancel_and_close(socket.into());
        }
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
/// Buffers may be owned or borrowed: whatever is a [`BufMut`] can be read into (`Vec<u8>`, `BytesMut`, `&mut [u8]`), and
/// whatever is a [`Buf`] can be written (`Bytes`, `&[u8]`, a chain of both). They come back with the result.
pub struct TcpStream {
    source: Source<Socket>,
}

impl TcpStream {
    /// Connects, to the first address that can be reached.
    ///
    /// # Errors
    /// Those of the resolver and of connect(2), from the address that was tried last.
    pub async fn connect(address: impl ToAddresses) -> io::Result<Self> {
        let mut last_error = None;
        for address in address.to_addresses().await? {
            match Self::connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.unwrap_or_else(no_address))
    }

    async fn connect_to(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        let is_connected = match socket.connect(&address.into()) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => false,
            Err(error) => return Err(error),
        };
        let source = Source::new(socket, Interest::READ | Interest::WRITE)?;
        if !is_connected {
            source.writable().await;
            if let Some(error) = source.get().take_error()? {
                return Err(error);
            }
        }
        source.assume_writable();
        Ok(Self { source })
    }

    fn from_socket(socket: Socket) -> io::Result<Self> {
        let source = Source::new(socket, Interest::READ | Interest::WRITE)?;
        source.assume_writable();
        Ok(Self { source })
    }

    /// Reads what is there, once, to the end of the buffer. 0 is the end of the stream, or a buffer without room.
    pub async fn read<B: BufMut>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let result = poll_fn(|context| self.poll_read_into(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Reads in place: waits for data, reads it into the buffer that the connections of this thread share, and hands it
    /// to `use_bytes`, without a copy. An empty slice is the end of the stream.
    ///
    /// What `use_bytes` does not use is lost. It cannot wait, but it may answer at once: it is given the stream too, for
    /// [`try_write`](Self::try_write).
    pub async fn read_with<T>(
        &mut self,
        use_bytes: impl FnOnce(&[u8], &TcpStream) -> T,
    ) -> io::Result<T> {
        let mut use_bytes = Some(use_bytes);
        poll_fn(|context| {
            self.poll_read_with(context, |bytes, stream| {
                let use_bytes = use_bytes.take().expect("one read ends the future");
                use_bytes(bytes, stream)
            })
        })
        .await
    }

    pub(crate) fn poll_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8], &TcpStream) -> T,
    ) -> Poll<io::Result<T>> {
        self.source
            .poll_read_in_place(context, |bytes| use_bytes(bytes, self))
    }

    /// Writes part of a buffer, as much as there is room for, and advances it by that.
    pub async fn write<B: Buf>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let result = poll_fn(|context| self.poll_write_from(context, &mut buffer)).await;
        (result, buffer)
    }

    /// Writes all of a buffer. After an error the buffer has what was not written.
    pub async fn write_all<B: Buf>(&mut self, mut buffer: B) -> (io::Result<()>, B) {
        while buffer.has_remaining() {
            let result = poll_fn(|context| self.poll_write_from(context, &mut buffer)).await;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buffer),
                Ok(_) => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Writes as much as there is room for now, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.source.get().send_with_flags(bytes, libc::MSG_NOSIGNAL)
    }

    /// Ends one or both directions. What was written before still arrives.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.source.get().shutdown(how)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.source.get().local_addr()?)
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        ip(&self.source.get().peer_addr()?)
    }

    /// Whether small writes go out at once (`TCP_NODELAY`).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.source.get().tcp_nodelay()
    }

    /// Sets whether small writes go out at once.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.source.get().set_tcp_nodelay(nodelay)
    }

    /// Splits the connection, so that one task may read while another one writes.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Rc::new(self);
        (
            OwnedReadHalf {
                stream: Rc::clone(&stream),
            },
            OwnedWriteHalf { stream },
        )
    }

    pub(crate) fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        if !buffer.has_remaining_mut() {
            return Poll::Ready(Ok(0));
        }
        let count = std::task::ready!(self.source.poll_read(context, |socket| {
            // SAFETY: the bytes are only written to: a socket reads nothing from them.
            let room = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
            let count = socket.recv(room)?;
            Ok((count, count < room.len()))
        }))?;
        // SAFETY: recv(2) has filled that many bytes of the chunk.
        unsafe { buffer.advance_mut(count) };
        Poll::Ready(Ok(count))
    }

    pub(crate) fn poll_write_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl Buf,
    ) -> Poll<io::Result<usize>> {
        let count = std::task::ready!(self.source.poll_write(context, |socket| {
            let first = buffer.chunk();
            if first.len() == buffer.remaining() {
                let count = socket.send_with_flags(first, libc::MSG_NOSIGNAL)?;
                return Ok((count, count == first.len()));
            }
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let filled = buffer.chunks_vectored(&mut pieces);
            let wanted: usize = pieces[..filled].iter().map(|piece| piece.len()).sum();
            let count = socket.send_vectored_with_flags(&pieces[..filled], libc::MSG_NOSIGNAL)?;
            Ok((count, count == wanted))
        }))?;
        buffer.advance(count);
        Poll::Ready(Ok(count))
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get().as_fd()
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

/// The half of a [`TcpStream`] that reads.
#[derive(Debug)]
pub struct OwnedReadHalf {
    stream: Rc<TcpStream>,
}

impl OwnedReadHalf {
    /// As [`TcpStream::read`].
    pub async fn read<B: BufMut>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        let result = poll_fn(|context| self.stream.poll_read_into(context, &mut buffer)).await;
        (result, buffer)
    }
}

/// The half of a [`TcpStream`] that writes. The direction is ended when it is dropped.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Rc<TcpStream>,
}

impl OwnedWriteHalf {
    /// As [`TcpStream::write_all`].
    pub async fn write_all<B: Buf>(&mut self, mut buffer: B) -> (io::Result<()>, B) {
        while buffer.has_remaining() {
            match poll_fn(|context| self.stream.poll_write_from(context, &mut buffer)).await {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buffer),
                Ok(_) => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // An error means that the connection is gone already.
        drop(self.stream.shutdown(Shutdown::Write));
    }
}

fn ip(address: &SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an IP address"))
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}
