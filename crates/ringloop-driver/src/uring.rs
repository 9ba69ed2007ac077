//! The `io_uring` backend.
//!
//! - Nothing is handed to the kernel before [`poll`](Uring::poll) or [`flush`](Uring::flush): entries wait in the
//!   driver's own queue. So watching, dropping and submitting make no system call and never find the submission queue
//!   full. Entries that are cancelled in that queue never reach the kernel.
//! - The kernel looks up a descriptor when it takes its entry. Until then, and as long as the driver may have to repeat
//!   the request, the operation's slot holds the file open. So no entry refers to another file with the same number.
//! - The ring is created disabled, and enabled by the first thread that enters it, because with `SINGLE_ISSUER` that
//!   thread owns it. If another thread comes later, it gets a ring of its own, and the watches are armed there. Arming
//!   reports what is ready already, so nothing is lost.
//! - An enter always uses `GETEVENTS`: otherwise `DEFER_TASKRUN` produces no completions.
//! - The memory that the kernel writes to belongs to the operation's slot until the last completion. On drop everything
//!   is cancelled and reaped. Memory that the kernel still uses is leaked instead of freed.
//! - The registry's watches are in an epoll set of their own, which the ring watches. When the ring reports the set,
//!   its events are fetched with one `epoll_wait(2)`.
//!
//! `setup` makes the ring, `requests` builds its entries, `ring` submits them, `completions` interprets the results,
//! and `registered` is the registry's epoll set. This file decides what to request and when: watches, operations,
//! polling, moving to another thread, and winding up. It stays in one piece because all of these change the same state
//! of watches and operations.

mod completions;
mod registered;
mod requests;
mod ring;
mod setup;

use std::io;
use std::mem;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::contract::{BATCH, Countdown, Counters, Peek};
use crate::event::{Event, Interest, Mode};
use crate::op::{Op, SubmitError};
use crate::registry::Registry;
use crate::sys::{self, FileKind};
use crate::table::{Course, Owner, Phase, Table, WIND_UP_MAX, Watch};
use crate::token::Token;
use crate::waker::Waker;

use completions::{AtOnce, Remaining};
use registered::Registered;
use requests::{REGISTRY, WAKER};
use ring::{REFUSALS_MAX, Ring};
use setup::{SETUPS, SETUPS_SQ_POLL, Setup};

/// An enter that yields at least this many events may have left others behind: it runs at most 20 pieces of task work
/// (`IO_LOCAL_TW_DEFAULT_MAX`, Linux 6.13), and some of them may yield no event.
const FULL_ENTER: usize = 16;

pub(crate) struct Uring {
    ring: Ring,
    /// The work that is left after the last completions.
    remaining: Remaining,
    /// Results that do not come from the kernel, to be reported.
    ended: Vec<(Token, i32)>,
    /// Discarded operations that hold their sockets until the kernel has taken all entries.
    discarded: Vec<Token>,
    table: Table,
    waker: Waker,
    registered: Option<Registered>,
    /// Whether this is a child process: the ring is the parent's.
    abandoned: bool,
}

impl Uring {
    pub(crate) fn new(config: &Config, waker: Waker) -> io::Result<Uring> {
        let setups = if config.sq_poll {
            SETUPS_SQ_POLL
        } else {
            SETUPS
        };
        Uring::with_setups(config, setups, waker)
    }

    fn with_setups(config: &Config, setups: &'static [Setup], waker: Waker) -> io::Result<Uring> {
        let mut uring = Uring {
            ring: Ring::new(config, setups)?,
            remaining: Remaining::default(),
            ended: Vec::new(),
            discarded: Vec::new(),
            table: Table::new(config.slots),
            waker,
            registered: None,
            abandoned: false,
        };
        uring.arm_waker();
        Ok(uring)
    }

    pub(crate) fn description(&self) -> &str {
        self.ring.description()
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.table.counters;
        if let Some(registered) = &self.registered {
            counters.system_calls += registered.registry().system_calls();
        }
        counters
    }

    // ---- watches

