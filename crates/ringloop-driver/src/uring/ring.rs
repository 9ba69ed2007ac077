//! The ring, and the queue of entries in front of it.
//!
//! Entries wait in the driver's own queue, which is never full, until the driver enters the kernel. An enter submits as
//! many as fit, runs the kernel's pending work for this ring (task work), and may wait for a completion.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, squeue};

use super::requests::{self, INTERNAL};
use super::setup::{Granted, Setup, set_up};
use crate::config::Config;
use crate::contract::{Counters, refused};
use crate::process;
use crate::table::Table;

/// How often to submit entries that the kernel refuses, before giving up for now.
pub(super) const REFUSALS_MAX: u32 = 100;

/// How long a flush waits for the kernel's submission thread. It takes what is queued within microseconds, once it is
/// scheduled.
const PATIENCE_FOR_THREAD: Duration = Duration::from_secs(1);

pub(super) struct Ring {
    kernel: IoUring,
    config: Config,
    setups: &'static [Setup],
    description: String,
    /// Whether the kernel can send without copying.
    pub(super) sends_zero_copy: bool,
    /// The number of the thread that enabled the ring. 0 if none has.
    owner: u64,
    /// Entries that are not in the kernel's queue yet.
    queued: VecDeque<squeue::Entry>,
    /// Whether the kernel's submission thread was woken for everything in its queue. It may not have run yet.
    thread_is_woken: bool,
    /// Makes the ring, and so the driver, not `Sync`: `is_idle` and `must_enter` write to the queues through a shared
    /// reference, so two threads must not call them at once.
    not_sync: PhantomData<Cell<()>>,
}

impl Ring {
    /// Sets up a ring, with the first of these setups that the kernel grants.
    pub(super) fn new(config: &Config, setups: &'static [Setup]) -> io::Result<Ring> {
        let Granted {
            ring,
            description,
            sends_zero_copy,
        } = set_up(config, setups)?;
        Ok(Ring {
            kernel: ring,
            config: config.clone(),
            setups,
            description,
            sends_zero_copy,
            owner: 0,
            queued: VecDeque::new(),
            thread_is_woken: false,
            not_sync: PhantomData,
        })
    }

    /// The features that the kernel grants, as one line of text.
    pub(super) fn description(&self) -> &str {
        &self.description
    }

    // ---- the thread

    /// Whether this thread enabled the ring.
    pub(super) fn is_own(&self) -> bool {
        self.owner == process::thread_number()
    }

    /// Whether this thread may use the ring: no other thread has enabled it.
    #[inline]
    pub(super) fn is_usable(&self) -> bool {
        self.owner == 0 || self.is_own()
    }

    /// Replaces the ring with a new one for this thread. The kernel drops the requests of the old ring when it is
    /// closed. Queued armings of watches are dropped, because the caller arms all watches again. Other queued entries
    /// stay.
    pub(super) fn rebuild(&mut self) -> io::Result<()> {
        let Granted {
            ring, description, ..
        } = set_up(&self.config, self.setups)?;
        self.kernel = ring;
        self.thread_is_woken = false;
        self.description = description;
        self.owner = 0;
        // A cancel of a request in the old ring finds nothing in the new one, which is fine.
        self.queued.retain(requests::is_operation_or_cancel);
        Ok(())
    }

    // ---- entries

    /// Queues an entry.
    #[inline]
    pub(super) fn push(&mut self, entry: squeue::Entry) {
        self.queued.push_back(entry);
    }

    /// How many entries are not in the kernel's queue yet.
    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Takes back the entries that are not in the kernel's queue yet.
    pub(super) fn take_queued(&mut self) -> VecDeque<squeue::Entry> {
        std::mem::take(&mut self.queued)
    }

    /// Whether the kernel has taken all entries.
    pub(super) fn is_drained(&mut self) -> bool {
        self.queued.is_empty() && self.kernel.submission().is_empty()
    }

    /// Whether the kernel has taken everything in its queue, or has a thread that does.
    pub(super) fn has_submitted(&mut self) -> bool {
        self.config.sq_poll || self.kernel.submission().is_empty()
    }

    // ---- completions

