//! The rules of serving-policies, by section.

use proptest::prelude::*;

use super::super::testkit::{Checks, Req, Run, STEP, assert_fifo, req, run, workload};
use super::*;

fn v2() -> TgiParams {
    TgiParams {
        max_input_tokens: Some(100),
        max_total_tokens: Some(200),
        max_batch_prefill_tokens: Some(200),
        block_size: Some(1),
        ..TgiParams::default()
    }
}

fn v3() -> TgiParams {
    TgiParams {
        version: TgiVersion::V3,
        ..v2()
    }
}

fn server(params: &TgiParams, kv_tokens: u64) -> Tgi {
    Tgi::new(params.resolve(kv_tokens, 4096).unwrap(), true)
}

fn go(params: &TgiParams, kv_tokens: u64, reqs: &[Req]) -> Run {
    let checks = Checks {
        exact_stats: params.paged,
        // Without shared content there is nothing to hit, and blocks cover what is computed.
        block: (params.paged && reqs.iter().all(|r| r.hashes.is_empty()))
            .then(|| params.block_size.unwrap_or(16)),
    };
    run(&mut server(params, kv_tokens), reqs, checks)
}

#[test]
fn start_up_fills_the_defaults_of_each_version_2_1() {
    let c = TgiParams::default().resolve(20_000, 4096).unwrap();
    assert_eq!((c.max_input_tokens, c.max_total_tokens), (1024, 2048));
    assert_eq!(c.max_batch_prefill_tokens, 4096);
    assert_eq!((c.waiting_served_ratio, c.max_waiting_tokens), (1.2, 20));
    assert_eq!((c.max_concurrent_requests, c.block_size), (128, 16));
    assert_eq!(c.max_batch_total_tokens, 20_000);
    assert!(!c.prefill_chunking && c.warnings.is_empty());

    let p = TgiParams {
        version: TgiVersion::V3,
        ..TgiParams::default()
    };
    let c = p.resolve(20_001, 131_072).unwrap();
    assert_eq!((c.max_input_tokens, c.max_total_tokens), (19_999, 20_000));
    assert_eq!((c.max_batch_prefill_tokens, c.block_size), (4096, 1));
    assert_eq!(c.waiting_served_ratio, 0.3);
    assert!(c.prefill_chunking && c.prefix_caching);

    let p = TgiParams {
        paged: false,
        ..TgiParams::default()
    };
    assert_eq!(
        p.resolve(20_000, 4096).unwrap().max_batch_total_tokens,
        16_000
    );
}

#[test]
fn start_up_refuses_what_the_launcher_refuses_2_1() {
    let refused = |change: &dyn Fn(&mut TgiParams)| {
        let mut p = v2();
        change(&mut p);
        p.resolve(1000, 4096).unwrap_err().param
    };
    assert_eq!(
        refused(&|p| p.max_input_tokens = Some(200)),
        "max_input_tokens"
    );
    assert_eq!(
        refused(&|p| p.max_batch_prefill_tokens = Some(99)),
        "max_batch_prefill_tokens"
    );
    assert_eq!(
        refused(&|p| p.max_batch_prefill_tokens = Some(1001)),
        "max_batch_prefill_tokens"
    );
    assert_eq!(
        refused(&|p| p.max_total_tokens = Some(1001)),
        "max_total_tokens"
    );
    assert_eq!(
        refused(&|p| p.max_total_tokens = Some(5000)),
        "max_total_tokens"
    );
    assert_eq!(
        refused(&|p| p.prefill_chunking = Some(true)),
        "prefill_chunking"
    );
    assert_eq!(
        refused(&|p| p.prefix_caching = Some(true)),
        "prefix_caching"
    );
    assert_eq!(refused(&|p| p.block_size = Some(0)), "block_size");
    assert_eq!(
        refused(&|p| p.waiting_served_ratio = Some(f32::NAN)),
        "waiting_served_ratio"
    );
    let mut p = v3();
    p.max_batch_size = Some(4);
    assert_eq!(p.resolve(1000, 4096).unwrap_err().param, "max_batch_size");
    let e = v2().resolve(150, 4096).unwrap_err().to_string();
    assert_eq!(
        e,
        "TGI: max_total_tokens: must be <= max_batch_total_tokens (150), got 200"
    );
    // A prefill budget below the longest prompt is fine once prompts can be split.
    let mut p = v3();
    p.max_batch_prefill_tokens = Some(32);
    assert!(p.resolve(1000, 4096).is_ok());
}

