//! How many kernels a layer has that a PyTorch program launches one by one.
//!
//! Where no captured graph holds a step (prefill under SGLang before 0.5.10, under vLLM V0 and TGI; anything with graphs turned off), the host
//! launches each kernel from Python, and short steps take as long as that does. Launches cost about the same whatever a kernel computes, so a
//! layer's host time grows with their number: a mixture of experts or latent attention has two to three times as many as a dense layer.
//!
//! One figure fits what has been published and fitted, with the counts below, 37 us a launch:
//!
//! | what | layers | measured | by count |
//! |---|---|---|---|
//! | TGI of 2023, Llama-2 (fitted, `engine.tgi.layer_launch`) | - | 0.44 ms a layer | 0.44 |
//! | Qwen3-4B, prefill of 129 tokens without graphs (wejoncy/sfllm pull request 46) | 36 | 16.6 ms | 18.5 |
//! | Qwen3-30B-A3B, decode without graphs, vLLM, TP 4 (vLLM issue 45709) | 48 | 33.9 ms | 38.7 |
//! | DeepSeek-V3, prefill of one token without graphs, SGLang, TP 8 (sgl-project/sglang pull request 12160) | 61 | 82.6 ms | 83.5 |

use crate::model::AttentionKind;
use crate::{Dtype, ModelArch};

/// Kernels of a dense layer in 16 bits: two norms, QKV, rotary embedding, KV write, attention, output projection, gate with up
/// projection, activation, down projection, two collectives.
pub const DENSE: f64 = 12.0;
/// What experts have over a dense block: the router, the choice and weighing of experts, three kernels that sort tokens by them, the weighted
/// sum, and the buffers that are filled for it.
const EXPERTS: f64 = 8.0;
/// Shared experts beside them: two products, an activation, an addition.
const SHARED: f64 = 4.0;
/// Latent attention over the usual one: compression, its two norms, two expansions, the assembly of keys.
const LATENT: f64 = 6.0;
/// Linear attention over the usual one: a convolution, gates, and the recurrence in chunks.
const LINEAR: f64 = 6.0;

/// Kernels of the average layer of `model` with such weights. Activations of 8-bit products are quantised by a kernel of their own.
pub fn kernels_per_layer(model: &ModelArch, weights: Dtype) -> f64 {
    let quantised = matches!(weights, Dtype::Fp8 | Dtype::Int8);
    let latent = matches!(model.attention, AttentionKind::Mla { .. });
    let attention_products = if latent { 4.0 } else { 2.0 };
    let layers = f64::from(model.layers.max(1));
    let mixtures = f64::from(model.moe_layers_in(0..model.layers)) / layers;
    let linear = model
        .linear
        .map_or(0.0, |l| f64::from(l.layers_in(0..model.layers)) / layers);
    let shared = model.moe.is_some_and(|m| m.shared_intermediate > 0);
    let mut kernels = DENSE + linear * LINEAR;
    if latent {
        kernels += LATENT;
    }
    if model.qk_norm {
        kernels += 2.0 * (1.0 - linear);
    }
    if quantised && !model.attention_in_16_bits {
        kernels += attention_products;
    }
    let feed_forward_products = if quantised { 2.0 } else { 0.0 };
    kernels += feed_forward_products;
    kernels += mixtures * EXPERTS;
    if shared {
        kernels += mixtures * (SHARED + feed_forward_products);
    }
    kernels
}

/// The same over a dense layer in 16 bits [ratio].
pub fn over_dense(model: &ModelArch, weights: Dtype) -> f64 {
    kernels_per_layer(model, weights) / DENSE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalog;

    fn kernels(name: &str, weights: Dtype) -> f64 {
        kernels_per_layer(Catalog::builtin().model(name).unwrap(), weights)
    }

    #[test]
    fn dense_layers_have_a_dozen_and_experts_and_latent_attention_more() {
        assert_eq!(kernels("llama-3.1-8b", Dtype::Bf16), DENSE);
        // Query and key norms.
        assert_eq!(kernels("qwen3-32b", Dtype::Bf16), DENSE + 2.0);
        // Four products take 8-bit activations.
        assert_eq!(kernels("llama-3.1-8b", Dtype::Fp8), DENSE + 4.0);
        assert_eq!(kernels("mixtral-8x7b", Dtype::Bf16), DENSE + EXPERTS);
        assert!(kernels("deepseek-v3", Dtype::Fp8) > 3.0 * DENSE);
    }

    #[test]
    fn published_steps_without_graphs_take_37_us_a_launch() {
        for (model, weights, layers, measured_ms) in [
            ("qwen3-4b", Dtype::Bf16, 36.0, 16.6),
            ("qwen3-30b-a3b", Dtype::Bf16, 48.0, 33.9),
            ("deepseek-v3", Dtype::Fp8, 61.0, 82.6),
        ] {
            let ms = kernels(model, weights) * layers * 36.7e-3;
            assert!(
                (ms / measured_ms - 1.0).abs() < 0.15,
                "{model}: {ms} ms, measured {measured_ms}"
            );
        }
    }
}
