//! Servers of prompts and of decodes (serving-policies 6.4), and drafts that are verified (7.8).

use hwmodels::ops::GraphMode;

use super::*;
use crate::policy::KvMove;

fn params() -> SglangParams {
    SglangParams {
        chunked_prefill_size: Some(64),
        disable_overlap_schedule: true,
        ..SglangParams::default()
    }
}

fn server(p: &SglangParams, mode: DisaggregationMode, kv_tokens: u64) -> Sglang {
    Sglang::new(
        p.resolve_for(mode, kv_tokens, 1 << 20, None, 1).unwrap(),
        false,
    )
}

fn add(s: &mut Sglang, id: ReqId, prompt: u32, max: u32) {
    let params = SeqParams {
        prompt_tokens: prompt,
        max_tokens: max,
        priority: 0,
        arrival: SimTime(0),
        block_hashes: Vec::new(),
    };
    s.add(id, params).unwrap();
}

/// Adds a request whose prompt another server has computed, with its first token.
fn add_made(s: &mut Sglang, id: ReqId, prompt: u32, max: u32) {
    add(s, id, prompt, max);
    s.expect_kv(
        id,
        RemoteKv {
            tokens: prompt,
            outputs: 1,
        },
    );
}

fn plan(s: &mut Sglang) -> (bool, StepPlan) {
    let mut plan = StepPlan::default();
    let runs = s.plan(SimTime(0), &mut plan);
    (runs, plan)
}

fn wanted(plan: &StepPlan) -> Vec<(ReqId, u32)> {
    let inwards = plan.moves.iter().filter(|m| m.inwards);
    inwards.map(|m: &KvMove| (m.id, m.tokens)).collect()
}

#[test]
fn a_server_of_prompts_never_decodes_and_keeps_seats_until_kv_has_gone_6_4() {
    let p = SglangParams {
        max_running_requests: Some(2),
        disable_overlap_schedule: false,
        ..params()
    };
    let mut s = server(&p, DisaggregationMode::Prefill, 1000);
    (0..4).for_each(|id| add(&mut s, id, 40, 1));
    let (runs, first) = plan(&mut s);
    assert!(runs && first.entries.len() == 2, "{:?}", first.entries);
    // Two at once: 40 + 24 tokens; the second goes on in a step that is chosen while the first runs.
    let (runs, second) = plan(&mut s);
    assert!(runs && second.entries.iter().all(|e| !e.decode));
    assert_eq!(second.entries.len(), 1, "both seats are taken");
    let kept = |kept: &'static [ReqId]| Given {
        kept,
        ..Given::default()
    };
    s.complete(&first, kept(&[0]));
    s.complete(&second, kept(&[1]));
    assert!(!plan(&mut s).0, "nobody else has a seat");
    assert_eq!(s.load().kv_used_blocks, 80);
    s.sent(0);
    assert_eq!(s.load().kv_used_blocks, 40);
    let (runs, third) = plan(&mut s);
    assert!(runs && third.entries[0].id == 2);
    assert_eq!(s.load().waiting, 1);
}

#[test]
fn a_server_of_decodes_sets_prompts_aside_and_room_for_512_decodes_each_6_4() {
    let mut s = server(&params(), DisaggregationMode::Decode, 2000);
    (0..4).for_each(|id| add_made(&mut s, id, 100, 200));
    let (runs, first) = plan(&mut s);
    assert!(!runs, "nothing has come");
    // 612 each of 2000.
    assert_eq!(wanted(&first), [(0, 100), (1, 100), (2, 100)]);
    assert_eq!(first.blocked, Blocked::KvFull);
    s.received(1);
    let (runs, second) = plan(&mut s);
    assert!(runs);
    assert_eq!(second.admitted, [1]);
    let e = &second.entries[0];
    assert_eq!((e.id, e.context, e.tokens, e.decode), (1, 100, 1, true));
    s.complete(&second, Given::one_each(&[]));
    assert_eq!(s.load().running, 1);
    // Whoever has come joins before the next step; the others run on.
    s.received(0);
    let (_, third) = plan(&mut s);
    assert_eq!((third.entries.len(), &third.admitted[..]), (2, &[0][..]));
}

