//! Sockets.
//!
//! Streams read when there is something to read, directly, and write directly first: nothing is left with the kernel when
//! a future is dropped, so that cancelling is simple and buffers may be borrowed. `ARCHITECTURE.md` has the measurement
//! behind that.

mod address;
mod tcp;

pub use address::{ToAddresses, resolve};
pub use tcp::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpListenerOptions, TcpStream};
