//! NVIDIA Dynamo's graph deployments, by ai-dynamo/dynamo `examples/backends/vllm/deploy`.

use super::draft::{Draft, Origin};
use super::pod::{POD, Runs, placement, pod, process_of};
use super::program::{self, Process};
use super::tree::{Tree, join, sweep};
use super::vllm::is_prefill;
use super::workload::{ConfigMaps, MAX_WORDS, WORKLOAD, nothing};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, says};
use crate::place::{Place, shown};
use crate::text::shell::Word;
use crate::text::yaml::Node;

/// NVIDIA Dynamo's graph.
pub const DYNAMO: Table = Table {
    kind: "dynamo",
    title: "NVIDIA Dynamo's DynamoGraphDeployment with workers of vLLM, SGLang or TensorRT-LLM; a service's name stands in place of `*`",
    keys: &[
        says(
            "replicas",
            "`layout.replicas` of the worker; `pool.replicas` where prefill and decode are apart",
            Whole,
        ),
        says(
            "subComponentType",
            "prefill: the worker prefills alone, in a pool of its own, and the other decodes",
            Text,
        ),
        says("multinode.nodeCount", "pods that hold one replica", Whole),
        says("resources.limits.gpu", "devices of a pod", Whole),
        says("resources.requests.gpu", "the same", Whole),
        says("extraPodSpec.mainContainer.image", "the runtime", Text),
        says(
            "extraPodSpec.mainContainer.command[]",
            "the worker's program",
            Text,
        ),
        says(
            "extraPodSpec.mainContainer.args[]",
            "vLLM's arguments",
            Text,
        ),
        says(
            "extraPodSpec.nodeSelector*",
            "the machine, as of a pod",
            Text,
        ),
        says("envs[].name", "DYN_ROUTER_MODE", Text),
        says(
            "envs[].value",
            "`router.policy` = prefix_aware where it is kv",
            Text,
        ),
    ],
    idle: &[
        "componentType",
        "dynamoNamespace",
        "envFromSecret",
        "extraPodSpec.*",
        "livenessProbe*",
        "readinessProbe*",
        "resources.*",
        "pvc*",
        "sharedMemory*",
        "volumeMounts*",
        "labels*",
        "annotations*",
    ],
    idle_flags: &[],
};

/// Components of a graph (v1beta1), whose pods are written as Kubernetes writes them.
pub const COMPONENT: Table = Table {
    kind: "dynamo",
    title: "components of a DynamoGraphDeployment (v1beta1); below `podTemplate.spec` as a pod",
    keys: &[
        says("replicas", "`layout.replicas` of the worker", Whole),
        says("multinode.nodeCount", "pods that hold one replica", Whole),
    ],
    idle: &[
        "name",
        "type",
        "subComponentType",
        "podTemplate.metadata*",
        "sharedMemory*",
        "scalingAdapter*",
        "labels*",
        "annotations*",
    ],
    idle_flags: &[],
};

/// How the front end chooses a worker.
fn router_mode(item: &Node, file: &std::sync::Arc<str>, draft: &mut Draft) {
    let text = |key: &str| item.get(key).and_then(|n| n.text());
    let (Some("DYN_ROUTER_MODE"), Some(mode)) = (text("name"), text("value")) else {
        return;
    };
    let origin = Origin::new(Place::new(file, item.line), "DYN_ROUTER_MODE", mode);
    match mode {
        "kv" => draft.set("router.policy", "prefix_aware", &origin),
        "round-robin" => draft.set("router.policy", "round_robin", &origin),
        "random" => draft.set("router.policy", "random", &origin),
        _ => draft.fault(origin.fault(format!(
            "must be kv, round-robin or random, got `{}`",
            shown(mode)
        ))),
    }
}

/// Whether a component or service prefills alone.
fn prefills(part: &Node, words: &[Word]) -> bool {
    let is = |key: &str| part.get(key).and_then(|k| k.text()) == Some("prefill");
    is("type") || is("subComponentType") || is("componentType") || is_prefill(words)
}

/// The words that the containers of a pod start with.
fn words(spec: Option<&Node>) -> Vec<Word> {
    let containers = spec.and_then(|s| s.get("containers"));
    let lists = (containers.map_or(&[][..], |c| c.items()).iter())
        .flat_map(|c| ["command", "args"].map(|key| c.get(key)));
    let items = lists.flatten().flat_map(|l| l.items());
    items
        .take(MAX_WORDS)
        .filter_map(|w| Some((w.text()?.to_owned(), w.line)))
        .map(|(text, line)| Word { text, line })
        .collect()
}

