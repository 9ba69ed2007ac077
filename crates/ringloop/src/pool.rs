//! One runtime per core, each in its own thread. Workers share nothing, and communicate by sending.

mod cpus;
mod watchdog;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::panic;
use std::process;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::ready;
use std::thread;
use std::time::Duration;

use async_channel as channel;
use ringloop_driver::affinity;
use ringloop_reactor::panics;

use crate::metrics::Metrics;
use crate::runtime::{Handle, Runtime, RuntimeConfig, yield_now};
use crate::shared::Shared;
use crate::task::{Awaited, JoinHandle, Watch};
use crate::time::timeout;
use crate::trace;
use cpus::Cpu;
use watchdog::Watchdog;

/// The configuration of a [`Pool`].
///
/// ```
/// use ringloop::driver::BackendChoice;
/// use ringloop::{Pool, PoolConfig};
/// use std::time::Duration;
///
/// let mut config = PoolConfig::default();
/// config.pin = true;
/// config.runtime.reactor.driver.backend = BackendChoice::Epoll;
/// let pool = Pool::new(2, &config)?;
/// pool.shutdown(Duration::ZERO);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PoolConfig {
    /// The configuration of each worker's runtime.
    pub runtime: RuntimeConfig,
    /// Whether each worker is bound to one CPU. The default is false: the kernel moves workers to CPUs that are free.
    ///
    /// Binding pays where the process has its CPUs to itself: caches stay warm. Anywhere else it costs, because a bound
    /// worker cannot get out of the way of what else runs on its CPU: up to a third of the throughput was measured.
    ///
    /// The CPUs are those that the calling thread may use. Each worker gets one to which the fewest others of this process
    /// are bound, so that several pools do not share CPUs while others are free.
    pub pin: bool,
    /// Reports a task that keeps its worker for this long without waiting: a warning of the feature `tracing`, with the
    /// type of the task's future, the place where it was spawned, and the worker. Off (`None`) by default; 100 ms are a
    /// good start. A thread looks at the workers four times in this time, and each poll of a task takes a lock that is
    /// nearly always free. Without the feature `tracing` nothing is reported.
    ///
    /// ```
    /// use ringloop::PoolConfig;
    /// use std::time::Duration;
    ///
    /// let mut config = PoolConfig::default();
    /// config.blocked_after = Some(Duration::from_millis(100));
    /// ```
    pub blocked_after: Option<Duration>,
}

impl PoolConfig {
    /// The default, with each runtime's settings taken from the environment; see [`RuntimeConfig::from_env`].
    ///
    /// # Errors
    /// Returns `InvalidInput` for invalid settings.
    pub fn from_env() -> io::Result<Self> {
        Ok(Self {
            runtime: RuntimeConfig::from_env()?,
            ..Self::default()
        })
    }
}

/// A pool of workers: threads that each run a [`Runtime`], and to which tasks can be sent.
///
/// ```
/// use ringloop::{Pool, PoolConfig};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// let pool = Pool::new(2, &PoolConfig::default())?;
/// let (sender, receiver) = ringloop::channel::bounded(16);
/// for worker in 0..pool.workers() {
///     let sender = sender.clone();
///     drop(pool.spawn_on(worker, move || async move {
///         sender.send(worker).await.expect("the receiver lives");
///     }));
/// }
/// let sum = receiver.recv_blocking().unwrap() + receiver.recv_blocking().unwrap();
/// assert_eq!(sum, 1);
/// pool.shutdown(Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
#[must_use = "a pool ends, with its tasks, when this is dropped"]
pub struct Pool {
    workers: Vec<Worker>,
    /// Reports tasks that block a worker.
    watchdog: Option<Watchdog>,
    /// The process that has the workers' threads.
    process: u32,
}

struct Worker {
    handle: Handle,
    stop: channel::Sender<Stop>,
    thread: thread::JoinHandle<()>,
}

/// How a worker is to end: after `patience`, or when those that are awaited have ended.
#[derive(Clone, Copy)]
struct Stop {
    patience: Duration,
    awaited: Awaited,
}

impl Stop {
    const AT_ONCE: Self = Self {
        patience: Duration::ZERO,
        awaited: Awaited::Tasks,
    };
}

