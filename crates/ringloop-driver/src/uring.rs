//! The `io_uring` backend.
//!
//! - Nothing is handed to the kernel before [`poll`](Uring::poll) or [`flush`](Uring::flush): entries wait in a queue
//!   of ours, so that watching, dropping and submitting cost no system call and never find the submission queue full.
//!   What is cancelled there never gets out of it.
//! - The kernel looks a descriptor up when it takes the entry that names it. Until then, and as long as the driver may have
//!   to make the request anew, the operation's slot holds the file open; so no entry meets another file.
//! - The ring is made disabled and enabled by the thread that first enters it, because with `SINGLE_ISSUER` that
//!   thread owns it. Another thread that comes later gets a ring of its own and arms the watches there; arming checks
//!   the level, so that nothing is lost.
//! - An enter always asks for events (`GETEVENTS`): with `DEFER_TASKRUN` completions are not made otherwise.
//! - What the kernel writes to belongs to the operation's slot until the last completion. On drop everything is
//!   cancelled and reaped, and what the kernel will not let go of is leaked rather than freed.
//! - The registry's watches are in an epoll set of their own, which the ring watches. What it has to tell is fetched
//!   with one `epoll_wait(2)` when the ring says so.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue};

use crate::config::{COMPLETION_ENTRIES_MAX, Config, Refused};
use crate::contract::{BATCH, Counters, Peek, refused};
use crate::event::{Event, Interest, Mode, Readiness};
use crate::op::{Bytes, Op, SENT_BY_COPY, SENT_WITHOUT_COPY};
use crate::parked::Operation;
use crate::process;
use crate::registry::{self, Registry};
use crate::shared_fd::SharedFd;
use crate::sys::{self, FileKind};
use crate::table::{Course, Owner, Phase, Table, Watch};
use crate::token::Token;
use crate::waker::Waker;
use crate::workers::THREADS_MAX;

/// The slot index that no watch or operation has: user data with it is the driver's own.
const INTERNAL: u64 = u32::MAX as u64;
/// Completions that nobody waits for: those of removals and cancels that found nothing.
const IGNORED: u64 = 1 << 32 | INTERNAL;
/// The watch on the waker's eventfd.
const WAKER: u64 = 2 << 32 | INTERNAL;
/// The watch on the registry's epoll set.
const REGISTRY: u64 = 3 << 32 | INTERNAL;

/// The smallest submission queue that is tried when memory is short.
const ENTRIES_MIN: u32 = 8;

/// One way to set a ring up, from the best to the least that will do.
struct Setup {
    flags: &'static [&'static str],
    apply: fn(&mut io_uring::Builder),
}

/// `DEFER_TASKRUN` needs Linux 6.1, `NO_SQARRAY` 6.6, `SINGLE_ISSUER` 6.0, `COOP_TASKRUN` and `TASKRUN_FLAG` 5.19.
/// Without the last one nobody could see without a system call whether there is work, so that is where we stop.
const SETUPS: &[Setup] = &[
    Setup {
        flags: &[
            "SINGLE_ISSUER",
            "DEFER_TASKRUN",
            "TASKRUN_FLAG",
            "NO_SQARRAY",
        ],
        apply: |builder| {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_no_sqarray();
        },
    },
    Setup {
        flags: &["SINGLE_ISSUER", "DEFER_TASKRUN", "TASKRUN_FLAG"],
        apply: |builder| {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag();
        },
    },
    Setup {
        flags: &["SINGLE_ISSUER", "COOP_TASKRUN", "TASKRUN_FLAG"],
        apply: |builder| {
            builder
                .setup_single_issuer()
                .setup_coop_taskrun()
                .setup_taskrun_flag();
        },
    },
    Setup {
        flags: &["COOP_TASKRUN", "TASKRUN_FLAG"],
        apply: |builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        },
    },
];

/// With a kernel thread that takes the submissions, task work is that thread's.
const SETUPS_SQ_POLL: &[Setup] = &[Setup {
    flags: &["SQPOLL"],
    apply: |builder| {
        builder.setup_sqpoll(SQ_POLL_IDLE_MS);
    },
}];

/// How often entries are offered that the kernel will not take, before others have their turn.
const REFUSALS_MAX: u32 = 100;

/// How long a flush waits for the kernel's submission thread, which takes what is queued within microseconds if it gets to run.
const PATIENCE_FOR_THREAD: Duration = Duration::from_secs(1);

/// An enter that brings at least this many events may have left some behind: it runs at most 20 pieces of task work
/// (`IO_LOCAL_TW_DEFAULT_MAX`, Linux 6.13), and a few of them may be no events.
const FULL_ENTER: usize = 16;

/// How long the kernel's submission thread spins before it sleeps.
const SQ_POLL_IDLE_MS: u32 = 10;

/// What a ring was granted.
struct Granted {
    ring: IoUring,
    description: String,
    sends_zero_copy: bool,
}

/// Why `io_uring` cannot be had, for people: the system call that was refused, and what is likely to have refused it.
fn refusal(call: &str, error: &io::Error) -> io::Error {
    let is_setup = call == "io_uring_setup";
    let why = match error.raw_os_error() {
        Some(libc::EPERM) if is_setup => "EPERM (a seccomp filter or kernel.io_uring_disabled)",
        Some(libc::EPERM) => "EPERM (a seccomp filter)",
        Some(libc::EACCES) => "EACCES (a security module)",
        Some(libc::ENOSYS) if is_setup => "ENOSYS (a kernel without io_uring, or a seccomp filter)",
        Some(libc::ENOSYS) => "ENOSYS (a seccomp filter)",
        Some(libc::ENOMEM) if is_setup => {
            "ENOMEM even for a small ring (RLIMIT_MEMLOCK or a memory limit)"
        }
        Some(libc::EINVAL) if is_setup => "EINVAL (a kernel before 5.19)",
        Some(libc::EMFILE) => "EMFILE (too many open files: raise ulimit -n)",
        Some(libc::ENFILE) => "ENFILE (too many open files on this machine)",
        _ => &error.to_string(),
    };
    let text = format!("{call} was refused with {why}");
    io::Error::new(error.kind(), Refused::new(error.raw_os_error(), text))
}

