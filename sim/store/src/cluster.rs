//! The cluster around the replicas of a run, as a file holds it: nodes, pods, who decided what, and the state over time.
//!
//! Instants are nanoseconds of the run's clock; one that never came is not there.

use serde::{Deserialize, Serialize};
use sim::kernel::time::SimTime;
use sim::kube::record::{
    ClusterRecord, DecisionRow, DeploymentRow, DeploymentSample, NodeRow, PodRow, ReplicaRow,
    SampleRow,
};

use crate::StoreError;

/// Most rows of a table of the cluster; what comes after is counted, not kept.
const MAX_ROWS: usize = 100_000;

/// Most samples of the state; beyond, every 2nd, 4th, ... is kept.
const MAX_SAMPLES: usize = 1 << 14;

/// A node, from the request of its instance to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Name of its group.
    pub group: String,
    /// Its instance type.
    pub instance: String,
    /// Whether it can be reclaimed.
    pub spot: bool,
    /// Accelerators it has.
    pub accelerators: i64,
    /// Price [USD/h], where known.
    pub usd_per_hour: Option<f64>,
    /// Its instance was asked for [ns].
    pub requested: u64,
    /// It is Ready [ns].
    pub ready: Option<u64>,
    /// Its accelerators can be allocated [ns].
    pub usable: Option<u64>,
    /// Nothing new is placed on it [ns].
    pub tainted: Option<u64>,
    /// It is not paid for any more [ns].
    pub gone: Option<u64>,
    /// Why it went, or that it was refused.
    pub why_gone: String,
    /// The cloud had no capacity: it never was.
    pub refused: bool,
}

/// A pod. The instants of its start come in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Index of its replica of the cluster.
    pub replica: u32,
    /// Index of its node, once it is scheduled.
    pub node: Option<u32>,
    /// It was created [ns].
    pub created: u64,
    /// A node was found [ns].
    pub scheduled: Option<u64>,
    /// Its image is there and its container starts [ns].
    pub started: Option<u64>,
    /// Its weights are loaded [ns].
    pub loaded: Option<u64>,
    /// The weights of all pods of its replica are [ns].
    pub gang_loaded: Option<u64>,
    /// Its engine answers [ns].
    pub up: Option<u64>,
    /// Its readiness probe succeeded [ns].
    pub ready: Option<u64>,
    /// It has ended [ns].
    pub gone: Option<u64>,
    /// Times that its container crashed and was started again; the instants are of the last start.
    pub restarts: u32,
    /// What the scheduler last said of it while it was Pending.
    pub unschedulable: String,
}

/// A time during which a replica of the cluster was ready, and which replica of the run it then was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Index of the replica of the run.
    pub replica: u32,
    /// From [ns].
    pub from: u64,
    /// Until it was sent nothing more [ns].
    pub until: Option<u64>,
}

/// A replica of the cluster: a pod, or the group of a LeaderWorkerSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterReplica {
    /// Its name.
    pub name: String,
    /// It was created [ns].
    pub created: u64,
    /// When it was ready.
    pub served: Vec<Served>,
    /// It was told to end [ns].
    pub draining: Option<u64>,
    /// Its last pod has ended [ns].
    pub gone: Option<u64>,
    /// Why.
    pub why_gone: String,
    /// Index of its deployment.
    #[serde(default, skip_serializing_if = "is_first")]
    pub deployment: u32,
}

fn is_first(deployment: &u32) -> bool {
    *deployment == 0
}

/// A decision, or that nothing was changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When [ns].
    pub at: u64,
    /// Whose: `hpa`, `keda`, `cluster-autoscaler`, `operator`, `fault`.
    pub controller: String,
    /// What it is about: `replicas`, or a node group's name.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When [ns].
    pub at: u64,
    /// Requests held at the gateway.
    pub held: u64,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentState {
    /// When [ns].
    pub at: u64,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// Name of its pool.
    pub name: String,
    /// Accelerators of each of its pods.
    pub accelerators_per_pod: i64,
    /// Its state over time.
    pub samples: Vec<DeploymentState>,
}

impl Deployment {
    fn of(d: &DeploymentRow, every: usize) -> Deployment {
        let state = |s: &DeploymentSample| DeploymentState {
            at: s.at.0,
            desired: s.desired,
            replicas: s.replicas,
            ready: s.ready,
            pending_pods: s.pending_pods,
        };
        Deployment {
            name: d.name.clone(),
            accelerators_per_pod: d.gpus_per_pod,
            samples: d.samples.iter().step_by(every).map(state).collect(),
        }
    }
}

/// What became of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Nodes, in the order of their requests.
    pub nodes: Vec<Node>,
    /// Pods, in the order of their creation.
    pub pods: Vec<Pod>,
    /// Replicas, in the order of their creation.
    pub replicas: Vec<ClusterReplica>,
    /// Decisions, in their order.
    pub decisions: Vec<Decision>,
    /// The state over time.
    pub samples: Vec<Sample>,
    /// Accelerators of a pod, of the first deployment.
    pub accelerators_per_pod: i64,
    /// Its deployments, where there are several: one for each pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<Deployment>,
    /// Nodes, pods, replicas and decisions that are not in the file, because there were too many.
    #[serde(default)]
    pub left_out: u64,
}

fn at(t: SimTime) -> Option<u64> {
    (t != SimTime::NEVER).then_some(t.0)
}

/// An index that fits; those that do not are of rows that are left out.
fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}

