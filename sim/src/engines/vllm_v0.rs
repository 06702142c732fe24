//! vLLM under its V0 scheduler: its start-up.

use std::sync::Arc;

use hwmodels::ModelArch;
use hwmodels::memory::MemorySettings;
use hwmodels::ops::{GraphMode, Kernels};

use super::start::{Engine, Start, Started, Storage, UNPLANNED, table_of};
use crate::policy::check::ParamError;
use crate::policy::vllm_v0::{VllmV0, VllmV0Params};
use crate::simulation::EngineSpec;

impl Engine for VllmV0Params {
    fn settings(
        &self,
        arch: &ModelArch,
        _: &Start,
        s: &mut MemorySettings,
    ) -> Result<(), ParamError> {
        let config = self.resolve(UNPLANNED, arch.max_positions)?;
        s.max_num_batched_tokens = config.max_num_batched_tokens;
        s.max_num_seqs = config.max_num_seqs;
        s.max_model_len = config.max_model_len;
        s.block_size = config.block_size;
        Ok(())
    }

    fn start(&self, start: &Start) -> Result<Started, ParamError> {
        let tokens = start.kv_tokens(self.block_size);
        let config = self.resolve(tokens, start.longest(tokens))?;
        let hash = config.enable_prefix_caching.then_some(config.block_size);
        Ok(Started {
            block_tokens: config.block_size,
            kv_blocks: start.kv_blocks,
            sequence_tokens: config.max_model_len,
            storage: Storage::Blocks(config.blocks),
            step_tokens: config.max_num_batched_tokens.max(config.max_num_seqs),
            overlap: None,
            // V0 captures decodes alone (vllm/worker/model_runner.py of 0.6).
            kernels: Kernels {
                graph_mode: GraphMode::FullDecodeOnly,
                ..Kernels::default()
            },
            graph_sizes: None,
            decided: table_of(&config),
            warnings: Vec::new(),
            engine: EngineSpec::Policy {
                make: Arc::new(move |shared| Box::new(VllmV0::new(config.clone(), shared))),
                hash_block: hash,
            },
        })
    }
}
