//! The registry's epoll set, which the ring watches.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::squeue;

use super::requests::{self, REGISTRY};
use crate::contract::BATCH;
use crate::event::Event;
use crate::registry::{self, Registry};
use crate::sys;
use crate::table::Table;

pub(super) struct Registered {
    registry: Registry,
    buffer: Vec<libc::epoll_event>,
    /// Whether the set may have events: the ring has reported it, the last fetch did not get all of them, or it got a
    /// level-triggered one.
    is_due: bool,
}

impl Registered {
    pub(super) fn new() -> io::Result<Registered> {
        Ok(Registered {
            registry: Registry::new()?,
            buffer: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH],
            is_due: false,
        })
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The entry by which the ring watches the set.
    pub(super) fn request(&self) -> squeue::Entry {
        let set = self.registry.set().as_raw_fd();
        requests::poll(set, libc::EPOLLIN as u32, true, REGISTRY)
    }

    /// Notes that the ring has reported the set.
    pub(super) fn note_report(&mut self) {
        self.is_due = true;
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Fetches the set's events and returns whether there were any. Do not repeat this in the same poll:
    /// level-triggered events would come twice. If it fails, the events are still due: the ring won't report the set
    /// again.
    pub(super) fn fetch(&mut self, table: &mut Table, events: &mut Vec<Event>) -> io::Result<bool> {
        if !self.is_due {
            return Ok(false);
        }
        table.counters.system_calls += 1;
        let set = self.registry.set();
        let count = sys::epoll_wait(set, &mut self.buffer, Some(Duration::ZERO))?;
        self.is_due = count == self.buffer.len();
        for reported in &self.buffer[..count] {
            if let Some((event, level)) = registry::event_of(*reported) {
                table.report(event, events);
                self.is_due |= level;
            }
        }
        Ok(count > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::mem;
    use std::os::unix::net::UnixStream;

    use super::super::Uring;
    use super::*;
    use crate::config::Config;
    use crate::event::{Interest, Mode};
    use crate::waker::Waker;

    fn poll(uring: &mut Uring, events: &mut Vec<Event>) -> io::Result<()> {
        loop {
            match uring.poll(Some(Duration::from_secs(60)), events) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    #[test]
    fn a_failing_epoll_wait_is_told_and_loses_no_event() {
        let mut uring = match Uring::new(&Config::default(), Waker::new().unwrap()) {
            Ok(uring) => uring,
            Err(error) => {
                eprintln!("SKIPPED on io_uring: {error}");
                return;
            }
        };
        let registry = uring.registry().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let registration = registry
            .add(far.as_raw_fd(), Interest::READ, Mode::Edge)
            .unwrap();
        near.write_all(b"once").unwrap();

        // The ring watches the set, but the events are asked of something else.
        let registered = uring.registered.as_mut().unwrap();
        let set = mem::replace(&mut registered.registry, Registry::without_set());
        let mut events = Vec::new();
        for _ in 0..3 {
            let error = poll(&mut uring, &mut events).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        assert!(events.is_empty());

        uring.registered.as_mut().unwrap().registry = set;
        poll(&mut uring, &mut events).unwrap();
        let told: Vec<_> = events.iter().map(Event::registration).collect();
        assert_eq!(told, [Some(registration)]);
    }
}