/// Checks that the other two calls are allowed as well: a filter may know only one of the three. Both find nothing to do, and
/// together they cost a hundredth of what setting the ring up has cost.
fn check_calls(ring: &IoUring) -> io::Result<()> {
    // SAFETY: no arguments are passed, and nothing is submitted.
    let entered = unsafe { ring.submitter().enter::<()>(0, 0, 0, None) };
    match entered {
        // A ring that is still disabled cannot be entered.
        Err(error) if error.raw_os_error() != Some(libc::EBADFD) => {
            return Err(refusal("io_uring_enter", &error));
        }
        _ => {}
    }
    sys::probe_ring(ring.as_raw_fd()).map_err(|error| refusal("io_uring_register", &error))
}

/// Makes a disabled ring of what the kernel grants, in the first way that it does. The error's text is for people.
fn set_up(config: &Config, setups: &[Setup]) -> io::Result<Granted> {
    let mut entries = config.entries;
    let mut completion_entries = config
        .completion_entries
        .unwrap_or((entries * 8).min(COMPLETION_ENTRIES_MAX));
    loop {
        let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
        for setup in setups {
            let mut builder = IoUring::builder();
            builder
                .setup_r_disabled()
                .setup_clamp()
                .setup_submit_all()
                .setup_cqsize(completion_entries);
            (setup.apply)(&mut builder);
            match builder.build(entries) {
                Ok(ring) => {
                    check_calls(&ring)?;
                    let sends_zero_copy = check_features(&ring)?;
                    // Four for each CPU unless told (Linux 5.15). An error leaves it at that.
                    let mut threads = [THREADS_MAX as u32, 0];
                    drop(ring.submitter().register_iowq_max_workers(&mut threads));
                    return Ok(Granted {
                        description: describe(setup, &ring),
                        ring,
                        sends_zero_copy,
                    });
                }
                Err(error) => refused = error,
            }
            if refused.raw_os_error() != Some(libc::EINVAL) {
                break;
            }
        }
        if refused.raw_os_error() == Some(libc::ENOMEM) && entries > ENTRIES_MIN {
            // Before Linux 5.12 rings count against RLIMIT_MEMLOCK; a smaller one may fit.
            entries = (entries / 4).max(ENTRIES_MIN);
            completion_entries = (completion_entries / 4).max(entries);
            continue;
        }
        return Err(refusal("io_uring_setup", &refused));
    }
}

fn describe(setup: &Setup, ring: &IoUring) -> String {
    let mut flags = setup.flags.to_vec();
    if ring.params().is_feature_no_iowait() {
        flags.push("NO_IOWAIT");
    }
    format!(
        "io_uring: kernel {} grants {}; {} submission and {} completion entries",
        process::kernel_release(),
        flags.join(", "),
        ring.params().sq_entries(),
        ring.params().cq_entries(),
    )
}

/// Operations without which the backend is no use, each since Linux 5.11 or earlier.
const ESSENTIAL: &[(u8, &str)] = &[
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    (opcode::Accept::CODE, "ACCEPT"),
    (opcode::Connect::CODE, "CONNECT"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::Send::CODE, "SEND"),
    (opcode::RecvMsg::CODE, "RECVMSG"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::OpenAt::CODE, "OPENAT"),
    (opcode::Statx::CODE, "STATX"),
    (opcode::Shutdown::CODE, "SHUTDOWN"),
    (opcode::Close::CODE, "CLOSE"),
];

/// Checks that the kernel has all that the backend builds on, and says whether it sends without copying. Asked once per
/// process: kernels don't change under us.
fn check_features(ring: &IoUring) -> io::Result<bool> {
    static SENDS_ZERO_COPY: OnceLock<bool> = OnceLock::new();
    if let Some(known) = SENDS_ZERO_COPY.get() {
        return Ok(*known);
    }
    let lacks = |what: &str| {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel's io_uring lacks {what}"),
        ))
    };
    let params = ring.params();
    for (present, name) in [
        (params.is_feature_nodrop(), "NODROP"),
        (params.is_feature_fast_poll(), "FAST_POLL"),
        (params.is_feature_rw_cur_pos(), "RW_CUR_POS"),
        (params.is_feature_ext_arg(), "EXT_ARG"),
        (params.is_feature_skip_cqe_on_success(), "CQE_SKIP"),
    ] {
        if !present {
            return lacks(name);
        }
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| refusal("io_uring_register", &error))?;
    for (code, name) in ESSENTIAL {
        if !probe.is_supported(*code) {
            return lacks(name);
        }
    }
    // The operation came with Linux 6.0, and with 6.2 the report of whether it copied (IORING_SEND_ZC_REPORT_USAGE), which
    // no probe knows.
    let sends_zero_copy =
        probe.is_supported(opcode::SendZc::CODE) && process::kernel_is_at_least(6, 2);
    Ok(*SENDS_ZERO_COPY.get_or_init(|| sends_zero_copy))
}

