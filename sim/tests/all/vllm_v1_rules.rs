//! vLLM V1 against the rules of serving-policies 1.1 to 1.6, one by one.

use sim::kernel::time::SimTime;
use sim::policy::vllm_v1::{SchedulingPolicy, VllmV1, VllmV1Params, VllmVersion};
use sim::policy::{Blocked, Given, Scheduler, SeqParams, StepPlan};
use sim::request::{RejectReason, ReqId};

/// An engine driven by hand, with time standing still.
struct Bench {
    engine: VllmV1,
    plan: StepPlan,
}

impl Bench {
    fn new(change: impl FnOnce(&mut VllmV1Params)) -> Bench {
        let mut params = VllmV1Params {
            max_num_batched_tokens: 64,
            max_num_seqs: 8,
            max_model_len: 256,
            num_gpu_blocks: 101,
            ..VllmV1Params::default()
        };
        change(&mut params);
        Bench {
            engine: VllmV1::new(params),
            plan: StepPlan::default(),
        }
    }

    fn try_add(
        &mut self,
        id: ReqId,
        prompt: u32,
        max: u32,
        priority: i32,
        hashes: &[u64],
    ) -> Result<(), RejectReason> {
        self.engine.add(
            id,
            SeqParams {
                prompt_tokens: prompt,
                max_tokens: max,
                priority,
                arrival: SimTime(u64::from(id)),
                block_hashes: hashes.to_vec(),
            },
        )
    }

    fn add(&mut self, id: ReqId, prompt: u32) {
        self.try_add(id, prompt, 100, 0, &[]).unwrap();
    }

    /// Plans a step: (id, new tokens, earlier tokens) of its entries.
    fn plan(&mut self) -> Vec<(ReqId, u32, u32)> {
        self.engine.plan(SimTime::ZERO, &mut self.plan);
        self.engine.kv().check();
        self.plan
            .entries
            .iter()
            .map(|e| (e.id, e.tokens, e.context))
            .collect()
    }

    fn complete(&mut self, stopped: &[ReqId]) {
        let plan = std::mem::take(&mut self.plan);
        self.engine.complete(&plan, Given::one_each(stopped));
        self.plan = plan;
    }

    /// Plans a step and completes it at once.
    fn step(&mut self) -> Vec<(ReqId, u32, u32)> {
        let entries = self.plan();
        self.complete(&[]);
        entries
    }

    fn samples(&self) -> Vec<ReqId> {
        let entries = self.plan.entries.iter();
        entries.filter(|e| e.samples).map(|e| e.id).collect()
    }
}

#[test]
fn s1_1_a_decode_is_the_case_of_one_missing_token() {
    let mut b = Bench::new(|_| ());
    b.add(0, 10);
    assert_eq!(b.step(), [(0, 10, 0)]);
    assert!(!b.plan.entries[0].decode && b.plan.entries[0].samples);
    assert_eq!(b.step(), [(0, 1, 10)]);
    assert!(b.plan.entries[0].decode);
    assert_eq!(
        (b.plan.stats.decode_ctx_sum, b.plan.stats.sampled_seqs),
        (11, 1)
    );
}

#[test]
fn s1_2_running_requests_are_served_before_new_prompts_and_a_long_prompt_fills_what_they_leave() {
    let mut b = Bench::new(|_| ());
    b.add(0, 10);
    b.step();
    b.add(1, 150);
    assert_eq!(b.step(), [(0, 1, 10), (1, 63, 0)]);
    assert_eq!(b.samples(), [0], "a partial prefill emits nothing");
    b.add(2, 5);
    assert_eq!(
        b.step(),
        [(0, 1, 11), (1, 63, 63)],
        "the oldest unfinished prompt first"
    );
    assert_eq!(b.plan.blocked, Blocked::TokenBudget);
    assert_eq!(b.step(), [(0, 1, 12), (1, 24, 126), (2, 5, 0)]);
    assert_eq!(b.samples(), [0, 1, 2]);
}

#[test]
fn s1_2_a2_the_threshold_limits_one_request_but_in_0_33_not_when_it_is_alone() {
    for (version, alone) in [(VllmVersion::V0_11, 20), (VllmVersion::V0_33, 60)] {
        let mut b = Bench::new(|p| {
            p.long_prefill_token_threshold = 20;
            p.version = version;
        });
        b.add(0, 60);
        assert_eq!(b.plan(), [(0, alone, 0)]);
        let mut b = Bench::new(|p| {
            p.long_prefill_token_threshold = 20;
            p.version = version;
        });
        b.add(0, 60);
        b.add(1, 60);
        assert_eq!(b.plan(), [(0, 20, 0), (1, 20, 0)]);
    }
}

