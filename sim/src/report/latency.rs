//! The percentiles of a latency.

use serde::{Deserialize, Serialize};

use crate::metrics::definition::Metric;
use crate::metrics::distribution::{Distribution, quantiles};
use crate::metrics::objective::{LatencyLimit, Statistic};
use crate::record::RunRecord;

/// Statistics of one latency metric [ms]; null where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LatencySummary {
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Values measured.
    pub n: u64,
}

/// Nanoseconds as milliseconds; a division, so that 5 500 000 ns are 5.5 ms exactly.
pub(crate) fn to_ms(ns: f64) -> f64 {
    ns / 1e6
}

impl LatencySummary {
    /// The exact statistics of `values` [ns].
    pub(super) fn of_values(mut values: Vec<u64>) -> LatencySummary {
        let n = values.len();
        let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
        let mean = (n > 0).then(|| sum as f64 / n as f64);
        LatencySummary::of_figures(n as u64, mean, quantiles(&mut values, PERCENTILES))
    }

    /// The statistics of `metric` in `record`.
    pub fn of(record: &RunRecord, metric: Metric) -> LatencySummary {
        let distribution = record.latencies.of(metric);
        LatencySummary::of_figures(
            distribution.count(),
            distribution.mean_ns(),
            record.quantiles_ns(metric, PERCENTILES),
        )
    }

    /// The statistics of `distribution`, within [`crate::metrics::distribution::RELATIVE_ERROR`].
    pub(super) fn of_distribution(distribution: &Distribution) -> LatencySummary {
        LatencySummary::of_figures(
            distribution.count(),
            distribution.mean_ns(),
            PERCENTILES.map(|p| distribution.quantile_ns(p)),
        )
    }

    /// From figures in nanoseconds.
    fn of_figures(n: u64, mean: Option<f64>, percentiles: [Option<f64>; 4]) -> LatencySummary {
        let [p50, p90, p95, p99] = percentiles.map(|ns| ns.map(to_ms));
        LatencySummary {
            mean: mean.map(to_ms),
            p50,
            p90,
            p95,
            p99,
            n,
        }
    }
}

/// The percentiles of a summary.
const PERCENTILES: [f64; 4] = [0.5, 0.9, 0.95, 0.99];

impl LatencyLimit {
    /// The statistic in `record` [ms]; none where nothing was measured.
    pub fn of(&self, record: &RunRecord) -> Option<f64> {
        let statistic = self.quantile.map_or(Statistic::Mean, Statistic::Quantile);
        latency_ms(record, self.metric, statistic)
    }
}

/// A statistic of `metric` over the measured requests [ms; a count]; none where nothing was measured.
pub(crate) fn latency_ms(record: &RunRecord, metric: Metric, statistic: Statistic) -> Option<f64> {
    let d = record.latencies.of(metric);
    match statistic {
        Statistic::Mean => d.mean_ns().map(to_ms),
        Statistic::Min => d.min().map(|m| to_ms(m.0 as f64)),
        Statistic::Max => d.max().map(|m| to_ms(m.0 as f64)),
        Statistic::Count => Some(d.count() as f64),
        Statistic::Quantile(p) => record.quantile_ns(metric, p).map(to_ms),
    }
}
