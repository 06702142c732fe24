//! Any resource with a pod template: which pods it keeps, how many replicas of them, and how many pods hold one replica.
//!
//! A pod's spec is told by its list of `containers`, wherever it stands. What multiplies it is said by the keys around it: `replicas` of Deployments,
//! Rollouts, roles of sets; `size` of LeaderWorkerSet; `podGroupSize` of AIBrix; `slices` of DisaggregatedSet; worker groups of Ray.

use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Mode, Origin};
use super::pod::{POD, Runs, asked, pod};
use super::tree::{Tree, join, sweep};
use super::workload::{ConfigMaps, WORKLOAD};
use super::{dynamo, kserve, kubeai, rayserve};
use crate::place::{Fault, Place};
use crate::text::yaml::Node;

/// Most pod templates of a document.
const MAX_UNITS: usize = 64;
/// llm-d's label of pods that prefill or decode alone.
const ROLE_LABEL: &str = "llm-d.ai/role";
/// Keys below which no pod of the resource itself stands.
const ELSEWHERE: [&str; 7] = [
    "status",
    "metadata",
    "initContainers",
    "volumes",
    "volumeClaimTemplates",
    "workerGroupSpecs",
    "router",
];

/// A part of a resource that may run an engine.
#[derive(Clone, Debug)]
pub enum Unit<'a> {
    /// The resource as a whole, whose kind has a reader of its own.
    Whole,
    /// One of its pod templates.
    Pod(Template<'a>),
}

/// A pod template.
#[derive(Clone, Debug)]
pub struct Template<'a> {
    /// The pod's spec.
    node: &'a Node,
    /// Its way of keys.
    prefix: String,
    /// The name of the role or group that it belongs to, where the resource has several.
    name: Option<&'a str>,
    /// What it stands in, from the resource down, each with its way of keys.
    around: Vec<(&'a Node, String)>,
}

/// Kinds with a reader of their own.
const WHOLE: [&str; 6] = [
    "InferenceService",
    "LLMInferenceService",
    "DynamoGraphDeployment",
    "Model",
    "RayService",
    "NIMService",
];

/// The parts of a resource that may run an engine.
pub fn units(doc: &Node) -> Vec<Unit<'_>> {
    let kind = doc.get("kind").and_then(|k| k.text()).unwrap_or("");
    if WHOLE.contains(&kind) {
        return vec![Unit::Whole];
    }
    // Parts of KServe that other resources name, and agents of nodes.
    if matches!(
        kind,
        "ServingRuntime" | "ClusterServingRuntime" | "DaemonSet" | "ConfigMap" | "NodePool"
    ) {
        return Vec::new();
    }
    pods(doc).into_iter().map(Unit::Pod).collect()
}

/// The pod templates of a resource.
pub fn pods(doc: &Node) -> Vec<Template<'_>> {
    let mut found = Vec::new();
    walk(doc, "", None, &mut Vec::new(), &mut found);
    found
}

/// Imports a pod template; whether it runs an engine or a load.
pub fn import_pod(
    template: &Template<'_>,
    file: &Arc<str>,
    maps: &ConfigMaps,
    draft: &mut Draft,
) -> bool {
    template.import(file, maps, draft) != Runs::Nothing
}

fn walk<'a>(
    node: &'a Node,
    path: &str,
    name: Option<&'a str>,
    around: &mut Vec<(&'a Node, String)>,
    out: &mut Vec<Template<'a>>,
) {
    if out.len() >= MAX_UNITS {
        return;
    }
    let containers = node.get("containers").map_or(&[][..], |c| c.items());
    if !containers.is_empty() && containers.iter().all(|c| c.is_map()) {
        out.push(Template {
            node,
            prefix: path.to_owned(),
            name,
            around: around.clone(),
        });
        return;
    }
    around.push((node, path.to_owned()));
    let leads = node.at(&["leaderTemplate", "spec", "containers"]).is_some();
    for entry in node.entries() {
        // Workers behind a leader of its own run what the leader tells them.
        if ELSEWHERE.contains(&entry.key.as_str()) || (leads && entry.key == "workerTemplate") {
            continue;
        }
        let path = join(path, &entry.key);
        if entry.value.is_map() {
            walk(&entry.value, &path, name, around, out);
        }
        for item in entry.value.items().iter().filter(|i| i.is_map()) {
            let own = item.get("name").and_then(|n| n.text());
            walk(item, &format!("{path}[]"), own.or(name), around, out);
        }
    }
    around.pop();
}

