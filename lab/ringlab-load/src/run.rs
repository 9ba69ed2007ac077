//! A run: its settings, its phases, and what comes of it.
//!
//! Connect, warm up, measure, drain. The first thread moves the run from phase to phase, between two turns of its own loop: there it
//! reads the clocks of the server's processes and its own and opens or closes the window, so that these readings and the counts
//! belong to the same instants. The other threads see the phase with each operation.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use thiserror::Error;

use crate::accounting::{Account, NoProcess, Readings};
use crate::exchange::{Exchange, outstanding_most};
use crate::failure::{Failure, Failures, Kind};
use crate::latencies::Latencies;
use crate::output;
use crate::system::{self, Clock, NS_PER_S, Switches, now_ns};
use crate::worker::{Measured, Worker};

/// Descriptors that are not connections: standard streams, epoll sets, /proc.
const DESCRIPTORS_SPARE: u64 = 32;

/// For how long answers are waited for after Ctrl-C.
const INTERRUPTED_DRAIN_NS: u64 = NS_PER_S;

/// Settings of a run that all workloads have in common.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) address: SocketAddr,
    pub(crate) connections: u32,
    /// Requests in flight on each connection.
    pub(crate) pipeline: u32,
    pub(crate) threads: usize,
    /// The CPUs of the threads, in turn; empty: wherever the kernel puts them.
    pub(crate) cpus: Vec<usize>,
    pub(crate) ramp_ns: u64,
    pub(crate) warm_up_ns: u64,
    pub(crate) window_ns: u64,
    /// Requests per second of the open loop, over all connections; `None`: the closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) max_operations: Option<u64>,
    pub(crate) timeout_ns: u64,
    pub(crate) seed: u64,
    /// For how long to look for events before sleeping.
    pub(crate) spin_ns: u64,
    pub(crate) account: Vec<i32>,
    /// Print the histograms.
    pub(crate) hdr: bool,
}

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub(crate) enum Unmeasurable {
    #[error(transparent)]
    Process(#[from] NoProcess),
    #[error(
        "{connections} connections need {needed} descriptors, and this process may have {limit}; raise the hard limit (ulimit -Hn, or \
         LimitNOFILE= of the service), or ask for fewer connections"
    )]
    Descriptors {
        connections: u32,
        needed: u64,
        limit: u64,
    },
    #[error("no connection could be made: {0}")]
    Connections(String),
    #[error(
        "thread {thread} can't be put on CPU {cpu} (--cpu): {source}; see `taskset -p $$` for the CPUs that may be used"
    )]
    Cpu {
        thread: usize,
        cpu: usize,
        source: io::Error,
    },
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Phase {
    Connecting,
    WarmUp,
    Window,
    Drain,
    Over,
}

/// What one thread tells the others, in cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Published {
    completed: AtomicU64,
    /// Connections that are open or in the making.
    alive: AtomicU64,
}

/// What the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    phase: AtomicU8,
    /// What began in the window is between these; nothing is before the window is opened.
    window_begin_ns: AtomicU64,
    window_end_ns: AtomicU64,
    /// When the first request was allowed.
    pub(crate) sending_begin_ns: AtomicU64,
    pub(crate) threads_ready: AtomicUsize,
    pub(crate) threads_drained: AtomicUsize,
    /// A failure after which nothing counts.
    voided: AtomicBool,
    published: Vec<Published>,
    pub(crate) failures: Failures,
}

