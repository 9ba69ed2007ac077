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
    /// level-triggered events would come twice.
    pub(super) fn fetch(&mut self, table: &mut Table, events: &mut Vec<Event>) -> bool {
        if !self.is_due {
            return false;
        }
        table.counters.system_calls += 1;
        let set = self.registry.set();
        // With a timeout of zero it fails only for a bad descriptor or bad memory.
        let count = sys::epoll_wait(set, &mut self.buffer, Some(Duration::ZERO)).unwrap_or(0);
        self.is_due = count == self.buffer.len();
        for reported in &self.buffer[..count] {
            if let Some((event, level)) = registry::event_of(*reported) {
                table.report(event, events);
                self.is_due |= level;
            }
        }
        count > 0
    }
}
