//! Memory plan of one replica: where each rank's memory goes, and how many KV tokens are left.
//!
//! Each engine divides memory in its own way:
//!
//! - **vLLM** takes `gpu_memory_utilization` of the device, loads the weights, runs a profile pass with
//!   `max_num_batched_tokens` tokens and `max_num_seqs` sampled rows, and gives what is left to KV blocks
//!   (serving-policies 1.5). CUDA graphs are captured afterwards: before version 0.21 they come on top,
//!   since then they are estimated and subtracted.
//! - **TGI** runs a warm-up prefill of `MAX_BATCH_PREFILL_TOKENS` and gives 0.9 of what is then free to KV,
//!   besides the blocks of the warm-up batch (2.1).
//! - **TensorRT-LLM** gives `kv_cache_free_gpu_mem_fraction` of what is free after the engine is loaded (3.4).
//! - **TGI on Neuron** reserves batch size x sequence length at compile time (2.5).
//! - **SGLang** gives weights and KV together `mem_fraction_static` of what is free before it loads them; what steps and graphs take has to fit
//!   into the rest, which it does not measure (7.5).
//! - **Static** batching gives what is left of the fraction.
//!
//! The activation peak is the larger of two moments: the widest point of the forward pass, and the sampler over
//! all sampled rows. Its constants, what they were fitted on and how well they predict the rest stand in
//! docs/catalog.md; `cargo run -p hwmodels --example kv_tokens` prints the comparison.

mod limits;
mod sglang;
#[cfg(test)]
mod tests;
mod weights;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::accelerator::Accelerator;
use crate::catalog::Catalog;
use crate::dtype::Dtype;
use crate::engine::EngineKind;
use crate::error::{DoesNotFit, Error};
use crate::layout::{Layout, Placement};
use crate::model::{AttentionKind, ModelArch};
use crate::units::ByteSize;

pub use limits::VllmRelease;
pub use sglang::{SglangDevice, SglangReserve};
use weights::stage_weights;

const GIB: f64 = 1_073_741_824.0;

/// Copies of the fp32 logits that vLLM's sampler holds at its peak while it sorts: until version 0.16.
/// Fitted on Llama-3.1-8B and Qwen3-0.6B (llm-d-benchmark, vLLM of mid 2025, one H100).
const SORTING_SAMPLER_COPIES: f64 = 9.56;
/// Copies with the Triton top-k/top-p kernel (vLLM PR 33538, from 0.17): 16-bit logits, fp32 logits, probabilities.
const TRITON_SAMPLER_COPIES: f64 = 2.5;
/// Scratch memory of that kernel [bytes], as its authors state it.
const TRITON_SAMPLER_SCRATCH: f64 = 80.0 * 1_048_576.0;
/// Copies of the last hidden states that stay alive beside the sampler (all tokens, and the sampled rows).
/// Fitted with [`SORTING_SAMPLER_COPIES`] on the same two rows.
const SAMPLER_HIDDEN_COPIES: f64 = 1.28;
/// What vLLM finds taken outside the torch allocator on a single rank [bytes]: fitted on Llama-3.1-8B.
const VLLM_NON_TORCH: f64 = 0.13 * GIB;
/// More of it with tensor or pipeline parallel: NCCL and the all-reduce buffers [bytes]; fitted on Qwen3-32B, TP 2.
const COMMUNICATION: f64 = 0.41 * GIB;
/// Memory that a process takes by using the device at all [bytes]; recalled, 0.3 to 0.5 GiB by device.
const CUDA_CONTEXT: f64 = 0.45 * GIB;
/// Captured CUDA graphs of one rank [bytes]: median of what public vLLM logs say (0.10 to 0.65 GiB).
const CUDA_GRAPHS: f64 = 0.36 * GIB;
/// Neuron runtime and compiled code per core [bytes]; recalled.
const NEURON_RUNTIME: f64 = 0.25 * GIB;
/// TGI's headroom on free memory (serving-policies 2.1).
const TGI_HEADROOM: f64 = 0.9;
/// First release whose V1 engine counts as memory outside the allocator what its own start adds; before, it counts all that the device has
/// given away, the process's own context first of all (vLLM PR 19312, June 2025).
const VLLM_COUNTS_ITS_OWN: VllmRelease = VllmRelease { minor: 9, patch: 2 };
/// First minor version (0.x) of vLLM with each change.
const VLLM_TRITON_SAMPLER: u32 = 17;
const VLLM_GRAPHS_SUBTRACTED: u32 = 21;

