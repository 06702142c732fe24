//! How many kernels a layer has that a PyTorch program launches one by one.
//!
//! Where no captured graph holds a step (prefill under SGLang before 0.5.10 and TGI; anything with graphs turned off), the host
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

use crate::blocks::{FeedForward, Mixer};
use crate::model::AttentionKind;
use crate::{Dtype, ModelArch};

/// Kernels of a dense layer in 16 bits.
pub const DENSE: f64 = ATTENTION + FEED_FORWARD;
/// A norm, QKV, rotary embedding, KV write, attention, output projection, a collective.
const ATTENTION: f64 = 7.0;
/// A norm, gate with up projection, activation, down projection, a collective.
const FEED_FORWARD: f64 = 5.0;
/// What experts have over a dense block: the router, the choice and weighing of experts, three kernels that sort tokens by them, the weighted
/// sum, and the buffers that are filled for it.
const EXPERTS: f64 = 8.0;
/// Shared experts beside them: two products, an activation, an addition.
const SHARED: f64 = 4.0;
/// Latent attention over the usual one: compression, its two norms, two expansions, the assembly of keys.
const LATENT: f64 = 6.0;
/// A recurrence over attention: a convolution, gates, and the work in chunks.
const STATE: f64 = 6.0;
/// Norms of queries and of keys.
const QK_NORMS: f64 = 2.0;

/// Kernels of the average layer of `model` with such weights. Activations of 8-bit products are quantised by a kernel of their own.
pub fn kernels_per_layer(model: &ModelArch, weights: Dtype) -> f64 {
    let quantised = |products: f64| match weights {
        Dtype::Fp8 | Dtype::Int8 => products,
        _ => 0.0,
    };
    let latent = matches!(model.attention, AttentionKind::Mla { .. });
    let mixed = if model.attention_in_16_bits {
        0.0
    } else {
        quantised(if latent { 4.0 } else { 2.0 })
    };
    let attention = ATTENTION
        + mixed
        + if latent { LATENT } else { 0.0 }
        + if model.qk_norm { QK_NORMS } else { 0.0 };
    let dense = FEED_FORWARD + quantised(2.0);
    let shared = match model.moe {
        Some(m) if m.shared_intermediate > 0 => SHARED + quantised(2.0),
        _ => 0.0,
    };
    let kernels: f64 = (model.blocks_in(0..model.layers).into_iter())
        .map(|(block, n)| {
            let mixer = match block.mixer {
                Mixer::Attention => attention,
                Mixer::State => ATTENTION + STATE + quantised(2.0),
                Mixer::None => 0.0,
            };
            let feed_forward = match block.feed_forward {
                FeedForward::Dense => dense,
                FeedForward::Experts => dense + EXPERTS + shared,
                FeedForward::None => 0.0,
            };
            f64::from(n) * (mixer + feed_forward)
        })
        .sum();
    kernels / model.whole_layers().max(0.5)
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
