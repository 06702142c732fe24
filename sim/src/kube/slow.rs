//! A straggler: a machine whose steps take longer than those of its like.

use std::sync::Arc;

use hwmodels::{BatchStats, StepCost, StepModel};

/// A step model whose times are those of `inner` times `factor`.
pub struct Slowed {
    /// The healthy machine.
    pub inner: Arc<dyn StepModel>,
    /// How much longer everything takes; 1: as long.
    pub factor: f64,
}

impl Slowed {
    fn slow(&self, mut cost: StepCost) -> StepCost {
        cost.scale(self.factor);
        cost
    }
}

impl StepModel for Slowed {
    fn step(&self, batch: &BatchStats) -> StepCost {
        self.slow(self.inner.step(batch))
    }

    fn step_ranks(&self, ranks: &[BatchStats]) -> StepCost {
        self.slow(self.inner.step_ranks(ranks))
    }
}
