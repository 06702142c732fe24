//! White-box calibration: a fitted step model ([`hwmodels::fitted`]) from step logs.
//!
//! A step log has a row per step: what the batch held and when the step began and ended (`servetwin serve --step-log`,
//! or the `steps.csv` of a simulated run). The way of a fit:
//!
//! - [`log`] reads logs and the facts beside them (layout, limits of the engine);
//! - [`terms`] turns a batch into the columns of a linear model, given the shape of the matrix products;
//! - [`nnls`] solves for non-negative coefficients, and does so robustly: a few slow steps do not move them;
//! - [`shape`] finds the shape: where arithmetic overtakes the reading of weights, how sharply, in which tiles;
//! - [`steadiness`] says how steady the machine was, and warns;
//! - [`intervals`] draws blocks of steps and the machine's speed anew: how far each parameter is known;
//! - [`identify`] says in words which parameters the data cannot tell apart;
//! - [`propose`] says which load to measure next;
//! - [`layouts`] takes what tensor-parallel and pipelined logs add;
//! - [`errors`] says how far predictions are off; [`report`] puts it all together, with logs that were not fitted;
//! - [`check`] compares predicted and measured time by kind of step.
//!
//! Where a log says where the time went (`linear_s`, `attention_s`, ...), each part is fitted by itself on the columns that can
//! cause it, and the coefficients are added up: that tells apart what the total alone does not.

pub mod check;
pub mod errors;
pub mod identify;
pub mod intervals;
pub mod layouts;
pub mod log;
#[cfg(test)]
mod machine_tests;
pub mod nnls;
pub mod propose;
pub mod report;
pub mod shape;
pub mod steadiness;
pub mod terms;
#[cfg(test)]
mod tests;

use hwmodels::BatchStats;

pub use check::{Checked, check, distinct};
pub use log::{Log, LogError, Step};
pub use report::{Outcome, Report, Setup, fit};
pub use terms::{COLUMNS, Equation, Shape};

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
pub enum StepsError {
    /// A log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Too little to fit on.
    #[error(
        "{logs} log(s) of the layout {layout} hold {steps} usable steps; at least {least} are needed"
    )]
    TooFew {
        /// Logs of that layout.
        logs: usize,
        /// The layout.
        layout: String,
        /// Steps in them.
        steps: usize,
        /// Steps needed.
        least: usize,
    },
    /// The fitted profile breaks a rule of profiles.
    #[error("the fit gave an impossible profile: {0}")]
    Profile(#[from] hwmodels::Error),
    /// A log is both fitted and held out.
    #[error("{0} is given both to fit and to predict; a log that was fitted proves nothing")]
    Both(String),
}

/// Fewest steps of a fit.
pub const LEAST_STEPS: usize = 30;

/// One coefficient per column [s].
pub type Coefficients = [f64; COLUMNS.len()];

/// A fitted step: shape and coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// Shape of the matrix products.
    pub shape: Shape,
    /// A coefficient per column [s].
    pub beta: Coefficients,
}

impl Fitted {
    /// Predicted time of a step over `b` [s].
    pub fn predict(&self, b: &BatchStats) -> f64 {
        terms::row(b, &self.shape)
            .iter()
            .zip(&self.beta)
            .map(|(x, c)| x * c)
            .sum()
    }

    /// The same of an engine whose forward pass takes at least `least` [s].
    pub fn paced(&self, b: &BatchStats, least: f64) -> f64 {
        let row = terms::row(b, &self.shape);
        let host: f64 = terms::HOST_COLUMNS
            .iter()
            .map(|&i| row[i] * self.beta[i])
            .sum();
        host + (self.predict(b) - host).max(least)
    }
}
