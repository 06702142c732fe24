//! Traces that look like a given one: statistics of a trace, and synthetic traces with the same statistics.
//!
//! Published traces may not be ours to ship; their statistics are plain figures. `servetwin trace stats FILE` prints
//! them, `synth/*.toml` keeps those of two published traces, and `servetwin trace synth` draws from them:
//! gamma gaps with the trace's rate and cv; prompt and output lengths by inverse distribution, joined by a
//! Gaussian copula with the trace's rank correlation; and for traces with content hashes, the share of each prompt
//! that was seen before, by length of the prompt.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::io::{self, Write};
use std::path::Path;

use hwmodels::files::{Files, read_text};

use hwmodels::units::plain;
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use super::arrival::{OpenArrivals, RateCurve, UnitDraw};
use super::lengths::interpolate;
use super::spec::MAX_TOKENS;
use super::trace::{MOONCAKE_BLOCK_TOKENS, MooncakeLine, TraceReader, TraceRow};
use crate::kernel::rng::{Stream, stream};
use crate::kv::block_pool::PassThrough;

/// Quantiles kept of each distribution: every 2.5 %, and some of the last 2.5 %.
const STEPS: usize = 40;

/// Classes of prompt length by which content reuse is kept.
const CLASSES: usize = 4;

/// How many of the last requests a synthetic request may share content with.
const RECENT: usize = 512;

/// Most requests that statistics are taken of.
const MAX_ROWS: usize = 5_000_000;

/// Statistics of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceStats {
    /// Requests that the statistics are of.
    pub rows: u64,
    /// Mean arrival rate [1/s].
    pub rate_per_s: f64,
    /// Coefficient of variation of the gaps between arrivals.
    pub gap_cv: f64,
    /// Spearman's rank correlation of prompt and output length.
    pub rank_correlation: f64,
    /// Prompt lengths: `[share, tokens]`.
    pub prompt_quantiles: Vec<[f64; 2]>,
    /// Output lengths: `[share, tokens]`.
    pub output_quantiles: Vec<[f64; 2]>,
    /// Reuse of content, by class of prompt length; empty where the trace says nothing of content.
    #[serde(default)]
    pub reuse: Vec<Reuse>,
}

/// Reuse of content among prompts of one class of length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reuse {
    /// Longest prompt of the class [tokens].
    pub up_to_tokens: f64,
    /// Share of a prompt's blocks, from its start, that an earlier prompt had: `[share of prompts, share of blocks]`.
    pub seen_quantiles: Vec<[f64; 2]>,
}

/// Statistics that ship with the crate.
pub const SHIPPED: [(&str, &str); 2] = [
    ("azure-conv", include_str!("synth/azure-conv.toml")),
    ("mooncake", include_str!("synth/mooncake.toml")),
];

/// Largest file of statistics that is read [bytes].
const MAX_STATS_BYTES: u64 = 16 << 20;

/// The shipped statistics called `name`, or those of a file.
///
/// # Errors
/// A name that is neither shipped nor a file of statistics.
pub fn load(files: &dyn Files, name: &str) -> Result<TraceStats, String> {
    let shipped = SHIPPED.iter().find(|(n, _)| *n == name);
    let text = match shipped {
        Some((_, text)) => (*text).to_string(),
        None if name.ends_with(".toml") => read_text(files, Path::new(name), MAX_STATS_BYTES)
            .map_err(|e| format!("cannot read {name}: {e}"))?,
        None => {
            let known: Vec<&str> = SHIPPED.iter().map(|(n, _)| *n).collect();
            return Err(format!(
                "no statistics called `{name}`; shipped are {}, or name a file that `servetwin trace stats` wrote (.toml)",
                known.join(", ")
            ));
        }
    };
    let stats: TraceStats = toml::from_str(&text).map_err(|e| format!("{name}: {e}"))?;
    stats.check().map_err(|e| format!("{name}: {e}"))?;
    Ok(stats)
}

