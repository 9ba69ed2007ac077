//! What every test needs: drivers, pairs of sockets, and waiting for an event.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use ringloop_driver::{BackendChoice, Config, Driver, Event, Token};

/// Longer than anything here takes; only a test that fails waits that long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long to wait for what must not come.
pub const QUIET: Duration = Duration::from_millis(30);

/// A driver for the test, or `None` with a line on stderr if the machine refuses io_uring.
pub fn driver(choice: BackendChoice) -> Option<Driver> {
    driver_with(&Config::with_backend(choice))
}

/// The same with a configuration of the test's own.
pub fn driver_with(config: &Config) -> Option<Driver> {
    match Driver::new(config) {
        Ok(driver) => Some(driver),
        Err(error) if config.backend == BackendChoice::IoUring => {
            static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
            let text = error.to_string();
            if SAID.lock().unwrap().get_or_insert_default().insert(text.clone()) {
                eprintln!("SKIPPED on io_uring: {text}");
            }
            None
        }
        Err(error) => panic!("no driver: {error}"),
    }
}

/// Makes a test of each function for each backend.
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
pub fn pair() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

/// Polls until an event of `token` comes, and returns it. Others are dropped.
pub fn event_of(driver: &mut Driver, token: Token) -> Event {
    let mut events = Vec::new();
    for _ in 0..1000 {
        poll(driver, Some(PATIENCE), &mut events);
        if let Some(event) = events.iter().find(|event| event.token == token) {
            return *event;
        }
    }
    panic!("no event of {token:?} among {events:?}");
}

/// The events of one poll after another until none come for [`QUIET`].
pub fn all_events(driver: &mut Driver) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let before = events.len();
        poll(driver, Some(QUIET), &mut events);
        if events.len() == before {
            return events;
        }
    }
}

/// Polls; a signal is no failure.
pub fn poll(driver: &mut Driver, timeout: Option<Duration>, events: &mut Vec<Event>) {
    match driver.poll(timeout, events) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        result => result.unwrap(),
    }
}

/// Fills the socket until it takes no more. Returns how many bytes went in.
pub fn fill(fd: RawFd) -> usize {
    let chunk = [0_u8; 4096];
    let mut total = 0;
    loop {
        let sent = unsafe { libc::send(fd, chunk.as_ptr().cast(), chunk.len(), libc::MSG_DONTWAIT) };
        if sent < 0 {
            return total;
        }
        total += sent as usize;
    }
}

/// The raw descriptor of anything that has one.
pub fn raw(from: &impl AsRawFd) -> RawFd {
    from.as_raw_fd()
}

/// The errno of an error.
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap_or(0)
}
