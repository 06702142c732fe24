//! The joint fit: every request of every fitted load against its simulated self, all parameters at once.
//!
//! Residuals are logarithms of simulated over measured times: TTFT, TPOT and end-to-end latency of each request, with the same total
//! weight for every load however many requests it has, and beside them what a reader judges a load by (means, quantiles,
//! throughput). Large residuals count linearly, so that a stall of the measured machine does not bend the fit.

use std::sync::atomic::{AtomicUsize, Ordering};

use nalgebra::{DMatrix, DVector};
use rand::RngExt;
use rayon::prelude::*;

use super::load::{Load, Request};
use super::params::{COUNT, Params, UNKNOWNS};
use super::server::Server;
use super::simulate::{Look, Predicted, simulate};
use crate::fit::{FitError, Options, bounded};

/// Residuals beyond this count linearly [log ratio].
const SCALE: f64 = 0.1;
/// A client cannot tell times apart that differ by less [s].
const CLOCK: f64 = 2e-4;
/// What a request counts that the simulation does not answer [log ratio].
const UNANSWERED: f64 = 2.3;
/// How firmly parameters are held where the data do not move them [1 / log ratio].
const HOLD: f64 = 0.01;
/// Finite difference, as a share of a parameter's range of logarithms: simulated times move in small jumps.
const STEP: f64 = 4e-3;

/// Where a residual comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Request of a load.
    Request(usize, usize),
    /// A whole load, or what holds a parameter.
    Whole,
}

/// A fit in progress: the loads, what holds the parameters, and how many simulations it took.
pub struct Joint<'a> {
    loads: &'a [&'a Load],
    anchor: Params,
    evaluations: AtomicUsize,
    progress: &'a (dyn Fn(usize) + Sync),
}

fn soften(r: f64) -> f64 {
    let r = if r.is_finite() { r } else { UNANSWERED };
    let rho = 2.0 * SCALE * SCALE * ((1.0 + (r / SCALE).powi(2)).sqrt() - 1.0);
    rho.sqrt() * r.signum()
}

fn ratio(predicted: f64, measured: f64) -> f64 {
    ((predicted + CLOCK) / (measured + CLOCK)).ln()
}

fn quantile(values: &mut [f64], p: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    sim::metrics::distribution::quantile_of_sorted_f64(values, p).unwrap_or(f64::NAN)
}

/// What a load is judged by: mean E2E, median TTFT, p99 of E2E [s] and output throughput [tokens/s].
pub fn figures<'r>(requests: impl Iterator<Item = &'r Request> + Clone) -> Option<[f64; 4]> {
    let mut e2e: Vec<f64> = requests.clone().map(Request::e2e).collect();
    if e2e.is_empty() {
        return None;
    }
    let mut ttft: Vec<f64> = requests.clone().map(Request::ttft).collect();
    let start = requests.clone().map(|r| r.sent).fold(f64::MAX, f64::min);
    let end = requests.clone().map(|r| r.end).fold(0.0, f64::max);
    let tokens: f64 = requests.map(|r| f64::from(r.output)).sum();
    Some([
        e2e.iter().sum::<f64>() / e2e.len() as f64,
        quantile(&mut ttft, 0.5),
        quantile(&mut e2e, 0.99),
        tokens / (end - start).max(1e-9),
    ])
}

/// Weights of [`figures`] in the fit.
const FIGURE_WEIGHTS: [f64; 4] = [1.0, 1.0, 0.25, 1.0];

