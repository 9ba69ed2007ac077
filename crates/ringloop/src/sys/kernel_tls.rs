//! The socket options of kernel TLS, see `Documentation/networking/tls.rst` of Linux.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, socklen_t};

/// `SOL_TLS` of `linux/socket.h`.
pub(crate) const LEVEL: c_int = 282;
/// The size of the largest key structure that is set here.
pub(crate) const KEY_BYTES_MAX: usize = 56;
/// `TLS_RX_EXPECT_NO_PAD` of `linux/tls.h`.
const EXPECT_NO_PADDING: c_int = 4;
/// `TCP_CLOSE` of `linux/tcp_states.h`.
const TCP_CLOSE: u8 = 7;
/// Where `tcpi_bytes_acked` is in `struct tcp_info`, and where it ends.
const BYTES_ACKED: (usize, usize) = (120, 128);

/// The direction that a key is for; the values are the options' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Direction {
    /// `TLS_TX`.
    Send = 1,
    /// `TLS_RX`.
    Receive = 2,
}

/// Prepares a connected socket for kernel TLS. Without keys, it stays what it was.
pub(crate) fn prepare(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")
}

/// Gives the kernel the key of one direction: one of the structures `tls12_crypto_info_*`.
pub(crate) fn set_key(socket: BorrowedFd<'_>, direction: Direction, key: &[u8]) -> io::Result<()> {
    set(socket, LEVEL, direction as c_int, key)
}

/// Lets the kernel decrypt records of TLS 1.3 where the reader wants them. It decrypts a record a second time if that
/// turns out to be padded. Linux before 6.0 refuses.
pub(crate) fn expect_no_padding(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, LEVEL, EXPECT_NO_PADDING, &1_i32.to_ne_bytes())
}

/// Reads back the structure with the key for sending. Its last eight bytes are the number of the next record.
pub(crate) fn sending_key(socket: BorrowedFd<'_>, key: &mut [u8]) -> io::Result<()> {
    get(socket, LEVEL, Direction::Send as c_int, key)
}

/// Makes TCP send what it has, although more was announced (`MSG_MORE` and `MSG_SENDPAGE_NOTLAST`, which sendfile(2) and
/// splice(2) use): that is what lifting a cork does, see `tcp(7)`, also where there is none.
pub(crate) fn send_pending(socket: BorrowedFd<'_>) -> io::Result<()> {
    let off = 0_i32.to_ne_bytes();
    set(socket, libc::IPPROTO_TCP, libc::TCP_CORK, &off)
}

/// How many bytes have been given to TCP on this connection, up to a constant. Records that kernel TLS has accepted, but
/// for which TCP had no room, are not among them. Fails if the connection is gone.
pub(crate) fn bytes_given_to_tcp(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut acknowledged = bytes_acknowledged(socket)?;
    loop {
        let unacknowledged = bytes_unacknowledged(socket)?;
        // An acknowledgement in between moves bytes from one number to the other.
        let again = bytes_acknowledged(socket)?;
        if again == acknowledged {
            return Ok(acknowledged.wrapping_add(unacknowledged));
        }
        acknowledged = again;
    }
}

fn bytes_acknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = [0; BYTES_ACKED.1];
    get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    // `tcpi_state` comes first.
    if info[0] == TCP_CLOSE {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let bytes = info[BYTES_ACKED.0..].try_into();
    Ok(bytes.map_or(0, u64::from_ne_bytes))
}

fn bytes_unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: SIOCOUTQ, which has the number of TIOCOUTQ, writes one int, and `bytes` outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Overwrites a key that is no longer needed.
pub(crate) fn wipe(key: &mut [u8]) {
    for byte in key {
        // SAFETY: `byte` is valid for writes. A volatile write is not optimised away although nobody reads the result.
        unsafe { ptr::write_volatile(byte, 0) };
    }
}

fn set(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its length, and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            size_of_val(value) as socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn get(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<()> {
    let mut length = size_of_val(value) as socklen_t;
    // SAFETY: `value` is valid for writes of `length` bytes, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < value.len() {
        return Err(io::Error::other("the kernel returned a shorter structure"));
    }
    Ok(())
}
