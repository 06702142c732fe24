//! A step model that comes from a profile alone: no accelerator, no datasheet, only what was measured of an endpoint.
//!
//! A step takes
//!
//! ```text
//! fixed + gap                                         host, per step
//! + (seq + gap_seq) x sequences + chunk x prompts     host, per sequence in the step
//! + norm_p(weights, token x tokens)                   reading the weights once, or arithmetic: whichever bounds
//! + elementwise x tokens                              norms, rotary embedding, activations, writing KV
//! + sampled x sampled rows                            LM head and sampling
//! + context x decode contexts + pair x prefill pairs  attention
//! + mixed, if prompts and decodes meet                what a mixed batch costs on top
//! + collectives and sends                             see `scaling`
//! ```
//!
//! all times 1 + interrupted, where `norm_p(a, b) = (a^p + b^p)^(1/p)`: the sum for p = 1, the larger of both for large p; measured matrix
//! products lie between. Where `host.min_step_s` is given, all that is not the host's takes at least that: the rest is waited for. Every parameter is non-negative and named in [`SPECS`]. Parameters that a profile does not hold
//! are zero or, for the scaling to other layouts, priors.
//!
//! ```
//! use hwmodels::fitted::{FittedStep, Target, param};
//! use hwmodels::{Basis, BatchStats, Evidence, Profile, StepModel};
//! let mut profile = Profile { basis: Some(Basis::default()), ..Profile::default() };
//! for (name, value) in [("step.fixed_s", 1e-3), ("step.weights_s", 4e-3), ("step.token_s", 1e-4)] {
//!     profile.params.insert(name.into(), param(name, value, None, Evidence::Measured).unwrap());
//! }
//! let model = FittedStep::new(&profile, &Target::of(&profile)).unwrap();
//! let mut batch = BatchStats::default();
//! batch.add_decode(100);
//! assert!((model.step(&batch).latency - 5e-3).abs() < 1e-6);
//! ```

mod extent;
mod params;
mod scaling;
#[cfg(test)]
mod tests;

pub use extent::{Extent, QUANTITIES};
pub use params::{Limits, SPECS, StepSpec, check, laid_over, param, spec};
pub use scaling::Target;

use std::sync::Arc;

use crate::batch::BatchStats;
use crate::error::Error;
use crate::profile::Profile;
use crate::step::{Parts, StepCost, StepModel};

/// The coefficients of a step on the layout that is to be predicted [s], scaled from those of the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Coefficients {
    /// Per step, on the host.
    pub fixed: f64,
    /// Per sequence in the step, on the host.
    pub seq: f64,
    /// Per prefill chunk in the step, on the host.
    pub chunk: f64,
    /// Reading the weights.
    pub weights: f64,
    /// Arithmetic of a token.
    pub token: f64,
    /// Exponent that joins `weights` and `token` [ratio].
    pub sharpness: f64,
    /// Tokens are rounded up to a multiple of this [tokens].
    pub tile: f64,
    /// What a token costs beside matrix products and attention.
    pub elementwise: f64,
    /// Per sampled row.
    pub sampled: f64,
    /// Per token of decode context.
    pub context: f64,
    /// Per query-key pair of prefill.
    pub pair: f64,
    /// Of a step with both prefill and decode.
    pub mixed: f64,
    /// Collectives of a step, whatever its size.
    pub collective: f64,
    /// Collectives per token.
    pub collective_token: f64,
    /// Sends between stages, of a step.
    pub send: f64,
    /// Sends between stages per token.
    pub send_token: f64,
    /// Share of the device's work that the fullest pipeline stage has, contention among stages included [ratio];
    /// 1 without stages.
    pub stage_share: f64,
    /// Least time of what is not the host's.
    pub least: f64,
}

/// A step model fitted to an endpoint, on one layout. See the module's documentation.
#[derive(Clone, Debug)]
pub struct FittedStep {
    c: Coefficients,
    stages: bool,
    extent: Option<Arc<Extent>>,
    warnings: Vec<String>,
}