#[test]
fn seats_count_those_whose_kv_is_on_the_way_6_4() {
    let few = SglangParams {
        max_running_requests: Some(2),
        ..params()
    };
    let mut s = server(&few, DisaggregationMode::Decode, 100_000);
    (0..9).for_each(|id| add_made(&mut s, id, 100, 20));
    let (_, p) = plan(&mut s);
    // Twice as many more than its seats, since there are few.
    assert_eq!((wanted(&p).len(), p.blocked), (6, Blocked::MaxSeqs));
    (0..6).for_each(|id| s.received(id));
    let (_, p) = plan(&mut s);
    assert_eq!(p.entries.len(), 2, "of which two run");
    let many = SglangParams {
        max_running_requests: Some(40),
        ..params()
    };
    let mut s = server(&many, DisaggregationMode::Decode, 100_000);
    (0..50).for_each(|id| add_made(&mut s, id, 10, 20));
    assert_eq!(wanted(&plan(&mut s).1).len(), 40);
}

#[test]
fn what_is_retracted_on_a_server_of_decodes_is_not_computed_again_6_4() {
    let mut s = server(&params(), DisaggregationMode::Decode, 700);
    add_made(&mut s, 0, 60, 600);
    assert_eq!(wanted(&plan(&mut s).1).len(), 1);
    s.received(0);
    let step = |s: &mut Sglang| {
        let (runs, p) = plan(s);
        assert!(runs, "{:?}", s.load());
        s.complete(&p, Given::one_each(&[]));
        p
    };
    for _ in 0..20 {
        step(&mut s);
    }
    // The second is let in: 80 tokens are held, and 572 are wanted beside 512 of the first.
    s.kv.release(0);
    assert!(s.kv.admit(0, 640, 0));
    s.seqs[0].done = 640;
    s.seqs[0].generated = 581;
    add(&mut s, 1, 10, 20);
    s.waiting.clear();
    assert!(s.kv.admit(1, 59, 0));
    (s.seqs[1].state, s.seqs[1].done, s.seqs[1].generated) = (State::Running, 59, 50);
    s.seqs[1].has_run = true;
    s.running.push(1);
    // One token is free, and two are wanted: the one with the fewest outputs goes.
    let p = step(&mut s);
    assert_eq!((p.preempted.as_slice(), p.entries.len()), (&[1][..], 1));
    assert_eq!(s.load().waiting, 1);
    let mut ends = StepPlan::default();
    assert!(s.plan(SimTime(0), &mut ends));
    s.complete(&ends, Given::one_each(&[0]));
    let p = step(&mut s);
    let e = &p.entries[0];
    assert_eq!((e.id, e.context, e.tokens), (1, 59, 1), "where it stood");
    assert!(p.admitted.is_empty() && e.decode);
}

#[test]
fn who_leaves_or_loses_its_kv_on_the_way_gives_its_room_back_6_4() {
    let mut s = server(&params(), DisaggregationMode::Decode, 4000);
    (0..4).for_each(|id| add_made(&mut s, id, 100, 20));
    let _ = plan(&mut s);
    s.received(1);
    assert!(!s.kv_lost(0), "SGLang fails the request");
    (0..4).for_each(|id| s.cancel(id));
    let load = s.load();
    assert_eq!((load.running, load.waiting, load.kv_used_blocks), (0, 0, 0));
}

fn drafting(steps: u32) -> SglangParams {
    SglangParams {
        speculative_algorithm: Some(SpeculativeAlgorithm::Eagle),
        speculative_num_steps: Some(steps),
        ..params()
    }
}

