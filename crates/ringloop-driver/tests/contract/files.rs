//! Files, pipes and devices: opening, reading, writing, closing.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use ringloop_driver::{Buffer, Bytes, Driver, FileStatus, Op, SharedFd};

use crate::support::{
    PATIENCE, all_events, bytes_of, descriptor_of, event_of, finish, lend, on_both_backends, own,
    pipe, poll, raw, read, set_nonblocking, temporary_path,
};

on_both_backends!(
    pipes_are_read_and_written,
    files_are_opened_written_read_and_described,
    directories_are_changed,
    a_close_that_is_cancelled_closes_all_the_same,
    a_file_that_does_not_block_is_waited_for,
    what_a_driver_writes_when_it_is_dropped_is_written,
    a_write_that_waits_for_a_reader_does_not_keep_its_driver,
);

fn pipes_are_read_and_written(mut driver: Driver) {
    for nonblocking in [true, false] {
        let (reader, writer) = pipe();
        if nonblocking {
            for end in [&reader, &writer] {
                set_nonblocking(end);
            }
        }
        let read = || read(raw(&reader), 16);
        let token = driver.submit(read()).unwrap();
        assert_eq!(all_events(&mut driver), []);
        let write = Op::Write {
            fd: lend(raw(&writer)),
            bytes: Bytes::new("..abc"),
            start: 2,
            offset: None,
        };
        let writing = driver.submit(write).unwrap();
        let mut seen = Vec::new();
        let mut buffer = None;
        while seen.len() < 2 {
            let mut events = Vec::new();
            poll(&mut driver, Some(PATIENCE), &mut events);
            for event in events {
                seen.push((event.token(), event.result()));
                if event.token() == token {
                    buffer = driver.take(token);
                }
            }
        }
        assert!(
            seen.contains(&(token, 3)) && seen.contains(&(writing, 3)),
            "{seen:?}"
        );
        assert!(matches!(buffer, Some(Op::Read { buffer, .. }) if buffer.filled() == b"abc"));
        drop(writer);
        assert_eq!(finish(&mut driver, read()).0, 0);
    }
}

/// Compares all that a file's status says with what the standard library sees.
fn check_status(status: &FileStatus, path: &Path) {
    let seen = std::fs::metadata(path).unwrap();
    assert_eq!((status.size(), status.mode()), (15, seen.mode()));
    assert_eq!((status.uid(), status.gid()), (seen.uid(), seen.gid()));
    assert_eq!(status.inode(), seen.ino());
    assert_eq!(u64::from(status.links()), seen.nlink());
    assert_eq!(status.blocks(), seen.blocks());
    assert_eq!(u64::from(status.block_size()), seen.blksize());
    let (major, minor) = status.device();
    assert_eq!(libc::makedev(major, minor), seen.dev());
    let (major, minor) = status.special_device();
    assert_eq!(libc::makedev(major, minor), seen.rdev());
    for (time, expected) in [
        (status.accessed(), (seen.atime(), seen.atime_nsec())),
        (status.modified(), (seen.mtime(), seen.mtime_nsec())),
        (status.changed(), (seen.ctime(), seen.ctime_nsec())),
    ] {
        assert_eq!((time.seconds, i64::from(time.nanoseconds)), expected);
    }
    let is_recorded = status.mask() & libc::STATX_BTIME != 0;
    assert_eq!(status.created().is_some(), is_recorded);
}

