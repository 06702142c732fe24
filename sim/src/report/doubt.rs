//! How far from the truth a run's figures may be: the range in which nine of ten such deployments would be measured.
//!
//! The width comes from the errors of predictions on measured runs like this one that nothing was fitted on ([`hwmodels::doubt`]):
//! of the same engine, of mixtures or dense models, and wider where the accelerator is known by its data sheet alone. A profile that was
//! calibrated on the user's own deployment brings its own held-out errors; then the width is 2.8 times their median, between a normal
//! (2.4) and a Laplace distribution (3.3). Where requests waited for replicas that were starting, TTFT is less sure by what starts may be off
//! ([`super::starts`]). `servetwin validate` counts how many measured rows lie inside the ranges that the other sets give.
//!
//! Where requests come at times of their own, an error in the time of steps becomes a larger one in latencies, the more the nearer the load is to
//! the knee: a step that takes longer holds more requests, and a queue grows by what is not done. So the same requests are run again with all steps
//! longer, and shorter, by as much as they may be off, and what that does to each figure is its part of the range ([`ends`]). Where users wait for their
//! answers, or all requests come at once, the load slows down with the steps, and figures change as steps do.

use hwmodels::doubt::{HELD, Load, START_ERROR, ends, half_width, shipped};
use serde::{Deserialize, Serialize};

use crate::metrics::Metric;
use crate::metrics::objective::LatencyLimit;
use crate::record::{MeasuredError, RunInfo};
use crate::report::figures::secs;
use crate::report::latency::LatencySummary;
use crate::report::starts::StartWaits;
use crate::report::summary::RunReport;

pub use hwmodels::doubt::Figure;

/// What a measured set's metric is about.
pub fn figure_of(metric: &str) -> Figure {
    if metric.contains("ttft") {
        Figure::Ttft
    } else if metric.contains("throughput") || metric.contains("tok_s") {
        Figure::Throughput
    } else {
        Figure::Tpot
    }
}

/// Half width of a 90 % range over the median error of a calibration: see the module.
const WIDTH: f64 = 2.8;
/// No calibrated figure is surer than that [ln].
const LEAST: f64 = 0.05;
/// Half width where nothing at all is known of a run's kind [ln].
const UNKNOWN: f64 = 0.7;

/// Half the width of the 90 % range of the time of steps in runs like that of `info`, as a natural logarithm; none where nothing is known of such runs.
pub fn pace(info: &RunInfo) -> Option<f64> {
    let of_kind = || Some(half_width(shipped(), info.like?, Figure::Tpot, None));
    calibrated(&info.accuracy, Figure::Tpot).or_else(of_kind)
}

/// Half width from the held-out errors of a profile of the user's own.
fn calibrated(accuracy: &[MeasuredError], figure: Figure) -> Option<f64> {
    let own = |a: &&MeasuredError| {
        figure_of(&a.metric) == figure && shipped().iter().all(|s| s.set != a.set)
    };
    let (mut n, mut sum) = (0.0, 0.0);
    for a in accuracy.iter().filter(own) {
        n += a.n as f64;
        sum += a.n as f64 * a.median_error_ratio;
    }
    (n > 0.0).then(|| (1.0 + WIDTH * sum / n).ln().max(LEAST))
}

/// Half the width of the 90 % range of a figure, as a natural logarithm: the truth lies between the figure over `exp` of it and the figure times that.
/// `left_out` names a measured set that is not to count.
pub fn spread(r: &RunReport, figure: Figure, left_out: Option<&str>) -> f64 {
    let of_serving = match (calibrated(&r.accuracy, figure), r.like) {
        (Some(known), _) => known,
        (None, Some(kind)) => half_width(shipped(), kind, figure, left_out),
        (None, None) => UNKNOWN,
    };
    match figure {
        // Starts and steps are predicted by models that know nothing of each other.
        Figure::Ttft => of_serving.hypot(of_starts(r)),
        Figure::Tpot | Figure::Throughput => of_serving,
    }
}

/// What starts of replicas add to the half width of TTFT [ln]; nothing where nobody waited for one, or where that is not known.
fn of_starts(r: &RunReport) -> f64 {
    let error = start_waits(r).and_then(|w| w.ttft_error_ms);
    match (error, r.ttft_ms.mean) {
        (Some(error), Some(mean)) if mean > 0.0 => (1.0 + error / mean).ln(),
        _ => 0.0,
    }
}

fn start_waits(r: &RunReport) -> Option<&StartWaits> {
    r.cluster.as_ref()?.start_waits.as_ref()
}

