//! From `[cluster]`, `[autoscaler]`, `[[fault]]` and `[[change]]` to a [`ClusterSpec`]: defaults filled in, everything checked.

use hwmodels::EngineKind;
use hwmodels::catalog::Catalog;
use hwmodels::units::Secs;

use super::cluster_file::{
    AutoscalerFile, ChangeFile, ClusterFile, FaultFile, NodeGroupFile, PodFile, StartFile,
};
use super::error::ScenarioError;
use super::file::ScenarioFile;
use super::node_groups::Shape;
use super::numbers::{nanos, secs};
use super::pods::{fill_pod, fixed};
use super::pool_cluster::PoolOnCluster;
use super::{OWN_MACHINE, Scenario};
use crate::cluster::pools::Role;
use crate::control::cluster_autoscaler::spec::GroupSet;
use crate::control::dynamo::config::Mode;
use crate::kernel::time::SimDuration;
use crate::kube::spec::{
    ClusterSpec, DeploymentSpec, EngineFacts, GroupSpec, ScalerSpec, ScalerUse, StartSpec, Weights,
};

type Result<T> = std::result::Result<T, ScenarioError>;

/// From the request of an instance until its accelerators can be used: median of 93 s (GKE, g2), 167 s (EKS with Karpenter) and 195 s (EC2,
/// launch until the agent answers), of which the device plugin takes [`DEVICE_PLUGIN`] (10 to 60 s).
const BOOT: f64 = 137.0;
/// Middle of the 10 to 60 s that device plugins take after a node is Ready.
const DEVICE_PLUGIN: f64 = 30.0;
/// Instances answer, or are refused, in about this time.
const REFUSED_AFTER: f64 = 30.0;
/// From the end of its last pod until an instance is not paid for: a prior. Autoscalers look every 5 s whether the pods are gone, and clouds give a machine up to 90 s to stop.
const SHUTDOWN: f64 = 30.0;
/// From the loss of a spot instance until its managed instance group asked for another: one episode on GKE.
const REPLACED_AFTER: f64 = 40.0;

/// The cluster of a scenario, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterChoice {
    /// `[cluster]`.
    pub cluster: ClusterFile,
    /// `[autoscaler]`.
    pub autoscaler: Option<AutoscalerFile>,
    /// `[[fault]]`.
    pub faults: Vec<FaultFile>,
    /// `[[change]]`.
    pub changes: Vec<ChangeFile>,
}

impl ClusterChoice {
    /// That of a pool alone, with so many replicas at the start.
    pub(super) fn of_pool(&self, own: Option<PoolOnCluster>, replicas: u32) -> ClusterChoice {
        ClusterChoice {
            cluster: ClusterFile {
                pod: own.as_ref().map(|o| o.pod.clone()),
                replicas: Some(replicas),
                ..self.cluster.clone()
            },
            autoscaler: own.and_then(|o| o.autoscaler),
            faults: Vec::new(),
            changes: Vec::new(),
        }
    }
}

