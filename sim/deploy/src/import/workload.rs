//! What workloads of Kubernetes have in common: replicas, ConfigMaps, and those without an engine.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::kserve::RUNTIME;
use super::tree::Tree;
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, says};
use crate::place::Place;
use crate::report::Fate;
use crate::text::yaml::Node;

/// Most variables and words of a container.
pub const MAX_WORDS: usize = 2_000;

/// Workloads that run pods.
pub const WORKLOAD: Table = Table {
    kind: "kubernetes",
    title: "any resource with a pod template: Deployment, StatefulSet, LeaderWorkerSet, DisaggregatedSet, StormService, RayClusterFleet, Rollout, Pod ... (several documents in a file)",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.replicas",
            "a factor of `layout.replicas`; so at every level around a pod template",
            Whole,
        ),
        says(
            "metadata.name",
            "`cluster.pod.name`, where an autoscaler makes a [cluster]",
            Text,
        ),
        says(
            "spec.strategy.rollingUpdate.maxSurge spec.rolloutStrategy.rollingUpdateConfiguration.maxSurge",
            "`cluster.pod.maxSurge`, likewise",
            Text,
        ),
        says(
            "spec.strategy.rollingUpdate.maxUnavailable spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable",
            "`cluster.pod.maxUnavailable`, likewise",
            Text,
        ),
        says(
            "spec.slices",
            "a factor of `layout.replicas` (DisaggregatedSet)",
            Whole,
        ),
        says(
            "spec.leaderWorkerTemplate.size",
            "pods that hold one replica",
            Whole,
        ),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.selector*",
        "spec.strategy*",
        "spec.template.metadata*",
        "spec.revisionHistoryLimit",
        "spec.progressDeadlineSeconds",
        "spec.minReadySeconds",
        "spec.serviceName",
        "spec.podManagementPolicy",
        "spec.updateStrategy*",
        "spec.volumeClaimTemplates*",
        "spec.startupPolicy",
        "spec.rolloutStrategy*",
        "spec.networkConfig*",
        "spec.leaderWorkerTemplate.restartPolicy",
        "spec.leaderWorkerTemplate.leaderTemplate.metadata*",
        "spec.leaderWorkerTemplate.workerTemplate.*",
        "spec.backoffLimit",
        "spec.ttlSecondsAfterFinished",
        "spec.completions",
        "spec.parallelism",
        "spec.paused",
        "spec.persistentVolumeClaimRetentionPolicy*",
        "spec.ordinals*",
        "spec.suspend",
    ],
    idle_flags: &[],
};

/// ConfigMaps of the files: name to keys and values.
pub type ConfigMaps = BTreeMap<String, Vec<(String, Origin)>>;

/// The ConfigMaps among the documents.
pub fn config_maps(docs: &[Rc<Node>], file: &Arc<str>, maps: &mut ConfigMaps) {
    for doc in docs {
        let kind = doc.get("kind").and_then(|k| k.text().map(str::to_owned));
        let name = doc.at(&["metadata", "name"]).and_then(Node::text);
        if let (Some("ServingRuntime" | "ClusterServingRuntime"), Some(name)) =
            (kind.as_deref(), name)
        {
            let words = runtime(doc, file);
            maps.insert(format!("{RUNTIME}{name}"), words);
        }
        if let (Some("ConfigMap"), Some(name), Some(data)) =
            (kind.as_deref(), name, doc.get("data"))
        {
            let entries = data.entries().iter().map(|e| {
                let text = e.value.text().unwrap_or("").to_owned();
                (
                    e.key.clone(),
                    Origin::new(Place::new(file, e.line), e.key.clone(), text),
                )
            });
            maps.insert(name.to_owned(), entries.take(MAX_WORDS).collect());
        }
    }
}

/// The words that a ServingRuntime of KServe starts its container with.
fn runtime(doc: &Node, file: &Arc<str>) -> Vec<(String, Origin)> {
    let containers = doc.at(&["spec", "containers"]).map_or(&[][..], Node::items);
    let lists = (containers.iter()).flat_map(|c| ["command", "args"].map(|key| c.get(key)));
    let items = lists.flatten().flat_map(|l| l.items());
    items
        .take(MAX_WORDS)
        .filter_map(|w| Some(Origin::new(Place::new(file, w.line), RUNTIME, w.text()?)))
        .map(|origin| (RUNTIME.to_owned(), origin))
        .collect()
}

/// A workload without an engine: one line in the report.
pub fn nothing(tree: Tree<'_>, draft: &mut Draft) {
    let kind = tree.node.get("kind").and_then(|k| k.text()).unwrap_or("");
    let name = tree
        .node
        .at(&["metadata", "name"])
        .and_then(Node::text)
        .unwrap_or("");
    let line = tree.node.entry("kind").map_or(tree.node.line, |e| e.line);
    let origin = Origin::new(Place::new(tree.file, line), kind, name);
    draft.fate(
        &origin,
        Fate::NotUnderstood,
        "none of its containers runs an engine or a load generator that is known",
    );
}
