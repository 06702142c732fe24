//! Candidates that have started: memory planned, step model at hand, ready to be simulated with any number of replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use hwmodels::StepModel;
use rayon::prelude::*;
use sim::report::draws::draw;

use super::question::Question;
use super::report::{Aside, Rejection};
use super::space::Candidate;
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::{Extent, Fleet};
use crate::requests::Playback;

/// A candidate that starts on its hardware.
pub struct Ready {
    /// The candidate.
    pub candidate: Candidate,
    /// Its replicas.
    pub fleet: Fleet,
    /// KV tokens of a data-parallel rank.
    pub kv_tokens: u64,
    /// Sequences that a rank runs at once; none: no limit but memory.
    pub max_seqs: Option<u32>,
    /// Token budget of a step; none: no limit but the prompt.
    pub step_tokens: Option<u32>,
}

/// The names under which engines know the number of sequences, and the token budget, of a step.
const SEQS: [&str; 2] = ["max_num_seqs", "max_batch_size"];
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
        let mut scenario = candidate.scenario(question, 1)?;
        if let Some(hardware) = &mut scenario.hardware {
            hardware
                .params
                .extend(drawn.iter().map(|(k, v)| (k.clone(), *v)));
        }
        let mut fleet = Fleet::start(scenario)?;
        fleet.cancel = question.world.cancel.clone();
        let decided = &fleet.decided;
        let number = |keys: &[&str]| {
            let value = keys.iter().find_map(|k| decided.get(*k)?.as_integer());
            value.and_then(|n| u32::try_from(n).ok())
        };
        let blocks = decided
            .get("kv_blocks")
            .and_then(toml::Value::as_integer)
            .unwrap_or(0);
        let block_tokens = fleet.info.replicas.first().map_or(1, |r| r.block_tokens);
        Ok(Ready {
            candidate: candidate.clone(),
            kv_tokens: u64::try_from(blocks)
                .unwrap_or(0)
                .saturating_mul(u64::from(block_tokens)),
            max_seqs: number(&SEQS),
            step_tokens: number(&TOKENS),
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

    /// How it stands against the objectives with `replicas` replicas under `load`.
    ///
    /// # Errors
    /// The simulator's own.
    pub fn standing(
        &self,
        question: &Question,
        replicas: u32,
        load: Playback,
        extent: Extent,
    ) -> Result<Standing, Error> {
        let record = self.fleet.run(replicas, load, extent)?;
        Ok(Standing::of(&record, &question.conditions, question.steady))
    }
}

/// Starts all candidates that start, in their order; the others are counted in `rejected` by what kept them. Candidates that differ in
/// limits only share the step model with the largest tables.
pub fn start_all(
    question: &Question,
    candidates: &[Candidate],
    rejected: &mut Vec<Rejection>,
) -> Vec<Ready> {
    let started: Vec<Result<Ready, (String, Error)>> = candidates
        .par_iter()
        .map(|c| {
            let what = || format!("{}, {}", c.instance, c.layout);
            Ready::start(question, c, &BTreeMap::new()).map_err(|e| (what(), e))
        })
        .collect();
    let mut ready = Vec::new();
    for one in started {
        match one {
            Ok(r) => ready.push(r),
            Err((what, e)) => Rejection::count(rejected, Aside::Start, &what, &reason(&e), 1),
        }
    }
    share_steps(&mut ready);
    ready
}

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
        let tokens = r.step_tokens.unwrap_or(0).max(r.max_seqs.unwrap_or(0));
        let entry = largest
            .entry(r.candidate.shape())
            .or_insert_with(|| (tokens, r.step().clone()));
        if tokens > entry.0 {
            *entry = (tokens, r.step().clone());
        }
    }
    for r in ready {
        if let Some((_, step)) = largest.get(&r.candidate.shape()) {
            r.fleet.simulation.replicas[0].step = step.clone();
        }
    }
}
