//! Serving on AWS Neuron with compiled static slots: TGI's Neuron back-end and optimum-neuron's vLLM plug-in
//! (serving-policies 2.5).
//!
//! A compiled model has `batch_size` rows of `sequence_length` tokens, and a step costs what its compiled shape costs:
//! a decode runs all rows at full length however many requests there are, and a prompt is encoded at the length of its
//! bucket, one request after another. So the statistics of a plan describe the shapes, its entries the requests.

use std::collections::VecDeque;

use hwmodels::BatchStats;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::ParamError;
use super::tgi::{Tgi, TgiParams, TgiVersion};
use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::request::{RejectReason, ReqId};

const ENGINE: &str = "TGI-Neuron";

/// What stands in front of the compiled model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NeuronServer {
    /// TGI's padded router.
    #[default]
    Tgi,
    /// vLLM V1's scheduler through optimum-neuron's plug-in (2026).
    OptimumVllm,
}

fn default_concurrency() -> u32 {
    128
}
fn default_ratio() -> f32 {
    0.3
}
fn default_waiting_tokens() -> u32 {
    20
}
fn default_batched_tokens() -> u32 {
    2048
}
fn default_context_chunk() -> u32 {
    1024
}
fn default_on_device() -> bool {
    true
}

/// What the model was compiled for, and the router's options by their own names in lower case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TgiNeuronParams {
    /// What stands in front (default `tgi`).
    #[serde(default)]
    pub server: NeuronServer,
    /// Compiled rows; also MAX_BATCH_SIZE (TGI) and max_num_seqs (vLLM).
    pub batch_size: u32,
    /// Compiled length of a row [tokens]; also MAX_TOTAL_TOKENS (TGI) and max_model_len (vLLM).
    pub sequence_length: u32,
    /// Lengths for which context encoding was compiled [tokens]. Empty (default): `sequence_length` alone.
    #[serde(default)]
    pub context_buckets: Vec<u32>,
    /// Lengths for which token generation was compiled [tokens]. Empty (default): `sequence_length` alone.
    #[serde(default)]
    pub decode_buckets: Vec<u32>,
    /// TGI: longest prompt [tokens]; longer is answered 422. Default: half of `sequence_length`.
    #[serde(default)]
    pub max_input_tokens: Option<u32>,
    /// TGI: padded prompt tokens of one prefill [tokens]. Default: `batch_size` x `max_input_tokens`.
    #[serde(default)]
    pub max_batch_prefill_tokens: Option<u32>,
    /// TGI: requests served or waiting at once; one more is answered 429 (default 128).
    #[serde(default = "default_concurrency")]
    pub max_concurrent_requests: u32,
    /// TGI: new requests wait until they number this share of the running ones (default 0.3; 1.2 before May 2024).
    #[serde(default = "default_ratio")]
    pub waiting_served_ratio: f32,
    /// TGI: ... or until this many decode steps have passed (default 20).
    #[serde(default = "default_waiting_tokens")]
    pub max_waiting_tokens: u32,
    /// vLLM: token budget of a step [tokens], raised to `sequence_length` (default 2048).
    #[serde(default = "default_batched_tokens")]
    pub max_num_batched_tokens: u32,
    /// vLLM: prompts are encoded in chunks of this length when rows are longer [tokens] (default 1024; 0: whole, in the context buckets, as
    /// before March 2026).
    #[serde(default = "default_context_chunk")]
    pub context_chunk: u32,
    /// Whether the compiled graph chooses the tokens (default, as optimum-neuron exports models since July 2025). False: the host does, from the logits
    /// of all rows.
    #[serde(default = "default_on_device")]
    pub on_device_sampling: bool,
}

