//! Pools of replicas behind one gateway: what each serves, and how KV goes from one to another.

use crate::cluster::gateway::GatewaySpec;
use crate::cluster::router::RouterConfig;
use crate::kernel::time::SimDuration;

/// What the replicas of a pool do of a request.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// All of it.
    #[default]
    Both,
    /// Its prefill, up to the first token; a decode pool does the rest.
    Prefill,
    /// All after its first token.
    Decode,
}

/// Which side gives the client its first token.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FirstToken {
    /// The prefill side; the transfer lies between the first and the second token.
    #[default]
    Prefill,
    /// The decode side, which computes the last token of the prompt again: the transfer is part of TTFT.
    Decode,
    /// The decode side, which passes on what the prefill side has made as soon as the request joins its batch (SGLang): the transfer is part of TTFT.
    Relay,
}

/// A pool of replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    /// What it is called in reports.
    pub name: String,
    /// What its replicas do.
    pub role: Role,
    /// Index of the model that it serves: requests of a stream go to pools of the model that the stream asks for.
    pub model: u16,
    /// Shortest prompt that it takes [tokens].
    pub min_prompt: u32,
    /// Longest prompt that it takes [tokens].
    pub max_prompt: u32,
    /// How one of its replicas is chosen. Pools that take the same requests are chosen from together, by the rule of the first.
    pub router: RouterConfig,
    /// How many of [`crate::simulation::Simulation::replicas`] are its own: pools have theirs one after the other.
    pub replicas: u32,
    /// What one of its replicas can send, and receive, of KV [bytes/s].
    pub kv_bandwidth: f64,
    /// KV of one token [bytes].
    pub kv_bytes_per_token: f64,
    /// Layers of its model, for transfers layer by layer.
    pub layers: u32,
}

impl PoolSpec {
    /// Whether clients' requests come to it first.
    pub fn is_entry(&self) -> bool {
        self.role != Role::Decode
    }
}

/// How KV goes from prefill pools to decode pools.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferSpec {
    /// Before the first byte moves.
    pub latency: SimDuration,
    /// What all transfers together can have [bytes/s]; infinite: as much as the replicas' own ports.
    pub fabric: f64,
    /// Whether a layer's KV goes as soon as it is computed, beside the layers that follow.
    pub layerwise: bool,
    /// Which side gives the client its first token.
    pub first_token: FirstToken,
}

/// What the gateway does, and what stands behind it where that is more than one pool for everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Serving {
    /// The pools; none: all replicas serve everything.
    pub pools: Vec<PoolSpec>,
    /// How KV goes from one to another; needed where a pool prefills.
    pub transfer: Option<TransferSpec>,
    /// What the gateway does with tries that fail.
    pub gateway: GatewaySpec,
    /// Index of the model that each stream asks for; a stream that is not listed asks for model 0.
    pub stream_models: Vec<u16>,
}

impl Serving {
    /// The pool of each replica, in the order of the replicas.
    pub fn pool_of_replicas(&self) -> impl Iterator<Item = usize> + '_ {
        (self.pools.iter().enumerate()).flat_map(|(p, pool)| (0..pool.replicas).map(move |_| p))
    }
}
