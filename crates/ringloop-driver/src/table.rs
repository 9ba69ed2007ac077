//! What a driver knows of its watches, its operations and the descriptors that they work on: the part of the
//! bookkeeping that is the same on every backend.

use std::io;
use std::os::fd::RawFd;

use crate::contract::Counters;
use crate::event::{Event, Interest, Mode, Readiness};
use crate::op::{Op, SENT_BY_COPY};
use crate::parked::Parked;
use crate::sys;
use crate::token::{Slots, Token};

/// A user's wish to know when a descriptor is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) fd: RawFd,
    pub(crate) interest: Interest,
    pub(crate) mode: Mode,
    /// Whether it waits for an event. A `OneShot` that has fired does not, nor does a watch that the kernel refused.
    pub(crate) armed: bool,
    /// The `io_uring` backend's: whether the kernel has a multishot request for it although its mode is not `Edge`.
    pub(crate) outlasting: bool,
}

/// An operation from `submit` until its resources are taken or freed.
pub(crate) struct Submitted {
    /// `None` while a worker thread has it.
    pub(crate) parked: Option<Parked>,
    pub(crate) fd: Option<RawFd>,
    pub(crate) course: Course,
    pub(crate) phase: Phase,
    /// The `io_uring` backend's: whether a cancel was asked for, so that no request is queued anew.
    pub(crate) cancelled: bool,
    /// The `io_uring` backend's: the error of a zero-copy send that still has its memory; 0 if there is none.
    pub(crate) error: i32,
    /// Nobody wants its events any more: what they carry is closed or freed.
    discarded: bool,
}

/// How an operation goes on after its beginning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Course {
    /// It has one result.
    Once,
    /// It has results until it fails.
    Multishot,
    /// It has a count, and then its memory back.
    ZeroCopy,
    /// It has one result, and cannot be called back: nobody could tell whether the descriptor was closed.
    Close,
}

impl Course {
    fn of(op: &Op) -> Course {
        match op {
            Op::Accept {
                multishot: true, ..
            } => Course::Multishot,
            Op::SendZeroCopy { .. } => Course::ZeroCopy,
            Op::Close { .. } => Course::Close,
            _ => Course::Once,
        }
    }
}

/// How far an operation has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// The `io_uring` backend's: the kernel has not heard of it, or not again.
    Queued,
    InFlight,
    /// A zero-copy send's: the count has been reported, and only the memory is still with the kernel.
    Answered,
    /// The last result is known, but not reported.
    Ended,
    /// The last event has been reported.
    Finished,
}

enum Entry {
    Watch(Watch),
    Operation(Submitted),
}

/// What is known of one descriptor.
#[derive(Default)]
pub(crate) struct Descriptor {
    watch: Option<Token>,
    /// Operations that have not finished, in the order of their submission.
    pub(crate) operations: Vec<Token>,
    /// The epoll backend's: what the kernel was last told, 0 if nothing is registered.
    pub(crate) registration: u32,
    /// The epoll backend's: tells this registration from an earlier one of the same descriptor number.
    pub(crate) epoch: u32,
}

pub(crate) struct Table {
    slots: Slots<Entry>,
    descriptors: Vec<Descriptor>,
    /// Operations whose final event has been reported; freed at the next poll if nobody takes them.
    finished: Vec<Token>,
    pub(crate) counters: Counters,
    /// Whether descriptors are the kernel's; those of a script are only numbers.
    real: bool,
}

