//! The bookkeeping that all backends share: watches, operations, and the descriptors that they work on.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::contract::Counters;
use crate::event::{Event, Interest, Mode, Readiness};
use crate::op::{Op, SENT_BY_COPY, SubmitError};
use crate::parked::Parked;
use crate::sys::{self, FileKind};
use crate::token::{Slots, Token};

/// A watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) fd: RawFd,
    pub(crate) interest: Interest,
    pub(crate) mode: Mode,
    /// Whether it waits for an event. A `OneShot` that has fired does not, and neither does a watch that the kernel
    /// refused.
    pub(crate) armed: bool,
    /// For the `io_uring` backend: whether its request is multishot although its mode is not `Edge`.
    pub(crate) outlasting: bool,
}

/// An operation from `submit` until its resources are taken or freed.
pub(crate) struct Submitted {
    /// `None` while a worker thread has it.
    pub(crate) parked: Option<Parked>,
    pub(crate) fd: Option<RawFd>,
    subject: Subject,
    pub(crate) course: Course,
    pub(crate) phase: Phase,
    /// For the `io_uring` backend: whether it was cancelled, so that its request must not be queued again.
    pub(crate) cancelled: bool,
    /// For the `io_uring` backend: the errno of a zero-copy send whose memory is still in use, or 0.
    pub(crate) error: i32,
    /// Whether its events are suppressed. What they carry is closed or freed.
    discarded: bool,
}

/// How long dropping a driver waits for changes of files, and for operations that the kernel cannot cancel, such as a write to a
/// slow disk.
pub(crate) const WIND_UP_MAX: Duration = Duration::from_secs(1);

/// The subject of an operation, if that matters when it is given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Subject {
    /// Its peer has to hear of a close soon.
    Socket,
    /// A file or a directory that it changes, unless its file is a stream.
    Change,
    Other,
}

impl Subject {
    fn of(op: &Op) -> Subject {
        if op.is_on_socket() {
            Subject::Socket
        } else if op.changes_storage() {
            Subject::Change
        } else {
            Subject::Other
        }
    }
}

/// The sequence of an operation's events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Course {
    /// One result.
    Once,
    /// A count, and then the release of its memory.
    ZeroCopy,
    /// One result. Once in flight it is not cancelled, because it would be unknown whether the descriptor was closed.
    Close,
}

impl Course {
    fn of(op: &Op) -> Course {
        match op {
            Op::SendZeroCopy { .. } => Course::ZeroCopy,
            Op::Close { .. } => Course::Close,
            _ => Course::Once,
        }
    }
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// For the `io_uring` backend: its request is queued, and the kernel does not have it.
    Queued,
    InFlight,
    /// For a zero-copy send: the count was reported, and the kernel still uses the memory.
    Answered,
    /// The last result is known, but not reported yet.
    Ended,
    /// The last event has been reported.
    Finished,
}

enum Entry {
    Watch(Watch),
    Operation(Submitted),
}

/// The state of a descriptor.
#[derive(Default)]
pub(crate) struct Descriptor {
    watch: Option<Token>,
    /// Operations that have not finished, in the order of their submission.
    pub(crate) operations: Vec<Token>,
    /// For the epoll backend: the registered events, 0 if there are none.
    pub(crate) registration: u32,
    /// For the epoll backend: tells this registration from an earlier one of the same number.
    pub(crate) epoch: u32,
}

pub(crate) struct Table {
    slots: Slots<Entry>,
    descriptors: Vec<Descriptor>,
    /// Operations whose last event was reported. They are freed at the next poll unless they are taken.
    finished: Vec<Token>,
    /// Descriptors that the events of the last poll carry, with their operations. They are closed at the next poll unless
    /// they are taken.
    brought: Vec<(Token, OwnedFd)>,
    pub(crate) counters: Counters,
    /// Whether descriptors are real. Those of a script are just numbers.
    real: bool,
}

