//! The standard streams: terminals, pipes, sockets, files and devices. Each test has them in a child process.

#![allow(clippy::items_after_statements, reason = "helpers beside their use")]

mod common;

use std::fs::File;
use std::future::Future;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringloop::driver::BackendChoice;
use ringloop::stdio::{stderr, stdin, stdout};
use ringloop::time::timeout;
use ringloop::{Runtime, spawn, yield_now};

use common::{LONG, backends, config, in_child, pattern, poll_times};

/// Forking takes the other threads' descriptors along, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flags(file: &impl AsRawFd) -> i32 {
    // SAFETY: F_GETFL accesses no memory and changes nothing.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
}

/// Runs a future in a child process that has a file as one of its standard streams. The file's flags stay as they are,
/// also while the future runs.
fn with_stream<F: Future<Output = ()>>(
    number: i32,
    file: &impl AsRawFd,
    backend: BackendChoice,
    body: impl FnOnce() -> F,
) {
    let before = flags(file);
    let source = file.as_raw_fd();
    in_child(|| {
        // SAFETY: accesses no memory. The standard streams are nobody's own.
        assert_eq!(unsafe { libc::dup2(source, number) }, number);
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        runtime.block_on(async { timeout(LONG, body()).await.unwrap() });
        drop(runtime);
        true
    });
    assert_eq!(flags(file), before);
}

/// As [`with_stream`], with a file that only the child has.
fn with_own_stream<F: Future<Output = ()>>(
    number: i32,
    backend: BackendChoice,
    make: impl FnOnce() -> (OwnedFd, F),
) {
    in_child(|| {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (file, body) = make();
        // SAFETY: accesses no memory. The standard streams are nobody's own.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        drop(file);
        runtime.block_on(async { timeout(LONG, body).await.unwrap() });
        true
    });
}

/// Closes a standard stream.
fn close(number: i32) {
    // SAFETY: accesses no memory. The standard streams are nobody's own.
    unsafe { libc::close(number) };
}

/// Both sides of a new pseudoterminal: that of the terminal's user, and that of a program in it.
fn terminal() -> (File, File) {
    let (mut user, mut program) = (0, 0);
    // SAFETY: both numbers are valid for writes. The rest may be null.
    let result = unsafe {
        libc::openpty(
            &raw mut user,
            &raw mut program,
            std::ptr::null_mut(),
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    assert_eq!(result, 0);
    // SAFETY: two new descriptors that nobody else owns.
    unsafe { (File::from_raw_fd(user), File::from_raw_fd(program)) }
}

fn pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = |end| File::from(end);
    (file(OwnedFd::from(reader)), file(OwnedFd::from(writer)))
}

fn file(name: &str) -> (PathBuf, File) {
    let path = std::env::temp_dir().join(format!("ringloop-stdio-{name}-{}", std::process::id()));
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    (path, file)
}

fn room() -> Vec<u8> {
    Vec::with_capacity(64)
}

#[test]
fn a_terminal_is_read_by_lines() {
    let _alone = alone();
    for backend in backends() {
        let (user, program) = terminal();
        let mut typist = user.try_clone().unwrap();
        with_stream(0, &program, backend, || async move {
            let mut input = stdin().unwrap();
            assert!(poll_times(4, input.read(room())).await.is_none());
            typist.write_all(b"no line yet").unwrap();
            assert!(poll_times(4, input.read(room())).await.is_none());
            typist.write_all(b"\none\ntwo\n\x04").unwrap();
            // Half of a line, and the rest later.
            let (count, bytes) = input.read(Vec::with_capacity(3)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (3, &b"no "[..]));
            assert_eq!(input.read(room()).await.1, b"line yet\n");
            assert_eq!(input.next_line().await.unwrap().as_deref(), Some("one"));
            assert_eq!(input.next_line().await.unwrap().as_deref(), Some("two"));
            assert_eq!(input.next_line().await.unwrap(), None);
            assert!(poll_times(4, input.next_line()).await.is_none());
            // Others may go on with the terminal, which is as it was.
            assert_eq!(flags(&std::io::stdin()) & libc::O_NONBLOCK, 0);
            typist.write_all(b"after the end\n").unwrap();
            let line = input.next_line().await.unwrap();
            assert_eq!(line.as_deref(), Some("after the end"));
        });
    }
}

#[test]
fn a_terminal_is_written_and_others_run_while_it_is_stopped() {
    let _alone = alone();
    for backend in backends() {
        let (mut user, program) = terminal();
        with_stream(1, &program, backend, || async move {
            let mut output = stdout().unwrap();
            output.write_all(&b"hello\n"[..]).await.0.unwrap();
            let mut seen = [0; 7];
            user.read_exact(&mut seen).unwrap();
            assert_eq!(&seen, b"hello\r\n");
            // More than the terminal holds.
            let text = vec![b'x'; 100_000];
            let length = text.len();
            let writing = spawn(async move { output.write_all(&text[..]).await.0 });
            for _ in 0..100 {
                yield_now().await;
            }
            assert!(!writing.is_finished());
            assert_eq!(flags(&std::io::stdout()) & libc::O_NONBLOCK, 0);
            // In a thread of its own, because it waits for what is written here.
            let reading = std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                let mut left = length;
                while left > 0 {
                    left -= user.read(&mut buffer).unwrap();
                }
            });
            writing.await.unwrap().unwrap();
            reading.join().unwrap();
        });
    }
}

