use proptest::prelude::*;

use super::weights::rotary_table;
use super::*;

fn settings(engine: EngineKind, device: &str, model: &str) -> MemorySettings {
    let c = Catalog::builtin();
    MemorySettings::defaults(
        engine,
        VllmRelease::DEFAULT,
        c.accelerator(device).unwrap(),
        c.model(model).unwrap(),
    )
}

fn on(
    model: &str,
    instance: &str,
    layout: Layout,
    change: impl Fn(&mut MemorySettings),
    engine: EngineKind,
) -> Result<MemoryPlan, Error> {
    let c = Catalog::builtin();
    let m = c.model(model)?;
    let p = Placement::new(&c, m, instance, layout, engine)?;
    let mut s = MemorySettings::defaults(engine, VllmRelease::DEFAULT, &p.accelerator, m);
    change(&mut s);
    MemoryPlan::for_placement(&c, &p, m, &s)
}

const TP2: Layout = Layout {
    tp: 2,
    pp: 1,
    dp: 1,
    ep: 1,
};
const TP8: Layout = Layout {
    tp: 8,
    pp: 1,
    dp: 1,
    ep: 1,
};

#[test]
fn vllm_parts_and_kv_add_up_to_the_utilisation() {
    let p = on(
        "llama-2-7b",
        "p5.4xlarge",
        Layout::SINGLE,
        |_| {},
        EngineKind::VllmV1,
    )
    .unwrap();
    let sum = p.weights + p.activation_peak + p.runtime + p.kv_bytes;
    assert!((sum as f64 / (0.9 * p.total as f64) - 1.0).abs() < 1e-6);
    assert!(!p.graphs_subtracted);
    assert_eq!(p.kv_tokens, p.kv_blocks * 16);
    assert!(p.kv_bytes >= (p.kv_tokens as f64 * p.kv_bytes_per_token) as u64);
}

#[test]
fn graphs_are_subtracted_from_version_0_21_on_and_the_default_share_rises() {
    let at = |minor| {
        on(
            "qwen3-14b",
            "p5.4xlarge",
            Layout::SINGLE,
            |s| {
                s.vllm = VllmRelease::last_of(minor);
                s.memory_fraction = 0.9;
            },
            EngineKind::VllmV1,
        )
        .unwrap()
    };
    assert!(at(21).graphs_subtracted && at(21).kv_tokens < at(20).kv_tokens);
    let c = Catalog::builtin();
    let (d, m) = (
        c.accelerator("h100").unwrap(),
        c.model("qwen3-14b").unwrap(),
    );
    assert_eq!(
        MemorySettings::defaults(EngineKind::VllmV1, VllmRelease::last_of(23), d, m)
            .memory_fraction,
        0.92
    );
    assert_eq!(
        MemorySettings::defaults(EngineKind::VllmV1, VllmRelease::last_of(15), d, m)
            .memory_fraction,
        0.9
    );
}

#[test]
fn a_model_that_does_not_fit_names_the_smallest_layout_that_does() {
    let e = on(
        "llama-3.1-70b",
        "p5.48xlarge",
        Layout::SINGLE,
        |s| s.max_model_len = 8192,
        EngineKind::VllmV1,
    )
    .unwrap_err()
    .to_string();
    assert!(e.contains("does not fit") && e.contains("131.4"), "{e}");
    assert!(
        e.contains("smallest layout that fits: TP 4 (4 of 8 devices)"),
        "{e}"
    );
    let e = on(
        "llama-3.1-405b",
        "p5.48xlarge",
        TP8,
        |s| s.max_model_len = 8192,
        EngineKind::TrtLlm,
    )
    .unwrap_err()
    .to_string();
    assert!(
        e.contains("TP 8 x PP 2 (2 nodes of type p5.48xlarge)"),
        "{e}"
    );
    let e = on(
        "deepseek-v3",
        "g5.2xlarge",
        Layout::SINGLE,
        |s| s.max_model_len = 8192,
        EngineKind::VllmV1,
    )
    .unwrap_err()
    .to_string();
    assert!(
        e.contains("no layout on up to 16 nodes of type g5.2xlarge fits"),
        "{e}"
    );
}

