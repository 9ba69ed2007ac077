//! Datagrams with their control messages, one or several per system call: `recvmsg(2)`, `recvmmsg(2)`, `sendmmsg(2)`,
//! `cmsg(3)`. The messages are those of `ip(7)`, `ipv6(7)` and `udp(7)`.

#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// The greatest number of datagrams per system call.
pub(crate) const BATCH_MAX: usize = 64;

/// More than the control messages take that sockets are asked for here: 144 bytes on 64-bit systems.
const CONTROL_BYTES: usize = 192;

/// The size of the longer one of the two kinds of addresses.
const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// The address of a datagram, as the kernel writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; NAME_BYTES]);

impl Name {
    fn new(address: SocketAddr) -> (Self, usize) {
        let mut name = Self([0; NAME_BYTES]);
        let bytes = &mut name.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(address) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
                bytes[4..8].copy_from_slice(&address.ip().octets());
                (name, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(address) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as libc::sa_family_t).to_ne_bytes());
                // The standard library passes it on as it is, too.
                bytes[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                (name, NAME_BYTES)
            }
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let family = libc::sa_family_t::from_ne_bytes(part(bytes, 0)?);
        let port = u16::from_be_bytes(part(bytes, 2)?);
        match i32::from(family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(part::<4>(bytes, 4)?);
                Some(SocketAddr::from((ip, port)))
            }
            libc::AF_INET6 => {
                let flow = u32::from_ne_bytes(part(bytes, 4)?);
                let ip = Ipv6Addr::from(part::<16>(bytes, 8)?);
                let scope = u32::from_ne_bytes(part(bytes, 24)?);
                Some(SocketAddrV6::new(ip, port, flow, scope).into())
            }
            _ => None,
        }
    }
}

/// Some of the bytes, if there are as many.
fn part<const LENGTH: usize>(bytes: &[u8], start: usize) -> Option<[u8; LENGTH]> {
    bytes.get(start..)?.first_chunk().copied()
}

/// Room for control messages.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Control {
    align: [libc::cmsghdr; 0],
    bytes: [u8; CONTROL_BYTES],
}

/// The bytes that a control message takes, with its header and the gap behind it.
fn space(length: usize) -> usize {
    // SAFETY: computes a number.
    unsafe { libc::CMSG_SPACE(length as u32) as usize }
}

/// The bytes that a control message takes, with its header.
fn length_with_header(length: usize) -> usize {
    // SAFETY: computes a number.
    unsafe { libc::CMSG_LEN(length as u32) as usize }
}

impl Control {
    pub(crate) const fn new() -> Self {
        Self {
            align: [],
            bytes: [0; CONTROL_BYTES],
        }
    }

    /// Puts a message behind the first `filled` bytes, and returns how many there are now.
    pub(crate) fn push(&mut self, filled: usize, level: i32, kind: i32, value: &[u8]) -> usize {
        let start = filled + length_with_header(0);
        // SAFETY: a cmsghdr consists of numbers, and perhaps a gap.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_len = length_with_header(value.len()) as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        let place = &mut self.bytes[filled..filled + size_of::<libc::cmsghdr>()];
        // SAFETY: the place has the size of a header.
        unsafe { ptr::write_unaligned(place.as_mut_ptr().cast(), header) };
        self.bytes[start..start + value.len()].copy_from_slice(value);
        filled + space(value.len())
    }

    /// The first `filled` bytes.
    #[cfg(feature = "tls")]
    pub(crate) fn bytes(&self, filled: usize) -> &[u8] {
        &self.bytes[..filled]
    }

    /// All of the bytes, for the kernel to write into.
    #[cfg(feature = "tls")]
    pub(crate) fn bytes_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: they stay initialised, because the kernel writes only what is.
        unsafe { &mut *(ptr::from_mut(&mut self.bytes[..]) as *mut [MaybeUninit<u8>]) }
    }

    /// Calls `see` with level, kind and value of each message in the first `filled` bytes.
    pub(crate) fn each(&self, filled: usize, mut see: impl FnMut(i32, i32, &[u8])) {
        let mut rest = &self.bytes[..filled.min(CONTROL_BYTES)];
        while rest.len() >= size_of::<libc::cmsghdr>() {
            // SAFETY: there are as many bytes as a header has, which consists of numbers.
            let header: libc::cmsghdr = unsafe { ptr::read_unaligned(rest.as_ptr().cast()) };
            let length = header.cmsg_len as usize;
            let Some(value) = rest.get(length_with_header(0)..length) else {
                return;
            };
            see(header.cmsg_level, header.cmsg_type, value);
            rest = rest.get(space(value.len())..).unwrap_or_default();
        }
    }
}

