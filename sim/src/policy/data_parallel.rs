//! Data-parallel attention: ranks with a scheduler and a KV cache each, that take every step together (serving-policies 5).
//!
//! The expert layers of a mixture join all ranks, so a step ends for all of them when it ends for the slowest, and a rank that has
//! nothing to run goes along with nothing. What differs between engines is how a request comes to its rank.

use std::collections::VecDeque;

use super::sglang::{Sglang, SglangConfig};
use super::trt_llm::{AttentionDpConfig, TrtLlm, TrtLlmConfig};
use super::vllm_v1::{VllmV1, VllmV1Params};
use super::{Blocked, Given, Load, RemoteKv, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::{SimDuration, SimTime};
use crate::request::{RejectReason, ReqId};

/// How often vLLM's front end learns how many requests run and wait on each rank (5.1).
const COUNTS_EVERY: SimDuration = SimDuration(100_000_000);
/// What a waiting request weighs against a running one there.
const WAITING_WEIGHT: u32 = 4;

/// A scheduler that can be one of several ranks.
trait Rank: Scheduler {
    /// Requests that have never started.
    fn queued(&self) -> u32 {
        0
    }

    /// Prompts and decodes of the step that it would choose now.
    fn prospect(&mut self) -> Prospect {
        Prospect::default()
    }

    /// Chooses the next step without prompts.
    fn plan_decodes(&mut self, now: SimTime, plan: &mut StepPlan) -> bool {
        self.plan(now, plan)
    }
}

impl Rank for VllmV1 {}

impl Rank for Sglang {}

impl Rank for TrtLlm {
    fn queued(&self) -> u32 {
        self.queued()
    }

    fn prospect(&mut self) -> Prospect {
        let (contexts, generations) = self.choose();
        Prospect {
            contexts,
            generations,
        }
    }

    fn plan_decodes(&mut self, _now: SimTime, plan: &mut StepPlan) -> bool {
        self.choose();
        self.leave_contexts_out();
        self.run(plan)
    }
}

/// What a rank could put into its next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Prospect {
    contexts: usize,
    generations: usize,
}

/// How requests come to ranks.
enum Assignment {
    /// vLLM's front end chooses on arrival, by counts that are up to 100 ms old and what it has sent since (5.1).
    Counts { seen: Vec<Load>, next: SimTime },
    /// TensorRT-LLM's executor hands out what has arrived before each step (5.2).
    Batches(Box<Batches>),
    /// SGLang's controller deals them out in turn (`data_parallel_controller.py`, 7.6): the rank that is next.
    Turns(usize),
}

/// The queue that TensorRT-LLM's ranks share, and what it knows of them.
struct Batches {
    config: TrtLlmConfig,
    queue: VecDeque<(ReqId, SeqParams, Option<RemoteKv>)>,
    /// Prompt tokens of the requests on each rank [tokens].
    prompt_tokens: Vec<u64>,
    /// Requests on each rank.
    active: Vec<u32>,
    /// Prompt tokens by request, while it is on a rank [tokens].
    prompts: Vec<u32>,
    balance: Balance,
}

/// TensorRT-LLM's ADP balance (5.3): prompts wait until every rank has one.
#[derive(Debug, Default)]
struct Balance {
    config: AttentionDpConfig,
    waited: u32,
    batched: u32,
}

impl Balance {
    /// Whether the next step is to leave prompts out, whatever it could hold.
    fn holds_back(&mut self, prospects: &[Prospect], max_batch_size: u32) -> bool {
        let all = |rule: &dyn Fn(&Prospect) -> bool| prospects.iter().all(rule);
        let decoding = all(&|p| p.generations > 0);
        if all(&|p| p.generations < max_batch_size as usize) && all(&|p| p.contexts > 0) {
            self.waited = 0;
            if !decoding {
                return false;
            }
            if self.batched < self.config.batching_wait_iters {
                self.batched += 1;
                return true;
            }
            self.batched = 0;
            return false;
        }
        self.waited += 1;
        if self.waited >= self.config.timeout_iters || !decoding {
            self.waited = 0;
            return false;
        }
        true
    }
}

