//! SkyPilot's tasks and services: the machine they ask for, and the script that they run.
//!
//! Fields: docs.skypilot.co, "Task YAML" and "Service YAML".

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::program;
use super::tree::{Tree, sweep};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::{Fault, Place};
use crate::text::shell;
use crate::text::yaml::Node;

/// A task.
pub const TABLE: Table = Table {
    kind: "skypilot",
    title: "SkyPilot's tasks and services",
    keys: &[
        says("run", "the engine's command, as of a script", Text),
        says("setup", "the engine's release, by `pip install`", Text),
        says("envs.*", "variables", Text),
        says("secrets.*", "variables", Text),
        says(
            "resources.accelerators*",
            "`hardware.accelerator` and devices: the first that the catalog knows",
            Text,
        ),
        says("resources.any_of[].accelerators*", "the same", Text),
        says("resources.ordered[].accelerators*", "the same", Text),
        says("resources.instance_type", "`hardware.instance`", Text),
        says("service.replicas", "`layout.replicas`", Whole),
        says(
            "service.replica_policy.min_replicas",
            "`layout.replicas`",
            Whole,
        ),
        says("num_nodes", "machines of a replica", Whole),
        not_modelled(
            "service.replica_policy.*",
            "SkyServe's autoscaler is not simulated: replicas stay at their minimum",
        ),
        says(
            "service.load_balancing_policy",
            "`router.policy`: round_robin or least_load",
            Text,
        ),
        not_modelled(
            "resources.use_spot",
            "set [[fault]] for instances that are taken back",
        ),
    ],
    idle: &[
        "name",
        "workdir",
        "file_mounts*",
        "service.*",
        "resources.*",
        "config*",
        "experimental*",
        "volumes*",
        "envs",
        "secrets",
    ],
    idle_flags: &[],
};

/// Imports a task.
pub fn import(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for section in ["envs", "secrets"] {
        for entry in doc.get(section).map_or(&[][..], |e| e.entries()) {
            if let Some(value) = entry.value.text() {
                known.insert(entry.key.clone(), value.to_owned());
            }
        }
    }
    let devices = machine(tree, draft);
    let nodes = tree.whole("", &["num_nodes"], draft);
    let per_node = devices.unwrap_or(1).to_string();
    known.insert("SKYPILOT_NUM_GPUS_PER_NODE".to_owned(), per_node);
    known.insert("SKYPILOT_NODE_RANK".to_owned(), "0".to_owned());
    let count = nodes.as_ref().map_or(1, |(n, _)| *n).to_string();
    known.insert("SKYPILOT_NUM_NODES".to_owned(), count);
    let mut any = 0;
    for key in ["setup", "run"] {
        let Some(found) = tree.find("", &[key]) else {
            continue;
        };
        let line = found.node.line;
        match shell::commands(found.node.text().unwrap_or(""), line, &known) {
            Ok(commands) => any += program::script_of(&commands, file, draft),
            Err(wrong) => draft.fault(Fault::new(Place::new(file, wrong.line), key, wrong.message)),
        }
    }
    if any == 0 {
        let line = doc.entry("run").map_or(doc.line, |e| e.line);
        let message = "none of its commands starts an engine or a load generator that is known";
        draft.fault(Fault::new(Place::new(file, line), "run", message));
    }
    if let Some((n, origin)) = nodes.filter(|(n, _)| *n > 1) {
        draft.facts.group_size = Some((n, origin));
        draft.facts.is_grouped = true;
    }
    let replicas = tree
        .whole("", &["service", "replicas"], draft)
        .or_else(|| tree.whole("", &["service", "replica_policy", "min_replicas"], draft));
    if let Some((n, origin)) = replicas {
        draft.facts.replicas.push((n.max(1), origin));
    }
    if let Some((policy, origin)) = tree.text("", &["service", "load_balancing_policy"]) {
        let policy = match policy.as_str() {
            "least_load" | "instance_aware_least_load" => "least_outstanding",
            _ => "round_robin",
        };
        draft.set("router.policy", policy, &origin);
    }
    sweep(tree, &[(String::new(), &TABLE)], draft);
}

/// The machine that the task asks for; its devices.
fn machine(tree: Tree<'_>, draft: &mut Draft) -> Option<i64> {
    if let Some((name, origin)) = tree.text("", &["resources", "instance_type"]) {
        draft.set("hardware.instance", name, &origin);
    }
    let resources = tree.node.get("resources")?;
    let lists = ["any_of", "ordered"].map(|key| resources.get(key));
    let choices = lists.into_iter().flatten().flat_map(|l| l.items());
    let mut all: Vec<(String, i64, u32)> = Vec::new();
    for part in std::iter::once(resources).chain(choices) {
        let Some(entry) = part.entry("accelerators") else {
            continue;
        };
        let mut add = |text: &str, count: Option<&str>, line| {
            let (name, own) = text.split_once(':').unwrap_or((text, "1"));
            let n: i64 = count.unwrap_or(own).parse().unwrap_or(1);
            let n = n.clamp(1, 1024);
            all.push((name.to_owned(), n, line));
        };
        if let Some(text) = entry.value.text() {
            add(text, None, entry.line);
        }
        for item in entry.value.items() {
            add(item.text().unwrap_or(""), None, item.line);
        }
        for own in entry.value.entries() {
            add(&own.key, own.value.text(), own.line);
        }
    }
    let (_, devices, line) = all.first().cloned()?;
    let names: Vec<String> = all.into_iter().map(|(name, ..)| name).collect();
    let place = Place::new(tree.file, line);
    let raw = names.join(", ");
    let origin = Origin::new(place, "resources.accelerators", raw);
    draft.facts.pod_devices = Some((devices, origin.clone()));
    draft.facts.node_pool = Some((super::pod::PRODUCT.to_owned(), names, origin));
    Some(devices)
}
