//! Kubernetes manifests: resources with pods, autoscalers, pools of nodes.
//!
//! Fields: the API references of kubernetes.io (apps/v1, batch/v1, autoscaling/v2), lws.sigs.k8s.io (leaderworkerset.x-k8s.io/v1), keda.sh (ScaledObject), and
//! kserve.github.io (InferenceService v1beta1, LLMInferenceService v1alpha1).

use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::tree::Tree;
use super::workload::{ConfigMaps, nothing};
use super::{autoscalers, nodes, resource};
use crate::place::Place;
use crate::report::Fate;
use crate::text::yaml::Node;

/// Resources that say nothing of a simulation.
const IDLE_KINDS: [&str; 47] = [
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
    "ServingRuntime",
    "ClusterServingRuntime",
    "EC2NodeClass",
    "NodeClass",
    "InferencePool",
    "InferenceModel",
    "InferenceObjective",
    "PodMonitoring",
    "ClusterPodMonitoring",
    "BackendConfig",
    "HealthCheckPolicy",
    "GCPBackendPolicy",
    "ReferenceGrant",
    "ResourceClaimTemplate",
    "Kustomization",
    "TriggerAuthentication",
    "ModelAdapter",
];

/// Imports one document.
pub fn import(doc: &Rc<Node>, file: &Arc<str>, maps: &ConfigMaps, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    match doc.get("kind").and_then(|k| k.text()).unwrap_or("") {
        "List" => {
            for item in doc.get("items").map_or(&[][..], |i| i.items()) {
                // A list of lists is nested at most as deep as the document.
                import(item, file, maps, draft);
            }
        }
        "HorizontalPodAutoscaler" => autoscalers::hpa(tree, draft),
        "ScaledObject" => autoscalers::keda(tree, draft),
        "PodAutoscaler" => autoscalers::aibrix(tree, draft),
        "NodePool" => nodes::pool(tree, draft),
        kind => {
            let units = resource::units(doc);
            if let Some(fault) = resource::too_many(&units, doc, file) {
                return draft.fault(fault);
            }
            let mut any = false;
            for unit in &units {
                any |= resource::import(unit, doc, file, maps, draft);
            }
            if any {
                resource::rest(&units, doc, file, draft);
            } else {
                without_engine(tree, kind, !units.is_empty(), draft);
            }
        }
    }
}

/// A resource that runs no engine: one line in the report.
fn without_engine(tree: Tree<'_>, kind: &str, has_pods: bool, draft: &mut Draft) {
    let name = (tree.node.at(&["metadata", "name"])).and_then(Node::text);
    let line = tree.node.entry("kind").map_or(tree.node.line, |e| e.line);
    let origin = Origin::new(Place::new(tree.file, line), kind, name.unwrap_or(""));
    if IDLE_KINDS.contains(&kind) {
        draft.fate(&origin, Fate::NoEffect, "");
    } else if has_pods {
        nothing(tree, draft);
    } else {
        let origin = Origin {
            key: "kind".to_owned(),
            raw: kind.to_owned(),
            ..origin
        };
        let why = "a resource without a pod template that the importer does not know";
        draft.fate(&origin, Fate::NotUnderstood, why);
    }
}
