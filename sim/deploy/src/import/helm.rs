//! Values of Helm charts: the multi-node Triton TensorRT-LLM chart, vLLM production-stack, llm-d's model service.
//!
//! Keys: triton-inference-server/tutorials `EKS_Multinode_Triton_TRTLLM/multinode_helm_chart/chart/values.yaml`; vllm-project/production-stack
//! `helm/values.yaml`; llm-d-incubation/llm-d-modelservice `charts/llm-d-modelservice/values.yaml`.

use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::pod::{self, Runs};
use super::pools::Pools;
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
        says(
            "raySpec.enabled",
            "true: `replicaCount` workers and a head hold one replica",
            Switch,
        ),
        says("raySpec.headNode.requestGPU", "devices of that head", Whole),
        says(
            "lmcacheConfig.kvRole",
            "`pool.role`: kv_producer prefills, kv_consumer decodes",
            Text,
        ),
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
        "raySpec.*",
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
    keys: &[says(
        "routerSpec.routingLogic",
        "`router.policy`: roundrobin, session; prefixaware and kvaware as prefix_aware; disaggregated_prefill of models with a kvRole",
        Text,
    )],
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

/// What stands before a model's keys.
const SPEC: &str = "servingEngineSpec.modelSpec[]";

/// The models that are deployed; the switch of those that are not is reported.
fn deployed<'a>(doc: &'a Node, file: &Arc<str>, draft: &mut Draft) -> Vec<&'a Rc<Node>> {
    let specs = (doc.at(&["servingEngineSpec", "modelSpec"])).map_or(&[][..], Node::items);
    let mut on = Vec::new();
    for spec in specs {
        let enabled = Tree { node: spec, file }.text(SPEC, &["enabled"]);
        if let Some((_, origin)) = &enabled {
            draft.used(origin, "whether the model is deployed");
        }
        if enabled.is_none_or(|(value, _)| value != "false") {
            on.push(spec);
        }
    }
    on
}

/// Whether the values deploy several models, or prefill and decode apart.
pub fn is_several(doc: &Node) -> bool {
    deployed(doc, &Arc::from(""), &mut Draft::default()).len() > 1
}

/// Imports values of production-stack that deploy one model.
pub fn production_stack(doc: &Rc<Node>, file: &Arc<str>, draft: &mut Draft) {
    for spec in deployed(doc, file, draft) {
        stack_model(Tree { node: spec, file }, draft);
    }
    router(doc, file, draft);
    // The models have been dealt with one by one.
    sweep(
        Tree { node: doc, file },
        &[(String::new(), &STACK_ROUTER)],
        draft,
    );
}

/// Imports values of production-stack that deploy several models, each as a pool.
pub fn production_stack_pools(
    doc: &Rc<Node>,
    file: &Arc<str>,
    pools: &mut Pools,
    draft: &mut Draft,
) {
    let specs = deployed(doc, file, draft);
    let mut at = Vec::new();
    for spec in &specs {
        let tree = Tree { node: spec, file };
        let (name, origin) = tree.text(SPEC, &["name"]).unwrap_or_else(|| {
            let origin = Origin::new(Place::new(file, spec.line), SPEC, "");
            ("model".to_owned(), origin)
        });
        let role = tree.text(SPEC, &["lmcacheConfig", "kvRole"]);
        let role = role.and_then(|(value, origin)| match value.as_str() {
            "kv_producer" => Some(("prefill", Ok(origin))),
            "kv_consumer" => Some(("decode", Ok(origin))),
            _ => None,
        });
        at.push(pools.found(&name, origin, role));
    }
    pools.counterparts();
    for (spec, i) in specs.into_iter().zip(at) {
        let own = pools.draft(i);
        stack_model(Tree { node: spec, file }, own);
        router(doc, file, own);
    }
    sweep(
        Tree { node: doc, file },
        &[(String::new(), &STACK_ROUTER)],
        draft,
    );
}

/// How the chart's router chooses a server.
fn router(doc: &Node, file: &Arc<str>, draft: &mut Draft) {
    let tree = Tree { node: doc, file };
    let Some((logic, origin)) = tree.text("", &["routerSpec", "routingLogic"]) else {
        return;
    };
    let policy = match logic.as_str() {
        "roundrobin" => "round_robin",
        "session" => "session",
        "prefixaware" | "kvaware" => "prefix_aware",
        "disaggregated_prefill" => {
            return draft.used(
                &origin,
                "prompts go to one pool, and from there to the other",
            );
        }
        "ttft" | "priority" | "sleep_mode_aware" => {
            let why = "this choice of a server is not simulated; set router.policy";
            return draft.fate(&origin, crate::report::Fate::NotModelled, why);
        }
        _ => {
            return draft.fault(origin.fault(format!(
                "must be roundrobin, session, prefixaware, kvaware or disaggregated_prefill, got `{}`",
                shown(&logic)
            )));
        }
    };
    draft.set("router.policy", policy, &origin);
}

/// The pods of a model's Ray cluster: `replicaCount` workers beside a head, which hold one replica together.
fn ray(spec: Tree<'_>, draft: &mut Draft) -> bool {
    let on = spec.text(SPEC, &["raySpec", "enabled"]);
    let Some((_, origin)) = on.filter(|(value, _)| value == "true") else {
        return false;
    };
    draft.used(&origin, "the pods of a Ray cluster hold one replica");
    if let Some(found) = spec.whole(SPEC, &["raySpec", "headNode", "requestGPU"], draft) {
        draft.facts.more_devices = found.0;
        draft.facts.more_pods = 1;
        draft.used(&found.1, "devices of the cluster's head");
    }
    if let Some((n, origin)) = spec.whole(SPEC, &["replicaCount"], draft) {
        draft.facts.group_size = Some((n.max(1), origin));
    }
    true
}

fn stack_model(spec: Tree<'_>, draft: &mut Draft) {
    let prefix = SPEC;
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
    if !ray(spec, draft)
        && let Some(found) = spec.whole(prefix, &["replicaCount"], draft)
    {
        draft.facts.replicas.push(found);
    }
    if let Some(found) = spec.whole(prefix, &["requestGPU"], draft) {
        draft.facts.pod_devices = Some(found);
    }
    let renamed = super::tree::under(spec.node, prefix);
    let tables = [
        (format!("{prefix}."), &STACK),
        ("servingEngineSpec[\"modelSpec[]\"].".to_owned(), &STACK),
    ];
    let tree = Tree {
        node: &renamed,
        file: spec.file,
    };
    sweep(tree, &tables, draft);
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