#[test]
fn the_named_layout_really_fits_and_no_smaller_one_does() {
    let c = Catalog::builtin();
    let m = c.model("llama-3.1-70b").unwrap();
    let mut s = settings(EngineKind::VllmV1, "h100", "llama-3.1-70b");
    s.max_model_len = 8192;
    let best = smallest_layout(&c, m, "p5.48xlarge", &s).unwrap();
    assert!(MemoryPlan::for_placement(&c, &best, m, &s).is_ok());
    assert_eq!(best.layout.pp, 1);
    let d = c.accelerator("h100").unwrap();
    for tp in 1..best.layout.tp {
        let layout = Layout {
            tp,
            pp: 1,
            dp: 1,
            ep: 1,
        };
        assert!(
            MemoryPlan::for_layout(m, d, layout, &s).is_err(),
            "{layout}"
        );
    }
}

#[test]
fn a_length_that_the_cache_cannot_hold_is_refused_with_one_that_it_can() {
    let e = on(
        "llama-3.1-8b",
        "g5.2xlarge",
        Layout::SINGLE,
        |_| {},
        EngineKind::VllmV1,
    )
    .unwrap_err()
    .to_string();
    let at_most: u32 = e
        .split("set max_model_len to at most ")
        .nth(1)
        .and_then(|t| t.split(',').next())
        .and_then(|t| t.parse().ok())
        .unwrap_or_else(|| panic!("{e}"));
    let set = |len| {
        on(
            "llama-3.1-8b",
            "g5.2xlarge",
            Layout::SINGLE,
            |s| s.max_model_len = len,
            EngineKind::VllmV1,
        )
    };
    assert!(set(at_most).is_ok());
    assert!(set(at_most + 16).is_err());
}

#[test]
fn tgi_keeps_a_tenth_of_what_is_free_and_limits_no_length() {
    let p = on(
        "llama-2-7b",
        "g5.2xlarge",
        Layout::SINGLE,
        |_| {},
        EngineKind::Tgi,
    )
    .unwrap();
    let free = p.total - p.weights - p.activation_peak - p.runtime - p.cuda_graphs;
    let warm_up = 4096.0 * p.kv_bytes_per_token;
    let kv = (free as f64 - warm_up) * 0.9 + warm_up;
    assert!((p.kv_bytes as f64 / kv - 1.0).abs() < 1e-6);
    assert!((10_000..18_000).contains(&p.kv_tokens), "{}", p.kv_tokens);
}

#[test]
fn tensorrt_takes_its_fraction_of_what_is_free() {
    let p = on(
        "llama-3.1-8b",
        "p5.4xlarge",
        Layout::SINGLE,
        |_| {},
        EngineKind::TrtLlm,
    )
    .unwrap();
    let free = p.total - p.weights - p.activation_peak - p.runtime - p.cuda_graphs;
    assert!((p.kv_bytes as f64 / (0.9 * free as f64) - 1.0).abs() < 1e-6);
    assert_eq!(p.block_size, 64);
}

#[test]
fn neuron_reserves_the_compiled_shape_per_core() {
    let compiled = |s: &mut MemorySettings| {
        s.max_num_seqs = 8;
        s.max_model_len = 16_512;
        s.block_size = 16_512;
        s.max_num_batched_tokens = 16_512;
    };
    let p = on(
        "llama-3.1-8b",
        "inf2.48xlarge",
        TP8,
        compiled,
        EngineKind::TgiNeuron,
    )
    .unwrap();
    assert_eq!((p.kv_blocks, p.kv_tokens), (8, 8 * 16_512));
    assert_eq!(p.total, 16 << 30, "a core has half of the chip");
    let e = on(
        "llama-3.1-8b",
        "inf2.xlarge",
        TP2,
        compiled,
        EngineKind::TgiNeuron,
    )
    .unwrap_err();
    assert!(e.to_string().contains("does not fit"), "{e}");
}

