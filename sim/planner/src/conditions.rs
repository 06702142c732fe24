//! Service level objectives of a plan: upper limits on latencies, such as `ttft.p99 < 500 ms`.

use serde::{Deserialize, Serialize};
use sim::kernel::time::SimDuration;
use sim::metrics::definition::Metric;
use sim::record::RunRecord;
use sim::report::Expectation;
use sim::report::expect::LatencyLimit;
use sim::report::stationarity::Stationarity;

use crate::Error;
use crate::interval::{self, Range, Side, in_order};

/// One objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// As the user wrote it.
    pub text: String,
    /// What it limits.
    pub limit: LatencyLimit,
    /// Whether the limit itself still meets it.
    strict: bool,
}

impl Condition {
    /// Reads an objective.
    ///
    /// # Errors
    /// What is no condition, or limits something other than a latency from above.
    pub fn parse(text: &str) -> Result<Condition, Error> {
        let read = Expectation::parse(text)
            .map_err(|e| Error::input(e.to_string().replacen("--expect", "SLO", 1)))?;
        let limit = read.latency_limit().filter(|l| l.limit_ms > 0.0);
        let Some(limit) = limit else {
            return Err(Error::input(format!(
                "SLO '{text}': a plan takes upper limits on latencies, e.g. 'ttft.p99 < 500 ms', 'tpot.p95 < 40 ms' or 'e2e.mean < 10 s'"
            )));
        };
        Ok(Condition {
            text: text.trim().to_string(),
            limit,
            strict: !text.contains("<="),
        })
    }

    /// Name of what is limited, e.g. `TTFT p99`.
    pub fn label(&self) -> String {
        let metric = self.limit.metric.name().to_uppercase();
        match self.limit.quantile {
            None => format!("{metric} mean"),
            Some(1.0) => format!("{metric} max"),
            Some(q) => format!("{metric} p{}", hwmodels::units::significant(100.0 * q)),
        }
    }

    /// How far `value` [ms] lies below the limit, as a share of it; negative above it.
    pub fn margin(&self, value: f64) -> f64 {
        (self.limit.limit_ms - value) / self.limit.limit_ms
    }

    fn met(&self, value: f64) -> bool {
        if self.strict {
            value < self.limit.limit_ms
        } else {
            value <= self.limit.limit_ms
        }
    }

    /// The interval of its statistic in `record` [ms], none of inter-token latencies, whose values are not kept, and of the largest value; and where the
    /// statistic of a run without end lies beside the limit. `value` is that of `record`.
    fn stands(&self, record: &RunRecord, value: Option<f64>) -> (Option<Range>, Side) {
        let (metric, limit) = (self.limit.metric, self.limit.limit_ms);
        // TPOT has no value where every answer is one token: nothing to miss.
        let Some(value) = value else {
            return (None, Side::Below);
        };
        let values = in_order(record, |r| metric.of(r).map(SimDuration::as_millis));
        let found = match self.limit.quantile {
            _ if values.is_empty() => None,
            Some(1.0) => None,
            None => interval::of_mean(&values, limit),
            Some(q) => interval::of_quantile(&values, q, limit),
        };
        match found {
            Some((range, side)) => (Some(range), side),
            // Inter-token latencies are of so many tokens that the value stands; the largest value never does.
            None if values.is_empty() || self.limit.quantile == Some(1.0) => {
                let (low, high) = (value / (1.0 + CLEAR), value * (1.0 + CLEAR));
                (None, Side::of(limit, low, high))
            }
            // Too few to say anything.
            None => (None, Side::Open),
        }
    }

    /// Whether it is a limit on the time to first token, or on a time that holds it.
    pub fn bounds_ttft(&self) -> bool {
        matches!(self.limit.metric, Metric::Ttft | Metric::E2e)
    }

    /// Whether it limits the time between tokens.
    pub fn bounds_tpot(&self) -> bool {
        matches!(self.limit.metric, Metric::Tpot | Metric::Itl)
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
            .map(|(c, v)| c.stands(record, *v))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_an_upper_limit_on_a_latency() {
        let c = Condition::parse(" ttft.p99 < 500 ms ").unwrap();
        assert_eq!(
            (c.text.as_str(), c.label().as_str()),
            ("ttft.p99 < 500 ms", "TTFT p99")
        );
        assert!((c.margin(400.0) - 0.2).abs() < 1e-12);
        assert!(!c.met(500.0) && Condition::parse("ttft.p99 <= 500 ms").unwrap().met(500.0));
        assert_eq!(
            Condition::parse("tpot.mean < 40 ms").unwrap().label(),
            "TPOT mean"
        );
        for wrong in [
            "ttft.p99 > 1 s",
            "kv.peak_ratio < 1",
            "ttft < 1 s",
            "nothing",
            "ttft.p99 < 0 s",
        ] {
            let e = Condition::parse(wrong).unwrap_err().to_string();
            assert!(e.contains("SLO") && !e.contains("--expect"), "{e}");
        }
    }
}
