//! Machines whose steps take longer than those of their like: stragglers, thermal throttling, degraded links.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hwmodels::{BatchStats, StepCost, StepModel};

use super::spec::Slows;
use crate::kernel::time::SimTime;

/// How much longer things take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// A step as a whole.
    pub steps: f64,
    /// What of it the accelerators send each other, before that.
    pub communication: f64,
}

impl Default for Slow {
    /// Nothing takes longer.
    fn default() -> Slow {
        Slow {
            steps: 1.0,
            communication: 1.0,
        }
    }
}

impl Slow {
    /// `what` takes `factor` times as long.
    pub fn of(what: Slows, factor: f64) -> Slow {
        let mut slow = Slow::default();
        match what {
            Slows::Steps => slow.steps = factor,
            Slows::Communication => slow.communication = factor,
        }
        slow
    }

    /// Both at once on one machine.
    #[must_use]
    pub fn times(self, other: Slow) -> Slow {
        Slow {
            steps: self.steps * other.steps,
            communication: self.communication * other.communication,
        }
    }

    /// Share of their bandwidth that the machine's links carry.
    pub fn link_share(self) -> f64 {
        1.0 / self.communication
    }

    /// Of machines that wait for each other.
    #[must_use]
    pub fn worst(self, other: Slow) -> Slow {
        Slow {
            steps: self.steps.max(other.steps),
            communication: self.communication.max(other.communication),
        }
    }
}

impl std::fmt::Display for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "steps take {} times as long", self.steps)?;
        if self.communication != 1.0 {
            write!(f, ", communication in them {} times", self.communication)?;
        }
        Ok(())
    }
}

/// A fault of links that is not over.
pub(super) struct SlowLink {
    pub fault: usize,
    pub begin: SimTime,
    /// Share of the bandwidth that is left.
    pub share: f64,
    /// Whose links; `None`: all.
    pub deployment: Option<usize>,
}

/// How much longer the steps of one engine take. It is set between two instants of a run, when no engine advances, so that every step that starts
/// later sees it.
#[derive(Clone, Debug)]
pub struct Speed(Arc<[AtomicU64; 2]>);

impl Speed {
    /// Things take that much longer.
    pub fn new(slow: Slow) -> Speed {
        let bits = [slow.steps, slow.communication].map(|f| AtomicU64::new(f.to_bits()));
        Speed(Arc::new(bits))
    }

    /// From now on they take that much longer.
    pub fn set(&self, slow: Slow) {
        self.0[0].store(slow.steps.to_bits(), Ordering::Relaxed);
        self.0[1].store(slow.communication.to_bits(), Ordering::Relaxed);
    }

    /// How much longer they take.
    pub fn get(&self) -> Slow {
        let of = |i: usize| f64::from_bits(self.0[i].load(Ordering::Relaxed));
        Slow {
            steps: of(0),
            communication: of(1),
        }
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
        let slow = self.speed.get();
        if slow.communication != 1.0 && cost.latency > 0.0 {
            let more = cost.parts.communication * (slow.communication - 1.0);
            // Stages of a pipeline share it as they share the step.
            cost.interval *= 1.0 + more / cost.latency;
            cost.latency += more;
            cost.parts.communication += more;
        }
        if slow.steps != 1.0 {
            cost.scale(slow.steps);
        }
        cost
    }
}

impl StepModel for Slowed {
    fn step(&self, batch: &BatchStats) -> StepCost {
        self.slow(self.inner.step(batch))
    }

    fn least(&self) -> f64 {
        // It stands for the device, which is the one that is slow.
        self.inner.least() * self.speed.get().steps
    }

    fn computed(&self, batch: &BatchStats) -> StepCost {
        self.slow(self.inner.computed(batch))
    }

    fn step_ranks(&self, ranks: &[BatchStats]) -> StepCost {
        self.slow(self.inner.step_ranks(ranks))
    }
}