#[test]
fn a_decode_verifies_its_drafts_and_keeps_what_was_accepted_7_8() {
    let mut s = server(&drafting(2), DisaggregationMode::Null, 1000);
    assert_eq!(s.acceptance(), [0.8, 0.75]);
    add(&mut s, 0, 10, 50);
    let (_, first) = plan(&mut s);
    s.complete(&first, Given::one_each(&[]));
    let mut contexts = Vec::new();
    for accepted in [3, 1, 2, 3] {
        let (runs, p) = plan(&mut s);
        assert!(runs);
        let e = p.entries[0];
        assert_eq!((e.tokens, e.samples, e.decode), (3, true, true));
        let b = p.stats;
        assert_eq!((b.decode_seqs, b.decode_tokens, b.sampled_seqs), (1, 3, 3));
        assert_eq!(b.decode_ctx_sum, u64::from(e.context) + 3);
        contexts.push(e.context);
        let tokens = [accepted];
        s.complete(
            &p,
            Given {
                tokens: &tokens,
                ..Given::default()
            },
        );
    }
    // The KV of refused drafts is written over.
    assert_eq!(contexts, [10, 13, 14, 16]);
    assert_eq!(s.seqs[0].generated, 10);
    assert_eq!((s.seqs[0].done, s.seqs[0].pending), (19, 0));
}

#[test]
fn drafts_change_the_defaults_that_sglang_changes_7_8() {
    let c = |p: &SglangParams| p.resolve(300_000, 40_960, None, 1).unwrap();
    let p = SglangParams {
        enable_mixed_chunk: true,
        disable_overlap_schedule: false,
        ..drafting(3)
    };
    let with = c(&p);
    assert_eq!((with.verified, with.max_running_requests), (4, 48));
    assert!(!with.overlap && !with.enable_mixed_chunk);
    let second = SglangParams {
        enable_spec_v2: true,
        ..p
    };
    assert!(c(&second).overlap);
    assert_eq!(SglangParams::default().kernels(true).drafts, 0);
    assert_eq!(second.kernels(true).drafts, 3);
}

#[test]
fn pieces_of_prefill_are_captured_from_0_5_10_on_by_plain_servers_without_drafts_7_5() {
    let release = |version: u32| SglangParams {
        version: SglangRelease { patch: version },
        ..SglangParams::default()
    };
    let mode = |p: &SglangParams, plain: bool| p.kernels(plain).graph_mode;
    assert_eq!(mode(&release(9), true), GraphMode::FullDecodeOnly);
    assert_eq!(mode(&release(10), true), GraphMode::FullAndPiecewise);
    assert_eq!(mode(&release(10), false), GraphMode::FullDecodeOnly);
    assert_eq!(mode(&drafting(3), true), GraphMode::FullDecodeOnly);
    // What is given holds.
    let told = SglangParams {
        disable_piecewise_cuda_graph: Some(false),
        ..release(9)
    };
    assert_eq!(mode(&told, false), GraphMode::FullAndPiecewise);
}

#[test]
fn arguments_of_speculation_that_make_no_sense_are_refused_7_8() {
    let wrong = |p: SglangParams| p.resolve(1000, 1000, None, 1).expect_err("refused");
    let e = wrong(SglangParams {
        speculative_num_steps: Some(2),
        ..params()
    });
    assert!(e.param == "speculative_num_steps" && e.problem.contains("speculative_algorithm"));
    let tree = wrong(SglangParams {
        speculative_eagle_topk: Some(4),
        ..drafting(2)
    });
    assert!(tree.param == "speculative_eagle_topk" && tree.problem.contains("tree"));
    let tokens = wrong(SglangParams {
        speculative_num_draft_tokens: Some(2),
        ..drafting(2)
    });
    assert!(tokens.problem.contains('3'), "{}", tokens.problem);
    let rates = wrong(SglangParams {
        speculative_accept_rates: Some(vec![1.5]),
        ..drafting(2)
    });
    assert_eq!(rates.param, "speculative_accept_rates");
    assert_eq!(wrong(drafting(0)).param, "speculative_num_steps");
}