/// Keys of `[autoscaler]` that scale one deployment.
fn of_one(a: &AutoscalerFile) -> [(&'static str, bool); 5] {
    [
        ("autoscaler.hpa", a.hpa.is_some()),
        ("autoscaler.keda", a.keda.is_some()),
        ("autoscaler.epp", a.epp.is_some()),
        ("autoscaler.wva", a.wva.is_some()),
        ("autoscaler.sagemaker", a.sagemaker.is_some()),
    ]
}

/// Keys at the top that have to be a pool's own where there are several.
fn misplaced(file: &ScenarioFile) -> Option<(&'static str, String)> {
    if file.cluster.as_ref().is_some_and(|c| c.replicas.is_some()) {
        let message = "with pools the replicas are those of each [[pool]]; write replicas there";
        return Some(("cluster.replicas", message.to_owned()));
    }
    let autoscaler = file.autoscaler.as_ref()?;
    let (key, _) = of_one(autoscaler).into_iter().find(|(_, is)| *is)?;
    let own = key.trim_start_matches("autoscaler.");
    let message = format!(
        "scales one Deployment, and each pool is one; write autoscaler = {{ {own} = {{ ... }} }} in the [[pool]] that it scales"
    );
    Some((key, message))
}

/// The cluster that a file describes, with defaults that need no catalog; `replicas` is that of the layout.
pub(super) fn filled(
    file: &ScenarioFile,
    engine: EngineKind,
    replicas: u32,
) -> std::result::Result<Option<ClusterChoice>, (&'static str, String)> {
    let Some(cluster) = &file.cluster else {
        for (key, is_given) in [
            ("autoscaler", file.autoscaler.is_some()),
            ("fault", !file.fault.is_empty()),
            ("change", !file.change.is_empty()),
        ] {
            if is_given {
                let message = "needs a [cluster] with at least one [[cluster.node_group]]";
                return Err((key, message.to_owned()));
            }
        }
        return Ok(None);
    };
    let has_pools = !file.pool.is_empty();
    if let Some(issue) = misplaced(file).filter(|_| has_pools) {
        return Err(issue);
    }
    let mut cluster = cluster.clone();
    let own = file.pool.iter().filter_map(|p| p.autoscaler.as_ref());
    let autoscalers: Vec<&AutoscalerFile> = file.autoscaler.iter().chain(own).collect();
    super::endpoints::fill_gateway(&mut cluster, &autoscalers);
    if !has_pools {
        cluster.replicas.get_or_insert(replicas);
    }
    cluster.start.get_or_insert(StartFile::Warm);
    cluster.sample.get_or_insert(secs(15.0));
    cluster.patience.get_or_insert(secs(3600.0));
    let all_estimated = match has_pools {
        true => file.pool.iter().all(|p| {
            p.model.as_ref().or(file.model.as_ref()).is_some()
                && p.hardware.as_ref().or(file.hardware.as_ref()).is_some()
        }),
        false => file.hardware.is_some() && file.model.is_some(),
    };
    if let Some(actuation) = &mut cluster.actuation {
        super::actuation::fill(actuation, all_estimated);
    }
    // With a model on hardware, start-ups are estimated when the catalog is at hand.
    let is_estimated = file.hardware.is_some() && file.model.is_some();
    for (i, group) in cluster.node_group.iter_mut().enumerate() {
        fill_group(group, i, is_estimated);
    }
    // Each pool has its own.
    match has_pools {
        true => cluster.pod = None,
        false => fill_pod(cluster.pod.get_or_insert_default(), is_estimated),
    }
    let mut autoscaler = file.autoscaler.clone();
    if let Some(autoscaler) = &mut autoscaler {
        super::autoscaler::fill(autoscaler, engine);
    }
    let mut faults = file.fault.clone();
    faults.iter_mut().for_each(super::faults::fill);
    Ok(Some(ClusterChoice {
        cluster,
        autoscaler,
        faults,
        changes: file.change.clone(),
    }))
}

fn fill_group(group: &mut NodeGroupFile, i: usize, is_estimated: bool) {
    group.name.get_or_insert_with(|| format!("nodes-{i}"));
    group.min.get_or_insert(0);
    if !is_estimated {
        group.boot.get_or_insert_with(|| fixed(BOOT));
        group
            .device_plugin
            .get_or_insert_with(|| fixed(DEVICE_PLUGIN));
    }
    group.shutdown.get_or_insert_with(|| fixed(SHUTDOWN));
    group
        .replaced_after
        .get_or_insert_with(|| fixed(REPLACED_AFTER));
    group.spot.get_or_insert(false);
    group.priority.get_or_insert(0);
    group.has_image.get_or_insert(false);
    group.refused.get_or_insert_default();
    group
        .refused_after
        .get_or_insert_with(|| fixed(REFUSED_AFTER));
}

/// A deployment on its way to its spec: the scenario that its pool alone would be, or all of it where there are no pools.
struct Part {
    own: Scenario,
    pod: PodFile,
    /// Node groups that it names.
    named: Vec<String>,
    catalog: Catalog,
    shape: Shape,
}

/// A node group as a deployment sees it, and how its pods start there.
type OnGroup = (GroupSpec, StartSpec);

impl Scenario {
    /// The scenario under another autoscaler, whose defaults are filled in; one without a cluster stays as it is.
    pub fn with_autoscaler(&self, mut autoscaler: AutoscalerFile) -> Scenario {
        let mut out = self.clone();
        super::autoscaler::fill(&mut autoscaler, self.engine.params.kind());
        if let Some(cluster) = &mut out.cluster {
            cluster.autoscaler = Some(autoscaler);
        }
        out
    }

    /// The cluster of the scenario, where it has one.
    ///
    /// # Errors
    /// What is wrong, at its key.
    pub fn cluster_spec(&self) -> Result<Option<ClusterSpec>> {
        let Some(choice) = &self.cluster else {
            return Ok(None);
        };
        let file = &choice.cluster;
        let parts = self.parts(choice)?;
        let mut on_groups = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let own = part.own.on_groups(part, &parts);
            on_groups.push(own.map_err(|e| self.of_part(i, &e))?);
        }
        if file.max_outstanding == Some(0) {
            return self.wrong("cluster.max_outstanding", "must be at least 1");
        }
        let mut spec = ClusterSpec {
            groups: self.merged(file, &on_groups)?,
            deployments: Vec::new(),
            is_warm: file.start != Some(StartFile::Cold),
            scalers: Vec::new(),
            cluster_autoscaler: None,
            karpenter: None,
            on_demand: None,
            actuation: self.actuation()?,
            faults: Vec::new(),
            changes: Vec::new(),
            max_outstanding: file.max_outstanding,
            hold: self.hold(file)?,
            scheduler: self.scheduler(file.scheduler.as_ref())?,
            sample: self.period(file.sample, "cluster.sample")?,
            patience: nanos(file.patience),
        };
        for (i, (part, on_groups)) in parts.iter().zip(on_groups).enumerate() {
            let d = part.own.deployment_of(part, on_groups);
            let mut d = d.map_err(|e| self.of_part(i, &e))?;
            if let Some(pool) = self.pools.get(i) {
                d.name.clone_from(&pool.name);
            }
            if let Some(other) = spec
                .deployments
                .iter()
                .position(|o| o.pod.name == d.pod.name)
            {
                let message = format!(
                    "pools `{}` and `{}` have pods of the same name ({}); names of Deployments are unique",
                    self.pools[other].name, self.pools[i].name, d.pod.name
                );
                return self.wrong(&format!("pool[{i}].pod.name"), message);
            }
            spec.deployments.push(d);
        }
        number(&parts, &mut spec.deployments);
        self.fill_nodes(file, &mut spec)?;
        for (i, part) in parts.iter().enumerate() {
            let role = self.pools.get(i).map_or(Role::Both, |p| p.role);
            let scaled = part.own.scaled(i, role, &mut spec);
            scaled.map_err(|e| self.of_part(i, &e))?;
        }
        if let Some(autoscaler) = &choice.autoscaler {
            self.node_scalers(autoscaler, &mut spec)?;
            spec.on_demand = self.on_demand(autoscaler, &spec)?;
            if let (Some(config), false) = (&autoscaler.dynamo, self.pools.is_empty()) {
                spec.scalers.push(self.dynamo_apart(config)?);
            }
        }
        for (i, fault) in choice.faults.iter().enumerate() {
            let fault = self.fault(fault, &format!("fault[{i}]"), &spec)?;
            spec.faults.push(fault);
        }
        for (i, change) in choice.changes.iter().enumerate() {
            let change = self.change(change, &format!("change[{i}]"), &spec)?;
            spec.changes.push(change);
        }
        Ok(Some(spec))
    }

    /// An issue of deployment `i`, at its pool's own key where it has one.
    fn of_part(&self, i: usize, e: &ScenarioError) -> ScenarioError {
        match self.pools.is_empty() {
            true => e.clone(),
            false => self.at_pool(i, e),
        }
    }

    /// What serves, one for each pool.
    fn parts(&self, choice: &ClusterChoice) -> Result<Vec<Part>> {
        if self.pools.is_empty() {
            return Ok(vec![self.part(Vec::new())?]);
        }
        let groups = &choice.cluster.node_group;
        if groups.len() > GroupSet::MOST {
            let message = format!("with pools there may be {} groups", GroupSet::MOST);
            return self.wrong("cluster.node_group", message);
        }
        let names: Vec<&str> = groups.iter().filter_map(|g| g.name.as_deref()).collect();
        let mut parts = Vec::new();
        for (i, pool) in self.pools.iter().enumerate() {
            let named = (pool.on_cluster.as_ref()).map_or(Vec::new(), |o| o.node_groups.clone());
            if let Some(n) = named.iter().position(|n| !names.contains(&n.as_str())) {
                let message = super::schema::unknown("node group", &named[n], &names);
                return self.wrong(&format!("pool[{i}].node_groups[{n}]"), message);
            }
            let part = self.of_pool(i).part(named);
            parts.push(part.map_err(|e| self.at_pool(i, &e))?);
        }
        Ok(parts)
    }

    /// What serves of a scenario without pools, which names these node groups.
    fn part(&self, named: Vec<String>) -> Result<Part> {
        let mut catalog = self.catalog()?;
        let file = self.cluster.as_ref().map(|c| &c.cluster);
        let groups = file.map_or(&[][..], |f| &f.node_group);
        let pod = file.and_then(|f| f.pod.clone()).unwrap_or_default();
        if let Some(hardware) = &self.hardware {
            self.add_hardware(hardware, &mut catalog)?;
            for (i, group) in groups.iter().enumerate() {
                let other = group.instance.as_ref().filter(|n| **n != hardware.instance);
                if let (Some(profile), Some(name)) = (&hardware.mig, other) {
                    let key = format!("cluster.node_group[{i}].instance");
                    let cut = catalog.partition(name, profile);
                    cut.map_err(|e| self.places.error(&key, e.to_string()))?;
                }
            }
        }
        Ok(Part {
            shape: self.shape(&pod, &catalog)?,
            own: self.clone(),
            pod,
            named,
            catalog,
        })
    }

    /// The node groups of `part`, one of `parts`; `None`: its pods may not be placed there.
    fn on_groups(&self, part: &Part, parts: &[Part]) -> Result<Vec<Option<OnGroup>>> {
        let mut catalog = part.catalog.clone();
        let figures = self.figures(&mut catalog)?;
        self.no_figures(figures.is_some(), &part.pod)?;
        let files = (self.cluster.as_ref()).map_or(&[][..], |c| &c.cluster.node_group);
        let mut all = Vec::new();
        for (i, file) in files.iter().enumerate() {
            let path = format!("cluster.node_group[{i}]");
            let Some(file) = part.sees(file, parts) else {
                all.push(None);
                continue;
            };
            let (mut group, theirs) = self.group(&file, &path, &part.shape, &part.catalog)?;
            if let (Some(theirs), Some(ours)) = (&theirs, &part.shape.accelerator)
                && theirs != ours
            {
                if parts.len() > 1 && part.named.is_empty() {
                    all.push(None);
                    continue;
                }
                return self.wrong(
                    &format!("{path}.instance"),
                    format!("has {theirs} accelerators, but the step times are those of {ours} (hardware): a replica runs on one kind"),
                );
            }
            let start = match &figures {
                Some(figures) => {
                    let own = self.hardware.as_ref().map(|h| h.instance.clone());
                    let instance = file.instance.clone().or(own).unwrap_or_default();
                    let mut start = self.start_on(figures, (&file, &path), &part.pod, &instance)?;
                    (group.boot, group.device_plugin) = (start.boot, start.device_plugin);
                    start.start.wake = self.wake(&part.shape, Some(&start.tensors))?;
                    start.start
                }
                None if file.platform.is_some() => {
                    let message =
                        "needs [model] and [hardware], from which start-ups are estimated";
                    return self.wrong(&format!("{path}.platform"), message);
                }
                None => StartSpec {
                    wake: self.wake(&part.shape, None)?,
                    ..self.start_given(&part.pod)?
                },
            };
            all.push(Some((group, start)));
        }
        Ok(all)
    }

    /// Each group as the first deployment sees it that may use it.
    fn merged(
        &self,
        file: &ClusterFile,
        on_groups: &[Vec<Option<OnGroup>>],
    ) -> Result<Vec<GroupSpec>> {
        let mut specs: Vec<GroupSpec> = Vec::new();
        for (g, own) in file.node_group.iter().enumerate() {
            let path = format!("cluster.node_group[{g}]");
            let seen = on_groups.iter().find_map(|all| all[g].as_ref());
            let Some((spec, _)) = seen else {
                let name = own.name.clone().unwrap_or_default();
                let message = format!(
                    "no pool may use `{name}`: none has its accelerator, or names it in node_groups"
                );
                return self.wrong(&path, message);
            };
            if specs.iter().any(|other| other.name == spec.name) {
                let message = format!("there are two node groups named `{}`", spec.name);
                return self.wrong(&path, message);
            }
            specs.push(spec.clone());
        }
        if specs.is_empty() {
            return self.wrong(
                "cluster",
                "has no nodes: write at least one [[cluster.node_group]] with max = 4",
            );
        }
        Ok(specs)
    }

    /// The Deployment or LeaderWorkerSet of `part`, without those who scale it.
    fn deployment_of(
        &self,
        part: &Part,
        on_groups: Vec<Option<OnGroup>>,
    ) -> Result<DeploymentSpec> {
        let starts: Vec<Option<StartSpec>> = (on_groups.into_iter())
            .map(|on| on.map(|(_, start)| start))
            .collect();
        if starts.iter().all(Option::is_none) {
            let ours = part.shape.accelerator.as_deref().unwrap_or("accelerators");
            return self.wrong(
                "node_groups",
                format!("no node group has {ours}, on which it runs; add a [[cluster.node_group]] of such instances"),
            );
        }
        let file = self.cluster.as_ref().map(|c| &c.cluster);
        let replicas = file.and_then(|f| f.replicas).unwrap_or(1);
        let pod = self.pod(&part.pod, &part.shape)?;
        Ok(DeploymentSpec {
            name: pod.name.clone(),
            pod,
            starts,
            image: 0,
            replicas: i32::try_from(replicas).unwrap_or(i32::MAX),
            hpa: None,
            keda: None,
            metrics: Vec::new(),
            facts: EngineFacts::default(),
        })
    }

    /// Puts those who scale deployment `i`, the scenario's only one, into `spec`.
    fn scaled(&self, i: usize, role: Role, spec: &mut ClusterSpec) -> Result<()> {
        let autoscaler = self.cluster.as_ref().and_then(|c| c.autoscaler.clone());
        let Some(file) = autoscaler else {
            return Ok(());
        };
        if let Some(own) = self.autoscaler(&file, role, &mut spec.deployments[i])? {
            spec.scalers.push(ScalerUse {
                spec: own,
                deployments: vec![i],
            });
        }
        Ok(())
    }

    /// Dynamo's planner of a pool that prefills and one that decodes.
    fn dynamo_apart(
        &self,
        config: &crate::control::dynamo::config::PlannerConfig,
    ) -> Result<ScalerUse> {
        const AT: &str = "autoscaler.dynamo";
        if config.mode != Mode::Disagg {
            return self.wrong(
                &format!("{AT}.mode"),
                "with pools the planner at the top scales a prefill and a decode pool (mode = \"disagg\"); write one of a single pool into its [[pool]]",
            );
        }
        let of = |role: Role| {
            let mut all = (0..self.pools.len()).filter(|i| self.pools[*i].role == role);
            all.next().filter(|_| all.next().is_none())
        };
        let (Some(prefill), Some(decode)) = (of(Role::Prefill), of(Role::Decode)) else {
            return self.wrong(
                AT,
                "scales one pool with role = \"prefill\" and one with role = \"decode\"",
            );
        };
        Ok(ScalerUse {
            spec: ScalerSpec::Dynamo(Box::new(self.dynamo(config)?)),
            deployments: vec![prefill, decode],
        })
    }

    pub(super) fn wrong<T>(&self, path: &str, message: impl Into<String>) -> Result<T> {
        Err(self.places.error(path, message))
    }

    /// A time between two turns.
    pub(super) fn period(&self, value: Option<Secs>, path: &str) -> Result<SimDuration> {
        let period = nanos(value);
        if period < SimDuration(1_000_000) {
            return self.wrong(path, "must be at least 1 ms");
        }
        Ok(period)
    }
}

