//! The runtime of one thread: it polls tasks, and waits for the kernel when none can go on.

#[cfg(feature = "hyper")]
use std::any::Any;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ringloop_driver::{BackendKind, Driver, Event};

#[cfg(feature = "hyper")]
use crate::inbox::SendError;
use crate::inbox::{Inbox, Sender};
use crate::metrics::{IoCounters, Metrics, Published};
#[cfg(feature = "hyper")]
use crate::panics;
use crate::source::Sources;
use crate::task::{self, JoinHandle, Runnable, Tasks};
use crate::timers::Timers;
use crate::{Config, Reactor, clock, trace};

/// The largest buffer for reads in place.
const HOT_BUFFER_BYTES_MAX: usize = 1 << 30;

/// How many tasks run before the kernel is looked at again, so that I/O is not starved by tasks that wake one another.
const TASKS_PER_LOOK: usize = 64;

/// How many operations a task may do without waiting before it must let others run.
const OPERATIONS_PER_POLL: u32 = 128;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Shared>>> = const { RefCell::new(None) };
    /// Which one that is: what is asked at every read costs no borrow.
    static CURRENT_ADDRESS: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// Makes a runtime the one that runs in this thread, and returns the one before.
fn set_current(shared: Option<Rc<Shared>>) -> Option<Rc<Shared>> {
    // The address of one that runs is nobody else's.
    CURRENT_ADDRESS.set(shared.as_ref().map_or(ptr::null(), Rc::as_ptr));
    CURRENT
        .try_with(|current| current.replace(shared))
        .ok()
        .flatten()
}

/// What reaches a runtime from other threads.
pub(crate) enum Message {
    /// A task to be queued.
    Run(Runnable),
    /// A task that another thread has made.
    Adopt(Orphan),
    /// What another thread had, and only this one may drop.
    #[cfg(feature = "hyper")]
    Drop(Box<dyn Any + Send>),
}

/// A task that no runtime has adopted. Where it is dropped as such its runtime is gone, and its handle is told.
pub(crate) struct Orphan(Option<Runnable>);

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task::end(&task);
        }
    }
}

/// What other threads have of a runtime.
pub(crate) struct Remote {
    sender: Sender<Message>,
    metrics: Published,
}

impl Remote {
    pub(crate) fn new(sender: Sender<Message>) -> Self {
        Self {
            sender,
            metrics: Published::new(),
        }
    }

    /// Queues a task, from any thread. Once the runtime is gone the task is over, and nothing happens.
    pub(crate) fn schedule(self: &Arc<Self>, task: Runnable) {
        let mut task = Some(task);
        let _ = CURRENT.try_with(|current| {
            if let Some(shared) = current.borrow().as_ref()
                && Arc::ptr_eq(&shared.remote, self)
                && let Some(task) = task.take()
            {
                shared.tasks.queue(task);
            }
        });
        if let Some(task) = task {
            // An error hands the task back: its runtime has ended it.
            drop(self.sender.send(Message::Run(task)));
        }
    }
}

/// The part of a runtime that its tasks and I/O objects share.
pub(crate) struct Shared {
    /// `None` when the runtime has ended.
    reactor: RefCell<Option<Reactor>>,
    pub(crate) timers: RefCell<Timers<Waker>>,
    pub(crate) sources: Sources,
    /// Lent to reads in place; `None` while it is out.
    pub(crate) hot_buffer: Cell<Option<Box<[u8]>>>,
    pub(crate) tasks: Tasks,
    remote: Arc<Remote>,
    budget: Cell<u32>,
    turns: Cell<u64>,
    tasks_run: Cell<u64>,
    pub(crate) io_counters: IoCounters,
    is_running: Cell<bool>,
}

impl Shared {
    /// The runtime that runs in this thread.
    ///
    /// Panics outside of one, with a text that says what to do.
    pub(crate) fn current() -> Rc<Shared> {
        Shared::try_current().expect(
            "no ringloop runtime runs in this thread: call this inside of Runtime::block_on or of a task",
        )
    }

    pub(crate) fn try_current() -> Option<Rc<Shared>> {
        CURRENT
            .try_with(|current| current.borrow().clone())
            .ok()
            .flatten()
    }

    /// Whether this is the runtime that runs in this thread.
    pub(crate) fn is_current(&self) -> bool {
        ptr::eq(CURRENT_ADDRESS.get(), self)
    }

