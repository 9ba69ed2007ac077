//! Files: operations that own their buffers and descriptors while the kernel works.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bytes::{BufMut, Bytes, BytesMut};
use ringloop::fs::{self, File, OpenOptions};
use ringloop::net::BufReader;
use ringloop::{spawn, yield_now};

use crate::common::{pattern, poll_times};
use crate::cut::at_every_poll;
use crate::memory::{MARKED, buffer};

/// A folder for one test, which is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("ringloop-cancellation-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn filled(byte: u8) -> Vec<u8> {
    let mut bytes = buffer();
    bytes.resize(MARKED, byte);
    bytes
}

#[test]
fn opening_and_asking() {
    let folder = Folder::new("opening");
    let path = folder.file();
    std::fs::write(&path, "text").unwrap();
    at_every_poll(async |cut| {
        let whole = async {
            for _ in 0..3 {
                assert_eq!(fs::metadata(&path).await.unwrap().len(), 4);
                assert!(!fs::symlink_metadata(&path).await.unwrap().is_symlink());
                let file = File::open(&path).await.unwrap();
                assert_eq!(file.metadata().await.unwrap().len(), 4);
                file.sync_all().await.unwrap();
                file.sync_data().await.unwrap();
                let missing = File::open(path.join("missing")).await.unwrap_err();
                assert_eq!(missing.raw_os_error(), Some(libc::ENOTDIR));
            }
        };
        cut.run(whole).await;
        assert_eq!(fs::read(&path).await.unwrap(), b"text");
    });
}

#[test]
fn reading_leaves_the_file_and_the_bytes_as_they_are() {
    let folder = Folder::new("reading");
    let path = folder.file();
    let contents = pattern(3 * MARKED + 5);
    std::fs::write(&path, &contents).unwrap();
    at_every_poll(async |cut| {
        let mut file = File::open(&path).await.unwrap();
        let whole = async {
            for start in [0, 1, MARKED] {
                let (count, bytes) = file.read_at(buffer(), start as u64).await;
                assert_eq!(count.unwrap(), bytes.len());
                assert!(bytes == contents[start..start + bytes.len()]);
            }
            let (count, bytes) = file.read_to_end_at(buffer(), 7).await;
            assert_eq!(count.unwrap(), contents.len() - 7);
            assert!(bytes == contents[7..]);
            let (count, bytes) = file.read_to_end(buffer()).await;
            assert_eq!(count.unwrap(), contents.len());
            assert!(bytes == contents);
        };
        cut.run(whole).await;
        // A read that was dropped may still be moving the file's position: others have to say where they read.
        let (count, bytes) = file.read_at(buffer(), 3).await;
        assert!(count.unwrap() > 0 && bytes == contents[3..3 + bytes.len()]);
        assert!(fs::read(&path).await.unwrap() == contents);
    });
}

/// Of several writes in one future, those that were reported are in the file, one more may be, and the rest is not.
#[test]
fn writing_is_done_or_not() {
    let folder = Folder::new("writing");
    let path = folder.file();
    at_every_poll(async |cut| {
        let old = vec![b'-'; 4 * MARKED];
        std::fs::write(&path, &old).unwrap();
        let file = OpenOptions::new().write(true).open(&path).await.unwrap();
        let written = std::cell::Cell::new(0);
        let whole = async {
            for index in 0..4 {
                let start = (index * MARKED) as u64;
                let bytes = filled(b'0' + index as u8);
                if index % 2 == 0 {
                    file.write_all_at(bytes, start).await.0.unwrap();
                } else {
                    let (count, bytes) = file.write_at(bytes, start).await;
                    let (count, mut rest) = (count.unwrap(), buffer());
                    rest.extend_from_slice(&bytes[count..]);
                    let start = start + count as u64;
                    file.write_all_at(rest, start).await.0.unwrap();
                }
                written.set(index + 1);
            }
        };
        cut.run(whole).await;
        // What is in flight ends before a sync of the same file, or has been taken back.
        file.sync_all().await.unwrap();
        drop(file);
        let now = std::fs::read(&path).unwrap();
        assert_eq!(now.len(), old.len());
        for (index, chunk) in now.chunks(MARKED).enumerate() {
            let is_new = chunk.iter().all(|byte| *byte == b'0' + index as u8);
            let is_old = chunk.iter().all(|byte| *byte == b'-');
            if index < written.get() {
                assert!(is_new, "what was reported as written is not there");
            } else if index > written.get() {
                assert!(is_old, "something was written before it was asked for");
            }
        }
    });
}

#[test]
fn making_a_file_whole() {
    let folder = Folder::new("making");
    let path = folder.file();
    at_every_poll(async |cut| {
        std::fs::write(&path, "old").unwrap();
        let is_over = cut.run(fs::write(&path, filled(b'n'))).await.is_some();
        let now = std::fs::read(&path).unwrap();
        if is_over {
            assert!(now == vec![b'n'; MARKED]);
        } else {
            // It is opened, and thereby emptied, and then written.
            assert!(now == b"old" || now.iter().all(|byte| *byte == b'n'));
        }
    });
}

