//! SGLang's rules, one by one (serving-policies 7).

use hwmodels::catalog::Catalog;
use hwmodels::memory::SglangDevice;
use proptest::prelude::*;

use super::super::testkit::{Checks, Req, Run, STEP, assert_fifo, req, run, workload};
use super::*;

fn params(chunk: i64) -> SglangParams {
    SglangParams {
        chunked_prefill_size: Some(chunk),
        disable_overlap_schedule: true,
        ..SglangParams::default()
    }
}

fn config(p: &SglangParams, kv_tokens: u64) -> SglangConfig {
    p.resolve(kv_tokens, 1 << 20, None, 1).unwrap()
}

fn go(p: &SglangParams, kv_tokens: u64, reqs: &[Req]) -> Run {
    let checks = Checks {
        block: Some(p.page_size),
        ..Checks::default()
    };
    run(&mut Sglang::new(config(p, kv_tokens), false), reqs, checks)
}

fn h100(tp: u32) -> SglangDevice {
    SglangDevice::new(14, Catalog::builtin().accelerator("h100").unwrap(), tp, 1)
}

#[test]
fn prompts_come_before_decodes_in_steps_of_their_own_7_2() {
    let r = go(&params(64), 1000, &[req(0, 10, 5), req(1, 20, 5)]);
    assert_eq!(r.rows[0].prefills(), [(0, 10)]);
    assert_eq!(
        (r.rows[1].prefills(), r.rows[1].decodes()),
        (vec![(1, 20)], vec![]),
        "the first request stands still"
    );
    assert_eq!(r.rows[2].decodes(), [0, 1]);
}

#[test]
fn one_prompt_at_a_time_is_split_and_goes_on_first_7_2() {
    let reqs = [req(0, 100, 2), req(0, 30, 2), req(0, 30, 2)];
    let r = go(&params(64), 1000, &reqs);
    let prefills: Vec<_> = r.rows[..3].iter().map(|row| row.prefills()).collect();
    assert_eq!(
        prefills,
        [vec![(0, 64)], vec![(0, 36), (1, 28)], vec![(1, 2), (2, 30)]]
    );
    assert!(r.rows[1].plan.entries[0].samples);
    assert_eq!(r.rows[3].decodes(), [0, 1, 2]);
}

#[test]
fn minus_one_keeps_prompts_whole_and_max_prefill_tokens_bounds_a_step_of_several_7_2() {
    let p = SglangParams {
        max_prefill_tokens: 100,
        ..params(-1)
    };
    let reqs = [req(0, 250, 2), req(0, 60, 2), req(0, 30, 2), req(0, 30, 2)];
    let r = go(&p, 4000, &reqs);
    assert_eq!(
        r.rows[0].prefills(),
        [(0, 250)],
        "the first is taken anyway"
    );
    assert_eq!(r.rows[1].prefills(), [(1, 60), (2, 30)]);
    assert_eq!(r.rows[2].prefills(), [(3, 30)]);
    assert_eq!(r.rows[0].plan.blocked, Blocked::TokenBudget);
}

#[test]
fn mixed_chunks_take_the_decodes_along_within_the_budget_7_2() {
    let p = SglangParams {
        enable_mixed_chunk: true,
        ..params(64)
    };
    let r = go(&p, 1000, &[req(0, 10, 9), req(1, 100, 3)]);
    assert_eq!(
        (r.rows[1].prefills(), r.rows[1].decodes()),
        (vec![(1, 63)], vec![0])
    );
    assert_eq!(r.rows[2].prefills(), [(1, 37)]);
    assert!(r.rows[1].plan.passes.is_empty(), "one forward pass");
}

#[test]
fn admission_reckons_with_a_share_of_what_running_requests_may_want_7_2() {
    let want = |tokens| Req {
        max: tokens,
        ..req(0, 100, 5)
    };
    let second = |conservativeness, max| {
        let p = SglangParams {
            schedule_conservativeness: conservativeness,
            ..params(100)
        };
        let r = go(&p, 1000, &[want(max), want(max)]);
        r.fates[1].first_step.unwrap()
    };
    // 100 + 400 and 100 + 400 of 1000 are one too many; a step later 0.7 x 400 are reckoned for the first.
    assert_eq!(second(1.0, 400), 1);
    assert_eq!(second(1.0, 300), 1);
    // 0.7 x 500 + 100 + 500 of 900.
    assert!(second(1.0, 500) > 1);
    assert_eq!(second(0.5, 500), 1);
}

