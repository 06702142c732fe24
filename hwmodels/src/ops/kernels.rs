//! Which kernels an engine runs, where engines and their versions differ.

use super::attention::SparseKernels;
use super::moe::Experts;
use super::sampling::{Sampler, Sampling};
use crate::Dtype;

/// Who chooses the kernels of matrix products, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// A library, for each shape as it comes (cuBLASLt and its like).
    #[default]
    PerShape,
    /// A compiler, once, as the fastest for this many tokens: TensorRT for 16-bit products that TensorRT-LLM's GEMM plugin
    /// does not take over (`opt_num_tokens`; TensorRT-LLM docs, "Best Practices for Tuning the Performance").
    Compiled {
        /// Tokens that the kernels were chosen for.
        tokens: u32,
    },
}

/// Which kernels an engine runs, where engines and their versions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// Who chooses the kernels of matrix products.
    pub products: Products,
    /// Whether gate and up projection of a gated feed-forward block are one product.
    pub gate_with_up: bool,
    /// Whether decode attention splits the KV of a sequence over idle units.
    pub split_kv: bool,
    /// Whether decodes over an 8-bit KV cache run on TensorRT-LLM's XQA kernels in place of FlashAttention's.
    pub xqa: bool,
    /// Whether 8-bit activations are written by the kernels that make them, with scales known beforehand (checkpoints of NVIDIA's
    /// Model Optimizer), and not by kernels of their own.
    pub fused_quantisation: bool,
    /// Whether rotary embedding and the write of new keys and values are one kernel.
    pub fused_rotary: bool,
    /// Kernels of 8-bit experts that one rank holds all of, which are CUTLASS's in any case when they are spread over ranks; and of MXFP4 experts.
    pub experts: Experts,
    /// Whether decodes of layers that attend within chunks of the sequence (Llama 4) read their chunk alone. TensorRT-LLM's read everything: its
    /// chunked attention "can only be applied to context requests" (release 1.0's documentation of long sequences).
    pub chunked_decodes: bool,
    /// Whose kernels of sparse latent attention.
    pub sparse: SparseKernels,
    /// Format of the states of layers that keep one, where the model says none: the activations' (vLLM's `mamba_ssm_cache_dtype` and TensorRT-LLM's,
    /// `auto`), or 32 bits (SGLang's `SGLANG_MAMBA_SSM_DTYPE`).
    pub states: Dtype,
    /// Whose kernels cut the distribution of the next token.
    pub sampler: Sampler,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Which steps replay captured graphs, and which parts of them.
    pub graph_mode: GraphMode,
    /// Tokens that the model's own module drafts after each step for the next one to verify; 0: there is no speculation [tokens].
    pub drafts: u32,
}

/// Which steps of vLLM and SGLang replay captured CUDA graphs (`cudagraph_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphMode {
    /// Decode steps as a whole; of steps with prefill, what lies between the attention kernels.
    #[default]
    FullAndPiecewise,
    /// Of every step what lies between the attention kernels, which the host launches layer by layer.
    Piecewise,
    /// Decode steps as a whole; steps with prefill are launched kernel by kernel.
    FullDecodeOnly,
}

impl Kernels {
    /// What TensorRT-LLM runs, with cuBLASLt's products.
    pub fn trt_llm() -> Kernels {
        Kernels {
            products: Products::PerShape,
            gate_with_up: true,
            split_kv: true,
            xqa: true,
            fused_quantisation: true,
            fused_rotary: true,
            experts: Experts::Cutlass,
            chunked_decodes: false,
            sparse: SparseKernels::TrtLlm,
            states: Dtype::Bf16,
            sampler: Sampler::FlashInfer,
            sampling: Sampling::default(),
            graph_mode: GraphMode::default(),
            drafts: 0,
        }
    }
}

impl Default for Kernels {
    /// What current engines do.
    fn default() -> Kernels {
        Kernels {
            products: Products::PerShape,
            gate_with_up: true,
            split_kv: true,
            xqa: false,
            fused_quantisation: false,
            fused_rotary: false,
            experts: Experts::Triton,
            chunked_decodes: true,
            sparse: SparseKernels::FlashMla,
            states: Dtype::Bf16,
            sampler: Sampler::Sort,
            sampling: Sampling::default(),
            graph_mode: GraphMode::default(),
            drafts: 0,
        }
    }
}
