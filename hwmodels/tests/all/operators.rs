//! What must hold for operator times whatever the parameters.

use hwmodels::ops::{
    Cache, DecodeShape, Kernels, MoeShape, OperatorModel, PrefillShape, PrefillWork, Products,
    Routing,
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
    window: None,
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
            .decode_attention(&DecodeShape { window: Some(window), ..GQA }, &b, Cache::Cold)
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
            heads: 32, kv_heads: 8, head_dim: 128, kv_dtype: Dtype::Bf16, window: None,
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
