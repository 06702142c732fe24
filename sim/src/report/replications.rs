//! One scenario run with several seeds: each figure's mean over the replications, with its confidence interval.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::metrics::interval::Interval;
use crate::report::expect::Numbers;
use crate::report::figures::{field, figure};
use crate::report::outcomes::{self, RequestCounts, RunWarning, warnings_of};
use crate::report::summary::{CONTRACT, RunReport};

/// Confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// The figures that replications and comparisons are about: path in the report, and label.
pub const FIGURES: [Figure; 26] = [
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
    Figure::new("requests.offered", "requests offered"),
    Figure::new("requests.finished", "  finished"),
    Figure::new("requests.rejected", "  rejected"),
    Figure::new("requests.timed_out", "  timed out"),
    Figure::new("requests.failed", "  failed"),
    Figure::new("requests.in_flight", "  in flight at the end"),
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
    /// Whether the seeds made any two runs differ. False: all runs are the same, and no figure has an interval.
    pub seeds_vary: bool,
    /// Requests of all runs together.
    pub requests: RequestCounts,
    /// What the runs warn of.
    pub warnings: Vec<RunWarning>,
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
        let seeds_vary = differ(&runs);
        // The same run several times is one replication.
        let counted = if seeds_vary { runs.len() } else { 1 };
        let numbers: Vec<Numbers> = runs.iter().take(counted).map(Numbers::of).collect();
        let figures = FIGURES
            .iter()
            .filter_map(|f| {
                let values: Vec<f64> = numbers.iter().filter_map(|n| n.at(f.path)).collect();
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
            seeds_vary,
            requests: RequestCounts::of(&runs),
            warnings: warnings_of(&runs),
            figures,
            runs,
        }
    }

    /// The table on the terminal; lines end in `\n`.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let seeds: Vec<String> = self.runs.iter().map(|r| r.seed.to_string()).collect();
        // Runs of one load have its seed, whatever the cluster drew.
        let same = self.runs.len() > 1 && seeds.iter().all(|s| *s == seeds[0]);
        let load = if same {
            format!("of the load of seed {}", seeds[0])
        } else {
            format!("with seeds {}", seeds.join(", "))
        };
        if let Some(text) = nothing_finished(&self.runs) {
            writeln!(out, "{text}\n")?;
        }
        writeln!(
            out,
            "{}\n  {} replications {load}\n",
            self.name,
            self.runs.len()
        )?;
        field(
            out,
            "requests",
            &format!("{} in all runs together", self.requests.in_words()),
        )?;
        for warning in &self.warnings {
            field(out, "warning", &warning.in_words(self.runs.len() as u64))?;
        }
        if self.runs.len() > 1 && !self.seeds_vary {
            field(out, "note", &seeds_change_nothing("the runs are"))?;
        }
        writeln!(
            out,
            "\n  {:<22} {:>12} {:>14} {:>6}",
            "",
            "mean",
            format!("+- ({:.0} %)", 100.0 * self.confidence),
            "runs"
        )?;
        let path = |row: &FigureInterval| row.path.clone();
        for row in in_table_order(&self.figures, path, |row| row.interval.mean == 0.0) {
            let half = row.interval.half_width.map_or("-".into(), figure);
            writeln!(
                out,
                "  {:<22} {:>12} {:>14} {:>6}",
                label(&row.path),
                figure(row.interval.mean),
                half,
                row.interval.n
            )?;
        }
        Ok(())
    }
}

/// Whether any two of `runs` differ, by their fingerprints. One run differs from nothing, so it counts as varying.
pub(crate) fn differ(runs: &[RunReport]) -> bool {
    runs.len() < 2
        || runs
            .iter()
            .any(|r| r.fingerprint != runs[0].fingerprint || r.requests != runs[0].requests)
}

