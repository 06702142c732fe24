//! KServe: InferenceService (v1beta1) and LLMInferenceService (v1alpha1), by the API reference of kserve.github.io.

use super::draft::Draft;
use super::pod::{POD, Runs, devices, placement, pod, process_of};
use super::tree::{Tree, sweep};
use super::workload::{ConfigMaps, nothing, replicas};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::text::shell::Word;
use crate::text::yaml::Node;

const DISAGGREGATED: &str = "prefill and decode on separate pools are not imported";

/// KServe's InferenceService.
pub const INFERENCE_SERVICE: Table = Table {
    kind: "kserve",
    title: "KServe InferenceService (model or containers of the predictor)",
    keys: &[
        says("kind", "what the document is", Text),
        says("spec.predictor.minReplicas", "`layout.replicas`", Whole),
        says("spec.predictor.model.storageUri", "the model", Text),
        says(
            "spec.predictor.model.args[]",
            "vLLM's arguments (the Hugging Face runtime hands them on)",
            Text,
        ),
        says("spec.predictor.model.env[].name", "variables", Text),
        says("spec.predictor.model.env[].value", "their values", Text),
        says(
            "spec.predictor.model.resources.limits[\"nvidia.com/gpu\"]",
            "devices of a pod",
            Whole,
        ),
        says(
            "spec.predictor.model.resources.requests[\"nvidia.com/gpu\"]",
            "the same",
            Whole,
        ),
        says(
            "spec.predictor.model.modelFormat.name",
            "huggingface or vLLM",
            Text,
        ),
        says(
            "spec.predictor.workerSpec.tensorParallelSize",
            "`layout.tp`",
            Whole,
        ),
        says(
            "spec.predictor.workerSpec.pipelineParallelSize",
            "`layout.pp`",
            Whole,
        ),
        not_modelled(
            "spec.predictor.maxReplicas",
            "Knative's autoscaler is not simulated: replicas stay at their minimum",
        ),
        not_modelled(
            "spec.predictor.scaleTarget",
            "Knative's autoscaler is not simulated",
        ),
        not_modelled(
            "spec.predictor.scaleMetric",
            "Knative's autoscaler is not simulated",
        ),
        not_modelled(
            "spec.predictor.containerConcurrency",
            "requests beyond it would wait in the proxy",
        ),
        not_modelled("spec.predictor.timeout", "set router.timeout"),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.predictor.model.*",
        "spec.predictor.batcher*",
        "spec.predictor.logger*",
        "spec.predictor.canaryTrafficPercent",
        "spec.predictor.workerSpec.*",
        "spec.predictor.deploymentStrategy*",
    ],
    idle_flags: &[],
};

/// KServe's LLMInferenceService.
pub const LLM_INFERENCE_SERVICE: Table = Table {
    kind: "llminferenceservice",
    title: "KServe LLMInferenceService",
    keys: &[
        says("kind", "what the document is", Text),
        says("spec.model.uri", "the model", Text),
        says("spec.replicas", "`layout.replicas`", Whole),
        says("spec.parallelism.tensor", "`layout.tp`", Whole),
        says("spec.parallelism.pipeline", "`layout.pp`", Whole),
        says(
            "spec.parallelism.data",
            "`layout.dp`, or replicas of a dense model",
            Whole,
        ),
        says("spec.parallelism.expert", "`layout.ep`", Text),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.model.name",
        "spec.parallelism.dataLocal",
        "spec.parallelism.dataRPCPort",
        "spec.router.*",
        "spec.baseRefs*",
        "spec.worker*",
        "spec.template.metadata*",
    ],
    idle_flags: &[],
};

