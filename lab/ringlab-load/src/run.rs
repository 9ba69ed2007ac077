//! A run of a workload.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};

use crate::accounting::Account;
use crate::beside;
use crate::control::Control;
use crate::exchange::Exchange;
use crate::failure::{Failures, Kind};
use crate::outcome::outcome;
use crate::settings::Settings;
use crate::shared::{Phase, Shared};
use crate::system;
use crate::worker::Worker;

/// Descriptors that are not connections: standard streams, epoll sets, /proc.
const DESCRIPTORS_SPARE: u64 = 32;

/// Prepares the calling thread: precise waits, and its CPU.
pub(crate) fn prepare_thread(settings: &Settings) -> anyhow::Result<()> {
    system::ask_for_precise_waits();
    let Some(cpu) = settings.cpu else {
        return Ok(());
    };
    system::pin_to_cpu(cpu).map_err(|error| {
        anyhow!(
            "the generator can't be put on CPU {cpu} (--cpu): {error}; see `taskset -p $$` for the CPUs that may be used"
        )
    })
}

/// Ends the run for the connections beside the load when it ends for any reason.
struct EndOfRun<'a>(&'a Shared);

impl Drop for EndOfRun<'_> {
    fn drop(&mut self) {
        self.0.set_phase(Phase::Over);
    }
}

/// Runs a workload and returns its result. `failures` has earlier failures, and `exchange` is the protocol.
pub(crate) fn run<E: Exchange>(
    settings: &Settings,
    interrupted: &AtomicBool,
    failures: Failures,
    exchange: E,
) -> anyhow::Result<Value> {
    let extra = settings.beside.as_ref().map_or(0, |it| it.connections);
    let connections = settings.connections.saturating_add(extra);
    let needed = u64::from(connections) + DESCRIPTORS_SPARE;
    let limit = system::raise_descriptor_limit()?;
    if limit < needed {
        bail!(
            "{connections} connections need {needed} descriptors, and this process may have {limit}; raise the hard limit (ulimit -Hn, or \
             LimitNOFILE= of the service), or ask for fewer connections"
        );
    }
    let account = Account::open(&settings.account, settings.account_below)?;
    let shared = Shared::new(failures);
    let mut control = Control::new(settings, &shared, &account, interrupted);
    control.record.readings[0].rest(&account)?;

    let answered_beside = AtomicU64::new(0);
    let (measured, record) = thread::scope(|scope| {
        let _end = EndOfRun(&shared);
        if let Some(beside) = &settings.beside {
            for number in 0..beside.connections {
                let (shared, answered) = (&shared, &answered_beside);
                scope.spawn(move || beside::ask(settings, beside, number, shared, answered));
            }
        }
        prepare_thread(settings)?;
        anyhow::Ok(Worker::new(settings, &shared, control, exchange)?.run()?)
    })?;
    if measured.opened == 0 && !record.was_interrupted && shared.failures.void_reason().is_none() {
        let failures = &shared.failures;
        let first = failures
            .first(Kind::Connect)
            .or_else(|| failures.first(Kind::Handshake));
        bail!("no connection could be made: {}", first.unwrap_or_default());
    }
    let mut result = outcome(
        settings,
        &shared,
        &account,
        &record,
        &measured,
        E::STREAMING,
        E::ONE_WAY,
    );
    if let Some(beside) = &settings.beside {
        result["beside"] = json!({
            "connections": beside.connections,
            "answered": answered_beside.into_inner(),
        });
    }
    Ok(result)
}
