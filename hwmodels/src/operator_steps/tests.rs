use super::*;
use crate::engine::EngineKind;
use crate::ops::collective::LinkClass;
use crate::ops::{Experts, GraphMode};

fn accelerator() -> Accelerator {
    crate::Catalog::builtin()
        .accelerator("h100")
        .unwrap()
        .clone()
}

fn llama_7b() -> ModelArch {
    crate::Catalog::builtin()
        .model("llama-2-7b")
        .unwrap()
        .clone()
}

fn model(tp: u32, pp: u32, engine: EngineKind) -> OperatorSteps {
    OperatorSteps::new(&OperatorStepsSpec {
        accelerator: &accelerator(),
        fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
        model: &llama_7b(),
        layout: Layout {
            tp,
            pp,
            dp: 1,
            ep: 1,
        },
        weights: Dtype::Bf16,
        kv_cache: Dtype::Bf16,
        cost: EngineCost::prior(engine),
        profile: &Profile::default(),
        max_tokens: 2048,
        routing: Routing::Balanced,
        kernels: Kernels::default(),
        graph_sizes: &[],
    })
}

fn decodes(n: u32, context: u32) -> BatchStats {
    let mut b = BatchStats::default();
    for _ in 0..n {
        b.add_decode(context);
    }
    b
}

#[test]
fn parts_sum_to_the_latency() {
    for engine in EngineKind::ALL {
        for (tp, pp) in [(1, 1), (4, 1), (2, 2)] {
            let m = model(tp, pp, engine);
            let mut b = decodes(7, 300);
            b.add_prefill(200, 64, true);
            let c = m.step(&b);
            assert!((c.parts.total() - c.latency).abs() < 1e-12, "{engine}");
            assert!(c.interval <= c.latency, "{engine}: {c:?}");
        }
    }
}

#[test]
fn kernels_that_overlap_leave_no_part_negative() {
    let decode = decodes(4, 300);
    let mut mixed = decode;
    mixed.add_prefill(200, 64, true);
    let with_gap = |kernel_gap: f64| {
        let mut m = model(1, 1, EngineKind::VllmV1);
        m.cost.kernel_gap = kernel_gap;
        m
    };
    let apart = with_gap(0.0).step(&decode);
    for gap in [-1e-6, -5e-6, -1.0] {
        for batch in [&decode, &mixed] {
            let c = with_gap(gap).step(batch);
            assert!(c.parts.as_array().iter().all(|p| *p >= 0.0), "{c:?}");
            assert!((c.parts.total() - c.latency).abs() < 1e-12, "{c:?}");
            assert!(c.parts.overlap > 0.0, "{c:?}");
        }
        // Host time stays what it is; what overlaps is the kernels' own.
        let c = with_gap(gap).step(&decode);
        let kernels = |p: &Parts| p.weights + p.kv + p.compute + p.communication;
        assert!(kernels(&c.parts) < kernels(&apart.parts));
    }
    assert_eq!(apart.parts.overlap, 0.0);
}

#[test]
fn no_decode_step_is_faster_than_reading_the_weights_at_peak() {
    let weights = 2.0 * (6.738e9 - 32000.0 * 4096.0);
    for b in [1, 16, 256] {
        let t = model(1, 1, EngineKind::VllmV1)
            .step(&decodes(b, 500))
            .latency;
        assert!(t > weights / 3350e9, "batch {b}: {t}");
    }
}

#[test]
fn no_prefill_is_faster_than_the_peak_allows() {
    let mut b = BatchStats::default();
    b.add_prefill(2048, 0, true);
    let t = model(1, 1, EngineKind::VllmV1).step(&b).latency;
    assert!(t > 2.0 * 6.5e9 * 2048.0 / 989e12, "{t}");
}

#[test]
fn an_eager_engine_on_many_ranks_is_bound_by_its_launches() {
    let c = model(8, 1, EngineKind::Tgi).step(&decodes(1, 300));
    assert!(c.parts.host > 0.5 * c.latency, "{c:?}");
}

#[test]
fn a_pipeline_admits_the_next_step_before_the_first_ends() {
    let c = model(1, 4, EngineKind::TrtLlm).step(&decodes(64, 1000));
    assert!(c.interval < 0.4 * c.latency, "{c:?}");
}

