//! Connections whose records the kernel encrypts and decrypts (kernel TLS): reading and writing, with the records that
//! are no data.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut, Socket};

use super::buffer::{ReadBuffer, spare};
use super::stream::Core;
use crate::source::Seat;
use crate::sys;
use crate::sys::kernel_tls::LEVEL;

/// The size of a control message with one byte: `struct cmsghdr`, the byte, and padding.
const CONTROL_BYTES: usize = 24;
/// `CMSG_LEN(1)`.
const CONTROL_LENGTH: usize = 17;
/// `TLS_SET_RECORD_TYPE` of `linux/tls.h`.
const SET_RECORD_TYPE: i32 = 1;
/// `TLS_GET_RECORD_TYPE`.
const GET_RECORD_TYPE: i32 = 2;

/// How much of a record that is no data is received at a time. Alerts have 2 bytes, and tickets a few hundred.
const RECORD_PART_BYTES: usize = 2048;

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received<T> {
    /// Data; none at the end of the stream.
    Data(T),
    /// A record that is no data, or part of one.
    Record {
        /// Its content type.
        kind: u8,
        /// Its content, or part of that.
        bytes: Vec<u8>,
    },
}

impl Core {
    /// Reads data into a buffer, which must have room, or a record that is no data.
    ///
    /// A short read may have left something behind: it ends before a record that is no data.
    pub(crate) fn poll_receive_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<Received<usize>>> {
        let received = self.poll_call(context, |socket| {
            // SAFETY: the bytes are only written: receiving reads nothing from them.
            let room = unsafe { spare(buffer).as_uninit_slice_mut() };
            or_record(socket, sys::receive(socket.as_fd(), room))
        });
        if let Poll::Ready(Ok(Received::Data(count))) = &received {
            // SAFETY: recv(2) has filled that many bytes of the piece.
            unsafe { buffer.advance_mut(*count) };
        }
        received
    }

    /// Reads data in place, or a record that is no data.
    pub(crate) fn poll_receive_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<Received<T>>> {
        let receive = |socket: &Socket, room: &mut [u8]| {
            // SAFETY: only received bytes are written through it.
            let room = unsafe { &mut *(std::ptr::from_mut(room) as *mut [MaybeUninit<u8>]) };
            or_record(socket, sys::receive(socket.as_fd(), room))
        };
        self.poll_call_with(context, receive, |received, bytes| match received {
            Received::Data(count) => Received::Data(use_bytes(&bytes[..count])),
            Received::Record { kind, bytes } => Received::Record { kind, bytes },
        })
    }

    /// Sends a record that is no data. If there is no room, the future is woken when there is some.
    pub(crate) fn poll_send_record(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        kind: u8,
        bytes: &[u8],
    ) -> Poll<io::Result<()>> {
        self.poll_call_to_write(context, seat, |socket| send_record(socket, kind, bytes))
    }

    /// The same without waiting: fails with `WouldBlock` if there is no room.
    pub(crate) fn try_send_record(&self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        send_record(self.socket(), kind, bytes)
    }
}

/// recv(2) fails with EIO if what comes next is no data. recvmsg(2) then gets it, and what it is.
fn or_record(socket: &Socket, received: io::Result<usize>) -> io::Result<Received<usize>> {
    match received {
        Err(error) if error.raw_os_error() == Some(libc::EIO) => {
            let (kind, bytes) = receive_record(socket)?;
            Ok(Received::Record { kind, bytes })
        }
        received => received.map(Received::Data),
    }
}

fn receive_record(socket: &Socket) -> io::Result<(u8, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(RECORD_PART_BYTES);
    let mut control = [MaybeUninit::new(0); CONTROL_BYTES];
    let mut parts = [MaybeUninitSlice::new(bytes.spare_capacity_mut())];
    let mut message = MsgHdrMut::new()
        .with_buffers(&mut parts)
        .with_control(&mut control);
    let count = socket.recvmsg(&mut message, 0)?;
    // SAFETY: recvmsg(2) has filled that many bytes.
    unsafe { bytes.set_len(count) };
    // SAFETY: all bytes were initialised above.
    let control = control.map(|byte| unsafe { byte.assume_init() });
    Ok((kind_of(&control)?, bytes))
}

/// The content type in a control message.
fn kind_of(control: &[u8; CONTROL_BYTES]) -> io::Result<u8> {
    let has = |at: usize, number: i32| control[at..at + 4] == number.to_ne_bytes();
    if has(8, LEVEL) && has(12, GET_RECORD_TYPE) {
        return Ok(control[16]);
    }
    // A real EIO, or a socket without kernel TLS.
    Err(io::Error::from_raw_os_error(libc::EIO))
}

fn send_record(socket: &Socket, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let mut control = [0; CONTROL_BYTES];
    control[..8].copy_from_slice(&CONTROL_LENGTH.to_ne_bytes());
    control[8..12].copy_from_slice(&LEVEL.to_ne_bytes());
    control[12..16].copy_from_slice(&SET_RECORD_TYPE.to_ne_bytes());
    control[16] = kind;
    let parts = [IoSlice::new(bytes)];
    let message = MsgHdr::new().with_buffers(&parts).with_control(&control);
    socket.sendmsg(&message, libc::MSG_NOSIGNAL).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_message_has_the_layout_of_the_c_library() {
        // SAFETY: these compute sizes.
        let sizes = unsafe { (libc::CMSG_SPACE(1), libc::CMSG_LEN(1)) };
        assert_eq!(
            sizes,
            (CONTROL_BYTES as u32, CONTROL_LENGTH as u32),
            "struct cmsghdr"
        );
        let mut control = [0; CONTROL_BYTES];
        assert_eq!(
            kind_of(&control).unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
        control[8..12].copy_from_slice(&LEVEL.to_ne_bytes());
        control[12..16].copy_from_slice(&GET_RECORD_TYPE.to_ne_bytes());
        control[16] = 21;
        assert_eq!(kind_of(&control).unwrap(), 21);
    }
}
