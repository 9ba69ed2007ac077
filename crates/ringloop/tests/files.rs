//! Files, on both backends.

mod common;

use std::io::{self, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringloop::fs::{self, File, OpenOptions};
use ringloop::time::{sleep, timeout};
use ringloop::{Runtime, spawn, yield_now};

use common::{LONG, on_both, pattern, poll_times};

/// A folder for one test, which is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringloop-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// How many descriptors of this process refer to a path.
fn descriptors_of(path: &Path) -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target == path)
        .count()
}

/// Waits for something that ends by itself.
async fn until_zero(count: impl Fn() -> usize) {
    timeout(LONG, async {
        while count() > 0 {
            sleep(Duration::from_micros(200)).await;
        }
    })
    .await
    .unwrap();
}

fn operations(runtime: &Runtime) -> u64 {
    runtime.metrics().reactor.driver.operations
}

#[test]
fn every_byte_that_is_written_is_read() {
    let folder = Folder::new("bytes");
    on_both(|runtime| {
        let path = folder.file("file");
        runtime.block_on(async {
            let contents = pattern(3_000_001);
            fs::write(&path, contents.clone()).await.unwrap();
            assert!(std::fs::read(&path).unwrap() == contents);
            assert!(fs::read(&path).await.unwrap() == contents);

            let file = File::open(&path).await.unwrap();
            let (count, bytes) = file
                .read_to_end_at(b"before ".to_vec(), 3_000_001 - 5)
                .await;
            assert_eq!(count.unwrap(), 5);
            assert_eq!(bytes[..7], *b"before ");
            assert_eq!(bytes[7..], contents[3_000_001 - 5..]);
            let (count, bytes) = file.read_at(Vec::with_capacity(1000), 4321).await;
            let count = count.unwrap();
            assert!(count > 0 && bytes.len() == count);
            assert_eq!(bytes, contents[4321..4321 + count]);
            let (count, bytes) = file.read_at(Vec::with_capacity(8), 1 << 40).await;
            assert_eq!((count.unwrap(), bytes.len()), (0, 0));
            let (count, bytes) = file.read_at(Vec::new(), 0).await;
            assert_eq!((count.unwrap(), bytes.len()), (0, 0));
            let (refused, bytes) = file.write_at(b"x".to_vec(), 0).await;
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBADF));
            assert_eq!(bytes, b"x", "the buffer comes back with an error");
        });
    });
}

#[test]
fn a_file_has_a_position_and_writes_at_a_place_leave_it() {
    let folder = Folder::new("position");
    on_both(|runtime| {
        let path = folder.file("file");
        drop(std::fs::remove_file(&path));
        runtime.block_on(async {
            let options = OpenOptions::new().read(true).write(true).create_new(true);
            let mut file = options.open(&path).await.unwrap();
            let again = options.open(&path).await.unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            file.write_all(b"hello world".to_vec()).await.0.unwrap();
            let (result, bytes) = file.write_all_at(b"HELLO".to_vec(), 0).await;
            result.unwrap();
            assert_eq!(bytes, b"HELLO");
            let (count, _) = file.write(b"!".to_vec()).await;
            assert_eq!(count.unwrap(), 1);
            assert_eq!(file.seek(SeekFrom::Start(6)).unwrap(), 6);
            let (count, bytes) = file.read(Vec::with_capacity(3)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (3, &b"wor"[..]));
            let (count, bytes) = file.read_to_end(bytes).await;
            assert_eq!((count.unwrap(), &bytes[..]), (3, &b"world!"[..]));
            file.set_len(5).unwrap();
            file.sync_all().await.unwrap();
            file.sync_data().await.unwrap();
            assert_eq!(fs::read_to_string(&path).await.unwrap(), "HELLO");
            let mut log = OpenOptions::new().append(true).open(&path).await.unwrap();
            log.write_all(b" one".to_vec()).await.0.unwrap();
            log.write_all_at(b" two".to_vec(), 0).await.0.unwrap();
            let plain = log.try_into_std().unwrap();
            (&plain).write_all(b" three").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"HELLO one two three");
            std::fs::write(&path, [0xff]).unwrap();
            let error = fs::read_to_string(&path).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        });
    });
}

