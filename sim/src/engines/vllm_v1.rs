//! vLLM's start-up: limits whose defaults depend on each other, and what it refuses.
//!
//! The rules are those of `EngineArgs` (`_set_default_max_num_seqs_and_batched_tokens_args`, before that
//! `_set_default_args_v1`) and of `SchedulerConfig.verify_max_model_len`, whose words the messages keep.

use std::sync::Arc;

use hwmodels::engine_cost::{EngineCost, Intake};
use hwmodels::memory::{MemorySettings, VllmRelease};
use hwmodels::ops::{Experts, GraphMode, Kernels, Sampler};
use hwmodels::units::plain;
use hwmodels::{EngineKind, ModelArch};

use super::params::{CudagraphMode, MoeBackend, VllmFrontEnd, VllmV1Keys};
use super::start::{Engine, Start, Started, Storage, graph_sizes};
use crate::policy::check::ParamError;
use crate::policy::data_parallel;
use crate::policy::vllm_v1::{HostKv, VllmV1Params, VllmVersion};
use crate::simulation::EngineSpec;
use crate::workload::spec::MAX_TOKENS;

const NAME: &str = "vLLM V1";

/// First minor release of vLLM whose scheduling is taken to be that of 0.33; those before follow 0.11.
const RULES_OF_0_33: u32 = 22;

/// First minor release of vLLM that schedules asynchronously unless told otherwise (recalled from its release notes).
const ASYNC_BY_DEFAULT: u32 = 14;

/// First minor release that captures decode steps as a whole unless told otherwise (its release notes).
const WHOLE_GRAPHS: u32 = 11;

/// One GiB [bytes].
const GIB: f64 = (1u64 << 30) as f64;

/// Most host memory for KV [GiB].
const MOST_HOST_GIB: f64 = 1e6;

/// Most processes that may take requests in.
const MOST_API_SERVERS: u32 = 1024;

/// KV blocks that the token limits are settled with before memory is planned.
const UNPLANNED_BLOCKS: u64 = 1 << 20;

/// First minor release whose V1 engine can do without chunked prefill: from 0.8 to 0.11 it sets it to true whatever is asked
/// (`# V1 always uses chunked prefills`, vllm/engine/arg_utils.py of 0.11.0).
const CHUNKING_OPTIONAL: u32 = 12;

impl Engine for VllmV1Keys {
    fn settings(
        &self,
        arch: &ModelArch,
        start: &Start,
        s: &mut MemorySettings,
    ) -> Result<(), ParamError> {
        if let Some(n) = self.max_model_len {
            if n > arch.max_positions {
                return Err(ParamError::new(
                    NAME,
                    "max_model_len",
                    format!(
                        "{n} is beyond the {} tokens that {} is made for",
                        arch.max_positions, arch.name
                    ),
                ));
            }
            s.max_model_len = n;
        }
        if let Some(n) = self.max_num_seqs {
            s.max_num_seqs = n;
        }
        (s.block_size, s.state_blocks) = arch.vllm_blocks(s.kv_cache, start.tp, self.block_size);
        let unplanned = Start {
            kv_blocks: UNPLANNED_BLOCKS,
            ..*start
        };
        let params = resolve(self, s, &unplanned)?;
        s.max_num_batched_tokens = params.max_num_batched_tokens;
        s.max_num_seqs = params.max_num_seqs;
        Ok(())
    }

