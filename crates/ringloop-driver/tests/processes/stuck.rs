//! Files that hang do not delay others. A lease makes them hang. Its signal is sent to the whole process.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use ringloop_driver::{Buffer, Driver, Event, Op, SharedFd, Token};

use crate::support::{
    PATIENCE, descriptor_of, driver, event_of, finish, in_child, on_both_backends, poll, raw,
    status_flags,
};

on_both_backends!(
    an_open_that_must_wait_for_a_lease_does,
    files_that_are_stuck_hold_up_no_others,
    reads_that_are_stuck_hold_up_no_others,
    a_fifo_is_opened_without_waiting,
);

fn open(path: &Path, flags: i32) -> Op {
    Op::OpenAt {
        directory: None,
        path: CString::new(path.to_str().unwrap()).unwrap(),
        flags,
        mode: 0o600,
    }
}

/// Takes or releases a lease. Until it is released, for at most 45 s, nobody can open the file for writing.
fn lease(file: &File, kind: i32) -> Result<(), String> {
    // SAFETY: SIG_IGN is no function of ours, and F_SETLEASE takes an int.
    let result = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(raw(file), libc::F_SETLEASE, kind)
    };
    match result {
        0 => Ok(()),
        _ => Err(format!("no lease: {}", std::io::Error::last_os_error())),
    }
}

/// Runs `body` with a driver and a leased file, in a process of its own.
fn with_lease(
    driver_of: Driver,
    body: impl FnOnce(&mut Driver, &Path, &File) -> Result<(), String>,
) {
    let choice = driver_of.backend().name().parse().unwrap();
    drop(driver_of);
    in_child(|| {
        let mut driver = driver(choice).ok_or("no driver in the child")?;
        let path = std::env::temp_dir().join(format!("ringloop-lease-{}", std::process::id()));
        std::fs::write(&path, "leased").map_err(|error| error.to_string())?;
        let file = File::open(&path).map_err(|error| error.to_string())?;
        lease(&file, libc::F_RDLCK)?;
        let result = body(&mut driver, &path, &file);
        drop(std::fs::remove_file(&path));
        result
    });
}

fn an_open_that_must_wait_for_a_lease_does(driver_of: Driver) {
    with_lease(driver_of, |driver, path, file| {
        let refused = finish(driver, open(path, libc::O_WRONLY | libc::O_NONBLOCK)).0;
        assert_eq!(refused, -libc::EAGAIN);
        // The refusal has begun to break the lease, so take another one.
        lease(file, libc::F_UNLCK)?;
        lease(file, libc::F_RDLCK)?;
        let token = driver.submit(open(path, libc::O_WRONLY)).unwrap();
        let mut events = Vec::new();
        for _ in 0..20 {
            poll(driver, Some(Duration::from_millis(1)), &mut events);
        }
        assert_eq!(events, []);
        lease(file, libc::F_UNLCK)?;
        let event = event_of(driver, token);
        let opened = driver.take_fd(&event).unwrap();
        assert_eq!(status_flags(raw(&opened)) & libc::O_NONBLOCK, 0);
        Ok(())
    });
}

fn files_that_are_stuck_hold_up_no_others(driver_of: Driver) {
    with_lease(driver_of, |driver, path, file| {
        let mut stuck: Vec<Token> = (0..STUCK)
            .map(|_| driver.submit(open(path, libc::O_WRONLY)).unwrap())
            .collect();
        driver.flush().unwrap();
        let free = open(Path::new("/dev/null"), libc::O_WRONLY | libc::O_CREAT);
        drop(descriptor_of(driver, free));
        let read = Op::Read {
            fd: SharedFd::new(File::open(path).unwrap()),
            buffer: Buffer::new(Vec::with_capacity(8)),
            offset: Some(0),
        };
        assert_eq!(finish(driver, read).0, 6);
        assert_eq!(driver.counters().operations, STUCK as u64);
        lease(file, libc::F_UNLCK)?;
        let mut events: Vec<Event> = Vec::new();
        while !stuck.is_empty() {
            events.clear();
            poll(driver, Some(PATIENCE), &mut events);
            for event in &events {
                drop(driver.take_fd(event).unwrap());
                stuck.retain(|token| *token != event.token());
            }
        }
        Ok(())
    });
}

/// More than the kernel's default number of threads for regular files, four for each CPU.
const STUCK: usize = 48;

fn reads_that_are_stuck_hold_up_no_others(driver_of: Driver) {
    let choice = driver_of.backend().name().parse().unwrap();
    drop(driver_of);
    in_child(|| {
        // A file that counts as regular, but whose reads wait for the kernel.
        let Ok(log) = File::open("/proc/kmsg") else {
            eprintln!("SKIPPED: /proc/kmsg is for those with privileges");
            return Ok(());
        };
        let mut driver = driver(choice).ok_or("no driver in the child")?;
        let log = SharedFd::new(log);
        let mut events = Vec::new();
        while driver.counters().operations < STUCK as u64 || !events.is_empty() {
            let read = Op::Read {
                fd: log.clone(),
                buffer: Buffer::new(Vec::with_capacity(1 << 16)),
                offset: None,
            };
            drop(driver.submit(read));
            events.clear();
            poll(&mut driver, Some(Duration::ZERO), &mut events);
        }
        let opened = open(Path::new("/dev/null"), libc::O_WRONLY | libc::O_CREAT);
        drop(descriptor_of(&mut driver, opened));
        let file = SharedFd::new(File::open("/").map_err(|error| error.to_string())?);
        let sync = Op::Fsync {
            fd: file,
            data_only: false,
        };
        assert_eq!(finish(&mut driver, sync).0, 0);
        Ok(())
    });
}

fn a_fifo_is_opened_without_waiting(mut driver: Driver) {
    // With a path that is in the kernel's cache, and with one that it has to look up or create. Each has a FIFO of its own:
    // children that other tests fork keep its reader open for a while.
    for creation in [0, libc::O_CREAT] {
        let path = std::env::temp_dir().join(format!(
            "ringloop-fifo-{}-{}-{creation}",
            std::process::id(),
            driver.backend()
        ));
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is a terminated string, which outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let without_reader = finish(&mut driver, open(&path, libc::O_WRONLY | creation)).0;
        assert_eq!(without_reader, -libc::ENXIO);
        let reader = descriptor_of(&mut driver, open(&path, libc::O_RDONLY | creation));
        let writer = descriptor_of(&mut driver, open(&path, libc::O_WRONLY | creation));
        for end in [&reader, &writer] {
            assert_eq!(status_flags(raw(end)) & libc::O_NONBLOCK, 0);
        }
        let (mut reader, mut writer) = (File::from(reader), File::from(writer));
        writer.write_all(b"through").unwrap();
        let mut bytes = [0; 7];
        reader.read_exact(&mut bytes).unwrap();
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | creation;
        let nonblocking = descriptor_of(&mut driver, open(&path, flags));
        assert_ne!(status_flags(raw(&nonblocking)) & libc::O_NONBLOCK, 0);
        std::fs::remove_file(path).unwrap();
    }
}
