//! What a stage's weights take, and what engines keep beside quantised ones.

use std::ops::Range;

use crate::blocks::{Block, FeedForward};
use crate::dtype::Dtype;
use crate::engine::EngineKind;
use crate::layout::Layout;
use crate::model::ModelArch;

/// Values of the rotary table of the model that [`VLLM_NON_TORCH`] was fitted on: 131 072 positions of 128 dims.
const FITTED_TABLE: f64 = 131_072.0 * 128.0;

/// Weights of the layers `layers` on one rank, with padding, 16-bit attention and tables [bytes].
pub(super) fn stage_weights(
    model: &ModelArch,
    layout: Layout,
    layers: Range<u32>,
    dtype: Dtype,
    engine: EngineKind,
) -> f64 {
    let mut weights = model.stage_weight_bytes(layout, layers.clone(), dtype);
    if dtype == Dtype::Mxfp4 && engine == EngineKind::VllmV1 {
        weights += mxfp4_padding(model, layout, layers.clone());
    }
    weights += rotary_table(model, engine);
    if engine != EngineKind::TrtLlm {
        let with_attention = model.kv_layers_in(layers);
        weights += model.unquantised_attention_bytes(dtype, layout.tp, with_attention);
    }
    weights
}

/// What the table by which an engine rotates queries and keys takes beyond that of Llama-3.1-8B [bytes], which is in [`super::VLLM_NON_TORCH`]. Engines make it for all
/// positions of the model at their start: vLLM in 16 bits (`RotaryEmbedding.cos_sin_cache`; pull request 44738, which would have cut it to `max_model_len`,
/// was not merged), SGLang on NVIDIA and TensorRT-LLM in 32 (`RopeParams.create_rope_const_params`). Others grow theirs as they need it.
pub(super) fn rotary_table(model: &ModelArch, engine: EngineKind) -> f64 {
    let bytes = match engine {
        EngineKind::VllmV1 => 2.0,
        EngineKind::Sglang | EngineKind::TrtLlm => 4.0,
        _ => 0.0,
    };
    (model.rotary_table_values() - FITTED_TABLE).max(0.0) * bytes
}

/// What vLLM's kernels add to MXFP4 experts [bytes]: the hidden dimension of the values, not of their scales, is padded
/// to a multiple of 256. Inferred from the weights that gpt-oss-20b and -120b take (llm-d-benchmark).
fn mxfp4_padding(m: &ModelArch, layout: Layout, layers: Range<u32>) -> f64 {
    let padded = f64::from(m.hidden.next_multiple_of(256)) / f64::from(m.hidden);
    let experts = Block {
        feed_forward: FeedForward::Experts,
        ..Block::DENSE
    };
    let one = m.layer_weight_bytes(experts, Dtype::Mxfp4, layout);
    let values = one.expert * one.experts_held * 0.5 / Dtype::Mxfp4.bytes();
    f64::from(m.moe_layers_in(layers)) * values * (padded - 1.0)
}
