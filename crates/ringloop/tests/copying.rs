//! Copying between files, pipes and connections, on both backends.

mod common;

use std::cell::Cell;
use std::future::Future;
use std::io::{ErrorKind, Read, SeekFrom, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use ringloop::fs::{self, File, OpenOptions};
use ringloop::net::{TcpStream, UnixStream};
use ringloop::time::timeout;
use ringloop::{JoinHandle, Runtime, io, spawn, yield_now};
use socket2::SockRef;

use common::named::Named;
use common::{LONG, config, in_child, on_both, pattern, poll_times, tcp};

/// Runs a body on each backend; it fails instead of hanging.
fn each(body: impl AsyncFn()) {
    on_both(|runtime| limited(runtime, body()));
}

fn limited(runtime: &mut Runtime, body: impl Future<Output = ()>) {
    runtime.block_on(async { timeout(LONG, body).await.unwrap() });
}

/// Receives everything in a task.
macro_rules! receive {
    ($stream:expr) => {{
        let mut stream = $stream;
        spawn(async move {
            let mut all = Vec::new();
            loop {
                all.reserve(64 * 1024);
                let result;
                (result, all) = stream.read(all).await;
                if result.unwrap() == 0 {
                    break all;
                }
            }
        })
    }};
}

/// Sends bytes in a task, and ends the direction.
macro_rules! send {
    ($stream:expr, $bytes:expr) => {{
        let (mut stream, bytes) = ($stream, $bytes);
        spawn(async move {
            for piece in bytes.chunks(70_001) {
                stream.write_all(piece).await.0.unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
            stream
        })
    }};
}

/// Both ends of a pipe.
fn pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (OwnedFd::from(reader).into(), OwnedFd::from(writer).into())
}

/// Makes writing wait often.
fn small(stream: &TcpStream) {
    SockRef::from(stream)
        .set_send_buffer_size(16 << 10)
        .unwrap();
}

#[test]
fn a_file_is_sent() {
    for length in [0, 1, 5000, 128 * 1024, 3_000_001] {
        let contents = pattern(length);
        let named = Named::new(&contents);
        each(async || {
            let (mut near, far) = tcp().await;
            small(&near);
            let received = receive!(far);
            let mut file = named.open().await;
            let count = io::copy(&mut file, &mut near).await.unwrap();
            assert_eq!(count, length as u64);
            assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), count);
            // Nothing is left.
            assert_eq!(io::copy(&mut file, &mut near).await.unwrap(), 0);
            drop(near);
            assert!(received.await.unwrap() == contents);

            let (near, mut far) = UnixStream::pair().unwrap();
            let (_reader, mut writer) = near.into_split();
            far.write_all(&b"unread"[..]).await.0.unwrap();
            let received = receive!(far);
            assert_eq!(
                io::send_file(&file, 0, u64::MAX, &mut writer)
                    .await
                    .unwrap(),
                count
            );
            drop(writer);
            assert!(received.await.unwrap() == contents);
        });
    }
}

#[test]
fn a_part_of_a_file_is_sent() {
    let contents = pattern(1_000_000);
    let named = Named::new(&contents);
    each(async || {
        let mut file = named.open().await;
        file.seek(SeekFrom::Start(700_000)).unwrap();
        let (mut near, far) = tcp().await;
        let received = receive!(far);
        let mut expected = Vec::new();
        for (offset, count) in [
            (0, 10),
            (999_990, 500),
            (300_000, 400_000),
            (5, 0),
            (2_000_000, 9),
        ] {
            let end = (offset + count).min(contents.len());
            let part = contents.get(offset..end).unwrap_or_default();
            let sent = io::send_file(&file, offset as u64, count as u64, &mut near).await;
            assert_eq!(sent.unwrap(), part.len() as u64);
            expected.extend_from_slice(part);
        }
        assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 700_000);
        // From the position, with a limit.
        assert_eq!(
            io::copy_up_to(&mut file, &mut near, 200_000).await.unwrap(),
            200_000
        );
        assert_eq!(io::copy_up_to(&mut file, &mut near, 0).await.unwrap(), 0);
        assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 900_000);
        expected.extend_from_slice(&contents[700_000..900_000]);

        let far_away = io::send_file(&file, u64::MAX, 1, &mut near)
            .await
            .unwrap_err();
        assert_eq!(far_away.kind(), ErrorKind::InvalidInput);
        let (reader, _writer) = pipe();
        let no_offsets = io::send_file(&reader, 0, 1, &mut near).await.unwrap_err();
        assert_eq!(no_offsets.raw_os_error(), Some(libc::ESPIPE));
        drop(near);
        assert!(received.await.unwrap() == expected);
    });
}