#[test]
fn windowed_layers_stop_growing() {
    let p = on(
        "gpt-oss-20b",
        "p5.4xlarge",
        Layout::SINGLE,
        |_| {},
        EngineKind::VllmV1,
    )
    .unwrap();
    assert_eq!(p.windowed_share, 0.5);
    assert_eq!(p.blocks_for(16), 1);
    assert_eq!(p.blocks_for(144), 9);
    assert_eq!(
        p.blocks_for(16_000),
        505,
        "half of 1000 blocks and half of 9"
    );
    let all = on(
        "mistral-7b-v0.1",
        "p5.4xlarge",
        Layout::SINGLE,
        |_| {},
        EngineKind::VllmV1,
    )
    .unwrap();
    assert_eq!(all.blocks_for(1_000_000), 257);
    let tgi = on(
        "mistral-7b-v0.1",
        "p5.4xlarge",
        Layout::SINGLE,
        |_| {},
        EngineKind::Tgi,
    )
    .unwrap();
    assert_eq!(tgi.blocks_for(16_000), 1_000, "TGI keeps everything");
}

#[test]
fn the_stage_with_least_room_decides() {
    let layout = Layout {
        tp: 1,
        pp: 2,
        dp: 1,
        ep: 1,
    };
    let p = on(
        "llama-2-13b",
        "p5.48xlarge",
        layout,
        |_| {},
        EngineKind::VllmV1,
    )
    .unwrap();
    let c = Catalog::builtin();
    let m = c.model("llama-2-13b").unwrap();
    let s = settings(EngineKind::VllmV1, "h100", "llama-2-13b");
    let rank = c.accelerator("h100").unwrap().per_rank();
    for layers in layout.stage_layers(m.layers, s.engine) {
        let stage = stage_use(m, &rank, layout, layers, &s);
        let blocks = stage.kv / (stage.kv_bytes_per_token * 16.0);
        assert!(blocks >= p.kv_blocks as f64);
    }
}

/// Qwen3-235B in eight data-parallel ranks: 65 536 gathered tokens, each with eight rows of 2 x 4096 values in 16 bits, in and out of the experts; beside them a
/// rank's own 8192 tokens.
#[test]
fn tensorrt_llm_sets_aside_room_for_the_experts_of_all_ranks_tokens() {
    let layout = Layout {
        tp: 1,
        pp: 1,
        dp: 8,
        ep: 8,
    };
    let c = Catalog::builtin();
    let m = c.model("qwen3-235b-a22b").unwrap();
    let activation = |dp: u32, engine: EngineKind| {
        forward_peak(
            m,
            Layout {
                dp,
                ep: dp,
                ..layout
            },
            8192.0,
            engine,
        )
    };
    let row = 4096.0 * 2.0;
    let gathered = 65_536.0 * (8.0 * 2.0 * row + 2.0 * row);
    assert_eq!(
        activation(8, EngineKind::TrtLlm),
        gathered + 8192.0 * 2.0 * row
    );
    // One rank alone has its own tokens only.
    assert_eq!(
        activation(1, EngineKind::TrtLlm),
        8192.0 * (8.0 * 2.0 * row + 2.0 * row)
    );
}

#[test]
fn settings_out_of_range_are_refused() {
    let broken: [fn(&mut MemorySettings); 7] = [
        |s| s.memory_fraction = f64::NAN,
        |s| s.memory_fraction = 0.0,
        |s| s.memory_fraction = 1.5,
        |s| s.block_size = 0,
        |s| s.max_num_seqs = 0,
        |s| s.max_model_len = u32::MAX,
        |s| s.kv_cache = Dtype::Int4,
    ];
    for change in broken {
        let e = on(
            "llama-2-7b",
            "p5.4xlarge",
            Layout::SINGLE,
            change,
            EngineKind::VllmV1,
        )
        .unwrap_err();
        assert!(matches!(e, Error::Setting { .. }), "{e}");
    }
}

