//! Files that are closed while operations on them are in flight, and whose numbers are reused on purpose. In a process
//! of its own, so that nobody else gets the numbers.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringloop_driver::{Buffer, Bytes, Driver, Op, SharedFd, Token};

use crate::support::{PATIENCE, driver, fill, in_child, on_both_backends, pair, pipe, raw};

on_both_backends!(
    no_operation_meets_another_file_under_its_number,
    a_close_that_is_cancelled_closes_no_other_file,
);

/// Operations that read from a file or write to one.
#[derive(Clone, Copy, Debug)]
enum Kind {
    ReadSocket,
    WriteSocket,
    SendZeroCopy,
    ReadPipe,
    WritePipe,
    WriteFile,
}

use Kind::{ReadPipe, ReadSocket, SendZeroCopy, WriteFile, WritePipe, WriteSocket};

const KINDS: [Kind; 6] = [
    ReadSocket,
    WriteSocket,
    SendZeroCopy,
    ReadPipe,
    WritePipe,
    WriteFile,
];

/// When an operation is abandoned.
#[derive(Clone, Copy, Debug)]
enum When {
    Submitted,
    Flushed,
    Polled,
}

/// How it is abandoned. Its file is closed in each case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Cancelled,
    Discarded,
    /// It continues, and holds its file.
    Forgotten,
}

const BYTES: &[u8] = b"for somebody else";

/// An operation on a file that nobody else holds, and the other ends. All but the last wait.
fn operation(kind: Kind, path: &Path) -> (Op, [OwnedFd; 2]) {
    let (near, far) = pair();
    let (reader, writer) = pipe();
    if matches!(kind, WriteSocket | SendZeroCopy) {
        fill(raw(&near));
    }
    if matches!(kind, WritePipe) {
        // SAFETY: no pointers are involved.
        let room = unsafe { libc::fcntl(raw(&writer), libc::F_GETPIPE_SZ) };
        (&writer).write_all(&vec![1; room as usize]).unwrap();
    }
    let mut others = [
        OwnedFd::from(far),
        OwnedFd::from(File::open("/dev/null").unwrap()),
    ];
    let buffer = Buffer::new(Vec::with_capacity(64));
    let op = match kind {
        ReadSocket => Op::Read {
            fd: SharedFd::new(near),
            buffer,
            offset: None,
        },
        WriteSocket => Op::Write {
            fd: SharedFd::new(near),
            bytes: Bytes::new(BYTES),
            start: 0,
            offset: None,
        },
        SendZeroCopy => Op::SendZeroCopy {
            fd: SharedFd::new(near),
            bytes: Bytes::new(BYTES),
            flags: 0,
        },
        ReadPipe => {
            others[1] = writer.into();
            Op::Read {
                fd: SharedFd::new(reader),
                buffer,
                offset: None,
            }
        }
        WritePipe => {
            others[1] = reader.into();
            Op::Write {
                fd: SharedFd::new(writer),
                bytes: Bytes::new(BYTES),
                start: 0,
                offset: None,
            }
        }
        WriteFile => Op::Write {
            fd: SharedFd::new(File::create(path).unwrap()),
            bytes: Bytes::new(BYTES),
            start: 0,
            offset: Some(0),
        },
    };
    (op, others)
}

/// Files of all kinds. Each has data to read and room to write.
struct Decoys {
    sockets: (UnixStream, UnixStream),
    reader: File,
    _writer: File,
    file: File,
}

impl Decoys {
    /// The file that the operation could damage is opened first, so it gets the lowest free number.
    fn new(kind: Kind, path: &Path) -> Decoys {
        let path = path.with_extension("decoy");
        std::fs::write(&path, "data").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (mut first_pair, mut first_pipe, mut first_file) = (None, None, None);
        match kind {
            ReadPipe | WritePipe => first_pipe = Some(pipe()),
            WriteFile => first_file = Some(open()),
            _ => first_pair = Some(pair()),
        }
        let sockets = first_pair.unwrap_or_else(pair);
        (&sockets.0).write_all(b"data").unwrap();
        (&sockets.1).write_all(b"data").unwrap();
        let (reader, writer) = first_pipe.unwrap_or_else(pipe);
        (&writer).write_all(b"data").unwrap();
        Decoys {
            sockets,
            reader,
            _writer: writer,
            file: first_file.unwrap_or_else(open),
        }
    }

