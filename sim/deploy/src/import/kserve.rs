//! KServe: InferenceService (v1beta1) and LLMInferenceService (v1alpha1), by the API reference of kserve.github.io.

use std::collections::BTreeMap;

use super::draft::{Draft, Origin};
use super::pod::{POD, Runs, devices, placement, pod, process_of};
use super::tree::{Tree, sweep};
use super::workload::{ConfigMaps, nothing};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::text::shell::{self, Word};

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
        says(
            "spec.prefill.replicas",
            "`pool.replicas` of the pool that prefills; the service then decodes alone",
            Whole,
        ),
        says(
            "spec.prefill.parallelism.tensor",
            "`pool.layout.tp` of that pool",
            Whole,
        ),
        says(
            "spec.prefill.parallelism.pipeline",
            "`pool.layout.pp` of that pool",
            Whole,
        ),
        says(
            "spec.prefill.parallelism.data",
            "`pool.layout.dp` of that pool, or its replicas of a dense model",
            Whole,
        ),
        says(
            "spec.prefill.parallelism.expert",
            "`pool.layout.ep` of that pool",
            Text,
        ),
    ],
    idle: &[
        "apiVersion",
        "metadata.*",
        "status*",
        "spec.model.name",
        "spec.parallelism.dataLocal",
        "spec.parallelism.dataRPCPort",
        "spec.prefill.parallelism.dataLocal",
        "spec.prefill.parallelism.dataRPCPort",
        "spec.prefill.worker*",
        "spec.prefill.template.metadata*",
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
    if tree.find("", &["spec", "prefill"]).is_some() {
        draft.facts.is_apart = true;
        draft.prefill(|draft| side(tree, &["spec", "prefill"], maps, draft));
    }
    side(tree, &["spec"], maps, draft);
    if let Some((uri, origin)) = tree.text("", &["spec", "model", "uri"])
        && draft.facts.model.is_none()
    {
        draft.model(uri, origin);
    }
    let tables: [(String, &Table); 3] = [
        ("spec.template.".to_owned(), &POD),
        ("spec.prefill.template.".to_owned(), &POD),
        (String::new(), &LLM_INFERENCE_SERVICE),
    ];
    sweep(tree, &tables, draft);
}

/// One side of an LLMInferenceService: `spec`, which decodes alone where there is a `spec.prefill`.
fn side(tree: Tree<'_>, at: &[&str], maps: &ConfigMaps, draft: &mut Draft) {
    let file = tree.file;
    let path = |keys: &[&'static str]| -> Vec<&str> { at.iter().chain(keys).copied().collect() };
    let template = path(&["template"]);
    let prefix = template.join(".");
    let node = tree.node.at(&template);
    let runs = node.map_or(Runs::Nothing, |node| {
        pod(Tree { node, file }, &prefix, maps, draft)
    });
    if runs == Runs::Nothing {
        // The template's container may leave the command to the preset, which runs vLLM.
        let containers = node.and_then(|n| n.get("containers"));
        let mut words = Vec::new();
        for node in containers.map_or(&[][..], |c| c.items()) {
            let container = Tree { node, file };
            words.extend(additional(container, maps, draft));
            devices(container, &format!("{prefix}.containers[]"), draft);
        }
        super::vllm::import(&words, file, None, draft);
    }
    for (key, to) in [("tensor", "layout.tp"), ("pipeline", "layout.pp")] {
        if let Some((n, origin)) = tree.whole("", &path(&["parallelism", key]), draft) {
            draft.set(to, n, &origin);
        }
    }
    if let Some(found) = tree.whole("", &path(&["parallelism", "data"]), draft) {
        draft.facts.data_parallel = Some(found);
    }
    if let Some((value, origin)) = tree.text("", &path(&["parallelism", "expert"]))
        && value != "false"
    {
        draft.facts.expert_parallel = Some(origin);
    }
    if let Some(found) = tree.whole("", &path(&["replicas"]), draft) {
        draft.facts.replicas.push(found);
    }
}

/// The preset's own variable for more of vLLM's arguments, `VLLM_ADDITIONAL_ARGS`.
fn additional(container: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) -> Vec<Word> {
    let process = process_of(container, maps, draft);
    let own = |(name, _): &&(String, Origin)| name == "VLLM_ADDITIONAL_ARGS";
    let Some((_, origin)) = process.variables.iter().find(own) else {
        return Vec::new();
    };
    match shell::commands(&origin.raw, origin.place.line, &BTreeMap::new()) {
        Ok(all) => {
            draft.used(origin, "vLLM's arguments");
            all.into_iter().flat_map(|c| c.words).collect()
        }
        Err(wrong) => {
            draft.fault(origin.fault(wrong.message));
            Vec::new()
        }
    }
}