#[test]
fn no_more_than_4096_outputs_are_reckoned_with_7_2() {
    let want = Req {
        max: 9000,
        ..req(0, 100, 3)
    };
    let r = go(&params(100), 10_000, &[want.clone(), want]);
    assert_eq!(
        r.fates[1].first_step,
        Some(1),
        "0.7 x 4096 + 100 + 4096 of 9900"
    );
}

#[test]
fn a_full_batch_is_looked_at_again_after_the_step_that_saw_an_end_7_2() {
    let p = SglangParams {
        max_running_requests: Some(1),
        ..params(64)
    };
    let r = go(&p, 1000, &[req(0, 10, 4), req(0, 10, 4), req(0, 10, 4)]);
    assert_eq!(r.rows[0].plan.blocked, Blocked::MaxSeqs);
    assert!(r.rows.iter().all(|row| row.load.running <= 1));
    let firsts: Vec<_> = r.fates.iter().map(|f| f.first_step.unwrap()).collect();
    assert_eq!(
        firsts,
        [0, 4, 8],
        "nothing runs that could be looked through"
    );
    // With another that runs on, the seat is free a decode step later.
    let p = SglangParams {
        max_running_requests: Some(2),
        ..p
    };
    let r = go(&p, 1000, &[req(0, 10, 9), req(0, 10, 3), req(0, 10, 3)]);
    assert_eq!(r.fates[1].finished, Some(3 * STEP));
    assert_eq!(r.fates[2].first_step, Some(4));
}

/// Requests that come one after another and are reckoned to want a fourteenth of what they do.
fn careless(patch: u32) -> SglangParams {
    SglangParams {
        schedule_conservativeness: 0.1,
        version: SglangRelease { patch },
        ..params(64)
    }
}

fn first_loss(r: &Run) -> &[ReqId] {
    let lost = r.rows.iter().map(|row| &row.plan.preempted[..]);
    lost.into_iter()
        .find(|p| !p.is_empty())
        .expect("the cache runs out")
}

#[test]
fn retraction_takes_from_those_with_the_fewest_outputs_7_4() {
    let reqs: Vec<Req> = (0..4).map(|i| req(i * 3 * STEP, 12, 60)).collect();
    let r = go(&careless(14), 150, &reqs);
    assert_eq!(first_loss(&r), [3]);
    let row = r.rows.iter().find(|row| !row.plan.preempted.is_empty());
    assert_eq!(row.unwrap().plan.blocked, Blocked::KvFull);
    assert!(r.fates.iter().all(|f| f.tokens == 60));
    // It computes its prompt and outputs again.
    assert!(r.fates[3].prefilled > 12);
}

#[test]
fn of_equals_the_one_with_the_longest_prompt_is_retracted_7_4() {
    let long = |prompt| req(0, prompt, 4500);
    let r = go(&params(64), 8300, &[long(20), long(10)]);
    assert_eq!(
        r.fates[1].first_step,
        Some(0),
        "4096 outputs are reckoned with"
    );
    assert_eq!(first_loss(&r), [0]);
}

#[test]
fn early_releases_make_room_for_twenty_steps_when_they_retract_7_4() {
    let reqs: Vec<Req> = (0..6).map(|i| req(i * 2 * STEP, 10, 40)).collect();
    let lost = |patch| first_loss(&go(&careless(patch), 150, &reqs)).len();
    assert_eq!(lost(14), 1);
    assert!(lost(1) > 1);
}