fn files_are_opened_written_read_and_described(mut driver: Driver) {
    let path = temporary_path(&driver, "file");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let open = |flags| Op::OpenAt {
        directory: None,
        path: name.clone(),
        flags,
        mode: 0o600,
    };
    let (result, _) = finish(&mut driver, open(libc::O_RDWR));
    assert_eq!(result, -libc::ENOENT);
    let created = open(libc::O_RDWR | libc::O_CREAT | libc::O_EXCL);
    let file = SharedFd::new(descriptor_of(&mut driver, created));
    let write = Op::Write {
        fd: file.clone(),
        bytes: Bytes::new("0123456789"),
        start: 0,
        offset: Some(5),
    };
    assert_eq!(finish(&mut driver, write).0, 10);
    let write = Op::Write {
        fd: file.clone(),
        bytes: Bytes::new("head"),
        start: 0,
        offset: None,
    };
    assert_eq!(finish(&mut driver, write).0, 4);
    assert_eq!(
        finish(
            &mut driver,
            Op::Fsync {
                fd: file.clone(),
                data_only: true
            }
        )
        .0,
        0
    );
    assert_eq!(
        finish(
            &mut driver,
            Op::Fsync {
                fd: file.clone(),
                data_only: false
            }
        )
        .0,
        0
    );
    let read = |offset| Op::Read {
        fd: file.clone(),
        buffer: Buffer::new(Vec::with_capacity(64)),
        offset,
    };
    let (result, op) = finish(&mut driver, read(Some(7)));
    assert_eq!((result, &bytes_of(op)[..]), (8, &b"23456789"[..]));
    let (result, op) = finish(&mut driver, read(None));
    assert_eq!((result, &bytes_of(op)[..]), (11, &b"\x000123456789"[..]));
    assert_eq!(finish(&mut driver, read(Some(100))).0, 0);
    let status = Box::<FileStatus>::default();
    let (path_of, mask) = (name.clone(), libc::STATX_BASIC_STATS | libc::STATX_BTIME);
    let (result, op) = finish(
        &mut driver,
        Op::Statx {
            directory: None,
            path: path_of,
            flags: 0,
            mask,
            status,
        },
    );
    assert_eq!(result, 0);
    let Op::Statx { status, .. } = op else {
        panic!("{op:?}");
    };
    check_status(&status, &path);
    let fd = file.try_unwrap().expect("nobody else has it");
    let number = raw(&fd);
    let (result, op) = finish(&mut driver, Op::Close { fd: Some(fd) });
    assert_eq!(result, 0);
    assert!(matches!(op, Op::Close { fd: None }));
    // Another test may have opened something under the same number.
    let left = std::fs::read_link(format!("/proc/self/fd/{number}"));
    assert_ne!(
        left.ok(),
        Some(path.canonicalize().unwrap()),
        "the file is still open"
    );
    std::fs::remove_file(path).unwrap();
}

fn directories_are_changed(mut driver: Driver) {
    let root = temporary_path(&driver, "directory");
    let name = |path: &Path| CString::new(path.to_str().unwrap()).unwrap();
    let make = |directory, path| Op::MkDirAt {
        directory,
        path,
        mode: 0o700,
    };
    let remove = |directory, path, flags| Op::UnlinkAt {
        directory,
        path,
        flags,
    };
    assert_eq!(finish(&mut driver, make(None, name(&root))).0, 0);
    let (result, op) = finish(&mut driver, make(None, name(&root)));
    assert_eq!(result, -libc::EEXIST);
    assert!(matches!(op, Op::MkDirAt { path, .. } if path == name(&root)));
    let mode = std::fs::metadata(&root).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::write(root.join("old"), "content").unwrap();
    let place = SharedFd::new(OwnedFd::from(File::open(&root).unwrap()));
    let rename = |flags| Op::RenameAt {
        from_directory: Some(place.clone()),
        from: c"old".to_owned(),
        to_directory: None,
        to: name(&root.join("new")),
        flags,
    };
    assert_eq!(finish(&mut driver, rename(0)).0, 0);
    assert_eq!(finish(&mut driver, rename(0)).0, -libc::ENOENT);
    std::fs::write(root.join("old"), "other").unwrap();
    let (result, _) = finish(&mut driver, rename(libc::RENAME_NOREPLACE));
    assert_eq!(result, -libc::EEXIST);
    assert_eq!(
        std::fs::read_to_string(root.join("new")).unwrap(),
        "content"
    );
    let inner = Some(place.clone());
    for path in [c"old", c"new"] {
        let op = remove(inner.clone(), path.to_owned(), 0);
        assert_eq!(finish(&mut driver, op).0, 0);
    }
    let (result, _) = finish(&mut driver, remove(None, name(&root), 0));
    assert_eq!(result, -libc::EISDIR);
    let (result, _) = finish(&mut driver, remove(None, name(&root), libc::AT_REMOVEDIR));
    assert_eq!(result, 0);
    assert!(!root.exists());
    drop(inner);
    // The operations have let go of the directory that they began at.
    assert!(place.try_unwrap().is_ok());
}

fn a_close_that_is_cancelled_closes_all_the_same(mut driver: Driver) {
    let mut readers = Vec::new();
    let mut submit = |driver: &mut Driver| {
        let (reader, writer) = pipe();
        readers.push(reader);
        let fd = Some(OwnedFd::from(writer));
        driver.submit(Op::Close { fd }).unwrap()
    };
    let cancelled = submit(&mut driver);
    driver.cancel(cancelled);
    let result = event_of(&mut driver, cancelled).result();
    assert!([0, -libc::ECANCELED].contains(&result));
    let discarded = submit(&mut driver);
    driver.discard(discarded);
    assert_eq!(all_events(&mut driver), []);
    submit(&mut driver);
    drop(driver);
    for mut reader in readers {
        // A child forked by another test may have it open for a moment.
        set_nonblocking(&reader);
        let start = Instant::now();
        while let Err(error) = reader.read(&mut [0]) {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            assert!(start.elapsed() < PATIENCE, "the writer is open");
            std::thread::yield_now();
        }
    }
}

