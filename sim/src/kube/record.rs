//! What a run leaves of its cluster: nodes, pods, replicas, decisions, and the state over time.

use super::spec::Watts;
use crate::control::actuation::Path;
use crate::kernel::time::{SimDuration, SimTime};

/// A node, from the request of its instance to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Name of its group.
    pub group: String,
    /// Its instance type.
    pub instance: String,
    /// Whether it can be reclaimed.
    pub is_spot: bool,
    /// Accelerators it has.
    pub gpus: i64,
    /// Price [USD/h], where known.
    pub usd_per_hour: Option<f64>,
    /// Power of its accelerators, all together [W], where known.
    pub watts: Option<Watts>,
    /// The instance was asked for.
    pub requested: SimTime,
    /// Its node is Ready.
    pub ready: SimTime,
    /// Its accelerators can be allocated.
    pub usable: SimTime,
    /// Nothing new is placed on it: it is to go.
    pub tainted: SimTime,
    /// It is not paid for any more; [`SimTime::NEVER`]: it was there when the run ended.
    pub gone: SimTime,
    /// Why it went, or that it was refused.
    pub why_gone: String,
    /// The cloud had no capacity: it never was.
    pub is_refused: bool,
    /// Sum over its accelerators of the time during which ready replicas held them [ns].
    pub serving_gpu_ns: u128,
}

/// The phases of a pod's start, in their order.
pub const PHASES: [&str; 10] = [
    "pending",
    "node_boot",
    "device_plugin",
    "image_pull",
    "weights_load",
    "gang_wait",
    "engine_init",
    "waking",
    "readiness",
    "back_off",
];

/// A start of a pod's container. Instants that it did not reach are [`SimTime::NEVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartRow {
    /// What it comes after: the pod was scheduled, or the container crashed.
    pub after: SimTime,
    /// The container starts.
    pub started: SimTime,
    /// Its weights are loaded.
    pub loaded: SimTime,
    /// The weights of all pods of its replica are.
    pub gang_loaded: SimTime,
    /// Its engine answers.
    pub up: SimTime,
    /// Its readiness probe succeeded.
    pub ready: SimTime,
    /// It crashed, and the next start comes.
    pub crashed: SimTime,
}

/// A pod. Instants that it did not reach are [`SimTime::NEVER`].
#[derive(Clone, Debug, PartialEq)]
pub struct PodRow {
    /// Its name.
    pub name: String,
    /// Index of its replica.
    pub replica: usize,
    /// Index of its node, once it is scheduled.
    pub node: Option<usize>,
    /// It was created.
    pub created: SimTime,
    /// A node was found.
    pub scheduled: SimTime,
    /// Its image is there and its container starts (volume attached before).
    pub started: SimTime,
    /// Its weights are loaded.
    pub loaded: SimTime,
    /// The weights of all pods of its replica are.
    pub gang_loaded: SimTime,
    /// Its engine answers.
    pub up: SimTime,
    /// Its readiness probe succeeded.
    pub ready: SimTime,
    /// It has ended.
    pub gone: SimTime,
    /// Times that its container crashed and was started again; the instants above are of the last start.
    pub restarts: u32,
    /// The starts before that, in their order.
    pub earlier: Vec<StartRow>,
    /// What the scheduler last said of it while it was Pending.
    pub unschedulable: String,
    /// What kept nodes from being added for it, where it never had one.
    pub limit: String,
    /// Index of the vLLM instance that served for it, with fast model actuation.
    pub instance: Option<usize>,
    /// How it got that.
    pub path: Option<Path>,
}

impl PodRow {
    /// Its last start.
    fn last(&self) -> StartRow {
        StartRow {
            after: self.earlier.last().map_or(self.scheduled, |s| s.crashed),
            started: self.started,
            loaded: self.loaded,
            gang_loaded: self.gang_loaded,
            up: self.up,
            ready: self.ready,
            crashed: SimTime::NEVER,
        }
    }

    /// The starts of its container, in their order; one that never started has one.
    pub fn starts(&self) -> impl Iterator<Item = StartRow> {
        self.earlier.iter().copied().chain([self.last()])
    }

