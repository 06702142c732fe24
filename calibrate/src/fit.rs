//! Bounded, robust least squares: the one fitter behind every profile.
//!
//! Levenberg-Marquardt on residuals (usually logarithms of predicted over measured), parameters kept
//! within physical bounds by projection, outliers tamed by a robust loss through reweighting, several
//! deterministic starts. Nothing here depends on threads, time or a random seed.
//!
//! ```
//! use calibrate::fit::{Bound, Options, bounded};
//! let xs = [1.0_f64, 2.0, 4.0, 8.0];
//! let ys: Vec<f64> = xs.iter().map(|x| 3.0 + 0.5 * x).collect();
//! let bounds = [
//!     Bound::new("fixed", 1.0, 0.0, 10.0),
//!     Bound::new("slope", 1.0, 0.0, 10.0),
//! ];
//! let fit = bounded(
//!     |p| xs.iter().zip(&ys).map(|(x, y)| (p[0] + p[1] * x) / y - 1.0).collect(),
//!     &bounds,
//!     &Options::default(),
//! ).unwrap();
//! assert!((fit.values[0] - 3.0).abs() < 1e-6 && (fit.values[1] - 0.5).abs() < 1e-6);
//! ```

use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

/// One parameter: where to start and the range that physics allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Name, for messages.
    pub name: String,
    /// First guess, within the range.
    pub init: f64,
    /// Smallest allowed value.
    pub min: f64,
    /// Largest allowed value.
    pub max: f64,
}

impl Bound {
    /// A parameter named `name` in `[min, max]`, started at `init`.
    pub fn new(name: impl Into<String>, init: f64, min: f64, max: f64) -> Bound {
        Bound {
            name: name.into(),
            init,
            min,
            max,
        }
    }
}

/// How much a residual of a given size counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Squares: best when errors are normal.
    Squares,
    /// Squares up to the given residual, then linear.
    Huber(f64),
    /// `2 s^2 (sqrt(1 + (r/s)^2) - 1)`: a smooth Huber with scale `s`.
    /// A small scale is close to least absolute deviations, that is to fitting the median.
    SoftL1(f64),
}

impl Loss {
    /// Loss of residual `r`; `r^2` near zero.
    fn rho(self, r: f64) -> f64 {
        match self {
            Loss::Squares => r * r,
            Loss::Huber(s) if r.abs() <= s => r * r,
            Loss::Huber(s) => s * (2.0 * r.abs() - s),
            Loss::SoftL1(s) => 2.0 * s * s * ((1.0 + (r / s).powi(2)).sqrt() - 1.0),
        }
    }

    /// Weight of the squared residual that has the same slope.
    fn weight(self, r: f64) -> f64 {
        match self {
            Loss::Squares => 1.0,
            Loss::Huber(s) if r.abs() <= s => 1.0,
            Loss::Huber(s) => s / r.abs(),
            Loss::SoftL1(s) => 1.0 / (1.0 + (r / s).powi(2)).sqrt(),
        }
    }
}

/// How to fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Loss of a residual.
    pub loss: Loss,
    /// Most Levenberg-Marquardt iterations per start.
    pub max_iterations: usize,
    /// Starts: the first is `init`, further ones spread over the bounds (a Halton sequence).
    pub starts: usize,
    /// Relative decrease of the loss under which an iteration counts as converged.
    pub tolerance: f64,
    /// Finite-difference step, as a share of each parameter's range.
    pub step: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            loss: Loss::Squares,
            max_iterations: 60,
            starts: 1,
            tolerance: 1e-8,
            step: 1e-5,
        }
    }
}

/// Which bound a fitted value lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtBound {
    /// The smallest allowed value.
    Min,
    /// The largest allowed value.
    Max,
}

/// Outcome of a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FitResult {
    /// Best values, in the order of the bounds.
    pub values: Vec<f64>,
    /// Standard errors; `None` for a value on a bound or one the data say nothing about.
    pub std_errors: Vec<Option<f64>>,
    /// Covariance of the values; rows and columns of parameters without a standard error are zero.
    pub covariance: Vec<Vec<f64>>,
    /// Bounds that bind.
    pub at_bound: Vec<Option<AtBound>>,
    /// Sum of the loss over the residuals.
    pub loss: f64,
    /// Residuals at the best values.
    pub residuals: Vec<f64>,
    /// Iterations of the best start.
    pub iterations: usize,
    /// False when the best start ran out of iterations.
    pub converged: bool,
}

