//! The rules of serving-policies, by section.

use hwmodels::ops::{Experts, Kernels, Products, Sampler, SparseKernels};
use proptest::prelude::*;

use super::super::testkit::{Checks, Req, Run, STEP, assert_fifo, req, run, workload};
use super::*;

fn params() -> TrtLlmParams {
    TrtLlmParams {
        max_batch_size: 8,
        max_num_tokens: 128,
        tokens_per_block: 16,
        ..TrtLlmParams::default()
    }
}

fn max_utilization() -> TrtLlmParams {
    TrtLlmParams {
        batch_scheduler_policy: BatchSchedulerPolicy::MaxUtilization,
        ..params()
    }
}

fn chunked() -> TrtLlmParams {
    TrtLlmParams {
        enable_chunked_context: true,
        ..params()
    }
}

fn staged(p: &TrtLlmParams, kv_tokens: u64, pp: u32, reqs: &[Req]) -> Run {
    let mut t = TrtLlm::new(p.resolve(kv_tokens, 256, pp).unwrap(), true);
    let checks = Checks {
        block: (!p.enable_kv_cache_reuse).then_some(p.tokens_per_block),
        ..Checks::default()
    };
    let r = run(&mut t, reqs, checks);
    t.kv.check();
    r
}

fn go(p: &TrtLlmParams, kv_tokens: u64, reqs: &[Req]) -> Run {
    staged(p, kv_tokens, 1, reqs)
}

#[test]
fn prompts_wait_for_others_only_while_requests_decode_3_3() {
    let steps_of_the_late_one = |p: TrtLlmParams, late: u64| {
        let r = go(&p, 4096, &[req(0, 16, 60), req(late * STEP, 16, 4)]);
        r.fates[1].first_token.unwrap() / STEP - late
    };
    let waiting = |iters, ratio| TrtLlmParams {
        batch_wait_timeout_iters: iters,
        batch_wait_max_tokens_ratio: ratio,
        ..params()
    };
    let at_once = steps_of_the_late_one(params(), 5);
    assert_eq!(steps_of_the_late_one(waiting(10, 0.5), 5), at_once + 10);
    // Without a share to reach nobody waits; 17 tokens are enough for a tenth of 128; and nobody waits for nothing.
    assert_eq!(steps_of_the_late_one(waiting(10, 0.0), 5), at_once);
    assert_eq!(steps_of_the_late_one(waiting(10, 0.1), 5), at_once);
    assert_eq!(
        steps_of_the_late_one(waiting(10, 0.5), 100),
        steps_of_the_late_one(params(), 100)
    );
    let p = TrtLlmParams {
        batch_wait_max_tokens_ratio: 1.5,
        ..params()
    };
    assert_eq!(
        p.resolve(4096, 256, 1).unwrap_err().param,
        "batch_wait_max_tokens_ratio"
    );
}

fn overlapped() -> TrtLlmParams {
    TrtLlmParams {
        overlap_scheduler: true,
        ..params()
    }
}

#[test]
fn the_overlap_scheduler_sees_a_step_late_what_arrives_and_what_ends_3_1() {
    let first_of_the_last = |p: &TrtLlmParams, reqs: &[Req]| {
        let r = go(p, 4096, reqs);
        r.fates.last().unwrap().first_token.unwrap()
    };
    // The step after the one during which it arrives has been chosen already.
    let late = [req(0, 16, 60), req(5 * STEP + STEP / 2, 16, 4)];
    assert_eq!(
        first_of_the_last(&overlapped(), &late),
        first_of_the_last(&params(), &late) + STEP
    );
    // The place of the one that ends with its fourth token is free a step later.
    let in_line = [req(0, 16, 4), req(0, 16, 60), req(0, 16, 4)];
    let two = |p: TrtLlmParams| TrtLlmParams {
        max_batch_size: 2,
        ..p
    };
    assert_eq!(
        first_of_the_last(&two(overlapped()), &in_line),
        first_of_the_last(&two(params()), &in_line) + STEP
    );
    // Alone, nothing is lost: a decode is chosen while the step before it runs, and none after the last token.
    let alone = |p: &TrtLlmParams| go(p, 4096, &[req(0, 16, 10)]).rows.len();
    assert_eq!(alone(&overlapped()), alone(&params()));
}

