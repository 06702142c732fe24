//! Measured against predicted over a window, figure by figure, with the noise of each error.
//!
//! Latencies are compared over the same requests on both sides: those that arrived in the compared part, finished, and
//! were fully seen. What the error would be by chance alone is found by resampling stretches of consecutive requests
//! (a moving-block bootstrap, Kuensch 1989: neighbours in a queue wait together, so single requests are not independent).

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use sim::kernel::time::SimTime;
use sim::metrics::Metric;
use sim::record::{RecordError, RequestRow, RunRecord};
use sim::request::Outcome;

use super::replay::Replayed;
use super::window::{Seen, Window};

/// Bootstrap replicates.
const REPLICATES: usize = 200;

/// Seed of the bootstrap: the same window gives the same noise.
const SEED: u64 = 0x7477_696e;

/// Slices of the window over which throughput is resampled.
const SLICES: usize = 20;

/// Chunks per token may differ from one by this before gaps between chunks no longer stand for gaps between tokens.
const CHUNK_SLACK: f64 = 0.02;

/// One figure, measured and predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is, e.g. `ttft_p50`.
    pub name: String,
    /// Its unit: `ms`, `/s`, `ratio` or empty for a count.
    pub unit: String,
    /// Measured, in that unit.
    pub measured: Option<f64>,
    /// Predicted, in that unit.
    pub predicted: Option<f64>,
    /// predicted / measured - 1 [ratio].
    pub error_ratio: Option<f64>,
    /// Standard deviation that the error has by chance [ratio].
    pub noise_ratio: Option<f64>,
}

impl Figure {
    fn new(name: &str, unit: &str, measured: Option<f64>, predicted: Option<f64>) -> Figure {
        let error = match (measured, predicted) {
            (Some(m), Some(p)) if m > 0.0 => Some(p / m - 1.0),
            _ => None,
        };
        Figure {
            name: name.into(),
            unit: unit.into(),
            measured,
            predicted,
            error_ratio: error,
            noise_ratio: None,
        }
    }
}

/// A window, measured and predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// End of the window [s since 1970].
    pub at_unix_s: f64,
    /// Length of the compared part [s].
    pub window_s: f64,
    /// Requests that arrived in it.
    pub requests: u64,
    /// Of those, the ones whose times were compared.
    pub compared: u64,
    /// Refused.
    pub refused: u64,
    /// Given up by their clients, or broken off.
    pub cancelled: u64,
    /// Still under way at the end.
    pub in_flight: u64,
    /// The figures in the order of the table.
    pub figures: Vec<Figure>,
    /// What the reader must know.
    pub notes: Vec<String>,
}

impl Comparison {
    /// The figure called `name`.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|f| f.name == name)
    }
}

/// One request on both sides [ms]; what a side does not have is NaN.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ttft: [f64; 2],
    tpot: [f64; 2],
    e2e: [f64; 2],
}

type Pick = fn(&Pair) -> [f64; 2];

/// Holds what was measured in `window` against its replay.
///
/// # Errors
/// When the rows of the window contradict each other: a defect.
pub fn compare(window: &Window, replayed: &Replayed) -> Result<Comparison, RecordError> {
    let measured = window.record()?;
    let predicted = &replayed.record;
    let pairs = pairs(window, &measured, replayed);
    let mut notes = window.meta.notes.clone();
    let mut figures = Vec::new();
    let picks: [(&str, Pick); 3] = [
        ("ttft", |p| p.ttft),
        ("tpot", |p| p.tpot),
        ("e2e", |p| p.e2e),
    ];
    for (name, pick) in picks {
        latency_figures(name, &pairs, pick, predicted, &mut figures);
        if name == "ttft" {
            itl_figures(window, &measured, predicted, &mut figures, &mut notes);
        }
    }
    rate_figures(window, &measured, replayed, &mut figures);
    state_figures(window, &measured, replayed, &mut figures);
    let count = |seen: &[Seen]| {
        let of = |r: &&super::window::Row| seen.contains(&r.outcome);
        window.compared().filter(of).count() as u64
    };
    let lossy = window.compared().filter(|r| r.lossy).count();
    if lossy > 0 {
        notes.push(format!(
            "{lossy} request(s) were not fully seen; their times are left out"
        ));
    }
    notes.extend(predicted.info.warnings.iter().cloned());
    let untrusted = predicted.info.profiles.iter().filter(|p| !p.trusted);
    for profile in untrusted {
        notes.push(format!(
            "profile {} is untrusted: {}",
            profile.name, profile.note
        ));
    }
    Ok(Comparison {
        at_unix_s: window.meta.unix_origin_s + window.meta.end_ns as f64 * 1e-9,
        window_s: window.seconds(),
        requests: window.compared().count() as u64,
        compared: pairs.len() as u64,
        refused: count(&[Seen::Refused]),
        cancelled: count(&[Seen::Cancelled, Seen::Failed]),
        in_flight: count(&[Seen::InFlight]),
        figures,
        notes,
    })
}