/// Buffers of other types, and a stream, which has its own.
#[test]
fn buffers_of_other_types() {
    let folder = Folder::new("others");
    let path = folder.file();
    let contents = pattern(MARKED + 5);
    std::fs::write(&path, &contents).unwrap();
    at_every_poll(async |cut| {
        let options = OpenOptions::new().read(true).write(true);
        let file = options.open(&path).await.unwrap();
        let whole = async {
            let (count, bytes) = file.read_at(BytesMut::with_capacity(MARKED), 5).await;
            assert_eq!(count.unwrap(), bytes.len());
            assert!(bytes == contents[5..5 + bytes.len()]);
            let (count, bytes) = file.read_at(buffer().limit(100), 1).await;
            assert_eq!(count.unwrap(), 100);
            assert!(bytes.into_inner() == contents[1..101]);
            let mut bytes = buffer();
            bytes.extend_from_slice(&contents[..MARKED]);
            let (result, bytes) = file.write_all_at(Bytes::from(bytes), 0).await;
            result.unwrap();
            assert!(bytes == contents[..MARKED]);
            let mut lines = BufReader::with_capacity(
                MARKED,
                File::open(&path).await.unwrap().into_stream().unwrap(),
            );
            let mut read = buffer();
            while read.len() < contents.len() {
                let bytes = lines.fill_buf().await.unwrap();
                assert!(!bytes.is_empty());
                let count = bytes.len();
                read.extend_from_slice(bytes);
                lines.consume(count);
            }
            assert!(read == contents);
        };
        cut.run(whole).await;
        file.sync_all().await.unwrap();
        assert!(std::fs::read(&path).unwrap() == contents);
    });
}

/// A file is closed whether or not closing is awaited, even during a write to it that was dropped.
#[test]
fn closing() {
    let folder = Folder::new("closing");
    let path = folder.file();
    at_every_poll(async |cut| {
        std::fs::write(&path, "old").unwrap();
        let whole = async {
            for times in 0..3 {
                let mut file = File::create(&path).await.unwrap();
                file.write_all(filled(b'n')).await.0.unwrap();
                let writing = file.write_at(filled(b'n'), MARKED as u64);
                let is_written = poll_times(times, writing).await.is_some();
                match file.close().await {
                    Ok(()) => {}
                    Err(error) => {
                        assert!(!is_written);
                        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
                    }
                }
            }
        };
        cut.run(whole).await;
        let now = std::fs::read(&path).unwrap();
        assert!(now == b"old" || now.iter().all(|byte| *byte == b'n'));
    });
}

/// A dropped read may lose what it takes from a pipe, but not the descriptor and the buffer.
#[test]
fn reading_and_writing_a_pipe() {
    at_every_poll(async |cut| {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut reader = File::from(OwnedFd::from(reader));
        let mut writer = File::from(OwnedFd::from(writer));
        let writing = spawn(async move {
            for _ in 0..5 {
                yield_now().await;
                writer.write_all(b"some bytes".to_vec()).await.0.unwrap();
            }
            writer
        });
        let whole = async {
            let mut count = 0;
            while count < 50 {
                let (result, bytes) = reader.read(buffer()).await;
                assert_eq!(result.unwrap(), bytes.len());
                count += bytes.len();
            }
        };
        cut.run(whole).await;
        drop(writing.await.unwrap());
        loop {
            let (count, bytes) = reader.read(buffer()).await;
            assert!(
                b"some bytes"
                    .repeat(5)
                    .windows(bytes.len().max(1))
                    .any(|part| part == bytes)
                    || bytes.is_empty()
            );
            if count.unwrap() == 0 {
                break;
            }
        }
    });
}

/// Each change that was awaited has happened, the next one may have, and those after it have not.
#[test]
fn changing_names() {
    let folder = Folder::new("names");
    at_every_poll(async |cut| {
        let root = folder.0.join("root");
        drop(std::fs::remove_dir_all(&root));
        let steps = std::cell::Cell::new(0);
        let whole = async {
            fs::create_dir_all(root.join("one/two")).await.unwrap();
            steps.set(1);
            fs::write(root.join("one/file"), "text").await.unwrap();
            steps.set(2);
            fs::rename(root.join("one/file"), root.join("one/two/file"))
                .await
                .unwrap();
            steps.set(3);
            fs::hard_link(root.join("one/two/file"), root.join("link"))
                .await
                .unwrap();
            steps.set(4);
            let mut entries = fs::read_dir(&root).await.unwrap();
            let mut names = Vec::new();
            while let Some(entry) = entries.next_entry().await.unwrap() {
                names.push(entry.file_name().to_owned());
            }
            names.sort();
            assert_eq!(names, ["link", "one"]);
            let file = OpenOptions::new()
                .write(true)
                .open(root.join("link"))
                .await
                .unwrap();
            file.allocate(0, 5000).await.unwrap();
            steps.set(5);
            fs::remove_file(root.join("link")).await.unwrap();
            steps.set(6);
            fs::remove_dir_all(&root).await.unwrap();
            steps.set(7);
        };
        cut.run(whole).await;
        let (steps, is) = (steps.get(), |path: &str| root.join(path).exists());
        assert!(!(1..6).contains(&steps) || is("one/two"));
        assert!(steps != 2 || is("one/file") != is("one/two/file"));
        assert!(!(3..6).contains(&steps) || is("one/two/file"));
        assert!(steps != 4 || is("link"));
        assert!(steps >= 3 || !is("link"));
        assert!(steps < 6 || !is("link"));
        assert!(steps < 7 || !is(""));
        // A call that goes on in a thread is over when the threads are idle: the next scenario starts anew.
        while root.exists() {
            drop(fs::remove_dir_all(&root).await);
        }
    });
}