    /// The reactor of a runtime that has not ended.
    fn reactor(&self) -> RefMut<'_, Reactor> {
        RefMut::map(self.reactor.borrow_mut(), |reactor| {
            reactor.as_mut().expect("it lives as long as the runtime")
        })
    }

    /// Calls the driver, unless the runtime has ended.
    pub(crate) fn with_driver<T>(&self, call: impl FnOnce(&mut Driver) -> T) -> Option<T> {
        let mut reactor = self.reactor.borrow_mut();
        reactor.as_mut().map(|reactor| call(reactor.driver()))
    }

    /// Whether the runtime is inside of `block_on`, so that what is put off to the end of the turn will be done.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.get()
    }

    /// Counts one operation of the task that runs. `Pending` if it has had its share: it has been woken, and must let
    /// others run.
    pub(crate) fn poll_budget(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.budget.get() {
            0 => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            left => {
                self.budget.set(left - 1);
                Poll::Ready(())
            }
        }
    }

    fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        self.spawn_watched(trace::task(future))
    }

    /// Makes a task of a future that brings its own span.
    pub(crate) fn spawn_watched<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        let (task, handle) = task::new(future, Arc::clone(&self.remote));
        self.tasks.adopt(task);
        handle
    }
}

/// A runtime for one thread.
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
pub struct Runtime {
    shared: Rc<Shared>,
    inbox: Inbox<Message>,
    messages: Vec<Message>,
    events: Vec<Event>,
}

/// How a [`Runtime`] is set up.
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
    /// The reactor: backend, sizes of queues, waiting.
    pub reactor: Config,
    /// The size of the buffer that reads in place use, in bytes, up to a gigabyte.
    pub hot_buffer_bytes: usize,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            reactor: Config::default(),
            hot_buffer_bytes: 256 * 1024,
        }
    }
}

impl RuntimeConfig {
    /// The default, with the reactor's settings from the environment; see [`Config::from_env`].
    pub fn from_env() -> io::Result<Self> {
        Ok(Self {
            reactor: Config::from_env()?,
            ..Self::default()
        })
    }
}

