//! The search: bounds prune, a race of short runs narrows, the judge of the steady state ([`crate::judge`]) decides.
//!
//! 1. *Bounds* ([`super::bounds`]) say how many units a candidate takes at least, and so what it costs at least.
//! 2. *Scouting*, cheapest bound first: one replica plays its share of a short stretch of the load. A candidate that cannot keep the objectives there for
//!    less than or the same as the best found so far is set aside; for the others the smallest number of units is bracketed.
//! 3. *Race*: what may cost least plays a longer stretch with all replicas and the router, then is judged; after each round the better part goes on. Of equal
//!    prices those go on that stand best under a tenth more load: what ranks them in the end is their room.
//! 4. *Settling*: for what is left the judge finds the smallest number of units that holds.
//! 5. Where the best turns out dearer than what candidates were set aside for, those are scouted again at that price.
//! 6. The same within each accelerator that the winner does not have, so that the cheapest of each is settled by the same judge.
//!
//! All candidates play the same requests. What runs in parallel is decided before, so the answer does not depend on the number of threads.
//! The exhaustive search settles every candidate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use sim::workload::Workload as _;

use super::bounds::{Bound, bound};
use super::question::Question;
use super::ready::Ready;
use super::report::{Aside, Rejection, SearchCounts};
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::Extent;
use crate::judge::Judge;
use crate::smallest::smallest;

/// Candidates that are scouted at once, before the best price is looked at again.
const SCOUTED_AT_ONCE: usize = 32;
/// Requests of a scouting run.
const SCOUT_REQUESTS: usize = 250;
/// Miss of an objective up to which so short a run does not rule a candidate out [ratio].
const LENIENCE: f64 = 0.15;
/// Requests of a run in the first round of the race.
const RACE_REQUESTS: usize = 1_000;
/// Requests of the run that says how a candidate stands under more load, in the second.
const MORE_REQUESTS: usize = 4_000;
/// That load, as a multiple.
const MORE_LOAD: f64 = 1.1;
/// Candidates that stay after the first and the second round, among all ...
const STAY: [usize; 2] = [24, 8];
/// ... and among those of one accelerator that the winner does not have.
const STAY_OF_ACCELERATOR: [usize; 2] = [6, 2];
/// Times that candidates are scouted again at a higher price.
const MOST_PASSES: usize = 4;

/// A candidate whose units were settled by the judge.
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
    /// Largest multiple of the load, of those that ranked it among equal prices, at which it holds; none: there was nothing to rank.
    pub room: Option<f64>,
}

