//! Resources that name a model and leave the pod to an operator: KubeAI's Model (kubeai.org/v1) and NVIDIA's NIMService (apps.nvidia.com/v1alpha1).
//!
//! Fields: substratusai/kubeai `docs/reference/kubernetes-api.md` and `charts/kubeai/values.yaml` (resource profiles); NVIDIA/k8s-nim-operator `api/apps/v1alpha1`.

use super::draft::{Draft, Origin};
use super::pod::{devices, placement, process_of};
use super::program;
use super::tree::{Tree, sweep};
use super::workload::{ConfigMaps, nothing};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::shown;
use crate::text::shell::Word;
use crate::text::yaml::Node;

/// KubeAI's Model.
pub const MODEL: Table = Table {
    kind: "kubeai",
    title: "KubeAI's Model",
    keys: &[
        says("kind", "what the document is", Text),
        says("spec.url", "the model (hf://...)", Text),
        says(
            "spec.engine",
            "VLLM; others serve no token by token or are not modelled",
            Text,
        ),
        says("spec.args[]", "vLLM's arguments", Text),
        says("spec.image", "vLLM's release, by the tag", Text),
        says(
            "spec.resourceProfile",
            "`hardware.accelerator` and devices: nvidia-gpu-h100:8",
            Text,
        ),
        says("spec.replicas", "`layout.replicas`", Whole),
        says(
            "spec.minReplicas",
            "`layout.replicas`, where `replicas` is not there",
            Whole,
        ),
        says("spec.env*", "variables", Text),
        not_modelled(
            "spec.maxReplicas",
            "KubeAI's autoscaler is not simulated: replicas stay at their minimum",
        ),
        not_modelled(
            "spec.targetRequests",
            "KubeAI's autoscaler is not simulated",
        ),
        not_modelled(
            "spec.scaleDownDelaySeconds",
            "KubeAI's autoscaler is not simulated",
        ),
        not_modelled("spec.adapters*", "LoRA adapters are not simulated"),
        says(
            "spec.loadBalancing.strategy",
            "`router.policy`: LeastLoad or PrefixHash",
            Text,
        ),
    ],
    idle: &[
        "apiVersion",
        "metadata*",
        "status*",
        "spec.features*",
        "spec.owner",
        "spec.cacheProfile",
        "spec.autoscalingProfile",
        "spec.autoscalingDisabled",
        "spec.files*",
        "spec.priorityClassName",
        "spec.loadBalancing.*",
    ],
    idle_flags: &[],
};

/// NVIDIA's NIMService.
pub const NIM: Table = Table {
    kind: "nim",
    title: "NVIDIA's NIMService",
    keys: &[
        says("kind", "what the document is", Text),
        says(
            "spec.image.repository",
            "the model, by the image's name",
            Text,
        ),
        says("spec.image.tag", "the image's", Text),
        says("spec.replicas", "`layout.replicas`", Whole),
        says("spec.resources*", "devices of a pod", Whole),
        says("spec.nodeSelector*", "the machine, as of a pod", Text),
        says(
            "spec.env*",
            "variables: NIM_MAX_MODEL_LEN, NIM_TENSOR_PARALLEL_SIZE",
            Text,
        ),
        not_modelled(
            "spec.scale*",
            "replicas stay as many as the run starts with",
        ),
    ],
    idle: &["apiVersion", "metadata*", "status*", "spec.*"],
    idle_flags: &[],
};

/// Imports KubeAI's Model.
pub fn model(tree: Tree<'_>, draft: &mut Draft) {
    let engine = tree.text("", &["spec", "engine"]);
    let is_vllm = engine.as_ref().is_some_and(|(name, _)| name == "VLLM");
    if !is_vllm {
        if let Some((name, origin)) = engine {
            draft.fault(origin.fault(format!(
                "of KubeAI's engines VLLM is simulated, not `{}`",
                shown(&name)
            )));
        }
        return nothing(tree, draft);
    }
    let args = tree.node.at(&["spec", "args"]).map_or(&[][..], Node::items);
    let words: Vec<Word> = (args.iter())
        .filter_map(|w| Some((w.text()?.to_owned(), w.line)))
        .map(|(text, line)| Word { text, line })
        .collect();
    let image = tree.text("", &["spec", "image"]);
    let image = image.as_ref().map(|(i, o)| (i.as_str(), o.place.clone()));
    super::vllm::import(&words, tree.file, image, draft);
    if let Some((url, origin)) = tree.text("", &["spec", "url"])
        && draft.facts.model.is_none()
    {
        let id = url.split_once('?').map_or(url.as_str(), |(id, _)| id);
        draft.model(id.to_owned(), origin);
    }
    if let Some((profile, origin)) = tree.text("", &["spec", "resourceProfile"]) {
        resource_profile(&profile, &origin, draft);
    }
    let count = ["replicas", "minReplicas"]
        .iter()
        .find_map(|key| tree.whole("", &["spec", key], draft));
    if let Some((n, origin)) = count {
        draft.facts.replicas.push((n.max(1), origin));
    }
    if let Some((strategy, origin)) = tree.text("", &["spec", "loadBalancing", "strategy"]) {
        match strategy.as_str() {
            "PrefixHash" => draft.set("router.policy", "prefix_aware", &origin),
            _ => draft.set("router.policy", "least_outstanding", &origin),
        }
    }
    sweep(tree, &[(String::new(), &MODEL)], draft);
}