#[test]
fn a_given_total_budget_is_ignored_with_a_warning_on_paged_servers_2_1() {
    let mut p = v2();
    p.max_batch_total_tokens = Some(500);
    let c = p.resolve(1000, 4096).unwrap();
    assert_eq!(c.max_batch_total_tokens, 1000);
    assert_eq!(c.warnings.len(), 1);
}

#[test]
fn one_request_more_than_max_concurrent_requests_is_overloaded_2_1() {
    let mut p = v2();
    p.max_concurrent_requests = 2;
    let r = go(
        &p,
        1000,
        &[
            req(0, 10, 5),
            req(0, 10, 5),
            req(0, 10, 5),
            req(9 * STEP, 10, 1),
        ],
    );
    assert_eq!(r.fates[2].rejected, Some(RejectReason::Overloaded));
    assert_eq!(
        r.fates[3].rejected, None,
        "a finished request gives its place back"
    );
}

#[test]
fn too_long_prompts_and_totals_are_refused_2_1() {
    let r = go(
        &v2(),
        1000,
        &[req(0, 101, 5), req(0, 100, 101), req(0, 100, 100)],
    );
    assert_eq!(r.fates[0].rejected, Some(RejectReason::TooLong));
    assert_eq!(r.fates[1].rejected, Some(RejectReason::TooLong));
    assert_eq!(r.fates[2].tokens, 100);
}

#[test]
fn the_first_token_comes_with_the_prefill_2_4() {
    let r = go(&v2(), 1000, &[req(0, 50, 3)]);
    assert_eq!(r.rows.len(), 3);
    assert_eq!(r.rows[0].prefills(), [(0, 50)]);
    assert_eq!(r.fates[0].first_token, Some(STEP));
    assert_eq!(r.fates[0].finished, Some(3 * STEP));
    assert_eq!(r.rows[1].plan.stats.decode_ctx_sum, 51);
}

#[test]
fn without_chunking_new_requests_are_prefilled_alone_and_then_all_decode_2_4() {
    let mut p = v2();
    p.waiting_served_ratio = Some(1.0);
    let r = go(&p, 1000, &[req(0, 50, 10), req(1, 60, 10)]);
    assert_eq!(r.rows[0].prefills(), [(0, 50)]);
    assert_eq!(
        (r.rows[1].prefills(), r.rows[1].decodes()),
        (vec![(1, 60)], vec![])
    );
    assert_eq!(r.rows[2].decodes(), [0, 1]);
}

#[test]
fn a_prefill_that_joins_is_followed_by_a_decode_even_if_more_wait_2_4() {
    let mut p = v2();
    p.waiting_served_ratio = Some(0.0);
    p.max_batch_prefill_tokens = Some(100);
    let r = go(
        &p,
        1000,
        &[req(0, 90, 9), req(0, 90, 9), req(0, 90, 9), req(0, 90, 9)],
    );
    let kinds: Vec<usize> = r.rows[..6].iter().map(|r| r.decodes().len()).collect();
    // The first prefill may be followed by another at once; after that one decode comes between any two.
    assert_eq!(kinds, [0, 0, 2, 0, 3, 0]);
}

#[test]
fn new_requests_wait_until_they_number_a_share_of_the_running_ones_2_4() {
    // Four run; floor(4 x 1.2) = 4 must wait before they may interrupt.
    let mut reqs: Vec<Req> = (0..4).map(|_| req(0, 10, 40)).collect();
    reqs.extend((0..4).map(|i| req(3 * STEP + i * STEP, 10, 40)));
    let r = go(&v2(), 2000, &reqs);
    let first = r.fates[4].first_step.unwrap();
    assert_eq!(r.fates[7].first_step, Some(first), "all four join at once");
    assert_eq!(r.rows[first].at, 6 * STEP, "when the fourth is there");
}

#[test]
fn after_max_waiting_tokens_steps_even_one_request_joins_2_4() {
    let mut reqs: Vec<Req> = (0..4).map(|_| req(0, 10, 60)).collect();
    reqs.push(req(2 * STEP, 10, 5));
    let mut p = v2();
    p.max_waiting_tokens = 7;
    let r = go(&p, 2000, &reqs);
    // The counter is 1 after the prefill and grows by one per decode: 7 after six decodes.
    assert_eq!(r.fates[4].first_step, Some(7));
}

#[test]
fn admission_reserves_prompt_and_max_new_tokens_2_3() {
    // 150 tokens to be taken in, 149 held once running: the last one is never written. Real outputs do not matter.
    let mut a = req(0, 100, 2);
    a.max = 50;
    let b = a.clone();
    let r = go(&v2(), 298, &[a.clone(), b.clone()]);
    assert_eq!(r.fates[1].first_step, Some(2));
    let r = go(&v2(), 300, &[a, b]);
    assert_eq!(r.fates[1].first_step, Some(0));
}