pub(crate) struct Uring {
    ring: IoUring,
    config: Config,
    setups: &'static [Setup],
    description: String,
    /// Whether the kernel has the operation for it.
    sends_zero_copy: bool,
    /// The number of the thread that enabled the ring; 0 as long as nobody has.
    owner: u64,
    /// Entries that are not in the kernel's queue yet.
    queued: VecDeque<squeue::Entry>,
    /// Whether the kernel's submission thread was woken for all that its queue holds. It may not have got round to run.
    thread_is_woken: bool,
    /// Level watches that have fired and are armed again at the next poll.
    rearm: Vec<Token>,
    /// Results that are known without the kernel, to be reported.
    ended: Vec<(Token, i32)>,
    /// Discarded operations that hold their sockets until the kernel has taken all entries.
    discarded: Vec<Token>,
    table: Table,
    waker: Waker,
    registered: Option<Registered>,
    /// Whether this is a child process, to which the ring does not belong.
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
        let Granted {
            ring,
            description,
            sends_zero_copy,
        } = set_up(config, setups)?;
        let mut uring = Uring {
            ring,
            config: config.clone(),
            setups,
            description,
            sends_zero_copy,
            owner: 0,
            queued: VecDeque::new(),
            thread_is_woken: false,
            rearm: Vec::new(),
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
        &self.description
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.table.counters;
        if let Some(registered) = &self.registered {
            counters.system_calls += registered.registry.system_calls();
        }
        counters
    }

    // ---- watches

    pub(crate) fn watch(&mut self, fd: RawFd, interest: Interest, mode: Mode) -> io::Result<Token> {
        self.settle_in()?;
        // The kernel would say "always ready" of a file, and nothing of a bad descriptor before the next poll.
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

    /// Queues the poll request of a watch.
    fn arm(&mut self, token: Token) {
        let Some(watch) = self.table.watch(token).copied() else {
            return;
        };
        let user_data = self.table.next_sequence(token);
        // TCP's wake-ups bear EPOLLPRI with any data, and io_uring believes them, where epoll asks the socket.
        let bits = watch.interest.poll_bits() & !(libc::EPOLLPRI as u32);
        // Without IORING_POLL_ADD_LEVEL a multishot poll is edge-triggered (io_uring_enter(2)).
        let entry = opcode::PollAdd::new(Fd(watch.fd), bits)
            .multi(watch.mode == Mode::Edge || watch.outlasting)
            .build()
            .user_data(user_data);
        self.queued.push_back(entry);
    }

    /// Queues the removal of a watch's poll request, if the kernel has one.
    fn disarm(&mut self, token: Token, watch: Watch) {
        if !watch.armed {
            return;
        }
        // A request that has just completed is not found, which is as good. POLL_REMOVE would not do: the kernel answers
        // EALREADY, and leaves the poll armed and the file open, where an arrival is just being processed
        // (io_poll_disarm in io_uring/poll.c); a cancel marks the request, and whoever processes it ends it.
        self.queued
            .push_back(cancel_request(self.table.user_data(token)));
    }

    fn arm_waker(&mut self) {
        let entry = opcode::PollAdd::new(Fd(self.waker.fd()), libc::EPOLLIN as u32)
            .multi(true)
            .build()
            .user_data(WAKER);
        self.queued.push_back(entry);
    }

    // ---- the registry

    pub(crate) fn registry(&mut self) -> io::Result<Registry> {
        if let Some(registered) = &self.registered {
            return Ok(registered.registry.clone());
        }
        let registry = Registry::new()?;
        self.registered = Some(Registered {
            registry: registry.clone(),
            buffer: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH],
            is_due: false,
        });
        self.arm_registry();
        Ok(registry)
    }

    fn arm_registry(&mut self) {
        if let Some(registered) = &self.registered {
            let set = registered.registry.set().as_raw_fd();
            let entry = opcode::PollAdd::new(Fd(set), libc::EPOLLIN as u32)
                .multi(true)
                .build()
                .user_data(REGISTRY);
            self.queued.push_back(entry);
        }
    }

    /// Whether the registry's epoll set may have something to tell.
    fn must_fetch(&self) -> bool {
        self.registered
            .as_ref()
            .is_some_and(|registered| registered.is_due)
    }

    /// Fetches what the registry's epoll set has to tell, if anything, and returns whether there was something. After that
    /// not again in the same poll: what is told as long as it is so would come twice.
    fn fetch_registered(&mut self, events: &mut Vec<Event>) -> bool {
        let Some(registered) = self.registered.as_mut().filter(|it| it.is_due) else {
            return false;
        };
        self.table.counters.system_calls += 1;
        let set = registered.registry.set();
        // With a timeout of zero it fails only where the set or the memory is not ours.
        let count = sys::epoll_wait(set, &mut registered.buffer, Some(Duration::ZERO)).unwrap_or(0);
        registered.is_due = count == registered.buffer.len();
        for reported in &registered.buffer[..count] {
            if let Some((event, level)) = registry::event_of(*reported) {
                self.table.report(event, events);
                registered.is_due |= level;
            }
        }
        count > 0
    }

    // ---- operations

    pub(crate) fn submit(&mut self, op: Op) -> io::Result<Token> {
        self.settle_in()?;
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
        operation.copies |= !self.sends_zero_copy;
        if operation.op.is_misplaced() {
            // io_uring ignores the offset of what has none (FMODE_STREAM).
            self.end(token, -libc::ESPIPE);
            return;
        }
        let entry = request(operation).user_data(user_data);
        self.queued.push_back(entry);
    }

    /// Ends an operation that the kernel does not have; its entry, if there is one, stays behind in the queue.
    fn end(&mut self, token: Token, result: i32) {
        if let Some(submitted) = self.table.operation(token) {
            submitted.phase = Phase::Ended;
            self.ended.push((token, result));
        }
    }

