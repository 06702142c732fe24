//! Objectives: upper limits on a statistic of a latency, such as `ttft.p95 < 1 s`.
//!
//! One grammar serves scenarios, plans and the command line: `METRIC.STATISTIC < VALUE UNIT`, or `<=`. The metrics are those of [`Metric`]; the statistics
//! are `mean`, `max`, `median` and percentiles such as `p50` and `p99.9`.

use std::fmt;

use hwmodels::units::significant;

use crate::kernel::time::SimDuration;
use crate::metrics::definition::{Metric, Slo};

/// A number that is taken of a latency's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Statistic {
    Mean,
    Min,
    Max,
    Count,
    /// In [0, 1].
    Quantile(f64),
}

/// How a quantity is compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
}

/// `NAME COMPARISON NUMBER UNIT`, taken apart.
pub(crate) struct Clause<'a> {
    pub(crate) name: &'a str,
    pub(crate) comparison: Comparison,
    pub(crate) number: f64,
    pub(crate) unit: &'a str,
}

impl<'a> Clause<'a> {
    /// Reads a clause; what is wrong with it otherwise.
    pub(crate) fn parse(text: &'a str) -> Result<Clause<'a>, String> {
        let at = text
            .find(['<', '>', '=', '!'])
            .ok_or("no comparison (<, <=, >, >=, ==)")?;
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let (comparison, rest) = [
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("==", Comparison::Equal),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ]
        .into_iter()
        .find_map(|(sign, c)| rest.strip_prefix(sign).map(|rest| (c, rest)))
        .ok_or("the comparisons are <, <=, >, >= and ==")?;
        let (number, unit) = split_unit(rest.trim());
        let number: f64 = number
            .parse()
            .map_err(|_| format!("`{}` is not a number", rest.trim()))?;
        if !number.is_finite() {
            return Err(format!("`{number}` is not a finite number"));
        }
        Ok(Clause {
            name,
            comparison,
            number,
            unit,
        })
    }

    /// The statistic of a latency that it names, if it names a latency.
    pub(crate) fn latency(&self) -> Option<Result<(Metric, Statistic), String>> {
        let name = self.name;
        let (head, tail) = name.split_once('.').unwrap_or((name, ""));
        let metric = Metric::ALL
            .into_iter()
            .find(|m| m.name() == head || format!("{}_ms", m.name()) == head)?;
        Some(statistic(tail).map(|s| (metric, s)).ok_or_else(|| {
            format!(
                "`{head}` needs a statistic: {head}.mean, .min, .max, .n or a percentile such as {head}.p99, got `{name}`"
            )
        }))
    }

    /// Its value, a time [ms].
    pub(crate) fn milliseconds(&self) -> Result<f64, String> {
        let factor = match self.unit {
            "ns" => 1e-6,
            "us" | "\u{b5}s" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "min" => 60e3,
            "" => return Err("a latency needs a unit (ns, us, ms, s, min)".into()),
            other => return Err(format!("`{other}` is no unit of time (ns, us, ms, s, min)")),
        };
        Ok(self.number * factor)
    }
}

/// The number and the unit behind it.
fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| c == '%' || (c.is_alphabetic() && c != 'e' && c != 'E'))
        .unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

fn statistic(name: &str) -> Option<Statistic> {
    match name {
        "mean" => Some(Statistic::Mean),
        "min" => Some(Statistic::Min),
        "max" => Some(Statistic::Max),
        "n" => Some(Statistic::Count),
        "median" => Some(Statistic::Quantile(0.5)),
        _ => {
            let p: f64 = name.strip_prefix('p')?.parse().ok()?;
            (0.0..=100.0)
                .contains(&p)
                .then_some(Statistic::Quantile(p / 100.0))
        }
    }
}

/// Share of the requests that must keep the limits of a `[slo]` table [ratio].
pub const REQUIRED: f64 = 0.99;

/// An upper limit on a statistic of a latency metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyLimit {
    /// The metric.
    pub metric: Metric,
    /// The quantile that is limited [0, 1]; none: the mean.
    pub quantile: Option<f64>,
    /// The limit [ms].
    pub limit_ms: f64,
}

/// An objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// As the user wrote it.
    pub text: String,
    /// What it limits.
    pub limit: LatencyLimit,
    /// Whether the limit itself misses it.
    strict: bool,
}

/// Why a text is no objective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "SLO '{text}': {problem}; an objective is an upper limit on a latency, e.g. 'ttft.p99 < 500 ms', 'tpot.p95 < 40 ms' or 'e2e.mean < 10 s'"
)]
pub struct ObjectiveError {
    text: String,
    problem: String,
}

