//! Socket addresses between the kernel and Python, as the socket module has them: (host, port) for IPv4,
//! (host, port, flow, scope) for IPv6, a path or an abstract name for Unix sockets.
//!
//! The socket module handles everything else (names to be resolved, subclasses, other families), so that results and
//! errors are its own.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::mem::{offset_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use crate::metrics;
use crate::objects::{self, New};
use crate::socket_object;

/// An address as the kernel has it.
#[derive(Copy, Clone)]
pub(crate) struct Address {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

/// An address in as little memory as it needs: 16 bytes for IPv4.
#[derive(Clone)]
pub(crate) enum CompactAddress {
    Inet(libc::sockaddr_in),
    Other(Box<[u8]>),
}

// Of the C library; the libc crate doesn't declare it.
unsafe extern "C" {
    fn inet_ntop(
        family: c_int,
        source: *const c_void,
        text: *mut c_char,
        size: libc::socklen_t,
    ) -> *const c_char;
}

// Of CPython's C API (Include/sysmodule.h), in every version; PyO3 doesn't declare it.
unsafe extern "C" {
    fn PySys_Audit(event: *const c_char, format: *const c_char, ...) -> c_int;
}

/// No numeric address is longer, in the usual notation.
const LITERAL_MAX: ffi::Py_ssize_t = 45;

/// Where the path begins in a `sockaddr_un`.
const PATH_OFFSET: usize = offset_of!(libc::sockaddr_un, sun_path);
const PATH_SIZE: usize = size_of::<libc::sockaddr_un>() - PATH_OFFSET;

/// Whether `sock_connect` gives this address to the socket as it is: it is a literal, or of a family without names.
pub(crate) fn needs_no_resolver(
    sock: &Bound<'_, PyAny>,
    address: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let family = socket_object::family(sock)?;
    let has_names = matches!(family, libc::AF_INET | libc::AF_INET6);
    if !has_names {
        return Ok(true);
    }
    // asyncio completes the others.
    let length = if family == libc::AF_INET { 2 } else { 4 };
    Ok(matches!(
        socket_object::kind(sock)?,
        libc::SOCK_STREAM | libc::SOCK_DGRAM
    ) && address
        .cast_exact::<PyTuple>()
        .is_ok_and(|it| it.len() == length)
        && Address::from_python(family, address).is_some())
}

impl Address {
    /// An address that the kernel wrote: its first `length` bytes, no more than fit.
    pub(crate) fn from_kernel(storage: &libc::sockaddr_storage, length: libc::socklen_t) -> Self {
        Self {
            storage: *storage,
            length: length.min(size_of_val(storage) as libc::socklen_t),
        }
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `length` is within the storage, which is initialised throughout.
        unsafe {
            std::slice::from_raw_parts((&raw const self.storage).cast(), self.length as usize)
        }
    }