#[test]
fn the_share_falls_with_decode_steps_and_starts_anew_when_nothing_is_left_7_2() {
    let c = config(&params(64), 1000);
    assert!((c.init_new_token_ratio - 0.7).abs() < 1e-12);
    assert!((c.min_new_token_ratio - 0.098).abs() < 1e-12);
    let mut s = Sglang::new(c.clone(), false);
    let alone = SeqParams {
        prompt_tokens: 10,
        max_tokens: 900,
        priority: 0,
        arrival: SimTime(0),
        block_hashes: Vec::new(),
    };
    s.add(0, alone).unwrap();
    let mut plan = StepPlan::default();
    let mut step = |s: &mut Sglang, stopped: &[ReqId]| {
        assert!(s.plan(SimTime(0), &mut plan));
        s.complete(&plan, Given::one_each(stopped));
    };
    for _ in 0..100 {
        step(&mut s, &[]);
    }
    // The first step was the prompt's.
    let fallen = c.init_new_token_ratio - 99.0 * c.new_token_ratio_decay;
    assert!((s.new_token_ratio - fallen).abs() < 1e-9);
    for _ in 0..600 {
        step(&mut s, &[]);
    }
    assert_eq!(s.new_token_ratio, c.min_new_token_ratio);
    step(&mut s, &[0]);
    assert!(!s.plan(SimTime(0), &mut plan));
    assert_eq!(s.new_token_ratio, 0.7, "an idle server starts anew");
    let high = SglangParams {
        schedule_conservativeness: 3.0,
        ..params(64)
    };
    assert_eq!(config(&high, 1000).init_new_token_ratio, 1.0);
}

#[test]
fn a_retraction_makes_the_share_anew_7_4() {
    let mut s = Sglang::new(config(&careless(14), 150), false);
    for (id, generated) in [(0, 30), (1, 25)] {
        s.add(
            id,
            SeqParams {
                prompt_tokens: 45,
                max_tokens: 50,
                priority: 0,
                arrival: SimTime(0),
                block_hashes: Vec::new(),
            },
        )
        .unwrap();
        assert!(s.kv.admit(id, 45 + generated, 0));
        let seq = &mut s.seqs[id as usize];
        (seq.state, seq.generated, seq.done) = (State::Running, generated, 44 + generated);
        s.running.push(id);
    }
    s.waiting.clear();
    let mut plan = StepPlan::default();
    assert!(s.kv.grow(0, 80));
    s.seqs[0].done = 80;
    s.seqs[0].generated = 36;
    s.seqs[1].done = 70;
    s.retract(&mut plan);
    assert_eq!(plan.preempted, [1]);
    // (36 made + 20 ahead) / (50 + 1), at most 1.
    assert_eq!(s.new_token_ratio, 1.0);
}

/// Names of `n` tokens that begin with `shared` of content `a`.
fn hashes(a: u64, shared: u64, own: u64, n: u64) -> Vec<u64> {
    (0..n)
        .map(|i| if i < shared { a + i } else { own + i })
        .collect()
}

fn with_content(p: &SglangParams, reqs: &[Req]) -> Run {
    run(
        &mut Sglang::new(config(p, 2000), true),
        reqs,
        Checks::default(),
    )
}

#[test]
fn what_others_have_computed_is_found_token_by_token_7_3() {
    let shared = |at, own: u64| Req {
        hashes: hashes(1000, 37, own * 10_000, 60),
        ..req(at, 50, 10)
    };
    let r = with_content(&params(64), &[shared(0, 1), shared(STEP, 2)]);
    assert_eq!(r.fates[1].prefilled, 13, "37 of 50 tokens were there");
    let off = SglangParams {
        disable_radix_cache: true,
        ..params(64)
    };
    let r = with_content(&off, &[shared(0, 1), shared(STEP, 2)]);
    assert_eq!(r.fates[1].prefilled, 50);
}

#[test]
fn a_prompt_that_is_there_whole_computes_its_last_token_again_7_3() {
    let same = |at| Req {
        hashes: hashes(1000, 60, 0, 60),
        ..req(at, 50, 10)
    };
    let r = with_content(&params(64), &[same(0), same(STEP)]);
    assert_eq!(r.fates[1].prefilled, 1);
}

