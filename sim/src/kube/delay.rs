//! How long something of the cluster takes: a duration, or a distribution of durations.

use rand::RngExt;
use rand_distr::{Distribution, Exp1, StandardNormal};

use crate::kernel::rng;
use crate::kernel::time::SimDuration;

/// A distribution of durations [s]; what is drawn is never below zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Fixed(f64),
    /// Every duration from `min` to `max` alike.
    Uniform {
        /// Shortest [s].
        min: f64,
        /// Longest [s].
        max: f64,
    },
    /// Bell curve, cut at zero.
    Normal {
        /// Mean [s].
        mean: f64,
        /// Standard deviation [s].
        std: f64,
    },
    /// Skewed to the right, as boots and pulls are.
    Lognormal {
        /// Median [s].
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Memoryless.
    Exponential {
        /// Mean [s].
        mean: f64,
    },
    /// Times between failures: `shape` below 1 fails early, above 1 wears out.
    Weibull {
        /// Scale [s]: 63 % are shorter.
        scale: f64,
        /// Shape.
        shape: f64,
    },
}

impl Delay {
    /// The median [s].
    pub fn median(&self) -> f64 {
        let half = std::f64::consts::LN_2;
        match *self {
            Delay::Fixed(secs) => secs,
            Delay::Uniform { min, max } => 0.5 * (min + max),
            Delay::Normal { mean, .. } => mean,
            Delay::Lognormal { median, .. } => median,
            Delay::Exponential { mean } => mean * half,
            Delay::Weibull { scale, shape } => scale * half.powf(1.0 / shape),
        }
    }

    /// The draw called `name` in the run with `seed`: the same for the same name, whatever else is drawn.
    pub fn draw(&self, seed: u64, name: &str) -> SimDuration {
        let mut stream = rng::stream(seed, name);
        let secs = match *self {
            Delay::Fixed(secs) => secs,
            Delay::Uniform { min, max } => min + (max - min) * stream.random::<f64>(),
            Delay::Normal { mean, std } => {
                let z: f64 = StandardNormal.sample(&mut stream);
                mean + std * z
            }
            Delay::Lognormal { median, sigma } => {
                let z: f64 = StandardNormal.sample(&mut stream);
                median * (sigma * z).exp()
            }
            Delay::Exponential { mean } => {
                let e: f64 = Exp1.sample(&mut stream);
                mean * e
            }
            Delay::Weibull { scale, shape } => {
                let e: f64 = Exp1.sample(&mut stream);
                scale * e.powf(1.0 / shape)
            }
        };
        SimDuration::from_secs(secs.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_depends_on_seed_and_name_alone() {
        let boot = Delay::Lognormal {
            median: 120.0,
            sigma: 0.3,
        };
        assert_eq!(boot.draw(1, "boot/3"), boot.draw(1, "boot/3"));
        assert_ne!(boot.draw(1, "boot/3"), boot.draw(1, "boot/4"));
        assert_ne!(boot.draw(1, "boot/3"), boot.draw(2, "boot/3"));
        assert_eq!(Delay::Fixed(5.0).draw(1, "x"), SimDuration(5_000_000_000));
    }

    #[test]
    fn draws_have_the_median_or_mean_that_is_asked_for() {
        let many = |d: Delay| -> Vec<f64> {
            let mut all: Vec<f64> = (0..4001)
                .map(|i| d.draw(7, &format!("n/{i}")).as_secs())
                .collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 0.06, "{got} {want}");
        near(
            many(Delay::Lognormal {
                median: 100.0,
                sigma: 0.5,
            })[2000],
            100.0,
        );
        near(mean(&many(Delay::Exponential { mean: 30.0 })), 30.0);
        near(
            mean(&many(Delay::Uniform {
                min: 10.0,
                max: 30.0,
            })),
            20.0,
        );
        near(
            mean(&many(Delay::Normal {
                mean: 50.0,
                std: 5.0,
            })),
            50.0,
        );
        // The mean of a Weibull distribution of shape 2 is scale x gamma(1.5).
        near(
            mean(&many(Delay::Weibull {
                scale: 10.0,
                shape: 2.0,
            })),
            8.862,
        );
    }
}