impl<'a> Joint<'a> {
    /// A fit on `loads`, whose parameters stay near `anchor` where nothing moves them; `progress` is told the number of
    /// simulated sets of loads.
    pub fn new(
        loads: &'a [&'a Load],
        anchor: Params,
        progress: &'a (dyn Fn(usize) + Sync),
    ) -> Joint<'a> {
        Joint {
            loads,
            anchor,
            evaluations: AtomicUsize::new(0),
            progress,
        }
    }

    /// Simulated sets of loads so far.
    pub fn evaluations(&self) -> usize {
        self.evaluations.load(Ordering::Relaxed)
    }

    fn residuals(&self, server: &Server, params: &Params) -> Vec<(f64, Origin)> {
        let mut out: Vec<(f64, Origin)> = self
            .loads
            .par_iter()
            .enumerate()
            .map(|(i, load)| {
                of_load(
                    i,
                    load,
                    simulate(load, server, params, Look::default()).as_ref(),
                )
            })
            .flatten()
            .collect();
        for (v, a) in params.0.iter().zip(self.anchor.0) {
            out.push((HOLD * (v / a).ln(), Origin::Whole));
        }
        let n = self.evaluations.fetch_add(1, Ordering::Relaxed) + 1;
        (self.progress)(n);
        out
    }

    /// Sum of squared residuals.
    pub fn loss(&self, server: &Server, params: &Params) -> f64 {
        let r = self.residuals(server, params);
        r.iter().map(|(r, _)| r * r).sum()
    }

    /// The best parameters for `server` from `start`, within `iterations`, and their loss.
    ///
    /// # Errors
    /// Too few requests.
    pub fn descend(
        &self,
        server: &Server,
        start: &Params,
        iterations: usize,
    ) -> Result<(Params, f64), FitError> {
        let options = Options {
            max_iterations: iterations,
            tolerance: 1e-3,
            step: STEP,
            ..Options::default()
        };
        let residuals = |logs: &[f64]| -> Vec<f64> {
            let r = self.residuals(server, &Params::of_logs(logs));
            r.into_iter().map(|(r, _)| r).collect()
        };
        let fit = bounded(residuals, &start.bounds(), &options)?;
        Ok((Params::of_logs(&fit.values), fit.loss))
    }

    /// The best of several starts: `start`, and others in which what it lacks is there and the two bounds of a matrix
    /// product meet more or less sharply.
    ///
    /// # Errors
    /// Too few requests.
    pub fn descend_from_several(
        &self,
        server: &Server,
        start: &Params,
        iterations: usize,
    ) -> Result<(Params, f64), FitError> {
        let mut best = self.descend(server, start, iterations)?;
        for other in starts(start) {
            let found = self.descend(server, &other, iterations)?;
            if found.1 < best.1 {
                best = found;
            }
        }
        Ok(best)
    }

    /// 90 % intervals of the parameters at their optimum `params`: a bootstrap over the requests of each load, each replicate
    /// solved in the linearised problem. None for a parameter on which the loads have no influence. Deterministic.
    pub fn intervals(&self, server: &Server, params: &Params) -> [Option<[f64; 2]>; COUNT] {
        let at: Vec<(f64, Origin)> = self.residuals(server, params);
        let n = at.len();
        // Derivatives by the logarithms, both ways: the optimum is where one-sided ones mislead.
        let columns: Vec<Vec<f64>> = (0..COUNT)
            .map(|j| {
                let h = 0.05;
                let moved = |d: f64| {
                    let mut p = *params;
                    p.0[j] *= f64::exp(d);
                    self.residuals(server, &p)
                };
                let (up, down) = (moved(h), moved(-h));
                (0..n).map(|i| (up[i].0 - down[i].0) / (2.0 * h)).collect()
            })
            .collect();
        let free: Vec<usize> = (0..COUNT).filter(|&j| !params.vanishes(j)).collect();
        let mut rng = sim::kernel::rng::stream(0, "bootstrap over requests");
        let mut draws: Vec<Vec<f64>> = vec![Vec::new(); free.len()];
        for _ in 0..REPLICATES {
            let counts: Vec<Vec<f64>> = self
                .loads
                .iter()
                .map(|l| {
                    let m = l.requests.len();
                    let mut c = vec![0.0; m];
                    for _ in 0..m {
                        c[rng.random_range(0..m)] += 1.0;
                    }
                    c
                })
                .collect();
            let weight = |o: Origin| match o {
                Origin::Request(l, r) => counts[l][r],
                Origin::Whole => 1.0,
            };
            let k = free.len();
            let (mut a, mut g) = (DMatrix::zeros(k, k), DVector::zeros(k));
            for (i, (r, origin)) in at.iter().enumerate() {
                let w = weight(*origin);
                for x in 0..k {
                    let dx = w * columns[free[x]][i];
                    g[x] += dx * r;
                    for y in 0..=x {
                        a[(x, y)] += dx * columns[free[y]][i];
                    }
                }
            }
            for x in 0..k {
                for y in 0..x {
                    a[(y, x)] = a[(x, y)];
                }
                a[(x, x)] += 1e-9;
            }
            if let Some(c) = a.cholesky() {
                for (d, s) in draws.iter_mut().zip(c.solve(&-g).iter()) {
                    d.push(*s);
                }
            }
        }
        let mut out = [None; COUNT];
        for (j, mut d) in free.into_iter().zip(draws) {
            if d.len() < REPLICATES / 2 {
                continue;
            }
            // The spread of the replicates about their middle, about the optimum itself.
            let middle = quantile(&mut d, 0.5);
            let (low, high) = (
                quantile(&mut d, 0.05) - middle,
                quantile(&mut d, 0.95) - middle,
            );
            let u = &UNKNOWNS[j];
            out[j] = Some([
                (params.0[j] * low.exp()).clamp(u.min, u.max),
                (params.0[j] * high.exp()).clamp(u.min, u.max),
            ]);
        }
        out
    }
}