impl TraceStats {
    fn check(&self) -> Result<(), String> {
        if !(self.rate_per_s > 0.0 && self.rate_per_s <= 1e9) {
            return Err(format!(
                "rate_per_s: must be above 0 to 1e9, got {}",
                plain(self.rate_per_s)
            ));
        }
        if UnitDraw::new(self.gap_cv).is_none() {
            return Err(format!(
                "gap_cv: must be from 0 to 100, got {}",
                plain(self.gap_cv)
            ));
        }
        if !(-1.0..=1.0).contains(&self.rank_correlation) {
            return Err(format!(
                "rank_correlation: must be from -1 to 1, got {}",
                plain(self.rank_correlation)
            ));
        }
        let rising = |points: &[[f64; 2]], what: &str, max: f64| {
            let ordered = points
                .windows(2)
                .all(|w| w[0][0] <= w[1][0] && w[0][1] <= w[1][1]);
            let inside = points
                .iter()
                .all(|[s, v]| (0.0..=1.0).contains(s) && (0.0..=max).contains(v));
            if points.len() < 2 || !ordered || !inside {
                return Err(format!(
                    "{what}: must be at least two [share, value] points that rise, shares from 0 to 1, values from 0 to {max}"
                ));
            }
            Ok(())
        };
        rising(
            &self.prompt_quantiles,
            "prompt_quantiles",
            f64::from(MAX_TOKENS),
        )?;
        rising(
            &self.output_quantiles,
            "output_quantiles",
            f64::from(MAX_TOKENS),
        )?;
        for r in &self.reuse {
            rising(&r.seen_quantiles, "reuse.seen_quantiles", 1.0)?;
            if r.up_to_tokens.is_nan() {
                return Err("reuse.up_to_tokens: must be a number".into());
            }
        }
        Ok(())
    }
}

/// Takes the statistics of a trace.
///
/// # Errors
/// A trace with a fault, or of fewer than three requests.
pub fn stats_of(mut reader: TraceReader) -> Result<TraceStats, String> {
    let mut row = TraceRow::default();
    let (mut prompts, mut outputs, mut seen_share) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen: HashSet<u64, BuildHasherDefault<PassThrough>> = HashSet::default();
    let mut hashed = false;
    let (mut last, mut gap_sum, mut gap_squares) = (0.0, 0.0, 0.0);
    while reader.next_row(&mut row)? {
        if prompts.len() >= MAX_ROWS {
            return Err(format!(
                "the trace has more than {MAX_ROWS} requests; take a part of it"
            ));
        }
        let gap = row.arrival_s - last;
        last = row.arrival_s;
        gap_sum += gap;
        gap_squares += gap * gap;
        prompts.push(f64::from(row.prompt_tokens));
        outputs.push(f64::from(row.output_tokens));
        let blocks = row.hash_ids.len();
        // Spread, since the set takes hashes as they are and traces number their blocks from 0.
        let spread = |h: &u64| crate::kv::chain(0, *h);
        let known = row
            .hash_ids
            .iter()
            .take_while(|h| seen.contains(&spread(h)))
            .count();
        seen.extend(row.hash_ids.iter().map(spread));
        hashed |= blocks > 0;
        seen_share.push(if blocks == 0 {
            0.0
        } else {
            known as f64 / blocks as f64
        });
    }
    let n = prompts.len();
    if n < 3 {
        return Err(format!(
            "statistics need at least three requests, the trace has {n}"
        ));
    }
    let gaps = (n - 1) as f64;
    let mean_gap = gap_sum / gaps;
    if mean_gap <= 0.0 {
        return Err("all requests come at the same instant, so there is no rate".into());
    }
    let variance = (gap_squares / gaps - mean_gap * mean_gap).max(0.0);
    let reuse = if hashed {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|a, b| prompts[*a].total_cmp(&prompts[*b]));
        order
            .chunks(n.div_ceil(CLASSES))
            .map(|class| Reuse {
                up_to_tokens: prompts[class[class.len() - 1]],
                seen_quantiles: quantiles(class.iter().map(|i| seen_share[*i]).collect()),
            })
            .collect()
    } else {
        Vec::new()
    };
    Ok(TraceStats {
        rows: n as u64,
        rate_per_s: round(1.0 / mean_gap),
        gap_cv: round(variance.sqrt() / mean_gap),
        rank_correlation: round(correlation(&ranks(&prompts), &ranks(&outputs))),
        prompt_quantiles: quantiles(prompts),
        output_quantiles: quantiles(outputs),
        reuse,
    })
}