#[test]
fn a_v2_budget_rounds_prompt_and_output_up_to_blocks_apart_2_3() {
    // 17 + 15 tokens are two blocks of 16, but count as 32 + 16.
    let p = TgiParams {
        block_size: Some(16),
        max_input_tokens: Some(20),
        max_total_tokens: Some(40),
        max_batch_prefill_tokens: Some(64),
        ..TgiParams::default()
    };
    let r = go(&p, 80, &[req(0, 17, 15), req(0, 17, 15)]);
    assert_eq!(r.rows[0].prefills(), [(0, 17)]);
    assert_eq!(r.rows[0].load.kv_used_blocks, 2);
    // Once the first runs it holds its two real blocks, and the second's 48 fit the remaining 48.
    assert_eq!(r.rows[1].prefills(), [(1, 17)]);
}

#[test]
fn the_prefill_budget_stops_a_batch_and_order_is_kept_2_3() {
    // 100 + 90 fit into 200, 20 more do not; the small fourth one does not overtake.
    let r = go(
        &v2(),
        2000,
        &[req(0, 100, 5), req(0, 90, 5), req(0, 20, 5), req(0, 5, 5)],
    );
    assert_eq!(r.rows[0].prefills(), [(0, 100), (1, 90)]);
    assert_fifo(&r);
}

#[test]
fn padded_back_ends_count_and_compute_the_longest_prompt_2_3() {
    let p = TgiParams {
        paged: false,
        max_batch_total_tokens: Some(1000),
        ..v2()
    };
    // 2 x 100 fits the prefill budget of 200, 3 x 100 does not, although 100 + 10 + 10 would.
    let r = go(&p, 1000, &[req(0, 100, 5), req(0, 10, 5), req(0, 10, 5)]);
    assert_eq!(r.rows[0].prefills(), [(0, 100), (1, 10)]);
    let s = r.rows[0].plan.stats;
    assert_eq!((s.prefill_seqs, s.prefill_tokens), (2, 200));
    let d = r.rows.iter().find(|r| !r.decodes().is_empty()).unwrap();
    assert_eq!(d.plan.stats.decode_ctx_sum, 101 * d.decodes().len() as u64);
}

#[test]
fn max_batch_size_caps_the_running_batch_2_4() {
    let p = TgiParams {
        max_batch_size: Some(2),
        waiting_served_ratio: Some(0.0),
        ..v2()
    };
    let r = go(&p, 2000, &[req(0, 10, 5), req(0, 10, 9), req(0, 10, 5)]);
    assert!(r.rows.iter().all(|r| r.load.running <= 2));
    assert_eq!(r.rows[0].prefills().len(), 2);
}

#[test]
fn a_request_that_rounding_makes_too_big_fails_instead_of_blocking_for_ever_2_3() {
    let p = TgiParams {
        block_size: Some(16),
        max_input_tokens: Some(63),
        max_total_tokens: Some(64),
        max_batch_prefill_tokens: Some(64),
        ..TgiParams::default()
    };
    let r = go(&p, 64, &[req(0, 33, 31), req(0, 16, 4)]);
    assert!(r.fates[0].failed, "48 + 32 > 64");
    assert_eq!(r.fates[1].tokens, 4);
}

#[test]
fn v3_prompts_share_a_forward_with_decodes_and_fill_the_budget_2_3() {
    let p = TgiParams {
        max_batch_prefill_tokens: Some(40),
        ..v3()
    };
    let r = go(&p, 2000, &[req(0, 30, 20), req(0, 50, 5)]);
    // 30 fit whole, the second gets the 10 that are left.
    assert_eq!(r.rows[0].prefills(), [(0, 30), (1, 10)]);
    assert_eq!(r.fates[0].first_token, Some(STEP));
    // Its rest is 40, one token of the budget is left to the other request.
    assert_eq!(r.rows[1].decodes(), [0]);
    assert_eq!(r.rows[1].prefills(), [(1, 39)]);
    assert_eq!(r.rows[2].prefills(), [(1, 1)]);
    assert_eq!(r.fates[1].first_token, Some(3 * STEP));
}