/// Pods that hold one replica.
fn nodes(part: Tree<'_>, prefix: &str, draft: &mut Draft) {
    if let Some(found) = part.whole(prefix, &["multinode", "nodeCount"], draft) {
        draft.facts.group_size = Some(found);
        draft.facts.is_grouped = true;
    }
}

/// Imports the components of a graph.
fn components(tree: Tree<'_>, list: &Node, maps: &ConfigMaps, draft: &mut Draft) {
    let mut any = false;
    let prefix = "spec.components[].podTemplate.spec";
    let is_apart = list
        .items()
        .iter()
        .any(|c| prefills(c, &words(c.at(&["podTemplate", "spec"]))));
    draft.facts.is_apart |= is_apart;
    for component in list.items() {
        let Some(spec) = component.at(&["podTemplate", "spec"]) else {
            continue;
        };
        let kind = component.get("type").or(component.get("componentType"));
        let serves = !matches!(
            kind.and_then(|k| k.text()),
            Some("frontend" | "planner" | "epp")
        );
        let containers = spec.get("containers").map_or(&[][..], |c| c.items());
        for item in containers
            .iter()
            .flat_map(|c| c.get("env").map_or(&[][..], |e| e.items()))
        {
            router_mode(item, tree.file, draft);
        }
        // Front ends run the same image as workers, and no engine.
        if !serves {
            continue;
        }
        let at = |node| Tree {
            node,
            file: tree.file,
        };
        let read = |draft: &mut Draft| {
            let is_engine = pod(at(spec), prefix, maps, draft) == Runs::Engine;
            if is_engine
                && let Some(found) = at(component).whole("spec.components[]", &["replicas"], draft)
            {
                draft.facts.replicas.push(found);
            }
            nodes(at(component), "spec.components[]", draft);
            is_engine
        };
        let is_engine = if prefills(component, &words(Some(spec))) {
            draft.prefill(read)
        } else {
            read(draft)
        };
        any |= is_engine;
    }
    if !any {
        return nothing(tree, draft);
    }
    let tables: [(String, &Table); 3] = [
        (format!("{prefix}."), &POD),
        ("spec.components[].".to_owned(), &COMPONENT),
        (String::new(), &WORKLOAD),
    ];
    sweep(tree, &tables, draft);
}

/// Imports a worker; whether it is one.
fn worker(service: Tree<'_>, prefix: &str, process: &Process, draft: &mut Draft) -> bool {
    if !program::run(process, service.file, draft, 0) {
        return false;
    }
    if let Some(found) = service.whole(prefix, &["replicas"], draft) {
        draft.facts.replicas.push(found);
    }
    nodes(service, prefix, draft);
    if let Some(found) = service.whole(prefix, &["resources", "limits", "gpu"], draft) {
        draft.facts.pod_devices = Some(found);
    }
    if let Some(node) = service.node.get("extraPodSpec") {
        let file = service.file;
        placement(
            Tree { node, file },
            &format!("{prefix}.extraPodSpec"),
            draft,
        );
    }
    true
}

/// Imports a graph.
pub fn import(tree: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) {
    if let Some(list) = tree.node.at(&["spec", "components"]) {
        return components(tree, list, maps, draft);
    }
    let mut any = false;
    let services = tree.node.at(&["spec", "services"]);
    let all = services.map_or(&[][..], Node::entries);
    draft.facts.is_apart |= all.iter().any(|e| {
        let container = e.value.at(&["extraPodSpec", "mainContainer"]);
        let process = container.map(|node| {
            process_of(
                Tree {
                    node,
                    file: tree.file,
                },
                maps,
                draft,
            )
        });
        prefills(&e.value, &process.map_or_else(Vec::new, |p| p.words))
    });
    for entry in all {
        let service = Tree {
            node: &entry.value,
            file: tree.file,
        };
        let prefix = format!("spec.services.{}", entry.key);
        for item in entry.value.get("envs").map_or(&[][..], |e| e.items()) {
            router_mode(item, tree.file, draft);
        }
        let Some(container) = entry.value.at(&["extraPodSpec", "mainContainer"]) else {
            continue;
        };
        let container = Tree {
            node: container,
            file: tree.file,
        };
        let process = process_of(container, maps, draft);
        if process.words.is_empty() {
            continue;
        }
        let read = |draft: &mut Draft| worker(service, &prefix, &process, draft);
        let found = if prefills(&entry.value, &process.words) {
            draft.prefill(read)
        } else {
            read(draft)
        };
        any |= found;
    }
    if !any {
        return nothing(tree, draft);
    }
    let mut tables: Vec<(String, &Table)> = all
        .iter()
        .map(|e| (format!("{}.", join("spec.services", &e.key)), &DYNAMO))
        .collect();
    tables.push((String::new(), &WORKLOAD));
    sweep(tree, &tables, draft);
}