#[test]
fn defaults_are_those_of_the_llm_api_3_4() {
    let p = TrtLlmParams::default();
    assert_eq!(
        (p.max_batch_size, p.max_num_tokens, p.tokens_per_block),
        (2048, 8192, 32)
    );
    assert!(!p.enable_kv_cache_reuse && !p.enable_chunked_context);
    assert_eq!(
        p.batch_scheduler_policy,
        BatchSchedulerPolicy::GuaranteedNoEvict
    );
    let c = p.resolve(1_000_000, 131_072, 2).unwrap();
    assert_eq!(
        (c.max_seq_len, c.max_input_len, c.micro_batches),
        (131_072, 8192, 2)
    );
    assert_eq!(c.blocks, 31_250);
}

#[test]
fn kernels_are_compiled_for_the_largest_batch_unless_told_otherwise_3_4() {
    let mut p = TrtLlmParams::default();
    let current = Kernels {
        xqa: true,
        fused_quantisation: true,
        fused_rotary: true,
        experts: Experts::Cutlass,
        chunked_decodes: false,
        sparse: SparseKernels::TrtLlm,
        sampler: Sampler::FlashInfer,
        ..Kernels::default()
    };
    assert_eq!(p.kernels(), current);
    p.gemm_plugin = false;
    p.max_batch_size = 8;
    assert_eq!(p.kernels().products, Products::Compiled { tokens: 8 });
    p.opt_num_tokens = Some(512);
    assert_eq!(p.kernels().products, Products::Compiled { tokens: 512 });
    p.opt_num_tokens = None;
    p.max_num_tokens = 4;
    assert_eq!(p.kernels().products, Products::Compiled { tokens: 4 });
}

#[test]
fn start_up_refuses_impossible_parameters_3_4() {
    let refused = |change: &dyn Fn(&mut TrtLlmParams)| {
        let mut p = params();
        change(&mut p);
        p.resolve(10_000, 256, 1).unwrap_err().param
    };
    assert_eq!(refused(&|p| p.max_batch_size = 0), "max_batch_size");
    assert_eq!(refused(&|p| p.tokens_per_block = 24), "tokens_per_block");
    assert_eq!(refused(&|p| p.opt_num_tokens = Some(8)), "opt_num_tokens");
    for tokens in [0, params().max_num_tokens + 1] {
        let with = |p: &mut TrtLlmParams| {
            p.gemm_plugin = false;
            p.opt_num_tokens = Some(tokens);
        };
        assert_eq!(refused(&with), "opt_num_tokens");
    }
    assert_eq!(refused(&|p| p.max_seq_len = Some(257)), "max_seq_len");
    assert_eq!(
        refused(&|p| p.max_tokens_in_paged_kv_cache = Some(10)),
        "max_seq_len"
    );
    assert_eq!(
        refused(&|p| {
            p.enable_chunked_context = true;
            p.max_num_tokens = 8;
        }),
        "max_num_tokens"
    );
}

#[test]
fn the_smaller_of_memory_and_max_tokens_in_paged_kv_cache_counts_3_4() {
    let p = TrtLlmParams {
        max_tokens_in_paged_kv_cache: Some(100),
        ..params()
    };
    let c = p.resolve(10_000, 256, 1).unwrap();
    assert_eq!((c.blocks, c.max_seq_len), (6, 96));
    assert_eq!(c.warnings.len(), 1);
}

#[test]
fn prompts_beyond_the_step_budget_are_refused_unless_chunked_3_4() {
    let reqs = [req(0, 129, 5), req(0, 128, 5)];
    let r = go(&params(), 10_000, &reqs);
    assert_eq!(r.fates[0].rejected, Some(RejectReason::TooLong));
    assert_eq!(r.fates[1].tokens, 5);
    assert_eq!(go(&chunked(), 10_000, &reqs).fates[0].tokens, 5);
}

#[test]
fn a_full_queue_answers_503_3_5() {
    let p = TrtLlmParams {
        max_queue_size: 1,
        max_batch_size: 1,
        ..params()
    };
    let r = go(&p, 10_000, &[req(0, 10, 9), req(1, 10, 9), req(2, 10, 9)]);
    assert_eq!(r.fates[2].rejected, Some(RejectReason::QueueFull));
    assert_eq!(r.fates[1].rejected, None);
}

#[test]
fn contexts_and_generations_share_a_step_contexts_first_3_1() {
    let r = go(&params(), 10_000, &[req(0, 20, 9), req(1, 30, 9)]);
    let kinds: Vec<(u32, bool)> = r.rows[1]
        .plan
        .entries
        .iter()
        .map(|e| (e.id, e.decode))
        .collect();
    assert_eq!(kinds, [(1, false), (0, true)]);
    assert_eq!(r.rows[1].plan.stats.tokens(), 31);
}