/// Why there is no interval where the seeds change nothing, and what would vary.
pub(crate) fn seeds_change_nothing(which: &str) -> String {
    format!(
        "The seeds change nothing: {which} all the same, so there is no interval. The load is fixed (a trace, or constant \
         arrivals and lengths) and nothing in the cluster is drawn. What remains uncertain: the profile's parameters, \
         which --draws N varies within their standard errors; and the machine's speed, which --same-load lets drift where a \
         step profile holds its drift (docs/calibration.md)."
    )
}

/// The sentence above a table, where a run finished nothing.
pub(crate) fn nothing_finished(runs: &[RunReport]) -> Option<String> {
    let n = runs.iter().filter(|r| r.requests.finished == 0).count();
    let first = runs.iter().find_map(outcomes::nothing_finished)?;
    Some(if runs.len() > 1 {
        format!("{first} ({n} of {} runs).", runs.len())
    } else {
        format!("{first}.")
    })
}

/// Rows as tables show them: what became of the requests first, without outcomes that are `zero` throughout.
pub(crate) fn in_table_order<T>(
    rows: &[T],
    path: impl Fn(&T) -> String,
    zero: impl Fn(&T) -> bool,
) -> Vec<&T> {
    let always = ["requests.offered", "requests.finished"];
    let count = |row: &&T| path(row).starts_with("requests.");
    let shown = |row: &&T| always.contains(&path(row).as_str()) || !zero(row);
    let counts = rows.iter().filter(count).filter(shown);
    counts.chain(rows.iter().filter(|r| !count(r))).collect()
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
        let r = Replications::new(vec![run("a", 0), run("b", 0)]);
        assert!(r.figures.iter().all(|f| f.path != "ttft_ms.mean"));
        let busy = r.figures.iter().find(|f| f.path == "replicas.busy_ratio");
        assert_eq!(busy.unwrap().interval.n, 2);
        assert!(r.render().contains("2 replications"));
    }

    fn run(fingerprint: &str, rejected: u64) -> RunReport {
        let mut r = RunReport::empty();
        r.fingerprint = fingerprint.into();
        r.requests.offered = 1000;
        r.requests.finished = 1000 - rejected;
        r.requests.rejected = rejected;
        if rejected > 0 {
            r.warnings = vec![format!("of 1000 requests {rejected} rejected")];
        }
        r
    }

    #[test]
    fn what_was_rejected_is_in_the_table_and_its_warning_above_it() {
        let r = Replications::new(vec![run("a", 750), run("b", 740)]);
        assert_eq!(r.requests.rejected, 1490);
        assert_eq!(r.warnings.len(), 1);
        assert_eq!(r.warnings[0].runs, 2);
        let text = r.render();
        assert!(
            text.contains("2000 offered, 510 finished, 1490 rejected"),
            "{text}"
        );
        assert!(
            text.contains("warning       of 1000 requests 750 rejected"),
            "{text}"
        );
        let row = text.lines().find(|l| l.starts_with("    rejected"));
        assert!(row.is_some_and(|l| l.contains("745")), "{text}");
        assert!(!text.contains("timed out"), "{text}");
    }

    #[test]
    fn equal_runs_have_no_interval_and_say_what_would_vary() {
        let r = Replications::new(vec![run("a", 0), run("a", 0), run("a", 0)]);
        assert!(!r.seeds_vary);
        assert!(r.figures.iter().all(|f| f.interval.half_width.is_none()));
        assert!(r.figures.iter().all(|f| f.interval.n == 1));
        let text = r.render();
        assert!(text.contains("The seeds change nothing"), "{text}");
        assert!(text.contains("--draws"), "{text}");
        assert!(Replications::new(vec![run("a", 0), run("b", 0)]).seeds_vary);
    }

    #[test]
    fn runs_that_finished_nothing_are_told_first() {
        let text = Replications::new(vec![run("a", 1000), run("b", 999)]).render();
        assert!(text.starts_with("NOTHING FINISHED"), "{text}");
        assert!(text.contains("(1 of 2 runs)"), "{text}");
    }
}
