//! Errors group by group, as they are printed.

use std::collections::BTreeMap;
use std::fmt;

use hwmodels::ops::collective::Launch;
use hwmodels::profile::Profile;

use super::row::{Op, Row, log_errors};

/// Errors of one group of rows.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ReportRow {
    /// Device, and host where it matters.
    pub device: String,
    /// Library and version.
    pub library: String,
    /// Operation, with `eager` for calls outside a graph.
    pub op: String,
    /// `fitted`, or what sets these rows apart from the fitted ones.
    pub split: String,
    /// Rows.
    pub n: u64,
    /// Median absolute error [%].
    pub median: f64,
    /// Mean absolute error [%].
    pub mean: f64,
    /// 90th percentile of the absolute error [%].
    pub p90: f64,
    /// Mean signed error, positive where predictions are too long [%].
    pub bias: f64,
}

/// How well the fitted model predicts, group by group.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Report {
    /// Groups, fitted ones first within each device.
    pub rows: Vec<ReportRow>,
    /// All-reduce rows that were not fitted, by device, and all together.
    pub all_reduce_held_out: Vec<ReportRow>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<22} {:<18} {:<20} {:<14} {:>5} {:>8} {:>8} {:>8} {:>8}",
            "device", "library", "operation", "rows", "n", "median %", "mean %", "p90 %", "bias %"
        )?;
        for r in self.rows.iter().chain(&self.all_reduce_held_out) {
            writeln!(
                f,
                "{:<22} {:<18} {:<20} {:<14} {:>5} {:>8.1} {:>8.1} {:>8.1} {:>+8.1}",
                r.device, r.library, r.op, r.split, r.n, r.median, r.mean, r.p90, r.bias
            )?;
        }
        Ok(())
    }
}

/// Errors of all rows with the parameters of `profile`.
pub(super) fn report(rows: &[Row], profile: &Profile) -> Report {
    let all: Vec<&Row> = rows.iter().collect();
    let errors: Vec<f64> = log_errors(&all, profile)
        .into_iter()
        .map(|e| 100.0 * e.exp_m1())
        .collect();
    let mut groups = BTreeMap::<_, Vec<f64>>::new();
    let mut held_out = BTreeMap::<&str, Vec<f64>>::new();
    for (row, error) in rows.iter().zip(&errors) {
        let mut op = row.op.name().to_owned();
        if row.launch == Launch::Eager {
            op += ", eager";
        }
        if row.group.nodes > 1 {
            op += ", 2 nodes";
        }
        let is_held_out = row.split != "fitted";
        let key = (row.device, row.library.clone(), op, is_held_out, row.split);
        groups.entry(key).or_default().push(*error);
        if is_held_out && row.op == Op::AllReduce && row.split != "in place" {
            held_out.entry(row.device).or_default().push(*error);
        }
    }
    Report {
        rows: groups
            .into_iter()
            .map(|((device, library, op, _, split), errors)| {
                summary(device, &library, &op, split, errors)
            })
            .collect(),
        all_reduce_held_out: held_out
            .iter()
            .map(|(device, errors)| (*device, errors.clone()))
            .chain([(
                "all devices",
                held_out.values().flatten().copied().collect(),
            )])
            .filter(|(_, errors)| !errors.is_empty())
            .map(|(device, errors)| summary(device, "all", "all_reduce", "held out", errors))
            .collect(),
    }
}

fn summary(device: &str, library: &str, op: &str, split: &str, signed: Vec<f64>) -> ReportRow {
    let n = signed.len();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / n as f64;
    let bias = mean(&signed);
    let mut errors: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
    errors.sort_by(f64::total_cmp);
    ReportRow {
        device: device.to_owned(),
        library: library.to_owned(),
        op: op.to_owned(),
        split: split.to_owned(),
        n: n as u64,
        median: quantile(&errors, 0.5),
        mean: mean(&errors),
        p90: quantile(&errors, 0.9),
        bias,
    }
}

/// Quantile of sorted values by linear interpolation between order statistics; 0 of none.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    sim::metrics::distribution::quantile_of_sorted_f64(sorted, q).unwrap_or(0.0)
}
