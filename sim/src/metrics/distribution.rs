//! A distribution of durations: exact moments, and percentiles from a histogram of bounded error.
//!
//! The histogram has 128 buckets per factor of two over integer nanoseconds. Values below 128 ns have a
//! bucket each; any other bucket is narrower than 1/128 of its values, and its midpoint is reported, so a
//! percentile is within [`RELATIVE_ERROR`] of the order statistic it stands for. Memory is at most 59 KiB,
//! whatever is added. Everything is an integer, so the order of additions leaves no trace.

use crate::kernel::time::SimDuration;

/// Largest relative error of a percentile read from the histogram [ratio]: half a bucket.
pub const RELATIVE_ERROR: f64 = 1.0 / 256.0;

/// log2 of the buckets per factor of two.
const BITS: u32 = 7;
const SUB: u64 = 1 << BITS;

/// A weighted distribution of durations [ns].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    count: u64,
    sum: u128,
    sum_sq: u128,
    min: u64,
    max: u64,
    buckets: Vec<u64>,
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution {
            count: 0,
            sum: 0,
            sum_sq: 0,
            min: u64::MAX,
            max: 0,
            buckets: Vec::new(),
        }
    }
}

/// The bucket of a value.
#[inline]
fn bucket_of(v: u64) -> usize {
    if v < SUB {
        return v as usize;
    }
    let shift = 63 - v.leading_zeros() - BITS;
    ((u64::from(shift + 1) << BITS) | ((v >> shift) & (SUB - 1))) as usize
}

/// The midpoint of a bucket [ns]: the value it stands for.
fn midpoint(bucket: usize) -> u64 {
    let b = bucket as u64;
    if b < SUB {
        return b;
    }
    let shift = (b >> BITS) - 1;
    let low = (SUB | (b & (SUB - 1))) << shift;
    low + ((1u64 << shift) >> 1)
}

impl Distribution {
    /// Adds `value` as if it had been seen `weight` times.
    #[inline]
    pub fn add(&mut self, value: SimDuration, weight: u64) {
        if weight == 0 {
            return;
        }
        let v = value.0;
        self.count += weight;
        let vw = u128::from(v) * u128::from(weight);
        self.sum += vw;
        self.sum_sq = self.sum_sq.saturating_add(vw.saturating_mul(u128::from(v)));
        self.min = self.min.min(v);
        self.max = self.max.max(v);
        let b = bucket_of(v);
        if b >= self.buckets.len() {
            self.grow(b);
        }
        self.buckets[b] += weight;
    }

    #[cold]
    fn grow(&mut self, bucket: usize) {
        self.buckets.resize(bucket + 1, 0);
    }

    /// Takes in everything that `other` holds.
    pub fn merge(&mut self, other: &Distribution) {
        self.count += other.count;
        self.sum += other.sum;
        self.sum_sq = self.sum_sq.saturating_add(other.sum_sq);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
    }

    /// Values added, by weight.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Exact mean [ns]; none when empty.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Exact mean [s]; none when empty.
    pub fn mean_secs(&self) -> Option<f64> {
        self.mean_ns().map(|ns| ns / 1e9)
    }

    /// Exact sum [s].
    pub fn sum_secs(&self) -> f64 {
        self.sum as f64 * 1e-9
    }

    /// Population standard deviation (divided by n) [s]; none when empty.
    pub fn std_dev_secs(&self) -> Option<f64> {
        let mean = self.mean_secs()?;
        let mean_sq = self.sum_sq as f64 / self.count as f64 * 1e-18;
        Some((mean_sq - mean * mean).max(0.0).sqrt())
    }

    /// Smallest value; none when empty.
    pub fn min(&self) -> Option<SimDuration> {
        (self.count > 0).then_some(SimDuration(self.min))
    }

    /// Largest value; none when empty.
    pub fn max(&self) -> Option<SimDuration> {
        (self.count > 0).then_some(SimDuration(self.max))
    }

    /// The `p` quantile (`p` in [0, 1], clamped) by linear interpolation between order statistics, as numpy's
    /// default (sources 8), each within [`RELATIVE_ERROR`] [ns]; none when empty.
    pub fn quantile_ns(&self, p: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let h = (self.count - 1) as f64 * p.clamp(0.0, 1.0);
        let low = (h.floor() as u64).min(self.count - 1);
        let high = (low + 1).min(self.count - 1);
        let (a, b) = (self.order_statistic(low), self.order_statistic(high));
        Some(a + (b - a) * (h - low as f64))
    }

    /// [`Distribution::quantile_ns`] in seconds [s].
    pub fn quantile_secs(&self, p: f64) -> Option<f64> {
        self.quantile_ns(p).map(|ns| ns / 1e9)
    }

    /// The value of rank `rank` (from 0) in ascending order [ns], to the histogram's error.
    fn order_statistic(&self, rank: u64) -> f64 {
        if rank == 0 {
            return self.min as f64;
        }
        if rank + 1 >= self.count {
            return self.max as f64;
        }
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen > rank {
                return midpoint(i).clamp(self.min, self.max) as f64;
            }
        }
        self.max as f64
    }

    /// Share of values that are at most `limit`, to the histogram's error [ratio]; none when empty.
    pub fn share_at_most(&self, limit: SimDuration) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        if limit.0 >= self.max {
            return Some(1.0);
        }
        let below: u64 = self.buckets.iter().take(bucket_of(limit.0) + 1).sum();
        Some(below as f64 / self.count as f64)
    }

    /// The buckets in use, ascending, each as its midpoint and its weight: for histograms and plots.
    pub fn buckets(&self) -> impl Iterator<Item = (SimDuration, u64)> + '_ {
        self.buckets
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (SimDuration(midpoint(i)), *n))
    }
}