    /// Reports the results that are known without the kernel.
    fn report_ended(&mut self, events: &mut Vec<Event>) {
        for (token, result) in std::mem::take(&mut self.ended) {
            // Those that were discarded since are gone.
            if self.table.operation(token).is_some() {
                self.table.report_completion(token, result, false, events);
            }
        }
    }

    pub(crate) fn take(&mut self, token: Token) -> Option<Op> {
        self.table.take(token)
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let Some(submitted) = self.table.operation(token) else {
            return;
        };
        match submitted.phase {
            Phase::Queued => self.end(token, -libc::ECANCELED),
            // Of a close nobody could tell whether ECANCELED comes from the cancel or from the file.
            Phase::InFlight if submitted.course != Course::Close => {
                submitted.cancelled = true;
                self.queued
                    .push_back(cancel_request(self.table.user_data(token)));
            }
            // A zero-copy send that has been answered is over but for its memory, which nobody can call back.
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
            // The kernel does not have it: it is freed at once.
            Some(Phase::Ended) => {
                self.table
                    .report_completion(token, -libc::ECANCELED, false, &mut Vec::new());
            }
            Some(_) => self.discarded.push(token),
        }
    }

    /// Lets go of the sockets of discarded operations once the kernel has taken all entries, and so looked them up.
    fn release_discarded(&mut self) {
        if self.discarded.is_empty()
            || !self.queued.is_empty()
            || !self.ring.submission().is_empty()
        {
            return;
        }
        for token in std::mem::take(&mut self.discarded) {
            self.table.release_socket(token);
        }
    }

    // ---- the kernel

    /// Makes sure that the ring is this thread's.
    fn settle_in(&mut self) -> io::Result<()> {
        if self.owner == 0 || self.owner == process::thread_number() {
            Ok(())
        } else {
            self.rebuild()
        }
    }