/// Reading a process's memory ends where nothing is mapped: in the middle of the file.
#[test]
fn a_read_that_fails_in_the_middle_leaves_the_position_behind_what_was_read() {
    const PAGE: usize = 4096;
    const HOLE: usize = 64 << 20;
    // SAFETY: memory of its own, which nobody else looks at, and of which all but the first page is given back at once.
    let start = unsafe {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let start = libc::mmap(std::ptr::null_mut(), PAGE + HOLE, access, kind, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        start.cast::<u8>().write_bytes(7, PAGE);
        // Whatever another thread maps in the hole does not begin where the page ends.
        assert_eq!(libc::munmap(start.byte_add(PAGE), HOLE), 0);
        start
    };
    on_both(|runtime| {
        runtime.block_on(async {
            let mut file = File::open("/proc/self/mem").await.unwrap();
            let place = start.expose_provenance() as u64 + 96;
            file.seek(SeekFrom::Start(place)).unwrap();
            let (result, bytes) = file.read_to_end(Vec::with_capacity(2 * PAGE)).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
            assert_eq!(bytes, [7; 4000]);
            assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), place + 4000);
            let (result, bytes) = file.read(bytes).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
            assert_eq!(bytes.len(), 4000);
            assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), place + 4000);
        });
    });
    // SAFETY: nobody has a reference to it.
    unsafe { libc::munmap(start, PAGE) };
}

#[test]
fn offsets_beyond_the_largest_are_refused_and_the_buffer_comes_back() {
    let folder = Folder::new("offsets");
    on_both(|runtime| {
        let path = folder.file("file");
        runtime.block_on(async {
            fs::write(&path, "contents").await.unwrap();
            let options = OpenOptions::new().read(true).write(true);
            let mut file = options.open(&path).await.unwrap();
            for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64 + 1] {
                let results = [
                    file.read_at(Vec::with_capacity(77), offset).await,
                    file.read_to_end_at(Vec::with_capacity(77), offset).await,
                    file.write_at(Vec::with_capacity(77), offset).await,
                ];
                for (result, buffer) in results {
                    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
                    assert_eq!(buffer.capacity(), 77);
                }
                let (result, buffer) = file.write_all_at(b"x".to_vec(), offset).await;
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
                assert_eq!(buffer, b"x");
            }
            assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 0);
            assert_eq!(fs::read(&path).await.unwrap(), b"contents");
        });
    });
}

#[test]
fn a_pipe_is_read_and_written_without_an_offset_and_refuses_one() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (reader, writer) = io::pipe().unwrap();
            let mut reader = File::from(OwnedFd::from(reader));
            let mut writer = File::from(OwnedFd::from(writer));
            writer.write_all(b"through".to_vec()).await.0.unwrap();
            for offset in [0, 3] {
                let (result, buffer) = reader.read_at(Vec::with_capacity(77), offset).await;
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ESPIPE));
                assert_eq!(buffer.capacity(), 77);
                let (result, buffer) = writer.write_at(b"x".to_vec(), offset).await;
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ESPIPE));
                assert_eq!(buffer, b"x");
            }
            let error = reader.seek(SeekFrom::Start(0)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
            let (count, bytes) = reader.read(Vec::with_capacity(4)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"thro"[..]));
            drop(writer);
            let (count, bytes) = reader.read_to_end(bytes).await;
            assert_eq!((count.unwrap(), &bytes[..]), (3, &b"through"[..]));
            // What has no position is no file, either.
            fs::write("/dev/null", "gone").await.unwrap();
            assert_eq!(fs::read("/dev/null").await.unwrap(), b"");
            let mut zeroes = File::open("/dev/zero").await.unwrap();
            let (count, bytes) = zeroes.read(Vec::with_capacity(16)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (16, &[0; 16][..]));
        });
    });
}