/// Half width that starts add to TTFT from which on the report says so [ln].
const NAMED: f64 = 0.01;

/// What is to be said of starts beside the ranges, where they add `widening` to the half width of TTFT.
fn starts_in_words(w: &StartWaits, widening: f64) -> String {
    match w.waited_ratio {
        None => " That replicas may take longer to start is not in the range of TTFT, since rows of requests were not kept or prefill and decode are apart.".into(),
        Some(share) if widening >= NAMED => format!(
            " For TTFT starts count too: {:.1} % of the requests waited for replicas that were starting, and starts may be off by {:.0} %.",
            100.0 * share,
            100.0 * START_ERROR
        ),
        Some(_) => String::new(),
    }
}

/// Where nine of ten such deployments would be measured. An end is null where the figure is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Ranges {
    /// Share of such deployments that would be measured inside [ratio].
    pub chance: f64,
    /// Time to first token [ms].
    pub ttft_ms: LatencyRanges,
    /// Time per output token [ms].
    pub tpot_ms: LatencyRanges,
    /// End-to-end latency [ms].
    pub e2e_ms: LatencyRanges,
    /// Requests finished per second while requests are sent.
    pub requests_per_s: [f64; 2],
    /// Output tokens per second while requests are sent.
    pub output_tokens_per_s: [f64; 2],
    /// How much longer or shorter steps may be than predicted [ratio].
    pub step_ratio: f64,
    /// What the load makes of that.
    pub load: LoadPart,
    /// Mean TTFT where the users of closed loops start evenly over one answer, in place of all at once, as those of `vllm bench serve` and AIPerf do unless
    /// they are told to ramp up [ms]; null without such users. No range holds it: it is for whoever calls the deployment to say.
    pub ttft_apart_ms: Option<f64>,
}

/// From and to [ms] for each statistic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LatencyRanges {
    /// Of the arithmetic mean.
    pub mean: Option<[f64; 2]>,
    /// Of the median.
    pub p50: Option<[f64; 2]>,
    /// Of the 90th percentile.
    pub p90: Option<[f64; 2]>,
    /// Of the 95th percentile.
    pub p95: Option<[f64; 2]>,
    /// Of the 99th percentile.
    pub p99: Option<[f64; 2]>,
}

/// What the load makes of steps that take longer than predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadPart {
    /// Nothing: users wait for their answers, or all requests come at once, so the load slows down with the steps.
    Follows,
    /// In the ranges: the same requests were run with longer and with shorter steps.
    Replayed,
    /// The same, and with longer steps the load is above capacity: the upper ends grow with the length of the run.
    Overload,
    /// Not in the ranges, which are too narrow near the knee and beyond it.
    LeftOut,
    /// No run like it was measured: the ranges are a guess, whatever the load.
    Unknown,
}

/// Requests of the longest run that is repeated for its ranges.
const MOST_REPLAYED: u64 = 100_000;

impl Ranges {
    /// Those of `r` without what the load does; none where nothing was predicted: it made no step, or was measured.
    pub(super) fn of(r: &RunReport) -> Option<Ranges> {
        if r.stats.steps == 0 {
            return None;
        }
        let load = match r.like.map(|kind| kind.load) {
            None if calibrated(&r.accuracy, Figure::Tpot).is_none() => LoadPart::Unknown,
            None | Some(Load::Open) => LoadPart::LeftOut,
            Some(Load::Closed | Load::Saturated) => LoadPart::Follows,
        };
        Some(Ranges::between(r, [r, r], |_, _| 1.0, load))
    }