/// Imports an InferenceService.
pub fn inference_service(tree: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) {
    let predictor = ["spec", "predictor"];
    let Some(node) = tree.node.at(&predictor) else {
        return nothing(tree, draft);
    };
    let inner = Tree {
        node,
        file: tree.file,
    };
    if let Some(model) = node.get("model") {
        let model = Tree {
            node: model,
            file: tree.file,
        };
        let process = process_of(model, maps, draft);
        let mut words = process.words.clone();
        let hugging_face = |w: &Word| {
            !w.text.starts_with("--model_name")
                && !w.text.starts_with("--model-name")
                && !w.text.starts_with("--backend")
        };
        words.retain(hugging_face);
        // The Hugging Face runtime calls the model --model_id.
        for word in &mut words {
            for name in ["--model_id", "--model-id"] {
                if let Some(rest) = word.text.strip_prefix(name) {
                    word.text = format!("--model{rest}");
                }
            }
        }
        super::vllm::import(
            &words,
            tree.file,
            process.image.as_ref().map(|(i, p)| (i.as_str(), p.clone())),
            draft,
        );
        if let Some((uri, origin)) = tree.text("", &["spec", "predictor", "model", "storageUri"])
            && draft.facts.model.is_none()
        {
            draft.model(uri, origin);
        }
        devices(model, "spec.predictor.model", draft);
        placement(inner, "spec.predictor", draft);
    } else if pod(inner, "spec.predictor", maps, draft) != Runs::Engine {
        return nothing(tree, draft);
    }
    for (key, path) in [
        ("tensorParallelSize", "layout.tp"),
        ("pipelineParallelSize", "layout.pp"),
    ] {
        if let Some((n, origin)) = tree.whole("", &["spec", "predictor", "workerSpec", key], draft)
        {
            draft.set(path, n, &origin);
        }
    }
    if let Some(found) = tree.whole("", &["spec", "predictor", "minReplicas"], draft) {
        draft.facts.replicas.push(found);
    }
    sweep(
        tree,
        &[
            (String::new(), &INFERENCE_SERVICE),
            ("spec.predictor.".to_owned(), &PREDICTOR),
        ],
        draft,
    );
}

/// The predictor: its own keys, then a pod's.
const PREDICTOR: Table = Table {
    kind: "kserve",
    title: "",
    keys: POD.keys,
    idle: &[
        "model.*",
        "batcher*",
        "logger*",
        "canaryTrafficPercent",
        "deploymentStrategy*",
        "containers[].name",
        "containers[].ports*",
        "containers[].resources.*",
        "containers[].volumeMounts*",
        "volumes*",
        "tolerations*",
        "nodeSelector*",
        "serviceAccountName",
        "minReplicas",
        "workerSpec.*",
    ],
    idle_flags: &[],
};

/// Imports an LLMInferenceService.
pub fn llm_inference_service(tree: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) {
    if let Some(prefill) = tree.find("", &["spec", "prefill"]) {
        draft.fault(prefill.origin.fault(DISAGGREGATED));
        return;
    }
    let runs = match tree.node.at(&["spec", "template"]) {
        Some(spec) => pod(
            Tree {
                node: spec,
                file: tree.file,
            },
            "spec.template",
            maps,
            draft,
        ),
        None => Runs::Nothing,
    };
    if runs == Runs::Nothing {
        // The template's container may leave the command to the preset, which runs vLLM.
        super::vllm::import(&[], tree.file, None, draft);
        for container in tree
            .node
            .at(&["spec", "template", "containers"])
            .map_or(&[][..], Node::items)
        {
            devices(
                Tree {
                    node: container,
                    file: tree.file,
                },
                "spec.template.containers[]",
                draft,
            );
        }
    }
    if let Some((uri, origin)) = tree.text("", &["spec", "model", "uri"])
        && draft.facts.model.is_none()
    {
        draft.model(uri, origin);
    }
    for (key, path) in [("tensor", "layout.tp"), ("pipeline", "layout.pp")] {
        if let Some((n, origin)) = tree.whole("", &["spec", "parallelism", key], draft) {
            draft.set(path, n, &origin);
        }
    }
    if let Some(found) = tree.whole("", &["spec", "parallelism", "data"], draft) {
        draft.facts.data_parallel = Some(found);
    }
    if let Some((value, origin)) = tree.text("", &["spec", "parallelism", "expert"])
        && value != "false"
    {
        draft.facts.expert_parallel = Some(origin);
    }
    replicas(tree, draft);
    sweep(
        tree,
        &[
            (String::new(), &LLM_INFERENCE_SERVICE),
            ("spec.template.".to_owned(), &POD),
        ],
        draft,
    );
}