    pub(crate) fn watch(&mut self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Token> {
        self.settle_in()?;
        // The kernel would report a regular file as always ready, and a bad descriptor only at the next poll.
        self.table.counters.system_calls += 1;
        match sys::file_kind(fd)? {
            FileKind::Stream => {}
            FileKind::Character => {
                self.table.counters.system_calls += 2;
                sys::can_be_polled(fd)?;
            }
            FileKind::Storage => return Err(io::Error::from_raw_os_error(libc::EPERM)),
        }
        let token = self.table.insert_watch(fd, interest, mode)?;
        self.arm(token);
        Ok(token)
    }

    pub(crate) fn rewatch(
        &mut self,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        self.settle_in()?;
        let before = self.table.renew_watch(token, interest, mode)?;
        self.disarm(token, before);
        self.arm(token);
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, token: Token) {
        if let Some(watch) = self.table.watch(token).copied() {
            self.disarm(token, watch);
            self.table.remove_watch(token);
        }
    }

    /// Queues the request of a watch.
    fn arm(&mut self, token: Token) {
        let Some(watch) = self.table.watch(token).copied() else {
            return;
        };
        let user_data = self.table.next_sequence(token);
        // TCP's wake-ups contain EPOLLPRI with any data. epoll then checks the socket, but io_uring reports it.
        let bits = watch.interest.poll_bits() & !(libc::EPOLLPRI as u32);
        let multishot = watch.mode == Mode::Edge || watch.outlasting;
        self.ring
            .push(requests::poll(watch.fd, bits, multishot, user_data));
    }

    /// Queues a cancel of a watch's request, if the kernel has one.
    fn disarm(&mut self, token: Token, watch: Watch) {
        if !watch.armed {
            return;
        }
        // A request that has just completed is not found, which is fine. POLL_REMOVE cannot be used: while an arrival
        // is being processed the kernel returns EALREADY and leaves the poll armed and the file open (io_poll_disarm in
        // io_uring/poll.c). A cancel marks the request, and the processing ends it.
        self.ring
            .push(requests::cancel(self.table.user_data(token)));
    }

    fn arm_waker(&mut self) {
        let fd = self.waker.fd();
        self.ring
            .push(requests::poll(fd, libc::EPOLLIN as u32, true, WAKER));
    }

    // ---- the registry

    pub(crate) fn registry(&mut self) -> io::Result<Registry> {
        if let Some(registered) = &self.registered {
            return Ok(registered.registry().clone());
        }
        let registered = self.registered.insert(Registered::new()?);
        let registry = registered.registry().clone();
        self.arm_registry();
        Ok(registry)
    }

    fn arm_registry(&mut self) {
        if let Some(registered) = &self.registered {
            self.ring.push(registered.request());
        }
    }

    /// Whether the registry's epoll set may have events.
    fn must_fetch(&self) -> bool {
        self.registered.as_ref().is_some_and(Registered::is_due)
    }

    fn fetch_registered(&mut self, events: &mut Vec<Event>) -> io::Result<bool> {
        match &mut self.registered {
            Some(registered) => registered.fetch(&mut self.table, events),
            None => Ok(false),
        }
    }

    // ---- operations

    pub(crate) fn submit(&mut self, op: Op) -> Result<Token, SubmitError> {
        if let Err(error) = self.settle_in() {
            return Err(SubmitError::new(error, op));
        }
        let token = self.table.insert_operation(op)?;
        self.start(token);
        Ok(token)
    }

    /// Queues the request of an operation.
    fn start(&mut self, token: Token) {
        let user_data = self.table.next_sequence(token);
        let Some(submitted) = self.table.operation(token) else {
            return;
        };
        submitted.phase = Phase::Queued;
        let Some(parked) = submitted.parked.as_mut() else {
            return;
        };
        let operation = parked.get_mut();
        operation.copies |= !self.ring.sends_zero_copy;
        if operation.op.is_misplaced() {
            // io_uring ignores the offset if the file has none (FMODE_STREAM).
            self.end(token, -libc::ESPIPE);
            return;
        }
        self.ring
            .push(requests::operation(operation).user_data(user_data));
    }

    /// Ends an operation that the kernel does not have. Its entry may stay in the queue and is skipped later.
    fn end(&mut self, token: Token, result: i32) {
        if let Some(submitted) = self.table.operation(token) {
            submitted.phase = Phase::Ended;
            self.ended.push((token, result));
        }
    }

    /// Reports the results that do not come from the kernel.
    fn report_ended(&mut self, events: &mut Vec<Event>) {
        for (token, result) in mem::take(&mut self.ended) {
            // Operations that were discarded since then are gone.
            if self.table.operation(token).is_some() {
                self.table.report_completion(token, result, false, events);
            }
        }
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
        match submitted.phase {
            Phase::Queued => self.end(token, -libc::ECANCELED),
            // ECANCELED of a close could come from the cancel or from the file.
            Phase::InFlight if submitted.course != Course::Close => {
                submitted.cancelled = true;
                let user_data = self.table.user_data(token);
                self.ring.push(requests::cancel_operation(user_data));
            }
            // An answered zero-copy send is over, except for its memory, which only the kernel can release.
            _ => {}
        }
    }

    pub(crate) fn cancel_fd(&mut self, fd: RawFd) {
        for token in self.table.operations_of(fd) {
            self.cancel(token);
        }
    }

    pub(crate) fn discard(&mut self, token: Token) {
        self.cancel(token);
        self.table.discard(token);
        let phase = self.table.operation(token).map(|submitted| submitted.phase);
        match phase {
            None => {}
            // The kernel does not have it, so it is freed at once.
            Some(Phase::Ended) => {
                self.table
                    .report_completion(token, -libc::ECANCELED, false, &mut Vec::new());
            }
            Some(_) => self.discarded.push(token),
        }
    }

    /// Releases the sockets of discarded operations once the kernel has taken all entries, and so has looked them up.
    fn release_discarded(&mut self) {
        if self.discarded.is_empty() || !self.ring.is_drained() {
            return;
        }
        for token in mem::take(&mut self.discarded) {
            self.table.release_socket(token);
        }
    }

    // ---- the kernel

    /// Makes sure that this thread may use the ring.
    fn settle_in(&mut self) -> io::Result<()> {
        if self.ring.is_usable() {
            Ok(())
        } else {
            self.rebuild()
        }
    }

    /// Makes a ring for this thread and arms everything there.
    #[cold]
    fn rebuild(&mut self) -> io::Result<()> {
        // Queued operations move along. Those in the old ring cannot.
        if self.table.has_in_flight() {
            // Some may have completed already, but only poll may report that.
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the loop moved to another thread while operations were in flight: \
                 finish or cancel them in the thread that submitted them, then move",
            ));
        }
        self.ring.rebuild()?;
        self.table.counters.rings_rebuilt += 1;
        self.arm_everything();
        Ok(())
    }

    /// Queues the requests of every armed watch, and of the waker's.
    fn arm_everything(&mut self) {
        self.arm_waker();
        self.arm_registry();
        for (token, watch) in self.table.watches() {
            if watch.armed {
                self.arm(token);
            }
        }
    }

    /// Returns what is known without a system call.
    pub(crate) fn peek(&self) -> Peek {
        let idle = self.remaining.level.is_empty()
            && !self.must_fetch()
            && self.ended.is_empty()
            && !self.waker.is_notified()
            && self.ring.is_idle();
        if idle { Peek::Empty } else { Peek::Ready }
    }

    /// Submits the queued entries until all are submitted or events come. Then waits for a completion if `wait`.
    /// Entries that the kernel does not accept, for lack of memory or room, stay queued. Returns how the wait ended.
    /// `events` may grow up to `enough`.
    fn enter_all(
        &mut self,
        wait: bool,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
        enough: usize,
    ) -> io::Result<Ended> {
        let before = events.len();
        let mut refusals = 0;
        loop {
            let all = self.ring.fill(&mut self.table);
            let wait_now = wait && all;
            match self.ring.enter(wait_now, timeout, &mut self.table.counters) {
                Ok(()) => {
                    if all && (!wait_now || self.ring.has_submitted()) {
                        return Ok(Ended::Returned);
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ETIME) => return Ok(Ended::TimedOut),
                    Some(libc::EINTR) => return Ok(Ended::Interrupted),
                    // The completion queue has overflowed, or there is no memory for requests. Reaping makes room, and
                    // what stays queued is tried again at the next poll at the latest.
                    Some(libc::EBUSY | libc::EAGAIN) => {
                        refusals += 1;
                        self.table.counters.refused_submits += 1;
                        if refusals == REFUSALS_MAX {
                            return Ok(Ended::Returned);
                        }
                        std::thread::yield_now();
                    }
                    // Completions were lost for lack of memory (Linux 5.19, io_uring_enter(2)). Arming the watches
                    // again reports what is ready.
                    Some(libc::EBADR) => {
                        self.table.counters.overflows += 1;
                        self.disarm_everything();
                        self.arm_everything();
                    }
                    _ => return Err(error),
                },
            }
            self.reap(events, enough);
            // Once there are events, do not wait for more, and do not go on submitting: with a full completion queue
            // each enter may end as many multishot requests as it submits, so the queue would never be empty.
            if events.len() > before || self.must_fetch() {
                return Ok(Ended::Returned);
            }
        }
    }

    /// Queues a cancel of every watch's request.
    fn disarm_everything(&mut self) {
        self.ring.push(requests::cancel(WAKER));
        self.ring.push(requests::cancel(REGISTRY));
        for (token, watch) in self.table.watches() {
            self.disarm(token, watch);
        }
    }

    /// Turns completions into events, until there are `enough`. The others stay in the completion queue.
    fn reap(&mut self, events: &mut Vec<Event>, enough: usize) {
        if self.ring.has_overflowed() {
            self.table.counters.overflows += 1;
        }
        self.release_discarded();
        if !self.ended.is_empty() {
            self.report_ended(events);
        }
        let mut completions = self.ring.completions();
        while events.len() < enough
            && let Some(completion) = completions.next()
        {
            self.remaining.note(&completion, &mut self.table, events);
        }
        drop(completions);
        if mem::take(&mut self.remaining.registry_reported)
            && let Some(registered) = &mut self.registered
        {
            registered.note_report();
        }
        if let Some(remaining) = self.remaining.at_once.take() {
            self.do_at_once(remaining, events);
        }
    }

    /// Does what completions have left to do at once.
    fn do_at_once(&mut self, remaining: AtOnce, events: &mut Vec<Event>) {
        for user_data in remaining.cancels {
            self.ring.push(requests::cancel(user_data));
        }
        if remaining.waker_ended {
            self.arm_waker();
        }
        if remaining.registry_ended {
            self.arm_registry();
        }
        for token in remaining.watches {
            self.table.counters.rearms += 1;
            self.arm(token);
        }
        for token in remaining.operations {
            self.begin_anew(token, events);
        }
        for token in remaining.missed {
            self.cancel(token);
        }
    }

    /// Queues the request of an operation again that the kernel has ended early.
    fn begin_anew(&mut self, token: Token, events: &mut Vec<Event>) {
        let submitted = self.table.operation(token);
        if submitted.is_some_and(|submitted| submitted.cancelled) {
            // The kernel would start it before it processes a second cancel. By now the user may have gone on, and the
            // descriptor's number may belong to another file.
            self.table
                .report_completion(token, -libc::ECANCELED, false, events);
            return;
        }
        self.table.counters.rearms += 1;
        self.start(token);
    }

    /// Arms the level watches again that have fired, so that they fire again if still ready.
    fn rearm_level(&mut self) {
        for token in mem::take(&mut self.remaining.level) {
            if self.table.rearm_level(token).is_some() {
                self.arm(token);
            }
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.settle_in()?;
        self.ring.flush(&mut self.table)?;
        self.release_discarded();
        Ok(())
    }

    /// A ring belongs to the thread that first entered it. One that none has entered has nothing to cancel.
    pub(crate) fn flush_if_own(&mut self) -> io::Result<()> {
        if self.ring.is_own() {
            self.flush()
        } else {
            Ok(())
        }
    }

    pub(crate) fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        self.table.reclaim();
        self.settle_in()?;
        self.rearm_level();
        let before = events.len();
        self.reap(events, before + BATCH);
        let mut fetched = self.fetch_registered(events)?;
        let may_wait = timeout != Some(Duration::ZERO);
        let mut countdown = Countdown::new(timeout, may_wait);
        // Watches that are armed now and ready already are reported first. They must not displace other events that are
        // waiting, and neither must the events collected so far.
        let enough = events.len() + BATCH + self.ring.queued();
        loop {
            let wait = may_wait && events.len() == before && self.waker.fall_asleep();
            if !wait && !self.ring.must_enter() {
                break;
            }
            let found = events.len();
            let left = countdown.left().filter(|_| wait);
            let ended = self.enter_all(wait, left, events, enough);
            let woken = wait && self.waker.get_up();
            let nothing_came = self.ring.completions().is_empty();
            self.reap(events, enough);
            let brought = events.len() - found;
            if !fetched {
                fetched = self.fetch_registered(events)?;
            }
            match ended? {
                Ended::TimedOut => break,
                Ended::Interrupted => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Ended::Returned => {}
            }
            let more = brought >= FULL_ENTER || brought > 0 && self.ring.queued() > 0;
            if more && events.len() < enough {
                continue;
            }
            if !wait || woken || events.len() > before {
                break;
            }
            if countdown.is_over() {
                break;
            }
            if nothing_came {
                // An enter that has submitted entries returns their number, not the signal that ended its wait.
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        self.table.counters.wakes += self.waker.clear();
        Ok(())
    }

    /// Marks this as a child process: the ring is the parent's and must not be used any more.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Drops the queued entries. Operations that the kernel does not have are over.
    fn drop_queued(&mut self, events: &mut Vec<Event>) {
        self.report_ended(events);
        for entry in self.ring.take_queued() {
            if let Some((token, Owner::Operation(_))) =
                self.table.by_user_data(entry.get_user_data())
            {
                self.table
                    .report_completion(token, -libc::ECANCELED, false, events);
            }
        }
    }

    /// Waits for up to `WIND_UP_MAX` until the changes of files have ended.
    fn finish_changes(&mut self, events: &mut Vec<Event>) {
        let mut changes = self.table.changes();
        let deadline = Instant::now() + WIND_UP_MAX;
        while !changes.is_empty() && Instant::now() < deadline {
            let entered = self.enter_all(true, Some(WIND_UP_STEP), events, usize::MAX);
            if entered.is_err() {
                break;
            }
            self.reap(events, usize::MAX);
            self.report_ended(events);
            changes.retain(|token| self.table.operation(*token).is_some());
        }
    }

    /// Lets changes of files end, cancels everything else, and waits for a limited time until the kernel has released it.
    fn wind_up(&mut self) {
        let mut events = Vec::new();
        for token in self.table.operations() {
            self.table.discard(token);
        }
        if self.ring.is_own() {
            self.finish_changes(&mut events);
        }
        self.drop_queued(&mut events);
        if self.ring.is_own() {
            // Watches are cancelled, too: a child that inherited the ring's descriptor would keep the ring and the
            // files alive.
            if self.table.is_closing() {
                // A cancelled close might not close its descriptor, and nobody could tell.
                self.disarm_everything();
            }
            let deadline = Instant::now() + WIND_UP_MAX;
            loop {
                // Each time, because the kernel may not find what it is about to try again.
                if self.table.is_closing() {
                    for token in self.table.operations() {
                        self.cancel(token);
                    }
                } else {
                    self.ring.push(requests::cancel_all());
                }
                let wait = !self.table.operations().is_empty();
                let step = Some(WIND_UP_STEP);
                let entered = self.enter_all(wait, step, &mut events, usize::MAX);
                self.reap(&mut events, usize::MAX);
                // Reaping queues requests again that the kernel has ended.
                self.drop_queued(&mut events);
                let idle = self.table.operations().is_empty() && !self.ring.must_enter();
                if entered.is_err() || idle || Instant::now() > deadline {
                    break;
                }
            }
        }
        // The kernel may still write to the remaining operations: the ring is another thread's, or they cannot be
        // cancelled.
        for token in self.table.operations() {
            self.table.leak_operation(token);
        }
    }
}

/// How long it waits at a time.
const WIND_UP_STEP: Duration = Duration::from_millis(10);

impl Drop for Uring {
    fn drop(&mut self) {
        // In a child process the table is a copy that the kernel does not write to, so it is just freed.
        if !self.abandoned {
            self.wind_up();
        }
        // After this the ring's memory is unmapped, its descriptor closed, and the table freed, in the order of the
        // fields.
    }
}

/// How a wait in the kernel ended.
enum Ended {
    Returned,
    TimedOut,
    Interrupted,
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::buffer::Buffer;
    use crate::bytes::Bytes;
    use crate::op::SENT_BY_COPY;
    use crate::shared_fd::SharedFd;

    /// Polls until there are events.
    fn next_events(uring: &mut Uring) -> Vec<Event> {
        let mut events = Vec::new();
        while events.is_empty() {
            match uring.poll(Some(Duration::from_secs(60)), &mut events) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => result.unwrap(),
            }
        }
        events
    }

    /// Runs a body with each setup, unless io_uring is refused.
    fn with_each_setup(body: impl Fn(Uring)) {
        for first in 0..SETUPS.len() {
            match Uring::with_setups(&Config::default(), &SETUPS[first..], Waker::new().unwrap()) {
                Ok(uring) => body(uring),
                Err(error) => {
                    eprintln!("SKIPPED on io_uring: {error}");
                    return;
                }
            }
        }
    }

    /// Setups for older kernels do all that the best setup does.
    #[test]
    fn every_setup_serves_and_lets_go() {
        with_each_setup(|mut uring| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = SharedFd::new(listener.accept().unwrap().0);
            let fd = server.as_raw_fd();
            let watch = uring.watch(fd, Interest::READ, Mode::Edge).unwrap();
            uring.flush().unwrap();
            client.write_all(b"x").unwrap();
            assert_eq!(next_events(&mut uring)[0].token, watch);
            assert_eq!(uring.peek(), Peek::Empty);
            client.write_all(b"y").unwrap();
            assert_eq!(uring.peek(), Peek::Ready, "{}", uring.description());
            assert_eq!(next_events(&mut uring)[0].token, watch);
            let receive = || Op::Read {
                fd: server.clone(),
                buffer: Buffer::new(Vec::with_capacity(2)),
                offset: None,
            };
            let received = uring.submit(receive()).unwrap();
            assert_eq!(next_events(&mut uring)[0].token, received);
            assert!(uring.take(received).is_some());
            let cancelled = uring.submit(receive()).unwrap();
            uring.flush().unwrap();
            uring.discard(cancelled);
            uring.unwatch(watch);
            drop(server);
            while uring.counters().operations > 0 {
                uring
                    .poll(Some(Duration::from_millis(1)), &mut Vec::new())
                    .unwrap();
            }
            client
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        });
    }

    /// Before Linux 6.13, one enter brings everything that has come. What is too much waits in the completion queue.
    #[test]
    fn a_poll_reports_a_batch_of_what_has_come() {
        with_each_setup(|mut uring| {
            let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
            let copies: Vec<_> = (0..BATCH + 100)
                .map(|_| near.try_clone().unwrap())
                .collect();
            let mut missing: std::collections::HashSet<_> = copies
                .iter()
                .map(|copy| {
                    uring
                        .watch(copy.as_raw_fd(), Interest::READ, Mode::Edge)
                        .unwrap()
                })
                .collect();
            far.write_all(b"x").unwrap();
            // What is ready already completes when it is submitted.
            uring.flush().unwrap();
            let mut events = Vec::new();
            for _ in 0..2 {
                assert_eq!(uring.peek(), Peek::Ready);
                let before = events.len();
                uring.poll(Some(Duration::ZERO), &mut events).unwrap();
                let count = events.len() - before;
                assert!(
                    (1..=BATCH).contains(&count),
                    "{count}: {}",
                    uring.description()
                );
            }
            for event in events {
                missing.remove(&event.token);
            }
            assert!(missing.is_empty());
        });
    }

    /// Before Linux 6.2, zero-copy sends are ordinary sends with the events of zero-copy ones.
    #[test]
    fn a_kernel_without_zero_copy_sends_copies() {
        let mut uring = match Uring::new(&Config::default(), Waker::new().unwrap()) {
            Ok(uring) => uring,
            Err(error) => {
                eprintln!("SKIPPED on io_uring: {error}");
                return;
            }
        };
        uring.ring.sends_zero_copy = false;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let client = SharedFd::new(client);
        let (mut server, _) = listener.accept().unwrap();
        let send = uring
            .submit(Op::SendZeroCopy {
                fd: client.clone(),
                bytes: Bytes::new("hello"),
                flags: 0,
            })
            .unwrap();
        let events = next_events(&mut uring);
        let results: Vec<_> = events
            .iter()
            .map(|event| (event.token, event.result, event.is_more()))
            .collect();
        assert_eq!(results, [(send, 5, true), (send, SENT_BY_COPY, false)]);
        assert!(uring.take(send).is_some());
        let mut received = [0; 5];
        server.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"hello");
    }
}
