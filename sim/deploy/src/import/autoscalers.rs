//! Autoscalers: HorizontalPodAutoscaler (autoscaling/v2) and KEDA's ScaledObject.

use super::draft::Draft;
use super::tree::{Tree, sweep};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, not_modelled, says};

const FIXED: &str = "replicas stay as many as the run starts with";

/// HorizontalPodAutoscaler.
pub const HPA: Table = Table {
    kind: "hpa",
    title: "HorizontalPodAutoscaler (autoscaling/v2)",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.minReplicas",
            "`layout.replicas` where the workload says fewer or nothing",
            Whole,
        ),
        not_modelled("spec.maxReplicas", FIXED),
        not_modelled("spec.metrics[].type", FIXED),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.scaleTargetRef.*",
        "spec.behavior*",
        "spec.metrics[].pods*",
        "spec.metrics[].resource*",
        "spec.metrics[].object*",
        "spec.metrics[].external*",
        "spec.metrics[].containerResource*",
    ],
    idle_flags: &[],
};

/// ScaledObject.
pub const KEDA: Table = Table {
    kind: "keda",
    title: "KEDA ScaledObject",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.minReplicaCount",
            "`layout.replicas` where the workload says fewer or nothing",
            Whole,
        ),
        not_modelled("spec.maxReplicaCount", FIXED),
        not_modelled("spec.triggers[].type", FIXED),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.scaleTargetRef.*",
        "spec.triggers[].metadata*",
        "spec.triggers[].name",
        "spec.triggers[].metricType",
        "spec.triggers[].authenticationRef*",
        "spec.triggers[].useCachedMetrics",
        "spec.pollingInterval",
        "spec.cooldownPeriod",
        "spec.initialCooldownPeriod",
        "spec.idleReplicaCount",
        "spec.fallback*",
        "spec.advanced*",
    ],
    idle_flags: &[],
};

/// Imports a HorizontalPodAutoscaler.
pub fn hpa(tree: Tree<'_>, draft: &mut Draft) {
    least(tree, "minReplicas", draft);
    sweep(tree, &[(String::new(), &HPA)], draft);
}

/// Imports a ScaledObject.
pub fn keda(tree: Tree<'_>, draft: &mut Draft) {
    least(tree, "minReplicaCount", draft);
    sweep(tree, &[(String::new(), &KEDA)], draft);
}

fn least(tree: Tree<'_>, key: &str, draft: &mut Draft) {
    if let Some(found) = tree.whole("", &["spec", key], draft) {
        draft.facts.least_replicas = Some(found);
    }
}
