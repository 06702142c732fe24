//! Candidates that have started: memory planned, step model at hand, ready to be simulated with any number of replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use hwmodels::StepModel;
use rayon::prelude::*;
use sim::report::draws::draw;
use sim::scenario::built::most_running;

use super::candidate::Candidate;
use super::question::{Question, Redundancy};
use super::report::{Aside, Rejection};
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::{Extent, Fleet};
use crate::judge::Judge;
use crate::requests::Playback;

/// A candidate that starts on its hardware.
pub struct Ready {
    /// The candidate.
    pub candidate: Candidate,
    /// Its replicas.
    pub fleet: Fleet,
    /// What a replica's memory and engine limit; one that prefills where prefill and decode are apart.
    pub limits: Limits,
    /// The same of one that decodes, where they are apart.
    pub decode: Option<Limits>,
}

/// What a replica's memory and engine limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// KV tokens of a data-parallel rank.
    pub kv_tokens: u64,
    /// Sequences that a rank runs at once; none: no limit but memory.
    pub max_seqs: Option<u32>,
    /// Token budget of a step; none: no limit but the prompt.
    pub step_tokens: Option<u32>,
}

impl Limits {
    /// Those in start-up's decisions, with blocks of `block_tokens`.
    fn of(decided: &toml::Table, block_tokens: u32) -> Limits {
        let number = |keys: &[&str]| {
            let value = keys.iter().find_map(|k| decided.get(*k)?.as_integer());
            value.and_then(|n| u32::try_from(n).ok())
        };
        let blocks = decided.get("kv_blocks").and_then(toml::Value::as_integer);
        let blocks = u64::try_from(blocks.unwrap_or(0)).unwrap_or(0);
        Limits {
            kv_tokens: blocks.saturating_mul(u64::from(block_tokens)),
            max_seqs: most_running(decided),
            step_tokens: number(&TOKENS),
        }
    }
}

/// The names under which engines know the token budget of a step.
const TOKENS: [&str; 2] = ["max_num_batched_tokens", "max_num_tokens"];

impl Ready {
    /// Starts `candidate`; `drawn` are parameters laid over its profile.
    ///
    /// # Errors
    /// What keeps it from starting: its memory, a limit that the engine refuses.
    pub fn start(
        question: &Question,
        candidate: &Candidate,
        drawn: &BTreeMap<String, f64>,
    ) -> Result<Ready, Error> {
        question.world.check()?;
        let start = |counts: &[u32]| -> Result<Fleet, Error> {
            let mut scenario = candidate.scenario(question, counts)?;
            if let Some(hardware) = &mut scenario.hardware {
                let drawn = drawn.iter().map(|(k, v)| (k.clone(), *v));
                hardware.params.extend(drawn.clone());
                for pool in scenario
                    .pools
                    .iter_mut()
                    .filter_map(|p| p.hardware.as_mut())
                {
                    pool.params.extend(drawn.clone());
                }
            }
            Fleet::start(scenario)
        };
        let cell = candidate.apart.map(|a| a.counts(1));
        let mut fleet = start(cell.as_ref().map_or(&[1], |c| c.as_slice()))?;
        fleet.cancel = question.world.cancel.clone();
        if let Some(a) = &candidate.apart {
            fleet.beyond = Some(start(&a.counts(2))?.simulation.serving);
        }
        let block = |i: usize| fleet.info.replicas.get(i).map_or(1, |r| r.block_tokens);
        let of_pool = |name: &str, i: usize| {
            let decided = fleet.decided.get(name).and_then(toml::Value::as_table);
            decided.map(|d| Limits::of(d, block(i)))
        };
        let (limits, decode) = match candidate.apart {
            None => (Limits::of(&fleet.decided, block(0)), None),
            Some(_) => {
                let missing = || Error::Failed("a pool has not started".to_owned());
                let prefill = of_pool("prefill", 0).ok_or_else(missing)?;
                (prefill, Some(of_pool("decode", 1).ok_or_else(missing)?))
            }
        };
        Ok(Ready {
            candidate: candidate.clone(),
            limits,
            decode,
            fleet,
        })
    }

    /// The same with draw `i` of its profile's parameters.
    ///
    /// # Errors
    /// As [`Ready::start`].
    pub fn drawn(&self, question: &Question, i: u64) -> Result<Ready, Error> {
        Ready::start(
            question,
            &self.candidate,
            &draw(&self.fleet.uncertain, question.seed, i),
        )
    }

    /// How long its steps take.
    pub fn step(&self) -> &Arc<dyn StepModel> {
        &self.fleet.replica().step
    }

    /// How long steps of those that decode take.
    pub fn decode_step(&self) -> &Arc<dyn StepModel> {
        &self.fleet.decode_replica().step
    }