impl Runtime {
    /// A runtime for the calling thread; it waits for nothing yet.
    ///
    /// # Errors
    /// Those of [`Reactor::new`], and `InvalidInput` for a hot buffer that is empty or too large.
    pub fn new(config: &RuntimeConfig) -> io::Result<Self> {
        if !(1..=HOT_BUFFER_BYTES_MAX).contains(&config.hot_buffer_bytes) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "hot_buffer_bytes is {}: give reads room, from 1 byte to {HOT_BUFFER_BYTES_MAX}",
                    config.hot_buffer_bytes
                ),
            ));
        }
        let reactor = Reactor::new(&config.reactor)?;
        trace::backend_chosen(reactor.backend(), reactor.backend_reason());
        Ok(Self::with_reactor(config, reactor))
    }

    /// A runtime on a reactor of the caller's, whose settings in `config` have no effect. For tests of what a program makes of a
    /// kernel that fails: on a [scripted](ringloop_driver::Driver::scripted) driver.
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
    /// let mut runtime = Runtime::with_reactor(&RuntimeConfig::default(), reactor);
    /// let error = runtime.block_on(fs::read("/etc/passwd")).unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::EIO));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn with_reactor(config: &RuntimeConfig, reactor: Reactor) -> Self {
        let inbox = Inbox::new(reactor.waker());
        let remote = Arc::new(Remote::new(inbox.sender()));
        let shared = Rc::new(Shared {
            reactor: RefCell::new(Some(reactor)),
            timers: RefCell::new(Timers::new()),
            sources: Sources::new(config.reactor.driver.slots),
            hot_buffer: Cell::new(Some(vec![0; config.hot_buffer_bytes].into_boxed_slice())),
            tasks: Tasks::default(),
            remote,
            budget: Cell::new(OPERATIONS_PER_POLL),
            turns: Cell::new(0),
            tasks_run: Cell::new(0),
            io_counters: IoCounters::default(),
            is_running: Cell::new(false),
        });
        Self {
            shared,
            inbox,
            messages: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Runs a future to its end, and all tasks of this runtime meanwhile. Tasks that are not over by then rest until the
    /// next call, or are dropped with the runtime.
    ///
    /// # Panics
    /// If a runtime runs in this thread already; if the future panics; if the kernel refuses to wait, as it does in a
    /// child after fork(2).
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
                self.shared.budget.set(OPERATIONS_PER_POLL);
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    drop(entered);
                    return output;
                }
            }
            self.run_tasks();
            self.turn(&main);
        }
    }

    /// Makes a task of a future; it begins to run in the next [`block_on`](Runtime::block_on).
    ///
    /// ```
    /// use ringloop::{Runtime, RuntimeConfig};
    ///
    /// let mut runtime = Runtime::new(&RuntimeConfig::default())?;
    /// let task = runtime.spawn(async { "done" });
    /// assert_eq!(runtime.block_on(task).unwrap(), "done");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        self.shared.spawn(future)
    }

    /// With which other threads reach this runtime.
    pub fn handle(&self) -> Handle {
        Handle {
            remote: Arc::clone(&self.shared.remote),
        }
    }

    /// The interface to the kernel that is used.
    pub fn backend(&self) -> BackendKind {
        self.shared.reactor().backend()
    }

    /// Why that one, in words.
    pub fn backend_reason(&self) -> String {
        self.shared.reactor().backend_reason().to_owned()
    }

    /// What it has done so far.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.shared.counters();
        self.shared.remote.metrics.add_times(&mut metrics);
        metrics
    }

    /// Polls tasks from the queue until it is empty, or until it is time to look at the kernel.
    fn run_tasks(&mut self) {
        for _ in 0..TASKS_PER_LOOK {
            let Some(task) = self.shared.tasks.next() else {
                break;
            };
            self.shared.budget.set(OPERATIONS_PER_POLL);
            self.shared.tasks_run.set(self.shared.tasks_run.get() + 1);
            self.shared.tasks.run(task);
        }
    }

    /// Looks at the kernel, and waits for it if there is nothing else to do; wakes whoever waits for what has come.
    fn turn(&mut self, main: &MainWaker) {
        self.shared.close_retired();
        self.shared.turns.set(self.shared.turns.get() + 1);
        let published = &self.shared.remote.metrics;
        published.publish(self.shared.counters());
        let is_idle = self.shared.tasks.is_idle() && !main.woken.load(Ordering::Acquire);
        let result = if is_idle && self.inbox.prepare_wait() {
            let deadline_ns = self.shared.timers.borrow_mut().next_deadline_ns();
            let mut reactor = self.shared.reactor();
            let (start_ns, waited_ns) = (clock::now_ns(), reactor.waited_ns());
            let idle_ns = published.begin_wait(start_ns);
            let result = reactor.turn_from(start_ns, deadline_ns, &mut self.events);
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
        for event in self.events.drain(..) {
            self.shared.dispatch(event);
        }
        self.shared.drop_returned();
        self.inbox.receive(&mut self.messages);
        for message in self.messages.drain(..) {
            match message {
                Message::Run(task) => self.shared.tasks.queue(task),
                Message::Adopt(mut orphan) => {
                    if let Some(task) = orphan.0.take() {
                        self.shared.tasks.adopt(task);
                    }
                }
                #[cfg(feature = "hyper")]
                Message::Drop(value) => panics::discard(value),
            }
        }
        self.shared.expire_timers();
    }
}

impl Shared {
    fn expire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now_ns = clock::now_ns();
        loop {
            // Not `while let`: the borrow would last while the waker runs.
            let expired = self.timers.borrow_mut().pop_expired(now_ns);
            let Some(waker) = expired else { return };
            waker.wake();
        }
    }

    /// All metrics but the times.
    fn counters(&self) -> Metrics {
        let mut metrics = Metrics {
            turns: self.turns.get(),
            tasks_run: self.tasks_run.get(),
            tasks_live: self.tasks.live() as u64,
            timers: self.timers.borrow().len() as u64,
            sources: self.sources.len() as u64,
            reactor: self.reactor().counters(),
            ..Metrics::default()
        };
        self.io_counters.add_to(&mut metrics);
        metrics
    }
}

