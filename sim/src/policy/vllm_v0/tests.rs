//! The rules of serving-policies, by section.

use proptest::prelude::*;

use super::super::testkit::{
    Checks, Req, Row, Run, STEP, assert_fifo, req, run, run_timed, workload,
};
use super::*;

fn params() -> VllmV0Params {
    VllmV0Params {
        max_num_batched_tokens: Some(128),
        max_num_seqs: 8,
        max_model_len: Some(128),
        enable_chunked_prefill: Some(false),
        ..VllmV0Params::default()
    }
}

fn chunked(budget: u32) -> VllmV0Params {
    VllmV0Params {
        max_num_batched_tokens: Some(budget),
        enable_chunked_prefill: Some(true),
        ..params()
    }
}

fn start(p: &VllmV0Params, kv_tokens: u64) -> VllmV0 {
    VllmV0::new(p.resolve(kv_tokens, 4096).unwrap(), true)
}

fn go(p: &VllmV0Params, kv_tokens: u64, reqs: &[Req]) -> Run {
    let mut v = start(p, kv_tokens);
    let checks = Checks {
        block: (!p.enable_prefix_caching).then_some(p.block_size),
        ..Checks::default()
    };
    let r = run(&mut v, reqs, checks);
    v.kv.check();
    r
}

#[test]
fn defaults_depend_on_context_length_and_chunking_1_8() {
    let c = VllmV0Params::default().resolve(100_000, 4096).unwrap();
    assert_eq!((c.max_num_batched_tokens, c.max_num_seqs), (4096, 256));
    assert!(!c.enable_chunked_prefill);
    assert_eq!((c.blocks, c.watermark_blocks), (6250, 62));
    let c = VllmV0Params::default().resolve(200_000, 131_072).unwrap();
    assert!(c.enable_chunked_prefill);
    assert_eq!(c.max_num_batched_tokens, 2048);
    let p = VllmV0Params {
        max_num_partial_prefills: 3,
        ..VllmV0Params::default()
    };
    let c = p.resolve(200_000, 131_072).unwrap();
    assert_eq!(
        c.long_prefill_token_threshold, 5242,
        "4 % of the context length"
    );
}

#[test]
fn start_up_refuses_what_the_engine_refuses_1_8() {
    let refused = |change: &dyn Fn(&mut VllmV0Params)| {
        let mut p = params();
        change(&mut p);
        p.resolve(1000, 4096).unwrap_err().param
    };
    assert_eq!(
        refused(&|p| p.preemption_mode = PreemptionMode::Swap),
        "preemption_mode"
    );
    assert_eq!(refused(&|p| p.block_size = 0), "block_size");
    assert_eq!(
        refused(&|p| p.max_num_batched_tokens = Some(127)),
        "max_num_batched_tokens"
    );
    assert_eq!(
        refused(&|p| {
            p.max_num_seqs = 129;
        }),
        "max_num_batched_tokens"
    );
    assert_eq!(refused(&|p| p.max_model_len = Some(1001)), "max_model_len");
    assert_eq!(refused(&|p| p.max_model_len = Some(5000)), "max_model_len");
    assert_eq!(
        refused(&|p| p.max_num_partial_prefills = 2),
        "max_num_partial_prefills"
    );
    assert_eq!(
        refused(&|p| p.max_long_partial_prefills = 2),
        "max_long_partial_prefills"
    );
    assert_eq!(
        refused(&|p| p.scheduler_delay_factor = -1.0),
        "scheduler_delay_factor"
    );
    assert_eq!(refused(&|p| p.watermark = 1.0), "watermark");
    assert_eq!(
        refused(&|p| {
            *p = chunked(24);
            p.enable_prefix_caching = true;
            p.max_num_partial_prefills = 2;
        }),
        "max_num_batched_tokens"
    );
    assert_eq!(
        refused(&|p| p.long_prefill_token_threshold = 129),
        "long_prefill_token_threshold"
    );
}

#[test]
fn a_step_is_either_prefills_or_decodes_1_8() {
    let r = go(
        &params(),
        1000,
        &[req(0, 50, 9), req(1, 60, 9), req(1, 70, 9)],
    );
    assert_eq!(
        (r.rows[1].prefills(), r.rows[1].decodes()),
        (vec![(1, 60)], vec![])
    );
    assert_eq!(
        r.rows[2].prefills(),
        [(2, 70)],
        "130 > 128: the third takes a step of its own"
    );
    assert_eq!(r.rows[3].decodes(), [0, 1, 2]);
}

