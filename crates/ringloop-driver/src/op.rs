//! Operations: what a user submits, and what the kernel is given of it.
//!
//! An operation's buffers, addresses and headers belong to the driver from [`submit`](crate::Driver::submit) to its
//! last completion, whatever happens to the user in between, and then go back through
//! [`take`](crate::Driver::take).

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::shared_fd::SharedFd;
use crate::sys;

/// Something for the kernel to do. Its [`Event`](crate::Event) carries the result.
///
/// Buffers to be filled are appended to: into the vector's spare capacity, and its length grows by the result.
///
/// Flags of sockets are passed on to the kernel, but for `MSG_ZEROCOPY`, which is refused: that is what
/// [`SendZeroCopy`](Op::SendZeroCopy) is for. With `MSG_DONTWAIT` an operation that would wait is `EAGAIN`. With `MSG_TRUNC`
/// the result of receiving counts all that came, also what there was no room for; the buffer grows by no more than its room,
/// and a TCP socket, which throws the bytes away, leaves zeroes in it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Op {
    /// Accepts one connection, or each one as it comes until an error or a cancel. The result is the connection's
    /// descriptor, which does not block and is closed on exec; it is the user's.
    Accept {
        /// The listening socket.
        fd: SharedFd,
        /// Whether to go on after the first connection; all events but the last then have
        /// [`is_more`](crate::Event::is_more).
        multishot: bool,
    },
    /// Connects a socket. The result is 0.
    Connect {
        /// The socket.
        fd: SharedFd,
        /// The peer.
        addr: SocketAddress,
    },
    /// Receives from a socket into spare capacity. The result counts bytes; 0 is the end of a stream.
    Recv {
        /// The socket.
        fd: SharedFd,
        /// Where the bytes are appended. Must have spare capacity.
        buffer: Vec<u8>,
        /// `MSG_*` as for recv(2).
        flags: i32,
    },
    /// Sends `buffer[start..]` on a socket. The result counts bytes, which may be fewer: submit the rest with a
    /// larger `start`. A peer that is gone is `EPIPE`, without a signal.
    Send {
        /// The socket.
        fd: SharedFd,
        /// What to send.
        buffer: Vec<u8>,
        /// Where in the buffer to begin, in bytes.
        start: usize,
        /// `MSG_*` as for send(2).
        flags: i32,
    },
    /// Sends on a socket from where the bytes lie, without a copy of them in the kernel, where it can do that.
    ///
    /// There are two events. The first, which [is not the last](crate::Event::is_more), counts bytes, as for
    /// [`Send`](Op::Send). The last comes when the kernel has let go of the bytes, for TCP when the peer has acknowledged
    /// them; its result is [`SENT_WITHOUT_COPY`] or [`SENT_BY_COPY`]. An error is the only event.
    ///
    /// Copies are made under epoll, by kernels before Linux 6.2, for sockets that know nothing else (Unix sockets), where
    /// `RLIMIT_MEMLOCK` allows no more memory to be held, and where data is delivered on the same machine.
    SendZeroCopy {
        /// The socket.
        fd: SharedFd,
        /// What to send. It must not change: the kernel may read it again to send it again.
        bytes: Bytes,
        /// `MSG_*` as for send(2).
        flags: i32,
    },
    /// Receives a datagram, or bytes with descriptors. The result counts bytes.
    RecvMsg {
        /// The socket.
        fd: SharedFd,
        /// Where all of it goes.
        message: Message,
        /// `MSG_*` as for recvmsg(2).
        flags: i32,
    },
    /// Sends a datagram, or bytes with descriptors. The result counts bytes. A peer that is gone is `EPIPE`,
    /// without a signal.
    SendMsg {
        /// The socket.
        fd: SharedFd,
        /// What to send, and where to.
        message: Message,
        /// `MSG_*` as for sendmsg(2).
        flags: i32,
    },
    /// Reads from a file, a pipe or a device into spare capacity. The result counts bytes; 0 is the end.
    Read {
        /// The file.
        fd: SharedFd,
        /// Where the bytes are appended. Must have spare capacity.
        buffer: Vec<u8>,
        /// Where in the file, in bytes, up to `i64::MAX`; `ESPIPE` for what has no such places (pipes, sockets, terminals).
        ///
        /// `None` is for those, and for the position that the kernel keeps. Do not go by that of a
        /// [file with a position](SharedFd::has_position): `io_uring` leaves it where it was if a transfer is cut short.
        offset: Option<u64>,
    },
    /// Writes `buffer[start..]` to a file, a pipe or a device. The result counts bytes, which may be fewer.
    Write {
        /// The file.
        fd: SharedFd,
        /// What to write.
        buffer: Vec<u8>,
        /// Where in the buffer to begin, in bytes.
        start: usize,
        /// Where in the file, as for [`Read`](Op::Read).
        offset: Option<u64>,
    },
    /// Flushes a file to storage. The result is 0.
    Fsync {
        /// The file.
        fd: SharedFd,
        /// Whether metadata that reading does not need may stay behind (fdatasync(2)).
        data_only: bool,
    },
    /// Opens a file. The result is its descriptor, which is the user's.
    ///
    /// Does not wait for the other end of a FIFO: as with `O_NONBLOCK`, reading begins at once, and writing is `ENXIO` without a
    /// reader (fifo(7)).
    OpenAt {
        /// Where relative paths begin: a directory; `None` is the working directory.
        directory: Option<SharedFd>,
        /// The path.
        path: CString,
        /// `O_*` as for openat(2); `O_CLOEXEC` is added.
        flags: i32,
        /// Permissions of a file that is created.
        mode: u32,
    },
    /// Asks for a file's metadata. The result is 0.
    Statx {
        /// Where relative paths begin: a directory; `None` is the working directory.
        directory: Option<SharedFd>,
        /// The path; empty with `AT_EMPTY_PATH` for `directory` itself, which may then be any file.
        path: CString,
        /// `AT_*` as for statx(2).
        flags: i32,
        /// `STATX_*`: which fields are wanted.
        mask: u32,
        /// Where the answer goes; see [`FileStatus::default`].
        status: Box<FileStatus>,
    },
    /// Shuts down one or both directions of a socket. The result is 0.
    Shutdown {
        /// The socket.
        fd: SharedFd,
        /// `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
        how: i32,
    },
    /// Closes a descriptor, and waits for what that takes. The result is 0. It is closed in any case: also if the operation
    /// fails, is cancelled or discarded, or the driver is dropped.
    Close {
        /// The descriptor; `None` in an operation that is given back.
        fd: Option<OwnedFd>,
    },
}

