//! Pools of nodes: Karpenter's NodePool, by karpenter.sh (v1). What machines it may start is what serves, where the workload does not say.

use super::draft::{Draft, Origin};
use super::pod::names_instance;
use super::tree::{Tree, sweep};
use crate::keys::Read::Text;
use crate::keys::{Table, not_modelled, says};
use crate::place::Place;
use crate::text::yaml::Node;

/// Karpenter's NodePool.
pub const NODE_POOL: Table = Table {
    kind: "nodepool",
    title: "Karpenter's NodePool",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.template.spec.requirements[].key",
            "the labels that name an instance type or an accelerator",
            Text,
        ),
        says("spec.template.spec.requirements[].operator", "In", Text),
        says(
            "spec.template.spec.requirements[].values[]",
            "`hardware.instance` or `hardware.accelerator`, where no workload says them: the first that the catalog knows",
            Text,
        ),
        not_modelled(
            "spec.limits*",
            "set [autoscaler.karpenter] for nodes that come and go",
        ),
        not_modelled(
            "spec.disruption*",
            "set [autoscaler.karpenter] for nodes that come and go",
        ),
    ],
    idle: &[
        "apiVersion",
        "metadata*",
        "status*",
        "spec.weight",
        "spec.template.metadata*",
        "spec.template.spec.*",
    ],
    idle_flags: &[],
};

/// Imports a NodePool.
pub fn pool(tree: Tree<'_>, draft: &mut Draft) {
    let list = tree.node.at(&["spec", "template", "spec", "requirements"]);
    for item in list.map_or(&[][..], Node::items) {
        let text = |key: &str| item.get(key).and_then(|n| n.text());
        let (Some(key), Some("In")) = (text("key"), text("operator")) else {
            continue;
        };
        let values = item.get("values").map_or(&[][..], |v| v.items());
        let values: Vec<String> = (values.iter())
            .filter_map(|v| v.text().map(str::to_owned))
            .collect();
        // An instance type says more than its accelerator.
        let better = draft
            .facts
            .node_pool
            .as_ref()
            .is_none_or(|(label, ..)| names_instance(label) == Some(false));
        if names_instance(key).is_some() && better && !values.is_empty() {
            let origin = Origin::new(Place::new(tree.file, item.line), key, values.join(", "));
            draft.facts.node_pool = Some((key.to_owned(), values, origin));
        }
    }
    sweep(tree, &[(String::new(), &NODE_POOL)], draft);
}
