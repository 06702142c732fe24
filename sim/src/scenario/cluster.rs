//! From `[cluster]`, `[autoscaler]`, `[[fault]]` and `[[change]]` to a [`ClusterSpec`]: defaults filled in, everything checked.

use hwmodels::EngineKind;
use hwmodels::catalog::Catalog;
use hwmodels::units::Secs;

use super::Scenario;
use super::cluster_file::{
    AutoscalerFile, ChangeFile, ClusterFile, DelayFile, DelayKind, FaultFile, NodeGroupFile,
    PodFile, StartFile,
};
use super::error::ScenarioError;
use super::file::ScenarioFile;
use super::numbers::{MAX_NODES, nanos, secs};
use crate::control::cluster_autoscaler::spec::Resources;
use crate::kernel::time::SimDuration;
use crate::kube::delay::Delay;
use crate::kube::spec::{
    ClusterSpec, EngineFacts, GroupSpec, PodSpec, Portion, StartSpec, Watts, Weights,
};

type Result<T> = std::result::Result<T, ScenarioError>;

/// From the request of an instance until its accelerators can be used: median of 93 s (GKE, g2), 167 s (EKS with Karpenter) and 195 s (EC2,
/// launch until the agent answers), of which the device plugin takes [`DEVICE_PLUGIN`] (10 to 60 s).
const BOOT: f64 = 137.0;
/// Middle of the 10 to 60 s that device plugins take after a node is Ready.
const DEVICE_PLUGIN: f64 = 30.0;
/// Median of the pulls of 9 to 18 GB without a cache: 216, 224, 333 and 338 s.
const IMAGE_PULL: f64 = 280.0;
/// Median of the pulls with image streaming: 2.6 and 4.5 s.
const IMAGE_CACHED: f64 = 4.0;
/// Qwen3-8B from S3 on ml.g6.2xlarge, nothing else using the network.
const WEIGHTS_LOAD: f64 = 77.0;
/// Median of the engine starts of vLLM on one GPU: 14, 34, 39 and 46 s.
const ENGINE_INIT: f64 = 37.0;
/// Instances answer, or are refused, in about this time.
const REFUSED_AFTER: f64 = 30.0;

/// Most pods of a replica.
const MAX_PODS: u32 = 4096;

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

fn fixed(value: f64) -> DelayFile {
    DelayFile::Fixed(secs(value))
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
    let mut cluster = cluster.clone();
    cluster.replicas.get_or_insert(replicas);
    cluster.start.get_or_insert(StartFile::Warm);
    cluster.sample.get_or_insert(secs(15.0));
    cluster.patience.get_or_insert(secs(3600.0));
    // With a model on hardware, start-ups are estimated when the catalog is at hand.
    let is_estimated = file.hardware.is_some() && file.model.is_some();
    for (i, group) in cluster.node_group.iter_mut().enumerate() {
        fill_group(group, i, is_estimated);
    }
    fill_pod(cluster.pod.get_or_insert_default(), is_estimated);
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
    group.shutdown.get_or_insert_with(|| fixed(0.0));
    group.spot.get_or_insert(false);
    group.priority.get_or_insert(0);
    group.has_image.get_or_insert(false);
    group.refused.get_or_insert_default();
    group
        .refused_after
        .get_or_insert_with(|| fixed(REFUSED_AFTER));
}