/// Why there is no fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// There is nothing to fit.
    #[error("no parameters to fit: give at least one bound")]
    NoParameters,
    /// A bound is empty, not finite, or does not hold its first guess.
    #[error(
        "parameter `{name}`: need finite min < max with min <= init <= max, got min {min}, init {init}, max {max}"
    )]
    BadBound {
        /// Parameter.
        name: String,
        /// Its lower bound.
        min: f64,
        /// Its first guess.
        init: f64,
        /// Its upper bound.
        max: f64,
    },
    /// Fewer measurements than parameters.
    #[error(
        "{residuals} residuals cannot determine {parameters} parameters: fit fewer parameters or more rows"
    )]
    TooFew {
        /// Residuals given.
        residuals: usize,
        /// Parameters asked for.
        parameters: usize,
    },
    /// The residuals are not finite at any start.
    #[error(
        "residual {index} is {value} at every start: a model or measurement of zero, or an overflow"
    )]
    NotFinite {
        /// First such residual.
        index: usize,
        /// Its value.
        value: f64,
    },
}

/// Minimises the summed loss of `residuals(values)` with every value within its bound.
///
/// # Errors
/// When a bound is malformed, there are fewer residuals than parameters, or the residuals are
/// not finite at every start.
pub fn bounded<F>(residuals: F, bounds: &[Bound], options: &Options) -> Result<FitResult, FitError>
where
    F: Fn(&[f64]) -> Vec<f64> + Sync,
{
    let problem = Problem {
        residuals,
        bounds,
        options,
    };
    Ok(problem.finish(problem.best()?))
}

/// The values that [`bounded`] finds, without their errors: one set of derivatives less.
///
/// # Errors
/// As [`bounded`].
pub fn values<F>(residuals: F, bounds: &[Bound], options: &Options) -> Result<Vec<f64>, FitError>
where
    F: Fn(&[f64]) -> Vec<f64> + Sync,
{
    let problem = Problem {
        residuals,
        bounds,
        options,
    };
    Ok(problem.values(&problem.best()?.u))
}

/// Refuses bounds that nothing can be fitted within.
fn check(bounds: &[Bound]) -> Result<(), FitError> {
    if bounds.is_empty() {
        return Err(FitError::NoParameters);
    }
    for b in bounds {
        let ordered = b.min < b.max && b.min <= b.init && b.init <= b.max;
        if !ordered || !b.min.is_finite() || !b.max.is_finite() {
            return Err(FitError::BadBound {
                name: b.name.clone(),
                min: b.min,
                init: b.init,
                max: b.max,
            });
        }
    }
    Ok(())
}

struct Problem<'a, F> {
    residuals: F,
    bounds: &'a [Bound],
    options: &'a Options,
}

/// A point in the unit cube that the bounds span.
struct Point {
    u: Vec<f64>,
    r: Vec<f64>,
    loss: f64,
    iterations: usize,
    converged: bool,
}

/// Bases of the Halton sequence; beyond them they repeat with another offset.
const PRIMES: [usize; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];

/// `i`-th member of the van der Corput sequence in `base`, in (0, 1).
fn van_der_corput(mut i: usize, base: usize) -> f64 {
    let (mut f, mut x) = (1.0, 0.0);
    while i > 0 {
        f /= base as f64;
        x += f * (i % base) as f64;
        i /= base;
    }
    x
}

