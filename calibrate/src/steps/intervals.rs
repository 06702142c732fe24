//! How far each parameter is known: the logs drawn anew many times, and fitted again each time.
//!
//! Steps are not independent of each other: a machine is faster in one second than in the next, and in one load than in another.
//! So each draw takes from every log blocks of consecutive steps, of a length in time that outlasts such phases, beginning anywhere
//! (moving blocks, Künsch 1989; the log's end joined to its beginning, so that every step is drawn equally often, Politis
//! and Romano 1992); and it gives every log a speed of its own, as different from the others' as
//! [`super::steadiness`] found the same batches to be. Whole logs are not drawn: a fit has few, each with batches
//! that no other shows, and a draw without the only load of single users says nothing about single users.

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
/// Length of a block [s]: the level of steps like each other moves within a second and more on machines that are shared.
const BLOCK_SECONDS: f64 = 2.0;
/// Blocks that a log is cut into at least and at most, whatever its length.
const BLOCKS: [f64; 2] = [5.0, 60.0];
/// Places in a block's length at which another may begin.
const PIECES: usize = 4;
/// Crossovers tried in each draw, as factors on the fitted one.
const FACTORS: [f64; 9] = [0.4, 0.6, 0.75, 0.9, 1.0, 1.1, 1.33, 1.7, 2.5];
/// Overlaps (`1 / sharpness`) tried in each draw, beside the fitted one.
const OVERLAPS: [f64; 5] = [-0.25, -0.12, 0.0, 0.12, 0.25];
/// Least and largest overlap.
const OVERLAP_BOUNDS: [f64; 2] = [0.0625, 1.0];
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
}

/// Pieces of one log, in order: indices of the first step and of that after the last, counted over all logs.
type Pieces = Vec<(usize, usize)>;

/// Cuts a log whose first step is number `first` into pieces of a [`PIECES`]th of a block.
fn pieces(steps: &[Step], first: usize) -> Pieces {
    let (Some(a), Some(z)) = (steps.first(), steps.last()) else {
        return Vec::new();
    };
    let span = (z.start + z.seconds - a.start).max(1e-9);
    let block = BLOCK_SECONDS.clamp(span / BLOCKS[1], span / BLOCKS[0]);
    let of = |s: &Step| ((s.start - a.start) / block * PIECES as f64).floor() as i64;
    let mut out: Pieces = Vec::new();
    for (i, s) in steps.iter().enumerate() {
        match out.last_mut() {
            Some(last) if i > 0 && of(&steps[i - 1]) == of(s) => last.1 = first + i + 1,
            _ => out.push((first + i, first + i + 1)),
        }
    }
    out
}

/// The shapes that draws choose from.
fn shapes(fitted: Shape) -> Vec<Shape> {
    if fitted.crossover <= 0.0 {
        return vec![fitted];
    }
    let [least, most] = OVERLAP_BOUNDS;
    let mut overlaps = OVERLAPS
        .map(|o| (1.0 / fitted.sharpness + o).clamp(least, most))
        .to_vec();
    overlaps.dedup();
    FACTORS
        .iter()
        .flat_map(|factor| {
            overlaps.iter().map(move |overlap| Shape {
                crossover: fitted.crossover * factor,
                sharpness: 1.0 / overlap,
                ..fitted
            })
        })
        .collect()
}

/// Sums of an equation by piece.
fn sums(
    e: &Equation,
    shape: &Shape,
    steps: &[Step],
    weights: &[f64],
    pieces: &[Pieces],
) -> Vec<Vec<Normal>> {
    let of = |&(from, to): &(usize, usize)| {
        let mut sum = Normal::default();
        for (s, w) in steps[from..to].iter().zip(&weights[from..to]) {
            sum.add(&row(&s.stats, shape), (e.value)(s).unwrap_or(0.0), *w);
        }
        sum
    };
    (pieces.iter())
        .map(|log| log.iter().map(of).collect())
        .collect()
}

/// One draw: for every log the pieces that are taken, with how often, and the factor on its times.
struct Draw {
    logs: Vec<(Vec<f64>, f64)>,
}

impl Draw {
    fn new(pieces: &[Pieces], level_deviation: f64, rng: &mut StdRng) -> Draw {
        let logs = pieces
            .iter()
            .map(|log| {
                let n = log.len();
                let mut often = vec![0.0; n];
                for _ in 0..n.div_ceil(PIECES) {
                    let from = rng.random_range(0..n);
                    for k in 0..PIECES.min(n) {
                        often[(from + k) % n] += 1.0;
                    }
                }
                // The sum of twelve uniform numbers is near enough to a normal one.
                let z = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
                (often, (level_deviation * z).exp())
            })
            .collect();
        Draw { logs }
    }

    /// The sums that this draw gives.
    fn total(&self, sums: &[Vec<Normal>]) -> Normal {
        let mut total = Normal::default();
        for ((often, level), of_pieces) in self.logs.iter().zip(sums) {
            for (n, sum) in often.iter().zip(of_pieces).filter(|(n, _)| **n > 0.0) {
                total.merge(sum, *n, *level);
            }
        }
        total
    }
}

/// Draws `logs` anew and fits again each time. `level_deviation` is the standard deviation of the machine's speed between logs.
pub fn bootstrap(
    logs: &[&[Step]],
    solved: &Solved,
    equations: &[Equation],
    level_deviation: f64,
) -> Intervals {
    let steps: Vec<Step> = logs.concat();
    let mut first = 0;
    let pieces: Vec<Pieces> = logs
        .iter()
        .filter(|log| !log.is_empty())
        .map(|log| {
            first += log.len();
            pieces(log, first - log.len())
        })
        .collect();
    let shapes = shapes(solved.fitted.shape);
    // Sums by equation and shape: a draw only adds them up. Only equations with products depend on the shape.
    let sums: Vec<Vec<Vec<Vec<Normal>>>> = equations
        .iter()
        .zip(&solved.each)
        .map(|(e, robust)| {
            let bent = e.columns.contains(&column::PRODUCT);
            let tried = if bent { &shapes[..] } else { &shapes[..1] };
            (tried.par_iter())
                .map(|shape| sums(e, shape, &steps, &robust.weights, &pieces))
                .collect()
        })
        .collect();
    let draws: Vec<([f64; COLUMNS.len()], f64)> = (0..DRAWS)
        .into_par_iter()
        .map(|d| {
            let mut rng = StdRng::seed_from_u64(SEED.wrapping_mul(1_000_003) + d);
            let draw = Draw::new(&pieces, level_deviation, &mut rng);
            let (mut beta, mut weights) = ([0.0; COLUMNS.len()], 0.0);
            for (e, tried) in equations.iter().zip(&sums) {
                let fits = tried.iter().zip(&shapes).map(|(sums, shape)| {
                    let total = draw.total(sums);
                    let part = total.solve(e.columns);
                    (total.loss(&part), part, shape)
                });
                let Some((_, part, shape)) = fits.min_by(|a, b| a.0.total_cmp(&b.0)) else {
                    continue;
                };
                weights += part[column::PRODUCT] * shape.crossover;
                for (b, x) in beta.iter_mut().zip(&part) {
                    *b += x;
                }
            }
            (beta, weights)
        })
        .collect();
    let mut beta = [Interval::default(); COLUMNS.len()];
    for (i, b) in beta.iter_mut().enumerate() {
        *b = interval(&draws.iter().map(|d| d.0[i]).collect::<Vec<f64>>());
    }
    let weights: Vec<f64> = draws.iter().map(|d| d.1).collect();
    Intervals {
        beta,
        weights: interval(&weights),
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