/// Files without non-blocking reads are not read before there is data, with or without `O_NONBLOCK`.
fn a_file_that_does_not_block_is_waited_for(mut driver: Driver) {
    let folder = temporary_path(&driver, "watched");
    std::fs::create_dir_all(&folder).unwrap();
    let name = CString::new(folder.to_str().unwrap()).unwrap();
    for flags in [0, libc::O_NONBLOCK] {
        // SAFETY: the path is a terminated string, which outlives its call; the others take no memory of ours.
        let (counter, notifier, terminal) = unsafe {
            let notifier = libc::inotify_init1(flags);
            libc::inotify_add_watch(notifier, name.as_ptr(), libc::IN_CREATE);
            (
                own(libc::eventfd(0, flags)),
                own(notifier),
                own(libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | flags)),
            )
        };
        let (counter, notifier) = (SharedFd::new(counter), SharedFd::new(notifier));
        let mut path = [0; 64];
        // SAFETY: the kernel writes a terminated string of no more than `path` has room for.
        let other_end = unsafe {
            assert_eq!(libc::unlockpt(raw(&terminal)), 0);
            assert_eq!(libc::ptsname_r(raw(&terminal), path.as_mut_ptr(), 64), 0);
            own(libc::open(path.as_ptr(), libc::O_RDWR | libc::O_NOCTTY))
        };
        let mut other_end = File::from(other_end);
        let terminal = SharedFd::new(terminal);
        let read = |fd: &SharedFd| Op::Read {
            fd: fd.clone(),
            buffer: Buffer::new(Vec::with_capacity(256)),
            offset: None,
        };
        let tokens = [&counter, &notifier, &terminal].map(|fd| driver.submit(read(fd)).unwrap());
        assert_eq!(all_events(&mut driver), []);
        // SAFETY: the kernel reads eight bytes of `one`.
        unsafe { libc::write(raw(&counter), (&raw const ONE).cast(), 8) };
        static ONE: u64 = 1;
        std::fs::write(folder.join(format!("{flags}")), "").unwrap();
        other_end.write_all(b"typed").unwrap();
        let mut events = Vec::new();
        while events.len() < tokens.len() {
            poll(&mut driver, Some(PATIENCE), &mut events);
        }
        for (token, count) in tokens.into_iter().zip([8, 32, 5]) {
            let event = events.iter().find(|event| event.token() == token);
            assert_eq!(event.unwrap().result(), count, "flags {flags}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// More than there are threads, so that some of them have not begun.
fn what_a_driver_writes_when_it_is_dropped_is_written(mut driver: Driver) {
    const WRITES: u64 = 300;
    const SIZE: usize = 10_000;
    let path = temporary_path(&driver, "dropped");
    let renamed = path.with_extension("renamed");
    let file = File::create(&path).unwrap();
    let shared = SharedFd::new(OwnedFd::from(file.try_clone().unwrap()));
    for number in 0..WRITES {
        let write = Op::Write {
            fd: shared.clone(),
            bytes: Bytes::new(vec![number as u8; SIZE]),
            start: 0,
            offset: Some(number * SIZE as u64),
        };
        driver.submit(write).unwrap();
    }
    // They must not hold up the end.
    let (reader, _writer) = pipe();
    driver.submit(read(raw(&reader), 16)).unwrap();
    driver.poll(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    let name = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let rename = Op::RenameAt {
        from_directory: None,
        from: name(&path),
        to_directory: None,
        to: name(&renamed),
        flags: 0,
    };
    driver.submit(rename).unwrap();
    drop(driver);
    let written = std::fs::read(&renamed).unwrap();
    std::fs::remove_file(&renamed).unwrap();
    assert_eq!(written.len(), WRITES as usize * SIZE);
    for (number, chunk) in written.chunks(SIZE).enumerate() {
        assert!(chunk.iter().all(|byte| *byte == number as u8), "{number}");
    }
}

fn a_write_that_waits_for_a_reader_does_not_keep_its_driver(mut driver: Driver) {
    let (_reader, writer) = pipe();
    set_nonblocking(&writer);
    while writer.try_clone().unwrap().write(&[0; 4096]).is_ok() {}
    let write = Op::Write {
        fd: SharedFd::new(writer),
        bytes: Bytes::new([0]),
        start: 0,
        offset: None,
    };
    driver.submit(write).unwrap();
    assert_eq!(all_events(&mut driver), []);
    drop(driver);
}