impl TgiNeuronParams {
    /// Defaults for a model compiled for `batch_size` rows of `sequence_length` tokens.
    pub fn new(batch_size: u32, sequence_length: u32) -> TgiNeuronParams {
        TgiNeuronParams {
            server: NeuronServer::Tgi,
            batch_size,
            sequence_length,
            context_buckets: Vec::new(),
            decode_buckets: Vec::new(),
            max_input_tokens: None,
            max_batch_prefill_tokens: None,
            max_concurrent_requests: default_concurrency(),
            waiting_served_ratio: default_ratio(),
            max_waiting_tokens: default_waiting_tokens(),
            max_num_batched_tokens: default_batched_tokens(),
            context_chunk: default_context_chunk(),
            on_device_sampling: default_on_device(),
        }
    }

    /// Fills defaults and refuses what the server refuses at start-up, or what contradicts the compiled shapes.
    pub fn resolve(&self) -> Result<TgiNeuronParams, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        let (b, s) = (self.batch_size, self.sequence_length);
        if b == 0 {
            return err("batch_size", "must be at least 1, got 0".into());
        }
        if s < 2 {
            return err(
                "sequence_length",
                format!("must be at least 2 tokens, got {s}"),
            );
        }
        let mut p = self.clone();
        let max_input = match self.server {
            NeuronServer::Tgi => self.max_input_tokens.unwrap_or((s / 2).max(1)),
            NeuronServer::OptimumVllm => s - 1,
        };
        for (param, buckets, longest) in [
            ("context_buckets", &mut p.context_buckets, max_input),
            ("decode_buckets", &mut p.decode_buckets, s),
        ] {
            if buckets.is_empty() {
                buckets.push(s);
            }
            buckets.sort_unstable();
            buckets.dedup();
            if buckets[0] == 0 || *buckets.last().unwrap_or(&0) > s {
                return err(
                    param,
                    format!("must lie between 1 and sequence_length ({s}), got {buckets:?}"),
                );
            }
            if buckets.last().is_none_or(|&last| last < longest) {
                return err(
                    param,
                    format!("the largest must hold {longest} tokens, got {buckets:?}"),
                );
            }
        }
        if self.server == NeuronServer::Tgi {
            let prefill = self
                .max_batch_prefill_tokens
                .unwrap_or_else(|| b.saturating_mul(max_input));
            p.max_input_tokens = Some(max_input);
            p.max_batch_prefill_tokens = Some(prefill);
            p.router()?;
        }
        Ok(p)
    }

    /// The router in front of the resolved shapes.
    fn router(&self) -> Result<Tgi, ParamError> {
        let tokens = u64::from(self.batch_size) * u64::from(self.sequence_length);
        let params = TgiParams {
            version: TgiVersion::V2,
            max_concurrent_requests: self.max_concurrent_requests,
            max_input_tokens: self.max_input_tokens,
            max_total_tokens: Some(self.sequence_length),
            max_batch_prefill_tokens: self.max_batch_prefill_tokens,
            max_batch_total_tokens: Some(tokens),
            waiting_served_ratio: Some(self.waiting_served_ratio),
            max_waiting_tokens: self.max_waiting_tokens,
            max_batch_size: Some(self.batch_size),
            paged: false,
            ..TgiParams::default()
        };
        let config = params
            .resolve(tokens, self.sequence_length)
            .map_err(|e| ParamError {
                engine: ENGINE,
                ..e
            })?;
        Ok(Tgi::with_static_rows(config, self.sequence_length))
    }
}

#[derive(Debug)]
enum Front {
    Tgi(Box<Tgi>),
    Vllm(SlotScheduler),
}

/// A server over compiled static slots.
#[derive(Debug)]
pub struct TgiNeuron {
    params: TgiNeuronParams,
    front: Front,
}

impl TgiNeuron {
    /// A server started with `params`, checked by [`TgiNeuronParams::resolve`].
    pub fn new(params: &TgiNeuronParams) -> Result<TgiNeuron, ParamError> {
        let params = params.resolve()?;
        let front = match params.server {
            NeuronServer::Tgi => Front::Tgi(Box::new(params.router()?)),
            NeuronServer::OptimumVllm => Front::Vllm(SlotScheduler::new(&params)),
        };
        Ok(TgiNeuron { params, front })
    }

