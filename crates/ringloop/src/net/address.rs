//! Names and addresses.

use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use super::connect::interleave;
use crate::blocking;

/// What sockets can be bound and connected to: addresses as they are, names after asking the resolver.
///
/// ```
/// use ringloop::net::ToAddresses;
/// use std::net::SocketAddr;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let expected: SocketAddr = "[::1]:80".parse().unwrap();
/// assert_eq!("[::1]:80".to_addresses().await?, [expected]);
/// assert_eq!(("::1", 80).to_addresses().await?, [expected]);
/// assert_eq!(expected.to_addresses().await?, [expected]);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait ToAddresses {
    /// The addresses, in the order in which they are to be tried.
    ///
    /// # Errors
    /// Those of the resolver; `InvalidInput` for a text that is not `host:port`.
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>>;
}

impl ToAddresses for SocketAddr {
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        ready(Ok(vec![*self]))
    }
}

impl ToAddresses for [SocketAddr] {
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        ready(Ok(self.to_vec()))
    }
}

impl ToAddresses for (IpAddr, u16) {
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        ready(Ok(vec![SocketAddr::from(*self)]))
    }
}

impl ToAddresses for (Ipv4Addr, u16) {
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        ready(Ok(vec![SocketAddr::from(*self)]))
    }
}

impl ToAddresses for (Ipv6Addr, u16) {
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        ready(Ok(vec![SocketAddr::from(*self)]))
    }
}

impl ToAddresses for (&str, u16) {
    async fn to_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        resolve(self.0, self.1).await
    }
}

impl ToAddresses for str {
    async fn to_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.parse() {
            return Ok(vec![address]);
        }
        let (host, port) = self
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, port.parse().ok()?)))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{self:?} is no address: write host:port"),
                )
            })?;
        resolve(host, port).await
    }
}

impl ToAddresses for String {
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        self.as_str().to_addresses()
    }
}

impl<T: ToAddresses + ?Sized> ToAddresses for &T {
    fn to_addresses(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> {
        (**self).to_addresses()
    }
}

/// Asks the system's resolver for a host's addresses, in a thread of its own; an address literal is answered at once. IPv4 and
/// IPv6 take turns, beginning with what the resolver prefers: the order in which RFC 8305 tries them.
///
/// # Errors
/// Those of getaddrinfo(3).
///
/// ```
/// use ringloop::net::resolve;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// for address in resolve("localhost", 80).await? {
///     assert!(address.ip().is_loopback());
/// }
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let literal = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    if let Ok(address) = literal.unwrap_or(host).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    let addresses = blocking::run(move || (host.as_str(), port).to_socket_addrs());
    Ok(interleave(addresses.await??.collect()))
}
