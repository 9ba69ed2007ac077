//! The result of a run, from the measurements of its threads and from what was recorded.

use serde_json::{Value, json};

use crate::accounting::Account;
use crate::control::Record;
use crate::exchange::outstanding_limit;
use crate::latencies::Latencies;
use crate::measured::Measured;
use crate::settings::Settings;
use crate::shared::Shared;

/// The result as JSON: `measured` has one value for each thread. With `streaming` there are no latencies, and with `one_way` nothing came
/// back before the end.
pub(crate) fn outcome(
    settings: &Settings,
    shared: &Shared,
    account: &Account,
    record: &Record,
    measured: &[Measured],
    streaming: bool,
    one_way: bool,
) -> Value {
    let total = |count: fn(&Measured) -> u64| measured.iter().map(count).sum::<u64>();
    let merged = |which: fn(&Measured) -> &Latencies| {
        let mut all = Latencies::default();
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
    let window_s = shared.window_s();
    let per_s = (window_s > 0.0).then(|| completed as f64 / window_s);
    let client_cpu_ns = record.own_cpu_ns;
    let busy_ns = total(|one| one.busy_ns);
    let of_threads =
        |ns: u64| (window_s > 0.0).then(|| ns as f64 / (window_s * 1e9 * settings.threads as f64));
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
        "windows": settings.windows.as_ref().map(|_| &record.windows),
        "rest_s": settings.windows.as_ref().map(|_| record.rest_ns as f64 / 1e9),
        "operations": completed,
        "operations_per_s": per_s,
        "bytes_in": total(|one| one.bytes_in),
        "bytes_out": total(|one| one.bytes_out),
        "latency": {
            "service": (!streaming).then(|| service.to_json(settings.hdr)),
            "corrected": settings.rate.map(|_| corrected.to_json(settings.hdr)),
        },
        "open_loop": open_loop,
        "void": void_reason(settings, shared, completed),
        "interrupted": record.was_interrupted,
        "ended_early": record.ended_early,
        "errors": shared.failures.to_json(),
        "connections": {
            "asked": settings.connections,
            "opened": total(|one| one.opened),
            "reopened": total(|one| one.reopened),
            "alive_at_end": total(|one| one.alive),
            "opening_s": record.connected_ns as f64 / 1e9,
            "connect": merged(|one| &one.connecting).to_json(settings.hdr),
        },
        "streams": streaming.then(|| json!({
            "held_back": total(|one| one.held_back),
            "outstanding_bytes_max":
                measured.iter().map(|one| one.outstanding_max).max().filter(|_| !one_way),
            "outstanding_bytes_most":
                (!one_way).then(|| outstanding_limit(settings.connections)),
            "counted_bytes": one_way.then(|| total(|one| one.counted)),
            "reads": total(|one| one.reads),
            "writes": total(|one| one.writes),
        })),
        "levels": (settings.steps > 0).then_some(&record.levels),
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
        },
        "server": account.to_json(&record.readings),
    })
}

/// Why the figures are meaningless, if they are.
fn void_reason(settings: &Settings, shared: &Shared, completed: u64) -> Option<String> {
    let failures = &shared.failures;
    failures.void_reason().or_else(|| {
        if shared.window_begin_ns() == u64::MAX && shared.window_s() == 0.0 {
            Some("the run ended before the window was opened".to_owned())
        } else if completed == 0 && !settings.idle {
            Some("nothing was answered in the window".to_owned())
        } else {
            None
        }
    })
}
/// How evenly the connections were served. `operations` has the answers on each connection, in ascending order. Jain's index is 1
/// if all are equal, and 1/n if one has everything.
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

/// The average number of requests in flight: once as rate times latency, and once as counted. If they differ, one of the figures
/// is wrong.
fn littles_law(in_flight_average: Option<f64>, counted: f64) -> Value {
    let expected = (counted.is_finite() && counted > 0.0).then_some(counted);
    json!({
        "in_flight_average": in_flight_average,
        "expected": expected,
        "ratio": in_flight_average.zip(expected).map(|(average, expected)| average / expected),
    })
}