/// Files in memory only, files of which the kernel sends nothing, and what is no regular file.
#[test]
fn a_file_that_cannot_be_sent_is_read() {
    each(async || {
        for path in [
            "/proc/self/cmdline",
            "/proc/self/environ",
            "/proc/self/status",
        ] {
            let (mut near, far) = tcp().await;
            let received = receive!(far);
            let mut file = File::open(path).await.unwrap();
            let count = io::copy(&mut file, &mut near).await.unwrap();
            drop(near);
            let received = received.await.unwrap();
            assert_eq!(received.len() as u64, count);
            if !path.ends_with("status") {
                assert!(received == std::fs::read(path).unwrap());
            }
        }
        let (mut near, far) = tcp().await;
        let received = receive!(far);
        let mut zeroes = File::open("/dev/zero").await.unwrap();
        let count = io::copy_up_to(&mut zeroes, &mut near, 300_000)
            .await
            .unwrap();
        drop(near);
        assert!(received.await.unwrap() == vec![0; count as usize]);
        let mut directory = File::open("/").await.unwrap();
        let (mut near, _far) = tcp().await;
        let error = io::copy(&mut directory, &mut near).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    });
}

/// More than the kernel buffers.
const LARGE: usize = 20_000_000;

#[test]
fn a_peer_that_reads_slowly_blocks_nobody() {
    let contents = pattern(LARGE);
    let named = Named::new(&contents);
    each(async || {
        let (mut near, mut far) = tcp().await;
        let mut file = named.open().await;
        let is_sent = Rc::new(Cell::new(false));
        let sent = Rc::clone(&is_sent);
        let sending = spawn(async move {
            io::copy(&mut file, &mut near).await.unwrap();
            sent.set(true);
        });
        // It waits as long as nobody reads, and this task goes on.
        for _ in 0..200 {
            yield_now().await;
        }
        assert!(!is_sent.get());
        let mut received = Vec::with_capacity(LARGE);
        while received.len() < LARGE {
            let result;
            (result, received) = far.read(received).await;
            assert!(result.unwrap() > 0);
        }
        sending.await.unwrap();
        assert!(received == contents);
    });
}

/// Sends a file to a peer that begins to read when the file has been changed.
async fn change(named: &Named, change: impl FnOnce(&std::fs::File)) -> (u64, Vec<u8>) {
    let (mut near, far) = tcp().await;
    let mut file = named.open().await;
    let sending: JoinHandle<u64> =
        spawn(async move { io::copy(&mut file, &mut near).await.unwrap() });
    for _ in 0..50 {
        yield_now().await;
    }
    change(
        &std::fs::File::options()
            .append(true)
            .open(&named.0)
            .unwrap(),
    );
    let received = receive!(far).await.unwrap();
    (sending.await.unwrap(), received)
}

#[test]
fn a_file_that_grows_is_sent_to_its_new_end() {
    let contents = pattern(LARGE);
    on_both(|runtime| {
        let named = Named::new(&contents);
        limited(runtime, async {
            let (count, received) = change(&named, |mut file| {
                file.write_all(b"something more").unwrap();
            })
            .await;
            assert_eq!(count as usize, LARGE + 14);
            assert!(received[..LARGE] == contents);
            assert_eq!(received[LARGE..], *b"something more");
        });
    });
}