    /// Those of `r` by runs with `[shorter, longer]` steps: `response` says from the figure of `r` and that of another run how much it changed, over how
    /// much the steps did.
    fn between(
        r: &RunReport,
        others: [&RunReport; 2],
        response: impl Fn(f64, f64) -> f64,
        load: LoadPart,
    ) -> Ranges {
        let of_figure = |figure| spread(r, figure, None);
        let (ttft, pace) = (of_figure(Figure::Ttft), of_figure(Figure::Tpot));
        let rates = of_figure(Figure::Throughput);
        let range = |figure: Figure, of: &dyn Fn(&RunReport) -> Option<f64>| {
            let value = of(r)?;
            let [shorter, longer] =
                others.map(|other| of(other).map_or(1.0, |o| response(value, o)));
            let own = match figure {
                Figure::Ttft => ttft,
                Figure::Tpot => pace,
                Figure::Throughput => rates,
            };
            Some(ends(figure, value, [own, pace], [shorter, longer]))
        };
        let latencies = |figure: Figure, of: fn(&RunReport) -> &LatencySummary| LatencyRanges {
            mean: range(figure, &|r| of(r).mean),
            p50: range(figure, &|r| of(r).p50),
            p90: range(figure, &|r| of(r).p90),
            p95: range(figure, &|r| of(r).p95),
            p99: range(figure, &|r| of(r).p99),
        };
        let rate = |of: fn(&RunReport) -> f64| {
            let found = range(Figure::Throughput, &|r| Some(of(r)).filter(|v| *v > 0.0));
            found.unwrap_or_default()
        };
        Ranges {
            chance: HELD,
            ttft_ms: latencies(Figure::Ttft, |r| &r.ttft_ms),
            tpot_ms: latencies(Figure::Tpot, |r| &r.tpot_ms),
            e2e_ms: latencies(Figure::Tpot, |r| &r.e2e_ms),
            requests_per_s: rate(|r| r.throughput.requests_per_s),
            output_tokens_per_s: rate(|r| r.throughput.output_tokens_per_s),
            step_ratio: pace.exp(),
            load,
            ttft_apart_ms: None,
        }
    }
}

impl Ranges {
    /// That of the statistic that an objective limits [ms]; none of statistics that have none.
    pub fn of_limit(&self, limit: &LatencyLimit) -> Option<[f64; 2]> {
        let ranges = match limit.metric {
            Metric::Ttft => &self.ttft_ms,
            Metric::Tpot => &self.tpot_ms,
            Metric::E2e => &self.e2e_ms,
            _ => return None,
        };
        match limit.quantile {
            None => ranges.mean,
            Some(0.5) => ranges.p50,
            Some(0.9) => ranges.p90,
            Some(0.95) => ranges.p95,
            Some(0.99) => ranges.p99,
            Some(_) => None,
        }
    }
}

/// How much `value` and `other` differ over how much steps of such a run may be off, both as logarithms. It can be less than nothing only by chance.
pub fn response(value: f64, other: f64, pace: f64) -> f64 {
    match (other / value).ln().abs() / pace {
        r if r.is_finite() => r,
        _ => 1.0,
    }
}

/// The runs of the same requests with steps `[shorter, longer]` by as much as those of `r` may be off; `run` makes one whose steps take so many times as
/// long. None where that says nothing more (`follows`: the load slows down with the steps) or takes too long.
///
/// # Errors
/// Those of `run`.
pub fn bracket<E>(
    r: &RunReport,
    follows: bool,
    run: impl Fn(f64) -> Result<RunReport, E>,
) -> Result<Option<[RunReport; 2]>, E> {
    let Some(ranges) = &r.ranges else {
        return Ok(None);
    };
    let known = ranges.load != LoadPart::Unknown;
    if !known || follows || r.requests.offered > MOST_REPLAYED {
        return Ok(None);
    }
    Ok(Some([
        run(1.0 / ranges.step_ratio)?,
        run(ranges.step_ratio)?,
    ]))
}

/// Gives `r` the ranges that the load makes; see [`bracket`].
///
/// # Errors
/// Those of `run`.
pub fn replay<E>(
    r: &mut RunReport,
    follows: bool,
    run: impl Fn(f64) -> Result<RunReport, E>,
) -> Result<(), E> {
    if let Some([shorter, longer]) = bracket(r, follows, run)? {
        let load = match longer.stationarity.growing() && !r.stationarity.growing() {
            true => LoadPart::Overload,
            false => LoadPart::Replayed,
        };
        let pace = spread(r, Figure::Tpot, None);
        let response = |value: f64, other: f64| response(value, other, pace);
        let ranges = Ranges::between(r, [&shorter, &longer], response, load);
        r.ranges = Some(ranges);
    } else if let Some(ranges) =
        (r.ranges.as_mut()).filter(|ranges| follows && ranges.load == LoadPart::LeftOut)
    {
        ranges.load = LoadPart::Follows;
    }
    Ok(())
}

/// Gives the ranges of `r` its mean TTFT with users who start apart; `run` runs `apart`, which is the scenario with such users.
///
/// # Errors
/// Those of `run`.
pub fn start_apart<S, E>(
    r: &mut RunReport,
    apart: Option<S>,
    run: impl Fn(S) -> Result<RunReport, E>,
) -> Result<(), E> {
    let few = r.requests.offered <= MOST_REPLAYED;
    if let (Some(ranges), Some(apart), true) = (&mut r.ranges, apart, few) {
        ranges.ttft_apart_ms = run(apart)?.ttft_ms.mean;
    }
    Ok(())
}