/// What the search found.
pub struct Found {
    /// Candidates that hold, cheapest first, at equal price the larger margin first; the cheapest of each accelerator among them.
    pub settled: Vec<Settled>,
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
    judge: Judge<'a>,
    /// What the judge said of a candidate with so many units.
    judged: Mutex<BTreeMap<(usize, u32), Standing>>,
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
    ///
    /// # Errors
    /// A load of which no run says anything ([`Judge::new`]).
    pub fn new(
        question: &'a Question,
        ready: &'a [Ready],
        progress: &'a (dyn Fn(&str) + Sync),
    ) -> Result<Search<'a>, Error> {
        progress("bounds");
        let bounds: Vec<Bound> = ready.par_iter().map(|r| bound(r, question)).collect();
        let floor = ready.iter().zip(&bounds).map(|(r, b)| {
            let needed = question
                .least_per_s()
                .map_or(1.0, |rate| (rate / b.requests_per_s.max(1e-12)).ceil());
            r.candidate
                .units_of(needed.clamp(1.0, 1e6) as u32, question)
        });
        Ok(Search {
            judge: question.judge(1.0)?,
            judged: Mutex::default(),
            floor: floor.collect(),
            ruled_out: vec![0.0; ready.len()],
            scouted: BTreeMap::new(),
            question,
            ready,
            bounds,
            simulations: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            progress,
        })
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
            return Ok(Standing::nothing());
        }
        let load = self.question.requests.share(share, n);
        self.count(load.len_hint().unwrap_or(0));
        let mut standing = ready.standing(self.question, &counts, load, Extent::default())?;
        // Too short to tell a growing queue from chance.
        standing.growing = false;
        Ok(standing)
    }

    /// How the deployment stands under a stretch of `n` requests at `factor` times the load, when `units` have lost what may be lost.
    fn raced(&self, at: usize, units: u32, n: usize, factor: f64) -> Result<Standing, Error> {
        let load = || {
            let load = self.question.requests.stretch(n, factor);
            self.count(load.len_hint().unwrap_or(0));
            load
        };
        let what = self.question.redundancy;
        self.ready[at].losing(self.question, units, what, load, Extent::default())
    }

    /// How it stands in steady state, when `units` have lost what may be lost.
    pub fn judged(&self, at: usize, units: u32) -> Result<Standing, Error> {
        let held = || self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = held().get(&(at, units)) {
            return Ok(known.clone());
        }
        let what = self.question.redundancy;
        let standing = self.ready[at].judged(&self.judge, units, what)?;
        self.count(standing.requests);
        held().insert((at, units), standing.clone());
        Ok(standing)
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

    /// Scouts all of `group` that may cost at most `price`, cheapest bound first; returns the lowest price of what kept the objectives.
    fn scout_all(&mut self, group: &[usize], price: f64) -> Result<f64, Error> {
        let mut price = price;
        let mut order: Vec<usize> = (group.iter().copied())
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

    /// The smallest units that hold, looked for from `hint`.
    pub fn settle(&self, at: usize, hint: u32) -> Result<Option<Settled>, Error> {
        let most = self.ceiling(at);
        let least = self.ready[at].candidate.units_of(1, self.question);
        let found = smallest(hint, least, most, |units| {
            let s = self.judged(at, units)?;
            Ok::<_, Error>((s.holds, s))
        })?;
        Ok(found.map(|(units, standing)| Settled {
            at,
            units,
            cost: self.cost(at, units),
            standing,
            room: None,
        }))
    }

    /// Races what of `group` may cost at most `price` and is not settled yet: what is left after the last round, with the units to begin with.
    fn race(
        &self,
        group: &[usize],
        price: f64,
        stay: [usize; 2],
        settled: &BTreeMap<usize, Settled>,
    ) -> Result<Vec<(usize, u32)>, Error> {
        let scouted = group
            .iter()
            .filter_map(|at| Some((*at, self.scouted.get(at)?.0)));
        let mut field: Vec<(usize, u32)> = scouted
            .filter(|(at, units)| self.cost(*at, *units) <= price && !settled.contains_key(at))
            .collect();
        field.sort_unstable();
        for (round, stay) in stay.into_iter().enumerate() {
            if field.len() <= stay {
                continue;
            }
            (self.progress)(&format!("racing {}", field.len()));
            let mut ran = field
                .par_iter()
                .map(|(at, units)| self.heat(round, *at, *units))
                .collect::<Result<Vec<Heat>, Error>>()?;
            ran.sort_by(|a, b| {
                (a.cost.total_cmp(&b.cost))
                    .then(b.margin.total_cmp(&a.margin))
                    .then(a.at.cmp(&b.at))
            });
            ran.truncate(stay);
            field = ran.into_iter().map(|r| (r.at, r.units)).collect();
        }
        Ok(field)
    }

    /// One run of a round of the race.
    fn heat(&self, round: usize, at: usize, units: u32) -> Result<Heat, Error> {
        let (may, n) = match round {
            0 => {
                let s = self.raced(at, units, RACE_REQUESTS, 1.0)?;
                (s.lost == 0 && s.margin_ratio >= -LENIENCE, RACE_REQUESTS)
            }
            _ => (self.judged(at, units)?.holds, MORE_REQUESTS),
        };
        // What misses takes a unit more, as far as one can tell.
        let margin = match may {
            true => self.raced(at, units, n, MORE_LOAD)?.margin_ratio,
            false => f64::NEG_INFINITY,
        };
        Ok(Heat {
            at,
            units,
            cost: self.cost(at, units.saturating_add(u32::from(!may))),
            margin,
        })
    }

    /// Scouts, races and settles among `group` until nothing that was set aside may cost less than its best.
    fn contest(
        &mut self,
        group: &[usize],
        stay: [usize; 2],
        settled: &mut BTreeMap<usize, Settled>,
    ) -> Result<(), Error> {
        let known = group
            .iter()
            .filter_map(|at| Some((at, self.scouted.get(at)?)));
        let mut price = known
            .filter(|(_, (_, margin))| *margin >= 0.0)
            .map(|(at, (units, _))| self.cost(*at, *units))
            .fold(f64::INFINITY, f64::min);
        let mut passes = 0;
        while passes < MOST_PASSES {
            price = self.scout_all(group, price)?;
            let field = self.race(group, price, stay, settled)?;
            (self.progress)(&format!("judging {}", field.len()));
            let found = field
                .par_iter()
                .map(|(at, units)| self.settle(*at, *units))
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
            let is_one_settled = group.iter().any(|at| settled.contains_key(at));
            passes += usize::from(is_one_settled);
            let best = (group.iter().filter_map(|at| settled.get(at)))
                .map(|s| s.cost)
                .fold(f64::INFINITY, f64::min);
            // What was set aside for less than the best costs may still be better.
            let is_beaten = best.is_finite() && best <= price;
            if is_beaten || (field.is_empty() && price.is_infinite()) {
                break;
            }
            price = best;
        }
        Ok(())
    }

    /// Runs the search.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn run(mut self) -> Result<Found, Error> {
        let mut settled: BTreeMap<usize, Settled> = BTreeMap::new();
        let all: Vec<usize> = (0..self.ready.len()).collect();
        self.contest(&all, STAY, &mut settled)?;
        let winner = settled.values().min_by(|a, b| better(a, b));
        let won = winner.map(|w| accelerator(self.question, &self.ready[w.at]));
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for at in all {
            let name = accelerator(self.question, &self.ready[at]);
            groups.entry(name).or_default().push(at);
        }
        groups.retain(|name, _| Some(name) != won.as_ref());
        for group in groups.into_values().filter(|_| won.is_some()) {
            self.contest(&group, STAY_OF_ACCELERATOR, &mut settled)?;
        }
        Ok(self.close(settled))
    }

    /// Settles every candidate.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn exhaust(self) -> Result<Found, Error> {
        let done = AtomicU64::new(0);
        let found = (0..self.ready.len())
            .into_par_iter()
            .map(|at| {
                let one = self.settle(at, 1);
                let n = done.fetch_add(1, Ordering::Relaxed) + 1;
                (self.progress)(&format!("simulated {n} of {} candidates", self.ready.len()));
                one
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let settled = found.into_iter().flatten().map(|s| (s.at, s)).collect();
        let mut found = self.close(settled);
        found.counts.by_bounds = 0;
        Ok(found)
    }

    /// Puts together what was found.
    fn close(self, settled: BTreeMap<usize, Settled>) -> Found {
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
                    "may hold, but another costs less or has more room",
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
}

/// What a candidate did in a round of the race.
struct Heat {
    at: usize,
    units: u32,
    cost: f64,
    /// Under more load.
    margin: f64,
}

/// The accelerator of a candidate.
pub(super) fn accelerator(question: &Question, ready: &Ready) -> String {
    let name = &ready.candidate.instance;
    let instance = question.catalog.instance(name);
    instance.map_or_else(|_| name.clone(), |i| i.accelerator.clone())
}

/// The cheaper first; at equal price the larger margin, then the first in the space.
pub(super) fn better(a: &Settled, b: &Settled) -> std::cmp::Ordering {
    let margin = |s: &Settled| s.standing.margin_ratio;
    a.cost
        .total_cmp(&b.cost)
        .then(margin(b).total_cmp(&margin(a)))
        .then(a.at.cmp(&b.at))
}