/// What memory planning must know of an engine's settings. Names follow vLLM; each field says what it is elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySettings {
    /// The engine.
    pub engine: EngineKind,
    /// Release of vLLM; other engines ignore it.
    pub vllm: VllmRelease,
    /// Format of the weights.
    pub weights: Dtype,
    /// Format of the KV cache.
    pub kv_cache: Dtype,
    /// `gpu_memory_utilization` (vLLM), `CUDA_MEMORY_FRACTION` (TGI), `kv_cache_free_gpu_mem_fraction`
    /// (TensorRT-LLM), `mem_fraction_static` (SGLang); in (0, 1].
    pub memory_fraction: f64,
    /// `max_num_batched_tokens`, `MAX_BATCH_PREFILL_TOKENS`, `max_num_tokens`: most tokens of a forward pass.
    pub max_num_batched_tokens: u32,
    /// `max_num_seqs`, `max_batch_size`; the compiled batch size on Neuron.
    pub max_num_seqs: u32,
    /// `max_model_len`, `MAX_TOTAL_TOKENS`; the compiled sequence length on Neuron.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks that a sequence holds beside those of its tokens: vLLM's for the states of layers that keep one.
    #[serde(default)]
    pub state_blocks: u32,
    /// Whether decode graphs are captured.
    pub cuda_graphs: bool,
}

impl MemorySettings {
    /// The engine's own defaults on this device for this model (serving-policies 1.3, 2.1, 3.4).
    /// TGI and static batching get `max_model_len` from the model; Neuron needs its compiled shapes set.
    pub fn defaults(
        engine: EngineKind,
        vllm: VllmRelease,
        device: &Accelerator,
        model: &ModelArch,
    ) -> Self {
        let limits = limits::of(vllm, device);
        let max_model_len = model.max_positions;
        let (memory_fraction, tokens, seqs, block_size) = match engine {
            EngineKind::VllmV1 => {
                let fraction = if vllm.minor >= VLLM_GRAPHS_SUBTRACTED {
                    0.92
                } else {
                    0.9
                };
                (fraction, limits.tokens, limits.seqs, 16)
            }
            EngineKind::Tgi => (1.0, 4_096, 128, 16),
            EngineKind::TgiNeuron => (1.0, max_model_len, 4, max_model_len),
            EngineKind::TrtLlm => (0.9, 8_192, 2_048, 64),
            EngineKind::Static => (0.9, max_model_len, 8, 16),
            EngineKind::LlamaCpp => (0.9, 2_048, 4, 1),
            EngineKind::Sglang => {
                // Of the newest release on one device; the engine's start-up knows release, layout and graphs.
                let one = SglangDevice::new(u32::MAX, device, 1, 1);
                let reserve = SglangReserve {
                    prefill_tokens: one.chunked_prefill_size(),
                    cuda_graph_max_bs: one.cuda_graph_max_bs(),
                    prefill_graphs: true,
                    drafts: false,
                };
                let fraction = one.mem_fraction_static(&reserve);
                (fraction, reserve.prefill_tokens, 2_048, 1)
            }
        };
        let cap = u64::from(seqs) * u64::from(max_model_len);
        Self {
            engine,
            vllm,
            weights: model.native_dtype,
            kv_cache: Dtype::Bf16,
            memory_fraction,
            max_num_batched_tokens: u32::try_from(cap).map_or(tokens, |c| tokens.min(c)),
            max_num_seqs: seqs,
            max_model_len,
            block_size,
            state_blocks: 0,
            cuda_graphs: !matches!(engine, EngineKind::TgiNeuron | EngineKind::Static),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |setting, rule, got: &dyn ToString| {
            Err(Error::Setting {
                setting,
                rule,
                got: got.to_string(),
            })
        };
        if !(self.memory_fraction > 0.0 && self.memory_fraction <= 1.0) {
            return wrong(
                "memory_fraction",
                "must be above 0 and at most 1",
                &self.memory_fraction,
            );
        }
        for (setting, value, max) in [
            (
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                1 << 24,
            ),
            ("max_num_seqs", self.max_num_seqs, 1 << 20),
            ("max_model_len", self.max_model_len, 1 << 28),
            ("block_size", self.block_size, 1 << 28),
        ] {
            if value == 0 || value > max {
                return wrong(setting, "must be at least 1 and within reason", &value);
            }
        }
        if matches!(self.kv_cache, Dtype::Int4 | Dtype::Mxfp4) {
            return wrong(
                "kv_cache",
                "must be fp32, bf16, fp8 or int8",
                &format!("{:?}", self.kv_cache),
            );
        }
        Ok(())
    }
}

/// Where the memory of one rank goes. All figures are of the rank that has the least room for KV.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct MemoryPlan {
    /// What a process sees as the rank's total memory [bytes].
    pub total: u64,
    /// Weights [bytes].
    pub weights: u64,
    /// Activation peak of the largest step [bytes].
    pub activation_peak: u64,
    /// Device context, NCCL and other memory outside the allocator, as far as the engine counts it [bytes].
    pub runtime: u64,
    /// Captured CUDA graphs [bytes].
    pub cuda_graphs: u64,
    /// Whether the engine keeps the graphs' memory out of what it gives to KV.
    pub graphs_subtracted: bool,
    /// KV cache [bytes].
    pub kv_bytes: u64,
    /// KV blocks as the engine counts them, any reserved block included.
    pub kv_blocks: u64,
    /// Tokens per block.
    pub block_size: u32,
    /// Tokens that the blocks hold when no layer has a window: `kv_blocks * block_size`.
    pub kv_tokens: u64,
    /// KV bytes per token on this rank, all its layers counted.
    pub kv_bytes_per_token: f64,
    /// The pipeline stage with the least room (from 0).
    pub stage: u32,
    /// Share of the layers that keep only their window; 0 where the engine keeps everything.
    pub windowed_share: f64,
    /// Blocks of a sequence after which a windowed layer grows no further.
    pub window_blocks: u64,
    /// Blocks of a sequence beside those of its tokens.
    pub state_blocks: u32,
}

