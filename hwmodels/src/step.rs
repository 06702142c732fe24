//! The contract between step-time models and whoever drives them.

use std::sync::Arc;

use crate::batch::BatchStats;

/// Where a step's time goes: no part is negative, and together they are the step's time. The order is that of [`Parts::NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Bound by reading weights from device memory [s].
    pub weights: f64,
    /// Bound by reading or writing KV (and activations) in device memory [s].
    pub kv: f64,
    /// Bound by arithmetic [s].
    pub compute: f64,
    /// Collectives and sends between devices that nothing hides [s].
    pub communication: f64,
    /// Kernel launches and host work between steps that nothing hides [s].
    pub host: f64,
    /// Waiting within this step: of pipeline stages for each other, or until its least time has passed ([`StepCost::at_least`]) [s].
    pub bubble: f64,
    /// What kernels saved by running while others did: the parts above hold what was left of them, so this is not in their sum [s].
    pub overlap: f64,
}

impl std::ops::AddAssign for Parts {
    fn add_assign(&mut self, other: Parts) {
        self.weights += other.weights;
        self.kv += other.kv;
        self.compute += other.compute;
        self.communication += other.communication;
        self.host += other.host;
        self.bubble += other.bubble;
        self.overlap += other.overlap;
    }
}

impl Parts {
    /// Names of the parts in the order of [`Parts::as_array`].
    pub const NAMES: [&'static str; 6] = [
        "weights",
        "kv",
        "compute",
        "communication",
        "host",
        "bubble",
    ];

    /// The parts in the order of [`Parts::NAMES`] [s].
    #[inline]
    pub fn as_array(&self) -> [f64; 6] {
        [
            self.weights,
            self.kv,
            self.compute,
            self.communication,
            self.host,
            self.bubble,
        ]
    }

    /// Every part times `factor`.
    #[inline]
    pub fn scale(&mut self, factor: f64) {
        for part in [
            &mut self.weights,
            &mut self.kv,
            &mut self.compute,
            &mut self.communication,
            &mut self.host,
            &mut self.bubble,
            &mut self.overlap,
        ] {
            *part *= factor;
        }
    }

    /// Takes `seconds` that kernels ran beside each other off the parts that kernels have, each in proportion; at most what they have.
    #[inline]
    pub fn hide(&mut self, seconds: f64) {
        let kernels = self.weights + self.kv + self.compute + self.communication;
        if seconds <= 0.0 || kernels <= 0.0 {
            return;
        }
        let left = (1.0 - seconds / kernels).max(0.0);
        for part in [
            &mut self.weights,
            &mut self.kv,
            &mut self.compute,
            &mut self.communication,
        ] {
            *part *= left;
        }
        self.overlap += seconds.min(kernels);
    }

    /// Sum of the parts [s].
    #[inline]
    pub fn total(&self) -> f64 {
        self.as_array().iter().sum()
    }
}

/// Predicted cost of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// From the step's start until its tokens are known: all stages, sends and unhidden host time [s].
    pub latency: f64,
    /// Time after which the next step may follow this one into the pipeline [s].
    /// Equals `latency` unless several steps are in flight (pipeline parallel, asynchronous scheduling).
    pub interval: f64,
    /// Attribution of `latency`; the parts sum to it.
    pub parts: Parts,
}

impl StepCost {
    /// All of it times `factor`.
    #[inline]
    pub fn scale(&mut self, factor: f64) {
        self.latency *= factor;
        self.interval *= factor;
        self.parts.scale(factor);
    }

    /// What is not the host's takes at least `least` [s]: the rest is waited for. Steps that are in flight at once wait side by side.
    #[inline]
    pub fn at_least(&mut self, least: f64) {
        let wait = least - (self.latency - self.parts.host);
        if wait <= 0.0 || self.latency <= 0.0 {
            return;
        }
        let alone = self.interval >= self.latency;
        self.latency += wait;
        self.parts.bubble += wait;
        if alone {
            self.interval = self.latency;
        }
    }
}

/// A step-time model of one replica: hardware x model x layout x engine, resolved.
///
/// Implementations are O(1) in the batch size and have no interior state:
/// the same batch always costs the same.
pub trait StepModel: Send + Sync {
    /// Cost of one forward pass over `batch`. An empty batch costs nothing.
    fn step(&self, batch: &BatchStats) -> StepCost;

    /// Least time of a step beside the host's [s]; 0: it takes as long as it computes.
    fn least(&self) -> f64 {
        0.0
    }

    /// As [`StepModel::step`], without waiting until [`StepModel::least`] has passed: what a slow machine makes longer.
    fn computed(&self, batch: &BatchStats) -> StepCost {
        self.step(batch)
    }

    /// Cost of one step of data-parallel ranks, each with a batch of its own (empty ones too), that end it together. Unless a
    /// model knows what they share, the slowest rank sets the time.
    fn step_ranks(&self, ranks: &[BatchStats]) -> StepCost {
        ranks
            .iter()
            .map(|batch| self.step(batch))
            .max_by(|a, b| a.latency.total_cmp(&b.latency))
            .unwrap_or_default()
    }
}

/// A model whose every step takes `factor` times as long as another's.
pub struct Scaled {
    /// The other.
    pub inner: Arc<dyn StepModel>,
    /// The factor, above 0 [ratio].
    pub factor: f64,
}

impl Scaled {
    fn scaled(&self, mut cost: StepCost) -> StepCost {
        cost.scale(self.factor);
        cost
    }
}

impl StepModel for Scaled {
    fn step(&self, batch: &BatchStats) -> StepCost {
        self.scaled(self.inner.step(batch))
    }

    fn least(&self) -> f64 {
        self.inner.least() * self.factor
    }

    fn computed(&self, batch: &BatchStats) -> StepCost {
        self.scaled(self.inner.computed(batch))
    }

    fn step_ranks(&self, ranks: &[BatchStats]) -> StepCost {
        self.scaled(self.inner.step_ranks(ranks))
    }
}

/// A model with constant terms, for tests, queueing theory and teaching:
/// `base + per_token * tokens + per_ctx * (decode contexts) + per_pair * (prefill pairs)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearStep {
    /// Cost of any non-empty step [s].
    pub base: f64,
    /// Cost per new token [s].
    pub per_token: f64,
    /// Cost per token of decode context [s].
    pub per_ctx: f64,
    /// Cost per prefill query-key pair [s].
    pub per_pair: f64,
}

impl StepModel for LinearStep {
    #[inline]
    fn step(&self, b: &BatchStats) -> StepCost {
        if b.is_empty() {
            return StepCost::default();
        }
        let parts = Parts {
            weights: self.base,
            compute: self.per_token * f64::from(b.tokens())
                + self.per_pair * b.prefill_pairs as f64,
            kv: self.per_ctx * b.decode_ctx_sum as f64,
            ..Parts::default()
        };
        let latency = parts.total();
        StepCost {
            latency,
            interval: latency,
            parts,
        }
    }
}
