//! Scenarios: a deployment, the load on it, and the limits of the run, in one TOML file.
//!
//! The way of a scenario:
//! - [`document`]: text and overrides (`--set`; [`relative`] ones too) become a tree that knows the line of every key;
//! - [`schema`]: unknown keys and values are refused with the nearest known one; JSON schema for editors;
//! - [`file`]: the keys as written, all optional where they have a default;
//! - [`resolve`]: every value checked, every default filled: a [`Scenario`];
//! - [`built`]: catalog, memory plan, step model, schedulers and workload: a simulation that can run.
//!
//! `docs/scenario.md` lists every key; it is written by [`reference`](mod@reference) and checked by a test.

mod actuation;
pub mod actuation_file;
mod autoscaler;
mod behavior;
pub mod built;
mod cluster;
pub mod cluster_file;
pub mod deployment_file;
pub mod document;

mod endpoints;
pub mod error;
mod faults;
pub mod file;
mod fitted;
pub mod gateway_file;
pub mod hpa_file;
mod inputs;
mod names;
mod node_groups;
mod numbers;
mod on_demand;
pub mod on_demand_file;
mod pods;
mod pool_cluster;
mod pools;
pub mod pools_file;
pub mod reference;
pub mod relative;
pub mod resolve;
mod scalers;
pub mod scalers_file;
pub mod schema;
mod shape;
mod show;
pub mod slo;
mod startup;
#[cfg(test)]
mod tests;
mod values_file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hwmodels::files::{Disk, Files};
use hwmodels::ops::collective::HostPath;
use hwmodels::units::{Secs, UsdPerHour};
use hwmodels::{Dtype, Layout};

pub use crate::engines::EngineParams;
pub use autoscaler::{running_metric, runs_more_than};
pub use built::{Built, ScenarioRunError};
pub use cluster::ClusterChoice;
pub use document::Places;
pub use error::{Issue, ScenarioError};
pub use file::RouterPolicy;
pub use pool_cluster::PoolOnCluster;
pub use pools::{PoolChoice, TransferChoice};
pub use slo::SloChoice;
pub use startup::STORAGE;

use crate::cluster::pools::Role;
use crate::workload::{Limits, StreamSpec};

/// A scenario with every value checked and every default filled in.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// What it shows.
    pub description: String,
    /// Seed of every random stream, at most 2^63 - 1.
    pub seed: u64,
    /// The model. `None` only where `step` or `fitted` is given.
    pub model: Option<ModelChoice>,
    /// The hardware. `None` only where `step` or `fitted` is given.
    pub hardware: Option<HardwareChoice>,
    /// A step time of constant terms in place of model and hardware.
    pub step: Option<ConstantStep>,
    /// A step model fitted to an endpoint, in place of hardware.
    pub fitted: Option<FittedChoice>,
    /// How a replica is spread.
    pub layout: Layout,
    /// Replicas behind the router.
    pub replicas: u32,
    /// Pools of replicas that differ; none: all are alike.
    pub pools: Vec<PoolChoice>,
    /// How KV goes from prefill pools to decode pools; `None`: no pool prefills.
    pub kv_transfer: Option<TransferChoice>,
    /// Nodes, pods, autoscalers and faults around the replicas. `None`: they are there from start to end.
    pub cluster: Option<ClusterChoice>,
    /// The serving engine.
    pub engine: EngineChoice,
    /// What its replicas do of a request, where they are those of one pool.
    pub serves: Role,
    /// What stands between clients and replicas.
    pub router: RouterChoice,
    /// Streams of requests, at least one. File names are as written: relative to [`Scenario::base`].
    pub workload: Vec<StreamSpec>,
    /// What ends the sending.
    pub limits: Limits,
    /// Whether the run waits for what is under way when nothing more is sent.
    pub drain: bool,
    /// Requests sent before this stay out of the statistics.
    pub warmup: Secs,
    /// Targets that goodput counts by.
    pub slo: SloChoice,
    /// Folder that file names are relative to.
    pub base: PathBuf,
    /// Where those files are.
    pub files: Arc<dyn Files>,
    /// Where each key was written, for errors that only building finds.
    pub places: Places,
}

impl PartialEq for Scenario {
    /// Equal when they describe the same run, wherever they were written.
    fn eq(&self, o: &Scenario) -> bool {
        let Scenario {
            name,
            description,
            seed,
            model,
            hardware,
            step,
            fitted,
            layout,
            replicas,
            pools,
            kv_transfer,
            cluster,
            engine,
            serves,
            router,
            workload,
            limits,
            drain,
            warmup,
            slo,
            base: _,
            files: _,
            places: _,
        } = self;
        *name == o.name
            && *description == o.description
            && *seed == o.seed
            && *model == o.model
            && *hardware == o.hardware
            && *step == o.step
            && *fitted == o.fitted
            && *layout == o.layout
            && *replicas == o.replicas
            && *pools == o.pools
            && *kv_transfer == o.kv_transfer
            && *cluster == o.cluster
            && *engine == o.engine
            && *serves == o.serves
            && *router == o.router
            && *workload == o.workload
            && *limits == o.limits
            && *drain == o.drain
            && *warmup == o.warmup
            && *slo == o.slo
    }
}

/// Which model, and in which formats.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelChoice {
    /// Where its shape comes from.
    pub source: ModelSource,
    /// Format of the weights. `None`: the format it is published in.
    pub weights: Option<Dtype>,
    /// Format of the KV cache.
    pub kv_cache: Dtype,
    /// Exponent of the experts' popularity.
    pub expert_skew: f64,
}