impl MemoryPlan {
    /// Blocks that a sequence of `tokens` holds, windowed layers counted with their window only.
    pub fn blocks_for(&self, tokens: u64) -> u64 {
        let all = tokens.div_ceil(u64::from(self.block_size)) + u64::from(self.state_blocks);
        if self.windowed_share <= 0.0 || all <= self.window_blocks {
            return all;
        }
        let weighted = (1.0 - self.windowed_share) * all as f64
            + self.windowed_share * self.window_blocks as f64;
        // A hair off, so that rounding noise does not cost a block.
        (weighted - 1e-9).ceil() as u64
    }

    /// Plans `model` with `layout` on devices of one kind, wherever they are.
    ///
    /// # Errors
    /// Settings out of range, a layout that breaks a rule, and [`Error::DoesNotFit`] without advice on other layouts.
    pub fn for_layout(
        model: &ModelArch,
        device: &Accelerator,
        layout: Layout,
        settings: &MemorySettings,
    ) -> Result<Self, Error> {
        settings.check()?;
        layout.check(model, settings.engine)?;
        let stages = layout.stage_layers(model.layers, settings.engine);
        plan(model, device, layout, &stages, settings)
            .map_err(|short| short.error(model, &device.name, layout, short.advice(settings)))
    }

    /// Plans `model` as placed on its nodes. When it does not fit, the smallest layout that does on nodes of the
    /// same type is searched for and named.
    ///
    /// # Errors
    /// Settings out of range, and [`Error::DoesNotFit`].
    pub fn for_placement(
        catalog: &Catalog,
        placement: &Placement,
        model: &ModelArch,
        settings: &MemorySettings,
    ) -> Result<Self, Error> {
        settings.check()?;
        let layout = placement.layout;
        plan(model, &placement.accelerator, layout, &placement.stage_layers, settings).map_err(
            |short| {
                let instance = &placement.instance.name;
                let mut advice = match smallest_layout(catalog, model, instance, settings) {
                    Some(other) => format!(
                        "smallest layout that fits: {} ({})",
                        other.layout,
                        if other.nodes > 1 {
                            format!("{} nodes of type {instance}", other.nodes)
                        } else {
                            format!("{} of {} devices", other.devices(), other.instance.devices)
                        }
                    ),
                    None => format!(
                        "no layout on up to {MAX_NODES} nodes of type {instance} fits: take fewer bytes per weight (fp8, int4) or a device with more memory"
                    ),
                };
                let more = short.advice(settings);
                if short.kv_tokens.is_some() && !more.is_empty() {
                    advice = format!("{more}, or {advice}");
                }
                short.error(model, instance, layout, advice)
            },
        )
    }
}