impl<F> Problem<'_, F>
where
    F: Fn(&[f64]) -> Vec<f64> + Sync,
{
    /// The best point that any start leads to.
    fn best(&self) -> Result<Point, FitError> {
        check(self.bounds)?;
        let mut best: Option<Point> = None;
        let mut error = None;
        for i in 0..self.options.starts.max(1) {
            match self.descend(self.start(i)) {
                Ok(p) if best.as_ref().is_none_or(|b| p.loss < b.loss) => best = Some(p),
                Ok(_) => {}
                Err(e) => error = Some(e),
            }
        }
        best.ok_or_else(|| error.unwrap_or(FitError::NoParameters))
    }

    fn values(&self, u: &[f64]) -> Vec<f64> {
        self.bounds
            .iter()
            .zip(u)
            .map(|(b, u)| (b.min + u * (b.max - b.min)).clamp(b.min, b.max))
            .collect()
    }

    fn at(&self, u: &[f64]) -> Vec<f64> {
        (self.residuals)(&self.values(u))
    }

    fn loss(&self, r: &[f64]) -> f64 {
        r.iter().map(|r| self.options.loss.rho(*r)).sum()
    }

    fn start(&self, i: usize) -> Vec<f64> {
        self.bounds
            .iter()
            .enumerate()
            .map(|(j, b)| {
                let init = (b.init - b.min) / (b.max - b.min);
                if i == 0 {
                    return init;
                }
                let spread = van_der_corput(i + j / PRIMES.len(), PRIMES[j % PRIMES.len()]);
                // Half-way between guess and spread: priors are informed.
                0.5 * (init + spread)
            })
            .collect()
    }

    /// Derivatives of the residuals by forward differences, backward at an upper bound.
    fn jacobian(&self, u: &[f64], r: &[f64]) -> DMatrix<f64> {
        let columns: Vec<Vec<f64>> = (0..u.len())
            .into_par_iter()
            .map(|j| {
                let h = if u[j] + self.options.step <= 1.0 {
                    self.options.step
                } else {
                    -self.options.step
                };
                let mut v = u.to_vec();
                v[j] += h;
                self.at(&v)
                    .iter()
                    .zip(r)
                    .map(|(a, b)| {
                        let d = (a - b) / h;
                        if d.is_finite() { d } else { 0.0 }
                    })
                    .collect()
            })
            .collect();
        DMatrix::from_fn(r.len(), u.len(), |i, j| columns[j][i])
    }

    /// Weighted normal equations: `J' W J` and `J' W r`.
    fn normal(&self, u: &[f64], r: &[f64]) -> (DMatrix<f64>, DVector<f64>) {
        let mut j = self.jacobian(u, r);
        let mut wr = DVector::zeros(r.len());
        for (i, &x) in r.iter().enumerate() {
            let w = self.options.loss.weight(x).sqrt();
            j.row_mut(i).scale_mut(w);
            wr[i] = w * x;
        }
        (j.transpose() * &j, j.transpose() * wr)
    }

    fn descend(&self, u: Vec<f64>) -> Result<Point, FitError> {
        let r = self.at(&u);
        if r.len() < u.len() {
            return Err(FitError::TooFew {
                residuals: r.len(),
                parameters: u.len(),
            });
        }
        if let Some((index, &value)) = r.iter().enumerate().find(|(_, x)| !x.is_finite()) {
            return Err(FitError::NotFinite { index, value });
        }
        let loss = self.loss(&r);
        let mut p = Point {
            u,
            r,
            loss,
            iterations: 0,
            converged: false,
        };
        let mut damping = 1e-3;
        while p.iterations < self.options.max_iterations && !p.converged {
            p.iterations += 1;
            let (a, g) = self.normal(&p.u, &p.r);
            let free: Vec<usize> = (0..p.u.len())
                .filter(|&i| {
                    !(p.u[i] <= 0.0 && g[i] >= 0.0 || p.u[i] >= 1.0 && g[i] <= 0.0)
                        && a[(i, i)] > 0.0
                })
                .collect();
            if free.is_empty() {
                p.converged = true;
                break;
            }
            let mut moved = false;
            for _ in 0..12 {
                let target = self.target(&p.u, &a, &g, &free, damping);
                if target.as_ref() == Some(&p.u) {
                    // More damping moves nothing either.
                    break;
                }
                if let Some(next) = target.and_then(|u| self.lower(u, p.loss)) {
                    let gain = (p.loss - next.1) / p.loss.max(f64::MIN_POSITIVE);
                    p.converged = gain < self.options.tolerance;
                    (p.u, p.loss, p.r) = next;
                    damping = (damping * 0.3).max(1e-10);
                    moved = true;
                    break;
                }
                damping *= 4.0;
            }
            p.converged |= !moved;
        }
        Ok(p)
    }

    /// Where one damped, projected step from `u` leads.
    fn target(
        &self,
        u: &[f64],
        a: &DMatrix<f64>,
        g: &DVector<f64>,
        free: &[usize],
        damping: f64,
    ) -> Option<Vec<f64>> {
        let n = free.len();
        let m = DMatrix::from_fn(n, n, |i, j| {
            let x = a[(free[i], free[j])];
            if i == j { x * (1.0 + damping) } else { x }
        });
        let rhs = DVector::from_fn(n, |i, _| -g[free[i]]);
        let d = m.cholesky()?.solve(&rhs);
        let mut u = u.to_vec();
        for (i, &f) in free.iter().enumerate() {
            u[f] = (u[f] + d[i]).clamp(0.0, 1.0);
        }
        Some(u)
    }

    /// `u` with its loss and residuals; `None` where the loss is not below `loss`.
    fn lower(&self, u: Vec<f64>, loss: f64) -> Option<(Vec<f64>, f64, Vec<f64>)> {
        let r = self.at(&u);
        let new = self.loss(&r);
        (new.is_finite() && new < loss).then_some((u, new, r))
    }

    fn finish(&self, p: Point) -> FitResult {
        let n = p.u.len();
        let at_bound: Vec<Option<AtBound>> =
            p.u.iter()
                .map(|&u| {
                    if u <= 1e-9 {
                        Some(AtBound::Min)
                    } else if u >= 1.0 - 1e-9 {
                        Some(AtBound::Max)
                    } else {
                        None
                    }
                })
                .collect();
        let (a, _) = self.normal(&p.u, &p.r);
        let free: Vec<usize> = (0..n)
            .filter(|&i| at_bound[i].is_none() && a[(i, i)] > 0.0)
            .collect();
        let weighted: f64 =
            p.r.iter()
                .map(|r| self.options.loss.weight(*r) * r * r)
                .sum();
        let mut covariance = vec![vec![0.0; n]; n];
        let mut std_errors = vec![None; n];
        if !free.is_empty() {
            // Scaled to a unit diagonal, so that "tiny" means the same for every parameter.
            let scale: Vec<f64> = free.iter().map(|&i| a[(i, i)].sqrt()).collect();
            let scaled = DMatrix::from_fn(free.len(), free.len(), |i, j| {
                a[(free[i], free[j])] / (scale[i] * scale[j])
            });
            let eigen = scaled.symmetric_eigen();
            let known = |k: usize| eigen.eigenvalues[k] > 1e-10;
            let rank = (0..free.len()).filter(|&k| known(k)).count();
            let variance = weighted / p.r.len().saturating_sub(rank).max(1) as f64;
            let range = |i: usize| self.bounds[i].max - self.bounds[i].min;
            for (i, &fi) in free.iter().enumerate() {
                // A parameter with a share in a direction that the data do not determine has no error.
                let undetermined: f64 = (0..free.len())
                    .filter(|&k| !known(k))
                    .map(|k| eigen.eigenvectors[(i, k)].powi(2))
                    .sum();
                if undetermined > 1e-3 {
                    continue;
                }
                for (j, &fj) in free.iter().enumerate() {
                    let inverse: f64 = (0..free.len())
                        .filter(|&k| known(k))
                        .map(|k| {
                            eigen.eigenvectors[(i, k)] * eigen.eigenvectors[(j, k)]
                                / eigen.eigenvalues[k]
                        })
                        .sum();
                    covariance[fi][fj] =
                        variance * inverse / (scale[i] * scale[j]) * range(fi) * range(fj);
                }
                std_errors[fi] = Some(covariance[fi][fi].max(0.0).sqrt());
            }
            for i in 0..n {
                for j in 0..n {
                    if std_errors[i].is_none() || std_errors[j].is_none() {
                        covariance[i][j] = 0.0;
                    }
                }
            }
        }
        FitResult {
            values: self.values(&p.u),
            std_errors,
            covariance,
            at_bound,
            loss: p.loss,
            residuals: p.r,
            iterations: p.iterations,
            converged: p.converged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(xs: &[f64], f: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        xs.iter().map(|&x| (x, f(x))).collect()
    }

    fn fit_line(data: &[(f64, f64)], bounds: &[Bound], options: &Options) -> FitResult {
        bounded(
            |p| data.iter().map(|(x, y)| p[0] + p[1] * x - y).collect(),
            bounds,
            options,
        )
        .unwrap()
    }

    fn wide() -> [Bound; 2] {
        [
            Bound::new("a", 0.0, -10.0, 10.0),
            Bound::new("b", 0.0, -10.0, 10.0),
        ]
    }

    #[test]
    fn standard_errors_are_those_of_linear_regression() {
        // Closed form on x = 1..5 with residual pattern (+1, -1, 0, -1, +1), orthogonal to 1 and x.
        let noise = [1.0, -1.0, 0.0, -1.0, 1.0];
        let data: Vec<(f64, f64)> = (0..5)
            .map(|i| (i as f64 + 1.0, 2.0 + 0.5 * (i as f64 + 1.0) + noise[i]))
            .collect();
        let f = fit_line(&data, &wide(), &Options::default());
        assert!((f.values[0] - 2.0).abs() < 1e-6, "{:?}", f.values);
        assert!((f.values[1] - 0.5).abs() < 1e-6);
        let s2: f64 = 4.0 / 3.0;
        let expected = (s2 / 10.0).sqrt();
        assert!((f.std_errors[1].unwrap() - expected).abs() < 1e-6);
    }

    #[test]
    fn a_binding_bound_is_kept_and_reported() {
        let data = line(&[1.0, 2.0, 3.0, 4.0], |x| 1.0 + 3.0 * x);
        let bounds = [
            Bound::new("a", 0.0, -10.0, 10.0),
            Bound::new("b", 1.0, 0.0, 2.0),
        ];
        let f = fit_line(&data, &bounds, &Options::default());
        assert_eq!(f.at_bound, [None, Some(AtBound::Max)]);
        assert_eq!(f.values[1], 2.0);
        assert_eq!(f.std_errors[1], None);
        // The best intercept given slope 2 is the mean of y - 2x.
        assert!((f.values[0] - 3.5).abs() < 1e-6);
    }

    #[test]
    fn a_robust_loss_ignores_an_outlier_that_squares_follow() {
        let mut data = line(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], |x| 1.0 + 0.5 * x);
        data[6].1 = 60.0;
        let squares = fit_line(&data, &wide(), &Options::default());
        let options = Options {
            loss: Loss::SoftL1(0.01),
            ..Options::default()
        };
        let robust = fit_line(&data, &wide(), &options);
        assert!((squares.values[1] - 0.5).abs() > 1.0);
        assert!((robust.values[1] - 0.5).abs() < 0.05, "{:?}", robust.values);
    }

    #[test]
    fn further_starts_leave_a_local_minimum() {
        // sin has many minima; only the right frequency fits.
        let data: Vec<(f64, f64)> = (0..60)
            .map(|i| (i as f64 * 0.1, (5.0 * i as f64 * 0.1).sin()))
            .collect();
        let residuals =
            |p: &[f64]| -> Vec<f64> { data.iter().map(|(x, y)| (p[0] * x).sin() - y).collect() };
        let bounds = [Bound::new("w", 1.0, 0.1, 10.0)];
        let one = bounded(residuals, &bounds, &Options::default()).unwrap();
        let many = bounded(
            residuals,
            &bounds,
            &Options {
                starts: 24,
                ..Options::default()
            },
        )
        .unwrap();
        assert!(one.loss > 1.0);
        assert!((many.values[0] - 5.0).abs() < 1e-4, "{:?}", many.values);
    }

    #[test]
    fn a_parameter_without_influence_has_no_standard_error() {
        let f = bounded(
            |p| vec![p[0] - 1.0, p[0] - 1.1, p[0] - 0.9],
            &wide(),
            &Options::default(),
        )
        .unwrap();
        assert!(f.std_errors[0].is_some());
        assert_eq!(f.std_errors[1], None);
    }

    #[test]
    fn two_parameters_that_only_show_as_a_sum_have_no_standard_error_and_others_keep_theirs() {
        let bounds = [
            Bound::new("a", 0.1, -10.0, 10.0),
            Bound::new("b", 0.2, -10.0, 10.0),
            Bound::new("slope", 0.0, -10.0, 10.0),
        ];
        let noise = [0.1, -0.1, 0.0, -0.1, 0.1];
        let f = bounded(
            |p| {
                (0..5)
                    .map(|i| p[0] + p[1] + p[2] * (i as f64 - 2.0) - 1.0 - noise[i])
                    .collect()
            },
            &bounds,
            &Options::default(),
        )
        .unwrap();
        assert_eq!(f.std_errors[0], None);
        assert_eq!(f.std_errors[1], None);
        let s = f.std_errors[2].unwrap();
        // Five residuals less the two directions that the data determine.
        assert!((s - (0.04f64 / 3.0 / 10.0).sqrt()).abs() < 1e-4, "{s}");
    }

    #[test]
    fn malformed_input_is_refused_with_its_reason() {
        let o = Options::default();
        assert_eq!(bounded(|_| vec![], &[], &o), Err(FitError::NoParameters));
        let upside_down = [Bound::new("x", 0.5, 1.0, 0.0)];
        assert!(matches!(
            bounded(|_| vec![1.0], &upside_down, &o),
            Err(FitError::BadBound { .. })
        ));
        let ok = [Bound::new("x", 0.5, 0.0, 1.0)];
        assert!(matches!(
            bounded(|_| vec![f64::NAN, 1.0], &ok, &o),
            Err(FitError::NotFinite { index: 0, .. })
        ));
        assert!(matches!(
            bounded(|_| vec![], &ok, &o),
            Err(FitError::TooFew { .. })
        ));
    }
}
