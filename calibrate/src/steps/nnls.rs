//! Non-negative least squares on normal equations, and its robust form.
//!
//! Lawson and Hanson's active-set method ("Solving Least Squares Problems", 1974, chapter 23) on `A = X'WX`, `c = X'Wy`, with
//! columns scaled to a unit diagonal. Robust: iteratively reweighted, first with Huber's weights, then with Tukey's
//! bisquare, whose influence of a far outlier is nil (Huber and Ronchetti, "Robust Statistics", 2009).

use nalgebra::{DMatrix, DVector};

use super::terms::COLUMNS;

const K: usize = COLUMNS.len();

/// Tukey's constant for 95 % efficiency under normal errors, in robust standard deviations.
const TUKEY: f64 = 4.685;
/// Huber's, likewise.
const HUBER: f64 = 1.345;
/// Share of the column's own scale below which a direction counts as not in the data.
const RANK: f64 = 1e-10;

/// Sums over steps that least squares need.
#[derive(Clone, Debug, PartialEq)]
pub struct Normal {
    /// `X'WX`.
    pub a: [[f64; K]; K],
    /// `X'Wy`.
    pub c: [f64; K],
    /// `y'Wy`.
    pub yy: f64,
}

impl Default for Normal {
    fn default() -> Normal {
        Normal {
            a: [[0.0; K]; K],
            c: [0.0; K],
            yy: 0.0,
        }
    }
}

impl Normal {
    /// Adds a step with columns `x`, time `y` and weight `w`.
    pub fn add(&mut self, x: &[f64; K], y: f64, w: f64) {
        for i in 0..K {
            let wx = w * x[i];
            for (a, xj) in self.a[i].iter_mut().zip(x) {
                *a += wx * xj;
            }
            self.c[i] += wx * y;
        }
        self.yy += w * y * y;
    }

    /// Adds the sums `o`, `n` times, with its times multiplied by `factor`.
    pub fn merge(&mut self, o: &Normal, n: f64, factor: f64) {
        for i in 0..K {
            for j in 0..K {
                self.a[i][j] += n * o.a[i][j];
            }
            self.c[i] += n * factor * o.c[i];
        }
        self.yy += n * factor * factor * o.yy;
    }

    /// Weighted sum of squared residuals at `beta`.
    pub fn loss(&self, beta: &[f64; K]) -> f64 {
        let mut loss = self.yy;
        for i in 0..K {
            loss -= 2.0 * self.c[i] * beta[i];
            for j in 0..K {
                loss += beta[i] * self.a[i][j] * beta[j];
            }
        }
        loss.max(0.0)
    }

    /// The non-negative coefficients with the least loss, of `columns` only.
    pub fn solve(&self, columns: &[usize]) -> [f64; K] {
        let mut beta = [0.0; K];
        let used: Vec<usize> = columns
            .iter()
            .copied()
            .filter(|&i| self.a[i][i] > 0.0)
            .collect();
        let n = used.len();
        if n == 0 {
            return beta;
        }
        let scale: Vec<f64> = used.iter().map(|&i| self.a[i][i].sqrt()).collect();
        let a = DMatrix::from_fn(n, n, |i, j| {
            self.a[used[i]][used[j]] / (scale[i] * scale[j])
        });
        let c = DVector::from_fn(n, |i, _| self.c[used[i]] / scale[i]);
        for ((&i, s), x) in used.iter().zip(&scale).zip(active_set(&a, &c).iter()) {
            beta[i] = x / s;
        }
        beta
    }
}

/// Lawson and Hanson's algorithm.
fn active_set(a: &DMatrix<f64>, c: &DVector<f64>) -> DVector<f64> {
    let n = c.len();
    let mut x = DVector::zeros(n);
    let mut passive = vec![false; n];
    let tolerance = 1e-11 * c.amax().max(f64::MIN_POSITIVE);
    // Each column enters a few times at most; the limit only guards against rounding.
    for _ in 0..6 * n {
        let gradient = c - a * &x;
        let enters = (0..n)
            .filter(|&i| !passive[i] && gradient[i] > tolerance)
            .max_by(|&i, &j| gradient[i].total_cmp(&gradient[j]));
        let Some(steepest) = enters else { break };
        // Of columns that are the same, the first: a fixed time rather than one per sequence.
        let as_steep =
            |i: &usize| !passive[*i] && gradient[*i] >= (1.0 - 1e-9) * gradient[steepest];
        let enters = (0..n).find(as_steep).unwrap_or(steepest);
        passive[enters] = true;
        for _ in 0..=n {
            let set: Vec<usize> = (0..n).filter(|&i| passive[i]).collect();
            let Some(z) = subsolve(a, c, &set) else {
                // It adds nothing that the others do not have.
                passive[enters] = false;
                break;
            };
            if z.iter().all(|v| *v > 0.0) {
                x.fill(0.0);
                for (k, &i) in set.iter().enumerate() {
                    x[i] = z[k];
                }
                break;
            }
            // As far towards z as all stay non-negative.
            let step = set
                .iter()
                .enumerate()
                .filter(|(k, _)| z[*k] <= 0.0)
                .map(|(k, &i)| x[i] / (x[i] - z[k]).max(f64::MIN_POSITIVE))
                .fold(1.0, f64::min);
            for (k, &i) in set.iter().enumerate() {
                x[i] += step * (z[k] - x[i]);
                if x[i] <= 1e-14 {
                    x[i] = 0.0;
                    passive[i] = false;
                }
            }
        }
    }
    x
}