#[test]
fn no_evict_admits_only_what_can_run_to_its_end_3_2() {
    // 16 + 32 tokens are 3 blocks each; 5 blocks hold one of them, whatever the outputs really are.
    let mut a = req(0, 16, 2);
    a.max = 32;
    let reqs = [a.clone(), a];
    let r = go(&params(), 5 * 16, &reqs);
    assert_eq!(r.fates[1].first_step, Some(2));
    let r = go(&params(), 6 * 16, &reqs);
    assert_eq!(r.fates[1].first_step, Some(0));
}

#[test]
fn the_first_request_that_does_not_fit_stops_admission_3_2() {
    let reqs = [req(0, 16, 32), req(0, 48, 32), req(0, 16, 8)];
    let r = go(&params(), 5 * 16, &reqs);
    assert_eq!(r.rows[0].prefills(), [(0, 16)]);
    assert_fifo(&r);
}

#[test]
fn max_utilization_starts_what_fits_the_next_step_and_pauses_the_last_starter_3_2() {
    // Prompts of 16 and outputs of 32: 3 blocks each, 2 x 3 > 5.
    let reqs = [req(0, 16, 33), req(0, 16, 33)];
    let r = go(&max_utilization(), 5 * 16, &reqs);
    assert_eq!(r.rows[0].prefills().len(), 2);
    assert_eq!((r.fates[0].preempted, r.fates[1].preempted), (0, 1));
    let paused = r
        .rows
        .iter()
        .position(|r| !r.plan.preempted.is_empty())
        .unwrap();
    // Both hold 32 tokens after 17 steps; the next one needs a third block each, one is free.
    assert_eq!(paused, 17);
    assert_eq!(r.rows[paused].decodes(), [0]);
    // It comes back with prompt and outputs to compute, and its old outputs are not repeated.
    assert_eq!(r.fates[1].prefilled, 16 + 33);
    assert_eq!(r.fates[1].tokens, 33);
}

#[test]
fn no_evict_never_pauses_and_max_utilization_batches_more_3_2() {
    let reqs: Vec<Req> = (0..12).map(|_| req(0, 16, 48)).collect();
    let guaranteed = go(&params(), 16 * 16, &reqs);
    let greedy = go(&max_utilization(), 16 * 16, &reqs);
    assert!(guaranteed.fates.iter().all(|f| f.preempted == 0));
    assert!(greedy.fates.iter().any(|f| f.preempted > 0));
    let most = |r: &Run| r.rows.iter().map(|r| r.load.running).max();
    assert!(most(&greedy) > most(&guaranteed));
}

#[test]
fn static_batch_lets_nobody_in_before_all_have_ended_3_2() {
    let p = TrtLlmParams {
        batch_scheduler_policy: BatchSchedulerPolicy::StaticBatch,
        max_batch_size: 2,
        ..params()
    };
    let r = go(
        &p,
        10_000,
        &[req(0, 16, 3), req(0, 16, 9), req(0, 16, 3), req(0, 16, 2)],
    );
    assert_eq!(r.fates[2].first_step, Some(9));
    assert_eq!(r.fates[3].first_step, Some(9));
}

#[test]
fn without_chunking_a_prompt_waits_for_room_in_the_step_3_3() {
    let r = go(
        &params(),
        10_000,
        &[req(0, 100, 5), req(0, 29, 5), req(0, 5, 5)],
    );
    assert_eq!(
        r.rows[0].prefills(),
        [(0, 100)],
        "29 do not fit, and 5 may not pass"
    );
    assert_eq!(r.rows[1].prefills(), [(1, 29), (2, 5)]);
    assert_eq!(r.rows[1].decodes(), [0]);
}

#[test]
fn first_come_first_served_chunks_are_rounded_down_to_blocks_3_3() {
    let r = go(&chunked(), 10_000, &[req(0, 100, 5), req(0, 60, 5)]);
    // 28 tokens are left: one block of 16.
    assert_eq!(r.rows[0].prefills(), [(0, 100), (1, 16)]);
    assert_eq!(
        r.rows[1].prefills(),
        [(1, 44)],
        "the chunk that completes a prompt is not rounded"
    );
    assert_eq!(r.fates[1].first_token, Some(2 * STEP));
}