#[test]
fn options_open_as_those_of_the_standard_library() {
    let folder = Folder::new("options");
    on_both(|runtime| {
        let path = folder.file("file");
        runtime.block_on(async {
            for bits in 0..64 {
                let bit = |index: u32| bits & (1 << index) != 0;
                for exists in [false, true] {
                    let prepare = || {
                        drop(std::fs::remove_file(&path));
                        if exists {
                            std::fs::write(&path, "old").unwrap();
                        }
                    };
                    prepare();
                    let theirs = std::fs::OpenOptions::new()
                        .read(bit(0))
                        .write(bit(1))
                        .append(bit(2))
                        .truncate(bit(3))
                        .create(bit(4))
                        .create_new(bit(5))
                        .open(&path);
                    let left = std::fs::read(&path).ok();
                    prepare();
                    let ours = OpenOptions::new()
                        .read(bit(0))
                        .write(bit(1))
                        .append(bit(2))
                        .truncate(bit(3))
                        .create(bit(4))
                        .create_new(bit(5))
                        .open(&path)
                        .await;
                    let case = format!("bits {bits:06b}, exists: {exists}: {ours:?}");
                    assert_eq!(
                        ours.as_ref().map_err(io::Error::kind).err(),
                        theirs.as_ref().map_err(io::Error::kind).err(),
                        "{case}"
                    );
                    assert_eq!(std::fs::read(&path).ok(), left, "{case}");
                    if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                        let flags = |fd| std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
                        let of = |text: io::Result<String>| {
                            let text = text.unwrap();
                            let line = text.lines().find(|line| line.starts_with("flags"));
                            line.unwrap().to_owned()
                        };
                        let ours = ours.try_into_std().unwrap();
                        assert_eq!(
                            of(flags(ours.as_raw_fd())),
                            of(flags(theirs.as_raw_fd())),
                            "{case}"
                        );
                    }
                }
            }
            drop(std::fs::remove_file(&path));
            let options = OpenOptions::new().write(true).create(true).mode(0o600);
            drop(options.open(&path).await.unwrap());
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        });
    });
}

#[test]
fn errors_are_the_systems() {
    let folder = Folder::new("errors");
    on_both(|runtime| {
        runtime.block_on(async {
            let missing = fs::read(folder.file("missing")).await.unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
            let missing = fs::metadata(folder.file("missing")).await.unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
            let folder_read = fs::read(&folder.0).await.unwrap_err();
            assert_eq!(folder_read.kind(), io::ErrorKind::IsADirectory);
            let nowhere = fs::write(folder.file("no/such"), "x").await.unwrap_err();
            assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
            let zero = File::open("a\0b").await.unwrap_err();
            assert_eq!(zero.kind(), io::ErrorKind::InvalidInput);
            let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
            let socket = File::from(OwnedFd::from(near));
            let error = socket
                .read_at(Vec::with_capacity(8), 5)
                .await
                .0
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
            let error = socket.sync_all().await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            // What says no length is read to its end all the same.
            let status = fs::read_to_string("/proc/self/status").await.unwrap();
            assert!(status.starts_with("Name:") && status.ends_with('\n'));
            assert!(fs::read("/proc/self/maps").await.unwrap().len() > 1000);
        });
    });
}

#[test]
fn metadata_is_what_the_standard_library_says() {
    let folder = Folder::new("metadata");
    let path = folder.file("file");
    std::fs::write(&path, "12345").unwrap();
    let old = std::time::UNIX_EPOCH - Duration::from_millis(1500);
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(old)
        .unwrap();
    let link = folder.file("link");
    symlink(&path, &link).unwrap();
    on_both(|runtime| {
        runtime.block_on(async {
            let of_file = File::open(&path).await.unwrap().metadata().await.unwrap();
            let cases = [
                (of_file, std::fs::metadata(&path)),
                (fs::metadata(&link).await.unwrap(), std::fs::metadata(&link)),
                (
                    fs::symlink_metadata(&link).await.unwrap(),
                    std::fs::symlink_metadata(&link),
                ),
                (
                    fs::metadata(&folder.0).await.unwrap(),
                    std::fs::metadata(&folder.0),
                ),
                (
                    fs::metadata("/dev/null").await.unwrap(),
                    std::fs::metadata("/dev/null"),
                ),
            ];
            for (ours, theirs) in cases {
                let theirs = theirs.unwrap();
                assert_eq!(ours.len(), theirs.len(), "{ours:?}");
                assert_eq!(
                    (ours.is_file(), ours.is_dir(), ours.is_symlink()),
                    (theirs.is_file(), theirs.is_dir(), theirs.is_symlink())
                );
                assert_eq!(
                    (ours.mode(), ours.uid(), ours.gid()),
                    (theirs.mode(), theirs.uid(), theirs.gid())
                );
                assert_eq!(
                    (ours.dev(), ours.ino(), ours.nlink()),
                    (theirs.dev(), theirs.ino(), theirs.nlink())
                );
                assert_eq!(ours.permissions(), theirs.permissions());
                assert_eq!(ours.modified(), theirs.modified().unwrap());
                assert_eq!(ours.accessed(), theirs.accessed().unwrap());
                assert_eq!(ours.created().ok(), theirs.created().ok());
            }
        });
    });
}

