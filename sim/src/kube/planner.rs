//! Dynamo's planner in a run: the load of each worker, the traffic of an interval, and what an engine can do by its step times.
//!
//! Workers tell how many requests wait, not how many tokens they have: queued prompt tokens are taken as waiting requests times the mean prompt so far.

use std::collections::BTreeMap;

use hwmodels::{BatchStats, StepModel};

use super::record::Controller;
use super::seen::{Seen, Told};
use super::sight::{Totals, Vitals};
use super::spec::{DeploymentSpec, EngineFacts};
use crate::control::dynamo::config::{Mode, PlannerConfig};
use crate::control::dynamo::{Capabilities, Inputs, PerfModel, Planner, Pool, Traffic, WorkerLoad};
use crate::kernel::time::{SimDuration, SimTime};

/// Sums over all engines so far.
#[derive(Clone, Copy, Default)]
struct Sums {
    finished: u64,
    prompt: u64,
    output: u64,
}

impl Sums {
    fn mean(self, of: u64) -> f64 {
        of as f64 / self.finished.max(1) as f64
    }
}

/// Which of the deployments that the planner scales prefills, and which decodes or does both.
#[derive(Clone, Copy)]
struct Roles {
    prefill: Option<usize>,
    decode: Option<usize>,
}

impl Roles {
    fn of(mode: Mode) -> Roles {
        let (prefill, decode) = match mode {
            Mode::Disagg => (Some(0), Some(1)),
            Mode::Prefill => (Some(0), None),
            Mode::Decode | Mode::Agg => (None, Some(0)),
        };
        Roles { prefill, decode }
    }

    /// What stands for the side that prefills, and for the one that decodes.
    fn sides(self) -> (usize, usize) {
        let (p, d) = (self.prefill, self.decode);
        (p.or(d).unwrap_or(0), d.or(p).unwrap_or(0))
    }
}

/// The planner and its workers.
pub(super) struct Workers {
    planner: Planner,
    roles: Roles,
    /// Engines that prefill, and those that decode; one that does both is both.
    facts: (EngineFacts, EngineFacts),
    /// When the slow loop is due.
    next_traffic: SimTime,
    /// What each engine had done when it was last seen.
    seen: BTreeMap<usize, Totals>,
    sums: Sums,
    /// Sums and requests offered at the last turn of the slow loop.
    before: (Sums, u64),
}

/// Loops that are due this close together run in one tick of the planner.
const MERGE: SimDuration = SimDuration(500_000_000);

impl Workers {
    /// A planner of these deployments.
    pub fn new(config: &PlannerConfig, scaled: &[&DeploymentSpec]) -> Result<Workers, String> {
        let roles = Roles::of(config.mode);
        let can = |role: Option<usize>| {
            role.map_or(Capabilities::default(), |i| Capabilities {
                num_gpu: scaled[i].gpus(),
                context_length: Some(u64::from(scaled[i].facts.sequence_tokens)),
                max_kv_tokens: Some(scaled[i].facts.kv_tokens()),
            })
        };
        let (prefill, decode) = (can(roles.prefill), can(roles.decode));
        let planner = Planner::new(SimTime::ZERO, config.clone(), prefill, decode)?;
        let (p, d) = roles.sides();
        let facts = (scaled[p].facts, scaled[d].facts);
        let next_traffic = match planner.config().enable_throughput_scaling {
            true => SimTime::ZERO + interval(&planner),
            false => SimTime::NEVER,
        };
        Ok(Workers {
            planner,
            roles,
            facts,
            next_traffic,
            seen: BTreeMap::new(),
            sums: Sums::default(),
            before: (Sums::default(), 0),
        })
    }

    pub fn due(&self) -> SimTime {
        self.planner.due()
    }

    pub fn turn(&mut self, seen: &[Seen]) -> Vec<Told> {
        self.count(seen);
        let mean_prompt = self.sums.mean(self.sums.prompt);
        let Roles { prefill, decode } = self.roles;
        let queued = |v: &Vitals| f64::from(v.load.waiting) * mean_prompt;
        let block = f64::from(self.facts.1.block_tokens);
        let is_apart = prefill.is_some() || self.planner.config().mode == Mode::Decode;
        let prefilling = loads(prefill.map(|i| &seen[i]), |v| WorkerLoad {
            queued_prefill_tokens: queued(v),
            ..WorkerLoad::default()
        });
        let decoding = loads(decode.map(|i| &seen[i]), |v| WorkerLoad {
            // What waits where prefill is done elsewhere waits to decode.
            queued_prefill_tokens: if is_apart { 0.0 } else { queued(v) },
            scheduled_decode_kv_tokens: v.load.kv_used_blocks as f64 * block,
            queued_decode_kv_tokens: if is_apart { queued(v) } else { 0.0 },
        });
        let (p, d) = self.roles.sides();
        let inputs = Inputs {
            prefill: pool(prefill.map(|i| &seen[i]), &prefilling),
            decode: pool(decode.map(|i| &seen[i]), &decoding),
            traffic: self.traffic(&seen[p]),
        };
        let side = |i: usize, facts| Side {
            steps: seen[i].steps,
            facts,
        };
        let engine = Steps {
            prefill: side(p, self.facts.0),
            decode: side(d, self.facts.1),
            prompt: mean_prompt.max(1.0),
        };
        let decision = self.planner.tick(seen[0].now, &inputs, &engine);
        let sizes = [
            (prefill, decision.num_prefill),
            (decode, decision.num_decode),
        ];
        let inputs = in_words(&prefilling, &decoding);
        (sizes.into_iter())
            .filter_map(|(of, size)| Some((of?, size)))
            .map(|(of, size)| Told {
                deployment: of,
                inputs: inputs.clone(),
                ..Told::of(Controller::Dynamo, size, decision.why.clone())
            })
            .collect()
    }