proptest! {
    #[test]
    fn a_plan_never_exceeds_the_device_and_more_tokens_never_need_fewer_blocks(
        tokens in 1u32..20_000, seqs in 1u32..2_000, fraction in 0.05f64..1.0,
        minor in 5u32..40, model in 0usize..6, engine in 0usize..6, a in 0u64..100_000, b in 0u64..100_000,
    ) {
        let c = Catalog::builtin();
        let names = ["llama-2-7b", "gpt-oss-20b", "falcon-40b", "deepseek-v2-lite", "mixtral-8x7b", "mistral-7b"];
        let m = c.model(names[model]).unwrap();
        let d = c.accelerator("h100").unwrap();
        let mut s = MemorySettings::defaults(EngineKind::ALL[engine], VllmRelease::last_of(minor), d, m);
        s.max_num_batched_tokens = tokens;
        s.max_num_seqs = seqs;
        s.memory_fraction = fraction;
        s.max_model_len = 2048;
        s.block_size = 16;
        if let Ok(p) = MemoryPlan::for_layout(m, d, TP2, &s) {
            let graphs = if p.graphs_subtracted { p.cuda_graphs } else { 0 };
            let sum = p.weights + p.activation_peak + p.runtime + graphs + p.kv_bytes;
            prop_assert!(sum <= p.total + 8, "{} of {}", sum, p.total);
            prop_assert!(p.kv_tokens as f64 * p.kv_bytes_per_token <= p.kv_bytes as f64 + 1.0);
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(p.blocks_for(low) <= p.blocks_for(high));
        }
    }
}

#[test]
fn the_first_releases_of_v1_count_the_device_context_as_their_own() {
    let at = |patch| {
        let release = VllmRelease { minor: 9, patch };
        let change = |s: &mut MemorySettings| s.vllm = release;
        on(
            "llama-3.1-8b",
            "p5.4xlarge",
            Layout::SINGLE,
            change,
            EngineKind::VllmV1,
        )
        .unwrap()
    };
    let (before, since) = (at(1), at(2));
    assert_eq!(before.runtime - since.runtime, CUDA_CONTEXT as u64);
    assert!(before.kv_blocks < since.kv_blocks);
}

/// Llama 4 Scout in 8 bits: the table of its 10 485 760 positions, and attention in 16 bits but under TensorRT-LLM.
#[test]
fn what_an_engine_keeps_beside_the_weights_it_quantises() {
    let c = Catalog::builtin();
    let scout = c.model("llama-4-scout").unwrap();
    let d = c.accelerator("h100").unwrap();
    let more = |engine: EngineKind| {
        let mut s = MemorySettings::defaults(engine, VllmRelease::DEFAULT, d, scout);
        s.weights = Dtype::Fp8;
        s.max_model_len = 8192;
        let p = MemoryPlan::for_layout(scout, d, TP2, &s).unwrap();
        p.weights as f64 - scout.stage_weight_bytes(TP2, 0..48, Dtype::Fp8)
    };
    // (10 485 760 - 131 072) x 128 values, in 2 or 4 bytes; 48 layers x 5120 x 128 x (20 + 20 + 4 + 4) parameters, a byte more each.
    let (table, attention) = (1_325_400_064.0, 1_509_949_440.0);
    for (engine, expected) in [
        (EngineKind::VllmV1, 2.0 * table + attention),
        (EngineKind::Sglang, 4.0 * table + attention),
        (EngineKind::TrtLlm, 4.0 * table),
        (EngineKind::Tgi, attention),
    ] {
        assert!((more(engine) - expected).abs() < 2.0, "{engine}");
    }
    // The fitted constants hold that of a model of 131 072 positions.
    let llama = c.model("llama-3.1-8b").unwrap();
    assert_eq!(rotary_table(llama, EngineKind::VllmV1), 0.0);
    assert_eq!(c.model("deepseek-v3").unwrap().rotary_dim, 64);
}

/// DeepSeek-V3.2 on eight H200: 61 x 788 bytes of KV a token with 8-bit latents, and a workspace of 5 x 163 840 x 1152 bytes.
#[test]
fn sparse_attention_keeps_keys_and_a_workspace() {
    let c = Catalog::builtin();
    let v32 = c.model("deepseek-v3.2").unwrap();
    let d = c.accelerator("h200").unwrap();
    let layout = Layout {
        tp: 8,
        ..Layout::SINGLE
    };
    let plan = |kv: Dtype, len: u32| {
        let mut s = MemorySettings::defaults(EngineKind::VllmV1, VllmRelease::DEFAULT, d, v32);
        s.kv_cache = kv;
        s.max_model_len = len;
        s.max_num_batched_tokens = 2048;
        s.max_num_seqs = 64;
        s.block_size = 64;
        MemoryPlan::for_layout(v32, d, layout, &s).unwrap()
    };
    let narrow = plan(Dtype::Fp8, 163_840);
    assert_eq!(narrow.kv_bytes_per_token, 61.0 * 788.0);
    assert_eq!(plan(Dtype::Bf16, 163_840).kv_bytes_per_token, 61.0 * 1284.0);
    let more = narrow.activation_peak - plan(Dtype::Fp8, 163_840 / 2).activation_peak;
    assert_eq!(more, 5 * 1152 * 163_840 / 2);
}

