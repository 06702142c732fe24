//! Serving engines, by the system whose behaviour they follow.

use serde::{Deserialize, Serialize};

/// Which engine a replica runs. Scheduling, memory planning and host overhead depend on it.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// vLLM with the V1 scheduler (serving-policies 1.2).
    VllmV1,
    /// Text Generation Inference on GPUs (serving-policies 2).
    Tgi,
    /// Text Generation Inference on Neuron: static slots (serving-policies 2.5).
    TgiNeuron,
    /// TensorRT-LLM in-flight batching (serving-policies 3).
    TrtLlm,
    /// Plain static batching: a batch starts and ends together.
    Static,
    /// llama.cpp's server: fixed slots, one batch of all of them per step (serving-policies 4).
    LlamaCpp,
    /// SGLang: prefill before decode, radix cache (serving-policies 7).
    Sglang,
}

impl EngineKind {
    /// Every engine, in the order of their names' first appearance in the documentation.
    pub const ALL: [EngineKind; 7] = [
        EngineKind::VllmV1,
        EngineKind::Tgi,
        EngineKind::TgiNeuron,
        EngineKind::TrtLlm,
        EngineKind::Static,
        EngineKind::LlamaCpp,
        EngineKind::Sglang,
    ];

    /// The name that scenario files use.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::VllmV1 => "vllm_v1",
            EngineKind::Tgi => "tgi",
            EngineKind::TgiNeuron => "tgi_neuron",
            EngineKind::TrtLlm => "trt_llm",
            EngineKind::Static => "static",
            EngineKind::LlamaCpp => "llama_cpp",
            EngineKind::Sglang => "sglang",
        }
    }

    /// What people call it.
    pub fn title(self) -> &'static str {
        match self {
            EngineKind::VllmV1 => "vLLM",
            EngineKind::Tgi => "TGI",
            EngineKind::TgiNeuron => "TGI on Neuron",
            EngineKind::TrtLlm => "TensorRT-LLM",
            EngineKind::Static => "a static decoder",
            EngineKind::LlamaCpp => "llama.cpp",
            EngineKind::Sglang => "SGLang",
        }
    }
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
