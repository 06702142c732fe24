//! The interval that holds a statistic of a run's latencies, and whether they still rise.
//!
//! Latencies of requests that follow each other depend on each other, so an interval for independent values would be far too narrow. They are cut, in the
//! order in which the requests were sent, into batches of equal size, whose means hardly do (*batch means*; about 20 of them: Schmeiser, Batch size effects
//! in the analysis of simulation output, Operations Research 30 (1982) 556-568). What dependence is left between neighbours, phi, widens the variance by
//! (1 + phi) / (1 - phi) (Tafazzoli and Wilson, Skart: a skewness- and autoregression-adjusted batch-means procedure, IIE Transactions 43 (2011) 110-128).
//!
//! For a quantile the batches hold the share of values above its estimate. The interval of that share gives two other quantiles of the run, which are the
//! ends (Woodruff, Confidence intervals for medians and other position measures, JASA 47 (1952) 635-646). Where the upper share is 1 or more the run
//! is too short to bound the quantile from above. On which side of a limit it lies is told by the share of values above the limit itself, which says
//! more: a quantile far below its limit needs no upper end.
//!
//! Values rise where the slope of the batch means over time is above zero (one-sided t-test of a linear regression).

use serde::{Deserialize, Serialize};
use sim::kernel::time::SimTime;
use sim::metrics::distribution::quantile_of_sorted_f64;
use sim::record::{RequestRow, RunRecord};

/// Half the width of an interval in standard errors: that of 99 %, by Student's t with one degree of freedom less than there are batches.
const CRITICAL_T: f64 = 2.861;
/// Batches.
const BATCHES: usize = 20;
/// Values of a batch at least.
const LEAST: usize = 5;
/// Dependence of neighbours above which it is not believed [correlation]: the run is far too short then, and the interval wide.
const MOST_CORRELATION: f64 = 0.9;
/// Value of t from which on the slope of the batch means counts as a rise: one in a thousand by chance, with 18 degrees of freedom.
const RISE_T: f64 = 3.61;

/// An interval that holds the value of a run without end with a chance of 99 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Range {
    /// Lower end.
    pub low: f64,
    /// Upper end; null where the run is too short to have one.
    pub high: Option<f64>,
}

/// What `of` gives for the requests after the warm-up, in the order in which they were sent.
pub fn in_order(record: &RunRecord, of: impl Fn(&RequestRow) -> Option<f64>) -> Vec<f64> {
    let start = SimTime::ZERO + record.warmup;
    let rows = record.request_rows.iter().flatten();
    let mut out: Vec<(u32, f64)> = rows
        .filter(|r| r.arrival >= start)
        .filter_map(|r| Some((r.id, of(r)?)))
        .collect();
    out.sort_unstable_by_key(|v| v.0);
    out.into_iter().map(|v| v.1).collect()
}

/// Where the value of a run without end lies beside a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Below it.
    Below,
    /// Above it.
    Above,
    /// Chance decides.
    Open,
}

impl Side {
    /// That of the limit beside `low` to `high`.
    pub fn of(limit: f64, low: f64, high: f64) -> Side {
        match () {
            () if high < limit => Side::Below,
            () if low > limit => Side::Above,
            () => Side::Open,
        }
    }
}

/// The interval of the mean of `values`, which are in the order of time, and on which side of `limit` it lies; none of too few.
pub fn of_mean(values: &[f64], limit: f64) -> Option<(Range, Side)> {
    let means = batches(values, |v| v)?;
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let half = CRITICAL_T * variance(&means).sqrt();
    let (low, high) = (mean - half, mean + half);
    let range = Range {
        low,
        high: Some(high),
    };
    Some((range, Side::of(limit, low, high)))
}

/// The interval of the quantile `q` of `values`, which are in the order of time, and on which side of `limit` it lies; none of too few.
pub fn of_quantile(values: &[f64], q: f64, limit: f64) -> Option<(Range, Side)> {
    let n = values.len() as f64;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let estimate = quantile_of_sorted_f64(&sorted, q)?;
    let shares = |x: f64| batches(values, |v| f64::from(u8::from(v > x)));
    // As many times the variance of independent values, at the estimate.
    let independent = q * (1.0 - q) / n;
    let own = variance(&shares(estimate)?).max(independent);
    let times = if independent > 0.0 {
        own / independent
    } else {
        1.0
    };
    let half = CRITICAL_T * own.sqrt();
    let at = |q: f64| quantile_of_sorted_f64(&sorted, q.max(0.0));
    let range = Range {
        low: at(q - half)?,
        high: at(q + half).filter(|_| q + half < 1.0),
    };
    let above = shares(limit)?;
    let share = above.iter().sum::<f64>() / above.len() as f64;
    // Where no value is above it, as if one were.
    let least = share.clamp(1.0 / n, 1.0 - 1.0 / n);
    let half = CRITICAL_T
        * variance(&above)
            .max(times * least * (1.0 - least) / n)
            .sqrt();
    // A share above the limit that is less than what the quantile leaves above itself.
    let side = Side::of(1.0 - q, share - half, share + half);
    Some((range, side))
}