impl Op {
    /// The descriptor that the operation works on: what [`cancel_fd`](crate::Driver::cancel_fd) goes by.
    /// `None` where it works on a path.
    pub fn fd(&self) -> Option<RawFd> {
        match self {
            Op::Accept { fd, .. }
            | Op::Connect { fd, .. }
            | Op::Recv { fd, .. }
            | Op::Send { fd, .. }
            | Op::SendZeroCopy { fd, .. }
            | Op::RecvMsg { fd, .. }
            | Op::SendMsg { fd, .. }
            | Op::Read { fd, .. }
            | Op::Write { fd, .. }
            | Op::Fsync { fd, .. }
            | Op::Shutdown { fd, .. } => Some(fd.as_raw_fd()),
            Op::Close { fd } => fd.as_ref().map(AsRawFd::as_raw_fd),
            Op::OpenAt { .. } | Op::Statx { .. } => None,
        }
    }

    /// Refuses what could only be a mistake: an empty buffer would make a result of 0 look like the end.
    pub(crate) fn check(&self) -> io::Result<()> {
        let mistake = match self {
            Op::Recv { buffer, .. } | Op::Read { buffer, .. }
                if buffer.capacity() == buffer.len() =>
            {
                "the buffer to receive into has no spare capacity: reserve some"
            }
            Op::Send { buffer, start, .. } | Op::Write { buffer, start, .. }
                if *start > buffer.len() =>
            {
                "the start lies beyond the end of the buffer"
            }
            Op::Read { offset, .. } | Op::Write { offset, .. }
                if offset.is_some_and(|offset| i64::try_from(offset).is_err()) =>
            {
                "the offset lies beyond the largest that a file can have, 2^63 - 1"
            }
            Op::SendMsg { message, .. } if message.descriptors.len() > DESCRIPTORS_MAX => {
                "a message carries at most 253 descriptors (SCM_MAX_FD)"
            }
            Op::Send { flags, .. }
            | Op::SendZeroCopy { flags, .. }
            | Op::SendMsg { flags, .. }
            | Op::Recv { flags, .. }
            | Op::RecvMsg { flags, .. }
                if flags & FLAGS_REFUSED != 0 =>
            {
                "MSG_ZEROCOPY and MSG_CMSG_COMPAT cannot be used here"
            }
            Op::Close { fd: None } => "there is no descriptor to close",
            _ => return Ok(()),
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, mistake))
    }

    /// The file that the operation works on, which is looked up when the kernel takes the request. Directories are looked up
    /// when their paths are.
    fn file_mut(&mut self) -> Option<&mut SharedFd> {
        match self {
            Op::Accept { fd, .. }
            | Op::Connect { fd, .. }
            | Op::Recv { fd, .. }
            | Op::Send { fd, .. }
            | Op::SendZeroCopy { fd, .. }
            | Op::RecvMsg { fd, .. }
            | Op::SendMsg { fd, .. }
            | Op::Read { fd, .. }
            | Op::Write { fd, .. }
            | Op::Fsync { fd, .. }
            | Op::Shutdown { fd, .. } => Some(fd),
            Op::OpenAt { .. } | Op::Statx { .. } | Op::Close { .. } => None,
        }
    }

    /// Whether it works on a socket, whose peer waits to hear that it is closed.
    fn is_on_socket(&self) -> bool {
        matches!(
            self,
            Op::Accept { .. }
                | Op::Connect { .. }
                | Op::Recv { .. }
                | Op::Send { .. }
                | Op::SendZeroCopy { .. }
                | Op::RecvMsg { .. }
                | Op::SendMsg { .. }
                | Op::Shutdown { .. }
        )
    }

    /// Gives the room to receive into a content where the kernel may count bytes that it has not stored.
    fn initialise(&mut self) {
        let buffer = match self {
            Op::Recv { buffer, flags, .. } if *flags & libc::MSG_TRUNC != 0 => buffer,
            Op::RecvMsg { message, flags, .. } if *flags & libc::MSG_TRUNC != 0 => {
                &mut message.buffer
            }
            _ => return,
        };
        buffer.spare_capacity_mut().fill(MaybeUninit::new(0));
    }

    /// Whether it fails with `EAGAIN` rather than wait.
    pub(crate) fn never_waits(&self) -> bool {
        match self {
            Op::Recv { flags, .. }
            | Op::Send { flags, .. }
            | Op::SendZeroCopy { flags, .. }
            | Op::RecvMsg { flags, .. }
            | Op::SendMsg { flags, .. } => flags & libc::MSG_DONTWAIT != 0,
            _ => false,
        }
    }

    /// Whether it reads or writes at an offset that its file cannot have.
    pub(crate) fn is_misplaced(&self) -> bool {
        match self {
            Op::Read { fd, offset, .. } | Op::Write { fd, offset, .. } => {
                offset.is_some() && !fd.nature().takes_offsets
            }
            _ => false,
        }
    }
}

