//! The shipped surfaces stay within physics: no kernel beats the data sheet, more work takes no less time, and nothing goes wild outside the tables.

use hwmodels::ops::{
    Cache, DecodeShape, Kernels, MoeShape, OpShape, OperatorModel, PrefillShape, PrefillWork,
    Routing, Span,
};
use hwmodels::profiles::{self, Choice};
use hwmodels::{BatchStats, Catalog, Dtype, EngineKind};

/// Every accelerator and engine with surfaces of their own.
fn models() -> Vec<(String, OperatorModel)> {
    let catalog = Catalog::builtin();
    let mut out = Vec::new();
    for p in profiles::builtin().filter(|p| !p.surfaces.is_empty()) {
        let engine = p.engines[0];
        let chip = catalog.accelerator(&p.accelerator).unwrap();
        let relative = chip.same_chip_as.as_deref();
        let resolved = profiles::resolve(&chip.name, relative, engine, &Choice::Auto).unwrap();
        assert!(
            resolved.used.iter().any(|u| u.name == p.name),
            "{}: not in use",
            p.name
        );
        let kernels = match engine {
            EngineKind::TrtLlm => Kernels::trt_llm(),
            _ => Kernels::default(),
        };
        let ops = OperatorModel::new(chip, &resolved.profile).with_kernels(kernels);
        out.push((p.name.clone(), ops));
    }
    assert_eq!(out.len(), 15);
    out
}

#[test]
fn products_respect_the_data_sheet_and_grow() {
    for (name, ops) in models() {
        let d = *ops.device();
        for weights in [Dtype::Bf16, Dtype::Fp8] {
            let Some(peak) = (match weights {
                Dtype::Fp8 => d.fp8,
                _ => Some(d.bf16),
            }) else {
                continue;
            };
            for (n, k) in [(4096, 4096), (28672, 8192), (2304, 5120), (200_000, 16384)] {
                let time = |m: u32| ops.gemm(m, n, k, weights, weights).seconds;
                let mut last = 0.0;
                for power in 0..18 {
                    let m = 1 << power;
                    let t = time(m);
                    let flops = 2.0 * f64::from(m) * f64::from(n) * f64::from(k) / peak;
                    let bytes = f64::from(n) * f64::from(k) * weights.bytes() / d.bandwidth;
                    let floor = flops.max(bytes);
                    assert!(
                        t > 0.999 * floor,
                        "{name} {weights:?} {m} {n} {k}: {t} {floor}"
                    );
                    assert!(
                        t < 40.0 * floor + 200e-6,
                        "{name} {weights:?} {m} {n} {k}: {t}"
                    );
                    // A larger product may run on a better tile.
                    assert!(
                        t > 0.7 * last,
                        "{name} {weights:?} {m} {n} {k}: {t} after {last}"
                    );
                    last = t;
                }
            }
        }
    }
}

