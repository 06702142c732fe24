//! Kubernetes manifests: workloads with their pods, autoscalers, KServe's resources.
//!
//! Fields: the API references of kubernetes.io (apps/v1, batch/v1, autoscaling/v2), lws.sigs.k8s.io (leaderworkerset.x-k8s.io/v1), keda.sh (ScaledObject), and
//! kserve.github.io (InferenceService v1beta1, LLMInferenceService v1alpha1).

use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::pod::{POD, Runs, pod};
use super::tree::{Tree, sweep};
use super::workload::{ConfigMaps, WORKLOAD, nothing, replicas};
use super::{autoscalers, dynamo, kserve};
use crate::place::Place;
use crate::report::Fate;
use crate::text::yaml::Node;

/// Resources that say nothing of a simulation.
const IDLE_KINDS: [&str; 30] = [
    "Service",
    "ConfigMap",
    "Secret",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "Namespace",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "Ingress",
    "IngressClass",
    "NetworkPolicy",
    "PodMonitor",
    "ServiceMonitor",
    "PodDisruptionBudget",
    "Gateway",
    "HTTPRoute",
    "GRPCRoute",
    "DestinationRule",
    "VirtualService",
    "DaemonSet",
    "CustomResourceDefinition",
    "PriorityClass",
    "ResourceQuota",
    "LimitRange",
    "Issuer",
    "Certificate",
];

/// Imports one document.
pub fn import(doc: &Rc<Node>, file: &Arc<str>, maps: &ConfigMaps, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    let kind = doc.get("kind").and_then(|k| k.text()).unwrap_or("");
    match kind {
        "List" => {
            for item in doc.get("items").map_or(&[][..], |i| i.items()) {
                // A list of lists is nested at most as deep as the document.
                import(item, file, maps, draft);
            }
        }
        "Deployment" | "StatefulSet" | "ReplicaSet" | "Job" => {
            workload(tree, &["spec", "template", "spec"], maps, draft)
        }
        "CronJob" => workload(
            tree,
            &["spec", "jobTemplate", "spec", "template", "spec"],
            maps,
            draft,
        ),
        "Pod" => workload(tree, &["spec"], maps, draft),
        "LeaderWorkerSet" => leader_worker_set(tree, maps, draft),
        "HorizontalPodAutoscaler" => autoscalers::hpa(tree, draft),
        "ScaledObject" => autoscalers::keda(tree, draft),
        "InferenceService" => kserve::inference_service(tree, maps, draft),
        "LLMInferenceService" => kserve::llm_inference_service(tree, maps, draft),
        "DynamoGraphDeployment" => dynamo::import(tree, maps, draft),
        kind if IDLE_KINDS.contains(&kind) => {
            let name = doc
                .at(&["metadata", "name"])
                .and_then(Node::text)
                .unwrap_or("");
            let line = doc.entry("kind").map_or(doc.line, |e| e.line);
            let origin = Origin::new(Place::new(file, line), kind, name);
            draft.fate(&origin, Fate::NoEffect, "");
        }
        kind => {
            let line = doc.entry("kind").map_or(doc.line, |e| e.line);
            let origin = Origin::new(Place::new(file, line), "kind", kind);
            draft.fate(
                &origin,
                Fate::NotUnderstood,
                "a resource that the importer does not know",
            );
        }
    }
}

/// What the pod at `path` runs.
fn pod_at(tree: Tree<'_>, path: &[&str], maps: &ConfigMaps, draft: &mut Draft) -> Runs {
    let Some(node) = tree.node.at(path) else {
        return Runs::Nothing;
    };
    let file = tree.file;
    pod(Tree { node, file }, &path.join("."), maps, draft)
}

fn workload(tree: Tree<'_>, pod: &[&str], maps: &ConfigMaps, draft: &mut Draft) {
    let prefix = pod.join(".");
    let runs = pod_at(tree, pod, maps, draft);
    if runs == Runs::Nothing {
        return nothing(tree, draft);
    }
    if runs == Runs::Engine {
        replicas(tree, draft);
    }
    sweep(
        tree,
        &[(String::new(), &WORKLOAD), (format!("{prefix}."), &POD)],
        draft,
    );
}

fn leader_worker_set(tree: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) {
    let template = ["spec", "leaderWorkerTemplate"];
    // Without a leader of its own the leader is a worker too.
    let leader = [template[0], template[1], "leaderTemplate", "spec"];
    let worker = [template[0], template[1], "workerTemplate", "spec"];
    let pod = if tree.node.at(&leader).is_some() {
        leader
    } else {
        worker
    };
    let prefix = pod.join(".");
    let runs = pod_at(tree, &pod, maps, draft);
    if runs == Runs::Nothing {
        return nothing(tree, draft);
    }
    replicas(tree, draft);
    if let Some(found) = tree.whole("", &["spec", "leaderWorkerTemplate", "size"], draft) {
        draft.facts.group_size = Some(found);
    }
    sweep(
        tree,
        &[(String::new(), &WORKLOAD), (format!("{prefix}."), &POD)],
        draft,
    );
}