/// With the first the kernel would read the bytes after the operation's end, when they have been given back. With the second,
/// which `io_uring` takes from programs of any kind, control messages have the layout of 32-bit programs.
const FLAGS_REFUSED: i32 = libc::MSG_ZEROCOPY | 0x8000_0000_u32 as i32;

/// The last result of an [`Op::SendZeroCopy`] whose bytes were sent from where they lay.
pub const SENT_WITHOUT_COPY: i32 = 0;

/// The last result of an [`Op::SendZeroCopy`] of which the kernel has copied at least a part.
pub const SENT_BY_COPY: i32 = 1;

/// Bytes with their owner, whatever it is, at an address that stays.
///
/// ```
/// use ringloop_driver::Bytes;
///
/// let bytes = Bytes::new(vec![1, 2, 3]);
/// assert_eq!(bytes.as_slice(), [1, 2, 3]);
/// ```
pub struct Bytes(Box<dyn AsRef<[u8]> + Send>);

impl Bytes {
    /// The bytes that `owner` gives out, which must be the same each time.
    pub fn new(owner: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes(Box::new(owner))
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Bytes({})", self.as_slice().len())
    }
}

/// The most descriptors that one message carries: `SCM_MAX_FD` of the kernel.
const DESCRIPTORS_MAX: usize = 253;

