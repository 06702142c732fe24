//! From a scenario to a simulation that can run: catalog, placement, memory plan, step model, schedulers, workload.

mod hardware;
mod shared;
mod words;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hwmodels::fitted::Extent;
use hwmodels::memory::MemoryPlan;
use hwmodels::profile::Param;
use hwmodels::units::{Secs, UsdPerHour};

pub(super) use hardware::{Hardware, SiteFigures, uncertain};
pub(super) use words::replicas_in_words;

use super::Scenario;
use super::document::join;
use super::error::ScenarioError;
use super::file::RouterPolicy;
use crate::cluster::drift::SpeedDrift;
use crate::cluster::pools::Serving;
use crate::cluster::router::RouterConfig;
use crate::cluster::router::prefix::PrefixAwareParams;
use crate::engines::Started;
use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::spec::{ClusterSpec, EngineFacts};
use crate::metrics::definition::Slo;
use crate::observer::Observer;
use crate::record::{ReplicaInfo, RunInfo, RunRecord};
use crate::report::{RunReport, doubt};
use crate::run::Run;
use crate::simulation::{ReplicaSpec, RunError, RunOptions, Simulation};
use crate::workload::Mix;
use crate::workload::spec::{Arrival, Length, Lengths, StreamSpec};

/// A scenario, ready to run.
pub struct Built {
    /// The deployment.
    pub simulation: Simulation,
    /// The cluster around its replicas, where the scenario has one: they are then like the first, with pools like the first of each, and come and go.
    pub cluster: Option<ClusterSpec>,
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
    /// How the pods of its cluster start, in words.
    pub(super) fn starts(&self) -> impl Iterator<Item = (String, toml::Value)> {
        self.cluster.iter().flat_map(starts)
    }

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
        let load = Box::new(&mut self.workload);
        let mut run = match (&self.cluster, observer) {
            (Some(cluster), observer) => {
                Run::in_cluster(&self.simulation, load, &options, cluster, observer)?
            }
            (None, Some(observer)) => Run::watched(&self.simulation, load, &options, observer)?,
            (None, None) => Run::new(&self.simulation, load, &options)?,
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
        if self
            .cluster
            .as_ref()
            .is_some_and(ClusterSpec::refuses_at_zero)
        {
            record.info.warnings.push(
                "requests that come while no replica is ready are refused, as by a Service, Envoy or nginx, also those that a scale from zero waits for; write cluster.gateway = \"knative\", \"keda_http\", \"flow_control\" or \"queue\" where something holds them".to_owned(),
            );
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
        if !self.pools.is_empty() {
            return self.build_pools();
        }
        let (started, hardware, memory) = match (&self.model, &self.hardware) {
            (Some(model), Some(hardware)) => self.on_hardware(model, hardware)?,
            _ => self.on_constant_steps()?,
        };
        self.assemble(started, hardware, memory)
    }

    /// The replicas of a started engine on its hardware, what reports say of them, and what start-up decided.
    pub(super) fn fleet(
        &self,
        started: &Started,
        hardware: &Hardware,
    ) -> (Vec<ReplicaSpec>, Vec<ReplicaInfo>, toml::Table) {
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
        let info = |i| ReplicaInfo {
            name: format!("{}/{i}", hardware.replica_name),
            devices: hardware.devices,
            stages: self.layout.pp,
            kv_blocks: started.kv_blocks.saturating_mul(u64::from(self.layout.dp)),
            block_tokens: started.block_tokens,
        };
        let mut decided = started.decided.clone();
        decided.insert(
            "kv_blocks".into(),
            i64::try_from(started.kv_blocks).unwrap_or(i64::MAX).into(),
        );
        (
            (0..self.replicas).map(replica).collect(),
            (0..self.replicas).map(info).collect(),
            decided,
        )
    }

    /// The simulation of a started engine on its hardware.
    pub(super) fn assemble(
        &self,
        started: Started,
        hardware: Hardware,
        memory: Option<MemoryPlan>,
    ) -> Result<Built, ScenarioError> {
        let (specs, replicas, mut decided) = self.fleet(&started, &hardware);
        let scrape = self.router.scrape_period.secs();
        let simulation = Simulation {
            serving: Serving {
                gateway: self.router.gateway,
                ..Serving::default()
            },
            replicas: specs,
            router: router_config(self.router.policy),
            scrape_period: (scrape > 0.0).then(|| SimDuration::from_secs(scrape)),
            request_timeout: self
                .router
                .timeout
                .map(|t| SimDuration::from_secs(t.secs())),
            seed: self.seed,
        };
        let workload = self.mix()?;
        let mut cluster = self.cluster_spec()?;
        if let Some(cluster) = &mut cluster {
            for d in &mut cluster.deployments {
                d.facts = facts(&started);
            }
        }
        decided.extend(cluster.iter().flat_map(starts));
        if let Some(usd) = hardware.usd_per_hour {
            let price = UsdPerHour::new(usd).map_or_else(|_| usd.to_string(), UsdPerHour::human);
            decided.insert("price".into(), price.into());
        }
        let mut warnings = hardware.warnings;
        warnings.extend(started.warnings);
        Ok(Built {
            simulation,
            cluster,
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
                pools: Vec::new(),
                stream_models: Vec::new(),
                usd_per_hour: hardware.usd_per_hour,
                profiles: hardware.profiles,
                accuracy: hardware.accuracy,
                like: hardware.like,
                objectives: self.slo.objectives.clone(),
                warnings,
            },
            memory,
            extent: hardware.extent,
            decided,
            warmup: SimDuration::from_secs(self.warmup.secs()),
            slo: self.slo.limits(),
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
}

impl Scenario {
    /// Whether the load slows down with the deployment: every user waits for an answer, or all requests come at once.
    pub fn load_follows(&self) -> bool {
        let follows =
            |s: &StreamSpec| matches!(s.arrival, Arrival::Closed { .. } | Arrival::Burst { .. });
        self.workload.iter().all(follows)
    }

    /// The report of a run of it whose steps take `factor` times as long.
    ///
    /// # Errors
    /// See [`ScenarioRunError`].
    pub fn paced(&self, options: &RunOptions, factor: f64) -> Result<RunReport, ScenarioRunError> {
        let mut built = self.build()?;
        built.simulation.pace(factor);
        Ok(RunReport::new(&built.run(options)?, 0.0))
    }

    /// Gives `report`, that of a run of it, the ranges that its load makes ([`doubt::replay`]). `cluster_seed` is that of the cluster, where the run had another
    /// one than the load.
    ///
    /// # Errors
    /// See [`ScenarioRunError`].
    pub fn give_ranges(
        &self,
        report: &mut RunReport,
        options: &RunOptions,
        cluster_seed: Option<u64>,
    ) -> Result<(), ScenarioRunError> {
        let options = RunOptions {
            progress: None,
            ..options.clone()
        };
        let run = |scenario: &Scenario, factor: f64| {
            let mut built = scenario.build()?;
            built.simulation.seed = cluster_seed.unwrap_or(built.simulation.seed);
            built.simulation.pace(factor);
            Ok(RunReport::new(&built.run(&options)?, 0.0))
        };
        doubt::replay(report, self.load_follows(), |factor| run(self, factor))?;
        let apart = report.e2e_ms.mean.and_then(|ms| self.apart(ms / 1e3));
        doubt::start_apart(report, apart, |scenario| run(&scenario, 1.0))
    }

    /// The same with the users of each closed loop, who all start at once, starting evenly over `answer_s` [s]; none where no users do.
    fn apart(&self, answer_s: f64) -> Option<Scenario> {
        let mut scenario = self.clone();
        let mut changed = false;
        for stream in &mut scenario.workload {
            if let Arrival::Closed {
                concurrency,
                stagger,
                ..
            } = &mut stream.arrival
                && *concurrency > 1
                && stagger.secs() == 0.0
            {
                *stagger = Secs::new(answer_s / f64::from(*concurrency)).ok()?;
                changed = true;
            }
        }
        changed.then_some(scenario)
    }
}

/// How pods start, in words.
fn starts(cluster: &ClusterSpec) -> impl Iterator<Item = (String, toml::Value)> {
    (Scenario::start_in_words(cluster).into_iter()).map(|(what, text)| (what, text.into()))
}

/// What controllers know of an engine that has started.
pub(super) fn facts(started: &Started) -> EngineFacts {
    EngineFacts {
        block_tokens: started.block_tokens,
        kv_blocks: started.kv_blocks,
        sequence_tokens: started.sequence_tokens,
        step_tokens: started.step_tokens,
        max_seqs: most_running(&started.decided).unwrap_or(256),
    }
}

/// Most requests that a replica runs at once, of what start-up decides, by the engines' own names; `None`: no limit but memory.
pub fn most_running(decided: &toml::Table) -> Option<u32> {
    let limits = [
        "max_num_seqs",
        "max_batch_size",
        "batch_size",
        "n_parallel",
        "max_running_requests",
    ];
    let mut limits = limits.iter().filter_map(|key| decided.get(*key));
    let most = limits.find_map(toml::Value::as_integer)?;
    u32::try_from(most).ok()
}

/// The router of a policy.
pub(super) fn router_config(policy: RouterPolicy) -> RouterConfig {
    match policy {
        RouterPolicy::RoundRobin => RouterConfig::RoundRobin,
        RouterPolicy::Random => RouterConfig::Random,
        RouterPolicy::LeastOutstanding => RouterConfig::LeastOutstanding,
        RouterPolicy::LeastKv => RouterConfig::LeastKv,
        RouterPolicy::PowerOfTwo => RouterConfig::PowerOfTwo,
        RouterPolicy::PrefixAware => RouterConfig::PrefixAware(PrefixAwareParams::default()),
        RouterPolicy::Session => RouterConfig::Session,
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
