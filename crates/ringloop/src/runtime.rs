//! The runtime of one thread: it polls tasks, and waits for the kernel when no task can continue.

mod handle;
mod join_set;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ringloop_driver::{BackendKind, Event, SLOTS_MAX};
use ringloop_reactor::{Reactor, ReactorConfig, clock, inbox::Inbox, panics};

use crate::budget;
use crate::metrics::Metrics;
use crate::shared::{Entered, Message, Remote, Shared};
use crate::task::{JoinHandle, Role, Watch};
use crate::threads::{Limits, THREADS_DEFAULT, THREADS_MAX};
use crate::trace;
pub use handle::Handle;
pub use join_set::JoinSet;

/// The largest buffer for reads in place.
const HOT_BUFFER_BYTES_MAX: usize = 1 << 30;

/// How many tasks run between two looks at the kernel, so that tasks that wake one another do not starve I/O.
const TASKS_PER_LOOK: usize = 64;

/// A runtime for one thread: it runs tasks and their I/O.
///
/// ```
/// use ringloop::{Runtime, RuntimeConfig, spawn, time::sleep};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// let mut runtime = Runtime::new(&RuntimeConfig::default())?;
/// let sum = runtime.block_on(async {
///     let one = spawn(async { 1 });
///     let two = spawn(async {
///         sleep(Duration::from_millis(1)).await;
///         2
///     });
///     one.await.unwrap() + two.await.unwrap()
/// });
/// assert_eq!(sum, 3);
/// # Ok(())
/// # }
/// ```
///
/// Dropping it drops its tasks, and then the [driver](ringloop_driver::Driver), which may block for up to two seconds: it
/// waits for changes of files, and for the kernel to release the memory of operations. If futures of file operations live
/// on outside of the runtime, it first waits up to a second for these, to give them their buffers back. What the kernel
/// still uses then is leaked.
pub struct Runtime {
    shared: Rc<Shared>,
    /// Why it runs on its backend.
    reason: Box<str>,
    inbox: Inbox<Message>,
    messages: Vec<Message>,
    events: Vec<Event>,
}

/// The configuration of a [`Runtime`].
///
/// ```
/// use ringloop::driver::{BackendChoice, BackendKind};
/// use ringloop::{BusyPoll, Runtime, RuntimeConfig};
///
/// let mut config = RuntimeConfig::default();
/// config.reactor.driver.backend = BackendChoice::Epoll;
/// config.reactor.busy_poll = BusyPoll::Off;
/// config.hot_buffer_bytes = 64 * 1024;
/// let runtime = Runtime::new(&config)?;
/// assert_eq!(runtime.backend(), BackendKind::Epoll);
/// println!("{}", runtime.backend_reason());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RuntimeConfig {
    /// The configuration of the reactor: backend, queue sizes, how to wait.
    pub reactor: ReactorConfig,
    /// The size of the buffer for reads in place, in bytes; at most a gigabyte.
    pub hot_buffer_bytes: usize,
    /// How many threads there may be for [`blocking::run`](crate::blocking::run): 1 to 4096, 64 by default. The threads are
    /// shared by all runtimes of the process, and each starts new ones up to its own limit.
    pub blocking_threads: usize,
    /// How many threads there may be for looking up names, see [`net::resolve`](crate::net::resolve): 1 to 4096, 64 by
    /// default. They are shared in the same way, and used for nothing else.
    pub resolver_threads: usize,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            reactor: ReactorConfig::default(),
            hot_buffer_bytes: 256 * 1024,
            blocking_threads: THREADS_DEFAULT,
            resolver_threads: THREADS_DEFAULT,
        }
    }
}

impl RuntimeConfig {
    /// The default, with the reactor's settings taken from the environment; see [`ReactorConfig::from_env`].
    pub fn from_env() -> io::Result<Self> {
        Ok(Self {
            reactor: ReactorConfig::from_env()?,
            ..Self::default()
        })
    }

    /// Checks the sizes that a runtime reserves memory for.
    fn check(&self) -> io::Result<()> {
        let threads = [
            ("blocking_threads", self.blocking_threads),
            ("resolver_threads", self.resolver_threads),
        ];
        let no_threads = |(_, count): &&(&str, usize)| !(1..=THREADS_MAX).contains(count);
        let mistake = if !(1..=HOT_BUFFER_BYTES_MAX).contains(&self.hot_buffer_bytes) {
            format!(
                "hot_buffer_bytes is {}; use a size from 1 to {HOT_BUFFER_BYTES_MAX} bytes",
                self.hot_buffer_bytes
            )
        } else if self.reactor.driver.slots > SLOTS_MAX {
            format!(
                "slots is {}: at most {SLOTS_MAX} can be set aside",
                self.reactor.driver.slots
            )
        } else if let Some((name, count)) = threads.iter().find(no_threads) {
            format!("{name} is {count}; use 1 to {THREADS_MAX} threads")
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, mistake))
    }
}

