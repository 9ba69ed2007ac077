//! The state that a runtime shares with its tasks and I/O objects, and how they find it: at most one runtime runs in a
//! thread.
//!
//! [`Runtime`](crate::Runtime) owns it and runs the turns. Whatever waits (sources, operations, timers) holds a
//! reference, and fails instead of waiting if another runtime runs in the thread.

mod remote;
mod sources;
mod waiters;
mod watched;

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::future::Future;
use std::io;
use std::panic::Location;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use ringloop_driver::{Driver, Op, Token};
use ringloop_reactor::{Reactor, clock, panics, timers::Timers};

use crate::budget;
use crate::drain::Drain;
use crate::metrics::{IoCounters, Metrics};
use crate::sys;
use crate::task::{self, JoinHandle, Role, Tasks, Watch};
use crate::threads::Limits;
use crate::trace;
pub(crate) use remote::{Message, Orphan, Remote};
pub(crate) use sources::{InFlight, Kind, Lent, Sources};
pub(crate) use waiters::{Seat, Waiters, Waiting};
pub(crate) use watched::{Asked, End, Observer, Watched};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Shared>>> = const { RefCell::new(None) };
    /// Its address. Every read asks whether its runtime is the current one, and this answers without a borrow.
    static CURRENT_ADDRESS: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// Makes a runtime the current one of this thread, and returns the one before.
fn set_current(shared: Option<Rc<Shared>>) -> Option<Rc<Shared>> {
    budget::limit(shared.is_some());
    // While it is current it is alive, so nothing else has this address.
    CURRENT_ADDRESS.set(shared.as_ref().map_or(ptr::null(), Rc::as_ptr));
    CURRENT
        .try_with(|current| current.replace(shared))
        .ok()
        .flatten()
}

/// Makes a runtime the current one of this thread, until this is dropped. Also if a panic unwinds through it, the one
/// before is current again.
pub(crate) struct Current {
    before: Option<Rc<Shared>>,
}

impl Current {
    pub(crate) fn new(shared: &Rc<Shared>) -> Self {
        Self {
            before: set_current(Some(Rc::clone(shared))),
        }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        drop(set_current(self.before.take()));
    }
}

/// The state that a runtime shares with its tasks and I/O objects.
pub(crate) struct Shared {
    /// `None` when the runtime has ended.
    reactor: RefCell<Option<Reactor>>,
    pub(crate) timers: RefCell<Timers<Waker>>,
    pub(crate) sources: Sources,
    /// Lent to reads in place; `None` while it is out.
    pub(crate) hot_buffer: Cell<Option<Box<[u8]>>>,
    pub(crate) tasks: Tasks,
    /// Begins when the pool of this runtime is asked to end.
    pub(crate) stopping: Rc<Drain>,
    pub(crate) remote: Arc<Remote>,
    turn_ns: Cell<u64>,
    turns: Cell<u64>,
    tasks_run: Cell<u64>,
    pub(crate) io_counters: IoCounters,
    /// How many threads its blocking calls may use.
    pub(crate) thread_limits: Limits,
    is_running: Cell<bool>,
    /// Shows a watchdog which task is polled. Off by default, because it costs a lock for each poll.
    watch: OnceCell<Arc<Watch>>,
}

impl Shared {
    /// `slots`: how many watches and operations to reserve memory for.
    pub(crate) fn new(
        reactor: Reactor,
        slots: usize,
        hot_buffer_bytes: usize,
        thread_limits: Limits,
        remote: Arc<Remote>,
    ) -> Self {
        Self {
            reactor: RefCell::new(Some(reactor)),
            timers: RefCell::new(Timers::new()),
            sources: Sources::new(slots),
            hot_buffer: Cell::new(Some(vec![0; hot_buffer_bytes].into_boxed_slice())),
            tasks: Tasks::default(),
            stopping: Rc::default(),
            remote,
            turn_ns: Cell::new(0),
            turns: Cell::new(0),
            tasks_run: Cell::new(0),
            io_counters: IoCounters::default(),
            thread_limits,
            is_running: Cell::new(false),
            watch: OnceCell::new(),
        }
    }

    /// From now on, shows which task is polled.
    pub(crate) fn watch(&self) -> Arc<Watch> {
        Arc::clone(self.watch.get_or_init(Arc::default))
    }

    /// The runtime that runs in this thread.
    ///
    /// # Panics
    /// Outside of a runtime, with a message that says what to do.
    pub(crate) fn current() -> Rc<Shared> {
        Shared::try_current().expect(
            "no ringloop runtime runs in this thread: call this inside Runtime::block_on or a task",
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

    /// Whether a runtime runs in this thread.
    pub(crate) fn is_any_current() -> bool {
        !CURRENT_ADDRESS.get().is_null()
    }

    /// Fails if another runtime runs in this thread, or none: nobody would wake what waits here.
    pub(crate) fn check_here(&self) -> io::Result<()> {
        if self.is_current() {
            Ok(())
        } else {
            Err(elsewhere())
        }
    }

    /// The reactor of a runtime that has not ended.
    pub(crate) fn reactor(&self) -> RefMut<'_, Reactor> {
        RefMut::map(self.reactor.borrow_mut(), |reactor| {
            reactor.as_mut().expect("it lives as long as the runtime")
        })
    }

    /// Calls the driver, unless the runtime has ended.
    pub(crate) fn with_driver<T>(&self, call: impl FnOnce(&mut Driver) -> T) -> Option<T> {
        let mut reactor = self.reactor.borrow_mut();
        reactor.as_mut().map(|reactor| call(reactor.driver_mut()))
    }

    /// Submits an operation. The error returns it.
    pub(crate) fn submit(&self, op: Op) -> Result<Token, (io::Error, Box<Op>)> {
        match &mut *self.reactor.borrow_mut() {
            Some(reactor) => reactor.driver_mut().submit(op).map_err(|refused| {
                let (error, op) = refused.into_parts();
                (error, Box::new(op))
            }),
            None => Err((elsewhere(), Box::new(op))),
        }
    }

    /// Whether the runtime is inside `block_on`, so that a turn follows and does what is deferred to it.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.get()
    }

