//! The continuous half of a black-box fit: which parameters of the step model and of the host are sought, within what bounds.

use hwmodels::fitted::{Coefficients, FittedStep};

use crate::fit::Bound;

/// One unknown. Fits move its logarithm, from `min` to `max`; at `min` it counts as nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unknown {
    /// Name in profiles ([`hwmodels::fitted::SPECS`]).
    pub name: &'static str,
    /// Smallest value that makes a difference.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

const fn unknown(name: &'static str, min: f64, max: f64) -> Unknown {
    Unknown { name, min, max }
}

/// How many unknowns there are.
pub const COUNT: usize = 11;

/// Every unknown. Requests alone cannot tell host time of a step from the time that weights take, nor what happens to a token
/// on its way out from what happens to a request on its way in: each pair is one unknown.
pub const UNKNOWNS: [Unknown; COUNT] = [
    unknown("step.fixed_s", 1e-6, 1.0),
    unknown("step.weights_s", 1e-6, 2.0),
    unknown("step.token_s", 1e-8, 0.5),
    unknown("step.sharpness", 1.0, 16.0),
    unknown("step.seq_s", 1e-7, 0.1),
    unknown("step.chunk_s", 1e-6, 0.2),
    unknown("step.context_s", 1e-11, 1e-3),
    unknown("step.pair_s", 1e-12, 1e-4),
    unknown("step.mixed_s", 1e-6, 0.2),
    unknown("host.request_in_s", 1e-5, 2.0),
    unknown("host.prompt_token_in_s", 1e-8, 1e-2),
];

/// Values of [`UNKNOWNS`], in their order and units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params(pub [f64; COUNT]);

impl Params {
    /// Nothing takes time but the sharpness has its prior.
    pub fn least() -> Params {
        let mut p = Params(UNKNOWNS.map(|u| u.min));
        p.set("step.sharpness", 2.0);
        p
    }

    /// Index of `name`.
    pub fn index(name: &str) -> Option<usize> {
        UNKNOWNS.iter().position(|u| u.name == name)
    }

    /// The value called `name`; 0 for a name that is none.
    pub fn get(&self, name: &str) -> f64 {
        Params::index(name).map_or(0.0, |i| self.0[i])
    }

    /// Sets `name`, within its bounds.
    pub fn set(&mut self, name: &str, value: f64) {
        if let Some(i) = Params::index(name) {
            self.0[i] = value.clamp(UNKNOWNS[i].min, UNKNOWNS[i].max);
        }
    }

    /// The bounds of a fit that starts here.
    pub fn bounds(&self) -> Vec<Bound> {
        UNKNOWNS
            .iter()
            .zip(self.0)
            .map(|(u, v)| {
                let init = v.clamp(u.min, u.max).ln();
                Bound::new(u.name, init, u.min.ln(), u.max.ln())
            })
            .collect()
    }

    /// The values whose logarithms are `logs`.
    pub fn of_logs(logs: &[f64]) -> Params {
        let mut values = [0.0; COUNT];
        for (v, l) in values.iter_mut().zip(logs) {
            *v = l.exp();
        }
        Params(values)
    }

    /// Whether unknown `i` is at the value that counts as nothing.
    pub fn vanishes(&self, i: usize) -> bool {
        let u = &UNKNOWNS[i];
        u.name != "step.sharpness" && self.0[i] <= u.min * 1.05
    }

    /// The step model.
    pub fn step(&self) -> FittedStep {
        FittedStep::from_coefficients(Coefficients {
            fixed: self.get("step.fixed_s"),
            weights: self.get("step.weights_s"),
            token: self.get("step.token_s"),
            sharpness: self.get("step.sharpness"),
            seq: self.get("step.seq_s"),
            chunk: self.get("step.chunk_s"),
            context: self.get("step.context_s"),
            pair: self.get("step.pair_s"),
            mixed: self.get("step.mixed_s"),
            tile: 1.0,
            stage_share: 1.0,
            ..Coefficients::default()
        })
    }
}