/// Ranks of one replica.
struct DataParallel<S> {
    ranks: Vec<S>,
    assignment: Assignment,
    /// Rank of a request by id; [`NOWHERE`] while it waits for one.
    rank_of: Vec<u32>,
    /// Plans of the steps in flight, oldest first, by rank.
    in_flight: VecDeque<Vec<StepPlan>>,
    spare: Vec<Vec<StepPlan>>,
    stopped: Vec<ReqId>,
    kept: Vec<ReqId>,
    prospects: Vec<Prospect>,
}

const NOWHERE: u32 = u32::MAX;

/// vLLM with `ranks` data-parallel engine cores.
pub fn vllm(params: VllmV1Params, ranks: u32) -> Box<dyn Scheduler> {
    let ranks: Vec<VllmV1> = (0..ranks.max(1)).map(|_| VllmV1::new(params)).collect();
    let seen = ranks.iter().map(Scheduler::load).collect();
    Box::new(DataParallel::new(
        ranks,
        Assignment::Counts {
            seen,
            next: SimTime::ZERO,
        },
    ))
}

/// TensorRT-LLM with attention in `ranks` data-parallel ranks.
pub fn trt_llm(config: &TrtLlmConfig, shared_content: bool, ranks: u32) -> Box<dyn Scheduler> {
    let n = ranks.max(1) as usize;
    let batches = Batches {
        config: config.clone(),
        queue: VecDeque::new(),
        prompt_tokens: vec![0; n],
        active: vec![0; n],
        prompts: Vec::new(),
        balance: Balance {
            config: config.params.attention_dp_config,
            ..Balance::default()
        },
    };
    let ranks = (0..n)
        .map(|_| TrtLlm::new(config.clone(), shared_content))
        .collect();
    Box::new(DataParallel::new(
        ranks,
        Assignment::Batches(Box::new(batches)),
    ))
}

/// SGLang with attention in `ranks` data-parallel ranks.
pub fn sglang(config: &SglangConfig, shared_content: bool, ranks: u32) -> Box<dyn Scheduler> {
    let ranks: Vec<Sglang> = (0..ranks.max(1))
        .map(|_| Sglang::new(config.clone(), shared_content))
        .collect();
    Box::new(DataParallel::new(ranks, Assignment::Turns(0)))
}

impl<S: Rank> DataParallel<S> {
    fn new(ranks: Vec<S>, assignment: Assignment) -> DataParallel<S> {
        DataParallel {
            ranks,
            assignment,
            rank_of: Vec::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            stopped: Vec::new(),
            kept: Vec::new(),
            prospects: Vec::new(),
        }
    }

    fn put(&mut self, id: ReqId, rank: u32) {
        let i = id as usize;
        if self.rank_of.len() <= i {
            self.rank_of.resize(i + 1, NOWHERE);
        }
        self.rank_of[i] = rank;
    }

    /// The counts that the front end sees from `now` on, once they are due.
    fn refresh(&mut self, now: SimTime) {
        if let Assignment::Counts { seen, next } = &mut self.assignment
            && now >= *next
        {
            for (seen, rank) in seen.iter_mut().zip(&self.ranks) {
                *seen = rank.load();
            }
            *next = now + COUNTS_EVERY;
        }
    }