/// A file's metadata as statx(2) gives it.
#[derive(Clone, Copy)]
pub struct FileStatus(pub libc::statx);

impl Default for FileStatus {
    fn default() -> FileStatus {
        // SAFETY: a statx consists of integers, for which all zeroes are valid.
        FileStatus(unsafe { mem::zeroed() })
    }
}

impl fmt::Debug for FileStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileStatus")
            .field("mode", &self.0.stx_mode)
            .field("size", &self.0.stx_size)
            .finish_non_exhaustive()
    }
}

/// What `RecvMsg` fills and `SendMsg` sends.
///
/// ```
/// use ringloop_driver::Message;
///
/// let mut message = Message::from(b"datagram".to_vec());
/// message.addr = Some(std::net::SocketAddr::from(([127, 0, 0, 1], 53)).into());
/// let room = Message::from(Vec::with_capacity(1500));
/// assert!(room.buffer.is_empty() && room.descriptors_max == 0);
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Message {
    /// The bytes: appended to when receiving.
    pub buffer: Vec<u8>,
    /// The sender, or the receiver; `None` on a connected socket.
    pub addr: Option<SocketAddress>,
    /// Descriptors that travel along (`SCM_RIGHTS`, Unix sockets). Those received are closed on exec.
    pub descriptors: Vec<OwnedFd>,
    /// How many descriptors may be received, up to 253. The kernel closes the rest and sets `MSG_CTRUNC`.
    pub descriptors_max: usize,
    /// `MSG_TRUNC`, `MSG_CTRUNC` and the like, as received.
    pub flags: i32,
}

impl From<Vec<u8>> for Message {
    /// A message of these bytes, or with room for some; without an address and descriptors.
    fn from(buffer: Vec<u8>) -> Message {
        Message {
            buffer,
            ..Message::default()
        }
    }
}

/// A socket's address of any family.
#[derive(Clone, Copy)]
pub struct SocketAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl SocketAddress {
    const CAPACITY: usize = size_of::<libc::sockaddr_storage>();

    fn empty() -> SocketAddress {
        // SAFETY: sockaddr_storage consists of integers, for which all zeroes are valid (and mean AF_UNSPEC).
        let storage = unsafe { mem::zeroed() };
        SocketAddress { storage, length: 0 }
    }

