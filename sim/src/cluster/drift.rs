//! A machine whose speed drifts: the same batch takes longer now than in a moment, and everything near it in time with it.
//!
//! The logarithm of the factor on step times is the sum of two Ornstein-Uhlenbeck processes: normally distributed, and correlated over
//! a time `t` by `exp(-t / time)`, one slower than the other. Each is drawn on a grid of eight points per correlation time and holds in between.
//! Its median is 1. (So is, but for half the variance, the mean: above it over the arrivals of an open loop, below it over the steps of
//! a busy engine, of which a slow machine makes fewer.) At an instant it depends on the seed, the machine and the instant alone, so that two variants
//! of a scenario see the same machine.

use std::sync::Arc;

use hwmodels::{BatchStats, StepCost, StepModel};
use rand::RngExt;
use rand_distr::StandardNormal;

use crate::kernel::rng::{Stream, stream};
use crate::kernel::time::{SimDuration, SimTime};

/// Points of the grid per correlation time.
const PER_TIME: u64 = 8;
/// Least distance of points: no step is so short that it would matter, and a grid of nanoseconds would never end [ns].
const FINEST: u64 = 1_000;
/// Points of the grid after which the process begins anew, so that no instant is far from a beginning.
const BLOCK: u64 = 1 << 16;

/// One process: how far the speed swings, and how fast.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Swing {
    /// Standard deviation of the logarithm of step times [ratio]; 0: none.
    pub ratio: f64,
    /// Time over which that correlates.
    pub time: SimDuration,
}

/// How the speed of a machine drifts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedDrift {
    /// Processes whose factors multiply: what lasts, and what passes.
    pub swings: [Swing; 2],
    /// The machine: replicas with the same number are slow together.
    pub machine: u32,
}

/// A machine under way.
#[derive(Clone, Debug)]
pub struct Drift {
    courses: [Course; 2],
    /// Until when `factor` holds.
    until: SimTime,
    factor: f64,
}

impl Drift {
    /// The machine in the run with `seed`.
    pub fn new(of: SpeedDrift, seed: u64) -> Drift {
        let course =
            |i: usize| Course::new(of.swings[i], format!("drift/{}/{i}", of.machine), seed);
        let mut drift = Drift {
            courses: [course(0), course(1)],
            until: SimTime::ZERO,
            factor: 1.0,
        };
        drift.advance(SimTime::ZERO);
        drift
    }

    /// Time of a step that starts at `now` over its time on the machine at its usual speed.
    #[inline]
    pub fn factor(&mut self, now: SimTime) -> f64 {
        if now >= self.until {
            self.advance(now);
        }
        self.factor
    }

    fn advance(&mut self, now: SimTime) {
        for course in &mut self.courses {
            course.advance(now);
        }
        let [a, b] = &self.courses;
        self.until = a.until.min(b.until);
        self.factor = (a.of.ratio * a.state + b.of.ratio * b.state).exp();
    }
}

/// One process under way.
#[derive(Clone, Debug)]
struct Course {
    of: Swing,
    name: String,
    seed: u64,
    draws: Stream,
    /// Point of the grid that `state` holds for, and when the next one comes.
    at: u64,
    until: SimTime,
    /// In standard deviations.
    state: f64,
}

impl Course {
    fn new(of: Swing, name: String, seed: u64) -> Course {
        let mut course = Course {
            of,
            draws: stream(seed, &name),
            name,
            seed,
            at: 0,
            until: SimTime::ZERO,
            state: 0.0,
        };
        if of.ratio == 0.0 || of.time == SimDuration::ZERO {
            course.of.ratio = 0.0;
            course.until = SimTime::NEVER;
        } else {
            course.begin(0);
        }
        course
    }

    /// Starts block `number` of the grid.
    fn begin(&mut self, number: u64) {
        self.draws = stream(self.seed, &format!("{}/{number}", self.name));
        self.at = number * BLOCK;
        self.state = self.draws.sample(StandardNormal);
    }

    fn advance(&mut self, now: SimTime) {
        if now < self.until {
            return;
        }
        let grid = (self.of.time.0 / PER_TIME).max(FINEST);
        let to = now.0 / grid;
        if to / BLOCK != self.at / BLOCK {
            self.begin(to / BLOCK);
        }
        let kept = (-(grid as f64) / self.of.time.0 as f64).exp();
        let new = (1.0 - kept * kept).sqrt();
        while self.at < to {
            self.state = kept * self.state + new * self.draws.sample::<f64, _>(StandardNormal);
            self.at += 1;
        }
        self.until = SimTime((to + 1).saturating_mul(grid));
    }
}

/// Step times of a replica: those of a model, on a machine whose speed may drift.
pub struct StepTimes {
    model: Arc<dyn StepModel>,
    drift: Option<Drift>,
    /// Whether steps have a least time, which the machine's speed does not change.
    is_paced: bool,
}

impl StepTimes {
    /// Those of `model`, with `drift` if the machine has one.
    pub fn new(model: Arc<dyn StepModel>, drift: Option<Drift>) -> StepTimes {
        StepTimes {
            is_paced: model.least() > 0.0,
            model,
            drift,
        }
    }

