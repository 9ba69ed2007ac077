//! Buffers of files: those of other crates, and of the program's own making, on both backends.

mod common;

use std::fs::{read, remove_file, write};
use std::io::{ErrorKind, Write};
use std::mem::forget;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes, BytesMut};
use ringloop::fs::{AlignedBuf, File, OpenOptions};
use ringloop::net::ReadBuffer;
use ringloop::time::{sleep, timeout};
use ringloop::{Runtime, spawn};

use common::{LONG, config_on, on_both, pattern, poll_times, until_nothing_is_left};

/// A path for one test, which is removed with this.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("ringloop-buffers-{}-{test}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(remove_file(&self.0));
    }
}

/// Writes a buffer of any type at the beginning of a file, in every way.
async fn write_in_every_way<B>(path: &Path, buffer: B, expected: &[u8])
where
    B: AsRef<[u8]> + Send + 'static,
{
    let mut file = File::create(path).await.unwrap();
    let (count, buffer) = file.write_at(buffer, 0).await;
    assert_eq!(count.unwrap(), expected.len());
    let (result, buffer) = file.write_all_at(buffer, 1).await;
    result.unwrap();
    let (count, buffer) = file.write(buffer).await;
    assert_eq!(count.unwrap(), expected.len());
    let (result, buffer) = file.write_all(buffer).await;
    result.unwrap();
    assert!(buffer.as_ref() == expected, "the buffer comes back whole");
    assert!(read(path).unwrap() == [expected, expected].concat());
}

/// Reads into a buffer of any type that is empty and has room.
async fn read_in_every_way<B>(path: &Path, buffer: B) -> B
where
    B: ReadBuffer + Send + 'static,
{
    let mut file = File::open(path).await.unwrap();
    let (count, buffer) = file.read_at(buffer, 3).await;
    assert_eq!(count.unwrap(), 3);
    let (count, buffer) = file.read(buffer).await;
    assert_eq!(count.unwrap(), 6);
    buffer
}

#[test]
fn buffers_of_every_kind_are_written_and_come_back() {
    let place = Place::new("written");
    on_both(|runtime| {
        let path = &place.0;
        let bytes = pattern(10_001);
        runtime.block_on(async {
            write_in_every_way(path, bytes.clone(), &bytes).await;
            write_in_every_way(path, bytes.clone().into_boxed_slice(), &bytes).await;
            write_in_every_way(path, Bytes::from(bytes.clone()).slice(1..), &bytes[1..]).await;
            write_in_every_way(path, BytesMut::from(&bytes[..]), &bytes).await;
            write_in_every_way(path, Arc::<[u8]>::from(&bytes[..]), &bytes).await;
            write_in_every_way(path, b"literal", b"literal").await;
            write_in_every_way(path, &b"slice"[..], b"slice").await;
            write_in_every_way(path, "text", b"text").await;
            write_in_every_way(path, String::from("string"), b"string").await;
            write_in_every_way(path, [7; 100], &[7; 100]).await;
            let mut aligned = AlignedBuf::new(20_000);
            aligned.put_slice(&bytes);
            write_in_every_way(path, aligned, &bytes).await;
        });
    });
}

#[test]
fn buffers_of_every_kind_are_read_into() {
    let place = Place::new("read");
    write(&place.0, "abcdef").unwrap();
    on_both(|runtime| {
        let path = &place.0;
        runtime.block_on(async {
            let bytes = read_in_every_way(path, Vec::with_capacity(100)).await;
            assert_eq!(bytes, b"defabcdef");
            let bytes = read_in_every_way(path, BytesMut::with_capacity(100)).await;
            assert_eq!(bytes, "defabcdef");
            let bytes = read_in_every_way(path, AlignedBuf::new(100)).await;
            assert_eq!(*bytes, *b"defabcdef");
            let bytes = read_in_every_way(path, Box::new(Vec::with_capacity(100))).await;
            assert_eq!(*bytes, b"defabcdef");
            let memory: &'static mut [u8] = Box::leak(Box::new([0; 9]));
            let start = memory.as_ptr();
            let rest = read_in_every_way(path, memory).await;
            assert!(rest.is_empty());
            // SAFETY: it is leaked, and nobody else uses it any more.
            let filled = unsafe { std::slice::from_raw_parts(start, 9) };
            assert_eq!(filled, b"defabcdef");
            // No more than is asked for, although there is room.
            let file = File::open(path).await.unwrap();
            let (count, two) = file.read_at(Vec::with_capacity(100).limit(2), 1).await;
            assert_eq!((count.unwrap(), two.into_inner()), (2, b"bc".to_vec()));
            let (count, none) = file.read_at(Vec::with_capacity(100).limit(0), 1).await;
            assert_eq!((count.unwrap(), none.into_inner().len()), (0, 0));
        });
    });
}

