//! Pools of replicas: from `[[pool]]` and `[kv_transfer]` to a simulation in which each pool is built like a scenario of its own.

use std::collections::BTreeMap;

use hwmodels::memory::MemoryPlan;
use hwmodels::units::{BytesPerSec, Secs, UsdPerHour};
use hwmodels::{EngineKind, Layout};

use super::built::{Built, Hardware, SiteFigures, facts, router_config};
use super::error::{Issue, ScenarioError};
use super::file::RouterPolicy;
use super::pool_cluster::PoolOnCluster;
use super::{ConstantStep, EngineChoice, HardwareChoice, ModelChoice, ModelSource, Scenario};
use crate::cluster::pools::{FirstToken, PoolSpec, Role, Serving, TransferSpec};
use crate::engines::Started;
use crate::kernel::time::SimDuration;
use crate::record::PoolInfo;

/// A pool of replicas, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolChoice {
    /// What it is called in reports.
    pub name: String,
    /// What its replicas do of a request.
    pub role: Role,
    /// Its replicas.
    pub replicas: u32,
    /// Shortest prompt that it takes [tokens]. `None`: any.
    pub min_prompt: Option<u32>,
    /// Longest prompt that it takes [tokens]. `None`: any.
    pub max_prompt: Option<u32>,
    /// How one of its replicas is chosen.
    pub router: RouterPolicy,
    /// The model that it serves; `None` only where `step` is given.
    pub model: Option<ModelChoice>,
    /// What it stands on; `None` only where `step` is given.
    pub hardware: Option<HardwareChoice>,
    /// A step time of constant terms in place of model and hardware.
    pub step: Option<ConstantStep>,
    /// How a replica is spread.
    pub layout: Layout,
    /// Its engine.
    pub engine: EngineChoice,
    /// What of the cluster is its own, where there is one.
    pub on_cluster: Option<PoolOnCluster>,
}

/// How KV goes from prefill pools to decode pools.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransferChoice {
    /// What one replica can send, and receive. `None`: the catalog's.
    pub bandwidth: Option<BytesPerSec>,
    /// Before the first byte moves. `None`: the catalog's.
    pub latency: Option<Secs>,
    /// What all transfers together can have. `None`: any.
    pub fabric_bandwidth: Option<BytesPerSec>,
    /// KV of a token where no model says it [bytes].
    pub bytes_per_token: Option<f64>,
    /// Whether a layer's KV goes as soon as it is computed.
    pub layerwise: bool,
    /// Which side gives the client its first token.
    pub first_token: FirstToken,
}

/// A pool that has been started.
struct Made {
    started: Started,
    hardware: Hardware,
}

impl PoolChoice {
    /// What the model is called that it serves.
    pub fn model_name(&self) -> String {
        match self.model.as_ref().map(|m| &m.source) {
            Some(ModelSource::Catalog(name)) => name.clone(),
            Some(ModelSource::Config(path)) => path.display().to_string(),
            None => String::new(),
        }
    }

    fn shortest(&self) -> u32 {
        self.min_prompt.unwrap_or(0)
    }

    fn longest(&self) -> u32 {
        self.max_prompt.unwrap_or(u32::MAX)
    }

    /// Whether `other` takes the same requests at the same stage.
    pub(super) fn is_beside(&self, other: &PoolChoice) -> bool {
        let of = |p: &PoolChoice| (p.role == Role::Decode, p.shortest(), p.longest());
        of(self) == of(other) && self.model_name() == other.model_name()
    }
}

impl Scenario {
    /// Pool `i` as a scenario of its own.
    pub(super) fn of_pool(&self, i: usize) -> Scenario {
        let pool = &self.pools[i];
        Scenario {
            model: pool.model.clone(),
            hardware: pool.hardware.clone(),
            step: pool.step,
            layout: pool.layout,
            replicas: pool.replicas,
            engine: pool.engine.clone(),
            serves: pool.role,
            cluster: (self.cluster.as_ref())
                .map(|c| c.of_pool(pool.on_cluster.clone(), pool.replicas)),
            pools: Vec::new(),
            kv_transfer: None,
            ..self.clone()
        }
    }