    /// Hands out what waits for a rank (5.2).
    fn hand_out(&mut self) {
        let Assignment::Batches(b) = &mut self.assignment else {
            return;
        };
        let n = self.ranks.len();
        let room = (b.config.max_requests() * n)
            .saturating_sub(b.active.iter().map(|a| *a as usize).sum());
        let take = room.min(b.queue.len());
        if take == 0 {
            return;
        }
        let mut batch: Vec<_> = b.queue.drain(..take).collect();
        batch.sort_by_key(|(_, p, _)| std::cmp::Reverse(p.prompt_tokens));
        let total: u32 = b.active.iter().sum::<u32>() + take as u32;
        let most = b.active.iter().copied().max().unwrap_or(0);
        let expected = total.div_ceil(n as u32).max(most);
        for (id, params, remote) in batch {
            let rank = (0..n)
                .filter(|&r| b.active[r] < expected)
                .min_by_key(|&r| (b.prompt_tokens[r], b.active[r], r))
                .unwrap_or(0);
            let prompt = params.prompt_tokens;
            let entered = self.ranks[rank].add(id, params);
            debug_assert!(entered.is_ok(), "the queue took in what a rank refuses");
            if let Some(remote) = remote {
                self.ranks[rank].expect_kv(id, remote);
            }
            b.active[rank] += 1;
            b.prompt_tokens[rank] += u64::from(prompt);
            if b.prompts.len() <= id as usize {
                b.prompts.resize(id as usize + 1, 0);
            }
            b.prompts[id as usize] = prompt;
            self.rank_of[id as usize] = rank as u32;
        }
    }

    /// Notes that `id` has left its rank.
    fn left(&mut self, id: ReqId) {
        let rank = std::mem::replace(&mut self.rank_of[id as usize], NOWHERE);
        if let Assignment::Batches(b) = &mut self.assignment
            && rank != NOWHERE
        {
            b.active[rank as usize] -= 1;
            b.prompt_tokens[rank as usize] -= u64::from(b.prompts[id as usize]);
        }
    }

    /// Whether the next step leaves prompts out to keep the ranks alike.
    fn holds_back(&mut self) -> bool {
        let Assignment::Batches(b) = &mut self.assignment else {
            return false;
        };
        if !b.balance.config.enable_balance {
            return false;
        }
        self.prospects.clear();
        self.prospects
            .extend(self.ranks.iter_mut().map(Rank::prospect));
        let some = |p: &Prospect| p.contexts + p.generations > 0;
        self.prospects.iter().any(some)
            && (b.balance).holds_back(&self.prospects, b.config.params.max_batch_size)
    }
}