/// Where a model's shape comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// The catalog.
    Catalog(String),
    /// A Hugging Face `config.json`, relative to the scenario file.
    Config(PathBuf),
}

/// Which hardware, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct HardwareChoice {
    /// Instance type, or [`OWN_MACHINE`].
    pub instance: String,
    /// The machine of one's own that stands in place of an instance type.
    pub machine: Option<Machine>,
    /// MIG profile that every accelerator is cut into.
    pub mig: Option<String>,
    /// Which of the catalog's prices. `None`: the newest.
    pub price_date: Option<String>,
    /// Price of an instance in place of the catalog's.
    pub price: Option<UsdPerHour>,
    /// Calibrated profile: "auto", "analytic", a name, or a path.
    pub profile: String,
    /// The user's own catalog, relative to the scenario file.
    pub catalog: Option<PathBuf>,
    /// Parameters laid over the profile, by dotted name.
    pub params: BTreeMap<String, f64>,
}

/// What a machine of one's own is called where an instance type has a name.
pub const OWN_MACHINE: &str = "own machine";

/// A machine that is in no catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its accelerator's name in the catalog.
    pub accelerator: String,
    /// How many it has.
    pub count: u32,
    /// How bytes between them travel through the host. `None`: not said.
    pub host_path: Option<HostPath>,
}

/// A step time of constant terms (see [`hwmodels::LinearStep`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConstantStep {
    /// Cost of any step.
    pub base: Secs,
    /// Cost per new token.
    pub per_token: Secs,
    /// Cost per token of decode context.
    pub per_context_token: Secs,
    /// Cost per query-key pair of prefill.
    pub per_pair: Secs,
}

/// A step model fitted to an endpoint (see [`hwmodels::fitted`]).
#[derive(Clone, Debug, PartialEq)]
pub struct FittedChoice {
    /// The profile, relative to the scenario file.
    pub profile: PathBuf,
    /// Parameters laid over it, by dotted name.
    pub params: BTreeMap<String, f64>,
    /// Price of the machine or endpoint that one replica takes.
    pub price: Option<UsdPerHour>,
}

/// The serving engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineChoice {
    /// Its parameters, under its own names.
    pub params: EngineParams,
    /// What a memory plan needs to know of it.
    pub common: crate::engines::EngineCommon,
}

/// What stands between clients and replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterChoice {
    /// How a replica is chosen.
    pub policy: RouterPolicy,
    /// The gateway gives up after this long.
    pub timeout: Option<Secs>,
    /// Delay of a request on its way in.
    pub overhead: Secs,
    /// How often the router reads the engines' state; zero: always fresh.
    pub scrape_period: Secs,
    /// What the gateway does with tries that fail.
    pub gateway: crate::cluster::gateway::GatewaySpec,
}

impl Scenario {
    /// Reads a scenario file and lays `overrides` (`key.path=value`) over it.
    ///
    /// # Errors
    /// Everything that is wrong with the file, each with file, line and key. Files that the scenario names are
    /// opened only when it is built.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Scenario, ScenarioError> {
        Scenario::load_from(Arc::new(Disk), path, overrides)
    }

    /// [`Scenario::load`] from files that need not be on a disk.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn load_from(
        files: Arc<dyn Files>,
        path: &Path,
        overrides: &[String],
    ) -> Result<Scenario, ScenarioError> {
        let text = document::read_text(&*files, path, "the scenario")?;
        Scenario::parse_from(files, &text, &path.display().to_string(), overrides)
    }

    /// Reads a scenario from text. `origin` is the file it came from: it stands in messages, its folder is
    /// the one that file names are relative to, and it names the scenario where `name` is missing.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(
        text: &str,
        origin: &str,
        overrides: &[String],
    ) -> Result<Scenario, ScenarioError> {
        Scenario::parse_from(Arc::new(Disk), text, origin, overrides)
    }

    /// [`Scenario::parse`]; the files that the text names are among `files`, which need not be on a disk.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse_from(
        files: Arc<dyn Files>,
        text: &str,
        origin: &str,
        overrides: &[String],
    ) -> Result<Scenario, ScenarioError> {
        let overrides = relative::absolute(text, origin, overrides)?;
        let document = document::Document::parse(text, origin, &overrides)?;
        let mut scenario = resolve::resolve(&document, origin)?;
        scenario.files = files;
        Ok(scenario)
    }

    /// The scenario as TOML with every default visible; [`Scenario::parse`] reads it back to the same scenario.
    pub fn show(&self) -> String {
        show::show(self)
    }

    /// [`Scenario::show`], followed by comments on what start-up decides on this hardware (limits that the engine takes
    /// from memory, KV blocks, price), or on why it cannot start.
    pub fn show_started(&self) -> String {
        let mut out = self.show();
        match self.build() {
            Ok(built) => {
                out.push_str(&format!(
                    "\n# {}\n# Decided at start-up:\n",
                    built.info.deployment
                ));
                for (key, value) in &built.decided {
                    out.push_str(&format!("#   {key} = {value}\n"));
                }
            }
            Err(e) => {
                let text = e.to_string().replace('\n', "\n#   ");
                out.push_str(&format!("\n# It cannot start:\n#   {text}\n"));
            }
        }
        out
    }
}
