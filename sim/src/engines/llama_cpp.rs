//! llama.cpp's server: its start-up.

use std::sync::Arc;

use hwmodels::ModelArch;
use hwmodels::memory::MemorySettings;
use hwmodels::ops::Kernels;

use super::start::{Engine, Start, Started, Storage, UNPLANNED, table_of};
use crate::policy::check::ParamError;
use crate::policy::llama_cpp::{LlamaCpp, LlamaCppParams, Slots};
use crate::simulation::EngineSpec;

impl Engine for LlamaCppParams {
    fn settings(
        &self,
        arch: &ModelArch,
        _: &Start,
        s: &mut MemorySettings,
    ) -> Result<(), ParamError> {
        let config = self.resolve(UNPLANNED, arch.max_positions, 0.0)?;
        s.max_num_seqs = config.n_parallel;
        s.max_model_len = config.n_ctx_slot;
        s.max_num_batched_tokens = config.n_batch;
        s.block_size = 1;
        Ok(())
    }

    /// Its KV cache is counted in cells of one token.
    fn start(&self, start: &Start) -> Result<Started, ParamError> {
        let tokens = start.kv_blocks;
        let longest = start.longest(tokens);
        let mut config = self.resolve(tokens, longest, start.kv_bytes_per_token)?;
        if let Slots::Used(seed) = &mut config.slots {
            *seed = start.seed;
        }
        let hash = config.cache_prompt.then_some(1);
        Ok(Started {
            block_tokens: 1,
            kv_blocks: tokens.min(u64::from(config.n_ctx)),
            sequence_tokens: config.n_ctx_slot,
            storage: Storage::Rows {
                tokens: u64::from(config.n_ctx),
                rows: config.n_parallel,
            },
            step_tokens: config.n_batch,
            overlap: None,
            kernels: Kernels::default(),
            graph_sizes: None,
            decided: table_of(&config),
            warnings: Vec::new(),
            engine: EngineSpec::Policy {
                make: Arc::new(move |_| Box::new(LlamaCpp::new(config.clone()))),
                hash_block: hash,
            },
        })
    }
}
