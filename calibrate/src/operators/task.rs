//! One operator's fit: the split by shape, the free parameters, the errors by part of the table; and the profile and report that fits add up to.

use std::collections::BTreeSet;

use hwmodels::Evidence;
use hwmodels::ops::ParamSpec;
use hwmodels::profile::{Param, Profile, Validation};
use rayon::prelude::*;

use super::error::Error;
use super::report::{ReportRow, errors_of};
use super::tables::Row;
use crate::fit::{Bound, FitResult, Loss, Options, bounded};

/// Largest median error of a GEMM or attention kernel that the profile's validations accept [%].
pub(super) const KERNEL_TOLERANCE: f64 = 8.0;

/// The same for routed experts and element-wise kernels, whose tables are coarser [%].
pub(super) const COARSE_TOLERANCE: f64 = 25.0;

/// A named part of the rows.
pub(super) type Regime<'a, R> = (&'a str, &'a (dyn Fn(&R) -> bool + Sync));

/// One operator to fit.
pub(super) struct Task<'a, R> {
    /// Operator and format, as the report names it.
    pub(super) op: &'a str,
    /// Prefix of its parameters in the profile.
    pub(super) prefix: &'a str,
    pub(super) specs: &'a [ParamSpec],
    /// Parameters that are given rather than fitted, and their value: properties of the kernel, or not visible
    /// in the table. They go into the profile.
    pub(super) given: &'a [(&'a str, f64)],
    /// Parameters without influence on these rows; they stay out of the profile.
    pub(super) unused: &'a [&'a str],
    pub(super) rows: &'a [R],
    pub(super) regimes: &'a [Regime<'a, R>],
    pub(super) predict: &'a (dyn Fn(&[f64], &R) -> f64 + Sync),
    pub(super) tolerance: f64,
}

pub(super) struct Outcome {
    pub(super) values: Vec<f64>,
    pub(super) params: Vec<(String, Param)>,
    pub(super) report: Vec<ReportRow>,
    pub(super) validation: Validation,
    pub(super) fitted_rows: usize,
}

