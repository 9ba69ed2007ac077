//! From a file to a socket, by sendfile(2).
//!
//! The call reads the file in the thread that makes it. To keep a slow disk from holding up others, it is only made for
//! what is in memory already, as far as the first and the last byte tell. The driver reads the rest.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::copying::{Copying, PIECE_BYTES, is_refusal};
use super::ends::Source;
use crate::fs::File;
use crate::net::stream::Core;
use crate::sys::{self, Presence};

pub(super) async fn send(copying: &mut Copying<'_>, file: &File, to: &Core) -> io::Result<()> {
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
            to.poll_write_by(context, |socket| {
                match presence(file.as_fd(), offset, wanted) {
                    Presence::Present => {
                        sys::send_file(socket, file.as_fd(), offset, wanted).map(Ok)
                    }
                    other => Ok(Err(other)),
                }
            })
        })
        .await;
        drop(waiting);
        match sent {
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(count)) => copying.count(count),
            Ok(Err(Presence::Absent)) => {
                if copying.piece().await? == 0 {
                    return Ok(());
                }
            }
            Ok(Err(_)) => return copying.by_pieces().await,
            Err(error) if is_refusal(&error) => return copying.by_pieces().await,
            Err(error) => return Err(error),
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