    /// The resolved parameters.
    pub fn params(&self) -> &TgiNeuronParams {
        &self.params
    }

    /// Replaces the plan's statistics by those of the compiled shapes that will run (2.5).
    fn shape(&self, plan: &mut StepPlan) {
        let p = &self.params;
        let mut stats = BatchStats::default();
        let new = || plan.entries.iter().filter(|e| !e.decode);
        let chunked = p.server == NeuronServer::OptimumVllm
            && p.context_chunk > 0
            && p.sequence_length > p.context_chunk;
        if chunked {
            for e in new() {
                // A chunk's graph goes over the whole row, whatever of it there is yet.
                let rest = p.sequence_length - p.context_chunk;
                let chunks = e.tokens.div_ceil(p.context_chunk);
                for i in 0..chunks {
                    stats.add_prefill(p.context_chunk, rest, i + 1 == chunks);
                }
            }
        } else {
            // TGI pads the prompts that enter together to the longest of them, and that picks the bucket.
            let longest = new().map(|e| e.tokens).max().unwrap_or(0);
            for e in new() {
                let tokens = match p.server {
                    NeuronServer::Tgi => longest,
                    NeuronServer::OptimumVllm => e.tokens,
                };
                stats.add_prefill(bucket(&p.context_buckets, tokens), 0, true);
            }
        }
        let decodes = plan.entries.iter().filter(|e| e.decode);
        if let Some(longest) = decodes.map(|e| e.context + 1).max() {
            let length = bucket(&p.decode_buckets, longest);
            for _ in 0..p.batch_size {
                stats.add_decode(length);
            }
        }
        // The device computes every slot, the host chooses tokens for the slots in use only.
        stats.sampled_seqs = plan.entries.iter().filter(|e| e.samples).count() as u32;
        plan.stats = stats;
    }

    fn front(&self) -> &dyn Scheduler {
        match &self.front {
            Front::Tgi(t) => t.as_ref(),
            Front::Vllm(v) => v,
        }
    }

    fn front_mut(&mut self) -> &mut dyn Scheduler {
        match &mut self.front {
            Front::Tgi(t) => t.as_mut(),
            Front::Vllm(v) => v,
        }
    }
}

/// The smallest compiled length that holds `tokens`; the largest if none does.
fn bucket(buckets: &[u32], tokens: u32) -> u32 {
    let at = buckets.partition_point(|&b| b < tokens);
    buckets
        .get(at)
        .or(buckets.last())
        .copied()
        .unwrap_or(tokens)
}