/// A suitable number of workers for this machine: the number of CPUs that the calling thread may use.
///
/// ```
/// use ringloop::{Pool, PoolConfig, pool};
///
/// let workers = pool::default_workers();
/// let pool = Pool::new(workers, &PoolConfig::default())?;
/// assert_eq!(pool.workers(), workers);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn default_workers() -> usize {
    affinity::usable_cpus().map_or(1, |cpus| cpus.len().max(1))
}

impl Pool {
    /// Starts the workers.
    ///
    /// # Errors
    /// Returns `InvalidInput` for zero workers, and the errors of [`Runtime::new`], of starting a thread and of binding
    /// it to a CPU. After an error, the workers that were already started are stopped.
    pub fn new(workers: usize, config: &PoolConfig) -> io::Result<Self> {
        if workers == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a pool needs at least one worker",
            ));
        }
        let cpus = affinity::usable_cpus()?;
        let mut pool = Self {
            workers: Vec::with_capacity(workers),
            watchdog: None,
            process: process::id(),
        };
        let mut watches = Vec::new();
        for index in 0..workers {
            let cpu = config.pin.then(|| Cpu::choose(&cpus));
            let (worker, watch) = Worker::start(index, cpu, config)?;
            pool.workers.push(worker);
            watches.extend(watch);
        }
        if let Some(limit) = config.blocked_after {
            pool.watchdog = Some(Watchdog::start(watches, limit)?);
        }
        Ok(pool)
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Returns the handle of a worker, which any thread can use. Workers are numbered from 0.
    ///
    /// # Panics
    /// Panics if there is no such worker.
    pub fn handle(&self, worker: usize) -> &Handle {
        &self.workers[worker].handle
    }

    /// Returns what each worker has done so far, see [`Handle::metrics`].
    pub fn metrics(&self) -> Vec<Metrics> {
        let metrics = |worker: &Worker| worker.handle.metrics();
        self.workers.iter().map(metrics).collect()
    }

    /// Spawns a task on a worker. The future is created there by `make`, so it need not be `Send`.
    ///
    /// # Panics
    /// Panics if there is no such worker.
    ///
    /// ```
    /// use ringloop::{Pool, PoolConfig, Runtime, RuntimeConfig};
    ///
    /// let pool = Pool::new(2, &PoolConfig::default())?;
    /// let task = pool.spawn_on(1, || async { std::thread::current().name().map(str::to_owned) });
    /// // Any runtime can wait for it.
    /// let name = Runtime::new(&RuntimeConfig::default())?.block_on(task).unwrap();
    /// assert_eq!(name.as_deref(), Some("ringloop-1"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn_on<M, F, T>(&self, worker: usize, make: M) -> JoinHandle<T>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        self.handle(worker).spawn_with(make)
    }

    /// Spawns a task on each worker, and returns their handles in order.
    ///
    /// ```
    /// use ringloop::{Pool, PoolConfig, Runtime, RuntimeConfig};
    ///
    /// let pool = Pool::new(3, &PoolConfig::default())?;
    /// let tasks = pool.spawn_on_each(|worker| async move { worker * 10 });
    /// let mut results = Vec::new();
    /// Runtime::new(&RuntimeConfig::default())?.block_on(async {
    ///     for task in tasks {
    ///         results.push(task.await.unwrap());
    ///     }
    /// });
    /// assert_eq!(results, [0, 10, 20]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn_on_each<M, F, T>(&self, make: M) -> Vec<JoinHandle<T>>
    where
        M: FnOnce(usize) -> F + Clone + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        // Not in a closure, which would be the place where the tasks were spawned.
        let mut tasks = Vec::with_capacity(self.workers.len());
        for worker in 0..self.workers.len() {
            let make = make.clone();
            tasks.push(self.spawn_on(worker, move || make(worker)));
        }
        tasks
    }

    /// Stops the workers: gives their tasks `patience` to end, and then drops those that have not ended.
    ///
    /// Tasks that have asked for it are told: see [`stopping`](crate::stopping). Whatever else should stop, such as an accept
    /// loop, must be told or aborted before. [Background tasks](crate::spawn_background) are not waited for.
    ///
    /// A task of the pool may call this. It waits for the other workers; its own worker ends when the task has returned
    /// or waits.
    ///
    /// This blocks the calling thread, for longer than `patience` if it must: a worker ends when the poll of a task in
    /// progress has returned. If a task never returns or waits, neither does this. Each worker then drops its
    /// [`Runtime`], which may take a second. Dropping the pool does the same, without patience.
    ///
    /// In a child after fork(2), both do nothing: the workers are the parent's.
    ///
    /// # Panics
    /// If a worker has panicked, because the kernel refused to wait, its panic continues here when all workers have ended.
    ///
    /// ```
    /// use ringloop::time::sleep;
    /// use ringloop::{Pool, PoolConfig};
    /// use std::time::Duration;
    ///
    /// let pool = Pool::new(1, &PoolConfig::default())?;
    /// let (sender, receiver) = ringloop::channel::bounded(1);
    /// drop(pool.spawn_on(0, move || async move {
    ///     sleep(Duration::from_millis(1)).await;
    ///     sender.send("finished").await.unwrap();
    /// }));
    /// pool.shutdown(Duration::from_secs(10));
    /// assert_eq!(receiver.try_recv().unwrap(), "finished");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn shutdown(self, patience: Duration) {
        self.shut_down(patience, Awaited::Tasks);
    }

    pub(crate) fn shut_down(mut self, patience: Duration, awaited: Awaited) {
        self.stop(Stop { patience, awaited });
    }

    fn stop(&mut self, stop: Stop) {
        let workers = mem::take(&mut self.workers);
        if workers.is_empty() {
            return;
        }
        if self.process != process::id() {
            // In a child after fork(2), where these threads do not exist. Even dropping a sender could take a lock that one
            // of them held.
            mem::forget(self.watchdog.take());
            return mem::forget(workers);
        }
        trace::shutting_down(workers.len(), stop.patience);
        for worker in &workers {
            // A worker that is gone need not be told.
            let _ = worker.stop.try_send(stop);
        }
        let mut panicked = None;
        for Worker { thread, .. } in workers {
            // A task cannot wait for its own worker, which continues when the task does.
            if thread.thread().id() != thread::current().id()
                && let Err(payload) = thread.join()
            {
                panics::discard(panicked.replace(payload));
            }
        }
        if thread::panicking() {
            panics::discard(panicked);
        } else if let Some(payload) = panicked {
            panic::resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    /// Shuts down without patience, see [`shutdown`](Pool::shutdown).
    fn drop(&mut self) {
        self.stop(Stop::AT_ONCE);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pool")
            .field("workers", &self.workers.len())
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Also returns what a watchdog looks at, if there is to be one.
    fn start(
        index: usize,
        cpu: Option<Cpu>,
        config: &PoolConfig,
    ) -> io::Result<(Self, Option<Arc<Watch>>)> {
        let (stop, stopped) = channel::bounded(1);
        let (ready, started) = mpsc::sync_channel(1);
        let (runtime_config, is_watched) = (config.runtime.clone(), config.blocked_after.is_some());
        let thread = thread::Builder::new()
            .name(format!("ringloop-{index}"))
            .spawn(move || {
                // In this order, because the reactor polls only where the thread may use more than one CPU.
                let made = Runtime::new(&runtime_config).and_then(|runtime| {
                    cpu.as_ref().map_or(Ok(()), Cpu::bind_thread)?;
                    Ok(runtime)
                });
                let mut runtime = match made {
                    Ok(runtime) => {
                        let watch = is_watched.then(|| runtime.watch());
                        drop(ready.send(Ok((runtime.handle(), watch))));
                        runtime
                    }
                    Err(error) => {
                        drop(ready.send(Err(error)));
                        return;
                    }
                };
                runtime.block_on(async {
                    let stop = stopped.recv().await.unwrap_or(Stop::AT_ONCE);
                    // Tasks that were sent before may still be in the inbox.
                    yield_now().await;
                    let shared = Shared::current();
                    shared.stopping.begin();
                    let ended = poll_fn(|context| {
                        ready!(shared.tasks.poll_ended(stop.awaited, context));
                        shared.stopping.poll_released(context)
                    });
                    if timeout(stop.patience, ended).await.is_err() {
                        let holders = shared.stopping.held();
                        let left = shared.tasks.left(stop.awaited).max(holders);
                        trace::tasks_dropped(left as u64);
                    }
                });
            })?;
        let (handle, watch) = started.recv().unwrap_or_else(|_| {
            Err(io::Error::other(
                "the worker's thread ended while it started",
            ))
        })?;
        let worker = Self {
            handle,
            stop,
            thread,
        };
        Ok((worker, watch))
    }
}
