//! The epoll backend: watches are epoll's, operations are emulated.
//!
//! - An operation is tried at the next poll or flush. If it would block, its descriptor is registered, and the
//!   operation is tried again when the descriptor is ready. Operations in the same direction of a descriptor keep their
//!   order.
//! - Operations without readiness (on files, opening, closing, metadata) go to worker threads. A worker owns the
//!   operation and its buffers while it works.
//! - A descriptor has one registration, for its watch and its operations together. A one-shot registration that has
//!   fired stays in the epoll set, disabled, until the descriptor is closed.
//! - The registry's watches are in the same epoll set. The event's data tells them apart.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use crate::contract::{BATCH, Countdown, Counters, Peek};
use crate::emulation::{Attempt, failure, try_now};
use crate::event::{Event, Interest, Mode, Readiness};
use crate::op::{Op, SubmitError};
use crate::registry::{self, Registry};
use crate::sys;
use crate::table::{Phase, Table, WIND_UP_MAX, Watch};
use crate::token::Token;
use crate::waker::Waker;
use crate::workers::Workers;

/// The event data of the waker's eventfd. It is no descriptor's number.
const WAKER: u64 = u64::MAX;

const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EDGE: u32 = libc::EPOLLET as u32;
/// The events that every registration reports without being asked.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// A result that has not been reported.
struct Completion {
    token: Token,
    result: i32,
    more: bool,
}

pub(crate) struct Epoll {
    /// It owns the epoll set.
    registry: Registry,
    table: Table,
    waker: Waker,
    /// Operations to be tried.
    pending: VecDeque<Token>,
    completions: VecDeque<Completion>,
    workers: Option<Workers>,
    buffer: Vec<libc::epoll_event>,
    /// Whether the kernel has `epoll_pwait2(2)`.
    precise: bool,
    abandoned: bool,
}

