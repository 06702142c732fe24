//! How far a prediction can be trusted: the scenario run again with its profile's parameters drawn within their standard errors.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hwmodels::profile::Param;
use rand_distr::{Distribution, Normal};
use serde::{Deserialize, Serialize};

use crate::kernel::rng;
use crate::metrics::distribution::quantile_of_sorted_f64 as quantile;
use crate::report::expect::Numbers;
use crate::report::figures::{field, figure};
use crate::report::outcomes::{RequestCounts, RunWarning, warnings_of};
use crate::report::replications::{FIGURES, in_table_order, label};
use crate::report::summary::{CONTRACT, RunReport};

/// Share of the draws that lie inside the interval.
pub const COVERAGE: f64 = 0.90;

/// Tries to draw a value inside the physical bounds before the nearer bound is taken.
const TRIES: u32 = 64;

/// One set of parameter values. Each parameter is drawn by itself from a normal distribution with the profile's value and
/// standard error, cut off at the physical bounds; profiles carry no correlations, so none are used. The same `seed`,
/// `draw` and name always give the same value.
pub fn draw(params: &BTreeMap<String, Param>, seed: u64, draw: u64) -> BTreeMap<String, f64> {
    params
        .iter()
        .filter_map(|(name, p)| {
            let normal = Normal::new(p.value, p.std_error?).ok()?;
            let mut stream = rng::stream(seed, &format!("draw {draw} {name}"));
            let inside = (0..TRIES)
                .map(|_| normal.sample(&mut stream))
                .find(|v| (p.min..=p.max).contains(v));
            let value = inside.unwrap_or(p.value).clamp(p.min, p.max);
            Some((name.clone(), value))
        })
        .collect()
}

/// A scenario with the uncertainty of its profile (`run --draws N --json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Draws {
    /// Version of this contract.
    pub contract: u32,
    /// Name of the scenario.
    pub name: String,
    /// Share of the draws inside each interval.
    pub coverage: f64,
    /// Draws of the parameters; each is one run of the same requests.
    pub draws: u64,
    /// Parameters that were drawn.
    pub parameters: Vec<String>,
    /// Requests of the run with the profile's own values.
    pub requests: RequestCounts,
    /// What that run and the draws warn of.
    pub warnings: Vec<RunWarning>,
    /// The figures that were measured, in the order of reports.
    pub figures: Vec<DrawnFigure>,
}

/// One figure over the draws.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DrawnFigure {
    /// Path in the run's report, e.g. `ttft_ms.p99`.
    pub path: String,
    /// With the profile's own values.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Draws that had a value.
    pub n: u64,
}

impl Draws {
    /// Summarises `runs`, one per draw, beside the run with the profile's own values.
    pub fn new(nominal: &RunReport, runs: &[RunReport], parameters: Vec<String>) -> Draws {
        let own = Numbers::of(nominal);
        let drawn: Vec<Numbers> = runs.iter().map(Numbers::of).collect();
        let figures = FIGURES
            .iter()
            .filter_map(|f| {
                let value = own.at(f.path)?;
                let values = drawn.iter().filter_map(|n| n.at(f.path)).collect();
                let (low, high, n) = coverage(values)?;
                Some(DrawnFigure {
                    path: f.path.to_string(),
                    value,
                    low,
                    high,
                    n,
                })
            })
            .collect();
        Draws {
            contract: CONTRACT,
            name: nominal.name.clone(),
            coverage: COVERAGE,
            draws: runs.len() as u64,
            parameters,
            requests: nominal.requests,
            warnings: warnings_of(std::iter::once(nominal).chain(runs)),
            figures,
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
        if self.requests.finished == 0 {
            writeln!(out, "NOTHING FINISHED: {}.\n", self.requests.in_words())?;
        }
        writeln!(
            out,
            "{}\n  {} parameters drawn {} times within their standard errors, the same requests each time\n",
            self.name,
            self.parameters.len(),
            self.draws
        )?;
        field(out, "requests", &self.requests.in_words())?;
        for warning in &self.warnings {
            field(out, "warning", &warning.in_words(self.draws + 1))?;
        }
        writeln!(
            out,
            "\n  {:<22} {:>12} {:>28}",
            "",
            "prediction",
            format!("{:.0} % of the draws", 100.0 * self.coverage),
        )?;
        let path = |row: &DrawnFigure| row.path.clone();
        for row in in_table_order(&self.figures, path, |row| {
            row.value == 0.0 && row.high == 0.0
        }) {
            writeln!(
                out,
                "  {:<22} {:>12} {:>28}",
                label(&row.path),
                figure(row.value),
                format!("{} to {}", figure(row.low), figure(row.high)),
            )?;
        }
        writeln!(out, "\n{FORM}")
    }
}

/// What the interval does not hold.
pub(crate) const FORM: &str = "  The interval holds what the fit does not know about its parameters. It does not hold the error of the model's form:
  for that see the errors on measured runs (servetwin validate; docs/accuracy.md).";

/// The interval that holds [`COVERAGE`] of `values`, and their number; none where there are none.
pub(crate) fn coverage(mut values: Vec<f64>) -> Option<(f64, f64, u64)> {
    values.sort_by(f64::total_cmp);
    let tail = 0.5 - COVERAGE / 2.0;
    Some((
        quantile(&values, tail)?,
        quantile(&values, 1.0 - tail)?,
        values.len() as u64,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hwmodels::Evidence;

    fn param(value: f64, std_error: Option<f64>, min: f64, max: f64) -> Param {
        Param {
            value,
            std_error,
            min,
            max,
            unit: "ratio".into(),
            evidence: Evidence::Fitted,
        }
    }

    #[test]
    fn draws_have_the_mean_and_spread_of_the_profile() {
        let params = BTreeMap::from([("a".to_string(), param(0.5, Some(0.05), 0.0, 1.0))]);
        let values: Vec<f64> = (0..2000).map(|i| draw(&params, 7, i)["a"]).collect();
        let mean = values.iter().sum::<f64>() / 2000.0;
        let sd = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1999.0).sqrt();
        // Four standard errors of either estimate.
        assert!((mean - 0.5).abs() < 4.0 * 0.05 / 2000f64.sqrt(), "{mean}");
        assert!((sd - 0.05).abs() < 4.0 * 0.05 / 4000f64.sqrt(), "{sd}");
    }

    #[test]
    fn draws_stay_within_physics() {
        let params = BTreeMap::from([
            ("near".to_string(), param(0.99, Some(0.2), 0.0, 1.0)),
            ("odd".to_string(), param(1.0, Some(1e6), 0.999, 1.0)),
        ]);
        for i in 0..500 {
            let d = draw(&params, 1, i);
            assert!((0.0..=1.0).contains(&d["near"]));
            assert!((0.999..=1.0).contains(&d["odd"]));
        }
    }

    #[test]
    fn what_has_no_standard_error_is_not_drawn() {
        let params = BTreeMap::from([("a".to_string(), param(0.5, None, 0.0, 1.0))]);
        assert!(draw(&params, 1, 1).is_empty());
    }

    #[test]
    fn a_draw_of_one_parameter_does_not_depend_on_the_others() {
        let one = BTreeMap::from([("a".to_string(), param(0.5, Some(0.1), 0.0, 1.0))]);
        let mut two = one.clone();
        two.insert("0".into(), param(0.5, Some(0.1), 0.0, 1.0));
        assert_eq!(draw(&one, 3, 4)["a"], draw(&two, 3, 4)["a"]);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let v = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(quantile(&v, 0.5), Some(3.0));
        assert_eq!(quantile(&v, 0.05), Some(1.2));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
