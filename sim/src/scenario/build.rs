//! From a scenario to a simulation that can run: catalog, placement, memory plan, step model, schedulers, workload.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hwmodels::catalog::Catalog;
use hwmodels::deployment::{DeploymentSpec, Graphs, deploy};
use hwmodels::engine_cost::{EngineCost, Intake};
use hwmodels::error::Error;
use hwmodels::fitted::Extent;
use hwmodels::layout::Placement;
use hwmodels::memory::{MemoryPlan, MemorySettings};
use hwmodels::ops::{Kernels, Routing};
use hwmodels::profile::Param;
use hwmodels::profiles::{self, Choice};
use hwmodels::units::{UsdPerHour, plain, significant};
use hwmodels::{EngineKind, LinearStep, ModelArch, Profile, StepModel};

use super::document::join;
use super::engine::{EngineParams, VllmFrontEnd, VllmV1Keys};
use super::error::ScenarioError;
use super::file::RouterPolicy;
use super::names::{no_instance, no_profile};
use super::{HardwareChoice, ModelChoice, ModelSource, Scenario, vllm};
use crate::cluster::drift::SpeedDrift;
use crate::cluster::router::RouterConfig;
use crate::cluster::router::prefix::PrefixAwareParams;
use crate::kernel::time::{SimDuration, SimTime};
use crate::metrics::definition::Slo;
use crate::observer::Observer;
use crate::policy::check::ParamError;
use crate::policy::data_parallel;
use crate::policy::llama_cpp::{LlamaCpp, Slots};
use crate::policy::static_batch::StaticBatch;
use crate::policy::tgi::Tgi;
use crate::policy::tgi_neuron::{NeuronServer, TgiNeuron};
use crate::policy::trt_llm::TrtLlm;
use crate::policy::vllm_v0::VllmV0;
use crate::policy::vllm_v1::{VllmV1Params, VllmVersion};
use crate::record::{MeasuredError, ProfileUse, ReplicaInfo, RunInfo, RunRecord};
use crate::run::Run;
use crate::simulation::{EngineSpec, FrontEnd, ReplicaSpec, RunError, RunOptions, Simulation};
use crate::workload::Mix;
use crate::workload::spec::{Arrival, Length, Lengths, MAX_TOKENS, StreamSpec};

/// First minor release of vLLM whose scheduling is taken to be that of 0.33; those before follow 0.11.
const RULES_OF_0_33: u32 = 22;

/// First minor release of vLLM that schedules asynchronously unless told otherwise (recalled from its release notes).
const ASYNC_BY_DEFAULT: u32 = 14;

/// Most decode graphs of an engine.
const MOST_GRAPHS: usize = 10_000;

/// Most processes that may take requests in.
const MOST_API_SERVERS: u32 = 1024;

/// Tokens per block in which the KV of static batching is counted where `engine.kv_blocks` gives it [tokens].
const STATIC_BLOCK: u32 = 16;

/// A scenario, ready to run.
pub struct Built {
    /// The deployment.
    pub simulation: Simulation,
    /// The load on it.
    pub workload: Mix,
    /// What reports say about both.
    pub info: RunInfo,
    /// Where a replica's memory goes; `None` where the scenario gives the KV blocks itself.
    pub memory: Option<MemoryPlan>,
    /// Counts steps outside the ranges that a fitted step model was measured on; its warnings go into the record.
    pub extent: Option<Arc<Extent>>,
    /// What start-up decided on this hardware: the engine's parameters with their defaults, KV blocks, price.
    pub decided: toml::Table,
    /// Requests sent before this stay out of the statistics.
    pub warmup: SimDuration,
    /// Targets that goodput counts by.
    pub slo: Slo,
    /// When the run stops though requests are under way.
    pub until: Option<SimTime>,
    /// `max_tokens` of each stream, where the scenario gives it [tokens].
    pub max_tokens: Vec<Option<u32>>,
    /// Parameters of the step time that a profile gives with a standard error, by dotted name; those that the scenario
    /// sets itself are not among them.
    pub uncertain: BTreeMap<String, Param>,
}

/// Why a scenario did not give a record.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioRunError {
    /// The scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file changed while the run read it.
    #[error("a file changed while the run read it: {0}")]
    Changed(String),
}

impl Built {
    /// Runs it. Of `options`, the scenario sets warm-up, SLO and end.
    ///
    /// # Errors
    /// See [`ScenarioRunError`].
    pub fn run(self, options: &RunOptions) -> Result<RunRecord, ScenarioRunError> {
        self.run_watched(options, None)
    }