    /// Adds what engines have done since they were last seen.
    fn count(&mut self, seen: &[Seen]) {
        let engines = || seen.iter().flat_map(|s| s.engines);
        self.seen
            .retain(|unit, _| engines().any(|(u, _)| u == unit));
        for (unit, v) in engines() {
            let last = self.seen.insert(*unit, v.totals).unwrap_or_default();
            let more = |now: u64, before: u64| now.saturating_sub(before);
            self.sums.finished += more(v.totals.finished, last.finished);
            self.sums.prompt += more(v.totals.prompt_tokens, last.prompt_tokens);
            self.sums.output += more(v.totals.output_tokens, last.output_tokens);
        }
    }

    /// Traffic since the last turn of the slow loop, where that is due.
    fn traffic(&mut self, seen: &Seen) -> Option<Traffic> {
        if self.next_traffic > seen.now + MERGE {
            return None;
        }
        self.next_traffic = seen.now + interval(&self.planner);
        let (sums, (before, offered)) = (self.sums, self.before);
        self.before = (sums, seen.offered);
        let finished = sums.finished - before.finished;
        // Without an answer since, lengths are those of the whole run.
        let of = |all: u64, before: u64| match finished {
            0 => sums.mean(all),
            n => (all - before) as f64 / n as f64,
        };
        (sums.finished > 0).then_some(Traffic {
            num_req: seen.offered.saturating_sub(offered) as f64,
            isl: of(sums.prompt, before.prompt),
            osl: of(sums.output, before.output),
            kv_hit_rate: None,
        })
    }
}

fn interval(planner: &Planner) -> SimDuration {
    SimDuration::from_secs(planner.config().throughput_adjustment_interval.secs())
}

/// The load of each worker of a deployment, where there is one.
fn loads(of: Option<&Seen>, load: impl Fn(&Vitals) -> WorkerLoad) -> Vec<WorkerLoad> {
    of.map_or(Vec::new(), |s| {
        s.engines.iter().map(|(_, v)| load(v)).collect()
    })
}

/// The workers of a deployment, where there is one.
fn pool<'a>(of: Option<&Seen>, load: &'a [WorkerLoad]) -> Pool<'a> {
    of.map_or(Pool::default(), |s| Pool {
        ready: s.ready,
        expected: s.counted.max(u32::try_from(s.desired).unwrap_or(0)),
        load,
    })
}

/// What the planner was told, in words.
fn in_words(prefill: &[WorkerLoad], decode: &[WorkerLoad]) -> String {
    let sum = |load: &[WorkerLoad], of: fn(&WorkerLoad) -> f64| load.iter().map(of).sum::<f64>();
    let queued = sum(prefill, |w| w.queued_prefill_tokens);
    let waiting = sum(decode, |w| {
        w.queued_prefill_tokens + w.queued_decode_kv_tokens
    });
    let kv = sum(decode, |w| w.scheduled_decode_kv_tokens);
    let of_prefill = format!(
        "{} prefill workers: {queued:.0} prompt tokens queued",
        prefill.len()
    );
    match (prefill.is_empty(), decode.is_empty()) {
        (false, true) => of_prefill,
        (false, false) => format!(
            "{of_prefill}; {} decode workers: {kv:.0} KV tokens in use, {waiting:.0} queued",
            decode.len()
        ),
        (true, _) => format!(
            "{} workers: {waiting:.0} prompt tokens queued, {kv:.0} KV tokens in use",
            decode.len()
        ),
    }
}

/// What an engine can do, from its step times: what the profiler of Dynamo measures.
struct Side<'a> {
    steps: &'a dyn StepModel,
    facts: EngineFacts,
}

