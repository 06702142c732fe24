//! Service level objectives of a plan: upper limits on latencies, such as `ttft.p99 < 500 ms`.

use serde::{Deserialize, Serialize};
use sim::record::RunRecord;
use sim::report::stationarity::Stationarity;

/// One objective.
pub use sim::metrics::Objective as Condition;

/// How a run stood against the objectives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Standing {
    /// Value of each objective's statistic in the order of the question [ms]; null where nothing was measured.
    pub values_ms: Vec<Option<f64>>,
    /// Smallest margin of any objective, as a share of its limit; negative: missed.
    pub margin_ratio: f64,
    /// Requests that were rejected, timed out or failed.
    pub lost: u64,
    /// Whether more requests came than ended, beyond chance, though the load is steady.
    pub growing: bool,
    /// All objectives met, no request lost, no growing queue.
    pub holds: bool,
}

impl Standing {
    /// How `record` stood against `conditions`. Under a `steady` load a growing queue fails, whatever the latencies of so short a run.
    pub fn of(record: &RunRecord, conditions: &[Condition], steady: bool) -> Standing {
        let values_ms: Vec<Option<f64>> = conditions.iter().map(|c| c.limit.of(record)).collect();
        let c = &record.counts;
        let lost = c.rejected + c.timed_out + c.failed;
        let growing = steady && Stationarity::of(record).growing();
        let margin_ratio = conditions
            .iter()
            .zip(&values_ms)
            // TPOT has no value where every answer is one token: nothing to miss.
            .filter_map(|(c, v)| v.map(|v| c.margin(v)))
            .fold(1.0, f64::min);
        let met = conditions
            .iter()
            .zip(&values_ms)
            .all(|(c, v)| v.is_none_or(|v| c.met(v)));
        Standing {
            holds: met && lost == 0 && !growing && c.finished > 0,
            values_ms,
            margin_ratio,
            lost,
            growing,
        }
    }
}
