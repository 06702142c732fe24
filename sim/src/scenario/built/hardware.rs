//! A replica's hardware: catalog, placement, memory plan, the engine's start-up, step model, price.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hwmodels::accelerator::Accelerator;
use hwmodels::catalog::Catalog;
use hwmodels::deployment::{Deployment, DeploymentSpec, Graphs, deploy};
use hwmodels::doubt::Load;
use hwmodels::engine_cost::{EngineCost, Intake};
use hwmodels::error::Error;
use hwmodels::fitted::Extent;
use hwmodels::instance::Instance;
use hwmodels::layout::Placement;
use hwmodels::memory::{MemoryPlan, MemorySettings};
use hwmodels::model::AttentionKind;
use hwmodels::ops::{Kernels, Routing, Sampling};
use hwmodels::profile::Param;
use hwmodels::profiles::{self, Choice};
use hwmodels::{EngineKind, LinearStep, ModelArch, Profile, StepModel};

use super::super::document::{self, join};
use super::super::error::ScenarioError;
use super::super::names::{no_instance, no_profile};
use super::super::{HardwareChoice, ModelChoice, ModelSource, Scenario};
use super::shared;
use super::words::replicas_in_words;
use crate::cluster::drift::SpeedDrift;
use crate::engines::{Start, Started};
use crate::kernel::time::SimDuration;
use crate::policy::check::ParamError;
use crate::record::{MeasuredError, ProfileUse};
use crate::simulation::FrontEnd;
use crate::workload::spec::{Arrival, MAX_TOKENS, StreamSpec};

/// A replica's hardware side.
pub(in crate::scenario) struct Hardware {
    pub(in crate::scenario) step: Arc<dyn StepModel>,
    /// Counts steps outside the ranges that the step model was fitted on.
    pub(in crate::scenario) extent: Option<Arc<Extent>>,
    /// How the speed of the machine of the first replica drifts.
    pub(in crate::scenario) drift: Option<SpeedDrift>,
    /// All replicas run on that machine.
    pub(in crate::scenario) one_machine: bool,
    pub(in crate::scenario) input_delay: SimDuration,
    pub(in crate::scenario) front_end: FrontEnd,
    pub(in crate::scenario) output_delay: SimDuration,
    pub(in crate::scenario) devices: u32,
    pub(in crate::scenario) usd_per_hour: Option<f64>,
    pub(in crate::scenario) deployment: String,
    pub(in crate::scenario) replica_name: String,
    pub(in crate::scenario) profiles: Vec<ProfileUse>,
    pub(in crate::scenario) accuracy: Vec<MeasuredError>,
    /// What runs on it are like, for the ranges of their figures.
    pub(in crate::scenario) like: Option<hwmodels::doubt::Kind>,
    pub(in crate::scenario) warnings: Vec<String>,
    pub(in crate::scenario) uncertain: BTreeMap<String, Param>,
    /// Where its replicas stand; `None`: on no hardware in particular.
    pub(in crate::scenario) site: Option<SiteFigures>,
}

/// What pools that stand beside each other need to know of a replica's place.
#[derive(Clone, Debug)]
pub(in crate::scenario) struct SiteFigures {
    /// Instance type.
    pub(in crate::scenario) instance: String,
    /// Ranks that a node has place for.
    pub(in crate::scenario) node_ranks: u32,
    /// Price of a node [USD/h].
    pub(in crate::scenario) node_usd: Option<f64>,
    /// Nodes that the replicas take.
    pub(in crate::scenario) nodes: u64,
    /// A replica takes no more than a node.
    pub(in crate::scenario) fits_a_node: bool,
    /// Bandwidth of the link between the node's devices, of each [bytes/s], and its latency [s].
    pub(in crate::scenario) intra: Option<(f64, f64)>,
    /// The same of the node's network, of the whole node.
    pub(in crate::scenario) network: (f64, f64),
    /// KV of a token, over all ranks [bytes].
    pub(in crate::scenario) kv_bytes_per_token: f64,
    /// Layers of the model.
    pub(in crate::scenario) layers: u32,
    /// Every rank holds all of a token's KV: a latent.
    pub(in crate::scenario) latent_kv: bool,
}

/// How the requests of `streams` come, as far as errors depend on it: the streams that are hardest to predict decide.
fn load_of(streams: &[StreamSpec]) -> Load {
    let of = |s: &StreamSpec| match s.arrival {
        Arrival::Burst { .. } => Load::Saturated,
        Arrival::Closed { concurrency, .. } if concurrency > 1 => Load::Closed,
        _ => Load::Open,
    };
    streams.iter().map(of).max().unwrap_or_default()
}

/// Where a replica stands.
struct Site<'a> {
    instance: &'a Instance,
    chip: &'a Accelerator,
    placement: Placement,
}

