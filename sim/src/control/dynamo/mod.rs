//! The planner of NVIDIA Dynamo: a slow loop that plans for predicted traffic, and a fast one that reacts to the engines' load.
//!
//! [`Planner::tick`] is one event of its state machine; [`Planner::due`] says when the next one is. It is told the ready and expected workers, the load
//! of each worker (forward-pass metrics), the traffic of the last interval, and asks a [`PerfModel`] what an engine can do: the planner itself has a
//! regression there, or figures of its profiler. Sources: ai-dynamo/dynamo `components/src/dynamo/planner/core/{state_machine,load_scaling,throughput_scaling}.py`,
//! `config/{planner_config,defaults}.py`, of 2026.
//!
//! - [`config`] `PlannerConfig`, its keys and defaults
//! - [`load`] the fast loop (`enable_load_scaling`)
//! - [`predictor`] what the slow loop foresees (`load_predictor`)

pub mod config;
pub mod load;
pub mod predictor;
#[cfg(test)]
mod tests;

use crate::kernel::time::{SimDuration, SimTime};
use config::{Mode, PlannerConfig};
use predictor::Predictor;

/// What an engine of this deployment can do. All times in milliseconds.
pub trait PerfModel {
    /// TTFT of the next request behind so many queued prompt tokens, beside so many tokens of decoding KV on the same engine.
    fn ttft_ms(&self, queued_prefill_tokens: f64, decode_kv_tokens: f64) -> Option<f64>;
    /// ITL with so many tokens of KV decoding.
    fn itl_ms(&self, decode_kv_tokens: f64) -> Option<f64>;
    /// Requests a second that one prefill engine takes within a TTFT target, and the TTFT that it then has.
    fn prefill_rps(&self, ttft_target_ms: f64, input_tokens: f64) -> Option<(f64, f64)>;
    /// Requests a second that one decode engine takes within an ITL target, and the ITL that it then has.
    fn decode_rps(
        &self,
        itl_target_ms: f64,
        input_tokens: f64,
        output_tokens: f64,
    ) -> Option<(f64, f64)>;
    /// The same of an engine that does both, within both targets.
    fn agg_rps(
        &self,
        ttft_target_ms: f64,
        itl_target_ms: f64,
        input_tokens: f64,
        output_tokens: f64,
    ) -> Option<f64>;
}

/// Load of one worker, as its forward-pass metrics say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerLoad {
    /// Prompt tokens of requests that wait.
    pub queued_prefill_tokens: f64,
    /// KV tokens of requests that decode.
    pub scheduled_decode_kv_tokens: f64,
    /// KV tokens of requests that wait to decode.
    pub queued_decode_kv_tokens: f64,
}

/// What an engine is built for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// GPUs of one worker (`prefill_engine_num_gpu`, `decode_engine_num_gpu`).
    pub num_gpu: u32,
    /// Longest context [tokens].
    pub context_length: Option<u64>,
    /// KV tokens that it holds.
    pub max_kv_tokens: Option<u64>,
}

/// One of the two pools; `agg` has decode alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pool<'a> {
    /// Workers that are ready.
    pub ready: u32,
    /// Workers that were asked for; another number than `ready`: scaling is in progress.
    pub expected: u32,
    /// Load of each worker that reported.
    pub load: &'a [WorkerLoad],
}

/// Traffic of one `throughput_adjustment_interval`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Requests.
    pub num_req: f64,
    /// Mean prompt length [tokens].
    pub isl: f64,
    /// Mean output length [tokens].
    pub osl: f64,
    /// Share of prompt tokens found in the cache, where it is known.
    pub kv_hit_rate: Option<f64>,
}

/// What the planner sees.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Prefill workers.
    pub prefill: Pool<'a>,
    /// Decode workers, or those that do both.
    pub decode: Pool<'a>,
    /// Traffic of the last interval; none: the frontend had no metrics.
    pub traffic: Option<Traffic>,
}

