//! Listening sockets of every family.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::{Context, Poll};

use ringloop_driver::Op;
use socket2::Socket;

use crate::source::Operation;

/// A listening socket, and the operation that accepts.
pub(crate) struct Acceptor {
    socket: Socket,
    accepting: RefCell<Option<Operation>>,
}

impl Acceptor {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            accepting: RefCell::new(None),
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Waits for a connection, which does not block.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        let descriptor = poll_fn(|context| self.poll_accept(context)).await?;
        Ok(Socket::from(descriptor))
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        let mut accepting = self.accepting.borrow_mut();
        loop {
            let Some(operation) = accepting.as_ref() else {
                *accepting = Some(Operation::submit(Op::Accept {
                    fd: self.socket.as_raw_fd(),
                    multishot: true,
                })?);
                continue;
            };
            let Some(result) = std::task::ready!(operation.poll_next(context)) else {
                *accepting = None;
                continue;
            };
            match result {
                Ok(descriptor) => {
                    // SAFETY: the driver hands over the descriptor of a new connection, which nobody else has.
                    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
                    return Poll::Ready(Ok(descriptor));
                }
                // Too many were accepted ahead; now they have been taken.
                Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        let Some(operation) = self.accepting.get_mut().take() else {
            return;
        };
        // The kernel's operation holds the socket open: another descriptor of it is closed when that is cancelled. If
        // there is none to be had, the socket ends a turn later.
        if let Ok(socket) = self.socket.try_clone() {
            operation.cancel_and_close(socket.into());
        }
    }
}