/// The statistics as TOML, a point per entry.
pub fn to_toml(stats: &TraceStats) -> String {
    let points = |out: &mut String, name: &str, points: &[[f64; 2]]| {
        let list: Vec<String> = points
            .iter()
            .map(|[a, b]| format!("[{a:?}, {b:?}]"))
            .collect();
        out.push_str(&format!("{name} = [\n"));
        for line in list.chunks(6) {
            out.push_str(&format!("    {},\n", line.join(", ")));
        }
        out.push_str("]\n");
    };
    let mut out = format!(
        "rows = {}\nrate_per_s = {:?}\ngap_cv = {:?}\nrank_correlation = {:?}\n",
        stats.rows, stats.rate_per_s, stats.gap_cv, stats.rank_correlation
    );
    points(&mut out, "prompt_quantiles", &stats.prompt_quantiles);
    points(&mut out, "output_quantiles", &stats.output_quantiles);
    for r in &stats.reuse {
        out.push_str(&format!(
            "\n[[reuse]]\nup_to_tokens = {:?}\n",
            r.up_to_tokens
        ));
        points(&mut out, "seen_quantiles", &r.seen_quantiles);
    }
    out
}

/// Five significant digits: more would only suggest knowledge.
fn round(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}

fn quantiles(mut values: Vec<f64>) -> Vec<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    // The long tail carries much of the mean, so its end is kept more finely.
    let even = (0..STEPS).map(|i| i as f64 / STEPS as f64);
    even.chain([0.985, 0.993, 0.997, 0.999, 1.0])
        .map(|share| {
            let at = share * (values.len() - 1) as f64;
            let (low, part) = (at.floor() as usize, at.fract());
            let high = (low + 1).min(values.len() - 1);
            [
                share,
                round(values[low] + part * (values[high] - values[low])),
            ]
        })
        .collect()
}

/// Ranks from 1, ties sharing their mean.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut i = 0;
    while i < order.len() {
        let mut j = i;
        while j + 1 < order.len() && values[order[j + 1]] == values[order[i]] {
            j += 1;
        }
        for k in &order[i..=j] {
            ranks[*k] = 0.5 * (i + j) as f64 + 1.0;
        }
        i = j + 1;
    }
    ranks
}

/// Pearson's correlation; 0 where one side never changes.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len() as f64;
    let (ma, mb) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        ab += (x - ma) * (y - mb);
        aa += (x - ma).powi(2);
        bb += (y - mb).powi(2);
    }
    if aa * bb > 0.0 {
        ab / (aa * bb).sqrt()
    } else {
        0.0
    }
}

/// Draws synthetic requests without end.
pub struct Synthesizer {
    stats: TraceStats,
    arrivals: OpenArrivals,
    lengths: Stream,
    reuse: Stream,
    /// Correlation of the copula's normals.
    rho: f64,
    /// Contents of the last requests, oldest first from `next_slot`.
    recent: Vec<Vec<u64>>,
    next_slot: usize,
    next_hash: u64,
}

