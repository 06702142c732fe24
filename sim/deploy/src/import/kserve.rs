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
        says(
            "spec.model.name",
            "the model, where its uri is a volume or bucket",
            Text,
        ),
        says("spec.replicas", "`layout.replicas`", Whole),
        says("spec.parallelism.tensor", "`layout.tp`", Whole),
        says("spec.parallelism.pipeline", "`layout.pp`", Whole),
        says(
            "spec.parallelism.data",
            "`layout.dp`, or replicas of a dense model",
            Whole,
        ),
        says(
            "spec.parallelism.dataLocal spec.prefill.parallelism.dataLocal",
            "ranks of a pod: data / dataLocal pods hold one replica",
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
        "spec.parallelism.dataRPCPort",
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
        let mut words = runtime_words(tree, maps);
        words.extend(process.words.clone());
        let sglang = words.iter().any(|w| w.text.contains("sglang"));
        let at = words.iter().position(|w| {
            w.text.ends_with("api_server") || w.text.ends_with("launch_server") || w.text == "serve"
        });
        words.drain(..at.map_or(0, |i| i + 1));
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
        let image = process.image.as_ref().map(|(i, p)| (i.as_str(), p.clone()));
        match sglang {
            true => super::sglang::import(&words, tree.file, image, draft),
            false => super::vllm::import(&words, tree.file, image, draft),
        }
        if let Some((uri, origin)) = tree.text("", &["spec", "predictor", "model", "storageUri"]) {
            served(&uri, &origin, None, draft);
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
            if key == "pipelineParallelSize" {
                draft.facts.group_size = Some((n, origin));
            }
        }
    }
    if let Some((n, origin)) = tree.whole("", &["spec", "predictor", "minReplicas"], draft) {
        let why = "the autoscaler may leave none; the simulation starts with one";
        if n == 0 {
            draft.used(&origin, why);
        }
        draft.facts.replicas.push((n.max(1), origin));
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

/// The words of the ServingRuntime among the files that a predictor names.
fn runtime_words(tree: Tree<'_>, maps: &ConfigMaps) -> Vec<Word> {
    let name = tree.text("", &["spec", "predictor", "model", "runtime"]);
    let all = name.and_then(|(name, _)| maps.get(&format!("{RUNTIME}{name}")));
    let words = all.map_or(&[][..], Vec::as_slice).iter();
    words
        .map(|(_, o)| Word {
            text: o.raw.clone(),
            line: o.place.line,
        })
        .collect()
}

/// What stands before the name of a ServingRuntime among the maps.
pub const RUNTIME: &str = "ServingRuntime/";

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
    if let Some((uri, origin)) = tree.text("", &["spec", "model", "uri"]) {
        served(
            &uri,
            &origin,
            tree.text("", &["spec", "model", "name"]),
            draft,
        );
    }
    let tables: [(String, &Table); 3] = [
        ("spec.template.".to_owned(), &POD),
        ("spec.prefill.template.".to_owned(), &POD),
        (String::new(), &LLM_INFERENCE_SERVICE),
    ];
    sweep(tree, &tables, draft);
}

/// The model that a resource names by where its weights lie, and maybe by `name`, where its engine is not told of it.
pub fn served(uri: &str, origin: &Origin, name: Option<(String, Origin)>, draft: &mut Draft) {
    let mounted = |id: &str| id.starts_with("/mnt/") || id.starts_with("/models/model");
    if draft
        .facts
        .model
        .as_ref()
        .is_some_and(|(id, _)| !mounted(id))
    {
        return;
    }
    draft.facts.model = None;
    // A volume is called as its owner likes; the model's own name says more.
    let is_opaque = ["pvc:", "s3:", "gs:", "hdfs:", "https:"]
        .iter()
        .any(|s| uri.starts_with(s));
    match name {
        Some((name, from)) if is_opaque && !name.is_empty() => {
            draft.used(origin, "where the weights lie");
            draft.model(name, from);
        }
        _ => draft.model(uri.to_owned(), origin.clone()),
    }
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
    let worker = tree.node.at(&path(&["worker", "containers"])).is_some();
    local_ranks(tree, &path, worker, draft);
    if let Some((value, origin)) = tree.text("", &path(&["parallelism", "expert"]))
        && value != "false"
    {
        draft.facts.expert_parallel = Some(origin);
    }
    if let Some(found) = tree.whole("", &path(&["replicas"]), draft) {
        draft.facts.replicas.push(found);
    }
}

/// How many pods hold a replica: all its data-parallel ranks by those of a pod, or a pod for each pipeline stage beside a worker.
fn local_ranks<'a>(
    tree: Tree<'_>,
    path: &dyn Fn(&[&'static str]) -> Vec<&'a str>,
    worker: bool,
    draft: &mut Draft,
) {
    let local = tree.whole("", &path(&["parallelism", "dataLocal"]), draft);
    let all = draft.facts.data_parallel.as_ref().map_or(1, |(n, _)| *n);
    if let Some((local, origin)) = local.filter(|(n, _)| *n > 0 && all % n == 0) {
        draft.used(&origin, "data-parallel ranks of a pod");
        draft.facts.group_size = Some((all / local, origin));
        draft.facts.is_grouped = true;
    } else if worker
        && let Some((stages, origin)) = tree.whole("", &path(&["parallelism", "pipeline"]), draft)
    {
        draft.facts.group_size = Some((stages, origin));
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