#[test]
fn s1_2_a4_a_request_whose_step_is_in_flight_is_skipped_and_the_next_goes_on() {
    let mut b = Bench::new(|p| p.pipeline_parallel_size = 2);
    assert_eq!(b.engine.depth(), 2);
    b.add(0, 10);
    let first = b.plan();
    assert_eq!(first, [(0, 10, 0)]);
    b.add(1, 20);
    let in_flight = std::mem::take(&mut b.plan);
    assert_eq!(b.plan(), [(1, 20, 0)], "request 0 has n = 0");
    b.engine.complete(&in_flight, Given::one_each(&[]));
    let second = std::mem::take(&mut b.plan);
    assert_eq!(
        b.plan(),
        [(0, 1, 10)],
        "the running set has split into two micro-batches"
    );
    b.engine.complete(&second, Given::one_each(&[]));
}

#[test]
fn s1_2_a5_the_last_admitted_is_preempted_goes_to_the_head_and_recomputes_its_output_too() {
    // 8 usable blocks; two requests of 48 + growing tokens.
    let mut b = Bench::new(|p| {
        p.num_gpu_blocks = 9;
        p.max_model_len = 120;
        p.max_num_batched_tokens = 200;
        p.enable_prefix_caching = false;
    });
    b.try_add(0, 60, 50, 0, &[]).unwrap();
    b.try_add(1, 60, 50, 0, &[]).unwrap();
    b.step();
    for _ in 0..4 {
        assert_eq!(b.step().len(), 2);
    }
    b.try_add(2, 10, 10, 0, &[]).unwrap();
    // Both need a fifth block; there is none.
    assert_eq!(b.step(), [(0, 1, 64)]);
    assert_eq!(b.plan.preempted, [1]);
    assert_eq!(b.plan.blocked, Blocked::KvFull);
    let load = b.engine.load();
    assert_eq!((load.running, load.waiting, load.kv_used_blocks), (1, 2, 5));
    assert_eq!(
        b.step(),
        [(0, 1, 65)],
        "65 tokens need 5 blocks, 3 are free: the head blocks request 2"
    );
    b.engine.cancel(0);
    b.plan();
    assert_eq!(
        (b.plan.entries[0].id, b.plan.entries[0].tokens),
        (1, 65),
        "60 of the prompt and 5 of the output"
    );
    assert!(b.plan.entries[0].samples && !b.plan.entries[0].decode);
    assert_eq!(
        b.plan.admitted,
        [2],
        "a resumed request is not admitted again"
    );
}

#[test]
fn s1_2_a5_by_priority_the_least_urgent_goes_and_its_tokens_return_to_the_budget() {
    let mut b = Bench::new(|p| {
        p.num_gpu_blocks = 9;
        p.max_model_len = 120;
        p.max_num_batched_tokens = 200;
        p.scheduling_policy = SchedulingPolicy::Priority;
        p.enable_prefix_caching = false;
    });
    // The less urgent one is admitted first and needs its next block later.
    b.try_add(0, 50, 50, 5, &[]).unwrap();
    b.step();
    b.try_add(1, 62, 50, 0, &[]).unwrap();
    b.step();
    b.step();
    b.step();
    assert_eq!(
        b.step(),
        [(1, 1, 64)],
        "request 0 had been scheduled in this step already"
    );
    assert_eq!(b.plan.preempted, [0]);
    assert_eq!(b.plan.stats.decode_seqs, 1);
}

#[test]
fn s1_2_b_nobody_is_admitted_in_a_step_that_preempts() {
    let mut b = Bench::new(|p| {
        p.num_gpu_blocks = 9;
        p.max_model_len = 120;
        p.max_num_batched_tokens = 200;
    });
    b.try_add(0, 64, 50, 0, &[]).unwrap();
    b.try_add(1, 64, 50, 0, &[]).unwrap();
    b.step();
    b.try_add(2, 3, 5, 0, &[]).unwrap();
    assert_eq!(b.step(), [(0, 1, 64)]);
    assert_eq!((b.plan.preempted.len(), b.plan.admitted.len()), (1, 0));
}

#[test]
fn s1_2_b_the_head_of_the_queue_blocks_those_behind_it() {
    let mut b = Bench::new(|p| {
        p.num_gpu_blocks = 9;
        p.max_model_len = 120;
        p.max_num_batched_tokens = 200;
    });
    b.try_add(0, 64, 50, 0, &[]).unwrap();
    b.step();
    b.try_add(1, 100, 20, 0, &[]).unwrap();
    b.try_add(2, 3, 5, 0, &[]).unwrap();
    assert_eq!(b.step(), [(0, 1, 64)], "request 2 would fit");
    assert_eq!(b.plan.blocked, Blocked::KvFull);
}

