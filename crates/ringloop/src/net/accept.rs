//! Listening sockets of every family.

use std::cell::OnceCell;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use ringloop_driver::Interest;
use socket2::{SockAddr, SockFilter, Socket};

use crate::source::{Seat, Watch, reclaiming};
use crate::sys;

/// A program for Linux's packet filter, see `linux/filter.h`. It drops what would begin a connection, and sees a packet from
/// TCP's header on.
const DROP_SYN: [SockFilter; 5] = [
    // ldb [13]: the flags.
    SockFilter::new(0x30, 0, 0, 13),
    // and #(SYN | ACK)
    SockFilter::new(0x54, 0, 0, 0x12),
    // jeq #SYN
    SockFilter::new(0x15, 0, 1, 0x02),
    // ret #0: drop the packet.
    SockFilter::new(0x06, 0, 0, 0),
    // ret #-1: keep all of it.
    SockFilter::new(0x06, 0, 0, u32::MAX),
];

/// A listening socket. It is watched from the first time that somebody waits for a connection.
///
/// Connections are accepted one by one, when they are asked for. The others stay with the kernel, where another
/// listener on the same socket or port may accept them.
pub(crate) struct Acceptor {
    /// `None` only during drop.
    socket: Option<Socket>,
    watch: OnceCell<Watch>,
}

impl Acceptor {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket: Some(socket),
            watch: OnceCell::new(),
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.socket.as_ref().expect("it is there until the drop")
    }

    /// See [`Watch::release`].
    pub(crate) fn into_socket(mut self) -> io::Result<Socket> {
        let socket = self.socket.take().expect("it is there until the drop");
        match self.watch.get() {
            Some(watch) => watch.release(socket),
            None => Ok(socket),
        }
    }

    /// Lets no more connections begin, so that those in the kernel's queue can all be accepted before the end. The same holds
    /// for all descriptors of the socket.
    ///
    /// The kernel resets those that wait at a socket when it is closed, and accepting them all would not end while more
    /// arrive. That is why, with TCP, the first packet of a new one is dropped. Its client sends it again a second later, and
    /// by then either reaches another socket that listens there, or is refused. A Unix socket that is shut down for reading
    /// refuses new ones itself.
    pub(crate) fn refuse_more(&self) {
        let socket = self.socket();
        // Sandboxes may lack packet filters. Some connections may then be reset.
        let _ = if socket.local_addr().is_ok_and(|address| address.is_unix()) {
            socket.shutdown(Shutdown::Read)
        } else {
            socket.attach_filter(&DROP_SYN)
        };
    }

    /// Returns a connection that waits, if there is one.
    pub(crate) fn try_accept(&self) -> io::Result<Option<(Socket, SockAddr)>> {
        loop {
            match reclaiming(|| sys::accept(self.socket().as_fd())) {
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                accepted => return accepted.map(Some),
            }
        }
    }

    /// Waits for a connection. It is non-blocking, and its peer may already be gone.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, SockAddr)> {
        let socket = self.socket().as_fd();
        let watch = if let Some(watch) = self.watch.get() {
            watch
        } else {
            let watch = Watch::new(socket, Interest::READ)?;
            // Connections may have arrived before.
            watch.assume_readable();
            self.watch.get_or_init(|| watch)
        };
        let waiting = watch.reading(Seat::beside_others());
        loop {
            let accepted = poll_fn(|context| {
                watch.poll_read(context, waiting.seat(), || {
                    Ok((reclaiming(|| sys::accept(socket))?, false))
                })
            });
            match accepted.await {
                Err(error) if is_of_one_connection(&error) => {}
                accepted => return accepted,
            }
        }
    }
}

/// Whether accepting failed because of one connection, which ended before it was accepted, see accept(2).
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNABORTED | libc::EPROTO)
    )
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let (Some(watch), Some(socket)) = (self.watch.get(), self.socket.take()) {
            watch.retire(socket.into());
        }
    }
}