    /// Time spent in each of [`PHASES`] up to `end` by its first start; `node` is the one that it was placed on.
    pub fn phases(&self, node: Option<&NodeRow>, end: SimTime) -> [SimDuration; PHASES.len()] {
        let first = self.earlier.first().copied().unwrap_or_else(|| self.last());
        let end = end.min(self.gone).min(first.crashed);
        let mut out = self.phases_of(&first, end);
        let overlap =
            |a: SimTime, b: SimTime, from: SimTime, to: SimTime| b.min(to).since(a.max(from));
        let waited = self.scheduled.min(end).since(self.created);
        if let Some(node) = node {
            let (from, to) = (self.created, self.scheduled.min(end));
            out[1] = overlap(node.requested, node.ready, from, to);
            out[2] = overlap(node.ready, node.usable, from, to);
        }
        out[0] = SimDuration(waited.0.saturating_sub(out[1].0 + out[2].0));
        // The image is pulled, and the volume attached, before the first start alone.
        out[3] = std::mem::take(&mut out[9]);
        out
    }

    /// The same of each start; one after a crash begins with its pause.
    pub fn phases_of_starts(
        &self,
        node: Option<&NodeRow>,
        end: SimTime,
    ) -> impl Iterator<Item = (StartRow, [SimDuration; PHASES.len()])> {
        let end = end.min(self.gone);
        let first = self.phases(node, end);
        (self.starts().enumerate()).map(move |(i, start)| match i {
            0 => (start, first),
            _ => (start, self.phases_of(&start, end.min(start.crashed))),
        })
    }

    /// Phases of a start from what it comes after.
    fn phases_of(&self, start: &StartRow, end: SimTime) -> [SimDuration; PHASES.len()] {
        let mut out = [SimDuration::ZERO; PHASES.len()];
        let steps = [
            start.after,
            start.started,
            start.loaded,
            start.gang_loaded,
            start.up,
            start.ready,
        ];
        // An instance that is woken has no start of its engine.
        let up = match self.path {
            Some(Path::Hot) => 7,
            _ => 6,
        };
        for (phase, pair) in [9, 4, 5, up, 8].into_iter().zip(steps.windows(2)) {
            out[phase] = pair[1].min(end).since(pair[0].min(end));
        }
        out
    }
}

/// A replica: a pod, or the group of a LeaderWorkerSet.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaRow {
    /// Its name: that of its pod, or of its leader.
    pub name: String,
    /// Index of its deployment.
    pub deployment: usize,
    /// Its pods.
    pub pods: Vec<usize>,
    /// It was created.
    pub created: SimTime,
    /// Each time that it was ready: its index among the engines of the run, from when, and until it was sent nothing more.
    pub served: Vec<(u32, SimTime, SimTime)>,
    /// It was told to end.
    pub draining: SimTime,
    /// Its last pod has ended.
    pub gone: SimTime,
    /// Why.
    pub why_gone: String,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// The Horizontal Pod Autoscaler, KEDA's too.
    Hpa,
    /// KEDA's own way to zero and back.
    Keda,
    /// The Cluster Autoscaler.
    ClusterAutoscaler,
    /// Karpenter.
    Karpenter,
    /// Target tracking of Application Auto Scaling.
    TargetTracking,
    /// Step scaling of Application Auto Scaling.
    StepScaling,
    /// Scheduled actions of Application Auto Scaling.
    Scheduled,
    /// Predictive scaling.
    Predictive,
    /// The endpoint that gives instances to its copies.
    Endpoint,
    /// Dynamo's planner.
    Dynamo,
    /// llm-d's workload-variant autoscaler.
    Wva,
    /// Models loaded on demand.
    OnDemand,
    /// llm-d's dual-pods controller, which binds pods to instances that sleep and wake.
    DualPods,
    /// An operator, by a line of the scenario.
    Operator,
    /// The cloud, or what broke.
    Fault,
    /// The kubelet, which starts containers again that crashed.
    Kubelet,
}

impl Controller {
    /// Whether it tells of something that happened, whatever sizes it changes.
    pub fn tells(self) -> bool {
        matches!(
            self,
            Controller::Operator | Controller::Fault | Controller::Kubelet
        )
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Hpa => "hpa",
            Controller::Keda => "keda",
            Controller::ClusterAutoscaler => "cluster-autoscaler",
            Controller::Karpenter => "karpenter",
            Controller::TargetTracking => "target-tracking",
            Controller::StepScaling => "step-scaling",
            Controller::Scheduled => "scheduled-scaling",
            Controller::Predictive => "predictive-scaling",
            Controller::Endpoint => "endpoint",
            Controller::Dynamo => "dynamo-planner",
            Controller::Wva => "wva",
            Controller::OnDemand => "on-demand",
            Controller::DualPods => "dual-pods-controller",
            Controller::Operator => "operator",
            Controller::Fault => "fault",
            Controller::Kubelet => "kubelet",
        }
    }
}