    /// Builds a ring for this thread and arms everything there.
    #[cold]
    fn rebuild(&mut self) -> io::Result<()> {
        // Operations that are queued move along; those that the old ring has cannot.
        if self.table.has_in_flight() {
            // Completions that are there already need no kernel; but only poll may report them.
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the loop moved to another thread while operations were in flight: \
                 finish or cancel them in the thread that submitted them, then move",
            ));
        }
        let Granted {
            ring, description, ..
        } = set_up(&self.config, self.setups)?;
        // Closing the old ring makes the kernel drop the requests that it still has; nothing of ours is in them.
        self.ring = ring;
        self.thread_is_woken = false;
        self.description = description;
        self.owner = 0;
        self.table.counters.rings_rebuilt += 1;
        // Every watch is armed anew. A cancel of a request that the old ring had finds nothing here, and is no harm.
        self.queued.retain(is_operation_or_cancel);
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

    /// What can be known without a system call.
    pub(crate) fn peek(&self) -> Peek {
        let idle = self.queued.is_empty()
            && self.rearm.is_empty()
            && !self.must_fetch()
            && self.ended.is_empty()
            && !self.waker.is_notified()
            && !self.has_work();
        if idle { Peek::Empty } else { Peek::Ready }
    }

    /// Whether the kernel has completions, or work that becomes completions when we enter.
    fn has_work(&self) -> bool {
        // SAFETY: no other view of the completion queue exists: those made elsewhere in this file live within
        // functions that have `&mut self`.
        if !unsafe { self.ring.completion_shared() }.is_empty() {
            return true;
        }
        // SAFETY: the same for the submission queue.
        self.needs_enter(&unsafe { self.ring.submission_shared() })
    }

    /// Whether something is queued, or entering would do anything.
    fn must_enter(&mut self) -> bool {
        // SAFETY: as above.
        !self.queued.is_empty() || self.needs_enter(&unsafe { self.ring.submission_shared() })
    }

    /// Whether the kernel waits for us to enter. What lies in its queue is nothing to enter for while a thread of its own looks
    /// there.
    fn needs_enter(&self, submission: &squeue::SubmissionQueue<'_>) -> bool {
        submission.taskrun()
            || submission.cq_overflow()
            || !submission.is_empty()
                && (!self.config.sq_poll || submission.need_wakeup() && !self.thread_is_woken)
    }

    /// Moves queued entries into the kernel's queue as far as they fit. Returns whether all did.
    fn fill(&mut self) -> bool {
        if self.queued.is_empty() {
            return true;
        }
        let mut submission = self.ring.submission();
        while let Some(entry) = self.queued.front() {
            let user_data = entry.get_user_data();
            if submission.is_full() {
                return false;
            }
            if user_data & INTERNAL == INTERNAL || self.table.hand_over(user_data) {
                // SAFETY: what the entry points to belongs to an operation that the table keeps until its last completion.
                let pushed = unsafe { submission.push(entry) };
                debug_assert!(pushed.is_ok(), "there was room");
                self.thread_is_woken = false;
            }
            self.queued.pop_front();
        }
        true
    }

    /// One `io_uring_enter(2)` that submits what the kernel's queue holds, runs task work, and waits for a completion
    /// if `wait`. Enables the ring first where nobody has.
    ///
    /// With a submission thread of the kernel's it wakes that if need be, waits until there is room in a queue that is full, and
    /// is left out where there is nothing of that to be done.
    fn enter(&mut self, wait: bool, timeout: Option<Duration>) -> io::Result<()> {
        if self.owner == 0 {
            self.ring.submitter().register_enable_rings()?;
            self.table.counters.system_calls += 1;
            self.owner = process::thread_number();
        }
        let timespec = timeout.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if wait && self.ring.params().is_feature_no_iowait() {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let submission = self.ring.submission();
        let mut to_submit = submission.len();
        if self.config.sq_poll {
            if submission.need_wakeup() {
                flags |= EnterFlags::SQ_WAKEUP;
            }
            if submission.is_full() {
                flags |= EnterFlags::SQ_WAIT;
            }
            // Or it would be the result, and not what has ended the wait.
            to_submit = 0;
        }
        let is_full = submission.is_full();
        drop(submission);
        if self.config.sq_poll && !wait && !is_full && !self.must_enter() {
            return Ok(());
        }
        self.thread_is_woken |= flags.contains(EnterFlags::SQ_WAKEUP);
        self.table.counters.system_calls += 1;
        // SAFETY: the arguments are a SubmitArgs, as EXT_ARG says, and live with what they point to until the call
        // returns. The memory that submitted entries name belongs to the table (see `fill`).
        let result = unsafe {
            self.ring.submitter().enter(
                to_submit as u32,
                u32::from(wait),
                flags.bits(),
                Some(&arguments),
            )
        };
        if result? < to_submit {
            // The rest stays in the queue and goes along with the next enter.
            self.table.counters.short_submits += 1;
        }
        Ok(())
    }

    /// Submits what is queued, until events come or all is submitted, and then waits for a completion if `wait`. The
    /// rest stays queued, and so do entries that the kernel won't take for want of memory or of room. Returns how the
    /// wait ended.
    fn enter_all(
        &mut self,
        wait: bool,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> io::Result<Ended> {
        let before = events.len();
        let mut refusals = 0;
        loop {
            let all = self.fill();
            let wait_now = wait && all;
            match self.enter(wait_now, timeout) {
                Ok(()) => {
                    let is_done =
                        !wait_now || self.config.sq_poll || self.ring.submission().is_empty();
                    if all && is_done {
                        return Ok(Ended::Returned);
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ETIME) => return Ok(Ended::TimedOut),
                    Some(libc::EINTR) => return Ok(Ended::Interrupted),
                    // The completion queue has overflowed, or there is no memory for requests: room is made by
                    // reaping, and what stays queued is tried again at the next poll at the latest.
                    Some(libc::EBUSY | libc::EAGAIN) => {
                        refusals += 1;
                        self.table.counters.refused_submits += 1;
                        if refusals == REFUSALS_MAX {
                            return Ok(Ended::Returned);
                        }
                        std::thread::yield_now();
                    }
                    // Completions were lost for want of memory (Linux 5.19, io_uring_enter(2)): arming the watches
                    // again checks their level.
                    Some(libc::EBADR) => {
                        self.table.counters.overflows += 1;
                        self.disarm_everything();
                        self.arm_everything();
                    }
                    _ => return Err(error),
                },
            }
            self.reap(events);
            // Whoever has events in hand must not wait for more; nor go on submitting, because with a full completion
            // queue each enter may end as many multishot requests as it takes, and the queue never runs dry.
            if events.len() > before || self.must_fetch() {
                return Ok(Ended::Returned);
            }
        }
    }

    /// Queues the removal of every request for a watch.
    fn disarm_everything(&mut self) {
        self.queued.push_back(cancel_request(WAKER));
        self.queued.push_back(cancel_request(REGISTRY));
        for (token, watch) in self.table.watches() {
            self.disarm(token, watch);
        }
    }

    /// Turns completions into events.
    fn reap(&mut self, events: &mut Vec<Event>) {
        if self.ring.submission().cq_overflow() {
            self.table.counters.overflows += 1;
        }
        self.release_discarded();
        if !self.ended.is_empty() {
            self.report_ended(events);
        }
        let mut internal = Internal::default();
        let mut restart = Vec::new();
        let mut restart_watches = Vec::new();
        for completion in self.ring.completion() {
            let (user_data, result) = (completion.user_data(), completion.result());
            let more = cqueue::more(completion.flags());
            if user_data & INTERNAL == INTERNAL {
                internal.note(user_data, more);
                continue;
            }
            match self.table.by_user_data(user_data) {
                None => self.table.counters.stale_events += 1,
                Some((token, Owner::Watch(_))) if result < 0 => {
                    // The kernel would not wait for it: reading or writing will tell why.
                    if let Some(watch) = self.table.watch_mut(token) {
                        watch.armed = false;
                    }
                    self.table.report_readiness(
                        token,
                        Readiness::ERROR | Readiness::HANG_UP,
                        events,
                    );
                }
                Some((token, Owner::Watch(watch))) => {
                    // The kernel reports the end of what the peer sends unasked, too, as epoll does not (IO_POLL_UNMASK in
                    // io_uring/poll.c).
                    let readiness = result as u32 & (watch.interest.poll_bits() | UNASKED);
                    match watch.mode {
                        _ if readiness == 0 => {
                            if !more {
                                // A request that ends at the first report would do so again and again. A multishot one
                                // says it once, and goes on to say what was asked for.
                                if let Some(watch) = self.table.watch_mut(token) {
                                    watch.outlasting = watch.mode != Mode::Edge;
                                }
                                restart_watches.push(token);
                            }
                            continue;
                        }
                        Mode::Edge if more => {}
                        Mode::Edge => restart_watches.push(token),
                        Mode::Level | Mode::OneShot => {
                            if let Some(watch) = self.table.watch_mut(token) {
                                watch.armed = false;
                                watch.outlasting = false;
                            }
                            if more {
                                // With another number, so that what the request still reports is stale.
                                self.queued.push_back(cancel_request(user_data));
                                self.table.next_sequence(token);
                            }
                            if watch.mode == Mode::Level {
                                self.rearm.push(token);
                            }
                        }
                    }
                    self.table
                        .report_readiness(token, Readiness::from_bits(readiness), events);
                }
                Some((token, Owner::Operation(Course::ZeroCopy))) => {
                    let is_notification = cqueue::notif(completion.flags());
                    if end_zero_copy(
                        &mut self.table,
                        token,
                        result,
                        more,
                        is_notification,
                        events,
                    ) {
                        restart.push(token);
                    }
                }
                Some((token, Owner::Operation(_))) if self.table.opens_again(token, result) => {
                    restart.push(token);
                }
                Some((token, Owner::Operation(course))) => {
                    let multishot = course == Course::Multishot;
                    // The kernel may end a multishot request after any completion, for instance when the completion
                    // queue is full; only an error ends it for the user.
                    let goes_on = more || multishot && result >= 0;
                    if goes_on && !more {
                        restart.push(token);
                    }
                    self.table.report_completion(token, result, goes_on, events);
                }
            }
        }
        self.serve_internal(&internal);
        for token in restart_watches {
            self.table.counters.rearms += 1;
            self.arm(token);
        }
        self.begin_anew(restart, events);
    }

    /// Does what the completions of the driver's own requests ask for.
    fn serve_internal(&mut self, internal: &Internal) {
        if internal.waker_ended {
            self.arm_waker();
        }
        if internal.registry_ended {
            self.arm_registry();
        }
        if let Some(registered) = &mut self.registered {
            registered.is_due |= internal.registry_reported;
        }
    }

    /// Queues the requests of operations that the kernel has ended before their time.
    fn begin_anew(&mut self, operations: Vec<Token>, events: &mut Vec<Event>) {
        for token in operations {
            if self
                .table
                .operation(token)
                .is_some_and(|submitted| submitted.cancelled)
            {
                // The kernel would begin it before it hears of a second cancel; what the cancel was to precede has been
                // done meanwhile, and the descriptor's number may be another file's.
                self.table
                    .report_completion(token, -libc::ECANCELED, false, events);
                continue;
            }
            self.table.counters.rearms += 1;
            self.start(token);
        }
    }

    /// Queues the requests of the level watches that have fired, so that they fire again if still ready.
    fn rearm_level(&mut self) {
        for token in std::mem::take(&mut self.rearm) {
            // Meanwhile it may be gone, changed, or armed by a rewatch.
            if let Some(watch) = self
                .table
                .watch_mut(token)
                .filter(|watch| !watch.armed && watch.mode == Mode::Level)
            {
                watch.armed = true;
                self.arm(token);
            }
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.settle_in()?;
        // One enter runs at least twenty pieces of task work, in order, so that after this many everything that was
        // pending has had its turn. Without a bound a busy ring would never be done.
        let live = self.table.counters.watches + self.table.counters.operations;
        let mut runs_left = 8 + live / 16;
        let mut refusals = 0;
        while self.must_enter() && runs_left > 0 {
            self.fill();
            if let Err(error) = self.enter(false, None) {
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EBUSY | libc::EAGAIN | libc::EBADR) => {
                        refusals += 1;
                        self.table.counters.refused_submits += 1;
                        if refusals == REFUSALS_MAX {
                            break;
                        }
                        std::thread::yield_now();
                    }
                    _ => return Err(error),
                }
            }
            let submission = self.ring.submission();
            if self.queued.is_empty() && submission.is_empty() {
                runs_left -= 1;
                if submission.cq_overflow() && !submission.taskrun() {
                    // The completion queue is full: only poll can make room.
                    break;
                }
            }
        }
        if self.config.sq_poll {
            self.wait_for_thread()?;
        }
        self.release_discarded();
        if self.queued.is_empty() && self.ring.submission().is_empty() {
            Ok(())
        } else {
            Err(refused())
        }
    }

    /// Waits until the kernel's submission thread has taken all entries, for a while: it may not get to run.
    fn wait_for_thread(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE_FOR_THREAD;
        for round in 0_u32.. {
            if self.ring.submission().is_empty() {
                break;
            }
            if self.must_enter() {
                match self.enter(false, None) {
                    Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                    _ => {}
                }
            }
            if round % 64 > 0 {
                std::hint::spin_loop();
            } else if Instant::now() < deadline {
                std::thread::yield_now();
            } else {
                break;
            }
        }
        Ok(())
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
        self.reap(events);
        let mut fetched = self.fetch_registered(events);
        let may_wait = timeout != Some(Duration::ZERO);
        let deadline = timeout
            .filter(|_| may_wait)
            .and_then(|timeout| Instant::now().checked_add(timeout));
        let mut remaining = timeout;
        // What is armed now and ready already is reported first. It must not keep others that wait from being reported, and
        // neither must what has been collected so far.
        let enough = events.len() + BATCH + self.queued.len();
        loop {
            let wait = may_wait && events.len() == before && self.waker.fall_asleep();
            if !wait && !self.must_enter() {
                break;
            }
            let found = events.len();
            let ended = self.enter_all(wait, remaining.filter(|_| wait), events);
            let woken = wait && self.waker.get_up();
            let nothing_came = self.ring.completion().is_empty();
            self.reap(events);
            let brought = events.len() - found;
            if !fetched {
                fetched = self.fetch_registered(events);
            }
            match ended? {
                Ended::TimedOut => break,
                Ended::Interrupted => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Ended::Returned => {}
            }
            let more = brought >= FULL_ENTER || brought > 0 && !self.queued.is_empty();
            if more && events.len() < enough {
                continue;
            }
            if !wait || woken || events.len() > before {
                break;
            }
            if let Some(deadline) = deadline {
                let now = Instant::now();
                if now >= deadline {
                    break;
                }
                remaining = Some(deadline - now);
            }
            if nothing_came {
                // An enter that has submitted something reports that, not the signal that ended its wait.
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        self.table.counters.wakes += self.waker.clear();
        Ok(())
    }

    /// Says that this is a child process: the ring is the parent's, and nothing may be asked of it any more.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Drops what is queued; operations that the kernel has not heard of are over.
    fn drop_queued(&mut self, events: &mut Vec<Event>) {
        self.report_ended(events);
        for entry in std::mem::take(&mut self.queued) {
            if let Some((token, Owner::Operation(_))) =
                self.table.by_user_data(entry.get_user_data())
            {
                self.table
                    .report_completion(token, -libc::ECANCELED, false, events);
            }
        }
    }

    /// Cancels everything and waits, for a while, until the kernel has let go of it.
    fn wind_up(&mut self) {
        let mut events = Vec::new();
        for token in self.table.operations() {
            self.table.discard(token);
        }
        self.drop_queued(&mut events);
        if self.owner == process::thread_number() {
            // Watches too: a child that inherited the ring's descriptor keeps the ring alive, and with it the files.
            if self.table.is_closing() {
                // One that is cancelled might close nothing, and nobody could tell.
                self.disarm_everything();
                for token in self.table.operations() {
                    self.cancel(token);
                }
            } else {
                let cancel_all = CancelBuilder::any().all();
                let cancel_all = opcode::AsyncCancel2::new(cancel_all)
                    .build()
                    .user_data(IGNORED);
                self.queued.push_back(cancel_all);
            }
            let deadline = Instant::now() + WIND_UP_MAX;
            loop {
                let wait = !self.table.operations().is_empty();
                let entered = self.enter_all(wait, Some(WIND_UP_STEP), &mut events);
                self.reap(&mut events);
                // Reaping queues anew what the kernel has ended.
                self.drop_queued(&mut events);
                let idle = self.table.operations().is_empty() && !self.must_enter();
                if entered.is_err() || idle || Instant::now() > deadline {
                    break;
                }
            }
        }
        // The kernel may still write to what is left: its ring is another thread's, or the operation won't be cancelled.
        for token in self.table.operations() {
            self.table.leak_operation(token);
        }
    }
}

/// What has come of the driver's own requests.
#[derive(Default)]
struct Internal {
    waker_ended: bool,
    registry_reported: bool,
    registry_ended: bool,
}

impl Internal {
    fn note(&mut self, user_data: u64, more: bool) {
        match user_data {
            WAKER => self.waker_ended |= !more,
            REGISTRY => {
                self.registry_reported = true;
                self.registry_ended |= !more;
            }
            _ => {}
        }
    }
}

/// The registry as the ring sees it.
struct Registered {
    registry: Registry,
    buffer: Vec<libc::epoll_event>,
    /// Whether the set may have something to tell: the ring has said so, or what was fetched last was not all, or is to be
    /// told as long as it is so.
    is_due: bool,
}

/// How long dropping a driver waits for operations that the kernel will not cancel, such as a write to a slow disk.
const WIND_UP_MAX: Duration = Duration::from_secs(1);

/// How long it waits at a time.
const WIND_UP_STEP: Duration = Duration::from_millis(10);

impl Drop for Uring {
    fn drop(&mut self) {
        // In a child process the table is a copy that no kernel writes to: it is simply freed.
        if !self.abandoned {
            self.wind_up();
        }
        // The ring's memory is unmapped and its descriptor closed after this, and the table freed last.
    }
}

/// What the kernel reports of a descriptor without being asked.
const UNASKED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32 | libc::POLLNVAL as u32;

/// Asks the kernel to end a request. One that has just completed is not found, which is as good.
fn cancel_request(user_data: u64) -> squeue::Entry {
    opcode::AsyncCancel::new(user_data)
        .build()
        .flags(squeue::Flags::SKIP_SUCCESS)
        .user_data(IGNORED)
}

/// Takes a completion of a zero-copy send: its result, after which a notification follows if `more`, or that
/// notification, after which the kernel has let go of the memory. Returns whether the request is to be queued anew.
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
        // The memory is still with the kernel: the error waits for the notification.
        submitted.error = result;
        return false;
    } else if result < 0 {
        result
    } else {
        table.report_completion(token, result, true, events);
        if more {
            return false;
        }
        // An ordinary send, which has copied all.
        SENT_BY_COPY
    };
    if matches!(-last, libc::EOPNOTSUPP | libc::ENOMEM)
        && let Some(submitted) = table.operation(token)
        && let Some(parked) = submitted.parked.as_mut()
        && !parked.get_mut().copies
    {
        // The socket knows no such sending, as a Unix socket doesn't; or RLIMIT_MEMLOCK is used up.
        submitted.error = 0;
        parked.get_mut().copies = true;
        return true;
    }
    table.report_completion(token, last, false, events);
    false
}