/// The sender, control messages and length of a datagram.
pub(crate) struct Envelope {
    name: Name,
    control: Control,
    control_length: usize,
    /// The length of the datagram, of which there may be less.
    pub(crate) length: usize,
}

/// The contents of the control messages of a datagram.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) segment_bytes: Option<usize>,
    pub(crate) ecn: Option<u8>,
    pub(crate) to: Option<IpAddr>,
    pub(crate) interface: Option<u32>,
}

impl Envelope {
    pub(crate) const fn new() -> Self {
        Self {
            name: Name([0; NAME_BYTES]),
            control: Control::new(),
            control_length: 0,
            length: 0,
        }
    }

    /// Who sent the datagram; `None` if that has no IP address.
    pub(crate) fn from(&self) -> Option<SocketAddr> {
        self.name.address()
    }

    pub(crate) fn details(&self) -> Details {
        let mut details = Details::default();
        let number = |value: &[u8]| part(value, 0).map(i32::from_ne_bytes);
        let index = |value: &[u8], start| part(value, start).map(u32::from_ne_bytes);
        self.control
            .each(self.control_length, |level, kind, value| {
                match (level, kind) {
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        details.segment_bytes = number(value).map(|bytes| bytes as usize);
                    }
                    (libc::SOL_IP, libc::IP_TOS) => details.ecn = value.first().map(|tos| tos & 3),
                    (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                        details.ecn = number(value).map(|class| class as u8 & 3);
                    }
                    // struct in_pktinfo: the interface, the local address, the address in the header.
                    (libc::SOL_IP, libc::IP_PKTINFO) => {
                        details.interface = index(value, 0);
                        details.to = part::<4>(value, 8).map(IpAddr::from);
                    }
                    // struct in6_pktinfo: the address in the header, the interface.
                    (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                        details.to = part::<16>(value, 0).map(IpAddr::from);
                        details.interface = index(value, 16);
                    }
                    _ => {}
                }
            });
        details
    }

    /// The header of a message that fills the envelope and what `piece` points to. It is valid as long as these two.
    fn header(&mut self, piece: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: a msghdr consists of pointers that may be null, of numbers, and perhaps of gaps.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_name = self.name.0.as_mut_ptr().cast();
        header.msg_namelen = NAME_BYTES as libc::socklen_t;
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_control = self.control.bytes.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
        header
    }

    #[allow(
        clippy::unnecessary_cast,
        reason = "not every C library has the same type"
    )]
    fn received(&mut self, header: &libc::msghdr, length: usize) {
        if header.msg_namelen == 0 {
            self.name = Name([0; NAME_BYTES]);
        }
        self.control_length = header.msg_controllen as usize;
        self.length = length;
    }
}

/// Receives one datagram into memory that may be uninitialised, and says in the envelope how long it is. At most as many
/// bytes of `room` are filled.
pub(crate) fn receive_one(
    socket: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    envelope: &mut Envelope,
) -> io::Result<()> {
    let mut piece = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let mut header = envelope.header(&mut piece);
    // SAFETY: the header points to memory that is valid for writes of the lengths in it, and all of it outlives the call.
    let length = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            socket.as_raw_fd(),
            &raw mut header,
            libc::MSG_TRUNC,
        )
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    envelope.received(&header, length);
    Ok(())
}

/// Receives as many datagrams as there are, up to the number of envelopes and [`BATCH_MAX`], each into `each` of the bytes.
pub(crate) fn receive_many(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    each: usize,
    envelopes: &mut [Envelope],
) -> io::Result<usize> {
    let mut pieces = [NO_BYTES; BATCH_MAX];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH_MAX];
    let mut count = 0;
    let rooms = bytes.chunks_exact_mut(each).zip(envelopes.iter_mut());
    for ((room, envelope), (piece, header)) in rooms.zip(pieces.iter_mut().zip(&mut headers)) {
        piece.iov_base = room.as_mut_ptr().cast();
        piece.iov_len = room.len();
        header.write(libc::mmsghdr {
            msg_hdr: envelope.header(piece),
            msg_len: 0,
        });
        count += 1;
    }
    // SAFETY: the first `count` headers are initialised, and point to memory that is valid for writes of the lengths in
    // them; all of it outlives the call. There is no time limit.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvmmsg,
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_TRUNC,
            ptr::null_mut::<libc::timespec>(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (envelope, header) in envelopes.iter_mut().zip(&headers[..received]) {
        // SAFETY: the kernel received no more datagrams than there are headers, and each was initialised above.
        let header = unsafe { header.assume_init_ref() };
        envelope.received(&header.msg_hdr, header.msg_len as usize);
    }
    Ok(received)
}

