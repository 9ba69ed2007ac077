//! The basics of every test: drivers, pairs of sockets, and waiting for an event.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ringloop_driver::{BackendChoice, Buffer, Bytes, Config, Driver, Event, Op, SharedFd, Token};

/// Longer than anything here takes. Only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait for something that must not come.
pub(crate) const QUIET: Duration = Duration::from_millis(30);

/// A driver for a test. `None`, with a line on stderr, if the machine refuses `io_uring`.
pub(crate) fn driver(choice: BackendChoice) -> Option<Driver> {
    driver_with(&Config::with_backend(choice))
}

/// The same with a configuration.
pub(crate) fn driver_with(config: &Config) -> Option<Driver> {
    match Driver::new(config) {
        Ok(driver) => Some(driver),
        Err(error) if config.backend == BackendChoice::IoUring => {
            static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
            let text = error.to_string();
            if SAID
                .lock()
                .unwrap()
                .get_or_insert_default()
                .insert(text.clone())
            {
                eprintln!("SKIPPED on io_uring: {text}");
            }
            None
        }
        Err(error) => panic!("no driver: {error}"),
    }
}

/// Makes a test for each backend from each function.
macro_rules! on_both_backends {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            #[test]
            fn io_uring() {
                if let Some(driver) = crate::support::driver(ringloop_driver::BackendChoice::IoUring) {
                    super::$name(driver);
                }
            }

            #[test]
            fn epoll() {
                if let Some(driver) = crate::support::driver(ringloop_driver::BackendChoice::Epoll) {
                    super::$name(driver);
                }
            }
        })*
    };
}
pub(crate) use on_both_backends;

/// Two connected stream sockets that do not block.
pub(crate) fn pair() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

/// Two connected TCP sockets that do not block.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, address) = listener();
    let here = TcpStream::connect(address).unwrap();
    let (there, _) = listener.accept().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    (here, there)
}

/// Reads a socket until its end.
pub(crate) fn rest_of(far: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    far.read_to_end(&mut received).unwrap();
    received
}

/// Bytes below 251 that depend on their position.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// A path for a file that no other test and no other run uses.
pub(crate) fn temporary_path(driver: &Driver, name: &str) -> PathBuf {
    let (process, backend) = (std::process::id(), driver.backend());
    std::env::temp_dir().join(format!("ringloop-driver-{process}-{backend}-{name}"))
}

/// This many pairs of sockets. Raises the limit of open descriptors for that.
pub(crate) fn pairs(count: usize) -> Vec<(UnixStream, UnixStream)> {
    raise_descriptor_limit();
    (0..count).map(|_| pair()).collect()
}

/// Polls until an event of `token` comes, and returns it. Others are dropped.
pub(crate) fn event_of(driver: &mut Driver, token: Token) -> Event {
    let mut events = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        poll(driver, Some(PATIENCE), &mut events);
        if let Some(event) = events.iter().find(|event| event.token() == token) {
            return *event;
        }
    }
    panic!("no event of {token:?} among {events:?}");
}

/// The events of one poll after another until none come for [`QUIET`].
pub(crate) fn all_events(driver: &mut Driver) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let before = events.len();
        poll(driver, Some(QUIET), &mut events);
        if events.len() == before {
            return events;
        }
    }
}

/// Polls. A signal is not a failure, but with [`PATIENCE`] no event is one.
pub(crate) fn poll(driver: &mut Driver, timeout: Option<Duration>, events: &mut Vec<Event>) {
    let (start, before) = (Instant::now(), events.len());
    match driver.poll(timeout, events) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        result => result.unwrap(),
    }
    let in_vain =
        timeout == Some(PATIENCE) && events.len() == before && start.elapsed() >= PATIENCE;
    assert!(!in_vain, "nothing came");
}

/// A pipe: its read end and its write end.
pub(crate) fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors to `ends`, which has room for them and outlives the call.
    let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(result, 0);
    ends.map(|fd| File::from(own(fd))).into()
}