/// What it decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// New number of prefill workers, where it is to be written.
    pub num_prefill: Option<u32>,
    /// New number of decode workers.
    pub num_decode: Option<u32>,
    /// Why, in words.
    pub why: String,
}

/// The planner, and what it remembers.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlannerConfig,
    prefill: Capabilities,
    decode: Capabilities,
    num_req: Predictor,
    isl: Predictor,
    osl: Predictor,
    hit_rate: f64,
    /// Fewest workers that the slow loop leaves to the fast one: prefill, decode.
    floor: (u32, u32),
    next_load: SimTime,
    next_throughput: SimTime,
}

/// Loops that are due this close together run in one tick.
const MERGE: SimDuration = SimDuration(500_000_000);

impl Planner {
    /// A planner that begins at `start`.
    ///
    /// # Errors
    /// The key that is wrong, by its real name.
    pub fn new(
        start: SimTime,
        config: PlannerConfig,
        prefill: Capabilities,
        decode: Capabilities,
    ) -> Result<Planner, String> {
        let config = config.resolved()?;
        let load = SimDuration::from_secs(config.load_adjustment_interval.secs());
        let throughput = SimDuration::from_secs(config.throughput_adjustment_interval.secs());
        Ok(Planner {
            num_req: Predictor::new(&config),
            isl: Predictor::new(&config),
            osl: Predictor::new(&config),
            hit_rate: 0.0,
            floor: (1, 1),
            next_load: start + load,
            next_throughput: match config.enable_throughput_scaling {
                true => start + throughput,
                false => SimTime::NEVER,
            },
            config,
            prefill,
            decode,
        })
    }

    /// Its settings, with what follows from the optimization target.
    pub fn config(&self) -> &PlannerConfig {
        &self.config
    }

    /// When the next tick is due.
    pub fn due(&self) -> SimTime {
        self.next_load.min(self.next_throughput)
    }

    /// Runs the loops that are due. Where both decide, the fast one holds.
    pub fn tick(&mut self, now: SimTime, seen: &Inputs, model: &dyn PerfModel) -> Decision {
        let until = now + MERGE;
        let mut decision = Decision::default();
        let mut why = Vec::new();
        if self.next_load <= until {
            self.next_load =
                now + SimDuration::from_secs(self.config.load_adjustment_interval.secs());
            let fast = load::decide(self, seen, model);
            why.push(format!("load: {}", fast.why));
            decision = fast;
        }
        if self.next_throughput <= until {
            self.next_throughput =
                now + SimDuration::from_secs(self.config.throughput_adjustment_interval.secs());
            let slow = self.plan(seen, model);
            why.push(format!("throughput: {}", slow.why));
            if decision.num_prefill.is_none() && decision.num_decode.is_none() {
                decision = slow;
            }
        }
        decision.why = why.join("; ");
        decision
    }

    /// The slow loop: workers for the predicted traffic, or the floor of the fast loop.
    fn plan(&mut self, seen: &Inputs, model: &dyn PerfModel) -> Decision {
        let held = |why: &str| Decision {
            why: why.to_owned(),
            ..Decision::default()
        };
        let Some(traffic) = seen.traffic else {
            return held("no_traffic_data");
        };
        self.num_req.add(traffic.num_req);
        self.isl.add(traffic.isl);
        self.osl.add(traffic.osl);
        if let Some(rate) = traffic.kv_hit_rate.filter(|r| r.is_finite()) {
            self.hit_rate = rate.clamp(0.0, 1.0);
        }
        let (num_req, isl, osl) = (
            self.num_req.foreseen(),
            self.isl.foreseen(),
            self.osl.foreseen(),
        );
        let demand = num_req / self.config.throughput_adjustment_interval.secs();
        let Some((prefill, decode)) = self.workers_for(demand, isl, osl, model) else {
            return held("model_not_ready");
        };
        let foreseen = format!("{num_req:.1} requests of {isl:.0} + {osl:.0} tokens foreseen");
        let has_prefill = matches!(self.config.mode, Mode::Disagg | Mode::Prefill);
        let has_decode = self.config.mode != Mode::Prefill;
        if self.config.enable_load_scaling {
            self.floor = (prefill.max(1), decode.max(1));
            return held(&format!(
                "set_lower_bound {}: {foreseen}",
                shown(&self.config, prefill, decode)
            ));
        }
        let (prefill, decode) = self.within_budget(prefill, decode);
        Decision {
            num_prefill: has_prefill.then_some(prefill),
            num_decode: has_decode.then_some(decode),
            why: format!(
                "scale to {}: {foreseen}",
                shown(&self.config, prefill, decode)
            ),
        }
    }