impl Scheduler for TgiNeuron {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        self.front_mut().add(id, params)
    }

    fn plan(&mut self, now: SimTime, plan: &mut StepPlan) -> bool {
        if !self.front_mut().plan(now, plan) {
            return false;
        }
        self.shape(plan);
        true
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        self.front_mut().complete(plan, given);
    }

    fn cancel(&mut self, id: ReqId) {
        self.front_mut().cancel(id);
    }

    fn take_failed(&mut self, out: &mut Vec<ReqId>) {
        self.front_mut().take_failed(out);
    }

    fn load(&self) -> Load {
        let load = self.front().load();
        // A slot is the only block there is.
        Load {
            kv_used_blocks: u64::from(load.running),
            kv_total_blocks: u64::from(self.params.batch_size),
            ..load
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    #[default]
    Gone,
    Waiting,
    Running,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seq {
    slot: Slot,
    prompt: u32,
    generated: u32,
}

/// vLLM V1's scheduler as the plug-in configures it: one block per slot, no prefix cache, whole prompts (2.5).
#[derive(Debug)]
struct SlotScheduler {
    slots: usize,
    max_len: u32,
    budget: u32,
    seqs: Vec<Seq>,
    waiting: VecDeque<ReqId>,
    running: Vec<ReqId>,
    in_flight: bool,
}

impl SlotScheduler {
    fn new(p: &TgiNeuronParams) -> SlotScheduler {
        SlotScheduler {
            slots: p.batch_size as usize,
            max_len: p.sequence_length,
            budget: p.max_num_batched_tokens.max(p.sequence_length),
            seqs: Vec::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            in_flight: false,
        }
    }
}

impl Scheduler for SlotScheduler {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        let prompt = params.prompt_tokens.max(1);
        if prompt.saturating_add(params.max_tokens.max(1)) > self.max_len {
            return Err(RejectReason::TooLong);
        }
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize(i + 1, Seq::default());
        }
        self.seqs[i] = Seq {
            slot: Slot::Waiting,
            prompt,
            generated: 0,
        };
        self.waiting.push_back(id);
        Ok(())
    }

    fn plan(&mut self, _now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        if self.in_flight {
            return false;
        }
        let mut budget = self.budget;
        for &id in &self.running {
            let s = &self.seqs[id as usize];
            plan.entries.push(Scheduled {
                id,
                tokens: 1,
                context: s.prompt + s.generated - 1,
                samples: true,
                decode: true,
            });
            budget = budget.saturating_sub(1);
        }
        // A prompt beyond what is left of the budget is set aside; later, shorter ones may pass it (1.2, 0.11).
        let mut at = 0;
        while at < self.waiting.len() && budget > 0 && self.running.len() < self.slots {
            let id = self.waiting[at];
            let s = &mut self.seqs[id as usize];
            if s.prompt > budget {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            s.slot = Slot::Running;
            budget -= s.prompt;
            plan.admitted.push(id);
            plan.entries.push(Scheduled {
                id,
                tokens: s.prompt,
                context: 0,
                samples: true,
                decode: false,
            });
            self.running.push(id);
        }
        if !self.waiting.is_empty() {
            plan.blocked = if self.running.len() >= self.slots {
                Blocked::MaxSeqs
            } else {
                Blocked::TokenBudget
            };
        }
        self.in_flight = !plan.entries.is_empty();
        self.in_flight
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        self.in_flight = false;
        for (i, e) in plan.entries.iter().enumerate() {
            self.seqs[e.id as usize].generated += given.to(i, e);
        }
        for &id in given.stopped {
            self.cancel(id);
        }
    }

    fn cancel(&mut self, id: ReqId) {
        let Some(seq) = self.seqs.get_mut(id as usize) else {
            return;
        };
        match std::mem::take(&mut seq.slot) {
            Slot::Gone => {}
            Slot::Waiting => self.waiting.retain(|&w| w != id),
            Slot::Running => self.running.retain(|&r| r != id),
        }
    }

    fn take_failed(&mut self, _out: &mut Vec<ReqId>) {}

    fn load(&self) -> Load {
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            ..Load::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{Checks, Req, Run, STEP, assert_fifo, req, run, workload};
    use super::*;

    const PADS: Checks = Checks {
        exact_stats: false,
        block: None,
    };

    fn go(p: &TgiNeuronParams, reqs: &[Req]) -> Run {
        run(&mut TgiNeuron::new(p).unwrap(), reqs, PADS)
    }

    fn vllm(b: u32, s: u32) -> TgiNeuronParams {
        TgiNeuronParams {
            server: NeuronServer::OptimumVllm,
            ..TgiNeuronParams::new(b, s)
        }
    }

    #[test]
    fn defaults_follow_the_compiled_shape_2_5() {
        let p = TgiNeuronParams::new(8, 4096).resolve().unwrap();
        assert_eq!(p.max_input_tokens, Some(2048));
        assert_eq!(p.max_batch_prefill_tokens, Some(8 * 2048));
        assert_eq!(
            (p.context_buckets, p.decode_buckets),
            (vec![4096], vec![4096])
        );
    }

    #[test]
    fn start_up_refuses_shapes_that_cannot_be_2_5() {
        let refused = |change: &dyn Fn(&mut TgiNeuronParams)| {
            let mut p = TgiNeuronParams::new(4, 1024);
            change(&mut p);
            p.resolve().unwrap_err().param
        };
        assert_eq!(refused(&|p| p.batch_size = 0), "batch_size");
        assert_eq!(refused(&|p| p.sequence_length = 1), "sequence_length");
        assert_eq!(
            refused(&|p| p.max_input_tokens = Some(1024)),
            "max_input_tokens"
        );
        assert_eq!(
            refused(&|p| p.context_buckets = vec![256]),
            "context_buckets"
        );
        assert_eq!(refused(&|p| p.decode_buckets = vec![512]), "decode_buckets");
        assert_eq!(
            refused(&|p| p.decode_buckets = vec![1024, 2048]),
            "decode_buckets"
        );
        assert_eq!(
            refused(&|p| p.max_batch_prefill_tokens = Some(100)),
            "max_batch_prefill_tokens"
        );
    }

    #[test]
    fn new_prompts_are_encoded_one_after_another_at_the_bucket_length_2_5() {
        let r = go(
            &TgiNeuronParams::new(4, 1024),
            &[req(0, 100, 5), req(0, 30, 5)],
        );
        let s = r.rows[0].plan.stats;
        assert_eq!((s.prefill_seqs, s.prefill_tokens), (2, 2 * 1024));
        assert_eq!(s.prefill_pairs, 2 * 1024 * 1025 / 2);
        assert_eq!(
            r.fates[0].first_token, r.fates[1].first_token,
            "all first tokens together"
        );
    }

    #[test]
    fn the_longest_prompt_of_a_prefill_picks_the_bucket_of_all_2_5() {
        let mut p = TgiNeuronParams::new(4, 1024);
        p.context_buckets = vec![1024, 256, 64];
        let r = go(&p, &[req(0, 65, 5), req(0, 30, 5)]);
        assert_eq!(r.rows[0].plan.stats.prefill_tokens, 2 * 256);
    }

    #[test]
    fn a_decode_costs_all_slots_at_the_compiled_length_however_few_are_ready_2_5() {
        let r = go(&TgiNeuronParams::new(4, 1024), &[req(0, 100, 5)]);
        let s = r.rows[1].plan.stats;
        assert_eq!((s.decode_seqs, s.sampled_seqs), (4, 1));
        assert_eq!(s.decode_ctx_sum, 4 * 1024);
        assert_eq!(
            r.rows[1].decodes(),
            [0],
            "but only the real one gets a token"
        );
    }

    #[test]
    fn decode_buckets_follow_the_longest_active_row_2_5() {
        let mut p = TgiNeuronParams::new(2, 1024);
        p.decode_buckets = vec![128, 1024];
        let r = go(&p, &[req(0, 126, 5)]);
        let lengths: Vec<u64> = r.rows[1..]
            .iter()
            .map(|r| r.plan.stats.decode_ctx_sum / 2)
            .collect();
        assert_eq!(lengths, [128, 128, 1024, 1024]);
    }

    #[test]
    fn running_slots_pause_while_new_requests_are_encoded_2_5() {
        let r = go(
            &TgiNeuronParams::new(4, 1024),
            &[req(0, 100, 9), req(1, 100, 9)],
        );
        assert_eq!(
            (r.rows[1].prefills(), r.rows[1].decodes()),
            (vec![(1, 100)], vec![])
        );
        assert_eq!(r.rows[2].decodes(), [0, 1]);
    }

    #[test]
    fn a_new_request_needs_an_empty_slot_and_a_finished_one_frees_it_at_once_2_5() {
        let r = go(
            &TgiNeuronParams::new(2, 64),
            &[req(0, 8, 3), req(0, 8, 9), req(0, 8, 3)],
        );
        assert_eq!(r.fates[0].finished, Some(3 * STEP));
        assert_eq!(r.fates[2].first_step, Some(3));
        assert_eq!(r.rows[0].load.kv_total_blocks, 2);
    }

    #[test]
    fn the_padded_rule_of_the_router_holds_back_what_overfills_the_rows_2_3() {
        // Two empty rows of 64: 2 x 32 + 33 + 32 > 128, although each request fits a row.
        let reqs = [req(0, 31, 33), req(0, 32, 32)];
        let r = go(&TgiNeuronParams::new(2, 64), &reqs);
        assert_eq!(r.rows[0].prefills(), [(0, 31)]);
        assert_eq!(r.fates[1].first_step, Some(1), "one row is surely enough");
        let mut p = TgiNeuronParams::new(2, 64);
        p.max_batch_prefill_tokens = Some(40);
        let r = go(&p, &[req(0, 30, 9), req(0, 5, 9)]);
        assert_eq!(r.rows[0].prefills(), [(0, 30)], "2 x 30 > 40");
    }

    #[test]
    fn the_vllm_plug_in_decodes_and_encodes_in_one_step_2_5() {
        let r = go(
            &vllm(4, 4096),
            &[req(0, 100, 9), req(1, 1500, 9), req(1, 700, 9)],
        );
        let s = r.rows[1].plan.stats;
        assert_eq!(r.rows[1].decodes(), [0]);
        assert_eq!(r.rows[1].prefills(), [(1, 1500), (2, 700)]);
        assert_eq!((s.decode_seqs, s.decode_ctx_sum), (4, 4 * 4096));
        // Two chunks of 1024 and one: 3 encodings, 2 of which end a prompt.
        assert_eq!((s.prefill_seqs, s.prefill_tokens), (3, 3 * 1024));
        assert_eq!(s.prefill_pairs, 3 * (1024 * 3072 + 1024 * 1025 / 2));
        assert_eq!(s.sampled_seqs, 1 + 2);
    }

    #[test]
    fn the_vllm_plug_in_encodes_whole_rows_when_they_are_short_2_5() {
        let r = go(&vllm(4, 512), &[req(0, 100, 2)]);
        assert_eq!(r.rows[0].plan.stats.prefill_tokens, 512);
    }

    #[test]
    fn the_vllm_plug_in_without_chunks_encodes_whole_rows_2_5() {
        let mut p = vllm(4, 4096);
        p.context_chunk = 0;
        let r = go(&p, &[req(0, 100, 2)]);
        let s = r.rows[0].plan.stats;
        assert_eq!((s.prefill_seqs, s.prefill_tokens), (1, 4096));
    }

    #[test]
    fn the_vllm_plug_in_keeps_to_its_token_budget_2_5() {
        let p = vllm(4, 2048);
        let r = go(
            &p,
            &[
                req(0, 1500, 9),
                req(0, 600, 9),
                req(0, 500, 9),
                req(0, 2000, 49),
            ],
        );
        assert_eq!(
            r.rows[0].prefills(),
            [(0, 1500), (2, 500)],
            "600 is set aside"
        );
        assert_eq!(r.fates[3].rejected, Some(RejectReason::TooLong));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_request_gets_a_slot_and_finishes(
            b in 1..6u32,
            is_vllm: bool,
            ratio in 0.0..2.0f32,
            reqs in workload(30, 64, 64, 80),
        ) {
            let mut p = TgiNeuronParams::new(b, 128);
            p.waiting_served_ratio = ratio;
            p.server = [NeuronServer::Tgi, NeuronServer::OptimumVllm][usize::from(is_vllm)];
            let r = go(&p, &reqs);
            for row in &r.rows {
                let s = row.plan.stats;
                prop_assert!(row.load.running <= b);
                prop_assert!(s.decode_seqs == 0 || s.decode_seqs == b);
                prop_assert_eq!(s.prefill_tokens % 128, 0);
            }
            if !is_vllm {
                assert_fifo(&r);
            }
        }
    }
}
