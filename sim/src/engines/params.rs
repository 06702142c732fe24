//! `[engine]`: which serving engine, with that engine's own parameters.

use std::borrow::Cow;
use std::fmt;

use hwmodels::units::Ratio;
use hwmodels::{EngineKind, memory};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::start::Engine;
use crate::policy::llama_cpp::LlamaCppParams;
use crate::policy::sglang::SglangParams;
use crate::policy::static_batch::StaticBatchParams;
use crate::policy::tgi::TgiParams;
use crate::policy::tgi_neuron::TgiNeuronParams;
use crate::policy::trt_llm::TrtLlmParams;
use crate::policy::vllm_v1::SchedulingPolicy;

/// Keys of `[engine]` that every kind has.
#[serde_with::skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineCommon {
    /// KV blocks of a replica (of each of its data-parallel ranks), in place of what the memory plan finds: a measured or reported number, at least 2.
    /// Default: from the memory plan.
    pub kv_blocks: Option<u64>,
    /// Share of device memory that the engine may use; under each engine's own name. Default: the engine's.
    pub memory_fraction: Option<Ratio>,
    /// Whether decode steps replay captured CUDA graphs (vLLM: not `enforce_eager`). Default: the engine's.
    pub cuda_graphs: Option<bool>,
}

/// The name under which an engine knows [`EngineCommon::memory_fraction`].
pub fn memory_key(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::VllmV1 => "gpu_memory_utilization",
        EngineKind::Tgi => "cuda_memory_fraction",
        EngineKind::TrtLlm => "kv_cache_free_gpu_mem_fraction",
        EngineKind::Sglang => "mem_fraction_static",
        EngineKind::TgiNeuron | EngineKind::Static | EngineKind::LlamaCpp => "memory_fraction",
    }
}

/// A release of vLLM, written `"0.15"` or `"0.8.5"`. Memory use, default limits and scheduling rules depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VllmRelease {
    /// What follows the `0.`.
    pub minor: u32,
    /// What follows the minor release's dot; `None`: the last of them.
    pub patch: Option<u32>,
}

impl VllmRelease {
    /// The newest release whose scheduling is modelled: what `kind = "vllm"` means.
    pub const NEWEST: VllmRelease = VllmRelease {
        minor: 33,
        patch: None,
    };

    /// The release with its patch: the last one where none is named.
    pub fn in_full(self) -> memory::VllmRelease {
        let last = memory::VllmRelease::last_of(self.minor);
        memory::VllmRelease {
            patch: self.patch.unwrap_or(last.patch),
            ..last
        }
    }
}

impl fmt::Display for VllmRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0.{}", self.minor)?;
        self.patch.map_or(Ok(()), |patch| write!(f, ".{patch}"))
    }
}

impl Serialize for VllmRelease {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VllmRelease {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let mut parts = text.strip_prefix("0.").unwrap_or("").split('.');
        let minor = (parts.next().and_then(|minor| minor.parse().ok()))
            .filter(|minor| (8..1000).contains(minor));
        // `0.11.0rc2` has the defaults of the release that it became.
        let patch = parts.next().and_then(|patch| {
            let digits = patch.find(|c: char| !c.is_ascii_digit());
            patch[..digits.unwrap_or(patch.len())].parse().ok()
        });
        match minor {
            Some(minor) => Ok(VllmRelease { minor, patch }),
            None => Err(serde::de::Error::custom(format!(
                "must be a release with the V1 scheduler like \"0.15\" (0.8 or later), got \"{}\"",
                crate::workload::input::shorten(&text, 40)
            ))),
        }
    }
}

impl JsonSchema for VllmRelease {
    fn schema_name() -> Cow<'static, str> {
        "VllmRelease".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "a release of vLLM, e.g. \"0.15\"",
            "pattern": r"^0\.[0-9]+(\.[0-9]+)*$",
            "examples": ["0.15"],
        })
    }
}

