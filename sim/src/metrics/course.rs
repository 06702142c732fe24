//! How requests fared by when they were sent, in bounded memory: bins that double in width when they run out.
//!
//! What is kept are counts, so neither the order of additions nor their grouping leaves a trace. A bin's percentiles are read from 16 buckets per factor of two:
//! within [`RELATIVE_ERROR`].

use crate::kernel::time::{SimDuration, SimTime};
use crate::metrics::definition::{self, Slo};
use crate::record::rows::RequestRow;
use crate::request::Outcome;

/// Largest relative error of a percentile [ratio]: half a bucket.
pub const RELATIVE_ERROR: f64 = 1.0 / 32.0;

/// Narrowest bin: 2^30 ns, about a second.
const MIN_SHIFT: u32 = 30;
/// Most bins: half of them are there at least once a run is longer than a minute.
const MAX_BINS: usize = 96;
/// log2 of the buckets per factor of two.
const BITS: u32 = 4;

/// What became of the requests that were sent in one stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bin {
    offered: u64,
    finished: u64,
    good: u64,
    /// Times to first token by bucket.
    ttft: Vec<u32>,
}

impl Bin {
    fn merge(&mut self, other: &Bin) {
        self.offered += other.offered;
        self.finished += other.finished;
        self.good += other.good;
        if other.ttft.len() > self.ttft.len() {
            self.ttft.resize(other.ttft.len(), 0);
        }
        for (mine, theirs) in self.ttft.iter_mut().zip(&other.ttft) {
            *mine = mine.saturating_add(*theirs);
        }
    }
}

/// Requests over the time at which they were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    shift: u32,
    bins: Vec<Bin>,
}

/// One bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoursePoint {
    /// Its start.
    pub start: SimTime,
    /// Its width.
    pub width: SimDuration,
    /// Requests sent in it.
    pub offered: u64,
    /// Of those, requests that finished.
    pub finished: u64,
    /// Of those, requests that met the objective.
    pub good: u64,
    /// Median of their time to first token [ns].
    pub ttft_p50_ns: Option<f64>,
}

impl Default for Course {
    fn default() -> Course {
        Course {
            shift: MIN_SHIFT,
            bins: Vec::new(),
        }
    }
}

/// The bucket of a value.
fn bucket_of(v: u64) -> usize {
    let sub = 1u64 << BITS;
    if v < sub {
        return v as usize;
    }
    let shift = 63 - v.leading_zeros() - BITS;
    ((u64::from(shift + 1) << BITS) | ((v >> shift) & (sub - 1))) as usize
}

/// The midpoint of a bucket [ns].
fn midpoint(bucket: usize) -> f64 {
    let (b, sub) = (bucket as u64, 1u64 << BITS);
    if b < sub {
        return b as f64;
    }
    let shift = (b >> BITS) - 1;
    let low = (sub | (b & (sub - 1))) << shift;
    low as f64 + 0.5 * (1u64 << shift) as f64
}

impl Course {
    /// A request has ended, or the run did while it was under way.
    pub fn add(&mut self, row: &RequestRow, slo: &Slo) {
        while (row.arrival.0 >> self.shift) as usize >= MAX_BINS {
            self.widen();
        }
        let i = (row.arrival.0 >> self.shift) as usize;
        if i >= self.bins.len() {
            self.bins.resize(i + 1, Bin::default());
        }
        let bin = &mut self.bins[i];
        bin.offered += 1;
        if row.outcome == Outcome::Finished {
            bin.finished += 1;
            bin.good += u64::from(slo.met_by(row));
        }
        if let Some(ttft) = definition::ttft(row) {
            let b = bucket_of(ttft.0);
            if b >= bin.ttft.len() {
                bin.ttft.resize(b + 1, 0);
            }
            bin.ttft[b] = bin.ttft[b].saturating_add(1);
        }
    }

    /// Takes in what `other` has seen of other requests of the run.
    pub fn merge(&mut self, mut other: Course) {
        while self.shift < other.shift {
            self.widen();
        }
        while other.shift < self.shift {
            other.widen();
        }
        if other.bins.len() > self.bins.len() {
            self.bins.resize(other.bins.len(), Bin::default());
        }
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            mine.merge(theirs);
        }
    }

    /// Bins of twice the width.
    fn widen(&mut self) {
        let merged = self.bins.len().div_ceil(2);
        for i in 0..merged {
            let mut whole = std::mem::take(&mut self.bins[2 * i]);
            if let Some(second) = self.bins.get(2 * i + 1) {
                whole.merge(second);
            }
            self.bins[i] = whole;
        }
        self.bins.truncate(merged);
        self.shift += 1;
    }

    /// The bins in the order of time.
    pub fn points(&self) -> impl Iterator<Item = CoursePoint> {
        let width = 1u64 << self.shift;
        self.bins.iter().enumerate().map(move |(i, b)| CoursePoint {
            start: SimTime(i as u64 * width),
            width: SimDuration(width),
            offered: b.offered,
            finished: b.finished,
            good: b.good,
            ttft_p50_ns: median(&b.ttft),
        })
    }
}

fn median(buckets: &[u32]) -> Option<f64> {
    let n: u64 = buckets.iter().map(|b| u64::from(*b)).sum();
    let mut left = n.div_ceil(2);
    for (i, count) in buckets.iter().enumerate() {
        let count = u64::from(*count);
        if count > 0 && count >= left {
            return Some(midpoint(i));
        }
        left -= count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at_s: f64, ttft_s: f64) -> RequestRow {
        let arrival = SimTime::from_secs(at_s);
        let first_token = SimTime::from_secs(at_s + ttft_s);
        RequestRow {
            id: 0,
            stream: 0,
            replica: 0,
            prompt_tokens: 10,
            cached_tokens: 0,
            output_tokens: 1,
            preemptions: 0,
            arrival,
            first_scheduled: arrival,
            first_token,
            end: first_token,
            outcome: Outcome::Finished,
        }
    }

    #[test]
    fn bins_widen_as_the_run_goes_on_and_lose_nothing() {
        let slo = Slo {
            ttft: Some(SimDuration::from_secs(1.0)),
            ..Slo::default()
        };
        let (mut all, mut parts) = (Course::default(), [Course::default(), Course::default()]);
        for i in 0..10_000u32 {
            let r = row(f64::from(i), if i < 5000 { 0.5 } else { 2.0 });
            all.add(&r, &slo);
            parts[(i % 2) as usize].add(&r, &slo);
        }
        let [mut a, b] = parts;
        a.merge(b);
        assert_eq!(a, all, "however it was grouped");
        let points: Vec<CoursePoint> = all.points().collect();
        assert!((48..=96).contains(&points.len()), "{}", points.len());
        let sum = |of: fn(&CoursePoint) -> u64| points.iter().map(of).sum::<u64>();
        assert_eq!(
            (sum(|p| p.offered), sum(|p| p.finished), sum(|p| p.good)),
            (10_000, 10_000, 5000)
        );
        let first = points[0].ttft_p50_ns.expect("requests");
        assert!((first / 0.5e9 - 1.0).abs() <= RELATIVE_ERROR, "{first}");
        let last = points[points.len() - 1].ttft_p50_ns.expect("requests");
        assert!((last / 2.0e9 - 1.0).abs() <= RELATIVE_ERROR, "{last}");
    }
}
