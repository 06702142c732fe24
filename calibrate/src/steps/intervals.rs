//! How far each parameter is known: blocks of consecutive steps drawn anew (Kuensch 1989), since the steps of a run are
//! not independent of each other.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rayon::prelude::*;

use super::log::Step;
use super::nnls::Normal;
use super::shape::Solved;
use super::terms::{COLUMNS, Equation, Shape, column, row};
use crate::collectives::quantile;

/// Draws.
const DRAWS: u64 = 300;
/// Blocks that a run is cut into.
const BLOCKS: usize = 60;
/// Fewest steps of a block.
const BLOCK: usize = 8;
/// Crossovers tried in each draw, as factors on the fitted one.
const FACTORS: [f64; 9] = [0.4, 0.6, 0.75, 0.9, 1.0, 1.1, 1.33, 1.7, 2.5];
/// Norms tried in each draw, likewise.
const SHARPER: [f64; 3] = [0.6, 1.0, 1.6];
/// Seed of the draws.
const SEED: u64 = 20;

/// A parameter's interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Interval {
    /// Lower end, 2.5 % of the draws below.
    pub low: f64,
    /// Upper end, 2.5 % above.
    pub high: f64,
    /// Standard deviation over the draws.
    pub std_error: f64,
}

/// Intervals of the coefficients, and of the time that reading the weights takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervals {
    /// By column.
    pub beta: [Interval; COLUMNS.len()],
    /// `step.weights_s`.
    pub weights: Interval,
    /// Correlation of each pair of coefficients over the draws.
    pub correlation: [[f64; COLUMNS.len()]; COLUMNS.len()],
}

/// Draws blocks of `steps` (of which each file's are consecutive) and fits again each time.
pub fn bootstrap(steps: &[Step], solved: &Solved, equations: &[Equation]) -> Intervals {
    let shape = solved.fitted.shape;
    let size = steps.len().div_ceil(BLOCKS).max(BLOCK);
    let blocks: Vec<&[Step]> = steps.chunks(size).collect();
    let shapes: Vec<Shape> = if shape.crossover > 0.0 {
        let with = |factor: f64| {
            SHARPER.map(|sharper| Shape {
                crossover: shape.crossover * factor,
                sharpness: (shape.sharpness * sharper).max(1.2),
                ..shape
            })
        };
        FACTORS.into_iter().flat_map(with).collect()
    } else {
        vec![shape]
    };
    // Sums by shape, equation and block: a draw only adds them up.
    let sums: Vec<Vec<Vec<Normal>>> = shapes
        .par_iter()
        .map(|shape| {
            equations
                .iter()
                .zip(&solved.each)
                .map(|(e, robust)| {
                    let mut at = 0;
                    blocks
                        .iter()
                        .map(|block| {
                            let mut sum = Normal::default();
                            for s in *block {
                                let y = (e.value)(s).unwrap_or(0.0);
                                sum.add(&row(&s.stats, shape), y, robust.weights[at]);
                                at += 1;
                            }
                            sum
                        })
                        .collect()
                })
                .collect()
        })
        .collect();
    let draws: Vec<([f64; COLUMNS.len()], f64)> = (0..DRAWS)
        .into_par_iter()
        .map(|d| {
            let mut rng = StdRng::seed_from_u64(SEED.wrapping_mul(1_000_003) + d);
            let picks: Vec<usize> = (0..blocks.len())
                .map(|_| rng.random_range(0..blocks.len()))
                .collect();
            let mut best = ([0.0; COLUMNS.len()], 0.0, f64::INFINITY);
            for (shape, sums) in shapes.iter().zip(&sums) {
                let (mut beta, mut loss) = ([0.0; COLUMNS.len()], 0.0);
                for (e, of_blocks) in equations.iter().zip(sums) {
                    let mut total = Normal::default();
                    for &p in &picks {
                        total.merge(&of_blocks[p]);
                    }
                    let part = total.solve(e.columns);
                    loss += total.loss(&part);
                    for (b, x) in beta.iter_mut().zip(&part) {
                        *b += x;
                    }
                }
                if loss < best.2 {
                    let weights = beta[column::PRODUCT] * shape.crossover;
                    best = (beta, weights, loss);
                }
            }
            (best.0, best.1)
        })
        .collect();
    let column = |i: usize| -> Vec<f64> { draws.iter().map(|d| d.0[i]).collect() };
    let columns: Vec<Vec<f64>> = (0..COLUMNS.len()).map(column).collect();
    let mut correlation = [[0.0; COLUMNS.len()]; COLUMNS.len()];
    for i in 0..COLUMNS.len() {
        for j in 0..COLUMNS.len() {
            correlation[i][j] = correlated(&columns[i], &columns[j]);
        }
    }
    let mut beta = [Interval::default(); COLUMNS.len()];
    for (b, c) in beta.iter_mut().zip(&columns) {
        *b = interval(c);
    }
    let weights: Vec<f64> = draws.iter().map(|d| d.1).collect();
    Intervals {
        beta,
        weights: interval(&weights),
        correlation,
    }
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len().max(1) as f64
}

/// The interval of 95 % of `values`.
pub fn interval(values: &[f64]) -> Interval {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let m = mean(values);
    let variance =
        values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (values.len().max(2) - 1) as f64;
    Interval {
        low: quantile(&sorted, 0.025),
        high: quantile(&sorted, 0.975),
        std_error: variance.sqrt(),
    }
}

fn correlated(a: &[f64], b: &[f64]) -> f64 {
    let (ma, mb) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        ab += (x - ma) * (y - mb);
        aa += (x - ma).powi(2);
        bb += (y - mb).powi(2);
    }
    if aa <= 0.0 || bb <= 0.0 {
        return 0.0;
    }
    ab / (aa * bb).sqrt()
}