#[test]
fn equal_progress_gives_one_unit_to_each_in_turn_3_3() {
    let p = TrtLlmParams {
        context_chunking_policy: ContextChunkingPolicy::EqualProgress,
        ..chunked()
    };
    let r = go(&p, 10_000, &[req(0, 100, 5), req(0, 60, 5), req(0, 20, 5)]);
    // Rounds: 16 16 16, then 16 16 4, then 16 16: 116 used, no unit of 16 fits the 12 left; 60 - 48 = 12 does.
    assert_eq!(r.rows[0].prefills(), [(0, 48), (1, 60), (2, 20)]);
}

#[test]
fn generations_beyond_max_num_tokens_wait_3_3() {
    let p = TrtLlmParams {
        max_num_tokens: 16,
        max_batch_size: 20,
        ..params()
    };
    let reqs: Vec<Req> = (0..20).map(|_| req(0, 1, 40)).collect();
    let r = go(&p, 10_000, &reqs);
    assert!(r.rows.iter().all(|r| r.plan.stats.tokens() <= 16));
}

#[test]
fn a_request_is_in_one_micro_batch_at_a_time_and_stages_overlap_3_4() {
    let p = TrtLlmParams {
        max_batch_size: 2,
        ..params()
    };
    let reqs: Vec<Req> = (0..4).map(|_| req(0, 16, 10)).collect();
    let r = staged(&p, 10_000, 2, &reqs);
    // Two micro-batches of two requests take turns.
    let turns: Vec<u32> = r.rows[2..6].iter().map(|r| r.decodes()[0]).collect();
    assert_eq!(turns, [0, 2, 0, 2]);
    assert_eq!(r.rows[3].load.running, 4, "max_batch_size x stages");
}

#[test]
fn max_utilization_looks_two_steps_ahead_with_several_micro_batches_3_2() {
    let p = max_utilization();
    let one = TrtLlm::new(p.resolve(1000, 256, 1).unwrap(), false);
    let two = TrtLlm::new(p.resolve(1000, 256, 2).unwrap(), false);
    let need = |mut t: TrtLlm| {
        let params = SeqParams {
            prompt_tokens: 15,
            max_tokens: 50,
            priority: 0,
            arrival: SimTime::ZERO,
            block_hashes: Vec::new(),
        };
        t.add(0, params).unwrap();
        let mut plan = StepPlan::default();
        t.plan(SimTime::ZERO, &mut plan);
        t.complete(&plan, Given::default());
        t.blocks_for_step(0)
    };
    assert_eq!(
        (need(one), need(two)),
        (0, 1),
        "15 computed: the 17th opens a block"
    );
}

#[test]
fn reuse_covers_at_most_all_but_the_last_prompt_token_3_4() {
    let p = TrtLlmParams {
        enable_kv_cache_reuse: true,
        ..params()
    };
    let with = |at, prompt| Req {
        hashes: vec![1, 2, 3, 4, 5],
        ..req(at, prompt, 2)
    };
    let r = go(
        &p,
        10_000,
        &[with(0, 64), with(9 * STEP, 64), with(20 * STEP, 70)],
    );
    assert_eq!(r.fates[1].prefilled, 16, "three of four blocks");
    assert_eq!(r.fates[2].prefilled, 6, "four blocks");
}

#[test]
fn a_request_whose_next_block_is_being_produced_waits_for_it_3_2() {
    for policy in [
        BatchSchedulerPolicy::GuaranteedNoEvict,
        BatchSchedulerPolicy::MaxUtilization,
    ] {
        let p = TrtLlmParams {
            enable_kv_cache_reuse: true,
            batch_scheduler_policy: policy,
            ..params()
        };
        let with = |last| Req {
            hashes: vec![1, 2, last],
            ..req(0, 50, 4)
        };
        let mut other = req(0, 20, 4);
        other.hashes = vec![9];
        let r = go(&p, 10_000, &[with(3), with(4), other]);
        assert_eq!(r.rows[0].prefills(), [(0, 50), (2, 20)]);
        assert_eq!(
            r.rows[1].prefills(),
            [(1, 18)],
            "two blocks found one step later"
        );
    }
}

#[test]
fn urgent_requests_come_first_in_the_active_list_3_2() {
    let mut late = req(0, 16, 4);
    late.priority = -1;
    let p = TrtLlmParams {
        max_batch_size: 1,
        ..params()
    };
    let r = go(&p, 10_000, &[req(0, 16, 4), late]);
    assert_eq!(r.fates[1].first_step, Some(0));
}

