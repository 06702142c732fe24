//! Which loads to run: the grid, and what is searched between its points.

use rayon::prelude::*;
use sim::report::RunReport;
use sim::report::curve::search::{Found, boundary, peak};
use sim::report::curve::{Curve, CurvePoint, Estimate, Findings, LoadAxis, meets, power};
use sim::report::figures::figure;

use super::loads::Loads;
use super::steady::{E2E_TOLERANCE, THROUGHPUT_TOLERANCE, stands};
use crate::bad_input::BadInput;
use crate::progress;

/// Loads of a chosen grid, as shares of the capacity: the first and the last.
const SPREAD: (f64, f64) = (0.1, 1.2);
/// A load counts as beyond capacity when less than this share of it is served.
const SERVED_SHARE: f64 = 0.9;
/// Load at which the capacity is measured, of what a first look found.
const OVERLOAD: f64 = 1.25;
/// Times that the overload is raised by its own factor where the first look fell short.
const MAX_RAISES: u32 = 12;
/// Doublings or halvings of a search for the capacity at most: from one request a day to a million a second.
const MAX_DOUBLINGS: u32 = 40;
/// Halvings below a chosen grid whose lowest load is the best, or misses the objective.
const MAX_HALVINGS: u32 = 6;
/// Growth of throughput per doubling of concurrency below which more users bring nothing [ratio].
const FLAT_GROWTH: f64 = 0.02;
/// Largest concurrency that the search tries.
const MAX_CONCURRENCY: u32 = 4096;
/// Concurrencies that are run at once.
const CONCURRENCIES_AT_ONCE: usize = 4;
/// Requests of a run of a search at most: it is one of many.
const SEARCH_REQUESTS: u64 = 4_000;
/// Evaluations of a search for the knee after the first two: they leave 6 % of its bracket.
const PEAK_STEPS: u32 = 6;
/// Halvings of the bracket in which the objective stops being met.
const SLO_STEPS: u32 = 5;

/// Runs the loads of a curve.
pub struct Explorer<'a> {
    loads: &'a Loads<'a>,
    seeds: u64,
    /// The loads were chosen here: more may be added.
    chosen: bool,
    points: Vec<CurvePoint>,
    /// The overload at which the capacity was measured.
    overload: Option<CurvePoint>,
    /// Loads above this are beyond the capacity.
    beyond: f64,
    notes: Vec<String>,
}

/// Whether the deployment serves less than it is offered.
fn saturated(r: &RunReport) -> bool {
    let t = &r.throughput;
    r.stationarity.growing() || t.requests_per_s < SERVED_SHARE * t.offered_per_s
}

fn served(p: &CurvePoint) -> f64 {
    p.report.throughput.requests_per_s
}

