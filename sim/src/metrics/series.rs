//! A time series of bounded memory: time-weighted means over equal bins that double in width when they run out.
//!
//! Queue length and KV use are sample-and-hold quantities, so what is kept is their integral over each bin, as
//! integers: neither the order of additions nor their grouping leaves a trace.

use crate::kernel::time::{SimDuration, SimTime};

/// Narrowest bin: 2^20 ns, about a millisecond.
const MIN_SHIFT: u32 = 20;

/// Quantities integrated over one bin [quantity x ns].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bin {
    running: u128,
    waiting: u128,
    kv_blocks: u128,
}

/// Running and waiting requests and KV blocks in use over time, summed over replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    shift: u32,
    max_bins: usize,
    bins: Vec<Bin>,
}

/// One bin: time-weighted means over [start, start + width).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Start of the bin.
    pub start: SimTime,
    /// Its width.
    pub width: SimDuration,
    /// Mean number of running requests.
    pub running: f64,
    /// Mean number of waiting requests.
    pub waiting: f64,
    /// Mean number of KV blocks in use.
    pub kv_blocks: f64,
}

impl Series {
    /// A series of at most `max_bins` bins (rounded up to an even number of at least 2); 0 keeps nothing.
    pub fn new(max_bins: usize) -> Series {
        Series {
            shift: MIN_SHIFT,
            max_bins: if max_bins == 0 {
                0
            } else {
                max_bins.max(2).next_multiple_of(2)
            },
            bins: Vec::new(),
        }
    }

    /// Adds a stretch of time during which the quantities held.
    #[inline]
    pub fn add(
        &mut self,
        start: SimTime,
        end: SimTime,
        running: u32,
        waiting: u32,
        kv_blocks: u64,
    ) {
        if end <= start || self.max_bins == 0 {
            return;
        }
        while ((end.0 - 1) >> self.shift) as usize >= self.max_bins {
            self.halve();
        }
        let last = ((end.0 - 1) >> self.shift) as usize;
        if last >= self.bins.len() {
            self.bins.resize(last + 1, Bin::default());
        }
        let mut from = start.0;
        for i in (start.0 >> self.shift) as usize..=last {
            let to = end.0.min((i as u64 + 1) << self.shift);
            let ns = u128::from(to - from);
            let bin = &mut self.bins[i];
            bin.running += ns * u128::from(running);
            bin.waiting += ns * u128::from(waiting);
            bin.kv_blocks += ns * u128::from(kv_blocks);
            from = to;
        }
    }

    /// Takes in everything that `other` holds, which has the same number of bins at most.
    pub fn merge(&mut self, mut other: Series) {
        debug_assert_eq!(self.max_bins, other.max_bins);
        while self.shift < other.shift {
            self.halve();
        }
        while other.shift < self.shift {
            other.halve();
        }
        if other.bins.len() > self.bins.len() {
            self.bins.resize(other.bins.len(), Bin::default());
        }
        for (mine, theirs) in self.bins.iter_mut().zip(other.bins) {
            mine.running += theirs.running;
            mine.waiting += theirs.waiting;
            mine.kv_blocks += theirs.kv_blocks;
        }
    }

    #[cold]
    fn halve(&mut self) {
        let merged = self.bins.len().div_ceil(2);
        for i in 0..merged {
            let a = self.bins[2 * i];
            let b = self.bins.get(2 * i + 1).copied().unwrap_or_default();
            self.bins[i] = Bin {
                running: a.running + b.running,
                waiting: a.waiting + b.waiting,
                kv_blocks: a.kv_blocks + b.kv_blocks,
            };
        }
        self.bins.truncate(merged);
        self.shift += 1;
    }

    /// The bins up to `end` in order; the last is cut there.
    pub fn points(&self, end: SimTime) -> impl Iterator<Item = Point> + '_ {
        self.bins.iter().enumerate().map_while(move |(i, bin)| {
            let start = (i as u64) << self.shift;
            let width = (1u64 << self.shift).min(end.0.saturating_sub(start));
            let mean = |v: u128| v as f64 / width as f64;
            (width > 0).then(|| Point {
                start: SimTime(start),
                width: SimDuration(width),
                running: mean(bin.running),
                waiting: mean(bin.waiting),
                kv_blocks: mean(bin.kv_blocks),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut s = Series::new(8);
        for i in 0..10_000u64 {
            s.add(
                SimTime(i * 10_000_000),
                SimTime((i + 1) * 10_000_000),
                3,
                1,
                7,
            );
        }
        let end = SimTime(10_000 * 10_000_000);
        let points: Vec<Point> = s.points(end).collect();
        assert!(points.len() <= 8);
        for p in &points {
            assert!((p.running - 3.0).abs() < 1e-9, "{p:?}");
            assert!((p.kv_blocks - 7.0).abs() < 1e-9, "{p:?}");
        }
        assert_eq!(points.iter().map(|p| p.width.0).sum::<u64>(), end.0);
    }

    proptest! {
        #[test]
        fn the_order_of_additions_leaves_no_trace(
            mut stretches in prop::collection::vec((0u64..1 << 36, 0u64..1 << 30, 0u32..9), 1..40)
        ) {
            let fill = |list: &[(u64, u64, u32)]| {
                let mut s = Series::new(16);
                for (start, len, n) in list {
                    s.add(SimTime(*start), SimTime(start + len), *n, 1, u64::from(*n));
                }
                s
            };
            let forward = fill(&stretches);
            let (head, tail) = stretches.split_at(stretches.len() / 2);
            let mut merged = fill(head);
            merged.merge(fill(tail));
            prop_assert_eq!(&merged, &forward);
            stretches.reverse();
            prop_assert_eq!(forward, fill(&stretches));
        }
    }
}