/// Without the second opening, as after su(1): the controlling side is never opened again.
#[test]
fn a_terminal_that_is_not_opened_again_is_read_and_written() {
    let _alone = alone();
    for backend in backends() {
        let (user, mut program) = terminal();
        with_stream(0, &user, backend, || async move {
            let mut input = stdin().unwrap();
            assert!(poll_times(4, input.read(room())).await.is_none());
            program.write_all(b"output").unwrap();
            assert_eq!(input.read(room()).await.1, b"output");
            assert!(poll_times(4, input.read(room())).await.is_none());
        });
        let (user, mut program) = terminal();
        with_stream(2, &user, backend, || async move {
            stderr()
                .unwrap()
                .write_all(&b"typed\n"[..])
                .await
                .0
                .unwrap();
            let mut line = [0; 6];
            program.read_exact(&mut line).unwrap();
            assert_eq!(&line, b"typed\n");
        });
    }
}

#[test]
fn a_pipe_is_read_to_its_end() {
    let _alone = alone();
    for backend in backends() {
        with_own_stream(0, backend, || {
            let (reader, mut writer) = pipe();
            let body = async move {
                let mut input = stdin().unwrap();
                assert!(poll_times(4, input.read(room())).await.is_none());
                writer.write_all(b"one\r\ntwo\n\nlast").unwrap();
                assert_eq!(input.next_line().await.unwrap().as_deref(), Some("one"));
                // The rest of what was read ahead.
                let (count, bytes) = input.read(Vec::with_capacity(2)).await;
                assert_eq!((count.unwrap(), &bytes[..]), (2, &b"tw"[..]));
                assert_eq!(input.next_line().await.unwrap().as_deref(), Some("o"));
                assert_eq!(input.next_line().await.unwrap().as_deref(), Some(""));
                assert!(poll_times(4, input.next_line()).await.is_none());
                writer.write_all(b" line\n\xff\nend").unwrap();
                assert_eq!(
                    input.next_line().await.unwrap().as_deref(),
                    Some("last line")
                );
                let error = input.next_line().await.unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
                drop(writer);
                assert_eq!(flags(&std::io::stdin()) & libc::O_NONBLOCK, 0);
                let (count, rest) = input.read_to_end(Vec::new()).await;
                assert_eq!((count.unwrap(), &rest[..]), (3, &b"end"[..]));
                assert_eq!(input.next_line().await.unwrap(), None);
            };
            (reader.into(), body)
        });
    }
}

#[test]
fn a_full_pipe_is_awaited() {
    let _alone = alone();
    for backend in backends() {
        with_own_stream(1, backend, || {
            let (mut reader, writer) = pipe();
            let body = async move {
                let mut output = stdout().unwrap();
                let bytes = pattern(300_000);
                let expected = bytes.clone();
                let writing = spawn(async move { output.write_all(&bytes[..]).await.0 });
                for _ in 0..20 {
                    yield_now().await;
                }
                assert!(!writing.is_finished());
                assert_eq!(flags(&std::io::stdout()) & libc::O_NONBLOCK, 0);
                let mut all = vec![0; expected.len()];
                for piece in all.chunks_mut(10_000) {
                    reader.read_exact(piece).unwrap();
                    yield_now().await;
                    yield_now().await;
                }
                assert!(all == expected);
                writing.await.unwrap().unwrap();
                drop(reader);
                let error = stdout().unwrap().write_all(&b"x"[..]).await.0.unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
            };
            (writer.into(), body)
        });
    }
}

