//! Settings of the provisioner, its offerings, and what it sees.

use hwmodels::units::{Ratio, Secs};
use serde::{Deserialize, Serialize};

use crate::control::cluster_autoscaler::spec::{PodView, Resources};
use crate::kernel::time::SimTime;

/// `karpenter.sh/capacity-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// On demand.
    #[default]
    OnDemand,
    /// Spot.
    Spot,
}

/// An instance type as it is sold.
#[derive(Clone, Debug, PartialEq)]
pub struct Offering {
    /// Its name.
    pub instance_type: String,
    /// On demand or spot.
    pub capacity_type: CapacityType,
    /// What a node of it gives to pods.
    pub allocatable: Resources,
    /// Price [$/h].
    pub price_per_hour: f64,
}

/// `spec.disruption.consolidationPolicy`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum ConsolidationPolicy {
    /// Nodes that are empty, and nodes whose pods fit elsewhere.
    #[default]
    WhenEmptyOrUnderutilized,
    /// Nodes that are empty.
    WhenEmpty,
}

/// Why a node is disrupted; budgets may name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Reason {
    /// No pods that count.
    Empty,
    /// Its pods fit elsewhere, or on something cheaper.
    Underutilized,
}

/// `budgets[].nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BudgetNodes {
    /// A share of the pool's nodes, rounded up.
    Share(Ratio),
    /// So many.
    Count(usize),
}

/// An entry of `spec.disruption.budgets`; `schedule` and `duration` are the caller's, who leaves out those that are not active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// `nodes`.
    pub nodes: BudgetNodes,
    /// `reasons`; empty: all.
    #[serde(default)]
    pub reasons: Vec<Reason>,
}

/// A NodePool and the controller's options.
#[derive(Clone, Debug, PartialEq)]
pub struct KarpenterSpec {
    /// Instance types that the pool may use.
    pub offerings: Vec<Offering>,
    /// `spec.limits.nodes`.
    pub nodes_limit: Option<usize>,
    /// `spec.disruption.consolidationPolicy`.
    pub consolidation_policy: ConsolidationPolicy,
    /// `spec.disruption.consolidateAfter`: quiet time of a node before it may be consolidated; none: `Never`.
    pub consolidate_after: Option<Secs>,
    /// `spec.disruption.budgets`; the tightest holds.
    pub budgets: Vec<Budget>,
    /// `BATCH_IDLE_DURATION`.
    pub batch_idle_duration: Secs,
    /// `BATCH_MAX_DURATION`.
    pub batch_max_duration: Secs,
    /// How often it looks for nodes to disrupt.
    pub disruption_poll: Secs,
    /// Time after which a consolidation must be found right again.
    pub consolidation_ttl: Secs,
    /// Time to launch, from the claim on.
    pub launch_timeout: Secs,
    /// Time to register, from the claim on.
    pub registration_timeout: Secs,
    /// How long a refused offering is left alone.
    pub unavailable_offerings_ttl: Secs,
    /// Number of the first claim; a claim's node bears its number.
    pub first_claim: u64,
}

impl KarpenterSpec {
    /// Defaults for a pool of these offerings.
    pub fn new(offerings: Vec<Offering>) -> KarpenterSpec {
        let secs = |s| Secs::new(s).unwrap_or_default();
        KarpenterSpec {
            offerings,
            nodes_limit: None,
            consolidation_policy: ConsolidationPolicy::default(),
            consolidate_after: Some(Secs::default()),
            budgets: vec![Budget {
                nodes: BudgetNodes::Share(Ratio::new(0.1).unwrap_or_default()),
                reasons: Vec::new(),
            }],
            batch_idle_duration: secs(1.0),
            batch_max_duration: secs(10.0),
            disruption_poll: secs(10.0),
            consolidation_ttl: secs(15.0),
            launch_timeout: secs(300.0),
            registration_timeout: secs(900.0),
            unavailable_offerings_ttl: secs(180.0),
            first_claim: 1_000_000,
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.offerings.is_empty() {
            return Err(
                "the pool has no offerings: name at least one instance type with its price"
                    .to_owned(),
            );
        }
        if let Some(o) = self
            .offerings
            .iter()
            .find(|o| !(o.price_per_hour.is_finite() && o.price_per_hour >= 0.0))
        {
            return Err(format!(
                "{}: the price must be at least 0, got {}",
                o.instance_type, o.price_per_hour
            ));
        }
        if self.batch_idle_duration > self.batch_max_duration {
            return Err(format!(
                "BATCH_IDLE_DURATION ({}) must be at most BATCH_MAX_DURATION ({})",
                self.batch_idle_duration, self.batch_max_duration
            ));
        }
        if self.disruption_poll.secs() <= 0.0 {
            return Err("disruption_poll must be above 0".to_owned());
        }
        Ok(())
    }

    /// Nodes that may be disrupted for `reason` at once, of `nodes`.
    pub(super) fn allowed(&self, reason: Reason, nodes: usize) -> usize {
        let of = |b: &Budget| match b.nodes {
            BudgetNodes::Count(n) => n,
            BudgetNodes::Share(share) => {
                (share.get() * nodes as f64 - 1e-9).ceil().max(0.0) as usize
            }
        };
        self.budgets
            .iter()
            .filter(|b| b.reasons.is_empty() || b.reasons.contains(&reason))
            .map(of)
            .min()
            .unwrap_or(usize::MAX)
    }
}

/// A node of the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// Which; the number of its claim.
    pub id: u64,
    /// Index of its offering.
    pub offering: usize,
    /// Ready, start-up taints gone, GPUs registered.
    pub is_initialized: bool,
    /// Being drained or deleted.
    pub is_disrupted: bool,
    /// What it gives to pods.
    pub allocatable: Resources,
    /// Pods on it, DaemonSets left out. One that is not movable (`karpenter.sh/do-not-disrupt`, a PDB) keeps its node.
    pub pods: Vec<PodView>,
    /// When a pod last came or went, or it became initialized.
    pub last_pod_event: SimTime,
}

/// What the provisioner sees.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Registered nodes.
    pub nodes: &'a [NodeView],
    /// Pods that the scheduler could not place.
    pub pending: &'a [PodView],
}
