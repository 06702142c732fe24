//! Servers with static slots on Neuron devices: their start-up.

use std::sync::Arc;

use hwmodels::ModelArch;
use hwmodels::memory::MemorySettings;
use hwmodels::ops::{Kernels, Sampler};

use super::start::{Engine, Start, Started, Storage, table_of};
use crate::policy::check::ParamError;
use crate::policy::tgi_neuron::{NeuronServer, TgiNeuron, TgiNeuronParams};
use crate::simulation::EngineSpec;

impl Engine for TgiNeuronParams {
    fn settings(&self, _: &ModelArch, _: &Start, s: &mut MemorySettings) -> Result<(), ParamError> {
        let p = self.resolve()?;
        s.max_num_seqs = p.batch_size;
        s.max_model_len = p.sequence_length;
        s.block_size = p.sequence_length;
        s.max_num_batched_tokens = match p.server {
            NeuronServer::Tgi => p.context_buckets.iter().copied().max(),
            NeuronServer::OptimumVllm if p.context_chunk > 0 => Some(p.context_chunk),
            NeuronServer::OptimumVllm => p.context_buckets.iter().copied().max(),
        }
        .unwrap_or(p.sequence_length);
        Ok(())
    }

    fn start(&self, _: &Start) -> Result<Started, ParamError> {
        let params = self.resolve()?;
        // Started once here, so that a refusal is an error and not a panic later.
        TgiNeuron::new(&params)?;
        Ok(Started {
            block_tokens: params.sequence_length,
            kv_blocks: u64::from(params.batch_size),
            sequence_tokens: params.sequence_length,
            storage: Storage::Slots {
                slots: params.batch_size,
                tokens: params.sequence_length,
            },
            step_tokens: params
                .context_buckets
                .iter()
                .copied()
                .max()
                .unwrap_or(params.sequence_length)
                .max(params.context_chunk)
                .saturating_mul(params.batch_size),
            overlap: None,
            kernels: Kernels {
                sampler: match params.on_device_sampling {
                    true => Sampler::Compiled,
                    false => Sampler::Sort,
                },
                ..Kernels::default()
            },
            graph_sizes: None,
            decided: table_of(&params),
            warnings: Vec::new(),
            engine: EngineSpec::Policy {
                make: Arc::new(move |_| match TgiNeuron::new(&params) {
                    Ok(engine) => Box::new(engine),
                    Err(e) => unreachable!("these parameters have started before: {e}"),
                }),
                hash_block: None,
            },
        })
    }
}
