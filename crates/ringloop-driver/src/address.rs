//! Socket addresses in the kernel's format.

#![allow(unsafe_code)]

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net as unix;
use std::ptr;

/// A socket's address of any family.
#[derive(Clone, Copy)]
pub struct SocketAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl SocketAddress {
    /// How many bytes of the storage the kernel may fill.
    pub(crate) const CAPACITY: libc::socklen_t =
        size_of::<libc::sockaddr_storage>() as libc::socklen_t;

    pub(crate) fn empty() -> SocketAddress {
        // SAFETY: sockaddr_storage consists of integers, for which all zeroes are valid (and mean AF_UNSPEC).
        let storage = unsafe { mem::zeroed() };
        SocketAddress { storage, length: 0 }
    }

    /// An address from the bytes of its `sockaddr`. Fails with [`io::ErrorKind::InvalidInput`] beyond 128 bytes.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<SocketAddress> {
        if bytes.len() > SocketAddress::CAPACITY as usize {
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

    /// The address in the standard library's type. `None` if it is not an IP address.
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

    /// Where the kernel writes an address. Then call [`set_length`](SocketAddress::set_length).
    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    pub(crate) fn length(&self) -> libc::socklen_t {
        self.length
    }

    /// Sets the length of an address that the kernel has written. The kernel reports the full length of an address that
    /// was truncated.
    pub(crate) fn set_length(&mut self, length: libc::socklen_t) {
        self.length = length.min(SocketAddress::CAPACITY);
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
                // SAFETY: the storage is large and aligned enough for every kind of address, and zeroed.
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

impl From<&unix::SocketAddr> for SocketAddress {
    fn from(address: &unix::SocketAddr) -> SocketAddress {
        let mut bytes = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes().to_vec();
        if let Some(path) = address.as_pathname() {
            bytes.extend_from_slice(path.as_os_str().as_bytes());
            // The kernel also takes a path that is one byte longer, without a terminator: see unix(7).
            if bytes.len() < size_of::<libc::sockaddr_un>() {
                bytes.push(0);
            }
        } else if let Some(name) = address.as_abstract_name() {
            bytes.push(0);
            bytes.extend_from_slice(name);
        }
        SocketAddress::from_bytes(&bytes).expect("it is no longer than a sockaddr_un")
    }
}

impl PartialEq for SocketAddress {
    fn eq(&self, other: &SocketAddress) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for SocketAddress {}

impl Hash for SocketAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

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
    fn unix_addresses_of_the_standard_library_are_those_of_the_kernel() {
        let path = format!(
            "{}/ringloop-address-{}",
            std::env::temp_dir().display(),
            std::process::id()
        );
        let longest = format!("/{}", "x".repeat(106));
        for (address, expected) in [
            (unix::SocketAddr::from_pathname(&path), path.as_bytes()),
            (
                unix::SocketAddr::from_pathname(&longest),
                longest.as_bytes(),
            ),
            (
                unix::SocketAddr::from_abstract_name(b"name\0more"),
                b"\0name\0more",
            ),
            (unix::SocketAddr::from_abstract_name(b""), b"\0"),
        ] {
            let address = SocketAddress::from(&address.unwrap());
            assert_eq!(address, SocketAddress::unix(expected).unwrap());
        }
        let (unnamed, _) = unix::UnixStream::pair().unwrap();
        let address = SocketAddress::from(&unnamed.local_addr().unwrap());
        assert_eq!(
            (address.family(), address.as_bytes().len()),
            (libc::AF_UNIX, 2)
        );
    }

    /// A peer chooses its name.
    #[test]
    fn the_longest_path_that_the_kernel_takes_has_no_terminator() {
        let length = size_of::<libc::sockaddr_un>() - mem::offset_of!(libc::sockaddr_un, sun_path);
        let folder = format!(
            "{}/ringloop-longest-{}",
            std::env::temp_dir().display(),
            std::process::id()
        );
        std::fs::create_dir(&folder).unwrap();
        let path = format!("{folder}/{}", "x".repeat(length - folder.len() - 1));
        let mut bytes = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes().to_vec();
        bytes.extend_from_slice(path.as_bytes());
        let address = SocketAddress::from_bytes(&bytes).unwrap();
        let socket = unix::UnixDatagram::unbound().unwrap();
        // SAFETY: the address lives for the call, and has this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr(), address.length) };
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(bound, 0);
        let named = socket.local_addr().unwrap();
        assert_eq!(named.as_pathname().unwrap().as_os_str(), path.as_str());
        assert_eq!(SocketAddress::from(&named), address);
    }

    #[test]
    fn equal_addresses_have_equal_hashes() {
        let address = SocketAddress::from("127.0.0.1:80".parse::<SocketAddr>().unwrap());
        let mut known = std::collections::HashSet::from([address]);
        assert!(!known.insert(SocketAddress::from_bytes(address.as_bytes()).unwrap()));
        assert!(known.insert(SocketAddress::unix(b"/tmp/x").unwrap()));
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
}