    /// What building pool `i` has brought up, at the pool's own key where it has one.
    pub(super) fn at_pool(&self, i: usize, e: &ScenarioError) -> ScenarioError {
        let issues = e.issues().iter().map(|issue| {
            let path = &issue.path;
            let own = path.strip_prefix("cluster.").unwrap_or(path);
            let own = format!("pool[{i}].{own}");
            let message = format!("pool `{}`: {}", self.pools[i].name, issue.message);
            if self.places.has(&own) {
                let placed = self.places.error(&own, message);
                placed.issues()[0].clone()
            } else {
                Issue {
                    message,
                    ..issue.clone()
                }
            }
        });
        ScenarioError::from_issues(issues.collect())
    }

    /// The simulation of a scenario with pools.
    ///
    /// # Errors
    /// As [`Scenario::build`].
    pub(super) fn build_pools(&self) -> Result<Built, ScenarioError> {
        let mut made = Vec::new();
        let mut memory = None;
        for i in 0..self.pools.len() {
            let own = self.of_pool(i);
            let parts = match (&own.model, &own.hardware) {
                (Some(model), Some(hardware)) => own.on_hardware(model, hardware),
                _ => own.on_constant_steps(),
            };
            let (started, hardware, plan) = parts.map_err(|e| self.at_pool(i, &e))?;
            memory = memory.or(plan);
            made.push(Made { started, hardware });
        }
        let serving = self.serving(&made)?;
        self.assemble_pools(made, memory, serving)
    }

    /// The pools as the simulation knows them.
    fn serving(&self, made: &[Made]) -> Result<Serving, ScenarioError> {
        let models = self.model_names();
        let index = |name: &str| models.iter().position(|n| n == name).unwrap_or(0) as u16;
        let (transfer, bandwidth) = match self.transfer(made)? {
            Some((spec, bandwidth)) => (Some(spec), bandwidth),
            None => (None, vec![0.0; made.len()]),
        };
        let pools = self.pools.iter().zip(made).zip(bandwidth);
        Ok(Serving {
            pools: pools
                .map(|((pool, m), kv_bandwidth)| PoolSpec {
                    name: pool.name.clone(),
                    role: pool.role,
                    model: index(&pool.model_name()),
                    min_prompt: pool.shortest(),
                    max_prompt: pool.longest(),
                    router: router_config(pool.router),
                    replicas: self.modelled(pool),
                    kv_bandwidth,
                    kv_bytes_per_token: self.kv_bytes(m) * copies(pool, m),
                    layers: m.hardware.site.as_ref().map_or(1, |f| f.layers),
                })
                .collect(),
            transfer,
            gateway: self.router.gateway,
            stream_models: (self.workload.iter())
                .map(|s| s.model.as_deref().map_or(0, index))
                .collect(),
        })
    }

    /// Replicas of a pool in the simulation: in a cluster one that all are like.
    fn modelled(&self, pool: &PoolChoice) -> u32 {
        match self.cluster {
            Some(_) => 1,
            None => pool.replicas,
        }
    }

    /// KV of a token of a pool [bytes]: the model's, or what `[kv_transfer]` says where there is none.
    fn kv_bytes(&self, made: &Made) -> f64 {
        let given = self.kv_transfer.and_then(|t| t.bytes_per_token);
        let of_model = made.hardware.site.as_ref().map(|f| f.kv_bytes_per_token);
        of_model.or(given).unwrap_or(0.0)
    }

