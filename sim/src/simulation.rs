//! What is simulated: replicas behind a router. [`Simulation::run`] runs it to its end; [`crate::run`] holds a run under way.

use std::sync::Arc;

use hwmodels::{Scaled, StepModel};

use crate::cluster::drift::{Drift, SpeedDrift, StepTimes};
use crate::cluster::engine::{Engine, Surroundings};
use crate::cluster::pools::Serving;
use crate::cluster::router::RouterConfig;
use crate::cluster::stepped::SteppedReplica;
use crate::fast::{self, FastVllm};
use crate::kernel::time::SimDuration;
use crate::policy::Scheduler;
use crate::policy::vllm_v1::{VllmV1, VllmV1Params};
pub use crate::run::options::{Path, RunError, RunOptions};

/// Makes a policy; told whether requests of the run can share prompt content.
pub type MakeScheduler = Arc<dyn Fn(bool) -> Box<dyn Scheduler> + Send + Sync>;

/// The serving engine of a replica.
#[derive(Clone)]
pub enum EngineSpec {
    /// vLLM V1; `shared_content` is set from the workload.
    VllmV1(VllmV1Params),
    /// Any other policy.
    Policy {
        /// Makes one.
        make: MakeScheduler,
        /// Tokens per KV block, if it has a prefix cache that wants block hashes [tokens].
        hash_block: Option<u32>,
    },
}

/// One replica.
#[derive(Clone)]
pub struct ReplicaSpec {
    /// What runs on it.
    pub engine: EngineSpec,
    /// How long its steps take.
    pub step: Arc<dyn StepModel>,
    /// How the speed of its machine drifts; `None`: not at all.
    pub drift: Option<SpeedDrift>,
    /// From the gateway to the front end: network, and what is done there for any number of requests at once.
    pub input_delay: SimDuration,
    /// From there to the engine's queue.
    pub front_end: FrontEnd,
    /// From the end of a step until its tokens reach the client: detokenizer, HTTP, network.
    pub output_delay: SimDuration,
}

/// What takes requests in, in the order in which they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontEnd {
    /// Requests that it works on at once; 0: any number.
    pub workers: u32,
    /// How long it works on each request (HTTP, validation, ...) ...
    pub per_request: SimDuration,
    /// ... and on each token of its prompt (tokenizer).
    pub per_prompt_token: SimDuration,
}

/// A deployment under simulation.
#[derive(Clone)]
pub struct Simulation {
    /// The replicas behind the router.
    pub replicas: Vec<ReplicaSpec>,
    /// The routing rule.
    pub router: RouterConfig,
    /// The pools that the replicas belong to, where there are several.
    pub serving: Serving,
    /// How old the engine state may be that the router sees: it is read every so often; `None`: always fresh.
    pub scrape_period: Option<SimDuration>,
    /// Longest time the gateway gives a request (a SageMaker endpoint: 60 s), as if its client gave up then.
    pub request_timeout: Option<SimDuration>,
    /// Seed of every random stream.
    pub seed: u64,
}

impl Simulation {
    /// Makes every step take `factor` times as long.
    pub fn pace(&mut self, factor: f64) {
        for replica in &mut self.replicas {
            replica.step = Arc::new(Scaled {
                inner: Arc::clone(&replica.step),
                factor,
            });
        }
    }
}

impl ReplicaSpec {
    /// Its engine as replica `index` of a run with `seed`, whose requests can share prompt content or not, and are prefilled or decoded
    /// elsewhere or not.
    pub(crate) fn engine(
        &self,
        index: u32,
        shared: bool,
        path: Path,
        seed: u64,
        is_split: bool,
    ) -> Result<Engine, RunError> {
        let around = Surroundings {
            replica: index,
            seed,
            step: StepTimes::new(self.step.clone(), self.drift.map(|d| Drift::new(d, seed))),
            output_delay: self.output_delay,
        };
        let stepped =
            |around, scheduler| Engine::Stepped(Box::new(SteppedReplica::new(around, scheduler)));
        let not_fast = |reason| RunError::NotFast {
            replica: index,
            reason,
        };
        match &self.engine {
            EngineSpec::VllmV1(params) => {
                let params = VllmV1Params {
                    shared_content: shared && params.enable_prefix_caching,
                    ..*params
                };
                match (path, fast::applies(&params)) {
                    (Path::Fast, _) if is_split => Err(not_fast(
                        "its requests are prefilled on one replica and decoded on another",
                    )),
                    (Path::Fast, Err(reason)) => Err(not_fast(reason)),
                    (Path::Auto | Path::Fast, Ok(())) if !is_split => {
                        Ok(Engine::Fast(Box::new(FastVllm::new(params, around))))
                    }
                    _ => Ok(stepped(around, Box::new(VllmV1::new(params)))),
                }
            }
            EngineSpec::Policy { make, .. } => match path {
                Path::Fast => Err(not_fast("only vLLM V1 without data-parallel ranks has one")),
                _ => Ok(stepped(around, make(shared))),
            },
        }
    }

    /// Tokens per block of the hashes that the engine wants, where requests can share content or not; 0: it wants none [tokens].
    pub(crate) fn hash_block(&self, shared: bool) -> u32 {
        match &self.engine {
            EngineSpec::VllmV1(p) if shared && p.enable_prefix_caching => p.block_size,
            EngineSpec::Policy {
                hash_block: Some(b),
                ..
            } if shared => *b,
            _ => 0,
        }
    }
}
