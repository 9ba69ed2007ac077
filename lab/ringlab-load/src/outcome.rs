//! The result of a run, from what the worker measured and from what was recorded.

use serde_json::{Value, json};

use crate::accounting::Account;
use crate::control::Record;
use crate::exchange::outstanding_limit;
use crate::measured::Measured;
use crate::settings::Settings;
use crate::shared::Shared;

/// The result as JSON. With `streaming` there are no latencies, and with `one_way` nothing came back before the end.
pub(crate) fn outcome(
    settings: &Settings,
    shared: &Shared,
    account: &Account,
    record: &Record,
    measured: &Measured,
    streaming: bool,
    one_way: bool,
) -> Value {
    let completed: u64 = measured.operations.iter().sum();
    let window_s: f64 = record.windows.iter().map(|one| one.seconds).sum();
    let per_s = (window_s > 0.0).then(|| completed as f64 / window_s);
    let client_cpu_ns = record.own_cpu_ns;
    let of_window = |ns: u64| (window_s > 0.0).then(|| ns as f64 / (window_s * 1e9));
    let open_loop = settings.rate.map(|rate| {
        json!({
            "rate_asked_per_s": rate,
            "due": measured.due,
            "unfinished": measured.unfinished,
            "send_lateness": measured.lateness.to_json(settings.hdr),
        })
    });
    json!({
        "window_s": window_s,
        "windows": settings.windows.as_ref().map(|_| &record.windows),
        "rest_s": settings.windows.as_ref().map(|_| record.rest_ns as f64 / 1e9),
        "operations": completed,
        "operations_per_s": per_s,
        "bytes_in": measured.bytes_in,
        "bytes_out": measured.bytes_out,
        "latency": {
            "service": (!streaming).then(|| measured.service.to_json(settings.hdr)),
            "corrected": settings.rate.map(|_| measured.corrected.to_json(settings.hdr)),
        },
        "open_loop": open_loop,
        "void": void_reason(settings, shared, record, completed),
        "interrupted": record.was_interrupted,
        "ended_early": record.ended_early,
        "errors": shared.failures.to_json(),
        "connections": {
            "asked": settings.connections,
            "opened": measured.opened,
            "reopened": measured.reopened,
            "alive_at_end": measured.alive,
            "opening_s": record.connected_ns as f64 / 1e9,
            "connect": measured.connecting.to_json(settings.hdr),
        },
        "streams": streaming.then(|| json!({
            "held_back": measured.held_back,
            "outstanding_bytes_max": (!one_way).then_some(measured.outstanding_max),
            "outstanding_bytes_most":
                (!one_way).then(|| outstanding_limit(settings.connections)),
            "counted_bytes": one_way.then_some(measured.counted),
            "reads": measured.reads,
            "writes": measured.writes,
        })),
        "levels": (settings.steps > 0).then_some(&record.levels),
        "fairness": fairness(&measured.operations),
        "littles_law": (!streaming).then(|| littles_law(
            measured.service.mean_ns().zip(per_s).map(|(mean_ns, per_s)| mean_ns * per_s / 1e9),
            measured.in_flight_ns as f64 / (window_s * 1e9),
        )),
        "client": {
            "cpu_ns": client_cpu_ns,
            "cpu_fraction": of_window(client_cpu_ns),
            "busy_ns": measured.busy_ns,
            "busy_fraction": of_window(measured.busy_ns),
            "max_loop_ns": measured.turn_ns_max,
        },
        "server": account.to_json(&record.readings),
    })
}

/// Why the figures are meaningless, if they are.
fn void_reason(
    settings: &Settings,
    shared: &Shared,
    record: &Record,
    completed: u64,
) -> Option<String> {
    shared.failures.void_reason().or_else(|| {
        if record.windows.is_empty() {
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
