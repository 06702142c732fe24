//! Models whose layers keep a state: how their steps grow, what their ranks compute, and what the measured kernels of such layers say.

use hwmodels::blocks::Mixer;
use hwmodels::ops::collective::{Fabric, LinkClass};
use hwmodels::ops::{Kernels, OpShape, OperatorModel, PrefillWork, Routing};
use hwmodels::profiles::{self, Choice};
use hwmodels::recurrence::Rule;
use hwmodels::{
    BatchStats, Catalog, Dtype, EngineCost, EngineKind, Evidence, Layout, ModelArch, OperatorSteps,
    OperatorStepsSpec, Profile, StepModel,
};

const H100: &str = "H100-SXM5-80GB";
const MODELS: [&str; 4] = [
    "kimi-linear-48b-a3b",
    "nemotron-nano-9b-v2",
    "nemotron-3-nano-30b-a3b",
    "granite-4.0-h-small",
];

fn profile(model: &ModelArch, engine: EngineKind) -> Profile {
    let resolved = profiles::resolve(H100, None, engine, &Choice::Auto).unwrap();
    let rule = model.recurrence.unwrap().rule;
    resolved.with_states(rule, None, engine).profile
}

fn kernels(engine: EngineKind) -> Kernels {
    match engine {
        EngineKind::TrtLlm => Kernels::trt_llm(),
        EngineKind::Sglang => Kernels {
            states: Dtype::Fp32,
            ..Kernels::default()
        },
        _ => Kernels::default(),
    }
}

/// Steps on H100s, without host, so that all of their time is the device's.
fn steps(model: &ModelArch, tp: u32) -> OperatorSteps {
    let catalog = Catalog::builtin();
    OperatorSteps::new(&OperatorStepsSpec {
        accelerator: catalog.accelerator(H100).unwrap(),
        fabric: Fabric::single_node(LinkClass::NvLink4, 8, 450e9),
        model,
        layout: Layout {
            tp,
            ..Layout::SINGLE
        },
        weights: Dtype::Bf16,
        kv_cache: Dtype::Bf16,
        cost: EngineCost {
            kernel_gap: 0.0,
            piece_launch: 0.0,
            mixed_launch: 0.0,
            layer_launch: 0.0,
            rank_launch: 0.0,
            step_host: 0.0,
            seq_host: 0.0,
            rank_seq_host: 0.0,
            ..EngineCost::prior(EngineKind::VllmV1)
        },
        profile: &profile(model, EngineKind::VllmV1),
        max_tokens: 32_768,
        routing: Routing::Balanced,
        kernels: Kernels::default(),
        graph_sizes: &[],
    })
}

fn decodes(n: u32, context: u32) -> BatchStats {
    let mut b = BatchStats::default();
    (0..n).for_each(|_| b.add_decode(context));
    b
}

fn prompt(tokens: u32) -> BatchStats {
    let mut b = BatchStats::default();
    b.add_prefill(tokens, 0, true);
    b
}

fn ops(model: &ModelArch, engine: EngineKind) -> OperatorModel {
    let catalog = Catalog::builtin();
    let chip = catalog.accelerator(H100).unwrap();
    OperatorModel::new(chip, &profile(model, engine)).with_kernels(kernels(engine))
}

#[test]
fn a_state_is_read_and_written_once_for_each_sequence_whatever_its_context() {
    let catalog = Catalog::builtin();
    for name in MODELS {
        let model = catalog.model(name).unwrap();
        let r = model.recurrence.unwrap();
        let ops = ops(model, EngineKind::VllmV1);
        let [few, many] = [256, 512].map(|n| ops.state_decode(&r, n).seconds);
        // Twice as many sequences, twice as many states.
        assert!((many / few - 2.0).abs() < 0.06, "{name}: {few} {many}");
        // No faster than the memory: 512 states in and out.
        let states = 512.0 * 2.0 * r.state_bytes(Dtype::Bf16);
        let rate = states / many;
        assert!((0.55..0.95).contains(&(rate / 3.35e12)), "{name}: {rate}");
    }
}