#[test]
fn a_file_that_shrinks_is_sent_as_far_as_it_goes() {
    let contents = pattern(LARGE);
    on_both(|runtime| {
        let named = Named::new(&contents);
        limited(runtime, async {
            let (count, received) = change(&named, |file| file.set_len(100_000).unwrap()).await;
            assert_eq!(received.len() as u64, count);
            assert!(count < LARGE as u64 && received[..100_000] == contents[..100_000]);
            // What was on its way to the peer when it went is what it was, or zeroes.
            let on_its_way = received.iter().zip(&contents);
            assert!(
                on_its_way
                    .skip(100_000)
                    .all(|(byte, old)| byte == old || *byte == 0)
            );
        });
    });
}

#[test]
fn a_peer_that_goes_is_an_error() {
    let named = Named::new(&pattern(LARGE));
    each(async || {
        let (mut near, far) = tcp().await;
        let mut file = named.open().await;
        let sending = spawn(async move {
            let error = io::copy(&mut file, &mut near).await.unwrap_err();
            (error.kind(), file.seek(SeekFrom::Current(0)).unwrap())
        });
        for _ in 0..10 {
            yield_now().await;
        }
        drop(far);
        let (kind, position) = sending.await.unwrap();
        assert!(matches!(
            kind,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ));
        assert!(position < LARGE as u64);
    });
}

/// A program may have given SIGPIPE its default action again.
#[test]
fn a_peer_that_is_gone_does_not_end_the_process() {
    for backend in common::backends() {
        let named = Named::new(&pattern(1000));
        in_child(|| {
            // SAFETY: the default action is no function of ours.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let mut runtime = Runtime::new(&config(backend)).unwrap();
            runtime.block_on(async {
                let mut file = named.open().await;
                let (mut near, far) = UnixStream::pair().unwrap();
                drop(far);
                // A turn later, it is closed.
                yield_now().await;
                let gone = io::copy(&mut file, &mut near).await.unwrap_err();
                let (reader, writer) = pipe();
                drop(reader);
                let (mut sender, mut near) = UnixStream::pair().unwrap();
                sender.write_all(&b"bytes"[..]).await.0.unwrap();
                let mut writer = writer;
                let no_reader = io::copy(&mut near, &mut writer).await.unwrap_err();
                gone.kind() == ErrorKind::BrokenPipe && no_reader.kind() == ErrorKind::BrokenPipe
            })
        });
    }
}

/// A call may have sent some of the bytes when the peer goes: it succeeds, and has raised the signal all the same.
#[test]
fn a_peer_that_goes_in_the_middle_of_a_file_does_not_end_the_process() {
    let named = Named::new(&pattern(LARGE));
    for backend in common::backends() {
        in_child(|| {
            // SAFETY: the default action is no function of ours.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let mut runtime = Runtime::new(&config(backend)).unwrap();
            runtime.block_on(async {
                let mut failed = 0;
                for round in 0..200 {
                    let file = named.open().await;
                    let (mut near, far) = UnixStream::pair().unwrap();
                    let mut far = std::os::unix::net::UnixStream::from(OwnedFd::from(
                        far.into_std().unwrap(),
                    ));
                    far.set_nonblocking(false).unwrap();
                    let leaving = std::thread::spawn(move || {
                        let mut room = vec![0; 64 << 10];
                        for _ in 0..round % 40 {
                            drop(far.read(&mut room));
                        }
                    });
                    failed +=
                        u32::from(io::send_file(&file, 0, u64::MAX, &mut near).await.is_err());
                    leaving.join().unwrap();
                }
                failed > 0
            })
        });
    }
}