impl Drop for Runtime {
    /// Drops all tasks. What they spawn while they are dropped is dropped as well.
    fn drop(&mut self) {
        // A runtime that is dropped inside of another one's task leaves that one current.
        let previous = set_current(Some(Rc::clone(&self.shared)));
        loop {
            self.shared.drop_returned();
            if !self.shared.tasks.end() {
                break;
            }
        }
        let timers = std::mem::take(&mut *self.shared.timers.borrow_mut());
        drop(timers);
        self.shared.let_go();
        // I/O objects may live on, even where nobody will ever drop them. They keep nothing but their own descriptors.
        let reactor = self.shared.reactor.take();
        drop(reactor);
        self.shared.drop_returned();
        self.shared.sources.clear();
        drop(self.shared.hot_buffer.take());
        set_current(previous);
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

/// That a runtime runs in this thread.
struct Entered {
    shared: Rc<Shared>,
}

impl Entered {
    fn new(shared: Rc<Shared>) -> Self {
        assert!(
            Shared::try_current().is_none(),
            "a ringloop runtime runs in this thread already: await the future, or spawn it, instead of blocking on it",
        );
        set_current(Some(Rc::clone(&shared)));
        shared.is_running.set(true);
        let published = &shared.remote.metrics;
        published.end_wait(published.idle_ns(clock::now_ns()));
        Self { shared }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.shared.let_go();
        self.shared.is_running.set(false);
        let published = &self.shared.remote.metrics;
        published.publish(self.shared.counters());
        published.begin_wait(clock::now_ns());
        set_current(None);
    }
}

/// Wakes the future of `block_on`.
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
            // In the runtime's own thread this is not needed: the flag is looked at before each wait.
            self.waker.wake();
        }
    }
}

/// Reaches a runtime from any thread.
///
/// ```
/// use ringloop::Handle;
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// let handle = Handle::current();
/// let thread = std::thread::spawn(move || {
///     // From any thread, as many tasks as there are to do.
///     handle.spawn_with(|| async { 42 })
/// });
/// let task = thread.join().unwrap();
/// assert_eq!(task.await.unwrap(), 42);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    remote: Arc<Remote>,
}

impl Handle {
    /// The handle of the runtime that runs in this thread.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn current() -> Self {
        Self {
            remote: Arc::clone(&Shared::current().remote),
        }
    }

    /// The same, if there is one.
    #[cfg(feature = "hyper")]
    pub(crate) fn try_current() -> Option<Self> {
        let remote = Arc::clone(&Shared::try_current()?.remote);
        Some(Self { remote })
    }

    /// Has a value dropped in the runtime's thread. If the runtime is gone it comes back.
    #[cfg(feature = "hyper")]
    pub(crate) fn drop_there(&self, value: Box<dyn Any + Send>) -> Result<(), Box<dyn Any + Send>> {
        let sent = self.remote.sender.send(Message::Drop(value));
        sent.map_err(|SendError(message)| match message {
            Message::Drop(value) => value,
            _ => unreachable!("it was sent above"),
        })
    }

    /// Makes a task in the runtime's thread, of the future that `make` returns there: the future itself need not be
    /// `Send`. If the runtime is gone, the handle says that the task was cancelled.
    ///
    /// ```
    /// use ringloop::{Runtime, RuntimeConfig};
    /// use std::rc::Rc;
    ///
    /// let mut runtime = Runtime::new(&RuntimeConfig::default())?;
    /// let task = runtime.handle().spawn_with(|| async {
    ///     // Made there, so that it may be what no other thread may see.
    ///     let shared = Rc::new(5);
    ///     *shared
    /// });
    /// assert_eq!(runtime.block_on(task).unwrap(), 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn spawn_with<M, F, T>(&self, make: M) -> JoinHandle<T>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        // Until it is polled, which happens in the runtime's thread, this future holds nothing but `make`, which may move
        // there, and may be dropped here.
        let future = async move { trace::task(make()).await };
        let (task, handle) = task::new(future, Arc::clone(&self.remote));
        drop(self.remote.sender.send(Message::Adopt(Orphan(Some(task)))));
        handle
    }

    /// What the runtime has done so far: its counters as of the beginning of its last turn, the times until now. Disturbs
    /// nothing: the counters are read one after the other while the runtime goes on.
    pub fn metrics(&self) -> Metrics {
        self.remote.metrics.snapshot()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Handle")
    }
}

/// Makes a task of a future, in the runtime that runs in this thread. It begins to run when the caller waits.
///
/// # Panics
/// Outside of a runtime.
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
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    Shared::current().spawn(future)
}

/// Lets the other tasks that are ready run first.
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
