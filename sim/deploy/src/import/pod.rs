//! The pod of a workload: its containers, what they run, the devices they ask for, and where it goes.
//!
//! Fields: the API reference of kubernetes.io (core/v1).

use super::draft::{Draft, Origin};
use super::program::{self, Process};
use super::tree::{Tree, join};
use super::workload::{ConfigMaps, MAX_WORDS};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::{Fault, Place, shown};
use crate::text::shell::Word;
use crate::text::yaml::Node;

/// A pod.
pub const POD: Table = Table {
    kind: "pod",
    title: "a pod, wherever its template stands",
    keys: &[
        says(
            "containers[].image",
            "the engine, and its release by the tag",
            Text,
        ),
        says(
            "containers[].command[]",
            "the engine's or load generator's command",
            Text,
        ),
        says(
            "containers[].command",
            "the engine's or load generator's command",
            Text,
        ),
        says("containers[].args[]", "its arguments", Text),
        says("containers[].args", "its arguments", Text),
        says(
            "containers[].env[].name",
            "variables, of which TGI's are its arguments",
            Text,
        ),
        says("containers[].env[].value", "their values", Text),
        says(
            "containers[].envFrom[].configMapRef.name",
            "a ConfigMap of the same file",
            Text,
        ),
        says(
            "containers[].env[].valueFrom.configMapKeyRef.name",
            "a ConfigMap of the same file",
            Text,
        ),
        says(
            "containers[].env[].valueFrom.configMapKeyRef.key",
            "its key",
            Text,
        ),
        says(
            "containers[].resources.limits[\"nvidia.com/gpu\"]",
            "devices of a pod: `layout.tp` of TGI, a check for others",
            Whole,
        ),
        says(
            "containers[].resources.requests[\"nvidia.com/gpu\"]",
            "the same",
            Whole,
        ),
        says(
            "containers[].resources.limits[\"nvidia.com/mig-3g.20gb\"]",
            "`hardware.mig`, and devices of a pod; so with every profile, and among requests",
            Whole,
        ),
        says(
            "containers[].resources.limits[\"amd.com/gpu\"]",
            "devices of a pod",
            Whole,
        ),
        says(
            "containers[].resources.requests[\"amd.com/gpu\"]",
            "the same",
            Whole,
        ),
        says(
            "containers[].resources.limits[\"aws.amazon.com/neuron\"]",
            "devices of a pod",
            Whole,
        ),
        says(
            "containers[].resources.requests[\"aws.amazon.com/neuron\"]",
            "the same",
            Whole,
        ),
        says(
            "terminationGracePeriodSeconds",
            "`cluster.pod.terminationGracePeriodSeconds`, where an autoscaler makes a [cluster]",
            Whole,
        ),
        says(
            "containers[].readinessProbe.initialDelaySeconds",
            "`cluster.pod.initialDelaySeconds`, likewise",
            Whole,
        ),
        says(
            "containers[].readinessProbe.periodSeconds",
            "`cluster.pod.periodSeconds`, likewise",
            Whole,
        ),
        says(
            "nodeSelector[\"node.kubernetes.io/instance-type\"]",
            "`hardware.instance`",
            Text,
        ),
        says(
            "nodeSelector[\"beta.kubernetes.io/instance-type\"]",
            "`hardware.instance`",
            Text,
        ),
        says(
            "nodeSelector[\"nvidia.com/gpu.product\"]",
            "`hardware.accelerator`",
            Text,
        ),
        says(
            "nodeSelector[\"cloud.google.com/gke-accelerator\"]",
            "`hardware.accelerator`",
            Text,
        ),
        says(
            "nodeSelector[\"karpenter.k8s.aws/instance-gpu-name\"]",
            "`hardware.accelerator`; so with eks.amazonaws.com/instance-gpu-name",
            Text,
        ),
        says(
            "nodeSelector[\"gpu.nvidia.com/model\"]",
            "`hardware.accelerator`; so with gpu.nvidia.com/class and skypilot.co/accelerator",
            Text,
        ),
        says(
            "containers[].resources.limits[\"aws.amazon.com/neuroncore\"]",
            "cores of Neuron chips, each a rank",
            Whole,
        ),
        says(
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[].key",
            "the same labels as in nodeSelector",
            Text,
        ),
        says(
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[].operator",
            "In, with one value or several, of which the first that the catalog knows counts",
            Text,
        ),
        says(
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[].values[]",
            "the label's value",
            Text,
        ),
        not_modelled(
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields[].key",
            "where pods go is not simulated",
        ),
    ],
    idle: &[
        "containers[].name",
        "containers[].imagePullPolicy",
        "containers[].ports*",
        "containers[].volumeMounts*",
        "containers[].livenessProbe*",
        "containers[].readinessProbe*",
        "containers[].startupProbe*",
        "containers[].resources.*",
        "containers[].securityContext*",
        "containers[].lifecycle*",
        "containers[].workingDir",
        "containers[].env[].valueFrom.*",
        "containers[].envFrom[].secretRef*",
        "containers[].envFrom[].prefix",
        "containers[].tty",
        "containers[].stdin",
        "containers[].terminationMessage*",
        "initContainers*",
        "volumes*",
        "tolerations*",
        "serviceAccount*",
        "automountServiceAccountToken",
        "imagePullSecrets*",
        "restartPolicy",
        "securityContext*",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "dnsPolicy",
        "nodeSelector*",
        "schedulerName",
        "priorityClassName",
        "runtimeClassName",
        "topologySpreadConstraints*",
        "affinity.podAffinity*",
        "affinity.podAntiAffinity*",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution*",
        "enableServiceLinks",
        "shareProcessNamespace",
        "resourceClaims*",
        "subdomain",
        "hostname",
        "activeDeadlineSeconds",
    ],
    idle_flags: &[],
};