impl Table {
    /// A table with memory for so many watches and operations.
    pub(crate) fn new(slots: usize) -> Table {
        Table {
            real: true,
            slots: Slots::with_capacity(slots),
            descriptors: Vec::with_capacity(slots),
            finished: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// A table whose descriptors need not exist, unless they are said to be real.
    pub(crate) fn for_script(real: bool) -> Table {
        Table {
            real,
            ..Table::new(0)
        }
    }

    /// Grows the table of descriptors to hold `fd`; `EBADF` if that is no open descriptor's number.
    fn admit(&mut self, fd: RawFd) -> io::Result<&mut Descriptor> {
        let index = usize::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        if index >= self.descriptors.len() {
            // Only numbers that the kernel has given out may cost memory.
            if self.real {
                sys::check_open(fd)?;
            }
            self.descriptors.resize_with(index + 1, Descriptor::default);
        }
        Ok(&mut self.descriptors[index])
    }

    pub(crate) fn descriptor(&mut self, fd: RawFd) -> Option<&mut Descriptor> {
        self.descriptors.get_mut(usize::try_from(fd).ok()?)
    }

    // ---- watches

    /// Makes a watch, armed. `EEXIST` if the descriptor has one, unless that is a `OneShot` that has fired: then the
    /// descriptor may have been closed and its number reused without our knowledge.
    pub(crate) fn insert_watch(
        &mut self,
        fd: RawFd,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<Token> {
        self.admit(fd)?;
        self.check_unwatched(fd, None)?;
        let token = self.slots.insert(Entry::Watch(Watch {
            fd,
            interest,
            mode,
            armed: true,
            outlasting: false,
        }));
        self.descriptors[fd as usize].watch = Some(token);
        self.counters.watches += 1;
        Ok(token)
    }

    fn check_unwatched(&self, fd: RawFd, except: Option<Token>) -> io::Result<()> {
        let owner = self.descriptors[fd as usize].watch;
        if owner == except {
            return Ok(());
        }
        match owner.and_then(|owner| self.watch(owner)) {
            Some(watch) if watch.armed || watch.mode != Mode::OneShot => {
                Err(io::Error::from_raw_os_error(libc::EEXIST))
            }
            _ => Ok(()),
        }
    }

    /// Changes a watch and arms it. `ENOENT` for a stale token, `EEXIST` if another watch has taken its descriptor.
    pub(crate) fn renew_watch(
        &mut self,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<Watch> {
        let Some(Entry::Watch(watch)) = self.slots.get(token) else {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        };
        let before = *watch;
        self.check_unwatched(before.fd, Some(token))?;
        self.descriptors[before.fd as usize].watch = Some(token);
        if let Some(watch) = self.watch_mut(token) {
            *watch = Watch {
                interest,
                mode,
                armed: true,
                outlasting: false,
                ..before
            };
        }
        Ok(before)
    }

    pub(crate) fn watch(&self, token: Token) -> Option<&Watch> {
        match self.slots.get(token) {
            Some(Entry::Watch(watch)) => Some(watch),
            _ => None,
        }
    }

    pub(crate) fn watch_mut(&mut self, token: Token) -> Option<&mut Watch> {
        match self.slots.get_mut(token) {
            Some(Entry::Watch(watch)) => Some(watch),
            _ => None,
        }
    }

    /// Arms a level watch again that has fired, and returns its descriptor. `None` if it is gone by now, was changed, or was
    /// armed by a rewatch.
    pub(crate) fn rearm_level(&mut self, token: Token) -> Option<RawFd> {
        let watch = self.watch_mut(token)?;
        if watch.armed || watch.mode != Mode::Level {
            return None;
        }
        watch.armed = true;
        Some(watch.fd)
    }

    /// The watch of a descriptor, armed or not.
    pub(crate) fn watch_of(&self, fd: RawFd) -> Option<(Token, Watch)> {
        let token = self.descriptors.get(usize::try_from(fd).ok()?)?.watch?;
        self.watch(token).map(|watch| (token, *watch))
    }

    /// Forgets a watch. `None` for a stale token.
    pub(crate) fn remove_watch(&mut self, token: Token) -> Option<Watch> {
        let watch = *self.watch(token)?;
        self.slots.remove(token);
        let owner = &mut self.descriptors[watch.fd as usize].watch;
        if *owner == Some(token) {
            *owner = None;
        }
        self.counters.watches -= 1;
        Some(watch)
    }

    /// All watches.
    pub(crate) fn watches(&self) -> Vec<(Token, Watch)> {
        let tokens = self.slots.tokens().into_iter();
        tokens
            .filter_map(|token| self.watch(token).map(|watch| (token, *watch)))
            .collect()
    }

    pub(crate) fn report_readiness(
        &mut self,
        token: Token,
        readiness: Readiness,
        events: &mut Vec<Event>,
    ) {
        self.report(Event::readiness_of(token, readiness), events);
    }

    /// Counts and appends an event.
    pub(crate) fn report(&mut self, event: Event, events: &mut Vec<Event>) {
        self.counters.events += 1;
        events.push(event);
    }

    // ---- operations

    pub(crate) fn insert_operation(&mut self, op: Op) -> io::Result<Token> {
        op.check()?;
        // A bad descriptor is the operation's result, as it is a system call's, not a refusal to try.
        let fd = op.fd().filter(|fd| self.admit(*fd).is_ok());
        let submitted = Submitted {
            course: Course::of(&op),
            parked: Some(Parked::new(op)),
            fd,
            phase: Phase::InFlight,
            cancelled: false,
            error: 0,
            discarded: false,
        };
        let token = self.slots.insert(Entry::Operation(submitted));
        if let Some(fd) = fd {
            self.descriptors[fd as usize].operations.push(token);
        }
        self.counters.operations += 1;
        Ok(token)
    }

    /// An operation that has not finished.
    pub(crate) fn operation(&mut self, token: Token) -> Option<&mut Submitted> {
        match self.slots.get_mut(token) {
            Some(Entry::Operation(submitted)) if submitted.phase != Phase::Finished => {
                Some(submitted)
            }
            _ => None,
        }
    }

    /// What an operation that has not finished is made of; `None` while a worker thread has it.
    pub(crate) fn parked(&mut self, token: Token) -> Option<&mut Parked> {
        self.operation(token)?.parked.as_mut()
    }

    /// The operations of a descriptor that have not finished.
    pub(crate) fn operations_of(&mut self, fd: RawFd) -> Vec<Token> {
        self.descriptor(fd)
            .map_or_else(Vec::new, |descriptor| descriptor.operations.clone())
    }

    /// All operations that have not finished.
    pub(crate) fn operations(&mut self) -> Vec<Token> {
        let mut tokens = self.slots.tokens();
        tokens.retain(|token| self.operation(*token).is_some());
        tokens
    }

    /// Whether the kernel has an operation that is not over.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.in_flight().next().is_some()
    }

    /// Whether the kernel has a close that is not over.
    pub(crate) fn is_closing(&self) -> bool {
        self.in_flight()
            .any(|submitted| submitted.course == Course::Close)
    }

    fn in_flight(&self) -> impl Iterator<Item = &Submitted> {
        self.slots.values().filter_map(|entry| match entry {
            Entry::Operation(submitted)
                if matches!(submitted.phase, Phase::InFlight | Phase::Answered) =>
            {
                Some(submitted)
            }
            _ => None,
        })
    }

    /// From now on the operation's events are dropped, and what they carry with them.
    pub(crate) fn discard(&mut self, token: Token) {
        if let Some(submitted) = self.operation(token) {
            submitted.discarded = true;
        } else {
            drop(self.take(token));
        }
    }

    /// Reports a result of an operation; the last one unless `more`.
    pub(crate) fn report_completion(
        &mut self,
        token: Token,
        result: i32,
        more: bool,
        events: &mut Vec<Event>,
    ) {
        let real = self.real;
        let Some(submitted) = self.operation(token) else {
            self.counters.stale_events += 1;
            return;
        };
        let discarded = submitted.discarded;
        let carries_descriptor = submitted.parked.as_mut().is_some_and(|parked| {
            matches!(parked.get_mut().op, Op::Accept { .. } | Op::OpenAt { .. })
        });
        if discarded && carries_descriptor && real && result >= 0 {
            sys::close_orphan(result);
        }
        if more && submitted.course == Course::ZeroCopy {
            submitted.phase = Phase::Answered;
        }
        if !more {
            let answered = submitted.phase == Phase::Answered;
            let fd = submitted.fd;
            submitted.phase = Phase::Finished;
            if let Some(parked) = &mut submitted.parked {
                parked.get_mut().settle(result);
                if real && !discarded {
                    parked.get_mut().finish_opening(result);
                }
            }
            if let Some(descriptor) = fd.and_then(|fd| self.descriptor(fd)) {
                descriptor
                    .operations
                    .retain(|operation| *operation != token);
            }
            self.counters.operations -= 1;
            if answered {
                self.counters.zero_copy_sends += 1;
                self.counters.zero_copy_copies += u64::from(result == SENT_BY_COPY);
            }
            if discarded {
                self.slots.remove(token);
            } else {
                self.finished.push(token);
            }
        }
        if discarded {
            self.counters.stale_events += 1;
        } else {
            self.counters.events += 1;
            events.push(Event::completion_of(token, result, more));
        }
    }

    /// Gives the resources of a finished operation back and frees its slot.
    pub(crate) fn take(&mut self, token: Token) -> Option<Op> {
        match self.slots.get(token) {
            Some(Entry::Operation(Submitted {
                phase: Phase::Finished,
                ..
            })) => {}
            _ => return None,
        }
        match self.slots.remove(token) {
            Some(Entry::Operation(Submitted {
                parked: Some(parked),
                ..
            })) => Some(parked.into_op()),
            _ => None,
        }
    }

    /// Frees the finished operations that nobody took since the last poll.
    pub(crate) fn reclaim(&mut self) {
        while let Some(token) = self.finished.pop() {
            drop(self.take(token));
        }
    }

    /// Forgets an operation without freeing what the kernel may still write to.
    pub(crate) fn leak_operation(&mut self, token: Token) {
        if let Some(Entry::Operation(Submitted {
            parked: Some(parked),
            ..
        })) = self.slots.remove(token)
        {
            parked.leak();
        }
    }

    /// Whether an operation has failed to open a file without waiting, and is to be tried again.
    pub(crate) fn opens_again(&mut self, token: Token, result: i32) -> bool {
        result == -libc::EAGAIN
            && self
                .parked(token)
                .is_some_and(|parked| parked.get_mut().opens_again(result))
    }

    /// Lets go of the socket of an operation that was discarded, and that the kernel has taken.
    pub(crate) fn release_socket(&mut self, token: Token) {
        if let Some(Submitted {
            parked: Some(parked),
            discarded: true,
            ..
        }) = self.operation(token)
        {
            parked.release_socket();
        }
    }

    // ---- what the kernel is told

    /// Begins a new arming of a watch or an operation; the result is its user data.
    pub(crate) fn next_sequence(&mut self, token: Token) -> u64 {
        self.slots.next_sequence(token)
    }

    /// The user data of the latest arming.
    pub(crate) fn user_data(&self, token: Token) -> u64 {
        self.slots.user_data(token)
    }

    /// Hands a queued request to the kernel: after this it goes its way there. False if nobody wants it any more.
    pub(crate) fn hand_over(&mut self, user_data: u64) -> bool {
        match self.slots.by_user_data(user_data) {
            Some((_, Entry::Operation(submitted))) if submitted.phase == Phase::Queued => {
                submitted.phase = Phase::InFlight;
                if submitted.course == Course::Close
                    && let Some(parked) = submitted.parked.as_mut()
                {
                    parked.get_mut().hand_over();
                }
                true
            }
            Some((_, Entry::Watch(_))) => true,
            _ => false,
        }
    }

    /// Whose arming the kernel speaks of, and whether it is a watch's; `None` if that arming is over.
    pub(crate) fn by_user_data(&mut self, user_data: u64) -> Option<(Token, Owner)> {
        let (token, entry) = self.slots.by_user_data(user_data)?;
        match entry {
            Entry::Watch(watch) => Some((token, Owner::Watch(*watch))),
            Entry::Operation(submitted) if submitted.phase != Phase::Finished => {
                Some((token, Owner::Operation(submitted.course)))
            }
            Entry::Operation(_) => None,
        }
    }
}

/// Whose event it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Watch(Watch),
    Operation(Course),
}
