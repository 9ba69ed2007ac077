//! The phases of a run: connect, warm up, measure, drain.
//!
//! The worker calls [`Control::advance`] between two turns of its loop. That reads the clocks of the server's processes and
//! of the generator, and opens or closes the window, so the readings and the counts belong to the same instants.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::json;

use crate::accounting::{Account, Level, Readings};
use crate::output;
use crate::settings::Settings;
use crate::shared::{Phase, Shared};
use crate::system::{Clock, NS_PER_S, now_ns};

/// How often to check between two windows whether the next one begins. Others are measured meanwhile.
pub(crate) const REST_NS: u64 = 5_000_000;
/// How long to wait for answers after Ctrl-C.
const INTERRUPTED_DRAIN_NS: u64 = NS_PER_S;
/// How long a server rests after each step of opening connections, before its memory is read.
const SETTLING_NS: u64 = 50_000_000;

/// One of several windows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Window {
    pub(crate) seconds: f64,
    operations: u64,
    /// The CPU time of the server's processes; `None` if it isn't known.
    cpu_ns: Option<u64>,
}

/// The record of a run, apart from the worker's measurements.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Of each window; the first ones also of what was before it.
    pub(crate) readings: Vec<Readings>,
    /// The windows that were closed.
    pub(crate) windows: Vec<Window>,
    /// The generator's CPU time in the windows.
    pub(crate) own_cpu_ns: u64,
    /// How long nothing was in flight between the windows.
    pub(crate) rest_ns: u64,
    /// How long it took to open all connections.
    pub(crate) connected_ns: u64,
    pub(crate) was_interrupted: bool,
    /// The memory of the server after each step of opening connections.
    pub(crate) levels: Vec<Level>,
    /// Why the run ended early.
    pub(crate) ended_early: Option<String>,
}

/// The state of the generator when a window opened.
#[derive(Default)]
struct Opened {
    cpu_ns: u64,
    completed: u64,
}

/// How far the worker is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) completed: u64,
    /// Connections that are open or being opened.
    pub(crate) alive: u64,
    /// How many connections have been opened, or have failed to be, before any other requests are sent.
    pub(crate) tried: u64,
    /// Whether all connections are open or dead.
    pub(crate) ready: bool,
    /// Whether everything is answered, after which nothing more is sent in this phase.
    pub(crate) drained: bool,
}

/// Moves a run from phase to phase.
pub(crate) struct Control<'a> {
    settings: &'a Settings,
    shared: &'a Shared,
    account: &'a Account,
    interrupted: &'a AtomicBool,
    /// The window. The beginning and the end are `u64::MAX` until they are known.
    pub(crate) window_begin_ns: u64,
    pub(crate) window_end_ns: u64,
    /// Whether nothing more is to be sent in this phase, which ends when everything is answered.
    pub(crate) finishing: bool,
    /// From when on requests may be sent.
    pub(crate) sending_begin_ns: u64,
    /// Connections with this number or a greater one are not to be opened yet.
    pub(crate) connections_allowed: u64,
    began_ns: u64,
    /// When the current phase ends at the latest: then [`advance`](Self::advance) must be called.
    pub(crate) deadline_ns: u64,
    /// When the server's memory is read after a step; `None` while connections are being opened.
    settled_ns: Option<u64>,
    /// Whether the slow readings before the window are done.
    prepared: bool,
    /// The state of the generator when the window opened.
    opened: Opened,
    /// When the last window closed.
    closed_ns: Option<u64>,
    pub(crate) record: Record,
}