/// Set in the result of a notification if the kernel has copied (`IORING_NOTIF_USAGE_ZC_COPIED`).
const NOTIFICATION_COPIED: i32 = i32::MIN;

/// Asks that the notification say whether the kernel has copied (`IORING_SEND_ZC_REPORT_USAGE`).
const REPORT_USAGE: u16 = 1 << 3;

/// Whether a queued entry is more than the arming of a watch.
fn is_operation_or_cancel(entry: &squeue::Entry) -> bool {
    entry.get_opcode() != u32::from(opcode::PollAdd::CODE)
}

/// How a wait in the kernel ended.
enum Ended {
    Returned,
    TimedOut,
    Interrupted,
}

/// The kernel's form of an operation. The pointers in it lead into the operation, which the table keeps unmoved.
fn request(operation: &mut Operation) -> squeue::Entry {
    let header = operation.message_header();
    let open_flags = operation.open_flags();
    match &mut operation.op {
        Op::Accept { fd, multishot } => accept_request(number(fd), *multishot),
        Op::Connect { fd, addr } => {
            opcode::Connect::new(number(fd), addr.as_ptr(), addr.length()).build()
        }
        Op::Recv { fd, buffer, flags } => {
            let spare = buffer.spare_capacity_mut();
            opcode::Recv::new(number(fd), spare.as_mut_ptr().cast(), length(spare.len()))
                .flags(*flags)
                .build()
        }
        Op::Send {
            fd,
            buffer,
            start,
            flags,
        } => {
            let rest = &buffer[*start..];
            let flags = *flags | libc::MSG_NOSIGNAL;
            opcode::Send::new(number(fd), rest.as_ptr(), length(rest.len()))
                .flags(flags)
                .build()
        }
        Op::SendZeroCopy { fd, bytes, flags } => {
            zero_copy_request(number(fd), bytes, *flags, operation.copies)
        }
        Op::RecvMsg { fd, flags, .. } => {
            let flags = (*flags | libc::MSG_CMSG_CLOEXEC) as u32;
            opcode::RecvMsg::new(number(fd), header)
                .flags(flags)
                .build()
        }
        Op::SendMsg { fd, flags, .. } => {
            let flags = (*flags | libc::MSG_NOSIGNAL) as u32;
            opcode::SendMsg::new(number(fd), header)
                .flags(flags)
                .build()
        }
        Op::Read { fd, buffer, offset } => {
            let spare = buffer.spare_capacity_mut();
            opcode::Read::new(number(fd), spare.as_mut_ptr().cast(), length(spare.len()))
                .offset(offset.unwrap_or(u64::MAX))
                .build()
        }
        Op::Write {
            fd,
            buffer,
            start,
            offset,
        } => {
            let rest = &buffer[*start..];
            opcode::Write::new(number(fd), rest.as_ptr(), length(rest.len()))
                .offset(offset.unwrap_or(u64::MAX))
                .build()
        }
        Op::Fsync { fd, data_only } => {
            let flags = data_only.then_some(FsyncFlags::DATASYNC);
            let flags = flags.unwrap_or(FsyncFlags::empty());
            opcode::Fsync::new(number(fd)).flags(flags).build()
        }
        Op::OpenAt {
            directory,
            path,
            mode,
            ..
        } => opcode::OpenAt::new(place(directory.as_ref()), path.as_ptr())
            .flags(open_flags)
            .mode(*mode)
            .build(),
        Op::Statx {
            directory,
            path,
            flags,
            mask,
            status,
        } => opcode::Statx::new(
            place(directory.as_ref()),
            path.as_ptr(),
            (&raw mut status.0).cast(),
        )
        .flags(*flags)
        .mask(*mask)
        .build(),
        Op::Shutdown { fd, how } => opcode::Shutdown::new(number(fd), *how).build(),
        Op::Close { fd } => {
            opcode::Close::new(Fd(fd.as_ref().map_or(-1, AsRawFd::as_raw_fd))).build()
        }
    }
}