/// What engines that prefill, and those that decode, can do.
struct Steps<'a> {
    prefill: Side<'a>,
    decode: Side<'a>,
    /// Mean prompt [tokens].
    prompt: f64,
}

impl Side<'_> {
    fn ms(&self, batch: &BatchStats) -> f64 {
        self.steps.step(batch).interval * 1e3
    }

    /// Decodes that share `kv` tokens: as many as there are requests of the mean length.
    fn decodes(&self, kv: f64, each: f64) -> BatchStats {
        let mut batch = BatchStats::default();
        let n = (kv / each.max(1.0))
            .ceil()
            .clamp(0.0, f64::from(self.facts.max_seqs)) as u32;
        for _ in 0..n {
            batch.add_decode((kv / f64::from(n)) as u32);
        }
        batch
    }

    /// Prefill of `tokens` in as many steps as they need, beside the same decodes.
    fn prefill_ms(&self, tokens: f64, decodes: &BatchStats) -> f64 {
        let budget = self.facts.step_tokens.max(1);
        let mut left = tokens.ceil().clamp(1.0, 1e9) as u32;
        let mut whole = 0.0;
        let mut full = None;
        while left > 0 {
            let chunk = left.min(budget);
            let time = || {
                let mut batch = *decodes;
                batch.add_prefill(chunk, 0, true);
                self.ms(&batch)
            };
            // All full steps take as long.
            whole += match chunk == budget {
                true => *full.get_or_insert_with(time),
                false => time(),
            };
            left -= chunk;
        }
        whole
    }
}

impl PerfModel for Steps<'_> {
    fn ttft_ms(&self, queued_prefill_tokens: f64, decode_kv_tokens: f64) -> Option<f64> {
        let own = self.prompt;
        let decodes = self.prefill.decodes(decode_kv_tokens, own);
        let tokens = queued_prefill_tokens + own;
        Some(self.prefill.prefill_ms(tokens, &decodes))
    }

    fn itl_ms(&self, decode_kv_tokens: f64) -> Option<f64> {
        let decodes = self.decode.decodes(decode_kv_tokens.max(1.0), self.prompt);
        Some(self.decode.ms(&decodes))
    }

    fn prefill_rps(&self, _ttft_target_ms: f64, input_tokens: f64) -> Option<(f64, f64)> {
        let own = (self.prefill).prefill_ms(input_tokens, &BatchStats::default());
        (own > 0.0).then(|| (1e3 / own, own))
    }

    fn decode_rps(
        &self,
        itl_target_ms: f64,
        input_tokens: f64,
        output_tokens: f64,
    ) -> Option<(f64, f64)> {
        let (rps, itl) = self.decode.best(
            itl_target_ms,
            f64::INFINITY,
            input_tokens,
            output_tokens,
            0.0,
        )?;
        Some((rps, itl))
    }

    fn agg_rps(
        &self,
        ttft_target_ms: f64,
        itl_target_ms: f64,
        input_tokens: f64,
        output_tokens: f64,
    ) -> Option<f64> {
        let own = (self.decode).prefill_ms(input_tokens, &BatchStats::default());
        let best = self.decode.best(
            itl_target_ms,
            ttft_target_ms,
            input_tokens,
            output_tokens,
            own,
        )?;
        Some(best.0)
    }
}

impl Side<'_> {
    /// Requests a second of the largest batch within both targets, and its ITL: with `n` sequences, each output token takes a decode step and
    /// its share of the others' prefills, `itl = step(n) + n prefill / osl`; so `n / (osl itl)` requests end a second. Where not even
    /// one sequence keeps the targets, what one gets.
    fn best(
        &self,
        itl_target_ms: f64,
        ttft_target_ms: f64,
        isl: f64,
        osl: f64,
        prefill_ms: f64,
    ) -> Option<(f64, f64)> {
        let osl = osl.max(1.0);
        let context = isl + 0.5 * osl;
        let by_kv = self.facts.kv_tokens() as f64 / (isl + osl).max(1.0);
        let most = by_kv
            .floor()
            .clamp(1.0, f64::from(self.facts.max_seqs.max(1))) as u32;
        let of = |n: u32| {
            let mut batch = BatchStats::default();
            for _ in 0..n {
                batch.add_decode(context as u32);
            }
            let step = self.ms(&batch);
            let itl = step + f64::from(n) * prefill_ms / osl;
            (f64::from(n) * 1e3 / (osl * itl), itl, prefill_ms + step)
        };
        // ITL grows with the batch: bisection over the largest that keeps the targets.
        let keeps = |n: u32| {
            let (_, itl, ttft) = of(n);
            itl <= itl_target_ms && ttft <= ttft_target_ms
        };
        let (mut low, mut high) = (1, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match keeps(middle) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        let (rps, itl, _) = of(low);
        (rps > 0.0 && rps.is_finite()).then_some((rps, itl))
    }
}
