//! Steps at several levels of detail: each merges eight neighbours of the one before it.

use std::ops::Range;

use crate::{Packed, Rows, Stat, StepSpan};

/// Neighbours that become one in the next level.
pub const FAN_OUT: usize = 8;

/// A level that has at most this many rows per replica is the last.
const LAST_ROWS: usize = 64;

/// Most levels.
pub(crate) const MAX_LEVELS: usize = 12;

/// The steps of all replicas at one level of detail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLevel {
    /// By replica, and by start within one.
    rows: Packed<StepSpan>,
    /// Where the rows of each replica begin, and the end of the last one's.
    offsets: Vec<usize>,
}

impl StepLevel {
    /// A level of `rows`, which are in the order of replicas, of `replicas` replicas.
    pub fn new(rows: Packed<StepSpan>, replicas: usize) -> StepLevel {
        let before = |r: usize| {
            rows.all()
                .partition_point(|i| (rows.replica(i) as usize) < r)
        };
        let offsets = (0..=replicas).map(before).collect();
        StepLevel { rows, offsets }
    }

    /// Number of replicas.
    pub fn replicas(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The rows as a table.
    pub(crate) fn table(&self) -> &Packed<StepSpan> {
        &self.rows
    }

    /// The rows of all replicas.
    pub fn rows(&self) -> Rows<'_, StepSpan> {
        self.rows.all()
    }

    /// The rows of `replica`, by start.
    pub fn of(&self, replica: usize) -> Rows<'_, StepSpan> {
        let at = |i: usize| self.offsets.get(i).copied();
        match (at(replica), at(replica + 1)) {
            (Some(from), Some(to)) => self.rows.slice(from..to),
            _ => self.rows.slice(0..0),
        }
    }

    /// The rows of `replica` that reach into `window` [ns]: found by halving, read in place.
    pub fn within(&self, replica: usize, window: Range<u64>) -> Rows<'_, StepSpan> {
        let rows = self.of(replica);
        // Steps of a pipeline overlap, but by less than its depth: a few rows more are no harm.
        let from = rows.partition_point(|i| rows.start(i) < window.start);
        let before = rows.slice(0..from);
        let from = before
            .iter()
            .rposition(|r| r.end <= window.start)
            .map_or(0, |i| i + 1);
        let to = rows.partition_point(|i| rows.start(i) < window.end);
        rows.slice(from.min(to)..to)
    }
}

fn merged_stat(a: (Stat, u64), b: (Stat, u64)) -> Stat {
    let total = (a.1 + b.1) as f64;
    let mean = if total > 0.0 {
        (f64::from(a.0.mean) * a.1 as f64 + f64::from(b.0.mean) * b.1 as f64) / total
    } else {
        f64::from(a.0.mean.max(b.0.mean))
    };
    Stat {
        min: a.0.min.min(b.0.min),
        mean: mean as f32,
        max: a.0.max.max(b.0.max),
    }
}

/// Two neighbours as one: sums add up, stats widen.
pub fn merge(a: &StepSpan, b: &StepSpan) -> StepSpan {
    let stat = |of: fn(&StepSpan) -> Stat| merged_stat((of(a), a.busy), (of(b), b.busy));
    StepSpan {
        replica: a.replica,
        steps: a.steps.saturating_add(b.steps),
        start: a.start.min(b.start),
        end: a.end.max(b.end),
        busy: a.busy.saturating_add(b.busy),
        parts: std::array::from_fn(|i| a.parts[i] + b.parts[i]),
        prefill_tokens: a.prefill_tokens.saturating_add(b.prefill_tokens),
        prefill_seqs: a.prefill_seqs.saturating_add(b.prefill_seqs),
        decode_tokens: a.decode_tokens.saturating_add(b.decode_tokens),
        decode_ctx: a.decode_ctx.saturating_add(b.decode_ctx),
        prefill_pairs: a.prefill_pairs.saturating_add(b.prefill_pairs),
        running: stat(|s| s.running),
        waiting: stat(|s| s.waiting),
        kv_blocks: stat(|s| s.kv_blocks),
        blocked: std::array::from_fn(|i| a.blocked[i].saturating_add(b.blocked[i])),
    }
}

/// `rows` of one replica with every `n` neighbours as one.
pub(crate) fn merge_neighbours(
    mut rows: impl Iterator<Item = StepSpan>,
    n: usize,
) -> impl Iterator<Item = StepSpan> {
    std::iter::from_fn(move || {
        let first = rows.next()?;
        let rest = rows.by_ref().take(n.saturating_sub(1));
        Some(rest.fold(first, |all, row| merge(&all, &row)))
    })
}

/// All levels over the steps of so many replicas, which are in the order of replicas and their starts.
pub fn build_levels(steps: impl IntoIterator<Item = StepSpan>, replicas: usize) -> Vec<StepLevel> {
    let mut levels = vec![StepLevel::new(steps.into_iter().collect(), replicas)];
    while let Some(last) = levels.last() {
        let most = (0..replicas).map(|r| last.of(r).len()).max().unwrap_or(0);
        if most <= LAST_ROWS || levels.len() == MAX_LEVELS {
            break;
        }
        let rows = (0..replicas).flat_map(|r| merge_neighbours(last.of(r).iter(), FAN_OUT));
        levels.push(StepLevel::new(rows.collect(), replicas));
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(replica: u32, i: u64) -> StepSpan {
        StepSpan {
            replica,
            steps: 1,
            start: i * 10,
            end: i * 10 + 8,
            busy: 8,
            decode_tokens: i,
            running: Stat::of(i),
            ..StepSpan::default()
        }
    }

    #[test]
    fn levels_keep_sums_and_extremes() {
        let rows = (0..3).flat_map(|r| (0..1000).map(move |i| span(r, i)));
        let levels = build_levels(rows, 3);
        assert_eq!(
            levels.iter().map(|l| l.rows().len()).collect::<Vec<_>>(),
            [3000, 375, 48]
        );
        for level in &levels {
            let of: Vec<StepSpan> = level.of(1).iter().collect();
            assert_eq!(of.iter().map(|s| s.steps).sum::<u32>(), 1000);
            assert_eq!(of.iter().map(|s| s.decode_tokens).sum::<u64>(), 499_500);
            assert_eq!(of.iter().map(|s| s.busy).sum::<u64>(), 8000);
            assert_eq!(of.iter().map(|s| s.running.max).max(), Some(999));
            let mean: f64 = of
                .iter()
                .map(|s| f64::from(s.running.mean) * s.busy as f64)
                .sum();
            assert!((mean / 8000.0 - 499.5).abs() < 0.01, "{mean}");
        }
    }

    #[test]
    fn a_window_gives_what_reaches_into_it() {
        let level = StepLevel::new((0..100).map(|i| span(0, i)).collect(), 1);
        let starts = |window| -> Vec<u64> {
            let rows = level.within(0, window);
            rows.iter().map(|s| s.start).collect()
        };
        assert_eq!(starts(15..35), [10, 20, 30]);
        assert_eq!(starts(18..20), [0u64; 0]);
        assert_eq!(starts(0..5), [0]);
        assert_eq!(starts(5000..6000), [0u64; 0]);
        assert!(level.within(7, 0..10).is_empty());
    }
}
