//! Latencies, as HDR histograms.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde_json::{Value, json};

/// The longest latency that is recorded exactly, in ns: an hour. Longer ones count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// A histogram of latencies with three significant digits, and their exact sum.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, 3)
                .expect("the bounds are constants that fit"),
            sum_ns: 0,
        }
    }
}

impl Latencies {
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
        self.sum_ns += u128::from(latency_ns);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The mean in ns. `None` without latencies.
    pub(crate) fn mean_ns(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum_ns as f64 / self.count() as f64)
    }

    /// `{count, mean_ns, min_ns, p50_ns, ..., max_ns, hdr}`; the figures are null without latencies. `hdr` is the whole
    /// histogram, in HdrHistogram's compressed V2 format, as base64. It is null unless requested.
    pub(crate) fn to_json(&self, with_histogram: bool) -> Value {
        let any = self.count() > 0;
        let quantile = |fraction| any.then(|| self.histogram.value_at_quantile(fraction));
        let hdr = with_histogram.then(|| {
            let mut bytes = Vec::new();
            V2DeflateSerializer::new()
                .serialize(&self.histogram, &mut bytes)
                .expect("a histogram is written to memory");
            STANDARD.encode(bytes)
        });
        json!({
            "count": self.count(),
            "mean_ns": self.mean_ns(),
            "min_ns": any.then(|| self.histogram.min()),
            "p50_ns": quantile(0.50),
            "p90_ns": quantile(0.90),
            "p95_ns": quantile(0.95),
            "p99_ns": quantile(0.99),
            "p999_ns": quantile(0.999),
            "max_ns": any.then(|| self.histogram.max()),
            "hdr": hdr,
        })
    }
}
