//! Where a function of the load peaks, and where a condition on it ends, from as few evaluations as may be: each one is a run.

use crate::metrics::interval::Interval;
use serde::{Deserialize, Serialize};

/// Confidence of the intervals over seeds.
const CONFIDENCE: f64 = 0.95;
/// Inverse of the golden ratio.
const GOLDEN: f64 = 0.618_033_988_749_894_8;

/// A value and the interval that holds it: the bracket in which the search of each seed ended, widened by the 95 % interval (Student t) of the
/// mean over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Estimate {
    /// Mean over seeds.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Seeds; of one, the interval is its bracket alone.
    pub seeds: u64,
}

/// What a search found: the value, and the ends of the bracket that holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Lower end.
    pub low: f64,
    /// The value.
    pub value: f64,
    /// Upper end.
    pub high: f64,
}

impl Found {
    /// A value that was measured, not searched.
    pub fn exactly(value: f64) -> Found {
        Found {
            low: value,
            value,
            high: value,
        }
    }
}

impl Estimate {
    /// The estimate from one search per seed; none without any.
    pub fn of(found: &[Found]) -> Option<Estimate> {
        let of = |pick: fn(&Found) -> f64| {
            let values: Vec<f64> = found.iter().map(pick).collect();
            Interval::of(&values, CONFIDENCE)
        };
        let (low, value, high) = (of(|f| f.low)?, of(|f| f.value)?, of(|f| f.high)?);
        let spread = value.half_width.unwrap_or(0.0);
        Some(Estimate {
            value: value.mean,
            low: (low.mean - spread).max(0.0),
            high: high.mean + spread,
            seeds: value.n,
        })
    }
}

/// Where `f` peaks between `low` and `high`, by golden section: each of `steps` evaluations after the first two leaves 62 % of the bracket. `f` has
/// one peak; where it has no value (beyond the capacity) it counts as lower than anywhere else. `round` says which loads there are.
///
/// # Errors
/// Those of `f`.
pub fn peak<E>(
    (mut low, mut high): (f64, f64),
    steps: u32,
    round: impl Fn(f64) -> f64,
    mut f: impl FnMut(f64) -> Result<Option<f64>, E>,
) -> Result<Found, E> {
    let mut at = |x: f64| Ok((x, f(x)?.unwrap_or(f64::NEG_INFINITY)));
    let mut left = at(round(high - GOLDEN * (high - low)))?;
    let mut right = at(round(low + GOLDEN * (high - low)))?;
    for _ in 0..steps {
        // Whole numbers run out before steps do.
        if left.0 <= low || right.0 >= high || left.0 >= right.0 {
            break;
        }
        // Nothing to choose between two loads beyond the capacity: the peak is below both.
        if left.1 >= right.1 {
            high = right.0;
            right = left;
            left = at(round(high - GOLDEN * (high - low)))?;
        } else {
            low = left.0;
            left = right;
            right = at(round(low + GOLDEN * (high - low)))?;
        }
    }
    let mut best = if left.1 >= right.1 { left } else { right };
    for x in [left.0, right.0] {
        if x < best.0 {
            low = low.max(x);
        } else if x > best.0 {
            high = high.min(x);
        }
    }
    // What golden section leaves of whole numbers.
    for _ in 0..steps {
        let between = [0.5 * (low + best.0), 0.5 * (best.0 + high)].map(&round);
        let new = |x: &f64| low < *x && *x < high && *x != best.0;
        let whole = between.iter().all(|x| x.fract() == 0.0);
        let Some(x) = between.into_iter().find(new).filter(|_| whole) else {
            break;
        };
        let probe = at(x)?;
        let (lower, upper) = if x < best.0 {
            (probe, best)
        } else {
            (best, probe)
        };
        if lower.1 >= upper.1 {
            (best, high) = (lower, upper.0);
        } else {
            (best, low) = (upper, lower.0);
        }
    }
    Ok(Found {
        low: low.min(best.0),
        value: best.0,
        high: high.max(best.0),
    })
}

/// The highest load at which `holds`, by bisection between `low`, where it does, and `high`, where it does not. `round` says which loads there are.
///
/// # Errors
/// Those of `holds`.
pub fn boundary<E>(
    (mut low, mut high): (f64, f64),
    steps: u32,
    round: impl Fn(f64) -> f64,
    mut holds: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Found, E> {
    for _ in 0..steps {
        let middle = round(0.5 * (low + high));
        if middle <= low || middle >= high {
            break;
        }
        if holds(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Found {
        low,
        value: low,
        high,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn exact(x: f64) -> f64 {
        x
    }

    #[test]
    fn the_peak_of_the_power_of_m_m_1_is_at_half_its_capacity() {
        let mut evaluations = 0;
        let found = peak((0.2, 0.95), 8, exact, |load| {
            evaluations += 1;
            Ok::<_, Infallible>(Some(load * (1.0 - load)))
        })
        .unwrap();
        assert!((found.value - 0.5).abs() < 0.02, "{found:?}");
        assert!(found.low < 0.5 && 0.5 < found.high && found.high - found.low < 0.04);
        assert_eq!(evaluations, 10);
    }

    #[test]
    fn a_peak_at_the_capacity_is_found_from_below() {
        let found = peak((0.5, 1.5), 10, exact, |load| {
            Ok::<_, Infallible>((load <= 1.0).then_some(load))
        })
        .unwrap();
        assert!(found.value <= 1.0 && found.value > 0.98, "{found:?}");
        assert!(found.low < 1.0 && found.high >= 1.0, "{found:?}");
    }

    #[test]
    fn whole_loads_are_searched_until_none_is_left() {
        for best in 4..=16 {
            let found = peak((3.0, 17.0), 20, f64::round, |n| {
                assert_eq!(n, n.round());
                Ok::<_, Infallible>(Some(-(n - f64::from(best)).abs()))
            })
            .unwrap();
            let best = f64::from(best);
            let expected = Found {
                low: best - 1.0,
                value: best,
                high: best + 1.0,
            };
            assert_eq!(found, expected);
        }
        let found = boundary((1.0, 64.0), 20, f64::round, |n| {
            Ok::<_, Infallible>(n <= 37.0)
        });
        assert_eq!(
            found.unwrap(),
            Found {
                low: 37.0,
                value: 37.0,
                high: 38.0
            }
        );
    }

    #[test]
    fn a_boundary_is_halved_step_by_step() {
        let found = boundary((0.0, 1.0), 5, exact, |x| Ok::<_, Infallible>(x < 0.3)).unwrap();
        assert_eq!(found.high - found.low, 1.0 / 32.0);
        assert!(found.low < 0.3 && 0.3 <= found.high);
    }

    #[test]
    fn an_estimate_holds_the_brackets_and_the_spread_of_the_seeds() {
        let of = |value: f64| Found {
            low: value - 0.1,
            value,
            high: value + 0.2,
        };
        let one = Estimate::of(&[of(2.0)]).unwrap();
        assert_eq!(
            (one.low, one.value, one.high, one.seeds),
            (1.9, 2.0, 2.2, 1)
        );
        // t(0.975, 2) = 4.303, standard deviation 0.1.
        let three = Estimate::of(&[of(1.9), of(2.0), of(2.1)]).unwrap();
        let spread = 4.303 * 0.1 / 3f64.sqrt();
        assert!((three.low - (1.9 - spread)).abs() < 1e-3, "{three:?}");
        assert!((three.high - (2.2 + spread)).abs() < 1e-3, "{three:?}");
        assert_eq!(Estimate::of(&[]), None);
    }
}