fn mixture(dp: u32, routing: Routing) -> OperatorSteps {
    let catalog = crate::Catalog::builtin();
    OperatorSteps::new(&OperatorStepsSpec {
        accelerator: &accelerator(),
        fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
        model: catalog.model("qwen3-235b-a22b").unwrap(),
        layout: Layout {
            tp: 1,
            pp: 1,
            dp,
            ep: dp,
        },
        weights: Dtype::Fp8,
        kv_cache: Dtype::Fp8,
        cost: EngineCost::prior(EngineKind::VllmV1),
        profile: &Profile::default(),
        max_tokens: 2048,
        routing,
        kernels: Kernels::default(),
        graph_sizes: &[],
    })
}

#[test]
fn the_slowest_rank_sets_the_time_of_a_step() {
    let m = mixture(8, Routing::Balanced);
    let idle = BatchStats::default();
    let even = [decodes(32, 1000); 8];
    let mut one_long = even;
    one_long[3] = decodes(32, 8000);
    let cost = |ranks: &[BatchStats]| m.step_ranks(ranks);
    let (even, one_long) = (cost(&even), cost(&one_long));
    assert!(one_long.latency > even.latency && one_long.parts.kv > even.parts.kv);
    // What the ranks share depends on all tokens, what they do alone on their own.
    let mut busy = decodes(32, 1000);
    busy.add_prefill(1024, 0, true);
    let mut ranks = [idle; 8];
    ranks[0] = busy;
    let alone = cost(&ranks);
    let all = cost(&[busy; 8]);
    assert!(all.latency > alone.latency);
    assert!(all.parts.communication > 3.0 * alone.parts.communication);
    // Whoever says nothing of the idle ranks means the same.
    assert_eq!(m.step(&busy), alone);
    assert_eq!(cost(&[idle; 8]), StepCost::default());
}

#[test]
fn prompts_on_one_rank_cost_nearly_as_much_as_on_all() {
    let m = mixture(8, Routing::Balanced);
    let mut prompt = BatchStats::default();
    prompt.add_prefill(2048, 0, true);
    let mut ranks = [decodes(32, 1000); 8];
    let decode = m.step_ranks(&ranks).latency;
    ranks[0].add_prefill(2048, 0, true);
    let one = m.step_ranks(&ranks).latency;
    let all = m.step_ranks(&[ranks[0]; 8]).latency;
    assert!(
        one > 2.0 * decode && all < 4.0 * one,
        "{decode} {one} {all}"
    );
}

#[test]
fn a_popular_expert_slows_its_rank_down() {
    let batch = [decodes(64, 1000); 8];
    let even = mixture(8, Routing::Balanced).step_ranks(&batch).latency;
    let skewed = mixture(8, Routing::PowerLaw(1.0))
        .step_ranks(&batch)
        .latency;
    assert!(skewed > even, "{skewed} {even}");
}

#[test]
fn decode_batches_are_padded_to_the_given_graph_sizes() {
    let sized = |sizes: &[u32]| {
        OperatorSteps::new(&OperatorStepsSpec {
            accelerator: &accelerator(),
            fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
            model: &llama_7b(),
            layout: Layout::SINGLE,
            weights: Dtype::Bf16,
            kv_cache: Dtype::Bf16,
            cost: EngineCost::prior(EngineKind::TrtLlm).graphed(),
            profile: &Profile::default(),
            max_tokens: 2048,
            routing: Routing::Balanced,
            kernels: Kernels::default(),
            graph_sizes: sizes,
        })
    };
    let time = |sizes: &[u32], n: u32| sized(sizes).step(&decodes(n, 1)).latency;
    assert_eq!(time(&[256, 1024], 200), time(&[256], 200));
    assert!(time(&[256, 1024], 300) > time(&[256, 512, 1024], 300));
    // Beyond the largest, kernels are launched one by one and nothing is padded.
    assert!(time(&[256, 1024], 1025) < time(&[2048], 1025));
}

#[test]
fn steps_beyond_the_table_continue_it() {
    let m = model(1, 1, EngineKind::VllmV1);
    let step = |n: u32| {
        let mut b = BatchStats::default();
        b.add_prefill(n, 0, true);
        m.step(&b).latency
    };
    assert!(step(4096) > 1.8 * step(2048) && step(4096) < 2.6 * step(2048));
}