    /// An address from the bytes of its `sockaddr`. Fails with [`io::ErrorKind::InvalidInput`] beyond 128 bytes.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<SocketAddress> {
        if bytes.len() > SocketAddress::CAPACITY {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a socket address has at most 128 bytes",
            ));
        }
        let mut address = SocketAddress::empty();
        // SAFETY: the bytes fit, as was just checked, and sockaddr_storage is plain bytes.
        unsafe {
            ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (&raw mut address.storage).cast(),
                bytes.len(),
            );
        };
        address.length = bytes.len() as libc::socklen_t;
        Ok(address)
    }

    /// The address of a Unix socket: a path, or a name in the abstract namespace if it begins with a zero byte.
    /// Fails with [`io::ErrorKind::InvalidInput`] if it is longer than unix(7) allows.
    pub fn unix(path: &[u8]) -> io::Result<SocketAddress> {
        let header = mem::offset_of!(libc::sockaddr_un, sun_path);
        // A path is terminated by a zero byte; an abstract name is not.
        let terminator = usize::from(path.first() != Some(&0));
        let mut bytes = vec![0; header + path.len() + terminator];
        if bytes.len() > size_of::<libc::sockaddr_un>() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path of a Unix socket has at most 107 bytes: use a shorter one",
            ));
        }
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as libc::sa_family_t).to_ne_bytes());
        bytes[header..header + path.len()].copy_from_slice(path);
        SocketAddress::from_bytes(&bytes)
    }

    /// The bytes of the `sockaddr`.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the length is never more than the storage has, all of which is initialised.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.length as usize) }
    }

    /// The address family, such as `AF_INET`.
    pub fn family(&self) -> i32 {
        i32::from(self.storage.ss_family)
    }

    /// The address as the standard library has it; `None` if it is not an IP address.
    pub fn to_ip(&self) -> Option<SocketAddr> {
        let length = self.length as usize;
        if self.family() == libc::AF_INET && length >= size_of::<libc::sockaddr_in>() {
            // SAFETY: the family says that a sockaddr_in is there, for which the storage is large and aligned enough.
            let address = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
            return Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into());
        }
        if self.family() == libc::AF_INET6 && length >= size_of::<libc::sockaddr_in6>() {
            // SAFETY: the family says that a sockaddr_in6 is there, for which the storage is large and aligned enough.
            let address = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            return Some(
                SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id).into(),
            );
        }
        None
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn length(&self) -> libc::socklen_t {
        self.length
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> SocketAddress {
        let mut result = SocketAddress::empty();
        match address.ip() {
            IpAddr::V4(ip) => {
                // SAFETY: the storage is large and aligned enough for every kind of address, and zeroed.
                let target = unsafe { &mut *(&raw mut result.storage).cast::<libc::sockaddr_in>() };
                target.sin_family = libc::AF_INET as libc::sa_family_t;
                target.sin_port = address.port().to_be();
                target.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
                result.length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            IpAddr::V6(ip) => {
                // SAFETY: as above.
                let target =
                    unsafe { &mut *(&raw mut result.storage).cast::<libc::sockaddr_in6>() };
                target.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                target.sin6_port = address.port().to_be();
                target.sin6_addr.s6_addr = ip.octets();
                if let SocketAddr::V6(address) = address {
                    target.sin6_flowinfo = address.flowinfo();
                    target.sin6_scope_id = address.scope_id();
                }
                result.length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        result
    }
}

impl PartialEq for SocketAddress {
    fn eq(&self, other: &SocketAddress) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for SocketAddress {}

impl fmt::Debug for SocketAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_ip() {
            Some(address) => address.fmt(formatter),
            None => write!(
                formatter,
                "SocketAddress({})",
                self.as_bytes().escape_ascii()
            ),
        }
    }
}

/// An operation in flight: the user's part and the headers that only the kernel needs, at addresses that stay.
///
/// Once prepared it is reached through the raw pointer of its [`Parked`] alone, because the kernel writes to it.
pub(crate) struct Operation {
    pub(crate) op: Op,
    /// The epoll backend's: whether a connect is under way.
    pub(crate) started: bool,
    /// The `io_uring` backend's: whether a send without a copy is to be an ordinary one.
    pub(crate) copies: bool,
    /// Whether opening may wait after all, for somebody to give up a lease.
    pub(crate) waits_to_open: bool,
    header: libc::msghdr,
    vector: libc::iovec,
    addr: SocketAddress,
    control: Vec<u64>,
}

// SAFETY: the pointers in `header` and `vector` lead into the operation itself and are set anew each time that it is
// prepared; nothing else in it is bound to a thread.
unsafe impl Send for Operation {}

/// An operation on the heap, which does not move and whose memory nobody in Rust claims to know.
pub(crate) struct Parked(ptr::NonNull<Operation>);

// SAFETY: a Parked owns its Operation, which is Send.
unsafe impl Send for Parked {}

impl Parked {
    pub(crate) fn new(mut op: Op) -> Parked {
        op.initialise();
        let operation = Operation {
            op,
            started: false,
            copies: false,
            waits_to_open: false,
            // SAFETY: a msghdr consists of integers and pointers, for which all zeroes are valid.
            header: unsafe { mem::zeroed() },
            vector: libc::iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            },
            addr: SocketAddress::empty(),
            control: Vec::new(),
        };
        // SAFETY: a Box's pointer is never null.
        Parked(unsafe { ptr::NonNull::new_unchecked(Box::into_raw(Box::new(operation))) })
    }

    /// The operation. Must not be called while the kernel may write to it.
    pub(crate) fn get_mut(&mut self) -> &mut Operation {
        // SAFETY: the pointer came from a Box that this Parked owns. The backends call this only before the operation
        // is submitted and after its last completion (or in between for a multishot accept, which has no memory, and a
        // zero-copy send, whose bytes the kernel only reads).
        unsafe { self.0.as_mut() }
    }

    /// The user's part, to let go of its file.
    fn op_in_flight(&mut self) -> &mut Op {
        // SAFETY: as above; also while the kernel may write, because it writes to what `op` points to and to its neighbours,
        // but not to `op` itself.
        unsafe { &mut (*self.0.as_ptr()).op }
    }

    /// Closes the socket that the operation works on, unless others have it, too. Only once the kernel has looked it up, and
    /// if the operation is given back to nobody.
    pub(crate) fn release_socket(&mut self) {
        let op = self.op_in_flight();
        if op.is_on_socket()
            && let Some(fd) = op.file_mut()
        {
            fd.release();
        }
    }

    pub(crate) fn into_op(self) -> Op {
        // SAFETY: the pointer came from Box::into_raw, and `self` is forgotten, so that it is freed once.
        let operation = unsafe { Box::from_raw(self.0.as_ptr()) };
        mem::forget(self);
        operation.op
    }

    /// Gives the memory up for good, because the kernel may still write to it. It has the file itself, or will never look
    /// it up.
    pub(crate) fn leak(mut self) {
        if let Some(fd) = self.op_in_flight().file_mut() {
            fd.release();
        }
        mem::forget(self);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw and nobody else frees it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Room for one control message that carries `count` descriptors, in words, so that it is aligned for a cmsghdr.
fn control_words(count: usize) -> usize {
    // SAFETY: CMSG_SPACE only computes.
    let bytes = unsafe { libc::CMSG_SPACE((count * size_of::<RawFd>()) as libc::c_uint) } as usize;
    bytes.div_ceil(size_of::<u64>())
}

impl Operation {
    /// The header for recvmsg or sendmsg; it and what it points to stay valid as long as the operation lives unmoved
    /// and its message is left alone.
    pub(crate) fn message_header(&mut self) -> *mut libc::msghdr {
        let (receive, message) = match &mut self.op {
            Op::RecvMsg { message, .. } => (true, message),
            Op::SendMsg { message, .. } => (false, message),
            _ => return ptr::null_mut(),
        };
        // SAFETY: a msghdr consists of integers and pointers, for which all zeroes are valid.
        self.header = unsafe { mem::zeroed() };
        self.control.clear();
        if receive {
            let spare = message.buffer.spare_capacity_mut();
            self.vector = libc::iovec {
                iov_base: spare.as_mut_ptr().cast(),
                iov_len: spare.len(),
            };
            self.addr = SocketAddress::empty();
            self.header.msg_name = (&raw mut self.addr.storage).cast();
            self.header.msg_namelen = SocketAddress::CAPACITY as libc::socklen_t;
            if message.descriptors_max > 0 {
                self.control.resize(
                    control_words(message.descriptors_max.min(DESCRIPTORS_MAX)),
                    0,
                );
            }
        } else {
            self.vector = libc::iovec {
                iov_base: message.buffer.as_mut_ptr().cast(),
                iov_len: message.buffer.len(),
            };
            if let Some(address) = message.addr {
                self.addr = address;
                self.header.msg_name = (&raw mut self.addr.storage).cast();
                self.header.msg_namelen = address.length;
            }
            if !message.descriptors.is_empty() {
                self.control
                    .resize(control_words(message.descriptors.len()), 0);
            }
        }
        self.header.msg_iov = &raw mut self.vector;
        self.header.msg_iovlen = 1;
        if !self.control.is_empty() {
            self.header.msg_control = self.control.as_mut_ptr().cast();
            self.header.msg_controllen = (self.control.len() * size_of::<u64>()) as _;
        }
        if !receive && !message.descriptors.is_empty() {
            let payload = message.descriptors.len() * size_of::<RawFd>();
            // SAFETY: CMSG_LEN only computes. `header` names control memory that has room for one message of this
            // payload (`control_words`), aligned and zeroed, so CMSG_FIRSTHDR is not null and CMSG_DATA lies within.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&raw const self.header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(payload as libc::c_uint) as _;
                let data = libc::CMSG_DATA(first).cast::<[u8; size_of::<RawFd>()]>();
                for (index, descriptor) in message.descriptors.iter().enumerate() {
                    data.add(index).write(descriptor.as_raw_fd().to_ne_bytes());
                }
                self.header.msg_controllen = libc::CMSG_SPACE(payload as libc::c_uint) as _;
            }
        }
        &raw mut self.header
    }

    /// Receives or sends the message now. Only for `RecvMsg` and `SendMsg`.
    pub(crate) fn transfer_message(&mut self) -> io::Result<usize> {
        let header = self.message_header();
        // SAFETY: the header has just been made and leads to memory of this operation's.
        unsafe {
            match &self.op {
                Op::RecvMsg { fd, flags, .. } => sys::receive_message(
                    fd.as_raw_fd(),
                    header,
                    flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
                ),
                Op::SendMsg { fd, flags, .. } => sys::send_message(
                    fd.as_raw_fd(),
                    header,
                    flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                ),
                _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            }
        }
    }

    /// Starts to connect now. Only for `Connect`.
    pub(crate) fn connect(&mut self) -> io::Result<()> {
        let Op::Connect { fd, addr } = &self.op else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        // SAFETY: the address lives in the operation and is as long as it says.
        unsafe { sys::connect(fd.as_raw_fd(), addr.as_ptr(), addr.length()) }
    }

    /// The flags to open with. Only for `OpenAt`.
    pub(crate) fn open_flags(&self) -> i32 {
        let Op::OpenAt { flags, .. } = self.op else {
            return 0;
        };
        let patience = if self.waits_to_open {
            0
        } else {
            libc::O_NONBLOCK
        };
        flags | libc::O_CLOEXEC | patience
    }

    /// Whether opening failed because it would have to wait, for somebody to give up a lease (fcntl(2)), and is to be tried
    /// again so that it does.
    pub(crate) fn opens_again(&mut self, result: i32) -> bool {
        let again = matches!(self.op, Op::OpenAt { flags, .. } if flags & libc::O_NONBLOCK == 0)
            && result == -libc::EAGAIN
            && !self.waits_to_open;
        self.waits_to_open |= again;
        again
    }

    /// Gives a file that was opened the flags that were asked for.
    pub(crate) fn finish_opening(&self, result: i32) {
        if let Op::OpenAt { flags, .. } = self.op
            && result >= 0
            && flags & (libc::O_NONBLOCK | libc::O_PATH) == 0
        {
            sys::set_status_flags(result, flags);
        }
    }

    /// Gives the descriptor that is to be closed away, to be closed by its number. Only for `Close`, once.
    pub(crate) fn hand_over(&mut self) -> Option<RawFd> {
        match &mut self.op {
            Op::Close { fd } => fd.take().map(IntoRawFd::into_raw_fd),
            _ => None,
        }
    }

    /// Does the kernel's part for a script: gives what is received or read a content, and closes what is to be closed.
    pub(crate) fn play(&mut self) {
        match &mut self.op {
            Op::Recv { buffer, .. }
            | Op::Read { buffer, .. }
            | Op::RecvMsg {
                message: Message { buffer, .. },
                ..
            } => buffer.spare_capacity_mut().fill(MaybeUninit::new(0)),
            Op::Close { fd } => drop(fd.take()),
            _ => {}
        }
    }

    /// Gives the user's part what the kernel has written, after the last completion.
    pub(crate) fn settle(&mut self, result: i32) {
        if let Op::Close { fd } = &mut self.op {
            // If it was cancelled before anybody closed it.
            drop(fd.take());
        }
        let Ok(count) = usize::try_from(result) else {
            return;
        };
        match &mut self.op {
            Op::Recv { buffer, .. } | Op::Read { buffer, .. } => grow(buffer, count),
            Op::RecvMsg { message, .. } => {
                grow(&mut message.buffer, count);
                message.flags = self.header.msg_flags;
                let length = self
                    .header
                    .msg_namelen
                    .min(SocketAddress::CAPACITY as libc::socklen_t);
                self.addr.length = length;
                message.addr = (length > 0).then_some(self.addr);
                receive_descriptors(&self.header, &mut message.descriptors);
            }
            _ => {}
        }
    }
}

/// Counts `count` more bytes of the buffer as filled, or all of it: with `MSG_TRUNC` the count is of what came, which may be
/// more than there was room for.
fn grow(buffer: &mut Vec<u8>, count: usize) {
    let length = buffer.len().saturating_add(count).min(buffer.capacity());
    // SAFETY: the capacity holds them. The kernel has filled what it counts; but with MSG_TRUNC it may not have, and then
    // they were zeroed by `Op::initialise`.
    unsafe { buffer.set_len(length) };
}

/// The spare capacity of a buffer, to be filled.
pub(crate) fn spare(buffer: &mut Vec<u8>) -> &mut [MaybeUninit<u8>] {
    buffer.spare_capacity_mut()
}

/// A control message that consists of a descriptor for the sending process, for sockets with `SO_PASSPIDFD` (Linux 6.5).
const SCM_PIDFD: i32 = 4;

/// Takes over the descriptors that a received message carries.
fn receive_descriptors(header: &libc::msghdr, descriptors: &mut Vec<OwnedFd>) {
    // SAFETY: the kernel has filled the control memory that the header names, and says in msg_controllen how much of
    // it; the CMSG macros stay within that, and the kernel's lengths do. Each descriptor is new and nobody else's.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            let kind = (*control).cmsg_type;
            if (*control).cmsg_level == libc::SOL_SOCKET
                && (kind == libc::SCM_RIGHTS || kind == SCM_PIDFD)
            {
                let data = libc::CMSG_DATA(control).cast::<[u8; size_of::<RawFd>()]>();
                let payload = (*control).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..payload / size_of::<RawFd>() {
                    let fd = RawFd::from_ne_bytes(data.add(index).read());
                    let descriptor = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd));
                    // A process was not asked for: its descriptor is closed.
                    descriptors.extend(descriptor.filter(|_| kind == libc::SCM_RIGHTS));
                }
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_addresses_round_trip() {
        for text in ["127.0.0.1:80", "[::1]:443", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let socket_address = SocketAddress::from(address);
            assert_eq!(socket_address.to_ip(), Some(address));
            assert_eq!(
                SocketAddress::from_bytes(socket_address.as_bytes()).unwrap(),
                socket_address
            );
        }
    }

    #[test]
    fn unix_addresses_have_the_length_that_the_kernel_expects() {
        assert_eq!(
            SocketAddress::unix(b"/tmp/x").unwrap().as_bytes().len(),
            2 + 7
        );
        assert_eq!(
            SocketAddress::unix(b"\0name").unwrap().as_bytes().len(),
            2 + 5
        );
        assert_eq!(
            SocketAddress::unix(&[b'x'; 108]).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(SocketAddress::unix(b"/tmp/x").unwrap().to_ip(), None);
    }

    #[test]
    fn an_empty_buffer_is_a_mistake() {
        let (fd, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = SharedFd::new(fd);
        let error = Op::Recv {
            fd: fd.clone(),
            buffer: Vec::new(),
            flags: 0,
        }
        .check()
        .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(
            Op::Recv {
                fd: fd.clone(),
                buffer: Vec::with_capacity(1),
                flags: 0
            }
            .check()
            .is_ok()
        );
        assert!(
            Op::Send {
                fd,
                buffer: vec![0],
                start: 2,
                flags: 0
            }
            .check()
            .is_err()
        );
    }
}