#[test]
fn seats_limit_new_prompts_1_8() {
    let mut p = params();
    p.max_num_seqs = 2;
    let r = go(&p, 1000, &[req(0, 8, 3), req(0, 8, 5), req(0, 8, 2)]);
    assert_eq!(r.rows[0].prefills().len(), 2);
    assert_eq!(r.fates[2].first_step, Some(3));
}

#[test]
fn admission_keeps_the_watermark_free_and_holds_the_queue_1_8() {
    let mut p = params();
    p.watermark = 0.2;
    // 10 blocks, 2 to stay free: 5 + 3 go, 1 more does not, nor does it let the next one pass.
    let reqs = [req(0, 80, 2), req(0, 48, 2), req(0, 16, 2), req(0, 1, 2)];
    p.max_num_batched_tokens = Some(512);
    let r = go(&p, 160, &reqs);
    assert_eq!(r.rows[0].prefills(), [(0, 80), (1, 48)]);
    assert_fifo(&r);
}

#[test]
fn a_prompt_that_would_break_the_watermark_even_alone_is_dropped_1_8() {
    let mut p = params();
    p.watermark = 0.5;
    let r = go(&p, 160, &[req(0, 81, 2), req(0, 80, 2)]);
    assert!(r.fates[0].failed);
    assert_eq!(r.fates[1].tokens, 2);
}

#[test]
fn lack_of_blocks_preempts_the_last_and_recomputes_it_1_8() {
    let mut p = params();
    p.watermark = 0.0;
    p.max_model_len = Some(80);
    // Five blocks; both grow from 1 to 3.
    let r = go(&p, 80, &[req(0, 16, 33), req(0, 16, 33)]);
    assert_eq!((r.fates[0].preempted, r.fates[1].preempted), (0, 1));
    let at = r
        .rows
        .iter()
        .position(|r| !r.plan.preempted.is_empty())
        .unwrap();
    assert_eq!(at, 17);
    assert_eq!(r.rows[at].decodes(), [0]);
    assert_eq!(r.fates[1].prefilled, 16 + 33);
    assert_eq!(r.fates[1].tokens, 33);
}

#[test]
fn preempted_requests_go_to_the_front_in_the_order_of_arrival_1_8() {
    let mut p = params();
    p.watermark = 0.0;
    p.max_model_len = Some(96);
    let mut reqs: Vec<Req> = (0..3).map(|_| req(0, 31, 50)).collect();
    reqs.push(req(5 * STEP, 90, 2));
    let r = go(&p, 96, &reqs);
    assert_eq!(r.fates[0].preempted, 0);
    assert!(r.fates[1].preempted > 0 && r.fates[2].preempted > 0);
    let ends: Vec<u64> = r.fates.iter().filter_map(|f| f.finished).collect();
    assert!(ends.is_sorted(), "{ends:?}");
}

#[test]
fn the_delay_factor_holds_new_prompts_while_others_run_1_8() {
    let mut p = params();
    p.scheduler_delay_factor = 2.0;
    let mut v = start(&p, 1000);
    // Prefills take 10 us, decodes 1 us.
    let took = |plan: &StepPlan| {
        if plan.stats.prefill_seqs > 0 {
            10_000
        } else {
            1_000
        }
    };
    let reqs = [req(0, 16, 100), req(12_500, 16, 5)];
    let r = run_timed(&mut v, &reqs, Checks::default(), took);
    let at = r.rows[r.fates[1].first_step.unwrap()].at;
    assert_eq!(
        at, 33_000,
        "first step boundary more than 20 us after its arrival"
    );
}

#[test]
fn chunked_steps_hold_decodes_first_and_fill_up_with_prefills_1_8() {
    let r = go(
        &chunked(32),
        1000,
        &[req(0, 20, 9), req(0, 50, 9), req(0, 30, 9)],
    );
    assert_eq!(r.rows[0].prefills(), [(0, 20), (1, 12)]);
    assert_eq!(
        (r.rows[1].decodes(), r.rows[1].prefills()),
        (vec![0], vec![(1, 31)])
    );
    assert_eq!(r.rows[2].prefills(), [(1, 7), (2, 24)]);
    assert_eq!(r.rows[3].prefills(), [(2, 6)]);
    assert!(r.rows.iter().all(|r| r.plan.stats.tokens() <= 32));
}