/// The simulated row of each of the window's rows; the last of several sequences to end stands for all.
fn by_window_row<'a>(window: &Window, replayed: &'a Replayed) -> Vec<Option<&'a RequestRow>> {
    let mut out: Vec<Option<&RequestRow>> = vec![None; window.rows.len()];
    for row in replayed.record.request_rows.iter().flatten() {
        if let Some(i) = replayed.row_of.get(row.id as usize) {
            out[*i] = Some(row);
        }
    }
    out
}

fn pairs(window: &Window, measured: &RunRecord, replayed: &Replayed) -> Vec<Pair> {
    let predicted = by_window_row(window, replayed);
    let mut rows: Vec<&RequestRow> = measured.request_rows.iter().flatten().collect();
    rows.sort_by_key(|r| r.id);
    rows.into_iter()
        .zip(&window.rows)
        .zip(predicted)
        .filter(|((_, row), _)| {
            row.arrival_ns >= window.meta.start_ns
                && row.outcome == Seen::Finished
                && row.comparable()
        })
        .filter_map(|((m, _), p)| {
            let p = p.filter(|p| p.outcome == Outcome::Finished)?;
            let both = |metric: Metric| {
                [m, p].map(|r| match (r.first_token, metric.of(r)) {
                    (SimTime::NEVER, _) if metric != Metric::E2e => f64::NAN,
                    (_, Some(d)) => d.as_millis(),
                    _ => f64::NAN,
                })
            };
            Some(Pair {
                ttft: both(Metric::Ttft),
                tpot: both(Metric::Tpot),
                e2e: both(Metric::E2e),
            })
        })
        .collect()
}

/// Mean, p50 and p99 of one latency over the requests that have it on both sides; predicted alone where none has it.
fn latency_figures(
    name: &str,
    pairs: &[Pair],
    pick: Pick,
    predicted: &RunRecord,
    out: &mut Vec<Figure>,
) {
    let values: Vec<[f64; 2]> = pairs
        .iter()
        .map(pick)
        .filter(|v| v.iter().all(|x| x.is_finite()))
        .collect();
    let noise: Option<[f64; 3]> = bootstrap(&values, |sample| {
        let [m, p] = [0, 1].map(|side| statistics(sample.iter().map(|v| v[side]).collect()));
        std::array::from_fn(|i| p[i] / m[i] - 1.0)
    });
    let [m, mut p] = [0, 1].map(|side| {
        (!values.is_empty()).then(|| statistics(values.iter().map(|v| v[side]).collect()))
    });
    if values.is_empty() {
        let metric = Metric::ALL.into_iter().find(|m| m.name() == name);
        let all = metric.and_then(|m| predicted.sorted_values(m));
        p = all
            .filter(|v| !v.is_empty())
            .map(|v| statistics(v.into_iter().map(|ns| ns as f64 / 1e6).collect()));
    }
    for (i, statistic) in ["mean", "p50", "p99"].into_iter().enumerate() {
        out.push(Figure {
            noise_ratio: noise.map(|n| n[i]),
            ..Figure::new(
                &format!("{name}_{statistic}"),
                "ms",
                m.map(|v| v[i]),
                p.map(|v| v[i]),
            )
        });
    }
}

/// Mean, p50 and p99.
fn statistics(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    [mean, quantile(&values, 0.5), quantile(&values, 0.99)]
}

/// The `p` quantile of ascending values, interpolated as numpy does; NaN when there are none.
fn quantile(sorted: &[f64], p: f64) -> f64 {
    sim::metrics::distribution::quantile_of_sorted_f64(sorted, p).unwrap_or(f64::NAN)
}

