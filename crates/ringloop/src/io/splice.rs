//! From a socket to another one, and between sockets and pipes, by splice(2).

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, OwnedFd};

use ringloop_driver::Interest;

use super::copying::{Copying, PIECE_BYTES, is_refusal, refused_or};
use super::ends::Outlet;
use crate::fs::File;
use crate::net::stream::Core;
use crate::source::{Seat, Source};
use crate::sys;

/// From this size of a read on, more is expected, and bytes go through a pipe. Below, copying them is cheaper.
const BULK_BYTES_MIN: usize = 64 * 1024;

/// How much a pipe is to hold. The kernel gives less to users who have many pipes (pipe(7)).
const PIPE_BYTES: usize = 256 * 1024;

/// The maximum number of empty pipes that a thread keeps.
const SPARE_MAX: usize = 8;

/// A pipe of our own, between two sockets.
struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
    /// How many bytes are in it.
    held: usize,
}

/// The empty pipes of a thread, and the process that has made them: a child after fork(2) must not use them.
#[derive(Default)]
struct Spare {
    process: u32,
    pipes: Vec<(PipeReader, PipeWriter)>,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

impl Spare {
    /// Calls a function with those of this process, unless the thread ends.
    fn with<T>(call: impl FnOnce(&mut Vec<(PipeReader, PipeWriter)>) -> T) -> Option<T> {
        SPARE
            .try_with(|spare| {
                let mut spare = spare.borrow_mut();
                let process = std::process::id();
                if spare.process != process {
                    spare.pipes.clear();
                    spare.process = process;
                }
                call(&mut spare.pipes)
            })
            .ok()
    }
}

impl Pipe {
    fn take() -> io::Result<Self> {
        let spare = Spare::with(Vec::pop).flatten();
        let (reader, writer) = spare.map_or_else(Self::make, Ok)?;
        Ok(Self {
            reader,
            writer,
            held: 0,
        })
    }

    fn make() -> io::Result<(PipeReader, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        sys::enlarge_pipe(writer.as_fd(), PIPE_BYTES as i32);
        Ok((reader, writer))
    }

    /// Keeps the pipe for others.
    fn give_back(self) {
        debug_assert!(self.held == 0);
        Spare::with(|pipes| {
            if pipes.len() < SPARE_MAX {
                pipes.push((self.reader, self.writer));
            }
        });
    }
}

/// How a run of splices ended.
enum Run {
    /// There is nothing to splice at the moment, or no more. A splice says so at urgent data, too, so reading decides.
    Dry,
    /// The limit is reached.
    Ended,
    /// The kernel does not splice these sockets.
    Refused,
}

/// The kernel does not splice these files.
struct Refused;

/// Small messages are copied. A pipe is used only while much arrives, so that idle connections hold none.
pub(super) async fn between_sockets(
    copying: &mut Copying<'_>,
    from: &Core,
    to: Outlet<'_>,
) -> io::Result<()> {
    let mut is_refused = false;
    loop {
        let size = copying.piece().await?;
        if size == 0 {
            return Ok(());
        }
        if size < BULK_BYTES_MIN || is_refused {
            continue;
        }
        // Without a descriptor to spare, it is copied.
        let Ok(mut pipe) = Pipe::take() else {
            continue;
        };
        let run = through_pipe(copying, from, to, &mut pipe).await?;
        pipe.give_back();
        match run {
            Run::Dry => {}
            Run::Ended => return Ok(()),
            Run::Refused => is_refused = true,
        }
    }
}

async fn through_pipe(
    copying: &mut Copying<'_>,
    from: &Core,
    to: Outlet<'_>,
    pipe: &mut Pipe,
) -> io::Result<Run> {
    loop {
        let wanted = copying.wanted(PIPE_BYTES);
        if wanted == 0 {
            return Ok(Run::Ended);
        }
        let waiting = from.reading();
        let filled = poll_fn(|context| {
            from.poll_read_by(context, |socket| {
                let filled = match sys::splice(socket, pipe.writer.as_fd(), wanted) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    result => result?,
                };
                // The pipe may have been full.
                Ok((filled, false))
            })
        })
        .await;
        drop(waiting);
        match filled {
            Ok(0) => return Ok(Run::Dry),
            Ok(count) => pipe.held = count,
            Err(error) if is_refusal(&error) => return Ok(Run::Refused),
            Err(error) => return Err(error),
        }
        while pipe.held > 0 {
            let _waiting = to.writing();
            let sent = poll_fn(|context| {
                to.poll_send_by(context, pipe.held, |socket| {
                    match sys::splice(pipe.reader.as_fd(), socket, pipe.held) {
                        Err(error) if is_refusal(&error) => Ok(Err(Refused)),
                        sent => sent.map(Ok),
                    }
                })
            })
            .await;
            match refused_or(sent, Refused)? {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    pipe.held -= count;
                    copying.count(count);
                }
                Err(Refused) => {
                    let buffer = copying.buffer();
                    buffer.clear();
                    buffer.resize(pipe.held, 0);
                    pipe.reader.read_exact(buffer)?;
                    pipe.held = 0;
                    copying.write_buffer().await?;
                    return Ok(Run::Refused);
                }
            }
        }
    }
}

