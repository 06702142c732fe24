//! What an engine's start-up is told, and what comes of it.

use hwmodels::engine_cost::EngineCost;
use hwmodels::memory::{MemorySettings, VllmRelease};
use hwmodels::ops::Kernels;
use hwmodels::{Accelerator, ModelArch};

use crate::cluster::pools::Role;
use crate::policy::check::ParamError;
use crate::simulation::EngineSpec;

/// Most decode graphs of an engine.
const MOST_GRAPHS: usize = 10_000;

/// What an engine's start-up has to know of hardware, model and layout.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// KV blocks of a replica, given or planned.
    pub kv_blocks: u64,
    /// Whether the scenario gives them.
    pub kv_given: bool,
    /// Longest sequence of the model [tokens].
    pub model_tokens: u32,
    /// Whether a model says that. Without one, what the KV cache holds bounds a sequence, too.
    pub has_model: bool,
    /// KV of a token, undivided [bytes]; 0: not known.
    pub kv_bytes_per_token: f64,
    /// Rate at which the devices that share a token's KV load it from the host together [bytes/s]; 0: not known.
    pub host_link: f64,
    /// Device of a rank; `None` where none is named.
    pub device: Option<&'a Accelerator>,
    /// Whether the scenario gives the share of device memory.
    pub fraction_given: bool,
    /// Tensor-parallel ranks of each data-parallel one.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel ranks.
    pub dp: u32,
    /// Which part of a request the replica serves.
    pub role: Role,
    /// Whether decode steps replay graphs, where the scenario says so.
    pub cuda_graphs: Option<bool>,
    /// Seed of what start-up draws.
    pub seed: u64,
    /// What the memory plan took for granted; `None` without a device.
    pub settings: Option<&'a MemorySettings>,
}

impl Start<'_> {
    /// Tokens that the KV blocks hold, at `block` tokens each.
    pub(super) fn kv_tokens(&self, block: u32) -> u64 {
        self.kv_blocks.saturating_mul(u64::from(block))
    }

    /// Longest sequence of the model, or without a model what the KV cache holds [tokens].
    pub(super) fn longest(&self, kv_tokens: u64) -> u32 {
        if self.has_model {
            return self.model_tokens;
        }
        u32::try_from(kv_tokens)
            .unwrap_or(u32::MAX)
            .min(self.model_tokens)
    }
}

/// An engine after start-up.
pub struct Started {
    /// Its scheduler.
    pub engine: EngineSpec,
    /// Tokens per KV block [tokens].
    pub block_tokens: u32,
    /// KV blocks of a replica.
    pub kv_blocks: u64,
    /// Longest prompt and output together [tokens].
    pub sequence_tokens: u32,
    /// How its KV lies in memory.
    pub storage: Storage,
    /// Most tokens in one step [tokens].
    pub step_tokens: u32,
    /// Whether the host's work overlaps with the device's, where its keys say so.
    pub overlap: Option<bool>,
    /// Which kernels it runs.
    pub kernels: Kernels,
    /// Sizes of its decode graphs where the scenario gives them, in ascending order.
    pub graph_sizes: Option<Vec<u32>>,
    /// What it logs about settings that make little sense.
    pub warnings: Vec<String>,
    /// The parameters that start-up decided.
    pub decided: toml::Table,
}

/// How an engine's KV lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In this many blocks that sequences share.
    Blocks(u64),
    /// In rows of any length, one a sequence.
    Rows {
        /// Tokens of all rows together [tokens].
        tokens: u64,
        /// Most rows at once.
        rows: u32,
    },
    /// In slots of a fixed length, one a sequence.
    Slots {
        /// Slots.
        slots: u32,
        /// Tokens of each [tokens].
        tokens: u32,
    },
}

/// A serving engine under the parameters of a scenario.
pub trait Engine {
    /// Tells the memory plan what the parameters say, for a model of this shape on so many pipeline stages.
    ///
    /// # Errors
    /// What the engine would refuse at start-up.
    fn settings(
        &self,
        arch: &ModelArch,
        start: &Start,
        settings: &mut MemorySettings,
    ) -> Result<(), ParamError>;

    /// Starts the engine.
    ///
    /// # Errors
    /// What the engine would refuse at start-up.
    fn start(&self, start: &Start) -> Result<Started, ParamError>;

    /// What the host's work costs behind the front end that the parameters name.
    fn front_end_cost(&self, cost: &EngineCost) -> EngineCost {
        *cost
    }

    /// Release of vLLM whose memory rules and default limits hold.
    fn vllm(&self) -> VllmRelease {
        VllmRelease::DEFAULT
    }
}

/// KV blocks while memory is not planned yet: enough for anything.
pub(super) const UNPLANNED: u64 = u32::MAX as u64;

/// A started engine's configuration, as far as it is numbers and names.
pub(super) fn table_of<T: serde::Serialize>(config: &T) -> toml::Table {
    let mut table = toml::Table::try_from(config).unwrap_or_default();
    table.remove("warnings");
    if let Some(toml::Value::Table(given)) = table.remove("params") {
        table.extend(given);
    }
    table
}

/// Sizes of decode graphs under the engine's own key, as far as `fit` makes something of them, in ascending order.
pub(super) fn graph_sizes(
    start: &Start,
    (engine, key): (&'static str, &'static str),
    sizes: Option<&[u32]>,
    fit: impl Fn(u32) -> Option<u32>,
) -> Result<Option<Vec<u32>>, ParamError> {
    let Some(sizes) = sizes else { return Ok(None) };
    let fail = |message: String| Err(ParamError::new(engine, key, message));
    if start.cuda_graphs == Some(false) {
        return fail("has no effect with cuda_graphs = false; leave one of them out".into());
    }
    if sizes.is_empty() || sizes.len() > MOST_GRAPHS {
        let n = sizes.len();
        return fail(format!("must be 1 to {MOST_GRAPHS} batch sizes, got {n}"));
    }
    if sizes.contains(&0) {
        return fail("must be batch sizes of at least 1, got 0".into());
    }
    let mut sizes: Vec<u32> = sizes.iter().filter_map(|s| fit(*s)).collect();
    if sizes.is_empty() {
        return fail("all sizes are beyond the token budget of a step".into());
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(Some(sizes))
}
