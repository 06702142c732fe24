//! Service level objectives of a plan: upper limits on latencies, such as `ttft.p99 < 500 ms`.

use serde::{Deserialize, Serialize};
use sim::kernel::time::SimDuration;
use sim::record::RunRecord;
use sim::report::stationarity::Stationarity;

use crate::interval::{self, Range, Side, in_order};

/// One objective.
pub use sim::metrics::Objective as Condition;

/// The interval of the statistic that `condition` limits in `record` [ms], none of inter-token latencies, whose values are not kept, and of the largest
/// value; and where the statistic of a run without end lies beside the limit. `value` is that of `record`.
fn side_of(condition: &Condition, record: &RunRecord, value: Option<f64>) -> (Option<Range>, Side) {
    let (metric, limit) = (condition.limit.metric, condition.limit.limit_ms);
    // TPOT has no value where every answer is one token: nothing to miss.
    let Some(value) = value else {
        return (None, Side::Below);
    };
    let values = in_order(record, |r| metric.of(r).map(SimDuration::as_millis));
    let found = match condition.limit.quantile {
        _ if values.is_empty() => None,
        Some(1.0) => None,
        None => interval::of_mean(&values, limit),
        Some(q) => interval::of_quantile(&values, q, limit),
    };
    match found {
        Some((range, side)) => (Some(range), side),
        // Inter-token latencies are of so many tokens that the value stands; the largest value never does.
        None if values.is_empty() || condition.limit.quantile == Some(1.0) => {
            let (low, high) = (value / (1.0 + CLEAR), value * (1.0 + CLEAR));
            (None, Side::of(limit, low, high))
        }
        // Too few to say anything.
        None => (None, Side::Open),
    }
}

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
    /// Intervals of the values that a run without end would have, in the same order [ms]; null where nothing was measured, and of inter-token latencies.
    #[serde(default)]
    pub intervals_ms: Vec<Option<Range>>,
    /// Whether a longer run would say the same of `holds`: every value stands clear of its limit by its interval.
    #[serde(default)]
    pub sure: bool,
    /// Requests of the run.
    #[serde(default)]
    pub requests: u64,
}

/// How far a value without an interval must lie from its limit to stand clear of it, as a share of the value.
const CLEAR: f64 = 0.02;

impl Standing {
    /// That of a deployment of which nothing is left.
    pub fn nothing() -> Standing {
        Standing {
            margin_ratio: f64::NEG_INFINITY,
            sure: true,
            ..Standing::default()
        }
    }

    /// How `record` stood against `conditions`. Under a `steady` load a growing queue fails, whatever the latencies of so short a run.
    pub fn of(record: &RunRecord, conditions: &[Condition], steady: bool) -> Standing {
        let values_ms: Vec<Option<f64>> = conditions.iter().map(|c| c.limit.of(record)).collect();
        let c = &record.counts;
        let lost = c.rejected + c.timed_out + c.failed;
        let growing = steady && Stationarity::of(record).growing();
        let margin_ratio = conditions
            .iter()
            .zip(&values_ms)
            .filter_map(|(c, v)| v.map(|v| c.margin(v)))
            .fold(1.0, f64::min);
        let met = conditions
            .iter()
            .zip(&values_ms)
            .all(|(c, v)| v.is_none_or(|v| c.met(v)));
        let (intervals_ms, sides): (Vec<Option<Range>>, Vec<Side>) = (conditions.iter())
            .zip(&values_ms)
            .map(|(c, v)| side_of(c, record, *v))
            .unzip();
        let misses = sides.contains(&Side::Above);
        let failed = lost > 0 || growing || c.finished == 0;
        Standing {
            holds: met && !failed,
            sure: failed || misses || sides.iter().all(|s| *s == Side::Below),
            values_ms,
            margin_ratio,
            lost,
            growing,
            intervals_ms,
            requests: c.offered,
        }
    }
}
