//! The meaning of completions: the events that they cause, and the work that they leave.

use io_uring::cqueue;

use super::requests::{INTERNAL, REGISTRY, WAKER, cancelled_slot};
use crate::event::{Event, Mode, Readiness};
use crate::op::{SENT_BY_COPY, SENT_WITHOUT_COPY};
use crate::table::{Course, Owner, Table, Watch};
use crate::token::Token;

/// The events of a descriptor that the kernel reports without being asked.
const UNASKED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32 | libc::POLLNVAL as u32;

/// Set in the result of a notification if the kernel has copied the data (`IORING_NOTIF_USAGE_ZC_COPIED`).
const NOTIFICATION_COPIED: i32 = i32::MIN;

/// The work that completions leave. It is taken out of here when it is done.
#[derive(Default)]
pub(super) struct Remaining {
    /// `None` in the common case.
    pub(super) at_once: Option<AtOnce>,
    /// Level watches that have fired, to be armed again at the next poll.
    pub(super) level: Vec<Token>,
    /// Whether the ring has reported the registry's epoll set.
    pub(super) registry_reported: bool,
}

/// The work to do when all completions are noted.
#[derive(Default)]
pub(super) struct AtOnce {
    /// Requests to be cancelled, by their user data.
    pub(super) cancels: Vec<u64>,
    /// Whether the request for the waker has ended.
    pub(super) waker_ended: bool,
    /// Whether the request for the registry's epoll set has ended.
    pub(super) registry_ended: bool,
    /// Watches whose request the kernel has ended, to be armed again.
    pub(super) watches: Vec<Token>,
    /// Operations that the kernel has ended early, to be queued again.
    pub(super) operations: Vec<Token>,
    /// Operations that the kernel did not find when they were cancelled, although they go on.
    pub(super) missed: Vec<Token>,
}

impl Remaining {
    /// Reports the events of a completion, and notes the work that it leaves.
    #[inline]
    pub(super) fn note(
        &mut self,
        completion: &cqueue::Entry,
        table: &mut Table,
        events: &mut Vec<Event>,
    ) {
        let (user_data, result) = (completion.user_data(), completion.result());
        let more = cqueue::more(completion.flags());
        if user_data & INTERNAL == INTERNAL {
            self.note_internal(user_data, result, more, table);
            return;
        }
        match table.by_user_data(user_data) {
            None => table.counters.stale_events += 1,
            Some((token, Owner::Watch(_))) if result < 0 => {
                // The kernel cannot wait for it. A read or a write returns the reason.
                if let Some(watch) = table.watch_mut(token) {
                    watch.armed = false;
                }
                table.report_readiness(token, Readiness::ERROR | Readiness::HANG_UP, events);
            }
            Some((token, Owner::Watch(watch))) => {
                // Unlike epoll, the kernel also reports the end of the peer's data without being asked (IO_POLL_UNMASK
                // in io_uring/poll.c).
                let readiness = result as u32 & (watch.interest.poll_bits() | UNASKED);
                if readiness == 0 {
                    self.go_on_watching(token, more, table);
                } else {
                    self.fire(token, watch, user_data, more, table);
                    table.report_readiness(token, Readiness::from_bits(readiness), events);
                }
            }
            Some((token, Owner::Operation(Course::ZeroCopy))) => {
                let is_notification = cqueue::notif(completion.flags());
                if end_zero_copy(table, token, result, more, is_notification, events) {
                    self.at_once().operations.push(token);
                }
            }
            Some((token, Owner::Operation(_))) if table.opens_again(token, result) => {
                self.at_once().operations.push(token);
            }
            Some((token, Owner::Operation(_))) => {
                let result = end_of(table, token, result);
                table.report_completion(token, result, more, events);
            }
        }
    }

    #[cold]
    fn at_once(&mut self) -> &mut AtOnce {
        self.at_once.get_or_insert_default()
    }

    /// Notes a completion of one of the driver's own requests.
    fn note_internal(&mut self, user_data: u64, result: i32, more: bool, table: &mut Table) {
        match user_data {
            WAKER if !more => self.at_once().waker_ended = true,
            REGISTRY => {
                self.registry_reported = true;
                if !more {
                    self.at_once().registry_ended = true;
                }
            }
            _ if result == -libc::ENOENT => {
                // It has just completed; or the kernel is about to try it again, after its socket was woken for nothing
                // (io_req_task_queue in io_uring/io_uring.c), and might then wait in a worker thread.
                let missed = cancelled_slot(user_data).and_then(|index| table.goes_on(index));
                if let Some(token) = missed {
                    self.at_once().missed.push(token);
                }
            }
            _ => {}
        }
    }

    /// Keeps a watch waiting: the kernel has reported nothing that was asked for.
    fn go_on_watching(&mut self, token: Token, more: bool, table: &mut Table) {
        if more {
            return;
        }
        // A one-shot request would end with the same report again and again. A multishot one reports it once and
        // continues.
        if let Some(watch) = table.watch_mut(token) {
            watch.outlasting = watch.mode != Mode::Edge;
        }
        self.at_once().watches.push(token);
    }

    /// Updates a watch that fires. An edge watch keeps waiting, a level watch waits again from the next poll, and a
    /// one-shot watch stops.
    #[inline]
    fn fire(&mut self, token: Token, watch: Watch, user_data: u64, more: bool, table: &mut Table) {
        if watch.mode == Mode::Edge {
            if !more {
                self.at_once().watches.push(token);
            }
            return;
        }
        if let Some(watch) = table.watch_mut(token) {
            watch.armed = false;
            watch.outlasting = false;
        }
        if more {
            // A new sequence number makes its further reports stale.
            self.at_once().cancels.push(user_data);
            table.next_sequence(token);
        }
        if watch.mode == Mode::Level {
            self.level.push(token);
        }
    }
}

/// The result to report: the kernel ends an operation that is cancelled while it waits in a worker thread as if by a signal.
fn end_of(table: &mut Table, token: Token, result: i32) -> i32 {
    if result == -libc::EINTR && table.is_cancelled(token) {
        -libc::ECANCELED
    } else {
        result
    }
}

/// Handles a completion of a zero-copy send. It is either the result, after which a notification follows if `more`, or
/// that notification, after which the kernel has released the memory. Returns whether to queue the request again.
fn end_zero_copy(
    table: &mut Table,
    token: Token,
    result: i32,
    more: bool,
    is_notification: bool,
    events: &mut Vec<Event>,
) -> bool {
    let Some(submitted) = table.operation(token) else {
        return false;
    };
    let last = if is_notification {
        match submitted.error {
            0 if result & NOTIFICATION_COPIED == 0 => SENT_WITHOUT_COPY,
            0 => SENT_BY_COPY,
            error => error,
        }
    } else if result < 0 && more {
        // The kernel still uses the memory, so the error waits for the notification.
        submitted.error = result;
        return false;
    } else if result < 0 {
        result
    } else {
        table.report_completion(token, result, true, events);
        if more {
            return false;
        }
        // It was an ordinary send, which copies everything.
        SENT_BY_COPY
    };
    if matches!(-last, libc::EOPNOTSUPP | libc::ENOMEM)
        && let Some(submitted) = table.operation(token)
        && let Some(parked) = submitted.parked.as_mut()
        && !parked.get_mut().copies
    {
        // The socket does not support it, such as a Unix socket, or RLIMIT_MEMLOCK is exhausted.
        submitted.error = 0;
        parked.get_mut().copies = true;
        return true;
    }
    let last = end_of(table, token, last);
    table.report_completion(token, last, false, events);
    false
}
