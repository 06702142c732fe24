//! SGLang's arguments by their own names, and what its start-up makes of them (serving-policies 7.1).

use std::borrow::Cow;
use std::fmt;

use hwmodels::Dtype;
use hwmodels::memory::{SglangDevice, SglangReserve};
use hwmodels::ops::{GraphMode, Kernels, Sampler, SparseKernels};
use hwmodels::units::plain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::check::ParamError;

/// How messages call it.
pub(crate) const ENGINE: &str = "SGLang";

/// Share of `max_new_tokens` that running requests are taken to want yet, at first (`SGLANG_INIT_NEW_TOKEN_RATIO`).
const INIT_NEW_TOKEN_RATIO: f64 = 0.7;
/// What the share falls to at last, as a part of the first (`SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR`).
const MIN_NEW_TOKEN_RATIO_FACTOR: f64 = 0.14;
/// Decode steps in which it falls so far (`SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`).
const NEW_TOKEN_RATIO_DECAY_STEPS: f64 = 600.0;
/// What data-parallel attention multiplies `schedule_conservativeness` by (`ServerArgs._handle_data_parallelism`).
const DP_CONSERVATIVENESS: f64 = 0.3;
/// Requests that run at once: at least and at most, where nothing is said (`ModelRunner.init_memory_pool`).
const RUNNING_REQUESTS: (u64, u64) = (2048, 4096);
/// Requests that run at once with drafts, where nothing is said.
const RUNNING_WITH_DRAFTS: u64 = 48;
/// Most tokens that admission reckons a request to want yet (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`) [tokens].
pub(super) const CLIP_MAX_NEW_TOKENS: u32 = 4096;
/// Decode steps that a retraction reckons with (`SGLANG_RETRACT_DECODE_STEPS`).
pub(super) const RETRACT_DECODE_STEPS: u32 = 20;
/// Requests of the longest length that the KV cache holds, times this, lie between those bounds.
const RUNNING_PER_CONTEXT: u64 = 512;
/// Largest chunk or budget of a prefill [tokens].
const MOST_TOKENS: i64 = 1 << 24;
/// First patch release of 0.5 that makes room for the next decode step alone when it retracts; before, for twenty (recalled).
const RETRACTS_FOR_ONE: u32 = 5;
/// First patch release that captures pieces of prefill as graphs by default (sgl-project/sglang pull request 16331).
const PREFILL_GRAPHS: u32 = 10;
/// Most processes that may tokenise.
const MOST_TOKENIZERS: u32 = 1024;

/// How tokens are drafted (`--speculative-algorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SpeculativeAlgorithm {
    /// By the model's own module for multi-token prediction (DeepSeek-V3), run over and over.
    #[serde(rename = "EAGLE", alias = "NEXTN", alias = "eagle", alias = "nextn")]
    Eagle,
}

/// A release of SGLang 0.5, written `"0.5.14"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SglangRelease {
    /// What follows the `0.5.`.
    pub patch: u32,
}

impl Default for SglangRelease {
    /// The release whose kernels were measured.
    fn default() -> Self {
        SglangRelease { patch: 14 }
    }
}

impl fmt::Display for SglangRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0.5.{}", self.patch)
    }
}

impl SglangRelease {
    /// The release that `text` names: `0.5.1.post1` has the rules of 0.5.1, `0.5.3rc2` those of the release that it became.
    pub fn named(text: &str) -> Option<SglangRelease> {
        let rest = text.trim_start_matches('v').strip_prefix("0.5")?;
        let patch = match rest.strip_prefix('.') {
            Some(patch) => {
                let digits = patch.find(|c: char| !c.is_ascii_digit());
                patch[..digits.unwrap_or(patch.len())].parse().ok()?
            }
            None if rest.starts_with(|c: char| c.is_ascii_digit()) => return None,
            None => 0,
        };
        (patch < 1000).then_some(SglangRelease { patch })
    }
}

impl Serialize for SglangRelease {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SglangRelease {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        SglangRelease::named(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "must be a release of 0.5 like \"0.5.14\", got \"{}\"",
                crate::workload::input::shorten(&text, 40)
            ))
        })
    }
}

impl JsonSchema for SglangRelease {
    fn schema_name() -> Cow<'static, str> {
        "SglangRelease".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "a release of SGLang 0.5, e.g. \"0.5.14\"",
            "pattern": r"^v?0\.5(\.[0-9]+.*)?$",
            "examples": ["0.5.14"],
        })
    }
}

