//! From options to a running engine with its model: what `servetwin serve` does before it opens its port.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hwmodels::EngineKind;
use serde::Deserialize;
use sim::cluster::router::RouterConfig;
use sim::cluster::router::prefix::PrefixAwareParams;
use sim::engines::EngineParams;
use sim::policy::check::ParamError;

use crate::engine::{Engine, EngineSpec};
use crate::executor::Executor;
use crate::http::chat::ChatTemplate;
use crate::http::{Ignored, Service};
use crate::model::{ModelError, ModelFacts, ModelOptions, inspect, load, tokenizer};
use crate::pace::Paced;
use crate::policy::Policy;
use crate::step_log::LogFacts;
use crate::text::Text;
use kernels::dtype::WeightDtype;

/// KV cache of a replica where no number of blocks is given [bytes].
pub const DEFAULT_KV_BYTES: u64 = 512 << 20;
/// Most requests waiting for their first step, unless told otherwise.
pub const DEFAULT_QUEUE_LIMIT: u64 = 4096;
/// Largest body, unless told otherwise [bytes].
pub const DEFAULT_MAX_BODY_BYTES: usize = 8 << 20;

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Folder of the model; none: the built-in random one.
    pub model: Option<PathBuf>,
    /// What the model is called; none: as its folder.
    pub served_model_name: Option<String>,
    /// Which system's policy.
    pub policy: EngineKind,
    /// Its parameters, under the system's names.
    pub keys: toml::Table,
    /// KV blocks of a replica; none: as many as [`DEFAULT_KV_BYTES`] hold.
    pub num_kv_blocks: Option<u64>,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Replicas.
    pub replicas: u32,
    /// Router, by its name in scenarios.
    pub router: String,
    /// Threads of each rank; none: the machine's cores over all ranks.
    pub threads: Option<usize>,
    /// Format of weights and KV cache; none: that of the files.
    pub dtype: Option<WeightDtype>,
    /// Where steps are logged.
    pub step_log: Option<PathBuf>,
    /// Key that callers must show.
    pub api_key: Option<String>,
    /// Most requests waiting for their first step.
    pub queue_limit: u64,
    /// Largest body [bytes].
    pub max_body_bytes: usize,
    /// A step takes at least so long, as on a device that the processor stands in for; zero: as long as it takes.
    pub min_step: Duration,
}

impl Default for LaunchOptions {
    /// The built-in model under vLLM V1, one replica.
    fn default() -> Self {
        LaunchOptions {
            model: None,
            served_model_name: None,
            policy: EngineKind::VllmV1,
            keys: toml::Table::new(),
            num_kv_blocks: None,
            tp: 1,
            pp: 1,
            replicas: 1,
            router: "round_robin".into(),
            threads: None,
            dtype: None,
            step_log: None,
            api_key: None,
            queue_limit: DEFAULT_QUEUE_LIMIT,
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
            min_step: Duration::ZERO,
        }
    }
}

/// Makes the forward pass of another replica.
pub type MakeExecutor = Box<dyn FnMut() -> Result<Box<dyn Executor>, LaunchError> + Send>;

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A parameter of the policy has no such name or type.
    #[error("{kind}: {message}")]
    Keys {
        /// The policy.
        kind: EngineKind,
        /// What is wrong.
        message: String,
    },
    /// The policy would not start with these parameters.
    #[error(transparent)]
    Policy(#[from] ParamError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Another option is wrong.
    #[error("{0}")]
    Option(String),
    /// The chat template cannot be compiled.
    #[error("the model's chat template: {0}")]
    ChatTemplate(String),
    /// A thread or the step log could not be started.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

impl LaunchError {
    /// Whether the caller's options or files are at fault.
    pub fn is_input(&self) -> bool {
        !matches!(self, LaunchError::Io(_))
    }
}

/// The router called `name` in scenarios.
///
/// # Errors
/// When there is none of that name.
pub fn router(name: &str) -> Result<RouterConfig, LaunchError> {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};
    use sim::scenario::file::RouterPolicy;
    let text: StrDeserializer<'_, Error> = name.into_deserializer();
    let policy =
        RouterPolicy::deserialize(text).map_err(|e| LaunchError::Option(format!("router: {e}")))?;
    Ok(match policy {
        RouterPolicy::RoundRobin => RouterConfig::RoundRobin,
        RouterPolicy::Random => RouterConfig::Random,
        RouterPolicy::LeastOutstanding => RouterConfig::LeastOutstanding,
        RouterPolicy::PowerOfTwo => RouterConfig::PowerOfTwo,
        RouterPolicy::LeastKv => RouterConfig::LeastKv,
        RouterPolicy::Session => RouterConfig::Session,
        RouterPolicy::PrefixAware => RouterConfig::PrefixAware(PrefixAwareParams::default()),
    })
}

/// Refuses numbers that cannot be.
fn check(options: &LaunchOptions) -> Result<(), LaunchError> {
    for (name, value) in [
        ("tp", options.tp),
        ("pp", options.pp),
        ("replicas", options.replicas),
    ] {
        if !(1..=64).contains(&value) {
            return Err(LaunchError::Option(format!(
                "{name} must be from 1 to 64, got {value}"
            )));
        }
    }
    if options.threads == Some(0) {
        return Err(LaunchError::Option("threads must be at least 1".into()));
    }
    Ok(())
}

