//! A scenario is repeated, and its future is dropped one poll later each time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use ringloop::driver::{Driver, Fault, Op, Script};
use ringloop::time::{sleep, timeout};
use ringloop::{Reactor, Runtime, RuntimeConfig, spawn};

use crate::common::{LONG, on_both, until_nothing_is_left};
use crate::memory;

/// More polls than any scenario's future takes.
const POLLS_MAX: usize = 20_000;

/// When a future is dropped that has not completed within its polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Directly after the last one.
    Polled,
    /// When it is woken: what it waits for has arrived, and it has not looked.
    Woken,
}

/// Where one future is dropped.
pub(crate) struct Cut {
    polls: usize,
    when: When,
    is_over: Cell<bool>,
}

impl Cut {
    pub(crate) fn new(polls: usize, when: When) -> Self {
        Self {
            polls,
            when,
            is_over: Cell::new(false),
        }
    }

    /// How often the future may be polled.
    pub(crate) fn polls(&self) -> usize {
        self.polls
    }

    /// Polls a future as often as it is woken, up to the limit, and drops it. Returns `None` if it has not completed.
    /// No waker of it may be left anywhere.
    pub(crate) async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        let waiting = Arc::new(Waiting::default());
        let output = self.poll_on(&waiting, future).await;
        // Another thread may be about to use one. Nothing else happens meanwhile.
        let start = Instant::now();
        while Arc::strong_count(&waiting) > 1 {
            assert!(
                start.elapsed() < LONG,
                "{} wakers are left after {} polls, {:?}",
                Arc::strong_count(&waiting) - 1,
                self.polls,
                self.when
            );
            std::thread::sleep(Duration::from_micros(50));
        }
        output
    }

    /// As [`run`](Self::run), for a future of a library that keeps wakers.
    pub(crate) async fn run_keeping_wakers<F: Future>(&self, future: F) -> Option<F::Output> {
        self.poll_on(&Arc::default(), future).await
    }

    async fn poll_on<F: Future>(&self, waiting: &Arc<Waiting>, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(waiting));
        let mut polls = 0;
        poll_fn(|context| {
            if polls == self.polls {
                return Poll::Ready(None);
            }
            polls += 1;
            waiting.of(context);
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => {
                    self.is_over.set(true);
                    Poll::Ready(Some(output))
                }
                Poll::Pending if polls == self.polls && self.when == When::Polled => {
                    Poll::Ready(None)
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// Wakes the task of a future, and counts who holds its wakers.
#[derive(Default)]
struct Waiting(Mutex<Option<Waker>>);

impl Waiting {
    fn of(&self, context: &Context<'_>) {
        *self.0.lock().unwrap() = Some(context.waker().clone());
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let waker = self.0.lock().unwrap().clone();
        // Not while it counts as one that is left.
        drop(self);
        waker.expect("it was polled").wake();
    }
}

/// Descriptors are counted in the whole process, so one test runs at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptors of this process, and what they refer to.
pub(crate) fn descriptors() -> BTreeMap<String, PathBuf> {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let target = std::fs::read_link(entry.path()).ok()?;
            // The one that this folder is read by.
            let is_own = target.starts_with("/proc") && target.ends_with("fd");
            (!is_own).then(|| (entry.file_name().into_string().unwrap(), target))
        })
        .collect()
}

/// Runs a scenario on both backends, with its future dropped at every point, and checks each time that nothing is left.
/// Then does the same on a kernel that does everything late, or in small parts.
#[expect(
    clippy::needless_pass_by_value,
    reason = "a closure that is written where it is passed"
)]
pub(crate) fn at_every_poll(scenario: impl AsyncFn(&Cut)) {
    let _alone = alone();
    on_both(|runtime| {
        for when in [When::Polled, When::Woken] {
            cut_everywhere(runtime, runtime.backend().name(), when, 1, &scenario);
        }
    });
    for (name, fault) in DELAYS {
        let mut runtime = with_faults(move |_| fault());
        // Each poll in turn at the beginning, where the operations are, and then some.
        cut_everywhere(&mut runtime, name, When::Polled, 7, &scenario);
    }
}

/// Up to this many polls, the future is dropped at each. Beyond, some are skipped.
const POLLS_EACH: usize = 24;

type MakeFault = fn() -> Fault;

/// The faults of a kernel that nobody may notice.
const DELAYS: [(&str, MakeFault); 3] = [
    ("late", || {
        let mut fault = Fault::default();
        fault.polls = 2;
        fault
    }),
    ("late, and deaf to cancels", || {
        let mut fault = Fault::default();
        fault.polls = 1;
        fault.outruns_cancel = true;
        fault
    }),
    ("in parts", || {
        let mut fault = Fault::default();
        fault.bytes_max = 4099;
        fault
    }),
];

/// A runtime on a kernel that follows a plan.
pub(crate) fn with_faults(plan: impl FnMut(Option<&Op>) -> Fault + Send + 'static) -> Runtime {
    let script = Script::new();
    script.plan(plan);
    let reactor = Reactor::with_driver(Driver::scripted(script).unwrap());
    Runtime::with_reactor(&RuntimeConfig::default(), reactor).unwrap()
}

/// Drops a scenario's future after no poll, after one, and so on, until it completes. After the first polls, it skips
/// some.
fn cut_everywhere(
    runtime: &mut Runtime,
    name: &str,
    when: When,
    stride: usize,
    scenario: &impl AsyncFn(&Cut),
) {
    let before = descriptors();
    let mut polls = 0;
    loop {
        let cut = Cut::new(polls, when);
        // A hang says where.
        let point = format!("dropped after {polls} polls, {when:?}, {name}");
        runtime.block_on(async {
            timeout(LONG, scenario(&cut)).await.expect(&point);
        });
        check_nothing_is_left(runtime, &before, &point);
        if cut.is_over.get() {
            break;
        }
        polls += if polls < POLLS_EACH { 1 } else { stride };
        assert!(polls < POLLS_MAX, "the future never ends");
    }
}

/// Runs something on both backends, and checks that nothing is left.
pub(crate) fn leaving_nothing(body: impl Fn(&mut Runtime)) {
    let _alone = alone();
    on_both(|runtime| {
        let before = descriptors();
        body(runtime);
        check_nothing_is_left(runtime, &before, runtime.backend().name());
    });
}

/// Checks that a runtime still works, and holds nothing.
pub(crate) fn check_nothing_is_left(
    runtime: &mut Runtime,
    before: &BTreeMap<String, PathBuf>,
    point: &str,
) {
    runtime.block_on(async {
        let task = spawn(async {
            sleep(Duration::ZERO).await;
            7
        });
        assert_eq!(timeout(LONG, task).await.expect(point).unwrap(), 7);
    });
    until_nothing_is_left(runtime);
    let start = Instant::now();
    // Threads that stand in for the kernel let go when they are done.
    loop {
        let now = descriptors();
        let live = memory::live();
        if now.len() <= before.len() && live == 0 {
            break;
        }
        assert!(
            start.elapsed() < LONG,
            "{point}: {live} buffers are left, and of the descriptors {now:?} there were only {before:?} before"
        );
        std::thread::sleep(Duration::from_micros(200));
    }
    memory::check();
}
