//! How far predictions of a log's steps are off.

use serde::Serialize;

use super::log::{Log, Step};
use crate::collectives::quantile;

/// First steps of a log that are left out: the process is still warming up.
pub const WARM_UP: usize = 3;
/// What a log was to the fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Fitted; its errors say how well the form fits.
    Fitted,
    /// Predicted from a fit of all others.
    LeftOutInTurn,
    /// Not fitted at all.
    HeldOut,
}

/// Errors of predicted step times on one log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// The log.
    pub log: String,
    /// What it was to the fit.
    pub used: Use,
    /// Steps.
    pub steps: u64,
    /// Median absolute error of a step [%].
    pub median_ape: f64,
    /// 90th percentile of the absolute error of a step [%].
    pub p90_ape: f64,
    /// Worst step [%].
    pub worst_ape: f64,
    /// Predicted over measured time of all steps together, less one [%].
    pub total_error: f64,
    /// `total_error` of decode-only steps, of prefill-only steps, of mixed ones [%]; none where there are none.
    pub by_kind: [Option<f64>; 3],
}

/// Predicted and measured time of a step, for plots.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Index of the log among all given, fitted ones first.
    pub log: usize,
    /// Start [s].
    pub start: f64,
    /// Tokens in the step.
    pub tokens: u32,
    /// Mean context of its decodes [tokens].
    pub context: f64,
    /// Measured [s].
    pub measured: f64,
    /// Predicted [s].
    pub predicted: f64,
}

/// The usable steps of a log.
pub(super) fn usable(log: &Log) -> Vec<Step> {
    log.steps
        .iter()
        .skip(WARM_UP)
        .filter(|s| !s.stats.is_empty() && !s.overlaps && s.seconds > 0.0)
        .copied()
        .collect()
}

/// The last part of a path, as reports name logs.
pub(super) fn file_name(path: &str) -> String {
    std::path::Path::new(path)
        .file_name()
        .map_or_else(|| path.to_owned(), |n| n.to_string_lossy().into_owned())
}

/// Errors of `predict` on the usable steps of `log`.
pub(super) fn judge(
    log: &Log,
    index: usize,
    used: Use,
    predict: impl Fn(&Step) -> f64,
) -> (Option<Errors>, Vec<Residual>) {
    let residuals: Vec<Residual> = usable(log)
        .iter()
        .map(|s| Residual {
            log: index,
            start: s.start,
            tokens: s.stats.tokens(),
            context: s.stats.decode_ctx_sum as f64 / f64::from(s.stats.decode_seqs.max(1)),
            measured: s.seconds,
            predicted: predict(s),
        })
        .collect();
    if residuals.is_empty() {
        return (None, residuals);
    }
    let mut ape: Vec<f64> = residuals
        .iter()
        .map(|r| 100.0 * (r.predicted / r.measured - 1.0).abs())
        .collect();
    ape.sort_by(f64::total_cmp);
    let mut sums = [[0.0; 2]; 4];
    for (r, s) in residuals.iter().zip(usable(log)) {
        let kind = match (s.stats.prefill_tokens > 0, s.stats.decode_tokens > 0) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        for k in [kind, 3] {
            sums[k][0] += r.predicted;
            sums[k][1] += r.measured;
        }
    }
    let off = |k: usize| (sums[k][1] > 0.0).then(|| 100.0 * (sums[k][0] / sums[k][1] - 1.0));
    let errors = Errors {
        log: log.name.clone(),
        used,
        steps: residuals.len() as u64,
        median_ape: quantile(&ape, 0.5),
        p90_ape: quantile(&ape, 0.9),
        worst_ape: quantile(&ape, 1.0),
        total_error: off(3).unwrap_or(0.0),
        by_kind: [off(0), off(1), off(2)],
    };
    (Some(errors), residuals)
}
