//! The search: bounds prune, a race of short runs narrows, full runs decide.
//!
//! 1. *Bounds* ([`super::bounds`]) say how many units a candidate takes at least, and so what it costs at least.
//! 2. *Scouting*, cheapest bound first: one replica plays its share of a short stretch of the load. A candidate that cannot keep the objectives there for
//!    less than or the same as the best found so far is set aside; for the others the smallest number of units is bracketed.
//! 3. *Race*: what may cost least plays longer stretches with all replicas and the router; after each round the better part goes on.
//! 4. *Full runs* of what is left find the smallest number of units that holds under the whole load.
//! 5. Where the best turns out dearer than what candidates were set aside for, those are scouted again at that price.
//!
//! All candidates play the same requests. What runs in parallel is decided before, so the answer does not depend on the number of threads.
//! The exhaustive search makes step 4 of every candidate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use sim::workload::Workload as _;

use super::bounds::{Bound, bound};
use super::question::Question;
use super::ready::Ready;
use super::report::{Aside, Rejection, SearchCounts};
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::Extent;
use crate::smallest::smallest;

/// Candidates that are scouted at once, before the best price is looked at again.
const SCOUTED_AT_ONCE: usize = 32;
/// Requests of a scouting run.
const SCOUT_REQUESTS: usize = 250;
/// Miss of an objective up to which so short a run does not rule a candidate out [ratio].
const LENIENCE: f64 = 0.15;
/// Rounds of the race: requests of each run, candidates that stay.
const ROUNDS: [(usize, usize); 2] = [(1_000, 24), (4_000, 8)];
/// Times that candidates are scouted again at a higher price.
const MOST_PASSES: usize = 4;

/// A candidate whose units were settled under the whole load.
#[derive(Clone, Debug)]
pub struct Settled {
    /// Its place among the started candidates.
    pub at: usize,
    /// Smallest number of units that holds.
    pub units: u32,
    /// Price of them [USD/h].
    pub cost: f64,
    /// How the replicas that survive stand.
    pub standing: Standing,
}

/// What the search found.
pub struct Found {
    /// Candidates that hold, cheapest first, at equal price the larger margin first.
    pub settled: Vec<Settled>,
    /// The best of other instance types, settled under a stretch of the load.
    pub others: Vec<Settled>,
    /// Bounds, by candidate.
    pub bounds: Vec<Bound>,
    /// What was set aside, by reason.
    pub rejected: Vec<Rejection>,
    /// How many were where.
    pub counts: SearchCounts,
}

