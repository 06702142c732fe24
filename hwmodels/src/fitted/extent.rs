//! How far a run left the ranges that a profile was fitted on.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::BatchStats;
use crate::profile::Profile;

/// Quantities of a step that [`Profile::validity`] can bound, with what they are in words.
pub const QUANTITIES: [(&str, &str); 4] = [
    ("tokens", "tokens in a step"),
    ("sequences", "sequences in a step"),
    ("context", "mean context of a step's decodes [tokens]"),
    ("prefill_tokens", "prompt tokens in a step"),
];

#[derive(Debug)]
struct Range {
    low: f64,
    high: f64,
    /// Steps outside.
    outside: AtomicU64,
    /// Smallest and largest value outside, rounded to whole numbers.
    least: AtomicU64,
    most: AtomicU64,
}

/// Counts steps outside a profile's validity ranges. The count is the same however replicas are advanced.
#[derive(Debug)]
pub struct Extent {
    steps: AtomicU64,
    ranges: [Option<Range>; QUANTITIES.len()],
}

/// The value of quantity `i` for a step; none where the step has none of it.
fn value(i: usize, b: &BatchStats) -> Option<f64> {
    match i {
        0 => Some(f64::from(b.tokens())),
        1 => Some(f64::from(b.decode_seqs + b.prefill_seqs)),
        2 => (b.decode_seqs > 0).then(|| b.decode_ctx_sum as f64 / f64::from(b.decode_seqs)),
        _ => (b.prefill_tokens > 0).then(|| f64::from(b.prefill_tokens)),
    }
}

impl Extent {
    /// Watches the ranges that `profile` has.
    pub fn new(profile: &Profile) -> Extent {
        Extent {
            steps: AtomicU64::new(0),
            ranges: QUANTITIES.map(|(name, _)| {
                profile.validity.get(name).map(|[low, high]| Range {
                    low: *low,
                    high: *high,
                    outside: AtomicU64::new(0),
                    least: AtomicU64::new(u64::MAX),
                    most: AtomicU64::new(0),
                })
            }),
        }
    }

    /// The smallest and largest value of each quantity over `batches`, as [`Profile::validity`] has them.
    pub fn ranges_of<'a>(
        batches: impl IntoIterator<Item = &'a BatchStats>,
    ) -> std::collections::BTreeMap<String, [f64; 2]> {
        let mut ranges = std::collections::BTreeMap::new();
        for b in batches {
            for (i, (name, _)) in QUANTITIES.iter().enumerate() {
                let Some(v) = value(i, b) else { continue };
                let r = ranges.entry((*name).to_owned()).or_insert([v, v]);
                *r = [r[0].min(v), r[1].max(v)];
            }
        }
        ranges
    }

    /// Counts one step.
    #[inline]
    pub fn note(&self, b: &BatchStats) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        for (i, range) in self.ranges.iter().enumerate() {
            let (Some(r), Some(v)) = (range, value(i, b)) else {
                continue;
            };
            if v < r.low || v > r.high {
                r.outside.fetch_add(1, Ordering::Relaxed);
                r.least.fetch_min(v.floor() as u64, Ordering::Relaxed);
                r.most.fetch_max(v.ceil() as u64, Ordering::Relaxed);
            }
        }
    }

    /// What was outside and by how much, in words; nothing if all was inside.
    pub fn warnings(&self) -> Vec<String> {
        let steps = self.steps.load(Ordering::Relaxed).max(1);
        let mut out = Vec::new();
        for (range, (_, words)) in self.ranges.iter().zip(QUANTITIES) {
            let Some(r) = range else { continue };
            let outside = r.outside.load(Ordering::Relaxed);
            if outside == 0 {
                continue;
            }
            let (least, most) = (
                r.least.load(Ordering::Relaxed) as f64,
                r.most.load(Ordering::Relaxed) as f64,
            );
            let mut how = Vec::new();
            if most > r.high {
                how.push(format!("up to {most}"));
            }
            if least < r.low {
                how.push(format!("down to {least}"));
            }
            out.push(format!(
                "{words}: {} in {outside} of {steps} steps ({:.1} %), fitted on {} to {}: extrapolated",
                how.join(" and "),
                100.0 * outside as f64 / steps as f64,
                r.low.round(),
                r.high.round(),
            ));
        }
        out
    }
}