#[test]
fn marlin_prefills_gpt_oss_at_half_the_rate_of_triton_and_decodes_alike() {
    let catalog = crate::Catalog::builtin();
    let name = &accelerator().name;
    let choice = crate::profiles::Choice::Auto;
    let found = crate::profiles::resolve(name, None, EngineKind::VllmV1, &choice).unwrap();
    let on = |experts| {
        OperatorSteps::new(&OperatorStepsSpec {
            accelerator: &accelerator(),
            fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
            model: catalog.model("gpt-oss-120b").unwrap(),
            layout: Layout {
                tp: 4,
                ..Layout::SINGLE
            },
            weights: Dtype::Mxfp4,
            kv_cache: Dtype::Bf16,
            cost: EngineCost::prior(EngineKind::VllmV1),
            profile: &found.profile,
            max_tokens: 8192,
            routing: Routing::Balanced,
            kernels: Kernels {
                experts,
                ..Kernels::default()
            },
            graph_sizes: &[],
        })
    };
    let (triton, marlin) = (on(Experts::Triton), on(Experts::Marlin));
    let mut prompt = BatchStats::default();
    prompt.add_prefill(8192, 0, true);
    let ratio = |b: &BatchStats| marlin.step(b).latency / triton.step(b).latency;
    let (prefill, decode) = (ratio(&prompt), ratio(&decodes(16, 1024)));
    assert!((1.2..1.8).contains(&prefill), "{prefill}");
    assert!((0.8..1.2).contains(&decode), "{decode}");
}

#[test]
fn graphs_in_pieces_take_as_long_as_their_launches() {
    let steps = |mode| {
        let mut m = model(4, 1, EngineKind::VllmV1);
        m.cost = m.cost.with_graphs(mode);
        m.step(&decodes(1, 100)).latency
    };
    let (whole, pieces) = (
        steps(GraphMode::FullAndPiecewise),
        steps(GraphMode::Piecewise),
    );
    // A small model on four ranks: the device is done long before the host.
    assert!(pieces > 1.5 * whole, "{pieces} {whole}");
    // A long step hides its launches.
    let mut prompt = BatchStats::default();
    prompt.add_prefill(2048, 0, true);
    let mut m = model(1, 1, EngineKind::VllmV1);
    let before = m.step(&prompt).latency;
    m.cost = m.cost.with_graphs(GraphMode::FullDecodeOnly);
    assert!(m.step(&prompt).latency - before < 1e-9);
}

/// Llama 4 attends within chunks of 8192 tokens in three of four layers; TensorRT-LLM's decodes read everything in all of them.
#[test]
fn decodes_of_chunked_layers_read_their_chunk_or_everything() {
    let scout = crate::Catalog::builtin()
        .model("llama-4-scout")
        .unwrap()
        .clone();
    let kv = |context: u32, chunked_decodes: bool| {
        let steps = OperatorSteps::new(&OperatorStepsSpec {
            accelerator: &accelerator(),
            fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
            model: &scout,
            layout: Layout {
                tp: 8,
                pp: 1,
                dp: 1,
                ep: 1,
            },
            weights: Dtype::Bf16,
            kv_cache: Dtype::Bf16,
            cost: EngineCost::prior(EngineKind::TrtLlm),
            profile: &Profile::default(),
            max_tokens: 2048,
            routing: Routing::Balanced,
            kernels: Kernels {
                chunked_decodes,
                ..Kernels::trt_llm()
            },
            graph_sizes: &[],
        });
        steps.step(&decodes(16, context)).parts.kv
    };
    assert_eq!(kv(8_000, true), kv(8_000, false));
    // 12 layers of 65 536 tokens and 36 of 8192, or 48 of 65 536: 2.9 times as much.
    let ratio = kv(65_536, false) / kv(65_536, true);
    assert!((2.0..3.0).contains(&ratio), "{ratio}");
    // Token 12 288 is the 4096th of its chunk: 12 layers read all, 36 a third.
    let by_hand = 0.25 * kv(12_288, false) + 0.75 * kv(4096, false);
    assert!((kv(12_288, true) / by_hand - 1.0).abs() < 1e-9);
}