/// Order in which waiting requests are considered (7.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SchedulePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// The longest prefix in the cache first; first come, first served while more than 128 wait, or without the cache.
    Lpm,
    /// The largest `max_new_tokens` first.
    Lof,
}

/// Which part of its requests a server serves (`--disaggregation-mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DisaggregationMode {
    /// All of it.
    #[default]
    Null,
    /// Their prompts.
    Prefill,
    /// All after the first token.
    Decode,
}

impl DisaggregationMode {
    /// For reports: nothing is said of a server for everything.
    fn is_null(&self) -> bool {
        *self == DisaggregationMode::Null
    }
}

/// What takes SGLang's requests in: HTTP, templates, tokenising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SglangFrontEnd {
    /// SGLang's own Python processes, each one request after another.
    #[default]
    HttpServer,
    /// NVIDIA Dynamo: a Rust front end works on any number of requests at once and hands token ids to an SGLang worker.
    Dynamo,
}

/// The arguments, by their own names; what is left out gets SGLang's default for the device.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SglangParams {
    /// Release: the memory plan and some defaults depend on it. Default: "0.5.14".
    pub version: SglangRelease,
    /// Longest prompt + output [tokens]; longer requests are refused. Default: what the model allows.
    pub context_length: Option<u32>,
    /// Requests that may run at once. Default: 512 times as many as the KV cache holds of the longest length, from 2048 to 4096, and at most half of
    /// its tokens. With `layout.dp` each rank has its share.
    pub max_running_requests: Option<u32>,
    /// Waiting requests beyond which new ones are refused with 503. Default: no limit.
    pub max_queued_requests: Option<u32>,
    /// KV tokens at most [tokens]. Default: what memory allows.
    pub max_total_tokens: Option<u64>,
    /// Most tokens of a prefill step, over which a longer prompt is split [tokens]; -1: prompts are not split. Default: by device memory 2048, 4096,
    /// 8192 (H100, H200, A100 80GB) or 16384. With `layout.dp` each rank has its share.
    pub chunked_prefill_size: Option<i64>,
    /// A prefill step takes no further prompt that would bring it to this many tokens [tokens] (default 16384).
    pub max_prefill_tokens: u32,
    /// Whether decodes run beside prefill chunks in one step (default off: a prefill is a step of its own).
    pub enable_mixed_chunk: bool,
    /// Prompts of one prefill step at most. Default: no limit.
    pub prefill_max_requests: Option<u32>,
    /// Order in which waiting requests are considered (default "fcfs").
    pub schedule_policy: SchedulePolicy,
    /// How careful admission is: multiplies the share of `max_new_tokens` that running requests are taken to want yet (default 1).
    pub schedule_conservativeness: f64,
    /// Tokens per page of the KV cache [tokens] (default 1).
    pub page_size: u32,
    /// Whether nothing of earlier requests is found again (default off).
    pub disable_radix_cache: bool,
    /// Whether a step is chosen only when the one before has ended (default off: the next is chosen while one runs).
    pub disable_overlap_schedule: bool,
    /// Largest batch for which decode graphs are captured; larger batches run without. Default: by device memory and ranks (docs/serving-policies.md, 7.5).
    pub cuda_graph_max_bs: Option<u32>,
    /// Batch sizes for which decode graphs are captured. Default: 1, 2, 4, 8, 12, then steps of 8 to 256, of 16 to 512 and of 32.
    pub cuda_graph_bs: Option<Vec<u32>>,
    /// Whether prefill is launched kernel by kernel and not as captured pieces between its attention kernels. Default: false from 0.5.10 on, but true
    /// with drafts, data-parallel ranks, pipeline stages, or prefill and decode apart.
    pub disable_piecewise_cuda_graph: Option<bool>,
    /// How tokens are drafted for a decode to verify: "EAGLE" (or "NEXTN"), by the model's own module for multi-token prediction (DeepSeek-V3, -R1).
    /// Default: none are.
    pub speculative_algorithm: Option<SpeculativeAlgorithm>,
    /// Tokens that are drafted after each step (default 3).
    pub speculative_num_steps: Option<u32>,
    /// Drafts that each draft is followed by: 1, a chain; trees are not modelled.
    pub speculative_eagle_topk: Option<u32>,
    /// Tokens that a decode computes for each request: the drafts and one more.
    pub speculative_num_draft_tokens: Option<u32>,
    /// No argument of SGLang's: how likely each draft is accepted, given that those before it were; the last number holds for further ones. It depends on the
    /// texts; a server's log tells `accept len`. Default: [0.8, 0.75].
    pub speculative_accept_rates: Option<Vec<f64>>,
    /// `SGLANG_ENABLE_SPEC_V2`: the next step is chosen while one runs with drafts, too (default off).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable_spec_v2: bool,
    /// What takes requests in (default "http_server"). With `hardware.step_profile` or `[step]` it is a delay without limit.
    pub front_end: SglangFrontEnd,
    /// Processes of the tokenizer manager, each of which takes in one request at a time (default 1).
    pub tokenizer_worker_num: u32,
}

