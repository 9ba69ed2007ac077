//! A backend for tests. Its kernel plays a [`Script`], including faults.
//!
//! Armings, tokens and resources use the same table as on the other backends. So a test can make a completion of an
//! earlier arming come late, for instance, and observe what a user of the driver sees. Time does not pass: a poll plays
//! one turn of the script and records how long it would have waited.
//!
//! Under a [plan](Script::plan) the descriptors are real and the requests are really performed. The plan decides when,
//! how much of them, and whether.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::contract::{Counters, Peek, refused};
use crate::event::{Event, Interest, Mode, Readiness};
use crate::op::{Op, SENT_BY_COPY, SubmitError};
use crate::plan::{Fault, Plan, Planned};
use crate::registry::Registry;
use crate::script::{Script, Step};
use crate::sys;
use crate::table::{Course, Owner, Phase, Table, Watch};
use crate::token::Token;
use crate::waker::Waker;

/// How long a poll sleeps under a plan before it polls the kernel again.
const NAP: Duration = Duration::from_micros(20);

/// How an operation ends.
#[derive(Debug)]
enum Outcome {
    Result(i32),
    Descriptor(OwnedFd),
}

/// A request, queued or in the kernel.
#[derive(Clone, Copy, Debug)]
struct Request {
    fd: Option<RawFd>,
    user_data: u64,
}

pub(crate) struct Scripted {
    script: Script,
    table: Table,
    waker: Waker,
    queued: VecDeque<Request>,
    accepted: Vec<Request>,
    /// Armings that are over for the driver, though the kernel may not know yet. The latest is last.
    removed: Vec<Request>,
    /// Level watches that have fired.
    rearm: Vec<Token>,
    /// Steps for requests that the kernel does not have yet.
    early: Vec<Step>,
    /// Operations that were cancelled.
    cancelled: Vec<Token>,
    /// Discarded operations. Their sockets are released when the kernel has taken all requests.
    discarded: Vec<Token>,
    plan: Option<Plan>,
    /// Under a plan: what happens to the accepted requests.
    planned: Vec<Planned>,
}

