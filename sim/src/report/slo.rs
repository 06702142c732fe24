//! The objective: whether it holds, and by how much.

use serde::{Deserialize, Serialize};

use crate::kernel::time::SimDuration;
use crate::metrics::objective::{LatencyLimit, Objective};

pub use crate::metrics::objective::REQUIRED;

use crate::record::RunRecord;
use crate::report::latency::{LatencySummary, to_ms};

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
    /// Whether each of `objectives` is met, or, without any, `met_ratio` is at least 0.99; null where that is not known.
    pub holds: Option<bool>,
    /// The limits against the 99th percentiles, where both exist.
    pub margins: Vec<Margin>,
    /// The objectives of a scenario that lists them; left out where it gives limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<ObjectiveReport>,
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

/// An objective such as `ttft.p95 < 1 s`, and what was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ObjectiveReport {
    /// As written.
    pub objective: String,
    /// What is limited, e.g. `TTFT p95`.
    pub label: String,
    /// The limit [ms].
    pub limit_ms: f64,
    /// The statistic over the finished requests, each that was rejected, timed out or failed counted as one that is never answered [ms]; null where nothing was
    /// measured, and where the percentile falls on those.
    pub value_ms: Option<f64>,
    /// How far the value lies below the limit, as a share of the limit; negative above it [ratio]; null without a value.
    pub margin_ratio: Option<f64>,
    /// Whether it is met.
    pub met: bool,
}

impl ObjectiveReport {
    /// `objective` in `record`, in which `lost_ratio` of the ended requests were lost.
    fn new(objective: &Objective, record: &RunRecord, lost_ratio: f64) -> ObjectiveReport {
        let limit = objective.limit;
        let value_ms = match limit.quantile {
            _ if lost_ratio == 0.0 => limit.of(record),
            // The slowest are those that never came back.
            Some(q) if q <= 1.0 - lost_ratio => LatencyLimit {
                quantile: Some(q / (1.0 - lost_ratio)),
                ..limit
            }
            .of(record),
            _ => None,
        };
        // TPOT has no value where every answer is one token: nothing to miss.
        let nothing_to_miss = lost_ratio == 0.0 && record.counts.finished > 0;
        ObjectiveReport {
            objective: objective.text.clone(),
            label: objective.label(),
            limit_ms: limit.limit_ms,
            value_ms,
            margin_ratio: value_ms.map(|v| objective.margin(v)),
            met: value_ms.map_or(nothing_to_miss, |v| objective.met(v)),
        }
    }
}

impl SloReport {
    /// Smallest margin of any objective, or of any limit against its 99th percentile [ratio]; none without any.
    pub fn smallest_margin(&self) -> Option<f64> {
        let of_limits = self.margins.iter().map(|m| m.margin_ratio);
        let of_objectives = self.objectives.iter().filter_map(|o| o.margin_ratio);
        if self.objectives.is_empty() {
            of_limits.min_by(f64::total_cmp)
        } else {
            of_objectives.min_by(f64::total_cmp)
        }
    }

    /// Whether the run had an objective of any kind.
    pub fn is_given(&self) -> bool {
        !self.objectives.is_empty() || self.ttft_ms.or(self.tpot_ms).or(self.e2e_ms).is_some()
    }

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
        let lost_ratio = lost as f64 / ended.max(1) as f64;
        let objectives: Vec<ObjectiveReport> = (record.info.objectives.iter())
            .map(|o| ObjectiveReport::new(o, record, lost_ratio))
            .collect();
        let holds = match objectives.is_empty() {
            true => met_ratio.map(|met| met >= REQUIRED),
            false => (ended > 0).then(|| objectives.iter().all(|o| o.met)),
        };
        SloReport {
            ttft_ms: limits[0].1,
            tpot_ms: limits[1].1,
            e2e_ms: limits[2].1,
            attainment_ratio,
            met_ratio,
            holds,
            margins: limits.iter().filter_map(margin).collect(),
            objectives,
        }
    }
}