/// A search under way.
pub struct Search<'a> {
    question: &'a Question,
    ready: &'a [Ready],
    bounds: Vec<Bound>,
    /// Smallest units by the bound.
    floor: Vec<u32>,
    /// Price up to which the candidate is known not to hold [USD/h].
    ruled_out: Vec<f64>,
    /// Units and margin that scouting found.
    scouted: BTreeMap<usize, (u32, f64)>,
    simulations: AtomicU64,
    requests: AtomicU64,
    progress: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Search<'a> {
    /// A search among `ready`.
    pub fn new(
        question: &'a Question,
        ready: &'a [Ready],
        progress: &'a (dyn Fn(&str) + Sync),
    ) -> Search<'a> {
        progress("bounds");
        let bounds: Vec<Bound> = ready.par_iter().map(|r| bound(r, question)).collect();
        let floor = ready.iter().zip(&bounds).map(|(r, b)| {
            let needed = question
                .least_per_s()
                .map_or(1.0, |rate| (rate / b.requests_per_s.max(1e-12)).ceil());
            r.candidate
                .units_of(needed.clamp(1.0, 1e6) as u32, question)
        });
        Search {
            floor: floor.collect(),
            ruled_out: vec![0.0; ready.len()],
            scouted: BTreeMap::new(),
            question,
            ready,
            bounds,
            simulations: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            progress,
        }
    }

    /// Most units of a candidate.
    fn ceiling(&self, at: usize) -> u32 {
        self.ready[at].candidate.most_units(self.question)
    }

    fn cost(&self, at: usize, units: u32) -> f64 {
        self.ready[at].candidate.cost(units)
    }

    fn count(&self, requests: u64) {
        self.simulations.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }

    /// The least that any candidate can cost by its bound [USD/h]; infinite where none can carry the load.
    pub fn least(&self) -> f64 {
        (0..self.ready.len())
            .filter(|at| {
                self.bounds[*at].impossible.is_none() && self.floor[*at] <= self.ceiling(*at)
            })
            .map(|at| self.cost(at, self.floor[at]))
            .fold(f64::INFINITY, f64::min)
    }

    /// How one replica, or one cell, stands under its share of a short stretch, when `units` have lost what may be lost.
    fn scout_run(&self, at: usize, units: u32) -> Result<Standing, Error> {
        let ready = &self.ready[at];
        let c = &ready.candidate;
        let left = c.surviving(units, self.question);
        let (counts, share, n) = match &c.apart {
            None => (vec![1], left, SCOUT_REQUESTS),
            // A cell with nothing lost: what it misses then, it misses.
            Some(a) => {
                let n = (a.prefill + a.decode).div_ceil(2) as usize;
                (a.counts(1).to_vec(), c.cells(units), n * SCOUT_REQUESTS)
            }
        };
        if left == 0 {
            return Ok(missed());
        }
        let load = self.question.requests.share(share, n);
        self.count(load.len_hint().unwrap_or(0));
        let mut standing = ready.standing(self.question, &counts, load, Extent::default())?;
        // Too short to tell a growing queue from chance.
        standing.growing = false;
        Ok(standing)
    }

    /// How the deployment stands under a stretch of `n` requests, or under the whole load, when `units` have lost what may be lost.
    pub fn fleet_run(&self, at: usize, units: u32, n: Option<usize>) -> Result<Standing, Error> {
        let requests = &self.question.requests;
        let whole = n.is_none_or(|n| n >= requests.len());
        let extent = if whole {
            self.question.extent
        } else {
            Extent::default()
        };
        let load = || {
            let load = match n.filter(|_| !whole) {
                None => requests.all(1.0),
                Some(n) => requests.stretch(n, 1.0),
            };
            self.count(load.len_hint().unwrap_or(0));
            load
        };
        let what = self.question.redundancy;
        self.ready[at].losing(self.question, units, what, load, extent)
    }

    /// Scouts a candidate at a price of at most `price`: the smallest units that may hold, with their margin; none where none may.
    fn scout(&self, at: usize, price: f64) -> Result<Option<(u32, f64)>, Error> {
        let may = |s: &Standing| s.lost == 0 && s.margin_ratio >= -LENIENCE;
        let floor = self.floor[at];
        let most = self.ceiling(at);
        let ceiling = if price.is_finite() {
            self.ready[at].candidate.units_for(price).min(most)
        } else {
            most
        };
        if floor > ceiling {
            return Ok(None);
        }
        let (mut low, mut high) = (floor, ceiling);
        let mut best;
        if price.is_finite() {
            let s = self.scout_run(at, ceiling)?;
            if !may(&s) {
                return Ok(None);
            }
            best = Some((ceiling, s.margin_ratio));
        } else {
            // No price to beat yet: double until one holds.
            let mut units = floor;
            loop {
                let s = self.scout_run(at, units)?;
                if may(&s) {
                    best = Some((units, s.margin_ratio));
                    high = units;
                    break;
                }
                low = units + 1;
                if units >= most {
                    return Ok(None);
                }
                units = units.saturating_mul(2).min(most);
            }
        }
        while low < high {
            let middle = low + (high - low) / 2;
            let s = self.scout_run(at, middle)?;
            if may(&s) {
                best = Some((middle, s.margin_ratio));
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(best)
    }

    /// Scouts all that may cost at most `price`, cheapest bound first; returns the lowest price of what kept the objectives.
    fn scout_all(&mut self, price: f64) -> Result<f64, Error> {
        let mut price = price;
        let mut order: Vec<usize> = (0..self.ready.len())
            .filter(|at| {
                self.bounds[*at].impossible.is_none()
                    && !self.scouted.contains_key(at)
                    && self.floor[*at] <= self.ceiling(*at)
            })
            .collect();
        let key = |at: &usize| {
            (
                self.cost(*at, self.floor[*at]),
                -self.bounds[*at].requests_per_s,
            )
        };
        order.sort_by(|a, b| {
            let (x, y) = (key(a), key(b));
            x.0.total_cmp(&y.0).then(x.1.total_cmp(&y.1)).then(a.cmp(b))
        });
        let total = order.len();
        let mut done = 0;
        for batch in order.chunks(SCOUTED_AT_ONCE) {
            (self.progress)(&format!("scouting {done} of {total}"));
            done += batch.len();
            let level = price;
            let batch: Vec<usize> = batch
                .iter()
                .copied()
                .filter(|at| {
                    self.cost(*at, self.floor[*at]) <= level && self.ruled_out[*at] < level
                })
                .collect();
            let found: Vec<(usize, Option<(u32, f64)>)> = batch
                .par_iter()
                .map(|at| Ok((*at, self.scout(*at, level)?)))
                .collect::<Result<_, Error>>()?;
            for (at, result) in found {
                match result {
                    Some((units, margin)) => {
                        self.scouted.insert(at, (units, margin));
                        // Only what kept the objectives sets a price for others.
                        if margin >= 0.0 {
                            price = price.min(self.cost(at, units));
                        }
                    }
                    None => self.ruled_out[at] = self.ruled_out[at].max(level),
                }
            }
        }
        Ok(price)
    }

    /// The smallest units that hold under `n` requests (none: the whole load), looked for from `hint`.
    pub fn settle(&self, at: usize, hint: u32, n: Option<usize>) -> Result<Option<Settled>, Error> {
        let most = self.ceiling(at);
        let least = self.ready[at].candidate.units_of(1, self.question);
        let found = smallest(hint, least, most, |units| {
            let s = self.fleet_run(at, units, n)?;
            Ok::<_, Error>((s.holds, s))
        })?;
        Ok(found.map(|(units, standing)| Settled {
            at,
            units,
            cost: self.cost(at, units),
            standing,
        }))
    }

    /// Races what may cost at most `price` and is not settled yet: what is left after the last round, with the units to begin with.
    fn race(
        &self,
        price: f64,
        settled: &BTreeMap<usize, Settled>,
    ) -> Result<Vec<(usize, u32)>, Error> {
        let mut field: Vec<(usize, u32, f64)> = self
            .scouted
            .iter()
            .filter(|(at, (units, _))| {
                self.cost(**at, *units) <= price && !settled.contains_key(at)
            })
            .map(|(at, (units, margin))| (*at, *units, *margin))
            .collect();
        for (n, stay) in ROUNDS {
            if field.len() <= stay {
                continue;
            }
            (self.progress)(&format!("racing {}", field.len()));
            let mut ran: Vec<(usize, u32, f64, bool)> = field
                .par_iter()
                .map(|(at, units, _)| {
                    let s = self.fleet_run(*at, *units, Some(n))?;
                    Ok((
                        *at,
                        *units,
                        s.margin_ratio,
                        s.lost == 0 && s.margin_ratio >= -LENIENCE,
                    ))
                })
                .collect::<Result<_, Error>>()?;
            // What misses takes a unit more, as far as one can tell.
            let cost = |r: &(usize, u32, f64, bool)| self.cost(r.0, r.1 + u32::from(!r.3));
            ran.sort_by(|a, b| {
                cost(a)
                    .total_cmp(&cost(b))
                    .then(b.2.total_cmp(&a.2))
                    .then(a.0.cmp(&b.0))
            });
            ran.truncate(stay);
            field = ran
                .into_iter()
                .map(|(at, units, margin, _)| (at, units, margin))
                .collect();
        }
        Ok(field
            .into_iter()
            .map(|(at, units, _)| (at, units))
            .collect())
    }

    /// Runs the search.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn run(mut self) -> Result<Found, Error> {
        let mut settled: BTreeMap<usize, Settled> = BTreeMap::new();
        let mut price = f64::INFINITY;
        let mut passes = 0;
        while passes < MOST_PASSES {
            price = self.scout_all(price)?;
            let field = self.race(price, &settled)?;
            (self.progress)(&format!("full runs of {}", field.len()));
            let found = field
                .par_iter()
                .map(|(at, units)| self.settle(*at, *units, None))
                .collect::<Result<Vec<_>, Error>>()?;
            for ((at, _), one) in field.iter().zip(found) {
                match one {
                    Some(s) => {
                        settled.insert(*at, s);
                    }
                    // No number of units holds, whatever a short stretch said.
                    None => {
                        self.scouted.remove(at);
                        self.ruled_out[*at] = f64::INFINITY;
                    }
                }
            }
            passes += usize::from(!settled.is_empty());
            let best = settled
                .values()
                .map(|s| s.cost)
                .fold(f64::INFINITY, f64::min);
            // What was set aside for less than the best costs may still be better.
            if best <= price || (field.is_empty() && price.is_infinite()) {
                break;
            }
            price = best;
        }
        let others = self.others(&settled)?;
        Ok(self.close(settled, others))
    }

    /// Settles every candidate under the whole load.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn exhaust(self) -> Result<Found, Error> {
        let done = AtomicU64::new(0);
        let found = (0..self.ready.len())
            .into_par_iter()
            .map(|at| {
                let one = self.settle(at, 1, None);
                let n = done.fetch_add(1, Ordering::Relaxed) + 1;
                (self.progress)(&format!("simulated {n} of {} candidates", self.ready.len()));
                one
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let settled = found.into_iter().flatten().map(|s| (s.at, s)).collect();
        let mut found = self.close(settled, Vec::new());
        found.counts.by_bounds = 0;
        Ok(found)
    }

    /// Puts together what was found.
    fn close(self, settled: BTreeMap<usize, Settled>, others: Vec<Settled>) -> Found {
        let rejected = self.reasons(&settled);
        let counts = SearchCounts {
            candidates: self.ready.len() as u64,
            by_bounds: (0..self.ready.len())
                .filter(|at| {
                    !self.scouted.contains_key(at)
                        && self.ruled_out[*at] == 0.0
                        && !settled.contains_key(at)
                })
                .count() as u64,
            scouted: self.scouted.len() as u64
                + self.ruled_out.iter().filter(|p| **p > 0.0).count() as u64,
            settled: settled.len() as u64,
            simulations: self.simulations.into_inner(),
            requests: self.requests.into_inner(),
            ..SearchCounts::default()
        };
        let mut settled: Vec<Settled> = settled.into_values().collect();
        settled.sort_by(better);
        Found {
            settled,
            others,
            bounds: self.bounds,
            rejected,
            counts,
        }
    }

    /// Why candidates were set aside.
    fn reasons(&self, settled: &BTreeMap<usize, Settled>) -> Vec<Rejection> {
        let mut out = Vec::new();
        let mut dear: BTreeMap<(String, String), (usize, f64)> = BTreeMap::new();
        let left = (self.ready.iter().enumerate()).filter(|(at, _)| !settled.contains_key(at));
        for (at, r) in left {
            let c = &r.candidate;
            let what = format!("{}, {}", c.instance, c.layouts());
            let by = match self.bounds[at].by {
                "" => String::new(),
                by => format!(" ({by} can do no more)"),
            };
            let mut aside =
                |kind: Aside, why: &str| Rejection::count(&mut out, kind, &what, why, 1);
            if let Some(why) = &self.bounds[at].impossible {
                aside(Aside::Slow, why);
            } else if self.floor[at] > self.ceiling(at) {
                let n = self.question.max_instances;
                let why = format!("cannot carry the load with {n} instances even at its best{by}");
                aside(Aside::Small, &why);
            } else if self.scouted.contains_key(&at) {
                aside(
                    Aside::Beaten,
                    "holds, but another costs less or has more margin",
                );
            } else if self.ruled_out[at].is_infinite() {
                aside(
                    Aside::Miss,
                    "misses the objectives with any number of replicas",
                );
            } else if self.ruled_out[at] > 0.0 {
                aside(
                    Aside::MissAtPrice,
                    "misses the objectives for the price of the best",
                );
            } else {
                let entry = dear.entry((what, by)).or_insert((0, f64::INFINITY));
                entry.0 += 1;
                entry.1 = entry.1.min(self.cost(at, self.floor[at]));
            }
        }
        for ((what, by), (n, usd)) in dear {
            let usd = sim::report::text::figure(usd);
            let why = format!("costs at least {usd} USD/h even at its best{by}");
            Rejection::count(&mut out, Aside::Dear, &what, &why, n);
        }
        out
    }

    /// Candidates of other instance types than those settled: the best of each by its bound, settled under a stretch of the load.
    fn others(&self, settled: &BTreeMap<usize, Settled>) -> Result<Vec<Settled>, Error> {
        let mut best: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let shown: Vec<&str> = settled
            .keys()
            .map(|at| self.ready[*at].candidate.instance.as_str())
            .collect();
        for (at, r) in self.ready.iter().enumerate() {
            let name = r.candidate.instance.as_str();
            if self.bounds[at].impossible.is_none()
                && self.floor[at] <= self.ceiling(at)
                && !shown.contains(&name)
            {
                best.entry(name).or_default().push(at);
            }
        }
        let order = |a: &usize, b: &usize| {
            let key = |at: usize| {
                (
                    self.cost(at, self.floor[at]),
                    -self.bounds[at].requests_per_s,
                )
            };
            let (x, y) = (key(*a), key(*b));
            x.0.total_cmp(&y.0).then(x.1.total_cmp(&y.1)).then(a.cmp(b))
        };
        let mut firsts: Vec<usize> = best
            .into_values()
            .filter_map(|mut all| {
                all.sort_by(order);
                all.first().copied()
            })
            .collect();
        firsts.sort_by(order);
        firsts.truncate(MOST_OTHERS);
        let found = firsts
            .par_iter()
            .map(|at| match self.scout(*at, f64::INFINITY)? {
                Some((units, _)) => self.settle(*at, units, Some(ROUNDS[0].0)),
                None => Ok(None),
            })
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// Other instance types that are shown beside the winner's.
pub(super) const MOST_OTHERS: usize = 10;

/// The cheaper first; at equal price the larger margin, then the first in the space.
pub(super) fn better(a: &Settled, b: &Settled) -> std::cmp::Ordering {
    let margin = |s: &Settled| s.standing.margin_ratio;
    a.cost
        .total_cmp(&b.cost)
        .then(margin(b).total_cmp(&margin(a)))
        .then(a.at.cmp(&b.at))
}

fn missed() -> Standing {
    Standing {
        margin_ratio: f64::NEG_INFINITY,
        ..Standing::default()
    }
}
