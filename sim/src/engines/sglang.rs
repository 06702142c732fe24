//! SGLang: its start-up.

use std::sync::Arc;

use hwmodels::ModelArch;
use hwmodels::engine_cost::{EngineCost, Intake};
use hwmodels::memory::{MemorySettings, SglangDevice};

use super::start::{Engine, Start, Started, Storage, UNPLANNED, graph_sizes, table_of};
use crate::cluster::pools::Role;
use crate::policy::check::ParamError;
use crate::policy::data_parallel;
use crate::policy::sglang::{DisaggregationMode, ENGINE, Sglang, SglangFrontEnd, SglangParams};
use crate::simulation::EngineSpec;

/// The devices that SGLang's defaults depend on.
fn device(params: &SglangParams, start: &Start) -> Option<SglangDevice> {
    let device = start.device?;
    Some(SglangDevice::new(
        params.version.patch,
        device,
        start.tp,
        start.dp,
    ))
}

/// One rank of attention, one stage, prefill and decode together.
fn plain(start: &Start) -> bool {
    start.dp == 1 && start.pp == 1 && start.role == Role::Both
}

impl SglangParams {
    /// Layers that keep a state: SGLang sets one aside for each running request when both are given, and else divides memory between states and KV by
    /// `mamba_full_memory_ratio`, keeping states of prefixes in the radix cache (`handle_max_mamba_cache`), which is not modelled.
    fn check_states(&self, arch: &ModelArch) -> Result<(), ParamError> {
        let Some(r) = arch.recurrence else {
            return Ok(());
        };
        let needs = |param, what: &str| {
            let rule = r.rule.name();
            let problem = format!("{} has layers of {rule}: {what}", arch.name);
            Err(ParamError::new(ENGINE, param, problem))
        };
        if !self.disable_radix_cache {
            return needs(
                "disable_radix_cache",
                "a radix cache of their states is not modelled; set it to true",
            );
        }
        if self.max_running_requests.is_none() {
            return needs(
                "max_running_requests",
                "set it, and a state is set aside for each; a pool divided by mamba_full_memory_ratio is not modelled",
            );
        }
        if self.drafts() > 0 {
            return needs(
                "speculative_algorithm",
                "drafts beside states are not modelled",
            );
        }
        Ok(())
    }
}

impl Engine for SglangParams {
    fn settings(
        &self,
        arch: &ModelArch,
        start: &Start,
        s: &mut MemorySettings,
    ) -> Result<(), ParamError> {
        if self.drafts() > 0 && arch.nextn_layers == 0 {
            return Err(ParamError::new(
                ENGINE,
                "speculative_algorithm",
                format!(
                    "{} has no module for multi-token prediction (num_nextn_predict_layers), and draft models of their own are not modelled",
                    arch.name
                ),
            ));
        }
        self.check_states(arch)?;
        let device = device(self, start);
        let (tokens, fraction) = self.memory(device.as_ref(), s.cuda_graphs, plain(start))?;
        if let Some(fraction) = fraction.filter(|_| !start.fraction_given) {
            s.memory_fraction = fraction;
        }
        let config = self.resolve(UNPLANNED, arch.max_positions, device.as_ref(), start.dp)?;
        s.max_num_batched_tokens = tokens;
        s.max_num_seqs = config.max_running_requests;
        s.max_model_len = config.max_req_len;
        s.block_size = self.page_size;
        Ok(())
    }

    fn start(&self, start: &Start) -> Result<Started, ParamError> {
        let device = device(self, start);
        let tokens = start.kv_tokens(self.page_size);
        let longest = start.longest(tokens);
        let mode = match start.role {
            Role::Both => DisaggregationMode::Null,
            Role::Prefill => DisaggregationMode::Prefill,
            Role::Decode => DisaggregationMode::Decode,
        };
        let config = self.resolve_for(mode, tokens, longest, device.as_ref(), start.dp)?;
        let sizes = match (&self.cuda_graph_bs, start.cuda_graphs) {
            (None, Some(false)) => None,
            _ => Some(self.graph_sizes(device.as_ref())),
        };
        let whole = config.max_prefill_tokens.max(config.max_req_len);
        let prefill = config.chunked_prefill_size.unwrap_or(whole);
        let dp = start.dp;
        Ok(Started {
            block_tokens: self.page_size,
            kv_blocks: config.pages,
            sequence_tokens: config.max_req_len,
            storage: Storage::Blocks(config.pages),
            step_tokens: prefill.max(config.max_running_requests.saturating_mul(config.verified)),
            overlap: Some(config.overlap),
            kernels: self.kernels(plain(start)),
            graph_sizes: graph_sizes(start, (ENGINE, "cuda_graph_bs"), sizes.as_deref(), Some)?,
            decided: table_of(&config),
            warnings: Vec::new(),
            engine: EngineSpec::Policy {
                hash_block: config.radix_cache.then_some(self.page_size),
                make: Arc::new(move |shared| match dp {
                    1 => Box::new(Sglang::new(config.clone(), shared)),
                    ranks => data_parallel::sglang(&config, shared, ranks),
                }),
            },
        })
    }

    fn front_end_cost(&self, cost: &EngineCost) -> EngineCost {
        match self.front_end {
            SglangFrontEnd::Dynamo => cost.behind_dynamo(),
            SglangFrontEnd::HttpServer => EngineCost {
                intake: Intake::Processes(self.tokenizer_worker_num),
                ..*cost
            },
        }
    }
}