    fn assemble_pools(
        &self,
        made: Vec<Made>,
        memory: Option<MemoryPlan>,
        serving: Serving,
    ) -> Result<Built, ScenarioError> {
        let usd = price(self, &made);
        let texts = self.pools.iter().zip(&made).map(|(p, m)| {
            let role = match p.role {
                Role::Prefill if p.name != "prefill" => " (prefill)",
                Role::Decode if p.name != "decode" => " (decode)",
                _ => "",
            };
            format!("{}{role}: {}", p.name, m.hardware.deployment)
        });
        let deployment = texts.collect::<Vec<_>>().join("; ");
        let (mut replicas, mut infos) = (Vec::new(), Vec::new());
        let mut decided = toml::Table::new();
        let (mut profiles, mut accuracy, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut uncertain = BTreeMap::new();
        for (i, m) in made.iter().enumerate() {
            let name = &self.pools[i].name;
            let mut own = self.of_pool(i);
            own.replicas = self.modelled(&self.pools[i]);
            let (specs, of_pool, of_engine) = own.fleet(&m.started, &m.hardware);
            replicas.extend(specs);
            infos.extend(of_pool.into_iter().enumerate().map(|(k, mut info)| {
                info.name = format!("{name}/{k}");
                info
            }));
            decided.insert(name.clone(), of_engine.into());
            add_new(&mut profiles, &m.hardware.profiles);
            add_new(&mut accuracy, &m.hardware.accuracy);
            add_new(&mut warnings, &m.hardware.warnings);
            add_new(&mut warnings, &m.started.warnings);
            uncertain.extend(m.hardware.uncertain.clone());
        }
        let facts: Vec<_> = made.iter().map(|m| facts(&m.started)).collect();
        let Some(Made {
            started,
            mut hardware,
        }) = made.into_iter().next()
        else {
            return Err(self.places.error("pool", "needs at least one pool"));
        };
        hardware.usd_per_hour = usd;
        hardware.deployment = deployment;
        (hardware.profiles, hardware.accuracy) = (profiles, accuracy);
        hardware.uncertain = uncertain;
        let mut built = self.assemble(started, hardware, memory)?;
        for (d, facts) in (built.cluster.iter_mut())
            .flat_map(|c| &mut c.deployments)
            .zip(facts)
        {
            d.facts = facts;
        }
        decided.extend(built.starts());
        built.simulation.replicas = replicas;
        built.simulation.serving = serving;
        built.info.pools = (self.pools.iter())
            .map(|p| PoolInfo {
                name: p.name.clone(),
                role: p.role,
                model: p.model_name(),
                replicas: self.modelled(p),
            })
            .collect();
        built.info.stream_models = (self.workload.iter())
            .map(|s| s.model.clone().unwrap_or_default())
            .collect();
        built.info.replicas = infos;
        built.info.warnings = warnings;
        if let Some(usd) = usd {
            let text = UsdPerHour::new(usd).map_or_else(|_| usd.to_string(), UsdPerHour::human);
            decided.insert("price".into(), text.into());
        }
        built.decided = decided;
        Ok(built)
    }

    /// The models that its pools serve, each once.
    fn model_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for name in self.pools.iter().map(PoolChoice::model_name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// How KV is transferred, and what a replica of each pool can send and receive [bytes/s]; `None`: no pool prefills.
    fn transfer(&self, made: &[Made]) -> Result<Option<(TransferSpec, Vec<f64>)>, ScenarioError> {
        let Some(choice) = self.kv_transfer else {
            return Ok(None);
        };
        self.check_kv(made)?;
        let sites: Option<Vec<&SiteFigures>> =
            made.iter().map(|m| m.hardware.site.as_ref()).collect();
        let link = sites.map(|sites| links(&self.pools, &sites));
        let missing = |key: &str, example: &str| {
            let message = format!(
                "`{key}` is missing: without hardware nothing else says it; write e.g. {key} = {example}"
            );
            self.places.error("kv_transfer", message)
        };
        let bandwidth = match (choice.bandwidth, &link) {
            (Some(b), _) => vec![b.bytes_per_sec(); made.len()],
            (None, Some(link)) => link.0.clone(),
            (None, None) => return Err(missing("bandwidth", "\"50 GB/s\"")),
        };
        // Machines of the user's own have no network that the catalog knows.
        if choice.bandwidth.is_none() && bandwidth.iter().any(|b| *b <= 0.0) {
            return Err(self.places.error(
                "kv_transfer",
                "`bandwidth` is missing: pools on several machines of one's own have no network that the catalog knows, and KV would never arrive; write what a replica sends and receives, e.g. bandwidth = \"50 GB/s\"".to_owned(),
            ));
        }
        let latency = match (choice.latency, &link) {
            (Some(t), _) => t.secs(),
            (None, Some(link)) => link.1,
            (None, None) => return Err(missing("latency", "\"20 us\"")),
        };
        if link.is_none() && choice.bytes_per_token.is_none() {
            return Err(missing("bytes_per_token", "131072"));
        }
        let spec = TransferSpec {
            latency: SimDuration::from_secs(latency),
            fabric: choice
                .fabric_bandwidth
                .map_or(f64::INFINITY, BytesPerSec::bytes_per_sec),
            layerwise: choice.layerwise,
            first_token: choice.first_token,
        };
        Ok(Some((spec, bandwidth)))
    }

    /// Prefill and decode pools of a model must hold the same KV.
    fn check_kv(&self, made: &[Made]) -> Result<(), ScenarioError> {
        for (p, m) in self.pools.iter().zip(made) {
            for (j, (d, n)) in self.pools.iter().zip(made).enumerate() {
                let meet = (p.role, d.role) == (Role::Prefill, Role::Decode)
                    && d.model_name() == p.model_name();
                if meet && self.kv_bytes(m) != self.kv_bytes(n) {
                    let message = format!(
                        "pools `{}` and `{}` keep KV in different formats, so one cannot read what the other sends; give both the same kv_cache",
                        p.name, d.name
                    );
                    return Err(self.places.error(&format!("pool[{j}].model"), message));
                }
            }
        }
        Ok(())
    }
}

/// How often a token's KV goes over the link: every rank of a decode server holds all of a latent, and under SGLang gets it from the rank of the prefill
/// server that has its number (`disaggregation/common/conn.py`).
fn copies(pool: &PoolChoice, made: &Made) -> f64 {
    let is_latent = made.hardware.site.as_ref().is_some_and(|f| f.latent_kv);
    match pool.engine.params.kind() {
        EngineKind::Sglang if is_latent => f64::from(pool.layout.tp),
        _ => 1.0,
    }
}

fn add_new<T: Clone + PartialEq>(all: &mut Vec<T>, more: &[T]) {
    for x in more {
        if !all.contains(x) {
            all.push(x.clone());
        }
    }
}

/// What a replica of each pool can send and receive [bytes/s], and the latency of the link [s], as the catalog has it: the link between a
/// node's devices where all pools stand on one node, else each replica's share of its node's network.
fn links(pools: &[PoolChoice], sites: &[&SiteFigures]) -> (Vec<f64>, f64) {
    let devices = |p: &PoolChoice| p.layout.devices();
    let total = (pools.iter())
        .map(|p| p.replicas.saturating_mul(devices(p)))
        .fold(0, u32::saturating_add);
    let alike = (sites.iter()).all(|s| s.instance == sites[0].instance);
    let one_node = alike && total <= sites[0].node_ranks;
    let of = |p: &PoolChoice, s: &SiteFigures| match s.intra {
        Some((bandwidth, latency)) if one_node => (bandwidth * f64::from(devices(p)), latency),
        _ => {
            let share = f64::from(devices(p)) / f64::from(s.node_ranks.max(1));
            (s.network.0 * share, s.network.1)
        }
    };
    let all: Vec<(f64, f64)> = pools.iter().zip(sites).map(|(p, s)| of(p, s)).collect();
    let latency = all.iter().map(|a| a.1).fold(0.0, f64::max);
    (all.into_iter().map(|a| a.0).collect(), latency)
}

/// Price of all nodes [USD/h]. Pools on the same instance type share nodes where their replicas fit.
fn price(scenario: &Scenario, made: &[Made]) -> Option<f64> {
    let mut by_instance: BTreeMap<(&str, u64), (u64, u64, f64)> = BTreeMap::new();
    for (pool, m) in scenario.pools.iter().zip(made) {
        let site = m.hardware.site.as_ref()?;
        let usd = site.node_usd?;
        let ranks = u64::from(site.node_ranks);
        let entry = by_instance
            .entry((&site.instance, usd.to_bits()))
            .or_insert((0, ranks, usd));
        entry.0 += if site.fits_a_node {
            u64::from(pool.replicas) * u64::from(pool.layout.devices())
        } else {
            site.nodes * ranks
        };
    }
    let of =
        |&(ranks, per_node, usd): &(u64, u64, f64)| ranks.div_ceil(per_node.max(1)) as f64 * usd;
    Some(by_instance.values().map(of).sum())
}

/// What keeps pools from working together: at which key, and why.
pub(super) fn refused(scenario: &Scenario) -> Option<(String, String)> {
    let pools = &scenario.pools;
    for (i, p) in pools.iter().enumerate() {
        let at = |key: &str, message: String| Some((format!("pool[{i}].{key}"), message));
        if pools[..i].iter().any(|o| o.name == p.name) {
            let message = format!("there are two pools named `{}`; names are unique", p.name);
            return at("name", message);
        }
        if p.shortest() > p.longest() {
            let message = format!(
                "must be at least min_prompt ({}), got {}",
                p.shortest(),
                p.longest()
            );
            return at("max_prompt", message);
        }
        let kind = p.engine.params.kind();
        let takes_part = matches!(
            kind,
            EngineKind::VllmV1 | EngineKind::TrtLlm | EngineKind::Sglang
        );
        if p.role != Role::Both && !takes_part {
            let message = format!(
                "prefill and decode apart are modelled for vllm_v1 (KV connector), trt_llm (disaggregated serving) and sglang (PD disaggregation), not for \
                 {kind}"
            );
            return at("role", message);
        }
        let other = |o: &&PoolChoice| o.is_beside(p) && o.router != p.router;
        if let Some(first) = pools[..i].iter().find(other) {
            let message = format!(
                "pools `{}` and `{}` take the same requests, so one rule chooses among their replicas; give both the same",
                first.name, p.name
            );
            return at("router", message);
        }
    }
    counterparts(pools).or_else(|| streams(scenario))
}

/// A prefill pool without a decode pool for what it sends, or the other way round.
fn counterparts(pools: &[PoolChoice]) -> Option<(String, String)> {
    for (i, p) in pools.iter().enumerate() {
        let at = |key: &str, message: String| Some((format!("pool[{i}].{key}"), message));
        let (other, word) = match p.role {
            Role::Both => continue,
            Role::Prefill => (Role::Decode, "decode"),
            Role::Decode => (Role::Prefill, "prefill"),
        };
        let meets = |o: &&PoolChoice| o.role == other && o.model_name() == p.model_name();
        let kind = p.engine.params.kind();
        let mut found = pools.iter().filter(meets).peekable();
        if found.peek().is_none() {
            let message = format!("no pool with role = \"{word}\" serves the same model");
            return at("role", message);
        }
        if let Some(o) = found.find(|o| o.engine.params.kind() != kind) {
            let message = format!(
                "{kind} and {} cannot read each other's KV; give pools `{}` and `{}` the same engine",
                o.engine.params.kind(),
                p.name,
                o.name
            );
            return at("engine", message);
        }
        let covers = |d: &PoolChoice| d.shortest() <= p.shortest() && d.longest() >= p.longest();
        if p.role == Role::Prefill && !pools.iter().filter(meets).any(covers) {
            let message = "no decode pool takes prompts of all lengths that this one takes; widen its min_prompt and max_prompt";
            return at("role", message.into());
        }
    }
    None
}

/// Streams that ask for a model that no pool serves, or that do not say which they ask for.
fn streams(scenario: &Scenario) -> Option<(String, String)> {
    let names = scenario.model_names();
    for (i, s) in scenario.workload.iter().enumerate() {
        let path = format!("workload[{i}].model");
        let known = names.join(", ");
        match &s.model {
            Some(name) if !names.contains(name) => {
                return Some((path, format!("no pool serves `{name}`; they serve {known}")));
            }
            None if names.len() > 1 => {
                let message =
                    format!("is missing: the pools serve {known}; say which this stream asks for");
                return Some((path, message));
            }
            _ => {}
        }
    }
    None
}