/// A piece of no length.
const NO_BYTES: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// A datagram to be sent, or several in one buffer.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'b> {
    pub(crate) bytes: &'b [u8],
    pub(crate) to: Option<SocketAddr>,
    pub(crate) segment_bytes: Option<usize>,
    pub(crate) ecn: Option<u8>,
    pub(crate) from: Option<IpAddr>,
    pub(crate) interface: Option<u32>,
}

impl Outgoing<'_> {
    /// Writes the control messages, and returns how many bytes they take.
    fn write(
        &self,
        control: &mut Control,
        is_v4: impl FnOnce() -> io::Result<bool>,
    ) -> io::Result<usize> {
        let mut filled = 0;
        if let Some(ecn) = self.ecn {
            // Each family ignores the messages of the other one.
            let class = i32::from(ecn).to_ne_bytes();
            filled = control.push(filled, libc::SOL_IP, libc::IP_TOS, &class);
            filled = control.push(filled, libc::SOL_IPV6, libc::IPV6_TCLASS, &class);
        }
        if let Some(bytes) = self.segment_bytes {
            let bytes = u16::try_from(bytes).ok().filter(|bytes| *bytes > 0);
            let bytes = bytes.ok_or_else(|| {
                let mistake = "the size of a segment must be from 1 to 65535 bytes";
                io::Error::new(io::ErrorKind::InvalidInput, mistake)
            })?;
            // Some drivers refuse to cut what is one segment.
            if self.bytes.len() > usize::from(bytes) {
                filled = control.push(
                    filled,
                    libc::SOL_UDP,
                    libc::UDP_SEGMENT,
                    &bytes.to_ne_bytes(),
                );
            }
        }
        if self.from.is_none() && self.interface.is_none() {
            return Ok(filled);
        }
        let interface = self.interface.unwrap_or(0).to_ne_bytes();
        let ip = self.from.or(self.to.map(|address| address.ip()));
        let is_v4 = match ip {
            Some(ip) => ip.to_canonical().is_ipv4(),
            None => is_v4()?,
        };
        if is_v4 {
            let mut info = [0; 12];
            info[..4].copy_from_slice(&interface);
            if let Some(IpAddr::V4(ip)) = self.from.map(|ip| ip.to_canonical()) {
                info[4..8].copy_from_slice(&ip.octets());
            }
            Ok(control.push(filled, libc::SOL_IP, libc::IP_PKTINFO, &info))
        } else {
            let mut info = [0; 20];
            if let Some(IpAddr::V6(ip)) = self.from {
                info[..16].copy_from_slice(&ip.octets());
            }
            info[16..].copy_from_slice(&interface);
            Ok(control.push(filled, libc::SOL_IPV6, libc::IPV6_PKTINFO, &info))
        }
    }
}

/// Sends as many of these datagrams as there is room for, up to [`BATCH_MAX`], and returns how many. An error is that of
/// the first one. `is_v4`: whether the socket sends by IPv4, for datagrams that do not tell.
pub(crate) fn send_many<'o, 'b: 'o>(
    socket: BorrowedFd<'_>,
    datagrams: impl Iterator<Item = &'o Outgoing<'b>>,
    is_v4: impl Fn() -> io::Result<bool>,
) -> io::Result<usize> {
    let mut pieces = [NO_BYTES; BATCH_MAX];
    let mut names = [const { MaybeUninit::<Name>::uninit() }; BATCH_MAX];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; BATCH_MAX];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH_MAX];
    let mut count = 0;
    for datagram in datagrams.take(BATCH_MAX) {
        let control = controls[count].write(Control::new());
        let control_length = match datagram.write(control, &is_v4) {
            Ok(length) => length,
            Err(error) if count == 0 => return Err(error),
            // Those before it are sent; the next call reports it.
            Err(_) => break,
        };
        let piece = &mut pieces[count];
        piece.iov_base = datagram.bytes.as_ptr().cast_mut().cast();
        piece.iov_len = datagram.bytes.len();
        // SAFETY: a msghdr consists of pointers that may be null, of numbers, and perhaps of gaps.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        if let Some(address) = datagram.to {
            let (name, length) = Name::new(address);
            header.msg_name = names[count].write(name).0.as_mut_ptr().cast();
            header.msg_namelen = length as libc::socklen_t;
        }
        if control_length > 0 {
            header.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_controllen = control_length as _;
        }
        headers[count].write(libc::mmsghdr {
            msg_hdr: header,
            msg_len: 0,
        });
        count += 1;
    }
    // SAFETY: the first `count` headers are initialised, and point to memory that is valid for reads of the lengths in
    // them; all of it outlives the call, which writes nothing but `msg_len`.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendmmsg,
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sets an option of a socket that is a number, see `setsockopt(2)`.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its size, and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
