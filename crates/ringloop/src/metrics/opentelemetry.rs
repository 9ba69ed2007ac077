//! Instruments for OpenTelemetry.

use std::sync::Arc;

use ::opentelemetry::KeyValue;
use ::opentelemetry::metrics::Meter;

use super::Metrics;
use super::prometheus::{FAMILIES, Kind, Value};

/// Registers the metrics of workers with a meter of OpenTelemetry. `read` returns them, and is called for each instrument
/// when the meter's provider collects, which does not disturb the workers. The names are `ringloop.worker.turns` and so on,
/// the attribute `worker` is the position, times are in seconds.
///
/// ```
/// use opentelemetry_sdk::metrics::SdkMeterProvider;
/// use opentelemetry::metrics::MeterProvider;
/// use ringloop::{Pool, PoolConfig, metrics};
///
/// let pool = Pool::new(2, &PoolConfig::default())?;
/// let provider = SdkMeterProvider::default(); // with the exporter of your choice
/// let workers: Vec<_> = (0..pool.workers()).map(|worker| pool.handle(worker).clone()).collect();
/// let read = move || workers.iter().map(|worker| worker.metrics()).collect();
/// metrics::observe(&provider.meter("my-service"), read);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn observe(meter: &Meter, read: impl Fn() -> Vec<Metrics> + Send + Sync + 'static) {
    let read = Arc::new(read);
    for family in FAMILIES {
        let name = family.name.trim_end_matches("_total");
        let name = name.trim_end_matches("_seconds");
        let name = format!("ringloop.worker.{name}");
        let read = Arc::clone(&read);
        macro_rules! register {
            ($instrument:expr, $value:expr) => {{
                let value = $value;
                let instrument = $instrument.with_description(family.help);
                let observing = instrument.with_callback(move |observer| {
                    each(&read(), |metrics, worker| {
                        observer.observe(value(metrics), worker);
                    });
                });
                let _ = observing.build();
            }};
        }
        match (family.value, family.kind) {
            (Value::Count(value), Kind::Counter) => {
                register!(meter.u64_observable_counter(name), value);
            }
            (Value::Count(value), Kind::Gauge) => {
                register!(meter.u64_observable_gauge(name), value);
            }
            (Value::Nanoseconds(value), Kind::Counter) => {
                let instrument = meter.f64_observable_counter(name).with_unit("s");
                register!(instrument, move |metrics: &Metrics| seconds(value(metrics)));
            }
            (Value::Nanoseconds(value), Kind::Gauge) => {
                let instrument = meter.f64_observable_gauge(name).with_unit("s");
                register!(instrument, move |metrics: &Metrics| seconds(value(metrics)));
            }
        }
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn each(workers: &[Metrics], mut observe: impl FnMut(&Metrics, &[KeyValue])) {
    for (worker, metrics) in workers.iter().enumerate() {
        let worker = KeyValue::new("worker", i64::try_from(worker).unwrap_or(i64::MAX));
        observe(metrics, &[worker]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ::opentelemetry::metrics::MeterProvider;
    use ::opentelemetry_sdk::metrics::data::{
        AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics,
    };
    use ::opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

    use super::*;

    #[test]
    fn each_metric_is_collected_for_each_worker() {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        observe(&provider.meter("test"), || vec![Metrics::default(); 2]);
        provider.force_flush().unwrap();
        let collected = exporter.get_finished_metrics().unwrap();
        let mut names = HashSet::new();
        for metric in collected
            .iter()
            .flat_map(ResourceMetrics::scope_metrics)
            .flat_map(ScopeMetrics::metrics)
        {
            let name = metric.name();
            assert!(name.starts_with("ringloop.worker."), "{name}");
            assert!(names.insert(name.to_owned()), "{name} is there twice");
            let (samples, is_seconds) = match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => (sum.data_points().count(), false),
                AggregatedMetrics::U64(MetricData::Gauge(gauge)) => {
                    (gauge.data_points().count(), false)
                }
                AggregatedMetrics::F64(MetricData::Sum(sum)) => (sum.data_points().count(), true),
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                    (gauge.data_points().count(), true)
                }
                other => panic!("{name}: {other:?}"),
            };
            assert_eq!(samples, 2, "{name}");
            assert_eq!(metric.unit() == "s", is_seconds, "{name}");
        }
        assert_eq!(names.len(), FAMILIES.len());
    }
}