    fn start(&self, start: &Start) -> Result<Started, ParamError> {
        let fallback;
        let settings = match start.settings {
            Some(s) => s,
            None => {
                fallback = without_device(self);
                &fallback
            }
        };
        let params = VllmV1Params {
            host_kv: host_kv(self, start)?,
            ..resolve(self, settings, start)?
        };
        let limits = StepLimits {
            tokens: params.max_num_batched_tokens,
            seqs: params.max_num_seqs,
        };
        Ok(Started {
            block_tokens: params.block_size,
            kv_blocks: start.kv_blocks,
            sequence_tokens: params.max_model_len,
            // One block is a placeholder that no sequence gets.
            storage: Storage::Blocks(start.kv_blocks.saturating_sub(1)),
            step_tokens: params.budget(),
            overlap: Some(params.async_scheduling),
            kernels: Kernels {
                sampler: sampler(self.version.minor),
                experts: match self.moe_backend {
                    MoeBackend::Auto => Kernels::default().experts,
                    MoeBackend::Marlin => Experts::Marlin,
                },
                graph_mode: match self.cudagraph_mode {
                    Some(CudagraphMode::FullAndPiecewise) => GraphMode::FullAndPiecewise,
                    Some(CudagraphMode::Piecewise) => GraphMode::Piecewise,
                    Some(CudagraphMode::FullDecodeOnly) => GraphMode::FullDecodeOnly,
                    None if self.version.minor < WHOLE_GRAPHS => GraphMode::Piecewise,
                    None => GraphMode::FullAndPiecewise,
                },
                ..Kernels::default()
            },
            graph_sizes: graph_sizes(
                start,
                (NAME, "cudagraph_capture_sizes"),
                self.cudagraph_capture_sizes.as_deref(),
                |size| (size <= params.budget()).then_some(size),
            )?,
            warnings: warnings(self, limits, &params),
            decided: decided(&params),
            engine: cores(params, start.dp),
        })
    }

    fn front_end_cost(&self, cost: &EngineCost) -> EngineCost {
        let mut cost = match self.front_end {
            VllmFrontEnd::Dynamo => cost.behind_dynamo(),
            VllmFrontEnd::ApiServer => *cost,
        };
        if let Intake::Processes(n) = &mut cost.intake {
            *n = self.api_server_count;
        }
        cost
    }

    fn vllm(&self) -> VllmRelease {
        self.version.in_full()
    }
}

/// What the host's memory holds of each rank's KV, and how fast it comes from there.
fn host_kv(p: &VllmV1Keys, start: &Start) -> Result<Option<HostKv>, ParamError> {
    let fail = |message: String| Err(ParamError::new(NAME, "kv_offloading_size", message));
    let Some(gib) = p.kv_offloading_size else {
        return Ok(None);
    };
    if !(gib > 0.0 && gib <= MOST_HOST_GIB) {
        return fail(format!(
            "must be above 0 and at most {MOST_HOST_GIB} GiB, got {gib}"
        ));
    }
    if start.settings.is_some_and(|s| s.state_blocks > 0) {
        return fail(
            "KV of models whose layers keep a state in the host's memory is not modelled: leave it out"
                .into(),
        );
    }
    let block = f64::from(p.block_size) * start.kv_bytes_per_token;
    if block <= 0.0 || start.host_link <= 0.0 {
        return fail(
            "needs a model and a device of the catalog: how large a block is and how fast it comes from the host is not known here".into(),
        );
    }
    Ok(Some(HostKv {
        blocks: (gib * GIB / f64::from(start.dp.max(1)) / block) as u64,
        block_s: block / start.host_link,
    }))
}

/// One engine, or as many engine cores as there are data-parallel ranks.
fn cores(params: VllmV1Params, ranks: u32) -> EngineSpec {
    if ranks == 1 {
        return EngineSpec::VllmV1(params);
    }
    EngineSpec::Policy {
        make: Arc::new(move |shared| {
            let shared_content = shared && params.enable_prefix_caching;
            let params = VllmV1Params {
                shared_content,
                ..params
            };
            data_parallel::vllm(params, ranks)
        }),
        hash_block: params.enable_prefix_caching.then_some(params.block_size),
    }
}