/// Bootstrap replicates.
const REPLICATES: usize = 200;

fn starts(start: &Params) -> Vec<Params> {
    let base = start.get("step.fixed_s") + start.get("step.weights_s");
    let mut filled = *start;
    let at_least = |p: &mut Params, name: &str, value: f64| {
        let v = p.get(name).max(value);
        p.set(name, v);
    };
    for (name, share) in [
        ("step.seq_s", 0.02),
        ("step.chunk_s", 0.1),
        ("step.mixed_s", 0.05),
        ("step.token_s", 0.005),
        ("step.context_s", 1e-5),
        ("step.pair_s", 1e-7),
        ("host.request_in_s", 0.2),
    ] {
        at_least(&mut filled, name, share * base);
    }
    let with_sharpness = |p: &Params, s: f64| {
        let mut p = *p;
        p.set("step.sharpness", s);
        p
    };
    vec![with_sharpness(&filled, 1.2), with_sharpness(&filled, 4.0)]
}

fn of_load(index: usize, load: &Load, predicted: Option<&Predicted>) -> Vec<(f64, Origin)> {
    let n = load.requests.len();
    let each = (1.0 / n as f64).sqrt();
    let mut out = Vec::with_capacity(3 * n + 6);
    for (i, m) in load.requests.iter().enumerate() {
        let p = predicted.and_then(|p| p.requests[i].as_ref());
        let ttft = p.map_or(UNANSWERED, |p| ratio(p.ttft(), m.ttft()));
        let e2e = p.map_or(UNANSWERED, |p| ratio(p.e2e(), m.e2e()));
        let tpot = match (p.and_then(Request::tpot), m.tpot()) {
            (_, None) => 0.0,
            (None, _) => UNANSWERED,
            (Some(p), Some(m)) => ratio(p, m),
        };
        for r in [ttft, tpot, e2e] {
            out.push((each * soften(r), Origin::Request(index, i)));
        }
    }
    let measured = figures(load.requests.iter());
    let simulated = predicted.and_then(|p| figures(p.requests.iter().flatten()));
    for k in 0..4 {
        let r = match (&simulated, &measured) {
            (Some(s), Some(m)) => (s[k] / m[k]).ln(),
            _ => UNANSWERED,
        };
        out.push((FIGURE_WEIGHTS[k].sqrt() * soften(r), Origin::Whole));
    }
    if let Some(measured) = load.gaps {
        let simulated = predicted.and_then(|p| p.gaps);
        for k in 0..measured.len() {
            let r = simulated.map_or(UNANSWERED, |s| ratio(s[k], measured[k]));
            out.push((0.5 * soften(r), Origin::Whole));
        }
    }
    out
}
