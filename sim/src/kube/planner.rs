//! Dynamo's planner in a run: the load of each worker, the traffic of an interval, and what an engine can do by its step times.
//!
//! Workers tell how many requests wait, not how many tokens they have: queued prompt tokens are taken as waiting requests times the mean prompt so far.

use std::collections::BTreeMap;

use hwmodels::{BatchStats, StepModel};

use super::record::Controller;
use super::seen::{Seen, Told};
use super::sight::Totals;
use super::spec::EngineFacts;
use crate::control::dynamo::config::PlannerConfig;
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

/// The planner and its workers.
pub(super) struct Workers {
    planner: Planner,
    facts: EngineFacts,
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
    pub fn new(config: &PlannerConfig, facts: EngineFacts, gpus: u32) -> Result<Workers, String> {
        let decode = Capabilities {
            num_gpu: gpus,
            context_length: Some(u64::from(facts.sequence_tokens)),
            max_kv_tokens: Some(facts.kv_tokens()),
        };
        let none = Capabilities::default();
        let planner = Planner::new(SimTime::ZERO, config.clone(), none, decode)?;
        let next_traffic = match planner.config().enable_throughput_scaling {
            true => SimTime::ZERO + interval(&planner),
            false => SimTime::NEVER,
        };
        Ok(Workers {
            planner,
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

    pub fn turn(&mut self, seen: &Seen) -> Vec<Told> {
        self.count(seen);
        let mean_prompt = self.sums.mean(self.sums.prompt);
        let load: Vec<WorkerLoad> = (seen.engines.iter())
            .map(|(_, v)| WorkerLoad {
                queued_prefill_tokens: f64::from(v.load.waiting) * mean_prompt,
                scheduled_decode_kv_tokens: v.load.kv_used_blocks as f64
                    * f64::from(self.facts.block_tokens),
                queued_decode_kv_tokens: 0.0,
            })
            .collect();
        let inputs = Inputs {
            prefill: Pool::default(),
            decode: Pool {
                ready: seen.ready,
                expected: seen.counted.max(u32::try_from(seen.desired).unwrap_or(0)),
                load: &load,
            },
            traffic: self.traffic(seen),
        };
        let engine = Steps {
            steps: seen.steps,
            facts: self.facts,
            prompt: mean_prompt.max(1.0),
        };
        let d = self.planner.tick(seen.now, &inputs, &engine);
        let sum = |of: fn(&WorkerLoad) -> f64| load.iter().map(of).sum::<f64>();
        let mut told = Told::of(Controller::Dynamo, d.num_decode, d.why);
        told.inputs = format!(
            "{} workers: {:.0} prompt tokens queued, {:.0} KV tokens in use",
            load.len(),
            sum(|w| w.queued_prefill_tokens),
            sum(|w| w.scheduled_decode_kv_tokens)
        );
        vec![told]
    }

    /// Adds what engines have done since they were last seen.
    fn count(&mut self, seen: &Seen) {
        self.seen
            .retain(|unit, _| seen.engines.iter().any(|(u, _)| u == unit));
        for (unit, v) in seen.engines {
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

/// What an engine can do, from its step times: what the profiler of Dynamo measures.
struct Steps<'a> {
    steps: &'a dyn StepModel,
    facts: EngineFacts,
    /// Mean prompt [tokens].
    prompt: f64,
}

impl Steps<'_> {
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
        let decodes = self.decodes(decode_kv_tokens, own);
        Some(self.prefill_ms(queued_prefill_tokens + own, &decodes))
    }

    fn itl_ms(&self, decode_kv_tokens: f64) -> Option<f64> {
        let decodes = self.decodes(decode_kv_tokens.max(1.0), self.prompt);
        Some(self.ms(&decodes))
    }

    fn prefill_rps(&self, _ttft_target_ms: f64, input_tokens: f64) -> Option<(f64, f64)> {
        let own = self.prefill_ms(input_tokens, &BatchStats::default());
        (own > 0.0).then(|| (1e3 / own, own))
    }

    fn decode_rps(
        &self,
        itl_target_ms: f64,
        input_tokens: f64,
        output_tokens: f64,
    ) -> Option<(f64, f64)> {
        let (rps, itl) = self.best(
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
        let own = self.prefill_ms(input_tokens, &BatchStats::default());
        let best = self.best(
            itl_target_ms,
            ttft_target_ms,
            input_tokens,
            output_tokens,
            own,
        )?;
        Some(best.0)
    }
}

impl Steps<'_> {
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