impl Shared {
    fn new(threads: usize, failures: Failures) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            window_begin_ns: AtomicU64::new(u64::MAX),
            window_end_ns: AtomicU64::new(u64::MAX),
            sending_begin_ns: AtomicU64::new(0),
            threads_ready: AtomicUsize::new(0),
            threads_drained: AtomicUsize::new(0),
            voided: AtomicBool::new(failures.void_reason().is_some()),
            published: (0..threads).map(|_| Published::default()).collect(),
            failures,
        }
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Connecting,
            1 => Phase::WarmUp,
            2 => Phase::Window,
            3 => Phase::Drain,
            _ => Phase::Over,
        }
    }

    /// Goes on to a phase; none comes back.
    fn set_phase(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn window_begin_ns(&self) -> u64 {
        self.window_begin_ns.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn window_end_ns(&self) -> u64 {
        self.window_end_ns.load(Ordering::Relaxed)
    }

    /// Whether what began at `ns` began in the window.
    #[inline]
    pub(crate) fn counts(&self, ns: u64) -> bool {
        ns >= self.window_begin_ns() && ns < self.window_end_ns()
    }

    #[cold]
    pub(crate) fn fail(&self, failure: Failure) {
        if failure.kind.voids() {
            self.voided.store(true, Ordering::Release);
        }
        self.failures.add(failure);
    }

    #[inline]
    pub(crate) fn publish(&self, thread: usize, completed: u64, alive: u64) {
        let published = &self.published[thread];
        published.completed.store(completed, Ordering::Relaxed);
        published.alive.store(alive, Ordering::Relaxed);
    }

    fn completed(&self) -> u64 {
        let counts = self.published.iter();
        counts
            .map(|one| one.completed.load(Ordering::Relaxed))
            .sum()
    }

    fn alive(&self) -> u64 {
        let counts = self.published.iter();
        counts.map(|one| one.alive.load(Ordering::Relaxed)).sum()
    }
}

/// Moves a run from phase to phase.
pub(crate) struct Control<'a> {
    settings: &'a Settings,
    shared: &'a Shared,
    account: &'a Account,
    interrupted: &'a AtomicBool,
    began_ns: u64,
    /// When the present phase ends at the latest.
    deadline_ns: u64,
    next_progress_ns: u64,
    last_progress: (u64, u64),
    pub(crate) readings: Readings,
    own_cpu_ns: (u64, u64),
    own_switches: (Switches, Switches),
    connected_ns: u64,
    /// The slow readings before the window are taken.
    prepared: bool,
    was_interrupted: bool,
    ended_early: Option<String>,
}

impl<'a> Control<'a> {
    fn new(
        settings: &'a Settings,
        shared: &'a Shared,
        account: &'a Account,
        interrupted: &'a AtomicBool,
    ) -> Self {
        let now = now_ns();
        Self {
            settings,
            shared,
            account,
            interrupted,
            began_ns: now,
            deadline_ns: u64::MAX,
            next_progress_ns: now + NS_PER_S,
            last_progress: (now, 0),
            readings: Readings::default(),
            own_cpu_ns: (0, 0),
            own_switches: (Switches::default(), Switches::default()),
            connected_ns: 0,
            prepared: false,
            was_interrupted: false,
            ended_early: None,
        }
    }

    /// When there is something to do, apart from what other threads or users want.
    pub(crate) fn next_ns(&self) -> u64 {
        self.deadline_ns.min(self.next_progress_ns)
    }

    /// Does what is to be done; returns the time.
    pub(crate) fn advance(&mut self, mut now: u64) -> u64 {
        let phase = self.shared.phase();
        if now >= self.next_progress_ns {
            self.report_progress(now, phase);
        }
        let end = if self.shared.voided.load(Ordering::Acquire) {
            Some("void")
        } else if self.interrupted.load(Ordering::Relaxed) {
            self.was_interrupted = true;
            Some("interrupted")
        } else {
            None
        };
        match phase {
            Phase::Connecting if end.is_some() => {
                self.end_early(end);
                self.shared.set_phase(Phase::Over);
            }
            Phase::Connecting => {
                if self.shared.threads_ready.load(Ordering::SeqCst) == self.settings.threads {
                    now = self.begin_warm_up(now);
                }
            }
            Phase::WarmUp => {
                if end.is_some() || self.shared.alive() == 0 {
                    self.end_early(end);
                    self.shared.set_phase(Phase::Over);
                } else if now >= self.deadline_ns {
                    now = if self.prepared {
                        self.open_window()
                    } else {
                        self.prepare_window()
                    };
                }
            }
            Phase::Window => {
                let enough = self
                    .settings
                    .max_operations
                    .is_some_and(|most| self.shared.completed() >= most);
                let dead = self.shared.alive() == 0;
                if end.is_some() || dead || enough || now >= self.deadline_ns {
                    if end.is_some() || dead {
                        self.end_early(end);
                    }
                    now = self.close_window(now);
                }
            }
            Phase::Drain => {
                if end == Some("interrupted") {
                    self.deadline_ns = self.deadline_ns.min(now + INTERRUPTED_DRAIN_NS);
                }
                let drained =
                    self.shared.threads_drained.load(Ordering::SeqCst) == self.settings.threads;
                if drained || end == Some("void") || now >= self.deadline_ns {
                    self.shared.set_phase(Phase::Over);
                }
            }
            Phase::Over => {}
        }
        now
    }

