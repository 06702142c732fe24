//! Plain static batching, as FasterTransformer behind Triton's dynamic batcher did it (serving-policies 3.5, 3.8).
//!
//! A batch is formed from the queue, prefilled together with every prompt padded to the longest, and decoded until the
//! last of its requests has ended; rows that have ended keep computing. Nobody joins meanwhile.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::ParamError;
use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::{SimDuration, SimTime};
use crate::request::{RejectReason, ReqId};

const ENGINE: &str = "static batching";

/// The dynamic batcher's parameters, by Triton's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StaticBatchParams {
    /// Requests of a batch at most (default 8).
    pub max_batch_size: u32,
    /// Sizes worth sending at once, the largest available first. Empty (default): `max_batch_size` alone.
    pub preferred_batch_size: Vec<u32>,
    /// How long the oldest request may wait for a preferred size [us]; 0 (default): what is there goes at once.
    pub max_queue_delay_microseconds: u64,
    /// Requests that may wait; one more is answered 503. 0 (default): unlimited.
    pub max_queue_size: u32,
    /// Longest prompt + output [tokens]. Default: what the model allows.
    pub max_seq_len: Option<u32>,
}

impl Default for StaticBatchParams {
    fn default() -> StaticBatchParams {
        StaticBatchParams {
            max_batch_size: 8,
            preferred_batch_size: Vec::new(),
            max_queue_delay_microseconds: 0,
            max_queue_size: 0,
            max_seq_len: None,
        }
    }
}

/// [`StaticBatchParams`] after start-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StaticBatchConfig {
    /// Requests of a batch at most.
    pub max_batch_size: u32,
    /// Sizes worth sending at once, ascending.
    pub preferred_batch_size: Vec<u32>,
    /// How long the oldest request may wait for a preferred size.
    #[serde(skip)]
    pub max_queue_delay: SimDuration,
    /// Requests that may wait; 0: unlimited.
    pub max_queue_size: u32,
    /// Longest prompt + output [tokens].
    pub max_seq_len: u32,
    /// KV tokens there are [tokens].
    pub kv_tokens: u64,
}