/// Settings where there is no device to take defaults from: those of vLLM's largest class.
fn without_device(p: &VllmV1Keys) -> MemorySettings {
    MemorySettings {
        engine: EngineKind::VllmV1,
        vllm: p.version.in_full(),
        weights: hwmodels::Dtype::Bf16,
        kv_cache: hwmodels::Dtype::Bf16,
        memory_fraction: 0.9,
        max_num_batched_tokens: p.max_num_batched_tokens.unwrap_or(8192),
        max_num_seqs: p.max_num_seqs.unwrap_or(1024),
        max_model_len: p.max_model_len.unwrap_or(MAX_TOKENS),
        block_size: p.block_size,
        state_blocks: 0,
        cuda_graphs: true,
    }
}

/// What start-up decided.
fn decided(p: &VllmV1Params) -> toml::Table {
    let mut t = toml::Table::new();
    for (key, value) in [
        ("max_num_batched_tokens", p.budget()),
        ("max_num_seqs", p.max_num_seqs),
        ("max_model_len", p.max_model_len),
    ] {
        t.insert(key.into(), i64::from(value).into());
    }
    t.insert("async_scheduling".into(), p.async_scheduling.into());
    t
}

/// The parameters with the device's defaults, which stand in `s`.
fn resolve(p: &VllmV1Keys, s: &MemorySettings, start: &Start) -> Result<VllmV1Params, ParamError> {
    let fail = |key: &'static str, message: String| Err(ParamError::new(NAME, key, message));
    check_ranges(p, s)?;
    let limits = settle(p, s).map_err(|(key, message)| ParamError::new(NAME, key, message))?;
    let async_scheduling = p
        .async_scheduling
        .unwrap_or(p.version.minor >= ASYNC_BY_DEFAULT && start.pp == 1);
    if async_scheduling && start.pp > 1 {
        return fail(
            "async_scheduling",
            "does not go together with pipeline stages; leave it out or set layout.pp = 1".into(),
        );
    }
    let blocks = start.kv_blocks;
    if start.kv_given
        && u64::from(s.max_model_len).div_ceil(u64::from(s.block_size)) + u64::from(s.state_blocks)
            > blocks.saturating_sub(1)
        && p.max_model_len.is_some()
    {
        return fail(
            "max_model_len",
            format!(
                "a sequence of {} tokens needs more than the {blocks} KV blocks of {} tokens; vLLM would not start",
                s.max_model_len, s.block_size
            ),
        );
    }
    Ok(VllmV1Params {
        version: if p.version.minor >= RULES_OF_0_33 {
            VllmVersion::V0_33
        } else {
            VllmVersion::V0_11
        },
        max_num_batched_tokens: limits.tokens,
        max_num_seqs: limits.seqs,
        max_model_len: s.max_model_len,
        enable_chunked_prefill: p.enable_chunked_prefill,
        long_prefill_token_threshold: p.long_prefill_token_threshold,
        scheduling_policy: p.scheduling_policy,
        // Where states stand beside KV, vLLM leaves it off unless told how to keep them (`mamba_cache_mode`), which is not modelled.
        enable_prefix_caching: p.enable_prefix_caching && s.state_blocks == 0,
        async_scheduling,
        pipeline_parallel_size: start.pp,
        max_num_queued_reqs: p.max_num_queued_reqs,
        max_num_queued_tokens: p.max_num_queued_tokens,
        scheduler_reserve_full_isl: p.scheduler_reserve_full_isl,
        watermark: p.watermark,
        block_size: s.block_size,
        state_blocks: s.state_blocks,
        num_gpu_blocks: blocks,
        // The run sets it from the workload.
        shared_content: false,
        host_kv: None,
    })
}