impl Runtime {
    /// Creates a runtime for the calling thread.
    ///
    /// # Errors
    /// Returns the errors of [`Reactor::new`], and `InvalidInput` if the size of the hot buffer or a number of threads is 0,
    /// or if one of these or the number of slots is too large.
    pub fn new(config: &RuntimeConfig) -> io::Result<Self> {
        config.check()?;
        let reactor = Reactor::new(&config.reactor)?;
        trace::backend_chosen(reactor.backend(), reactor.backend_reason());
        Ok(Self::on(config, reactor))
    }

    /// Creates a runtime on an existing reactor. Of the reactor's settings in `config` only the number of slots has an
    /// effect. Use it with a [scripted](ringloop_driver::Driver::scripted) driver to test how a program handles errors
    /// from the kernel.
    ///
    /// # Errors
    /// Returns `InvalidInput` as [`new`](Self::new) does.
    ///
    /// ```
    /// use ringloop::driver::{Driver, Fault, Script};
    /// use ringloop::{Reactor, Runtime, RuntimeConfig, fs};
    ///
    /// let script = Script::new();
    /// script.plan(|operation| {
    ///     let mut fault = Fault::default();
    ///     fault.errno = if operation.is_some() { libc::EIO } else { 0 };
    ///     fault
    /// });
    /// let reactor = Reactor::with_driver(Driver::scripted(script)?);
    /// let mut runtime = Runtime::with_reactor(&RuntimeConfig::default(), reactor)?;
    /// let error = runtime.block_on(fs::read("/etc/passwd")).unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::EIO));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[cfg(feature = "test-util")]
    pub fn with_reactor(config: &RuntimeConfig, reactor: Reactor) -> io::Result<Self> {
        config.check()?;
        Ok(Self::on(config, reactor))
    }

    /// Creates a runtime on a reactor, with a configuration that was checked.
    fn on(config: &RuntimeConfig, reactor: Reactor) -> Self {
        let inbox = Inbox::new(reactor.waker());
        let remote = Arc::new(Remote::new(inbox.sender()));
        let slots = config.reactor.driver.slots;
        let reason = reactor.backend_reason().into();
        let limits = Limits {
            blocking: config.blocking_threads,
            resolving: config.resolver_threads,
        };
        let shared = Shared::new(reactor, slots, config.hot_buffer_bytes, limits, remote);
        Self {
            shared: Rc::new(shared),
            reason,
            inbox,
            messages: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Runs a future until it completes, and meanwhile all tasks of this runtime. Tasks that have not ended by then
    /// stay as they are until the next call, or until the runtime is dropped.
    ///
    /// # Panics
    /// Panics if a runtime already runs in this thread, if the future panics, or if the kernel refuses to wait, as it
    /// does in a child process after fork(2).
    ///
    /// ```
    /// use ringloop::{Runtime, RuntimeConfig};
    ///
    /// let mut runtime = Runtime::new(&RuntimeConfig::default())?;
    /// let mut text = String::from("borrowed");
    /// // The future may borrow, and need not be `Send`.
    /// runtime.block_on(async { text.push_str(" and back") });
    /// assert_eq!(text, "borrowed and back");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let entered = Entered::new(Rc::clone(&self.shared));
        let main = Arc::new(MainWaker {
            woken: AtomicBool::new(true),
            waker: self.shared.reactor().waker(),
        });
        let waker = Waker::from(Arc::clone(&main));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if main.woken.swap(false, Ordering::Acquire) {
                budget::renew();
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    drop(entered);
                    return output;
                }
            }
            self.run_tasks();
            self.turn(&main);
        }
    }

    /// Spawns a future as a new task. It starts to run in the next call of [`block_on`](Runtime::block_on).
    ///
    /// ```
    /// use ringloop::{Runtime, RuntimeConfig};
    ///
    /// let mut runtime = Runtime::new(&RuntimeConfig::default())?;
    /// let task = runtime.spawn(async { "done" });
    /// assert_eq!(runtime.block_on(task).unwrap(), "done");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        self.shared.spawn(future)
    }

    /// Returns a handle by which other threads reach this runtime.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.shared)
    }

    /// The backend that is used.
    pub fn backend(&self) -> BackendKind {
        self.shared.reactor().backend()
    }

    /// Why this backend is used, in words.
    pub fn backend_reason(&self) -> &str {
        &self.reason
    }

    /// From now on, shows which task is polled.
    pub(crate) fn watch(&self) -> Arc<Watch> {
        self.shared.watch()
    }

    /// Returns what the runtime has done so far.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.shared.counters();
        self.shared.remote.metrics.add_times(&mut metrics);
        metrics
    }

    /// Runs queued tasks until the queue is empty, or until it is time to look at the kernel: 64 of them have run, or
    /// one has used up its budget.
    fn run_tasks(&mut self) {
        for _ in 0..TASKS_PER_LOOK {
            // A task that has used up its budget has done enough for one look.
            if !self.shared.run_next_task() || budget::is_used_up() {
                break;
            }
        }
    }

    /// Looks at the kernel, or waits for it if there is nothing else to do, and wakes the tasks whose events have
    /// arrived.
    fn turn(&mut self, main: &MainWaker) {
        self.shared.close_retired();
        self.shared.count_turn();
        let published = &self.shared.remote.metrics;
        published.publish(self.shared.counters());
        let is_idle = self.shared.tasks.is_idle() && !main.woken.load(Ordering::Acquire);
        let mut now_ns = None;
        let result = if is_idle && self.inbox.prepare_wait() {
            let deadline_ns = self.shared.timers.borrow_mut().next_deadline_ns();
            let mut reactor = self.shared.reactor();
            let (start_ns, waited_ns) = (clock::now_ns(), reactor.waited_ns());
            let idle_ns = published.begin_wait(start_ns);
            let result = reactor.turn_from(start_ns, deadline_ns, &mut self.events);
            now_ns = Some(reactor.turn_ended_ns());
            published.end_wait(idle_ns + (reactor.waited_ns() - waited_ns));
            result
        } else {
            let mut reactor = self.shared.reactor();
            reactor.poll_now(&mut self.events)
        };
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                panic!("the runtime cannot wait for the kernel: {error}");
            }
            _ => {}
        }
        let mut events = self.events.drain(..);
        let mut dispatch_all = || {
            for event in events.by_ref() {
                self.shared.dispatch(event);
            }
        };
        // A waker of the user's making that panics must not keep others from being woken: an edge is not reported twice.
        while !panics::contain(&mut dispatch_all) {}
        drop(events);
        self.shared.drop_returned();
        self.inbox.receive(&mut self.messages);
        for message in self.messages.drain(..) {
            match message {
                Message::Run(task) => self.shared.tasks.queue(task),
                Message::Adopt(orphan) => {
                    if let Some(task) = orphan.into_task() {
                        self.shared.tasks.adopt(task);
                    }
                }
                #[cfg(feature = "hyper")]
                Message::Drop(value) => panics::discard(value),
            }
        }
        self.shared.expire_timers(now_ns);
    }
}