impl StaticBatchParams {
    /// Start-up with `kv_tokens`, what fits in memory beside the weights [tokens], and a model whose longest sequence is
    /// `model_max_tokens` [tokens].
    pub fn resolve(
        &self,
        kv_tokens: u64,
        model_max_tokens: u32,
    ) -> Result<StaticBatchConfig, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        if self.max_batch_size == 0 {
            return err("max_batch_size", "must be at least 1, got 0".into());
        }
        let mut preferred = self.preferred_batch_size.clone();
        if preferred.is_empty() {
            preferred.push(self.max_batch_size);
        }
        preferred.sort_unstable();
        preferred.dedup();
        if preferred[0] == 0 || preferred.last().is_some_and(|&p| p > self.max_batch_size) {
            return err(
                "preferred_batch_size",
                format!(
                    "must lie between 1 and max_batch_size ({}), got {preferred:?}",
                    self.max_batch_size
                ),
            );
        }
        let max_seq_len = self
            .max_seq_len
            .unwrap_or_else(|| model_max_tokens.min(u32::try_from(kv_tokens).unwrap_or(u32::MAX)));
        if max_seq_len < 2 || max_seq_len > model_max_tokens || u64::from(max_seq_len) > kv_tokens {
            return err(
                "max_seq_len",
                format!(
                    "must be at least 2 and at most what the model ({model_max_tokens}) and memory ({kv_tokens}) \
                     allow, got {max_seq_len} tokens"
                ),
            );
        }
        Ok(StaticBatchConfig {
            max_batch_size: self.max_batch_size,
            preferred_batch_size: preferred,
            max_queue_delay: SimDuration(self.max_queue_delay_microseconds.saturating_mul(1000)),
            max_queue_size: self.max_queue_size,
            max_seq_len,
            kv_tokens,
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Gone,
    Waiting,
    Running,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seq {
    state: State,
    prompt: u32,
    max_new: u32,
    arrival: SimTime,
}

/// A static batcher over one engine.
#[derive(Debug)]
pub struct StaticBatch {
    config: StaticBatchConfig,
    seqs: Vec<Seq>,
    waiting: VecDeque<ReqId>,
    /// Requests of the batch that have not ended.
    live: Vec<ReqId>,
    /// Rows of the batch, ended ones included; 0: no batch.
    rows: u32,
    /// Padded prompt length [tokens].
    prompt: u32,
    /// Length reserved per row [tokens].
    row_tokens: u32,
    /// Steps run: the tokens every row has produced.
    generated: u32,
    /// What kept the batch from being larger.
    blocked: Blocked,
    in_flight: bool,
}

impl StaticBatch {
    /// A batcher that has started with `config`.
    pub fn new(config: StaticBatchConfig) -> StaticBatch {
        StaticBatch {
            config,
            seqs: Vec::new(),
            waiting: VecDeque::new(),
            live: Vec::new(),
            rows: 0,
            prompt: 0,
            row_tokens: 0,
            generated: 0,
            blocked: Blocked::Nothing,
            in_flight: false,
        }
    }

    /// The configuration it started with.
    pub fn config(&self) -> &StaticBatchConfig {
        &self.config
    }

    /// When the oldest request has waited long enough.
    fn deadline(&self) -> Option<SimTime> {
        let &oldest = self.waiting.front()?;
        Some(self.seqs[oldest as usize].arrival + self.config.max_queue_delay)
    }

    /// Size of the batch to send now, or none yet (3.5).
    fn batch_size(&self, now: SimTime) -> Option<usize> {
        let waiting = self.waiting.len();
        let sizes = self.config.preferred_batch_size.iter().rev();
        let preferred = sizes.map(|&p| p as usize).find(|&p| p <= waiting);
        if preferred.is_some() {
            return preferred;
        }
        let due = self.deadline().is_some_and(|d| now >= d);
        due.then(|| waiting.min(self.config.max_batch_size as usize))
    }

    /// Takes up to `size` requests in order, as far as their padded rows fit into memory.
    fn form(&mut self, size: usize) {
        let (mut prompt, mut output) = (0, 0);
        self.blocked = Blocked::MaxSeqs;
        while self.live.len() < size
            && let Some(&id) = self.waiting.front()
        {
            let s = &mut self.seqs[id as usize];
            let (p, o) = (prompt.max(s.prompt), output.max(s.max_new));
            let row = u64::from(p) + u64::from(o);
            // A single row always fits: longer requests were refused.
            if !self.live.is_empty() && (self.live.len() as u64 + 1) * row > self.config.kv_tokens {
                self.blocked = Blocked::KvFull;
                break;
            }
            (prompt, output) = (p, o);
            s.state = State::Running;
            self.waiting.pop_front();
            self.live.push(id);
        }
        self.rows = self.live.len() as u32;
        self.prompt = prompt;
        self.row_tokens = prompt + output;
        self.generated = 0;
    }

    /// Frees the rows once nobody is left in the batch.
    fn end_batch_if_empty(&mut self) {
        if self.live.is_empty() && !self.in_flight {
            self.rows = 0;
        }
    }
}

impl Scheduler for StaticBatch {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        let (prompt, max_new) = (params.prompt_tokens.max(1), params.max_tokens.max(1));
        if prompt.saturating_add(max_new) > self.config.max_seq_len {
            return Err(RejectReason::TooLong);
        }
        let limit = self.config.max_queue_size as usize;
        if limit > 0 && self.waiting.len() >= limit {
            return Err(RejectReason::QueueFull);
        }
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize(i + 1, Seq::default());
        }
        self.seqs[i] = Seq {
            state: State::Waiting,
            prompt,
            max_new,
            arrival: params.arrival,
        };
        self.waiting.push_back(id);
        Ok(())
    }

    fn plan(&mut self, now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        if self.in_flight {
            return false;
        }
        if self.rows == 0 {
            let Some(size) = self.batch_size(now) else {
                return false;
            };
            self.form(size);
            plan.admitted.extend_from_slice(&self.live);
            for _ in 0..self.rows {
                plan.stats.add_prefill(self.prompt, 0, true);
            }
        } else {
            for _ in 0..self.rows {
                plan.stats.add_decode(self.prompt + self.generated);
            }
        }
        for &id in &self.live {
            let prompt = self.seqs[id as usize].prompt;
            let decode = self.generated > 0;
            plan.entries.push(Scheduled {
                id,
                tokens: if decode { 1 } else { prompt },
                context: if decode {
                    prompt + self.generated - 1
                } else {
                    0
                },
                samples: true,
                decode,
            });
        }
        if !self.waiting.is_empty() {
            plan.blocked = self.blocked;
        }
        self.in_flight = true;
        true
    }

    fn complete(&mut self, _plan: &StepPlan, given: Given<'_>) {
        self.in_flight = false;
        // Its rows go in lockstep: a token each.
        self.generated += 1;
        for &id in given.stopped {
            self.seqs[id as usize].state = State::Gone;
        }
        let seqs = &self.seqs;
        self.live
            .retain(|&id| seqs[id as usize].state == State::Running);
        self.end_batch_if_empty();
    }

    fn cancel(&mut self, id: ReqId) {
        let Some(seq) = self.seqs.get_mut(id as usize) else {
            return;
        };
        match std::mem::take(&mut seq.state) {
            State::Gone => {}
            State::Waiting => self.waiting.retain(|&w| w != id),
            // Its row stays in the batch like one that has ended.
            State::Running => {
                self.live.retain(|&l| l != id);
                self.end_batch_if_empty();
            }
        }
    }

    fn take_failed(&mut self, _out: &mut Vec<ReqId>) {}

    fn next_wake(&self) -> Option<SimTime> {
        let idle = self.rows == 0 && !self.in_flight;
        idle.then(|| self.deadline()).flatten()
    }

    fn load(&self) -> Load {
        Load {
            running: self.live.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_used_blocks: u64::from(self.rows) * u64::from(self.row_tokens),
            kv_total_blocks: self.config.kv_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{Checks, Req, Run, STEP, assert_fifo, req, run, workload};
    use super::*;

    fn go(p: &StaticBatchParams, kv_tokens: u64, reqs: &[Req]) -> Run {
        let checks = Checks {
            exact_stats: false,
            block: Some(1),
        };
        let mut s = StaticBatch::new(p.resolve(kv_tokens, 512).unwrap());
        run(&mut s, reqs, checks)
    }

    fn params(max: u32, delay_us: u64) -> StaticBatchParams {
        StaticBatchParams {
            max_batch_size: max,
            max_queue_delay_microseconds: delay_us,
            ..StaticBatchParams::default()
        }
    }

    #[test]
    fn start_up_refuses_impossible_parameters_3_5() {
        let refused = |p: StaticBatchParams| p.resolve(1000, 512).unwrap_err().param;
        assert_eq!(refused(params(0, 0)), "max_batch_size");
        let mut p = params(4, 0);
        p.preferred_batch_size = vec![2, 5];
        assert_eq!(refused(p), "preferred_batch_size");
        let mut p = params(4, 0);
        p.max_seq_len = Some(513);
        assert_eq!(refused(p), "max_seq_len");
        assert_eq!(params(4, 0).resolve(100, 512).unwrap().max_seq_len, 100);
    }

    #[test]
    fn a_full_batch_goes_at_once_and_a_partial_one_after_the_delay_3_5() {
        let p = params(2, 7);
        let r = go(&p, 1000, &[req(0, 8, 2), req(1, 8, 2), req(2500, 8, 2)]);
        assert_eq!((r.rows[0].at, r.rows[0].prefills().len()), (1, 2));
        let last = r.fates[2].first_step.unwrap();
        assert_eq!(r.rows[last].at, 2500 + 7000);
    }

    #[test]
    fn without_delay_what_is_there_goes_at_once_3_5() {
        let r = go(&params(4, 0), 1000, &[req(0, 8, 2), req(1, 8, 2)]);
        assert_eq!(r.rows[0].prefills(), [(0, 8)]);
    }

    #[test]
    fn the_largest_preferred_size_available_is_sent_3_5() {
        let mut p = params(8, 1000);
        p.preferred_batch_size = vec![2, 4];
        let reqs: Vec<Req> = (0..7).map(|_| req(0, 8, 1)).collect();
        let r = go(&p, 1000, &reqs);
        let sizes: Vec<usize> = r.rows.iter().map(|r| r.prefills().len()).collect();
        assert_eq!(sizes, [4, 2, 1]);
        assert_eq!(r.rows[2].at, 1_000_000, "the odd one waits for its delay");
    }

    #[test]
    fn prompts_are_padded_and_ended_rows_keep_computing_3_8() {
        let r = go(
            &params(3, 0),
            1000,
            &[req(0, 30, 2), req(0, 10, 5), req(0, 20, 1)],
        );
        let s = r.rows[0].plan.stats;
        assert_eq!((s.prefill_seqs, s.prefill_tokens), (3, 90));
        for (i, row) in r.rows[1..].iter().enumerate() {
            assert_eq!(row.plan.stats.decode_seqs, 3);
            assert_eq!(row.plan.stats.decode_ctx_sum, 3 * (31 + i as u64));
        }
        assert_eq!(r.rows[3].decodes(), [1]);
        assert_eq!(r.rows.len(), 5);
    }

    #[test]
    fn nobody_joins_before_the_batch_has_ended_3_8() {
        let r = go(
            &params(2, 0),
            1000,
            &[req(0, 8, 9), req(0, 8, 2), req(1, 8, 2)],
        );
        assert_eq!(r.fates[2].first_step, Some(9));
        assert_eq!(
            r.fates[1].finished,
            Some(2 * STEP),
            "answers do not wait for the batch"
        );
    }

    #[test]
    fn padded_rows_that_do_not_fit_into_memory_stay_out_3_8() {
        let r = go(
            &params(3, 0),
            100,
            &[req(0, 10, 10), req(0, 40, 10), req(0, 10, 10)],
        );
        assert_eq!(r.rows[0].prefills().len(), 2, "2 x 50 fit, 3 x 50 do not");
    }

    #[test]
    fn a_full_queue_answers_503_3_5() {
        let mut p = params(1, 0);
        p.max_queue_size = 1;
        let r = go(&p, 1000, &[req(0, 8, 5), req(1, 8, 5), req(2, 8, 5)]);
        assert_eq!(r.fates[2].rejected, Some(RejectReason::QueueFull));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_request_finishes_in_order(
            max in 1..8u32,
            delay in 0..20u64,
            reqs in workload(30, 64, 64, 60),
        ) {
            let r = go(&params(max, delay), 500, &reqs);
            assert_fifo(&r);
            prop_assert!(r.rows.iter().all(|r| r.load.running <= max));
        }
    }
}