/// What takes in vLLM's requests: HTTP, templates, tokenising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VllmFrontEnd {
    /// vLLM's own Python process, one request after another.
    #[default]
    ApiServer,
    /// NVIDIA Dynamo: a Rust front end works on any number of requests at once and hands token ids to a vLLM worker.
    Dynamo,
}

/// Whose kernels compute vLLM's routed experts (`--moe-backend`; before that flag, `VLLM_MXFP4_USE_MARLIN=1` meant Marlin).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoeBackend {
    /// What vLLM takes for device and format.
    #[default]
    Auto,
    /// Marlin for MXFP4 weights.
    Marlin,
}

/// Which steps replay captured CUDA graphs, and which parts of them, under vLLM's names. `NONE` is `cuda_graphs = false` here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CudagraphMode {
    /// Decode steps as a whole; of steps with prefill, what lies between the attention kernels.
    FullAndPiecewise,
    /// Of every step, what lies between the attention kernels.
    Piecewise,
    /// Decode steps as a whole; steps with prefill are launched kernel by kernel.
    FullDecodeOnly,
}

/// vLLM's parameters as its command line names them; what is left out gets vLLM's default for the device.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VllmV1Keys {
    /// Release. Scheduling follows 0.33 from 0.22 on and 0.11 before; memory follows the release itself. Default: "0.15", with kind = "vllm"
    /// the newest that is modelled, "0.33".
    pub version: VllmRelease,
    /// Token budget of a step [tokens], at least `max_num_seqs`, and without chunked prefill at least `max_model_len`. Default: by release
    /// and device (docs/catalog.md), from 0.9 on 8192 on devices of 70 GiB or more but the A100, else 2048; without chunked prefill at least `max_model_len`.
    pub max_num_batched_tokens: Option<u32>,
    /// Requests that may run at once. Default: by release and device (docs/catalog.md), from 0.9 on 1024 on devices of 70 GiB or more but the A100, else 256;
    /// at most `max_num_batched_tokens`.
    pub max_num_seqs: Option<u32>,
    /// Longest prompt + output [tokens]; longer requests are refused. Default: what the model allows.
    pub max_model_len: Option<u32>,
    /// Whether a prompt may be computed over several steps; always so before 0.12. Default: true.
    pub enable_chunked_prefill: bool,
    /// Longest share of a step that one request gets [tokens]; 0 is no limit. Default: 0.
    pub long_prefill_token_threshold: u32,
    /// Queue discipline. Default: "fcfs".
    pub scheduling_policy: SchedulingPolicy,
    /// Whether freed blocks can be found again by their content. Default: true.
    pub enable_prefix_caching: bool,
    /// Whether a step is scheduled while the one before runs. Default: true from 0.14 on without pipeline stages.
    pub async_scheduling: Option<bool>,
    /// Waiting requests beyond which new ones are refused with 503. Default: no limit.
    pub max_num_queued_reqs: Option<u32>,
    /// Waiting prompt tokens beyond which new requests are refused with 503 [tokens]. Default: no limit.
    pub max_num_queued_tokens: Option<u64>,
    /// Admit a prompt only if all of it has room, not only its first chunk (rules of 0.33 only). Default: true.
    pub scheduler_reserve_full_isl: bool,
    /// Share of all blocks that stays free after an admission while others run (rules of 0.33 only). Default: 0.
    pub watermark: f64,
    /// Tokens per KV block [tokens]. Default: 16.
    pub block_size: u32,
    /// Host memory for KV, all ranks of a replica together [GiB] (`--kv-offloading-size`): full blocks are copied there as they are computed, and what
    /// was evicted or preempted is loaded from there, at the rate of the device's host link, and not computed again. Default: none.
    pub kv_offloading_size: Option<f64>,
    /// Batch sizes for which decode graphs are captured; larger batches run without. Sizes beyond
    /// `max_num_batched_tokens` are left out. Default: 1, 2, 4, multiples of 8 to 256, of 16 to 512.
    pub cudagraph_capture_sizes: Option<Vec<u32>>,
    /// Which steps replay captured graphs, and which parts of them (`cudagraph_mode` of `--compilation-config`). Default: "FULL_AND_PIECEWISE" from 0.11
    /// on, "PIECEWISE" before.
    pub cudagraph_mode: Option<CudagraphMode>,
    /// What takes requests in. Default: "api_server". With `hardware.step_profile` or `[step]` it is a delay without limit.
    pub front_end: VllmFrontEnd,
    /// Processes of the API server, each of which takes in one request at a time. Default: 1.
    pub api_server_count: u32,
    /// Whose kernels compute routed experts: "marlin" takes MXFP4 weights (GPT-OSS) through Marlin's, which prefill at half the rate of Triton's
    /// (`--moe-backend marlin`; in releases without the flag `VLLM_MXFP4_USE_MARLIN=1`). Default: "auto", which is Triton on Hopper.
    pub moe_backend: MoeBackend,
}