impl<S: Rank> Scheduler for DataParallel<S> {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        self.refresh(params.arrival);
        let rank = match &mut self.assignment {
            Assignment::Counts { seen, .. } => {
                let score = |l: &Load| WAITING_WEIGHT * l.waiting + l.running;
                // The first of equals.
                let rank = (0..seen.len())
                    .min_by_key(|&r| score(&seen[r]))
                    .unwrap_or(0);
                self.ranks[rank].add(id, params)?;
                seen[rank].waiting += 1;
                rank as u32
            }
            Assignment::Batches(b) => {
                let waiting =
                    b.queue.len() as u32 + self.ranks.iter().map(Rank::queued).sum::<u32>();
                b.config
                    .admits(params.prompt_tokens, params.max_tokens, waiting)?;
                b.queue.push_back((id, params, None));
                NOWHERE
            }
            Assignment::Turns(next) => {
                let rank = *next;
                *next = (rank + 1) % self.ranks.len();
                self.ranks[rank].add(id, params)?;
                rank as u32
            }
        };
        self.put(id, rank);
        Ok(())
    }

    fn plan(&mut self, now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        self.refresh(now);
        self.hand_out();
        let without_prompts = self.holds_back();
        let mut plans = self.spare.pop().unwrap_or_default();
        plans.resize_with(self.ranks.len(), StepPlan::default);
        let mut runs = false;
        for (rank, own) in self.ranks.iter_mut().zip(&mut plans) {
            let ran = if without_prompts {
                rank.plan_decodes(now, own)
            } else {
                rank.plan(now, own)
            };
            runs |= ran;
            plan.admitted.extend_from_slice(&own.admitted);
            plan.preempted.extend_from_slice(&own.preempted);
            plan.moves.extend_from_slice(&own.moves);
            plan.cached_tokens += own.cached_tokens;
            plan.blocked = severer(plan.blocked, own.blocked);
            if !ran {
                own.clear();
            }
            plan.entries.extend_from_slice(&own.entries);
            plan.stats.merge(&own.stats);
            plan.ranks.push(own.stats);
        }
        if runs {
            self.in_flight.push_back(plans);
        } else {
            self.spare.push(plans);
        }
        runs
    }

    fn complete(&mut self, _plan: &StepPlan, given: Given<'_>) {
        let Some(plans) = self.in_flight.pop_front() else {
            return;
        };
        let mut from = 0;
        for (r, (rank, own)) in self.ranks.iter_mut().zip(&plans).enumerate() {
            if own.entries.is_empty() {
                continue;
            }
            let here = |id: &&ReqId| self.rank_of[**id as usize] == r as u32;
            self.stopped.clear();
            self.stopped.extend(given.stopped.iter().filter(here));
            self.kept.clear();
            self.kept.extend(given.kept.iter().filter(here));
            // The plan's entries are those of the ranks, one rank after the other.
            let to = from + own.entries.len();
            let tokens = given.tokens.get(from..to).unwrap_or_default();
            from = to;
            rank.complete(
                own,
                Given {
                    tokens,
                    stopped: &self.stopped,
                    kept: &self.kept,
                },
            );
        }
        for &id in given.stopped {
            self.left(id);
        }
        self.spare.push(plans);
    }

    fn cancel(&mut self, id: ReqId) {
        match self.rank_of.get(id as usize).copied() {
            Some(NOWHERE) => {
                if let Assignment::Batches(b) = &mut self.assignment {
                    b.queue.retain(|(waiting, ..)| *waiting != id);
                }
            }
            Some(rank) => {
                self.ranks[rank as usize].cancel(id);
                self.left(id);
            }
            None => {}
        }
    }

    fn expect_kv(&mut self, id: ReqId, remote: RemoteKv) {
        match (self.rank_of[id as usize], &mut self.assignment) {
            (NOWHERE, Assignment::Batches(b)) => {
                if let Some(entry) = b.queue.iter_mut().find(|(waiting, ..)| *waiting == id) {
                    entry.2 = Some(remote);
                }
            }
            (NOWHERE, Assignment::Counts { .. } | Assignment::Turns(_)) => {}
            (rank, _) => self.ranks[rank as usize].expect_kv(id, remote),
        }
    }

    fn received(&mut self, id: ReqId) {
        let rank = self.rank_of[id as usize];
        if rank != NOWHERE {
            self.ranks[rank as usize].received(id);
        }
    }

    fn kv_lost(&mut self, id: ReqId) -> bool {
        match (self.rank_of[id as usize], &self.assignment) {
            (NOWHERE, _) => false,
            (rank, _) => self.ranks[rank as usize].kv_lost(id),
        }
    }

    fn sent(&mut self, id: ReqId) {
        let rank = self.rank_of[id as usize];
        if rank != NOWHERE {
            self.ranks[rank as usize].sent(id);
            self.left(id);
        }
    }

    fn takes_part_in_transfers(&self) -> bool {
        (self.ranks.iter()).all(Scheduler::takes_part_in_transfers)
    }

    fn take_failed(&mut self, out: &mut Vec<ReqId>) {
        let before = out.len();
        for rank in &mut self.ranks {
            rank.take_failed(out);
        }
        for &id in &out[before..] {
            self.left(id);
        }
    }

    fn next_wake(&self) -> Option<SimTime> {
        self.ranks.iter().filter_map(Scheduler::next_wake).min()
    }

    fn load(&self) -> Load {
        let mut all = Load::default();
        for load in self.ranks.iter().map(Scheduler::load) {
            all.running += load.running;
            all.waiting += load.waiting;
            all.kv_used_blocks += load.kv_used_blocks;
            all.kv_total_blocks += load.kv_total_blocks;
        }
        if let Assignment::Batches(b) = &self.assignment {
            all.waiting += b.queue.len() as u32;
        }
        all
    }

    fn acceptance(&self) -> &[f64] {
        self.ranks.first().map_or(&[], Scheduler::acceptance)
    }

    fn depth(&self) -> u32 {
        self.ranks.first().map_or(1, Scheduler::depth)
    }
}

