//! TensorRT-LLM: its start-up.

use std::sync::Arc;

use hwmodels::ModelArch;
use hwmodels::memory::MemorySettings;

use super::start::{Engine, Start, Started, Storage, UNPLANNED, graph_sizes, table_of};
use crate::policy::check::ParamError;
use crate::policy::data_parallel;
use crate::policy::trt_llm::{TrtLlm, TrtLlmParams};
use crate::simulation::EngineSpec;

const NAME: &str = "TensorRT-LLM";

impl Engine for TrtLlmParams {
    fn settings(
        &self,
        arch: &ModelArch,
        start: &Start,
        s: &mut MemorySettings,
    ) -> Result<(), ParamError> {
        // `MambaHybridCacheManager` asserts it (`_torch/pyexecutor/mamba_cache_manager.py`).
        if arch.recurrence.is_some() && self.enable_kv_cache_reuse {
            return Err(ParamError::new(
                NAME,
                "enable_kv_cache_reuse",
                format!(
                    "{} has layers that keep a state, and TensorRT-LLM reuses no blocks beside them; set it to false",
                    arch.name
                ),
            ));
        }
        let config = self.resolve(UNPLANNED, arch.max_positions, start.pp)?;
        s.max_num_batched_tokens = self.max_num_tokens;
        s.max_num_seqs = self.max_batch_size;
        s.max_model_len = config.max_seq_len;
        s.block_size = self.tokens_per_block;
        Ok(())
    }

    fn start(&self, start: &Start) -> Result<Started, ParamError> {
        let tokens = start.kv_tokens(self.tokens_per_block);
        let config = self.resolve(tokens, start.model_tokens, start.pp)?;
        let dp = start.dp;
        if self.attention_dp_config.enable_balance && dp == 1 {
            return Err(ParamError::new(
                NAME,
                "attention_dp_config",
                "there are no ranks to balance: set layout.dp, or leave it out".into(),
            ));
        }
        Ok(Started {
            block_tokens: self.tokens_per_block,
            kv_blocks: config.blocks,
            sequence_tokens: config.max_seq_len,
            storage: Storage::Blocks(config.blocks),
            step_tokens: self.max_num_tokens.max(self.max_batch_size),
            overlap: Some(self.overlap_scheduler),
            kernels: self.kernels(),
            graph_sizes: graph_sizes(
                start,
                (NAME, "cuda_graph_batch_sizes"),
                self.cuda_graph_batch_sizes.as_deref(),
                |size| Some(size.min(self.max_batch_size)),
            )?,
            decided: table_of(&config),
            warnings: config.warnings.clone(),
            engine: EngineSpec::Policy {
                hash_block: self.enable_kv_cache_reuse.then_some(self.tokens_per_block),
                make: Arc::new(move |shared| match dp {
                    1 => Box::new(TrtLlm::new(config.clone(), shared)),
                    ranks => data_parallel::trt_llm(&config, shared, ranks),
                }),
            },
        })
    }
}