/// Standard deviation of each component of `statistic` over resamples of stretches of `values`; none for few values.
fn bootstrap<T: Copy, const N: usize>(
    values: &[T],
    statistic: impl Fn(&[T]) -> [f64; N],
) -> Option<[f64; N]> {
    let n = values.len();
    if n < 8 {
        return None;
    }
    // The length that balances bias and variance of a mean grows with the cube root (Hall, Horowitz, Jing 1995).
    let block = ((n as f64).cbrt().round() as usize).clamp(1, n);
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut sums = [[0.0; 2]; N];
    let mut sample = Vec::with_capacity(n + block);
    for _ in 0..REPLICATES {
        sample.clear();
        while sample.len() < n {
            let from = rng.random_range(0..=n - block);
            sample.extend_from_slice(&values[from..from + block]);
        }
        sample.truncate(n);
        for (sum, v) in sums.iter_mut().zip(statistic(&sample)) {
            sum[0] += v;
            sum[1] += v * v;
        }
    }
    let r = REPLICATES as f64;
    Some(sums.map(|[s, sq]| (sq / r - (s / r).powi(2)).max(0.0).sqrt()))
}

/// Gaps between tokens, where a chunk holds one.
fn itl_figures(
    window: &Window,
    measured: &RunRecord,
    predicted: &RunRecord,
    out: &mut Vec<Figure>,
    notes: &mut Vec<String>,
) {
    let per_token = window.chunks_per_token();
    let comparable = per_token.is_none_or(|c| (c - 1.0).abs() <= CHUNK_SLACK);
    if let Some(c) = per_token.filter(|_| !comparable) {
        notes.push(format!(
            "the server sends {c:.2} chunks per token, so gaps between chunks are not gaps between tokens; see TPOT"
        ));
    }
    for (name, p) in [
        ("itl_mean", None),
        ("itl_p50", Some(0.5)),
        ("itl_p99", Some(0.99)),
    ] {
        let of = |record: &RunRecord| {
            let itl = &record.latencies.itl;
            let ns = p.map_or_else(|| itl.mean_ns(), |p| itl.quantile_ns(p));
            ns.map(|ns| ns / 1e6)
        };
        let measured = of(measured).filter(|_| comparable);
        out.push(Figure::new(name, "ms", measured, of(predicted)));
    }
}

/// What finished inside the compared part, per second.
fn rate_figures(window: &Window, measured: &RunRecord, replayed: &Replayed, out: &mut Vec<Figure>) {
    // On the clock of each side: the replay's may run faster.
    let span = |record: &RunRecord, end: SimTime| (SimTime::ZERO + record.warmup, end);
    let ended = SimTime(window.meta.end_ns.saturating_sub(window.origin_ns()));
    let sides = [
        (measured, span(measured, ended)),
        (&replayed.record, span(&replayed.record, replayed.end)),
    ];
    let mut slices = vec![[[0.0; 2]; 2]; SLICES];
    let mut seconds = [0.0; 2];
    for (side, (record, (start, end))) in sides.into_iter().enumerate() {
        let length = end.since(start).0.max(1);
        seconds[side] = length as f64 * 1e-9;
        for row in record.request_rows.iter().flatten() {
            if row.outcome == Outcome::Finished && row.end >= start && row.end < end {
                let at = row.end.since(start).0;
                let slice = (u128::from(at) * SLICES as u128 / u128::from(length)) as usize;
                let slice = &mut slices[slice.min(SLICES - 1)];
                slice[0][side] += 1.0;
                slice[1][side] += f64::from(row.output_tokens);
            }
        }
    }
    for (i, name) in ["requests_per_s", "output_tokens_per_s"]
        .into_iter()
        .enumerate()
    {
        let of: Vec<[f64; 2]> = slices.iter().map(|s| s[i]).collect();
        let total =
            |of: &[[f64; 2]], side: usize| of.iter().map(|s| s[side]).sum::<f64>() / seconds[side];
        let noise = bootstrap(&of, |s| [total(s, 1) / total(s, 0) - 1.0]);
        out.push(Figure {
            noise_ratio: noise.map(|n| n[0]).filter(|n| n.is_finite()),
            ..Figure::new(
                name,
                "/s",
                really_seen(window).then(|| total(&of, 0)),
                Some(total(&of, 1)),
            )
        });
    }
}

/// Whether the rows were recorded; those drawn from metrics have no times of their own.
fn really_seen(window: &Window) -> bool {
    window.rows.iter().any(super::window::Row::comparable)
}

