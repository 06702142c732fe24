//! One load, measured in steady state: runs are doubled until their figures stand.

use sim::report::RunReport;
use sim::report::curve::CurvePoint;

use super::loads::{Extent, Loads};
use crate::simulate::{Keep, Path as SimPath, give_ranges, simulate};

/// Requests of the first run, but for scenarios of fewer.
const FIRST_REQUESTS: u64 = 1_000;
/// Requests of the first run at least.
const LEAST_REQUESTS: u64 = 200;
/// Requests of the first run per user of a closed loop, at least.
const REQUESTS_PER_USER: f64 = 10.0;
/// A run of more requests is not doubled.
const MOST_REQUESTS: u64 = 16_000;
/// A run of more steps is not doubled.
const MOST_STEPS: u64 = 500_000;
/// Share of each run that is left out.
const LEFT_OUT: f64 = 1.0 / 3.0;
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
        Ok(Run {
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
        self.run(load, seed, Some(self.extent(requests, sent_s)))
    }

    fn extent(&self, requests: u64, sent_s: f64) -> Extent {
        let own = self.scenario().warmup.secs().min(sent_s / 2.0);
        Extent {
            requests,
            warmup_s: own.max(sent_s * LEFT_OUT),
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
            let report = self.run(load, seed, None)?.report;
            let point = CurvePoint {
                load,
                throughput_change_ratio: None,
                e2e_change_ratio: None,
                report,
            };
            return Ok((point, None));
        }
        let mut requests = self.first_requests(load);
        let whole = |warmup_s| Some(Extent { requests, warmup_s });
        let sent_s = match self.requests_per_s(load) {
            Some(rate) => requests as f64 / rate,
            None => self.run(load, seed, whole(0.0))?.sent_s,
        };
        let mut before = self.run_of(load, seed, requests, sent_s)?;
        loop {
            requests *= 2;
            let now = self.run_of(load, seed, requests, 2.0 * before.sent_s)?;
            let point = doubled(load, &before.report, now.report);
            let settled = point.report.stationarity.growing()
                || point
                    .report
                    .e2e_ms
                    .mean
                    .is_none_or(|e2e| e2e * 1e-3 <= now.sent_s * LEFT_OUT);
            let enough = 2 * requests > MOST_REQUESTS || point.report.stats.steps > MOST_STEPS;
            if (stands(&point) && settled) || enough {
                let extent = self.extent(requests, 2.0 * before.sent_s);
                return Ok((point, Some(extent)));
            }
            before = Run {
                report: point.report,
                sent_s: now.sent_s,
            };
        }
    }
}

/// A load whose run was doubled: `before`, then `now`.
fn doubled(load: f64, before: &RunReport, now: RunReport) -> CurvePoint {
    let change = |a: f64, b: f64| (b > 0.0).then(|| (b - a).abs() / b);
    let kept_up = |r: &RunReport| {
        let t = &r.throughput;
        t.requests_per_s >= KEPT_UP * t.offered_per_s
    };
    let (a, b) = (&before.throughput, &now.throughput);
    let share = |t: &sim::report::summary::Throughput| t.requests_per_s / t.offered_per_s;
    // Below the capacity throughput is what is offered, which varies from run to run by chance: its share is what must stand.
    let throughput = if kept_up(before) && kept_up(&now) {
        change(share(a).min(1.0), share(b).min(1.0))
    } else {
        change(a.requests_per_s, b.requests_per_s)
    };
    let e2e = match (before.e2e_ms.mean, now.e2e_ms.mean) {
        (Some(a), Some(b)) if !now.stationarity.growing() => change(a, b),
        _ => None,
    };
    CurvePoint {
        load,
        throughput_change_ratio: throughput,
        e2e_change_ratio: e2e,
        report: now,
    }
}

/// Whether the figures of a point stand; those of one that was run once do.
pub fn stands(p: &CurvePoint) -> bool {
    p.throughput_change_ratio
        .is_none_or(|c| c <= THROUGHPUT_TOLERANCE)
        && p.e2e_change_ratio.is_none_or(|c| c <= E2E_TOLERANCE)
}
