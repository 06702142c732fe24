//! One scenario run with several seeds: each figure's mean over the replications, with its confidence interval.

use serde::{Deserialize, Serialize};

use crate::metrics::interval::Interval;
use crate::report::expect::number;
use crate::report::summary::{CONTRACT, RunReport};
use crate::report::text::figure;

/// Confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// The figures that replications and comparisons are about: path in the report, label, and whether more is better.
pub const FIGURES: [Figure; 20] = [
    Figure::new("ttft_ms.mean", "TTFT mean [ms]"),
    Figure::new("ttft_ms.p50", "TTFT p50 [ms]"),
    Figure::new("ttft_ms.p99", "TTFT p99 [ms]"),
    Figure::new("itl_ms.mean", "ITL mean [ms]"),
    Figure::new("itl_ms.p99", "ITL p99 [ms]"),
    Figure::new("tpot_ms.mean", "TPOT mean [ms]"),
    Figure::new("tpot_ms.p99", "TPOT p99 [ms]"),
    Figure::new("e2e_ms.mean", "E2E mean [ms]"),
    Figure::new("e2e_ms.p50", "E2E p50 [ms]"),
    Figure::new("e2e_ms.p99", "E2E p99 [ms]"),
    Figure::new("queue_ms.mean", "queue mean [ms]"),
    Figure::new("queue_ms.p99", "queue p99 [ms]"),
    Figure::new("throughput.requests_per_s", "requests/s"),
    Figure::new("throughput.output_tokens_per_s", "output tokens/s"),
    Figure::new("throughput.goodput_per_s", "goodput [req/s]"),
    Figure::new("slo.attainment_ratio", "SLO attainment"),
    Figure::new("kv.mean_ratio", "KV use, mean"),
    Figure::new("kv.peak_ratio", "KV use, peak"),
    Figure::new("replicas.busy_ratio", "busy"),
    Figure::new("cost.usd_per_million_output_tokens", "USD/M output tokens"),
];

/// A number of the report with its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Path in the JSON report.
    pub path: &'static str,
    /// Label with its unit.
    pub label: &'static str,
}

impl Figure {
    const fn new(path: &'static str, label: &'static str) -> Figure {
        Figure { path, label }
    }
}

/// Replications of one scenario (`run --seeds N --json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Replications {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the scenario.
    pub name: String,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// The figures that were measured, in the order of reports.
    pub figures: Vec<FigureInterval>,
    /// The single runs, in the order of their seeds.
    pub runs: Vec<RunReport>,
}

/// One figure over the replications.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FigureInterval {
    /// Path in the run's report, e.g. `ttft_ms.p99`.
    pub path: String,
    /// Mean and Student-t interval; `n` counts replications.
    #[serde(flatten)]
    pub interval: Interval,
}

impl Replications {
    /// Summarises runs of one scenario that differ in their seed; at least one.
    pub fn new(runs: Vec<RunReport>) -> Replications {
        let figures = FIGURES
            .iter()
            .filter_map(|f| {
                let values: Vec<f64> = runs.iter().filter_map(|r| number(r, f.path)).collect();
                Some(FigureInterval {
                    path: f.path.to_string(),
                    interval: Interval::of(&values, CONFIDENCE)?,
                })
            })
            .collect();
        Replications {
            contract: CONTRACT,
            name: runs.first().map_or(String::new(), |r| r.name.clone()),
            confidence: CONFIDENCE,
            figures,
            runs,
        }
    }

    /// The table on the terminal.
    pub fn render(&self) -> String {
        let seeds: Vec<String> = self.runs.iter().map(|r| r.seed.to_string()).collect();
        // Runs of one load have its seed, whatever the cluster drew.
        let same = self.runs.len() > 1 && seeds.iter().all(|s| *s == seeds[0]);
        let load = if same {
            format!("of the load of seed {}", seeds[0])
        } else {
            format!("with seeds {}", seeds.join(", "))
        };
        let mut out = format!(
            "{}\n  {} replications {}\n\n  {:<22} {:>12} {:>14} {:>6}\n",
            self.name,
            self.runs.len(),
            load,
            "",
            "mean",
            format!("+- ({:.0} %)", 100.0 * self.confidence),
            "runs"
        );
        for row in &self.figures {
            let half = row.interval.half_width.map_or("-".into(), figure);
            out += &format!(
                "  {:<22} {:>12} {:>14} {:>6}\n",
                label(&row.path),
                figure(row.interval.mean),
                half,
                row.interval.n
            );
        }
        out
    }
}

/// The label of a figure.
pub(crate) fn label(path: &str) -> &str {
    FIGURES
        .iter()
        .find(|f| f.path == path)
        .map_or(path, |f| f.label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_a_number_of_the_report() {
        let report = RunReport::empty();
        let json = serde_json::to_value(&report).unwrap();
        for f in FIGURES {
            let value = f.path.split('.').try_fold(&json, |v, key| v.get(key));
            let value = value.unwrap_or_else(|| panic!("no {}", f.path));
            assert!(value.is_number() || value.is_null(), "{}", f.path);
        }
    }

    #[test]
    fn figures_without_a_value_are_left_out() {
        let r = Replications::new(vec![RunReport::empty(), RunReport::empty()]);
        assert!(r.figures.iter().all(|f| f.path != "ttft_ms.mean"));
        let busy = r.figures.iter().find(|f| f.path == "replicas.busy_ratio");
        assert_eq!(busy.unwrap().interval.n, 2);
        assert!(r.render().contains("2 replications"));
    }
}