/// The future is dropped again and again, and the file's position says what was sent.
#[test]
fn a_copy_that_is_dropped_is_continued() {
    let contents = pattern(3_000_000);
    let named = Named::new(&contents);
    each(async || {
        let (mut near, far) = tcp().await;
        small(&near);
        let received = receive!(far);
        let mut file = named.open().await;
        let mut polls = 1;
        while poll_times(polls, io::copy(&mut file, &mut near))
            .await
            .is_none()
        {
            polls += 1;
        }
        drop(near);
        assert!(received.await.unwrap() == contents);
    });
}

/// Copies between two pairs of connections, from one end to the other.
macro_rules! relay {
    ($pair:expr, $length:expr, $limit:expr) => {{
        let ((near, mut middle), (mut other, far)) = ($pair, $pair);
        let contents = pattern($length);
        let expected = contents[..contents.len().min($limit)].to_vec();
        let sending = send!(near, contents);
        let receiving = receive!(far);
        let count = if $limit == usize::MAX {
            io::copy(&mut middle, &mut other).await.unwrap()
        } else {
            io::copy_up_to(&mut middle, &mut other, $limit as u64)
                .await
                .unwrap()
        };
        assert_eq!(count, expected.len() as u64);
        other.shutdown(Shutdown::Write).unwrap();
        assert!(receiving.await.unwrap() == expected);
        // What is beyond the limit is still there.
        let rest = receive!(middle).await.unwrap();
        assert!(rest.len() == $length - expected.len());
        drop(sending.await.unwrap());
    }};
}

#[test]
fn connections_are_joined() {
    for length in [0, 1, 1000, 100_000, 5_000_000] {
        each(async || {
            relay!(tcp().await, length, usize::MAX);
            relay!(UnixStream::pair().unwrap(), length, usize::MAX);
            relay!(tcp().await, length, 2_345_678);
            relay!(UnixStream::pair().unwrap(), length, 70_000);
        });
    }
}

#[test]
fn urgent_data_holds_nothing_up() {
    each(async || {
        let ((mut near, mut middle), (mut other, far)) = (tcp().await, tcp().await);
        let receiving = receive!(far);
        let contents = pattern(1_000_000);
        let bytes = contents.clone();
        let sending = spawn(async move {
            let (before, after) = bytes.split_at(600_000);
            near.write_all(before).await.0.unwrap();
            SockRef::from(&near).send_out_of_band(b"!").unwrap();
            near.write_all(after).await.0.unwrap();
        });
        assert_eq!(io::copy(&mut middle, &mut other).await.unwrap(), 1_000_000);
        drop(other);
        sending.await.unwrap();
        assert!(receiving.await.unwrap() == contents);

        // To a pipe.
        let (mut near, mut middle) = tcp().await;
        let (reader, mut writer) = pipe();
        near.write_all(&b"before"[..]).await.0.unwrap();
        SockRef::from(&near).send_out_of_band(b"!").unwrap();
        near.write_all(&b"after"[..]).await.0.unwrap();
        drop(near);
        assert_eq!(io::copy(&mut middle, &mut writer).await.unwrap(), 11);
        drop(writer);
        let mut reader = reader;
        assert_eq!(reader.read_to_end(Vec::new()).await.1, b"beforeafter");
    });
}