    /// The cost of a step over `passes`, one after the other, that starts at `now`.
    #[inline]
    pub fn of(&mut self, now: SimTime, passes: &[BatchStats]) -> StepCost {
        let model = &*self.model;
        let one = |pass: &BatchStats| match self.is_paced {
            false => model.step(pass),
            true => model.computed(pass),
        };
        let mut cost = match passes {
            [all] => one(all),
            passes => {
                let mut sum = StepCost::default();
                for pass in passes {
                    let c = one(pass);
                    sum.latency += c.latency;
                    sum.interval += c.interval;
                    sum.parts += c.parts;
                }
                sum
            }
        };
        self.slow_down(now, &mut cost);
        if self.is_paced {
            cost.at_least(self.model.least());
        }
        cost
    }

    /// The cost of a step that starts at `now` on data-parallel ranks with these batches.
    pub fn of_ranks(&mut self, now: SimTime, ranks: &[BatchStats]) -> StepCost {
        let mut cost = self.model.step_ranks(ranks);
        self.slow_down(now, &mut cost);
        cost
    }

    #[inline]
    fn slow_down(&mut self, now: SimTime, cost: &mut StepCost) {
        if let Some(drift) = &mut self.drift {
            cost.scale(drift.factor(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift(swings: &[(f64, f64)], machine: u32) -> Drift {
        let mut of = SpeedDrift {
            swings: [Swing::default(); 2],
            machine,
        };
        for (swing, (ratio, seconds)) in of.swings.iter_mut().zip(swings) {
            *swing = Swing {
                ratio: *ratio,
                time: SimDuration::from_secs(*seconds),
            };
        }
        Drift::new(of, 1)
    }

    fn logs(d: &mut Drift, every: f64, n: usize) -> Vec<f64> {
        (0..n)
            .map(|i| d.factor(SimTime::from_secs(every * i as f64)).ln())
            .collect()
    }

    #[test]
    fn spread_and_correlation_are_as_stated_about_one() {
        let (swings, every) = ([(0.2, 0.5), (0.1, 5.0)], 0.25);
        let n = 200_000;
        let x = logs(&mut drift(&swings, 0), every, n);
        let mean = x.iter().sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.005, "{mean}");
        let lag = |k: usize| {
            x.iter()
                .zip(&x[k..])
                .map(|(a, b)| (a - mean) * (b - mean))
                .sum::<f64>()
                / (n - k) as f64
        };
        for k in [0, 1, 2, 4, 20] {
            let of = |(ratio, time): (f64, f64)| ratio * ratio * (-every * k as f64 / time).exp();
            let expected: f64 = swings.into_iter().map(of).sum();
            assert!((lag(k) - expected).abs() < 0.03 * lag(0), "lag {k}");
        }
    }

    #[test]
    fn a_slow_machine_computes_longer_and_does_not_stretch_a_least_time() {
        use hwmodels::fitted::{FittedStep, Target, param};
        use hwmodels::{Basis, Evidence, Profile};
        let of = |least: f64| {
            let mut p = Profile {
                basis: Some(Basis::default()),
                ..Profile::default()
            };
            for (name, value) in [("step.weights_s", 4e-3), ("host.min_step_s", least)] {
                let entry = param(name, value, None, Evidence::Measured).unwrap();
                p.params.insert(name.into(), entry);
            }
            let step = FittedStep::new(&p, &Target::of(&p)).unwrap();
            StepTimes::new(Arc::new(step), Some(drift(&[(0.2, 0.5)], 0)))
        };
        let mut batch = BatchStats::default();
        batch.add_decode(10);
        let mut course = drift(&[(0.2, 0.5)], 0);
        let (mut free, mut paced) = (of(0.0), of(4.2e-3));
        for i in 0..50 {
            let now = SimTime::from_secs(f64::from(i));
            let wanted = 4e-3 * course.factor(now);
            let is = |times: &mut StepTimes, wanted: f64| {
                let latency = times.of(now, &[batch]).latency;
                assert!((latency - wanted).abs() < 1e-12, "{latency}, not {wanted}");
            };
            is(&mut free, wanted);
            is(&mut paced, wanted.max(4.2e-3));
        }
    }

    #[test]
    fn an_instant_is_the_same_whatever_was_asked_before() {
        let times = [0.0, 0.3, 0.31, 7.0, 5000.0, 5000.01, 90_000.0];
        let fresh = || drift(&[(0.1, 0.4), (0.05, 0.03)], 3);
        let mut all = fresh();
        for t in times.map(SimTime::from_secs) {
            assert_eq!(all.factor(t), fresh().factor(t), "{t:?}");
        }
        assert_eq!(drift(&[], 3).factor(SimTime::from_secs(1e9)), 1.0);
    }

    #[test]
    fn replicas_on_one_machine_are_slow_together_and_others_are_not() {
        let n = 5000;
        let [a, same, other] = [0, 0, 1].map(|m| logs(&mut drift(&[(0.1, 0.2)], m), 1.0, n));
        assert_eq!(a, same);
        let product: f64 = a.iter().zip(&other).map(|(x, y)| x * y).sum();
        assert!((product / n as f64 / 0.01).abs() < 0.06, "{product}");
    }
}
