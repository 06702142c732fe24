//! First guesses of the step's parameters in closed form, from what single requests and decodes show directly.
//!
//! A request that met nobody took `in + base + slope + token x prompt + pair x pairs` to its first token. From then to its end a request
//! of n tokens saw n - 1 steps, each `base + slope x sequences + context x contexts`, and the prompts of others that were
//! computed meanwhile. Both are linear in what is sought, so that bounded least squares over all requests gives it.

use super::load::{Load, Request};
use super::params::Params;
use crate::fit::{Bound, FitError, Loss, Options, bounded};

/// Columns of the equations.
const BASE: usize = 0;
const SLOPE: usize = 1;
const CONTEXT: usize = 2;
const TOKEN: usize = 3;
const PAIR: usize = 4;
const CHUNK: usize = 5;
const IN: usize = 6;
const COLUMNS: usize = 7;

/// Most requests of a load that are looked at: more say nothing new.
const MOST_PER_LOAD: usize = 400;

type Row = ([f64; COLUMNS], f64);

fn computed(r: &Request) -> f64 {
    f64::from(r.prompt - r.cached.min(r.prompt.saturating_sub(1)))
}

fn pairs(r: &Request) -> f64 {
    let (n, c) = (computed(r), f64::from(r.cached));
    n * c + n * (n + 1.0) / 2.0
}

/// The equations that a load gives.
fn equations(load: &Load, out: &mut Vec<Row>) {
    let stride = load.requests.len().div_ceil(MOST_PER_LOAD);
    for (i, r) in load.requests.iter().enumerate().step_by(stride) {
        let mut alone = true;
        let mut row = [0.0; COLUMNS];
        let length = r.end - r.first;
        let steps = f64::from(r.output - 1);
        let (mut sequences, mut contexts) = (0.0, 0.0);
        for (j, o) in load.requests.iter().enumerate() {
            if j != i && o.sent < r.first && o.end > r.sent {
                alone = false;
            }
            // Time that `o` decoded while `r` did.
            let (from, to) = (o.first.max(r.first), o.end.min(r.end));
            if length > 0.0 && to > from {
                let share = (to - from) / length;
                let middle = ((from + to) / 2.0 - o.first) / (o.end - o.first).max(1e-9);
                sequences += share;
                contexts += share * (f64::from(o.prompt) + middle * f64::from(o.output));
            }
            if j != i && o.first > r.first && o.first <= r.end {
                row[TOKEN] += computed(o);
                row[PAIR] += pairs(o);
                row[CHUNK] += 1.0;
            }
        }
        if steps >= 3.0 && length > 0.0 {
            row[BASE] = steps;
            row[SLOPE] = steps * sequences;
            row[CONTEXT] = steps * contexts;
            out.push((row, length));
        }
        if alone && r.ttft() > 0.0 {
            let mut row = [0.0; COLUMNS];
            row[IN] = 1.0;
            row[BASE] = 1.0;
            row[SLOPE] = 1.0;
            row[CHUNK] = 1.0;
            row[TOKEN] = computed(r);
            row[PAIR] = pairs(r);
            out.push((row, r.ttft()));
        }
    }
}

/// First guesses from `loads`.
///
/// # Errors
/// There are too few requests for a fit.
pub fn guess(loads: &[&Load]) -> Result<Params, FitError> {
    let mut rows: Vec<Row> = Vec::new();
    for load in loads {
        equations(load, &mut rows);
    }
    // A parameter cannot explain more than all of what is measured where it matters most.
    let largest = |k: usize| {
        rows.iter()
            .filter(|(x, _)| x[k] > 0.0)
            .map(|(x, y)| y / x[k])
            .fold(0.0_f64, f64::max)
            .max(1e-12)
    };
    let most: Vec<f64> = (0..COLUMNS).map(largest).collect();
    let bounds: Vec<Bound> = (0..COLUMNS)
        .map(|k| Bound::new(format!("column {k}"), most[k] * 0.1, 0.0, most[k]))
        .collect();
    let residuals = |p: &[f64]| -> Vec<f64> {
        rows.iter()
            .map(|(x, y)| x.iter().zip(p).map(|(x, p)| x * p).sum::<f64>() / y - 1.0)
            .collect()
    };
    let options = Options {
        loss: Loss::SoftL1(0.1),
        max_iterations: 200,
        tolerance: 1e-7,
        ..Options::default()
    };
    let v = bounded(residuals, &bounds, &options)?.values;
    let mut p = Params::least();
    let base = v[BASE].max(1e-5);
    p.set("step.fixed_s", 0.2 * base);
    p.set("step.weights_s", 0.8 * base);
    p.set("step.token_s", v[TOKEN]);
    p.set("step.seq_s", (v[SLOPE] - v[TOKEN]).max(0.02 * v[SLOPE]));
    p.set("step.context_s", v[CONTEXT]);
    p.set("step.pair_s", v[PAIR]);
    p.set("step.chunk_s", v[CHUNK]);
    p.set("host.request_in_s", v[IN]);
    // Where a decode costs less than a prompt token, arithmetic hides behind the weights.
    p.set(
        "step.sharpness",
        if v[SLOPE] < v[TOKEN] { 3.0 } else { 1.3 },
    );
    Ok(p)
}
