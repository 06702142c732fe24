//! What must hold for operator times whatever the parameters.

use hwmodels::indexer::Indexer;
use hwmodels::ops::{
    Cache, DecodeShape, Kernels, MlaShape, MoeShape, OperatorModel, PrefillShape, PrefillWork,
    Products, Routing, Span, SparseKernels, SparseShape, attention::sparse,
};
use hwmodels::{Accelerator, BatchStats, Dtype, Profile};
use proptest::prelude::*;

fn h100() -> Accelerator {
    hwmodels::Catalog::builtin()
        .accelerator("h100")
        .unwrap()
        .clone()
}

fn model() -> OperatorModel {
    OperatorModel::new(&h100(), &Profile::default())
}

fn compiled(tokens: u32) -> OperatorModel {
    model().with_kernels(Kernels {
        products: Products::Compiled { tokens },
        ..Kernels::default()
    })
}

fn decodes(contexts: &[u32]) -> BatchStats {
    let mut b = BatchStats::default();
    for &c in contexts {
        b.add_decode(c);
    }
    b
}

const GQA: DecodeShape = DecodeShape {
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    kv_dtype: Dtype::Bf16,
    span: Span::All,
};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_gemm_beats_the_datasheet(m in 1u32..20_000, n in 16u32..70_000, k in 16u32..70_000) {
        let (ops, a) = (model(), h100());
        let (mf, nf, kf) = (f64::from(m), f64::from(n), f64::from(k));
        for (dtype, bytes, peak) in [
            (Dtype::Bf16, 2.0, a.bf16_flops),
            (Dtype::Fp8, 1.0, a.fp8_flops.unwrap()),
            (Dtype::Int4, Dtype::Int4.bytes(), a.bf16_flops),
        ] {
            let t = ops.gemm(m, n, k, dtype, dtype).seconds;
            prop_assert!(t >= 2.0 * mf * nf * kf / peak);
            prop_assert!(t >= nf * kf * bytes / a.memory_bandwidth);
        }
    }

    #[test]
    fn kernels_compiled_for_a_few_tokens_are_never_faster_than_the_datasheet_and_cache_allow(
        m in 1u32..20_000, n in 16u32..70_000, k in 64u32..70_000, tokens in 1u32..9000,
    ) {
        let a = h100();
        let (mf, nf, kf) = (f64::from(m), f64::from(n), f64::from(k));
        let t = compiled(tokens).gemm(m, n, k, Dtype::Bf16, Dtype::Bf16).seconds;
        prop_assert!(t >= 2.0 * mf * nf * kf / a.bf16_flops);
        prop_assert!(t >= nf * kf * 2.0 / a.memory_bandwidth);
        // Every tile is at most 256 x 256: each operand is read at least once per 256 of the other's rows.
        let reads = 2.0 * kf * (mf * nf / 256.0 + mf * nf / 256.0);
        prop_assert!(t >= reads / a.cache_bandwidth.unwrap());
    }

    #[test]
    fn decode_over_uneven_contexts_lies_between_that_of_the_mean_and_that_of_the_longest(
        contexts in prop::collection::vec(1u32..60_000, 1..300),
    ) {
        let ops = model();
        let n = contexts.len();
        let mean = (contexts.iter().map(|&c| u64::from(c)).sum::<u64>() / n as u64) as u32;
        let max = *contexts.iter().max().unwrap();
        let t = |c: &[u32]| ops.decode_attention(&GQA, &decodes(c), Cache::Cold).seconds;
        let (lo, mid, hi) = (t(&vec![mean; n]), t(&contexts), t(&vec![max; n]));
        prop_assert!(lo <= mid * 1.0001, "{lo} > {mid}");
        prop_assert!(mid <= hi * 1.0001, "{mid} > {hi}");
    }

    #[test]
    fn decode_reads_no_faster_than_the_memory_bandwidth(
        batch in 1usize..512, context in 1u32..100_000,
    ) {
        let t = model().decode_attention(&GQA, &decodes(&vec![context; batch]), Cache::Cold);
        let bytes = batch as f64 * f64::from(context) * 8.0 * 128.0 * 2.0 * 2.0;
        prop_assert!(t.seconds >= bytes / h100().memory_bandwidth);
    }

    #[test]
    fn a_window_never_makes_attention_slower(
        batch in 1usize..64, context in 1u32..60_000, window in 1u32..8192,
    ) {
        let ops = model();
        let b = decodes(&vec![context; batch]);
        let full = ops.decode_attention(&GQA, &b, Cache::Cold).seconds;
        let windowed = ops
            .decode_attention(&DecodeShape { span: Span::Last(window), ..GQA }, &b, Cache::Cold)
            .seconds;
        prop_assert!(windowed <= full * 1.0001);
    }

    #[test]
    fn prefill_attention_never_beats_the_arithmetic_peak(
        new in 1u32..8192, before in 0u32..32_768, seqs in 1usize..16,
    ) {
        let mut b = BatchStats::default();
        for _ in 0..seqs {
            b.add_prefill(new, before, true);
        }
        let shape = PrefillShape {
            heads: 32, kv_heads: 8, head_dim: 128, kv_dtype: Dtype::Bf16, span: Span::All,
        };
        let t = model().prefill_attention(&shape, &PrefillWork::of(&b)).seconds;
        let flops = 4.0 * 32.0 * 128.0 * b.prefill_pairs as f64;
        prop_assert!(t >= flops / h100().bf16_flops);
    }

    #[test]
    fn a_skewed_routing_is_never_faster_for_many_tokens_under_expert_parallelism(
        tokens in 4096u32..16_384,
    ) {
        let shape = MoeShape {
            block_scales: false,
            hidden: 4096, intermediate: 1536, experts: 128, top_k: 8, tp: 1, ep: 8,
            weights: Dtype::Bf16, activations: Dtype::Bf16,
        };
        let ops = model();
        let even = ops.moe(&shape, tokens, Routing::Balanced).seconds;
        let skewed = ops.moe(&shape, tokens, Routing::PowerLaw(1.2)).seconds;
        prop_assert!(skewed >= even * 0.999, "{skewed} < {even}");
    }
}