impl<R: Row> Task<'_, R> {
    /// Fits the free parameters to the shapes that are not held out, from the values that `start` has of all of them, else from the priors and two
    /// other places.
    pub(super) fn run(&self, system: &str, start: Option<&Profile>) -> Result<Outcome, Error> {
        let out = held_out(self.rows);
        let fitted: Vec<&R> = (self.rows.iter())
            .filter(|r| !out.contains(&r.shape()))
            .collect();
        let free = self.free();
        let known: Option<Vec<f64>> = start.and_then(|profile| {
            let value = |&i: &usize| {
                let s = &self.specs[i];
                let param = profile.params.get(&s.full_name(self.prefix))?;
                Some(param.value.clamp(s.min, s.max))
            };
            free.iter().map(value).collect()
        });
        let bounds: Vec<Bound> = (free.iter().enumerate())
            .map(|(j, &i)| {
                let s = &self.specs[i];
                let init = known.as_ref().map_or(s.prior, |values| values[j]);
                Bound::new(s.full_name(self.prefix), init, s.min, s.max)
            })
            .collect();
        let options = Options {
            // Close to least absolute deviations: the bar is on the median.
            loss: Loss::SoftL1(0.03),
            max_iterations: 40,
            starts: if known.is_some() { 1 } else { 3 },
            tolerance: 1e-6,
            step: 1e-4,
        };
        let result = bounded(
            |x| {
                let v = self.values(&free, x);
                fitted
                    .par_iter()
                    .map(|r| ((self.predict)(&v, r) / r.seconds()).ln())
                    .collect()
            },
            &bounds,
            &options,
        )
        .map_err(|source| Error::Fit {
            what: self.op.to_owned(),
            source,
        })?;

        // Rows of one shape err together: count each shape as one observation.
        let shapes: BTreeSet<[u32; 6]> = fitted.iter().map(|r| r.shape()).collect();
        let inflate = (fitted.len() as f64 / shapes.len().max(1) as f64).sqrt();
        let values = self.values(&free, &result.values);
        let report = self.report(&values, &out);
        let held = report[0].held_out;
        let validation = Validation {
            set: format!("{system} {} kernels, shapes not fitted", self.op),
            metric: "kernel time".to_owned(),
            n: held.map_or(0, |e| e.n as u64),
            median_ape: round_to(held.map_or(f64::INFINITY, |e| e.median_ape), 3),
            tolerance: self.tolerance,
        };
        Ok(Outcome {
            values,
            params: self.params(&free, &result, inflate),
            report,
            validation,
            fitted_rows: fitted.len(),
        })
    }

    /// The parameters that are fitted, by their places in `specs`.
    fn free(&self) -> Vec<usize> {
        (0..self.specs.len())
            .filter(|&i| {
                let name = self.specs[i].name;
                self.given.iter().all(|(n, _)| *n != name) && !self.unused.contains(&name)
            })
            .collect()
    }

    /// All parameters, those at `free` with the values `fitted`.
    fn values(&self, free: &[usize], fitted: &[f64]) -> Vec<f64> {
        let mut v: Vec<f64> = self
            .specs
            .iter()
            .map(|s| {
                let given = self.given.iter().find(|(n, _)| *n == s.name);
                given.map_or(s.prior, |(_, v)| *v)
            })
            .collect();
        for (&i, &x) in free.iter().zip(fitted) {
            v[i] = x;
        }
        v
    }

    /// What goes into the profile: the fitted parameters, their standard errors times `inflate`, and those given.
    fn params(&self, free: &[usize], result: &FitResult, inflate: f64) -> Vec<(String, Param)> {
        let param = |s: &ParamSpec, value, std_error, evidence| {
            let param = Param {
                value,
                std_error,
                min: s.min,
                max: s.max,
                unit: s.unit.to_owned(),
                evidence,
            };
            (s.full_name(self.prefix), param)
        };
        let mut params = Vec::new();
        for (j, &i) in free.iter().enumerate() {
            let value = round_to(result.values[j], 4);
            let std_error = result.std_errors[j].map(|e| round_to(e * inflate, 2));
            params.push(param(&self.specs[i], value, std_error, Evidence::Fitted));
        }
        for s in self.specs {
            if let Some((_, value)) = self.given.iter().find(|(n, _)| *n == s.name) {
                params.push(param(s, *value, None, Evidence::Analytic));
            }
        }
        params
    }

    /// Errors with `values` on all rows, then on each part of them; shapes in `out` are held out.
    fn report(&self, values: &[f64], out: &BTreeSet<[u32; 6]>) -> Vec<ReportRow> {
        let errors = |regime: &(dyn Fn(&R) -> bool + Sync), held: bool| {
            let pairs: Vec<(f64, f64)> = self
                .rows
                .iter()
                .filter(|r| out.contains(&r.shape()) == held && regime(r))
                .map(|r| ((self.predict)(values, r), r.seconds()))
                .collect();
            errors_of(&pairs)
        };
        let mut report = Vec::new();
        let everything: Regime<'_, R> = ("all", &|_| true);
        for (name, regime) in std::iter::once(&everything).chain(self.regimes) {
            let (fitted, held_out) = (errors(regime, false), errors(regime, true));
            if report.is_empty() || fitted.is_some() || held_out.is_some() {
                report.push(ReportRow {
                    op: self.op.to_owned(),
                    regime: (*name).to_owned(),
                    fitted,
                    held_out,
                });
            }
        }
        report
    }

    /// Errors of rows outside the fitted kind, all of them only predicted.
    pub(super) fn only_predicted(&self, values: &[f64], rows: &[R], regime: &str) -> ReportRow {
        let pairs: Vec<(f64, f64)> = rows
            .iter()
            .map(|r| ((self.predict)(values, r), r.seconds()))
            .collect();
        ReportRow {
            op: self.op.to_owned(),
            regime: regime.to_owned(),
            fitted: None,
            held_out: errors_of(&pairs),
        }
    }
}

/// Shapes held out: every third distinct one, in ascending order.
pub(super) fn held_out<R: Row>(rows: &[R]) -> BTreeSet<[u32; 6]> {
    let shapes: BTreeSet<[u32; 6]> = rows.iter().map(Row::shape).collect();
    shapes.into_iter().skip(1).step_by(3).collect()
}

/// `x` to `digits` significant digits.
pub(super) fn round_to(x: f64, digits: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let text = format!("{x:.*e}", (digits - 1).max(0) as usize);
    text.parse().unwrap_or(x)
}

/// The array that a parameter set is built from.
pub(super) fn array<const N: usize>(v: &[f64]) -> [f64; N] {
    std::array::from_fn(|i| v[i])
}

/// Collects outcomes into a profile and a report.
pub(super) struct Collect<'a> {
    pub(super) profile: Profile,
    pub(super) rows: Vec<ReportRow>,
    /// A profile of the same tables, where fits may start from one.
    pub(super) start: Option<&'a Profile>,
}

impl Collect<'_> {
    pub(super) fn add(&mut self, o: &Outcome) {
        self.profile.params.extend(o.params.iter().cloned());
        self.profile.validations.push(o.validation.clone());
        self.profile.provenance.rows += o.fitted_rows as u64;
        self.rows.extend(o.report.iter().cloned());
    }

    pub(super) fn range(&mut self, name: String, values: impl Iterator<Item = u32>) {
        let (lo, hi) = values.fold((u32::MAX, 0), |(lo, hi), v| (lo.min(v), hi.max(v)));
        if lo <= hi {
            self.profile
                .validity
                .insert(name, [f64::from(lo), f64::from(hi)]);
        }
    }
}
