//! One runtime per core, each in a thread of its own, and nothing shared between them but what is sent.

use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::panic;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use async_channel as channel;
use ringloop_driver::affinity;

use crate::metrics::Metrics;
use crate::panics;
use crate::runtime::{Handle, Runtime, RuntimeConfig, yield_now};
use crate::shared::Shared;
use crate::task::JoinHandle;
use crate::time::timeout;
use crate::trace;

/// How a [`Pool`] is set up.
///
/// ```
/// use ringloop::driver::BackendChoice;
/// use ringloop::{Pool, PoolConfig};
/// use std::time::Duration;
///
/// let mut config = PoolConfig::default();
/// config.pin = false;
/// config.runtime.reactor.driver.backend = BackendChoice::Epoll;
/// let pool = Pool::new(2, &config)?;
/// pool.shutdown(Duration::ZERO);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Each worker's runtime.
    pub runtime: RuntimeConfig,
    /// Whether each worker is bound to a CPU of its own, in turn from those that the calling thread may use.
    pub pin: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            runtime: RuntimeConfig::default(),
            pin: true,
        }
    }
}

impl PoolConfig {
    /// The default, with each runtime's settings from the environment; see [`RuntimeConfig::from_env`].
    ///
    /// # Errors
    /// `InvalidInput` for settings that make no sense.
    pub fn from_env() -> io::Result<Self> {
        Ok(Self {
            runtime: RuntimeConfig::from_env()?,
            ..Self::default()
        })
    }
}

/// Workers: threads that run a [`Runtime`] each, and that tasks are sent to.
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
pub struct Pool {
    workers: Vec<Worker>,
}

struct Worker {
    handle: Handle,
    stop: channel::Sender<Duration>,
    thread: thread::JoinHandle<()>,
}

/// The number of workers that suits this machine: the CPUs that the calling thread may use.
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
    /// Starts workers.
    ///
    /// # Errors
    /// `InvalidInput` for none; those of [`Runtime::new`], of starting a thread and of binding it to a CPU. Workers that
    /// were started are ended again.
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
        };
        for index in 0..workers {
            let cpu = config.pin.then(|| cpus[index % cpus.len()]);
            pool.workers
                .push(Worker::start(index, cpu, &config.runtime)?);
        }
        Ok(pool)
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// With which any thread reaches a worker. Workers count from 0.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn handle(&self, worker: usize) -> &Handle {
        &self.workers[worker].handle
    }

    /// What each worker has done so far, as [`Handle::metrics`] gives it.
    pub fn metrics(&self) -> Vec<Metrics> {
        let metrics = |worker: &Worker| worker.handle.metrics();
        self.workers.iter().map(metrics).collect()
    }

    /// Makes a task on a worker, of the future that `make` returns there; the future need not be `Send`.
    ///
    /// # Panics
    /// If there is no such worker.
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
    pub fn spawn_on<M, F, T>(&self, worker: usize, make: M) -> JoinHandle<T>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        self.handle(worker).spawn_with(make)
    }

    /// Makes a task on each worker, and gives their handles in order.
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
    pub fn spawn_on_each<M, F, T>(&self, make: M) -> Vec<JoinHandle<T>>
    where
        M: FnOnce(usize) -> F + Clone + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        (0..self.workers.len())
            .map(|worker| {
                let make = make.clone();
                self.spawn_on(worker, move || make(worker))
            })
            .collect()
    }

    /// Gives the tasks `patience` to end, drops those that have not by then, and ends the workers.
    ///
    /// Nobody tells the tasks: what should stop, such as an accept loop, is to be told or aborted before.
    ///
    /// A task of the pool's own may call this. It waits for the other workers then, and its own one ends when the task
    /// has returned or waits.
    ///
    /// # Panics
    /// With what a worker has panicked with, when all have ended.
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
    pub fn shutdown(mut self, patience: Duration) {
        self.stop(patience);
    }

    fn stop(&mut self, patience: Duration) {
        let workers = mem::take(&mut self.workers);
        if workers.is_empty() {
            return;
        }
        trace::shutting_down(workers.len(), patience);
        for worker in &workers {
            // A worker that is gone needs no telling.
            let _ = worker.stop.try_send(patience);
        }
        let mut panicked = None;
        for Worker { thread, .. } in workers {
            // A task that ends its own worker cannot wait for it: the worker goes on when the task does.
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
    /// As [`shutdown`](Pool::shutdown), without patience.
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
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
    fn start(index: usize, cpu: Option<usize>, config: &RuntimeConfig) -> io::Result<Self> {
        let (stop, stopped) = channel::bounded(1);
        let (ready, started) = mpsc::sync_channel(1);
        let config = config.clone();
        let thread = thread::Builder::new()
            .name(format!("ringloop-{index}"))
            .spawn(move || {
                // In this order, because the reactor polls only where the thread may use more than one CPU.
                let made = Runtime::new(&config).and_then(|runtime| {
                    cpu.map_or(Ok(()), affinity::pin_thread)?;
                    Ok(runtime)
                });
                let mut runtime = match made {
                    Ok(runtime) => {
                        drop(ready.send(Ok(runtime.handle())));
                        runtime
                    }
                    Err(error) => {
                        drop(ready.send(Err(error)));
                        return;
                    }
                };
                runtime.block_on(async {
                    let patience = stopped.recv().await.unwrap_or_default();
                    // Tasks that were sent before may still lie in the inbox.
                    yield_now().await;
                    let shared = Shared::current();
                    if timeout(patience, shared.tasks.ended()).await.is_err() {
                        trace::tasks_dropped(shared.tasks.live() as u64);
                    }
                });
            })?;
        let handle = started
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the worker's thread ended at once")))?;
        Ok(Self {
            handle,
            stop,
            thread,
        })
    }
}