impl Scenario {
    pub(in crate::scenario) fn on_constant_steps(
        &self,
    ) -> Result<(Started, Hardware, Option<MemoryPlan>), ScenarioError> {
        let step = self.step.unwrap_or_default();
        let started = self.start(&self.start_of(None))?;
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
            like: None,
            warnings: Vec::new(),
            uncertain: BTreeMap::new(),
            site: None,
        };
        Ok((started, hardware, None))
    }

    pub(in crate::scenario) fn on_hardware(
        &self,
        model: &ModelChoice,
        hardware: &HardwareChoice,
    ) -> Result<(Started, Hardware, Option<MemoryPlan>), ScenarioError> {
        let at = |path: &'static str| move |e: Error| self.places.error(path, e.to_string());
        let (catalog, name) = self.catalog_with(model, hardware)?;
        let entry = catalog.model_entry(&name).map_err(at("model.name"))?;
        let arch = &entry.arch;
        let site = self.site(&catalog, arch, hardware)?;
        let settings = self.memory_settings(model, arch, site.chip)?;
        // A given number of blocks is what the engine reported, so there is nothing to plan.
        let plan = match self.engine.common.kv_blocks {
            Some(_) => None,
            None => Some(
                MemoryPlan::for_placement(&catalog, &site.placement, arch, &settings)
                    .map_err(at("layout"))?,
            ),
        };
        if let Some(plan) = &plan {
            self.sleepers_fit(&settings, plan.total)?;
        }
        let started = self.start(&Start {
            model_tokens: arch.max_positions,
            kv_bytes_per_token: arch.kv_bytes_per_token(settings.kv_cache),
            settings: Some(&settings),
            device: Some(site.chip),
            host_link: site.chip.host_bandwidth * f64::from(self.layout.tp * self.layout.pp),
            ..self.start_of(plan.as_ref())
        })?;
        let deployment = self.deployment(&catalog, model, hardware, arch, &settings, &started)?;
        let mut warnings = entry.warnings.clone();
        warnings.extend((catalog.left_out().iter()).map(|l| format!("left out: {}", l.error)));
        // Reports say of each profile in use whether it is trusted.
        let of_trust = |w: &&String| !w.contains("is untrusted");
        warnings.extend(deployment.warnings.iter().filter(of_trust).cloned());
        warnings.extend(host_path_warning(hardware, &site));
        let kv_bytes_per_token = arch.kv_bytes_per_token(settings.kv_cache);
        let figures = self.site_figures(&catalog, arch, hardware, &site, kv_bytes_per_token)?;
        let hardware = Hardware {
            site: Some(figures),
            ..self.replica_hardware(arch, hardware, &site, deployment, warnings)?
        };
        Ok((started, hardware, plan))
    }

    /// The built-in catalog, with the user's own folder where the scenario names one.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn catalog(&self) -> Result<Catalog, ScenarioError> {
        match self.hardware.as_ref().and_then(|h| h.catalog.as_ref()) {
            Some(dir) => Catalog::with_dir(&*self.files, &self.base.join(dir))
                .map_err(|e| self.places.error("hardware.catalog", e.to_string())),
            None => Ok(Catalog::builtin()),
        }
    }

    /// The catalog with the scenario's own entries, and the name of its model there.
    fn catalog_with(
        &self,
        model: &ModelChoice,
        hardware: &HardwareChoice,
    ) -> Result<(Catalog, String), ScenarioError> {
        let mut catalog = self.catalog()?;
        let name = self.add_model(model, &mut catalog)?;
        self.add_hardware(hardware, &mut catalog)?;
        Ok((catalog, name))
    }

    /// Adds the machine of one's own, and cuts accelerators into parts.
    pub(in crate::scenario) fn add_hardware(
        &self,
        hardware: &HardwareChoice,
        catalog: &mut Catalog,
    ) -> Result<(), ScenarioError> {
        let at = |path: &'static str| move |e: Error| self.places.error(path, e.to_string());
        if let Some(m) = &hardware.machine {
            catalog
                .add_machine(&hardware.instance, &m.accelerator, m.count, m.host_path)
                .map_err(at("hardware.accelerator"))?;
        }
        let Some(profile) = &hardware.mig else {
            return Ok(());
        };
        if catalog.instance(&hardware.instance).is_err() {
            // Whoever looks it up says so.
            return Ok(());
        }
        if self.layout.devices() > 1 {
            let message = format!(
                "MIG parts have no link to each other, and the layout takes {} of them: leave mig out, or let a replica take one",
                self.layout.devices()
            );
            return Err(self.places.error("hardware.mig", message));
        }
        let cut = catalog.partition(&hardware.instance, profile);
        cut.map_err(at("hardware.mig"))
    }

    /// Where a replica stands.
    fn site<'a>(
        &self,
        catalog: &'a Catalog,
        arch: &ModelArch,
        hardware: &HardwareChoice,
    ) -> Result<Site<'a>, ScenarioError> {
        let at = |path: &'static str| move |e: Error| self.places.error(path, e.to_string());
        let key = match &hardware.machine {
            Some(_) => "hardware.accelerator",
            None => "hardware.instance",
        };
        let instance = catalog.instance(&hardware.instance).map_err(|e| {
            let message = no_instance(catalog, &hardware.instance, &e);
            self.places.error(key, message)
        })?;
        let chip = catalog
            .accelerator(&instance.accelerator)
            .map_err(at(key))?;
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
        let placement = Placement::new(catalog, arch, &instance.name, self.layout, kind)
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
        Ok(Site {
            instance,
            chip,
            placement,
        })
    }

    fn site_figures(
        &self,
        catalog: &Catalog,
        arch: &ModelArch,
        hardware: &HardwareChoice,
        site: &Site,
        kv_bytes_per_token: f64,
    ) -> Result<SiteFigures, ScenarioError> {
        let instance = site.instance;
        let of_link = |name: &str| catalog.link(name).ok().map(|l| (l.bandwidth, l.latency));
        Ok(SiteFigures {
            instance: instance.name.clone(),
            node_ranks: instance.ranks(site.chip),
            node_usd: self.price(hardware, instance)?,
            nodes: self.nodes(site),
            fits_a_node: site.placement.replicas_per_node > 0,
            intra: instance.intra_link.as_deref().and_then(of_link),
            network: (
                instance.network_bandwidth,
                of_link(&instance.network_link).map_or(0.0, |l| l.1),
            ),
            kv_bytes_per_token,
            layers: arch.layers,
            latent_kv: matches!(arch.attention, AttentionKind::Mla { .. }),
        })
    }

    /// Nodes that the replicas take.
    fn nodes(&self, site: &Site) -> u64 {
        match site.placement.replicas_per_node {
            0 => u64::from(site.placement.nodes) * u64::from(self.replicas),
            per_node => u64::from(self.replicas.div_ceil(per_node)),
        }
    }

    /// What the memory plan has to know of the engine.
    fn memory_settings(
        &self,
        model: &ModelChoice,
        arch: &ModelArch,
        chip: &Accelerator,
    ) -> Result<MemorySettings, ScenarioError> {
        let engine = self.engine.params.engine();
        let kind = self.engine.params.kind();
        let mut settings = MemorySettings::defaults(kind, engine.vllm(), chip, arch);
        settings.weights = model.weights.unwrap_or(arch.native_dtype);
        settings.kv_cache = model.kv_cache;
        if let Some(fraction) = self.engine.common.memory_fraction {
            settings.memory_fraction = fraction.get();
        }
        if let Some(graphs) = self.engine.common.cuda_graphs {
            settings.cuda_graphs = graphs;
        }
        let start = Start {
            device: Some(chip),
            ..self.start_of(None)
        };
        engine
            .settings(arch, &start, &mut settings)
            .map_err(|e| self.param_error(&e))?;
        Ok(settings)
    }

    /// The step model with all that belongs to it.
    fn deployment(
        &self,
        catalog: &Catalog,
        model: &ModelChoice,
        hardware: &HardwareChoice,
        arch: &ModelArch,
        settings: &MemorySettings,
        started: &Started,
    ) -> Result<Deployment, ScenarioError> {
        let at = |path: &'static str| move |e: Error| self.places.error(path, e.to_string());
        let profile = match &hardware.profile {
            file if file.ends_with(".toml") => {
                let own = profiles::load(&*self.files, &self.base.join(file));
                Choice::Own(Box::new(own.map_err(at("hardware.profile"))?))
            }
            name => Choice::parse(name),
        };
        let instance = catalog
            .instance(&hardware.instance)
            .map_err(at("hardware.instance"))?;
        let spec = DeploymentSpec {
            catalog,
            instance,
            model: arch,
            layout: self.layout,
            weights: settings.weights,
            kv_cache: settings.kv_cache,
            engine: self.engine.params.kind(),
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
            kernels: Kernels {
                sampling: (self.workload.iter())
                    .fold(Sampling::default(), |all, s| all.and(s.sampling.work())),
                ..started.kernels
            },
        };
        let deployment = match hardware.catalog {
            Some(_) => deploy(&spec),
            None => shared::deployment(&spec),
        };
        deployment.map_err(|e| self.deployment_error(&e, hardware))
    }

    /// Where the fault is that kept a step model from being made.
    fn deployment_error(&self, e: &Error, hardware: &HardwareChoice) -> ScenarioError {
        let path = match e {
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
        let message = match e {
            Error::Unknown {
                kind: "profile", ..
            } => no_profile(e),
            _ => e.to_string(),
        };
        self.places.error(path, message)
    }

    fn replica_hardware(
        &self,
        arch: &ModelArch,
        hardware: &HardwareChoice,
        site: &Site,
        deployment: Deployment,
        warnings: Vec<String>,
    ) -> Result<Hardware, ScenarioError> {
        let (instance, chip) = (site.instance, site.chip);
        let kind = self.engine.params.kind();
        let nodes = self.nodes(site);
        let price = self.price(hardware, instance)?;
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
        let profile = &deployment.profile.profile;
        let (input_delay, front_end) = self.front_end(&deployment.cost);
        let like = hwmodels::doubt::Kind {
            engine: kind,
            experts: arch.moe.is_some(),
            // Kernels of layers with a state that nobody measured on this engine are as a data sheet's.
            measured_chip: deployment.states_known
                && (deployment.profile.used.iter()).any(|u| u.trusted && u.of_chip),
            load: load_of(&self.workload),
        };
        Ok(Hardware {
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
            like: Some(like),
            // Parameters of the scenario's own make it another model than the one that was validated, and so do profiles of its own.
            accuracy: match hardware.profile.as_str() {
                _ if !given.is_empty() => Vec::new(),
                "auto" => MeasuredError::shipped(like, &chip.name),
                _ => {
                    let runs = profile.runs_on(kind, &chip.name);
                    runs.map(MeasuredError::from).collect()
                }
            },
            warnings,
            uncertain: uncertain(profile, given),
            site: None,
            step: deployment.step,
        })
    }

    /// Adds a model of a Hugging Face file to the catalog; the name of the model.
    ///
    /// # Errors
    /// A file that cannot be read or does not describe a model.
    pub fn add_model(
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
        let text = document::read_text(&*self.files, &full, "the model configuration")
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
        instance: &Instance,
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

    /// How requests reach the engine's queue: a delay, and what takes them in.
    fn front_end(&self, cost: &EngineCost) -> (SimDuration, FrontEnd) {
        let cost = self.engine.params.engine().front_end_cost(cost);
        let request = SimDuration::from_secs(cost.request_in);
        let (workers, whole) = match cost.intake {
            Intake::Unlimited => (0, false),
            Intake::Tokenizers(n) => (n, false),
            Intake::Processes(n) => (n, true),
        };
        let (delay, per_request) = if whole {
            (SimDuration::ZERO, request)
        } else {
            (request, SimDuration::ZERO)
        };
        let front_end = FrontEnd {
            workers,
            per_request,
            per_prompt_token: SimDuration::from_secs(cost.prompt_token_in),
        };
        (delay, front_end)
    }

    fn param_error(&self, e: &ParamError) -> ScenarioError {
        self.places
            .error(&join("engine", e.param), e.problem.clone())
    }

    /// What start-up has to know where there is no model: any length goes.
    pub(in crate::scenario) fn start_of(&self, plan: Option<&MemoryPlan>) -> Start<'static> {
        let given = self.engine.common.kv_blocks;
        Start {
            kv_blocks: given.or(plan.map(|p| p.kv_blocks)).unwrap_or(0),
            kv_given: given.is_some(),
            model_tokens: MAX_TOKENS,
            has_model: self.model.is_some(),
            kv_bytes_per_token: 0.0,
            host_link: 0.0,
            device: None,
            fraction_given: self.engine.common.memory_fraction.is_some(),
            tp: self.layout.tp,
            pp: self.layout.pp,
            dp: self.layout.dp,
            role: self.serves,
            cuda_graphs: self.engine.common.cuda_graphs,
            seed: self.seed,
            settings: None,
        }
    }

    /// Starts the engine.
    pub(in crate::scenario) fn start(&self, start: &Start) -> Result<Started, ScenarioError> {
        let started = self.engine.params.engine().start(start);
        started.map_err(|e| self.param_error(&e))
    }
}

/// What is to be said where ranks exchange bytes through a host that nobody describes.
fn host_path_warning(hardware: &HardwareChoice, site: &Site) -> Option<String> {
    if !site.placement.hangs_on_host_path() {
        return None;
    }
    let key = match &hardware.machine {
        Some(_) => "hardware.host_path".to_owned(),
        None => format!("host_path of the instance type {}", site.instance.name),
    };
    Some(format!(
        "{} on {} without NVLink hangs on the host: each device is taken to have a root port of its own, while on most rented machines all share one \
         path, and collectives are several times slower; set {key} to \"own\" or \"shared\" (docs/collectives.md)",
        site.placement.layout, site.chip.name
    ))
}

/// Parameters with a standard error, but for those that the scenario gives.
pub(in crate::scenario) fn uncertain(
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
