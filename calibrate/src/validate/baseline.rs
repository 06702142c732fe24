//! The baseline of every set: roofline times one factor plus one constant, fitted on the rows that the set's own
//! parameters were fitted on (on its first case where nothing was).

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::case::Case;
use crate::fit::{Bound, Loss, Options, values};

/// Most cases that a fit replays: enough for two parameters.
const CASES: usize = 8;

/// Names of the two parameters.
const NAMES: [&str; 2] = ["roofline.factor", "roofline.constant"];

/// Factor and constant of each set among `cases`, as parameters to lay over a scenario.
pub fn fit(cases: &[Case]) -> BTreeMap<String, Vec<(String, f64)>> {
    let mut sets: Vec<&str> = cases.iter().map(|c| c.set).collect();
    sets.sort_unstable();
    sets.dedup();
    sets.into_par_iter()
        .filter_map(|set| {
            let of: Vec<&Case> = cases.iter().filter(|c| c.set == set).collect();
            let mut fitted: Vec<&Case> = of
                .iter()
                .copied()
                .filter(|c| c.measured.iter().any(|m| m.fitted))
                .collect();
            if fitted.is_empty() {
                fitted.extend(of.first());
            }
            // Evenly spread over the set, so that light and heavy load both count.
            let stride = fitted.len().div_ceil(CASES).max(1);
            let fitted: Vec<&Case> = fitted.into_iter().step_by(stride).collect();
            let residuals = |v: &[f64]| -> Vec<f64> {
                let params: Vec<(String, f64)> = NAMES
                    .iter()
                    .zip(v)
                    .map(|(n, v)| ((*n).to_owned(), *v))
                    .collect();
                fitted
                    .par_iter()
                    .flat_map_iter(|case| {
                        let run = case.run(&params);
                        case.measured.iter().map(move |m| {
                            run.as_ref()
                                .ok()
                                .and_then(|r| r.number(m.path))
                                .map_or(f64::NAN, |p| (p / m.value).ln())
                        })
                    })
                    .collect()
            };
            let bounds = [
                Bound::new(NAMES[0], 1.5, 0.5, 20.0),
                Bound::new(NAMES[1], 2e-3, 0.0, 0.1),
            ];
            let options = Options {
                loss: Loss::SoftL1(0.1),
                max_iterations: 12,
                tolerance: 1e-4,
                step: 2e-3,
                ..Options::default()
            };
            let found = values(residuals, &bounds, &options).ok()?;
            let params = (NAMES.iter().map(|n| (*n).to_owned())).zip(found).collect();
            Some((set.to_owned(), params))
        })
        .collect()
}
