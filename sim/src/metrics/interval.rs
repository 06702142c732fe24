//! Confidence intervals over independent replications (Student's t).

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean over replications with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Interval {
    /// Mean over the replications.
    pub mean: f64,
    /// Half the width of the interval; none with fewer than two replications.
    pub half_width: Option<f64>,
    /// Replications that had a value.
    pub n: u64,
}

impl Interval {
    /// The interval at `confidence` (between 0 and 1, e.g. 0.95) of independent `values`; none when there are none.
    pub fn of(values: &[f64], confidence: f64) -> Option<Interval> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let half_width = (n > 1).then(|| {
            let variance =
                values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1) as f64;
            student_t(confidence, n - 1) * (variance / n as f64).sqrt()
        });
        Some(Interval {
            mean,
            half_width,
            n: n as u64,
        })
    }

    /// Whether zero lies outside the interval: a difference of this mean is more than noise.
    pub fn excludes_zero(&self) -> bool {
        self.half_width.is_some_and(|h| self.mean.abs() > h)
    }
}

/// The two-sided Student t quantile of `confidence` with `freedom` degrees of freedom (at least 1).
fn student_t(confidence: f64, freedom: usize) -> f64 {
    StudentsT::new(0.0, 1.0, freedom.max(1) as f64).map_or(f64::NAN, |t| {
        t.inverse_cdf(0.5 + confidence.clamp(0.0, 0.999_999) / 2.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_students_t() {
        // t(0.975, 4) = 2.776; the standard deviation of 1..5 is sqrt(2.5).
        let i = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95).unwrap();
        assert!((i.mean - 3.0).abs() < 1e-12);
        assert!((i.half_width.unwrap() - 2.776_445 * (2.5f64 / 5.0).sqrt()).abs() < 1e-4);
        assert!(i.excludes_zero());
    }

    #[test]
    fn one_replication_has_no_interval_and_none_has_no_mean() {
        assert_eq!(Interval::of(&[4.0], 0.95).unwrap().half_width, None);
        assert_eq!(Interval::of(&[], 0.95), None);
    }

    #[test]
    fn differences_around_zero_are_noise() {
        assert!(
            !Interval::of(&[-1.0, 1.0, -0.5, 0.5], 0.95)
                .unwrap()
                .excludes_zero()
        );
    }
}