/// Takes ownership of a descriptor from the kernel.
pub(crate) fn own(fd: RawFd) -> OwnedFd {
    assert!(fd >= 0, "not a descriptor: {fd}");
    // SAFETY: it is open, and every caller passes a new one, once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Fills a socket until it accepts no more. Returns the number of bytes.
pub(crate) fn fill(fd: RawFd) -> usize {
    let chunk = [0_u8; 4096];
    let mut total = 0;
    loop {
        // SAFETY: the kernel reads no more than `chunk`, which outlives the call.
        let sent =
            unsafe { libc::send(fd, chunk.as_ptr().cast(), chunk.len(), libc::MSG_DONTWAIT) };
        if sent < 0 {
            return total;
        }
        total += sent as usize;
    }
}

/// The flags of an open file, such as `O_NONBLOCK`.
pub(crate) fn status_flags(fd: RawFd) -> i32 {
    // SAFETY: takes no memory of ours.
    unsafe { libc::fcntl(fd, libc::F_GETFL) }
}

/// The flags of a descriptor, such as `FD_CLOEXEC`; -1 if it is closed.
pub(crate) fn descriptor_flags(fd: RawFd) -> i32 {
    // SAFETY: takes no memory of ours.
    unsafe { libc::fcntl(fd, libc::F_GETFD) }
}

/// Makes an open file non-blocking.
pub(crate) fn set_nonblocking(file: &File) {
    // SAFETY: takes no memory of ours.
    let result = unsafe { libc::fcntl(raw(file), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}

/// Raises the limit of open descriptors to more than all tests need together, or to the allowed maximum. Returns the
/// limit.
pub(crate) fn raise_descriptor_limit() -> RawFd {
    const WANTED: libc::rlim_t = 20_000;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit to `limit`, which outlives the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(result, 0);
    if limit.rlim_cur < WANTED {
        limit.rlim_cur = WANTED.min(limit.rlim_max);
        // SAFETY: the kernel reads one rlimit from `limit`, which outlives the call.
        let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(result, 0);
    }
    limit.rlim_cur.min(WANTED) as RawFd
}

/// Lends a descriptor to an operation.
pub(crate) fn lend(fd: RawFd) -> SharedFd {
    // SAFETY: the tests keep a file open until the operation on it is over, or flush what they have cancelled. Those that
    // want to see a descriptor used again hand it over instead.
    unsafe { SharedFd::borrow_raw(fd) }
}

/// The raw descriptor of anything that has one.
pub(crate) fn raw(from: &impl AsRawFd) -> RawFd {
    from.as_raw_fd()
}

/// The errno of an error.
pub(crate) fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap_or(0)
}

/// Reads from a stream or a device, or at a file's position, into a buffer with this much room.
pub(crate) fn read(fd: RawFd, room: usize) -> Op {
    Op::Read {
        fd: lend(fd),
        buffer: Buffer::new(Vec::with_capacity(room)),
        offset: None,
    }
}

/// Writes these bytes to a stream or a device, or at a file's position.
pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> Op {
    Op::Write {
        fd: lend(fd),
        bytes: Bytes::new(bytes.to_vec()),
        start: 0,
        offset: None,
    }
}

/// The bytes that a finished operation has read.
pub(crate) fn bytes_of(op: Op) -> Vec<u8> {
    match op {
        Op::Read { buffer, .. } => buffer.into_owner().unwrap(),
        other => panic!("{other:?} reads nothing"),
    }
}

/// Submits an operation and polls until its last event. Returns the result or `-errno`, and its resources.
pub(crate) fn finish(driver: &mut Driver, op: Op) -> (i32, Op) {
    let token = driver.submit(op).unwrap();
    let event = event_of(driver, token);
    assert!(!event.is_watch() && !event.is_more());
    (event.result(), driver.take(token).unwrap())
}

/// Submits an operation that opens something, and polls until it has.
pub(crate) fn descriptor_of(driver: &mut Driver, op: Op) -> OwnedFd {
    let token = driver.submit(op).unwrap();
    let event = event_of(driver, token);
    driver.take_fd(&event).unwrap()
}

/// A listening socket on a free port of the loopback, and its address.
pub(crate) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Runs `body` in a forked child, so that it may change what belongs to the whole process, and fails with what it
/// fails with. The child is a copy of this thread alone: `body` must not wait for other threads of the tests.
pub(crate) fn in_child(body: impl FnOnce() -> Result<(), String>) {
    let (mut reader, mut writer) = pipe();
    // SAFETY: the child has no thread but this one. The C library leaves it an allocator that works, and each caller's
    // `body` keeps off what other threads hold.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        drop(reader);
        let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
            Err(panic
                .downcast_ref::<String>()
                .cloned()
                .unwrap_or_else(|| "panicked".into()))
        });
        let status = match outcome {
            Ok(()) => 0,
            Err(text) => {
                let _ = writer.write_all(text.as_bytes());
                1
            }
        };
        // SAFETY: takes no memory of ours, and nothing that it leaves behind is the parent's.
        unsafe { libc::_exit(status) };
    }
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let mut status = 0;
    // SAFETY: the kernel writes one integer to `status`, which outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "in the child (status {status}): {text}"
    );
}