    fn end_early(&mut self, reason: Option<&str>) {
        let reason = reason.unwrap_or("no connection was left");
        self.ended_early.get_or_insert_with(|| reason.to_owned());
    }

    fn begin_warm_up(&mut self, now: u64) -> u64 {
        self.connected_ns = now - self.began_ns;
        output::event(
            "connected",
            json!({"connections": self.shared.alive(), "seconds": self.connected_ns as f64 / 1e9}),
        );
        let without_warm_up = self.settings.warm_up_ns == 0;
        if without_warm_up {
            self.readings.prepare(self.account);
            self.prepared = true;
        }
        let now = now_ns();
        self.deadline_ns = now + self.settings.warm_up_ns;
        self.shared.sending_begin_ns.store(now, Ordering::Release);
        self.shared.set_phase(Phase::WarmUp);
        if without_warm_up {
            // Nothing is sent before the window, so that no answer is outside of it.
            return self.open_window();
        }
        now
    }

    /// Takes the slow readings, and puts the window off by as long again: until then this thread takes the answers that came meanwhile,
    /// which the server has worked for before the window, so that they don't count in it.
    fn prepare_window(&mut self) -> u64 {
        let begin_ns = now_ns();
        self.readings.prepare(self.account);
        self.prepared = true;
        let now = now_ns();
        self.deadline_ns = now + (now - begin_ns);
        now
    }

    fn open_window(&mut self) -> u64 {
        self.own_switches.0 = system::own_switches().unwrap_or_default();
        self.own_cpu_ns.0 = Clock::OWN_CPU.read_ns().unwrap_or_default();
        self.readings.open(self.account);
        let now = now_ns();
        self.shared.window_begin_ns.store(now, Ordering::Relaxed);
        self.shared.set_phase(Phase::Window);
        self.deadline_ns = now + self.settings.window_ns;
        self.next_progress_ns = now + NS_PER_S;
        self.last_progress = (now, 0);
        output::event("window_start", json!({}));
        now
    }

    fn close_window(&mut self, now: u64) -> u64 {
        self.shared.window_end_ns.store(now, Ordering::Relaxed);
        self.shared.set_phase(Phase::Drain);
        self.readings.close(self.account);
        self.own_cpu_ns.1 = Clock::OWN_CPU.read_ns().unwrap_or_default();
        self.own_switches.1 = system::own_switches().unwrap_or_default();
        self.readings.complete(self.account);
        output::event("window_end", json!({"seconds": self.window_s()}));
        self.deadline_ns = now + self.settings.timeout_ns + NS_PER_S;
        self.next_progress_ns = now + NS_PER_S;
        now_ns()
    }

    fn report_progress(&mut self, now: u64, phase: Phase) {
        let completed = self.shared.completed();
        let (last_ns, last_completed) = self.last_progress;
        let seconds = now.saturating_sub(last_ns) as f64 / 1e9;
        let name = match phase {
            Phase::Connecting => "connect",
            Phase::WarmUp => "warm_up",
            Phase::Window => "window",
            Phase::Drain | Phase::Over => "drain",
        };
        let left_ns = (self.deadline_ns != u64::MAX).then(|| self.deadline_ns.saturating_sub(now));
        output::event(
            "progress",
            json!({
                "phase": name,
                "phase_seconds_left": left_ns.map(|ns| ns as f64 / 1e9),
                "connections": self.shared.alive(),
                "operations": completed,
                "operations_per_s": (completed - last_completed) as f64 / seconds,
                "errors": self.shared.failures.total(),
            }),
        );
        self.last_progress = (now, completed);
        self.next_progress_ns = now + NS_PER_S;
    }