#[test]
fn s1_2_b_at_most_max_num_seqs_run() {
    let mut b = Bench::new(|p| p.max_num_seqs = 2);
    (0..3).for_each(|id| b.add(id, 4));
    assert_eq!(b.step().len(), 2);
    assert_eq!(b.plan.blocked, Blocked::MaxSeqs);
    b.plan();
    b.complete(&[0]);
    assert_eq!(b.step(), [(1, 1, 5), (2, 4, 0)]);
}

#[test]
fn s1_2_b3_without_chunked_prefill_0_11_sets_a_long_prompt_aside_and_0_33_stops() {
    for (version, expected) in [
        (VllmVersion::V0_11, vec![(0, 150, 0), (2, 20, 0)]),
        (VllmVersion::V0_33, vec![(0, 150, 0)]),
    ] {
        let mut b = Bench::new(|p| {
            p.enable_chunked_prefill = false;
            p.version = version;
        });
        b.add(0, 150);
        b.add(1, 140);
        b.add(2, 20);
        assert_eq!(b.step(), expected, "the budget is max_model_len = 256");
        let next = b.step();
        assert!(
            next.contains(&(1, 140, 0)),
            "set aside at the head: {next:?}"
        );
    }
}

#[test]
fn s1_2_b4_0_33_wants_room_for_the_whole_prompt_and_0_11_for_its_first_chunk() {
    for (version, admitted) in [(VllmVersion::V0_11, true), (VllmVersion::V0_33, false)] {
        let mut b = Bench::new(|p| {
            p.num_gpu_blocks = 17;
            p.version = version;
        });
        b.try_add(0, 64, 10, 0, &[]).unwrap();
        b.step();
        b.try_add(1, 240, 10, 0, &[]).unwrap();
        let plan = b.plan();
        assert_eq!(plan.len() == 2, admitted, "{version:?}: {plan:?}");
    }
}

#[test]
fn s1_2_b4_the_watermark_stays_free_only_while_others_run() {
    let engine = |watermark| {
        Bench::new(|p| {
            p.num_gpu_blocks = 17;
            p.watermark = watermark;
        })
    };
    let mut b = engine(0.5);
    b.try_add(0, 64, 10, 0, &[]).unwrap();
    b.try_add(1, 240, 10, 0, &[]).unwrap();
    b.step();
    b.engine.cancel(0);
    assert_eq!(b.step(), [(1, 64, 0)], "alone it may use everything");
    for (watermark, both) in [(0.5, true), (0.7, false)] {
        let mut b = engine(watermark);
        b.try_add(0, 30, 10, 0, &[]).unwrap();
        b.step();
        b.try_add(1, 60, 10, 0, &[]).unwrap();
        // 10 blocks are free after the admission; 8 or 11 of 17 must be.
        assert_eq!(b.step().len() == 2, both);
    }
}

#[test]
fn s1_2_computed_tokens_advance_before_the_step_ends() {
    let mut b = Bench::new(|p| p.pipeline_parallel_size = 2);
    b.add(0, 150);
    b.plan();
    let first = std::mem::take(&mut b.plan);
    assert_eq!(
        b.plan(),
        [(0, 64, 64)],
        "the next chunk goes into the next batch in flight"
    );
    b.engine.complete(&first, Given::one_each(&[]));
}

#[test]
fn s1_3_the_budget_without_chunked_prefill_holds_the_longest_prompt() {
    let p = VllmV1Params {
        enable_chunked_prefill: false,
        max_num_batched_tokens: 100,
        max_model_len: 4000,
        ..VllmV1Params::default()
    };
    assert_eq!(p.budget(), 4000);
    let p = VllmV1Params {
        max_num_seqs: 2,
        max_model_len: 30,
        ..p
    };
    assert_eq!(
        p.budget(),
        60,
        "never more than max_num_seqs x max_model_len"
    );
}

#[test]
fn s1_3_a_full_queue_refuses_with_503() {
    let mut b = Bench::new(|p| p.max_num_queued_reqs = Some(2));
    b.add(0, 4);
    b.add(1, 4);
    let refused = b.try_add(2, 4, 4, 0, &[]).unwrap_err();
    assert_eq!(
        (refused, refused.http_status()),
        (RejectReason::QueueFull, 503)
    );
    b.step();
    b.add(2, 4);
    let mut b = Bench::new(|p| p.max_num_queued_tokens = Some(10));
    b.add(0, 8);
    assert_eq!(b.try_add(1, 3, 4, 0, &[]), Err(RejectReason::QueueFull));
    b.engine.cancel(0);
    b.add(1, 3);
}

