//! Connecting to a host with several addresses, some of which may not answer (RFC 8305, "Happy Eyeballs").

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use super::address::no_address;
use super::tcp_socket::TcpKeepalive;
use crate::time::{sleep, timeout};

/// The options of [`TcpStream::connect_with`](super::TcpStream::connect_with): how it tries a host's addresses, and what it
/// sets before it connects. For others, use a [`TcpSocket`](super::TcpSocket).
///
/// ```
/// use ringloop::net::{TcpConnectOptions, TcpListener, TcpStream};
/// use std::time::Duration;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let mut options = TcpConnectOptions::default();
/// options.attempt_timeout = Duration::from_secs(3);
/// options.local_address = Some("127.0.0.2:0".parse().unwrap());
/// options.nodelay = true;
/// let stream = TcpStream::connect_with(listener.local_addr()?, &options).await?;
/// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
/// assert_eq!(stream.local_addr()?.ip().to_string(), "127.0.0.2");
/// assert!(stream.nodelay()?);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TcpConnectOptions {
    /// How long to wait for an answer before the next address is tried in parallel. The default is 250 ms, as RFC 8305
    /// recommends; it allows 10 ms to 2 s.
    pub attempt_delay: Duration,
    /// How long an attempt may take. The default is 20 s: by then the kernel has sent five requests, with pauses of 1,
    /// 2, 4 and 8 s between them. The kernel itself gives up after two minutes.
    pub attempt_timeout: Duration,
    /// The address and port that the connection comes from. Addresses of the host that are of the other family are not
    /// tried. With port 0, the kernel chooses one for each destination, so that many connections may share it. `None` lets
    /// it choose the address as well.
    pub local_address: Option<SocketAddr>,
    /// Whether `local_address` may be bound although an earlier connection from it is still closing (`SO_REUSEADDR`).
    pub reuse_address: bool,
    /// Whether small writes are sent at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Whether and how a silent peer is asked if it is still there. `None`, the default, does not ask.
    pub keepalive: Option<TcpKeepalive>,
    /// The network interface to use, by its name (`SO_BINDTODEVICE`, see
    /// [`TcpSocket::set_interface`](super::TcpSocket::set_interface)).
    pub interface: Option<String>,
}

impl Default for TcpConnectOptions {
    fn default() -> Self {
        Self {
            attempt_delay: Duration::from_millis(250),
            attempt_timeout: Duration::from_secs(20),
            local_address: None,
            reuse_address: false,
            nodelay: false,
            keepalive: None,
            interface: None,
        }
    }
}

impl TcpConnectOptions {
    /// Leaves out the addresses that cannot be reached from the local one.
    pub(crate) fn reachable(&self, mut addresses: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
        if let Some(local) = self.local_address
            && !addresses.is_empty()
        {
            addresses.retain(|address| address.is_ipv4() == local.is_ipv4());
            if addresses.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("the host has no address of the family of the local address, {local}"),
                ));
            }
        }
        Ok(addresses)
    }
}

/// Connects to the first address that answers. The next address is tried when an attempt has failed, or has not been
/// answered for a while; earlier attempts then continue.
pub(crate) async fn connect_to_first<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    options: &TcpConnectOptions,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let (connect, limit) = (&connect, options.attempt_timeout);
    let attempt = |address| async move {
        let connected = timeout(limit, connect(address)).await;
        connected.unwrap_or_else(|_| Err(timed_out(address, limit)))
    };
    let [first, others @ ..] = addresses else {
        return Err(no_address());
    };
    if others.is_empty() {
        return attempt(*first).await;
    }
    let mut others = others.iter();
    let mut attempts = vec![Box::pin(attempt(*first))];
    let mut pause = sleep(options.attempt_delay);
    poll_fn(|context| {
        loop {
            let mut failure = None;
            let mut index = 0;
            while let Some(attempt) = attempts.get_mut(index) {
                match attempt.as_mut().poll(context) {
                    Poll::Ready(Ok(connected)) => return Poll::Ready(Ok(connected)),
                    Poll::Ready(Err(error)) => {
                        drop(attempts.remove(index));
                        failure = Some(error);
                    }
                    Poll::Pending => index += 1,
                }
            }
            let Some(address) = others.as_slice().first() else {
                return match failure {
                    Some(error) if attempts.is_empty() => Poll::Ready(Err(error)),
                    _ => Poll::Pending,
                };
            };
            if failure.is_none() && Pin::new(&mut pause).poll(context).is_pending() {
                return Poll::Pending;
            }
            others.next();
            attempts.push(Box::pin(attempt(*address)));
            pause = sleep(options.attempt_delay);
        }
    })
    .await
}

fn timed_out(address: SocketAddr, limit: Duration) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("{address} did not answer within {limit:?}"),
    )
}