/// The `p` quantile of ascending `sorted` values by linear interpolation (numpy's default:
/// h = (n - 1) p, x[floor h] + fraction x difference); none when empty.
pub fn quantile_of_sorted(sorted: &[u64], p: f64) -> Option<f64> {
    interpolated(sorted.len(), p, |i| sorted[i] as f64)
}

/// The quantiles `ps`, which ascend, of `values` in any order, as [`quantile_of_sorted`] has them; `values` are left in another order.
///
/// It selects: for five percentiles of a million values a fifth of the time that sorting takes.
pub fn quantiles<const N: usize>(values: &mut [u64], ps: [f64; N]) -> [Option<f64>; N] {
    debug_assert!(ps.is_sorted());
    let n = values.len();
    // All values before `done` are at most those after it.
    let mut done = 0;
    ps.map(|p| {
        interpolated(n, p, |i| {
            if i >= done {
                values[done..].select_nth_unstable(i - done);
                done = i + 1;
            }
            values[i] as f64
        })
    })
}

/// The same of ascending floating-point values.
pub fn quantile_of_sorted_f64(sorted: &[f64], p: f64) -> Option<f64> {
    interpolated(sorted.len(), p, |i| sorted[i])
}

fn interpolated(n: usize, p: f64, mut value: impl FnMut(usize) -> f64) -> Option<f64> {
    let last = n.checked_sub(1)?;
    let h = last as f64 * p.clamp(0.0, 1.0);
    let low = (h.floor() as usize).min(last);
    let high = (low + 1).min(last);
    let (a, b) = (value(low), value(high));
    Some(a + (b - a) * (h - low as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Distribution {
        let mut d = Distribution::default();
        for v in values {
            d.add(SimDuration(*v), 1);
        }
        d
    }

    #[test]
    fn every_bucket_holds_its_own_midpoint_and_is_narrow() {
        for shift in 0..64 {
            for v in [
                1u64 << shift,
                (1u64 << shift) | (1 << shift >> 1),
                u64::MAX >> shift,
            ] {
                let m = midpoint(bucket_of(v));
                assert_eq!(bucket_of(m), bucket_of(v));
                let error = m.abs_diff(v) as f64 / v as f64;
                assert!(error <= RELATIVE_ERROR, "{v} -> {m}: {error}");
            }
        }
    }

    #[test]
    fn an_empty_distribution_has_no_statistics() {
        let d = Distribution::default();
        assert_eq!(d.mean_secs(), None);
        assert_eq!(d.quantile_secs(0.5), None);
        assert_eq!(d.min(), None);
    }

    #[test]
    fn equal_values_have_exact_percentiles() {
        let mut d = Distribution::default();
        d.add(SimDuration(20_123_457), 1000);
        assert!((d.quantile_secs(0.99).unwrap() - 0.020123457).abs() < 1e-12);
        assert!((d.mean_secs().unwrap() - 0.020123457).abs() < 1e-12);
        assert!(d.std_dev_secs().unwrap() < 1e-9);
    }

    #[test]
    fn quantiles_of_sorted_values_are_those_of_numpy() {
        // numpy.percentile([1, 2, 3, 4, 10], [0, 25, 50, 90, 100]) = 1, 2, 3, 7.6, 10
        let x = [1, 2, 3, 4, 10];
        for (p, want) in [(0.0, 1.0), (0.25, 2.0), (0.5, 3.0), (0.9, 7.6), (1.0, 10.0)] {
            assert!((quantile_of_sorted(&x, p).unwrap() - want).abs() < 1e-12);
        }
        assert_eq!(quantile_of_sorted(&[], 0.5), None);
    }

    proptest! {
        #[test]
        fn percentiles_are_within_the_stated_error(
            mut values in prop::collection::vec(0u64..10_000_000_000, 1..200),
            p in 0.0f64..=1.0,
        ) {
            let d = of(&values);
            values.sort_unstable();
            let exact = quantile_of_sorted(&values, p).unwrap();
            let got = d.quantile_secs(p).unwrap() * 1e9;
            prop_assert!((got - exact).abs() <= exact * RELATIVE_ERROR + 1e-3, "{got} {exact}");
        }

        #[test]
        fn selected_quantiles_are_those_of_sorted_values(
            mut values in prop::collection::vec(0u64..50, 0..200),
            mut ps in prop::array::uniform5(0.0f64..=1.0),
        ) {
            ps.sort_by(f64::total_cmp);
            let selected = quantiles(&mut values, ps);
            values.sort_unstable();
            prop_assert_eq!(selected, ps.map(|p| quantile_of_sorted(&values, p)));
        }

        #[test]
        fn weights_and_merging_count_like_single_additions(
            values in prop::collection::vec((0u64..1_000_000_000, 1u64..5), 0..50),
            split in 0usize..50,
        ) {
            let mut whole = Distribution::default();
            let (mut a, mut b) = (Distribution::default(), Distribution::default());
            for (i, (v, w)) in values.iter().enumerate() {
                for _ in 0..*w {
                    whole.add(SimDuration(*v), 1);
                }
                let part = if i < split { &mut a } else { &mut b };
                part.add(SimDuration(*v), *w);
            }
            b.merge(&a);
            prop_assert_eq!(b, whole);
        }
    }
}