#[test]
fn with_prefix_caching_unfinished_chunks_are_whole_blocks_1_8() {
    let mut p = chunked(40);
    p.enable_prefix_caching = true;
    let r = go(&p, 1000, &[req(0, 100, 3)]);
    let chunks: Vec<(u32, u32)> = r.rows.iter().flat_map(Row::prefills).collect();
    assert_eq!(chunks, [(0, 32), (0, 32), (0, 36)]);
}

#[test]
fn several_partial_prefills_share_the_budget_and_long_ones_are_limited_1_8() {
    let mut p = chunked(60);
    p.max_num_partial_prefills = 3;
    p.long_prefill_token_threshold = 50;
    let r = go(
        &p,
        1000,
        &[req(0, 100, 3), req(0, 90, 3), req(0, 25, 3), req(0, 25, 3)],
    );
    // 20 tokens each; the second long prompt stands aside until the rest of the first is short.
    assert_eq!(r.rows[0].prefills(), [(0, 20), (2, 20), (3, 20)]);
    let before = &r.rows[..r.fates[1].first_step.unwrap()];
    let first: Vec<u32> = before
        .iter()
        .flat_map(Row::prefills)
        .filter(|p| p.0 == 0)
        .map(|p| p.1)
        .collect();
    assert!(
        first.iter().sum::<u32>() >= 50,
        "its rest is no longer long: {first:?}"
    );
    assert!(
        first[..first.len() - 1].iter().sum::<u32>() < 50,
        "and was until then: {first:?}"
    );
}

#[test]
fn prefix_hits_skip_computation_but_not_the_block_test_1_8() {
    let mut p = params();
    p.enable_prefix_caching = true;
    let with = |at| Req {
        hashes: vec![1, 2, 3, 4],
        ..req(at, 60, 3)
    };
    let r = go(&p, 1000, &[with(0), with(1)]);
    assert_eq!(r.fates[0].prefilled, 60);
    assert_eq!(r.fates[1].prefilled, 12);
    assert_eq!(r.rows[1].plan.cached_tokens, 48);
}

#[test]
fn a_step_tells_what_kept_the_queue_out_1_8() {
    let why = |p: &VllmV0Params, kv, reqs: &[Req]| go(p, kv, reqs).rows[0].plan.blocked;
    let two = [req(0, 60, 40), req(0, 80, 40)];
    assert_eq!(why(&params(), 128, &two), Blocked::KvFull);
    assert_eq!(why(&params(), 1000, &two), Blocked::TokenBudget);
    let mut p = params();
    p.max_num_seqs = 1;
    assert_eq!(why(&p, 1000, &two), Blocked::MaxSeqs);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_admitted_request_finishes_unless_the_watermark_forbids_it(
        is_chunked: bool,
        caching: bool,
        seqs in 1..9u32,
        budget in 48..120u32,
        partial in 1..4u32,
        watermark in 0.0..0.1f64,
        delay in 0..3u32,
        kv in 128..400u64,
        mut reqs in workload(30, 64, 64, 60),
    ) {
        let mut p = if is_chunked { chunked(budget) } else { params() };
        p.max_num_seqs = seqs;
        p.watermark = watermark;
        p.enable_prefix_caching = caching;
        p.scheduler_delay_factor = f64::from(delay);
        if is_chunked {
            p.max_num_partial_prefills = partial;
            p.long_prefill_token_threshold = 30;
        }
        for (i, r) in reqs.iter_mut().enumerate() {
            r.hashes = (0..8).map(|b| b * 1000 + if b < 2 { 0 } else { i as u64 % 3 }).collect();
        }
        let r = go(&p, kv, &reqs);
        let usable = kv / 16 - ((kv / 16) as f64 * watermark) as u64;
        for (f, q) in r.fates.iter().zip(&reqs) {
            prop_assert!(!f.failed || u64::from((q.prompt + f.tokens).div_ceil(16)) > usable);
        }
        for row in &r.rows {
            prop_assert!(row.load.running <= seqs);
            prop_assert!(!is_chunked || row.plan.stats.tokens() <= budget);
            prop_assert!(is_chunked || row.prefills().is_empty() || row.decodes().is_empty());
        }
        if !is_chunked || partial == 1 {
            assert_fifo(&r);
        }
    }
}