impl From<&NodeRow> for Node {
    fn from(n: &NodeRow) -> Node {
        Node {
            name: n.name.clone(),
            group: n.group.clone(),
            instance: n.instance.clone(),
            spot: n.is_spot,
            accelerators: n.gpus,
            usd_per_hour: n.usd_per_hour,
            requested: n.requested.0,
            ready: at(n.ready),
            usable: at(n.usable),
            tainted: at(n.tainted),
            gone: at(n.gone),
            why_gone: n.why_gone.clone(),
            refused: n.is_refused,
        }
    }
}

impl From<&PodRow> for Pod {
    fn from(p: &PodRow) -> Pod {
        Pod {
            name: p.name.clone(),
            replica: index(p.replica),
            node: p.node.filter(|n| *n < MAX_ROWS).map(index),
            created: p.created.0,
            scheduled: at(p.scheduled),
            started: at(p.started),
            loaded: at(p.loaded),
            gang_loaded: at(p.gang_loaded),
            up: at(p.up),
            ready: at(p.ready),
            gone: at(p.gone),
            restarts: p.restarts,
            unschedulable: p.unschedulable.clone(),
        }
    }
}

impl From<&ReplicaRow> for ClusterReplica {
    fn from(r: &ReplicaRow) -> ClusterReplica {
        let served = r.served.iter().map(|(replica, from, until)| Served {
            replica: *replica,
            from: from.0,
            until: at(*until),
        });
        ClusterReplica {
            name: r.name.clone(),
            created: r.created.0,
            served: served.collect(),
            draining: at(r.draining),
            gone: at(r.gone),
            why_gone: r.why_gone.clone(),
            deployment: index(r.deployment),
        }
    }
}

impl From<&DecisionRow> for Decision {
    fn from(d: &DecisionRow) -> Decision {
        Decision {
            at: d.at.0,
            controller: d.controller.name().to_owned(),
            about: d.about.clone(),
            from: d.from,
            to: d.to,
            ready: d.ready,
            inputs: d.inputs.clone(),
            why: d.why.clone(),
        }
    }
}

impl From<&SampleRow> for Sample {
    fn from(s: &SampleRow) -> Sample {
        Sample {
            at: s.at.0,
            held: s.held,
            desired: s.desired,
            replicas: s.replicas,
            ready: s.ready,
            pending_pods: s.pending_pods,
            booting_nodes: s.booting_nodes,
            nodes: s.nodes,
        }
    }
}

impl From<&ClusterRecord> for Cluster {
    fn from(c: &ClusterRecord) -> Cluster {
        let mut every = 1;
        while c.samples.len().div_ceil(every) > MAX_SAMPLES {
            every *= 2;
        }
        let over = |n: usize| n.saturating_sub(MAX_ROWS) as u64;
        let tables = [
            c.nodes.len(),
            c.pods.len(),
            c.replicas.len(),
            c.decisions.len(),
        ];
        let pods = c.pods.iter().filter(|p| p.replica < MAX_ROWS);
        Cluster {
            nodes: c.nodes.iter().take(MAX_ROWS).map(Node::from).collect(),
            pods: pods.take(MAX_ROWS).map(Pod::from).collect(),
            replicas: (c.replicas.iter().take(MAX_ROWS))
                .map(ClusterReplica::from)
                .collect(),
            decisions: (c.decisions.iter().take(MAX_ROWS))
                .map(Decision::from)
                .collect(),
            samples: c.samples.iter().step_by(every).map(Sample::from).collect(),
            accelerators_per_pod: c.deployments.first().map_or(0, |d| d.gpus_per_pod),
            deployments: match c.deployments.len() {
                0 | 1 => Vec::new(),
                _ => (c.deployments.iter())
                    .map(|d| Deployment::of(d, every))
                    .collect(),
            },
            left_out: tables.into_iter().map(over).sum(),
        }
    }
}

impl Cluster {
    /// What a reader must not take for granted: that indices are of rows that are there, of a run with `replicas` replicas.
    pub(crate) fn check(&self, replicas: usize) -> Result<(), StoreError> {
        let wrong = |why: String| StoreError::damaged("cluster.json", why);
        for (what, n) in [
            ("nodes", self.nodes.len()),
            ("pods", self.pods.len()),
            ("replicas", self.replicas.len()),
            ("decisions", self.decisions.len()),
            ("samples", self.samples.len()),
        ] {
            if n > MAX_ROWS {
                return Err(wrong(format!("{n} {what} are more than {MAX_ROWS}")));
            }
        }
        for (i, pod) in self.pods.iter().enumerate() {
            if pod.node.is_some_and(|n| n as usize >= self.nodes.len()) {
                return Err(wrong(format!("pod {i} is on a node that is not there")));
            }
            if pod.replica as usize >= self.replicas.len() {
                return Err(wrong(format!("pod {i} is of a replica that is not there")));
            }
        }
        let deployments = self.deployments.len().max(1);
        if let Some(r) = (self.replicas.iter()).find(|r| r.deployment as usize >= deployments) {
            return Err(wrong(format!(
                "{} is of a deployment that is not there",
                r.name
            )));
        }
        let served = self.replicas.iter().flat_map(|r| &r.served);
        for s in served {
            if s.replica as usize >= replicas {
                return Err(wrong(format!(
                    "it names replica {} of {replicas} of the run",
                    s.replica
                )));
            }
        }
        Ok(())
    }
}
