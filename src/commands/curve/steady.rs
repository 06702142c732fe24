//! One load, measured in steady state: runs are doubled until their figures stand, by the judge that plans and capacity tables have.

use planner::interval::{self, Side, in_order};
use planner::judge::{Length, Look, Span, lengthen, too_few};
use sim::record::RunRecord;
use sim::report::RunReport;
use sim::report::curve::{ATTAINMENT, CurvePoint};

use super::loads::{Extent, Loads};
use crate::bad_input::BadInput;
use crate::simulate::{Keep, Path as SimPath, give_ranges, simulate};

/// Requests of the first run, but for scenarios of fewer.
const FIRST_REQUESTS: u64 = 1_000;
/// Requests of the first run at least.
const LEAST_REQUESTS: u64 = 200;
/// Requests of the first run per user of a closed loop, at least.
const REQUESTS_PER_USER: f64 = 10.0;
/// A run of more requests is not doubled.
const MOST_REQUESTS: u64 = 32_000;
/// A run of more steps is not doubled.
const MOST_STEPS: u64 = 500_000;
/// Change of throughput by a doubling at which it stands [ratio].
pub const THROUGHPUT_TOLERANCE: f64 = 0.02;
/// Change of mean E2E latency by a doubling at which it stands [ratio].
pub const E2E_TOLERANCE: f64 = 0.05;
/// Share of the offered requests from which on a load counts as served in full.
const KEPT_UP: f64 = 1.0 - THROUGHPUT_TOLERANCE;

/// A run, and when its last request was sent.
pub struct Run {
    /// Its report.
    pub report: RunReport,
    /// From the start of the run [s].
    pub sent_s: f64,
    /// The share of requests that meet the objective in a run without end, and on which side of what is required it lies; none without an objective.
    attained: Option<(interval::Range, Side)>,
}

/// The share of `record`'s requests that meet its objective.
fn attained(record: &RunRecord) -> Option<(interval::Range, Side)> {
    if record.slo.is_empty() {
        return None;
    }
    let met = in_order(record, |r| Some(f64::from(u8::from(record.slo.met_by(r)))));
    interval::of_mean(&met, ATTAINMENT)
}

