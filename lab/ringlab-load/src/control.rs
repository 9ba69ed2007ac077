//! The phases of a run: connect, warm up, measure, drain.
//!
//! The first thread calls [`Control::advance`] between two turns of its loop. It reads the clocks of the server's processes and
//! of the generator, and opens or closes the window, so the readings and the counts belong to the same instants.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::json;

use crate::accounting::{Account, Level, Readings};
use crate::output;
use crate::settings::Settings;
use crate::shared::{Phase, REST_NS, Shared};
use crate::system::{Clock, NS_PER_S, now_ns};

/// How long to wait for answers after Ctrl-C.
const INTERRUPTED_DRAIN_NS: u64 = NS_PER_S;
/// How long a server rests after each step of opening connections, before its memory is read.
const SETTLING_NS: u64 = 50_000_000;

/// One of several windows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Window {
    seconds: f64,
    operations: u64,
    /// The CPU time of the server's processes; `None` if it isn't known.
    cpu_ns: Option<u64>,
}

/// The record of a run, apart from the measurements of its threads.
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
    ns: u64,
}

/// Moves a run from phase to phase.
pub(crate) struct Control<'a> {
    settings: &'a Settings,
    shared: &'a Shared,
    account: &'a Account,
    interrupted: &'a AtomicBool,
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
        if settings.steps > 0 {
            let first = step_end(settings, 1);
            shared.connections_allowed.store(first, Ordering::Relaxed);
        }
        Self {
            settings,
            shared,
            account,
            interrupted,
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

    /// Does what is due. Returns the time.
    pub(crate) fn advance(&mut self, mut now: u64) -> u64 {
        let phase = self.shared.phase();
        let begun = (Phase::WarmUp..Phase::Drain).contains(&phase);
        let end = if self.shared.is_voided() {
            Some("void")
        } else if self.interrupted.load(Ordering::Relaxed) {
            self.record.was_interrupted = true;
            Some("interrupted")
        } else if begun && self.shared.alive() == 0 {
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
                now = self.advance_steps(now);
                let stepped = self.record.levels.len() == self.settings.steps as usize;
                if stepped
                    && self.shared.threads_ready.load(Ordering::SeqCst) == self.settings.threads
                {
                    now = self.begin(now);
                }
            }
            Phase::WarmUp if now < self.deadline_ns => {}
            Phase::WarmUp if self.settings.windows.is_some() => {
                if self.is_finished() {
                    self.shared.rest(now);
                    output::event("resting", json!({}));
                }
            }
            Phase::WarmUp if self.prepared => now = self.open_window(),
            Phase::WarmUp => now = self.prepare_window(),
            Phase::Rest => now = self.open_window_when_told(now),
            Phase::Window => {
                let most = self.settings.max_operations;
                let enough = most.is_some_and(|most| self.shared.completed() >= most);
                if end.is_some() || enough || now >= self.deadline_ns {
                    let goes_on = self.settings.windows.is_some() && end.is_none();
                    if !goes_on || self.is_finished() {
                        now = self.close_window(now, goes_on);
                    }
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

    /// Whether everything is answered that was sent in this phase; nothing more is sent.
    fn is_finished(&self) -> bool {
        self.shared.finish_phase();
        self.shared.threads_drained.load(Ordering::SeqCst) == self.settings.threads
    }

    /// Opens the next window if stdin has asked for it, and ends the run if stdin has ended.
    fn open_window_when_told(&mut self, now: u64) -> u64 {
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
                return self.open_window();
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
    fn advance_steps(&mut self, now: u64) -> u64 {
        let done = self.record.levels.len() as u32;
        if done == self.settings.steps {
            return now;
        }
        let end = step_end(self.settings, done + 1);
        if self.shared.connections_tried.load(Ordering::Relaxed) < end {
            return now;
        }
        if now < *self.settled_ns.get_or_insert(now + SETTLING_NS) {
            return now;
        }
        self.settled_ns = None;
        let memory = self.account.memory(self.shared.alive());
        let level = self.readings().noted(memory);
        self.record.levels.push(level.unwrap_or_default());
        let next = step_end(self.settings, done + 2);
        self.shared
            .connections_allowed
            .store(next, Ordering::Relaxed);
        now_ns()
    }

    /// All connections are open: begins to warm up.
    fn begin(&mut self, now: u64) -> u64 {
        self.record.connected_ns = now - self.began_ns;
        output::event(
            "connected",
            json!({"connections": self.shared.alive(), "seconds": self.record.connected_ns as f64 / 1e9}),
        );
        let without_warm_up = self.settings.warm_up_ns == 0 && self.settings.windows.is_none();
        if without_warm_up {
            self.record.readings[0].prepare(self.account);
            self.prepared = true;
        }
        let now = now_ns();
        self.deadline_ns = now + self.settings.warm_up_ns;
        self.shared.sending_begin_ns.store(now, Ordering::Release);
        self.shared.set_phase(Phase::WarmUp);
        if without_warm_up {
            // Nothing is sent before the window, so no answer falls outside of it.
            return self.open_window();
        }
        now
    }

    /// Takes the slow readings, and delays the window by the same time again. In that time this thread takes the answers that
    /// came during the readings. The server has worked for these before the window, so they must not count in it.
    fn prepare_window(&mut self) -> u64 {
        let begin_ns = now_ns();
        self.record.readings[0].prepare(self.account);
        self.prepared = true;
        let now = now_ns();
        self.deadline_ns = now + (now - begin_ns);
        now
    }

    fn open_window(&mut self) -> u64 {
        self.opened.completed = self.shared.completed();
        self.opened.cpu_ns = Clock::OWN_CPU.read_ns().unwrap_or_default();
        let account = self.account;
        self.readings().open(account);
        let now = now_ns();
        self.opened.ns = now;
        self.shared.open_window(now);
        self.deadline_ns = now + self.settings.window_ns;
        output::event("window_start", json!({}));
        now
    }

    /// Closes the window at `now`: the load then rests until the next one, or ends.
    fn close_window(&mut self, now: u64, goes_on: bool) -> u64 {
        let account = self.account;
        let own_cpu_ns = Clock::OWN_CPU.read_ns().unwrap_or_default();
        if goes_on {
            self.shared.rest(now);
            self.readings().close_at_rest(account);
            self.closed_ns = Some(now_ns());
        } else {
            self.shared.close_window(now);
            self.readings().close(account);
        }
        self.readings().complete(account);
        self.record.own_cpu_ns += own_cpu_ns.saturating_sub(self.opened.cpu_ns);
        let window = Window {
            seconds: (now - self.opened.ns) as f64 / 1e9,
            operations: self.shared.completed() - self.opened.completed,
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