impl Default for SglangParams {
    fn default() -> SglangParams {
        SglangParams {
            version: SglangRelease::default(),
            context_length: None,
            max_running_requests: None,
            max_queued_requests: None,
            max_total_tokens: None,
            chunked_prefill_size: None,
            max_prefill_tokens: 16_384,
            enable_mixed_chunk: false,
            prefill_max_requests: None,
            schedule_policy: SchedulePolicy::Fcfs,
            schedule_conservativeness: 1.0,
            page_size: 1,
            disable_radix_cache: false,
            disable_overlap_schedule: false,
            cuda_graph_max_bs: None,
            cuda_graph_bs: None,
            disable_piecewise_cuda_graph: None,
            speculative_algorithm: None,
            speculative_num_steps: None,
            speculative_eagle_topk: None,
            speculative_num_draft_tokens: None,
            speculative_accept_rates: None,
            enable_spec_v2: false,
            front_end: SglangFrontEnd::HttpServer,
            tokenizer_worker_num: 1,
        }
    }
}

/// [`SglangParams`] after start-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SglangConfig {
    /// Tokens that the KV cache holds [tokens].
    pub max_total_num_tokens: u64,
    /// Pages of the KV cache.
    pub pages: u64,
    /// Tokens per page [tokens].
    pub page_size: u32,
    /// Longest prompt + output [tokens].
    pub max_req_len: u32,
    /// Requests that run at once.
    pub max_running_requests: u32,
    /// Waiting requests beyond which new ones are refused.
    pub max_queued_requests: Option<u32>,
    /// Most tokens of a prefill step, chunks included [tokens]; none: prompts are not split.
    pub chunked_prefill_size: Option<u32>,
    /// Most tokens of a prefill step of several prompts [tokens].
    pub max_prefill_tokens: u32,
    /// Whether decodes run beside prefill chunks.
    pub enable_mixed_chunk: bool,
    /// Prompts of one prefill step at most.
    pub prefill_max_requests: Option<u32>,
    /// Order in which waiting requests are considered.
    pub schedule_policy: SchedulePolicy,
    /// Share of `max_new_tokens` that running requests are taken to want yet, at first [ratio].
    pub init_new_token_ratio: f64,
    /// What it falls to at last [ratio].
    pub min_new_token_ratio: f64,
    /// By how much it falls with each decode step [ratio].
    pub new_token_ratio_decay: f64,
    /// Decode steps that a retraction makes room for.
    pub retract_steps: u32,
    /// Whether what earlier requests computed is found again.
    pub radix_cache: bool,
    /// Whether a step is chosen while the one before runs.
    pub overlap: bool,
    /// Which part of its requests it serves.
    #[serde(skip_serializing_if = "DisaggregationMode::is_null")]
    pub disaggregation_mode: DisaggregationMode,
    /// Tokens that a decode computes for each request, drafts and one more [tokens].
    #[serde(skip_serializing_if = "is_one")]
    pub verified: u32,
    /// How likely each draft is accepted, given that those before it were; empty: there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_rates: Vec<f64>,
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