#[test]
fn lpm_takes_the_longest_prefix_first_and_one_of_those_that_begin_alike_7_3() {
    let of = |at, shared: u64, own: u64| Req {
        hashes: hashes(1000, shared, own * 10_000, 60),
        ..req(at, 50, 20)
    };
    let firsts = |policy, chunk, most, reqs: &[Req]| -> (Run, Vec<usize>) {
        let p = SglangParams {
            schedule_policy: policy,
            prefill_max_requests: most,
            ..params(chunk)
        };
        let r = with_content(&p, reqs);
        let firsts = r.fates.iter().map(|f| f.first_step.unwrap()).collect();
        (r, firsts)
    };
    // The first leaves its prompt; then one that shares 10 tokens with it waits before one that shares 45.
    let reqs = [of(0, 50, 1), of(1, 10, 2), of(1, 45, 3)];
    assert_eq!(firsts(SchedulePolicy::Lpm, 64, Some(1), &reqs).1, [0, 2, 1]);
    assert_eq!(
        firsts(SchedulePolicy::Fcfs, 64, Some(1), &reqs).1,
        [0, 1, 2]
    );
    // Two begin alike, and nothing of it is there: the second lets the one behind it go first.
    let alike = [of(0, 40, 1), of(0, 40, 2), of(0, 0, 3)];
    let (r, order) = firsts(SchedulePolicy::Lpm, 100, None, &alike);
    assert_eq!(order, [0, 1, 0]);
    assert_eq!(r.fates[1].prefilled, 10);
}

#[test]
fn lof_takes_the_longest_answer_first_7_3() {
    let p = SglangParams {
        schedule_policy: SchedulePolicy::Lof,
        ..params(10)
    };
    let r = go(&p, 1000, &[req(0, 10, 5), req(0, 10, 9), req(0, 10, 7)]);
    let firsts: Vec<_> = r.fates.iter().map(|f| f.first_step.unwrap()).collect();
    assert_eq!(firsts, [2, 0, 1]);
}

#[test]
fn with_the_overlap_scheduler_the_next_step_is_chosen_before_ends_are_seen_7_7() {
    let p = SglangParams {
        disable_overlap_schedule: false,
        ..params(64)
    };
    let r = go(&p, 1000, &[req(0, 10, 3)]);
    assert_eq!(r.fates[0].finished, Some(3 * STEP));
    assert_eq!(r.rows.len(), 4, "the last step is for nobody");
    assert_eq!(r.rows[3].decodes(), [0]);
    // A request that comes while a step runs is not in the next one, which is chosen already.
    let r = go(&p, 1000, &[req(0, 10, 8), req(STEP / 2, 10, 3)]);
    assert_eq!(r.fates[1].first_step, Some(2));
    assert_eq!(Sglang::new(config(&p, 1000), false).depth(), 2);
}

#[test]
fn what_can_never_run_is_refused_on_arrival_7_1() {
    let p = SglangParams {
        max_queued_requests: Some(1),
        context_length: Some(100),
        ..params(64)
    };
    let reqs = [req(0, 80, 20), req(0, 81, 20), req(0, 10, 5)];
    let r = go(&p, 1000, &reqs);
    assert_eq!(r.fates[1].rejected, Some(RejectReason::TooLong));
    assert_eq!(r.fates[2].rejected, Some(RejectReason::QueueFull));
    let small = go(&params(64), 90, &[req(0, 80, 10)]);
    assert_eq!(small.fates[0].rejected, Some(RejectReason::TooLong));
}

#[test]
fn defaults_follow_device_and_cache_7_1() {
    let of = |p: &SglangParams, kv, dp| p.resolve(kv, 40_960, Some(&h100(2)), dp).unwrap();
    let p = SglangParams::default();
    let c = of(&p, 300_000, 1);
    assert_eq!(
        (c.chunked_prefill_size, c.max_prefill_tokens),
        (Some(8192), 16_384)
    );
    assert_eq!(c.max_running_requests, 3584, "300000 / 40960 x 512");
    assert_eq!(of(&p, 1_000_000, 1).max_running_requests, 4096);
    assert_eq!(of(&p, 1000, 1).max_running_requests, 500);
    let ranks = of(&p, 300_000, 4);
    assert_eq!(ranks.chunked_prefill_size, Some(2048));
    assert!((ranks.init_new_token_ratio - 0.21).abs() < 1e-12);
    let pages = SglangParams {
        page_size: 64,
        max_total_tokens: Some(1000),
        ..SglangParams::default()
    };
    let c = of(&pages, 300_000, 1);
    assert_eq!((c.pages, c.max_total_num_tokens), (15, 960));
}

#[test]
fn graphs_are_captured_as_sglang_does_7_5() {
    let p = SglangParams::default();
    let sizes = p.graph_sizes(Some(&h100(2)));
    assert_eq!(sizes[..8], [1, 2, 4, 8, 12, 16, 24, 32]);
    assert_eq!(sizes.last(), Some(&256));
    let few = SglangParams {
        cuda_graph_max_bs: Some(10),
        ..SglangParams::default()
    };
    assert_eq!(few.graph_sizes(None), [1, 2, 4, 8, 10]);
}