impl Epoll {
    pub(crate) fn new(waker: Waker, slots: usize) -> io::Result<Epoll> {
        let registry = Registry::new()?;
        sys::epoll_control(
            registry.set(),
            libc::EPOLL_CTL_ADD,
            waker.fd(),
            libc::EPOLLIN as u32 | EDGE,
            WAKER,
        )?;
        Ok(Epoll {
            registry,
            table: Table::new(slots),
            waker,
            pending: VecDeque::new(),
            completions: VecDeque::new(),
            workers: None,
            buffer: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH],
            precise: true,
            abandoned: false,
        })
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.table.counters;
        counters.system_calls += self.registry.system_calls();
        counters
    }

    #[expect(clippy::unnecessary_wraps, reason = "the backends have one interface")]
    pub(crate) fn registry(&mut self) -> io::Result<Registry> {
        Ok(self.registry.clone())
    }

    // ---- watches

    pub(crate) fn watch(&mut self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Token> {
        let token = self.table.insert_watch(fd, interest, mode)?;
        if let Err(error) = self.register(fd) {
            self.table.remove_watch(token);
            return Err(error);
        }
        Ok(token)
    }

    pub(crate) fn rewatch(
        &mut self,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        let before = self.table.renew_watch(token, interest, mode)?;
        let registered = self.register(before.fd);
        if registered.is_err()
            && let Some(watch) = self.table.watch_mut(token)
        {
            watch.armed = false;
        }
        registered
    }

    pub(crate) fn unwatch(&mut self, token: Token) {
        let Some(watch) = self.table.remove_watch(token) else {
            return;
        };
        if watch.armed {
            // The descriptor may be closed already, and with it its registration.
            let _ = self.register(watch.fd);
        }
    }

    /// The events that a descriptor should be registered for.
    fn wanted(&mut self, fd: RawFd) -> u32 {
        let mut wanted = 0;
        for token in self.table.operations_of(fd) {
            if let Some(direction) = self.direction(token) {
                wanted |= direction.poll_bits();
            }
        }
        match self.table.watch_of(fd) {
            Some((
                _,
                Watch {
                    armed: true,
                    interest,
                    mode,
                    ..
                },
            )) => {
                wanted |= interest.poll_bits();
                match mode {
                    Mode::Edge => wanted |= EDGE,
                    Mode::Level => {}
                    Mode::OneShot => wanted |= ONE_SHOT,
                }
            }
            _ if wanted != 0 => wanted |= ONE_SHOT,
            _ => {}
        }
        wanted
    }

    /// Registers a descriptor for what is wanted now. If it is ready already, the kernel reports it.
    fn register(&mut self, fd: RawFd) -> io::Result<()> {
        let wanted = self.wanted(fd);
        let Some(descriptor) = self.table.descriptor(fd) else {
            return Ok(());
        };
        let known = descriptor.registration;
        if wanted == 0 {
            if known == 0 || known == ONE_SHOT {
                return Ok(());
            }
            descriptor.registration = 0;
            self.table.counters.system_calls += 1;
            return match sys::epoll_control(self.registry.set(), libc::EPOLL_CTL_DEL, fd, 0, 0) {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EBADF)) => {
                    Err(error)
                }
                _ => Ok(()),
            };
        }
        descriptor.epoch = descriptor.epoch.wrapping_add(1);
        descriptor.registration = wanted;
        let data = u64::from(descriptor.epoch) << 32 | u64::from(fd as u32);
        let (first, second) = if known == 0 {
            (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD)
        } else {
            (libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD)
        };
        self.table.counters.system_calls += 1;
        let mut result = sys::epoll_control(self.registry.set(), first, fd, wanted, data);
        // The descriptor was closed and its number reused, or a registration that fired was left in the set.
        if matches!(
            result.as_ref().map_err(io::Error::raw_os_error),
            Err(Some(libc::ENOENT | libc::EEXIST))
        ) {
            self.table.counters.system_calls += 1;
            result = sys::epoll_control(self.registry.set(), second, fd, wanted, data);
        }
        if result.is_err()
            && let Some(descriptor) = self.table.descriptor(fd)
        {
            descriptor.registration = 0;
        }
        result
    }

    // ---- operations

    pub(crate) fn submit(&mut self, op: Op) -> Result<Token, SubmitError> {
        let token = self.table.insert_operation(op)?;
        self.pending.push_back(token);
        Ok(token)
    }

    pub(crate) fn take(&mut self, token: Token) -> Option<Op> {
        self.table.take(token)
    }

    pub(crate) fn take_fd(&mut self, event: &Event) -> Option<OwnedFd> {
        self.table.take_fd(event)
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let Some(submitted) = self.table.operation(token) else {
            return;
        };
        if submitted.parked.is_none() && submitted.phase == Phase::InFlight {
            // A worker that has started cannot be stopped. Its result will come.
            let Some(parked) = self
                .workers
                .as_ref()
                .and_then(|workers| workers.withdraw(token))
            else {
                return;
            };
            if let Some(submitted) = self.table.operation(token) {
                submitted.parked = Some(parked);
            }
        }
        self.finish(token, -libc::ECANCELED);
    }

    pub(crate) fn cancel_fd(&mut self, fd: RawFd) {
        for token in self.table.operations_of(fd) {
            self.cancel(token);
        }
    }

    pub(crate) fn discard(&mut self, token: Token) {
        self.cancel(token);
        self.table.discard(token);
        // A finished operation is freed at once, with its file. A worker that has started keeps both until it is done.
        for _ in 0..self.completions.len() {
            match self.completions.pop_front() {
                Some(completion) if completion.token == token => {
                    let Completion { result, more, .. } = completion;
                    self.table
                        .report_completion(token, result, more, &mut Vec::new());
                }
                other => self.completions.extend(other),
            }
        }
    }

    /// Queues the last result of an operation in flight.
    fn finish(&mut self, token: Token, result: i32) {
        match self.table.operation(token) {
            Some(submitted) if submitted.phase == Phase::InFlight => submitted.phase = Phase::Ended,
            _ => return,
        }
        self.completions.push_back(Completion {
            token,
            result,
            more: false,
        });
        self.retire(token);
    }

    /// Removes an operation from its descriptor's list, so that it is not tried again.
    fn retire(&mut self, token: Token) {
        let fd = self
            .table
            .operation(token)
            .and_then(|submitted| submitted.fd);
        let Some(descriptor) = fd.and_then(|fd| self.table.descriptor(fd)) else {
            return;
        };
        descriptor
            .operations
            .retain(|operation| *operation != token);
        if let Some(fd) = fd.filter(|_| {
            descriptor.registration != 0 && descriptor.registration & (ONE_SHOT | EDGE) == 0
        }) {
            // A level-triggered registration that nobody needs would make each poll return. The other kinds fire at
            // most once more.
            let _ = self.register(fd);
        }
    }

    /// The direction that an operation waits for, if any.
    fn direction(&mut self, token: Token) -> Option<Interest> {
        let parked = self.table.parked(token)?;
        match parked.get_mut().op {
            Op::Read { .. } => Some(Interest::READ),
            Op::SendZeroCopy { .. } | Op::Write { .. } => Some(Interest::WRITE),
            _ => None,
        }
    }

    /// Tries the operations that were submitted.
    fn start_pending(&mut self) {
        for _ in 0..self.pending.len() {
            let Some(token) = self.pending.pop_front() else {
                return;
            };
            let (fd, never_waits) = match self.table.operation(token) {
                Some(submitted) if submitted.phase == Phase::InFlight => {
                    let parked = submitted.parked.as_mut();
                    let op = parked.map(|parked| &parked.get_mut().op);
                    (submitted.fd, op.is_some_and(Op::never_waits))
                }
                _ => continue,
            };
            if !never_waits && fd.is_some_and(|fd| self.is_behind(token, fd)) {
                continue;
            }
            if self.attempt(token)
                && let Some(Err(error)) = fd.map(|fd| self.register(fd))
            {
                // The descriptor has no readiness.
                self.finish(token, failure(&error));
            }
        }
    }

    /// Whether an earlier operation waits for the same direction of the same descriptor.
    fn is_behind(&mut self, token: Token, fd: RawFd) -> bool {
        let direction = self.direction(token);
        let operations = self.table.operations_of(fd);
        let earlier = operations.iter().take_while(|other| **other != token);
        direction.is_some()
            && earlier
                .copied()
                .collect::<Vec<_>>()
                .into_iter()
                .any(|other| self.direction(other) == direction && !self.pending.contains(&other))
    }

    /// Tries an operation. Returns whether it waits for its descriptor.
    fn attempt(&mut self, token: Token) -> bool {
        loop {
            let Some(submitted) = self.table.operation(token) else {
                return false;
            };
            let Some(parked) = submitted.parked.as_mut() else {
                return false;
            };
            let mut earlier = Vec::new();
            let attempt = try_now(parked.get_mut(), &mut earlier);
            let more = earlier.into_iter().map(|result| Completion {
                token,
                result,
                more: true,
            });
            self.completions.extend(more);
            self.table.counters.system_calls += 1;
            match attempt {
                Attempt::Done(result) if result == -libc::EINTR => {}
                Attempt::Done(result) => {
                    self.finish(token, result);
                    return false;
                }
                Attempt::Blocked => return true,
                Attempt::Offload => {
                    self.offload(token);
                    return false;
                }
            }
        }
    }

    fn offload(&mut self, token: Token) {
        let Some(parked) = self
            .table
            .operation(token)
            .and_then(|submitted| submitted.parked.take())
        else {
            return;
        };
        let waker = &self.waker;
        self.workers
            .get_or_insert_with(|| Workers::new(waker.clone()))
            .hire(token, parked);
    }

    /// Collects the operations that the workers have finished.
    fn collect(&mut self) {
        let done = self
            .workers
            .as_ref()
            .map_or_else(Vec::new, Workers::collect);
        for (token, parked, result) in done {
            if let Some(submitted) = self.table.operation(token) {
                submitted.parked = Some(parked);
                self.finish(token, result);
            }
        }
    }

    // ---- the kernel

    pub(crate) fn peek(&self) -> Peek {
        let idle =
            self.pending.is_empty() && self.completions.is_empty() && !self.waker.is_notified();
        if idle { Peek::Unknown } else { Peek::Ready }
    }

    /// Tries the submitted operations. Watches and cancels have taken effect already.
    #[expect(clippy::unnecessary_wraps, reason = "the backends have one interface")]
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.start_pending();
        Ok(())
    }

    /// An epoll set is every thread's.
    pub(crate) fn flush_if_own(&mut self) -> io::Result<()> {
        self.flush()
    }

    pub(crate) fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        self.table.reclaim();
        let before = events.len();
        self.start_pending();
        self.report(events);
        let may_wait = timeout != Some(Duration::ZERO) && self.pending.is_empty();
        let mut countdown = Countdown::new(timeout, may_wait);
        loop {
            let wait = may_wait && events.len() == before && self.waker.fall_asleep();
            let waited = self.wait(if wait {
                countdown.left()
            } else {
                Some(Duration::ZERO)
            });
            let woken = wait && self.waker.get_up();
            let count = match waited {
                Ok(count) => count,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Err(error) => return Err(error),
            };
            for index in 0..count {
                let reported = self.buffer[index];
                if let Some((event, _)) = registry::event_of(reported) {
                    self.table.report(event, events);
                } else {
                    self.dispatch(reported.u64, reported.events, events);
                }
            }
            self.collect();
            self.report(events);
            if !wait || woken || events.len() > before || !self.pending.is_empty() {
                break;
            }
            if countdown.is_over() {
                break;
            }
        }
        self.take_notice(events);
        Ok(())
    }

    /// Consumes a wake, and collects from the workers again: one of them may have woken this poll after its last look,
    /// and the next poll would sleep.
    fn take_notice(&mut self, events: &mut Vec<Event>) {
        let wakes = self.waker.clear();
        self.table.counters.wakes += wakes;
        if wakes > 0 {
            self.collect();
            self.report(events);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.table.counters.system_calls += 1;
        if self.precise {
            match sys::epoll_wait_precise(self.registry.set(), &mut self.buffer, timeout) {
                // Linux before 5.11, or a seccomp filter that does not know the call.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    self.precise = false;
                }
                waited => return waited,
            }
        }
        sys::epoll_wait(self.registry.set(), &mut self.buffer, timeout)
    }

    /// Handles an event: tries the descriptor's operations and reports its watch.
    fn dispatch(&mut self, data: u64, bits: u32, events: &mut Vec<Event>) {
        if data == WAKER {
            return;
        }
        let fd = data as u32 as RawFd;
        let (registration, had_operations) = match self.table.descriptor(fd) {
            Some(descriptor)
                if descriptor.epoch == (data >> 32) as u32 && descriptor.registration != 0 =>
            {
                if descriptor.registration & ONE_SHOT != 0 {
                    descriptor.registration = ONE_SHOT;
                }
                (descriptor.registration, !descriptor.operations.is_empty())
            }
            _ => {
                // The descriptor was closed, but its file and registration live on because of a duplicate.
                self.table.counters.stale_events += 1;
                return;
            }
        };
        if had_operations {
            self.attempt_ready(fd, bits);
        }
        let mut fired = false;
        if let Some((token, watch)) = self.table.watch_of(fd) {
            let bits = bits & (watch.interest.poll_bits() | ALWAYS);
            if watch.armed && bits != 0 {
                fired = true;
                if let Some(watch) = self
                    .table
                    .watch_mut(token)
                    .filter(|watch| watch.mode == Mode::OneShot)
                {
                    watch.armed = false;
                }
                self.table
                    .report_readiness(token, Readiness::from_bits(bits), events);
            }
        }
        // The registration was for both: arm it again for whatever still waits.
        if registration == ONE_SHOT
            && (had_operations || !fired)
            && self.wanted(fd) != 0
            && let Err(error) = self.register(fd)
        {
            for token in self.table.operations_of(fd) {
                self.finish(token, failure(&error));
            }
        }
    }

    /// Tries the operations that the descriptor is ready for.
    fn attempt_ready(&mut self, fd: RawFd, bits: u32) {
        let mut ready = [Interest::READ, Interest::WRITE]
            .map(|direction| (direction, bits & (direction.poll_bits() | ALWAYS) != 0));
        for token in self.table.operations_of(fd) {
            let direction = self.direction(token);
            for (of, is_ready) in &mut ready {
                if direction == Some(*of) && *is_ready {
                    // The operations behind one that blocks would block as well.
                    *is_ready = !self.attempt(token);
                }
            }
        }
    }

    /// Reports the queued results.
    fn report(&mut self, events: &mut Vec<Event>) {
        while let Some(Completion {
            token,
            result,
            more,
        }) = self.completions.pop_front()
        {
            self.table.report_completion(token, result, more, events);
        }
    }

    /// Marks this as a child process: the epoll set is the parent's, and there are no workers.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        if self.abandoned {
            // A worker may have held the lock of the queue during the fork. Here it would stay locked for ever.
            std::mem::forget(self.workers.take());
            return;
        }
        if !self.table.changes().is_empty() {
            self.start_pending();
        }
        if let Some(workers) = &self.workers {
            workers.finish_changes(WIND_UP_MAX);
        }
        // Close opened files that were not reported.
        self.collect();
        for token in self.table.operations() {
            self.discard(token);
        }
        self.report(&mut Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_done_late_in_a_poll_is_not_forgotten() {
        let mut epoll = Epoll::new(Waker::new().unwrap(), 0).unwrap();
        let token = epoll
            .submit(Op::Statx {
                directory: None,
                path: c"/".to_owned(),
                flags: 0,
                mask: libc::STATX_BASIC_STATS,
                status: Box::default(),
            })
            .unwrap();
        let mut events = Vec::new();
        epoll.flush().unwrap();
        // The worker finishes after the poll has collected, and before the poll ends.
        while !epoll.waker.is_notified() {
            std::thread::yield_now();
        }
        epoll.take_notice(&mut events);
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].token, events[0].result), (token, 0));
    }
}