/// The kernel's form of an accept.
fn accept_request(fd: Fd, multishot: bool) -> squeue::Entry {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    if multishot {
        opcode::AcceptMulti::new(fd).flags(flags).build()
    } else {
        let nowhere = std::ptr::null_mut();
        opcode::Accept::new(fd, nowhere, nowhere.cast())
            .flags(flags)
            .build()
    }
}

fn number(fd: &SharedFd) -> Fd {
    Fd(fd.as_raw_fd())
}

/// Where relative paths begin.
fn place(directory: Option<&SharedFd>) -> Fd {
    directory.map_or(Fd(libc::AT_FDCWD), number)
}

/// The kernel's form of a zero-copy send, or of an ordinary one in its place if it `copies`.
fn zero_copy_request(fd: Fd, bytes: &Bytes, flags: i32, copies: bool) -> squeue::Entry {
    let (bytes, flags) = (bytes.as_slice(), flags | libc::MSG_NOSIGNAL);
    if copies {
        opcode::Send::new(fd, bytes.as_ptr(), length(bytes.len()))
            .flags(flags)
            .build()
    } else {
        opcode::SendZc::new(fd, bytes.as_ptr(), length(bytes.len()))
            .flags(flags)
            .zc_flags(REPORT_USAGE)
            .build()
    }
}

