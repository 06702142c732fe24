//! Two scenarios under the same seeds: the differences of their figures, with confidence intervals.
//!
//! Run i of both has the same seed, hence the same arrivals where the workloads agree, so the difference is taken pair by
//! pair and most of the noise cancels.

use serde::{Deserialize, Serialize};

use crate::metrics::interval::Interval;
use crate::report::expect::number;
use crate::report::replications::{CONFIDENCE, FIGURES, label};
use crate::report::summary::{CONTRACT, RunReport};
use crate::report::text::figure;

/// A paired comparison (`compare A B --json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Comparison {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the first scenario.
    pub a: String,
    /// Name of the second scenario.
    pub b: String,
    /// Seeds both ran with.
    pub seeds: Vec<u64>,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// The figures that both have.
    pub figures: Vec<Difference>,
    /// Runs of the first scenario, by seed.
    pub runs_a: Vec<RunReport>,
    /// Runs of the second scenario, by seed.
    pub runs_b: Vec<RunReport>,
}

/// One figure of both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Difference {
    /// Path in the run's report, e.g. `ttft_ms.p99`.
    pub path: String,
    /// Mean of the first.
    pub a: f64,
    /// Mean of the second.
    pub b: f64,
    /// Second minus first, paired by seed.
    pub difference: Interval,
    /// Whether the interval excludes zero; null with fewer than two pairs.
    pub significant: Option<bool>,
}

impl Comparison {
    /// Compares runs pair by pair; both lists are in the order of the same seeds.
    pub fn new(runs_a: Vec<RunReport>, runs_b: Vec<RunReport>) -> Comparison {
        let figures = FIGURES
            .iter()
            .filter_map(|f| {
                let pairs: Vec<(f64, f64)> = runs_a
                    .iter()
                    .zip(&runs_b)
                    .filter_map(|(a, b)| Some((number(a, f.path)?, number(b, f.path)?)))
                    .collect();
                let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
                let difference = Interval::of(&differences, CONFIDENCE)?;
                let n = pairs.len() as f64;
                Some(Difference {
                    path: f.path.to_string(),
                    a: pairs.iter().map(|p| p.0).sum::<f64>() / n,
                    b: pairs.iter().map(|p| p.1).sum::<f64>() / n,
                    difference,
                    significant: difference.half_width.map(|_| difference.excludes_zero()),
                })
            })
            .collect();
        let name = |runs: &[RunReport]| runs.first().map_or(String::new(), |r| r.name.clone());
        Comparison {
            contract: CONTRACT,
            a: name(&runs_a),
            b: name(&runs_b),
            seeds: runs_a.iter().map(|r| r.seed).collect(),
            confidence: CONFIDENCE,
            figures,
            runs_a,
            runs_b,
        }
    }

    /// The table on the terminal.
    pub fn render(&self) -> String {
        let mut out = format!(
            "A  {}\nB  {}\n  {} paired runs (same seeds, same arrivals where the workloads agree)\n\n\
             {:<22} {:>11} {:>11} {:>11} {:>11} {:>9}  {:>4}\n",
            self.a,
            self.b,
            self.seeds.len(),
            "",
            "A",
            "B",
            "B - A",
            format!("+- ({:.0} %)", 100.0 * self.confidence),
            "change",
            "n"
        );
        for row in &self.figures {
            let change = if row.a != 0.0 {
                format!("{:+.1} %", 100.0 * row.difference.mean / row.a)
            } else {
                "-".into()
            };
            let mark = match row.significant {
                Some(false) => "  within noise",
                _ => "",
            };
            out += &format!(
                "{:<22} {:>11} {:>11} {:>11} {:>11} {:>9}  {:>4}{mark}\n",
                label(&row.path),
                figure(row.a),
                figure(row.b),
                figure(row.difference.mean),
                row.difference.half_width.map_or("-".into(), figure),
                change,
                row.difference.n
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_throughput(values: &[f64]) -> Vec<RunReport> {
        values
            .iter()
            .map(|v| {
                let mut r = RunReport::empty();
                r.throughput.requests_per_s = *v;
                r
            })
            .collect()
    }

    #[test]
    fn pairing_finds_a_small_steady_difference_under_large_noise() {
        let a = with_throughput(&[10.0, 20.0, 30.0, 40.0]);
        let b = with_throughput(&[10.5, 20.5, 30.6, 40.4]);
        let c = Comparison::new(a, b);
        let row = c
            .figures
            .iter()
            .find(|f| f.path == "throughput.requests_per_s");
        let row = row.unwrap();
        assert!((row.difference.mean - 0.5).abs() < 1e-9);
        assert_eq!(row.significant, Some(true));
        assert!(c.render().contains("requests/s"));
    }

    #[test]
    fn one_pair_claims_no_significance() {
        let c = Comparison::new(with_throughput(&[1.0]), with_throughput(&[2.0]));
        assert!(c.figures.iter().all(|f| f.significant.is_none()));
    }
}