    /// The same, with somebody who is told of all that happens.
    ///
    /// # Errors
    /// See [`ScenarioRunError`].
    pub fn run_watched(
        mut self,
        options: &RunOptions,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<RunRecord, ScenarioRunError> {
        let mut options = options.clone();
        options.record.warmup = self.warmup;
        options.record.slo = self.slo;
        options.until = match (options.until, self.until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let failure = self.workload.failure();
        let cut = self.workload.cut();
        let names = self.info.streams.clone();
        let max_tokens = self.max_tokens;
        let workload = Box::new(&mut self.workload);
        let mut run = match observer {
            Some(observer) => Run::watched(&self.simulation, workload, &options, observer)?,
            None => Run::new(&self.simulation, workload, &options)?,
        };
        run.run_to_end()?;
        let mut record = run.finish(self.info)?;
        if let Some(extent) = &self.extent {
            record.info.warnings.extend(extent.warnings());
        }
        for ((n, name), max) in cut.counts().into_iter().zip(&names).zip(max_tokens) {
            if n > 0 {
                let limit =
                    max.map_or("its max_tokens".to_owned(), |m| format!("max_tokens = {m}"));
                record.info.warnings.push(format!(
                    "stream `{name}`: {n} outputs were longer than {limit}; they end there (finish reason: length)"
                ));
            }
        }
        if record.counts.offered == 0 {
            record.info.warnings.push(
                "no request was sent: the rate is too low for the time of the run, or the run too short".to_owned(),
            );
        }
        let changed = failure.lock().ok().and_then(|mut f| f.take());
        match changed {
            Some(message) => Err(ScenarioRunError::Changed(message)),
            None => Ok(record),
        }
    }
}

/// What the engine's start-up has to know of hardware and model.
pub(super) struct Start {
    /// KV tokens that memory has room for, and the plan that says so.
    pub(super) plan: Option<MemoryPlan>,
    /// Longest sequence of the model [tokens].
    pub(super) model_tokens: u32,
    /// KV of a token, undivided [bytes]; 0: not known.
    pub(super) kv_bytes_per_token: f64,
}

/// An engine after start-up.
pub(super) struct Started {
    engine: EngineSpec,
    block_tokens: u32,
    kv_blocks: u64,
    /// Most tokens in one step [tokens].
    step_tokens: u32,
    overlap: Option<bool>,
    /// Which kernels it runs.
    kernels: Kernels,
    /// Sizes of its decode graphs where the scenario gives them, in ascending order.
    graph_sizes: Option<Vec<u32>>,
    warnings: Vec<String>,
    /// The parameters that start-up decided.
    decided: toml::Table,
}

/// A replica's hardware side.
pub(super) struct Hardware {
    pub(super) step: Arc<dyn StepModel>,
    /// Counts steps outside the ranges that the step model was fitted on.
    pub(super) extent: Option<Arc<Extent>>,
    /// How the speed of the machine of the first replica drifts.
    pub(super) drift: Option<SpeedDrift>,
    /// All replicas run on that machine.
    pub(super) one_machine: bool,
    pub(super) input_delay: SimDuration,
    pub(super) front_end: FrontEnd,
    pub(super) output_delay: SimDuration,
    pub(super) devices: u32,
    pub(super) usd_per_hour: Option<f64>,
    pub(super) deployment: String,
    pub(super) replica_name: String,
    pub(super) profiles: Vec<ProfileUse>,
    pub(super) accuracy: Vec<MeasuredError>,
    pub(super) warnings: Vec<String>,
    pub(super) uncertain: BTreeMap<String, Param>,
}

impl Scenario {
    /// Makes the simulation: reads catalog, profile and trace files, plans memory, starts the engines.
    ///
    /// # Errors
    /// Names that the catalog does not have, layouts that cannot be, models that do not fit ("needs X, has Y"),
    /// parameters that the engine would refuse at start-up, files that cannot be read: each at its key.
    pub fn build(&self) -> Result<Built, ScenarioError> {
        if let Some(fitted) = &self.fitted {
            return self.build_with(&self.step_profile(fitted)?);
        }
        let (started, hardware, memory) = match (&self.model, &self.hardware) {
            (Some(model), Some(hardware)) => self.on_hardware(model, hardware)?,
            _ => self.on_constant_steps()?,
        };
        self.assemble(started, hardware, memory)
    }

    /// The simulation of a started engine on its hardware.
    pub(super) fn assemble(
        &self,
        started: Started,
        hardware: Hardware,
        memory: Option<MemoryPlan>,
    ) -> Result<Built, ScenarioError> {
        let replica = |i| ReplicaSpec {
            engine: started.engine.clone(),
            step: hardware.step.clone(),
            drift: hardware.drift.map(|drift| SpeedDrift {
                machine: if hardware.one_machine { 0 } else { i },
                ..drift
            }),
            input_delay: hardware.input_delay + SimDuration::from_secs(self.router.overhead.secs()),
            front_end: hardware.front_end,
            output_delay: hardware.output_delay,
        };
        let n = self.replicas as usize;
        let scrape = self.router.scrape_period.secs();
        let simulation = Simulation {
            replicas: (0..self.replicas).map(replica).collect(),
            router: match self.router.policy {
                RouterPolicy::RoundRobin => RouterConfig::RoundRobin,
                RouterPolicy::Random => RouterConfig::Random,
                RouterPolicy::LeastOutstanding => RouterConfig::LeastOutstanding,
                RouterPolicy::LeastKv => RouterConfig::LeastKv,
                RouterPolicy::PowerOfTwo => RouterConfig::PowerOfTwo,
                RouterPolicy::PrefixAware => {
                    RouterConfig::PrefixAware(PrefixAwareParams::default())
                }
                RouterPolicy::Session => RouterConfig::Session,
            },
            scrape_period: (scrape > 0.0).then(|| SimDuration::from_secs(scrape)),
            request_timeout: self
                .router
                .timeout
                .map(|t| SimDuration::from_secs(t.secs())),
            seed: self.seed,
        };
        let workload = self.mix()?;
        let mut decided = started.decided;
        decided.insert(
            "kv_blocks".into(),
            i64::try_from(started.kv_blocks).unwrap_or(i64::MAX).into(),
        );
        if let Some(usd) = hardware.usd_per_hour {
            let price = UsdPerHour::new(usd).map_or_else(|_| usd.to_string(), UsdPerHour::human);
            decided.insert("price".into(), price.into());
        }
        let mut warnings = hardware.warnings;
        warnings.extend(started.warnings);
        let replicas = (0..n)
            .map(|i| ReplicaInfo {
                name: format!("{}/{i}", hardware.replica_name),
                devices: hardware.devices,
                stages: self.layout.pp,
                kv_blocks: started.kv_blocks.saturating_mul(u64::from(self.layout.dp)),
                block_tokens: started.block_tokens,
            })
            .collect();
        let nanos = |t: Option<hwmodels::units::Secs>| t.map(|t| SimDuration::from_secs(t.secs()));
        Ok(Built {
            simulation,
            workload,
            info: RunInfo {
                name: self.name.clone(),
                description: self.description.clone(),
                config: self.show(),
                seed: self.seed,
                load: self.load_in_words(),
                deployment: hardware.deployment,
                streams: self.workload.iter().map(|s| s.name.clone()).collect(),
                replicas,
                usd_per_hour: hardware.usd_per_hour,
                profiles: hardware.profiles,
                accuracy: hardware.accuracy,
                warnings,
            },
            memory,
            extent: hardware.extent,
            decided,
            warmup: SimDuration::from_secs(self.warmup.secs()),
            slo: Slo {
                ttft: nanos(self.slo.ttft),
                tpot: nanos(self.slo.tpot),
                e2e: nanos(self.slo.e2e),
            },
            until: match self.limits.duration {
                Some(d) if !self.drain => Some(SimTime::from_secs(d.secs())),
                _ => None,
            },
            max_tokens: self.workload.iter().map(|s| s.max_tokens).collect(),
            uncertain: hardware.uncertain,
        })
    }

    /// The load alone, whatever serves it: the simulator and the harness draw their requests from this.
    ///
    /// # Errors
    /// Files that cannot be read or do not hold what the workload says, each at its key.
    pub fn mix(&self) -> Result<Mix, ScenarioError> {
        let streams: Vec<StreamSpec> = self.workload.iter().map(|s| based(s, &self.base)).collect();
        Mix::new(&streams, &*self.files, &self.limits, self.seed).map_err(|e| {
            let path = join(&format!("workload[{}]", e.stream), &e.error.path);
            self.places.error(&path, e.error.message)
        })
    }

    /// Builds and runs the scenario. Of `options`, the scenario sets warm-up, SLO and end.
    ///
    /// # Errors
    /// See [`ScenarioRunError`].
    pub fn run(&self, options: &RunOptions) -> Result<RunRecord, ScenarioRunError> {
        self.build()?.run(options)
    }

    fn on_constant_steps(&self) -> Result<(Started, Hardware, Option<MemoryPlan>), ScenarioError> {
        let step = self.step.unwrap_or_default();
        let started = self.start(&Start {
            plan: None,
            model_tokens: MAX_TOKENS,
            kv_bytes_per_token: 0.0,
        })?;
        let hardware = Hardware {
            step: Arc::new(LinearStep {
                base: step.base.secs(),
                per_token: step.per_token.secs(),
                per_ctx: step.per_context_token.secs(),
                per_pair: step.per_pair.secs(),
            }),
            extent: None,
            drift: None,
            one_machine: false,
            input_delay: SimDuration::ZERO,
            front_end: FrontEnd::default(),
            output_delay: SimDuration::ZERO,
            devices: self.layout.devices(),
            usd_per_hour: None,
            deployment: format!(
                "constant step times, {}, {}",
                self.engine.params.kind(),
                replicas_in_words(self.replicas)
            ),
            replica_name: "replica".into(),
            profiles: Vec::new(),
            accuracy: Vec::new(),
            warnings: Vec::new(),
            uncertain: BTreeMap::new(),
        };
        Ok((started, hardware, None))
    }

    fn on_hardware(
        &self,
        model: &ModelChoice,
        hardware: &HardwareChoice,
    ) -> Result<(Started, Hardware, Option<MemoryPlan>), ScenarioError> {
        let at = |path: &'static str| move |e: Error| self.places.error(path, e.to_string());
        let mut catalog = match &hardware.catalog {
            Some(dir) => Catalog::with_dir(&*self.files, &self.base.join(dir))
                .map_err(at("hardware.catalog"))?,
            None => Catalog::builtin(),
        };
        let name = self.add_model(model, &mut catalog)?;
        let hardware_key = match &hardware.machine {
            Some(m) => {
                catalog
                    .add_machine(&hardware.instance, &m.accelerator, m.count)
                    .map_err(at("hardware.accelerator"))?;
                "hardware.accelerator"
            }
            None => "hardware.instance",
        };
        let entry = catalog.model_entry(&name).map_err(at("model.name"))?;
        let arch = &entry.arch;
        let instance = catalog.instance(&hardware.instance).map_err(|e| {
            let message = no_instance(&catalog, &hardware.instance, &e);
            self.places.error(hardware_key, message)
        })?;
        let chip = catalog
            .accelerator(&instance.accelerator)
            .map_err(at(hardware_key))?;
        let kind = self.engine.params.kind();
        if (kind == EngineKind::TgiNeuron) != (chip.ranks_per_device > 1) {
            return Err(self.places.error(
                "engine.kind",
                format!(
                    "{kind} does not run on {}: tgi_neuron is for Inferentia and Trainium, the others for GPUs",
                    chip.name
                ),
            ));
        }
        let placement = Placement::new(&catalog, arch, &instance.name, self.layout, kind)
            .map_err(at("layout"))?;
        if placement.nodes > 1 && hardware.machine.is_some() {
            return Err(self.places.error(
                "hardware.count",
                format!(
                    "the layout takes {} machines, and nothing says how machines of one's own are joined: raise count, take fewer \
                     ranks, or write an [[instance]] with a network_link (docs/catalog.md)",
                    placement.nodes
                ),
            ));
        }
        let mut settings = MemorySettings::defaults(kind, self.vllm_minor(), chip, arch);
        settings.weights = model.weights.unwrap_or(arch.native_dtype);
        settings.kv_cache = model.kv_cache;
        if let Some(fraction) = self.engine.common.memory_fraction {
            settings.memory_fraction = fraction.get();
        }
        if let Some(graphs) = self.engine.common.cuda_graphs {
            settings.cuda_graphs = graphs;
        }
        self.engine_settings(arch, &mut settings)?;
        // A given number of blocks is what the engine reported, so there is nothing to plan.
        let plan = match self.engine.common.kv_blocks {
            Some(_) => None,
            None => Some(
                MemoryPlan::for_placement(&catalog, &placement, arch, &settings)
                    .map_err(at("layout"))?,
            ),
        };
        let started = self.start_with(
            &Start {
                plan: plan.clone(),
                model_tokens: arch.max_positions,
                kv_bytes_per_token: arch.kv_bytes_per_token(settings.kv_cache),
            },
            Some(&settings),
        )?;
        let profile = match &hardware.profile {
            file if file.ends_with(".toml") => {
                let own = profiles::load(&*self.files, &self.base.join(file));
                Choice::Own(Box::new(own.map_err(at("hardware.profile"))?))
            }
            name => Choice::parse(name),
        };
        let deployment = deploy(&DeploymentSpec {
            catalog: &catalog,
            instance,
            model: arch,
            layout: self.layout,
            weights: settings.weights,
            kv_cache: settings.kv_cache,
            engine: kind,
            overlap: started.overlap,
            graphs: match (self.engine.common.cuda_graphs, &started.graph_sizes) {
                (Some(false), _) => Graphs::Off,
                (_, Some(sizes)) => Graphs::Sizes(sizes),
                (Some(true), None) => Graphs::On,
                (None, None) => Graphs::Default,
            },
            max_tokens: started.step_tokens,
            profile,
            params: &hardware.params,
            routing: if model.expert_skew > 0.0 {
                Routing::PowerLaw(model.expert_skew)
            } else {
                Routing::Balanced
            },
            kernels: started.kernels,
        })
        .map_err(|e| {
            let path = match &e {
                Error::Unknown {
                    kind: "profile", ..
                }
                | Error::Io { .. } => "hardware.profile",
                Error::Unknown { .. } if !hardware.params.is_empty() => "hardware.params",
                Error::File { file, .. } if file.starts_with("parameter ") => "hardware.params",
                Error::File { .. } => "hardware.profile",
                Error::Unmeasured { .. } => "engine.gemm_plugin",
                _ => "hardware",
            };
            let message = match &e {
                Error::Unknown {
                    kind: "profile", ..
                } => no_profile(&e),
                _ => e.to_string(),
            };
            self.places.error(path, message)
        })?;
        let nodes = match placement.replicas_per_node {
            0 => u64::from(placement.nodes) * u64::from(self.replicas),
            per_node => u64::from(self.replicas.div_ceil(per_node)),
        };
        let price = self.price(hardware, instance)?;
        let mut warnings = entry.warnings.clone();
        warnings.extend((catalog.left_out().iter()).map(|l| format!("left out: {}", l.error)));
        // Reports say of each profile in use whether it is trusted.
        let of_trust = |w: &&String| !w.contains("is untrusted");
        warnings.extend(deployment.warnings.iter().filter(of_trust).cloned());
        let text = format!(
            "{} on {nodes} x {} ({} x {} each), {kind}, {}, {}",
            arch.name,
            instance.name,
            instance.devices,
            chip.name,
            self.layout,
            replicas_in_words(self.replicas)
        );
        let given = &hardware.params;
        let uncertain = uncertain(&deployment.profile.profile, given);
        let (input_delay, front_end) = self.front_end(&deployment.cost);
        let hardware = Hardware {
            step: deployment.step,
            extent: None,
            drift: None,
            one_machine: false,
            input_delay,
            front_end,
            output_delay: SimDuration::from_secs(deployment.cost.token_out),
            devices: self.layout.devices(),
            usd_per_hour: price.map(|p| p * nodes as f64),
            deployment: text,
            replica_name: instance.name.clone(),
            profiles: deployment
                .profile
                .used
                .iter()
                .map(|u| ProfileUse {
                    name: u.name.clone(),
                    trusted: u.trusted,
                    note: u.description.clone(),
                })
                .collect(),
            // Parameters of the scenario's own make it another model than the one that was validated.
            accuracy: if given.is_empty() {
                let profile = &deployment.profile.profile;
                let runs = profile.runs_on(kind, &chip.name);
                runs.map(MeasuredError::from).collect()
            } else {
                Vec::new()
            },
            warnings,
            uncertain,
        };
        Ok((started, hardware, plan))
    }

    /// Adds a model of a Hugging Face file to the catalog; the name of the model.
    pub(super) fn add_model(
        &self,
        model: &ModelChoice,
        catalog: &mut Catalog,
    ) -> Result<String, ScenarioError> {
        let path = match &model.source {
            ModelSource::Catalog(name) => return Ok(name.clone()),
            ModelSource::Config(path) => path,
        };
        let full = self.base.join(path);
        let at = |message: String| self.places.error("model.config", message);
        let text = super::document::read_text(&*self.files, &full, "the model configuration")
            .map_err(|e| at(e.to_string()))?;
        // The folder is what people name a model's files by; a bare config.json says nothing.
        let folder = full.parent().and_then(Path::file_name);
        let stem = full.file_stem();
        let name = match stem {
            Some(s) if s != "config" => Some(s),
            _ => folder,
        };
        let name = name.map_or("custom".into(), |n| n.to_string_lossy().into_owned());
        catalog
            .add_hf_config(&name, &text, &full.display().to_string())
            .map_err(|e| at(e.to_string()))?;
        Ok(name)
    }

    fn price(
        &self,
        hardware: &HardwareChoice,
        instance: &hwmodels::instance::Instance,
    ) -> Result<Option<f64>, ScenarioError> {
        if let Some(price) = hardware.price {
            return Ok(Some(price.usd_per_hour()));
        }
        let Some(date) = &hardware.price_date else {
            return Ok(instance.price().map(|p| p.usd.usd_per_hour()));
        };
        match instance.price_on(date) {
            Some(p) => Ok(Some(p.usd.usd_per_hour())),
            None => {
                let known: Vec<&str> = instance.prices.iter().map(|p| p.date.as_str()).collect();
                Err(self.places.error(
                    "hardware.price_date",
                    format!(
                        "the catalog has no price of {} for {date}; it has {}, or give hardware.price",
                        instance.name,
                        if known.is_empty() { "none".into() } else { known.join(", ") }
                    ),
                ))
            }
        }
    }

    fn vllm_minor(&self) -> u32 {
        match &self.engine.params {
            EngineParams::VllmV1(p) => p.version.minor,
            _ => hwmodels::memory::DEFAULT_VLLM_MINOR,
        }
    }

    fn param_error(&self, e: &ParamError) -> ScenarioError {
        self.places
            .error(&join("engine", e.param), e.problem.clone())
    }

    /// Tells the memory plan what the engine's parameters say.
    fn engine_settings(
        &self,
        arch: &ModelArch,
        s: &mut MemorySettings,
    ) -> Result<(), ScenarioError> {
        match &self.engine.params {
            EngineParams::VllmV1(p) => {
                if let Some(n) = p.max_model_len {
                    if n > arch.max_positions {
                        return Err(self.places.error(
                            "engine.max_model_len",
                            format!(
                                "{n} is beyond the {} tokens that {} is made for",
                                arch.max_positions, arch.name
                            ),
                        ));
                    }
                    s.max_model_len = n;
                }
                if let Some(n) = p.max_num_seqs {
                    s.max_num_seqs = n;
                }
                s.block_size = p.block_size;
                let params = self.vllm_v1(p, s, 1 << 20)?;
                s.max_num_batched_tokens = params.max_num_batched_tokens;
                s.max_num_seqs = params.max_num_seqs;
            }
            EngineParams::Tgi(p) => {
                // What the launcher takes for granted before it knows its memory.
                let config = p
                    .resolve(u64::from(u32::MAX), arch.max_positions)
                    .map_err(|e| self.param_error(&e))?;
                s.max_num_batched_tokens = config.max_batch_prefill_tokens;
                s.max_num_seqs = config.max_concurrent_requests;
                s.max_model_len = config.max_total_tokens;
                s.block_size = config.block_size;
            }
            EngineParams::TgiNeuron(p) => {
                let p = p.resolve().map_err(|e| self.param_error(&e))?;
                s.max_num_seqs = p.batch_size;
                s.max_model_len = p.sequence_length;
                s.block_size = p.sequence_length;
                s.max_num_batched_tokens = match p.server {
                    NeuronServer::Tgi => p.context_buckets.iter().copied().max(),
                    NeuronServer::OptimumVllm => Some(p.context_chunk),
                }
                .unwrap_or(p.sequence_length);
            }
            EngineParams::TrtLlm(p) => {
                let config = p
                    .resolve(u64::from(u32::MAX), arch.max_positions, self.layout.pp)
                    .map_err(|e| self.param_error(&e))?;
                s.max_num_batched_tokens = p.max_num_tokens;
                s.max_num_seqs = p.max_batch_size;
                s.max_model_len = config.max_seq_len;
                s.block_size = p.tokens_per_block;
            }
            EngineParams::VllmV0(p) => {
                let config = p
                    .resolve(u64::from(u32::MAX), arch.max_positions)
                    .map_err(|e| self.param_error(&e))?;
                s.max_num_batched_tokens = config.max_num_batched_tokens;
                s.max_num_seqs = config.max_num_seqs;
                s.max_model_len = config.max_model_len;
                s.block_size = config.block_size;
            }
            EngineParams::Static(p) => {
                let config = p
                    .resolve(u64::from(u32::MAX), arch.max_positions)
                    .map_err(|e| self.param_error(&e))?;
                s.max_num_seqs = config.max_batch_size;
                s.max_model_len = config.max_seq_len;
                s.max_num_batched_tokens = config.max_seq_len;
            }
            EngineParams::LlamaCpp(p) => {
                let config = p
                    .resolve(u64::from(u32::MAX), arch.max_positions, 0.0)
                    .map_err(|e| self.param_error(&e))?;
                s.max_num_seqs = config.n_parallel;
                s.max_model_len = config.n_ctx_slot;
                s.max_num_batched_tokens = config.n_batch;
                s.block_size = 1;
            }
        }
        Ok(())
    }

    /// How requests reach the engine's queue: a delay, and what takes them in.
    fn front_end(&self, cost: &EngineCost) -> (SimDuration, FrontEnd) {
        let cost = match &self.engine.params {
            EngineParams::VllmV1(p) if p.front_end == VllmFrontEnd::Dynamo => cost.behind_dynamo(),
            _ => *cost,
        };
        let request = SimDuration::from_secs(cost.request_in);
        let per_prompt_token = SimDuration::from_secs(cost.prompt_token_in);
        let (workers, whole) = match (cost.intake, &self.engine.params) {
            (Intake::Unlimited, _) => (0, false),
            (Intake::Tokenizers(n), _) => (n, false),
            (Intake::Processes(_), EngineParams::VllmV1(p)) => (p.api_server_count, true),
            (Intake::Processes(n), _) => (n, true),
        };
        let (delay, per_request) = if whole {
            (SimDuration::ZERO, request)
        } else {
            (request, SimDuration::ZERO)
        };
        let front_end = FrontEnd {
            workers,
            per_request,
            per_prompt_token,
        };
        (delay, front_end)
    }

    pub(super) fn start(&self, start: &Start) -> Result<Started, ScenarioError> {
        self.start_with(start, None)
    }

    /// The engine's start-up. Without `settings` there is no device, and vLLM's largest class of defaults holds.
    fn start_with(
        &self,
        start: &Start,
        settings: Option<&MemorySettings>,
    ) -> Result<Started, ScenarioError> {
        let at = |e: ParamError| self.param_error(&e);
        let given = self.engine.common.kv_blocks;
        let planned = |block: u32| -> (u64, u64) {
            let blocks = given
                .or(start.plan.as_ref().map(|p| p.kv_blocks))
                .unwrap_or(0);
            (blocks, blocks.saturating_mul(u64::from(block)))
        };
        Ok(match &self.engine.params {
            EngineParams::VllmV1(p) => {
                let fallback;
                let settings = match settings {
                    Some(s) => s,
                    None => {
                        fallback = vllm_without_device(p);
                        &fallback
                    }
                };
                let (blocks, _) = planned(p.block_size);
                let params = self.vllm_v1(p, settings, blocks)?;
                Started {
                    block_tokens: p.block_size,
                    kv_blocks: blocks,
                    step_tokens: params.budget(),
                    overlap: Some(params.async_scheduling),
                    kernels: Kernels::default(),
                    graph_sizes: self.graph_sizes(
                        "cudagraph_capture_sizes",
                        p.cudagraph_capture_sizes.as_deref(),
                        |size| (size <= params.budget()).then_some(size),
                    )?,
                    warnings: vllm::warnings(
                        vllm::StepLimits {
                            tokens: params.max_num_batched_tokens,
                            seqs: params.max_num_seqs,
                        },
                        params.max_model_len,
                    ),
                    decided: vllm_decided(&params),
                    engine: self.vllm_engine(params),
                }
            }
            EngineParams::Tgi(p) => {
                let block = p
                    .resolve(u64::from(u32::MAX), start.model_tokens)
                    .map_err(at)?
                    .block_size;
                let (blocks, tokens) = planned(block);
                let config = p.resolve(tokens, start.model_tokens).map_err(at)?;
                let hash = config.prefix_caching.then_some(config.block_size);
                Started {
                    block_tokens: config.block_size,
                    kv_blocks: blocks,
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
                }
            }
            EngineParams::TgiNeuron(p) => {
                let params = p.resolve().map_err(at)?;
                // Started once here, so that a refusal is an error and not a panic later.
                TgiNeuron::new(&params).map_err(at)?;
                Started {
                    block_tokens: params.sequence_length,
                    kv_blocks: u64::from(params.batch_size),
                    step_tokens: params
                        .context_buckets
                        .iter()
                        .copied()
                        .max()
                        .unwrap_or(params.sequence_length)
                        .max(params.context_chunk)
                        .saturating_mul(params.batch_size),
                    overlap: None,
                    kernels: Kernels::default(),
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
                }
            }
            EngineParams::TrtLlm(p) => {
                let (_, tokens) = planned(p.tokens_per_block);
                let config = p
                    .resolve(tokens, start.model_tokens, self.layout.pp)
                    .map_err(at)?;
                let hash = p.enable_kv_cache_reuse.then_some(p.tokens_per_block);
                let dp = self.layout.dp;
                if p.attention_dp_config.enable_balance && dp == 1 {
                    return Err(self.places.error(
                        "engine.attention_dp_config",
                        "there are no ranks to balance: set layout.dp, or leave it out",
                    ));
                }
                Started {
                    block_tokens: p.tokens_per_block,
                    kv_blocks: config.blocks,
                    step_tokens: p.max_num_tokens.max(p.max_batch_size),
                    overlap: Some(p.overlap_scheduler),
                    kernels: p.kernels(),
                    graph_sizes: self.graph_sizes(
                        "cuda_graph_batch_sizes",
                        p.cuda_graph_batch_sizes.as_deref(),
                        |size| Some(size.min(p.max_batch_size)),
                    )?,
                    decided: table_of(&config),
                    warnings: config.warnings.clone(),
                    engine: EngineSpec::Policy {
                        make: Arc::new(move |shared| match dp {
                            1 => Box::new(TrtLlm::new(config.clone(), shared)),
                            ranks => data_parallel::trt_llm(&config, shared, ranks),
                        }),
                        hash_block: hash,
                    },
                }
            }
            EngineParams::VllmV0(p) => {
                let (blocks, tokens) = planned(p.block_size);
                let config = p.resolve(tokens, self.longest(start, tokens)).map_err(at)?;
                let hash = config.enable_prefix_caching.then_some(config.block_size);
                Started {
                    block_tokens: config.block_size,
                    kv_blocks: blocks,
                    step_tokens: config.max_num_batched_tokens.max(config.max_num_seqs),
                    overlap: None,
                    kernels: Kernels::default(),
                    graph_sizes: None,
                    decided: table_of(&config),
                    warnings: Vec::new(),
                    engine: EngineSpec::Policy {
                        make: Arc::new(move |shared| Box::new(VllmV0::new(config.clone(), shared))),
                        hash_block: hash,
                    },
                }
            }
            EngineParams::Static(p) => {
                let block = settings.map_or(STATIC_BLOCK, |s| s.block_size);
                let (blocks, tokens) = planned(block);
                let config = p.resolve(tokens, self.longest(start, tokens)).map_err(at)?;
                Started {
                    block_tokens: block,
                    kv_blocks: blocks,
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
                }
            }
            EngineParams::LlamaCpp(p) => {
                let (blocks, tokens) = planned(1);
                let longest = self.longest(start, tokens);
                let mut config = p
                    .resolve(tokens, longest, start.kv_bytes_per_token)
                    .map_err(at)?;
                if let Slots::Used(seed) = &mut config.slots {
                    *seed = self.seed;
                }
                let hash = config.cache_prompt.then_some(1);
                Started {
                    block_tokens: 1,
                    kv_blocks: blocks.min(u64::from(config.n_ctx)),
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
                }
            }
        })
    }

    /// Sizes of decode graphs under the engine's own key, as far as `fit` makes something of them, in ascending order.
    fn graph_sizes(
        &self,
        key: &str,
        sizes: Option<&[u32]>,
        fit: impl Fn(u32) -> Option<u32>,
    ) -> Result<Option<Vec<u32>>, ScenarioError> {
        let Some(sizes) = sizes else { return Ok(None) };
        let fail = |message: String| Err(self.places.error(&join("engine", key), message));
        if self.engine.common.cuda_graphs == Some(false) {
            return fail("has no effect with cuda_graphs = false; leave one of them out".into());
        }
        if sizes.is_empty() || sizes.len() > MOST_GRAPHS {
            let n = sizes.len();
            return fail(format!("must be 1 to {MOST_GRAPHS} batch sizes, got {n}"));
        }
        if sizes.contains(&0) {
            return fail("must be batch sizes of at least 1, got 0".into());
        }
        let mut sizes: Vec<u32> = sizes.iter().filter_map(|s| fit(*s)).collect();
        if sizes.is_empty() {
            return fail("all sizes are beyond the token budget of a step".into());
        }
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Some(sizes))
    }

    /// vLLM's engine, or as many engine cores as there are data-parallel ranks.
    fn vllm_engine(&self, params: VllmV1Params) -> EngineSpec {
        let ranks = self.layout.dp;
        if ranks == 1 {
            return EngineSpec::VllmV1(params);
        }
        EngineSpec::Policy {
            make: Arc::new(move |shared| {
                let shared_content = shared && params.enable_prefix_caching;
                let params = VllmV1Params {
                    shared_content,
                    ..params
                };
                data_parallel::vllm(params, ranks)
            }),
            hash_block: params.enable_prefix_caching.then_some(params.block_size),
        }
    }

    /// Longest sequence of the model, or without a model what the KV cache holds [tokens].
    fn longest(&self, start: &Start, kv_tokens: u64) -> u32 {
        match self.model {
            Some(_) => start.model_tokens,
            None => u32::try_from(kv_tokens)
                .unwrap_or(u32::MAX)
                .min(start.model_tokens),
        }
    }

    /// vLLM's parameters with the device's defaults and `blocks` KV blocks.
    fn vllm_v1(
        &self,
        p: &VllmV1Keys,
        s: &MemorySettings,
        blocks: u64,
    ) -> Result<VllmV1Params, ScenarioError> {
        let fail =
            |key: &str, message: String| Err(self.places.error(&join("engine", key), message));
        let given = p.max_num_batched_tokens;
        for (key, value, least) in [
            (
                "max_num_batched_tokens",
                given.unwrap_or(s.max_num_batched_tokens),
                1,
            ),
            ("max_num_seqs", p.max_num_seqs.unwrap_or(s.max_num_seqs), 1),
            ("max_model_len", s.max_model_len, 2),
            ("block_size", s.block_size, 1),
            ("max_num_queued_reqs", p.max_num_queued_reqs.unwrap_or(1), 1),
        ] {
            if value < least {
                return fail(key, format!("must be >= {least}, got {value}"));
            }
            if value > MAX_TOKENS {
                return fail(key, format!("must be <= {MAX_TOKENS}, got {value}"));
            }
        }
        let limits = match vllm::settle(p, s) {
            Ok(limits) => limits,
            Err((key, message)) => return fail(key, message),
        };
        if !(1..=MOST_API_SERVERS).contains(&p.api_server_count) {
            let got = p.api_server_count;
            return fail(
                "api_server_count",
                format!("must be from 1 to {MOST_API_SERVERS}, got {got}"),
            );
        }
        if p.front_end == VllmFrontEnd::Dynamo && p.api_server_count != 1 {
            return fail(
                "api_server_count",
                "Dynamo stands in place of vLLM's API servers; leave it out or set front_end = \"api_server\"".into(),
            );
        }
        if !(0.0..1.0).contains(&p.watermark) {
            return fail(
                "watermark",
                format!("must be from 0 to below 1, got {}", plain(p.watermark)),
            );
        }
        let async_scheduling = p
            .async_scheduling
            .unwrap_or(p.version.minor >= ASYNC_BY_DEFAULT && self.layout.pp == 1);
        if async_scheduling && self.layout.pp > 1 {
            return fail(
                "async_scheduling",
                "does not go together with pipeline stages; leave it out or set layout.pp = 1"
                    .into(),
            );
        }
        if self.engine.common.kv_blocks.is_some()
            && u64::from(s.max_model_len).div_ceil(u64::from(s.block_size))
                > blocks.saturating_sub(1)
            && p.max_model_len.is_some()
        {
            return fail(
                "max_model_len",
                format!(
                    "a sequence of {} tokens needs more than the {blocks} KV blocks of {} tokens; vLLM would not start",
                    s.max_model_len, s.block_size
                ),
            );
        }
        Ok(VllmV1Params {
            version: if p.version.minor >= RULES_OF_0_33 {
                VllmVersion::V0_33
            } else {
                VllmVersion::V0_11
            },
            max_num_batched_tokens: limits.tokens,
            max_num_seqs: limits.seqs,
            max_model_len: s.max_model_len,
            enable_chunked_prefill: p.enable_chunked_prefill,
            long_prefill_token_threshold: p.long_prefill_token_threshold,
            scheduling_policy: p.scheduling_policy,
            enable_prefix_caching: p.enable_prefix_caching,
            async_scheduling,
            pipeline_parallel_size: self.layout.pp,
            max_num_queued_reqs: p.max_num_queued_reqs,
            max_num_queued_tokens: p.max_num_queued_tokens,
            scheduler_reserve_full_isl: p.scheduler_reserve_full_isl,
            watermark: p.watermark,
            block_size: s.block_size,
            num_gpu_blocks: blocks,
            // The run sets it from the workload.
            shared_content: false,
        })
    }

    /// What is offered, for the reader.
    pub fn load_in_words(&self) -> String {
        let streams: Vec<String> = self
            .workload
            .iter()
            .map(|s| {
                let what = match &s.arrival {
                    Arrival::Poisson { rate } => format!("Poisson {}", rate.human()),
                    Arrival::Gamma { rate, cv } => {
                        format!("gamma {}, cv {}", rate.human(), significant(*cv))
                    }
                    Arrival::Constant { rate } => format!("constant {}", rate.human()),
                    Arrival::Steps { steps, .. } => format!("{} steps of rate", steps.len()),
                    Arrival::Ramp { from, to, over, .. } => {
                        format!(
                            "ramp from {} to {} over {}",
                            from.human(),
                            to.human(),
                            over.human()
                        )
                    }
                    Arrival::RateTable { file, .. } => format!("rate curve {}", file.display()),
                    Arrival::Closed {
                        concurrency, think, ..
                    } if think.secs() == 0.0 => {
                        format!("closed loop at {concurrency}")
                    }
                    Arrival::Closed {
                        concurrency, think, ..
                    } => {
                        format!(
                            "closed loop of {concurrency} users, {} apart",
                            think.human()
                        )
                    }
                    Arrival::Burst {
                        requests,
                        max_in_flight: None,
                        ..
                    } => format!("{requests} at once"),
                    Arrival::Burst {
                        requests,
                        max_in_flight: Some(n),
                        ..
                    } => {
                        format!("{requests} at once, {n} in flight")
                    }
                    Arrival::Trace {
                        file, time_scale, ..
                    } if *time_scale == 1.0 => {
                        format!("trace {}", file.display())
                    }
                    Arrival::Trace {
                        file, time_scale, ..
                    } => {
                        let scale = significant(*time_scale);
                        format!("trace {}, times x {scale}", file.display())
                    }
                };
                match &s.lengths {
                    Lengths::Separate {
                        prompt: Length::Fixed(p),
                        output: Length::Fixed(o),
                    } => {
                        format!("{}: {what}, {p} in / {o} out", s.name)
                    }
                    _ => format!("{}: {what}", s.name),
                }
            })
            .collect();
        streams.join("; ")
    }
}

/// `1 replica`, `8 replicas`.
pub(super) fn replicas_in_words(n: u32) -> String {
    format!("{n} replica{}", if n == 1 { "" } else { "s" })
}

/// Parameters with a standard error, but for those that the scenario gives.
pub(super) fn uncertain(
    profile: &Profile,
    given: &BTreeMap<String, f64>,
) -> BTreeMap<String, Param> {
    profile
        .params
        .iter()
        .filter(|(name, p)| p.std_error.is_some_and(|e| e > 0.0) && !given.contains_key(*name))
        .map(|(name, p)| (name.clone(), p.clone()))
        .collect()
}

/// What vLLM's start-up decided.
fn vllm_decided(p: &VllmV1Params) -> toml::Table {
    let mut t = toml::Table::new();
    for (key, value) in [
        ("max_num_batched_tokens", p.budget()),
        ("max_num_seqs", p.max_num_seqs),
        ("max_model_len", p.max_model_len),
    ] {
        t.insert(key.into(), i64::from(value).into());
    }
    t.insert("async_scheduling".into(), p.async_scheduling.into());
    t
}

/// A started engine's configuration, as far as it is numbers and names.
fn table_of<T: serde::Serialize>(config: &T) -> toml::Table {
    let mut table = toml::Table::try_from(config).unwrap_or_default();
    table.remove("warnings");
    if let Some(toml::Value::Table(given)) = table.remove("params") {
        table.extend(given);
    }
    table
}

/// vLLM's settings where there is no device to take defaults from: those of its largest class.
fn vllm_without_device(p: &VllmV1Keys) -> MemorySettings {
    MemorySettings {
        engine: EngineKind::VllmV1,
        vllm_minor: p.version.minor,
        weights: hwmodels::Dtype::Bf16,
        kv_cache: hwmodels::Dtype::Bf16,
        memory_fraction: 0.9,
        max_num_batched_tokens: p.max_num_batched_tokens.unwrap_or(8192),
        max_num_seqs: p.max_num_seqs.unwrap_or(1024),
        max_model_len: p.max_model_len.unwrap_or(MAX_TOKENS),
        block_size: p.block_size,
        cuda_graphs: true,
    }
}

/// The stream with its file names made relative to `base`.
fn based(stream: &StreamSpec, base: &Path) -> StreamSpec {
    let mut s = stream.clone();
    match &mut s.arrival {
        Arrival::RateTable { file, .. } | Arrival::Trace { file, .. } => *file = base.join(&*file),
        _ => {}
    }
    let length = |l: &mut Length| {
        if let Length::Empirical { file, .. } = l {
            *file = base.join(&*file);
        }
    };
    match &mut s.lengths {
        Lengths::Separate { prompt, output } => {
            length(prompt);
            length(output);
        }
        Lengths::Pairs { file, .. } => *file = base.join(&*file),
        Lengths::OfTrace => {}
    }
    if let Some(sessions) = &mut s.sessions {
        length(&mut sessions.turns);
    }
    s
}
