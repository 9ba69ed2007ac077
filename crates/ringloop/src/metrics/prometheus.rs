//! Metrics as text for Prometheus.

use std::fmt::Write;

use super::Metrics;

/// How a value changes: a counter only grows, a gauge goes up and down.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

use Kind::{Counter, Gauge};

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Counter => "counter",
            Gauge => "gauge",
        }
    }
}

/// One metric: its name, what it is, and its value in nanoseconds or as a count.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) value: Value,
}

#[derive(Clone, Copy)]
pub(super) enum Value {
    Count(fn(&Metrics) -> u64),
    Nanoseconds(fn(&Metrics) -> u64),
}

use Value::{Count, Nanoseconds};

const fn family(name: &'static str, kind: Kind, help: &'static str, value: Value) -> Family {
    Family {
        name,
        kind,
        help,
        value,
    }
}

/// In the order of [`Metrics`]. The names of counters end with `_total`, and times are in seconds.
#[rustfmt::skip]
pub(super) const FAMILIES: &[Family] = &[
    family("turns_total", Counter, "How often the worker has looked at the kernel.", Count(|m| m.turns)),
    family("tasks_run_total", Counter, "How often a task was polled.", Count(|m| m.tasks_run)),
    family("tasks", Gauge, "Tasks that are alive.", Count(|m| m.tasks_live)),
    family("timers", Gauge, "Timers that have not expired.", Count(|m| m.timers)),
    family("sources", Gauge, "Watched descriptors and operations in flight.", Count(|m| m.sources)),
    family("operations_total", Counter, "Attempted reads and writes, and operations given to the driver.", Count(|m| m.operations)),
    family("completions_total", Counter, "Operations that had a result, including errors.", Count(|m| m.completions)),
    family("system_calls_total", Counter, "System calls of the driver, and reads and writes of sockets.", Count(|m| m.system_calls)),
    family("busy_seconds_total", Counter, "Time in which tasks ran, or the worker looked at the kernel without waiting.", Nanoseconds(|m| m.busy_ns)),
    family("idle_seconds_total", Counter, "Time in which the worker waited, asleep or polling.", Nanoseconds(|m| m.idle_ns)),
    family("waits_total", Counter, "Looks at the kernel that waited.", Count(|m| m.reactor.waits)),
    family("spins_total", Counter, "Waits that polled before they slept.", Count(|m| m.reactor.spins)),
    family("spin_hits_total", Counter, "Waits that something ended during polling.", Count(|m| m.reactor.spin_hits)),
    family("spun_seconds_total", Counter, "Time spent polling.", Nanoseconds(|m| m.reactor.spun_ns)),
    family("wasted_seconds_total", Counter, "Time spent polling in which nothing arrived.", Nanoseconds(|m| m.reactor.wasted_ns)),
    family("blocked_seconds_total", Counter, "Time spent asleep in the kernel.", Nanoseconds(|m| m.reactor.blocked_ns)),
    family("spin_window_seconds", Gauge, "How long the next wait would poll.", Nanoseconds(|m| m.reactor.window_ns)),
    family("driver_events_total", Counter, "Events that the driver reported.", Count(|m| m.reactor.driver.events)),
    family("driver_wakes_total", Counter, "Wakes by other threads.", Count(|m| m.reactor.driver.wakes)),
    family("driver_watches", Gauge, "Watched descriptors.", Count(|m| m.reactor.driver.watches)),
    family("driver_operations", Gauge, "Operations that have not finished.", Count(|m| m.reactor.driver.operations)),
    family("driver_stale_events_total", Counter, "Events dropped because their watch or operation was gone.", Count(|m| m.reactor.driver.stale_events)),
    family("driver_overflows_total", Counter, "Overflows of the completion queue.", Count(|m| m.reactor.driver.overflows)),
    family("driver_rearms_total", Counter, "Multishot requests that the kernel ended and the driver queued again.", Count(|m| m.reactor.driver.rearms)),
    family("driver_short_submits_total", Counter, "Submissions of which the kernel took only a part.", Count(|m| m.reactor.driver.short_submits)),
    family("driver_refused_submits_total", Counter, "Submissions that the kernel refused for lack of memory.", Count(|m| m.reactor.driver.refused_submits)),
    family("driver_rings_rebuilt_total", Counter, "Rings built because the driver had moved to another thread.", Count(|m| m.reactor.driver.rings_rebuilt)),
    family("driver_zero_copy_sends_total", Counter, "Sends without a copy that have finished.", Count(|m| m.reactor.driver.zero_copy_sends)),
    family("driver_zero_copy_copies_total", Counter, "Sends without a copy that the kernel has copied after all.", Count(|m| m.reactor.driver.zero_copy_copies)),
];

