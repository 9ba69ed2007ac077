//! Standard input.

#![allow(unsafe_code)]

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringloop_driver::Interest;

use crate::budget;
use crate::buffer::{read_to_end, spare};
use crate::fs::File;
use crate::net::ReadBuffer;
use crate::source::{Seat, Source, reclaiming};
use crate::sys::transfer::read_now;

/// The number of bytes that are read at a time for lines, and from files.
const PIECE: usize = 16 * 1024;

/// The standard input of this process; created by [`stdin`](super::stdin).
///
/// Dropping a future loses nothing: what was not returned is read by the next one. Nothing is read unless it is asked for,
/// except that [`next_line`](Self::next_line) reads ahead, for this value.
pub struct Stdin {
    input: Input,
    /// Read ahead for lines, and not yet returned.
    ahead: Vec<u8>,
}

enum Input {
    /// With readiness.
    Watched(Source<OwnedFd>),
    /// Always ready: a file, or a device such as `/dev/null`.
    File(File),
}

impl Stdin {
    pub(super) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let file = std::fs::File::from(descriptor);
        // The watch is on the file, so its number need not be kept.
        let input = match Source::new(
            reclaiming(|| file.as_fd().try_clone_to_owned())?,
            Interest::READ,
        ) {
            Ok(source) => Input::Watched(source),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                Input::File(File::from(file))
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            input,
            ahead: Vec::new(),
        })
    }

    /// Reads what is there, once, and appends it to the buffer, as far as that has room; the buffer never grows. A count of
    /// 0 means that the input has ended, or that the buffer had no room. A terminal gives a line at a time, unless it is in
    /// raw mode, and may be read further after its end (Ctrl-D).
    ///
    /// # Errors
    /// Returns the errors of read(2).
    pub async fn read<B: ReadBuffer>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        if buffer.room() == 0 {
            return (Ok(0), buffer);
        }
        if !self.ahead.is_empty() {
            budget::consume().await;
            let room = spare(&mut buffer).len();
            let count = self.ahead.len().min(room);
            buffer.put_slice(&self.ahead[..count]);
            self.ahead.drain(..count);
            return (Ok(count), buffer);
        }
        let result = self.input.read(&mut buffer).await;
        (result, buffer)
    }

    /// Reads everything to the end, and appends it to the buffer, which grows as needed. Returns how much was read.
    ///
    /// # Errors
    /// Returns the errors of read(2). The buffer contains what was read before.
    pub async fn read_to_end(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        read_to_end(buffer, PIECE, async |buffer| self.read(buffer).await).await
    }

    /// Reads a line, and returns it without its end (`\n` or `\r\n`). The last line need not have one. `None` is the end of
    /// the input.
    ///
    /// # Errors
    /// Returns `InvalidData` for a line that is not UTF-8, which is then skipped, and the errors of read(2).
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        budget::consume().await;
        let mut searched = 0;
        loop {
            let rest = &self.ahead[searched..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.ahead.drain(..=searched + end).collect();
                return text(line).map(Some);
            }
            searched = self.ahead.len();
            self.ahead.reserve(PIECE);
            let ahead = &mut self.ahead;
            if self.input.read(ahead).await? == 0 {
                return match std::mem::take(&mut self.ahead) {
                    last if last.is_empty() => Ok(None),
                    last => text(last).map(Some),
                };
            }
        }
    }
}

/// A line without its end.
fn text(mut line: Vec<u8>) -> io::Result<String> {
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Input {
    /// Reads once into a buffer that has room.
    async fn read(&mut self, buffer: &mut impl ReadBuffer) -> io::Result<usize> {
        match self {
            Input::Watched(source) => {
                let waiting = source.reading(Seat::alone());
                poll_fn(|context| {
                    source.poll_read(context, waiting.seat(), |descriptor| {
                        // SAFETY: the bytes are only written: reading reads nothing from them.
                        let room = unsafe { spare(buffer).as_uninit_slice_mut() };
                        let count = read_now(descriptor.as_fd(), room)?;
                        // SAFETY: the kernel has filled that many bytes of the piece.
                        unsafe { buffer.advance_mut(count) };
                        // A terminal ends a read at the end of a line.
                        Ok((count, false))
                    })
                })
                .await
            }
            Input::File(file) => {
                let room = spare(buffer).len().min(PIECE);
                let mut piece = Vec::new();
                piece.reserve_exact(room);
                let (count, mut piece) = file.read(piece).await;
                piece.truncate(room);
                buffer.put_slice(&piece);
                count
            }
        }
    }
}

impl AsFd for Stdin {
    /// A duplicate of descriptor 0, or for a terminal one of its own.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.input {
            Input::Watched(source) => source.get().as_fd(),
            Input::File(file) => file.as_fd(),
        }
    }
}

impl fmt::Debug for Stdin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stdin").finish_non_exhaustive()
    }
}