impl Objective {
    /// Reads an objective.
    ///
    /// # Errors
    /// The part that is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Objective, ObjectiveError> {
        Self::parse_parts(text).map_err(|problem| ObjectiveError {
            text: text.trim().to_owned(),
            problem,
        })
    }

    fn parse_parts(text: &str) -> Result<Objective, String> {
        let clause = Clause::parse(text)?;
        let name = clause.name;
        let strict = match clause.comparison {
            Comparison::Less => true,
            Comparison::AtMost => false,
            _ => return Err("the comparisons are < and <=".into()),
        };
        let (metric, statistic) = clause
            .latency()
            .ok_or_else(|| format!("`{name}` is no latency"))??;
        let quantile = match statistic {
            Statistic::Mean => None,
            Statistic::Max => Some(1.0),
            Statistic::Quantile(q) => Some(q),
            Statistic::Min | Statistic::Count => {
                return Err(format!("`{name}` is not what users wait for"));
            }
        };
        let limit_ms = clause.milliseconds()?;
        if limit_ms <= 0.0 {
            return Err("the limit must be above 0".into());
        }
        Ok(Objective {
            text: text.trim().to_owned(),
            limit: LatencyLimit {
                metric,
                quantile,
                limit_ms,
            },
            strict,
        })
    }

    /// The objective that 99 % of the requests keep `limit_ms`, as `[slo]` means it.
    pub(crate) fn of_limit(metric: Metric, limit_ms: f64) -> Objective {
        Objective {
            text: format!(
                "{}.p99 <= {} ms",
                metric.name(),
                hwmodels::units::plain(limit_ms)
            ),
            limit: LatencyLimit {
                metric,
                quantile: Some(REQUIRED),
                limit_ms,
            },
            strict: false,
        }
    }

    /// Name of what is limited, e.g. `TTFT p99`.
    pub fn label(&self) -> String {
        let metric = self.limit.metric.name().to_uppercase();
        match self.limit.quantile {
            None => format!("{metric} mean"),
            Some(1.0) => format!("{metric} max"),
            Some(q) => format!("{metric} p{}", significant(100.0 * q)),
        }
    }

    /// How far `value_ms` lies below the limit, as a share of it; negative above it.
    pub fn margin(&self, value_ms: f64) -> f64 {
        (self.limit.limit_ms - value_ms) / self.limit.limit_ms
    }

    /// Whether `value_ms` meets it.
    pub fn met(&self, value_ms: f64) -> bool {
        if self.strict {
            value_ms < self.limit.limit_ms
        } else {
            value_ms <= self.limit.limit_ms
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

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a request must keep to count as good: of the objectives on TTFT, TPOT and E2E that limit a percentile, the limit of the highest one. Objectives on means
/// and on other metrics ask nothing of a single request.
pub fn limits_of(objectives: &[Objective]) -> Slo {
    let limit = |metric: Metric| {
        objectives
            .iter()
            .filter(|o| o.limit.metric == metric)
            .filter_map(|o| Some((o.limit.quantile?, o.limit.limit_ms)))
            .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)))
            .map(|(_, ms)| SimDuration::from_secs(ms / 1e3))
    };
    Slo {
        ttft: limit(Metric::Ttft),
        tpot: limit(Metric::Tpot),
        e2e: limit(Metric::E2e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_an_upper_limit_on_a_latency() {
        let c = Objective::parse(" ttft.p99 < 500 ms ").unwrap();
        assert_eq!(
            (c.text.as_str(), c.label().as_str()),
            ("ttft.p99 < 500 ms", "TTFT p99")
        );
        assert!((c.margin(400.0) - 0.2).abs() < 1e-12);
        assert!(!c.met(500.0) && Objective::parse("ttft.p99 <= 500 ms").unwrap().met(500.0));
        let label = |text: &str| Objective::parse(text).unwrap().label();
        assert_eq!(label("tpot.mean < 40 ms"), "TPOT mean");
        assert_eq!(label("e2e.max < 1 min"), "E2E max");
        assert_eq!(label("itl.p99.9 < 1 s"), "ITL p99.9");
        for (wrong, why) in [
            ("ttft.p99 > 1 s", "the comparisons are < and <="),
            ("kv.peak_ratio < 1", "`kv.peak_ratio` is no latency"),
            ("ttft < 1 s", "`ttft` needs a statistic"),
            ("ttft.n < 5", "not what users wait for"),
            ("nothing", "no comparison"),
            ("ttft.p99 < 0 s", "above 0"),
            ("ttft.p99 < 5", "needs a unit"),
        ] {
            let e = Objective::parse(wrong).unwrap_err().to_string();
            assert!(e.starts_with("SLO '") && e.contains(why), "{wrong}: {e}");
        }
    }

    #[test]
    fn a_good_request_keeps_the_limit_of_the_highest_percentile() {
        let all = [
            "ttft.p50 < 300 ms",
            "ttft.p99 < 1 s",
            "tpot.mean < 20 ms",
            "itl.p99 < 1 s",
        ]
        .map(|t| Objective::parse(t).unwrap());
        let slo = limits_of(&all);
        assert_eq!(slo.ttft, Some(SimDuration(1_000_000_000)));
        assert_eq!((slo.tpot, slo.e2e), (None, None));
    }
}