/// Share by which TTFT changes with how users start from which on that is said.
const START_MATTERS: f64 = 0.1;

/// What is to be said of how users start, where TTFT hangs on it.
fn start_in_words(r: &RunReport, ranges: &Ranges) -> Option<String> {
    let (at_once, apart) = (r.ttft_ms.mean?, ranges.ttft_apart_ms?);
    ((apart / at_once - 1.0).abs() > START_MATTERS).then(|| {
        format!(
            " TTFT hangs on how users start: mean {} where they start evenly over one answer (stagger), {} with all at once, as benchmark clients do.",
            secs(apart / 1e3),
            secs(at_once / 1e3)
        )
    })
}

/// What is to be said of the load beside the ranges.
fn load_in_words(ranges: &Ranges) -> String {
    match ranges.load {
        LoadPart::Follows | LoadPart::Replayed | LoadPart::Unknown => String::new(),
        LoadPart::Overload => format!(
            " With steps {:.0} % longer, which is as sure, the load is above capacity: the upper ends grow with the length of the run.",
            100.0 * (ranges.step_ratio - 1.0)
        ),
        LoadPart::LeftOut => {
            " What longer steps would do to the queue is not in the ranges, which are too narrow near the knee.".into()
        }
    }
}

/// The ranges of a run's means, in words; empty where nothing was served or predicted.
pub fn in_words(r: &RunReport) -> String {
    let Some(ranges) = &r.ranges else {
        return String::new();
    };
    let parts: Vec<String> = [
        ("TTFT", r.ttft_ms.mean, ranges.ttft_ms.mean),
        ("TPOT", r.tpot_ms.mean, ranges.tpot_ms.mean),
        ("E2E", r.e2e_ms.mean, ranges.e2e_ms.mean),
    ]
    .into_iter()
    .filter_map(|(name, mean_ms, range)| {
        let (mean_ms, [low, high]) = (mean_ms.filter(|m| *m > 0.0)?, range?);
        let [mean, low, high] = [mean_ms, low, high].map(|ms| secs(ms / 1e3));
        Some(format!("{name} {mean}, {low} to {high}"))
    })
    .collect();
    if parts.is_empty() {
        return String::new();
    }
    let starts = start_waits(r).map_or(String::new(), |w| starts_in_words(w, of_starts(r)));
    format!(
        "mean {} in 9 of 10 such deployments.{starts}{}{}",
        parts.join("; "),
        load_in_words(ranges),
        start_in_words(r, ranges).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(metric: &str, n: u64, median_error_ratio: f64) -> MeasuredError {
        MeasuredError {
            set: "s".into(),
            metric: metric.into(),
            n,
            median_error_ratio,
            load: None,
        }
    }

    #[test]
    fn ranges_come_from_runs_of_the_kind_and_from_a_calibration_of_ones_own() {
        let mut r = RunReport::empty();
        assert_eq!(spread(&r, Figure::Tpot, None), UNKNOWN);
        let kind = hwmodels::doubt::Kind {
            engine: hwmodels::EngineKind::VllmV1,
            experts: false,
            measured_chip: true,
            load: hwmodels::doubt::Load::Open,
        };
        r.like = Some(kind);
        let dense = spread(&r, Figure::Tpot, None);
        assert!(dense < UNKNOWN, "{dense}");
        assert!(spread(&r, Figure::Ttft, None) > dense);
        r.like = Some(hwmodels::doubt::Kind {
            measured_chip: false,
            ..kind
        });
        assert!(spread(&r, Figure::Tpot, None) > dense);
        r.accuracy = vec![known("tpot_ms", 75, 0.05), known("tpot_mean_ms", 25, 0.09)];
        assert!((spread(&r, Figure::Tpot, None) - 1.168_f64.ln()).abs() < 1e-9);
        r.accuracy = vec![known("tpot_ms", 75, 0.001)];
        assert_eq!(spread(&r, Figure::Tpot, None), LEAST);
    }

    #[test]
    fn what_was_not_predicted_has_no_ranges() {
        assert_eq!(RunReport::empty().ranges, None);
    }

    #[test]
    fn metrics_are_sorted_by_what_they_are_about() {
        assert_eq!(figure_of("output_tok_s"), Figure::Throughput);
        assert_eq!(figure_of("ttft_p99_ms"), Figure::Ttft);
        assert_eq!(figure_of("latency_ms_per_token"), Figure::Tpot);
    }
}