    /// Checks that everything is unchanged.
    fn check(mut self) -> Result<(), String> {
        let mut buffer = [0; 64];
        let (near, far) = &mut self.sockets;
        for end in [near as &mut dyn Read, far, &mut self.reader] {
            let count = end.read(&mut buffer).unwrap();
            if &buffer[..count] != b"data" {
                return Err(format!("another file had {:?}", &buffer[..count]));
            }
        }
        // It was not closed, either.
        let error = self.sockets.0.read(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let count = self.file.read_at(&mut buffer, 0).unwrap();
        if &buffer[..count] != b"data" {
            return Err(format!("another file has {:?}", &buffer[..count]));
        }
        Ok(())
    }
}

/// Polls, and takes the finished operation. Returns whether nothing is in flight any more.
fn turn(driver: &mut Driver, token: Token) -> bool {
    let mut events = Vec::new();
    match driver.poll(Some(Duration::ZERO), &mut events) {
        Err(error) if error.kind() == ErrorKind::Interrupted => {}
        result => result.unwrap(),
    }
    if !events.is_empty() {
        drop(driver.take(token));
    }
    driver.counters().operations == 0
}

/// The file with a number.
fn identity(number: RawFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{number}")).ok()
}

fn meet(driver: &mut Driver, path: &Path, kind: Kind, when: When, how: How) -> Result<(), String> {
    let (op, _others) = operation(kind, path);
    let number = op.fd().unwrap();
    let file = identity(number);
    assert!(file.is_some());
    let token = driver.submit(op).unwrap();
    match when {
        When::Submitted => {}
        When::Flushed => driver.flush().unwrap(),
        When::Polled => {
            turn(driver, token);
        }
    }
    match how {
        How::Cancelled => driver.cancel(token),
        How::Discarded => driver.discard(token),
        How::Forgotten => {}
    }
    // They get the number now if it is free, or later when it is.
    let mut decoys = vec![Decoys::new(kind, path)];
    let start = Instant::now();
    let mut is_over = turn(driver, token);
    decoys.push(Decoys::new(kind, path));
    while how != How::Forgotten && !is_over {
        is_over = turn(driver, token);
        if start.elapsed() > PATIENCE {
            return Err("it does not end".to_owned());
        }
    }
    decoys.push(Decoys::new(kind, path));
    turn(driver, token);
    if how == How::Forgotten && driver.counters().operations > 0 {
        if identity(number) != file {
            return Err("its file was closed under it".to_owned());
        }
        driver.discard(token);
        while !turn(driver, token) {}
    }
    if identity(number) == file {
        return Err("its file stays open".to_owned());
    }
    decoys.into_iter().try_for_each(Decoys::check)
}

fn no_operation_meets_another_file_under_its_number(driver_of: Driver) {
    let choice = driver_of.backend().name().parse().unwrap();
    drop(driver_of);
    in_child(|| {
        let mut driver = driver(choice).ok_or("no driver in the child")?;
        let path = std::env::temp_dir().join(format!("ringloop-numbers-{}", std::process::id()));
        for kind in KINDS {
            for when in [When::Submitted, When::Flushed, When::Polled] {
                for how in [How::Cancelled, How::Discarded, How::Forgotten] {
                    meet(&mut driver, &path, kind, when, how)
                        .map_err(|error| format!("{kind:?} {when:?} {how:?}: {error}"))?;
                }
            }
        }
        drop(std::fs::remove_file(path.with_extension("decoy")));
        drop(std::fs::remove_file(path));
        Ok(())
    });
}

fn a_close_that_is_cancelled_closes_no_other_file(driver_of: Driver) {
    let choice = driver_of.backend().name().parse().unwrap();
    drop(driver_of);
    in_child(|| {
        for when in [When::Submitted, When::Flushed, When::Polled] {
            for how in [How::Cancelled, How::Discarded, How::Forgotten] {
                for is_dropped in [false, true] {
                    let mut driver = driver(choice).ok_or("no driver in the child")?;
                    let (reader, writer) = pipe();
                    let (number, file) = (raw(&writer), identity(raw(&writer)));
                    let fd = Some(writer.into());
                    let token = driver.submit(Op::Close { fd }).unwrap();
                    match when {
                        When::Submitted => {}
                        When::Flushed => driver.flush().unwrap(),
                        When::Polled => {
                            turn(&mut driver, token);
                        }
                    }
                    match how {
                        How::Cancelled => driver.cancel(token),
                        How::Discarded => driver.discard(token),
                        How::Forgotten => {}
                    }
                    let first = pipe();
                    if !is_dropped {
                        while !turn(&mut driver, token) {}
                    }
                    drop(driver);
                    let start = Instant::now();
                    // A thread of the driver may still be working on it.
                    while identity(number) == file {
                        assert!(start.elapsed() < PATIENCE, "it is never closed");
                    }
                    let second = pipe();
                    for (reader, writer) in [&first, &second] {
                        (&*writer)
                            .write_all(b"x")
                            .map_err(|error| format!("{when:?} {how:?}: {error}"))?;
                        (&*reader)
                            .read_exact(&mut [0])
                            .map_err(|error| format!("{when:?} {how:?}: {error}"))?;
                    }
                    drop(reader);
                }
            }
        }
        Ok(())
    });
}
