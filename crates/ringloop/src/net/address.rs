//! Names and addresses.

use std::future::{Future, poll_fn, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use socket2::SockAddr;

use crate::blocking;
use crate::budget;
use crate::threads::Purpose;

/// Types that can be converted to socket addresses, to bind or connect to. Host names are resolved by the system. A program
/// may implement it for types of its own.
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
    /// Returns the addresses, in the order in which they should be tried.
    ///
    /// # Errors
    /// Returns the resolver's errors, and `InvalidInput` for a string that is not `host:port`.
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
                    format!("invalid address {self:?}; use host:port"),
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

/// Resolves a host name with the system's resolver, in a thread for this purpose, of which there are at most
/// [`RuntimeConfig::resolver_threads`](crate::RuntimeConfig::resolver_threads). An address literal needs no resolver. IPv4
/// and IPv6 addresses alternate, starting with the family that the resolver prefers: the order in which RFC 8305 tries
/// them.
///
/// # Errors
/// Returns the errors of getaddrinfo(3).
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
        poll_fn(|context| budget::poll(context)).await;
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    let look_up = move || (host.as_str(), port).to_socket_addrs();
    let addresses = blocking::run_for(Purpose::Resolving, look_up);
    Ok(interleave(addresses.await??.collect()))
}

/// Puts addresses into the order in which they should be tried. The families alternate, starting with that of the first
/// address, so that a family that does not work costs one attempt (RFC 8305, section 4).
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(is_first_v4) = addresses.first().map(SocketAddr::is_ipv4) else {
        return addresses;
    };
    let count = addresses.len();
    let (first, other): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv4() == is_first_v4);
    let (mut first, mut other) = (first.into_iter(), other.into_iter());
    let mut ordered = Vec::with_capacity(count);
    while ordered.len() < count {
        ordered.extend(first.next());
        ordered.extend(other.next());
    }
    ordered
}

/// Calls `use_address` with one address after the other until it succeeds; if it never does, the last error is returned.
pub(super) async fn use_first<T>(
    addresses: impl ToAddresses,
    mut use_address: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    // Neither an address literal nor what is done with it has to wait.
    poll_fn(|context| budget::poll(context)).await;
    let mut result = Err(no_address());
    for address in addresses.to_addresses().await? {
        result = use_address(address);
        if result.is_ok() {
            break;
        }
    }
    result
}

pub(super) fn ip(address: &SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an IP address"))
}

pub(super) fn no_address() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "no address found for the host name",
    )
}

#[cfg(all(test, not(ringloop_loom)))]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_keep_their_order() {
        for (given, expected) in [
            ("", ""),
            ("a", "a"),
            ("1", "1"),
            ("ab12", "a1b2"),
            ("12ab", "1a2b"),
            ("abc1", "a1bc"),
            ("1abc", "1abc"),
            ("a1b", "a1b"),
            ("a123b", "a1b23"),
        ] {
            let address = |name: char| -> SocketAddr {
                let text = match name {
                    '1'..='9' => format!("10.0.0.{name}:80"),
                    _ => format!("[fd00::{name}]:80"),
                };
                text.parse().unwrap()
            };
            let ordered = interleave(given.chars().map(address).collect());
            let expected: Vec<_> = expected.chars().map(address).collect();
            assert_eq!(ordered, expected, "{given}");
        }
    }
}