/// Loads the model for each replica and starts the engine.
///
/// # Errors
/// See [`LaunchError`].
pub fn launch(options: &LaunchOptions) -> Result<Arc<Service>, LaunchError> {
    let loaded = Loaded::new(options)?;
    let executors = (0..options.replicas)
        .map(|_| loaded.executor())
        .collect::<Result<_, _>>()?;
    loaded.start(executors, false)
}

/// Starts an engine without replicas, which come and go later; the second makes the forward pass of one.
///
/// # Errors
/// See [`LaunchError`].
pub fn launch_elastic(
    options: &LaunchOptions,
) -> Result<(Arc<Service>, MakeExecutor), LaunchError> {
    let loaded = Loaded::new(options)?;
    let service = loaded.start(Vec::new(), true)?;
    Ok((service, Box::new(move || loaded.executor())))
}

/// Options that have been looked at, with what the model's files say.
struct Loaded {
    options: LaunchOptions,
    router: RouterConfig,
    facts: ModelFacts,
    policy: Policy,
    model: ModelOptions,
}

impl Loaded {
    fn new(options: &LaunchOptions) -> Result<Loaded, LaunchError> {
        check(options)?;
        let kind = options.policy;
        let params =
            EngineParams::read(kind, options.keys.clone()).map_err(|e| LaunchError::Keys {
                kind,
                message: e.message().trim().replace('\n', " "),
            })?;
        let facts = inspect(options.model.as_deref(), options.dtype)?;
        let policy = policy(options, &params, &facts)?;
        let ranks = (options.tp * options.pp * options.replicas.max(1)) as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Loaded {
            router: router(&options.router)?,
            model: ModelOptions {
                dtype: options.dtype,
                threads: options.threads.unwrap_or((cores / ranks).max(1)),
                tp: options.tp as usize,
                pp: options.pp as usize,
                block_size: policy.block_size,
                num_blocks: policy.cache_blocks,
            },
            options: options.clone(),
            facts,
            policy,
        })
    }

    /// The forward pass of a replica, its weights loaded.
    fn executor(&self) -> Result<Box<dyn Executor>, LaunchError> {
        let executor = load(self.options.model.as_deref(), &self.model)?.executor;
        Ok(if self.options.min_step.is_zero() {
            executor
        } else {
            Box::new(Paced::new(executor, self.options.min_step))
        })
    }

    fn start(
        &self,
        executors: Vec<Box<dyn Executor>>,
        elastic: bool,
    ) -> Result<Arc<Service>, LaunchError> {
        let (options, facts) = (&self.options, &self.facts);
        let tokenizer = tokenizer(options.model.as_deref(), options.dtype)?;
        let text = Arc::new(Text::new(tokenizer.inner().clone(), facts.config.vocab));
        let special = |t: &Option<String>| t.clone().unwrap_or_default();
        let chat = (facts.chat_template.as_deref())
            .map(|source| {
                ChatTemplate::new(
                    source,
                    &special(&facts.bos_token),
                    &special(&facts.eos_token),
                )
            })
            .transpose()
            .map_err(LaunchError::ChatTemplate)?;
        let mut log_facts = LogFacts {
            tp: options.tp,
            min_step: options.min_step,
            ..LogFacts::here(facts, self.model.threads)
        };
        if let Some(name) = &options.served_model_name {
            log_facts.model.clone_from(name);
        }
        let engine = Engine::start(
            EngineSpec {
                facts: log_facts,
                policy: self.policy.clone(),
                router: self.router,
                router_name: options.router.clone(),
                queue_limit: options.queue_limit,
                text: text.clone(),
                eos: facts.eos.clone(),
                step_log: options.step_log.clone(),
                elastic,
            },
            executors,
        )?;
        Ok(Arc::new(Service {
            engine,
            text,
            chat,
            api_key: options.api_key.clone(),
            max_body_bytes: options.max_body_bytes,
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            ignored: Ignored::default(),
        }))
    }
}

/// The policy with as many KV blocks as the options give, or as fit into [`DEFAULT_KV_BYTES`].
fn policy(
    options: &LaunchOptions,
    params: &EngineParams,
    facts: &ModelFacts,
) -> Result<Policy, LaunchError> {
    let model_tokens = u32::try_from(facts.config.max_position).unwrap_or(u32::MAX);
    let blocks = match options.num_kv_blocks {
        Some(blocks) => blocks,
        None => {
            // The block's size is the policy's affair: ask once, then fill the memory.
            let probe = Policy::start(params, 1 << 20, model_tokens, options.pp)?;
            let block_bytes = facts
                .kv_bytes_per_token
                .saturating_mul(u64::from(probe.block_size));
            (DEFAULT_KV_BYTES / block_bytes.max(1)).clamp(2, 1 << 20)
        }
    };
    Ok(Policy::start(params, blocks, model_tokens, options.pp)?)
}