#[test]
fn a_decode_step_grows_with_sequences_and_hardly_with_context() {
    let catalog = Catalog::builtin();
    for name in MODELS {
        let model = catalog.model(name).unwrap();
        let m = steps(model, 1);
        // What contexts add is the KV of the layers with attention: no more than all of it at 1.2 TB/s.
        let [short, long] = [1_000, 21_000].map(|context| m.step(&decodes(64, context)).latency);
        let kv = 64.0 * 20_000.0 * model.kv_bytes_per_token(Dtype::Bf16);
        assert!(
            long > short && long - short < kv / 1.2e12,
            "{name}: {short} {long}"
        );
        // What sequences add is their states at least.
        let more = m.step(&decodes(128, 1_000)).latency - short;
        let states = 64.0 * 2.0 * model.state_bytes_rank(Dtype::Bf16, 1, 0..model.layers);
        assert!(more > states / 3.35e12, "{name}: {more}");
        // A model of the same shape whose layers all have attention pays for its contexts.
        let attention = ModelArch {
            blocks: (model.blocks.iter())
                .map(|b| match b.mixer {
                    Mixer::State => hwmodels::blocks::Block {
                        mixer: Mixer::Attention,
                        ..*b
                    },
                    _ => *b,
                })
                .collect(),
            recurrence: None,
            ..model.clone()
        };
        let m = steps(&attention_profiled(&attention, model), 1);
        let [a, b] = [1_000, 21_000].map(|context| m.step(&decodes(64, context)).latency);
        assert!(
            b - a > 2.0 * (long - short),
            "{name}: {a} {b} {short} {long}"
        );
    }
}

/// `attention` with a recurrence that no layer has would be refused; its profile is chosen by `model`'s.
fn attention_profiled(attention: &ModelArch, model: &ModelArch) -> ModelArch {
    ModelArch {
        recurrence: model.recurrence,
        ..attention.clone()
    }
}

#[test]
fn prompts_take_time_in_proportion_to_their_tokens() {
    let catalog = Catalog::builtin();
    for name in MODELS {
        let model = catalog.model(name).unwrap();
        let r = model.recurrence.unwrap();
        for engine in [EngineKind::VllmV1, EngineKind::Sglang, EngineKind::TrtLlm] {
            let ops = ops(model, engine);
            let time = |n: u32| ops.state_prefill(&r, &PrefillWork::of(&prompt(n))).seconds;
            let ratio = time(32_768) / time(8_192);
            assert!((ratio / 4.0 - 1.0).abs() < 0.12, "{name} {engine}: {ratio}");
            // Two prompts of half the length are as many tokens.
            let mut two = prompt(8_192);
            two.add_prefill(8_192, 0, true);
            let halves = ops.state_prefill(&r, &PrefillWork::of(&two)).seconds;
            let whole = time(16_384);
            assert!(
                (0.5..1.1).contains(&(halves / whole)),
                "{name} {engine}: {halves} {whole}"
            );
            // Never faster than the products allow.
            let flops = 32_768.0 * 4.0 * r.matrix_values();
            assert!(time(32_768) > flops / 989.5e12, "{name} {engine}");
        }
    }
}

#[test]
fn ranks_share_the_heads_of_a_layer_with_a_state() {
    let catalog = Catalog::builtin();
    for name in MODELS {
        let model = catalog.model(name).unwrap();
        let r = model.recurrence.unwrap();
        let ops = ops(model, EngineKind::VllmV1);
        let time = |tp: u32| ops.state_decode(&r.on_rank(tp), 512).seconds;
        let share = time(1) / time(4);
        assert!((3.0..4.2).contains(&share), "{name}: {share}");
        let layout = |tp| Layout {
            tp,
            ..Layout::SINGLE
        };
        let bytes = |tp: u32| model.stage_weight_bytes(layout(tp), 0..model.layers, Dtype::Bf16);
        let share = bytes(1) / bytes(4);
        assert!((3.8..4.01).contains(&share), "{name}: {share}");
        // Ranks also meet after each half of a layer, so a step is not a quarter as long.
        let step = |tp| steps(model, tp).step(&decodes(256, 1_000));
        let (one, four) = (step(1), step(4));
        assert!(
            four.latency < 0.6 * one.latency,
            "{name}: {} {}",
            one.latency,
            four.latency
        );
        assert!(four.parts.communication > 0.0, "{name}");
    }
}

#[test]
fn layers_of_one_half_meet_and_launch_half_as_often() {
    let catalog = Catalog::builtin();
    let model = catalog.model("nemotron-nano-9b-v2").unwrap();
    assert_eq!(model.whole_layers(), 28.0);
    // The same halves joined two by two, as far as they alternate, are the same work.
    let weights = model.stage_weight_bytes(Layout::SINGLE, 0..56, Dtype::Bf16);
    assert_eq!(weights, model.parameters() as f64 * 2.0);
    let one = steps(model, 1).step(&decodes(1, 1_000)).latency;
    // A decode of one sequence reads all weights but the embedding once.
    let read = (model.parameters() - model.embedding_parameters()) as f64 * 2.0;
    let rate = read / one;
    assert!((0.5..0.95).contains(&(rate / 3.35e12)), "{rate}");
}