#[test]
fn a_step_tells_what_kept_the_queue_out_3_2() {
    let why = |p: &TrtLlmParams, kv, reqs: &[Req]| go(p, kv, reqs).rows[0].plan.blocked;
    let two = [req(0, 60, 40), req(0, 80, 40)];
    assert_eq!(why(&params(), 128, &two), Blocked::KvFull);
    assert_eq!(why(&max_utilization(), 128, &two), Blocked::KvFull);
    assert_eq!(why(&params(), 1000, &two), Blocked::TokenBudget);
    let mut p = params();
    p.max_batch_size = 1;
    assert_eq!(why(&p, 1000, &two), Blocked::MaxSeqs);
}

fn any_params() -> impl Strategy<Value = TrtLlmParams> {
    (
        1..8u32,
        64..200u32,
        0..3u32,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        0..3u8,
    )
        .prop_map(
            |(batch, tokens, block, chunked, equal, reuse, overlap, policy)| TrtLlmParams {
                overlap_scheduler: overlap,
                max_batch_size: batch,
                max_num_tokens: tokens,
                tokens_per_block: 8 << block,
                enable_chunked_context: chunked,
                context_chunking_policy: if equal {
                    ContextChunkingPolicy::EqualProgress
                } else {
                    ContextChunkingPolicy::FirstComeFirstServed
                },
                enable_kv_cache_reuse: reuse,
                batch_scheduler_policy: [
                    BatchSchedulerPolicy::GuaranteedNoEvict,
                    BatchSchedulerPolicy::MaxUtilization,
                    BatchSchedulerPolicy::StaticBatch,
                ][usize::from(policy)],
                ..TrtLlmParams::default()
            },
        )
}

/// The third request waits for the block that the second one computes, and the fourth goes before it; the step of the fourth still runs when the
/// third could start.
#[test]
fn an_overtaken_request_waits_for_a_place_while_the_one_before_it_is_under_way_3_2() {
    let p = TrtLlmParams {
        max_batch_size: 3,
        max_num_tokens: 64,
        tokens_per_block: 16,
        enable_kv_cache_reuse: true,
        enable_chunked_context: false,
        batch_scheduler_policy: BatchSchedulerPolicy::MaxUtilization,
        overlap_scheduler: true,
        ..TrtLlmParams::default()
    };
    let hashed = |at, prompt, output, own: u64| Req {
        hashes: (0..20)
            .map(|b| b * 1000 + if b < 1 { 0 } else { own })
            .collect(),
        ..req(at, prompt, output)
    };
    let reqs = [
        hashed(0, 1, 4, 0),
        hashed(1001, 16, 1, 1),
        hashed(1001, 16, 1, 0),
        hashed(1355, 1, 1, 1),
    ];
    let r = staged(&p, 160, 1, &reqs);
    assert!(r.rows.iter().all(|row| row.load.running <= 3));
    assert!(r.fates.iter().all(|f| f.finished.is_some()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_admitted_request_finishes_within_the_limits(
        p in any_params(),
        pp in 1..4u32,
        mut reqs in workload(30, 64, 64, 60),
        shared in 0..4u64,
        kv in 160..600u64,
    ) {
        for (i, r) in reqs.iter_mut().enumerate() {
            // Some share a first block or more, some nothing.
            let own = if shared == 0 { i as u64 } else { i as u64 % (shared + 1) };
            r.hashes = (0..20).map(|b| b * 1000 + if b < shared { 0 } else { own }).collect();
        }
        let r = staged(&p, kv, pp, &reqs);
        for row in &r.rows {
            let outgrown = row.plan.entries.len() == 1;
            prop_assert!(row.plan.stats.tokens() <= p.max_num_tokens || outgrown);
            prop_assert!(row.plan.entries.len() as u32 <= p.max_batch_size);
            prop_assert!(row.load.running <= p.max_batch_size * pp);
        }
        if p.batch_scheduler_policy != BatchSchedulerPolicy::MaxUtilization {
            prop_assert!(r.fates.iter().all(|f| f.preempted == 0));
            // What is too little for a unit of one prompt may complete a later one.
            if !p.enable_kv_cache_reuse && !p.enable_chunked_context {
                let firsts: Vec<usize> = r.fates.iter().filter_map(|f| f.first_step).collect();
                prop_assert!(firsts.is_sorted());
            }
        }
    }
}