/// Returns metrics as text for Prometheus, with one sample per worker, in the text format 0.0.4
/// (`Content-Type: text/plain; version=0.0.4`). The names begin with `ringloop_worker_`, the label `worker` is the position
/// in the slice, times are in seconds.
///
/// ```
/// use ringloop::{Pool, PoolConfig, metrics};
///
/// let pool = Pool::new(2, &PoolConfig::default())?;
/// let text = metrics::prometheus(&pool.metrics());
/// assert!(text.contains("# TYPE ringloop_worker_tasks gauge\nringloop_worker_tasks{worker=\"0\"} "));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn prometheus(workers: &[Metrics]) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let (name, kind, help) = (family.name, family.kind.name(), family.help);
        let mut line = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line)
                .expect("writing to a string does not fail");
        };
        line(format_args!("# HELP ringloop_worker_{name} {help}\n"));
        line(format_args!("# TYPE ringloop_worker_{name} {kind}\n"));
        for (worker, metrics) in workers.iter().enumerate() {
            let sample = format_args!("ringloop_worker_{name}{{worker=\"{worker}\"}}");
            match family.value {
                Count(value) => line(format_args!("{sample} {}\n", value(metrics))),
                Nanoseconds(value) => {
                    let ns = value(metrics);
                    let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
                    line(format_args!("{sample} {seconds}.{rest:09}\n"));
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::COUNTERS;

    #[test]
    fn every_counter_has_a_sample_of_its_own() {
        let mut metrics = Metrics::default();
        for (index, counter) in metrics.counters().into_iter().enumerate() {
            *counter = (index as u64 + 1) * 1_000_000_001;
        }
        let text = prometheus(&[Metrics::default(), metrics]);
        // The reactor's turns are those of the runtime, and the driver's system calls are part of the runtime's.
        assert_eq!(FAMILIES.len(), COUNTERS - 2);
        let mut values: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_once("{worker=\"1\"} "))
            .map(|(_, value)| value)
            .collect();
        assert_eq!(values.len(), FAMILIES.len());
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), FAMILIES.len(), "one is there twice");
        assert!(text.contains("ringloop_worker_turns_total{worker=\"1\"} 1000000001\n"));
        assert!(text.contains("ringloop_worker_busy_seconds_total{worker=\"1\"} 9.000000009\n"));
        assert!(text.contains("ringloop_worker_idle_seconds_total{worker=\"0\"} 0.000000000\n"));
    }

    /// The rules of the text format: a family is described once, before its samples, and has a name of its own.
    #[test]
    fn the_text_is_what_prometheus_reads() {
        let text = prometheus(&[Metrics::default(); 3]);
        let mut lines = text.lines();
        let mut names = std::collections::HashSet::new();
        while let Some(help) = lines.next() {
            let name = help
                .strip_prefix("# HELP ")
                .unwrap()
                .split(' ')
                .next()
                .unwrap();
            assert!(names.insert(name), "{name} is there twice");
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{name}"
            );
            let kind = lines.next().unwrap();
            let is_counter = kind == format!("# TYPE {name} counter");
            assert!(
                is_counter || kind == format!("# TYPE {name} gauge"),
                "{kind}"
            );
            assert_eq!(is_counter, name.ends_with("_total"), "{name}");
            for worker in 0..3 {
                let sample = lines.next().unwrap();
                let value = sample
                    .strip_prefix(&format!("{name}{{worker=\"{worker}\"}} "))
                    .unwrap();
                value.parse::<f64>().unwrap();
            }
        }
        assert_eq!(prometheus(&[]).lines().count(), 2 * FAMILIES.len());
    }
}
