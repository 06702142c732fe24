//! The shape of the matrix products' time, and the fit of all coefficients given it.
//!
//! The shape is not linear, so it is found by a profile likelihood: on a grid of shapes the linear coefficients
//! are fitted, and the shape with the least robust loss wins, refined around the best. All of it is deterministic.

use rayon::prelude::*;

use super::log::{Parts, Step};
use super::nnls::{Robust, dot, robust};
use super::terms::{COLUMNS, Equation, PARTS, PARTS_WITHOUT_HEAD, Shape, TOTAL, column, row};
use super::{Coefficients, Fitted};

/// Steps that the search for the shape looks at.
const SEARCHED: usize = 1500;
/// Rounds of reweighting in the search, and in the fit.
const SEARCH_ROUNDS: usize = 6;
const FIT_ROUNDS: usize = 30;
/// Scale of the robust loss that shapes are compared by, as a share of a step.
const LOSS_SCALE: f64 = 0.01;
/// A tile or a bend must lower the loss by this share to be believed.
const GAIN: f64 = 0.03;
/// Norms that are tried.
const SHARPNESSES: [f64; 6] = [1.5, 2.0, 3.0, 4.0, 8.0, 16.0];
/// Tiles that are tried [tokens].
const TILES: [f64; 8] = [2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 48.0];

/// Arithmetic alone: what is believed where nothing speaks for a bend.
const STRAIGHT: Shape = Shape {
    crossover: 0.0,
    sharpness: 4.0,
    tile: 1.0,
};

/// The equations that all of `steps` give.
pub fn equations(steps: &[Step]) -> &'static [Equation] {
    let all = |has: fn(&Parts) -> bool| {
        !steps.is_empty() && steps.iter().all(|s| s.parts.as_ref().is_some_and(has))
    };
    if all(|p| p.lm_head.is_some()) {
        &PARTS
    } else if all(|_| true) {
        &PARTS_WITHOUT_HEAD
    } else {
        &TOTAL
    }
}

/// A fit of every equation.
#[derive(Clone, Debug)]
pub struct Solved {
    /// Shape and summed coefficients.
    pub fitted: Fitted,
    /// Each equation's own fit, in their order.
    pub each: Vec<Robust>,
}

/// Fits the coefficients of all equations, given the shape.
pub fn solve(steps: &[Step], shape: Shape, equations: &[Equation], rounds: usize) -> Solved {
    let rows: Vec<[f64; COLUMNS.len()]> = steps.iter().map(|s| row(&s.stats, &shape)).collect();
    let measured: Vec<f64> = steps.iter().map(|s| s.seconds.max(1e-9)).collect();
    let pass = |scales: &[f64]| -> (Coefficients, Vec<Robust>) {
        let each: Vec<Robust> = equations
            .iter()
            .map(|e| {
                let y: Vec<f64> = steps.iter().map(|s| (e.value)(s).unwrap_or(0.0)).collect();
                robust(&rows, &y, scales, e.columns, rounds)
            })
            .collect();
        let mut beta = [0.0; COLUMNS.len()];
        for r in &each {
            for (b, x) in beta.iter_mut().zip(&r.beta) {
                *b += x;
            }
        }
        (beta, each)
    };
    let (first, _) = pass(&measured);
    // Relative to what is predicted, so that a slow step counts no less than a fast one.
    let typical = median(&measured);
    let scales: Vec<f64> = rows
        .iter()
        .map(|x| dot(x, &first).max(0.05 * typical))
        .collect();
    let (beta, each) = pass(&scales);
    Solved {
        fitted: Fitted { shape, beta },
        each,
    }
}

/// The middle of `values`.
pub fn median(values: &[f64]) -> f64 {
    crate::statistics::median(values.to_vec()).unwrap_or(0.0)
}

/// Finds the shape and fits all coefficients.
pub fn fit(steps: &[Step]) -> Solved {
    let equations = equations(steps);
    let shape = search(steps, &equations[0]);
    solve(steps, shape, equations, FIT_ROUNDS)
}

/// Robust loss of the best coefficients of `e` with `shape`, per step.
fn loss(steps: &[Step], shape: Shape, e: &Equation) -> f64 {
    let fit = solve(steps, shape, std::slice::from_ref(e), SEARCH_ROUNDS);
    let sum: f64 = steps
        .iter()
        .map(|s| {
            let y = (e.value)(s).unwrap_or(0.0);
            let r = (y - fit.fitted.predict(&s.stats)) / s.seconds.max(1e-9) / LOSS_SCALE;
            (1.0 + r * r).sqrt() - 1.0
        })
        .sum();
    sum / steps.len().max(1) as f64
}

/// The shape that explains `e` best.
fn search(steps: &[Step], e: &Equation) -> Shape {
    let sample = thinned(steps);
    let most = sample
        .iter()
        .map(|s| f64::from(s.stats.tokens()))
        .fold(1.0, f64::max);
    let straight = loss(&sample, STRAIGHT, e);
    let best = |shapes: Vec<Shape>| -> (f64, Shape) {
        shapes
            .into_par_iter()
            .map(|s| (loss(&sample, s, e), s))
            .collect::<Vec<_>>()
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::INFINITY, STRAIGHT))
    };
    // Beyond the largest batch a crossover cannot be told from a fixed time.
    let points = 14;
    let step = (most.max(2.0) / 0.5).powf(1.0 / f64::from(points - 1));
    let coarse = (0..points).flat_map(|i| {
        SHARPNESSES.map(|sharpness| Shape {
            crossover: 0.5 * step.powi(i),
            sharpness,
            tile: 1.0,
        })
    });
    let (mut least, mut shape) = best(coarse.collect());
    for width in [0.5, 0.2] {
        let near = (-3..=3).map(|i| Shape {
            crossover: shape.crossover * step.powf(width * f64::from(i) / 2.0),
            ..shape
        });
        (least, shape) = best(near.collect());
    }
    if least > (1.0 - GAIN) * straight {
        (least, shape) = (straight, STRAIGHT);
    }
    let tiled = TILES.iter().flat_map(|&tile| {
        [0.7, 1.0, 1.4].map(|k| Shape {
            crossover: shape.crossover * k,
            tile,
            ..shape
        })
    });
    let (with_tile, tiled) = best(tiled.collect());
    if with_tile < (1.0 - GAIN) * least {
        shape = tiled;
    }
    shape
}

/// At most [`SEARCHED`] steps, spread evenly over the token counts, so that rare large steps stay in.
fn thinned(steps: &[Step]) -> Vec<Step> {
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|&i| (steps[i].stats.tokens(), i));
    // Half by rank, half by distinct token count.
    let every = steps.len().div_ceil(SEARCHED / 2).max(1);
    let mut take: Vec<usize> = order.iter().copied().step_by(every).collect();
    let mut seen = std::collections::BTreeMap::<u32, usize>::new();
    let distinct = order.iter().map(|&i| steps[i].stats.tokens());
    let kinds = distinct.collect::<std::collections::BTreeSet<u32>>().len();
    let each = (SEARCHED / 2 / kinds.max(1)).max(2);
    for &i in &order {
        let n = seen.entry(steps[i].stats.tokens()).or_insert(0);
        if *n < each {
            *n += 1;
            take.push(i);
        }
    }
    take.sort_unstable();
    take.dedup();
    take.into_iter().map(|i| steps[i]).collect()
}

/// Whether the products' columns have anything to say about the reading of weights.
pub fn bent(fitted: &Fitted) -> bool {
    fitted.shape.crossover > 0.0 && fitted.beta[column::PRODUCT] > 0.0
}
