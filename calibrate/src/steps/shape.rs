//! The shape of the matrix products' time, and the fit of all coefficients given it.
//!
//! The shape is not linear, so it is found by a profile likelihood: on a grid of shapes the linear coefficients
//! are fitted, and the shape with the least robust loss wins, refined around the best. All of it is deterministic.
//!
//! A step counts with the time it takes, here and in the fit: what a profile is for is the time of many steps together, and of
//! that a thousand small decodes are no more than the few prompts that take as long.

use rayon::prelude::*;

use super::log::{Parts, Step};
use super::nnls::{Robust, dot, robust};
use super::terms::{COLUMNS, Equation, PARTS, PARTS_WITHOUT_HEAD, Shape, TOTAL, column, row};
use super::{Coefficients, Fitted};

/// Steps that the search for the shape looks at, about.
const SEARCHED: usize = 3000;
/// Rounds of reweighting in the search, and in the fit.
const SEARCH_ROUNDS: usize = 6;
const FIT_ROUNDS: usize = 30;
/// Scale of the robust loss that shapes are compared by, as a share of a step.
const LOSS_SCALE: f64 = 0.01;
/// A tile or a bend must lower the loss by this share to be believed.
const GAIN: f64 = 0.03;
/// Overlaps of reading and arithmetic that are tried, as `1 / sharpness`: 1 is none (both add up), 0 would be all of it. At the
/// crossover the products take `2^overlap` times either, so that even steps of it are even steps of time.
const OVERLAPS: [f64; 9] = [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0625];
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

/// Fits the coefficients of all equations, given the shape. Step `i` stands for `stands_for[i]` like it.
pub fn solve(
    steps: &[Step],
    stands_for: &[f64],
    shape: Shape,
    equations: &[Equation],
    rounds: usize,
) -> Solved {
    let rows: Vec<[f64; COLUMNS.len()]> = steps.iter().map(|s| row(&s.stats, &shape)).collect();
    let measured: Vec<f64> = steps.iter().map(|s| s.seconds.max(1e-9)).collect();
    let pass = |scales: &[f64]| -> (Coefficients, Vec<Robust>) {
        let counts: Vec<f64> = scales.iter().zip(stands_for).map(|(s, n)| s * n).collect();
        let each: Vec<Robust> = equations
            .iter()
            .map(|e| {
                let y: Vec<f64> = steps.iter().map(|s| (e.value)(s).unwrap_or(0.0)).collect();
                robust(&rows, &y, scales, &counts, e.columns, rounds)
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
    let each_for_itself = vec![1.0; steps.len()];
    solve(steps, &each_for_itself, shape, equations, FIT_ROUNDS)
}

/// Some of the steps, each standing for several.
struct Sample {
    steps: Vec<Step>,
    stands_for: Vec<f64>,
}

/// Robust loss of the best coefficients of `e` with `shape`: errors, each relative to its step, weighted with the steps' time.
fn loss(sample: &Sample, shape: Shape, e: &Equation) -> f64 {
    let (steps, stands_for) = (&sample.steps, &sample.stands_for);
    let fit = solve(
        steps,
        stands_for,
        shape,
        std::slice::from_ref(e),
        SEARCH_ROUNDS,
    );
    let (mut sum, mut time) = (0.0, 0.0);
    for (s, n) in steps.iter().zip(stands_for) {
        let seconds = s.seconds.max(1e-9);
        let y = (e.value)(s).unwrap_or(0.0);
        let r = (y - fit.fitted.predict(&s.stats)) / seconds / LOSS_SCALE;
        sum += n * seconds * ((1.0 + r * r).sqrt() - 1.0);
        time += n * seconds;
    }
    sum / time.max(1e-9)
}

/// The shape that explains `e` best.
fn search(steps: &[Step], e: &Equation) -> Shape {
    let sample = thinned(steps);
    let most = (sample.steps.iter())
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
        OVERLAPS.map(|overlap| Shape {
            crossover: 0.5 * step.powi(i),
            sharpness: 1.0 / overlap,
            tile: 1.0,
        })
    });
    let (mut least, mut shape) = best(coarse.collect());
    // Crossover and overlap make up for each other, so they are refined together.
    for width in [0.5, 0.25, 0.1] {
        let near = (-2..=2).flat_map(|i| {
            [-0.125, 0.0, 0.125].map(|wider| Shape {
                crossover: shape.crossover * step.powf(width * f64::from(i) / 2.0),
                sharpness: 1.0
                    / (1.0 / shape.sharpness + width * wider).clamp(OVERLAPS[8], OVERLAPS[0]),
                tile: 1.0,
            })
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

/// About [`SEARCHED`] steps, the same number from every half octave of tokens as far as there are so many, each standing for as many
/// as make up the time of its half octave.
fn thinned(steps: &[Step]) -> Sample {
    let mut regions: std::collections::BTreeMap<i64, Vec<usize>> =
        std::collections::BTreeMap::new();
    for (i, s) in steps.iter().enumerate() {
        let half_octave = (2.0 * f64::from(s.stats.tokens().max(1)).log2()).floor() as i64;
        regions.entry(half_octave).or_default().push(i);
    }
    // Small regions leave room for large ones.
    let mut sizes: Vec<usize> = regions.values().map(Vec::len).collect();
    sizes.sort_unstable();
    let (mut room, mut each) = (SEARCHED, SEARCHED);
    for (k, n) in sizes.iter().enumerate() {
        each = room / (sizes.len() - k);
        if *n > each {
            break;
        }
        room -= n;
    }
    let each = each.max(2);
    let mut sample = Sample {
        steps: Vec::new(),
        stands_for: Vec::new(),
    };
    let time = |of: &[usize]| of.iter().map(|&i| steps[i].seconds).sum::<f64>();
    for of in regions.values() {
        let every = of.len().div_ceil(each).max(1);
        let taken: Vec<usize> = of.iter().copied().step_by(every).collect();
        let stands_for = time(of) / time(&taken).max(1e-12);
        sample.steps.extend(taken.iter().map(|&i| steps[i]));
        sample.stands_for.extend(taken.iter().map(|_| stands_for));
    }
    sample
}

/// Whether the products' columns have anything to say about the reading of weights.
pub fn bent(fitted: &Fitted) -> bool {
    fitted.shape.crossover > 0.0 && fitted.beta[column::PRODUCT] > 0.0
}