impl Synthesizer {
    /// Requests with the statistics `stats`; the same seed gives the same requests.
    ///
    /// # Errors
    /// Statistics that contradict themselves.
    pub fn new(stats: TraceStats, seed: u64) -> Result<Synthesizer, String> {
        stats.check()?;
        let gaps = UnitDraw::new(stats.gap_cv).ok_or("gap_cv: must be from 0 to 100")?;
        Ok(Synthesizer {
            arrivals: OpenArrivals::new(
                RateCurve::constant(stats.rate_per_s),
                gaps,
                stream(seed, "synth.arrival"),
            ),
            lengths: stream(seed, "synth.lengths"),
            reuse: stream(seed, "synth.reuse"),
            // Pearson's correlation of normals whose ranks correlate so (Kruskal, 1958).
            rho: 2.0 * (std::f64::consts::PI * stats.rank_correlation / 6.0).sin(),
            stats,
            recent: Vec::new(),
            next_slot: 0,
            next_hash: 0,
        })
    }

    /// Writes the next request into `row`.
    pub fn next_row(&mut self, row: &mut TraceRow) {
        row.arrival_s = self.arrivals.next_arrival().map_or(0.0, |t| t.as_secs());
        let a: f64 = StandardNormal.sample(&mut self.lengths);
        let b: f64 = StandardNormal.sample(&mut self.lengths);
        let b = self.rho * a + (1.0 - self.rho * self.rho).max(0.0).sqrt() * b;
        let tokens = |points: &[[f64; 2]], z: f64| {
            (interpolate(points, normal_cdf(z)).round() as u32).clamp(1, MAX_TOKENS)
        };
        row.prompt_tokens = tokens(&self.stats.prompt_quantiles, a);
        row.output_tokens = tokens(&self.stats.output_quantiles, b);
        row.max_tokens = None;
        row.session = None;
        row.hash_ids.clear();
        if !self.stats.reuse.is_empty() {
            self.content(row);
        }
    }

    /// Gives the prompt its content: a beginning that an earlier prompt had, and new blocks.
    fn content(&mut self, row: &mut TraceRow) {
        let blocks = row.prompt_tokens.div_ceil(MOONCAKE_BLOCK_TOKENS) as usize;
        let length = f64::from(row.prompt_tokens);
        let class = self.stats.reuse.iter().find(|r| length <= r.up_to_tokens);
        let Some(class) = class.or(self.stats.reuse.last()) else {
            return;
        };
        let u: f64 = self.reuse.random();
        let wanted = (interpolate(&class.seen_quantiles, u) * blocks as f64).round() as usize;
        let wanted = wanted.min(blocks);
        if wanted > 0 && !self.recent.is_empty() {
            // The first that is long enough, from a random one on; else the longest of all.
            let start = self.reuse.random_range(0..self.recent.len());
            let mut best = start;
            for i in 0..self.recent.len() {
                let i = (start + i) % self.recent.len();
                if self.recent[i].len() > self.recent[best].len() {
                    best = i;
                }
                if self.recent[best].len() >= wanted {
                    break;
                }
            }
            let shared = wanted.min(self.recent[best].len());
            row.hash_ids.extend_from_slice(&self.recent[best][..shared]);
        }
        while row.hash_ids.len() < blocks {
            row.hash_ids.push(self.next_hash);
            self.next_hash += 1;
        }
        if self.recent.len() < RECENT {
            self.recent.push(row.hash_ids.clone());
        } else {
            self.recent[self.next_slot].clone_from(&row.hash_ids);
            self.next_slot = (self.next_slot + 1) % RECENT;
        }
    }

    /// Writes `n` requests: JSON lines in Mooncake's form where the statistics know of content, else plain CSV.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&mut self, n: u64, out: &mut dyn Write) -> io::Result<()> {
        let mooncake = !self.stats.reuse.is_empty();
        let mut row = TraceRow::default();
        if !mooncake {
            writeln!(out, "arrival_s,input_tokens,output_tokens")?;
        }
        for _ in 0..n {
            self.next_row(&mut row);
            if mooncake {
                let line = MooncakeLine {
                    timestamp: (row.arrival_s * 1000.0).round(),
                    input_length: f64::from(row.prompt_tokens),
                    output_length: f64::from(row.output_tokens),
                    hash_ids: row.hash_ids.clone(),
                };
                serde_json::to_writer(&mut *out, &line)?;
                writeln!(out)?;
            } else {
                writeln!(
                    out,
                    "{:.6},{},{}",
                    row.arrival_s, row.prompt_tokens, row.output_tokens
                )?;
            }
        }
        out.flush()
    }
}