/// What a pod runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// A serving engine.
    Engine,
    /// A load generator.
    Load,
    /// Something else.
    Nothing,
}

/// Labels of nodes that name the instance type.
const INSTANCE_LABELS: [&str; 2] = [
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];
/// Labels of nodes that name the accelerator: of NVIDIA's and AMD's operators, GKE, Karpenter, EKS, CoreWeave and SkyPilot.
/// NVIDIA's label of nodes that names the accelerator.
pub const PRODUCT: &str = "nvidia.com/gpu.product";
const PRODUCT_LABELS: [&str; 10] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-accelerator-name",
    "eks.amazonaws.com/instance-gpu-name",
    "eks.amazonaws.com/instance-accelerator-name",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "skypilot.co/accelerator",
];
/// How the resource of a MIG profile begins: `nvidia.com/mig-3g.20gb`.
const MIG: &str = "nvidia.com/mig-";

/// Resources that are devices; of `neuroncore` each is a rank.
const DEVICES: [&str; 6] = [
    "nvidia.com/gpu",
    "amd.com/gpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
    CORES,
    "gpu",
];
/// Cores of Neuron chips.
pub const CORES: &str = "aws.amazon.com/neuroncore";

/// Whether a label of nodes names an instance type (true) or an accelerator (false).
pub fn names_instance(label: &str) -> Option<bool> {
    if INSTANCE_LABELS.contains(&label) {
        return Some(true);
    }
    PRODUCT_LABELS.contains(&label).then_some(false)
}

/// Devices that a container asks for.
pub fn asked(container: &Node) -> i64 {
    let of = |kind: &str| -> Option<i64> {
        let list = container.at(&["resources", kind])?;
        let is_device = |key: &str| DEVICES.contains(&key) || key.starts_with(MIG);
        let found = list.entries().iter().find(|e| is_device(&e.key))?;
        found.value.text()?.parse().ok()
    };
    of("limits")
        .or_else(|| of("requests"))
        .unwrap_or(0)
        .clamp(0, 1 << 20)
}

