//! `[[pool]]` and `[kv_transfer]` as written.

use hwmodels::units::{BytesPerSec, Secs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cluster_file::{AutoscalerFile, PodFile};
use super::deployment_file::{HardwareFile, LayoutFile, ModelFile, RouterPolicy, StepFile};
use crate::cluster::pools::{FirstToken, Role};

/// A pool of replicas that are alike, beside others behind the same gateway. What it leaves out is as at the top of the file. Pools that
/// take the same requests are chosen from together.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolFile {
    /// Name in reports; unique. Default: "pool-0", "pool-1", ...
    pub name: Option<String>,
    /// What its replicas do of a request: both, or its prefill alone (vLLM: `kv_role = "kv_producer"`; TensorRT-LLM: context servers; SGLang:
    /// `--disaggregation-mode prefill`), or the decode that follows (`kv_consumer`; generation servers; `--disaggregation-mode decode`). Default: "both".
    pub role: Option<Role>,
    /// Its replicas; with `[cluster]` those wanted at the start, 0 or more. Default: 1.
    pub replicas: Option<u32>,
    /// With `[cluster]`: its pods, keys of `[cluster.pod]` that differ. Their name is the pool's unless it is given here.
    pub pod: Option<PodFile>,
    /// With `[cluster]`: who changes the number of its replicas, by the keys of `[autoscaler]` but for those that scale nodes. Default: operators alone do.
    pub autoscaler: Option<AutoscalerFile>,
    /// With `[cluster]`: names of the node groups that its pods may be placed on (`nodeSelector`). Default: all that have its accelerator.
    pub node_groups: Option<Vec<String>>,
    /// Shortest prompt that it takes [tokens]. Default: any.
    pub min_prompt: Option<u32>,
    /// Longest prompt that it takes [tokens]; what no pool takes is refused with 422. Default: any.
    pub max_prompt: Option<u32>,
    /// How one of its replicas is chosen. Default: `router.policy`.
    pub router: Option<RouterPolicy>,
    /// The model that it serves, in place of `[model]`.
    pub model: Option<ModelFile>,
    /// The hardware that it stands on, in place of `[hardware]`.
    pub hardware: Option<HardwareFile>,
    /// Keys of `[layout]` that differ, without `replicas`.
    pub layout: Option<LayoutFile>,
    /// Its step times, in place of `[step]`.
    pub step: Option<StepFile>,
}

/// How KV goes from prefill pools to decode pools.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KvTransferFile {
    /// What one replica can send, and what one can receive; transfers under way at once share it evenly. Default: the catalog's: of the link between
    /// the accelerators of a node (NVLink, PCIe) times the replica's, where all pools stand on one node, else its share of the node's network.
    pub bandwidth: Option<BytesPerSec>,
    /// From when the receiver's blocks are set aside until the first byte moves. Default: the catalog's of that link.
    pub latency: Option<Secs>,
    /// What all transfers together can have, e.g. of a switch. Default: no limit but the replicas' own.
    pub fabric_bandwidth: Option<BytesPerSec>,
    /// KV of a token [bytes], of a scenario with `[step]`, which has no model. Default: the model's.
    pub bytes_per_token: Option<f64>,
    /// Whether a layer's KV goes as soon as it is computed, beside the layers that follow. Default: false, all goes when the prefill is done.
    pub layerwise: Option<bool>,
    /// Which side gives the client its first token: "prefill", or "decode" (a proxy that passes on the decode side's answer alone, which then computes
    /// the last token of the prompt again; the transfer is part of TTFT), or "relay" (SGLang: the decode side passes on what the prefill side has made when
    /// the request joins its batch). Default: "prefill"; "relay" under SGLang.
    pub first_token: Option<FirstToken>,
}
