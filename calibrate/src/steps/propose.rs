//! Which load to measure next: of a list of candidates, those that narrow the answer most (optimal design of experiments:
//! Atkinson, Donev and Tobias, "Optimum Experimental Designs", 2007).
//!
//! Each candidate is a closed loop of equal requests for a fixed time. Its steps follow from concurrency and lengths, their
//! number from the fitted step time. Two criteria: V, the mean variance of predicted step times over all candidates'
//! steps (what predictions gain), by which loads are ranked; and D, the geometric mean of the parameters' standard errors.

use hwmodels::BatchStats;
use nalgebra::{DMatrix, DVector};

use super::Fitted;
use super::log::Step;
use super::terms::{COLUMNS, Shape, column, row};

/// Parameters: the columns, and the crossover.
const K: usize = COLUMNS.len() + 1;
/// Time that each candidate is measured for [s].
pub const SECONDS: f64 = 20.0;
/// Loads that are proposed, one after the other.
const PROPOSED: usize = 3;

/// A load that could be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Load {
    /// Requests that are always under way (closed loop).
    pub concurrency: u32,
    /// Prompt length [tokens].
    pub prompt: u32,
    /// Output length [tokens].
    pub output: u32,
}

/// A load with what it is expected to bring, after those proposed before it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Proposal {
    /// The load.
    pub load: Load,
    /// Expected standard error of predicted step times afterwards, as a share of that before [ratio].
    pub prediction_error_ratio: f64,
    /// The same of the parameters, geometric mean [ratio].
    pub parameter_error_ratio: f64,
}

/// What the engine allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowed {
    /// Requests that may run at once.
    pub max_num_seqs: u32,
    /// Token budget of a step.
    pub max_num_batched_tokens: u32,
    /// Longest prompt and output together.
    pub max_model_len: u32,
}

/// The candidates within `allowed`.
fn candidates(allowed: &Allowed) -> Vec<Load> {
    let mut all = Vec::new();
    for concurrency in [1, 2, 4, 8, 16, 32, 64, 128] {
        for prompt in [8, 64, 256, 1024] {
            for output in [2, 32, 128, 512] {
                if concurrency <= allowed.max_num_seqs && prompt + output <= allowed.max_model_len {
                    all.push(Load {
                        concurrency,
                        prompt,
                        output,
                    });
                }
            }
        }
    }
    all
}

/// Kinds of steps that `load` makes, with how often each occurs in [`SECONDS`].
fn steps_of(load: &Load, fitted: &Fitted, allowed: &Allowed) -> Vec<(BatchStats, f64)> {
    let mut kinds = Vec::new();
    let others = load.concurrency - 1;
    let middle = load.prompt + load.output / 2;
    // Prompts come while the others decode, in chunks of the budget.
    let budget = allowed.max_num_batched_tokens.saturating_sub(others).max(1);
    let mut done = 0;
    while done < load.prompt {
        let n = budget.min(load.prompt - done);
        let mut b = BatchStats::default();
        for _ in 0..others {
            b.add_decode(middle);
        }
        b.add_prefill(n, done, done + n == load.prompt);
        kinds.push((b, f64::from(load.concurrency)));
        done += n;
    }
    // Decodes at the beginning, middle and end of the outputs.
    for at in [1, load.output / 2, load.output - 1] {
        if at == 0 {
            continue;
        }
        let mut b = BatchStats::default();
        for _ in 0..load.concurrency {
            b.add_decode(load.prompt + at);
        }
        kinds.push((b, f64::from(load.output - 1) / 3.0));
    }
    let round: f64 = kinds.iter().map(|(b, n)| n * fitted.predict(b)).sum();
    let rounds = SECONDS / round.max(1e-6);
    kinds.iter().map(|(b, n)| (*b, n * rounds)).collect()
}

/// Derivatives of a step's predicted time by all parameters, over that time.
fn gradient(b: &BatchStats, fitted: &Fitted) -> DVector<f64> {
    let x = row(b, &fitted.shape);
    let y = fitted.predict(b).max(1e-9);
    let mut g = DVector::zeros(K);
    for i in 0..COLUMNS.len() {
        g[i] = x[i] / y;
    }
    if fitted.shape.crossover > 0.0 {
        let h = 0.01 * fitted.shape.crossover;
        let moved = Shape {
            crossover: fitted.shape.crossover + h,
            ..fitted.shape
        };
        let tokens = f64::from(b.tokens());
        g[K - 1] = fitted.beta[column::PRODUCT] * (moved.of(tokens) - x[column::PRODUCT]) / h / y;
    }
    g
}

/// Loads that narrow the fit most, the best first, each on top of those before it. `sigma` is the relative deviation of a
/// measured step, `steps` what was measured.
pub fn propose(steps: &[Step], fitted: &Fitted, sigma: f64, allowed: &Allowed) -> Vec<Proposal> {
    let information = |rows: &[(DVector<f64>, f64)]| {
        let mut m = DMatrix::<f64>::zeros(K, K);
        for (g, n) in rows {
            m.ger(n / (sigma * sigma).max(1e-8), g, g, 1.0);
        }
        m
    };
    let all = candidates(allowed);
    let loads: Vec<Vec<(DVector<f64>, f64)>> = all
        .iter()
        .map(|l| {
            steps_of(l, fitted, allowed)
                .iter()
                .map(|(b, n)| (gradient(b, fitted), *n))
                .collect()
        })
        .collect();
    let measured: Vec<(DVector<f64>, f64)> = steps
        .iter()
        .map(|s| (gradient(&s.stats, fitted), 1.0))
        .collect();
    let target: Vec<&DVector<f64>> = loads.iter().flatten().map(|(g, _)| g).collect();
    if target.is_empty() || measured.is_empty() {
        return Vec::new();
    }
    // Scaled so that "nothing known" is the same for every parameter: an error as large as the step itself.
    let size = DVector::from_fn(K, |i, _| {
        let most = target.iter().map(|g| g[i].abs()).fold(0.0, f64::max);
        if most > 0.0 { 1.0 / most } else { 1.0 }
    });
    let scale = |m: DMatrix<f64>| DMatrix::from_fn(K, K, |i, j| m[(i, j)] * size[i] * size[j]);
    let prior = DMatrix::<f64>::identity(K, K);
    let judge = |m: &DMatrix<f64>| -> Option<(f64, f64)> {
        let chol = m.clone().cholesky()?;
        let log_det: f64 = (0..K).map(|i| 2.0 * chol.l_dirty()[(i, i)].ln()).sum();
        let variance: f64 = target
            .iter()
            .map(|g| {
                let g = g.component_mul(&size);
                g.dot(&chol.solve(&g))
            })
            .sum();
        Some((variance / target.len() as f64, log_det))
    };
    let infos: Vec<DMatrix<f64>> = loads.iter().map(|l| scale(information(l))).collect();
    let mut now = scale(information(&measured)) + prior;
    let mut out = Vec::new();
    while out.len() < PROPOSED {
        let Some((variance, log_det)) = judge(&now) else {
            break;
        };
        let best = infos
            .iter()
            .enumerate()
            .filter_map(|(i, m)| judge(&(&now + m)).map(|j| (i, j)))
            .min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let Some((i, (after, after_det))) = best else {
            break;
        };
        out.push(Proposal {
            load: all[i],
            prediction_error_ratio: (after / variance.max(1e-300)).sqrt(),
            parameter_error_ratio: (-(after_det - log_det) / (2.0 * K as f64)).exp(),
        });
        now += &infos[i];
    }
    out
}