impl Default for VllmV1Keys {
    fn default() -> Self {
        VllmV1Keys {
            version: VllmRelease {
                minor: memory::VllmRelease::DEFAULT.minor,
                patch: None,
            },
            max_num_batched_tokens: None,
            max_num_seqs: None,
            max_model_len: None,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            scheduling_policy: SchedulingPolicy::Fcfs,
            enable_prefix_caching: true,
            async_scheduling: None,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            scheduler_reserve_full_isl: true,
            watermark: 0.0,
            block_size: 16,
            kv_offloading_size: None,
            cudagraph_capture_sizes: None,
            cudagraph_mode: None,
            front_end: VllmFrontEnd::ApiServer,
            api_server_count: 1,
            moe_backend: MoeBackend::Auto,
        }
    }
}

/// Gives, for each engine kind, its parameters' type.
macro_rules! engines {
    ($($variant:ident: $params:ty, $doc:literal;)*) => {
        /// Parameters of an engine, under its own names.
        #[derive(Clone, Debug, PartialEq)]
        pub enum EngineParams {
            $(#[doc = $doc] $variant($params),)*
        }

        impl EngineParams {
            /// Which engine it is.
            pub fn kind(&self) -> EngineKind {
                match self {
                    $(EngineParams::$variant(_) => EngineKind::$variant,)*
                }
            }

            /// The engine under these parameters.
            pub fn engine(&self) -> &dyn Engine {
                match self {
                    $(EngineParams::$variant(p) => p,)*
                }
            }

            /// Reads the parameters of `kind` from the keys of `[engine]` that are not common to all.
            ///
            /// # Errors
            /// A key with a value of the wrong type or without a needed value.
            pub fn read<'de, D: serde::Deserializer<'de>>(
                kind: EngineKind,
                keys: D,
            ) -> Result<EngineParams, D::Error> {
                match kind {
                    $(EngineKind::$variant => <$params>::deserialize(keys).map(EngineParams::$variant),)*
                }
            }

            /// The parameters as TOML; options without a value are left out.
            pub fn to_table(&self) -> toml::Table {
                let table = match self {
                    $(EngineParams::$variant(p) => toml::Table::try_from(p),)*
                };
                // Plain structs of numbers, booleans and names always serialise.
                table.unwrap_or_default()
            }

            /// JSON schema of the parameters of `kind`.
            pub fn schema(kind: EngineKind, g: &mut schemars::SchemaGenerator) -> schemars::Schema {
                match kind {
                    $(EngineKind::$variant => <$params>::json_schema(g),)*
                }
            }
        }
    };
}

engines! {
    VllmV1: VllmV1Keys, "vLLM, V1 scheduler.";
    Tgi: TgiParams, "Text Generation Inference.";
    TgiNeuron: TgiNeuronParams, "Static slots on Neuron devices.";
    TrtLlm: TrtLlmParams, "TensorRT-LLM in-flight batching.";
    Static: StaticBatchParams, "Plain static batching.";
    LlamaCpp: LlamaCppParams, "llama.cpp's server.";
    Sglang: SglangParams, "SGLang.";
}