/// Half of Llama 4 Maverick's layers are dense: 386 GB of 402 in 8 bits are experts of the other 24.
#[test]
fn every_second_layer_of_maverick_has_experts() {
    let maverick = crate::Catalog::builtin()
        .model("llama-4-maverick")
        .unwrap()
        .clone();
    let weights = |dp: u32, tp: u32| {
        let steps = OperatorSteps::new(&OperatorStepsSpec {
            accelerator: &accelerator(),
            fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
            model: &maverick,
            layout: Layout {
                tp,
                pp: 1,
                dp,
                ep: 8,
            },
            weights: Dtype::Fp8,
            kv_cache: Dtype::Fp8,
            cost: EngineCost::prior(EngineKind::TrtLlm),
            profile: &Profile::default(),
            max_tokens: 2048,
            routing: Routing::Even,
            kernels: Kernels::trt_llm(),
            graph_sizes: &[],
        });
        let batch = vec![decodes(512 / dp, 100); dp as usize];
        steps.step_ranks(&batch).parts.weights
    };
    // 24 layers x 128 experts x 126e6 bytes over eight devices of 3350 GB/s: 14.4 ms, and what else there is of weights.
    for (dp, tp) in [(1, 8), (8, 1)] {
        let t = weights(dp, tp);
        assert!((14.4e-3..30e-3).contains(&t), "dp {dp}: {t}");
    }
}

/// DeepSeek-V3 over eight devices, whose own module drafts so many tokens.
fn drafting(drafts: u32, dp: u32) -> OperatorSteps {
    OperatorSteps::new(&OperatorStepsSpec {
        accelerator: &accelerator(),
        fabric: Fabric::single_node(LinkClass::NvLink4, 8, 3350e9),
        model: crate::Catalog::builtin().model("deepseek-v3").unwrap(),
        layout: Layout {
            tp: 8 / dp,
            pp: 1,
            dp,
            ep: dp,
        },
        weights: Dtype::Fp8,
        kv_cache: Dtype::Bf16,
        cost: EngineCost::prior(EngineKind::Sglang),
        profile: &Profile::default(),
        max_tokens: 2048,
        routing: Routing::Balanced,
        kernels: Kernels {
            drafts,
            ..Kernels::default()
        },
        graph_sizes: &[],
    })
}

#[test]
fn drafts_cost_a_layer_each_and_the_tokens_that_are_verified() {
    let verified = |n: u32, drafts: u32| {
        let mut b = BatchStats::default();
        (0..n).for_each(|_| b.add_verification(drafts + 1, 1000));
        b
    };
    let plain = drafting(0, 1);
    let latency = |drafts: u32| drafting(drafts, 1).step(&verified(4, drafts)).latency;
    let (none, one, two) = (
        plain.step(&decodes(4, 1001)).latency,
        latency(1),
        latency(2),
    );
    // A pass over one layer of 61 and the LM head, and a few more experts that more tokens touch.
    assert!(one > none * 1.02 && two > one * 1.01, "{none} {one} {two}");
    assert!(two < none * 3.0, "{none} {two}");
    // What verifies as many tokens without a module costs less.
    let mut m = drafting(2, 1);
    m.draft = None;
    assert!(m.step(&verified(4, 2)).latency < two);
    // A prompt passes the module once.
    let mut prompt = BatchStats::default();
    prompt.add_prefill(1000, 0, true);
    let share = drafting(2, 1).step(&prompt).latency / plain.step(&prompt).latency;
    assert!((1.005..1.1).contains(&share), "{share}");
}

#[test]
fn ranks_draft_together() {
    let mut b = BatchStats::default();
    b.add_verification(3, 500);
    let m = drafting(2, 8);
    let all = m.step_ranks(&[b; 8]);
    let idle = m.step_ranks(&[b, BatchStats::default(), b, b, b, b, b, b]);
    assert!(all.latency > drafting(0, 8).step_ranks(&[decodes(1, 501); 8]).latency);
    assert!(
        (idle.latency - all.latency).abs() < 1e-9,
        "padded to the same graph"
    );
    assert!((all.parts.total() - all.latency).abs() < 1e-12);
}