/// Most nodes of a replica that the search for a fitting layout tries.
const MAX_NODES: u32 = 16;

/// The smallest placement that fits on nodes of type `instance`: the fewest pipeline stages, and of those the fewest
/// tensor-parallel ranks, since engines use tensor parallel within a node first. `None` when none fits or a name is
/// unknown.
pub fn smallest_layout(
    catalog: &Catalog,
    model: &ModelArch,
    instance: &str,
    settings: &MemorySettings,
) -> Option<Placement> {
    let node = catalog.instance(instance).ok()?;
    let ranks = node.ranks(catalog.accelerator(&node.accelerator).ok()?);
    let mut candidates: Vec<Layout> = Vec::new();
    for pp in 1..=MAX_NODES {
        for tp in (1..=ranks).filter(|tp| tp.is_power_of_two() || ranks.is_multiple_of(*tp)) {
            for ep in [1, tp] {
                candidates.push(Layout { tp, pp, dp: 1, ep });
            }
        }
    }
    candidates.sort_by_key(|l| (l.pp, l.tp, l.ep));
    candidates.dedup();
    candidates.into_iter().find_map(|layout| {
        let p = Placement::new(catalog, model, instance, layout, settings.engine).ok()?;
        plan(model, &p.accelerator, layout, &p.stage_layers, settings).ok()?;
        Some(p)
    })
}

/// Why a plan fails: what would be needed and what there is, per rank [bytes].
struct Shortfall {
    needs: f64,
    has: f64,
    /// KV tokens that there would be room for, when weights and activations fit but `max_model_len` does not.
    kv_tokens: Option<u64>,
    /// What the needs are made of.
    parts: String,
    /// What a rank is on this hardware.
    rank: &'static str,
}

impl Shortfall {
    fn advice(&self, s: &MemorySettings) -> String {
        match self.kv_tokens.filter(|t| *t > 0) {
            Some(tokens) => {
                let setting = if s.engine == EngineKind::TgiNeuron {
                    "batch size x sequence length"
                } else {
                    "max_model_len"
                };
                format!("set {setting} to at most {tokens}")
            }
            None => "take more devices or fewer bytes per weight (fp8, int4)".to_owned(),
        }
    }

    fn error(&self, model: &ModelArch, hardware: &str, layout: Layout, advice: String) -> Error {
        let size = |b: f64| ByteSize::new(b.max(0.0) as u64).human();
        Error::DoesNotFit(Box::new(DoesNotFit {
            model: model.name.clone(),
            hardware: hardware.to_owned(),
            layout: layout.to_string(),
            needs: format!("{} per {} ({})", size(self.needs), self.rank, self.parts),
            has: size(self.has),
            advice,
        }))
    }
}

/// One stage's use of memory [bytes].
struct Stage {
    weights: f64,
    activation: f64,
    runtime: f64,
    graphs: f64,
    /// Memory that the engine may use for everything, KV included.
    limit: f64,
    /// Memory left for KV.
    kv: f64,
    kv_bytes_per_token: f64,
}