#[test]
fn pipes_are_copied() {
    let contents = pattern(1_500_000);
    each(async || {
        // From a pipe whose writer is slow, and whose reader is blocking.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let bytes = contents.clone();
        let thread = std::thread::spawn(move || {
            for piece in bytes.chunks(100_000) {
                std::thread::yield_now();
                writer.write_all(piece).unwrap();
            }
        });
        let (mut near, far) = tcp().await;
        small(&near);
        let received = receive!(far);
        let mut reader = File::from(OwnedFd::from(reader));
        assert_eq!(
            io::copy_up_to(&mut reader, &mut near, 10).await.unwrap(),
            10
        );
        assert_eq!(io::copy(&mut reader, &mut near).await.unwrap(), 1_499_990);
        drop(near);
        assert!(received.await.unwrap() == contents);
        thread.join().unwrap();

        // To a pipe whose reader is slow.
        let (mut reader, writer) = std::io::pipe().unwrap();
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        let (near, mut far) = tcp().await;
        let sending = send!(near, contents.clone());
        let mut writer = File::from(OwnedFd::from(writer));
        assert_eq!(io::copy_up_to(&mut far, &mut writer, 10).await.unwrap(), 10);
        assert_eq!(io::copy(&mut far, &mut writer).await.unwrap(), 1_499_990);
        drop((writer, sending.await.unwrap()));
        assert!(thread.join().unwrap() == contents);

        // Between pipes, and a file.
        let named = Named::new(&contents);
        let (mut first_reader, mut first_writer) = pipe();
        let (second_reader, mut second_writer) = pipe();
        let receiving = receive!(second_reader);
        let filling = spawn(async move {
            let mut file = named.open().await;
            io::copy(&mut file, &mut first_writer).await.unwrap()
        });
        let count = io::copy(&mut first_reader, &mut second_writer)
            .await
            .unwrap();
        assert_eq!((count, filling.await.unwrap()), (1_500_000, 1_500_000));
        drop(second_writer);
        assert!(receiving.await.unwrap() == contents);
    });
}

#[test]
fn files_are_filled() {
    let contents = pattern(700_000);
    each(async || {
        let from = Named::new(&contents);
        let to = Named::new(b"start");
        let mut target = OpenOptions::new().append(true).open(&to.0).await.unwrap();
        assert_eq!(
            io::copy(&mut from.open().await, &mut target).await.unwrap(),
            700_000
        );
        let (near, mut far) = tcp().await;
        let sending = send!(near, contents.clone());
        assert_eq!(io::copy(&mut far, &mut target).await.unwrap(), 700_000);
        drop(sending.await.unwrap());
        let expected = [&b"start"[..], &contents, &contents].concat();
        assert!(fs::read(&to.0).await.unwrap() == expected);
    });
}

/// A child after fork(2) has pipes of its own, and so does a process that may open no further files.
#[test]
fn a_child_does_not_use_the_pipes_of_its_parent() {
    for backend in common::backends() {
        let body = async || relay!(UnixStream::pair().unwrap(), 3_000_000, usize::MAX);
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        limited(&mut runtime, body());
        in_child(|| {
            let mut runtime = Runtime::new(&config(backend)).unwrap();
            limited(&mut runtime, body());
            true
        });
        limited(&mut runtime, body());
    }
}

#[test]
fn without_descriptors_bytes_are_copied() {
    for backend in common::backends() {
        in_child(|| {
            let mut runtime = Runtime::new(&config(backend)).unwrap();
            limited(&mut runtime, async {
                let ((near, mut middle), (mut other, far)) =
                    (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
                let (reader, mut writer) = pipe();
                let (mut from, mut to) = UnixStream::pair().unwrap();
                let mut kept = Vec::new();
                rlimit::setrlimit(rlimit::Resource::NOFILE, 256, 256).unwrap();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    kept.push(file);
                }
                let contents = pattern(3_000_000);
                let sending = send!(near, contents.clone());
                let receiving = receive!(far);
                assert_eq!(io::copy(&mut middle, &mut other).await.unwrap(), 3_000_000);
                drop((other, sending.await.unwrap()));
                assert!(receiving.await.unwrap() == contents);

                from.write_all(&b"bytes"[..]).await.0.unwrap();
                from.shutdown(Shutdown::Write).unwrap();
                assert_eq!(io::copy(&mut to, &mut writer).await.unwrap(), 5);
                drop(writer);
                let mut reader = reader;
                assert_eq!(io::copy(&mut reader, &mut to).await.unwrap(), 5);
            });
            true
        });
    }
}