#[test]
fn many_operations_at_once_each_get_their_own() {
    let folder = Folder::new("many");
    on_both(|runtime| {
        let path = folder.file("file");
        runtime.block_on(async {
            let contents = pattern(64 * 10_000);
            let options = OpenOptions::new().read(true).write(true).create(true);
            let file = std::rc::Rc::new(options.open(&path).await.unwrap());
            let writers: Vec<_> = (0..64)
                .map(|index| {
                    let file = std::rc::Rc::clone(&file);
                    let piece = contents[index * 10_000..(index + 1) * 10_000].to_vec();
                    spawn(async move { file.write_all_at(piece, index as u64 * 10_000).await.0 })
                })
                .collect();
            for writer in writers {
                writer.await.unwrap().unwrap();
            }
            let readers: Vec<_> = (0..64)
                .map(|index| {
                    let file = std::rc::Rc::clone(&file);
                    let buffer = Vec::with_capacity(10_000);
                    spawn(async move { file.read_at(buffer, index * 10_000).await })
                })
                .collect();
            for (index, reader) in readers.into_iter().enumerate() {
                let (count, bytes) = reader.await.unwrap();
                assert_eq!(count.unwrap(), 10_000);
                assert!(bytes == contents[index * 10_000..(index + 1) * 10_000]);
            }
        });
    });
}

#[test]
fn every_future_may_be_dropped_after_any_poll() {
    let folder = Folder::new("dropped");
    on_both(|runtime| {
        let path = folder.file("file");
        let path = &path;
        std::fs::write(path, pattern(100_000)).unwrap();
        let body = async move |polls: usize| {
            let options = OpenOptions::new().read(true).write(true);
            let file = options.open(path).await.unwrap();
            drop(poll_times(polls, File::open(path)).await);
            drop(poll_times(polls, File::create(path.with_extension("new"))).await);
            drop(poll_times(polls, fs::metadata(path)).await);
            drop(poll_times(polls, fs::read(path)).await);
            drop(poll_times(polls, file.metadata()).await);
            drop(poll_times(polls, file.read_at(Vec::with_capacity(50_000), 7)).await);
            drop(poll_times(polls, file.sync_all()).await);
            let written = poll_times(polls, file.write_at(vec![b'x'; 1000], 1000)).await;
            if let Some((count, bytes)) = written {
                assert_eq!((count.unwrap(), bytes.len()), (1000, 1000));
            }
            drop(file);
        };
        for polls in 0..6 {
            runtime.block_on(body(polls));
            drain(runtime);
            let contents = std::fs::read(path).unwrap();
            let expected = pattern(100_000);
            assert!(contents[..1000] == expected[..1000]);
            assert!(contents[2000..] == expected[2000..]);
            let between = &contents[1000..2000];
            assert!(between == &expected[1000..2000] || between.iter().all(|byte| *byte == b'x'));
            assert_eq!(descriptors_of(&std::fs::canonicalize(path).unwrap()), 0);
            let new = path.with_extension("new");
            if let Ok(new) = std::fs::canonicalize(new) {
                assert_eq!(descriptors_of(&new), 0);
            }
        }
    });
}

/// Runs until the kernel has finished all operations.
fn drain(runtime: &mut Runtime) {
    let start = std::time::Instant::now();
    while operations(runtime) > 0 {
        assert!(start.elapsed() < LONG, "operations do not end");
        runtime.block_on(sleep(Duration::from_micros(200)));
    }
    runtime.block_on(yield_now());
}

#[test]
fn a_write_whose_file_is_dropped_never_meets_another_file() {
    let folder = Folder::new("reuse");
    on_both(|runtime| {
        let first = folder.file("first");
        let second = folder.file("second");
        for polls in [1, 2, 3] {
            for _ in 0..50 {
                std::fs::write(&first, "").unwrap();
                std::fs::write(&second, "").unwrap();
                let other = runtime.block_on(async {
                    let file = OpenOptions::new().write(true).open(&first).await.unwrap();
                    drop(poll_times(polls, file.write_at(vec![b'w'; 256], 0)).await);
                    drop(file);
                    // Would get the same descriptor, if it were free.
                    std::fs::File::options().write(true).open(&second).unwrap()
                });
                drain(runtime);
                drop(other);
                assert_eq!(std::fs::read(&second).unwrap(), b"");
                let written = std::fs::read(&first).unwrap();
                assert!(written.is_empty() || written == [b'w'; 256]);
            }
        }
    });
}