/// An end of somebody's pipe, watched in the current runtime. `None` if there is no descriptor to spare for that.
fn watch(pipe: io::Result<OwnedFd>, interest: Interest) -> Option<Source<OwnedFd>> {
    Source::new(pipe.ok()?, interest).ok()
}

/// Copies from somebody's pipe to a socket.
pub(super) async fn from_pipe(
    copying: &mut Copying<'_>,
    pipe: &File,
    to: Outlet<'_>,
) -> io::Result<()> {
    let Some(pipe) = watch(pipe.as_fd().try_clone_to_owned(), Interest::READ) else {
        return copying.by_pieces().await;
    };
    let result = from_watched(copying, &pipe, to).await;
    // Closed now, and not at the end of the turn: the pipe ends when its last descriptor does.
    drop(pipe.into_inner());
    result
}

async fn from_watched(
    copying: &mut Copying<'_>,
    pipe: &Source<OwnedFd>,
    to: Outlet<'_>,
) -> io::Result<()> {
    /// Why nothing was moved.
    enum Otherwise {
        PipeIsEmpty,
        Refused,
    }
    loop {
        let wanted = copying.wanted(PIECE_BYTES);
        if wanted == 0 {
            return Ok(());
        }
        let waiting = to.writing();
        let moved = poll_fn(|context| {
            to.poll_send_by(context, wanted, |socket| {
                match sys::splice(pipe.get().as_fd(), socket, wanted) {
                    Err(error)
                        if error.kind() == io::ErrorKind::WouldBlock
                            && !sys::is_readable_now(pipe.get().as_fd())? =>
                    {
                        Ok(Err(Otherwise::PipeIsEmpty))
                    }
                    Err(error) if is_refusal(&error) => Ok(Err(Otherwise::Refused)),
                    moved => moved.map(Ok),
                }
            })
        })
        .await;
        drop(waiting);
        match refused_or(moved, Otherwise::Refused)? {
            Ok(0) => return Ok(()),
            Ok(count) => copying.count(count),
            Err(Otherwise::PipeIsEmpty) => {
                let waiting = pipe.reading(Seat::alone());
                poll_fn(|context| {
                    pipe.poll_read(context, waiting.seat(), |pipe| {
                        only_if(sys::is_readable_now(pipe.as_fd())?)
                    })
                })
                .await?;
            }
            Err(Otherwise::Refused) => return copying.by_pieces().await,
        }
    }
}

/// The result of a call that waits until a pipe is ready, and moves nothing.
fn only_if(is_ready: bool) -> io::Result<((), bool)> {
    if is_ready {
        Ok(((), false))
    } else {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Copies from a socket to somebody's pipe.
pub(super) async fn to_pipe(
    copying: &mut Copying<'_>,
    from: &Core,
    pipe: io::Result<OwnedFd>,
) -> io::Result<()> {
    let Some(pipe) = watch(pipe, Interest::WRITE) else {
        return copying.by_pieces().await;
    };
    let result = to_watched(copying, from, &pipe).await;
    // As above.
    drop(pipe.into_inner());
    result
}

async fn to_watched(
    copying: &mut Copying<'_>,
    from: &Core,
    pipe: &Source<OwnedFd>,
) -> io::Result<()> {
    /// The outcome of a splice.
    enum Moved {
        Bytes(usize),
        PipeIsFull,
        /// It is the end, or urgent data, at which a splice ends: reading decides.
        OnlyByReading,
    }
    loop {
        let wanted = copying.wanted(PIECE_BYTES);
        if wanted == 0 {
            return Ok(());
        }
        let waiting = from.reading();
        let moved = poll_fn(|context| {
            from.poll_read_by(context, |socket| {
                let moved = match sys::splice(socket, pipe.get().as_fd(), wanted) {
                    Ok(0) => Moved::OnlyByReading,
                    Ok(count) => Moved::Bytes(count),
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                    Err(_) if !sys::is_writable_now(pipe.get().as_fd())? => Moved::PipeIsFull,
                    Err(_) if sys::is_readable_now(socket)? => Moved::OnlyByReading,
                    Err(error) => return Err(error),
                };
                Ok((moved, false))
            })
        })
        .await;
        drop(waiting);
        match moved {
            Ok(Moved::Bytes(count)) => copying.count(count),
            Ok(Moved::OnlyByReading) => {
                if copying.piece().await? == 0 {
                    return Ok(());
                }
            }
            Ok(Moved::PipeIsFull) => {
                let waiting = pipe.writing(Seat::alone());
                poll_fn(|context| {
                    pipe.poll_write(context, waiting.seat(), |pipe| {
                        only_if(sys::is_writable_now(pipe.as_fd())?)
                    })
                })
                .await?;
            }
            Err(error) if is_refusal(&error) => return copying.by_pieces().await,
            Err(error) => return Err(error),
        }
    }
}