impl SglangParams {
    /// Refuses values that start-up refuses by themselves.
    fn check(&self) -> Result<(), ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        for (param, value) in [
            ("max_prefill_tokens", Some(self.max_prefill_tokens)),
            ("page_size", Some(self.page_size)),
            ("max_running_requests", self.max_running_requests),
            ("prefill_max_requests", self.prefill_max_requests),
            ("cuda_graph_max_bs", self.cuda_graph_max_bs),
            ("tokenizer_worker_num", Some(self.tokenizer_worker_num)),
        ] {
            if value == Some(0) {
                return err(param, "must be at least 1, got 0".into());
            }
        }
        if self.tokenizer_worker_num > MOST_TOKENIZERS {
            return err(
                "tokenizer_worker_num",
                format!(
                    "must be at most {MOST_TOKENIZERS}, got {}",
                    self.tokenizer_worker_num
                ),
            );
        }
        if let Some(n) = self.chunked_prefill_size
            && n != -1
            && !(1..=MOST_TOKENS).contains(&n)
        {
            return err(
                "chunked_prefill_size",
                format!("must be from 1 to {MOST_TOKENS}, or -1 for prompts in one piece, got {n}"),
            );
        }
        if !(self.schedule_conservativeness.is_finite() && self.schedule_conservativeness >= 0.0) {
            return err(
                "schedule_conservativeness",
                format!(
                    "must be a number >= 0, got {}",
                    plain(self.schedule_conservativeness)
                ),
            );
        }
        if self.cuda_graph_max_bs.is_some() && self.cuda_graph_bs.is_some() {
            return err(
                "cuda_graph_bs",
                "has the largest batch among its sizes; leave cuda_graph_max_bs out".into(),
            );
        }
        self.check_speculation()
    }

    /// Most tokens of a prefill step on `device` before data-parallel ranks share them [tokens]; none: prompts are not split. Without a device as on
    /// one that says nothing of its memory.
    fn chunk(&self, device: Option<&SglangDevice>) -> Option<u32> {
        /// Without a memory size (`_handle_gpu_memory_settings`) [tokens].
        const UNKNOWN: u32 = 4096;
        match self.chunked_prefill_size {
            Some(n) => u32::try_from(n).ok(),
            None => Some(device.map_or(UNKNOWN, SglangDevice::chunked_prefill_size)),
        }
    }

    /// Batch sizes of the decode graphs on `device`, in ascending order (7.5).
    pub fn graph_sizes(&self, device: Option<&SglangDevice>) -> Vec<u32> {
        /// Without a memory size.
        const UNKNOWN: u32 = 160;
        if let Some(sizes) = &self.cuda_graph_bs {
            return sizes.clone();
        }
        let of_device = device.map_or(UNKNOWN, SglangDevice::cuda_graph_max_bs);
        let most = self.cuda_graph_max_bs.unwrap_or(of_device);
        let mut sizes: Vec<u32> = [1, 2, 4, 8, 12]
            .into_iter()
            .chain((16..=256).step_by(8))
            .chain((272..=512).step_by(16))
            .chain((544..=most.max(544)).step_by(32))
            .filter(|s| *s <= most)
            .collect();
        if sizes.last() != Some(&most) {
            sizes.push(most);
        }
        sizes
    }

    /// Whether pieces of prefill are captured. Unless told, releases before 0.5.10 capture none, and later ones none with drafts nor where the replica
    /// is not `plain`: with data-parallel ranks, pipeline stages, or prefill and decode apart (SGLang's guide to piecewise graphs, "Compatibility").
    fn prefill_graphs(&self, plain: bool) -> bool {
        let on = self.version.patch >= PREFILL_GRAPHS && plain && self.drafts() == 0;
        !self.disable_piecewise_cuda_graph.unwrap_or(!on)
    }

    /// What the memory plan has to know: most tokens of a prefill step [tokens], and the share of memory for weights and KV [ratio].
    ///
    /// # Errors
    /// What SGLang refuses.
    pub fn memory(
        &self,
        device: Option<&SglangDevice>,
        decode_graphs: bool,
        plain: bool,
    ) -> Result<(u32, Option<f64>), ParamError> {
        self.check()?;
        let prefill_tokens = self.chunk(device).unwrap_or(self.max_prefill_tokens);
        let fraction = device.map(|d| {
            d.mem_fraction_static(&SglangReserve {
                prefill_tokens,
                cuda_graph_max_bs: match decode_graphs {
                    true => (self.graph_sizes(device).last().copied()).unwrap_or_default(),
                    false => 0,
                },
                prefill_graphs: self.prefill_graphs(plain),
                drafts: self.drafts() > 0,
            })
        });
        Ok((prefill_tokens, fraction))
    }

    /// The kernels it runs; `plain`: without data-parallel ranks and pipeline stages, prefill and decode together.
    pub fn kernels(&self, plain: bool) -> Kernels {
        Kernels {
            sampler: Sampler::FlashInfer,
            graph_mode: match self.prefill_graphs(plain) {
                true => GraphMode::FullAndPiecewise,
                false => GraphMode::FullDecodeOnly,
            },
            sparse: SparseKernels::Sglang,
            states: Dtype::Fp32,
            drafts: self.drafts(),
            ..Kernels::default()
        }
    }

    /// The same for a server of prompts or of decodes alone. A server of decodes finds nothing of earlier requests again.
    ///
    /// # Errors
    /// What SGLang refuses.
    pub fn resolve_for(
        &self,
        mode: DisaggregationMode,
        kv_tokens: u64,
        model_tokens: u32,
        device: Option<&SglangDevice>,
        dp: u32,
    ) -> Result<SglangConfig, ParamError> {
        let config = self.resolve(kv_tokens, model_tokens, device, dp)?;
        Ok(SglangConfig {
            disaggregation_mode: mode,
            radix_cache: config.radix_cache && mode != DisaggregationMode::Decode,
            enable_mixed_chunk: config.enable_mixed_chunk && mode == DisaggregationMode::Null,
            ..config
        })
    }

    /// Start-up with room for `kv_tokens` [tokens] on each of `dp` data-parallel ranks, of a model whose longest sequence is `model_tokens` [tokens].
    ///
    /// # Errors
    /// What SGLang refuses.
    pub fn resolve(
        &self,
        kv_tokens: u64,
        model_tokens: u32,
        device: Option<&SglangDevice>,
        dp: u32,
    ) -> Result<SglangConfig, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        self.check()?;
        let page = u64::from(self.page_size);
        let tokens = self.max_total_tokens.unwrap_or(u64::MAX).min(kv_tokens) / page * page;
        let context = self.context_length.unwrap_or(model_tokens);
        if context < 2 || context > model_tokens {
            return err(
                "context_length",
                format!("must lie between 2 and the model's {model_tokens} tokens, got {context}"),
            );
        }
        if tokens < 3 {
            return err(
                "max_total_tokens",
                format!(
                    "the KV cache holds {tokens} tokens, must be >= 3: lower page_size, or raise mem_fraction_static"
                ),
            );
        }
        let dp = dp.max(1);
        let chunk = match self.chunk(device) {
            None => None,
            Some(chunk) => {
                let chunk = chunk / dp;
                if chunk == 0 || !chunk.is_multiple_of(self.page_size) {
                    return err(
                        "chunked_prefill_size",
                        format!(
                            "{chunk} tokens on each rank are no multiple of page_size ({}); SGLang would not start",
                            self.page_size
                        ),
                    );
                }
                Some(chunk)
            }
        };
        let conservativeness = match dp {
            1 => self.schedule_conservativeness,
            _ => self.schedule_conservativeness * DP_CONSERVATIVENESS,
        };
        let init = (INIT_NEW_TOKEN_RATIO * conservativeness).min(1.0);
        let min = init * MIN_NEW_TOKEN_RATIO_FACTOR;
        let (least, most) = RUNNING_REQUESTS;
        let pool = (tokens / u64::from(context))
            .saturating_mul(RUNNING_PER_CONTEXT)
            .clamp(least, most);
        let running = match self.max_running_requests {
            Some(n) => u64::from((n / dp).max(1)),
            None if self.drafts() > 0 => RUNNING_WITH_DRAFTS,
            None => (tokens / 2).min(pool),
        };
        Ok(SglangConfig {
            max_total_num_tokens: tokens,
            pages: tokens / page,
            page_size: self.page_size,
            max_req_len: u32::try_from(tokens - 1).map_or(context, |most| most.min(context)),
            max_running_requests: u32::try_from(running).unwrap_or(u32::MAX),
            max_queued_requests: self.max_queued_requests,
            chunked_prefill_size: chunk,
            max_prefill_tokens: self.max_prefill_tokens,
            enable_mixed_chunk: self.enable_mixed_chunk && chunk.is_some() && self.drafts() == 0,
            prefill_max_requests: self.prefill_max_requests,
            schedule_policy: self.schedule_policy,
            init_new_token_ratio: init,
            min_new_token_ratio: min,
            new_token_ratio_decay: (init - min) / NEW_TOKEN_RATIO_DECAY_STEPS,
            retract_steps: match self.version.patch {
                0..RETRACTS_FOR_ONE => RETRACT_DECODE_STEPS,
                _ => 1,
            },
            radix_cache: !self.disable_radix_cache,
            overlap: self.overlaps(),
            disaggregation_mode: DisaggregationMode::Null,
            verified: self.drafts() + 1,
            accept_rates: self.accept_rates(),
        })
    }
}
