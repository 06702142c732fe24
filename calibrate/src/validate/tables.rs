//! Kernel and collective tables: tens of thousands of rows, so errors by group only.
//!
//! The fits are deterministic and take seconds, so their errors, on fitted rows and on rows held out, are computed anew
//! from the tables; tests hold the shipped profiles against the same fits.

use std::path::Path;

use super::error::SetError;
use super::report::{Errors, Summary};
use crate::{collectives, operators};

/// Names of the sets, as users select them.
pub const SETS: [&str; 2] = ["kernels", "collectives"];

/// Errors of kernel times, by system, operator and format.
///
/// # Errors
/// A table is missing or malformed.
pub fn kernels(dir: &Path) -> Result<Vec<Summary>, SetError> {
    let mut out = Vec::new();
    let systems = operators::present(dir).map_err(|e| SetError::new("operators", e.to_string()))?;
    for system in systems {
        let (_, report) = operators::refit(dir, system.name)
            .map_err(|e| SetError::new("operators", e.to_string()))?;
        for row in report.rows.iter().filter(|r| r.regime == "all") {
            out.push(Summary {
                set: format!("kernels {}", system.name),
                metric: row.op.clone(),
                fitted: row.fitted,
                predicted: row.held_out,
                baseline: None,
                untouched: None,
                covered: None,
                unpredicted: 0,
            });
        }
    }
    Ok(out)
}

/// Errors of all-reduce times by device, on rows that were not fitted.
///
/// # Errors
/// A table is missing or malformed.
pub fn collectives(dir: &Path) -> Result<Vec<Summary>, SetError> {
    let (_, report) =
        collectives::fit(dir).map_err(|e| SetError::new("collectives", e.to_string()))?;
    Ok(report
        .all_reduce_held_out
        .iter()
        .map(|r| Summary {
            set: format!("collectives {}", r.device),
            metric: r.op.clone(),
            fitted: None,
            predicted: Some(Errors {
                n: r.n as usize,
                median_ape: r.median,
                mean_ape: r.mean,
                p90_ape: r.p90,
                bias: r.bias,
            }),
            baseline: None,
            untouched: None,
            covered: None,
            unpredicted: 0,
        })
        .collect())
}