/// A length in the kernel's terms: one transfer moves less than two gigabytes anyway (read(2)).
fn length(length: usize) -> u32 {
    length.min(0x7fff_f000) as u32
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// Polls until something comes.
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

    /// Older kernels grant less; what works with the best setup works with the least.
    #[test]
    fn every_setup_serves_and_lets_go() {
        for first in 0..SETUPS.len() {
            let made =
                Uring::with_setups(&Config::default(), &SETUPS[first..], Waker::new().unwrap());
            let mut uring = match made {
                Ok(uring) => uring,
                Err(error) => {
                    eprintln!("SKIPPED on io_uring: {error}");
                    return;
                }
            };
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
            let receive = || Op::Recv {
                fd: server.clone(),
                buffer: Vec::with_capacity(2),
                flags: 0,
            };
            let received = uring.submit(receive()).unwrap();
            assert_eq!(next_events(&mut uring)[0].token, received);
            assert!(uring.take(received).is_some());
            let cancelled = uring.submit(receive()).unwrap();
            uring.flush().unwrap();
            uring.discard(cancelled);
            uring.unwatch(watch);
            drop(server);
            uring.flush().unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }

    /// Before Linux 6.2, zero-copy sends are ordinary ones with the events of others.
    #[test]
    fn a_kernel_without_zero_copy_sends_copies() {
        let mut uring = match Uring::new(&Config::default(), Waker::new().unwrap()) {
            Ok(uring) => uring,
            Err(error) => {
                eprintln!("SKIPPED on io_uring: {error}");
                return;
            }
        };
        uring.sends_zero_copy = false;
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
