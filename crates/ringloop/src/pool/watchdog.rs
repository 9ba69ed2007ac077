//! A thread that reports tasks that block their worker.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::task::Watch;
use crate::trace;

/// How often the workers are looked at while a task may block one of them.
const LOOKS: u32 = 4;

/// The shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The thread. It ends when this is dropped, without being waited for.
pub(super) struct Watchdog {
    /// Dropping it ends the thread.
    _stop: mpsc::Sender<()>,
}

/// The polls of one worker, as far as they were seen.
struct Watched {
    watch: Arc<Watch>,
    /// The poll that was in progress at the last look, and when it was first seen.
    seen: Option<(u64, Instant)>,
    /// Whether it was reported.
    is_reported: bool,
}

impl Watchdog {
    /// Starts to watch workers, which are numbered in this order.
    pub(super) fn start(watches: Vec<Arc<Watch>>, limit: Duration) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let mut workers: Vec<_> = watches.into_iter().map(Watched::new).collect();
        let pause = (limit / LOOKS).max(PAUSE_MIN);
        thread::Builder::new()
            .name("ringloop-watch".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    for (number, worker) in workers.iter_mut().enumerate() {
                        worker.look(number, limit);
                    }
                }
            })?;
        Ok(Self { _stop: stop })
    }
}

impl Watched {
    fn new(watch: Arc<Watch>) -> Self {
        Self {
            watch,
            seen: None,
            is_reported: false,
        }
    }

    fn look(&mut self, worker: usize, limit: Duration) {
        let poll = self.watch.poll();
        if let Some((seen, since)) = self.seen {
            if poll == Some(seen) {
                let elapsed = since.elapsed();
                if elapsed >= limit
                    && !self.is_reported
                    && let Some(origin) = self.watch.origin(seen)
                {
                    trace::worker_blocked(worker, origin.name, origin.location, elapsed);
                    self.is_reported = true;
                }
                return;
            }
            if self.is_reported {
                trace::worker_runs_again(worker, since.elapsed());
            }
        }
        self.seen = poll.map(|poll| (poll, Instant::now()));
        self.is_reported = false;
    }
}