/// Share of a standard normal below `z`: Abramowitz and Stegun 26.2.17, error below 7.5e-8.
fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let upper = density * poly;
    if z >= 0.0 { 1.0 - upper } else { upper }
}

#[cfg(test)]
mod tests {
    use hwmodels::files::Disk;

    use super::super::input::Lines;
    use super::super::trace::TraceFormat;
    use super::*;

    fn stats_of_text(text: Vec<u8>) -> TraceStats {
        let lines = Lines::from_reader(Box::new(io::Cursor::new(text)), "t").unwrap();
        stats_of(TraceReader::new(lines, TraceFormat::Auto).unwrap()).unwrap()
    }

    fn mean(points: &[[f64; 2]]) -> f64 {
        points
            .windows(2)
            .map(|w| 0.5 * (w[0][1] + w[1][1]) * (w[1][0] - w[0][0]))
            .sum()
    }

    #[test]
    fn a_synthetic_trace_has_the_statistics_it_was_drawn_from() {
        for (name, _) in SHIPPED {
            let wanted = load(&Disk, name).unwrap();
            let mut text = Vec::new();
            Synthesizer::new(wanted.clone(), 3)
                .unwrap()
                .write(6000, &mut text)
                .unwrap();
            let got = stats_of_text(text);
            let close = |a: f64, b: f64, tolerance: f64, what: &str| {
                assert!(
                    (a - b).abs() <= tolerance * b.abs().max(0.1),
                    "{name} {what}: {a} for {b}"
                );
            };
            close(got.rate_per_s, wanted.rate_per_s, 0.1, "rate");
            close(got.gap_cv, wanted.gap_cv, 0.15, "gap cv");
            close(
                mean(&got.prompt_quantiles),
                mean(&wanted.prompt_quantiles),
                0.05,
                "prompt",
            );
            close(
                mean(&got.output_quantiles),
                mean(&wanted.output_quantiles),
                0.05,
                "output",
            );
            assert!(
                (got.rank_correlation - wanted.rank_correlation).abs() < 0.05,
                "{name}"
            );
            assert_eq!(got.reuse.is_empty(), wanted.reuse.is_empty());
            for (g, w) in got.reuse.iter().zip(&wanted.reuse) {
                let (g, w) = (mean(&g.seen_quantiles), mean(&w.seen_quantiles));
                assert!((g - w).abs() < 0.06, "{name} reuse: {g} for {w}");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        let draw = |seed| {
            let mut text = Vec::new();
            let stats = load(&Disk, "mooncake").unwrap();
            Synthesizer::new(stats, seed)
                .unwrap()
                .write(100, &mut text)
                .unwrap();
            text
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        for (z, p) in [
            (0.0, 0.5),
            (1.0, 0.841_344_75),
            (-1.96, 0.024_997_9),
            (3.0, 0.998_650_1),
        ] {
            assert!((normal_cdf(z) - p).abs() < 1e-6);
        }
    }

    #[test]
    fn broken_statistics_are_refused() {
        let good = load(&Disk, "azure-conv").unwrap();
        let bad: [fn(&mut TraceStats); 6] = [
            |s| s.rate_per_s = f64::NAN,
            |s| s.rate_per_s = 0.0,
            |s| s.gap_cv = -1.0,
            |s| s.rank_correlation = 1.5,
            |s| s.prompt_quantiles.clear(),
            |s| s.output_quantiles[3][1] = f64::INFINITY,
        ];
        for change in bad {
            let mut s = good.clone();
            change(&mut s);
            assert!(Synthesizer::new(s, 1).is_err());
        }
        assert!(
            load(&Disk, "no-such-trace")
                .unwrap_err()
                .contains("azure-conv")
        );
    }
}