#[test]
fn kv_of_earlier_chunks_is_given_back_by_some_releases() {
    let c = Catalog::builtin();
    let scout = c.model("llama-4-scout").unwrap();
    let d = c.accelerator("h200").unwrap();
    let blocks = |engine: EngineKind, minor: u32, patch: u32| {
        let release = VllmRelease { minor, patch };
        let mut s = MemorySettings::defaults(engine, release, d, scout);
        s.weights = Dtype::Fp8;
        s.max_model_len = 32_768;
        s.block_size = 16;
        let p = MemoryPlan::for_layout(scout, d, TP2, &s).unwrap();
        p.blocks_for(16_384)
    };
    // 1024 blocks of 12 layers, and of 36 the 512 of the chunk.
    let (all, chunked) = (1024, 640);
    for (minor, patch, expected) in [
        (9, 1, all),
        (9, 2, chunked),
        (10, 0, chunked),
        (10, 1, all),
        (12, 0, all),
        (13, 0, chunked),
    ] {
        let found = blocks(EngineKind::VllmV1, minor, patch);
        assert_eq!(found, expected, "0.{minor}.{patch}");
    }
    assert_eq!(
        blocks(EngineKind::TrtLlm, 15, 0),
        all,
        "its decodes read all"
    );
}

#[test]
fn states_are_set_aside_by_each_engine_in_its_own_way() {
    let of = |engine, seqs: u32| {
        let set = |s: &mut MemorySettings| s.max_num_seqs = seqs;
        on(
            "nemotron-nano-9b-v2",
            "p5.4xlarge",
            Layout::SINGLE,
            set,
            engine,
        )
        .unwrap()
    };
    let c = Catalog::builtin();
    let arch = c.model("nemotron-nano-9b-v2").unwrap();
    let state = arch.state_bytes_rank(Dtype::Bf16, 1, 0..56);
    // SGLang and TensorRT-LLM set one aside for each sequence that may run; SGLang's pool is taken from what KV would have got.
    for engine in [EngineKind::Sglang, EngineKind::TrtLlm] {
        let (few, many) = (of(engine, 16), of(engine, 80));
        let less = few.kv_bytes as f64 - many.kv_bytes as f64;
        let share = if engine == EngineKind::TrtLlm {
            0.9
        } else {
            1.0
        };
        assert!(
            (less / (64.0 * state * share) - 1.0).abs() < 1e-3,
            "{engine}: {less}"
        );
    }
    // vLLM's states lie in the blocks of KV: blocks as large as a state, seven for a sequence beside those of its tokens.
    let (tokens, states) = arch.vllm_blocks(Dtype::Bf16, 1, 16);
    assert_eq!((tokens, states), (1312, 7));
    let blocks = |s: &mut MemorySettings| {
        (s.block_size, s.state_blocks, s.max_num_seqs) = (tokens, states, 64);
    };
    let engine = EngineKind::VllmV1;
    let p = on(
        "nemotron-nano-9b-v2",
        "p5.4xlarge",
        Layout::SINGLE,
        blocks,
        engine,
    )
    .unwrap();
    assert_eq!(p.blocks_for(10_000), 8 + 7);
    // Four layers' keys and values of 8 heads of 128.
    assert_eq!(p.kv_bytes_per_token, 4.0 * 4096.0);
    // A page of a layer holds a state with little to spare.
    let page = f64::from(tokens) * 4096.0;
    let one = arch.recurrence.unwrap().state_bytes(Dtype::Bf16);
    assert!(page >= one && page < 1.02 * one);
}