impl Table {
    /// A table with memory for this many watches and operations.
    pub(crate) fn new(slots: usize) -> Table {
        Table {
            real: true,
            slots: Slots::with_capacity(slots),
            descriptors: Vec::with_capacity(slots),
            finished: Vec::new(),
            brought: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// A table for a script, whose descriptors may be just numbers.
    #[cfg(feature = "test-util")]
    pub(crate) fn for_script(real: bool) -> Table {
        Table {
            real,
            ..Table::new(0)
        }
    }

    /// Grows the table of descriptors to hold `fd`. `EBADF` if that is not an open descriptor.
    fn admit(&mut self, fd: RawFd) -> io::Result<&mut Descriptor> {
        let index = usize::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        if index >= self.descriptors.len() {
            // Only open descriptors may cost memory.
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

    /// Makes an armed watch. `EEXIST` if the descriptor has one, unless that is a `OneShot` that has fired: such a
    /// descriptor may have been closed, and its number reused, without the driver's knowledge.
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

    /// Changes a watch and arms it. `ENOENT` for a stale token, `EEXIST` if its descriptor has another watch by now.
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

    /// Arms a fired level watch again, and returns its descriptor. `None` if it is gone, was changed, or is armed
    /// already.
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

    /// Removes a watch. `None` for a stale token.
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

    pub(crate) fn insert_operation(&mut self, op: Op) -> Result<Token, SubmitError> {
        if let Err(error) = op.check() {
            return Err(SubmitError::new(error, op));
        }
        // A bad descriptor is an error of the operation, not of `submit`.
        let fd = op.fd().filter(|fd| self.admit(*fd).is_ok());
        let submitted = Submitted {
            course: Course::of(&op),
            subject: Subject::of(&op),
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

    /// The memory of an operation that has not finished. `None` while a worker has it.
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

    /// Whether the kernel has an operation.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.in_flight().next().is_some()
    }

    /// Whether the kernel has a close.
    pub(crate) fn is_closing(&self) -> bool {
        self.in_flight()
            .any(|submitted| submitted.course == Course::Close)
    }

    /// The changes of files and directories that have not finished. Asks the kernel, because a write to a stream is none: it
    /// may wait for ever.
    pub(crate) fn changes(&mut self) -> Vec<Token> {
        let mut tokens = self.operations();
        tokens.retain(|token| {
            self.operation(*token).is_some_and(|submitted| {
                submitted.subject == Subject::Change
                    && submitted
                        .fd
                        .is_none_or(|fd| matches!(sys::file_kind(fd), Ok(FileKind::Storage)))
            })
        });
        tokens
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

    /// Suppresses the events of an operation. What they carry is closed or freed.
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
        let brings_descriptor = submitted
            .parked
            .as_mut()
            .is_some_and(|parked| parked.get_mut().op.brings_descriptor());
        let brought = (brings_descriptor && result >= 0).then(|| sys::own_result(result));
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
            // What it carries is closed.
            self.counters.stale_events += 1;
        } else {
            self.brought
                .extend(brought.map(|descriptor| (token, descriptor)));
            self.counters.events += 1;
            events.push(Event::completion_of(token, result, more));
        }
    }

    /// Returns the descriptor that an event of the last poll carries.
    pub(crate) fn take_fd(&mut self, event: &Event) -> Option<OwnedFd> {
        let is_meant = |(token, descriptor): &(Token, OwnedFd)| {
            *token == event.token && descriptor.as_raw_fd() == event.result
        };
        let index = self.brought.iter().position(is_meant)?;
        Some(self.brought.swap_remove(index).1)
    }

    /// Returns the resources of a finished operation and frees its slot.
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

    /// Frees the finished operations, and closes the descriptors, that were not taken since the last poll.
    pub(crate) fn reclaim(&mut self) {
        self.brought.clear();
        while let Some(token) = self.finished.pop() {
            drop(self.take(token));
        }
    }

    /// Removes an operation without freeing memory that the kernel may still write to.
    pub(crate) fn leak_operation(&mut self, token: Token) {
        if let Some(Entry::Operation(Submitted {
            parked: Some(parked),
            ..
        })) = self.slots.remove(token)
        {
            parked.leak();
        }
    }

    /// Whether an operation could not open a file without waiting, and has to be tried again.
    pub(crate) fn opens_again(&mut self, token: Token, result: i32) -> bool {
        result == -libc::EAGAIN
            && self
                .parked(token)
                .is_some_and(|parked| parked.get_mut().opens_again(result))
    }

    /// Whether an operation was cancelled while the kernel had it.
    pub(crate) fn is_cancelled(&mut self, token: Token) -> bool {
        self.operation(token)
            .is_some_and(|submitted| submitted.cancelled)
    }

    /// The operation in a slot, if it was cancelled, the kernel has it, and a further cancel will find it or find it
    /// over: one on a storage device is never found, and takes its time.
    pub(crate) fn goes_on(&mut self, index: u32) -> Option<Token> {
        let (token, entry) = self.slots.by_index(index)?;
        let Entry::Operation(submitted) = entry else {
            return None;
        };
        // The kernel may be writing to the operation, so it is not looked at.
        let goes_on = submitted.phase == Phase::InFlight
            && submitted.cancelled
            && submitted.error == 0
            && submitted.subject == Subject::Socket;
        goes_on.then_some(token)
    }

    /// Releases the socket of a discarded operation that the kernel has taken.
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

    /// Notes that a queued request goes to the kernel. False if it is outdated.
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

    /// The watch or operation with this user data. `None` if that arming is over.
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

/// The owner of a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Watch(Watch),
    Operation(Course),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::shared_fd::SharedFd;

    #[test]
    fn writes_to_streams_are_no_changes_of_files() {
        let mut table = Table::new(0);
        let path = std::env::temp_dir().join(format!("ringloop-changes-{}", std::process::id()));
        let file = SharedFd::new(std::fs::File::create(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = SharedFd::new(near);
        for fd in [file, stream] {
            let write = Op::Write {
                fd,
                bytes: Bytes::new([0]),
                start: 0,
                offset: None,
            };
            table.insert_operation(write).unwrap();
            assert_eq!(table.changes().len(), 1);
        }
        let remove = Op::UnlinkAt {
            directory: None,
            path: c"/nothing".to_owned(),
            flags: 0,
        };
        let token = table.insert_operation(remove).unwrap();
        assert!(table.changes().contains(&token));
    }

    /// While the kernel has an operation, it may write to it.
    #[test]
    fn whether_a_cancelled_operation_goes_on_is_known_without_looking_at_it() {
        let mut table = Table::new(0);
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let (file, socket) = (std::fs::File::open("/dev/null").unwrap(), near);
        let send = Op::SendZeroCopy {
            fd: SharedFd::new(socket),
            bytes: Bytes::new("x"),
            flags: 0,
        };
        let sync = Op::Fsync {
            fd: SharedFd::new(file),
            data_only: false,
        };
        for (op, expected) in [(send, true), (sync, false)] {
            let token = table.insert_operation(op).unwrap();
            let submitted = table.operation(token).unwrap();
            submitted.cancelled = true;
            let held = submitted.parked.take();
            assert_eq!(table.goes_on(token.index()).is_some(), expected);
            table.operation(token).unwrap().parked = held;
        }
    }
}