    /// The address in the socket module's notation. None stands for an unnamed peer.
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.length == 0 {
            return Ok(py.None().into_bound(py));
        }
        match c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the storage is large enough for, and aligned as, each family's type.
                let inet = unsafe { *(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let host = Ipv4Addr::from(inet.sin_addr.s_addr.to_ne_bytes());
                let mut text = Text::new();
                text.push_ipv4(host);
                let host = New(text.as_str());
                let port = u16::from_be(inet.sin_port);
                Ok(New((host, New(port))).into_pyobject(py)?.into_any())
            }
            libc::AF_INET6 => {
                // SAFETY: the storage is large enough for, and aligned as, each family's type.
                let inet = unsafe { *(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let mut text = [0 as c_char; 64];
                // SAFETY: the text has room for any IPv6 address.
                let host = unsafe {
                    let text = inet_ntop(
                        libc::AF_INET6,
                        (&raw const inet.sin6_addr).cast(),
                        text.as_mut_ptr(),
                        text.len() as libc::socklen_t,
                    );
                    if text.is_null() {
                        return Err(objects::error::<PyRuntimeError>(
                            py,
                            "the kernel gave a bad address",
                        ));
                    }
                    CStr::from_ptr(text)
                };
                let host = New(host.to_string_lossy().into_owned());
                let port = u16::from_be(inet.sin6_port);
                let flow = u32::from_be(inet.sin6_flowinfo);
                Ok(New((host, New(port), New(flow), New(inet.sin6_scope_id)))
                    .into_pyobject(py)?
                    .into_any())
            }
            libc::AF_UNIX => {
                let name = self.bytes().get(PATH_OFFSET..).unwrap_or_default();
                if name.first() == Some(&0) {
                    return objects::bytes(py, name).map(Bound::into_any);
                }
                let end = name.iter().position(|&byte| byte == 0);
                let path = &name[..end.unwrap_or(name.len())];
                // SAFETY: the GIL is held; the result is a new object or null with an exception set.
                unsafe {
                    Bound::from_owned_ptr_or_err(
                        py,
                        ffi::PyUnicode_DecodeFSDefaultAndSize(
                            path.as_ptr().cast(),
                            path.len() as ffi::Py_ssize_t,
                        ),
                    )
                }
            }
            family => Err(objects::error::<PyRuntimeError>(
                py,
                &format!("unexpected address family {family}"),
            )),
        }
    }

    /// The kernel's form of a plain, numeric address of this family; None if only the socket module can tell.
    pub(crate) fn from_python(family: c_int, address: &Bound<'_, PyAny>) -> Option<Self> {
        match family {
            libc::AF_INET => {
                let address = address.cast_exact::<PyTuple>().ok()?;
                if address.len() != 2 {
                    return None;
                }
                let host: Ipv4Addr = exact_text(address, 0)?.to_str().ok()?.parse().ok()?;
                Some(Self::ipv4(host, exact_number(address, 1)?.try_into().ok()?))
            }
            libc::AF_INET6 => {
                let address = address.cast_exact::<PyTuple>().ok()?;
                if !(2..=4).contains(&address.len()) {
                    return None;
                }
                let host: Ipv6Addr = exact_text(address, 0)?.to_str().ok()?.parse().ok()?;
                let port = exact_number(address, 1)?.try_into().ok()?;
                let optional = |index| {
                    if address.len() > index {
                        exact_number(address, index)
                    } else {
                        Some(0)
                    }
                };
                let flow = optional(2).filter(|&flow| flow <= 0xf_ffff)?;
                Some(Self::ipv6(host, port, flow, optional(3)?))
            }
            libc::AF_UNIX => {
                if let Ok(path) = address.cast_exact::<PyString>() {
                    // ASCII is the same in every file system encoding that Python uses.
                    let path = path.to_str().ok().filter(|path| path.is_ascii())?;
                    Self::unix(path.as_bytes())
                } else {
                    Self::unix(address.cast_exact::<PyBytes>().ok()?.as_bytes())
                }
            }
            _ => None,
        }
    }

    /// The kernel's form of a host that is a numeric address, and of a port: exactly a string and an int.
    pub(crate) fn of_literal(host: &Bound<'_, PyAny>, port: &Bound<'_, PyAny>) -> Option<Self> {
        if !host.is_exact_instance_of::<PyString>() || !port.is_exact_instance_of::<PyInt>() {
            return None;
        }
        // SAFETY: its type was checked.
        let host = unsafe { host.cast_unchecked::<PyString>() };
        // SAFETY: the string is alive.
        if unsafe { ffi::PyUnicode_GET_LENGTH(host.as_ptr()) } > LITERAL_MAX {
            return None;
        }
        let text = host.to_str().ok()?;
        if let Ok(host) = text.parse() {
            return Some(Self::ipv4(host, port.extract().ok()?));
        }
        let host = text.parse().ok()?;
        Some(Self::ipv6(host, port.extract().ok()?, 0, 0))
    }

    pub(crate) fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }

    /// Whether it is "0.0.0.0", also in IPv6's notation, or "::".
    pub(crate) fn is_unspecified(&self) -> bool {
        let storage = &raw const self.storage;
        // SAFETY: the storage is large enough for, and aligned as, each family's type.
        unsafe {
            match self.family() {
                libc::AF_INET => (*storage.cast::<libc::sockaddr_in>()).sin_addr.s_addr == 0,
                libc::AF_INET6 => {
                    let address = (*storage.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                    let address = Ipv6Addr::from(address);
                    address.is_unspecified()
                        || address.to_ipv4_mapped() == Some(Ipv4Addr::UNSPECIFIED)
                }
                _ => false,
            }
        }
    }

    /// The tuple that asyncio makes of a literal, which this address is, and of its port.
    pub(crate) fn of_parts<'py>(
        &self,
        host: &Bound<'py, PyAny>,
        port: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let py = host.py();
        if self.family() == libc::AF_INET {
            objects::tuple(py, [host.clone(), port.clone()])
        } else {
            New((host, port, New(0), New(0))).into_pyobject(py)
        }
    }

    fn ipv4(host: Ipv4Addr, port: u16) -> Self {
        // SAFETY: all-zero is a valid address storage.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        // SAFETY: the storage is large enough for, and aligned as, each family's type.
        let inet = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
        inet.sin_family = libc::AF_INET as libc::sa_family_t;
        inet.sin_port = port.to_be();
        inet.sin_addr.s_addr = u32::from_ne_bytes(host.octets());
        Self {
            storage,
            length: size_of::<libc::sockaddr_in>() as libc::socklen_t,
        }
    }

    fn ipv6(host: Ipv6Addr, port: u16, flow: u32, scope: u32) -> Self {
        // SAFETY: all-zero is a valid address storage.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        // SAFETY: the storage is large enough for, and aligned as, each family's type.
        let inet = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
        inet.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        inet.sin6_port = port.to_be();
        inet.sin6_flowinfo = flow.to_be();
        inet.sin6_addr.s6_addr = host.octets();
        inet.sin6_scope_id = scope;
        Self {
            storage,
            length: size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }

    /// As the socket module makes it: an abstract name counts all its bytes, a path has a final NUL.
    fn unix(name: &[u8]) -> Option<Self> {
        let is_abstract = name.first().is_none_or(|&first| first == 0);
        if name.len() + usize::from(!is_abstract) > PATH_SIZE {
            return None;
        }
        // SAFETY: all-zero is a valid address storage.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        storage.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: the name fits, as was checked.
        unsafe {
            let path = (&raw mut storage).cast::<u8>().add(PATH_OFFSET);
            path.copy_from_nonoverlapping(name.as_ptr(), name.len());
        }
        let length = PATH_OFFSET + name.len() + usize::from(!is_abstract);
        Some(Self {
            storage,
            length: length as libc::socklen_t,
        })
    }
}

impl CompactAddress {
    /// The address that a socket is bound to; None if the kernel doesn't say.
    pub(crate) fn of_socket(fd: RawFd) -> Option<Self> {
        Self::ask(fd, libc::getsockname)
    }

    /// The address that a socket is connected to; None if it isn't.
    pub(crate) fn of_peer(fd: RawFd) -> Option<Self> {
        Self::ask(fd, libc::getpeername)
    }

    fn ask(
        fd: RawFd,
        call: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int,
    ) -> Option<Self> {
        // SAFETY: all-zero is a valid address storage.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let mut length = size_of_val(&storage) as libc::socklen_t;
        metrics::count_system_call();
        // SAFETY: the storage and its length are valid for writing.
        let result = unsafe { call(fd, (&raw mut storage).cast(), &raw mut length) };
        (result == 0).then(|| Self::from(&Address::from_kernel(&storage, length)))
    }