/// Imports a pod's containers and where it runs.
pub fn pod(tree: Tree<'_>, prefix: &str, maps: &ConfigMaps, draft: &mut Draft) -> Runs {
    let mut runs = Runs::Nothing;
    let all = tree.node.get("containers");
    if let Some(list) = all.filter(|l| l.items().len() > MAX_CONTAINERS) {
        let place = Place::new(tree.file, list.line);
        draft.fault(Fault::new(
            place,
            "containers",
            format!("more than {MAX_CONTAINERS} containers in a pod"),
        ));
    }
    for container in tree
        .node
        .get("containers")
        .map_or(&[][..], |c| c.items())
        .iter()
        .take(MAX_CONTAINERS)
    {
        let container = Tree {
            node: container,
            file: tree.file,
        };
        let streams = draft.streams().len();
        let process = process_of(container, maps, draft);
        if !program::run(&process, tree.file, draft, 0) {
            continue;
        }
        if draft.streams().len() > streams {
            runs = Runs::Load;
            continue;
        }
        runs = Runs::Engine;
        triton_release(&process, draft);
        devices(container, &format!("{prefix}.containers[]"), draft);
    }
    if runs == Runs::Engine {
        placement(tree, prefix, draft);
    }
    runs
}

/// What the tag of a Triton image says of TensorRT-LLM's defaults.
fn triton_release(process: &Process, draft: &mut Draft) {
    let engine = draft.get("engine.kind").and_then(|k| k.as_str());
    if let (Some("trt_llm"), Some((image, place))) = (engine, &process.image)
        && let Some(old) = super::trtllm::is_before_0_13(image)
    {
        let origin = Origin::new(place.clone(), "image", image.clone());
        draft.used(
            &origin,
            if old {
                "TensorRT-LLM before 0.13"
            } else {
                "TensorRT-LLM 0.13 or later"
            },
        );
        if old {
            super::trtllm::before_0_13(draft);
        }
    }
}

/// A container's image, words and variables.
pub fn process_of(container: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) -> Process {
    let file = container.file;
    if draft.facts.mounted.is_empty() {
        let files = maps.values().flatten().map(|(_, o)| o);
        draft.facts.mounted = files.filter(|o| o.key.contains('.')).cloned().collect();
    }
    for (key, most) in [
        ("env", MAX_WORDS),
        ("envFrom", MAX_CONTAINERS),
        ("command", MAX_WORDS),
        ("args", MAX_WORDS),
    ] {
        let list = container.node.get(key);
        if let Some(list) = list.filter(|l| l.items().len() > most) {
            let place = Place::new(file, list.line);
            draft.fault(Fault::new(place, key, format!("more than {most} items")));
        }
    }
    let mut variables: Vec<(String, Origin)> = Vec::new();
    for source in container
        .node
        .get("envFrom")
        .map_or(&[][..], |e| e.items())
        .iter()
        .take(MAX_CONTAINERS)
    {
        let name = source.at(&["configMapRef", "name"]).and_then(Node::text);
        match name.map(|n| (n, maps.get(n))) {
            Some((_, Some(map))) => variables.extend(map.iter().cloned()),
            Some((name, None)) => draft.warn(format!(
                "{file}:{}: the ConfigMap {} is not among the files",
                source.line,
                shown(name)
            )),
            None => {}
        }
    }
    variables.truncate(MAX_WORDS);
    for item in container
        .node
        .get("env")
        .map_or(&[][..], |e| e.items())
        .iter()
        .take(MAX_WORDS)
    {
        let Some(name) = item.get("name").and_then(|n| n.text()) else {
            continue;
        };
        let given = item.get("value").and_then(|v| v.text()).map(str::to_owned);
        let reference = item.at(&["valueFrom", "configMapKeyRef"]);
        let referred = reference.and_then(|r| {
            let map = maps.get(r.get("name")?.text()?)?;
            let key = r.get("key")?.text()?;
            map.iter()
                .find(|(k, _)| k == key)
                .map(|(_, o)| o.raw.clone())
        });
        if let Some(value) = given.or(referred) {
            let origin = Origin::new(Place::new(file, item.line), name, value);
            variables.push((name.to_owned(), origin));
        }
    }
    let words = |key: &str| -> Vec<Word> {
        let node = container.node.get(key);
        let items = node.map_or(&[][..], |n| n.items());
        let single = node.filter(|n| n.text().is_some());
        (items.iter().chain(single))
            .take(MAX_WORDS)
            .filter_map(|w| Some((w.text()?, w.line)))
            .map(|(text, line)| Word {
                text: expanded(text, &variables),
                line,
            })
            .collect()
    };
    let command = words("command");
    let entrypoint = !command.is_empty();
    let words = command.into_iter().chain(words("args")).collect();
    let image = container
        .node
        .entry("image")
        .and_then(|e| Some((e.value.text()?.to_owned(), Place::new(file, e.line))));
    Process {
        image,
        words,
        entrypoint,
        variables,
    }
}

