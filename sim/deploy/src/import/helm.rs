//! Values of Helm charts: the multi-node Triton TensorRT-LLM chart, vLLM production-stack, llm-d's model service.
//!
//! Keys: triton-inference-server/tutorials `EKS_Multinode_Triton_TRTLLM/multinode_helm_chart/chart/values.yaml`; vllm-project/production-stack
//! `helm/values.yaml`; llm-d-incubation/llm-d-modelservice `charts/llm-d-modelservice/values.yaml`.

use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::pod::{self, Runs};
use super::tree::{Tree, sweep};
use super::workload::ConfigMaps;
use crate::keys::Read::{Switch, Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::{Place, shown};
use crate::text::shell::Word;
use crate::text::yaml::Node;

/// The multi-node Triton chart.
pub const TRITON: Table = Table {
    kind: "triton-values",
    title: "Helm values of the multi-node Triton TensorRT-LLM chart",
    keys: &[
        says(
            "gpu",
            "`hardware.accelerator`, by the product's name, where --instance does not say the machine",
            Text,
        ),
        says("gpuPerNode", "devices of a pod, which is a node", Whole),
        says("tensorrtLLM.parallelism.tensor", "`layout.tp`", Whole),
        says("tensorrtLLM.parallelism.pipeline", "`layout.pp`", Whole),
        says(
            "triton.image.name",
            "what TensorRT-LLM does by default, by the tag's month",
            Text,
        ),
        says("autoscaling.enable", "whether the minimum counts", Switch),
        says("autoscaling.replicas.minimum", "`layout.replicas`", Whole),
        not_modelled(
            "autoscaling.replicas.maximum",
            "replicas stay as many as the run starts with",
        ),
        not_modelled(
            "autoscaling.metric.name",
            "replicas stay as many as the run starts with",
        ),
        not_modelled(
            "autoscaling.metric.value",
            "replicas stay as many as the run starts with",
        ),
    ],
    idle: &[
        "persistentVolumeClaim",
        "pullSecret*",
        "triton.resources.*",
        "triton.triton_model_repo_path",
        "triton.enable_nsys",
        "logging.*",
        "kubernetes.*",
    ],
    idle_flags: &[],
};

/// Imports values of the multi-node Triton chart.
pub fn triton(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    let start = Origin::new(
        Place::new(file, doc.entries().first().map_or(1, |e| e.line)),
        "multi-node Triton chart",
        "",
    );
    draft.set("engine.kind", "trt_llm", &start);
    for (key, path) in [("tensor", "layout.tp"), ("pipeline", "layout.pp")] {
        if let Some((n, origin)) = tree.whole("", &["tensorrtLLM", "parallelism", key], draft) {
            draft.set(path, n, &origin);
        }
    }
    if let Some((product, origin)) = tree.text("", &["gpu"]) {
        draft.facts.product = Some((product, origin));
    }
    if let Some((n, origin)) = tree.whole("", &["gpuPerNode"], draft) {
        let ranks = draft
            .whole("layout.tp", 1)
            .saturating_mul(draft.whole("layout.pp", 1));
        let pods = (ranks.saturating_sub(1) / n.max(1))
            .saturating_add(1)
            .max(1);
        if pods > 1 {
            draft.facts.group_size = Some((pods, origin.clone()));
        }
        draft.facts.pod_devices = Some((n, origin));
    }
    if let Some((image, origin)) = tree.text("", &["triton", "image", "name"]) {
        match super::trtllm::is_before_0_13(&image) {
            Some(true) => {
                draft.used(&origin, "TensorRT-LLM before 0.13");
                super::trtllm::before_0_13(draft);
            }
            Some(false) => draft.used(&origin, "TensorRT-LLM 0.13 or later"),
            None => draft.used(&origin, "its tag names no release"),
        }
    }
    let scaled = tree
        .text("", &["autoscaling", "enable"])
        .is_none_or(|(value, _)| value != "false");
    if let Some((n, origin)) = tree.whole("", &["autoscaling", "replicas", "minimum"], draft)
        && scaled
    {
        draft.facts.replicas.push((n.max(1), origin));
    }
    fixed(tree, draft);
    sweep(tree, &[(String::new(), &TRITON)], draft);
}

/// An autoscaler whose bounds are one number leaves as many replicas as that.
fn fixed(tree: Tree<'_>, draft: &mut Draft) {
    let replicas = |key| tree.text("", &["autoscaling", "replicas", key]);
    let (Some((least, _)), Some((most, origin))) = (replicas("minimum"), replicas("maximum"))
    else {
        return;
    };
    if least == most {
        draft.used(&origin, "as many as the minimum");
        for key in ["name", "value"] {
            if let Some((_, origin)) = tree.text("", &["autoscaling", "metric", key]) {
                draft.used(&origin, "the bounds leave it no choice");
            }
        }
    }
}

/// Why HAMi's keys are not read.
const SLICES: &str = "slices of a device are not simulated: the replica has whole ones";

/// vLLM production-stack.
pub const STACK: Table = Table {
    kind: "production-stack",
    title: "Helm values of vLLM production-stack",
    keys: &[
        says("modelURL", "the model", Text),
        says("replicaCount", "`layout.replicas`", Whole),
        says("repository", "the image", Text),
        says("tag", "vLLM's release", Text),
        says("requestGPU", "devices of a pod", Whole),
        says("vllmConfig.tensorParallelSize", "`layout.tp`", Whole),
        says("vllmConfig.pipelineParallelSize", "`layout.pp`", Whole),
        says("vllmConfig.maxModelLen", "`engine.max_model_len`", Text),
        says("vllmConfig.maxNumSeqs", "`engine.max_num_seqs`", Text),
        says(
            "vllmConfig.gpuMemoryUtilization",
            "`engine.gpu_memory_utilization`",
            Text,
        ),
        says("vllmConfig.dtype", "16 bits either way", Text),
        says(
            "vllmConfig.enableChunkedPrefill",
            "`engine.enable_chunked_prefill`",
            Text,
        ),
        says(
            "vllmConfig.enablePrefixCaching",
            "`engine.enable_prefix_caching`; the chart switches it off where `vllmConfig` does not say true",
            Text,
        ),
        says("vllmConfig.extraArgs[]", "vLLM's arguments", Text),
        says("env[].name", "variables", Text),
        says("env[].value", "their values", Text),
        says("enabled", "false: the model is not deployed", Switch),
        not_modelled(
            "enableLoRA vllmConfig.enableLoRA",
            "LoRA adapters are not simulated",
        ),
        not_modelled("vllmConfig.v0", "the scheduler is that of the release"),
        not_modelled("requestGPUMem", SLICES),
        not_modelled("requestGPUMemPercentage", SLICES),
        not_modelled("requestGPUCores", SLICES),
        not_modelled(
            "lmcacheConfig.enabled",
            "KV outside of the device's memory is not simulated",
        ),
        not_modelled(
            "lmcacheConfig.cpuOffloadingBufferSize",
            "KV outside of the device's memory is not simulated",
        ),
        not_modelled(
            "keda.maxReplicaCount",
            "replicas stay as many as the run starts with",
        ),
    ],
    idle: &[
        "name",
        "requestCPU",
        "requestMemory",
        "limitCPU",
        "limitMemory",
        "pvc*",
        "storageClass",
        "hf_token*",
        "nodeSelectorTerms*",
        "annotations*",
        "podAnnotations*",
        "imagePullPolicy",
        "imagePullSecret*",
        "vllmConfig.v1",
        "vllmConfig.maxLoras",
        "vllmConfig.prometheusMultiprocDir",
        "enableTool",
        "toolCallParser",
        "priorityClassName",
        "limitGPU*",
        "resources*",
        "nodeName",
        "affinity*",
        "envFromSecret*",
        "tolerationsPolicy",
        "shmSize",
        "chatTemplate*",
        "initContainer*",
        "runtimeClassName",
        "serviceAccountName",
        "tolerations*",
        "lmcacheConfig.*",
        "keda*",
        "labels*",
        "env[].valueFrom*",
        "extraVolume*",
        "requestGPUType",
    ],
    idle_flags: &[],
};

/// What surrounds the models of production-stack.
pub const STACK_ROUTER: Table = Table {
    kind: "production-stack",
    title: "the chart's other keys",
    keys: &[
        says(
            "routerSpec.routingLogic",
            "`router.policy`: roundrobin, session; prefixaware and kvaware as prefix_aware",
            Text,
        ),
        not_modelled(
            "routerSpec.enablePD",
            "prefill and decode on separate pools are not imported",
        ),
    ],
    idle: &[
        "servingEngineSpec.*",
        "routerSpec.*",
        "cacheserverSpec*",
        "loraController*",
        "loraAdapters*",
        "sharedStorage*",
        "grafanaDashboards*",
        "extraObjects*",
        "global*",
    ],
    idle_flags: &[],
};

/// Imports values of production-stack.
pub fn production_stack(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    let specs = doc
        .at(&["servingEngineSpec", "modelSpec"])
        .map_or(&[][..], Node::items);
    for spec in specs {
        let model = Tree { node: spec, file };
        let prefix = "servingEngineSpec.modelSpec[]";
        if let Some((value, origin)) = model.text(prefix, &["enabled"]) {
            draft.used(&origin, "whether the model is deployed");
            if value == "false" {
                continue;
            }
        }
        stack_model(model, draft);
        let renamed = super::tree::under(spec, "servingEngineSpec.modelSpec[]");
        let tables = [
            ("servingEngineSpec.modelSpec[].".to_owned(), &STACK),
            ("servingEngineSpec[\"modelSpec[]\"].".to_owned(), &STACK),
        ];
        sweep(
            Tree {
                node: &renamed,
                file,
            },
            &tables,
            draft,
        );
    }
    if let Some((logic, origin)) = tree.text("", &["routerSpec", "routingLogic"]) {
        let policy = match logic.as_str() {
            "roundrobin" => Some("round_robin"),
            "session" => Some("session"),
            "prefixaware" | "kvaware" => Some("prefix_aware"),
            _ => None,
        };
        match policy {
            Some(policy) => draft.set("router.policy", policy, &origin),
            None => draft.fault(origin.fault(format!(
                "must be roundrobin, session, prefixaware or kvaware, got `{}`",
                shown(&logic)
            ))),
        }
    }
    // The models have been dealt with one by one.
    sweep(tree, &[(String::new(), &STACK_ROUTER)], draft);
}

fn stack_model(spec: Tree<'_>, draft: &mut Draft) {
    let prefix = "servingEngineSpec.modelSpec[]";
    let mut words = Vec::new();
    let mut add = |option: &str, keys: &[&str]| {
        if let Some((value, origin)) = spec.text(prefix, keys) {
            words.push(Word {
                text: format!("{option}={value}"),
                line: origin.place.line,
            });
        }
    };
    add("--model", &["modelURL"]);
    add(
        "--tensor-parallel-size",
        &["vllmConfig", "tensorParallelSize"],
    );
    add(
        "--pipeline-parallel-size",
        &["vllmConfig", "pipelineParallelSize"],
    );
    add("--max-model-len", &["vllmConfig", "maxModelLen"]);
    add("--max-num-seqs", &["vllmConfig", "maxNumSeqs"]);
    add(
        "--gpu-memory-utilization",
        &["vllmConfig", "gpuMemoryUtilization"],
    );
    add("--dtype", &["vllmConfig", "dtype"]);
    add(
        "--enable-chunked-prefill",
        &["vllmConfig", "enableChunkedPrefill"],
    );
    add(
        "--enable-prefix-caching",
        &["vllmConfig", "enablePrefixCaching"],
    );
    let config = spec.node.entry("vllmConfig");
    if let Some(config) = config.filter(|c| !c.value.entries().is_empty())
        && config
            .value
            .get("enablePrefixCaching")
            .is_none_or(|n| n.is_null())
    {
        // `helm/templates/deployment-vllm-multi.yaml`: what is not true is `--no-enable-prefix-caching`.
        words.push(Word {
            text: "--no-enable-prefix-caching".to_owned(),
            line: config.line,
        });
    }
    let extra = spec
        .node
        .at(&["vllmConfig", "extraArgs"])
        .map_or(&[][..], Node::items);
    words.extend(extra.iter().filter_map(|n| {
        Some(Word {
            text: n.text()?.to_owned(),
            line: n.line,
        })
    }));
    let image = spec.text(prefix, &["repository"]).map(|(repository, _)| {
        let (tag, origin) = match spec.text(prefix, &["tag"]) {
            Some((tag, origin)) => (format!(":{tag}"), origin.place),
            None => (String::new(), Place::new(spec.file, spec.node.line)),
        };
        (format!("{repository}{tag}"), origin)
    });
    super::vllm::import(
        &words,
        spec.file,
        image.as_ref().map(|(i, p)| (i.as_str(), p.clone())),
        draft,
    );
    if let Some(found) = spec.whole(prefix, &["replicaCount"], draft) {
        draft.facts.replicas.push(found);
    }
    if let Some(found) = spec.whole(prefix, &["requestGPU"], draft) {
        draft.facts.pod_devices = Some(found);
    }
}

/// llm-d's model service.
pub const LLM_D: Table = Table {
    kind: "llm-d",
    title: "Helm values of llm-d's model service",
    keys: &[
        says("modelArtifacts.uri", "the model (hf://...)", Text),
        says("decode.replicas", "`layout.replicas`", Whole),
        says("decode.parallelism.tensor", "`layout.tp`", Whole),
        says(
            "decode.parallelism.data",
            "`layout.dp`, or replicas of a dense model",
            Whole,
        ),
        says(
            "prefill.create",
            "false: each replica prefills and decodes",
            Switch,
        ),
        says(
            "prefill.replicas",
            "`pool.replicas` of the pool that prefills; 0, the chart's default: each replica prefills and decodes",
            Whole,
        ),
        says(
            "prefill.parallelism.tensor",
            "`pool.layout.tp` of the pool that prefills",
            Whole,
        ),
    ],
    idle: &[
        "modelArtifacts.*",
        "routing.*",
        "multinode",
        "decode.*",
        "prefill.*",
        "accelerator.*",
        "fullnameOverride",
        "nameOverride",
        "schedulerName",
        "serviceAccountOverride",
        "requester*",
        "extraObjects*",
        "common*",
        "dra*",
    ],
    idle_flags: &[],
};

/// One side of llm-d's model service: `decode`, which does both where there is no `prefill`.
fn llm_d_side(tree: Tree<'_>, side: &str, draft: &mut Draft) {
    let file = tree.file;
    let runs = match tree.node.get(side) {
        Some(node) => pod::pod(Tree { node, file }, side, &ConfigMaps::new(), draft),
        None => Runs::Nothing,
    };
    if runs != Runs::Engine {
        // modelCommand: vllmServe leaves the program to the chart; its arguments are the container's.
        let containers = tree.node.at(&[side, "containers"]);
        for node in containers.map_or(&[][..], Node::items) {
            let container = Tree { node, file };
            let process = pod::process_of(container, &ConfigMaps::new(), draft);
            let image = process.image.as_ref().map(|(i, p)| (i.as_str(), p.clone()));
            super::vllm::import(&process.words, file, image, draft);
            pod::devices(container, &format!("{side}.containers[]"), draft);
        }
        if let Some(node) = tree.node.get(side) {
            pod::placement(Tree { node, file }, side, draft);
        }
    }
    if let Some((n, origin)) = tree.whole("", &[side, "parallelism", "tensor"], draft) {
        draft.set("layout.tp", n, &origin);
    }
    if let Some(found) = tree.whole("", &[side, "parallelism", "data"], draft) {
        draft.facts.data_parallel = Some(found);
    }
    if let Some(found) = tree.whole("", &[side, "replicas"], draft) {
        draft.facts.replicas.push(found);
    }
}

/// Imports values of llm-d's model service.
pub fn llm_d(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    let created = tree
        .text("", &["prefill", "create"])
        .is_none_or(|(value, _)| value != "false");
    // The chart's own default is no prefill replica.
    let count = tree
        .whole("", &["prefill", "replicas"], draft)
        .map_or(0, |(n, _)| n);
    if created && count > 0 {
        draft.facts.is_apart = true;
        draft.prefill(|draft| llm_d_side(tree, "prefill", draft));
    }
    llm_d_side(tree, "decode", draft);
    if let Some((uri, origin)) = tree.text("", &["modelArtifacts", "uri"])
        && draft.facts.model.is_none()
    {
        draft.model(uri, origin);
    }
    sweep(tree, &[(String::new(), &LLM_D)], draft);
}
