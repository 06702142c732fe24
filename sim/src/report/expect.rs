//! Conditions on a run, such as `ttft.p99 < 500 ms`, for tests and CI.
//!
//! A condition is `QUANTITY COMPARISON VALUE [UNIT]`. Quantities are the latency metrics with a statistic (`ttft.p99`,
//! `e2e.mean`, any percentile as `p50`, `p99.9`), and the numbers of the JSON report by their path
//! (`throughput.requests_per_s`, `requests.rejected`, `kv.peak_ratio`, `bound_by.idle`).

use std::fmt;

use crate::metrics::definition::Metric;
use crate::metrics::objective::{Clause, Comparison, Statistic};
use crate::record::RunRecord;
use crate::report::figures::figure;
use crate::report::latency::latency_ms;
use crate::report::summary::RunReport;

/// What is compared.
#[derive(Clone, Debug, PartialEq)]
enum Quantity {
    /// A statistic of a latency metric [ms].
    Latency(Metric, Statistic),
    /// A number of the report, by path.
    Number(String),
}

/// A parsed condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    text: String,
    quantity: Quantity,
    comparison: Comparison,
    /// In milliseconds for latencies.
    value: f64,
}

/// Why a condition cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--expect '{text}': {problem}; write e.g. 'ttft.p99 < 500 ms' or 'throughput.requests_per_s >= 2'"
)]
pub struct ExpectError {
    text: String,
    problem: String,
}

/// What a condition came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it holds. A quantity that was not measured meets nothing.
    pub met: bool,
    /// The quantity; none where nothing was measured.
    pub actual: Option<f64>,
    /// One line: the condition, and what was found.
    pub line: String,
}

impl Expectation {
    /// Reads a condition.
    ///
    /// # Errors
    /// Names the part that is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Expectation, ExpectError> {
        Self::parse_parts(text).map_err(|problem| ExpectError {
            text: text.to_string(),
            problem,
        })
    }

    fn parse_parts(text: &str) -> Result<Expectation, String> {
        let clause = Clause::parse(text)?;
        let (number, unit) = (clause.number, clause.unit);
        let quantity = quantity(&clause)?;
        let value = match &quantity {
            Quantity::Latency(_, Statistic::Count) if unit.is_empty() => number,
            Quantity::Latency(_, Statistic::Count) => return Err("a count has no unit".into()),
            Quantity::Latency(..) => clause.milliseconds()?,
            Quantity::Number(_) if unit.is_empty() => number,
            Quantity::Number(path) if unit == "%" && is_share(path) => number / 100.0,
            Quantity::Number(path) => {
                let share = if is_share(path) { " other than %" } else { "" };
                return Err(format!("`{path}` takes no unit{share}, got `{unit}`"));
            }
        };
        Ok(Expectation {
            text: text.trim().to_string(),
            quantity,
            comparison: clause.comparison,
            value,
        })
    }

    /// Checks the condition on a run.
    pub fn check(&self, record: &RunRecord, report: &RunReport) -> Verdict {
        let actual = match &self.quantity {
            Quantity::Latency(metric, statistic) => latency_ms(record, *metric, *statistic),
            Quantity::Number(path) => number(report, path),
        };
        let met = actual.is_some_and(|a| match self.comparison {
            Comparison::Less => a < self.value,
            Comparison::AtMost => a <= self.value,
            Comparison::Greater => a > self.value,
            Comparison::AtLeast => a >= self.value,
            Comparison::Equal => a == self.value,
        });
        let found = match (actual, &self.quantity) {
            (None, _) => "it was not measured".to_string(),
            (Some(a), Quantity::Latency(_, Statistic::Count) | Quantity::Number(_)) => {
                format!("it is {}", figure(a))
            }
            (Some(a), Quantity::Latency(..)) => format!("it is {} ms", figure(a)),
        };
        let word = if met { "met" } else { "NOT met" };
        Verdict {
            met,
            actual,
            line: format!("expectation {word}: {} ({found})", self.text),
        }
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_share(path: &str) -> bool {
    path.ends_with("_ratio") || path.starts_with("bound_by.") || path.starts_with("blocked_by.")
}

fn quantity(clause: &Clause<'_>) -> Result<Quantity, String> {
    let name = clause.name;
    if name.is_empty() {
        return Err("nothing to compare".into());
    }
    if let Some(latency) = clause.latency() {
        return latency.map(|(metric, statistic)| Quantity::Latency(metric, statistic));
    }
    let known = paths(&RunReport::empty());
    if known.iter().any(|p| p == name) {
        return Ok(Quantity::Number(name.to_string()));
    }
    let latencies = Metric::ALL.iter().map(|m| format!("{}.p99", m.name()));
    let nearest = known
        .iter()
        .cloned()
        .chain(latencies)
        .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)))
        .unwrap_or_default();
    Err(format!(
        "`{name}` is not a quantity; did you mean `{nearest}`?"
    ))
}

/// The numbers of a report, by their path in its JSON.
pub struct Numbers(serde_json::Value);

