//! From a file to a socket, by sendfile(2). With kernel TLS, the kernel encrypts what it reads.
//!
//! The call reads the file in the thread that makes it. To keep a slow disk from holding up others, it is only made for
//! what is in memory already, as far as the first and the last byte tell. The driver reads the rest.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::copying::{Copying, PIECE_BYTES, is_refusal, refused_or};
use super::ends::{Outlet, Source};
use crate::fs::File;
use crate::sys::{self, Presence};

/// Why nothing was sent.
enum Otherwise {
    /// This piece has to be read from storage.
    ReadPiece,
    /// The file system does not say what is in memory, or the kernel does not send this file.
    ReadAll,
}

pub(super) async fn send(copying: &mut Copying<'_>, file: &File, to: Outlet<'_>) -> io::Result<()> {
    loop {
        let wanted = copying.wanted(PIECE_BYTES);
        let offset = match &copying.source {
            Source::File(source) => source.offset.unwrap_or(0),
            _ => return Ok(()),
        };
        if wanted == 0 {
            return Ok(());
        }
        let waiting = to.writing();
        let sent = poll_fn(|context| {
            to.poll_send_by(context, wanted, |socket| {
                match presence(file.as_fd(), offset, wanted) {
                    Presence::Present => {}
                    Presence::Absent => return Ok(Err(Otherwise::ReadPiece)),
                    Presence::Unknown => return Ok(Err(Otherwise::ReadAll)),
                }
                match sys::send_file(socket, file.as_fd(), offset, wanted) {
                    Err(error) if is_refusal(&error) => Ok(Err(Otherwise::ReadAll)),
                    sent => sent.map(Ok),
                }
            })
        })
        .await;
        drop(waiting);
        match refused_or(sent, Otherwise::ReadAll)? {
            Ok(0) => return Ok(()),
            Ok(count) => copying.count(count),
            Err(Otherwise::ReadPiece) => {
                if copying.piece().await? == 0 {
                    return Ok(());
                }
            }
            Err(Otherwise::ReadAll) => return copying.by_pieces().await,
        }
    }
}

/// Returns what is known about a part of a file.
fn presence(file: BorrowedFd<'_>, offset: u64, count: usize) -> Presence {
    let last = (offset + count as u64 - 1).min(i64::MAX as u64);
    match sys::presence(file, offset) {
        Presence::Present => sys::presence(file, last),
        other => other,
    }
}