#[test]
fn v3_new_requests_get_what_the_running_batch_leaves_of_the_budget_2_4() {
    let p = TgiParams {
        max_batch_prefill_tokens: Some(40),
        ..v3()
    };
    let r = go(&p, 2000, &[req(0, 10, 20), req(0, 10, 20), req(1, 60, 5)]);
    assert_eq!(r.rows[1].decodes(), [0, 1]);
    assert_eq!(r.rows[1].prefills(), [(2, 38)]);
}

#[test]
fn v3_admission_is_bound_by_blocks_with_block_zero_set_aside_2_3() {
    // 100 + 50 - 1 blocks each.
    let reqs = [req(0, 100, 50), req(0, 100, 50)];
    assert_eq!(go(&v3(), 298, &reqs).rows[0].load.running, 1);
    assert_eq!(go(&v3(), 299, &reqs).rows[0].load.running, 2);
}

#[test]
fn v3_finds_a_finished_prompt_whole_but_computes_its_last_token_2_3() {
    let p = TgiParams {
        block_size: Some(4),
        ..v3()
    };
    let with = |at, prompt| Req {
        hashes: vec![1, 2, 3, 4],
        ..req(at, prompt, 2)
    };
    let r = go(
        &p,
        2000,
        &[
            with(0, 16),
            with(1, 16),
            with(9 * STEP, 16),
            with(20 * STEP, 15),
        ],
    );
    assert_eq!(r.fates[0].prefilled, 16);
    assert_eq!(
        r.fates[1].prefilled, 16,
        "a prompt becomes findable when its request ends"
    );
    assert_eq!(r.fates[2].prefilled, 1);
    assert_eq!(r.fates[3].prefilled, 3, "three blocks of four");
    assert_eq!(
        r.rows.iter().map(|r| r.plan.cached_tokens).sum::<u64>(),
        15 + 12
    );
}

#[test]
fn a_client_that_leaves_frees_its_place_at_once_and_its_kv_after_the_forward_2_4() {
    let mut p = v2();
    p.max_concurrent_requests = 1;
    let mut gone = req(0, 50, 100);
    gone.leaves = Some(STEP + 1);
    let r = go(&p, 1000, &[gone, req(STEP + 2, 50, 2)]);
    assert!(r.fates[0].cancelled);
    assert_eq!(r.fates[1].rejected, None);
    assert_eq!(r.fates[1].first_token, Some(3 * STEP));
}

#[test]
fn a_step_tells_what_kept_the_queue_out_2_3() {
    let why = |p: &TgiParams, kv, reqs: &[Req]| go(p, kv, reqs).rows[0].plan.blocked;
    let two = [req(0, 100, 50), req(0, 90, 50)];
    assert_eq!(why(&v2(), 2000, &two), Blocked::Nothing);
    assert_eq!(why(&v2(), 220, &two), Blocked::KvFull);
    assert_eq!(why(&v3(), 220, &two), Blocked::KvFull);
    let mut p = v2();
    p.max_batch_prefill_tokens = Some(120);
    assert_eq!(why(&p, 2000, &two), Blocked::TokenBudget);
    p.max_batch_size = Some(1);
    assert_eq!(why(&p, 2000, &two), Blocked::MaxSeqs);
}

fn any_params() -> impl Strategy<Value = TgiParams> {
    let knobs = (
        0..4u8,
        1..=16u32,
        prop::option::of(1..6u32),
        0.0..2.0f32,
        0..30u32,
        64..300u32,
        3..40u32,
    );
    knobs.prop_map(
        |(kind, block, cap, ratio, wait, prefill, permits)| TgiParams {
            version: [TgiVersion::V2, TgiVersion::V3][usize::from(kind >= 2)],
            max_concurrent_requests: permits,
            max_input_tokens: Some(64),
            max_total_tokens: Some(128),
            max_batch_prefill_tokens: Some(prefill),
            max_batch_total_tokens: (kind == 1).then_some(300),
            waiting_served_ratio: Some(ratio),
            max_waiting_tokens: wait,
            max_batch_size: if kind == 3 { None } else { cap },
            prefill_chunking: Some(kind == 3),
            prefix_caching: None,
            block_size: Some(block),
            paged: kind != 1,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_admitted_request_finishes_in_order_within_its_reservation(
        p in any_params(),
        reqs in workload(30, 64, 64, 60),
    ) {
        let r = go(&p, 400, &reqs);
        assert_fifo(&r);
        for (row, next) in r.rows.iter().zip(&r.rows[1..]) {
            prop_assert!(row.plan.preempted.is_empty());
            let c = p.prefill_chunking == Some(true);
            prop_assert!(c || row.prefills().is_empty() || row.decodes().is_empty());
            prop_assert!(row.at < next.at);
        }
    }
}