impl Numbers {
    /// Those of `report`.
    pub fn of(report: &RunReport) -> Numbers {
        Numbers(serde_json::to_value(report).unwrap_or_default())
    }

    /// The number at `path`, 1 for true and 0 for false; none where it is null.
    pub fn at(&self, path: &str) -> Option<f64> {
        let value = path
            .split('.')
            .try_fold(&self.0, |value, key| value.get(key))?;
        match value {
            serde_json::Value::Bool(b) => Some(f64::from(u8::from(*b))),
            other => other.as_f64(),
        }
    }
}

/// The number at `path` of the report as JSON; none where it is null.
pub fn number(report: &RunReport, path: &str) -> Option<f64> {
    Numbers::of(report).at(path)
}

/// Paths of the report's numbers, null ones included.
fn paths(report: &RunReport) -> Vec<String> {
    fn walk(value: &serde_json::Value, prefix: &str, out: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map {
                    let path = if prefix.is_empty() {
                        key.clone()
                    } else {
                        format!("{prefix}.{key}")
                    };
                    walk(value, &path, out);
                }
            }
            serde_json::Value::Number(_) | serde_json::Value::Bool(_) | serde_json::Value::Null => {
                out.push(prefix.to_string())
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    if let Ok(json) = serde_json::to_value(report) {
        walk(&json, "", &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::time::{SimDuration, SimTime};
    use crate::metrics::{RecordOptions, Recorder};
    use crate::record::{RequestRow, RunInfo};
    use crate::request::Outcome;

    fn run() -> (RunRecord, RunReport) {
        let mut r = Recorder::new(&RecordOptions::default());
        for i in 0..10u64 {
            r.offered(SimTime(0));
            r.request(&RequestRow {
                id: i as u32,
                stream: 0,
                replica: 0,
                prompt_tokens: 10,
                cached_tokens: 0,
                output_tokens: 1,
                preemptions: 0,
                arrival: SimTime(0),
                first_scheduled: SimTime(0),
                first_token: SimTime((i + 1) * 1_000_000),
                end: SimTime((i + 1) * 1_000_000),
                outcome: Outcome::Finished,
            });
        }
        let record = r.finish(
            SimTime::ZERO + SimDuration(1_000_000_000),
            RunInfo::default(),
        );
        let record = record.unwrap();
        let report = RunReport::new(&record, 0.5);
        (record, report)
    }

    fn met(text: &str) -> bool {
        let (record, report) = run();
        Expectation::parse(text)
            .unwrap()
            .check(&record, &report)
            .met
    }

    #[test]
    fn conditions_compare_in_the_unit_given() {
        assert!(met("ttft.p50 <= 5.5 ms"));
        assert!(!met("ttft.p50 < 5500 us"));
        assert!(met("ttft.p50 < 0.0056 s"));
        assert!(met("e2e.max == 10 ms"));
        assert!(met("ttft_ms.p99.9 > 9.9ms"));
        assert!(met("ttft.n == 10"));
        assert!(met("throughput.requests_per_s >= 10"));
        assert!(met("requests.rejected == 0"));
        assert!(met("kv.peak_ratio < 50 %"));
        assert!(!met("kv.peak_ratio >= 1e-3"));
        assert!(met("rejections.queue_full == 0"));
    }

    #[test]
    fn whether_the_objective_holds_can_be_asked_for() {
        let (record, mut report) = run();
        let holds = Expectation::parse("slo.holds == 1").unwrap();
        assert!(!holds.check(&record, &report).met, "no objective was given");
        report.slo.holds = Some(false);
        assert!(!holds.check(&record, &report).met);
        report.slo.holds = Some(true);
        assert!(holds.check(&record, &report).met);
    }

    #[test]
    fn what_was_not_measured_meets_nothing() {
        let (record, report) = run();
        for text in ["tpot.p99 < 1 s", "tpot.p99 > 0 s", "cost.usd_per_hour >= 0"] {
            let verdict = Expectation::parse(text).unwrap().check(&record, &report);
            assert!(!verdict.met);
            assert!(verdict.line.contains("not measured"), "{}", verdict.line);
        }
    }

    #[test]
    fn errors_name_the_wrong_part_and_a_right_one() {
        for (text, want) in [
            ("ttft.p99 500 ms", "no comparison"),
            ("ttft.p99 < 500", "needs a unit"),
            ("ttft.p99 < 5 parsec", "no unit of time"),
            ("ttft < 5 ms", "needs a statistic"),
            ("ttft.p101 < 5 ms", "needs a statistic"),
            ("tfft.p99 < 5 ms", "did you mean `ttft.p99`"),
            (
                "throughput.request_per_s > 1",
                "did you mean `throughput.requests_per_s`",
            ),
            ("ttft.p99 != 5 ms", "the comparisons are"),
            ("ttft.p99 < lots ms", "is not a number"),
            ("ttft.p99 < NaN ms", "not a"),
            ("kv.blocks > 5 ms", "takes no unit"),
            ("", "no comparison"),
            ("< 5 ms", "nothing to compare"),
        ] {
            let error = Expectation::parse(text).unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