#[test]
fn a_socket_is_read_and_written() {
    let _alone = alone();
    for backend in backends() {
        let (near, mut far) = UnixStream::pair().unwrap();
        with_stream(0, &near, backend, || async move {
            let mut input = stdin().unwrap();
            assert!(poll_times(4, input.read(room())).await.is_none());
            far.write_all(b"hello\n").unwrap();
            assert_eq!(input.next_line().await.unwrap().as_deref(), Some("hello"));
            assert_eq!(flags(&std::io::stdin()) & libc::O_NONBLOCK, 0);
        });
        let (near, mut far) = UnixStream::pair().unwrap();
        with_stream(1, &near, backend, || async move {
            stdout().unwrap().write_all(&b"hello"[..]).await.0.unwrap();
            let mut bytes = [0; 5];
            far.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
        });
    }
}

/// The position belongs to all who share the file, such as the shell that runs the next program.
#[test]
fn a_file_is_read_and_written_where_others_left_off() {
    let _alone = alone();
    for backend in backends() {
        let (path, mut shared) = file("read");
        shared.write_all(b"skipped\none\ntwo\nthree").unwrap();
        shared.seek(std::io::SeekFrom::Start(8)).unwrap();
        with_stream(0, &shared, backend, || async move {
            let mut input = stdin().unwrap();
            let (count, bytes) = input.read(Vec::with_capacity(4)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"one\n"[..]));
            // What is dropped is not read.
            assert!(poll_times(1, input.read(room())).await.is_none());
        });
        assert_eq!(shared.stream_position().unwrap(), 12);
        with_stream(0, &shared, backend, || async move {
            let mut input = stdin().unwrap();
            assert_eq!(input.next_line().await.unwrap().as_deref(), Some("two"));
            assert_eq!(input.next_line().await.unwrap().as_deref(), Some("three"));
            assert_eq!(input.next_line().await.unwrap(), None);
        });
        std::fs::remove_file(path).unwrap();

        let (path, mut shared) = file("write");
        shared.write_all(b"begin ").unwrap();
        let mut other = shared.try_clone().unwrap();
        with_stream(1, &shared, backend, || async move {
            let mut output = stdout().unwrap();
            output.write_all(&b"one "[..]).await.0.unwrap();
            other.write_all(b"other ").unwrap();
            output.write_all(&b"two"[..]).await.0.unwrap();
        });
        assert_eq!(std::fs::read(&path).unwrap(), b"begin one other two");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn nothing_is_read_from_dev_null_and_everything_written() {
    let _alone = alone();
    for backend in backends() {
        let null = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .unwrap();
        with_stream(0, &null, backend, || async {
            let mut input = stdin().unwrap();
            assert_eq!(input.next_line().await.unwrap(), None);
            assert_eq!(input.read(room()).await.0.unwrap(), 0);
        });
        with_stream(2, &null, backend, || async {
            let mut output = stderr().unwrap();
            output.write_all(&vec![7; 1_000_000][..]).await.0.unwrap();
            assert_eq!(output.write(&b""[..]).await.0.unwrap(), 0);
        });
        let full = File::options().write(true).open("/dev/full").unwrap();
        with_stream(1, &full, backend, || async {
            let error = stdout().unwrap().write_all(&b"x"[..]).await.0.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        });
    }
}

#[test]
fn a_stream_that_is_closed_is_an_error() {
    let _alone = alone();
    for backend in backends() {
        in_child(|| {
            let mut runtime = Runtime::new(&config(backend)).unwrap();
            runtime.block_on(async {
                for number in 0..3 {
                    close(number);
                }
                let errors = [
                    stdin().err().unwrap(),
                    stdout().err().unwrap(),
                    stderr().err().unwrap(),
                ];
                errors
                    .iter()
                    .all(|error| error.raw_os_error() == Some(libc::EBADF))
            })
        });
    }
}