fn plan(
    model: &ModelArch,
    device: &Accelerator,
    layout: Layout,
    stages: &[Range<u32>],
    s: &MemorySettings,
) -> Result<MemoryPlan, Shortfall> {
    let rank = device.per_rank();
    let mut tightest: Option<(u64, u32, Stage)> = None;
    for (index, layers) in stages.iter().enumerate() {
        let stage = stage_use(model, &rank, layout, layers.clone(), s);
        let per_block = stage.kv_bytes_per_token * f64::from(s.block_size);
        let blocks = (stage.kv / per_block).floor().max(0.0) as u64;
        if tightest.as_ref().is_none_or(|(b, _, _)| blocks < *b) {
            tightest = Some((blocks, index as u32, stage));
        }
    }
    // A layout always has a stage; one without layers is refused by its rules.
    let (blocks, index, stage) = tightest.unwrap_or_else(|| {
        let stage = stage_use(model, &rank, layout, 0..model.layers, s);
        (0, 0, stage)
    });
    let window = model.window.filter(|_| frees_windows(model, s));
    let mut plan = MemoryPlan {
        total: rank.usable_bytes,
        weights: stage.weights as u64,
        activation_peak: stage.activation as u64,
        runtime: stage.runtime as u64,
        cuda_graphs: stage.graphs as u64,
        graphs_subtracted: graphs_subtracted(s),
        kv_bytes: stage.kv.max(0.0) as u64,
        kv_blocks: blocks,
        block_size: s.block_size,
        kv_tokens: blocks.saturating_mul(u64::from(s.block_size)),
        kv_bytes_per_token: stage.kv_bytes_per_token,
        stage: index,
        windowed_share: window.map_or(0.0, |w| f64::from(w.layers) / f64::from(model.layers)),
        // A window that starts inside a block keeps that block too; a chunk starts with one.
        window_blocks: window.map_or(0, |w| {
            u64::from(w.tokens.div_ceil(s.block_size)) + u64::from(!model.attends_in_chunks())
        }),
        state_blocks: s.state_blocks,
    };
    // The least KV that the engine starts with.
    let (needed_blocks, limits_length) = match s.engine {
        EngineKind::VllmV1 => (plan.blocks_for(u64::from(s.max_model_len)), true),
        EngineKind::TgiNeuron => (u64::from(s.max_num_seqs), true),
        EngineKind::Tgi
        | EngineKind::TrtLlm
        | EngineKind::Static
        | EngineKind::LlamaCpp
        | EngineKind::Sglang => (1, false),
    };
    if plan.kv_blocks < needed_blocks {
        let fixed = stage.limit - stage.kv;
        let kv = needed_blocks as f64 * stage.kv_bytes_per_token * f64::from(s.block_size);
        let size = |b: f64| ByteSize::new(b.max(0.0) as u64).human();
        let room = match s.engine {
            EngineKind::TgiNeuron => (stage.kv.max(0.0) / stage.kv_bytes_per_token) as u64,
            _ => plan.kv_tokens,
        };
        return Err(Shortfall {
            needs: fixed + kv,
            has: stage.limit,
            rank: if device.ranks_per_device > 1 {
                "core"
            } else {
                "device"
            },
            kv_tokens: (limits_length && plan.kv_tokens > 0
                || s.engine == EngineKind::TgiNeuron && room > 0)
                .then_some(room),
            parts: format!(
                "{} weights, {} activations and runtime, {} KV for {} tokens",
                size(stage.weights),
                size(fixed - stage.weights),
                size(kv),
                needed_blocks.saturating_mul(u64::from(s.block_size)),
            ),
        });
    }
    if s.engine == EngineKind::TgiNeuron {
        // The cache is what was compiled, however much is free.
        plan.kv_blocks = needed_blocks;
        plan.kv_tokens = needed_blocks.saturating_mul(u64::from(s.block_size));
        plan.kv_bytes = (plan.kv_tokens as f64 * plan.kv_bytes_per_token) as u64;
    }
    Ok(plan)
}

/// Whether layers with a window give back the KV that they no longer see.
fn frees_windows(model: &ModelArch, s: &MemorySettings) -> bool {
    match s.engine {
        EngineKind::VllmV1 if model.attends_in_chunks() => limits::frees_chunks(s.vllm),
        EngineKind::VllmV1 => true,
        // Its decodes read all of a chunked layer's past.
        EngineKind::TrtLlm => !model.attends_in_chunks(),
        _ => false,
    }
}

fn graphs_subtracted(s: &MemorySettings) -> bool {
    match s.engine {
        EngineKind::VllmV1 => s.vllm.minor >= VLLM_GRAPHS_SUBTRACTED,
        EngineKind::Tgi | EngineKind::TrtLlm => true,
        EngineKind::TgiNeuron | EngineKind::Static | EngineKind::LlamaCpp | EngineKind::Sglang => {
            false
        }
    }
}