#[test]
fn attention_respects_the_data_sheet_and_grows() {
    for (name, ops) in models() {
        let d = *ops.device();
        for kv_dtype in [Dtype::Bf16, Dtype::Fp8] {
            let decode = DecodeShape {
                heads: 32,
                kv_heads: 8,
                head_dim: 128,
                kv_dtype,
                span: Span::All,
            };
            for seqs in [1, 8, 64, 256, 4096] {
                let mut last = 0.0;
                for context in [16_u32, 256, 1024, 4096, 16384, 131_072, 1_000_000] {
                    let mut b = BatchStats::default();
                    (0..seqs).for_each(|_| b.add_decode(context));
                    let t = ops.decode_attention(&decode, &b, Cache::Cold).seconds;
                    let bytes = f64::from(seqs) * f64::from(context) * 2048.0 * kv_dtype.bytes();
                    let floor = bytes / d.bandwidth;
                    assert!(
                        t > 0.999 * floor,
                        "{name} {kv_dtype:?} {seqs} {context}: {t} {floor}"
                    );
                    assert!(
                        t > 0.9 * last,
                        "{name} {kv_dtype:?} {seqs} {context}: {t} {last}"
                    );
                    assert!(
                        t < 30.0 * floor + 500e-6,
                        "{name} {kv_dtype:?} {seqs} {context}: {t}"
                    );
                    last = t;
                }
            }
            let prefill = PrefillShape {
                heads: 32,
                kv_heads: 8,
                head_dim: 128,
                kv_dtype,
                span: Span::All,
            };
            let mut last = 0.0;
            for tokens in [16_u32, 128, 512, 2048, 8192, 32768, 131_072] {
                let mut b = BatchStats::default();
                b.add_prefill(tokens, 0, true);
                let t = ops
                    .prefill_attention(&prefill, &PrefillWork::of(&b))
                    .seconds;
                let pairs = f64::from(tokens) * f64::from(tokens) / 2.0;
                let floor = 4.0 * pairs * 4096.0 / d.fp8.unwrap_or(d.bf16);
                assert!(
                    t > 0.999 * floor,
                    "{name} {kv_dtype:?} {tokens}: {t} {floor}"
                );
                assert!(
                    t > 0.7 * last,
                    "{name} {kv_dtype:?} {tokens}: {t} after {last}"
                );
                last = t;
            }
        }
    }
}

#[test]
fn experts_grow_with_their_tokens() {
    for (name, ops) in models() {
        for (weights, block_scales) in [
            (Dtype::Bf16, false),
            (Dtype::Fp8, false),
            (Dtype::Fp8, true),
            (Dtype::Mxfp4, false),
        ] {
            let shape = MoeShape {
                hidden: 4096,
                intermediate: 1536,
                experts: 128,
                top_k: 8,
                tp: 1,
                ep: 4,
                weights,
                activations: if weights == Dtype::Fp8 {
                    weights
                } else {
                    Dtype::Bf16
                },
                block_scales,
            };
            let mut last = 0.0;
            for power in 0..16 {
                let t = ops.moe(&shape, 1 << power, Routing::Balanced).seconds;
                assert!(
                    t > 0.55 * last,
                    "{name} {weights:?} 2^{power}: {t} after {last}"
                );
                last = t;
            }
        }
    }
}

/// Mixtral's experts, halves of each on two ranks, on H100 under vLLM: the public table has 0.497 ms for 64 tokens and 1.127 ms for 2048.
#[test]
fn experts_that_were_measured_take_what_was_measured() {
    let models = models();
    let (_, ops) = (models.iter())
        .find(|(name, _)| name == "h100_sxm.vllm.kernels")
        .unwrap();
    let shape = MoeShape {
        hidden: 4096,
        intermediate: 14_336,
        experts: 8,
        top_k: 2,
        tp: 2,
        ep: 1,
        weights: Dtype::Bf16,
        activations: Dtype::Bf16,
        block_scales: false,
    };
    for (tokens, milliseconds) in [(64, 0.497), (2048, 1.127)] {
        let t = ops.moe(&shape, tokens, Routing::Even).seconds * 1e3;
        assert!((t / milliseconds - 1.0).abs() < 0.03, "{tokens}: {t}");
    }
    assert_eq!(
        ops.evidence(&OpShape::Moe(shape)),
        hwmodels::Evidence::Fitted
    );
}

/// Every shipped set of curves can be read, and its rows lie close to it.
#[test]
fn every_table_of_experts_has_curves() {
    let mut with_curves = 0;
    for p in profiles::builtin() {
        for (name, shapes) in &p.shapes {
            let curves = shapes
                .curves()
                .unwrap_or_else(|e| panic!("{} {name}: {e}", p.name));
            assert!(!curves.is_empty(), "{} {name}", p.name);
            assert!(shapes.fitted_p90 < 12.0, "{} {name}", p.name);
            with_curves += 1;
        }
    }
    assert!(with_curves >= 30, "{with_curves}");
}