#[test]
fn a_start_that_sglang_refuses_names_the_argument_7_1() {
    let wrong = |p: SglangParams| {
        let e = p.resolve(1000, 1000, None, 1).expect_err("refused");
        (e.param, e.problem)
    };
    let (param, problem) = wrong(SglangParams {
        chunked_prefill_size: Some(0),
        ..SglangParams::default()
    });
    assert_eq!(param, "chunked_prefill_size");
    assert!(problem.contains("-1"), "{problem}");
    let (param, _) = wrong(SglangParams {
        chunked_prefill_size: Some(100),
        page_size: 64,
        ..SglangParams::default()
    });
    assert_eq!(param, "chunked_prefill_size");
    let (param, _) = wrong(SglangParams {
        context_length: Some(2000),
        ..SglangParams::default()
    });
    assert_eq!(param, "context_length");
    let (param, _) = wrong(SglangParams {
        max_total_tokens: Some(2),
        ..SglangParams::default()
    });
    assert_eq!(param, "max_total_tokens");
}

#[test]
fn releases_are_read_as_they_are_written() {
    for (text, patch) in [
        ("0.5.14", Some(14)),
        ("v0.5.1.post1", Some(1)),
        ("0.5.3rc2", Some(3)),
        ("0.5", Some(0)),
        ("0.4.9", None),
        ("0.55.1", None),
    ] {
        let found = SglangRelease::named(text).map(|r| r.patch);
        assert_eq!(found, patch, "{text}");
    }
}

fn random_params() -> impl Strategy<Value = SglangParams> {
    let chunk = prop_oneof![Just(-1i64), (1i64..5).prop_map(|n| n * 16)];
    let policy = prop_oneof![
        Just(SchedulePolicy::Fcfs),
        Just(SchedulePolicy::Lpm),
        Just(SchedulePolicy::Lof)
    ];
    let page = prop_oneof![Just(1u32), Just(4), Just(16)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (chunk, policy, page, flags, 1u32..9, 0u32..12, 1u32..16).prop_map(
        |(chunk, policy, page, (mixed, radix, overlap), seats, careful, patch)| SglangParams {
            version: SglangRelease { patch },
            schedule_policy: policy,
            page_size: page,
            enable_mixed_chunk: mixed,
            disable_radix_cache: radix,
            disable_overlap_schedule: overlap,
            max_running_requests: Some(seats),
            max_prefill_tokens: 128,
            schedule_conservativeness: f64::from(careful) / 8.0,
            ..params(chunk)
        },
    )
}

proptest! {
    /// Whatever comes: limits, order of tokens, conservation, nobody starves (checked by the driver).
    #[test]
    fn random_loads_end_and_keep_the_limits(
        p in random_params(), kv in 160u64..600, shared in any::<bool>(), reqs in workload(30, 80, 40, 60),
    ) {
        let seats = p.max_running_requests.unwrap_or(1);
        let mut reqs = reqs;
        if shared {
            for (i, r) in reqs.iter_mut().enumerate() {
                let all = u64::from(r.prompt + r.output) / u64::from(p.page_size);
                r.hashes = hashes(1, (i as u64 % 5) * 9, 1000 * (i as u64 + 1), all);
            }
        }
        let checks = Checks {
            block: (!shared).then_some(p.page_size),
            ..Checks::default()
        };
        let mut s = Sglang::new(config(&p, kv), shared);
        let r = run(&mut s, &reqs, checks);
        s.kv.check();
        for row in &r.rows {
            prop_assert!(row.load.running <= seats + 1, "{:?}", row.load);
            let chunked = config(&p, kv).chunked_prefill_size;
            if let Some(chunk) = chunked {
                let tokens: u32 = row.prefills().iter().map(|p| p.1).sum();
                prop_assert!(tokens <= chunk);
            }
            if !p.enable_mixed_chunk {
                prop_assert!(row.prefills().is_empty() || row.decodes().is_empty());
            }
        }
        if p.schedule_policy == SchedulePolicy::Fcfs {
            assert_fifo(&r);
        }
    }
}