/// `nvidia-gpu-h100:8`: a profile of the chart's values, and how often its devices.
fn resource_profile(profile: &str, origin: &Origin, draft: &mut Draft) {
    let (name, times) = profile.split_once(':').unwrap_or((profile, "1"));
    if name.starts_with("cpu") || name.contains("tpu") {
        return draft.fault(origin.fault(format!(
            "`{}` has no GPU; engines on processors and TPUs are not simulated, so say a machine in its place",
            shown(name)
        )));
    }
    if let Ok(n) = times.parse::<i64>()
        && n > 0
    {
        draft.facts.pod_devices = Some((n, origin.clone()));
    }
    let product = ["nvidia-gpu-", "amd-gpu-"]
        .iter()
        .find_map(|start| name.strip_prefix(start))
        .unwrap_or(name);
    draft.facts.product = Some((product.to_owned(), origin.clone()));
}

/// Imports a NIMService.
pub fn nim_service(tree: Tree<'_>, maps: &ConfigMaps, draft: &mut Draft) {
    let spec = tree.node.get("spec");
    let Some((repository, origin)) = tree.text("", &["spec", "image", "repository"]) else {
        return nothing(tree, draft);
    };
    let tag = tree.text("", &["spec", "image", "tag"]);
    let tag = tag.map_or(String::new(), |(tag, _)| format!(":{tag}"));
    let Some(node) = spec else { return };
    let inner = Tree {
        node,
        file: tree.file,
    };
    let mut process = process_of(inner, maps, draft);
    process.image = Some((format!("{repository}{tag}"), origin.place));
    if !program::run(&process, tree.file, draft, 0) {
        return nothing(tree, draft);
    }
    if let Some(found) = tree.whole("", &["spec", "replicas"], draft) {
        draft.facts.replicas.push(found);
    }
    devices(inner, "spec", draft);
    placement(inner, "spec", draft);
    sweep(tree, &[(String::new(), &NIM)], draft);
}

/// Imports what a NIM image serves: the model is in its name, and which engine it starts is a profile's choice.
///
/// `nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.4` is `meta/llama-3.1-8b-instruct`.
pub fn nim(process: &program::Process, draft: &mut Draft) {
    let Some((image, place)) = &process.image else {
        return;
    };
    let origin = Origin::new(place.clone(), "image", image.clone());
    let name = image.split(['@']).next().unwrap_or(image);
    let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
    draft.set("engine.kind", "vllm_v1", &origin);
    draft.assume(
        "engine.version",
        sim::engines::params::VllmRelease::NEWEST.to_string(),
        "NIM chooses engine and release by a profile; vLLM's newest that is modelled is assumed",
    );
    if let Some((_, id)) = name.split_once("nim/") {
        draft.model(id.to_owned(), origin.clone());
    }
    for (name, variable) in &process.variables {
        let key = match name.as_str() {
            "NIM_MAX_MODEL_LEN" => "engine.max_model_len",
            "NIM_TENSOR_PARALLEL_SIZE" => "layout.tp",
            "NIM_PIPELINE_PARALLEL_SIZE" => "layout.pp",
            "NIM_MAX_NUM_SEQS" => "engine.max_num_seqs",
            _ => continue,
        };
        match crate::keys::whole(&variable.raw) {
            Ok(n) => draft.set(key, n, variable),
            Err(why) => draft.fault(variable.fault(why)),
        }
    }
    draft.facts.fills_pod = true;
}