    /// The completions that have come.
    #[inline]
    pub(super) fn completions(&mut self) -> cqueue::CompletionQueue<'_> {
        self.kernel.completion()
    }

    /// Whether completions wait in the kernel because the completion queue was full.
    pub(super) fn has_overflowed(&mut self) -> bool {
        self.kernel.submission().cq_overflow()
    }

    // ---- entering

    /// Whether nothing is queued, and the kernel has neither completions nor work that an enter would turn into
    /// completions.
    pub(super) fn is_idle(&self) -> bool {
        // SAFETY: no other view of the completion queue exists: those made by `completions` borrow the ring mutably, and the
        // ring is not Sync.
        let completions = unsafe { self.kernel.completion_shared() };
        self.queued.is_empty() && completions.is_empty() && !self.kernel_waits()
    }

    /// Whether something is queued, or an enter would have something to do.
    pub(super) fn must_enter(&self) -> bool {
        !self.queued.is_empty() || self.kernel_waits()
    }

    /// Whether the kernel waits for an enter. With a submission thread, entries in its queue need an enter only to wake
    /// that thread.
    fn kernel_waits(&self) -> bool {
        // SAFETY: no other view of the submission queue exists: the other methods that make one take `&mut self` and do
        // not keep it, and the ring is not Sync.
        let submission = unsafe { self.kernel.submission_shared() };
        submission.taskrun()
            || submission.cq_overflow()
            || !submission.is_empty()
                && (!self.config.sq_poll || submission.need_wakeup() && !self.thread_is_woken)
    }

    /// Moves queued entries into the kernel's queue as far as there is room. Returns whether all fitted.
    pub(super) fn fill(&mut self, table: &mut Table) -> bool {
        if self.queued.is_empty() {
            return true;
        }
        let mut submission = self.kernel.submission();
        while let Some(entry) = self.queued.front() {
            let user_data = entry.get_user_data();
            if submission.is_full() {
                return false;
            }
            if user_data & INTERNAL == INTERNAL || table.hand_over(user_data) {
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
    /// if `wait`. Enables the ring first if that was not done yet.
    ///
    /// With a submission thread, it wakes the thread if necessary, and waits for room if the queue is full. If neither
    /// is necessary, it makes no system call.
    pub(super) fn enter(
        &mut self,
        wait: bool,
        timeout: Option<Duration>,
        counters: &mut Counters,
    ) -> io::Result<()> {
        if self.owner == 0 {
            self.kernel.submitter().register_enable_rings()?;
            counters.system_calls += 1;
            self.owner = process::thread_number();
        }
        let timespec = timeout.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if wait && self.kernel.params().is_feature_no_iowait() {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let submission = self.kernel.submission();
        let mut to_submit = submission.len();
        if self.config.sq_poll {
            if submission.need_wakeup() {
                flags |= EnterFlags::SQ_WAKEUP;
            }
            if submission.is_full() {
                flags |= EnterFlags::SQ_WAIT;
            }
            // Otherwise it would be the result, instead of what has ended the wait.
            to_submit = 0;
        }
        let is_full = submission.is_full();
        drop(submission);
        if self.config.sq_poll && !wait && !is_full && !self.must_enter() {
            return Ok(());
        }
        self.thread_is_woken |= flags.contains(EnterFlags::SQ_WAKEUP);
        counters.system_calls += 1;
        // SAFETY: the arguments are a SubmitArgs, as EXT_ARG says, and live with what they point to until the call
        // returns. The memory that submitted entries name belongs to the table (see `fill`).
        let result = unsafe {
            self.kernel.submitter().enter(
                to_submit as u32,
                u32::from(wait),
                flags.bits(),
                Some(&arguments),
            )
        };
        if result? < to_submit {
            // The rest stays in the queue and is submitted by the next enter.
            counters.short_submits += 1;
        }
        Ok(())
    }

    /// Submits all entries, and lets the kernel do its pending work for this ring. Fails if the kernel does not take
    /// all entries.
    pub(super) fn flush(&mut self, table: &mut Table) -> io::Result<()> {
        // One enter runs at least twenty pieces of task work, in order. So after this many enters, everything that was
        // pending has been processed. Without a bound, a busy ring would never be done.
        let live = table.counters.watches + table.counters.operations;
        let mut runs_left = 8 + live / 16;
        let mut refusals = 0;
        while self.must_enter() && runs_left > 0 {
            self.fill(table);
            if let Err(error) = self.enter(false, None, &mut table.counters) {
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EBUSY | libc::EAGAIN | libc::EBADR) => {
                        refusals += 1;
                        table.counters.refused_submits += 1;
                        if refusals == REFUSALS_MAX {
                            break;
                        }
                        std::thread::yield_now();
                    }
                    _ => return Err(error),
                }
            }
            let submission = self.kernel.submission();
            if self.queued.is_empty() && submission.is_empty() {
                runs_left -= 1;
                if submission.cq_overflow() && !submission.taskrun() {
                    // The completion queue is full: only poll can make room.
                    break;
                }
            }
        }
        if self.config.sq_poll {
            self.wait_for_thread(&mut table.counters)?;
        }
        if self.is_drained() {
            Ok(())
        } else {
            Err(refused())
        }
    }

    /// Waits until the kernel's submission thread has taken all entries, for a limited time, because it may not be
    /// scheduled.
    fn wait_for_thread(&mut self, counters: &mut Counters) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE_FOR_THREAD;
        for round in 0_u32.. {
            if self.kernel.submission().is_empty() {
                break;
            }
            if self.must_enter() {
                match self.enter(false, None, counters) {
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
}