/// Longest word that references may grow to [bytes].
const MAX_WORD: usize = 1 << 14;
/// Most containers of a pod.
const MAX_CONTAINERS: usize = 64;

/// Kubernetes' own references, `$(NAME)`.
fn expanded(text: &str, variables: &[(String, Origin)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("$(") {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let value = from.find(')').and_then(|end| {
            let name = &from[2..end];
            let found = variables.iter().rev().find(|(n, _)| n == name)?;
            Some((found.1.raw.as_str(), end + 1))
        });
        let (value, taken) = value.unwrap_or(("$(", 2));
        out.push_str(value);
        rest = &from[taken..];
        if out.len() > MAX_WORD {
            break;
        }
    }
    out.push_str(rest);
    out
}

/// The devices that a container asks for.
pub fn devices(container: Tree<'_>, prefix: &str, draft: &mut Draft) {
    for kind in ["limits", "requests"] {
        let Some(node) = container.node.at(&["resources", kind]) else {
            continue;
        };
        let parts: Vec<String> = (node.entries().iter())
            .filter(|e| e.key.starts_with(MIG))
            .map(|e| e.key.clone())
            .collect();
        for name in DEVICES.map(str::to_owned).into_iter().chain(parts) {
            let name = name.as_str();
            if let (Some(profile), Some((_, origin))) = (
                name.strip_prefix(MIG),
                container.text(prefix, &["resources", kind, name]),
            ) && draft.get("hardware.mig").is_none()
            {
                draft.set("hardware.mig", profile, &origin);
            }
            if let Some((n, origin)) = container.whole(prefix, &["resources", kind, name], draft) {
                match draft.facts.pod_devices.clone() {
                    None => draft.facts.pod_devices = Some((n, origin)),
                    Some((other, _)) if other == n => draft.used(&origin, "the same"),
                    Some((other, from)) => {
                        let message = format!(
                            "asks for {n} devices, but {} for {other}; import one deployment at a time",
                            from.place
                        );
                        draft.fault(origin.fault(message));
                    }
                }
            }
        }
    }
}

/// Which nodes the pod runs on, by selector or required affinity.
pub fn placement(tree: Tree<'_>, prefix: &str, draft: &mut Draft) {
    let mut labels: Vec<(String, String, Origin)> = Vec::new();
    for entry in tree
        .node
        .get("nodeSelector")
        .map_or(&[][..], |s| s.entries())
    {
        if let Some(value) = entry.value.text() {
            let key = join(&join(prefix, "nodeSelector"), &entry.key);
            labels.push((
                entry.key.clone(),
                value.to_owned(),
                Origin::new(Place::new(tree.file, entry.line), key, value),
            ));
        }
    }
    let required = [
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    for term in tree.node.at(&required).map_or(&[][..], Node::items) {
        for expression in term.get("matchExpressions").map_or(&[][..], |m| m.items()) {
            let text = |key: &str| expression.get(key).and_then(|n| n.text());
            let values: Vec<&str> = expression
                .get("values")
                .map_or(&[][..], |v| v.items())
                .iter()
                .filter_map(|v| v.text())
                .collect();
            if let (Some(key), Some("In")) = (text("key"), text("operator")) {
                let origin = Origin::new(
                    Place::new(tree.file, expression.line),
                    key,
                    values.join(", "),
                );
                match values.as_slice() {
                    [value] => labels.push((key.to_owned(), (*value).to_owned(), origin)),
                    _ if names_instance(key).is_some() => {
                        let values = values.iter().map(|v| (*v).to_owned()).collect();
                        draft.facts.node_pool = Some((key.to_owned(), values, origin));
                    }
                    _ => {}
                }
            }
        }
    }
    for (label, value, origin) in labels {
        match names_instance(&label) {
            Some(true) => draft.set("hardware.instance", value, &origin),
            Some(false) => draft.facts.product = Some((value, origin)),
            None => {}
        }
    }
}