/// The events in the life of a buffer.
#[derive(Default)]
struct Calls {
    asked: AtomicUsize,
    filled: AtomicUsize,
    dropped: AtomicUsize,
}

/// A buffer whose memory is in itself, and whose destructor uses the runtime.
struct Own {
    memory: [u8; 64],
    length: usize,
    calls: Arc<Calls>,
}

impl Own {
    fn new() -> (Self, Arc<Calls>) {
        let calls = Arc::new(Calls::default());
        let own = Self {
            memory: [0; 64],
            length: 0,
            calls: Arc::clone(&calls),
        };
        (own, calls)
    }
}

impl AsRef<[u8]> for Own {
    fn as_ref(&self) -> &[u8] {
        self.calls.asked.fetch_add(1, Ordering::Relaxed);
        &self.memory
    }
}

// SAFETY: `chunk_mut` returns memory that it owns, and `advance_mut` counts what was written there.
unsafe impl BufMut for Own {
    fn remaining_mut(&self) -> usize {
        self.memory.len() - self.length
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        self.calls.filled.fetch_add(count, Ordering::Relaxed);
        self.length += count;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.calls.asked.fetch_add(1, Ordering::Relaxed);
        UninitSlice::new(&mut self.memory[self.length..])
    }
}

impl ReadBuffer for Own {
    fn room(&self) -> usize {
        self.remaining_mut()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Would fail while the reactor is at work.
        drop(spawn(async {}));
        self.calls.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_buffer_of_the_programs_making_is_asked_once_and_dropped_once() {
    let place = Place::new("own");
    on_both(|runtime| {
        runtime.block_on(async {
            let mut file = File::create(&place.0).await.unwrap();
            let (own, calls) = Own::new();
            let (result, own) = file.write_all(own).await;
            result.unwrap();
            assert_eq!(calls.asked.load(Ordering::Relaxed), 1);
            assert_eq!(calls.dropped.load(Ordering::Relaxed), 0);
            drop(own);
            assert_eq!(calls.dropped.load(Ordering::Relaxed), 1);
            write(&place.0, [7; 10]).unwrap();
            let file = File::open(&place.0).await.unwrap();
            let (own, calls) = Own::new();
            let (count, own) = file.read_at(own, 0).await;
            assert_eq!((count.unwrap(), own.length), (10, 10));
            assert_eq!(own.memory[..11], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
            assert_eq!(calls.asked.load(Ordering::Relaxed), 1);
            assert_eq!(calls.filled.load(Ordering::Relaxed), 10);
            drop(own);
            assert_eq!(calls.dropped.load(Ordering::Relaxed), 1);
        });
    });
}

async fn until_dropped(calls: &Calls) {
    timeout(LONG, async {
        while calls.dropped.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_micros(200)).await;
        }
    })
    .await
    .unwrap();
}

/// Before the kernel has it, while it has it, and when it is done.
#[test]
fn the_buffer_of_a_dropped_future_is_dropped_when_the_kernel_is_done_and_outside_of_its_work() {
    let place = Place::new("dropped");
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..4 {
                let (reader, mut writer) = std::io::pipe().unwrap();
                let mut reader = File::from(OwnedFd::from(reader));
                let (own, calls) = Own::new();
                assert!(poll_times(polls, reader.read(own)).await.is_none());
                until_dropped(&calls).await;
                writer.write_all(b"x").unwrap();

                let file = File::create(&place.0).await.unwrap();
                let (own, calls) = Own::new();
                drop(poll_times(polls, file.write_at(own, 0)).await);
                until_dropped(&calls).await;
                assert_eq!(calls.dropped.load(Ordering::Relaxed), 1);
            }
        });
    });
}