    pub(crate) fn expand(&self) -> Address {
        // SAFETY: all-zero is a valid address storage.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let length = match self {
            Self::Inet(inet) => {
                // SAFETY: the storage is large enough for, and aligned as, each family's type.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(*inet) };
                size_of_val(inet)
            }
            Self::Other(bytes) => {
                // SAFETY: the bytes were an `Address`'s, whose storage is as large.
                unsafe {
                    (&raw mut storage)
                        .cast::<u8>()
                        .copy_from(bytes.as_ptr(), bytes.len());
                };
                bytes.len()
            }
        };
        Address {
            storage,
            length: length as libc::socklen_t,
        }
    }
}

impl From<&Address> for CompactAddress {
    fn from(address: &Address) -> Self {
        let is_inet = c_int::from(address.storage.ss_family) == libc::AF_INET;
        if is_inet && address.length as usize == size_of::<libc::sockaddr_in>() {
            // SAFETY: the storage is large enough for, and aligned as, each family's type.
            Self::Inet(unsafe { *(&raw const address.storage).cast::<libc::sockaddr_in>() })
        } else {
            Self::Other(address.bytes().into())
        }
    }
}

fn exact_text<'a, 'py>(
    address: &'a Bound<'py, PyTuple>,
    index: usize,
) -> Option<pyo3::Borrowed<'a, 'py, PyString>> {
    let item = address.get_borrowed_item(index).ok()?;
    item.is_exact_instance_of::<PyString>()
        // SAFETY: its type was checked.
        .then(|| unsafe { item.cast_unchecked() })
}

fn exact_number(address: &Bound<'_, PyTuple>, index: usize) -> Option<u32> {
    let item = address.get_borrowed_item(index).ok()?;
    if !item.is_exact_instance_of::<PyInt>() {
        return None;
    }
    item.extract().ok()
}

/// sendto(2) of one datagram, without waiting: the number of bytes sent. Without an address it goes to the socket's
/// peer.
pub(crate) fn send_to(fd: RawFd, bytes: &[u8], address: Option<&Address>) -> io::Result<usize> {
    let (pointer, length) = address.map_or((ptr::null(), 0), |it| (it.as_ptr(), it.length));
    loop {
        metrics::count_system_call();
        // SAFETY: the slice and the address are valid for reading.
        let sent = unsafe {
            libc::sendto(
                fd,
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                pointer,
                length,
            )
        };
        match usize::try_from(sent).map_err(|_| io::Error::last_os_error()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether calls on the descriptor wait. Whoever shares its file can change that.
pub(crate) fn is_blocking(fd: RawFd) -> bool {
    metrics::count_system_call();
    // SAFETY: a system call on a descriptor number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

/// accept4(2): a connection that waits at a listening socket, and its peer's address. It doesn't block, and isn't
/// inherited.
pub(crate) fn accept(fd: RawFd) -> io::Result<(OwnedFd, CompactAddress)> {
    // SAFETY: all-zero is a valid address storage.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let mut length = size_of_val(&storage) as libc::socklen_t;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    metrics::count_system_call();
    // SAFETY: the storage and its length are valid for writing.
    let accepted = unsafe { libc::accept4(fd, (&raw mut storage).cast(), &raw mut length, flags) };
    if accepted < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has made this descriptor, and nobody else has it.
    let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
    let peer = CompactAddress::from(&Address::from_kernel(&storage, length));
    Ok((accepted, peer))
}

/// connect(2), without waiting: 0, or the errno.
pub(crate) fn connect(fd: RawFd, address: &Address) -> c_int {
    metrics::count_system_call();
    // SAFETY: the address is valid for reading.
    if unsafe { libc::connect(fd, address.as_ptr(), address.length) } == 0 {
        return 0;
    }
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EINVAL)
}

/// Raises the audit event that the socket module raises.
pub(crate) fn audit_sendto(sock: &Bound<'_, PyAny>, address: &Bound<'_, PyAny>) -> PyResult<()> {
    // SAFETY: the GIL is held, and the format takes two objects, which are alive.
    let status = unsafe {
        PySys_Audit(
            c"socket.sendto".as_ptr(),
            c"OO".as_ptr(),
            sock.as_ptr(),
            address.as_ptr(),
        )
    };
    settle_audit(sock.py(), status)
}

/// The same for connecting to a literal, whose tuple is made only if somebody listens.
pub(crate) fn audit_connect(
    sock: &Bound<'_, PyAny>,
    address: &Address,
    host: &Bound<'_, PyAny>,
    port: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let format = if address.family() == libc::AF_INET {
        c"O(OO)"
    } else {
        c"O(OOii)"
    };
    let zero: c_int = 0;
    // SAFETY: the GIL is held, and the format takes three objects, which are alive, and no more than two integers.
    let status = unsafe {
        PySys_Audit(
            c"socket.connect".as_ptr(),
            format.as_ptr(),
            sock.as_ptr(),
            host.as_ptr(),
            port.as_ptr(),
            zero,
            zero,
        )
    };
    settle_audit(sock.py(), status)
}

fn settle_audit(py: Python<'_>, status: c_int) -> PyResult<()> {
    if status != 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(())
}

/// The digits of an IPv4 address; `core::fmt` takes three times as long.
struct Text {
    bytes: [u8; 16],
    length: usize,
}

impl Text {
    fn new() -> Self {
        Self {
            bytes: [0; 16],
            length: 0,
        }
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    fn push_ipv4(&mut self, host: Ipv4Addr) {
        for (index, octet) in host.octets().into_iter().enumerate() {
            if index > 0 {
                self.push(b'.');
            }
            if octet >= 100 {
                self.push(b'0' + octet / 100);
            }
            if octet >= 10 {
                self.push(b'0' + octet / 10 % 10);
            }
            self.push(b'0' + octet % 10);
        }
    }

    fn as_str(&self) -> &str {
        // Only ASCII was pushed.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

/// Addresses that came up lately, with their Python objects: most datagrams come from, and go to, a few peers.
#[derive(Default)]
pub(crate) struct AddressCache {
    /// By the hash of the kernel's form; empty until the first datagram.
    received: Vec<Option<Entry>>,
    /// Which of them was delivered last: a reply usually goes there.
    received_last: usize,
    sent: Option<Entry>,
}

struct Entry {
    address: Address,
    /// Immutable throughout, so that the object itself stands for its content.
    object: Py<PyAny>,
}

const SLOTS: usize = 64;

impl AddressCache {
    fn slot(address: &Address) -> usize {
        let mut hash = 0_u32;
        for &byte in address.bytes() {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
        (hash ^ (hash >> 16)) as usize % SLOTS
    }

    /// The object for an address that a datagram came from, if it came up before.
    pub(crate) fn object(&mut self, py: Python<'_>, address: &Address) -> Option<Py<PyAny>> {
        let slot = Self::slot(address);
        let entry = self.received.get(slot)?.as_ref()?;
        if entry.address.bytes() != address.bytes() {
            return None;
        }
        self.received_last = slot;
        Some(entry.object.clone_ref(py))
    }

    /// Remembers an object that `Address::object` made. The caller drops the object that it replaces, when nothing is
    /// borrowed.
    #[must_use]
    pub(crate) fn insert_received(
        &mut self,
        address: Address,
        object: Py<PyAny>,
    ) -> Option<Py<PyAny>> {
        if self.received.is_empty() {
            self.received.resize_with(SLOTS, || None);
        }
        self.received_last = Self::slot(&address);
        self.received[self.received_last]
            .replace(Entry { address, object })
            .map(|entry| entry.object)
    }

    /// The kernel's form of an object, if it was delivered or sent to last.
    pub(crate) fn address(&self, object: &Bound<'_, PyAny>) -> Option<Address> {
        let received = self.received.get(self.received_last);
        [received, Some(&self.sent)]
            .into_iter()
            .flatten()
            .flatten()
            .find(|entry| entry.object.is(object))
            .map(|entry| entry.address)
    }

    /// Remembers an address that `Address::from_python` understood.
    #[must_use]
    pub(crate) fn insert_sent(&mut self, address: Address, object: Py<PyAny>) -> Option<Py<PyAny>> {
        self.sent
            .replace(Entry { address, object })
            .map(|entry| entry.object)
    }
}