impl<'a> Template<'a> {
    /// The name of its role, where the resource has several.
    pub fn name(&self) -> Option<&'a str> {
        self.name
    }

    /// Its own label of a role.
    fn label(&self, file: &Arc<str>) -> Option<(String, Origin)> {
        let (node, path) = self.around.last()?;
        let tree = Tree { node, file };
        tree.text(path, &["metadata", "labels", ROLE_LABEL])
    }

    /// Imports the pod and what multiplies it.
    fn import(&self, file: &Arc<str>, maps: &ConfigMaps, draft: &mut Draft) -> Runs {
        let size = self.size(file, draft);
        let before = std::mem::take(&mut draft.facts.given);
        if let Some((n, _)) = &size {
            draft.facts.given = vec![
                ("LWS_GROUP_SIZE".to_owned(), n.to_string()),
                ("LWS_WORKER_INDEX".to_owned(), "0".to_owned()),
            ];
        }
        let node = self.node;
        let runs = pod(Tree { node, file }, &self.prefix, maps, draft);
        draft.facts.given = before;
        if runs != Runs::Engine {
            return runs;
        }
        for (node, path) in &self.around {
            let tree = Tree { node, file };
            for key in ["replicas", "slices"] {
                if let Some(found) = tree.whole(path, &[key], draft) {
                    draft.facts.replicas.push(found);
                }
            }
            min_scale(tree, path, draft);
            ray_workers(tree, path, draft);
        }
        self.rollout(file, draft);
        if let Some(found) = size {
            draft.facts.group_size = Some(found);
            draft.facts.is_grouped = true;
        }
        runs
    }

    /// What the pod and what keeps it say of starts, ends and rollouts.
    fn rollout(&self, file: &Arc<str>, draft: &mut Draft) {
        let mut found: Vec<(&'static str, String, Origin)> = Vec::new();
        for (node, path) in &self.around {
            let tree = Tree { node, file };
            let name = tree.text(path, &["metadata", "name"]);
            found.extend(
                name.filter(|_| path.is_empty())
                    .map(|(n, o)| ("name", n, o)),
            );
            for key in ["maxSurge", "maxUnavailable"] {
                for way in [
                    ["strategy", "rollingUpdate"],
                    ["rolloutStrategy", "rollingUpdateConfiguration"],
                ] {
                    let said = tree.text(path, &[way[0], way[1], key]);
                    found.extend(said.map(|(text, origin)| (key, text, origin)));
                }
            }
        }
        let pod = Tree {
            node: self.node,
            file,
        };
        let grace = "terminationGracePeriodSeconds";
        found.extend(pod.text(&self.prefix, &[grace]).map(|(n, o)| (grace, n, o)));
        let containers = self.node.get("containers").map_or(&[][..], |c| c.items());
        let probed = |c: &&Rc<Node>| c.get("readinessProbe").is_some();
        let engine = containers.iter().filter(probed).max_by_key(|c| asked(c));
        for key in ["initialDelaySeconds", "periodSeconds"] {
            let said = engine.and_then(|node| {
                let prefix = format!("{}.containers[]", self.prefix);
                Tree { node, file }.text(&prefix, &["readinessProbe", key])
            });
            found.extend(said.map(|(text, origin)| (key, text, origin)));
        }
        for (key, text, origin) in found {
            let is_number = key.ends_with("Seconds");
            let value = match text.parse::<u32>() {
                Ok(n) if is_number => toml::Value::from(n),
                Err(_) if is_number => continue,
                _ => toml::Value::from(text),
            };
            draft.later_told(&origin);
            draft.facts.pod.push((key, value, origin));
        }
    }

    /// Pods of one replica, by the keys around the template.
    fn size(&self, file: &Arc<str>, draft: &mut Draft) -> Option<(i64, Origin)> {
        (self.around.iter()).rev().find_map(|(node, path)| {
            let tree = Tree { node, file };
            let way = match path.ends_with("leaderWorkerTemplate") {
                true => &["size"][..],
                false if node.get("podGroupSize").is_some() => &["podGroupSize"],
                false => &["multinode", "nodeCount"],
            };
            tree.whole(path, way, draft)
        })
    }
}

/// Knative's fewest replicas.
fn min_scale(tree: Tree<'_>, path: &str, draft: &mut Draft) {
    for key in ["min-scale", "minScale"] {
        let key = format!("autoscaling.knative.dev/{key}");
        if let Some((n, origin)) = tree.whole(path, &["metadata", "annotations", &key], draft) {
            draft.facts.replicas.push((n.max(1), origin));
        }
    }
}

