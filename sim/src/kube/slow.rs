//! Machines whose steps take longer than those of their like: stragglers, thermal throttling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hwmodels::{BatchStats, StepCost, StepModel};

/// How much longer the steps of one engine take. It is set between two instants of a run, when no engine advances, so that every step that starts
/// later sees it.
#[derive(Clone, Debug)]
pub struct Speed(Arc<AtomicU64>);

impl Speed {
    /// Steps take `factor` times as long.
    pub fn new(factor: f64) -> Speed {
        Speed(Arc::new(AtomicU64::new(factor.to_bits())))
    }

    /// From now on they take `factor` times as long.
    pub fn set(&self, factor: f64) {
        self.0.store(factor.to_bits(), Ordering::Relaxed);
    }

    /// The factor.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// A step model whose times are those of `inner` times a factor that may change.
pub struct Slowed {
    /// The healthy machine.
    pub inner: Arc<dyn StepModel>,
    /// How much longer everything takes.
    pub speed: Speed,
}

impl Slowed {
    fn slow(&self, mut cost: StepCost) -> StepCost {
        let factor = self.speed.get();
        if factor != 1.0 {
            cost.scale(factor);
        }
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
