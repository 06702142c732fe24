//! Text Generation Inference: its start-up.

use std::sync::Arc;

use hwmodels::ModelArch;
use hwmodels::memory::MemorySettings;
use hwmodels::ops::Kernels;

use super::start::{Engine, Start, Started, Storage, UNPLANNED, table_of};
use crate::policy::check::ParamError;
use crate::policy::tgi::{Tgi, TgiParams};
use crate::simulation::EngineSpec;

impl Engine for TgiParams {
    fn settings(
        &self,
        arch: &ModelArch,
        _: &Start,
        s: &mut MemorySettings,
    ) -> Result<(), ParamError> {
        // What the launcher takes for granted before it knows its memory.
        let config = self.resolve(UNPLANNED, arch.max_positions)?;
        s.max_num_batched_tokens = config.max_batch_prefill_tokens;
        s.max_num_seqs = config.max_concurrent_requests;
        s.max_model_len = config.max_total_tokens;
        s.block_size = config.block_size;
        Ok(())
    }

    fn start(&self, start: &Start) -> Result<Started, ParamError> {
        let block = self.resolve(UNPLANNED, start.model_tokens)?.block_size;
        let config = self.resolve(start.kv_tokens(block), start.model_tokens)?;
        let hash = config.prefix_caching.then_some(config.block_size);
        let storage = if config.paged {
            Storage::Blocks(config.max_batch_total_tokens / u64::from(config.block_size))
        } else {
            Storage::Rows {
                tokens: config.max_batch_total_tokens,
                rows: config.max_concurrent_requests,
            }
        };
        Ok(Started {
            block_tokens: config.block_size,
            kv_blocks: start.kv_blocks,
            sequence_tokens: config.max_total_tokens,
            storage,
            // Decodes run beside a prefill of the full budget.
            step_tokens: config
                .max_batch_prefill_tokens
                .saturating_add(config.max_concurrent_requests),
            overlap: None,
            kernels: Kernels::default(),
            graph_sizes: None,
            decided: table_of(&config),
            warnings: config.warnings.clone(),
            engine: EngineSpec::Policy {
                make: Arc::new(move |shared| Box::new(Tgi::new(config.clone(), shared))),
                hash_block: hash,
            },
        })
    }
}
