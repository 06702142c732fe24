//! Errors of fitted and of held-out shapes, as they are printed.

use std::fmt;

use serde::Serialize;

use crate::validate::report::Errors;

/// Errors of one operator, format and regime.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportRow {
    /// Operator and format, e.g. `gemm bf16`.
    pub op: String,
    /// Part of the rows, e.g. `m 1..16`; `all` for the whole.
    pub regime: String,
    /// Errors on rows that were fitted.
    pub fitted: Option<Errors>,
    /// Errors on rows that were only predicted.
    pub held_out: Option<Errors>,
}

/// Errors by operator, of one system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// System, e.g. `h100_sxm`.
    pub system: String,
    /// How rows were split.
    pub split: String,
    /// Errors.
    pub rows: Vec<ReportRow>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: absolute percentage errors; {}",
            self.system, self.split
        )?;
        writeln!(
            f,
            "{:<18} {:<30} | {:>6} {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} {:>6} {:>6}",
            "",
            "",
            "fitted",
            "median",
            "mean",
            "p90",
            "bias",
            "held",
            "median",
            "mean",
            "p90",
            "bias"
        )?;
        for r in &self.rows {
            write!(f, "{:<18} {:<30}", r.op, r.regime)?;
            for s in [&r.fitted, &r.held_out] {
                match s {
                    None => write!(f, " | {:>6} {:>6} {:>6} {:>6} {:>6}", 0, "-", "-", "-", "-")?,
                    Some(s) => write!(
                        f,
                        " | {:>6} {:>6.1} {:>6.1} {:>6.1} {:>6.1}",
                        s.n, s.median_ape, s.mean_ape, s.p90_ape, s.bias
                    )?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Percentage errors of pairs of (predicted, measured); `None` for none.
pub(super) fn errors_of(pairs: &[(f64, f64)]) -> Option<Errors> {
    let signed: Vec<f64> = pairs.iter().map(|(p, m)| 100.0 * (p / m - 1.0)).collect();
    Errors::of(&signed)
}