/// A decision, or that nothing was changed.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRow {
    /// When.
    pub at: SimTime,
    /// Whose.
    pub controller: Controller,
    /// What it is about: `replicas`, with several deployments `NAME replicas`, a node group's name, or the instances `asleep on NODE`.
    pub about: String,
    /// Size before.
    pub from: i64,
    /// Size after.
    pub to: i64,
    /// Replicas that were ready then.
    pub ready: u32,
    /// What it was told: each metric's value.
    pub inputs: String,
    /// Why, in words.
    pub why: String,
}

/// The cluster at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleRow {
    /// When.
    pub at: SimTime,
    /// Requests offered so far.
    pub offered: u64,
    /// Requests held at the gateway.
    pub held: u64,
    /// Requests in the engines' batches.
    pub running: u64,
    /// Requests that wait in engines.
    pub waiting: u64,
    /// Requests in the engines' servers that their schedulers do not hold: on their way in or out, or being tokenised.
    pub in_server: u64,
    /// Replicas wanted.
    pub desired: u32,
    /// Replicas there are, ready or not.
    pub replicas: u32,
    /// Replicas that are ready.
    pub ready: u32,
    /// Pods without a node.
    pub pending_pods: u32,
    /// Instances asked for that are not Ready.
    pub booting_nodes: u32,
    /// Nodes that are Ready.
    pub nodes: u32,
}

/// One of several deployments at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeploymentSample {
    /// When.
    pub at: SimTime,
    /// Requests held at the gateway that it could take.
    pub held: u64,
    /// Requests in its engines' batches.
    pub running: u64,
    /// Requests that wait in its engines.
    pub waiting: u64,
    /// Requests in its engines' servers that their schedulers do not hold.
    pub in_server: u64,
    /// Replicas wanted.
    pub desired: u32,
    /// Replicas there are, ready or not.
    pub replicas: u32,
    /// Replicas that are ready.
    pub ready: u32,
    /// Its pods without a node.
    pub pending_pods: u32,
}

/// A Deployment or LeaderWorkerSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeploymentRow {
    /// Name of its pool.
    pub name: String,
    /// Accelerators of each of its pods.
    pub gpus_per_pod: i64,
    /// Its state over time; empty where it is the only one, whose state is the cluster's.
    pub samples: Vec<DeploymentSample>,
}

/// A replica that was loaded because requests waited for its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapRow {
    /// When that was decided.
    pub at: SimTime,
    /// Index of its deployment.
    pub deployment: usize,
    /// Its index among the replicas.
    pub replica: usize,
    /// Replicas that made room for it.
    pub evicted: Vec<usize>,
}

/// A vLLM instance that serves for pods, and sleeps between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstanceRow {
    /// Index of its deployment.
    pub deployment: usize,
    /// Index of its node.
    pub node: usize,
    /// Its accelerators there.
    pub gpus: Vec<u32>,
    /// It was made.
    pub created: SimTime,
    /// Pods that it served for, by their index, in their order.
    pub pods: Vec<usize>,
    /// Each time that it slept: from when its accelerators were free until it was told to wake up, or ended.
    pub naps: Vec<(SimTime, SimTime)>,
    /// Its tensors in the host's memory once it slept [bytes].
    pub host_bytes: u64,
    /// It ended; `None`: it was there when the run ended.
    pub gone: Option<SimTime>,
    /// Why.
    pub why_gone: String,
}

impl InstanceRow {
    /// It is told to wake up.
    pub(super) fn wake(&mut self, now: SimTime) {
        if let Some(nap) = self.naps.last_mut().filter(|n| n.1 == SimTime::NEVER) {
            nap.1 = now;
        }
    }

    /// It ends, unless it has.
    pub(super) fn end(&mut self, now: SimTime, why: &str) {
        if self.gone.is_none() {
            self.wake(now);
            self.gone = Some(now);
            why.clone_into(&mut self.why_gone);
        }
    }
}