#[test]
fn nothing_takes_no_time() {
    let ops = model();
    assert_eq!(
        ops.gemm(0, 4096, 4096, Dtype::Bf16, Dtype::Bf16).seconds,
        0.0
    );
    let none = BatchStats::default();
    assert_eq!(ops.decode_attention(&GQA, &none, Cache::Cold).seconds, 0.0);
    assert_eq!(ops.sampling(0, 32_000).seconds, 0.0);
}

#[test]
fn a_prompt_on_kernels_for_few_tokens_runs_at_the_rate_of_the_cache() {
    let seconds = |ops: &OperatorModel, m| {
        ops.gemm(m, 13_312, 16_384, Dtype::Bf16, Dtype::Bf16)
            .seconds
    };
    // Tiles of 32 x 32 do 16 FLOPs for each byte they read.
    let flops = 2.0 * 1024.0 * 13_312.0 * 16_384.0;
    let expected = flops / (16.0 * h100().cache_bandwidth.unwrap());
    let prompt = seconds(&compiled(8), 1024);
    assert!(
        (prompt / expected - 1.0).abs() < 0.01,
        "{prompt} {expected}"
    );
    assert!(prompt > 4.0 * seconds(&model(), 1024));
    // A decode waits for memory whatever the tile, and kernels for many tokens suit a prompt.
    assert!((seconds(&compiled(8), 4) / seconds(&model(), 4) - 1.0).abs() < 0.05);
    assert!(seconds(&compiled(4096), 1024) < 1.2 * seconds(&model(), 1024));
}

#[test]
fn one_sequence_whose_kv_is_not_split_waits_for_the_unit_that_reads_it() {
    let whole = model().with_kernels(Kernels {
        split_kv: false,
        ..Kernels::default()
    });
    let seconds = |ops: &OperatorModel, seqs: usize, context| {
        let b = decodes(&vec![context; seqs]);
        ops.decode_attention(&GQA, &b, Cache::Cold).seconds
    };
    assert!(seconds(&whole, 1, 16_384) > 3.0 * seconds(&model(), 1, 16_384));
    // Where sequences alone fill the device, nothing is split anyway.
    assert_eq!(seconds(&whole, 256, 4096), seconds(&model(), 256, 4096));
}