/// Kernel times in the tables, at their own shapes (96 heads of 128, states in 32 bits, H100): they are within the held-out errors.
#[test]
fn measured_kernels_of_kimi_delta_attention_are_met() {
    let catalog = Catalog::builtin();
    let model = catalog.model("kimi-linear-48b-a3b").unwrap();
    let r = hwmodels::recurrence::Recurrence {
        key_heads: 96,
        value_heads: 96,
        ..model.recurrence.unwrap()
    };
    for (engine, n, microseconds) in [
        (EngineKind::VllmV1, 128, 35.7 + 556.8),
        (EngineKind::Sglang, 128, 35.3 + 594.5),
    ] {
        let t = ops(model, engine).state_decode(&r, n).seconds * 1e6;
        assert!((t / microseconds - 1.0).abs() < 0.05, "{engine} {n}: {t}");
    }
    for (engine, tokens, microseconds) in [
        (EngineKind::VllmV1, 8_192, 526.7 + 996.2),
        (EngineKind::Sglang, 8_192, 526.7 + 3668.4),
    ] {
        let work = PrefillWork::of(&prompt(tokens));
        let t = ops(model, engine).state_prefill(&r, &work).seconds * 1e6;
        assert!(
            (t / microseconds - 1.0).abs() < 0.08,
            "{engine} {tokens}: {t}"
        );
    }
}

/// Mamba2's scan and update are in no table of kernels: the formulas give back the published times that their constants are from.
#[test]
fn published_times_of_mamba2s_kernels_are_met() {
    let catalog = Catalog::builtin();
    let model = catalog.model("granite-4.0-h-small").unwrap();
    let r = model.recurrence.unwrap();
    let ops = ops(model, EngineKind::VllmV1);
    // Tokens per second of the scan on an H100 (vLLM pull request 27299): 12.9 million at 16 384 tokens, 10.7 at 131 072.
    for tokens in [16_384, 131_072] {
        let work = PrefillWork::of(&prompt(tokens));
        let convolution = ops.convolution(&r, 1, tokens).seconds;
        let rate = f64::from(tokens) / (ops.state_prefill(&r, &work).seconds - 0.5 * convolution);
        assert!((8e6..14e6).contains(&rate), "{tokens}: {rate}");
    }
    // The update of 8192 heads, 64 sequences of 128, takes 104.54 us (43083); the convolution adds some.
    let t = ops.state_decode(&r, 64).seconds * 1e6;
    assert!((104.0..125.0).contains(&t), "{t}");
}

#[test]
fn what_was_not_measured_on_the_engine_is_said() {
    let catalog = Catalog::builtin();
    let evidence = |name: &str, engine| {
        let model = catalog.model(name).unwrap();
        let rule = model.recurrence.unwrap().rule;
        ops(model, engine).evidence(&OpShape::State(rule))
    };
    let kimi = "kimi-linear-48b-a3b";
    assert_eq!(evidence(kimi, EngineKind::VllmV1), Evidence::Fitted);
    assert_eq!(evidence(kimi, EngineKind::Sglang), Evidence::Fitted);
    assert_eq!(evidence(kimi, EngineKind::TrtLlm), Evidence::Extrapolated);
    for engine in [EngineKind::VllmV1, EngineKind::Sglang, EngineKind::TrtLlm] {
        let of = evidence("nemotron-nano-9b-v2", engine);
        assert_eq!(of, Evidence::Analytic, "{engine}");
    }
    let model = catalog.model("granite-4.0-h-micro").unwrap();
    let warnings = steps(model, 1).warnings().join("; ");
    assert!(
        warnings.contains("Mamba2 scan and update times are analytic"),
        "{warnings}"
    );
    assert_eq!(model.recurrence.unwrap().rule, Rule::Mamba2);
}

#[test]
fn every_shipped_surface_of_states_is_one_of_a_rule_and_close_to_what_was_held_out() {
    assert_eq!(profiles::states().count(), 13);
    for p in profiles::states() {
        for (name, s) in &p.surfaces {
            let rules = [Rule::GatedDelta, Rule::Kda, Rule::Mamba2];
            let known = rules.iter().any(|r| name.starts_with(r.surfaces()));
            assert!(known && s.grid().is_ok(), "{} {name}", p.name);
            assert!(s.held_out_median < 15.0, "{} {name}", p.name);
        }
    }
}
