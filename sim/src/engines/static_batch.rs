//! Plain static batching: its start-up.

use std::sync::Arc;

use hwmodels::ModelArch;
use hwmodels::memory::MemorySettings;
use hwmodels::ops::Kernels;

use super::start::{Engine, Start, Started, Storage, UNPLANNED, table_of};
use crate::policy::check::ParamError;
use crate::policy::static_batch::{StaticBatch, StaticBatchParams};
use crate::simulation::EngineSpec;

/// Tokens per block in which the KV is counted where there is no device [tokens].
const BLOCK: u32 = 16;

impl Engine for StaticBatchParams {
    fn settings(
        &self,
        arch: &ModelArch,
        _: &Start,
        s: &mut MemorySettings,
    ) -> Result<(), ParamError> {
        let config = self.resolve(UNPLANNED, arch.max_positions)?;
        s.max_num_seqs = config.max_batch_size;
        s.max_model_len = config.max_seq_len;
        s.max_num_batched_tokens = config.max_seq_len;
        Ok(())
    }

    fn start(&self, start: &Start) -> Result<Started, ParamError> {
        let block = start.settings.map_or(BLOCK, |s| s.block_size);
        let tokens = start.kv_tokens(block);
        let config = self.resolve(tokens, start.longest(tokens))?;
        Ok(Started {
            // Rows are as long as they need to be, so what is in use is counted in tokens.
            block_tokens: 1,
            kv_blocks: tokens,
            sequence_tokens: config.max_seq_len,
            storage: Storage::Rows {
                tokens,
                rows: config.max_batch_size,
            },
            // The prompts of a batch enter together, padded to the longest.
            step_tokens: config.max_seq_len.saturating_mul(config.max_batch_size),
            overlap: None,
            kernels: Kernels::default(),
            graph_sizes: None,
            decided: table_of(&config),
            warnings: Vec::new(),
            engine: EngineSpec::Policy {
                make: Arc::new(move |_| Box::new(StaticBatch::new(config.clone()))),
                hash_block: None,
            },
        })
    }
}
