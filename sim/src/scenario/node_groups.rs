//! Node groups: what their nodes give to pods, and how many there are at the start.

use hwmodels::EngineKind;
use hwmodels::catalog::Catalog;

use super::Scenario;
use super::cluster_file::{ClusterFile, NodeGroupFile, PodFile};
use super::error::ScenarioError;
use super::numbers::MAX_NODES;
use crate::control::cluster_autoscaler::spec::Resources;
use crate::kube::spec::{ClusterSpec, DeploymentSpec, GroupSpec, Watts};

type Result<T> = std::result::Result<T, ScenarioError>;

/// Most pods of a replica.
const MAX_PODS: u32 = 4096;

/// What a pod needs and a node of the scenario's own hardware has.
pub(super) struct Shape {
    /// Accelerator's name, where there is hardware.
    pub accelerator: Option<String>,
    /// Name of its Kubernetes resource.
    pub resource: String,
    /// Pods of a replica.
    pub size: u32,
    /// Accelerators of each.
    pub per_pod: u32,
}

impl Scenario {
    /// What pods of a replica need.
    pub(super) fn shape(&self, pod: &PodFile, catalog: &Catalog) -> Result<Shape> {
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

    /// A node group, and the accelerator of its instance type, where it has one.
    pub(super) fn group(
        &self,
        group: &NodeGroupFile,
        path: &str,
        shape: &Shape,
        catalog: &Catalog,
    ) -> Result<(GroupSpec, Option<String>)> {
        let at = |key: &str| format!("{path}.{key}");
        let own = self.hardware.as_ref();
        let own_name = own
            .filter(|h| h.machine.is_none())
            .map(|h| h.instance.clone());
        let mut accelerator = None;
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
                    let theirs = catalog
                        .accelerator(&i.accelerator)
                        .map_err(|e| self.places.error(&at("instance"), e.to_string()))?;
                    accelerator = Some(theirs.name.clone());
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
        let spec = GroupSpec {
            name: group.name.clone().unwrap_or_default(),
            instance,
            zone: group.zone.clone().unwrap_or_default(),
            min: min as usize,
            max: max as usize,
            nodes: group.nodes.unwrap_or(min) as usize,
            template,
            boot: self.delay(&group.boot, &at("boot"))?,
            device_plugin: self.delay(&group.device_plugin, &at("device_plugin"))?,
            shutdown: self.delay(&group.shutdown, &at("shutdown"))?,
            watts: self.watts(group, path, shape.accelerator.as_deref(), template.gpus)?,
            usd_per_hour: price.or(catalog_price),
            is_spot: group.spot.unwrap_or(false),
            priority: group.priority.unwrap_or(0),
            has_image: group.has_image.unwrap_or(false),
            refused: group.refused.unwrap_or_default().get(),
            refused_after: self.delay(&group.refused_after, &at("refused_after"))?,
            replaced_after: self.delay(&group.replaced_after, &at("replaced_after"))?,
        };
        Ok((spec, accelerator))
    }

    /// Power of a group's nodes: what the scenario says, else that of their accelerators.
    fn watts(
        &self,
        group: &NodeGroupFile,
        path: &str,
        accelerator: Option<&str>,
        gpus: i64,
    ) -> Result<Option<Watts>> {
        let board = accelerator.and_then(hwmodels::power::board_power);
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
}

/// Pods without accelerators that a node has room for (the kubelet's `--max-pods`).
const MOST_PODS: i64 = 110;

/// Pods of `d` that a node with so many free accelerators has room for.
fn room(d: &DeploymentSpec, free: i64) -> i64 {
    match d.pod.requests.gpus {
        0 => MOST_PODS,
        n => free / n,
    }
}

/// What is left of the nodes that there are at the start: group, free accelerators.
struct Rooms(Vec<(usize, i64)>);

impl Rooms {
    /// Takes room for up to `pods` pods of `d`; how many found none.
    fn take(&mut self, d: &DeploymentSpec, mut pods: i64) -> i64 {
        self.0.sort_by_key(|(group, free)| (*free, *group));
        for (_, free) in self.0.iter_mut().filter(|(group, _)| d.may_use(*group)) {
            let here = room(d, *free).min(pods);
            *free -= here * d.pod.requests.gpus;
            pods -= here;
        }
        pods
    }
}

impl Scenario {
    /// Gives groups the nodes that the replicas of a warm start need, and checks that a replica of each deployment fits at all.
    pub(super) fn fill_nodes(&self, file: &ClusterFile, spec: &mut ClusterSpec) -> Result<()> {
        for d in &spec.deployments {
            self.check_room(d, &spec.groups)?;
        }
        for (i, group) in spec.groups.iter().enumerate() {
            if group.nodes > group.max || group.nodes < group.min {
                return self.wrong(
                    &format!("cluster.node_group[{i}].nodes"),
                    format!(
                        "must be from min ({}) to max ({}), got {}",
                        group.min, group.max, group.nodes
                    ),
                );
            }
        }
        let nodes = spec.groups.iter().enumerate();
        let mut rooms = Rooms(
            nodes
                .flat_map(|(g, group)| std::iter::repeat_n((g, group.template.gpus), group.nodes))
                .collect(),
        );
        for (i, d) in spec.deployments.iter().enumerate() {
            let replicas = if spec.is_warm {
                i64::from(d.replicas)
            } else {
                0
            };
            let wanted = replicas * d.pod.size as i64;
            let mut left = rooms.take(d, wanted);
            for (g, group) in spec.groups.iter_mut().enumerate() {
                let each = room(d, group.template.gpus);
                let is_given = file.node_group[g].nodes.is_some();
                if is_given || left <= 0 || each == 0 || !d.may_use(g) {
                    continue;
                }
                let more = (left as u64).div_ceil(each as u64) as usize;
                let more = more.min(group.max.saturating_sub(group.nodes));
                group.nodes += more;
                let new = std::iter::repeat_n((g, group.template.gpus), more);
                rooms.0.extend(new);
                left = rooms.take(d, left);
            }
            if left > 0 {
                let (key, whose) = match self.pools.get(i) {
                    Some(pool) => (
                        format!("pool[{i}].replicas"),
                        format!("pool `{}`: ", pool.name),
                    ),
                    None => ("cluster.replicas".to_owned(), String::new()),
                };
                return self.wrong(
                    &key,
                    format!(
                        "{whose}{replicas} replicas are to be ready at the start, and the groups have room for {} of their {wanted} pods; lower it, \
                         raise max, or write start = \"cold\"",
                        wanted - left
                    ),
                );
            }
        }
        Ok(())
    }

    fn check_room(&self, d: &DeploymentSpec, groups: &[GroupSpec]) -> Result<()> {
        let own = || {
            let all = groups.iter().enumerate();
            all.filter(|(g, _)| d.may_use(*g)).map(|(_, group)| group)
        };
        let whose = match self.pools.is_empty() {
            true => String::new(),
            false => format!("pool `{}`: ", d.name),
        };
        let largest = own().map(|g| g.template.gpus).max().unwrap_or(0);
        let (gpus, resource) = (d.pod.requests.gpus, &d.pod.resource);
        if own().all(|g| room(d, g.template.gpus) == 0) {
            return self.wrong(
                "cluster.node_group",
                format!(
                    "{whose}no node has room for a pod: it requests {gpus} {resource}, the largest node has {largest}; a pod would stay Pending with \
                     \"Insufficient {resource}\""
                ),
            );
        }
        let most: i64 = own().map(|g| room(d, g.template.gpus) * g.max as i64).sum();
        if most < d.pod.size as i64 {
            let first = (0..groups.len()).find(|g| d.may_use(*g)).unwrap_or(0);
            return self.wrong(
                &format!("cluster.node_group[{first}].max"),
                format!(
                    "{whose}a replica has {} pods, and the groups have room for {most} at most: it would never be ready; raise max",
                    d.pod.size
                ),
            );
        }
        Ok(())
    }
}

/// So many accelerators.
pub(super) fn gpus(n: u32) -> Resources {
    Resources {
        gpus: n.into(),
        ..Resources::default()
    }
}