impl Drop for Runtime {
    /// Drops all tasks, and those that they spawn while they are dropped.
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Runtime")
            .field("backend", &self.backend())
            .field("metrics", &self.metrics())
            .finish_non_exhaustive()
    }
}

/// The waker of the future in `block_on`.
struct MainWaker {
    woken: AtomicBool,
    waker: ringloop_driver::Waker,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // In the runtime's own thread this is not needed: the flag is checked before each wait.
            self.waker.wake();
        }
    }
}

/// Spawns a future as a new task on the runtime of the current thread. It does not run before the caller waits.
///
/// # Panics
/// Panics if it is called outside of a runtime.
///
/// ```
/// use ringloop::spawn;
/// use std::{cell::Cell, rc::Rc};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// // Tasks of one thread may share what is not `Send`.
/// let sum = Rc::new(Cell::new(0));
/// let tasks: Vec<_> = (1..=3)
///     .map(|number| {
///         let sum = Rc::clone(&sum);
///         spawn(async move { sum.set(sum.get() + number) })
///     })
///     .collect();
/// for task in tasks {
///     task.await.unwrap();
/// }
/// assert_eq!(sum.get(), 6);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    Shared::current().spawn(future)
}

/// Spawns a future as [`spawn`] does, as a task that no shutdown waits for: neither that of a [`Pool`](crate::Pool) nor that
/// of a [server](crate::server::Running::shutdown), although the task of a connection may have spawned it. The same holds for
/// the tasks that it spawns. It suits what is kept for later, such as an idle connection to another server. While it holds a
/// [`Stopping`](crate::Stopping), it is waited for after all.
///
/// # Panics
/// Panics if it is called outside of a runtime.
///
/// ```
/// use ringloop::{Pool, PoolConfig, spawn_background};
/// use std::time::{Duration, Instant};
///
/// let pool = Pool::new(1, &PoolConfig::default())?;
/// drop(pool.spawn_on(0, || async {
///     drop(spawn_background(std::future::pending::<()>()));
/// }));
/// let start = Instant::now();
/// pool.shutdown(Duration::from_secs(3600));
/// assert!(start.elapsed() < Duration::from_secs(3600));
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn spawn_background<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    Shared::current().spawn_in(Role::Background, future)
}

/// Yields to the other tasks that are ready to run.
///
/// ```
/// use ringloop::{spawn, yield_now};
/// use std::{cell::Cell, rc::Rc};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let has_run = Rc::new(Cell::new(false));
/// let seen = Rc::clone(&has_run);
/// drop(spawn(async move { seen.set(true) }));
/// assert!(!has_run.get());
/// yield_now().await;
/// assert!(has_run.get());
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Counts as one operation, as those of this crate do: if the task has used up its budget, this lets the others run first.
///
/// Await it in loops whose futures come from other libraries, such as the channels of tokio or of `futures`. They may
/// complete again and again without waiting, and the runtime does not notice.
///
/// ```
/// use futures_util::stream::{self, StreamExt};
/// use ringloop::consume_budget;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let mut numbers = stream::iter(0..1_000_000_u64); // never waits
/// let mut sum = 0;
/// while let Some(number) = numbers.next().await {
///     sum += number;
///     consume_budget().await;
/// }
/// assert_eq!(sum, 499_999_500_000);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn consume_budget() {
    budget::consume().await;
}
