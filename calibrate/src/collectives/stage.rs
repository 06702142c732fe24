//! Parameters that are fitted together, and their fit.

use hwmodels::ops::collective::{Prior, fitted_param, parameters};
use hwmodels::profile::{Param, Profile};

use super::row::{Row, Stage, log_errors};
use crate::fit::{Bound, FitError, Loss, Options, bounded};

/// Order of the stages: later ones use what earlier ones fitted.
pub(super) const STAGES: [&str; 6] = ["ring", "all_to_all", "send", "vllm", "trtllm", "host"];

/// Where a parameter starts, and the range searched: latencies of 10 ns and above, and as small a
/// relative growth, count as none.
pub(super) fn bound(name: &str, prior: &Prior) -> Bound {
    let floor = if prior.unit == "s" { 1e-8 } else { 1e-3 };
    let start = match (prior.value, prior.unit) {
        (v, _) if v > floor => v,
        (_, "s") => 5e-6,
        _ => 0.2,
    };
    Bound::new(name, start.ln(), prior.min.max(floor).ln(), prior.max.ln())
}

/// Weight of each parameter's pull to its prior: a tenfold change counts as one row that is 5 % off.
/// It only matters where the rows cannot tell parameters apart.
pub(super) const PRIOR_WEIGHT: f64 = 0.02;

pub(super) fn fit_stage(
    stage: Stage,
    rows: &[&Row],
    profile: &mut Profile,
) -> Result<(), FitError> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let own: Vec<_> = parameters(&first.fabric)
        .into_iter()
        .filter(|(name, _)| stage.owns(name))
        .collect();
    let bounds: Vec<Bound> = own.iter().map(|(name, prior)| bound(name, prior)).collect();
    let before = profile.clone();
    let with = |values: &[f64]| -> Profile {
        let mut trial = before.clone();
        for ((name, prior), value) in own.iter().zip(values) {
            trial
                .params
                .insert(name.clone(), fitted_param(prior, value.exp()));
        }
        trial
    };
    let residuals = |values: &[f64]| -> Vec<f64> {
        let errors = log_errors(rows, &with(values));
        let pull = values
            .iter()
            .zip(&bounds)
            .map(|(v, b)| PRIOR_WEIGHT * (v - b.init));
        errors.into_iter().chain(pull).collect()
    };
    let options = Options {
        loss: Loss::SoftL1(0.05),
        max_iterations: 200,
        starts: 6,
        ..Options::default()
    };
    let fit = bounded(residuals, &bounds, &options)?;
    let best = log_errors(rows, &with(&fit.values));
    for (i, (name, prior)) in own.iter().enumerate() {
        // A parameter that no row depends on keeps its prior: it was not fitted.
        let mut moved = fit.values.clone();
        moved[i] += if moved[i] > bounds[i].init { -0.1 } else { 0.1 };
        let influence = log_errors(rows, &with(&moved))
            .iter()
            .zip(&best)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        if influence < 1e-3 {
            continue;
        }
        let mut param: Param = fitted_param(prior, rounded(fit.values[i].exp()));
        // The logarithm's error is the relative error.
        param.std_error = fit.std_errors[i].map(|e| rounded(e * param.value));
        profile.params.insert(name.clone(), param);
    }
    Ok(())
}

/// Four significant digits: more is noise.
pub(super) fn rounded(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}
