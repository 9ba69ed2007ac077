//! Sending a file over a socket by sendfile(2).
//!
//! The call reads the file, which may take as long as a disk or a file system in user space does, and the socket may be
//! one that blocks. So it releases the GIL, as `os.sendfile` does.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::released;

/// Bytes sent in one turn, so that a peer that takes all it gets doesn't hold up the others.
const TURN_BYTES: usize = 1 << 20;

/// A file that is being sent. It is kept until `stop` asks how much was sent.
pub(crate) struct FileSending {
    file: RawFd,
    offset: libc::off_t,
    /// Bytes still to send; None for all that the file has.
    left: Option<usize>,
    sent: usize,
    ended: bool,
}

pub(crate) enum Progress {
    Ended,
    /// The socket is full, and reports when it has room again.
    Blocked,
    /// There is more to send, in the next turn.
    TurnOver,
}

impl FileSending {
    /// Sends from `offset` on, `count` bytes or all.
    pub(crate) fn new(file: RawFd, offset: libc::off_t, count: Option<usize>) -> Self {
        Self {
            file,
            offset,
            left: count,
            sent: 0,
            ended: false,
        }
    }

    /// Bytes sent so far.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    pub(crate) fn is_under_way(&self) -> bool {
        !self.ended
    }

    /// Bytes that are still to be sent, if that is known.
    pub(crate) fn unsent(&self) -> usize {
        match self.left {
            Some(left) if !self.ended => left,
            _ => 0,
        }
    }

    /// Sends what the socket takes, within the bounds of a turn. Other threads may run meanwhile, so `socket` is called
    /// right before each system call.
    pub(crate) fn advance(
        &mut self,
        py: Python<'_>,
        socket: impl Fn() -> RawFd,
    ) -> io::Result<Progress> {
        let result = self.send(py, socket);
        self.ended = matches!(result, Ok(Progress::Ended) | Err(_));
        result
    }

    fn send(&mut self, py: Python<'_>, socket: impl Fn() -> RawFd) -> io::Result<Progress> {
        let mut budget = TURN_BYTES;
        loop {
            let count = self.left.map_or(budget, |left| left.min(budget));
            if self.left == Some(0) {
                return Ok(Progress::Ended);
            }
            if count == 0 {
                return Ok(Progress::TurnOver);
            }
            let (socket, file, offset) = (socket(), self.file, &mut self.offset);
            // SAFETY: a system call on descriptor numbers; the offset lives for the call, which moves it on.
            let sent = released(py, || unsafe {
                libc::sendfile(socket, file, offset, count)
            });
            match sent {
                Ok(0) => return Ok(Progress::Ended),
                Ok(sent) => {
                    budget -= sent;
                    self.sent += sent;
                    self.left = self.left.map(|left| left - sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Blocked);
                }
                // Python runs signal handlers between callbacks.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    return Ok(Progress::TurnOver);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