/// The devices of Ray's worker groups beside a head that runs the engine: one replica has them all.
fn ray_workers(tree: Tree<'_>, path: &str, draft: &mut Draft) {
    let groups = tree
        .node
        .get("workerGroupSpecs")
        .map_or(&[][..], |g| g.items());
    let prefix = join(path, "workerGroupSpecs[]");
    for group in groups {
        let group = Tree {
            node: group,
            file: tree.file,
        };
        let count = ["replicas", "minReplicas"]
            .iter()
            .find_map(|key| group.whole(&prefix, &[key], draft));
        let pods = count.as_ref().map_or(1, |(n, _)| *n);
        let devices: i64 = (group.node.at(&["template", "spec", "containers"]))
            .map_or(&[][..], Node::items)
            .iter()
            .map(|node| asked(node))
            .fold(0, i64::saturating_add);
        let more = devices.saturating_mul(pods);
        draft.facts.more_devices = draft.facts.more_devices.saturating_add(more);
        draft.facts.more_pods = draft.facts.more_pods.saturating_add(pods);
        if let Some((_, origin)) = count {
            draft.used(&origin, format!("{more} further devices of the replica"));
        }
    }
}

/// What a part of a resource does of a request, by llm-d's label on its pods, by what its engine was told, or by its name where its engine hands KV on.
/// `tried` is the part as it was imported by itself.
pub fn role(
    unit: &Unit<'_>,
    doc: &Node,
    file: &Arc<str>,
    tried: &Draft,
) -> Option<(&'static str, Result<Origin, String>)> {
    let Unit::Pod(template) = unit else {
        return None;
    };
    let known = |word: &str| match word {
        "prefill" => Some("prefill"),
        "decode" => Some("decode"),
        _ => None,
    };
    if let Some((value, origin)) = template.label(file)
        && let Some(role) = known(&value)
    {
        return Some((role, Ok(origin)));
    }
    let mode = tried.facts.mode.as_ref();
    if let Some((Mode::Prefill, origin)) = mode {
        return Some(("prefill", Ok(origin.clone())));
    }
    if let Some((Mode::Decode, origin)) = mode {
        return Some(("decode", Ok(origin.clone())));
    }
    let kind = doc.get("kind").and_then(|k| k.text()).unwrap_or("");
    if mode.is_none() && kind != "DisaggregatedSet" {
        return None;
    }
    let own = doc
        .at(&["metadata", "name"])
        .and_then(Node::text)
        .unwrap_or("");
    let name = template.name.unwrap_or(own);
    let by_name = name.split(['-', '_', '.']).find_map(known)?;
    if kind == "DisaggregatedSet" {
        let origin = Origin::new(Place::new(file, template.node.line), "name", name);
        return Some((by_name, Ok(origin)));
    }
    let why = format!(
        "its name says so, and its connector's kv_role is either; label its pods {ROLE_LABEL} to be sure"
    );
    Some((by_name, Err(why)))
}

/// Imports a part of a resource; whether it runs an engine or a load.
pub fn import(
    unit: &Unit<'_>,
    doc: &Rc<Node>,
    file: &Arc<str>,
    maps: &ConfigMaps,
    draft: &mut Draft,
) -> bool {
    let tree = Tree { node: doc, file };
    let Unit::Pod(template) = unit else {
        match doc.get("kind").and_then(|k| k.text()).unwrap_or("") {
            "InferenceService" => kserve::inference_service(tree, maps, draft),
            "LLMInferenceService" => kserve::llm_inference_service(tree, maps, draft),
            "Model" => kubeai::model(tree, draft),
            "NIMService" => kubeai::nim_service(tree, maps, draft),
            "RayService" => rayserve::service(tree, maps, draft),
            _ => dynamo::import(tree, maps, draft),
        }
        return true;
    };
    import_pod(template, file, maps, draft)
}

/// Reports what is left of a resource whose parts were imported.
pub fn rest(units: &[Unit<'_>], doc: &Node, file: &Arc<str>, draft: &mut Draft) {
    // Readers of whole resources have tables of their own.
    if units.iter().any(|u| matches!(u, Unit::Whole)) {
        return;
    }
    let mut tables: Vec<(String, &crate::keys::Table)> = vec![(String::new(), &WORKLOAD)];
    for unit in units {
        if let Unit::Pod(template) = unit {
            tables.push((format!("{}.", template.prefix), &POD));
        }
    }
    sweep(Tree { node: doc, file }, &tables, draft);
}

/// What is wrong with a resource of more parts than are read.
pub fn too_many(units: &[Unit<'_>], doc: &Node, file: &Arc<str>) -> Option<Fault> {
    let message = format!("more than {} pod templates", MAX_UNITS - 1);
    (units.len() >= MAX_UNITS).then(|| Fault::new(Place::new(file, doc.line), "kind", message))
}
