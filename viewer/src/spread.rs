//! How a latency is spread over the requests of a run: what charts show of it, without the values themselves, of which there may be millions.

use store::resample::cumulative;

/// Points of a curve.
const POINTS: usize = 400;

/// Bins of a histogram.
const BINS: usize = 60;

/// A value, and how often it was seen.
pub trait Weighted {
    /// Both.
    fn weighted(&self) -> (u64, u64);
}

impl Weighted for u64 {
    fn weighted(&self) -> (u64, u64) {
        (*self, 1)
    }
}

impl Weighted for (u64, u64) {
    fn weighted(&self) -> (u64, u64) {
        *self
    }
}

/// A latency over the requests of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Values that it is of.
    pub n: u64,
    /// Value [ns] and share of the values up to it.
    pub cumulative: Vec<[f64; 2]>,
    /// Start of a bin [ns] and share of the values in it; bins are equally wide on a logarithmic axis.
    pub histogram: Vec<[f64; 2]>,
    /// Share of the values that are at most the limit of the objective, where there is one.
    pub within: Option<f64>,
}

impl Spread {
    /// Of ascending `values` [ns], which may have weights, and the limit on them [ns].
    pub fn of<V: Weighted>(values: &[V], limit: Option<u64>) -> Spread {
        let all = || values.iter().map(V::weighted);
        let n: u64 = all().map(|v| v.1).sum();
        let within = limit.filter(|_| n > 0).map(|limit| {
            let held: u64 = all().take_while(|v| v.0 <= limit).map(|v| v.1).sum();
            held as f64 / n as f64
        });
        Spread {
            n,
            cumulative: cumulative(all(), POINTS),
            histogram: bins(all()),
            within,
        }
    }
}

/// Shares of values in bins of equal width on a logarithmic axis.
fn bins(values: impl DoubleEndedIterator<Item = (u64, u64)> + Clone) -> Vec<[f64; 2]> {
    let mut positive = values.clone().filter(|v| v.0 > 0);
    let Some(first) = positive.next() else {
        return Vec::new();
    };
    let last = positive.next_back().unwrap_or(first);
    let (low, high) = ((first.0 as f64).ln(), (last.0 as f64).ln() + 1e-9);
    let total: u64 = values.clone().map(|v| v.1).sum();
    let width = (high - low).max(1e-6) / BINS as f64;
    let mut counts = vec![0u64; BINS];
    for (v, n) in values.filter(|v| v.0 > 0) {
        let i = (((v as f64).ln() - low) / width) as usize;
        counts[i.min(BINS - 1)] += n;
    }
    let mut points: Vec<[f64; 2]> = counts
        .iter()
        .enumerate()
        .map(|(i, n)| [(low + i as f64 * width).exp(), *n as f64 / total as f64])
        .collect();
    points.push([high.exp(), 0.0]);
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_bins_add_up_to_one() {
        let sum = |points: Vec<[f64; 2]>| points.iter().map(|p| p[1]).sum::<f64>();
        let of = |values: &[(u64, u64)]| bins(values.iter().copied());
        assert!((sum(of(&[(10, 3), (500, 5), (9_000, 2)])) - 1.0).abs() < 1e-9);
        assert!((sum(of(&[(10, 3)])) - 1.0).abs() < 1e-9);
        assert!(of(&[(0, 3)]).is_empty());
    }

    #[test]
    fn those_within_the_limit_are_counted() {
        let of = |limit| Spread::of(&[(10, 3), (20, 1), (30, 4)], limit).within;
        assert_eq!(of(Some(20)), Some(0.5));
        assert_eq!((of(Some(5)), of(None)), (Some(0.0), None));
        assert_eq!(Spread::of::<u64>(&[], Some(5)).within, None);
    }
}
