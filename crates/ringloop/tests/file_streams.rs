//! Files as streams, for the traits of tokio and of futures-io, on both backends.

mod common;

use std::fs::{read, remove_file, write};
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, Read, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::Poll;

use ringloop::fs::{File, FileStream, OpenOptions};
use ringloop::net::BufReader;
use ringloop::spawn;
use ringloop::time::timeout;

use common::{LONG, on_both, pattern, poll_times};

/// A path for one test, which is removed with this.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("ringloop-streams-{}-{test}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    async fn stream(&self, options: OpenOptions) -> FileStream {
        options.open(&self.0).await.unwrap().into_stream().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(remove_file(&self.0));
    }
}

fn both_ways() -> OpenOptions {
    OpenOptions::new().read(true).write(true)
}

/// The same for both kinds of traits, whose methods have the same names.
macro_rules! contract {
    ($module:ident: $($path:ident)::+, $close:ident) => {
        mod $module {
            use super::*;
            use ::$($path)::+::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

            #[test]
            fn every_byte_is_written_and_read_in_its_place() {
                let place = Place::new(concat!(stringify!($module), "-bytes"));
                on_both(|runtime| {
                    write(&place.0, "").unwrap();
                    runtime.block_on(async {
                        let bytes = pattern(1_000_003);
                        let mut stream = place.stream(both_ways()).await;
                        stream.write_all(&bytes).await.unwrap();
                        // What was written is read, without a flush.
                        assert_eq!(AsyncSeekExt::seek(&mut stream, SeekFrom::Start(3)).await.unwrap(), 3);
                        let mut some = [0; 10];
                        stream.read_exact(&mut some).await.unwrap();
                        assert_eq!(some, bytes[3..13]);
                        // It has read ahead, and writes where it is all the same.
                        stream.write_all(b"here").await.unwrap();
                        let mut rest = Vec::new();
                        stream.read_to_end(&mut rest).await.unwrap();
                        assert!(rest == bytes[17..]);
                        let to = SeekFrom::Current(-5);
                        assert_eq!(AsyncSeekExt::seek(&mut stream, to).await.unwrap(), 999_998);
                        assert_eq!(stream.seek(SeekFrom::End(-7)).await.unwrap(), 999_996);
                        let pieces = [IoSlice::new(b"end"), IoSlice::new(&[]), IoSlice::new(b"ing!")];
                        assert_eq!(stream.write_vectored(&pieces).await.unwrap(), 7);
                        stream.$close().await.unwrap();
                        let now = read(&place.0).unwrap();
                        assert_eq!(now.len(), bytes.len());
                        assert_eq!(now[..17], [&bytes[..13], b"here"].concat());
                        assert_eq!(now[999_996..], *b"ending!");
                        let before = stream.seek(SeekFrom::Start(4)).await.unwrap();
                        let error = AsyncSeekExt::seek(&mut stream, to).await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidInput);
                        let error = stream.seek(SeekFrom::Start(u64::MAX)).await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidInput);
                        assert_eq!(stream.seek(SeekFrom::Current(0)).await.unwrap(), before);
                        let (result, mut file) = stream.into_inner().await;
                        result.unwrap();
                        assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 4);
                    });
                });
            }

            #[test]
            fn what_is_appended_goes_to_the_end() {
                let place = Place::new(concat!(stringify!($module), "-appended"));
                on_both(|runtime| {
                    write(&place.0, "old ").unwrap();
                    runtime.block_on(async {
                        let options = OpenOptions::new().read(true).append(true);
                        let mut stream = place.stream(options).await;
                        let mut some = [0; 2];
                        stream.read_exact(&mut some).await.unwrap();
                        stream.write_all(b"one ").await.unwrap();
                        let mut other = File::from(
                            std::fs::File::options().append(true).open(&place.0).unwrap(),
                        );
                        AsyncWriteExt::flush(&mut stream).await.unwrap();
                        other.write_all("other ").await.0.unwrap();
                        stream.write_all(b"two").await.unwrap();
                        stream.flush().await.unwrap();
                        assert_eq!(read(&place.0).unwrap(), b"old one other two");
                        assert_eq!(stream.read(&mut some).await.unwrap(), 0);
                    });
                });
            }

            #[test]
            fn an_error_of_a_write_comes_with_the_next_call() {
                on_both(|runtime| {
                    runtime.block_on(async {
                        let file = OpenOptions::new().write(true).open("/dev/full").await.unwrap();
                        let mut stream = file.into_stream().unwrap();
                        assert_eq!(stream.write(b"lost").await.unwrap(), 4);
                        let error = AsyncWriteExt::flush(&mut stream).await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::StorageFull);
                        AsyncWriteExt::flush(&mut stream).await.unwrap();
                        assert_eq!(stream.write(b"lost").await.unwrap(), 4);
                        let error = stream.write(b"more").await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::StorageFull);
                    });
                });
            }

            #[test]
            fn reads_that_were_dropped_lose_nothing() {
                let place = Place::new(concat!(stringify!($module), "-dropped"));
                write(&place.0, pattern(200_000)).unwrap();
                on_both(|runtime| {
                    runtime.block_on(async {
                        let mut stream = place.stream(OpenOptions::new().read(true)).await;
                        let mut seen = Vec::new();
                        for polls in 1.. {
                            let mut buffer = vec![0; 1 + polls % 5000];
                            let reading = stream.read(&mut buffer);
                            match poll_times(polls % 3, reading).await {
                                Some(count) if count.as_ref().unwrap() == &0 => break,
                                Some(count) => seen.extend_from_slice(&buffer[..count.unwrap()]),
                                None => {}
                            }
                        }
                        assert!(seen == pattern(200_000));
                    });
                });
            }
        }
    };
}

