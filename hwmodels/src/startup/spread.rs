//! A duration that is not always the same.

use serde::{Deserialize, Serialize};

/// How long something takes [s], as a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Spread {
    /// Log-normal: half of the draws are below the typical value.
    LogNormal {
        /// The median [s].
        typical_s: f64,
        /// Standard deviation of the logarithm; 0: always the typical value.
        sigma: f64,
    },
    /// Anything between two bounds alike, as the time until the next of regular instants.
    Uniform {
        /// Shortest [s].
        low_s: f64,
        /// Longest [s].
        high_s: f64,
    },
}

impl Spread {
    /// Takes no time.
    pub const ZERO: Spread = Spread::fixed(0.0);

    /// Always the same [s].
    pub const fn fixed(secs: f64) -> Spread {
        Spread::LogNormal {
            typical_s: secs,
            sigma: 0.0,
        }
    }

    /// The median [s].
    pub fn typical(self) -> f64 {
        match self {
            Spread::LogNormal { typical_s, .. } => typical_s,
            Spread::Uniform { low_s, high_s } => 0.5 * (low_s + high_s),
        }
    }

    /// The mean [s].
    pub fn mean(self) -> f64 {
        match self {
            Spread::LogNormal { typical_s, sigma } => typical_s * (0.5 * sigma * sigma).exp(),
            Spread::Uniform { .. } => self.typical(),
        }
    }

    /// The variance [s^2].
    pub fn variance(self) -> f64 {
        match self {
            Spread::LogNormal { sigma, .. } => self.mean() * self.mean() * (sigma * sigma).exp_m1(),
            Spread::Uniform { low_s, high_s } => (high_s - low_s).powi(2) / 12.0,
        }
    }

    /// The value that a share `u` in (0, 1) of the draws is below [s]; with a uniform `u` it is a draw.
    pub fn quantile(self, u: f64) -> f64 {
        match self {
            Spread::LogNormal {
                typical_s,
                sigma: 0.0,
            } => typical_s,
            Spread::LogNormal { typical_s, sigma } => typical_s * (sigma * probit(u)).exp(),
            Spread::Uniform { low_s, high_s } => low_s + u.clamp(0.0, 1.0) * (high_s - low_s),
        }
    }

    /// The same distribution, `factor` times as long.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Spread {
        match self {
            Spread::LogNormal { typical_s, sigma } => Spread::LogNormal {
                typical_s: typical_s * factor,
                sigma,
            },
            Spread::Uniform { low_s, high_s } => Spread::Uniform {
                low_s: low_s * factor,
                high_s: high_s * factor,
            },
        }
    }

    /// One after the other, independent of each other: the log-normal of the same mean and variance (Fenton and Wilkinson).
    pub fn sum(parts: impl IntoIterator<Item = Spread>) -> Spread {
        let (mean, variance) = parts
            .into_iter()
            .fold((0.0, 0.0), |(m, v), s| (m + s.mean(), v + s.variance()));
        if mean <= 0.0 {
            return Spread::ZERO;
        }
        let ratio = 1.0 + variance / (mean * mean);
        Spread::LogNormal {
            typical_s: mean / ratio.sqrt(),
            sigma: ratio.ln().sqrt(),
        }
    }
}

/// Standard normal quantile of `u`, to about nine digits.
///
/// Source: P. J. Acklam, "An algorithm for computing the inverse normal cumulative distribution function" (2003).
fn probit(u: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
    ];
    const TAIL: f64 = 0.024_25;
    let horner = |c: &[f64], x: f64| c.iter().fold(0.0, |sum, k| sum * x + k);
    let u = u.clamp(1e-12, 1.0 - 1e-12);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        horner(&C, q) / (horner(&D, q) * q + 1.0)
    };
    if u < TAIL {
        tail(u)
    } else if u > 1.0 - TAIL {
        -tail(1.0 - u)
    } else {
        let q = u - 0.5;
        let r = q * q;
        q * horner(&A, r) / (horner(&B, r) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        // Abramowitz and Stegun, table 26.5.
        for (u, z) in [
            (0.5, 0.0),
            (0.9, 1.281_551_6),
            (0.01, -2.326_347_9),
            (0.999, 3.090_232_3),
        ] {
            assert!((probit(u) - z).abs() < 1e-6, "{u}: {}", probit(u));
        }
        let s = Spread::LogNormal {
            typical_s: 10.0,
            sigma: 0.5,
        };
        assert!((s.quantile(0.9) - 10.0 * (0.5f64 * 1.281_551_6).exp()).abs() < 1e-5);
        assert_eq!(Spread::fixed(7.0).quantile(0.99), 7.0);
    }

    #[test]
    fn a_sum_keeps_mean_and_variance() {
        let parts = [
            Spread::LogNormal {
                typical_s: 20.0,
                sigma: 0.4,
            },
            Spread::fixed(5.0),
            Spread::Uniform {
                low_s: 0.0,
                high_s: 10.0,
            },
        ];
        let sum = Spread::sum(parts);
        let mean: f64 = parts.iter().map(|p| p.mean()).sum();
        let variance: f64 = parts.iter().map(|p| p.variance()).sum();
        assert!((sum.mean() - mean).abs() < 1e-9);
        assert!((sum.variance() / variance - 1.0).abs() < 1e-9);
        assert_eq!(Spread::sum([]), Spread::ZERO);
    }
}
