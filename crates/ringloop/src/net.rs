//! TCP, UDP and Unix sockets.
//!
//! Streams are read directly when there is something to read, and written directly first. Nothing stays with the kernel
//! when a future is dropped, so cancelling is simple, and buffers may be borrowed. `docs/decisions/direct-io.md` in the
//! repository has the measurements behind this.

pub(crate) mod accept;
mod address;
mod any;
mod buf_reader;
mod connect;
mod datagram;
mod family;
mod halves;
#[cfg(feature = "tls")]
pub(crate) mod kernel_tls;
pub(crate) mod stream;
mod tcp;
mod tcp_socket;
mod udp;
mod unix;

pub use crate::buffer::ReadBuffer;
pub use crate::source::Closed;
pub use address::{ToAddresses, resolve};
pub use any::AnyStream;
pub use buf_reader::{BufReader, Lines, ReadStream};
pub use connect::TcpConnectOptions;
pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub use stream::Stream;
pub use tcp::{TcpListener, TcpListenerOptions, TcpStream};
pub use tcp_socket::{TcpKeepalive, TcpSocket};
pub use udp::{Ecn, UdpBatch, UdpDatagram, UdpReceived, UdpSocket, UdpSocketOptions};
pub use unix::{PeerCredentials, ToUnixAddress, UnixDatagram, UnixListener, UnixStream};
pub(crate) use unix::{bind_unix_socket, unix_address};