#[test]
fn a_read_of_a_pipe_that_is_dropped_takes_nothing_and_lets_go() {
    on_both(|runtime| {
        let (reader, mut writer) = io::pipe().unwrap();
        let file = runtime.block_on(async {
            let mut file = File::from(OwnedFd::from(reader));
            for polls in 0..4 {
                let reading = poll_times(polls, file.read(Vec::with_capacity(16))).await;
                assert!(reading.is_none());
            }
            file
        });
        drain(runtime);
        writer.write_all(b"kept").unwrap();
        let mut file = runtime.block_on(async {
            let mut file = file;
            let (count, bytes) = timeout(LONG, file.read(Vec::with_capacity(16)))
                .await
                .unwrap();
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"kept"[..]));
            file
        });
        runtime.block_on(async {
            assert!(
                poll_times(2, file.read(Vec::with_capacity(16)))
                    .await
                    .is_none()
            );
            drop(file);
        });
        drain(runtime);
        let error = writer.write_all(b"nobody").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_runtime_that_ends_with_operations_in_flight_leaves_no_descriptor() {
    let folder = Folder::new("ends");
    on_both(|runtime| {
        let path = folder.file("file");
        std::fs::write(&path, pattern(1_000_000)).unwrap();
        for polls in 0..3 {
            let mut other = Runtime::new(&common::config_on(runtime.backend())).unwrap();
            drop(other.spawn({
                let path = path.clone();
                async move {
                    let file = File::open(&path).await.unwrap();
                    loop {
                        let (count, _) = file.read_at(Vec::with_capacity(1_000_000), 0).await;
                        assert_eq!(count.unwrap(), 1_000_000);
                    }
                }
            }));
            other.block_on(async {
                for _ in 0..polls {
                    yield_now().await;
                }
            });
            drop(other);
            runtime.block_on(async {
                let path = std::fs::canonicalize(&path).unwrap();
                until_zero(|| descriptors_of(&path)).await;
            });
        }
    });
}

#[test]
fn a_file_is_closed_when_told_also_if_nobody_waits_for_it() {
    let folder = Folder::new("close");
    on_both(|runtime| {
        let path = folder.file("closed");
        runtime.block_on(async {
            let mut file = File::create(&path).await.unwrap();
            file.write_all(b"all of it".to_vec()).await.0.unwrap();
            assert_eq!(descriptors_of(&path), 1);
            file.close().await.unwrap();
            assert_eq!(descriptors_of(&path), 0);
            for polls in 0..4 {
                let file = File::open(&path).await.unwrap();
                drop(poll_times(polls, file.close()).await);
                until_zero(|| descriptors_of(&path)).await;
            }
        });
        assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
    });
}

#[test]
fn a_file_is_not_closed_under_an_operation() {
    on_both(|runtime| {
        let (reader, mut writer) = io::pipe().unwrap();
        runtime.block_on(async {
            let mut file = File::from(OwnedFd::from(reader));
            assert!(
                poll_times(2, file.read(Vec::with_capacity(16)))
                    .await
                    .is_none()
            );
            // The kernel is not told before the next turn that the read was dropped; epoll has nothing to be told.
            if let Err(error) = file.close().await {
                assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            }
        });
        drain(runtime);
        let error = writer.write_all(b"nobody").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_fifo_without_a_writer_is_waited_for_or_at_its_end() {
    let folder = Folder::new("fifo");
    on_both(|runtime| {
        let path = folder.file("fifo");
        drop(std::fs::remove_file(&path));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is a terminated string, which outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        runtime.block_on(async {
            let options = OpenOptions::new().read(true);
            let mut reader = options
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
                .await
                .unwrap();
            let reading = reader.read(Vec::with_capacity(8));
            assert_eq!(timeout(LONG, reading).await.unwrap().0.unwrap(), 0);

            let mut reader = OpenOptions::new().read(true).open(&path).await.unwrap();
            let reading = spawn(async move { reader.read(Vec::with_capacity(8)).await });
            sleep(Duration::from_millis(5)).await;
            assert!(!reading.is_finished());
            let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            writer.write_all(b"hello").unwrap();
            let (count, bytes) = timeout(LONG, reading).await.unwrap().unwrap();
            assert_eq!((count.unwrap(), &bytes[..]), (5, &b"hello"[..]));
        });
    });
}
