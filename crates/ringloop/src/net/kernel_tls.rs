//! Connections whose records the kernel encrypts and decrypts (kernel TLS): reading and writing, with the records that
//! are no data.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut, Socket};

use super::stream::Core;
use crate::buffer::{ReadBuffer, spare};
use crate::sys;
use crate::sys::kernel_tls::LEVEL;
use crate::sys::messages::Control;

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

    /// Sends a record that is no data, without waiting: fails with `WouldBlock` if there is no room.
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
    let mut control = Control::new();
    let mut parts = [MaybeUninitSlice::new(bytes.spare_capacity_mut())];
    let mut message = MsgHdrMut::new()
        .with_buffers(&mut parts)
        .with_control(control.bytes_mut());
    let count = socket.recvmsg(&mut message, 0)?;
    let filled = message.control_len();
    // SAFETY: recvmsg(2) has filled that many bytes.
    unsafe { bytes.set_len(count) };
    Ok((kind_of(&control, filled)?, bytes))
}

/// The content type in the first `filled` bytes of control messages.
fn kind_of(control: &Control, filled: usize) -> io::Result<u8> {
    let mut found = None;
    control.each(filled, |level, kind, value| {
        if (level, kind) == (LEVEL, GET_RECORD_TYPE) {
            found = value.first().copied();
        }
    });
    // A real EIO, or a socket without kernel TLS.
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
}

fn send_record(socket: &Socket, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let mut control = Control::new();
    let filled = control.push(0, LEVEL, SET_RECORD_TYPE, &[kind]);
    let parts = [IoSlice::new(bytes)];
    let message = MsgHdr::new()
        .with_buffers(&parts)
        .with_control(control.bytes(filled));
    socket.sendmsg(&message, libc::MSG_NOSIGNAL).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_is_found_in_a_control_message_of_kernel_tls_only() {
        let mut control = Control::new();
        let eio = Some(libc::EIO);
        assert_eq!(kind_of(&control, 0).unwrap_err().raw_os_error(), eio);
        let other = control.push(0, libc::SOL_SOCKET, GET_RECORD_TYPE, &[21]);
        assert_eq!(kind_of(&control, other).unwrap_err().raw_os_error(), eio);
        let filled = control.push(other, LEVEL, GET_RECORD_TYPE, &[21]);
        assert_eq!(kind_of(&control, filled).unwrap(), 21);
        // SAFETY: it computes a size.
        assert_eq!(filled - other, unsafe { libc::CMSG_SPACE(1) } as usize);
    }
}