impl<'a> Control<'a> {
    /// The control of a run that begins now.
    pub(crate) fn new(
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
            window_begin_ns: u64::MAX,
            window_end_ns: u64::MAX,
            finishing: false,
            sending_begin_ns: 0,
            connections_allowed: match settings.steps {
                0 => u64::MAX,
                _ => step_end(settings, 1),
            },
            began_ns: now,
            deadline_ns: u64::MAX,
            settled_ns: None,
            prepared: false,
            opened: Opened::default(),
            closed_ns: None,
            record: Record {
                readings: vec![Readings::default()],
                ..Record::default()
            },
        }
    }

    /// Whether what began at `ns` began in the window.
    #[inline]
    pub(crate) fn counts(&self, ns: u64) -> bool {
        ns >= self.window_begin_ns && ns < self.window_end_ns
    }

    /// Does what is due. Returns the time.
    pub(crate) fn advance(&mut self, mut now: u64, progress: &Progress) -> u64 {
        let phase = self.shared.phase();
        let begun = (Phase::WarmUp..Phase::Drain).contains(&phase);
        let end = if self.shared.is_voided() {
            Some("void")
        } else if self.interrupted.load(Ordering::Relaxed) {
            self.record.was_interrupted = true;
            Some("interrupted")
        } else if begun && progress.alive == 0 {
            Some("no connection was left")
        } else {
            None
        };
        if phase < Phase::Drain
            && let Some(reason) = end
        {
            let ended_early = &mut self.record.ended_early;
            ended_early.get_or_insert_with(|| reason.to_owned());
        }
        match phase {
            Phase::Connecting | Phase::WarmUp | Phase::Rest if end.is_some() => {
                self.shared.set_phase(Phase::Over);
            }
            Phase::Connecting => {
                now = self.advance_steps(now, progress);
                let stepped = self.record.levels.len() == self.settings.steps as usize;
                if stepped && progress.ready {
                    now = self.begin(now, progress);
                }
            }
            Phase::WarmUp if now < self.deadline_ns => {}
            Phase::WarmUp if self.settings.windows.is_some() => {
                self.finishing = true;
                if progress.drained {
                    self.shared.set_phase(Phase::Rest);
                    output::event("resting", json!({}));
                }
            }
            Phase::WarmUp if self.prepared => now = self.open_window(progress),
            Phase::WarmUp => now = self.prepare_window(),
            Phase::Rest => now = self.open_window_when_told(now, progress),
            Phase::Window => {
                let most = self.settings.max_operations;
                let enough = most.is_some_and(|most| progress.completed >= most);
                if end.is_some() || enough || now >= self.deadline_ns {
                    let goes_on = self.settings.windows.is_some() && end.is_none();
                    self.finishing = goes_on;
                    if !goes_on || progress.drained {
                        now = self.close_window(now, goes_on, progress);
                    }
                }
            }
            Phase::Drain => {
                if end == Some("interrupted") {
                    self.deadline_ns = self.deadline_ns.min(now + INTERRUPTED_DRAIN_NS);
                }
                if progress.drained || end == Some("void") || now >= self.deadline_ns {
                    self.shared.set_phase(Phase::Over);
                }
            }
            Phase::Over => {}
        }
        now
    }

    /// Opens the next window if stdin has asked for it, and ends the run if stdin has ended.
    fn open_window_when_told(&mut self, now: u64, progress: &Progress) -> u64 {
        let measured = self.record.windows.len() as u64;
        let windows = self.settings.windows.as_ref();
        match windows.and_then(|windows| windows.wanted(measured)) {
            None => self.shared.set_phase(Phase::Over),
            Some(false) => self.deadline_ns = now + REST_NS,
            Some(true) => {
                if measured > 0 {
                    self.record.readings.push(Readings::default());
                }
                let account = self.account;
                self.readings().prepare(account);
                let now = now_ns();
                if let Some(closed_ns) = self.closed_ns {
                    self.record.rest_ns += now - closed_ns;
                }
                return self.open_window(progress);
            }
        }
        now
    }

    /// The readings of the window that is open or comes next.
    fn readings(&mut self) -> &mut Readings {
        let last = self.record.readings.len() - 1;
        &mut self.record.readings[last]
    }

    /// Reads the server's memory when a step of opening connections is done, and allows the next one.
    fn advance_steps(&mut self, now: u64, progress: &Progress) -> u64 {
        let done = self.record.levels.len() as u32;
        if done == self.settings.steps {
            return now;
        }
        let end = step_end(self.settings, done + 1);
        if progress.tried < end {
            return now;
        }
        if now < *self.settled_ns.get_or_insert(now + SETTLING_NS) {
            return now;
        }
        self.settled_ns = None;
        let memory = self.account.memory(progress.alive);
        let level = self.readings().noted(memory);
        self.record.levels.push(level.unwrap_or_default());
        self.connections_allowed = step_end(self.settings, done + 2);
        now_ns()
    }

    /// All connections are open: begins to warm up.
    fn begin(&mut self, now: u64, progress: &Progress) -> u64 {
        self.record.connected_ns = now - self.began_ns;
        output::event(
            "connected",
            json!({"connections": progress.alive, "seconds": self.record.connected_ns as f64 / 1e9}),
        );
        let without_warm_up = self.settings.warm_up_ns == 0 && self.settings.windows.is_none();
        if without_warm_up {
            self.record.readings[0].prepare(self.account);
            self.prepared = true;
        }
        let now = now_ns();
        self.deadline_ns = now + self.settings.warm_up_ns;
        self.sending_begin_ns = now;
        self.shared.set_phase(Phase::WarmUp);
        if without_warm_up {
            // Nothing is sent before the window, so no answer falls outside of it.
            return self.open_window(progress);
        }
        now
    }

    /// Takes the slow readings, and delays the window by the same time again. In that time the worker takes the answers that
    /// came during the readings. The server has worked for these before the window, so they must not count in it.
    fn prepare_window(&mut self) -> u64 {
        let begin_ns = now_ns();
        self.record.readings[0].prepare(self.account);
        self.prepared = true;
        let now = now_ns();
        self.deadline_ns = now + (now - begin_ns);
        now
    }

    fn open_window(&mut self, progress: &Progress) -> u64 {
        self.opened.completed = progress.completed;
        self.opened.cpu_ns = Clock::OWN_CPU.read_ns().unwrap_or_default();
        let account = self.account;
        self.readings().open(account);
        let now = now_ns();
        self.finishing = false;
        self.window_begin_ns = now;
        self.shared.set_phase(Phase::Window);
        self.deadline_ns = now + self.settings.window_ns;
        output::event("window_start", json!({}));
        now
    }

    /// Closes the window at `now`: the load then rests until the next one, or ends.
    fn close_window(&mut self, now: u64, goes_on: bool, progress: &Progress) -> u64 {
        let account = self.account;
        let own_cpu_ns = Clock::OWN_CPU.read_ns().unwrap_or_default();
        let begin_ns = self.window_begin_ns;
        if goes_on {
            self.window_begin_ns = u64::MAX;
            self.shared.set_phase(Phase::Rest);
            self.readings().close_at_rest(account);
            self.closed_ns = Some(now_ns());
        } else {
            self.window_end_ns = now;
            self.shared.set_phase(Phase::Drain);
            self.readings().close(account);
        }
        self.readings().complete(account);
        self.record.own_cpu_ns += own_cpu_ns.saturating_sub(self.opened.cpu_ns);
        let window = Window {
            seconds: (now - begin_ns) as f64 / 1e9,
            operations: progress.completed - self.opened.completed,
            cpu_ns: (!account.is_empty())
                .then(|| self.readings().cpu_ns().ok())
                .flatten(),
        };
        output::event("window_end", json!(window));
        self.record.windows.push(window);
        self.deadline_ns = now + self.settings.timeout_ns + NS_PER_S;
        now_ns()
    }
}

/// How many connections are open at the end of a step, which are counted from 1.
fn step_end(settings: &Settings, step: u32) -> u64 {
    let all = u64::from(settings.connections);
    (all * u64::from(step) / u64::from(settings.steps)).min(all)
}