fn stage_use(
    model: &ModelArch,
    rank: &Accelerator,
    layout: Layout,
    layers: Range<u32>,
    s: &MemorySettings,
) -> Stage {
    let total = rank.usable_bytes as f64;
    let last = layers.end == model.layers;
    let weights = stage_weights(model, layout, layers.clone(), s.weights, s.engine);
    // A stage without attention keeps no KV; its states are those of whoever has some.
    let with_kv = model.kv_layers_in(layers.clone()).max(1);
    let kv_bytes_per_token = model.kv_bytes_per_token_rank(s.kv_cache, layout.tp, with_kv);
    let state = |unsaid| {
        let one = model.state_bytes_rank(unsaid, layout.tp, layers.clone());
        f64::from(s.max_num_seqs) * one
    };
    let states = match s.engine {
        // Both keep a state for each sequence that may run, apart from KV: `MambaCacheManager`; `MambaPool`, whose format is `SGLANG_MAMBA_SSM_DTYPE`'s.
        EngineKind::TrtLlm => state(Dtype::Bf16),
        EngineKind::Sglang => state(Dtype::Fp32),
        _ => 0.0,
    };
    let tokens = f64::from(s.max_num_batched_tokens);
    let forward = forward_peak(model, layout, tokens, s.engine);
    let distributed = layout.devices() > 1;
    let communication = if distributed { COMMUNICATION } else { 0.0 };
    let graphs = if s.cuda_graphs { CUDA_GRAPHS } else { 0.0 };
    let mut stage = Stage {
        weights,
        activation: forward,
        runtime: 0.0,
        graphs,
        limit: total * s.memory_fraction,
        kv: 0.0,
        kv_bytes_per_token,
    };
    match s.engine {
        EngineKind::VllmV1 => {
            if last {
                stage.activation = forward.max(sampler_peak(model, s) + sparse_workspace(model, s));
            }
            stage.runtime = VLLM_NON_TORCH + communication;
            if s.vllm < VLLM_COUNTS_ITS_OWN {
                stage.runtime += CUDA_CONTEXT;
            }
        }
        EngineKind::Tgi => {
            // The warm-up asks for log-probabilities of every prompt token: two 16-bit tables of them.
            let logits = if last {
                2.0 * 2.0 * tokens * f64::from(model.vocab)
            } else {
                0.0
            };
            stage.activation = forward + logits;
            stage.runtime = CUDA_CONTEXT + communication;
        }
        EngineKind::TrtLlm => stage.runtime = CUDA_CONTEXT + communication + states,
        EngineKind::Sglang => stage.runtime = CUDA_CONTEXT + communication,
        EngineKind::Static => stage.runtime = VLLM_NON_TORCH + communication,
        EngineKind::LlamaCpp => stage.runtime = CUDA_CONTEXT,
        EngineKind::TgiNeuron => stage.runtime = NEURON_RUNTIME,
    }
    let subtracted = if graphs_subtracted(s) { graphs } else { 0.0 };
    let used = stage.weights + stage.activation + stage.runtime + subtracted;
    stage.kv = match s.engine {
        EngineKind::Tgi => {
            let warm_up = tokens * kv_bytes_per_token;
            let free = total - used - warm_up - (1.0 - s.memory_fraction) * total;
            if free < 0.0 {
                free
            } else {
                free * TGI_HEADROOM + warm_up
            }
        }
        EngineKind::TrtLlm => (total - used) * s.memory_fraction,
        EngineKind::Sglang => {
            // Its share is of what is free before the weights are there, and holds nothing else.
            stage.limit = (total - stage.runtime) * s.memory_fraction;
            stage.limit - stage.weights - states
        }
        _ => stage.limit - used,
    };
    if matches!(s.engine, EngineKind::Tgi | EngineKind::TrtLlm) {
        // What is not given to KV for headroom is not there for anything else either.
        stage.limit = used + stage.kv;
        if stage.kv <= 0.0 {
            stage.limit = total
                * if s.engine == EngineKind::Tgi {
                    s.memory_fraction
                } else {
                    1.0
                };
            stage.kv = stage.limit - used;
        }
    }
    stage
}

/// Tokens that vLLM's expert kernels take at once (`VLLM_FUSED_MOE_CHUNK_SIZE`) [tokens]. TensorRT-LLM's take all (`moe_config.max_num_tokens`).
const VLLM_EXPERT_CHUNK: f64 = 32_768.0;