    fn window_s(&self) -> f64 {
        let (begin, end) = (self.shared.window_begin_ns(), self.shared.window_end_ns());
        if end == u64::MAX {
            return 0.0;
        }
        (end - begin) as f64 / 1e9
    }

    fn outcome(&self, measured: &[Measured], streaming: bool) -> Value {
        let settings = self.settings;
        let total = |count: fn(&Measured) -> u64| measured.iter().map(count).sum::<u64>();
        let merged = |which: fn(&Measured) -> &Latencies| {
            let mut all = Latencies::new();
            for one in measured {
                all.merge(which(one));
            }
            all
        };
        let (service, corrected) = (merged(|one| &one.service), merged(|one| &one.corrected));
        let lateness = merged(|one| &one.lateness);
        let mut operations: Vec<u64> = measured
            .iter()
            .flat_map(|one| one.operations.iter().copied())
            .collect();
        operations.sort_unstable();
        let completed: u64 = operations.iter().sum();
        let window_s = self.window_s();
        let per_s = (window_s > 0.0).then(|| completed as f64 / window_s);
        let client_cpu_ns = self.own_cpu_ns.1.saturating_sub(self.own_cpu_ns.0);
        let busy_ns = total(|one| one.busy_ns);
        let of_threads = |ns: u64| {
            (window_s > 0.0).then(|| ns as f64 / (window_s * 1e9 * settings.threads as f64))
        };
        let open_loop = settings.rate.map(|rate| {
            json!({
                "rate_asked_per_s": rate,
                "due": total(|one| one.due),
                "unfinished": total(|one| one.unfinished),
                "send_lateness": lateness.to_json(settings.hdr),
            })
        });
        json!({
            "window_s": window_s,
            "operations": completed,
            "operations_per_s": per_s,
            "bytes_in": total(|one| one.bytes_in),
            "bytes_out": total(|one| one.bytes_out),
            "latency": {
                "service": (!streaming).then(|| service.to_json(settings.hdr)),
                "corrected": settings.rate.map(|_| corrected.to_json(settings.hdr)),
            },
            "open_loop": open_loop,
            "void": self.void_reason(completed),
            "interrupted": self.was_interrupted,
            "ended_early": self.ended_early,
            "errors": self.shared.failures.to_json(),
            "connections": {
                "asked": settings.connections,
                "opened": total(|one| one.opened),
                "reopened": total(|one| one.reopened),
                "alive_at_end": total(|one| one.alive),
                "opening_s": self.connected_ns as f64 / 1e9,
                "connect": merged(|one| &one.connecting).to_json(settings.hdr),
            },
            "streams": streaming.then(|| json!({
                "held_back": total(|one| one.held_back),
                "outstanding_bytes_max": measured.iter().map(|one| one.outstanding_max).max(),
                "outstanding_bytes_most": outstanding_most(settings.connections),
            })),
            "fairness": fairness(&operations),
            "littles_law": (!streaming).then(|| littles_law(
                service.mean_ns().zip(per_s).map(|(mean_ns, per_s)| mean_ns * per_s / 1e9),
                measured.iter().map(|one| one.in_flight_ns).sum::<u128>() as f64 / (window_s * 1e9),
            )),
            "client": {
                "cpu_ns": client_cpu_ns,
                "cpu_fraction": of_threads(client_cpu_ns),
                "busy_ns": busy_ns,
                "busy_fraction": of_threads(busy_ns),
                "threads": settings.threads,
                "max_loop_ns": measured.iter().map(|one| one.turn_ns_max).max(),
                "voluntary_switches": self.own_switches.1.voluntary - self.own_switches.0.voluntary,
                "involuntary_switches":
                    self.own_switches.1.involuntary - self.own_switches.0.involuntary,
            },
            "server": self.account.to_json(&self.readings),
        })
    }