/// What fast model actuation did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActuationRecord {
    /// Instances, in the order in which they were made.
    pub instances: Vec<InstanceRow>,
    /// vLLM's level of sleep.
    pub level: u8,
    /// What a sleeper keeps on each of its accelerators [bytes].
    pub sleeping_gpu_bytes: u64,
    /// Most that slept on one accelerator at once.
    pub most_asleep: u64,
    /// Most tensors in the memory of one host [bytes].
    pub most_host_bytes: u64,
    /// Instances that ended because the host's memory had no room for their tensors.
    pub no_host_room: u64,
}

/// What became of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterRecord {
    /// Nodes, in the order of their requests.
    pub nodes: Vec<NodeRow>,
    /// Pods, in the order of their creation.
    pub pods: Vec<PodRow>,
    /// Replicas, in the order of their creation.
    pub replicas: Vec<ReplicaRow>,
    /// Changes; of what controllers left as it was, each reason once, when it began to hold.
    pub decisions: Vec<DecisionRow>,
    /// The state over time.
    pub samples: Vec<SampleRow>,
    /// Its Deployments or LeaderWorkerSets; where the run has pools, one for each.
    pub deployments: Vec<DeploymentRow>,
    /// Swaps of models that are loaded on demand, where such are.
    pub swaps: Option<Vec<SwapRow>>,
    /// Instances that slept and woke, with fast model actuation.
    pub actuation: Option<ActuationRecord>,
    /// End of the run.
    pub end: SimTime,
}

impl ClusterRecord {
    /// How long node `n` was paid for.
    pub fn lifetime(&self, n: usize) -> SimDuration {
        let node = &self.nodes[n];
        if node.is_refused {
            return SimDuration::ZERO;
        }
        node.gone.min(self.end).since(node.requested)
    }

    /// When each of `engines` engines was there: from when it was ready until it was gone, or the run ended.
    pub fn engine_lives(&self, engines: usize) -> Vec<(SimTime, SimTime)> {
        let mut lives = vec![(self.end, self.end); engines];
        for r in &self.replicas {
            for (i, (engine, from, to)) in r.served.iter().enumerate() {
                // The last one works off what it has while it drains.
                let drains = i + 1 == r.served.len() && r.draining != SimTime::NEVER;
                let until = if drains { r.gone.max(*to) } else { *to };
                if let Some(life) = lives.get_mut(*engine as usize) {
                    *life = (*from, until.min(self.end));
                }
            }
        }
        lives
    }

    /// Accelerators of a pod of replica `r`.
    pub fn gpus_per_pod(&self, r: &ReplicaRow) -> i64 {
        (self.deployments.get(r.deployment)).map_or(0, |d| d.gpus_per_pod)
    }

    /// The first pod of the replica that each of `engines` engines was, and the number of its start, by their indices.
    pub fn engine_pods(&self, engines: usize) -> Vec<Option<(usize, usize)>> {
        let mut of = vec![None; engines];
        for r in &self.replicas {
            let Some(first) = r.pods.first().copied() else {
                continue;
            };
            for (engine, from, _) in &r.served {
                let start = self.pods[first].starts().position(|s| s.ready == *from);
                if let Some(place) = of.get_mut(*engine as usize) {
                    *place = Some((first, start.unwrap_or(0)));
                }
            }
        }
        of
    }

    /// The deployment of each of `engines` engines, by its index.
    pub fn engine_deployments(&self, engines: usize) -> Vec<usize> {
        let mut of = vec![0; engines];
        for r in &self.replicas {
            for (engine, _, _) in &r.served {
                if let Some(d) = of.get_mut(*engine as usize) {
                    *d = r.deployment;
                }
            }
        }
        of
    }

    /// What all nodes cost [USD], by the second; none where a price is not known.
    pub fn usd(&self) -> Option<f64> {
        (0..self.nodes.len())
            .map(|n| Some(self.nodes[n].usd_per_hour? * self.lifetime(n).as_secs() / 3600.0))
            .sum()
    }

    /// Node of a pod.
    pub fn node_of(&self, pod: &PodRow) -> Option<&NodeRow> {
        pod.node.map(|n| &self.nodes[n])
    }
}