#[test]
fn the_buffer_of_a_forgotten_future_stays() {
    on_both(|runtime| {
        let (own, calls) = Own::new();
        let (reader, mut writer) = std::io::pipe().unwrap();
        runtime.block_on(async {
            let reader = Box::leak(Box::new(File::from(OwnedFd::from(reader))));
            let mut reading = Box::pin(reader.read(own));
            assert!(poll_times(2, reading.as_mut()).await.is_none());
            forget(reading);
            writer.write_all(b"arrives").unwrap();
        });
        // The kernel writes to it.
        until_nothing_is_left(runtime);
        assert_eq!(calls.dropped.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_runtime_that_ends_gives_buffers_back() {
    on_both(|runtime| {
        let mut ending = Runtime::new(&config_on(runtime.backend())).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let mut reader = File::from(OwnedFd::from(reader));
        let (own, calls) = Own::new();
        let mut reading = Box::pin(reader.read(own));
        ending.block_on(async {
            assert!(poll_times(2, reading.as_mut()).await.is_none());
        });
        drop(ending);
        assert_eq!(calls.dropped.load(Ordering::Relaxed), 0);
        runtime.block_on(async {
            let (result, own) = reading.await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(own.length, 0);
        });
        assert_eq!(calls.dropped.load(Ordering::Relaxed), 1);
    });
}

/// A file on a file system that does direct I/O, if there is one; the test says so if not.
async fn open_direct(name: &str) -> Option<(Place, File)> {
    let folders = [
        std::env::temp_dir(),
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        PathBuf::from("/var/tmp"),
    ];
    for folder in folders {
        let name = format!("ringloop-direct-{}-{name}", std::process::id());
        let place = Place(folder.join(name));
        let options = OpenOptions::new().read(true).write(true).create(true);
        match options.direct(true).open(&place.0).await {
            Ok(file) => return Some((place, file)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        }
    }
    eprintln!("SKIPPED: no file system here does direct I/O");
    None
}

#[test]
fn a_file_for_direct_io_is_no_stream() {
    on_both(|runtime| {
        runtime.block_on(async {
            let Some((_place, file)) = open_direct("stream").await else {
                return;
            };
            let error = file.into_stream().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("direct I/O"), "{error}");
        });
    });
}

#[test]
fn direct_io_transfers_whole_blocks_and_says_what_it_needs() {
    on_both(|runtime| {
        runtime.block_on(async {
            let Some((place, mut file)) = open_direct("blocks").await else {
                return;
            };
            let bytes = pattern(5 * 4096);
            let mut blocks = AlignedBuf::new(bytes.len());
            blocks.put_slice(&bytes);
            let (result, mut blocks) = file.write_all_at(blocks, 4096).await;
            result.unwrap();
            blocks.clear();
            let (count, blocks) = file.read_at(blocks, 8192).await;
            assert_eq!(count.unwrap(), 4 * 4096);
            assert!(*blocks == bytes[4096..]);
            file.set_len(4096 + 10).unwrap();
            // The end needs no whole block.
            let (count, tail) = file.read_at(AlignedBuf::new(4096), 4096).await;
            assert_eq!(count.unwrap(), 10);
            assert_eq!(*tail, bytes[..10]);
            assert_eq!(read(&place.0).unwrap().len(), 4096 + 10);
            // Some file systems take what is not aligned by way of the cache.
            let mut odd = AlignedBuf::new(8192);
            odd.put_slice(b"x");
            let (result, odd) = file.write_at(odd, 1).await;
            if let Err(error) = result {
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains("AlignedBuf"), "{error}");
            }
            let (result, _) = file.read(odd).await;
            if let Err(error) = result {
                assert!(error.to_string().contains("AlignedBuf"), "{error}");
            }
        });
    });
}

#[test]
fn a_file_system_that_refuses_direct_io_is_named() {
    on_both(|runtime| {
        runtime.block_on(async {
            let options = OpenOptions::new().read(true);
            let error = options.clone().direct(true).open("/proc/self/maps").await;
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("O_DIRECT"), "{error}");
            options.direct(false).open("/proc/self/maps").await.unwrap();
        });
    });
}