contract!(by_tokio: tokio::io, shutdown);
contract!(by_futures: futures_util::io, close);

#[test]
fn pipes_are_streams_in_one_direction_and_have_no_positions() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    on_both(|runtime| {
        runtime.block_on(async {
            let (reader, writer) = std::io::pipe().unwrap();
            let stream = |end| File::from(end).into_stream().unwrap();
            let mut reader = stream(OwnedFd::from(reader));
            let mut writer = stream(OwnedFd::from(writer));
            let error = reader.seek(SeekFrom::Start(0)).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
            let writing = spawn(async move {
                writer.write_all(&pattern(500_000)).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let mut bytes = Vec::new();
            let reading = reader.read_to_end(&mut bytes);
            timeout(LONG, reading).await.unwrap().unwrap();
            assert!(bytes == pattern(500_000));
            writing.await.unwrap();
        });
    });
}

/// The kernel has accepted it as far as the program knows.
#[test]
fn what_was_accepted_is_written_although_the_stream_is_dropped() {
    use tokio::io::AsyncWrite;
    on_both(|runtime| {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let written = runtime.block_on(async {
            let mut stream = File::from(OwnedFd::from(writer)).into_stream().unwrap();
            let mut written = 0;
            // As much as the pipe takes, and a part of which it does not take all.
            let bytes = pattern(64 * 1024);
            poll_fn(|context| {
                loop {
                    match Pin::new(&mut stream).poll_write(context, &bytes) {
                        Poll::Ready(count) => written += count.unwrap(),
                        Poll::Pending => return Poll::Ready(()),
                    }
                }
            })
            .await;
            drop(stream);
            written
        });
        assert!(written > 0);
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            bytes
        });
        common::until_nothing_is_left(runtime);
        let bytes = reading.join().unwrap();
        assert_eq!(bytes.len(), written);
        assert!(
            bytes
                .chunks(64 * 1024)
                .all(|part| part == pattern(64 * 1024))
        );
    });
}

#[test]
fn a_terminal_or_a_socket_is_written_while_a_read_waits() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
            let mut stream = File::from(OwnedFd::from(near)).into_stream().unwrap();
            let mut buffer = [0; 8];
            assert!(poll_times(2, stream.read(&mut buffer)).await.is_none());
            stream.write_all(b"question").await.unwrap();
            AsyncWriteExt::flush(&mut stream).await.unwrap();
            far.read_exact(&mut buffer).unwrap();
            assert_eq!(&buffer, b"question");
            far.write_all(b"answer").unwrap();
            // The read that was dropped has not lost it.
            let count = timeout(LONG, stream.read(&mut buffer)).await.unwrap();
            assert_eq!(&buffer[..count.unwrap()], b"answer");
        });
    });
}

#[test]
fn lines_are_read_without_other_crates() {
    let place = Place::new("lines");
    write(&place.0, "one\r\ntwo\n\nthree").unwrap();
    on_both(|runtime| {
        runtime.block_on(async {
            let stream = place.stream(OpenOptions::new().read(true)).await;
            let mut lines = BufReader::with_capacity(2, stream).lines();
            let mut seen = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                seen.push(line);
            }
            assert_eq!(seen, ["one", "two", "", "three"]);
        });
    });
}