impl Loads<'_> {
    /// Runs `load` as long as `extent` says, else as the scenario says.
    ///
    /// # Errors
    /// There is no such load, or the run fails.
    pub fn run(&self, load: f64, seed: u64, extent: Option<Extent>) -> anyhow::Result<Run> {
        let scenario = self.at(load, extent)?;
        let done = simulate(&scenario, seed, Keep::Requests, SimPath::Auto, None)?;
        let window = &done.record.window;
        if let Some(why) = too_few(&done.record).filter(|_| extent.is_none()) {
            return Err(BadInput(why).into());
        }
        Ok(Run {
            attained: attained(&done.record),
            sent_s: done.record.warmup.as_secs() + window.sending.as_secs(),
            report: RunReport::new(&done.record, done.wall_s),
        })
    }

    /// Requests of the first run at `load`.
    fn first_requests(&self, load: f64) -> u64 {
        let scenario = self.scenario();
        let own = scenario.limits.requests.unwrap_or(FIRST_REQUESTS);
        // Twice the warm-up must be sent: the user knows how long the deployment takes to fill.
        let filled = 2.0 * scenario.warmup.secs() * self.requests_per_s(load).unwrap_or(0.0);
        let least = filled.max(REQUESTS_PER_USER * self.users(load)) as u64;
        own.clamp(LEAST_REQUESTS, FIRST_REQUESTS)
            .max(least.min(MOST_REQUESTS))
    }

    /// A run of `requests` whose last is sent after about `sent_s`.
    ///
    /// # Errors
    /// As [`Loads::run`].
    pub fn run_of(&self, load: f64, seed: u64, requests: u64, sent_s: f64) -> anyhow::Result<Run> {
        let span = self.span(requests as f64 / sent_s, requests);
        self.run_for(load, seed, span.length(requests))
    }

    fn run_for(&self, load: f64, seed: u64, length: Length) -> anyhow::Result<Run> {
        let extent = Extent {
            requests: length.requests,
            warmup_s: length.warmup_s,
        };
        self.run(load, seed, Some(extent))
    }

    /// The lengths of runs from `first` requests on, `per_s` a second.
    fn span(&self, per_s: f64, first: u64) -> Span {
        Span {
            per_s,
            horizon: first,
            most: MOST_REQUESTS.max(first.saturating_mul(2)),
            warmup_s: self.scenario().warmup.secs(),
        }
    }

    /// `load` in steady state. A load that ends or changes by itself is run as the scenario says.
    ///
    /// # Errors
    /// As [`Loads::run`].
    pub fn steady(&self, load: f64, seed: u64) -> anyhow::Result<CurvePoint> {
        Ok(self.settled(load, seed)?.0)
    }

    /// The same with the ranges that the load makes: a point of the table.
    ///
    /// # Errors
    /// As [`Loads::run`].
    pub fn point(&self, load: f64, seed: u64) -> anyhow::Result<CurvePoint> {
        let (mut point, extent) = self.settled(load, seed)?;
        let scenario = self.at(load, extent)?;
        give_ranges(&scenario, seed, SimPath::Auto, &mut point.report)?;
        Ok(point)
    }

    fn settled(&self, load: f64, seed: u64) -> anyhow::Result<(CurvePoint, Option<Extent>)> {
        if !self.steady {
            let run = self.run(load, seed, None)?;
            return Ok((point(load, run, None), None));
        }
        let first = self.first_requests(load);
        let per_s = match self.requests_per_s(load) {
            Some(rate) => rate,
            None => {
                let whole = Extent {
                    requests: first,
                    warmup_s: 0.0,
                };
                first as f64 / self.run(load, seed, Some(whole))?.sent_s.max(1e-9)
            }
        };
        let span = self.span(per_s, first);
        let mut before: Option<RunReport> = None;
        let (found, length, _) = lengthen(
            &span,
            false,
            |length| {
                let run = self.run_for(load, seed, length)?;
                let side = run.attained.map(|a| a.1);
                let long = run.sent_s * planner::judge::LEFT_OUT;
                let found = point(load, run, before.as_ref());
                let is_doubled = before.replace(found.report.clone()).is_some();
                Ok((found, is_doubled && side != Some(Side::Open), long))
            },
            |(point, is_clear, long), _| {
                let r = &point.report;
                let grows = r.stationarity.growing();
                let fills = r.e2e_ms.mean.is_none_or(|e2e| e2e * 1e-3 <= *long);
                let settled = stands(point) && *is_clear && (grows || fills);
                let enough = r.stats.steps > MOST_STEPS && point.throughput_change_ratio.is_some();
                Ok::<_, anyhow::Error>(if settled || enough {
                    Look::Stands
                } else {
                    Look::Open
                })
            },
        )?;
        let extent = Extent {
            requests: length.requests,
            warmup_s: length.warmup_s,
        };
        Ok((found.0, Some(extent)))
    }
}

/// A load that was run; with what half of the run gave, where it was doubled.
fn point(load: f64, run: Run, before: Option<&RunReport>) -> CurvePoint {
    let interval = |(range, _): (interval::Range, Side)| {
        let high = range.high.unwrap_or(1.0);
        (range.low.max(0.0), high.min(1.0))
    };
    let (throughput, e2e) = before.map_or((None, None), |before| doubled(before, &run.report));
    CurvePoint {
        load,
        throughput_change_ratio: throughput,
        e2e_change_ratio: e2e,
        attainment_interval: run.attained.map(interval),
        report: run.report,
    }
}

/// Changes of throughput and mean E2E latency by doubling a run: `before`, then `now`.
fn doubled(before: &RunReport, now: &RunReport) -> (Option<f64>, Option<f64>) {
    let change = |a: f64, b: f64| (b > 0.0).then(|| (b - a).abs() / b);
    let kept_up = |r: &RunReport| {
        let t = &r.throughput;
        t.requests_per_s >= KEPT_UP * t.offered_per_s
    };
    let (a, b) = (&before.throughput, &now.throughput);
    let share = |t: &sim::report::summary::Throughput| t.requests_per_s / t.offered_per_s;
    // Below the capacity throughput is what is offered, which varies from run to run by chance: its share is what must stand.
    let throughput = if kept_up(before) && kept_up(now) {
        change(share(a).min(1.0), share(b).min(1.0))
    } else {
        change(a.requests_per_s, b.requests_per_s)
    };
    let e2e = match (before.e2e_ms.mean, now.e2e_ms.mean) {
        (Some(a), Some(b)) if !now.stationarity.growing() => change(a, b),
        _ => None,
    };
    (throughput, e2e)
}

/// Whether the figures of a point stand; those of one that was run once do.
pub fn stands(p: &CurvePoint) -> bool {
    p.throughput_change_ratio
        .is_none_or(|c| c <= THROUGHPUT_TOLERANCE)
        && p.e2e_change_ratio.is_none_or(|c| c <= E2E_TOLERANCE)
}