    fn workers_for(
        &self,
        demand: f64,
        isl: f64,
        osl: f64,
        model: &dyn PerfModel,
    ) -> Option<(u32, u32)> {
        let c = &self.config;
        let workers = |rps: f64| match rps > 0.0 {
            true => Some(((demand / rps).ceil().min(1e6) as u32).max(c.min_endpoint)),
            false => None,
        };
        if c.mode == Mode::Agg {
            return Some((0, workers(model.agg_rps(c.ttft, c.itl, isl, osl)?)?));
        }
        let mut found = (0, 0);
        if c.mode != Mode::Decode {
            // What the cache has need not be computed.
            let (rps, ttft) = model.prefill_rps(c.ttft, isl * (1.0 - self.hit_rate))?;
            let floor = match ttft > c.ttft {
                true => (ttft / c.ttft).ceil() as u32,
                false => 1,
            };
            found.0 = workers(rps)?.max(floor);
        }
        if c.mode != Mode::Prefill {
            found.1 = workers(model.decode_rps(c.itl, isl, osl)?.0)?;
        }
        Some(found)
    }

    /// Both pools within `max_gpu_budget`: shrunk in proportion, prefill first; nothing at all where not even `min_endpoint` fits.
    fn within_budget(&self, prefill: u32, decode: u32) -> (u32, u32) {
        let c = &self.config;
        let least = c.min_endpoint;
        let (p_gpu, d_gpu) = (self.prefill.num_gpu, self.decode.num_gpu);
        let Ok(budget) = u32::try_from(c.max_gpu_budget) else {
            return (prefill, decode);
        };
        match c.mode {
            Mode::Disagg if p_gpu > 0 && d_gpu > 0 => {
                let total = prefill * p_gpu + decode * d_gpu;
                if total <= budget {
                    return (prefill, decode);
                }
                if budget < least * (p_gpu + d_gpu) {
                    return (0, 0);
                }
                let share = f64::from(budget) / f64::from(total);
                let most = (budget - least * d_gpu) / p_gpu;
                let p = least.max(most.min((f64::from(prefill) * share) as u32));
                (p, least.max((budget - p * p_gpu) / d_gpu))
            }
            Mode::Disagg => (prefill, decode),
            Mode::Prefill => (clamp_one(prefill, p_gpu, budget, least), decode),
            Mode::Decode | Mode::Agg => (prefill, clamp_one(decode, d_gpu, budget, least)),
        }
    }
}

fn clamp_one(wanted: u32, gpus: u32, budget: u32, least: u32) -> u32 {
    let wanted = wanted.max(least);
    if gpus == 0 || wanted * gpus <= budget {
        return wanted;
    }
    match budget < least * gpus {
        true => 0,
        false => least.max(budget / gpus),
    }
}

/// Numbers of workers as the mode has them.
fn shown(config: &PlannerConfig, prefill: u32, decode: u32) -> String {
    match config.mode {
        Mode::Disagg => format!("{prefill} prefill and {decode} decode"),
        Mode::Prefill => format!("{prefill} prefill"),
        Mode::Decode => format!("{decode} decode"),
        Mode::Agg => format!("{decode}"),
    }
}