impl Scripted {
    pub(crate) fn new(script: Script, waker: Waker) -> Scripted {
        let plan = script.lock().plan.take();
        Scripted {
            script,
            table: Table::for_script(plan.is_some()),
            plan,
            planned: Vec::new(),
            waker,
            queued: VecDeque::new(),
            accepted: Vec::new(),
            removed: Vec::new(),
            rearm: Vec::new(),
            early: Vec::new(),
            cancelled: Vec::new(),
            discarded: Vec::new(),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.table.counters
    }

    fn check_refusal(&self) -> io::Result<()> {
        let refusal = self.script.lock().watch_refusals.pop_front();
        refusal.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    pub(crate) fn watch(&mut self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Token> {
        self.check_refusal()?;
        let token = self.table.insert_watch(fd, interest, mode)?;
        self.arm(token, Some(fd));
        Ok(token)
    }

    pub(crate) fn rewatch(
        &mut self,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        self.check_refusal()?;
        let before = self.table.renew_watch(token, interest, mode)?;
        self.disarm(self.table.user_data(token));
        self.arm(token, Some(before.fd));
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, token: Token) {
        if self.table.watch(token).is_some() {
            self.disarm(self.table.user_data(token));
            self.table.remove_watch(token);
        }
    }

    #[expect(
        clippy::unused_self,
        clippy::needless_pass_by_ref_mut,
        reason = "the backends have one interface"
    )]
    pub(crate) fn registry(&mut self) -> io::Result<Registry> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn arm(&mut self, token: Token, fd: Option<RawFd>) {
        let user_data = self.table.next_sequence(token);
        self.queued.push_back(Request { fd, user_data });
    }

    /// Removes a request from the kernel, which may still report it late.
    fn disarm(&mut self, user_data: u64) {
        let is_meant = |request: &Request| request.user_data == user_data;
        self.removed
            .extend(self.accepted.iter().copied().filter(is_meant));
        self.removed
            .extend(self.queued.iter().copied().filter(is_meant));
        self.accepted.retain(|request| !is_meant(request));
        self.queued.retain(|request| !is_meant(request));
    }

    pub(crate) fn submit(&mut self, op: Op) -> Result<Token, SubmitError> {
        let fd = op.fd();
        let token = self.table.insert_operation(op)?;
        self.arm(token, fd);
        Ok(token)
    }

    pub(crate) fn take(&mut self, token: Token) -> Option<Op> {
        self.table.take(token)
    }

    pub(crate) fn take_fd(&mut self, event: &Event) -> Option<OwnedFd> {
        self.table.take_fd(event)
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let submitted = self.table.operation(token);
        if submitted.is_some_and(|submitted| submitted.course != Course::Close) {
            self.cancelled.push(token);
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
        if self.table.operation(token).is_none() {
            return;
        }
        let user_data = self.table.user_data(token);
        if self.is_accepted(user_data) {
            self.discarded.push(token);
        } else {
            self.disarm(user_data);
            self.table
                .report_completion(token, -libc::ECANCELED, false, &mut Vec::new());
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let mut script = self.script.lock();
        if let Some(left) = script.flush_refusals.checked_sub(1) {
            script.flush_refusals = left;
            return Err(refused());
        }
        drop(script);
        self.accepted.extend(self.queued.drain(..));
        self.release_discarded();
        Ok(())
    }

    /// A script is every thread's.
    pub(crate) fn flush_if_own(&mut self) -> io::Result<()> {
        self.flush()
    }

    /// Releases the sockets of discarded operations once the kernel has taken all requests. Under a plan those
    /// operations may still be performed, on files that a real kernel would hold.
    fn release_discarded(&mut self) {
        if self.queued.is_empty() && self.plan.is_none() {
            for token in std::mem::take(&mut self.discarded) {
                self.table.release_socket(token);
            }
        }
    }

    pub(crate) fn peek(&self) -> Peek {
        if self.plan.is_some() {
            return Peek::Unknown;
        }
        let idle = self.queued.is_empty()
            && self.rearm.is_empty()
            && self.cancelled.is_empty()
            && !self.waker.is_notified()
            && self.script.is_over();
        if idle { Peek::Empty } else { Peek::Ready }
    }

    pub(crate) fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        self.table.reclaim();
        for token in std::mem::take(&mut self.rearm) {
            if let Some(fd) = self.table.rearm_level(token) {
                self.arm(token, Some(fd));
            }
        }
        let turn = self.script.lock().turns.pop_front();
        let (over, turn) = (turn.is_none(), turn.unwrap_or_default());
        let room = turn.iter().find_map(|step| match step {
            Step::Accept(count) => Some(*count),
            _ => None,
        });
        let count = room.unwrap_or(usize::MAX).min(self.queued.len());
        if count < self.queued.len() {
            self.table.counters.short_submits += 1;
        }
        self.accepted.extend(self.queued.drain(..count));
        self.release_discarded();

        let before = events.len();
        self.draw_up();
        for token in std::mem::take(&mut self.cancelled) {
            if self.table.operation(token).is_none() {
                continue;
            }
            let user_data = self.table.user_data(token);
            let mut planned = self.planned.iter_mut();
            if let Some(planned) = planned.find(|planned| planned.user_data == user_data) {
                planned.is_cancelled = true;
                continue;
            }
            self.disarm(user_data);
            self.table
                .report_completion(token, -libc::ECANCELED, false, events);
        }
        let waits = events.len() == before && !self.waker.is_notified();
        let noted = if waits { timeout } else { Some(Duration::ZERO) };
        if self.plan.is_some() {
            self.carry_out(events);
            let is_due = self.planned.iter().any(|planned| planned.left > 0);
            if waits && timeout != Some(Duration::ZERO) && events.len() == before && !is_due {
                std::thread::sleep(timeout.unwrap_or(NAP).min(NAP));
            }
        } else {
            self.script.lock().timeouts.push(noted);
        }
        let mut outcome = Ok(());
        let early = std::mem::take(&mut self.early);
        for step in early.into_iter().chain(turn) {
            match step {
                Step::Ready(fd, readiness) => self.ready(fd, readiness, events),
                Step::Complete(fd, result) => {
                    self.complete(Some(fd), Outcome::Result(result), events);
                }
                Step::CompletePath(result) => self.complete(None, Outcome::Result(result), events),
                Step::Open(file) => self.complete(None, Outcome::Descriptor(file), events),
                Step::Late(fd) => self.late(fd, events),
                Step::Overflow => self.overflow(),
                Step::Wake => self.waker.wake(),
                Step::Interrupt => outcome = Err(io::ErrorKind::Interrupted.into()),
                Step::Fail(errno) => outcome = Err(io::Error::from_raw_os_error(errno)),
                Step::Accept(_) => {}
            }
        }
        let woken = self.waker.is_notified();
        if outcome.is_ok() {
            self.table.counters.wakes += self.waker.clear();
        }
        let is_stuck = over && self.plan.is_none();
        if is_stuck && waits && timeout.is_none() && events.len() == before && !woken {
            return Err(io::Error::other(
                "the script is over, and this poll would wait for ever",
            ));
        }
        outcome
    }

    /// Whether the kernel has a request.
    fn is_accepted(&self, user_data: u64) -> bool {
        let mut accepted = self.accepted.iter();
        accepted.any(|request| request.user_data == user_data)
    }

    fn ready(&mut self, fd: RawFd, readiness: Readiness, events: &mut Vec<Event>) {
        let Some((token, watch)) = self.table.watch_of(fd) else {
            return;
        };
        let user_data = self.table.user_data(token);
        if !self.is_accepted(user_data) {
            // The kernel will find it ready when it takes the request.
            if watch.armed {
                self.early.push(Step::Ready(fd, readiness));
            }
            return;
        }
        if watch.mode != Mode::Edge {
            self.accepted
                .retain(|request| request.user_data != user_data);
            if let Some(watch) = self.table.watch_mut(token) {
                watch.armed = false;
            }
            if watch.mode == Mode::Level {
                self.rearm.push(token);
            }
        }
        self.table.report_readiness(token, readiness, events);
    }

    /// Ends the oldest operation on a descriptor, or on a path.
    fn complete(&mut self, fd: Option<RawFd>, outcome: Outcome, events: &mut Vec<Event>) {
        let oldest = match fd {
            Some(fd) => self.table.operations_of(fd).first().copied(),
            None => self.oldest_on_path(),
        };
        let Some(token) = oldest else {
            return;
        };
        let user_data = self.table.user_data(token);
        if !self.is_accepted(user_data) {
            self.early.push(match (fd, outcome) {
                (Some(fd), Outcome::Result(result)) => Step::Complete(fd, result),
                (None, Outcome::Result(result)) => Step::CompletePath(result),
                (_, Outcome::Descriptor(file)) => Step::Open(file),
            });
            return;
        }
        let mut brings_descriptor = false;
        if let Some(parked) = self.table.parked(token) {
            let operation = parked.get_mut();
            brings_descriptor = operation.op.brings_descriptor();
            operation.play();
        }
        // The user takes such a result for a descriptor of its own.
        let result = match outcome {
            Outcome::Result(result) if result < 0 || !brings_descriptor => result,
            Outcome::Descriptor(descriptor) if brings_descriptor => descriptor.into_raw_fd(),
            outcome => panic!(
                "{outcome:?} for an operation that {} a descriptor: use Step::Open for opening, and only for that",
                if brings_descriptor {
                    "returns"
                } else {
                    "does not return"
                }
            ),
        };
        let goes_on = self
            .table
            .operation(token)
            .is_some_and(|submitted| match submitted.course {
                Course::ZeroCopy => submitted.phase == Phase::InFlight,
                Course::Once | Course::Close => false,
            });
        let more = result >= 0 && goes_on;
        if !more {
            self.accepted
                .retain(|request| request.user_data != user_data);
        }
        self.table.report_completion(token, result, more, events);
    }

    fn oldest_on_path(&mut self) -> Option<Token> {
        let requests = self.accepted.iter().chain(&self.queued);
        let mut on_paths = requests.filter(|request| request.fd.is_none());
        on_paths.find_map(|request| {
            self.table
                .by_user_data(request.user_data)
                .map(|(token, _)| token)
        })
    }

    fn late(&mut self, fd: RawFd, events: &mut Vec<Event>) {
        let Some(index) = self
            .removed
            .iter()
            .rposition(|request| request.fd == Some(fd))
        else {
            return;
        };
        let request = self.removed.remove(index);
        match self.table.by_user_data(request.user_data) {
            None => self.table.counters.stale_events += 1,
            // Only a bug in the table leads here. Report the event, so that the test fails.
            Some((token, Owner::Watch(_))) => {
                self.table
                    .report_readiness(token, Readiness::READABLE, events);
            }
            Some((token, Owner::Operation(_))) => {
                let result = -libc::EIO;
                self.table.report_completion(token, result, false, events);
            }
        }
    }

    fn overflow(&mut self) {
        self.table.counters.overflows += 1;
        for request in std::mem::take(&mut self.accepted) {
            let ended = match self.table.by_user_data(request.user_data) {
                Some((token, Owner::Watch(watch))) if watch.mode == Mode::Edge => Some(token),
                _ => None,
            };
            let Some(token) = ended else {
                self.accepted.push(request);
                continue;
            };
            self.table.counters.rearms += 1;
            self.removed.push(request);
            self.arm(token, request.fd);
        }
    }

    /// Decides what happens to the requests that were just accepted.
    fn draw_up(&mut self) {
        let Some(plan) = &mut self.plan else {
            return;
        };
        for request in &self.accepted {
            let user_data = request.user_data;
            if (self.planned.iter()).any(|planned| planned.user_data == user_data) {
                continue;
            }
            let fault = match self.table.by_user_data(user_data) {
                Some((token, Owner::Operation(_))) => {
                    let parked = self.table.parked(token);
                    plan.decide(parked.map(|parked| &parked.get_mut().op))
                }
                _ => Fault::default(),
            };
            self.planned.push(Planned {
                user_data,
                fault,
                left: fault.polls,
                is_cancelled: false,
                is_ready: false,
            });
        }
    }

    /// Performs what is due under the plan.
    fn carry_out(&mut self, events: &mut Vec<Event>) {
        for mut planned in std::mem::take(&mut self.planned) {
            if !self.is_accepted(planned.user_data) {
                continue;
            }
            let goes_on = match self.table.by_user_data(planned.user_data) {
                Some((_, Owner::Watch(watch))) => self.carry_out_watch(&mut planned, watch, events),
                Some((token, Owner::Operation(course))) => {
                    self.carry_out_operation(&mut planned, token, course, events)
                }
                None => false,
            };
            if goes_on {
                self.planned.push(planned);
            }
        }
    }

    /// Reports a descriptor at each poll that finds it ready.
    fn carry_out_watch(
        &mut self,
        planned: &mut Planned,
        watch: Watch,
        events: &mut Vec<Event>,
    ) -> bool {
        let wanted = watch.interest.poll_bits() as libc::c_short;
        let ready = sys::poll_now(watch.fd, wanted).unwrap_or(libc::POLLNVAL);
        if ready == 0 {
            planned.is_ready = false;
            return true;
        }
        if !std::mem::replace(&mut planned.is_ready, true)
            && let Some(plan) = &mut self.plan
        {
            planned.left = plan.decide(None).polls;
        }
        if let Some(left) = planned.left.checked_sub(1) {
            planned.left = left;
            return true;
        }
        planned.is_ready = false;
        self.ready(watch.fd, Readiness::from_bits(ready as u32), events);
        true
    }

    /// Performs an operation that is due. Returns whether it has more events.
    fn carry_out_operation(
        &mut self,
        planned: &mut Planned,
        token: Token,
        course: Course,
        events: &mut Vec<Event>,
    ) -> bool {
        if let Some(left) = planned.left.checked_sub(1) {
            planned.left = left;
            return true;
        }
        let Some(submitted) = self.table.operation(token) else {
            return false;
        };
        let is_answered = submitted.phase == Phase::Answered;
        let Some(parked) = submitted.parked.as_mut() else {
            return false;
        };
        let mut earlier = Vec::new();
        let result = if is_answered {
            Some(SENT_BY_COPY)
        } else {
            planned.perform(parked, &mut earlier)
        };
        let is_count = course == Course::ZeroCopy && !earlier.is_empty();
        for result in earlier {
            self.table.report_completion(token, result, true, events);
        }
        match result {
            // The memory comes back later.
            Some(_) if is_count => {
                planned.left = planned.fault.polls;
                true
            }
            Some(result) => {
                let user_data = planned.user_data;
                self.accepted
                    .retain(|request| request.user_data != user_data);
                self.table.report_completion(token, result, false, events);
                false
            }
            None => true,
        }
    }

    /// There are no kernel objects to abandon.
    pub(crate) fn abandon(&mut self) {
        self.accepted.clear();
    }
}