/// Time-weighted means over the compared part: requests in the system, and what the server's own metrics say.
fn state_figures(
    window: &Window,
    measured: &RunRecord,
    replayed: &Replayed,
    out: &mut Vec<Figure>,
) {
    let ended = SimTime(window.meta.end_ns.saturating_sub(window.origin_ns()));
    out.push(Figure::new(
        "in_system",
        "",
        really_seen(window).then(|| mean_in_system(measured, ended)),
        Some(mean_in_system(&replayed.record, replayed.end)),
    ));
    let [running, waiting, kv] = mean_states(replayed);
    let server = window.meta.server.unwrap_or_default();
    out.push(Figure::new("running", "", server.running, running));
    out.push(Figure::new("waiting", "", server.waiting, waiting));
    out.push(Figure::new("kv_used", "ratio", server.kv_ratio, kv));
    cached_figure(window, replayed, out);
}

/// Running and waiting requests and the share of KV in use of a replay, averaged over the compared part.
pub fn mean_states(replayed: &Replayed) -> [Option<f64>; 3] {
    let record = &replayed.record;
    let start = SimTime::ZERO + record.warmup;
    let blocks: u64 = record.info.replicas.iter().map(|r| r.kv_blocks).sum();
    let mut sums = [0.0; 3];
    for point in record.series.points(record.end) {
        let from = point.start.max(start);
        let to = (point.start + point.width).min(replayed.end);
        let w = to.since(from).as_secs();
        for (sum, v) in sums
            .iter_mut()
            .zip([point.running, point.waiting, point.kv_blocks])
        {
            *sum += w * v;
        }
    }
    // Where nothing ran there is no point, and the mean counts it as zero.
    let seconds = replayed.end.since(start).as_secs();
    let [running, waiting, kv] = sums.map(|s| (seconds > 0.0).then(|| s / seconds));
    let kv = kv.filter(|_| blocks > 0).map(|b| b / blocks as f64);
    [running, waiting, kv]
}

/// Share of prompt tokens found in the prefix cache, over the requests of which the server said it.
fn cached_figure(window: &Window, replayed: &Replayed, out: &mut Vec<Figure>) {
    let predicted = by_window_row(window, replayed);
    let mut sums = [[0u64; 2]; 2];
    for (row, p) in window.rows.iter().zip(predicted) {
        let (Some(cached), Some(p)) = (row.cached_tokens, p) else {
            continue;
        };
        if row.arrival_ns >= window.meta.start_ns && row.comparable() {
            for (sum, (c, n)) in sums.iter_mut().zip([
                (cached, row.prompt_tokens),
                (p.cached_tokens, p.prompt_tokens),
            ]) {
                sum[0] += u64::from(c);
                sum[1] += u64::from(n);
            }
        }
    }
    let share = |s: [u64; 2]| (s[1] > 0).then(|| s[0] as f64 / s[1] as f64);
    if sums[0][1] > 0 {
        out.push(Figure::new(
            "prefix_hits",
            "ratio",
            share(sums[0]),
            share(sums[1]),
        ));
    }
}

/// Requests sent and not yet ended, averaged over the compared part.
fn mean_in_system(record: &RunRecord, end: SimTime) -> f64 {
    let start = SimTime::ZERO + record.warmup;
    let length = end.since(start).as_secs();
    let busy: f64 = record
        .request_rows
        .iter()
        .flatten()
        .filter(|r| !matches!(r.outcome, Outcome::Rejected(_)))
        .map(|r| r.end.min(end).since(r.arrival.max(start)).as_secs())
        .sum();
    if length > 0.0 { busy / length } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_shrinks_with_the_root_of_the_requests_and_is_the_same_each_time() {
        let values = |n: usize| -> Vec<f64> {
            let mut rng = StdRng::seed_from_u64(7);
            (0..n).map(|_| rng.random_range(0.5..1.5)).collect()
        };
        let mean = |s: &[f64]| [s.iter().sum::<f64>() / s.len() as f64];
        let noise = |n: usize| bootstrap(&values(n), mean).expect("enough values")[0];
        // Standard error of a mean of uniforms: sqrt(1/12 / n).
        for n in [100, 1600] {
            let expected = (1.0 / 12.0 / n as f64).sqrt();
            assert!(
                (noise(n) / expected - 1.0).abs() < 0.35,
                "{n}: {} {expected}",
                noise(n)
            );
        }
        assert_eq!(noise(100), noise(100));
        assert!(bootstrap(&values(7), mean).is_none());
    }

    #[test]
    fn quantiles_are_those_of_numpy() {
        let x = [1.0, 2.0, 3.0, 4.0, 10.0];
        assert!((quantile(&x, 0.9) - 7.6).abs() < 1e-12);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