/// Checks each value by itself.
fn check_ranges(p: &VllmV1Keys, s: &MemorySettings) -> Result<(), ParamError> {
    let fail = |key: &'static str, message: String| Err(ParamError::new(NAME, key, message));
    let budget = p.max_num_batched_tokens.unwrap_or(s.max_num_batched_tokens);
    for (key, value, least) in [
        ("max_num_batched_tokens", budget, 1),
        ("max_num_seqs", p.max_num_seqs.unwrap_or(s.max_num_seqs), 1),
        ("max_model_len", s.max_model_len, 2),
        ("block_size", s.block_size, 1),
        ("max_num_queued_reqs", p.max_num_queued_reqs.unwrap_or(1), 1),
    ] {
        if value < least {
            return fail(key, format!("must be >= {least}, got {value}"));
        }
        if value > MAX_TOKENS {
            return fail(key, format!("must be <= {MAX_TOKENS}, got {value}"));
        }
    }
    if !(1..=MOST_API_SERVERS).contains(&p.api_server_count) {
        let got = p.api_server_count;
        return fail(
            "api_server_count",
            format!("must be from 1 to {MOST_API_SERVERS}, got {got}"),
        );
    }
    if p.front_end == VllmFrontEnd::Dynamo && p.api_server_count != 1 {
        return fail(
            "api_server_count",
            "Dynamo stands in place of vLLM's API servers; leave it out or set front_end = \"api_server\"".into(),
        );
    }
    if !(0.0..1.0).contains(&p.watermark) {
        return fail(
            "watermark",
            format!("must be from 0 to below 1, got {}", plain(p.watermark)),
        );
    }
    Ok(())
}

/// Whose kernels cut the distribution of the next token: Triton's from 0.16 on (pull request 33538), FlashInfer's from 0.20 on (40376).
fn sampler(minor: u32) -> Sampler {
    match minor {
        0..16 => Sampler::Sort,
        16..20 => Sampler::Triton,
        _ => Sampler::FlashInfer,
    }
}

/// The limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepLimits {
    /// `max_num_batched_tokens`.
    tokens: u32,
    /// `max_num_seqs`.
    seqs: u32,
}

/// What vLLM makes of the keys as given and of the device's defaults, which stand in `s`; settling again what has been settled
/// changes nothing.
///
/// # Errors
/// The key that it refuses to start with, and why.
fn settle(p: &VllmV1Keys, s: &MemorySettings) -> Result<StepLimits, (&'static str, String)> {
    if !p.enable_chunked_prefill && p.version.minor < CHUNKING_OPTIONAL {
        return Err((
            "enable_chunked_prefill",
            format!(
                "vLLM {} always splits prompts under the V1 scheduler and ignores false; leave it out, or set version = \"0.{CHUNKING_OPTIONAL}\" \
                 or later",
                p.version
            ),
        ));
    }
    let length = s.max_model_len;
    let tokens = p.max_num_batched_tokens.unwrap_or_else(|| {
        let least = if p.enable_chunked_prefill { 1 } else { length };
        (s.max_num_batched_tokens.max(least)).min(s.max_num_seqs.saturating_mul(length))
    });
    let seqs = p.max_num_seqs.unwrap_or(s.max_num_seqs.min(tokens));
    if tokens < length && !p.enable_chunked_prefill {
        return Err((
            "max_num_batched_tokens",
            format!(
                "max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}) and chunked prefill is disabled; vLLM \
                 would not start. Raise max_num_batched_tokens, lower max_model_len, or leave enable_chunked_prefill out"
            ),
        ));
    }
    if tokens < seqs {
        return Err((
            "max_num_batched_tokens",
            format!(
                "max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs}); vLLM would not start"
            ),
        ));
    }
    Ok(StepLimits { tokens, seqs })
}

/// What vLLM logs about limits that it takes, though they make little sense.
fn warnings(keys: &VllmV1Keys, limits: StepLimits, params: &VllmV1Params) -> Vec<String> {
    let mut warnings = Vec::new();
    let most = u64::from(limits.seqs) * u64::from(params.max_model_len);
    if u64::from(limits.tokens) > most {
        warnings.push(format!(
            "max_num_batched_tokens ({}) exceeds max_num_seqs x max_model_len ({most}), more than a step can ever hold",
            limits.tokens
        ));
    }
    if params.block_size != keys.block_size {
        warnings.push(format!(
            "a block of attention is made as large as a layer's state: {} tokens in place of {}",
            params.block_size, keys.block_size
        ));
    }
    warnings
}