    /// How it stands against the objectives with `counts` replicas of each kind under `load`.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn standing(
        &self,
        question: &Question,
        counts: &[u32],
        load: Playback,
        extent: Extent,
    ) -> Result<Standing, Error> {
        if counts.contains(&0) {
            return Ok(Standing::nothing());
        }
        let record = self.fleet.run(counts, load, extent)?;
        Ok(Standing::of(&record, &question.conditions, question.steady))
    }

    /// How `units` stand when `what` is lost, in the worst way to lose it, in steady state: the word of `judge`.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn judged(&self, judge: &Judge, units: u32, what: Redundancy) -> Result<Standing, Error> {
        let ways = self.candidate.losing(units, what).into_iter();
        worst(ways.map(|counts| {
            if counts.contains(&0) {
                return Ok(Standing::nothing());
            }
            Ok(judge.stands(&self.fleet, &counts)?.standing)
        }))
    }

    /// How `units` stand under `load` when `what` is lost, in the worst way to lose it: what so short a run says.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn losing(
        &self,
        question: &Question,
        units: u32,
        what: Redundancy,
        load: impl Fn() -> Playback,
        extent: Extent,
    ) -> Result<Standing, Error> {
        let ways = self.candidate.losing(units, what).into_iter();
        worst(ways.map(|counts| self.standing(question, &counts, load(), extent)))
    }
}

/// The worst of several, the first of equal ones.
fn worst(all: impl Iterator<Item = Result<Standing, Error>>) -> Result<Standing, Error> {
    let mut worst: Option<Standing> = None;
    for s in all {
        let s = s?;
        let key = |s: &Standing| (s.holds, s.margin_ratio);
        if worst.as_ref().is_none_or(|w| key(&s) < key(w)) {
            worst = Some(s);
        }
    }
    Ok(worst.unwrap_or_default())
}

/// Starts all candidates that start, in their order; the others are counted in `rejected` by what kept them. Candidates that differ in
/// limits only share the step model with the largest tables.
pub fn start_all(
    question: &Question,
    candidates: &[Candidate],
    rejected: &mut Vec<Rejection>,
) -> Vec<Ready> {
    let start = |c: &Candidate| {
        let what = || format!("{}, {}", c.instance, c.layouts());
        Ready::start(question, c, &BTreeMap::new()).map_err(|e| (what(), e))
    };
    let mut ready: Vec<Ready> = Vec::new();
    for some in candidates.chunks(AT_ONCE) {
        let started: Vec<Result<Ready, (String, Error)>> = some.par_iter().map(start).collect();
        let first = ready.len();
        for one in started {
            match one {
                Ok(mut r) => {
                    // Neighbours differ in their limits.
                    if let Some(last) = ready.last() {
                        r.fleet.share(&last.fleet);
                    }
                    ready.push(r);
                }
                Err((what, e)) => Rejection::count(rejected, Aside::Start, &what, &reason(&e), 1),
            }
        }
        share_steps(&mut ready[first..]);
    }
    share_steps(&mut ready);
    ready
}

/// Candidates that are started before what they have in common is shared: of so many each has its own.
const AT_ONCE: usize = 512;

/// The reason in an error of a scenario, without the place in the question.
fn reason(e: &Error) -> String {
    let text = e.to_string();
    let line = text.lines().next().unwrap_or_default();
    // `plan.toml:3: layout: needs ...`, `--set layout.tp=1: layout.tp: ...`
    let parts: Vec<&str> = line.splitn(3, ": ").collect();
    match parts.as_slice() {
        [_, _, why] => (*why).to_owned(),
        _ => line.to_owned(),
    }
}

/// Lets candidates of one shape use one step model: a step costs the same in all of them, and its tables are filled once.
fn share_steps(ready: &mut [Ready]) {
    let mut largest: BTreeMap<String, (u32, Arc<dyn StepModel>)> = BTreeMap::new();
    for r in ready.iter() {
        for (kind, shape) in r.candidate.shapes().into_iter().enumerate() {
            let limits = r.decode.filter(|_| kind > 0).unwrap_or(r.limits);
            let tokens = limits
                .step_tokens
                .unwrap_or(0)
                .max(limits.max_seqs.unwrap_or(0));
            let step = &r.fleet.simulation.replicas[kind].step;
            let entry = largest
                .entry(shape)
                .or_insert_with(|| (tokens, step.clone()));
            if tokens > entry.0 {
                *entry = (tokens, step.clone());
            }
        }
    }
    for r in ready {
        for (kind, shape) in r.candidate.shapes().iter().enumerate() {
            if let Some((_, step)) = largest.get(shape) {
                r.fleet.simulation.replicas[kind].step = step.clone();
            }
        }
    }
}
