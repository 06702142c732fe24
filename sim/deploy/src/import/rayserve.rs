//! Ray Serve's LLM applications: a configuration file (`applications:`) by itself, or as `serveConfigV2` of KubeRay's RayService.
//!
//! Fields: ray-project/ray `python/ray/llm/_internal/serve/core/configs/llm_config.py`; docs.ray.io, "Serving LLMs".

use std::rc::Rc;
use std::sync::Arc;

use super::draft::Draft;
use super::resource;
use super::tree::{Tree, sweep};
use super::workload::{ConfigMaps, WORKLOAD, nothing};
use crate::keys::Read::{Number, Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::{Fault, Place};
use crate::text::shell::Word;
use crate::text::yaml::{self, Node};

/// An application's configuration.
pub const APPLICATIONS: Table = Table {
    kind: "ray-serve",
    title: "Ray Serve's LLM applications (`applications:`, or `serveConfigV2` of a RayService)",
    keys: &[
        says(
            "args.llm_configs[].model_loading_config.model_source",
            "the model",
            Text,
        ),
        says(
            "args.llm_configs[].model_loading_config.model_id",
            "the model, where no source is there",
            Text,
        ),
        says(
            "args.llm_configs[].engine_kwargs.*",
            "vLLM's arguments",
            Text,
        ),
        says(
            "args.llm_configs[].accelerator_type",
            "`hardware.accelerator`",
            Text,
        ),
        says(
            "args.llm_configs[].deployment_config.num_replicas",
            "`layout.replicas`",
            Whole,
        ),
        says(
            "args.llm_configs[].deployment_config.autoscaling_config.min_replicas",
            "`layout.replicas`",
            Whole,
        ),
        not_modelled(
            "args.llm_configs[].deployment_config.max_ongoing_requests",
            "requests beyond it would wait in Ray's proxy",
        ),
        not_modelled(
            "args.llm_configs[].deployment_config.autoscaling_config.*",
            "Ray Serve's autoscaler is not simulated: replicas stay at their minimum",
        ),
        not_modelled(
            "args.llm_configs[].lora_config*",
            "LoRA adapters are not simulated",
        ),
        says(
            "args.llm_configs[].placement_group_config*",
            "where the ranks stand",
            Number,
        ),
    ],
    idle: &["*"],
    idle_flags: &[],
};

/// Imports a file of applications.
pub fn applications(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    if !apps(tree, draft) {
        draft.fault(Fault::new(
            Place::new(file, doc.line),
            "applications",
            "none of them has `args.llm_configs` with a model, which is how Ray Serve starts vLLM",
        ));
    }
    sweep(
        tree,
        &[
            ("applications[].".to_owned(), &APPLICATIONS),
            (String::new(), &APPLICATIONS),
        ],
        draft,
    );
}

/// Imports a RayService: its applications, or a command of its head.
pub fn service(tree: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) {
    let config = tree.find("", &["spec", "serveConfigV2"]);
    let docs = config.and_then(|found| {
        let text = found.node.text()?;
        let docs = yaml::documents(text).ok()?;
        Some((docs, found.origin))
    });
    let mut any = false;
    if let Some((docs, origin)) = docs {
        draft.used(&origin, "Ray Serve's applications");
        for doc in docs {
            // The text starts on the line below its key.
            let doc = doc.below(origin.place.line);
            any |= apps(
                Tree {
                    node: &doc,
                    file: tree.file,
                },
                draft,
            );
        }
    }
    if !any {
        for unit in resource::pods(tree.node) {
            any |= resource::import_pod(&unit, tree.file, maps, draft);
        }
    }
    match any {
        true => sweep(
            tree,
            &[(String::new(), &SERVICE), (String::new(), &WORKLOAD)],
            draft,
        ),
        false => nothing(tree, draft),
    }
}

/// What surrounds the applications.
const SERVICE: Table = Table {
    kind: "ray-serve",
    title: "",
    keys: &[
        says("kind", "what the document is", Text),
        says("spec.serveConfigV2", "", Text),
    ],
    idle: &["*"],
    idle_flags: &[],
};

/// Imports the models of applications; whether there are any.
fn apps(tree: Tree<'_>, draft: &mut Draft) -> bool {
    let mut any = false;
    for app in tree.node.get("applications").map_or(&[][..], |a| a.items()) {
        let configs = app
            .at(&["args", "llm_configs"])
            .map_or(&[][..], Node::items);
        for config in configs {
            any |= llm_config(
                Tree {
                    node: config,
                    file: tree.file,
                },
                draft,
            );
        }
    }
    any
}

fn llm_config(config: Tree<'_>, draft: &mut Draft) -> bool {
    let prefix = "applications[].args.llm_configs[]";
    let loading = "model_loading_config";
    let found = config
        .text(prefix, &[loading, "model_source"])
        .or_else(|| config.text(prefix, &[loading, "model_source", "bucket_uri"]))
        .or_else(|| config.text(prefix, &[loading, "model_id"]));
    let Some((id, origin)) = found else {
        return false;
    };
    let mut words = vec![Word {
        text: format!("--model={id}"),
        line: origin.place.line,
    }];
    let given = config.node.get("engine_kwargs");
    for entry in given.map_or(&[][..], |k| k.entries()) {
        let Some(value) = entry.value.text() else {
            continue;
        };
        let name = entry.key.replace('_', "-");
        let text = match value {
            "true" | "True" => format!("--{name}"),
            "false" | "False" => format!("--no-{name}"),
            value => format!("--{name}={value}"),
        };
        words.push(Word {
            text,
            line: entry.line,
        });
    }
    super::vllm::import(&words, config.file, None, draft);
    if let Some((product, origin)) = config.text(prefix, &["accelerator_type"]) {
        draft.facts.product = Some((product, origin));
    }
    let count = config
        .whole(prefix, &["deployment_config", "num_replicas"], draft)
        .or_else(|| {
            let way = ["deployment_config", "autoscaling_config", "min_replicas"];
            config.whole(prefix, &way, draft)
        });
    if let Some((n, origin)) = count {
        draft.facts.replicas.push((n.max(1), origin));
    }
    true
}