impl Part {
    /// A group as it is for this deployment; `None`: it names others, or the group is of another's hardware.
    fn sees(&self, file: &NodeGroupFile, parts: &[Part]) -> Option<NodeGroupFile> {
        let name = file.name.clone().unwrap_or_default();
        let names = |p: &Part| p.named.contains(&name);
        if !self.named.is_empty() && !names(self) {
            return None;
        }
        let mut file = file.clone();
        if parts.len() > 1 && file.instance.is_none() && file.accelerators.is_none() {
            // Its instances are those of the first that names it, or of the first.
            let first = parts.iter().find(|p| names(p)).unwrap_or(&parts[0]);
            let hardware = |p: &Part| p.own.hardware.as_ref().map(|h| h.instance.clone());
            match hardware(first) {
                Some(instance) if instance == OWN_MACHINE => {
                    if self.own.hardware != first.own.hardware {
                        return None;
                    }
                }
                Some(instance) => file.instance = Some(instance),
                // Without hardware a node has what the largest pod needs.
                None => file.accelerators = parts.iter().map(|p| p.shape.per_pod).max(),
            }
        }
        Some(file)
    }
}

/// Numbers images and storages: what is the same has the same number.
fn number(parts: &[Part], deployments: &mut [DeploymentSpec]) {
    let (mut images, mut storages) = (Vec::new(), Vec::new());
    let index = |all: &mut Vec<String>, key: String| match all.iter().position(|k| *k == key) {
        Some(i) => i,
        None => {
            all.push(key);
            all.len() - 1
        }
    };
    for (part, d) in parts.iter().zip(deployments) {
        let params = &part.own.engine.params;
        let version = params.to_table().get("version").map(ToString::to_string);
        let image = format!("{} {version:?} {:?}", params.kind(), part.pod.image);
        d.image = index(&mut images, image);
        let storage = format!("{:?} {:?}", part.pod.storage, part.pod.bandwidth);
        let storage = index(&mut storages, storage);
        for start in d.starts.iter_mut().flatten() {
            if let Weights::Load(load) = &mut start.weights {
                load.storage = storage;
            }
        }
    }
}