/// Whether `values`, which are in the order of time, rise beyond chance.
pub fn rises(values: &[f64]) -> bool {
    let Some(means) = batches(values, |v| v) else {
        return false;
    };
    let n = BATCHES as f64;
    let middle = (n - 1.0) / 2.0;
    let mean = means.iter().sum::<f64>() / n;
    let (mut along, mut across) = (0.0, 0.0);
    for (i, m) in means.iter().enumerate() {
        along += (i as f64 - middle) * (m - mean);
        across += (i as f64 - middle).powi(2);
    }
    let slope = along / across;
    let left: f64 = (means.iter().enumerate())
        .map(|(i, m)| (m - mean - slope * (i as f64 - middle)).powi(2))
        .sum();
    let error = (left / (n - 2.0) / across).sqrt();
    slope > 0.0 && slope > RISE_T * error
}

/// Means of `of` over the batches; the values that no batch takes are the first.
fn batches(values: &[f64], of: impl Fn(f64) -> f64) -> Option<Vec<f64>> {
    let each = values.len() / BATCHES;
    if each < LEAST {
        return None;
    }
    let taken = &values[values.len() - each * BATCHES..];
    let mean = |b: &[f64]| b.iter().map(|v| of(*v)).sum::<f64>() / each as f64;
    Some(taken.chunks_exact(each).map(mean).collect())
}

/// Variance of the mean of all batches whose `means` these are.
fn variance(means: &[f64]) -> f64 {
    let n = means.len() as f64;
    let mean = means.iter().sum::<f64>() / n;
    let square: f64 = means.iter().map(|m| (m - mean).powi(2)).sum();
    let pairs = means.windows(2).map(|w| (w[0] - mean) * (w[1] - mean));
    let correlation = if square > 0.0 {
        (pairs.sum::<f64>() / square).clamp(0.0, MOST_CORRELATION)
    } else {
        0.0
    };
    square / (n - 1.0) / n * (1.0 + correlation) / (1.0 - correlation)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that are uniform and independent (splitmix64).
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }

        fn exponential(&mut self) -> f64 {
            -(1.0 - self.next()).ln()
        }
    }

    /// Waits and services of a queue M/M/1 with `load` and services of mean 1 (Lindley's recursion), in steady state.
    fn sojourns(seed: u64, load: f64, n: usize) -> Vec<f64> {
        let mut numbers = Numbers(seed);
        let mut wait: f64 = 0.0;
        let mut out = Vec::new();
        for i in 0..n + 5_000 {
            let service = numbers.exponential();
            if i >= 5_000 {
                out.push(wait + service);
            }
            wait = (wait + service - numbers.exponential() / load).max(0.0);
        }
        out
    }

    #[test]
    fn intervals_hold_the_figures_of_m_m_1_as_often_as_they_say() {
        // The time in an M/M/1 queue is exponential with mean 1 / (1 - load).
        let (load, n, runs) = (0.7, 20_000, 300);
        let mean = 1.0 / (1.0 - load);
        let p95 = mean * 20f64.ln();
        let (mut held_mean, mut held_p95) = (0, 0);
        for seed in 0..runs {
            let x = sojourns(seed, load, n);
            let holds = |r: Option<(Range, Side)>, v: f64| {
                let (r, side) = r.unwrap();
                assert!(side != Side::Above, "above a limit of 100 times the mean");
                r.low <= v && r.high.is_none_or(|h| v <= h)
            };
            held_mean += u32::from(holds(of_mean(&x, 100.0 * mean), mean));
            held_p95 += u32::from(holds(of_quantile(&x, 0.95, 100.0 * mean), p95));
        }
        // 99 % of 300 are 297; an interval for independent values would hold it in fewer than half of them.
        assert!(
            held_mean >= 288 && held_p95 >= 288,
            "{held_mean} {held_p95}"
        );
    }

    #[test]
    fn a_run_that_is_too_short_has_no_upper_end() {
        let x = sojourns(1, 0.5, 200);
        assert_eq!(of_quantile(&x, 0.99, 1.0).unwrap().0.high, None);
        assert!(of_quantile(&x, 0.5, 1.0).unwrap().0.high.is_some());
        assert_eq!(of_quantile(&x[..50], 0.5, 1.0), None);
        assert_eq!(of_mean(&[], 1.0), None);
        let (same, side) = of_quantile(&[3.0; 4_000], 0.9, 4.0).unwrap();
        assert_eq!((same.low, side), (3.0, Side::Below));
    }

    #[test]
    fn the_side_of_a_limit_is_right_as_often_as_it_is_told() {
        // Sojourns of M/M/1 at 0.7: p95 is 9.99 services. Limits a quarter beside it are told in most runs, and never wrong.
        let mut told = 0;
        for seed in 0..100 {
            let x = sojourns(seed, 0.7, 20_000);
            for (limit, right) in [(7.5, Side::Above), (12.5, Side::Below)] {
                let (_, side) = of_quantile(&x, 0.95, limit).unwrap();
                assert!(side == right || side == Side::Open, "{seed}: {side:?}");
                told += u32::from(side == right);
            }
        }
        assert!(told > 120, "{told}");
    }

    #[test]
    fn a_queue_that_grows_rises_and_one_in_steady_state_does_not() {
        let called = (0..200).filter(|s| rises(&sojourns(*s, 0.6, 10_000)));
        assert!(called.count() <= 3);
        let growing: Vec<f64> = (sojourns(1, 0.6, 4_000).iter().enumerate())
            .map(|(i, v)| v + i as f64 * 0.01)
            .collect();
        assert!(rises(&growing) && !rises(&[1.0; 500]));
    }
}