#[test]
fn s1_4_asynchronous_scheduling_gives_a_decode_its_next_step_while_its_token_is_in_flight() {
    let mut b = Bench::new(|p| p.async_scheduling = true);
    assert_eq!(b.engine.depth(), 2);
    b.try_add(0, 10, 3, 0, &[]).unwrap();
    b.plan();
    let first = std::mem::take(&mut b.plan);
    assert_eq!(b.plan(), [(0, 1, 10)]);
    let second = std::mem::take(&mut b.plan);
    b.engine.complete(&first, Given::one_each(&[]));
    assert_eq!(b.plan(), [(0, 1, 11)]);
    b.engine.complete(&second, Given::one_each(&[]));
    let third = std::mem::take(&mut b.plan);
    assert_eq!(
        b.plan(),
        [],
        "a request sure to reach max_tokens is not given another step"
    );
    b.engine.complete(&third, Given::one_each(&[0]));
    assert_eq!(b.engine.load().kv_used_blocks, 0);
}

#[test]
fn s1_4_the_extra_step_of_a_request_that_stopped_is_dropped() {
    let mut b = Bench::new(|p| p.async_scheduling = true);
    b.add(0, 10);
    b.plan();
    let first = std::mem::take(&mut b.plan);
    b.plan();
    let extra = std::mem::take(&mut b.plan);
    b.engine.complete(&first, Given::one_each(&[0]));
    assert_eq!(b.engine.load().kv_used_blocks, 0);
    b.engine.complete(&extra, Given::one_each(&[]));
    assert_eq!(
        b.engine.load(),
        Bench::new(|p| p.async_scheduling = true).engine.load()
    );
}

#[test]
fn s1_5_what_can_never_fit_is_refused() {
    let mut b = Bench::new(|p| p.num_gpu_blocks = 9);
    assert_eq!(b.try_add(0, 200, 57, 0, &[]), Err(RejectReason::TooLong));
    assert_eq!(b.try_add(0, 100, 30, 0, &[]), Err(RejectReason::NeverFits));
    assert_eq!(
        b.try_add(0, 100, 29, 0, &[]),
        Ok(()),
        "the last of 129 tokens needs no KV"
    );
}

#[test]
fn s1_5_blocks_are_taken_only_when_a_step_crosses_a_boundary() {
    let mut b = Bench::new(|_| ());
    b.add(0, 15);
    b.step();
    assert_eq!(b.engine.load().kv_used_blocks, 1);
    b.step();
    assert_eq!(b.engine.load().kv_used_blocks, 1);
    b.step();
    assert_eq!(b.engine.load().kv_used_blocks, 2);
}

#[test]
fn s1_6_blocks_are_visible_from_the_scheduling_of_the_step_that_fills_them() {
    let mut b = Bench::new(|p| {
        p.shared_content = true;
        p.max_num_batched_tokens = 128;
    });
    b.try_add(0, 40, 10, 0, &[1, 2, 30]).unwrap();
    b.try_add(1, 40, 10, 0, &[1, 2, 31]).unwrap();
    assert_eq!(
        b.plan(),
        [(0, 40, 0), (1, 8, 32)],
        "hit in the very step that computes them"
    );
    assert_eq!(b.plan.cached_tokens, 32);
    assert_eq!(b.engine.load().kv_used_blocks, 4);
}

#[test]
fn s1_6_a_partial_prefill_has_shared_only_what_it_has_filled() {
    let mut b = Bench::new(|p| p.shared_content = true);
    b.try_add(0, 100, 10, 0, &[1, 2, 3, 4, 5, 6]).unwrap();
    b.step();
    b.try_add(1, 100, 10, 0, &[1, 2, 3, 4, 5, 7]).unwrap();
    assert_eq!(
        b.plan(),
        [(0, 36, 64), (1, 20, 80)],
        "request 0 fills its fifth block in this step"
    );
}

#[test]
fn s1_6_a_preempted_request_hits_its_own_blocks_unless_they_were_reused() {
    for shared in [false, true] {
        let mut b = Bench::new(|p| {
            p.num_gpu_blocks = 9;
            p.max_model_len = 120;
            p.max_num_batched_tokens = 200;
            p.shared_content = shared;
        });
        b.try_add(0, 64, 40, 0, &[1, 2, 3, 4, 5]).unwrap();
        b.try_add(1, 64, 40, 0, &[11, 12, 13, 14, 15]).unwrap();
        b.step();
        b.step();
        assert_eq!(
            b.plan.preempted,
            [1],
            "one of its four blocks, the last, is taken at once"
        );
        b.engine.cancel(0);
        assert_eq!(b.plan(), [(1, 17, 48)], "3 of 4 blocks, shared = {shared}");
    }
}

#[test]
fn cancelled_requests_leave_nothing_behind() {
    let mut b = Bench::new(|_| ());
    (0..4).for_each(|id| b.add(id, 40));
    b.plan();
    (0..4).for_each(|id| b.engine.cancel(id));
    b.complete(&[]);
    let load = b.engine.load();
    assert_eq!((load.running, load.waiting, load.kv_used_blocks), (0, 0, 0));
    assert_eq!(b.plan(), []);
    b.add(0, 7);
    assert_eq!(b.plan(), [(0, 7, 0)]);
}