fn subsolve(a: &DMatrix<f64>, c: &DVector<f64>, set: &[usize]) -> Option<DVector<f64>> {
    let n = set.len();
    if n == 0 {
        return Some(DVector::zeros(0));
    }
    let m = DMatrix::from_fn(n, n, |i, j| a[(set[i], set[j])]);
    let rhs = DVector::from_fn(n, |i, _| c[set[i]]);
    let chol = m.cholesky()?;
    let smallest = (0..n)
        .map(|i| chol.l_dirty()[(i, i)].powi(2))
        .fold(f64::INFINITY, f64::min);
    (smallest > RANK).then(|| chol.solve(&rhs))
}

/// A robust fit.
#[derive(Clone, Debug)]
pub struct Robust {
    /// Coefficients [s].
    pub beta: [f64; K],
    /// Weight of each step in the last round, its count and squared scale included.
    pub weights: Vec<f64>,
    /// Robust standard deviation of the residuals, in units of their scale.
    pub sigma: f64,
}

/// Fits `y` on `rows` with non-negative coefficients of `columns`. Residual `i` is taken in units of `scales[i]` and
/// counts `counts[i]` times.
pub fn robust(
    rows: &[[f64; K]],
    y: &[f64],
    scales: &[f64],
    counts: &[f64],
    columns: &[usize],
    rounds: usize,
) -> Robust {
    let mut robustness = vec![1.0; y.len()];
    let mut out = Robust {
        beta: [0.0; K],
        weights: Vec::new(),
        sigma: 0.0,
    };
    for round in 0..rounds.max(1) {
        let weights: Vec<f64> = (robustness.iter().zip(counts).zip(scales))
            .map(|((r, n), s)| r * n / (s * s))
            .collect();
        let mut sums = Normal::default();
        for ((x, y), w) in rows.iter().zip(y).zip(&weights) {
            sums.add(x, *y, *w);
        }
        out.weights = weights;
        let beta = sums.solve(columns);
        let residuals: Vec<f64> = rows
            .iter()
            .zip(y)
            .zip(scales)
            .map(|((x, y), s)| (y - dot(x, &beta)) / s)
            .collect();
        let sigma = deviation(&residuals, counts).max(1e-9);
        let moved = (0..K).any(|i| (beta[i] - out.beta[i]).abs() > 1e-7 * beta[i].abs());
        (out.beta, out.sigma) = (beta, sigma);
        if !moved && round > rounds / 2 {
            break;
        }
        let huber = round < rounds / 2;
        for (w, r) in robustness.iter_mut().zip(&residuals) {
            let t = r.abs() / sigma;
            *w = if huber {
                (HUBER / t.max(HUBER)).min(1.0)
            } else if t < TUKEY {
                (1.0 - (t / TUKEY).powi(2)).powi(2)
            } else {
                0.0
            };
        }
    }
    out
}

/// `x . beta`.
pub fn dot(x: &[f64; K], beta: &[f64; K]) -> f64 {
    x.iter().zip(beta).map(|(x, b)| x * b).sum()
}

/// Robust standard deviation: 1.4826 times the median absolute value, where value `i` counts `counts[i]` times.
pub fn deviation(residuals: &[f64], counts: &[f64]) -> f64 {
    let mut sizes: Vec<(f64, f64)> = (residuals.iter().zip(counts))
        .map(|(r, n)| (r.abs(), *n))
        .collect();
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = 0.5 * counts.iter().sum::<f64>();
    let mut below = 0.0;
    for (size, n) in &sizes {
        below += n;
        if below >= half {
            return 1.4826 * size;
        }
    }
    0.0
}
