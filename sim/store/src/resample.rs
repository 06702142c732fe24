//! Series over the window that is shown: time-weighted means of all replicas, or of one, in equal columns.

use std::ops::Range;

use crate::{StepLevel, StepSpan};

/// The finest level of which a replica has at most `most` rows in the window; else the coarsest.
pub fn level_for(levels: &[StepLevel], replica: usize, window: Range<u64>, most: usize) -> usize {
    levels
        .iter()
        .position(|l| l.within(replica, window.clone()).len() <= most)
        .unwrap_or(levels.len().saturating_sub(1))
}

/// One column: means over its time, summed over the replicas. Between steps an engine holds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Column {
    /// Requests running.
    pub running: f64,
    /// Requests waiting in engines.
    pub waiting: f64,
    /// KV blocks in use.
    pub kv_blocks: f64,
    /// Tokens per second, prefilled and decoded.
    pub tokens: [f64; 2],
    /// Time of steps by cause, in the order of `hwmodels::Parts::NAMES`, per replica [0, 1].
    pub parts: [f64; 6],
}

/// `columns` equal columns over `window` [ns], of replica `only` or of all.
pub fn columns(
    levels: &[StepLevel],
    window: Range<u64>,
    columns: usize,
    only: Option<usize>,
) -> Vec<Column> {
    let n = columns.max(1);
    let mut out = vec![Column::default(); n];
    let width = (window.end.saturating_sub(window.start)).max(1) as f64 / n as f64;
    let replicas = levels.first().map_or(0, StepLevel::replicas);
    let chosen = match only {
        Some(r) => r..(r + 1).min(replicas).max(r),
        None => 0..replicas,
    };
    let share = 1.0 / chosen.len().max(1) as f64;
    for replica in chosen {
        let level = level_for(levels, replica, window.clone(), 4 * n);
        let Some(level) = levels.get(level) else {
            continue;
        };
        for span in level.within(replica, window.clone()) {
            add(&span, &window, width, share, &mut out);
        }
    }
    for c in &mut out {
        c.tokens = c.tokens.map(|t| t * 1e9 / width);
    }
    out
}

fn add(span: &StepSpan, window: &Range<u64>, width: f64, share: f64, out: &mut [Column]) {
    let length = (span.end - span.start).max(1) as f64;
    let covered = (span.busy as f64 / length).min(1.0);
    let (from, to) = (span.start.max(window.start), span.end.min(window.end));
    let first = ((from - window.start) as f64 / width) as usize;
    let last = (to.saturating_sub(window.start) as f64 / width) as usize;
    for (i, column) in out.iter_mut().enumerate().take(last + 1).skip(first) {
        let a = window.start as f64 + i as f64 * width;
        let overlap = ((to as f64).min(a + width) - (from as f64).max(a)).max(0.0);
        // Share of the column's time, and of the span's sums.
        let (held, part) = (covered * overlap / width, overlap / length);
        column.running += f64::from(span.running.mean) * held;
        column.waiting += f64::from(span.waiting.mean) * held;
        column.kv_blocks += f64::from(span.kv_blocks.mean) * held;
        column.tokens[0] += span.prefill_tokens as f64 * part;
        column.tokens[1] += span.decode_tokens as f64 * part;
        for (sum, p) in column.parts.iter_mut().zip(span.parts) {
            *sum += f64::from(p) * 1e9 * part / width * share;
        }
    }
}

/// The cumulative share of ascending `values` with weights, as points of a curve: about `most` at most.
pub fn cumulative(values: impl Iterator<Item = (u64, u64)> + Clone, most: usize) -> Vec<[f64; 2]> {
    let total: u64 = values.clone().map(|v| v.1).sum();
    if total == 0 {
        return Vec::new();
    }
    let mut points = Vec::with_capacity(most + 2);
    let (mut seen, mut next) = (0u64, 0.0);
    for (i, (v, n)) in values.enumerate() {
        if i == 0 {
            points.push([v as f64, 0.0]);
        }
        seen += n;
        let share = seen as f64 / total as f64;
        if share >= next || seen == total {
            points.push([v as f64, share]);
            next = share + 1.0 / most as f64;
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build_levels;

    /// Two replicas that decode for nine tenths of the time.
    fn levels() -> Vec<StepLevel> {
        let step = |replica: u32, i: u64| StepSpan {
            replica,
            steps: 1,
            start: i * 10_000_000,
            end: i * 10_000_000 + 9_000_000,
            busy: 9_000_000,
            parts: [0.006, 0.0, 0.003, 0.0, 0.0, 0.0],
            decode_tokens: 10 + i % 7,
            running: crate::Stat::of(8 + u64::from(replica)),
            ..StepSpan::default()
        };
        let rows = (0..2).flat_map(|r| (0..1000).map(move |i| step(r, i)));
        build_levels(rows, 2)
    }

    #[test]
    fn sums_over_columns_are_those_of_the_steps() {
        let levels = levels();
        let all = 0..10_000_000_000;
        let decoded: u64 = levels[0].rows().iter().map(|s| s.decode_tokens).sum();
        for n in [7, 100, 1000] {
            let c = columns(&levels, all.clone(), n, None);
            let width = 10.0 / n as f64;
            let tokens: f64 = c.iter().map(|c| c.tokens[1] * width).sum();
            assert!(
                (tokens - decoded as f64).abs() < 1e-3 * decoded as f64,
                "{tokens} {decoded}"
            );
            for c in &c {
                assert!((c.parts.iter().sum::<f64>() - 0.9).abs() < 0.02, "{c:?}");
                assert!((c.running - 0.9 * 17.0).abs() < 0.4, "{c:?}");
            }
        }
        let one = columns(&levels, all.clone(), 50, Some(0));
        let two = columns(&levels, all.clone(), 50, Some(1));
        let both = columns(&levels, all, 50, None);
        for ((a, b), c) in one.iter().zip(&two).zip(&both) {
            assert!((a.running + b.running - c.running).abs() < 1e-3);
        }
        let none = columns(&levels, 0..1, 5, Some(9));
        assert!(none.iter().all(|c| c.running == 0.0));
    }

    #[test]
    fn cumulative_shares_rise_to_one() {
        let points = cumulative((1..=10_000).map(|v| (v, 1)), 400);
        assert!(points.len() <= 402);
        assert_eq!(points.last(), Some(&[10_000.0, 1.0]));
        assert!(points.is_sorted_by_key(|p| (p[1] * 1e9) as u64));
        let median = points.iter().find(|p| p[1] >= 0.5).unwrap()[0];
        assert!((4900.0..5100.0).contains(&median), "{median}");
        assert!(cumulative([].into_iter(), 400).is_empty());
    }
}