#[test]
fn a_warm_benchmark_is_never_slower_than_serving() {
    let ops = model();
    for context in [16, 256, 1024, 4096, 32_768] {
        let b = decodes(&[context; 8]);
        let warm = ops.decode_attention(&GQA, &b, Cache::Warm).seconds;
        let cold = ops.decode_attention(&GQA, &b, Cache::Cold).seconds;
        assert!(warm <= cold, "context {context}: {warm} > {cold}");
    }
}

/// Llama 4: a prompt of 32 768 tokens is four chunks of 8192, each of which sees nothing before it. A window of 8192 tokens would see almost twice as much.
#[test]
fn a_prompt_in_chunks_costs_what_its_chunks_cost_apart() {
    let ops = model();
    let seconds = |span: Span, chunks: &[(u32, u32)]| {
        let mut b = BatchStats::default();
        for (new, before) in chunks {
            b.add_prefill(*new, *before, true);
        }
        let shape = PrefillShape {
            heads: 40,
            kv_heads: 8,
            head_dim: 128,
            kv_dtype: Dtype::Bf16,
            span,
        };
        ops.prefill_attention(&shape, &PrefillWork::of(&b)).seconds
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    let chunk = Span::Chunk(8192);
    let whole = seconds(chunk, &[(32_768, 0)]);
    close(whole, seconds(Span::All, &[(8192, 0); 4]));
    let window = seconds(Span::Last(8192), &[(32_768, 0)]);
    assert!((1.5..2.0).contains(&(window / whole)), "{window} {whole}");
    // The second half of a chunk sees the first half, wherever the chunk lies.
    let half = seconds(Span::All, &[(4096, 4096)]);
    close(seconds(chunk, &[(4096, 20_480)]), half);
    // A step that begins a chunk sees itself alone; below a chunk nothing changes.
    close(
        seconds(chunk, &[(2048, 16_384)]),
        seconds(Span::All, &[(2048, 0)]),
    );
    close(
        seconds(chunk, &[(2048, 1000)]),
        seconds(Span::All, &[(2048, 1000)]),
    );
}

#[test]
fn a_decode_in_a_chunk_reads_what_precedes_it_there() {
    let ops = model();
    let seconds = |span: Span, contexts: &[u32]| {
        ops.decode_attention(
            &DecodeShape { span, ..GQA },
            &decodes(contexts),
            Cache::Cold,
        )
        .seconds
    };
    let chunk = Span::Chunk(8192);
    for (context, read) in [
        (1, 1),
        (8192, 8192),
        (8193, 1),
        (12_288, 4096),
        (20_000, 3616),
    ] {
        let (a, b) = (
            seconds(chunk, &[context; 16]),
            seconds(Span::All, &[read; 16]),
        );
        assert!((a / b - 1.0).abs() < 1e-9, "{context}: {a} {b}");
    }
    // Contexts all over many chunks read half a chunk on average.
    let spread: Vec<u32> = (0..256).map(|i| 1 + i * 1024).collect();
    let (a, b) = (seconds(chunk, &spread), seconds(Span::All, &[4096; 256]));
    assert!((a / b - 1.0).abs() < 0.05, "{a} {b}");
}

/// GLM-5 on one H100: an indexer of 32 heads of 128 in 8 bits, 2048 tokens chosen, 64 heads over latents of 512 + 64.
fn glm_5() -> SparseShape {
    SparseShape {
        latent: MlaShape {
            heads: 64,
            kv_lora_rank: 512,
            rope_dim: 64,
            kv_dtype: Dtype::Bf16,
        },
        indexer: Indexer {
            heads: 32,
            head_dim: 128,
            top_k: 2048,
        },
    }
}

#[test]
fn sparse_attention_of_prompts_grows_with_their_tokens_and_its_scores_with_their_pairs() {
    let ops = model();
    let d = *ops.device();
    let work = |new: u32, before: u32| {
        let mut b = BatchStats::default();
        b.add_prefill(new, before, true);
        PrefillWork::of(&b)
    };
    let attention = |s: &SparseShape, new, before| {
        sparse::sparse_prefill_time(&d, s, SparseKernels::FlashMla, &work(new, before)).seconds
    };
    let s = glm_5();
    // 8192 tokens x 64 heads x 2048 chosen x 2 x (576 + 512) FLOPs = 2.34e12; 3.8 to 4.0 ms measured (589 TFLOP/s), with any context.
    for before in [0, 4096, 65_536] {
        let t = attention(&s, 8192, before);
        assert!((t / 3.9e-3 - 1.0).abs() < 0.06, "{before}: {t}");
    }
    // Eight heads are padded to 64.
    let mut few = s;
    few.latent.heads = 8;
    assert_eq!(attention(&few, 8192, 0), attention(&s, 8192, 0));
    // 16 384 tokens: 1.34e8 pairs x 32 heads x 128 x 2 FLOPs = 1.10e12, 1.16 ms at 48 % of the 8-bit peak (1.20 measured); the choice takes 0.74 (0.45 to 1.0).
    let index =
        |new, before| sparse::prefill_index_time(&d, &s.indexer, &work(new, before)).seconds;
    let t = index(16_384, 0);
    assert!((1.8e-3..2.1e-3).contains(&t), "{t}");
    // Nothing is chosen where all are read.
    let short = index(2048, 0);
    assert!(short < 30e-6, "{short}");
    // Scores over 32 times the keys take 32 times as long, up to what the choice takes.
    let ratio = index(8192, 131_072) / index(8192, 0);
    assert!((10.0..40.0).contains(&ratio), "{ratio}");
}

#[test]
fn sparse_decodes_read_the_chosen_latents_and_every_key_of_the_indexer() {
    let ops = model();
    let d = *ops.device();
    let s = glm_5();
    let t = |context: u32| ops.decode_sparse(&s, &decodes(&[context; 128])).seconds;
    // 128 x (131 072 - 4096) keys of 132 bytes and scores of 8: 2.28e9 bytes, 0.85 ms at 80 % of 3350 GB/s.
    let more = t(131_072) - t(4096);
    assert!((more / 0.85e-3 - 1.0).abs() < 0.02, "{more}");
    // 2048 latents of 1152 bytes are all that attention reads: 128 x 2048 x 1152 = 302e6 bytes, 0.12 ms at 75 %.
    let attention = |context: u32| {
        let b = decodes(&vec![context; 128]);
        sparse::sparse_decode_time(&d, &s, SparseKernels::FlashMla, &b)
    };
    assert_eq!(attention(2048), attention(100_000));
    assert!((attention(2048).memory / 120e-6 - 1.0).abs() < 0.01);
    assert!(attention(64).seconds < 0.2 * attention(2048).seconds);
    // FlashMLA's kernel over packed 8-bit latents computes 2048 tokens, however few there are.
    let mut packed = s;
    packed.latent.kv_dtype = Dtype::Fp8;
    let b = |context: u32| decodes(&vec![context; 128]);
    let fixed = sparse::sparse_decode_time(&d, &packed, SparseKernels::FlashMla, &b(64));
    assert!(fixed.seconds > 60e-6, "{fixed:?}");
}

#[test]
fn short_prompts_take_dense_kernels_where_the_engine_has_them() {
    let shape = glm_5();
    let dense = PrefillShape {
        heads: 64,
        kv_heads: 64,
        head_dim: 256,
        kv_dtype: Dtype::Bf16,
        span: Span::All,
    };
    let seconds = |sparse: SparseKernels, tokens: u32| {
        let ops = model().with_kernels(Kernels {
            sparse,
            ..Kernels::default()
        });
        let mut b = BatchStats::default();
        b.add_prefill(tokens, 0, true);
        let work = PrefillWork::of(&b);
        (
            ops.prefill_sparse(&shape, &dense, &work).seconds,
            ops.prefill_mla(&dense, &work).seconds,
        )
    };
    let (sparse, dense_time) = seconds(SparseKernels::Sglang, 2048);
    assert_eq!(sparse, dense_time);
    let (sparse, dense_time) = seconds(SparseKernels::FlashMla, 2048);
    assert!(sparse > 1.2 * dense_time, "{sparse} {dense_time}");
    let (long, dense_time) = seconds(SparseKernels::Sglang, 65_536);
    assert!(long < dense_time, "{long} {dense_time}");
}