    #[track_caller]
    pub(crate) fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        self.spawn_in(self.tasks.role(), future)
    }

    #[track_caller]
    pub(crate) fn spawn_in<F: Future + 'static>(
        &self,
        role: Role,
        future: F,
    ) -> JoinHandle<F::Output> {
        self.spawn_known_as::<F, _>(role, trace::task(future), Location::caller())
    }

    /// Spawns a future that brings its own span.
    #[track_caller]
    pub(crate) fn spawn_as<F: Future + 'static>(
        &self,
        role: Role,
        future: F,
    ) -> JoinHandle<F::Output> {
        self.spawn_known_as::<F, _>(role, future, Location::caller())
    }

    fn spawn_known_as<N: 'static, F: Future + 'static>(
        &self,
        role: Role,
        future: F,
        location: &'static Location<'static>,
    ) -> JoinHandle<F::Output> {
        let (task, handle) = task::new::<N, _, _>(future, role, Arc::clone(&self.remote), location);
        self.tasks.adopt(task);
        handle
    }

    /// Polls the next task of the queue; false if there is none.
    pub(crate) fn run_next_task(&self) -> bool {
        let Some(task) = self.tasks.next() else {
            return false;
        };
        budget::renew();
        self.tasks_run.set(self.tasks_run.get() + 1);
        if let Some(watch) = self.watch.get() {
            watch.begin(task.origin());
            self.tasks.run(task);
            watch.end();
        } else {
            self.tasks.run(task);
        }
        true
    }

    /// The time of the last look at the timers. While there is a timer, every turn looks at them.
    pub(crate) fn turn_ns(&self) -> u64 {
        self.turn_ns.get()
    }

    /// Wakes those whose deadlines have passed. `now_ns` is the time if it is known.
    pub(crate) fn expire_timers(&self, now_ns: Option<u64>) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now_ns = now_ns.unwrap_or_else(clock::now_ns);
        self.turn_ns.set(now_ns);
        let wake_all = || {
            loop {
                // Not `while let`: the borrow would last while the waker runs.
                let expired = self.timers.borrow_mut().pop_expired(now_ns);
                let Some(waker) = expired else { return };
                waker.wake();
            }
        };
        // A waker of the user's making that panics must not keep others from being woken.
        while !panics::contain(wake_all) {}
    }

    pub(crate) fn count_turn(&self) {
        self.turns.set(self.turns.get() + 1);
    }

    /// All metrics but the times.
    pub(crate) fn counters(&self) -> Metrics {
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

    /// Ends the runtime: drops all tasks, and what they spawn while they are dropped, and closes the reactor.
    ///
    /// Almost every step runs destructors of the user's, which may panic, and may use the runtime while it lasts.
    pub(crate) fn end(self: &Rc<Self>) {
        // A runtime may be dropped inside another one's task: that one stays current.
        let _current = Current::new(self);
        loop {
            self.drop_returned();
            if !self.tasks.end() {
                break;
            }
        }
        // What the rest of the destructors spawn is ended at once.
        self.tasks.close();
        let timers = std::mem::take(&mut *self.timers.borrow_mut());
        panics::discard_each(timers.into_values());
        // Futures of operations may live on, outside of tasks. They get their buffers back while there is a driver.
        self.recall(&self.sources.owners_of_buffers());
        self.let_go();
        // I/O objects may live on, perhaps forever. They keep nothing but their own descriptors.
        let reactor = self.reactor.take();
        drop(reactor);
        self.sources.clear();
        self.drop_returned();
        drop(self.hot_buffer.take());
    }
}

/// Whether sockets were dropped that are closed in the next turn.
pub(crate) fn are_any_retired() -> bool {
    Shared::try_current().is_some_and(|shared| shared.has_retired())
}

/// Makes a system call that needs an address or a descriptor of its own. If it fails for want of one, dropped sockets may
/// still have it, because they are closed in the next turn. They are then closed at once, and the call is made again.
pub(crate) fn reclaiming<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let result = call();
    let may_be_retired = |error: &io::Error| {
        error.kind() == io::ErrorKind::AddrInUse || sys::is_out_of_descriptors(error)
    };
    if result.as_ref().is_err_and(may_be_retired)
        && Shared::try_current().is_some_and(|shared| shared.close_retired())
    {
        return call();
    }
    result
}

/// The error where something would be waited for in vain.
pub(crate) fn elsewhere() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "this belongs to another runtime than the current one: create it in the block_on or the task that uses it",
    )
}

/// Held while a runtime is inside `block_on`.
pub(crate) struct Entered {
    shared: Rc<Shared>,
    _current: Current,
}

impl Entered {
    /// # Panics
    /// Panics if a runtime already runs in this thread.
    pub(crate) fn new(shared: Rc<Shared>) -> Self {
        assert!(
            Shared::try_current().is_none(),
            "a ringloop runtime already runs in this thread: await or spawn the future instead of blocking on it",
        );
        let current = Current::new(&shared);
        shared.is_running.set(true);
        let published = &shared.remote.metrics;
        published.end_wait(published.idle_ns(clock::now_ns()));
        Self {
            shared,
            _current: current,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.shared.let_go();
        self.shared.is_running.set(false);
        let published = &self.shared.remote.metrics;
        published.publish(self.shared.counters());
        published.begin_wait(clock::now_ns());
    }
}