impl FittedStep {
    /// The model of `profile` on `target`.
    ///
    /// # Errors
    /// A parameter with an unknown name or outside its bounds, no step time at all, or a layout that the profile
    /// cannot be scaled to.
    pub fn new(profile: &Profile, target: &Target) -> Result<FittedStep, Error> {
        check(profile)?;
        let (c, warnings) = scaling::scale(profile, target)?;
        Ok(FittedStep {
            c,
            stages: target.pp > 1,
            extent: None,
            warnings,
        })
    }

    /// The model with these coefficients: for fits, which change them many times.
    pub fn from_coefficients(c: Coefficients) -> FittedStep {
        FittedStep {
            c,
            stages: false,
            extent: None,
            warnings: Vec::new(),
        }
    }

    /// Counts the steps that leave the profile's validity ranges into `extent`.
    pub fn watched(mut self, extent: Arc<Extent>) -> FittedStep {
        self.extent = Some(extent);
        self
    }

    /// The coefficients in use.
    pub fn coefficients(&self) -> &Coefficients {
        &self.c
    }

    /// What about these predictions rests on priors, in words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Coefficients {
    /// `[weights, compute]` of the matrix products over `tokens` tokens [s]: their sum is the p-norm of both bounds,
    /// shared out by their p-th powers.
    #[inline]
    pub fn linear(&self, tokens: f64) -> [f64; 2] {
        let padded = if self.tile > 1.0 {
            (tokens / self.tile).ceil() * self.tile
        } else {
            tokens
        };
        let (a, b) = (self.weights, self.token * padded);
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        if low <= 0.0 {
            return [a, b];
        }
        // (1 + x)^(1/p) with x = (low/high)^p: no overflow whatever p is.
        let x = (low / high).powf(self.sharpness);
        let total = high * (1.0 + x).powf(1.0 / self.sharpness);
        let of_low = total * x / (1.0 + x);
        if a < b {
            [of_low, total - of_low]
        } else {
            [total - of_low, of_low]
        }
    }

    /// Where the time of a step over `b` goes.
    #[inline]
    pub fn parts(&self, b: &BatchStats) -> Parts {
        let tokens = f64::from(b.tokens());
        let [weights, compute] = self.linear(tokens);
        let mixed = if b.prefill_tokens > 0 && b.decode_tokens > 0 {
            self.mixed
        } else {
            0.0
        };
        Parts {
            weights,
            kv: self.context * b.decode_ctx_sum as f64,
            compute: compute
                + self.elementwise * tokens
                + self.pair * b.prefill_pairs as f64
                + self.sampled * f64::from(b.sampled_seqs),
            communication: self.collective
                + self.send
                + (self.collective_token + self.send_token) * tokens,
            host: self.fixed
                + mixed
                + self.seq * f64::from(b.decode_seqs + b.prefill_seqs)
                + self.chunk * f64::from(b.prefill_seqs),
            ..Parts::default()
        }
    }
}

impl StepModel for FittedStep {
    #[inline]
    fn step(&self, b: &BatchStats) -> StepCost {
        let mut cost = self.computed(b);
        cost.at_least(self.c.least);
        cost
    }

    fn least(&self) -> f64 {
        self.c.least
    }

    #[inline]
    fn computed(&self, b: &BatchStats) -> StepCost {
        if b.is_empty() {
            return StepCost::default();
        }
        if let Some(extent) = &self.extent {
            extent.note(b);
        }
        let parts = self.c.parts(b);
        let latency = parts.total();
        let interval = if self.stages {
            // The host prepares one step while stages compute another; the slower of both spaces the steps.
            let device = latency - parts.host;
            (device * self.c.stage_share).max(parts.host)
        } else {
            latency
        };
        StepCost {
            latency,
            interval,
            parts,
        }
    }
}