    /// Why the figures mean nothing; `None` if they do.
    fn void_reason(&self, completed: u64) -> Option<String> {
        let failures = &self.shared.failures;
        failures.void_reason().or_else(|| {
            if self.shared.window_begin_ns() == u64::MAX {
                Some("the run ended before the window was opened".to_owned())
            } else if completed == 0 {
                Some("nothing was answered in the window".to_owned())
            } else {
                None
            }
        })
    }
}

/// How evenly the connections were served, from what was answered on each, in ascending order. Jain's index is 1 if all are equal
/// and 1/n if one has everything.
fn fairness(operations: &[u64]) -> Value {
    let Some(last) = operations.len().checked_sub(1) else {
        return Value::Null;
    };
    let at = |fraction: f64| operations[(fraction * last as f64).round() as usize];
    let sum: f64 = operations.iter().map(|&count| count as f64).sum();
    let squares: f64 = operations.iter().map(|&count| (count as f64).powi(2)).sum();
    json!({
        "min": operations[0],
        "p5": at(0.05),
        "median": at(0.5),
        "p95": at(0.95),
        "max": operations[last],
        "jain": (squares > 0.0).then(|| sum * sum / (operations.len() as f64 * squares)),
    })
}

/// Requests in flight on average, once as rate times latency, and once as they were counted. If these differ, one of the three is wrong.
fn littles_law(in_flight_average: Option<f64>, counted: f64) -> Value {
    let expected = (counted.is_finite() && counted > 0.0).then_some(counted);
    json!({
        "in_flight_average": in_flight_average,
        "expected": expected,
        "ratio": in_flight_average.zip(expected).map(|(average, expected)| average / expected),
    })
}

/// Puts the calling thread where `settings` want it.
pub(crate) fn prepare_thread(settings: &Settings, thread: usize) -> Result<(), Unmeasurable> {
    system::ask_for_precise_waits();
    if settings.cpus.is_empty() {
        return Ok(());
    }
    let cpu = settings.cpus[thread % settings.cpus.len()];
    system::pin_to_cpu(cpu).map_err(|source| Unmeasurable::Cpu {
        thread,
        cpu,
        source,
    })
}

/// Ends the run for all threads when one of them ends, for whatever reason.
struct EndOfRun<'a>(&'a Shared);

impl Drop for EndOfRun<'_> {
    fn drop(&mut self) {
        self.0.set_phase(Phase::Over);
    }
}

/// Runs a workload, and returns its result; `failures` are those that came before, `exchange` makes each thread's protocol.
pub(crate) fn run<E: Exchange>(
    settings: &Settings,
    interrupted: &AtomicBool,
    failures: Failures,
    exchange: impl Fn() -> E + Sync,
) -> Result<Value, Unmeasurable> {
    let needed = u64::from(settings.connections) + settings.threads as u64 + DESCRIPTORS_SPARE;
    let limit = system::raise_descriptor_limit()?;
    if limit < needed {
        return Err(Unmeasurable::Descriptors {
            connections: settings.connections,
            needed,
            limit,
        });
    }
    let account = Account::open(&settings.account)?;
    let shared = Shared::new(settings.threads, failures);
    let mut control = Control::new(settings, &shared, &account, interrupted);
    control.readings.rss_bytes_at_rest = Some(account.details()?.rss_bytes);

    let work = |thread: usize, control: Option<&mut Control<'_>>| {
        let _end = EndOfRun(&shared);
        prepare_thread(settings, thread)?;
        let worker = Worker::new(settings, &shared, thread, exchange())?;
        Ok::<_, Unmeasurable>(worker.run(control)?)
    };
    let measured = thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..settings.threads)
            .map(|thread| scope.spawn(move || work(thread, None)))
            .collect();
        let mut results = vec![work(0, Some(&mut control))];
        for other in others {
            results.push(
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
        }
        results
    });
    let measured = measured.into_iter().collect::<Result<Vec<_>, _>>()?;
    let opened: u64 = measured.iter().map(|one| one.opened).sum();
    if opened == 0 && !control.was_interrupted && shared.failures.void_reason().is_none() {
        let first = shared.failures.first(Kind::Connect);
        return Err(Unmeasurable::Connections(first.unwrap_or_default()));
    }
    Ok(control.outcome(&measured, E::STREAMING))
}
