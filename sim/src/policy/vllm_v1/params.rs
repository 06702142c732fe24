//! vLLM's own parameters.

use super::host::HostKv;
use crate::kv::KvConfig;
use crate::request::RejectReason;

/// Release whose rules apply where they differ (1.2).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
pub enum VllmVersion {
    /// 0.11 and the V1 releases before it.
    #[serde(rename = "0.11")]
    V0_11,
    /// 0.33.
    #[default]
    #[serde(rename = "0.33")]
    V0_33,
}

/// Order in which waiting requests are admitted and running ones preempted.
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
#[serde(rename_all = "lowercase")]
pub enum SchedulingPolicy {
    /// First come, first served; the last admitted is preempted first.
    #[default]
    Fcfs,
    /// Smallest (priority, arrival) first; the largest is preempted first.
    Priority,
}

/// vLLM's own parameters, under its own names, plus the KV blocks that its profile run found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VllmV1Params {
    /// Release.
    pub version: VllmVersion,
    /// Token budget of a step [tokens]. Without chunked prefill at least `max_model_len`.
    pub max_num_batched_tokens: u32,
    /// Requests that may run at once.
    pub max_num_seqs: u32,
    /// Longest sequence, prompt and output [tokens]; beyond it a request is refused.
    pub max_model_len: u32,
    /// Whether a prompt may be computed over several steps.
    pub enable_chunked_prefill: bool,
    /// Longest share of a step that one request gets [tokens]; 0: no limit.
    pub long_prefill_token_threshold: u32,
    /// Queue discipline.
    pub scheduling_policy: SchedulingPolicy,
    /// Whether freed blocks can be found again by their content.
    pub enable_prefix_caching: bool,
    /// Whether the next step is scheduled while one is still running.
    pub async_scheduling: bool,
    /// Pipeline stages: batches in flight without asynchronous scheduling.
    pub pipeline_parallel_size: u32,
    /// Waiting requests beyond which new ones are refused with 503; `None`: no limit.
    pub max_num_queued_reqs: Option<u32>,
    /// Waiting prompt tokens beyond which new requests are refused with 503 [tokens]; `None`: no limit.
    pub max_num_queued_tokens: Option<u64>,
    /// Admit a prompt only if all of it has room, not only its first chunk (0.33; ignored by 0.11).
    pub scheduler_reserve_full_isl: bool,
    /// Fraction of all blocks that must stay free after an admission while others run (0.33; ignored by 0.11).
    pub watermark: f64,
    /// Tokens per KV block [tokens].
    pub block_size: u32,
    /// KV blocks that a sequence holds beside those of its tokens: for the states of layers that keep one, where there are any.
    pub state_blocks: u32,
    /// KV blocks, the null block included.
    pub num_gpu_blocks: u64,
    /// Whether requests of the run can share prompt content ([`crate::workload::Workload::shares_content`]).
    pub shared_content: bool,
    /// KV that the host's memory holds, too; `None`: none.
    pub host_kv: Option<HostKv>,
}

impl Default for VllmV1Params {
    /// 1.3: an API server of 0.33 on a GPU of 70 GiB or more, a model of 8192 tokens, and 10 000 KV blocks.
    fn default() -> Self {
        VllmV1Params {
            version: VllmVersion::V0_33,
            max_num_batched_tokens: 8192,
            max_num_seqs: 1024,
            max_model_len: 8192,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            scheduling_policy: SchedulingPolicy::Fcfs,
            enable_prefix_caching: true,
            async_scheduling: false,
            pipeline_parallel_size: 1,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            scheduler_reserve_full_isl: true,
            watermark: 0.0,
            block_size: 16,
            state_blocks: 0,
            num_gpu_blocks: 10_000,
            shared_content: false,
            host_kv: None,
        }
    }
}

impl VllmV1Params {
    /// Token budget of a step: without chunked prefill it holds the longest prompt; never more than
    /// `max_num_seqs * max_model_len` (1.3) [tokens].
    pub fn budget(&self) -> u32 {
        let wanted = if self.enable_chunked_prefill {
            self.max_num_batched_tokens
        } else {
            self.max_num_batched_tokens.max(self.max_model_len)
        };
        wanted
            .min(self.max_num_seqs.saturating_mul(self.max_model_len))
            .max(1)
    }

    /// Batches in flight (1.4).
    pub fn depth(&self) -> u32 {
        self.pipeline_parallel_size
            .max(if self.async_scheduling { 2 } else { 1 })
            .max(1)
    }

    /// Blocks that admissions leave free while others run.
    pub fn watermark_blocks(&self) -> u64 {
        if self.version < VllmVersion::V0_33 {
            return 0;
        }
        (self.watermark.clamp(0.0, 1.0) * self.num_gpu_blocks as f64) as u64
    }

    /// Whether admission asks for room for the whole prompt.
    pub fn reserves_full_prompt(&self) -> bool {
        self.version >= VllmVersion::V0_33 && self.scheduler_reserve_full_isl
    }

    /// The KV manager of this configuration.
    pub fn kv(&self) -> KvConfig {
        KvConfig {
            blocks: self.num_gpu_blocks,
            reserved: 1,
            block_size: self.block_size,
            fixed_blocks: self.state_blocks,
            prefix_caching: self.enable_prefix_caching,
            shared_content: self.shared_content,
        }
    }

    /// Whether a request is refused whatever else runs: beyond `max_model_len` (400), or more KV than there is (1.5).
    ///
    /// # Errors
    /// [`RejectReason::TooLong`] or [`RejectReason::NeverFits`].
    pub fn accepts(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        let total = prompt_tokens.saturating_add(max_tokens);
        if total > self.max_model_len {
            return Err(RejectReason::TooLong);
        }
        // The last token is sampled but never computed.
        let blocks = u64::from(total.saturating_sub(1).div_ceil(self.block_size))
            + u64::from(self.state_blocks);
        if blocks > self.num_gpu_blocks.saturating_sub(1) {
            return Err(RejectReason::NeverFits);
        }
        Ok(())
    }
}
