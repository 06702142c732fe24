//! `[model]`, `[hardware]`, `[layout]` and `[step]` as written: what a replica is and what it stands on.

use std::collections::BTreeMap;

use hwmodels::Dtype;
use hwmodels::ops::collective::HostPath;
use hwmodels::units::{Secs, UsdPerHour};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The model that is served.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Name in the catalog (`servetwin catalog list`), e.g. "llama-2-7b". This or `config` is needed.
    pub name: Option<String>,
    /// Path of a Hugging Face `config.json`, relative to the scenario file. This or `name` is needed.
    pub config: Option<String>,
    /// Format of the weights: fp32, bf16 (also fp16), fp8, int8, int4 or mxfp4. Default: the format that
    /// the model is published in.
    pub weights: Option<Dtype>,
    /// Format of the KV cache: fp32, bf16, fp8 or int8. Default: bf16.
    pub kv_cache: Option<Dtype>,
    /// How unevenly tokens spread over experts: popularity of the i-th expert proportional to i^-skew; 0 is even, 1 is
    /// strongly skewed. Routers have been measured at 0.2 to 0.45 on text and at about 0.5 on random tokens (sources 7.6). Default: 0.
    pub expert_skew: Option<f64>,
}

/// The hardware that serves.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HardwareFile {
    /// Instance type in the catalog, e.g. "g5.2xlarge". A replica takes as many nodes as its layout needs;
    /// replicas that fit share a node.
    pub instance: Option<String>,
    /// Accelerator of a machine that is in no catalog, e.g. "H100", in place of `instance`. Its devices are joined by the accelerator's own link, else
    /// over PCIe; it has no price unless `price` gives one. Default: none.
    pub accelerator: Option<String>,
    /// How many of `accelerator` the machine has, 1 to 1024. Default: 1.
    pub count: Option<u32>,
    /// How bytes between devices of such a machine travel through the host, where these have no link and do not reach each other: "own" where each has
    /// a root port, or "shared", as rented virtual machines show it. Default: "own", with a warning where a layout hangs on it.
    pub host_path: Option<HostPath>,
    /// MIG profile that every accelerator is cut into, e.g. "3g.20gb": each part is a device of its own, without a link to others, so a replica
    /// takes one. Default: they are whole.
    pub mig: Option<String>,
    /// Date (YYYY-MM-DD) of the catalog's price to use. Default: the newest.
    pub price_date: Option<String>,
    /// Price of one instance, e.g. "1.21 USD/h". Default: the catalog's.
    pub price: Option<UsdPerHour>,
    /// Calibrated profile: "auto" (the built-in one for accelerator and engine, analytic where there is none),
    /// "analytic", a built-in profile's name, or the path of a profile file. Default: "auto".
    pub profile: Option<String>,
    /// Path of a fitted step model (`servetwin calibrate`), relative to the scenario file. It stands in place of `instance`,
    /// and `[model]` and the engine's limits may then be left out as far as it knows them. Default: none.
    pub step_profile: Option<String>,
    /// Parameters laid over the profile, by dotted name, e.g. { "engine.tgi.step_host" = 0.001 }; each within its
    /// physical bounds. Default: none.
    pub params: Option<BTreeMap<String, f64>>,
    /// Folder of catalog files that add to or replace the built-in ones, relative to the scenario file.
    /// Default: none.
    pub catalog: Option<String>,
}

/// How a replica is spread over devices.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutFile {
    /// Tensor-parallel ranks per pipeline stage (and data-parallel rank). Default: 1.
    pub tp: Option<u32>,
    /// Pipeline stages. Default: 1.
    pub pp: Option<u32>,
    /// Data-parallel attention ranks of a mixture of experts, of `tp` devices each: every rank has a scheduler and a KV cache of its own,
    /// and all meet in the expert layers (vLLM's `--data-parallel-size`; TensorRT-LLM's `enable_attention_dp` on n GPUs is dp = n, tp = 1).
    /// Limits of `[engine]` hold for each rank. Default: 1.
    pub dp: Option<u32>,
    /// Expert-parallel ranks within a stage: 1 splits every expert over the `dp` x `tp` ranks, `dp` x `tp` gives each
    /// rank whole experts (vLLM knows these two). TensorRT-LLM takes any divisor e of `dp` x `tp`: every expert is split over `dp` x `tp` / e ranks
    /// (`moe_expert_parallel_size` = e). Default: 1.
    pub ep: Option<u32>,
    /// Independent replicas behind the router. Default: 1.
    pub replicas: Option<u32>,
}

/// Step time = base + per_token x new tokens + per_context_token x decode contexts + per_pair x prefill
/// query-key pairs.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepFile {
    /// Cost of any step. Default: "0 s".
    pub base: Option<Secs>,
    /// Cost per new token. Default: "0 s".
    pub per_token: Option<Secs>,
    /// Cost per token of decode context. Default: "0 s".
    pub per_context_token: Option<Secs>,
    /// Cost per query-key pair of prefill. Default: "0 s".
    pub per_pair: Option<Secs>,
}

/// How a router chooses (sources 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouterPolicy {
    /// Each replica in turn.
    #[default]
    RoundRobin,
    /// Any replica, with equal chance.
    Random,
    /// The replica with the fewest unfinished requests.
    LeastOutstanding,
    /// The replica with the smallest share of KV blocks in use.
    LeastKv,
    /// The less loaded of two drawn replicas.
    PowerOfTwo,
    /// The replica that holds the longest prefix of the prompt.
    PrefixAware,
    /// Requests of a session stay on one replica.
    Session,
}