/// The first cause in the order of [`Blocked::CAUSES`].
fn severer(a: Blocked, b: Blocked) -> Blocked {
    (Blocked::CAUSES.into_iter())
        .find(|c| *c == a || *c == b)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sglang::SglangParams;
    use super::super::testkit::{Checks, Req, STEP, req, run, run_timed, workload};
    use super::super::trt_llm::TrtLlmParams;
    use super::*;

    fn vllm_params() -> VllmV1Params {
        VllmV1Params {
            max_num_batched_tokens: 64,
            max_num_seqs: 4,
            max_model_len: 128,
            num_gpu_blocks: 24,
            enable_prefix_caching: false,
            ..VllmV1Params::default()
        }
    }

    fn trt_config(params: TrtLlmParams) -> TrtLlmConfig {
        params.resolve(24 * 16, 128, 1).expect("valid")
    }

    fn trt_params() -> TrtLlmParams {
        TrtLlmParams {
            max_batch_size: 4,
            max_num_tokens: 128,
            tokens_per_block: 16,
            ..TrtLlmParams::default()
        }
    }

    /// Prompt tokens and decodes of each rank in a step.
    fn by_rank(plan: &StepPlan) -> Vec<(u32, u32)> {
        let ranks = plan.ranks.iter();
        ranks.map(|r| (r.prefill_tokens, r.decode_seqs)).collect()
    }

    #[test]
    fn requests_that_come_together_go_to_different_ranks_5_1() {
        let reqs = [req(0, 10, 3), req(0, 20, 3), req(0, 30, 3), req(0, 5, 3)];
        let r = run(&mut *vllm(vllm_params(), 3), &reqs, Checks::default());
        // The fourth goes to the first of three equals.
        assert_eq!(by_rank(&r.rows[0].plan), [(15, 0), (20, 0), (30, 0)]);
        assert_eq!(by_rank(&r.rows[1].plan), [(0, 2), (0, 1), (0, 1)]);
    }

    #[test]
    fn a_waiting_request_weighs_as_much_as_four_running_ones_5_1() {
        let step = COUNTS_EVERY.0 / 4;
        // Every other request ends soon, so that 100 ms later one rank runs three and the other none.
        let mut reqs: Vec<Req> = (0..6)
            .map(|i| req(0, 4, if i % 2 == 0 { 40 } else { 2 }))
            .collect();
        // The first of these then waits on the idle rank, four against three running: the next goes to the busy one.
        reqs.extend((0..3).map(|_| req(COUNTS_EVERY.0 + 1, 4, 40)));
        let params = VllmV1Params {
            max_num_seqs: 64,
            ..vllm_params()
        };
        let r = run_timed(&mut *vllm(params, 2), &reqs, Checks::default(), |_| step);
        let all = |p: &StepPlan| p.stats.decode_seqs == 6 && p.stats.prefill_seqs == 0;
        let last = r.rows.iter().rfind(|row| all(&row.plan));
        assert_eq!(by_rank(&last.expect("all run").plan), [(0, 4), (0, 2)]);
    }

    #[test]
    fn the_longest_prompts_are_dealt_out_first_5_2() {
        let reqs = [10, 50, 40, 20].map(|prompt| req(0, prompt, 2));
        let mut policy = trt_llm(&trt_config(trt_params()), false, 2);
        let r = run(&mut *policy, &reqs, Checks::default());
        assert_eq!(by_rank(&r.rows[0].plan), [(60, 0), (60, 0)]);
    }

    #[test]
    fn sglang_deals_requests_out_in_turn_and_ranks_share_the_chunk_7_6() {
        let params = SglangParams {
            chunked_prefill_size: Some(64),
            disable_overlap_schedule: true,
            ..SglangParams::default()
        };
        let config = params.resolve(400, 1000, None, 2).expect("valid");
        let reqs = [10, 50, 40, 20].map(|prompt| req(0, prompt, 2));
        let r = run(&mut *sglang(&config, false, 2), &reqs, Checks::default());
        // 10 and 22 of 40; 32 of 50.
        assert_eq!(by_rank(&r.rows[0].plan), [(32, 0), (32, 0)]);
        assert_eq!(by_rank(&r.rows[1].plan), [(18, 0), (32, 0)]);
        assert_eq!(by_rank(&r.rows[2].plan), [(0, 2), (6, 0)]);
    }

    #[test]
    fn what_no_rank_has_a_slot_for_waits_for_the_first_that_has_5_2() {
        let one_each = TrtLlmParams {
            max_batch_size: 1,
            ..trt_params()
        };
        // The second rank is done first, so it takes the third request.
        let reqs = [req(0, 30, 9), req(0, 20, 2), req(0, 10, 2)];
        let r = run(
            &mut *trt_llm(&trt_config(one_each), false, 2),
            &reqs,
            Checks::default(),
        );
        let third = r.fates[2].first_step.expect("it ran");
        assert_eq!(by_rank(&r.rows[third].plan), [(0, 1), (10, 0)]);
    }

    #[test]
    fn a_rank_without_work_takes_part_with_an_empty_batch() {
        let r = run(
            &mut *vllm(vllm_params(), 2),
            &[req(0, 8, 4)],
            Checks::default(),
        );
        for row in &r.rows {
            assert_eq!(row.plan.ranks.len(), 2);
            assert!(row.plan.ranks[1].is_empty());
        }
    }

    #[test]
    fn balanced_ranks_start_prompts_together_5_3() {
        let balanced = |timeout_iters| TrtLlmParams {
            attention_dp_config: AttentionDpConfig {
                enable_balance: true,
                timeout_iters,
                batching_wait_iters: 0,
            },
            ..trt_params()
        };
        // Both ranks decode; a prompt comes for the first, and six steps later one for the second.
        let reqs = [
            req(0, 16, 40),
            req(0, 16, 40),
            req(5 * STEP, 16, 4),
            req(11 * STEP, 16, 4),
        ];
        let starts = |timeout| {
            let mut policy = trt_llm(&trt_config(balanced(timeout)), false, 2);
            let r = run(&mut *policy, &reqs, Checks::default());
            let start = |i: usize| r.fates[i].first_step.expect("it ran");
            (start(2), start(3))
        };
        let (a, b) = starts(50);
        assert_eq!(a, b, "they wait for each other");
        let (a, b) = starts(3);
        assert!(a < 8 && a < b, "not longer than they may: {a} {b}");
    }

    #[test]
    fn a_request_that_no_rank_could_hold_is_refused_at_once() {
        let reqs = [req(0, 200, 4), req(0, 8, 2)];
        for mut policy in [
            vllm(vllm_params(), 2),
            trt_llm(&trt_config(trt_params()), false, 2),
        ] {
            let r = run(&mut *policy, &reqs, Checks::default());
            assert_eq!(r.fates[0].rejected, Some(RejectReason::TooLong));
            assert!(r.fates[1].finished.is_some());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_contract_holds_on_any_load(reqs in workload(40, 60, 30, 60), ranks in 1u32..5, asynchronous: bool, balance: bool) {
            let params = VllmV1Params { async_scheduling: asynchronous, ..vllm_params() };
            let checks = Checks { block: Some(16), ..Checks::default() };
            run(&mut *vllm(params, ranks), &reqs, checks);
            let trt = TrtLlmParams {
                attention_dp_config: AttentionDpConfig { enable_balance: balance, timeout_iters: 5, batching_wait_iters: 2 },
                ..trt_params()
            };
            let r = run(&mut *trt_llm(&trt_config(trt), false, ranks), &reqs, checks);
            for row in &r.rows {
                prop_assert_eq!(row.plan.ranks.len(), ranks as usize);
            }
        }

        #[test]
        fn one_rank_decides_as_the_engine_alone(reqs in workload(40, 60, 30, 60)) {
            let alone = run(&mut VllmV1::new(vllm_params()), &reqs, Checks::default());
            let ranked = run(&mut *vllm(vllm_params(), 1), &reqs, Checks::default());
            prop_assert_eq!(alone.fates, ranked.fates);
        }
    }
}