fn fill_pod(pod: &mut PodFile, is_estimated: bool) {
    pod.name.get_or_insert_with(|| "server".into());
    pod.volume_attach.get_or_insert_with(|| fixed(0.0));
    pod.image_cached.get_or_insert_with(|| fixed(IMAGE_CACHED));
    if is_estimated {
        if pod.weights_load.is_none() {
            let storage = super::startup::STORAGE;
            pod.storage.get_or_insert_with(|| storage.to_owned());
            let loader = super::startup::LOADER;
            pod.loader.get_or_insert_with(|| loader.to_owned());
        }
        if pod.engine_init.is_none() {
            pod.compile_cached.get_or_insert(false);
        }
    } else {
        pod.image_pull.get_or_insert_with(|| fixed(IMAGE_PULL));
        pod.weights_load.get_or_insert_with(|| fixed(WEIGHTS_LOAD));
        pod.engine_init.get_or_insert_with(|| fixed(ENGINE_INIT));
    }
    pod.initial_delay_seconds.get_or_insert(0);
    pod.period_seconds.get_or_insert(10);
    pod.termination_grace_period_seconds.get_or_insert(30);
    pod.restart_backoff.get_or_insert(secs(10.0));
}

/// What a pod needs and a node of the scenario's own hardware has.
struct Shape {
    /// Accelerator's name, where there is hardware.
    accelerator: Option<String>,
    /// Name of its Kubernetes resource.
    resource: String,
    /// Pods of a replica.
    size: u32,
    /// Accelerators of each.
    per_pod: u32,
}

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
        let mut catalog = self.catalog()?;
        if let Some(hardware) = &self.hardware {
            self.add_hardware(hardware, &mut catalog)?;
            for (i, group) in choice.cluster.node_group.iter().enumerate() {
                let other = group.instance.as_ref().filter(|n| **n != hardware.instance);
                if let (Some(profile), Some(name)) = (&hardware.mig, other) {
                    let key = format!("cluster.node_group[{i}].instance");
                    let cut = catalog.partition(name, profile);
                    cut.map_err(|e| self.places.error(&key, e.to_string()))?;
                }
            }
        }
        let shape = self.shape(&catalog)?;
        let hardware_instance = self.hardware.as_ref().map(|h| h.instance.clone());
        let mut own = catalog.clone();
        let figures = self.figures(&mut own)?;
        let pod = choice.cluster.pod.clone().unwrap_or_default();
        self.no_figures(figures.is_some(), &pod)?;
        let groups = choice.cluster.node_group.iter().enumerate();
        let mut specs: Vec<GroupSpec> = Vec::new();
        for (i, group) in groups {
            let path = format!("cluster.node_group[{i}]");
            let mut spec = self.group(group, &path, &shape, &catalog)?;
            if let Some(figures) = &figures {
                let instance = group.instance.clone().or(hardware_instance.clone());
                let start =
                    self.start_on(figures, (group, &path), &pod, &instance.unwrap_or_default())?;
                (spec.boot, spec.device_plugin) = (start.boot, start.device_plugin);
                spec.start = start.start;
            }
            if figures.is_none() && group.platform.is_some() {
                let message = "needs [model] and [hardware], from which start-ups are estimated";
                return self.wrong(&format!("{path}.platform"), message);
            }
            if specs.iter().any(|other| other.name == spec.name) {
                let message = format!("there are two node groups named `{}`", spec.name);
                return self.wrong(&path, message);
            }
            specs.push(spec);
        }
        if choice.cluster.max_outstanding == Some(0) {
            return self.wrong("cluster.max_outstanding", "must be at least 1");
        }
        if specs.is_empty() {
            return self.wrong(
                "cluster",
                "has no nodes: write at least one [[cluster.node_group]] with max = 4",
            );
        }
        let replicas = choice.cluster.replicas.unwrap_or(1);
        let is_warm = choice.cluster.start != Some(StartFile::Cold);
        self.fill_nodes(
            &choice.cluster,
            &mut specs,
            &shape,
            if is_warm { replicas } else { 0 },
        )?;
        let mut spec = ClusterSpec {
            pod: self.pod(&choice.cluster, &shape)?,
            replicas: i32::try_from(replicas).unwrap_or(i32::MAX),
            is_warm,
            hpa: None,
            keda: None,
            metrics: Vec::new(),
            scaler: None,
            cluster_autoscaler: None,
            karpenter: None,
            facts: EngineFacts::default(),
            faults: Vec::new(),
            changes: Vec::new(),
            max_outstanding: choice.cluster.max_outstanding,
            sample: self.period(choice.cluster.sample, "cluster.sample")?,
            patience: nanos(choice.cluster.patience),
            groups: specs,
        };
        if let Some(autoscaler) = &choice.autoscaler {
            self.autoscaler(autoscaler, &mut spec)?;
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

    fn shape(&self, catalog: &Catalog) -> Result<Shape> {
        let pod = self
            .cluster
            .as_ref()
            .and_then(|c| c.cluster.pod.clone())
            .unwrap_or_default();
        let ranks = self.layout.devices();
        let (accelerator, per_node, devices) = match &self.hardware {
            Some(h) => {
                let instance = catalog
                    .instance(&h.instance)
                    .map_err(|e| self.places.error("hardware.instance", e.to_string()))?;
                let chip = catalog
                    .accelerator(&instance.accelerator)
                    .map_err(|e| self.places.error("hardware", e.to_string()))?;
                let devices = ranks.div_ceil(chip.ranks_per_device.max(1));
                (Some(chip.name.clone()), instance.devices.max(1), devices)
            }
            None => (None, ranks.max(1), ranks),
        };
        let size = pod.size.unwrap_or(devices.div_ceil(per_node)).max(1);
        if size > MAX_PODS || pod.size == Some(0) {
            return self.wrong("cluster.pod.size", format!("must be from 1 to {MAX_PODS}"));
        }
        let is_neuron = self.engine.params.kind() == EngineKind::TgiNeuron;
        let mig = self.hardware.as_ref().and_then(|h| h.mig.as_ref());
        let resource = match mig {
            Some(profile) => format!("nvidia.com/mig-{profile}"),
            None if is_neuron => "aws.amazon.com/neuron".to_owned(),
            None => "nvidia.com/gpu".to_owned(),
        };
        Ok(Shape {
            accelerator,
            resource,
            size,
            per_pod: pod.accelerators.unwrap_or(devices.div_ceil(size)),
        })
    }

    fn group(
        &self,
        group: &NodeGroupFile,
        path: &str,
        shape: &Shape,
        catalog: &Catalog,
    ) -> Result<GroupSpec> {
        let at = |key: &str| format!("{path}.{key}");
        let own = self.hardware.as_ref();
        let own_name = own
            .filter(|h| h.machine.is_none())
            .map(|h| h.instance.clone());
        let (instance, template, catalog_price) = match (&group.instance, group.accelerators) {
            (Some(_), Some(_)) => {
                return self.wrong(
                    &at("accelerators"),
                    "belongs to the instance type; give one of them",
                );
            }
            (None, Some(n)) => (format!("{n} accelerators"), gpus(n), None),
            (name, None) => match name.clone().or(own_name.clone()) {
                Some(name) => {
                    let i = catalog
                        .instance(&name)
                        .map_err(|e| self.places.error(&at("instance"), e.to_string()))?;
                    self.same_accelerator(&i.accelerator, shape, catalog, &at("instance"))?;
                    let template = Resources {
                        cpu_milli: i64::from(i.vcpus) * 1000,
                        memory_bytes: i64::try_from(i.ram_bytes).unwrap_or(i64::MAX),
                        gpus: i.devices.into(),
                    };
                    let price = i.price().map(|p| p.usd.usd_per_hour());
                    (i.name.clone(), template, price)
                }
                None => {
                    let n = own
                        .and_then(|h| h.machine.as_ref())
                        .map_or(shape.per_pod.max(1), |m| m.count);
                    (format!("{n} accelerators"), gpus(n), None)
                }
            },
        };
        let Some(max) = group.max else {
            return self.wrong(path, "`max` is missing; write e.g. max = 4");
        };
        let min = group.min.unwrap_or(0);
        if max > MAX_NODES {
            return self.wrong(
                &at("max"),
                format!("must be at most {MAX_NODES}, got {max}"),
            );
        }
        if max < min {
            return self.wrong(
                &at("max"),
                format!("must be at least min ({min}), got {max}"),
            );
        }
        let is_own = group.instance.is_none() || group.instance == own_name;
        let own_price = own.and_then(|h| h.price).filter(|_| is_own);
        let price = group.price.or(own_price).map(|p| p.usd_per_hour());
        Ok(GroupSpec {
            name: group.name.clone().unwrap_or_default(),
            instance,
            min: min as usize,
            max: max as usize,
            nodes: group.nodes.unwrap_or(min) as usize,
            template,
            boot: self.delay(&group.boot, &at("boot"))?,
            device_plugin: self.delay(&group.device_plugin, &at("device_plugin"))?,
            shutdown: self.delay(&group.shutdown, &at("shutdown"))?,
            watts: self.watts(group, path, shape, template.gpus)?,
            usd_per_hour: price.or(catalog_price),
            is_spot: group.spot.unwrap_or(false),
            priority: group.priority.unwrap_or(0),
            has_image: group.has_image.unwrap_or(false),
            refused: group.refused.unwrap_or_default().get(),
            refused_after: self.delay(&group.refused_after, &at("refused_after"))?,
            start: self.start_given()?,
        })
    }

    /// Step times are those of one accelerator, so nodes have that.
    fn same_accelerator(
        &self,
        name: &str,
        shape: &Shape,
        catalog: &Catalog,
        path: &str,
    ) -> Result<()> {
        let theirs = catalog
            .accelerator(name)
            .map_err(|e| self.places.error(path, e.to_string()))?;
        match &shape.accelerator {
            Some(ours) if *ours != theirs.name => self.wrong(
                path,
                format!(
                    "has {} accelerators, but the step times are those of {ours} (hardware): a replica runs on one kind",
                    theirs.name
                ),
            ),
            _ => Ok(()),
        }
    }

    /// Gives groups the nodes that the replicas of a warm start need, and checks that a replica fits at all.
    fn fill_nodes(
        &self,
        file: &ClusterFile,
        specs: &mut [GroupSpec],
        shape: &Shape,
        replicas: u32,
    ) -> Result<()> {
        let per_node = |g: &GroupSpec| match shape.per_pod {
            0 => 110,
            n => g.template.gpus / i64::from(n),
        };
        let largest = specs.iter().map(|g| g.template.gpus).max().unwrap_or(0);
        if specs.iter().all(|g| per_node(g) == 0) {
            return self.wrong(
                "cluster.node_group",
                format!(
                    "no node has room for a pod: it requests {} {}, the largest node has {largest}; a pod would stay Pending with \
                     \"Insufficient {}\"",
                    shape.per_pod, shape.resource, shape.resource
                ),
            );
        }
        let most: i64 = specs.iter().map(|g| per_node(g) * g.max as i64).sum();
        if most < i64::from(shape.size) {
            return self.wrong(
                "cluster.node_group[0].max",
                format!(
                    "a replica has {} pods, and the groups have room for {most} at most: it would never be ready; raise max",
                    shape.size
                ),
            );
        }
        let wanted = i64::from(replicas) * i64::from(shape.size);
        let mut left = wanted;
        for spec in specs.iter() {
            left -= per_node(spec) * spec.nodes as i64;
        }
        for (i, spec) in specs.iter_mut().enumerate() {
            let is_given = file.node_group[i].nodes.is_some();
            if !is_given && left > 0 && per_node(spec) > 0 {
                let more = (left as u64).div_ceil(per_node(spec) as u64) as usize;
                let more = more.min(spec.max.saturating_sub(spec.nodes));
                spec.nodes += more;
                left -= per_node(spec) * more as i64;
            }
            if spec.nodes > spec.max || spec.nodes < spec.min {
                return self.wrong(
                    &format!("cluster.node_group[{i}].nodes"),
                    format!(
                        "must be from min ({}) to max ({}), got {}",
                        spec.min, spec.max, spec.nodes
                    ),
                );
            }
        }
        if left > 0 {
            return self.wrong(
                "cluster.replicas",
                format!(
                    "{replicas} replicas are to be ready at the start, and the groups have room for {} of their {wanted} pods; lower it, \
                     raise max, or write start = \"cold\"",
                    wanted - left
                ),
            );
        }
        Ok(())
    }

    fn pod(&self, file: &ClusterFile, shape: &Shape) -> Result<PodSpec> {
        let pod = file.pod.clone().unwrap_or_default();
        let at = |key: &str| format!("cluster.pod.{key}");
        let whole = |n: Option<u32>| SimDuration(u64::from(n.unwrap_or(0)) * 1_000_000_000);
        let is_set = shape.size > 1;
        if pod.period_seconds == Some(0) {
            return self.wrong(&at("periodSeconds"), "must be at least 1");
        }
        Ok(PodSpec {
            name: pod.name.clone().unwrap_or_default(),
            size: shape.size as usize,
            requests: gpus(shape.per_pod),
            resource: shape.resource.clone(),
            volume_attach: self.delay(&pod.volume_attach, &at("volume_attach"))?,
            max_surge: self.portion(
                &pod.max_surge,
                &at("maxSurge"),
                if is_set { "0" } else { "25%" },
            )?,
            max_unavailable: self.portion(
                &pod.max_unavailable,
                &at("maxUnavailable"),
                if is_set { "1" } else { "25%" },
            )?,
            probe_delay: whole(pod.initial_delay_seconds),
            probe_period: whole(pod.period_seconds),
            grace: whole(pod.termination_grace_period_seconds),
            restart_backoff: nanos(pod.restart_backoff),
        })
    }

    /// A number, or a share of the replicas.
    fn portion(&self, own: &Option<String>, path: &str, default: &str) -> Result<Portion> {
        let text = own.as_deref().unwrap_or(default);
        let read = match text.strip_suffix('%') {
            Some(share) => share.trim().parse().ok().map(Portion::Percent),
            None => text.trim().parse().ok().map(Portion::Count),
        };
        match read {
            Some(Portion::Percent(p)) if p > 100 => {
                self.wrong(path, format!("must be at most 100%, got {text}"))
            }
            Some(portion) => Ok(portion),
            None => self.wrong(
                path,
                format!("must be a number such as \"1\" or a share such as \"25%\", got `{text}`"),
            ),
        }
    }

    /// Power of a group's nodes: what the scenario says, else that of their accelerators.
    fn watts(
        &self,
        group: &NodeGroupFile,
        path: &str,
        shape: &Shape,
        gpus: i64,
    ) -> Result<Option<Watts>> {
        let board = shape
            .accelerator
            .as_deref()
            .and_then(hwmodels::power::board_power);
        let of = |w: f64| w * gpus as f64;
        let idle = group.idle_watts.or(board.map(|b| of(b.idle_w)));
        let busy = group.busy_watts.or(board.map(|b| of(b.tdp_w)));
        for (key, given) in [
            ("idle_watts", group.idle_watts),
            ("busy_watts", group.busy_watts),
        ] {
            if let Some(w) = given.filter(|w| !(w.is_finite() && *w >= 0.0)) {
                return self.wrong(
                    &format!("{path}.{key}"),
                    format!("must be at least 0, got {w}"),
                );
            }
        }
        match (idle, busy) {
            (Some(idle), Some(busy)) if idle > busy => self.wrong(
                &format!("{path}.idle_watts"),
                format!("must be at most the busy power ({busy} W), got {idle}"),
            ),
            (Some(idle), Some(busy)) => Ok(Some(Watts { idle, busy })),
            (None, None) => Ok(None),
            _ => self.wrong(path, "needs both idle_watts and busy_watts: the rated power of its accelerators is not known"),
        }
    }

    /// How pods start, as the scenario gives it.
    fn start_given(&self) -> Result<StartSpec> {
        let pod = (self.cluster.as_ref()).and_then(|c| c.cluster.pod.clone());
        let pod = pod.unwrap_or_default();
        let at = |key: &str| format!("cluster.pod.{key}");
        Ok(StartSpec {
            image_pull: self.delay(&pod.image_pull, &at("image_pull"))?,
            image_cached: self.delay(&pod.image_cached, &at("image_cached"))?,
            weights: Weights::Time(self.delay(&pod.weights_load, &at("weights_load"))?),
            first_start: Delay::Fixed(0.0),
            engine_init: self.delay(&pod.engine_init, &at("engine_init"))?,
        })
    }

    /// Keys that need a model on hardware, where there is none.
    fn no_figures(&self, is_estimated: bool, pod: &PodFile) -> Result<()> {
        let given = [
            ("storage", pod.storage.is_some(), pod.weights_load.is_some()),
            ("loader", pod.loader.is_some(), pod.weights_load.is_some()),
            (
                "bandwidth",
                pod.bandwidth.is_some(),
                pod.weights_load.is_some(),
            ),
            ("image", pod.image.is_some(), pod.image_pull.is_some()),
            (
                "compile_cached",
                pod.compile_cached.is_some(),
                pod.engine_init.is_some(),
            ),
        ];
        for (key, is_given, has_time) in given {
            let path = format!("cluster.pod.{key}");
            if is_given && !is_estimated {
                return self.wrong(
                    &path,
                    "needs [model] and [hardware], from which start-ups are estimated",
                );
            }
            if is_given && has_time {
                return self.wrong(
                    &path,
                    "the scenario gives the time that this would estimate; leave one of them out",
                );
            }
        }
        Ok(())
    }

    /// A duration or distribution; its default was filled in.
    pub(super) fn delay(&self, file: &Option<DelayFile>, path: &str) -> Result<Delay> {
        let table = match file {
            None => return Ok(Delay::Fixed(0.0)),
            Some(DelayFile::Fixed(secs)) => return Ok(Delay::Fixed(secs.secs())),
            Some(DelayFile::Table(table)) => table,
        };
        let need = |value: Option<Secs>, key: &str| match value {
            Some(v) => Ok(v.secs()),
            None => self.wrong(
                path,
                format!("`{key}` is missing; write e.g. {key} = \"90 s\""),
            ),
        };
        let number = |value: Option<f64>, key: &str, least: f64| match value {
            Some(v) if v >= least && v <= 100.0 => Ok(v),
            Some(v) => self.wrong(path, format!("{key}: must be from {least} to 100, got {v}")),
            None => self.wrong(path, format!("`{key}` is missing; write e.g. {key} = 0.5")),
        };
        Ok(match table.kind {
            DelayKind::Uniform => {
                let (min, max) = (need(table.min, "min")?, need(table.max, "max")?);
                if max < min {
                    return self.wrong(path, "max must be at least min");
                }
                Delay::Uniform { min, max }
            }
            DelayKind::Normal => Delay::Normal {
                mean: need(table.mean, "mean")?,
                std: need(table.std, "std")?,
            },
            DelayKind::Lognormal => Delay::Lognormal {
                median: need(table.median, "median")?,
                sigma: number(table.sigma, "sigma", 0.0)?,
            },
            DelayKind::Exponential => Delay::Exponential {
                mean: need(table.mean, "mean")?,
            },
            DelayKind::Weibull => Delay::Weibull {
                scale: need(table.scale, "scale")?,
                shape: number(table.shape, "shape", 0.1)?,
            },
        })
    }
}

fn gpus(n: u32) -> Resources {
    Resources {
        gpus: n.into(),
        ..Resources::default()
    }
}
