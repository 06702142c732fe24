//! The objective: whether it holds, and by how much.

use serde::{Deserialize, Serialize};

use crate::kernel::time::SimDuration;
use crate::record::RunRecord;
use crate::report::latency::{LatencySummary, to_ms};

/// Share of the requests that must meet the objective for it to hold [ratio].
pub const REQUIRED: f64 = 0.99;

/// The objective [ms], how often it was met, and whether it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SloReport {
    /// Limit of TTFT.
    pub ttft_ms: Option<f64>,
    /// Limit of TPOT.
    pub tpot_ms: Option<f64>,
    /// Limit of E2E latency.
    pub e2e_ms: Option<f64>,
    /// Share of the requests finished in the window that met every limit; null without limits or requests.
    pub attainment_ratio: Option<f64>,
    /// `attainment_ratio` times the share of the ended requests that finished: rejected, timed-out and failed ones miss
    /// the objective. Null without limits or where no request ended.
    pub met_ratio: Option<f64>,
    /// Whether `met_ratio` is at least 0.99; null where that is.
    pub holds: Option<bool>,
    /// The limits against the 99th percentiles, where both exist.
    pub margins: Vec<Margin>,
}

/// A limit against the 99th percentile of its metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Margin {
    /// The metric: `ttft`, `tpot` or `e2e`.
    pub metric: String,
    /// Its limit [ms].
    pub limit_ms: f64,
    /// Its 99th percentile [ms].
    pub p99_ms: f64,
    /// How far the percentile lies below the limit, as a share of the limit; negative above it [ratio].
    pub margin_ratio: f64,
}

impl SloReport {
    /// Holds the objective of `record` against its latencies.
    pub(crate) fn new(
        record: &RunRecord,
        ttft: &LatencySummary,
        tpot: &LatencySummary,
        e2e: &LatencySummary,
    ) -> SloReport {
        let limit = |d: Option<SimDuration>| d.map(|d| to_ms(d.0 as f64));
        let slo = &record.slo;
        let limits = [
            ("ttft", limit(slo.ttft), ttft),
            ("tpot", limit(slo.tpot), tpot),
            ("e2e", limit(slo.e2e), e2e),
        ];
        let margin = |(metric, limit, measured): &(&str, Option<f64>, &LatencySummary)| {
            let (limit_ms, p99_ms) = (limit.filter(|l| *l > 0.0)?, measured.p99?);
            Some(Margin {
                metric: (*metric).to_string(),
                limit_ms,
                p99_ms,
                margin_ratio: (limit_ms - p99_ms) / limit_ms,
            })
        };
        let w = &record.window;
        let attainment_ratio =
            (!slo.is_empty() && w.finished > 0).then(|| w.good as f64 / w.finished as f64);
        let c = &record.counts;
        let lost = c.rejected + c.timed_out + c.failed;
        let ended = c.finished + lost;
        let met_ratio = if slo.is_empty() || ended == 0 {
            None
        } else if c.finished == 0 {
            Some(0.0)
        } else {
            attainment_ratio.map(|a| a * c.finished as f64 / ended as f64)
        };
        SloReport {
            ttft_ms: limits[0].1,
            tpot_ms: limits[1].1,
            e2e_ms: limits[2].1,
            attainment_ratio,
            met_ratio,
            holds: met_ratio.map(|met| met >= REQUIRED),
            margins: limits.iter().filter_map(margin).collect(),
        }
    }
}