impl<'a> Explorer<'a> {
    /// An explorer that searches with `seeds` seeds.
    pub fn new(loads: &'a Loads<'a>, seeds: u64) -> Explorer<'a> {
        Explorer {
            loads,
            seeds,
            chosen: false,
            points: Vec::new(),
            overload: None,
            beyond: f64::INFINITY,
            notes: Vec::new(),
        }
    }

    /// The curve over `loads`, in ascending order.
    ///
    /// # Errors
    /// There is no such load, or a run fails.
    pub fn given(mut self, loads: &[f64]) -> anyhow::Result<Curve> {
        self.points = self.sweep(loads)?;
        self.curve()
    }

    /// The curve over loads that suit the deployment: `points` of them on an open loop.
    ///
    /// # Errors
    /// A run fails, or nothing is ever served.
    pub fn chosen(mut self, points: u32) -> anyhow::Result<Curve> {
        self.chosen = true;
        if self.loads.axis == LoadAxis::Concurrency {
            self.points = self.doubled_users()?;
            return self.curve();
        }
        let top = self.find_overload()?;
        let n = points - 1;
        let loads: Vec<f64> = (0..=n)
            .map(|i| top * (SPREAD.0 + (SPREAD.1 - SPREAD.0) * f64::from(i) / f64::from(n)))
            .collect();
        self.points = self.sweep(&loads)?;
        self.curve()
    }

    /// Whether closed loops are part of the load.
    fn waits(&self) -> bool {
        self.loads.users(1.0) > 0.0
    }

    fn seed(&self, i: u64) -> u64 {
        self.loads.scenario().seed.wrapping_add(i)
    }

    /// One measurement per load, in parallel.
    fn sweep(&self, loads: &[f64]) -> anyhow::Result<Vec<CurvePoint>> {
        let bar = progress::runs(loads.len() as u64, "loads");
        let points = loads
            .par_iter()
            .map(|load| {
                let point = self.loads.point(*load, self.seed(0));
                bar.inc(1);
                point
            })
            .collect();
        bar.finish_and_clear();
        points
    }

    /// Doubles the number of users until throughput stops growing.
    fn doubled_users(&self) -> anyhow::Result<Vec<CurvePoint>> {
        let mut points: Vec<CurvePoint> = Vec::new();
        let all: Vec<f64> = (0..=MAX_CONCURRENCY.ilog2())
            .map(|i| f64::from(1u32 << i))
            .collect();
        for some in all.chunks(CONCURRENCIES_AT_ONCE) {
            for point in self.sweep(some)? {
                let flat = points
                    .last()
                    .is_some_and(|p| served(&point) < served(p) * (1.0 + FLAT_GROWTH));
                points.push(point);
                if flat {
                    return Ok(points);
                }
            }
        }
        Ok(points)
    }

    /// A load that saturates the deployment, and its throughput there; returns the load whose requests are as many as it serves.
    fn find_overload(&mut self) -> anyhow::Result<f64> {
        let bar = progress::spinner("looking for the capacity");
        let seed = self.seed(0);
        let mut load = self.loads.own();
        let mut point = self.loads.steady(load, seed)?;
        // Requests per unit of load, of a load that is served in full.
        let mut per_load = self.loads.requests_per_s(1.0);
        let up = !saturated(&point.report);
        for _ in 0..MAX_DOUBLINGS {
            if up {
                per_load = per_load.or(Some(point.report.throughput.offered_per_s / load));
                load *= 2.0;
                let before = served(&point);
                point = self.loads.steady(load, seed)?;
                // Users of a closed loop wait for what they are not served, so more is never offered.
                if saturated(&point.report) || served(&point) < before * (1.0 + FLAT_GROWTH) {
                    break;
                }
            } else {
                if per_load.is_some() {
                    break;
                }
                let next = self.loads.steady(load / 2.0, seed)?;
                if saturated(&next.report) {
                    load /= 2.0;
                    point = next;
                } else {
                    per_load = Some(next.report.throughput.offered_per_s / (load / 2.0));
                }
            }
        }
        let per_load = per_load
            .filter(|p| *p > 0.0 && served(&point) > 0.0)
            .ok_or_else(|| {
                BadInput(
                    "no request was served, so there is no curve; look at `servetwin run` first"
                        .into(),
                )
            })?;
        if self.waits() {
            bar.finish_and_clear();
            self.overload = Some(point);
            return Ok(load);
        }
        if self.loads.steady {
            // Not far beyond the capacity, so that most requests are sent while it is full.
            load = OVERLOAD * served(&point) / per_load;
            for _ in 0..MAX_RAISES {
                point = self.loads.steady(load, seed)?;
                if saturated(&point.report) {
                    break;
                }
                load *= OVERLOAD;
            }
        }
        bar.finish_and_clear();
        let top = served(&point) / per_load;
        self.overload = Some(point);
        Ok(top)
    }

    /// Searches between the points, and puts all together.
    fn curve(mut self) -> anyhow::Result<Curve> {
        let capacity = self.capacity()?;
        let has_slo = self.points.iter().any(|p| p.report.slo.is_given());
        let knee = self.knee_bracket()?;
        let limit = if has_slo { self.slo_bracket()? } else { None };
        let bar = progress::spinner("searching the knee and the objective");
        let seeds: Vec<u64> = (0..self.seeds).map(|i| self.seed(i)).collect();
        let (knee, slo_limit) = rayon::join(
            || self.search_knee(knee, &seeds),
            || self.search_limit(limit, &seeds),
        );
        bar.finish_and_clear();
        self.say_what_does_not_stand();
        let findings = Findings {
            capacity,
            knee: knee?,
            slo_limit: slo_limit?,
            notes: self.notes,
        };
        Ok(Curve::new(self.loads.axis, self.points, findings))
    }

    /// Throughput of the saturated deployment by seed, at the load that served most.
    fn capacity(&mut self) -> anyhow::Result<Option<Estimate>> {
        let Some(best) = self.best() else {
            return Ok(None);
        };
        let last = |p: &CurvePoint| Some(p.load) == self.points.last().map(|p| p.load);
        let reached = match self.loads.axis {
            LoadAxis::Concurrency => {
                let n = self.points.len();
                !last(&best)
                    || n >= 2 && served(&best) < served(&self.points[n - 2]) * (1.0 + FLAT_GROWTH)
            }
            LoadAxis::Rate | LoadAxis::Scale => {
                let mut points = self.points.iter().chain(&self.overload);
                self.chosen && self.waits() || points.any(|p| saturated(&p.report))
            }
        };
        if !reached {
            self.notes.push(format!(
                "the highest load, {}{}, does not saturate the deployment: its capacity lies above",
                figure(self.points.last().map_or(0.0, |p| p.load)),
                self.loads.axis.unit()
            ));
            return Ok(None);
        }
        let others = (1..self.seeds)
            .into_par_iter()
            .map(|i| self.again(&best, best.load, self.seed(i), u64::MAX))
            .collect::<anyhow::Result<Vec<RunReport>>>()?;
        let found: Vec<Found> = std::iter::once(&best.report)
            .chain(&others)
            .map(|r| Found::exactly(r.throughput.requests_per_s))
            .collect();
        let capacity = Estimate::of(&found);
        if let (LoadAxis::Rate, Some(c), Some(_)) =
            (self.loads.axis, capacity, self.loads.requests_per_s(1.0))
        {
            self.beyond = c.high;
        }
        Ok(capacity)
    }

    /// The load that served most; of those that served about as much, the overload that was looked for.
    fn best(&self) -> Option<CurvePoint> {
        let best = self
            .points
            .iter()
            .max_by(|a, b| served(a).total_cmp(&served(b)))?;
        Some(match &self.overload {
            Some(o) if served(best) <= served(o) * (1.0 + THROUGHPUT_TOLERANCE) => o.clone(),
            _ => best.clone(),
        })
    }

    /// `load` with another seed, as long as `like` was.
    fn again(
        &self,
        like: &CurvePoint,
        load: f64,
        seed: u64,
        most: u64,
    ) -> anyhow::Result<RunReport> {
        if !self.loads.steady {
            return Ok(self.loads.run(load, seed, None)?.report);
        }
        let requests = like.report.requests.offered.min(most);
        let per_s = match self.loads.requests_per_s(load) {
            Some(rate) => rate,
            None if self.loads.axis == LoadAxis::Concurrency => {
                like.report.throughput.offered_per_s
            }
            None => like.report.throughput.offered_per_s / like.load * load,
        };
        let run = self
            .loads
            .run_of(load, seed, requests, requests as f64 / per_s)?;
        Ok(run.report)
    }

    fn power(&self, load: f64, report: &RunReport) -> Option<f64> {
        power(report).filter(|_| load <= self.beyond)
    }

    fn meets(&self, load: f64, report: &RunReport) -> bool {
        meets(report) && load <= self.beyond
    }

    /// Runs half of the lowest load, if loads may be added and there is one.
    fn halve(&mut self) -> anyhow::Result<bool> {
        let lowest = self.points.first().map_or(0.0, |p| p.load);
        let load = self.loads.round(lowest / 2.0);
        if !self.chosen || load >= lowest || load <= 0.0 {
            return Ok(false);
        }
        let point = self.loads.point(load, self.seed(0))?;
        self.points.insert(0, point);
        Ok(true)
    }

    fn most_powerful(&self) -> Option<usize> {
        let powers: Vec<Option<f64>> = self
            .points
            .iter()
            .map(|p| self.power(p.load, &p.report))
            .collect();
        (0..powers.len())
            .filter(|i| powers[*i].is_some())
            .max_by(|a, b| {
                let of = |i: usize| powers[i].unwrap_or(0.0);
                of(*a).total_cmp(&of(*b))
            })
    }

    /// The points that enclose the knee; none where it lies at an edge, which is said.
    fn knee_bracket(&mut self) -> anyhow::Result<Option<(usize, usize)>> {
        for _ in 0..MAX_HALVINGS {
            if self.most_powerful() != Some(0) || !self.halve()? {
                break;
            }
        }
        let Some(i) = self.most_powerful() else {
            self.notes
                .push("no knee: the queue grows at every load".into());
            return Ok(None);
        };
        let last = self.points.len() - 1;
        let at_one = self.loads.axis == LoadAxis::Concurrency && self.points[i].load <= 1.0;
        let edge = match i {
            _ if i == last => "highest load: it lies there or above",
            0 if !at_one => "lowest load: it lies there or below",
            // Two steps either way: other seeds have their peak elsewhere.
            _ => return Ok(Some((i.saturating_sub(2), (i + 2).min(last)))),
        };
        self.notes.push(format!(
            "no knee within these loads: throughput / latency is largest at the {edge}"
        ));
        Ok(None)
    }

    /// The points between which the objective stops being met.
    fn slo_bracket(&mut self) -> anyhow::Result<Option<(usize, usize)>> {
        let fails = |e: &Explorer| e.points.iter().position(|p| !e.meets(p.load, &p.report));
        for _ in 0..MAX_HALVINGS {
            if fails(self) != Some(0) || !self.halve()? {
                break;
            }
        }
        let unit = self.loads.axis.unit();
        let load = |p: Option<&CurvePoint>| figure(p.map_or(0.0, |p| p.load));
        match fails(self) {
            Some(0) => self.notes.push(format!(
                "the objective is not met even at the lowest load, {}{unit}",
                load(self.points.first())
            )),
            None => self.notes.push(format!(
                "the objective is met up to the highest load, {}{unit}: its limit lies above",
                load(self.points.last())
            )),
            Some(i) => return Ok(Some((i - 1, i))),
        }
        Ok(None)
    }

    /// One search per seed between the points of `bracket`.
    fn search(
        &self,
        bracket: Option<(usize, usize)>,
        seeds: &[u64],
        one: impl Fn((f64, f64), &dyn Fn(f64) -> anyhow::Result<RunReport>) -> anyhow::Result<Found>
        + Sync,
    ) -> anyhow::Result<Option<Estimate>> {
        let Some((low, high)) = bracket else {
            return Ok(None);
        };
        let between = &self.points[low..=high];
        // As long as the longest run beside it.
        let Some(like) = between.iter().max_by_key(|p| p.report.requests.offered) else {
            return Ok(None);
        };
        let ends = (self.points[low].load, self.points[high].load);
        let found = seeds
            .par_iter()
            .map(|seed| one(ends, &|load| self.again(like, load, *seed, SEARCH_REQUESTS)))
            .collect::<anyhow::Result<Vec<Found>>>()?;
        Ok(Estimate::of(&found))
    }

    fn search_knee(
        &self,
        bracket: Option<(usize, usize)>,
        seeds: &[u64],
    ) -> anyhow::Result<Option<Estimate>> {
        self.search(bracket, seeds, |ends, run| {
            peak(
                ends,
                PEAK_STEPS,
                |x| self.loads.round(x),
                |load| Ok(self.power(load, &run(load)?)),
            )
        })
    }

    fn search_limit(
        &self,
        bracket: Option<(usize, usize)>,
        seeds: &[u64],
    ) -> anyhow::Result<Option<Estimate>> {
        self.search(bracket, seeds, |ends, run| {
            boundary(
                ends,
                SLO_STEPS,
                |x| self.loads.round(x),
                |load| Ok(self.meets(load, &run(load)?)),
            )
        })
    }

    fn say_what_does_not_stand(&mut self) {
        let restless: Vec<String> = self
            .points
            .iter()
            .filter(|p| !stands(p))
            .map(|p| figure(p.load))
            .collect();
        if !restless.is_empty() {
            self.notes.push(format!(
                "at {}{} the figures still changed by more than {} % (throughput) or {} % (mean E2E) when the run was doubled the last time \
                 it may be",
                restless.join(", "),
                self.loads.axis.unit(),
                100.0 * THROUGHPUT_TOLERANCE,
                100.0 * E2E_TOLERANCE
            ));
        }
        if !self.loads.steady {
            self.notes.push(
                "the load changes or ends by itself: each run is as long as the scenario says, and its figures are not those of a steady state"
                    .into(),
            );
        }
    }
}