/// Widest point of a forward pass over `tokens` new tokens on one rank [bytes]: the residual stream and its normed
/// copy, and the larger of what attention and the feed-forward block hold, all in 16 bits.
fn forward_peak(m: &ModelArch, layout: Layout, tokens: f64, engine: EngineKind) -> f64 {
    let tp = f64::from(layout.tp.max(1));
    let gate = if m.gated { 2.0 } else { 1.0 };
    let feed_forward = |inner: f64| (gate + 1.0) * inner / tp;
    let mut width: f64 = 0.0;
    if m.dense_layers_in(0..m.layers) > 0 {
        width = width.max(feed_forward(f64::from(m.intermediate)));
    }
    if let Some(moe) = m.moe {
        // One row per token and chosen expert. vLLM's hold gate and up, their product, and the down-projected row that reuses the first.
        let top_k = f64::from(moe.top_k);
        let ranks = layout.stage_ranks().max(1);
        let share = f64::from(ranks) / f64::from(layout.ep.clamp(1, ranks));
        let inner = f64::from(moe.expert_intermediate) / share;
        let hidden = f64::from(m.hidden);
        // TensorRT-LLM's workspace is two buffers that share what is never held at once: the gathered row, the product and the down-projected row in
        // 16 bits; gate and up, or that row again (`CutlassMoeFCRunner::getWorkspaceDeviceBufferSizes`). It counts all chosen experts, wherever they are.
        let other = if engine == EngineKind::TrtLlm {
            hidden
        } else {
            inner
        };
        let routed = top_k * ((gate * inner).max(hidden) + other);
        // The expert kernels see the tokens of all data-parallel ranks, as many at a time as a chunk holds.
        let gathered = tokens * f64::from(layout.dp.max(1));
        let at_once = match engine {
            EngineKind::TrtLlm => gathered,
            _ => gathered.min(tokens.max(VLLM_EXPERT_CHUNK)),
        };
        // TensorRT-LLM holds what the experts make of the gathered tokens beside them, until it is scattered.
        let held = if engine == EngineKind::TrtLlm {
            2.0
        } else {
            1.0
        };
        let rows = if layout.dp > 1 && tokens > 0.0 {
            routed * at_once / tokens + held * hidden * gathered / tokens
        } else {
            routed
        };
        width = width.max(rows.max(feed_forward(f64::from(moe.shared_intermediate))));
    }
    let heads = f64::from(m.heads) / tp;
    let kv = f64::from(m.kv_heads_per_rank(layout.tp));
    let gates = if m.attention_gate { 3.0 } else { 2.0 };
    let attention = (gates * heads + 2.0 * kv) * f64::from(m.head_dim);
    let projected = (m.recurrence).map_or(0.0, |r| f64::from(r.on_rank(layout.tp).projected()));
    2.0 * tokens * (2.0 * f64::from(m.hidden) + width.max(attention).max(projected))
}

/// What sparse latent attention keeps for prompts under vLLM, beside what experts take [bytes]: the latents of `5 x max_model_len` tokens widened to 16 bits where
/// they have 8, or the indexer's keys of eight times as many (`get_prefill_workspace_size`, `get_max_prefill_buffer_size`): 0.9 GB for DeepSeek-V3.2's 163 840.
fn sparse_workspace(m: &ModelArch, s: &MemorySettings) -> f64 {
    let Some(indexer) = m.indexer else {
        return 0.0;
    };
    let latents = match (m.attention, s.kv_cache) {
        (
            AttentionKind::Mla {
                kv_lora_rank,
                qk_rope_dim,
                ..
            },
            Dtype::Fp8,
        ) => 5.0 * 2.0 * f64::from(kv_lora_rank + qk_rope_dim),
        _ => 0.0,
    };
    f64::from(s.max_model_len) * latents.max(40.0 * indexer.key_bytes())
}

/// What vLLM's sampler holds at its peak in the profile run [bytes]: copies of the logits of `max_num_seqs` rows,
/// gathered over the tensor-parallel ranks, beside the last hidden states.
fn sampler_peak(m: &ModelArch, s: &MemorySettings) -> f64 {
    let rows = f64::from(s.max_num_seqs.min(s.max_num_batched_tokens));
    let logits = rows * f64::from(m.vocab) * 4.0;
    let hidden = f64::from(s.max_num_batched_tokens) * f64::from(m.hidden) * 2.0;
    let triton = s.engine == EngineKind::VllmV1 && s.vllm.minor >= VLLM_TRITON_SAMPLER;
    SAMPLER_HIDDEN_COPIES * hidden
        + if triton {
            TRITON_SAMPLER_COPIES * logits + TRITON_SAMPLER_SCRATCH
        } else {
            SORTING_SAMPLER_COPIES * logits
        }
}
